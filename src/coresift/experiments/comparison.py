"""How methods compare on the same seeds: at equal labels, at equal refits, and in pairs.

Runs of one seed share the split, the first labels and the initial networks, so their differences tell more
than their means do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy.stats import wilcoxon

from coresift.experiments.store import Record
from coresift.loop import Round
from coresift.report.figures import standard_error
from coresift.types import Floats

LEVEL = 0.05

# What is held equal. The first fit is no refit, so refits are the fits before a round.
Along: TypeAlias = Literal["labels", "fits"]


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error.

    >>> print(Estimate.over([1.0, 3.0]), Estimate(-0.25, 0.125))
    2.000 ± 1.000 -0.250 ± 0.125
    """

    mean: float
    error: float

    @classmethod
    def over(cls, values: Iterable[float]) -> Estimate:
        """Of at least two values."""
        array = np.array(list(values))
        return cls(float(array.mean()), float(standard_error(array)))

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.error:.3f}"


@dataclass(frozen=True)
class Results:
    """The runs on one data set that came to their end.

    Attributes
    ----------
    runs : method -> seed -> run
    unfinished : method -> runs left out
    labels : at the end of a run
    refits : what the methods with full batches need to come there: the fewest
    """

    data: str
    runs: Mapping[str, Mapping[int, Record]]
    unfinished: Mapping[str, int]
    labels: int
    refits: int

    @classmethod
    def gather(cls, data: str, records: Sequence[Record]) -> Results:
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
        return cls(data, runs, unfinished, labels, min(ends, default=0))

    def ranked(self, along: Along = "labels") -> list[str]:
        """The methods with at least two finished runs, the most accurate first."""
        named = [name for name, runs in self.runs.items() if len(runs) > 1]
        errors = {name: float(np.mean([*self.errors(name, along).values()])) for name in named}
        return sorted(named, key=lambda name: (_nan_last(errors[name]), name))

    def at(self, method: str, along: Along) -> dict[int, Round]:
        """By seed, where its run stood at equal labels, which is its end, or at equal refits."""
        limit = self.labels if along == "labels" else self.refits
        return {seed: _latest(run, along, limit) for seed, run in self.runs[method].items()}

    def errors(self, method: str, along: Along = "labels") -> dict[int, float]:
        """By seed, the test RMSE at equal labels or at equal refits."""
        return {seed: turn.rmse for seed, turn in self.at(method, along).items()}

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
        """(seeds, grid) test RMSE: of the last round with at most so many."""
        return np.array(
            [[_latest(run, along, limit).rmse for limit in grid] for run in self.runs[method].values()]
        )

    def seconds(self, method: str) -> tuple[float, float, float]:
        """Means over runs: to build a batch, for a whole round, for a whole run.

        A round is all that leads to a purchase, fits on imputed labels too. A method that buys labels one by
        one is counted in batches as large as the largest bought on this data set.
        """
        batch = max(
            len(turn.bought) for seeds in self.runs.values() for run in seeds.values() for turn in run.rounds
        )
        means = []
        for run in self.runs[method].values():
            bought = [len(turn.bought) for turn in run.rounds if turn.bought]
            rounds = sum(bought) / batch if max(bought, default=0) == 1 else len(bought)
            select = sum(turn.select_seconds for turn in run.rounds)
            fit = sum(turn.fit_seconds for turn in run.rounds)
            # The last fit is followed by no purchase, and belongs to the run only.
            before = select + fit - run.rounds[-1].fit_seconds
            means.append((select / max(rounds, 1), before / max(rounds, 1), select + fit))
        select_mean, round_mean, run_mean = np.mean(means, axis=0).tolist()
        return select_mean, round_mean, run_mean


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
    difference : of RMSE, method minus reference
    p_value : corrected for the number of methods compared
    """

    method: str
    reference: str
    num_seeds: int
    difference: Estimate
    p_value: float

    @property
    def verdict(self) -> str:
        """In words.

        >>> Pair("lcmd", "random", 40, Estimate(-0.3, 0.1), 0.01).verdict
        'better than random'
        """
        if not self.p_value <= LEVEL:
            return f"not told apart from {self.reference}"
        return f"{'better' if self.difference.mean < 0 else 'worse'} than {self.reference}"


def compare_pairs(errors: Mapping[str, Mapping[int, float]], reference: str) -> list[Pair]:
    """Each method against the reference: two-sided Wilcoxon signed-rank tests, Holm-corrected.

    Parameters
    ----------
    errors : method -> seed -> error; whoever shares fewer than two seeds with the reference is left out.

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
    return [
        Pair(method, reference, len(gaps), Estimate.over(gaps), p_value)
        for (method, gaps, _), p_value in zip(found, corrected, strict=True)
    ]


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
    """A method's RMSE as a share of that of random.

    Attributes
    ----------
    at_labels, at_refits : data set -> ratio of the means over the seeds that both have finished
    """

    method: str
    at_labels: Mapping[str, float]
    at_refits: Mapping[str, float]

    @property
    def overall(self) -> tuple[float, float]:
        """Geometric means over data sets, at equal labels and at equal refits.

        >>> Standing("lcmd", {"yacht": 0.25, "boston": 1.0}, {"yacht": 1.0, "boston": 1.0}).overall
        (0.5, 1.0)
        """
        return _geometric_mean(self.at_labels), _geometric_mean(self.at_refits)


def standings(everything: Sequence[Results]) -> list[Standing]:
    """All methods: those with the most data sets first, then the most accurate at equal labels."""
    found: dict[str, Standing] = {}
    for results in everything:
        if len(results.runs.get("random", ())) < 2:
            continue
        for method in results.ranked():
            seeds = sorted(results.runs[method].keys() & results.runs["random"].keys())
            before = found.get(method, Standing(method, {}, {}))
            if seeds:
                found[method] = Standing(
                    method,
                    {**before.at_labels, results.data: _ratio(results, method, "labels", seeds)},
                    {**before.at_refits, results.data: _ratio(results, method, "fits", seeds)},
                )
    return sorted(
        found.values(), key=lambda each: (-len(each.at_labels), _nan_last(each.overall[0]), each.method)
    )


def _ratio(results: Results, method: str, along: Along, seeds: Sequence[int]) -> float:
    own, base = results.errors(method, along), results.errors("random", along)
    return float(sum(own[seed] for seed in seeds) / sum(base[seed] for seed in seeds))


def _nan_last(value: float) -> float:
    """A run that went astray must not come out best."""
    return math.inf if math.isnan(value) else value


def _geometric_mean(ratios: Mapping[str, float]) -> float:
    return float(np.exp(np.mean(np.log(list(ratios.values())))))
