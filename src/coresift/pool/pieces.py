"""Pools of ``.npy``, Parquet and Arrow files and of Ray Datasets, and `as_pool` for all kinds of pools."""

from __future__ import annotations

import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coresift.checks import check_integer
from coresift.errors import InputError
from coresift.limits import CHUNK_ROWS
from coresift.pool.array import ArrayPool, Indices, Pool, PoolLike, as_array, as_float, checked_index
from coresift.types import Chunk, Index

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")


class PoolOfPieces(ABC):
    """A pool of consecutive pieces, such as files, which are opened one at a time."""

    def __init__(self, sizes: Sequence[int], name: str) -> None:
        self._starts = np.cumsum([0, *sizes], dtype=np.int64)
        if len(self) == 0:
            raise InputError(f"{name} is empty")

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

    def take(self, index: Indices) -> Tensor:
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
        return torch.cat(parts)[torch.from_numpy(np.argsort(order))]


def open_npy(file: Path, chunk_size: int = CHUNK_ROWS) -> ArrayPool:
    """Open the rows of a ``.npy`` file as a memory map."""
    try:
        # np.load would also take archives of several arrays and pickles, whatever the name says.
        return ArrayPool(np.lib.format.open_memmap(file, mode="r"), chunk_size)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    except Exception as error:  # a damaged file can make the reader fail in any way
        why = str(error).strip() or type(error).__name__
        with suppress(OSError):
            if file.stat().st_size == 0:
                why = "it is empty"
            elif zipfile.is_zipfile(file):
                why = "it is an archive of arrays, as np.savez writes them; save one array with np.save"
        raise InputError(f"cannot read {file}: {' '.join(why.split())}") from None


class NumpyPool(PoolOfPieces):
    """Rows of the ``.npy`` files of a folder, sorted by name; a chunk ends with its file."""

    def __init__(self, path: str | Path, chunk_size: int = CHUNK_ROWS) -> None:
        self.path, self.chunk_size = Path(path), check_integer(chunk_size, 1, "chunk_size")
        if not self.path.is_dir():
            raise InputError(f"there is no folder {path}")
        self.files = sorted(file for file in self.path.iterdir() if file.suffix.lower() == ".npy")
        if not self.files:
            raise InputError(f"{path} holds no file ending in .npy")
        shapes, types = [], set()
        for piece, file in enumerate(self.files):
            rows = self._open(piece).rows
            shapes.append(rows.shape)
            types.add(as_float(rows[:1]).dtype)
            if rows.shape[1:] != shapes[0][1:]:
                first = f"{self.files[0].name} {shapes[0][1:]}"
                raise InputError(f"rows of {file} have shape {rows.shape[1:]}, but those of {first}")
        # All files are read in one type: otherwise a batch would depend on where a file ends.
        self._type = torch.float64 if torch.float64 in types else torch.float32
        super().__init__([shape[0] for shape in shapes], str(path))

    def __reduce__(self) -> tuple[Any, ...]:
        return NumpyPool, (self.path.absolute(), self.chunk_size)

    def _open(self, piece: int) -> ArrayPool:
        # Files are opened one at a time: a process may not hold thousands of them open.
        return open_npy(self.files[piece], self.chunk_size)

    def _piece_chunks(self, piece: int, start: int) -> Iterator[Chunk]:
        for chunk in self._open(piece).chunks_from(start):
            yield Chunk(chunk.start, chunk.x.to(self._type))

    def _take_from(self, piece: int, index: Index) -> Tensor:
        return self._open(piece).take(index).to(self._type)


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
            sizes = [fragment.count_rows() for fragment in self._fragments]
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InputError(f"cannot read {self.path}: {str(error).splitlines()[0]}") from None
        self.columns = _feature_columns(self._schema, columns, str(self.path))
        super().__init__(sizes, f"the pool {self.path}")

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrowPool, (self.path.absolute(), self.columns, self.chunk_size)

    def _piece_chunks(self, piece: int, start: int) -> Iterator[Chunk]:
        # The default readahead keeps gigabytes of decoded batches in memory.
        batches = self._scanner(piece, batch_size=self.chunk_size, batch_readahead=2).to_batches()
        first = 0
        for batch in batches:
            if first + batch.num_rows > start:
                yield Chunk(first, _table_to_tensor(batch, self.columns))
            first += batch.num_rows

    def _take_from(self, piece: int, index: Index) -> Tensor:
        return _table_to_tensor(self._scanner(piece).take(index), self.columns)

    def _scanner(self, piece: int, **options: Any) -> Any:
        return self._fragments[piece].scanner(schema=self._schema, columns=self.columns, **options)


