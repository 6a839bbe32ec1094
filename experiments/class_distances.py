"""Ways to measure how far apart class predictions are, on labels that no test set has.

    python experiments/class_distances.py experiments/cifar10.toml --seed 0 --methods plain,wavering,maxent \
        --device cuda --out class_distances.jsonl
    python experiments/class_distances.py forest --seed 100 --methods plain,wavering --out digits.jsonl

Of an experiment on images, 10,000 of the pool are to test on; `forest` and `logistic` are digits with
splits of their own, as in digits.py. A method is a strategy or a way, by which LCMD chooses, as the default
does: deviations of class probabilities over samples of the model, `plain`, `divided` by roots of mean
probabilities, times how much the model wavers between its two likeliest classes (`plain-wavering`), times
wavering and as a share of the greatest length they could have (`share`), of lengths that are wavering
(`wavering`), or of the geometric mean of that and their own (`between`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from digits import accuracies, load
from torch import Tensor

from coresift.experiments.config import Experiment
from coresift.loop import Begun, Method, Simulation, step
from coresift.pool import as_pool
from coresift.selectors import LCMD
from coresift.spaces import Space
from coresift.spaces.storage import map_pool
from coresift.spaces.vectors import VectorSpace
from coresift.strategies import Problem, Strategy

HELD_OUT, DIMENSIONS = 10_000, 512


# From deviations (J, n, C) and mean probabilities (n, C) to what distances are measured between.
WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "plain": lambda deviations, mean: deviations,
    "divided": lambda deviations, mean: deviations / mean.sqrt(),
    "plain-wavering": lambda deviations, mean: deviations * _wavering(mean),
    "wavering": lambda deviations, mean: deviations * _wavering(mean) / _lengths(deviations),
    "share": lambda deviations, mean: deviations * _wavering(mean) / _total(mean),
    "between": lambda deviations, mean: deviations * (_wavering(mean) / _lengths(deviations)).sqrt(),
}


def _wavering(mean: Tensor) -> Tensor:
    """(n, 1) one less the gap between the two likeliest classes of (n, C)."""
    likeliest = mean.topk(2, -1).values
    return 1 - (likeliest[:, :1] - likeliest[:, 1:])


def _total(mean: Tensor) -> Tensor:
    """(n, 1) the greatest length that deviations from (n, C) can have: that of votes for one class each."""
    return (1 - mean.square().sum(-1, keepdim=True)).clamp_min(1e-12).sqrt()


def _lengths(deviations: Tensor) -> Tensor:
    """(n, 1)"""
    return deviations.square().mean(0).sum(-1, keepdim=True).sqrt().clamp_min(1e-12)


def strategy(name: str) -> str | Strategy:
    """A way as a strategy, or the name of one."""
    if name not in WAYS:
        return name

    def build(problem: Problem) -> Space:
        theta = problem.posterior.sample(problem.num_samples, problem.generator)
        seed = int(torch.randint(2**62, (), generator=problem.generator))

        def rows(x: Tensor) -> Tensor:
            probs = problem.posterior.conditional(x, theta).probs
            mean = probs.mean(0)
            found = WAYS[name](probs - mean, mean).transpose(0, 1).flatten(1) / len(probs) ** 0.5
            if found.shape[1] <= DIMENSIONS:
                return found
            draws = torch.randint(
                2, (found.shape[1], DIMENSIONS), generator=torch.Generator().manual_seed(seed)
            )
            return found.float() @ ((2.0 * draws - 1) / DIMENSIONS**0.5).to(found.device)

        with torch.no_grad():
            pool, labelled = (
                map_pool(each, 1024, lambda block: rows(block.x).mT, problem.memory)
                for each in (problem.pool, as_pool(problem.labelled))
            )
        space = VectorSpace(pool, labelled)
        space.additive = False
        return space

    return Strategy(build, LCMD(), name)


def on_images(config: Path, device: str) -> Simulation:
    """Of the pool alone."""
    experiment = Experiment.load(config)
    (data,) = experiment.data
    simulation = experiment.simulation(data, None, device, workers=1)
    order = np.random.default_rng(777).permutation(len(simulation.y) - simulation.num_test)
    return replace(simulation, x=simulation.x[order], y=simulation.y[order], num_test=HELD_OUT)


def main() -> None:
    """Write a line for each run."""
    parser = argparse.ArgumentParser(description="Compare distances between class predictions.")
    parser.add_argument("source", help="an experiment's file, 'forest' or 'logistic'")
    parser.add_argument("--methods", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    images = None if given.source in ("forest", "logistic") else on_images(Path(given.source), given.device)
    begun: Begun = {}
    for name in given.methods.split(","):
        if images is None:
            found = accuracies(given.source, strategy(name), given.seed, *load())
        else:
            state, found = images.begin(Method(strategy(name)), given.seed), []
            while not state.done:
                (state,), (turn,) = step(images, [state], begun)
                found.append(turn.accuracy)
                print(given.source, name, given.seed, turn.labels, turn.accuracy, flush=True)
        line = {"data": Path(given.source).stem, "method": name, "seed": given.seed, "accuracy": found}
        print(json.dumps(line), flush=True)
        with given.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
