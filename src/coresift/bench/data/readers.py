"""Read tables: one reader for each form of file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from coresift.reading import check_header, without_index
from coresift.types import Floats, InputError

Numbers: TypeAlias = npt.NDArray[np.float32 | np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows, and what to predict for them.

    Attributes
    ----------
    name : for headings.
    x : (N, d) features in float64, or in float32 where the table is large or the file was.
    y : (N,) targets; for words, their indices in ``classes``.
    target : what ``y`` is, with its unit, for axes.
    classes : the words that the file has for targets, sorted; ``None`` where they are numbers.
    """

    name: str
    x: Numbers
    y: Floats
    target: str
    classes: tuple[str, ...] | None = None


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
    return _from_arrow(path, columns, names[-1] if target is None else target)


def read_npz(path: Path, target: str = "y") -> Table:
    """Read arrays ``x`` (N, d) and ``y`` (N,), numbers or words."""
    try:
        with np.load(path) as arrays:
            x, y = arrays["x"], arrays["y"]
    except Exception as error:  # a damaged archive can break anything that reads it
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"cannot read {path}: {why}; it should hold arrays x and y of numbers") from None
    classes = None
    if y.dtype.kind == "U":
        classes, y = _encoded(y)
    if x.ndim != 2 or y.shape != x.shape[:1] or not all(array.dtype.kind in "fiub" for array in (x, y)):
        raise InputError(
            f"{path} holds x of shape {x.shape} and type {x.dtype} and y of shape {y.shape} and type "
            f"{y.dtype}, expected numbers of shapes (N, d) and (N,)"
        )
    x = x if x.dtype == np.float32 else x.astype(np.float64)
    return _checked(path, x, y, range(x.shape[1]), target, classes)


def read_spaced(path: Path) -> Table:
    """Read numbers with spaces between them and no header; the last column is the target."""
    try:
        numbers = np.loadtxt(path, ndmin=2)
    except ValueError as error:
        raise InputError(f"cannot read {path}: {error}") from None
    return _checked(path, numbers[:, :-1], numbers[:, -1], range(numbers.shape[1]), "y")


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
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    read = pa.parquet.read_table if path.suffix.lower() == ".parquet" else pa.csv.read_csv
    try:
        return read(path, **options)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"cannot read {path}: {str(error).splitlines()[0]}") from None


def _from_arrow(path: Path, columns: Any, target: str, dtype: npt.DTypeLike = np.float64) -> Table:
    from pyarrow import types

    names = columns.column_names
    if target not in names:
        raise InputError(f"{path} has no column {target!r}; it has {', '.join(names)}")
    classes = None
    if types.is_string(columns.field(target).type) or types.is_large_string(columns.field(target).type):
        words = np.array([word or "" for word in columns.column(target).to_pylist()])
        empty = np.flatnonzero(np.char.strip(words) == "")
        if len(empty):
            raise InputError(f"{path} has no {target!r} in row {empty[0]}; drop such rows first")
        classes, codes = _encoded(words)
        columns = columns.set_column(names.index(target), target, [codes])
    # A column of the type null is a number missing from every row, and named as such later.
    numeric = (types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    for field in columns.schema:
        if not any(fits(field.type) for fits in numeric):
            raise InputError(
                f"column {field.name!r} of {path} holds {field.type}, expected numbers; encode it or drop it"
            )
    x, y = np.empty((len(columns), len(names) - 1), dtype), np.empty(len(columns))
    places = list(x.T)  # where each column goes: views, so that no second copy of all is made
    places.insert(names.index(target), y)
    start = 0
    for batch in columns.to_batches():
        stop = start + len(batch)
        for place, column in zip(places, batch.columns, strict=True):
            place[start:stop] = column.to_numpy(zero_copy_only=False)
        start = stop
    names.remove(target)
    return _checked(path, x, y, names, target, classes)


def _encoded(words: npt.NDArray[np.str_]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Return the different words, sorted, and the index (N,) of each word among them."""
    classes, codes = np.unique(words, return_inverse=True)
    return tuple(classes.tolist()), codes


def _checked(
    path: Path,
    x: Numbers,
    y: npt.NDArray[Any],
    names: Sequence[Any],
    target: str,
    classes: tuple[str, ...] | None = None,
) -> Table:
    """Return the table, if it has rows and features and no missing numbers."""
    if x.size == 0:
        raise InputError(f"{path} holds {x.shape[0]} rows of {x.shape[1]} features")
    for numbers, labels in ((x, names), (y[:, None], [target])):
        finite = np.isfinite(numbers)
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            raise InputError(
                f"{path} holds {numbers[row, column]} in row {row}, column {labels[column]!r}; "
                "drop or impute such rows first"
            )
    return Table(path.stem, x, y.astype(np.float64), target, classes)
