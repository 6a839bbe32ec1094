"""A model's features as a space, in which K-Center, K-Medoids and LCMD measure distances."""

from __future__ import annotations

import torch
from torch import Tensor

from coresift.limits import BLOCK_NUMBERS, POOL_BLOCK, SPACE_WORKING_SET
from coresift.pool import Pool, as_pool, read
from coresift.posteriors.base import LastLayerPosterior, Posterior
from coresift.spaces.base import Problem, selectable
from coresift.spaces.vectors import Columns, VectorSpace, divide, excess_exponent, largest_entry, map_pool


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
        block = max(1, min(POOL_BLOCK, BLOCK_NUMBERS // max(1, pool.take([0]).numel())))
        columns = map_pool(pool, block, lambda block: columns_of(block.x), memory)
        mean, exponent = _subtract_mean(columns)
        anchors = None
        if labelled is not None:
            parts = [columns_of(block.x) for block in read(as_pool(labelled))]
            anchors = divide(torch.cat(parts, 1).to(columns.device), exponent) - mean
    space = FeatureSpace(columns, anchors)
    space.scale *= 2.0**exponent
    return space


def _subtract_mean(columns: Columns) -> tuple[Tensor, int]:
    """Divide columns by a power of two where they are out of range, then subtract their mean, in place."""
    # Divided first: differences of numbers at the limits of a float do not fit into it.
    exponent = excess_exponent(largest_entry(columns.part(part) for part in columns.parts()))
    total = torch.zeros(columns.shape[0], 1, dtype=torch.float64, device=columns.device)
    for part in columns.parts():
        table = divide(columns.part(part), exponent)
        # A few rows at a time, in the same place: in float64 all would need twice the memory again.
        height = max(1, SPACE_WORKING_SET // table.shape[1])
        fine = torch.empty(height, table.shape[1], dtype=torch.float64, device=table.device)
        for rows, sums in zip(torch.split(table, height), torch.split(total, height), strict=True):
            sums += fine[: len(rows)].copy_(rows).sum(1, keepdim=True)
    mean = (total / len(columns)).to(columns.dtype)
    for part in columns.parts():
        columns.part(part).sub_(mean)
    return mean, exponent


def model_features(posterior: Posterior | None, x: Tensor) -> Tensor:
    """Return (n, D) the last layer's input, or the flattened rows."""
    if isinstance(posterior, LastLayerPosterior):
        return posterior.features(x)
    return x.reshape(len(x), -1)
