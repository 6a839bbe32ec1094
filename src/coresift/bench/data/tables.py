"""Registry of published tables, in ``tables.toml``: where to get them, and how to check them."""

from __future__ import annotations

import hashlib
import math
import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from coresift.bench.data.readers import Numbers, Table, read_npz, read_own, read_spaced, read_year
from coresift.bench.data.suite import SUITE, load_suite_table
from coresift.errors import InputError, suggestion

Reader: TypeAlias = Callable[[Path], Table]
Described = TypeVar("Described")

ADVICE = "point to another folder with folder= or the environment variable CORESIFT_DATA"


@dataclass(frozen=True)
class Source:
    """A published table."""

    target: str  # what is predicted, with its unit
    shape: tuple[int, int]  # of x
    file: str  # the name of the official file
    form: str  # of that file: "columns", "spaced" or "year", for `read_own`, `read_spaced` or `read_year`
    origin: str  # where to get that file
    checksum: str  # `checksum` of the first ``checksum_rows`` rows, all by default
    checksum_rows: int | None = None
    target_range: tuple[float, float] = (-math.inf, math.inf)  # the least and the greatest target
    dtype: str = "float64"  # of x
    column: str | None = None  # with the target, by default the last
    licence: str = "CC BY 4.0"

    def read(self, path: Path) -> Table:
        """Read the official file, or an ``.npz`` file of its numbers."""
        columns = partial(read_own, target=self.column)
        forms: dict[str, Reader] = {"columns": columns, "spaced": read_spaced, "year": read_year}
        return read_npz(path) if path.suffix == ".npz" else forms[self.form](path)


def registry(file: str, kind: type[Described]) -> dict[str, Described]:
    """Read descriptions of published data by their names; lists become tuples."""
    described = tomllib.loads(resources.files(__package__).joinpath(file).read_text(encoding="utf-8"))
    return {
        name: kind(
            **{word: tuple(value) if isinstance(value, list) else value for word, value in words.items()}
        )
        for name, words in described.items()
    }


TABLES = registry("tables.toml", Source)


def data_folder(folder: str | Path | None) -> Path:
    """Return where published data lie, by default what the variable CORESIFT_DATA names, or ``data``."""
    return Path(folder or os.environ.get("CORESIFT_DATA") or "data")


def load_table(
    name_or_path: str | Path, folder: str | Path | None = None, target: str | None = None
) -> Table:
    """Load a published table by name, or a file of the user by its path.

    Parameters
    ----------
    name_or_path : a name in `TABLES` or `SUITE`, ``"generated-year"``, or the path of a ``.csv`` file with a
        header, a ``.parquet`` file, or an ``.npz`` file of arrays ``x`` and ``y``.
    folder : where published tables lie, as ``<name>.npz`` or the official file; by default what the
        environment variable ``CORESIFT_DATA`` names, or else ``data``. ``"energy"`` comes with the package.
    target : the column of a file of the user that is to be predicted, by default the last.

    >>> table = load_table("energy")
    >>> table.x.shape, table.target
    ((768, 8), 'heating load, kWh/m²')
    >>> load_table("bostn")
    Traceback (most recent call last):
    coresift.errors.InputError: there is no table or file 'bostn'; did you mean 'boston'?
    """
    name = str(name_or_path)
    published = [*TABLES, *SUITE, "generated-year"]
    if name not in published:
        if not Path(name).is_file():
            raise InputError(f"there is no table or file {name!r}; {suggestion(name, published)}")
        return read_own(Path(name), target)
    if target is not None:
        raise InputError(f"{name!r} has a target of its own; target= names a column in a file of yours")
    if name in SUITE:
        return load_suite_table(name, data_folder(folder))
    return _load_published(name, data_folder(folder)) if name in TABLES else generated_year()


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
    files = folder / f"{name}.npz", folder / source.file, Path(__file__).with_name(source.file)
    path = next(filter(Path.is_file, files), None) or next(folder.glob(f"*/{name}.npz"), None)
    if path is None:
        raise InputError(
            f"the table {name!r} is not in the folder {folder}: there is no {name}.npz and no {source.file}. "
            f"Get it from {source.origin}, licence: {source.licence}; {ADVICE}"
        )
    table = source.read(path)
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


def _difference(source: Source, x: Numbers, y: Numbers) -> str:
    """Describe how x and y differ from the published table; empty if they do not."""
    if x.shape != source.shape:
        return f"it has shape {x.shape}, expected {source.shape}"
    low, high = source.target_range
    if y.min() < low or y.max() > high:
        return f"its targets lie in {y.min():g} to {y.max():g}, expected {low} to {high}"
    rows = source.checksum_rows or len(x)
    seen, expected = checksum(x[:rows], y[:rows])[:12], source.checksum[:12]
    return "" if seen == expected else f"the checksum over {rows} rows is {seen}, expected {expected}"


def generated_year(rows: int = 515_345, seed: int = 0) -> Table:
    """Made-up songs in the form of the year table: nothing here was measured, so report no results on it.

    Like the real features, 12 averages of timbre are correlated, 12 variances are positive and 66
    covariances have heavy tails, each column on its own scale: x (rows, 90) in float32. The years (rows,) lie
    between 1922 and 2011, most after 1995. They depend on 6 features, not linearly, and on noise: the best
    possible predictor has an R² of about 0.35.

    >>> table = generated_year(rows=1000)
    >>> table.x.shape, float(table.y.min()) >= 1922, float(table.y.max()) <= 2011
    ((1000, 90), True, True)
    """
    generator = np.random.default_rng(seed)
    # float32 throughout: the table alone takes 190 MB.
    x = generator.standard_normal((rows, 90), dtype=np.float32)
    averages, variances, covariances = x[:, :12], x[:, 12:24], x[:, 24:]
    averages[:] = averages @ _mixing(12, generator)
    # Loud songs vary more in everything: one factor a row gives the tails their weight.
    loudness = generator.standard_normal((rows, 1), dtype=np.float32)
    variances[:] = 0.5 * loudness + 0.5 * (variances @ _mixing(12, generator))
    covariances[:] = np.exp(0.5 * loudness) * (covariances @ _mixing(66, generator))

    signal = np.tanh(2 * averages[:, 0]) + averages[:, 1] * averages[:, 2] + np.abs(averages[:, 5])
    signal += np.sin(3 * variances[:, 0]) + variances[:, 1]
    signal = (signal - signal.mean()) / signal.std()
    noise = generator.standard_normal(rows, dtype=np.float32)
    age = np.exp(2.3 - 0.75 * (np.sqrt(0.42) * signal + np.sqrt(0.58) * noise))
    y = np.clip(np.round(2012 - age), 1922, 2011).astype(np.float64)

    np.exp(variances, out=variances)
    x *= np.geomspace(5, 500, 90, dtype=np.float32)[generator.permutation(90)]
    averages[:, 0] += 43  # the average loudness, the one column far from zero
    return Table("generated-year", x, y, "year (generated)")


def _mixing(size: int, generator: np.random.Generator) -> Numbers:
    """A matrix (size, size) that turns independent unit normals into correlated ones."""
    matrix: Numbers = np.eye(size) + generator.standard_normal((size, size)) / np.sqrt(size)
    matrix /= np.linalg.norm(matrix, axis=0)
    return matrix.astype(np.float32)
