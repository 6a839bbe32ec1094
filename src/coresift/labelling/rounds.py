"""The next round of a project: the ring of `coresift.loop` with a ledger in it."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from coresift import limits
from coresift.errors import InputError
from coresift.labelling.answers import BatchFile
from coresift.labelling.choose import Limits, Picked, asker, choose_within, nearest_of
from coresift.labelling.forecast import forecast, information
from coresift.labelling.ledger import Ingested, now
from coresift.labelling.model import MODEL_NAMES, predicted
from coresift.labelling.opened import OpenProject
from coresift.labelling.records import Answer, Chosen, Round
from coresift.labelling.settings import NothingLeftError, Request
from coresift.labelling.storage import FEATURES, BusyError
from coresift.loop import ask_next
from coresift.selection import Resources, select
from coresift.types import Index

Features: TypeAlias = npt.NDArray[np.float32]  # (n, d)

# Without a model, items are chosen by their features alone, in the middle of clusters: unusual items teach a
# first model little.
COLD = "k-medoids"


@dataclass(frozen=True, eq=False)
class Candidates:
    """The items that a batch is chosen from, by their positions.

    Attributes
    ----------
    looked_at : (n,) ascending; those pending and those that must be included are among them.
    pending : items that count as taken.
    first : items that must be in the batch.
    closed : items that cannot be chosen.
    """

    looked_at: Index
    pending: list[int]
    first: list[int]
    closed: set[int]


class NextBatch:
    """What a project asks next, as a `Learner`; each `fit` begins a round from what the ledger says then.

    Parameters
    ----------
    withdraw : open all items that are pending, and choose anew.
    source : where answers come from, for `add`.
    """

    def __init__(
        self, project: OpenProject, request: Request, *, withdraw: bool = False, source: str = "answers"
    ) -> None:
        self.project, self.request = project, request
        self.withdraw, self.source = withdraw, source

    def pending(self) -> list[Chosen]:
        return [] if self.withdraw else self.project.pending()

    def fit(self) -> Any | None:
        """Fit the model to all labels; ``None`` where these are too few to learn from."""
        ledger = self.project.ledger
        self._began = time.perf_counter()
        self._last_event, self._rounds = ledger.last_event(), ledger.rounds()
        pending = ledger.pending() if self.withdraw else []
        self._withdrawn = [item.position for _, item in pending]
        gone = Counter({number: len(items) for number, items in ledger.withdrawn().items()})
        gone.update(number for number, _ in pending)
        # Withdrawn batches do not count, so that the same command gives the same batch after them.
        turn = 1 + sum(gone[one.number] < len(one.batch) for one in self._rounds)
        entropy = [self.project.settings.seed, turn]
        self._seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        self._labelled, self._values = self.project.labels()
        model = self.project.fit()
        self._fit_seconds = time.perf_counter() - self._began
        return model

    def choose(self, model: Any | None) -> list[Chosen]:
        """Choose items; raises `NothingLeftError` where there are none."""
        cold = model is None and self.request.strategy != "random"
        self._strategy = COLD if cold else self.request.strategy
        candidates = self._candidates(cold)
        if self.request.engine is None:
            picked, seen = self._pick_here(model, candidates)
        else:
            picked, seen = self._pick_on_ray(model, candidates)
        if not picked.rows:
            raise NothingLeftError("there is nothing left to choose within these limits")
        self._residuals = picked.residuals
        self._choose_seconds = time.perf_counter() - self._began - self._fit_seconds
        nearest = self._count_nearest(picked.rows, seen)
        weights = picked.weights or [None] * len(picked.rows)
        ids = self.project.ledger.ids(picked.rows)
        return [
            Chosen(position, id_, rank, weight, count)
            for rank, (position, id_, weight, count) in enumerate(
                zip(picked.rows, ids, weights, nearest, strict=True), 1
            )
        ]

    def look(self, model: Any | None, items: Sequence[Chosen]) -> Round:
        """Say what the batch is worth, and describe the round."""
        positions = [item.position for item in items]
        notes = {
            "cold": model is None,
            "looked_at": self._looked_at,
            "candidates": self._looked_at - len(self.project.pending()) + len(self._withdrawn),
            "open": self.project.ledger.counts()["unlabelled"] + len(self._withdrawn),
            "fit_seconds": round(self._fit_seconds, 3),
            "choose_seconds": round(self._choose_seconds, 3),
            "predicted": [] if model is None else self._expected(model, positions),
            **({} if model is None else self._forecast(model, positions)),
        }
        return Round(
            number=len(self._rounds) + 1,
            at=now(),
            strategy=self._strategy,
            seed=self._seed,
            model="none" if model is None else MODEL_NAMES[self.project.task],
            data=self._fingerprint(),
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

    def add(self, answers: Sequence[Answer]) -> Ingested:
        return self.project.add(answers, self.source)

    # Choosing.

    def _candidates(self, cold: bool) -> Candidates:
        """Look at the open items, of many at a random part, and at those pending or to be included."""
        project, request = self.project, self.request
        states = project.ledger.states()
        states.update(dict.fromkeys(self._withdrawn, "unlabelled"))
        first, excluded = (project.positions(ids) for ids in (request.must_include, request.exclude))
        self._check_wishes(first, excluded, states)
        pending = [position for position, state in states.items() if state == "pending"]
        closed = {position for position, state in states.items() if state not in ("pending", "unlabelled")}
        closed.update(excluded)
        is_open = np.ones(len(project.features), bool)
        is_open[[*closed, *pending]] = False
        open_items = np.flatnonzero(is_open)
        most = request.candidates
        if cold:
            most = min(most or limits.COLD_CANDIDATES, limits.COLD_CANDIDATES)
        if most is not None and len(open_items) > most:
            open_items = np.random.default_rng(self._seed).choice(open_items, most, replace=False)
        looked_at = np.unique(np.array([*open_items, *pending, *first], np.int64))
        if len(looked_at) == len(pending):
            raise NothingLeftError("every item of the pool has a label, is pending, skipped or excluded")
        return Candidates(looked_at, pending, first, closed)

    def _check_wishes(self, first: Sequence[int], excluded: Sequence[int], states: dict[int, Any]) -> None:
        """Raise for items that must be included, or excluded, and cannot."""
        ids = self.project.ledger.ids
        for position in excluded:
            if states.get(position) == "labelled":
                raise InputError(f"item {ids([position])[0]!r} has a label and cannot be excluded")
        for position in first:
            state = "excluded" if position in excluded else states.get(position, "unlabelled")
            if state != "unlabelled":
                raise InputError(f"item {ids([position])[0]!r} must be included, but it is {state}")

    def _pick_here(self, model: Any | None, candidates: Candidates) -> tuple[Picked, Features]:
        """Choose in this process; returns the features of what was looked at as well."""
        project, request, looked_at = self.project, self.request, candidates.looked_at
        self._looked_at = len(looked_at)
        rows = project.rows(looked_at)
        wishes = self._limits(looked_at)
        pending, first = (
            np.searchsorted(looked_at, positions).tolist()
            for positions in (candidates.pending, candidates.first)
        )
        labelled = None if model is None else project.rows([one.position for one in self._labelled])
        size = min(request.batch_size, len(looked_at) - len(pending)) if request.batch_size else 128
        posterior = None if model is None else model.posterior_
        ask = asker(rows, posterior, labelled, self._strategy, size, self._seed)
        picked = choose_within(ask, len(rows), wishes, pending, first)
        positions = tuple(looked_at[list(picked.rows)].tolist())
        return Picked(positions, picked.weights, picked.residuals), rows

    def _pick_on_ray(self, model: Any | None, candidates: Candidates) -> tuple[Picked, Features]:
        """Choose on a cluster, from all items; returns the features of a random part of them as well."""
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
            labelled=project.rows([one.position for one in self._labelled]),
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

    def _count_nearest(self, batch: Sequence[int], seen: Features) -> list[float]:
        """About how many items of the pool are nearest to each of the batch."""
        counts = np.bincount(nearest_of(seen, self.project.rows(batch)), minlength=len(batch))
        scaled: list[float] = (counts * len(self.project.features) / len(seen)).round(1).tolist()
        return scaled

    def _limits(self, looked_at: Index) -> Limits:
        pool, request = self.project.pool, self.request
        costs = groups = None
        if request.budget is not None:
            costs = pool.costs()
            if costs is None:
                raise InputError("--budget is in the unit of a cost column; name one with --cost at init")
            costs = costs[looked_at]
        if request.per_group is not None:
            all_groups = pool.groups()
            if all_groups is None:
                raise InputError("--per-group needs a column of groups; name one with --group at init")
            groups = [all_groups[position] for position in looked_at]
        return Limits(request.batch_size, request.budget, costs, request.per_group, groups)

    # What is kept of a round.

    def _expected(self, model: Any, positions: Sequence[int]) -> list[tuple[str, float | None]]:
        """The predicted label of each item when it was chosen, and for classes its probability."""
        task = self.project.task
        # Standard deviations would have to be calibrated first, which takes longer than all else here.
        return [
            (label, None if task == "regression" else probability)
            for label, probability in predicted(model, task, self.project.rows(positions))
        ]

    def _forecast(self, model: Any, positions: Sequence[int]) -> dict[str, Any]:
        """What the batch is worth, in words and curves."""
        project, size = self.project, len(self.project.features)
        generator = np.random.default_rng(self._seed)
        sample = generator.choice(size, min(limits.POOL_SAMPLE, size), replace=False)
        carried = information(model.posterior_, project.rows(sample), project.rows(positions), self._seed)
        made = forecast(
            project.rows([one.position for one in self._labelled]),
            self._values,
            np.array([one.round for one in self._labelled]),
            np.array(project.drawn_at_random(self._labelled)),
            project.task,
            batch_size=len(positions),
            information=carried,
            earlier=[(one.labels, *one.notes["gain"]) for one in self._rounds if one.notes.get("gain")],
            seed=self._seed,
        )
        of_batch, of_random = carried or (None, None)
        return {
            "information": of_batch,
            "random_information": of_random,
            "gain": made.gain,
            "worth": list(made.sentences),
            "curves": {
                name: [astuple(point) for point in getattr(made, name)]
                for name in ("curve", "fitted", "random")
            },
        }

    def _fingerprint(self) -> str:
        """Of the pool and of the labels."""
        digest = hashlib.sha256(self.project.settings.fingerprint.encode())
        for one in self._labelled:
            digest.update(f"{one.position} {one.label}\n".encode())
        return digest.hexdigest()


def next_round(
    project: OpenProject, request: Request, *, more: bool, out: Path | None, replace: bool
) -> tuple[Round, bool]:
    """Choose the next batch and write it down; tells as well whether it is the last one again.

    Asked the same twice with nothing new between, it gives the same batch, and nothing is chosen twice. Asked
    for something else while items are pending and no answer came in, it raises an `InputError`.

    Parameters
    ----------
    more : choose a further batch, even though nothing came in since the last.
    out : a CSV file for the batch. Where it cannot be written, nothing is chosen.
    replace : withdraw all items that are pending, and choose anew.
    """
    if more and replace:
        raise InputError("--more keeps the items that are pending, --replace withdraws them; say one")
    labeller = _Nobody() if out is None else BatchFile(project, out)
    last = None if more else _asked_before(project, request, replace)
    if last is not None:
        labeller.ask(last.batch, lambda: None)
        return last, True
    if not (more or replace):
        _check_pending(project)
    return ask_next(NextBatch(project, request, withdraw=replace), labeller), False


def _asked_before(project: OpenProject, request: Request, replace: bool) -> Round | None:
    """The last round, if it was asked for with the same request and nothing happened since."""
    rounds = project.ledger.rounds()
    if not rounds or rounds[-1].asked != json.loads(json.dumps(asdict(request))):
        return None
    last = rounds[-1]
    if replace and any(number != last.number for number, _ in project.ledger.pending()):
        return None
    return last if project.ledger.nothing_since(last.number) else None


def _check_pending(project: OpenProject) -> None:
    """Raise where items are pending and no answer came in since the last batch."""
    pending = project.pending()
    if not pending or project.ledger.answers_since(project.ledger.rounds()[-1].number):
        return
    items = "1 item is" if len(pending) == 1 else f"{len(pending):,} items are"
    raise InputError(
        f"{items} pending already, and no answer came in since the last batch; --more chooses further items, "
        f"--replace withdraws the pending ones and chooses anew, and coresift pending {project.folder} lists "
        "them"
    )


class _Nobody:
    """The labeller of a batch that is only written down; somebody is told of it later."""

    def ask(self, items: Sequence[Chosen], commit: Callable[[], None]) -> None:
        commit()

    def collect(self, add: Callable[[Sequence[Answer]], Any]) -> None:
        """There is nothing to collect."""
