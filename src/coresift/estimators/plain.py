"""What deep ensembles, dropout and Laplace share: networks with a linear layer on top, trained plainly."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from coresift.estimators.base import NetworkClassifier, NetworkEstimator, NetworkRegressor, seeded
from coresift.estimators.networks import LabelledStack, Objective, Stack
from coresift.estimators.networks.images import Prepared
from coresift.estimators.networks.layers import Standardise
from coresift.estimators.networks.trainer import Rows, take_rows
from coresift.posteriors.samples import categorical, gaussian

# The least variance of a standardised target: without it a network that meets its labels exactly would be
# infinitely certain of them.
LEAST_VARIANCE = 1e-4

# What a network's outputs (J, n, C) mean: a Distribution of batch shape (J, n).
Likelihood: TypeAlias = Callable[[Tensor], Distribution]


class PlainNetworks(NetworkEstimator):
    """An estimator of K networks with a linear head; S of them are trained as one stack of S K networks.

    A subclass says what the trained networks make a posterior of. Inputs are standardised inside.
    """

    @property
    def _num_networks(self) -> int:
        """K"""
        return 1

    @staticmethod
    @abstractmethod
    def _prepared(
        members: Sequence[Any], targets: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Sequence[Likelihood]]:
        """Targets to train on, and what outputs then mean, for each of the estimators."""

    @abstractmethod
    def _num_outputs(self) -> int:
        """How many outputs a network has."""

    @property
    @abstractmethod
    def _objective(self) -> Objective:
        """What is minimised."""

    @abstractmethod
    def _networks(self) -> Sequence[nn.Module]:
        """The networks that ``posterior_`` holds."""

    @abstractmethod
    def _learn_posterior(
        self, networks: Sequence[nn.Module], likelihood: Likelihood, x: Tensor, y: Tensor
    ) -> None:
        """Set ``posterior_`` after training.

        Parameters
        ----------
        networks : K, from rows (n, ...) to outputs (n, C), in evaluation mode.
        x, y : the labelled rows, and the targets trained on.
        """

    @staticmethod
    def _fit_together(members: Sequence[PlainNetworks], sets: Sequence[tuple[Tensor, Tensor]]) -> None:
        first = members[0]
        scales = [Standardise.of(x) for x, _ in sets]
        rows = [first._before_training(x, scale) for scale, (x, _) in zip(scales, sets, strict=True)]
        targets, likelihoods = first._prepared(members, [y for _, y in sets])
        generators = [one._generators() for one in members]
        networks = [
            one._fresh_plain(x, scale, generator)
            for one, x, scale, own in zip(members, rows, scales, generators, strict=True)
            for generator in own
        ]
        stack = Stack(networks, first.device)
        data = _repeated(list(zip(rows, targets, strict=True)), first._num_networks, first.device)
        first._trainer().train(stack, first._objective, data, [one for own in generators for one in own])
        trained = (stack.member(position) for position in range(len(stack)))
        for one, scale, likelihood, (x, _), y in zip(
            members, scales, likelihoods, sets, targets, strict=True
        ):
            own_networks = [_whole(scale, next(trained), one.device) for _ in range(one._num_networks)]
            one._learn_posterior(own_networks, likelihood, x, y)
            one._warn_of_dead_units([_without_head(network) for network in own_networks], x)

    def _generators(self) -> list[torch.Generator]:
        """One for each network; the first of many are those of fewer."""
        seeds = torch.randint(2**62, (self._num_networks,), generator=self._generator())
        return [torch.Generator().manual_seed(int(seed)) for seed in seeds]

    def _fresh_plain(self, x: Tensor, scale: Standardise, generator: torch.Generator) -> nn.Module:
        """A network for rows like ``x`` (n, ...), with weights drawn from ``generator``."""
        extractor = self._fresh_extractor(x, scale, generator)
        features = self._num_features(extractor, x)
        with seeded(generator):
            return _with_head(extractor, nn.Linear(features, self._num_outputs()))

    def _fitted_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        states = [network.state_dict() for network in self._networks()]
        return {f"members.{name}": torch.stack([state[name] for state in states]) for name in states[0]}, {}

    def _restored_networks(self, tensors: dict[str, Tensor]) -> list[nn.Module]:
        prefix = "members."
        stacked = {
            name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
        }
        networks = []
        for k in range(self._num_networks):
            state = {name: value[k] for name, value in stacked.items()}
            extractor = self._fresh_network(self.n_features_in_, torch.Generator())
            outputs, width = state["1.head.weight"].shape
            scale = Standardise(state["0.mean"], state["0.deviation"])
            network = _whole(scale, _with_head(extractor, nn.Linear(width, outputs)), self.device)
            network.load_state_dict(state)
            networks.append(network)
        return networks

    @abstractmethod
    def _restored_likelihood(self, tensors: dict[str, Tensor]) -> Likelihood:
        """What outputs mean, from what was saved."""


class KnownByNetworks(PlainNetworks):
    """Plain networks whose posterior follows from them alone, without the labelled points."""

    @abstractmethod
    def _set_posterior(self, networks: Sequence[nn.Module], likelihood: Likelihood) -> None:
        """Set ``posterior_`` from networks rows (n, ...) -> outputs (n, C), in evaluation mode."""

    def _learn_posterior(
        self, networks: Sequence[nn.Module], likelihood: Likelihood, x: Tensor, y: Tensor
    ) -> None:
        self._set_posterior(networks, likelihood)

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self._set_posterior(self._restored_networks(tensors), self._restored_likelihood(tensors))


class PlainRegressor(NetworkRegressor, PlainNetworks):
    """Networks that predict means and variances of standardised targets."""

    @staticmethod
    def _prepared(
        members: Sequence[Any], targets: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Sequence[Likelihood]]:
        scales = [Standardise.of(y) for y in targets]
        scaled = [scale(y) for scale, y in zip(scales, targets, strict=True)]
        return scaled, [GaussianOutputs(scale.mean, scale.deviation) for scale in scales]

    def _num_outputs(self) -> int:
        return 2 * int(np.prod(self._target_shape))

    @property
    def _objective(self) -> Objective:
        return GaussianLoss()

    def _fitted_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, facts = super()._fitted_state()
        outputs = self.posterior_.likelihood
        assert isinstance(outputs, GaussianOutputs)
        tensors |= {"targets.mean": outputs.mean, "targets.deviation": outputs.deviation}
        return tensors, facts

    def _restored_likelihood(self, tensors: dict[str, Tensor]) -> Likelihood:
        return GaussianOutputs(tensors["targets.mean"], tensors["targets.deviation"])


class PlainClassifier(NetworkClassifier, PlainNetworks):
    """Networks that predict logits."""

    @staticmethod
    def _prepared(
        members: Sequence[Any], targets: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Sequence[Likelihood]]:
        return members[0]._shared_targets(members, targets), [categorical] * len(members)

    def _num_outputs(self) -> int:
        return len(self.classes_)

    @property
    def _objective(self) -> Objective:
        return CrossEntropy()

    def _restored_likelihood(self, tensors: dict[str, Tensor]) -> Likelihood:
        return categorical


@dataclass(frozen=True, eq=False)
class GaussianOutputs:
    """Outputs (..., 2 O), means and variances of standardised targets, as Gaussians in the units of y.

    Attributes
    ----------
    mean, deviation : (O,) of the targets.
    """

    mean: Tensor
    deviation: Tensor

    def __call__(self, outputs: Tensor) -> Distribution:
        mean, variance = _moments(outputs.double())
        shift, scale = self.mean.to(mean), self.deviation.to(mean)
        return gaussian(mean * scale + shift, variance.sqrt() * scale)


@dataclass(frozen=True)
class GaussianLoss:
    """Minus the log density of a mini-batch under each network's means and variances, but for a constant."""

    whole, alone, recordable = False, True, True

    def __call__(self, outputs: Tensor, data: LabelledStack, index: Rows, share: Tensor) -> Tensor:
        mean, variance = _moments(outputs)
        gap = take_rows(data.y, index) - mean
        each = 0.5 * (variance.log() + gap.square() / variance)
        return (each.sum(2) * share).sum(1)


