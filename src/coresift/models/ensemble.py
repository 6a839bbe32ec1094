"""Deep ensembles: networks that differ in their initialisation and shuffling, trained side by side."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from coresift.models.estimator import NetworkClassifier, NetworkEstimator, NetworkRegressor
from coresift.models.samples import categorical, choose, gaussian, mixture
from coresift.networks import LabelledStack, Objective, Stack
from coresift.networks.layers import Standardise
from coresift.networks.trainer import Rows, take_rows
from coresift.types import InputError

# The least variance of a standardised target: without it a network that meets its labels exactly would be
# infinitely certain of them.
_LEAST_VARIANCE = 1e-4

# What a network's outputs (J, n, C) mean: a Distribution of batch shape (J, n).
Likelihood: TypeAlias = Callable[[Tensor], Distribution]


@dataclass(frozen=True, eq=False)
class EnsemblePosterior:
    """K networks of equal standing: its samples are the members, its predictive their mixture.

    Attributes
    ----------
    members : each rows (n, ...) -> outputs (n, C), in evaluation mode.
    likelihood : outputs (J, n, C) -> a Distribution of batch shape (J, n).
    """

    members: tuple[nn.Module, ...]
    likelihood: Likelihood

    @property
    def num_samples(self) -> int:
        return len(self.members)

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Positions of up to ``num`` members, without repetition."""
        return choose(len(self.members), num, generator)

    @torch.no_grad()
    def conditional(self, x: Tensor, theta: Iterable[Any]) -> Distribution:
        where = next(self.members[0].parameters())
        x = x.to(where.device, where.dtype)
        return self.likelihood(torch.stack([self.members[int(k)](x) for k in theta]))

    def predictive(self, x: Tensor) -> Distribution:
        return mixture(self.conditional(x, range(len(self.members))))


class _Ensemble(NetworkEstimator):
    """What ensembles share: S estimators of K members are trained as one stack of S K networks."""

    num_members: int
    posterior_: EnsemblePosterior

    @staticmethod
    @abstractmethod
    def _prepared(
        members: Sequence[Any], targets: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Sequence[Likelihood]]:
        """Targets to train on, and what outputs then mean, for each of the estimators."""

    @abstractmethod
    def _num_outputs(self) -> int:
        """How many outputs a member has."""

    @property
    @abstractmethod
    def _objective(self) -> Objective:
        """What is minimised."""

    @staticmethod
    def _fit_together(members: Sequence[_Ensemble], sets: Sequence[tuple[Tensor, Tensor]]) -> None:
        first = members[0]
        scales = [Standardise.of(x) for x, _ in sets]
        rows = [scale(x) for scale, (x, _) in zip(scales, sets, strict=True)]
        targets, likelihoods = first._prepared(members, [y for _, y in sets])
        generators = [one._generators() for one in members]
        networks = [
            one._fresh_member(x, generator)
            for one, x, own in zip(members, rows, generators, strict=True)
            for generator in own
        ]
        stack = Stack(networks, first.device)
        data = _repeated(list(zip(rows, targets, strict=True)), first.num_members, first.device)
        first._trainer().train(stack, first._objective, data, [one for own in generators for one in own])
        trained = (stack.member(position) for position in range(len(stack)))
        for one, scale, likelihood in zip(members, scales, likelihoods, strict=True):
            own_networks = (nn.Sequential(scale, next(trained)) for _ in range(one.num_members))
            one._set_posterior(own_networks, likelihood)

    def _generators(self) -> list[torch.Generator]:
        """One for each member; the first members of a larger ensemble are those of a smaller one."""
        if self.num_members < 1:
            raise InputError(f"num_members is {self.num_members}, expected at least 1")
        seeds = torch.randint(2**62, (self.num_members,), generator=self._generator())
        return [torch.Generator().manual_seed(int(seed)) for seed in seeds]

    def _fresh_member(self, x: Tensor, generator: torch.Generator) -> nn.Module:
        """A network for rows like ``x`` (n, ...), with weights drawn from ``generator``."""
        extractor = self._fresh_network(x.shape[1], generator)
        features = self._num_features(extractor, x)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            return _with_head(extractor, nn.Linear(features, self._num_outputs()))

    def _set_posterior(self, members: Iterable[nn.Module], likelihood: Likelihood) -> None:
        members = tuple(member.to(self.device).eval() for member in members)
        self.posterior_ = EnsemblePosterior(members, likelihood)

    def _fitted_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        states = [member.state_dict() for member in self.posterior_.members]
        return {f"members.{name}": torch.stack([state[name] for state in states]) for name in states[0]}, {}

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        prefix = "members."
        stacked = {
            name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
        }
        members = []
        for k in range(self.num_members):
            state = {name: value[k] for name, value in stacked.items()}
            extractor = self._fresh_network(self.n_features_in_, torch.Generator())
            outputs, width = state["1.head.weight"].shape
            member = _with_head(extractor, nn.Linear(width, outputs))
            members.append(nn.Sequential(Standardise(state["0.mean"], state["0.deviation"]), member))
            members[-1].load_state_dict(state)
        self._set_posterior(members, self._restored_likelihood(tensors))

    @abstractmethod
    def _restored_likelihood(self, tensors: dict[str, Tensor]) -> Likelihood:
        """What outputs mean, from what was saved."""


