"""Fewer scans than steps: the leading points of past scans, with a bound on all the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coresift.spaces.base import Search

# Leaders that are kept, at most.
_MOST_LEADERS = 4096
# How many scans that were not saved are a reason to look for no more leaders, and after how many winners to
# try again.
_TRIALS, _RETRY = 4, 64
# Cosines in float64 that differ by less are the same: those of copies depend on where they stand in a sum.
TIED = 1e-13


@dataclass(frozen=True, eq=False)
class Leaders:
    """The points that came first in a scan for the largest <direction, L_n> / ||L_n||.

    Attributes
    ----------
    index : (k,)
    units : (J, k) float64, their vectors L_n / ||L_n||.
    bound : no other point that may be chosen has a larger cosine with the direction.
    """

    index: Tensor
    units: Tensor
    bound: float


class Scan(Search):
    """Finds the point with the largest <element, L_n> / ||L_n|| among those that are allowed.

    A point that was not among the leaders of a past scan has an angle of at least beta with the direction of
    that scan, whose cosine is the bound. If a new direction is at an angle of theta from the old one, that
    point is at least beta - theta away from the new one. So where a leader is nearer than that, it is the
    winner of a scan that need not be made. What comes out is exactly what scanning every time would give.

    That takes many leaders, and pays where directions turn little, or the pool is small. Frank-Wolfe turns by
    a right angle or so from step to step in more than a few dimensions; where a few trials saved nothing,
    scans look for the winner only, which is quicker, and nothing is kept until the next trials.

    Parameters
    ----------
    scan : (direction (J,) of length one, whether to find many) -> `Leaders`, the winner among them.
    allowed : (N,) bool, on the CPU; points may be taken out of it as time goes by, and none put in.

    Attributes
    ----------
    asked, made : how many winners were asked for, and how many scans that took.
    """

    def __init__(self, scan: Callable[[Tensor, bool], Leaders], allowed: Tensor) -> None:
        self._scan, self.allowed = scan, allowed
        self._past: list[tuple[Tensor, Leaders]] = []
        self._trials = _TRIALS
        self.asked = self.made = 0

    def argmax(self, element: Tensor) -> int:
        """The winner; ties go to the lower index."""
        self.asked += 1
        if self.asked % _RETRY == 0:
            self._trials = _TRIALS
        length = float(torch.linalg.vector_norm(element))
        direction = element / length if length > 0 else element
        if self._past:
            known, cosine = self._known(direction)
            if cosine > self._bound(direction):
                self._trials = _TRIALS
                return known
            self._trials -= 1
        self.made += 1
        leaders = self._scan(direction, self._trials > 0)
        self._keep(direction, leaders)
        return best(leaders.index, direction @ leaders.units)[0]

    def _keep(self, direction: Tensor, leaders: Leaders) -> None:
        if self._trials <= 0:
            self._past = []
            return
        self._past.append((direction, leaders))
        if sum(one.index.numel() for _, one in self._past) > _MOST_LEADERS:
            self._past = self._past[len(self._past) // 2 :]
        self._index = torch.cat([one.index for _, one in self._past])
        self._units = torch.cat([one.units for _, one in self._past], 1)
        self._directions = torch.stack([before for before, _ in self._past])
        self._bounds = torch.tensor([one.bound for _, one in self._past], dtype=torch.float64)

    def _known(self, direction: Tensor) -> tuple[int, float]:
        """The best of all leaders that are still allowed, and its cosine."""
        cosines = torch.where(self.allowed[self._index], direction @ self._units, -torch.inf)
        return best(self._index, cosines)

    def _bound(self, direction: Tensor) -> float:
        """The largest cosine that a point outside the leaders can have."""
        turned = self._directions @ direction
        aside = torch.linalg.vector_norm(direction - turned[:, None] * self._directions, dim=1)
        # cos(beta - theta), with sines that are exact where angles are small
        bounds = self._bounds * turned + (1 - self._bounds**2).sqrt() * aside + 1e-12
        # It may have turned as far as to any of them.
        return float(torch.where(turned > self._bounds, bounds, torch.inf).min())


def best(index: Tensor, cosines: Tensor) -> tuple[int, float]:
    """The point with the largest cosine (k,), ties to the lower index, and that cosine."""
    top = float(cosines.max())
    return int(index[cosines >= top - TIED].min()), top
