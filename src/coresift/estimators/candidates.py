"""List the models that automatic choice compares, and how each is fitted to so many labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from coresift import limits
from coresift.estimators.bagged import BaggedClassifier, BaggedRegressor
from coresift.estimators.ensemble import EnsembleClassifier
from coresift.estimators.estimator import Estimator
from coresift.estimators.gaussian_process import GaussianProcessRegressor
from coresift.estimators.linear import BayesianLinearRegressor
from coresift.estimators.neural_linear import NeuralLinearRegressor

# Trees of boosting are small, and few, since the predictions of several members are averaged.
_BOOSTING: dict[str, Any] = {
    "max_leaf_nodes": 8, "min_samples_leaf": 3, "max_bins": 64, "early_stopping": False,
}  # fmt: skip


_EXACT_LABELS = 1000  # of a Gaussian process; of more, its kernel is fitted to as many


class Size(NamedTuple):
    """The size of a labelled set."""

    labels: int
    columns: int
    classes: int = 0  # none for numbers


def _always(_: Size) -> bool:
    return True


class Candidate(NamedTuple):
    """A model to compare: how it is made for so many labels, and for which sets it is fast enough."""

    make: Callable[[int], Estimator]
    suits: Callable[[Size], bool] = _always


def quick_epochs(num_labels: int) -> int:
    """Return the number of epochs after which a fit of networks takes seconds."""
    return max(min(60, 60 * limits.MANY_LABELS // max(num_labels, 1)), limits.LEAST_EPOCHS)


def large_batch(num_labels: int) -> int | None:
    """Return the size of mini-batches with which an epoch has few steps; ``None`` for the usual one.

    Steps of `NeuralLinearRegressor` look at all labels, so of many there are no more than of a few thousand.
    """
    return math.ceil(num_labels / limits.MOST_STEPS) if num_labels > limits.MOST_STEPS * 512 else None


def _gaussian_process(_: int) -> Estimator:
    return GaussianProcessRegressor(num_restarts=0, num_exact=_EXACT_LABELS, max_iterations=30)


def _boosted_regressor(_: int) -> Estimator:
    member = HistGradientBoostingRegressor(max_iter=60, **_BOOSTING)
    return BaggedRegressor(member, num_members=8, fraction=0.7)


def _boosted_classifier(_: int) -> Estimator:
    return BaggedClassifier(HistGradientBoostingClassifier(max_iter=30, **_BOOSTING), num_members=5)


def _logistic_regressions(_: int) -> Estimator:
    return BaggedClassifier(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)), num_members=10
    )


def _regression_networks(num_labels: int) -> Estimator:
    return NeuralLinearRegressor(
        num_members=3,
        epochs=quick_epochs(num_labels),
        batch_size=large_batch(num_labels),
        regularisation=2,
        calibration_folds=3,
    )


def _classification_networks(num_labels: int) -> Estimator:
    return EnsembleClassifier(num_members=10, epochs=quick_epochs(num_labels))


# The first that suits a set is the model of sets that are too small to compare.
REGRESSORS: Mapping[str, Candidate] = {
    "gaussian process": Candidate(
        _gaussian_process,
        lambda size: min(size.labels, _EXACT_LABELS) ** 2 * size.columns <= limits.KERNEL_WORK,
    ),
    "linear regression": Candidate(lambda _: BayesianLinearRegressor()),
    "extra trees": Candidate(lambda _: BaggedRegressor()),
    "gradient boosting": Candidate(_boosted_regressor, lambda size: size.labels >= limits.BOOSTED_LABELS),
    "networks": Candidate(_regression_networks),
}
CLASSIFIERS: Mapping[str, Candidate] = {
    "networks": Candidate(_classification_networks),
    "logistic regression": Candidate(_logistic_regressions, lambda size: size.classes > 1),
    "extra trees": Candidate(lambda _: BaggedClassifier()),
    "gradient boosting": Candidate(
        _boosted_classifier,
        lambda size: size.labels >= limits.BOOSTED_LABELS and 1 < size.classes <= limits.BOOSTED_CLASSES,
    ),
}
