"""How methods compare on the same seeds: at equal labels, at equal refits, and in pairs.

Runs of one seed share the split, the first labels and the initial networks, so their differences tell more
than their means do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.stats import rankdata, wilcoxon
from scipy.stats import t as student

from coresift.bench.replay import Round
from coresift.bench.store import Record
from coresift.report.figures import standard_error
from coresift.types import Floats

LEVEL = 0.05

# What is held equal. The first fit is no refit, so refits are the fits before a round.
Along: TypeAlias = Literal["labels", "fits"]


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error, which one value alone does not tell.

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
class Results:
    """The runs on one data set that came to their end.

    Attributes
    ----------
    runs : method -> seed -> run
    unfinished : method -> runs left out
    labels : at the end of a run
    refits : what the methods with full batches need to come there: the fewest
    settings : method -> what its runs were made with, as far as its log says
    classes : whether classes were predicted, so that accuracy is shown and not RMSE
    """

    data: str
    runs: Mapping[str, Mapping[int, Record]]
    unfinished: Mapping[str, int]
    labels: int
    refits: int
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    classes: bool = False

    @classmethod
    def gather(
        cls, data: str, records: Sequence[Record], settings: Mapping[str, Mapping[str, Any]] | None = None
    ) -> Results:
        """Sort runs: one is finished if it chose nothing more and has as many labels as any."""
        labels = max(record.rounds[-1].labels for record in records)
        runs: dict[str, dict[int, Record]] = {record.method: {} for record in records}
        unfinished = dict.fromkeys(runs, 0)
        for record in records:
            last = record.rounds[-1]
            if last.labels == labels and not last.chosen and not last.guessed:
                runs[record.method][record.seed] = record
            else:
                unfinished[record.method] += 1
        ends = [run.rounds[-1].fits for seeds in runs.values() for run in seeds.values()]
        known = {name: (settings or {}).get(name, {}) for name in runs}
        classes = records[0].rounds[0].accuracy is not None
        return cls(data, runs, unfinished, labels, min(ends, default=0), known, classes)

    @property
    def measure(self) -> str:
        """What is shown of errors: themselves, or the share that is right."""
        return "accuracy" if self.classes else "RMSE"

    @property
    def digits(self) -> int:
        """With which it is shown."""
        return 4 if self.classes else 3

    def _shown(self, errors: Floats) -> Floats:
        return 1 - errors if self.classes else errors

    def differing(self) -> dict[str, list[list[str]]]:
        """The settings in which methods differ, beside the method itself: groups of methods that agree."""
        names = sorted({name for each in self.settings.values() for name in each} - {"method", "beside"})
        found = {}
        for name in names:
            groups: dict[str, list[str]] = {}
            for method, each in self.settings.items():
                value = json.dumps(each[name], sort_keys=True) if name in each else ""
                groups.setdefault(value, []).append(method)
            if len(groups) > 1:
                found[name] = [*groups.values()]
        return found

    def ranked(self, along: Along = "labels") -> list[str]:
        """The methods with finished runs, the most accurate first, lone ones last."""
        named = [name for name, runs in self.runs.items() if runs]
        errors = {name: float(np.mean([*self.errors(name, along).values()])) for name in named}
        return sorted(named, key=lambda name: (self.lone(name), _nan_last(errors[name]), name))

    def lone(self, method: str) -> bool:
        """Whether it has a single run where others than random have more: luck must not make it the best."""
        others = (runs for name, runs in self.runs.items() if name != "random")
        return len(self.runs[method]) == 1 and any(len(runs) > 1 for runs in others)

    def at(self, method: str, along: Along) -> dict[int, Round]:
        """By seed, where its run stood at equal labels, which is its end, or at equal refits."""
        limit = self.labels if along == "labels" else self.refits
        return {seed: _latest(run, along, limit) for seed, run in self.runs[method].items()}

    def errors(self, method: str, along: Along = "labels") -> dict[int, float]:
        """By seed, the test RMSE, or the share that is wrong, at equal labels or at equal refits."""
        return {seed: turn.error for seed, turn in self.at(method, along).items()}

    def estimate(self, method: str, along: Along = "labels") -> Estimate:
        """Of the measure, at equal labels or at equal refits."""
        return Estimate.over(self._shown(np.array([*self.errors(method, along).values()])))

    @property
    def few_seeds(self) -> bool:
        """Whether classes, whose models are costly, have too few seeds for the Wilcoxon test to tell."""
        ranked = self.ranked()
        needed = seeds_needed(max(len(ranked) - 1, 1))
        return self.classes and any(len(self.runs[name]) < needed for name in ranked)

    def pairs(self, reference: str) -> list[Pair]:
        """The other methods against the reference, at equal labels; with few seeds by t-tests as well."""
        errors = {name: self.errors(name) for name in self.ranked()}
        return compare_pairs(errors, reference, if_normal=self.few_seeds) if reference in errors else []

    def in_step(self) -> bool:
        """Whether all runs had the same labels after the same refits, all along."""
        ways = {
            tuple((turn.fits, turn.labels) for turn in run.rounds)
            for runs in self.runs.values()
            for run in runs.values()
        }
        return len(ways) == 1

    def label_grid(self) -> list[int]:
        """The numbers of labels at which the methods with full batches were fitted."""
        shortest = min(
            (run for seeds in self.runs.values() for run in seeds.values()),
            key=lambda run: run.rounds[-1].fits,
        )
        return [turn.labels for turn in shortest.rounds if not turn.guessed]

    def refit_grid(self, method: str) -> list[int]:
        """The numbers of refits after which a run of the method knew true labels only."""
        return sorted(
            {turn.fits for run in self.runs[method].values() for turn in run.rounds if not turn.guessed}
        )

    def curve(self, method: str, along: Along, grid: Sequence[int]) -> Floats:
        """(seeds, grid) the measure: of the last round with at most so many."""
        errors = [[_latest(run, along, limit).error for limit in grid] for run in self.runs[method].values()]
        return self._shown(np.array(errors))

    def seconds(self, method: str) -> tuple[float, float, float]:
        """Means over runs: to build a batch, for a whole round, for a whole run.

        A round is all that leads to a purchase, fits on imputed labels too. The purchases of a method that
        refits within a batch are counted in whole batches.
        """
        means = []
        for run in self.runs[method].values():
            rounds = self._num_rounds(run)
            select = sum(turn.select_seconds for turn in run.rounds)
            fit = sum(turn.fit_seconds for turn in run.rounds)
            # The last fit is followed by no purchase, and belongs to the run only.
            before = select + fit - run.rounds[-1].fit_seconds
            means.append((select / max(rounds, 1), before / max(rounds, 1), select + fit))
        select_mean, round_mean, run_mean = np.mean(means, axis=0).tolist()
        return select_mean, round_mean, run_mean

    def _num_rounds(self, run: Record) -> int:
        bought = [len(turn.bought) for turn in run.rounds if turn.bought]
        settings = self.settings.get(run.method, {})
        method = settings.get("method")
        if isinstance(method, Mapping) and "refit_every" in method:
            within = method["refit_every"] is not None
        else:  # the log does not say
            within = max(bought, default=0) == 1
        if not within:
            return len(bought)
        batch = settings.get("batch") or max(  # the largest purchase, where the log does not say
            len(turn.bought) for runs in self.runs.values() for each in runs.values() for turn in each.rounds
        )
        return math.ceil(sum(bought) / max(batch, 1))


def _latest(run: Record, along: Along, limit: int) -> Round:
    """The last round on true labels with at most ``limit`` labels or fits; the first in any case."""
    reached = [turn for turn in run.rounds if not turn.guessed and getattr(turn, along) <= limit]
    return reached[-1] if reached else run.rounds[0]


@dataclass(frozen=True)
class Pair:
    """A method against a reference over the seeds they share.

    Attributes
    ----------
    num_seeds : that both have finished
    difference : of errors, method minus reference
    p_value : corrected for the number of methods compared
    rank_sum : of the signed ranks, which the p-value is about: below zero where the method is mostly better
    p_if_normal : likewise corrected, of a test that takes differences for normal; ``None`` without one
    """

    method: str
    reference: str
    num_seeds: int
    difference: Estimate
    p_value: float
    rank_sum: float
    p_if_normal: float | None = None

    @property
    def verdict(self) -> str:
        """In words.

        >>> Pair("lcmd", "random", 40, Estimate(-0.3, 0.1), 0.01, -500).verdict
        'better than random'
        >>> Pair("lcmd", "random", 40, Estimate(0.2, 0.1), 0.01, -500).verdict
        'mostly better than random, but not in the mean'
        >>> Pair("lcmd", "random", 3, Estimate(-0.3, 0.01), 0.25, -6, 0.001).verdict
        'better than random, if differences are normal'
        """
        if not self.p_value <= LEVEL:
            if self.p_if_normal is None or not self.p_if_normal <= LEVEL:
                return f"not told apart from {self.reference}"
            word = "better" if self.difference.mean < 0 else "worse"
            return f"{word} than {self.reference}, if differences are normal"
        words = f"{'better' if self.rank_sum < 0 else 'worse'} than {self.reference}"
        # A few large differences can outweigh many small ones in the mean, though not in the ranks.
        agrees = self.difference.mean * self.rank_sum > 0
        return words if agrees else f"mostly {words}, but not in the mean"


def compare_pairs(
    errors: Mapping[str, Mapping[int, float]], reference: str, *, if_normal: bool = False
) -> list[Pair]:
    """Each method against the reference: two-sided Wilcoxon signed-rank tests, Holm-corrected.

    Parameters
    ----------
    errors : method -> seed -> error; whoever shares fewer than two seeds with the reference is left out.
    if_normal : test by paired t-tests as well, which can tell on few seeds.

    >>> errors = {"random": dict.fromkeys(range(8), 2.0), "lcmd": {seed: 1 + seed / 10 for seed in range(8)}}
    >>> compare_pairs(errors, "random")[0].p_value
    0.0078125
    """
    found = []
    for method, own in errors.items():
        shared = sorted(own.keys() & errors[reference].keys())
        if method != reference and len(shared) > 1:
            gaps = np.array([own[seed] - errors[reference][seed] for seed in shared])
            # Without any difference the test is not defined, and there is nothing to tell apart.
            found.append((method, gaps, float(wilcoxon(gaps).pvalue) if gaps.any() else 1.0))
    corrected = holm([p_value for *_, p_value in found])
    normal = holm([_t_test(gaps) for _, gaps, _ in found]) if if_normal else [None] * len(found)
    return [
        Pair(method, reference, len(gaps), Estimate.over(gaps), p_value, _rank_sum(gaps), p_if_normal)
        for (method, gaps, _), p_value, p_if_normal in zip(found, corrected, normal, strict=True)
    ]


def _t_test(gaps: Floats) -> float:
    """The two-sided p-value of a paired t-test.

    >>> round(_t_test(np.array([1.0, 2.0, 3.0])), 4)
    0.0742
    """
    # Without scatter the test is not defined; shares may be equal by chance, and then differ by rounding.
    if np.allclose(gaps, gaps[0], rtol=1e-9, atol=0):
        return 1.0
    return float(2 * student.sf(abs(gaps.mean() / standard_error(gaps)), len(gaps) - 1))


def _rank_sum(gaps: Floats) -> float:
    """Of the signed ranks; as in the test, without the zeros."""
    apart = gaps[gaps != 0]
    return float(np.sign(apart) @ rankdata(np.abs(apart)))


def seeds_needed(num_compared: int) -> int:
    """The fewest seeds on which a method that is better on each is sure to be told apart.

    >>> seeds_needed(1), seeds_needed(6)
    (6, 8)
    """
    # The least p-value of n signs is 2 / 2**n, and Holm's correction multiplies it by the tests at most.
    return next(seeds for seeds in count(1) if num_compared * 2.0 ** (1 - seeds) <= LEVEL)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: each may be held against the level as if it were the only test.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values).tolist()):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


@dataclass(frozen=True)
class Standing:
    """A method's error as a share of that of random.

    Attributes
    ----------
    at_labels, at_refits : data set -> ratio of the means over the seeds that both have finished
    lone : whether it has a single run on some data set, where others have more
    """

    method: str
    at_labels: Mapping[str, float]
    at_refits: Mapping[str, float]
    lone: bool = False

    @property
    def overall(self) -> tuple[float, float]:
        """Geometric means over data sets, at equal labels and at equal refits.

        >>> Standing("lcmd", {"yacht": 0.25, "boston": 1.0}, {"yacht": 1.0, "boston": 1.0}).overall
        (0.5, 1.0)
        """
        return _geometric_mean(self.at_labels), _geometric_mean(self.at_refits)


def standings(everything: Sequence[Results]) -> list[Standing]:
    """All methods: those with the most data sets first, lone ones last of these, then the most accurate."""
    found: dict[str, Standing] = {}
    for results in everything:
        if not results.runs.get("random"):
            continue
        for method in results.ranked():
            seeds = sorted(results.runs[method].keys() & results.runs["random"].keys())
            before = found.get(method, Standing(method, {}, {}))
            if seeds:
                found[method] = Standing(
                    method,
                    {**before.at_labels, results.data: _ratio(results, method, "labels", seeds)},
                    {**before.at_refits, results.data: _ratio(results, method, "fits", seeds)},
                    before.lone or results.lone(method),
                )
    return sorted(
        found.values(),
        key=lambda each: (-len(each.at_labels), each.lone, _nan_last(each.overall[0]), each.method),
    )


def _ratio(results: Results, method: str, along: Along, seeds: Sequence[int]) -> float:
    own, base = (sum(results.errors(name, along)[seed] for seed in seeds) for name in (method, "random"))
    if base == 0:  # as where all classes are right
        return math.inf if own else 1.0
    return float(own / base)


def _nan_last(value: float) -> float:
    """A run that went astray must not come out best."""
    return math.inf if math.isnan(value) else value


def _geometric_mean(ratios: Mapping[str, float]) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):  # without an error the share is zero
        return float(np.exp(np.mean(np.log(list(ratios.values())))))
