"""Run experiments: all seeds of a method side by side; rounds are recorded as they end, and not repeated."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console

import coresift
from coresift.bench.config import Experiment
from coresift.bench.display import Run, display
from coresift.bench.oracle import ORACLE, BeamSearch
from coresift.bench.replay import Begun, Round, Simulation, State, step
from coresift.bench.store import Log
from coresift.errors import InputError

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

_STARTED = time.perf_counter()

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
    console: Console | None = None,
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
    console : where progress is shown; the standard error by default.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device is {device!r}, but torch finds no such device here; try 'cpu'")
    made, names = _made(device), list(experiment.methods)
    if together and ORACLE in names:
        raise InputError(f"{ORACLE!r} searches by itself: run it without --together, or leave it out")
    # All tables and files are checked before the first long computation.
    simulations = {data: experiment.simulation(data, folder, device, workers) for data in experiment.data}
    seeds = _seeds(experiment, only_seed, simulations.values())
    groups = [
        _Group(experiment, data, simulations[data], out / data, group, seeds, made)
        for data, group in product(simulations, [names] if together else ([name] for name in names))
    ]
    with ExitStack() as locks:
        for group in groups:
            group.open(locks, {"beside": sorted(names)} if together else {})
        for _, of_data in groupby(groups, lambda group: group.data):
            begun: Begun = {}
            for group in of_data:
                group.run(begun, console)


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
    """Runs of one or more methods on one data set; ``made`` says where further rounds come from."""

    experiment: Experiment
    data: str
    simulation: Simulation
    folder: Path
    names: Sequence[str]
    seeds: Sequence[int]
    made: Mapping[str, str]

    def log(self, name: str) -> Log:
        """Return the log of a method."""
        return Log(self.folder / f"{name}.jsonl")

    def open(self, locks: ExitStack, together: Mapping[str, Any]) -> None:
        """Begin the logs, or check that they are of the same settings."""
        for name in self.names:
            locks.enter_context(self.log(name).locked())
            settings = self.experiment.settings(self.data, name, self.simulation)
            self.log(name).open({**settings, **together}, self.made)

    @property
    def runs(self) -> list[Run]:
        """All runs of these methods."""
        return list(product(self.names, self.seeds))

    @property
    def side_by_side(self) -> list[list[Run]]:
        """The runs that take each turn together."""
        alone = self.simulation.one_by_one or ORACLE in self.names
        return [[run] for run in self.runs] if alone else [self.runs]

    def run(self, begun: Begun, console: Console | None = None) -> None:
        """Continue the runs from what is recorded, and record each turn; see `step`."""
        recorded = self._recorded()
        states = {run: self._state(*run, recorded[run]) for run in self.runs}
        self._cut(recorded, states)
        last = {run: recorded[run][-1] for run in self.runs if recorded[run]}
        with display(self.data, self.runs, self.simulation, console) as show:
            show(last)
            for together in self.side_by_side:
                while alive := [run for run in together if not states[run].done]:
                    searches = ORACLE in self.names
                    last |= self._search(alive[0], states) if searches else self._turn(alive, states, begun)
                    show(last)

    def _recorded(self) -> dict[Run, list[Round]]:
        """Read the rounds of each run; a turn counts if all runs that go side by side have it."""
        recorded = defaultdict[Run, list[Round]](list)
        for name in self.names:
            recorded |= {(name, seed): rounds for seed, rounds in self.log(name).rounds().items()}
        for runs in self.side_by_side:
            recorded |= _whole_turns({run: recorded[run] for run in runs})
        return recorded

    def _state(self, name: str, seed: int, rounds: Iterable[Round]) -> State:
        """Return the state of a run after these rounds."""
        state = self.simulation.begin(self.experiment.methods[name], seed)
        for turn in rounds:
            if (turn.fits, turn.labels) != (state.fits, len(state.labelled)):
                raise InputError(
                    f"{self.log(name).path} is damaged: seed {seed} has fit {turn.fits} with {turn.labels} "
                    f"labels after {state.fits} fits and {len(state.labelled)} labels; remove that file"
                )
            state = state.after(turn)
        return state

    def _cut(self, recorded: Mapping[Run, list[Round]], states: Mapping[Run, State]) -> None:
        """Drop what does not count from the logs, and note in those that go on where this comes from."""
        for name in self.names:
            done = all(state.done for state in _of_method(name, states).values())
            self.log(name).cut(_of_method(name, recorded), None if done else self.made)

    def _turn(self, runs: Sequence[Run], states: dict[Run, State], begun: Begun) -> dict[Run, Round]:
        """Turn these runs once, and record that."""
        after, rounds = step(self.simulation, [states[run] for run in runs], begun)
        states |= zip(runs, after, strict=True)
        found = dict(zip(runs, rounds, strict=True))
        for name in self.names:
            self.log(name).append(_of_method(name, found))
        return found

    def _search(self, run: Run, states: dict[Run, State]) -> dict[Run, Round]:
        """Let the oracle search from the first labels of one seed, and record what is not yet recorded."""
        name, seed = run
        rounds = BeamSearch().run(self.simulation, seed)
        for turn in rounds[states[run].fits :]:
            states[run] = states[run].after(turn)
            self.log(name).append({seed: turn})
        return {run: rounds[-1]}


def _whole_turns(recorded: Mapping[Run, list[Round]]) -> dict[Run, list[Round]]:
    """Keep the turns that all runs side by side have, except those that had ended before."""
    going_on = [rounds for rounds in recorded.values() if not rounds or rounds[-1].chosen]
    turns = min(map(len, going_on), default=None)
    return {run: rounds[:turns] for run, rounds in recorded.items()}


def _of_method(name: str, values: Mapping[Run, Value]) -> dict[int, Value]:
    """Select the runs of one method: seed -> value."""
    return {seed: value for (method, seed), value in values.items() if method == name}


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


def _commit() -> str:
    """Return the commit that is checked out, if there is one; a copy without git can set CORESIFT_COMMIT."""
    # A package installed inside another repository is not part of its history.
    return _git("ls-files", __file__) and _git("describe", "--always", "--dirty")


def _git(*words: str) -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    where = Path(__file__).parent
    found = subprocess.run([git, *words], cwd=where, capture_output=True, text=True, check=False)
    return found.stdout.strip()
