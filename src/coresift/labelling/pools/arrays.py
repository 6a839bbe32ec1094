"""Read pools that are arrays of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coresift import limits
from coresift.labelling.pools.base import Block, ItemPool, Positions, Reading, check_numbers, refuse_columns
from coresift.pool import check_map, checked_index, open_npy, release_pages
from coresift.types import Index


class ArrayItems(ItemPool):
    """Rows of a memory-mapped .npy file of numbers (N, ...), named by their row number."""

    kind = "array"

    def __init__(self, reading: Reading) -> None:
        refuse_columns(reading, "an array of numbers")
        self.reading = reading
        self._rows: npt.NDArray[Any] = np.asanyarray(open_npy(Path(reading.path)).rows)
        width = int(np.prod(self._rows.shape[1:]))
        self.numbers = [str(column) for column in range(width)]
        self.block_size = min(limits.POOL_BLOCK, max(1, limits.ITEM_NUMBERS // width))

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, positions: Index) -> Block:
        check_map(self._rows)
        numbers = self._rows[positions].reshape(-1, len(self.numbers)).astype(np.float64)
        release_pages(self._rows)
        check_numbers(self.reading.path, numbers, positions, self.numbers)
        return Block(numbers, np.empty((len(positions), 0), dtype=object))

    def describe(self, positions: Positions) -> list[dict[str, str]]:
        check_map(self._rows)
        rows = self._rows[checked_index(positions, len(self))].reshape(-1, len(self.numbers))
        shown = rows[:, : limits.SHOWN_NUMBERS]
        return [dict(zip(self.numbers, map(str, row), strict=False)) for row in shown]

    def own_columns(self, *, as_text: bool) -> Iterator[dict[str, Any]]:
        for block in self.blocks():
            columns = [pa.array(numbers, from_pandas=True) for numbers in block.numbers.T]
            yield dict(zip(self.numbers, columns, strict=True))
