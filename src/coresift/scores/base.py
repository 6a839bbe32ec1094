"""A score says what each pool point is worth on its own; higher scores should be labelled sooner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coresift import limits
from coresift.checks import check_finite, check_shape
from coresift.pool import Pool, read
from coresift.types import Index


@dataclass(frozen=True, eq=False)
class Score:
    """One number for each point.

    Attributes
    ----------
    values : (N,) the higher, the better.
    pool : the points, whose equal rows are duplicates.
    """

    values: Tensor
    pool: Pool | None = None

    def __post_init__(self) -> None:
        check_shape(self.values, (None,), "a score")
        check_finite(self.values, what="score")

    def __len__(self) -> int:
        return len(self.values)

    def identity(self, index: Index) -> list[bytes]:
        """Return bytes for each point that are equal for duplicates."""
        if self.pool is None:
            return [int(n).to_bytes(8, "little") for n in index]
        # Adding zero turns -0.0 into 0.0, so that equal numbers have equal bytes.
        return [row.tobytes() for row in (self.pool.take(index) + 0.0).cpu().numpy()]


def score_pool(function: Callable[[Tensor], Tensor], pool: Pool, block: int = limits.POOL_BLOCK) -> Score:
    """Score a pool with a function from rows (n, ...) to numbers (n,), ``block`` rows at a time.

    Blocks of large rows, such as the predictions of many samples for many classes, have fewer rows.
    """
    width = next(pool.chunks()).x[0].numel()
    block = max(min(block, limits.BLOCK_NUMBERS // max(width, 1)), 1)
    with torch.no_grad():
        values = [function(chunk.x).double().cpu() for chunk in read(pool, block)]
    return Score(torch.cat(values), pool)
