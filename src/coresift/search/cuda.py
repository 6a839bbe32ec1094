"""Selection loops that run whole on the GPU: the host starts many steps at once and reads the result once.

A step scans all vectors and then makes a few small updates. Each is one kernel, the small ones of a single
program; some tens of steps are recorded as a CUDA graph and replayed. A state on the device says how many
steps are still to be made; where none are left, a replayed step does nothing.

Vectors lie as (J, N) float32, column n is L_n. Frank-Wolfe may scan a float16 copy of them instead, and then
looks again only at those blocks of the float32 vectors where, by a bound on the rounding, the winner can be.
Without Triton the same steps are made by plain torch, the host waiting in each. Ties always go to the lowest
index.

>>> vectors = torch.tensor([[2.0, 1.9, 0.0], [0.0, 0.1, 1.0]])
>>> norms = vectors.double().square().sum(0).sqrt()
>>> steps = FrankWolfeSteps(vectors, 1 / norms.float())
>>> steps.run(vectors.double().sum(1), torch.zeros(2), 0.0, 0.0, float(norms.sum()), steps=2).index
tensor([1, 2])
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coresift.search.kernels import compiled, power_of_two, recorded

# Two points are the same if their squared distance is below this share of their squared norms.
SAME = 1e-10
# What kernels look up here is triton.language and its constexpr, from the first time they are needed.
constexpr = Any
tl: Any = None


@dataclass(frozen=True)
class Layout:
    """How a scan is spread over the GPU; the defaults suit an H200.

    A scan has ``programs`` programs a multiprocessor, few enough to be resident all at once: so each writes
    one partial maximum, and the single program that takes the maximum of those stays short. In float16
    there are twice the points in a block and half the rows: so a thread still reads 16 bytes at a time.

    Parameters
    ----------
    block : points a program reads at a time, a power of two.
    rows : rows of a block loaded before the first is used, so that enough is in flight; a power of two.
    warps : of 32 threads, in a program.
    programs : for each multiprocessor.
    """

    block: int = 512
    rows: int = 8
    warps: int = 4
    programs: int = 7


@dataclass(frozen=True)
class Foreseen:
    """The Frank-Wolfe steps that were made, k of them.

    Attributes
    ----------
    index : (k,) long, the vertex of each step.
    gamma : (k,) float64, how far the step went towards it.
    with_target, square : (k,) float64, <target, L(w)> and <L(w), L(w)> after the step.
    refused : the vertex that came no closer, where the steps ended at one; ``None`` where they ended because
        the target was reached, all were made, or no point was left.
    """

    index: Tensor
    gamma: Tensor
    with_target: Tensor
    square: Tensor
    refused: int | None


class FrankWolfeSteps:
    """Frank-Wolfe steps towards a target (paper, Algorithm 1), each to the vertex (sigma / sigma_n) L_n.

    Parameters
    ----------
    vectors : (J, N) float32.
    scale : (N,) float32, 1 / ||L_n||, and zero for points that may not be chosen. It is read anew by each
        run, so points may be closed and opened again between runs; ``close`` closes some.
    half : whether to scan a float16 copy of scale_n L_n first, which is half as much to read and takes half
        as much memory again. The steps are the same. Points closed from the beginning cannot be opened.
    accumulator : in which <target − L(w), L_n> is summed. float64 is hardly slower where memory is the limit.
    layout : of the scan.
    kernels : whether to use Triton; by default on a GPU, where it is installed.

    Attributes
    ----------
    position : (J,) float64, L(w) after the last run.
    """

    def __init__(
        self,
        vectors: Tensor,
        scale: Tensor,
        *,
        half: bool = False,
        accumulator: torch.dtype = torch.float64,
        layout: Layout | None = None,
        kernels: bool | None = None,
    ) -> None:
        self.vectors, self.scale, self.accumulator = _rows_first(vectors), scale, accumulator
        self.position = vectors.new_zeros(len(vectors), dtype=torch.float64)
        self._kernels = _kernels(vectors, kernels)
        layout = layout or Layout()
        layout = replace(layout, block=2 * layout.block) if half else layout
        self._scan, self._rough = _Scan(vectors, layout), _Scan(vectors, layout)
        self._target, self._direction = torch.zeros_like(self.position), torch.zeros_like(self.position)
        # Of the scan in float16: the vectors, the direction, and the largest score of each block.
        self._half = _half_units(vectors, scale) if half else None
        self._unit = torch.zeros_like(self.position, dtype=torch.float32)
        own_blocks = -(-self._scan.blocks // self._scan.programs)
        self._peaks = vectors.new_zeros(self._scan.programs * own_blocks)
        self._numbers = vectors.new_zeros(0, 4, dtype=torch.float64)
        self._loop: _Loop | None = None

    def run(
        self,
        target: Tensor,
        position: Tensor,
        with_target: float,
        square: float,
        sigma: float,
        steps: int,
        close: bool = False,
        tolerance: float = 0.0,
    ) -> Foreseen:
        """Make up to ``steps`` steps; fewer where one would come no closer, or the target is reached.

        Parameters
        ----------
        target : (J,)
        position : (J,), L(w) at the start.
        with_target, square : <target, L(w)> and <L(w), L(w)> at the start.
        sigma : the sum of the norms of the target's points.
        close : choose no point twice: ``scale`` becomes zero where a step went.
        tolerance : the target is reached where ||target − L(w)|| <= tolerance ||target||.
        """
        self._target.copy_(target)
        self.position.copy_(position)
        if self._kernels is None:
            return self._run_plain(with_target, square, sigma, steps, close, tolerance)
        loop = self._recorded(steps)
        start = [0.0, steps, steps > 0, -1.0, with_target, square, sigma, 0.0, tolerance, close, 0.0, 0.0]
        self._numbers[:HEAD] = torch.tensor(start, dtype=torch.float64).view(HEAD, 4)
        self._numbers[1, 3] = self._target.square().sum()
        torch.sub(self._target, self.position, out=self._direction)
        self._unit.copy_(_unit(self._direction))
        loop(self._step, steps)
        numbers = self._numbers[: HEAD + steps].cpu()
        made, refused = int(numbers[0, 0]), int(numbers[0, 3])
        index, gamma, products, squares = numbers[HEAD : HEAD + made].mT.contiguous()
        return Foreseen(index.long(), gamma, products, squares, None if refused < 0 else refused)

    def _recorded(self, steps: int) -> _Loop:
        """The loop, with room for ``steps`` steps in what it writes down."""
        if self._loop is None or len(self._numbers) < HEAD + steps:
            self._numbers = self._numbers.new_zeros(HEAD + max(4096, steps), 4)
            self._loop = _Loop(self._step, self.vectors.device)
        return self._loop

    def _search(
        self,
        vectors: Tensor,
        direction: Tensor,
        scan: _Scan,
        wide: torch.dtype,
        half: bool = False,
        margin: float = 0.0,
    ) -> None:
        height, width = vectors.shape
        rows = max(scan.layout.rows // 2, 1) if half else scan.layout.rows
        self._kernels.frank_wolfe_scan[(scan.programs,)](
            vectors,
            self.scale,
            direction,
            self._numbers,
            scan.values,
            scan.points,
            self._rough.values,
            self._peaks,
            len(self.scale),
            width,
            scan.blocks,
            J=height,
            ROWS=min(rows, power_of_two(height)),
            BLOCK=scan.layout.block,
            PARTIALS=len(scan.values),
            WIDE=getattr(tl, str(wide).removeprefix("torch.")),
            HALF=half,
            MARGIN=margin,
            num_warps=scan.layout.warps,
        )

    def _step(self) -> None:
        (height, size), scan = self.vectors.shape, self._scan
        margin = 0.0
        if self._half is not None:
            self._search(self._half, self._unit, self._rough, torch.float32, half=True)
            margin = 2 * half_error(height)
        self._search(self.vectors, self._direction, scan, self.accumulator, margin=margin)
        self._kernels.frank_wolfe_update[(1,)](
            self.vectors,
            self.scale,
            self._target,
            self.position,
            self._direction,
            self._unit,
            self._numbers,
            scan.values,
            scan.points,
            size,
            J=height,
            WIDTH=power_of_two(height),
            PARTIALS=len(scan.values),
            HEAD=4 * HEAD,
            HALF=self._half is not None,
            num_warps=4,
        )

    def _run_plain(
        self, with_target: float, square: float, sigma: float, steps: int, close: bool, tolerance: float
    ) -> Foreseen:
        target_square = float(self._target.square().sum())
        made: list[tuple[int, float, float, float]] = []
        refused = None
        while len(made) < steps:
            residual = max(target_square - 2 * with_target + square, 0.0) ** 0.5
            direction = self._target - self.position
            scores = _inner(self.vectors, direction, self.accumulator) * self.scale
            scores[self.scale == 0] = -torch.inf
            if self._half is not None:  # saves nothing here, but decides as the kernels do
                rough = _inner(self._half[:, : len(scores)], _unit(direction), torch.float32)
                rough[self.scale == 0] = -torch.inf
                scores[rough < rough.max() - 2 * half_error(len(self.vectors))] = -torch.inf
            value, n = _first_largest(scores)
            if value == -torch.inf or not residual > tolerance * target_square**0.5:
                break
            column = self.vectors[:, n].double()
            height = sigma / float(column.square().sum().sqrt())
            vertex_target = height * float(self._target @ column)
            vertex_sum = height * float(self.position @ column)
            slope = vertex_target - vertex_sum - with_target + square
            length = sigma**2 - 2 * vertex_sum + square
            if slope <= 0 or length <= 0:
                refused = n
                break
            gamma = min(slope / length, 1.0)
            keep = 1 - gamma
            self.position.mul_(keep).add_(column, alpha=gamma * height)
            with_target = keep * with_target + gamma * vertex_target
            square = keep**2 * square + 2 * keep * gamma * vertex_sum + (gamma * sigma) ** 2
            made.append((n, gamma, with_target, square))
            if close:
                self.scale[n] = 0.0
        table = torch.tensor(made, dtype=torch.float64).view(-1, 4)
        index, gammas, products, squares = table.mT.contiguous()
        return Foreseen(index.long(), gammas, products, squares, refused)


class CentreSteps:
    """Steps that make one point after another a centre: farthest first, or largest cluster first (LCMD).

    The squared distance to a new centre is sum_j (L_jm − L_jn)^2 in float64: twice the arithmetic of an inner
    product, but it needs no norms to be read along with the vectors, and equal vectors are at exactly zero.
    So one step reads each vector and each ``nearest`` once, and writes where a point changes hands.

    Cluster sums are kept as whole numbers of a small unit, 2^-61 of their total or less: sums of those do not
    depend on the order in which they are added, so that a batch is the same in each run.

    Parameters
    ----------
    vectors : (J, N) float32.
    squares : (N,) float64, the squared norms; those of new centres say how near counts as the same place.
    nearest : (N,) float64, the squared distance to the nearest centre, finite.
    owner : (N,) int32, the number of that centre.
    sums : (K,) float64, the sum of ``nearest`` by ``owner``; K bounds the number of centres.
    allowed : (N,) bool, the points that may become centres.
    count : the number of centres there are.
    layout, kernels : as for ``FrankWolfeSteps``.

    ``nearest``, ``owner``, ``sums`` and the attribute ``count`` hold the state after each run; these and
    ``allowed`` may be changed in place between runs.
    """

    # Copies of the cluster sums, so that fewer programs wait for one another to add to the same one.
    copies = 8

    def __init__(
        self,
        vectors: Tensor,
        squares: Tensor,
        nearest: Tensor,
        owner: Tensor,
        sums: Tensor,
        allowed: Tensor,
        count: int,
        *,
        layout: Layout | None = None,
        kernels: bool | None = None,
    ) -> None:
        self.vectors, self.squares, self.allowed = _rows_first(vectors), squares, allowed
        self.nearest, self.owner, self.sums, self.count = nearest, owner, sums, count
        self._kernels = _kernels(vectors, kernels)
        self._scan = _Scan(vectors, layout or Layout())
        # The new centre, and the squared distance below which a point is at the same place.
        self._centre = vectors.new_zeros(len(vectors) + 1, dtype=torch.float64)
        self._units = vectors.new_ones(1, dtype=torch.float64)
        self._table = vectors.new_zeros(self.copies, len(sums), dtype=torch.int64)
        self._state = vectors.new_zeros(STATE + len(sums), dtype=torch.int64)
        self._loops: dict[bool, _Loop] = {}

    def run(self, steps: int, largest_cluster: bool) -> Tensor:
        """Make up to ``steps`` points centres; (k,) long, their indices.

        Fewer come back where no allowed point is at a distance above zero: of all points or, with
        ``largest_cluster``, of the cluster with the largest sum.
        """
        if self.count + steps > len(self.sums):
            raise ValueError(
                f"{steps} more centres beside {self.count} need sums of that many, got {len(self.sums)}"
            )
        if self._kernels is None:
            return self._run_plain(steps, largest_cluster)
        step = functools.partial(self._step, largest_cluster)
        if largest_cluster not in self._loops:
            self._loops[largest_cluster] = _Loop(step, self.vectors.device)
        self._state[:STATE] = torch.tensor([0, steps, 1, 0, self.count])
        # A power of two, so that only the cut to whole units rounds.
        largest = self.sums[: self.count].sum().clamp(min=torch.finfo(torch.float32).tiny)
        self._units[0] = torch.exp2(torch.floor(61 - torch.log2(largest)))
        self._table.zero_()
        self._table[0, : self.count] = (self.sums[: self.count] * self._units).long()
        self._loops[largest_cluster](step, steps)
        torch.div(self._table.sum(0), self._units, out=self.sums)
        state = self._state[: STATE + steps].cpu()
        made = int(state[0])
        self.count += made
        return state[STATE : STATE + made]

    def _step(self, largest_cluster: bool) -> None:
        height, size = self.vectors.shape
        scan, kernels = self._scan, self._kernels
        if largest_cluster:
            kernels.largest_cluster[(1,)](
                self._table, self._state, len(self.sums), COPIES=self.copies, TILE=1024, num_warps=4
            )
        kernels.farthest[(scan.programs,)](
            self.nearest,
            self.owner,
            self.allowed.view(torch.uint8),
            self._state,
            scan.values,
            scan.points,
            size,
            BLOCK=2 * scan.layout.block,
            LARGEST=largest_cluster,
            num_warps=scan.layout.warps,
        )
        kernels.next_centre[(1,)](
            self.vectors,
            self.squares,
            self.owner,
            self._centre,
            self._state,
            scan.values,
            scan.points,
            size,
            J=height,
            WIDTH=power_of_two(height),
            PARTIALS=len(scan.values),
            SHARE=2 * SAME,
            STATE=STATE,
            num_warps=4,
        )
        kernels.add_centre[(scan.programs,)](
            self.vectors,
            self.nearest,
            self.owner,
            self._table,
            self._centre,
            self._units,
            self._state,
            size,
            scan.blocks,
            len(self.sums),
            J=height,
            ROWS=min(scan.layout.rows, power_of_two(height)),
            BLOCK=scan.layout.block,
            COPIES=self.copies,
            num_warps=scan.layout.warps,
        )

    def _run_plain(self, steps: int, largest_cluster: bool) -> Tensor:
        chosen: list[int] = []
        while len(chosen) < steps:
            candidates = self.allowed & (self.nearest > 0)
            if largest_cluster:
                candidates &= self.owner == _first_largest(self.sums[: self.count])[1]
            farthest, n = _first_largest(torch.where(candidates, self.nearest, 0.0))
            if farthest == 0:
                break
            distance = torch.zeros_like(self.nearest)
            for row in self.vectors:
                distance += (row.double() - row[n].double()).square_()
            distance[distance <= 2 * SAME * self.squares[n]] = 0.0
            closer = (distance < self.nearest).nonzero()[:, 0]
            self.sums.index_add_(0, self.owner[closer], -self.nearest[closer])
            self.sums[self.count] = distance[closer].sum()
            self.nearest[closer], self.owner[closer] = distance[closer], self.count
            self.count += 1
            chosen.append(n)
        return torch.tensor(chosen, dtype=torch.long)


def _rows_first(vectors: Tensor) -> Tensor:
    if vectors.dtype != torch.float32 or not vectors.is_contiguous():
        raise ValueError("vectors must be float32 with rows contiguous in memory, as (J, N)")
    return vectors


def _half_units(vectors: Tensor, scale: Tensor) -> Tensor:
    """(J, W) float16, scale_n L_n and then zeros: W is a multiple of 16, so that rows are read fast."""
    height, size = vectors.shape
    units = vectors.new_zeros(height, -(-size // 16) * 16, dtype=torch.float16)
    for row, unit in zip(vectors, units, strict=True):  # one at a time: this is made where memory is scarce
        torch.mul(row, scale, out=unit[:size])
    return units


def half_error(height: int) -> float:
    """How far the score of a unit vector of J numbers, rounded to float16, is from the true one at most.

    Rounding moves a number by 2^-11 of itself, or by 2^-25 where it is too small for that: so the vector by
    no more than 2^-11 + sqrt(J) 2^-25, and as much its product with a direction of length one. Float32 sums
    of J products are off by J 2^-24; those of the scan that has the last word may be float32 too. A few more
    roundings are those of the scale, of the product with it, and of the direction.

    A point that wins is no worse than the one with the largest rounded score. Each of the two scores may be
    off by this: so that of the winner is not lower by more than twice as much.
    """
    return 2**-11 + math.sqrt(height) * 2**-25 + (height + 8) * 2**-23


def _unit(direction: Tensor) -> Tensor:
    """The direction (J,) at length one, so that float32 holds it; zero stays zero."""
    return direction / direction.square().sum().sqrt().clamp(min=1e-100)


def _inner(vectors: Tensor, direction: Tensor, accumulator: torch.dtype) -> Tensor:
    """<direction, L_n> (N,), summed row by row as in the kernel: so equal vectors have equal scores."""
    products = torch.zeros_like(vectors[0], dtype=accumulator)
    for row, weight in zip(vectors, direction.tolist(), strict=True):
        products.add_(row, alpha=weight)
    return products


def _first_largest(values: Tensor) -> tuple[float, int]:
    """The largest value and its lowest index; argmax promises no order among ties on a GPU."""
    largest = values.max()
    return float(largest), int((values == largest).nonzero()[0])


class _Scan:
    """The grid of a scan, and its partial maxima: (P,) values and the points they are at."""

    def __init__(self, vectors: Tensor, layout: Layout) -> None:
        device = vectors.device
        # Elsewhere than on a GPU there is nothing to fill: some programs of several blocks, for tests.
        units = torch.cuda.get_device_properties(device).multi_processor_count if vectors.is_cuda else 1
        self.layout = layout
        self.blocks = -(-vectors.shape[1] // layout.block)
        self.programs = min(self.blocks, layout.programs * units)
        self.values = torch.full((power_of_two(self.programs),), -torch.inf, device=device).double()
        self.points = torch.zeros_like(self.values, dtype=torch.int64)


class _Loop:
    """Repeats a step; on a GPU as a graph of many, so that the host starts ``length`` steps with one call.

    It must be made while the step's state says that none are left to make: the first call compiles kernels.
    It keeps no step, which would keep its owner, and so this, alive until cycles are looked for.
    """

    length = 32

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self.device, self._graph = device, None
        if device.type != "cuda":
            return

        def many() -> None:
            for _ in range(self.length):
                step()

        with torch.cuda.device(device):
            step()
            torch.cuda.synchronize()
            self._graph = recorded(many, others_go_on=True)

    def __call__(self, step: Callable[[], None], steps: int) -> None:
        if self._graph is None:
            for _ in range(steps):
                step()
        else:
            with torch.cuda.device(self.device):
                for _ in range(0, steps, self.length):
                    self._graph.replay()


def _kernels(vectors: Tensor, wanted: bool | None) -> Any:
    """The kernels by name, or ``None`` where plain torch is to do their work."""
    if wanted is False or (wanted is None and not vectors.is_cuda):
        return None
    kernels = _compiled()
    if kernels is None and wanted:
        raise ImportError("the kernels need Triton: pip install triton")
    return kernels


@functools.cache
def _compiled() -> Any:
    return compiled(
        globals(),
        _frank_wolfe_scan,
        _frank_wolfe_update,
        _largest_cluster,
        _farthest,
        _next_centre,
        _add_centre,
    )


# Kernels. Program p of a scan reads the blocks p, p + P, p + 2P, ... Each thread keeps the best of its own
# points, with the number of the block; only at the end are they compared with one another. Offsets into the
# vectors are 64-bit, J N may exceed 2^31. A kernel of one program loads all that it changes before a barrier:
# its threads do not run in step.

# Rows of ``numbers`` before the steps: made, limit, moving, refused; with_target, square, sigma,
# target_square; tolerance, close. Then, for each step, its index, gamma, with_target and square.
HEAD = 3


def _frank_wolfe_scan(
    vectors: typing.Any,
    scale: typing.Any,
    direction: typing.Any,
    numbers: typing.Any,
    values: typing.Any,
    points: typing.Any,
    rough: typing.Any,
    peaks: typing.Any,
    size: typing.Any,
    width: typing.Any,
    blocks: typing.Any,
    J: constexpr,
    ROWS: constexpr,
    BLOCK: constexpr,
    PARTIALS: constexpr,
    WIDE: constexpr,
    HALF: constexpr,
    MARGIN: constexpr,
) -> None:
    """Each program's largest <direction, L_n> scale_n and its n.

    With HALF the vectors are scaled already, and the largest score of each block goes to ``peaks``. With a
    MARGIN above zero, blocks whose peak is further than that below the largest of ``rough`` are left out.
    """
    program = tl.program_id(0)
    stride = tl.cast(width, tl.int64)
    rows = tl.arange(0, ROWS)
    lanes = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), WIDE)
    best_block = tl.zeros((BLOCK,), tl.int32)
    last = tl.where(tl.load(numbers + 2) > 0, blocks, 0)
    # Those of one program lie side by side, so that reading one brings the next ones along.
    peak = peaks + program * tl.cdiv(blocks, tl.num_programs(0))
    if MARGIN > 0:
        lowest = tl.max(tl.load(rough + tl.arange(0, PARTIALS)), axis=0) - MARGIN
    for block in range(program, last, tl.num_programs(0)):
        if (tl.load(peak) >= lowest) if MARGIN > 0 else True:
            point = tl.cast(block, tl.int64) * BLOCK + lanes
            inside = point < width
            scores = tl.zeros((BLOCK,), WIDE)
            for first in range(0, J, ROWS):
                at = first + rows
                weight = tl.load(direction + at, mask=at < J, other=0.0).to(WIDE)
                mask = (at < J)[:, None] & inside[None, :]
                columns = tl.load(vectors + at[:, None] * stride + point[None, :], mask=mask, other=0.0)
                scores += tl.sum(weight[:, None] * columns.to(WIDE), axis=0)
            scaling = tl.load(scale + point, mask=point < size, other=0.0)
            if not HALF:
                scores = scores * scaling.to(WIDE)
            scores = tl.where(scaling > 0, scores, float("-inf"))
            better = scores > best
            best = tl.where(better, scores, best)
            best_block = tl.where(better, block, best_block)
            if HALF:
                tl.store(peak, tl.max(scores, axis=0))
        peak += 1
    largest = tl.max(best, axis=0)
    point = best_block.to(tl.int64) * BLOCK + lanes
    tl.store(values + program, largest)
    tl.store(points + program, tl.min(tl.where(best == largest, point, 2**62), axis=0))


def _frank_wolfe_update(
    vectors: typing.Any,
    scale: typing.Any,
    target: typing.Any,
    position: typing.Any,
    direction: typing.Any,
    unit: typing.Any,
    numbers: typing.Any,
    values: typing.Any,
    points: typing.Any,
    size: typing.Any,
    J: constexpr,
    WIDTH: constexpr,
    PARTIALS: constexpr,
    HEAD: constexpr,
    HALF: constexpr,
) -> None:
    """The line search towards the best point, and all that follows from it; one program."""
    made = tl.load(numbers)
    limit = tl.load(numbers + 1)
    moving = tl.load(numbers + 2)
    with_target = tl.load(numbers + 4)
    square = tl.load(numbers + 5)
    sigma = tl.load(numbers + 6)
    target_square = tl.load(numbers + 7)
    tolerance = tl.load(numbers + 8)
    close = tl.load(numbers + 9)
    if moving > 0:
        partial = tl.arange(0, PARTIALS)
        value = tl.load(values + partial)
        largest = tl.max(value, axis=0)
        n = tl.min(tl.where(value == largest, tl.load(points + partial), 2**62), axis=0)
        found = largest > float("-inf")
        n = tl.where(found, n, 0)
        row = tl.arange(0, WIDTH)
        offset = row.to(tl.int64) * size + n
        column = tl.load(vectors + offset, mask=row < J, other=0.0).to(tl.float64)
        towards = tl.load(target + row, mask=row < J, other=0.0)
        held = tl.load(position + row, mask=row < J, other=0.0)
        height = sigma / tl.sqrt(tl.sum(column * column, axis=0))
        vertex_target = height * tl.sum(towards * column, axis=0)
        vertex_sum = height * tl.sum(held * column, axis=0)
        slope = vertex_target - vertex_sum - with_target + square
        length = sigma * sigma - 2 * vertex_sum + square
        residual = tl.sqrt(tl.maximum(target_square - 2 * with_target + square, 0.0))
        apart = found & (residual > tolerance * tl.sqrt(target_square))
        tl.debug_barrier()
        if apart & (slope > 0) & (length > 0):
            gamma = tl.minimum(slope / length, 1.0)
            keep = 1 - gamma
            held = keep * held + gamma * height * column
            tl.store(position + row, held, mask=row < J)
            ahead = towards - held
            tl.store(direction + row, ahead, mask=row < J)
            if HALF:
                ahead = ahead / tl.maximum(tl.sqrt(tl.sum(ahead * ahead, axis=0)), 1e-100)
                tl.store(unit + row, ahead.to(tl.float32), mask=row < J)
            with_target = keep * with_target + gamma * vertex_target
            square = keep * keep * square + 2 * keep * gamma * vertex_sum + gamma * sigma * gamma * sigma
            step = numbers + HEAD + 4 * made.to(tl.int64)
            tl.store(step, n.to(tl.float64))
            tl.store(step + 1, gamma)
            tl.store(step + 2, with_target)
            tl.store(step + 3, square)
            tl.store(numbers, made + 1)
            tl.store(numbers + 2, tl.where(made + 1 < limit, 1.0, 0.0))
            tl.store(numbers + 4, with_target)
            tl.store(numbers + 5, square)
            tl.store(scale + n, 0.0, mask=close > 0)
        else:
            tl.store(numbers + 2, 0.0)
            tl.store(numbers + 3, tl.where(apart, n.to(tl.float64), -1.0))


# Entries of ``state`` before the indices of the steps: made, limit, moving, the cluster of the point that is
# next, the number of centres.
STATE = 5


def _largest_cluster(
    table: typing.Any, state: typing.Any, capacity: typing.Any, COPIES: constexpr, TILE: constexpr
) -> None:
    """The cluster with the largest sum; one program."""
    going = (tl.load(state + 2) > 0) & (tl.load(state) < tl.load(state + 1))
    count = tl.load(state + 4)
    lanes = tl.arange(0, TILE)
    best = tl.full((TILE,), -1, tl.int64)
    best_cluster = tl.zeros((TILE,), tl.int64)
    for first in range(0, tl.where(going, count, 0), TILE):
        cluster = tl.cast(first, tl.int64) + lanes
        total = tl.zeros((TILE,), tl.int64)
        for copy in tl.static_range(COPIES):
            total += tl.load(table + copy * capacity + cluster, mask=cluster < count, other=-1)
        better = total > best
        best = tl.where(better, total, best)
        best_cluster = tl.where(better, cluster, best_cluster)
    largest = tl.max(best, axis=0)
    tl.store(state + 3, tl.min(tl.where(best == largest, best_cluster, 2**62), axis=0))


def _farthest(
    nearest: typing.Any,
    owner: typing.Any,
    allowed: typing.Any,
    state: typing.Any,
    values: typing.Any,
    points: typing.Any,
    size: typing.Any,
    BLOCK: constexpr,
    LARGEST: constexpr,
) -> None:
    """Each program's allowed point farthest from its centre, in the one cluster or in all."""
    program = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    best = tl.zeros((BLOCK,), tl.float64)
    best_block = tl.zeros((BLOCK,), tl.int32)
    going = (tl.load(state + 2) > 0) & (tl.load(state) < tl.load(state + 1))
    cluster = tl.load(state + 3)
    for block in range(program, tl.where(going, tl.cdiv(size, BLOCK), 0), tl.num_programs(0)):
        point = tl.cast(block, tl.int64) * BLOCK + lanes
        member = point < size
        if LARGEST:  # the other clusters' distances are not even read
            member = tl.load(owner + point, mask=member, other=-1) == cluster
        candidate = tl.load(allowed + point, mask=member, other=0) != 0
        distance = tl.load(nearest + point, mask=member, other=0.0)
        better = candidate & (distance > best)
        best = tl.where(better, distance, best)
        best_block = tl.where(better, block, best_block)
    largest = tl.max(best, axis=0)
    point = best_block.to(tl.int64) * BLOCK + lanes
    tl.store(values + program, largest)
    tl.store(points + program, tl.min(tl.where(best == largest, point, 2**62), axis=0))


