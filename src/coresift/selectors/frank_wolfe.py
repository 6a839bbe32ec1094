"""Frank-Wolfe, the paper's selector."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coresift.selectors.sparse import SparseApproximation, Target, inner_with, norm_of
from coresift.spaces.base import Search, Space
from coresift.types import InputError


@dataclass(frozen=True)
class FrankWolfe(SparseApproximation):
    """ACS-FW (paper, Algorithm 1): Frank-Wolfe over the polytope with vertices (sigma/sigma_n) e_n.

    Parameters
    ----------
    start : "zero" is Algorithm 1 to the letter: it line-searches from w = 0 at once, and its weights end
        below the constraint sum_n w_n sigma_n = sigma of the paper's eq. 6. "vertex" makes the whole first
        step, so that the weights keep the constraint; where vectors point in many directions, the later
        steps then mostly make up for the first.
    fill : make the batch exactly as large as asked; ``fill=False`` and ``start="zero"`` is Algorithm 1.

    >>> from coresift.spaces.vectors import VectorSpace
    >>> space = VectorSpace(torch.tensor([[2.0, 1.9, 0.0], [0.0, 0.1, 1.0]]))
    >>> FrankWolfe().select(space, budget=2).index
    array([1, 2])
    """

    start: Literal["zero", "vertex"] = "zero"

    def __post_init__(self) -> None:
        if self.start not in ("zero", "vertex"):
            raise InputError(f"start is {self.start!r}, expected 'zero' or 'vertex'")

    def _fit(self, space: Space, target: Target) -> _FrankWolfeFit:
        return _FrankWolfeFit(space, target, self.start, self.tolerance)


class _FrankWolfeFit:
    """L(w) and the two inner products that line search needs: <target, L(w)> and <L(w), L(w)>."""

    def __init__(
        self, space: Space, target: Target, start: Literal["zero", "vertex"], tolerance: float
    ) -> None:
        self.space, self.target, self.start, self.tolerance = space, target, start, tolerance
        self._sum = torch.zeros_like(target.coordinates)
        self._with_target = self._square = 0.0
        # True weights are these times the common factor, so that a step changes one number only.
        self._weights: dict[int, float] = {}
        self._factor = 1.0
        # Winners of the steps to come, the next one last; the one that was asked for, and whether the step
        # went there, and not to a twin or nowhere.
        self._ahead: list[int] = []
        self._search: Search | None = None
        self._next, self._stepped = -1, False

    @property
    def residual(self) -> float:
        return math.sqrt(max(self.target.square - 2 * self._with_target + self._square, 0.0))

    def weight(self, n: int) -> float:
        return self._factor * self._weights.get(n, 0.0)

    def best(self, search: Search) -> int:
        if search is not self._search or not self._stepped:  # things went otherwise than foreseen
            self._ahead = []
        if not self._ahead and (self._weights or self.start == "zero"):
            found = search.foresee(
                self.target.coordinates,
                self._sum,
                self._with_target,
                self._square,
                self.target.sigma,
                self.tolerance,
            )
            self._ahead = found[::-1]
        self._search, self._stepped = search, False
        if not self._ahead:
            return search.argmax(self.target.coordinates - self._sum)
        self._next = self._ahead.pop()
        return self._next

    def step(self, n: int, coordinates: Tensor) -> bool:
        sigma = self.target.sigma
        height = sigma / norm_of(self.space, n)  # the vertex is height * L_n
        vertex_target = height * inner_with(self.space, self.target.coordinates, n)
        vertex_sum = height * inner_with(self.space, self._sum, n)
        slope = vertex_target - vertex_sum - self._with_target + self._square
        length = sigma**2 - 2 * vertex_sum + self._square
        gamma = 1.0 if self.start == "vertex" and not self._weights else 0.0
        if gamma == 0.0:
            if slope <= 0 or length <= 0:
                return False
            gamma = min(slope / length, 1.0)
        keep = 1 - gamma
        self._sum = keep * self._sum + gamma * height * coordinates
        self._with_target = keep * self._with_target + gamma * vertex_target
        self._square = keep**2 * self._square + 2 * keep * gamma * vertex_sum + (gamma * sigma) ** 2
        if keep < 1e-12:  # the step went all the way: nothing is left of the other points
            self._weights, self._factor = {}, 1.0
        else:
            self._factor *= keep
        self._weights[n] = self._weights.get(n, 0.0) + gamma * height / self._factor
        self._stepped = n == self._next
        return True
