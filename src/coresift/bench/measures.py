"""Measure predictions on a test set."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coresift.posteriors.samples import FLOOR


def measure(predictive: Any, target: npt.NDArray[Any], classes: npt.NDArray[Any] | None) -> dict[str, Any]:
    """Compare predictions with the truth (n,): the measures of a `Round`.

    The log density is the mean over the test set; for classes, it is the log probability of the true ones.

    Parameters
    ----------
    predictive : a distribution over numbers or, with ``classes`` (C,), over these.
    """
    if classes is not None:
        return _measure_classes(predictive, target, classes)
    truth = torch.as_tensor(target).to(predictive.mean)
    return {
        "rmse": float((predictive.mean - truth).square().mean().sqrt()),
        "log_density": float(predictive.log_prob(truth).mean()),
    }


def _measure_classes(predictive: Any, target: npt.NDArray[Any], classes: npt.NDArray[Any]) -> dict[str, Any]:
    # A class that the model has never met has no column. A point of it is wrong, and as unlikely as what
    # models call impossible; with less, the mean would tell little but how many of these points there are.
    column = np.searchsorted(classes, target).clip(max=len(classes) - 1)
    met = torch.as_tensor(classes[column] == target)
    probs = predictive.probs.double().cpu()
    of_target = probs.gather(1, torch.as_tensor(column)[:, None])[:, 0]
    right = met & (probs.argmax(1) == torch.as_tensor(column))
    smallest = torch.finfo(torch.float32).tiny
    return {
        "rmse": None,
        "log_density": float(torch.where(met, of_target, FLOOR).clamp(min=smallest).log().mean()),
        "accuracy": float(right.double().mean()),
        "calibration_error": calibration_error(probs.amax(1), right),
    }


def calibration_error(confidence: Tensor, right: Tensor, bins: int = 15) -> float:
    """Average how far confidence and accuracy are apart over points sorted into bins of confidence.

    ``confidence`` (n,) is the probability of the most likely class, ``right`` (n,) whether that was the true
    one (Guo et al., On Calibration of Modern Neural Networks, 2017).

    >>> calibration_error(torch.tensor([0.8, 0.8, 0.8, 0.8]), torch.tensor([True, True, True, False]))
    0.05
    """
    bin_of = (confidence * bins).long().clamp(max=bins - 1)
    gaps = torch.zeros(bins, dtype=torch.float64)
    gaps.index_add_(0, bin_of, confidence.double() - right.double())
    return round(float(gaps.abs().sum() / len(confidence)), 6)
