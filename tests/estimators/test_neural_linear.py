"""Neural linear regression: predictions, calibration, several outputs and members, saving, scikit-learn."""

import copy
import math
import re

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from torch import nn

from coresift import ArrayPool, InputError, select
from coresift.estimators import NeuralLinearRegressor
from coresift.posteriors.linear import BayesianLinearRegression, NormalInverseGammaPosterior
from coresift.posteriors.network import NetworkPosterior
from coresift.selectors import FrankWolfe
from coresift.spaces import OuterSpace, fisher_space, likelihood_space
from coresift.strategies import STRATEGIES
from coresift.testing import check_posterior


def problem(size, seed=0, noise=0.3, outputs=None):
    """A smooth function of three inputs in odd units."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=(size, 3)) * [1, 10, 0.1] + [0, 50, 1]
    y = 100 + 20 * (np.sin(2 * x[:, 0]) + (x[:, 1] - 50) / 10 + noise * rng.normal(size=size))
    if outputs:
        y = np.stack([y, *(-k * y + rng.normal(size=size) for k in range(1, outputs))], 1)
    return x, y


@pytest.fixture(scope="module")
def fitted():
    model = NeuralLinearRegressor(epochs=200, regularisation=0, random_state=0, progress=False)
    return model.fit(*problem(200))


def test_learns_in_the_units_of_the_data(fitted):
    x, y = problem(500, seed=1)
    error = float(np.sqrt(np.mean((fitted.predict(x) - y) ** 2)))
    assert error < 1.6 * 20 * 0.3
    assert fitted.score(x, y) > 0.8


def test_intervals_are_calibrated():
    """90% intervals of held-out targets cover 85 to 95 of a hundred, on average over five problems."""
    sets = [problem(150, seed=seed) for seed in range(5)]
    models = NeuralLinearRegressor(epochs=60, progress=False).fit_many(sets, range(5))
    inside = []
    for seed, model in enumerate(models):
        x, y = problem(1000, seed=100 + seed)
        predictive = model.posterior_.predictive(torch.tensor(x))
        quantile = torch.distributions.StudentT(predictive.df[0]).sample((100_000,)).abs().quantile(0.9)
        half = (quantile * predictive.scale).numpy()
        inside.append(np.mean(np.abs(y - predictive.mean.numpy()) <= half))
    assert 0.85 <= np.mean(inside) <= 0.95


def test_regularisation_is_chosen_by_the_noise():
    """Left-out labels choose it, for each set: noise calls for more, and prediction is the better for it."""
    sets = [problem(100, seed=seed, noise=noise) for seed in range(3) for noise in (0.0, 1.5)]
    options = {"epochs": 50, "progress": False}
    chosen = NeuralLinearRegressor(**options)._calibrated(
        [(torch.tensor(x), torch.tensor(y)[:, None]) for x, y in sets], range(6)
    )
    levels = np.array([own.level for own in chosen])
    assert (levels[0::2] == 0).all() and (levels[1::2] > 0).all()

    def errors(**more):
        models = NeuralLinearRegressor(**options, **more).fit_many(sets[1::2], range(3))
        x, y = problem(1000, seed=100, noise=0.0)
        return [float(np.sqrt(np.mean((model.predict(x) - y) ** 2))) for model in models]

    assert np.mean(errors()) < 0.9 * np.mean(errors(regularisation=0))


def test_without_folds_the_network_is_the_paper_s():
    x, y = problem(40)
    options = {"epochs": 5, "calibration_folds": 0, "random_state": 0, "progress": False}
    models = [NeuralLinearRegressor(**options, regularisation=level).fit(x, y) for level in (None, 0, 1, 2)]
    default, *each = (model.predict(x) for model in models)
    np.testing.assert_array_equal(default, each[0])
    assert np.abs(each[0] - each[1]).max() > 1e-3 and np.abs(each[1] - each[2]).max() > 1e-3
    with pytest.raises(InputError, match="regularisation is 3"):
        NeuralLinearRegressor(regularisation=3).fit(x, y)


def test_many_at_once_equal_one_by_one():
    sets = [problem(size, seed=size) for size in (40, 25, 60)]
    model = NeuralLinearRegressor(epochs=3, progress=False)
    together = model.fit_many(sets, seeds=[5, 6, 7])
    x, _ = problem(20, seed=9)
    for one, (features, targets), seed in zip(together, sets, [5, 6, 7], strict=True):
        alone = NeuralLinearRegressor(epochs=3, random_state=seed, progress=False).fit(features, targets)
        # In float32, where rounding grows from step to step; test_training has the same to 1e-8 in float64.
        for left, right in zip(
            one.predict(x, return_std=True), alone.predict(x, return_std=True), strict=True
        ):
            np.testing.assert_allclose(left, right, rtol=1e-2)
        assert one.random_state == seed
    with pytest.raises(InputError, match="3 labelled sets and 1 seeds"):
        model.fit_many(sets, seeds=[0])


def test_the_last_layer_is_the_cores(fitted):
    """The posterior equals closed-form regression on the network's features, in the units of y."""
    x, y = (torch.tensor(a) for a in problem(200))
    features = fitted.posterior_.features(x).double()
    mean, deviation = y.mean(), y.std(correction=0)
    direct = BayesianLinearRegression().fit(features, (y - mean) / deviation)
    head = fitted.posterior_.head
    assert isinstance(head, NormalInverseGammaPosterior)
    torch.testing.assert_close(head.covariance, direct.covariance, rtol=1e-6, atol=1e-8)
    # The noise is that of the closed form, times what the left-out labels say.
    assert head.rate / (direct.rate * float(deviation) ** 2) > 1
    predicted = direct.predictive(features[:5]).mean * deviation + mean
    torch.testing.assert_close(fitted.posterior_.predictive(x[:5]).mean, predicted, rtol=1e-4, atol=1e-3)


