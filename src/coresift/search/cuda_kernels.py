"""Triton kernels of the CUDA engine: `coresift.search.cuda` launches them.

Vectors lie as (D, N) float32, column n is L_n. Program p of a scan reads the blocks p, p + P, p + 2P, ... of
the points. Each thread keeps the best of its own points, with the number of the block, and compares it with
those of other threads only at the end. Ties go to the lowest index. Offsets into the vectors are 64-bit,
since D N may exceed 2^31.

A step that finds no point passes the index -1 on, and the kernels after it change nothing.
"""

from __future__ import annotations

import functools
import typing
from types import SimpleNamespace
from typing import Any

# Kernels look up triton.language and its constexpr here, from the first use on.
constexpr = Any
tl: Any = None


@functools.cache
def cuda_kernels() -> SimpleNamespace:
    """Compile the kernels; by name, without the underscore."""
    import triton
    from triton import language

    globals().update(tl=language, constexpr=language.constexpr)
    functions = _score, _largest, _largest_cluster, _farthest, _prepare_centre, _add_centre
    return SimpleNamespace(**{function.__name__[1:]: triton.jit(function) for function in functions})


def _score(
    vectors: typing.Any,
    is_open: typing.Any,
    element: typing.Any,
    orthogonal_to: typing.Any,
    values: typing.Any,
    points: typing.Any,
    size: typing.Any,
    blocks: typing.Any,
    D: constexpr,
    ROWS: constexpr,
    BLOCK: constexpr,
    ORTHOGONAL: constexpr,
    TIED: constexpr,
) -> None:
    """Find each program's largest <element, L_n> / ||L_n|| among the open points, and its n.

    With ORTHOGONAL, a unit vector u, the norm is that of the part of L_n orthogonal to u. All sums are in
    float64. The norm costs arithmetic only, which takes less time than reading stored norms.
    """
    program = tl.program_id(0)
    stride = tl.cast(size, tl.int64)
    rows = tl.arange(0, ROWS)
    lanes = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), -1e300, tl.float64)
    best_block = tl.zeros((BLOCK,), tl.int32)
    for block in range(program, blocks, tl.num_programs(0)):
        point = tl.cast(block, tl.int64) * BLOCK + lanes
        inside = point < size
        candidate = tl.load(is_open + point, mask=inside, other=0) != 0
        along = tl.zeros((BLOCK,), tl.float64)
        square = tl.zeros((BLOCK,), tl.float64)
        shared = tl.zeros((BLOCK,), tl.float64)
        for first in range(0, D, ROWS):
            at = first + rows
            mask = (at < D)[:, None] & inside[None, :]
            columns = tl.load(vectors + at[:, None] * stride + point[None, :], mask=mask, other=0.0)
            columns = columns.to(tl.float64)
            weight = tl.load(element + at, mask=at < D, other=0.0)
            along += tl.sum(weight[:, None] * columns, axis=0)
            square += tl.sum(columns * columns, axis=0)
            if ORTHOGONAL:
                weight = tl.load(orthogonal_to + at, mask=at < D, other=0.0)
                shared += tl.sum(weight[:, None] * columns, axis=0)
        if ORTHOGONAL:
            square = tl.maximum(square - shared * shared, 1e-12 * square)
        score = along * tl.rsqrt(tl.maximum(square, 1e-300))
        # A later point must be better by more than rounding.
        better = candidate & (score > best + TIED * tl.abs(best))
        best = tl.where(better, score, best)
        best_block = tl.where(better, block, best_block)
    largest = tl.max(best, axis=0)
    point = best_block.to(tl.int64) * BLOCK + lanes
    tied = best >= largest - TIED * tl.abs(largest)
    tl.store(values + program, largest)
    tl.store(points + program, tl.min(tl.where(tied, point, 2**62), axis=0))


def _largest(
    values: typing.Any,
    points: typing.Any,
    index: typing.Any,
    vectors: typing.Any,
    vector: typing.Any,
    size: typing.Any,
    D: constexpr,
    TILE: constexpr,
    PARTIALS: constexpr,
    LOWEST: constexpr,
    TIED: constexpr,
) -> None:
    """Reduce the partial maxima to one index, or -1 if none is above LOWEST; one program.

    With D above zero, also copy the vector of that point, in float64.
    """
    partial = tl.arange(0, PARTIALS)
    value = tl.load(values + partial)
    largest = tl.max(value, axis=0)
    tied = value >= largest - TIED * tl.abs(largest)
    n = tl.min(tl.where(tied, tl.load(points + partial), 2**62), axis=0)
    n = tl.where(largest > LOWEST, n, -1)
    tl.store(index, n)
    for first in range(0, D, TILE):
        row = first + tl.arange(0, TILE)
        offset = row.to(tl.int64) * size + tl.maximum(n, 0)
        column = tl.load(vectors + offset, mask=row < D, other=0.0)
        tl.store(vector + row, column.to(tl.float64), mask=row < D)


def _largest_cluster(
    table: typing.Any,
    state: typing.Any,
    index: typing.Any,
    capacity: typing.Any,
    COPIES: constexpr,
    TILE: constexpr,
) -> None:
    """Find the cluster with the largest sum; one program."""
    count = tl.load(state)
    lanes = tl.arange(0, TILE)
    best = tl.full((TILE,), -1, tl.int64)
    best_cluster = tl.zeros((TILE,), tl.int64)
    for first in range(0, count, TILE):
        cluster = tl.cast(first, tl.int64) + lanes
        total = tl.zeros((TILE,), tl.int64)
        for copy in tl.static_range(COPIES):
            total += tl.load(table + copy * capacity + cluster, mask=cluster < count, other=-1)
        better = total > best
        best = tl.where(better, total, best)
        best_cluster = tl.where(better, cluster, best_cluster)
    largest = tl.max(best, axis=0)
    tl.store(index, tl.min(tl.where(best == largest, best_cluster, 2**62), axis=0))


