"""Define what a model must offer: a posterior over its parameters, seen through samples and predictions."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.distributions import Distribution


@runtime_checkable
class Posterior(Protocol):
    """Describes p(theta | D0) by three methods; `coresift.testing.check_posterior` checks that they agree."""

    def sample(self, num: int, generator: torch.Generator) -> Any:
        """Draw theta_1..theta_J once for the whole pool; fewer than ``num`` if no more exist."""

    def conditional(self, x: Tensor, theta: Any) -> Distribution:
        """p(y | x, theta_j) for rows ``x`` (n, ...): batch shape (J, n)."""

    def predictive(self, x: Tensor) -> Distribution:
        """p(y | x, D0): batch shape (n,)."""


@runtime_checkable
class FiniteSamples(Posterior, Protocol):
    """A posterior of which only K samples are known; its predictive is their mixture."""

    @property
    def num_samples(self) -> int:
        """K."""


@runtime_checkable
class LastLayerPosterior(Posterior, Protocol):
    """A posterior whose parameters act linearly on features, as gradients of a last layer need it.

    ``conditional(x, theta)`` equals ``likelihood(outputs(features(x), theta), theta)``.
    """

    def features(self, x: Tensor) -> Tensor:
        """Return (n, D) the last layer's input for ``x``."""

    def outputs(self, features: Tensor, theta: Any) -> Tensor:
        """Return (J, n, C) the last layer's linear outputs."""

    def likelihood(self, outputs: Tensor, theta: Any) -> Distribution:
        """p(y | outputs): batch shape (J, n)."""
