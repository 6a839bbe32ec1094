"""Time work on one thread, on all threads, and on as many as coresift chooses; idle and on a busy machine.

    python benchmarks/threads.py [results.json [only cases with this in their names]]

Each case runs in processes of its own, the three ways in turn, `ROUNDS` times; the median counts. The machine
is made busy by one endless loop for each core that this process may use (`taskset -c 0,1` for two); nothing
else should run meanwhile. After `PATIENCE` seconds a process is stopped, its time is a lower bound, and it is
not repeated. It takes about 25 minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

# Within a process a case is repeated at least this often and for this many seconds, up to a limit: the median
# of three times 20 ms would be noise.
TURNS, LEAST_SECONDS, MOST_SECONDS = 3, 1.0, 2.0
# Processes for each case and way. A single one may be half as fast as the next: 2.5 s and 3.8 s for a million
# points with all threads, on an idle machine.
ROUNDS = 3
PATIENCE = 30.0
WAYS = ("one", "all", "chosen")


def fit() -> Callable[[], object]:
    """The first example of the README: a small network, and one batch."""
    import numpy as np

    from coresift import select
    from coresift.estimators import NeuralLinearRegressor

    generator = np.random.default_rng(0)
    x, pool = generator.normal(size=(60, 8)), generator.normal(size=(1000, 8))
    y = x[:, 0] + generator.normal(size=60)

    def work() -> None:
        model = NeuralLinearRegressor(epochs=60, random_state=0, progress=False).fit(x, y)
        select(pool, budget=10, posterior=model.posterior_)

    return work


def fit_ensemble() -> Callable[[], object]:
    import numpy as np

    from coresift.estimators import EnsembleClassifier

    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(1000, 20)), generator.integers(0, 3, 1000)
    return lambda: EnsembleClassifier(epochs=60, random_state=0, progress=False).fit(x, y)


def select_from(size: int, strategy: str) -> Callable[[], object]:
    import torch

    from coresift import select

    logits = torch.randn(10, size, 5, generator=torch.Generator().manual_seed(0))
    probs = torch.softmax(logits, -1)
    return lambda: select(probs=probs, budget=50, strategy=strategy)


def demo() -> Callable[[], object]:
    from rich.console import Console

    from coresift.bench.demo import run

    folder = tempfile.mkdtemp()
    return lambda: run(Path(folder, "demo"), num_seeds=2, console=Console(quiet=True))


def commands() -> Callable[[], object]:
    """A labelling project of two rounds."""
    import pandas as pd
    from sklearn.datasets import load_diabetes
    from typer.testing import CliRunner

    from coresift.cli import app

    folder = Path(tempfile.mkdtemp())
    table = load_diabetes(as_frame=True).frame.rename_axis("id").reset_index()
    table["target"] = table.target.where(table.index < 60)
    table.to_csv(folder / "pool.csv", index=False)

    def call(*words: object) -> None:
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == 0, result.output

    def work() -> None:
        project = Path(tempfile.mkdtemp(dir=folder))
        batch = project / "batch.csv"
        call("init", project, "--pool", folder / "pool.csv", "--target", "target", "--id", "id")
        call("select", project, "--batch-size", 10, "--out", batch)
        answers = pd.read_csv(batch)
        answers["target"] = 100.0 + answers.index
        answers.to_csv(batch, index=False)
        call("ingest", project, batch)
        call("select", project, "--batch-size", 10, "--out", batch)

    return work


CASES: dict[str, Callable[[], Callable[[], object]]] = {
    "fit 60 rows, select": fit,
    "fit an ensemble": fit_ensemble,
    **{
        f"select {strategy} N = {size:g}": lambda size=size, strategy=strategy: select_from(size, strategy)
        for size in (10**3, 10**5, 10**6)
        for strategy in ("predictive-lcmd", "acs-fw")
    },
    "demo, two seeds": demo,
    "commands": commands,
}


def run_case(name: str, way: str) -> None:
    """Do the work a few times; print the median of its seconds."""
    from coresift import threads

    if way == "all":
        threads._use = lambda _: None  # nothing is changed
    work = CASES[name]()
    times: list[float] = []
    while (len(times) < TURNS or sum(times) < LEAST_SECONDS) and sum(times) < MOST_SECONDS:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    print(median(times))


def seconds(name: str, way: str) -> float:
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    if way == "one":
        environment["OMP_NUM_THREADS"] = "1"
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--case", name, way],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return PATIENCE
    if done.returncode:
        raise RuntimeError(done.stderr)
    return float(done.stdout.split()[-1])


def interleaved(name: str) -> dict[str, float]:
    """Return the median seconds of each way; the ways take turns, since a machine's speed varies."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, found in times.items():
            if PATIENCE not in found:
                found.append(seconds(name, way))
    return {way: median(found) for way, found in times.items()}


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Have so many endless loops run beside."""
    loop = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"  # until this process ends
    running = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in running:
            process.kill()


def main(results: str | None = None, only: str = "") -> None:
    from rich.console import Console
    from rich.table import Table

    from coresift.threads import usable_cores

    found = []
    table = Table("machine", "work", *WAYS, "chosen / better", title="seconds")
    for machine, loops in (("idle", 0), ("busy", len(usable_cores()))):
        with busy(loops):
            for name in (name for name in CASES if only in name):
                times = interleaved(name)
                ratio = times["chosen"] / min(times["one"], times["all"])
                found.append({"machine": machine, "work": name, **times, "ratio": ratio})
                table.add_row(machine, name, *(f"{times[way]:.3f}" for way in WAYS), f"{ratio:.2f}")
                print(found[-1], flush=True)
    Console().print(table)
    if results is not None:
        Path(results).write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        run_case(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
