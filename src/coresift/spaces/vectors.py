"""Stored vectors: one column of J numbers for each point of the pool, in memory or on disk."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch import Tensor

from coresift import limits
from coresift.checks import check_finite
from coresift.pool import Pool, as_pool
from coresift.spaces.base import Space, norm_sum, norms_at, selectable
from coresift.spaces.problem import Problem
from coresift.spaces.storage import (
    MODERATE,
    Columns,
    InMemory,
    divide,
    excess_exponent,
    largest_entry,
    new_like,
)
from coresift.types import InputError


class ColumnSpace(Space):
    """A space whose elements are J numbers, wherever the pool's vectors are; column n is L_n."""

    @abstractmethod
    def columns_at(self, index: Tensor) -> Tensor:
        """(J, k) float64, the vectors of the points ``index``."""

    def vector(self, n: int) -> Tensor:
        return self.columns_at(torch.tensor([n]))[:, 0]

    def inner_at(self, element: Tensor, index: Tensor) -> Tensor:
        return element @ self.columns_at(index)

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    def gram(self, index: Tensor) -> Tensor:
        chosen = self.columns_at(index)
        return chosen.mT @ chosen


@norms_at.register
def _(space: ColumnSpace, index: Tensor) -> Tensor:
    return space.columns_at(index).square().sum(0).sqrt()