def test_posterior(fitted):
    x, _ = problem(30, seed=4)
    check_posterior(fitted.posterior_, torch.tensor(x), num_samples=2000, tolerance=1e-3)
    for strategy in sorted(name for name, row in STRATEGIES.items() if not row.needs_classes):
        assert len(select(x, posterior=fitted.posterior_, budget=5, strategy=strategy, labelled=x[:4])) == 5


def test_its_spaces_are_closed_forms(fitted, monkeypatch):
    seen, choose = [], FrankWolfe._choose
    monkeypatch.setattr(FrankWolfe, "_choose", lambda *a: seen.append(a[1]) or choose(*a))
    select(problem(30)[0], posterior=fitted.posterior_, budget=5, strategy="acs-fw")
    assert isinstance(seen[0], OuterSpace)


def test_several_outputs():
    x, y = problem(150, outputs=3)
    model = NeuralLinearRegressor(epochs=50, random_state=0, progress=False).fit(x, y)
    mean, deviation = model.predict(x, return_std=True)
    assert mean.shape == deviation.shape == y.shape
    assert model.score(x, y) > 0.8
    check_posterior(model.posterior_, torch.tensor(x[:20]), num_samples=2000, tolerance=1e-3)
    for strategy in (
        "acs-fw",
        "acs-lcmd",
        "bald",
        "maxent",
        "variance",
        "k-center",
        "greedy-logdet",
        "acs-fisher",
    ):
        assert len(select(x, posterior=model.posterior_, budget=5, strategy=strategy)) == 5


@pytest.fixture(scope="module", params=[None, 2])
def mixed(request):
    x, y = problem(60, outputs=request.param)
    return NeuralLinearRegressor(num_members=3, epochs=20, random_state=0, progress=False).fit(x, y)


def members(posterior):
    return [NetworkPosterior(*pair) for pair in zip(posterior.network, posterior.head.heads, strict=True)]


