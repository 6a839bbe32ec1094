"""Write down which points every strategy chooses on a fixed set of problems, or compare with what is written.

    python benchmarks/same_batches.py batches.json            # compare; write the file if there is none
    python benchmarks/same_batches.py batches.json --cuda     # the same batches with the pool on a GPU

Batches must not change when code is only rewritten. The script prints each batch that differs, and how many
of its points the two have in common.
"""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import coresift
from coresift.posteriors import (
    BayesianLinearRegression,
    BayesianProbitRegression,
    FunctionPosterior,
)

Arguments = dict[str, Any]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def classes(size: int, samples: int = 20, num_classes: int = 4, seed: int = 0) -> torch.Tensor:
    """(K, N, C) probabilities of an ensemble whose members differ more at some points than at others."""
    generator = _generator(seed)
    common = 2 * torch.randn(1, size, num_classes, generator=generator, dtype=torch.float64)
    spread = torch.rand(1, size, 1, generator=generator, dtype=torch.float64)
    own = torch.randn(samples, size, num_classes, generator=generator, dtype=torch.float64)
    return torch.softmax(common + spread * own, -1)


def numbers(size: int, samples: int = 20, seed: int = 0) -> torch.Tensor:
    generator = _generator(seed)
    weights = torch.randn(samples, 5, generator=generator, dtype=torch.float64)
    return weights @ torch.randn(5, size, generator=generator, dtype=torch.float64)


def rows(size: int, width: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, width, generator=_generator(seed), dtype=torch.float64)


def linear() -> Arguments:
    x = rows(40, seed=1)
    y = x @ torch.arange(6.0, dtype=torch.float64) + torch.randn(40, generator=_generator(2)).double()
    return {"posterior": BayesianLinearRegression(prior_covariance=1.0).fit(x, y), "pool": rows(400)}


def probit() -> Arguments:
    x = rows(40, seed=1)
    return {"posterior": BayesianProbitRegression().fit(x, (x[:, 0] > 0).long()), "pool": rows(300)}


def network() -> Arguments:
    torch.manual_seed(0)
    members = [
        torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).double()
        for _ in range(12)
    ]

    def predict(x: torch.Tensor, member: torch.nn.Module) -> torch.distributions.Distribution:
        return torch.distributions.Categorical(logits=member(x.double()))

    return {"posterior": FunctionPosterior(predict, members), "pool": rows(2000)}


def duplicates() -> Arguments:
    probs = classes(60)
    return {"probs": torch.cat([probs, probs[:, :40], probs[:, :20]], 1)}


def estimator(name: str) -> Arguments:
    from coresift import estimators

    x = rows(80, seed=5)
    y = x[:, 0] * x[:, 1] if "Regressor" in name else (x[:, 0] > 0).long() + (x[:, 1] > 1).long()
    parameters = inspect.signature(getattr(estimators, name)).parameters
    options = {"random_state": 0, "progress": False}
    if "trainer" in parameters:
        options = {"random_state": 0, "trainer": estimators.Trainer(epochs=20, progress=False)}
    else:
        options["epochs"] = 20
    model = getattr(estimators, name)(**options).fit(x.float().numpy(), y.numpy())
    return {"posterior": model, "pool": rows(1000).float(), "labelled": x.float()}


PROBLEMS: dict[str, Callable[[], Arguments]] = {
    "classes": lambda: {"probs": classes(500)},
    "classes, labelled": lambda: {"probs": classes(500), "labelled": classes(30, seed=7)},
    "classes, pending and excluded": lambda: {
        "probs": classes(500),
        "pending": [3, 1, 400],
        "exclude": [0, 10, 499],
    },
    "classes beside features": lambda: {"probs": classes(300), "pool": rows(300, 9)},
    "many classes": lambda: {"probs": classes(200, 6, 40)},
    "two samples": lambda: {"probs": classes(200, 2, 3)},
    "classes in float32": lambda: {"probs": classes(3000).float()},
    "duplicates": duplicates,
    "numbers": lambda: {"means": numbers(500), "variances": 0.1},
    "numbers, labelled": lambda: {
        "means": numbers(500),
        "variances": 0.1,
        "labelled": numbers(20, seed=3),
    },
    "numbers at a small scale": lambda: {"means": numbers(300) * 1e-25, "variances": 1e-50},
    "linear": linear,
    "linear, pending": lambda: {**linear(), "pending": [5, 50]},
    "probit": probit,
    "network": network,
    "neural linear regression": lambda: estimator("NeuralLinearRegressor"),
    "neural linear classes": lambda: estimator("NeuralLinearClassifier"),
    "dropout": lambda: estimator("DropoutClassifier"),
    "a narrow cone": lambda: {"means": numbers(400) + 100.0, "variances": 1.0},
    "a large pool": lambda: {"probs": classes(300_000, 8, 3).float()},
}
# Strategies that would take minutes, or more memory than there is, with the large pool.
SLOW = ("acs-giga", "greedy-logdet", "k-medoids", "badge")


def batch_of(strategy: str, problem: str, device: str) -> list[int] | str:
    """The chosen indices, or the kind of error."""
    arguments = PROBLEMS[problem]()
    for key in ("pool", "probs", "means", "labelled"):
        if key in arguments and isinstance(arguments.get("posterior"), type(None)):
            arguments[key] = arguments[key].to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return coresift.select(budget=12, strategy=strategy, seed=3, **arguments).index.tolist()
        except Exception as error:
            return type(error).__name__


def main(path: str, device: str = "cpu") -> None:
    """Run every strategy on every problem."""
    found = {}
    for problem in PROBLEMS:
        for strategy in coresift.STRATEGIES:
            if problem != "a large pool" or strategy not in SLOW:
                found[f"{problem}: {strategy}"] = batch_of(strategy, problem, device)
        print(problem, flush=True)
    if not Path(path).exists():
        Path(path).write_text(json.dumps(found, indent=0))
        print(f"{len(found)} batches written to {path}")
        return
    before = json.loads(Path(path).read_text())
    changed = {name: batch for name, batch in found.items() if before.get(name) != batch}
    for name, batch in changed.items():
        was = before.get(name)
        shared = len(np.intersect1d(batch, was)) if isinstance(was, list) and isinstance(batch, list) else 0
        print(f"{name}: {shared} of 12 in common\n    before {was}\n    now    {batch}")
    print(f"{len(found) - len(changed)} of {len(found)} batches are the same")


if __name__ == "__main__":
    main(sys.argv[1], "cuda" if "--cuda" in sys.argv else "cpu")
