"""Scores: each says what a pool point is worth on its own; higher scores should be labelled sooner."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, StudentT

from coresift import limits
from coresift.checks import check_classes, check_finite, check_samples, check_shape
from coresift.errors import InputError
from coresift.pool import Pool, read
from coresift.posteriors.base import FiniteSamples, Posterior
from coresift.posteriors.gaussian_process import GaussianProcessPosterior
from coresift.posteriors.linear import LinearPosterior, NormalInverseGammaPosterior
from coresift.posteriors.nystrom import GaussianProcessOnPool
from coresift.posteriors.probit import ProbitPosterior
from coresift.posteriors.samples import mixture, numbers_a_row
from coresift.spaces.base import Problem, Space
from coresift.spaces.gradient import class_probabilities
from coresift.spaces.predictive import margin_uncertainty
from coresift.special import student_t_entropy
from coresift.types import Index


@dataclass(frozen=True, eq=False)
class Score:
    """One number for each point, ``values`` (N,); equal rows of the ``pool`` are duplicates."""

    values: Tensor
    pool: Pool | None = None

    def __post_init__(self) -> None:
        check_shape(self.values, (None,), "a score")
        check_finite(self.values, what="score")

    def __len__(self) -> int:
        return len(self.values)

    def identity(self, index: Index) -> list[bytes]:
        """Return bytes for each point that are equal for duplicates."""
        if self.pool is None:
            return [int(n).to_bytes(8, "little") for n in index]
        # Adding zero turns -0.0 into 0.0, so that equal numbers have equal bytes.
        return [row.tobytes() for row in (self.pool.take(index) + 0.0).cpu().numpy()]


def score_pool(function: Callable[[Tensor], Tensor], pool: Pool, block: int = limits.POOL_BLOCK) -> Score:
    """Score a pool with a function from rows (n, ...) to numbers (n,), ``block`` rows at a time.

    Blocks of large rows, such as the predictions of many samples for many classes, have fewer rows.
    """
    width = next(pool.chunks()).x[0].numel()
    block = max(min(block, limits.BLOCK_NUMBERS // max(width, 1)), 1)
    with torch.no_grad():
        values = [function(chunk.x).double().cpu() for chunk in read(pool, block)]
    return Score(torch.cat(values), pool)


def acs_norm(space: Space, pool: Pool | None = None) -> Score:
    """Score points by the paper's acquisition function ||L_n||^2, in units of the space's scale."""
    return Score(torch.square(space.norms).cpu(), pool)


def margin(posterior: Posterior, pool: Pool) -> Score:
    """Score points by margin uncertainty: one minus the gap between the two most likely classes."""
    return score_pool(lambda x: margin_uncertainty(class_probabilities(posterior, x)), pool)


def variance(posterior: Posterior, pool: Pool) -> Score:
    """Score points by the variance of y; for classes the sum of p (1 - p), for several outputs their sum."""

    def total_variance(x: Tensor) -> Tensor:
        predictive = posterior.predictive(x)
        if isinstance(predictive, Categorical):
            check_classes(predictive.probs.shape[-1])
            return (predictive.probs * (1 - predictive.probs)).sum(-1)
        return predictive.variance.flatten(1).sum(1) if predictive.event_shape else predictive.variance

    return score_pool(total_variance, pool)


def entropy(posterior: Posterior, pool: Pool) -> Score:
    """Score points by H[y | x_n, D0], in nats; differential for continuous outputs."""
    return score_pool(lambda x: _entropy(posterior.predictive(x)), pool)


def _entropy(distribution: Distribution) -> Tensor:
    """Return the entropy of each member of a batch of distributions."""
    if isinstance(distribution, StudentT):  # by a formula that is faster than torch's
        return student_t_entropy(distribution.df, distribution.scale)
    if isinstance(distribution, Categorical):
        check_classes(distribution.probs.shape[-1])
    try:
        return distribution.entropy()
    except NotImplementedError:
        raise InputError(
            f"{type(distribution).__name__} has no entropy in closed form; "
            "choose a strategy that needs none, such as 'acs-fw' or 'variance'"
        ) from None


def bald(
    posterior: Posterior,
    pool: Pool,
    num_samples: int = 256,
    *,
    numbers: int = limits.BALD_NUMBERS,
    **given: Any,
) -> Score:
    """Score points by expected information gain: in closed form for linear and probit regression
    and for Gaussian processes, sampled for others.

    I[y; theta | x, D0] = H[y | x, D0] - E[H[y | x, theta]], never below zero. For regression, the entropy of
    the prediction is that of ``posterior.predictive``, for which dropout uses draws of its own.

    ``numbers`` is how many numbers the J samples may return for a block of rows, and ``given`` are further
    attributes of a `Problem`, such as ``generator``; ``exact=False`` samples for all models.
    """
    return information_gain(Problem(pool, posterior, num_samples=num_samples, **given), numbers)


def information_gain(problem: Problem, numbers: int = limits.BALD_NUMBERS) -> Score:
    """Score the points of a problem by `bald`."""
    posterior, pool = problem.posterior, problem.pool
    if exact := problem.closed_form(exact_information):
        return score_pool(partial(exact, posterior), pool)
    if isinstance(posterior, FiniteSamples):
        # The predictive is the mixture of all K samples. Fewer in the second term would not be information.
        problem = replace(problem, num_samples=posterior.num_samples)
    theta = problem.draw()
    rows = next(pool.chunks()).x[: limits.BALD_FEWEST_ROWS]
    check_finite(rows)
    size = numbers // numbers_a_row(posterior.conditional(rows, theta))

    def gain(x: Tensor) -> Tensor:
        each = posterior.conditional(x, theta)
        check_samples(each)
        # For classes, both terms use the same draws and share their noise. A predictive that is the mean of
        # other draws would leave a difference that is small compared to the noise of the two.
        discrete = isinstance(each, Categorical | Bernoulli)
        whole = _entropy(mixture(each) if discrete else posterior.predictive(x))
        return (whole - _entropy(each).mean(0)).clamp(min=0)

    return score_pool(gain, pool, min(max(size, limits.BALD_FEWEST_ROWS), limits.BALD_MOST_ROWS))


@singledispatch
def exact_information(posterior: Posterior, x: Tensor) -> Tensor:
    """Return (n,) the expected information gain by formula. Posteriors that have one register it here."""
    raise InputError(f"the information gain of a {type(posterior).__name__} has no closed form")


@exact_information.register
def _(posterior: GaussianProcessOnPool, x: Tensor) -> Tensor:
    return exact_information(posterior.process, x)


@exact_information.register(GaussianProcessPosterior)
@exact_information.register(LinearPosterior)
def _(posterior: GaussianProcessPosterior | LinearPosterior, x: Tensor) -> Tensor:
    """Return 1/2 log(1 + v / s0^2) for the variance v of f(x), x^T S x in linear regression."""
    return 0.5 * torch.log1p(posterior.function_variance(x) / posterior.noise_variance)


@exact_information.register
def _(posterior: NormalInverseGammaPosterior, x: Tensor) -> Tensor:
    shape = torch.tensor(posterior.shape, dtype=torch.float64)
    mean_log_variance = math.log(posterior.rate) - float(torch.digamma(shape))
    expected = 0.5 * (math.log(2 * math.pi * math.e) + mean_log_variance)
    return _entropy(posterior.predictive(x)) - expected


@exact_information.register
def _(posterior: ProbitPosterior, x: Tensor) -> Tensor:
    """Return H[Phi(zeta)] - E[H[Phi(f)]] with f ~ N(mu^T x, s_nn), by quadrature."""
    rule = np.polynomial.legendre.leggauss(limits.PROBIT_NODES)
    nodes, weights = (torch.from_numpy(numbers).to(posterior.mean.device) for numbers in rule)
    mean = (posterior.features(x) @ posterior.mean).double()
    std = posterior.function_variance(x).sqrt().clamp(min=1e-12)
    # Gauss-Legendre where density and entropy are above rounding. Nodes that follow the density alone, as
    # those of Gauss-Hermite, step over the entropy where the standard deviation is large.
    # Beyond 9 standard deviations there is no density, and beyond 10 from zero labels are certain.
    low, high = ((mean + side * 9 * std).clamp(-10, 10) for side in (-1, 1))
    latent = (low + high) / 2 + nodes[:, None] * (high - low) / 2  # (nodes, n)
    density = torch.exp(-0.5 * ((latent - mean) / std).square()) / (std * math.sqrt(2 * math.pi))
    each = posterior.likelihood(latent.unsqueeze(-1), latent)
    expected = weights @ (density * _entropy(each)) * (high - low) / 2
    # In float64 too: rounding in float32 would exceed the gain of a sure point.
    zeta = mean / (1 + std.square()).sqrt()
    whole = _entropy(posterior.likelihood(zeta.unsqueeze(-1), zeta))
    return (whole - expected).clamp(min=0)
