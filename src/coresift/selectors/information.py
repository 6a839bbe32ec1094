"""How much of the pool's information a set of points carries."""

from __future__ import annotations

from functools import singledispatch

import numpy as np
import torch
from scipy.optimize import lsq_linear, nnls
from torch import Tensor

from coresift.spaces.base import Space, norm_sum
from coresift.spaces.vectors import ColumnSpace
from coresift.types import Floats

# A sum of vectors shorter than this share of the sum of their norms counts as zero: float32 has 7 digits.
_ROUNDING = 1e-6
# An eigenvalue below this share of the largest, for each point, counts as zero.
_SMALLEST_EIGENVALUE = 1e-13


def best_weights(space: Space, index: Tensor) -> tuple[Floats, float]:
    """The weights w >= 0 on the points ``index`` (k,) that minimise ||L - L(w)||^2, and that minimum.

    >>> from coresift.spaces.vectors import VectorSpace
    >>> space = VectorSpace(torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]))
    >>> weights, rest = best_weights(space, torch.tensor([0]))
    >>> weights.round(6).tolist(), round(rest, 6)
    ([3.0], 1.0)
    """
    if len(index) == 0:
        return np.empty(0), _squared_total(space)
    matrix, right = (part.cpu().numpy() for part in factor(space, index))
    scale = np.linalg.norm(right) or 1.0
    try:
        weights, _ = nnls(matrix / scale, right / scale)
    except RuntimeError:  # its active set went in circles among points that hardly differ
        weights = _interior(matrix / scale, right / scale)
    with_total = space.inner_at(space.total(), index).cpu().numpy()
    rest = _squared_total(space) - 2 * weights @ with_total + np.square(matrix @ weights).sum()
    return weights, max(float(rest), 0.0)


@singledispatch
def factor(space: Space, index: Tensor) -> tuple[Tensor, Tensor]:
    """A (r, k) and y (r,) with ||A w - y||^2 = ||L - L(w)||^2 + constant, for weights w on ``index``."""
    # A^T A = gram, A^T y = <L, L_n>: eigenvectors give such an A even where points depend on each other.
    # Of unit vectors: short ones would be lost next to long ones.
    gram = space.gram(index)
    norms = gram.diagonal().clamp_min(torch.finfo(gram.dtype).tiny).sqrt()
    values, vectors = torch.linalg.eigh(gram / norms / norms[:, None])
    kept = values > values[-1] * len(values) * _SMALLEST_EIGENVALUE
    root, vectors = values[kept].sqrt(), vectors[:, kept]
    right = vectors.mT @ (space.inner_at(space.total(), index) / norms) / root
    return root[:, None] * vectors.mT * norms, right


@factor.register
def _(space: ColumnSpace, index: Tensor) -> tuple[Tensor, Tensor]:
    return space.columns_at(index), space.total()


def _squared_total(space: Space) -> float:
    return float(space.dot(space.total(), space.total()))


def _interior(matrix: Floats, right: Floats) -> Floats:
    """Non-negative least squares from inside the bounds: less exact, but it always ends."""
    columns = np.linalg.norm(matrix, axis=0)
    found = lsq_linear(matrix / columns, right, bounds=(0, np.inf))
    return np.asarray(found.x / columns, dtype=np.float64)


def information(space: Space, index: Tensor) -> float:
    """1 - ||L - L(w)||^2 / ||L||^2 with the best weights on the points ``index``; between 0 and 1."""
    return share(space, best_weights(space, index)[1])


def share(space: Space, rest: float) -> float:
    """1 - rest / ||L||^2, between 0 and 1; 0 where the vectors sum to zero, up to rounding."""
    whole = _squared_total(space)
    # Where vectors cancel, rounding is left, and a share of that would mean nothing.
    if whole <= (_ROUNDING * norm_sum(space)) ** 2:
        return 0.0
    return min(max(1 - rest / whole, 0.0), 1.0)
