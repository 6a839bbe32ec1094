"""Show the progress of long work: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.errors import LiveError
from rich.progress import Progress

from coresift.limits import BAR_AFTER_SECONDS, LINE_EVERY_SECONDS
from coresift.threads import count_again


@contextmanager
def progress_bar(what: str, total: int, after: float = BAR_AFTER_SECONDS) -> Iterator[Callable[[int], None]]:
    """Yield a function that counts steps; a bar appears on a terminal ``after`` so many seconds.

    >>> with progress_bar("counting", total=3) as advance:
    ...     for _ in range(3):
    ...         advance(1)
    """
    console = Console(stderr=True)
    progress = Progress(console=console, transient=True)
    task = progress.add_task(what, total=total)
    began, wanted = time.monotonic(), console.is_terminal

    def advance(steps: int) -> None:
        nonlocal wanted
        count_again()  # every long loop reports here
        progress.advance(task, steps)
        if wanted and time.monotonic() - began > after:
            wanted = False
            with suppress(LiveError):  # a display of the caller may already hold the terminal: leave it alone
                progress.start()

    try:
        yield advance
    finally:
        if progress.live.is_started:  # otherwise stopping would print an empty line
            progress.stop()


def now_and_then(say: Callable[[str], None], every: float = LINE_EVERY_SECONDS) -> Callable[[str], None]:
    """Return a function that passes on at most one line ``every`` so many seconds, so that logs stay short.

    >>> now_and_then(print)("too early")
    """
    last = time.monotonic()

    def say_sometimes(line: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= every:
            last = now
            say(line)

    return say_sometimes
