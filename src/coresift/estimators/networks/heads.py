"""Put a last layer on top of a feature extractor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn


def substate(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the entries whose name starts with ``prefix``, without it.

    >>> substate({"head.bias": 1, "extractor.bias": 2}, "head.")
    {'bias': 1}
    """
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


class Headed(nn.Module):
    """A feature extractor (n, ...) -> (n, D) with a head, to be trained together.

    If the extractor computes S of itself at once (see `MLP`), so does this.
    """

    def __init__(self, extractor: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.extractor, self.head = extractor, head

    @property
    def stacked(self) -> Callable[..., Tensor]:
        if not hasattr(self.extractor, "stacked"):
            raise AttributeError("this extractor cannot compute several of itself at once")
        return self._stacked

    def _stacked(
        self, state: dict[str, Tensor], x: Tensor, rows: Tensor | None, settle: bool = False
    ) -> Tensor:
        own, extractor = substate(state, "extractor."), cast(Any, self.extractor)
        return self.on_features(extractor.stacked(own, x, rows, settle), substate(state, "head."))

    @abstractmethod
    def on_features(self, features: Tensor, head: Mapping[str, Tensor]) -> Tensor:
        """Outputs from features (S, n, D) and the heads' parameters (S, ...)."""


class LinearHead(Headed):
    """A feature extractor with a linear layer on top."""

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.extractor(x))
        return outputs

    def on_features(self, features: Tensor, head: Mapping[str, Tensor]) -> Tensor:
        return torch.baddbmm(head["bias"].unsqueeze(1), features, head["weight"].mT)
