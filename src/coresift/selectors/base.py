"""What all selectors share: checked arguments, the running total of a selection, and a batch at the end."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, TypeVar, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

from coresift.checks import check_budget, check_index, make_generator
from coresift.errors import InputError
from coresift.progress import progress_bar
from coresift.scores import Score
from coresift.selectors.information import best_weights, share
from coresift.spaces.base import SAME, Space, norms_at, selectable
from coresift.types import Batch, Floats, Index

Source = TypeVar("Source", Space, Score)


@dataclass
class Selection:
    """The points selected so far, and those that may still be.

    Attributes
    ----------
    budget : how many points to choose.
    pending : points already sent for labelling: selected from the start, never chosen again.
    open : (N,) bool on the CPU, points that may be chosen now.
    left : how many these are.
    chosen : the batch so far, in order.
    report : called with the number of points after each choice.
    """

    budget: int
    pending: Index
    open: Tensor
    chosen: list[int] = field(default_factory=list)
    report: Callable[[int], None] = lambda _: None
    _aside: list[Tensor] = field(default_factory=list)
    _admits_duplicates: bool = False
    _norms: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))

    def __post_init__(self) -> None:
        self.left = int(self.open.count_nonzero())  # a sum would make integers of the mask first

    @property
    def full(self) -> bool:
        return len(self.chosen) >= self.budget

    @property
    def members(self) -> list[int]:
        """Pending points, then chosen ones."""
        return [*self.pending.tolist(), *self.chosen]

    def take(self, n: int, norm: float | None = None) -> None:
        """Put a point into the batch; ``norm`` saves looking it up later.

        A `CosineSearch` does not see that: close the point there too.
        """
        assert bool(self.open[n]), f"point {n} is closed"
        if norm is not None and len(self._norms) == len(self.pending) + len(self.chosen):
            self._norms = torch.cat([self._norms, self._norms.new_tensor([norm])])
        self.chosen.append(n)
        self.open[n] = False
        self.left -= 1
        self.report(1)

    def duplicate_of(self, space: Space, n: int, norm: float) -> int | None:
        """Find the member that point ``n``, of this norm, is a duplicate of; a closed point is its own.

        ``None`` if there is none, and always after `reopen`.
        """
        if not bool(self.open[n]):
            return n
        if self._admits_duplicates:
            return None
        if new := self.members[len(self._norms) :]:
            self._norms = torch.cat([self._norms, norms_of(space, new)])
        norms = self._norms
        # Duplicates have the same norm, up to the root of SAME: few members are left to compare, or none.
        alike = ((norms - norm).abs() <= 2 * SAME**0.5 * norm).nonzero()[:, 0]
        if alike.numel() == 0:
            return None
        members = torch.tensor(self.members)[alike]
        duplicates = members[_same(space, space.vector(n), norm**2, members)].tolist()
        return duplicates[0] if duplicates else None

    def set_aside(self, space: Space, n: int) -> Tensor:
        """Close ``n`` and every open duplicate of it until `reopen`; return (k,) what was closed.

        Pass that to `CosineSearch.close`: a search does not see what is closed here.
        """
        element, square = space.vector(n), float(norms_of(space, [n])) ** 2
        closed = [torch.tensor([n])]
        for part, values in space.inner(element):
            # First a coarse look at all points, within the rounding of a scan: the product of a duplicate
            # with the point is their squared norm. Then a fine one at the few that are left.
            near = (values - square).abs() <= 2 * (SAME**0.5 + space.resolution) * square
            index = (near.cpu() & self.open[part]).nonzero()[:, 0] + part.start
            closed.append(index[_same(space, element, square, index)])
        self._aside.append(torch.cat(closed))
        self.open[self._aside[-1]] = False
        self.left = int(self.open.count_nonzero())
        return self._aside[-1]

    def reopen(self) -> None:
        """Open all points that were set aside, since nothing else is left; begin a new search then."""
        self._admits_duplicates = True
        for index in self._aside:
            self.open[index] = True
        self.left = int(self.open.count_nonzero())


def _same(space: Space, element: Tensor, square: float, index: Tensor) -> Tensor:
    """(k,) bool on the CPU, which of some points are the same as a vector with this squared norm."""
    index = index.to(element.device)
    squares = norms_at(space, index) ** 2 + square
    return (squares - 2 * space.inner_at(element, index) <= SAME * squares).cpu()


def norms_of(space: Space, index: list[int]) -> Tensor:
    """(k,) float64 on the CPU, the norms of a list of points: `norms_at`, which has tensors on the space's
    device, for a selector that decides on the CPU.
    """
    return norms_at(space, torch.tensor(index, dtype=torch.long, device=space.total().device)).cpu()


def distinct(
    score: Score, selection: Selection, gains: Callable[[], Tensor], duplicates: list[int]
) -> Iterator[int]:
    """Yield the open point of the largest gain, again and again, without duplicates of earlier points.

    ``gains()`` (N,) is asked for anew after each point. Duplicates that are met, also of pending points, are
    appended to ``duplicates``.
    """
    seen = set(score.identity(selection.pending)) if len(selection.pending) else set()
    open = selection.open.clone()
    while bool(open.any()):
        found = gains()
        while bool(open.any()):
            n = int(found.masked_fill(~open, -1.0).argmax())
            open[n] = False
            identity = score.identity(np.array([n]))[0]
            if identity not in seen:
                seen.add(identity)
                yield n
                break
            duplicates.append(n)


@dataclass(frozen=True)
class Selector(ABC, Generic[Source]):
    """Turns a space or a score into a batch; a frozen dataclass whose fields are its options.

    Attributes
    ----------
    bytes_per_point : memory that it keeps for each point of the pool besides the space. What Frank-Wolfe and
        distance selectors keep is in the figures of the space.
    bytes_per_pair : memory that it keeps for each pair of a vector's numbers, in matrices (D, D).
    copies_of_vectors : how many copies of all vectors it makes.
    """

    bytes_per_point: ClassVar[int] = 0
    bytes_per_pair: ClassVar[int] = 0
    copies_of_vectors: ClassVar[int] = 0
    _source: ClassVar[type] = object

    def __init_subclass__(cls) -> None:
        # Selector[Score] says what a subclass chooses from; its own subclasses inherit that.
        for base in getattr(cls, "__orig_bases__", ()):
            if get_origin(base) is Selector:
                cls._source = get_args(base)[0]

    def select(
        self,
        source: Source,
        budget: int,
        *,
        pending: Iterable[int] = (),
        exclude: Iterable[int] = (),
        seed: int | torch.Generator = 0,
    ) -> Batch:
        """Choose ``budget`` distinct points.

        Parameters
        ----------
        source : a space, or a score for selectors that rank.
        pending : points already sent for labelling. They count as if they were in the batch and are
            not chosen again.
        exclude : points that cannot be labelled. They stay part of the pool that the batch stands for.
        seed : for selectors that draw at random; the same seed gives the same batch.
        """
        size = len(source)
        budget = check_budget(budget, size)
        if not isinstance(source, self._source):
            raise InputError(
                f"{type(self).__name__} chooses from a {self._source.__name__}, got {type(source).__name__}"
            )
        waiting = check_index(pending, size, "pending")
        closed = check_index(exclude, size, "exclude")
        can, generator = _selectable(source), make_generator(seed)
        candidates = _Candidates(can, waiting, closed)
        fill = candidates.num_to_fill(budget, self.exact_size)
        if fill == budget:
            return candidates.filled(Batch(np.empty(0, np.int64)), fill, generator)
        with progress_bar("choosing points", budget) as advance:
            selection = Selection(budget - fill, waiting, can, report=advance)
            weights, residuals = self._choose(source, selection, generator)
        batch = _describe(source, selection, weights, residuals)
        return batch if fill == 0 else candidates.filled(batch, fill, generator)

    @property
    def exact_size(self) -> bool:
        """Whether the batch always has exactly ``budget`` points."""
        return True

    @abstractmethod
    def _choose(
        self, source: Source, selection: Selection, generator: torch.Generator
    ) -> tuple[Floats | None, Floats | None]:
        """Fill the selection; return weights and residuals, ``None`` for what the selector does not compute.

        There is one weight for each of `Selection.members`, pending points first, and one residual per step.
        Where weights are ``None`` and the space is additive, the batch gets the best weights.
        """


class _Candidates:
    """How many points can be chosen, and which ones of norm zero can fill up a batch.

    Closes pending and excluded points in ``can`` (N,), the mask of points of norm above zero.
    """

    def __init__(self, can: Tensor, pending: Index, exclude: Index) -> None:
        self.empty = can.logical_not()
        # For messages: how many are pending, excluded and of norm zero, and the first one of norm zero.
        self._counts = (
            len(pending),
            len(exclude),
            int(self.empty.count_nonzero()),
            int(self.empty.view(torch.uint8).argmax()),
        )
        for mask in (can, self.empty):
            mask[pending] = False
            mask[exclude] = False
        self.left = int(can.count_nonzero())

    def num_to_fill(self, budget: int, exact_size: bool) -> int:
        """How many points of norm zero the batch needs; raises where all points are not enough."""
        size, (pending, excluded, zero, first) = len(self.empty), self._counts
        fill = 0
        if exact_size:  # points that say nothing make a batch full
            fill = min(max(budget - self.left, 0), int(self.empty.count_nonzero()))
        if fill or 2 * zero >= size:  # a few points that a model is sure of need no warning
            why = "can never be selected; drop them or check for a constant likelihood"
            if fill:
                others = f"fill up a batch of {self.left} others" if self.left else "are the batch"
                why = f"say nothing; {fill} of them, drawn at random, {others}"
            warnings.warn(
                f"{zero} of {size} vectors have zero norm (first: index {first}) and {why}", stacklevel=3
            )
        if exact_size and budget > self.left + fill:
            raise InputError(
                f"budget is {budget}, but only {self.left} of {size} points can be chosen: "
                f"{pending} are pending, {excluded} excluded, {zero} of norm zero"
            )
        return fill

    def filled(self, batch: Batch, num: int, generator: torch.Generator) -> Batch:
        """The batch with ``num`` points of norm zero more."""
        empty = self.empty.nonzero()[:, 0].numpy()
        index = np.append(batch.index, empty[torch.randperm(len(empty), generator=generator)[:num].numpy()])
        weights = None if batch.weights is None else np.append(batch.weights, np.zeros(num))
        return replace(batch, index=index, weights=weights)


def _selectable(source: Space | Score) -> Tensor:
    """(N,) bool on the CPU, a new mask."""
    if isinstance(source, Space):
        return selectable(source).cpu()
    return torch.ones(len(source), dtype=torch.bool)


def _describe(
    source: Space | Score, selection: Selection, weights: Floats | None, residuals: Floats | None
) -> Batch:
    """The batch with its weights, and the information that it carries."""
    index, information = np.asarray(selection.chosen, dtype=np.int64), None
    if isinstance(source, Space) and residuals is not None:
        residuals = residuals * source.scale
    if isinstance(source, Space) and source.additive:
        members = torch.tensor(selection.members, dtype=torch.long, device=source.total().device)
        best, rest = best_weights(source, members)
        weights, information = best if weights is None else weights, share(source, rest)
    held, taken = (None, None) if weights is None else np.split(weights, [len(selection.pending)])
    return Batch(index, taken, held, residuals, information)
