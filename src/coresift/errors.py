"""Define the errors that callers and users of the command line see."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


def shown(value: object) -> str:
    """Return ``value`` as an error shows it: on one line, and cut where it is long.

    >>> shown("2GB"), shown([[1, 2]] * 50)
    ("'2GB'", '[[1, 2], [1, 2], [1, 2], [1, 2], [1, 2], [1, 2], [1, 2], ...')
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def suggestion(word: object, known: Iterable[str]) -> str:
    """Say which known words are similar to an unknown one, or else which there are.

    >>> suggestion("yatch", ["boston", "yacht"])
    "did you mean 'yacht'?"
    """
    known = list(known)
    near = get_close_matches(str(word).lower(), known)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(known)}"


class InputError(ValueError):
    """The caller passed something that cannot be used; the message says what was seen and what to do."""

    exit_code = 2  # of a command that ends with this error


class DiskFullError(InputError):
    """The disk is full. The new content was not written, and nothing else has changed."""

    exit_code = 5


def is_full(error: OSError) -> bool:
    """Return whether an error says that the disk, or a user's quota, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def cannot_write(path: Path | str, error: OSError, advice: str = "") -> InputError:
    """Return the error to raise where the system refuses to write to ``path``."""
    kind, advice = (DiskFullError, "make room and try again") if is_full(error) else (InputError, advice)
    return kind(f"cannot write {path}: {error.strerror or error}" + (f"; {advice}" if advice else ""))
