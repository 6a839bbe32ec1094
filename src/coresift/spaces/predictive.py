"""The predictive space of the default strategy: inner products are covariances of scaled predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, singledispatch
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from coresift.checks import check_choice
from coresift.errors import InputError
from coresift.limits import MAPPED_ROWS, PROJECTED_WIDTH
from coresift.pool import Pool
from coresift.posteriors.base import Posterior
from coresift.posteriors.samples import first_prediction, mean_over, rows_at_a_time
from coresift.spaces.base import Problem
from coresift.spaces.vectors import VectorSpace, mapped_space
from coresift.types import Chunk

Scaling: TypeAlias = Literal["information", "margin"]


@dataclass(frozen=True)
class Predictive:
    """Builds the predictive space of a problem: inner products are covariances of scaled predictions.

    Linear regression has a closed form: the inner product is x_n^T S x_i / s0^2, for the posterior covariance
    S and the noise variance s0^2. With G the Gram matrix (inner products) of some points, log det(I + G) is
    twice the information that their labels would give about theta. So does a `GaussianProcessOnPool`, whose
    covariances replace x_n^T S x_i.

    Other models, and these two with ``exact=False``, draw J samples. For regression, sample j predicts
    for point n a mean mu_jn and a noise variance v_jn. Their means over samples are mu_n and v_n. The squared
    distance between points n and i is

        d^2(n, i) = (1/J) sum_j [(mu_jn - mu_n) / sqrt(v_n) - (mu_ji - mu_i) / sqrt(v_i)]^2

    For classes, p_jnc is the probability of class c at point n by sample j, and m_nc its mean over samples.
    The squared distance between points n and i is

        d^2(n, i) = (1/J) sum_j sum_c [s_nc (p_jnc - m_nc) - s_ic (p_jic - m_ic)]^2

    Both are ||L_n - L_i||^2 for the vectors L_n that are built below: J numbers, or J C for classes. If these
    are more than ``num_dimensions``, vectors are projected, and distances are approximate. Each p that is
    passed to `select`, or comes from an ensemble or a dropout model, has a lower bound
    (`posteriors.samples.FLOOR`). Distances from points to centres are computed by
    `search.cpu_distances.VectorDistances`, on a GPU with Triton by `search.cuda_kernels._add_centre`. On Ray,
    each worker has a `VectorDistances` of its part of the pool.

    The factor s_nc depends on ``scaling``. With "information" it is 1 / sqrt(m_nc); where there are only two
    classes, the sum is over one of them, with 1 / sqrt(m_nc (1 - m_nc)). With "margin", which the default
    strategy uses, all classes c of a point have the same factor:

        s_nc = max(1 - (m_n(1) - m_n(2)), 1e-6) / max(sqrt(sum_c m_nc (1 - m_nc)), 1e-6)

    where m_n(1) and m_n(2) are the two largest of m_n1..m_nC.

    Parameters
    ----------
    num_dimensions : vectors from J samples of C classes have J C numbers. If that is more than this many,
        random signs project them to this many; ``None`` keeps all. A projected inner product has an error of
        about 1 / sqrt(num_dimensions) of the product of both norms. Equal vectors stay equal.
    scaling : how vectors for classes are scaled. "information" measures what labels say about the model.
        "margin" gives a large norm to points where the two likeliest classes are close: the norm is at most
        the margin uncertainty, the numerator of s_nc, and equal to it if each sample is sure of one class.
    """

    num_dimensions: int | None = 512
    scaling: Scaling = "margin"

    def __post_init__(self) -> None:
        check_choice(self.scaling, get_args(Scaling), "scaling")

    def __call__(self, problem: Problem) -> VectorSpace:
        posterior, theta = problem.posterior, problem.draw()
        seed = int(torch.randint(2**62, (), generator=problem.generator))
        exact = problem.closed_form(exact_predictive_rows)

        def sampled(block: Chunk) -> Tensor:
            values = deviations(posterior.conditional(block.x, theta), self.scaling)
            rows = values.transpose(0, 1).flatten(1) / math.sqrt(len(values))
            return project(rows, self.num_dimensions, seed).mT

        if exact:
            space = mapped_space(problem, MAPPED_ROWS, lambda block: exact(posterior, block.x).mT)
        else:
            first = first_prediction(posterior, problem.pool, theta)
            space = mapped_space(problem, rows_at_a_time(first, MAPPED_ROWS), sampled)
        space.additive = False  # log-likelihoods of points add up, predictions do not
        return space


def predictive_space(
    posterior: Posterior,
    pool: Pool,
    num_samples: int = 256,
    *,
    num_dimensions: int | None = None,
    scaling: Scaling = "information",
    **given: Any,
) -> VectorSpace:
    """Build the space of `Predictive`.

    The defaults are not those of the default strategy, 'predictive-lcmd': here all dimensions are kept, and
    classes are scaled by "information"; the strategy has ``num_dimensions=512`` and ``scaling="margin"``.

    ``given`` are further attributes of a `Problem`, such as ``generator`` and ``labelled``.
    """
    return Predictive(num_dimensions, scaling)(Problem(pool, posterior, num_samples=num_samples, **given))


@singledispatch
def exact_predictive_rows(posterior: Posterior, x: Tensor) -> Tensor:
    """Return (n, d) rows whose products are covariances of predictions. Posteriors register formulas."""
    raise InputError(f"the predictive covariance of a {type(posterior).__name__} has no closed form")


def project(rows: Tensor, num: int | None, seed: int) -> Tensor:
    """Return (n, num) from rows (n, width) by a fixed matrix of random signs; short rows stay as they are."""
    width = rows.shape[1]
    if num is None or width <= num:
        return rows
    found = rows.new_zeros(len(rows), num, dtype=torch.float32)
    packed_signs = torch.split(_packed_signs(seed, width, num), PROJECTED_WIDTH)
    for part, packed in zip(torch.split(rows, PROJECTED_WIDTH, 1), packed_signs, strict=True):
        signs = torch.from_numpy(np.unpackbits(packed.numpy(), axis=1, count=num)).to(rows.device).float()
        found.addmm_(part.float(), signs.mul_(2).sub_(1).div_(math.sqrt(num)))
    return found


@lru_cache(maxsize=1)
def _packed_signs(seed: int, width: int, num: int) -> Tensor:
    """Draw (width, num) signs as bits, eight to a byte: for many classes there are many."""
    generator, bits = torch.Generator().manual_seed(seed), []
    for start in range(0, width, PROJECTED_WIDTH):
        size = min(PROJECTED_WIDTH, width - start)
        drawn = torch.randint(2, (size, num), generator=generator, dtype=torch.uint8)
        bits.append(np.packbits(drawn.numpy(), axis=1))
    return torch.from_numpy(np.concatenate(bits))


def deviations(each: Distribution, scaling: Scaling) -> Tensor:
    """Return (J, n, ...) scaled deviations of what J samples predict from their mean."""
    if not isinstance(each, Categorical | Bernoulli):
        return (each.mean - mean_over(each.mean)) / each.variance.mean(0).sqrt()
    return _scaled_by_margin(each) if scaling == "margin" else _scaled_by_information(each)


def _scaled_by_information(each: Categorical | Bernoulli) -> Tensor:
    probs = each.probs
    several = isinstance(each, Categorical) and probs.shape[-1] > 2
    if isinstance(each, Categorical) and not several:  # one of two classes tells all
        probs = probs[..., 1]
    mean = mean_over(probs)
    # With two classes, the square is (p - m)^2 (1 / m + 1 / (1 - m)).
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
    first, second = probs.topk(2, -1).values.unbind(-1)
    return 1 - (first - second)
