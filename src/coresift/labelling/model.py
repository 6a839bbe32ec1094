"""The models that a labelling project fits: one for each task, from a few dozen labels to thousands."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from coresift import limits
from coresift.estimators.candidates import large_batch, quick_epochs
from coresift.estimators.ensemble import EnsembleClassifier
from coresift.estimators.neural_linear import NeuralLinearRegressor
from coresift.labelling.records import Task

# What the ledger calls them.
MODEL_NAMES: dict[Task, str] = {"classification": "ensemble-10", "regression": "neural-linear-5"}


def default_model(task: Task, num_labels: int, seed: int) -> EnsembleClassifier | NeuralLinearRegressor:
    """Return the model that batches are chosen with: an ensemble of small networks.

    For classes it is a deep ensemble. For numbers it is several networks under Bayesian linear regression,
    because plain networks learn smooth functions badly from a few dozen labels; three folds estimate noise.

    Both are trained for fewer epochs than by default, so that a fit takes seconds. For classes, ten members
    then do as well as five that are trained longer; numbers without noise would gain from more epochs.

    >>> default_model("classification", num_labels=50, seed=0).epochs
    60
    """
    epochs = quick_epochs(num_labels)
    if task == "classification":
        return EnsembleClassifier(num_members=10, epochs=epochs, random_state=seed)
    batch_size = large_batch(num_labels)
    return NeuralLinearRegressor(
        num_members=5, epochs=epochs, batch_size=batch_size, calibration_folds=3, random_state=seed
    )


def quick_model(task: Task, num_labels: int, seed: int) -> EnsembleClassifier | NeuralLinearRegressor:
    """Return one network of the same kind, to be fitted dozens of times for a learning curve.

    Its error is a little higher than that of an ensemble. Regularisation is fixed and strong. All
    mini-batches have the same size: a last one of a few rows acts as noise, and puts steps into the curve.
    """
    usual = min(2 ** int(math.log2(max(num_labels // 2, 2))), 512)  # as `Trainer` has it
    even = math.ceil(num_labels / max(num_labels // usual, 1))
    model = default_model(task, num_labels, seed)
    model.set_params(num_members=1, batch_size=even, progress=False)
    if task == "regression":
        model.set_params(calibration_folds=0, regularisation=2)
    return model


def std_factor(
    model: NeuralLinearRegressor,
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    pool_rows: npt.NDArray[Any],
    seed: int,
) -> float:
    """Compute the factor that calibrates a fitted model's standard deviations, from left-out labels.

    Two fits may agree on where they are less certain, and differ twofold in how uncertain they are, because
    networks fit more or less of the noise. Therefore only the ratios within a fit are used. Let r_i be the
    residual of a left-out label, s_i its standard deviation, and m_i the root mean square of the same fit's
    standard deviations over the pool, of which ``pool_rows`` (p, d) are a random sample. Then
    c^2 = mean((m_i r_i / s_i)^2), and the factor is c / m with the model's own m. Standardised residuals then
    have a mean square of one. The model was fitted to ``x`` (n, d) and ``y`` (n,).
    """

    def size(one: NeuralLinearRegressor) -> float:
        return float(np.sqrt(np.mean(one.predict(pool_rows, return_std=True)[1] ** 2)))

    folds = np.random.default_rng(seed).permutation(np.arange(len(y)) % limits.CALIBRATION_FOLDS)
    num = min(limits.CALIBRATION_FOLDS, math.ceil(limits.ENOUGH_LEFT_OUT * limits.CALIBRATION_FOLDS / len(y)))
    sets = [(x[folds != fold], y[folds != fold]) for fold in range(num)]
    fits = model.fit_many(sets, [(seed + fold) % 2**32 for fold in range(num)])
    ratios = []
    for fold, fitted in enumerate(fits):
        mean, std = fitted.predict(x[folds == fold], return_std=True)
        ratios.append(size(fitted) * (y[folds == fold] - mean) / std)
    return float(np.sqrt(np.mean(np.concatenate(ratios) ** 2))) / size(model)


def predicted(
    model: Any, task: Task, rows: npt.NDArray[np.float32], std_factor: float = 1.0
) -> Iterator[tuple[str, float]]:
    """Yield for rows (n, d) the predicted label and its probability; for numbers, its std."""
    for start in range(0, len(rows), limits.ITEM_BLOCK):
        some = rows[start : start + limits.ITEM_BLOCK]
        if task == "regression":
            mean, std = model.predict(some, return_std=True)
            yield from zip(map(repr, mean.tolist()), (std_factor * std).tolist(), strict=True)
        else:
            probs = model.predict_proba(some)
            names = model.classes_[probs.argmax(1)].tolist()
            yield from zip(names, probs.max(1).tolist(), strict=True)
