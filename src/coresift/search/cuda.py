"""The engine for stored vectors on a GPU: kernels find the largest cosine and keep distances to centres.

A step is a function of tensors that never asks the host. `repeat` records it as a CUDA graph of many steps,
so that the host starts them with one call and reads what they found once. Cosines and distances are computed
in float64 from float32 vectors (D, N). Vectors of another type, or without Triton, are left to the engine of
the CPU, which is plain torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from coresift import limits
from coresift.search.base import (
    CentreDistances,
    CosineSearch,
    Engine,
    Step,
    Tensors,
    register_engine,
    where_reached,
)
from coresift.search.cpu import TIED, VectorSearch
from coresift.search.cpu_distances import VectorDistances
from coresift.search.cuda_kernels import cuda_kernels
from coresift.search.gains import vector_gains
from coresift.search.graphs import recorded
from coresift.spaces.base import SAME
from coresift.spaces.vectors import VectorSpace
from coresift.types import Index

# The least squared distance, in units of the space: float32 loses digits of smaller ones.
LEAST = torch.finfo(torch.float32).tiny / torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Layout:
    """How a scan is spread over the GPU.

    Parameters
    ----------
    block : points that a program reads at a time, a power of two.
    rows : rows of a block that are loaded before the first is used, so that enough loads are under way; a
        power of two.
    warps : of 32 threads, in a program.
    programs : for each multiprocessor, few enough to run all at once.
    """

    block: int = limits.CUDA_BLOCK
    rows: int = limits.CUDA_ROWS
    warps: int = limits.CUDA_WARPS
    programs: int = limits.CUDA_PROGRAMS

    @property
    def registers(self) -> int:
        """How many registers a thread may use, of the 65536 of a multiprocessor."""
        return 65536 // (32 * self.warps * self.programs) // 8 * 8


class _Scan:
    """The grid of a scan over vectors (D, N), and room for the largest value and its index per program."""

    def __init__(self, vectors: Tensor, layout: Layout) -> None:
        # Without a GPU, in tests, there are a few programs of several blocks each.
        processors = 1
        if vectors.is_cuda:
            processors = torch.cuda.get_device_properties(vectors.device).multi_processor_count
        self.vectors, self.layout = vectors, layout
        self.num_rows, self.size = vectors.shape
        self.blocks = -(-self.size // layout.block)
        self.programs = min(self.blocks, layout.programs * processors)
        self.partials = _power_of_two(self.programs)
        self.values = torch.full((self.partials,), -torch.inf, dtype=torch.float64, device=vectors.device)
        self.points = torch.zeros_like(self.values, dtype=torch.int64)

    def launch(self, name: str, *arguments: Any, single: bool = False, **constants: Any) -> None:
        """Start a kernel, with a program for each share of the blocks or as a ``single`` program."""
        options = {"num_warps": self.layout.warps, "maxnreg": self.layout.registers}
        with torch.cuda.device(self.vectors.get_device()):  # -1, none, without a GPU
            kernel = getattr(cuda_kernels(), name)[(1 if single else self.programs,)]
            kernel(*arguments, **constants, **({"num_warps": 4} if single else options))

    def shape(self, rows: int) -> dict[str, Any]:
        """The constants that kernels share which read blocks of vectors, ``rows`` at once."""
        rows = min(max(rows, 1), _power_of_two(self.num_rows))
        return {"D": self.num_rows, "ROWS": rows, "BLOCK": self.layout.block}

    def largest(self, lowest: float, vector: Tensor | None = None) -> Tensor:
        """Reduce the values of all programs to the 0-dimensional index of the largest, or -1 if none is above
        ``lowest``; ``vector`` (D,) receives the point's vector.
        """
        index = self.points.new_empty(())
        self.launch(
            "largest",
            self.values,
            self.points,
            index,
            self.vectors,
            self.values if vector is None else vector,
            self.size,
            D=0 if vector is None else self.num_rows,
            TILE=min(_power_of_two(self.num_rows), limits.CUDA_TILE),
            PARTIALS=self.partials,
            LOWEST=lowest,
            TIED=TIED,
            single=True,
        )
        return index


class _Repeated:
    """Repeats a step on tensors in fixed memory; on a GPU as CUDA graphs of several lengths.

    It does not keep the step, which would keep its owner alive until Python looks for cycles.
    """

    def __init__(self, state: Tensors, inputs: Tensors = ()) -> None:
        self.state, self.inputs = _copies(state), _copies(inputs)
        self.device = state[0].device
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensors]] = {}
        self._compiled = False

    def run(self, step: Callable[[Any], Tensors], times: int) -> Tensors:
        """Make ``times`` steps, and return the states after each, stacked."""
        logs = []
        while times > 0:
            lengths = limits.CUDA_GRAPH_STEPS if self._compiled else (1,)
            length = next(length for length in lengths if length <= times)
            logs.append(self._many(step, length))
            times -= length
        return logs[0] if len(logs) == 1 else tuple(torch.cat(parts) for parts in zip(*logs, strict=True))

    def _many(self, step: Callable[[Any], Tensors], length: int) -> Tensors:
        # The first step is made without a graph: it compiles the kernels.
        if self.device.type != "cuda" or not self._compiled:
            self._compiled = True
            return self._unrolled(step, length)
        with torch.cuda.device(self.device):
            if length not in self._graphs:
                self._graphs[length] = self._record(step, length)
            graph, log = self._graphs[length]
            graph.replay()
        return _copies(log)

    def _record(self, step: Callable[[Any], Tensors], length: int) -> tuple[torch.cuda.CUDAGraph, Tensors]:
        """Record steps as a graph, and say where it writes its log."""
        log: list[Tensor] = []
        graph = recorded(lambda: log.extend(self._unrolled(step, length)), others_go_on=True)
        return graph, tuple(log)

    def _unrolled(self, step: Callable[[Any], Tensors], length: int) -> Tensors:
        states, state = [], self.state
        for _ in range(length):
            state = step(state)
            states.append(state)
        log = tuple(torch.stack(parts) for parts in zip(*states, strict=True))
        _set(self.state, tuple(part[-1] for part in log))
        return log


def _power_of_two(least: int) -> int:
    """The smallest one that is no less: blocks of kernels have such sizes."""
    return 1 << (least - 1).bit_length()


def _copies(tensors: Tensors) -> Tensors:
    """Copy each of some tensors, in a tuple of the same type."""
    copies = [part.clone() for part in tensors]
    return tuple(copies) if type(tensors) is tuple else type(tensors)(*copies)


def _set(tensors: Tensors, values: Tensors) -> None:
    """Write values into tensors."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


