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
# The event of an item that may be chosen again: it was reopened, or withdrawn from a batch. The file of a
# ledger has this older word for it.
REOPENED = "opened"


class Event(NamedTuple):
    """One thing that happened to an item.

    An answer came in by an import: one file that was ingested, or one pull from Label Studio. The labels of
    the pool and those of ``init --labels`` are the first two imports.
    """

    kind: str  # "chosen", "labelled", "skipped", "excluded" or `REOPENED`
    label: str | None = None
    who: str | None = None
    said_at: str | None = None  # when the answer was given, if known: `Answer.at`
    at: str = ""  # when it was written to the ledger; for an answer, when it came in
    source: str | None = None  # of an answer: the name of a file or of a labelling server
    import_number: int | None = None  # of an answer

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

    def came_by(self, earlier_import: int) -> bool:
        """Whether it came in by the import with this number, or by one before it."""
        return 0 < (self.import_number or 0) <= earlier_import

    def is_by_another(self, who: str | None, source: str) -> bool:
        """Whether it is an answer from another person, or from another source if both have no name."""
        return self.kind in ANSWERS and (self.who != who or (who is None and self.source != source))


def kind_of(answer: Answer) -> str:
    """Return the kind of event that an answer is."""
    return "skipped" if answer.label is None else "labelled"


def outcome(answer: Answer, source: str, events: Sequence[Event], earlier_import: int = 0) -> Outcome:
    """Tell what an answer changes, given the ``events`` of its item so far.

    If a file of the same content came in before, ``earlier_import`` is the number of that import; otherwise
    it is 0.

    Ann sends the label x and Bob corrects it to y. If Ann sends x again, y stays; Bob may change it to z:

    >>> events = [Event("labelled", "x", who="Ann"), Event("labelled", "y", who="Bob")]
    >>> outcome(Answer("item", "x", who="Ann"), "labels.csv", events)
    'outdated'
    >>> outcome(Answer("item", "z", who="Bob"), "labels.csv", events)
    'corrected'

    Ann skips an item, and it is reopened. If her skip comes in again, the item stays open; a label is new:

    >>> events = [Event("skipped", who="Ann"), Event(REOPENED)]
    >>> outcome(Answer("item", None, who="Ann"), "labels.csv", events)
    'outdated'
    >>> outcome(Answer("item", "x", who="Ann"), "labels.csv", events)
    'new'
    """
    if events:
        last = events[-1]
        if last.says(answer):
            return "same"
        if _is_older(answer, last) or _is_repeated(answer, source, events, earlier_import):
            return "outdated"
        if last.kind == "labelled" and answer.label is not None:
            return "corrected"
    return "skipped" if answer.label is None else "new"


def _is_older(answer: Answer, last: Event) -> bool:
    """Whether both times are known and the answer was given before the last one."""
    if not (last.said_at and answer.at):
        return False
    return datetime.fromisoformat(answer.at) < datetime.fromisoformat(last.said_at)


def _is_repeated(answer: Answer, source: str, events: Sequence[Event], earlier_import: int) -> bool:
    """Whether an answer came in before and would undo what happened since."""
    if any(event.repeats(answer) for event in events):
        return True
    # How many events the item had just after its sender last gave this answer, and just after the earlier
    # import of the file. Each list has one number, or none if there is no such event.
    numbered = [*enumerate(events, 1)]
    events_when_sent = [number for number, event in numbered if event.was_sent(answer, source)][-1:]
    events_when_imported = [number for number, event in numbered if event.came_by(earlier_import)][-1:]
    known = events_when_sent + events_when_imported
    if not known:
        return False
    if events[-1].kind in ANSWERS:
        # If both are known, the earlier one counts: the answer must not undo what others said after it.
        since = events[min(known) :]
        return any(event.is_by_another(answer.who, source) for event in since)
    # A pending item takes any answer, and a reopened item takes any label.
    return answer.label is None and events[-1].kind == REOPENED
