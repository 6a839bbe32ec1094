"""Search: the three questions that selectors ask about a pool, answered on a CPU, on a GPU or by Ray.

Which vector points most along this one? Which point is farthest from the centres so far? And whose label
would tell most about the targets?
"""

from coresift.search import cpu as _cpu  # registers itself, as cuda and ray do when they are first needed
from coresift.search.base import (
    CentreDistances,
    CosineSearch,
    LabelGains,
    Step,
    Tensors,
    centre_distances,
    cosine_search,
    label_gains,
)

__all__ = [
    "CentreDistances",
    "CosineSearch",
    "LabelGains",
    "Step",
    "Tensors",
    "centre_distances",
    "cosine_search",
    "label_gains",
]

del _cpu
