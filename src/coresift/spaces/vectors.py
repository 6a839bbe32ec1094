"""Stored vectors: one column of J numbers for each pool point."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from coresift.checks import check_finite
from coresift.spaces.base import ANCHORS, Space
from coresift.types import InputError


class VectorSpace(Space):
    """Explicit vectors, stored as (J, N): a scan of a large pool then reads memory in order.

    Vectors may be float32; totals and norms are always accumulated in float64.

    Parameters
    ----------
    vectors : (J, N), column n is L_n.
    labelled : (J, M), labelled points in the same space, the first centres of distance selectors.

    >>> space = VectorSpace(torch.tensor([[3.0, 0.0], [4.0, 1.0]]))
    >>> space.norms, space.total()
    (tensor([5., 1.], dtype=torch.float64), tensor([3., 5.], dtype=torch.float64))
    """

    # Columns scanned at a time; a block of one row stays in the second-level cache.
    block = 65536

    def __init__(self, vectors: Tensor, labelled: Tensor | None = None) -> None:
        if vectors.ndim != 2 or vectors.shape[1] == 0:
            raise InputError(f"vectors have shape {tuple(vectors.shape)}, expected (J, N) with N above zero")
        if labelled is not None and (labelled.ndim != 2 or len(labelled) != len(vectors)):
            raise InputError(
                f"labelled vectors have shape {tuple(labelled.shape)}, expected ({len(vectors)}, M)"
            )
        self.vectors, self.labelled = vectors, labelled
        total = torch.zeros(len(vectors), dtype=torch.float64, device=vectors.device)
        squares = torch.empty(vectors.shape[1], dtype=torch.float64, device=vectors.device)
        for part in self._parts():
            block = vectors[:, part].double()
            check_finite(block.mT, part.start, "space")
            total += block.sum(1)
            squares[part] = block.square().sum(0)
        self.norms, self._total = squares.sqrt(), total
        self.resolution = 8 * torch.finfo(vectors.dtype).eps

    def _parts(self) -> Iterator[slice]:
        size = self.vectors.shape[1]
        return (slice(start, min(start + self.block, size)) for start in range(0, size, self.block))

    def total(self) -> Tensor:
        return self._total

    def coordinates(self, n: int) -> Tensor:
        return self.vectors[:, n].double()

    def inner(self, element: Tensor) -> Iterator[tuple[slice, Tensor]]:
        # Brought to size one first: the sum of a large pool can be too long for float32.
        length = element.abs().amax(-1, keepdim=True)
        length = torch.where(length > 0, length, 1.0)
        direction = (element / length).to(self.vectors.dtype)
        for part in self._parts():
            yield part, (direction @ self.vectors[:, part]).double().mul_(length)

    def inner_at(self, element: Tensor, index: Tensor) -> Tensor:
        return element @ self.vectors[:, index].double()

    def gram(self, index: Tensor) -> Tensor:
        chosen = self.vectors[:, index].double()
        return chosen.mT @ chosen

    def factor(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.vectors[:, index].double(), self._total

    def squared_total(self) -> float:
        return float(self._total @ self._total)

    def anchors(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.labelled is not None:
            for part in torch.split(self.labelled, ANCHORS, 1):
                vectors = part.double().mT
                yield vectors, vectors.square().sum(1)
