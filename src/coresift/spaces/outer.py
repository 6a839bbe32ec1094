"""Outer-product spaces: two linear kernels multiplied, a column in O(N d).

Many closed forms have vectors of the shape ``left_n (x) right_n``: a gradient with respect to the weights of
a linear layer is the outer product of an output error and a feature, and the square of a linear kernel
is one with itself. Their inner products multiply, so the outer products are never written out:

    <n, m> = scale (left_n^T left_m) (right_n^T B right_m) + offset_n^T C offset_m
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coresift import limits
from coresift.pool import ArrayPool, Pool, blocks, read
from coresift.spaces.base import KernelSpace, labelled_elements, out_of_range
from coresift.spaces.vectors import divide, excess_exponent, largest_entry


@dataclass(frozen=True)
class OuterKernel:
    """The kernel above.

    Attributes
    ----------
    sides : chunk (n, ...) -> left (n, p) and right (n, q), both float64. Called for every column, so cheap.
    scale : factor of the product.
    metric : B (q, q); the identity where ``None``.
    offset : chunk (n, ...) -> (n, r) float64, called once and kept; none where ``None``.
    offset_metric : C (r, r); the identity where ``None``.
    """

    sides: Callable[[Tensor], tuple[Tensor, Tensor]]
    scale: float = 1.0
    metric: Tensor | None = None
    offset: Callable[[Tensor], Tensor] | None = None
    offset_metric: Tensor | None = None

    def squares(self, x: Tensor) -> Tensor:
        """(n,) <n, n>."""
        left, right = self.sides(x)
        product = _quadratic(left, None) * _quadratic(right, self.metric)
        return (self.scale * product + _quadratic(self.offsets(x), self.offset_metric)).clamp(min=0)

    def offsets(self, x: Tensor) -> Tensor:
        """(n, r), r = 0 where there are none."""
        return self.sides(x)[0][:, :0] if self.offset is None else self.offset(x)

    def product(self, x: Tensor, offset: Tensor, y: Tensor) -> Tensor:
        """(n, m) inner products of points ``x``, whose offsets are known, with points ``y``."""
        left, right = self.sides(x)
        to_left, to_right = self.sides(y)
        product = (left @ to_left.mT).mul_(right @ _times(to_right, self.metric).mT)
        return product.mul_(self.scale).add_(offset @ _times(self.offsets(y), self.offset_metric).mT)


class OuterSpace(KernelSpace):
    """A pool under an `OuterKernel`, read once per column in blocks, so that a pool on disk stays there.

    The points ``labelled`` (M, ...) are the first centres of distance selectors.
    """

    def __init__(self, kernel: OuterKernel, pool: Pool, labelled: Tensor | None = None) -> None:
        self.kernel, self.pool, self.labelled = kernel, pool, labelled
        squares, offsets = [], []
        # A GPU wants more rows at a time than a cache holds.
        on_gpu = pool.take([0]).is_cuda
        self._block = 16 * limits.POOL_BLOCK if on_gpu else limits.POOL_BLOCK
        for block in read(pool, self._block):
            squares.append(kernel.squares(block.x))
            offsets.append(kernel.offsets(block.x))
        self.norms = torch.cat(squares).sqrt()
        self._offset = torch.cat(offsets)

    def _columns(self, x: Tensor) -> Tensor:
        """(k, N) inner products of the pool with the points ``x`` (k, ...)."""
        columns = self.norms.new_empty(len(x), len(self))
        for block in blocks(self.pool, self._block):
            part = slice(block.start, block.start + len(block))
            columns[:, part] = self.kernel.product(block.x, self._offset[part], x).mT
        return columns

    def row_sums(self) -> Tensor:
        sums = self._offset @ _times(self._offset.sum(0), self.kernel.offset_metric)
        cross: Tensor | None = None  # (p, q), sum_m left_m right_m^T: all that is needed of the pool
        for block in blocks(self.pool, self._block):
            left, right = self.kernel.sides(block.x)
            cross = left.mT @ right if cross is None else cross + left.mT @ right
        assert cross is not None, "a pool holds at least one row"
        middle = self.kernel.scale * _times(cross, self.kernel.metric)
        for block in blocks(self.pool, self._block):
            left, right = self.kernel.sides(block.x)
            sums[block.start : block.start + len(block)] += ((left @ middle) * right).sum(1)
        return sums

    def column(self, n: int) -> Tensor:
        return self._columns(self.pool.take([n]))[0]

    def gram(self, index: Tensor) -> Tensor:
        x = self.pool.take(index.cpu().numpy())
        return self.kernel.product(x, self._offset[index], x)

    def anchors(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.labelled is not None:
            # A column of each at a time: with a large pool, of fewer.
            for x in torch.split(self.labelled, max(min(limits.ANCHORS, limits.PRODUCTS // len(self)), 1)):
                yield labelled_elements(self._columns(x)), self.kernel.squares(x)


def _times(side: Tensor, metric: Tensor | None) -> Tensor:
    return side if metric is None else side @ metric


def _quadratic(side: Tensor, metric: Tensor | None) -> Tensor:
    """(n,) side_n^T metric side_n."""
    return (_times(side, metric) * side).sum(-1)


def stored_outer_space(
    left: Tensor, right: Tensor, labelled: tuple[Tensor, Tensor] | None = None
) -> OuterSpace:
    """Points whose sides, left (N, p) and right (N, q), are computed already; likewise for labelled ones."""
    width = left.shape[1]
    exponents = [excess_exponent(largest_entry([side])) for side in (left, right)]

    def sides(rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows[:, :width], rows[:, width:]

    def joined(left: Tensor, right: Tensor) -> Tensor:
        rows = torch.cat([left, right.to(left.device)], 1).double()
        for side, exponent in zip(sides(rows), exponents, strict=True):
            divide(side, exponent)
        return rows

    anchors = None if labelled is None else joined(*labelled)
    space = OuterSpace(OuterKernel(sides), ArrayPool(joined(left, right)), anchors)
    space.bytes_per_point += 32 * left.shape[1] + 24 * right.shape[1]  # as they are computed, then joined
    if not -1074 <= sum(exponents) < 1024:  # no float64 is that power of two
        raise out_of_range("the vectors are")
    space.scale = math.ldexp(1.0, sum(exponents))
    return space
