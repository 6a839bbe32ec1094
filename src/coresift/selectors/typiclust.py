"""TypiClust: for a cold start, the most typical point of each of the largest clusters."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coresift import limits
from coresift.checks import check_integer
from coresift.errors import InputError
from coresift.selectors.base import Selection, Selector
from coresift.spaces.base import Space
from coresift.spaces.vectors import VectorSpace


@dataclass(frozen=True)
class TypiClust(Selector[Space]):
    """Takes the most typical point of the largest cluster without labels, again and again.

    k-means makes as many clusters as there are labelled points, pending points and points to choose. Each
    step looks at the cluster with the fewest labelled, pending and chosen points; among equals, at the one
    with the most points. In it, the step takes the point of the highest typicality

        t(x) = (1/K sum_{z in the K nearest neighbours of x} ||x - z||)^-1

    with neighbours from the same cluster. K is ``num_neighbours``, or one less than the cluster's size where
    that is smaller. Excluded points count as neighbours. Duplicates of labelled, pending or chosen points
    come when no other point is left.

    Parameters
    ----------
    max_clusters : with more labels than that, clusters have several labelled points. The paper has 500.
    num_neighbours : K.

    References
    ----------
    Hacohen, Dekel and Weinshall, Active Learning on a Budget: Opposite Strategies Suit High and Low Budgets,
    2022, algorithm 1.

    >>> from coresift.spaces.features import FeatureSpace
    >>> TypiClust().select(FeatureSpace(torch.tensor([[1.0, 2.0, 3.1, 8.0, 8.5]])), budget=2).index
    array([1, 3])
    """

    max_clusters: int = 500
    num_neighbours: int = 20

    copies_of_vectors: ClassVar[int] = limits.TYPICLUST_COPIES
    bytes_per_point: ClassVar[int] = limits.TYPICLUST_BYTES

    def __post_init__(self) -> None:
        for name in ("max_clusters", "num_neighbours"):
            object.__setattr__(self, name, check_integer(getattr(self, name), 1, name))

    def _choose(self, space: Space, selection: Selection, generator: torch.Generator) -> tuple[None, None]:
        if not isinstance(space, VectorSpace):
            raise InputError(f"TypiClust needs stored vectors, which a {type(space).__name__} does not have")
        rows = (space.vectors / space.unit).mT.cpu()
        labelled = [(elements / space.unit).to(rows) for elements, _ in space.anchors()]
        # Distinct points are sorted by their numbers: the order of the pool does not matter.
        points, group, sizes = torch.unique(
            torch.cat([rows, *labelled]), dim=0, return_inverse=True, return_counts=True
        )
        known = torch.cat([group[len(rows) :], group[torch.from_numpy(selection.pending)]])
        num_clusters = min(len(known) + selection.budget, self.max_clusters, len(points))
        cluster = _k_means(points, sizes, num_clusters, generator)
        first = _first_open(group[: len(rows)], selection.open, len(points))
        free = first < len(rows)  # distinct points that may still be chosen
        free[known] = False
        for point in self._steps(points, sizes, cluster, known, free, generator):
            selection.take(int(first[point]))
            if selection.full:
                break
        for n in selection.open.nonzero()[: selection.budget - len(selection.chosen), 0].tolist():
            selection.take(n)
        return None, None

    def _steps(
        self,
        points: Tensor,
        sizes: Tensor,
        cluster: Tensor,
        known: Tensor,
        free: Tensor,
        generator: torch.Generator,
    ) -> Iterator[int]:
        """Yield ``free`` points (g,) in the order in which they are taken, until none is left.

        Parameters
        ----------
        points : (g, D) all distinct, with ``sizes`` (g,), how many points of the pool each stands for.
        cluster : (g,) to which each of them belongs.
        known : (m,) indices of the labelled and pending points.
        """
        num = int(cluster.max()) + 1
        covered = torch.bincount(cluster[known], minlength=num)
        left = torch.bincount(cluster[free], minlength=num)
        largest = torch.bincount(cluster, sizes.double(), minlength=num)
        ranked: dict[int, Iterator[int]] = {}
        while bool((left > 0).any()):
            fewest = covered == covered[left > 0].min()
            best = int(largest.masked_fill(~(fewest & (left > 0)), -1.0).argmax())
            if best not in ranked:
                members = (cluster == best).nonzero()[:, 0]
                ranked[best] = self._most_typical_first(points, sizes, members, free, generator)
            yield next(ranked[best])
            covered[best] += 1
            left[best] -= 1

    def _most_typical_first(
        self, points: Tensor, sizes: Tensor, members: Tensor, free: Tensor, generator: torch.Generator
    ) -> Iterator[int]:
        """The free ones of a cluster's ``members`` (m,), the most typical ones first."""
        everybody = points[members.repeat_interleave(sizes[members])].double()
        candidates, rest = members[free[members]], members[:0]
        if len(candidates) > limits.TYPICAL_CANDIDATES:
            order = torch.randperm(len(candidates), generator=generator)
            candidates, rest = torch.split(
                candidates[order],
                [limits.TYPICAL_CANDIDATES, len(candidates) - limits.TYPICAL_CANDIDATES],
            )
        mean = everybody.mean(0)
        everybody -= mean
        num = min(self.num_neighbours, len(everybody) - 1)
        distances = points.new_zeros(len(candidates), dtype=torch.float64)  # to the neighbours, in all
        block = max(limits.DISTANCE_WORKING_SET // len(everybody), 1)
        for part, some in zip(torch.split(distances, block), torch.split(candidates, block), strict=True):
            nearest = torch.cdist(points[some].double() - mean, everybody).topk(num + 1, largest=False)
            part += nearest.values.sort().values[:, 1:].sum(1)  # without the point itself
        return iter([*candidates[distances.argsort(stable=True)].tolist(), *rest.tolist()])


def _first_open(group: Tensor, open: Tensor, num: int) -> Tensor:
    """(num,) the first open point of each group, or N where there is none; ``group`` (N,) is each point's."""
    index = open.nonzero()[:, 0]
    return torch.full((num,), len(group)).scatter_reduce_(0, group[index], index, "amin")


def _k_means(points: Tensor, sizes: Tensor, num: int, generator: torch.Generator) -> Tensor:
    """(g,) the clusters of distinct points (g, D), each of which counts ``sizes`` times."""
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    if num == len(points):
        return torch.arange(num)
    # Small batches where there are many clusters, as in the paper.
    method = KMeans if num <= limits.FEW_CLUSTERS else MiniBatchKMeans
    model = method(num, n_init=1, max_iter=100, random_state=seed)
    # One thread: with several, the order in which numbers are added up is not the same each time.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of points that are equal but for rounding
        labels = model.fit(points.numpy(), sample_weight=sizes.to(points).numpy()).labels_
    return torch.from_numpy(labels).long()
