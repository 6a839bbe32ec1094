"""Bayesian linear regression: the prior of largest evidence, units, saved models."""

import numpy as np
import torch
from scipy.stats import multivariate_t

from coresift.estimators import BayesianLinearRegressor
from coresift.estimators.linear import _NOISE_RATE, _NOISE_SHAPE, _PRIOR_VARIANCES, _last_layer
from coresift.testing import check_posterior

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 3)) * [1, 100, 0.01] + [0, 5, 1e4]
Y = X @ [1.0, 0.02, 30.0] + 0.1 * RANDOM.normal(size=60)


def test_learns_function_and_noise():
    model = BayesianLinearRegressor().fit(X[:40], Y[:40])
    mean, std = model.predict(X[40:], return_std=True)
    assert np.abs(mean - Y[40:]).max() < 0.4 and (np.abs(std - 0.1) < 0.04).all()
    check_posterior(model.posterior_, torch.as_tensor(X[:10]))


def test_prior_variance_has_the_largest_evidence():
    features, targets = torch.tensor(RANDOM.normal(size=(8, 2))), torch.tensor(RANDOM.normal(size=8))
    scales = [np.eye(8) + v * (features @ features.mT).numpy() for v in _PRIOR_VARIANCES]
    evidence = [
        multivariate_t(shape=_NOISE_RATE / _NOISE_SHAPE * scale, df=2 * _NOISE_SHAPE).logpdf(targets.numpy())
        for scale in scales
    ]
    best = _PRIOR_VARIANCES[int(np.argmax(evidence))]
    precision = features.mT @ features + torch.eye(2) / best
    assert torch.allclose(_last_layer(features, targets).covariance, torch.linalg.inv(precision))


def test_saved_and_loaded(tmp_path):
    model = BayesianLinearRegressor().fit(X, Y)
    model.save(tmp_path)
    assert np.allclose(BayesianLinearRegressor.load(tmp_path).predict(X), model.predict(X))
