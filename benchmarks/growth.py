"""How the cost of a step grows with the pool, the batch and the dimensions; and a limit on memory, kept.

    python benchmarks/growth.py [FOLDER] [--largest 1e8]

Writes growth.json and growth.png into the folder, ``growth`` by default. Each point is measured in a process
of its own. Ten million points and more are measured with the vectors on disk, too.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import coresift
from coresift.posteriors import BayesianLinearRegression
from coresift.report.figures import save
from coresift.selectors import LCMD, FrankWolfe, Selector, VarianceReduction
from coresift.spaces import VectorSpace
from coresift.spaces.vectors import OnDisk

SELECTORS: dict[str, Selector] = {
    "Frank-Wolfe": FrankWolfe(),
    "LCMD": LCMD(),
    "Variance reduction": VarianceReduction(),
}
IN_MEMORY = 10_000_000


def one(name: str, size: int, dimensions: int, budget: int, on_disk: bool = False) -> dict[str, float]:
    """Seconds for a batch, and the most memory."""
    generator = torch.Generator().manual_seed(0)
    if not on_disk:
        space = VectorSpace(torch.randn(dimensions, size, generator=generator).add_(0.3))
    else:
        columns = OnDisk(dimensions, size, torch.float32, 65536)
        for part in columns.parts():
            columns.part(part).copy_(
                torch.randn(dimensions, part.stop - part.start, generator=generator) + 0.3
            )
        space = VectorSpace(columns)
    start = time.perf_counter()
    SELECTORS[name].select(space, budget)
    return {"seconds": time.perf_counter() - start, "peak GB": peak()}


def limited(strategy: str, size: int, budget: int) -> dict[str, float]:
    """A batch from a file by `coresift.select`, with a gigabyte of memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pool.npy"
        rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(size, 3))
        random = np.random.default_rng(0)
        for start in range(0, size, 1_000_000):
            stop = min(start + 1_000_000, size)
            rows[start:stop] = random.standard_normal((stop - start, 3), dtype=np.float32)
        rows.flush()
        del rows
        torch.manual_seed(0)
        x = torch.randn(20, 3)
        posterior = BayesianLinearRegression(noise_variance=0.3).fit(x, x[:, 0])
        # The pages of the new file have counted so far.
        Path("/proc/self/clear_refs").write_text("5")
        start_time = time.perf_counter()
        batch = coresift.select(
            path,
            posterior=posterior,
            budget=budget,
            strategy=coresift.find_strategy(strategy, num_samples=10, exact=False),
            resources=coresift.Resources("1GB"),
        )
        lines = Path("/proc/self/status").read_text().splitlines()
        resident = next(int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith("VmHWM"))
        return {
            "seconds": time.perf_counter() - start_time,
            "points": len(set(batch.index.tolist())),
            "peak GB": resident,
        }


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def apart(call: str) -> dict[str, float]:
    """Run in a process of its own."""
    program = f"import sys, json; sys.path.insert(0, {str(Path(__file__).parent)!r}); import growth; "
    program += f"print(json.dumps(growth.{call}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def draw(results: dict[str, list[dict[str, float]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    panels = figure.subplots(1, 3)
    for axes, (along, label) in zip(
        panels, (("size", "points N"), ("budget", "batch b"), ("dimensions", "dimensions J")), strict=True
    ):
        for colour, name in enumerate(SELECTORS):
            per_step = along != "budget"
            for on_disk, line in ((False, "-"), (True, "--")):
                rows = [
                    row
                    for row in results[along]
                    if row["selector"] == name and row.get("on disk", False) == on_disk
                ]
                values = [row["seconds"] / (row["budget"] if per_step else 1) for row in rows]
                series = f"{name}, on disk" if on_disk else name
                if rows:
                    places = [row[along] for row in rows]
                    axes.loglog(places, values, line, color=f"C{colour}", marker="o", label=series)
        axes.set_xlabel(label)
        axes.set_ylabel("seconds a point chosen" if per_step else "seconds a batch")
        axes.grid(alpha=0.3)
    panels[0].legend(frameon=False)
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?", default=Path("growth"))
    parser.add_argument("--largest", type=float, default=1e8)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict[str, float]]] = {"size": [], "budget": [], "dimensions": [], "limit": []}

    def note(kind: str, row: dict[str, float]) -> None:
        print(kind, row, flush=True)
        results[kind].append(row)
        (arguments.folder / "growth.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

    for name in SELECTORS:
        for size in (10**4, 10**5, 10**6, 10**7, 10**8):
            for on_disk in (False, True):
                if size <= (arguments.largest if on_disk else IN_MEMORY) and (
                    size >= IN_MEMORY or not on_disk
                ):
                    row = {"selector": name, "size": size, "dimensions": 10, "budget": 50, "on disk": on_disk}
                    note("size", {**row, **apart(f"one({name!r}, {size}, 10, 50, {on_disk})")})
        for budget in (10, 100, 1000):
            row = {"selector": name, "size": 10**5, "dimensions": 100, "budget": budget}
            note("budget", {**row, **apart(f"one({name!r}, 100_000, 100, {budget})")})
        for dimensions in (3, 10, 30, 100, 300):
            row = {"selector": name, "size": 10**6, "dimensions": dimensions, "budget": 50}
            note("dimensions", {**row, **apart(f"one({name!r}, 1_000_000, {dimensions}, 50)")})
    draw(results, arguments.folder / "growth.png")
    for strategy in ("acs-fw", "acs-lcmd"):
        row = {"strategy": strategy, "size": arguments.largest, "dimensions": 10, "budget": 100}
        note("limit", {**row, **apart(f"limited({strategy!r}, {int(arguments.largest)}, 100)")})


if __name__ == "__main__":
    main()
