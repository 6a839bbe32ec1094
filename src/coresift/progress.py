"""What is shown of all that may take long: on a terminal one bar, once it has taken two seconds; in a log,
where asked for, a line now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.errors import LiveError
from rich.progress import Progress

from coresift.threads import count_again

PATIENCE = 2.0
PAUSE = 10.0


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function to report steps to, for the time of a ``with`` block.

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
        if wanted and time.monotonic() - began > PATIENCE:
            wanted = False
            # A display of the caller's own may hold the terminal already: leave it alone.
            with suppress(LiveError):
                progress.start()

    try:
        yield advance
    finally:
        if progress.live.is_started:  # else stopping would print an empty line
            progress.stop()


def now_and_then(say: Callable[[str], None]) -> Callable[[str], None]:
    """The same, but deaf for `PAUSE` seconds at first and after each line, so that logs stay short.

    >>> now_and_then(print)("too early")
    """
    last = time.monotonic()

    def say_sometimes(line: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PAUSE:
            last = now
            say(line)

    return say_sometimes
