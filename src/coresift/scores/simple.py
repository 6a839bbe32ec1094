"""Scores that read the predictive alone: margin and variance; and the norm of a space's vectors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical

from coresift.checks import check_classes
from coresift.pool import Pool
from coresift.posteriors.base import Posterior
from coresift.scores.base import Score, score_pool
from coresift.spaces.base import Space
from coresift.spaces.gradient import class_probabilities
from coresift.spaces.predictive import margin_uncertainty


def margin(posterior: Posterior, pool: Pool) -> Score:
    """Score points by margin uncertainty: one minus the gap between the two most likely classes."""
    return score_pool(lambda x: margin_uncertainty(class_probabilities(posterior, x)), pool)


def variance(posterior: Posterior, pool: Pool) -> Score:
    """Score points by the variance of y; for classes the sum of p (1 - p), for several outputs their sum."""

    def total_variance(x: Tensor) -> Tensor:
        predictive = posterior.predictive(x)
        if isinstance(predictive, Categorical):
            check_classes(predictive.probs.shape[-1])
            return (predictive.probs * (1 - predictive.probs)).sum(-1)
        return predictive.variance.flatten(1).sum(1) if predictive.event_shape else predictive.variance

    return score_pool(total_variance, pool)


def acs_norm(space: Space, pool: Pool | None = None) -> Score:
    """Score points by the paper's acquisition function ||L_n||^2, in units of the space's scale."""
    return Score(torch.square(space.norms).cpu(), pool)
