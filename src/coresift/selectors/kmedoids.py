"""K-Medoids: the points that stand in the middle of the pool's clusters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from coresift import limits
from coresift.checks import check_integer
from coresift.errors import InputError
from coresift.selectors.base import Selection, Selector
from coresift.spaces.base import Space
from coresift.spaces.vectors import ColumnSpace, InMemory, VectorSpace
from coresift.types import Floats, Index

# Positions of the medoids (b,) among the candidates, how many candidates each member of the selection has,
# pending ones first, and the sum of the distances.
Found: TypeAlias = tuple[Index, Floats, float]


@dataclass(frozen=True)
class KMedoids(Selector[Space]):
    """Chooses so that the distances of all points to the nearest chosen one sum up to little.

    Points and medoids take `Turns`, on a CPU or a GPU, without a matrix of all pairs. Vectors in a file are
    represented by a uniform sample. The strategy 'k-medoids' does not run on Ray.

    Pending points are medoids that never move. Excluded points count like the others, but are no medoids.
    Labelled points do not count: a batch stands for the pool alone. The medoid of the most points comes
    first; its weight is how many there are.

    Parameters
    ----------
    max_points : the size of the sample; it has at least twice as many points as there are medoids.
    max_iterations : how often points and medoids take turns at most.

    References
    ----------
    Park and Jun, A Simple and Fast Algorithm for K-Medoids Clustering, 2009.

    >>> from coresift.spaces.features import FeatureSpace
    >>> batch = KMedoids(max_points=3).select(FeatureSpace(torch.tensor([[1.0, 2.0, 3.0, 8.0]])), budget=2)
    >>> batch.index.tolist(), batch.weights.tolist(), batch.residuals.tolist()
    ([1, 3], [3.0, 1.0], [2.0])
    """

    max_points: int = 4000
    max_iterations: int = 100

    def __post_init__(self) -> None:
        for name in ("max_points", "max_iterations"):
            object.__setattr__(self, name, check_integer(getattr(self, name), 0, name))

    def sample_size(self, taken: int) -> int:
        """Return how many points stand for a pool on disk, for ``taken`` points in the batch or pending."""
        return max(self.max_points, 2 * taken)

    def _choose(
        self, space: Space, selection: Selection, generator: torch.Generator
    ) -> tuple[Floats, Floats]:
        if not isinstance(space, ColumnSpace):
            raise InputError(f"k-medoids needs stored vectors, which a {type(space).__name__} does not have")
        pending = torch.from_numpy(selection.pending)
        candidates, excluded, weights = self._points(space, selection, generator)
        medoids, sizes, cost = self._alternate(
            space, candidates, pending, excluded, weights, selection.budget, generator
        )
        held, own = np.split(sizes * (len(space) / sizes.sum()), [len(pending)])
        order = np.argsort(-own, kind="stable")
        for position in order:
            selection.take(int(candidates[medoids[position]]))
        return np.concatenate([held, own[order]]), np.array([cost])

    def _points(
        self, space: ColumnSpace, selection: Selection, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Candidates, excluded points, and (n,) how many points each of them stands for, in this order."""
        closed = selection.open.logical_not()
        closed[selection.pending] = False
        candidates, excluded = selection.open.nonzero()[:, 0], closed.nonzero()[:, 0]
        num_open, num_points = len(candidates), len(candidates) + len(excluded)
        least = 2 * (selection.budget + len(selection.pending))
        size = self.sample_size(selection.budget + len(selection.pending))
        if _at_hand(space) or num_points <= size:
            return candidates, excluded, torch.ones(num_points, dtype=torch.float64)
        num = max(round(size * num_open / num_points), min(least, num_open))
        candidates, open_weights = _sample(candidates, num, generator)
        excluded, closed_weights = _sample(excluded, size - num, generator)
        return candidates, excluded, torch.cat([open_weights, closed_weights])

    def _alternate(
        self,
        space: ColumnSpace,
        candidates: Tensor,
        pending: Tensor,
        excluded: Tensor,
        weights: Tensor,
        budget: int,
        generator: torch.Generator,
    ) -> Found:
        """By turns, where pending points are medoids that never move, and excluded ones are none.

        Parameters
        ----------
        weights : how many points each candidate and each excluded one stands for.

        Copies of a point are one point of their number: one at most is a medoid, as long as there are points
        that no medoid is a copy of.
        """
        points, unit = _vectors(space, torch.cat([pending, candidates, excluded]))
        first, group = _distinct(points)
        waiting = len(pending)
        # Places with a pending point come first, as those points do, then those with a candidate.
        held, allowed = (int((first < end).sum()) for end in (waiting, waiting + len(candidates)))
        # At random: with the jumps, k-means++ ends at the same sum of distances within half a percent.
        begin = held + torch.randperm(allowed - held, generator=generator)[:budget]
        together = torch.bincount(group.cpu()[waiting:], weights, minlength=len(first))
        turns = Turns(points[first], together, held, allowed, begin.to(points.device))
        turns.run(self.max_iterations)
        chosen = first[turns.medoids].cpu().numpy()
        order = np.argsort(chosen)  # pending ones stay in front
        medoids = chosen[order[held:]] - waiting
        # Copies that are needed to fill the batch have nobody, nor have copies among pending points.
        copies = np.setdiff1d(np.arange(len(candidates)), medoids)[: budget - len(medoids)]
        sizes = np.zeros(waiting + budget)
        sizes[chosen[:held]] = turns.sizes()[:held]
        sizes[waiting : waiting + len(medoids)] = turns.sizes()[order[held:]]
        return np.concatenate([medoids, copies]), sizes, unit * turns.cost()


