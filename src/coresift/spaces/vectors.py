"""Stored vectors: one column of D numbers for each point of the pool, in memory or on disk."""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from coresift import limits
from coresift.checks import as_bytes, check_finite, check_shape
from coresift.errors import InputError
from coresift.pool import Pool, as_pool, first_row, read
from coresift.spaces.base import Problem, Space, norm_sum, norms_at, selectable
from coresift.types import Chunk

# Vectors whose largest norm is between 2**-48 and 2**48 stay as they are: float32 holds what is computed from
# them.
MODERATE = 48


class Columns(ABC):
    """A table of R rows and N columns, a column for each point of a pool.

    It lies row by row, and not point by point: a scan of a large pool then reads memory in order.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    block: int  # how many columns a part has, but for the last

    def __len__(self) -> int:
        return self.shape[1]

    def parts(self) -> list[slice]:
        """The blocks, in order."""
        size = len(self)
        return [slice(start, min(start + self.block, size)) for start in range(0, size, self.block)]

    @abstractmethod
    def part(self, part: slice) -> Tensor:
        """(R, n) the columns of one of `parts`; what is written into them stays written."""

    @abstractmethod
    def at(self, index: Tensor) -> Tensor:
        """(R, k) a copy of the columns ``index``."""

    def write(self, start: int, values: Tensor) -> None:
        """Put columns (R, n) at ``start``."""
        stop = start + values.shape[1]
        for first in range(start - start % self.block, stop, self.block):
            part = slice(first, min(first + self.block, len(self)))
            low, high = max(first, start), min(part.stop, stop)
            self.part(part)[:, low - first : high - first] = values[:, low - start : high - start]


class InMemory(Columns):
    """Columns in a tensor, on a CPU or a GPU."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.shape, self.dtype, self.device = (values.shape[0], values.shape[1]), values.dtype, values.device
        self.block = limits.BLOCK_OF_COLUMNS_ON_GPU if values.is_cuda else limits.BLOCK_OF_COLUMNS

    @classmethod
    def empty(cls, rows: int, size: int, dtype: torch.dtype, device: torch.device) -> InMemory:
        """Room for a table. On a CPU it is numpy's, which asks for huge pages: a scan is a tenth faster."""
        if device.type != "cpu":
            return cls(torch.empty(rows, size, dtype=dtype, device=device))
        return cls(torch.from_numpy(np.empty((rows, size), torch.empty(0, dtype=dtype).numpy().dtype)))

    def part(self, part: slice) -> Tensor:
        return self.values[:, part]

    def at(self, index: Tensor) -> Tensor:
        return take(self.values, index)


