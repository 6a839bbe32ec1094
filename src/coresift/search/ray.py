"""A pool in shards: each lies with an actor of a Ray cluster, as vectors that never leave it.

The driver runs the selectors as they are, on a space that asks the shards. What travels in a step is a
direction or a centre of D numbers to each shard, and from each its best point or its clusters' sums.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coresift import limits
from coresift.errors import InputError
from coresift.pool import import_ray
from coresift.search.base import (
    CentreDistances,
    CosineSearch,
    centre_distances,
    cosine_search,
    label_gains,
    where_reached,
)
from coresift.search.cpu import TIED
from coresift.search.gains import Near, Roots, TableGains, Update
from coresift.search.shards import Found, Shards, StrategyLike, Summary, as_mask, as_tensor
from coresift.spaces.base import Problem, norm_sum, selectable
from coresift.spaces.vectors import ColumnSpace
from coresift.types import Batch, Floats, Index

_QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}


def select_on_ray(
    strategy: StrategyLike,
    problem: Problem,
    budget: int,
    pending: Iterable[int] = (),
    exclude: Iterable[int] = (),
    *,
    num_workers: int | None = None,
) -> Batch:
    """Choose ``budget`` points of ``problem.pool``, of which each worker maps and searches a part.

    Joins the cluster that runs, or that ``RAY_ADDRESS`` names; otherwise starts one on this machine, which is
    left for the next call. The batch is the one that is chosen in memory. A worker that dies is replaced.

    Parameters
    ----------
    problem : with a network's posterior as it is: the workers apply the network themselves.
    num_workers : how many parts; by default one for each CPU of the cluster.
    """
    with ray_space(strategy, problem, num_workers) as space:
        batch: Batch = strategy.selector.select(
            space, budget, pending=pending, exclude=exclude, seed=problem.generator
        )
        return batch


@contextmanager
def ray_space(strategy: StrategyLike, problem: Problem, num_workers: int | None = None) -> Iterator[RaySpace]:
    """The space of a strategy, in the hands of workers that are let go at the end.

    ``problem.generator`` is left in the state that building the space in memory leaves it in.
    """
    _connect()
    shards = Shards(strategy, problem, num_workers)
    try:
        yield RaySpace(shards, problem.generator, problem.target is not None)
    finally:
        shards.close()


def _connect() -> None:
    """Join a cluster, or start one on this machine; nothing where that is done already."""
    ray = import_ray()
    if ray.is_initialized():
        return
    try:
        ray.init(address="auto", **_QUIET)
    except ConnectionError:
        if os.environ.get("RAY_ADDRESS"):
            raise
        start_on_this_machine(os.cpu_count())


def start_on_this_machine(num_cpus: int | None) -> None:
    """Start a cluster that only this machine can reach: all its sockets listen on the loopback address.

    Ray runs code for whoever reaches it. On Linux it takes an address that other machines see, whatever
    ``_node_ip_address`` says, unless clusters of several machines are turned off. That is an environment
    variable's matter, read when Ray is imported: too early to know that there is no cluster to join.
    """
    ray = import_ray()
    from ray._private import ray_constants

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        ray.init(address="local", num_cpus=num_cpus, include_dashboard=False, **_QUIET)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


class RaySpace(ColumnSpace):
    """The space of all shards, as the driver sees it.

    Parameters
    ----------
    generator : set to the state in which the shards leave it.
    same_target : whether all shards have the same target, and not each its own points.
    """

    def __init__(self, shards: Shards, generator: torch.Generator, same_target: bool = False) -> None:
        self.shards, self.same_target = shards, same_target
        each: list[Summary] = shards.ask("build")
        # One unit for all, that of the shard with the largest norm, as if the pool were in one place.
        norms = [math.log2(one.largest) + math.log2(one.scale) if one.largest else -math.inf for one in each]
        first = each[norms.index(max(norms))]
        self.scale = first.scale
        if any(one.scale != first.scale for one in each):
            shards.scale = unit = first.scale, first.largest
            each = shards.ask("rescale", lambda _: unit)
        self._total = sum((as_tensor(one.total) for one in each[1:]), as_tensor(each[0].total))
        self.norm_sum = sum(one.norm_sum for one in each)
        sizes = np.diff(shards.starts).tolist()
        masks = [as_mask(one.selectable, size) for one, size in zip(each, sizes, strict=True)]
        self.selectable = torch.cat(masks)
        self._blocks = [one.blocks for one in each]
        self.resolution, self.additive = each[0].resolution, each[0].additive
        generator.set_state(as_tensor(each[0].state))
        # Vectors of points that were found or asked for.
        self._kept: dict[int, Floats] = {}

    def __len__(self) -> int:
        return int(self.shards.starts[-1])

    @property
    def norms(self) -> Tensor:  # type: ignore[override]
        raise InputError(
            "the norms of all points stay with the workers of a cluster, so that a selector that reads "
            "Space.norms cannot choose there; run this strategy without engine='ray'"
        )

    def total(self) -> Tensor:
        return self._total

    def remember(self, n: int, column: npt.NDArray[Any]) -> None:
        """Keep a vector (D, 1) that came along with an answer: it will be asked for."""
        self._kept[n] = column[:, 0].astype(np.float64)

    def best(self, answers: list[Found], tied: float = 0.0) -> Tensor:
        """The point of the largest value that shards found, and the first of equal ones; -1 for no point."""
        largest, best = -math.inf, -1
        for start, (value, n, column) in zip(self.shards.starts.tolist(), answers, strict=False):
            if n >= 0 and value > largest + tied:
                largest, best, vector = value, start + n, column
        if best >= 0:
            self.remember(best, vector)
        return torch.tensor(best)

    def columns_at(self, index: Tensor) -> Tensor:
        wanted: Index = index.numpy()
        found = np.empty((len(self._total), len(wanted)))
        missing = np.array([n not in self._kept for n in wanted.tolist()], dtype=bool)
        for number, (own, local) in enumerate(self.shards.split(wanted[missing])):
            if len(local):
                found[:, missing.nonzero()[0][own]] = self.shards.ask_one(number, "columns", local)
        for position in (~missing).nonzero()[0].tolist():
            found[:, position] = self._kept[int(wanted[position])]
        if len(wanted) <= limits.KEPT_VECTORS:
            self._kept.update({n: found[:, position].copy() for position, n in enumerate(wanted.tolist())})
        return torch.from_numpy(found)

    def inner(self, element: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for number, blocks in enumerate(self._blocks):
            start = int(self.shards.starts[number])
            for block, size in enumerate(blocks):
                values = self.shards.ask_one(number, "inner", element.numpy(), block)
                yield slice(start, start + size), as_tensor(values)
                start += size


@norm_sum.register
def _(space: RaySpace) -> float:
    return space.norm_sum


@selectable.register
def _(space: RaySpace) -> Tensor:
    return space.selectable.clone()


class _RaySearch(CosineSearch):
    """Asks all shards at once for their best points.

    Shards have a copy of the mask of open points; what changes in it goes along with the next question.
    """

    space: RaySpace

    def __init__(self, space: RaySpace, open: Tensor) -> None:
        self.space, self._shards, self._open = space, space.shards, open.clone()
        self._changed: set[int] = set()
        self._shards.begin(self._state)

    def _state(self, number: int) -> tuple[str, tuple[Any, ...]]:
        start, stop = self._shards.ranges()[number]
        return "start_search", (np.packbits(self._open[start:stop].numpy()),)

    def close(self, index: Tensor) -> None:
        index = index[index >= 0]
        self._open[index] = False
        self._changed.update(index.reshape(-1).tolist())

    def reopen(self, index: Tensor) -> None:
        self._open[index] = True
        self._changed.update(index.tolist())

    def argmax(self, element: Tensor, orthogonal_to: Tensor | None = None) -> Tensor:
        if self._shards.state != self._state:  # another search has asked meanwhile
            self._shards.begin(self._state)
        changed = np.array(sorted(self._changed), dtype=np.int64)
        open = self._open[torch.from_numpy(changed)].numpy()
        told = [(local, open[own]) for own, local in self._shards.split(changed)]
        other = None if orthogonal_to is None else orthogonal_to.numpy()
        answers = self._shards.ask("best", lambda number: (element.numpy(), other, *told[number]))
        self._changed.clear()
        return self.space.best(answers, TIED)


class _RayDistances(CentreDistances):
    """Distances that stay with their shards; the driver adds up the sums and compares what each finds.

    The centres are kept here, for a shard that has to begin anew.
    """

    def __init__(self, space: RaySpace, open: Tensor, pending: Index, budget: int) -> None:
        self.space, self._open, self._shards = space, open.clone(), space.shards
        self._pending = len(pending)
        columns = space.columns_at(torch.from_numpy(pending)).numpy()
        self._centres: list[Floats] = list(columns.T)
        self._sums = torch.from_numpy(np.sum(self._shards.begin(self._state), 0))
        # Of all shards, for draws: known only if asked for, and then along with the sums from there on.
        self._weights: list[float] | None = None

    def _state(self, number: int) -> tuple[str, tuple[Any, ...]]:
        start, stop = self._shards.ranges()[number]
        centres = np.array(self._centres).reshape(len(self._centres), len(self.space.total()))
        return "start_distances", (np.packbits(self._open[start:stop].numpy()), centres, self._pending)

    def add(self, n: Tensor) -> None:
        if int(n) < 0:
            return
        centre: Floats = self.space.vector(int(n)).numpy()
        weigh = self._weights is not None
        answers = self._shards.ask("add", lambda _: (centre, weigh))
        # Only now: a shard that was built anew meanwhile has been asked to add it, too.
        self._centres.append(centre)
        self._sums = torch.from_numpy(np.sum([sums for sums, _ in answers], 0))
        self._weights = [weight for _, weight in answers] if weigh else None

    def farthest(self, cluster: Tensor | None = None) -> Tensor:
        number = None if cluster is None else int(cluster)
        return self.space.best(self._shards.ask("farthest", lambda _: (number,)))

    def draw(self, share: float) -> Tensor:
        if self._weights is None:
            self._weights = self._shards.ask("weight")
        weights = torch.tensor(self._weights, dtype=torch.float64)
        level = share * float(weights.sum())
        chosen = where_reached(weights, level)
        if chosen < 0:
            return torch.tensor(-1)
        left = (level - float(weights[:chosen].sum())) / float(weights[chosen])
        n, vector = self._shards.ask_one(chosen, "draw", min(max(left, 0.0), 1.0))
        best = int(self._shards.starts[chosen] + n)
        self.space.remember(best, vector)
        return torch.tensor(best)

    def radius(self) -> float:
        return float(max(self._shards.ask("radius")))


class _RayTable:
    """The two numbers of each point that `TableGains` needs; they stay with their shards.

    What happened since they were computed is kept here, for a shard that has to begin anew.
    """

    def __init__(self, space: RaySpace, open: Tensor) -> None:
        self._shards, self._open = space.shards, open.clone()
        self._changed: set[int] = set()

    def _state(self, number: int) -> tuple[str, tuple[Any, ...]]:
        start, stop = self._shards.ranges()[number]
        bits = np.packbits(self._open[start:stop].numpy())
        return "start_gains", (bits, self._roots, self._changes)

    def refresh(self, roots: Roots) -> None:
        self._roots, self._changes = roots, list[Update]()
        self._shards.begin(self._state)

    def update(self, change: Update) -> None:
        self._shards.ask("label", lambda _: (change,))
        self._changes.append(change)

    def near(self) -> Near:
        changed = np.array(sorted(self._changed), dtype=np.int64)
        open = self._open[torch.from_numpy(changed)].numpy()
        told = [(local, open[own]) for own, local in self._shards.split(changed)]
        answers: list[Near] = self._shards.ask("near", lambda number: told[number])
        self._changed.clear()
        starts = self._shards.starts.tolist()
        index = torch.cat([near.points + start for near, start in zip(answers, starts, strict=False)])
        columns = torch.cat([near.columns for near in answers], 1)
        return Near(index, torch.cat([near.gains for near in answers]), columns)

    def set_open(self, index: Tensor, open: bool) -> None:
        self._open[index] = open
        self._changed.update(index.reshape(-1).tolist())


def _label_gains(space: RaySpace, open: Tensor, pending: Index) -> TableGains:
    moments: list[Tensor] = space.shards.ask("moment")
    moment = moments[0] if space.same_target else torch.stack(moments).sum(0)
    return TableGains(space, _RayTable(space, open), moment, pending)


cosine_search.register(RaySpace, _RaySearch)
label_gains.register(RaySpace, _label_gains)
centre_distances.register(RaySpace, _RayDistances)
