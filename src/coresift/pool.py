"""Pools: unlabelled points, in memory or on disk, behind one face.

A pool has a length, gives its rows in a fixed order as chunks, and can fetch any rows by position.
Nothing in the library asks for all rows at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coresift.checks import check_finite
from coresift.progress import progress_bar
from coresift.types import Chunk, InputError

# Rows computed on at a time, whatever the pool's own chunks: a batch is then the same, bit for bit,
# on any chunk size.
BLOCK = 8192


@runtime_checkable
class Pool(Protocol):
    """Unlabelled points. ``take`` keeps the order of the positions it is given."""

    def __len__(self) -> int: ...

    def chunks(self) -> Iterator[Chunk]: ...

    def take(self, index: Sequence[int] | npt.NDArray[np.int64]) -> Tensor: ...


PoolLike: TypeAlias = "Pool | Tensor | npt.NDArray[Any] | str | Path"


@dataclass(frozen=True, eq=False)
class ArrayPool:
    """Rows of an array, a tensor or a memory-mapped ``.npy`` file.

    A chunk of a NumPy array is copied only when it is read, so a memory map stays on disk.

    >>> pool = ArrayPool(np.arange(6.0).reshape(3, 2), chunk_size=2)
    >>> [(chunk.start, chunk.x.tolist()) for chunk in pool.chunks()]
    [(0, [[0.0, 1.0], [2.0, 3.0]]), (2, [[4.0, 5.0]])]
    >>> pool.take([2, 0]).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """

    rows: Tensor | npt.NDArray[Any]
    chunk_size: int = 65536

    def __post_init__(self) -> None:
        if self.chunk_size < 1:
            raise InputError(f"chunk_size is {self.chunk_size}, expected at least 1")
        if self.rows.ndim < 2:
            raise InputError(f"a pool needs rows and columns, got shape {tuple(self.rows.shape)}")
        if len(self.rows) == 0:
            raise InputError("the pool is empty")
        if isinstance(self.rows, np.ndarray) and self.rows.dtype.kind not in "fiub":
            raise InputError(f"a pool holds numbers, got an array of type {self.rows.dtype}; encode it first")

    def __len__(self) -> int:
        return len(self.rows)

    def chunks(self) -> Iterator[Chunk]:
        for start in range(0, len(self), self.chunk_size):
            yield Chunk(start, as_float(self.rows[start : start + self.chunk_size]))

    def take(self, index: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
        return as_float(self.rows[np.ascontiguousarray(index, dtype=np.int64)])


class ArrowPool:
    """Named columns of a Parquet or Arrow IPC file, or of a folder of them (files sorted by name).

    Parameters
    ----------
    path : a file or a folder.
    columns : names of the feature columns, in order; all numeric columns by default.
    chunk_size : rows read at a time.
    """

    def __init__(
        self, path: str | Path, columns: Sequence[str] | None = None, chunk_size: int = 65536
    ) -> None:
        import pyarrow as pa
        import pyarrow.dataset

        self.path, self.chunk_size = Path(path), chunk_size
        if chunk_size < 1:
            raise InputError(f"chunk_size is {chunk_size}, expected at least 1")
        files = _data_files(self.path)
        kind = "parquet" if files[0].suffix.lower() in _PARQUET else "ipc"
        names = [str(file) for file in files]
        try:
            parts = pa.dataset.dataset(names, format=kind).get_fragments()
            # One schema for all files: a column may hold integers in one and fractions in the next.
            schema = pa.unify_schemas([part.physical_schema for part in parts], promote_options="permissive")
            self._dataset = pa.dataset.dataset(names, format=kind, schema=schema)
            counts = [fragment.count_rows() for fragment in self._dataset.get_fragments()]
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InputError(f"cannot read {self.path}: {str(error).splitlines()[0]}") from None
        numeric = [
            field.name
            for field in schema
            if pa.types.is_integer(field.type)
            or pa.types.is_floating(field.type)
            or pa.types.is_boolean(field.type)
        ]
        self.columns = list(numeric if columns is None else columns)
        missing = [name for name in self.columns if name not in schema.names]
        if missing:
            raise InputError(f"{self.path} has no column {missing[0]!r}; it has {', '.join(schema.names)}")
        wrong = [name for name in self.columns if name not in numeric]
        if wrong:
            kind = schema.field(wrong[0]).type
            raise InputError(f"column {wrong[0]!r} of {self.path} holds {kind}, expected numbers")
        if not self.columns:
            raise InputError(f"{self.path} has no numeric column; it has {', '.join(schema.names)}")
        self._fragment_starts = np.concatenate([[0], np.cumsum(counts)])
        if len(self) == 0:
            raise InputError(f"the pool {self.path} is empty")

    def __len__(self) -> int:
        return int(self._fragment_starts[-1])

    def chunks(self) -> Iterator[Chunk]:
        start = 0
        # Little readahead: the default keeps gigabytes of decoded batches in flight.
        batches = self._dataset.to_batches(
            columns=self.columns, batch_size=self.chunk_size, batch_readahead=2, fragment_readahead=1
        )
        for batch in batches:
            if batch.num_rows:
                yield Chunk(start, self._to_tensor(batch))
                start += batch.num_rows

    def take(self, index: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
        position = np.asarray(index, dtype=np.int64)
        if len(position) and not 0 <= position.min() <= position.max() < len(self):
            raise IndexError(f"positions {position.min()} to {position.max()} in a pool of {len(self)} rows")
        order = np.argsort(position, kind="stable")
        parts = []
        fragments = self._dataset.get_fragments()
        for (start, stop), fragment in zip(pairwise(self._fragment_starts), fragments, strict=True):
            inside = position[order]
            inside = inside[(inside >= start) & (inside < stop)] - start
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
        columns = [table.column(name).to_numpy(zero_copy_only=False) for name in self.columns]
        return as_float(np.stack(columns, axis=1))


_PARQUET = (".parquet", ".pq")
_ARROW = (".arrow", ".feather", ".ipc")


def _data_files(path: Path) -> list[Path]:
    """The Parquet or Arrow file, or those of a folder, sorted by name; one kind only."""
    endings = ", ".join(_PARQUET + _ARROW)
    if not path.exists():
        raise InputError(f"there is no file or folder {path}")
    if path.is_file():
        if path.suffix.lower() not in _PARQUET + _ARROW:
            raise InputError(
                f"{path} is no pool: its name should end in .npy, {endings}; "
                "read other formats with a library of your choice and pass the array"
            )
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in _PARQUET + _ARROW)
    if not files:
        raise InputError(f"{path} holds no file ending in {endings}")
    if len({file.suffix.lower() in _PARQUET for file in files}) > 1:
        raise InputError(f"{path} mixes Parquet and Arrow files; put each kind in a folder of its own")
    return files


def as_float(rows: Tensor | npt.NDArray[Any]) -> Tensor:
    """Rows as a float tensor: float32 and float64 stay, halves become float32, integers float64."""
    if isinstance(rows, np.ndarray):
        # torch shares memory only with what it may write to, forward strides and this machine's byte order.
        if not rows.flags.writeable or min(rows.strides) < 0 or not rows.dtype.isnative:
            rows = np.array(rows, dtype=rows.dtype.newbyteorder("="))
        rows = torch.from_numpy(rows)
    if rows.dtype in (torch.float32, torch.float64):
        return rows
    return rows.to(torch.float32 if rows.is_floating_point() else torch.float64)


def as_pool(source: PoolLike | Any, columns: Sequence[str] | None = None) -> Pool:
    """Make a pool of an array, a tensor, a data frame, or the path of a ``.npy``, Parquet or Arrow file.

    >>> len(as_pool([[0.0, 1.0], [2.0, 3.0]]))
    2
    """
    if isinstance(source, Pool):
        return source
    if isinstance(source, str | Path):
        if Path(source).suffix == ".npy":
            try:
                return ArrayPool(np.load(source, mmap_mode="r"))
            except (OSError, ValueError) as error:
                raise InputError(f"cannot read {source}: {error}") from None
        return ArrowPool(source, columns)
    if isinstance(source, Tensor):
        return ArrayPool(source.detach())
    if isinstance(source, np.ma.MaskedArray):
        source = np.ma.filled(source.astype(np.float64), np.nan)  # which is then found and named
    return ArrayPool(np.asarray(source))


def read(pool: Pool, size: int = BLOCK) -> Iterator[Chunk]:
    """The first reading of a pool: `blocks`, with every row checked to be finite and a progress bar."""
    with progress_bar("reading the pool", len(pool)) as advance:
        for block in blocks(pool, size):
            check_finite(block.x, block.start)
            yield block
            advance(len(block))


def blocks(pool: Pool, size: int = BLOCK) -> Iterator[Chunk]:
    """The pool's rows in blocks of exactly ``size`` (the last may be shorter).

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