def test_members_are_mixed_in_equal_parts(mixed):
    x, _ = problem(30, seed=4)
    each = [one.predictive(torch.tensor(x)) for one in members(mixed.posterior_)]
    assert all(not torch.allclose(one.mean, each[0].mean, atol=0.1) for one in each[1:])
    expected = sum(one.mean for one in each) / 3
    second = sum(one.variance + (one.mean - expected) ** 2 for one in each) / 3
    mean, deviation = mixed.predict(x, return_std=True)
    np.testing.assert_allclose(mean, expected)
    np.testing.assert_allclose(deviation, second.sqrt())


def test_the_first_of_several_members_is_the_only_one_of_one():
    sets = [problem(size, seed=size) for size in (40, 25)]
    x = torch.tensor(problem(20, seed=9)[0])
    model = NeuralLinearRegressor(num_members=2, epochs=3, progress=False)
    for together, (features, targets), seed in zip(model.fit_many(sets, [5, 6]), sets, [5, 6], strict=True):
        alone = NeuralLinearRegressor(epochs=3, random_state=seed, progress=False).fit(features, targets)
        pair = NeuralLinearRegressor(num_members=2, epochs=3, random_state=seed, progress=False)
        pair.fit(features, targets)
        for left, right in (
            (members(together.posterior_)[0], alone.posterior_),
            (together.posterior_, pair.posterior_),
        ):
            for name in ("mean", "stddev"):  # rounding as in test_many_at_once_equal_one_by_one
                found, wanted = (getattr(one.predictive(x), name) for one in (left, right))
                torch.testing.assert_close(found, wanted, rtol=1e-2, atol=0)


def test_select_with_several_members(mixed):
    x, _ = problem(30, seed=4)
    posterior = mixed.posterior_
    check_posterior(posterior, torch.tensor(x), num_samples=2000, tolerance=1e-3)
    few = posterior.sample(2, torch.Generator())  # none from the third
    assert posterior.conditional(torch.tensor(x), few).batch_shape == (2, 30)
    runs = []
    hooks = [one.register_forward_hook(lambda *_: runs.append(1)) for one in posterior.network]
    one_output = {"bait", "epig"}
    able = {name for name, row in STRATEGIES.items() if not row.needs_classes} - {"acs-fisher"} - one_output
    for strategy in sorted(able):
        runs.clear()
        assert len(select(x, posterior=posterior, budget=5, strategy=strategy)) == 5
        assert len(runs) == 3  # each network once
    for hook in hooks:
        hook.remove()
    for strategy, message in (("badge", "works for regression"), ("acs-fisher", "no last layer")):
        with pytest.raises(InputError, match=message):
            select(x, posterior=posterior, budget=5, strategy=strategy)
    with pytest.raises(InputError, match="no last layer to take gradients of; fit with num_members=1"):
        fisher_space(posterior, ArrayPool(torch.tensor(x)), generator=torch.Generator())


