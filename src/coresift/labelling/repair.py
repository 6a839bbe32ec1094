"""Read what can be read of a damaged ledger into new files; the ledger itself is not changed."""

from __future__ import annotations

import csv
import io
import json
import shlex
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain, count
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

from coresift.atomic import write_text
from coresift.errors import InputError
from coresift.labelling.cells import guarded
from coresift.labelling.database import NAME, TABLES
from coresift.labelling.labellers.files import answer_parts
from coresift.labelling.outcomes import ANSWERS

# The primary key of each table, in the order in which a ledger has them.
_KEYS = {"facts": "fact", "items": "position", "rounds": "number", "imports": "import", "events": "event"}
# What reading damaged pages raises; Python cannot decode a message that quotes a damaged schema.
_DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)
_Tables: TypeAlias = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Repaired:
    """What was read of a ledger."""

    rows: Mapping[str, int]  # how many rows of each table were read
    lost: Mapping[str, int]  # how many are missing between them, by their numbers
    unreadable: Sequence[str]  # tables of which no row could be read, because of damage
    labels: int  # how many labels and skips labels.csv has
    unnamed: int  # answers of items whose id could not be read; events.csv has them by their position
    command: str | None  # begins a new project with the labels; None if the settings could not be read


def repair(folder: Path, out: Path) -> Repaired:
    """Write what can be read of a project's ledger to new files in the folder ``out``.

    There is a CSV file for each table, and ``labels.csv`` with the last readable answer for each item, which
    ``coresift init --labels`` reads. Nothing in ``folder`` is changed.
    """
    _check_folders(folder, out)
    out.mkdir(parents=True, exist_ok=True)
    tables, unreadable = _read_copy(folder)
    if not any(tables.values()):
        raise InputError(f"nothing can be read of {folder / NAME}; put a copy of it back")
    try:
        return _write(out, tables, unreadable)
    except BaseException:  # a full disk, for example: the same command should work once there is room
        for name in (*tables, "labels"):
            (out / f"{name}.csv").unlink(missing_ok=True)
        raise


def _write(out: Path, tables: _Tables, unreadable: Sequence[str]) -> Repaired:
    """Write a file for each table, and one of the answers."""
    for name, rows in tables.items():
        _write_table(out / f"{name}.csv", list(rows[0]) if rows else [], [list(row.values()) for row in rows])
    settings = _settings(tables["facts"])
    answers, unnamed = _answers(tables)
    target, reading = str(settings.get("target", "label")), settings.get("reading")
    id_column = reading.get("id") if isinstance(reading, dict) else None
    header = [answer_parts(target, id_column)["id"][0], target, "skip", "who", "at"]
    _write_table(out / "labels.csv", header, answers)
    return Repaired(
        rows={name: len(rows) for name, rows in tables.items()},
        lost={name: _gaps([row[key] for row in tables[name]], name) for name, key in _KEYS.items()},
        unreadable=unreadable,
        labels=len(answers),
        unnamed=unnamed,
        command=_command(settings, out / "labels.csv"),
    )


def _check_folders(folder: Path, out: Path) -> None:
    if not (folder / NAME).is_file():
        raise InputError(f"{folder} is no project: it has no {NAME}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already; name a new folder")


def _read_copy(folder: Path) -> tuple[_Tables, list[str]]:
    """Read a copy of the ledger, if need be with a new first page, which tells where tables are.

    Also returns the tables of which no row could be read, because of damage.
    """
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place, NAME)
        for name in (NAME, f"{NAME}-wal"):
            if (folder / name).exists():
                with Path(place, name).open("wb") as file:
                    file.writelines(_blocks(folder / name))
        tables, unreadable = _read_tables(copy)
        if not any(tables.values()):
            _replace_first_page(copy)
            # Some tables may begin beyond the file.
            tables, unreadable = _read_tables(copy, "writable_schema = ON")
    return tables, unreadable


def _blocks(path: Path) -> Iterator[bytes]:
    """Read a file block by block; an error says that reading failed, not writing."""
    try:
        with path.open("rb", buffering=0) as file:
            yield from iter(lambda: file.read(1 << 20), b"")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def _read_tables(path: Path, *settings: str) -> tuple[_Tables, list[str]]:
    """Read all rows that can be read, by table and in the order of their keys; name tables without any."""
    # Keys count up and a row takes more than a byte, so that a key beyond this is damaged.
    bound = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for setting in settings:
            connection.execute(f"PRAGMA {setting}")
        connection.row_factory = sqlite3.Row
        connection.text_factory = lambda text: text.decode(errors="replace")
        tables = {
            table: [dict(row) for row in sorted(_rows(connection, table, key, bound), key=itemgetter(key))]
            for table, key in _KEYS.items()
        }
        indexed = {position: id_ for position, id_ in _indexed_ids(connection).items() if position < bound}
        ids = indexed | {row["position"]: row["id"] for row in tables["items"]}
        tables["items"] = [{"position": position, "id": ids[position]} for position in sorted(ids)]
        empty = (table for table, rows in tables.items() if not rows)
        return tables, [table for table in empty if not _is_readable(connection, f"SELECT * FROM {table}")]


