"""Vectors whose inner products are posterior covariances, and what their remainder promises."""

import pytest
import torch

from coresift import InputError, as_pool
from coresift.posteriors import Matern52, exact_posterior, inducing_posterior
from coresift.selectors import LCMD
from coresift.spaces import covariance_space, covariance_vectors
from coresift.testing import check_selector, check_space

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(40, 2, generator=GENERATOR, dtype=torch.float64)
POOL = 2 * torch.randn(300, 2, generator=GENERATOR, dtype=torch.float64)
KERNEL = Matern52(torch.zeros(2).double(), torch.ones(2).double(), 3.0)
EXACT = exact_posterior(KERNEL, 0.1, X, X[:, 0])
INDUCING = inducing_posterior(KERNEL, 0.1, X, X[:, 0], X[:10])
BOTH = pytest.mark.parametrize("posterior", [EXACT, INDUCING], ids=["exact", "inducing"])


@BOTH
@pytest.mark.parametrize("num", [1, 20, 100, 300])
def test_errors_are_within_the_remainder(posterior, num):
    vectors = covariance_vectors(posterior, as_pool(POOL), num, tolerance=0.0)
    found, covariance = vectors(POOL), posterior.covariance(POOL, POOL)
    assert found.shape == (300, num)
    remainder = vectors.remainder(POOL)
    assert torch.allclose(remainder, covariance.diagonal() - found.square().sum(1), atol=1e-9)
    assert remainder.min() > -1e-9
    error, root = covariance - found @ found.mT, remainder.clamp(min=0).sqrt()
    assert bool((error.abs() <= torch.outer(root, root) + 1e-8).all())
    # No D vectors leave a smaller trace than the D largest eigenvalues; pivots leave somewhat more.
    least = float(torch.linalg.eigvalsh(covariance)[: 300 - num].clamp(min=0).sum())
    assert least - 1e-6 <= float(remainder.sum()) <= 5 * least + 1e-6


def test_the_trace_of_the_remainder_falls_with_the_dimensions():
    traces = [
        float(covariance_vectors(EXACT, as_pool(POOL), num, tolerance=0.0).remainder(POOL).sum())
        for num in (1, 10, 50, 300)
    ]
    assert traces == sorted(traces, reverse=True) and traces[-1] < 1e-8 * traces[0]


def test_pivots_end_at_the_tolerance():
    vectors = covariance_vectors(EXACT, as_pool(POOL), 300, tolerance=0.01)
    assert vectors(POOL).shape[1] < 200
    assert vectors.remainder(POOL).max() <= 0.01 * EXACT.function_variance(POOL).max() * (1 + 1e-9)


def test_a_pivot_has_no_error():
    vectors = covariance_vectors(EXACT, as_pool(POOL), 30)
    found = vectors(vectors.points) @ vectors(POOL).mT
    assert torch.allclose(found, EXACT.covariance(vectors.points, POOL), atol=1e-10)


def test_pivots_of_a_large_pool_come_from_a_part_of_it():
    generator = torch.Generator().manual_seed(0)
    vectors = covariance_vectors(EXACT, as_pool(POOL), 60, generator=generator, candidates=150)
    everywhere = covariance_vectors(EXACT, as_pool(POOL), 60)
    ratio = vectors.remainder(POOL).sum() / everywhere.remainder(POOL).sum()
    assert 0.8 < ratio < 2


def test_space():
    space = covariance_space(EXACT, as_pool(POOL), 300, tolerance=0.0, labelled=X)
    check_space(space, tolerance=1e-8)
    assert torch.allclose(space.gram(torch.arange(300)), EXACT.covariance(POOL, POOL), atol=1e-7)
    check_selector(LCMD(), space)


def test_a_pool_without_variance():
    posterior = exact_posterior(Matern52(X[0], torch.ones(2).double(), 1.0), 1e-40, X[:1], X[:1, 0])
    with pytest.raises(InputError, match="the model is certain of the whole pool"):
        covariance_vectors(posterior, as_pool(X[:1].repeat(3, 1)))
