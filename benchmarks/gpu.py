"""Selection on a GPU: the share of the memory's read bandwidth that scans reach, and microseconds a step.

Usage: PYTHONPATH=src python benchmarks/gpu.py [results.json] [--sweep] [--tiny]

Each section stands alone: one that fails prints why, and the others go on. ``--sweep`` also tries other
layouts of the scan. ``--tiny`` only shows that the script runs: on a few points, without a GPU if
TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from coresift.search.base import Engine, register_engine
from coresift.search.cpu import VectorDistances, VectorSearch
from coresift.search.cuda import CudaDistances, CudaSearch, Layout
from coresift.search.graphs import recorded
from coresift.selectors import GIGA, LCMD, FrankWolfe, KCenter, KMeansPlusPlus, Selector, distance
from coresift.selectors.sparse import Target
from coresift.spaces import Space, VectorSpace
from coresift.spaces.base import norm_sum

TINY = "--tiny" in sys.argv
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LARGE, MEDIUM, STEPS = (3000, 1000, 3) if TINY else (10_000_000, 400_000, 512)
GOES = 1 if TINY else 3
rows: list[dict[str, Any]] = []
read_rate = float("nan")  # GB/s


def show(what: str, microseconds: float, size: float = 0.0, **more: Any) -> None:
    """Print one line of the table; ``size`` is what has to be read at least, in bytes."""
    rate = size / microseconds / 1e3
    row: dict[str, Any] = {"what": what, "microseconds": microseconds, **more}
    text = f"{what:<52}{microseconds:11.2f} us"
    if size:
        row |= {"GB/s": rate, "share": rate / read_rate}
        text += f"{rate:8.0f} GB/s {rate / read_rate:7.1%}"
    rows.append(row)
    print(text, *(f" {key}={value}" for key, value in more.items()), flush=True)


def wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def timed(action: Callable[..., Any], *arguments: Any, times: int = 1) -> float:
    """Microseconds an action takes, the best of some goes at ``times`` times; first once to warm up."""
    action(*arguments)
    best = float("inf")
    for _ in range(GOES):
        wait()
        start = time.perf_counter()
        for _ in range(times):
            action(*arguments)
        wait()
        best = min(best, time.perf_counter() - start)
    return best * 1e6 / times


def in_graph(action: Callable[..., Any], *arguments: Any, times: int = 20) -> float:
    """Microseconds an action takes on the GPU, as one of many in a CUDA graph."""
    action(*arguments)
    if DEVICE.type != "cuda":
        return timed(action, *arguments)

    def many() -> None:
        for _ in range(times):
            action(*arguments)

    wait()
    return timed(recorded(many).replay, times=5) / times


def draw(num_rows: int, size: int, offset: float = 16.0) -> VectorSpace:
    """Vectors in a narrow cone: Frank-Wolfe then takes more than a thousand steps to the sum."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    return VectorSpace(torch.randn(num_rows, size, device=DEVICE, generator=generator).add_(offset))


def shapes() -> list[tuple[int, int]]:
    return [(LARGE, 10), (LARGE, 100), (MEDIUM, 10), (MEDIUM, 100)]


def everywhere(space: VectorSpace) -> Tensor:
    return torch.ones(len(space), dtype=torch.bool, device=DEVICE)


def distances_of(space: VectorSpace, budget: int, layout: Layout | None = None) -> CudaDistances:
    return CudaDistances(space, everywhere(space), torch.empty(0, dtype=torch.long), budget, layout=layout)


def bandwidth() -> None:
    global read_rate
    large = torch.randn(1000 if TINY else 1_000_000_000, device=DEVICE)
    size = large.numel() * 4
    elapsed = timed(large.sum, times=5)
    wide = timed(large.view(torch.float64).amax, times=5)
    read_rate = size / min(elapsed, wide) / 1e3
    show("read: torch sum of 4 GB", elapsed, size)
    show("read: torch maximum of 4 GB as float64", wide, size)


def same_batches() -> None:
    """The selectors choose what they choose on the CPU."""
    selectors: list[Selector[Space]] = [
        FrankWolfe(),
        FrankWolfe(fill=False),
        FrankWolfe(start="vertex"),
        GIGA(),
        GIGA(fill=False),
        LCMD(),
        KCenter(),
        KMeansPlusPlus(),
    ]
    options: dict[str, Any] = {"pending": [3, 9], "exclude": [5], "seed": 1}
    for size, num_rows, budget in (
        ((300, 3, 6),) if TINY else ((5000, 3, 300), (20_011, 10, 200), (5000, 100, 200))
    ):
        for offset in (0.3, 4.0):
            vectors = torch.randn(num_rows, size, generator=torch.Generator().manual_seed(1)).add_(offset)
            labelled = torch.randn(num_rows, 5, generator=torch.Generator().manual_seed(2)).add_(offset)
            for selector in selectors:
                use_cpu(True)
                expected = selector.select(VectorSpace(vectors, labelled), budget, **options)
                use_cpu(False)
                found = selector.select(VectorSpace(vectors.to(DEVICE), labelled), budget, **options)
                compare(f"{selector} J={num_rows} N={size} +{offset}", found, expected)


def use_cpu(yes: bool) -> None:
    """Without a GPU, switch between the engine of the CPU and the interpreted kernels."""
    if DEVICE.type == "cpu":
        register_engine(
            "cpu", Engine(VectorSearch, VectorDistances) if yes else Engine(CudaSearch, CudaDistances)
        )


