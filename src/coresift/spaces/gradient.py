"""Spaces of gradients: the Fisher product E[grad L_n(theta) . grad L_m(theta)], and the losses of BADGE."""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical

from coresift.checks import check_classes
from coresift.errors import InputError
from coresift.limits import MAPPED_ROWS
from coresift.pool import Pool, as_pool, read
from coresift.posteriors.base import LastLayerPosterior, Posterior
from coresift.spaces.base import Problem, Space
from coresift.spaces.features import model_features
from coresift.spaces.likelihood import expected_log_likelihood
from coresift.spaces.outer import OuterSpace, stored_outer_space


def fisher(problem: Problem) -> Space:
    """Build the Fisher space of a problem: in closed form where there is one, else of sampled gradients."""
    if exact := problem.closed_form(exact_fisher_space):
        space: Space = exact(problem.posterior, problem.pool, problem.labelled)
        return space
    return _last_layer(problem)


def fisher_space(posterior: Posterior, pool: Pool, num_samples: int = 64, **given: Any) -> Space:
    """Build the Fisher space: in closed form for linear and probit regression, of sampled gradients else.

    ``given`` are further attributes of a `Problem`, such as ``generator`` and ``labelled``; ``exact=False``
    samples gradients for all models with a last layer.
    """
    return fisher(Problem(pool, posterior, num_samples=num_samples, **given))


@singledispatch
def exact_fisher_space(posterior: Posterior, pool: Pool, labelled: Tensor | None = None) -> Space:
    """Build the Fisher space in closed form. Posteriors that have one register it here."""
    raise InputError(f"the Fisher space of a {type(posterior).__name__} has no closed form")


def _last_layer(problem: Problem) -> OuterSpace:
    """Take gradients of L_n with respect to the weights of the last layer, at J posterior samples.

    The gradient at theta_j is the outer product of dL_n/d outputs (C numbers) and the features (D numbers).
    The inner product over all J C D coordinates is therefore (errors_n . errors_m) (features_n . features_m):
    exact for these samples, with no random choice of coordinates.
    """
    posterior, pool, labelled = problem.posterior, problem.pool, problem.labelled
    if not isinstance(posterior, LastLayerPosterior):
        raise InputError(
            f"{type(posterior).__name__} has no last layer to take gradients of; it needs the methods "
            "features, outputs and likelihood of coresift.posteriors.LastLayerPosterior; 'acs-fw' needs none"
        )
    theta = problem.draw()

    def map_rows(source: Pool) -> tuple[Tensor, Tensor]:
        errors, features = [], []
        for block in read(source, MAPPED_ROWS):
            seen = posterior.features(block.x).detach()
            outputs = posterior.outputs(seen, theta).detach().requires_grad_()  # (J, n, C)
            likelihood = posterior.likelihood(outputs, theta)
            values = expected_log_likelihood(posterior.predictive(block.x), likelihood, block.start)
            (gradient,) = torch.autograd.grad(values.sum(), outputs)
            errors.append(gradient.transpose(0, 1).flatten(1) / math.sqrt(len(gradient)))  # (n, J C)
            features.append(seen)
        return torch.cat(errors), torch.cat(features)

    mapped = None if labelled is None else map_rows(as_pool(labelled))
    return stored_outer_space(*map_rows(pool), labelled=mapped)


def badge(problem: Problem) -> OuterSpace:
    """Map points to the last layer's loss gradient if the predicted label were the true one.

    It is the outer product of p_n - onehot(argmax p_n) and the features of a point.

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
