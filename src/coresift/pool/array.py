"""Define what a pool is, read one in blocks, and make pools of arrays and parts of pools."""

from __future__ import annotations

import math
import mmap
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coresift.checks import check_dense, check_finite, check_integer
from coresift.errors import InputError, shown
from coresift.limits import CHUNK_NUMBERS, CHUNK_ROWS, POOL_BLOCK
from coresift.progress import progress_bar
from coresift.types import Chunk, Index

Array: TypeAlias = npt.NDArray[Any]
Indices: TypeAlias = Sequence[int] | Index


@runtime_checkable
class Pool(Protocol):
    """Unlabelled points in a fixed order, read in chunks, or by index in the order of the indices."""

    def __len__(self) -> int: ...

    def chunks(self) -> Iterator[Chunk]: ...

    def take(self, index: Indices) -> Tensor: ...


PoolLike: TypeAlias = "Pool | Tensor | Array | str | Path"


def read(pool: Pool, size: int = POOL_BLOCK) -> Iterator[Chunk]:
    """Yield the pool's rows as `blocks` does, check that all numbers are finite, and show a progress bar."""
    first = first_row(pool)
    with progress_bar("reading the pool", len(pool)) as advance:
        for block in blocks(pool, size):
            check_finite(block.x, first + block.start)
            yield block
            advance(len(block.x))


def blocks(pool: Pool, size: int = POOL_BLOCK) -> Iterator[Chunk]:
    """Yield the pool's rows in blocks of exactly ``size``; the last block may be shorter.

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


def first_row(pool: Pool) -> int:
    """Return the index of a pool's first row in the whole pool: above zero for a `Part` of one."""
    return int(getattr(pool, "start", 0))


def checked_index(index: Indices, size: int) -> Index:
    """Return indices as an array, or raise where one lies outside a pool of ``size`` rows."""
    array = np.asarray(index, dtype=np.int64)
    if len(array) and not 0 <= array.min() <= array.max() < size:
        raise IndexError(f"indices {array.min()} to {array.max()} in a pool of {size} rows")
    return array


