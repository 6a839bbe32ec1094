"""Gaussian processes: the posterior of a function given labelled points, exactly or by inducing points."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.distributions import Normal

from coresift import limits
from coresift.checks import check_positive, check_shape
from coresift.posteriors.kernels import Matern52
from coresift.posteriors.linear import check_labelled
from coresift.threads import enough_threads

# Added to the diagonal of the inducing points' covariance, in units of the kernel's variance.
_JITTER = 1e-8


class Functions(NamedTuple):
    """J functions: f_j(x) = mean + prior_j . fourier(x) + update_j . k(points, x)."""

    frequencies: Tensor  # (F, d) which all functions share
    prior: Tensor  # (J, 2 F)
    update: Tensor  # (J, m)


@dataclass(frozen=True, eq=False)
class GaussianProcessPosterior:
    """A Gaussian process given labels: y = f(x) + noise, with f of mean m(x) and covariance c(x, z):

        m(x) = mean + k(x, Z) weights
        c(x, z) = k(x, z) - k(x, Z) R R^T k(Z, z)

    Z are the labelled points, or m inducing points that stand for them. `exact_posterior` and
    `inducing_posterior` compute the rest. All is in float64, whatever the type of the pool.

    Attributes
    ----------
    kernel : of the prior.
    points : (m, d) Z.
    weights : (m,)
    root : (m, m) R.
    noise_variance : of y around f(x).
    mean : of the prior.
    remaining : (m,) for inducing points, 1 / sqrt(1 + l), see `inducing_posterior`; ``None`` for labelled
        points.

    >>> x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    >>> kernel = Matern52(x[0], torch.ones(1, dtype=torch.float64), variance=1.0)
    >>> posterior = exact_posterior(kernel, 1e-6, x, torch.tensor([1.0, 2.0]).double())
    >>> posterior.predictive(torch.tensor([[0.0], [9.0]])).mean.round(decimals=2)
    tensor([1., 0.], dtype=torch.float64)
    """

    kernel: Matern52
    points: Tensor
    weights: Tensor
    root: Tensor
    noise_variance: float
    mean: float = 0.0
    remaining: Tensor | None = None

    def __post_init__(self) -> None:
        size = len(self.points)
        check_shape(self.weights, (size,), "weights")
        check_shape(self.root, (size, size), "root")
        check_positive(self.noise_variance, "noise_variance")

    def to(self, device: torch.device | str) -> Self:
        """Return the posterior on another device."""
        names = ("kernel", "points", "weights", "root", "remaining")
        given = {name: getattr(self, name) for name in names}
        moved: dict[str, Any] = {name: value.to(device) for name, value in given.items() if value is not None}
        return replace(self, **moved)

    def sample(self, num: int, generator: torch.Generator) -> Functions:
        """Draw J functions by Matheron's rule: a draw of the prior, plus an exact update.

        With f ~ prior, noise e and K = k(Z, Z) + s2 I, f(x) + k(x, Z) K^-1 (y - f(Z) - e) is a draw of the
        posterior. The update is exact, but the draws of the prior are approximate: sums of random Fourier
        features at F = 1024 frequencies that all functions share. Their covariance has an error of about
        1 / sqrt(2 F), or two percent, of the prior's variance. A function is the same for all rows, in
        whatever blocks they come. Between labels with little noise, where the posterior's variance is a small
        part of the prior's, draws spread too little; `GaussianProcessOnPool` has better ones for a pool.

        References
        ----------
        Wilson et al., Efficiently Sampling Functions from Gaussian Process Posteriors, 2020.
        """
        dtype, device = self.points.dtype, self.points.device
        frequencies = self.kernel.frequencies(limits.FOURIER_FREQUENCIES, generator)
        prior = torch.randn(num, 2 * len(frequencies), dtype=dtype, generator=generator).to(device)
        noise = torch.randn(num, len(self.points), dtype=dtype, generator=generator).to(device)
        values = self.by_blocks(lambda z: self.kernel.fourier(z, frequencies) @ prior.mT, self.points)
        # R^T f(Z) plus noise of covariance I - R^T k(Z, Z) R, which makes the sum's covariance I.
        if self.remaining is None:
            whitened = (values.mT + math.sqrt(self.noise_variance) * noise) @ self.root
        else:
            whitened = values.mT @ self.root + self.remaining * noise
        return Functions(frequencies, prior, self.weights - whitened @ self.root.mT)

    def conditional(self, x: Tensor, theta: Functions) -> Normal:
        def values(rows: Tensor) -> Tensor:
            fourier = self.kernel.fourier(rows, theta.frequencies)
            return fourier @ theta.prior.mT + self.kernel(rows, self.points) @ theta.update.mT

        mean = self.mean + self.by_blocks(values, x).mT
        return Normal(mean, math.sqrt(self.noise_variance), validate_args=False)

    def predictive(self, x: Tensor) -> Normal:
        mean, variance = self.moments(x)
        return Normal(mean, (variance + self.noise_variance).sqrt(), validate_args=False)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (n,) the mean and (n,) the variance of f(x), without noise."""

        def both(rows: Tensor) -> Tensor:
            products = self.kernel(rows, self.points)
            known = (products @ self.root).square_().sum(1)
            return torch.stack([self.mean + products @ self.weights, self.kernel.variance - known], 1)

        mean, variance = self.by_blocks(both, x).unbind(1)
        return mean, variance.clamp(min=0)

    def function_mean(self, x: Tensor) -> Tensor:
        """Return (n,) the mean of f(x)."""
        return self.moments(x)[0]

    def function_variance(self, x: Tensor) -> Tensor:
        """Return (n,) the variance of f(x), without noise."""
        return self.moments(x)[1]

    def covariance(self, x: Tensor, z: Tensor) -> Tensor:
        """Return (n, k) the covariance c(x, z) of f at rows (n, d) and (k, d), without noise."""
        known = self.kernel(z, self.points) @ self.root @ self.root.mT  # (k, m)
        return self.by_blocks(
            lambda rows: self.kernel(rows, z) - self.kernel(rows, self.points) @ known.mT, x
        )

    def by_blocks(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return ``function(x)`` of rows (n, d), a block at a time: products with all points take memory."""
        check_shape(x, (None, self.points.shape[1]), "x")
        width = max(len(self.points), 2 * limits.FOURIER_FREQUENCIES)
        blocks = torch.split(x, max(1, limits.PREDICTIVE_NUMBERS // width))
        with enough_threads(len(blocks[0]) * width):
            return torch.cat([function(rows) for rows in blocks])


def exact_posterior(
    kernel: Matern52, noise_variance: float, x: Tensor, y: Tensor, mean: float = 0.0
) -> GaussianProcessPosterior:
    """Condition on rows ``x`` (n, d) and targets ``y`` (n,): R R^T is (K + s2 I)^-1, in time O(n^3)."""
    x, y = check_labelled(x, y)
    x, y = x.double(), y.double()
    matrix = kernel(x, x)
    matrix.diagonal().add_(noise_variance)
    factor = torch.linalg.cholesky(matrix)
    weights = torch.cholesky_solve((y - mean)[:, None], factor)[:, 0]
    root = torch.linalg.solve_triangular(factor.mT, torch.eye(len(x)).to(factor), upper=True)
    return GaussianProcessPosterior(kernel, x, weights, root.contiguous(), noise_variance, mean)


def inducing_posterior(
    kernel: Matern52,
    noise_variance: float,
    x: Tensor,
    y: Tensor,
    points: Tensor,
    mean: float = 0.0,
    advance: Callable[[int], None] = lambda rows: None,
) -> GaussianProcessPosterior:
    """Condition on n labels through m inducing points Z, in time O(n m^2) and memory O(m^2).

    It is the variational posterior that is closest to the exact one in Kullback-Leibler divergence. With
    Kzz = L L^T and the eigenvectors U and eigenvalues l of L^-1 Kzf Kfz L^-T / s2,

        weights = L^-T U diag(1 / (1 + l)) U^T L^-1 Kzf (y - mean) / s2
        R = L^-T U diag(l / (1 + l))^1/2

    The variables U^T L^-1 f(Z) are independent, with a variance of 1 a priori and 1 / (1 + l) given labels.
    ``advance`` is told how many rows are done.

    References
    ----------
    Titsias, Variational Learning of Inducing Variables in Sparse Gaussian Processes, 2009.
    """
    x, y = check_labelled(x, y)
    points = points.double()
    matrix = kernel(points, points)
    matrix.diagonal().add_(_JITTER * kernel.variance)
    factor = torch.linalg.cholesky(matrix)
    squares, sums = torch.zeros_like(matrix), torch.zeros_like(points[:, 0])
    size = max(1, limits.PREDICTIVE_NUMBERS // len(points))
    for rows, targets in zip(torch.split(x, size), torch.split(y, size), strict=True):
        whitened = torch.linalg.solve_triangular(factor, kernel(points, rows.double()), upper=False)
        squares.addmm_(whitened, whitened.mT)
        sums.addmv_(whitened, targets.double() - mean)
        advance(len(rows))
    values, vectors = torch.linalg.eigh(squares / noise_variance)
    values = values.clamp(min=0)
    basis = torch.linalg.solve_triangular(factor.mT, vectors, upper=True)
    weights = basis @ ((vectors.mT @ sums) / (1 + values)) / noise_variance
    root = (basis * (values / (1 + values)).sqrt()).contiguous()
    return GaussianProcessPosterior(
        kernel, points, weights, root, noise_variance, mean, (1 / (1 + values)).sqrt()
    )
