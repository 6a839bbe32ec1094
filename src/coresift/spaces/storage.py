"""Where the numbers of a pool lie: in memory, or in a file larger than memory; both are read in blocks."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from coresift.types import InputError

# Columns of a block in memory: what is computed from one stays in the second-level cache.
BLOCK = 65536
# On a GPU a block is there to bound temporaries only.
_BLOCK_ON_GPU = 2**22


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

    def parts(self) -> Iterator[slice]:
        """The blocks, in order."""
        size = len(self)
        return (slice(start, min(start + self.block, size)) for start in range(0, size, self.block))

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
        self.block = _BLOCK_ON_GPU if values.is_cuda else BLOCK

    def part(self, part: slice) -> Tensor:
        return self.values[:, part]

    def at(self, index: Tensor) -> Tensor:
        return self.values[:, index.to(self.device)]


class OnDisk(Columns):
    """Columns in a temporary file without a name, which is gone with the process whatever happens to it.

    A block lies in one piece and is mapped into memory only while it is used, so that the process never
    holds more than a few of them: the rest is the operating system's, which keeps as much of the file in
    memory as it has to spare.

    Parameters
    ----------
    block : columns of a block; a multiple of 1024 keeps blocks at the borders of pages.
    """

    device = torch.device("cpu")

    def __init__(self, rows: int, size: int, dtype: torch.dtype, block: int) -> None:
        self.shape, self.dtype, self.block = (rows, size), dtype, block
        self._file = tempfile.TemporaryFile(prefix="coresift-")  # noqa: SIM115
        needed, free = rows * size * dtype.itemsize, shutil.disk_usage(tempfile.gettempdir()).free
        if needed > free:
            raise InputError(
                f"the pool's vectors need {as_bytes(needed)} of disk, and {tempfile.gettempdir()} has "
                f"{as_bytes(free)} free; set TMPDIR to a folder with more, or ask for fewer num_samples"
            )
        os.truncate(self._file.fileno(), needed)

    def part(self, part: slice) -> Tensor:
        rows, num = self.shape[0], part.stop - part.start
        width = rows * self.dtype.itemsize
        mapped = mmap.mmap(self._file.fileno(), num * width, offset=part.start * width)
        return torch.frombuffer(mapped, dtype=self.dtype).view(rows, num)

    def at(self, index: Tensor) -> Tensor:
        found = torch.empty(self.shape[0], len(index), dtype=self.dtype)
        block = index // self.block
        for number in sorted(set(block.tolist())):
            here = block == number
            first = number * self.block
            part = slice(first, min(first + self.block, len(self)))
            found[:, here] = self.part(part)[:, index[here] - first]
        return found


def new_columns(
    rows: int, size: int, dtype: torch.dtype, device: torch.device, memory: int | None = None
) -> Columns:
    """Room for ``rows`` x ``size`` numbers: in memory, or on disk if that is more than half of ``memory``.

    Parameters
    ----------
    memory : bytes the process may hold; ``None`` is no limit.
    """
    if memory is None or rows * size * dtype.itemsize <= memory // 2 or device.type != "cpu":
        return InMemory(torch.empty(rows, size, dtype=dtype, device=device))
    return OnDisk(rows, size, dtype, _block_on_disk(rows * dtype.itemsize, memory))


def new_like(like: Columns, rows: int, dtype: torch.dtype) -> Columns:
    """Room for more numbers of the same points, where those are, in the same blocks."""
    if isinstance(like, OnDisk):
        return OnDisk(rows, len(like), dtype, like.block)
    found = InMemory(torch.empty(rows, len(like), dtype=dtype, device=like.device))
    found.block = like.block
    return found


def _block_on_disk(width: int, memory: int) -> int:
    """Columns of ``width`` bytes that fill a small share of the memory."""
    return min(max(memory // 32 // width // 1024, 1) * 1024, BLOCK)


def as_bytes(number: float) -> str:
    """For people.

    >>> as_bytes(4.2e9), as_bytes(1e5)
    ('4.2 GB', '0.1 MB')
    """
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"
