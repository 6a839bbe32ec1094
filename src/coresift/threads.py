"""Choose how many threads torch computes with: one for small work, else one for each free core.

The threads of a computation wait for each other after every operation. If another program holds a core, they
wait for that program too: with two busy programs on two cores, a small network takes 30 times as long on two
threads as on one. And for small work a second thread gains nothing even on an idle machine.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

# Multiplications in one operation below which more than one thread does not help; see benchmarks/threads.py.
SMALL = 1_000_000
# Seconds after which the free cores are counted again.
INTERVAL = 0.25


class _Current(threading.local):
    """The innermost block: how many threads the caller has set, and when the free cores were counted."""

    most: int | None = None
    large = False
    counted = -INTERVAL


_current = _Current()


@contextmanager
def enough_threads(work: float) -> Iterator[None]:
    """Compute with one thread if ``work`` is small, else with one for each free core.

    The number that the caller has set is the most that is used, and it is set again at the end. Blocks can be
    nested: each decides for itself.

    Parameters
    ----------
    work : multiplications in one operation, roughly.

    >>> before = torch.get_num_threads()
    >>> with enough_threads(1000):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """
    before, around = torch.get_num_threads(), (_current.most, _current.large, _current.counted)
    _current.most = before if _current.most is None else _current.most
    _current.large, _current.counted = work >= SMALL, -INTERVAL
    if not _current.large:
        _use(1)
    count_again()
    try:
        yield
    finally:
        _current.most, _current.large, _current.counted = around
        _use(before)


def count_again() -> None:
    """Count the free cores again if some time has passed; for loops inside `enough_threads`."""
    if _current.large and _current.most is not None and time.monotonic() - _current.counted >= INTERVAL:
        _use(min(_current.most, free_cores()) if _current.most > 1 else 1)
        _current.counted = time.monotonic()


def free_cores() -> int:
    """Count the cores that no other program is using now; all cores where the system does not tell.

    >>> 1 <= free_cores() <= os.cpu_count()
    True
    """
    cores = os.cpu_count() or 1
    try:
        # Such as "0.20 0.18 0.12 1/80 11206": 1 of 80 threads is running.
        running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
        own = sum(_is_running(task) for task in Path("/proc/self/task").iterdir())
    except (OSError, ValueError, IndexError):
        return cores
    return max(1, min(cores, cores - running + own))


def _is_running(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:  # it has ended meanwhile
        return False


def _use(threads: int) -> None:
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
