"""coresift chooses which points of a large unlabelled pool to label next, as a batch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from coresift.errors import InputError

if TYPE_CHECKING:
    from coresift.pool import ArrayPool, ArrowPool, Pool, as_pool
    from coresift.selection import Resources, select
    from coresift.strategies import STRATEGIES, Strategy, find_strategy
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
    "Resources",
    "Strategy",
    "as_pool",
    "find_strategy",
    "select",
]

# The module of each name. Modules are imported on first use, so that commands without torch start at once.
_MODULES = {
    **dict.fromkeys(("ArrayPool", "ArrowPool", "Pool", "as_pool"), "pool"),
    **dict.fromkeys(("Resources", "select"), "selection"),
    **dict.fromkeys(("STRATEGIES", "Strategy", "find_strategy"), "strategies"),
    **dict.fromkeys(("Batch", "Chunk"), "types"),
}
_SUBMODULES = (
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
    if name in _SUBMODULES:
        return import_module(f"coresift.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'coresift' has no attribute {name!r}")
    return getattr(import_module(f"coresift.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
