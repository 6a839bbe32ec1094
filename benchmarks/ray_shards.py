"""A pool in shards on this machine: what a step costs, and how much of that is Ray's.

Usage: python benchmarks/ray_shards.py [rows] [steps] [workers]

Rows lie in .npy files of a temporary folder, 12 bytes each; the posterior is that of a linear regression,
sampled, J = 10. The same shards are then asked the same in plain processes, over pipes: the difference is
Ray's. The points are compared with those chosen in memory. Mapping the pool is not part of a step.

A small pool comes first, whose steps are little else than questions and answers: there Ray's share is plain
to see, where in a large one it is less than what two runs differ by.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coresift.pool import Part, as_pool
from coresift.posteriors.linear import LinearPosterior
from coresift.search import cosine_search
from coresift.search.ray import RaySpace, ray_space
from coresift.search.shards import Shard, Shards, shard_starts
from coresift.spaces import Problem
from coresift.spaces.base import Space, selectable
from coresift.strategies import STRATEGIES

COLUMNS, NUM_SAMPLES, FILES = 3, 10, 16
STRATEGY = STRATEGIES["acs-fw"]  # all sections share its space


class Piped(Shards):
    """Shards in processes of this machine, without Ray."""

    def __init__(self, problem: Problem, num_workers: int) -> None:
        self.starts, self.state = shard_starts(len(problem.pool), num_workers), None
        self._parts = [Part(problem.pool, start, stop) for start, stop in pairwise(self.starts.tolist())]
        state, bare = problem.generator.get_state().numpy(), replace(problem, pool=None, generator=None)
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in self._parts]
        self._actors = [mine for mine, _ in pipes]
        for part, (_, theirs) in zip(self._parts, pipes, strict=True):
            arguments = theirs, STRATEGY.build, bare, part, state, 1
            context.Process(target=serve, args=arguments, daemon=True).start()

    def ask(self, method: str, arguments: Callable[[int], tuple[Any, ...]] = lambda _: ()) -> list[Any]:
        for number, actor in enumerate(self._actors):
            actor.send((method, arguments(number)))
        return [actor.recv() for actor in self._actors]

    def ask_one(self, number: int, method: str, *arguments: Any) -> Any:
        self._actors[number].send((method, arguments))
        return self._actors[number].recv()


def serve(pipe: Any, *arguments: Any) -> None:
    shard = Shard(*arguments)
    with suppress(EOFError):  # the other end is closed
        while True:
            method, details = pipe.recv()
            pipe.send(getattr(shard, method)(*details))


def write_pool(folder: Path, size: int) -> None:
    generator = np.random.default_rng(0)
    for number, rows in enumerate(np.array_split(np.arange(size), FILES)):
        part = generator.standard_normal((len(rows), COLUMNS), dtype=np.float32)
        np.save(folder / f"part-{number:03}.npy", part)


def problem(folder: Path) -> Problem:
    return Problem(
        pool=as_pool(folder),
        model=LinearPosterior(torch.zeros(COLUMNS), torch.eye(COLUMNS), noise_variance=1.0),
        num_samples=NUM_SAMPLES,
        generator=torch.Generator().manual_seed(0),
        exact=False,
    )


def scans(space: Space, steps: int) -> list[int]:
    """Scans for winners in directions that have nothing to do with each other: none can be saved."""
    generator = torch.Generator().manual_seed(1)
    directions = torch.randn(steps, NUM_SAMPLES, dtype=torch.float64, generator=generator)
    search = cosine_search(space, selectable(space))
    return [int(search.argmax(direction)) for direction in directions]


def batches(name: str) -> Callable[[Space, int], list[int]]:
    def run(space: Space, steps: int) -> list[int]:
        batch = STRATEGIES[name].selector.select(space, steps, seed=torch.Generator().manual_seed(2))
        chosen: list[int] = batch.index.tolist()
        return chosen

    return run


SECTIONS: list[tuple[str, Callable[[Space, int], list[int]]]] = [
    ("scans in new directions", scans),
    *((name, batches(name)) for name in ("acs-fw", "acs-lcmd", "acs-kmeans++")),
]


def timed(run: Callable[[Space, int], list[int]], space: Space, steps: int) -> tuple[float, list[int]]:
    """Milliseconds a step, without what all shards do before the first: that of a run of one step."""
    times = []
    for num in (1, 1, steps + 1):
        start = time.perf_counter()
        found = run(space, num)
        times.append(time.perf_counter() - start)
    return (times[-1] - times[1]) / steps * 1e3, found


def question(space: RaySpace) -> float:
    """Milliseconds for what takes the shards no time."""
    start = time.perf_counter()
    for _ in range(100):
        space.shards.ask("process")
    return (time.perf_counter() - start) * 10


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def compare(size: int, steps: int, workers: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pool(folder, size)
        print(f"\nN = {size:,}, J = {NUM_SAMPLES}, {steps} steps, {workers} workers, one thread each")
        start = time.perf_counter()
        with ray_space(STRATEGY, problem(folder), workers) as space:
            print(f"mapped by the workers, their start included: {time.perf_counter() - start:.1f} s")
            question(space)
            print(f"a question to all that takes them no time: {question(space):.2f} ms")
            shared = [timed(run, space, steps) for _, run in SECTIONS]
            each = ", ".join(f"{memory:.2f}" for _, memory in space.shards.ask("usage"))
            print(f"peak memory: driver {peak():.2f} GB, workers {each} GB")
        piped = RaySpace(Piped(problem(folder), workers), torch.Generator())
        print(f"the same question over pipes: {question(piped):.2f} ms")
        alone = [timed(run, piped, steps) for _, run in SECTIONS]
        del piped
        whole = STRATEGY.build(problem(folder))
        print(f"{'milliseconds a step':<26}{'on Ray':>10}{'pipes':>10}{'Ray':>8}{'in memory':>12}")
        for (what, run), (with_ray, found), (without, _) in zip(SECTIONS, shared, alone, strict=True):
            in_memory, expected = timed(run, whole, steps)
            same = "the same points" if found == expected else "OTHER POINTS"
            print(
                f"{what:<26}{with_ray:10.2f}{without:10.2f}{with_ray - without:8.2f}{in_memory:12.2f}  {same}"
            )


def main() -> None:
    arguments = [int(argument) for argument in sys.argv[1:]]
    size, steps, workers = arguments + [10_000_000, 50, os.cpu_count() or 1][len(arguments) :]
    torch.set_num_threads(1)
    compare(20_000, 300, workers)
    compare(size, steps, workers)


if __name__ == "__main__":
    main()
