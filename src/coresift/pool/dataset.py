"""A pool of a Ray Dataset. Ray is an optional package, imported on first use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coresift.errors import InputError
from coresift.pool.arrow import numeric_columns, table_to_tensor
from coresift.types import Chunk


def import_ray() -> Any:
    """Import Ray, or raise with the command that installs it."""
    try:
        import ray
    except ImportError:
        message = 'a pool in shards needs Ray: pip install ".[ray]" in the folder of the clone'
        raise InputError(message) from None
    return ray


class DatasetPool:
    """Numeric columns of a Ray Dataset, with rows indexed in the order of its blocks.

    Pass a dataset that is materialised, or one whose blocks come in the same order each time: otherwise an
    index cannot be traced back to its row.

    Parameters
    ----------
    columns : names of the feature columns, in order; all numeric columns by default.
    """

    def __init__(self, dataset: Any, columns: Sequence[str] | None = None) -> None:
        import pyarrow as pa

        self._ray = import_ray()
        self._tables = list(dataset.materialize().to_arrow_refs())
        describe = self._ray.remote(num_cpus=0)(_describe)
        tables = self._ray.get([describe.remote(table) for table in self._tables])
        schemas = [schema for _, schema in tables]
        schema = pa.unify_schemas(schemas, promote_options="permissive") if schemas else pa.schema([])
        numeric = numeric_columns(schema)
        self.columns = list(numeric if columns is None else columns)
        wrong = [name for name in self.columns if name not in numeric]
        if wrong or not self.columns:
            raise InputError(
                f"the dataset has {f'no numeric column {wrong[0]!r}' if wrong else 'no numeric columns'}; "
                f"it has {', '.join(f'{field.name} ({field.type})' for field in schema)}"
            )
        self._schema = pa.schema([schema.field(name) for name in self.columns])
        self._starts = np.concatenate([[0], np.cumsum([rows for rows, _ in tables], dtype=np.int64)])
        if len(self) == 0:
            raise InputError("the dataset is empty")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_ray"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _ray=import_ray())

    def __len__(self) -> int:
        return int(self._starts[-1])

    def chunks(self) -> Iterator[Chunk]:
        return self.chunks_from(0)

    def chunks_from(self, start: int) -> Iterator[Chunk]:
        """Yield the blocks from the one that holds row ``start``."""
        for number, (first, stop) in enumerate(pairwise(self._starts.tolist())):
            if stop > max(start, first):
                yield Chunk(first, self._rows(number))

    def take(self, index: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
        index = np.asarray(index, dtype=np.int64)
        block_of = np.searchsorted(self._starts, index, side="right") - 1
        rows = next(self.chunks()).x[:1].repeat(len(index), 1)
        for block in np.unique(block_of).tolist():
            inside = block_of == block
            rows[torch.from_numpy(inside)] = self._rows(block)[index[inside] - self._starts[block]]
        return rows

    def _rows(self, number: int) -> Tensor:
        table = self._ray.get(self._tables[number]).select(self.columns).cast(self._schema)
        return table_to_tensor(table, self.columns)


def _describe(table: Any) -> tuple[int, Any]:
    """Return the number of rows and the schema of an Arrow table, without the schema's metadata."""
    return table.num_rows, table.schema.remove_metadata()
