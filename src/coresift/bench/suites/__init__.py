"""Suites of experiments: many data sets, several models, in one short file."""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from itertools import chain
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from coresift.bench.config import Experiment, read_toml
from coresift.bench.runner import run_experiment
from coresift.checks import check_integer
from coresift.errors import InputError, suggestion
from coresift.progress import now_and_then

PREFIX = "suite:"
LOOK_SECONDS = 2.0  # recorded rounds are counted this often


@dataclass(frozen=True)
class Suite:
    """Experiments on many data sets: one for each task and model.

    Attributes
    ----------
    name : of the folder for results.
    parts : experiments by their names, such as ``regression-forest``.
    """

    name: str
    parts: Mapping[str, Experiment]

    @classmethod
    def load(cls, named: str | Path) -> Suite:
        """Read a suite that comes with the package, ``suite:quick``, or a TOML file of the same form.

        >>> sorted(Suite.load("suite:oracle").parts)
        ['classification-forest', 'regression-forest']
        """
        path = _path(str(named))
        described = read_toml(path)
        shared = {name: value for name, value in described.items() if not isinstance(value, dict)}
        parts = {}
        for task, part in described.items():
            if task in shared:
                continue
            part = dict(part)
            models = part.pop("models", {"neural-linear": {}})
            for name, model in models.items():
                whole = {**shared, **part, "task": task, "model": model}
                parts[f"{task}-{name}"] = Experiment.of(whole, path)
        if not parts:
            raise InputError(
                f"{path} has no part: write data and methods below [regression] or [classification]"
            )
        return cls(path.stem, parts)

    def only(self, data: Iterable[str] = (), methods: Iterable[str] = ()) -> Suite:
        """Return the part of the suite with these data sets and methods; all where none are named."""
        parts = self.parts.values()
        wanted = _known(data, [*chain.from_iterable(part.data for part in parts)], "--data")
        names = _known(methods, [*chain.from_iterable(part.methods for part in parts)], "--methods")
        both = {
            name: ([*filter(wanted.__contains__, part.data)], [*filter(names.__contains__, part.methods)])
            for name, part in self.parts.items()
        }
        return Suite(
            self.name, {name: self.parts[name].only(*kept) for name, kept in both.items() if all(kept)}
        )

    def with_seeds(self, seeds: int) -> Suite:
        """Return the suite with another number of seeds."""
        return Suite(self.name, {name: replace(part, seeds=seeds) for name, part in self.parts.items()})


def is_suite(named: str | Path) -> bool:
    """Return whether a name or a file stands for a suite: its tasks are tables of the file."""
    path = Path(str(named))
    if str(named).startswith(PREFIX):
        return True
    return path.is_file() and bool({"regression", "classification"} & read_toml(path).keys())


def run_suite(
    suite: Suite, out: Path, *, folder: Path | None = None, device: str = "cpu", workers: int = 1
) -> None:
    """Run what is not yet in ``out``: data sets side by side in processes, each with one thread.

    Parameters
    ----------
    folder : where the tables are.
    device : where networks are trained.
    workers : processes.
    """
    workers = check_integer(workers, 1, "workers")
    tasks = [(name, part.only([data])) for name, part in suite.parts.items() for data in part.data]
    totals: dict[Path, int] = {}  # log of a method -> its rounds
    for name, part in tasks:
        (data,) = part.data  # all files are checked before the first long computation
        simulation = part.simulation(data, folder, device, 1)
        rounds = 1 + math.ceil(simulation.budget / simulation.batch)
        totals |= {out / name / data / f"{method}.jsonl": part.seeds * rounds for method in part.methods}
    context = multiprocessing.get_context("spawn")  # a fork of a process that has used torch can hang
    executor = ProcessPoolExecutor(workers, context, initializer=_end_with_parent)
    with _progress(suite.name, totals) as show, executor as pool:
        running = {pool.submit(_run, part, out / name, folder, device) for name, part in tasks}
        while running:
            finished, running = wait(running, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()  # raises what the process raised
            show()


def _run(part: Experiment, out: Path, folder: Path | None, device: str) -> None:
    """Run one data set, in a process of its own."""
    torch.set_num_threads(1)
    run_experiment(part, out, folder=folder, device=device, console=Console(quiet=True))


def _end_with_parent() -> None:
    """Let this process end when its parent does, even when that is killed: a data set can take an hour."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker of a pool has a parent"

    def wait_for_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()


@contextmanager
def _progress(name: str, totals: Mapping[Path, int]) -> Iterator[Callable[[], None]]:
    """Show how many rounds are recorded in each log, of its total, and the time left."""
    console = Console(stderr=True)
    columns = (
        "{task.description}",
        BarColumn(),
        "{task.fields[latest]}",
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        before = sum(map(_rounds_in, totals))
        task = progress.add_task(name, total=sum(totals.values()), completed=before, latest="")
        started, total = time.monotonic(), sum(totals.values())

        def line(done: int, complete: str) -> str:
            seconds = (time.monotonic() - started) / max(done - before, 1) * (total - done)
            left = f"about {math.ceil(seconds / 60)} minutes left"
            return f"{name}: {complete}, {done / total:.0%} of the rounds, {left}"

        say = now_and_then(lambda text: console.print(text, soft_wrap=True))

        def show() -> None:
            counts = {path: _rounds_in(path) for path in totals}
            begun = {path.parent for path in totals if counts[path] < totals[path]}
            folders = {path.parent for path in totals}
            complete = f"{len(folders - begun)} of {len(folders)} data sets"
            progress.update(task, completed=sum(counts.values()), latest=complete)
            if not console.is_terminal:
                say(line(sum(counts.values()), complete))

        yield show


def _rounds_in(log: Path) -> int:
    """Count the rounds in a method's log on a data set, which are lines after the first."""
    return max(log.read_bytes().count(b"\n") - 1, 0) if log.exists() else 0


def _path(named: str) -> Path:
    if not named.startswith(PREFIX):
        return Path(named)
    folder = Path(str(resources.files(__package__)))
    known = sorted(path.stem for path in folder.glob("*.toml"))
    name = named.removeprefix(PREFIX)
    if name not in known:
        raise InputError(f"there is no suite {name!r}; {suggestion(name, known)}")
    return folder / f"{name}.toml"


def _known(words: Iterable[str], known: Sequence[str], where: str) -> set[str]:
    """Return the words, or all that are known where there are none."""
    for word in (found := list(words)):
        if word not in known:
            raise InputError(f"{where}: {word!r} is not known; {suggestion(word, sorted(set(known)))}")
    return set(found or known)
