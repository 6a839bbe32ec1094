"""Choose a batch within limits: costs, groups, items that must be included."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from coresift import limits as sizes
from coresift.errors import InputError
from coresift.pool import as_pool
from coresift.posteriors.network import split_last_layer
from coresift.selection import select
from coresift.spaces.base import default_num_samples
from coresift.strategies import Strategy, find_strategy
from coresift.types import Batch, Floats, Index

# (how many, rows that count as taken, rows that cannot be taken) -> a batch of rows
Ask = Callable[[int, Sequence[int], Sequence[int]], Batch]


class Picked(NamedTuple):
    """Rows for a batch, in order."""

    rows: tuple[int, ...]
    weights: tuple[float, ...] | None = None  # None if the selector gives none, or limits cut its batch
    residuals: tuple[float, ...] | None = None  # those of the selector's steps, if it has any


@dataclass(eq=False)
class Limits:
    """The limits of a batch, and what is left of them as rows are taken."""

    size: float = math.inf  # the largest number of items
    budget: float = math.inf  # what they may cost together
    costs: Floats | None = None  # (n,) of the rows to choose from
    per_group: float = math.inf  # the largest number of items of one group
    groups: Sequence[str] | None = None  # (n,) of the rows to choose from
    taken: list[int] = field(default_factory=list, init=False)
    by_group: Counter[str | int] = field(default_factory=Counter, init=False)

    def has_room(self, row: int) -> bool:
        if len(self.taken) >= self.size or self.by_group[self._group(row)] >= self.per_group:
            return False
        cost = self._cost(row)
        # A little over is rounding: three times 0.1 is more than 0.3 to a computer.
        return cost <= self.budget + 1e-9 * cost

    def take_fitting(self, rows: Iterable[int]) -> None:
        """Take rows one after the other, and skip those that do not fit any more."""
        for row in rows:
            if self.has_room(row):
                self.taken.append(row)
                self.budget -= self._cost(row)
                self.by_group[self._group(row)] += 1

    def num_wanted(self, fitting: Sequence[int]) -> int:
        """How many rows to ask for next, of those that fit."""
        left = int(min(len(fitting), self.size - len(self.taken)))
        if left <= 0 or self.costs is None or math.isinf(self.budget):
            return left
        # As many as would use up the rest at the median price; what is too expensive is left out.
        return min(left, max(round(self.budget / float(np.median(self.costs[fitting]))), 1))

    def _cost(self, row: int) -> float:
        return 0.0 if self.costs is None else float(self.costs[row])

    def _group(self, row: int) -> str | int:
        """Without groups, each row is a group of its own."""
        return row if self.groups is None else self.groups[row]


def choose_within(
    ask: Ask, rows: int, limits: Limits, pending: Sequence[int], must_include: Sequence[int]
) -> Picked:
    """Choose some of so many rows for a batch, in order, until a limit is reached or nothing fits any more.

    Rows in ``pending`` are taken already, and those in ``must_include`` come first. A row that no longer fits
    when its turn comes is skipped, and the rest is chosen again around the rows taken so far.
    Therefore a batch keeps to its limits without being built row by row.
    """
    limits.take_fitting(must_include)
    if limits.taken != list(must_include):
        raise InputError("the items that must be included do not keep to the limits by themselves")
    weights, residuals = None, list[float]()
    while True:
        known = [*pending, *limits.taken]
        open_rows = np.setdiff1d(np.arange(rows), known)
        fitting = list(filter(limits.has_room, open_rows.tolist()))
        num = limits.num_wanted(fitting)
        if num <= 0:
            return Picked(tuple(limits.taken), weights, tuple(residuals) or None)
        batch = ask(num, known, np.setdiff1d(open_rows, fitting).tolist())
        residuals += [] if batch.residuals is None else batch.residuals.tolist()
        limits.take_fitting(batch.index.tolist())
        weights = _weights(batch, known, limits.taken)


def _weights(batch: Batch, pending: Sequence[int], taken: Sequence[int]) -> tuple[float, ...] | None:
    """The weights of all rows that were taken, if the selector's batch was taken completely."""
    chosen = batch.index.tolist()
    if batch.weights is None or not set(chosen) <= set(taken):
        return None
    weights = dict(zip(chosen, batch.weights.tolist(), strict=True))
    if batch.pending_weights is not None:
        weights |= zip(sorted(set(pending)), batch.pending_weights.tolist(), strict=True)
    return tuple(weights[row] for row in taken) if set(taken) <= weights.keys() else None


def asker(
    rows: npt.NDArray[np.float32],
    posterior: Any | None,
    labelled: npt.NDArray[np.float32] | None,
    strategy: str | Strategy,
    budget: int,
    seed: int,
) -> Ask:
    """Return a function that chooses among rows (n, d) repeatedly, with the space built once.

    ``labelled`` (m, d) are rows that have labels. The number of posterior samples grows with the ``budget``,
    which is the number of points wanted in all.
    """
    known = None if labelled is None else torch.as_tensor(labelled)
    head, pool, known = split_last_layer(posterior, as_pool(rows), known)
    original, spaces = find_strategy(strategy), list[Any]()

    def build(problem: Any) -> Any:
        if not spaces:
            spaces.append(original.build(problem))
        return spaces[0]

    num_samples = original.num_samples or default_num_samples(budget, head)
    once = replace(original, build=build, num_samples=num_samples)

    def ask(num: int, pending: Sequence[int], closed: Sequence[int]) -> Batch:
        return select(
            pool,
            budget=num,
            strategy=once,
            posterior=head,
            labelled=known,
            pending=pending,
            exclude=closed,
            seed=seed,
        )

    return ask


def nearest_of(
    rows: npt.NDArray[np.float32], centres: npt.NDArray[np.float32], block: int = sizes.ITEM_BLOCK
) -> Index:
    """(n,) the index of the centre (b, d) that is nearest to each row (n, d)."""
    others = torch.as_tensor(centres)
    blocks = (torch.as_tensor(rows[start : start + block]) for start in range(0, len(rows), block))
    return torch.cat([torch.cdist(some, others).argmin(1) for some in blocks]).numpy()
