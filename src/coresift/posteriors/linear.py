"""Models with Gaussian weights on given features; Bayesian linear regression in closed form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, StudentT

from coresift.checks import check_covariance, check_finite, check_positive, check_shape
from coresift.errors import InputError
from coresift.pool import as_float


@dataclass(frozen=True, eq=False)
class GaussianWeights(ABC):
    """theta ~ N(mean (d,), covariance (d, d)), and an output theta^T x for each row."""

    mean: Tensor
    covariance: Tensor

    def __post_init__(self) -> None:
        check_shape(self.covariance, (len(self.mean), len(self.mean)), "the posterior covariance")
        _ = self.factor  # raises where the matrix is no covariance

    def to(self, device: torch.device | str) -> Self:
        """Return the posterior on another device."""
        return replace(self, mean=self.mean.to(device), covariance=self.covariance.to(device))

    @cached_property
    def factor(self) -> Tensor:
        """(d, d) the lower Cholesky factor of the covariance."""
        return check_covariance(self.covariance, "posterior covariance")

    def sample(self, num: int, generator: torch.Generator) -> Any:
        """Draw (J, d) samples of theta."""
        return self.mean + self.centred_samples(num, generator)

    def centred_samples(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw (J, d) samples of theta - mean, on the CPU so that a seed means the same on all devices."""
        normal = torch.randn(num, len(self.mean), dtype=self.mean.dtype, generator=generator)
        return normal.to(self.mean.device) @ self.factor.mT

    def features(self, x: Tensor) -> Tensor:
        """Return (n, d) the rows themselves, in the posterior's precision."""
        check_shape(x, (None, len(self.mean)), "x")
        return x.to(self.mean)

    def outputs(self, features: Tensor, theta: Any) -> Tensor:
        """Return (J, n, 1) theta_j^T x_n."""
        weights: Tensor = theta
        return (weights @ features.mT).unsqueeze(-1)

    @abstractmethod
    def likelihood(self, outputs: Tensor, theta: Any) -> Distribution:
        """p(y | outputs): batch shape (J, n)."""

    @abstractmethod
    def predictive(self, x: Tensor) -> Distribution:
        """p(y | x, D0): batch shape (n,)."""

    def conditional(self, x: Tensor, theta: Any) -> Distribution:
        return self.likelihood(self.outputs(self.features(x), theta), theta)

    def function_variance(self, x: Tensor) -> Tensor:
        """Return (n,) s_nn = x_n^T covariance x_n, in float64."""
        return quadratic(self.features(x).double(), self.covariance.double())


def quadratic(x: Tensor, matrix: Tensor) -> Tensor:
    """Return (n,) x_n^T matrix x_n."""
    return ((x @ matrix) * x).sum(-1)


def check_labelled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return labelled rows (n, d) and targets (n,) as float tensors of one type, or raise."""
    x, y = as_float(x), as_float(y)  # halves become float32: they have too few digits to solve with
    check_shape(x, (None, None), "x")
    check_shape(y, (len(x),), "y")
    check_finite(x, what="labelled x")
    check_finite(y.to(x), what="labelled y")
    return x, y.to(x)


def gaussian_prior(mean: float | Tensor, covariance: float | Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the prior mean (d,) and precision (d, d) from numbers, vectors or matrices, typed like ``x``."""
    size = x.shape[1]
    matrix = torch.as_tensor(covariance, dtype=x.dtype, device=x.device)
    if matrix.ndim < 2:
        matrix = torch.diag(matrix.expand(size))
    check_shape(matrix, (size, size), "prior_covariance")
    precision = torch.cholesky_inverse(check_covariance(matrix, "prior covariance"))
    return torch.as_tensor(mean, dtype=x.dtype, device=x.device).expand(size), precision


