"""Fisher spaces: inner products of gradients, E[grad L_n(theta) . grad L_m(theta)]."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coresift.checks import check_integer
from coresift.pool import Pool, as_pool, read
from coresift.posteriors.base import LastLayerPosterior, Posterior
from coresift.posteriors.linear import LinearPosterior, NormalInverseGammaPosterior
from coresift.posteriors.probit import ProbitPosterior
from coresift.spaces.base import Space
from coresift.spaces.likelihood import expected_log_likelihood
from coresift.spaces.linear import linear_fisher_space
from coresift.spaces.outer import OuterSpace, stored_outer_space
from coresift.spaces.probit import ProbitFisherSpace
from coresift.types import InputError


def fisher_space(
    posterior: Posterior,
    pool: Pool,
    num_samples: int = 64,
    *,
    generator: torch.Generator,
    labelled: Tensor | None = None,
    exact: bool = True,
) -> Space:
    """The Fisher space: in closed form for linear and probit regression, by last-layer gradients for others.

    Pass ``exact=False`` for sampled gradients in any case.
    """
    if exact and isinstance(posterior, LinearPosterior | NormalInverseGammaPosterior):
        return linear_fisher_space(posterior, pool, labelled)
    if exact and isinstance(posterior, ProbitPosterior):
        return ProbitFisherSpace(posterior, pool, labelled)
    return last_layer_fisher_space(posterior, pool, num_samples, generator=generator, labelled=labelled)


def last_layer_fisher_space(
    posterior: Posterior,
    pool: Pool,
    num_samples: int = 64,
    *,
    generator: torch.Generator,
    labelled: Tensor | None = None,
) -> OuterSpace:
    """Gradients of L_n with respect to the weights of the last layer, at J posterior samples.

    The gradient at theta_j is the outer product of dL_n/d outputs (C numbers) and the features (D numbers),
    so the inner product over all J C D coordinates is (errors_n . errors_m) (features_n . features_m):
    exact for the samples at hand, with no random choice of coordinates.
    """
    if not isinstance(posterior, LastLayerPosterior):
        raise InputError(
            f"{type(posterior).__name__} has no last layer to take gradients of; it needs the methods "
            "features, outputs and likelihood of coresift.posteriors.LastLayerPosterior; 'acs-fw' needs none"
        )
    theta = posterior.sample(check_integer(num_samples, 1, "num_samples"), generator)

    def map_rows(source: Pool) -> tuple[Tensor, Tensor]:
        errors, features = [], []
        for block in read(source, 1024):
            seen = posterior.features(block.x).detach()
            outputs = posterior.outputs(seen, theta).detach().requires_grad_()  # (J, n, C)
            values = expected_log_likelihood(
                posterior.predictive(block.x), posterior.likelihood(outputs, theta), block.start
            )
            (gradient,) = torch.autograd.grad(values.sum(), outputs)
            errors.append(gradient.transpose(0, 1).flatten(1) / math.sqrt(len(gradient)))  # (n, J C)
            features.append(seen)
        return torch.cat(errors), torch.cat(features)

    mapped = None if labelled is None else map_rows(as_pool(labelled))
    return stored_outer_space(*map_rows(pool), labelled=mapped)
