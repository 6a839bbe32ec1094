"""Pools of ``.npy`` files."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
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
from coresift.pool.array import ArrayPool, as_float
from coresift.pool.base import checked_index
from coresift.types import Chunk


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


class NumpyPool:
    """Rows of the ``.npy`` files of a folder, sorted by name.

    Parameters
    ----------
    path : the folder.
    chunk_size : rows read at a time; a chunk ends with its file.
    """

    def __init__(self, path: str | Path, chunk_size: int = CHUNK_ROWS) -> None:
        self.path, self.chunk_size = Path(path), check_integer(chunk_size, 1, "chunk_size")
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
        # All files are read in one type: otherwise a batch would depend on where a file ends.
        self._double = any(shape[-1] == torch.float64 for shape in shapes)
        self._starts = np.concatenate([[0], np.cumsum([shape[0] for shape in shapes])])

    def _open(self, file: Path) -> ArrayPool:
        # Files are opened one at a time: a process may not hold thousands of them open.
        return open_npy(file, self.chunk_size)

    def __reduce__(self) -> tuple[Any, ...]:
        return NumpyPool, (self.path.absolute(), self.chunk_size)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def chunks(self) -> Iterator[Chunk]:
        return self.chunks_from(0)

    def chunks_from(self, start: int) -> Iterator[Chunk]:
        """Yield the chunks from row ``start`` on."""
        for file, (first, stop) in zip(self.files, pairwise(self._starts.tolist()), strict=True):
            if stop > start:
                for chunk in self._open(file).chunks_from(max(start - first, 0)):
                    yield Chunk(first + chunk.start, self._convert(chunk.x))

    def take(self, index: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
        index = checked_index(index, len(self))
        if len(index) == 0:
            return next(self.chunks()).x[:0]
        file_of = np.searchsorted(self._starts, index, side="right") - 1
        parts = [
            self._open(self.files[file]).take(index[file_of == file] - self._starts[file])
            for file in np.unique(file_of).tolist()
        ]
        rows = self._convert(torch.cat(parts))
        out = torch.empty_like(rows)
        out[torch.from_numpy(np.argsort(file_of, kind="stable"))] = rows
        return out

    def _convert(self, rows: Tensor) -> Tensor:
        return rows.double() if self._double else rows
