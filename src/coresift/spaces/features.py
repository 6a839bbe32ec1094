"""A model's features as a space: what K-Center, K-Medoids and feature-based LCMD measure distances in."""

from __future__ import annotations

import torch
from torch import Tensor

from coresift.models.base import LastLayerPosterior, Posterior
from coresift.pool import Pool, as_pool, read
from coresift.spaces.vectors import VectorSpace


class FeatureSpace(VectorSpace):
    """Features (D, N) measured from the pool's mean: distances are the same, and the origin is the centre.

    Unlike a likelihood, a feature vector of norm zero is a point like any other.
    """

    additive = False

    @property
    def selectable(self) -> Tensor:
        return torch.ones(len(self), dtype=torch.bool)


def feature_space(posterior: Posterior | None, pool: Pool, labelled: Tensor | None = None) -> FeatureSpace:
    """The posterior's features of each point, or the rows themselves where the model has none.

    >>> feature_space(None, as_pool(torch.tensor([[1.0], [3.0]]))).vectors
    tensor([[-1.,  1.]])
    """

    def features(x: Tensor) -> Tensor:
        found = model_features(posterior, x)
        # A last layer may count in float64. What a network made in float32 gains nothing by that but weight,
        # and the kernels on a GPU are for float32.
        return found.float() if x.dtype == torch.float32 else found

    def map_rows(source: Pool) -> Tensor:
        with torch.no_grad():
            return torch.cat([features(block.x) for block in read(source)]).mT.contiguous()

    vectors = map_rows(pool)
    mean = vectors.double().mean(1, keepdim=True).to(vectors)
    anchors = None if labelled is None else map_rows(as_pool(labelled)).to(mean.device) - mean
    return FeatureSpace(vectors - mean, anchors)


def model_features(posterior: Posterior | None, x: Tensor) -> Tensor:
    """(n, D) the last layer's input, or the flattened rows."""
    if isinstance(posterior, LastLayerPosterior):
        return posterior.features(x)
    return x.reshape(len(x), -1)
