"""Laplace's approximation on the last layer: of a network trained anywhere, and of estimators."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from coresift import limits
from coresift.checks import check_choice, check_finite, check_positive, check_shape
from coresift.errors import InputError
from coresift.estimators.base import NetworkClassifier
from coresift.estimators.estimator import LabelledSet
from coresift.estimators.networks.layers import AppendOne, substate
from coresift.estimators.networks.losses import LEAST_VARIANCE, GaussianOutputs, Likelihood, SquaredError
from coresift.estimators.saving import State, head_tensors
from coresift.estimators.stacked import HEAD, Networks, StackedEstimator, StackedRegressor
from coresift.pool import Pool, PoolLike, as_array, as_pool, read
from coresift.posteriors.linear import LinearPosterior
from coresift.posteriors.network import NetworkPosterior, outputs_of
from coresift.posteriors.softmax import SoftmaxPosterior

# The variance of a logit under the default prior: large enough for every probability from doubt to certainty.
# A flat prior fails: where a trained softmax is certain, its curvature vanishes and bounds no weights.
_PRIOR_VARIANCE = 10.0
# Features (n, D) of the labelled rows in float64, and their labels.
_Blocks: TypeAlias = Iterable[tuple[Tensor, Tensor | None]]


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
    """Make a posterior for a network trained anywhere: Gaussian weights in its last layer, the rest fixed.

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
    prior_precision : 1 / the prior variance of each weight, bias included. With a larger one the posterior
        stays closer to the trained weights. By default a prior under which the logits of a labelled row
        have a variance of 10; in regression, 10 times the mean square of the network's own outputs.
    noise_variance : of y in regression; by default the mean squared residual on the labelled rows. That is
        too small if the network overfits these: then pass one from held-out data.

    References
    ----------
    Daxberger et al., Laplace Redux: Effortless Bayesian Deep Learning, 2021.

    >>> network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))  # in practice, trained
    >>> posterior = laplace_posterior(network, "2", torch.randn(20, 2))
    >>> posterior.predictive(torch.ones(4, 2)).probs.shape
    torch.Size([4, 3])
    """
    check_choice(task, ("classification", "regression"), "task")
    if prior_precision is not None:
        check_positive(prior_precision, "prior_precision")
        prior_precision = float(prior_precision)
    rows = as_pool(x)
    targets = None if y is None else _targets(y, len(rows), task)
    if task == "regression" and noise_variance is None and targets is None:
        raise InputError("regression needs y, or noise_variance=")
    network = copy.deepcopy(network).eval()
    extractor, weights = _split(network, last_layer)
    blocks = _features(network, last_layer, extractor, weights, rows, targets)
    with torch.no_grad():
        if task == "classification":
            return NetworkPosterior(extractor, _softmax_layer(blocks, weights, prior_precision))
        return NetworkPosterior(extractor, _linear_layer(blocks, weights, prior_precision, noise_variance))


def _split(network: nn.Module, last_layer: str) -> tuple[nn.Module, Tensor]:
    """Split a network into rows (n, ...) -> features (n, D), and the last weights (C, D), the bias last."""
    layers = dict(network.named_modules())
    layer = layers.get(last_layer)
    if not isinstance(layer, nn.Linear):
        names = ", ".join(repr(name) for name, value in layers.items() if isinstance(value, nn.Linear))
        what = "there is no layer" if layer is None else f"there is a {type(layer).__name__}, no nn.Linear,"
        raise InputError(f"{what} {last_layer!r} in the network; its linear layers are {names or 'none'}")
    extractor, weights = _LayerInput(network, layer), layer.weight.detach().double()
    if layer.bias is None:
        return extractor, weights
    weights = torch.cat([weights, layer.bias.detach().double()[:, None]], 1)
    return nn.Sequential(extractor, AppendOne()), weights


def _features(
    network: nn.Module, last_layer: str, extractor: nn.Module, weights: Tensor, x: Pool, y: Tensor | None
) -> _Blocks:
    """Yield the features and labels of a block of rows; check that the network ends with the layer."""
    for block in read(x, limits.LAPLACE_ROWS):
        features = outputs_of(extractor, block.x).double()
        wanted = (len(block), weights.shape[1])
        check_shape(features, wanted, f"the input of layer {last_layer!r}, as rows,")
        if block.start == 0:
            _check_last(outputs_of(network, block.x), features @ weights.mT, last_layer)
        yield features, None if y is None else y[block.start :][: len(block)].to(features.device)


def _targets(y: Any, num: int, task: str) -> Tensor:
    try:
        targets = torch.as_tensor(y if isinstance(y, Tensor) else np.array(y))
    except TypeError:
        raise InputError(
            "y holds no numbers; give classes as the network counts its outputs, from 0"
        ) from None
    if task == "regression" and targets.ndim == 2:
        targets = targets.squeeze(1)
    check_shape(targets, (num,), "y")
    check_finite(targets, what="labelled y")
    return targets


def _softmax_layer(blocks: _Blocks, weights: Tensor, prior_precision: float | None) -> SoftmaxPosterior:
    """Gaussian weights (C, D) of a softmax layer, with the curvature at the trained weights as precision."""
    classes, size = weights.shape
    if classes < 2:
        raise InputError("classification needs an output for each class, the last layer has one")
    if classes * size > limits.LAST_LAYER_WEIGHTS:
        raise InputError(
            f"the last layer has {classes} x {size} weights, and their covariance needs "
            f"{8 * (classes * size) ** 2 / 2**30:.0f} GiB; put a narrower layer before it, or use "
            "coresift.estimators.DropoutPosterior"
        )
    # The curvature of the negative log likelihood.
    precision = weights.new_zeros(classes * size, classes * size)
    diagonal = precision.view(classes, size, classes, size).diagonal(dim1=0, dim2=2)  # (D, D, C), a view
    squares, num = 0.0, 0
    for features, labels in blocks:
        _check_classes(labels, classes)
        probs = (features @ weights.mT).softmax(1)
        joint = (probs.unsqueeze(2) * features.unsqueeze(1)).flatten(1)  # (n, C D)
        precision -= joint.mT @ joint
        own = (probs.mT.unsqueeze(1) * features.mT) @ features  # (C, D, D)
        diagonal += own.permute(1, 2, 0)
        squares, num = squares + float(features.square().sum()), num + len(features)
    _add_prior(precision, prior_precision, squares / num / _PRIOR_VARIANCE, "the last layer's inputs")
    factor = torch.linalg.cholesky(precision)
    # With precision = F F^T the covariance is F^-T F^-1: its factor's columns are the rows of F^-1.
    inverse = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False)
    return SoftmaxPosterior(weights, torch.zeros_like(weights), inverse.view(-1, classes, size))


def _linear_layer(
    blocks: _Blocks, weights: Tensor, prior_precision: float | None, noise_variance: float | None
) -> LinearPosterior:
    """Gaussian weights (D,) of a linear output, with the curvature at the trained weights as precision."""
    if len(weights) != 1:
        raise InputError(f"regression is for one output, the last layer has {len(weights)}")
    mean = weights[0]
    gram, squared_error, num = mean.new_zeros(len(mean), len(mean)), 0.0, 0
    for features, targets in blocks:
        gram += features.mT @ features
        if targets is not None:
            squared_error += float((targets - features @ mean).square().sum())
            num += len(features)
    noise_variance = squared_error / num if noise_variance is None else noise_variance
    check_positive(noise_variance, "noise_variance")
    precision = gram / noise_variance
    squares = float(mean @ gram @ mean)  # of the outputs
    default = float(gram.trace()) / (_PRIOR_VARIANCE * squares) if squares else 0.0
    _add_prior(precision, prior_precision, default, "the network's outputs")
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
    return LinearPosterior(mean, covariance, noise_variance)


def _add_prior(precision: Tensor, given: float | None, default: float, what: str) -> None:
    """Add the prior's precision to the curvature; the default is zero if ``what`` is all zero."""
    if given is None and default == 0:
        raise InputError(f"{what} are all zero, so no default prior can be found; pass prior_precision=")
    precision.diagonal().add_(default if given is None else given)


