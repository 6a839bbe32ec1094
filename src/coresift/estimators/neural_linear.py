"""Neural linear regression: a network's features under exact Bayesian linear regression."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal, StudentT

from coresift.checks import check_integer, check_positive
from coresift.errors import InputError
from coresift.estimators.base import NetworkRegressor
from coresift.estimators.estimator import LabelledSet
from coresift.estimators.networks import LabelledStack, Stack
from coresift.estimators.networks.extractors import count_features
from coresift.estimators.networks.layers import AppendOne, Standardise, substate
from coresift.estimators.networks.losses import ExactLastLayer
from coresift.estimators.saving import State, network_tensors
from coresift.posteriors.linear import BayesianLinearRegression, NormalInverseGammaPosterior
from coresift.posteriors.network import MixedHeads, NetworkPosterior, SideBySide, outputs_of

# Separates the seeds of the folds from those of the fit itself.
_FOLDS = 0x5EED


class _Task(NamedTuple):
    """A network to train, on rows x and targets y."""

    number: int  # of the labelled set
    seed: int
    labelled: LabelledSet
    left_out: LabelledSet | None = None


class _Fit(NamedTuple):
    """A trained network: rows (n, ...) -> features (n, D), and a last layer for each output."""

    network: nn.Module
    heads: list[NormalInverseGammaPosterior]


class _Calibration(NamedTuple):
    """What left-out labels say about a labelled set; of two, the smaller is better."""

    loss: float  # minus the log density of the left-out labels, up to a constant
    level: int  # of regularisation
    factors: list[float]  # on the noise variance, for each output


@dataclass(eq=False, repr=False, kw_only=True)
class NeuralLinearRegressor(NetworkRegressor):
    """Regression with a network's features and exact Bayesian linear regression on top.

    The network is trained by the predictive log density of mini-batches, given the last layer's posterior on
    the whole labelled set (paper, section 6). Inputs and outputs are standardised inside; predictions and
    ``posterior_`` are in the units of ``y``. The defaults are the paper's for small tables, except for the
    calibration, which the paper does not have.

    Parameters
    ----------
    network : the feature extractor: ``None`` for two layers of 30 units with batch norm, a module (used for
        its layers; its weights are drawn again), or a function from the number of inputs to a module.
    num_members : how many networks to train on the same labels, each from its own initial weights and in its
        own order. Their posteriors are mixed with equal weights: five predict better than one, and points
        are also chosen where they disagree.
    epochs, learning_rate, batch_size, weight_decay : see `Trainer`.
    prior_variance : of the last layer's weights, in units of the noise variance.
    noise_shape, noise_rate : the inverse gamma prior of the noise variance of standardised targets.
    regularisation : 0 for batch norm over the whole labelled set, which learns most from labels without
        noise; 1 to pass each mini-batch through the network separately (see `ExactLastLayer`), 2 for weight
        decay on the gains of batch norm in addition; both resist noise. ``None`` tries all three on the
        calibration folds, and takes the one under which the left-out labels are most likely; 0 without folds.
    calibration_folds : how many additional networks to train, side by side, each without its part of the
        labels, to measure the error on labels that a network has not seen; the noise variance is scaled
        accordingly. Several members share the factor found for single networks. Zero for none, as in the
        paper; there is none if a fold would have fewer than four labels.
    random_state, device, progress : see `NeuralLinearClassifier`.

    Attributes
    ----------
    posterior_ : for `coresift.select`, which uses closed forms for one output of one member, else samples.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = NeuralLinearRegressor(epochs=20, random_state=0).fit(x, x[:, 0] ** 2)
    >>> mean, std = model.predict(x, return_std=True)
    >>> mean.shape, bool((std > 0).all())
    ((40,), True)
    """

    posterior_type = NetworkPosterior

    num_members: int = 1
    epochs: int = 1000
    weight_decay: float = 1.0
    prior_variance: float = 1.0
    noise_shape: float = 1.0
    noise_rate: float = 1.0
    regularisation: int | None = None
    calibration_folds: int = 5

    def _check_options(self) -> None:
        super()._check_options()
        check_integer(self.calibration_folds, 0, "calibration_folds")
        for name in ("prior_variance", "noise_shape", "noise_rate"):
            check_positive(getattr(self, name), name)
        if self.regularisation is not None:
            level = check_integer(self.regularisation, 0, "regularisation")
            if level > 2:
                raise InputError(f"regularisation is {level}, expected 0, 1, 2 or None")

    @staticmethod
    def _fit_together(estimators: Sequence[NeuralLinearRegressor], sets: Sequence[LabelledSet]) -> None:
        first, seeds = estimators[0], [estimator._generator().initial_seed() for estimator in estimators]
        chosen = first._calibrated(sets, seeds)
        members = range(first._num_networks)
        for level in sorted({own.level for own in chosen}):
            numbers = [number for number, own in enumerate(chosen) if own.level == level]
            # One member is the first of several.
            tasks = [_Task(number, seeds[number] + k, sets[number]) for number in numbers for k in members]
            for number, fits in _by_set(tasks, first._train(tasks, level)).items():
                estimators[number]._set_posterior([_scaled(fit, chosen[number].factors) for fit in fits])

    def _calibrated(self, sets: Sequence[LabelledSet], seeds: Sequence[int]) -> list[_Calibration]:
        """Choose each set's regularisation, and the factors by which its noise variance is underestimated.

        A flexible network fits part of the noise, which the last layer alone cannot detect. Therefore more
        networks are trained, each without a part of the labels, and the variance is scaled to make the
        left-out labels most likely. Levels of regularisation are compared by the same likelihood.
        """
        num_outputs = sets[0][1].shape[1]
        best = [_Calibration(math.inf, self.regularisation or 0, [1.0] * num_outputs) for _ in sets]
        folds = _make_folds(sets, seeds, int(self.calibration_folds))
        levels = (0, 1, 2) if self.regularisation is None else (self.regularisation,)
        for level in levels if folds else ():
            predicted = map(_predicted, self._train(folds, level), folds)
            for number, by_fold in _by_set(folds, list(predicted)).items():
                best[number] = min(best[number], _calibration(level, by_fold))
        return best

    def _train(self, tasks: Sequence[_Task], level: int) -> list[_Fit]:
        """Train the networks side by side, with the regularisation of that level."""
        generators = [torch.Generator().manual_seed(task.seed) for task in tasks]
        sets = [task.labelled for task in tasks]
        scales = [(Standardise.of(x), Standardise.of(y)) for x, y in sets]
        data = [(of_x(x), of_y(y)) for (of_x, of_y), (x, y) in zip(scales, sets, strict=True)]
        rows = data[0][0]
        networks = [self._new_extractor(rows.shape[1], generator) for generator in generators]
        count_features(networks[0], rows)  # raises if its outputs are no features
        stack = Stack(networks, self.device)
        trainer = replace(self._trainer(), decay_gains=level == 2)
        objective = ExactLastLayer(*self._prior, alone=level > 0)
        trainer.train(stack, objective, LabelledStack.of(data), generators)
        stack.cpu()  # the rest is done network by network, too little at a time for a GPU
        fits = []
        for position, ((x, y), (of_x, of_y)) in enumerate(zip(sets, scales, strict=True)):
            network = nn.Sequential(of_x, stack.member(position), AppendOne()).eval()
            fits.append(_Fit(network, self._last_layers(outputs_of(network, x), y, of_y)))
        return fits

    @property
    def _prior(self) -> tuple[float, float, float]:
        return float(self.prior_variance), float(self.noise_shape), float(self.noise_rate)

    def _last_layers(
        self, features: Tensor, y: Tensor, scale: Standardise
    ) -> list[NormalInverseGammaPosterior]:
        """Solve the last layer on trained features, for each output, in the units of y."""
        regression = BayesianLinearRegression(None, 0.0, *self._prior)
        heads = []
        for target, shift, std in zip(scale(y).double().unbind(1), scale.mean, scale.std, strict=True):
            head: Any = regression.fit(features.double(), target)
            mean = head.mean * float(std)
            mean[-1] += float(shift)  # the constant's weight
            heads.append(replace(head, mean=mean, rate=head.rate * float(std) ** 2))
        return heads

    def _set_posterior(self, fits: Sequence[_Fit]) -> None:
        networks = [fit.network for fit in fits]
        heads = [fit.heads[0] if len(fit.heads) == 1 else SeveralOutputs(tuple(fit.heads)) for fit in fits]
        posterior = NetworkPosterior(networks[0], heads[0])
        if len(fits) > 1:
            posterior = NetworkPosterior(SideBySide(networks), MixedHeads(tuple(heads)))
        self.posterior_ = posterior.to(self.device)

    def _fitted_state(self) -> State:
        heads = _last_layers(self.posterior_.head)
        num_outputs = len(heads) // self._num_networks
        tensors = network_tensors(self.posterior_)
        tensors["head.mean"] = torch.stack([head.mean for head in heads])  # (K O, D)
        tensors["head.covariance"] = torch.cat([head.covariance for head in heads[::num_outputs]])  # (K D, D)
        return tensors, {"shape": heads[0].shape, "rates": [head.rate for head in heads]}

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        num, rates = self._num_networks, iter(facts["rates"])
        means, covariances = tensors["head.mean"].chunk(num), tensors["head.covariance"].chunk(num)
        fits = []
        for k in range(num):
            network = self._restored_network(substate(tensors, "network." if num == 1 else f"network.{k}."))
            own = (covariances[k], facts["shape"])
            heads = [NormalInverseGammaPosterior(mean, *own, next(rates)) for mean in means[k]]
            fits.append(_Fit(network, heads))
        self._set_posterior(fits)


def _by_set(tasks: Sequence[_Task], results: Sequence[Any]) -> dict[int, list[Any]]:
    """Group the results of tasks by the number of their labelled set."""
    grouped = defaultdict(list)
    for task, result in zip(tasks, results, strict=True):
        grouped[task.number].append(result)
    return grouped


def _make_folds(sets: Sequence[LabelledSet], seeds: Sequence[int], num_folds: int) -> list[_Task]:
    """Split labelled sets; those with fewer than four labels for each fold get none."""
    folds: list[_Task] = []
    for number, ((x, y), seed) in enumerate(zip(sets, seeds, strict=True)):
        if num_folds < 2 or len(x) < 4 * num_folds:
            continue
        generator = torch.Generator().manual_seed(seed ^ _FOLDS)
        order = torch.randperm(len(x), generator=generator)
        size = len(x) // num_folds
        for start in range(0, num_folds * size, size):
            out, kept = order[start : start + size], torch.cat([order[:start], order[start + size :]])
            own_seed = int(torch.randint(2**62, (), generator=generator))
            folds.append(_Task(number, own_seed, (x[kept], y[kept]), (x[out], y[out])))
    return folds


def _predicted(fit: _Fit, fold: _Task) -> list[tuple[StudentT, Tensor]]:
    """For each output, the predictions for the rows that were left out, and their labels."""
    x, y = cast(LabelledSet, fold.left_out)
    features = outputs_of(fit.network, x)
    return [(head.predictive(features), target) for head, target in zip(fit.heads, y.unbind(1), strict=True)]


def _calibration(level: int, folds: Sequence[Sequence[tuple[StudentT, Tensor]]]) -> _Calibration:
    """Find the best factors at a level of regularisation, from what `_predicted` returns for each fold."""
    losses, factors = zip(*map(_best_factor, zip(*folds, strict=True)), strict=True)
    return _Calibration(sum(losses), level, list(factors))


def _best_factor(folds: Sequence[tuple[StudentT, Tensor]]) -> tuple[float, float]:
    """Find the factor on the squared scale of Student's t under which left-out labels are most likely.

    Each fold holds predictions (n,) and labels. Returns minus the log density, up to a constant, and that
    factor.
    """
    errors = torch.cat([y.to(predicted.loc) - predicted.loc for predicted, y in folds])
    scale = torch.cat([predicted.scale for predicted, _ in folds])
    df = torch.cat([predicted.df for predicted, _ in folds])
    squares = (errors / scale).square()

    def loss(log_factor: float) -> float:
        density = 0.5 * log_factor + 0.5 * (df + 1) * torch.log1p(squares / df / math.exp(log_factor))
        return float((density + scale.log()).sum())

    best = minimize_scalar(loss, bounds=(-3, 10), method="bounded")
    return float(best.fun), math.exp(best.x)


def _scaled(fit: _Fit, factors: Sequence[float]) -> _Fit:
    """The same with the noise variance of each output scaled by its factor."""
    heads = zip(fit.heads, factors, strict=True)
    return _Fit(fit.network, [replace(head, rate=head.rate * factor) for head, factor in heads])


def _last_layers(head: Any) -> list[NormalInverseGammaPosterior]:
    """List the last layers for single outputs of single networks."""
    if isinstance(head, MixedHeads | SeveralOutputs):
        return [single for part in head.heads for single in _last_layers(part)]
    return [head]


@dataclass(frozen=True, eq=False)
class SeveralOutputs:
    """Last layers on the same features, one for each entry of y, each with its own weights and noise."""

    heads: tuple[NormalInverseGammaPosterior, ...]

    def to(self, device: torch.device | str) -> SeveralOutputs:
        return SeveralOutputs(tuple(head.to(device) for head in self.heads))

    def sample(self, num: int, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
        return [head.sample(num, generator) for head in self.heads]

    def features(self, x: Tensor) -> Tensor:
        return self.heads[0].features(x)

    def outputs(self, features: Tensor, theta: list[tuple[Tensor, Tensor]]) -> Tensor:
        return torch.cat(
            [head.outputs(features, own) for head, own in zip(self.heads, theta, strict=True)], -1
        )

    def likelihood(self, outputs: Tensor, theta: list[tuple[Tensor, Tensor]]) -> Distribution:
        std = torch.stack([noise.sqrt() for _, noise in theta], -1)  # (J, O)
        return Independent(Normal(outputs, std.unsqueeze(1).expand(outputs.shape)), 1)

    def conditional(self, x: Tensor, theta: list[tuple[Tensor, Tensor]]) -> Distribution:
        return self.likelihood(self.outputs(self.features(x), theta), theta)

    def predictive(self, x: Tensor) -> Distribution:
        outputs = [head.predictive(x) for head in self.heads]
        location = torch.stack([output.loc for output in outputs], -1)
        scale = torch.stack([output.scale for output in outputs], -1)
        return Independent(StudentT(outputs[0].df[..., None], location, scale), 1)
