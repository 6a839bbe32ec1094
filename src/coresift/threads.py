"""Choose how many threads torch computes with: one for small work, otherwise one for each free core.

The threads of a computation wait for each other after every operation. If another program holds a core, they
wait for that program too: with two busy programs on two cores, a small network takes 30 times as long on two
threads as on one. For small work a second thread gains nothing even on an idle machine; see
benchmarks/threads.py.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from coresift import limits


class _Current(threading.local):
    """The innermost block: the number of threads the caller has set, and when the free cores were counted."""

    most: int | None = None
    large = False
    counted = -limits.RECOUNT_SECONDS


_current = _Current()


@contextmanager
def enough_threads(work: float, small: float = limits.SMALL_WORK) -> Iterator[None]:
    """Compute with one thread if ``work`` is below ``small``, otherwise with one for each free core.

    ``work`` is roughly how many multiplications one operation makes. The caller's own setting is the most
    that is used, and it is restored at the end. Blocks can be nested: each decides for itself.

    >>> with enough_threads(1000):
    ...     torch.get_num_threads()
    1
    """
    before, around = torch.get_num_threads(), (_current.most, _current.large, _current.counted)
    _current.most = before if _current.most is None else _current.most
    _current.large, _current.counted = work >= small, -limits.RECOUNT_SECONDS
    if not _current.large:
        _use(1)
    count_again()
    try:
        yield
    finally:
        _current.most, _current.large, _current.counted = around
        _use(before)


def count_again(interval: float = limits.RECOUNT_SECONDS) -> None:
    """Count the free cores again if ``interval`` has passed; for loops inside `enough_threads`."""
    if _current.large and _current.most is not None and time.monotonic() - _current.counted >= interval:
        _use(min(_current.most, free_cores()) if _current.most > 1 else 1)
        _current.counted = time.monotonic()


def _use(threads: int) -> None:
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)


def usable_cores() -> set[int]:
    """Return the cores that this process may run on: its CPU affinity, where the system has one."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def free_cores() -> int:
    """Return how many usable cores no other program is using; all of them where the system does not tell.

    The smallest of a few counts is taken, since programs that run for a moment do not matter. The system
    counts the running threads of the whole machine. If this process may use only some of its cores, the time
    that these cores were busy tells whether the other programs run there.

    >>> 1 <= free_cores() <= len(usable_cores())
    True
    """
    cores = usable_cores()
    try:
        others = _running_elsewhere()
        for _ in range(limits.MORE_LOOKS):
            if others <= 0:
                return len(cores)
            time.sleep(limits.LOOK_SECONDS)
            others = min(others, _running_elsewhere())
        if 1 < len(cores) < (os.cpu_count() or 1):
            others = min(others, math.ceil(_others.share(cores) - limits.TOLERATED_SHARE))
    except (OSError, ValueError, IndexError):
        return len(cores)
    return max(1, len(cores) - max(0, others))


def _running_elsewhere() -> int:
    """Count the threads of other programs that run or wait for a core, on the whole machine."""
    own = _running_here()
    # For example "0.20 0.18 0.12 1/80 11206": 1 of 80 threads is running.
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    # Threads of our own that wait for work stay on a core for some milliseconds, and go to sleep at any time.
    return running - max(own, _running_here())


def _running_here() -> int:
    return sum(_is_running(task) for task in Path("/proc/self/task").iterdir())


def _is_running(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:  # the thread has ended
        return False


class _Look(NamedTuple):
    cores: set[int]
    time: float
    others: float  # seconds that all others together have used these cores


class _Others:
    """Measures how many of the cores that this process may use other programs have kept busy lately."""

    def __init__(self) -> None:
        self._found = 0.0
        self._before = self._look(usable_cores())

    def share(self, cores: set[int]) -> float:
        """Return the mean number of these cores that others used since the last look."""
        now = self._look(cores)
        if now.cores != self._before.cores or now.time - self._before.time > limits.OLD_SECONDS:
            self._before = now
            time.sleep(limits.WINDOW_SECONDS)
            now = self._look(cores)
        passed = now.time - self._before.time
        if passed >= limits.WINDOW_SECONDS:
            self._found = (now.others - self._before.others) / passed
            self._before = now
        return self._found

    def _look(self, cores: set[int]) -> _Look:
        return _Look(cores, time.monotonic(), _busy_seconds(cores) - time.process_time())


def _busy_seconds(cores: set[int]) -> float:
    """Return the seconds that these cores were busy since the machine was started, summed over cores."""
    try:
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    except OSError:
        return 0.0
    names = {f"cpu{core}" for core in cores}
    # User, nice, system, idle, waiting for a disk, interrupts and soft interrupts, in ticks.
    busy = [sum(int(row[column]) for column in (1, 2, 3, 6, 7)) for row in rows if row[0] in names]
    return sum(busy) / os.sysconf("SC_CLK_TCK")


_others = _Others()
