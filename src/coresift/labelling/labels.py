"""Define labels: how numbers and classes are written, and which words mean "no label"."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches

from coresift.errors import InputError
from coresift.labelling.records import LARGEST

PLAIN_NUMBERS = "decimals need a point, and thousands no separator"
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
# An integer as programs write it in a column with gaps: 1.0, but neither 1.10 nor 007.
_INTEGER = re.compile(r"(-?[0-9]+)\.0+")
# Words that stand for no label; the CSV reader of pools has them for missing values.
_NOTHING = frozenset({"", "#N/A", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"})


def is_label(text: str, classes: Collection[str] | None) -> bool:
    """Whether a text is a label, not a word for none such as NA that is not the name of a class."""
    return text not in _NOTHING or text in (classes or ())


def looks_like_number(text: str) -> bool:
    """Whether a text is written as a number, of any size."""
    return _NUMBER.fullmatch(text) is not None


def is_number(text: str) -> bool:
    """Whether a text is a number that can be a label."""
    return looks_like_number(text) and abs(float(text)) <= LARGEST


def is_separated_number(text: str) -> bool:
    """Whether a text is a number, perhaps with a decimal comma or with separators between thousands."""
    return looks_like_number(re.sub(r"[,'\u2019\s]", "", text))


def plain_number(where: str, text: str) -> str:
    """Write a number in its shortest form."""
    if is_number(text):
        return repr(float(text)).removesuffix(".0")
    if looks_like_number(text):
        raise InputError(f"{where}: {quoted(text)} is too large for a number")
    hint = f"; {PLAIN_NUMBERS}" if is_separated_number(text) else ""
    raise InputError(f"{where}: {quoted(text)} is not a number{hint}")


def plain_class(text: str) -> str:
    """Write a class that is an integer without its fraction, so that a program's 1.0 is the 1 of people."""
    integer = _INTEGER.fullmatch(text)
    return integer[1] if integer else text


def alike_classes(classes: Iterable[str]) -> list[list[str]]:
    """Find classes that differ from each other only by case or spaces."""
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault("".join(name.split()).casefold(), []).append(name)
    return [names for names in alike.values() if len(names) > 1]


def nearest_class(label: str, classes: Collection[str]) -> str | None:
    """Find the class that somebody may have meant, if one is nearly that."""
    alike: dict[str, str] = {}
    for name in classes:  # where some differ by case only, the first of them
        alike.setdefault(name.lower(), name)
    nearest = get_close_matches(label.lower(), alike, n=1)
    return alike[nearest[0]] if nearest else None


def quoted(text: str) -> str:
    """Quote a text for a message, on one line and shortened."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
