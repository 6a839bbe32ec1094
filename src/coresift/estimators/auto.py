"""Choose the right model for a table at every fit: the one under which left-out labels are most likely."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coresift import limits
from coresift.checks import check_choice, check_switch
from coresift.errors import InputError, shown
from coresift.estimators.candidates import CLASSIFIERS, REGRESSORS, Candidate, Size
from coresift.estimators.estimator import Classifier, Estimator, LabelledSet, Regressor
from coresift.estimators.saving import State
from coresift.posteriors.base import Posterior
from coresift.progress import progress_bar

Array: TypeAlias = npt.NDArray[Any]


class Score(NamedTuple):
    """The mean log likelihood of left-out labels under a model, and its standard error."""

    mean: float
    standard_error: float


class _Fold(NamedTuple):
    """The rows that models are fitted to, and those that are left out to compare them on."""

    kept: Array
    left_out: Array


@dataclass(eq=False, repr=False, kw_only=True)
class _Auto(Estimator):
    """What the choice of a regressor and of a classifier share."""

    posterior_type = Posterior
    _table: ClassVar[Mapping[str, Candidate]]

    candidates: Sequence[str] | None = None
    keep: bool = False

    def summary(self) -> str:
        """Return a line for each model that was compared, the best first, and say which was chosen."""
        ranked = sorted(self.scores_.items(), key=lambda item: -item[1].mean)
        lines = [
            f"{name:<20}{score.mean:>9.3f} ± {score.standard_error:.3f}"
            f"{'  chosen' if name == self.chosen_ else ''}"
            for name, score in ranked
        ]
        return "\n".join(lines or [f"{self.chosen_}: nothing was compared"])

    @abstractmethod
    def _log_likelihoods(self, model: Any, x: Tensor, y: Array, fold: _Fold) -> Array:
        """Return (m,) the log likelihood of a fold's left-out labels under a model fitted without them."""

    def _size(self, x: Tensor) -> Size:
        return Size(*x.shape)

    def _strata(self, y: Array) -> Array:
        """Return (n,) integers; rows of each are spread evenly over the folds, and one alone is kept."""
        return np.zeros(len(y), int)

    def _check_options(self) -> None:
        super()._check_options()
        check_switch(self.keep, "keep")
        check_switch(self.progress, "progress")
        if self.candidates is None:
            return
        if isinstance(self.candidates, str) or not len(self.candidates):
            raise InputError(f"candidates is {shown(self.candidates)}, expected a list of names")
        for name in self.candidates:
            check_choice(name, self._table, "a candidate")

    @staticmethod
    def _fit_together(estimators: Sequence[_Auto], sets: Sequence[LabelledSet]) -> None:
        with progress_bar("comparing models", len(sets) * (len(estimators[0]._table) + 1)) as advance:
            shown = advance if estimators[0].progress else lambda _: None
            for estimator, (x, y) in zip(estimators, sets, strict=True):
                estimator._fit_one(x, y.numpy().ravel(), shown)

    def _fit_one(self, x: Tensor, y: Array, advance: Callable[[int], None]) -> None:
        generator = np.random.default_rng(self._generator().initial_seed())
        former = getattr(self, "chosen_", None) if self.keep else None
        names = self._suitable(self._size(x))
        compared: dict[str, Array] = {}
        folds = _folds(self._strata(y), generator) if len(names) > 1 else []
        seeds = generator.integers(2**31, size=len(folds) + 1).tolist()
        for name in names if folds else []:
            compared[name] = self._left_out(name, x, y, folds, seeds[:-1])
            advance(1)
        self._num_labels = len(y)
        self.scores_ = {name: _score(values) for name, values in compared.items()}
        self.chosen_ = _choice(compared, former) if compared else names[0]
        (self.model_,) = self._made(self.chosen_, len(y)).fit_many([(x.numpy(), y)], seeds[-1:])
        self.posterior_ = self.model_.posterior_
        advance(1 + len(self._table) - len(compared))

    def _suitable(self, size: Size) -> list[str]:
        """Return the candidates that are fast enough for a set of this size, in the order of the table."""
        wanted = self._table if self.candidates is None else self.candidates
        names = [name for name, own in self._table.items() if name in wanted and own.suits(size)]
        if not names:
            raise InputError(
                f"none of the candidates {', '.join(wanted)} is for {size.labels} labels of {size.columns} "
                "columns; add others"
            )
        return names

    def _made(self, name: str, num_labels: int) -> Any:
        """Return a candidate that is not fitted yet."""
        return self._table[name].make(num_labels).set_params(device=self.device, progress=False)

    def _left_out(
        self, name: str, x: Tensor, y: Array, folds: Sequence[_Fold], seeds: Sequence[int]
    ) -> Array:
        """Return the log likelihood of all left-out labels under a candidate that is fitted without them."""
        rows = x.numpy()
        sets = [(rows[fold.kept], y[fold.kept]) for fold in folds]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a bad fit shows in its likelihoods
            fits = self._made(name, len(sets[0][1])).fit_many(sets, seeds)
        pairs = zip(fits, folds, strict=True)
        return np.concatenate([self._log_likelihoods(fit, x, y, fold) for fit, fold in pairs])

    def _fitted_state(self) -> State:
        tensors, facts = self.model_._fitted_state()
        described = {
            "chosen": self.chosen_,
            "scores": self.scores_,
            "labels": self._num_labels,
            "targets": self.model_._described_targets(),
        }
        return tensors, described | {"facts": facts}

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.chosen_ = facts["chosen"]
        self.scores_ = {name: Score(*score) for name, score in facts["scores"].items()}
        self._num_labels = facts["labels"]
        self.model_ = self._made(self.chosen_, self._num_labels)
        self.model_.n_features_in_ = self.n_features_in_
        self.model_._restore_targets(facts["targets"])
        self.model_._restore(tensors, facts["facts"])
        self.posterior_ = self.model_.posterior_


