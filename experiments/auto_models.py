"""Does the automatic choice of a model find the right one? Errors and likelihoods from random labels.

    python experiments/auto_models.py regression boston.npz energy.npz --out auto_models.jsonl
    python experiments/auto_models.py classification car.npz dna.npz --out auto_models.jsonl
    python experiments/auto_models.py summary --out auto_models.jsonl

Files hold arrays x and y. Each model is fitted to 20, 120 and 220 random labels and tested on up to 2000
other rows: the automatic choice, each of its candidates alone, and the model of labelling projects. Log
likelihoods of numbers are for standardised ones; probabilities of classes are smoothed as in the choice.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lines import read, write

from coresift.estimators import AutoClassifier, AutoRegressor
from coresift.estimators.candidates import CLASSIFIERS, REGRESSORS
from coresift.labelling.model import default_model

LABELS = (20, 120, 220)


def models(task: str, num: int, seed: int) -> dict[str, Any]:
    """Return the models to compare, by their names."""
    kind, table = (AutoRegressor, REGRESSORS) if task == "regression" else (AutoClassifier, CLASSIFIERS)
    common = {"random_state": seed, "progress": False}
    return {
        "auto": kind(**common),
        **{name: kind(candidates=[name], **common) for name in table},
        "labelling project": default_model(task, num, seed).set_params(progress=False),
    }


def tested(task: str, model: Any, x: np.ndarray, y: np.ndarray, num: int) -> dict[str, float]:
    """Return the error (RMSE or error rate) and the mean log likelihood of test labels."""
    if task == "regression":
        predictive = model.posterior_.predictive(torch.as_tensor(x))
        likelihoods = predictive.log_prob(torch.as_tensor(y).to(predictive.mean))
        error = float(np.sqrt(np.square(predictive.mean.double().numpy() - y).mean()))
        return {"error": error, "log_likelihood": float(likelihoods.mean())}
    probs = np.zeros((len(y), int(y.max()) + 1))
    probs[:, model.classes_] = model.predict_proba(x)
    own = (num * probs[np.arange(len(y)), y] + 1) / (num + probs.shape[1])
    return {
        "error": float((probs.argmax(1) != y).mean()),
        "log_likelihood": float(np.log(own).mean()),
    }


def run(task: str, path: Path, seeds: int, out: Path) -> None:
    """Write a line for each seed, number of labels and model."""
    with np.load(path) as arrays:
        x, y = arrays["x"].astype(float), arrays["y"]
    y = (
        (y - y.mean(dtype=float)) / y.std(dtype=float)
        if task == "regression"
        else np.unique(y, return_inverse=True)[1]
    )
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(y))
        test = order[-min(2000, len(y) - max(LABELS)) :]
        for num in LABELS:
            rows = order[:num]
            for name, model in models(task, num, seed).items():
                start = time.perf_counter()
                try:
                    model.fit(x[rows], y[rows])
                except ValueError:  # a candidate that is not for so few labels, or one class
                    continue
                seconds = round(time.perf_counter() - start, 2)
                line = {"task": task, "table": path.stem, "seed": seed, "labels": num, "model": name}
                line |= tested(task, model, x[test], y[test], num) | {"seconds": seconds}
                write(out, line | ({"chosen": model.chosen_} if name == "auto" else {}))


def summary(out: Path) -> None:
    """Print a row for each model: ratio of errors to automatic choice, log likelihood, how often chosen."""
    lines = read(out)
    for task in ("regression", "classification"):
        own = [line for line in lines if line["task"] == task]
        base = {_run(line): line for line in own if line["model"] == "auto"}
        for name in dict.fromkeys(line["model"] for line in own):
            cells = [_cell([line for line in own if line["model"] == name], base, num) for num in LABELS]
            print(f"| {task} | {name} |", " | ".join(cells), "|")


def _cell(own: list[dict[str, Any]], base: dict[tuple[Any, ...], dict[str, Any]], num: int) -> str:
    pairs = [(line, base[_run(line)]) for line in own if line["labels"] == num]
    if not pairs:
        return "none"
    ratio = np.exp(np.mean([np.log(_error(line) / _error(auto)) for line, auto in pairs]))
    likelihood = np.mean([line["log_likelihood"] for line, _ in pairs])
    chosen = np.mean([auto["chosen"] == line["model"] for line, auto in pairs])
    return f"{ratio:.2f}, {likelihood:.2f}, {chosen:.0%}"


def _run(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["table"], line["seed"], line["labels"]


def _error(line: dict[str, Any]) -> float:
    return float(line["error"]) + (0.005 if line["task"] == "classification" else 0)  # rates may be zero


def main() -> None:
    """Run tables, or print the summary."""
    parser = argparse.ArgumentParser(description="Compare the automatic choice with its candidates.")
    parser.add_argument("task", choices=["regression", "classification", "summary"])
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for path in given.tables:
        run(given.task, path, given.seeds, given.out)
    if given.task == "summary":
        summary(given.out)


if __name__ == "__main__":
    main()
