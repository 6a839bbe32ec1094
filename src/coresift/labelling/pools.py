"""Pools as people have them: a table in a file, texts in one, an array of numbers, a folder of images.

Each kind tells the names of its items, shows a few of them to people, and gives all of them block by block as
numbers, categories, texts and images, which `coresift.labelling.features` makes features of.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from coresift.labelling.files import PLAIN_NUMBERS, is_writable
from coresift.labelling.records import LARGEST
from coresift.labelling.table_files import (
    USABLE,
    CsvFile,
    ParquetFile,
    Rows,
    TableFile,
    as_numbers,
    as_texts,
    row_name,
)
from coresift.limits import POOL_BLOCK
from coresift.pool import checked_index, open_npy
from coresift.pool.array import release_pages
from coresift.reading import is_number
from coresift.types import Floats, InputError

Kind: TypeAlias = Literal["table", "text", "images", "array"]
Positions: TypeAlias = Sequence[int] | Rows

IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
SHOWN = 20


@dataclass(frozen=True)
class Reading:
    """How a pool is to be read; of plain values, to be kept as JSON.

    Attributes
    ----------
    path : of a .csv, .parquet or .npy file or a folder of images.
    id : column with the names of items; by default one called "id" that has no other part here. Without one,
        items are named by their row, from 0.
    target : what to predict; its column may be absent, or filled in some rows only.
    features : columns to learn from, by default all that have no other part to play here. One text may name
        several, with commas between.
    text : column of text to learn from.
    cost : column of what a label costs, numbers above zero.
    group : column of groups that items belong to.
    skip : images of a folder that are no items, by their paths in it.
    """

    path: str
    id: str | None = None
    target: str | None = None
    features: tuple[str, ...] = ()
    text: str | None = None
    cost: str | None = None
    group: str | None = None
    skip: tuple[str, ...] = ()


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

    @property
    def named_by(self) -> str:
        """What names the items, in words."""
        return "their row number, from 0"

    def targets(self) -> list[str | None] | None:
        """What stands in the target's column, ``None`` in a row without; ``None`` without such a column.

        A word such as NA may stand there too; see `coresift.labelling.files.is_label`.
        """
        return None

    def costs(self) -> Floats | None:
        """(N,) what a label of each costs, above zero."""
        return None

    def groups(self) -> list[str] | None:
        """The group that each belongs to."""
        return None

    def check_writable(self) -> None:
        """Raise for an item that no batch could show: by its id, or by what stands in its columns."""
        for row, name in enumerate(self.ids()):
            if not is_writable(name):
                where = row_name(self.reading.path, row)
                raise InputError(
                    f"{self.reading.path} has the id {name!r} in {where}, which no CSV file can hold: "
                    "rename the item"
                )

    @abstractmethod
    def describe(self, positions: Positions) -> list[dict[str, str]]:
        """What people are shown of the items in ``positions``: what columns but id and target hold."""

    def own_columns(self, *, as_text: bool) -> Iterator[dict[str, Any]]:
        """What the columns but id and target hold, in their order, as Arrow arrays of some rows at a time.

        Where the file is CSV, ``as_text`` gives numbers as they stand there, 007 and 1.50; else they are
        numbers. All else has the types of the file.
        """
        import pyarrow as pa

        for block in self.blocks():
            columns = {
                name: pa.array(numbers, from_pandas=True)
                for name, numbers in zip(self.numbers, block.numbers.T, strict=True)
            }
            if len(block.images):
                columns["image"] = pa.array([str(file) for file in block.images])
            yield columns

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

    def _steps(self, step: int) -> Iterator[Block]:
        """All items, ``step`` at a time."""
        for start in range(0, len(self), step):
            yield self.take(np.arange(start, min(start + step, len(self))))


def open_pool(reading: Reading) -> ItemPool:
    """Open what lies at ``reading.path``, with its names, ids, costs and groups checked."""
    path = Path(reading.path).absolute()
    reading = replace(reading, path=str(path))
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

    def __init__(self, reading: Reading, file: TableFile) -> None:
        self._file = file
        self.kind = "table" if reading.text is None else "text"
        kinds = file.kinds
        named_features = [name for text in reading.features for name in _names(text, kinds)]
        reading = replace(reading, features=tuple(dict.fromkeys(named_features)))
        self._check_columns(reading)
        # All that have a part to play in one go: another one costs seconds where the file is large.
        parts = {reading.id or "id", reading.target, reading.cost, reading.group}
        columns = self._columns([name for name in kinds if name in parts])
        free = "id" not in (reading.target, reading.cost, reading.group, reading.text, *reading.features)
        named = reading.id is not None
        if not named and free and "id" in columns:
            reading = replace(reading, id="id")
        if not reading.features:
            # An "id" beside another that names items is nothing to learn from either.
            others = parts | {reading.text, "id"}
            reading = replace(reading, features=tuple(name for name in file.columns if name not in others))
            self._check_target(reading)
            self._check_id(reading)
            self._check_commas(reading)
        self.reading = reading
        self._check_features()
        self.numbers = [name for name in reading.features if kinds[name] in ("number", "date")]
        self.categories = [name for name in reading.features if kinds[name] == "category"]
        self._targets = columns.get(reading.target or "")
        self._ids = None if reading.id is None else self._as_ids(columns[reading.id], named)
        self._groups = self._filled(reading.group, columns)
        costs = self._filled(reading.cost, columns)
        self._costs = None if costs is None else self._as_costs(costs)

    def _check_columns(self, reading: Reading) -> None:
        path, kinds = reading.path, self._file.kinds
        for name in (reading.id, reading.text, reading.cost, reading.group, *reading.features):
            if name is not None and name not in kinds:
                raise InputError(f"{path} has no column {name!r}; it has {', '.join(map(repr, kinds))}")
        for part, name in (("id", reading.id), ("target", reading.target), ("text", reading.text)):
            if name in reading.features:
                raise InputError(f"column {name!r} is the {part} of {path}; take it out of the features")
        if reading.text is not None and kinds[reading.text] != "category":
            raise InputError(f"column {reading.text!r} of {path} holds {kinds[reading.text]}, expected text")

    def _check_target(self, reading: Reading) -> None:
        """Raise where the target is no column, but nearly has the name of one that is a feature by default.

        Most likely that is the target, and a model would learn from what it has to predict.
        """
        if reading.target is None or reading.target in self._file.kinds:
            return
        near = _nearly_named(reading.target, reading.features)
        if near is not None:
            raise InputError(
                f"{reading.path} has no column {reading.target!r}; did you mean {near!r}? "
                "if that is a feature, list the columns to learn from with --features"
            )

    def _check_id(self, reading: Reading) -> None:
        """Raise where items would go by their rows, but a feature by default seems to name them.

        One is called ID or Id, or Sample ID with a value of its own in each row. Labels that come by its ids
        would go to the rows of these numbers.
        """
        if reading.id is not None:
            return

        def names_items(name: str) -> bool:
            return _is_id(name) or (
                _is_called_id(name) and _no_ids(self._columns([name])[name], reading.path) is None
            )

        near = next(filter(names_items, reading.features), None)
        if near is not None:
            raise InputError(
                f"{reading.path} has no column 'id'; did you mean {near!r}? say --id {shlex.quote(near)}, or "
                "list the columns to learn from with --features to have items named by their row numbers"
            )

    def _check_commas(self, reading: Reading) -> None:
        """Raise where a feature by default has numbers with commas: it would be taken for a category."""
        for name, example in self._file.with_commas.items():
            if name in reading.features:
                raise InputError(
                    f"column {name!r} of {reading.path} has numbers such as {example!r}: {PLAIN_NUMBERS}; "
                    "correct them, or list the columns to learn from with --features, where one like this "
                    "is a category"
                )

    def _check_features(self) -> None:
        path, kinds = self.reading.path, self._file.kinds
        for name in self.reading.features:
            if kinds[name] not in USABLE:
                raise InputError(
                    f"column {name!r} of {path} holds {kinds[name]}, expected numbers, text or dates; "
                    "name the features to leave it out"
                )
        if not self.reading.features and self.reading.text is None:
            raise InputError(f"{path} has no column to learn from; it has {', '.join(map(repr, kinds))}")

    def _columns(self, names: list[str]) -> dict[str, list[str | None]]:
        """What columns hold, as text without spaces around it; ``None`` where that is nothing."""
        values: dict[str, list[str | None]] = {name: [] for name in names}
        for _, columns in self._file.texts(names):
            for name, column in zip(names, columns, strict=True):
                values[name].extend((text or "").strip() or None for text in column)
        return values

    def _filled(self, name: str | None, columns: dict[str, list[str | None]]) -> list[str] | None:
        """What a column holds, in every row; ``None`` where no column has that part."""
        if name is None:
            return None
        values = columns[name]
        if None in values:
            raise InputError(
                f"{self.reading.path} holds nothing in {row_name(self.reading.path, values.index(None))}, "
                f"column {name!r}; fill it in"
            )
        return [value for value in values if value is not None]

    def _as_ids(self, values: Sequence[str | None], named: bool) -> list[str]:
        """The names of items in a column that somebody ``named``, or that was found by being called "id".

        One that was found is no less binding: with rows for names in its place, labels that come by its ids
        would go to the rows of these numbers.
        """
        if wrong := _no_ids(values, self.reading.path):
            advice = "correct it, or name another column with --id"
            if not named:
                advice = (
                    "name another column with --id, "
                    "or rename this one to have items named by their row numbers"
                )
            raise InputError(
                f"column {self.reading.id!r} of {self.reading.path} cannot name items "
                f"since it {wrong}; {advice}"
            )
        return [value for value in values if value is not None]

    def _as_costs(self, texts: Sequence[str]) -> Floats:
        costs = np.array([float(text) if is_number(text) else np.nan for text in texts])
        wrong = ~((costs > 0) & (costs < np.inf))
        if wrong.any():
            row = int(wrong.argmax())
            raise InputError(
                f"{self.reading.path} holds {texts[row]!r} in {row_name(self.reading.path, row)}, column "
                f"{self.reading.cost!r}; a cost is a number above zero"
            )
        return costs

    def __len__(self) -> int:
        return self._file.num_rows

    def ids(self) -> list[str]:
        return super().ids() if self._ids is None else list(self._ids)

    @property
    def named_by(self) -> str:
        return super().named_by if self.reading.id is None else f"column {self.reading.id!r}"

    def targets(self) -> list[str | None] | None:
        return None if self._targets is None else list(self._targets)

    def costs(self) -> Floats | None:
        return None if self._costs is None else self._costs.copy()

    def groups(self) -> list[str] | None:
        return None if self._groups is None else list(self._groups)

    def describe(self, positions: Positions) -> list[dict[str, str]]:
        position = checked_index(positions, len(self))
        names = self._shown()
        shown: dict[int, dict[str, str]] = {}
        for rows, columns in self._file.texts(names, np.unique(position)):
            for row, values in zip(rows.tolist(), zip(*columns, strict=True), strict=True):
                shown[row] = {name: value or "" for name, value in zip(names, values, strict=True)}
        return [dict(shown.get(row, {})) for row in position.tolist()]

    def check_writable(self) -> None:
        super().check_writable()
        self._file.check_dates(self._shown())

    def own_columns(self, *, as_text: bool) -> Iterator[dict[str, Any]]:
        names = self._shown()
        batches = self._file.rows(names, as_text=True)
        for batch in (batch for _, batch in batches) if as_text else self._file.typed(names):
            yield {name: batch.column(name) for name in names}

    def _shown(self) -> list[str]:
        """The columns but id and target, in their order; an index of pandas where it is learned from."""
        hidden = (self.reading.id, self.reading.target)
        known = (*self._file.columns, *self.reading.features)
        return [
            name
            for name, kind in self._file.kinds.items()
            if name in known and name not in hidden and kind in USABLE
        ]

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
                column[:] = as_numbers(batch.column(name))
            _check_numbers(self.reading.path, numbers, rows, self.numbers)
            categories = np.empty((len(rows), len(self.categories)), dtype=object)
            for column, name in zip(categories.T, self.categories, strict=True):
                column[:] = as_texts(batch.column(name))
            texts = [] if text is None else [value or "" for value in as_texts(batch.column(text))]
            yield Block(numbers, categories, texts)


class ArrayItems(ItemPool):
    """Rows of a memory-mapped .npy file of numbers (N, ...), named by their row."""

    kind = "array"

    def __init__(self, reading: Reading) -> None:
        _refuse_columns(reading, "an array of numbers")
        self.reading = reading
        self._rows: npt.NDArray[Any] = np.asanyarray(open_npy(Path(reading.path)).rows)
        self._size = Path(reading.path).stat().st_size
        self._width = int(np.prod(self._rows.shape[1:]))
        if self._width == 0:
            raise InputError(f"{reading.path} holds an array of shape {self._rows.shape}, without any number")
        self.numbers = [str(column) for column in range(self._width)]

    def __len__(self) -> int:
        return len(self._rows)

    def describe(self, positions: Positions) -> list[dict[str, str]]:
        self._check_size()
        rows = (self._rows[row].reshape(-1)[:SHOWN] for row in checked_index(positions, len(self)))
        return [{str(column): str(number) for column, number in enumerate(row)} for row in rows]

    def _check_size(self) -> None:
        """Raise where the file was cut short: the system ends a program that reads a map beyond its file."""
        size = Path(self.reading.path).stat().st_size
        if size < self._size:
            raise InputError(
                f"{self.reading.path} had {self._size:,} bytes and now {size:,}; put it back as it was"
            )

    def blocks(self) -> Iterator[Block]:
        # Fewer rows where they are long, such as those of images.
        step = min(POOL_BLOCK, max(1, 4_000_000 // self._width))
        return self._steps(step)

    def take(self, positions: Rows) -> Block:
        self._check_size()
        numbers = self._rows[positions].reshape(len(positions), -1).astype(np.float64)
        release_pages(self._rows)
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
        names = sorted(
            file.as_posix() for file in found if not any(part.startswith(".") for part in file.parts)
        )
        skipped = set(reading.skip)
        self._ids = [name for name in names if name not in skipped]
        if names and not self._ids:
            raise InputError(f"{folder} holds {len(names)} images, and none of them can be read")
        if not self._ids:
            raise InputError(f"{folder} holds no image; their names should end in {', '.join(IMAGES)}")
        for name in self._ids:
            try:
                name.encode()
            except UnicodeEncodeError:  # bytes of the name are no UTF-8: no table or page can hold it
                raise InputError(f"{folder} holds an image named {name!a}; give it a name in UTF-8") from None

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self) -> list[str]:
        return list(self._ids)

    @property
    def named_by(self) -> str:
        return "their path in the folder"

    def describe(self, positions: Positions) -> list[dict[str, str]]:
        files = self.take(checked_index(positions, len(self))).images
        return [{"image": str(file)} for file in files]

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name in self._ids:
            content = Path(self.reading.path, name).read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()

    def blocks(self) -> Iterator[Block]:
        # Few at a time: decoding is slow, and their pixels are held at once.
        return self._steps(256)

    def take(self, positions: Rows) -> Block:
        images = [Path(self.reading.path, self._ids[position]) for position in positions]
        return Block(np.empty((len(images), 0)), np.empty((len(images), 0), dtype=object), images=images)


def _check_numbers(path: str, numbers: Floats, rows: Rows, names: Sequence[str]) -> None:
    """Raise at the first infinity or absurd size of ``numbers`` (n, p); NaN is a missing value."""
    wrong = np.abs(numbers) > LARGEST
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise InputError(
            f"{path} holds {numbers[row, column]} in {row_name(path, int(rows[row]))}, column "
            f"{names[column]!r}; "
            "correct it, or leave it empty if it is not known"
        )


def _names(text: str, columns: Collection[str]) -> Iterator[str]:
    """The columns that a text names with commas between; commas that a column's name holds are part of it."""
    parts, most = text.split(","), 1 + max(name.count(",") for name in columns)
    while parts:
        # The longest first, and as it stands first, since names may have spaces around them too.
        joined = {end: ",".join(parts[:end]) for end in range(min(most, len(parts)), 0, -1)}
        tried = ((name, end) for end, whole in joined.items() for name in (whole, whole.strip()))
        name, end = next((one for one in tried if one[0] in columns), (parts[0].strip(), 1))
        if name:
            yield name
        parts = parts[end:]


