"""Small batches for classifiers of scikit-learn: digits with a forest and with bagged logistic regression.

    python experiments/digits.py digits.jsonl

20 labels at the start, eight batches of 20; 500 images to test on, eight splits. `relative` is what the
default was at first: probabilities divided by their square roots.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from lines import write
from sklearn.datasets import load_digits
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import coresift
from coresift.selectors import LCMD
from coresift.spaces import Space, predictive_space
from coresift.spaces.base import Problem
from coresift.strategies import Strategy

FIRST, BATCH, ROUNDS, TEST, SPLITS, CLASSES = 20, 20, 8, 500, 8, 10
STRATEGIES = ("random", "margin", "maxent", "bald", "acs-fw", "acs-lcmd", "predictive-lcmd", "relative")


def relative(problem: Problem) -> Space:
    """Distances in units of what a label says about the model, as `greedy-logdet` has them."""
    return predictive_space(
        problem.posterior,
        problem.pool,
        problem.num_samples,
        generator=problem.generator,
        labelled=problem.labelled,
        num_dimensions=512,
    )


def probabilities(model: BaggingClassifier | RandomForestClassifier, x: npt.NDArray) -> npt.NDArray:
    """(K, n, C) of the members, who may not know all classes."""
    probs = np.zeros((len(model.estimators_), len(x), CLASSES))
    for own, member in zip(probs, model.estimators_, strict=True):
        own[:, model.classes_[member.classes_.astype(int)]] = member.predict_proba(x)
    return probs


def load() -> tuple[npt.NDArray, npt.NDArray]:
    """Images (n, 64) and classes (n,)."""
    x, y = load_digits(return_X_y=True)
    return x / 16, y


def accuracies(kind: str, strategy: str | Strategy, seed: int, x: npt.NDArray, y: npt.NDArray) -> list[float]:
    """Of one run, after each training."""
    test, labelled, pool = np.split(np.random.default_rng(seed).permutation(len(x)), [TEST, TEST + FIRST])
    found = []
    for number in range(ROUNDS + 1):
        if kind == "forest":
            model = RandomForestClassifier(100, random_state=seed)
        else:
            model = BaggingClassifier(LogisticRegression(C=10, max_iter=500), 20, random_state=seed)
        model.fit(x[labelled], y[labelled])
        found.append(float(model.score(x[test], y[test])))
        if number == ROUNDS:
            break
        probs, known = probabilities(model, x[pool]), probabilities(model, x[labelled])
        given = {"probs": probs, "labelled": known}  # images tell which points are the same
        batch = coresift.select(x[pool], **given, budget=BATCH, strategy=strategy, seed=seed).index
        labelled, pool = np.append(labelled, pool[batch]), np.delete(pool, batch)
    return found


def main() -> None:
    """Write a line for each run, and print means with standard errors."""
    parser = argparse.ArgumentParser(description="Strategies for classifiers of scikit-learn on digits.")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    x, y = load()
    given.out.write_text("", encoding="utf-8")
    for kind in ("forest", "bagged logistic regression"):
        for name in STRATEGIES:
            strategy = Strategy(relative, LCMD(), "") if name == "relative" else name
            found = [accuracies(kind, strategy, seed, x, y)[-1] for seed in range(SPLITS)]
            spread = np.std(found, ddof=1) / SPLITS**0.5
            print(f"{kind}, {name}: {100 * np.mean(found):.1f} ± {100 * spread:.1f}", flush=True)
            for seed, accuracy in enumerate(found):
                write(given.out, {"model": kind, "strategy": name, "seed": seed, "accuracy": accuracy})


if __name__ == "__main__":
    main()
