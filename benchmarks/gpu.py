"""Selection loops on the GPU: steps a second, and the share of the memory's read bandwidth they reach.

Usage: PYTHONPATH=src python benchmarks/gpu.py results.json [--sweep]

Each section stands alone: one that fails prints why, and the others go on. ``--sweep`` also tries other
layouts of the scan. Vectors are random, and larger than the caches unless said otherwise.
"""

from __future__ import annotations

import functools
import json
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coresift.search.cuda import CentreSteps, Foreseen, FrankWolfeSteps, Layout

DEVICE = torch.device("cuda")
LARGE = 10_000_000
rows: list[dict[str, Any]] = []
# Milliseconds a Frank-Wolfe step by (N, J), and read bandwidth in GB/s: what later sections compare with.
step_time: dict[tuple[int, int], float] = {}
read_rate = float("nan")


def show(what: str, milliseconds: float, size: float = 0.0, **more: Any) -> None:
    """One line of the table; ``size`` is what has to be read at least, in bytes."""
    rate = size / milliseconds / 1e6
    row = {
        "what": what,
        "ms": milliseconds,
        "GB/s": rate,
        "share": rate / read_rate if size else None,
        **more,
    }
    rows.append(row)
    text = f"{what:<58}{milliseconds:10.4f} ms"
    text += f"{rate:9.0f} GB/s {rate / read_rate:7.1%}" if size else ""
    print(text, *(f" {key}={value}" for key, value in more.items()), flush=True)


def timed(action: Callable[[], Any], times: int = 1) -> float:
    """Milliseconds an action takes, the best of three goes at ``times`` times; first once to warm up."""
    action()
    best = float("inf")
    for _ in range(3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(times):
            action()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / times)
    return best


