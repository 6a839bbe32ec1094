"""Search: the two questions that selectors ask about a pool, answered on a CPU, on a GPU or by Ray.

Which vector points most along this one? And which point is farthest from the centres so far?
"""

from coresift.search import cpu as _cpu  # registers itself, as cuda and ray do when they are first needed
from coresift.search.base import CentreDistances, CosineSearch, Step, Tensors, centre_distances, cosine_search

__all__ = ["CentreDistances", "CosineSearch", "Step", "Tensors", "centre_distances", "cosine_search"]

del _cpu
