"""Laplace's approximation on the last layer of a network that is already trained."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from coresift import limits
from coresift.checks import check_finite, check_shape
from coresift.estimators.networks.layers import AppendOne
from coresift.pool import Pool, PoolLike, as_pool, read
from coresift.posteriors.gaussian import check_positive
from coresift.posteriors.linear import LinearPosterior
from coresift.posteriors.network import NetworkPosterior, outputs_of
from coresift.posteriors.softmax import SoftmaxPosterior
from coresift.types import InputError

# The variance of a logit under the default prior: large enough for every probability from doubt to certainty.
# A flat prior fails: where a trained softmax is certain, its curvature vanishes and bounds no weights.
_PRIOR_VARIANCE = 10.0


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
    if task not in ("classification", "regression"):
        raise InputError(f"task is {task!r}, expected 'classification' or 'regression'")
    if prior_precision is not None:
        check_positive(prior_precision, "prior_precision")
        prior_precision = float(prior_precision)
    rows = as_pool(x)
    labelled = _Labelled.of(network, last_layer, rows, _targets(y, len(rows), task))
    with torch.no_grad():
        if task == "classification":
            return NetworkPosterior(labelled.extractor, _softmax_layer(labelled, prior_precision))
        return NetworkPosterior(labelled.extractor, _linear_layer(labelled, prior_precision, noise_variance))


def _targets(y: Any, num: int, task: str) -> Tensor | None:
    if y is None:
        return None
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


@dataclass(frozen=True, eq=False)
class _Labelled:
    """Labelled rows with the network that was trained on them.

    Attributes
    ----------
    network : a copy, in evaluation mode.
    extractor : its layers below the last one: rows (n, ...) -> features (n, D).
    weights : (C, D) of the last layer, the bias last.
    """

    network: nn.Module
    last_layer: str
    extractor: nn.Module
    weights: Tensor
    rows: Pool
    targets: Tensor | None

    @classmethod
    def of(cls, network: nn.Module, last_layer: str, rows: Pool, targets: Tensor | None) -> _Labelled:
        network = copy.deepcopy(network).eval()
        layer = find_linear(network, last_layer)
        extractor: nn.Module = LayerInput(network, layer)
        weights = layer.weight.detach().double()
        if layer.bias is not None:
            extractor = nn.Sequential(extractor, AppendOne())
            weights = torch.cat([weights, layer.bias.detach().double()[:, None]], 1)
        return cls(network, last_layer, extractor, weights, rows, targets)

    def blocks(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield features (n, D) in float64, and labels."""
        for block in read(self.rows, limits.LAPLACE_ROWS):
            features = outputs_of(self.extractor, block.x).double()
            wanted = (len(block), self.weights.shape[1])
            check_shape(features, wanted, f"the input of layer {self.last_layer!r}, as rows,")
            if block.start == 0:
                outputs = outputs_of(self.network, block.x)
                _check_last(outputs, features @ self.weights.mT, self.last_layer)
            labels = None if self.targets is None else self.targets[block.start :][: len(block)]
            yield features, None if labels is None else labels.to(features.device)


def _softmax_layer(labelled: _Labelled, prior_precision: float | None) -> SoftmaxPosterior:
    """Gaussian weights (C, D) of a softmax layer, with the curvature at the trained weights as precision."""
    classes, size = labelled.weights.shape
    if classes < 2:
        raise InputError("classification needs an output for each class, the last layer has one")
    if classes * size > limits.LAST_LAYER_WEIGHTS:
        raise InputError(
            f"the last layer has {classes} x {size} weights, and their covariance needs "
            f"{8 * (classes * size) ** 2 / 2**30:.0f} GiB; put a narrower layer before it, or use "
            "coresift.estimators.DropoutPosterior"
        )
    precision, squares = _softmax_curvature(labelled.blocks(), labelled.weights)
    if prior_precision is None and squares == 0:
        raise InputError(
            "the last layer's inputs are all zero, so no default prior can be found; pass prior_precision="
        )
    precision.diagonal().add_(prior_precision or squares / len(labelled.rows) / _PRIOR_VARIANCE)
    factor = torch.linalg.cholesky(precision)
    identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    # With precision = F F^T the covariance is F^-T F^-1: its factor's columns are the rows of F^-1.
    inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
    std = torch.zeros_like(labelled.weights)
    return SoftmaxPosterior(labelled.weights, std, inverse.view(-1, classes, size))


