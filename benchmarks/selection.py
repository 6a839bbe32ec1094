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

from coresift.search import centre_distances, cosine_search
from coresift.selectors import LCMD, FrankWolfe
from coresift.spaces import VectorSpace
from coresift.spaces.base import selectable
from coresift.spaces.vectors import InMemory

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


def scan_of(space: VectorSpace) -> Callable[[], float]:
    """Measures one scan for the best match."""
    search = cosine_search(space, selectable(space))
    direction = space.total() / space.total().norm()
    return lambda: min(seconds(lambda: search.argmax(direction)) for _ in range(5))


def measure(dimensions: int) -> dict[str, float]:
    vectors = vectors_of(dimensions)
    rows, space, numbers = vectors.mT.contiguous(), VectorSpace(vectors), torch.ones(10**8)
    published = FrankWolfe(fill=False).select(space, 5).index
    assert sorted(published) == sorted(set(obvious_steps(rows, 5))), "the two do not choose the same"
    scan = scan_of(space)
    turns: list[dict[str, float]] = []
    for _ in range(TURNS):
        turn = {"read": min(seconds(lambda: float(numbers.sum())) for _ in range(5))}
        turn["obvious"] = seconds(lambda: obvious_steps(rows, 8)) / 8
        before = scan()
        turn["fw"] = seconds(lambda: FrankWolfe().select(space, BUDGET)) / BUDGET
        turn["lcmd"] = seconds(lambda: LCMD().select(space, BUDGET)) / BUDGET
        turn["scan"] = (before + scan()) / 2
        turn["obvious"] = (turn["obvious"] + seconds(lambda: obvious_steps(rows, 8)) / 8) / 2
        turns.append(turn)

    def middle(value: Callable[[dict[str, float]], float]) -> float:
        return median(value(turn) for turn in turns)

    return {
        "obvious way, ms a step": middle(lambda turn: 1e3 * turn["obvious"]),
        "Frank-Wolfe, ms a point": middle(lambda turn: 1e3 * turn["fw"]),
        "times as fast": middle(lambda turn: turn["obvious"] / turn["fw"]),
        "scan alone, ms": middle(lambda turn: 1e3 * turn["scan"]),
        # A scan reads one over the norms too.
        "scan as a share of read": middle(
            lambda turn: SIZE * (dimensions + 1) / turn["scan"] / (len(numbers) / turn["read"])
        ),
        "read, GB/s": middle(lambda turn: 0.4 / turn["read"]),
        "LCMD, ms a step": middle(lambda turn: 1e3 * turn["lcmd"]),
        "LCMD, in scans": middle(lambda turn: turn["lcmd"] / turn["scan"]),
        "peak memory, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def first_steps(offset: float, size: int = SIZE, dimensions: int = 100) -> list[float]:
    """LCMD's first ten steps, in plain products of all vectors with one; in a narrow cone with an offset."""
    generator = torch.Generator().manual_seed(0)
    vectors = InMemory.empty(dimensions, size, torch.float32, torch.device("cpu")).values
    space = VectorSpace(vectors.normal_(offset, generator=generator))
    direction = torch.ones(dimensions)
    distances = centre_distances(space, selectable(space), np.empty(0, dtype=np.int64), 10)

    def step() -> None:
        distances.add(distances.farthest(distances.largest_cluster()))

    def product() -> float:
        return min(seconds(lambda: torch.mv(vectors.mT, direction)) for _ in range(3))

    return [seconds(step) / product() for _ in range(10)]


def main() -> None:
    results: dict[str, dict[str, float]] = {}
    for threads, dimensions in product(sorted({1, torch.get_num_threads()}), (10, 100)):
        torch.set_num_threads(threads)
        title = f"N = {SIZE:,}, J = {dimensions}, {threads} thread{'s'[: threads > 1]}"
        print(title)
        found = results[title] = measure(dimensions)
        for name, value in found.items():
            print(f"  {name:40s} {value:.4g}")
    for offset in (0.0, 16.0, 100.0, 300.0):
        steps = first_steps(offset)
        results[f"LCMD's first steps at an offset of {offset:g}, in products"] = {
            str(number): step for number, step in enumerate(steps, 1)
        }
        print(f"LCMD's first steps at an offset of {offset:g}, in products:", [round(s, 1) for s in steps])
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
