"""Vectors on a GPU: many steps are made at once, with kernels of our own, and the host follows."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coresift.search.cuda import CentreSteps
from coresift.spaces.centres import VectorCentres
from coresift.spaces.leaders import Scan
from coresift.spaces.storage import InMemory

if TYPE_CHECKING:
    from coresift.spaces.vectors import Scanner, VectorSpace

# Steps that are asked for at once: twice as many as were made of the last ones, since those beyond the end of
# a run do nothing but take time.
_FIRST, _MOST = 32, 512


def has_kernels(space: VectorSpace) -> bool:
    """Whether the kernels can be used: for float32 on a GPU, with Triton."""
    if space.device.type != "cuda" or space.columns.dtype != torch.float32:
        return False
    return space.vectors.is_contiguous() and find_spec("triton") is not None


class ScanOnGPU(Scan):
    """Foresees Frank-Wolfe steps; the host makes them again in the same order, without scans."""

    def __init__(self, space: VectorSpace, scanner: Scanner, allowed: Tensor, once: bool) -> None:
        super().__init__(scanner, allowed)
        assert isinstance(space.sizes, InMemory)
        self.space, self._once, self._num = space, once, _FIRST
        self._scale = space.sizes.values[0] / space.unit

    def foresee(
        self,
        target: Tensor,
        position: Tensor,
        with_target: float,
        square: float,
        sigma: float,
        tolerance: float,
    ) -> list[int]:
        steps = self.space.steps_on_gpu
        torch.mul(self._scale, self.allowed.to(self._scale.device), out=steps.scale)
        found = steps.run(target, position, with_target, square, sigma, self._num, self._once, tolerance)
        self._num = min(max(2 * len(found.index), _FIRST), _MOST)
        self.asked += len(found.index)
        self.made += len(found.index)
        self.space.fetch(found.index)  # all at once: the host asks for them one by one
        return [int(n) for n in found.index.tolist()]


class CentresOnGPU(VectorCentres):
    """Makes many points centres at once."""

    def grow(self, num: int, largest_cluster: bool) -> list[int]:
        assert isinstance(self.nearest, InMemory) and isinstance(self.owner, InMemory)
        assert isinstance(self.space.sizes, InMemory)
        square, count, device = self.unit**2, len(self.sums), self.space.device
        steps = CentreSteps(
            self.space.vectors,
            self.space.sizes.values[1].double() * square,
            self.nearest.values[0].double() * square,
            self.owner.values[0],
            torch.cat([self.sums * square, self.sums.new_zeros(num)]).to(device),
            self._allowed.to(device),
            count,
        )
        index = steps.run(num, largest_cluster)
        self.nearest.values[0] = steps.nearest / square
        everything = torch.arange(len(self.space), device=device)
        self._keep(everything, self.nearest.values[0].clone(), self.owner.values[0].clone())
        self._farthest.clear()
        self.sums = (steps.sums[: steps.count] / square).cpu()
        self._places.append(self.space.columns_at(index))
        return [int(n) for n in index.tolist()]
