"""Share what estimators built on networks have in common: options, images, restored weights."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from torch.distributions import Categorical

from coresift.checks import check_integer
from coresift.errors import InputError, shown
from coresift.estimators.estimator import Classifier, Estimator, LabelledSet, Regressor, one_line
from coresift.estimators.networks import Trainer
from coresift.estimators.networks.extractors import Network, new_network
from coresift.estimators.networks.layers import AppendOne, Headed, Standardise

# Channels of an image, at most and usually; more might be a height or width.
_MOST_CHANNELS, _CHANNELS = 4, (1, 3, 4)


@dataclass(eq=False, repr=False)
class NetworkEstimator(Estimator):
    """An estimator around networks that are trained as a stack."""

    network: Network = None
    _: KW_ONLY
    epochs: int = 300
    learning_rate: float = 1e-2
    batch_size: int | None = None
    weight_decay: float = 1e-2

    def fit_many(self, sets: Sequence[tuple[Any, Any]], seeds: Sequence[int]) -> list[Self]:
        """Train one copy on each labelled set (X, y), with its own seed, all as one computation.

        The result is the same as fitting each alone with that ``random_state``, except for layers that draw
        their own noise, such as dropout; the sets may differ in size. With ``least_steps``, only sets that
        need the same number of epochs are trained together. Images of bytes are trained one set after the
        other, since one such network keeps a device busy.
        """
        return super().fit_many(sets, seeds)

    def _groups(self, sets: Sequence[LabelledSet]) -> Iterable[list[int]]:
        """Return the numbers of the sets that are trained together."""
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, (x, _) in enumerate(sets):
            alone = number if x.dtype == torch.uint8 else -1
            groups[alone, self._trainer().num_epochs(len(x))].append(number)
        return groups.values()

    def _validated(self, X: Any, y: Any) -> LabelledSet:
        x = _bytes_of_images(X, self._tabular, least=2)
        if x is None:
            return super()._validated(X, y)
        targets = one_line(validate_data, self, "no_validation", y, **self._target_checks)
        one_line(check_consistent_length, x, targets)
        self.n_features_in_ = x.shape[1]
        return x, self._learn_targets(targets)

    def _rows(self, X: Any) -> Tensor:
        check_is_fitted(self)
        x = _bytes_of_images(X, self._tabular, least=1)
        x = super()._rows(X) if x is None else x
        if x.ndim < 2 or x.shape[1] != self.n_features_in_:
            raise InputError(
                f"X has shape {tuple(x.shape)}, but was fitted with (any, {self.n_features_in_}, ...)"
            )
        return x

    @property
    def _tabular(self) -> bool:
        """Whether rows are vectors; a network of the user's may take images."""
        return self.network is None

    @property
    def _num_networks(self) -> int:
        """How many networks a fit trains on the same labels: one, unless there is an option for it."""
        return check_integer(getattr(self, "num_members", 1), 1, "num_members")

    def _new_extractor(self, inputs: int, generator: torch.Generator) -> nn.Module:
        return new_network(self.network, inputs, generator)

    def _trainer(self) -> Trainer:
        """Return a trainer with all of its options that this estimator has too."""
        options = (field.name for field in fields(Trainer) if hasattr(self, field.name))
        return Trainer(**{name: getattr(self, name) for name in options})

    def _check_options(self) -> None:
        self._trainer()
        _ = self._num_networks
        if self.network is not None and not callable(self.network):  # modules are callable
            raise InputError(
                f"network is {shown(self.network)}, expected a torch module, or a function that makes one"
            )
        super()._check_options()

    def _restored_network(self, state: Mapping[str, Tensor], head: nn.Module | None = None) -> nn.Module:
        """Return a saved network: rows -> features with a constant, or with a head -> outputs."""
        extractor = self._new_extractor(self.n_features_in_, torch.Generator())
        layers = [extractor, AppendOne()] if head is None else [Headed(extractor, head)]
        network = nn.Sequential(Standardise(state["0.mean"], state["0.std"]), *layers).to(self.device)
        network.load_state_dict(state)
        return network.eval()

    def _check_outputs(self) -> None:
        """Raise if a restored model predicts other targets than those it is said to have learned."""
        if not self._tabular:
            return  # the shape of a row is unknown
        row = torch.zeros(1, self.n_features_in_, dtype=torch.float64)
        theta = self.posterior_.sample(2 * self._num_networks, torch.Generator())
        predicted = self.posterior_.conditional(row, theta)
        seen = predicted.probs.shape[-1:] if isinstance(predicted, Categorical) else predicted.event_shape
        if math.prod(seen) != self._num_targets():
            raise ValueError("the weights are for other targets than those described")


class NetworkRegressor(Regressor, NetworkEstimator):
    """A regressor by networks."""


class NetworkClassifier(Classifier, NetworkEstimator):
    """A classifier by networks."""


def _bytes_of_images(X: Any, tabular: bool, least: int) -> Tensor | None:
    """Return images of bytes (n, channels, height, width) as they are, without a copy; else ``None``.

    Raises if there are fewer than ``least``, or if rows of any type have a shape that is a likely mistake.
    """
    if not isinstance(X, Tensor | np.ndarray):
        return None
    shape, are_bytes = tuple(X.shape), X.dtype in (torch.uint8, np.uint8)
    if tabular and len(shape) > 2:
        raise InputError(
            f"X has shape {shape}, but without network= rows are those of a table; "
            "for images (n, channels, height, width) pass network=ResNet18"
        )
    if advice := _advice(shape, are_bytes):
        raise InputError(f"images have shape {shape}, expected (n, channels, height, width); {advice}")
    if tabular or len(shape) != 4 or not are_bytes:
        return None
    if len(X) < least:
        raise InputError(f"X holds {len(X)} images, expected at least {least}")
    # torch shares memory only with arrays that are writeable and have positive strides.
    return torch.as_tensor(np.require(X, requirements=["C", "W"]) if isinstance(X, np.ndarray) else X)


def _advice(shape: tuple[int, ...], are_bytes: bool) -> str | None:
    """Say what to do about images in a shape that would be misread; ``None`` if nothing looks like it."""
    if len(shape) == 3 and are_bytes and shape[1] > _MOST_CHANNELS:
        alone = "one image alone is X[None]; to " if shape[0] in _CHANNELS else ""
        return f"{alone}give grey images a channel, as X[:, None] does"
    # Feature maps, with many channels and few pixels, have no channels at the end.
    channels_last = len(shape) == 4 and min(shape[1:3]) > _MOST_CHANNELS and shape[3] in _CHANNELS
    return "put the channels first, as np.moveaxis(X, 3, 1) does" if channels_last else None