class OnDisk(Columns):
    """Columns in a temporary file without a name, which is gone with the process whatever happens to it.

    A block lies in one piece and is mapped into memory only while it is used, so that the process never
    holds more than a few of them. ``block`` keeps them at the borders of pages, as multiples of 1024 do.
    """

    device = torch.device("cpu")

    def __init__(self, rows: int, size: int, dtype: torch.dtype, block: int) -> None:
        self.shape, self.dtype, self.block = (rows, size), dtype, block
        self._file = tempfile.TemporaryFile(prefix="coresift-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        folder = tempfile.gettempdir()
        needed, free = rows * size * dtype.itemsize, shutil.disk_usage(folder).free
        if needed > free:
            raise InputError(
                f"the pool's vectors need {as_bytes(needed)} of disk, but {folder} has {as_bytes(free)}; "
                "set TMPDIR to a folder with more, or ask for fewer num_samples"
            )
        if hasattr(os, "posix_fallocate"):  # a disk that fills up later would end the process
            os.posix_fallocate(self._file.fileno(), 0, needed)
        else:
            os.truncate(self._file.fileno(), needed)

    def part(self, part: slice) -> Tensor:
        rows, num = self.shape[0], part.stop - part.start
        width = rows * self.dtype.itemsize
        mapped = mmap.mmap(self._file.fileno(), num * width, offset=part.start * width)
        return torch.frombuffer(mapped, dtype=self.dtype).view(rows, num)

    def at(self, index: Tensor) -> Tensor:
        found = torch.empty(self.shape[0], len(index), dtype=self.dtype)
        numbers = index // self.block
        for number in torch.unique(numbers).tolist():
            here, first = (numbers == number).nonzero()[:, 0], number * self.block
            columns = self.part(slice(first, min(first + self.block, len(self))))
            found[:, here] = take(columns, index[here] - first)
        return found


def map_pool(
    pool: Pool,
    block: int,
    vectors: Callable[[Chunk], Tensor],
    memory: int | None = None,
    dtype: torch.dtype | None = None,
) -> Columns:
    """Read a pool and keep a vector for each point: in memory, or on disk if they do not fit there.

    ``vectors`` maps a block of n points, which says where they begin in the whole pool, to (D, n). These are
    kept as ``dtype``; ``memory`` is how many bytes the process may hold.
    """
    columns: Columns | None = None
    for chunk in read(pool, block):
        values = vectors(Chunk(first_row(pool) + chunk.start, chunk.x))
        if columns is None:
            columns = _room(len(values), len(pool), dtype or values.dtype, values.device, memory)
        columns.write(chunk.start, values)
    assert columns is not None, "a pool holds at least one row"
    return columns


def _room(rows: int, size: int, dtype: torch.dtype, device: torch.device, memory: int | None) -> Columns:
    needed = bytes_per_vector(rows, dtype) * size + limits.LIBRARY_BYTES
    if memory is None or needed <= memory or device.type != "cpu":
        return InMemory.empty(rows, size, dtype, device)
    page = max(mmap.ALLOCATIONGRANULARITY // 4, 1024)  # in numbers of four bytes
    # Blocks that fill a small share of the memory.
    block = max(memory // 32 // (rows * dtype.itemsize) // page, 1) * page
    columns = OnDisk(rows, size, dtype, min(block, limits.BLOCK_OF_COLUMNS))
    _announce(columns)
    return columns


def bytes_per_vector(width: int, dtype: torch.dtype) -> int:
    """Return what a point takes in memory: its vector of ``width`` numbers, and what is kept next to it."""
    return (width + limits.NUMBERS_PER_POINT) * dtype.itemsize + limits.BYTES_PER_POINT


def _announce(columns: OnDisk) -> None:
    """Say what will be needed, before the long work starts."""
    rows, size = columns.shape
    numbers = 16 * size  # norms, and the two numbers a point that distances need
    needed = rows * size * columns.dtype.itemsize
    Console(stderr=True).print(
        f"{size:,} vectors of {rows} numbers do not fit into the memory limit: they go to a temporary file "
        f"of {as_bytes(needed)}, with up to {as_bytes(numbers)} next to it. A step reads them all, in about "
        f"{(needed + numbers) / _read_rate():.1f} s while the operating system keeps the file in memory, and "
        "at the speed of the disk where it does not.",
        soft_wrap=True,
        highlight=False,
    )


def _read_rate() -> float:
    """Bytes a second at which a file in the operating system's memory is scanned."""
    trial = OnDisk(8, 2**20, torch.float32, limits.BLOCK_OF_COLUMNS)
    for part in trial.parts():
        trial.part(part).fill_(1.0)
    start, element = time.perf_counter(), torch.ones(8)
    for part in trial.parts():
        float((element @ trial.part(part)).max())
    return 8 * 2**20 * 4 / (time.perf_counter() - start)


def new_like(like: Columns, rows: int, dtype: torch.dtype) -> Columns:
    """Room for more numbers of the same points, where those are, in the same blocks."""
    if isinstance(like, OnDisk):
        return OnDisk(rows, len(like), dtype, like.block)
    found = InMemory.empty(rows, len(like), dtype, like.device)
    found.block = like.block
    return found


def take(table: Tensor, index: Tensor) -> Tensor:
    """(R, k) the columns ``index`` of a table; `index_select` would first copy a part of a table whole."""
    return table.gather(1, index.to(table.device).expand(len(table), -1))


def where(values: Tensor, compare: Callable[[Any, float], Any], bound: float) -> Tensor:
    """(c,) the indices of values (n,) that compare with a bound; numpy is three times as fast as torch here.

    >>> from operator import gt
    >>> where(torch.tensor([0.5, 2.0, 3.0]), gt, 1.0)
    tensor([1, 2])
    """
    if values.is_cuda:
        return cast(Tensor, compare(values, bound).nonzero()[:, 0])
    return torch.from_numpy(compare(values.numpy(), bound).nonzero()[0])


def largest_entry(tables: Iterable[Tensor]) -> float:
    """The largest absolute value in some tables; zero if there are none."""
    return max((float(max(table.max(), -table.min())) for table in tables), default=0.0)


def excess_exponent(entry: float) -> int:
    """The power of two by which to divide vectors of this largest entry; zero if they are of moderate size.

    >>> excess_exponent(1.0), excess_exponent(2.0**100)
    (0, 53)
    """
    exponent = math.frexp(entry)[1]
    return exponent - min(max(exponent, -MODERATE), MODERATE)


def divide(table: Tensor, exponent: int) -> Tensor:
    """Divide a table by ``2**exponent`` in place, which rounds nothing: vectors at the limits of a float.

    In two steps, since the power may be too large for a float.
    """
    return table.mul_(2.0 ** -(exponent // 2)).mul_(2.0 ** -(exponent - exponent // 2))


class ColumnSpace(Space):
    """A space whose elements are D numbers, wherever the pool's vectors are; column n is L_n."""

    @abstractmethod
    def columns_at(self, index: Tensor) -> Tensor:
        """(D, k) float64, the vectors of the points ``index``."""

    def vector(self, n: int) -> Tensor:
        return self.columns_at(torch.tensor([n]))[:, 0]

    def inner_at(self, element: Tensor, index: Tensor) -> Tensor:
        return element @ self.columns_at(index)

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    def gram(self, index: Tensor) -> Tensor:
        chosen = self.columns_at(index)
        return chosen.mT @ chosen


@norms_at.register
def _(space: ColumnSpace, index: Tensor) -> Tensor:
    return space.columns_at(index).square().sum(0).sqrt()


class VectorSpace(ColumnSpace):
    """Vectors that are stored on this machine.

    Vectors may be float32. Totals are accumulated in float64, and whatever decides between two points is
    computed in float64 from their vectors. So the batch is the same wherever the vectors are.

    Very large or very small vectors are multiplied by a power of two, which rounds nothing, so that the batch
    is the same at any scale; ``scale`` is one over that power.

    ``vectors`` (D, N) are a tensor, or columns in memory or on disk; columns are rescaled in place, a tensor
    is copied for that. ``labelled`` points (D, M) are the first centres of distance selectors.

    Attributes
    ----------
    norm_table : (2, N) for each point one over its norm (zero for a norm of zero), and its squared norm; the
        norms are in units of ``unit``.
    unit : a power of two of about the largest norm: squares of large numbers do not fit into float32.
    largest : the largest norm.
    target_moment : (D, D) float64, the sum of phi_t phi_t^T over vectors phi_t of the points where the model
        will be used, in units of one and not of ``scale``; ``None`` where these are the pool's.

    >>> space = VectorSpace(torch.tensor([[3.0, 0.0], [4.0, 1.0]]))
    >>> space.norms, space.total()
    (tensor([5., 1.], dtype=torch.float64), tensor([3., 5.], dtype=torch.float64))
    """

    target_moment: Tensor | None = None

    def __init__(self, vectors: Tensor | Columns, labelled: Tensor | None = None) -> None:
        shape = tuple(vectors.shape)
        if len(shape) != 2 or shape[1] == 0:
            raise InputError(f"vectors have shape {shape}, expected (D, N) with N above zero")
        if labelled is not None:
            check_shape(labelled, (shape[0], None), "an array of labelled vectors")
        self.columns = InMemory(vectors) if isinstance(vectors, Tensor) else vectors
        self._borrowed = isinstance(vectors, Tensor)
        self.labelled = labelled if labelled is not None and labelled.shape[1] else None
        self.device = self.columns.device
        self.norm_table = new_like(self.columns, 2, self.columns.dtype)
        # A sum of D products, each rounded, and its two factors.
        self.resolution = (shape[0] + 4) * torch.finfo(self.columns.dtype).eps
        self._measure()
        if not 2.0**-MODERATE <= self.largest <= 2.0**MODERATE:
            self._moderate()

    def _moderate(self) -> None:
        """Rescale vectors whose squares would not fit into a float."""
        entry = largest_entry(self.columns.part(part) for part in self.columns.parts())
        if entry == 0 and self.labelled is not None:  # all points are at the origin
            entry = largest_entry([self.labelled])
        if excess := excess_exponent(entry):
            self.rescale(excess)

    def rescale(self, exponent: int, largest: float = 0.0) -> None:
        """Divide all vectors by ``2**exponent``; ``largest`` is the largest norm elsewhere in the pool."""
        if self._borrowed:
            self.columns, self._borrowed = InMemory(self.vectors.clone()), False
        for part in self.columns.parts():
            divide(self.columns.part(part), exponent)
        if self.labelled is not None:
            self.labelled = divide(self.labelled.to(torch.float64, copy=True), exponent)
        self.scale *= 2.0**exponent
        self._measure(largest)

    def _measure(self, largest: float = 0.0) -> None:
        """Fill the table of norms; find the sum of the vectors, and the largest norm."""
        total = torch.zeros(self.columns.shape[0], dtype=torch.float64, device=self.device)
        working_set = limits.SPACE_WORKING_SET_ON_GPU if total.is_cuda else limits.SPACE_WORKING_SET
        width = max(working_set // len(total), 1)
        self.largest, self.norm_sum = largest, 0.0
        for part in self.columns.parts():
            vectors, sizes = self.columns.part(part), self.norm_table.part(part)
            for start in range(0, vectors.shape[1], width):
                block = vectors[:, start : start + width].double()
                check_finite(block.mT, part.start + start, "space")
                total += block.sum(1)
                norms = block.square().sum(0).sqrt()
                self.norm_sum += float(norms.sum())
                sizes[1, start : start + width] = norms.clamp(max=torch.finfo(sizes.dtype).max)
                self.largest = max(self.largest, float(norms.max()))
        # A power of two: what is rounded to float32 is then the same in any unit, as in parts of the pool.
        self.unit = 1.0
        if 0 < self.largest < math.inf:
            self.unit = 2.0 ** math.ceil(math.log2(self.largest))
        for part in self.columns.parts():
            sizes = self.norm_table.part(part)
            sizes[1] /= self.unit
            sizes[0] = torch.where(sizes[1] > 0, 1 / sizes[1], 0.0).clamp_(max=torch.finfo(sizes.dtype).max)
            sizes[1] *= sizes[1].clone()
        self._total = total

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def vectors(self) -> Tensor:
        """(D, N) all of them; raises where they are on disk."""
        if not isinstance(self.columns, InMemory):
            raise InputError(
                "this strategy needs all vectors in memory; leave out the memory limit, or try 'acs-fw' or "
                "one with 'lcmd' or 'kmeans++' in its name"
            )
        return self.columns.values

    @cached_property
    def norms(self) -> Tensor:  # type: ignore[override]
        # In blocks: in float64 the vectors may be too many.
        width = max(limits.SPACE_WORKING_SET // self.columns.shape[0], 1)
        parts = torch.split(self.vectors, width, 1)
        return torch.cat([part.double().square().sum(0).sqrt() for part in parts])

    def total(self) -> Tensor:
        return self._total

    def columns_at(self, index: Tensor) -> Tensor:
        return self.columns.at(index).double()

    def inner(self, element: Tensor) -> Iterator[tuple[slice, Tensor]]:
        direction, size = self.direction(element)
        for part in self.columns.parts():
            yield part, (direction @ self.columns.part(part)).double().mul_(size)

    def direction(self, element: Tensor) -> tuple[Tensor, Tensor]:
        """An element in the vectors' own precision, divided by its largest entry, and that entry.

        The sum of a large pool can be too long for float32.
        """
        size = element.abs().amax(-1, keepdim=True)
        size = torch.where(size > 0, size, 1.0)
        return (element / size).to(self.columns.dtype), size

    def anchors(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.labelled is None:
            return
        ratio = largest_entry([self.labelled]) / self.largest if self.largest > 0 else 0.0
        if not ratio <= 2.0**60:  # float32 can hold squared distances of such points
            raise InputError(
                f"labelled vectors are {ratio:.1g} times as large as the pool's, so that distances "
                "within the pool would be lost in rounding; check that both have the same units"
            )
        together = limits.ANCHORS
        if self.device.type == "cuda":  # which answers many questions as fast as a few
            together = max(min(limits.PRODUCTS_ON_GPU // len(self), limits.ANCHORS_ON_GPU), together)
        for part in torch.split(self.labelled, together, 1):
            vectors = part.to(self.device).double().mT
            yield vectors, vectors.square().sum(1)


def mapped_space(
    problem: Problem, block: int, vectors: Callable[[Chunk], Tensor], dtype: torch.dtype | None = None
) -> VectorSpace:
    """Map the points of a problem as `map_pool` does, the labelled ones in memory."""
    with torch.no_grad():
        columns, labelled = map_pool(problem.pool, block, vectors, problem.memory, dtype), None
        if problem.labelled is not None:
            table = map_pool(as_pool(problem.labelled), block, vectors, dtype=dtype)
            labelled = table.at(torch.arange(len(table)))
    return VectorSpace(columns, labelled)


@norm_sum.register
def _(space: VectorSpace) -> float:
    return space.norm_sum


@selectable.register
def _(space: VectorSpace) -> Tensor:
    found = torch.empty(len(space), dtype=torch.bool, device=space.device)
    for part in space.norm_table.parts():
        found[part] = space.norm_table.part(part)[0] > 0
    return found
