"""Fewer scans than steps: the leading points of past scans, with a bound on all the others."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coresift.spaces.base import Search

# Leaders and scans that are kept, at most.
_MOST_LEADERS, _MOST_SCANS = 4096, 64
# How far back, in winners asked for, a scan that was saved is a reason to look for many leaders, and how
# often to try it all the same.
_TRIALS, _RETRY = 4, 64
# Cosines in float64 that differ by less are the same: those of copies depend on where they stand in a sum.
TIED = 1e-13
# Leaders of a scan that was not asked for many, as a rule.
_FEW = 64


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

    That takes many leaders, and pays where directions turn little. Frank-Wolfe turns by a right angle or so
    from step to step in more than a few dimensions, and then only the best of the past winners is kept in
    mind: a scan that meets nothing better is the quickest.

    Parameters
    ----------
    scan : (direction (J,) of length one, least cosine of interest or ``None``) -> `Leaders`, the winner among
        them; a ``None`` asks for many.
    allowed : (N,) bool, on the CPU; points may be taken out of it as time goes by, and none put in.

    Attributes
    ----------
    asked, made : how many winners were asked for, and how many scans that took.
    """

    def __init__(self, scan: Callable[[Tensor, float | None], Leaders], allowed: Tensor) -> None:
        self._scan, self.allowed = scan, allowed
        self._past: list[tuple[Tensor, Leaders]] = []
        self._of_use = deque([True] * _TRIALS, maxlen=_TRIALS)
        self.asked = self.made = 0

    def argmax(self, element: Tensor) -> int:
        """The winner; ties go to the lower index."""
        self.asked += 1
        length = float(torch.linalg.vector_norm(element))
        direction = element / length if length > 0 else element
        known = self._known(direction)
        saved = known is not None and known[1] > self._bound(direction)
        self._of_use.append(saved)
        if known is not None and saved:
            return known[0]
        self.made += 1
        many = known is None or any(self._of_use) or self.asked % _RETRY == 0
        leaders = self._scan(direction, None if many or known is None else known[1])
        if not any(self._of_use):  # many leaders were of no use, and would only be looked at again and again
            self._past = [(before, one) for before, one in self._past if len(one.index) <= _FEW]
        self._past.append((direction, leaders))
        kept = sum(len(one.index) for _, one in self._past)
        while len(self._past) > 1 and (len(self._past) > _MOST_SCANS or kept > _MOST_LEADERS):
            kept -= len(self._past.pop(0)[1].index)
        self._index = torch.cat([one.index for _, one in self._past])
        self._units = torch.cat([one.units for _, one in self._past], 1)
        return best(leaders.index, direction @ leaders.units)[0]

    def _known(self, direction: Tensor) -> tuple[int, float] | None:
        """The best of all leaders that are still allowed, and its cosine."""
        if not self._past:
            return None
        cosines = torch.where(self.allowed[self._index], direction @ self._units, -torch.inf)
        known = best(self._index, cosines)
        return known if known[1] > -math.inf else None

    def _bound(self, direction: Tensor) -> float:
        """The largest cosine that a point outside the leaders can have."""
        least = math.inf
        for before, leaders in self._past:
            turned = float(before @ direction)
            if turned > leaders.bound:  # else it may have turned as far as to any of them
                aside = float(torch.linalg.vector_norm(direction - turned * before))
                # cos(beta - theta), with sines that are exact where angles are small
                least = min(least, leaders.bound * turned + math.sqrt(1 - leaders.bound**2) * aside + 1e-12)
        return least


def best(index: Tensor, cosines: Tensor) -> tuple[int, float]:
    """The point with the largest cosine (k,), ties to the lower index, and that cosine."""
    top = float(cosines.max())
    return int(index[cosines >= top - TIED].min()), top
