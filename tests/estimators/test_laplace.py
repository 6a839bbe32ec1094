"""Last-layer Laplace: curvature against autograd, regression against the closed form, and clear errors."""

import numpy as np
import pytest
import torch
from torch import nn

from coresift import InputError, select
from coresift.estimators.laplace import LaplaceClassifier, LaplaceRegressor, laplace_posterior
from coresift.posteriors import BayesianLinearRegression, LinearPosterior
from coresift.posteriors.softmax import SoftmaxPosterior
from coresift.testing import check_posterior

RNG = np.random.default_rng(0)
TABLE = RNG.uniform(-1, 1, (260, 3))
TARGETS = 10 + 5 * (np.sin(3 * TABLE[:, 0]) * TABLE[:, 1] + TABLE[:, 2] + 0.2 * RNG.normal(size=260))
NAMES = np.array(["low", "middle", "high"])[np.digitize(TARGETS, [8, 12])]
QUICK = {"epochs": 10, "random_state": 0, "progress": False}

N, CLASSES, WIDTH = 40, 3, 5


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=generator(seed), dtype=dtype)


def network(outputs=CLASSES, bias=True, dtype=torch.float64):
    torch.manual_seed(0)
    layers = {
        "hidden": nn.Linear(4, WIDTH),
        "tanh": nn.Tanh(),
        "dropout": nn.Dropout(0.5),
        "last": nn.Linear(WIDTH, outputs, bias=bias),
    }
    stacked = nn.Sequential()
    for name, layer in layers.items():
        stacked.add_module(name, layer)
    return stacked.to(dtype)


X, POOL = rows(N, 4), rows(200, 4, seed=1)
LABELS = torch.randint(CLASSES, (N,), generator=generator())


def covariance(head):
    flat = head.factor.flatten(1)
    return flat.mT @ flat


@pytest.mark.parametrize("bias", [True, False])
def test_precision_is_the_hessian_of_the_negative_log_posterior(bias):
    model = network(bias=bias)
    posterior = laplace_posterior(model, "last", X, LABELS, prior_precision=0.7)
    head, features = posterior.head, posterior.features(X)
    assert isinstance(head, SoftmaxPosterior)
    assert head.mean.shape == (CLASSES, WIDTH + bias)
    assert torch.equal(head.mean[:, :WIDTH], model.last.weight)

    def negative_log_posterior(weights):
        logits = features @ weights.view(head.mean.shape).mT
        loss = nn.functional.cross_entropy(logits, LABELS, reduction="sum")
        return loss + 0.7 / 2 * weights.square().sum()

    hessian = torch.autograd.functional.hessian(negative_log_posterior, head.mean.flatten())
    torch.testing.assert_close(covariance(head), torch.linalg.inv(hessian), rtol=1e-9, atol=1e-12)
    draws = head.sample(20000, generator()).flatten(1)
    torch.testing.assert_close(draws.mT.cov(), covariance(head), rtol=0, atol=0.05)


def test_default_prior_has_the_scale_of_the_outputs():
    """Features in other units, with weights that undo them, make the same posterior."""
    small, large = network(bias=False), network(bias=False)
    with torch.no_grad():
        large.last.weight /= 100
    large.tanh = nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, WIDTH, bias=False).double())
    large.tanh[1].weight.data = 100 * torch.eye(WIDTH, dtype=torch.float64)
    first, second = (laplace_posterior(model, "last", X).predictive(POOL).probs for model in (small, large))
    torch.testing.assert_close(first, second, rtol=0, atol=0.08)  # the draws turn with the factor
    features = laplace_posterior(small, "last", X).features(X)
    given = float(features.square().sum(1).mean()) / 10
    expected = laplace_posterior(small, "last", X, prior_precision=given).head.factor
    torch.testing.assert_close(laplace_posterior(small, "last", X).head.factor, expected)
    targets = laplace_posterior(network(1, bias=False), "last", X, X[:, 0], task="regression")
    outputs = targets.predictive(X).mean.square().mean()
    precision = torch.linalg.inv(targets.head.covariance)
    data = features.mT @ features / targets.head.noise_variance
    prior = features.square().sum(1).mean() / (10 * outputs)
    torch.testing.assert_close(precision, data + prior * torch.eye(WIDTH))


