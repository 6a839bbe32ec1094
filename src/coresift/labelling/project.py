"""A labelling project: a folder with a ledger and the pool's features."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coresift.errors import InputError
from coresift.labelling.answers import BatchFile, IngestedFile
from coresift.labelling.creation import Beginning, create_project
from coresift.labelling.database import NAME as LEDGER
from coresift.labelling.open_project import LostPoolError, OpenProject
from coresift.labelling.pools import Reading
from coresift.labelling.records import Answer, Chosen, Round
from coresift.labelling.rounds import NextBatch
from coresift.labelling.settings import NothingLeftError, Request
from coresift.labelling.storage import FEATURES, LOCK, BusyError
from coresift.loop import ask_next

__all__ = ["BusyError", "LostPoolError", "NothingLeftError", "Project", "Request"]


class Project(OpenProject):
    """A labelling project in a folder: create it, choose batches, ingest files of answers.

    It has all that an `OpenProject` has, and is what commands and scripts use.
    """

    @classmethod
    def create(cls, folder: Path, reading: Reading, **options: Any) -> Project:
        """Create a project: read the pool, compute features, and open a ledger; see `Beginning`."""
        create_project(Path(folder), Beginning(reading, **options))
        return cls(folder)

    def ingest_file(self, path: Path, wait: float = 10.0) -> IngestedFile:
        """Record the answers in a CSV file; no model is fitted.

        Unlike `add`, it also records the fingerprint of the file, so that the same file is recognised later,
        and tells how many rows have a word for no label, such as NA, and which classes are new. No other
        program can write meanwhile.
        """
        with self.writing(wait):
            known = self.class_counts()
            answers, no_label_words, file_fingerprint = BatchFile(self, path).read()
            outcomes = self.ledger.add_answers(answers, path.name, file_fingerprint)
            if self.classes is not None:
                return IngestedFile(outcomes, no_label_words)
            new = {name: count for name, count in self.class_counts().items() if name not in known}
            return IngestedFile(outcomes, no_label_words, tuple(known), new)

    def check_replaceable(self, path: Path) -> None:
        """Raise if writing to ``path`` would lose the pool, the project, or answers not ingested yet."""
        resolved = path.resolve()
        if resolved == Path(self.settings.reading.path).resolve():
            raise InputError(f"{path} is the pool; name another file")
        # SQLite keeps files next to the ledger, whose names begin with its own.
        own = resolved.name in (FEATURES, LOCK) or resolved.name.startswith(LEDGER)
        if own and resolved.parent == self.folder.resolve():
            raise InputError(f"{path} is what the project itself is kept in; name another file")
        if path.suffix.lower() == ".csv" and path.exists():
            self._check_ingested(path)

    def _check_ingested(self, path: Path) -> None:
        try:
            answers, _, file_fingerprint = BatchFile(self, path).read()
        except InputError:
            raise InputError(
                f"{path} is there and is no batch to write over; mend it, remove it, or name another file"
            ) from None
        if not self.ledger.knows_answers(answers, path.name, file_fingerprint):
            raise InputError(
                f"{path} has answers in it: take them in with coresift ingest, or name another file"
            )

    def reopen(self, ids: Sequence[str]) -> int:
        """Let items that are pending, skipped or excluded be chosen again; returns how many these were."""
        with self.writing(wait=10.0):
            states, closed = self.ledger.states(), ("pending", "skipped", "excluded")
            reopened = [position for position in self.positions(ids) if states.get(position) in closed]
            self.ledger.reopen(reopened)
            return len(reopened)

    def learner(self, request: Request, source: str = "answers") -> NextBatch:
        """Return the `Learner` of this project, for `coresift.loop.turn` with any `Labeller`."""
        return NextBatch(self, request, source=source)

    def select(self, batch_size: int) -> Round:
        """Choose the next batch and write it down."""
        return self.next_round(Request(batch_size))[0]

    def next_round(
        self,
        request: Request,
        more: bool = False,
        wait: float = 0.0,
        *,
        out: Path | None = None,
        replace: bool = False,
    ) -> tuple[Round, bool]:
        """Choose the next batch and write it down; also tells whether it is the last one again.

        The same request with nothing new in between gives the same batch. Another request while items are
        pending and no answer came in raises an `InputError`.

        Parameters
        ----------
        more : choose a further batch, even if nothing came in since the last.
        wait : seconds to wait for another program that is writing.
        out : a CSV file for the batch. If it cannot be written, nothing is chosen.
        replace : withdraw all pending items, and choose anew.
        """
        if more and replace:
            raise InputError("--more keeps the items that are pending, --replace withdraws them; say one")
        labeller = _Nobody() if out is None else BatchFile(self, out)
        with self.writing(wait):
            last = None if more else self._asked_before(request, replace)
            if last is not None:
                labeller.ask(last.batch, lambda: None)
                return last, True
            if not (more or replace):
                self._check_pending()
            return ask_next(NextBatch(self, request, withdraw=replace), labeller), False

    def _asked_before(self, request: Request, replace: bool) -> Round | None:
        """The last round, if the request was the same and nothing happened since."""
        rounds = self.ledger.rounds()
        if not rounds or rounds[-1].asked != json.loads(json.dumps(asdict(request))):
            return None
        last = rounds[-1]
        withdraws = replace and any(number != last.number for number, _ in self.ledger.pending())
        return last if self.ledger.nothing_since(last.number) and not withdraws else None

    def _check_pending(self) -> None:
        """Raise if items are pending and no answer came in since the last batch."""
        count = len(self.pending())
        if count and not self.ledger.answers_since(len(self.ledger.rounds())):
            raise InputError(
                f"{count:,} {'item is' if count == 1 else 'items are'} pending already, and no answer came "
                "in since the last batch; --more chooses further items, --replace withdraws the pending ones "
                f"and chooses anew, and coresift pending {self.folder} lists them"
            )


class _Nobody:
    """The labeller of a batch that is only written down; somebody is told of it later."""

    def ask(self, items: Sequence[Chosen], commit: Callable[[], None]) -> None:
        commit()

    def collect(self, add: Callable[[Sequence[Answer]], Any]) -> None:
        """Collect nothing."""
