"""Pools of Parquet and Arrow files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coresift.checks import check_integer
from coresift.errors import InputError
from coresift.limits import CHUNK_ROWS
from coresift.pool.array import as_float
from coresift.pool.base import checked_index
from coresift.types import Chunk

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")


class ArrowPool:
    """Named columns of a Parquet or Arrow IPC file, or of a folder of them (files sorted by name).

    Parameters
    ----------
    path : a file or a folder.
    columns : names of the feature columns, in order; all numeric columns by default.
    chunk_size : rows read at a time.
    """

    def __init__(
        self, path: str | Path, columns: Sequence[str] | None = None, chunk_size: int = CHUNK_ROWS
    ) -> None:
        import pyarrow as pa
        import pyarrow.dataset

        self.path, self.chunk_size = Path(path), check_integer(chunk_size, 1, "chunk_size")
        files = _data_files(self.path)
        self._format = kind = "parquet" if files[0].suffix.lower() in PARQUET else "ipc"
        self._files = names = [str(file) for file in files]
        try:
            parts = pa.dataset.dataset(names, format=kind).get_fragments()
            # One schema for all files: a column may hold integers in one and fractions in the next.
            schema = pa.unify_schemas([part.physical_schema for part in parts], promote_options="permissive")
            self._dataset = pa.dataset.dataset(names, format=kind, schema=schema)
            counts = [fragment.count_rows() for fragment in self._dataset.get_fragments()]
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InputError(f"cannot read {self.path}: {str(error).splitlines()[0]}") from None
        self.columns = _feature_columns(self.path, schema, columns)
        self._fragment_starts = np.concatenate([[0], np.cumsum(counts)])
        if len(self) == 0:
            raise InputError(f"the pool {self.path} is empty")

    def __len__(self) -> int:
        return int(self._fragment_starts[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrowPool, (self.path.absolute(), self.columns, self.chunk_size)

    def chunks(self) -> Iterator[Chunk]:
        return self.chunks_from(0)

    def chunks_from(self, start: int) -> Iterator[Chunk]:
        """Yield the chunks from the one that holds row ``start``; files before it are not read."""
        import pyarrow as pa
        import pyarrow.dataset

        file = min(int(np.searchsorted(self._fragment_starts, start, side="right")) - 1, len(self._files) - 1)
        dataset = self._dataset
        if file:
            dataset = pa.dataset.dataset(self._files[file:], format=self._format, schema=dataset.schema)
        first = int(self._fragment_starts[file])
        # The default readahead keeps gigabytes of decoded batches in memory.
        batches = dataset.to_batches(
            columns=self.columns, batch_size=self.chunk_size, batch_readahead=2, fragment_readahead=1
        )
        for batch in batches:
            if batch.num_rows:
                if first + batch.num_rows > start:
                    yield Chunk(first, self._to_tensor(batch))
                first += batch.num_rows

    def take(self, index: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
        index = checked_index(index, len(self))
        order = np.argsort(index, kind="stable")
        ascending, parts = index[order], []
        fragments = self._dataset.get_fragments()
        for (start, stop), fragment in zip(pairwise(self._fragment_starts), fragments, strict=True):
            inside = ascending[(ascending >= start) & (ascending < stop)] - start
            if len(inside):
                scanner = fragment.scanner(schema=self._dataset.schema, columns=self.columns)
                parts.append(self._to_tensor(scanner.take(inside)))
        if not parts:
            return next(self.chunks()).x[:0]
        rows = torch.cat(parts)
        out = torch.empty_like(rows)
        out[torch.from_numpy(order)] = rows
        return out

    def _to_tensor(self, table: Any) -> Tensor:
        return table_to_tensor(table, self.columns)


def table_to_tensor(table: Any, columns: Sequence[str]) -> Tensor:
    """Return named columns of an Arrow table or record batch as (n, D) floats."""
    return as_float(np.stack([np.asarray(table.column(name)) for name in columns], axis=1))


def numeric_columns(schema: Any) -> list[str]:
    """Return the names of an Arrow schema's columns of numbers or booleans."""
    import pyarrow as pa

    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return [field.name for field in schema if any(is_kind(field.type) for is_kind in kinds)]


def _feature_columns(path: Path, schema: Any, columns: Sequence[str] | None) -> list[str]:
    """Return the columns to read, or raise where one is missing or not numeric."""
    numeric = numeric_columns(schema)
    chosen = list(numeric if columns is None else columns)
    there_are = f"it has {', '.join(schema.names)}"
    if not chosen:
        raise InputError(f"{path} has no numeric column; {there_are}")
    for name in chosen:
        if name not in schema.names:
            raise InputError(f"{path} has no column {name!r}; {there_are}")
        if name not in numeric:
            raise InputError(f"column {name!r} of {path} holds {schema.field(name).type}, expected numbers")
    return chosen


def _data_files(path: Path) -> list[Path]:
    """Return a Parquet or Arrow file, or those of a folder, sorted by name and of one kind."""
    endings = ", ".join(PARQUET + ARROW)
    if not path.exists():
        raise InputError(f"there is no file or folder {path}")
    if path.is_file():
        if path.suffix.lower() not in PARQUET + ARROW:
            raise InputError(
                f"{path} is no pool: its name should end in .npy, {endings}; "
                "read other formats with a library of your choice and pass the array"
            )
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in PARQUET + ARROW)
    if not files:
        raise InputError(f"{path} holds no file ending in .npy, {endings}")
    if len({file.suffix.lower() in PARQUET for file in files}) > 1:
        raise InputError(f"{path} mixes Parquet and Arrow files; put each kind in a folder of its own")
    return files
