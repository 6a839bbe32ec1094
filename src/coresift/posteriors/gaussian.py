"""Share what models with Gaussian weights on given features have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution

from coresift.checks import check_covariance, check_finite, check_shape
from coresift.errors import shown
from coresift.pool import as_array, as_float
from coresift.types import InputError


@dataclass(frozen=True, eq=False)
class GaussianWeights(ABC):
    """theta ~ N(mean, covariance), and an output theta^T x for each row.

    Attributes
    ----------
    mean : (d,)
    covariance : (d, d)
    """

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
    # Halves become float32: they have too few digits to solve with.
    x, y = (as_float(given.detach() if isinstance(given, Tensor) else as_array(given)) for given in (x, y))
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


def check_positive(value: float, name: str) -> None:
    """Raise unless ``value`` is a finite number above zero."""
    number = isinstance(value, Real | Tensor) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise InputError(f"{name} is {shown(value)}, expected a positive number")
