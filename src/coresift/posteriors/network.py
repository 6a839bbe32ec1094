"""A network with a Bayesian last layer: the network makes features, the layer's posterior does the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from coresift.errors import InputError
from coresift.limits import NETWORK_NUMBERS, NETWORK_ROWS
from coresift.pool import ArrayPool, Pool, as_pool, keep_rows, read
from coresift.posteriors.base import LastLayerPosterior, Posterior
from coresift.posteriors.samples import mixture
from coresift.threads import enough_threads


@dataclass(frozen=True, eq=False)
class NetworkPosterior:
    """p(y | x, theta) of a last layer with parameters theta, on the features of a fixed network.

    The ``network`` maps rows (n, ...) to features (n, D), and the ``head`` is the last layer's posterior.
    """

    network: nn.Module
    head: Posterior

    def to(self, device: torch.device | str) -> NetworkPosterior:
        """Return the posterior on another device; the network moves there, as modules do."""
        head: Any = self.head
        return NetworkPosterior(self.network.to(device), head.to(device))

    def sample(self, num: int, generator: torch.Generator) -> Any:
        return self.head.sample(num, generator)

    def features(self, x: Tensor) -> Tensor:
        return outputs_of(self.network, x)

    def outputs(self, features: Tensor, theta: Any) -> Tensor:
        return self._last_layer.outputs(self._last_layer.features(features), theta)

    def likelihood(self, outputs: Tensor, theta: Any) -> Distribution:
        return self._last_layer.likelihood(outputs, theta)

    def conditional(self, x: Tensor, theta: Any) -> Distribution:
        return self.head.conditional(self.features(x), theta)

    def predictive(self, x: Tensor) -> Distribution:
        return self.head.predictive(self.features(x))

    def map_pool(self, pool: Pool, memory: int | None = None) -> ArrayPool:
        """Run the pool through the network once, and keep the features as `keep_rows` does."""
        size = rows_per_pass(next(pool.chunks()).x.shape[1:])
        return keep_rows((self.features(block.x) for block in read(pool, size)), len(pool), memory)

    @property
    def _last_layer(self) -> LastLayerPosterior:
        if not isinstance(self.head, LastLayerPosterior):
            raise InputError(
                "several networks share no last layer to take gradients of; fit with num_members=1, "
                "or choose a strategy that needs no gradients, such as 'acs-fw'"
            )
        return self.head


class SideBySide(nn.ModuleList):
    """Joins several networks: rows (n, ...) -> the features of all, concatenated, (n, K D).

    >>> SideBySide([nn.Identity(), nn.Flatten()])(torch.ones(4, 3)).shape
    torch.Size([4, 6])
    """

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([network(x) for network in self], -1)


@dataclass(frozen=True, eq=False)
class MixedHeads:
    """Mixes last layers for regression on networks `SideBySide`, in equal parts.

    Head k reads columns k D to (k + 1) D of the features (n, K D). The predictive is the Gaussian with the
    mixture's mean and variance; see `GaussianSamples`.

    >>> from coresift.posteriors.linear import LinearPosterior
    >>> heads = tuple(LinearPosterior(torch.tensor([weight]), torch.eye(1), 1.0) for weight in (0.0, 2.0))
    >>> MixedHeads(heads).predictive(torch.ones(1, 2)).variance.round(decimals=3)
    tensor([3.])
    """

    heads: tuple[Posterior, ...]

    def to(self, device: torch.device | str) -> MixedHeads:
        heads: Any = self.heads
        return MixedHeads(tuple(head.to(device) for head in heads))

    def sample(self, num: int, generator: torch.Generator) -> list[Any]:
        """Draw from each head, ``num`` samples in all, as evenly as possible."""
        each, rest = divmod(num, len(self.heads))
        return [head.sample(each + (k < rest), generator) for k, head in enumerate(self.heads)]

    def features(self, x: Tensor) -> Tensor:
        return x

    def conditional(self, x: Tensor, theta: list[Any]) -> Distribution:
        """Return batch shape (J, n), the samples of the first head first."""
        parts = zip(self.heads, x.tensor_split(len(self.heads), -1), theta, strict=True)
        return _joined([head.conditional(part, samples) for head, part, samples in parts], torch.cat)

    def predictive(self, x: Tensor) -> Distribution:
        parts = zip(self.heads, x.tensor_split(len(self.heads), -1), strict=True)
        return mixture(_joined([head.predictive(part) for head, part in parts], torch.stack))


def _joined(each: list[Distribution], join: Callable[[list[Tensor]], Tensor]) -> Distribution:
    """Join Gaussians into one distribution."""
    means, stds = join([part.mean for part in each]), join([part.stddev for part in each])
    normal = Normal(means, stds, validate_args=False)
    return Independent(normal, 1, validate_args=False) if each[0].event_shape else normal


def split_last_layer(
    posterior: Any, pool: Pool, labelled: Tensor | None, memory: int | None = None
) -> tuple[Any, Pool, Tensor | None]:
    """Split off a network's last layer: the same problem on the network's features, with closed forms."""
    if not isinstance(posterior, NetworkPosterior):
        return posterior, pool, labelled
    return posterior.head, posterior.map_pool(pool, memory), last_layer_input(posterior, labelled)


def last_layer_input(posterior: Any, rows: Tensor | None) -> Tensor | None:
    """Return a network's features of some rows; of another posterior, or without rows, what was passed."""
    if rows is None or not isinstance(posterior, NetworkPosterior) or len(rows) == 0:
        return rows
    return torch.as_tensor(posterior.map_pool(as_pool(rows)).rows)


def input_tensor(network: nn.Module) -> Tensor:
    """Return a tensor of the device and precision that a network expects of its rows: its first.

    A `Standardise` in front needs more precision than the layers.
    """
    tensors: Iterable[Tensor] = network.state_dict().values()
    return next(value for value in tensors if value.is_floating_point())


@torch.no_grad()
def outputs_of(network: nn.Module, x: Tensor) -> Tensor:
    """Return (n, ...) the outputs of a network in evaluation mode, computed for a few rows at a time."""
    where = input_tensor(network)
    parts = torch.split(x, rows_per_pass(x.shape[1:]))
    with enough_threads(len(parts[0]) * sum(weights.numel() for weights in network.parameters())):
        return torch.cat([network(part.to(where.device, where.dtype)) for part in parts])


def rows_per_pass(shape: Sequence[int]) -> int:
    """Return how many rows of this shape a network is given at a time.

    >>> rows_per_pass((30,)), rows_per_pass((3, 224, 224))
    (1024, 27)
    """
    return max(1, min(NETWORK_ROWS, NETWORK_NUMBERS // max(1, math.prod(shape))))