@dataclass(frozen=True)
class CrossEntropy:
    """Minus the log probability of a mini-batch's classes."""

    whole, alone, recordable = False, True, True

    def __call__(self, outputs: Tensor, data: LabelledStack, index: Rows, share: Tensor) -> Tensor:
        log_probs = outputs.log_softmax(2).gather(2, take_rows(data.y, index).unsqueeze(2))
        return -(log_probs.squeeze(2) * share).sum(1)


def _moments(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances (..., O) from outputs (..., 2 O)."""
    mean, raw = outputs.chunk(2, -1)
    # Softplus and not exp: far from the labelled points the variance grows, but does not explode.
    return mean, nn.functional.softplus(raw) + LEAST_VARIANCE


def _repeated(data: Sequence[tuple[Tensor, Tensor]], count: int, device: str) -> LabelledStack:
    """Each labelled set ``count`` times; a single one is not copied."""
    one = LabelledStack.of(data).to(device, torch.float32)
    many = [
        value.unsqueeze(1).expand(-1, count, *value.shape[1:]).flatten(0, 1)
        for value in (one.x, one.y, one.sizes)
    ]
    return LabelledStack(*many)


def _whole(scale: Standardise, network: nn.Module, device: str) -> nn.Module:
    """A network on rows as they come."""
    if isinstance(network, _Head) and isinstance(network.extractor, Prepared):
        network.extractor = network.extractor.extractor
    return nn.Sequential(scale, network).to(device).eval()


def _without_head(network: nn.Module) -> nn.Module:
    """The layers of a whole network that make features."""
    scale, top = network.children()
    assert isinstance(top, _Head)
    return nn.Sequential(scale, top.extractor)


def _with_head(extractor: nn.Module, head: nn.Linear) -> nn.Module:
    return (_StackedHead if hasattr(extractor, "stacked") else _Head)(extractor, head)


class _Head(nn.Module):
    """A feature extractor with a linear layer on top."""

    def __init__(self, extractor: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.extractor, self.head = extractor, head

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.extractor(x))
        return outputs


class _StackedHead(_Head):
    """The same for an extractor that computes S of itself at once (see `MLP`)."""

    def stacked(
        self, state: dict[str, Tensor], x: Tensor, rows: Tensor | None, settle: bool = False
    ) -> Tensor:
        prefix = "extractor."
        own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        features: Tensor = self.extractor.stacked(own, x, rows, settle)  # type: ignore[operator]
        return torch.baddbmm(state["head.bias"].unsqueeze(1), features, state["head.weight"].mT)
