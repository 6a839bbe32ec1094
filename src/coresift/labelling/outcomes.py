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

    kind: str = "opened"  # also stands for an item to which nothing happened yet
    label: str | None = None
    who: str | None = None
    said_at: str | None = None
    at: str = ""
    source: str | None = None
    import_number: int | None = None

    def says(self, answer: Answer) -> bool:
        """Whether it has the same content as an answer."""
        return (self.kind, self.label) == (kind_of(answer), answer.label)

    def repeats(self, answer: Answer) -> bool:
        """Whether it has the content and the time of an answer, and no other person gave it.

        An export writes when an answer was given or, if that is unknown, when it came in. The answer's time
        is therefore compared with one or the other. An unknown person may be anybody.
        """
        has_same_who = self.who == answer.who or None in (self.who, answer.who)
        if not (answer.at and self.says(answer) and has_same_who):
            return False
        return datetime.fromisoformat(self.said_at or self.at) == datetime.fromisoformat(answer.at)

    def was_sent(self, answer: Answer, source: str) -> bool:
        """Whether it has the content of an answer without a time, and comes from the same sender.

        Senders are compared by name; if one of them has no name, by source.
        """
        same_sender = self.who == answer.who if self.who and answer.who else self.source == source
        return answer.at is None and self.says(answer) and same_sender

    def is_up_to(self, import_number: int) -> bool:
        """Whether it came in by the import with this number, or by an earlier import."""
        return 0 < (self.import_number or 0) <= import_number

    def is_by_another(self, who: str | None, source: str) -> bool:
        """Whether it is an answer from another person, or from another source if both have no name."""
        return self.kind in ANSWERS and (self.who != who or (who is None and self.source != source))


def kind_of(answer: Answer) -> str:
    """Return the kind of event that an answer is."""
    return "skipped" if answer.label is None else "labelled"


def outcome(answer: Answer, source: str, before: Sequence[Event], import_number: int) -> Outcome:
    """Tell what an answer changes, after what happened to its item ``before``.

    ``import_number`` is that of the import in which the whole file came in before, or 0.

    Ann sends the label x and Bob corrects it to y. If Ann sends x again, y stays; Bob may change it to z:

    >>> events = [Event("labelled", "x", who="Ann"), Event("labelled", "y", who="Bob")]
    >>> outcome(Answer("item", "x", who="Ann"), "labels.csv", events, 0)
    'outdated'
    >>> outcome(Answer("item", "z", who="Bob"), "labels.csv", events, 0)
    'corrected'
    """
    last = before[-1]
    if last.says(answer):
        return "same"
    if _is_older(answer, last) or _is_repeated(answer, source, before, import_number):
        return "outdated"
    if answer.label is None:
        return "skipped"
    return "corrected" if last.kind == "labelled" else "new"


def _is_older(answer: Answer, last: Event) -> bool:
    """Whether both times are known and the answer was given before the last one."""
    if not (last.said_at and answer.at):
        return False
    return datetime.fromisoformat(answer.at) < datetime.fromisoformat(last.said_at)


def _is_repeated(answer: Answer, source: str, before: Sequence[Event], import_number: int) -> bool:
    """Whether an answer came in before and would undo what happened since."""
    if any(event.repeats(answer) for event in before):
        return True
    # How many events there were when its sender last gave the answer, and when the file first came in.
    sent = [count for count, event in enumerate(before, 1) if event.was_sent(answer, source)]
    imported = [count for count, event in enumerate(before, 1) if event.is_up_to(import_number)]
    known = sent[-1:] + imported[-1:]
    if not known:
        return False
    if before[-1].kind in ANSWERS:
        # If both are known, the earlier one counts: the answer must not undo what others said after it.
        since = before[min(known) :]
        return any(event.is_by_another(answer.who, source) for event in since)
    # An item that is asked for once more, or was opened, takes any label.
    return answer.label is None and before[-1].kind == "opened"