@dataclass(frozen=True, eq=False)
class LinearPosterior(GaussianWeights):
    """theta ~ N(mean, covariance), y | x, theta ~ N(theta^T x, noise_variance).

    >>> posterior = LinearPosterior(torch.zeros(2), torch.eye(2), noise_variance=1.0)
    >>> posterior.predictive(torch.tensor([[3.0, 4.0]])).variance
    tensor([26.])
    """

    noise_variance: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.noise_variance, "noise_variance")

    def likelihood(self, outputs: Tensor, theta: Tensor) -> Normal:
        return Normal(outputs.squeeze(-1), self.noise_variance**0.5)

    def predictive(self, x: Tensor) -> Normal:
        scale = (self.function_variance(x) + self.noise_variance).sqrt()
        return Normal(self.features(x) @ self.mean, scale.to(self.mean))


@dataclass(frozen=True, eq=False)
class NormalInverseGammaPosterior(GaussianWeights):
    """theta | s2 ~ N(mean, s2 covariance), s2 ~ InverseGamma(shape, rate), y | x ~ N(theta^T x, s2).

    The covariance V is that of theta in units of the noise variance s2. The predictive is Student's t with
    ``2 shape`` degrees of freedom, and its variance is finite only for ``shape > 1``.
    """

    shape: float
    rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.rate, "rate")
        if not self.shape > 1:
            raise InputError(
                f"shape is {self.shape}, but the predictive variance is finite only above 1; "
                "add labelled points or a larger prior shape"
            )

    def sample(self, num: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw (J, d) samples of theta and (J,) of the noise variance."""
        # torch draws gammas only from its global generator; NumPy takes a seed.
        seed = int(torch.randint(2**62, (), generator=generator))
        gamma = torch.from_numpy(np.random.default_rng(seed).standard_gamma(self.shape, num))
        noise_variance = self.rate / gamma.to(self.mean)
        centred = self.centred_samples(num, generator)
        return self.mean + noise_variance.sqrt()[:, None] * centred, noise_variance

    def outputs(self, features: Tensor, theta: tuple[Tensor, Tensor]) -> Tensor:
        return super().outputs(features, theta[0])

    def likelihood(self, outputs: Tensor, theta: tuple[Tensor, Tensor]) -> Normal:
        return Normal(outputs.squeeze(-1), theta[1].sqrt()[:, None].expand(outputs.shape[:2]))

    def predictive(self, x: Tensor) -> StudentT:
        scale = (self.rate / self.shape * (1 + self.function_variance(x))).sqrt()
        return StudentT(2 * self.shape, self.features(x) @ self.mean, scale.to(self.mean))


@dataclass(frozen=True)
class BayesianLinearRegression:
    """Fits linear regression with a Gaussian prior, exactly.

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
        """Condition on rows ``x`` (n, d) and targets ``y`` (n,); without rows, return the prior itself."""
        given, y = check_labelled(x, y)
        x, y = given.double(), y.double()  # float32 can be too coarse to solve
        prior_mean, prior_precision = gaussian_prior(self.prior_mean, self.prior_covariance, x)
        noise = 1.0 if self.noise_variance is None else self.noise_variance
        check_positive(noise, "noise_variance")
        precision = prior_precision + x.mT @ x / noise
        shift = prior_precision @ prior_mean + x.mT @ y / noise
        factor = torch.linalg.cholesky(precision)
        mean = torch.cholesky_solve(shift[:, None], factor)[:, 0]
        covariance = torch.cholesky_inverse(factor)
        result = mean.to(given), covariance.to(given)
        if self.noise_variance is not None:
            return LinearPosterior(*result, self.noise_variance)
        residual, drift = y - x @ mean, mean - prior_mean
        # The same as b0 + (y^T y + m0^T P0 m0 - m^T P m) / 2, without the cancellation.
        rate = self.noise_rate + 0.5 * float(residual @ residual + drift @ prior_precision @ drift)
        return NormalInverseGammaPosterior(*result, self.noise_shape + len(x) / 2, rate)
