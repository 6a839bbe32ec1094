"""Share what all estimators have in common: validation, fitting one or many, predictions."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from coresift.checks import check_integer
from coresift.errors import InputError, shown
from coresift.estimators.saving import Savable
from coresift.threads import enough_threads

# Rows (n, ...) and targets.
LabelledSet: TypeAlias = tuple[Tensor, Tensor]


@dataclass(eq=False, repr=False, kw_only=True)
class Estimator(Savable):
    """A scikit-learn estimator that has a posterior, here on rows of a table.

    Options are fields of dataclasses, which write the ``__init__`` with explicit arguments that scikit-learn
    asks for. A subclass names only the options that it adds, or whose defaults it changes. It also says how
    S of it are fitted together (`_fit_together`) and sets ``posterior_``; ``fit`` is the case S = 1.
    """

    posterior_type: ClassVar[type]  # of ``posterior_``
    _target_checks: ClassVar[dict[str, bool]] = {}  # by scikit-learn

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
        """Train one copy on each labelled set (X, y), with its own seed.

        The result is the same as fitting each alone with that ``random_state``; the sets may differ in size.
        """
        if len(sets) != len(seeds) or len(sets) == 0:
            raise InputError(f"{len(sets)} labelled sets and {len(seeds)} seeds do not match")
        self._check_options()
        copies = [clone(self).set_params(random_state=seed) for seed in seeds]
        labelled = [copy._validated(X, y) for copy, (X, y) in zip(copies, sets, strict=True)]
        shapes = sorted({(tuple(x.shape[1:]), tuple(y.shape[1:])) for x, y in labelled})
        if len(shapes) > 1:
            raise InputError(f"the labelled sets hold rows and targets of several shapes: {shapes}")
        labelled = self._recoded(copies, labelled)
        with enough_threads(sum(x.numel() for x, _ in labelled)):
            for group in self._groups(labelled):
                self._fit_together([copies[n] for n in group], [labelled[n] for n in group])
        return copies

    def _groups(self, sets: Sequence[LabelledSet]) -> Iterable[list[int]]:
        """Return the numbers of the sets that are fitted together."""
        return [list(range(len(sets)))]

    @staticmethod
    def _recoded(estimators: Sequence[Any], sets: list[LabelledSet]) -> list[LabelledSet]:
        """Return labelled sets whose targets are in a coding that all estimators share."""
        return sets

    def _validated(self, X: Any, y: Any) -> LabelledSet:
        """Check the labelled set and return it as tensors; set ``n_features_in_`` and the form of ``y``."""
        rows, targets = self._validated_rows(X, y, ensure_min_samples=2, **self._target_checks)
        if rows.ndim < 2:
            raise InputError(f"X has shape {rows.shape}, expected rows of columns or of channels")
        self.n_features_in_ = rows.shape[1]  # columns or channels
        return torch.as_tensor(np.array(rows)), self._learn_targets(targets)

    def _validated_rows(self, *given: Any, **checks: Any) -> Any:
        """Check rows, and targets if given, in float64: float32 would round a large offset away."""
        shape = {"ensure_2d": self._tabular, "allow_nd": not self._tabular}
        return one_line(validate_data, self, *given, dtype=np.float64, **shape, **checks)

    def _rows(self, X: Any) -> Tensor:
        """Return the rows to predict for, checked against those of ``fit``."""
        check_is_fitted(self)
        return torch.as_tensor(np.array(self._validated_rows(X, reset=False)))

    @abstractmethod
    def _learn_targets(self, targets: Any) -> Tensor:
        """Return targets as numbers to train on; remember what `predict` needs to turn them back."""

    @abstractmethod
    def _num_targets(self) -> int:
        """Return the number of classes, or of numbers to predict for each row."""

    @staticmethod
    @abstractmethod
    def _fit_together(estimators: Sequence[Any], sets: Sequence[LabelledSet]) -> None:
        """Train estimators of equal options together, and set what ``fit`` sets."""

    @property
    def _tabular(self) -> bool:
        """Whether rows are vectors."""
        return True

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(int(check_random_state(self.random_state).randint(2**31)))

    def _check_options(self) -> None:
        """Raise if an option makes no sense; subclasses add their own checks."""
        try:
            check_random_state(self.random_state)
        except ValueError:
            raise InputError(
                f"random_state is {shown(self.random_state)}, expected an integer from 0 to 2**32 - 1, "
                "a RandomState of NumPy or None"
            ) from None
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError, TypeError, ValueError):
            raise InputError(
                f"device is {shown(str(self.device))}, but torch finds no such device here; try 'cpu'"
            ) from None


class Regressor(RegressorMixin, Estimator):  # type: ignore[misc]
    """A regressor of one or several outputs."""

    _target_checks: ClassVar[dict[str, bool]] = {"multi_output": True, "y_numeric": True}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self._target_checks["multi_output"]
        return tags

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict targets, and with ``return_std`` the standard deviations of new ones, noise included."""
        rows = self._rows(X)
        with enough_threads(rows.numel()):
            predictive = self.posterior_.predictive(rows)
            shape = (len(rows), *self._target_shape)
            both = (predictive.mean, predictive.stddev)
            mean, std = (value.double().cpu().numpy().reshape(shape) for value in both)
        return (mean, std) if return_std else mean

    def _learn_targets(self, targets: Any) -> Tensor:
        """(n, O)"""
        self._target_shape = np.shape(targets)[1:]
        numbers = one_line(np.array, targets, dtype=np.float64)
        return torch.as_tensor(numbers).view(len(targets), -1)

    def _described_targets(self) -> list[int]:
        return list(self._target_shape)

    def _restore_targets(self, described: Sequence[int]) -> None:
        self._target_shape = tuple(check_integer(size, 1, "a number of targets") for size in described)

    def _num_targets(self) -> int:
        return math.prod(self._target_shape)


class Classifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """A classifier; ``classes_`` are the labels, in the order of ``predict_proba``'s columns."""

    def predict_proba(self, X: Any) -> Any:
        """(n, C) class probabilities, in the order of ``classes_``."""
        rows = self._rows(X)
        with enough_threads(rows.numel()):
            return self.posterior_.predictive(rows).probs.cpu().numpy()

    def predict(self, X: Any) -> Any:
        """(n,) the most likely labels."""
        probs = self.predict_proba(X)
        return self.classes_[probs.argmax(1)]

    def _learn_targets(self, targets: Any) -> Tensor:
        """(n,) indices into ``classes_``."""
        with warnings.catch_warnings():
            # Many classes with few labels are usual here, and no sign of a regression problem.
            warnings.filterwarnings("ignore", "The number of unique classes is greater", UserWarning)
            one_line(check_classification_targets, targets)
        self.classes_, codes = np.unique(targets, return_inverse=True)
        return torch.as_tensor(codes)

    @staticmethod
    def _recoded(estimators: Sequence[Any], sets: list[LabelledSet]) -> list[LabelledSet]:
        """Give all estimators the classes of all sets, since a small set may lack some; recode the labels."""
        classes = np.unique(np.concatenate([estimator.classes_ for estimator in estimators]))
        recoded = []
        for estimator, (x, codes) in zip(estimators, sets, strict=True):
            recoded.append((x, torch.as_tensor(np.searchsorted(classes, estimator.classes_))[codes]))
            estimator.classes_ = classes
        return recoded

    def _described_targets(self) -> dict[str, Any]:
        return {"classes": self.classes_.tolist(), "type": self.classes_.dtype.str}

    def _restore_targets(self, described: Mapping[str, Any]) -> None:
        self.classes_ = np.array(described["classes"], dtype=described["type"])
        unchanged = self.classes_.tolist() == described["classes"]
        if not unchanged or not np.array_equal(self.classes_, np.unique(self.classes_)):
            raise ValueError(f"classes of type {described['type']} do not fit {described['classes']}")

    def _num_targets(self) -> int:
        return len(self.classes_)


def one_line(check: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a check by scikit-learn, and raise its errors as ours, on one line."""
    try:
        return check(*arguments, **options)
    except ValueError as error:
        raise InputError(" ".join(str(error).split())) from None
