"""Where the numbers of a pool lie: in memory, or in a file larger than memory; both are read in blocks."""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from coresift import limits
from coresift.checks import as_bytes
from coresift.pool import Pool, read
from coresift.types import Chunk, InputError

# Vectors whose largest norm is between 2**-48 and 2**48 stay as they are: float32 holds what is computed from
# them.
MODERATE = 48


class Columns(ABC):
    """A table of R rows and N columns, a column for each point of a pool.

    It lies row by row, and not point by point: a scan of a large pool then reads memory in order.

    Attributes
    ----------
    shape : (R, N)
    block : how many columns a part has, but for the last.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    block: int

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
    holds more than a few of them: the rest is the operating system's, which keeps as much of the file in
    memory as it has to spare.

    Parameters
    ----------
    block : columns of a block; a number that keeps blocks at the borders of pages, such as multiples of 1024.
    """

    device = torch.device("cpu")

    def __init__(self, rows: int, size: int, dtype: torch.dtype, block: int) -> None:
        self.shape, self.dtype, self.block = (rows, size), dtype, block
        self._file = tempfile.TemporaryFile(prefix="coresift-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        needed, free = rows * size * dtype.itemsize, shutil.disk_usage(tempfile.gettempdir()).free
        if needed > free:
            raise InputError(
                f"the pool's vectors need {as_bytes(needed)} of disk, and {tempfile.gettempdir()} has "
                f"{as_bytes(free)} free; set TMPDIR to a folder with more, or ask for fewer num_samples"
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

    Parameters
    ----------
    block : points mapped at a time.
    vectors : maps n points to (J, n).
    memory : bytes the process may hold; ``None`` is no limit.
    dtype : of what is kept, if not as it comes.
    """
    columns: Columns | None = None
    for chunk in read(pool, block):
        values = vectors(chunk)
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
    beside = 16 * size  # norms, and the two numbers a point that distances need
    needed = rows * size * columns.dtype.itemsize
    Console(stderr=True).print(
        f"{size:,} vectors of {rows} numbers do not fit into the memory limit: they go to a temporary file "
        f"of {as_bytes(needed)}, with up to {as_bytes(beside)} beside it. A step reads them all, in about "
        f"{(needed + beside) / _read_rate():.1f} s while the operating system keeps the file in memory, and "
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
    """(R, k) the columns ``index`` of a table (R, N); `index_select` would copy a part of a table whole
    before it looks.
    """
    return table.gather(1, index.to(table.device).expand(len(table), -1))


def where(values: Tensor, compare: Callable[[Any, float], Any], bound: float) -> Tensor:
    """(c,) the positions of values (n,) that compare with a bound, in ascending order; numpy looks at a mask
    three times as fast as torch does.

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

    >>> divide(torch.full((1,), 2.0**100), 130)
    tensor([9.3132e-10])
    """
    return table.mul_(2.0 ** -(exponent // 2)).mul_(2.0 ** -(exponent - exponent // 2))