class AutoRegressor(Regressor, _Auto):
    """Regression with the model that suits a table best, chosen anew at every fit.

    Compared are a Gaussian process, Bayesian linear regression, extremely randomised trees, gradient boosting
    and neural linear networks, by the log likelihood of left-out labels, in units of ``y``: up to 200 labels
    are each left out once, in five folds; of more, about 200 in fewer folds; of more than 5000 labels, as
    many are compared on. All models are fitted to the same folds, and the best is fitted to all labels. With
    fewer than ten labels it is the Gaussian process.

    Parameters
    ----------
    candidates : names of the models to compare, of those in `coresift.estimators.candidates`; ``None`` for
        all that are fast enough at the number of labels and columns.
    keep : whether a fit after another keeps the model chosen before, unless another is better by more than
        a standard error of the paired difference over left-out labels. For the rounds of active learning,
        where a change of models without a reason would make batches differ.
    random_state, progress : see `NeuralLinearClassifier`.
    device : of networks and the Gaussian process.

    Attributes
    ----------
    chosen_ : the name of the chosen model, and ``model_``, which is fitted to all labels.
    scores_ : for each name, the mean log likelihood of left-out labels, and its standard error; `summary`
        shows them.
    posterior_ : of the chosen model, for `coresift.select`.

    >>> x = np.random.default_rng(0).normal(size=(60, 3))
    >>> model = AutoRegressor(candidates=["linear regression", "extra trees"], random_state=0)
    >>> model.fit(x, x[:, 0] - x[:, 1]).chosen_
    'linear regression'
    """

    _table = REGRESSORS
    _target_checks: ClassVar[dict[str, bool]] = {"multi_output": False, "y_numeric": True}

    def _log_likelihoods(self, model: Any, x: Tensor, y: Array, fold: _Fold) -> Array:
        predictive = model.posterior_.predictive(x[fold.left_out].to(model.device))
        targets = torch.as_tensor(y[fold.left_out]).to(predictive.mean)
        values: Array = predictive.log_prob(targets).double().cpu().numpy()
        return values


class AutoClassifier(Classifier, _Auto):
    """Classification with the model that suits a table best, chosen anew at every fit.

    Compared are an ensemble of networks, logistic regression, extremely randomised trees and gradient
    boosting, as by `AutoRegressor`. Each class is spread evenly over the folds; a class with one label is
    never left out. With n labels of C classes, a probability p counts as (n p + 1) / (n + C) in the
    comparison, as if each class had one more label; otherwise one surprise would outweigh all other labels.

    Parameters
    ----------
    candidates, keep, random_state, device, progress : as for `AutoRegressor`.

    Attributes
    ----------
    classes_ : the labels, in the order of ``predict_proba``'s columns.
    chosen_, model_, scores_, posterior_ : as for `AutoRegressor`.

    >>> x = np.random.default_rng(0).normal(size=(60, 3))
    >>> model = AutoClassifier(candidates=["logistic regression", "extra trees"], random_state=0)
    >>> model.fit(x, np.where(x[:, 0] > x[:, 1], "yes", "no")).chosen_
    'logistic regression'
    """

    _table = CLASSIFIERS

    @staticmethod
    def _recoded(estimators: Sequence[Any], sets: list[LabelledSet]) -> list[LabelledSet]:
        return sets  # a set's candidates predict its own classes

    def _size(self, x: Tensor) -> Size:
        return super()._size(x)._replace(classes=len(self.classes_))

    def _strata(self, y: Array) -> Array:
        return y

    def _log_likelihoods(self, model: Any, x: Tensor, y: Array, fold: _Fold) -> Array:
        probs = model.predict_proba(x[fold.left_out].numpy())
        columns = np.searchsorted(model.classes_, y[fold.left_out])
        num = len(fold.kept)
        own = probs[np.arange(len(probs)), columns]
        values: Array = np.log((num * own + 1) / (num + len(self.classes_)))
        return values


def _folds(strata: Array, generator: np.random.Generator) -> list[_Fold]:
    """Split rows into those to fit to and those to leave out, each stratum evenly; no folds for few rows."""
    rows = generator.permutation(len(strata))[: limits.COMPARED_LABELS]
    _, of_kind, count = np.unique(strata[rows], return_inverse=True, return_counts=True)
    order = rows[np.argsort(of_kind, kind="stable")]
    order = order[np.repeat(count, count) > 1]
    if len(order) < limits.LEAST_COMPARED:
        return []
    most = limits.COMPARED_FOLDS
    num = min(most, math.ceil(limits.LEFT_OUT_LABELS * most / len(order)))
    parts = [order[number::most] for number in range(num)]
    return [_Fold(np.setdiff1d(rows, left_out), left_out) for left_out in parts]


def _score(values: Array) -> Score:
    return Score(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))))


def _choice(compared: Mapping[str, Array], former: str | None) -> str:
    """Return the best model, or the former one unless the best is better by more than a standard error.

    The error is that of the mean paired difference over left-out labels.
    """
    best = max(compared, key=lambda name: float(compared[name].mean()))
    if former is None or former not in compared:
        return best
    gain = _score(compared[best] - compared[former])
    return best if gain.mean > gain.standard_error else former