class _LayerInput(nn.Module):
    """The input of a layer inside a network: rows (n, ...) -> (n, D)."""

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


def _check_last(outputs: Tensor, logits: Tensor, last_layer: str) -> None:
    """Raise unless the network's outputs are the layer's, up to a softmax."""
    ends = [logits, logits.log_softmax(1), logits.softmax(1)] if logits.shape[1] > 1 else [logits]
    if outputs.numel() == logits.numel():
        seen = outputs.double().view_as(logits)
        if any(torch.allclose(seen, expected, rtol=1e-2, atol=1e-2) for expected in ends):
            return
    raise InputError(
        f"the network's outputs, of shape {tuple(outputs.shape)}, are not those of layer {last_layer!r}, of "
        f"shape {tuple(logits.shape)}: name the last layer; nothing but a softmax may follow it"
    )


def _check_classes(labels: Tensor | None, classes: int) -> None:
    if labels is None:
        return
    wrong = labels[(labels < 0) | (labels >= classes) | (labels != labels.round())]
    if len(wrong):
        raise InputError(f"y holds {wrong[0].item()}, but the network's classes are 0 to {classes - 1}")


@dataclass(eq=False, repr=False, kw_only=True)
class _Laplace(StackedEstimator):
    """What the estimators share: a plainly trained network, and then Laplace's approximation on its head."""

    posterior_type = NetworkPosterior
    _head_type: ClassVar[type]

    prior_precision: float | None = None

    def _check_options(self) -> None:
        super()._check_options()
        if self.prior_precision is not None:
            check_positive(self.prior_precision, "prior_precision")

    def _networks(self) -> Networks:
        return [self.posterior_.network[0].network]  # inside the layer that gives the head's input

    def _fitted_state(self) -> State:
        tensors, facts = super()._fitted_state()
        return tensors | head_tensors(self.posterior_.head), facts

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        extractor, _ = _split(self._restored_networks(tensors)[0], HEAD)
        head = self._head_type(**substate(tensors, "head."), **facts)
        self.posterior_ = NetworkPosterior(extractor, head)


