"""Shorten texts and format numbers for pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coresift import limits
from coresift.labelling.records import PlacedItem


def cut(text: str, limit: int = limits.NAME) -> str:
    """Shorten a text to ``limit`` characters.

    >>> cut("a long name", 7)
    'a long…'
    """
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def formatted(value: float | None, spec: str = ".3g") -> str:
    """Format a number that may be missing.

    >>> formatted(0.25, ".0%"), formatted(None)
    ('25%', '-')
    """
    return "-" if value is None else format(value, spec)


def prediction(item: PlacedItem) -> str:
    """Format the predicted label: a class with its probability, a number to four digits."""
    if item.predicted is None:
        return "-"
    label, probability = item.predicted
    return f"{float(label):.4g}" if probability is None else f"{cut(label)} ({probability:.0%})"


def column_names(items: Sequence[PlacedItem]) -> list[str]:
    """List the columns that describe any of the items."""
    return list(dict.fromkeys(name for item in items for name in item.description))


def described(item: PlacedItem, columns: Sequence[str], limit: int) -> list[str]:
    """Return the texts that describe an item: each up to the limit, together up to four times as much."""
    texts, room = [], 4 * limit
    for name in columns:
        text = item.description.get(name, "")
        # Only the name of a file: readers of the page need not know the folder.
        texts.append(cut(Path(text).name if name == "image" else text, max(1, min(limit, room))))
        room -= len(texts[-1])
    return texts