def _softmax_curvature(
    blocks: Iterable[tuple[Tensor, Tensor | None]], weights: Tensor
) -> tuple[Tensor, float]:
    """The curvature (C D, C D) of the negative log likelihood, and the sum of the squared features."""
    classes, size = weights.shape
    precision = weights.new_zeros(classes * size, classes * size)
    diagonal = precision.view(classes, size, classes, size).diagonal(dim1=0, dim2=2)  # (D, D, C), a view
    squares = 0.0
    for features, labels in blocks:
        if labels is not None:
            _check_classes(labels, classes)
        probs = (features @ weights.mT).softmax(1)
        joint = (probs.unsqueeze(2) * features.unsqueeze(1)).flatten(1)  # (n, C D)
        precision -= joint.mT @ joint
        own = (probs.mT.unsqueeze(1) * features.mT) @ features  # (C, D, D)
        diagonal += own.permute(1, 2, 0)
        squares += float(features.square().sum())
    return precision, squares


def _linear_layer(
    labelled: _Labelled, prior_precision: float | None, noise_variance: float | None
) -> LinearPosterior:
    """Gaussian weights (D,) of a linear output, with the curvature at the trained weights as precision."""
    if len(labelled.weights) != 1:
        raise InputError(f"regression is for one output, the last layer has {len(labelled.weights)}")
    if noise_variance is None and labelled.targets is None:
        raise InputError("regression needs y, or noise_variance=")
    mean = labelled.weights[0]
    gram, error = _linear_curvature(labelled.blocks(), mean)
    noise_variance = error / len(labelled.rows) if noise_variance is None else noise_variance
    check_positive(noise_variance, "noise_variance")
    precision = gram / noise_variance
    squares = float(mean @ gram @ mean)  # of the outputs
    if prior_precision is None and squares == 0:
        raise InputError(
            "the network's outputs are all zero, so no default prior can be found; pass prior_precision="
        )
    precision.diagonal().add_(prior_precision or float(gram.trace()) / (_PRIOR_VARIANCE * squares))
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
    return LinearPosterior(mean, covariance, noise_variance)


def _linear_curvature(blocks: Iterable[tuple[Tensor, Tensor | None]], mean: Tensor) -> tuple[Tensor, float]:
    """The sum of phi phi^T over the features phi, and the sum of the squared errors."""
    gram, error = mean.new_zeros(len(mean), len(mean)), 0.0
    for features, targets in blocks:
        gram += features.mT @ features
        if targets is not None:
            error += float((targets - features @ mean).square().sum())
    return gram, error


class LayerInput(nn.Module):
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


def find_linear(network: nn.Module, name: str) -> nn.Linear:
    """Return the linear layer of that name, or raise an error that lists the linear layers."""
    layers = dict(network.named_modules())
    layer = layers.get(name)
    if isinstance(layer, nn.Linear):
        return layer
    names = ", ".join(repr(other) for other, value in layers.items() if isinstance(value, nn.Linear))
    what = "there is no layer" if layer is None else f"there is a {type(layer).__name__}, no nn.Linear,"
    raise InputError(f"{what} {name!r} in the network; its linear layers are {names or 'none'}")


def _check_last(outputs: Tensor, logits: Tensor, last_layer: str) -> None:
    """Raise unless the network's outputs are the layer's, up to a softmax."""
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
