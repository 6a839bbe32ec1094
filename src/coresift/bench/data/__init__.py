"""Load tables and images to experiment on: published ones by name, and files of the user."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coresift.bench.data.image_files import Images, write_sheets
from coresift.bench.data.images import IMAGES, ImageSource, are_images, load_images
from coresift.bench.data.readers import Table, read_own
from coresift.bench.data.tables import TABLES, Source, checksum, generated_year, load_table
from coresift.types import Floats

__all__ = [
    "IMAGES",
    "TABLES",
    "ImageSource",
    "Images",
    "Source",
    "Table",
    "are_images",
    "checksum",
    "generated_year",
    "load_energy",
    "load_images",
    "load_table",
    "write_sheets",
]


def load_energy() -> tuple[Floats, Floats]:
    """The UCI energy efficiency table: buildings (768, 8) and their heating loads (768,), in kWh/m2.

    Names of the columns and the licence are next to the data.

    >>> x, y = load_energy()
    >>> x.shape, float(y.mean().round(3))
    ((768, 8), 22.307)
    """
    table = read_own(Path(__file__).with_name("energy.csv"))
    return table.x.astype(np.float64), table.y
