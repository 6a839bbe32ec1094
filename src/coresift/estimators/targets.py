"""Regressors and classifiers built on networks: what they do with targets, and how they predict them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from coresift.checks import check_integer
from coresift.estimators.base import NetworkEstimator
from coresift.estimators.rows import one_line
from coresift.threads import enough_threads


class NetworkRegressor(RegressorMixin, NetworkEstimator):  # type: ignore[misc]
    """A regressor of one or several outputs."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict targets, and with ``return_std`` the standard deviations of new ones, noise included."""
        rows = self._rows(X)
        with enough_threads(rows.numel()):
            predictive = self.posterior_.predictive(rows)
            mean, std = (
                value.double().cpu().numpy().reshape(len(rows), *self._target_shape)
                for value in (predictive.mean, predictive.stddev)
            )
        return (mean, std) if return_std else mean

    def _validated(self, X: Any, y: Any, **checks: Any) -> tuple[Tensor, Tensor]:
        return super()._validated(X, y, **{"multi_output": True, "y_numeric": True, **checks})

    def _learn_targets(self, targets: Any) -> Tensor:
        """(n, O)"""
        self._target_shape = np.shape(targets)[1:]
        numbers = one_line(np.array, targets, dtype=np.float64)
        return torch.as_tensor(numbers).view(len(targets), -1)

    def _described_targets(self) -> list[int]:
        return list(self._target_shape)

    def _restore_targets(self, described: Sequence[int]) -> None:
        self._target_shape = tuple(check_integer(size, 1, "a number of targets") for size in described)

    def _expected_outputs(self) -> torch.Size:
        num = math.prod(self._target_shape)
        return torch.Size([num] if num > 1 else [])


class NetworkClassifier(ClassifierMixin, NetworkEstimator):  # type: ignore[misc]
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
    def _shared_targets(estimators: Sequence[Any], targets: Sequence[Tensor]) -> list[Tensor]:
        """Give all estimators the classes of all sets, since a small set may lack some; recode the labels."""
        classes = np.unique(np.concatenate([estimator.classes_ for estimator in estimators]))
        recoded = []
        for estimator, codes in zip(estimators, targets, strict=True):
            recoded.append(torch.as_tensor(np.searchsorted(classes, estimator.classes_))[codes])
            estimator.classes_ = classes
        return recoded

    def _described_targets(self) -> dict[str, Any]:
        return {"classes": self.classes_.tolist(), "type": self.classes_.dtype.str}

    def _restore_targets(self, described: Mapping[str, Any]) -> None:
        self.classes_ = np.array(described["classes"], dtype=described["type"])
        unchanged = self.classes_.tolist() == described["classes"]
        if not unchanged or not np.array_equal(self.classes_, np.unique(self.classes_)):
            raise ValueError(f"classes of type {described['type']} do not fit {described['classes']}")

    def _expected_outputs(self) -> int:
        return len(self.classes_)
