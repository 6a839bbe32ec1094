"""Ways to measure how far apart class predictions are, on held-out labels that are not in a test set.

    python experiments/class_distances.py experiments/cifar10.toml --seed 0 --methods plain,maxent \
        --device cuda --out class_distances.jsonl
    python experiments/class_distances.py forest --seed 100 --methods plain,plain-margin --out digits.jsonl

Of an experiment on images, 10,000 of the pool are to test on; `forest` and `logistic` are digits, as in
digits.py. A method is a strategy, or one of these ways, on which LCMD chooses as the default does, from
deviations of class probabilities over samples of the model:

* `plain`: the deviations as they are
* `divided`: by the roots of mean probabilities
* `plain-margin`: times the margin uncertainty, one less the gap between the two likeliest classes
* `share`: the same, divided by the largest norm that deviations could have: the default
* `margin-norms`: rescaled to the norm of the margin uncertainty
* `between`: rescaled to the geometric mean of that and their own norms
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from digits import BATCH, FIRST, accuracies, load
from lines import write
from torch import Tensor

from coresift.bench.config import Experiment
from coresift.bench.replay import Begun, Method, Simulation, step
from coresift.pool import as_pool
from coresift.selectors import LCMD
from coresift.spaces import Space
from coresift.spaces.base import Problem
from coresift.spaces.predictive import margin_uncertainty
from coresift.spaces.vectors import VectorSpace, map_pool
from coresift.strategies import Strategy

HELD_OUT, DIMENSIONS = 10_000, 512


# What they are called in results/class_distances.jsonl, and from deviations (J, n, C) and mean probabilities
# (n, C) what distances are measured between.
WAYS: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "plain": ("plain", lambda deviations, mean: deviations),
    "divided": ("relative", lambda deviations, mean: deviations / mean.sqrt()),
    "plain-margin": (
        "plain, times margin uncertainty",
        lambda deviations, mean: deviations * _margin_uncertainty(mean),
    ),
    "share": (
        "plain as a share of the greatest, times margin uncertainty",
        lambda deviations, mean: deviations * _margin_uncertainty(mean) / _total(mean),
    ),
    "margin-norms": (
        "norms margin uncertainty",
        lambda deviations, mean: deviations * _margin_uncertainty(mean) / _norms(deviations),
    ),
    "between": (
        "norms between plain and margin uncertainty",
        lambda deviations, mean: deviations * (_margin_uncertainty(mean) / _norms(deviations)).sqrt(),
    ),
}


def _margin_uncertainty(mean: Tensor) -> Tensor:
    """(n, 1) of (n, C)."""
    return margin_uncertainty(mean).unsqueeze(-1)


def _total(mean: Tensor) -> Tensor:
    """(n, 1) the largest norm that deviations from (n, C) can have: that of votes for one class each."""
    return (1 - mean.square().sum(-1, keepdim=True)).clamp_min(1e-12).sqrt()


def _norms(deviations: Tensor) -> Tensor:
    """(n, 1) of deviations (J, n, C)."""
    return deviations.square().mean(0).sum(-1, keepdim=True).sqrt().clamp_min(1e-12)


def strategy(name: str) -> str | Strategy:
    """A way as a strategy, or the name of one."""
    if name not in WAYS:
        return name
    _, measured = WAYS[name]

    def build(problem: Problem) -> Space:
        theta = problem.posterior.sample(problem.num_samples, problem.generator)
        seed = int(torch.randint(2**62, (), generator=problem.generator))

        @cache
        def signs(width: int) -> Tensor:
            """As `predictive_space` has them: so `share` chooses what the default does."""
            draws = torch.randint(2, (width, DIMENSIONS), generator=torch.Generator().manual_seed(seed))
            return (2.0 * draws - 1) / DIMENSIONS**0.5

        def rows(x: Tensor) -> Tensor:
            probs = problem.posterior.conditional(x, theta).probs
            mean = probs.mean(0)
            found = measured(probs - mean, mean).transpose(0, 1).flatten(1) / len(probs) ** 0.5
            if found.shape[1] <= DIMENSIONS:
                return found
            return found.float() @ signs(found.shape[1]).to(found.device)

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
            labels = [FIRST + BATCH * number for number in range(len(found))]
            data, model = "digits", "forest" if given.source == "forest" else "bagged logistic regression"
        else:
            state, found, labels = images.begin(Method(strategy(name)), given.seed), [], []
            data, model = Path(given.source).stem, "ResNet-18"
            while not state.done:
                (state,), (turn,) = step(images, [state], begun)
                found.append(turn.accuracy)
                labels.append(turn.labels)
                print(given.source, name, given.seed, turn.labels, turn.accuracy, flush=True)
        called = WAYS[name][0] if name in WAYS else name
        line = {"data": data, "model": model, "method": called, "seed": given.seed}
        line |= {"labels": labels, "accuracy": found}
        write(given.out, line)


if __name__ == "__main__":
    main()
