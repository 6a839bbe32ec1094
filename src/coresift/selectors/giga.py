"""GIGA: greedy iterative geodesic ascent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from coresift import limits
from coresift.search import CosineSearch, Tensors
from coresift.selectors.sparse import Fit, Move, SparseApproximation, Target, closing
from coresift.spaces.base import Space


@dataclass(frozen=True)
class GIGA(SparseApproximation):
    """Walk along the unit sphere towards the direction of L, then scale.

    Unlike Frank-Wolfe it is not bound to a polytope, so the same number of points comes closer to L.

    References
    ----------
    Campbell and Broderick, Bayesian Coreset Construction via Greedy Iterative Geodesic Ascent, 2018.

    >>> from coresift.spaces.vectors import VectorSpace
    >>> space = VectorSpace(torch.tensor([[2.0, 1.9, 0.0], [0.0, 0.1, 1.0]]))
    >>> sorted(GIGA().select(space, budget=2).index.tolist())
    [1, 2]
    """

    bytes_per_point: ClassVar[int] = limits.GIGA_BYTES

    def _fit(self, space: Space, target: Target) -> _GeodesicFit:
        return _GeodesicFit(space, target)


class _Inputs(NamedTuple):
    """The direction of the target: an element of norm one."""

    target: Tensor


class _State(NamedTuple):
    """A unit vector y, a non-negative sum of points, and the step that led there.

    Attributes
    ----------
    unit, cosine : y, or zero at the start, and its cosine with the target.
    point, vector, norm : of the point.
    gamma : the share of the way to the point's direction.
    length : the norm of the sum before it was made a unit vector.
    """

    unit: Tensor
    cosine: Tensor
    point: Tensor
    vector: Tensor
    norm: Tensor
    gamma: Tensor
    length: Tensor


def _step(search: CosineSearch, inputs: _Inputs, state: _State) -> _State:
    """Move along the great circle to the best point, to where it is closest to the target."""
    towards = torch.addcmul(inputs.target, state.cosine, state.unit, value=-1)
    point = search.argmax(towards, orthogonal_to=state.unit)
    vector, dot = search.vector(point), search.space.dot
    norm = dot(vector, vector).sqrt()
    point_target, point_unit = dot(inputs.target, vector) / norm, dot(state.unit, vector) / norm
    gain = point_target - state.cosine * point_unit
    loss = state.cosine - point_target * point_unit
    gamma = (gain / (gain + loss)).clamp(0.0, 1.0) * (gain > 0) * (gain + loss > 0)
    keep = 1 - gamma
    length = (keep**2 + 2 * keep * gamma * point_unit + gamma**2).clamp_min(1e-300).sqrt()
    unit = (keep * state.unit + gamma / norm * vector) / length
    cosine = ((keep * state.cosine + gamma * point_target) / length).clamp_max(1.0)
    return _State(unit, cosine, point, vector, norm, gamma, length)


class _GeodesicFit(Fit):
    step, closing_step = _step, closing(_step)

    def __init__(self, space: Space, target: Target) -> None:
        super().__init__(space, target)
        zero, nothing = target.element.new_zeros(()), torch.zeros_like(target.element)
        self.inputs: _Inputs = _Inputs(target.element / max(self.norm, 1e-150))
        self.state: _State = _State(nothing, zero, zero.long() - 1, nothing, zero, zero, zero)

    def _scale(self) -> float:
        return self.norm * float(self.state.cosine)

    def _moves(self, log: Tensors) -> list[Move]:
        log = _State(*log)
        numbers = torch.stack([log.cosine, log.norm, log.gamma, log.length], 1).tolist()
        return [
            Move(
                index,
                vector,
                norm,
                (1 - gamma) / length,
                gamma / (length * norm) if norm else 0.0,
                self.norm * max(1 - cosine**2, 0.0) ** 0.5,
            )
            for index, vector, (cosine, norm, gamma, length) in zip(
                log.point.tolist(), log.vector, numbers, strict=True
            )
        ]