def _is_readable(connection: sqlite3.Connection, query: str, *values: int) -> bool:
    """Whether a query can be answered, as far as its first row."""
    with suppress(*_DAMAGE):
        connection.execute(f"{query} LIMIT 1", values).fetchall()
        return True
    return False


def _rows(connection: sqlite3.Connection, table: str, key: str, bound: int) -> Iterator[sqlite3.Row]:
    """Yield the rows of a table that can be read and have a key below ``bound``, each key once.

    A damaged page may lead back to rows that were read, and a damaged key may be larger than the next.
    """
    query = f'SELECT * FROM {table} WHERE "{key}" >= ? ORDER BY "{key}"'
    works = partial(_is_readable, connection, query)
    seen: set[int] = set()
    start = 0
    while start < bound:
        with suppress(*_DAMAGE):
            for row in connection.execute(query, (start,)):
                if 0 <= row[key] < bound and row[key] not in seen:
                    seen.add(row[key])
                    start = row[key] + 1
                    yield row
            return
        start = next(number for number in count(start) if number not in seen)
        start = _next_readable(works, start, bound)


def _next_readable(works: Callable[[int], bool], bad: int, bound: int) -> int:
    """Find the next key at which reading works: double the step until it does, then bisect."""
    first, step = bad, 1
    while first + step < bound and not works(first + step):
        bad, step = first + step, 2 * step
    good = first + step
    while good - bad > 1:
        middle = (bad + good) // 2
        bad, good = (bad, middle) if works(middle) else (middle, good)
    return good


def _indexed_ids(connection: sqlite3.Connection) -> dict[int, str]:
    """The ids of items by position, read from both ends of the index of ids."""
    ids: dict[int, str] = {}
    for order in ("ASC", "DESC"):
        query = f"SELECT position, id FROM items INDEXED BY sqlite_autoindex_items_1 ORDER BY id {order}"
        with suppress(*_DAMAGE):
            for position, name in connection.execute(query):
                ids[position] = name
    return ids


def _replace_first_page(path: Path) -> None:
    """Give a copy of a ledger the first page of an empty one, whose tables begin at the same pages."""
    for log in path.parent.glob(f"{path.name}-*"):
        log.unlink()
    empty = path.with_name("empty.sqlite")
    with closing(sqlite3.connect(empty)) as connection:
        connection.executescript(TABLES)
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    page = bytearray(empty.read_bytes()[:size])
    page[28:32] = (path.stat().st_size // size).to_bytes(4, "big")  # how many pages the file has
    with path.open("r+b") as file:
        file.write(page)


def _settings(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The latest settings of the project that can be read."""
    for fact in reversed(facts):
        with suppress(TypeError, ValueError):
            settings = json.loads(fact["value"]) if fact["key"] == "settings" else None
            if isinstance(settings, dict):
                return settings
    return {}


def _answers(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[list[list[Any]], int]:
    """The cells of the current answers: id, label, skip, who and at; and how many others have no id."""
    last = {row["position"]: row for row in tables["events"]}
    answers = [row for row in last.values() if row["kind"] in ANSWERS]
    ids = {row["position"]: row["id"] for row in tables["items"]}
    cells = []
    for row in answers:
        if row["position"] in ids:
            skip = "x" if row["kind"] == "skipped" else None
            at = next(filter(_is_time, (row["said_at"], row["at"])), None)
            cells.append([ids[row["position"]], row["label"], skip, row["who"], at])
    return cells, len(answers) - len(cells)


def _is_time(text: Any) -> bool:
    """Whether a text is a time that a file of labels may have."""
    try:
        datetime.fromisoformat(text).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text)
    for row in [header, *rows]:
        writer.writerow(["" if cell is None else guarded(str(cell)) for cell in row])
    write_text(path, text.getvalue())


def _gaps(keys: Sequence[int], table: str) -> int:
    """How many keys are missing; they count up from 1, and positions from 0."""
    return max(keys, default=0) + (table == "items") - len(keys) if keys else 0


def _command(settings: Mapping[str, Any], labels: Path) -> str | None:
    """The command that begins a new project with the labels."""
    with suppress(KeyError, TypeError):
        reading = settings["reading"]
        options = {
            "--pool": reading["path"],
            "--target": settings["target"],
            "--task": settings["task"],
            "--features": ",".join(reading["features"]),  # init knows which commas are part of a name
            **{f"--{role}": reading[role] for role in ("id", "text", "cost", "group")},
            "--classes": ",".join(settings["classes"] or ()),
            "--seed": str(settings["seed"] or ""),
        }
        given = chain.from_iterable((option, value) for option, value in options.items() if value)
        last = ["--skip-broken"] if reading.get("skip") else []
        last += ["--hand-picked", "--labels", str(labels)]
        return shlex.join(["coresift", "init", "NEW", *given, *last])
    return None
