"""Statistics over data sets, on simulated results whose answers are known."""

import numpy as np
import pytest

from coresift.bench import across

METHODS = ("random", "margin", "badge", "lcmd", "bald", "acs-fw")


def simulated(
    rng: np.random.Generator, num_tables: int = 24, seeds: int = 10, effects: dict[str, float] | None = None
) -> dict[str, dict[str, np.ndarray]]:
    """Areas under curves: tables differ in level and noise, and seeds share their split."""
    effects = effects or {}
    tables = {}
    for table in range(num_tables):
        level, noise = rng.uniform(0.1, 1.0), rng.uniform(0.01, 0.1)
        split = rng.normal(0, 0.05, seeds)
        tables[f"table {table}"] = {
            name: level * (1 + effects.get(name, 0.0) + split + noise * rng.normal(size=seeds))
            for name in METHODS
        }
    return tables


def relative(tables: dict[str, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Log ratios of the mean areas to random's: (tables,) for each method."""
    return {
        name: np.array([np.log(each[name].mean() / each["random"].mean()) for each in tables.values()])
        for name in METHODS
    }


def test_family_wise_error_is_five_percent() -> None:
    """Where no method differs, at most one run in twenty says that any does."""
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(200):
        gaps = relative(simulated(rng))
        false += min(across.differs({name: gaps[name] for name in METHODS[1:]}).values()) <= 0.05
    # Three standard deviations above 5% of 200. Holm is conservative where gaps share a reference.
    assert false <= 10 + 3 * np.sqrt(200 * 0.05 * 0.95)


def test_a_difference_on_all_tables_is_found() -> None:
    gaps = relative(simulated(np.random.default_rng(1), effects={"lcmd": -0.05, "bald": 0.05}))
    found = across.differs({name: gaps[name] for name in METHODS[1:]})
    assert found["lcmd"] < 0.05 and found["bald"] < 0.05 and found["margin"] > 0.05


def test_equal_methods_are_called_equal_in_95_percent_of_runs() -> None:
    rng = np.random.default_rng(2)
    ties = np.array(
        [
            across.verdict(*(each + noise * rng.normal(size=10) for _ in range(2))) == "tie"
            for each, noise in zip(rng.normal(1, 0.2, (2000, 10)), rng.uniform(0.01, 0.3, 2000), strict=True)
        ]
    )
    assert abs(ties.mean() - 0.95) < 3 * np.sqrt(0.95 * 0.05 / 2000)


def test_corrected_verdicts_of_equal_methods() -> None:
    """On a table, any of five equal methods is called different in at most 5% of runs."""
    tables = simulated(np.random.default_rng(3), num_tables=500)
    found = across.verdicts(tables, "random")
    wrong = [any(found[name][table] != "tie" for name in METHODS[1:]) for table in tables]
    assert np.mean(wrong) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 500)


@pytest.mark.parametrize("geometric", [False, True])
def test_coverage_of_the_interval(geometric: bool) -> None:
    """The interval for 24 tables holds the true mean in about 95% of runs, with skewed values too."""
    rng = np.random.default_rng(4)
    inside = 0
    for run in range(300):
        logs = 0.3 * (rng.gamma(4.0, 0.5, 24) - 2.0) - 0.4
        values, truth = (np.exp(logs), np.exp(-0.4)) if geometric else (logs, -0.4)
        found = across.mean_over_tables(values, geometric=geometric, seed=run)
        inside += found.low <= truth <= found.high
    assert 0.90 <= inside / 300 <= 0.985  # 24 tables are few: bootstrap intervals are slightly too narrow


def test_harm_of_a_method_that_equals_random() -> None:
    tables = simulated(np.random.default_rng(5), num_tables=2000)
    assert abs(across.harm(tables, "lcmd") - 0.025) < 3 * np.sqrt(0.025 * 0.975 / 2000)
    worse = simulated(np.random.default_rng(6), num_tables=50, effects={"bald": 0.5})
    assert across.harm(worse, "bald") == 1.0


def test_best_is_corrected_for_being_picked() -> None:
    """Among equal methods, the worst one seen is called beaten in about 5% of runs, not more."""
    rng = np.random.default_rng(7)
    beaten = 0
    for run in range(200):
        gaps = relative(simulated(rng))
        beaten += (
            across.may_be_best({name: gaps[name] for name in METHODS[1:]}, draws=399, seed=run)["lcmd"]
            <= 0.05
        )
    assert beaten / 200 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)
    gaps = relative(simulated(rng, effects={"lcmd": -0.1}))
    found = across.may_be_best({name: gaps[name] for name in METHODS[1:]})
    assert found["lcmd"] > 0.5 and max(p for name, p in found.items() if name != "lcmd") < 0.05


def test_rounded_gaps_are_ties() -> None:
    """Accuracies that are equal but for rounding count as equal."""
    own = np.array([0.1 + 0.2, 0.7, 0.5])
    other = np.array([0.3, 0.7, 0.5])
    assert (own != other).any()
    assert across.verdict(own, other) == "tie"
    assert across.ranks({"a": {"x": own, "y": other}})[1].tolist() == [[1.5, 1.5]]


def test_ranks_leave_out_methods_that_some_tables_lack() -> None:
    tables = {
        "a": {"x": np.array([1.0]), "y": np.array([2.0]), "z": np.array([0.0])},
        "b": {"x": np.array([1.0]), "y": np.array([0.5])},
    }
    names, found = across.ranks(tables)
    assert names == ["x", "y"]
    assert found.tolist() == [[1, 2], [2, 1]]


@pytest.mark.parametrize(("final", "below"), [(0.1, True), (0.3, False)])
def test_labels_ratio_is_symmetric(final: float, below: bool) -> None:
    labels = np.arange(20, 221, 20)
    own, random = (1.0 * (labels / 20) ** np.log(end) / np.log(11) for end in (final, 0.2))
    ratio = across.labels_ratio(labels, own, random)
    assert (ratio < 1) == below
    assert ratio * across.labels_ratio(labels, random, own) == pytest.approx(1)
