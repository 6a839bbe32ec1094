"""Kernels of the GPU: compiled by Triton from Python functions, where it is to be had; recorded as graphs."""

from __future__ import annotations

import gc
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

_ONE_AT_A_TIME = threading.Lock()


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
        varying = [
            name
            for name in any_value
            if name in function.__code__.co_varnames[: function.__code__.co_argcount]
        ]
        made[function.__name__[1:]] = triton.jit(function, do_not_specialize=varying)
    return SimpleNamespace(**made)


def recorded(function: Callable[[], None], *, others_go_on: bool = False) -> torch.cuda.CUDAGraph:
    """A CUDA graph of all that the function launches.

    Parameters
    ----------
    others_go_on : whether other threads may use the GPU meanwhile.
    """
    graph = torch.cuda.CUDAGraph()
    mode = "thread_local" if others_go_on else "global"
    with nothing_collected(), torch.cuda.graph(graph, capture_error_mode=mode):
        function()
    return graph


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Let Python free no cycles meanwhile: an older graph among them would break one being recorded."""
    with _ONE_AT_A_TIME:
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()


def power_of_two(least: int) -> int:
    """The smallest one that is no less: blocks of kernels have such sizes."""
    return 1 << (least - 1).bit_length()
