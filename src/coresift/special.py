"""Special functions that torch lacks, vectorised in float64: the bivariate normal and Student's t."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

# One Gauss-Legendre rule on [0, 1] serves every correlation. Fewer nodes would do where |rho| is small if
# only the absolute error mattered, but covariances far in the tails would lose most of their digits.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_RULE = [(float(node + 1) / 2, float(weight) / 2) for node, weight in zip(_NODES, _WEIGHTS, strict=True)]

# Up to here the rule integrates Plackett's integrand to rounding; beyond, that integrand is too steep.
_LARGEST_DIRECT = 0.925


def bivariate_normal_cdf(h: Tensor, k: Tensor, rho: Tensor) -> Tensor:
    """P(X <= h, Y <= k) for standard normal X and Y with correlation ``rho``, to about 1e-15.

    The arguments broadcast; infinities and |rho| = 1 are allowed. No gradients.

    >>> zero = torch.zeros(3, dtype=torch.float64)
    >>> bivariate_normal_cdf(zero, zero, torch.tensor([-1.0, 0.0, 0.5])).round(decimals=12).tolist()
    [0.0, 0.25, 0.333333333333]
    """
    independent = _normal_cdf(h.double()) * _normal_cdf(k.double())
    return (independent + normal_cdf_covariance(h, k, rho)).clamp(min=0)


@torch.no_grad()
def normal_cdf_covariance(h: Tensor, k: Tensor, rho: Tensor) -> Tensor:
    """P(X <= h, Y <= k) - P(X <= h) P(Y <= k): the covariance of the indicators of X <= h and Y <= k.

    It is integrated directly, so that it keeps its digits where the difference of the two probabilities would
    cancel: for arguments up to 8, errors are below 1e-12 of ``sqrt(cov(h, h, |rho|) cov(k, k, |rho|))``,
    which bounds it. The arguments broadcast; infinities and |rho| = 1 are allowed. No gradients.

    References
    ----------
    Plackett (1954), A reduction formula for normal multivariate integrals.
    Genz (2004), Numerical computation of rectangular bivariate and trivariate normal and t probabilities.

    >>> zero = torch.zeros((), dtype=torch.float64)
    >>> covariance = normal_cdf_covariance(zero, zero, torch.tensor([-1.0, 0.0, 0.5]))
    >>> (2 * torch.pi * covariance).sin().round(decimals=12).tolist()  # asin(rho) / (2 pi) at the origin
    [-1.0, 0.0, 0.5]
    """
    # Phi is 0 or 1 in float64 beyond 40, where infinities would turn into inf - inf.
    h, k = h.double().clamp(-40, 40), k.double().clamp(-40, 40)
    h, k, rho = torch.broadcast_tensors(h, k, rho.double())  # type: ignore[no-untyped-call]
    covariance = _plackett(h, k, rho.clamp(-_LARGEST_DIRECT, _LARGEST_DIRECT))
    steep = rho.abs() > _LARGEST_DIRECT
    if bool(steep.any()):
        covariance[steep] = _near_one(h[steep], k[steep], rho[steep])
    return covariance


def _plackett(h: Tensor, k: Tensor, rho: Tensor) -> Tensor:
    """The integral of the bivariate normal density over the correlation, from 0 to ``rho``.

    With r = sin t it is 1/(2 pi) int exp(-((h^2 + k^2)/2 - h k sin t) / cos^2 t) dt over 0..asin rho.
    """
    angle, product = rho.asin(), h * k
    minus_half_squares = torch.addcmul(h * h, k, k).mul_(-0.5)
    total, sine, exponent = torch.zeros_like(angle), torch.empty_like(angle), torch.empty_like(angle)
    one = torch.ones((), dtype=angle.dtype, device=angle.device)
    # In place throughout: fresh memory for each step would cost more than the arithmetic.
    for node, weight in _RULE:
        torch.mul(angle, node, out=sine).sin_()
        torch.addcmul(minus_half_squares, product, sine, out=exponent)
        torch.addcmul(one, sine, sine, value=-1, out=sine)  # now cos^2
        total.add_(exponent.div_(sine).exp_(), alpha=weight)
    return total.mul_(angle).div_(2 * math.pi)


def _near_one(h: Tensor, k: Tensor, rho: Tensor) -> Tensor:
    """The same where ``rho`` is near 1 or -1: the value at 1 less the integral from ``rho`` to 1.

    At correlation 1 the covariance is Phi(min) (1 - Phi(max)). With x = cos t, b = |h - k| and p = h k,
    the integrand is exp(-(b^2/x^2 + p)/2) g(x) for a smooth g(x) = 1 + c x^2 + c d x^4 + O(x^6). The
    first factor is steep at x = 0, so its product with these three terms is integrated in closed form,
    and only the rest by the rule, as Genz does.
    """
    sign = rho.sign()  # cov(h, k, -rho) = -cov(h, -k, rho)
    k, rho = sign * k, rho.abs()
    # Rounding may carry a correlation past 1; the smallest width stands for none, without 0 / 0.
    width_squared = ((1 - rho) * (1 + rho)).clamp(min=1e-300)
    width, gap = width_squared.sqrt(), (h - k).abs()
    gap_squared, product = gap * gap, h * k
    c, d = (4 - product) / 8, (12 - product) / 16
    minus_half_product, steepness = -product / 2, -gap_squared / (2 * width_squared)
    tail = width * torch.exp(steepness + minus_half_product)
    tail *= (
        1 - c * (gap_squared - width_squared) * (1 - d * gap_squared / 5) / 3 + c * d * width_squared**2 / 5
    )
    # The exponents are added before exp: product may be so negative that exp(-product / 2) overflows.
    mills = (
        math.sqrt(2 * math.pi) * gap * torch.exp(torch.special.log_ndtr(-gap / width) + minus_half_product)
    )
    tail -= mills * (1 - c * gap_squared * (1 - d * gap_squared / 5) / 3)
    rest = torch.zeros_like(tail)
    for node, weight in _RULE:
        square = width_squared * node**2  # x^2
        sine = (1 - square).sqrt_()
        smooth = (1 - sine).div_(1 + sine).mul_(minus_half_product).exp_().div_(sine)  # g
        series = torch.mul(square, d).add_(1).mul_(square).mul_(c).add_(1)
        steep = torch.add(minus_half_product, steepness, alpha=1 / node**2).exp_()
        rest.addcmul_(smooth.sub_(series), steep, value=weight)
    tail += rest * width
    at_one = _normal_cdf(torch.minimum(h, k)) * _normal_cdf(-torch.maximum(h, k))
    return sign * (at_one - tail / (2 * math.pi))


def _normal_cdf(z: Tensor) -> Tensor:
    """Phi(z) with all its digits: torch.special.ndtr computes 1 + erf, and has none left below -8."""
    return torch.erfc(-math.sqrt(0.5) * z) / 2


def student_t_entropy(df: float | Tensor, scale: Tensor) -> Tensor:
    """Entropy of Student's t with v = ``df`` degrees of freedom, in the shape ``df`` and ``scale`` share.

    (v+1)/2 [digamma((v+1)/2) - digamma(v/2)] + log(sqrt(v) B(v/2, 1/2)) + log scale.

    >>> student_t_entropy(1.0, torch.ones(1)) - math.log(4 * math.pi) < 1e-6  # the Cauchy distribution
    tensor([True])
    """
    half = 0.5 * torch.as_tensor(df, dtype=torch.float64, device=scale.device)
    log_beta = torch.lgamma(half) + 0.5 * math.log(math.pi) - torch.lgamma(half + 0.5)
    spread = (half + 0.5) * (torch.digamma(half + 0.5) - torch.digamma(half))
    return (spread + 0.5 * torch.log(2 * half) + log_beta).to(scale.dtype) + scale.log()
