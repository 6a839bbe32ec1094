"""Neural linear classification: what it learns, that it is a good estimator, and that spaces can use it."""

import numpy as np
import pytest
import torch
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import coresift
from coresift import InputError
from coresift.estimators.networks import ResNet18
from coresift.estimators.neural_classifier import NeuralLinearClassifier
from coresift.testing import check_posterior

NAMES = np.array(["blue", "green", "red"])


def blobs(size, seed):
    """Three clusters in the plane, named by colours."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(size) % 3)
    centres = np.array([[0.0, 3.0], [3.0, -2.0], [-3.0, -2.0]])
    return (centres[labels] + rng.normal(size=(size, 2))).astype(np.float32), NAMES[labels]


def images(size, seed, side=8):
    """Two patterns under noise."""
    rng = np.random.default_rng(seed)
    labels = np.arange(size) % 2
    patterns = np.random.default_rng(0).normal(size=(2, 3, side, side))
    return (5 + 3 * (patterns[labels] + rng.normal(size=(size, 3, side, side)))).astype(np.float32), labels


def quick(**options):
    return NeuralLinearClassifier(**{"epochs": 40, "random_state": 0, "progress": False} | options)


def tiny_resnet(channels):
    return ResNet18(channels, features=8, width=4)


@pytest.fixture(scope="module")
def fitted():
    return quick().fit(*blobs(60, 0))


def test_learns(fitted):
    x, y = blobs(300, 1)
    assert fitted.classes_.tolist() == NAMES.tolist()
    assert fitted.score(x, y) > 0.95
    probs = fitted.predict_proba(x)
    assert probs.shape == (300, 3)
    np.testing.assert_allclose(probs.sum(1), 1)
    assert (fitted.predict(x) == NAMES[probs.argmax(1)]).all()


def test_knows_what_it_does_not_know(fitted):
    here, away = fitted.predict_proba([[0.0, 3.0], [0.0, -0.5]]).max(1)
    assert here > 0.9 and away < here - 0.1


@pytest.mark.parametrize("covariance", ["full", 3])
def test_other_covariances(covariance):
    model = quick(covariance=covariance).fit(*blobs(60, 0))
    assert len(model.posterior_.head.factor) == (3 * 31 if covariance == "full" else 3)
    assert model.score(*blobs(300, 1)) > 0.95
    check_posterior(model.posterior_, torch.as_tensor(blobs(10, 2)[0]))


def test_many_at_once():
    sets = [blobs(size, size) for size in (24, 45, 60)]
    models = quick().fit_many(sets, seeds=[3, 4, 5])
    for model, (x, y), seed in zip(models, sets, (3, 4, 5), strict=True):
        assert model.score(*blobs(300, 1)) > 0.9
        alone = quick(random_state=seed).fit(x, y)
        # Alike but for rounding in float32, which training amplifies; in float64 they are the same.
        np.testing.assert_allclose(alone.predict_proba(x), model.predict_proba(x), atol=0.01)


def test_many_at_once_share_their_classes():
    x, y = blobs(30, 0)
    few = quick(epochs=2).fit_many([(x, y), (x[y != "green"], y[y != "green"])], seeds=[0, 1])
    assert [model.classes_.tolist() for model in few] == [NAMES.tolist()] * 2
    assert few[1].predict_proba(x).shape == (30, 3)


def test_posterior(fitted):
    check_posterior(fitted.posterior_, torch.as_tensor(blobs(20, 2)[0]))


@pytest.mark.parametrize("strategy", ["acs-fw", "acs-fisher", "bald", "badge", "k-center"])
def test_select(fitted, strategy):
    pool = blobs(50, 3)[0]
    batch = coresift.select(
        pool, posterior=fitted.posterior_, budget=5, strategy=coresift.find_strategy(strategy, num_samples=32)
    )
    assert len(set(batch.index.tolist())) == 5


@pytest.mark.parametrize(
    "labels", [NAMES, np.array([1, 5, 7]), np.array([-1.0, 0.0, 1.0]), NAMES.astype(object)]
)
def test_save_and_load(labels, tmp_path):
    x, y = blobs(20, 0)
    model = quick(epochs=2, covariance=2, num_predictive=7).fit(x, labels[np.searchsorted(NAMES, y)])
    model.save(tmp_path)
    again = NeuralLinearClassifier.load(tmp_path)
    assert (again.predict_proba(x) == model.predict_proba(x)).all()
    assert (again.predict(x) == model.predict(x)).all()
    assert again.classes_.dtype == model.classes_.dtype
    assert again.get_params() == model.get_params()


def test_pipeline_and_cross_validation():
    pipeline = make_pipeline(StandardScaler(), quick())
    assert cross_val_score(pipeline, *blobs(60, 0), cv=3).mean() > 0.9


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Linear(2, 8), nn.Tanh()),
        lambda inputs: nn.Sequential(nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.ReLU()),
    ],
)
def test_own_network(network):
    # 33 rows in mini-batches of 16 leave one alone, which batch norm cannot normalise.
    models = quick(network=network, epochs=100).fit_many([blobs(33, 0), blobs(40, 1)], seeds=[0, 1])
    assert all(model.score(*blobs(300, 1)) > 0.9 for model in models)


def test_images(tmp_path):
    x, y = images(40, 1)
    options = {"network": tiny_resnet, "epochs": 15, "batch_size": 16, "precision": "bfloat16"}
    model = quick(**options).fit(x, y)
    assert model.score(*images(40, 2)) > 0.9
    scale = model.posterior_.network[0]
    np.testing.assert_allclose(scale.mean.flatten(), x.mean((0, 2, 3)), rtol=1e-4)
    assert scale.std.shape == (3, 1, 1)
    check_posterior(model.posterior_, torch.as_tensor(x[:6]), tolerance=1e-5)
    model.save(tmp_path)
    with pytest.raises(InputError, match="pass network="):
        NeuralLinearClassifier.load(tmp_path)
    again = NeuralLinearClassifier.load(tmp_path, network=tiny_resnet)
    assert (again.predict_proba(x) == model.predict_proba(x)).all()


def test_many_image_models_of_different_sizes():
    sets = [images(20, 1), images(24, 2)]
    models = quick(network=tiny_resnet(3), epochs=15, batch_size=16).fit_many(sets, seeds=[0, 1])
    assert all(model.score(*images(40, 3)) > 0.8 for model in models)


def test_errors():
    x, y = blobs(12, 0)
    with pytest.raises(InputError, match="covariance is 'round', expected 'diagonal', 'full'"):
        quick(covariance="round").fit(x, y)
    with pytest.raises(InputError, match=r"one row into shape \(1, 1, 2\).*nn\.Flatten"):
        quick(network=nn.Unflatten(1, (1, 2))).fit(x, y)
    with pytest.raises(ValueError, match="continuous"):
        quick().fit(x, np.linspace(0, 1, 12))


def test_features_that_have_died_are_spoken_of():
    x, y = blobs(60, 3)
    network = nn.Sequential(nn.Linear(2, 30), nn.ReLU())
    with pytest.warns(
        UserWarning, match=r"only 0 of the network's 30 features .* smaller learning_rate"
    ) as seen:
        quick(network=network, learning_rate=30.0, epochs=20).fit(x, y)
    assert seen[0].filename == __file__
    quick(network=network, epochs=5).fit(np.repeat(x[:1], 6, 0), y[:6])  # the rows are all the same


def test_least_steps_in_company():
    """Sets that need more passes for as many steps are not trained beside others."""
    sets = [blobs(size, size) for size in (20, 200, 24)]
    model = quick(epochs=2, least_steps=60)
    for one, (x, y), seed in zip(model.fit_many(sets, [5, 6, 7]), sets, (5, 6, 7), strict=True):
        alone = quick(epochs=2, least_steps=60, random_state=seed).fit(x, y)
        np.testing.assert_allclose(one.predict_proba(x), alone.predict_proba(x), atol=1e-5)