def _farthest(
    nearest: typing.Any,
    owner: typing.Any,
    is_open: typing.Any,
    cluster: typing.Any,
    values: typing.Any,
    points: typing.Any,
    size: typing.Any,
    BLOCK: constexpr,
    ONE_CLUSTER: constexpr,
) -> None:
    """Find each program's open point farthest from its centre, in one cluster or in all."""
    program = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    best = tl.zeros((BLOCK,), tl.float32)
    best_block = tl.zeros((BLOCK,), tl.int32)
    for block in range(program, tl.cdiv(size, BLOCK), tl.num_programs(0)):
        point = tl.cast(block, tl.int64) * BLOCK + lanes
        member = point < size
        if ONE_CLUSTER:  # distances in other clusters are not even read
            member = tl.load(owner + point, mask=member, other=-1) == tl.load(cluster)
        candidate = tl.load(is_open + point, mask=member, other=0) != 0
        distance = tl.load(nearest + point, mask=member, other=0.0)
        better = candidate & (distance > best)
        best = tl.where(better, distance, best)
        best_block = tl.where(better, block, best_block)
    largest = tl.max(best, axis=0)
    point = best_block.to(tl.int64) * BLOCK + lanes
    tl.store(values + program, largest.to(tl.float64))
    tl.store(points + program, tl.min(tl.where(best == largest, point, 2**62), axis=0))


def _prepare_centre(
    vectors: typing.Any,
    owner: typing.Any,
    index: typing.Any,
    centre: typing.Any,
    state: typing.Any,
    size: typing.Any,
    D: constexpr,
    TILE: constexpr,
    SAME: constexpr,
) -> None:
    """Copy the vector of a point for `_add_centre`, and count it as a centre; one program.

    ``state`` holds the number of centres, and the cluster in which the new one lies, or -1 if there is none.
    ``centre`` holds the D numbers and the squared distance up to which points count as the same.
    """
    n = tl.load(index)
    count = tl.load(state)
    found = n >= 0
    cluster = tl.load(owner + n, mask=found, other=-1)
    square = tl.zeros((TILE,), tl.float64)
    for first in range(0, D, TILE):
        row = first + tl.arange(0, TILE)
        offset = row.to(tl.int64) * size + n
        column = tl.load(vectors + offset, mask=(row < D) & found, other=0.0).to(tl.float64)
        tl.store(centre + row, column, mask=row < D)
        square += column * column
    least = 2 * SAME * tl.sum(square, axis=0)  # of the new centre and of a point near it
    tl.debug_barrier()  # all threads have read the state before one of them changes it
    tl.store(centre + D, least)
    tl.store(state, tl.where(found, count + 1, count))
    tl.store(state + 1, cluster.to(tl.int64))


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
    D: constexpr,
    ROWS: constexpr,
    BLOCK: constexpr,
    COPIES: constexpr,
    LEAST: constexpr,
) -> None:
    """Give points to the new centre where it is closer, and move their distances between cluster sums.

    Differences are squared in float64: equal vectors are at exactly zero. Distances are rounded to float32 in
    units of the space, as on a CPU. Sums are integers, so that they do not depend on the order of additions.
    """
    program = tl.program_id(0)
    stride = tl.cast(size, tl.int64)
    rows = tl.arange(0, ROWS)
    lanes = tl.arange(0, BLOCK)
    number, cluster = tl.load(state) - 1, tl.load(state + 1)
    least = tl.load(centre + D)
    unit, per_unit = tl.load(units), tl.load(units + 1)
    sums = table + (program % COPIES) * capacity
    gained = tl.zeros((BLOCK,), tl.int64)
    lost = tl.zeros((BLOCK,), tl.int64)
    for block in range(program, tl.where(cluster >= 0, blocks, 0), tl.num_programs(0)):
        point = tl.cast(block, tl.int64) * BLOCK + lanes
        inside = point < size
        before = tl.load(nearest + point, mask=inside, other=0.0)
        distance = tl.zeros((BLOCK,), tl.float64)
        for first in range(0, D, ROWS):
            at = first + rows
            middle = tl.load(centre + at, mask=at < D, other=0.0)
            mask = (at < D)[:, None] & inside[None, :]
            columns = tl.load(vectors + at[:, None] * stride + point[None, :], mask=mask, other=0.0)
            apart = columns.to(tl.float64) - middle[:, None]
            distance += tl.sum(apart * apart, axis=0)
        rounded = distance * per_unit
        rounded = tl.where((distance <= least) | (rounded <= LEAST), 0.0, rounded).to(tl.float32)
        closer = rounded < before
        former = tl.load(owner + point, mask=closer, other=0)
        released = (before.to(tl.float64) * unit).to(tl.int64)
        # The smaller of the two even where it is not used: a distance may be too large for 64 bits.
        kept = (tl.minimum(rounded, before).to(tl.float64) * unit).to(tl.int64)
        gained += tl.where(closer, kept, 0)
        # Most points come from the cluster in which the new centre lies: those are added up first.
        lost += tl.where(closer & (former == cluster), released, 0)
        tl.atomic_add(sums + former, -released, mask=closer & (former != cluster), sem="relaxed")
        tl.store(nearest + point, rounded, mask=closer)
        tl.store(owner + point, number.to(tl.int32), mask=closer)
    added = cluster >= 0
    tl.atomic_add(sums + number, tl.sum(gained, axis=0), mask=added, sem="relaxed")
    tl.atomic_add(sums + cluster, -tl.sum(lost, axis=0), mask=added, sem="relaxed")
