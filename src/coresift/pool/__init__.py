"""Pools: unlabelled points in memory or on disk, read in chunks through one protocol."""

from coresift.pool.array import (
    ArrayPool,
    Part,
    Pool,
    PoolLike,
    as_array,
    as_float,
    blocks,
    check_map,
    checked_index,
    first_row,
    keep_rows,
    read,
    release_pages,
)
from coresift.pool.pieces import ArrowPool, DatasetPool, NumpyPool, as_pool, import_ray, open_npy

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
    "check_map",
    "checked_index",
    "first_row",
    "import_ray",
    "keep_rows",
    "open_npy",
    "read",
    "release_pages",
]
