"""Stored vectors: one column of J numbers for each pool point, in memory or on disk."""

from __future__ import annotations

import math
import operator
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from coresift.checks import check_finite
from coresift.search.cuda import FrankWolfeSteps
from coresift.spaces.base import ANCHORS, Space
from coresift.spaces.centres import VectorCentres
from coresift.spaces.leaders import TIED, Leaders, Scan, best
from coresift.spaces.on_gpu import CentresOnGPU, ScanOnGPU, has_kernels
from coresift.spaces.scaling import MODERATE, divide, excess_exponent, largest_entry
from coresift.spaces.storage import Columns, InMemory, new_like, where
from coresift.types import Index, InputError

# Leading points that a scan keeps.
_LEADERS = 512
# Points so close to the winner that rounding may have put them behind it, looked at together.
_MOST_LEADERS = 4096
# Numbers that are held in float64 at a time.
_WORKING_SET, _WORKING_SET_ON_GPU = 2**20, 2**25
# Labelled points may be so many times as large as the pool's: float32 can hold their squared distances.
_FARTHEST = 2.0**60
# Labelled points looked at together on a GPU, and their products with the pool, at most.
_ANCHORS_ON_GPU, _PRODUCTS_ON_GPU = 1024, 2**28


class ColumnSpace(Space):
    """A space whose elements are J numbers, wherever the pool's vectors lie; column n is L_n."""

    @abstractmethod
    def columns_at(self, index: Tensor) -> Tensor:
        """(J, k) float64 on the CPU, the vectors of the points ``index``."""

    def coordinates(self, n: int) -> Tensor:
        return self.columns_at(torch.tensor([n]))[:, 0]

    def norm_at(self, index: Tensor) -> Tensor:
        return self.columns_at(index).square().sum(0).sqrt()

    def inner_at(self, element: Tensor, index: Tensor) -> Tensor:
        return element @ self.columns_at(index)

    def gram(self, index: Tensor) -> Tensor:
        chosen = self.columns_at(index)
        return chosen.mT @ chosen

    def factor(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.columns_at(index), self.total()

    def squared_total(self) -> float:
        return float(self.total() @ self.total())

    def argmax(self, element: Tensor, allowed: Tensor) -> int:
        return self.scan(allowed).argmax(element)

    def check_scale(self) -> None:
        """Nothing to check: stored vectors are rescaled instead."""


class VectorSpace(ColumnSpace):
    """Vectors that are stored on this machine.

    Vectors may be float32; totals are accumulated in float64, and whatever decides between two points is
    computed in float64 from their vectors. So the batch is the same wherever the vectors lie.

    Elements of the space are on the CPU, also where the vectors are on a GPU.

    Very large or very small vectors are multiplied by a power of two, which rounds nothing, so that the batch
    is the same at any scale; ``scale`` is one over that power.

    Parameters
    ----------
    vectors : (J, N), a tensor, or columns in memory or on disk; columns are rescaled in place, a tensor is
        copied for that.
    labelled : (J, M), labelled points in the same space, the first centres of distance selectors.
    half : on a GPU, whether Frank-Wolfe scans float16 copies of the vectors, half as much memory again, and
        the vectors themselves only where the winner can be; the batch is the same. Without effect on a CPU,
        where float16 is slow, and in distance selectors: most of their steps change distances all over the
        pool.

    >>> space = VectorSpace(torch.tensor([[3.0, 0.0], [4.0, 1.0]]))
    >>> space.norms, space.total()
    (tensor([5., 1.], dtype=torch.float64), tensor([3., 5.], dtype=torch.float64))
    """

    def __init__(
        self, vectors: Tensor | Columns, labelled: Tensor | Columns | None = None, half: bool = False
    ) -> None:
        shape = tuple(vectors.shape)
        if isinstance(labelled, Columns):
            labelled = labelled.at(torch.arange(len(labelled)))
        if len(shape) != 2 or shape[1] == 0:
            raise InputError(f"vectors have shape {shape}, expected (J, N) with N above zero")
        if labelled is not None and (labelled.ndim != 2 or len(labelled) != shape[0]):
            raise InputError(f"labelled vectors have shape {tuple(labelled.shape)}, expected ({shape[0]}, M)")
        self.columns = InMemory(vectors) if isinstance(vectors, Tensor) else vectors
        self._borrowed = isinstance(vectors, Tensor)
        self.labelled = None if labelled is None or labelled.shape[1] == 0 else labelled.cpu()
        self.device, self.half = self.columns.device, half
        # Two rows beside the vectors: one over the norm, or zero, and the squared norm; in units of about the
        # largest norm, since squares of large numbers are too large for float32.
        self.sizes = new_like(self.columns, 2, self.columns.dtype)
        # A sum of J products, each rounded, and its two factors.
        self.resolution = (shape[0] + 4) * torch.finfo(self.columns.dtype).eps
        self._measure()
        if not 2.0**-MODERATE <= self.largest <= 2.0**MODERATE:
            entry = largest_entry(self.columns.part(part) for part in self.columns.parts())
            if entry == 0 and self.labelled is not None:  # points that are all at the origin
                entry = largest_entry([self.labelled])
            if excess := excess_exponent(entry):
                self.rescale(excess)

    def check_scale(self) -> None:
        if self.labelled is not None and self.largest > 0:
            ratio = largest_entry([self.labelled]) / self.largest
            if not ratio <= _FARTHEST:
                raise InputError(
                    f"labelled vectors are {ratio:.1g} times as large as the pool's, so that distances "
                    "within the pool would be lost in rounding; check that both have the same units"
                )

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
        width = max((_WORKING_SET_ON_GPU if total.is_cuda else _WORKING_SET) // len(total), 1)
        self.largest, self._norm_total = largest, 0.0
        for part in self.columns.parts():
            vectors, sizes = self.columns.part(part), self.sizes.part(part)
            for start in range(0, vectors.shape[1], width):
                block = vectors[:, start : start + width].double()
                check_finite(block.mT, part.start + start, "space")
                total += block.sum(1)
                norms = block.square().sum(0).sqrt()
                self._norm_total += float(norms.sum())
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
        self._total, self._fetched = total.cpu(), dict[int, Tensor]()

    def __len__(self) -> int:
        return self.columns.shape[1]

    @property
    def vectors(self) -> Tensor:
        """(J, N) all of them; not where they are on disk, on purpose."""
        if not isinstance(self.columns, InMemory):
            raise InputError(
                "this strategy needs all vectors in memory; leave out the memory limit, or try 'acs-fw' or "
                "one with 'lcmd' or 'kmeans++' in its name"
            )
        return self.columns.values

    @cached_property
    def norms(self) -> Tensor:  # type: ignore[override]
        return self._exact_norms(self.vectors.cpu())

    @staticmethod
    def _exact_norms(columns: Tensor) -> Tensor:
        """(n,) of columns (J, n), in blocks: in float64 they may be too many."""
        size = max(_WORKING_SET // len(columns), 1)
        return torch.cat([part.double().square().sum(0).sqrt() for part in torch.split(columns, size, 1)])

    @property
    def selectable(self) -> Tensor:
        found = torch.empty(len(self), dtype=torch.bool)
        for part in self.sizes.parts():
            found[part] = (self.sizes.part(part)[0] > 0).cpu()
        return found

    def norm_total(self) -> float:
        return self._norm_total

    def total(self) -> Tensor:
        return self._total

    def coordinates(self, n: int) -> Tensor:
        if n not in self._fetched:  # a step asks for one point again and again
            self.fetch(torch.tensor([n]))
        return self._fetched[n]

    def columns_at(self, index: Tensor) -> Tensor:
        positions = index.tolist() if self._fetched else []
        if not positions or not all(n in self._fetched for n in positions):
            return self.columns.at(index).cpu().double()
        return torch.stack([self._fetched[n] for n in positions], 1)

    def fetch(self, index: Tensor) -> None:
        """Have the vectors of some points at hand: a GPU answers slowly to single questions."""
        columns = self.columns.at(index).cpu().double()
        self._fetched = dict(zip(index.tolist(), columns.unbind(1), strict=True))

    def inner(self, element: Tensor) -> Iterator[tuple[slice, Tensor]]:
        direction, length = self.direction(element)
        for part in self.columns.parts():
            yield part, (direction @ self.columns.part(part)).cpu().double().mul_(length)

    def direction(self, element: Tensor) -> tuple[Tensor, Tensor]:
        """An element in the vectors' own precision, brought to size one first: the sum of a large pool can be
        too long for float32.
        """
        length = element.abs().amax(-1, keepdim=True)
        length = torch.where(length > 0, length, 1.0)
        return (element / length).to(self.device, self.columns.dtype), length

    def anchors(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.labelled is not None:
            together = ANCHORS
            if self.device.type == "cuda":  # which answers many questions as fast as a few
                together = max(min(_PRODUCTS_ON_GPU // len(self), _ANCHORS_ON_GPU), ANCHORS)
            for part in torch.split(self.labelled, together, 1):
                vectors = part.double().mT
                yield vectors, vectors.square().sum(1)

    @cached_property
    def steps_on_gpu(self) -> FrankWolfeSteps:
        """For all scans, one after another: so the vectors are copied once."""
        assert isinstance(self.sizes, InMemory)
        return FrankWolfeSteps(self.vectors, self.sizes.values[0] / self.unit, half=self.half)

    def scan(self, allowed: Tensor, once: bool = False) -> Scan:
        scanner = Scanner(self, allowed)
        return ScanOnGPU(self, scanner, allowed, once) if has_kernels(self) else Scan(scanner, allowed)

    def centres(self, allowed: Tensor, pending: Index) -> VectorCentres:
        return (CentresOnGPU if has_kernels(self) else VectorCentres)(self, allowed, pending)


class Scanner:
    """Scans all vectors for those with the largest cosines with a direction.

    Parameters
    ----------
    allowed : (N,) bool, on the CPU; points may be taken out of it between scans.
    """

    def __init__(self, space: VectorSpace, allowed: Tensor) -> None:
        self.space, self.allowed = space, allowed
        # In memory, the scale of points that may not be chosen is zero in a copy: nothing else is to be done
        # about them in a scan, where looking at the mask would take as long as a few rows of the vectors.
        self._scale: Tensor | None = None
        if isinstance(space.sizes, InMemory):
            self._scale = space.sizes.values[0] * allowed.to(space.device)
        self._out = torch.empty(space.columns.block, dtype=space.columns.dtype, device=space.device)

    def __call__(self, direction: Tensor, many: bool) -> Leaders:
        """The winner and, if there are to be ``many``, `_LEADERS` points beside it; else only those too near
        to it to tell by rounded numbers.
        """
        for look in (self._many,) if many else (self._near, self._near):
            leaders = self._exact(*look(direction, masked=False))
            # Not where points stood in front that were taken out meanwhile, which is noted for the next time.
            if leaders is not None and float((direction @ leaders.units).max()) > leaders.bound:
                return leaders
        leaders = self._exact(*self._near(direction, masked=True))
        if leaders is None:
            raise FloatingPointError("no inner product is a number: the vectors' scales are out of range")
        return leaders

    def _near(self, direction: Tensor, masked: bool) -> tuple[Tensor, float]:
        """Points whose rounded cosines are within rounding of the highest, and a bound on all others."""
        bound = -torch.inf
        found: list[tuple[float, Tensor]] = []  # of a block, the highest cosine and the points near it
        for part, values, top in self._cosines(direction, masked):
            if top > bound:
                bound = max(bound, top - 2 * self.space.resolution)
                found.append((top, where(values, operator.gt, bound).cpu() + part.start))
        near = [index for top, index in found if top > bound]
        index = torch.cat(near) if near else torch.empty(0, dtype=torch.long)
        if index.numel() > _MOST_LEADERS:
            return self._first(direction, index)
        return index, bound + self.space.resolution

    def _first(self, direction: Tensor, index: Tensor) -> tuple[Tensor, float]:
        """The best in truth of many points, and its own cosine as the bound on all others."""
        winner, highest = index[:0], -torch.inf
        for some in torch.split(index[self.allowed[index]], _MOST_LEADERS):
            leaders = self._exact(some, 1.0)
            if leaders is not None:
                here, cosine = best(leaders.index, direction @ leaders.units)
                if cosine > highest + TIED:
                    winner, highest = torch.tensor([here]), cosine
        return winner, highest

    def _many(self, direction: Tensor, masked: bool) -> tuple[Tensor, float]:
        """The points with the highest rounded cosines, at least `_LEADERS`, and a bound on all others."""
        bound, index, cosines = -torch.inf, torch.empty(0, dtype=torch.long), self._out[:0].cpu()
        for part, values, top in self._cosines(direction, masked):
            if top > bound:
                first = bound == -torch.inf and len(values) > _LEADERS
                here = values.topk(_LEADERS).indices if first else where(values, operator.gt, bound)
                index = torch.cat([index, here.cpu() + part.start])
                cosines = torch.cat([cosines, values[here].cpu()])
                bound = float(cosines.min()) if first else bound
            if len(index) > 2 * _LEADERS:
                order = cosines.argsort(descending=True, stable=True)[:_LEADERS]
                cosines, index = cosines[order], index[order]
                bound = float(cosines[-1])
        return index, bound + self.space.resolution

    def _cosines(self, direction: Tensor, masked: bool) -> Iterator[tuple[slice, Tensor, float]]:
        """Rounded cosines block by block, with the highest of each. Unless ``masked``, points that may not be
        chosen have a cosine of zero.
        """
        columns, sizes = self.space.columns, self.space.sizes
        wanted = (direction / self.space.unit).to(self._out)
        scale = None if masked else self._scale
        for part in columns.parts():
            out = self._out[: part.stop - part.start]
            torch.mv(columns.part(part).mT, wanted, out=out)
            if scale is not None:
                out.mul_(scale[part])
            else:
                inverse = sizes.part(part)[0]
                may = self.allowed[part].to(out.device) & (inverse > 0)
                out.mul_(inverse).masked_fill_(~may, -torch.inf)
            yield part, out, float(out.max())

    def _exact(self, index: Tensor, bound: float) -> Leaders | None:
        """Those that may still be chosen, in float64."""
        allowed = self.allowed[index]
        if not bool(allowed.all()):
            if self._scale is not None:
                self._scale[index[~allowed].to(self._scale.device)] = 0.0
            index = index[allowed]
        columns = self.space.columns_at(index)
        norms = columns.square().sum(0).sqrt()
        if not bool((norms > 0).all()):
            index, columns, norms = index[norms > 0], columns[:, norms > 0], norms[norms > 0]
        return Leaders(index, columns / norms, min(max(bound, -1.0), 1.0)) if len(index) else None
