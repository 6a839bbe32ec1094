"""Maximum entropy: label what the model is least sure about."""

from __future__ import annotations

from torch import Tensor
from torch.distributions import Categorical, Distribution, StudentT

from coresift.checks import check_classes
from coresift.pool import Pool
from coresift.posteriors.base import Posterior
from coresift.scores.base import Score, score_pool
from coresift.special import student_t_entropy
from coresift.types import InputError


def entropy(posterior: Posterior, pool: Pool) -> Score:
    """H[y | x_n, D0], in nats; differential for continuous outputs."""
    return score_pool(lambda x: distribution_entropy(posterior.predictive(x)), pool)


def distribution_entropy(distribution: Distribution) -> Tensor:
    """The entropy of each member of a batch, with a fast path for Student's t."""
    if isinstance(distribution, Categorical):
        check_classes(distribution.probs.shape[-1])
    if isinstance(distribution, StudentT):
        return student_t_entropy(distribution.df, distribution.scale)
    try:
        return distribution.entropy()
    except NotImplementedError:
        raise InputError(
            f"{type(distribution).__name__} has no entropy in closed form; "
            "choose a strategy that needs none, such as 'acs-fw' or 'variance'"
        ) from None
