"""Check input early; every message says what was seen and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from coresift import limits
from coresift.errors import InputError, shown
from coresift.types import Index


def check_finite(x: Tensor, start: int = 0, what: str = "pool") -> None:
    """Raise at the first NaN or infinity of ``x`` (n, ...), naming its row and column.

    >>> check_finite(torch.tensor([[1.0, 2.0], [3.0, float("nan")]]), start=10)
    Traceback (most recent call last):
    coresift.errors.InputError: the pool holds nan in row 11, column 1; drop or impute such rows first
    """
    # One pass without a mask: the sum is finite if every entry is, except for rare overflow.
    if not x.is_floating_point() or math.isfinite(float(x.sum())):
        return
    bad = torch.isfinite(x).logical_not().nonzero()
    if len(bad):
        row, *within = bad[0].tolist()
        where = f"at {tuple(within)}" if len(within) > 1 else f"column {sum(within)}"
        value = float(x[tuple(bad[0])])
        raise InputError(
            f"the {what} holds {value} in row {start + row}, {where}; drop or impute such rows first"
        )


def check_dense(tensor: Tensor, what: str) -> None:
    """Raise unless ``tensor`` is dense and holds real numbers."""
    if tensor.is_complex() or tensor.is_meta or tensor.layout != torch.strided:
        kind = "meta" if tensor.is_meta else f"{tensor.dtype} and layout {tensor.layout}"
        raise InputError(f"{what} is a tensor of type {kind}, expected a dense tensor of real numbers")


def check_shape(tensor: Tensor, shape: tuple[int | None, ...], what: str) -> None:
    """Raise unless ``tensor`` has ``shape``; ``None`` stands for any length."""
    seen = tuple(tensor.shape)
    wanted = [size if length is None else length for size, length in zip(seen, shape, strict=False)]
    if len(seen) != len(shape) or seen != tuple(wanted):
        expected = ", ".join("any" if length is None else str(length) for length in shape)
        raise InputError(f"{what} has shape {seen}, expected ({expected})")


def check_probabilities(probs: Tensor, start: int | None = None) -> None:
    """Raise unless the last axis of ``probs`` (n, ..., C) holds non-negative numbers that sum to one."""
    total = probs.sum(-1).reshape(len(probs), -1)
    # Loose enough for softmax outputs that were once in half precision.
    wrong = ((total - 1).abs() > 1e-3).any(-1) | (probs < 0).reshape(len(probs), -1).any(-1)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        low, worst = float(probs[row].min()), float(total[row][(total[row] - 1).abs().argmax()])
        where = f"row {row} of a block" if start is None else f"row {start + row}"
        raise InputError(
            f"probabilities of {where} sum to {worst:.6g} (smallest {low:.3g}), expected numbers "
            "of at least zero that sum to 1; pass softmax outputs, not logits, with classes on the last axis"
        )


def check_covariance(matrix: Tensor, what: str = "covariance") -> Tensor:
    """Return the lower Cholesky factor of ``matrix`` (d, d), or raise where it is not a covariance."""
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


def check_integer(value: object, least: int, name: str) -> int:
    """Return ``value`` as a Python int, which cannot wrap around; raise unless it is at least ``least``.

    >>> check_integer(2.5, 1, "refit_every")
    Traceback (most recent call last):
    coresift.errors.InputError: refit_every is 2.5, expected an integer of at least 1
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} is {shown(value)}, expected an integer of at least {least}")
    if value >= 2**63:
        raise InputError(f"{name} is {value}, expected a number of at most 64 bits")
    return int(value)


