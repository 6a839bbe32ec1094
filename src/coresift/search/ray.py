"""A pool in shards: each lies with an actor of a Ray cluster, as vectors that never leave it.

The driver runs the selectors as they are, on a space that asks the shards. What travels in a step is a
direction or a centre of J numbers to each shard, and from each its best point or its clusters' sums.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coresift.checks import check_integer
from coresift.limits import POOL_BLOCK
from coresift.pool import Part
from coresift.pool.dataset import import_ray
from coresift.posteriors.network import split_last_layer
from coresift.search.base import CentreDistances, CosineSearch, centre_distances, cosine_search
from coresift.search.cpu import TIED, VectorSearch
from coresift.search.cpu_distances import VectorDistances
from coresift.spaces.base import norm_sum, selectable
from coresift.spaces.problem import Problem
from coresift.spaces.vectors import ColumnSpace, VectorSpace
from coresift.types import Batch, Floats, Index, InputError

# How often a shard is built again before its loss counts as final.
_ATTEMPTS = 4
_QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}
# Points asked for together that are kept: those chosen come back again and again, long lists do not.
_FEW = 64

Bits: TypeAlias = npt.NDArray[np.uint8]


class Strategy(Protocol):
    """What is needed of a strategy: it must store vectors that are made point by point."""

    @property
    def build(self) -> Callable[[Problem], Any]: ...

    @property
    def selector(self) -> Any: ...


def select_on_ray(
    strategy: Strategy,
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
def ray_space(strategy: Strategy, problem: Problem, num_workers: int | None = None) -> Iterator[RaySpace]:
    """The space of a strategy, in the hands of workers that are let go at the end.

    ``problem.generator`` is left in the state that building the space in memory leaves it in.
    """
    _connect()
    shards = Shards(strategy, problem, num_workers)
    try:
        yield RaySpace(shards, problem.generator)
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


@dataclass(frozen=True)
class Summary:
    """What the driver needs to know of a shard.

    Attributes
    ----------
    total : (J,) the sum of its vectors.
    selectable : (n,) bool, eight to a byte.
    blocks : how many columns each of its blocks has.
    scale : the unit of its vectors.
    largest : the largest norm, in that unit.
    state : of the generator, once the space is built.
    """

    total: Floats
    norm_sum: float
    selectable: Bits
    blocks: list[int]
    resolution: float
    additive: bool
    scale: float
    largest: float
    state: Bits


class Shard:
    """An actor: the vectors of a part of the pool, and what is kept for each of its points.

    Points are known by their position in the shard here; distances that leave it have the vectors' own unit.

    Parameters
    ----------
    build : makes the space, as in memory.
    problem : without pool and generator.
    part : the pool's rows that are this shard's.
    state : of the generator; the same in all shards, so that they draw the same theta.
    threads : for torch.
    """

    def __init__(
        self,
        build: Callable[[Problem], Any],
        problem: Problem,
        part: Part,
        state: Bits,
        threads: int,
    ) -> None:
        self._recipe = build, problem, part, state
        torch.set_num_threads(threads)

    def answer(self, question: bytes) -> bytes:
        """Call a method; arrays in plain bytes are sooner there than as objects of Ray's."""
        method, arguments = pickle.loads(question)
        return pickle.dumps(getattr(self, method)(*arguments))

    def build(self) -> Summary:
        """Read the rows and map them."""
        build, problem, part, state = self._recipe
        generator = torch.Generator()
        generator.set_state(_tensor(state))
        posterior, pool, labelled = split_last_layer(problem.model, part, problem.labelled, problem.memory)
        space = build(replace(problem, pool=pool, model=posterior, labelled=labelled, generator=generator))
        if not isinstance(space, VectorSpace):
            raise InputError(
                "this posterior has a closed form, which needs the pool in one place; "
                "pass exact=False to sample it"
            )
        self.space, self._state = space, generator.get_state().numpy()
        return self._summary()

    def rescale(self, scale: float, largest: float) -> Summary:
        """Measure the vectors in the unit of the shard that holds the ``largest`` norm."""
        self.space.rescale(math.frexp(scale)[1] - math.frexp(self.space.scale)[1], largest)
        return self._summary()

    def _summary(self) -> Summary:
        space = self.space
        return Summary(
            space.total().numpy(),
            norm_sum(space),
            np.packbits(selectable(space).numpy()),
            [part.stop - part.start for part in space.columns.parts()],
            space.resolution,
            space.additive,
            space.scale,
            space.largest,
            self._state,
        )

    def process(self) -> int:
        """The number of the process."""
        return os.getpid()

    def usage(self) -> tuple[float, float]:
        """Seconds that the process has computed for, and the most memory that it ever held, in GB."""
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6

    def columns(self, index: Index) -> npt.NDArray[Any]:
        """(J, k) the vectors of some points, as they are stored."""
        found: npt.NDArray[Any] = self.space.columns.at(_tensor(index)).cpu().numpy()
        return found

    def inner(self, element: Floats, block: int) -> Floats:
        """(..., n) inner products with the vectors of a block."""
        columns = self.space.columns
        part = slice(block * columns.block, min((block + 1) * columns.block, len(columns)))
        direction, length = self.space.direction(_tensor(element))
        values: Floats = (direction @ columns.part(part)).cpu().double().mul_(length).numpy()
        return values

    def start_search(self, open: Bits) -> None:
        """Get ready to search among the points of a mask."""
        self._search = VectorSearch(self.space, _mask(open, len(self.space)))

    def best(
        self, element: Floats, beside: Floats | None, changed: Index, open: npt.NDArray[np.bool_]
    ) -> tuple[float, int, npt.NDArray[Any]]:
        """What `VectorSearch.best` finds, with its vector. First, some points are opened or closed."""
        self._search.close(_tensor(changed[~open]))
        self._search.reopen(_tensor(changed[open]))
        cosine, n = self._search.best(_tensor(element), None if beside is None else _tensor(beside))
        return cosine, n, self.columns(np.array([n][: n >= 0], np.int64))

    def start_distances(self, open: Bits, centres: Floats, pending: int) -> Floats:
        """Distances to centres (k, J), ``pending`` of them there from the start; the sums of all clusters."""
        mask, nothing, elements = _mask(open, len(self.space)), np.empty(0, np.int64), _tensor(centres)
        self._distances = VectorDistances(self.space, mask, nothing, 0, True, elements[:pending])
        for element in elements[pending:]:
            self._distances.add_elements(element[None])
        return self._sums()

    def add(self, centre: Floats, weigh: bool) -> tuple[Floats, float | None]:
        """Add a centre (J,); the sums of all clusters, and the `weight`."""
        self._distances.add_elements(_tensor(centre)[None])
        return self._sums(), self.weight() if weigh else None

    def _sums(self) -> Floats:
        sums: Floats = (self._distances.sums * self._distances.unit**2).numpy()
        return sums

    def farthest(self, cluster: int | None) -> tuple[float, int, npt.NDArray[Any]] | None:
        """Squared distance, index and vector of what `CentreDistances.farthest` finds."""
        n = int(self._distances.farthest(None if cluster is None else torch.tensor(cluster)))
        return None if n < 0 else (self._distances.distance_at(n), n, self.columns(np.array([n])))

    def weight(self) -> float:
        """The sum of the squared distances of points that may be chosen."""
        return self._distances.weight() * self._distances.unit**2

    def draw(self, share: float) -> tuple[int, npt.NDArray[Any]]:
        """Index and vector of what `CentreDistances.draw` finds."""
        n = int(self._distances.draw(share))
        return n, self.columns(np.array([n]))

    def radius(self) -> float:
        """The largest distance of any point to its nearest centre."""
        return self._distances.radius()


