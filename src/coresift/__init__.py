"""coresift chooses which points of a large unlabelled pool to label next, as a batch."""

from coresift.pool import ArrayPool, ArrowPool, Pool, as_pool
from coresift.strategies import STRATEGIES, Strategy, select
from coresift.types import Batch, Chunk, InputError

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
