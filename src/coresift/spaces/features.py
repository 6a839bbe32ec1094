"""A model's features as a space: what K-Center, K-Medoids and feature-based LCMD measure distances in."""

from __future__ import annotations

import torch
from torch import Tensor

from coresift.limits import POOL_BLOCK
from coresift.pool import Pool, as_pool, read
from coresift.posteriors.base import LastLayerPosterior, Posterior
from coresift.spaces.base import selectable
from coresift.spaces.scaling import divide, excess_exponent, largest_entry
from coresift.spaces.storage import map_pool
from coresift.spaces.vectors import VectorSpace


class FeatureSpace(VectorSpace):
    """Features (D, N) measured from the pool's mean: distances are the same, and the origin is the centre.

    Unlike a likelihood, a feature vector of norm zero is a point like any other.
    """

    additive = False


@selectable.register
def _(space: FeatureSpace) -> Tensor:
    return torch.ones(len(space), dtype=torch.bool, device=space.device)


def feature_space(
    posterior: Posterior | None, pool: Pool, labelled: Tensor | None = None, memory: int | None = None
) -> FeatureSpace:
    """The posterior's features of each point, or the rows themselves where the model has none.

    ``memory`` is how many bytes the process may hold; features that do not fit go to a temporary file.

    >>> feature_space(None, as_pool(torch.tensor([[1.0], [3.0]]))).vectors
    tensor([[-1.,  1.]])
    """

    def features(x: Tensor) -> Tensor:
        found = model_features(posterior, x)
        # A last layer may count in float64. What a network made in float32 gains nothing by that but weight,
        # and the kernels on a GPU are for float32.
        return (found.float() if x.dtype == torch.float32 else found).mT

    with torch.no_grad():
        columns = map_pool(pool, POOL_BLOCK, lambda block: features(block.x), memory)
        anchors = None
        if labelled is not None:
            anchors = torch.cat([features(block.x) for block in read(as_pool(labelled))], 1).to(
                columns.device
            )
    # Before the mean is subtracted: differences of numbers at the limits of a float do not fit into it.
    exponent = excess_exponent(largest_entry(columns.part(part) for part in columns.parts()))
    mean = torch.zeros(columns.shape[0], 1, dtype=torch.float64, device=columns.device)
    for part in columns.parts():
        mean += divide(columns.part(part), exponent).sum(1, keepdim=True, dtype=torch.float64)
    mean = (mean / len(columns)).to(columns.dtype)
    for part in columns.parts():
        columns.part(part).sub_(mean)
    if anchors is not None:
        anchors = divide(anchors, exponent) - mean
    space = FeatureSpace(columns, anchors)
    space.scale *= 2.0**exponent
    return space


def model_features(posterior: Posterior | None, x: Tensor) -> Tensor:
    """(n, D) the last layer's input, or the flattened rows."""
    if isinstance(posterior, LastLayerPosterior):
        return posterior.features(x)
    return x.reshape(len(x), -1)