class Shards:
    """The driver's hold on the actors: asks all at once, and builds anew those that are lost.

    Attributes
    ----------
    starts : (W + 1,) where the shards begin in the pool, and its size.
    state : what an actor is told after it was built anew: method and arguments, for a shard's number.
    scale : the unit of all vectors and the largest norm, where not all shards have the same unit by
        themselves.
    """

    scale: tuple[float, float] | None = None

    def __init__(self, strategy: Strategy, problem: Problem, num_workers: int | None) -> None:
        self._ray = import_ray()
        cpus = max(int(self._ray.cluster_resources().get("CPU", 1)), 1)
        parts = cpus if num_workers is None else check_integer(num_workers, 1, "num_workers")
        self.starts = _starts(len(problem.pool), parts)
        self._parts = [Part(problem.pool, start, stop) for start, stop in pairwise(self.starts.tolist())]
        threads = max(cpus // len(self._parts), 1)
        # More shards than CPUs share them; an actor that cannot be placed would be waited for without end.
        self._actor = self._ray.remote(num_cpus=min(threads, cpus / len(self._parts)))(Shard)
        # What lies elsewhere, and is not used by the strategies that work here, need not travel.
        bare: dict[str, Any] = {
            "pool": None,
            "generator": None,
            "features": None,
            "labelled_features": None,
            "points": None,
        }
        self._common = [
            self._ray.put(strategy.build),
            self._ray.put(replace(problem, **bare)),
        ]
        self._rest = problem.generator.get_state().numpy(), threads
        self.state: Callable[[int], tuple[str, tuple[Any, ...]]] | None = None
        self._actors = [self._start(number) for number in range(len(self._parts))]

    def __len__(self) -> int:
        return len(self._parts)

    def _start(self, number: int) -> Any:
        build, problem = self._common
        return self._actor.remote(build, problem, self._parts[number], *self._rest)

    def ask(self, method: str, arguments: Callable[[int], tuple[Any, ...]] = lambda _: ()) -> list[Any]:
        """What each shard answers, all working at the same time."""
        calls = [self._call(number, method, arguments(number)) for number in range(len(self))]
        try:
            return [pickle.loads(answer) for answer in self._ray.get(calls)]
        except self._failures:
            return [
                self._answer(number, call, method, arguments(number)) for number, call in enumerate(calls)
            ]

    def ask_one(self, number: int, method: str, *arguments: Any) -> Any:
        """What one shard answers."""
        return self._answer(number, self._call(number, method, arguments), method, arguments)

    def _call(self, number: int, method: str, arguments: tuple[Any, ...]) -> Any:
        return self._actors[number].answer.remote(pickle.dumps((method, arguments)))

    @property
    def _failures(self) -> tuple[type[Exception], ...]:
        return (*self._losses, self._ray.exceptions.RayTaskError)

    @property
    def _losses(self) -> tuple[type[Exception], ...]:
        errors = self._ray.exceptions
        return errors.RayActorError, errors.ObjectLostError, errors.NodeDiedError, errors.WorkerCrashedError

    def _answer(self, number: int, call: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        """Wait for a call; where its actor is lost, bring another to the same state and ask that."""
        for attempt in range(_ATTEMPTS):
            try:
                if attempt:
                    self._replace(number, method)
                    call = self._call(number, method, arguments)
                return pickle.loads(self._ray.get(call))
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self._losses as error:
                if attempt == _ATTEMPTS - 1:
                    raise RuntimeError(
                        f"the worker of rows {self.starts[number]} to {self.starts[number + 1] - 1} died "
                        f"{_ATTEMPTS} times; if its machine is short of memory, use more workers or fewer "
                        f"num_samples. Ray says: {error}"
                    ) from None
                warnings.warn(
                    f"the worker of rows {self.starts[number]} to {self.starts[number + 1] - 1} died; "
                    "another takes its place",
                    RuntimeWarning,
                    stacklevel=2,
                )
                time.sleep(2**attempt - 1)
        raise AssertionError

    def _replace(self, number: int, method: str) -> None:
        # One that is merely out of reach may have done half of what it was asked: it is not to come back.
        self._ray.kill(self._actors[number])
        self._actors[number] = self._start(number)
        if method != "build":
            self._ray.get(self._call(number, "build", ()))
            if self.scale is not None:
                self._ray.get(self._call(number, "rescale", self.scale))
            if self.state is not None:
                self._ray.get(self._call(number, *self.state(number)))

    def split(self, index: Index) -> list[tuple[npt.NDArray[np.bool_], Index]]:
        """For each shard, which of the positions ``index`` (k,) are its own, and where they are there."""
        number = np.searchsorted(self.starts, index, side="right") - 1
        return [(number == one, index[number == one] - self.starts[one]) for one in range(len(self))]

    def bits(self, allowed: Tensor) -> list[Bits]:
        """A mask (N,) cut up, eight points to a byte."""
        return [np.packbits(allowed[start:stop].numpy()) for start, stop in pairwise(self.starts.tolist())]

    def close(self) -> None:
        """Let the actors go."""
        for actor in self._actors:
            self._ray.kill(actor)


def _starts(size: int, num: int) -> Index:
    """(W + 1,) the borders of at most ``num`` parts of about the same size.

    They are borders of the blocks that rows are computed on, where the pool is large enough: then a vector is
    the same, bit for bit, as if it were computed in memory.

    >>> _starts(100_000, 3).tolist(), _starts(5, 2).tolist()
    ([0, 32768, 65536, 100000], [0, 2, 5])
    """
    block = min(POOL_BLOCK, 2 ** max((size // num).bit_length() - 3, 0))
    borders = np.round(np.arange(1, num) * size / num / block).astype(np.int64) * block
    return np.unique(np.concatenate([[0], borders, [size]]))


class RaySpace(ColumnSpace):
    """The space of all shards, as the driver sees it.

    Parameters
    ----------
    generator : set to the state in which the shards leave it.
    """

    def __init__(self, shards: Shards, generator: torch.Generator) -> None:
        self.shards = shards
        each: list[Summary] = shards.ask("build")
        # One unit for all, that of the shard with the largest norm, as if the pool were in one place.
        norms = [math.log2(one.largest) + math.log2(one.scale) if one.largest else -math.inf for one in each]
        first = each[norms.index(max(norms))]
        self.scale = first.scale
        if any(one.scale != first.scale for one in each):
            shards.scale = unit = first.scale, first.largest
            each = shards.ask("rescale", lambda _: unit)
        self._total = sum((_tensor(one.total) for one in each[1:]), _tensor(each[0].total))
        self.norm_sum = sum(one.norm_sum for one in each)
        self._selectable = [one.selectable for one in each]
        self._blocks = [one.blocks for one in each]
        self.resolution, self.additive = each[0].resolution, each[0].additive
        generator.set_state(_tensor(each[0].state))
        # Vectors of points that were found or asked for.
        self._kept: dict[int, Floats] = {}

    def __len__(self) -> int:
        return int(self.shards.starts[-1])

    def selectable(self) -> Tensor:
        """(N,) bool, the points of norm above zero."""
        sizes = np.diff(self.shards.starts).tolist()
        return torch.cat([_mask(bits, size) for bits, size in zip(self._selectable, sizes, strict=True)])

    def total(self) -> Tensor:
        return self._total

    def remember(self, n: int, column: npt.NDArray[Any]) -> None:
        """Keep a vector (J, 1) that came along with an answer: it will be asked for."""
        self._kept[n] = column[:, 0].astype(np.float64)

    def columns_at(self, index: Tensor) -> Tensor:
        wanted: Index = index.numpy()
        found = np.empty((len(self._total), len(wanted)))
        missing = np.array([n not in self._kept for n in wanted.tolist()], dtype=bool)
        for number, (own, local) in enumerate(self.shards.split(wanted[missing])):
            if len(local):
                found[:, missing.nonzero()[0][own]] = self.shards.ask_one(number, "columns", local)
        for position in (~missing).nonzero()[0].tolist():
            found[:, position] = self._kept[int(wanted[position])]
        if len(wanted) <= _FEW:
            self._kept.update({n: found[:, position].copy() for position, n in enumerate(wanted.tolist())})
        return torch.from_numpy(found)

    def inner(self, element: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for number, blocks in enumerate(self._blocks):
            start = int(self.shards.starts[number])
            for block, size in enumerate(blocks):
                values = self.shards.ask_one(number, "inner", element.numpy(), block)
                yield slice(start, start + size), _tensor(values)
                start += size


@norm_sum.register
def _(space: RaySpace) -> float:
    return space.norm_sum


@selectable.register
def _(space: RaySpace) -> Tensor:
    return space.selectable()


class _RaySearch(CosineSearch):
    """Asks all shards at once for their best points.

    Shards have a copy of the mask of open points; what changes in it goes along with the next question.
    """

    space: RaySpace

    def __init__(self, space: RaySpace, open: Tensor) -> None:
        self.space, self._shards, self._open = space, space.shards, open.clone()
        self._changed: set[int] = set()
        self._shards.state = self._state
        self._shards.ask("start_search", lambda number: self._state(number)[1])

    def _state(self, number: int) -> tuple[str, tuple[Any, ...]]:
        start, stop = self._shards.starts[number : number + 2].tolist()
        return "start_search", (np.packbits(self._open[start:stop].numpy()),)

    def close(self, index: Tensor) -> None:
        index = index[index >= 0]
        self._open[index] = False
        self._changed.update(index.reshape(-1).tolist())

    def reopen(self, index: Tensor) -> None:
        self._open[index] = True
        self._changed.update(index.tolist())

    def vector(self, n: Tensor) -> Tensor:
        return self.space.columns_at(n.reshape(1))[:, 0]

    def argmax(self, element: Tensor, beside: Tensor | None = None) -> Tensor:
        if self._shards.state != self._state:  # another search has asked meanwhile
            self._shards.state = self._state
            self._shards.ask("start_search", lambda number: self._state(number)[1])
        changed = np.array(sorted(self._changed), dtype=np.int64)
        open = self._open[torch.from_numpy(changed)].numpy()
        told = [(local, open[own]) for own, local in self._shards.split(changed)]
        other = None if beside is None else beside.numpy()
        answers = self._shards.ask("best", lambda number: (element.numpy(), other, *told[number]))
        self._changed.clear()
        highest, winner = -math.inf, -1
        for start, (cosine, n, column) in zip(self._shards.starts.tolist(), answers, strict=False):
            if n >= 0 and cosine > highest + TIED:
                highest, winner, vector = cosine, start + n, column
        if winner >= 0:
            self.space.remember(winner, vector)
        return torch.tensor(winner)


class _RayDistances(CentreDistances):
    """Distances that stay with their shards; the driver adds up the sums and compares what each finds.

    The centres are kept here, for a shard that has to begin anew.
    """

    def __init__(
        self, space: RaySpace, open: Tensor, pending: Index, budget: int, exact: bool = False
    ) -> None:
        self.space, self._open, self._shards = space, open.clone(), space.shards
        self._pending = len(pending)
        columns = space.columns_at(torch.from_numpy(pending)).numpy()
        self._centres: list[Floats] = list(columns.T)
        self._shards.state = self._state
        sums = self._shards.ask("start_distances", lambda number: self._state(number)[1])
        self._sums = torch.from_numpy(np.sum(sums, 0))
        # Of all shards, for draws: known only if asked for, and then along with the sums from there on.
        self._weights: list[float] | None = None

    def _state(self, number: int) -> tuple[str, tuple[Any, ...]]:
        start, stop = self._shards.starts[number : number + 2].tolist()
        centres = np.array(self._centres).reshape(len(self._centres), len(self.space.total()))
        return "start_distances", (np.packbits(self._open[start:stop].numpy()), centres, self._pending)

    @property
    def sums(self) -> Tensor:
        return self._sums

    def largest_cluster(self) -> Tensor:
        return self._sums.argmax()

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
        answers = self._shards.ask("farthest", lambda _: (number,))
        largest, winner = 0.0, -1
        for start, found in zip(self._shards.starts.tolist(), answers, strict=False):
            if found is not None and found[0] > largest:
                largest, winner, vector = found[0], start + found[1], found[2]
        if winner >= 0:
            self.space.remember(winner, vector)
        return torch.tensor(winner)

    def draw(self, share: float) -> Tensor:
        if self._weights is None:
            self._weights = self._shards.ask("weight")
        weights = self._weights
        left, chosen = share * sum(weights), -1
        for number, weight in enumerate(weights):
            if weight > 0:
                chosen = number
                if left < weight:
                    break
                left -= weight
        if chosen < 0:
            return torch.tensor(-1)
        n, vector = self._shards.ask_one(chosen, "draw", min(left / weights[chosen], 1.0))
        winner = int(self._shards.starts[chosen] + n)
        self.space.remember(winner, vector)
        return torch.tensor(winner)

    def radius(self) -> float:
        return float(max(self._shards.ask("radius")))

    def spread(self) -> float:
        return math.sqrt(max(float(self._sums.sum()), 0.0))


cosine_search.register(RaySpace, _RaySearch)
centre_distances.register(RaySpace, _RayDistances)


def _tensor(array: npt.NDArray[Any]) -> Tensor:
    """A copy: what Ray hands over may not be written to, which torch does not know."""
    return torch.from_numpy(np.array(array))


def _mask(bits: Bits, size: int) -> Tensor:
    return torch.from_numpy(np.unpackbits(bits, count=size).astype(bool))
