"""Choosing a batch once vectors exist, on a CPU: against the obvious way, and against what memory has.

    python benchmarks/selection.py [results.json]

The two are measured turn about, since a machine's speed wanders.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from coresift.selectors import LCMD, FrankWolfe, KCenter
from coresift.selectors.sparse import Target
from coresift.spaces import VectorSpace

SIZE, BUDGET, TURNS = 1_000_000, 1000, 8


def obvious_steps(rows: Tensor, steps: int) -> list[int]:
    """Algorithm 1 as it reads: rows (N, J), normalised again in each step, weights of size N updated too."""
    total, sigma = rows.sum(0), rows.norm(dim=1).sum()
    weights = torch.zeros(len(rows))
    chosen = []
    for _ in range(steps):
        norms = rows.norm(dim=1)
        position = weights @ rows
        n = int(((rows / norms[:, None]) @ (total - position)).argmax())
        towards = sigma / norms[n] * rows[n] - position
        gamma = float((towards @ (total - position)) / (towards @ towards))
        weights = (1 - gamma) * weights
        weights[n] += gamma * sigma / norms[n]
        chosen.append(n)
    return chosen


class Steps:
    """Frank-Wolfe steps as `FrankWolfe` makes them, for as long as one likes."""

    def __init__(self, space: VectorSpace) -> None:
        self.space = space
        self.search = space.scan(space.selectable)
        target = Target(space.total(), space.squared_total(), space.norm_total())
        self.fit = FrankWolfe()._fit(space, target)

    def __call__(self, num: int) -> list[int]:
        chosen = []
        for _ in range(num):
            n = self.fit.best(self.search)
            self.fit.step(n, self.space.coordinates(n))
            chosen.append(n)
        return chosen


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def vectors_of(dimensions: int) -> Tensor:
    """(J, N) points of a few hundred kinds, with a mean: as likelihoods come out."""
    generator = torch.Generator().manual_seed(dimensions)
    kinds = torch.randn(dimensions, 300, generator=generator)
    which = torch.randint(300, (SIZE,), generator=generator)
    return kinds[:, which] + 0.7 * torch.randn(dimensions, SIZE, generator=generator) + 0.3


def measure(dimensions: int) -> dict[str, float]:
    vectors = vectors_of(dimensions)
    rows, space, numbers = vectors.mT.contiguous(), VectorSpace(vectors), torch.ones(10**8)
    assert Steps(space)(5) == obvious_steps(rows, 5), "the two do not choose the same"
    search = space.scan(space.selectable)
    direction = space.total() / space.total().norm()
    # A scan that finds no more than the winner, as most do.
    best = search.argmax(direction)
    likely = float(
        direction @ space.columns_at(torch.tensor([best]))[:, 0] / space.norm_at(torch.tensor([best]))
    )
    times: dict[str, list[float]] = {name: [] for name in ("obvious", "step", "scan", "read")}
    for _ in range(TURNS):
        times["obvious"].append(seconds(lambda: obvious_steps(rows, 4)) / 4)
        # From the start each time: where the target is reached there is nothing left to scan for.
        steps = Steps(space)
        times["step"].append(seconds(lambda steps=steps: steps(40)) / 40)
        times["scan"].append(min(seconds(lambda: search._scan(direction, likely)) for _ in range(5)))
        times["read"].append(min(seconds(lambda: float(numbers.sum())) for _ in range(3)))
    middle = {name: median(values) for name, values in times.items()}
    scan_rate, read_rate = vectors.nbytes / middle["scan"] / 1e9, 0.4 / middle["read"]
    found = {
        "obvious way, ms a step": 1e3 * middle["obvious"],
        "Frank-Wolfe, ms a step": 1e3 * middle["step"],
        "times as fast, median": middle["obvious"] / middle["step"],
        "times as fast, least of the turns": min(
            a / b for a, b in zip(times["obvious"], times["step"], strict=True)
        ),
        "scan alone, ms": 1e3 * middle["scan"],
        "scan, GB/s": scan_rate,
        "read, GB/s": read_rate,
        "scan as a share of read": scan_rate / read_rate,
        "share of scans saved": 1 - steps.search.made / steps.search.asked,
    }
    whole = seconds(lambda: FrankWolfe().select(space, BUDGET))
    found[f"Frank-Wolfe, s for {BUDGET} points"] = whole
    for name, selector in (("LCMD", LCMD()), ("k-center", KCenter())):
        # Scans before and after, for what the machine's speed was meanwhile.
        before = min(seconds(lambda: search._scan(direction, likely)) for _ in range(10))
        taken = seconds(lambda selector=selector: selector.select(space, BUDGET)) / BUDGET
        after = min(seconds(lambda: search._scan(direction, likely)) for _ in range(10))
        found[f"{name}, ms a step"] = 1e3 * taken
        found[f"{name}, in scans"] = taken / ((before + after) / 2)
    found["peak memory, GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return found


def saved_in(dimensions: int) -> float:
    """The share of scans that the bound on all other points saves."""
    steps = Steps(VectorSpace(vectors_of(dimensions)[:, :100_000].contiguous()))
    steps(300)
    return 1 - steps.search.made / steps.search.asked


def main() -> None:
    results: dict[str, dict[str, float]] = {}
    for dimensions in (10, 100):
        found = results[f"J = {dimensions}"] = measure(dimensions)
        print(f"N = {SIZE:,}, J = {dimensions}, {torch.get_num_threads()} threads")
        for name, value in found.items():
            print(f"  {name:40s} {value:.4g}")
    results["share of scans saved, N = 100,000, 300 steps"] = {
        f"J = {j}": saved_in(j) for j in (2, 3, 5, 10, 30)
    }
    print(
        "share of scans saved, N = 100,000, 300 steps",
        results["share of scans saved, N = 100,000, 300 steps"],
    )
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
