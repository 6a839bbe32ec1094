"""A network with a Bayesian last layer: features by the network, everything else by the layer's posterior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from coresift.models.base import LastLayerPosterior
from coresift.pool import ArrayPool, Pool, as_pool, read


@dataclass(frozen=True, eq=False)
class NetworkPosterior:
    """p(y | x, theta) of a last layer with parameters theta, on the features of a fixed network.

    Attributes
    ----------
    network : rows (n, ...) -> features (n, D), in evaluation mode.
    head : the posterior of the last layer, on features.
    """

    network: nn.Module
    head: LastLayerPosterior

    def sample(self, num: int, generator: torch.Generator) -> Any:
        return self.head.sample(num, generator)

    def features(self, x: Tensor) -> Tensor:
        # The precision of the network's first tensor: a `Standardise` in front wants more than the layers.
        where = next(value for value in self.network.state_dict().values() if value.is_floating_point())
        with torch.no_grad():
            # A wide network on many images at once would need more memory than the images themselves.
            rows = (x[start : start + 1024] for start in range(0, len(x), 1024))
            parts = [self.network(part.to(where.device, where.dtype)) for part in rows]
        return torch.cat(parts)

    def outputs(self, features: Tensor, theta: Any) -> Tensor:
        return self.head.outputs(self.head.features(features), theta)

    def likelihood(self, outputs: Tensor, theta: Any) -> Distribution:
        return self.head.likelihood(outputs, theta)

    def conditional(self, x: Tensor, theta: Any) -> Distribution:
        return self.head.conditional(self.features(x), theta)

    def predictive(self, x: Tensor) -> Distribution:
        return self.head.predictive(self.features(x))

    def map_pool(self, pool: Pool) -> ArrayPool:
        """The pool as the last layer sees it: run through the network once, kept in memory."""
        return ArrayPool(self._map(pool))

    def _map(self, pool: Pool) -> Tensor:
        return torch.cat([self.features(block.x) for block in read(pool, 1024)])


def at_the_last_layer(posterior: Any, pool: Pool, labelled: Tensor | None) -> tuple[Any, Pool, Tensor | None]:
    """A network's last layer on the network's features: the same problem, with its closed forms."""
    if not isinstance(posterior, NetworkPosterior):
        return posterior, pool, labelled
    known = None if labelled is None else posterior._map(as_pool(labelled))
    return posterior.head, posterior.map_pool(pool), known
