"""Members of scikit-learn ensembles as posterior samples."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import (
    BaggingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    VotingClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import coresift
from coresift.errors import InputError
from coresift.posteriors.members import members_posterior
from coresift.testing import check_posterior

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 5))
WORDS = np.array(["a", "b", "c"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 1)]
ENSEMBLES = [
    RandomForestClassifier(7, random_state=0),
    BaggingClassifier(LogisticRegression(), 7, max_features=0.6, random_state=0),
    VotingClassifier([("lr", LogisticRegression()), ("knn", KNeighborsClassifier())], voting="soft"),
]


@pytest.mark.parametrize("ensemble", ENSEMBLES, ids=lambda each: type(each).__name__)
def test_the_mean_of_members_is_what_the_ensemble_predicts(ensemble: object) -> None:
    fitted = ensemble.fit(X[:60], WORDS[:60])
    posterior = members_posterior(fitted)
    probs = posterior.predictive(torch.as_tensor(X[60:])).probs.numpy()
    np.testing.assert_allclose(probs, fitted.predict_proba(X[60:]), atol=1e-12)
    check_posterior(posterior, torch.as_tensor(X[60:]))


def test_numbers() -> None:
    forest = RandomForestRegressor(9, random_state=0).fit(X[:60], X[:60, 0])
    posterior = members_posterior(forest, noise_variance=0.25)
    predictive = posterior.predictive(torch.as_tensor(X[60:]))
    np.testing.assert_allclose(predictive.mean.numpy(), forest.predict(X[60:]), atol=1e-12)
    spread = np.var([tree.predict(X[60:]) for tree in forest.estimators_], axis=0)
    np.testing.assert_allclose(predictive.variance.numpy(), spread + 0.25, atol=1e-12)


def test_a_member_that_lacks_a_class() -> None:
    """Bootstrap samples of few rows lack classes; their members give these no probability."""
    rows, words = X[:12], np.array(["a"] * 10 + ["b", "c"])
    fitted = BaggingClassifier(KNeighborsClassifier(1), 15, random_state=0).fit(rows, words)
    assert any(len(member.classes_) < 3 for member in fitted.estimators_)
    probs = members_posterior(fitted).predictive(torch.as_tensor(X[20:])).probs
    np.testing.assert_allclose(probs.numpy(), fitted.predict_proba(X[20:]), atol=1e-12)


def test_selection() -> None:
    forest = RandomForestClassifier(30, random_state=0).fit(X[:40], WORDS[:40])
    batch = coresift.select(X[40:], posterior=members_posterior(forest), budget=6, labelled=X[:40])
    assert len(set(batch.index.tolist())) == 6


def test_what_has_no_members() -> None:
    with pytest.raises(InputError, match="LogisticRegression has no members"):
        members_posterior(LogisticRegression().fit(X, WORDS))
    boosted = GradientBoostingRegressor(n_estimators=3).fit(X, X[:, 0])
    with pytest.raises(InputError, match="no members that predict by themselves"):
        members_posterior(boosted)
    with pytest.raises(InputError, match="noise_variance="):
        members_posterior(RandomForestRegressor(3).fit(X, X[:, 0]))
