"""Pools: unlabelled points, in memory or on disk, behind one face.

A pool has a length, gives its rows in a fixed order as chunks, and can fetch any rows by position.
Nothing in the library asks for all rows at once.
"""

from __future__ import annotations

import math
import mmap
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coresift.checks import check_dense, check_finite, check_whole
from coresift.errors import shown
from coresift.progress import progress_bar
from coresift.types import Chunk, InputError

# Rows computed on at a time, whatever the pool's own chunks: a batch is then the same, bit for bit,
# on any chunk size.
BLOCK = 8192
# Numbers in a chunk, at most: 64 MB of float64.
_CHUNK_NUMBERS = 2**23


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

    A chunk of a NumPy array is copied only when it is read, and what a memory map has read is let go again:
    the process stays small however large the file. Of long rows, such as images, a chunk has fewer. Sent to
    another process, a memory map travels as the name of its file.

    >>> pool = ArrayPool(np.arange(6.0).reshape(3, 2), chunk_size=2)
    >>> [(chunk.start, chunk.x.tolist()) for chunk in pool.chunks()]
    [(0, [[0.0, 1.0], [2.0, 3.0]]), (2, [[4.0, 5.0]])]
    >>> pool.take([2, 0]).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """

    rows: Tensor | npt.NDArray[Any]
    chunk_size: int = 65536

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunk_size", check_whole(self.chunk_size, 1, "chunk_size"))
        if self.rows.ndim < 2:
            raise InputError(f"a pool needs rows and columns, got shape {tuple(self.rows.shape)}")
        if len(self.rows) == 0:
            raise InputError("the pool is empty")
        if isinstance(self.rows, np.ndarray) and self.rows.dtype.kind not in "fiub":
            raise InputError(f"a pool holds numbers, got an array of type {self.rows.dtype}; encode it first")
        if isinstance(self.rows, Tensor):
            check_dense(self.rows, "the pool")
        if math.prod(self.rows.shape[1:]) == 0:
            raise InputError(f"the pool has rows without numbers: its shape is {tuple(self.rows.shape)}")

    def __len__(self) -> int:
        return len(self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        place = _place_in_file(self.rows)
        if place is not None:
            return _reopened, (*place, self.chunk_size)
        # A view of a tensor would take all that it is a view of along.
        rows = self.rows.clone() if isinstance(self.rows, Tensor) else self.rows
        return ArrayPool, (rows, self.chunk_size)

    def chunks(self) -> Iterator[Chunk]:
        return self.chunks_from(0)

    def chunks_from(self, start: int) -> Iterator[Chunk]:
        """The chunks from row ``start`` on."""
        size = min(self.chunk_size, max(1, _CHUNK_NUMBERS // max(1, math.prod(self.rows.shape[1:]))))
        for first in range(start, len(self), size):
            rows = as_float(self.rows[first : first + size])
            _let_go(self.rows)
            yield Chunk(first, rows)

    def take(self, index: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
        rows = as_float(self.rows[np.ascontiguousarray(index, dtype=np.int64)])
        _let_go(self.rows)
        return rows


def _let_go(rows: Tensor | npt.NDArray[Any]) -> None:
    """Have the pages of a memory-mapped file count as read no longer; what is used again is read again."""
    # A copy-on-write map would lose what was written to it.
    if isinstance(rows, np.memmap) and rows.mode in ("r", "r+") and hasattr(mmap, "MADV_DONTNEED"):
        mapping: Any = rows
        mapping._mmap.madvise(mmap.MADV_DONTNEED)


def _place_in_file(rows: Tensor | npt.NDArray[Any]) -> tuple[Any, ...] | None:
    """Name, type, offset, shape and order of rows that are one piece of a file."""
    if not isinstance(rows, np.memmap) or rows.filename is None or rows.mode not in ("r", "r+"):
        return None
    if not (rows.flags.c_contiguous or rows.flags.f_contiguous):
        return None
    # The offset of a view is that of the array it was cut from: count from where the mapping begins.
    begin = rows.offset - rows.offset % mmap.ALLOCATIONGRANULARITY
    mapping: Any = rows
    address = np.frombuffer(mapping._mmap, dtype=np.uint8).ctypes.data
    offset = begin + rows.ctypes.data - address
    return rows.filename, rows.dtype, offset, rows.shape, "C" if rows.flags.c_contiguous else "F"


def _reopened(
    name: str | Path, dtype: npt.DTypeLike, offset: int, shape: tuple[int, ...], order: Any, chunk_size: int
) -> ArrayPool:
    """What `_place_in_file` described, perhaps on another machine."""
    try:
        rows: npt.NDArray[Any] = np.memmap(name, dtype, "r", offset, shape, order)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {name} here: {error}") from None
    return ArrayPool(rows, chunk_size)


def open_npy(file: Path, chunk_size: int = 65536) -> ArrayPool:
    """The rows of a ``.npy`` file, as a memory map."""
    try:
        # Not np.load, which takes archives of several arrays and pickles for what they are, by their content.
        return ArrayPool(np.lib.format.open_memmap(file, mode="r"), chunk_size)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    except Exception as error:  # a damaged file can break anything that reads it
        why = str(error).strip() or type(error).__name__
        with suppress(OSError):
            if file.stat().st_size == 0:
                why = "it is empty"
            elif zipfile.is_zipfile(file):
                why = "it is an archive of arrays, as np.savez writes them; save one array with np.save"
        raise InputError(f"cannot read {file}: {' '.join(why.split())}") from None


class NumpyPool:
    """Rows of the ``.npy`` files of a folder, sorted by name.

    Parameters
    ----------
    path : the folder.
    chunk_size : rows read at a time; a chunk ends with its file.
    """

    def __init__(self, path: str | Path, chunk_size: int = 65536) -> None:
        self.path, self.chunk_size = Path(path), check_whole(chunk_size, 1, "chunk_size")
        if not self.path.is_dir():
            raise InputError(f"there is no folder {path}")
        self.files = sorted(file for file in self.path.iterdir() if file.suffix.lower() == ".npy")
        if not self.files:
            raise InputError(f"{path} holds no file ending in .npy")
        pools = (self._open(file) for file in self.files)
        shapes = [(len(pool), *pool.rows.shape[1:], as_float(pool.rows[:1]).dtype) for pool in pools]
        for file, shape in zip(self.files, shapes, strict=True):
            if shape[1:-1] != shapes[0][1:-1]:
                raise InputError(
                    f"rows of {file} have shape {shape[1:-1]}, but those of {self.files[0].name} "
                    f"{shapes[0][1:-1]}"
                )
        # One type for all files, or a batch would depend on where a file ends.
        self._double = any(shape[-1] == torch.float64 for shape in shapes)
        self._starts = np.concatenate([[0], np.cumsum([shape[0] for shape in shapes])])

    def _open(self, file: Path) -> ArrayPool:
        # Opened each time and closed again: a process may not hold thousands of files.
        return open_npy(file, self.chunk_size)

    def __reduce__(self) -> tuple[Any, ...]:
        return NumpyPool, (self.path.absolute(), self.chunk_size)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def chunks(self) -> Iterator[Chunk]:
        return self.chunks_from(0)

    def chunks_from(self, start: int) -> Iterator[Chunk]:
        """The chunks from row ``start`` on."""
        for file, (first, stop) in zip(self.files, pairwise(self._starts.tolist()), strict=True):
            if stop > start:
                for chunk in self._open(file).chunks_from(max(start - first, 0)):
                    yield Chunk(first + chunk.start, self._convert(chunk.x))

    def take(self, index: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
        position = _positions(index, len(self))
        if len(position) == 0:
            return next(self.chunks()).x[:0]
        number = np.searchsorted(self._starts, position, side="right") - 1
        parts = [
            self._open(self.files[one]).take(position[number == one] - self._starts[one])
            for one in np.unique(number).tolist()
        ]
        rows = self._convert(torch.cat(parts))
        out = torch.empty_like(rows)
        out[torch.from_numpy(np.argsort(number, kind="stable"))] = rows
        return out

    def _convert(self, rows: Tensor) -> Tensor:
        return rows.double() if self._double else rows


@dataclass(frozen=True, eq=False)
class Part:
    """Rows ``start`` to ``stop`` of a pool, as a pool; sent to another process, it takes no others along.

    Attributes
    ----------
    held_from : the position of the first row of ``pool``, where that is itself but a part.

    >>> part = Part(as_pool(np.arange(10.0)[:, None]), 3, 6)
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
        if isinstance(pool, ArrayPool) and _place_in_file(pool.rows) is None:
            rows = pool.rows[self.start - held_from : self.stop - held_from]
            pool, held_from = ArrayPool(rows, pool.chunk_size), self.start
        return Part, (pool, self.start, self.stop, held_from)

    def chunks(self) -> Iterator[Chunk]:
        begin, end = self.start - self.held_from, self.stop - self.held_from
        # Pools that can begin in the middle need not read what comes before.
        seek = getattr(self.pool, "chunks_from", None)
        for chunk in self.pool.chunks() if seek is None else seek(begin):
            low, high = max(begin, chunk.start), min(end, chunk.start + len(chunk))
            if low < high:
                yield Chunk(low - begin, chunk.x[low - chunk.start : high - chunk.start])
            if high == end:
                return

    def take(self, index: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
        return self.pool.take(_positions(index, len(self)) + self.start - self.held_from)


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

        self.path, self.chunk_size = Path(path), check_whole(chunk_size, 1, "chunk_size")
        files = _data_files(self.path)
        self._format = kind = "parquet" if files[0].suffix.lower() in _PARQUET else "ipc"
        self._files = names = [str(file) for file in files]
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

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrowPool, (self.path.absolute(), self.columns, self.chunk_size)

    def chunks(self) -> Iterator[Chunk]:
        return self.chunks_from(0)

    def chunks_from(self, start: int) -> Iterator[Chunk]:
        """The chunks from the file on that holds row ``start``."""
        import pyarrow as pa
        import pyarrow.dataset

        file = min(int(np.searchsorted(self._fragment_starts, start, side="right")) - 1, len(self._files) - 1)
        dataset = self._dataset
        if file:
            dataset = pa.dataset.dataset(self._files[file:], format=self._format, schema=dataset.schema)
        first = int(self._fragment_starts[file])
        # Little readahead: the default keeps gigabytes of decoded batches in flight.
        batches = dataset.to_batches(
            columns=self.columns, batch_size=self.chunk_size, batch_readahead=2, fragment_readahead=1
        )
        for batch in batches:
            if batch.num_rows:
                # Rows before the first one wanted need not be converted.
                if first + batch.num_rows > start:
                    yield Chunk(first, self._to_tensor(batch))
                first += batch.num_rows

    def take(self, index: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
        position = _positions(index, len(self))
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


def _positions(index: Sequence[int] | npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Positions in a pool of ``size`` rows as an array, checked."""
    position = np.asarray(index, dtype=np.int64)
    if len(position) and not 0 <= position.min() <= position.max() < size:
        raise IndexError(f"positions {position.min()} to {position.max()} in a pool of {size} rows")
    return position


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
        raise InputError(f"{path} holds no file ending in .npy, {endings}")
    if len({file.suffix.lower() in _PARQUET for file in files}) > 1:
        raise InputError(f"{path} mixes Parquet and Arrow files; put each kind in a folder of its own")
    return files


def as_float(rows: Tensor | npt.NDArray[Any]) -> Tensor:
    """Rows as a float tensor: float32 and float64 stay, halves become float32, integers float64."""
    if isinstance(rows, np.ndarray):
        if rows.dtype.kind not in "biuf" or rows.dtype.itemsize > 8:
            rows = _floats_of(rows)
        # torch shares memory only with what it may write to, forward strides and this machine's byte order.
        if not rows.flags.writeable or min(rows.strides, default=0) < 0 or not rows.dtype.isnative:
            rows = np.array(rows, dtype=rows.dtype.newbyteorder("="))
        rows = torch.from_numpy(rows)
    check_dense(rows, "an array")
    if rows.dtype in (torch.float32, torch.float64):
        return rows
    return rows.to(torch.float32 if rows.is_floating_point() else torch.float64)


def _floats_of(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Of objects, wide floats and the like; None becomes NaN, which is found later."""
    kind = values.dtype.kind
    if kind in "Of" and not (kind == "O" and any(isinstance(value, str) for value in values.flat)):
        with suppress(TypeError, ValueError):
            return values.astype(np.float64)
    raise InputError(f"an array holds {values.dtype}, expected numbers")


def as_pool(source: PoolLike | Any, columns: Sequence[str] | None = None) -> Pool:
    """Make a pool of an array, a tensor, a data frame, a Ray Dataset, or the path of a ``.npy``, Parquet or
    Arrow file or of a folder of one of these.

    >>> len(as_pool([[0.0, 1.0], [2.0, 3.0]]))
    2
    """
    if isinstance(source, Pool):
        return source
    if isinstance(source, str | Path):
        if Path(source).suffix == ".npy":
            return open_npy(Path(source))
        if Path(source).is_dir():
            endings = {file.suffix.lower() for file in Path(source).iterdir()}
            if ".npy" in endings and endings.intersection(_PARQUET + _ARROW):
                raise InputError(
                    f"{source} mixes .npy with other files of data; put each kind in its own folder"
                )
            if ".npy" in endings:
                return NumpyPool(source)
        return ArrowPool(source, columns)
    if type(source).__module__.startswith("ray.data."):
        from coresift.search.ray import DatasetPool

        return DatasetPool(source, columns)
    if isinstance(source, Tensor):
        return ArrayPool(source.detach())
    if isinstance(source, np.ma.MaskedArray):
        source = np.ma.filled(source.astype(np.float64), np.nan)  # which is then found and named
    return ArrayPool(as_array(source))


def as_array(source: Any) -> npt.NDArray[Any]:
    """Rows as an array: of a data frame of pandas or polars, its columns of numbers or of true and false."""
    if isinstance(source, np.memmap):
        return source
    if not (hasattr(source, "columns") and hasattr(source, "to_numpy")):
        try:
            return np.asarray(source)
        except ValueError:
            raise InputError(
                f"rows of different lengths in {shown(source)}, expected rows and columns"
            ) from None
    columns = []
    for place, name in enumerate(source.columns):
        # Columns of pandas may share a name.
        column = source.iloc[:, place] if hasattr(source, "iloc") else source[name]
        kind = getattr(column.dtype, "kind", "")  # of pandas; "O" are texts, objects or categories
        gaps = {"dtype": np.float64, "na_value": np.nan} if hasattr(column.dtype, "na_value") else {}
        try:
            columns.append(as_float(np.asarray(column.to_numpy(**({} if kind == "O" else gaps)))).numpy())
        except (InputError, TypeError, ValueError):
            raise InputError(
                f"column {name!r} holds {column.dtype}, expected numbers; encode it or leave it out"
            ) from None
    return np.stack(columns, 1) if columns else np.empty((len(source), 0))


def read(pool: Pool, size: int = BLOCK) -> Iterator[Chunk]:
    """The first reading of a pool: `blocks`, with every row checked to be finite and a progress bar."""
    first = pool.start if isinstance(pool, Part) else 0
    with progress_bar("reading the pool", len(pool)) as advance:
        for block in blocks(pool, size):
            check_finite(block.x, first + block.start)
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


def keep_rows(parts: Iterable[Tensor], size: int, memory: int | None = None) -> ArrayPool:
    """Rows that are computed part by part, ``size`` in all, as a pool.

    They are kept in memory; or, if they are on a CPU and more than a quarter of ``memory`` bytes, in a
    temporary file.

    >>> keep_rows([torch.zeros(2, 3), torch.ones(1, 3)], 3).rows.shape
    torch.Size([3, 3])
    """
    iterator = iter(parts)
    first = next(iterator)
    if memory is None or first.is_cuda or size * first[0].nbytes <= memory // 4:
        return ArrayPool(torch.cat([first, *iterator]))
    with tempfile.TemporaryFile(prefix="coresift-") as file:
        for part in chain([first], iterator):
            file.write(np.ascontiguousarray(part.numpy()).data)
        file.flush()
        shape = (size, *first.shape[1:])
        return ArrayPool(np.memmap(file, first.numpy().dtype, "r", 0, shape))
