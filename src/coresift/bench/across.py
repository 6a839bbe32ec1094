"""Compare methods across data sets: gains, labels saved, ranks, wins and losses, harm.

The input is always ``areas[data][method]``, or curves of the same form: one number or one curve per seed,
with the same seeds in the same order for every method, so that methods are compared in pairs. Errors are
RMSEs or error rates: smaller is better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy import stats
from sklearn.isotonic import isotonic_regression

from coresift.bench.statistics import LEVEL, holm
from coresift.types import Floats

Verdict: TypeAlias = Literal["win", "tie", "loss"]
Scores: TypeAlias = Mapping[str, Mapping[str, Floats]]  # data -> method -> (seeds,) or (seeds, rounds)

DIGITS = 9  # gaps are rounded, since errors that are equal may differ in their last bits


def area(labels: Sequence[int] | Floats, errors: Floats) -> Floats:
    """Average the error over the labels bought: the area under each learning curve, over its width.

    Parameters
    ----------
    labels : (R,) the number of labels of each round.
    errors : (..., R) the error of each round.

    >>> float(area([20, 40, 60], np.array([1.0, 0.5, 0.5])))
    0.625
    """
    labels = np.asarray(labels, float)
    middles = (errors[..., 1:] + errors[..., :-1]) / 2
    return np.asarray(middles @ np.diff(labels) / (labels[-1] - labels[0]))


def labels_ratio(labels: Sequence[int] | Floats, errors: Floats, reference: Floats) -> float:
    """Return the labels that a method needs for an error, relative to those of a reference.

    The error is the worse of the two final errors, which both curves reach. If the method ends better, this
    is the reference's final error, and the ratio is at most 1. If it ends worse, the reference reaches the
    method's final error with fewer labels, and the ratio is above 1.

    Parameters
    ----------
    labels : (R,) the number of labels of each round.
    errors, reference : (R,) mean learning curves; they are made monotone before.

    >>> labels_ratio([20, 40, 60], np.array([1.0, 0.5, 0.25]), np.array([1.0, 0.75, 0.5]))
    0.6666666666666666
    """
    curves = [isotonic_regression(curve, increasing=False) for curve in (errors, reference)]
    target = max(curve[-1] for curve in curves)
    needed, of_reference = (_labels_at(np.asarray(labels, float), curve, target) for curve in curves)
    return needed / of_reference


def _labels_at(labels: Floats, curve: Floats, target: float) -> float:
    """Interpolate the first number of labels at which a falling curve reaches an error."""
    reached = int(np.argmax(np.round(curve - target, DIGITS) <= 0))
    if reached == 0:
        return float(labels[0])
    before, after = curve[reached - 1], curve[reached]
    share = (before - target) / (before - after)
    return float(labels[reached - 1] + share * (labels[reached] - labels[reached - 1]))


@dataclass(frozen=True)
class Interval:
    """A mean over data sets with a bootstrap interval."""

    mean: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        return f"{self.mean:{spec}} ({self.low:{spec}} to {self.high:{spec}})"


def mean_over_tables(values: Sequence[float] | Floats, *, geometric: bool = False, seed: int = 0) -> Interval:
    """Return the mean over data sets, with a 95% bootstrap interval (BCa) over data sets.

    Parameters
    ----------
    values : (D,) one value for each data set.
    geometric : take the geometric mean, as for ratios.

    >>> print(f"{mean_over_tables([0.5, 0.5, 0.5], geometric=True):.2f}")
    0.50 (0.50 to 0.50)
    """
    array = np.log(values) if geometric else np.asarray(values, float)
    back: Callable[[float], float] = np.exp if geometric else float
    mean = float(array.mean())
    if len(array) < 2 or np.ptp(array) == 0:
        return Interval(*(float(back(mean)),) * 3)
    found = stats.bootstrap((array,), np.mean, n_resamples=4999, random_state=np.random.default_rng(seed))
    low, high = found.confidence_interval
    return Interval(*(float(back(value)) for value in (mean, low, high)))


def verdict(own: Floats, reference: Floats, level: float = LEVEL) -> Verdict:
    """Compare two methods on one data set by a paired t-test over seeds, two-sided.

    Parameters
    ----------
    own, reference : (seeds,) areas under the curves.

    >>> verdict(np.array([1.0, 1.1, 0.9]), np.array([2.0, 2.1, 1.8]))
    'win'
    """
    return _worded(float(_gaps(own, reference).mean()), _p_value(own, reference), level)


def verdicts(areas: Scores, reference: str) -> dict[str, dict[str, Verdict]]:
    """Compare every method with a reference on each data set; Holm-corrected over the methods.

    Returns method -> data -> verdict. Data sets without the reference are left out.
    """
    found: dict[str, dict[str, Verdict]] = {}
    for data, of_method in areas.items():
        if reference not in of_method:
            continue
        others = [name for name in of_method if name != reference]
        corrected = holm([_p_value(of_method[name], of_method[reference]) for name in others])
        for name, p_value in zip(others, corrected, strict=True):
            gap = float(_gaps(of_method[name], of_method[reference]).mean())
            found.setdefault(name, {})[data] = _worded(gap, p_value, LEVEL)
    return found


def harm(areas: Scores, method: str, reference: str = "random") -> float:
    """Return the share of data sets on which a method is significantly worse than the reference.

    Each data set is tested at 5%, two-sided and uncorrected, which finds more harm than a corrected test: a
    method that equals the reference has 0.025 on average.
    """
    both = [each for each in areas.values() if {method, reference} <= each.keys()]
    return float(np.mean([verdict(each[method], each[reference]) == "loss" for each in both]))


def ranks(areas: Scores) -> tuple[list[str], Floats]:
    """Rank the methods that all data sets have, by their mean over seeds on each data set.

    Returns the methods and (D, M) ranks; 1 is best, and ties share a rank.
    """
    methods = sorted(set.intersection(*(set(each) for each in areas.values())))
    means = np.array([[each[name].mean() for name in methods] for each in areas.values()])
    return methods, stats.rankdata(np.round(means, DIGITS), axis=1)


def critical_difference(num_methods: int, num_tables: int, level: float = LEVEL) -> float:
    """Return the gap of two mean ranks that is significant by Nemenyi's test.

    References
    ----------
    Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, 2006.

    >>> round(critical_difference(4, 14), 3)  # 2.569 sqrt(4 · 5 / (6 · 14)), from Demšar's table
    1.254
    """
    quantile = stats.studentized_range.ppf(1 - level, num_methods, np.inf) / np.sqrt(2)
    return float(quantile * np.sqrt(num_methods * (num_methods + 1) / (6 * num_tables)))


def differs(gaps: Mapping[str, Floats]) -> dict[str, float]:
    """Test for each method whether its gaps (D,) to a reference over data sets are centred at zero.

    Returns two-sided p-values of Wilcoxon's signed-rank test, Holm-corrected over the methods.
    """
    rounded = {name: np.round(values, DIGITS) for name, values in gaps.items()}
    found = [float(stats.wilcoxon(each).pvalue) if each.any() else 1.0 for each in rounded.values()]
    return dict(zip(gaps, holm(found), strict=True))


def may_be_best(errors: Mapping[str, Floats], *, draws: int = 4999, seed: int = 0) -> dict[str, float]:
    """Test for each method whether it may be the best of all: p-values, small where it surely is not.

    The statistic is the largest t-value of the gaps to any other method. Its distribution comes from random
    flips of the signs of all gaps of a data set together. Since the largest of all t-values is tested, it is
    allowed for that the best method was picked after the fact.

    Parameters
    ----------
    errors : method -> (D,) errors on comparable scales, such as gains over random.
    """
    names = list(errors)
    table = np.round(np.stack([errors[name] for name in names]), DIGITS)  # (M, D)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (draws, table.shape[1]))
    found = {}
    for number, name in enumerate(names):
        gaps = table[number] - np.delete(table, number, 0)  # (M - 1, D), above zero where the other is better
        seen = _t_values(gaps, np.ones((1, gaps.shape[1])))[0]
        found[name] = float((1 + (_t_values(gaps, signs) >= seen - 1e-12).sum()) / (1 + draws))
    return found


def _t_values(gaps: Floats, signs: Floats) -> Floats:
    """(draws,) the largest t-value over methods, for each row of signs (draws, D)."""
    num = gaps.shape[1]
    means = signs @ gaps.T / num  # (draws, M - 1)
    squares = (gaps**2).mean(1)  # which flips do not change
    errors = np.sqrt(np.maximum(squares - means**2, 1e-300) / (num - 1))
    return np.asarray((means / errors).max(1))


def _gaps(own: Floats, reference: Floats) -> Floats:
    return np.asarray(np.round(own - reference, DIGITS))


def _p_value(own: Floats, reference: Floats) -> float:
    """The p-value of a paired t-test; 1 where all gaps are zero, and 0 where all are another number."""
    gaps = _gaps(own, reference)
    if len(gaps) < 2:
        return 1.0
    if np.ptp(gaps) == 0:
        return 1.0 if gaps[0] == 0 else 0.0
    return float(stats.ttest_1samp(gaps, 0).pvalue)


def _worded(gap: float, p_value: float, level: float) -> Verdict:
    if p_value > level:
        return "tie"
    return "win" if gap < 0 else "loss"
