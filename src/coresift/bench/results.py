"""Compare methods on the same seeds: at equal labels, at equal refits, and in pairs.

Runs of one seed share the split, the first labels and the initial networks, so paired differences are more
precise than differences of means.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.stats import gmean

from coresift.bench.replay import Round
from coresift.bench.statistics import Estimate, Pair, compare_pairs, seeds_needed
from coresift.bench.store import Record
from coresift.types import Floats

# What is held equal. The first fit is not a refit, so refits are the fits before a round.
Along: TypeAlias = Literal["labels", "fits"]
Settings: TypeAlias = Mapping[str, Mapping[str, Any]]  # method -> as its log has them


@dataclass(frozen=True)
class Measure:
    """What is shown of a test set, and the words for it."""

    name: str
    digits: int
    error: str  # what methods are ranked by


RMSE, ACCURACY = Measure("RMSE", 3, "error"), Measure("accuracy", 4, "error rate")


@dataclass(frozen=True)
class Results:
    """The finished runs on one data set."""

    data: str
    runs: Mapping[str, Mapping[int, Record]]  # method -> seed -> run
    unfinished: Mapping[str, int]  # method -> number of runs left out, if there are any
    labels: int  # at the end of a run
    settings: Settings
    classes: bool  # whether classes were predicted

    @classmethod
    def gather(cls, data: str, records: Sequence[Record], settings: Settings | None = None) -> Results:
        """Sort runs: one is finished if it chose nothing more and has as many labels as any other."""
        labels = max(record.rounds[-1].labels for record in records)
        runs: dict[str, dict[int, Record]] = {record.method: {} for record in records}
        unfinished = Counter[str]()
        for record in records:
            if record.finished(labels):
                runs[record.method][record.seed] = record
            else:
                unfinished[record.method] += 1
        known = {name: (settings or {}).get(name, {}) for name in runs}
        classes = records[0].rounds[0].accuracy is not None
        return cls(data, runs, unfinished, labels, known, classes)

    @property
    def measure(self) -> Measure:
        """What is shown."""
        return ACCURACY if self.classes else RMSE

    def _measured(self, errors: Iterable[Any]) -> Floats:
        values = np.array(list(errors))
        return 1 - values if self.classes else values

    @cached_property
    def _all_runs(self) -> list[Record]:
        return list(chain.from_iterable(seeds.values() for seeds in self.runs.values()))

    @cached_property
    def refits(self) -> int:
        """The fewest refits of a finished run, which are those of methods with full batches."""
        return min((run.rounds[-1].fits for run in self._all_runs), default=0)

    def differing(self) -> dict[str, list[list[str]]]:
        """Find settings in which methods differ, besides the method itself: name -> groups that agree."""
        differing = {}
        for name in sorted({*chain(*self.settings.values())} - {"method", "beside"}):
            groups = defaultdict[str, list[str]](list)
            for method, own in self.settings.items():
                groups[json.dumps(own.get(name, ""), sort_keys=True)].append(method)
            if len(groups) > 1:
                differing[name] = list(groups.values())
        return differing

    def ranked(self, along: Along = "labels") -> list[str]:
        """List methods with finished runs: the most accurate first, those with a lone run last."""
        named = [name for name, runs in self.runs.items() if runs]
        errors = {name: float(np.mean([*self.errors(name, along).values()])) for name in named}
        return sorted(named, key=lambda name: (self.lone(name), nan_last(errors[name]), name))

    def lone(self, method: str) -> bool:
        """Tell whether it has a single run where others than random have more: luck must not make it best."""
        most = max((len(runs) for name, runs in self.runs.items() if name != "random"), default=0)
        return len(self.runs[method]) == 1 < most

    def at(self, method: str, along: Along = "labels") -> dict[int, Round]:
        """Return the round of each seed at equal labels, which is its last, or at equal refits."""
        limit = self.labels if along == "labels" else self.refits
        return {seed: _latest(run, along, limit) for seed, run in self.runs[method].items()}

    def errors(self, method: str, along: Along = "labels") -> dict[int, float]:
        """Return the test RMSE or error rate of each seed, at equal labels or at equal refits."""
        return {seed: turn.error for seed, turn in self.at(method, along).items()}

    def estimate(self, method: str, along: Along = "labels") -> Estimate:
        """Average the measure over seeds, at equal labels or at equal refits."""
        return Estimate.over(self._measured(self.errors(method, along).values()))

    @property
    def compares(self) -> bool:
        """Whether there is more than one fit of one method."""
        return self.refits > 0 or len(self.runs) > 1

    @property
    def num_compared(self) -> int:
        """How many methods are compared with a reference, at least one."""
        return max(len(self.ranked()) - 1, 1)

    @property
    def seeds_needed(self) -> int:
        """See `seeds_needed`."""
        return seeds_needed(self.num_compared)

    @property
    def few_seeds(self) -> bool:
        """Whether a classification has too few seeds for a significant Wilcoxon test."""
        return self.classes and any(len(self.runs[name]) < self.seeds_needed for name in self.ranked())

    def pairs(self, reference: str) -> list[Pair]:
        """Compare the other methods with the reference at equal labels; with few seeds by t-tests as well."""
        errors = {name: self.errors(name) for name in self.ranked()}
        return compare_pairs(errors, reference, if_normal=self.few_seeds) if reference in errors else []

    def ratio(self, method: str, reference: str, along: Along = "labels") -> float:
        """Divide the mean error by that of the reference, over the seeds that both have finished."""
        both, base_of = self.errors(method, along), self.errors(reference, along)
        seeds = sorted(both.keys() & base_of.keys())
        own, base = (sum(errors[seed] for seed in seeds) for errors in (both, base_of))
        if base == 0:  # such as if all predicted classes are right
            return math.inf if own else 1.0
        return float(own / base)

    def in_step(self) -> bool:
        """Tell whether all runs always had the same labels after the same refits."""
        return len({tuple((turn.fits, turn.labels) for turn in run.rounds) for run in self._all_runs}) == 1

    def label_grid(self) -> list[int]:
        """List the numbers of labels at which the methods with full batches were fitted."""
        shortest = min(self._all_runs, key=lambda run: run.rounds[-1].fits)
        return [turn.labels for turn in shortest.rounds if not turn.guessed]

    def refit_grid(self, method: str) -> list[int]:
        """List the numbers of refits after which a run of the method had true labels only."""
        turns = chain.from_iterable(run.rounds for run in self.runs[method].values())
        return sorted({turn.fits for turn in turns if not turn.guessed})

    def curve(self, method: str, along: Along, grid: Sequence[int]) -> Floats:
        """(seeds, grid) the measure in the last round with at most so many labels or refits."""
        runs = self.runs[method].values()
        return self._measured([_latest(run, along, limit).error for limit in grid] for run in runs)

    def seconds(self, method: str) -> list[float]:
        """Average over runs the seconds to build a batch, for a whole round, for a whole run.

        A round is all that leads to a purchase, fits on pseudo-labels too. The purchases of a method that
        refits within a batch are counted in whole batches.
        """
        seconds = [self._seconds(run) for run in self.runs[method].values()]
        return list(map(float, np.mean(seconds, axis=0)))

    def _seconds(self, run: Record) -> tuple[float, float, float]:
        rounds = max(self._num_rounds(run), 1)
        select = sum(turn.select_seconds for turn in run.rounds)
        fit = sum(turn.fit_seconds for turn in run.rounds)
        # The last fit is followed by no purchase, so it belongs to the run only.
        before = select + fit - run.rounds[-1].fit_seconds
        return select / rounds, before / rounds, select + fit

    def _num_rounds(self, run: Record) -> int:
        bought, settings = run.purchases, self.settings.get(run.method, {})
        # Where the log does not say, by what was bought: one by one, and batches of the largest purchase.
        one_by_one = max(bought, default=0) == 1 or None
        refit_every = settings.get("method", {}).get("refit_every", one_by_one)
        if refit_every is None:
            return len(bought)
        largest = max(max(other.purchases, default=0) for other in self._all_runs)
        return math.ceil(sum(bought) / max(int(settings.get("batch", largest)), 1))


def _latest(run: Record, along: Along, limit: int) -> Round:
    """Return the last round on true labels with at most ``limit`` labels or fits, or else the first."""
    reached = [turn for turn in run.rounds if not turn.guessed and getattr(turn, along) <= limit]
    return [run.rounds[0], *reached][-1]


@dataclass(frozen=True)
class Standing:
    """The error of a method as a fraction of that of random: data set -> ratio, see `Results.ratio`."""

    method: str
    at_labels: Mapping[str, float]
    at_refits: Mapping[str, float]
    lone: bool = False  # whether it has a single run on some data set where others have more

    @classmethod
    def on(cls, everything: Sequence[Results], method: str) -> Standing:
        """Compare a method with random on all of these data sets."""
        at_labels = {results.data: results.ratio(method, "random") for results in everything}
        at_refits = {results.data: results.ratio(method, "random", "fits") for results in everything}
        return cls(method, at_labels, at_refits, any(results.lone(method) for results in everything))

    @property
    def overall(self) -> tuple[float, float]:
        """Geometric means over data sets, at equal labels and at equal refits.

        >>> Standing("lcmd", {"yacht": 0.25, "boston": 1.0}, {"yacht": 1.0, "boston": 1.0}).overall
        (0.5, 1.0)
        """
        with np.errstate(divide="ignore", invalid="ignore"):  # of a ratio that is zero
            at_labels, at_refits = (gmean([*ratios.values()]) for ratios in (self.at_labels, self.at_refits))
        return float(at_labels), float(at_refits)


def standings(everything: Iterable[Results]) -> list[Standing]:
    """Rank methods: those on the most data sets first, lone ones last among these, then by accuracy.

    A method stands on the data sets where it has finished a seed that random has finished, too.
    """
    found = defaultdict[str, list[Results]](list)
    for results in everything:
        base = results.runs.get("random", {})
        for method in results.ranked():
            if results.runs[method].keys() & base.keys():
                found[method].append(results)
    ranked = [Standing.on(comparable, method) for method, comparable in found.items()]
    return sorted(
        ranked, key=lambda one: (-len(one.at_labels), one.lone, nan_last(one.overall[0]), one.method)
    )


def nan_last(value: float) -> float:
    """Sort a diverged run last."""
    return math.inf if math.isnan(value) else value
