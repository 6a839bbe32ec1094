"""Gaussian processes against scikit-learn's, against formulae and against their own draws, in float64."""

import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor as Reference
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from coresift import InputError, as_pool, select
from coresift.posteriors import Matern52, exact_posterior, inducing_posterior
from coresift.scores import bald, entropy
from coresift.strategies import STRATEGIES
from coresift.testing import check_posterior

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=GENERATOR, dtype=torch.float64) + 5
Y = X[:, 0].sin() + X[:, 1] / 3 + 0.1 * torch.randn(60, generator=GENERATOR, dtype=torch.float64)
POOL = torch.randn(200, 3, generator=GENERATOR, dtype=torch.float64) + 5
LENGTHS, VARIANCE, NOISE, MEAN = torch.tensor([1.0, 2.0, 3.0]).double(), 2.0, 0.05, 0.7
KERNEL = Matern52(X.mean(0), LENGTHS, VARIANCE)
EXACT = exact_posterior(KERNEL, NOISE, X, Y, MEAN)
INDUCING = inducing_posterior(KERNEL, NOISE, X, Y, X[:20], MEAN)
BOTH = pytest.mark.parametrize("posterior", [EXACT, INDUCING], ids=["exact", "inducing"])


def reference():
    kernel = ConstantKernel(VARIANCE) * Matern(LENGTHS.numpy(), nu=2.5)
    return Reference(kernel, alpha=NOISE, optimizer=None).fit(X.numpy(), Y.numpy() - MEAN)


def test_as_in_scikit_learn():
    mean, covariance = reference().predict(POOL.numpy(), return_cov=True)
    assert torch.allclose(EXACT.function_mean(POOL), torch.tensor(mean) + MEAN, rtol=1e-10)
    assert torch.allclose(EXACT.covariance(POOL, POOL), torch.tensor(covariance), atol=1e-10)
    variance = torch.tensor(covariance).diagonal()
    assert torch.allclose(EXACT.function_variance(POOL), variance, atol=1e-10)
    assert torch.allclose(EXACT.predictive(POOL).variance, variance + NOISE, atol=1e-10)


@BOTH
def test_contract(posterior):
    check_posterior(posterior, POOL)
    check_posterior(posterior, POOL.float(), tolerance=1e-5)


def test_every_labelled_point_as_an_inducing_point():
    found = inducing_posterior(KERNEL, NOISE, X, Y, X, MEAN)
    assert torch.allclose(found.function_mean(POOL), EXACT.function_mean(POOL), atol=1e-5)
    assert torch.allclose(found.covariance(POOL, POOL), EXACT.covariance(POOL, POOL), atol=1e-5)


def test_inducing_points_by_their_definition():
    """The variational posterior is that of f(Z) given labels of covariance Kfz Kzz^-1 Kzf + s2 I."""
    z, matrix = X[:20], KERNEL(X[:20], X[:20])
    inner = torch.linalg.inv(matrix + KERNEL(z, X) @ KERNEL(X, z) / NOISE)
    mean = MEAN + KERNEL(POOL, z) @ inner @ KERNEL(z, X) @ (Y - MEAN) / NOISE
    covariance = KERNEL(POOL, POOL) - KERNEL(POOL, z) @ (torch.linalg.inv(matrix) - inner) @ KERNEL(z, POOL)
    assert torch.allclose(INDUCING.function_mean(POOL), mean, atol=1e-5)
    assert torch.allclose(INDUCING.covariance(POOL, POOL), covariance, atol=1e-5)


def test_labels_in_several_blocks(monkeypatch):
    advanced = []
    monkeypatch.setattr("coresift.limits.PREDICTIVE_NUMBERS", 7 * 2048)
    found = inducing_posterior(KERNEL, NOISE, X, Y, X[:20], MEAN, advanced.append)
    assert sum(advanced) == 60
    assert torch.allclose(found.function_mean(POOL), INDUCING.function_mean(POOL), atol=1e-9)
    draws = EXACT.conditional(POOL, EXACT.sample(3, torch.Generator().manual_seed(1))).mean
    monkeypatch.undo()
    whole = EXACT.conditional(POOL, EXACT.sample(3, torch.Generator().manual_seed(1))).mean
    assert torch.allclose(draws, whole, atol=1e-12)


@BOTH
def test_functions_have_the_mean_and_covariance_of_the_posterior(posterior):
    """But for the error of the Fourier features, some 1 / sqrt(2 F) of the prior variance."""
    theta = posterior.sample(20_000, torch.Generator().manual_seed(0))
    values = posterior.conditional(POOL[:30], theta).mean
    assert torch.allclose(values.mean(0), posterior.function_mean(POOL[:30]), atol=0.03)
    error = torch.cov(values.mT) - posterior.covariance(POOL[:30], POOL[:30])
    assert error.abs().max() < 0.05 * VARIANCE


def test_a_function_is_the_same_in_all_blocks():
    theta = EXACT.sample(5, torch.Generator().manual_seed(0))
    whole = EXACT.conditional(POOL, theta).mean
    for size in (1, 7, 200):
        blocks = torch.cat([EXACT.conditional(rows, theta).mean for rows in torch.split(POOL, size)], 1)
        assert torch.allclose(blocks, whole, atol=1e-10)


def test_functions_pass_through_labels_without_noise():
    posterior = exact_posterior(KERNEL, 1e-8, X, Y, MEAN)
    theta = posterior.sample(5, torch.Generator().manual_seed(0))
    assert torch.allclose(posterior.conditional(X, theta).mean, Y.expand(5, -1), atol=2e-3)
    assert posterior.function_variance(X).max() < 1e-6


def test_fourier_features_approach_the_kernel():
    frequencies = KERNEL.frequencies(100_000, torch.Generator().manual_seed(0))
    features = KERNEL.fourier(POOL[:50], frequencies)
    assert (features @ features.mT - KERNEL(POOL[:50], POOL[:50])).abs().max() < 0.02 * VARIANCE


def test_information_and_entropy():
    variance = EXACT.function_variance(POOL)
    exact = bald(EXACT, as_pool(POOL)).values
    assert torch.allclose(exact, 0.5 * torch.log(1 + variance / NOISE), atol=1e-12)
    sampled = bald(EXACT, as_pool(POOL), 256, exact=False).values
    assert torch.allclose(sampled, exact, atol=1e-9)  # the noise is the same for all functions
    expected = 0.5 * torch.log(2 * torch.pi * torch.e * (variance + NOISE))
    assert torch.allclose(entropy(EXACT, as_pool(POOL)).values, expected, atol=1e-12)


@pytest.mark.parametrize("strategy", [name for name, found in STRATEGIES.items() if not found.needs_classes])
def test_every_strategy(strategy):
    if strategy == "acs-fisher":  # there are no parameters to take gradients of
        with pytest.raises(InputError, match="has no last layer"):
            select(POOL, posterior=EXACT, strategy=strategy, budget=5)
        return
    batch = select(POOL, posterior=EXACT, labelled=X, strategy=strategy, budget=5)
    assert len(set(batch.index.tolist())) == 5


def test_rows_of_another_width():
    with pytest.raises(InputError, match=r"x has shape \(200, 2\), expected \(any, 3\)"):
        EXACT.predictive(POOL[:, :2])
