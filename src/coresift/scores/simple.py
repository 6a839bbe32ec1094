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
from coresift.spaces.predictive import wavering


def margin(posterior: Posterior, pool: Pool) -> Score:
    """One minus the gap between the two most likely classes: high where the model wavers."""
    return score_pool(lambda x: wavering(class_probabilities(posterior, x)), pool)


def variance(posterior: Posterior, pool: Pool) -> Score:
    """The variance of y; for classes the sum of p (1 - p), for several outputs the sum over them."""

    def spread(x: Tensor) -> Tensor:
        predictive = posterior.predictive(x)
        if isinstance(predictive, Categorical):
            check_classes(predictive.probs.shape[-1])
            return (predictive.probs * (1 - predictive.probs)).sum(-1)
        return predictive.variance.flatten(1).sum(1) if predictive.event_shape else predictive.variance

    return score_pool(spread, pool)


def acs_norm(space: Space, pool: Pool | None = None) -> Score:
    """The paper's acquisition function: ||L_n||^2, what a point would count for on its own; in units of the
    space's ``scale``.
    """
    return Score(torch.square(space.norms).cpu(), pool)