class DatasetPool(PoolOfPieces):
    """Numeric columns of a Ray Dataset, with rows indexed in the order of its blocks.

    Pass a dataset that is materialised, or one whose blocks come in the same order each time: otherwise an
    index cannot be traced back to its row.
    """

    def __init__(self, dataset: Any, columns: Sequence[str] | None = None) -> None:
        import pyarrow as pa

        ray = import_ray()
        self._tables = list(dataset.materialize().to_arrow_refs())
        describe = ray.remote(num_cpus=0)(_describe)
        described = ray.get([describe.remote(table) for table in self._tables])
        schemas = [pa.schema([]), *(schema for _, schema in described)]
        schema = pa.unify_schemas(schemas, promote_options="permissive")
        self.columns = _feature_columns(schema, columns, "the dataset")
        self._schema = pa.schema([schema.field(name) for name in self.columns])
        super().__init__([num_rows for num_rows, _ in described], "the dataset")

    def _piece_chunks(self, piece: int, start: int) -> Iterator[Chunk]:
        yield Chunk(0, self._rows(piece))

    def _take_from(self, piece: int, index: Index) -> Tensor:
        return self._rows(piece)[index]

    def _rows(self, piece: int) -> Tensor:
        table = import_ray().get(self._tables[piece]).select(self.columns).cast(self._schema)
        return _table_to_tensor(table, self.columns)


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


def _table_to_tensor(table: Any, columns: Sequence[str]) -> Tensor:
    """Return named columns of an Arrow table or record batch as (n, D) floats."""
    return as_float(np.stack([np.asarray(table.column(name)) for name in columns], axis=1))


def _feature_columns(schema: Any, columns: Sequence[str] | None, where: str) -> list[str]:
    """Return the columns to read, by default all that are numeric; raise where one is missing or is not."""
    from pyarrow import types

    kinds = (types.is_integer, types.is_floating, types.is_boolean)
    numeric = [field.name for field in schema if any(is_kind(field.type) for is_kind in kinds)]
    chosen = numeric if columns is None else list(columns)
    if not chosen:
        raise InputError(f"{where} has no numeric column; it has {', '.join(schema.names)}")
    for name in chosen:
        if name not in schema.names:
            raise InputError(f"{where} has no column {name!r}; it has {', '.join(schema.names)}")
        if name not in numeric:
            raise InputError(f"column {name!r} of {where} holds {schema.field(name).type}, expected numbers")
    return chosen


def _data_files(path: Path) -> list[Path]:
    """Return a Parquet or Arrow file, or those of a folder, sorted by name and of one kind."""
    if not path.exists():
        raise InputError(f"there is no file or folder {path}")
    endings = ", ".join((".npy", *PARQUET, *ARROW))
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [file for file in files if file.suffix.lower() in PARQUET + ARROW]
    if not files and path.is_file():
        raise InputError(
            f"{path} is no pool: its name should end in {endings}; "
            "read other formats with a library of your choice and pass the array"
        )
    if not files:
        raise InputError(f"{path} holds no file ending in {endings}")
    if len({file.suffix.lower() in PARQUET for file in files}) > 1:
        raise InputError(f"{path} mixes Parquet and Arrow files; put each kind in a folder of its own")
    return files


def as_pool(source: PoolLike | Any, columns: Sequence[str] | None = None) -> Pool:
    """Make a pool of an array, a tensor, a data frame, a Ray Dataset or a path.

    A path names a ``.npy``, Parquet or Arrow file, or a folder of files of one of these kinds.

    >>> len(as_pool([[0.0, 1.0], [2.0, 3.0]]))
    2
    """
    if isinstance(source, Pool):
        return source
    if isinstance(source, str | Path):
        return _open_path(Path(source), columns)
    if type(source).__module__.startswith("ray.data."):
        return DatasetPool(source, columns)
    if isinstance(source, Tensor):
        return ArrayPool(source.detach())
    if isinstance(source, np.ma.MaskedArray):
        source = np.ma.filled(source.astype(np.float64), np.nan)  # reported later, with its row
    return ArrayPool(as_array(source))


def _open_path(path: Path, columns: Sequence[str] | None) -> Pool:
    if path.suffix == ".npy":
        return open_npy(path)
    endings = {file.suffix.lower() for file in path.iterdir()} if path.is_dir() else set()
    if ".npy" not in endings:
        return ArrowPool(path, columns)
    if endings.intersection(PARQUET + ARROW):
        raise InputError(f"{path} mixes .npy with other files of data; put each kind in its own folder")
    return NumpyPool(path)
