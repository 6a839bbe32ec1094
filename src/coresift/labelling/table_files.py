"""The files that tables are kept in: CSV and Parquet, read piece by piece as record batches of Arrow."""

from __future__ import annotations

import csv
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from coresift.labelling.files import SEPARATORS
from coresift.limits import POOL_BLOCK
from coresift.reading import check_header, without_index
from coresift.types import Floats, InputError

Rows: TypeAlias = npt.NDArray[np.int64]

# Numbers with a comma for decimals or between thousands, among others without one.
_WITH_COMMAS = r"^\s*[+-]?[0-9][0-9.,]*\s*$"
# Rewrites 3.1.2024, with a time after it or not, as 2024-01-03.
_DAY_FIRST = (
    (r"^(\d)\.", r"0\1."),
    (r"^(\d\d)\.(\d)\.", r"\1.0\2."),
    (r"^(\d\d)\.(\d\d)\.(\d{4})\b", r"\3-\2-\1"),
)
# Kinds of columns to learn from.
USABLE = ("number", "date", "category")
# What Arrow raises for a date that Python cannot hold, or whose time zone is not known.
_NO_TEXT = (OverflowError, ValueError)


class TableFile(ABC):
    """A table in a file, which may be larger than memory.

    Attributes
    ----------
    columns : their names, without an index that pandas wrote.
    kinds : what each column holds, one that is an index too: one of `USABLE`, or in words what else.
    num_rows : above zero.
    with_commas : columns of text whose values are all numbers, some with a comma, and an example of each.
    """

    columns: list[str]
    kinds: dict[str, str]
    num_rows: int
    with_commas: dict[str, str]

    @abstractmethod
    def rows(
        self, names: Sequence[str], *, as_text: bool, wanted: Rows | None = None
    ) -> Iterator[tuple[Rows, Any]]:
        """Rows and their positions, all or the ``wanted`` ones (ascending), by record batches.

        ``as_text`` gives what stands in the file, where "NA" may be a name; else it is a missing value.
        """

    def texts(
        self, names: Sequence[str], wanted: Rows | None = None
    ) -> Iterator[tuple[Rows, list[list[str | None]]]]:
        """What stands in each of the columns, and the positions of its rows; see `rows`."""
        # Asked for no column, the reader of CSV gives all.
        for rows, batch in self.rows(names, as_text=True, wanted=wanted) if names else ():
            try:
                columns = [as_texts(batch.column(name)) for name in names]
            except _NO_TEXT:
                self.check_dates(names)
                raise
            yield rows, columns

    def typed(self, names: Sequence[str]) -> Iterator[Any]:
        """All rows by record batches, with the types of the file; see `CsvFile` for one that has none."""
        return (batch for _, batch in self.rows(names, as_text=True))

    @abstractmethod
    def check_dates(self, names: Sequence[str]) -> None:
        """Raise for a date in these columns that cannot be shown to people; see `as_texts`."""


class CsvFile(TableFile):
    """A CSV file with a header and commas, semicolons or tabs, read in pieces of some megabytes.

    The file is read once to find its types, which a piece cannot tell: the first thousands of rows may hold
    whole numbers and the next a word. ``text`` is a column of text whatever it holds.
    """

    def __init__(self, path: Path, text: str | None = None) -> None:
        self._path = path
        with _explained(path):
            self.columns = self._names()
        check_header(path, self.columns)
        with _explained(path, self.columns):
            try:
                self._types = self._find_types(text)
            except ValueError:  # again by a single thread, which knows the row that it is at
                self._types = self._find_types(text, threads=False)
        self.kinds = {name: _kind(type) for name, type in self._types.items()}
        if self.num_rows == 0:
            raise InputError(f"{path} has a header and no rows; a pool needs items")

    def _names(self) -> list[str]:
        """The names of the columns, by the separator that gives the most and splits no quoted name."""
        names: list[str] = []
        best = (False, 0)
        for separator in SEPARATORS:
            with self._path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
                reader = csv.reader(file, delimiter=separator)
                split = next((row for row in reader if row), [])
            with self._path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
                header = "".join(islice(file, reader.line_num)).strip("\r\n")
            rank = (_keeps_quoted(header, separator), len(split))
            if split and rank > best:
                best, names, self._separator = rank, split, separator
        if not names:
            raise InputError(f"{self._path} is empty; its first line should name the columns")
        if {"\0", "\ufffd"} & set("".join(names)):
            raise InputError(
                f"{self._path} does not begin with text in UTF-8; save the table as CSV in UTF-8"
            )
        return names

    def _find_types(self, text: str | None, threads: bool = True) -> dict[str, Any]:
        import pyarrow as pa

        whole = pa.float64(), pa.timestamp("us"), pa.timestamp("us", "UTC")
        fitting = {name: [] if name == text else list(whole) for name in self.columns}
        self.num_rows, self.with_commas = 0, {}
        others = {text}
        for batch in self._open(self.columns, threads):
            self.num_rows += len(batch)
            for name, column in zip(self.columns, batch.columns, strict=True):
                fitting[name] = [type for type in fitting[name] if _fits(column, type)]
                if name in others:
                    continue
                if _all_match(column, _WITH_COMMAS):
                    if name not in self.with_commas and (example := _with_comma(column)):
                        self.with_commas[name] = example
                else:
                    others.add(name)
        self.with_commas = {name: example for name, example in self.with_commas.items() if name not in others}
        return {name: (types or [pa.string()])[0] for name, types in fitting.items()}

    def _open(self, names: Sequence[str], threads: bool = True, **options: Any) -> Any:
        import pyarrow as pa
        import pyarrow.csv

        # As text, since the reader would take the types of its first piece for those of the file.
        options["column_types"] = dict.fromkeys(names, pa.string())
        return pa.csv.open_csv(
            self._path,
            pa.csv.ReadOptions(use_threads=threads, block_size=8 << 20),
            pa.csv.ParseOptions(delimiter=self._separator, newlines_in_values=True),
            pa.csv.ConvertOptions(include_columns=names, strings_can_be_null=True, **options),
        )

    def rows(
        self, names: Sequence[str], *, as_text: bool, wanted: Rows | None = None
    ) -> Iterator[tuple[Rows, Any]]:
        import pyarrow as pa

        with _explained(self._path, self.columns):
            if as_text:
                yield from _pick(self._open(names, null_values=[""]), 0, wanted)
                return
            for rows, batch in _pick(self._open(names), 0, wanted):
                yield (
                    rows,
                    pa.record_batch([_cast(batch.column(name), self._types[name]) for name in names], names),
                )

    def typed(self, names: Sequence[str]) -> Iterator[Any]:
        """All rows by record batches: columns of numbers as such, and others as text that stands there."""
        import pyarrow as pa

        for _, batch in self.rows(names, as_text=True):
            columns = [
                _present(batch.column(name), self._types[name])
                if self.kinds[name] == "number"
                else batch.column(name)
                for name in names
            ]
            yield pa.record_batch(columns, list(names))

    def check_dates(self, names: Sequence[str]) -> None:
        pass  # They are text, which is shown as it stands.


