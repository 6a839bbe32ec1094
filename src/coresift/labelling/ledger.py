"""The ledger: the durable record of a project, in SQLite. Whatever happened is added; nothing is changed.

An item's state follows from the last thing that happened to it. What is reported as done was written through
to the disk before, in one transaction, so that a program that is killed leaves all of it or nothing of it.
"""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from coresift.atomic import replacing
from coresift.errors import DiskFullError, InputError
from coresift.labelling.records import Answer, Chosen, Round, State

NAME, VERSION = "ledger.sqlite", 1

# What the last event of an item makes of it.
_STATES: dict[str, State] = {
    "chosen": "pending",
    "labelled": "labelled",
    "skipped": "skipped",
    "excluded": "excluded",
    "opened": "unlabelled",
}

# Those of them that somebody gave.
_ANSWERS = ("labelled", "skipped")

# What may become of an answer that adds nothing.
_NOTHING_NEW = ("same", "outdated")

# Tables begin at the same pages in all ledgers, see `repair`.
TABLES = """
CREATE TABLE facts (
    fact INTEGER PRIMARY KEY, at TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL
);
CREATE TABLE items (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
CREATE TABLE rounds (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, strategy TEXT NOT NULL, seed INTEGER NOT NULL,
    model TEXT NOT NULL, data TEXT NOT NULL, asked TEXT NOT NULL, labels INTEGER NOT NULL,
    seconds REAL NOT NULL, notes TEXT NOT NULL
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
    import INTEGER REFERENCES imports, label TEXT, who TEXT, said_at TEXT,
    CHECK ((kind = 'labelled') = (label IS NOT NULL)),
    CHECK ((kind = 'chosen') = (round IS NOT NULL AND rank IS NOT NULL))
);
CREATE INDEX events_of_items ON events (position, event);
CREATE INDEX events_of_rounds ON events (round, rank) WHERE round IS NOT NULL;
"""

_LATEST = "SELECT MAX(event) FROM events GROUP BY position"


@dataclass(frozen=True)
class Labelled:
    """An item's label as it stands.

    Attributes
    ----------
    position : the item's row in the pool.
    label : the number or the class, as text.
    who, at : who gave it and when, as far as is known.
    round : the latest round that asked for it; 0 where nobody did.
    first : whether it was there when the project began.
    """

    position: int
    label: str
    who: str | None
    at: str
    round: int
    first: bool


@dataclass(frozen=True)
class Correction:
    """A label that was replaced.

    Attributes
    ----------
    id : of the item.
    before, after : its labels; ``None`` after it was skipped.
    who : who said so, where that is known.
    """

    id: str
    before: str
    after: str | None
    who: str | None = None


@dataclass(frozen=True)
class Ingested:
    """What answers changed.

    Attributes
    ----------
    new : items that had no label.
    same : answers that were known already.
    corrected : labels that replaced others.
    skipped : items that nobody could label.
    outdated : answers older than what is known.
    corrections : which labels were replaced, by others or by a skip.
    """

    new: int = 0
    same: int = 0
    corrected: int = 0
    skipped: int = 0
    outdated: int = 0
    corrections: tuple[Correction, ...] = ()

    def counts(self) -> dict[str, int]:
        """How many answers there were of each kind."""
        return {name: getattr(self, name) for name in ("new", "same", "corrected", "skipped", "outdated")}


class _Event(NamedTuple):
    """What happened to an item once; an answer comes in by an import, from a source and perhaps a person."""

    kind: str = "opened"
    label: str | None = None
    who: str | None = None
    said_at: str | None = None
    at: str = ""
    source: str | None = None
    number: int | None = None

    def says(self, answer: Answer) -> bool:
        """Whether it is this answer, whoever gave it and when."""
        return (self.kind, self.label) == (_kind(answer), answer.label)

    def is_of(self, who: str | None, time: str) -> bool:
        """Whether it was said at this time, or came in where that is not known, and not by another person.

        Exports have the one or the other for a time.
        """
        same = datetime.fromisoformat(self.said_at or self.at) == datetime.fromisoformat(time)
        return same and (self.who == who or self.who is None or who is None)

    def may_be_by(self, who: str | None, source: str) -> bool:
        """Whether it came from the same person, or from the same source where one of the two has no name."""
        return self.who == who if self.who and who else self.source == source

    def is_by_another(self, who: str | None, source: str) -> bool:
        """Whether it is an answer from another person, or from another source where both have no name."""
        return self.kind in _ANSWERS and (self.who != who or (who is None and self.source != source))


