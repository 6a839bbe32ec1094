"""Closed-form spaces of Bayesian linear regression: Fisher, Euclidean and centred Euclidean.

With s_nm = x_n^T S x_m, known noise s0^2:

    Fisher      (x_n^T x_m) s_nm / s0^4
    centred     s_nm^2 / (2 s0^4)
    Euclidean   a_n a_m + centred,      a_n = E[L_n] = 1/2 log(1 + s_nn/s0^2) - s_nn/s0^2

and unknown noise, theta | s2 ~ N(mu, s2 V), s2 ~ IG(a, b), s_nm = x_n^T V x_m, predictive variance V_n:

    Fisher      (a/b) (x_n^T x_m) s_nm                                                        (in theta)
    centred     s_nm^2 / 2 + 1/4 [trigamma(a) - (V_n + V_m)/b + V_n V_m a/b^2]
    Euclidean   m_n m_m + centred,      m_n = E[L_n]

All are sums of products of linear kernels, so no N x N matrix is needed. The Euclidean forms are not in
the paper: they are the limit of its Algorithm 2 for infinitely many samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from coresift.pool import Pool
from coresift.posteriors.linear import LinearPosterior, NormalInverseGammaPosterior
from coresift.spaces.outer import OuterKernel, OuterSpace
from coresift.special import student_t_entropy


def linear_fisher_space(
    posterior: LinearPosterior | NormalInverseGammaPosterior, pool: Pool, labelled: Tensor | None = None
) -> OuterSpace:
    """E[grad L_n . grad L_m] in closed form.

    >>> from coresift.pool import as_pool
    >>> posterior = LinearPosterior(torch.zeros(2), torch.eye(2), noise_variance=1.0)
    >>> linear_fisher_space(posterior, as_pool(torch.tensor([[3.0, 4.0]]))).norms
    tensor([25.], dtype=torch.float64)
    """
    if isinstance(posterior, LinearPosterior):
        scale = posterior.noise_variance**-2
    else:
        scale = posterior.shape / posterior.rate
    return OuterSpace(
        OuterKernel(_sides(posterior), None, posterior.covariance.double(), scale), pool, labelled
    )


def linear_likelihood_space(
    posterior: LinearPosterior | NormalInverseGammaPosterior,
    pool: Pool,
    labelled: Tensor | None = None,
    centred: bool = False,
) -> OuterSpace:
    """E[L_n L_m], or Cov[L_n, L_m] where ``centred``, in closed form."""
    if isinstance(posterior, LinearPosterior):
        kernel = _known_noise(posterior, centred)
    else:
        kernel = _unknown_noise(posterior, centred)
    return OuterSpace(kernel, pool, labelled)


def _known_noise(posterior: LinearPosterior, centred: bool) -> OuterKernel:
    noise = posterior.noise_variance
    if centred:
        return OuterKernel(_whitened(posterior), None, None, 0.5 / noise**2)

    def mean(x: Tensor) -> Tensor:
        ratio = posterior.function_variance(x) / noise
        return (0.5 * torch.log1p(ratio) - ratio).unsqueeze(1)

    return OuterKernel(_whitened(posterior), None, None, 0.5 / noise**2, mean)


def _unknown_noise(posterior: NormalInverseGammaPosterior, centred: bool) -> OuterKernel:
    a, b = posterior.shape, posterior.rate
    shape = torch.tensor(a, dtype=torch.float64)
    trigamma = float(torch.special.polygamma(1, shape))
    mean_log_precision = float(torch.digamma(shape)) - math.log(b)

    def offset(x: Tensor) -> Tensor:
        """(n, 3) m_n, 1, V_n."""
        ratio = posterior.function_variance(x)
        scale = (b / a * (1 + ratio)).sqrt()
        variance = a / (a - 1) * scale.square()
        entropy = student_t_entropy(2 * a, scale)
        mean = (
            entropy
            - 0.5 * math.log(2 * math.pi)
            + 0.5 * mean_log_precision
            - ratio / 2
            - variance * a / (2 * b)
        )
        return torch.stack([mean, torch.ones_like(mean), variance], 1)

    metric = torch.tensor(
        [
            [0.0 if centred else 1.0, 0.0, 0.0],
            [0.0, trigamma / 4, -1 / (4 * b)],
            [0.0, -1 / (4 * b), a / (4 * b**2)],
        ],
        dtype=torch.float64,
        device=posterior.mean.device,
    )
    return OuterKernel(_whitened(posterior), None, None, 0.5, offset, metric)


def _sides(
    posterior: LinearPosterior | NormalInverseGammaPosterior,
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Both sides of the kernel are the rows themselves."""

    def sides(x: Tensor) -> tuple[Tensor, Tensor]:
        rows = posterior.features(x).double()
        return rows, rows

    return sides


def _whitened(
    posterior: LinearPosterior | NormalInverseGammaPosterior,
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Both sides are x^T F with S = F F^T: where columns lie far from zero, X^T X S would cancel out."""
    factor = posterior.factor.double()

    def sides(x: Tensor) -> tuple[Tensor, Tensor]:
        rows = posterior.features(x).double() @ factor
        return rows, rows

    return sides
