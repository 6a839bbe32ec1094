"""Every point's distance to its nearest centre: one scan for each new centre, two numbers a point."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coresift.spaces.base import SAME, Space
from coresift.spaces.storage import Columns, InMemory, new_like, take, where
from coresift.types import Index

if TYPE_CHECKING:
    from coresift.spaces.vectors import VectorSpace

# With fewer numbers a point, it is as quick to compute a distance as to find out that it is not needed.
_LEAST_DIMENSIONS = 32
# With more centres than one for so many points, so is it to compute their distances from each other.
_POINTS_A_CENTRE = 8
# One point in how many must be left for it to be quicker to gather them: the rest lies on the same lines of
# memory, and is read all the same.
_FEW = 64
# Points farthest from a centre that are kept in mind.
_LEADING = 256
# Numbers that are held in float64 at a time: on a CPU they stay in a cache.
_WORKING_SET, _WORKING_SET_ON_GPU = 2**19, 2**23
# With more than one point in so many to look at, it is quicker to look at all of them than to gather those.
_MANY = 4
# The length of the pool's sum, relative to the sum of the lengths, above which vectors lie in a narrow cone.
_NARROW = 0.9
# The least squared distance, in units: smaller ones lose digits in float32, and a scan would not even see
# that a point is close to itself.
_LEAST = torch.finfo(torch.float32).tiny / torch.finfo(torch.float32).eps


class Centres:
    """Squared distance of every point to its nearest centre, and which centre that is.

    The first centres are the labelled points that were mapped along with the space, and pending ones. Where
    there are none, the origin is: a point that says nothing in a likelihood space, the mean in a feature
    space.

    Parameters
    ----------
    allowed : (N,) bool, the points that may become centres; all count in the sums.
    pending : points that are centres from the start.

    Attributes
    ----------
    nearest : (1, N) squared distance to the nearest centre; exactly zero for duplicates of one.
    owner : (1, N) the number of that centre.
    sums : (K,) float64, the sum of the squared distances to each centre of the points nearest to it.
    unit : what distances are measured in.
    """

    unit = 1.0

    def __init__(self, space: Space, allowed: Tensor, pending: Index) -> None:
        self.space, self._allowed, self._all_allowed = space, allowed, bool(allowed.all())
        self.nearest, self.owner = self._room()
        self.sums = torch.zeros(0, dtype=torch.float64)
        # Of a centre, or of all: the farthest points there were, and a bound on all others.
        self._farthest: dict[int | None, tuple[Tensor, float]] = {}
        for coordinates, squares in space.anchors():
            self._add(coordinates, squares)
        for n in pending.tolist():
            self.add(n)
        if len(self.sums) == 0:
            self._add(torch.zeros_like(space.total())[None], torch.zeros(1, dtype=torch.float64))

    def _room(self) -> tuple[Columns, Columns]:
        nearest = InMemory(torch.full_like(self.space.norms, torch.inf)[None])
        return nearest, InMemory(torch.zeros_like(nearest.values, dtype=torch.int32))

    def grow(self, num: int, largest_cluster: bool) -> list[int]:
        """Make the next ``num`` points centres, or as many as are quicker found at once than one by one: the
        farthest of all, or of the cluster with the largest sum.
        """
        return []

    def add(self, n: int) -> None:
        """Make point ``n`` a centre."""
        self._add(self.space.coordinates(n)[None], self.space.norm_at(torch.tensor([n])).square())

    def _add(self, coordinates: Tensor, squares: Tensor) -> None:
        """Make k elements of the space centres."""
        first = len(self.sums)
        self.sums = torch.cat([self.sums, torch.zeros(len(squares), dtype=torch.float64)])
        for index, distance, centre in self._closer(coordinates, squares):
            if first:
                before, owner = self.nearest.at(index)[0].cpu(), self.owner.at(index)[0].cpu()
                self.sums.index_add_(0, owner.long(), -before.double())
            self._keep(index, distance, first + centre)
            kept = distance.to(self.nearest.dtype).double().cpu()
            self.sums.index_add_(0, (first + centre).cpu(), kept)

    def _keep(self, index: Tensor, distance: Tensor, centre: Tensor) -> None:
        """Points change hands."""
        self.nearest.put(index, distance[None])
        self.owner.put(index, centre[None])

    def _closer(self, coordinates: Tensor, squares: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The points (c,) that are closer to one of the new centres than to the old ones, their squared
        distances, and to which of the k; in parts, in ascending order.
        """
        squares = squares.to(coordinates.device)
        for part, values in self.space.inner(coordinates):
            scale = self.space.norms[part] ** 2 + squares[:, None]  # (k, n)
            distance = scale - 2 * values
            distance = torch.where(distance > SAME * scale, distance, 0.0)
            closest, centre = distance.min(0)
            index = (closest < self.nearest.part(part)[0]).nonzero()[:, 0]
            yield index + part.start, closest[index], centre[index]

    def farthest(self, centre: int | None = None) -> int | None:
        """The allowed point farthest from its centre, or from this one; ``None`` where all are at none of the
        distance. Ties go to the lower index.
        """
        if centre in self._farthest:
            # Distances only shrink, and a cluster only loses points: as long as one of those that were
            # farthest is farther than all the others were, it still is.
            index, bound = self._farthest[centre]
            values = self.nearest.at(index)[0]
            if centre is not None:
                values = torch.where(self.owner.at(index)[0] == centre, values, -1.0)
            top = float(values.max())
            if top > bound:
                return int(index[values.cpu() == top].min())
        index, distances, bound = self._leading(centre)
        if len(index) == 0:
            return None
        self._farthest[centre] = index, bound
        return int(index[distances == distances.max()].min())

    def _leading(self, centre: int | None) -> tuple[Tensor, Tensor, float]:
        """The allowed points farthest from a centre, or from all; their distances; a bound on all others."""
        index, distances, bound = torch.empty(0, dtype=torch.long), torch.empty(0), 0.0
        for part, nearest, owner in self._blocks():
            if centre is None:
                here = where(nearest, operator.gt, bound)
            else:
                here = where(owner, operator.eq, centre)
                here = here[nearest[here] > bound]
            if not self._all_allowed:
                here = here[self._allowed[part].to(here.device)[here]]
            index = torch.cat([index, here.cpu() + part.start])
            distances = torch.cat([distances, nearest[here].cpu()])
            if len(index) > 2 * _LEADING:
                order = distances.argsort(descending=True, stable=True)[:_LEADING]
                index, distances = index[order], distances[order]
                bound = float(distances[-1])
        return index, distances, bound

    def draw(self, share: float) -> int | None:
        """The allowed point at which the cumulative sum of squared distances reaches ``share`` of all."""
        blocks = [(part, float(values.sum())) for part, values in self._weights()]
        total = sum(weight for _, weight in blocks)
        left, chosen = share * total, None
        for part, weight in blocks:
            if weight > 0:
                chosen = part
                if left < weight:
                    break
                left -= weight
        if chosen is None:
            return None
        values = next(values for part, values in self._weights(chosen))
        # right=True skips points of weight zero, on which the sum stands still.
        position = int(torch.searchsorted(values.cumsum(0), left, right=True))
        return int(chosen.start) + (position if position < len(values) else int(values.nonzero()[-1]))

    def _weights(self, only: slice | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Squared distances in float64, zero for points that may not be chosen."""
        for part in [only] if only is not None else self.nearest.parts():
            values = self.nearest.part(part)[0].double()
            yield part, torch.where(self._allowed[part].to(values.device), values, 0.0)

    def _blocks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        for part in self.nearest.parts():
            yield part, self.nearest.part(part)[0], self.owner.part(part)[0]

    def radius(self) -> float:
        """The largest distance of any point to its nearest centre."""
        return self.unit * math.sqrt(max(float(nearest.max()) for _, nearest, _ in self._blocks()))

    def spread(self) -> float:
        """The root of the sum of all squared distances."""
        return self.unit * math.sqrt(max(float(self.sums.sum()), 0.0))


class VectorCentres(Centres):
    """The same on stored vectors.

    A scan in the vectors' own precision finds the points that may be closer to the new centre; only of these
    the distance is computed in float64, and kept in float32. By the triangle inequality a point whose
    distance to its centre is at most half the way from there to the new one cannot be among them, and in
    many dimensions the scan leaves it out.

    Distances of vectors that are all nearly parallel are small differences of large numbers, and the scan's
    rounding would hide them. There, distances are measured from the mean m of the pool: with a centre c,

        |x - c|^2 = |x - m|^2 + |c - m|^2 + 2 <m, c - m> - 2 <x, c - m>

    where only <x, c - m> is rounded to the vectors' precision, and c - m is short.
    """

    space: VectorSpace

    def __init__(self, space: VectorSpace, allowed: Tensor, pending: Index) -> None:
        self.unit = space.unit
        on_gpu = space.device.type == "cuda"
        self._working_set = max(_WORKING_SET_ON_GPU if on_gpu else _WORKING_SET, space.columns.shape[0])
        self._fine = torch.empty(self._working_set, dtype=torch.float64, device=space.device)
        self._places: list[Tensor] = []  # (J, k) the centres
        self._out = torch.empty(space.columns.block, dtype=space.columns.dtype, device=space.device)
        self.looked_at = self.passed_over = 0  # distances that were computed, and that need not be
        super().__init__(space, allowed, pending)

    def _room(self) -> tuple[Columns, Columns]:
        columns = self.space.columns
        nearest = new_like(columns, 1, torch.float32)
        owner = new_like(columns, 1, torch.int32)
        # What a point's squared norm, less rounding, has over its distance: all that a scan needs of the two.
        self._margin = new_like(columns, 1, columns.dtype)
        for part in nearest.parts():
            nearest.part(part).fill_(torch.inf)
            owner.part(part).zero_()
            self._margin.part(part).fill_(-torch.inf)
        # In a narrow cone: the mean, the width of the cone, and |x - m|^2 less rounding.
        self._mean = torch.zeros_like(self.space.total())
        self._width = 1.0
        self._from_mean: Columns | None = None
        together = self.space.total().norm() / max(self.space.norm_total(), torch.finfo(torch.float64).tiny)
        if together > _NARROW:
            self._mean = self.space.total() / len(columns)
            self._width = math.sqrt(max(1 - float(together) ** 2, 1e-12))
            self._from_mean = new_like(columns, 1, columns.dtype)
            for part in columns.parts():
                found, squares = self._from_mean.part(part)[0], self.space.sizes.part(part)[1]
                for here, fine in self._tiles(columns.part(part)):
                    exact = fine.sub_(self._mean.to(fine)[:, None]).square_().sum(0) / self.unit**2
                    found[here] = ((1 - self._slack) * exact - self._slack * self._width * squares[here]).to(
                        found
                    )
        return nearest, owner

    def _keep(self, index: Tensor, distance: Tensor, centre: Tensor) -> None:
        super()._keep(index, distance, centre)
        if self._from_mean is None:
            squares = self.space.sizes.at(index)[1:] * (1 - self._slack)
        else:
            squares = self._from_mean.at(index)
        self._margin.put(index, squares - distance.float())

    @property
    def _slack(self) -> float:
        """Rounding of a distance, relative to the squared norms."""
        # In a narrow cone a tight bound: one resolution is enough for the rounding of the product.
        return (4 if self._from_mean is None else 1.5) * self.space.resolution

    def _closer(self, coordinates: Tensor, squares: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        space, unit = self.space, self.unit
        reach = self._reach(coordinates)
        moved = coordinates - self._mean  # (k, J)
        direction, length = space.direction(moved)
        scaled = (-2 * length / unit**2).to(direction)
        # 2 |x| |c - m| <= width |x|^2 + |c - m|^2 / width bounds the rounding.
        lengths = (1 - self._slack / self._width) * moved.square().sum(1) + 2 * moved @ self._mean
        least = (lengths / unit**2).to(direction)
        for part in space.columns.parts():
            vectors, margin = space.columns.part(part), self._margin.part(part)[0]
            near: Tensor | None = None
            if reach is not None:
                way = reach[self.owner.part(part)[0].long()].sub_(self.nearest.part(part)[0])
                near = where(way, operator.lt, 0.0)
                self.looked_at += len(near)
                self.passed_over += len(margin) - len(near)
                if _FEW * len(near) < len(margin):
                    vectors, margin = take(vectors, near), margin[near]
                else:
                    near = None
            # The distance less the one there is, up to rounding: where it is below zero, a closer look.
            if len(direction) == 1:
                out, by = self._out[: len(margin)], float(scaled[0, 0])
                gain = torch.addmv(margin, vectors.mT, by * direction[0], out=out)
                index = where(gain, operator.lt, -float(least[0]))
            else:
                index = self._near_several(vectors, margin, scaled * direction, least)
            if len(index):
                before = self.nearest.part(part)[0]
                before = before if near is None else before[near]
                index, distance, centre = self._decided(vectors, index, before, coordinates, squares)
                yield (index if near is None else near[index]) + part.start, distance, centre
        self._places.append(coordinates.mT)

    def _near_several(self, vectors: Tensor, margin: Tensor, directions: Tensor, least: Tensor) -> Tensor:
        """(c,) the vectors that may be closer to one of k new centres, a few at a time."""
        size, found = max(self._working_set // len(directions), 1), []
        for start in range(0, len(margin), size):
            tile = slice(start, start + size)
            gains = torch.addmm(least[:, None], directions, vectors[:, tile])
            found.append(where(gains.min(0).values.add_(margin[tile]), operator.lt, 0.0) + start)
        return torch.cat(found)

    def _decided(
        self, vectors: Tensor, index: Tensor, before: Tensor, coordinates: Tensor, squares: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Those of some vectors that are closer in truth, by distances in float64.

        Parameters
        ----------
        vectors : (J, n)
        index : (c,) those that may be closer.
        before : (n,) the distances so far.
        """
        found = []
        some = None if _MANY * len(index) > len(before) else index
        for here, fine in self._tiles(vectors, some, len(coordinates)):
            distance, centre = self._exact(fine, coordinates, squares).min(0)
            closer = (distance.float() < before[here]).nonzero()[:, 0]
            found.append((here[closer], distance[closer], centre[closer]))
        index, distance, centre = (torch.cat(parts) for parts in zip(*found, strict=True))
        return index, distance, centre

    def _tiles(
        self, vectors: Tensor, index: Tensor | None = None, num: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Vectors (J, n), or those of an index, in float64: some at a time, with their positions, to be
        used before the next. There is room for products with ``num`` others.
        """
        size = max(self._working_set // max(len(vectors), num), 1)
        everything = torch.arange(vectors.shape[1], device=vectors.device)
        for here in torch.split(everything if index is None else index, size):
            start = int(here[0])
            some = vectors[:, start : start + len(here)] if index is None else take(vectors, here)
            # Always the same memory: new memory is slow to touch.
            yield here, self._fine[: some.numel()].view(some.shape).copy_(some)

    def _exact(self, vectors: Tensor, coordinates: Tensor, squares: Tensor) -> Tensor:
        """(k, c) squared distances of vectors (J, c) and centres (k, J), both float64; vectors are lost."""
        products = coordinates.to(vectors) @ vectors
        scale = vectors.square_().sum(0) + squares.to(vectors)[:, None]
        distance = scale - 2 * products
        least = (SAME * scale).clamp_min(_LEAST * self.unit**2)
        return torch.where(distance > least, distance / self.unit**2, 0.0)

    def _reach(self, coordinates: Tensor) -> Tensor | None:
        """(K,) for each centre, the squared distance within which its points stay with it."""
        if len(coordinates) > 1 or not self._places or len(coordinates[0]) < _LEAST_DIMENSIONS:
            return None
        if _POINTS_A_CENTRE * len(self.sums) > len(self.space):
            return None
        places = torch.cat(self._places, 1) if len(self._places) > 1 else self._places[0]
        self._places = [places]
        between = ((places - coordinates.mT) / self.unit).square().sum(0)
        return (between / 4 * (1 - 1e-6)).to(self.space.device, torch.float32)
