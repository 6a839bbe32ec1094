"""The SQLite file of a ledger: open it, read it, and add to it in transactions that survive a kill."""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Self

from coresift.atomic import replacing
from coresift.errors import DiskFullError, InputError

NAME, VERSION = "ledger.sqlite", 2

# Tables begin at the same pages in all ledgers, and new columns come last; `repair` depends on both.
# In events, weight says how many items of the pool are nearest to a chosen one, and own_weight is what the
# selector gave it: ledgers of version 1 have the former alone. The kind 'opened' is `outcomes.REOPENED`.
TABLES = """
CREATE TABLE facts (
    fact INTEGER PRIMARY KEY, at TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL
);
CREATE TABLE items (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
CREATE TABLE rounds (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, strategy TEXT NOT NULL, seed INTEGER NOT NULL,
    model TEXT NOT NULL, data TEXT NOT NULL, asked TEXT NOT NULL, labels INTEGER NOT NULL,
    seconds REAL NOT NULL, notes TEXT NOT NULL, residuals TEXT
);
CREATE TABLE imports (
    import INTEGER PRIMARY KEY, at TEXT NOT NULL, source TEXT NOT NULL, fingerprint TEXT UNIQUE
);
CREATE TABLE events (
    event INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    position INTEGER NOT NULL REFERENCES items,
    kind TEXT NOT NULL CHECK (kind IN ('chosen', 'labelled', 'skipped', 'excluded', 'opened')),
    round INTEGER REFERENCES rounds, rank INTEGER, weight REAL,
    import INTEGER REFERENCES imports, label TEXT, who TEXT, said_at TEXT, own_weight REAL,
    CHECK ((kind = 'labelled') = (label IS NOT NULL)),
    CHECK ((kind = 'chosen') = (round IS NOT NULL AND rank IS NOT NULL))
);
CREATE INDEX events_of_items ON events (position, event);
CREATE INDEX events_of_rounds ON events (round, rank) WHERE round IS NOT NULL;
"""

# Columns that version 2 added. A ledger of version 1 gets them at the first write; until then views show them
# as empty.
_NEW_COLUMNS = {"rounds": "residuals TEXT", "events": "own_weight REAL"}

# Settings of a file that is written, and of one with a log on a full disk.
_DURABLE = ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON")
_LOCKED = ("locking_mode = EXCLUSIVE",)
# Of a new file, which is written through to the disk as a whole before it gets its name.
_UNSAFE = ("journal_mode = MEMORY", "synchronous = OFF")


class Database:
    """An open ledger file; one that cannot be written, or no longer, can still be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_checked = False  # completely, and not only by the quick check below
        self._connection, self._is_full = _open(path)
        with ExitStack() as undo:
            undo.callback(self.close)
            (self._version,) = self.row("PRAGMA user_version")
            if not 1 <= self._version <= VERSION:
                raise InputError(
                    f"{path} is a ledger of version {self._version}, this program reads up to {VERSION}"
                )
            if problem := self._problem("quick_check") or self._problem("foreign_key_check"):
                raise damaged(path, problem)
            if self._version < VERSION:
                self._show_new_columns()
            undo.pop_all()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a query."""
        with _explained(self.path, "read"):
            return self._connection.execute(query, values).fetchall()

    def row(self, query: str, values: Sequence[Any] = ()) -> Any:
        """Return the first row of a query; ``None`` where there is none."""
        with _explained(self.path, "read"):
            return self._connection.execute(query, values).fetchone()

    @contextmanager
    def adding(self) -> Iterator[sqlite3.Connection]:
        """Give a transaction that is on the disk at its end, or leaves no trace; a damaged file gets none."""
        if self._is_full:
            raise _disk_full("write to", self.path)
        with _explained(self.path, "write to"):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._prepare_to_add()
                yield self._connection
                self._connection.execute("COMMIT")
                self._version = VERSION
            except BaseException:
                if self._connection.in_transaction:  # SQLite may have undone it by itself
                    self._connection.execute("ROLLBACK")
                raise

    def _prepare_to_add(self) -> None:
        if not self._is_checked and (problem := self.damage()):
            raise damaged(self.path, problem)
        self._is_checked = True
        if self._version < VERSION:
            self._add_new_columns()

    def damage(self) -> str | None:
        """Say what SQLite finds wrong with any part of the file; ``None`` if it is sound."""
        return self._problem("integrity_check") or self._problem("foreign_key_check")

    def _problem(self, check: str) -> str | None:
        """The first problem that a check of SQLite finds."""
        try:
            rows = self._connection.execute(f"PRAGMA {check}").fetchmany(1)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            return str(error)
        return None if rows in ([], [("ok",)]) else ", ".join(map(str, rows[0]))

    def _show_new_columns(self) -> None:
        """Read an older ledger as if it had the new columns, without writing to it."""
        for table, column in _NEW_COLUMNS.items():
            self.rows(f"CREATE TEMP VIEW {table} AS SELECT *, NULL AS {column.split()[0]} FROM main.{table}")

    def _add_new_columns(self) -> None:
        """Bring an older ledger up to this version, unless another program just did."""
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        for table, column in _NEW_COLUMNS.items():
            self._connection.execute(f"DROP VIEW temp.{table}")
            if version < VERSION:
                self._connection.execute(f"ALTER TABLE main.{table} ADD COLUMN {column}")
        self._connection.execute(f"PRAGMA user_version = {VERSION}")


