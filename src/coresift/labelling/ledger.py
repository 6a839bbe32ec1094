"""The ledger: the durable record of a project. Events are added; nothing is changed.

The state of an item follows from its last event. What is reported as done is on the disk, in one transaction:
a program that is killed leaves all of it or nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from coresift.errors import InputError
from coresift.labelling.database import NAME, Database, creating, damaged
from coresift.labelling.outcomes import ANSWERS, NOTHING_NEW, REOPENED, Event, Outcome, kind_of, outcome
from coresift.labelling.records import Answer, Chosen, Labelled, Round, State

# The state of an item by its last event, in the order in which states are listed.
_STATES: dict[str, State] = {
    "labelled": "labelled",
    "chosen": "pending",
    REOPENED: "unlabelled",
    "skipped": "skipped",
    "excluded": "excluded",
}
# The numbers of the first two imports: the labels in the pool, and those in the file of `init --labels`.
_POOL_IMPORT, _FILE_IMPORT = 1, 2
_LATEST = "SELECT MAX(event) FROM events GROUP BY position"
# In the file, `Chosen.weight` is called own_weight and `Chosen.nearest` weight: see `database.TABLES`.
_CHOSEN = "SELECT round, position, id, rank, own_weight, weight FROM events JOIN items USING (position)"
_INSERT_FACT = "INSERT INTO facts (at, key, value) VALUES (?, ?, ?)"
_INSERT_IMPORT = "INSERT INTO imports (at, source, fingerprint) VALUES (?, ?, ?)"
# The columns of a round are its fields, except for the batch.
_ROUND = [field.name for field in fields(Round) if field.name != "batch"]
_INSERT_ROUND = f"INSERT INTO rounds ({', '.join(_ROUND)}) VALUES (:{', :'.join(_ROUND)})"
_INSERT_CHOSEN = """
INSERT INTO events (at, position, kind, round, rank, weight, own_weight) VALUES (?, ?, 'chosen', ?, ?, ?, ?)
"""
_INSERT_ANSWER = """
INSERT INTO events (at, import, position, kind, label, who, said_at) VALUES (?, ?, ?, ?, ?, ?, ?)
"""


@dataclass(frozen=True)
class Correction:
    """A label of an item that was replaced, and by whom, where that is known."""

    id: str
    before: str
    after: str | None  # None if the item was skipped
    who: str | None = None


@dataclass(frozen=True)
class AddedAnswers:
    """What `Ledger.add_answers` did: how many answers had each outcome, and which labels were replaced.

    It covers answers from any source; `coresift.labelling.answers.IngestedFile` adds what only a file has.
    """

    new: int = 0  # items that had no label
    same: int = 0  # answers that agree with what is known, from anybody; they are not stored
    corrected: int = 0  # labels that replaced others
    skipped: int = 0  # items that nobody could label
    outdated: int = 0  # answers that came before, or are older than what is known; they are not stored
    corrections: tuple[Correction, ...] = ()  # by other labels, or by a skip

    def counts(self) -> dict[str, int]:
        """Return how many answers had each outcome."""
        return {name: value for name, value in vars(self).items() if name != "corrections"}


class _Judged(NamedTuple):
    """An answer, and what it changes."""

    answer: Answer
    position: int  # of its item in the pool
    former_label: str | None  # the label that the item had before, if any
    outcome: Outcome

    @property
    def is_new(self) -> bool:
        return self.outcome not in NOTHING_NEW


def now() -> str:
    """Return the time, in ISO 8601 with its zone."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Ledger(Database):
    """The record of a project, open for reading and adding; `create` makes its SQLite file."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise InputError(f"{path.parent} is no project: it has no {NAME}; begin one with coresift init")
        super().__init__(path)

    @classmethod
    def create(
        cls,
        path: Path,
        ids: Sequence[str],
        facts: Mapping[str, Any],
        known: Mapping[int, str],
        answers: Sequence[Answer] = (),
        source: str = "",
        file_fingerprint: str | None = None,
    ) -> Ledger:
        """Make a new ledger, completely or not at all.

        It has the ids of the items in the order of the pool, facts to remember, the labels that are known
        from the pool by position, and further ``answers`` from a file as in `add_answers`.
        """
        at = now()
        positions = {id_: position for position, id_ in enumerate(ids)} if answers else {}
        given = [(_POOL_IMPORT, position, Answer("", label)) for position, label in known.items()]
        given += [(_FILE_IMPORT, positions[answer.id], answer) for answer in answers]
        with creating(path) as connection:
            connection.executemany("INSERT INTO items VALUES (?, ?)", enumerate(ids))
            connection.executemany(
                _INSERT_FACT, [(at, key, json.dumps(value)) for key, value in facts.items()]
            )
            # Both imports are written even if they have no labels, so that their numbers are always the same.
            connection.executemany(_INSERT_IMPORT, [(at, "the pool", None), (at, source, file_fingerprint)])
            _add_answers(connection, at, given)
        return cls(path)

    def __len__(self) -> int:
        """Count the items."""
        return int(self.row("SELECT COALESCE(MAX(position) + 1, 0) FROM items")[0])

    # Facts.

    def remember(self, key: str, value: Any) -> None:
        """Keep a small value that JSON can hold; the latest of a key counts."""
        with self.adding() as connection:
            connection.execute(_INSERT_FACT, (now(), key, json.dumps(value)))

    def recall(self, key: str) -> Any:
        """Return the latest fact of a key; ``None`` if there is none."""
        fact = self.row("SELECT value FROM facts WHERE key = ? ORDER BY fact DESC LIMIT 1", (key,))
        try:
            return None if fact is None else json.loads(fact[0])
        except (TypeError, ValueError) as error:
            raise damaged(self.path, f"the fact {key!r} is not JSON: {error}") from None

    # Items.

    def positions(self, ids: Sequence[str], block: int = 500) -> list[int | None]:
        """Return the positions of items in the pool; ``None`` for an id that is not in it."""
        positions: dict[str, int] = {}
        for start in range(0, len(ids), block):  # SQLite takes a limited number of values in a query
            some = ids[start : start + block]
            marks = ",".join("?" * len(some))
            positions |= dict(self.rows(f"SELECT id, position FROM items WHERE id IN ({marks})", tuple(some)))
        return [positions.get(id_) for id_ in ids]

    def ids(self, positions: Sequence[int]) -> list[str]:
        """Return the ids of items."""
        query = "SELECT id FROM items WHERE position = ?"
        return [self.row(query, (int(position),))[0] for position in positions]

    def states(self) -> dict[int, State]:
        """Return the states of all items that have an event; the others are unlabelled."""
        rows = self.rows(f"SELECT position, kind FROM events WHERE event IN ({_LATEST})")
        return {position: _STATES[kind] for position, kind in rows}

    def counts(self) -> dict[State, int]:
        """Count the items in each state."""
        counts = dict.fromkeys(_STATES.values(), 0)
        rows = self.rows(f"SELECT kind, COUNT(*) FROM events WHERE event IN ({_LATEST}) GROUP BY kind")
        counts |= {_STATES[kind]: count for kind, count in rows}
        counts["unlabelled"] += len(self) - sum(counts.values())
        return counts

    def labels(self) -> list[Labelled]:
        """Return the current labels, in the order in which they came."""
        # Labels of the first two imports were there when the project began.
        query = f"""
            SELECT position, label, who, COALESCE(said_at, at),
                COALESCE((SELECT MAX(round) FROM events AS other WHERE other.position = events.position), 0),
                import IN ({_POOL_IMPORT}, {_FILE_IMPORT})
            FROM events WHERE event IN ({_LATEST}) AND kind = 'labelled' ORDER BY event
            """
        return [
            Labelled(position, label, who, at, number, bool(first))
            for position, label, who, at, number, first in self.rows(query)
        ]

    def answers(self) -> dict[int, Answer]:
        """Return the current labels and skips by position, with when they were given or else came in."""
        query = f"""
            SELECT position, id, label, who, COALESCE(said_at, at) FROM events JOIN items USING (position)
            WHERE event IN ({_LATEST}) AND kind IN {ANSWERS} ORDER BY position
            """
        return {position: Answer(*given) for position, *given in self.rows(query)}

    def first_corrections(self) -> list[Correction]:
        """Return the labels of the pool that the file of labels replaced when the project began."""
        query = f"""
            SELECT id, pool.label, file.label, file.who
            FROM events AS file JOIN events AS pool USING (position) JOIN items USING (position)
            WHERE file.import = {_FILE_IMPORT} AND pool.import = {_POOL_IMPORT}
                AND file.label IS NOT pool.label
            ORDER BY position
            """
        return [Correction(*row) for row in self.rows(query)]

    def label_counts(self) -> dict[str, int]:
        """Count the items with each label: the most frequent first, among equals the one that came first."""
        query = f"""
            SELECT label, COUNT(*) FROM events WHERE event IN ({_LATEST}) AND kind = 'labelled'
            GROUP BY label ORDER BY COUNT(*) DESC, MIN(event)
            """
        return dict(self.rows(query))

    def pending(self) -> list[tuple[int, Chosen]]:
        """Return items that were chosen and have no answer, with their rounds; by round and rank."""
        query = f"{_CHOSEN} WHERE event IN ({_LATEST}) AND kind = 'chosen' ORDER BY round, rank"
        return [(number, Chosen(*item)) for number, *item in self.rows(query)]

    def reopen(self, positions: Iterable[int]) -> None:
        """Let items be chosen again."""
        with self.adding() as connection:
            _add_changes(connection, now(), REOPENED, positions)

    def last_event(self) -> int:
        """Return the number of the last event of all."""
        return int(self.row("SELECT COALESCE(MAX(event), 0) FROM events")[0])

    # Rounds.

    def rounds(self) -> list[Round]:
        """Return all rounds with their batches."""
        batches: dict[int, list[Chosen]] = defaultdict(list)
        for number, *item in self.rows(f"{_CHOSEN} WHERE kind = 'chosen' ORDER BY round, rank"):
            batches[number].append(Chosen(*item))
        rounds = []
        for row in self.rows(f"SELECT {', '.join(_ROUND)} FROM rounds ORDER BY number"):
            made = dict(zip(_ROUND, row, strict=True))
            made |= {name: json.loads(made[name]) for name in ("asked", "notes")}
            if made["residuals"] is not None:
                made["residuals"] = tuple(json.loads(made["residuals"]))
            rounds.append(Round(**made, batch=tuple(batches[made["number"]])))
        return rounds

    def nothing_since(self, number: int) -> bool:
        """Whether the choice of a round's batch is the last event."""
        return self.rows("SELECT round FROM events ORDER BY event DESC LIMIT 1") == [(number,)]

    def answers_since(self, number: int) -> bool:
        """Whether any answer came in after a round's batch was chosen."""
        query = f"""
            SELECT COUNT(*) FROM events
            WHERE kind IN {ANSWERS} AND event > (SELECT MAX(event) FROM events WHERE round = ?)
            """
        return bool(self.row(query, (number,))[0])

    def withdrawn(self) -> dict[int, set[int]]:
        """Return the positions of each round's items that were reopened or excluded before an answer came."""
        query = f"""
            SELECT round, position FROM events AS chosen WHERE kind = 'chosen' AND (
                SELECT kind FROM events AS later
                WHERE later.position = chosen.position AND later.event > chosen.event ORDER BY event LIMIT 1
            ) IN ('{REOPENED}', 'excluded')
            """
        withdrawn: dict[int, set[int]] = defaultdict(set)
        for number, position in self.rows(query):
            withdrawn[number].add(position)
        return dict(withdrawn)

    def add_round(self, made: Round, excluded: Sequence[int] = (), withdrawn: Sequence[int] = ()) -> None:
        """Add a round with its batch, and items that are excluded from now on.

        Items that are ``withdrawn`` were pending and are reopened before that.
        """
        states = self.states()
        newly_excluded = [position for position in excluded if states.get(position) != "excluded"]
        listed = {"asked": made.asked, "notes": made.notes, "residuals": made.residuals}
        texts = {name: json.dumps(value) for name, value in listed.items() if value is not None}
        batch = [
            (made.at, one.position, made.number, one.rank, one.nearest, one.weight) for one in made.batch
        ]
        with self.adding() as connection:
            _add_changes(connection, made.at, REOPENED, withdrawn)
            _add_changes(connection, made.at, "excluded", newly_excluded)
            connection.execute(_INSERT_ROUND, {**vars(made), **texts})
            connection.executemany(_INSERT_CHOSEN, batch)

    # Answers.

    def add_answers(
        self, answers: Sequence[Answer], source: str, file_fingerprint: str | None = None
    ) -> AddedAnswers:
        """Add answers, all or none; those that say nothing new are left out.

        The last answer that was added counts; there is no voting. An answer that agrees with it is left out,
        whoever gives it.

        An answer that comes in again does not undo an answer that somebody else gave since. A skip that comes
        in again does not close an item that was reopened since. An answer that says when it was given does
        not replace one that was given later. ``source`` says where they come from, such as the name of a
        file, and ``file_fingerprint`` is that of the file.
        """
        judged = list(self._judged(answers, source, file_fingerprint))
        changes = [one for one in judged if one.is_new]
        if self._import_of(file_fingerprint):
            file_fingerprint = None  # the file is known
        if changes or file_fingerprint:
            at = now()
            with self.adding() as connection:
                import_number = connection.execute(_INSERT_IMPORT, (at, source, file_fingerprint)).lastrowid
                _add_answers(connection, at, [(import_number, one.position, one.answer) for one in changes])
        corrections = tuple(
            Correction(one.answer.id, one.former_label, one.answer.label, one.answer.who)
            for one in changes
            if one.former_label is not None
        )
        return AddedAnswers(corrections=corrections, **Counter(str(one.outcome) for one in judged))

    def knows_answers(
        self, answers: Sequence[Answer], source: str, file_fingerprint: str | None = None
    ) -> bool:
        """Whether `add_answers` would leave all of them out."""
        return not any(one.is_new for one in self._judged(answers, source, file_fingerprint))

    def _judged(
        self, answers: Sequence[Answer], source: str, file_fingerprint: str | None
    ) -> Iterator[_Judged]:
        earlier_import = self._import_of(file_fingerprint)
        positions = self.positions([answer.id for answer in answers])
        for answer, position in zip(answers, positions, strict=True):
            if position is None:
                raise InputError(f"{source}: there is no item {answer.id!r} in the pool")
            events = self._events(position)
            former_label = events[-1].label if events else None
            yield _Judged(answer, position, former_label, outcome(answer, source, events, earlier_import))

    def _import_of(self, file_fingerprint: str | None) -> int:
        """The number of the import in which a file of this content came in before; 0 if none did."""
        row = self.row("SELECT import FROM imports WHERE fingerprint = ?", (file_fingerprint,))
        return int(row[0]) if row else 0

    def _events(self, position: int) -> list[Event]:
        """The events of an item, in order."""
        query = """
            SELECT kind, label, who, said_at, events.at, source, import
            FROM events LEFT JOIN imports USING (import) WHERE position = ? ORDER BY event
            """
        return [Event(*row) for row in self.rows(query, (position,))]


def _add_answers(
    connection: sqlite3.Connection, at: str, answers: Iterable[tuple[int | None, int, Answer]]
) -> None:
    """Add answers, each with the number of its import and the position of its item."""
    connection.executemany(
        _INSERT_ANSWER,
        [
            (at, import_number, position, kind_of(answer), answer.label, answer.who, answer.at)
            for import_number, position, answer in answers
        ],
    )


def _add_changes(connection: sqlite3.Connection, at: str, kind: str, positions: Iterable[int]) -> None:
    """Add an event of one kind to each of some items."""
    connection.executemany(
        "INSERT INTO events (at, kind, position) VALUES (?, ?, ?)",
        [(at, kind, int(position)) for position in positions],
    )
