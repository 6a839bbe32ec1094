"""A range of a pool's rows, such as one worker's share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from coresift.pool.array import ArrayPool, location_in_file
from coresift.pool.base import Pool, checked_index
from coresift.types import Chunk


@dataclass(frozen=True, eq=False)
class Part:
    """Rows ``start`` to ``stop`` of a pool, as a pool; sent to another process, it leaves other rows behind.

    Attributes
    ----------
    held_from : index of the first row of ``pool`` in the whole pool, where ``pool`` is itself a part.

    >>> part = Part(ArrayPool(np.arange(10.0)[:, None]), 3, 6)
    >>> len(part), part.take([0]).tolist(), [chunk.start for chunk in part.chunks()]
    (3, [[3.0]], [0])
    """

    pool: Pool
    start: int
    stop: int
    held_from: int = 0

    def __len__(self) -> int:
        return self.stop - self.start

    def __reduce__(self) -> tuple[Any, ...]:
        pool, held_from = self.pool, self.held_from
        if isinstance(pool, ArrayPool) and location_in_file(pool.rows) is None:
            rows = pool.rows[self.start - held_from : self.stop - held_from]
            pool, held_from = ArrayPool(rows, pool.chunk_size), self.start
        return Part, (pool, self.start, self.stop, held_from)

    def chunks(self) -> Iterator[Chunk]:
        begin, end = self.start - self.held_from, self.stop - self.held_from
        # A pool that can begin in the middle skips the rows before.
        chunks_from = getattr(self.pool, "chunks_from", None)
        for chunk in self.pool.chunks() if chunks_from is None else chunks_from(begin):
            low, high = max(begin, chunk.start), min(end, chunk.start + len(chunk))
            if low < high:
                yield Chunk(low - begin, chunk.x[low - chunk.start : high - chunk.start])
            if high == end:
                return

    def take(self, index: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
        return self.pool.take(checked_index(index, len(self)) + self.start - self.held_from)