class Turns:
    """Points go to the nearest medoid and medoids to the middle of their points, as in Lloyd's algorithm.
    Where this ends, medoids that are needed little jump to where they are needed more, and it goes on.

    Of equals a point and a medoid choose the one they are with, or else that of the lowest number.

    Parameters
    ----------
    points : (n, D), all distinct.
    weights : (n,) how many points each stands for.
    held : how many of the points, the first ones, are medoids that never move.
    allowed : how many of the points, the first ones with those, may be medoids.
    start : (b,) positions of further medoids.

    Attributes
    ----------
    medoids : (k,) positions; held ones first.
    owner : (n,) the number of each point's medoid.
    """

    def __init__(self, points: Tensor, weights: Tensor, held: int, allowed: int, start: Tensor) -> None:
        # Seen from the mean, products of points have the least to cancel out.
        self.points = points - points.mean(0, dtype=torch.float64).to(points)
        self.weights, self.held, self.allowed = weights.to(points), held, allowed
        self.medoids = torch.cat([torch.arange(held, device=start.device), start])
        self._working_set = limits.MEDOID_WORKING_SET_ON_GPU if points.is_cuda else limits.MEDOID_WORKING_SET
        self._squares = self.points.square().sum(1)
        # Half of what the squared distance to the medoid has over the squared norm: enough to compare by.
        self._excess, self.owner = self._nearest(self.points, self.medoids)
        self._hold_themselves()
        self._goals = self.medoids.clone()  # (k,) of each cluster, the point that would be its second medoid

    def run(self, max_iterations: int) -> None:
        """Take turns until no medoid moves."""
        touched = torch.ones(len(self.medoids), dtype=torch.bool, device=self.owner.device)
        for _ in range(max_iterations):
            moved = self._move(touched)
            if len(moved) == 0:
                moved = self._jump()
            if len(moved) == 0:
                break
            touched = self._follow(moved)

    def sizes(self) -> Floats:
        """(k,) how many points each medoid has."""
        return self._sums(self.owner.cpu().numpy(), torch.ones_like(self.weights))

    def cost(self) -> float:
        """The sum of all points' distances to their medoids."""
        total, places = 0.0, self.medoids[self.owner]
        for part in self._parts(len(places), self.points.shape[1]):
            apart = self.points[part].double() - self.points[places[part]].double()
            total += float(self.weights[part].double() @ apart.square().sum(1).sqrt())
        return total

    def _parts(self, size: int, width: int) -> Iterator[slice]:
        """Slices of ``size`` rows of ``width`` numbers that the working set has room for."""
        rows = max(self._working_set // width, 1)
        return (slice(start, min(start + rows, size)) for start in range(0, size, rows))

    def _distances(self, excess: Tensor) -> Tensor:
        """(n,) distances of which the excess is given."""
        return (2 * excess + self._squares).clamp_(min=0).sqrt_()

    def _nearest(
        self, points: Tensor, medoids: Tensor, besides: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(m,) the excess of points (m, D) to the nearest of medoids (c,), and which of these that is; one of
        them for each point, ``besides`` (m,), may be left out.
        """
        places, half = self.points[medoids].mT, self._squares[medoids] / 2
        excess, which = points.new_empty(len(points)), medoids.new_empty(len(points))
        for part in self._parts(len(points), len(medoids)):
            values = torch.addmm(half, points[part], places, alpha=-1)  # (m, c)
            if besides is not None:
                values.scatter_(1, besides[part, None], torch.inf)
            # The first of equals; numpy finds it several times as fast as torch does.
            least = values.argmin(1) if values.is_cuda else torch.from_numpy(values.numpy().argmin(1))
            excess[part], which[part] = values.gather(1, least[:, None])[:, 0], least
        return excess, which

    def _hold_themselves(self) -> None:
        """A medoid has itself, whatever rounding says: so none is without points."""
        self.owner[self.medoids] = torch.arange(len(self.medoids), device=self.owner.device)
        self._excess[self.medoids] = -self._squares[self.medoids] / 2

    def _follow(self, moved: Tensor) -> Tensor:
        """Points go to the nearest medoid, after some (c,) moved; (k,) whether a medoid or its points did."""
        before = self.owner
        moves = torch.zeros(len(self.medoids), dtype=torch.bool, device=moved.device)
        moves[moved] = True
        left = moves[before].nonzero()[:, 0]
        # Where the medoid stayed, only those that moved can be nearer.
        excess, which = self._nearest(self.points, self.medoids[moved])
        closer = excess < self._excess
        self._excess = torch.where(closer, excess, self._excess)
        self.owner = torch.where(closer, moved[which], before)
        self._excess[left], self.owner[left] = self._nearest(self.points[left], self.medoids)
        self._hold_themselves()
        differs = self.owner != before
        moves[before[differs]] = True
        moves[self.owner[differs]] = True
        return moves

    def _move(self, touched: Tensor) -> Tensor:
        """Medoids of clusters in a mask (k,) go to the middle; the numbers (c,) of those that moved."""
        before, sizes = self.medoids.clone(), torch.bincount(self.owner, minlength=len(self.medoids))
        order = self.owner.argsort(stable=True)  # (n,) cluster by cluster, and in ascending order in each
        starts = sizes.cumsum(0) - sizes
        self._goals[touched] = self.medoids[touched]  # where there is no other point
        for numbers, largest in self._groups((touched & (sizes > 1)).nonzero()[:, 0], sizes):
            place = torch.arange(largest, device=order.device)
            inside = place < sizes[numbers, None]  # (c, m)
            members = order[(starts[numbers, None] + place).clamp_(max=len(order) - 1)]
            self._move_some(numbers, members, inside)
        return (self.medoids != before).nonzero()[:, 0]

    def _groups(self, numbers: Tensor, sizes: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Clusters of about the same size, as many as the working set has room for, and the largest size."""
        numbers = numbers[sizes[numbers].argsort(descending=True, stable=True)]
        descending = sizes[numbers].cpu().numpy()
        start = 0
        while start < len(numbers):
            largest = int(descending[start])
            width = max(min(largest, limits.MOST_MIDDLES), self.points.shape[1])
            room = self._working_set // (largest * width)
            alike = int(np.searchsorted(-descending, -largest / 2, side="right"))
            stop = min(alike, start + max(room, 1))
            yield numbers[start:stop], largest
            start = stop

    def _move_some(self, numbers: Tensor, members: Tensor, inside: Tensor) -> None:
        """Move the medoids of c clusters, of members (c, m) where these are ``inside``."""
        present = self.medoids[numbers, None]  # (c, 1)
        # Seen from the medoid: rounding is then small compared with the cluster, wherever that lies.
        local = self.points[members] - self.points[present]  # (c, m, D)
        weights, able = self.weights[members] * inside, inside & (members < self.allowed)
        middles = torch.arange(members.shape[1], device=members.device).expand_as(members)
        if members.shape[1] > limits.MOST_MIDDLES:
            mean = (weights[:, None] @ local) / weights.sum(1)[:, None, None]
            far = (local - mean).square().sum(2).masked_fill_(~able, torch.inf)
            far.masked_fill_(inside & (members == present), -1.0)  # which the others are compared with
            middles = far.topk(limits.MOST_MIDDLES, largest=False).indices.sort().values  # (c, t)
        candidates = local.gather(1, middles[:, :, None].expand(-1, -1, local.shape[2]))
        now = local.square().sum(2).sqrt()  # (c, m) distances to the medoid
        sums = torch.zeros_like(candidates[:, :, 0])
        gains = torch.zeros_like(sums)
        for part in self._parts(members.shape[1], middles.numel()):
            distance = torch.cdist(local[:, part], candidates)
            itself = torch.arange(part.start, part.stop, device=members.device)[:, None] == middles[:, None]
            distance.masked_fill_(itself, 0.0)  # and not the root of what rounding leaves
            sums += (weights[:, None, part] @ distance)[:, 0]
            gains += (weights[:, None, part] @ (now[:, part, None] - distance).clamp_(min=0))[:, 0]
        at, padding = members.gather(1, middles), ~able.gather(1, middles)
        which = gains.masked_fill_(padding, -1.0).argmax(1)
        self._goals[numbers] = at.gather(1, which[:, None])[:, 0]
        least, which = sums.masked_fill_(padding, torch.inf).min(1)
        better = (least < (1 - limits.LEAST_STEP) * (weights * now).sum(1)) & (numbers >= self.held)
        self.medoids[numbers] = torch.where(better, at.gather(1, which[:, None])[:, 0], present[:, 0])

    def _jump(self) -> Tensor:
        """Medoids that their points need least become second medoids where these are needed more; which did.

        Points of a medoid that leaves lose what their second nearest is farther than it. Points win what the
        nearest of the goals, one for each cluster, is nearer than their medoid; each counts for one goal.
        So the sum of distances falls by the difference or more, whichever goals are taken, as long as no
        points are sent to a medoid that leaves as well.
        """
        if len(self.medoids) < 2:
            return self.medoids[:0]
        distance, owner = self._distances(self._excess), self.owner.cpu().numpy()
        excess, nearest = self._nearest(self.points, self._goals)
        gain = self._sums(nearest.cpu().numpy(), (distance - self._distances(excess)).clamp_(min=0))
        excess, nearest = self._nearest(self.points, self.medoids, besides=self.owner)
        loss = self._sums(owner, (self._distances(excess) - distance).clamp_(min=0))
        # Where a goal is the medoid itself, whatever is won is rounding, and a point must not be taken twice.
        gain[(self._goals == self.medoids).cpu().numpy()], loss[: self.held] = 0.0, np.inf
        leaves, second = loss < gain.max(), nearest.cpu().numpy()
        # Of two, one of which would take in points of the other, the one that is needed more stays.
        rank = loss.argsort(kind="stable").argsort()
        leaves[np.where(rank[owner] > rank[second], owner, second)[leaves[owner] & leaves[second]]] = False
        leaving = np.flatnonzero(leaves)
        leaving = leaving[loss[leaving].argsort(kind="stable")]
        winning = (-gain).argsort(kind="stable")[: len(leaving)]
        won = gain[winning] - loss[leaving]  # descending
        num = int((won > 0).sum())
        if won[:num].sum() <= limits.LEAST_GAIN * float((self.weights * distance).sum(dtype=torch.float64)):
            return self.medoids[:0]
        moved = torch.from_numpy(leaving[:num]).to(self.medoids.device)
        self.medoids[moved] = self._goals[torch.from_numpy(winning[:num]).to(moved.device)]
        return moved.sort().values

    def _sums(self, numbers: Index, values: Tensor) -> Floats:
        """(k,) sums of values (n,) of points, by number; on the CPU, in the same order every time."""
        weighted = (self.weights.double() * values.double()).cpu().numpy()
        return np.bincount(numbers, weighted, len(self.medoids)).astype(np.float64)


def _at_hand(space: Space) -> bool:
    """Whether all vectors are in memory here."""
    return isinstance(space, VectorSpace) and isinstance(space.columns, InMemory)


def _vectors(space: ColumnSpace, index: Tensor) -> tuple[Tensor, float]:
    """(n, D) vectors of the points ``index``, where they are and in their own precision, and their unit."""
    if isinstance(space, VectorSpace):
        return (space.columns.at(index) / space.unit).mT.contiguous(), space.unit
    return space.columns_at(index).mT.contiguous(), 1.0


def _sample(index: Tensor, num: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Some points at random, in ascending order, and how many each of them stands for."""
    drawn = index[torch.randperm(len(index), generator=generator)[:num]].sort().values
    return drawn, torch.full((len(drawn),), len(index) / max(len(drawn), 1), dtype=torch.float64)


def _distinct(points: Tensor) -> tuple[Tensor, Tensor]:
    """(d,) the first of each group of identical points (n, D), ascending, and (n,) each point's group.

    >>> _distinct(torch.tensor([[5.0], [2.0], [5.0]]))
    (tensor([0, 1]), tensor([0, 1, 0]))
    """
    group = torch.unique(points, dim=0, return_inverse=True)[1]
    position = torch.arange(len(points), device=points.device)
    first = torch.full_like(position[: int(group.max()) + 1], len(points))
    first, order = first.scatter_reduce_(0, group, position, "amin").sort()
    return first, order.argsort()[group]