def now() -> str:
    """The time, in ISO 8601 with its zone."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Ledger:
    """The record of a project, open for reading and adding.

    Parameters
    ----------
    path : of the SQLite file, which must be there; see `create`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise InputError(f"{path.parent} is no project: it has no {NAME}; begin one with coresift init")
        # Whether all of the file was checked, and not only what can be checked in a moment.
        self._is_checked = False
        self._is_full = False
        writable = os.access(path.parent, os.W_OK) and os.access(path, os.W_OK)
        settings = ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON") if writable else ()
        try:
            version = self._open(writable, *settings)
        except DiskFullError:
            # It can still be read. The index of a log is kept in memory where the whole file is locked.
            self._is_full = True
            version = self._open(True, "locking_mode = EXCLUSIVE") if _has_log(path) else self._open(False)
        try:
            if version != VERSION:
                raise InputError(f"{path} is a ledger of version {version}, this program reads {VERSION}")
            if problem := self._problem("quick_check") or self._problem("foreign_key_check"):
                raise damaged(path, problem)
        except BaseException:
            self.close()
            raise

    def _open(self, writable: bool, *settings: str) -> int:
        """Connect to the file; its version."""
        with _explained(self.path, "read"):
            self._connection = _connect(self.path, writable)
        try:
            with _explained(self.path, "read"):
                for setting in settings:
                    self._connection.execute(f"PRAGMA {setting}")
                return int(self._connection.execute("PRAGMA user_version").fetchone()[0])
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(
        cls,
        path: Path,
        ids: Sequence[str],
        facts: Mapping[str, Any],
        known: Mapping[int, str],
        answers: Sequence[Answer] = (),
        source: str = "",
        fingerprint: str | None = None,
    ) -> Ledger:
        """A new ledger, complete or not there at all.

        Parameters
        ----------
        ids : of the items, in the order of the pool.
        facts : to remember.
        known : labels that are there from the start, by position.
        answers, source, fingerprint : further ones from a file, as in `add_answers`.
        """
        with (
            _explained(path, "write"),
            replacing(path) as file,
            closing(sqlite3.connect(file.name, isolation_level=None)) as connection,
        ):
            connection.executescript(TABLES)
            connection.execute("BEGIN")
            at = now()
            connection.executemany("INSERT INTO items VALUES (?, ?)", enumerate(ids))
            connection.executemany(
                "INSERT INTO facts (at, key, value) VALUES (?, ?, ?)",
                [(at, key, json.dumps(value)) for key, value in facts.items()],
            )
            places = {id_: position for position, id_ in enumerate(ids)} if answers else {}
            events: list[tuple[Any, ...]] = [
                (1, position, "labelled", label, None, None) for position, label in known.items()
            ]
            for one in answers:
                events.append((2, places[one.id], _kind(one), one.label, one.who, one.at))
            # Both are there in any case: labels of the first two are those that nobody asked for.
            connection.executemany(
                "INSERT INTO imports (at, source, fingerprint) VALUES (?, ?, ?)",
                [(at, "the pool", None), (at, source, fingerprint)],
            )
            connection.executemany(
                f"""
                INSERT INTO events (at, import, position, kind, label, who, said_at)
                VALUES ('{at}', ?, ?, ?, ?, ?, ?)
                """,
                events,
            )
            for table in ("facts", "items", "rounds", "imports", "events"):
                for change in ("UPDATE", "DELETE"):
                    connection.execute(
                        f"CREATE TRIGGER no_{change.lower()}_of_{table} BEFORE {change} ON {table} "
                        "BEGIN SELECT RAISE(ABORT, 'the ledger is only added to'); END"
                    )
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
        return cls(path)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """How many items there are."""
        return int(self._one("SELECT COALESCE(MAX(position) + 1, 0) FROM items")[0])

    # Facts.

    def remember(self, key: str, value: Any) -> None:
        """Keep a small fact, which JSON can hold; the latest of a key counts."""
        with self._adding():
            self._connection.execute(
                "INSERT INTO facts (at, key, value) VALUES (?, ?, ?)", (now(), key, json.dumps(value))
            )

    def recall(self, key: str) -> Any:
        """The latest fact of a key; ``None`` if there is none."""
        found = self._rows("SELECT value FROM facts WHERE key = ? ORDER BY fact DESC LIMIT 1", (key,))
        try:
            return json.loads(found[0][0]) if found else None
        except ValueError as error:
            raise damaged(self.path, f"the fact {key!r} is not JSON: {error}") from None

    # Items.

    def positions(self, ids: Sequence[str]) -> list[int | None]:
        """Where items are in the pool; ``None`` for an id that is not."""
        found: dict[str, int] = {}
        for start in range(0, len(ids), 500):
            some = ids[start : start + 500]
            marks = ",".join("?" * len(some))
            found |= dict(self._rows(f"SELECT id, position FROM items WHERE id IN ({marks})", tuple(some)))
        return [found.get(one) for one in ids]

    def ids(self, positions: Sequence[int]) -> list[str]:
        """What items are called."""
        return [
            self._one("SELECT id FROM items WHERE position = ?", (int(position),))[0]
            for position in positions
        ]

    def states(self) -> dict[int, State]:
        """Of all items to which anything happened, by position; the others are unlabelled."""
        rows = self._rows(f"SELECT position, kind FROM events WHERE event IN ({_LATEST})")
        return {position: _STATES[kind] for position, kind in rows}

    def counts(self) -> dict[State, int]:
        """How many items are in each state."""
        found: dict[State, int] = dict.fromkeys(_STATES.values(), 0)
        for kind, count in self._rows(
            f"SELECT kind, COUNT(*) FROM events WHERE event IN ({_LATEST}) GROUP BY kind"
        ):
            found[_STATES[kind]] += count
        found["unlabelled"] += len(self) - sum(found.values())
        return {state: found[state] for state in ("labelled", "pending", "unlabelled", "skipped", "excluded")}

    def labels(self) -> list[Labelled]:
        """All labels as they stand, in the order in which they came."""
        rows = self._rows(
            f"""
            SELECT position, label, who, COALESCE(said_at, at), import <= 2,
                (SELECT MAX(round) FROM events AS asked WHERE asked.position = events.position)
            FROM events WHERE event IN ({_LATEST}) AND kind = 'labelled' ORDER BY event
            """
        )
        return [
            Labelled(position, label, who, at, asked or 0, bool(first))
            for position, label, who, at, first, asked in rows
        ]

    def answers(self) -> dict[int, Answer]:
        """Labels and skips as they stand, by position, with when they were given or else came in."""
        rows = self._rows(
            f"""
            SELECT position, id, label, who, COALESCE(said_at, at) FROM events JOIN items USING (position)
            WHERE event IN ({_LATEST}) AND kind IN {_ANSWERS} ORDER BY position
            """
        )
        return {position: Answer(*given) for position, *given in rows}

    def first_corrections(self) -> list[Correction]:
        """Labels of the pool that the file of labels replaced when the project began."""
        rows = self._rows(
            """
            SELECT id, pool.label, file.label, file.who
            FROM events AS file JOIN events AS pool USING (position) JOIN items USING (position)
            WHERE file.import = 2 AND pool.import = 1 AND file.label IS NOT pool.label ORDER BY position
            """
        )
        return [Correction(*row) for row in rows]

    def label_counts(self) -> dict[str, int]:
        """How many items have which label, the most frequent first, and of these the one that came first."""
        return dict(
            self._rows(
                f"""
                SELECT label, COUNT(*) FROM events WHERE event IN ({_LATEST}) AND kind = 'labelled'
                GROUP BY label ORDER BY COUNT(*) DESC, MIN(event)
                """
            )
        )

    def pending(self) -> list[tuple[int, Chosen]]:
        """Items that were sent out and have no answer, with their rounds; by round and rank."""
        rows = self._rows(
            f"""
            SELECT round, position, id, rank, weight FROM events JOIN items USING (position)
            WHERE event IN ({_LATEST}) AND kind = 'chosen' ORDER BY round, rank
            """
        )
        return [(number, Chosen(position, id_, rank, weight)) for number, position, id_, rank, weight in rows]

    def history(self, position: int) -> list[tuple[str, str, str | None, str | None]]:
        """What happened to an item: when, what, its label and who gave that."""
        return self._rows(
            "SELECT COALESCE(said_at, at), kind, label, who FROM events WHERE position = ? ORDER BY event",
            (position,),
        )

    def reopen(self, positions: Iterable[int]) -> None:
        """Let items be chosen again."""
        at = now()
        with self._adding():
            self._connection.executemany(
                "INSERT INTO events (at, position, kind) VALUES (?, ?, 'opened')",
                [(at, int(position)) for position in positions],
            )

    # Rounds.

    def rounds(self) -> list[Round]:
        """All rounds with their batches."""
        batches: dict[int, list[Chosen]] = {}
        for number, position, id_, rank, weight in self._rows(
            """
            SELECT round, position, id, rank, weight FROM events JOIN items USING (position)
            WHERE kind = 'chosen' ORDER BY round, rank
            """
        ):
            batches.setdefault(number, []).append(Chosen(position, id_, rank, weight))
        rows = self._rows("SELECT * FROM rounds ORDER BY number")
        return [
            Round(
                number=number,
                at=at,
                strategy=strategy,
                seed=seed,
                model=model,
                data=data,
                asked=json.loads(asked),
                labels=labels,
                seconds=seconds,
                notes=json.loads(notes),
                batch=tuple(batches.get(number, ())),
            )
            for number, at, strategy, seed, model, data, asked, labels, seconds, notes in rows
        ]

    def nothing_since(self, number: int) -> bool:
        """Whether a round's batch is the last thing that happened."""
        return self._rows("SELECT round FROM events ORDER BY event DESC LIMIT 1") == [(number,)]

    def answers_since(self, number: int) -> bool:
        """Whether any answer came in after a round's batch was chosen."""
        query = f"""
            SELECT COUNT(*) FROM events
            WHERE kind IN {_ANSWERS} AND event > (SELECT MAX(event) FROM events WHERE round = ?)
            """
        return bool(self._one(query, (number,))[0])

    def withdrawn(self) -> dict[int, set[int]]:
        """Positions of the items of each round that were opened again, or excluded, before an answer came."""
        found: dict[int, set[int]] = {}
        for number, position in self._rows(
            """
            SELECT round, position FROM events AS asked WHERE kind = 'chosen' AND (
                SELECT kind FROM events AS later
                WHERE later.position = asked.position AND later.event > asked.event ORDER BY event LIMIT 1
            ) IN ('opened', 'excluded')
            """
        ):
            found.setdefault(number, set()).add(position)
        return found

    def add_round(self, made: Round, excluded: Sequence[int] = (), withdrawn: Sequence[int] = ()) -> None:
        """Write a round and its batch down as one, with items that are excluded from now on.

        Items that are ``withdrawn`` were pending and are opened before that.
        """
        states = self.states()
        new = [(made.at, position) for position in excluded if states.get(position) != "excluded"]
        with self._adding():
            self._connection.executemany(
                "INSERT INTO events (at, position, kind) VALUES (?, ?, 'opened')",
                [(made.at, position) for position in withdrawn],
            )
            self._connection.executemany(
                "INSERT INTO events (at, position, kind) VALUES (?, ?, 'excluded')", new
            )
            self._connection.execute(
                "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    made.number,
                    made.at,
                    made.strategy,
                    made.seed,
                    made.model,
                    made.data,
                    json.dumps(made.asked),
                    made.labels,
                    made.seconds,
                    json.dumps(made.notes),
                ),
            )
            self._connection.executemany(
                """
                INSERT INTO events (at, position, kind, round, rank, weight)
                VALUES (?, ?, 'chosen', ?, ?, ?)
                """,
                [(made.at, one.position, made.number, one.rank, one.weight) for one in made.batch],
            )

    # Answers.

    def add_answers(self, answers: Sequence[Answer], source: str, fingerprint: str | None = None) -> Ingested:
        """Write answers down, all or none; those that say nothing new are left out.

        An answer that comes in again undoes nothing that happened since: no answer that somebody else gave
        and, if it is a skip, not that the item was opened. People send files again, as they were or grown.
        An answer that says when it was given does not replace one that was given later.

        Parameters
        ----------
        source : where they come from, such as the name of a file.
        fingerprint : of the file.
        """
        count = dict.fromkeys(("new", "same", "corrected", "skipped", "outdated"), 0)
        at, events, corrections = now(), [], []
        again = self._number(fingerprint) is not None
        for answer, position, last, outcome in self._judged(answers, source, fingerprint):
            count[outcome] += 1
            if outcome in _NOTHING_NEW:
                continue
            events.append((at, position, _kind(answer), answer.label, answer.who, answer.at))
            if last.label is not None:
                corrections.append(Correction(answer.id, last.label, answer.label, answer.who))
        if events or (fingerprint is not None and not again):
            with self._adding():
                cursor = self._connection.execute(
                    "INSERT INTO imports (at, source, fingerprint) VALUES (?, ?, ?)",
                    (at, source, None if again else fingerprint),
                )
                self._connection.executemany(
                    f"""
                    INSERT INTO events (at, position, kind, label, who, said_at, import)
                    VALUES (?, ?, ?, ?, ?, ?, {cursor.lastrowid})
                    """,
                    events,
                )
        return Ingested(**count, corrections=tuple(corrections))

    def knows_answers(self, answers: Sequence[Answer], source: str, fingerprint: str | None = None) -> bool:
        """Whether `add_answers` would leave all of them out."""
        return all(outcome in _NOTHING_NEW for *_, outcome in self._judged(answers, source, fingerprint))

    def _judged(
        self, answers: Sequence[Answer], source: str, fingerprint: str | None
    ) -> Iterator[tuple[Answer, int, _Event, str]]:
        """Answers with their positions, what happened to their items last, and their `_outcome`."""
        number = self._number(fingerprint)
        positions = self.positions([answer.id for answer in answers])
        for answer, position in zip(answers, positions, strict=True):
            if position is None:
                raise InputError(f"{source}: there is no item {answer.id!r} in the pool")
            before = self._events(position) or [_Event()]
            yield answer, position, before[-1], _outcome(answer, source, before, number)

    def _number(self, fingerprint: str | None) -> int | None:
        """The import in which a file of this content came in before."""
        found = self._one("SELECT import FROM imports WHERE fingerprint = ?", (fingerprint,))
        return None if found is None else int(found[0])

    def _events(self, position: int) -> list[_Event]:
        """What happened to an item, in its order."""
        rows = self._rows(
            """
            SELECT kind, label, who, said_at, events.at, source, import
            FROM events LEFT JOIN imports USING (import) WHERE position = ? ORDER BY event
            """,
            (position,),
        )
        return [_Event(*row) for row in rows]

    # The database.

    def damage(self) -> str | None:
        """What SQLite finds wrong with the file; nothing if it is sound."""
        return self._problem("integrity_check") or self._problem("foreign_key_check")

    def _problem(self, check: str) -> str | None:
        """The first thing that a check of SQLite finds."""
        try:
            rows = self._connection.execute(f"PRAGMA {check}").fetchmany(1)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            return str(error)
        return None if rows in ([], [("ok",)]) else ", ".join(map(str, rows[0])).replace("\n", " ")

    @contextmanager
    def _adding(self) -> Iterator[None]:
        """A transaction, written through to the disk at its end; nothing is added to a damaged file."""
        if self._is_full:
            raise DiskFullError(f"cannot write to {self.path}: the disk is full; make room and try again")
        with _explained(self.path, "write to"):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                if not self._is_checked and (problem := self.damage()):
                    raise damaged(self.path, problem)
                self._is_checked = True
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite may have undone it by itself
                    self._connection.execute("ROLLBACK")
                raise

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with _explained(self.path, "read"):
            return self._connection.execute(query, values).fetchall()

    def _one(self, query: str, values: Sequence[Any] = ()) -> Any:
        with _explained(self.path, "read"):
            return self._connection.execute(query, values).fetchone()


