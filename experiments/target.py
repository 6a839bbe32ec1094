"""Train in one region, use the model in another: does it help to tell `select` where the model will be used?

    python experiments/target.py results.jsonl --folder data

The target is the fifth of a table's rows that lie farthest along its first principal component. It has no
labels; the pool is the rest. The model is a Gaussian process with 20 random labels, which buys five batches
of 20, and is tested on the target. Runs that are in the file are not repeated; at the end a table is printed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from lines import read, write
from rich.progress import track

import coresift
from coresift.bench.data import load_table
from coresift.estimators import GaussianProcessRegressor

TABLES = ("airfoil", "boston", "cpu_act", "elevators", "fried", "house_8l")
# What is called: strategy, and whether it is told the target.
WAYS = {
    "random": ("random", False),
    "predictive-lcmd": ("predictive-lcmd", False),
    "variance-reduction": ("variance-reduction", False),
    "variance-reduction, target": ("variance-reduction", True),
}
POOL, TARGET = 2000, 400  # rows at most


def regions(x: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the pool and of the target, in an order drawn at random."""
    scaled = (x - x.mean(0)) / np.maximum(x.std(0), 1e-12)
    along = scaled @ np.linalg.svd(scaled, full_matrices=False)[2][0]
    far, order = along > np.quantile(along, 0.8), np.random.default_rng(seed).permutation(len(x))
    return order[~far[order]][:POOL], order[far[order]][:TARGET]


def run(data: str, way: str, seed: int, folder: Path) -> list[float]:
    """Return the RMSE on the target after each fit."""
    table, (strategy, told) = load_table(data, folder), WAYS[way]
    pool, target = regions(table.x, seed)
    labelled, errors = pool[:20], []
    while True:
        model = GaussianProcessRegressor(random_state=seed, progress=False)
        model.fit(table.x[labelled], table.y[labelled])
        gap = model.predict(table.x[target]) - table.y[target]
        errors.append(float(np.sqrt(np.mean(gap**2))))
        if len(labelled) == 120:
            return errors
        pool = pool[~np.isin(pool, labelled)]
        batch = coresift.select(
            table.x[pool],
            posterior=model,
            labelled=table.x[labelled],
            budget=20,
            strategy=strategy,
            target=table.x[target] if told else None,
            seed=seed,
        )
        labelled = np.concatenate([labelled, pool[batch.index]])


def show(lines: list[dict[str, Any]]) -> None:
    """Print the last RMSE of each way, as a fraction of that of random choice; geometric means last."""

    def last(data: str, way: str) -> float:
        """Return the mean over seeds of the last error."""
        own = [line["errors"][-1] for line in lines if (line["data"], line["way"]) == (data, way)]
        return float(np.mean(own))

    print("| | " + " | ".join(WAYS) + " |\n|---|" + "--:|" * len(WAYS))
    ratios = np.array([[last(data, way) / last(data, "random") for way in WAYS] for data in TABLES])
    for data, row in zip(TABLES, ratios, strict=True):
        print(f"| {data} | " + " | ".join(f"{ratio:.3f}" for ratio in row) + " |")
    print("| all | " + " | ".join(f"{ratio:.3f}" for ratio in np.exp(np.log(ratios).mean(0))) + " |")


def main() -> None:
    """Run all, or show what is there."""
    parser = argparse.ArgumentParser(description="Choose for a target that differs from the pool.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("data"))
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    done = {(line["data"], line["way"], line["seed"]) for line in read(given.out)}
    jobs = [(data, way, seed) for seed in range(given.seeds) for data in TABLES for way in WAYS]
    for data, way, seed in track([job for job in jobs if job not in done], "replays"):
        errors = run(data, way, seed, given.folder)
        write(given.out, {"data": data, "way": way, "seed": seed, "errors": errors})
    show(read(given.out))


if __name__ == "__main__":
    main()