def test_labels_leave_a_softmax_as_it_is():
    with_labels, without = (
        laplace_posterior(network(), "last", X, LABELS),
        laplace_posterior(network(), "last", X),
    )
    assert torch.equal(with_labels.head.factor, without.head.factor)


@pytest.mark.parametrize("bias", [True, False])
def test_regression_agrees_with_the_closed_form(bias):
    model, y = network(1, bias), rows(N, seed=2)
    features = model.eval()[:3](X).detach()
    if bias:
        features = torch.cat([features, torch.ones(N, 1)], 1)
    exact = BayesianLinearRegression(0.3, prior_covariance=1 / 0.7).fit(features, y)
    with torch.no_grad():
        model.last.weight[0] = exact.mean[:WIDTH]
        if bias:
            model.last.bias[0] = exact.mean[WIDTH]
    posterior = laplace_posterior(
        model, "last", X, y, task="regression", prior_precision=0.7, noise_variance=0.3
    )
    assert isinstance(posterior.head, LinearPosterior)
    torch.testing.assert_close(posterior.head.mean, exact.mean)
    torch.testing.assert_close(posterior.head.covariance, exact.covariance)
    expected = exact.predictive(features)
    torch.testing.assert_close(posterior.predictive(X).mean, expected.mean)
    torch.testing.assert_close(posterior.predictive(X).variance, expected.variance)


def test_noise_is_the_mean_squared_residual():
    model, y = network(1).eval(), rows(N, 1, seed=2)
    posterior = laplace_posterior(model, "last", X, y, task="regression")
    with torch.no_grad():
        residual = y - model(X)
    assert posterior.head.noise_variance == pytest.approx(float(residual.square().mean()))


def test_the_mean_is_the_network():
    model = network().eval()
    posterior = laplace_posterior(model, "last", X)
    outputs = posterior.outputs(posterior.features(X), posterior.head.mean[None])[0]
    torch.testing.assert_close(outputs, model(X).detach())
    # With ever more labelled points the posterior closes in on it.
    many = laplace_posterior(model, "last", rows(200_000, 4, seed=3)).predictive(X)
    torch.testing.assert_close(many.probs, model(X).softmax(1).detach(), rtol=0, atol=0.005)


def test_contract():
    check_posterior(laplace_posterior(network(), "last", X), POOL[:15])
    check_posterior(laplace_posterior(network(dtype=torch.float32), "last", X.float()), POOL[:15])
    check_posterior(laplace_posterior(network(1), "last", X, X[:, 0], task="regression"), POOL[:15])


def test_blocks_do_not_matter(monkeypatch):
    whole = laplace_posterior(network(), "last", X, LABELS)
    monkeypatch.setattr("coresift.limits.LAPLACE_ROWS", 7)
    parts = laplace_posterior(network(), "last", X.numpy(), LABELS.numpy())
    torch.testing.assert_close(parts.head.factor, whole.head.factor)


def test_labelled_rows_from_a_file(tmp_path):
    np.save(tmp_path / "labelled.npy", X.numpy())
    read = laplace_posterior(network(), "last", tmp_path / "labelled.npy")
    torch.testing.assert_close(read.head.factor, laplace_posterior(network(), "last", X).head.factor)


def test_the_network_is_left_as_it_was():
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    posterior = laplace_posterior(model, "last", X)
    first = posterior.predictive(POOL).probs
    assert all(layer.training for layer in model.modules())
    assert not any(layer._forward_pre_hooks for layer in [*model.modules(), *posterior.network.modules()])
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    nn.init.zeros_(model.hidden.weight)  # training goes on, the posterior stays
    assert torch.equal(posterior.predictive(POOL).probs, first)


@pytest.mark.parametrize("ending", [nn.Softmax(1), nn.LogSoftmax(1)])
def test_a_softmax_may_follow(ending):
    plain, wrapped = network(), nn.Sequential(network(), ending)
    expected = laplace_posterior(plain, "last", X)
    posterior = laplace_posterior(wrapped, "0.last", X)
    torch.testing.assert_close(posterior.predictive(POOL).probs, expected.predictive(POOL).probs)


