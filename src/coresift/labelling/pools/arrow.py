"""Read tables with Arrow piece by piece, here of Parquet files, and turn columns into texts and numbers."""

from __future__ import annotations

import csv
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet
from pyarrow import types

from coresift import limits
from coresift.errors import InputError
from coresift.labelling.pools.base import row_name
from coresift.reading import check_header, without_index
from coresift.types import Floats, Index

# The kinds of columns to learn from. A column without any value may as well hold numbers.
USABLE = {
    "number": (types.is_integer, types.is_floating, types.is_decimal, types.is_null),
    "date": (types.is_timestamp, types.is_date),
    "category": (types.is_string, types.is_large_string, types.is_boolean),
}
# What Arrow raises for a date that Python cannot hold, or in a time zone that is not known.
NO_TEXT = (OverflowError, ValueError)


class TableFile(ABC):
    """A table in a file, which may be larger than memory."""

    columns: list[str]  # without an index that pandas wrote
    kinds: dict[str, str]  # of all columns, an index included; see `column_kind`
    num_rows: int  # above zero
    with_commas: dict[str, str]  # columns of text that are numbers, some with a comma, and an example of each

    @abstractmethod
    def rows(
        self, names: Sequence[str], typed: Collection[str] = USABLE, wanted: Index | None = None
    ) -> Iterator[tuple[Index, Any]]:
        """Read row numbers and record batches of these columns, of all rows or of the ascending ``wanted``.

        Columns of a CSV file whose kind is not ``typed`` are text as it is written there, where "NA" may be a
        name; in others it is a missing value.
        """

    def texts(self, names: Sequence[str], wanted: Index | None = None) -> dict[str, list[str | None]]:
        """Read what is written in each of the columns; see `rows`."""
        texts: dict[str, list[str | None]] = {name: [] for name in names}
        # Asked for no column, the CSV reader would give all.
        for _, batch in self.rows(names, (), wanted) if names else ():
            try:
                for name in names:
                    texts[name] += as_texts(batch.column(name))
            except NO_TEXT:
                self.check_dates(names)
                raise
        return texts

    def check_dates(self, names: Sequence[str]) -> None:
        """Raise for a date in these columns that cannot be shown to people; see `as_texts`."""
        return


class ParquetFile(TableFile):
    """A Parquet file, read by its row groups."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with explained(path):
            self._file = pa.parquet.ParquetFile(path, buffer_size=limits.PARQUET_BYTES)
            schema = self._file.schema_arrow
        check_header(path, schema.names)
        self.columns = without_index(path, schema.empty_table(), None).column_names
        self.kinds = {field.name: column_kind(field.type) for field in schema}
        self.with_commas = {}
        self.num_rows = self._file.metadata.num_rows
        if self.num_rows == 0:
            raise InputError(f"{path} has no rows; a pool needs items")

    def rows(
        self, names: Sequence[str], typed: Collection[str] = USABLE, wanted: Index | None = None
    ) -> Iterator[tuple[Index, Any]]:
        start = 0
        with explained(self._path):
            for group in range(self._file.num_row_groups):
                count = self._file.metadata.row_group(group).num_rows
                if len(within(wanted, start, count)):
                    batches = self._file.iter_batches(limits.POOL_BLOCK, [group], list(names))
                    for rows, batch in pick(batches, start, wanted):
                        batch.validate(full=True)  # texts that are not UTF-8 would fail later
                        yield rows, batch
                start += count

    def check_dates(self, names: Sequence[str]) -> None:
        for name in names:
            for rows, batch in self.rows([name]) if self.kinds[name] == "date" else ():
                self._check_column(name, decoded(batch.column(name)), rows)

    def _check_column(self, name: str, dates: Any, rows: Index) -> None:
        first_and_last = pa.array(compute.min_max(dates).values(), dates.type)
        if _has_text(first_and_last):
            return
        row = next(row for row, date in zip(rows, dates, strict=True) if not _has_text(pa.array([date])))
        raise InputError(
            f"{self._path} has a date in {row_name(self._path, row)}, column {name!r}, that cannot be shown; "
            f"years go from 1 to 9999, and time zones have to be known ({dates.type}): correct it"
        )


def _has_text(dates: Any) -> bool:
    """Tell whether `as_texts` can show an Arrow array."""
    try:
        return bool(as_texts(dates))
    except NO_TEXT:
        return False


def pick(
    batches: Iterable[Any], start: int, wanted: Index | None, block: int = limits.POOL_BLOCK
) -> Iterator[tuple[Index, Any]]:
    """Cut ``batches`` from row ``start`` on into blocks, and keep the ``wanted`` rows of each."""
    for batch in batches:
        kept = within(wanted, start, len(batch))
        for first in range(0, len(kept), block):
            rows = kept[first : first + block]
            yield rows, batch.take(rows - start)
        start += len(batch)
        if wanted is not None and start > wanted.max(initial=-1):
            return


def within(wanted: Index | None, start: int, count: int) -> Index:
    """The wanted rows among ``count`` rows from ``start`` on; all of them where ``wanted`` is ``None``."""
    if wanted is None:
        return np.arange(start, start + count)
    return wanted[slice(*np.searchsorted(wanted, (start, start + count)))]


@contextmanager
def explained(path: Path, names: Sequence[str] = ()) -> Iterator[None]:
    """Turn errors of readers into ours, in one line, with rows and columns as we count and name them."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, csv.Error) as error:
        message = str(error).splitlines()[0]
        # Arrow counts lines, with the header as 1, and so do we.
        message = message.replace("Row #", "row ")
        message = re.sub(r"In CSV column #(\d+)", lambda match: f"column {names[int(match[1])]!r}", message)
        advice = "; save the table in UTF-8" if "UTF8" in message else ""
        raise InputError(f"cannot read {path}: {message}{advice}") from None


def column_kind(type: Any) -> str:
    """The kind of a column with an Arrow type: one of `USABLE`, or what else it holds in words."""
    type = type.value_type if types.is_dictionary(type) else type
    return next((kind for kind, tests in USABLE.items() if any(test(type) for test in tests)), str(type))


def as_texts(column: Any) -> list[str | None]:
    """The values of an Arrow array as text, ``None`` where one is missing.

    Raises one of `NO_TEXT` for a date outside Python's range or in an unknown time zone.
    """
    column = decoded(column)
    if types.is_floating(column.type):
        return _number_texts(column.to_numpy(zero_copy_only=False))
    if types.is_timestamp(column.type):
        # Python's times have no nanoseconds.
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return [None if value is None else str(value) for value in column.to_pylist()]


def _number_texts(numbers: Floats) -> list[str | None]:
    # NumPy writes the 0.1 of single precision as 0.1; for double precision Python is faster.
    values = map(str, numbers.tolist() if numbers.dtype == np.float64 else numbers)
    return [None if value == "nan" else value for value in values]


def as_numbers(column: Any) -> Floats:
    """(n,) the values of an Arrow array of numbers or dates, which become days since 1970."""
    column = decoded(column)
    is_date = column_kind(column.type) == "date"
    if is_date:
        unit = pa.timestamp("us", getattr(column.type, "tz", None))
        column = column.cast(unit, safe=False).cast(pa.int64())
    # Not safe: integers above 2^53 are rounded.
    numbers: Floats = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers / 86_400e6 if is_date else numbers


def decoded(column: Any) -> Any:
    """A column of Arrow's dictionary type as its values."""
    return column.dictionary_decode() if types.is_dictionary(column.type) else column
