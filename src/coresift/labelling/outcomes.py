"""Tell what an answer changes, given what happened to its item before.

People send files again, unchanged or longer, and several people send files of one name. An answer that comes
in again undoes nothing that happened since.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from coresift.labelling.records import Answer

Outcome: TypeAlias = Literal["new", "same", "corrected", "skipped", "outdated"]

# Events that are answers, and outcomes of answers that add nothing.
ANSWERS, NOTHING_NEW = ("labelled", "skipped"), ("same", "outdated")


class Event(NamedTuple):
    """One thing that happened to an item; an answer came in by an import, from a source."""

    kind: str = "opened"
    label: str | None = None
    who: str | None = None
    said_at: str | None = None
    at: str = ""
    source: str | None = None
    number: int | None = None

    def says(self, answer: Answer) -> bool:
        """Whether it has the same content as an answer."""
        return (self.kind, self.label) == (kind_of(answer), answer.label)

    def repeats(self, answer: Answer) -> bool:
        """Whether it is an answer that has a time of its own.

        Its time is when it was given or, if that is unknown, when it came in: exports have one or the other.
        """
        if not answer.at or not self.says(answer):
            return False
        same_time = datetime.fromisoformat(self.said_at or self.at) == datetime.fromisoformat(answer.at)
        return same_time and (self.who == answer.who or self.who is None or answer.who is None)

    def may_be_by(self, who: str | None, source: str) -> bool:
        """Whether it came from the same person, or from the same source if one of the two has no name."""
        return self.who == who if self.who and who else self.source == source

    def is_by_another(self, who: str | None, source: str) -> bool:
        """Whether it is an answer from another person, or from another source if both have no name."""
        return self.kind in ANSWERS and (self.who != who or (who is None and self.source != source))


def kind_of(answer: Answer) -> str:
    """Return the kind of event that an answer is."""
    return "skipped" if answer.label is None else "labelled"


def outcome(answer: Answer, source: str, before: Sequence[Event], number: int | None) -> Outcome:
    """Tell what an answer changes.

    Parameters
    ----------
    before : what happened to its item; the first event may be that it was open.
    number : the import in which the whole file came in before.
    """
    last = before[-1]
    if last.says(answer):
        return "same"
    if _is_older(answer, last) or _is_repeated(answer, source, before, number):
        return "outdated"
    if answer.label is None:
        return "skipped"
    return "corrected" if last.kind == "labelled" else "new"


def _is_older(answer: Answer, last: Event) -> bool:
    """Whether both times are known and the answer was given before the last one."""
    if not (last.said_at and answer.at):
        return False
    return datetime.fromisoformat(answer.at) < datetime.fromisoformat(last.said_at)


def _is_repeated(answer: Answer, source: str, before: Sequence[Event], number: int | None) -> bool:
    """Whether an answer came in before and would undo what happened since."""
    if any(event.repeats(answer) for event in before):
        return True
    known = [*_last_from_sender(answer, source, before), *_last_up_to(number, before)]
    if not known:
        return False
    if before[-1].kind in ANSWERS:
        return any(event.is_by_another(answer.who, source) for event in before[min(known) :])
    # An item that is asked for once more, or was opened, takes any label.
    return answer.label is None and before[-1].kind == "opened"


def _last_from_sender(answer: Answer, source: str, before: Sequence[Event]) -> list[int]:
    """How many events there were when its sender last gave an answer without a time."""
    if answer.at is not None:
        return []
    sent = [
        n for n, event in enumerate(before, 1) if event.says(answer) and event.may_be_by(answer.who, source)
    ]
    return sent[-1:]


def _last_up_to(number: int | None, before: Sequence[Event]) -> list[int]:
    """How many events there were when the whole file first came in."""
    return [n for n, event in enumerate(before, 1) if event.number and event.number <= (number or 0)][-1:]
