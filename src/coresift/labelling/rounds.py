"""Choose the next batch of a project: `NextBatch` is the `Learner` that `coresift.loop` calls."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, astuple
from itertools import count, repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from coresift import limits
from coresift.errors import InputError
from coresift.labelling.choose import Limits, Picked, asker, choose_within, nearest_of
from coresift.labelling.forecast import forecast, information
from coresift.labelling.ledger import AddedAnswers, now
from coresift.labelling.model import MODEL_NAMES, predicted
from coresift.labelling.open_project import OpenProject
from coresift.labelling.records import Answer, Chosen, Prediction, Round
from coresift.labelling.settings import NothingLeftError, Request
from coresift.labelling.storage import FEATURES, BusyError
from coresift.selection import Resources, select
from coresift.types import Index

Features: TypeAlias = npt.NDArray[np.float32]  # (n, d)

# Without a model, items are chosen by their features, from the middle of clusters: unusual items teach a
# first model little.
COLD = "k-medoids"


class Candidates(NamedTuple):
    """The items that a batch is chosen from, by their positions."""

    looked_at: Index  # (n,) ascending, with those that are pending or must be included
    pending: list[int]  # items that count as taken
    must_include: list[int]  # items that must be in the batch
    closed: set[int]  # items that cannot be chosen


class NextBatch:
    """A project as a `Learner`; each `fit` begins a round from the current state of the ledger.

    With ``withdraw``, all pending items are withdrawn, and may be chosen again in this round. ``source`` is
    recorded with the answers that are added: it says where they come from.
    """

    def __init__(
        self, project: OpenProject, request: Request, *, withdraw: bool = False, source: str = "answers"
    ) -> None:
        self.project, self.request = project, request
        self.withdraw, self.source = withdraw, source

    def pending(self) -> list[Chosen]:
        return [] if self.withdraw else self.project.pending()

    def fit(self) -> Any | None:
        """Fit the model to all labels; ``None`` if these are too few to learn from."""
        ledger = self.project.ledger
        self._began = time.perf_counter()
        self._last_event, self._rounds = ledger.last_event(), ledger.rounds()
        pending = ledger.pending() if self.withdraw else []
        self._withdrawn = [item.position for _, item in pending]
        withdrawn = Counter(number for number, _ in pending)
        withdrawn.update({number: len(items) for number, items in ledger.withdrawn().items()})
        # Rounds whose whole batch was withdrawn do not count: the next round has the seed that they had.
        turn = 1 + sum(withdrawn[one.number] < len(one.batch) for one in self._rounds)
        entropy = [self.project.settings.seed, turn]
        self._seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        self._labelled, self._values = self.project.labels_and_values()
        model = self.project.fit_to(self._labelled, self._values)
        self._fit_seconds = time.perf_counter() - self._began
        return model

    def choose(self, model: Any | None) -> list[Chosen]:
        """Choose items; raises `NothingLeftError` if there are none."""
        cold = model is None and self.request.strategy != "random"
        self._strategy = COLD if cold else self.request.strategy
        pick = self._pick_here if self.request.engine is None else self._pick_on_ray
        (positions, weights, self._residuals), seen = pick(model, self._candidates(cold))
        if not positions:
            raise NothingLeftError("there is nothing left to choose within these limits")
        self._choose_seconds = time.perf_counter() - self._began - self._fit_seconds
        nearest, ids = self._count_nearest(positions, seen), self.project.ledger.ids(positions)
        return list(map(Chosen, positions, ids, count(1), weights or repeat(None), nearest))

    def look(self, model: Any | None, items: Sequence[Chosen]) -> Round:
        """Forecast what the batch brings, and describe the round."""
        withdrawn, ledger = len(self._withdrawn), self.project.ledger
        notes = {
            "cold": model is None,
            "looked_at": self._looked_at,
            "candidates": self._looked_at - len(self.project.pending()) + withdrawn,
            "open": ledger.counts()["unlabelled"] + withdrawn,
            "fit_seconds": round(self._fit_seconds, 3),
            "choose_seconds": round(self._choose_seconds, 3),
            "predicted": [],
        }
        if model is not None:
            notes |= self._forecast(model, self.project.rows([item.position for item in items]))
        return Round(
            number=len(self._rounds) + 1,
            at=now(),
            strategy=self._strategy,
            seed=self._seed,
            model="none" if model is None else MODEL_NAMES[self.project.task],
            data=self._fingerprint_of_data(),
            asked=asdict(self.request),
            labels=len(self._values),
            seconds=round(time.perf_counter() - self._began, 3),
            notes=notes,
            batch=tuple(items),
            residuals=self._residuals,
        )

    def commit(self, record: Round) -> None:
        """Write the round down, unless the ledger has changed since the model was fitted."""
        project = self.project
        with project.writing():
            if project.ledger.last_event() != self._last_event:
                raise BusyError("something was added to the project while a batch was chosen; try again")
            project.ledger.add_round(record, project.positions(self.request.exclude), self._withdrawn)

    def add(self, answers: Sequence[Answer]) -> AddedAnswers:
        return self.project.add(answers, self.source)

    # Choosing.

    def _candidates(self, cold: bool) -> Candidates:
        """Take a random sample of the open items, and those that are pending or must be included."""
        project, request = self.project, self.request
        states = project.ledger.states()
        states.update(dict.fromkeys(self._withdrawn, "unlabelled"))
        must_include, excluded = (project.positions(ids) for ids in (request.must_include, request.exclude))
        self._check_wishes(must_include, excluded, states)
        pending = [position for position, state in states.items() if state == "pending"]
        done = {position for position, state in states.items() if state not in ("pending", "unlabelled")}
        closed = done.union(excluded)
        is_open = np.ones(len(project.features), bool)
        is_open[[*closed, *pending]] = False
        open_items = self._sample(np.flatnonzero(is_open), cold)
        looked_at = np.unique([*open_items, *pending, *must_include]).astype(np.int64)
        if len(looked_at) == len(pending):
            raise NothingLeftError("every item of the pool has a label, is pending, skipped or excluded")
        return Candidates(looked_at, pending, must_include, closed)

    def _sample(self, items: Index, cold: bool) -> Index:
        """Draw as many items at random as are looked at, or take all."""
        most = min(self.request.candidates or len(items), limits.COLD_CANDIDATES if cold else len(items))
        if len(items) <= most:
            return items
        return np.random.default_rng(self._seed).choice(items, most, replace=False)

    def _check_wishes(
        self, must_include: Sequence[int], excluded: Sequence[int], states: dict[int, Any]
    ) -> None:
        """Raise for items that cannot be included, or cannot be excluded, as requested."""
        ids = self.project.ledger.ids
        for position in excluded:
            if states.get(position) == "labelled":
                raise InputError(f"item {ids([position])[0]!r} has a label and cannot be excluded")
        for position in must_include:
            state = "excluded" if position in excluded else states.get(position, "unlabelled")
            if state != "unlabelled":
                raise InputError(f"item {ids([position])[0]!r} must be included, but it is {state}")

    def _pick_here(self, model: Any | None, candidates: Candidates) -> tuple[Picked, Features]:
        """Choose in this process; also returns the features of the candidates."""
        looked_at = candidates.looked_at
        self._looked_at = len(looked_at)
        rows = self.project.rows(looked_at)
        wishes = self._limits(looked_at)
        pending = np.searchsorted(looked_at, candidates.pending).tolist()
        must_include = np.searchsorted(looked_at, candidates.must_include).tolist()
        size = self.request.batch_size
        size = min(size, len(looked_at) - len(pending)) if size else 128
        posterior, labelled = (None, None) if model is None else (model.posterior_, self._labelled_rows())
        ask = asker(rows, posterior, labelled, self._strategy, size, self._seed)
        picked = choose_within(ask, len(rows), wishes, pending, must_include)
        return picked._replace(rows=tuple(looked_at[list(picked.rows)].tolist())), rows

    def _pick_on_ray(self, model: Any | None, candidates: Candidates) -> tuple[Picked, Features]:
        """Choose on a cluster from all items; also returns the features of a random sample."""
        project, request = self.project, self.request
        if model is None or request.budget or request.per_group or request.must_include:
            raise InputError(
                "--engine ray chooses by a model and a number of items alone; leave out budgets, groups and "
                "fixed items, or the engine"
            )
        self._looked_at = len(project.features)
        room = len(candidates.looked_at) - len(candidates.pending)
        batch = select(
            project.folder / FEATURES,
            budget=min(request.batch_size or room, room),
            strategy=self._strategy,
            posterior=model.posterior_,
            labelled=self._labelled_rows(),
            pending=candidates.pending,
            exclude=sorted(candidates.closed),
            resources=Resources(engine="ray"),
            seed=self._seed,
        )
        weights, residuals = (
            None if values is None else tuple(values.tolist()) for values in (batch.weights, batch.residuals)
        )
        sample = np.random.default_rng(self._seed).integers(0, self._looked_at, limits.CANDIDATES)
        return Picked(tuple(batch.index.tolist()), weights, residuals), project.rows(sample)

    def _labelled_rows(self) -> Features:
        return self.project.rows([one.position for one in self._labelled])

    def _count_nearest(self, batch: Sequence[int], seen: Features) -> list[float]:
        """Estimate how many items of the pool are nearest to each item of the batch."""
        counts = np.bincount(nearest_of(seen, self.project.rows(batch)), minlength=len(batch))
        scaled: list[float] = (counts * len(self.project.features) / len(seen)).round(1).tolist()
        return scaled

    def _limits(self, looked_at: Index) -> Limits:
        pool, request = self.project.pool, self.request
        wishes = Limits(size=request.batch_size or math.inf)
        if request.budget is not None:
            costs = pool.costs
            if costs is None:
                raise InputError("--budget is in the unit of a cost column; name one with --cost at init")
            wishes.budget, wishes.costs = request.budget, costs[looked_at]
        if request.per_group is not None:
            groups = pool.groups
            if groups is None:
                raise InputError("--per-group needs a column of groups; name one with --group at init")
            wishes.per_group, wishes.groups = request.per_group, [groups[row] for row in looked_at]
        return wishes

    def _forecast(self, model: Any, rows: Features) -> dict[str, Any]:
        """Predict the labels of the batch, and forecast what these bring, in sentences and curves."""
        project, size = self.project, len(self.project.features)
        generator = np.random.default_rng(self._seed)
        sample = generator.choice(size, min(limits.POOL_SAMPLE, size), replace=False)
        carried = information(model.posterior_, project.rows(sample), rows, self._seed)
        made = forecast(
            self._labelled_rows(),
            self._values,
            np.array([one.round for one in self._labelled]),
            np.array(project.drawn_at_random(self._labelled)),
            project.task,
            batch_size=len(rows),
            information=carried,
            earlier=[(one.labels, *one.notes["gain"]) for one in self._rounds if one.notes.get("gain")],
            seed=self._seed,
        )
        labels: list[Prediction] = list(predicted(model, project.task, rows))
        if project.task == "regression":
            # Standard deviations would have to be calibrated first, which takes longer than all else here.
            labels = [(label, None) for label, _ in labels]
        of_batch, of_random = carried or (None, None)
        curves = {"curve": made.curve, "fitted": made.fitted, "random": made.random}
        return {
            "predicted": labels,
            "information": of_batch,
            "random_information": of_random,
            "gain": made.gain,
            "worth": list(made.sentences),
            "curves": {name: [astuple(point) for point in points] for name, points in curves.items()},
        }

    def _fingerprint_of_data(self) -> str:
        """The fingerprint of the pool and of the labels that the model was fitted to."""
        digest = hashlib.sha256(self.project.settings.fingerprint.encode())
        for one in self._labelled:
            digest.update(f"{one.position} {one.label}\n".encode())
        return digest.hexdigest()
