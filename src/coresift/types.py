"""Define the values that pass through the library: chunks of a pool and chosen batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

Index: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows ``x`` (n, ...) of a pool, the first of which has the index ``start``."""

    start: int
    x: Tensor

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, eq=False)
class Batch:
    """The points to label next, in the order in which they were chosen.

    Attributes
    ----------
    index : (b,) distinct indices into the pool.
    weights : (b,) how much of the pool each point represents: the best weights w >= 0 in L(w) = sum w_n L_n,
        or those of the published algorithm with ``fill=False``. ``None`` where the selector used scores or
        features, whose sum has no meaning.
    pending_weights : the same for pending points, in ascending order of their indices.
    residuals : (steps,) what remained to be explained after each step: the distance ``||L - L(w)||`` for
        Frank-Wolfe and GIGA, until it stops falling; the covering radius for K-Center. ``None`` where LCMD
        and K-Center made many steps at a time on a GPU.
    information : fraction of the pool's information that the batch and the pending points carry:
        ``1 - ||L - L(w)||^2 / ||L||^2`` with the best weights w >= 0 on them; 0 where the pool's vectors sum
        to zero.
    """

    index: Index
    weights: Floats | None = None
    pending_weights: Floats | None = None
    residuals: Floats | None = None
    information: float | None = None

    def __len__(self) -> int:
        return len(self.index)
