"""Estimators with Laplace's approximation on the last layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coresift.estimators.curvature import LayerInput, find_linear, laplace_posterior
from coresift.estimators.networks import Objective, Stack
from coresift.estimators.networks.heads import substate
from coresift.estimators.networks.layers import AppendOne
from coresift.estimators.networks.losses import LEAST_VARIANCE, GaussianOutputs, Likelihood, SquaredError
from coresift.estimators.saving import head_tensors
from coresift.estimators.stacked import StackedClassifier, StackedEstimator, StackedRegressor
from coresift.pool import as_array
from coresift.posteriors.gaussian import check_positive
from coresift.posteriors.linear import LinearPosterior
from coresift.posteriors.network import NetworkPosterior, outputs_of
from coresift.posteriors.softmax import SoftmaxPosterior
from coresift.types import InputError

# The name of the last layer in the estimators' networks, which begin with standardisation.
_HEAD = "1.head"


@dataclass(eq=False, repr=False, kw_only=True)
class _Laplace(StackedEstimator):
    """What the estimators share: a plainly trained network, and then Laplace's approximation on its head."""

    posterior_type = NetworkPosterior

    prior_precision: float | None = None

    def _check_options(self) -> None:
        super()._check_options()
        if self.prior_precision is not None:
            check_positive(self.prior_precision, "prior_precision")

    def _networks(self) -> Sequence[nn.Module]:
        features: Any = self.posterior_.network
        return [features[0].network]  # the whole network, inside the layer that gives the head's input

    def _set_head(self, network: nn.Module, head: LinearPosterior | SoftmaxPosterior) -> None:
        features = nn.Sequential(LayerInput(network, find_linear(network, _HEAD)), AppendOne())
        self.posterior_ = NetworkPosterior(features.eval(), head)

    def _fitted_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, facts = StackedEstimator._fitted_state(self)
        return tensors | head_tensors(self.posterior_.head), facts


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
        return super()._validated(X, y, multi_output=False, **checks)

    def _num_outputs(self) -> int:
        return 1

    def _objective(self, stack: Stack, generators: Sequence[torch.Generator]) -> Objective:
        return SquaredError()

    def _learn_posterior(
        self, networks: Sequence[nn.Module], likelihood: Likelihood, x: Tensor, y: Tensor
    ) -> None:
        network = networks[0]
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
        assert isinstance(likelihood, GaussianOutputs)
        std = float(likelihood.std)
        mean = head.mean * std
        mean[-1] += float(likelihood.mean)  # the constant's weight
        self._set_head(network, LinearPosterior(mean, head.covariance * std**2, head.noise_variance * std**2))

    def _fitted_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, _ = super()._fitted_state()
        head: Any = self.posterior_.head
        return tensors, {"noise_variance": head.noise_variance}

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        head = LinearPosterior(**substate(tensors, "head."), noise_variance=facts["noise_variance"])
        self._set_head(self._restored_networks(tensors)[0], head)


class LaplaceClassifier(_Laplace, StackedClassifier):
    """Classification with a network trained by cross-entropy, and Laplace's approximation on its last layer.

    Inputs are standardised inside.

    Parameters
    ----------
    network, epochs, ..., progress : as for `LaplaceRegressor`.
    prior_precision : of the last layer's weights; see `laplace_posterior`.

    Attributes
    ----------
    classes_ : (C,) the labels, in the order of ``predict_proba``'s columns; after ``fit_many``, those of all
        sets.
    posterior_ : for `coresift.select`.

    >>> x = torch.linspace(-1, 1, 40)[:, None].numpy()
    >>> model = LaplaceClassifier(epochs=20, random_state=0)
    >>> model = model.fit(x, ["+" if value > 0 else "-" for value in x])
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

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        head = SoftmaxPosterior(**substate(tensors, "head."))
        self._set_head(self._restored_networks(tensors)[0], head)
