"""Bayesian linear regression on standardised columns, with a prior that is fitted to the labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from coresift.estimators.estimator import LabelledSet, Regressor
from coresift.estimators.networks.layers import AppendOne, Standardise, substate
from coresift.estimators.saving import State, head_tensors, network_tensors
from coresift.posteriors.linear import BayesianLinearRegression, NormalInverseGammaPosterior
from coresift.posteriors.network import NetworkPosterior

# The inverse gamma prior of the noise variance of standardised targets: worth two labels, and small.
_NOISE_SHAPE, _NOISE_RATE = 1.0, 1e-3
_PRIOR_VARIANCES = np.logspace(-6, 3, 37)  # of weights, in units of the noise variance


@dataclass(eq=False, repr=False, kw_only=True)
class BayesianLinearRegressor(Regressor):
    """Linear regression with a Gaussian prior on the weights, exact, and with unknown noise.

    Columns and targets are standardised inside. All weights have the same prior variance, the one under which
    the labels are most likely, of 37 between 1e-6 and 1e3 times the noise variance.

    Parameters
    ----------
    random_state, device, progress : as for other estimators, though nothing is random and no bar is needed.

    Attributes
    ----------
    posterior_ : for `coresift.select`, which uses closed forms.

    >>> x = np.arange(10.0)[:, None]
    >>> BayesianLinearRegressor().fit(x, 3 * x[:, 0] + 1).predict([[20.0]]).round(2).tolist()
    [61.0]
    """

    posterior_type = NetworkPosterior
    _target_checks: ClassVar[dict[str, bool]] = {"multi_output": False, "y_numeric": True}

    @staticmethod
    def _fit_together(estimators: Sequence[BayesianLinearRegressor], sets: Sequence[LabelledSet]) -> None:
        for estimator, (x, y) in zip(estimators, sets, strict=True):
            network = standardised(Standardise.of(x))
            scale = Standardise.of(y)
            head = _last_layer(network(x).double(), scale(y)[:, 0].double())
            std = float(scale.std)
            mean = head.mean * std
            mean[-1] += float(scale.mean)  # the constant's weight
            head = replace(head, mean=mean, rate=head.rate * std**2)
            estimator.posterior_ = NetworkPosterior(network, head).to(estimator.device)

    def _fitted_state(self) -> State:
        head: Any = self.posterior_.head
        tensors = network_tensors(self.posterior_) | head_tensors(head)
        return tensors, {"shape": head.shape, "rate": head.rate}

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        state = substate(tensors, "network.")
        network = standardised(Standardise(state["0.mean"], state["0.std"]))
        head = NormalInverseGammaPosterior(**substate(tensors, "head."), **facts)
        self.posterior_ = NetworkPosterior(network, head)


def standardised(scale: Standardise) -> nn.Module:
    """Return rows (n, d) -> standardised columns and a constant (n, d + 1)."""
    return nn.Sequential(scale, AppendOne()).eval()


def _last_layer(features: Tensor, targets: Tensor) -> NormalInverseGammaPosterior:
    """Return the posterior of the weights under the prior variance that makes the labels most likely.

    With features = X and prior variance v, the targets have a multivariate Student's t distribution of scale
    C = I + v X X^T. Let l be the eigenvalues of X^T X and z its eigenvectors' products with X^T y:

        log|C| = sum log(1 + v l),  y^T C^-1 y = y^T y - sum v z^2 / (1 + v l)
    """
    values, vectors = torch.linalg.eigh(features.mT @ features)
    values, squares = values.clamp(min=0).numpy(), (vectors.mT @ (features.mT @ targets)).square().numpy()
    shape, total = _NOISE_SHAPE + len(targets) / 2, float(targets @ targets)

    def loss(variance: float) -> float:
        grown = 1 + variance * values
        explained = float(np.sum(variance * squares / grown))
        rate = _NOISE_RATE + max(total - explained, 0.0) / 2
        return float(np.log(grown).sum()) / 2 + shape * float(np.log(rate))

    regression = BayesianLinearRegression(
        None, 0.0, min(_PRIOR_VARIANCES.tolist(), key=loss), _NOISE_SHAPE, _NOISE_RATE
    )
    return cast(NormalInverseGammaPosterior, regression.fit(features, targets))
