"""A labelling project: a folder with a ledger and the pool's features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coresift.labelling import answers, rounds
from coresift.labelling.creation import Beginning, create_project
from coresift.labelling.opened import LostPoolError, OpenProject
from coresift.labelling.pools import Reading
from coresift.labelling.records import Round
from coresift.labelling.settings import NothingLeftError, Request
from coresift.labelling.storage import BusyError

__all__ = ["BusyError", "LostPoolError", "NothingLeftError", "Project", "Request"]


class Project(OpenProject):
    """A labelling project: begin it, choose, take answers in.

    Parameters
    ----------
    folder : where it lies; `create` makes one.
    """

    @classmethod
    def create(cls, folder: Path, reading: Reading, **options: Any) -> Project:
        """Begin a project: read the pool, make features of it, and open a ledger; see `Beginning`."""
        create_project(Path(folder), Beginning(reading, **options))
        return cls(folder)

    def ingest_file(self, path: Path, wait: float = 10.0) -> answers.Intake:
        """Add the labels of a file."""
        with self.writing(wait):
            return answers.ingest_file(self, path)

    def check_replaceable(self, path: Path) -> None:
        """Raise where something would be lost: the pool, the project itself, answers not ingested yet."""
        answers.check_replaceable(self, path)

    def reopen(self, ids: Sequence[str]) -> int:
        """Let items be chosen again that are pending, skipped or excluded; returns how many these were."""
        with self.writing(wait=10.0):
            states = self.ledger.states()
            back = [
                one for one in self.positions(ids) if states.get(one) in ("pending", "skipped", "excluded")
            ]
            self.ledger.reopen(back)
            return len(back)

    def learner(self, request: Request, source: str = "answers") -> rounds.NextBatch:
        """Return the `Learner` of this project, for `coresift.loop.turn` with any `Labeller`."""
        return rounds.NextBatch(self, request, source=source)

    def select(self, batch_size: int) -> Round:
        """Choose the next batch of so many items and write it down."""
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
        """Choose the next batch and write it down; see `rounds.next_round`.

        Parameters
        ----------
        wait : seconds to wait for another program that is writing.
        """
        with self.writing(wait):
            return rounds.next_round(self, request, more=more, out=out, replace=replace)
