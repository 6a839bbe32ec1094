"""Neural linear regression: a network's features under exact Bayesian linear regression."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar, TypeAlias

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal, StudentT

from coresift.errors import InputError, shown
from coresift.estimators.base import NetworkRegressor
from coresift.estimators.networks import LabelledStack, Stack
from coresift.estimators.networks.layers import AppendOne, Standardise
from coresift.estimators.networks.trainer import Rows, take_rows
from coresift.posteriors.gaussian import check_positive
from coresift.posteriors.linear import BayesianLinearRegression, NormalInverseGammaPosterior
from coresift.posteriors.network import MixedHeads, NetworkPosterior, SideBySide, outputs_of

# Left-out labels less their predictions (n,), the scale of Student's t (n,) and its degrees of freedom (n,).
_Gaps: TypeAlias = tuple[Tensor, Tensor, Tensor]
# Sets the seeds of the folds apart from those of the fit itself.
_FOLDS = 0x5EED


class NeuralLinearRegressor(NetworkRegressor):
    """Regression with a network's features and exact Bayesian linear regression on top.

    The network is trained by the predictive log density of mini-batches, given the last layer's posterior on
    the whole labelled set (paper, section 6). Inputs and outputs are standardised inside; predictions and
    ``posterior_`` are in the units of ``y``. The defaults are the paper's for small tables, but for the
    calibration, which it does not have.

    Parameters
    ----------
    network : the feature extractor: ``None`` for two layers of 30 units with batch norm, a module (used for
        its layers; its weights are drawn anew), or a function from the number of inputs to a module.
    num_members : how many networks to train on the same labels, each from its own initial weights and in its
        own order. Their posteriors are mixed in equal parts: five predict better than one, and choose points
        by where they disagree too.
    epochs, learning_rate, batch_size, weight_decay : see `Trainer`.
    prior_variance : of the last layer's weights, in units of the noise.
    noise_shape, noise_rate : the inverse gamma prior of the noise variance of standardised targets.
    regularisation : 0 for batch norm over the whole labelled set, which learns most from labels without
        noise; 1 to send each mini-batch through the network alone (see `ExactLastLayer`), 2 to let weight
        decay act on the gains of batch norm besides, which both resist noise. ``None`` tries all three on the
        calibration folds, and takes the one under which the left-out labels are most likely; 0 without folds.
    calibration_folds : how many further networks to train, each without its part of the labels, to learn how
        far predictions are off on labels a network has not seen; the noise variance is scaled by that. They
        are trained side by side. Several members share the factor found for single networks. Zero for none,
        as in the paper; none below four labels a fold.
    random_state : seed of weights and shuffling.
    device : where to train, "cpu" or "cuda".
    progress : show a bar on a terminal once training has taken two seconds.

    Attributes
    ----------
    posterior_ : for `coresift.select`, which uses closed forms for one output of one member, else samples.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = NeuralLinearRegressor(epochs=20, random_state=0).fit(x, x[:, 0] ** 2)
    >>> mean, deviation = model.predict(x, return_std=True)
    >>> mean.shape, bool((deviation > 0).all())
    ((40,), True)
    """

    posterior_: NetworkPosterior

    def __init__(
        self,
        network: nn.Module | Callable[[int], nn.Module] | None = None,
        *,
        num_members: int = 1,
        epochs: int = 1000,
        learning_rate: float = 1e-2,
        batch_size: int | None = None,
        weight_decay: float = 1.0,
        prior_variance: float = 1.0,
        noise_shape: float = 1.0,
        noise_rate: float = 1.0,
        regularisation: int | None = None,
        calibration_folds: int = 5,
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
        self.prior_variance = prior_variance
        self.noise_shape = noise_shape
        self.noise_rate = noise_rate
        self.regularisation = regularisation
        self.calibration_folds = calibration_folds
        self.random_state = random_state
        self.device = device
        self.progress = progress

    def _check_options(self) -> None:
        super()._check_options()
        self._check_option("num_members", Integral, 1)
        for name in ("prior_variance", "noise_shape", "noise_rate"):
            check_positive(getattr(self, name), name)
        self._check_option("calibration_folds", Integral, 0)
        level = self.regularisation
        if level is not None and not (
            isinstance(level, Integral) and level in (0, 1, 2) and level is not True
        ):
            raise InputError(f"regularisation is {shown(level)}, expected 0, 1, 2 or None")

    @staticmethod
    def _fit_together(
        members: Sequence[NeuralLinearRegressor], sets: Sequence[tuple[Tensor, Tensor]]
    ) -> None:
        num, generators = int(members[0].num_members), [member._generator() for member in members]
        chosen = members[0]._cross_validated(sets, [generator.initial_seed() for generator in generators])
        for level in sorted({level for level, _ in chosen}):
            here = [position for position, (own, _) in enumerate(chosen) if own == level]
            fits = iter(
                members[0]._train(
                    [sets[position] for position in here for _ in range(num)],
                    [one for position in here for one in _apart(generators[position], num)],
                    level,
                )
            )
            for position in here:
                own = [next(fits) for _ in range(num)]
                inflation = chosen[position][1]
                members[position]._set_posterior(
                    [network for network, _ in own],
                    [
                        [replace(head, rate=head.rate * c) for head, c in zip(heads, inflation, strict=True)]
                        for _, heads in own
                    ],
                )

    def _train(
        self, sets: Sequence[tuple[Tensor, Tensor]], generators: Sequence[torch.Generator], level: int
    ) -> list[tuple[nn.Module, list[NormalInverseGammaPosterior]]]:
        """Networks with last layers in the units of y, one for each set, trained side by side."""
        scales = [(Standardise.of(x), Standardise.of(y)) for x, y in sets]
        data = [(scale_x(x), scale_y(y)) for (x, y), (scale_x, scale_y) in zip(sets, scales, strict=True)]
        networks = [
            self._fresh_network(x.shape[1], generator)
            for (x, _), generator in zip(sets, generators, strict=True)
        ]
        for network, (x, _) in zip(networks, data, strict=True):
            self._num_features(network, x)  # raises where there are none
        stack = Stack(networks, self.device)
        prior = float(self.prior_variance), float(self.noise_shape), float(self.noise_rate)
        objective = ExactLastLayer(*prior, alone=level > 0)
        trainer = replace(self._trainer(), decay_gains=level == 2)
        trainer.train(stack, objective, LabelledStack.of(data), generators)
        fits: list[tuple[nn.Module, list[NormalInverseGammaPosterior]]] = []
        stack.cpu()  # what follows is done for one network after the other: a GPU would only wait
        for position, (x, y) in enumerate(sets):
            scale_x, scale_y = scales[position]
            network = nn.Sequential(scale_x, stack.member(position), AppendOne()).eval()
            heads = self._last_layers(network, x, scale_y(y), scale_y)
            fits.append((network, heads))
        return fits

    def _last_layers(
        self, network: nn.Module, x: Tensor, targets: Tensor, scale: Standardise
    ) -> list[NormalInverseGammaPosterior]:
        """Solve the last layer on trained features, for each output, and put it into the units of y."""
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
            deviation = float(scale.deviation[output])
            mean = head.mean * deviation
            mean[-1] += float(scale.mean[output])  # the constant's weight
            heads.append(replace(head, mean=mean, rate=head.rate * deviation**2))
        return heads

    def _cross_validated(
        self, sets: Sequence[tuple[Tensor, Tensor]], seeds: Sequence[int]
    ) -> list[tuple[int, list[float]]]:
        """For each set the regularisation, and by how much the noise a fit believes in falls short.

        A flexible network fits part of the noise, and the last layer alone cannot tell. So further networks
        are trained without a part of the labels each, and the variance is scaled to make the left-out
        labels most likely; that likelihood is also what levels of regularisation are compared by.
        """
        folds = int(self.calibration_folds)
        parts = []  # (set, rows to train on, rows left out, seed)
        for number, ((x, _), seed) in enumerate(zip(sets, seeds, strict=True)):
            if folds >= 2 and len(x) >= 4 * folds:
                generator = torch.Generator().manual_seed(seed ^ _FOLDS)
                order = torch.randperm(len(x), generator=generator)
                size = len(x) // folds
                for fold in range(folds):
                    out = order[fold * size : (fold + 1) * size]
                    kept = torch.cat([order[: fold * size], order[(fold + 1) * size :]])
                    parts.append((number, kept, out, int(torch.randint(2**62, (), generator=generator))))
        best = [(math.inf, self.regularisation or 0, [1.0] * sets[0][1].shape[1]) for _ in sets]
        for level in (0, 1, 2) if self.regularisation is None else (self.regularisation,):
            if not parts:
                break
            fits = self._train(
                [(sets[number][0][kept], sets[number][1][kept]) for number, kept, _, _ in parts],
                [torch.Generator().manual_seed(seed) for _, _, _, seed in parts],
                level,
            )
            gaps: list[list[list[_Gaps]]] = [[[] for _ in range(y.shape[1])] for _, y in sets]
            for (number, _, out, _), (network, heads) in zip(parts, fits, strict=True):
                for output, head in enumerate(heads):
                    predictive = NetworkPosterior(network, head).predictive(sets[number][0][out])
                    assert isinstance(predictive, StudentT)
                    gap = sets[number][1][out, output].to(predictive.loc) - predictive.loc
                    gaps[number][output].append((gap, predictive.scale, predictive.df))
            for number, each in enumerate(gaps):
                if each[0]:
                    found = [_inflation(own) for own in each]
                    loss = sum(loss for _, loss in found)
                    best[number] = min(best[number], (loss, level, [factor for factor, _ in found]))
        return [(level, factors) for _, level, factors in best]

    def _set_posterior(
        self, networks: list[nn.Module], heads: Sequence[Sequence[NormalInverseGammaPosterior]]
    ) -> None:
        """From each network, and its last layers for each output."""
        each = tuple(own[0] if len(own) == 1 else SeveralOutputs(tuple(own)) for own in heads)
        if len(networks) == 1:
            posterior = NetworkPosterior(networks[0], each[0])
        else:
            posterior = NetworkPosterior(SideBySide(networks), MixedHeads(each))
        self.posterior_ = posterior.to(self.device)

    def _fitted_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        head: Any = self.posterior_.head
        each: Any = head.heads if isinstance(head, MixedHeads) else (head,)
        heads = [one.heads if isinstance(one, SeveralOutputs) else (one,) for one in each]  # K by O
        tensors = {f"network.{name}": value for name, value in self.posterior_.network.state_dict().items()}
        tensors["head.mean"] = torch.stack([one.mean for own in heads for one in own])  # (K O, D)
        tensors["head.covariance"] = torch.cat([own[0].covariance for own in heads])  # (K D, D)
        return tensors, {"shape": heads[0][0].shape, "rates": [one.rate for own in heads for one in own]}

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        num = int(self.num_members)
        networks: list[nn.Module] = []
        for k in range(num):
            prefix = "network." if num == 1 else f"network.{k}."
            state = {
                name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
            }
            scale = Standardise(state["0.mean"], state["0.deviation"])
            extractor = self._fresh_network(self.n_features_in_, torch.Generator())
            network = nn.Sequential(scale, extractor, AppendOne()).to(self.device)
            network.load_state_dict(state)
            networks.append(network.eval())
        rates = iter(facts["rates"])
        heads = [
            [NormalInverseGammaPosterior(mean, covariance, facts["shape"], next(rates)) for mean in means]
            for means, covariance in zip(
                tensors["head.mean"].chunk(num), tensors["head.covariance"].chunk(num), strict=True
            )
        ]
        self._set_posterior(networks, heads)


def _apart(generator: torch.Generator, num: int) -> list[torch.Generator]:
    """A generator for each member. The first is the one given: the first of many is the only one of one."""
    seed = generator.initial_seed()
    return [generator, *(torch.Generator().manual_seed(seed + k) for k in range(1, num))]


def _inflation(found: list[_Gaps]) -> tuple[float, float]:
    """The factor on the squared scale of Student's t that makes what was found most likely, and the minus
    log density that it is found with, up to a constant.
    """
    gaps, scales, degrees = (torch.cat(part) for part in zip(*found, strict=True))
    squares = (gaps / scales).square()

    def loss(log_factor: float) -> float:
        density = 0.5 * log_factor + 0.5 * (degrees + 1) * torch.log1p(
            squares / degrees / math.exp(log_factor)
        )
        return float((density + scales.log()).sum())

    best = minimize_scalar(loss, bounds=(-3, 10), method="bounded")
    return math.exp(best.x), float(best.fun)


@dataclass(frozen=True, eq=False)
class SeveralOutputs:
    """Last layers on the same features, one for each entry of y, with weights and noise of their own."""

    heads: tuple[NormalInverseGammaPosterior, ...]

    def to(self, device: torch.device | str) -> SeveralOutputs:
        return SeveralOutputs(tuple(head.to(device) for head in self.heads))

    def sample(self, num: int, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
        return [head.sample(num, generator) for head in self.heads]

    def features(self, x: Tensor) -> Tensor:
        return self.heads[0].features(x)

    def outputs(self, features: Tensor, theta: list[tuple[Tensor, Tensor]]) -> Tensor:
        return torch.cat(
            [head.outputs(features, one) for head, one in zip(self.heads, theta, strict=True)], -1
        )

    def likelihood(self, outputs: Tensor, theta: list[tuple[Tensor, Tensor]]) -> Distribution:
        deviation = torch.stack([noise.sqrt() for _, noise in theta], -1)  # (J, O)
        return Independent(Normal(outputs, deviation.unsqueeze(1).expand(outputs.shape)), 1)

    def conditional(self, x: Tensor, theta: list[tuple[Tensor, Tensor]]) -> Distribution:
        return self.likelihood(self.outputs(self.features(x), theta), theta)

    def predictive(self, x: Tensor) -> Distribution:
        each = [head.predictive(x) for head in self.heads]
        location, scale = (torch.stack([getattr(one, name) for one in each], -1) for name in ("loc", "scale"))
        return Independent(StudentT(each[0].df[..., None], location, scale), 1)


@dataclass(frozen=True)
class ExactLastLayer:
    """Minus the predictive log density of a mini-batch, given the last layer's posterior on the whole set,
    up to a constant.

    theta | s2 ~ N(0, s2 prior_variance I), s2 ~ InverseGamma(noise_shape, noise_rate), a weight vector and a
    noise for each output; the predictive is Student's t. Gradients flow through the posterior.

    With ``alone`` the mini-batch goes through the network by itself. Batch norm then sees it with other
    statistics than the posterior did: noise that keeps the network from learning that of the labels.
    """

    prior_variance: float = 1.0
    noise_shape: float = 1.0
    noise_rate: float = 1.0
    alone: bool = False
    whole: ClassVar[bool] = True
    recordable: ClassVar[bool] = True

    def __call__(self, outputs: Tensor, data: LabelledStack, index: Rows, share: Tensor) -> Tensor:
        ones = outputs.new_ones(len(outputs), 1, outputs.shape[1])
        columns = torch.cat([outputs.mT, ones], 1)  # (S, D, n), the features with a constant
        if data.rows is not None:
            real = data.rows > 0
            if self.alone:
                real = torch.cat([real, share > 0], 1)
            columns = columns * real.unsqueeze(1)
        loss: Any = _PredictiveLoss.apply
        losses: Tensor = loss(columns, data, index, share, self)
        return losses


def _solve(factor: Tensor, right: Tensor) -> Tensor:
    """(S, D, m) P^-1 right, from the lower Cholesky factor of P (S, D, D)."""
    if not factor.is_cuda:
        return torch.cholesky_solve(right, factor)
    # The same in two steps: torch's own solver of many small systems cannot be recorded into a CUDA graph.
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    solved: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return solved


class _PredictiveLoss(torch.autograd.Function):
    """Minus the predictive log density of a mini-batch, with its gradient written out.

    With Phi (D, n) the features, P = I / prior_variance + Phi Phi^T, q = Phi Y and theta = P^-1 q, a row phi
    has s = phi^T P^-1 phi and the location theta^T phi; the noise has the rate b0 + (Y^T Y - q^T theta) / 2.
    Its gradient needs the same solutions as its value, so both are computed at once: automatic
    differentiation of the Cholesky factor would cost twice as much again.
    """

    @staticmethod
    def forward(
        ctx: Any, columns: Tensor, data: LabelledStack, index: Rows, share: Tensor, prior: ExactLastLayer
    ) -> Tensor:
        """(S,) losses from columns (S, D, n) and the mini-batch's rows (S, m), or columns (S, D, n + m)."""
        width, targets, length = columns.shape[1], data.y, data.y.shape[1]
        where = index if isinstance(index, slice) else index.unsqueeze(1).expand(-1, width, -1)
        if prior.alone:
            columns, batch = columns[:, :, :length], columns[:, :, length:]  # (S, D, n), (S, D, m)
        else:
            batch = (
                columns[:, :, where] if isinstance(where, slice) else columns.gather(2, where)
            )  # (S, D, m)
        identity = torch.eye(width, dtype=columns.dtype, device=columns.device) / prior.prior_variance
        factor, failed = torch.linalg.cholesky_ex(torch.baddbmm(identity, columns, columns.mT))
        # Not an exception, which would wait for the GPU in every step: the trainer looks once, at the end.
        factor = factor.masked_fill(failed.bool().view(-1, 1, 1), torch.nan)
        summary = columns @ targets  # q (S, D, O)
        solved = _solve(factor, torch.cat([batch, summary], 2))
        pulled, theta = solved[:, :, : batch.shape[2]], solved[:, :, batch.shape[2] :]  # P^-1 phi and P^-1 q
        shape = (prior.noise_shape + data.sizes / 2).to(columns).view(-1, 1, 1)
        rate = prior.noise_rate + 0.5 * (targets.square().sum(1) - (summary * theta).sum(1)).unsqueeze(1)
        spread = 1 + (batch * pulled).sum(1).unsqueeze(2)  # (S, m, 1), 1 + s
        variance = rate / shape * spread  # (S, m, O), the t's squared scale
        gap = take_rows(targets, index) - batch.mT @ theta
        ratio = gap.square() / (2 * shape * variance)
        each = 0.5 * variance.log() + (shape + 0.5) * torch.log1p(ratio)
        share = share.unsqueeze(2)
        losses: Tensor = (each * share).sum((1, 2))

        # Derivatives of the loss by log variance and by location, for each row and output.
        heavy = (shape + 0.5) / (1 + ratio)
        by_log_variance = share * (0.5 - heavy * ratio)
        by_location = -share * heavy * gap / (shape * variance)
        by_spread = by_log_variance.sum(2, keepdim=True) / spread  # (S, m, 1)
        by_rate = by_log_variance.sum(1, keepdim=True) / rate  # (S, 1, O)
        toward = torch.bmm(pulled, by_location)  # (S, D, O)
        weighted = pulled * by_spread.mT
        # Through P, which holds every row twice, and is symmetric.
        half = torch.baddbmm((0.5 * theta * by_rate - toward) @ theta.mT, weighted, pulled.mT, alpha=-1)
        gradient = torch.bmm(half + half.mT, columns)
        gradient.baddbmm_(toward - theta * by_rate, targets.mT)  # through q
        direct = torch.baddbmm(2 * weighted, theta, by_location.mT)
        if prior.alone:
            gradient = torch.cat([gradient, direct], 2)
        elif isinstance(where, slice):
            gradient[:, :, where] += direct
        else:
            gradient.scatter_add_(2, where, direct)
        ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        # A sum of losses hands down ones: on a CPU it is cheaper to look than to multiply.
        if outer[0].is_cuda or not bool((outer[0] == 1).all()):
            gradient = gradient * outer[0].view(-1, 1, 1)
        return gradient, None, None, None, None
