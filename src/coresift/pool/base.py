"""Define what a pool is, and read one in blocks of a fixed size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coresift.checks import check_finite
from coresift.limits import POOL_BLOCK
from coresift.progress import progress_bar
from coresift.types import Chunk, Index


@runtime_checkable
class Pool(Protocol):
    """Unlabelled points with a length and a fixed order, read in chunks or by index.

    Nothing in the library asks for all rows at once. ``take`` returns rows in the order of the given indices.
    """

    def __len__(self) -> int: ...

    def chunks(self) -> Iterator[Chunk]: ...

    def take(self, index: Sequence[int] | npt.NDArray[np.int64]) -> Tensor: ...


PoolLike: TypeAlias = "Pool | Tensor | npt.NDArray[Any] | str | Path"


class PoolOfPieces(ABC):
    """A pool of consecutive pieces, such as files, which are opened one at a time."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._starts = np.cumsum([0, *sizes], dtype=np.int64)

    @abstractmethod
    def _piece_chunks(self, piece: int, start: int) -> Iterator[Chunk]:
        """Yield the chunks of a piece, counted from its start, beginning with the one of row ``start``."""

    @abstractmethod
    def _take_from(self, piece: int, index: Index) -> Tensor:
        """Return the rows at the ascending ``index`` into a piece."""

    def __len__(self) -> int:
        return int(self._starts[-1])

    def chunks(self) -> Iterator[Chunk]:
        return self.chunks_from(0)

    def chunks_from(self, start: int) -> Iterator[Chunk]:
        """Yield the chunks from the one that holds row ``start``; pieces before it are not read."""
        for piece, (first, stop) in enumerate(pairwise(self._starts.tolist())):
            if stop > max(start, first):
                for chunk in self._piece_chunks(piece, max(start - first, 0)):
                    yield Chunk(first + chunk.start, chunk.x)

    def take(self, index: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
        index = checked_index(index, len(self))
        if len(index) == 0:
            return next(self.chunks()).x[:0]
        order = np.argsort(index, kind="stable")
        ends = np.searchsorted(index[order], self._starts)
        parts = [
            self._take_from(piece, index[order[low:high]] - self._starts[piece])
            for piece, (low, high) in enumerate(pairwise(ends))
            if high > low
        ]
        rows = torch.cat(parts)
        out = torch.empty_like(rows)
        out[torch.from_numpy(order)] = rows
        return out


def blocks(pool: Pool, size: int = POOL_BLOCK) -> Iterator[Chunk]:
    """Yield the pool's rows in blocks of exactly ``size``; the last block may be shorter.

    >>> from coresift.pool import ArrayPool
    >>> [len(block) for block in blocks(ArrayPool(np.ones((7, 1)), chunk_size=3), size=2)]
    [2, 2, 2, 1]
    """
    held: list[Tensor] = []
    start = count = 0
    for chunk in pool.chunks():
        rows = chunk.x
        while count + len(rows) >= size:
            head, rows = rows[: size - count], rows[size - count :]
            yield Chunk(start, torch.cat([*held, head]) if held else head)
            start, held, count = start + size, [], 0
        if len(rows):
            held.append(rows)
            count += len(rows)
    if held:
        yield Chunk(start, torch.cat(held))


def read(pool: Pool, size: int = POOL_BLOCK) -> Iterator[Chunk]:
    """Yield the pool's rows as `blocks` does, check that all numbers are finite, and show a progress bar."""
    first = first_row(pool)
    with progress_bar("reading the pool", len(pool)) as advance:
        for block in blocks(pool, size):
            check_finite(block.x, first + block.start)
            yield block
            advance(len(block.x))


def first_row(pool: Pool) -> int:
    """Return the index of a pool's first row in the whole pool: above zero for a `Part` of one."""
    return int(getattr(pool, "start", 0))


def checked_index(index: Sequence[int] | npt.NDArray[np.int64], size: int) -> Index:
    """Return indices as an array, or raise where one lies outside a pool of ``size`` rows."""
    array = np.asarray(index, dtype=np.int64)
    if len(array) and not 0 <= array.min() <= array.max() < size:
        raise IndexError(f"indices {array.min()} to {array.max()} in a pool of {size} rows")
    return array
