"""Bayesian linear regression in closed form, with known and with unknown noise.

Write ``s_nm = x_n^T S x_m`` for the posterior covariance S of theta (V where the noise is unknown).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import Gamma, Normal, StudentT

from coresift.checks import check_covariance, check_finite, check_shape
from coresift.types import InputError


@dataclass(frozen=True, eq=False)
class LinearPosterior:
    """theta ~ N(mean, covariance), y | x, theta ~ N(theta^T x, noise_variance).

    Attributes
    ----------
    mean : (d,)
    covariance : (d, d)
    noise_variance : s0^2

    >>> posterior = LinearPosterior(torch.zeros(2), torch.eye(2), noise_variance=1.0)
    >>> posterior.predictive(torch.tensor([[3.0, 4.0]])).variance
    tensor([26.])
    """

    mean: Tensor
    covariance: Tensor
    noise_variance: float

    def __post_init__(self) -> None:
        check_shape(self.covariance, (len(self.mean), len(self.mean)), "the posterior covariance")
        _check_positive(self.noise_variance, "noise_variance")
        _ = self.factor  # raises where the covariance is none

    @cached_property
    def factor(self) -> Tensor:
        """(d, d) lower Cholesky factor of the covariance."""
        return check_covariance(self.covariance, "posterior covariance")

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """(J, d) draws of theta."""
        return self.mean + _standard_normal(num, self.mean, generator) @ self.factor.mT

    def features(self, x: Tensor) -> Tensor:
        """(n, d) the rows themselves, in the posterior's precision."""
        check_shape(x, (None, len(self.mean)), "x")
        return x.to(self.mean)

    def outputs(self, features: Tensor, theta: Tensor) -> Tensor:
        """(J, n, 1) theta_j^T x_n."""
        return (theta @ features.mT).unsqueeze(-1)

    def likelihood(self, outputs: Tensor, theta: Tensor) -> Normal:
        return Normal(outputs.squeeze(-1), self.noise_variance**0.5)

    def conditional(self, x: Tensor, theta: Tensor) -> Normal:
        return self.likelihood(self.outputs(self.features(x), theta), theta)

    def function_variance(self, x: Tensor) -> Tensor:
        """(n,) s_nn, the variance of theta^T x_n."""
        return _quadratic(self.features(x), self.covariance)

    def predictive(self, x: Tensor) -> Normal:
        scale = (self.function_variance(x) + self.noise_variance).sqrt()
        return Normal(self.features(x) @ self.mean, scale)


