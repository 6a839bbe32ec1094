"""Every point's distance to its nearest centre: one scan for each new centre, two numbers a point.

It is plain torch: GPUs without Triton and the workers of Ray use it too.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coresift import limits
from coresift.search.base import CentreDistances, where_reached
from coresift.spaces.base import SAME, Space
from coresift.spaces.vectors import VectorSpace, new_like, take, where
from coresift.types import Index

_ROUNDING = torch.finfo(torch.float32).eps
# The least squared distance, in units: smaller ones lose digits in float32, and a scan would not even see
# that a point is close to itself.
_LEAST = torch.finfo(torch.float32).tiny / _ROUNDING


class PlainDistances(CentreDistances):
    """Distances in a space without stored vectors, from inner products: all in float64 and in memory.

    The default strategy does not use it: its vectors are stored, see `VectorDistances`.
    """

    def __init__(self, space: Space, open: Tensor, pending: Index, budget: int) -> None:
        self.space, self._open = space, open.to(space.norms.device)
        self._nearest = torch.full_like(space.norms, torch.inf)
        self._owner = torch.zeros_like(space.norms, dtype=torch.long)
        self._sums = space.norms.new_zeros(0)
        for elements, squares in space.anchors():
            self._add(elements, squares)
        for n in pending.tolist():
            self.add(torch.tensor(n))
        if len(self._sums) == 0:
            self._add(torch.zeros_like(space.total())[None], space.norms.new_zeros(1))

    def add(self, n: Tensor) -> None:
        if int(n) >= 0:
            self._add(self.space.vector(int(n))[None], self.space.norms[n].square()[None])

    def _add(self, elements: Tensor, squares: Tensor) -> None:
        for part, values in self.space.inner(elements):
            scale = self.space.norms[part] ** 2 + squares.to(values)[:, None]  # (k, n)
            distances = scale - 2 * values
            distances = torch.where(distances > SAME * scale, distances, 0.0)
            closest, number = distances.min(0)
            closer = closest < self._nearest[part]
            self._nearest[part] = torch.where(closer, closest, self._nearest[part])
            self._owner[part] = torch.where(closer, number + len(self._sums), self._owner[part])
        self._sums = torch.bincount(self._owner, self._nearest, len(self._sums) + len(squares))

    def farthest(self, cluster: Tensor | None = None) -> Tensor:
        may = self._open if cluster is None else self._open & (self._owner == cluster)
        distances = torch.where(may, self._nearest, 0.0)
        n = distances.argmax()
        return torch.where(distances[n] > 0, n, -1)

    def draw(self, share: float) -> Tensor:
        weights = torch.where(self._open, self._nearest, 0.0)
        return torch.tensor(where_reached(weights, share * float(weights.sum())))

    def radius(self) -> float:
        return math.sqrt(float(self._nearest.max()))


@dataclass(frozen=True)
class _NewCentres:
    """What a scan needs of new centres c to compute |x - c|^2 = |x - o|^2 + offset + <x, direction>.

    The reference point o is the mean of the pool's vectors or zero. `VectorDistances` says why, and derives
    the formula. All numbers are divided by ``unit**2``, the unit of squared distances there.

    Attributes
    ----------
    direction : (k, D) -2 (c - o), in the vectors' precision.
    offset : (k,) |c - o|^2 + 2 <o, c - o>.
    first : the number of the first.
    error, largest_error : the bounds for rounded distances from these and from all centres before.
    """

    direction: Tensor
    offset: Tensor
    first: int
    error: float
    largest_error: float

    def distances(self, vectors: Tensor, squares: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(n,) rounded squared distances from the nearest of the new centres. Where there are several, also
        the number of that centre, and how many centres are as near, as far as can be told.
        """
        if len(self.direction) == 1:
            products = torch.addmv(squares, vectors.mT, self.direction[0])
            return products.add_(float(self.offset)), None, None
        distances = torch.addmm(self.offset[:, None], self.direction, vectors)
        closest, number = distances.min(0)
        rivals = (distances <= closest + 2 * self.error).sum(0)
        return closest.add_(squares), number, rivals


