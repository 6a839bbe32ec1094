"""The predictive covariance as a space: what greedy log-determinant and LCMD batches are built on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from coresift.checks import check_classes, check_finite, check_integer, check_several
from coresift.pool import Pool, as_pool
from coresift.posteriors.base import Posterior
from coresift.posteriors.linear import LinearPosterior, NormalInverseGammaPosterior
from coresift.posteriors.samples import mean_over, rows_at_a_time
from coresift.spaces.storage import Columns, map_pool
from coresift.spaces.vectors import VectorSpace
from coresift.types import InputError

# Numbers for each point that are projected at a time.
_WIDTH = 8192

Lengths: TypeAlias = Literal["information", "wavering"]


def predictive_space(
    posterior: Posterior,
    pool: Pool,
    num_samples: int = 256,
    *,
    generator: torch.Generator,
    labelled: Tensor | None = None,
    num_dimensions: int | None = None,
    lengths: Lengths = "information",
    memory: int | None = None,
) -> VectorSpace:
    """Vectors whose inner products are covariances of what is predicted.

    Linear regression: x_n^T S x_m / s0^2, exactly, so that log det(I + K) is twice the information the
    labels of a set would give about theta. Other models: the covariance over J samples of the mean of y,
    divided by the noise's standard deviation; for classes, of the probability of each divided by its square
    root, added up over classes.

    ``lengths="wavering"`` leaves out the roots and makes vectors for classes as long as the model wavers (one
    less the gap between the probabilities of its two likeliest classes), times the root of the share of its
    doubt that is between samples: one where each is sure of a class, none where all say the same.

    J samples of C classes make vectors of J C numbers. Where that is more than ``num_dimensions``, they are
    brought down to so many by random signs, which keeps inner products up to a relative error of about one
    over the square root of ``num_dimensions``, and points that are the same the same.
    """
    if lengths not in get_args(Lengths):
        raise InputError(f"lengths is {lengths!r}, expected 'information' or 'wavering'")
    theta = posterior.sample(check_integer(num_samples, 1, "num_samples"), generator)
    seed = int(torch.randint(2**62, (), generator=generator))

    @cache
    def draws(width: int, num: int) -> Tensor:
        """(width, num) of zero or one, eight to a byte: of many classes there are many."""
        draw = torch.Generator().manual_seed(seed)
        bits = [
            np.packbits(torch.randint(2, (size, num), generator=draw, dtype=torch.uint8).numpy(), axis=1)
            for size in _sizes(width)
        ]
        return torch.from_numpy(np.concatenate(bits))

    def project(rows: Tensor, num: int) -> Tensor:
        """(n, num) from rows (n, width), by random signs."""
        bits, found = draws(rows.shape[1], num), rows.new_zeros(len(rows), num, dtype=torch.float32)
        sizes = list(_sizes(rows.shape[1]))
        for part, packed in zip(torch.split(rows, sizes, 1), torch.split(bits, sizes), strict=True):
            signs = torch.from_numpy(np.unpackbits(packed.numpy(), axis=1, count=num)).to(rows.device).float()
            found.addmm_(part.float(), signs.mul_(2).sub_(1).div_(math.sqrt(num)))
        return found

    def deviations(x: Tensor) -> Tensor:
        """(n, J) or (n, d) rows of the factor."""
        if isinstance(posterior, LinearPosterior):
            return posterior.features(x) @ (posterior.factor / math.sqrt(posterior.noise_variance))
        if isinstance(posterior, NormalInverseGammaPosterior):
            return posterior.features(x) @ posterior.factor
        each = posterior.conditional(x, theta)
        check_several(each)
        if isinstance(each, Categorical):
            check_classes(each.probs.shape[-1])
        if lengths == "wavering" and isinstance(each, Categorical | Bernoulli):
            values = _by_wavering(each)
        else:
            values = _by_information(each)
        rows = values.transpose(0, 1).flatten(1) / math.sqrt(len(values))
        if num_dimensions is None or rows.shape[1] <= num_dimensions:
            return rows
        return project(rows, num_dimensions)

    def map_rows(source: Pool, memory: int | None = None) -> Columns:
        with torch.no_grad():
            size = 1024
            if not isinstance(posterior, LinearPosterior | NormalInverseGammaPosterior):
                row = next(source.chunks()).x[:1]
                check_finite(row)
                size = rows_at_a_time(posterior.conditional(row, theta), 1024)
            return map_pool(source, size, lambda block: deviations(block.x).mT, memory)

    space = VectorSpace(map_rows(pool, memory), None if labelled is None else map_rows(as_pool(labelled)))
    space.additive = False
    return space


def _sizes(width: int) -> Iterator[int]:
    """Numbers of a row, cut into parts."""
    return (min(_WIDTH, width - start) for start in range(0, width, _WIDTH))


def wavering(probs: Tensor) -> Tensor:
    """(...) one less the gap between the two likeliest of (..., C) classes."""
    check_classes(probs.shape[-1])
    first, second = probs.topk(2, -1).values.unbind(-1)
    return 1 - (first - second)


def _by_information(each: Distribution) -> Tensor:
    """(J, n, ...) from samples of batch shape (J, n)."""
    if isinstance(each, Categorical | Bernoulli):
        several = isinstance(each, Categorical) and each.probs.shape[-1] > 2
        probs = each.probs if several or isinstance(each, Bernoulli) else each.probs[..., 1]
        mean = mean_over(probs)
        # Of two classes one says all, and the square is (p - m)^2 (1 / m + 1 / (1 - m)).
        variance = mean if several else mean * (1 - mean)
        return (probs - mean) / variance.clamp_min(1e-30).sqrt()
    return (each.mean - mean_over(each.mean)) / each.variance.mean(0).sqrt()


def _by_wavering(each: Categorical | Bernoulli) -> Tensor:
    """(J, n, ...) from samples of batch shape (J, n)."""
    mean = mean_over(each.probs)
    values = each.probs - mean
    if isinstance(each, Categorical):
        return values * _wavering_to_greatest(mean).unsqueeze(-1)
    # Two classes, one as far as the other.
    return math.sqrt(2) * values * _wavering_to_greatest(torch.stack([1 - mean, mean], -1))


def _wavering_to_greatest(mean: Tensor) -> Tensor:
    """(...) how much a model of mean probabilities (..., C) wavers, to the greatest length of deviations that
    it could have: that of votes for one class each.
    """
    greatest = (mean * (1 - mean)).sum(-1).sqrt()
    # Where the model is all but sure, rounding would leave nothing of the two.
    return wavering(mean).clamp_min(1e-6) / greatest.clamp_min(1e-6)
