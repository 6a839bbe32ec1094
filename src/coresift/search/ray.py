"""A pool in shards: each lies with an actor of a Ray cluster, as vectors that never leave it.

The driver runs the selectors as they are, on a space that asks the shards. What travels in a step is a
direction or a centre of J numbers to each shard, and from each a few leading points or its clusters' sums.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coresift.checks import check_integer
from coresift.limits import POOL_BLOCK
from coresift.pool import Part
from coresift.pool.dataset import import_ray
from coresift.posteriors.network import at_the_last_layer
from coresift.selectors.distance import LCMD, KCenter, KMeansPlusPlus
from coresift.selectors.frank_wolfe import FrankWolfe
from coresift.spaces.centres import Centres, VectorCentres
from coresift.spaces.leaders import Leaders, Scan
from coresift.spaces.vectors import ColumnSpace, Scanner, VectorSpace
from coresift.types import Batch, Floats, Index, InputError

if TYPE_CHECKING:
    from coresift.strategies import Problem, Strategy

# Strategies whose vectors are made point by point, and stored.
WORKING = ("acs-fw", "acs-lcmd", "acs-centred-lcmd", "acs-kmeans++", "predictive-lcmd")
# How often a shard is built again before its loss counts as final.
_ATTEMPTS = 4
_QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}
# Points asked for together that are kept: those chosen come back again and again, long lists do not.
_FEW = 64
# Leading points of a scan, of all shards together and of one: two shards or more send at least so many.
_MOST_LEADERS, _LEAST_LEADERS = 1024, 64

Bits: TypeAlias = npt.NDArray[np.uint8]


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
        return strategy.selector.select(
            space, budget, pending=pending, exclude=exclude, seed=problem.generator
        )


@contextmanager
def ray_space(strategy: Strategy, problem: Problem, num_workers: int | None = None) -> Iterator[RaySpace]:
    """The space of a strategy, in the hands of workers that are let go at the end.

    ``problem.generator`` is left in the state that building the space in memory leaves it in.
    """
    _check_strategy(strategy)
    _connect()
    shards = Shards(strategy, problem, num_workers)
    try:
        yield RaySpace(shards, problem.generator)
    finally:
        shards.close()


def _check_strategy(strategy: Strategy) -> None:
    from coresift.strategies import STRATEGIES

    builders = [STRATEGIES[name].build for name in WORKING]
    selectors = (FrankWolfe, LCMD, KCenter, KMeansPlusPlus)
    if strategy.build not in builders or not isinstance(strategy.selector, selectors):
        raise InputError(
            f"this strategy cannot choose from a pool in shards; those that can are {', '.join(WORKING)}"
        )


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
    norm_total: float
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
        posterior, pool, labelled = at_the_last_layer(
            problem.posterior_or_none, part, problem.labelled, problem.memory
        )
        space = build(
            replace(problem, pool=pool, posterior_or_none=posterior, labelled=labelled, generator=generator)
        )
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
            space.norm_total(),
            np.packbits(space.selectable.numpy()),
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

    def start_scan(self, allowed: Bits) -> None:
        """Get ready to search among the points of a mask."""
        self._scanner = Scanner(self.space, _mask(allowed, len(self.space)))

    def leading(
        self, direction: Floats, many: bool, masked: bool, most: int, closed: Index
    ) -> tuple[Index, npt.NDArray[Any], float]:
        """Leaders that may be chosen, their vectors, and a bound on the cosines of all others.

        If they are to be ``many``, about ``most``; else those too near to the winner to tell by rounded
        numbers. First, points are ``closed``.
        """
        scanner, nothing = self._scanner, np.empty(0, np.int64)
        scanner.allowed[_tensor(closed)] = False
        if scanner._scale is not None:
            scanner._scale[_tensor(closed)] = 0.0
        if not bool(scanner.allowed.any()):
            return nothing, self.columns(nothing), -np.inf
        wanted = _tensor(direction)
        found = (scanner._many if many else scanner._near)(wanted, masked)
        leaders = scanner._exact(*found)
        if leaders is None:
            return nothing, self.columns(nothing), found[1]
        if many:
            leaders, _ = _foremost(wanted, leaders, leaders.units, most)
        return leaders.index.numpy(), self.columns(leaders.index.numpy()), leaders.bound

    def start_centres(self, allowed: Bits, places: Floats, squares: Floats, pending: int) -> Floats:
        """Distances to centres (k, J), ``pending`` of them there from the start; the sums of all clusters."""
        self._centres = _ShardCentres(
            self.space, _mask(allowed, len(self.space)), _tensor(places[:pending]), _tensor(squares[:pending])
        )
        for place, square in zip(places[pending:], squares[pending:], strict=True):
            self.add(place, square, False)
        sums: Floats = (self._centres.sums * self._centres.unit**2).numpy()
        return sums

    def add(self, place: Floats, square: float, weigh: bool) -> tuple[Floats, float | None]:
        """Make a place (J,) with its squared norm a centre; the sums of all clusters, and the `weight`."""
        self._centres._add(_tensor(place)[None], torch.tensor([square], dtype=torch.float64))
        return (self._centres.sums * self._centres.unit**2).numpy(), self.weight() if weigh else None

    def farthest(self, centre: int | None) -> tuple[float, int, npt.NDArray[Any]] | None:
        """Squared distance, position and vector of what `Centres.farthest` finds."""
        n = self._centres.farthest(centre)
        if n is None:
            return None
        distance = float(self._centres.nearest.at(torch.tensor([n]))) * self._centres.unit**2
        return distance, n, self.columns(np.array([n]))

    def weight(self) -> float:
        """The sum of the squared distances of points that may be chosen."""
        total = sum(float(values.sum()) for _, values in self._centres._weights())
        return total * self._centres.unit**2

    def draw(self, share: float) -> tuple[int, npt.NDArray[Any]] | None:
        """Position and vector of what `Centres.draw` finds."""
        n = self._centres.draw(share)
        return None if n is None else (n, self.columns(np.array([n])))

    def radius(self) -> float:
        """The largest distance of any point to its nearest centre."""
        return self._centres.radius()


class _ShardCentres(VectorCentres):
    """Centres that may lie in other shards: those pending are given by their places (k, J)."""

    def __init__(self, space: VectorSpace, allowed: Tensor, places: Tensor, squares: Tensor) -> None:
        self._pending = places, squares
        super().__init__(space, allowed, np.arange(len(places)))

    def add(self, n: int) -> None:
        places, squares = self._pending
        self._add(places[n : n + 1], squares[n : n + 1])


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
        bare: dict[str, Any] = {"pool": None, "features": None, "labelled_features": None, "generator": None}
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
        self._norm_total = sum(one.norm_total for one in each)
        self._selectable = [one.selectable for one in each]
        self._blocks = [one.blocks for one in each]
        self.resolution, self.additive = each[0].resolution, each[0].additive
        generator.set_state(_tensor(each[0].state))
        # Vectors of points asked for, in that order; and of the latest leaders: positions in ascending order,
        # and (J, k).
        self.kept: dict[int, Floats] = {}
        self._latest: deque[tuple[Index, Floats]] = deque(maxlen=8)

    def __len__(self) -> int:
        return int(self.shards.starts[-1])

    @property
    def selectable(self) -> Tensor:
        sizes = np.diff(self.shards.starts).tolist()
        return torch.cat([_mask(bits, size) for bits, size in zip(self._selectable, sizes, strict=True)])

    def total(self) -> Tensor:
        return self._total

    def norm_total(self) -> float:
        return self._norm_total

    def remember(self, index: Index, columns: npt.NDArray[Any]) -> None:
        """Keep vectors (J, k) that came along: some of the points will be asked for."""
        if len(index):
            order = np.argsort(index)
            self._latest.append((index[order], columns[:, order].astype(np.float64)))

    def columns_at(self, index: Tensor) -> Tensor:
        wanted: Index = index.numpy()
        found = np.empty((len(self._total), len(wanted)))
        left = np.ones(len(wanted), dtype=bool)
        if len(wanted) <= _FEW or len(wanted) <= 4 * len(self.kept):
            for place, n in enumerate(wanted.tolist()):
                if n in self.kept:
                    found[:, place], left[place] = self.kept[n], False
        for known, columns in reversed(self._latest):
            if not left.any():
                break
            where = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
            here = left & (known[where] == wanted)
            found[:, here] = columns[:, where[here]]
            left &= ~here
        if left.any():
            places = left.nonzero()[0]
            for number, (own, local) in enumerate(self.shards.split(wanted[places])):
                if len(local):
                    found[:, places[own]] = self.shards.ask_one(number, "columns", local)
        if len(wanted) <= _FEW:
            self.kept.update({n: found[:, place].copy() for place, n in enumerate(wanted.tolist())})
        return torch.from_numpy(found)

    def inner(self, element: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for number, blocks in enumerate(self._blocks):
            start = int(self.shards.starts[number])
            for block, size in enumerate(blocks):
                values = self.shards.ask_one(number, "inner", element.numpy(), block)
                yield slice(start, start + size), _tensor(values)
                start += size

    def scan(self, allowed: Tensor, once: bool = False) -> Scan:
        return Scan(_RayScanner(self, allowed), allowed)

    def centres(self, allowed: Tensor, pending: Index) -> RayCentres:
        return RayCentres(self, allowed, pending)


class _RayScanner:
    """Scans all shards at once; the winner is told from its rivals here, in float64, as it is in memory.

    Shards have a copy of the mask. Points that were taken out of it since are looked for among those whose
    vectors were asked for, not in the whole mask, which is as long as the pool. One that is missed matters
    only where it is among the leaders, and is found there.

    Parameters
    ----------
    allowed : (N,) bool; points may be taken out of it between scans.
    """

    def __init__(self, space: RaySpace, allowed: Tensor) -> None:
        self._space, self._shards, self._allowed = space, space.shards, allowed
        # Points asked for that were open when last seen, and how many were ever asked for.
        self._watched, self._seen = np.empty(0, np.int64), 0

    def _state(self, number: int) -> tuple[str, tuple[Any, ...]]:
        start, stop = self._shards.starts[number : number + 2].tolist()
        return "start_scan", (np.packbits(self._allowed[start:stop].numpy()),)

    def __call__(self, direction: Tensor, many: bool) -> Leaders:
        """The winner and others, few or many."""
        if self._shards.state != self._state:
            self._shards.state = self._state
            self._shards.ask("start_scan", lambda number: self._state(number)[1])
        for look_for_many, masked in ((many, False), (False, True)):
            leaders, proven = self._leaders(direction, look_for_many, masked)
            # The last asks for all that are too close to each other to tell: there is no more to be known.
            if leaders is not None and (proven or masked):
                return leaders
        raise FloatingPointError("no inner product is a number: the vectors' scales are out of range")

    def _leaders(self, direction: Tensor, many: bool, masked: bool) -> tuple[Leaders | None, bool]:
        """What the shards find, and whether that is sure to hold the winner."""
        most = min(max(_MOST_LEADERS // len(self._shards), _LEAST_LEADERS), _MOST_LEADERS // 2)
        wanted, starts = direction.numpy(), self._shards.starts.tolist()
        closed = self._closed()
        while True:
            told = [(wanted, many, masked, most, local) for _, local in self._shards.split(closed)]
            answers = self._shards.ask("leading", told.__getitem__)
            each = [found + start for start, (found, *_) in zip(starts, answers, strict=False)]
            index = torch.from_numpy(np.concatenate(each))
            columns = torch.from_numpy(np.concatenate([found for _, found, _ in answers], 1)).double()
            still = self._allowed[index]
            closed = index[~still].numpy()
            index, columns = index[still], columns[:, still]
            leaders = Leaders(
                index, columns / columns.square().sum(0).sqrt(), max(bound for *_, bound in answers)
            )
            if len(index) > _MOST_LEADERS and many:
                leaders, columns = _foremost(direction, leaders, columns, _MOST_LEADERS)
            proven = len(index) > 0 and float((direction @ leaders.units).max()) > leaders.bound
            if proven or len(closed) == 0:
                break
            # One that may not be chosen any more can have hidden others: once the shards know, they see them.
        self._watched = np.union1d(self._watched, closed)
        if len(index) == 0:
            return None, False
        self._space.remember(leaders.index.numpy(), columns.numpy())
        return replace(leaders, bound=min(max(leaders.bound, -1.0), 1.0)), proven

    def _closed(self) -> Index:
        """Points that may not be chosen any more, and that the shards do not know of yet."""
        new = list(islice(self._space.kept, self._seen, None))
        self._seen += len(new)
        watched = np.concatenate([self._watched, np.array(new, dtype=np.int64)])
        still = self._allowed[torch.from_numpy(watched)].numpy()
        self._watched = watched[still]
        found: Index = watched[~still]
        return found


def _foremost(direction: Tensor, leaders: Leaders, columns: Tensor, most: int) -> tuple[Leaders, Tensor]:
    """The first ``most`` of leaders and their vectors (J, k), with a bound that holds for the others too."""
    cosines = direction @ leaders.units
    order = cosines.argsort(descending=True, stable=True)
    kept = order[:most].sort().values
    bound = max(leaders.bound, float(cosines[order[most]])) if len(order) > most else leaders.bound
    return Leaders(leaders.index[kept], leaders.units[:, kept], bound), columns[:, kept]


class RayCentres(Centres):
    """Distances that stay with their shards; the driver adds up the sums and compares what each finds.

    The centres' places are kept here, for a shard that has to begin anew.
    """

    def __init__(self, space: RaySpace, allowed: Tensor, pending: Index) -> None:
        self.space, self._allowed, self._shards = space, allowed, space.shards
        space.columns_at(torch.from_numpy(pending))
        self._places: list[Floats] = []
        self._squares: list[float] = []
        for n in pending.tolist():
            self._append(*self._place(n))
        self._pending = len(pending)
        self._shards.state = self._state
        bits = self._shards.bits(allowed)
        history = self._history()
        sums = self._shards.ask("start_centres", lambda number: (bits[number], *history))
        self.sums = torch.from_numpy(np.sum(sums, 0))
        # Of all shards, for draws: known only if asked for, and then along with the sums from there on.
        self._weights_now: list[float] | None = None

    def _place(self, n: int) -> tuple[Floats, float]:
        place: Floats = self.space.coordinates(n).numpy()
        return place, float(self.space.norm_at(torch.tensor([n])).square())

    def _append(self, place: Floats, square: float) -> None:
        self._places.append(place)
        self._squares.append(square)

    def _history(self) -> tuple[Floats, Floats, int]:
        places = np.array(self._places).reshape(len(self._places), len(self.space.total()))
        return places, np.array(self._squares), self._pending

    def _state(self, number: int) -> tuple[str, tuple[Any, ...]]:
        start, stop = self._shards.starts[number : number + 2].tolist()
        return "start_centres", (np.packbits(self._allowed[start:stop].numpy()), *self._history())

    def add(self, n: int) -> None:
        place, square = self._place(n)
        weigh = self._weights_now is not None
        answers = self._shards.ask("add", lambda _: (place, square, weigh))
        # Only now: a shard that was built anew meanwhile has been asked to add it, too.
        self._append(place, square)
        self.sums = torch.from_numpy(np.sum([sums for sums, _ in answers], 0))
        self._weights_now = [weight for _, weight in answers] if weigh else None

    def farthest(self, centre: int | None = None) -> int | None:
        best, where = 0.0, None
        for start, found in zip(
            self._shards.starts.tolist(), self._shards.ask("farthest", lambda _: (centre,)), strict=False
        ):
            if found is not None and found[0] > best:
                best, where, column = found[0], start + found[1], found[2]
        if where is not None:
            self._remember(where, column)
        return where

    def draw(self, share: float) -> int | None:
        if self._weights_now is None:
            self._weights_now = self._shards.ask("weight")
        weights = self._weights_now
        left, chosen = share * sum(weights), None
        for number, weight in enumerate(weights):
            if weight > 0:
                chosen = number
                if left < weight:
                    break
                left -= weight
        if chosen is None:
            return None
        n, column = self._shards.ask_one(chosen, "draw", min(left / weights[chosen], 1.0))
        where = int(self._shards.starts[chosen] + n)
        self._remember(where, column)
        return where

    def _remember(self, n: int, column: npt.NDArray[Any]) -> None:
        space: Any = self.space
        space.remember(np.array([n]), column)

    def radius(self) -> float:
        return float(max(self._shards.ask("radius")))


def _tensor(array: npt.NDArray[Any]) -> Tensor:
    """A copy: what Ray hands over may not be written to, which torch does not know."""
    return torch.from_numpy(np.array(array))


def _mask(bits: Bits, size: int) -> Tensor:
    return torch.from_numpy(np.unpackbits(bits, count=size).astype(bool))
