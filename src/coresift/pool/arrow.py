"""Pools of tables: Parquet and Arrow files, and Ray Datasets. Ray is an optional package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from coresift.checks import check_integer
from coresift.errors import InputError
from coresift.limits import CHUNK_ROWS
from coresift.pool.array import as_float
from coresift.pool.base import PoolOfPieces
from coresift.types import Chunk, Index

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")


class ArrowPool(PoolOfPieces):
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
        kind = "parquet" if files[0].suffix.lower() in PARQUET else "ipc"
        try:
            dataset = pa.dataset.dataset(list(map(str, files)), format=kind)
            self._fragments = list(dataset.get_fragments())
            # One schema for all files: a column may hold integers in one and fractions in the next.
            schemas = [fragment.physical_schema for fragment in self._fragments]
            self._schema = pa.unify_schemas(schemas, promote_options="permissive")
            super().__init__([fragment.count_rows() for fragment in self._fragments])
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InputError(f"cannot read {self.path}: {str(error).splitlines()[0]}") from None
        self.columns = feature_columns(self._schema, columns, str(self.path))
        if len(self) == 0:
            raise InputError(f"the pool {self.path} is empty")

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrowPool, (self.path.absolute(), self.columns, self.chunk_size)

    def _piece_chunks(self, piece: int, start: int) -> Iterator[Chunk]:
        # The default readahead keeps gigabytes of decoded batches in memory.
        batches = self._scanner(piece, batch_size=self.chunk_size, batch_readahead=2).to_batches()
        first = 0
        for batch in batches:
            if first + batch.num_rows > start:
                yield Chunk(first, table_to_tensor(batch, self.columns))
            first += batch.num_rows

    def _take_from(self, piece: int, index: Index) -> Tensor:
        return table_to_tensor(self._scanner(piece).take(index), self.columns)

    def _scanner(self, piece: int, **options: Any) -> Any:
        return self._fragments[piece].scanner(schema=self._schema, columns=self.columns, **options)


class DatasetPool(PoolOfPieces):
    """Numeric columns of a Ray Dataset, with rows indexed in the order of its blocks.

    Pass a dataset that is materialised, or one whose blocks come in the same order each time: otherwise an
    index cannot be traced back to its row.

    Parameters
    ----------
    columns : names of the feature columns, in order; all numeric columns by default.
    """

    def __init__(self, dataset: Any, columns: Sequence[str] | None = None) -> None:
        import pyarrow as pa

        ray = import_ray()
        self._tables = list(dataset.materialize().to_arrow_refs())
        describe = ray.remote(num_cpus=0)(_describe)
        described = ray.get([describe.remote(table) for table in self._tables])
        schema = pa.unify_schemas(
            [pa.schema([]), *(schema for _, schema in described)], promote_options="permissive"
        )
        self.columns = feature_columns(schema, columns, "the dataset")
        self._schema = pa.schema([schema.field(name) for name in self.columns])
        super().__init__([num_rows for num_rows, _ in described])
        if len(self) == 0:
            raise InputError("the dataset is empty")

    def _piece_chunks(self, piece: int, start: int) -> Iterator[Chunk]:
        yield Chunk(0, self._rows(piece))

    def _take_from(self, piece: int, index: Index) -> Tensor:
        return self._rows(piece)[index]

    def _rows(self, piece: int) -> Tensor:
        table = import_ray().get(self._tables[piece]).select(self.columns).cast(self._schema)
        return table_to_tensor(table, self.columns)


def _describe(table: Any) -> tuple[int, Any]:
    """Return the number of rows and the schema of an Arrow table, without the schema's metadata."""
    return table.num_rows, table.schema.remove_metadata()


def import_ray() -> Any:
    """Import Ray, or raise with the command that installs it."""
    try:
        import ray
    except ImportError:
        message = 'a pool in shards needs Ray: pip install ".[ray]" in the folder of the clone'
        raise InputError(message) from None
    return ray


def table_to_tensor(table: Any, columns: Sequence[str]) -> Tensor:
    """Return named columns of an Arrow table or record batch as (n, D) floats."""
    return as_float(np.stack([np.asarray(table.column(name)) for name in columns], axis=1))


def feature_columns(schema: Any, columns: Sequence[str] | None, where: str) -> list[str]:
    """Return the columns to read, by default all that are numeric; raise where one is missing or is not."""
    from pyarrow import types

    kinds = (types.is_integer, types.is_floating, types.is_boolean)
    numeric = [field.name for field in schema if any(is_kind(field.type) for is_kind in kinds)]
    chosen = numeric if columns is None else list(columns)
    there_are = f"it has {', '.join(schema.names)}"
    if not chosen:
        raise InputError(f"{where} has no numeric column; {there_are}")
    for name in chosen:
        if name not in schema.names:
            raise InputError(f"{where} has no column {name!r}; {there_are}")
        if name not in numeric:
            raise InputError(f"column {name!r} of {where} holds {schema.field(name).type}, expected numbers")
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
