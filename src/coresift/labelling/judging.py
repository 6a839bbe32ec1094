"""What an answer that comes in changes, given what happened to its item before.

People send files again, as they were or grown, and several people send files of one name. An answer that
comes in again undoes nothing that happened since.
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
        return (self.kind, self.label) == (kind_of(answer), answer.label)

    def is_from(self, who: str | None, time: str) -> bool:
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
        return self.kind in ANSWERS and (self.who != who or (who is None and self.source != source))


def kind_of(answer: Answer) -> str:
    """Return the kind of event that an answer is."""
    return "skipped" if answer.label is None else "labelled"


def outcome(answer: Answer, source: str, before: Sequence[Event], number: int | None) -> Outcome:
    """Tell what an answer changes.

    Parameters
    ----------
    before : what happened to its item, at least that it was open.
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
    """Whether an answer that says when it was given was given before the last one."""
    if not (last.said_at and answer.at):
        return False
    return datetime.fromisoformat(answer.at) < datetime.fromisoformat(last.said_at)


def _is_repeated(answer: Answer, source: str, before: Sequence[Event], number: int | None) -> bool:
    """Whether an answer came in before and would undo what happened since.

    One with a time of its own is the answer given at that time, if that came in, and otherwise a new one.
    """
    if answer.at and any(event.says(answer) and event.is_from(answer.who, answer.at) for event in before):
        return True
    # How much had happened when it came in: the last time from its sender, the first time with the file.
    known = [
        count
        for count, event in enumerate(before, 1)
        if answer.at is None and event.says(answer) and event.may_be_by(answer.who, source)
    ][-1:]
    if number is not None:
        earlier = [count for count, event in enumerate(before, 1) if event.number and event.number <= number]
        known += earlier[-1:]
    if not known:
        return False
    if before[-1].kind in ANSWERS:
        return any(event.is_by_another(answer.who, source) for event in before[min(known) :])
    # An item that is asked for once more, or was opened, takes any label.
    return answer.label is None and before[-1].kind == "opened"
