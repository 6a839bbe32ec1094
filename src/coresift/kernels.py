"""Kernels for the GPU, written as Python functions; Triton is imported when the first of them is needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


def compiled(names: dict[str, Any], *functions: Callable[..., None], any_value: Sequence[str] = ()) -> Any:
    """The functions as kernels, by their names without the underscore; ``None`` where there is no Triton.

    Parameters
    ----------
    names : the globals of the functions' module. What kernels look up there, ``tl`` for triton.language and
        its ``constexpr``, is put there.
    any_value : whole numbers among the arguments whose values vary; for others, those that are one or
        divisible by 16 have kernels of their own.
    """
    try:
        triton = importlib.import_module("triton")
    except ImportError:
        return None
    language = importlib.import_module("triton.language")
    names.update(tl=language, constexpr=language.constexpr)
    made = {}
    for function in functions:
        varying = [name for name in any_value if name in function.__code__.co_varnames]
        made[function.__name__[1:]] = triton.jit(function, do_not_specialize=varying)
    return SimpleNamespace(**made)