def _nearly_named(name: str, columns: Sequence[str]) -> str | None:
    """The column with that name but for case, punctuation or a letter or so, if there is one."""

    def digits(name: str) -> str:
        return re.sub(r"\D", "", name)

    def bare(name: str) -> str:
        return re.sub(r"[\W_]", "", name.casefold())

    # However alike they look, score_2023 is not a slip for score_2024.
    alike = {bare(column): column for column in columns if digits(column) == digits(name)}
    near = get_close_matches(bare(name), alike, n=1, cutoff=0.85)
    return alike[near[0]] if near else None


def _is_called_id(name: str) -> bool:
    """Whether a name says that a column names things, such as ID, Sample ID, sample_id or SampleId.

    >>> [_is_called_id(name) for name in ("Sample ID", "PassengerId", "grid", "Idaho")]
    [True, True, False, False]
    """
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return _is_id(name) or any(word.casefold() in ("id", "uuid", "guid") for word in words)


def _is_id(name: str) -> bool:
    """Whether a name is "id" but for case and spaces."""
    return "".join(name.split()).casefold() == "id"


def _no_ids(values: Sequence[str | None], path: str) -> str | None:
    """Why a column's values cannot name items, if so: one is missing or comes twice."""
    first: dict[str, int] = {}
    for row, value in enumerate(values):
        if value is None:
            return f"is empty in {row_name(path, row)}"
        if first.setdefault(value, row) != row:
            return f"holds {value!r} in {row_name(path, first[value])} and {row_name(path, row)}"
    return None


def _refuse_columns(reading: Reading, what: str) -> None:
    for part in ("id", "features", "text", "cost", "group"):
        if getattr(reading, part):
            raise InputError(f"{reading.path} is {what} and has no columns to name; leave out the {part}")
