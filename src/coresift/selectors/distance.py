"""Selectors that keep distances to the nearest centre: one scan per step, two numbers per point.

The distances of the default strategy are defined in `spaces.predictive`. They are computed by
`search.cpu_distances` or, on a GPU, by `search.cuda_kernels`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coresift import limits
from coresift.search import CentreDistances, centre_distances
from coresift.selectors.base import Selection, Selector
from coresift.spaces.base import Space
from coresift.types import Floats


@dataclass(frozen=True)
class DistanceSelector(Selector[Space]):
    """Adds centres one by one; a point at distance zero is taken only when no other is left.

    A subclass says in `_add` which point is next. It asks only `CentreDistances`; therefore it runs on a CPU,
    on a GPU and on Ray.
    """

    def _choose(
        self, space: Space, selection: Selection, generator: torch.Generator
    ) -> tuple[Floats | None, Floats | None]:
        distances = centre_distances(space, selection.open, selection.pending, selection.budget)
        residuals: list[float] = []
        while not selection.full:
            most = selection.budget - len(selection.chosen)
            found = self._add(distances, most, generator)
            none_left = not found
            if none_left:  # duplicates only, which change no distance: the first that may be chosen
                found = selection.open.nonzero()[:most, 0].tolist()
            for n in found:
                selection.take(n)
            if none_left or distances.run_length == 1:
                residuals.extend([self._residual(distances)] * len(found))
        # Steps that are made many at a time have no residuals.
        complete = len(residuals) == selection.budget
        return None, np.asarray(residuals, dtype=np.float64) if complete else None

    @abstractmethod
    def _add(self, distances: CentreDistances, most: int, generator: torch.Generator) -> list[int]:
        """Make one or more open points centres, at most ``most``, and return their indices.

        Return an empty list where no open point is at a distance above zero.
        """

    def _residual(self, distances: CentreDistances) -> float:
        """The root of the sum of squared distances to the nearest centre."""
        return distances.spread()


def _farthest_first(distances: CentreDistances) -> Tensor:
    n = distances.farthest()
    distances.add(n)
    return n


def _largest_cluster_first(distances: CentreDistances) -> Tensor:
    n = distances.farthest(distances.largest_cluster())
    distances.add(n)
    return n


@dataclass(frozen=True)
class KCenter(DistanceSelector):
    """Farthest first: always the point farthest from all centres, a 2-approximation of the k-center cover.

    The first centres are the labelled and pending points. If there are none, the first centre is the origin,
    which stays a centre. For features the origin is their mean; in other spaces it is a point that the model
    is certain about.

    References
    ----------
    Sener and Savarese, Active Learning for Convolutional Neural Networks: A Core-Set Approach, 2018.

    >>> from coresift.spaces.vectors import VectorSpace
    >>> KCenter().select(VectorSpace(torch.tensor([[1.0, 5.0, 4.0, -3.0]])), budget=2).index
    array([1, 3])
    """

    def _add(self, distances: CentreDistances, most: int, generator: torch.Generator) -> list[int]:
        return _run(distances, _farthest_first, most)

    def _residual(self, distances: CentreDistances) -> float:
        """The covering radius."""
        return distances.radius()


@dataclass(frozen=True)
class KMeansPlusPlus(DistanceSelector):
    """Draws each next point with probability proportional to its squared distance from the nearest centre.

    The first centres are those of `KCenter`.

    References
    ----------
    Arthur and Vassilvitskii, k-means++: The Advantages of Careful Seeding, 2007.
    """

    def _add(self, distances: CentreDistances, most: int, generator: torch.Generator) -> list[int]:
        n = distances.draw(float(torch.rand((), dtype=torch.float64, generator=generator)))
        distances.add(n)
        return [int(n)] if int(n) >= 0 else []


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

    def _add(self, distances: CentreDistances, most: int, generator: torch.Generator) -> list[int]:
        found = _run(distances, _largest_cluster_first, most)
        if found or int(distances.farthest()) < 0:  # one look at all, before one at each
            return found
        # All points of the largest cluster are closed: the next largest ones.
        for cluster in distances.sums.argsort(descending=True, stable=True):
            n = distances.farthest(cluster)
            if int(n) >= 0:
                distances.add(n)
                return [int(n)]
        return []


def _run(distances: CentreDistances, step: Callable[[CentreDistances], Tensor], most: int) -> list[int]:
    """Repeat a step, up to where it finds no point."""
    found = distances.repeat(step, min(most, distances.run_length, limits.LONGEST_RUN)).tolist()
    return found[: found.index(-1)] if -1 in found else found
