"""Fewer scans than steps: the leading points of past scans, with a bound on all the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Past scans that are kept.
_SCANS = 8


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


class Scan:
    """Finds the point with the largest <element, L_n> / ||L_n|| among those that are allowed.

    A point that was not among the leaders of a past scan has an angle of at least beta with the direction of
    that scan, whose cosine is the bound. If a new direction is at an angle of theta from the old one, that
    point is at least beta - theta away from the new one. So where a leader is nearer than that, it is the
    winner of a scan that need not be made. What comes out is exactly what scanning every time would give.

    Parameters
    ----------
    scan : (direction (J,) of length one, least cosine of interest or ``None``) -> `Leaders`, the winner among
        them.
    allowed : (N,) bool, on the CPU; points may be taken out of it as time goes by, and none put in.

    Attributes
    ----------
    asked, made : how many winners were asked for, and how many scans that took.
    """

    def __init__(self, scan: Callable[[Tensor, float | None], Leaders], allowed: Tensor) -> None:
        self._scan, self.allowed = scan, allowed
        self._past: list[tuple[Tensor, Leaders]] = []
        self.asked = self.made = 0

    def argmax(self, element: Tensor) -> int:
        """The winner; ties go to the lower index."""
        self.asked += 1
        length = float(torch.linalg.vector_norm(element))
        direction = element / length if length > 0 else element
        found = self._known(direction)
        winner, cosine, likely = found if found is not None else (-1, -math.inf, None)
        if found is None or cosine <= self._bound(direction):
            self.made += 1
            leaders = self._scan(direction, likely)
            self._remember(direction, leaders)
            winner, _, _ = _best(leaders.index, leaders.units, direction)
        return winner

    def _known(self, direction: Tensor) -> tuple[int, float, float | None] | None:
        """The best of all leaders that are still allowed."""
        if not self._past:
            return None
        open_now = self.allowed[self._index]
        if not bool(open_now.any()):
            return None
        return _best(self._index[open_now], self._units[:, open_now], direction)

    def _bound(self, direction: Tensor) -> float:
        """The largest cosine that a point outside all leaders of a past scan can have."""
        least = math.inf
        for before, leaders in self._past:
            turned = float(before @ direction)
            if turned <= leaders.bound:
                continue  # it may have turned as far as to any of them
            aside = float(torch.linalg.vector_norm(direction - turned * before))
            # cos(beta - theta), with sines that are exact where angles are small
            least = min(least, leaders.bound * turned + math.sqrt(1 - leaders.bound**2) * aside + 1e-12)
        return least

    def _remember(self, direction: Tensor, leaders: Leaders) -> None:
        self._past = [*self._past[-_SCANS + 1 :], (direction, leaders)]
        self._index = torch.cat([kept.index for _, kept in self._past])
        self._units = torch.cat([kept.units for _, kept in self._past], 1)


def _best(index: Tensor, units: Tensor, direction: Tensor) -> tuple[int, float, float | None]:
    """The point with the largest cosine, that cosine, and one that a handful of points reach."""
    cosines = direction @ units
    top = float(cosines.max())
    winner = int(index[cosines == top].min())
    likely = float(cosines.topk(32).values[-1]) if len(cosines) >= 256 else None
    return winner, top, likely
