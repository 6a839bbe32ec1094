"""Finite vectors of points whose inner products are posterior covariances of a Gaussian process."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from torch.distributions import Normal

from coresift import limits
from coresift.checks import check_integer, check_not_negative
from coresift.errors import InputError
from coresift.pool import Pool, as_pool
from coresift.posteriors.gaussian_process import GaussianProcessPosterior
from coresift.posteriors.kernels import pivoted_cholesky


@dataclass(frozen=True, eq=False)
class CovarianceVectors:
    """Maps points to vectors phi(x) of D numbers, phi(x) . phi(z) close to c(x, z) = Cov[f(x), f(z) | D0].

    Nystrom's approximation, or a Cholesky decomposition that stops after D pivots P: with c(P, P) = L L^T,

        phi(x) = L^-1 c(P, x)

    With the remainder r(x) = c(x, x) - |phi(x)|^2, which is at least zero, the error of a covariance is at
    most sqrt(r(x) r(z)). It is zero where x or z is a pivot.

    Attributes
    ----------
    points : (D, d) P.
    factor : (D, D) L.
    """

    process: GaussianProcessPosterior
    points: Tensor
    factor: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return (n, D) phi(x), in float64."""

        def vectors(rows: Tensor) -> Tensor:
            products = self.process.kernel(self.process.points, rows)
            covariance = self.process.kernel(self.points, rows).addmm_(self._known, products, alpha=-1)
            found: Tensor = torch.linalg.solve_triangular(self.factor, covariance, upper=False)
            return found.mT

        return self.process.by_blocks(vectors, x)

    def remainder(self, x: Tensor) -> Tensor:
        """Return (n,) r(x), the variance of f(x) that the vectors do not have."""
        return self.process.function_variance(x) - self(x).square().sum(1)

    @cached_property
    def _known(self) -> Tensor:
        """(D, m) k(P, Z) R R^T"""
        root = self.process.root
        return self.process.kernel(self.points, self.process.points) @ root @ root.mT


def covariance_vectors(
    process: GaussianProcessPosterior, candidates: Tensor, num_dimensions: int = 512, tolerance: float = 1e-6
) -> CovarianceVectors:
    """Choose pivots for `CovarianceVectors` among rows (n, d): each where the largest variance is left.

    There are fewer than ``num_dimensions`` if no candidate's remainder is above ``tolerance`` times the
    largest variance. The (n, n) covariance of the candidates is stored.

    >>> from coresift.posteriors import Matern52, exact_posterior
    >>> x = torch.linspace(0, 1, 200, dtype=torch.float64)[:, None]
    >>> process = exact_posterior(Matern52(x[0], torch.ones(1).double(), 1.0), 0.1, x[:50], x[:50, 0])
    >>> vectors = covariance_vectors(process, x)
    >>> vectors(x).shape[1] < 40, float(vectors.remainder(x).max()) < 1e-6
    (True, True)
    """
    num = check_integer(num_dimensions, 1, "num_dimensions")
    check_not_negative(tolerance, "tolerance")
    candidates = candidates.to(process.points)
    covariance = process.covariance(candidates, candidates)
    largest = float(covariance.diagonal().max())
    if not largest > 0:
        raise InputError("the model is certain of all points: none has any variance left")
    pivots, factor = pivoted_cholesky(covariance, num, tolerance * largest)
    return CovarianceVectors(process, candidates[pivots], factor)


def _drawn(pool: Pool, num: int, generator: torch.Generator) -> Tensor:
    """Return (n, d) rows of a pool, at most ``num``, drawn at random."""
    index = torch.arange(len(pool))
    if len(pool) > num:
        index = torch.randperm(len(pool), generator=generator)[:num].sort().values
    return pool.take(index.numpy())


@dataclass(frozen=True, eq=False)
class GaussianProcessOnPool:
    """A Gaussian process given labels, with draws and vectors that are made for the points of one pool:

        f(x) = m(x) + theta . phi(x),    theta ~ N(0, I)

    where phi are the pool's `covariance_vectors`. Of the variance of f(x), the draws lack the remainder r(x);
    means, predictives and information are exact. `coresift.select` makes one of each Gaussian process.

    Attributes
    ----------
    candidates : (n, d) rows of the pool, among which pivots are chosen.
    num_dimensions : the most numbers of phi(x).
    """

    process: GaussianProcessPosterior
    candidates: Tensor
    num_dimensions: int = limits.PIVOTS

    @classmethod
    def of(
        cls,
        process: GaussianProcessPosterior,
        pool: Pool,
        generator: torch.Generator,
        num: int = limits.PIVOT_CANDIDATES,
        target: Tensor | None = None,
    ) -> Self:
        """Draw ``num`` candidates from a pool at random, or take all where there are no more.

        Where there is a ``target`` (T, d), rows where the model will be used, half of them come from there.
        """
        sources = [pool] if target is None else [pool, as_pool(target)]
        return cls(process, torch.cat([_drawn(each, num // len(sources), generator) for each in sources]))

    def to(self, device: torch.device | str) -> Self:
        """Return the posterior on another device."""
        return replace(self, process=self.process.to(device))

    @cached_property
    def vectors(self) -> CovarianceVectors:
        """The function phi, found when it is first needed."""
        return covariance_vectors(self.process, self.candidates, self.num_dimensions)

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw (J, D) theta."""
        size = len(self.vectors.points)
        drawn = torch.randn(num, size, dtype=torch.float64, generator=generator)
        return drawn.to(self.process.points.device)

    def conditional(self, x: Tensor, theta: Tensor) -> Normal:
        mean = self.process.function_mean(x) + theta @ self.vectors(x).mT
        return Normal(mean, math.sqrt(self.process.noise_variance), validate_args=False)

    def predictive(self, x: Tensor) -> Normal:
        return self.process.predictive(x)
