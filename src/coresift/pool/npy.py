"""Pools of ``.npy`` files."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coresift.checks import check_integer
from coresift.errors import InputError
from coresift.limits import CHUNK_ROWS
from coresift.pool.array import ArrayPool, as_float
from coresift.pool.base import PoolOfPieces
from coresift.types import Chunk, Index


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
        sizes, types, shape = [], set(), None
        for piece, file in enumerate(self.files):
            rows = self._open(piece).rows
            sizes.append(len(rows))
            types.add(as_float(rows[:1]).dtype)
            shape = shape or rows.shape[1:]
            if rows.shape[1:] != shape:
                raise InputError(
                    f"rows of {file} have shape {rows.shape[1:]}, but those of {self.files[0].name} {shape}"
                )
        # All files are read in one type: otherwise a batch would depend on where a file ends.
        self._type = torch.float64 if torch.float64 in types else torch.float32
        super().__init__(sizes)

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
