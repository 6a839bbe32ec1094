"""Exact rescaling: vectors at the limits of a float are divided by a power of two, which rounds nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor

# Vectors whose largest norm is between 2**-48 and 2**48 stay as they are: float32 holds what is computed from
# them.
MODERATE = 48


def largest_entry(tables: Iterable[Tensor]) -> float:
    """The largest absolute value in some tables; zero if there are none."""
    return max((float(max(table.max(), -table.min())) for table in tables), default=0.0)


def excess_exponent(entry: float) -> int:
    """The power of two by which to divide vectors of this largest entry; zero if they are of moderate size.

    >>> excess_exponent(1.0), excess_exponent(2.0**100)
    (0, 53)
    """
    exponent = math.frexp(entry)[1]
    return exponent - min(max(exponent, -MODERATE), MODERATE)


def divide(table: Tensor, exponent: int) -> Tensor:
    """Divide a table by ``2**exponent`` in place, in two steps: the power may be too large for a float.

    >>> import torch
    >>> divide(torch.full((1,), 2.0**100), 130)
    tensor([9.3132e-10])
    """
    return table.mul_(2.0 ** -(exponent // 2)).mul_(2.0 ** -(exponent - exponent // 2))
