"""Read the pools of labelling projects: tables in files, texts in them, arrays of numbers, folders of images.

Each kind of pool has a file of its own and implements `ItemPool`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from coresift.errors import InputError
from coresift.labelling.pools.arrays import ArrayItems
from coresift.labelling.pools.arrow import ParquetFile
from coresift.labelling.pools.base import Block, ItemPool, Reading
from coresift.labelling.pools.csv_file import CsvFile
from coresift.labelling.pools.images import ImageFolder
from coresift.labelling.pools.tables import TablePool

__all__ = ["Block", "ItemPool", "Reading", "open_pool"]


def open_pool(reading: Reading) -> ItemPool:
    """Open the file or folder at ``reading.path``, and check its names, ids, costs and groups."""
    path = Path(reading.path).absolute()
    reading = replace(reading, path=str(path))
    if path.is_dir():
        return ImageFolder(reading)
    if not path.exists():
        raise InputError(f"there is no file or folder {path}")
    if path.suffix.lower() == ".npy":
        return ArrayItems(reading)
    if path.suffix.lower() == ".csv":
        return TablePool(reading, CsvFile(path, reading.text))
    if path.suffix.lower() in (".parquet", ".pq"):
        return TablePool(reading, ParquetFile(path))
    raise InputError(
        f"cannot read {path}: its name should end in .csv, .parquet or .npy, or be a folder of images"
    )