class CudaSearch(CosineSearch):
    """Finds the open vector with the largest cosine, by a scan of all vectors and a reduction.

    Parameters
    ----------
    space : its vectors are float32, rows contiguous in memory.
    open : (N,) bool.
    """

    run_length = limits.CUDA_RUN_LENGTH

    def __init__(self, space: VectorSpace, open: Tensor, layout: Layout | None = None) -> None:
        self.space = space
        self._scan = _Scan(space.vectors, layout or Layout())
        # One entry more, which no scan reads: closing the index -1 changes that one.
        self._open = torch.zeros(len(space) + 1, dtype=torch.uint8, device=space.device)
        self._open[:-1] = open
        self._index: Tensor | None = None
        self._vector: Tensor | None = None
        self._repeated: dict[Step, _Repeated] = {}

    def argmax(self, element: Tensor, orthogonal_to: Tensor | None = None) -> Tensor:
        scan = self._scan
        # A third sum takes registers, which leaves fewer for rows.
        rows = scan.layout.rows if orthogonal_to is None else scan.layout.rows // 4
        scan.launch(
            "score",
            scan.vectors,
            self._open,
            element,
            element if orthogonal_to is None else orthogonal_to,
            scan.values,
            scan.points,
            scan.size,
            scan.blocks,
            **scan.shape(rows),
            ORTHOGONAL=orthogonal_to is not None,
            TIED=TIED,
        )
        self._vector = self._scan.values.new_empty(scan.num_rows)
        self._index = scan.largest(-1e300, self._vector)
        return self._index

    def vector(self, n: Tensor) -> Tensor:
        if n is self._index and self._vector is not None:  # it came with the index
            return self._vector
        return self._scan.vectors.index_select(1, n.clamp(min=0).view(1))[:, 0].double()

    def close(self, index: Tensor) -> None:
        self._open.index_fill_(0, index.to(self._open.device), 0)

    def reopen(self, index: Tensor) -> None:
        self._open.index_fill_(0, index.to(self._open.device), 1)

    def repeat(self, step: Step, inputs: Tensors, state: Tensors, times: int) -> Tensors:
        repeated = self._repeated.setdefault(step, _Repeated(state, inputs))
        _set(repeated.inputs, inputs)
        _set(repeated.state, state)
        return repeated.run(lambda now: step(self, repeated.inputs, now), times)


