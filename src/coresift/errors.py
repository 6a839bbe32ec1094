"""The error that callers and users of the command line meet."""

from __future__ import annotations


class InputError(ValueError):
    """What a caller handed in cannot be used; the message says what was seen and what to do.

    ``exit_code`` is that of a command that ends with it.
    """

    exit_code = 2
