"""Automatic choice: the right model for a table, comparable likelihoods, the former choice, odd sets."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from coresift import InputError, select
from coresift.estimators import AutoClassifier, AutoRegressor, GaussianProcessRegressor, auto
from coresift.estimators.auto import Score, _choice, _folds
from coresift.testing import check_posterior

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(150, 4))
NOISE = 0.1 * RANDOM.normal(size=150)
QUICK = ["gaussian process", "linear regression", "extra trees"]
WORDS = np.where(X.sum(1) > 0, "yes", "no")


def regressor(**options):
    return AutoRegressor(**{"candidates": QUICK, "random_state": 0, "progress": False} | options)


def classifier(**options):
    quick = ["logistic regression", "extra trees"]
    return AutoClassifier(**{"candidates": quick, "random_state": 0, "progress": False} | options)


STEPS = np.sign(X[:, 0]) + 2 * (X[:, 1] > 0.3) * (X[:, 2] > 0)


@pytest.mark.parametrize(
    ("name", "y"),
    [
        ("linear regression", X @ [1.0, -2.0, 0.5, 0.0] + 10 * NOISE),
        ("extra trees", STEPS),
        ("gaussian process", np.sin(2 * X[:, 0]) * X[:, 1] + NOISE),
    ],
)
def test_finds_the_right_regressor(name, y):
    model = regressor().fit(X, y)
    assert model.chosen_ == name, model.summary()
    assert model.summary().splitlines()[0].startswith(name)
    assert model.scores_[name] == max(model.scores_.values())
    check_posterior(model.posterior_, torch.as_tensor(X[:20]))
    mean, std = model.predict(X, return_std=True)
    assert np.abs((y - mean) / std).max() < 6


def test_finds_the_right_classifier():
    linear = classifier().fit(X[:80], WORDS[:80])
    assert linear.chosen_ == "logistic regression" and linear.score(X, WORDS) > 0.9
    ring = np.hypot(X[:, 0], X[:, 1]) > 1
    trees = classifier().fit(X[:80], ring[:80])
    assert trees.chosen_ == "extra trees" and trees.classes_.tolist() == [False, True]
    for model in (linear, trees):
        check_posterior(model.posterior_, torch.as_tensor(X[:20]))
        assert np.allclose(model.predict_proba(X).sum(1), 1)


@pytest.mark.parametrize("make", [AutoRegressor, AutoClassifier])
def test_every_candidate_has_a_posterior_to_choose_with(make):
    y = STEPS if make is AutoRegressor else WORDS
    for name in make._table:
        model = make(candidates=[name], random_state=0, progress=False).fit(X[:60], y[:60])
        assert model.chosen_ == name and model.scores_ == {}
        check_posterior(model.posterior_, torch.as_tensor(X[:20]), tolerance=1e-5)
        assert len(select(X[60:], posterior=model, budget=5)) == 5


def test_scores_are_in_the_units_of_labels():
    y = X[:, 0] + NOISE
    x, y = X[:60], y[:60]
    model, scaled = regressor().fit(x, y), regressor().fit(x, 1e6 * y - 1e7)
    assert scaled.chosen_ == model.chosen_
    for name, score in model.scores_.items():
        assert np.isclose(scaled.scores_[name].mean, score.mean - np.log(1e6), atol=0.01)


def test_score_is_the_mean_over_left_out_labels():
    y = X[:, 0] + NOISE
    model = regressor(candidates=QUICK[:2]).fit(X, y)
    generator = np.random.default_rng(model._generator().initial_seed())
    values = []
    for fold in _folds(np.zeros(150, int), generator):
        fit = GaussianProcessRegressor(num_restarts=0, num_exact=1000, max_iterations=30, progress=False)
        predictive = fit.fit(X[fold.kept], y[fold.kept]).posterior_.predictive(torch.tensor(X[fold.left_out]))
        values.append(predictive.log_prob(torch.tensor(y[fold.left_out])).numpy())
    values = np.concatenate(values)
    assert len(values) == 150 and np.isclose(model.scores_["gaussian process"].mean, values.mean())


def test_choice_is_kept_where_differences_are_noise():
    values, wave = RANDOM.normal(size=100), np.tile([1.0, -1.0], 50)
    near = {"old": values, "new": values + wave + 0.09}  # the standard error is 0.1
    better = {"old": values, "new": values + wave + 0.11}
    assert _choice(near, None) == _choice(better, "old") == _choice(near, "gone") == "new"
    assert _choice(near, "old") == "old"


def test_keep_looks_at_the_model_of_the_fit_before(monkeypatch):
    formers = []
    monkeypatch.setattr(auto, "_choice", lambda scores, former: formers.append(former) or QUICK[1])
    for keep in (True, False):
        model = regressor(candidates=QUICK[:2], keep=keep)
        for _ in range(2):
            model.fit(X[:30], STEPS[:30])
    assert formers == [None, QUICK[1], None, None]


def test_folds_keep_every_class():
    strata = np.array([0] * 30 + [1] * 2 + [2])
    folds = _folds(strata, np.random.default_rng(0))
    assert len(folds) == 5
    assert all(set(strata[fold.kept]) == {0, 1, 2} for fold in folds)
    left_out = np.concatenate([fold.left_out for fold in folds])
    assert sorted(left_out) == list(range(32))  # the single row is never left out
    assert all(set(fold.kept) | set(fold.left_out) == set(range(33)) for fold in folds)
    (few,) = _folds(np.zeros(20_000, int), np.random.default_rng(0))
    assert len(few.left_out) == 1000 and len(few.kept) == 4000


ODD = {
    "two rows": (X[:2], NOISE[:2]),
    "a constant column": (np.column_stack([X, np.ones(150)])[:40], NOISE[:40]),
    "only constant columns": (np.ones((40, 2)), NOISE[:40]),
    "constant targets": (X[:40], np.full(40, 7.0)),
    "more columns than rows": (RANDOM.normal(size=(12, 40)), NOISE[:12]),
    "large numbers": (1e6 * X[:40] + 1e9, 1e9 * NOISE[:40]),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_sets_of_numbers(name):
    x, y = ODD[name]
    mean, std = regressor().fit(x, y).predict(x, return_std=True)
    assert np.isfinite(mean).all() and (std > 0).all()


ODD_CLASSES = {
    "two rows": (X[:2], ["a", "b"]),
    "one class": (X[:40], ["a"] * 40),
    "a class of one row": (X[:20], ["a"] * 10 + ["b"] * 9 + ["c"]),
    "a class for each row": (X[:15], [f"class {number}" for number in range(15)]),
    "a rare class": (X[:20], ["a"] * 18 + ["b"] * 2),
}


@pytest.mark.parametrize("name", ODD_CLASSES)
def test_odd_sets_of_classes(name):
    x, y = ODD_CLASSES[name]
    model = classifier().fit(x, y)
    assert set(model.predict(x)) <= set(y) and np.isfinite(model.predict_proba(x)).all()
    assert all(np.isfinite(score).all() for score in model.scores_.values())


def test_fit_many_is_fit_one_by_one():
    sets = [(X[:30], STEPS[:30]), (X[40:80], X[40:80, 0])]
    together = regressor(candidates=QUICK[:2]).fit_many(sets, [3, 4])
    for model, own, seed in zip(together, sets, [3, 4], strict=True):
        alone = clone(model).set_params(random_state=seed).fit(*own)
        assert alone.chosen_ == model.chosen_ and alone.scores_ == model.scores_
        assert np.array_equal(alone.predict(X), model.predict(X))
    trees = classifier(candidates=["extra trees"])
    first, second = trees.fit_many([(X[:40], WORDS[:40]), (X[:40], ["a", "b"] * 20)], [0, 0])
    assert first.classes_.tolist() == ["no", "yes"] and second.classes_.tolist() == ["a", "b"]


@pytest.mark.parametrize("name", ["gaussian process", "linear regression", "networks"])
def test_saved_and_loaded(tmp_path, name):
    model = regressor(candidates=[name]).fit(X[:30], STEPS[:30])
    model.scores_ = {name: Score(-1.0, 0.1)}
    model.save(tmp_path)
    loaded = AutoRegressor.load(tmp_path)
    assert loaded.chosen_ == name and loaded.scores_ == model.scores_
    assert np.allclose(loaded.predict(X), model.predict(X))


def test_classes_are_saved(tmp_path):
    model = classifier(candidates=["networks"]).fit(X[:30], WORDS[:30])
    model.save(tmp_path)
    loaded = AutoClassifier.load(tmp_path)
    assert np.allclose(loaded.predict_proba(X), model.predict_proba(X))
    assert loaded.predict(X).tolist() == model.predict(X).tolist()


def test_trees_are_not_saved(tmp_path):
    model = regressor(candidates=["extra trees"]).fit(X[:30], STEPS[:30])
    with pytest.raises(InputError, match="without pickle"):
        model.save(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": "extra trees"}, "expected a list"),
        ({"candidates": []}, "expected a list"),
        ({"candidates": ["extra tree"]}, "extra trees"),
        ({"candidates": ["gradient boosting"]}, "none of the candidates"),
        ({"keep": 1}, "keep"),
    ],
)
def test_errors_are_one_line(options, message):
    with pytest.raises(InputError, match=message) as caught:
        regressor(**options).fit(X[:20], STEPS[:20])
    assert "\n" not in str(caught.value)
