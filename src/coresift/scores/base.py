"""A score says what each pool point is worth on its own; the higher, the sooner it should be labelled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coresift.checks import check_finite, check_shape
from coresift.pool import Pool, read
from coresift.types import Index

# Numbers of a block of rows, at most.
_AT_A_TIME = 2**22


@dataclass(frozen=True, eq=False)
class Score:
    """One number a point.

    Attributes
    ----------
    values : (N,) the higher, the better.
    pool : the points behind the numbers, asked only to tell duplicates apart.
    """

    values: Tensor
    pool: Pool | None = None

    def __post_init__(self) -> None:
        check_shape(self.values, (None,), "a score")
        check_finite(self.values, what="score")

    def __len__(self) -> int:
        return len(self.values)

    def identity(self, index: Index) -> list[bytes]:
        """For each point, bytes that are equal for duplicates."""
        if self.pool is None:
            return [int(n).to_bytes(8, "little") for n in index]
        # Adding zero turns -0.0 into 0.0: the same number should have the same bytes.
        return [row.tobytes() for row in (self.pool.take(index) + 0.0).cpu().numpy()]


def score_pool(function: Callable[[Tensor], Tensor], pool: Pool, block: int = 8192) -> Score:
    """Score a pool block by block with a function from rows (n, ...) to numbers (n,).

    There are fewer than ``block`` rows in one where they are large, as what many samples say of many classes.
    """
    width = next(pool.chunks()).x[0].numel()
    block = max(min(block, _AT_A_TIME // max(width, 1)), 1)
    with torch.no_grad():
        values = [function(part.x).double().cpu() for part in read(pool, block)]
    return Score(torch.cat(values), pool)