class VectorSpace(ColumnSpace):
    """Vectors that are stored on this machine.

    Vectors may be float32. Totals are accumulated in float64, and whatever decides between two points is
    computed in float64 from their vectors. So the batch is the same wherever the vectors are.

    Very large or very small vectors are multiplied by a power of two, which rounds nothing, so that the batch
    is the same at any scale; ``scale`` is one over that power.

    Parameters
    ----------
    vectors : (J, N), a tensor, or columns in memory or on disk; columns are rescaled in place, a tensor is
        copied for that.
    labelled : (J, M), labelled points in the same space, the first centres of distance selectors.

    Attributes
    ----------
    sizes : (2, N) one over each norm (zero for a norm of zero), and the squared norm, in units of ``unit``.
    unit : a power of two of about the largest norm: squares of large numbers do not fit into float32.
    largest : the largest norm.

    >>> space = VectorSpace(torch.tensor([[3.0, 0.0], [4.0, 1.0]]))
    >>> space.norms, space.total()
    (tensor([5., 1.], dtype=torch.float64), tensor([3., 5.], dtype=torch.float64))
    """

    def __init__(self, vectors: Tensor | Columns, labelled: Tensor | Columns | None = None) -> None:
        shape = tuple(vectors.shape)
        if isinstance(labelled, Columns):
            labelled = labelled.at(torch.arange(len(labelled)))
        if len(shape) != 2 or shape[1] == 0:
            raise InputError(f"vectors have shape {shape}, expected (J, N) with N above zero")
        if labelled is not None and (labelled.ndim != 2 or len(labelled) != shape[0]):
            raise InputError(f"labelled vectors have shape {tuple(labelled.shape)}, expected ({shape[0]}, M)")
        self.columns = InMemory(vectors) if isinstance(vectors, Tensor) else vectors
        self._borrowed = isinstance(vectors, Tensor)
        self.labelled = None if labelled is None or labelled.shape[1] == 0 else labelled
        self.device = self.columns.device
        self.sizes = new_like(self.columns, 2, self.columns.dtype)
        # A sum of J products, each rounded, and its two factors.
        self.resolution = (shape[0] + 4) * torch.finfo(self.columns.dtype).eps
        self._measure()
        self._moderate()

    def _moderate(self) -> None:
        """Rescale vectors whose squares would not fit into a float."""
        if 2.0**-MODERATE <= self.largest <= 2.0**MODERATE:
            return
        entry = largest_entry(self.columns.part(part) for part in self.columns.parts())
        if entry == 0 and self.labelled is not None:  # all points are at the origin
            entry = largest_entry([self.labelled])
        if excess := excess_exponent(entry):
            self.rescale(excess)

    def rescale(self, exponent: int, largest: float = 0.0) -> None:
        """Divide all vectors by ``2**exponent``; ``largest`` is the largest norm elsewhere in the pool."""
        if self._borrowed:
            self.columns, self._borrowed = InMemory(self.vectors.clone()), False
        for part in self.columns.parts():
            divide(self.columns.part(part), exponent)
        if self.labelled is not None:
            self.labelled = divide(self.labelled.to(torch.float64, copy=True), exponent)
        self.scale *= 2.0**exponent
        self._measure(largest)

    def _measure(self, largest: float = 0.0) -> None:
        """Find the sizes of all vectors, their sum, and the largest norm."""
        total = torch.zeros(self.columns.shape[0], dtype=torch.float64, device=self.device)
        working_set = limits.SPACE_WORKING_SET_ON_GPU if total.is_cuda else limits.SPACE_WORKING_SET
        width = max(working_set // len(total), 1)
        self.largest, self.norm_sum = largest, 0.0
        for part in self.columns.parts():
            vectors, sizes = self.columns.part(part), self.sizes.part(part)
            for start in range(0, vectors.shape[1], width):
                block = vectors[:, start : start + width].double()
                check_finite(block.mT, part.start + start, "space")
                total += block.sum(1)
                norms = block.square().sum(0).sqrt()
                self.norm_sum += float(norms.sum())
                sizes[1, start : start + width] = norms.clamp(max=torch.finfo(sizes.dtype).max)
                self.largest = max(self.largest, float(norms.max()))
        # A power of two: what is rounded to float32 is then the same in any unit, as in parts of the pool.
        self.unit = 1.0
        if 0 < self.largest < math.inf:
            self.unit = 2.0 ** math.ceil(math.log2(self.largest))
        for part in self.columns.parts():
            sizes = self.sizes.part(part)
            sizes[1] /= self.unit
            sizes[0] = torch.where(sizes[1] > 0, 1 / sizes[1], 0.0).clamp_(max=torch.finfo(sizes.dtype).max)
            sizes[1] *= sizes[1].clone()
        self._total = total

    def __len__(self) -> int:
        return self.columns.shape[1]

    @property
    def vectors(self) -> Tensor:
        """(J, N) all of them; raises where they are on disk."""
        if not isinstance(self.columns, InMemory):
            raise InputError(
                "this strategy needs all vectors in memory; leave out the memory limit, or try 'acs-fw' or "
                "one with 'lcmd' or 'kmeans++' in its name"
            )
        return self.columns.values

    @cached_property
    def norms(self) -> Tensor:  # type: ignore[override]
        # In blocks: in float64 the vectors may be too many.
        width = max(limits.SPACE_WORKING_SET // self.columns.shape[0], 1)
        parts = torch.split(self.vectors, width, 1)
        return torch.cat([part.double().square().sum(0).sqrt() for part in parts])

    def total(self) -> Tensor:
        return self._total

    def columns_at(self, index: Tensor) -> Tensor:
        return self.columns.at(index).double()

    def inner(self, element: Tensor) -> Iterator[tuple[slice, Tensor]]:
        direction, size = self.direction(element)
        for part in self.columns.parts():
            yield part, (direction @ self.columns.part(part)).double().mul_(size)

    def direction(self, element: Tensor) -> tuple[Tensor, Tensor]:
        """An element in the vectors' own precision, divided by its largest entry, and that entry: the sum of
        a large pool can be too long for float32.
        """
        size = element.abs().amax(-1, keepdim=True)
        size = torch.where(size > 0, size, 1.0)
        return (element / size).to(self.columns.dtype), size

    def anchors(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.labelled is None:
            return
        ratio = largest_entry([self.labelled]) / self.largest if self.largest > 0 else 0.0
        if not ratio <= 2.0**60:  # float32 can hold squared distances of such points
            raise InputError(
                f"labelled vectors are {ratio:.1g} times as large as the pool's, so that distances "
                "within the pool would be lost in rounding; check that both have the same units"
            )
        together = limits.ANCHORS
        if self.device.type == "cuda":  # which answers many questions as fast as a few
            together = max(min(limits.PRODUCTS_ON_GPU // len(self), limits.ANCHORS_ON_GPU), together)
        for part in torch.split(self.labelled, together, 1):
            vectors = part.to(self.device).double().mT
            yield vectors, vectors.square().sum(1)


def mapped_space(problem: Problem, map_rows: Callable[[Pool, int | None], Columns]) -> VectorSpace:
    """Map the points of a problem to vectors, the labelled ones in memory."""
    with torch.no_grad():
        columns = map_rows(problem.pool, problem.memory)
        labelled = None if problem.labelled is None else map_rows(as_pool(problem.labelled), None)
    return VectorSpace(columns, labelled)


@norm_sum.register
def _(space: VectorSpace) -> float:
    return space.norm_sum


@selectable.register
def _(space: VectorSpace) -> Tensor:
    found = torch.empty(len(space), dtype=torch.bool, device=space.device)
    for part in space.sizes.parts():
        found[part] = space.sizes.part(part)[0] > 0
    return found
