"""Neural linear classification: a network's features under a Bayesian softmax layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor, nn
from torch.distributions import Categorical

from coresift.models.estimator import NetworkEstimator
from coresift.models.network import NetworkPosterior
from coresift.models.softmax import SoftmaxPosterior
from coresift.networks import LabelledStack, Stack
from coresift.networks.layers import AppendOne, Standardise
from coresift.networks.variational import (
    EvidenceLowerBound,
    Precision,
    VariationalNetwork,
    VariationalSoftmax,
)
from coresift.types import InputError

# Rows predicted at a time: the features of many images at once would fill any memory.
_BLOCK = 1024


class NeuralLinearClassifier(ClassifierMixin, NetworkEstimator):  # type: ignore[misc]
    """Classification with a network's features and a Bayesian softmax layer on top.

    Network and layer are trained together by the evidence lower bound, with local reparametrisation (paper,
    section 6). Inputs are standardised inside: columns of a table, channels of images. The defaults are for
    small tables. The paper trains images (n, channels, height, width) with ::

        NeuralLinearClassifier(
            ResNet18, epochs=250, learning_rate=1e-3, batch_size=256, weight_decay=5e-4, device="cuda"
        )

    Batch norm in a network of one's own is evaluated by its running statistics.

    Parameters
    ----------
    network : the feature extractor: ``None`` for two layers of 30 units with batch norm, a module (used for
        its layers; its weights are drawn anew), or a function from the number of columns or channels to a
        module.
    epochs, learning_rate, batch_size, weight_decay : see `Trainer`; the decay is of the extractor alone,
        since the last layer has its prior, N(0, I).
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

    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = NeuralLinearClassifier(epochs=50, random_state=0).fit(x, np.where(x[:, 0] > 0, "up", "down"))
    >>> model.predict([[-0.9], [0.9]]).tolist()
    ['down', 'up']
    """

    def __init__(
        self,
        network: nn.Module | Callable[[int], nn.Module] | None = None,
        *,
        epochs: int = 200,
        learning_rate: float = 1e-2,
        batch_size: int | None = None,
        weight_decay: float = 1e-3,
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
        self.covariance = covariance
        self.num_predictive = num_predictive
        self.random_state = random_state
        self.device = device
        self.precision = precision
        self.progress = progress

    def _validated(self, X: Any, y: Any) -> tuple[Tensor, Tensor]:
        """Rows (n, ...) and labels (n,) as positions in ``classes_``."""
        rows, labels = validate_data(
            self, X, y, dtype=np.float32, ensure_2d=self._tabular, allow_nd=True, ensure_min_samples=2
        )
        self.n_features_in_ = rows.shape[1]  # columns or channels
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        return torch.as_tensor(np.array(rows)), torch.as_tensor(codes)

    @staticmethod
    def _fit_together(
        members: Sequence[NeuralLinearClassifier], sets: Sequence[tuple[Tensor, Tensor]]
    ) -> None:
        first = members[0]
        classes = np.unique(np.concatenate([member.classes_ for member in members]))
        generators = [member._generator() for member in members]
        scales = [_standardise(x) for x, _ in sets]
        data, networks = [], []
        for member, scale, (x, y), generator in zip(members, scales, sets, generators, strict=True):
            # A small set may lack a class that another holds.
            places = torch.as_tensor(np.searchsorted(classes, member.classes_))
            data.append((scale(x), places[y]))
            networks.append(member._fresh_classifier(data[-1][0], len(classes), generator))
        stack = Stack(networks, first.device)
        objective = EvidenceLowerBound(stack, generators)
        first._trainer().train(stack, objective, LabelledStack.of(data), generators)
        for position, (member, scale) in enumerate(zip(members, scales, strict=True)):
            trained = stack.member(position)
            assert isinstance(trained, VariationalNetwork)
            member.classes_ = classes
            member._set_posterior(scale, trained.extractor, trained.head.posterior(first.num_predictive))

    def _fresh_classifier(self, x: Tensor, classes: int, generator: torch.Generator) -> VariationalNetwork:
        """A network and its last layer, with new weights, for rows like ``x`` (n, ...)."""
        extractor = self._fresh_network(x.shape[1], generator)
        with torch.no_grad():
            seen = extractor.eval()(x[:1])
        if seen.ndim != 2:
            raise InputError(
                f"the network turns one row into shape {tuple(seen.shape)}, expected (1, features); "
                "end it with pooling or nn.Flatten()"
            )
        features = seen.shape[1] + 1  # the constant
        head = VariationalSoftmax(features, classes, self._rank(features * classes), generator)
        return VariationalNetwork(extractor, head, self.precision)

    def _rank(self, size: int) -> int:
        if isinstance(self.covariance, int) and self.covariance >= 0:
            return self.covariance
        if self.covariance in ("diagonal", "full"):
            return size if self.covariance == "full" else 0
        raise InputError(
            f"covariance is {self.covariance!r}, expected 'diagonal', 'full' or a whole number of factors"
        )

    def _set_posterior(self, scale: Standardise, extractor: nn.Module, head: SoftmaxPosterior) -> None:
        network = nn.Sequential(scale, extractor, AppendOne()).to(head.mean.device).eval()
        self.posterior_ = NetworkPosterior(network, head)

    def predict_proba(self, X: Any) -> Any:
        """(n, C) probabilities of ``classes_``, averaged over the posterior."""
        blocks = torch.split(self._rows(X), _BLOCK)
        return torch.cat([self._probabilities(block) for block in blocks]).cpu().numpy()

    def _probabilities(self, x: Tensor) -> Tensor:
        predictive = self.posterior_.predictive(x)
        assert isinstance(predictive, Categorical)
        return predictive.probs

    def predict(self, X: Any) -> Any:
        """The likeliest class of each row."""
        probs = self.predict_proba(X)
        return self.classes_[probs.argmax(1)]

    def _fitted_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"network.{name}": value for name, value in self.posterior_.network.state_dict().items()}
        head = self.posterior_.head
        tensors |= {f"head.{name}": getattr(head, name) for name in ("mean", "deviation", "factor")}
        return tensors, {"classes": self.classes_.tolist(), "type": str(self.classes_.dtype)}

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self.classes_ = np.array(facts["classes"], dtype=facts["type"])
        scale = Standardise(tensors["network.0.mean"], tensors["network.0.deviation"])
        extractor = self._fresh_network(self.n_features_in_, torch.Generator())
        prefix = "network.1."
        extractor.load_state_dict(
            {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        )
        mean, deviation, factor = (tensors[f"head.{name}"] for name in ("mean", "deviation", "factor"))
        self._set_posterior(scale, extractor, SoftmaxPosterior(mean, deviation, factor, self.num_predictive))


def _standardise(x: Tensor) -> Standardise:
    """To mean zero and variance one: columns of rows (n, d), channels of images (n, channels, ...)."""
    whole = Standardise.of(x.movedim(1, -1).flatten(0, -2))
    shape = (-1, *[1] * (x.ndim - 2))
    return Standardise(whole.mean.view(shape), whole.deviation.view(shape))
