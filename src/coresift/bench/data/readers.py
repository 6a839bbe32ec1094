"""Read tables: one reader for each form of file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from coresift.errors import InputError
from coresift.reading import check_header, without_index
from coresift.types import Floats

Numbers: TypeAlias = npt.NDArray[np.float32 | np.float64]
Array: TypeAlias = npt.NDArray[Any]
Words: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows, and what to predict for them."""

    name: str  # for headings
    x: Numbers  # (N, d) features in float64, or in float32 where the table is large or the file was
    y: Floats  # (N,) targets; for words, their indices in ``classes``
    target: str  # what ``y`` is, with its unit, for axes
    classes: Words | None = None  # the words that the file has for targets, sorted


@contextmanager
def reading(path: Path, content: str) -> Iterator[None]:
    """Name the file, and the content it should have, whatever its bytes make a library raise."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"cannot read {path}: {reason}; it should hold {content}") from error


def load_arrays(path: Path, names: Sequence[str], content: str) -> tuple[Array, ...]:
    """Read these arrays of an ``.npz`` file."""
    # Opened here, since numpy leaves a broken file open.
    with reading(path, content), path.open("rb") as file, np.load(file) as arrays:
        missing = [name for name in names if name not in arrays]
        if missing:
            raise InputError(f"{path} lacks {', '.join(missing)}; it should hold {content}")
        return tuple(arrays[name] for name in names)


def read_own(path: Path, target: str | None = None) -> Table:
    """Read a ``.csv`` file with a header, a ``.parquet`` or an ``.npz`` file.

    ``target`` names the column to predict, by default the last: numbers, or words, which are classes. All
    others are features, except an index that pandas wrote to a ``.parquet`` file. Of an ``.npz`` file, see
    `read_npz`, it is only the name for axes.
    """
    kind = path.suffix.lower()
    if kind == ".npz":
        return read_npz(path, target or "y")
    if kind not in (".csv", ".parquet"):
        raise InputError(f"cannot read {path}: its name should end in .csv, .parquet or .npz")
    columns = without_index(path, _read_arrow(path), target)
    names = columns.column_names
    check_header(path, names)
    return _from_arrow(path, columns, target or names[-1])


def read_npz(path: Path, target: str = "y") -> Table:
    """Read arrays ``x`` (N, d) and ``y`` (N,), numbers or words."""
    x, y = load_arrays(path, ("x", "y"), "arrays x and y of numbers")
    classes, y = _encoded(y) if y.dtype.kind == "U" else (None, y)
    if x.ndim != 2 or y.shape != x.shape[:1] or {x.dtype.kind, y.dtype.kind} - {*"fiub"}:
        raise InputError(
            f"{path} holds x of shape {x.shape} and type {x.dtype} and y of shape {y.shape} and type "
            f"{y.dtype}, expected numbers of shapes (N, d) and (N,)"
        )
    x = x if x.dtype == np.float32 else x.astype(np.float64)
    return _table(path, x, y, range(x.shape[1]), target, classes)


def read_spaced(path: Path) -> Table:
    """Read numbers with spaces between them and no header; the last column is the target."""
    with reading(path, "numbers with spaces between them"):
        numbers = np.loadtxt(path, ndmin=2)
    return _table(path, numbers[:, :-1], numbers[:, -1], range(numbers.shape[1]), "y", None)


def read_year(path: Path) -> Table:
    """Read ``YearPredictionMSD.txt``: no header, the year and then 90 features.

    In float32, since the text holds five decimals of numbers up to thousands and float64 would double 190 MB.
    """
    import pyarrow as pa
    import pyarrow.csv

    columns = _read_arrow(
        path,
        read_options=pa.csv.ReadOptions(autogenerate_column_names=True),
        convert_options=pa.csv.ConvertOptions(column_types={f"f{i}": pa.float32() for i in range(91)}),
    )
    return _from_arrow(path, columns, "f0", np.float32)


def _read_arrow(path: Path, **options: Any) -> Any:
    import pyarrow.csv
    import pyarrow.parquet

    of_columns = path.suffix.lower() == ".parquet"
    with reading(path, "a table"):
        return pyarrow.parquet.read_table(path) if of_columns else pyarrow.csv.read_csv(path, **options)


def _from_arrow(path: Path, columns: Any, target: str, dtype: npt.DTypeLike = np.float64) -> Table:
    names = columns.column_names
    if target not in names:
        raise InputError(f"{path} has no column {target!r}; it has {', '.join(names)}")
    names.remove(target)
    classes, y = _targets(path, target, columns.column(target))
    x = np.empty((len(columns), len(names)), dtype)
    for number, name in enumerate(names):  # one by one, so that no second copy of all is made
        x[:, number] = _numbers(path, name, columns.column(name))
    return _table(path, x, y, names, target, classes)


def _targets(path: Path, target: str, column: Any) -> tuple[Words | None, Array]:
    """Return the classes, where a column holds words, and the targets (N,)."""
    from pyarrow import types

    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        return None, _numbers(path, target, column)
    words = np.array([word or "" for word in column.to_pylist()])
    empty = np.flatnonzero(np.char.strip(words) == "")
    if len(empty):
        raise InputError(f"{path} has no {target!r} in row {empty[0]}; drop such rows first")
    return _encoded(words)


def _numbers(path: Path, name: str, column: Any) -> Array:
    from pyarrow import types

    # A column of the type null is a number missing from every row, and named as such later.
    numeric = types.is_integer, types.is_floating, types.is_boolean, types.is_null
    if not any(fits(column.type) for fits in numeric):
        raise InputError(
            f"column {name!r} of {path} holds {column.type}, expected numbers; encode it or drop it"
        )
    return np.asarray(column.to_numpy())


def _encoded(words: npt.NDArray[np.str_]) -> tuple[Words, npt.NDArray[np.int64]]:
    """Return the different words, sorted, and the index (N,) of each word among them."""
    classes, codes = np.unique(words, return_inverse=True)
    return tuple(classes.tolist()), codes


def _table(
    path: Path, x: Numbers, y: Array, names: Sequence[Any], target: str, classes: Words | None
) -> Table:
    """Return the table, if it has rows and features and no missing numbers."""
    if x.size == 0:
        raise InputError(f"{path} holds {x.shape[0]} rows of {x.shape[1]} features")
    y = y.astype(np.float64)
    for numbers, labels in ((x, names), (y[:, None], [target])):
        for row, column in np.argwhere(~np.isfinite(numbers))[:1]:
            raise InputError(
                f"{path} holds {numbers[row, column]} in row {row}, column {labels[column]!r}; "
                "drop or impute such rows first"
            )
    return Table(path.stem, x, y, target, classes)
