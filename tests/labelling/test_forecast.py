"""What a batch is worth: honest intervals, and honest sentences."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from coresift.errors import InputError
from coresift.estimators import EnsembleRegressor
from coresift.labelling import curves
from coresift.labelling.curves import CrossValidator, Losses, learning_curves
from coresift.labelling.forecast import Forecast, _has_stopped, _verdict, _Words, forecast, information
from coresift.posteriors import BayesianLinearRegression

# Gains of rounds: the median and the 90% quantile.
FLAT, FALLING, UNCERTAIN = (0.02, 0.08), (0.06, 0.08), (0.02, 0.15)


def said(result: Forecast, words: str) -> bool:
    return any(words in sentence for sentence in result.sentences)


def project(num_random: int, num_chosen: int) -> tuple[Any, Any, Any]:
    """Rounds and marks of chance of first labels, and of three rounds that were chosen; and a generator."""
    rounds = np.r_[np.zeros(num_random), np.sort(np.arange(num_chosen) % 3) + 1]
    return rounds, rounds == 0, np.random.default_rng(0)


@pytest.fixture(scope="module", autouse=True)
def quick_curves() -> Iterator[None]:
    """Train the models for a fifth of the epochs: those of a forecast are many."""
    quick_model = curves.quick_model
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "quick_model", lambda *data: quick_model(*data).set_params(epochs=12))
        yield


@pytest.fixture(scope="module")
def helpful() -> Forecast:
    """Two labels in three of the pool say nothing new; those that were chosen are all from the third."""
    rounds, by_chance, generator = project(120, 180)
    x = generator.normal(size=(300, 3))
    x[:120][np.arange(120) % 3 > 0] = 0.0
    y = x[:, 0] + 2 * np.sin(2 * x[:, 1])
    return forecast(x, y, rounds, by_chance, "regression", batch_size=50)


def test_forecasts_where_most_of_the_pool_is_redundant(helpful: Forecast) -> None:
    assert said(helpful, "96 labels drawn from all so far give") and not said(helpful, "done better")
    assert said(helpful, "at 350 labels") and said(helpful, " (rough interval")
    assert [point.labels for point in helpful.fitted][-2:] == [300, 350]
    assert [point.labels for point in helpful.random] == [point.labels for point in helpful.fitted]
    assert helpful.fitted[-1].error < helpful.fitted[0].error
    assert all(p.low <= p.error <= p.high for p in (*helpful.curve, *helpful.fitted, *helpful.random))


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_curve_of_noise_is_flat(task: Any) -> None:
    rounds, by_chance, generator = project(160, 160)
    x, y = generator.normal(size=(320, 1)), generator.normal(size=320)
    y = y > 0 if task == "classification" else y
    earlier = [(200, *FLAT), (240, *FLAT)]
    result = forecast(
        x, y, rounds, by_chance, task, batch_size=20, earlier=earlier, flat=(0.05, 0.3)
    )  # 320 labels do not reach the real one
    assert said(result, "Random would have done as well")
    assert result.gain is not None and result.gain[0] < 0.05
    assert said(result, "Consider stopping") and said(result, "3 rounds agree")
    assert result.curve[-1].low < (0.5 if task == "classification" else 1.0) < result.curve[-1].high


def test_choosing_is_said_to_help_only_beyond_its_noise() -> None:
    rng = np.random.default_rng(0)
    rows = np.zeros(200, dtype=np.int64)
    tester = CrossValidator(rows, rows, rows[None], "classification", 0)

    def verdict(ours: Any, theirs: Any) -> str:
        losses = [(rng.random((4, 200)) < np.reshape(rate, (-1, 1))) * 1.0 for rate in (ours, theirs)]
        return _verdict(tester, *(Losses(100, each) for each in losses), _Words("classification"))

    assert verdict(0.1, 0.4).startswith("Choosing helps: 100 labels")
    assert verdict(0.4, 0.1).startswith("Random would have done better")
    assert verdict(0.3, 0.3).startswith("Random would have done as well")
    # The sets that were drawn differ more than choosing and random do.
    assert verdict([0.0, 0.3, 0.2, 0.5], [0.6, 0.3, 0.1, 0.4]).startswith("Random would have done as well")


def test_no_stopping_while_the_error_falls(helpful: Forecast) -> None:
    assert not said(helpful, "Consider stopping")


def test_without_random_labels_there_is_no_comparison() -> None:
    rounds, by_chance, generator = project(20, 40)
    x = generator.normal(size=(60, 2))
    labels = np.where(x[:, 0] > 0, "up", "down")
    result = forecast(
        x, labels, rounds, by_chance, "classification", batch_size=10, information=(0.25, 0.2), seed=3
    )
    assert result.random == () and result.information == (0.25, 0.2)
    assert said(result, "Only 20 labels were drawn at random")
    assert said(result, "carries 25%") and said(result, "a random batch of the same size carries 20%")
    again = forecast(
        x, labels, rounds, by_chance, "classification", batch_size=10, information=(0.25, 0.2), seed=3
    )
    assert again == result


@pytest.mark.parametrize(("num", "words"), [(0, "No label was drawn"), (1, "Only 1 label was drawn")])
def test_counts_of_random_labels_read_well(num: int, words: str) -> None:
    rounds, _, generator = project(10, 20)
    x = generator.normal(size=(30, 1))
    result = forecast(x, x[:, 0], rounds, np.arange(30) < num, "regression", batch_size=5)
    assert said(result, f"{words} at random") and said(result, "the RMSE may be lower")


def test_the_forecast_is_no_seed_noise() -> None:
    """Repeated with other seeds on the same labels, plus and minus its standard deviation is less than a
    quarter of its interval.
    """
    rounds, by_chance, generator = project(13, 20)
    x = generator.normal(size=(33, 4))
    labels = np.where(x[:, 0] + 0.5 * generator.normal(size=33) > 0, "up", "down")
    results = [
        forecast(x, labels, rounds, by_chance, "classification", batch_size=10, seed=seed)
        for seed in range(4)
    ]
    forecasts = [result.fitted[-1] for result in results]
    width = np.mean([one.high - one.low for one in forecasts])
    assert 2 * np.std([one.error for one in forecasts], ddof=1) < width / 4


@pytest.mark.parametrize(
    ("rounds", "stop"),
    [
        ([(200, *FLAT)], False),
        ([(120, *FLAT), (150, *FLAT), (200, *FLAT)], True),
        ([(90, *FLAT), (120, *FLAT), (150, *FLAT)], False),  # three, but not of 100 labels each
        ([(120, *FLAT), (150, *FALLING), (200, *FLAT)], False),
        ([(120, *FLAT), (150, *FLAT), (200, *UNCERTAIN)], False),
        ([(200, *FLAT), (200, *FLAT), (200, *FLAT), (205, *FLAT)], False),  # the same labels over again
        ([(120, *FLAT), (125, *FALLING), (150, *FLAT), (155, *FLAT), (200, *FLAT)], False),
        ([(120, *FALLING), (130, *FLAT), (150, *FLAT), (155, *FLAT), (200, *FLAT)], True),
    ],
)
def test_stopping_is_advised_where_three_rounds_agree(rounds: Any, stop: bool) -> None:
    assert _has_stopped(rounds) is stop


@pytest.mark.parametrize("num", [40, 60])  # 40 are too few to test on alone, but no other labels exist
def test_labels_that_were_all_drawn_at_random_are_compared_with_nothing(num: int) -> None:
    x = np.random.default_rng(0).normal(size=(num, 2))
    result = forecast(x, x[:, 0], np.zeros(num), np.ones(num, bool), "regression", batch_size=10)
    assert said(result, "nothing to compare") and result.random == result.fitted
    assert not said(result, "chosen ones are harder")


@pytest.mark.parametrize(
    ("labels", "words"),
    [(np.arange(12.0), "too few"), (np.ones(40), "are the same"), (np.arange(0.0), "too few")],
)
def test_where_nothing_can_be_said_that_is_said(labels: Any, words: str) -> None:
    x, flags = np.zeros((len(labels), 2)), np.ones(len(labels), bool)
    result = forecast(x, labels, np.zeros(len(labels)), flags, "regression", batch_size=5)
    assert said(result, words) and result.curve == ()


def test_a_class_that_comes_late_or_once_breaks_nothing() -> None:
    rounds, by_chance, generator = project(50, 30)
    labels = np.array(["common"] * 55 + ["late"] * 24 + ["once"])
    result = forecast(
        generator.normal(size=(80, 2)), labels, rounds, by_chance, "classification", batch_size=5
    )
    assert result.random[0].error < 0.1  # all random labels are of one class


def test_a_solved_problem_has_nothing_to_gain() -> None:
    x = np.repeat([[-1.0], [1.0]], 40, 0) + 0.01 * np.random.default_rng(0).normal(size=(80, 1))
    order = np.random.default_rng(1).permutation(80)
    x, labels = x[order], np.where(x[order, 0] > 0, "up", "down")
    result = forecast(x, labels, np.zeros(80), np.ones(80, bool), "classification", batch_size=5)
    assert result.gain is not None and np.isfinite(result.gain).all()


def test_lengths_must_agree() -> None:
    with pytest.raises(InputError, match="3 rows, 2 labels"):
        forecast(np.zeros((3, 1)), np.zeros(2), np.zeros(3), np.zeros(3, bool), "regression", batch_size=1)


def covered(power: float, floor: float, shared: float, training: float) -> float:
    """How often the interval holds the truth beyond the last count, over tests of a known curve."""
    generator = np.random.default_rng(0)
    counts, target = np.array([40, 80, 160, 320]), 400
    rows = np.zeros(150, dtype=np.int64)
    tester, hits = CrossValidator(rows, rows, rows[None], "classification", 0), []
    for _ in range(100):
        truth = floor + 2.0 * counts**-power
        level = truth * np.exp(training * generator.normal(size=len(counts)))
        # Some rows are hard at every count: their draws are shared.
        common, own = generator.random(150), generator.random((len(counts), 150))
        draws = np.where(generator.random(150) < shared, common, own)
        tested = [Losses(int(n), (u < p)[None] * 1.0) for n, u, p in zip(counts, draws, level, strict=True)]
        drawn = learning_curves(*tester.replicates(tested, generator), [target], generator)[:, 0]
        low, high = np.quantile(drawn, (0.05, 0.95))
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
    drawn = learning_curves(counts, errors, [1600], np.random.default_rng(1))
    assert np.median(drawn) == pytest.approx(0.1 + 2.0 * 1600**-0.5, rel=0.03)


def test_information_grows_with_the_batch_and_needs_samples() -> None:
    x = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    posterior = BayesianLinearRegression(0.1).fit(x[:20], x[:20, 0])
    few, many, all_of_them = (information(posterior, x, x[:num], seed=1) for num in (1, 10, 300))
    assert few is not None and many is not None and all_of_them is not None
    for batch in range(2):  # the one that is given, and random ones
        assert 0 <= few[batch] < many[batch] <= all_of_them[batch] <= 1 and all_of_them[batch] > 0.99
    assert information(posterior, x, x[:10], seed=1) == many
    # Copies of one row say less than as many rows at random.
    copies = information(posterior, x, np.repeat(x[:1], 10, 0), seed=1)
    assert copies is not None and copies[0] < copies[1] == pytest.approx(many[1], abs=1e-6)
    ensemble = EnsembleRegressor(num_members=3, epochs=2, random_state=0).fit(x[:20], x[:20, 0])
    assert information(ensemble.posterior_, x, x[:10]) is None
