"""What a batch is worth: honest intervals, and honest sentences."""

from typing import Any

import numpy as np
import pytest

from coresift.labelling.worth import Worth, _Tested, _Tester, information, learning_curves, worth
from coresift.models import BayesianLinearRegression, EnsembleRegressor
from coresift.types import InputError


def said(result: Worth, words: str) -> bool:
    return any(words in sentence for sentence in result.sentences)


def project(num_random: int, num_chosen: int) -> tuple[Any, Any, Any]:
    """Rounds and marks of chance of first labels, and of three rounds that were chosen; and a generator."""
    rounds = np.r_[np.zeros(num_random), np.sort(np.arange(num_chosen) % 3) + 1]
    return rounds, rounds == 0, np.random.default_rng(0)


@pytest.fixture(scope="module")
def helpful() -> Worth:
    """Two labels in three of the pool say nothing new; those that were chosen are all from the third."""
    rounds, by_chance, generator = project(120, 180)
    x = generator.normal(size=(300, 3))
    x[:120][np.arange(120) % 3 > 0] = 0.0
    y = x[:, 0] + 2 * np.sin(2 * x[:, 1])
    return worth(x, y, rounds, by_chance, "regression", batch_size=50, unit="m")


def test_choosing_helps_where_most_of_the_pool_is_redundant(helpful: Worth) -> None:
    assert said(helpful, "Choosing helps")
    assert said(helpful, "at 350 labels") and said(helpful, " m (90% interval")
    assert [point.labels for point in helpful.fitted][-2:] == [300, 350]
    assert [point.labels for point in helpful.random] == [point.labels for point in helpful.fitted]
    assert helpful.fitted[-1].error < helpful.fitted[0].error
    assert all(p.low <= p.error <= p.high for p in (*helpful.curve, *helpful.fitted, *helpful.random))


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_noise_cannot_be_chosen_and_its_curve_is_flat(task: Any) -> None:
    rounds, by_chance, generator = project(160, 160)
    x, y = generator.normal(size=(320, 1)), generator.normal(size=320)
    result = worth(x, y > 0 if task == "classification" else y, rounds, by_chance, task, batch_size=20)
    assert said(result, "Random would have done as well")
    assert said(result, "Consider stopping")
    assert result.curve[-1].low < (0.5 if task == "classification" else 1.0) < result.curve[-1].high


def test_no_stopping_while_the_error_falls(helpful: Worth) -> None:
    assert not said(helpful, "Consider stopping")


def test_without_random_labels_there_is_no_comparison() -> None:
    rounds, by_chance, generator = project(20, 40)
    x = generator.normal(size=(60, 2))
    labels = np.where(x[:, 0] > 0, "up", "down")
    result = worth(x, labels, rounds, by_chance, "classification", batch_size=10, information=0.25, seed=3)
    assert result.random == () and result.information == 0.25
    assert said(result, "Only 20 labels were drawn at random") and said(result, "carries 25%")
    again = worth(x, labels, rounds, by_chance, "classification", batch_size=10, information=0.25, seed=3)
    assert again == result


def test_labels_that_were_all_drawn_at_random_are_compared_with_nothing() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2))
    result = worth(x, x[:, 0], np.zeros(60), np.ones(60, bool), "regression", batch_size=10)
    assert said(result, "nothing to compare") and result.random == result.fitted


@pytest.mark.parametrize(
    ("labels", "words"),
    [(np.arange(12.0), "too few"), (np.ones(40), "are the same"), (np.arange(0.0), "too few")],
)
def test_where_nothing_can_be_said_that_is_said(labels: Any, words: str) -> None:
    x, flags = np.zeros((len(labels), 2)), np.ones(len(labels), bool)
    result = worth(x, labels, np.zeros(len(labels)), flags, "regression", batch_size=5)
    assert said(result, words) and result.curve == ()


def test_a_class_that_comes_late_or_once_breaks_nothing() -> None:
    rounds, by_chance, generator = project(50, 30)
    labels = np.array(["common"] * 55 + ["late"] * 24 + ["once"])
    result = worth(generator.normal(size=(80, 2)), labels, rounds, by_chance, "classification", batch_size=5)
    assert result.random[0].error < 0.1  # all random labels are of one class


def test_lengths_must_agree() -> None:
    with pytest.raises(InputError, match="3 rows, 2 labels"):
        worth(np.zeros((3, 1)), np.zeros(2), np.zeros(3), np.zeros(3, bool), "regression", batch_size=1)


def covered(power: float, floor: float, shared: float, training: float) -> float:
    """How often the interval holds the truth beyond the last count, over tests of a known curve."""
    generator = np.random.default_rng(0)
    counts, target = np.array([40, 80, 160, 320]), 400
    rows = np.zeros(150, dtype=np.int64)
    tester, hits = _Tester(rows, rows, rows, "classification", 0), []
    for _ in range(100):
        truth = floor + 2.0 * counts**-power
        level = truth * np.exp(training * generator.normal(size=len(counts)))
        # Some rows are hard at every count: their draws are shared.
        common, own = generator.random(150), generator.random((len(counts), 150))
        draws = np.where(generator.random(150) < shared, common, own)
        tested = [_Tested(int(n), (u < p) * 1.0) for n, u, p in zip(counts, draws, level, strict=True)]
        curves = learning_curves(*tester.replicates(tested, generator), [target], generator)[:, 0]
        low, high = np.quantile(curves, (0.05, 0.95))
        hits.append(low <= floor + 2.0 * target**-power <= high)
    return float(np.mean(hits))


@pytest.mark.parametrize("shared", [0.0, 0.8])
@pytest.mark.parametrize(("power", "floor"), [(0.5, 0.0), (0.5, 0.1), (0.8, 0.05)])
def test_intervals_hold_the_truth_about_as_often_as_they_say(
    power: float, floor: float, shared: float
) -> None:
    # 100 draws of a rate of 0.9 have a standard deviation of 0.03; wider than need be is no lie.
    assert covered(power, floor, shared, training=0.05) >= 0.84


def test_a_fitted_curve_finds_a_curve_of_its_own_kind() -> None:
    counts = [50, 100, 200, 400, 800]
    errors = np.tile(0.1 + 2.0 * np.array(counts) ** -0.5, (200, 1))
    errors += 1e-4 * np.random.default_rng(0).normal(size=errors.shape)
    curves = learning_curves(counts, errors, [1600], np.random.default_rng(1))
    assert np.median(curves) == pytest.approx(0.1 + 2.0 * 1600**-0.5, rel=0.03)


def test_information_grows_with_the_batch_and_needs_samples() -> None:
    x = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    posterior = BayesianLinearRegression(0.1).fit(x[:20], x[:20, 0])
    few, many, all_of_them = (information(posterior, x, x[:num], seed=1) for num in (1, 10, 300))
    assert few is not None and many is not None and all_of_them is not None
    assert 0 <= few < many <= all_of_them <= 1 and all_of_them > 0.99
    assert information(posterior, x, x[:10], seed=1) == many
    ensemble = EnsembleRegressor(num_members=3, epochs=2, random_state=0).fit(x[:20], x[:20, 0])
    assert information(ensemble.posterior_, x, x[:10]) is None
