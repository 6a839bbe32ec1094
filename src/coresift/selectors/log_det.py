"""Greedy log-determinant: the set of points whose labels are jointly most informative."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coresift.selectors.base import Account, Selector
from coresift.spaces.base import Space
from coresift.types import Floats


@dataclass(frozen=True)
class GreedyLogDet(Selector[Space]):
    """Greedily maximises log det(I + K) of the chosen points' inner products K.

    On the predictive covariance in units of the noise that is the information gained about the parameters,
    and the greedy batch is within 1 - 1/e of the best. Each step takes the point of the largest variance
    given the ones before; a step costs one scan, and one vector of coordinates is kept for each point taken.

    >>> from coresift.spaces.vectors import VectorSpace
    >>> GreedyLogDet().select(VectorSpace(torch.tensor([[3.0, 2.9, 0.0], [0.0, 0.1, 1.0]])), budget=2).index
    array([0, 2])
    """

    def _choose(self, space: Space, account: Account, generator: torch.Generator) -> tuple[None, Floats]:
        variance = space.norms**2  # (N,) of each point's function value, given the points taken
        # u_t, with K given the first t points = K - sum_t u_t u_t^T
        directions = space.total().new_zeros(account.budget + len(account.pending), len(space.total()))
        count = 0
        residuals = []
        # The I of I + K, in the units of the space; 0 or infinite where K is so large or so small.
        noise = float(torch.tensor(space.scale, dtype=torch.float64) ** -2)

        def condition(n: int, coordinates: Tensor) -> None:
            nonlocal count
            before = directions[:count]
            shared = space.inner_at(before, torch.tensor([n], device=coordinates.device))[:, 0]
            std = math.sqrt(noise + float(variance[n]))
            direction = (coordinates - shared @ before) / (std or math.inf)
            for part, values in space.inner(direction):
                variance[part] = (variance[part] - values**2).clamp(min=0)
            directions[count] = direction
            count += 1

        for n in account.pending.tolist():
            condition(n, space.coordinates(n))
        while not account.full:
            if not bool(account.open.any()):
                account.reopen()
            n = int(torch.where(account.open, variance, -1.0).argmax())
            coordinates = space.coordinates(n)
            if account.twin(space, n, coordinates) is not None:
                account.set_aside(space, n, coordinates)
                continue
            account.take(n)
            condition(n, coordinates)
            residuals.append(math.sqrt(variance.sum()))
        return None, np.asarray(residuals, dtype=np.float64)
