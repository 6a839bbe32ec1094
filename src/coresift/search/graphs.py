"""Record what is launched on a GPU as CUDA graphs."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_ONE_AT_A_TIME = threading.Lock()


def recorded(function: Callable[[], None], *, others_go_on: bool = False) -> torch.cuda.CUDAGraph:
    """Record all that a function launches.

    Parameters
    ----------
    others_go_on : whether other threads may use the GPU at the same time.
    """
    graph = torch.cuda.CUDAGraph()
    mode = "thread_local" if others_go_on else "global"
    with nothing_collected(), torch.cuda.graph(graph, capture_error_mode=mode):
        function()
    return graph


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Keep Python from freeing cycles: an older graph among them would break the one being recorded."""
    with _ONE_AT_A_TIME:
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()
