"""The ledger: the durable record of a project. Whatever happened is added; nothing is changed.

An item's state follows from the last thing that happened to it. What is reported as done was written through
to the disk before, in one transaction: a program that is killed leaves all of it or nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from coresift.errors import InputError
from coresift.labelling.database import NAME, Database, creating, damaged
from coresift.labelling.judging import ANSWERS, NOTHING_NEW, Event, Outcome, kind_of, outcome
from coresift.labelling.records import Answer, Chosen, Labelled, Round, State

# What the last event of an item makes of it.
_STATES: dict[str, State] = {
    "chosen": "pending",
    "labelled": "labelled",
    "skipped": "skipped",
    "excluded": "excluded",
    "opened": "unlabelled",
}
# The order in which states are counted out.
_ORDER: tuple[State, ...] = ("labelled", "pending", "unlabelled", "skipped", "excluded")

_LATEST = "SELECT MAX(event) FROM events GROUP BY position"
_CHOSEN = "SELECT round, position, id, rank, own_weight, weight FROM events JOIN items USING (position)"


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


class _Judged(NamedTuple):
    """An answer with the position of its item, what happened to that last, and what the answer changes."""

    answer: Answer
    position: int
    last: Event
    outcome: Outcome


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
        if not path.is_file():
            raise InputError(f"{path.parent} is no project: it has no {NAME}; begin one with coresift init")
        self.path, self.database = path, Database(path)

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
        """Make a new ledger, complete or not there at all.

        Parameters
        ----------
        ids : of the items, in the order of the pool.
        facts : to remember.
        known : labels that are there from the start, by position.
        answers, source, fingerprint : further ones from a file, as in `add_answers`.
        """
        at = now()
        positions = {id_: position for position, id_ in enumerate(ids)} if answers else {}
        # The first two imports are there in any case: nobody asked for their labels.
        imports = [(at, "the pool", None), (at, source, fingerprint)]
        events = [
            *((at, 1, position, "labelled", label, None, None) for position, label in known.items()),
            *((at, 2, positions[one.id], kind_of(one), one.label, one.who, one.at) for one in answers),
        ]
        with creating(path) as connection:
            connection.executemany("INSERT INTO items VALUES (?, ?)", enumerate(ids))
            connection.executemany(
                "INSERT INTO facts (at, key, value) VALUES (?, ?, ?)",
                [(at, key, json.dumps(value)) for key, value in facts.items()],
            )
            connection.executemany("INSERT INTO imports (at, source, fingerprint) VALUES (?, ?, ?)", imports)
            connection.executemany(
                """
                INSERT INTO events (at, import, position, kind, label, who, said_at)
                VALUES (?, ?, ?, ?, ?, ?, ?)
                """,
                events,
            )
        return cls(path)

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """How many items there are."""
        return int(self.database.row("SELECT COALESCE(MAX(position) + 1, 0) FROM items")[0])

    def damage(self) -> str | None:
        """Say what SQLite finds wrong with the file, looking at all of it; ``None`` if it is sound."""
        return self.database.damage()

    # Facts.

    def remember(self, key: str, value: Any) -> None:
        """Keep a small fact, which JSON can hold; the latest of a key counts."""
        with self.database.adding() as connection:
            connection.execute(
                "INSERT INTO facts (at, key, value) VALUES (?, ?, ?)", (now(), key, json.dumps(value))
            )

    def recall(self, key: str) -> Any:
        """Return the latest fact of a key; ``None`` if there is none."""
        fact = self.database.row("SELECT value FROM facts WHERE key = ? ORDER BY fact DESC LIMIT 1", (key,))
        try:
            return None if fact is None else json.loads(fact[0])
        except (TypeError, ValueError) as error:
            raise damaged(self.path, f"the fact {key!r} is not JSON: {error}") from None

    # Items.

    def positions(self, ids: Sequence[str]) -> list[int | None]:
        """Return the positions of items in the pool; ``None`` for an id that is not in it."""
        found: dict[str, int] = {}
        for start in range(0, len(ids), 500):  # SQLite takes only so many values in a query
            some = ids[start : start + 500]
            marks = ",".join("?" * len(some))
            query = f"SELECT id, position FROM items WHERE id IN ({marks})"
            found |= dict(self.database.rows(query, tuple(some)))
        return [found.get(id_) for id_ in ids]

    def ids(self, positions: Sequence[int]) -> list[str]:
        """Return the ids of items."""
        query = "SELECT id FROM items WHERE position = ?"
        return [self.database.row(query, (int(position),))[0] for position in positions]

    def states(self) -> dict[int, State]:
        """Return the states of all items to which anything happened; the others are unlabelled."""
        rows = self.database.rows(f"SELECT position, kind FROM events WHERE event IN ({_LATEST})")
        return {position: _STATES[kind] for position, kind in rows}

    def counts(self) -> dict[State, int]:
        """Count the items in each state."""
        found: dict[State, int] = dict.fromkeys(_ORDER, 0)
        query = f"SELECT kind, COUNT(*) FROM events WHERE event IN ({_LATEST}) GROUP BY kind"
        for kind, count in self.database.rows(query):
            found[_STATES[kind]] += count
        found["unlabelled"] += len(self) - sum(found.values())
        return found

    def labels(self) -> list[Labelled]:
        """Return all labels as they stand, in the order in which they came."""
        rows = self.database.rows(
            f"""
            SELECT position, label, who, COALESCE(said_at, at),
                COALESCE((SELECT MAX(round) FROM events AS asked WHERE asked.position = events.position), 0),
                import <= 2
            FROM events WHERE event IN ({_LATEST}) AND kind = 'labelled' ORDER BY event
            """
        )
        return [
            Labelled(position, label, who, at, asked, bool(first))
            for position, label, who, at, asked, first in rows
        ]

    def answers(self) -> dict[int, Answer]:
        """Return labels and skips as they stand, by position, with when they were given or else came in."""
        rows = self.database.rows(
            f"""
            SELECT position, id, label, who, COALESCE(said_at, at) FROM events JOIN items USING (position)
            WHERE event IN ({_LATEST}) AND kind IN {ANSWERS} ORDER BY position
            """
        )
        return {position: Answer(*given) for position, *given in rows}

    def first_corrections(self) -> list[Correction]:
        """Return the labels of the pool that the file of labels replaced when the project began."""
        rows = self.database.rows(
            """
            SELECT id, pool.label, file.label, file.who
            FROM events AS file JOIN events AS pool USING (position) JOIN items USING (position)
            WHERE file.import = 2 AND pool.import = 1 AND file.label IS NOT pool.label ORDER BY position
            """
        )
        return [Correction(*row) for row in rows]

    def label_counts(self) -> dict[str, int]:
        """Count the items with each label, the most frequent first, and of these the one that came first."""
        return dict(
            self.database.rows(
                f"""
                SELECT label, COUNT(*) FROM events WHERE event IN ({_LATEST}) AND kind = 'labelled'
                GROUP BY label ORDER BY COUNT(*) DESC, MIN(event)
                """
            )
        )

    def pending(self) -> list[tuple[int, Chosen]]:
        """Return items that were sent out and have no answer, with their rounds; by round and rank."""
        query = f"{_CHOSEN} WHERE event IN ({_LATEST}) AND kind = 'chosen' ORDER BY round, rank"
        return [(number, Chosen(*item)) for number, *item in self.database.rows(query)]

    def history(self, position: int) -> list[tuple[str, str, str | None, str | None]]:
        """Return what happened to an item: when, what, its label and who gave that."""
        return self.database.rows(
            "SELECT COALESCE(said_at, at), kind, label, who FROM events WHERE position = ? ORDER BY event",
            (position,),
        )

    def reopen(self, positions: Iterable[int]) -> None:
        """Let items be chosen again."""
        events = [(now(), int(position)) for position in positions]
        with self.database.adding() as connection:
            connection.executemany("INSERT INTO events (at, position, kind) VALUES (?, ?, 'opened')", events)

    def last_event(self) -> int:
        """Return the number of the last thing that happened to any item."""
        return int(self.database.row("SELECT COALESCE(MAX(event), 0) FROM events")[0])

    # Rounds.

    def rounds(self) -> list[Round]:
        """Return all rounds with their batches."""
        batches: dict[int, list[Chosen]] = {}
        for number, *item in self.database.rows(f"{_CHOSEN} WHERE kind = 'chosen' ORDER BY round, rank"):
            batches.setdefault(number, []).append(Chosen(*item))
        rows = self.database.rows(
            """
            SELECT number, at, strategy, seed, model, data, asked, labels, seconds, notes, residuals
            FROM rounds ORDER BY number
            """
        )
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
                residuals=None if residuals is None else tuple(json.loads(residuals)),
            )
            for number, at, strategy, seed, model, data, asked, labels, seconds, notes, residuals in rows
        ]

    def nothing_since(self, number: int) -> bool:
        """Whether a round's batch is the last thing that happened."""
        return self.database.rows("SELECT round FROM events ORDER BY event DESC LIMIT 1") == [(number,)]

    def answers_since(self, number: int) -> bool:
        """Whether any answer came in after a round's batch was chosen."""
        query = f"""
            SELECT COUNT(*) FROM events
            WHERE kind IN {ANSWERS} AND event > (SELECT MAX(event) FROM events WHERE round = ?)
            """
        return bool(self.database.row(query, (number,))[0])

    def withdrawn(self) -> dict[int, set[int]]:
        """Return the positions of each round's items that were opened or excluded before an answer came."""
        found: dict[int, set[int]] = {}
        for number, position in self.database.rows(
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
        changes = [(made.at, position, "opened") for position in withdrawn]
        changes += [
            (made.at, position, "excluded") for position in excluded if states.get(position) != "excluded"
        ]
        residuals = None if made.residuals is None else json.dumps(made.residuals)
        asked, notes = json.dumps(made.asked), json.dumps(made.notes)
        how = (made.number, made.at, made.strategy, made.seed, made.model, made.data)
        described = (*how, asked, made.labels, made.seconds, notes, residuals)

        batch = [
            (made.at, one.position, made.number, one.rank, one.nearest, one.weight) for one in made.batch
        ]
        with self.database.adding() as connection:
            connection.executemany("INSERT INTO events (at, position, kind) VALUES (?, ?, ?)", changes)
            connection.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", described)
            connection.executemany(
                """
                INSERT INTO events (at, position, kind, round, rank, weight, own_weight)
                VALUES (?, ?, 'chosen', ?, ?, ?, ?)
                """,
                batch,
            )

    # Answers.

    def add_answers(self, answers: Sequence[Answer], source: str, fingerprint: str | None = None) -> Ingested:
        """Write answers down, all or none; those that say nothing new are left out.

        An answer that comes in again undoes nothing that happened since: no answer that somebody else gave
        and, if it is a skip, not that the item was opened. An answer that says when it was given does not
        replace one that was given later.

        Parameters
        ----------
        source : where they come from, such as the name of a file.
        fingerprint : of the file.
        """
        judged = list(self._judged(answers, source, fingerprint))
        outcomes = [one.outcome for one in judged]
        changes = [one for one in judged if one.outcome not in NOTHING_NEW]
        known = self._number(fingerprint) is not None
        if changes or (fingerprint is not None and not known):
            self._add_import(changes, source, None if known else fingerprint)
        return Ingested(
            new=outcomes.count("new"),
            same=outcomes.count("same"),
            corrected=outcomes.count("corrected"),
            skipped=outcomes.count("skipped"),
            outdated=outcomes.count("outdated"),
            corrections=tuple(
                Correction(answer.id, last.label, answer.label, answer.who)
                for answer, _, last, _ in changes
                if last.label is not None
            ),
        )

    def _add_import(self, judged: Sequence[_Judged], source: str, fingerprint: str | None) -> None:
        at = now()
        with self.database.adding() as connection:
            number = connection.execute(
                "INSERT INTO imports (at, source, fingerprint) VALUES (?, ?, ?)", (at, source, fingerprint)
            ).lastrowid
            connection.executemany(
                """
                INSERT INTO events (at, import, position, kind, label, who, said_at)
                VALUES (?, ?, ?, ?, ?, ?, ?)
                """,
                [
                    (at, number, position, kind_of(answer), answer.label, answer.who, answer.at)
                    for answer, position, _, _ in judged
                ],
            )

    def knows_answers(self, answers: Sequence[Answer], source: str, fingerprint: str | None = None) -> bool:
        """Whether `add_answers` would leave all of them out."""
        return all(one.outcome in NOTHING_NEW for one in self._judged(answers, source, fingerprint))

    def _judged(self, answers: Sequence[Answer], source: str, fingerprint: str | None) -> Iterator[_Judged]:
        number = self._number(fingerprint)
        positions = self.positions([answer.id for answer in answers])
        for answer, position in zip(answers, positions, strict=True):
            if position is None:
                raise InputError(f"{source}: there is no item {answer.id!r} in the pool")
            before = self._events(position) or [Event()]
            yield _Judged(answer, position, before[-1], outcome(answer, source, before, number))

    def _number(self, fingerprint: str | None) -> int | None:
        """The import in which a file of this content came in before."""
        found = self.database.row("SELECT import FROM imports WHERE fingerprint = ?", (fingerprint,))
        return None if found is None else int(found[0])

    def _events(self, position: int) -> list[Event]:
        """What happened to an item, in its order."""
        rows = self.database.rows(
            """
            SELECT kind, label, who, said_at, events.at, source, import
            FROM events LEFT JOIN imports USING (import) WHERE position = ? ORDER BY event
            """,
            (position,),
        )
        return [Event(*row) for row in rows]
