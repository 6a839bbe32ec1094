"""Seconds and memory to choose a batch of 20, by coresift's strategies and those of other libraries.

    pip install "coresift[bench]"
    python benchmarks/choices.py [results.json [only cases with this in their names]]

A made-up table of 20 columns, 200 labels, and one model for all: five networks, on one thread. Each case runs
in a process of its own. Its memory is what choosing adds to the memory held before. A case ends after
`PATIENCE` seconds or when it asks for more than `MEMORY`. It takes about 40 minutes.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 300
MEMORY = 12e9
BUDGET = 20
SIZES = (10**3, 10**4, 10**5)
OURS = {
    "classification": (
        "random",
        "margin",
        "bald",
        "badge",
        "k-center",
        "k-medoids",
        "acs-fw",
        "predictive-lcmd",
    ),
    "regression": (
        "random",
        "variance",
        "greedy-logdet",
        "k-center",
        "k-medoids",
        "acs-fw",
        "predictive-lcmd",
    ),
}


def cases() -> list[str]:
    """Task, strategy and pool size of each case."""
    from coresift.bench import peers

    theirs = {"classification": peers.CLASSIFICATION, "regression": peers.REGRESSION}
    return [
        f"{task} {strategy} {size:g}"
        for size in SIZES
        for task in OURS
        for strategy in (*OURS[task], *theirs[task])
    ]


def prepare(task: str, strategy: str, size: int) -> Callable[[], Any]:
    """Train the model; return what chooses."""
    import numpy as np

    from coresift import ArrayPool, select
    from coresift.bench.peers import Question, choose_by_peer, is_peer
    from coresift.estimators import EnsembleClassifier, EnsembleRegressor

    generator = np.random.default_rng(0)
    x = generator.normal(size=(size + 200, 20)).astype(np.float32)
    value = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * generator.normal(size=len(x))
    y = np.digitize(value, [-1, -0.3, 0.3, 1]) if task == "classification" else value
    model = EnsembleClassifier if task == "classification" else EnsembleRegressor
    fitted = model(num_members=5, epochs=100, random_state=0, progress=False).fit(x[:200], y[:200])
    posterior, pool = fitted.posterior_, x[200:]
    if is_peer(strategy):
        return lambda: choose_by_peer(strategy, Question(pool, x[:200], y[:200], posterior, BUDGET, 0))
    return lambda: select(
        ArrayPool(pool), budget=BUDGET, strategy=strategy, posterior=posterior, labelled=x[:200]
    )


def held(line: str) -> float:
    """Return a figure of the process's memory in bytes: VmRSS now, VmHWM at most."""
    status = Path("/proc/self/status").read_text()
    return 1024.0 * int(next(row for row in status.splitlines() if row.startswith(line)).split()[1])


def run_case(name: str) -> None:
    """Choose once on a small pool, so that everything is imported, then measure."""
    task, strategy, size = name.split()
    prepare(task, strategy, 100)()
    choose = prepare(task, strategy, int(float(size)))
    resource.setrlimit(resource.RLIMIT_DATA, (int(MEMORY), int(MEMORY)))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, start = held("VmRSS"), time.perf_counter()
    try:
        choose()
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        print(json.dumps({"stopped": f"more than {MEMORY / 1e9:.0f} GB"}))
        return
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "memory GB": (held("VmHWM") - before) / 1e9}))


def measured(name: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return {"stopped": f"more than {PATIENCE} s"}
    if done.returncode:
        return {"stopped": done.stderr.strip().splitlines()[-1] if done.stderr else f"exit {done.returncode}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def show(found: dict[str, dict[str, Any]]) -> None:
    """Print a Markdown table for each task: seconds and memory at each size."""
    for task in OURS:
        print(f"\n| {task} | " + " | ".join(f"N = {size:,}" for size in SIZES) + " |")
        print("|---|" + "--:|" * len(SIZES))
        strategies = dict.fromkeys(name.split()[1] for name in found if name.startswith(task))
        for strategy in strategies:
            cells = [_cell(found.get(f"{task} {strategy} {size:g}", {})) for size in SIZES]
            print(f"| {strategy} | " + " | ".join(cells) + " |")


def _cell(case: dict[str, Any]) -> str:
    if "seconds" in case:
        return f"{case['seconds']:.2g} s, {case['memory GB']:.2g} GB"
    return str(case.get("stopped", ""))


def main(results: str | None = None, only: str = "") -> None:
    found = {}
    for name in (name for name in cases() if only in name):
        found[name] = measured(name)
        print(name, found[name], flush=True)
        if results is not None:
            Path(results).write_text(json.dumps(found, indent=1))
    show(found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        run_case(sys.argv[2])
    else:
        main(*sys.argv[1:])