def _next_centre(
    vectors: typing.Any,
    squares: typing.Any,
    owner: typing.Any,
    centre: typing.Any,
    state: typing.Any,
    values: typing.Any,
    points: typing.Any,
    size: typing.Any,
    J: constexpr,
    WIDTH: constexpr,
    PARTIALS: constexpr,
    SHARE: constexpr,
    STATE: constexpr,
) -> None:
    """Write the farthest point down as the next centre; one program."""
    made = tl.load(state)
    going = (tl.load(state + 2) > 0) & (made < tl.load(state + 1))
    count = tl.load(state + 4)
    partial = tl.arange(0, PARTIALS)
    value = tl.load(values + partial)
    largest = tl.max(value, axis=0)
    n = tl.min(tl.where(value == largest, tl.load(points + partial), 2**62), axis=0)
    tl.debug_barrier()
    if going & (largest > 0):
        row = tl.arange(0, WIDTH)
        column = tl.load(vectors + row.to(tl.int64) * size + n, mask=row < J, other=0.0)
        tl.store(centre + row, column.to(tl.float64), mask=row < J)
        tl.store(centre + J, SHARE * tl.load(squares + n))
        tl.store(state + STATE + made, n)
        tl.store(state, made + 1)
        tl.store(state + 3, tl.load(owner + n).to(tl.int64))
        tl.store(state + 4, count + 1)
    else:
        tl.store(state + 2, 0)


