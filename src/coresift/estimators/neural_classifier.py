"""Neural linear classification: a network's features under a Bayesian softmax layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor, nn

from coresift.errors import InputError, shown
from coresift.estimators.base import NetworkClassifier
from coresift.estimators.networks import LabelledStack, Stack
from coresift.estimators.networks.images import Precision, Prepared
from coresift.estimators.networks.layers import AppendOne, Standardise
from coresift.estimators.networks.trainer import Schedule
from coresift.estimators.networks.variational import (
    EvidenceLowerBound,
    VariationalNetwork,
    VariationalSoftmax,
)
from coresift.posteriors.network import NetworkPosterior
from coresift.posteriors.softmax import SoftmaxPosterior


class NeuralLinearClassifier(NetworkClassifier):
    """Classification with a network's features and a Bayesian softmax layer on top.

    Network and layer are trained together by the evidence lower bound, with local reparametrisation (paper,
    section 6). Inputs are standardised inside: columns of a table, channels of images. The defaults are for
    small tables. The paper trains images (n, channels, height, width) with ::

        NeuralLinearClassifier(
            ResNet18, epochs=250, learning_rate=1e-3, batch_size=256, weight_decay=5e-4, augment=Augment(),
            device="cuda", precision="bfloat16",
        )

    About as accurate in a fraction of the time are ``schedule="one-cycle"``, ``epochs=30``,
    ``least_steps=2500``, ``learning_rate=2e-3`` (less where that kills features) and ``weight_decay=0.5``.

    Images as bytes stay so, on the GPU if they are tensors there, until a mini-batch of them is needed.

    Batch norm in a network of one's own is evaluated by its running statistics; after fewer than 50 steps,
    which is too few for them, by those of the labelled rows.

    Parameters
    ----------
    network : the feature extractor: ``None`` for two layers of 30 units with batch norm, a module (used for
        its layers; its weights are drawn anew), or a function from the number of columns or channels to a
        module.
    epochs, learning_rate, batch_size, weight_decay, schedule, least_steps : see `Trainer`; the decay is of
        the extractor alone, since the last layer has its prior, N(0, I).
    augment : a module that changes rows at random in training, such as `Augment` for images; images are given
        to it as they come, rows of a table standardised.
    covariance : of the last layer's weights: "diagonal" for mean-field inference, "full", or the number of
        factors that a low-rank one has beside the diagonal.
    num_predictive : how many draws of the weights a prediction averages over.
    random_state : seed of weights, shuffling and noise.
    device : where to train, "cpu" or "cuda".
    precision : "bfloat16" trains a network of one's own in half precision on a GPU.
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

    posterior_: NetworkPosterior

    def __init__(
        self,
        network: nn.Module | Callable[[int], nn.Module] | None = None,
        *,
        epochs: int = 200,
        learning_rate: float = 1e-2,
        batch_size: int | None = None,
        weight_decay: float = 1e-3,
        schedule: Schedule = "cosine",
        least_steps: int = 0,
        augment: nn.Module | None = None,
        covariance: Literal["diagonal", "full"] | int = "diagonal",
        num_predictive: int = 100,
        random_state: int | None = None,
        device: str = "cpu",
        precision: Precision = "float32",
        progress: bool = True,
    ) -> None:
        self.network = network
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.least_steps = least_steps
        self.augment = augment
        self.covariance = covariance
        self.num_predictive = num_predictive
        self.random_state = random_state
        self.device = device
        self.precision = precision
        self.progress = progress

    def _check_options(self) -> None:
        super()._check_options()
        self._check_option("num_predictive", Integral, 1)

    @staticmethod
    def _fit_together(
        members: Sequence[NeuralLinearClassifier], sets: Sequence[tuple[Tensor, Tensor]]
    ) -> None:
        first = members[0]
        labels = first._shared_targets(members, [y for _, y in sets])
        generators = [member._generator() for member in members]
        scales = [Standardise.of(x) for x, _ in sets]
        data, networks = [], []
        for member, scale, (x, _), y, generator in zip(
            members, scales, sets, labels, generators, strict=True
        ):
            data.append((member._before_training(x, scale), y))
            networks.append(member._fresh_classifier(data[-1][0], scale, len(member.classes_), generator))
        stack = Stack(networks, first.device)
        seeds = [int(torch.randint(2**62, (), generator=generator)) for generator in generators]
        objective = EvidenceLowerBound(stack, [torch.Generator().manual_seed(seed) for seed in seeds])
        first._trainer().train(stack, objective, LabelledStack.of(data), generators)
        for position, (member, scale) in enumerate(zip(members, scales, strict=True)):
            trained = stack.member(position)
            assert isinstance(trained, VariationalNetwork)
            extractor = trained.extractor
            if isinstance(extractor, Prepared):
                extractor = extractor.extractor
            member._set_posterior(scale, extractor, trained.head.posterior(first.num_predictive))
            member._warn_of_dead_units([nn.Sequential(scale, extractor)], sets[position][0])

    def _fresh_classifier(
        self, x: Tensor, scale: Standardise, classes: int, generator: torch.Generator
    ) -> VariationalNetwork:
        """A network and its last layer, with new weights, for rows like ``x`` (n, ...)."""
        extractor = self._fresh_extractor(x, scale, generator)
        features = self._num_features(extractor, x) + 1  # the constant
        head = VariationalSoftmax(features, classes, self._rank(features * classes), generator)
        return VariationalNetwork(extractor, head)

    def _rank(self, size: int) -> int:
        if (
            isinstance(self.covariance, Integral)
            and not isinstance(self.covariance, bool)
            and self.covariance >= 0
        ):
            return min(int(self.covariance), size)  # more factors than weights say no more
        if isinstance(self.covariance, str) and self.covariance in ("diagonal", "full"):
            return size if self.covariance == "full" else 0
        raise InputError(
            f"covariance is {shown(self.covariance)}, expected 'diagonal', 'full' or how many factors"
        )

    def _set_posterior(self, scale: Standardise, extractor: nn.Module, head: SoftmaxPosterior) -> None:
        network = nn.Sequential(scale, extractor, AppendOne()).to(head.mean.device).eval()
        self.posterior_ = NetworkPosterior(network, head)

    def _fitted_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"network.{name}": value for name, value in self.posterior_.network.state_dict().items()}
        head = self.posterior_.head
        tensors |= {f"head.{name}": getattr(head, name) for name in ("mean", "deviation", "factor")}
        return tensors, {}

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        scale = Standardise(tensors["network.0.mean"], tensors["network.0.deviation"])
        extractor = self._fresh_network(self.n_features_in_, torch.Generator())
        for part, prefix in ((scale, "network.0."), (extractor, "network.1.")):
            part.load_state_dict(
                {
                    name.removeprefix(prefix): value
                    for name, value in tensors.items()
                    if name.startswith(prefix)
                }
            )
        mean, deviation, factor = (tensors[f"head.{name}"] for name in ("mean", "deviation", "factor"))
        self._set_posterior(scale, extractor, SoftmaxPosterior(mean, deviation, factor, self.num_predictive))
