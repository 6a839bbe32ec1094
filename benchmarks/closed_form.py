"""Closed-form ACS against the obvious N x N implementation, and Student's t entropy against a loop.

Every figure is a ratio to a baseline measured in the same run; each part runs in a process of its own, so
that its peak memory above the interpreter's is its own. Usage: python benchmarks/closed_form.py [--quick]
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import coresift
from coresift.posteriors import BayesianLinearRegression
from coresift.special import student_t_entropy


def problem(size: int, width: int = 30) -> tuple[torch.Tensor, coresift.posteriors.LinearPosterior]:
    generator = torch.Generator().manual_seed(0)
    pool = torch.randn(size, width, generator=generator, dtype=torch.float64)
    labelled = torch.randn(50, width, generator=generator, dtype=torch.float64)
    return pool, BayesianLinearRegression(noise_variance=0.5).fit(labelled, labelled[:, 0])


def obvious(size: int, budget: int) -> list[int]:
    """Algorithm 1 as one would first write it: the whole kernel matrix, weights of size N in each step."""
    pool, posterior = problem(size)
    kernel = (pool @ pool.mT) * (pool @ posterior.covariance @ pool.mT) / posterior.noise_variance**2
    sigmas = kernel.diagonal().sqrt()
    sigma, ones, weights = sigmas.sum(), torch.ones(size).double(), torch.zeros(size).double()
    chosen: list[int] = []
    while len(chosen) < budget:
        best = int(((ones - weights) @ kernel / sigmas).argmax())
        vertex = torch.zeros(size, dtype=torch.float64)
        vertex[best] = sigma / sigmas[best]
        step = vertex - weights
        gamma = (step @ kernel @ (ones - weights)) / (step @ kernel @ step)
        weights = (1 - gamma) * weights + gamma * vertex
        chosen.append(best)
    return chosen


def ours(size: int, budget: int, strategy: str = "acs-fisher") -> list[int]:
    pool, posterior = problem(size)
    return coresift.select(pool, posterior=posterior, budget=budget, strategy=strategy).index.tolist()


def entropy_loop(size: int) -> None:
    scales = torch.rand(size).double() + 0.1
    for scale in scales:
        torch.distributions.StudentT(7.0, 0.0, scale).entropy()


def entropy_ours(size: int) -> None:
    student_t_entropy(7.0, torch.rand(size).double() + 0.1)


def measure(function: Callable[..., object], *arguments: object) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds, and peak megabytes above the loaded interpreter."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as workers:
        return workers.apply(_measured, (function, arguments))


def _measured(function: Callable[..., object], arguments: tuple[object, ...]) -> tuple[float, float, float]:
    torch.ones(300, 300) @ torch.ones(300, 300)  # threads and libraries are loaded before the clock starts
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    function(*arguments)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return wall, cpu, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    quick = "--quick" in sys.argv
    size, large = (2_000, 20_000) if quick else (10_000, 1_000_000)
    table = Table(title=f"d = 30, b = 100; torch on {torch.get_num_threads()} threads")
    for heading in ("what", "wall s", "CPU s", "peak MB", "times faster (CPU)", "times smaller"):
        table.add_column(heading, justify="left" if heading == "what" else "right")

    def row(what: str, result: tuple[float, float, float], baseline: tuple[float, float, float]) -> None:
        wall, cpu, memory = result
        ratios = (
            ("", "") if result is baseline else (f"{baseline[1] / cpu:.0f}", f"{baseline[2] / memory:.0f}")
        )
        table.add_row(what, f"{wall:.3f}", f"{cpu:.3f}", f"{memory:.0f}", *ratios)

    baseline = measure(obvious, size, 100)
    row(f"N x N, N = {size:,}", baseline, baseline)
    for strategy in ("acs-fisher", "acs-fw", "acs-lcmd"):
        row(f"{strategy}, N = {size:,}", measure(ours, size, 100, strategy), baseline)
    # What the N x N way would take: time and memory grow with the square of N.
    scaled = tuple(np.array(baseline) * (large / size) ** 2)
    for strategy in ("acs-fisher", "acs-fw", "acs-lcmd"):
        row(
            f"{strategy}, N = {large:,} (against N x N scaled up)",
            measure(ours, large, 100, strategy),
            scaled,
        )
    loop = measure(entropy_loop, 2_000)
    loop = (loop[0] * 50, loop[1] * 50, loop[2])
    table.add_section()
    row("Student's t entropy, a loop (2,000 points x 50)", loop, loop)
    row("Student's t entropy, 100,000 points", measure(entropy_ours, 100_000), loop)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
