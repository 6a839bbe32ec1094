"""Draw the weights of new networks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from coresift.estimators.networks.mlp import MLP
from coresift.estimators.networks.stack import is_frozen
from coresift.types import InputError

# What makes an extractor: ``None`` for an `MLP`, a module, or a function from columns or channels to one.
Network: TypeAlias = "nn.Module | Callable[[int], nn.Module] | None"


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Seed torch's global generator, from which layers draw, by a draw from ``generator``."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield


def new_network(network: Network, inputs: int, generator: torch.Generator) -> nn.Module:
    """Return a feature extractor whose weights are drawn from ``generator``; ``network`` stays as it is."""
    with seeded(generator):
        if network is None:
            return MLP(inputs)
        if isinstance(network, nn.Module):
            return _redrawn(copy.deepcopy(network))
        return copy.deepcopy(network(inputs))  # a function may return the same module each time


def _redrawn(network: nn.Module) -> nn.Module:
    """Draw all weights again, but for frozen layers, which keep what they have learned."""
    for name, layer in network.named_modules():
        if is_frozen(layer):
            continue
        reset: Any = getattr(layer, "reset_parameters", None)
        if reset is not None:
            reset()
        elif list(layer.parameters(recurse=False)):
            raise InputError(
                f"layer {name!r} of the network, a {type(layer).__name__}, has no "
                "reset_parameters to draw its weights anew; pass a function that makes the network instead"
            )
    return network


def count_features(extractor: nn.Module, x: Tensor) -> int:
    """Return how many features a network makes of rows like ``x`` (n, ...)."""
    with torch.no_grad():
        features = extractor.to(x.device).eval()(x[:1]).cpu()
        extractor.cpu()
    if features.ndim != 2:
        raise InputError(
            f"the network turns one row into shape {tuple(features.shape)}, expected (1, features); "
            "end it with pooling or nn.Flatten()"
        )
    return int(features.shape[1])
