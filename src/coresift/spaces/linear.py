"""Closed-form spaces of Bayesian linear regression: Fisher, Euclidean and centred Euclidean.

With s_nm = x_n^T S x_m, known noise s0^2:

    Fisher      (x_n^T x_m) s_nm / s0^4
    centred     s_nm^2 / (2 s0^4)
    Euclidean   a_n a_m + centred,      a_n = E[L_n] = 1/2 log(1 + s_nn/s0^2) - s_nn/s0^2

and unknown noise, theta | s2 ~ N(mu, s2 V), s2 ~ IG(a, b), s_nm = x_n^T V x_m, predictive variance V_n:

    Fisher      (a/b) (x_n^T x_m) s_nm                                                        (in theta)
    centred     s_nm^2 / 2 + 1/4 [trigamma(a) - (V_n + V_m)/b + V_n V_m a/b^2]
    Euclidean   m_n m_m + centred,      m_n = E[L_n]

All are sums of products of linear kernels, and need no N x N matrix. The Euclidean forms are not in the
paper: they are the limit of its Algorithm 2 for infinitely many samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from coresift.pool import Pool
from coresift.posteriors.linear import GaussianWeights, LinearPosterior, NormalInverseGammaPosterior
from coresift.spaces.gradient import exact_fisher_space
from coresift.spaces.likelihood import exact_likelihood_space
from coresift.spaces.outer import OuterKernel, OuterSpace
from coresift.spaces.predictive import exact_predictive_rows
from coresift.special import student_t_entropy


@exact_fisher_space.register(LinearPosterior)
@exact_fisher_space.register(NormalInverseGammaPosterior)
def _(
    posterior: LinearPosterior | NormalInverseGammaPosterior, pool: Pool, labelled: Tensor | None = None
) -> OuterSpace:
    if isinstance(posterior, LinearPosterior):
        scale = posterior.noise_variance**-2
    else:
        scale = posterior.shape / posterior.rate
    kernel = OuterKernel(_sides(posterior), scale, posterior.covariance.double())
    return OuterSpace(kernel, pool, labelled)


@exact_likelihood_space.register
def _(
    posterior: LinearPosterior, pool: Pool, labelled: Tensor | None = None, centred: bool = False
) -> OuterSpace:
    noise = posterior.noise_variance

    def mean(x: Tensor) -> Tensor:
        ratio = posterior.function_variance(x) / noise
        return (0.5 * torch.log1p(ratio) - ratio).unsqueeze(1)

    sides = _sides(posterior, posterior.factor.double())
    kernel = OuterKernel(sides, 0.5 / noise**2, offset=None if centred else mean)
    return OuterSpace(kernel, pool, labelled)


@exact_likelihood_space.register
def _(
    posterior: NormalInverseGammaPosterior,
    pool: Pool,
    labelled: Tensor | None = None,
    centred: bool = False,
) -> OuterSpace:
    a, b = posterior.shape, posterior.rate
    shape = torch.tensor(a, dtype=torch.float64)
    trigamma = float(torch.special.polygamma(1, shape))
    mean_log_precision = float(torch.digamma(shape)) - math.log(b)

    def offset(x: Tensor) -> Tensor:
        """Return (n, 3) m_n, 1, V_n."""
        ratio = posterior.function_variance(x)
        scale = (b / a * (1 + ratio)).sqrt()
        variance = a / (a - 1) * scale.square()
        constant = 0.5 * math.log(2 * math.pi)
        mean = student_t_entropy(2 * a, scale) - constant + 0.5 * mean_log_precision - ratio / 2
        return torch.stack([mean - variance * a / (2 * b), torch.ones_like(mean), variance], 1)

    metric = [
        [0.0 if centred else 1.0, 0.0, 0.0],
        [0.0, trigamma / 4, -1 / (4 * b)],
        [0.0, -1 / (4 * b), a / (4 * b**2)],
    ]
    offset_metric = torch.tensor(metric, dtype=torch.float64, device=posterior.mean.device)
    sides = _sides(posterior, posterior.factor.double())
    return OuterSpace(OuterKernel(sides, 0.5, None, offset, offset_metric), pool, labelled)


@exact_predictive_rows.register
def _(posterior: LinearPosterior, x: Tensor) -> Tensor:
    return posterior.features(x) @ (posterior.factor / math.sqrt(posterior.noise_variance))


@exact_predictive_rows.register
def _(posterior: NormalInverseGammaPosterior, x: Tensor) -> Tensor:
    return posterior.features(x) @ posterior.factor


def _sides(
    posterior: GaussianWeights, factor: Tensor | None = None
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Make both sides of a kernel x^T F, or x^T.

    With S = F F^T, the product of both is x^T S x. X^T X S would cancel out where columns lie far from zero.
    """

    def sides(x: Tensor) -> tuple[Tensor, Tensor]:
        rows = posterior.features(x).double()
        rows = rows if factor is None else rows @ factor
        return rows, rows

    return sides
