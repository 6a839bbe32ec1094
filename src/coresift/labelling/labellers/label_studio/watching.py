"""Keep people in work: watch a Label Studio project, and send the next batch as soon as one is answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from coresift.labelling.labellers.label_studio.labeller import LabelStudioLabeller, Pulled
from coresift.labelling.labellers.label_studio.server import AnswerError, UnavailableError
from coresift.labelling.records import Answer, Chosen
from coresift.labelling.settings import NothingLeftError
from coresift.labelling.storage import BusyError
from coresift.loop import Learner, ask_next

End: TypeAlias = Literal["rounds", "stopped", "nothing left"]


@dataclass(frozen=True)
class Watched:
    """How many batches were seen answered, and why the watch ended."""

    rounds: int
    ended: End


def watch(
    learner: Learner[Any, Chosen, Answer, Any],
    labeller: LabelStudioLabeller,
    every: float = 30.0,
    rounds: int | None = None,
    stop: threading.Event | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Watched:
    """Choose and send a batch as soon as the one before is answered.

    Parameters
    ----------
    learner : the labelling project; see `coresift.labelling.project.Project.learner`.
    every : seconds between two looks at the server.
    rounds : batches to see answered, with the one that is pending at the start; ``None`` for no end.
    stop : ends the watch when it is set, as Ctrl-C does.
    report : is told what happens, a line at a time.
    """
    watched = _Watch(learner, labeller, report)
    stop = stop or threading.Event()
    with suppress(KeyboardInterrupt):  # what was cut short is made up for by the next look
        while not stop.is_set():
            try:
                if not watched.look():
                    stop.wait(every)
                elif rounds is not None and watched.rounds >= rounds:
                    return Watched(watched.rounds, "rounds")
                else:
                    watched.choose()
            except NothingLeftError:
                return Watched(watched.rounds, "nothing left")
            except (UnavailableError, AnswerError, BusyError) as error:
                report(f"{error}; waiting {every:g} s")
                stop.wait(every)
    return Watched(watched.rounds, "stopped")


@dataclass
class _Watch:
    """A labeller that reports what it does, and counts batches that were seen answered in ``rounds``."""

    learner: Learner[Any, Chosen, Answer, Any]
    labeller: LabelStudioLabeller
    report: Callable[[str], None]
    rounds: int = 0
    _is_sent: bool = False
    _told: set[str] = field(default_factory=set)

    def ask(self, items: Sequence[Chosen], commit: Callable[[], None]) -> None:
        pushed = self.labeller.ask(items, commit)
        if not self._is_sent:
            self.report(f"sent {pushed.sent} items, {pushed.present} were there")
        self._is_sent = True

    def collect(self, add: Callable[[Sequence[Answer]], Any]) -> Pulled:
        pulled = self.labeller.collect(add)
        for line in sorted(set(pulled.unusable) - self._told):
            self.report(f"{line}; correct it in Label Studio")
        self._told.update(pulled.unusable)
        return pulled

    def look(self) -> bool:
        """Send what is pending and not there yet, and collect answers; tell whether the batch is complete."""
        if pending := self.learner.pending():
            self.ask(pending, lambda: None)
        pulled = self.collect(self.learner.add)
        num_open = len(self.learner.pending())
        if changed := pulled.new + pulled.corrected + pulled.skipped:
            self.report(f"{changed} answers came in, {num_open} are open")
        if num_open == 0:
            self.rounds += self._is_sent
            self._is_sent = False
        return num_open == 0

    def choose(self) -> None:
        """Choose the next batch and send it."""
        record = ask_next(self.learner, self)
        self.report(f"round {record.number}: chose {len(record.batch)} items")
