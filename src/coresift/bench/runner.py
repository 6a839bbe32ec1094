"""The runner: all seeds of a method side by side; rounds are written down as they end, and not repeated."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import coresift
from coresift.bench.config import Experiment
from coresift.bench.replay import Begun, Round, Simulation, State, step
from coresift.bench.store import Log
from coresift.progress import now_and_then
from coresift.report.figures import standard_error
from coresift.types import InputError

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

_STARTED = time.perf_counter()

# One run of one method: its name and its seed.
Run = tuple[str, int]


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
    folder : where published tables lie.
    device : where networks are trained.
    workers : processes that evaluate and choose.
    together : train all methods side by side, not only the seeds of one: a GPU has room for that.
    only_seed : one of the seeds, where they are not trained side by side. Processes can so share an
        experiment, each with a folder of its own; files of one name may be joined end to end.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device is {device!r}, but torch finds no such device here; try 'cpu'")
    names = list(experiment.methods)
    beside, made = {"beside": sorted(names)} if together else {}, _made(device)
    # All tables and files are looked at before the first long computation.
    simulations = {data: experiment.simulation(data, folder, device, workers) for data in experiment.data}
    seeds: Sequence[int] = range(experiment.seeds)
    if only_seed is not None:
        if only_seed not in seeds:
            raise InputError(f"there is no seed {only_seed} among {experiment.seeds}, which start at 0")
        if not all(simulation.one_by_one for simulation in simulations.values()):
            raise InputError(
                "seeds of these models are trained side by side, so there is no running one alone"
            )
        seeds = [only_seed]
    with ExitStack() as locks:
        logs: dict[str, dict[str, Log]] = {}
        for data, simulation in simulations.items():
            logs[data] = {name: Log(out / data / f"{name}.jsonl") for name in names}
            for name, log in logs[data].items():
                locks.enter_context(log.locked())
                log.open({**experiment.settings(data, name, simulation), **beside}, made)
        for data, simulation in simulations.items():
            groups = [logs[data]] if together else [{name: log} for name, log in logs[data].items()]
            begun: Begun = {}
            for group in groups:
                _run_group(experiment, seeds, data, simulation, group, begun, made)


def _run_group(
    experiment: Experiment,
    seeds: Sequence[int],
    data: str,
    simulation: Simulation,
    logs: Mapping[str, Log],
    begun: Begun,
    made: Mapping[str, str],
) -> None:
    states: dict[Run, State] = {
        (name, seed): simulation.begin(experiment.methods[name], seed) for name in logs for seed in seeds
    }
    side_by_side = [[run] for run in states] if simulation.one_by_one else [list(states)]
    last = _recorded(logs, states, side_by_side, made)
    with _display(data, list(logs), simulation) as show:
        if last:
            show(states, last)
        for runs in side_by_side:
            while alive := [run for run in runs if not states[run].done]:
                after, turns = step(simulation, [states[run] for run in alive], begun)
                found = dict(zip(alive, turns, strict=True))
                for name, log in logs.items():
                    log.append({seed: turn for (method, seed), turn in found.items() if method == name})
                states |= dict(zip(alive, after, strict=True))
                last |= found
                show(states, last)


def _recorded(
    logs: Mapping[str, Log],
    states: dict[Run, State],
    side_by_side: Sequence[Sequence[Run]],
    made: Mapping[str, str],
) -> dict[Run, Round]:
    """Move the states through the turns that are written down for all runs that go side by side, and drop
    what is beyond; the last round of each run.
    """
    kept = {(name, seed): rounds for name, log in logs.items() for seed, rounds in log.rounds().items()}
    for runs in side_by_side:
        written = {run: kept.get(run, []) for run in runs}
        turn = 0
        while alive := [run for run in runs if not states[run].done]:
            if not all(turn < len(written[run]) for run in alive):
                break
            for run in alive:
                state, found = states[run], written[run][turn]
                if (found.fits, found.labels) != (state.fits, len(state.labelled)):
                    raise InputError(
                        f"{logs[run[0]].path} is damaged: seed {run[1]} has fit {found.fits} with "
                        f"{found.labels} labels after {state.fits} fits and {len(state.labelled)} labels; "
                        "remove that file"
                    )
                states[run] = state.after(found)
            turn += 1
        kept |= {run: written[run][:turn] for run in runs}
    for name, log in logs.items():
        going_on = any(not state.done for (method, _), state in states.items() if method == name)
        own = {seed: rounds for (method, seed), rounds in kept.items() if method == name}
        log.cut(own, made if going_on else None)
    return {run: kept[run][-1] for run in states if kept[run]}


@contextmanager
def _display(
    data: str, names: Sequence[str], simulation: Simulation
) -> Iterator[Callable[[Mapping[Run, State], Mapping[Run, Round]], None]]:
    """A bar for each method, by labels bought, with its latest RMSE or accuracy and the time left.

    Where nobody watches there is a line at each method's end and, now and then, on the one furthest behind.
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
            going: list[tuple[float, str]] = []
            for name, task in tasks.items():
                mine = [run for run in states if run[0] == name]
                if not any(run in last for run in mine):
                    continue
                bought = float(np.mean([len(states[run].labelled) for run in mine])) - simulation.first
                done = all(states[run].done for run in mine)
                errors = np.array([last[run].error for run in mine if run in last])
                spread = f" ± {standard_error(errors):.3f}" if len(errors) > 1 else ""
                classes = any(last[run].accuracy is not None for run in mine if run in last)
                measured = f"accuracy {1 - errors.mean():.3f}" if classes else f"RMSE {errors.mean():.3f}"
                learned = np.mean([last[run].labels for run in mine if run in last])  # not what came in since
                latest = f"{learned:.0f} labels, {measured}{spread}"
                # The last fit counts as much as a batch.
                share = (bought + simulation.batch * done) / (simulation.budget + simulation.batch)
                progress.update(task, completed=share, latest=latest)
                if not done:
                    going.append((share, f"{data} {name}: {share:.0%}, {latest}"))
                elif name not in finished:
                    finished.add(name)
                    say(f"{data} {name}: {len(mine)} seeds, {latest}")
            if going:
                say_sometimes(min(going)[1])

        yield show


def resources_used() -> str:
    """The time since the program began and the most memory it held, without its workers'."""
    words = f"{time.perf_counter() - _STARTED:.0f} s"
    if resource is not None:
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        words += f", at most {largest * (1 if sys.platform == 'darwin' else 1024) / 1e9:.1f} GB of memory"
    if torch.cuda.is_available():
        words += f", {torch.cuda.max_memory_allocated() / 1e9:.1f} GB of the GPU's"
    return words


def _made(device: str) -> dict[str, str]:
    """Where results come from, for whoever reads them later."""
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
    """The commit that is checked out, where there is one; a bare copy can say it in CORESIFT_COMMIT."""
    git = shutil.which("git")

    def ask(*words: str) -> str:
        if git is None:
            return ""
        where = Path(__file__).parent
        found = subprocess.run([git, *words], cwd=where, capture_output=True, text=True, check=False)
        return found.stdout.strip()

    # Installed inside somebody's repository, the package is not part of its history.
    return ask("describe", "--always", "--dirty") or None if ask("ls-files", __file__) else None
