"""Bags of scikit-learn models: noise from left-out labels, members of every class, seeds."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression

from coresift import InputError
from coresift.estimators import BaggedClassifier, BaggedRegressor
from coresift.testing import check_posterior

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(300, 2))
TRUTH = np.sign(X[:, 0])


@pytest.mark.parametrize("noise", [0.1, 0.5])
def test_noise_is_that_of_left_out_labels(noise):
    y = X[:, 0] + noise * RANDOM.normal(size=300)
    model = BaggedRegressor(LinearRegression(), random_state=0, progress=False).fit(X[:200], y[:200])
    assert 0.8 * noise < model.noise_variance_**0.5 < 1.2 * noise
    forest = BaggedRegressor(random_state=0, progress=False).fit(X[:200], y[:200])
    mean, std = forest.predict(X[200:], return_std=True)
    assert 0.6 < np.sqrt(np.mean(np.square((y[200:] - mean) / std))) < 1.4
    check_posterior(forest.posterior_, torch.as_tensor(X[:20]))


def test_every_member_meets_every_class():
    y = np.array(["a"] * 250 + ["b"] * 49 + ["c"])
    model = BaggedClassifier(LogisticRegression(), num_members=5, random_state=0, progress=False).fit(X, y)
    assert all(len(member.classes_) == 3 for member in model.estimators_)
    assert model.posterior_.num_samples == 5


def test_seed_and_members():
    fits = [BaggedRegressor(random_state=seed, progress=False).fit(X[:50], TRUTH[:50]) for seed in (0, 0, 1)]
    first, same, other = (fit.predict(X) for fit in fits)
    assert np.array_equal(first, same) and not np.array_equal(first, other)
    with pytest.raises(InputError, match="num_members"):
        BaggedRegressor(num_members=1).fit(X, TRUTH)
    with pytest.raises(InputError, match="fraction"):
        BaggedRegressor(fraction=1.0).fit(X, TRUTH)
