"""Parts of a pool, each held by an actor of a Ray cluster: what an actor does, and how all are asked."""

from __future__ import annotations

import math
import os
import pickle
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coresift.checks import check_integer
from coresift.errors import InputError
from coresift.limits import POOL_BLOCK, SHARD_ATTEMPTS
from coresift.pool import Part, import_ray
from coresift.posteriors.network import last_layer_input, split_last_layer
from coresift.search.cpu import VectorSearch
from coresift.search.cpu_distances import VectorDistances
from coresift.search.gains import Near, Roots, Update, VectorTable, target_moment
from coresift.spaces.base import Problem, norm_sum, selectable
from coresift.spaces.vectors import VectorSpace
from coresift.types import Floats, Index

Bits: TypeAlias = npt.NDArray[np.uint8]
# A value, the index of its point in the shard, or -1, and (D, 1) the point's vector.
Found: TypeAlias = tuple[float, int, npt.NDArray[Any]]


class StrategyLike(Protocol):
    """What is needed of a strategy: a builder that makes stored vectors point by point, and a selector."""

    @property
    def build(self) -> Callable[[Problem], Any]: ...

    @property
    def selector(self) -> Any: ...


@dataclass(frozen=True)
class Summary:
    """What the driver needs to know of a shard.

    Attributes
    ----------
    total : (D,) the sum of its vectors.
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
        self, build: Callable[[Problem], Any], problem: Problem, part: Part, state: Bits, threads: int
    ) -> None:
        self._recipe = build, problem, part, state
        torch.set_num_threads(threads)

    def answer(self, question: bytes) -> bytes:
        """Call the method that is asked for; Ray transfers bytes faster than it transfers arrays."""
        method, arguments = pickle.loads(question)
        return pickle.dumps(getattr(self, method)(*arguments))

    def build(self) -> Summary:
        """Read the rows and map them."""
        build, problem, part, state = self._recipe
        generator = torch.Generator()
        generator.set_state(as_tensor(state))
        target = last_layer_input(problem.model, problem.target)
        posterior, pool, labelled = split_last_layer(problem.model, part, problem.labelled, problem.memory)
        problem = replace(problem, pool=pool, model=posterior, labelled=labelled, target=target)
        space = build(replace(problem, generator=generator))
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
        """(D, k) the vectors of some points, as they are stored."""
        found: npt.NDArray[Any] = self.space.columns.at(as_tensor(index)).cpu().numpy()
        return found

    def inner(self, element: Floats, block: int) -> Floats:
        """(..., n) inner products with the vectors of a block."""
        columns = self.space.columns
        part = slice(block * columns.block, min((block + 1) * columns.block, len(columns)))
        direction, length = self.space.direction(as_tensor(element))
        values: Floats = (direction @ columns.part(part)).cpu().double().mul_(length).numpy()
        return values

    def start_search(self, open: Bits) -> None:
        """Get ready to search among the points of a mask."""
        self._search = VectorSearch(self.space, as_mask(open, len(self.space)))

    def best(
        self, element: Floats, orthogonal_to: Floats | None, changed: Index, open: npt.NDArray[np.bool_]
    ) -> Found:
        """What `VectorSearch.best` finds, with its vector. First, some points are opened or closed."""
        self._search.close(as_tensor(changed[~open]))
        self._search.reopen(as_tensor(changed[open]))
        cosine, n = self._search.best(
            as_tensor(element), None if orthogonal_to is None else as_tensor(orthogonal_to)
        )
        return cosine, n, self._found(n)

    def _found(self, n: int) -> npt.NDArray[Any]:
        """(D, 1) the vector of a point, or (D, 0) for -1."""
        return self.columns(np.array([n][: n >= 0], np.int64))

    def start_distances(self, open: Bits, centres: Floats, pending: int) -> Floats:
        """Distances to centres (k, D), ``pending`` of them there from the start; the sums of all clusters."""
        mask, nothing, elements = as_mask(open, len(self.space)), np.empty(0, np.int64), as_tensor(centres)
        self._distances = VectorDistances(self.space, mask, nothing, 0, elements[:pending])
        for element in elements[pending:]:
            self._distances.add_elements(element[None])
        return self._distances.sums.numpy()

    def add(self, centre: Floats, weigh: bool) -> tuple[Floats, float | None]:
        """Add a centre (D,); the sums of all clusters, and the `weight`."""
        self._distances.add_elements(as_tensor(centre)[None])
        return self._distances.sums.numpy(), self.weight() if weigh else None

    def farthest(self, cluster: int | None) -> Found:
        """Squared distance, index and vector of what `CentreDistances.farthest` finds."""
        n = int(self._distances.farthest(None if cluster is None else torch.tensor(cluster)))
        return (self._distances.distance_at(n) if n >= 0 else 0.0), n, self._found(n)

    def weight(self) -> float:
        """The sum of the squared distances of points that may be chosen."""
        return self._distances.unit**2 * sum(self._distances.weights())

    def draw(self, share: float) -> tuple[int, npt.NDArray[Any]]:
        """Index and vector of what `CentreDistances.draw` finds."""
        n = int(self._distances.draw(share))
        return n, self._found(n)

    def radius(self) -> float:
        """The largest distance of any point to its nearest centre."""
        return self._distances.radius()

    def moment(self) -> Tensor:
        """(D, D) the sum over the targets, or over this shard's points where these are targets themselves."""
        return target_moment(self.space)

    def start_gains(self, open: Bits, roots: Roots, changes: list[Update]) -> None:
        """Compute the two numbers of each point, among which gains are searched, after some labels."""
        self._gains = VectorTable(self.space, as_mask(open, len(self.space)))
        self._gains.refresh(roots)
        for change in changes:
            self._gains.update(change)

    def label(self, change: Update) -> None:
        """Change the two numbers of each point."""
        self._gains.update(change)

    def near(self, changed: Index, open: npt.NDArray[np.bool_]) -> Near:
        """What `VectorTable.near` finds. First, some points are opened or closed."""
        for state in (False, True):
            self._gains.set_open(as_tensor(changed[open == state]), state)
        return self._gains.near()


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

    def __init__(self, strategy: StrategyLike, problem: Problem, num_workers: int | None) -> None:
        self._ray = import_ray()
        cpus = max(int(self._ray.cluster_resources().get("CPU", 1)), 1)
        parts = cpus if num_workers is None else check_integer(num_workers, 1, "num_workers")
        self.starts = shard_starts(len(problem.pool), parts)
        self._parts = [Part(problem.pool, start, stop) for start, stop in self.ranges()]
        threads = max(cpus // len(self._parts), 1)
        # More shards than CPUs share them; an actor that cannot be placed would be waited for without end.
        self._actor = self._ray.remote(num_cpus=min(threads, cpus / len(self._parts)))(Shard)
        # These are not sent to the workers. Each has its own part of the pool and its own generator, and
        # strategies that run on Ray do not use the others.
        left_out = "pool", "generator", "features", "labelled_features", "points"
        bare: dict[str, Any] = dict.fromkeys(left_out)
        self._common = self._ray.put(strategy.build), self._ray.put(replace(problem, **bare))
        self._rest = problem.generator.get_state().numpy(), threads
        errors = self._ray.exceptions
        self._losses = (
            errors.RayActorError,
            errors.ObjectLostError,
            errors.NodeDiedError,
            errors.WorkerCrashedError,
        )
        self.state: Callable[[int], tuple[str, tuple[Any, ...]]] | None = None
        self._actors = [self._start(number) for number in range(len(self._parts))]

    def __len__(self) -> int:
        return len(self._parts)

    def ranges(self) -> list[tuple[int, int]]:
        """Where each shard begins in the pool, and where it ends."""
        return list(pairwise(self.starts.tolist()))

    def _start(self, number: int) -> Any:
        return self._actor.remote(*self._common, self._parts[number], *self._rest)

    def begin(self, state: Callable[[int], tuple[str, tuple[Any, ...]]]) -> list[Any]:
        """Bring all shards to a state, which those built anew are brought to as well, and return answers."""
        self.state = state
        return self.ask(state(0)[0], lambda number: state(number)[1])

    def ask(self, method: str, arguments: Callable[[int], tuple[Any, ...]] = lambda _: ()) -> list[Any]:
        """What each shard answers, all working at the same time."""
        calls = [self._call(number, method, arguments(number)) for number in range(len(self))]
        try:
            return [pickle.loads(answer) for answer in self._ray.get(calls)]
        except (*self._losses, self._ray.exceptions.RayTaskError):
            return [
                self._answer(number, call, method, arguments(number)) for number, call in enumerate(calls)
            ]

    def ask_one(self, number: int, method: str, *arguments: Any) -> Any:
        """What one shard answers."""
        return self._answer(number, self._call(number, method, arguments), method, arguments)

    def _call(self, number: int, method: str, arguments: tuple[Any, ...]) -> Any:
        return self._actors[number].answer.remote(pickle.dumps((method, arguments)))

    def _answer(self, number: int, call: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        """Wait for a call; where its actor is lost, bring another to the same state and ask that."""
        worker = "the worker of rows {} to {}".format(*self.starts[number : number + 2] - [0, 1])
        for attempt in range(SHARD_ATTEMPTS):
            try:
                if attempt:
                    self._replace(number, method)
                    call = self._call(number, method, arguments)
                return pickle.loads(self._ray.get(call))
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self._losses as error:
                if attempt == SHARD_ATTEMPTS - 1:
                    raise RuntimeError(
                        f"{worker} died {SHARD_ATTEMPTS} times; if its machine is short of memory, use more "
                        f"workers or fewer num_samples. Ray says: {error}"
                    ) from None
                warnings.warn(f"{worker} died; another takes its place", RuntimeWarning, stacklevel=2)
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

    def close(self) -> None:
        """Let the actors go."""
        for actor in self._actors:
            self._ray.kill(actor)


def shard_starts(size: int, num: int) -> Index:
    """(W + 1,) the borders of at most ``num`` parts of about the same size.

    They are borders of the blocks that rows are computed on, where the pool is large enough: then a vector is
    the same, bit for bit, as if it were computed in memory.

    >>> shard_starts(100_000, 3).tolist(), shard_starts(5, 2).tolist()
    ([0, 32768, 65536, 100000], [0, 2, 5])
    """
    block = min(POOL_BLOCK, 2 ** max((size // num).bit_length() - 3, 0))
    borders = np.round(np.arange(1, num) * size / num / block).astype(np.int64) * block
    return np.unique(np.concatenate([[0], borders, [size]]))


def as_tensor(array: npt.NDArray[Any]) -> Tensor:
    """A copy: what Ray hands over may not be written to, which torch does not know."""
    return torch.from_numpy(np.array(array))


def as_mask(bits: Bits, size: int) -> Tensor:
    """Unpack a mask, eight points to a byte."""
    return torch.from_numpy(np.unpackbits(bits, count=size).astype(bool))
