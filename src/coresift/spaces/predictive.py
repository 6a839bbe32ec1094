"""The predictive covariance as a space: what greedy log-determinant and LCMD batches are built on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, singledispatch
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from coresift.checks import check_classes, check_finite, check_integer, check_samples
from coresift.errors import InputError
from coresift.limits import PREDICTIVE_ROWS, PROJECTED_WIDTH
from coresift.pool import Pool, as_pool
from coresift.posteriors.base import Posterior, closed_form
from coresift.posteriors.samples import mean_over, rows_at_a_time
from coresift.spaces.problem import Problem
from coresift.spaces.storage import Columns, map_pool
from coresift.spaces.vectors import VectorSpace

Scaling: TypeAlias = Literal["information", "margin"]


@dataclass(frozen=True)
class Predictive:
    """Builds the predictive space of a problem: the distances of the default strategy.

    Parameters
    ----------
    num_dimensions : vectors with more numbers are projected to this many; ``None`` keeps all.
    scaling : how vectors for classes are scaled. "margin" makes them long where the two likeliest classes are
        close; "information" measures what labels say about the model. See `predictive_space`.
    """

    num_dimensions: int | None = 512
    scaling: Scaling = "margin"

    def __call__(self, problem: Problem) -> VectorSpace:
        return predictive_space(
            problem.posterior,
            problem.pool,
            problem.num_samples,
            generator=problem.generator,
            labelled=problem.labelled,
            num_dimensions=self.num_dimensions,
            scaling=self.scaling,
            exact=problem.exact,
            memory=problem.memory,
        )


def predictive_space(
    posterior: Posterior,
    pool: Pool,
    num_samples: int = 256,
    *,
    generator: torch.Generator,
    labelled: Tensor | None = None,
    num_dimensions: int | None = None,
    scaling: Scaling = "information",
    exact: bool = True,
    memory: int | None = None,
) -> VectorSpace:
    """Map points to vectors whose inner products are covariances of predictions.

    Linear regression: x_n^T S x_m / s0^2, exactly, so that log det(I + K) is twice the information the
    labels of a set would give about theta. Other models, and ``exact=False``: the covariance over J samples
    of the mean of y, divided by the noise's standard deviation; for classes, of the probability of each
    class divided by its square root, summed over classes.

    ``scaling="margin"`` does not divide by these roots. It multiplies a point's vector for classes by its
    margin uncertainty (one minus the gap between the probabilities of its two likeliest classes), and divides
    it by the greatest norm it could have: that of samples which are each sure of one class.

    J samples of C classes give vectors of J C numbers. If these are more than ``num_dimensions``, they are
    projected by random signs. Inner products then have a relative error of about one over the square root of
    ``num_dimensions``, and duplicates stay duplicates.
    """
    if scaling not in get_args(Scaling):
        raise InputError(f"scaling is {scaling!r}, expected 'information' or 'margin'")
    theta = posterior.sample(check_integer(num_samples, 1, "num_samples"), generator)
    signs = RandomSigns(int(torch.randint(2**62, (), generator=generator)), num_dimensions)
    is_exact = exact and closed_form(exact_predictive_rows, posterior) is not None

    def sampled_rows(x: Tensor) -> Tensor:
        each = posterior.conditional(x, theta)
        check_samples(each)
        values = deviations(each, scaling)
        return signs.project(values.transpose(0, 1).flatten(1) / math.sqrt(len(values)))

    def map_rows(source: Pool, memory: int | None = None) -> Columns:
        if is_exact:
            return map_pool(
                source, PREDICTIVE_ROWS, lambda block: exact_predictive_rows(posterior, block.x).mT, memory
            )
        first = next(source.chunks()).x[:1]
        check_finite(first)
        size = rows_at_a_time(posterior.conditional(first, theta), PREDICTIVE_ROWS)
        return map_pool(source, size, lambda block: sampled_rows(block.x).mT, memory)

    with torch.no_grad():
        space = VectorSpace(map_rows(pool, memory), None if labelled is None else map_rows(as_pool(labelled)))
    space.additive = False
    return space


@singledispatch
def exact_predictive_rows(posterior: Posterior, x: Tensor) -> Tensor:
    """Return (n, d) rows whose inner products are the covariances of the predictions for ``x``, by formula.

    Posteriors that have a formula register it here.
    """
    raise InputError(f"the predictive covariance of a {type(posterior).__name__} has no closed form")


@dataclass(frozen=True)
class RandomSigns:
    """Projects rows to fewer numbers by a fixed matrix of random signs."""

    seed: int
    num_dimensions: int | None

    def project(self, rows: Tensor) -> Tensor:
        """Return (n, num_dimensions) from rows (n, width); rows that are short already stay as they are."""
        num = self.num_dimensions
        if num is None or rows.shape[1] <= num:
            return rows
        found = rows.new_zeros(len(rows), num, dtype=torch.float32)
        sizes = list(_sizes(rows.shape[1]))
        packed_signs = torch.split(_packed_signs(self.seed, rows.shape[1], num), sizes)
        for part, packed in zip(torch.split(rows, sizes, 1), packed_signs, strict=True):
            signs = torch.from_numpy(np.unpackbits(packed.numpy(), axis=1, count=num)).to(rows.device).float()
            found.addmm_(part.float(), signs.mul_(2).sub_(1).div_(math.sqrt(num)))
        return found


@lru_cache(maxsize=1)
def _packed_signs(seed: int, width: int, num: int) -> Tensor:
    """Draw (width, num) signs as bits, eight to a byte: for many classes there are many."""
    generator = torch.Generator().manual_seed(seed)
    bits = [
        np.packbits(torch.randint(2, (size, num), generator=generator, dtype=torch.uint8).numpy(), axis=1)
        for size in _sizes(width)
    ]
    return torch.from_numpy(np.concatenate(bits))


def _sizes(width: int) -> Iterator[int]:
    """Yield the sizes of the parts that a row is projected in."""
    return (min(PROJECTED_WIDTH, width - start) for start in range(0, width, PROJECTED_WIDTH))


def deviations(each: Distribution, scaling: Scaling) -> Tensor:
    """Return (J, n, ...) scaled deviations of what J samples predict from their mean."""
    if not isinstance(each, Categorical | Bernoulli):
        return (each.mean - mean_over(each.mean)) / each.variance.mean(0).sqrt()
    return _scaled_by_margin(each) if scaling == "margin" else _scaled_by_information(each)


def _scaled_by_information(each: Categorical | Bernoulli) -> Tensor:
    several = isinstance(each, Categorical) and each.probs.shape[-1] > 2
    probs = each.probs if several or isinstance(each, Bernoulli) else each.probs[..., 1]
    mean = mean_over(probs)
    # One of two classes tells all, and the square is (p - m)^2 (1 / m + 1 / (1 - m)).
    variance = mean if several else mean * (1 - mean)
    return (probs - mean) / variance.clamp_min(1e-30).sqrt()


def _scaled_by_margin(each: Categorical | Bernoulli) -> Tensor:
    mean = mean_over(each.probs)
    values = each.probs - mean
    if isinstance(each, Categorical):
        return values * _margin_scale(mean).unsqueeze(-1)
    # Both of two classes deviate by the same amount.
    return math.sqrt(2) * values * _margin_scale(torch.stack([1 - mean, mean], -1))


def _margin_scale(mean: Tensor) -> Tensor:
    """Return (...) margin uncertainty over the greatest norm of deviations from means (..., C)."""
    greatest = (mean * (1 - mean)).sum(-1).sqrt()
    # Where the model is almost sure, rounding would leave nothing of the two.
    return margin_uncertainty(mean).clamp_min(1e-6) / greatest.clamp_min(1e-6)


def margin_uncertainty(probs: Tensor) -> Tensor:
    """Return (...) one minus the gap between the two likeliest of (..., C) classes."""
    check_classes(probs.shape[-1])
    first, second = probs.topk(2, -1).values.unbind(-1)
    return 1 - (first - second)
