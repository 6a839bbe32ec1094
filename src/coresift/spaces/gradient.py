"""The gradient space of BADGE: the last layer's loss gradient if the predicted label were the true one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical

from coresift.checks import check_classes, check_room
from coresift.errors import InputError
from coresift.limits import CLOSED_FORM_BYTES
from coresift.pool import Pool, as_pool, read
from coresift.posteriors.base import Posterior
from coresift.spaces.features import model_features
from coresift.spaces.outer import OuterSpace, stored_outer_space
from coresift.spaces.problem import Problem


def badge(problem: Problem) -> OuterSpace:
    """Build the gradient space of a problem."""
    problem.check_labelled_features()
    if problem.labelled is None and problem.labelled_features is not None:
        raise InputError(
            "features of labelled points go with labelled= here: gradients need the model's predictions"
        )
    return badge_space(
        problem.posterior,
        problem.pool,
        problem.labelled,
        problem.features,
        problem.labelled_features,
        problem.memory,
    )


def badge_space(
    posterior: Posterior,
    pool: Pool,
    labelled: Tensor | None = None,
    features: Pool | None = None,
    labelled_features: Tensor | None = None,
    memory: int | None = None,
) -> OuterSpace:
    """Map points to gradients (p_n - onehot(argmax p_n)) (x) features_n.

    Parameters
    ----------
    features : the model's features of the pool, where the posterior itself has none.

    References
    ----------
    Ash et al., Deep Batch Active Learning by Diverse, Uncertain Gradient Lower Bounds, 2020.
    """
    if memory is not None:
        row = pool.take([0])
        seen = model_features(posterior, row) if features is None else features.take([0])
        # Probabilities, predicted labels and features come in float64, and are then joined.
        numbers = 4 * class_probabilities(posterior, row).numel() + 3 * seen.numel()
        check_room(len(pool), CLOSED_FORM_BYTES + 8 * numbers, memory, "try 'predictive-lcmd'")

    def map_rows(source: Pool, seen: Pool | None) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            probs = torch.cat([class_probabilities(posterior, block.x) for block in read(source)])
            predicted = torch.nn.functional.one_hot(probs.argmax(1), probs.shape[1])
            rows = [model_features(None if seen else posterior, block.x) for block in read(seen or source)]
        return probs - predicted, torch.cat(rows)

    mapped = None
    if labelled is not None:
        mapped = map_rows(
            as_pool(labelled), None if labelled_features is None else as_pool(labelled_features)
        )
    return stored_outer_space(*map_rows(pool, features), labelled=mapped)


def class_probabilities(posterior: Posterior, x: Tensor) -> Tensor:
    """Return (n, C) predictive class probabilities; raise where the model predicts no classes."""
    predictive = posterior.predictive(x)
    if isinstance(predictive, Categorical):
        check_classes(predictive.probs.shape[-1])
        return predictive.probs
    if isinstance(predictive, Bernoulli):
        return torch.stack([1 - predictive.probs, predictive.probs], -1)
    raise InputError(
        f"this strategy needs class probabilities, but the model predicts a {type(predictive).__name__}; "
        "choose one that works for regression, such as 'acs-fw', 'maxent' or 'k-center'"
    )
