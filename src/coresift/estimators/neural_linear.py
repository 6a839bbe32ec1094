"""Neural linear regression: a network's features under exact Bayesian linear regression."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal, StudentT

from coresift.checks import check_integer
from coresift.errors import InputError
from coresift.estimators.base import SeveralMembers
from coresift.estimators.calibration import Calibration, Fold, Residuals, calibrate, make_folds
from coresift.estimators.networks import LabelledStack, Stack
from coresift.estimators.networks.drawing import count_features, new_network
from coresift.estimators.networks.exact_last_layer import ExactLastLayer
from coresift.estimators.networks.heads import substate
from coresift.estimators.networks.layers import AppendOne, Standardise
from coresift.estimators.saving import network_tensors
from coresift.estimators.targets import NetworkRegressor
from coresift.posteriors.gaussian import check_positive
from coresift.posteriors.linear import BayesianLinearRegression, NormalInverseGammaPosterior
from coresift.posteriors.network import MixedHeads, NetworkPosterior, SideBySide, outputs_of


class _Fit(NamedTuple):
    """A trained network with the last layer of each output, in the units of y."""

    network: nn.Module
    heads: list[NormalInverseGammaPosterior]


@dataclass(eq=False, repr=False, kw_only=True)
class NeuralLinearRegressor(NetworkRegressor, SeveralMembers):
    """Regression with a network's features and exact Bayesian linear regression on top.

    The network is trained by the predictive log density of mini-batches, given the last layer's posterior on
    the whole labelled set (paper, section 6). Inputs and outputs are standardised inside; predictions and
    ``posterior_`` are in the units of ``y``. The defaults are the paper's for small tables, except for the
    calibration, which the paper does not have.

    Parameters
    ----------
    network : the feature extractor: ``None`` for two layers of 30 units with batch norm, a module (used for
        its layers; its weights are drawn anew), or a function from the number of inputs to a module.
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
    random_state : seed of weights and shuffling.
    device : where to train, "cpu" or "cuda".
    progress : show a bar on a terminal once training has taken two seconds.

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
    def _fit_together(
        estimators: Sequence[NeuralLinearRegressor], sets: Sequence[tuple[Tensor, Tensor]]
    ) -> None:
        first, generators = estimators[0], [estimator._generator() for estimator in estimators]
        chosen = first._calibrated(sets, [generator.initial_seed() for generator in generators])
        for level in sorted({own.level for own in chosen}):
            here = [number for number, own in enumerate(chosen) if own.level == level]
            fits = first._train_members([sets[n] for n in here], [generators[n] for n in here], level)
            for number, own in zip(here, fits, strict=True):
                estimators[number]._set_posterior([_scaled(fit, chosen[number].factors) for fit in own])

    def _train_members(
        self, sets: Sequence[tuple[Tensor, Tensor]], generators: Sequence[torch.Generator], level: int
    ) -> Iterator[list[_Fit]]:
        """Train all members on each set, and yield them set by set."""
        num = self._num_networks
        repeated = [labelled for labelled in sets for _ in range(num)]
        fits = self._train(repeated, [one for own in generators for one in _members(own, num)], level)
        for start in range(0, len(fits), num):
            yield fits[start : start + num]

    def _train(
        self, sets: Sequence[tuple[Tensor, Tensor]], generators: Sequence[torch.Generator], level: int
    ) -> list[_Fit]:
        """Train a network on each set, side by side, with the regularisation of that level."""
        scales = [(Standardise.of(x), Standardise.of(y)) for x, y in sets]
        data = [(scale_x(x), scale_y(y)) for (x, y), (scale_x, scale_y) in zip(sets, scales, strict=True)]
        networks = []
        for (x, _), generator in zip(data, generators, strict=True):
            networks.append(new_network(self.network, x.shape[1], generator))
            count_features(networks[-1], x)  # raises if its outputs are no features
        stack = Stack(networks, self.device)
        prior = float(self.prior_variance), float(self.noise_shape), float(self.noise_rate)
        trainer = replace(self._trainer(), decay_gains=level == 2)
        trainer.train(stack, ExactLastLayer(*prior, alone=level > 0), LabelledStack.of(data), generators)
        stack.cpu()  # the rest is done network by network, too little at a time for a GPU
        fits = []
        for position, ((x, y), (scale_x, scale_y)) in enumerate(zip(sets, scales, strict=True)):
            network = nn.Sequential(scale_x, stack.member(position), AppendOne()).eval()
            fits.append(_Fit(network, self._last_layers(network, x, scale_y(y), scale_y)))
        return fits

    def _last_layers(
        self, network: nn.Module, x: Tensor, targets: Tensor, scale: Standardise
    ) -> list[NormalInverseGammaPosterior]:
        """Solve the last layer on trained features, for each output, in the units of y."""
        features = outputs_of(network, x).double()
        regression = BayesianLinearRegression(
            None,
            prior_covariance=float(self.prior_variance),
            noise_shape=float(self.noise_shape),
            noise_rate=float(self.noise_rate),
        )
        heads = []
        for output, target in enumerate(targets.double().unbind(1)):
            head = regression.fit(features, target)
            assert isinstance(head, NormalInverseGammaPosterior)
            std = float(scale.std[output])
            mean = head.mean * std
            mean[-1] += float(scale.mean[output])  # the constant's weight
            heads.append(replace(head, mean=mean, rate=head.rate * std**2))
        return heads

    def _calibrated(self, sets: Sequence[tuple[Tensor, Tensor]], seeds: Sequence[int]) -> list[Calibration]:
        """Choose each set's regularisation, and the factors by which its noise variance is underestimated.

        A flexible network fits part of the noise, which the last layer alone cannot detect. Therefore more
        networks are trained, each without a part of the labels, and the variance is scaled to make the
        left-out labels most likely. Levels of regularisation are compared by the same likelihood.
        """
        outputs = sets[0][1].shape[1]
        best = [Calibration(math.inf, self.regularisation or 0, [1.0] * outputs) for _ in sets]
        folds = make_folds([len(x) for x, _ in sets], seeds, int(self.calibration_folds))
        if not folds:
            return best
        kept = [(sets[fold.number][0][fold.kept], sets[fold.number][1][fold.kept]) for fold in folds]
        for level in (0, 1, 2) if self.regularisation is None else (self.regularisation,):
            generators = [torch.Generator().manual_seed(fold.seed) for fold in folds]
            residuals = _left_out_residuals(sets, folds, self._train(kept, generators, level))
            for number, by_fold in residuals.items():
                best[number] = min(best[number], calibrate(level, zip(*by_fold, strict=True)))
        return best

    def _set_posterior(self, fits: Sequence[_Fit]) -> None:
        heads = tuple(
            fit.heads[0] if len(fit.heads) == 1 else SeveralOutputs(tuple(fit.heads)) for fit in fits
        )
        if len(fits) == 1:
            posterior = NetworkPosterior(fits[0].network, heads[0])
        else:
            posterior = NetworkPosterior(SideBySide([fit.network for fit in fits]), MixedHeads(heads))
        self.posterior_ = posterior.to(self.device)

    def _fitted_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        heads = [
            head for own in _parts(self.posterior_.head, MixedHeads) for head in _parts(own, SeveralOutputs)
        ]
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
            heads = [
                NormalInverseGammaPosterior(mean, covariances[k], facts["shape"], next(rates))
                for mean in means[k]
            ]
            fits.append(_Fit(network, heads))
        self._set_posterior(fits)

    def _restored_network(self, state: Mapping[str, Tensor]) -> nn.Module:
        scale = Standardise(state["0.mean"], state["0.std"])
        extractor = new_network(self.network, self.n_features_in_, torch.Generator())
        network = nn.Sequential(scale, extractor, AppendOne()).to(self.device)
        network.load_state_dict(state)
        return network.eval()