class LaplaceRegressor(_Laplace, StackedRegressor):
    """Regression with a network trained by squared error, and Laplace's approximation on its last layer.

    The noise variance is the mean squared residual of the labelled points. It is too small if the network
    overfits these; a larger ``weight_decay`` or fewer ``epochs`` help, and `NeuralLinearRegressor` is
    calibrated. Inputs and outputs are standardised inside; predictions and ``posterior_`` are in the units
    of ``y``, which has one number for each row.

    Parameters
    ----------
    network : the layers below the last, linear one, see `NeuralLinearClassifier`.
    prior_precision : of the last layer's weights, for standardised targets; see `laplace_posterior`.
    epochs, learning_rate, batch_size, weight_decay, schedule, least_steps : see `Trainer`.
    augment, random_state, device, precision, progress : see `NeuralLinearClassifier`.

    Attributes
    ----------
    posterior_ : for `coresift.select`, which uses closed forms.

    >>> x = torch.linspace(-1, 1, 40)[:, None].numpy()
    >>> model = LaplaceRegressor(epochs=20, random_state=0).fit(x, x[:, 0] ** 2)
    >>> mean, std = model.predict(x, return_std=True)
    >>> mean.shape, bool((std > 0).all())
    ((40,), True)
    """

    _head_type, _loss = LinearPosterior, SquaredError
    _outputs_per_target = 1
    _target_checks: ClassVar[dict[str, bool]] = {"multi_output": False, "y_numeric": True}

    def _validated(self, X: Any, y: Any) -> LabelledSet:
        shape = as_array(y).shape
        if len(shape) > 1 and shape[1] > 1:
            raise InputError(
                f"y has shape {shape}, but LaplaceRegressor is for one output; fit one for each, or "
                "use NeuralLinearRegressor"
            )
        return super()._validated(X, y)

    def _new_posterior(
        self, networks: Networks, likelihood: Likelihood, *labelled: Tensor
    ) -> NetworkPosterior:
        (network,), (x, y) = networks, labelled
        noise = max(float((outputs_of(network, x) - y.to(self.device)).square().mean()), LEAST_VARIANCE)
        options = {"prior_precision": self.prior_precision, "noise_variance": noise}
        posterior = laplace_posterior(network, HEAD, x, y, task="regression", **options)
        head, scale = cast(LinearPosterior, posterior.head), cast(GaussianOutputs, likelihood)
        std = float(scale.std)
        mean = head.mean * std
        mean[-1] += float(scale.mean)  # the constant's weight
        head = LinearPosterior(mean, head.covariance * std**2, head.noise_variance * std**2)
        return replace(posterior, head=head)

    def _fitted_state(self) -> State:
        tensors, _ = super()._fitted_state()
        return tensors, {"noise_variance": self.posterior_.head.noise_variance}


class LaplaceClassifier(NetworkClassifier, _Laplace):
    """Classification with a network trained by cross-entropy, and Laplace's approximation on its last layer.

    Inputs are standardised inside.

    Parameters
    ----------
    network, epochs, ..., progress : as for `LaplaceRegressor`.
    prior_precision : of the last layer's weights; see `laplace_posterior`.

    Attributes
    ----------
    classes_ : the labels, in the order of ``predict_proba``'s columns; after ``fit_many``, those of all sets.
    posterior_ : for `coresift.select`.

    >>> x = torch.linspace(-1, 1, 40)[:, None].numpy()
    >>> model = LaplaceClassifier(epochs=20, random_state=0)
    >>> model = model.fit(x, ["+" if value > 0 else "-" for value in x])
    >>> model.predict(x[[0, -1]]).tolist()
    ['-', '+']
    """

    _head_type = SoftmaxPosterior

    def _num_targets(self) -> int:
        if len(self.classes_) < 2:
            raise InputError(f"y holds one class, {self.classes_[0]!r}, expected at least two")
        return super()._num_targets()

    def _new_posterior(
        self, networks: Networks, likelihood: Likelihood, *labelled: Tensor
    ) -> NetworkPosterior:
        return laplace_posterior(networks[0], HEAD, *labelled, prior_precision=self.prior_precision)
