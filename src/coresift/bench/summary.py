"""Summarise replays over many data sets: what each method gains over random, how surely, and at what cost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from coresift.bench import across
from coresift.bench.across import Interval, Scores, Verdict
from coresift.bench.oracle import ORACLE
from coresift.bench.store import Record
from coresift.types import Floats

RANDOM = "random"
REFERENCES = (RANDOM, "margin")


@dataclass(frozen=True, eq=False)
class Summary:
    """Replays of one task and one model on many data sets.

    Attributes
    ----------
    classes : whether classes were predicted: gains are then points of accuracy, else ratios of RMSEs.
    labels : data -> (R,) the number of labels of each round.
    errors : data -> method -> (seeds, R) error of each round.
    seconds : method -> median seconds to choose a batch.
    judged : judge -> data -> method -> (seeds,) error of a model that did not choose, trained on the last
        labelled set.
    """

    classes: bool
    labels: Mapping[str, Floats]
    errors: Scores
    seconds: Mapping[str, float]
    judged: Mapping[str, Scores]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Summary:
        """Gather finished runs, of the seeds that all methods on a data set have finished."""
        kept = _common_runs(record for record in records if record.done)
        judges = {name for record in records for name in record.rounds[-1].judged or ()}
        return cls(
            classes=any(record.rounds[0].accuracy is not None for record in records),
            labels={data: _labels(of[RANDOM][0]) for data, of in kept.items()},
            errors=_table(kept, lambda run: [turn.error for turn in run.rounds]),
            seconds=_seconds(kept.values()),
            judged={judge: _table(kept, partial(_judged, judge)) for judge in sorted(judges)},
        )

    @cached_property
    def areas(self) -> Scores:
        """Data -> method -> (seeds,) mean error over the labels bought."""
        return {
            data: {name: across.area(self.labels[data], errors) for name, errors in of.items()}
            for data, of in self.errors.items()
        }

    @cached_property
    def compared(self) -> Scores:
        """The areas without those of the oracle, which is no strategy."""
        return {data: _without(of, ORACLE) for data, of in self.areas.items()}

    @cached_property
    def methods(self) -> list[str]:
        """Methods that all data sets have, by their mean rank."""
        names, ranks = across.ranks(self.compared)
        return [names[n] for n in np.argsort(ranks.mean(0), kind="stable")]

    @cached_property
    def ranks(self) -> dict[str, float]:
        """The mean rank of each method; 1 is best."""
        names, ranks = across.ranks(self.compared)
        return dict(zip(names, ranks.mean(0).tolist(), strict=True))

    def gaps(self, method: str, areas: Scores | None = None) -> Floats:
        """(D,) how much worse than random a method is on each data set: a difference of error rates, or the
        logarithm of a ratio of RMSEs.
        """
        found = []
        for of in (areas or self.areas).values():
            own, random = of[method].mean(), of[RANDOM].mean()
            found.append(own - random if self.classes else np.log(own / random))
        return np.array(found)

    def gain(self, method: str, areas: Scores | None = None) -> Interval:
        """Average over data sets: points of accuracy above random, or the error as a fraction of random's."""
        gaps = self.gaps(method, areas)
        return across.mean_over_tables(
            -100 * gaps if self.classes else np.exp(gaps), geometric=not self.classes
        )

    def labels_ratio(self, method: str) -> Interval:
        """Average the labels needed for random's final error, relative to random's."""
        ratios = [
            across.labels_ratio(self.labels[data], of[method].mean(0), of[RANDOM].mean(0))
            for data, of in self.errors.items()
        ]
        return across.mean_over_tables(ratios, geometric=True)

    def counts(self, reference: str) -> dict[str, Counter[Verdict]]:
        """Count for each method the data sets on which it wins, ties and loses."""
        found = across.verdicts(self.compared, reference)
        return {name: Counter(verdicts.values()) for name, verdicts in found.items()}

    def attained(self, method: str) -> float | None:
        """Average the share of the oracle's gain over data sets where one was run; ``None`` without any."""
        shares = []
        for of in self.areas.values():
            if ORACLE in of:
                random, own, best = (of[name].mean() for name in (RANDOM, method, ORACLE))
                shares.append((random - own) / (random - best))
        return float(np.mean(shares)) if shares else None


Runs: TypeAlias = Mapping[str, Sequence[Record]]  # method -> runs, by seed


def _common_runs(records: Iterable[Record]) -> dict[str, Runs]:
    """Sort runs by data set and method, of seeds that all methods have; data sets need runs of random."""
    runs = defaultdict[str, dict[str, dict[int, Record]]](dict)
    for record in records:
        runs[record.data].setdefault(record.method, {})[record.seed] = record
    kept: dict[str, Runs] = {}
    for data, of in runs.items():
        seeds = sorted(set.intersection(*map(set, of.values())))
        if seeds and RANDOM in of:
            kept[data] = {name: [found[seed] for seed in seeds] for name, found in of.items()}
    return kept


def _labels(run: Record) -> Floats:
    """(R,) the number of labels of each round."""
    return np.array([turn.labels for turn in run.rounds], np.float64)


def _seconds(everything: Iterable[Runs]) -> dict[str, float]:
    """Return the median seconds that each method took to choose a batch."""
    times = defaultdict[str, list[float]](list)
    for of in everything:
        for name, runs in of.items():
            turns = chain.from_iterable(run.rounds for run in runs)
            times[name] += [turn.select_seconds for turn in turns if turn.chosen]
    return {name: float(np.median(found)) for name, found in times.items() if found}


def _judged(judge: str, run: Record) -> float:
    """Return the error of a judge on the last labelled set; NaN where it was not asked."""
    return (run.rounds[-1].judged or {}).get(judge, np.nan)


def _table(kept: Mapping[str, Mapping[str, Sequence[Record]]], value: Callable[[Record], Any]) -> Scores:
    """Compute a number or a list of each run: data -> method -> (seeds, ...)."""
    return {
        data: {name: np.array(list(map(value, runs)), np.float64) for name, runs in of.items()}
        for data, of in kept.items()
    }


def _without(of: Mapping[str, Floats], name: str) -> dict[str, Floats]:
    return {key: values for key, values in of.items() if key != name}
