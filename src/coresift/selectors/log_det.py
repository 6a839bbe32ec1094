"""Greedy log-determinant: the set of points whose labels are jointly most informative."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from coresift import limits
from coresift.selectors.base import Selection, Selector
from coresift.spaces.base import Space
from coresift.types import Floats


@dataclass(frozen=True)
class GreedyLogDet(Selector[Space]):
    """Greedily maximises log det(I + G) of the chosen points' inner products, the Gram matrix G.

    On the predictive covariance in units of the noise that is the information gained about the parameters,
    and the greedy batch is within 1 - 1/e of the best. Each step takes the point of the largest variance
    given the ones before; a step costs one scan, and one element is kept for each point taken. It keeps the
    variances of all points, and reads `Space.norms` for them. Therefore it cannot run on Ray.

    >>> from coresift.spaces.vectors import VectorSpace
    >>> GreedyLogDet().select(VectorSpace(torch.tensor([[3.0, 2.9, 0.0], [0.0, 0.1, 1.0]])), budget=2).index
    array([0, 2])
    """

    bytes_per_point: ClassVar[int] = limits.LOG_DET_BYTES

    def _choose(self, space: Space, selection: Selection, generator: torch.Generator) -> tuple[None, Floats]:
        given = _Conditioned(space, selection.budget + len(selection.pending))
        residuals = []
        for n in selection.pending.tolist():
            given.add(n)
        while not selection.full:
            if not bool(selection.open.any()):
                selection.reopen()
            open = selection.open.to(given.variance.device)
            n = int(torch.where(open, given.variance, -1.0).argmax())
            if selection.duplicate_of(space, n, float(space.norms[n])) is not None:
                selection.set_aside(space, n)
                continue
            selection.take(n)
            given.add(n)
            residuals.append(math.sqrt(given.variance.sum()))
        return None, np.asarray(residuals, dtype=np.float64)


class _Conditioned:
    """The variances of all points' function values, given those of some points with noise.

    Attributes
    ----------
    variance : (N,)
    """

    def __init__(self, space: Space, capacity: int) -> None:
        self.space, self.variance = space, space.norms**2
        # u_t, with G given the first t points = G - sum_t u_t u_t^T
        self._directions = space.total().new_zeros(capacity, *space.total().shape)
        self._count = 0
        # The I of I + G, in the units of the space; 0 or infinite where G is so large or so small.
        self._noise = float(torch.tensor(space.scale, dtype=torch.float64) ** -2)

    def add(self, n: int) -> None:
        """Condition on point ``n`` too."""
        before, element = self._directions[: self._count], self.space.vector(n)
        shared = self.space.inner_at(before, torch.tensor([n], device=element.device))[:, 0]
        std = math.sqrt(self._noise + float(self.variance[n]))
        direction = (element - torch.tensordot(shared, before, 1)) / (std or math.inf)
        for part, values in self.space.inner(direction):
            self.variance[part] = (self.variance[part] - values**2).clamp(min=0)
        self._directions[self._count] = direction
        self._count += 1