def _keeps_quoted(header: str, separator: str) -> bool:
    """Tell whether double quotes stand only around whole names where a separator splits a header.

    >>> header = 'id,"Rate it; 1 is bad",y'
    >>> _keeps_quoted(header, ","), _keeps_quoted(header, ";")
    (True, False)
    """
    name = f' *"(?:[^"]|"")*" *|[^"{separator}]*'
    return re.fullmatch(f"(?:{name})(?:{separator}(?:{name}))*", header) is not None


class ParquetFile(TableFile):
    """A Parquet file, read by its row groups."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet

        self._path = path
        with _explained(path):
            self._file = pyarrow.parquet.ParquetFile(path, buffer_size=1 << 18)
            schema = self._file.schema_arrow
        check_header(path, schema.names)
        self.columns = without_index(path, schema.empty_table(), None).column_names
        self.kinds = {field.name: _kind(field.type) for field in schema}
        self.with_commas = {}
        self.num_rows = self._file.metadata.num_rows
        if self.num_rows == 0:
            raise InputError(f"{path} has no rows; a pool needs items")

    def rows(
        self, names: Sequence[str], *, as_text: bool, wanted: Rows | None = None
    ) -> Iterator[tuple[Rows, Any]]:
        start = 0
        for group in range(self._file.num_row_groups):
            stop = start + self._file.metadata.row_group(group).num_rows
            if wanted is None or np.searchsorted(wanted, start) < np.searchsorted(wanted, stop):
                with _explained(self._path):
                    batches = self._file.iter_batches(POOL_BLOCK, row_groups=[group], columns=list(names))
                    for rows, batch in _pick(batches, start, wanted):
                        batch.validate(full=True)  # texts that are not UTF-8 would fail later
                        yield rows, batch
            start = stop

    def check_dates(self, names: Sequence[str]) -> None:
        dates = [name for name in names if self.kinds[name] == "date"]
        for rows, batch in self.rows(dates, as_text=True) if dates else ():
            for name in dates:
                column = batch.column(name)
                if _has_text(_extremes(column)):
                    continue
                row = next(row for row in range(len(column)) if not _has_text(column.slice(row, 1)))
                where = row_name(self._path, int(rows[row]))
                raise InputError(
                    f"{self._path} has a date in {where}, column {name!r}, that cannot be shown; "
                    f"years go from 1 to 9999, and time zones have to be known ({column.type}): correct it"
                )


def row_name(path: Path | str, row: int) -> str:
    """A row of a pool as people find it.

    The rows of CSV files are counted as spreadsheets do, with the header as 1, and as `read_answers` does;
    others from 0, as Python does.

    >>> row_name("pool.csv", 0), row_name("pool.parquet", 0)
    ('row 2', 'row 0 (counted from 0)')
    """
    return f"row {row + 2}" if Path(path).suffix.lower() == ".csv" else f"row {row} (counted from 0)"


def as_texts(column: Any) -> list[str | None]:
    """What an Arrow array holds, as text; ``None`` for missing values.

    Dates have to be in the range of Python's, and in a time zone that is known.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        numbers = column.to_numpy(zero_copy_only=False)
        # NumPy writes the 0.1 of single precision as 0.1; Python is faster.
        values = map(str, numbers.tolist() if numbers.dtype == np.float64 else numbers)
        return [None if value == "nan" else value for value in values]
    if pa.types.is_timestamp(column.type):
        # Python's times have no nanoseconds.
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return [None if value is None else str(value) for value in column.to_pylist()]


