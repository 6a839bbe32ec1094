"""From a posterior and a pool to vectors, in points a second: in practice it costs more than the selection.

    python benchmarks/projection.py [results.json]

On a GPU where there is one, else on the CPU with smaller pools. The baseline is a pass of the network alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coresift.estimators import NeuralLinearClassifier, NeuralLinearRegressor
from coresift.estimators.networks import ResNet18
from coresift.pool import as_pool
from coresift.posteriors.network import split_last_layer
from coresift.selectors import LCMD
from coresift.spaces.likelihood import sampled_likelihood_space
from coresift.spaces.predictive import predictive_space

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def seconds(function: Callable[[], object]) -> float:
    """The second time: the first compiles and allocates."""
    for _ in range(2):
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        taken = time.perf_counter() - start
    return taken


def measure(name: str, model: Any, pool: Tensor, num_samples: int, results: dict[str, float]) -> None:
    posterior, rows = model.posterior_, as_pool(pool)

    def last_layer() -> tuple[Any, Any]:
        return split_last_layer(posterior, rows, None)[:2]

    head, features = last_layer()
    ways = {
        "network": last_layer,
        "likelihood vectors on its features": lambda: sampled_likelihood_space(
            head, features, num_samples, generator=torch.Generator()
        ),
        "predictive vectors on its features": lambda: predictive_space(
            head, features, num_samples, generator=torch.Generator(), num_dimensions=512
        ),
    }
    spaces = {}
    for what, way in ways.items():

        def run(what: str = what, way: Callable[[], Any] = way) -> None:
            spaces[what] = way()

        taken = seconds(run)
        results[f"{name}, {what}, points a second"] = len(pool) / taken
        print(
            f"{name:34s} J = {num_samples:4d}  {what:36s} {len(pool) / taken:14,.0f} points a second",
            flush=True,
        )
    space = spaces["predictive vectors on its features"]
    taken = seconds(lambda: LCMD().select(space, 100))
    results[f"{name}, choosing 100, seconds"] = taken
    print(f"{name:34s} choosing 100 of {len(pool):,} took {taken:.2f} s", flush=True)


def main() -> None:
    torch.manual_seed(0)
    results: dict[str, float] = {}
    large = DEVICE == "cuda"
    x = torch.randn(1000, 90)
    regressor = NeuralLinearRegressor(epochs=3, calibration_folds=0, device=DEVICE, random_state=0).fit(
        x, x[:, 0]
    )
    pool = torch.randn(1_000_000 if large else 100_000, 90)
    for num_samples in (10, 256):
        measure("neural linear regression", regressor, pool.to(DEVICE), num_samples, results)
    images = torch.randint(0, 256, (256, 3, 32, 32)).float()
    classifier = NeuralLinearClassifier(ResNet18, epochs=1, batch_size=128, device=DEVICE, random_state=0)
    classifier.fit(images, torch.arange(256) % 10)
    pool = torch.randint(0, 256, (50_000 if large else 500, 3, 32, 32)).float()
    measure("ResNet-18, ten classes", classifier, pool.to(DEVICE), 10, results)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(
            json.dumps({"device": DEVICE, **results}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
