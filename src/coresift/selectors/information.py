"""How much of the pool's information a set of points carries."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize, nnls
from torch import Tensor

from coresift.spaces.base import Space
from coresift.types import Floats

# A sum of vectors shorter than this share of the sum of their norms counts as zero: float32 has 7 digits.
_ROUNDING = 1e-6


def best_weights(space: Space, index: Tensor) -> tuple[Floats, float]:
    """The weights w >= 0 on the points ``index`` (k,) that minimise ||L - L(w)||^2, and that minimum.

    >>> import torch
    >>> from coresift.spaces.vectors import VectorSpace
    >>> space = VectorSpace(torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]))
    >>> weights, rest = best_weights(space, torch.tensor([0]))
    >>> weights.round(6).tolist(), round(rest, 6)
    ([3.0], 1.0)
    """
    if len(index) == 0:
        return np.empty(0), space.squared_total()
    factor, right = (part.cpu().numpy() for part in space.factor(index))
    scale = np.linalg.norm(right) or 1.0
    try:
        weights, _ = nnls(factor / scale, right / scale)
    except RuntimeError:  # its active set went in circles among points that hardly differ
        weights = _descend(factor / scale, right / scale)
    with_total = space.inner_at(space.total(), index).cpu().numpy()
    rest = space.squared_total() - 2 * weights @ with_total + np.square(factor @ weights).sum()
    return weights, max(float(rest), 0.0)


def _descend(factor: Floats, right: Floats) -> Floats:
    """Non-negative least squares by a quasi-Newton method: less exact, but it always ends."""
    columns = np.linalg.norm(factor, axis=0)
    unit = factor / columns

    def loss(weights: Floats) -> tuple[float, Floats]:
        gap = unit @ weights - right
        return 0.5 * float(gap @ gap), unit.T @ gap

    start = np.full(len(columns), 1 / len(columns))
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(columns))
    return np.asarray(found.x / columns, dtype=np.float64)


def information(space: Space, index: Tensor) -> float:
    """1 - ||L - L(w)||^2 / ||L||^2 with the best weights on the points ``index``; between 0 and 1."""
    return share(space, best_weights(space, index)[1])


def share(space: Space, rest: float) -> float:
    """1 - rest / ||L||^2, between 0 and 1; 0 where the vectors sum to zero, up to rounding."""
    whole = space.squared_total()
    # Of vectors that cancel, rounding is left, and a share of that would mean nothing.
    if whole <= (_ROUNDING * space.norm_total()) ** 2:
        return 0.0
    return min(max(1 - rest / whole, 0.0), 1.0)
