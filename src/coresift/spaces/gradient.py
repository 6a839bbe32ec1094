"""The gradient space of BADGE: the last layer's loss gradient if the predicted label were the true one."""

from __future__ import annotations

from typing import Any

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
    """Map points to gradients (p_n - onehot(argmax p_n)) (x) features_n.

    References
    ----------
    Ash et al., Deep Batch Active Learning by Diverse, Uncertain Gradient Lower Bounds, 2020.
    """
    problem.check_labelled_features()
    posterior, pool, labelled = problem.posterior, problem.pool, problem.labelled
    if labelled is None and problem.labelled_features is not None:
        raise InputError(
            "features of labelled points go with labelled= here: gradients need the model's predictions"
        )
    if problem.memory is not None:
        row = pool.take([0])
        seen = model_features(posterior, row) if problem.features is None else problem.features.take([0])
        # Probabilities, predicted labels and features come in float64, and are then joined.
        needed = CLOSED_FORM_BYTES + 32 * class_probabilities(posterior, row).numel() + 24 * seen.numel()
        check_room(len(pool), needed, problem.memory, "try 'predictive-lcmd'")

    @torch.no_grad()
    def map_rows(source: Pool, seen: Pool | None) -> tuple[Tensor, Tensor]:
        probs = torch.cat([class_probabilities(posterior, block.x) for block in read(source)])
        predicted = torch.nn.functional.one_hot(probs.argmax(1), probs.shape[1])
        rows = [model_features(None if seen else posterior, block.x) for block in read(seen or source)]
        return probs - predicted, torch.cat(rows)

    mapped = None
    if labelled is not None:
        known = problem.labelled_features
        mapped = map_rows(as_pool(labelled), None if known is None else as_pool(known))
    return stored_outer_space(*map_rows(pool, problem.features), labelled=mapped)


def badge_space(posterior: Posterior, pool: Pool, labelled: Tensor | None = None, **given: Any) -> OuterSpace:
    """Build the space of `badge`; ``given`` are further attributes of a `Problem`, such as ``features``."""
    return badge(Problem(pool, posterior, labelled=labelled, **given))


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
