"""Seconds to fit a Gaussian process, and the likelihood reached, next to scikit-learn's in the same run.

    python benchmarks/gaussian_process.py [results.json]

Both start once, from the same parameters, with the same bounds on length scales, and stop after as many
iterations: 100 for up to 1000 labels, and 5 for 5000, where scikit-learn takes a minute for one. Ours first
looks for a start on 500 labels, and goes on from there.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.gaussian_process import GaussianProcessRegressor as Reference
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from coresift.estimators import GaussianProcessRegressor
from coresift.estimators.marginal_likelihood import FIRST, LENGTHS

COLUMNS, ITERATIONS = 4, {200: 100, 1000: 100, 5000: 5}


def labelled_set(size: int) -> tuple[Any, Any]:
    """Draw standardised rows (n, 4) and targets, of which two columns say something."""
    random = np.random.default_rng(size)
    x = random.normal(size=(size, COLUMNS))
    x = (x - x.mean(0)) / x.std(0)
    y = np.sin(2 * x[:, 0]) * x[:, 1] + 0.1 * random.normal(size=size)
    return x, (y - y.mean()) / y.std()


def reference(iterations: int) -> Reference:
    """Return scikit-learn's, at the same start."""

    def limited(function: Any, start: Any, bounds: Any) -> tuple[Any, float]:
        options = {"maxiter": iterations}
        found = minimize(function, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return found.x, found.fun

    length = FIRST[0] * COLUMNS**0.5
    kernel = ConstantKernel(1.0, (1e-6, 1e6)) * Matern(np.full(COLUMNS, length), LENGTHS, nu=2.5)
    return Reference(kernel + WhiteKernel(FIRST[1], (1e-8, 1e2)), optimizer=limited)


def measure(size: int) -> dict[str, float]:
    x, y = labelled_set(size)
    iterations = ITERATIONS[size]
    ours = GaussianProcessRegressor(num_restarts=0, priors=False, max_iterations=iterations, random_state=0)
    start = time.perf_counter()
    ours.fit(x, y)
    middle = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = reference(iterations).fit(x, y)
    return {
        "ours, s": middle - start,
        "scikit-learn, s": time.perf_counter() - middle,
        "ours, log marginal likelihood": ours.log_marginal_likelihood_,
        "scikit-learn, log marginal likelihood": theirs.log_marginal_likelihood_value_,
        "iterations, at most": iterations,
    }


def main() -> None:
    GaussianProcessRegressor().fit(*labelled_set(20))  # warms up
    results: dict[str, Any] = {"threads": torch.get_num_threads()}
    for size in ITERATIONS:
        results[f"n = {size}"] = measure(size)
        print(f"n = {size}:", {name: round(value, 3) for name, value in results[f"n = {size}"].items()})
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