class EnsembleRegressor(NetworkRegressor, _Ensemble):
    """Regression with a deep ensemble: each member predicts a mean and a variance.

    Members are trained by the Gaussian log density of mini-batches, all side by side on the same data, each
    from its own initialisation and in its own order. The predictive is the Gaussian with the mean and
    variance of their mixture. Inputs and outputs are standardised inside; predictions and ``posterior_``
    are in the units of ``y``.

    Parameters
    ----------
    network : the members' layers below the last, linear one: ``None`` for two layers of 30 units with batch
        norm, a module (used for its layers; its weights are drawn anew), or a function from the number of
        columns or channels to a module.
    num_members : K. In K dimensions about K points already stand for a whole pool: more members than points
        in a batch are better.
    epochs, learning_rate, batch_size, weight_decay : see `Trainer`.
    random_state : seed of weights and shuffling.
    device : where to train, "cpu" or "cuda".
    progress : show a bar on a terminal once training has taken two seconds.

    Attributes
    ----------
    posterior_ : for `coresift.select`; its samples are the members.

    References
    ----------
    Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles, 2017.

    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = EnsembleRegressor(num_members=3, epochs=20, random_state=0).fit(x, x[:, 0] ** 2)
    >>> mean, deviation = model.predict(x, return_std=True)
    >>> mean.shape, bool((deviation > 0).all())
    ((40,), True)
    """

    def __init__(
        self,
        network: nn.Module | Callable[[int], nn.Module] | None = None,
        *,
        num_members: int = 20,
        epochs: int = 300,
        learning_rate: float = 1e-2,
        batch_size: int | None = None,
        weight_decay: float = 1.0,
        random_state: int | None = None,
        device: str = "cpu",
        progress: bool = True,
    ) -> None:
        self.network = network
        self.num_members = num_members
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.random_state = random_state
        self.device = device
        self.progress = progress

    @staticmethod
    def _prepared(
        members: Sequence[EnsembleRegressor], targets: Sequence[Tensor]
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

    def _restored_likelihood(self, tensors: dict[str, Tensor]) -> GaussianOutputs:
        return GaussianOutputs(tensors["targets.mean"], tensors["targets.deviation"])


class EnsembleClassifier(NetworkClassifier, _Ensemble):
    """Classification with a deep ensemble: each member predicts class probabilities, and they are averaged.

    Members are trained by the cross-entropy of mini-batches, all side by side on the same data, each from its
    own initialisation and in its own order. Inputs are standardised inside.

    Parameters
    ----------
    network, num_members, epochs, learning_rate, batch_size, weight_decay, random_state, device, progress :
        as for `EnsembleRegressor`.

    Attributes
    ----------
    classes_ : (C,) the labels, in the order of ``predict_proba``'s columns; after ``fit_many``, those of all
        sets.
    posterior_ : for `coresift.select`; its samples are the members.

    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = EnsembleClassifier(num_members=3, epochs=20, random_state=0)
    >>> model = model.fit(x, np.where(x[:, 0] > 0, "+", "-"))
    >>> model.predict(x[[0, -1]]).tolist()
    ['-', '+']
    """

    def __init__(
        self,
        network: nn.Module | Callable[[int], nn.Module] | None = None,
        *,
        num_members: int = 20,
        epochs: int = 300,
        learning_rate: float = 1e-2,
        batch_size: int | None = None,
        weight_decay: float = 1.0,
        random_state: int | None = None,
        device: str = "cpu",
        progress: bool = True,
    ) -> None:
        self.network = network
        self.num_members = num_members
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.random_state = random_state
        self.device = device
        self.progress = progress

    @staticmethod
    def _prepared(
        members: Sequence[EnsembleClassifier], targets: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Sequence[Likelihood]]:
        return members[0]._share_classes(members, targets), [categorical] * len(members)

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

    whole = False

    def __call__(self, outputs: Tensor, data: LabelledStack, index: Rows, share: Tensor) -> Tensor:
        mean, variance = _moments(outputs)
        gap = take_rows(data.y, index) - mean
        each = 0.5 * (variance.log() + gap.square() / variance)
        return (each.sum(2) * share).sum(1)


@dataclass(frozen=True)
class CrossEntropy:
    """Minus the log probability of a mini-batch's classes."""

    whole = False

    def __call__(self, outputs: Tensor, data: LabelledStack, index: Rows, share: Tensor) -> Tensor:
        log_probs = outputs.log_softmax(2).gather(2, take_rows(data.y, index).unsqueeze(2))
        return -(log_probs.squeeze(2) * share).sum(1)


def _moments(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances (..., O) from outputs (..., 2 O)."""
    mean, raw = outputs.chunk(2, -1)
    # Softplus and not exp: far from the labelled points the variance grows, but does not explode.
    return mean, nn.functional.softplus(raw) + _LEAST_VARIANCE


def _repeated(data: Sequence[tuple[Tensor, Tensor]], count: int, device: str) -> LabelledStack:
    """Each labelled set ``count`` times; a single one is not copied."""
    one = LabelledStack.of(data).to(device, torch.float32)
    many = [
        value.unsqueeze(1).expand(-1, count, *value.shape[1:]).flatten(0, 1)
        for value in (one.x, one.y, one.sizes)
    ]
    return LabelledStack(*many)


def _with_head(extractor: nn.Module, head: nn.Linear) -> nn.Module:
    return (_StackedMember if hasattr(extractor, "stacked") else _Member)(extractor, head)


class _Member(nn.Module):
    """A feature extractor with a linear layer on top."""

    def __init__(self, extractor: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.extractor, self.head = extractor, head

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.extractor(x))
        return outputs


class _StackedMember(_Member):
    """The same for an extractor that computes S of itself at once (see `MLP`)."""

    def stacked(
        self, state: dict[str, Tensor], x: Tensor, rows: Tensor | None, settle: bool = False
    ) -> Tensor:
        prefix = "extractor."
        own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        features: Tensor = self.extractor.stacked(own, x, rows, settle)  # type: ignore[operator]
        return torch.baddbmm(state["head.bias"].unsqueeze(1), features, state["head.weight"].mT)
