"""Pools: unlabelled points in memory or on disk, read in chunks through one protocol."""

from coresift.pool.array import ArrayPool, as_array, as_float, keep_rows
from coresift.pool.arrow import ArrowPool
from coresift.pool.base import Pool, PoolLike, blocks, checked_index, first_row, read
from coresift.pool.convert import as_pool
from coresift.pool.dataset import DatasetPool
from coresift.pool.npy import NumpyPool, open_npy
from coresift.pool.part import Part

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
    "keep_rows",
    "open_npy",
    "read",
]
