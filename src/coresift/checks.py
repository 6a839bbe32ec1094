"""Bad input, caught early: every message says what was seen and what to do about it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from coresift.errors import InputError, shown
from coresift.types import Index

# Bytes that the libraries take, with the blocks that are worked on.
LIBRARIES = 480_000_000


def check_finite(x: Tensor, start: int = 0, what: str = "pool") -> None:
    """Raise at the first NaN or infinity of ``x`` (n, ...), naming its row and column.

    >>> check_finite(torch.tensor([[1.0, 2.0], [3.0, float("nan")]]), start=10)
    Traceback (most recent call last):
    coresift.errors.InputError: the pool holds nan in row 11, column 1; drop or impute such rows first
    """
    # A sum is one pass without a mask: it is finite if every entry is, but for rare overflow.
    if not x.is_floating_point() or math.isfinite(float(x.sum())):
        return
    bad = (~torch.isfinite(x.reshape(len(x), -1))).nonzero()
    if len(bad):
        row, column = (int(i) for i in bad[0])
        value = float(x.reshape(len(x), -1)[row, column])
        within = np.unravel_index(column, x.shape[1:]) if x.ndim > 2 else ()
        place = f"at {tuple(map(int, within))}" if within else f"column {column}"
        raise InputError(
            f"the {what} holds {value} in row {start + row}, {place}; drop or impute such rows first"
        )


def check_dense(tensor: Tensor, what: str) -> None:
    """Raise unless ``tensor`` holds real numbers, one beside the other."""
    if tensor.is_complex() or tensor.is_meta or tensor.layout != torch.strided:
        kind = "meta" if tensor.is_meta else f"{tensor.dtype} and layout {tensor.layout}"
        raise InputError(f"{what} is a tensor of type {kind}, expected a dense tensor of real numbers")


def check_shape(tensor: Tensor, shape: tuple[int | None, ...], what: str) -> None:
    """Raise unless ``tensor`` has ``shape``; ``None`` stands for any length."""
    seen = tuple(tensor.shape)
    fits = len(seen) == len(shape) and all(w is None or s == w for s, w in zip(seen, shape, strict=False))
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise InputError(f"{what} has shape {seen}, expected ({wanted})")


def check_probabilities(probs: Tensor, start: int | None = None) -> None:
    """Raise unless the last axis of ``probs`` (n, ..., C) holds non-negative numbers that sum to one.

    ``start`` is the pool's row that they begin with, where that is known.
    """
    total = probs.sum(-1).reshape(len(probs), -1)
    # Loose enough for softmax outputs that once were half precision.
    wrong = ((total - 1).abs() > 1e-3).any(-1) | (probs < 0).reshape(len(probs), -1).any(-1)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        low, worst = float(probs[row].min()), float(total[row][(total[row] - 1).abs().argmax()])
        place = f"row {row} of a block" if start is None else f"row {start + row}"
        raise InputError(
            f"probabilities of {place} sum to {worst:.6g} (smallest {low:.3g}), expected numbers "
            "of at least zero that sum to 1; pass softmax outputs, not logits, with classes on the last axis"
        )


def check_covariance(matrix: Tensor, what: str = "covariance") -> Tensor:
    """Return the lower Cholesky factor of ``matrix`` (d, d), or raise if it is not a covariance."""
    check_shape(matrix, (len(matrix), len(matrix)), what)
    check_finite(matrix, what=what)
    gap = float((matrix - matrix.mT).abs().max())
    if gap > 1e-5 * float(matrix.abs().max()):
        raise InputError(f"the {what} is not symmetric: entries differ from their mirror by up to {gap:.3g}")
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info) != 0:
        smallest = float(torch.linalg.eigvalsh(matrix)[0])
        raise InputError(
            f"the {what} is not positive definite: its smallest eigenvalue is {smallest:.3g}; "
            "add a small multiple of the identity, or drop columns that are combinations of others"
        )
    return factor


def check_whole(value: object, least: int, name: str) -> int:
    """Return ``value`` as an int of Python; raise unless it is an integer, and large enough.

    >>> check_whole(2.5, 1, "refit_every")
    Traceback (most recent call last):
    coresift.errors.InputError: refit_every is 2.5, expected a whole number of at least 1
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} is {shown(value)}, expected a whole number of at least {least}")
    if value >= 2**63:
        raise InputError(f"{name} is {value}, expected a number of at most 64 bits")
    return int(value)


