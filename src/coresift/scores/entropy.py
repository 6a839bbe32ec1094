"""Maximum entropy: label what the model is least sure about."""

from __future__ import annotations

from functools import singledispatch

from torch import Tensor
from torch.distributions import Categorical, Distribution, StudentT

from coresift.checks import check_classes
from coresift.errors import InputError
from coresift.pool import Pool
from coresift.posteriors.base import Posterior
from coresift.scores.base import Score, score_pool
from coresift.special import student_t_entropy


def entropy(posterior: Posterior, pool: Pool) -> Score:
    """Score points by H[y | x_n, D0], in nats; differential for continuous outputs."""
    return score_pool(lambda x: distribution_entropy(posterior.predictive(x)), pool)


@singledispatch
def distribution_entropy(distribution: Distribution) -> Tensor:
    """Return the entropy of each member of a batch of distributions."""
    try:
        return distribution.entropy()
    except NotImplementedError:
        raise InputError(
            f"{type(distribution).__name__} has no entropy in closed form; "
            "choose a strategy that needs none, such as 'acs-fw' or 'variance'"
        ) from None


@distribution_entropy.register
def _(distribution: Categorical) -> Tensor:
    check_classes(distribution.probs.shape[-1])
    found: Tensor = distribution.entropy()  # type: ignore[no-untyped-call]
    return found


@distribution_entropy.register
def _(distribution: StudentT) -> Tensor:
    """Use a formula that is faster than torch's."""
    return student_t_entropy(distribution.df, distribution.scale)
