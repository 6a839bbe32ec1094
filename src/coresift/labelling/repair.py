"""What can still be read of a damaged ledger, as new files; the ledger itself stays as it is."""

from __future__ import annotations

import csv
import io
import json
import shlex
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from coresift.atomic import write_text
from coresift.errors import InputError
from coresift.labelling.cells import guarded
from coresift.labelling.database import NAME, TABLES
from coresift.labelling.labellers.files import answer_parts

# The primary key of each table, in the order in which a ledger has them.
_KEYS = {"facts": "fact", "items": "position", "rounds": "number", "imports": "import", "events": "event"}
# What reading damaged pages raises; Python cannot decode a message that quotes a damaged schema.
_DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)


@dataclass(frozen=True)
class Repaired:
    """What was read of a ledger.

    Attributes
    ----------
    rows : how many rows each table gave.
    lost : how many rows are missing between them, as far as their numbers tell.
    labels : how many labels and skips ``labels.csv`` has.
    unnamed : answers of items whose id could not be read; ``events.csv`` has them by their position.
    command : begins a new project with the labels; ``None`` where the settings could not be read.
    """

    rows: Mapping[str, int]
    lost: Mapping[str, int]
    labels: int
    unnamed: int
    command: str | None


def repair(folder: Path, out: Path) -> Repaired:
    """Write what can be read of a project's ledger to new files in the folder ``out``.

    There is a CSV file for each table, and ``labels.csv`` with the last readable answer for each item, which
    ``coresift init --labels`` takes. Whatever lies in ``folder`` is only read.
    """
    ledger = folder / NAME
    if not ledger.is_file():
        raise InputError(f"{folder} is no project: it has no {NAME}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already; name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place, NAME)
        for name in (NAME, f"{NAME}-wal"):
            if (folder / name).exists():
                with Path(place, name).open("wb") as file:
                    file.writelines(_blocks(folder / name))
        tables = _read_tables(copy)
        if not any(
            tables.values()
        ):  # its first page, which tells where tables are, may be all that is broken
            _replace_first_page(copy)
            tables = _read_tables(copy)
    if not any(tables.values()):
        raise InputError(f"nothing can be read of {ledger}; put a copy of it back")
    for name, rows in tables.items():
        _write_table(out / f"{name}.csv", list(rows[0]) if rows else [], [list(row.values()) for row in rows])
    settings = _settings(tables["facts"])
    labels, unnamed = _write_labels(out / "labels.csv", tables, settings)
    return Repaired(
        rows={name: len(rows) for name, rows in tables.items()},
        lost={name: _gaps([row[key] for row in tables[name]], name) for name, key in _KEYS.items()},
        labels=labels,
        unnamed=unnamed,
        command=_command(settings, out / "labels.csv"),
    )


def _blocks(path: Path) -> Iterator[bytes]:
    """Read a file block by block; an error says that reading failed, not writing."""
    try:
        with path.open("rb", buffering=0) as file:
            while block := file.read(1 << 20):
                yield block
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def _read_tables(path: Path) -> dict[str, list[dict[str, Any]]]:
    """All rows that can be read, by table and in the order of their keys."""
    # Keys count up and a row takes more than a byte, so that a key beyond this is damaged.
    bound = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        connection.text_factory = lambda text: text.decode(errors="replace")
        tables = {
            table: [dict(row) for row in sorted(_rows(connection, table, key, bound), key=itemgetter(key))]
            for table, key in _KEYS.items()
        }
        found = _indexed_ids(connection) | {row["position"]: row["id"] for row in tables["items"]}
        tables["items"] = [{"position": position, "id": found[position]} for position in sorted(found)]
        return tables


def _rows(connection: sqlite3.Connection, table: str, key: str, bound: int) -> Iterator[sqlite3.Row]:
    """The rows of a table that can be read and have a key below ``bound``, each key once.

    A damaged page may lead back to rows that were read, and a damaged key may be larger than the next. Where
    reading stops, it goes on at the next key at which it can: steps are doubled until one works, and then the
    first such key is found by bisection.
    """
    query = f'SELECT * FROM {table} WHERE "{key}" >= ? ORDER BY "{key}"'

    def works(start: int) -> bool:
        try:
            connection.execute(f"{query} LIMIT 1", (start,)).fetchall()
        except _DAMAGE:
            return False
        return True

    seen: set[int] = set()
    start = 0
    while start < bound:
        try:
            for row in connection.execute(query, (start,)):
                if 0 <= row[key] < bound and row[key] not in seen:
                    seen.add(row[key])
                    start = row[key] + 1
                    yield row
            return
        except _DAMAGE:
            while start in seen:
                start += 1
            bad, step = start, 1
            while start + step < bound and not works(start + step):
                bad, step = start + step, 2 * step
            start = good = start + step
            while good - bad > 1:
                middle = (bad + good) // 2
                bad, good = (bad, middle) if works(middle) else (middle, good)
                start = good


def _indexed_ids(connection: sqlite3.Connection) -> dict[int, str]:
    """The ids of items by position as the index of ids has them, from both of its ends."""
    found: dict[int, str] = {}
    for order in ("ASC", "DESC"):
        query = f"SELECT position, id FROM items INDEXED BY sqlite_autoindex_items_1 ORDER BY id {order}"
        with suppress(*_DAMAGE):
            for position, name in connection.execute(query):
                found[position] = name
    return found


def _replace_first_page(path: Path) -> None:
    """Give a copy of a ledger the first page of an empty one; tables begin at the same pages in both."""
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
    """The settings of the project, as far as they can be read."""
    for fact in reversed(facts):
        if fact["key"] == "settings":
            try:
                found = json.loads(fact["value"])
            except (TypeError, ValueError):
                continue
            if isinstance(found, dict):
                reading = found.get("reading")
                return {**found, "reading": reading if isinstance(reading, dict) else {}}
    return {}


def _write_labels(
    path: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]], settings: Mapping[str, Any]
) -> tuple[int, int]:
    """Write the answers as they stand; how many these are, and how many have no id."""
    last = {row["position"]: row for row in tables["events"]}
    answers = [row for row in last.values() if row["kind"] in ("labelled", "skipped")]
    ids = {row["position"]: row["id"] for row in tables["items"]}
    target, reading = str(settings.get("target", "label")), settings.get("reading", {})
    rows = [
        [
            ids[row["position"]],
            row["label"],
            "x" if row["kind"] == "skipped" else None,
            row["who"],
            next(filter(_is_time, (row["said_at"], row["at"])), None),
        ]
        for row in answers
        if row["position"] in ids
    ]
    header = [answer_parts(target, reading.get("id"))["id"][0], target, "skip", "who", "at"]
    _write_table(path, header, rows)
    return len(rows), len(answers) - len(rows)


def _is_time(text: Any) -> bool:
    """Tell whether a text is a time that a file of labels may have."""
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
    try:
        reading = settings["reading"]
        words = ["coresift", "init", "NEW", "--pool", reading["path"], "--target", settings["target"]]
        words += ["--task", settings["task"]]
        if reading["features"]:  # init knows which commas are part of a name
            words += ["--features", ",".join(reading["features"])]
        for part in ("id", "text", "cost", "group"):
            if reading[part]:
                words += [f"--{part}", reading[part]]
        if reading.get("skip"):
            words.append("--skip-broken")
        if settings["classes"]:
            words += ["--classes", ",".join(settings["classes"])]
        if settings["seed"]:
            words += ["--seed", str(settings["seed"])]
        return shlex.join([*words, "--hand-picked", "--labels", str(labels)])
    except (KeyError, TypeError):
        return None
