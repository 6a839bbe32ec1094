"""What all selectors share: checked arguments, an account of what is taken, and a batch at the end."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

from coresift.checks import check_budget, check_index
from coresift.progress import progress_bar
from coresift.scores.base import Score
from coresift.selectors.information import best_weights, share
from coresift.spaces.base import SAME, Space
from coresift.types import Batch, Floats, Index, InputError, make_generator

Source = TypeVar("Source", Space, Score)


@dataclass
class Account:
    """What has been taken so far, and what may still be.

    Attributes
    ----------
    budget : how many points to choose.
    pending : points already sent for labelling: in the account from the start, never chosen again.
    open : (N,) bool, points that may be chosen now.
    left : how many these are.
    chosen : the batch so far, in order.
    report : told of each point taken.
    """

    budget: int
    pending: Index
    open: Tensor
    chosen: list[int] = field(default_factory=list)
    report: Callable[[int], None] = lambda _: None
    _aside: Tensor | None = None
    _admits_twins: bool = False
    _norms: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))

    def __post_init__(self) -> None:
        self.left = int(self.open.count_nonzero())  # a sum would make whole numbers of the mask first

    @property
    def full(self) -> bool:
        return len(self.chosen) >= self.budget

    @property
    def members(self) -> list[int]:
        """Pending points, then chosen ones."""
        return [*self.pending.tolist(), *self.chosen]

    def take(self, n: int) -> None:
        """Put a point into the batch."""
        assert bool(self.open[n]), f"point {n} is closed"
        self.chosen.append(n)
        self.open[n] = False
        self.left -= 1
        self.report(1)

    def twin(self, space: Space, n: int, coordinates: Tensor) -> int | None:
        """The member of the account that ``n`` is a duplicate of, if there is one and it matters."""
        if not bool(self.open[n]):
            return n
        if self._admits_twins:
            return None
        norm, norms = space.norm_at(torch.tensor([n], device=self.open.device)), self._norms_of(space)
        # Points of one place have one norm: few are left to compare, or none.
        alike = ((norms - norm).abs() <= 1e-4 * norm).nonzero()[:, 0]
        if alike.numel() == 0:
            return None
        members = torch.tensor(self.members, dtype=torch.long, device=self.open.device)[alike]
        squares = norms[alike] ** 2 + norm**2
        same = squares - 2 * space.inner_at(coordinates, members) <= SAME * squares
        return int(members[same.int().argmax()]) if bool(same.any()) else None

    def _norms_of(self, space: Space) -> Tensor:
        """(k,) of the members, of whom a few are new each time."""
        members = self.members[self._norms.numel() :]
        new = space.norm_at(torch.tensor(members, dtype=torch.long, device=self.open.device))
        self._norms = torch.cat([self._norms.to(new), new])
        return self._norms

    def set_aside(self, space: Space, n: int, coordinates: Tensor) -> None:
        """Close ``n`` and every duplicate of it, until nothing else is left."""
        if self._aside is None:
            self._aside = torch.zeros_like(self.open)
        self.open[n], self._aside[n] = False, True
        square = float(space.norm_at(torch.tensor([n], device=self.open.device))) ** 2
        for part, values in space.inner(coordinates):
            # A coarse look at all points, within the rounding of a scan: a duplicate's product with the point
            # is their squared norm. Then a fine one at the few left.
            near = ((values - square).abs() <= 2 * (SAME**0.5 + space.resolution) * square) & self.open[part]
            index = near.nonzero()[:, 0] + part.start
            squares = space.norm_at(index) ** 2 + square
            index = index[squares - 2 * space.inner_at(coordinates, index) <= SAME * squares]
            self.open[index], self._aside[index] = False, True
        self.left = int(self.open.count_nonzero())

    def reopen(self) -> None:
        """Nothing but duplicates is left: let them in after all."""
        self._admits_twins = True
        if self._aside is not None:
            self.open |= self._aside
            self.left = int(self.open.count_nonzero())


@dataclass(frozen=True)
class Selector(ABC, Generic[Source]):
    """Turns a space or a score into a batch; a frozen dataclass whose fields are its options."""

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
        if isinstance(source, Space):
            source.check_scale()
        can = source.selectable if isinstance(source, Space) else torch.ones(size, dtype=torch.bool)
        empty = can.logical_not()  # of norm zero
        zero, first = int(empty.count_nonzero()), int(empty.view(torch.uint8).argmax())
        for mask in (can, empty):
            mask[waiting] = False
            mask[closed] = False
        left, generator = int(can.count_nonzero()), make_generator(seed)
        # Points that say nothing make a batch full where there are others in it.
        more = min(max(budget - left, 0), int(empty.count_nonzero())) if self.exact_size and left else 0
        if more or 2 * zero >= size:  # a few points that a model is sure of are no news
            told = "can never be selected; drop them or check for a constant likelihood"
            if more:
                told = f"say nothing; {more} of them, drawn at random, fill up a batch of {left} others"
            warnings.warn(
                f"{zero} of {size} vectors have zero norm (first: index {first}) and {told}", stacklevel=2
            )
        if self.exact_size and budget > left + more:
            raise InputError(
                f"budget is {budget}, but only {left} of {size} points can be chosen: "
                f"{len(waiting)} are pending, {len(closed)} excluded, {zero} of norm zero"
            )
        with progress_bar("choosing points", budget) as advance:
            account = Account(budget - more, waiting, can, report=advance)
            weights, residuals = self._choose(source, account, generator)
        index = np.asarray(account.chosen, dtype=np.int64)
        if isinstance(source, Space) and residuals is not None:
            residuals = residuals * source.scale
        carried = None
        if isinstance(source, Space) and source.additive:
            best, rest = best_weights(
                source, torch.tensor(account.members, dtype=torch.long, device=can.device)
            )
            weights, carried = best if weights is None else weights, share(source, rest)
        held, taken = (None, None) if weights is None else np.split(weights, [len(waiting)])
        if more:
            places = empty.nonzero()[:, 0].cpu().numpy()
            drawn = torch.randperm(len(places), generator=generator)[:more].numpy()
            index = np.append(index, places[drawn])
            taken = None if taken is None else np.append(taken, np.zeros(more))
        return Batch(index, taken, held, residuals, carried)

    @property
    def exact_size(self) -> bool:
        """Whether the batch always has exactly ``budget`` points."""
        return True

    @abstractmethod
    def _choose(
        self, source: Source, account: Account, generator: torch.Generator
    ) -> tuple[Floats | None, Floats | None]:
        """Fill the account; return weights and a residual per step, where the selector has its own.

        Weights are those of the account's members, pending points first; without any, the best ones are
        found where the vectors add up.
        """
