"""BALD: the information a label is expected to give about the parameters.

I[y; theta | x, D0] = H[y | x, D0] - E[ H[y | x, theta] ].
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial, singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical

from coresift.checks import check_finite, check_samples
from coresift.errors import InputError
from coresift.limits import BALD_FEWEST_ROWS, BALD_MOST_ROWS, BALD_NUMBERS, PROBIT_NODES
from coresift.pool import Pool
from coresift.posteriors.base import FiniteSamples, Posterior
from coresift.posteriors.linear import LinearPosterior, NormalInverseGammaPosterior
from coresift.posteriors.probit import ProbitPosterior
from coresift.posteriors.samples import mixture, numbers_a_row
from coresift.scores.base import Score, score_pool
from coresift.scores.entropy import distribution_entropy
from coresift.spaces.problem import Problem


def bald(
    posterior: Posterior, pool: Pool, num_samples: int = 256, *, numbers: int = BALD_NUMBERS, **given: Any
) -> Score:
    """Score points by expected information gain: exact for linear and probit regression, sampled for others.

    Never below zero. For regression, the entropy of the prediction is that of ``posterior.predictive``, for
    which dropout uses draws of its own.

    Parameters
    ----------
    numbers : how many numbers the J samples may return for a block of rows.
    given : further attributes of a `Problem`, such as ``generator``; ``exact=False`` samples for all models.
    """
    return information_gain(Problem(pool, posterior, num_samples=num_samples, **given), numbers)


def information_gain(problem: Problem, numbers: int = BALD_NUMBERS) -> Score:
    """Score the points of a problem by `bald`."""
    posterior, pool = problem.posterior, problem.pool
    if exact := problem.closed_form(exact_information):
        return score_pool(partial(exact, posterior), pool)
    if isinstance(posterior, FiniteSamples):
        # The predictive is the mixture of all K samples. Fewer in the second term would not be information.
        problem = replace(problem, num_samples=posterior.num_samples)
    theta = problem.draw()
    rows = next(pool.chunks()).x[:BALD_FEWEST_ROWS]
    check_finite(rows)
    size = numbers // numbers_a_row(posterior.conditional(rows, theta))

    def gain(x: Tensor) -> Tensor:
        each = posterior.conditional(x, theta)
        check_samples(each)
        # For classes, both terms use the same draws and share their noise. A predictive that is the mean of
        # other draws would leave a difference that is small compared to the noise of the two.
        discrete = isinstance(each, Categorical | Bernoulli)
        whole = distribution_entropy(mixture(each) if discrete else posterior.predictive(x))
        return (whole - distribution_entropy(each).mean(0)).clamp(min=0)

    return score_pool(gain, pool, min(max(size, BALD_FEWEST_ROWS), BALD_MOST_ROWS))


@singledispatch
def exact_information(posterior: Posterior, x: Tensor) -> Tensor:
    """Return (n,) the expected information gain by formula. Posteriors that have one register it here."""
    raise InputError(f"the information gain of a {type(posterior).__name__} has no closed form")


@exact_information.register
def _(posterior: LinearPosterior, x: Tensor) -> Tensor:
    """Return 1/2 log(1 + x^T S x / s0^2)."""
    return 0.5 * torch.log1p(posterior.function_variance(x) / posterior.noise_variance)


@exact_information.register
def _(posterior: NormalInverseGammaPosterior, x: Tensor) -> Tensor:
    shape = torch.tensor(posterior.shape, dtype=torch.float64)
    mean_log_variance = math.log(posterior.rate) - float(torch.digamma(shape))
    expected = 0.5 * (math.log(2 * math.pi * math.e) + mean_log_variance)
    return distribution_entropy(posterior.predictive(x)) - expected


@exact_information.register
def _(posterior: ProbitPosterior, x: Tensor) -> Tensor:
    """Return H[Phi(zeta)] - E[H[Phi(f)]] with f ~ N(mu^T x, s_nn), by quadrature."""
    nodes, weights = (
        torch.from_numpy(a).to(posterior.mean.device) for a in np.polynomial.legendre.leggauss(PROBIT_NODES)
    )
    mean = (posterior.features(x) @ posterior.mean).double()
    std = posterior.function_variance(x).sqrt().clamp(min=1e-12)
    # Gauss-Legendre where density and entropy are above rounding. Nodes that follow the density alone, as
    # those of Gauss-Hermite, step over the entropy where the standard deviation is large.
    # Beyond 9 standard deviations there is no density, and beyond 10 from zero labels are certain.
    low, high = ((mean + side * 9 * std).clamp(-10, 10) for side in (-1, 1))
    latent = (low + high) / 2 + nodes[:, None] * (high - low) / 2  # (nodes, n)
    density = torch.exp(-0.5 * ((latent - mean) / std).square()) / (std * math.sqrt(2 * math.pi))
    each = posterior.likelihood(latent.unsqueeze(-1), latent)
    expected = weights @ (density * distribution_entropy(each)) * (high - low) / 2
    # In float64 too: rounding in float32 would exceed the gain of a sure point.
    zeta = mean / (1 + std.square()).sqrt()
    whole = distribution_entropy(posterior.likelihood(zeta.unsqueeze(-1), zeta))
    return (whole - expected).clamp(min=0)
