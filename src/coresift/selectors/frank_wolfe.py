"""Frank-Wolfe, the paper's selector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from coresift.errors import InputError
from coresift.search import CosineSearch, Tensors
from coresift.selectors.sparse import Fit, Move, SparseApproximation, Target, closing
from coresift.spaces.base import Space


@dataclass(frozen=True)
class FrankWolfe(SparseApproximation):
    """ACS-FW (paper, Algorithm 1): Frank-Wolfe over the polytope with vertices (sigma/sigma_n) e_n.

    Parameters
    ----------
    start : "zero" is Algorithm 1 to the letter: it line-searches from w = 0 at once, and its weights end
        below the constraint sum_n w_n sigma_n = sigma of the paper's eq. 6. "vertex" makes the whole first
        step, so that the weights keep the constraint; where vectors point in many directions, the later
        steps then mostly make up for the first.
    fill : make the batch exactly as large as asked; ``fill=False`` and ``start="zero"`` is Algorithm 1.

    >>> from coresift.spaces.vectors import VectorSpace
    >>> space = VectorSpace(torch.tensor([[2.0, 1.9, 0.0], [0.0, 0.1, 1.0]]))
    >>> FrankWolfe().select(space, budget=2).index
    array([1, 2])
    """

    start: Literal["zero", "vertex"] = "zero"

    def __post_init__(self) -> None:
        if self.start not in ("zero", "vertex"):
            raise InputError(f"start is {self.start!r}, expected 'zero' or 'vertex'")

    def _fit(self, space: Space, target: Target) -> _FrankWolfeFit:
        return _FrankWolfeFit(space, target, self.start == "vertex")


class _Inputs(NamedTuple):
    """The target, and the sum of the norms of its points."""

    target: Tensor
    sigma: Tensor


class _State(NamedTuple):
    """L(w), and the step that led there.

    Attributes
    ----------
    position : L(w).
    point, vector : of the point.
    height : sigma / sigma_n.
    gamma : the share of the way to the vertex, with a minus sign.
    products : (2,) <r, d> and <d, d>, where r is the residual and d points from the vertex to the position.
    """

    position: Tensor
    point: Tensor
    vector: Tensor
    height: Tensor
    gamma: Tensor
    products: Tensor


def _step(search: CosineSearch, inputs: _Inputs, state: _State, whole: bool = False) -> _State:
    """Move to the point of the segment from L(w) to the best vertex that is closest to the target."""
    pair = torch.empty(2, *state.position.shape, dtype=torch.float64, device=state.position.device)
    point = search.argmax(torch.sub(inputs.target, state.position, out=pair[0]))
    vector = search.vector(point)
    height = inputs.sigma / search.space.dot(vector, vector).sqrt()
    away = torch.addcmul(state.position, vector, height, value=-1, out=pair[1])  # position - vertex
    products = search.space.dot(pair, away)
    # Minus the share: <r, away> / <away, away> needs no change of sign. A step of zero length stays.
    gamma = (products[0] / products[1].clamp_min(1e-300)).clamp(-1.0, 0.0)
    if whole:
        gamma = -torch.ones_like(gamma)
    return _State(torch.addcmul(state.position, gamma, away), point, vector, height, gamma, products)


class _FrankWolfeFit(Fit):
    step, closing_step = _step, closing(_step)

    def __init__(self, space: Space, target: Target, whole_first_step: bool) -> None:
        super().__init__(space, target)
        element, zero = target.element, target.element.new_zeros(())
        self.inputs: _Inputs = _Inputs(element, torch.full_like(zero, target.sigma))
        self.state: _State = _State(
            torch.zeros_like(element), zero.long() - 1, element, zero, zero, element.new_zeros(2)
        )
        self._whole_first_step = whole_first_step

    def look_ahead(self, search: CosineSearch, times: int, close: bool) -> list[Move]:
        if self._whole_first_step and not self._weights:
            state = _step(search, self.inputs, self.state, whole=True)
            if close:
                search.close(state.point)
            self._log = tuple(part[None] for part in state)
            return self._moves(self._log)
        return super().look_ahead(search, times, close)

    def _moves(self, log: Tensors) -> list[Move]:
        log = _State(*log)
        residual = self.inputs.target - self.state.position
        square = max(float(self.space.dot(residual, residual)), 0.0)
        moves = []
        for index, vector, height, gamma, (along, length) in zip(
            log.point.tolist(),
            log.vector,
            log.height.tolist(),
            log.gamma.tolist(),
            log.products.tolist(),
            strict=True,
        ):
            square = max(square + gamma * (gamma * length - 2 * along), 0.0)
            norm = self.target.sigma / height if height else 0.0
            moves.append(Move(index, vector, norm, 1 + gamma, -gamma * height, square**0.5))
        return moves
