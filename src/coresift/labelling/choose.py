"""From a model and candidates to a batch that keeps to what people ask for: costs, groups, fixed items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coresift.pool import as_pool
from coresift.posteriors.network import at_the_last_layer
from coresift.spaces.likelihood import default_num_samples
from coresift.strategies import Strategy, find_strategy, select
from coresift.types import Batch, Floats, Index, InputError

# (how many, what counts as taken, what cannot be taken) -> rows to take, in order
Ask = Callable[[int, Sequence[int], Sequence[int]], Batch]


@dataclass(frozen=True, eq=False)
class Limits:
    """What a batch must keep to.

    Attributes
    ----------
    size : how many items at most.
    budget : what they may cost together.
    costs : (n,) of the rows to choose from.
    per_group : how many items of one group.
    groups : (n,) of the rows to choose from.
    """

    size: int | None = None
    budget: float | None = None
    costs: Floats | None = None
    per_group: int | None = None
    groups: Sequence[str] | None = None


class _Room:
    """What is left of the limits as rows are taken."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.taken = limits, list[int]()
        self.money = np.inf if limits.budget is None else limits.budget
        self.by_group: Counter[str] = Counter()

    def has(self, row: int) -> bool:
        costs, groups, per_group = self.limits.costs, self.limits.groups, self.limits.per_group
        # A little over is rounding: three times 0.1 is more than 0.3 to a computer.
        if (
            costs is not None
            and self.limits.budget is not None
            and costs[row] > self.money + 1e-9 * costs[row]
        ):
            return False
        return per_group is None or groups is None or self.by_group[groups[row]] < per_group

    def take(self, row: int) -> None:
        self.taken.append(row)
        if self.limits.costs is not None:
            self.money -= self.limits.costs[row]
        if self.limits.groups is not None:
            self.by_group[self.limits.groups[row]] += 1

    def wanted(self, fitting: Sequence[int]) -> int:
        """How many rows to ask for next, of those that fit."""
        left = len(fitting)
        if self.limits.size is not None:
            left = min(left, self.limits.size - len(self.taken))
        if self.limits.budget is not None and self.limits.costs is not None and left > 0:
            # As many as would use the rest up at the usual price; what is too dear is passed over.
            usual = float(np.median(self.limits.costs[list(fitting)]))
            left = min(left, max(round(self.money / usual), 1))
        return left


def choose_within(
    ask: Ask, rows: int, limits: Limits, pending: Sequence[int], closed: Sequence[int], first: Sequence[int]
) -> list[int]:
    """Rows for a batch, in order, until a limit is reached or nothing fits any more.

    A row that no longer fits when its turn comes is passed over, and the rest is chosen anew around what was
    taken; so a batch keeps to its limits without being built row by row.

    Parameters
    ----------
    ask : the strategy.
    rows : how many there are.
    pending, closed : rows that are taken already, and that cannot be taken.
    first : rows that must be in the batch.
    """
    room = _Room(limits)
    for row in first:
        if not room.has(row) or len(room.taken) == limits.size:
            raise InputError("the items that must be included do not keep to the limits by themselves")
        room.take(row)
    while True:
        open_rows = np.setdiff1d(np.arange(rows), [*pending, *closed, *room.taken])
        fitting = [int(row) for row in open_rows if room.has(int(row))]
        num = room.wanted(fitting)
        if num <= 0:
            return room.taken
        others = np.setdiff1d(open_rows, fitting).tolist()
        for row in ask(num, [*pending, *room.taken], [*closed, *others]).index.tolist():
            if room.has(row) and (limits.size is None or len(room.taken) < limits.size):
                room.take(row)


def asker(
    rows: npt.NDArray[np.float32],
    posterior: Any | None,
    labelled: npt.NDArray[np.float32] | None,
    strategy: str | Strategy,
    budget: int,
    seed: int,
) -> Ask:
    """What chooses among rows (n, d) again and again, with the space built once.

    Parameters
    ----------
    labelled : (m, d) rows that have labels.
    budget : how many points are wanted in all; posterior samples grow with it.
    """
    known = None if labelled is None or len(labelled) == 0 else torch.as_tensor(labelled)
    head, pool, known = at_the_last_layer(posterior, as_pool(rows), known)
    original, kept = find_strategy(strategy), list[Any]()

    def build(problem: Any) -> Any:
        if not kept:
            kept.append(original.build(problem))
        return kept[0]

    once = replace(original, build=build)

    def ask(num: int, pending: Sequence[int], closed: Sequence[int]) -> Batch:
        return select(
            pool,
            budget=num,
            strategy=once,
            posterior=head,
            labelled=known,
            pending=pending,
            exclude=closed,
            num_samples=default_num_samples(budget),
            seed=seed,
        )

    return ask


def stands_for(rows: npt.NDArray[np.float32], batch: Sequence[int]) -> Index:
    """(n,) for each row (n, d), the place in the batch of the item of the batch that is nearest to it."""
    centres = torch.as_tensor(rows[list(batch)])
    parts = (torch.as_tensor(rows[start : start + 65536]) for start in range(0, len(rows), 65536))
    nearest = [torch.cdist(part, centres).argmin(1) for part in parts]
    return torch.cat(nearest).numpy()