@dataclass(frozen=True, eq=False)
class ArrayPool:
    """Rows of an array, a tensor or a memory-mapped ``.npy`` file.

    A NumPy array is copied one chunk at a time. Pages of a memory map are released after they are read, so
    that the process stays small however large the file is. Chunks of long rows, such as images, hold fewer
    rows. A memory map that is sent to another process travels as the name of its file.

    >>> pool = ArrayPool(np.arange(6.0).reshape(3, 2), chunk_size=2)
    >>> [(chunk.start, chunk.x.tolist()) for chunk in pool.chunks()]
    [(0, [[0.0, 1.0], [2.0, 3.0]]), (2, [[4.0, 5.0]])]
    >>> pool.take([2, 0]).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """

    rows: Tensor | Array
    chunk_size: int = CHUNK_ROWS

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunk_size", check_integer(self.chunk_size, 1, "chunk_size"))
        shape = tuple(self.rows.shape)
        if len(shape) < 2:
            raise InputError(f"a pool needs rows and columns, got shape {shape}")
        if len(self.rows) == 0:
            raise InputError("the pool is empty")
        if 0 in shape:
            raise InputError(f"the pool has rows without numbers: its shape is {shape}")
        if isinstance(self.rows, Tensor):
            check_dense(self.rows, "the pool")
        elif self.rows.dtype.kind not in "fiub":
            raise InputError(f"a pool holds numbers, got an array of type {self.rows.dtype}; encode it first")

    def __len__(self) -> int:
        return len(self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        mapped = _location_in_file(self.rows)
        if mapped is not None:
            return _reopen, (*mapped, self.chunk_size)
        # Pickle would store the whole tensor behind a view.
        rows = self.rows.clone() if isinstance(self.rows, Tensor) else self.rows
        return ArrayPool, (rows, self.chunk_size)

    def chunks(self) -> Iterator[Chunk]:
        return self.chunks_from(0)

    def chunks_from(self, start: int) -> Iterator[Chunk]:
        """Yield the chunks from row ``start`` on."""
        size = min(self.chunk_size, max(1, CHUNK_NUMBERS // math.prod(self.rows.shape[1:])))
        for first in range(start, len(self), size):
            check_map(self.rows)
            rows = as_float(self.rows[first : first + size])
            release_pages(self.rows)
            yield Chunk(first, rows)

    def take(self, index: Indices) -> Tensor:
        check_map(self.rows)
        rows = as_float(self.rows[np.ascontiguousarray(index, dtype=np.int64)])
        release_pages(self.rows)
        return rows


@dataclass(frozen=True, eq=False)
class Part:
    """Rows ``start`` to ``stop`` of a pool, as a pool; sent to another process, it leaves other rows behind.

    >>> part = Part(ArrayPool(np.arange(10.0)[:, None]), 3, 6)
    >>> len(part), part.take([0]).tolist(), [chunk.start for chunk in part.chunks()]
    (3, [[3.0]], [0])
    """

    pool: Pool
    start: int
    stop: int
    held_from: int = 0  # index of the first row of `pool` in the whole pool, where `pool` is itself a part

    def __len__(self) -> int:
        return self.stop - self.start

    def __reduce__(self) -> tuple[Any, ...]:
        pool, held_from = self.pool, self.held_from
        if isinstance(pool, ArrayPool) and _location_in_file(pool.rows) is None:
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

    def take(self, index: Indices) -> Tensor:
        return self.pool.take(checked_index(index, len(self)) + self.start - self.held_from)


def release_pages(rows: Tensor | Array) -> None:
    """Tell the system that pages of a memory map are not needed now; it reads them again on the next use."""
    if _is_shared_map(rows) and hasattr(mmap, "MADV_DONTNEED"):
        mapping: Any = rows
        mapping._mmap.madvise(mmap.MADV_DONTNEED)


def check_map(rows: Tensor | Array) -> None:
    """Raise where the file of a memory map was cut short: reading beyond its end would kill the program."""
    if _is_shared_map(rows):
        mapping: Any = rows
        needed = _start_of_map(rows) + len(mapping._mmap)
        size = mapping._mmap.size()
        if size < needed:
            name = rows.filename or "a temporary file"
            raise InputError(f"{name} had {needed:,} bytes and now {size:,}; put it back as it was")


def _start_of_map(rows: np.memmap[Any, Any]) -> int:
    """Return where the mapping begins in its file. A view has the offset of the array it was cut from."""
    return int(rows.offset - rows.offset % mmap.ALLOCATIONGRANULARITY)


def _is_shared_map(rows: Tensor | Array) -> TypeGuard[np.memmap[Any, Any]]:
    # A copy-on-write map differs from its file, and without its pages would lose what was written to it.
    return isinstance(rows, np.memmap) and rows.mode in ("r", "r+")


def _location_in_file(rows: Tensor | Array) -> tuple[Any, ...] | None:
    """Return file, type, offset, shape and order of memory-mapped rows; ``None`` for other rows."""
    if not _is_shared_map(rows) or rows.filename is None or not rows.flags.forc:
        return None
    mapping: Any = rows
    address = np.frombuffer(mapping._mmap, dtype=np.uint8).ctypes.data
    offset = _start_of_map(rows) + rows.ctypes.data - address
    return rows.filename, rows.dtype, offset, rows.shape, "C" if rows.flags.c_contiguous else "F"


def _reopen(
    name: str | Path, dtype: npt.DTypeLike, offset: int, shape: tuple[int, ...], order: Any, chunk_size: int
) -> ArrayPool:
    """Map the file that `_location_in_file` describes, perhaps on another machine."""
    try:
        rows: Array = np.memmap(name, dtype, "r", offset, shape, order)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {name} here: {error}") from None
    return ArrayPool(rows, chunk_size)


def as_float(rows: Any) -> Tensor:
    """Return rows as a float tensor: float32 and float64 stay, halves become float32, integers float64."""
    if not isinstance(rows, Tensor):
        return torch.from_numpy(_as_floats(np.asarray(as_array(rows))))
    check_dense(rows, "an array")
    is_short = rows.is_floating_point() and rows.dtype != torch.float64
    return rows.detach().to(torch.float32 if is_short else torch.float64)


def _as_floats(values: Array) -> Array:
    """Return values as floats that torch can share: native, writable, with forward strides.

    In arrays of objects, None becomes NaN, which is reported later.
    """
    kind = values.dtype.kind
    if kind in "biufO" and not (kind == "O" and any(isinstance(value, str) for value in values.flat)):
        with suppress(TypeError, ValueError):
            is_short = kind == "f" and values.dtype.itemsize <= 4
            floats = values.astype(np.float32 if is_short else np.float64, copy=False)
            is_shared = floats.flags.writeable and min(floats.strides, default=0) >= 0
            return floats if is_shared else np.array(floats)
    raise InputError(f"an array holds {values.dtype}, expected numbers")


def as_array(source: Any) -> Array:
    """Return rows as an array; all columns of a data frame must hold numbers or booleans."""
    if isinstance(source, np.memmap):
        return source
    if hasattr(source, "columns") and hasattr(source, "to_numpy"):
        columns = [_column(source, number) for number in range(len(source.columns))]
        return np.stack(columns, 1) if columns else np.empty((len(source), 0))
    try:
        return np.asarray(source)
    except ValueError:
        raise InputError(f"rows of different lengths in {shown(source)}, expected rows and columns") from None


def _column(frame: Any, number: int) -> Array:
    """Return one column of a data frame as floats."""
    name = frame.columns[number]
    column = frame.iloc[:, number] if hasattr(frame, "iloc") else frame[name]  # of pandas, names may repeat
    is_nullable = hasattr(column.dtype, "na_value") and getattr(column.dtype, "kind", "") != "O"
    missing = {"dtype": np.float64, "na_value": np.nan} if is_nullable else {}
    try:
        return _as_floats(np.asarray(column.to_numpy(**missing)))
    except (TypeError, ValueError):  # an InputError is a ValueError
        raise InputError(
            f"column {name!r} holds {column.dtype}, expected numbers; encode it or leave it out"
        ) from None


def keep_rows(parts: Iterable[Tensor], size: int, memory: int | None = None) -> ArrayPool:
    """Collect ``size`` rows that are computed in parts, as a pool.

    Rows on a CPU that need more than a quarter of ``memory`` bytes go to a temporary file.

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
