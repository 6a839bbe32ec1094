"""Share what estimators built on networks have in common: their options, and fitting one or many at once."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from torch.distributions import Categorical

from coresift import limits
from coresift.checks import check_integer
from coresift.errors import shown
from coresift.estimators.networks import Trainer
from coresift.estimators.networks.drawing import Network
from coresift.estimators.rows import bytes_of_images, one_line
from coresift.estimators.saving import Savable
from coresift.posteriors.network import outputs_of
from coresift.threads import enough_threads
from coresift.types import InputError


@dataclass(eq=False, repr=False)
class NetworkEstimator(Savable, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn estimator around networks that are trained as a stack.

    Options are fields of dataclasses, which write the ``__init__`` with explicit arguments that scikit-learn
    asks for. A subclass names only the options that it adds, or whose defaults it changes. It also says how
    S of it are trained together (`_fit_together`) and sets ``posterior_``; ``fit`` is the case S = 1.
    """

    posterior_type: ClassVar[type]  # of ``posterior_``

    network: Network = None
    _: KW_ONLY
    epochs: int = 300
    learning_rate: float = 1e-2
    batch_size: int | None = None
    weight_decay: float = 1e-2
    random_state: int | None = None
    device: str = "cpu"
    progress: bool = True

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows ``X`` and targets ``y``."""
        self.__dict__.pop("posterior_", None)  # if this fit fails, no earlier one is left
        self._check_options()
        labelled = self._validated(X, y)
        with enough_threads(labelled[0].numel()):
            self._fit_together([self], [labelled])
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "posterior_")

    def fit_many(self, sets: Sequence[tuple[Any, Any]], seeds: Sequence[int]) -> list[Self]:
        """Train one copy on each labelled set (X, y), with its own seed, all as one computation.

        The result is the same as fitting each alone with that ``random_state``, except for layers that draw
        their own noise, such as dropout; the sets may differ in size. With ``least_steps``, only sets that
        need the same number of epochs are trained together. Images of bytes are trained one set after the
        other, since one such network keeps a device busy.
        """
        if len(sets) != len(seeds) or len(sets) == 0:
            raise InputError(f"{len(sets)} labelled sets and {len(seeds)} seeds do not match")
        self._check_options()
        copies = [clone(self).set_params(random_state=seed) for seed in seeds]
        labelled = self._validated_together(copies, sets)
        with enough_threads(sum(x.numel() for x, _ in labelled)):
            for group in self._groups([x for x, _ in labelled]):
                self._fit_together([copies[n] for n in group], [labelled[n] for n in group])
        return copies

    def _validated_together(
        self, copies: Sequence[Self], sets: Sequence[tuple[Any, Any]]
    ) -> list[tuple[Tensor, Tensor]]:
        """Check that the labelled sets have rows and targets of one shape, and code the targets alike."""
        checked = [copy._validated(X, y) for copy, (X, y) in zip(copies, sets, strict=True)]
        shapes = sorted({(tuple(x.shape[1:]), tuple(y.shape[1:])) for x, y in checked})
        if len(shapes) > 1:
            raise InputError(f"the labelled sets hold rows and targets of several shapes: {shapes}")
        rows, targets = zip(*checked, strict=True)
        return list(zip(rows, self._shared_targets(copies, targets), strict=True))

    def _groups(self, rows: Sequence[Tensor]) -> list[list[int]]:
        """Group labelled sets, given their rows (n, ...), into those that are trained together."""
        groups: dict[tuple[str, int], list[int]] = {}
        trainer = self._trainer()
        for number, x in enumerate(rows):
            key = ("set", number) if x.dtype == torch.uint8 else ("epochs", trainer.num_epochs(len(x)))
            groups.setdefault(key, []).append(number)
        return list(groups.values())

    @staticmethod
    def _shared_targets(estimators: Sequence[Any], targets: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return targets in the coding that all estimators share."""
        return targets

    def _validated(self, X: Any, y: Any, **checks: Any) -> tuple[Tensor, Tensor]:
        """Check the labelled set and return it as tensors; set ``n_features_in_`` and the form of ``y``."""
        x = bytes_of_images(X, self._tabular, least=2)
        if x is not None:
            targets = one_line(validate_data, self, "no_validation", y, **checks)
            one_line(check_consistent_length, x, targets)
        else:
            rows, targets = self._validated_rows(X, y, ensure_min_samples=2, **checks)
            if rows.ndim < 2:
                raise InputError(f"X has shape {rows.shape}, expected rows of columns or of channels")
            x = torch.as_tensor(np.array(rows))
        self.n_features_in_ = x.shape[1]  # columns or channels
        return x, self._learn_targets(targets)

    def _validated_rows(self, *given: Any, **checks: Any) -> Any:
        """Check rows, and targets if given, in float64: float32 would round a large offset away."""
        shape = {"ensure_2d": self._tabular, "allow_nd": not self._tabular}
        return one_line(validate_data, self, *given, dtype=np.float64, **shape, **checks)

    @abstractmethod
    def _learn_targets(self, targets: Any) -> Tensor:
        """Return targets as numbers to train on; remember what `predict` needs to turn them back."""

    @abstractmethod
    def _expected_outputs(self) -> Any:
        """Return the number of predicted classes, or the event shape of predicted numbers."""

    @staticmethod
    @abstractmethod
    def _fit_together(estimators: Sequence[Any], sets: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Train estimators of equal options together, and set what ``fit`` sets."""

    def _rows(self, X: Any) -> Tensor:
        """Return the rows to predict for, checked against those of ``fit``."""
        check_is_fitted(self)
        x = bytes_of_images(X, self._tabular, least=1)
        if x is None:
            x = torch.as_tensor(np.array(self._validated_rows(X, reset=False)))
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
        """How many networks a fit trains on the same labels."""
        return 1

    def _random_state(self) -> np.random.RandomState:
        try:
            state: np.random.RandomState = check_random_state(self.random_state)
            return state
        except ValueError:
            raise InputError(
                f"random_state is {shown(self.random_state)}, expected an integer from 0 to 2**32 - 1, "
                "a RandomState of NumPy or None"
            ) from None

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(int(self._random_state().randint(2**31)))

    def _check_options(self) -> None:
        """Raise if an option makes no sense; subclasses add their own checks."""
        self._trainer()
        if self.network is not None and not callable(self.network):  # modules are callable
            raise InputError(
                f"network is {shown(self.network)}, expected a torch module, or a function that makes one"
            )
        self._random_state()
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError, TypeError, ValueError):
            raise InputError(
                f"device is {shown(str(self.device))}, but torch finds no such device here; try 'cpu'"
            ) from None

    def _trainer(self) -> Trainer:
        return Trainer(
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            weight_decay=self.weight_decay,
            progress=self.progress,
        )

    def _check_outputs(self) -> None:
        if not self._tabular:
            return  # the shape of a row is unknown
        row = torch.zeros(1, self.n_features_in_, dtype=torch.float64)
        theta = self.posterior_.sample(2 * self._num_networks, torch.Generator())
        predicted = self.posterior_.conditional(row, theta)
        seen = predicted.probs.shape[-1] if isinstance(predicted, Categorical) else predicted.event_shape
        if seen != self._expected_outputs():
            raise ValueError("the weights are for other targets than those described")


@dataclass(eq=False, repr=False, kw_only=True)
class SeveralMembers(NetworkEstimator):
    """An estimator that trains several networks on the same labels."""

    num_members: int = 1

    @property
    def _num_networks(self) -> int:
        return int(self.num_members)

    def _check_options(self) -> None:
        super()._check_options()
        check_integer(self.num_members, 1, "num_members")


def warn_of_dead_units(
    networks: Sequence[nn.Module],
    x: Tensor,
    rows: int = limits.ROWS_CHECKED,
    least_alive: float = limits.FEATURES_ALIVE,
) -> None:
    """Warn if most features of a trained network are constant: a large step can kill a ReLU for good.

    Each of ``networks``, in evaluation mode, makes features of rows like ``x`` (n, ...).
    """
    x = x[:rows]
    if bool((x == x[:1]).all()):
        return
    features = [outputs_of(network, x) for network in networks]
    num = features[0].shape[1]
    alive = [int((own != own[:1]).any(0).sum()) for own in features]
    bad = [count for count in alive if count < least_alive * num]
    if bad:
        few = f"in {len(bad)} of {len(networks)} networks as few as {min(bad)} of {num} features differ"
        if len(networks) == 1:
            few = f"only {min(bad)} of the network's {num} features differ"
        warnings.warn(
            f"{few} from row to row: the others have died in training, and predictions will be poor; "
            "try a smaller learning_rate",
            stacklevel=4,
        )
