"""A look-ahead oracle: how much could be gained, if labels were known before they are bought?

It is no strategy: a beam search trains models on the true labels of candidate batches, and keeps the best
labelled sets. Only few candidates are tried, so a perfect strategy may do better still. The test set is not
looked at while it searches: sets are judged by the rows of the pool that stay without a label. In the file of
an experiment or a suite, the method "oracle" is this search.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from coresift.bench.measures import measure
from coresift.bench.replay import Method, Round, Simulation, State, choose
from coresift.types import Index

ORACLE = "oracle"  # among the methods of an experiment


@dataclass(frozen=True)
class BeamSearch:
    """Searches for the labelled sets from which a model learns most.

    Attributes
    ----------
    beam : sets that are kept after each round.
    random : candidate batches that are drawn at random for each kept set.
    strategies : each of them proposes one further candidate.

    >>> from coresift.estimators import NeuralLinearRegressor
    >>> x = np.linspace(-1, 1, 60)[:, None]
    >>> model = NeuralLinearRegressor(epochs=5, calibration_folds=0)
    >>> simulation = Simulation(x, x[:, 0] ** 2, model, first=10, batch=5, budget=10)
    >>> [turn.labels for turn in BeamSearch(beam=1, random=2).run(simulation, seed=0)]
    [10, 15, 20]
    """

    beam: int = 3
    random: int = 6
    strategies: tuple[str, ...] = ("predictive-lcmd", "acs-fw")

    def run(self, simulation: Simulation, seed: int) -> list[Round]:
        """Return the rounds that lead to the best labelled set found."""
        tried = [_Set(simulation.begin(Method("random"), seed))]
        while True:
            start = time.perf_counter()
            kept = sorted(self._fitted(simulation, tried), key=lambda each: each.error)[: self.beam]
            seconds = time.perf_counter() - start
            if simulation.batch_size(kept[0].state) == 0:
                return [*kept[0].rounds, kept[0].round(simulation, (), seconds)]
            candidates = [one for each in kept for one in self._grown(simulation, each, seconds)]
            # Two sets may grow into the same one.
            tried = list({frozenset(each.state.labelled): each for each in candidates}.values())

    def _fitted(self, simulation: Simulation, sets: Sequence[_Set]) -> list[_Set]:
        """Train a model on each set, and measure it on the rows of the pool that have no label."""
        known = [simulation.known(each.state) for each in sets]
        models = simulation.model.fit_many(
            [(simulation.x[rows], labels) for rows, labels in known], [each.state.seed_of(0) for each in sets]
        )
        return [
            replace(each, model=model, error=_error(simulation, model, simulation.pool_rows(each.state)))
            for each, model in zip(sets, models, strict=True)
        ]

    def _grown(self, simulation: Simulation, kept: _Set, seconds: float) -> list[_Set]:
        """Return the set with each of the candidate batches."""
        state, size = kept.state, simulation.batch_size(kept.state)
        pool, rng = simulation.pool_rows(state), np.random.default_rng([state.seed, *state.labelled[-size:]])
        batches = [tuple(rng.choice(pool, size, replace=False).tolist()) for _ in range(self.random)]
        batches += [
            choose(simulation, replace(state, method=Method(name)), kept.model.posterior_, size)
            for name in self.strategies
        ]
        turns = [kept.round(simulation, batch, seconds) for batch in batches]
        return [_Set(state.after(turn), (*kept.rounds, turn)) for turn in turns]


@dataclass(frozen=True, eq=False)
class _Set:
    """A labelled set, the rounds that led to it, and the model that was trained on it."""

    state: State
    rounds: tuple[Round, ...] = ()
    model: Any = None
    error: float = float("nan")  # on the rows of the pool that have no label

    def round(self, simulation: Simulation, batch: tuple[int, ...], seconds: float) -> Round:
        """Test the model, and note the batch that was bought next."""
        rows = simulation.test_rows(self.state.seed)
        return Round(
            fits=self.state.fits,
            labels=len(self.state.labelled),
            guessed=0,
            chosen=batch,
            bought=batch,
            select_seconds=seconds,
            **_measures(simulation, self.model, rows),
        )


def _measures(simulation: Simulation, model: Any, rows: Index) -> dict[str, Any]:
    predictive = model.posterior_.predictive(torch.as_tensor(simulation.x[rows]))
    return measure(predictive, simulation.y[rows], getattr(model, "classes_", None))


def _error(simulation: Simulation, model: Any, rows: Index) -> float:
    found = _measures(simulation, model, rows)
    return float(found["rmse"] if found["rmse"] is not None else 1 - found["accuracy"])
