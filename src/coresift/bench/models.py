"""Models of scikit-learn in experiments: ensembles through their members, and judges of labelled sets."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.ensemble import (
    BaggingClassifier,
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from coresift.posteriors.members import members_posterior

Array: TypeAlias = npt.NDArray[Any]

MOST_LENGTH_SCALES = 20  # columns that a Gaussian process has a length scale for each of
LEAST_NOISE = 0.1  # least part of the out-of-bag error that counts as noise


class Members(BaseEstimator):  # type: ignore[misc]
    """A scikit-learn ensemble whose members are its posterior samples.

    Parameters
    ----------
    estimator : an ensemble with ``estimators_`` after a fit; a regressor needs ``oob_score=True``.
    """

    device = "cpu"  # where a `Simulation` finds its predictions

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Array, y: Array, seed: int | None = None) -> Self:
        """Train the ensemble on rows (n, d) and their labels."""
        with warnings.catch_warnings():
            # With few rows, some are in the sample of every member; they are left out below.
            warnings.filterwarnings("ignore", "Some inputs do not have OOB scores", UserWarning)
            self.estimator_ = clone(self.estimator).set_params(random_state=seed).fit(X, y)
        self._set_posterior(np.asarray(X), np.asarray(y))
        return self

    def fit_many(self, sets: Sequence[tuple[Array, Array]], seeds: Sequence[int]) -> list[Self]:
        """Train one copy on each labelled set, with its own seed."""
        return [clone(self).fit(X, y, seed) for (X, y), seed in zip(sets, seeds, strict=True)]

    def _set_posterior(self, X: Array, y: Array) -> None:
        raise NotImplementedError


class MembersClassifier(ClassifierMixin, Members):  # type: ignore[misc]
    """A classifier by the members of an ensemble.

    >>> x, y = np.arange(20.0)[:, None], np.arange(20) > 9
    >>> MembersClassifier(RandomForestClassifier(5)).fit(x, y, seed=0).posterior_.num_samples
    5
    """

    def _set_posterior(self, X: Array, y: Array) -> None:
        self.classes_ = self.estimator_.classes_
        self.posterior_ = members_posterior(self.estimator_)


class MembersRegressor(RegressorMixin, Members):  # type: ignore[misc]
    """A regressor by the members of an ensemble; noise is what their spread leaves of the out-of-bag error.

    >>> import torch
    >>> x = np.arange(40.0)[:, None]
    >>> model = MembersRegressor(RandomForestRegressor(20, oob_score=True)).fit(x, 2 * x[:, 0], seed=0)
    >>> model.posterior_.predictive(torch.tensor([[20.0]])).mean.round()
    tensor([40.], dtype=torch.float64)
    """

    def _set_posterior(self, X: Array, y: Array) -> None:
        error = float(np.nanmean(np.square(self.estimator_.oob_prediction_ - y)))
        spread = float(np.var([member.predict(X) for member in self.estimator_.estimators_], axis=0).mean())
        noise = max(error - spread, LEAST_NOISE * error, 1e-12 * float(np.var(y)), 1e-24)
        self.posterior_ = members_posterior(self.estimator_, noise)


class ForestRegressor(MembersRegressor):
    """A random forest: its trees are the posterior samples."""

    def __init__(self, num_trees: int = 100, device: str = "cpu", progress: bool = False) -> None:
        self.num_trees, self.device, self.progress = num_trees, device, progress

    @property
    def estimator(self) -> Any:
        return RandomForestRegressor(self.num_trees, oob_score=True)


class ForestClassifier(MembersClassifier):
    """A random forest: its trees are the posterior samples."""

    def __init__(self, num_trees: int = 100, device: str = "cpu", progress: bool = False) -> None:
        self.num_trees, self.device, self.progress = num_trees, device, progress

    @property
    def estimator(self) -> Any:
        return RandomForestClassifier(self.num_trees)


class BaggedLogistic(MembersClassifier):
    """Logistic regressions of bootstrap samples, on standardised columns."""

    def __init__(self, num_members: int = 20, device: str = "cpu", progress: bool = False) -> None:
        self.num_members, self.device, self.progress = num_members, device, progress

    @property
    def estimator(self) -> Any:
        member = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        return BaggingClassifier(member, self.num_members)


# Judges: models that did not choose, trained on the same labelled set.


def _gaussian_process(num_columns: int) -> Any:
    # Length scales for each of many columns would take minutes to fit.
    scales = np.ones(num_columns if num_columns <= MOST_LENGTH_SCALES else 1)
    kernel = ConstantKernel() * Matern(scales, (1e-2, 1e3), nu=2.5) + WhiteKernel(0.1)
    return make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True))


JUDGES: Mapping[str, Mapping[str, Callable[[int], Any]]] = {
    "regression": {
        "gaussian process": _gaussian_process,
        "extra trees": lambda _: ExtraTreesRegressor(200),
    },
    "classification": {
        "logistic regression": lambda _: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "extra trees": lambda _: ExtraTreesClassifier(200),
    },
}


def judge(task: str, x: Array, y: Array, test_x: Array, test_y: Array, seed: int) -> dict[str, float]:
    """Return the error on a test set of each judge, trained on a labelled set: RMSE, or error rate.

    >>> x = np.linspace(0, 1, 40)[:, None]
    >>> found = judge("regression", x[::2], x[::2, 0], x[1::2], x[1::2, 0], seed=0)
    >>> sorted(found), max(found.values()) < 0.05
    (['extra trees', 'gaussian process'], True)
    """
    errors = {}
    for name, make in JUDGES[task].items():
        model = make(x.shape[1])
        last = model[-1] if hasattr(model, "steps") else model
        last.set_params(random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a length scale at its bound
            predicted = model.fit(x, y).predict(test_x)
        wrong = np.square(predicted - test_y) if task == "regression" else predicted != test_y
        errors[name] = float(np.sqrt(wrong.mean()) if task == "regression" else wrong.mean())
    return errors
