"""Choose a batch within limits: costs, groups, items that must be included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coresift import limits as sizes
from coresift.pool import as_pool
from coresift.posteriors.network import split_last_layer
from coresift.selection import select
from coresift.spaces.base import default_num_samples
from coresift.strategies import Strategy, find_strategy
from coresift.types import Batch, Floats, Index, InputError

# (how many, rows that count as taken, rows that cannot be taken) -> a batch of rows
Ask = Callable[[int, Sequence[int], Sequence[int]], Batch]


@dataclass(frozen=True, eq=False)
class Limits:
    """The limits of a batch.

    Attributes
    ----------
    size : the largest number of items.
    budget : what they may cost together.
    costs : (n,) the costs of the rows to choose from.
    per_group : the largest number of items of one group.
    groups : (n,) the groups of the rows to choose from.
    """

    size: int | None = None
    budget: float | None = None
    costs: Floats | None = None
    per_group: int | None = None
    groups: Sequence[str] | None = None


@dataclass(frozen=True)
class Picked:
    """Rows for a batch, in order.

    Attributes
    ----------
    weights : the selector's weight of each row; ``None`` if it has none, or limits cut its batch.
    residuals : those of the selector's steps, if it has any.
    """

    rows: tuple[int, ...]
    weights: tuple[float, ...] | None = None
    residuals: tuple[float, ...] | None = None


class _Room:
    """What is left of the limits as rows are taken."""

    def __init__(self, limits: Limits, rows: int) -> None:
        self.taken: list[int] = []
        self.size = rows if limits.size is None else limits.size
        self.costs = np.zeros(rows) if limits.costs is None else limits.costs
        self.money = np.inf if limits.budget is None else limits.budget
        # Without groups, each row is a group of its own.
        self.most = rows if limits.per_group is None else limits.per_group
        self.groups: Sequence[Any] = range(rows) if limits.groups is None else limits.groups
        self.by_group: Counter[Any] = Counter()

    def has(self, row: int) -> bool:
        # A little over is rounding: three times 0.1 is more than 0.3 to a computer.
        affordable = self.costs[row] <= self.money + 1e-9 * self.costs[row]
        has_group = self.by_group[self.groups[row]] < self.most
        return len(self.taken) < self.size and bool(affordable) and has_group

    def take(self, row: int) -> None:
        self.taken.append(row)
        self.money -= self.costs[row]
        self.by_group[self.groups[row]] += 1

    def wanted(self, fitting: Sequence[int]) -> int:
        """How many rows to ask for next, of those that fit."""
        left = min(len(fitting), self.size - len(self.taken))
        usual = float(np.median(self.costs[list(fitting)])) if left > 0 else 0.0
        # As many as would use up the rest at the median price; what is too expensive is left out.
        return min(left, max(round(self.money / usual), 1)) if usual > 0 and self.money < np.inf else left


def choose_within(
    ask: Ask, rows: int, limits: Limits, pending: Sequence[int], first: Sequence[int]
) -> Picked:
    """Choose rows for a batch, in order, until a limit is reached or nothing fits any more.

    A row that no longer fits when its turn comes is skipped, and the rest is chosen again around the rows
    taken so far. Therefore a batch keeps to its limits without being built row by row.

    Parameters
    ----------
    ask : the strategy.
    rows : the number of rows.
    pending : rows that are taken already.
    first : rows that must be in the batch.
    """
    room = _Room(limits, rows)
    for row in first:
        if not room.has(row):
            raise InputError("the items that must be included do not keep to the limits by themselves")
        room.take(row)
    last, before, residuals = None, list[int](), list[float]()
    while True:
        open_rows = np.setdiff1d(np.arange(rows), [*pending, *room.taken])
        fitting = [int(row) for row in open_rows if room.has(int(row))]
        num = room.wanted(fitting)
        if num <= 0:
            weights = None if last is None else _weights(last, [*pending, *before], room.taken)
            return Picked(tuple(room.taken), weights, tuple(residuals) or None)
        before = list(room.taken)
        last = ask(num, [*pending, *before], np.setdiff1d(open_rows, fitting).tolist())
        residuals += [] if last.residuals is None else last.residuals.tolist()
        for row in last.index.tolist():
            if room.has(row):
                room.take(row)


def _weights(last: Batch, pending: Sequence[int], taken: Sequence[int]) -> tuple[float, ...] | None:
    """The weights of all rows that were taken, if the selector's last batch was taken completely."""
    if last.weights is None or not set(last.index.tolist()) <= set(taken):
        return None
    weights = dict(zip(last.index.tolist(), last.weights.tolist(), strict=True))
    if last.pending_weights is not None:
        weights |= dict(zip(sorted(set(pending)), last.pending_weights.tolist(), strict=True))
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

    Parameters
    ----------
    labelled : (m, d) rows that have labels.
    budget : the number of points wanted in all; the number of posterior samples grows with it.
    """
    known = None if labelled is None or len(labelled) == 0 else torch.as_tensor(labelled)
    head, pool, known = split_last_layer(posterior, as_pool(rows), known)
    original, spaces = find_strategy(strategy), list[Any]()

    def build(problem: Any) -> Any:
        if not spaces:
            spaces.append(original.build(problem))
        return spaces[0]

    num_samples = original.num_samples or default_num_samples(budget)
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
