"""The error that callers and users of the command line meet."""

from __future__ import annotations

import errno
from pathlib import Path

# What the system says where a disk, or a user's part of it, is full.
_FULL = (errno.ENOSPC, errno.EDQUOT)


def shown(value: object) -> str:
    """Return ``value`` as an error shows it: on one line, and cut where it is long.

    >>> shown("2GB"), shown([[1, 2]] * 50)
    ("'2GB'", '[[1, 2], [1, 2], [1, 2], [1, 2], [1, 2], [1, 2], [1, 2], ...')
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


class InputError(ValueError):
    """What a caller handed in cannot be used; the message says what was seen and what to do.

    ``exit_code`` is that of a command that ends with it.
    """

    exit_code = 2


class DiskFullError(InputError):
    """The disk is full. What was to be written is not there, and nothing else has changed."""

    exit_code = 5


def is_full(error: OSError) -> bool:
    """Tell whether an error says that the disk is full."""
    return error.errno in _FULL


def cannot_write(path: Path | str, error: OSError, advice: str = "") -> InputError:
    """Give the error to raise where the system does not let us write to ``path``."""
    kind, advice = (DiskFullError, "make room and try again") if is_full(error) else (InputError, advice)
    return kind(f"cannot write {path}: {error.strerror or error}" + (f"; {advice}" if advice else ""))
