"""The predictive covariance as a space: what greedy log-determinant and LCMD batches are built on."""

from __future__ import annotations

import math
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from coresift.checks import check_several
from coresift.models.base import Posterior
from coresift.models.linear import LinearPosterior, NormalInverseGammaPosterior
from coresift.pool import Pool, as_pool
from coresift.spaces.storage import Columns, map_pool
from coresift.spaces.vectors import VectorSpace


def predictive_space(
    posterior: Posterior,
    pool: Pool,
    num_samples: int = 256,
    *,
    generator: torch.Generator,
    labelled: Tensor | None = None,
    num_dimensions: int | None = None,
    lengths: Literal["information", "wavering"] = "information",
    memory: int | None = None,
) -> VectorSpace:
    """Vectors whose inner products are covariances of what is predicted.

    Linear regression: x_n^T S x_m / s0^2, exactly, so that log det(I + K) is twice the information the
    labels of a set would give about theta. Other models: the covariance over J samples of the mean of y,
    divided by the noise's standard deviation; for classes, of the probability of each divided by its square
    root, added up over classes.

    ``lengths="wavering"`` leaves out the roots and makes vectors for classes as long as the model wavers (one
    less the gap between the probabilities of its two likeliest classes) times how much of the doubt is
    between samples: all where each is sure of a class, none where they say the same.

    J samples of C classes make vectors of J C numbers. Where that is more than ``num_dimensions``, they are
    brought down to so many by random signs, which keeps inner products up to a relative error of about one
    over the square root of ``num_dimensions``, and points that are the same the same.
    """
    theta = posterior.sample(num_samples, generator)
    seed = int(torch.randint(2**62, (), generator=generator))

    @cache
    def signs(width: int, num: int) -> Tensor:
        draws = torch.randint(2, (width, num), generator=torch.Generator().manual_seed(seed))
        return (2.0 * draws - 1).div_(math.sqrt(num))

    def deviations(x: Tensor) -> Tensor:
        """(n, J) or (n, d) rows of the factor."""
        if isinstance(posterior, LinearPosterior):
            return posterior.features(x) @ (posterior.factor / math.sqrt(posterior.noise_variance))
        if isinstance(posterior, NormalInverseGammaPosterior):
            return posterior.features(x) @ posterior.factor
        each = posterior.conditional(x, theta)
        check_several(each.batch_shape[0])
        if lengths == "wavering" and isinstance(each, Categorical | Bernoulli):
            rows = _by_wavering(each)
        else:
            rows = _by_information(each)
        if num_dimensions is None or rows.shape[1] <= num_dimensions:
            return rows
        return rows.float() @ signs(rows.shape[1], num_dimensions).to(rows.device)

    def map_rows(source: Pool, memory: int | None = None) -> Columns:
        with torch.no_grad():
            return map_pool(source, 1024, lambda block: deviations(block.x).mT, memory)

    space = VectorSpace(map_rows(pool, memory), None if labelled is None else map_rows(as_pool(labelled)))
    space.additive = False
    return space


def _by_information(each: Distribution) -> Tensor:
    """(n, J) or (n, J C) from samples of batch shape (J, n)."""
    if isinstance(each, Categorical):
        mean = each.probs.mean(0)
        values = (each.probs - mean) / mean.sqrt()
    else:
        values = (each.mean - each.mean.mean(0)) / each.variance.mean(0).sqrt()
    return values.transpose(0, 1).flatten(1) / math.sqrt(len(values))


def _by_wavering(each: Categorical | Bernoulli) -> Tensor:
    """(n, J C) from samples of batch shape (J, n); yes or no is two classes."""
    probs = each.probs if isinstance(each, Categorical) else torch.stack([1 - each.probs, each.probs], -1)
    mean = probs.mean(0)
    high, low = mean.topk(2, -1).values.unbind(-1)
    greatest = (1 - mean.square().sum(-1)).clamp_min(1e-12).sqrt()
    scale = (1 - (high - low)) / greatest / math.sqrt(len(probs))
    return (probs - mean).transpose(0, 1).flatten(1) * scale.unsqueeze(1)
