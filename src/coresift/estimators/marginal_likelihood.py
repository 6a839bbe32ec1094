"""The marginal likelihood of a Gaussian process, and the kernel under which labels are most likely."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor

from coresift.posteriors.kernels import matern52, squared_distances

# Logarithms of the length scales, in standard deviations of the columns, and last of the noise ratio: the
# noise variance in units of the kernel's variance.
Parameters: TypeAlias = npt.NDArray[np.float64]

# Bounds. With a noise ratio of 1e-8, matrices of duplicated rows still have a Cholesky decomposition.
LENGTHS, NOISE_RATIO = (1e-2, 1e3), (1e-8, 1e4)
# Where the first optimisation starts: a length scale of so many times sqrt(d), and a noise ratio.
FIRST = (1.0, 0.1)
# The mean square of standardised targets is at least this, so that constant ones have a likelihood too.
_LEAST_SQUARE = 1e-12


class _Terms(NamedTuple):
    """What a likelihood and its gradient are made of."""

    value: float  # -log p
    variance: float  # v
    alpha: Tensor  # (n,)
    factor: Tensor  # (n, n) the Cholesky factor of M + r I
    scaled: Tensor  # (n, d) rows in units of the length scales
    root: Tensor  # (n, n) a = sqrt(5) |x - z| of scaled rows
    decay: Tensor  # (n, n) exp(-a)


@dataclass(frozen=True, eq=False)
class MarginalLikelihood:
    """Computes -log p(y | x) of a Gaussian process with a Matern 5/2 kernel, and its gradient.

    With M the kernel matrix of variance one and r the noise ratio,

        -log p = n/2 log(2 pi v) + 1/2 log |M + r I| + n/2,    v = y^T (M + r I)^-1 y / n

    where v is the kernel's variance that makes the labels most likely. The derivative with respect to M is
    1/2 [(M + r I)^-1 - alpha alpha^T / v], alpha = (M + r I)^-1 y. Derivatives with respect to length scales
    are sums of its products with squared differences, computed in O(n^2 d) without n^2 d numbers in memory.

    Attributes
    ----------
    x, y : (n, d) rows and (n,) targets, standardised, in float64.
    """

    x: Tensor
    y: Tensor

    def __call__(self, parameters: Parameters) -> tuple[float, Parameters]:
        """Return -log p(y | x) and its gradient (d + 1,)."""
        terms = self._terms(parameters)
        slope = torch.cholesky_inverse(terms.factor)
        slope.addr_(terms.alpha, terms.alpha, alpha=-1 / terms.variance).mul_(0.5)
        by_noise = math.exp(parameters[-1]) * float(slope.diagonal().sum())
        # The derivative of the kernel with respect to a log length scale is 5/3 (1 + a) exp(-a) times the
        # squared difference of that column.
        slope.mul_(terms.root.add_(1)).mul_(terms.decay).mul_(5 / 3)
        scaled = terms.scaled
        by_lengths = 2 * (slope.sum(1) @ scaled.square() - ((slope @ scaled) * scaled).sum(0))
        return terms.value, np.append(by_lengths.cpu().numpy(), by_noise)

    def value_and_variance(self, parameters: Parameters) -> tuple[float, float]:
        """Return -log p(y | x) and v."""
        terms = self._terms(parameters)
        return terms.value, terms.variance

    def _terms(self, parameters: Parameters) -> _Terms:
        scaled = self.x / torch.from_numpy(parameters[:-1]).exp().to(self.x)
        root, decay = matern52(squared_distances(scaled, scaled))
        matrix = root.square().div_(3).add_(root).add_(1).mul_(decay)
        matrix.diagonal().fill_(1 + math.exp(parameters[-1]))
        factor = torch.linalg.cholesky(matrix)
        alpha = torch.cholesky_solve(self.y[:, None], factor)[:, 0]
        variance = float(self.y @ alpha) / len(self.y) + _LEAST_SQUARE
        log_det = 2 * float(factor.diagonal().log().sum())
        value = 0.5 * (len(self.y) * (math.log(2 * math.pi * variance) + 1) + log_det)
        return _Terms(value, variance, alpha, factor, scaled, root, decay)


@dataclass(frozen=True, eq=False)
class Prior:
    """Independent Gaussian priors of the parameters, which are logarithms.

    Few labels say little about many length scales, and the likeliest ones would claim certainty far from any
    label. The prior of length scales is weak, and grows with the number d of columns, as distances do.

    Attributes
    ----------
    mean, std : (d + 1,)

    References
    ----------
    Hvarfner, Hellsten and Nardi, Vanilla Bayesian Optimization Performs Great in High Dimensions, 2024.
    """

    mean: Parameters
    std: Parameters

    @classmethod
    def of(cls, num_columns: int) -> Prior:
        """Log length scales ~ N(sqrt 2 + 1/2 log d, 3), a log noise ratio ~ N(-2, 1.5^2)."""
        mean = np.full(num_columns + 1, math.sqrt(2) + 0.5 * math.log(num_columns))
        std = np.full(num_columns + 1, math.sqrt(3))
        mean[-1], std[-1] = -2.0, 1.5
        return cls(mean, std)

    def __call__(self, parameters: Parameters) -> tuple[float, Parameters]:
        """Return minus the log density, up to a constant, and its gradient."""
        units = (parameters - self.mean) / self.std
        return 0.5 * float(units @ units), units / self.std

    def draw(self, generator: torch.Generator) -> Parameters:
        """Draw parameters."""
        normal = torch.randn(len(self.mean), dtype=torch.float64, generator=generator)
        drawn: Parameters = self.mean + self.std * normal.numpy()
        return drawn


def starts(num_columns: int, num_restarts: int, generator: torch.Generator) -> list[Parameters]:
    """Return the parameters at which optimisers start: usual ones first, others drawn from the prior."""
    length, ratio = FIRST
    first = np.full(num_columns + 1, math.log(length * math.sqrt(num_columns)))
    first[-1] = math.log(ratio)
    return [first, *(Prior.of(num_columns).draw(generator) for _ in range(num_restarts))]


def optimised(
    terms: Sequence[Callable[[Parameters], tuple[float, Parameters]]],
    begin: Sequence[Parameters],
    max_iterations: int,
    advance: Callable[[int], None],
) -> Parameters:
    """Return the parameters with the smallest sum of terms that L-BFGS finds from any start, within bounds.

    ``advance`` is told of ``max_iterations`` steps for each start.
    """

    def total(parameters: Parameters) -> tuple[float, Parameters]:
        values, gradients = zip(*(term(parameters) for term in terms), strict=True)
        return sum(values), np.sum(gradients, axis=0)

    best: Any = None
    for parameters in begin:
        bounds = np.log([*[LENGTHS] * (len(parameters) - 1), NOISE_RATIO])
        found = minimize(
            total,
            np.clip(parameters, *bounds.T),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": max_iterations},
            callback=lambda _: advance(1),
        )
        advance(max_iterations - found.nit)
        best = found if best is None or found.fun < best.fun else best
    optimum: Parameters = best.x
    return optimum
