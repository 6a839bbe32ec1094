"""Read tables in CSV files, in any of the usual separators."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice, tee
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.csv

from coresift import limits
from coresift.errors import InputError
from coresift.labelling.cells import SEPARATORS
from coresift.labelling.pools.arrow import USABLE, TableFile, column_kind, explained, pick
from coresift.reading import check_header
from coresift.types import Index

# Matches numbers, also with a decimal comma or commas between thousands.
_WITH_COMMAS = r"^\s*[+-]?[0-9][0-9.,]*\s*$"
# Words that stand for missing values, such as NA.
_MISSING = pa.array(pa.csv.ConvertOptions().null_values)
# Steps that rewrite 3.1.2024, with or without a time after it, as 2024-01-03.
_DAY_FIRST = (
    (r"^(\d)\.", r"0\1."),
    (r"^(\d\d)\.(\d)\.", r"\1.0\2."),
    (r"^(\d\d)\.(\d\d)\.(\d{4})\b", r"\3-\2-\1"),
)


class _ColumnTypes:
    """What a column may hold, judging from the texts seen so far."""

    def __init__(self, is_text: bool) -> None:
        types = [pa.float64(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.string()]
        self.fitting = types[-1:] if is_text else types  # those that fit all texts, best first
        self.numeric = not is_text  # whether all texts look like numbers, perhaps with commas
        self.with_comma: str | None = None  # an example of one

    def see(self, column: Any) -> None:
        column = _known(column)
        self.fitting = [type for type in self.fitting if _fits(column, type)]
        if self.numeric:
            matches = compute.match_substring_regex(column, pattern=_WITH_COMMAS)
            self.numeric = compute.all(matches, min_count=0).as_py() is True
        if self.numeric and self.with_comma is None:
            with_comma = column.filter(compute.match_substring(column, pattern=","))
            self.with_comma = with_comma[0].as_py() if len(with_comma) else None


class CsvFile(TableFile):
    """A CSV file with a header and commas, semicolons or tabs, read in pieces of some megabytes.

    The whole file is read once to find the types of its columns, which no piece can tell: after thousands of
    integers, a column may hold a word. The column ``text`` is text whatever it holds.
    """

    def __init__(self, path: Path, text: str | None = None, block: int = limits.POOL_BLOCK) -> None:
        self._path, self._block = path, block
        with explained(path):
            self._separator, self.columns = _header(path)
        check_header(path, self.columns)
        with explained(path, self.columns):
            try:
                seen = self._see_all(text)
            except ValueError:  # again with a single thread, which knows the row of the error
                seen = self._see_all(text, threads=False)
        if self.num_rows == 0:
            raise InputError(f"{path} has a header and no rows; a pool needs items")
        self._types = {name: column.fitting[0] for name, column in seen.items()}
        self.kinds = {name: column_kind(type) for name, type in self._types.items()}
        self.with_commas = {
            name: column.with_comma for name, column in seen.items() if column.numeric and column.with_comma
        }

    def _see_all(self, text: str | None, threads: bool = True) -> dict[str, _ColumnTypes]:
        """Read all rows, count them, and find what each column may hold."""
        seen = {name: _ColumnTypes(is_text=name == text) for name in self.columns}
        self.num_rows = 0
        for batch in self._open(self.columns, threads=threads):
            self.num_rows += len(batch)
            for name, column in zip(self.columns, batch.columns, strict=True):
                seen[name].see(column)
        return seen

    def _open(self, names: Sequence[str], threads: bool = True) -> Any:
        """Read columns as text: the reader would take the types of its first piece for those of the file."""
        return pa.csv.open_csv(
            self._path,
            pa.csv.ReadOptions(use_threads=threads, block_size=limits.CSV_BYTES),
            pa.csv.ParseOptions(delimiter=self._separator, newlines_in_values=True),
            pa.csv.ConvertOptions(
                include_columns=names,
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=True,
                null_values=[""],
            ),
        )

    def rows(
        self, names: Sequence[str], typed: Collection[str] = USABLE, wanted: Index | None = None
    ) -> Iterator[tuple[Index, Any]]:
        with explained(self._path, self.columns):
            for rows, batch in pick(self._open(names), 0, wanted, self._block):
                columns = [
                    _parsed(_known(column), self._types[name]) if self.kinds[name] in typed else column
                    for name, column in zip(names, batch.columns, strict=True)
                ]
                yield rows, pa.record_batch(columns, names)


def _known(column: Any) -> Any:
    """A column of text where missing values are marked, also those that a word stands for."""
    return compute.if_else(compute.is_in(column, _MISSING), pa.scalar(None, column.type), column)


def _parsed(column: Any, type: Any) -> Any:
    """Parse text as ``type``, ignoring spaces around it; dates may have the day first, with dots."""
    try:
        return column.cast(type)
    except pa.ArrowInvalid:
        column = compute.utf8_trim_whitespace(column)
    if pa.types.is_timestamp(type):
        for pattern, replacement in _DAY_FIRST:
            column = compute.replace_substring_regex(column, pattern=pattern, replacement=replacement)
    return column.cast(type)


def _fits(column: Any, type: Any) -> bool:
    """Tell whether all texts of a column can be parsed as ``type``."""
    try:
        _parsed(column, type)
    except pa.ArrowInvalid:
        return False
    return True


def _header(path: Path) -> tuple[str, list[str]]:
    """The separator of a file, and its columns: the most names that split no quoted name."""
    split = [(*_first_row(path, separator), separator) for separator in SEPARATORS]
    _, _, names, separator = max(split, key=lambda row: row[:2])
    if not names:
        raise InputError(f"{path} is empty; its first line should name the columns")
    if {"\0", "\ufffd"} & set("".join(names)):
        raise InputError(f"{path} does not begin with text in UTF-8; save the table as CSV in UTF-8")
    return separator, names


def _first_row(path: Path, separator: str) -> tuple[bool, int, list[str]]:
    """The cells of the first row that is not blank, with whether quoted names are whole, and their number."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        lines, copies = tee(file)
        reader = csv.reader(lines, delimiter=separator)
        cells = next(filter(None, reader), [])
        header = "".join(islice(copies, reader.line_num)).strip("\r\n")
    return _keeps_quoted(header, separator), len(cells), cells


def _keeps_quoted(header: str, separator: str) -> bool:
    """Tell whether double quotes stand only around whole names where a separator splits a header.

    >>> header = 'id,"Rate it; 1 is bad",y'
    >>> _keeps_quoted(header, ","), _keeps_quoted(header, ";")
    (True, False)
    """
    name = f' *"(?:[^"]|"")*" *|[^"{separator}]*'
    return re.fullmatch(f"(?:{name})(?:{separator}(?:{name}))*", header) is not None
