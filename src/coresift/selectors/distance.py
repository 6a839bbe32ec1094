"""Selectors that keep every point's distance to its nearest centre: one scan a step, two numbers a point."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coresift.selectors.base import SAME, Account, Selector
from coresift.spaces.base import Space
from coresift.types import Floats


class Centres:
    """Squared distance of every point to its nearest centre, and which centre that is.

    The first centres are the labelled points that were mapped along with the space, and pending ones. Where
    there are none, the origin is: a point that says nothing in a likelihood space, the mean in a feature
    space.

    Attributes
    ----------
    nearest : (N,) float64, squared distance to the nearest centre; exactly zero for duplicates of one.
    owner : (N,) the number of that centre.
    count : how many centres there are.
    """

    def __init__(self, space: Space, account: Account) -> None:
        self.space = space
        self._squares = space.norms**2
        self.nearest = torch.full_like(space.norms, torch.inf)
        self.owner = torch.zeros_like(space.norms, dtype=torch.long)
        self.count = 0
        for coordinates, squares in space.anchors():
            self._add(coordinates, squares)
        for n in account.pending.tolist():
            self.add(n)
        if self.count == 0:
            self.nearest, self.count = self._squares.clone(), 1

    def add(self, n: int) -> None:
        """Make point ``n`` a centre."""
        self._add(self.space.coordinates(n)[None], self._squares[n, None])
        self.nearest[n] = 0.0

    def _add(self, coordinates: Tensor, squares: Tensor) -> None:
        """Make k elements of the space centres."""
        for part, values in self.space.inner(coordinates):
            scale = self._squares[part] + squares[:, None]  # (k, n)
            distance = scale - 2 * values
            # Where a distance drowns in the rounding of the scan, take it again in full precision.
            near = (distance <= 100 * self.space.resolution * scale).any(0).nonzero()[:, 0]
            if len(near):
                fine = scale[:, near] - 2 * self.space.inner_at(coordinates, near + part.start)
                distance[:, near] = torch.where(fine > SAME * scale[:, near], fine, 0.0)
            closest, centre = distance.min(0)
            closer = closest < self.nearest[part]
            self.nearest[part] = torch.where(closer, closest, self.nearest[part])
            self.owner[part] = torch.where(closer, self.count + centre, self.owner[part])
        self.count += len(squares)


@dataclass(frozen=True)
class DistanceSelector(Selector[Space]):
    """Adds centres one by one; a point at distance zero is taken only when no other is left."""

    def _choose(
        self, space: Space, account: Account, generator: torch.Generator
    ) -> tuple[Floats | None, Floats | None]:
        centres = Centres(space, account)
        residuals = []
        while not account.full:
            candidates = account.open & (centres.nearest > 0)
            if bool(candidates.any()):
                n = self._next(centres, candidates, generator)
            else:  # duplicates only: the one that says most
                n = int(torch.where(account.open, space.norms, -1.0).argmax())
            account.take(n)
            centres.add(n)
            residuals.append(self._residual(centres))
        return None, np.asarray(residuals, dtype=np.float64)

    @abstractmethod
    def _next(self, centres: Centres, candidates: Tensor, generator: torch.Generator) -> int:
        """The next centre among ``candidates`` (N,) bool, all at a distance above zero."""

    def _residual(self, centres: Centres) -> float:
        """The root of the sum of squared distances to the nearest centre."""
        return math.sqrt(centres.nearest.sum())


@dataclass(frozen=True)
class KCenter(DistanceSelector):
    """Farthest first: always the point farthest from all centres, a 2-approximation of the k-center cover.

    References
    ----------
    Sener and Savarese, Active Learning for Convolutional Neural Networks: A Core-Set Approach, 2018.

    >>> from coresift.spaces.vectors import VectorSpace
    >>> KCenter().select(VectorSpace(torch.tensor([[1.0, 5.0, 4.0, -3.0]])), budget=2).index
    array([1, 3])
    """

    def _next(self, centres: Centres, candidates: Tensor, generator: torch.Generator) -> int:
        return int(torch.where(candidates, centres.nearest, -1.0).argmax())

    def _residual(self, centres: Centres) -> float:
        """The covering radius."""
        return math.sqrt(centres.nearest.max())


@dataclass(frozen=True)
class KMeansPlusPlus(DistanceSelector):
    """Draws each next point with probability proportional to its squared distance from the nearest centre.

    References
    ----------
    Arthur and Vassilvitskii, k-means++: The Advantages of Careful Seeding, 2007.
    """

    def _next(self, centres: Centres, candidates: Tensor, generator: torch.Generator) -> int:
        cumulative = torch.where(candidates, centres.nearest, 0.0).cumsum(0)
        draw = float(torch.rand((), dtype=torch.float64, generator=generator)) * float(cumulative[-1])
        # right=True skips points of weight zero, on which the sum stands still.
        n = int(torch.searchsorted(cumulative, draw, right=True))
        return n if n < len(cumulative) else int(candidates.nonzero()[-1])


@dataclass(frozen=True)
class LCMD(DistanceSelector):
    """Largest cluster, maximum distance: in the cluster with the largest sum of squared distances, the point
    farthest from its centre.

    References
    ----------
    Holzmüller et al., A Framework and Benchmark for Deep Batch Active Learning for Regression, 2023.

    >>> from coresift.spaces.vectors import VectorSpace
    >>> LCMD().select(VectorSpace(torch.tensor([[5.0, 4.5, 4.0, -1.0, -1.1, -1.2]])), budget=2).index
    array([0, 5])
    """

    def _next(self, centres: Centres, candidates: Tensor, generator: torch.Generator) -> int:
        sizes = torch.bincount(centres.owner, centres.nearest, centres.count)
        for cluster in sizes.argsort(descending=True, stable=True).tolist():
            members = candidates & (centres.owner == cluster)
            if bool(members.any()):
                break
        return int(torch.where(members, centres.nearest, -1.0).argmax())