def check_switch(value: object, name: str) -> None:
    """Raise unless ``value`` is true or false: ``"no"`` would count as true."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name} is {shown(value)}, expected true or false")


def check_budget(budget: object, size: int) -> int:
    """Return ``budget`` as an int of Python; raise unless it is between 1 and the ``size`` of the pool.

    Integers of NumPy wrap around: ``np.uint64(3) - 5`` is a large number, not -2.
    """
    number = check_whole(budget, 1, "budget")
    if number > size:
        raise InputError(f"budget is {number}, but the pool holds {size} points")
    return number


def check_index(index: Iterable[int], size: int, what: str) -> Index:
    """Return ``index`` as a sorted array of distinct positions in a pool of ``size`` points."""
    if not isinstance(index, Iterable) or isinstance(index, str):
        raise InputError(f"{what} is {shown(index)}, expected a list of positions in the pool")
    if isinstance(index, Tensor):
        check_dense(index, what)
        index = index.cpu()
    try:
        array = np.asarray(index if isinstance(index, Tensor | np.ndarray) else list(index))
    except ValueError:  # lists of different lengths
        raise InputError(f"{what} is {shown(index)}, expected a list of whole numbers") from None
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        mask = "; of a mask, pass np.flatnonzero(mask)" if array.dtype.kind == "b" else ""
        raise InputError(
            f"{what} has shape {array.shape} and type {array.dtype}, expected a list of whole numbers{mask}"
        )
    wrong = array[(array < 0) | (array >= size)]
    if len(wrong):
        raise InputError(f"{what} names point {wrong[0]}, but the pool holds points 0 to {size - 1}")
    return np.unique(array).astype(np.int64)


def check_several(each: Distribution) -> None:
    """Raise where there is but one posterior sample, in ``each`` of batch shape (J, n)."""
    if each.batch_shape[0] < 2:
        names = "'margin' or 'maxent'" if isinstance(each, Categorical | Bernoulli) else "'variance'"
        raise InputError(
            "a single posterior sample cannot disagree with itself; pass at least two, or choose by what one "
            f"model says: {names}"
        )


def check_classes(num_classes: int) -> None:
    """Raise where a model knows but one class, and is as sure of each point as of any other."""
    if num_classes < 2:
        raise InputError("at least two classes are needed, the model predicts one")


def check_memory(memory: int | str | None, size: int) -> int | None:
    """A limit in bytes, for a pool of ``size`` points.

    >>> check_memory("2GB", 1000), check_memory("512 MB", 1000), check_memory(None, 1000)
    (2000000000, 512000000, None)
    """
    if memory is None:
        return None
    # A flag is no number of bytes.
    text = "" if isinstance(memory, bool) else str(memory).strip().upper()
    words = re.fullmatch(r"([\d.]+(?:E\+?\d+)?) ?([KMGT]?)(I?)B?", text, re.ASCII)
    try:
        power = " KMGT".index(words[2] or " ") if words else 0
        limit = int(float(words[1]) * (1024 if words[3] else 1000) ** power) if words else 0
    except (ValueError, OverflowError):  # such as "1.2.3GB" and "1e400"
        limit = 0
    if limit <= 0:
        raise InputError(f"memory is {shown(memory)}, expected such as '2GB', '500MB' or a number of bytes")
    least = LIBRARIES + 4 * size  # a few bytes for each point
    if limit < least:
        raise InputError(
            f"memory is {memory!r}, but for a pool of {size:,} points it takes {least / 1e9:.1f} GB"
        )
    return limit
