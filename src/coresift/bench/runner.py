"""Run experiments: all seeds of a method side by side; rounds are recorded as they end, and not repeated."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import coresift
from coresift.bench.config import Experiment
from coresift.bench.replay import Begun, Round, Simulation, State, step
from coresift.bench.statistics import Estimate
from coresift.bench.store import Log
from coresift.progress import now_and_then
from coresift.types import InputError

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

_STARTED = time.perf_counter()

# One run of one method: its name and its seed.
Run = tuple[str, int]
Value = TypeVar("Value")


def run_experiment(
    experiment: Experiment,
    out: Path,
    *,
    folder: Path | None = None,
    device: str = "cpu",
    workers: int = 1,
    together: bool = False,
    only_seed: int | None = None,
) -> None:
    """Run what is not yet in ``out``.

    Parameters
    ----------
    folder : where published tables are.
    device : where networks are trained.
    workers : processes that evaluate and choose.
    together : train all methods side by side, not only the seeds of one: a GPU has room for that.
    only_seed : one of the seeds, if they are not trained side by side. Processes can then share an
        experiment, each with its own folder; files with the same name may be concatenated.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device is {device!r}, but torch finds no such device here; try 'cpu'")
    names = list(experiment.methods)
    beside, made = {"beside": sorted(names)} if together else {}, _made(device)
    # All tables and files are checked before the first long computation.
    simulations = {data: experiment.simulation(data, folder, device, workers) for data in experiment.data}
    seeds = _seeds(experiment, only_seed, simulations.values())
    with ExitStack() as locks:
        logs: dict[str, dict[str, Log]] = {}
        for data, simulation in simulations.items():
            logs[data] = {name: Log(out / data / f"{name}.jsonl") for name in names}
            for name, log in logs[data].items():
                locks.enter_context(log.locked())
                log.open({**experiment.settings(data, name, simulation), **beside}, made)
        for data, simulation in simulations.items():
            begun: Begun = {}
            for group in [names] if together else [[name] for name in names]:
                runs = [(name, seed) for name in group for seed in seeds]
                states = {run: simulation.begin(experiment.methods[run[0]], run[1]) for run in runs}
                own = {name: logs[data][name] for name in group}
                _Group(data, simulation, own, made).run(states, begun)


def _seeds(experiment: Experiment, only_seed: int | None, simulations: Iterable[Simulation]) -> Sequence[int]:
    seeds = range(experiment.seeds)
    if only_seed is None:
        return seeds
    if only_seed not in seeds:
        raise InputError(f"there is no seed {only_seed} among {experiment.seeds}, which start at 0")
    if not all(simulation.one_by_one for simulation in simulations):
        raise InputError("seeds of these models are trained side by side, so one cannot run alone")
    return [only_seed]


@dataclass(frozen=True)
class _Group:
    """Runs on one data set whose models are trained in one computation, with the logs of their methods."""

    data: str
    simulation: Simulation
    logs: Mapping[str, Log]
    made: Mapping[str, str]

    def run(self, states: dict[Run, State], begun: Begun) -> None:
        """Continue the runs from what is recorded, and record each turn."""
        side_by_side = [[run] for run in states] if self.simulation.one_by_one else [list(states)]
        last = self._resume(states, side_by_side)
        with _display(self.data, list(self.logs), self.simulation) as show:
            if last:
                show(states, last)
            for runs in side_by_side:
                while alive := [run for run in runs if not states[run].done]:
                    after, turns = step(self.simulation, [states[run] for run in alive], begun)
                    found = dict(zip(alive, turns, strict=True))
                    for name, log in self.logs.items():
                        log.append(_of_method(name, found))
                    states |= dict(zip(alive, after, strict=True))
                    last |= found
                    show(states, last)

    def _resume(self, states: dict[Run, State], side_by_side: Sequence[Sequence[Run]]) -> dict[Run, Round]:
        """Move the states through the recorded turns; returns the last round of each run.

        A turn counts if all runs that go side by side have it; what is beyond is dropped.
        """
        kept = {
            (name, seed): rounds for name, log in self.logs.items() for seed, rounds in log.rounds().items()
        }
        for runs in side_by_side:
            turn = 0
            while alive := [run for run in runs if not states[run].done]:
                if not all(turn < len(kept.get(run, [])) for run in alive):
                    break
                for run in alive:
                    self._check(run, states[run], kept[run][turn])
                    states[run] = states[run].after(kept[run][turn])
                turn += 1
            kept |= {run: kept.get(run, [])[:turn] for run in runs}
        for name, log in self.logs.items():
            unfinished = any(not state.done for state in _of_method(name, states).values())
            log.cut(_of_method(name, kept), self.made if unfinished else None)
        return {run: kept[run][-1] for run in states if kept[run]}

    def _check(self, run: Run, state: State, found: Round) -> None:
        if (found.fits, found.labels) != (state.fits, len(state.labelled)):
            raise InputError(
                f"{self.logs[run[0]].path} is damaged: seed {run[1]} has fit {found.fits} with "
                f"{found.labels} labels after {state.fits} fits and {len(state.labelled)} labels; "
                "remove that file"
            )


