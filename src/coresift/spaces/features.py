"""A model's features as a space, in which K-Center, K-Medoids and LCMD measure distances."""

from __future__ import annotations

import torch
from torch import Tensor

from coresift.limits import POOL_BLOCK
from coresift.pool import Pool, as_pool, read
from coresift.posteriors.base import LastLayerPosterior, Posterior
from coresift.spaces.base import selectable
from coresift.spaces.problem import Problem
from coresift.spaces.scaling import divide, excess_exponent, largest_entry
from coresift.spaces.storage import Columns, map_pool
from coresift.spaces.vectors import VectorSpace


class FeatureSpace(VectorSpace):
    """Features (D, N) minus their mean over the pool: distances are the same, and the origin is the centre.

    Unlike a likelihood, a feature vector of norm zero is a point like any other.
    """

    additive = False


@selectable.register
def _(space: FeatureSpace) -> Tensor:
    return torch.ones(len(space), dtype=torch.bool, device=space.device)


def features(problem: Problem) -> FeatureSpace:
    """Build the feature space of a problem: of the features given, or else of the model's own."""
    problem.check_labelled_features()
    if problem.features is not None:
        return feature_space(None, problem.features, problem.labelled_features, problem.memory)
    return feature_space(problem.model, problem.pool, problem.labelled, problem.memory)


def feature_space(
    posterior: Posterior | None, pool: Pool, labelled: Tensor | None = None, memory: int | None = None
) -> FeatureSpace:
    """Map points to the posterior's features, or to the rows themselves where the model has none.

    ``memory`` is how many bytes the process may hold; features that do not fit go to a temporary file.

    >>> feature_space(None, as_pool(torch.tensor([[1.0], [3.0]]))).vectors
    tensor([[-1.,  1.]])
    """

    def columns_of(x: Tensor) -> Tensor:
        found = model_features(posterior, x)
        # A last layer may compute in float64, but a network in float32 has no more digits, and the kernels
        # on a GPU are for float32.
        return (found.float() if x.dtype == torch.float32 else found).mT

    with torch.no_grad():
        columns = map_pool(pool, POOL_BLOCK, lambda block: columns_of(block.x), memory)
        anchors = None
        if labelled is not None:
            parts = [columns_of(block.x) for block in read(as_pool(labelled))]
            anchors = torch.cat(parts, 1).to(columns.device)
    mean, exponent = _subtract_mean(columns)
    if anchors is not None:
        anchors = divide(anchors, exponent) - mean
    space = FeatureSpace(columns, anchors)
    space.scale *= 2.0**exponent
    return space


def _subtract_mean(columns: Columns) -> tuple[Tensor, int]:
    """Divide columns by a power of two where they are out of range, then subtract their mean, in place."""
    # Divided first: differences of numbers at the limits of a float do not fit into it.
    exponent = excess_exponent(largest_entry(columns.part(part) for part in columns.parts()))
    total = torch.zeros(columns.shape[0], 1, dtype=torch.float64, device=columns.device)
    for part in columns.parts():
        total += divide(columns.part(part), exponent).sum(1, keepdim=True, dtype=torch.float64)
    mean = (total / len(columns)).to(columns.dtype)
    for part in columns.parts():
        columns.part(part).sub_(mean)
    return mean, exponent


def model_features(posterior: Posterior | None, x: Tensor) -> Tensor:
    """Return (n, D) the last layer's input, or the flattened rows."""
    if isinstance(posterior, LastLayerPosterior):
        return posterior.features(x)
    return x.reshape(len(x), -1)
