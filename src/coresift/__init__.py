"""coresift chooses which points of a large unlabelled pool to label next, as a batch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from coresift.errors import InputError

if TYPE_CHECKING:
    from coresift.pool import ArrayPool, ArrowPool, Pool, as_pool
    from coresift.strategies import STRATEGIES, Strategy, select
    from coresift.types import Batch, Chunk

__version__ = "0.1.0"

__all__ = [
    "STRATEGIES",
    "ArrayPool",
    "ArrowPool",
    "Batch",
    "Chunk",
    "InputError",
    "Pool",
    "Strategy",
    "as_pool",
    "select",
]

# Where names are; imported when they are asked for, so that commands that need no torch start at once.
_PLACES = {
    **dict.fromkeys(("ArrayPool", "ArrowPool", "Pool", "as_pool"), "pool"),
    **dict.fromkeys(("STRATEGIES", "Strategy", "select"), "strategies"),
    **dict.fromkeys(("Batch", "Chunk"), "types"),
}
_PARTS = (
    "estimators",
    "loop",
    "pool",
    "posteriors",
    "scores",
    "selectors",
    "spaces",
    "strategies",
    "types",
)


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"coresift.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module 'coresift' has no attribute {name!r}")
    return getattr(import_module(f"coresift.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})
