"""BALD: the information a label is expected to give about the parameters.

I[y; theta | x, D0] = H[y | x, D0] - E[ H[y | x, theta] ].
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical

from coresift.checks import check_finite, check_integer, check_several
from coresift.pool import Pool
from coresift.posteriors.base import FiniteSamples, Posterior
from coresift.posteriors.linear import LinearPosterior, NormalInverseGammaPosterior
from coresift.posteriors.probit import ProbitPosterior
from coresift.posteriors.samples import mixture, numbers_a_row
from coresift.scores.base import Score, score_pool
from coresift.scores.entropy import distribution_entropy

# Numbers of samples of the model to hold at a time, and rows that these are of, at least.
_AT_A_TIME, _FEWEST = 2**24, 16
# Of the integral for probit regression: its nodes, how many deviations it goes from the mean, and how far
# from zero, beyond which labels are certain.
_NODES, _DEVIATIONS, _FARTHEST = 64, 9.0, 10.0


def bald(
    posterior: Posterior,
    pool: Pool,
    num_samples: int = 256,
    *,
    generator: torch.Generator,
    exact: bool = True,
) -> Score:
    """Expected information gain: exact for linear and probit regression, from J samples for other models.

    Never below zero. Linear regression gives 1/2 log(1 + x^T S x / s0^2); probit needs one integral over the
    real line, done by quadrature. Pass ``exact=False`` for the sampled estimate in any case. Of numbers, the
    entropy of the prediction is that of ``posterior.predictive``, which dropout makes of draws of its own.
    """
    if exact and isinstance(posterior, LinearPosterior):
        noise = posterior.noise_variance
        return score_pool(lambda x: 0.5 * torch.log1p(posterior.function_variance(x) / noise), pool)
    if exact and isinstance(posterior, NormalInverseGammaPosterior):
        shape = torch.tensor(posterior.shape, dtype=torch.float64)
        mean_log_variance = math.log(posterior.rate) - float(torch.digamma(shape))
        expected = 0.5 * (math.log(2 * math.pi * math.e) + mean_log_variance)
        return score_pool(lambda x: distribution_entropy(posterior.predictive(x)) - expected, pool)
    if exact and isinstance(posterior, ProbitPosterior):
        return score_pool(lambda x: _probit_information(posterior, x), pool)
    if isinstance(posterior, FiniteSamples):
        # The predictive is the mixture of all K samples; fewer in the second term would not be information.
        num_samples = posterior.num_samples
    theta = posterior.sample(check_integer(num_samples, 1, "num_samples"), generator)

    def gain(x: Tensor) -> Tensor:
        each = posterior.conditional(x, theta)
        check_several(each)
        # Of classes, both terms from the same draws: the noise of one is then that of the other. A predictive
        # may be the mean of other draws, and the difference would be small beside the noise of the two.
        discrete = isinstance(each, Categorical | Bernoulli)
        whole = distribution_entropy(mixture(each) if discrete else posterior.predictive(x))
        return (whole - distribution_entropy(each).mean(0)).clamp(min=0)

    rows = next(pool.chunks()).x[:_FEWEST]
    check_finite(rows)
    size = _AT_A_TIME // numbers_a_row(posterior.conditional(rows, theta))
    return score_pool(gain, pool, min(max(size, _FEWEST), 1024))


def _probit_information(posterior: ProbitPosterior, x: Tensor) -> Tensor:
    """(n,) H[Phi(zeta)] - E[H[Phi(f)]] with f ~ N(mu^T x, s_nn)."""
    nodes, weights = (
        torch.from_numpy(a).to(posterior.mean.device) for a in np.polynomial.legendre.leggauss(_NODES)
    )
    mean = (posterior.features(x) @ posterior.mean).double()
    deviation = posterior.function_variance(x).sqrt().clamp(min=1e-12)
    # Gauss-Legendre where the density and the entropy are more than rounding: nodes that follow the density
    # alone, as Gauss-Hermite's do, step over the entropy where the deviation is large.
    low, high = ((mean + side * _DEVIATIONS * deviation).clamp(-_FARTHEST, _FARTHEST) for side in (-1, 1))
    latent = (low + high) / 2 + nodes[:, None] * (high - low) / 2  # (nodes, n)
    density = torch.exp(-0.5 * ((latent - mean) / deviation).square()) / (deviation * math.sqrt(2 * math.pi))
    each = posterior.likelihood(latent.unsqueeze(-1), latent)
    expected = weights @ (density * distribution_entropy(each)) * (high - low) / 2
    # In float64 as well: a difference of the roundings of float32 would be more than a sure point's gain.
    zeta = mean / (1 + deviation.square()).sqrt()
    whole = distribution_entropy(posterior.likelihood(zeta.unsqueeze(-1), zeta))
    return (whole - expected).clamp(min=0)
