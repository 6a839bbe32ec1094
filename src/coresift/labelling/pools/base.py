"""Define what every pool of a project can do, and the values that describe one."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from coresift.errors import InputError
from coresift.labelling.cells import is_writable
from coresift.labelling.records import LARGEST
from coresift.types import Floats, Index

Kind: TypeAlias = Literal["table", "text", "images", "array"]
Positions: TypeAlias = Sequence[int] | Index


@dataclass(frozen=True)
class Reading:
    """Say how a pool is read, in plain values that a ledger can keep as JSON.

    Attributes
    ----------
    path : a .csv, .parquet or .npy file, or a folder of images.
    id : the column with the names of items; by default one called "id" that has no other role. Without such a
        column, items are named by their row number, from 0.
    target : the column to predict; it may be missing, or filled in some rows only.
    features : the columns to learn from; by default all without another role. One text may name several,
        separated by commas.
    text : a column of text to learn from.
    cost, group : the columns with the cost of each label, a number above zero, and the group of each item.
    skip : images of a folder to ignore, by their paths in it.
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
    """Some items as they are read from a file; what a kind of pool does not have is empty."""

    numbers: Floats  # (n, p), NaN where a value is missing
    categories: npt.NDArray[np.object_]  # (n, q) of text, None where a value is missing
    texts: Sequence[str] = ()  # "" where a value is missing
    images: Sequence[Path] = ()

    def __len__(self) -> int:
        return len(self.numbers)


class ItemPool(ABC):
    """Items to label; columns that a pool does not have are ``None``."""

    reading: Reading  # with defaults filled in
    kind: Kind
    named_by = "their row number, from 0"  # what names the items, in words
    block_size: int  # how many items `blocks` reads at a time
    # The names of these columns of a `Block`.
    numbers: Sequence[str] = ()
    categories: Sequence[str] = ()
    # None in empty rows; a word such as NA may be in it, see `coresift.labelling.labels.is_label`.
    targets: list[str | None] | None = None
    costs: Floats | None = None  # (N,) of labels, above zero
    groups: list[str] | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, positions: Index) -> Block:
        """Read the items at ascending ``positions``."""

    @abstractmethod
    def describe(self, positions: Positions) -> list[dict[str, str]]:
        """Show the items at ``positions`` to people: all columns but the id and the target."""

    @abstractmethod
    def own_columns(self, *, as_text: bool) -> Iterator[dict[str, Any]]:
        """Read all columns but the id and the target, in order, as Arrow arrays of some rows at a time.

        Where the file is CSV, ``as_text`` gives numbers as they are written there, 007 and 1.50; otherwise
        they are numbers. All other columns have their types in the file.
        """

    def blocks(self) -> Iterator[Block]:
        """Read all items in order, some at a time."""
        for start in range(0, len(self), self.block_size):
            yield self.take(np.arange(start, min(start + self.block_size, len(self))))

    def ids(self) -> list[str]:
        """The names of the items: distinct and not empty."""
        return [str(row) for row in range(len(self))]

    def check_writable(self) -> None:
        """Raise for an item that no batch file could show, because of its id or its columns."""
        for row, name in enumerate(self.ids()):
            if not is_writable(name):
                raise InputError(
                    f"{self.reading.path} has the id {name!r} in {row_name(self.reading.path, row)}, "
                    "which no CSV file can hold: rename the item"
                )

    def fingerprint(self) -> str:
        """SHA-256 of the content."""
        with open(self.reading.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def row_name(path: Path | str, row: int) -> str:
    """Name a row of a pool as people find it.

    Rows of CSV files are counted as in a spreadsheet, where the header is row 1; others from 0, as in Python.

    >>> row_name("pool.csv", 0), row_name("pool.parquet", 0)
    ('row 2', 'row 0 (counted from 0)')
    """
    return f"row {row + 2}" if Path(path).suffix.lower() == ".csv" else f"row {row} (counted from 0)"


def check_numbers(path: str, numbers: Floats, rows: Index, names: Sequence[str]) -> None:
    """Raise at the first value of ``numbers`` (n, p) that is infinite or absurdly large; NaN is fine."""
    wrong = np.abs(numbers) > LARGEST
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise InputError(
            f"{path} holds {numbers[row, column]} in {row_name(path, int(rows[row]))}, column "
            f"{names[column]!r}; correct it, or leave it empty if it is not known"
        )


def refuse_columns(reading: Reading, what: str) -> None:
    """Raise where the reading names a column of a pool that has none."""
    for role in ("id", "features", "text", "cost", "group"):
        if getattr(reading, role):
            raise InputError(f"{reading.path} is {what} and has no columns to name; leave out the {role}")
