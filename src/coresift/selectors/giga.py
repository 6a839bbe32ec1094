"""GIGA: greedy iterative geodesic ascent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coresift.selectors.sparse import SparseApproximation, Target, inner_with
from coresift.spaces.base import Search, Space


@dataclass(frozen=True)
class GIGA(SparseApproximation):
    """Walk along the unit sphere towards the direction of L, then scale.

    Unlike Frank-Wolfe it is not bound to a polytope, so the same number of points comes closer to L.

    References
    ----------
    Campbell and Broderick, Bayesian Coreset Construction via Greedy Iterative Geodesic Ascent, 2018.

    >>> from coresift.spaces.vectors import VectorSpace
    >>> space = VectorSpace(torch.tensor([[2.0, 1.9, 0.0], [0.0, 0.1, 1.0]]))
    >>> sorted(GIGA().select(space, budget=2).index.tolist())
    [1, 2]
    """

    def _fit(self, space: Space, target: Target) -> _GeodesicFit:
        return _GeodesicFit(space, target)


class _GeodesicFit:
    """A unit vector y, a non-negative sum of points, and its cosine with the target."""

    def __init__(self, space: Space, target: Target) -> None:
        self.space, self.target = space, target
        self._norm = math.sqrt(max(target.square, 1e-300))
        self._unit = torch.zeros_like(target.coordinates)
        self._cosine = 0.0
        self._weights: dict[int, float] = {}
        self._factor = 1.0
        # (N,) cosine of each point with the target, needed in every step.
        self._towards = torch.cat([values for _, values in space.inner(target.coordinates)])
        self._towards = self._towards / (space.norms * self._norm)

    @property
    def residual(self) -> float:
        return self._norm * math.sqrt(max(1 - self._cosine**2, 0.0))

    def weight(self, n: int) -> float:
        scale = self._factor * self._norm * self._cosine
        return scale * self._weights.get(n, 0.0) / float(self.space.norms[n])

    def best(self, search: Search) -> int:
        best, where = -torch.inf, -1
        for part, values in self.space.inner(self._unit):
            along = values / self.space.norms[part]
            # The cosine between the directions from y to the target and from y to the point.
            score = (self._towards[part] - self._cosine * along) / (1 - along**2).clamp(min=1e-12).sqrt()
            score = torch.where(search.allowed[part], score, -torch.inf)
            position = int(score.argmax())
            if float(score[position]) > best:
                best, where = float(score[position]), part.start + position
        return where

    def step(self, n: int, coordinates: Tensor) -> bool:
        norm = float(self.space.norms[n])
        point_target = inner_with(self.space, self.target.coordinates, n) / (norm * self._norm)
        point_unit = inner_with(self.space, self._unit, n) / norm
        gamma = 1.0
        if self._weights:
            gain = point_target - self._cosine * point_unit
            loss = self._cosine - point_target * point_unit
            if gain <= 0 or gain + loss <= 0:
                return False
            gamma = min(gain / (gain + loss), 1.0)
        elif point_target <= 0:
            return False
        keep = 1 - gamma
        length = max(keep**2 + 2 * keep * gamma * point_unit + gamma**2, 1e-300) ** 0.5
        self._unit = (keep * self._unit + gamma / norm * coordinates) / length
        self._cosine = min((keep * self._cosine + gamma * point_target) / length, 1.0)
        if keep < 1e-12:  # the step went all the way: nothing is left of the other points
            self._weights, self._factor = {}, 1.0
        else:
            self._factor *= keep / length
        self._weights[n] = self._weights.get(n, 0.0) + gamma / length / self._factor
        return True
