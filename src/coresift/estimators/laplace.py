"""Laplace's approximation on the last layer of a network that is already trained."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from coresift.checks import check_finite, check_shape
from coresift.estimators.base import NetworkEstimator
from coresift.estimators.networks import LabelledStack, Objective
from coresift.estimators.networks.layers import AppendOne
from coresift.estimators.networks.trainer import Rows, take_rows
from coresift.estimators.plain import (
    LEAST_VARIANCE,
    GaussianOutputs,
    Likelihood,
    PlainClassifier,
    PlainNetworks,
    PlainRegressor,
)
from coresift.pool import PoolLike, as_array, as_pool, read
from coresift.posteriors.gaussian import check_positive
from coresift.posteriors.linear import LinearPosterior
from coresift.posteriors.network import NetworkPosterior, outputs_of
from coresift.posteriors.softmax import SoftmaxPosterior
from coresift.types import InputError

# A covariance of so many weights takes 2 GiB, and its factor as much again.
_MOST_WEIGHTS = 2**14
# Of a logit, under the default prior: wide enough for every probability from doubt to certainty. A flat prior
# would not do: where a trained softmax is certain its curvature vanishes, and little else holds the weights.
_PRIOR_VARIANCE = 10.0
# Where the estimators' networks, with the standardised inputs in front, have their last layer.
_HEAD = "1.head"
# Rows run through the network at a time.
_BLOCK = 1024


def laplace_posterior(
    network: nn.Module,
    last_layer: str,
    x: PoolLike,
    y: Any = None,
    *,
    task: Literal["classification", "regression"] = "classification",
    prior_precision: float | None = None,
    noise_variance: float | None = None,
) -> NetworkPosterior:
    """A posterior for a network trained anywhere: Gaussian weights in its last layer, the rest as it is.

    The mean is the layer's trained weights; the precision is the curvature of the negative log posterior
    there: ``prior_precision I + sum_n (diag(p_n) - p_n p_n^T) (x) phi_n phi_n^T`` for classes of
    probabilities p_n, and ``prior_precision I + sum_n phi_n phi_n^T / noise_variance`` for regression. The
    features phi_n are the layer's input, and a constant for its bias. The network is copied, and runs in
    evaluation mode.

    Parameters
    ----------
    network : rows (n, ...) -> logits (n, C), or predicted means (n, 1).
    last_layer : the name of the last `nn.Linear`, as in ``network.named_modules()``; only a softmax or
        log-softmax may follow it.
    x : (n, ...) the labelled rows, or any pool; read in blocks.
    y : (n,) the labels. For classes they are only checked: a softmax has the same curvature for all labels.
    prior_precision : one over the prior variance of each weight, bias included. The larger, the nearer the
        posterior stays to the trained weights. By default a prior under which the logits of a labelled row
        have a variance of 10; in regression, 10 times the mean square of the network's own outputs.
    noise_variance : of y in regression; by default the mean squared residual on the labelled rows. Where
        the network fits these too well, that is too small: pass one from held-out data.

    References
    ----------
    Daxberger et al., Laplace Redux: Effortless Bayesian Deep Learning, 2021.

    >>> network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))  # trained, in earnest
    >>> posterior = laplace_posterior(network, "2", torch.randn(20, 2))
    >>> posterior.predictive(torch.ones(4, 2)).probs.shape
    torch.Size([4, 3])
    """
    if task not in ("classification", "regression"):
        raise InputError(f"task is {task!r}, expected 'classification' or 'regression'")
    if prior_precision is not None:
        check_positive(prior_precision, "prior_precision")
        prior_precision = float(prior_precision)
    copied = copy.deepcopy(network).eval()
    layer = _find_linear(copied, last_layer)
    extractor: nn.Module = _Features(copied, layer)
    weights = layer.weight.detach().double()
    if layer.bias is not None:
        extractor = nn.Sequential(extractor, AppendOne())
        weights = torch.cat([weights, layer.bias.detach().double()[:, None]], 1)  # (C, D), the bias last
    rows = as_pool(x)
    try:
        targets = None if y is None else torch.as_tensor(y if isinstance(y, Tensor) else np.array(y))
    except TypeError:
        raise InputError(
            "y holds no numbers; give classes as the network counts its outputs, from 0"
        ) from None
    if targets is not None and task == "regression" and targets.ndim == 2:
        targets = targets.squeeze(1)
    if targets is not None:
        check_shape(targets, (len(rows),), "y")
        check_finite(targets, what="labelled y")

    def blocks() -> Iterator[tuple[Tensor, Tensor | None]]:
        """Features (n, D) in float64, and labels."""
        for block in read(rows, _BLOCK):
            features = outputs_of(extractor, block.x).double()
            check_shape(
                features, (len(block), weights.shape[1]), f"the input of layer {last_layer!r}, as rows,"
            )
            if block.start == 0:
                _check_last(outputs_of(copied, block.x), features @ weights.mT, last_layer)
            labels = None if targets is None else targets[block.start :][: len(block)].to(features.device)
            yield features, labels

    with torch.no_grad():
        if task == "classification":
            return NetworkPosterior(extractor, _softmax_layer(blocks(), weights, prior_precision))
        return NetworkPosterior(extractor, _linear_layer(blocks(), weights, prior_precision, noise_variance))


class _Laplace(PlainNetworks):
    """What the estimators share: a network, trained plainly, and then Laplace's approximation on its head."""

    posterior_: NetworkPosterior

    def __init__(
        self,
        network: nn.Module | Callable[[int], nn.Module] | None = None,
        *,
        prior_precision: float | None = None,
        epochs: int = 300,
        learning_rate: float = 1e-2,
        batch_size: int | None = None,
        weight_decay: float = 1e-2,
        random_state: int | None = None,
        device: str = "cpu",
        progress: bool = True,
    ) -> None:
        self.network = network
        self.prior_precision = prior_precision
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.random_state = random_state
        self.device = device
        self.progress = progress

    def _check_options(self) -> None:
        super()._check_options()
        if self.prior_precision is not None:
            check_positive(self.prior_precision, "prior_precision")

    def _networks(self) -> Sequence[nn.Module]:
        features: Any = self.posterior_.network
        return [features[0].network]  # below the constant, what the head sees; in there, all of the network

    def _set_head(self, network: nn.Module, head: LinearPosterior | SoftmaxPosterior) -> None:
        features = nn.Sequential(_Features(network, _find_linear(network, _HEAD)), AppendOne())
        self.posterior_ = NetworkPosterior(features.eval(), head)