def draw(height: int, size: int, offset: float = 16.0) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors (J, N) float32, squared norms (N,) float64 and scale (N,) float32.

    Far from the origin, in a narrow cone: Frank-Wolfe then takes more than a thousand steps to the sum.
    """
    generator = torch.Generator(DEVICE).manual_seed(0)
    vectors = torch.randn(height, size, device=DEVICE, generator=generator).add_(offset)
    squares = torch.zeros(size, dtype=torch.float64, device=DEVICE)
    for row in vectors:
        squares += row.double().square_()
    return vectors, squares, squares.rsqrt().float()


def frank_wolfe(vectors: Tensor, squares: Tensor, scale: Tensor, **options: Any) -> Callable[[int], Foreseen]:
    """Runs of so many steps from w = 0; no point twice and no tolerance, so that none ends early."""
    open_scale = scale.clone()
    engine = FrankWolfeSteps(vectors, scale.clone(), **options)
    target = torch.stack([row.double().sum() for row in vectors])
    sigma, nothing = float(squares.sqrt().sum()), torch.zeros_like(target)

    def run(steps: int) -> Foreseen:
        engine.scale.copy_(open_scale)
        return engine.run(target, nothing, 0.0, 0.0, sigma, steps, close=True, tolerance=-1.0)

    return run


def centres(vectors: Tensor, squares: Tensor, **options: Any) -> Callable[..., Tensor]:
    """Runs of a given number of steps from the origin as the only centre, all points allowed."""
    size = vectors.shape[1]
    nearest, owner = squares.clone(), torch.zeros(size, dtype=torch.int32, device=DEVICE)
    sums = torch.zeros(5001, dtype=torch.float64, device=DEVICE)
    everywhere = torch.ones(size, dtype=torch.bool, device=DEVICE)
    engine = CentreSteps(vectors, squares, nearest, owner, sums, everywhere, 1, **options)

    def run(steps: int, largest_cluster: bool) -> Tensor:
        nearest.copy_(squares)
        owner.zero_()
        sums.zero_()
        sums[0] = squares.sum()
        engine.count = 1
        return engine.run(steps, largest_cluster)

    return run


def per_step(run: Callable[[int], Any], steps: int) -> tuple[float, int]:
    """Milliseconds a step, all told (copy to the host included), and how many steps were really made."""
    run(64)
    torch.cuda.synchronize()
    made, best = 0, float("inf")
    for _ in range(2):
        start = time.perf_counter()
        outcome = run(steps)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
        made = len(outcome.index if isinstance(outcome, Foreseen) else outcome)
    return best * 1e3 / max(made, 1), made


def correctness() -> None:
    """The kernels against plain torch in float64; with float32 sums a near tie may fall the other way."""

    def compare(name: str, fast: list[int], plain: list[int], also: bool = True) -> None:
        if fast == plain and also:
            verdict = "OK"
        else:
            differs = [i for i, (a, b) in enumerate(zip(fast, plain, strict=False)) if a != b]
            verdict = f"MISMATCH from step {differs[:1]}: {fast[:12]} but plain {plain[:12]}, rest {also}"
        print(f"{name}, {len(fast)} of {len(plain)} steps: {verdict}", flush=True)
        rows.append({"what": name, "verdict": verdict})

    for height, size in ((3, 20_000), (10, 20_000), (10, 20_011), (100, 20_011)):
        vectors, squares, scale = draw(height, size)
        plain = frank_wolfe(vectors, squares, scale, kernels=False)(100)
        for accumulator, half in ((torch.float64, False), (torch.float32, False), (torch.float64, True)):
            fast = frank_wolfe(vectors, squares, scale, accumulator=accumulator, half=half)(100)
            same = fast.index.tolist() == plain.index.tolist()
            near = same and torch.allclose(fast.square, plain.square, rtol=1e-9, atol=0)
            name = f"Frank-Wolfe J={height} N={size} {accumulator}{' half' if half else ''}"
            compare(name, fast.index.tolist(), plain.index.tolist(), near and fast.refused == plain.refused)
        for largest_cluster in (False, True):
            plain_index = centres(vectors, squares, kernels=False)(200, largest_cluster).tolist()
            name = f"{'LCMD' if largest_cluster else 'k-center'} J={height} N={size}"
            for go in ("", " again"):
                index = centres(vectors, squares)(200, largest_cluster).tolist()
                compare(name + go, index, plain_index)


def bandwidth() -> None:
    global read_rate
    large = torch.randn(1_000_000_000, device=DEVICE)
    size = large.numel() * 4
    elapsed = timed(lambda: large.sum(), 5)
    wide = timed(lambda: large.view(torch.float64).amax(), 5)
    read_rate = size / min(elapsed, wide) / 1e6
    show("read: torch sum of 4 GB", elapsed, size)
    show("read: torch maximum of 4 GB as float64", wide, size)
    half = large[: large.numel() // 2]
    show("copy of 2 GB, read and write counted", timed(lambda: half.clone(), 5), size)


def scans() -> None:
    """Steps of Frank-Wolfe; the reads that cannot be saved are the vectors and the scale."""
    for size, height in ((LARGE, 10), (LARGE, 100), (LARGE + 3, 10), (400_000, 10), (400_000, 100)):
        vectors, squares, scale = draw(height, size)
        for accumulator in (torch.float64, torch.float32):
            name = f"Frank-Wolfe N={size} J={height} {str(accumulator).removeprefix('torch.')}"
            elapsed, made = per_step(frank_wolfe(vectors, squares, scale, accumulator=accumulator), 1000)
            show(name, elapsed, 4 * size * (height + 1), steps=made)
            if accumulator == torch.float64:
                step_time[size, height] = elapsed


def half_scans() -> None:
    """Frank-Wolfe that scans float16 copies, beside the float32 scan; the copies are the least to read.

    In a narrow cone rounding hides the winner nearly everywhere, and most is read twice.
    """
    for size, height in ((LARGE, 10), (LARGE, 100), (400_000, 10), (400_000, 100)):
        for name, offset in (("all around", 0.5), ("narrow cone", 16.0)):
            vectors, squares, scale = draw(height, size, offset)
            run, plain = frank_wolfe(vectors, squares, scale, half=True), frank_wolfe(vectors, squares, scale)
            expected = plain(1000).index.tolist()
            (elapsed, made), (baseline, _) = (per_step(way, len(expected)) for way in (run, plain))
            show(
                f"Frank-Wolfe N={size} J={height} half, {name}",
                elapsed,
                size * (2 * height + 4),
                steps=made,
                times_as_fast=round(baseline / elapsed, 2),
                same_batch=run(len(expected)).index.tolist() == expected,
            )


def distances() -> None:
    """Steps of farthest first and LCMD, and their ratio to a Frank-Wolfe step."""
    for size, height in ((LARGE, 10), (LARGE, 100), (400_000, 10)):
        vectors, squares, _ = draw(height, size)
        run = centres(vectors, squares)
        for largest_cluster in (False, True):
            name = "LCMD" if largest_cluster else "k-center"
            for steps in (100, 1000):
                elapsed, made = per_step(functools.partial(run, largest_cluster=largest_cluster), steps)
                ratio = elapsed / step_time.get((size, height), float("nan"))
                needed = size * (4 * height + 8 + (4 if largest_cluster else 9))
                show(
                    f"{name} N={size} J={height}", elapsed, needed, steps=made, to_frank_wolfe=round(ratio, 3)
                )


def small_kernels() -> None:
    """A step over almost no points: what the two or four kernels cost by themselves."""
    for height in (10, 100, 1000):
        vectors, squares, scale = draw(height, 2000)
        elapsed, made = per_step(frank_wolfe(vectors, squares, scale), 1000)
        show(f"Frank-Wolfe N=2000 J={height}, mostly overhead", elapsed, steps=made)
        run = centres(vectors, squares)
        elapsed, made = per_step(functools.partial(run, largest_cluster=True), 1000)
        show(f"LCMD N=2000 J={height}, mostly overhead", elapsed, steps=made)


def obvious() -> None:
    """Algorithm 1 as first written: (N, J), normalised in each step, weights of size N, the host waiting."""
    for size, height in ((LARGE, 10), (LARGE, 100), (400_000, 10)):
        vectors = draw(height, size)[0].mT.contiguous()
        torch.cuda.reset_peak_memory_stats()

        def run(steps: int, vectors: Tensor = vectors) -> Tensor:
            norms = vectors.norm(dim=1)
            sigma, target = norms.sum(), vectors.sum(0)
            weights = torch.zeros(len(vectors), device=DEVICE)
            chosen = []
            for _ in range(steps):
                normalised = vectors / norms[:, None]
                position = weights @ vectors
                n = int((normalised @ (target - position)).argmax())
                vertex = sigma / norms[n] * vectors[n]
                gamma = float((vertex - position) @ (target - position) / (vertex - position).square().sum())
                weights *= 1 - gamma
                weights[n] += gamma * sigma / norms[n]
                chosen.append(n)
            return torch.tensor(chosen)

        run(2)
        torch.cuda.synchronize()
        start = time.perf_counter()
        run(10)
        torch.cuda.synchronize()
        elapsed = (time.perf_counter() - start) * 100
        ratio = elapsed / step_time.get((size, height), float("nan"))
        memory = torch.cuda.max_memory_allocated() / 1e9
        name = f"the obvious way N={size} J={height}"
        show(name, elapsed, to_frank_wolfe=round(ratio, 2), peak_GB=round(memory, 2))


def memory() -> None:
    """Peak memory of the loops beyond the vectors and what is kept for each point."""
    vectors, squares, scale = draw(10, LARGE)
    runs: list[tuple[str, Callable[[], Any]]] = [
        ("Frank-Wolfe", lambda: frank_wolfe(vectors, squares, scale)(100)),
        ("Frank-Wolfe half", lambda: frank_wolfe(vectors, squares, scale, half=True)(100)),
        ("LCMD", lambda: centres(vectors, squares)(100, True)),
    ]
    for name, run in runs:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        extra = (torch.cuda.max_memory_allocated() - before) / LARGE
        print(f"{name} N={LARGE} J=10: peak of {extra:.1f} bytes a point beside vectors, squares and scale")
        rows.append({"what": f"{name} memory", "bytes_a_point": extra})


def sweep() -> None:
    """Other layouts: which reads fastest."""
    layouts = [
        Layout(block, height, warps, programs)
        for block, height, warps, programs in (
            (512, 8, 4, 7),
            (512, 8, 4, 4),
            (512, 8, 4, 15),
            (512, 4, 4, 7),
            (1024, 4, 4, 4),
            (1024, 8, 8, 3),
            (512, 16, 4, 5),
        )
    ]
    for height in (10, 100):
        vectors, squares, scale = draw(height, LARGE)
        for layout in layouts:
            elapsed, _ = per_step(frank_wolfe(vectors, squares, scale, layout=layout), 200)
            show(f"Frank-Wolfe J={height} {layout}", elapsed, 4 * LARGE * (height + 1))
            elapsed, _ = per_step(frank_wolfe(vectors, squares, scale, layout=layout, half=True), 200)
            show(f"Frank-Wolfe J={height} half {layout}", elapsed, LARGE * (2 * height + 4))
            run = centres(vectors, squares, layout=layout)
            elapsed, _ = per_step(functools.partial(run, largest_cluster=True), 200)
            show(f"LCMD J={height} {layout}", elapsed, LARGE * (4 * height + 12))


def main() -> None:
    paths = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    if not torch.cuda.is_available():
        print("selection on a GPU: there is none here")
        return
    start = time.perf_counter()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    sections = [correctness, bandwidth, scans, half_scans, distances, small_kernels, obvious, memory]
    for section in [*sections, sweep] if "--sweep" in sys.argv else sections:
        print(f"\n{section.__name__} (at {time.perf_counter() - start:.1f} s)", flush=True)
        try:
            section()
        except Exception:
            traceback.print_exc()
            rows.append({"what": section.__name__, "failed": traceback.format_exc()})
        torch.cuda.empty_cache()
        if paths:
            outcome = {"device": torch.cuda.get_device_name(), "read GB/s": read_rate, "rows": rows}
            with open(paths[0], "w") as file:
                json.dump(outcome, file, indent=1)
    print(f"\nall in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
