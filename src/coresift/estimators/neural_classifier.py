"""Neural linear classification: a network's features under a Bayesian softmax layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor, nn

from coresift.checks import check_integer
from coresift.errors import InputError, shown
from coresift.estimators.base import NetworkClassifier
from coresift.estimators.networks import Objective, Stack
from coresift.estimators.networks.layers import AppendOne, substate
from coresift.estimators.networks.losses import Likelihood
from coresift.estimators.networks.variational import EvidenceLowerBound, VariationalSoftmax
from coresift.estimators.saving import State, head_tensors, network_tensors
from coresift.estimators.stacked import HEAD, Networks, StackedEstimator, without_head
from coresift.posteriors.network import NetworkPosterior
from coresift.posteriors.softmax import SoftmaxPosterior


@dataclass(eq=False, repr=False, kw_only=True)
class NeuralLinearClassifier(NetworkClassifier, StackedEstimator):
    """Classification with a network's features and a Bayesian softmax layer on top.

    Network and layer are trained together by the evidence lower bound, with local reparametrisation (paper,
    section 6). Inputs are standardised inside: columns of a table, channels of images. The defaults are for
    small tables. The paper trains images (n, channels, height, width) with ::

        NeuralLinearClassifier(
            ResNet18, epochs=250, learning_rate=1e-3, batch_size=256, weight_decay=5e-4, augment=Augment(),
            device="cuda", precision="bfloat16",
        )

    About as accurate in a fraction of the time are ``schedule="one-cycle"``, ``epochs=30``,
    ``least_steps=2500``, ``learning_rate=2e-3`` (less if features die) and ``weight_decay=0.5``.

    Images of bytes stay bytes, on the GPU if they are tensors there, until a mini-batch of them is needed.
    Batch norm in a network of the user's is evaluated with its running statistics; after fewer than 50 steps,
    which is too few for them, with those of the labelled rows.

    Parameters
    ----------
    network : the feature extractor: ``None`` for two layers of 30 units with batch norm, a module (used for
        its layers; its weights are drawn again), or a function from the number of columns or channels to a
        module.
    epochs, learning_rate, batch_size, weight_decay, schedule, least_steps : see `Trainer`; weight decay is
        for the extractor only, since the last layer has its prior, N(0, I).
    augment : a module that changes rows at random in training, such as `Augment` for images; it is given
        images as they are, and rows of a table standardised.
    covariance : of the last layer's weights: "diagonal" for mean-field inference, "full", or the number of
        factors that a low-rank one has in addition to the diagonal.
    num_predictive : how many draws of the weights a prediction averages over.
    random_state : seed of weights, shuffling and noise.
    device : where to train, "cpu" or "cuda".
    precision : "bfloat16" trains a network of the user's in half precision on a GPU.
    progress : show a bar on a terminal once training has taken two seconds.

    Attributes
    ----------
    classes_ : the labels, in the order of ``predict_proba``'s columns; after ``fit_many``, those of all sets.
    posterior_ : for `coresift.select`.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = NeuralLinearClassifier(epochs=50, random_state=0).fit(x, np.where(x[:, 0] > 0, "up", "down"))
    >>> model.predict([[-0.9], [0.9]]).tolist()
    ['down', 'up']
    """

    posterior_type = NetworkPosterior

    epochs: int = 200
    weight_decay: float = 1e-3
    covariance: Literal["diagonal", "full"] | int = "diagonal"
    num_predictive: int = 100

    def _check_options(self) -> None:
        super()._check_options()
        check_integer(self.num_predictive, 1, "num_predictive")
        self._rank(1)  # raises if covariance makes no sense

    def _generators(self) -> list[torch.Generator]:
        return [self._generator()]

    def _new_head(self, features: int, generator: torch.Generator) -> nn.Module:
        features, classes = features + 1, len(self.classes_)  # with the constant
        return VariationalSoftmax(features, classes, self._rank(features * classes), generator)

    def _rank(self, size: int) -> int:
        """How many factors the covariance of ``size`` weights has in addition to the diagonal."""
        number: Any = {"diagonal": 0, "full": size}.get(str(self.covariance), self.covariance)
        if isinstance(number, bool) or not isinstance(number, Integral) or number < 0:
            raise InputError(
                f"covariance is {shown(number)}, expected 'diagonal', 'full' or a number of factors"
            )
        return min(int(number), size)  # more factors than weights add nothing

    def _objective(self, stack: Stack, generators: Sequence[torch.Generator]) -> Objective:
        seeds = [int(torch.randint(2**62, (), generator=generator)) for generator in generators]
        return EvidenceLowerBound(stack, [torch.Generator().manual_seed(seed) for seed in seeds])

    def _new_posterior(self, networks: Networks, likelihood: Likelihood, *_: Tensor) -> NetworkPosterior:
        head: Any = networks[0].get_submodule(HEAD)
        posterior = head.posterior(self.num_predictive)
        network = nn.Sequential(*without_head(networks[0]), AppendOne()).to(posterior.mean.device).eval()
        return NetworkPosterior(network, posterior)

    def _fitted_state(self) -> State:
        return network_tensors(self.posterior_) | head_tensors(self.posterior_.head), {}

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        network = self._restored_network(substate(tensors, "network."))
        head = SoftmaxPosterior(**substate(tensors, "head."), num_predictive=self.num_predictive)
        self.posterior_ = NetworkPosterior(network, head)