def compare(name: str, found: Any, expected: Any) -> None:
    differs = [
        i for i, pair in enumerate(zip(found.index, expected.index, strict=False)) if pair[0] != pair[1]
    ]
    verdict = "the same"
    if differs or len(found.index) != len(expected.index):
        verdict = f"DIFFERENT from step {differs[:1]} of {len(found.index)} and {len(expected.index)}"
    elif found.weights is not None:
        off = float(abs(found.weights - expected.weights).max() / abs(expected.weights).max())
        verdict += f", weights within {off:.1g}"
    print(f"{name}: {verdict}", flush=True)
    rows.append({"what": name, "verdict": verdict})


def scans() -> None:
    """The primitives by themselves; at least the vectors have to be read, and a byte or more a point."""
    for size, num_rows in shapes():
        space, name = draw(num_rows, size), f"N={size} J={num_rows}"
        for what, microseconds, width in primitives(space):
            show(f"{what} {name}", microseconds, size * width)


def primitives(space: VectorSpace, layout: Layout | None = None) -> Iterator[tuple[str, float, int]]:
    """What was done, microseconds, and bytes a point that have to be read."""
    width = 4 * len(space.vectors)
    search = CudaSearch(space, everywhere(space), layout)
    element, unit = space.total(), torch.nn.functional.normalize(space.vectors[:, 0].double(), dim=0)
    yield "argmax", in_graph(search.argmax, element), width + 1
    yield "argmax with beside", in_graph(search.argmax, element, unit), width + 1
    distances = distances_of(space, 1000, layout)
    n = distances.largest_cluster()
    yield "add", in_graph(distances.add, n), width + 4
    yield "farthest of all", in_graph(distances.farthest), 5
    yield "farthest of a cluster", in_graph(distances.farthest, n), 4
    yield "largest cluster", in_graph(distances.largest_cluster), 0


def steps() -> None:
    """Steps of the selectors, many at a time; everything is counted, the copy to the host included."""

    def walk(fit: Any, search: CudaSearch) -> None:
        search.repeat(type(fit).closing_step, fit.inputs, fit.state, STEPS)[1].cpu()

    def grow(distances: CudaDistances, step: Any) -> None:
        distances.repeat(step, STEPS).cpu()

    for size, num_rows in shapes():
        space, name = draw(num_rows, size), f"N={size} J={num_rows}"
        for selector in (FrankWolfe(), GIGA()):
            fit = selector._fit(space, Target(space.total(), norm_sum(space)))
            elapsed = timed(walk, fit, CudaSearch(space, everywhere(space))) / STEPS
            show(f"{type(selector).__name__} {name}", elapsed, size * (4 * num_rows + 1))
        for step in (distance._largest_cluster_first, distance._farthest_first):
            elapsed = timed(grow, distances_of(space, 5 * STEPS), step) / STEPS
            show(f"{step.__name__} {name}", elapsed, size * (4 * num_rows + 8))


def selections() -> None:
    """Whole calls of ``select``, what the host does included, for each point of the batch."""
    budget = 3 if TINY else 1000
    for size in (MEDIUM, LARGE):
        space = draw(10, size)
        for selector in (FrankWolfe(), GIGA(), LCMD(), KCenter(), KMeansPlusPlus()):
            elapsed = timed(selector.select, space, budget) / budget
            show(f"select {type(selector).__name__} N={size} J=10", elapsed)


def memory() -> None:
    """Peak memory beyond the vectors and what the space keeps."""
    if DEVICE.type != "cuda":
        return
    space = draw(10, LARGE)
    for selector in (FrankWolfe(), GIGA(), LCMD(), KMeansPlusPlus()):
        wait()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        selector.select(space, 100)
        extra = (torch.cuda.max_memory_allocated() - before) / LARGE
        print(f"{type(selector).__name__} N={LARGE} J=10: a peak of {extra:.1f} bytes a point", flush=True)
        rows.append({"what": f"{type(selector).__name__} memory", "bytes_a_point": extra})


def sweep() -> None:
    """Other layouts of the scans."""
    layouts = [
        Layout(block, height, warps, programs)
        for block, height, warps, programs in (
            (512, 16, 4, 4),
            (512, 8, 4, 6),
            (512, 4, 4, 6),
            (512, 2, 4, 6),
            (1024, 8, 8, 3),
        )
    ]
    for num_rows in (10, 100):
        space = draw(num_rows, LARGE)
        for layout in layouts:
            print(f"J={num_rows} {layout}")
            for what, microseconds, width in islice(primitives(space, layout), 3):
                show(what, microseconds, LARGE * width)


def main() -> None:
    paths = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    if DEVICE.type != "cuda" and not TINY:
        print("selection on a GPU: there is none here")
        return
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "interpreter"
    start = time.perf_counter()
    print(name, "torch", torch.__version__)
    sections = [bandwidth, scans, same_batches, steps, selections, memory]
    for section in [*sections, sweep] if "--sweep" in sys.argv else sections:
        print(f"\n{section.__name__} (at {time.perf_counter() - start:.1f} s)", flush=True)
        try:
            section()
        except Exception:
            traceback.print_exc()
            rows.append({"what": section.__name__, "failed": traceback.format_exc()})
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()
        if paths:
            with open(paths[0], "w") as file:
                json.dump({"device": name, "read GB/s": read_rate, "rows": rows}, file, indent=1)
    print(f"\nall in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
