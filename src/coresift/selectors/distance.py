"""Selectors that keep every point's distance to its nearest centre: one scan a step, two numbers a point."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from coresift.selectors.base import Account, Selector
from coresift.spaces.base import Space
from coresift.spaces.centres import Centres
from coresift.types import Floats


@dataclass(frozen=True)
class DistanceSelector(Selector[Space]):
    """Adds centres one by one; a point at distance zero is taken only when no other is left."""

    def _choose(
        self, space: Space, account: Account, generator: torch.Generator
    ) -> tuple[Floats | None, Floats | None]:
        centres = space.centres(account.open.clone(), account.pending)
        residuals: list[float] | None = []
        for chosen in self._many(centres, account.budget):
            account.take(chosen)
            residuals = None  # nobody looked, in the haste
        while not account.full:
            n = self._next(centres, generator)
            if n is None:  # duplicates only, which change no distance: the first that may be chosen
                rest = account.open.nonzero()[: account.budget - len(account.chosen), 0].tolist()
                for twin in rest:
                    account.take(twin)
                if residuals is not None:
                    residuals.extend([self._residual(centres)] * len(rest))
                break
            account.take(n)
            centres.add(n)
            if residuals is not None:
                residuals.append(self._residual(centres))
        return None, None if residuals is None else np.asarray(residuals, dtype=np.float64)

    def _many(self, centres: Centres, num: int) -> list[int]:
        """The next centres, where they can be made ``num`` at once."""
        return []

    @abstractmethod
    def _next(self, centres: Centres, generator: torch.Generator) -> int | None:
        """The next centre; ``None`` where no point that may be chosen has a distance above zero."""

    def _residual(self, centres: Centres) -> float:
        """The root of the sum of squared distances to the nearest centre."""
        return centres.spread()


@dataclass(frozen=True)
class KCenter(DistanceSelector):
    """Farthest first: always the point farthest from all centres, a 2-approximation of the k-center cover.

    The first centres are labelled and pending points. Without any, the origin is a centre, and stays one: the
    mean of the features or, in other spaces, a point that says nothing.

    References
    ----------
    Sener and Savarese, Active Learning for Convolutional Neural Networks: A Core-Set Approach, 2018.

    >>> from coresift.spaces.vectors import VectorSpace
    >>> KCenter().select(VectorSpace(torch.tensor([[1.0, 5.0, 4.0, -3.0]])), budget=2).index
    array([1, 3])
    """

    def _next(self, centres: Centres, generator: torch.Generator) -> int | None:
        return centres.farthest()

    def _many(self, centres: Centres, num: int) -> list[int]:
        return centres.grow(num, largest_cluster=False)

    def _residual(self, centres: Centres) -> float:
        """The covering radius."""
        return centres.radius()


@dataclass(frozen=True)
class KMeansPlusPlus(DistanceSelector):
    """Draws each next point with probability proportional to its squared distance from the nearest centre.

    The first centres are those of `KCenter`.

    References
    ----------
    Arthur and Vassilvitskii, k-means++: The Advantages of Careful Seeding, 2007.
    """

    def _next(self, centres: Centres, generator: torch.Generator) -> int | None:
        return centres.draw(float(torch.rand((), dtype=torch.float64, generator=generator)))


@dataclass(frozen=True)
class LCMD(DistanceSelector):
    """Largest cluster, maximum distance: in the cluster with the largest sum of squared distances, the point
    farthest from its centre.

    The first centres are those of `KCenter`.

    References
    ----------
    Holzmüller et al., A Framework and Benchmark for Deep Batch Active Learning for Regression, 2023.

    >>> from coresift.spaces.vectors import VectorSpace
    >>> LCMD().select(VectorSpace(torch.tensor([[5.0, 4.5, 4.0, -1.0, -1.1, -1.2]])), budget=2).index
    array([0, 5])
    """

    def _next(self, centres: Centres, generator: torch.Generator) -> int | None:
        for place, cluster in enumerate(centres.sums.argsort(descending=True, stable=True).tolist()):
            n = centres.farthest(cluster)
            if n is not None:
                return n
            if place == 0 and centres.farthest() is None:  # one look at all, before one at each
                return None
        return None

    def _many(self, centres: Centres, num: int) -> list[int]:
        return centres.grow(num, largest_cluster=True)
