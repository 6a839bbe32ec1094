"""Pools as people have them: a table in a file, texts in one, an array of numbers, a folder of images.

Each kind tells the names of its items, shows a few of them to people, and gives all of them block by block as
numbers, categories, texts and images, which `coresift.labelling.features` makes features of.
"""

from __future__ import annotations

import csv
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from coresift.data.readers import _check_names, _is_number, _without_index
from coresift.pool import BLOCK, ArrayPool, _let_go, _positions
from coresift.types import Floats, InputError

Kind: TypeAlias = Literal["table", "text", "images", "array"]
Rows: TypeAlias = npt.NDArray[np.int64]
Positions: TypeAlias = Sequence[int] | Rows

IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
# Beyond it squares overflow; whoever writes such a number means "none" or has made a mistake.
LARGEST = 1e100
SHOWN = 20
# Kinds of columns to learn from.
USABLE = ("number", "date", "category")
# Words that stand for no label; the CSV reader has them for missing values.
NOTHING = ("", "#N/A", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")


@dataclass(frozen=True)
class Reading:
    """How a pool is to be read; of plain values, to be kept as JSON.

    Attributes
    ----------
    path : of a .csv, .parquet or .npy file or a folder of images.
    id : column with the names of items; by default one called "id" if its values are distinct, else items
        are named by their row, from 0.
    target : what to predict; its column may be absent, or filled in some rows only.
    features : columns to learn from, by default all that have no other part to play here.
    text : column of text to learn from.
    cost : column of what a label costs, numbers above zero.
    group : column of groups that items belong to.
    """

    path: str
    id: str | None = None
    target: str | None = None
    features: tuple[str, ...] = ()
    text: str | None = None
    cost: str | None = None
    group: str | None = None


@dataclass(frozen=True, eq=False)
class Block:
    """Items as they come out of a file; what a kind of pool does not have is empty.

    Attributes
    ----------
    numbers : (n, p), NaN where one is missing.
    categories : (n, q) of text, ``None`` where one is missing.
    texts : n of them, "" where one is missing.
    images : n files.
    """

    numbers: Floats
    categories: npt.NDArray[np.object_]
    texts: Sequence[str] = ()
    images: Sequence[Path] = ()

    def __len__(self) -> int:
        return len(self.numbers)


class ItemPool(ABC):
    """Items to label.

    Attributes
    ----------
    reading : how they were read, with its defaults filled in.
    kind : of what.
    numbers, categories : the columns of these in a `Block`.
    """

    reading: Reading
    kind: Kind
    numbers: Sequence[str] = ()
    categories: Sequence[str] = ()

    @abstractmethod
    def __len__(self) -> int: ...

    def ids(self) -> list[str]:
        """The names of items: distinct, not empty."""
        return [str(row) for row in range(len(self))]

    def targets(self) -> list[str | None] | None:
        """The labels that the file holds, ``None`` where a row has none; ``None`` without such a column."""
        return None

    def costs(self) -> Floats | None:
        """(N,) what a label of each costs, above zero."""
        return None

    def groups(self) -> list[str] | None:
        """The group that each belongs to."""
        return None

    @abstractmethod
    def describe(self, positions: Positions) -> list[dict[str, str]]:
        """What people are shown of the items in ``positions``: what columns but id and target hold."""

    def fingerprint(self) -> str:
        """SHA-256 of the content."""
        with open(self.reading.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """All items in order, some at a time."""

    @abstractmethod
    def take(self, positions: Rows) -> Block:
        """The items in ascending ``positions``."""


def open_pool(reading: Reading) -> ItemPool:
    """Open what lies at ``reading.path``, with its names, ids, costs and groups checked."""
    path = Path(reading.path).absolute()
    reading = replace(reading, path=str(path), features=tuple(dict.fromkeys(reading.features)))
    if path.is_dir():
        return ImageFolder(reading)
    if not path.exists():
        raise InputError(f"there is no file or folder {path}")
    match path.suffix.lower():
        case ".csv":
            return TablePool(reading, CsvFile(path, reading.text))
        case ".parquet" | ".pq":
            return TablePool(reading, ParquetFile(path))
        case ".npy":
            return ArrayItems(reading)
    raise InputError(
        f"cannot read {path}: its name should end in .csv, .parquet or .npy, or be a folder of images"
    )


class TablePool(ItemPool):
    """Rows of a CSV or Parquet file, with or without a column of text."""

    def __init__(self, reading: Reading, file: CsvFile | ParquetFile) -> None:
        self._file = file
        self.kind = "table" if reading.text is None else "text"
        self._check_columns(reading)
        kinds = file.kinds
        # All that have a part to play in one go: another one costs seconds where the file is large.
        parts = {reading.id or "id", reading.target, reading.cost, reading.group}
        columns = _columns(file, [name for name in kinds if name in parts])
        free = "id" not in (reading.target, reading.cost, reading.group, reading.text, *reading.features)
        ids = columns.get("id", [None])
        if reading.id is None and free and None not in ids and len(set(ids)) == len(self):
            reading = replace(reading, id="id")
        if not reading.features:
            # A repeated "id" names no item, but is nothing to learn from either.
            others = parts | {reading.text, "id"}
            reading = replace(reading, features=tuple(name for name in file.columns if name not in others))
        self.reading = reading
        self._check_features()
        self.numbers = [name for name in reading.features if kinds[name] in ("number", "date")]
        self.categories = [name for name in reading.features if kinds[name] == "category"]
        self._targets = columns.get(reading.target or "")
        self._ids = None if reading.id is None else self._filled(reading.id, columns)
        self._check_ids()
        self._groups = None if reading.group is None else self._filled(reading.group, columns)
        self._costs = None if reading.cost is None else self._as_costs(self._filled(reading.cost, columns))

    def _check_columns(self, reading: Reading) -> None:
        path, kinds = reading.path, self._file.kinds
        for name in (reading.id, reading.text, reading.cost, reading.group, *reading.features):
            if name is not None and name not in kinds:
                raise InputError(f"{path} has no column {name!r}; it has {', '.join(kinds)}")
        for part, name in (("id", reading.id), ("target", reading.target), ("text", reading.text)):
            if name in reading.features:
                raise InputError(f"column {name!r} is the {part} of {path}; take it out of the features")
        if reading.text is not None and kinds[reading.text] != "category":
            raise InputError(f"column {reading.text!r} of {path} holds {kinds[reading.text]}, expected text")

    def _check_features(self) -> None:
        path, kinds = self.reading.path, self._file.kinds
        for name in self.reading.features:
            if kinds[name] not in USABLE:
                raise InputError(
                    f"column {name!r} of {path} holds {kinds[name]}, expected numbers, text or dates; "
                    "name the features to leave it out"
                )
        if not self.reading.features and self.reading.text is None:
            raise InputError(f"{path} has no column to learn from; it has {', '.join(kinds)}")

    def _filled(self, name: str, columns: dict[str, list[str | None]]) -> list[str]:
        values = columns[name]
        if None in values:
            raise InputError(
                f"{self.reading.path} holds nothing in row {values.index(None)}, column {name!r}; fill it in"
            )
        return [value for value in values if value is not None]

    def _check_ids(self) -> None:
        rows: dict[str, int] = {}
        for row, name in enumerate(self._ids or ()):
            if rows.setdefault(name, row) != row:
                raise InputError(
                    f"{self.reading.path} holds {name!r} in rows {rows[name]} and {row} of column "
                    f"{self.reading.id!r}; an id names one item"
                )

    def _as_costs(self, texts: Sequence[str]) -> Floats:
        costs = np.array([float(text) if _is_number(text) else np.nan for text in texts])
        wrong = ~((costs > 0) & (costs < np.inf))
        if wrong.any():
            row = int(wrong.argmax())
            raise InputError(
                f"{self.reading.path} holds {texts[row]!r} in row {row}, column {self.reading.cost!r}; "
                "a cost is a number above zero"
            )
        return costs

    def __len__(self) -> int:
        return self._file.num_rows

    def ids(self) -> list[str]:
        return super().ids() if self._ids is None else list(self._ids)

    def targets(self) -> list[str | None] | None:
        if self._targets is None:
            return None
        return [None if label in NOTHING else label for label in self._targets]

    def costs(self) -> Floats | None:
        return None if self._costs is None else self._costs.copy()

    def groups(self) -> list[str] | None:
        return None if self._groups is None else list(self._groups)

    def describe(self, positions: Positions) -> list[dict[str, str]]:
        position = _positions(positions, len(self))
        hidden = (self.reading.id, self.reading.target)
        names = [
            name for name in self._file.columns if name not in hidden and self._file.kinds[name] in USABLE
        ]
        shown: dict[int, dict[str, str]] = {}
        for rows, batch in self._file.rows(names, as_text=True, wanted=np.unique(position)) if names else ():
            columns = [_texts(batch.column(name)) for name in names]
            for row, values in zip(rows.tolist(), zip(*columns, strict=True), strict=True):
                shown[row] = {name: value or "" for name, value in zip(names, values, strict=True)}
        return [dict(shown.get(row, {})) for row in position.tolist()]

    def blocks(self) -> Iterator[Block]:
        return self._blocks(None)

    def take(self, positions: Rows) -> Block:
        blocks = list(self._blocks(positions))
        return Block(
            np.concatenate([block.numbers for block in blocks]),
            np.concatenate([block.categories for block in blocks]),
            [text for block in blocks for text in block.texts],
        )

    def _blocks(self, wanted: Rows | None) -> Iterator[Block]:
        text = self.reading.text
        names = [*self.reading.features, *([] if text is None else [text])]
        for rows, batch in self._file.rows(names, as_text=False, wanted=wanted):
            numbers = np.empty((len(rows), len(self.numbers)))
            for column, name in zip(numbers.T, self.numbers, strict=True):
                column[:] = _as_numbers(batch.column(name))
            _check_numbers(self.reading.path, numbers, rows, self.numbers)
            categories = np.empty((len(rows), len(self.categories)), dtype=object)
            for column, name in zip(categories.T, self.categories, strict=True):
                column[:] = _texts(batch.column(name))
            texts = [] if text is None else [value or "" for value in _texts(batch.column(text))]
            yield Block(numbers, categories, texts)


class ArrayItems(ItemPool):
    """Rows of a memory-mapped .npy file of numbers (N, ...), named by their row."""

    kind = "array"

    def __init__(self, reading: Reading) -> None:
        _refuse_columns(reading, "an array of numbers")
        self.reading = reading
        try:
            rows = ArrayPool(np.load(reading.path, mmap_mode="r")).rows
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {reading.path}: {str(error).splitlines()[0]}") from None
        self._rows: npt.NDArray[Any] = np.asanyarray(rows)
        self._width = int(np.prod(self._rows.shape[1:]))
        if self._width == 0:
            raise InputError(f"{reading.path} holds an array of shape {self._rows.shape}, without any number")
        self.numbers = [str(column) for column in range(self._width)]

    def __len__(self) -> int:
        return len(self._rows)

    def describe(self, positions: Positions) -> list[dict[str, str]]:
        rows = (self._rows[row].reshape(-1)[:SHOWN] for row in _positions(positions, len(self)))
        return [{str(column): str(number) for column, number in enumerate(row)} for row in rows]

    def blocks(self) -> Iterator[Block]:
        # Fewer rows where they are long, such as those of images.
        step = min(BLOCK, max(1, 4_000_000 // self._width))
        for start in range(0, len(self), step):
            yield self.take(np.arange(start, min(start + step, len(self))))

    def take(self, positions: Rows) -> Block:
        numbers = self._rows[positions].reshape(len(positions), -1).astype(np.float64)
        _let_go(self._rows)
        _check_numbers(self.reading.path, numbers, positions, self.numbers)
        return Block(numbers, np.empty((len(positions), 0), dtype=object))


class ImageFolder(ItemPool):
    """Image files of a folder and the folders in it, sorted by path and named by it."""

    kind = "images"

    def __init__(self, reading: Reading) -> None:
        _refuse_columns(reading, "a folder of images")
        self.reading = reading
        folder = Path(reading.path)
        found = (
            file.relative_to(folder)
            for file in folder.rglob("*")
            if file.suffix.lower() in IMAGES and file.is_file()
        )
        # Hidden files with the names of images are notes that a Mac leaves.
        self._ids = sorted(
            file.as_posix() for file in found if not any(part.startswith(".") for part in file.parts)
        )
        if not self._ids:
            raise InputError(f"{folder} holds no image; their names should end in {', '.join(IMAGES)}")

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self) -> list[str]:
        return list(self._ids)

    def describe(self, positions: Positions) -> list[dict[str, str]]:
        files = self.take(_positions(positions, len(self))).images
        return [{"image": str(file)} for file in files]

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name in self._ids:
            content = Path(self.reading.path, name).read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()

    def blocks(self) -> Iterator[Block]:
        # Few at a time: decoding is slow, and their pixels are held at once.
        for start in range(0, len(self), 256):
            yield self.take(np.arange(start, min(start + 256, len(self))))

    def take(self, positions: Rows) -> Block:
        images = [Path(self.reading.path, self._ids[position]) for position in positions]
        return Block(np.empty((len(images), 0)), np.empty((len(images), 0), dtype=object), images=images)


class CsvFile:
    """A CSV file with a header, read in pieces of some megabytes.

    The file is read once to find its types, which a piece cannot tell: the first thousands of rows may hold
    whole numbers and the next a word. ``kinds`` has that of every column; ``text`` is one of text whatever it
    holds.
    """

    def __init__(self, path: Path, text: str | None = None) -> None:
        self._path = path
        with _explained(path):
            self.columns = self._names()
        _check_names(path, self.columns)
        with _explained(path, self.columns):
            try:
                self._types = self._find_types(text)
            except ValueError:  # again by a single thread, which knows the row that it is at
                self._types = self._find_types(text, threads=False)
        self.kinds = {name: _kind(type) for name, type in self._types.items()}
        if self.num_rows == 0:
            raise InputError(f"{path} has a header and no rows; a pool needs items")

    def _names(self) -> list[str]:
        with self._path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            names = next((row for row in csv.reader(file) if row), [])
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
        self.num_rows = 0
        for batch in self._open(self.columns, threads):
            self.num_rows += len(batch)
            for name, column in zip(self.columns, batch.columns, strict=True):
                fitting[name] = [type for type in fitting[name] if _fits(column, type)]
        return {name: (types or [pa.string()])[0] for name, types in fitting.items()}

    def _open(self, names: Sequence[str], threads: bool = True, **options: Any) -> Any:
        import pyarrow as pa
        import pyarrow.csv

        # As text, since the reader would take the types of its first piece for those of the file.
        options["column_types"] = dict.fromkeys(names, pa.string())
        return pa.csv.open_csv(
            self._path,
            pa.csv.ReadOptions(use_threads=threads, block_size=8 << 20),
            pa.csv.ParseOptions(newlines_in_values=True),
            pa.csv.ConvertOptions(include_columns=names, strings_can_be_null=True, **options),
        )

    def rows(
        self, names: Sequence[str], *, as_text: bool, wanted: Rows | None = None
    ) -> Iterator[tuple[Rows, Any]]:
        """Rows and their positions, all or the ``wanted`` ones (ascending), by record batches.

        ``as_text`` gives what stands in the file, where "NA" may be a name; else it is a missing value.
        """
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


class ParquetFile:
    """A Parquet file, read by its row groups; ``columns`` are without an index that pandas wrote."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet

        self._path = path
        with _explained(path):
            self._file = pyarrow.parquet.ParquetFile(path, buffer_size=1 << 18)
            schema = self._file.schema_arrow
        _check_names(path, schema.names)
        self.columns: list[str] = _without_index(path, schema.empty_table(), None).column_names
        self.kinds = {field.name: _kind(field.type) for field in schema}
        self.num_rows: int = self._file.metadata.num_rows
        if self.num_rows == 0:
            raise InputError(f"{path} has no rows; a pool needs items")

    def rows(
        self, names: Sequence[str], *, as_text: bool, wanted: Rows | None = None
    ) -> Iterator[tuple[Rows, Any]]:
        """Rows and their positions, all or the ``wanted`` ones (ascending), by record batches."""
        start = 0
        for group in range(self._file.num_row_groups):
            stop = start + self._file.metadata.row_group(group).num_rows
            if wanted is None or np.searchsorted(wanted, start) < np.searchsorted(wanted, stop):
                with _explained(self._path):
                    batches = self._file.iter_batches(BLOCK, row_groups=[group], columns=list(names))
                    yield from _pick(batches, start, wanted)
            start = stop


def _columns(file: CsvFile | ParquetFile, names: list[str]) -> dict[str, list[str | None]]:
    """What columns hold, as text without spaces around it; ``None`` where that is nothing."""
    values: dict[str, list[str | None]] = {name: [] for name in names}
    for _, batch in file.rows(names, as_text=True) if names else ():
        for name in names:
            values[name].extend((text or "").strip() or None for text in _texts(batch.column(name)))
    return values


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
    """Text as ``type``, whatever spaces are around it."""
    import pyarrow as pa
    import pyarrow.compute as compute

    try:
        return column.cast(type)
    except pa.ArrowInvalid:
        return compute.call_function("utf8_trim_whitespace", [column]).cast(type)


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
        for first in range(0, len(batch), BLOCK):
            piece = batch.slice(first, BLOCK)
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


def _texts(column: Any) -> list[str | None]:
    """What an Arrow array holds, as text; ``None`` for missing values."""
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


def _as_numbers(column: Any) -> Floats:
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


def _check_numbers(path: str, numbers: Floats, rows: Rows, names: Sequence[str]) -> None:
    """Raise at the first infinity or absurd size of ``numbers`` (n, p); NaN is a missing value."""
    wrong = np.abs(numbers) > LARGEST
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise InputError(
            f"{path} holds {numbers[row, column]} in row {rows[row]}, column {names[column]!r}; "
            "correct it, or leave it empty if it is not known"
        )


def _refuse_columns(reading: Reading, what: str) -> None:
    for part in ("id", "features", "text", "cost", "group"):
        if getattr(reading, part):
            raise InputError(f"{reading.path} is {what} and has no columns to name; leave out the {part}")


@contextmanager
def _explained(path: Path, names: Sequence[str] = ()) -> Iterator[None]:
    """Errors of readers as ours, in one line; rows and columns as we count and name them."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, csv.Error) as error:
        message = str(error).splitlines()[0]
        # Arrow counts lines, with the header as 1.
        message = re.sub(r"Row #(\d+)", lambda found: f"row {int(found[1]) - 2}", message)
        message = re.sub(r"In CSV column #(\d+)", lambda found: f"column {names[int(found[1])]!r}", message)
        advice = "; save the table in UTF-8" if "UTF8" in message else ""
        raise InputError(f"cannot read {path}: {message}{advice}") from None