def _of_method(name: str, values: Mapping[Run, Value]) -> dict[int, Value]:
    """Select the runs of one method: seed -> value."""
    return {seed: value for (method, seed), value in values.items() if method == name}


# What is shown meanwhile.


@contextmanager
def _display(
    data: str, names: Sequence[str], simulation: Simulation
) -> Iterator[Callable[[Mapping[Run, State], Mapping[Run, Round]], None]]:
    """Show a bar for each method, by labels bought, with its latest RMSE or accuracy and the time left.

    Without a terminal there is a line at the end of each method and, now and then, one on the slowest.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[latest]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks = {name: progress.add_task(f"{data} {name}", total=1.0, latest="first fit") for name in names}
        finished: set[str] = set()

        def say(line: str) -> None:
            if not console.is_terminal:
                console.print(line, soft_wrap=True)

        say_sometimes = now_and_then(say)

        def show(states: Mapping[Run, State], last: Mapping[Run, Round]) -> None:
            slowest: list[tuple[float, str]] = []
            for name, task in tasks.items():
                rounds, own = _of_method(name, last), list(_of_method(name, states).values())
                if not rounds:
                    continue
                part, latest = _part_done(simulation, own), _latest([*rounds.values()])
                progress.update(task, completed=part, latest=latest)
                if not all(state.done for state in own):
                    slowest.append((part, f"{data} {name}: {part:.0%}, {latest}"))
                elif name not in finished:
                    finished.add(name)
                    say(f"{data} {name}: {len(own)} seeds, {latest}")
            if slowest:
                say_sometimes(min(slowest)[1])

        yield show


def _part_done(simulation: Simulation, states: Sequence[State]) -> float:
    """Return which part of a method is done; the last fit counts as much as a batch."""
    bought = float(np.mean([len(state.labelled) for state in states])) - simulation.first
    done = all(state.done for state in states)
    return (bought + simulation.batch * done) / (simulation.budget + simulation.batch)


def _latest(rounds: Sequence[Round]) -> str:
    """Describe the last round of each run: labels learned, and RMSE or accuracy."""
    errors = np.array([turn.error for turn in rounds])
    classes = any(turn.accuracy is not None for turn in rounds)
    measured = f"accuracy {Estimate.over(1 - errors):.3f}" if classes else f"RMSE {Estimate.over(errors):.3f}"
    return f"{np.mean([turn.labels for turn in rounds]):.0f} labels, {measured}"


def resources_used() -> str:
    """Describe the time since the program began and its peak memory, without that of its workers."""
    words = f"{time.perf_counter() - _STARTED:.0f} s"
    if resource is not None:
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        words += f", at most {largest * (1 if sys.platform == 'darwin' else 1024) / 1e9:.1f} GB of memory"
    if torch.cuda.is_available():
        words += f", {torch.cuda.max_memory_allocated() / 1e9:.1f} GB of the GPU's"
    return words


def _made(device: str) -> dict[str, str]:
    """Say where results come from, for later readers."""
    made = {
        "command": shlex.join(["coresift", *sys.argv[1:]]),
        "coresift": coresift.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "CPU",
    }
    commit = os.environ.get("CORESIFT_COMMIT") or _commit()
    return {**made, "commit": commit} if commit else made


def _commit() -> str | None:
    """Return the commit that is checked out, if there is one; a copy without git can set CORESIFT_COMMIT."""
    git = shutil.which("git")

    def ask(*words: str) -> str:
        if git is None:
            return ""
        where = Path(__file__).parent
        found = subprocess.run([git, *words], cwd=where, capture_output=True, text=True, check=False)
        return found.stdout.strip()

    # A package installed inside another repository is not part of its history.
    return ask("describe", "--always", "--dirty") or None if ask("ls-files", __file__) else None
