"""Read the pools of labelling projects: tables in files, texts in them, arrays of numbers, folders of images.

Each kind of pool has a file of its own and implements `ItemPool`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from coresift.labelling.pools.arrays import ArrayItems
from coresift.labelling.pools.arrow import TableFile
from coresift.labelling.pools.base import Block, ItemPool, Reading
from coresift.labelling.pools.csv_file import CsvFile
from coresift.labelling.pools.images import ImageFolder
from coresift.labelling.pools.parquet_file import ParquetFile
from coresift.labelling.pools.tables import TablePool
from coresift.labelling.pools.texts import TextPool
from coresift.types import InputError

__all__ = ["Block", "ItemPool", "Reading", "open_pool"]


def open_pool(reading: Reading) -> ItemPool:
    """Open the file or folder at ``reading.path``, and check its names, ids, costs and groups."""
    path = Path(reading.path).absolute()
    reading = replace(reading, path=str(path))
    if not path.exists():
        raise InputError(f"there is no file or folder {path}")
    opener = ImageFolder if path.is_dir() else _OPENERS.get(path.suffix.lower())
    if opener is None:
        raise InputError(
            f"cannot read {path}: its name should end in .csv, .parquet or .npy, or be a folder of images"
        )
    return opener(reading)


def _open_csv(reading: Reading) -> ItemPool:
    return _open_table(reading, CsvFile(Path(reading.path), reading.text))


def _open_parquet(reading: Reading) -> ItemPool:
    return _open_table(reading, ParquetFile(Path(reading.path)))


def _open_table(reading: Reading, file: TableFile) -> ItemPool:
    return TablePool(reading, file) if reading.text is None else TextPool(reading, file)


_OPENERS: dict[str, Callable[[Reading], ItemPool]] = {
    ".csv": _open_csv,
    ".parquet": _open_parquet,
    ".pq": _open_parquet,
    ".npy": ArrayItems,
}