class CudaDistances(CentreDistances):
    """Keeps distances to centres, with one scan of all vectors for each new centre.

    Cluster sums are integers of a small unit, 2^-61 of their total or less. Sums of integers do not depend on
    the order in which they are added, so that a batch is the same in each run.

    Parameters
    ----------
    space : its vectors are float32, rows contiguous in memory.
    """

    run_length = limits.CUDA_RUN_LENGTH

    def __init__(
        self, space: VectorSpace, open: Tensor, pending: Index, budget: int, layout: Layout | None = None
    ) -> None:
        self.space = space
        self._scan = scan = _Scan(space.vectors, layout or Layout())
        device = space.device
        self._open = open.to(device, torch.uint8)
        self._nearest = torch.full((scan.size,), torch.finfo(torch.float32).max, device=device)
        self._owner = torch.zeros(scan.size, dtype=torch.int32, device=device)
        first = self._first_centres(pending)
        # The new centre and the squared distance up to which a point is the same. The number of centres, and
        # the cluster from which the new one came. Units of the sums in those of `nearest`, those in squares.
        self._centre = torch.zeros(scan.num_rows + 1, dtype=torch.float64, device=device)
        self._state = torch.zeros(2, dtype=torch.int64, device=device)
        self._units = torch.tensor([0.0, space.unit**-2], dtype=torch.float64, device=device)
        self._table = self._state.new_zeros(limits.CUDA_SUM_COPIES, len(first) + budget)
        for centre in first:
            self._centre[:-1] = centre
            self._centre[-1] = 2 * SAME * centre.square().sum()
            self._state[0] += 1
            self._update()
        self._start_sums()
        self._repeated = _Repeated((self._state.new_zeros(()),))
        self._step: Callable[[Any], Tensor] | None = None

    def _first_centres(self, pending: Index) -> Tensor:
        """(k, D) float64 labelled and pending points, or the origin where there are none."""
        vectors = self._scan.vectors
        given = [elements.to(vectors.device) for elements, _ in self.space.anchors()]
        given.append(vectors[:, torch.as_tensor(pending, device=vectors.device)].double().mT)
        centres = torch.cat(given)
        return centres if len(centres) else centres.new_zeros(1, len(vectors))

    def _start_sums(self) -> None:
        """Find the unit of the sums, a power of two, and the sums of the first clusters."""
        parts = list(self.space.columns.parts())
        total = sum(self._nearest[part].double().sum() for part in parts)
        total = torch.as_tensor(total).clamp(min=torch.finfo(torch.float64).tiny)
        self._units[0] = torch.exp2(torch.floor(61 - torch.log2(total)))
        for part in parts:
            counts = (self._nearest[part].double() * self._units[0]).long()
            self._table[0].index_add_(0, self._owner[part], counts)

    def _update(self) -> None:
        """Take the new centre into account."""
        scan = self._scan
        scan.launch(
            "add_centre",
            scan.vectors,
            self._nearest,
            self._owner,
            self._table,
            self._centre,
            self._units,
            self._state,
            scan.size,
            scan.blocks,
            self._table.shape[1],
            **scan.shape(scan.layout.rows),
            COPIES=len(self._table),
            LEAST=LEAST,
        )

    @property
    def sums(self) -> Tensor:
        return self._table.sum(0) / self._units[0] / self._units[1]

    def largest_cluster(self) -> Tensor:
        index = self._state.new_empty(())
        self._scan.launch(
            "largest_cluster",
            self._table,
            self._state,
            index,
            self._table.shape[1],
            COPIES=len(self._table),
            TILE=limits.CUDA_TILE,
            single=True,
        )
        return index

    def farthest(self, cluster: Tensor | None = None) -> Tensor:
        scan = self._scan
        scan.launch(
            "farthest",
            self._nearest,
            self._owner,
            self._open,
            self._state if cluster is None else cluster,
            scan.values,
            scan.points,
            scan.size,
            BLOCK=2 * scan.layout.block,
            ONE_CLUSTER=cluster is not None,
        )
        return scan.largest(0.0)

    def add(self, n: Tensor) -> None:
        scan = self._scan
        scan.launch(
            "prepare_centre",
            scan.vectors,
            self._owner,
            n,
            self._centre,
            self._state,
            scan.size,
            D=scan.num_rows,
            TILE=min(_power_of_two(scan.num_rows), limits.CUDA_TILE),
            SAME=SAME,
            single=True,
        )
        self._update()

    def draw(self, share: float) -> Tensor:
        weights = torch.where(self._open.bool(), self._nearest, 0.0).double()
        tile = limits.CUDA_TILE
        blocks = torch.nn.functional.pad(weights, (0, -len(weights) % tile)).view(-1, tile)
        sums = blocks.sum(1).cpu()
        level = share * float(sums.sum())
        block = where_reached(sums, level)
        if block < 0:
            return torch.tensor(-1, device=weights.device)
        position = where_reached(blocks[block].cpu(), max(level - float(sums[:block].sum()), 0.0))
        return torch.tensor(block * tile + position, device=weights.device)

    def radius(self) -> float:
        return math.sqrt(self._nearest.max()) * self.space.unit

    def repeat(self, step: Callable[[Any], Tensor], times: int) -> Tensor:
        if step is not self._step:
            self._step, self._repeated = step, _Repeated(self._repeated.state)
        return self._repeated.run(lambda _: (step(self),), times)[0]


def _has_kernels(space: VectorSpace) -> bool:
    """Whether the kernels can read the vectors."""
    right = space.columns.dtype == torch.float32 and space.vectors.is_contiguous()
    return right and find_spec("triton") is not None


def _cosine_search(space: VectorSpace, open: Tensor) -> CosineSearch:
    return (CudaSearch if _has_kernels(space) else VectorSearch)(space, open)


def _centre_distances(space: VectorSpace, open: Tensor, pending: Index, budget: int) -> CentreDistances:
    return (CudaDistances if _has_kernels(space) else VectorDistances)(space, open, pending, budget)


register_engine("cuda", Engine(_cosine_search, _centre_distances, vector_gains))
