"""The referee: tries every batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch

from coresift.checks import check_integer
from coresift.errors import InputError
from coresift.selectors.base import Selection, Selector
from coresift.selectors.information import best_weights
from coresift.spaces.base import Space
from coresift.types import Floats


@dataclass(frozen=True)
class Exhaustive(Selector[Space]):
    """The best batch there is: the least ||L - L(w)|| over all sets of ``budget`` points and weights w >= 0.

    For small problems only, to hold the others against.
    """

    max_batches: int = 200_000

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_batches", check_integer(self.max_batches, 1, "max_batches"))

    def _choose(
        self, space: Space, selection: Selection, generator: torch.Generator
    ) -> tuple[Floats, Floats]:
        candidates = selection.open.nonzero()[:, 0].tolist()
        count = math.comb(len(candidates), selection.budget)
        if count > self.max_batches:
            raise InputError(f"there are {count} batches to try, at most {self.max_batches} are allowed")
        waiting = selection.pending.tolist()
        tried = (
            (*best_weights(space, torch.tensor([*waiting, *batch])), batch)
            for batch in combinations(candidates, selection.budget)
        )
        weights, rest, batch = min(tried, key=lambda trial: trial[1])
        for n in batch:
            selection.take(n)
        return weights, np.asarray([rest**0.5])
