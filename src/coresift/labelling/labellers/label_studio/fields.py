"""Check what a server sends before it is used or shown."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, TypeVar

from coresift.limits import SHOWN_CHARACTERS
from coresift.types import InputError

# What moves a cursor, changes colours or reorders a line (C0, C1, line ends, bidirectional overrides), and
# halves of characters, which cannot be printed at all.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NAMES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}
T = TypeVar("T")


class UnavailableError(InputError):
    """The server could not be reached or was too busy; asking again later may help."""


class AnswerError(InputError):
    """The server's answer is not one of Label Studio's, or exceeds a limit."""


def field(row: Any, name: str, kind: type[T]) -> T:
    """Read a field of a JSON object in an answer, which has to be there and of this type.

    >>> field({"total": 3}, "total", int)
    3
    >>> field({"n": None}, "n", list)
    Traceback (most recent call last):
    coresift.labelling.labellers.label_studio.fields.AnswerError: the server sent null as 'n', expected a list
    """
    if not isinstance(row, dict):
        raise AnswerError(f"the server sent {_NAMES[type(row)]}, expected an object with {name!r}")
    if name not in row:
        raise AnswerError(f"the server sent an object without {name!r}, expected {_NAMES[kind]}")
    value = row[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        # The value itself is not shown: it may be anything.
        raise AnswerError(f"the server sent {_NAMES[type(value)]} as {name!r}, expected {_NAMES[kind]}")
    return value


def time_of(row: Any) -> datetime:
    """Read when a task or an annotation was changed last."""
    text = field(row, "updated_at", str)
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None or time.year < 2000 or CONTROL.search(text):
            raise ValueError
        return time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise AnswerError("the server sent an 'updated_at' that is no time with a zone") from None


def on_one_line(text: str) -> str:
    r"""Make a text from the server fit to be shown: one line, not too long, without control characters.

    >>> on_one_line("red: \x1b[31m, and\na new line")
    'red: ?[31m, and a new line'
    """
    plain = CONTROL.sub("?", " ".join(text.split()))
    return plain if len(plain) <= SHOWN_CHARACTERS else f"{plain[:SHOWN_CHARACTERS]}..."