@contextmanager
def _explained(path: Path, doing: str) -> Iterator[None]:
    """Turn errors of SQLite that a file or a disk is to blame for into ours."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0)
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE):
            raise DiskFullError(f"cannot {doing} {path}: the disk is full; make room and try again") from None
        if code & 0xFF == sqlite3.SQLITE_NOTADB:
            raise InputError(f"{path} is no ledger: {error}") from None
        if code & 0xFF == sqlite3.SQLITE_CORRUPT:
            raise damaged(path, str(error)) from None
        if isinstance(error, sqlite3.OperationalError):  # such as of a file that may only be read
            raise InputError(f"cannot {doing} {path}: {error}") from None
        raise
    except UnicodeDecodeError as error:  # of a message of SQLite's that quotes a damaged schema
        raise damaged(path, str(error)) from None


def damaged(path: Path, problem: str) -> InputError:
    """Give the error to raise for a damaged ledger."""
    return InputError(
        f"{path} is damaged ({problem}) and is not written to; put a copy of it back, or save what can be "
        f"read with: coresift repair {shlex.quote(str(path.parent))} OUT"
    )


def _connect(path: Path, writable: bool) -> sqlite3.Connection:
    """A connection for reading and adding, or for reading alone where nothing can be written."""
    if writable:
        return sqlite3.connect(path, isolation_level=None, timeout=30)
    # What is still in the log beside the file, SQLite reads by the index that a writer keeps there. Without a
    # log it would make one, unless it is told that the file stays as it is.
    still = "" if _has_log(path) else "&immutable=1"
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{still}", uri=True, isolation_level=None)


def _has_log(path: Path) -> bool:
    """Whether there is a log next to the file, with what was added to it last."""
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0


def _kind(answer: Answer) -> str:
    """The kind of event that an answer is."""
    return "skipped" if answer.label is None else "labelled"


def _outcome(answer: Answer, source: str, before: Sequence[_Event], number: int | None) -> str:
    """Which of the counts of `Ingested` an answer adds to.

    Parameters
    ----------
    before : what happened to its item, at least that it was open.
    number : the import in which the whole file came in before.
    """
    last = before[-1]
    if last.says(answer):
        return "same"
    if (
        last.said_at
        and answer.at
        and datetime.fromisoformat(answer.at) < datetime.fromisoformat(last.said_at)
    ):
        return "outdated"
    if _is_repeated(answer, source, before, number):
        return "outdated"
    if answer.label is None:
        return "skipped"
    return "corrected" if last.kind == "labelled" else "new"


def _is_repeated(answer: Answer, source: str, before: Sequence[_Event], number: int | None) -> bool:
    """Whether an answer came in before and would undo what happened since; see `_outcome`.

    One with a time of its own is the answer of that time, if that came in, and otherwise meant anew.
    """
    if answer.at and any(event.says(answer) and event.is_of(answer.who, answer.at) for event in before):
        return True
    # How much had happened when it came in: the last time from its sender, the first time with the file.
    known = [
        place
        for place, event in enumerate(before, 1)
        if answer.at is None and event.says(answer) and event.may_be_by(answer.who, source)
    ][-1:]
    if number is not None:
        earlier = [place for place, event in enumerate(before, 1) if event.number and event.number <= number]
        known += earlier[-1:]
    if not known:
        return False
    if before[-1].kind in _ANSWERS:
        return any(event.is_by_another(answer.who, source) for event in before[min(known) :])
    # An item that is out once more was asked about anew, and takes any answer.
    return answer.label is None and before[-1].kind == "opened"
