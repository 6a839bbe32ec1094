"""Selectors that rank points by a score each: top b, its randomised kin, and pure chance."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from coresift import limits
from coresift.errors import InputError
from coresift.scores import Score
from coresift.selectors.base import Selection, Selector
from coresift.types import Floats


@dataclass(frozen=True)
class RankingSelector(Selector[Score]):
    """Takes points in descending order of a value; ties go to the lower index, duplicates come last.

    Duplicates are points that are the same in ``score.pool``. Where that holds predictions alone, they are
    points that no sample of the model tells apart.
    """

    @abstractmethod
    def _values(self, score: Score, open: Tensor, generator: torch.Generator) -> Tensor:
        """(N,) what to rank by, where points are open (N,) to be chosen."""

    def _choose(
        self, score: Score, selection: Selection, generator: torch.Generator
    ) -> tuple[Floats | None, Floats | None]:
        ranked = self._values(score, selection.open, generator).argsort(descending=True, stable=True)
        order = ranked[selection.open[ranked]].numpy()
        seen = set(score.identity(selection.pending)) if len(selection.pending) else set()
        duplicates: list[int] = []
        for start in range(0, len(order), 2 * selection.budget):
            part = order[start : start + 2 * selection.budget]
            for n, identity in zip(part.tolist(), score.identity(part), strict=True):
                if identity in seen:
                    duplicates.append(n)
                elif not selection.full:
                    seen.add(identity)
                    selection.take(n)
            if selection.full:
                break
        for n in duplicates[: selection.budget - len(selection.chosen)]:
            selection.take(n)
        return None, None


@dataclass(frozen=True)
class TopB(RankingSelector):
    """The b points of the highest score. Fast, and clumped: near-equal points have near-equal scores.

    >>> TopB().select(Score(torch.tensor([0.1, 0.9, 0.5])), budget=2).index
    array([1, 2])
    """

    bytes_per_point: ClassVar[int] = limits.TOP_BYTES

    def _values(self, score: Score, open: Tensor, generator: torch.Generator) -> Tensor:
        return score.values


@dataclass(frozen=True)
class GumbelTopB(RankingSelector):
    """The b points of the highest perturbed score: a draw without replacement, spread at no extra cost.

    Parameters
    ----------
    kind : what the draw is proportional to: "power" score^beta, "softmax" exp(beta score), "softrank"
        rank^-beta among the points that may be chosen.
    beta : how sharp the draw is; zero is uniform, infinity is `TopB`.

    References
    ----------
    Kirsch et al., Stochastic Batch Acquisition, 2023.
    """

    kind: Literal["power", "softmax", "softrank"] = "power"
    beta: float = 1.0
    bytes_per_point: ClassVar[int] = limits.GUMBEL_BYTES

    def __post_init__(self) -> None:
        if self.kind not in ("power", "softmax", "softrank"):
            raise InputError(f"kind is {self.kind!r}, expected 'power', 'softmax' or 'softrank'")
        if not isinstance(self.beta, int | float) or not self.beta >= 0:
            raise InputError(f"beta is {self.beta!r}, expected a number of at least zero")

    def _values(self, score: Score, open: Tensor, generator: torch.Generator) -> Tensor:
        values = score.values.double()
        if self.kind == "power":
            if bool((values < -1e-6 * values.abs().max()).any()):
                raise InputError(
                    f"the smallest score is {float(values.min()):.3g}, but a power needs scores of at least "
                    'zero; use kind="softmax" or "softrank"'
                )
            logits = values.clamp(min=1e-300).log()
        elif self.kind == "softmax":
            logits = values
        else:
            # Ranks among open points, of which equal ones come in any order.
            places = open.nonzero()[:, 0]
            places = places[torch.randperm(len(places), generator=generator)]
            places = places[values[places].argsort(descending=True, stable=True)]
            logits = torch.zeros_like(values)
            logits[places] = -torch.arange(1, len(places) + 1, dtype=values.dtype).log()
        if math.isinf(self.beta):
            return values
        return self.beta * logits + _gumbel(len(score), generator)


@dataclass(frozen=True)
class UniformRandom(Selector[Score]):
    """Any points, all equally likely, duplicates too: the baseline to beat, and fit for a test set."""

    bytes_per_point: ClassVar[int] = limits.RANDOM_BYTES

    def _choose(
        self, score: Score, selection: Selection, generator: torch.Generator
    ) -> tuple[Floats | None, Floats | None]:
        order = _gumbel(len(score), generator).argsort(descending=True, stable=True)
        for n in order[selection.open[order]][: selection.budget].tolist():
            selection.take(n)
        return None, None


def _gumbel(size: int, generator: torch.Generator) -> Tensor:
    uniform = torch.rand(size, dtype=torch.float64, generator=generator)
    return -torch.log(-torch.log(uniform.clamp(min=np.finfo(np.float64).tiny)))
