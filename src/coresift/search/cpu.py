"""The engine of plain torch: for any space, and for stored vectors in memory or on disk."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator

import torch
from torch import Tensor

from coresift import limits
from coresift.search.base import (
    CosineSearch,
    Engine,
    centre_distances,
    cosine_search,
    label_gains,
    register_engine,
)
from coresift.search.cpu_distances import PlainDistances, VectorDistances
from coresift.search.gains import gram_gains, vector_gains
from coresift.spaces.base import Space
from coresift.spaces.vectors import InMemory, VectorSpace, where

# Cosines in float64 that differ by less are the same: those of copies depend on where they stand in a sum.
TIED = 1e-13
# The least share of a squared norm that counts as orthogonal to another element.
_LEAST_SHARE = 1e-12


class PlainSearch(CosineSearch):
    """Looks at the inner products with all points each time."""

    def __init__(self, space: Space, open: Tensor) -> None:
        self.space, self._open = space, open.to(space.norms.device, copy=True)

    def argmax(self, element: Tensor, orthogonal_to: Tensor | None = None) -> Tensor:
        best, found = torch.tensor(-torch.inf), torch.tensor(-1)
        elements = torch.stack([element] if orthogonal_to is None else [element, orthogonal_to])
        for part, products in self.space.inner(elements):
            cosines = products / self.space.norms[part]
            scores = _cosines_orthogonal_to(cosines, _LEAST_SHARE)
            scores = torch.where(self._open[part], scores, -torch.inf)
            position = scores.argmax()
            if scores[position] > best:
                best, found = scores[position], part.start + position
        return found

    def close(self, index: Tensor) -> None:
        self._open[index[index >= 0]] = False

    def reopen(self, index: Tensor) -> None:
        self._open[index] = True


class VectorSearch(CosineSearch):
    """Scans the stored vectors in their own precision, and decides in float64 among those that came close."""

    space: VectorSpace

    def __init__(self, space: VectorSpace, open: Tensor) -> None:
        self.space, self._open = space, open.to(space.device, copy=True)
        # In memory, the scale of closed points is zero in a copy: nothing else is to be done about them in a
        # scan, where looking at the mask would take as long as a few rows of the vectors.
        self._scale: Tensor | None = None
        if isinstance(space.norm_table, InMemory):
            self._scale = space.norm_table.values[0] * self._open
        self._out = torch.empty(space.columns.block, dtype=space.columns.dtype, device=space.device)

    def close(self, index: Tensor) -> None:
        index = index[index >= 0].to(self._open.device)
        self._open[index] = False
        if self._scale is not None:
            self._scale[index] = 0.0

    def reopen(self, index: Tensor) -> None:
        self._open[index] = True
        if self._scale is not None:
            self._scale[index] = self.space.norm_table.at(index)[0]

    def argmax(self, element: Tensor, orthogonal_to: Tensor | None = None) -> Tensor:
        return torch.tensor(self.best(element, orthogonal_to)[1], device=self.space.device)

    def best(self, element: Tensor, orthogonal_to: Tensor | None = None) -> tuple[float, int]:
        """The largest cosine, and its point; minus infinity and -1 where no point is open."""
        direction = element / torch.linalg.vector_norm(element).clamp_min(1e-300)
        if orthogonal_to is not None:
            candidates = self._leading(torch.stack([direction, orthogonal_to]))
            return self._decide(candidates, direction, orthogonal_to)
        candidates, top = self._near(direction, masked=False)
        # A closed point has a cosine of zero here: it can hide open ones, all of whose cosines are below
        # that.
        if not top > 2 * self.space.resolution:
            candidates, top = self._near(direction, masked=True)
        return self._decide(candidates, direction)

    def _near(self, direction: Tensor, masked: bool) -> tuple[Tensor, float]:
        """Points whose rounded cosines are within rounding of the largest, and that one."""
        top, margin = -torch.inf, 2 * self.space.resolution
        found: list[tuple[float, Tensor]] = []  # of a block, the largest cosine and the points near it
        for part, cosines in self._cosines(direction, masked):
            here = float(cosines.max())
            if math.isnan(here):
                raise FloatingPointError("no inner product is a number: the vectors' scales are out of range")
            if here > top - margin and here > -torch.inf:
                top = max(top, here)
                found.append((here, where(cosines, operator.gt, top - margin) + part.start))
        near = [index for here, index in found if here > top - margin]
        return torch.cat(near) if near else torch.empty(0, dtype=torch.long), top

    def _cosines(self, direction: Tensor, masked: bool) -> Iterator[tuple[slice, Tensor]]:
        """Rounded cosines, block by block. Unless ``masked``, closed points have a cosine of zero."""
        columns, norm_table = self.space.columns, self.space.norm_table
        wanted = (direction / self.space.unit).to(self._out)
        for part in columns.parts():
            out = self._out[: part.stop - part.start]
            torch.mv(columns.part(part).mT, wanted, out=out)
            if self._scale is not None and not masked:
                yield part, out.mul_(self._scale[part])
            else:
                inverse = norm_table.part(part)[0]
                closed = ~(self._open[part] & (inverse > 0))
                yield part, out.mul_(inverse).masked_fill_(closed, -torch.inf)

    def _leading(self, pair: Tensor) -> Tensor:
        """The open points with the highest rounded scores by GIGA's measure, and those equal to the last."""
        wanted = (pair / self.space.unit).to(self._out)
        lowest, found = -torch.inf, list[tuple[Tensor, Tensor]]()
        for part in self.space.columns.parts():
            inverse = self.space.norm_table.part(part)[0]
            cosines = (wanted @ self.space.columns.part(part)).mul_(inverse)
            scores = _cosines_orthogonal_to(cosines, max(self.space.resolution, _LEAST_SHARE))
            scores.masked_fill_(~(self._open[part] & (inverse > 0)), -torch.inf)
            most = min(limits.CLOSER_LOOK, len(scores))
            lowest = max(lowest, float(scores.topk(most).values[-1]))
            index = where(scores, operator.ge, max(lowest, torch.finfo(scores.dtype).min))
            found.append((index + part.start, scores[index]))
        return torch.cat([index[scores >= lowest] for index, scores in found])

    def _decide(
        self, index: Tensor, direction: Tensor, orthogonal_to: Tensor | None = None
    ) -> tuple[float, int]:
        """The best of some points in float64; of equals the first."""
        highest, best = -torch.inf, -1
        for some in torch.split(index, limits.NEAR_TIES):
            columns = self.space.columns_at(some)
            norms = columns.square().sum(0).sqrt()
            pair = direction[None] if orthogonal_to is None else torch.stack([direction, orthogonal_to])
            cosines = _cosines_orthogonal_to(pair @ columns / norms, _LEAST_SHARE)
            cosines = torch.where(self._open[some] & (norms > 0), cosines, -torch.inf)
            top = float(cosines.max()) if len(some) else -torch.inf
            if top > highest + TIED:
                highest, best = top, int(some[cosines >= top - TIED].min())
        return highest, best


def _cosines_orthogonal_to(cosines: Tensor, least: float) -> Tensor:
    """(n,) the first row of cosines (1, n); of (2, n), divided by the sine of the angle of the second."""
    if len(cosines) == 1:
        return cosines[0]
    return cosines[0] / (1 - cosines[1] ** 2).clamp_(min=least).sqrt_()


cosine_search.register(Space, PlainSearch)
centre_distances.register(Space, PlainDistances)
label_gains.register(Space, gram_gains)
register_engine("cpu", Engine(VectorSearch, VectorDistances, vector_gains))