@dataclass(frozen=True, eq=False)
class NormalInverseGammaPosterior:
    """theta | s2 ~ N(mean, s2 scale), s2 ~ InverseGamma(shape, rate), y | x, theta, s2 ~ N(theta^T x, s2).

    The predictive is Student's t with ``2 shape`` degrees of freedom.

    Attributes
    ----------
    mean : (d,)
    scale : (d, d), V: the covariance of theta in units of the noise variance.
    shape, rate : a and b of the inverse gamma; the closed forms need ``shape > 1``.
    """

    mean: Tensor
    scale: Tensor
    shape: float
    rate: float

    def __post_init__(self) -> None:
        check_shape(self.scale, (len(self.mean), len(self.mean)), "the posterior scale")
        _check_positive(self.rate, "rate")
        if not self.shape > 1:
            raise InputError(
                f"shape is {self.shape}, but the predictive variance is finite only above 1; "
                "add labelled points or a larger prior shape"
            )
        _ = self.factor  # raises where the scale is no covariance

    @cached_property
    def factor(self) -> Tensor:
        """(d, d) lower Cholesky factor of the scale."""
        return check_covariance(self.scale, "posterior scale")

    def sample(self, num: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(J, d) draws of theta and (J,) of the noise variance."""
        noise_variance = self.rate / _standard_gamma(self.shape, num, self.mean, generator)
        normal = _standard_normal(num, self.mean, generator) @ self.factor.mT
        return self.mean + noise_variance.sqrt()[:, None] * normal, noise_variance

    def features(self, x: Tensor) -> Tensor:
        """(n, d) the rows themselves, in the posterior's precision."""
        check_shape(x, (None, len(self.mean)), "x")
        return x.to(self.mean)

    def outputs(self, features: Tensor, theta: tuple[Tensor, Tensor]) -> Tensor:
        """(J, n, 1) theta_j^T x_n."""
        return (theta[0] @ features.mT).unsqueeze(-1)

    def likelihood(self, outputs: Tensor, theta: tuple[Tensor, Tensor]) -> Normal:
        return Normal(outputs.squeeze(-1), theta[1].sqrt()[:, None].expand(outputs.shape[:2]))

    def conditional(self, x: Tensor, theta: tuple[Tensor, Tensor]) -> Normal:
        return self.likelihood(self.outputs(self.features(x), theta), theta)

    def function_variance(self, x: Tensor) -> Tensor:
        """(n,) s_nn, the variance of theta^T x_n in units of the noise variance."""
        return _quadratic(self.features(x), self.scale)

    def predictive(self, x: Tensor) -> StudentT:
        scale = (self.rate / self.shape * (1 + self.function_variance(x))).sqrt()
        return StudentT(2 * self.shape, self.features(x) @ self.mean, scale)


@dataclass(frozen=True)
class BayesianLinearRegression:
    """Linear regression with a Gaussian prior, solved exactly.

    The columns of x are used as they are: append a column of ones for an intercept.

    Parameters
    ----------
    noise_variance : the variance of the noise where it is known. ``None`` learns it, with the prior
        theta | s2 ~ N(prior_mean, s2 prior_covariance), s2 ~ InverseGamma(noise_shape, noise_rate).
    prior_mean : a number or (d,).
    prior_covariance : a variance shared by all weights, (d,) variances, or a (d, d) covariance.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    >>> posterior = BayesianLinearRegression(noise_variance=0.1).fit(x, x @ torch.tensor([1.0, 2.0]).double())
    >>> posterior.mean.round(decimals=2).tolist()
    [1.0, 1.91]
    """

    noise_variance: float | None = None
    prior_mean: float | Tensor = 0.0
    prior_covariance: float | Tensor = 1.0
    noise_shape: float = 1.0
    noise_rate: float = 1.0

    def fit(self, x: Tensor, y: Tensor) -> LinearPosterior | NormalInverseGammaPosterior:
        """Condition on rows ``x`` (n, d) and targets ``y`` (n,); n may be zero, for the prior itself."""
        x, y = check_labelled(x, y)
        prior_mean, prior_precision = gaussian_prior(self.prior_mean, self.prior_covariance, x)
        noise = 1.0 if self.noise_variance is None else self.noise_variance
        _check_positive(noise, "noise_variance")
        precision = prior_precision + x.mT @ x / noise
        shift = prior_precision @ prior_mean + x.mT @ y / noise
        factor = torch.linalg.cholesky(precision)
        mean = torch.cholesky_solve(shift[:, None], factor)[:, 0]
        covariance = torch.cholesky_inverse(factor)
        if self.noise_variance is not None:
            return LinearPosterior(mean, covariance, self.noise_variance)
        residual, drift = y - x @ mean, mean - prior_mean
        # The same as b0 + (y^T y + m0^T P0 m0 - m^T P m) / 2, without the cancellation.
        rate = self.noise_rate + 0.5 * float(residual @ residual + drift @ prior_precision @ drift)
        return NormalInverseGammaPosterior(mean, covariance, self.noise_shape + len(x) / 2, rate)


def check_labelled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Labelled rows (n, d) and targets (n,) as float tensors of one type, or an error."""
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    x = x if x.is_floating_point() else x.double()
    check_shape(x, (None, None), "x")
    check_shape(y, (len(x),), "y")
    check_finite(x, what="labelled x")
    check_finite(y.to(x), what="labelled y")
    return x, y.to(x)


def gaussian_prior(mean: float | Tensor, covariance: float | Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Prior mean (d,) and precision (d, d) from numbers, vectors or matrices, in the precision of ``x``."""
    size = x.shape[1]
    matrix = torch.as_tensor(covariance, dtype=x.dtype, device=x.device)
    if matrix.ndim < 2:
        matrix = torch.diag(matrix.expand(size))
    check_shape(matrix, (size, size), "prior_covariance")
    precision = torch.cholesky_inverse(check_covariance(matrix, "prior covariance"))
    return torch.as_tensor(mean, dtype=x.dtype, device=x.device).expand(size), precision


def _standard_normal(num: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """(num, d) standard normal draws, made on the CPU so that a seed means the same everywhere."""
    return torch.randn(num, len(like), dtype=like.dtype, generator=generator).to(like.device)


def _standard_gamma(shape: float, num: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """(num,) draws of Gamma(shape, 1)."""
    # torch.distributions takes no generator: hand it a seed of ours and give the global state back.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        draws = Gamma(torch.tensor(shape, dtype=torch.float64), 1.0).sample((num,))
    return draws.to(like)


def _quadratic(x: Tensor, matrix: Tensor) -> Tensor:
    """(n,) x_n^T matrix x_n."""
    return ((x @ matrix) * x).sum(-1)


def _check_positive(value: float, name: str) -> None:
    if not value > 0:
        raise InputError(f"{name} is {value}, expected a positive number")
