"""Bags of scikit-learn models, such as small forests: each is fitted to a part of the labels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor
from torch import Tensor

from coresift.checks import check_integer
from coresift.errors import InputError, shown
from coresift.estimators.estimator import Classifier, Estimator, LabelledSet, Regressor
from coresift.estimators.saving import State
from coresift.posteriors.members import members_posterior
from coresift.posteriors.samples import FunctionPosterior
from coresift.progress import progress_bar

Array: TypeAlias = npt.NDArray[Any]

_TREES = 5  # of a member, by default
# Bounds of the noise variance, in units of the mean squared error on left-out labels.
_LEAST_NOISE, _MOST_NOISE = 1e-3, 3.0


@dataclass(eq=False, repr=False)
class _Bagged(Estimator):
    """What bags share."""

    posterior_type = FunctionPosterior

    estimator: Any = None
    _: KW_ONLY
    num_members: int = 20
    fraction: float = 0.8

    @property
    @abstractmethod
    def _member(self) -> Any:
        """The scikit-learn model that members are copies of."""

    @abstractmethod
    def _drawn(self, y: Array, generator: np.random.Generator) -> Array:
        """Draw the indices of the labels that a member is fitted to."""

    @abstractmethod
    def _set_posterior(self, x: Array, y: Array, used: Array) -> None:
        """Set the posterior of fitted members; ``used`` (K, n) are the labels that each was fitted to."""

    def _check_options(self) -> None:
        super()._check_options()
        check_integer(self.num_members, 2, "num_members")
        if not 0 < self.fraction < 1:
            raise InputError(f"fraction is {shown(self.fraction)}, expected a number between 0 and 1")

    @staticmethod
    def _fit_together(estimators: Sequence[_Bagged], sets: Sequence[LabelledSet]) -> None:
        with progress_bar("fitting members", len(sets) * int(estimators[0].num_members)) as advance:
            shown = advance if estimators[0].progress else lambda _: None
            for estimator, (x, y) in zip(estimators, sets, strict=True):
                estimator._fit_one(x.numpy(), y.numpy().ravel(), shown)

    def _fit_one(self, x: Array, y: Array, advance: Callable[[int], None]) -> None:
        generator = np.random.default_rng(self._generator().initial_seed())
        used = np.zeros((int(self.num_members), len(y)), bool)
        self.estimators_: list[Any] = []
        for own in used:
            own[self._drawn(y, generator)] = True
            member, seed = clone(self._member), int(generator.integers(2**31))
            if "random_state" in member.get_params():
                member.set_params(random_state=seed)
            self.estimators_.append(member.fit(x[own], y[own]))
            advance(1)
        self._set_posterior(x, y, used)

    def _part(self, rows: Array, generator: np.random.Generator) -> Array:
        """Draw the option's fraction of some rows, at least one."""
        return generator.permutation(rows)[: max(1, round(self.fraction * len(rows)))]

    def _fitted_state(self) -> State:
        raise InputError(
            f"{type(self.estimators_[0]).__name__} is a model of scikit-learn, which cannot be saved without "
            "pickle; use joblib.dump, or fit the model again"
        )

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        raise InputError("models of scikit-learn are not saved without pickle")


class BaggedRegressor(Regressor, _Bagged):
    """Regression with a bag of scikit-learn models, each fitted to a random part of the labels.

    Members are the posterior samples. Each label is left out by some members. The noise variance is the one
    under which left-out labels are most likely, given mean and spread of the members without them.

    Parameters
    ----------
    estimator : a regressor of scikit-learn, by default a forest of five extremely randomised trees.
    num_members : how many copies of it are fitted.
    fraction : of the labels that each is fitted to, drawn without replacement.
    random_state, progress : see `NeuralLinearClassifier`.
    device : has no effect; members are on the CPU.

    Attributes
    ----------
    estimators_ : the fitted members.
    noise_variance_ : of labels around what a member predicts.
    posterior_ : for `coresift.select`; its samples are the members.

    References
    ----------
    Geurts, Ernst and Wehenkel, Extremely Randomized Trees, 2006.

    >>> x = np.arange(40.0)[:, None]
    >>> model = BaggedRegressor(random_state=0).fit(x, 1.0 * (x[:, 0] > 19.5))
    >>> model.predict([[5.0], [35.0]]).round(2).tolist()
    [0.0, 1.0]
    """

    _target_checks: ClassVar[dict[str, bool]] = {"multi_output": False, "y_numeric": True}

    @property
    def _member(self) -> Any:
        return ExtraTreesRegressor(_TREES) if self.estimator is None else self.estimator

    def _drawn(self, y: Array, generator: np.random.Generator) -> Array:
        return self._part(np.arange(len(y)), generator)

    def _set_posterior(self, x: Array, y: Array, used: Array) -> None:
        predicted = np.array([member.predict(x) for member in self.estimators_])
        self.noise_variance_ = _noise_variance(predicted, ~used, y)
        self.posterior_ = members_posterior(self, self.noise_variance_)


class BaggedClassifier(Classifier, _Bagged):
    """Classification with a bag of scikit-learn models, each fitted to a random part of each class.

    Members are the posterior samples, and their class probabilities are averaged.

    Parameters
    ----------
    estimator, ..., progress : as for `BaggedRegressor`, with a classifier of scikit-learn.

    Attributes
    ----------
    classes_ : the labels, in the order of ``predict_proba``'s columns; after ``fit_many``, those of all sets.
    estimators_ : the fitted members.
    posterior_ : for `coresift.select`; its samples are the members.

    >>> x = np.arange(40.0)[:, None]
    >>> model = BaggedClassifier(random_state=0).fit(x, np.where(x[:, 0] > 19.5, "high", "low"))
    >>> model.predict([[5.0], [35.0]]).tolist()
    ['low', 'high']
    """

    @property
    def _member(self) -> Any:
        return ExtraTreesClassifier(_TREES) if self.estimator is None else self.estimator

    def _drawn(self, y: Array, generator: np.random.Generator) -> Array:
        classes = np.unique(y)
        return np.concatenate([self._part(np.flatnonzero(y == own), generator) for own in classes])

    def _set_posterior(self, x: Array, y: Array, used: Array) -> None:
        self.posterior_ = members_posterior(self)


def _noise_variance(predicted: Array, left_out: Array, y: Array) -> float:
    """Return the noise variance s2 under which left-out labels are most likely: y ~ N(mean, s2 + spread).

    ``predicted`` (K, n) is what members predict, and ``left_out`` (K, n) says who has not seen a label. Mean
    and spread are over these members, of which there must be two; without any, s2 is the labels' variance.
    """
    count = left_out.sum(0)
    enough = count > 1
    tiny = 1e-12 * float(np.var(y)) + 1e-24
    if not enough.any():
        return max(float(np.var(y)), tiny)
    left_out, predicted, count = left_out[:, enough], predicted[:, enough], count[enough]
    mean = (left_out * predicted).sum(0) / count
    spread = (left_out * np.square(predicted - mean)).sum(0) / (count - 1)
    squares = np.square(y[enough] - mean)
    error = max(float(squares.mean()), tiny)

    def loss(log_noise: float) -> float:
        variance = error * np.exp(log_noise) + spread
        return float((np.log(variance) + squares / variance).sum())

    best = minimize_scalar(loss, bounds=np.log([_LEAST_NOISE, _MOST_NOISE]), method="bounded")
    return error * float(np.exp(best.x))