class VectorDistances(CentreDistances):
    """Distances of stored vectors, with as little work in float64 as decisions need.

    With a centre c and a reference point o, a scan computes

        |x - c|^2 = |x - o|^2 + |c - o|^2 - 2 <x, c - o> + 2 <o, c - o>

    where only <x, c - o> is computed in the vectors' own precision. Its rounding error is proportional to
    |x| |c - o|. If all vectors are nearly parallel (a narrow cone), o is their mean: c - o is short, and the
    error is small. Otherwise o is zero.

    The rounded distances are kept in float32, with one bound for all distances to a centre. Whatever a bound
    leaves open is decided by distances in float64, rounded to float32: whether a point is closer to a new
    centre, which point of a cluster is farthest, and which sum is largest, for which a whole cluster may be
    computed again. So all decisions are as if each distance were computed in float64.

    Parameters
    ----------
    elements : (k, D) further first centres, which need not be points of the pool.

    Attributes
    ----------
    unit : that of the space: a power of two of about the largest norm. Squared distances are divided by its
        square, so that they fit into float32.
    computed : how many distances were computed in float64.
    """

    def __init__(
        self, space: VectorSpace, open: Tensor, pending: Index, budget: int, elements: Tensor | None = None
    ) -> None:
        self.space, self.unit, self.computed = space, space.unit, 0
        self._open, self._all_open = open.to(space.device), bool(open.all())
        on_gpu = space.device.type == "cuda"
        working_set = limits.DISTANCE_WORKING_SET_ON_GPU if on_gpu else limits.DISTANCE_WORKING_SET
        self._working_set = max(working_set, space.columns.shape[0])
        # Always the same memory: new memory is slow to touch.
        self._fine = torch.empty(self._working_set, dtype=torch.float64, device=space.device)
        self._nearest = new_like(space.columns, 1, torch.float32)
        self._owner = new_like(space.columns, 1, torch.int32)
        for part in space.columns.parts():
            self._nearest.part(part).fill_(torch.inf)
            self._owner.part(part).fill_(-1)
        # Of each centre: its vector, the squared distance at which a point is the same, the bound on the
        # error of rounded distances to it; and the number of points in its cluster.
        self._centres = torch.empty(space.columns.shape[0], 0, dtype=torch.float64, device=space.device)
        self._same = self._centres.new_zeros(0)
        self._errors, self._sums, self._counts = (torch.zeros(0, dtype=torch.float64) for _ in range(3))
        self._measure()
        for labelled, _ in space.anchors():
            self.add_elements(labelled)
        for n in pending.tolist():
            self.add(torch.tensor(n))
        for element in [] if elements is None else elements:
            self.add_elements(element[None])
        if len(self._sums) == 0:
            self.add_elements(torch.zeros_like(self._mean)[None])

    def _measure(self) -> None:
        """Choose o: the mean in a narrow cone, otherwise zero. Row 1 of `_from_mean` is |x - o|^2."""
        space = self.space
        self._mean, self._from_mean = torch.zeros_like(space.total()), space.norm_table
        self._largest_square = (space.largest / self.unit) ** 2
        if float(space.total().norm()) <= limits.NARROW_CONE * space.norm_sum:
            return
        self._mean = space.total() / len(space)
        self._from_mean = new_like(space.columns, 2, space.columns.dtype)
        self._largest_square = 0.0
        for part in space.columns.parts():
            vectors, squares = space.columns.part(part), self._from_mean.part(part)[1]
            for here in self._tiles(vectors.shape[1], len(vectors)):
                squares[here] = self._differences(vectors[:, here], self._mean[:, None]) / self.unit**2
            self._largest_square = max(self._largest_square, float(squares.max()))

    def add(self, n: Tensor) -> None:
        if int(n) >= 0:
            self.add_elements(self.space.vector(int(n))[None])

    def add_elements(self, elements: Tensor) -> None:
        """Make elements (k, D) of the space centres."""
        moved = elements - self._mean
        squares = moved.square().sum(1) / self.unit**2
        # Rounding of the product; of the rest; and what counts as no distance.
        errors = self.space.resolution * squares.sqrt() * (self.space.largest / self.unit)
        errors += 16 * _ROUNDING * (squares + self._largest_square)
        errors += 2 * SAME * elements.square().sum(1) / self.unit**2 + _LEAST
        first = len(self._sums)
        self._extend(elements, errors)
        direction, size = self.space.direction(moved)
        direction = direction * (-2 * size / self.unit**2).to(direction)
        offset = squares + 2 * (moved @ self._mean) / self.unit**2
        block = _NewCentres(
            direction, offset.to(direction), first, float(errors.max()), self._largest_error()
        )
        for part in self.space.columns.parts():
            arrays = self.space.columns.part(part), self._from_mean.part(part)[1]
            nearest, owner = self._nearest.part(part)[0], self._owner.part(part)[0]
            for here in self._tiles(len(nearest), len(elements)):
                vectors, squares = (array[..., here] for array in arrays)
                self._visit(block, vectors, squares, nearest[here], owner[here])

    def _extend(self, elements: Tensor, errors: Tensor) -> None:
        """Make room for new centres."""
        self._centres = torch.cat([self._centres, elements.mT.to(self._centres)], 1)
        # Points so close to a centre have nearly its norm, so twice its square stands for the sum of both.
        same = (2 * SAME * elements.square().sum(1)).clamp_min(_LEAST * self.unit**2)
        self._same = torch.cat([self._same, same.to(self._same)])
        self._errors = torch.cat([self._errors, errors.cpu().double()])
        empty = torch.zeros(len(elements), dtype=torch.float64)
        self._sums, self._counts = torch.cat([self._sums, empty]), torch.cat([self._counts, empty])

    def _largest_error(self) -> float:
        """The bound for all rounded distances."""
        return float((self._errors * (self._counts > 0)).max())

    def _tiles(self, size: int, width: int) -> Iterator[slice]:
        """Slices of ``size`` columns of ``width`` numbers that the working set has room for."""
        step = max(self._working_set // width, 1)
        return (slice(start, min(start + step, size)) for start in range(0, size, step))

    def _visit(
        self, new: _NewCentres, vectors: Tensor, squares: Tensor, nearest: Tensor, owner: Tensor
    ) -> None:
        """Give some points (n,) to the new centres where these are closer."""
        rounded, number, rivals = new.distances(vectors, squares)
        margin = new.error + new.largest_error
        gain = rounded - nearest
        index = where(gain, operator.lt, -margin)
        unclear = where(gain.abs_(), operator.le, margin)
        if rivals is not None:
            alone = rivals[index] == 1
            unclear, index = torch.cat([unclear, index[~alone]]), index[alone]
        numbers = new.first + (torch.zeros_like(index) if number is None else number[index])
        self._move(nearest, owner, index, rounded.index_select(0, index).float(), numbers)
        for some in torch.split(unclear, limits.NEAR_TIES):
            self._decide(new, vectors, nearest, owner, some)

    def _decide(
        self, new: _NewCentres, vectors: Tensor, nearest: Tensor, owner: Tensor, index: Tensor
    ) -> None:
        """Give points ``index`` (c,) to the new centres where these are closer, by exact distances."""
        columns = take(vectors, index)
        best, number = self._between(columns, new.first), torch.full_like(index, new.first)
        for other in range(new.first + 1, new.first + len(new.direction)):
            distances = self._between(columns, other)
            number = torch.where(distances < best, other, number)
            best = torch.minimum(distances, best)
        before = nearest[index]
        if new.first > 0:
            before = self._between(columns, owner[index].long())
        closer = best < before
        self._move(nearest, owner, index[closer], best[closer], number[closer])

    def _move(self, nearest: Tensor, owner: Tensor, index: Tensor, distances: Tensor, number: Tensor) -> None:
        """Points (c,) change hands, to the centres ``number``."""
        if len(index) == 0:
            return
        before, former = nearest.index_select(0, index), owner.index_select(0, index)
        if math.isfinite(float(before[0])):  # not at the very first
            self._count(former, before, -1)
        self._count(number, distances, 1)
        nearest.index_copy_(0, index, distances)
        owner.index_copy_(0, index, number.to(owner))

    def _count(self, number: Tensor, distances: Tensor, sign: int) -> None:
        """Add points (c,) to clusters, or take them out."""
        size = len(self._sums)
        self._sums += sign * torch.bincount(number, distances.double(), size).cpu()
        self._counts += sign * torch.bincount(number, minlength=size).cpu()

    def _between(self, vectors: Tensor, number: Tensor | int) -> Tensor:
        """(n,) float32 squared distances, computed in float64, of vectors (D, n) from centres: those of
        ``number`` (n,), or one.
        """
        found = torch.empty(vectors.shape[1], dtype=torch.float32, device=vectors.device)
        self.computed += len(found)
        for tile in self._tiles(len(found), len(vectors)):
            which = number if isinstance(number, int) else number[tile]
            centres = self._centres[:, which].view(len(vectors), -1)
            distances = self._differences(vectors[:, tile], centres)
            found[tile] = torch.where(distances > self._same[which], distances / self.unit**2, 0.0)
        return found

    def _differences(self, vectors: Tensor, centres: Tensor) -> Tensor:
        """(c,) squared distances of vectors (D, c) from centres (D, c) or (D, 1), in float64."""
        fine = self._fine[: vectors.numel()].view(vectors.shape).copy_(vectors)
        return fine.sub_(centres).square_().sum(0)

    @property
    def sums(self) -> Tensor:
        self._refine_all()
        return self._sums * self.unit**2

    def largest_cluster(self) -> Tensor:
        while True:
            slack = self._counts * self._errors
            rivals = (self._sums + slack >= (self._sums - slack).max()).nonzero()[:, 0]
            unsure = rivals[slack[rivals] > 0]
            if len(rivals) == 1 or len(unsure) == 0:
                return rivals[self._sums[rivals].argmax()]
            self._refine(unsure[self._sums[unsure].argmax()][None])

    def _refine_all(self) -> None:
        self._refine((self._counts * self._errors > 0).nonzero()[:, 0])

    def _refine(self, clusters: Tensor) -> None:
        """Compute all distances in some clusters in float64."""
        for cluster in clusters.tolist():
            total = 0.0
            for part in self.space.columns.parts():
                vectors = self.space.columns.part(part)
                index = where(self._owner.part(part)[0], operator.eq, cluster)
                for some in torch.split(index, limits.NEAR_TIES):
                    distances = self._between(take(vectors, some), cluster)
                    self._nearest.part(part)[0].index_copy_(0, some, distances)
                    total += float(distances.sum(dtype=torch.float64))
            self._sums[cluster], self._errors[cluster] = total, 0.0

    def farthest(self, cluster: Tensor | None = None) -> Tensor:
        index, distances = self._farthest(None if cluster is None else int(cluster), not self._all_open)
        if len(index) == 0 or not float(distances.max()) > 0:
            return torch.tensor(-1)
        return index[distances == distances.max()].min()

    def spread(self) -> float:
        return self.unit * math.sqrt(max(float(self._sums.sum()), 0.0))

    def radius(self) -> float:
        return self.unit * math.sqrt(float(self._farthest(None, False)[1].max()))

    def _farthest(self, cluster: int | None, only_open: bool) -> tuple[Tensor, Tensor]:
        """The points (c,) farthest from their centre, in one cluster or in all, and distances in float64."""
        error = self._largest_error() if cluster is None else float(self._errors[cluster])
        index, distances = self._candidates(cluster, only_open, 2 * error)
        if error == 0 or len(index) == 0:
            return index, distances
        owners = self._owner.at(index)[0].long()
        if len(index) <= limits.NEAR_TIES:
            return index, self._between(self.space.columns.at(index), owners)
        self._refine(torch.bincount(owners).nonzero()[:, 0])
        return self._farthest(cluster, only_open)

    def _candidates(self, cluster: int | None, only_open: bool, margin: float) -> tuple[Tensor, Tensor]:
        """Points within a margin of the largest rounded distance, and these distances."""
        bound, found = torch.finfo(torch.float32).min, list[tuple[Tensor, Tensor]]()
        for part in self._nearest.parts():
            distances, open = self._nearest.part(part)[0], self._open[part]
            members = None if cluster is None else where(self._owner.part(part)[0], operator.eq, cluster)
            if members is not None:
                distances, open = distances.index_select(0, members), open.index_select(0, members)
            if only_open:
                distances = distances.masked_fill(~open, -torch.inf)
            if len(distances):
                bound = max(bound, float(distances.max()) - margin)
            near = where(distances, operator.ge, bound)
            found.append(((near if members is None else members[near]) + part.start, distances[near]))
        index, distances = (torch.cat(columns) for columns in zip(*found, strict=True))
        near = distances >= bound
        return index[near], distances[near]

    def distance_at(self, n: int) -> float:
        """The squared distance of a point to its centre, computed in float64."""
        index = torch.tensor([n])
        owner = self._owner.at(index)[0].long()
        return self.unit**2 * float(self._between(self.space.columns.at(index), owner))

    def draw(self, share: float) -> Tensor:
        parts = self._nearest.parts()
        weights = torch.tensor(self.weights(), dtype=torch.float64)
        level = share * float(weights.sum())
        chosen = where_reached(weights, level)
        if chosen < 0:
            return torch.tensor(-1)
        left = level - float(weights[:chosen].sum())
        return torch.tensor(parts[chosen].start + where_reached(self._weights(parts[chosen]), left))

    def weights(self) -> list[float]:
        """The sum of the squared distances of open points in each part, in units of ``unit**2``."""
        self._refine_all()
        return [float(self._weights(part).sum()) for part in self._nearest.parts()]

    def _weights(self, part: slice) -> Tensor:
        """(n,) float64 squared distances, zero for points that are not open."""
        return self._nearest.part(part)[0].double().mul_(self._open[part])
