"""The marginal likelihood against scikit-learn's, its gradient against differences, and its optimum."""

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime
from sklearn.gaussian_process import GaussianProcessRegressor as Reference
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from coresift.estimators.marginal_likelihood import LENGTHS, MarginalLikelihood, Prior, optimised, starts

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(50, 3))
Y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * RANDOM.normal(size=50)
Y = (Y - Y.mean()) / Y.std()
LIKELIHOOD = MarginalLikelihood(torch.tensor(X), torch.tensor(Y))
SEVERAL = [np.log([1.0, 2.0, 3.0, 0.1]), np.log([0.3, 20.0, 1.0, 1e-4]), np.log([5.0, 5.0, 0.1, 3.0])]


@pytest.mark.parametrize("parameters", SEVERAL)
def test_value(parameters):
    lengths, ratio = np.exp(parameters[:-1]), np.exp(parameters[-1])
    _, variance = LIKELIHOOD.value_and_variance(parameters)
    kernel = ConstantKernel(variance) * Matern(lengths, nu=2.5) + WhiteKernel(variance * ratio)
    reference = Reference(kernel, alpha=0, optimizer=None).fit(X, Y)
    assert np.isclose(LIKELIHOOD(parameters)[0], -reference.log_marginal_likelihood_value_, rtol=1e-9)
    _, gradient = reference.log_marginal_likelihood(reference.kernel_.theta, eval_gradient=True)
    assert np.isclose(gradient[0] + gradient[-1], 0, atol=1e-6)  # the variance is the most likely one
    assert np.allclose(LIKELIHOOD(parameters)[1][:3], -gradient[1:4], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("parameters", SEVERAL)
@pytest.mark.parametrize("term", [LIKELIHOOD, Prior.of(3)], ids=["likelihood", "prior"])
def test_gradient(term, parameters):
    expected = approx_fprime(parameters, lambda at: term(at)[0], 1e-6)
    assert np.allclose(term(parameters)[1], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # parameters at their bounds
@pytest.mark.parametrize("seed", range(4))
def test_optimum_is_at_least_as_good_as_scikit_learns(seed):
    random = np.random.default_rng(seed)
    x = random.normal(size=(40, 4))
    y = np.sin(3 * x[:, 0]) * x[:, 1] + 0.2 * random.normal(size=40)
    y = (y - y.mean()) / y.std()
    kernel = ConstantKernel(1.0, (1e-6, 1e6)) * Matern(np.ones(4), LENGTHS, nu=2.5)
    reference = Reference(kernel + WhiteKernel(0.1, (1e-8, 1e2)), n_restarts_optimizer=3, random_state=seed)
    begin = starts(4, 3, torch.Generator().manual_seed(seed))
    likelihood = MarginalLikelihood(torch.tensor(x), torch.tensor(y))
    found = optimised([likelihood], begin, 200, lambda _: None)
    assert -likelihood(found)[0] >= reference.fit(x, y).log_marginal_likelihood_value_ - 1e-3


def test_starts():
    generator = torch.Generator().manual_seed(0)
    begin = starts(4, 5, generator)
    assert len(begin) == 6 and np.allclose(begin[0], np.log([2, 2, 2, 2, 0.1]))
    assert len({tuple(parameters) for parameters in begin}) == 6


def test_every_step_is_counted():
    steps = []
    optimised([LIKELIHOOD], starts(3, 2, torch.Generator().manual_seed(0)), 7, steps.append)
    assert sum(steps) == 21


def test_with_few_labels_the_prior_decides():
    """Eight labels cannot tell which of eight columns matter; without a prior, some matter much too much."""
    random = np.random.default_rng(0)
    likelihood = MarginalLikelihood(
        torch.tensor(random.normal(size=(8, 8))), torch.tensor(random.normal(size=8))
    )
    begin, prior = starts(8, 3, torch.Generator().manual_seed(0)), Prior.of(8)
    alone = optimised([likelihood], begin, 100, lambda _: None)
    found = optimised([likelihood, prior], begin, 100, lambda _: None)
    assert (
        np.abs((found - prior.mean) / prior.std).max() < 1.5 < np.abs((alone - prior.mean) / prior.std).max()
    )
