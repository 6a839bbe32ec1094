"""Estimators whose networks are all trained in one stack: ensembles, dropout, Laplace, variational layers."""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from coresift import limits
from coresift.checks import check_choice
from coresift.errors import InputError, shown
from coresift.estimators.base import NetworkEstimator, NetworkRegressor
from coresift.estimators.estimator import LabelledSet
from coresift.estimators.networks import LabelledStack, Objective, Stack
from coresift.estimators.networks.extractors import count_features, seeded
from coresift.estimators.networks.layers import Headed, Precision, Standardise, substate
from coresift.estimators.networks.losses import CrossEntropy, GaussianLoss, GaussianOutputs, Likelihood
from coresift.estimators.networks.trainer import Schedule
from coresift.estimators.saving import State
from coresift.posteriors.network import outputs_of
from coresift.posteriors.samples import categorical

# K networks: rows (n, ...) -> outputs (n, C); each is a `Standardise`, followed by a `Headed`.
Networks: TypeAlias = Sequence[nn.Module]
HEAD = "1.head"  # the name of the last layer in each


class _Fit(NamedTuple):
    """A labelled set, and the networks that are trained on it."""

    scale: Standardise  # of the rows
    targets: Tensor
    likelihood: Likelihood  # of outputs for these targets
    # Each network with the generator that shuffles for it, and the rows and targets that it is trained on.
    members: list[tuple[Headed, torch.Generator, LabelledSet]]


@dataclass(eq=False, repr=False, kw_only=True)
class StackedEstimator(NetworkEstimator):
    """An estimator of K networks with a head; S estimators are trained as one stack of S K networks.

    Inputs are standardised inside. A subclass says what the trained networks make a posterior of.
    """

    _loss: ClassVar[type[Objective]] = CrossEntropy
    _outputs_per_target: ClassVar[int] = 1

    schedule: Schedule = "cosine"
    least_steps: int = 0
    augment: nn.Module | None = None
    precision: Precision = "float32"

    def _scaled(self, targets: Tensor) -> tuple[Tensor, Likelihood]:
        """Targets to train on, and what outputs then mean: logits, unless a subclass is for regression."""
        return targets, categorical

    @abstractmethod
    def _new_posterior(self, networks: Networks, likelihood: Likelihood, *labelled: Tensor) -> Any:
        """Return a posterior; unless it is restored, ``labelled`` are the rows and the targets trained on."""

    @abstractmethod
    def _networks(self) -> Networks:
        """The networks that ``posterior_`` holds."""

    def _objective(self, stack: Stack, generators: Sequence[torch.Generator]) -> Objective:
        """What is minimised; generators are for its noise, one for each network."""
        return self._loss()

    def _check_options(self) -> None:
        super()._check_options()
        check_choice(self.precision, ("float32", "bfloat16"), "precision")
        if not (self.augment is None or isinstance(self.augment, nn.Module)):
            raise InputError(f"augment is {shown(self.augment)}, expected a torch module")

    @staticmethod
    def _fit_together(estimators: Sequence[StackedEstimator], sets: Sequence[LabelledSet]) -> None:
        first = estimators[0]
        fits = [estimator._begin(x, y) for estimator, (x, y) in zip(estimators, sets, strict=True)]
        networks, generators, labelled = zip(*(member for fit in fits for member in fit.members), strict=True)
        stack = Stack(networks, first.device)
        objective = first._objective(stack, generators)
        first._trainer().train(stack, objective, LabelledStack.of(labelled), generators)
        trained = map(stack.member, range(len(stack)))
        for estimator, fit, (x, _) in zip(estimators, fits, sets, strict=True):
            own = [_whole(fit.scale, next(trained), first.device) for _ in fit.members]
            estimator.posterior_ = estimator._new_posterior(own, fit.likelihood, x, fit.targets)
            _warn_of_dead_units(own, x)

    def _begin(self, x: Tensor, y: Tensor) -> _Fit:
        """Prepare a labelled set, and draw K networks for it."""
        scale = Standardise.of(x)
        targets, likelihood = self._scaled(y)
        before = [] if self.augment is None else [copy.deepcopy(self.augment)]
        # Rows are standardised only in mini-batches if they are bytes, to save memory, or images that
        # ``augment`` needs as they are, with black borders and colours in their own range.
        if x.dtype == torch.uint8:
            before.append(scale)
        elif x.ndim == 4 and before:
            before.append(copy.deepcopy(scale))  # training moves it to single precision
        else:
            x = scale(x)
        generators = self._generators()
        networks = [self._new_network(x, before, generator) for generator in generators]
        members = [(*own, (x, targets)) for own in zip(networks, generators, strict=True)]
        return _Fit(scale, targets, likelihood, members)

    def _generators(self) -> list[torch.Generator]:
        """One for each network; a larger ensemble starts with the networks of a smaller one."""
        seeds = torch.randint(2**62, (self._num_networks,), generator=self._generator())
        return [torch.Generator().manual_seed(int(seed)) for seed in seeds]

    def _new_network(self, x: Tensor, before: Networks, generator: torch.Generator) -> Headed:
        """A network for rows like ``x`` (n, ...), with weights drawn from ``generator``."""
        extractor = self._new_extractor(x.shape[1], generator)
        features = count_features(nn.Sequential(*before, extractor), x)
        return Headed(extractor, self._new_head(features, generator), before, self.precision)

    def _new_head(self, features: int, generator: torch.Generator) -> nn.Module:
        with seeded(generator):
            return nn.Linear(features, self._outputs_per_target * self._num_targets())

    def _fitted_state(self) -> State:
        states = [network.state_dict() for network in self._networks()]
        tensors = {f"members.{name}": torch.stack([state[name] for state in states]) for name in states[0]}
        outputs = self.posterior_.likelihood
        if isinstance(outputs, GaussianOutputs):
            tensors |= {"targets.mean": outputs.mean, "targets.std": outputs.std}
        return tensors, {}

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        units = substate(tensors, "targets.")
        likelihood = GaussianOutputs(**units) if units else categorical
        self.posterior_ = self._new_posterior(self._restored_networks(tensors), likelihood)

    def _restored_networks(self, tensors: Mapping[str, Tensor]) -> Networks:
        stacked = substate(tensors, "members.")
        outputs, width = stacked[f"{HEAD}.weight"].shape[1:]
        states = [{name: value[k] for name, value in stacked.items()} for k in range(self._num_networks)]
        return [self._restored_network(state, nn.Linear(width, outputs)) for state in states]


