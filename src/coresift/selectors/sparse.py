"""Sparse approximation: choose points whose weighted sum stays closest to the sum L of the whole pool.

Frank-Wolfe and GIGA differ in how they step; what surrounds the steps is here.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from coresift.selectors.base import Account, Selector
from coresift.spaces.base import Search, Space
from coresift.types import Floats


@dataclass(frozen=True)
class Target:
    """What is to be approximated: L, less the points that already stand for themselves.

    Attributes
    ----------
    coordinates : of the target in its space.
    square : its squared norm.
    sigma : the sum of the norms of its points.
    """

    coordinates: Tensor
    square: float
    sigma: float

    def without(self, space: Space, n: int, coordinates: Tensor) -> Target:
        """The target less point ``n``."""
        norm, shared = norm_of(space, n), inner_with(space, self.coordinates, n)
        square = max(self.square - 2 * shared + norm**2, 0.0)
        return Target(self.coordinates - coordinates, square, max(self.sigma - norm, 0.0))


def inner_with(space: Space, element: Tensor, n: int) -> float:
    """<element, L_n>."""
    return float(space.inner_at(element, torch.tensor([n], device=element.device))[0])


def norm_of(space: Space, n: int) -> float:
    """||L_n||."""
    return float(space.norm_at(torch.tensor([n])))


class Fit(Protocol):
    """A weighted sum of points on its way to a target."""

    target: Target

    @property
    def residual(self) -> float:
        """||target - L(w)||."""
        ...

    def best(self, search: Search) -> int:
        """The allowed point to step towards."""
        ...

    def step(self, n: int, coordinates: Tensor) -> bool:
        """Step towards a point; ``False``, with nothing changed, where that does not come closer."""
        ...

    def weight(self, n: int) -> float: ...


@dataclass(frozen=True)
class SparseApproximation(Selector[Space]):
    """Steps towards L, one point at a time.

    ``budget`` steps are made as published; they come back to points already held, so they find fewer than
    ``budget`` points. With ``fill`` the batch is then made full: the steps go on among points not yet
    chosen, and whenever the target is reached, or no new point comes closer, the chosen points stand for
    themselves and the sum of all the others is the next target. So in J dimensions, where about J points
    reproduce L, each further layer of points is again a summary of what is left, and not a blind choice.

    ``fill=False`` returns what the ``budget`` steps found, with the weights they ended with.
    """

    fill: bool = True
    # The target counts as reached at this relative distance, where float32 vectors end.
    tolerance: float = 1e-6

    @property
    def exact_size(self) -> bool:
        return self.fill

    @abstractmethod
    def _fit(self, space: Space, target: Target) -> Fit:
        """A fit with no points yet."""

    def _choose(
        self, space: Space, account: Account, generator: torch.Generator
    ) -> tuple[Floats | None, Floats]:
        whole = rest = Target(space.total(), space.squared_total(), space.norm_total())
        fit = self._fit(space, whole)
        residuals: list[float] = []

        def step(n: int, coordinates: Tensor) -> bool:
            moved = fit.residual > self.tolerance * fit.target.square**0.5 and fit.step(n, coordinates)
            if moved:
                residuals.append(fit.residual)
            return moved

        # Pending points first: what they explain need not be chosen again.
        vertices = account.open.clone()
        if len(account.pending):
            waiting = torch.zeros_like(account.open)
            for n in account.pending.tolist():
                waiting[n] = norm_of(space, n) > 0
                rest = rest.without(space, n, space.coordinates(n))
            search = space.scan(waiting)
            for _ in range(int(waiting.count_nonzero())):
                n = fit.best(search)
                if not step(n, space.coordinates(n)):
                    break
            residuals.clear()
            vertices |= waiting

        # The published algorithm: ``budget`` steps, to old points as well as new.
        search = space.scan(vertices)
        for _ in range(account.budget if bool(vertices.any()) else 0):
            n = fit.best(search)
            coordinates = space.coordinates(n)
            twin = account.twin(space, n, coordinates)
            if not step(n if twin is None else twin, coordinates):
                break
            if twin is None:
                account.take(n)
                rest = rest.without(space, n, coordinates)

        if not self.fill:
            members = account.members
            return np.array([fit.weight(n) for n in members], dtype=np.float64), np.array(residuals)
        search = space.scan(account.open, once=True)
        steps, fresh = len(residuals), False  # whether the target is a new one, with no step towards it yet
        while not account.full:
            if account.left == 0:
                account.reopen()
                search = space.scan(account.open, once=True)
            n = fit.best(search)
            coordinates = space.coordinates(n)
            if account.twin(space, n, coordinates) is not None:
                account.set_aside(space, n, coordinates)
            elif step(n, coordinates) or fresh:
                account.take(n)
                rest, fresh = rest.without(space, n, coordinates), False
                steps = len(residuals) if fit.target is whole else steps
            else:
                fit, fresh = self._fit(space, rest), True
        return None, np.array(residuals[:steps])
