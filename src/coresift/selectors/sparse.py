"""Sparse approximation: choose points whose weighted sum stays closest to the sum L of the whole pool.

Frank-Wolfe and GIGA differ in how they step. Everything around the steps is here: pending points, duplicates,
and how a batch is filled up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coresift import limits
from coresift.search import CosineSearch, Step, Tensors, cosine_search
from coresift.selectors.base import Selection, Selector, norms_of
from coresift.spaces.base import Space, norm_sum
from coresift.types import Floats


def closing(step: Step) -> Step:
    """The same step, after which the point that it found is not found again."""

    def closing_step(search: CosineSearch, inputs: Any, state: Any) -> Any:
        state = step(search, inputs, state)
        search.close(state.point)
        return state

    return closing_step


@dataclass(frozen=True)
class Target:
    """What is to be approximated: L, less the points that already stand for themselves.

    Attributes
    ----------
    element : of the space.
    sigma : the sum of the norms of its points.
    """

    element: Tensor
    sigma: float

    def without(self, vector: Tensor, norm: float) -> Target:
        """The target less one point."""
        return Target(self.element - vector, max(self.sigma - norm, 0.0))


class Move(NamedTuple):
    """One step: weights are multiplied by ``shrink``, and that of ``point`` then grows by ``gain``.

    Attributes
    ----------
    vector, norm : of that point.
    residual : the distance to the target after the step.
    """

    point: int
    vector: Tensor
    norm: float
    shrink: float
    gain: float
    residual: float


class Fit(ABC):
    """A weighted sum of points on its way to a target.

    Subclasses say what a step is, as a function of tensors.

    Attributes
    ----------
    step, closing_step : make one step (see `CosineSearch.repeat`); the second never goes to a point twice.
    inputs, state : of a step.
    residual : the distance from the weighted sum to the target.
    """

    step: ClassVar[Step]
    closing_step: ClassVar[Step]
    inputs: Tensors
    state: Tensors
    residual: float

    def __init__(self, space: Space, target: Target) -> None:
        self.space, self.target = space, target
        self.norm = float(space.dot(target.element, target.element).clamp(min=0).sqrt())
        self.residual = self.norm
        self._log: Tensors = ()
        # True weights are these times the common factor, so that a step changes one number only.
        self._weights: dict[int, float] = {}
        self._factor = 1.0

    @abstractmethod
    def _moves(self, log: Tensors) -> list[Move]:
        """The steps that are logged, from ``self.residual`` on."""

    def _scale(self) -> float:
        """What true weights are multiplied with."""
        return 1.0

    def look_ahead(self, search: CosineSearch, times: int, close: bool) -> list[Move]:
        """Make up to ``times`` steps, of which the caller then accepts some; points on the way are closed."""
        step = type(self).closing_step if close else type(self).step
        self._log = search.repeat(step, self.inputs, self.state, min(times, search.run_length))
        return self._moves(self._log)

    def accept(self, moves: list[Move]) -> None:
        """Go on from after the first steps of those looked at."""
        if moves:
            fields = [part[len(moves) - 1] for part in self._log]
            self.state = type(self.state)(*fields)

    def follow(self, move: Move, n: int) -> None:
        """Give weight to point ``n`` for a step."""
        self.residual = move.residual
        if move.shrink < 1e-12:  # the step went all the way: nothing is left of the other points
            self._weights, self._factor = {}, 1.0
        else:
            self._factor *= move.shrink
        self._weights[n] = self._weights.get(n, 0.0) + move.gain / self._factor

    def weights(self, index: list[int]) -> Floats:
        """(k,) of some points."""
        scale = self._factor * self._scale()
        return np.array([scale * self._weights.get(n, 0.0) for n in index], dtype=np.float64)


@dataclass(frozen=True)
class SparseApproximation(Selector[Space]):
    """Makes steps towards L, one point at a time.

    ``budget`` steps are made as published; they come back to points already chosen, so they find fewer than
    ``budget`` points. With ``fill`` the batch is then made full: the steps go on among points not yet chosen.
    Whenever the target is reached, or no new point comes closer, the chosen points stand for themselves and
    the sum of all the others is the next target. So in D dimensions, where about D points reproduce L, each
    further layer of points is again a summary of what is left, and not a blind choice.

    ``fill=False`` returns what the ``budget`` steps found, with the weights they ended with.
    """

    fill: bool = True
    # The target counts as reached at this relative distance, where float32 vectors end.
    tolerance: float = 1e-6

    @property
    def exact_size(self) -> bool:
        return self.fill

    @abstractmethod
    def _fit(self, space: Space, target: Target) -> Fit:
        """A fit with no points yet."""

    def _choose(
        self, space: Space, selection: Selection, generator: torch.Generator
    ) -> tuple[Floats | None, Floats]:
        run = _Run(self, space, selection)
        run.approximate_with_pending()
        run.publish()
        if self.fill:
            run.fill()
            return None, np.array(run.residuals)
        return run.fit.weights(selection.members), np.array(run.residuals)


class _Run:
    """One selection: the fit, and what is left for the next one.

    Attributes
    ----------
    rest : the target less the points chosen so far.
    residuals : after each step of the first fit.
    """

    def __init__(self, selector: SparseApproximation, space: Space, selection: Selection) -> None:
        self.selector, self.space, self.selection = selector, space, selection
        self.rest = Target(space.total(), norm_sum(space))
        self.fit = self._first = selector._fit(space, self.rest)
        self.residuals: list[float] = []
        self._times = limits.SHORTEST_RUN
        self._fresh = False  # whether the target is a new one, with no step towards it yet

    def _moves(self, search: CosineSearch, most: int, close: bool = False) -> list[Move]:
        """The next steps, at most ``most``, of which the first may be refused."""
        return self.fit.look_ahead(search, min(self._times, most), close)

    def _plan(self, accepted: int) -> None:
        """Look ahead twice as far as steps were accepted the last time: the others were made in vain."""
        self._times = min(max(2 * accepted, limits.SHORTEST_RUN), limits.LONGEST_RUN)

    def _comes_closer(self, move: Move) -> bool:
        reached = self.fit.residual <= self.selector.tolerance * self.fit.norm
        return move.point >= 0 and move.gain > 0 and not reached

    def approximate_with_pending(self) -> None:
        """Step towards pending points first: what they explain need not be chosen again."""
        self._pending = torch.zeros_like(self.selection.open)
        pending = self.selection.pending.tolist()
        for n, norm in zip(pending, norms_of(self.space, pending).tolist(), strict=True):
            self._pending[n] = norm > 0
            self.rest = self.rest.without(self.space.vector(n), norm)
        if bool(self._pending.any()):
            self._walk(self._pending, int(self._pending.count_nonzero()), lambda move: move.point)

    def publish(self) -> None:
        """The published algorithm: ``budget`` steps, to chosen points as well as new ones."""
        open = self.selection.open | self._pending

        def member(move: Move) -> int:
            duplicate = self._duplicate_of(move)
            if duplicate is None:
                self._take(move)
            self.residuals.append(move.residual)
            return move.point if duplicate is None else duplicate

        if bool(open.any()):
            self._walk(open, self.selection.budget, member)

    def _walk(self, open: Tensor, steps: int, member: Callable[[Move], int]) -> None:
        """Make some steps among the points of a mask, or until one comes no closer.

        ``member`` says which point a step gives weight to.
        """
        search = cosine_search(self.space, open)
        while steps > 0:
            moves = self._moves(search, steps)
            for number, move in enumerate(moves):
                if not self._comes_closer(move):
                    self.fit.accept(moves[:number])
                    return
                n = member(move)
                self.fit.follow(move, n)
            self.fit.accept(moves)
            self._plan(len(moves))
            steps -= len(moves)

    def fill(self) -> None:
        """Go on with new points only, towards what is left whenever a target is reached."""
        selection, search = self.selection, cosine_search(self.space, self.selection.open)
        while not selection.full:
            if selection.left == 0:
                selection.reopen()
                search = cosine_search(self.space, selection.open)
            moves = self._moves(search, selection.budget - len(selection.chosen), close=True)
            if moves[0].point < 0:
                raise FloatingPointError("no inner product is a number: the vectors' scales are out of range")
            before = len(selection.chosen)
            self.fit.accept(moves[: self._take_new(search, moves)])
            self._plan(len(selection.chosen) - before)
            # Steps that were looked at in vain have closed their points.
            undone = [move.point for move in moves if move.point >= 0 and selection.open[move.point]]
            search.reopen(torch.tensor(undone, dtype=torch.long))

    def _take_new(self, search: CosineSearch, moves: list[Move]) -> int:
        """Take the points of the first steps, up to a duplicate or a step that comes no closer.

        Returns how many of the steps the present fit makes.
        """
        for number, move in enumerate(moves):
            if move.point < 0:
                return number
            if self._duplicate_of(move) is not None:
                search.close(self.selection.set_aside(self.space, move.point))
                return number
            closer = self._comes_closer(move)
            if not closer and not self._fresh:
                self.fit, self._fresh = self.selector._fit(self.space, self.rest), True
                return 0
            self._take(move)
            self._fresh = False
            if not closer:
                return number
            self.fit.follow(move, move.point)
            if self.fit is self._first:
                self.residuals.append(move.residual)
        return len(moves)

    def _duplicate_of(self, move: Move) -> int | None:
        return self.selection.duplicate_of(self.space, move.point, move.norm)

    def _take(self, move: Move) -> None:
        self.selection.take(move.point, move.norm or None)  # zero where sigma is
        self.rest = self.rest.without(move.vector, move.norm)