def _add_centre(
    vectors: typing.Any,
    nearest: typing.Any,
    owner: typing.Any,
    table: typing.Any,
    centre: typing.Any,
    units: typing.Any,
    state: typing.Any,
    size: typing.Any,
    blocks: typing.Any,
    capacity: typing.Any,
    J: constexpr,
    ROWS: constexpr,
    BLOCK: constexpr,
    COPIES: constexpr,
) -> None:
    """Give points to the new centre where it is closer, and move their distances between cluster sums."""
    program = tl.program_id(0)
    stride = tl.cast(size, tl.int64)
    rows = tl.arange(0, ROWS)
    lanes = tl.arange(0, BLOCK)
    cluster = tl.load(state + 3)
    number = tl.load(state + 4) - 1
    same = tl.load(centre + J)
    unit = tl.load(units)
    sums = table + (program % COPIES) * capacity
    gained = tl.zeros((BLOCK,), tl.int64)
    lost = tl.zeros((BLOCK,), tl.int64)
    going = tl.load(state + 2) > 0
    for block in range(program, tl.where(going, blocks, 0), tl.num_programs(0)):
        point = tl.cast(block, tl.int64) * BLOCK + lanes
        inside = point < size
        distance = tl.zeros((BLOCK,), tl.float64)
        for first in range(0, J, ROWS):
            at = first + rows
            middle = tl.load(centre + at, mask=at < J, other=0.0)
            mask = (at < J)[:, None] & inside[None, :]
            columns = tl.load(vectors + at[:, None] * stride + point[None, :], mask=mask, other=0.0)
            apart = columns.to(tl.float64) - middle[:, None]
            distance += tl.sum(apart * apart, axis=0)
        distance = tl.where(distance <= same, 0.0, distance)
        before = tl.load(nearest + point, mask=inside, other=0.0)
        closer = distance < before
        former = tl.load(owner + point, mask=closer, other=0)
        released = (before * unit).to(tl.int64)
        # The smaller of the two even where it is not used: a distance may be too large for 64 bits.
        gained += tl.where(closer, (tl.minimum(distance, before) * unit).to(tl.int64), 0)
        # Most points come from the cluster in which the new centre lies: those are added up first.
        lost += tl.where(closer & (former == cluster), released, 0)
        tl.atomic_add(sums + former, -released, mask=closer & (former != cluster), sem="relaxed")
        tl.store(nearest + point, distance, mask=closer)
        tl.store(owner + point, number.to(tl.int32), mask=closer)
    tl.atomic_add(sums + number, tl.sum(gained, axis=0), mask=going, sem="relaxed")
    tl.atomic_add(sums + cluster, -tl.sum(lost, axis=0), mask=going, sem="relaxed")
