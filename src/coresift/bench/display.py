"""Show how far runs have come, and how good their models are so far."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from coresift.bench.replay import Round, Simulation
from coresift.bench.statistics import Estimate
from coresift.progress import now_and_then

Run: TypeAlias = tuple[str, int]  # the name of a method, and a seed
Show: TypeAlias = Callable[[Mapping[Run, Round]], None]  # takes the last round of each run, after each turn


@contextmanager
def display(
    data: str, runs: Sequence[Run], simulation: Simulation, console: Console | None = None
) -> Iterator[Show]:
    """Show a bar for each method, by labels bought, with its latest RMSE or accuracy and the time left.

    Without a terminal there is a line at the end of each method and, now and then, one on the slowest.
    """
    console = console or Console(stderr=True)
    texts = "{task.description}", BarColumn(), "{task.fields[latest]}"
    columns = (*texts, TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield _Bars(data, runs, simulation, progress).show


class _Bars:
    def __init__(self, data: str, runs: Sequence[Run], simulation: Simulation, progress: Progress) -> None:
        self.data, self.simulation, self.progress = data, simulation, progress
        self.num_seeds = Counter(name for name, _ in runs)
        self.bars = {
            name: progress.add_task(f"{data} {name}", total=1, latest="first fit") for name in self.num_seeds
        }
        self.say_sometimes = now_and_then(self._say)

    def _say(self, line: str) -> None:
        if not self.progress.console.is_terminal:
            self.progress.console.print(line, soft_wrap=True)

    def show(self, last: Mapping[Run, Round]) -> None:
        rounds = defaultdict[str, list[Round]](list)
        for (name, _), turn in last.items():
            rounds[name].append(turn)
        behind = [self._update(name, rounds[name]) for name in list(self.bars) if name in rounds]
        if slowest := min(filter(None, behind), default=None):
            self.say_sometimes(slowest[1])

    def _update(self, name: str, rounds: Sequence[Round]) -> tuple[float, str] | None:
        """Move a bar; returns which part of it is done and a line on that, unless the method has finished."""
        part = sum(map(self._part_done, rounds)) / self.num_seeds[name]
        latest = _latest(rounds)
        self.progress.update(self.bars[name], completed=part, latest=latest)
        if part < 1:
            return part, f"{self.data} {name}: {part:.0%}, {latest}"
        del self.bars[name]  # it stays on the screen
        self._say(f"{self.data} {name}: {len(rounds)} seeds, {latest}")
        return None

    def _part_done(self, turn: Round) -> float:
        """Return which part of a run is done; the last fit counts as much as a batch."""
        bought = turn.labels + len(turn.bought) - self.simulation.first
        batch = self.simulation.batch
        return (bought + batch * (not turn.chosen)) / (self.simulation.budget + batch)


def _latest(rounds: Sequence[Round]) -> str:
    """Describe the last round of each run: labels learned, and RMSE or accuracy."""
    errors = np.array([turn.error for turn in rounds])
    classes = any(turn.accuracy is not None for turn in rounds)
    measured = f"accuracy {Estimate.over(1 - errors):.3f}" if classes else f"RMSE {Estimate.over(errors):.3f}"
    return f"{np.mean([turn.labels for turn in rounds]):.0f} labels, {measured}"
