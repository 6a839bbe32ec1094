"""The values that travel through the library: chunks of a pool and chosen batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coresift.errors import InputError as InputError
from coresift.errors import shown

Index: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a pool.

    Attributes
    ----------
    start : position of the first row in the pool.
    x : (n, ...) the rows.
    """

    start: int
    x: Tensor

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, eq=False)
class Batch:
    """The points to label next, in the order in which they were chosen.

    Attributes
    ----------
    index : (b,) distinct positions in the pool.
    weights : (b,) how much of the pool each point stands for: the best weights w >= 0 in L(w) = sum w_n L_n,
        or those of the published algorithm with ``fill=False``. ``None`` where the selector saw scores or
        features, which do not add up to anything.
    pending_weights : likewise for pending points, in ascending order of their positions.
    residuals : (steps,) what the selector still had to explain after each step: the distance
        ``||L - L(w)||`` for Frank-Wolfe and its kin, until it stops falling; the covering radius for
        K-Center. ``None`` where LCMD and K-Center made their steps on a GPU, many at a time.
    information : share of the pool's information that the batch and the pending points carry:
        ``1 - ||L - L(w)||^2 / ||L||^2`` with the best weights w >= 0 on them; 0 where the pool's vectors sum
        to zero, and there is nothing to carry.
    """

    index: Index
    weights: Floats | None = None
    pending_weights: Floats | None = None
    residuals: Floats | None = None
    information: float | None = None

    def __len__(self) -> int:
        return len(self.index)


def make_generator(seed: int | torch.Generator) -> torch.Generator:
    """Turn a seed into a CPU generator; a generator is passed through and advances with use."""
    if isinstance(seed, torch.Generator):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise InputError(f"seed is {shown(seed)}, expected a whole number or a torch.Generator")
    if not -(2**63) <= int(seed) < 2**64:
        raise InputError(f"seed is {seed}, expected a number of at most 64 bits")
    return torch.Generator().manual_seed(int(seed))