def _members(generator: torch.Generator, num: int) -> list[torch.Generator]:
    """A generator for each member; the first is the one given, so that one member is the first of several."""
    seed = generator.initial_seed()
    return [generator, *(torch.Generator().manual_seed(seed + k) for k in range(1, num))]


def _parts(head: Any, several: type[Any]) -> Sequence[Any]:
    """The parts of a last layer, if it is one of ``several``."""
    return head.heads if isinstance(head, several) else (head,)


def _scaled(fit: _Fit, factors: Sequence[float]) -> _Fit:
    """The same with the noise variance of each output scaled by its factor."""
    heads = [replace(head, rate=head.rate * factor) for head, factor in zip(fit.heads, factors, strict=True)]
    return _Fit(fit.network, heads)


def _left_out_residuals(
    sets: Sequence[tuple[Tensor, Tensor]], folds: Sequence[Fold], fits: Sequence[_Fit]
) -> dict[int, list[list[Residuals]]]:
    """The residuals on left-out rows, by number of the set, fold and output."""
    residuals: dict[int, list[list[Residuals]]] = {}
    for fold, fit in zip(folds, fits, strict=True):
        x, y = (values[fold.left_out] for values in sets[fold.number])
        outputs = [
            Residuals.of(NetworkPosterior(fit.network, head).predictive(x), target)
            for head, target in zip(fit.heads, y.unbind(1), strict=True)
        ]
        residuals.setdefault(fold.number, []).append(outputs)
    return residuals


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
        location, scale = (
            torch.stack([getattr(one, name) for one in outputs], -1) for name in ("loc", "scale")
        )
        return Independent(StudentT(outputs[0].df[..., None], location, scale), 1)