def _has_text(column: Any) -> bool:
    """Whether `as_texts` can show an Arrow array."""
    try:
        as_texts(column)
    except _NO_TEXT:
        return False
    return True


def _extremes(dates: Any) -> Any:
    """The first and the last date of an Arrow array."""
    import pyarrow as pa
    import pyarrow.compute as compute

    if pa.types.is_dictionary(dates.type):
        dates = dates.dictionary_decode()
    return pa.array(compute.call_function("min_max", [dates]).values(), dates.type)


def as_numbers(column: Any) -> Floats:
    """(n,) numbers of an Arrow array of numbers or dates, which become days since 1970."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    date = _kind(column.type) == "date"
    if date:
        unit = pa.timestamp("us", getattr(column.type, "tz", None))
        column = column.cast(unit, safe=False).cast(pa.int64())
    # Not safe: whole numbers above 2^53 are rounded.
    numbers: Floats = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers / 86_400e6 if date else numbers


def _kind(type: Any) -> str:
    """One of `USABLE`, or in words what else a column of an Arrow type holds."""
    from pyarrow import types

    if types.is_dictionary(type):
        type = type.value_type
    # What is missing from all rows may as well have been a number.
    if any(fits(type) for fits in (types.is_integer, types.is_floating, types.is_decimal, types.is_null)):
        return "number"
    if types.is_timestamp(type) or types.is_date(type):
        return "date"
    if types.is_string(type) or types.is_large_string(type) or types.is_boolean(type):
        return "category"
    return str(type)


def _cast(column: Any, type: Any) -> Any:
    """Text as ``type``, whatever spaces are around it; dates may have the day first, with dots."""
    import pyarrow as pa
    import pyarrow.compute as compute

    try:
        return column.cast(type)
    except pa.ArrowInvalid:
        column = compute.call_function("utf8_trim_whitespace", [column])
    if pa.types.is_timestamp(type):
        for pattern, replacement in _DAY_FIRST:
            column = compute.replace_substring_regex(column, pattern=pattern, replacement=replacement)
    return column.cast(type)


def _all_match(column: Any, pattern: str) -> bool:
    """Whether all texts that are not missing match a pattern."""
    import pyarrow.compute as compute

    return compute.all(compute.match_substring_regex(column, pattern=pattern), min_count=0).as_py() is True


def _with_comma(column: Any) -> str | None:
    """The first text with a comma in it."""
    import pyarrow.compute as compute

    found = column.filter(compute.match_substring(column, pattern=","))
    return str(found[0]) if len(found) else None


def _present(column: Any, type: Any) -> Any:
    """Text as ``type``, and nothing where the CSV reader takes a word for a missing value."""
    import pyarrow as pa
    import pyarrow.compute as compute
    import pyarrow.csv

    missing = compute.is_in(column, value_set=pa.array(pa.csv.ConvertOptions().null_values))
    return _cast(compute.if_else(missing, pa.scalar(None, column.type), column), type)


def _fits(column: Any, type: Any) -> bool:
    import pyarrow as pa

    try:
        _cast(column, type)
    except pa.ArrowInvalid:
        return False
    return True


def _pick(batches: Any, start: int, wanted: Rows | None) -> Iterator[tuple[Rows, Any]]:
    """The rows of ``batches`` from row ``start`` on, or the wanted of them, at most a block at a time."""
    for batch in batches:
        for first in range(0, len(batch), POOL_BLOCK):
            piece = batch.slice(first, POOL_BLOCK)
            rows = np.arange(start + first, start + first + len(piece))
            if wanted is not None:
                low, high = np.searchsorted(wanted, [rows[0], rows[-1] + 1])
                rows = wanted[low:high]
                piece = piece.take(rows - start - first) if len(rows) else piece
            if len(rows):
                yield rows, piece
        start += len(batch)
        if wanted is not None and (len(wanted) == 0 or start > wanted[-1]):
            return


@contextmanager
def _explained(path: Path, names: Sequence[str] = ()) -> Iterator[None]:
    """Errors of readers as ours, in one line; rows and columns as we count and name them."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, csv.Error) as error:
        message = str(error).splitlines()[0]
        # Arrow counts lines, with the header as 1, and so do we.
        message = message.replace("Row #", "row ")
        message = re.sub(r"In CSV column #(\d+)", lambda found: f"column {names[int(found[1])]!r}", message)
        advice = "; save the table in UTF-8" if "UTF8" in message else ""
        raise InputError(f"cannot read {path}: {message}{advice}") from None