def test_the_likelihood_space_of_several_members():
    """Against the formula, written out: the expectation is over the mixture, theta belongs to one member."""
    model = NeuralLinearRegressor(num_members=3, epochs=20, random_state=0, progress=False).fit(*problem(60))
    rows = torch.tensor(problem(12, seed=4)[0])
    mean, deviation = (torch.tensor(value) for value in model.predict(rows, return_std=True))
    space = likelihood_space(
        model.posterior_, ArrayPool(rows), 10, generator=torch.Generator().manual_seed(3)
    )
    theta = model.posterior_.sample(10, torch.Generator().manual_seed(3))
    assert [len(noise) for _, noise in theta] == [4, 3, 3]
    expected = []
    for network, (weights, noise) in zip(model.posterior_.network, theta, strict=True):
        for weight, variance in zip(weights, noise, strict=True):
            gap = mean - network(rows).detach().double() @ weight
            cross = -0.5 * torch.log(2 * math.pi * variance) - (deviation**2 + gap**2) / (2 * variance)
            expected.append(cross + 0.5 * torch.log(2 * math.pi * math.e * deviation**2))
    torch.testing.assert_close(space.vectors.double(), torch.stack(expected) / 10**0.5, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_members", [1, 2])
@pytest.mark.parametrize("outputs", [None, 2])
def test_saving(tmp_path, outputs, num_members):
    x, y = problem(60, outputs=outputs)
    model = NeuralLinearRegressor(num_members=num_members, epochs=5, random_state=0, progress=False).fit(x, y)
    model.save(tmp_path / "model")
    described, weights = sorted(file.name for file in (tmp_path / "model").iterdir())
    assert described == "model.json" and re.fullmatch(r"weights-[0-9a-f]{16}.safetensors", weights)
    again = NeuralLinearRegressor.load(tmp_path / "model")
    kept, restored = model._fitted_state()[0], again._fitted_state()[0]
    assert kept.keys() == restored.keys()
    assert all(torch.equal(kept[name].cpu(), restored[name].cpu()) for name in kept)
    for left, right in zip(again.predict(x, return_std=True), model.predict(x, return_std=True), strict=True):
        # Where numbers lie in memory decides how some processors round their sums.
        np.testing.assert_allclose(left, right, rtol=1e-6)
    assert again.get_params() == model.get_params()


def test_a_network_of_ones_own(tmp_path):
    x, y = problem(80)
    module = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 8))
    before = [value.clone() for value in module.parameters()]
    model = NeuralLinearRegressor(module, epochs=50, random_state=0, progress=False).fit(x, y)
    assert model.score(x, y) > 0.5
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    made = NeuralLinearRegressor(lambda inputs: nn.Linear(inputs, 4), epochs=20, progress=False).fit(x, y)
    assert made.posterior_.head.mean.shape == (5,)
    model.save(tmp_path)
    with pytest.raises(InputError, match="pass network="):
        NeuralLinearRegressor.load(tmp_path)
    np.testing.assert_array_equal(NeuralLinearRegressor.load(tmp_path, module).predict(x), model.predict(x))


def test_a_frozen_extractor_is_kept():
    x, y = problem(60)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
    module[0].requires_grad_(False)
    model = NeuralLinearRegressor(module, epochs=5, random_state=0, progress=False).fit(x, y)
    trained = model.posterior_.network[1]
    assert torch.equal(trained[0].weight, module[0].weight)
    assert not torch.equal(trained[2].weight, module[2].weight)


def test_a_function_may_return_the_same_module(tmp_path):
    x, y = problem(60)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh())
    before = copy.deepcopy(module.state_dict())
    model = NeuralLinearRegressor(lambda inputs: module, epochs=5, progress=False).fit(x, y)
    model.save(tmp_path)
    NeuralLinearRegressor.load(tmp_path, lambda inputs: module)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert module.training


