"""The marginal likelihood of a Gaussian process, and the kernel under which labels are most likely."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor

from coresift.posteriors.kernels import matern52, squared_distances

# Logarithms of the length scales, in standard deviations of the columns, and last of the noise ratio.
Parameters: TypeAlias = npt.NDArray[np.float64]

LENGTHS = (1e-2, 1e3)  # bounds
NOISE_RATIO = (1e-8, 1e4)
# Where the optimiser starts: this length scale times sqrt(d), and this noise ratio.
FIRST = (1.0, 0.1)
# Further starts are drawn with log length scales and log noise ratios between these.
DRAWN = ((0.3, 30.0), (1e-4, 1.0))
# The mean square of standardised targets is at least this, so that constant ones have a likelihood too.
_LEAST_SQUARE = 1e-12


@dataclass(frozen=True, eq=False)
class MarginalLikelihood:
    """Computes -log p(y | x) of a Gaussian process with a Matern 5/2 kernel, and its gradient.

    With M the kernel matrix of variance one and r the noise variance in units of the kernel's variance v,

        -log p = n/2 log(2 pi v) + 1/2 log |M + r I| + n/2,    v = y^T (M + r I)^-1 y / n

    where v is the variance that makes the labels most likely. Derivatives with respect to the matrix are
    1/2 [(M + r I)^-1 - alpha alpha^T / v] with alpha = (M + r I)^-1 y, and those with respect to a length
    scale are sums of these times squared differences, computed in O(n^2 d) without an array of n^2 d numbers.

    Attributes
    ----------
    x, y : (n, d) rows and (n,) targets, standardised, in float64.
    """

    x: Tensor
    y: Tensor

    def __call__(self, parameters: Parameters) -> tuple[float, Parameters]:
        """Return -log p(y | x) and its gradient (d + 1,)."""
        size, ratio = len(self.y), math.exp(parameters[-1])
        scaled = self.x / torch.from_numpy(parameters[:-1]).exp().to(self.x)
        root, decay = matern52(squared_distances(scaled, scaled))
        factor = self._factor(root, decay, ratio)
        alpha, variance = self._solved(factor)
        log_det = 2 * float(factor.diagonal().log().sum())
        value = 0.5 * (size * (math.log(2 * math.pi * variance) + 1) + log_det)
        slope = torch.cholesky_inverse(factor).addr_(alpha, alpha, alpha=-1 / variance).mul_(0.5)
        by_noise = ratio * float(slope.diagonal().sum())
        # The derivative of the kernel with respect to a log length scale is 5/3 (1 + a) exp(-a) times the
        # squared difference of a column.
        slope.mul_(root.add_(1)).mul_(decay).mul_(5 / 3)
        by_lengths = 2 * (slope.sum(1) @ scaled.square() - ((slope @ scaled) * scaled).sum(0))
        return value, np.append(by_lengths.cpu().numpy(), by_noise)

    def variance(self, parameters: Parameters) -> float:
        """Return v, the kernel's variance."""
        scaled = self.x / torch.from_numpy(parameters[:-1]).exp().to(self.x)
        kernel = matern52(squared_distances(scaled, scaled))
        return self._solved(self._factor(*kernel, math.exp(parameters[-1])))[1]

    def _factor(self, root: Tensor, decay: Tensor, ratio: float) -> Tensor:
        """Return (n, n) the Cholesky factor of M + r I."""
        matrix = root.square().div_(3).add_(root).add_(1).mul_(decay)
        matrix.diagonal().fill_(1 + ratio)
        return torch.linalg.cholesky(matrix)

    def _solved(self, factor: Tensor) -> tuple[Tensor, float]:
        """Return (n,) alpha and v."""
        alpha = torch.cholesky_solve(self.y[:, None], factor)[:, 0]
        return alpha, float(self.y @ alpha) / len(self.y) + _LEAST_SQUARE


def starts(num_columns: int, num_restarts: int, generator: torch.Generator) -> list[Parameters]:
    """Return the parameters at which optimisers start: a usual one, and others drawn at random."""
    length, ratio = FIRST
    first = np.full(num_columns + 1, math.log(length * math.sqrt(num_columns)))
    first[-1] = math.log(ratio)
    low, high = (np.log([*[DRAWN[0][side]] * num_columns, DRAWN[1][side]]) for side in (0, 1))
    drawn = torch.rand(num_restarts, num_columns + 1, dtype=torch.float64, generator=generator).numpy()
    return [first, *(low + share * (high - low) for share in drawn)]


def most_likely(
    likelihood: Any, begin: Iterable[Parameters], max_iterations: int, advance: Callable[[int], None]
) -> tuple[Parameters, float]:
    """Return the parameters under which labels are most likely, and -log p, by L-BFGS from each start.

    ``advance`` is told of ``max_iterations`` steps for each start.
    """
    best: Any = None
    for parameters in begin:
        bounds = np.log([*[LENGTHS] * (len(parameters) - 1), NOISE_RATIO])
        found = minimize(
            likelihood,
            parameters,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": max_iterations},
            callback=lambda _: advance(1),
        )
        advance(max_iterations - found.nit)
        best = found if best is None or found.fun < best.fun else best
    return best.x, float(best.fun)
