"""Take the members of a fitted scikit-learn ensemble for posterior samples: forests, bagging, voting."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal

from coresift.errors import InputError
from coresift.posteriors.samples import FunctionPosterior


def members_posterior(ensemble: Any, noise_variance: float | None = None) -> FunctionPosterior:
    """Return a posterior whose samples are the members of a fitted scikit-learn ensemble.

    Parameters
    ----------
    ensemble : has ``estimators_``, such as a random forest, a bagging or a voting ensemble.
    noise_variance : for numbers, how much new labels vary around what a member predicts.

    >>> from sklearn.ensemble import RandomForestClassifier
    >>> x, y = np.arange(20.0)[:, None], np.arange(20) > 9
    >>> posterior = members_posterior(RandomForestClassifier(5, random_state=0).fit(x, y))
    >>> posterior.predictive(torch.tensor([[0.0], [19.0]])).probs.argmax(1)
    tensor([0, 1])
    """
    members = getattr(ensemble, "estimators_", [])
    stages = getattr(members, "ndim", 1) > 1  # of boosting, which are no models by themselves
    if stages or len(members) == 0:
        raise InputError(
            f"{type(ensemble).__name__} has no members that predict by themselves; pass a fitted forest, or "
            "a bagging or voting ensemble"
        )
    columns = getattr(ensemble, "estimators_features_", [slice(None)] * len(members))
    samples = list(zip(members, columns, strict=True))
    if hasattr(ensemble, "classes_"):
        return FunctionPosterior(_Classes(len(ensemble.classes_)), samples)
    if noise_variance is None:
        raise InputError("pass noise_variance=, how much new labels vary around what a member predicts")
    return FunctionPosterior(_Numbers(float(noise_variance) ** 0.5), samples)


class _Classes:
    """Class probabilities of a member for rows (n, d)."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes

    def __call__(self, x: Tensor, sample: Any) -> Distribution:
        member, columns = sample
        probs = np.zeros((len(x), self.num_classes))
        # Members are trained on the codes of classes, and may not have met each of them.
        probs[:, member.classes_.astype(int)] = member.predict_proba(x[:, columns].cpu().numpy())
        return Categorical(probs=torch.as_tensor(probs), validate_args=False)


class _Numbers:
    """Numbers that a member predicts for rows (n, d), with noise."""

    def __init__(self, std: float) -> None:
        self.std = std

    def __call__(self, x: Tensor, sample: Any) -> Distribution:
        member, columns = sample
        mean = torch.as_tensor(np.asarray(member.predict(x[:, columns].cpu().numpy()), float))
        return Normal(mean, torch.full_like(mean, self.std), validate_args=False)
