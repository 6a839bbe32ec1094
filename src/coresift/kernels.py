"""Kernels for the GPU, written as Python functions; Triton is imported when the first of them is needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def compiled(names: dict[str, Any], *functions: Callable[..., None]) -> Any:
    """The functions as kernels, by their names without the underscore; ``None`` where there is no Triton.

    Parameters
    ----------
    names : the globals of the functions' module. What kernels look up there, ``tl`` for triton.language and
        its ``constexpr``, is put there.
    """
    try:
        triton = importlib.import_module("triton")
    except ImportError:
        return None
    language = importlib.import_module("triton.language")
    names.update(tl=language, constexpr=language.constexpr)
    return SimpleNamespace(**{function.__name__[1:]: triton.jit(function) for function in functions})
