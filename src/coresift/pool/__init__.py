"""Pools: unlabelled points in memory or on disk, read in chunks through one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from coresift.errors import InputError
from coresift.pool.array import (
    ArrayPool,
    Part,
    Pool,
    PoolLike,
    as_array,
    as_float,
    blocks,
    checked_index,
    first_row,
    keep_rows,
    read,
    release_pages,
)
from coresift.pool.pieces import ARROW, PARQUET, ArrowPool, DatasetPool, NumpyPool, import_ray, open_npy

__all__ = [
    "ArrayPool",
    "ArrowPool",
    "DatasetPool",
    "NumpyPool",
    "Part",
    "Pool",
    "PoolLike",
    "as_array",
    "as_float",
    "as_pool",
    "blocks",
    "checked_index",
    "first_row",
    "import_ray",
    "keep_rows",
    "open_npy",
    "read",
    "release_pages",
]


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
