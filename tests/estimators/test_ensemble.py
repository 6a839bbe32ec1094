"""Deep ensembles: members side by side as if alone, and good citizens of scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.distributions import Independent, Normal

from coresift import InputError, select
from coresift.estimators.ensemble import EnsembleClassifier, EnsembleRegressor
from coresift.estimators.networks import LabelledStack
from coresift.estimators.networks.losses import GaussianLoss
from coresift.posteriors.base import FiniteSamples
from coresift.testing import check_posterior

QUICK = {"epochs": 10, "num_members": 3, "random_state": 0, "progress": False}
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (260, 3))
TRUTH = np.sin(3 * X[:, 0]) * X[:, 1] + X[:, 2]
Y = 10 + 5 * (TRUTH + 0.2 * RNG.normal(size=len(X)))
LABELS = np.array(["low", "middle", "high"])[np.digitize(Y, [8, 12])]


def columns(inputs):
    return nn.Sequential(nn.Linear(inputs, 12), nn.Tanh())


def kinds(**options):
    options = QUICK | options
    return [(EnsembleRegressor(**options), Y), (EnsembleClassifier(**options), LABELS)]


def outputs(model, x):
    with torch.no_grad():
        return torch.stack(
            [member(torch.tensor(x, dtype=torch.float32)) for member in model.posterior_.members]
        )


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("network", [None, columns])
def test_members_are_those_trained_alone(kind, network):
    """The first member of three is the one of a stack of one, and different members differ."""
    three, y = kinds(network=network)[kind]
    alone, _ = kinds(network=network, num_members=1)[kind]
    together, single = outputs(three.fit(X[:90], y[:90]), X), outputs(alone.fit(X[:90], y[:90]), X)
    torch.testing.assert_close(together[:1], single, rtol=1e-3, atol=1e-4)
    assert float((together[0] - together[1]).abs().max()) > 0.05


@pytest.mark.parametrize("kind", [0, 1])
def test_ensembles_of_several_sets_are_those_fitted_alone(kind):
    model, y = kinds(epochs=5)[kind]  # few, for float32 rounding grows from step to step
    sets = [(X[:90], y[:90]), (X[90:150], y[90:150])]
    many = model.fit_many(sets, seeds=[3, 4])
    for one, seed, (x, target) in zip(many, (3, 4), sets, strict=True):
        alone = kinds(epochs=5, random_state=seed)[kind][0].fit(x, target)
        torch.testing.assert_close(outputs(one, X), outputs(alone, X), rtol=1e-3, atol=1e-4)


def test_sets_that_lack_a_class():
    few = LABELS != "high"
    first, second = EnsembleClassifier(**QUICK).fit_many([(X, LABELS), (X[few], LABELS[few])], [0, 1])
    assert first.classes_.tolist() == second.classes_.tolist() == ["high", "low", "middle"]
    assert second.predict_proba(X).shape == (len(X), 3)
    assert second.score(X[few], LABELS[few]) > 0.7


def test_gaussian_loss_is_a_log_density():
    generator = torch.Generator().manual_seed(0)
    raw, y = torch.randn(2, 5, 6, generator=generator), torch.randn(2, 5, 3, generator=generator)
    data = LabelledStack(torch.zeros(2, 5, 1), y, torch.tensor([5, 5]))
    losses = GaussianLoss()(raw, data, slice(0, 5), torch.full((2, 5), 0.2))
    deviation = (nn.functional.softplus(raw[..., 3:]) + 1e-4).sqrt()
    density = Independent(Normal(raw[..., :3], deviation), 1).log_prob(y)
    constant = 1.5 * np.log(2 * np.pi)
    torch.testing.assert_close(losses, -density.mean(1) - constant)


@pytest.mark.parametrize("kind", [0, 1])
def test_contract(kind):
    model, y = kinds()[kind]
    posterior = model.fit(X, y).posterior_
    assert isinstance(posterior, FiniteSamples) and posterior.num_samples == 3
    check_posterior(posterior, torch.tensor(X[:15]), tolerance=1e-5)


@pytest.mark.parametrize("kind", [0, 1])
def test_moved_to_a_device(kind):
    model, y = kinds()[kind]
    expected, posterior = model.fit(X, y).predict(X), model.posterior_
    model.posterior_ = posterior.to("cpu")
    assert model.posterior_ is not posterior
    assert np.array_equal(model.predict(X), expected)


def test_predictive_is_the_mixture_of_the_members():
    regressor = EnsembleRegressor(**QUICK).fit(X, Y)
    each = regressor.posterior_.conditional(torch.tensor(X), range(3))
    mean, deviation = regressor.predict(X, return_std=True)
    np.testing.assert_allclose(mean, each.mean.mean(0))
    np.testing.assert_allclose(deviation**2, each.variance.mean(0) + each.mean.var(0, correction=0))
    classifier = EnsembleClassifier(**QUICK).fit(X, LABELS)
    probs = classifier.posterior_.conditional(torch.tensor(X), range(3)).probs.mean(0)
    np.testing.assert_allclose(classifier.predict_proba(X), probs)
    assert (classifier.predict(X) == classifier.classes_[probs.argmax(1)]).all()


def test_several_outputs():
    y = np.stack([Y, -X[:, 0]], 1)
    model = EnsembleRegressor(**QUICK).fit(X, y)
    mean, deviation = model.predict(X, return_std=True)
    assert mean.shape == deviation.shape == y.shape
    check_posterior(model.posterior_, torch.tensor(X[:15]), tolerance=1e-5)
    assert len(select(X, posterior=model.posterior_, budget=5)) == 5


def test_calibration():
    """90% intervals cover about 90% of new labels, and members disagree where they have seen nothing."""
    x = RNG.uniform(-1, 1, (2300, 3))
    y = 10 + 5 * (np.sin(3 * x[:, 0]) * x[:, 1] + x[:, 2] + 0.2 * RNG.normal(size=len(x)))
    model = EnsembleRegressor(num_members=10, epochs=200, random_state=0, progress=False).fit(
        x[:300], y[:300]
    )
    mean, deviation = model.predict(x[300:], return_std=True)
    assert 0.85 < (np.abs(mean - y[300:]) < 1.645 * deviation).mean() < 0.95
    assert model.score(x[300:], y[300:]) > 0.85
    inside, outside = (
        model.posterior_.conditional(rows, range(10)).mean.std(0).median()
        for rows in (torch.tensor(x[300:]), torch.full((1, 3), 4.0))
    )
    assert outside > 3 * inside


def test_classes_are_learned():
    model = EnsembleClassifier(num_members=5, epochs=60, random_state=0, progress=False)
    model.fit(X[:200], LABELS[:200])
    assert model.score(X[200:], LABELS[200:]) > 0.7
    assert abs(model.predict_proba(X).sum(1) - 1).max() < 1e-12


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("network", [None, columns])
def test_saved_and_loaded(kind, network, tmp_path):
    model, y = kinds(network=network)[kind]
    model.fit(X, y).save(tmp_path)
    again = type(model).load(tmp_path, network=network)
    for name in ("predict", "predict_proba") if kind else ("predict",):
        np.testing.assert_array_equal(getattr(again, name)(X), getattr(model, name)(X))
    assert again.get_params() == model.get_params()
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".safetensors"}
    if kind:
        assert again.classes_.dtype == model.classes_.dtype
    else:
        np.testing.assert_array_equal(again.predict(X, True)[1], model.predict(X, True)[1])


def test_images(tmp_path):
    images = RNG.normal(size=(60, 1, 6, 6))
    labels = (images.mean((1, 2, 3)) > 0).astype(int)
    layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())
    model = EnsembleClassifier(layers, **QUICK).fit(images, labels)
    assert model.predict_proba(images).shape == (60, 2)
    assert len(select(images, posterior=model.posterior_, budget=5)) == 5
    model.save(tmp_path)
    again = EnsembleClassifier.load(tmp_path, network=layers)
    np.testing.assert_array_equal(again.predict_proba(images), model.predict_proba(images))


@pytest.mark.parametrize("kind", [0, 1])
def test_pipeline_and_cross_validation(kind):
    model, y = kinds(epochs=40)[kind]
    pipeline = make_pipeline(StandardScaler(), model)
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.5


@pytest.mark.parametrize("strategy", ["acs-fw", "bald", "acs-lcmd", "k-center", "badge"])
@pytest.mark.parametrize("kind", [0, 1])
def test_select(strategy, kind):
    if strategy == "badge" and kind == 0:
        pytest.skip("BADGE is for classes")
    model, y = kinds(num_members=12, epochs=3)[kind]
    posterior = model.fit(X[:50], y[:50]).posterior_
    batch = select(X, posterior=posterior, budget=10, strategy=strategy, labelled=X[:50])
    assert len(set(batch.index.tolist())) == 10


def test_the_same_seed_gives_the_same_ensemble_and_leaves_the_global_one_alone():
    state = torch.get_rng_state()
    first, second = (EnsembleRegressor(**QUICK).fit(X, Y).predict(X) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def test_errors():
    with pytest.raises(InputError, match="num_members is 0"):
        EnsembleRegressor(**QUICK | {"num_members": 0}).fit(X, Y)
    with pytest.raises(InputError, match=r"expected \(1, features\)"):
        EnsembleClassifier(nn.Unflatten(1, (3, 1)), **QUICK).fit(X, LABELS)


def test_members_whose_features_have_died_are_spoken_of_once():
    x = np.random.default_rng(0).uniform(-1, 1, (260, 3))
    y = np.digitize(x[:, 0] * x[:, 1] + x[:, 2], [-0.3, 0.3])
    layers = nn.Sequential(nn.Linear(3, 30), nn.ReLU())
    with pytest.warns(UserWarning, match="in 3 of 3 networks as few as 0 of 30 features differ") as seen:
        EnsembleClassifier(layers, **QUICK | {"epochs": 30}, learning_rate=100.0).fit(x, y)
    assert len(seen) == 1


def test_few_labels_of_many_classes_are_no_warning():
    """Warnings are errors in tests; in active learning there may be one label of a class."""
    x, y = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 20
    assert EnsembleClassifier(num_members=2, epochs=1, random_state=0).fit(x, y).predict(x).shape == (30,)