class LaplaceRegressor(PlainRegressor, _Laplace):
    """Regression with a network trained by squared error, and Laplace's approximation on its last layer.

    The noise is the mean squared residual of the labelled points. Where the network fits these too well, it
    is too small; a larger ``weight_decay`` or fewer ``epochs`` help, and `NeuralLinearRegressor` is
    calibrated. Inputs and outputs are standardised inside; predictions and ``posterior_`` are in the units
    of ``y``, of which there is one for each row.

    Parameters
    ----------
    network : the layers below the last, linear one: ``None`` for two layers of 30 units with batch norm, a
        module (used for its layers; its weights are drawn anew), or a function from the number of columns or
        channels to a module.
    prior_precision : of the last layer's weights, for standardised targets; see `laplace_posterior`.
    epochs, learning_rate, batch_size, weight_decay : see `Trainer`.
    random_state : seed of weights and shuffling.
    device : where to train, "cpu" or "cuda".
    progress : show a bar on a terminal once training has taken two seconds.

    Attributes
    ----------
    posterior_ : for `coresift.select`, which uses closed forms.

    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = LaplaceRegressor(epochs=20, random_state=0).fit(x, x[:, 0] ** 2)
    >>> mean, deviation = model.predict(x, return_std=True)
    >>> mean.shape, bool((deviation > 0).all())
    ((40,), True)
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = False
        return tags

    def _validated(self, X: Any, y: Any, **checks: Any) -> tuple[Tensor, Tensor]:
        shape = as_array(y).shape
        if len(shape) > 1 and shape[1] > 1:
            raise InputError(
                f"y has shape {shape}, but LaplaceRegressor is for one output; fit one for each, or "
                "use NeuralLinearRegressor"
            )
        return NetworkEstimator._validated(self, X, y, y_numeric=True, **checks)

    def _num_outputs(self) -> int:
        return 1

    @property
    def _objective(self) -> Objective:
        return SquaredError()

    def _learn_posterior(
        self, networks: Sequence[nn.Module], likelihood: Likelihood, x: Tensor, y: Tensor
    ) -> None:
        network = networks[0]
        assert isinstance(likelihood, GaussianOutputs)
        y = y.to(self.device)
        noise = float((outputs_of(network, x) - y).square().mean())
        head = laplace_posterior(
            network,
            _HEAD,
            x,
            y,
            task="regression",
            prior_precision=self.prior_precision,
            noise_variance=max(noise, LEAST_VARIANCE),
        ).head
        assert isinstance(head, LinearPosterior)
        deviation = float(likelihood.deviation)
        mean = head.mean * deviation
        mean[-1] += float(likelihood.mean)  # the constant's weight
        scaled = LinearPosterior(mean, head.covariance * deviation**2, head.noise_variance * deviation**2)
        self._set_head(network, scaled)

    def _fitted_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, _ = PlainNetworks._fitted_state(self)
        head: Any = self.posterior_.head
        tensors |= {"posterior.mean": head.mean, "posterior.covariance": head.covariance}
        return tensors, {"noise_variance": head.noise_variance}

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        mean, covariance = tensors["posterior.mean"], tensors["posterior.covariance"]
        head = LinearPosterior(mean, covariance, facts["noise_variance"])
        self._set_head(self._restored_networks(tensors)[0], head)


class LaplaceClassifier(PlainClassifier, _Laplace):
    """Classification with a network trained by cross-entropy, and Laplace's approximation on its last layer.

    Inputs are standardised inside.

    Parameters
    ----------
    network, epochs, learning_rate, batch_size, weight_decay, random_state, device, progress : as for
        `LaplaceRegressor`.
    prior_precision : of the last layer's weights; see `laplace_posterior`.

    Attributes
    ----------
    classes_ : (C,) the labels, in the order of ``predict_proba``'s columns; after ``fit_many``, those of all
        sets.
    posterior_ : for `coresift.select`.

    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = LaplaceClassifier(epochs=20, random_state=0).fit(x, np.where(x[:, 0] > 0, "+", "-"))
    >>> model.predict(x[[0, -1]]).tolist()
    ['-', '+']
    """

    def _num_outputs(self) -> int:
        if len(self.classes_) < 2:
            raise InputError(f"y holds one class, {self.classes_[0]!r}, expected at least two")
        return len(self.classes_)

    def _learn_posterior(
        self, networks: Sequence[nn.Module], likelihood: Likelihood, x: Tensor, y: Tensor
    ) -> None:
        head = laplace_posterior(networks[0], _HEAD, x, y, prior_precision=self.prior_precision).head
        assert isinstance(head, SoftmaxPosterior)
        self._set_head(networks[0], head)

    def _fitted_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, facts = super()._fitted_state()
        head: Any = self.posterior_.head
        tensors |= {f"posterior.{name}": getattr(head, name) for name in ("mean", "deviation", "factor")}
        return tensors, facts

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        mean, deviation, factor = (tensors[f"posterior.{name}"] for name in ("mean", "deviation", "factor"))
        self._set_head(self._restored_networks(tensors)[0], SoftmaxPosterior(mean, deviation, factor))


@dataclass(frozen=True)
class SquaredError:
    """Half the mean squared error of a mini-batch."""

    whole, alone, recordable = False, True, True

    def __call__(self, outputs: Tensor, data: LabelledStack, index: Rows, share: Tensor) -> Tensor:
        gap = take_rows(data.y, index) - outputs
        return 0.5 * (gap.square().sum(2) * share).sum(1)


def _softmax_layer(
    blocks: Iterable[tuple[Tensor, Tensor | None]], weights: Tensor, prior_precision: float | None
) -> SoftmaxPosterior:
    """Gaussian weights (C, D) of a softmax layer, with the curvature at ``weights`` as precision."""
    classes, size = weights.shape
    if classes < 2:
        raise InputError("classification needs an output for each class, the last layer has one")
    if weights.numel() > _MOST_WEIGHTS:
        raise InputError(
            f"the last layer has {classes} x {size} weights, and a covariance of so many needs "
            f"{8 * weights.numel() ** 2 / 2**30:.0f} GiB; put a narrower layer before it, or use "
            "coresift.estimators.DropoutPosterior"
        )
    precision = weights.new_zeros(classes * size, classes * size)
    diagonal = precision.view(classes, size, classes, size).diagonal(dim1=0, dim2=2)  # (D, D, C), a view
    squares, count = 0.0, 0
    for features, labels in blocks:
        if labels is not None:
            _check_classes(labels, classes)
        probs = (features @ weights.mT).softmax(1)
        joint = (probs.unsqueeze(2) * features.unsqueeze(1)).flatten(1)  # (n, C D)
        precision -= joint.mT @ joint
        own = (probs.mT.unsqueeze(1) * features.mT) @ features  # (C, D, D)
        diagonal += own.permute(1, 2, 0)
        squares, count = squares + float(features.square().sum()), count + len(features)
    if prior_precision is None and squares == 0:
        raise InputError(
            "the last layer's inputs are all zero, which says nothing of a prior; pass prior_precision="
        )
    precision.diagonal().add_(prior_precision or squares / count / _PRIOR_VARIANCE)
    factor = torch.linalg.cholesky(precision)
    identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    # With precision = F F^T the covariance is F^-T F^-1: its factor's columns are the rows of F^-1.
    inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
    return SoftmaxPosterior(weights, torch.zeros_like(weights), inverse.view(-1, classes, size))


def _linear_layer(
    blocks: Iterable[tuple[Tensor, Tensor | None]],
    weights: Tensor,
    prior_precision: float | None,
    noise_variance: float | None,
) -> LinearPosterior:
    """Gaussian weights (D,) of a linear output, with the curvature at ``weights`` (1, D) as precision."""
    if len(weights) != 1:
        raise InputError(f"regression is for one output, the last layer has {len(weights)}")
    mean = weights[0]
    gram, squares, count = weights.new_zeros(len(mean), len(mean)), 0.0, 0
    for features, targets in blocks:
        gram += features.mT @ features
        if targets is not None:
            squares += float((targets - features @ mean).square().sum())
            count += len(targets)
    if noise_variance is None:
        if not count:
            raise InputError("regression needs y, or noise_variance=")
        noise_variance = squares / count
    check_positive(noise_variance, "noise_variance")
    precision = gram / noise_variance
    outputs = float(mean @ gram @ mean)  # the sum of their squares
    if prior_precision is None and outputs == 0:
        raise InputError(
            "the network's outputs are all zero, which says nothing of a prior; pass prior_precision="
        )
    precision.diagonal().add_(prior_precision or float(gram.trace()) / (_PRIOR_VARIANCE * outputs))
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
    return LinearPosterior(mean, covariance, noise_variance)


class _Features(nn.Module):
    """What a layer of a network sees: rows (n, ...) -> the layer's input (n, D)."""

    def __init__(self, network: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.network, self.layer = network, layer

    def forward(self, x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        hook = self.layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            self.network(x)
        finally:
            hook.remove()
        if len(seen) != 1:
            raise InputError(f"the last layer is called {len(seen)} times in a pass; it must be once")
        return seen[0]


def _find_linear(network: nn.Module, name: str) -> nn.Linear:
    found = dict(network.named_modules()).get(name)
    if isinstance(found, nn.Linear):
        return found
    what = "there is no layer" if found is None else f"there is a {type(found).__name__}, no nn.Linear,"
    names = [repr(other) for other, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    raise InputError(f"{what} {name!r} in the network; its linear layers are {', '.join(names) or 'none'}")


def _check_last(outputs: Tensor, logits: Tensor, last_layer: str) -> None:
    """Raise unless the network's outputs are the layer's, but for a softmax."""
    several = logits.shape[1] > 1
    for expected in (logits, logits.log_softmax(1), logits.softmax(1)) if several else (logits,):
        if outputs.numel() == expected.numel() and torch.allclose(
            outputs.double().view_as(expected), expected, rtol=1e-2, atol=1e-2
        ):
            return
    raise InputError(
        f"the network's outputs, of shape {tuple(outputs.shape)}, are not those of layer {last_layer!r}, of "
        f"shape {tuple(logits.shape)}: name the last layer; nothing but a softmax may follow it"
    )


def _check_classes(labels: Tensor, classes: int) -> None:
    wrong = labels[(labels < 0) | (labels >= classes) | (labels != labels.round())]
    if len(wrong):
        raise InputError(f"y holds {wrong[0].item()}, but the network's classes are 0 to {classes - 1}")
