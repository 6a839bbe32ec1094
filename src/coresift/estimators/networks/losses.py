"""What plain networks minimise, and what their outputs mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn
from torch.distributions import Distribution

from coresift.estimators.networks.labelled import LabelledStack, Rows, take_rows
from coresift.posteriors.samples import gaussian

# The least variance of a standardised target: without it a network that fits its labels exactly would be
# infinitely certain of them.
LEAST_VARIANCE = 1e-4

# The meaning of a network's outputs (J, n, C): a Distribution of batch shape (J, n).
Likelihood: TypeAlias = Callable[[Tensor], Distribution]


@dataclass(frozen=True)
class MiniBatchLoss:
    """A loss on the outputs of the mini-batch alone."""

    whole, alone, recordable = False, True, True


class SquaredError(MiniBatchLoss):
    """Half the mean squared error of a mini-batch."""

    def __call__(self, outputs: Tensor, data: LabelledStack, index: Rows, weights: Tensor) -> Tensor:
        errors = take_rows(data.y, index) - outputs
        return 0.5 * (errors.square().sum(2) * weights).sum(1)


class GaussianLoss(MiniBatchLoss):
    """Minus the log density of a mini-batch under each network's means and variances, up to a constant."""

    def __call__(self, outputs: Tensor, data: LabelledStack, index: Rows, weights: Tensor) -> Tensor:
        mean, variance = _moments(outputs)
        errors = take_rows(data.y, index) - mean
        losses = 0.5 * (variance.log() + errors.square() / variance)
        return (losses.sum(2) * weights).sum(1)


class CrossEntropy(MiniBatchLoss):
    """Minus the log probability of a mini-batch's classes."""

    def __call__(self, outputs: Tensor, data: LabelledStack, index: Rows, weights: Tensor) -> Tensor:
        log_probs = outputs.log_softmax(2).gather(2, take_rows(data.y, index).unsqueeze(2))
        return -(log_probs.squeeze(2) * weights).sum(1)


@dataclass(frozen=True, eq=False)
class GaussianOutputs:
    """Read outputs (..., 2 O), means and variances of standardised targets, as Gaussians in the units of y.

    Attributes
    ----------
    mean, std : (O,) of the targets.
    """

    mean: Tensor
    std: Tensor

    def __call__(self, outputs: Tensor) -> Distribution:
        mean, variance = _moments(outputs.double())
        shift, scale = self.mean.to(mean), self.std.to(mean)
        return gaussian(mean * scale + shift, variance.sqrt() * scale)


def _moments(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances (..., O) from outputs (..., 2 O)."""
    mean, raw = outputs.chunk(2, -1)
    # Softplus and not exp: far from the labelled points the variance grows, but does not explode.
    return mean, nn.functional.softplus(raw) + LEAST_VARIANCE
