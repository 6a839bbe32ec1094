"""How much of the pool's information a set of points carries."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls
from torch import Tensor

from coresift.spaces.base import Space
from coresift.types import Floats


def best_weights(space: Space, index: Tensor) -> tuple[Floats, float]:
    """The weights w >= 0 on the points ``index`` (k,) that minimise ||L - L(w)||^2, and that minimum.

    >>> import torch
    >>> from coresift.spaces.vectors import VectorSpace
    >>> space = VectorSpace(torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]))
    >>> weights, rest = best_weights(space, torch.tensor([0]))
    >>> weights.round(6).tolist(), round(rest, 6)
    ([3.0], 1.0)
    """
    factor, right = (part.cpu().numpy() for part in space.factor(index))
    weights, _ = nnls(factor, right)
    with_total = space.inner_at(space.total(), index).cpu().numpy()
    rest = space.squared_total() - 2 * weights @ with_total + np.square(factor @ weights).sum()
    return weights, max(float(rest), 0.0)


def information(space: Space, index: Tensor) -> float:
    """1 - ||L - L(w)||^2 / ||L||^2 with the best weights on the points ``index``; between 0 and 1."""
    whole = space.squared_total()
    if len(index) == 0 or whole <= 0:
        return 0.0
    return 1 - best_weights(space, index)[1] / whole
