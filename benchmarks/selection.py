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
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from coresift.selectors import LCMD, FrankWolfe
from coresift.spaces import VectorSpace
from coresift.spaces.leaders import Scan
from coresift.spaces.storage import InMemory

SIZE, BUDGET, TURNS = 1_000_000, 1000, 2


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


class Watched(VectorSpace):
    """Keeps its searches, which count the scans they make."""

    def scan(self, allowed: Tensor, once: bool = False) -> Scan:
        self.searches = [*getattr(self, "searches", []), super().scan(allowed, once)]
        return self.searches[-1]

    def scans(self) -> tuple[int, int]:
        """How many winners were asked for, and how many scans that took; from now on counted anew."""
        asked = sum(search.asked for search in self.searches)
        made = sum(search.made for search in self.searches)
        self.searches = []
        return asked, made


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def vectors_of(dimensions: int) -> Tensor:
    """(J, N) points of a few hundred kinds, with a mean: as likelihoods come out."""
    generator = torch.Generator().manual_seed(dimensions)
    kinds = torch.randn(dimensions, 300, generator=generator)
    which = torch.randint(300, (SIZE,), generator=generator)
    vectors = InMemory.empty(dimensions, SIZE, torch.float32, torch.device("cpu")).values
    return vectors.normal_(0.3, 0.7, generator=generator).add_(kinds[:, which])


def measure(dimensions: int) -> dict[str, float]:
    vectors = vectors_of(dimensions)
    rows, space, numbers = vectors.mT.contiguous(), Watched(vectors), torch.ones(10**8)
    published = FrankWolfe(fill=False).select(space, 5).index
    assert sorted(published) == sorted(set(obvious_steps(rows, 5))), "the two do not choose the same"
    search = space.scan(space.selectable)
    direction = space.total() / space.total().norm()

    def scan() -> float:
        """One that finds no more than the winner, as most do."""
        return min(seconds(lambda: search._scan(direction, False)) for _ in range(5))

    turns: list[dict[str, float]] = []
    for _ in range(TURNS):
        turn = {"read": min(seconds(lambda: float(numbers.sum())) for _ in range(5))}
        turn["obvious"] = seconds(lambda: obvious_steps(rows, 8)) / 8
        before, _ = scan(), space.scans()
        turn["fw"] = seconds(lambda: FrankWolfe().select(space, BUDGET))
        turn["asked"], turn["made"] = space.scans()
        turn["lcmd"] = seconds(lambda: LCMD().select(space, BUDGET)) / BUDGET
        turn["scan"] = (before + scan()) / 2
        turn["obvious"] = (turn["obvious"] + seconds(lambda: obvious_steps(rows, 8)) / 8) / 2
        turns.append(turn)

    def middle(value: Callable[[dict[str, float]], float]) -> float:
        return median(value(turn) for turn in turns)

    return {
        "obvious way, ms a step": middle(lambda turn: 1e3 * turn["obvious"]),
        "Frank-Wolfe, ms a step": middle(lambda turn: 1e3 * turn["fw"] / turn["asked"]),
        "times as fast, a step": middle(lambda turn: turn["obvious"] * turn["asked"] / turn["fw"]),
        f"Frank-Wolfe, s for {BUDGET} points": middle(lambda turn: turn["fw"]),
        f"times as fast, {BUDGET} points": middle(lambda turn: BUDGET * turn["obvious"] / turn["fw"]),
        "scan alone, ms": middle(lambda turn: 1e3 * turn["scan"]),
        # Beside the vectors, a scan reads one over their norms.
        "scan as a share of read": middle(
            lambda turn: SIZE * (dimensions + 1) / turn["scan"] / (len(numbers) / turn["read"])
        ),
        "read, GB/s": middle(lambda turn: 0.4 / turn["read"]),
        "LCMD, ms a step": middle(lambda turn: 1e3 * turn["lcmd"]),
        "LCMD, in scans": middle(lambda turn: turn["lcmd"] / turn["scan"]),
        "peak memory, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def saved_in(dimensions: int, size: int) -> float:
    """The share of Algorithm 1's scans that the bound on all other points saves, until the sum is reached."""
    space = Watched(vectors_of(dimensions)[:, :size].contiguous())
    FrankWolfe(fill=False).select(space, 300)
    asked, made = space.scans()
    return 1 - made / asked


def in_a_cone(offset: float, size: int = SIZE, dimensions: int = 100) -> list[float]:
    """LCMD's first ten steps, in scans, where all vectors are nearly parallel: a common offset and noise."""
    generator = torch.Generator().manual_seed(0)
    vectors = InMemory.empty(dimensions, size, torch.float32, torch.device("cpu")).values
    space = VectorSpace(vectors.normal_(offset, generator=generator))
    search, direction = space.scan(space.selectable), space.total() / space.total().norm()
    scan = min(seconds(lambda: search._scan(direction, False)) for _ in range(5))
    centres = space.centres(space.selectable, np.empty(0, dtype=np.int64))
    steps = []
    for _ in range(10):
        n = LCMD()._next(centres, generator)
        assert n is not None
        steps.append(seconds(lambda n=n: centres.add(n)) / scan)
    return steps


def main() -> None:
    results: dict[str, dict[str, float]] = {}
    for threads, dimensions in product(sorted({1, torch.get_num_threads()}), (10, 100)):
        torch.set_num_threads(threads)
        title = f"N = {SIZE:,}, J = {dimensions}, {threads} thread{'s'[: threads > 1]}"
        print(title)
        found = results[title] = measure(dimensions)
        for name, value in found.items():
            print(f"  {name:40s} {value:.4g}")
    for size in (1000, 100_000):
        saved = {f"J = {j}": saved_in(j, size) for j in (2, 3, 5, 10, 30, 100)}
        results[f"share of scans saved, N = {size:,}"] = saved
        print(f"share of scans saved, N = {size:,}:", saved)
    for offset in (16.0, 300.0):
        steps = in_a_cone(offset)
        results[f"LCMD's first steps in a cone of offset {offset:g}, in scans"] = {
            str(number): step for number, step in enumerate(steps, 1)
        }
        print(f"LCMD's first steps in a cone of offset {offset:g}, in scans:", [round(s, 1) for s in steps])
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