def test_noise_inside_a_network_is_seeded_and_leaves_the_global_state_alone():
    x, y = problem(60)
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.3))
    state = torch.get_rng_state()
    first, second = (
        NeuralLinearRegressor(module, epochs=5, random_state=0, progress=False).fit(x, y).predict(x)
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("offset", [0, 1.7e9])
def test_large_offsets(offset):
    """Dates in seconds: the offset is taken out in float64."""
    x, y = problem(200)
    model = NeuralLinearRegressor(epochs=50, random_state=0, progress=False).fit(x + offset, y + offset)
    test_x, test_y = problem(200, seed=1)
    assert model.score(test_x + offset, test_y + offset) > 0.7
    assert len(select(x + offset, posterior=model.posterior_, budget=5)) == 5


def test_a_constant_target():
    x, _ = problem(44)
    for size in range(40, 45):
        model = NeuralLinearRegressor(epochs=2, random_state=0, progress=False).fit(
            x[:size], np.full(size, 1.7)
        )
        mean, deviation = model.predict(x, return_std=True)
        np.testing.assert_allclose(mean, 1.7, atol=0.05)
        assert (deviation > 1e-3).all()


def test_outputs_are_calibrated_one_by_one():
    """A noisy output beside a clean one: each gets its own noise."""
    x, y = problem(200, noise=0.0)
    noisy = y + 20 * np.random.default_rng(0).normal(size=200)
    model = NeuralLinearRegressor(epochs=50, random_state=0, progress=False).fit(x, np.stack([y, noisy], 1))
    _, deviation = model.predict(x, return_std=True)
    assert np.median(deviation[:, 1]) > 2 * np.median(deviation[:, 0])


def test_select_sees_the_network_s_features(fitted):
    """Through the network equals the last layer on its features, labelled points and order included."""
    x, labelled = (torch.tensor(problem(60, seed=seed)[0]) for seed in (5, 6))
    posterior = fitted.posterior_
    for strategy in ("acs-fw", "acs-lcmd", "k-center", "maxent"):
        direct = select(
            posterior.features(x),
            posterior=posterior.head,
            labelled=posterior.features(labelled),
            budget=6,
            strategy=strategy,
        )
        for chunk in (7, 60):
            pool = ArrayPool(x, chunk)
            batch = select(pool, posterior=posterior, labelled=labelled, budget=6, strategy=strategy)
            assert batch.index.tolist() == direct.index.tolist()


def test_a_failed_refit_is_no_fit():
    x, y = problem(40)
    model = NeuralLinearRegressor(epochs=2, progress=False).fit(x, y)
    with pytest.raises(InputError, match="epochs is -1"):
        model.set_params(epochs=-1).fit(x, y)
    with pytest.raises(NotFittedError):
        model.predict(x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 2.5}, "epochs is 2.5"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"num_members": 0}, "num_members is 0, expected an integer of at least 1"),
        ({"num_members": 2.5}, "num_members is 2.5"),
        ({"learning_rate": -1}, "learning_rate is -1"),
        ({"noise_rate": -1}, "noise_rate is -1"),
        ({"calibration_folds": -1}, "calibration_folds is -1"),
        ({"device": "gpu"}, "device is 'gpu', but torch finds no such device here; try 'cpu'"),
        ({"network": nn.Unflatten(1, (3, 1))}, "the network turns one row into shape"),
        ({"network": nn.MultiheadAttention(3, 1)}, "pass a function that makes the network"),
        ({"prior_variance": 1e12}, "training failed"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(InputError, match=message):
        NeuralLinearRegressor(**{"epochs": 2, "progress": False, **options}).fit(*problem(30))


def test_sets_that_do_not_go_together(tmp_path):
    (x, y), model = problem(30), NeuralLinearRegressor(epochs=2, progress=False)
    with pytest.raises(InputError, match="several shapes"):
        model.fit_many([(x, y), (x[:, :2], y)], [0, 1])
    with pytest.raises(InputError, match="0 labelled sets"):
        model.fit_many([], [])
    with pytest.raises(InputError, match="no saved model"):
        NeuralLinearRegressor.load(tmp_path)


def test_saving_numpy_options_and_column_names(tmp_path):
    (model,) = NeuralLinearRegressor(epochs=2, progress=False).fit_many([problem(30)], np.arange(1))
    model.feature_names_in_ = np.array(["a", "b", "c"], dtype=object)
    model.save(tmp_path)
    assert NeuralLinearRegressor.load(tmp_path, device="cpu").feature_names_in_.tolist() == ["a", "b", "c"]


def test_in_a_pipeline_and_cross_validated():
    x, y = problem(90)
    pipeline = make_pipeline(
        PolynomialFeatures(2), NeuralLinearRegressor(epochs=30, random_state=0, progress=False)
    )
    assert cross_val_score(pipeline, x, y, cv=3).mean() > 0.5