class StackedRegressor(NetworkRegressor, StackedEstimator):
    """Networks that predict means and variances of standardised targets."""

    _loss: ClassVar[type[Objective]] = GaussianLoss
    _outputs_per_target = 2

    def _scaled(self, targets: Tensor) -> tuple[Tensor, Likelihood]:
        scale = Standardise.of(targets)
        return scale(targets), GaussianOutputs(scale.mean, scale.std)


def _whole(scale: Standardise, network: Any, device: str) -> nn.Module:
    """A trained network on rows as they come, without the preparation of training."""
    network.before = nn.Sequential()
    return nn.Sequential(scale, network).to(device).eval()


def without_head(network: nn.Module) -> nn.Sequential:
    """The layers of a whole network that make features."""
    scale, top = network.children()
    return nn.Sequential(scale, cast(Headed, top).extractor)


def _warn_of_dead_units(networks: Networks, x: Tensor) -> None:
    """Warn if most features of a trained network are constant: a large step can kill a ReLU for good."""
    x = x[: limits.ROWS_CHECKED]
    features = torch.stack([outputs_of(without_head(network), x) for network in networks])  # (K, n, D)
    alive, num = (features != features[:, :1]).any(1).sum(1), features.shape[2]
    bad = alive[alive < limits.FEATURES_ALIVE * num].tolist()
    if not bad or bool((x == x[:1]).all()):
        return
    few = f"in {len(bad)} of {len(networks)} networks as few as {min(bad)} of {num} features differ"
    if len(networks) == 1:
        few = f"only {min(bad)} of the network's {num} features differ"
    warnings.warn(
        f"{few} from row to row: the others have died in training, and predictions will be poor; "
        "try a smaller learning_rate",
        stacklevel=4,
    )
