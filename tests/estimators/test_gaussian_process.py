"""Gaussian process regression: what it learns, odd labelled sets, inducing points, saved models."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from coresift import InputError, select
from coresift.bench.replay import Method, Simulation, run
from coresift.estimators import GaussianProcessRegressor
from coresift.testing import check_posterior

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(120, 3))
TRUTH = np.sin(2 * X[:, 0]) + X[:, 1]
Y = TRUTH + 0.1 * RANDOM.normal(size=120)


def fitted(x=X[:80], y=Y[:80], **options):
    return GaussianProcessRegressor(random_state=0, progress=False, **options).fit(x, y)


def error(model, x=X[80:], y=TRUTH[80:]):
    return float(np.sqrt(np.square(model.predict(x) - y).mean()))


def test_learns_function_and_noise():
    model = fitted()
    assert error(model) < 0.07
    assert 0.07 < model.posterior_.noise_variance**0.5 < 0.13
    lengths = model.posterior_.kernel.lengths
    assert lengths[2] > 10 * lengths[0]  # the last column says nothing
    mean, std = model.predict(X[80:], return_std=True)
    assert np.abs((Y[80:] - mean) / std).max() < 4
    check_posterior(model.posterior_, torch.tensor(X[80:]))


def test_units_do_not_matter():
    model = fitted()
    scaled = fitted(X[:80] * [1e-6, 1e6, 1] + [0, 1e9, 0], 1e8 * Y[:80] - 1e9)
    mean, std = model.predict(X[80:], return_std=True)
    other_mean, other_std = scaled.predict(X[80:] * [1e-6, 1e6, 1] + [0, 1e9, 0], return_std=True)
    assert np.allclose(other_mean, 1e8 * mean - 1e9, rtol=1e-5) and np.allclose(
        other_std, 1e8 * std, rtol=1e-3
    )
    shift = 80 * np.log(1e8)
    assert np.isclose(scaled.log_marginal_likelihood_ + shift, model.log_marginal_likelihood_, atol=1e-3)


ODD = {
    "a constant column": (np.column_stack([X, np.full(120, 3.0)]), Y),
    "only constant columns": (np.ones((120, 2)), Y),
    "duplicated rows": (np.repeat(X[:6], 20, 0), Y),
    "duplicated rows and labels": (np.repeat(X[:6], 20, 0), np.repeat(Y[:6], 20)),
    "no noise": (X, TRUTH),
    "a line without noise": (X, 2 * X[:, 0]),
    "noise only": (X, RANDOM.normal(size=120)),
    "constant targets": (X, np.full(120, 7.0)),
    "one column": (X[:, :1], Y),
    "two rows": (X[:2], Y[:2]),
    "two equal rows": (X[[0, 0]], Y[:2]),
    "more columns than rows": (RANDOM.normal(size=(10, 40)), Y[:10]),
    "huge numbers": (X * 1e150, Y * 1e150),
    "tiny numbers": (X * 1e-150, Y * 1e-150),
    "an outlier": (np.vstack([X, [[1e6, 0, 0]]]), np.append(Y, 1e6)),
    "integers": (RANDOM.integers(0, 3, (120, 3)), RANDOM.integers(0, 2, 120)),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_sets_fit_without_warnings(name):
    x, y = ODD[name]
    model = fitted(x, y)
    mean, std = model.predict(x, return_std=True)
    assert np.isfinite(mean).all() and (std > 0).all() and np.isfinite(std).all()
    values = model.posterior_.conditional(torch.tensor(x), model.posterior_.sample(3, torch.Generator()))
    assert bool(values.mean.isfinite().all())


def test_without_noise_labels_are_reproduced():
    model = fitted(X, TRUTH)
    assert error(model, X, TRUTH) < 1e-3 and model.posterior_.noise_variance < 1e-5


def test_many_sets_as_alone():
    sets = [(X[:n], Y[:n]) for n in (20, 20, 35)]
    model = GaussianProcessRegressor(progress=False)
    for many, (x, y), seed in zip(model.fit_many(sets, [3, 4, 5]), sets, (3, 4, 5), strict=True):
        alone = clone(model).set_params(random_state=seed).fit(x, y)
        assert np.array_equal(many.predict(X), alone.predict(X))
        assert many.log_marginal_likelihood_ == alone.log_marginal_likelihood_


def test_the_best_start_of_a_part_is_continued_on_all(monkeypatch):
    whole = fitted(X, Y)
    monkeypatch.setattr("coresift.limits.START_ROWS", 40)
    found = fitted(X, Y)
    assert np.isclose(found.log_marginal_likelihood_, whole.log_marginal_likelihood_, atol=1e-2)


def test_inducing_points_come_close_to_the_exact_posterior():
    x = np.random.default_rng(1).normal(size=(600, 2))
    y = np.sin(2 * x[:, 0]) + x[:, 1] + 0.1 * np.random.default_rng(2).normal(size=600)
    exact, inducing = fitted(x, y), fitted(x, y, num_exact=599, num_inducing=100)
    assert len(inducing.posterior_.points) == 100
    means, stds = zip(*(model.predict(x, return_std=True) for model in (exact, inducing)), strict=True)
    assert np.abs(means[0] - means[1]).max() < 0.03
    assert np.abs(stds[0] / stds[1] - 1).max() < 0.03


def test_inducing_points_are_distinct():
    model = fitted(np.repeat(X[:10], 12, 0), Y, num_exact=50, num_inducing=40)
    assert len(model.posterior_.points) <= 10
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize("options", [{}, {"num_exact": 50, "num_inducing": 20}])
def test_saved_and_loaded(tmp_path, options):
    model = fitted(**options)
    model.save(tmp_path)
    loaded = GaussianProcessRegressor.load(tmp_path)
    for value, expected in zip(
        loaded.predict(X, return_std=True), model.predict(X, return_std=True), strict=True
    ):
        assert np.array_equal(value, expected)
    assert loaded.get_params() == model.get_params()
    assert loaded.log_marginal_likelihood_ == model.log_marginal_likelihood_
    draws = [each.posterior_.sample(4, torch.Generator().manual_seed(0)) for each in (model, loaded)]
    assert torch.equal(draws[0].update, draws[1].update)


def test_in_pipelines_and_selections():
    model = make_pipeline(StandardScaler(), GaussianProcessRegressor(progress=False))
    assert cross_val_score(model, X, Y, cv=3).min() > 0.9
    batch = select(X[80:], posterior=fitted(), labelled=X[:80], budget=5)
    assert len(set(batch.index.tolist())) == 5


def test_in_a_simulation():
    simulation = Simulation(X, Y, GaussianProcessRegressor(progress=False), first=20, batch=10, budget=20)
    states = [simulation.begin(Method("bald"), seed) for seed in range(2)]
    rounds = list(run(simulation, states))
    assert [turn.labels for turn in rounds[-1]] == [40, 40]
    assert rounds[-1][0].rmse < rounds[0][0].rmse


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_restarts": -1}, "num_restarts is -1, expected an integer of at least 0"),
        ({"num_exact": 2.5}, r"num_exact is 2\.5, expected an integer"),
        ({"num_inducing": 0}, "num_inducing is 0, expected an integer of at least 1"),
        ({"max_iterations": "x"}, "max_iterations is 'x', expected an integer"),
        ({"priors": "weak"}, "priors is 'weak', expected true or false"),
        ({"progress": 2}, "progress is 2, expected true or false"),
        ({"device": "nowhere"}, "torch finds no such device here"),
    ],
)
def test_options(options, message):
    with pytest.raises(InputError, match=message):
        GaussianProcessRegressor(**options).fit(X, Y)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint64])
def test_integers_of_numpy(kind):
    options = {"num_restarts": 2, "num_exact": 100, "num_inducing": 50, "max_iterations": 100}
    expected = fitted(X, Y, **options).predict(X)
    found = fitted(X, Y, **{name: kind(value) for name, value in options.items()})
    assert np.array_equal(found.predict(X), expected)


def test_rows_that_are_no_table():
    with pytest.raises(InputError, match=r"^Found array with dim 3.*$"):
        fitted(X[:, :, None], Y)
    with pytest.raises(InputError, match=r"^y should be a 1d array.*$"):
        fitted(X, np.stack([Y, Y], 1))
    with pytest.raises(InputError, match="contains NaN"):
        fitted(np.where(X > 2, np.nan, X), Y)
