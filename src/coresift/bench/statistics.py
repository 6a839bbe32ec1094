"""Compare numbers of several runs: means with standard errors, paired tests, distances within a batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree
from scipy.stats import rankdata, ttest_1samp, wilcoxon

from coresift.report.figures import standard_error
from coresift.types import Floats

LEVEL = 0.05


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error, which is NaN for a single value.

    >>> print(Estimate.over([1.0, 3.0]), Estimate.over([2.0]))
    2.000 ± 1.000 2.000
    >>> f"{Estimate.over([0.5, 0.75]):.4f}"
    '0.6250 ± 0.1250'
    """

    mean: float
    error: float

    @classmethod
    def over(cls, values: Iterable[float]) -> Estimate:
        array = np.array(list(values))
        return cls(float(array.mean()), float(standard_error(array)))

    def __format__(self, spec: str) -> str:
        return format(self.mean, spec) + ("" if math.isnan(self.error) else f" ± {self.error:{spec}}")

    def __str__(self) -> str:
        return f"{self:.3f}"


@dataclass(frozen=True)
class Pair:
    """A method against a reference, over the seeds that both have finished."""

    method: str
    reference: str
    num_seeds: int
    difference: Estimate  # of errors, method minus reference
    p_value: float  # corrected for the number of methods compared
    rank_sum: float  # of the signed ranks, for the p-value; below zero where the method is mostly better
    p_if_normal: float = math.nan  # of a test that assumes normal differences, if it was made

    @property
    def verdict(self) -> str:
        """The result in words.

        >>> Pair("lcmd", "random", 40, Estimate(-0.3, 0.1), 0.01, -500).verdict
        'better than random'
        >>> Pair("lcmd", "random", 40, Estimate(0.2, 0.1), 0.01, -500).verdict
        'mostly better than random, but not in the mean'
        >>> Pair("lcmd", "random", 3, Estimate(-0.3, 0.01), 0.25, -6, 0.001).verdict
        'better than random, if differences are normal'
        """
        if self.p_value <= LEVEL:
            words = f"{_better(self.rank_sum)} than {self.reference}"
            # A few large differences can outweigh many small ones in the mean, but not in the ranks.
            agrees = self.difference.mean * self.rank_sum > 0
            return words if agrees else f"mostly {words}, but not in the mean"
        if self.p_if_normal <= LEVEL:
            return f"{_better(self.difference.mean)} than {self.reference}, if differences are normal"
        return f"not significantly different from {self.reference}"


def _better(difference: float) -> str:
    return "better" if difference < 0 else "worse"


def compare_pairs(
    errors: Mapping[str, Mapping[int, float]], reference: str, *, if_normal: bool = False
) -> list[Pair]:
    """Compare each method with the reference: two-sided Wilcoxon signed-rank tests, Holm-corrected.

    Parameters
    ----------
    errors : method -> seed -> error; methods that share fewer than two seeds with the reference are left out.
    if_normal : add paired t-tests, which can be significant with few seeds.

    >>> errors = {"random": dict.fromkeys(range(8), 2.0), "lcmd": {seed: 1 + seed / 10 for seed in range(8)}}
    >>> compare_pairs(errors, "random")[0].p_value
    0.0078125
    """
    found = {name: _gaps(own, errors[reference]) for name, own in errors.items() if name != reference}
    gaps = {name: values for name, values in found.items() if len(values) > 1}
    corrected = holm(list(map(_wilcoxon, gaps.values())))
    normal = holm(list(map(_t_test, gaps.values()))) if if_normal else [math.nan] * len(gaps)
    return [
        Pair(name, reference, len(values), Estimate.over(values), p_value, _rank_sum(values), p_if_normal)
        for (name, values), p_value, p_if_normal in zip(gaps.items(), corrected, normal, strict=True)
    ]


def _gaps(own: Mapping[int, float], reference: Mapping[int, float]) -> Floats:
    return np.array([own[seed] - reference[seed] for seed in sorted(own.keys() & reference.keys())])


def _wilcoxon(gaps: Floats) -> float:
    """Compute the p-value; 1 where all differences are zero, for which the test is not defined."""
    return float(wilcoxon(gaps).pvalue) if gaps.any() else 1.0


def _t_test(gaps: Floats) -> float:
    """Compute the two-sided p-value of a paired t-test."""
    # Not defined without scatter; accuracies can have equal differences, which then differ by rounding.
    if np.allclose(gaps, gaps[0], rtol=1e-9, atol=0):
        return 1.0
    return float(ttest_1samp(gaps, 0).pvalue)


def _rank_sum(gaps: Floats) -> float:
    """Add the signed ranks, without zeros, as in the test."""
    nonzero = gaps[gaps != 0]
    return float(np.sign(nonzero) @ rankdata(np.abs(nonzero)))


def seeds_needed(num_compared: int) -> int:
    """Return the fewest seeds on which a method that is better on each is surely significant.

    >>> seeds_needed(1), seeds_needed(6)
    (6, 8)
    """
    # The smallest p-value of n signs is 2 / 2**n; Holm's correction multiplies it at most by the tests.
    return math.ceil(1 + math.log2(num_compared / LEVEL))


def holm(p_values: Sequence[float]) -> list[float]:
    """Apply Holm's step-down correction: each result can be compared with the level as if it were alone.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    multiplied = np.sort(p_values) * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[np.argsort(p_values)] = np.maximum.accumulate(np.minimum(multiplied, 1))
    return list(map(float, corrected))


def nearest_distance(points: Floats) -> float:
    """Return the mean distance of points (b, D) to the nearest other one: small for redundant batches.

    >>> nearest_distance(np.array([[0.0], [1.0], [3.0]]))
    1.3333333333333333
    """
    distance, _ = cKDTree(points).query(points, k=2)
    return float(distance[:, 1].mean())
