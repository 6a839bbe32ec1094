"""Finite vectors of points whose inner products are posterior covariances of a Gaussian process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from coresift import limits
from coresift.checks import check_integer, check_not_negative
from coresift.errors import InputError
from coresift.pool import Pool
from coresift.posteriors.gaussian_process import GaussianProcessPosterior
from coresift.posteriors.kernels import pivoted_cholesky
from coresift.spaces.base import Problem
from coresift.spaces.vectors import VectorSpace, mapped_space


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

    posterior: GaussianProcessPosterior
    points: Tensor
    factor: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return (n, D) phi(x), in float64."""

        def vectors(rows: Tensor) -> Tensor:
            prior = self.posterior.kernel(self.points, rows)
            prior.addmm_(self._known, self.posterior.kernel(self.posterior.points, rows), alpha=-1)
            return torch.linalg.solve_triangular(self.factor, prior, upper=False).mT

        return self.posterior.by_blocks(vectors, x)

    def remainder(self, x: Tensor) -> Tensor:
        """Return (n,) r(x), the variance of f(x) that the vectors do not have."""
        return self.posterior.function_variance(x) - self(x).square().sum(1)

    @cached_property
    def _known(self) -> Tensor:
        """(D, m) k(P, Z) R R^T"""
        root = self.posterior.root
        return self.posterior.kernel(self.points, self.posterior.points) @ root @ root.mT


@torch.no_grad()
def covariance_vectors(
    posterior: GaussianProcessPosterior,
    pool: Pool,
    num_dimensions: int = 512,
    *,
    tolerance: float = 1e-6,
    generator: torch.Generator | None = None,
    candidates: int = limits.PIVOT_CANDIDATES,
) -> CovarianceVectors:
    """Choose pivots for `CovarianceVectors` of a pool: each where the largest variance is left.

    They are chosen among some thousand ``candidates``, drawn at random from larger pools. There are fewer
    than ``num_dimensions`` if no candidate's remainder is above ``tolerance`` times the largest variance.

    >>> from coresift.pool import as_pool
    >>> from coresift.posteriors.gaussian_process import exact_posterior
    >>> from coresift.posteriors.kernels import Matern52
    >>> x = torch.linspace(0, 1, 200, dtype=torch.float64)[:, None]
    >>> posterior = exact_posterior(Matern52(x[0], torch.ones(1).double(), 1.0), 0.1, x[:50], x[:50, 0])
    >>> vectors = covariance_vectors(posterior, as_pool(x))
    >>> vectors(x).shape[1] < 40, float(vectors.remainder(x).max()) < 1e-6
    (True, True)
    """
    num = check_integer(num_dimensions, 1, "num_dimensions")
    check_not_negative(tolerance, "tolerance")
    index = torch.arange(len(pool))
    if len(pool) > candidates:
        index = torch.randperm(len(pool), generator=generator or torch.Generator())[:candidates].sort().values
    rows = pool.take(index.numpy()).to(posterior.points)
    covariance = posterior.covariance(rows, rows)
    largest = float(covariance.diagonal().max())
    if not largest > 0:
        raise InputError("the model is certain of the whole pool: no point has any variance left")
    pivots, factor = pivoted_cholesky(covariance, num, tolerance * largest)
    return CovarianceVectors(posterior, rows[pivots], factor)


def covariance_space(
    posterior: GaussianProcessPosterior,
    pool: Pool,
    num_dimensions: int = 512,
    *,
    tolerance: float = 1e-6,
    **given: Any,
) -> VectorSpace:
    """Build the space of a pool's `covariance_vectors`: inner products are covariances of f, without noise.

    ``given`` are further attributes of a `Problem`, such as ``generator``, ``labelled`` and ``memory``.
    """
    problem = Problem(pool, posterior, **given)
    vectors = covariance_vectors(
        posterior, pool, num_dimensions, tolerance=tolerance, generator=problem.generator
    )
    space = mapped_space(problem, limits.MAPPED_ROWS, lambda block: vectors(block.x).mT)
    space.additive = False  # log-likelihoods of points add up, predictions do not
    return space