@pytest.mark.parametrize(
    "strategy", ["acs-fw", "acs-fisher", "bald", "acs-lcmd", "k-center", "badge", "margin"]
)
def test_select_classes(strategy):
    posterior = laplace_posterior(network(), "last", X, LABELS)
    batch = select(POOL, posterior=posterior, budget=10, strategy=strategy, labelled=X)
    assert len(set(batch.index.tolist())) == 10


@pytest.mark.parametrize("strategy", ["acs-fw", "bald", "acs-lcmd", "k-center", "greedy-logdet"])
def test_select_targets(strategy):
    posterior = laplace_posterior(network(1), "last", X, X[:, 0], task="regression")
    batch = select(POOL, posterior=posterior, budget=10, strategy=strategy, labelled=X)
    assert len(set(batch.index.tolist())) == 10


def test_calibration():
    """A trained network's 90% intervals for the labels cover about 90%."""
    x = rows(2200, 2, dtype=torch.float32)
    truth = torch.sin(2 * x[:, 0]) + x[:, 1]
    y = truth + 0.3 * rows(2200, seed=1, dtype=torch.float32)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 1))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=1e-3)
    for _ in range(400):
        optimiser.zero_grad()
        (model(x[:200]).squeeze(1) - y[:200]).square().mean().backward()
        optimiser.step()
    posterior = laplace_posterior(model, "2", x[:200], y[:200], task="regression")
    predictive = posterior.predictive(x[200:])
    covered = (y[200:] - predictive.mean).abs() < 1.645 * predictive.stddev
    assert 0.85 < float(covered.double().mean()) < 0.95
    far = posterior.predictive(torch.full((1, 2), 5.0)).stddev
    assert float(far) > float(predictive.stddev.median())


def test_errors():
    with pytest.raises(
        InputError, match="no layer 'fc' in the network; its linear layers are 'hidden', 'last'"
    ):
        laplace_posterior(network(), "fc", X)
    with pytest.raises(InputError, match=r"a Tanh, no nn\.Linear, 'tanh'"):
        laplace_posterior(network(), "tanh", X)
    with pytest.raises(InputError, match="its linear layers are none"):
        laplace_posterior(nn.Sequential(nn.Conv1d(1, 1, 1)), "last", X)
    with pytest.raises(InputError, match="are not those of layer 'hidden'"):
        laplace_posterior(network(), "hidden", X)
    with pytest.raises(InputError, match=r"are not those of layer '0\.last'"):
        laplace_posterior(nn.Sequential(network(), nn.Tanh()), "0.last", X)
    with pytest.raises(InputError, match="y holds 3, but the network's classes are 0 to 2"):
        laplace_posterior(network(), "last", X, LABELS + 1)
    with pytest.raises(InputError, match="y has shape"):
        laplace_posterior(network(), "last", X, LABELS[:-1])
    with pytest.raises(
        InputError, match="y holds no numbers; give classes as the network counts its outputs"
    ):
        laplace_posterior(network(), "last", X, NAMES[:N])
    with pytest.raises(InputError, match="the last layer has 3"):
        laplace_posterior(network(), "last", X, X[:, 0], task="regression")
    with pytest.raises(InputError, match="needs an output for each class"):
        laplace_posterior(network(1), "last", X)
    with pytest.raises(InputError, match="regression needs y"):
        laplace_posterior(network(1), "last", X, task="regression")
    with pytest.raises(InputError, match="prior_precision is 0"):
        laplace_posterior(network(), "last", X, prior_precision=0)
    with pytest.raises(InputError, match="task is 'classes'"):
        laplace_posterior(network(), "last", X, task="classes")
    with pytest.raises(InputError, match="GiB"):
        laplace_posterior(nn.Sequential(nn.Linear(4, 1000), nn.Linear(1000, 1000)).double(), "1", X)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(4, 4).double()

        def forward(self, x):
            return self.last(self.last(x))

    with pytest.raises(InputError, match="called 2 times"):
        laplace_posterior(Twice(), "last", X)


def own_layers(inputs):
    return nn.Sequential(nn.Linear(inputs, 12), nn.Tanh())


def estimators(**options):
    options = QUICK | options
    return [(LaplaceRegressor(**options), TARGETS), (LaplaceClassifier(**options), NAMES)]


