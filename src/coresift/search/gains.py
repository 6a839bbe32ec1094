"""What a label of each point would tell about a target set: two numbers for each point of the pool.

With psi_n the vector of point n in units of its noise, M the sum of phi_t phi_t^T over the targets and S the
identity, less what labels have explained so far, a label of point n lowers the targets' summed variance by

    psi_n^T S M S psi_n / (psi_n^T S psi_n + 1) = q_n / (v_n + 1)

After a label of point i, with g = S psi_i / sqrt(v_i + 1), h = S M g, c = g^T M g, a = psi_n^T g and
b = psi_n^T h:

    S <- S - g g^T        v_n <- v_n - a^2        q_n <- q_n - 2 a b + c a^2

so that a step costs two inner products for each point.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from coresift import limits
from coresift.errors import InputError
from coresift.search.base import LabelGains
from coresift.spaces.base import Space
from coresift.spaces.vectors import ColumnSpace, VectorSpace, new_like
from coresift.types import Index

# Gains in float64 that differ by less than this share are the same: those of copies depend on where they
# stand in a sum.
_TIED = 1e-10
# Eigenvalues below this share of the largest are rounding.
_SMALLEST_EIGENVALUE = 1e-13


class Update(NamedTuple):
    """What a label changes: g (D,), h (D,) and c."""

    g: Tensor
    h: Tensor
    c: float


class Roots(NamedTuple):
    """Two matrices that give both numbers of a point as squared norms, with little rounding.

    Attributes
    ----------
    variance : R (r, D), v_n = |R psi_n|^2.
    target : B (s, D), q_n = |B psi_n|^2.
    noise : the noise variance in units of the space, one unless the vectors are very large or very small.
    """

    variance: Tensor
    target: Tensor
    noise: float


class Near(NamedTuple):
    """Open points (k,) whose rounded gains are within rounding of the largest, these, and vectors (D, k)."""

    points: Tensor
    gains: Tensor
    columns: Tensor


class Table(Protocol):
    """The two numbers of each point, wherever the vectors are."""

    def refresh(self, roots: Roots) -> None:
        """Compute both numbers anew."""

    def update(self, change: Update) -> None:
        """Change both numbers as a label does."""

    def near(self) -> Near:
        """Find the open points of the largest gain, as far as rounding can tell."""

    def set_open(self, index: Tensor, open: bool) -> None:
        """Close points, or put them back."""


class VectorTable:
    """The two numbers of stored vectors, in the vectors' own precision, in memory or on disk."""

    def __init__(self, space: VectorSpace, open: Tensor) -> None:
        self.space, self._open = space, open.to(space.device, copy=True)
        self._numbers = new_like(space.columns, 2, space.columns.dtype)

    def _tiles(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Vectors (D, n) and their two numbers (2, n), a few points at a time, which stay in a cache."""
        on_gpu = self.space.device.type == "cuda"
        working_set = limits.SPACE_WORKING_SET_ON_GPU if on_gpu else limits.SPACE_WORKING_SET
        width = max(working_set // self.space.columns.shape[0], 1)
        for part in self.space.columns.parts():
            tables = self.space.columns.part(part), self._numbers.part(part)
            yield from zip(*(torch.split(table, width, 1) for table in tables), strict=True)

    def refresh(self, roots: Roots) -> None:
        self._noise = roots.noise
        variance, target = (root.to(self.space.columns.dtype) for root in roots[:2])
        for vectors, numbers in self._tiles():
            numbers[0] = (variance @ vectors).square_().sum(0)
            numbers[1] = (target @ vectors).square_().sum(0)

    def update(self, change: Update) -> None:
        direction, size = self.space.direction(torch.stack([change.g, change.h]))
        size = size.to(direction)
        for vectors, (v, q) in self._tiles():
            a, b = (direction @ vectors).mul_(size)
            v.sub_(a * a).clamp_(min=0)
            q.sub_(a * (2 * b - change.c * a)).clamp_(min=0)

    def near(self) -> Near:
        top, tolerance = -torch.inf, 1 - 8 * self.space.resolution
        found: list[tuple[Tensor, Tensor]] = []
        for part in self._numbers.parts():
            v, q = self._numbers.part(part)
            gains = gain(v, q, self._noise).masked_fill_(~self._open[part], -torch.inf)
            top = max(top, float(gains.max()))
            index = (gains >= max(top * tolerance, 0.0)).nonzero()[:, 0]
            found.append((index + part.start, gains[index]))
        index, gains = (torch.cat(columns) for columns in zip(*found, strict=True))
        # Of thousands within rounding, some are looked at closely.
        index = index[gains >= top * tolerance][: limits.NEAR_TIES]
        gains = gains[gains >= top * tolerance][: limits.NEAR_TIES]
        return Near(index, gains.double(), self.space.columns_at(index))

    def set_open(self, index: Tensor, open: bool) -> None:
        self._open[index.to(self._open.device)] = open


def gain(v: Tensor, q: Tensor, noise: float) -> Tensor:
    """(n,) q_n / (v_n + noise), times the noise where that is above one: it may be too large for a float."""
    denominator = v + noise if noise <= 1 else v / noise + 1
    return q / denominator.clamp_(min=torch.finfo(v.dtype).tiny)


class TableGains(LabelGains):
    """Decides in float64, with S and M as (D, D) matrices, among the points that a table finds near the top.

    Both numbers of a point collect rounding over the steps. Where they differ from those in float64 by more
    than the table can tell apart, all are computed anew.

    Parameters
    ----------
    moment : M (D, D), in units of the space.
    """

    def __init__(self, space: ColumnSpace, table: Table, moment: Tensor, pending: Index) -> None:
        self.space, self._table = space, table
        trace = float(moment.diagonal().sum())
        if not 0 < trace < math.inf:
            raise InputError(
                "the posterior samples predict the same for all targets, so that no label can make the model "
                "surer of them"
            )
        self._root_of_trace, self._moment = math.sqrt(trace), moment / trace
        self._covariance = torch.eye(len(moment), dtype=torch.float64, device=moment.device)
        self._moment_root = _root(self._moment)
        # In the units of the space; 0 or infinite where the vectors are so large or so small.
        self._noise = float(torch.tensor(space.scale, dtype=torch.float64) ** -2)
        for n in pending.tolist():
            self._condition(space.vector(n))
        self._refresh()

    def _refresh(self) -> None:
        roots = Roots(_root(self._covariance), self._moment_root @ self._covariance, self._noise)
        self._table.refresh(roots)
        self._fresh = True

    def _condition(self, vector: Tensor) -> Update:
        """Take what a label of a point explains out of S; return what that changes."""
        explained = self._covariance @ vector
        std = math.sqrt(max(float(vector @ explained), 0.0) + self._noise)
        g = explained / (std or math.inf)
        shared = self._moment @ g
        change = Update(g, self._covariance @ shared, float(g @ shared))
        self._covariance -= torch.outer(g, g)
        return change

    def argmax(self) -> Tensor:
        near = self._table.near()
        exact = self._exact(near.columns)
        rounding = (near.gains - exact).abs() > 2 * self.space.resolution * exact
        if not self._fresh and bool(rounding.any()):
            self._refresh()
            near = self._table.near()
            exact = self._exact(near.columns)
        if len(exact) == 0:
            return torch.tensor(-1, device=near.points.device)
        return near.points[exact >= exact.max() * (1 - _TIED)].min()

    def _exact(self, columns: Tensor) -> Tensor:
        """(k,) float64 gains of points with vectors (D, k)."""
        left = self._covariance @ columns
        v, q = (columns * left).sum(0).clamp_(min=0), (left * (self._moment @ left)).sum(0)
        return gain(v, q, self._noise)

    def add(self, n: Tensor) -> None:
        self._table.update(self._condition(self.space.vector(int(n))))
        self._fresh = False

    def close(self, index: Tensor) -> None:
        self._table.set_open(index, False)

    def reopen(self, index: Tensor) -> None:
        self._table.set_open(index, True)

    def remaining(self) -> float:
        share = float((self._covariance * self._moment).sum())
        return self._root_of_trace * math.sqrt(max(share, 0.0))


def _root(matrix: Tensor) -> Tensor:
    """(r, D) R with R^T R = a positive semidefinite matrix (D, D)."""
    values, vectors = torch.linalg.eigh(matrix)
    kept = values > values[-1] * len(values) * _SMALLEST_EIGENVALUE
    root: Tensor = values[kept].sqrt()[:, None] * vectors[:, kept].mT
    return root


def vector_gains(space: VectorSpace, open: Tensor, pending: Index) -> TableGains:
    """Prepare the gains for stored vectors."""
    return TableGains(space, VectorTable(space, open), target_moment(space), pending)


def gram_gains(space: Space, open: Tensor, pending: Index) -> TableGains:
    """Prepare the gains in a space without stored vectors, from vectors with the same inner products."""
    if len(space) > limits.GRAM_POINTS:
        raise InputError(
            f"a {type(space).__name__} stores no vectors; for a target, choose from at most "
            f"{limits.GRAM_POINTS:,} such points instead of {len(space):,}, or pass exact=False"
        )
    gram = space.gram(torch.arange(len(space), device=space.norms.device))
    vectors = VectorSpace(_root(gram))
    vectors.scale *= space.scale
    return vector_gains(vectors, open, pending)


def target_moment(space: VectorSpace) -> Tensor:
    """(D, D) float64, M in units of the space: of its targets, or of its own points where it has none."""
    if space.target_moment is not None:
        return space.target_moment.to(space.device) / space.scale / space.scale
    width = max(limits.SPACE_WORKING_SET // space.columns.shape[0], 1)
    total = torch.zeros(2 * space.columns.shape[:1], dtype=torch.float64, device=space.device)
    for part in space.columns.parts():
        for tile in torch.split(space.columns.part(part), width, 1):
            block = tile.double()
            total += block @ block.mT
    return total
