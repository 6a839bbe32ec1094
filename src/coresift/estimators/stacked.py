"""Estimators whose networks are all trained in one stack: ensembles, dropout, Laplace, variational layers."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from coresift.checks import check_choice
from coresift.errors import shown
from coresift.estimators.base import NetworkEstimator, warn_of_dead_units
from coresift.estimators.networks import LabelledStack, Objective, Stack, Trainer
from coresift.estimators.networks.drawing import count_features, new_network, seeded
from coresift.estimators.networks.heads import Headed, LinearHead, substate
from coresift.estimators.networks.images import Precision, Prepared
from coresift.estimators.networks.layers import Standardise
from coresift.estimators.networks.losses import CrossEntropy, GaussianLoss, GaussianOutputs, Likelihood
from coresift.estimators.networks.trainer import Schedule
from coresift.estimators.targets import NetworkClassifier, NetworkRegressor
from coresift.posteriors.samples import categorical
from coresift.types import InputError


class _Fit(NamedTuple):
    """A labelled set, prepared for training, and the networks that are trained on it.

    Attributes
    ----------
    scale : standardises the rows.
    rows, targets : what is trained on.
    likelihood : what outputs mean then.
    """

    scale: Standardise
    rows: Tensor
    targets: Tensor
    likelihood: Likelihood
    generators: list[torch.Generator]
    networks: list[nn.Module]


@dataclass(eq=False, repr=False, kw_only=True)
class StackedEstimator(NetworkEstimator):
    """An estimator of K networks with a head; S estimators are trained as one stack of S K networks.

    Inputs are standardised inside. A subclass says what the trained networks make a posterior of.
    """

    schedule: Schedule = "cosine"
    least_steps: int = 0
    augment: nn.Module | None = None
    precision: Precision = "float32"

    @abstractmethod
    def _num_outputs(self) -> int:
        """How many outputs a network has."""

    @abstractmethod
    def _objective(self, stack: Stack, generators: Sequence[torch.Generator]) -> Objective:
        """What is minimised; generators are for its noise, one for each network."""

    @abstractmethod
    def _scaled(self, targets: Tensor) -> tuple[Tensor, Likelihood]:
        """Targets to train on, and what outputs then mean."""

    @abstractmethod
    def _set_posterior(self, networks: Any, likelihood: Any) -> None:
        """Set ``posterior_`` from networks rows (n, ...) -> outputs (n, C), in evaluation mode."""

    @abstractmethod
    def _networks(self) -> Sequence[nn.Module]:
        """The networks that ``posterior_`` holds."""

    @abstractmethod
    def _restored_likelihood(self, tensors: Mapping[str, Tensor]) -> Likelihood:
        """What outputs mean, from what was saved."""

    def _learn_posterior(
        self, networks: Sequence[nn.Module], likelihood: Likelihood, x: Tensor, y: Tensor
    ) -> None:
        """Set ``posterior_`` from K networks, and the labelled rows and targets that they were trained on."""
        self._set_posterior(networks, likelihood)

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self._set_posterior(self._restored_networks(tensors), self._restored_likelihood(tensors))

    def _check_options(self) -> None:
        super()._check_options()
        check_choice(self.precision, ("float32", "bfloat16"), "precision")
        if not (self.augment is None or isinstance(self.augment, nn.Module)):
            raise InputError(f"augment is {shown(self.augment)}, expected a torch module")

    def _trainer(self) -> Trainer:
        return replace(super()._trainer(), schedule=self.schedule, least_steps=self.least_steps)

    @staticmethod
    def _fit_together(estimators: Sequence[StackedEstimator], sets: Sequence[tuple[Tensor, Tensor]]) -> None:
        first = estimators[0]
        fits = [estimator._begin(x, y) for estimator, (x, y) in zip(estimators, sets, strict=True)]
        generators = [generator for fit in fits for generator in fit.generators]
        stack = Stack([network for fit in fits for network in fit.networks], first.device)
        objective = first._objective(stack, generators)
        data = LabelledStack.of([(fit.rows, fit.targets) for fit in fits]).to(first.device, torch.float32)
        first._trainer().train(stack, objective, data.repeated(first._num_networks), generators)
        trained = (stack.member(position) for position in range(len(stack)))
        for estimator, fit, (x, _) in zip(estimators, fits, sets, strict=True):
            networks = [_whole(fit.scale, next(trained), first.device) for _ in fit.networks]
            estimator._learn_posterior(networks, fit.likelihood, x, fit.targets)
            warn_of_dead_units([without_head(network) for network in networks], x)

    def _begin(self, x: Tensor, y: Tensor) -> _Fit:
        """Prepare a labelled set, and draw K networks for it."""
        scale, generators = Standardise.of(x), self._generators()
        rows = x if self._stays_raw(x) else scale(x)
        networks = [self._new_network(rows, scale, generator) for generator in generators]
        return _Fit(scale, rows, *self._scaled(y), generators, networks)

    def _generators(self) -> list[torch.Generator]:
        """One for each network; a larger ensemble starts with the networks of a smaller one."""
        seeds = torch.randint(2**62, (self._num_networks,), generator=self._generator())
        return [torch.Generator().manual_seed(int(seed)) for seed in seeds]

    def _new_network(self, x: Tensor, scale: Standardise, generator: torch.Generator) -> nn.Module:
        """A network for rows like ``x`` (n, ...), with weights drawn from ``generator``."""
        extractor = self._new_prepared(x, scale, generator)
        features = count_features(extractor, x)
        with seeded(generator):
            return LinearHead(extractor, nn.Linear(features, self._num_outputs()))

    def _new_extractor(self, inputs: int, generator: torch.Generator) -> nn.Module:
        return new_network(self.network, inputs, generator)

    def _new_prepared(self, x: Tensor, scale: Standardise, generator: torch.Generator) -> nn.Module:
        """A feature extractor with new weights for rows like ``x``, as they are trained on."""
        extractor = self._new_extractor(x.shape[1], generator)
        raw = self._stays_raw(x)
        if not raw and self.augment is None and self.precision == "float32":
            return extractor
        before = [copy.deepcopy(self.augment)] if self.augment is not None else []
        if raw:
            # Training moves a copy to single precision; bytes lose nothing by it in evaluation.
            before.append(scale if x.dtype == torch.uint8 else copy.deepcopy(scale))
        return Prepared(nn.Sequential(*before), extractor, self.precision)

    def _stays_raw(self, x: Tensor) -> bool:
        """Whether rows are standardised only in mini-batches: bytes, to save memory, and images that
        ``augment`` needs as they are, with black borders and colours in their own range.
        """
        return x.dtype == torch.uint8 or (x.ndim == 4 and self.augment is not None)

    def _fitted_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        states = [network.state_dict() for network in self._networks()]
        return {f"members.{name}": torch.stack([state[name] for state in states]) for name in states[0]}, {}

    def _restored_networks(self, tensors: Mapping[str, Tensor]) -> list[nn.Module]:
        stacked, networks = substate(tensors, "members."), []
        for k in range(self._num_networks):
            state = {name: value[k] for name, value in stacked.items()}
            extractor = self._new_extractor(self.n_features_in_, torch.Generator())
            outputs, width = state["1.head.weight"].shape
            scale = Standardise(state["0.mean"], state["0.std"])
            network = _whole(scale, LinearHead(extractor, nn.Linear(width, outputs)), self.device)
            network.load_state_dict(state)
            networks.append(network)
        return networks


class StackedRegressor(NetworkRegressor, StackedEstimator):
    """Networks that predict means and variances of standardised targets."""

    def _scaled(self, targets: Tensor) -> tuple[Tensor, Likelihood]:
        scale = Standardise.of(targets)
        return scale(targets), GaussianOutputs(scale.mean, scale.std)

    def _num_outputs(self) -> int:
        return 2 * int(np.prod(self._target_shape))

    def _objective(self, stack: Stack, generators: Sequence[torch.Generator]) -> Objective:
        return GaussianLoss()

    def _fitted_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, facts = super()._fitted_state()
        outputs = self.posterior_.likelihood
        return tensors | {"targets.mean": outputs.mean, "targets.std": outputs.std}, facts

    def _restored_likelihood(self, tensors: Mapping[str, Tensor]) -> Likelihood:
        return GaussianOutputs(tensors["targets.mean"], tensors["targets.std"])


class StackedClassifier(NetworkClassifier, StackedEstimator):
    """Networks that predict logits."""

    def _scaled(self, targets: Tensor) -> tuple[Tensor, Likelihood]:
        return targets, categorical

    def _num_outputs(self) -> int:
        return len(self.classes_)

    def _objective(self, stack: Stack, generators: Sequence[torch.Generator]) -> Objective:
        return CrossEntropy()

    def _restored_likelihood(self, tensors: Mapping[str, Tensor]) -> Likelihood:
        return categorical


def _whole(scale: Standardise, network: nn.Module, device: str) -> nn.Module:
    """A network on rows as they come, without the preparation of training."""
    if isinstance(network, Headed) and isinstance(network.extractor, Prepared):
        network.extractor = network.extractor.extractor
    return nn.Sequential(scale, network).to(device).eval()


def without_head(network: nn.Module) -> nn.Module:
    """The layers of a whole network that make features."""
    scale, top = network.children()
    assert isinstance(top, Headed)
    return nn.Sequential(scale, top.extractor)
