"""Find, by labels that were left out, how far a network underestimates the noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.distributions import Distribution, StudentT

# Separates the seeds of the folds from those of the fit itself.
_FOLDS = 0x5EED


@dataclass(frozen=True, eq=False)
class Fold:
    """A split of a labelled set into rows to train on and rows to leave out.

    Attributes
    ----------
    number : of the labelled set.
    kept, left_out : indices of its rows.
    seed : of the network that is trained on the fold.
    """

    number: int
    kept: Tensor
    left_out: Tensor
    seed: int


class Calibration(NamedTuple):
    """What left-out labels say about a labelled set; of two, the smaller is better.

    Attributes
    ----------
    loss : minus the log density of the left-out labels, up to a constant.
    level : of regularisation.
    factors : for each output, the factor on the noise variance.
    """

    loss: float
    level: int
    factors: list[float]


class Residuals(NamedTuple):
    """Left-out labels minus their predictions, with the scale and degrees of freedom of Student's t: (n,)."""

    errors: Tensor
    scale: Tensor
    df: Tensor

    @classmethod
    def of(cls, predictive: Distribution, y: Tensor) -> Residuals:
        assert isinstance(predictive, StudentT)
        return cls(y.to(predictive.loc) - predictive.loc, predictive.scale, predictive.df)


def make_folds(sizes: Sequence[int], seeds: Sequence[int], folds: int) -> list[Fold]:
    """Split labelled sets of these sizes; those with fewer than four labels for each fold get none."""
    made: list[Fold] = []
    for number, (size, seed) in enumerate(zip(sizes, seeds, strict=True)):
        if folds < 2 or size < 4 * folds:
            continue
        generator = torch.Generator().manual_seed(seed ^ _FOLDS)
        order = torch.randperm(size, generator=generator)
        part = size // folds
        for fold in range(folds):
            start, end = fold * part, (fold + 1) * part
            kept = torch.cat([order[:start], order[end:]])
            own_seed = int(torch.randint(2**62, (), generator=generator))
            made.append(Fold(number, kept, order[start:end], own_seed))
    return made


def calibrate(level: int, outputs: Iterable[Sequence[Residuals]]) -> Calibration:
    """Find the best factors at a level of regularisation, from the residuals of each output in each fold."""
    losses, factors = zip(*(_best_factor(residuals) for residuals in outputs), strict=True)
    return Calibration(sum(losses), level, list(factors))


def _best_factor(residuals: Sequence[Residuals]) -> tuple[float, float]:
    """Find the factor on the squared scale of Student's t under which the residuals are most likely.

    Returns minus the log density, up to a constant, and the factor.
    """
    errors, scale, df = (torch.cat(values) for values in zip(*residuals, strict=True))
    squares = (errors / scale).square()

    def loss(log_factor: float) -> float:
        density = 0.5 * log_factor + 0.5 * (df + 1) * torch.log1p(squares / df / math.exp(log_factor))
        return float((density + scale.log()).sum())

    best = minimize_scalar(loss, bounds=(-3, 10), method="bounded")
    return float(best.fun), math.exp(best.x)
