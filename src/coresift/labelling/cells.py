"""Read and write the cells of CSV files, as spreadsheets do, so that none of them runs as a formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coresift.errors import InputError
from coresift.labelling.labels import looks_like_number

# What may separate the columns of a CSV file.
SEPARATORS = ",;\t"
# What starts a formula in a spreadsheet, or may be dropped before one. The last four are the full-width forms
# of =+-@, which some spreadsheets read as the plain ones.
_FORMULA = re.compile(r"[\t\r\n]|\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")
# A null character, which marks binary files, and halves of surrogate pairs, which UTF-8 cannot hold.
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


def is_writable(name: str) -> bool:
    """Whether a CSV file can hold this id and give it back unchanged."""
    return bool(name.strip()) and not _UNWRITABLE.search(name)


def guarded(cell: str) -> str:
    """Put an apostrophe before a cell that a spreadsheet might run; `unguarded` takes it away."""
    cell = _UNWRITABLE.sub("\ufffd", cell)
    return "'" + cell if _needs_guard(cell) else cell


def unguarded(cell: str) -> str:
    """Take away the apostrophe that `guarded` adds."""
    return cell[1:] if cell.startswith("'") and _needs_guard(cell[1:]) else cell


def _needs_guard(cell: str) -> bool:
    """Whether a cell may run as a formula, or looks guarded already."""
    bare = cell.lstrip("'")
    return _FORMULA.match(bare) is not None and not looks_like_number(bare)


@contextmanager
def long_cells() -> Iterator[None]:
    """Let cells be of any length."""
    before = csv.field_size_limit(2**31 - 1)  # the most it takes on every platform
    try:
        yield
    finally:
        csv.field_size_limit(before)


def decode(path: Path, content: bytes) -> str:
    """Decode a CSV file, or raise and name the row with the wrong byte."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path} is in UTF-16; save it as CSV UTF-8")
    if b"\0" in content:
        raise InputError(f"{path} is not text but perhaps a workbook or a picture; save it as CSV UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The error counts bytes after the mark at the start, and so does what it holds.
        good, bad = error.object[: error.start].decode(), error.object[error.start]
        row = sum(1 for _ in csv.reader(io.StringIO(good + "?", newline="")))
        raise InputError(f"{path}, row {row}: byte {bad:#x} is not UTF-8; save it as CSV UTF-8") from None


def read_header(text: str, separator: str) -> tuple[int, list[str]]:
    """Return the number of the first row that is not blank, and the names in it; 0 and none otherwise."""
    for number, cells in enumerate(csv.reader(io.StringIO(text, newline=""), delimiter=separator), 1):
        if any(map(str.strip, cells)):
            return number, [unguarded(cell.strip()).strip() for cell in cells]
    return 0, []


def read_records(path: Path, text: str, separator: str) -> list[list[str]]:
    """Read all rows, also blank ones, so that indices in the list are those in a spreadsheet."""
    records: list[list[str]] = []
    try:
        # Strict, since otherwise a quotation mark that is not closed swallows the rest of the file.
        for cells in csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True):
            records.append(cells)
    except csv.Error:
        raise InputError(
            f"{path}, row {len(records) + 1}: a quotation mark is not closed, or text follows it; close "
            "it, and double those that are part of a text"
        ) from None
    return records