def check_not_negative(value: object, name: str) -> float:
    """Return ``value`` as a float; raise unless it is a finite number of at least zero."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        raise InputError(f"{name} is {shown(value)}, expected a number of at least 0")
    return float(value)


def check_positive(value: object, name: str) -> None:
    """Raise unless ``value`` is a finite number above zero."""
    number = isinstance(value, Real | Tensor) and not isinstance(value, bool)
    if not number or not 0 < float(value) < math.inf:  # type: ignore[arg-type]
        raise InputError(f"{name} is {shown(value)}, expected a positive number")


def check_choice(value: object, known: Iterable[str], name: str) -> None:
    """Raise unless ``value`` is one of the ``known`` words.

    >>> check_choice("linear", ["cosine", "one-cycle"], "schedule")
    Traceback (most recent call last):
    coresift.errors.InputError: schedule is 'linear', expected 'cosine' or 'one-cycle'
    """
    if not isinstance(value, str) or value not in known:
        raise InputError(f"{name} is {shown(value)}, expected {' or '.join(map(repr, known))}")


def check_switch(value: object, name: str) -> None:
    """Raise unless ``value`` is true or false."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name} is {shown(value)}, expected true or false")


def check_budget(budget: object, size: int) -> int:
    """Return ``budget`` as a Python int; raise unless it is between 1 and the ``size`` of the pool."""
    number = check_integer(budget, 1, "budget")
    if number > size:
        raise InputError(f"budget is {number}, but the pool holds {size} points")
    return number


def check_index(index: Iterable[int], size: int, what: str) -> Index:
    """Return ``index`` as a sorted array of distinct indices into a pool of ``size`` points."""
    array = _as_index_array(index, what)
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        mask = "; of a mask, pass np.flatnonzero(mask)" if array.dtype.kind == "b" else ""
        raise InputError(
            f"{what} has shape {array.shape} and type {array.dtype}, expected a list of integers{mask}"
        )
    wrong = array[(array < 0) | (array >= size)]
    if len(wrong):
        raise InputError(f"{what} names point {wrong[0]}, but the pool holds points 0 to {size - 1}")
    return np.unique(array).astype(np.int64)


def _as_index_array(index: Iterable[int], what: str) -> npt.NDArray[Any]:
    if not isinstance(index, Iterable) or isinstance(index, str):
        raise InputError(f"{what} is {shown(index)}, expected a list of indices into the pool")
    if isinstance(index, Tensor):
        check_dense(index, what)
        return index.numpy(force=True)
    try:
        return np.asarray(index if isinstance(index, np.ndarray) else list(index))
    except ValueError:  # lists of different lengths
        raise InputError(f"{what} is {shown(index)}, expected a list of integers") from None


def check_samples(each: Distribution) -> None:
    """Raise where posterior samples, of batch shape (J, n), cannot disagree: one sample, or one class."""
    if each.batch_shape[0] < 2:
        names = "'margin' or 'maxent'" if isinstance(each, Categorical | Bernoulli) else "'variance'"
        raise InputError(
            "a single posterior sample cannot disagree with itself; pass at least two, or choose by what one "
            f"model says: {names}"
        )
    if isinstance(each, Categorical):
        check_classes(each.probs.shape[-1])


def check_classes(num_classes: int) -> None:
    """Raise where a model knows only one class, and is therefore equally sure of every point."""
    if num_classes < 2:
        raise InputError("at least two classes are needed, the model predicts one")


def check_room(size: int, bytes_per_point: int, memory: int, advice: str) -> None:
    """Raise where ``size`` points of so many bytes, with the libraries, need more than ``memory`` bytes."""
    needed = limits.LIBRARY_BYTES + bytes_per_point * size
    if needed > memory:
        raise InputError(
            f"this strategy needs {as_bytes(needed)} for {size:,} points, with the libraries, "
            f"and has {as_bytes(memory)} of the limit left; {advice}"
        )


def as_bytes(number: float) -> str:
    """Return a number of bytes as people read it.

    >>> as_bytes(4.2e9), as_bytes(1e5)
    ('4.2 GB', '0.1 MB')
    """
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"


def make_generator(seed: int | torch.Generator) -> torch.Generator:
    """Return a CPU generator for a seed; a generator is returned as it is, and advances with use."""
    if isinstance(seed, torch.Generator):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise InputError(f"seed is {shown(seed)}, expected an integer or a torch.Generator")
    if not -(2**63) <= int(seed) < 2**64:
        raise InputError(f"seed is {seed}, expected a number of at most 64 bits")
    return torch.Generator().manual_seed(int(seed))