@pytest.mark.parametrize("kind", [0, 1])
def test_estimators_keep_the_contract_and_select(kind):
    model, y = estimators()[kind]
    posterior = model.fit(TABLE[:100], y[:100]).posterior_
    check_posterior(posterior, torch.tensor(TABLE[:15]), tolerance=1e-5)
    for strategy in ("acs-fw", "bald", "acs-lcmd"):
        batch = select(TABLE, posterior=posterior, budget=8, strategy=strategy, labelled=TABLE[:100])
        assert len(set(batch.index.tolist())) == 8


@pytest.mark.parametrize("kind", [0, 1])
def test_moved_to_a_device(kind):
    model, y = estimators()[kind]
    expected = model.fit(TABLE, y).predict(TABLE)
    model.posterior_ = model.posterior_.to("cpu")
    assert np.array_equal(model.predict(TABLE), expected)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("options", [{}, {"network": own_layers, "epochs": 300}])
def test_estimators_learn(kind, options):
    model, y = estimators(**{"epochs": 100} | options)[kind]
    assert model.fit(TABLE[:200], y[:200]).score(TABLE[200:], y[200:]) > 0.7


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("options", [{}, {"network": own_layers}])
def test_estimators_saved_and_loaded(kind, options, tmp_path):
    model, y = estimators(**options)[kind]
    model.fit(TABLE, y).save(tmp_path)
    again = type(model).load(tmp_path, network=model.network)
    assert again.get_params() == model.get_params()
    kept, restored = model._fitted_state()[0], again._fitted_state()[0]
    assert kept.keys() == restored.keys()
    assert all(torch.equal(kept[name].cpu(), restored[name].cpu()) for name in kept)
    # Where numbers lie in memory decides how some processors round their sums.
    if kind:
        np.testing.assert_allclose(again.predict_proba(TABLE), model.predict_proba(TABLE), rtol=1e-6)
        np.testing.assert_array_equal(again.predict(TABLE), model.predict(TABLE))
    else:
        for loaded, fitted in zip(again.predict(TABLE, True), model.predict(TABLE, True), strict=True):
            np.testing.assert_allclose(loaded, fitted, rtol=1e-6)


@pytest.mark.parametrize("kind", [0, 1])
def test_several_sets_are_those_fitted_alone(kind):
    model, y = estimators()[kind]
    sets = [(TABLE[:90], y[:90]), (TABLE[90:150], y[90:150])]
    for one, seed, (x, target) in zip(model.fit_many(sets, [3, 4]), (3, 4), sets, strict=True):
        alone = estimators(random_state=seed)[kind][0].fit(x, target)
        first, second = (each.posterior_.predictive(torch.tensor(TABLE)) for each in (one, alone))
        if kind:
            torch.testing.assert_close(first.probs, second.probs, rtol=1e-2, atol=1e-2)
        else:
            torch.testing.assert_close(first.mean, second.mean, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(first.stddev, second.stddev, rtol=1e-2, atol=1e-3)


def test_predictions_are_in_the_units_of_y():
    options = QUICK | {"prior_precision": 0.5}
    first = LaplaceRegressor(**options).fit(TABLE, TARGETS).predict(TABLE, return_std=True)
    second = LaplaceRegressor(**options).fit(TABLE, 1e4 + 100 * TARGETS).predict(TABLE, return_std=True)
    np.testing.assert_allclose(second[0], 1e4 + 100 * first[0], rtol=1e-4)
    np.testing.assert_allclose(second[1], 100 * first[1], rtol=1e-3)


def test_the_prior_holds_the_weights():
    loose, tight = (
        LaplaceRegressor(**QUICK, prior_precision=precision).fit(TABLE[:40], TARGETS[:40]).posterior_.head
        for precision in (1e-2, 1e6)
    )
    torch.testing.assert_close(loose.mean, tight.mean)
    assert tight.covariance.trace() < 1e-3 * loose.covariance.trace()


def test_estimator_errors():
    with pytest.raises(InputError, match="is for one output"):
        LaplaceRegressor(**QUICK).fit(TABLE, TABLE)
    with pytest.raises(InputError, match="y holds one class"):
        LaplaceClassifier(**QUICK).fit(TABLE, np.zeros(260, int))
    with pytest.raises(InputError, match="prior_precision is -1"):
        LaplaceClassifier(**QUICK, prior_precision=-1).fit(TABLE, NAMES)