def _open(path: Path) -> tuple[sqlite3.Connection, bool]:
    """Open the file, for adding if possible; also tells whether the disk is full."""
    writable = os.access(path.parent, os.W_OK) and os.access(path, os.W_OK)
    try:
        return _open_with(path, writable, *(_DURABLE if writable else ())), False
    except DiskFullError:  # it can still be read
        # The index of a log is kept in memory where the whole file is locked.
        locked = _has_log(path)
        return _open_with(path, locked, *(_LOCKED if locked else ())), True


def _open_with(path: Path, writable: bool, *settings: str) -> sqlite3.Connection:
    """Connect to the file, and read its first page to see that it is a ledger."""
    with _explained(path, "read"), ExitStack() as undo:
        connection = _connect(path, writable)
        undo.callback(connection.close)
        for setting in ("temp_store = MEMORY", *settings, "user_version"):
            connection.execute(f"PRAGMA {setting}").fetchall()
        undo.pop_all()
        return connection


@contextmanager
def creating(path: Path) -> Iterator[sqlite3.Connection]:
    """Give a new, empty ledger in a transaction; the file is there whole at the end, or not at all."""
    with (
        _explained(path, "write"),
        replacing(path) as file,
        closing(sqlite3.connect(file.name, isolation_level=None)) as connection,
    ):
        for setting in _UNSAFE:
            connection.execute(f"PRAGMA {setting}")
        connection.executescript(TABLES)
        connection.execute("BEGIN")
        yield connection
        for table in ("facts", "items", "rounds", "imports", "events"):
            for change in ("UPDATE", "DELETE"):
                connection.execute(
                    f"CREATE TRIGGER no_{change.lower()}_of_{table} BEFORE {change} ON {table} "
                    "BEGIN SELECT RAISE(ABORT, 'the ledger is only added to'); END"
                )
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")


def damaged(path: Path, problem: str) -> InputError:
    """Give the error to raise for a damaged ledger."""
    return InputError(
        f"{path} is damaged ({_on_one_line(problem)}) and is not written to; put a copy of it back, or save "
        f"what can be read with: coresift repair {shlex.quote(str(path.parent))} OUT"
    )


@contextmanager
def _explained(path: Path, doing: str) -> Iterator[None]:
    """Turn SQLite's errors about a file or a disk into ours."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0)
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE):
            raise _disk_full(doing, path) from None
        if code & 0xFF == sqlite3.SQLITE_NOTADB:
            raise InputError(f"{path} is no ledger: {error}") from None
        if code & 0xFF == sqlite3.SQLITE_CORRUPT:
            raise damaged(path, str(error)) from None
        if isinstance(error, sqlite3.OperationalError):  # such as of a file that may only be read
            raise InputError(f"cannot {doing} {path}: {_on_one_line(str(error))}") from None
        raise
    except UnicodeDecodeError as error:  # of a message of SQLite's that quotes a damaged schema
        raise damaged(path, str(error)) from None


def _on_one_line(text: str) -> str:
    """Make a message of SQLite fit to be shown: it may quote a damaged schema, with whatever is in it."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _disk_full(doing: str, path: Path) -> DiskFullError:
    return DiskFullError(f"cannot {doing} {path}: the disk is full; make room and try again")


def _connect(path: Path, writable: bool) -> sqlite3.Connection:
    """Connect for reading and adding, or for reading only."""
    if writable:
        return sqlite3.connect(path, isolation_level=None, timeout=30)
    # SQLite reads a log next to the file by the index that a writer keeps there. Without a log it would make
    # one, unless it is told that the file does not change.
    fixed = "" if _has_log(path) else "&immutable=1"
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{fixed}", uri=True, isolation_level=None)


def _has_log(path: Path) -> bool:
    """Whether there is a log next to the file, with the latest additions."""
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0
