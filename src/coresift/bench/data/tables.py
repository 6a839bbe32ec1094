"""Registry of published tables: where to get them, and how to check them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coresift.bench.data.generated import generated_year
from coresift.bench.data.readers import Numbers, Table, read_npz, read_own, read_spaced, read_year
from coresift.errors import InputError, suggestion


@dataclass(frozen=True)
class Source:
    """A published table.

    Attributes
    ----------
    target : what is predicted, with its unit.
    shape : of x.
    file, read : the official file's name and what reads it.
    origin : where to get that file.
    checksum : `checksum` of the first ``checksum_rows`` rows, all by default.
    target_range : the least and the greatest target.
    dtype : of x.
    """

    target: str
    shape: tuple[int, int]
    file: str
    read: Callable[[Path], Table]
    origin: str
    checksum: str
    checksum_rows: int | None = None
    target_range: tuple[float, float] = (-np.inf, np.inf)
    dtype: npt.DTypeLike = np.float64
    licence: str = "CC BY 4.0"


TABLES: dict[str, Source] = {
    "yacht": Source(
        "residuary resistance",
        (308, 6),
        "yacht_hydrodynamics.data",
        read_spaced,
        "https://archive.ics.uci.edu/dataset/243/yacht+hydrodynamics",
        "7656f85f8ff9f8a8db46fca16bffa186af9d0cb689247154de83dd902d7cf719",
    ),
    "boston": Source(
        "median value, 1000 $",
        (506, 13),
        "housing.data",
        read_spaced,
        "https://archive.ics.uci.edu/ml/machine-learning-databases/housing/ "
        "(first published at https://lib.stat.cmu.edu/datasets/boston)",
        "1b2066909b11f06df548ccd1b27f4f0cdb8c3f535fd3c8f60516f87213c4ea44",
        licence="none stated",
    ),
    "energy": Source(
        "heating load, kWh/m²",
        (768, 8),
        "energy.csv",
        read_own,
        "https://archive.ics.uci.edu/dataset/242/energy+efficiency",
        "2351cd5c1123fca7768f1bf9d0a26923dcfa05c00b87b7a2ed8139a06a804559",
    ),
    "power": Source(
        "output, MW",
        (9568, 4),
        "Folds5x2_pp.csv",
        partial(read_own, target="PE"),
        # The five sheets hold the same rows in five orders.
        "https://archive.ics.uci.edu/dataset/294/combined+cycle+power+plant (a workbook: save Sheet5 as CSV)",
        "3a846c837a1514d74add169c98361bb1a4c4f640ccd9af43f11c5fad38207810",
    ),
    "protein": Source(
        "RMSD, Å",
        (45730, 9),
        "CASP.csv",
        partial(read_own, target="RMSD"),
        "https://archive.ics.uci.edu/dataset/265/physicochemical+properties+of+protein+tertiary+structure",
        "5e5d94f6677ef7aecfa6944327ef00283494f22152776426a42fba4f3fd9750d",
    ),
    "year": Source(
        "year",
        (515345, 90),
        "YearPredictionMSD.txt",
        read_year,
        "https://archive.ics.uci.edu/dataset/203/yearpredictionmsd",
        "6f6a8b011bb7c678aab4a5ac0b44d801700745752aee8bd1c16f2867adb16be8",
        checksum_rows=1,
        target_range=(1922, 2011),
        dtype=np.float32,
    ),
}


def load_table(
    name_or_path: str | Path, folder: str | Path | None = None, target: str | None = None
) -> Table:
    """Load a published table by name, or a file of the user by its path.

    Parameters
    ----------
    name_or_path : a name in `TABLES`, ``"generated-year"``, or the path of a ``.csv`` file with a header, a
        ``.parquet`` file, or an ``.npz`` file of arrays ``x`` and ``y``.
    folder : where published tables lie, as ``<name>.npz`` or the official file; by default what the
        environment variable ``CORESIFT_DATA`` names, or else ``data``. ``"energy"`` comes with the package.
    target : the column of a file of the user that is to be predicted, by default the last.

    >>> table = load_table("energy")
    >>> table.x.shape, table.target
    ((768, 8), 'heating load, kWh/m²')
    >>> load_table("yatch")
    Traceback (most recent call last):
    coresift.errors.InputError: there is no table or file 'yatch'; did you mean 'yacht'?
    """
    name = str(name_or_path)
    published = [*TABLES, "generated-year"]
    if name in published and target is not None:
        raise InputError(f"{name!r} has a target of its own; target= names a column in a file of yours")
    if name in TABLES:
        return _load_published(name, Path(folder or os.environ.get("CORESIFT_DATA") or "data"))
    if name == "generated-year":
        return generated_year()
    if Path(name).is_file():
        return read_own(Path(name), target)
    raise InputError(f"there is no table or file {name!r}; {suggestion(name, published)}")


def checksum(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> str:
    """SHA-256 of the shape of x (N, ...) and the numbers of x and y (N,) in float32, whatever file held them;
    of bytes, as they are.

    >>> checksum(np.ones((2, 1)), np.zeros(2))[:8]
    '0e662cab'
    """
    digest = hashlib.sha256(np.array(x.shape, "<i8").tobytes())
    for numbers in (x, y):
        digest.update(numbers.data if numbers.dtype == np.uint8 else numbers.astype("<f4").tobytes())
    return digest.hexdigest()


def _load_published(name: str, folder: Path) -> Table:
    source = TABLES[name]
    shipped = Path(__file__).with_name(source.file)
    files = [folder / f"{name}.npz", folder / source.file, shipped]
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        raise InputError(
            f"the table {name!r} is not in the folder {folder}: there is no {name}.npz and no {source.file}. "
            f"Get it from {source.origin}, licence: {source.licence}; "
            "point to another folder with folder= or the environment variable CORESIFT_DATA"
        )
    table = read_npz(path) if path.suffix == ".npz" else source.read(path)
    difference = _difference(source, table.x, table.y)
    if difference:
        raise InputError(
            f"{path} is not the published table: {difference}; its version or the order of its rows differs. "
            "To use it unchecked, have it as .csv, .parquet or .npz and pass its path, with target= the "
            "column to predict"
        )
    # Through float32, so that every file of a table gives the same numbers to the last bit.
    x, y = (numbers.astype(np.float32, copy=False) for numbers in (table.x, table.y))
    return Table(name, x.astype(source.dtype, copy=False), y.astype(np.float64), source.target)


def _difference(source: Source, x: Numbers, y: Numbers) -> str | None:
    """Describe how x and y differ from the published table; ``None`` if they do not."""
    if x.shape != source.shape:
        return f"it has shape {x.shape}, expected {source.shape}"
    low, high = source.target_range
    if y.min() < low or y.max() > high:
        return f"its targets lie in {y.min():g} to {y.max():g}, expected {low} to {high}"
    seen = checksum(x[: source.checksum_rows], y[: source.checksum_rows])
    if seen != source.checksum:
        rows = source.checksum_rows or len(x)
        return f"the checksum over {rows} rows is {seen[:12]}, expected {source.checksum[:12]}"
    return None
