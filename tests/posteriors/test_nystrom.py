"""Vectors whose inner products are posterior covariances, and what their remainder promises."""

import pytest
import torch

from coresift import InputError, as_pool, select
from coresift.posteriors import (
    GaussianProcessOnPool,
    Matern52,
    covariance_vectors,
    exact_posterior,
    inducing_posterior,
)
from coresift.scores import bald
from coresift.spaces import predictive_space
from coresift.testing import check_posterior, check_space

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
    vectors = covariance_vectors(posterior, POOL, num, tolerance=0.0)
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
        float(covariance_vectors(EXACT, POOL, num, tolerance=0.0).remainder(POOL).sum())
        for num in (1, 10, 50, 300)
    ]
    assert traces == sorted(traces, reverse=True) and traces[-1] < 1e-8 * traces[0]


def test_pivots_end_at_the_tolerance():
    vectors = covariance_vectors(EXACT, POOL, 300, tolerance=0.01)
    assert vectors(POOL).shape[1] < 200
    assert vectors.remainder(POOL).max() <= 0.01 * EXACT.function_variance(POOL).max() * (1 + 1e-9)


def test_a_pivot_has_no_error():
    vectors = covariance_vectors(EXACT, POOL, 30)
    found = vectors(vectors.points) @ vectors(POOL).mT
    assert torch.allclose(found, EXACT.covariance(vectors.points, POOL), atol=1e-10)


def on_pool(posterior=EXACT, num=300):
    return GaussianProcessOnPool.of(posterior, as_pool(POOL), torch.Generator().manual_seed(0), num)


def test_pivots_of_a_large_pool_come_from_a_part_of_it():
    part, whole = (covariance_vectors(EXACT, on_pool(num=num).candidates, 60) for num in (150, 300))
    ratio = part.remainder(POOL).sum() / whole.remainder(POOL).sum()
    assert 0.8 < ratio < 2


def test_half_of_the_pivots_of_a_target_come_from_there():
    """Far from the pool, only pivots of the target give its points vectors."""
    target, generator = POOL + 20, torch.Generator().manual_seed(0)
    alone = GaussianProcessOnPool.of(EXACT, as_pool(POOL), generator, num=100)
    both = GaussianProcessOnPool.of(EXACT, as_pool(POOL), generator, 100, target)
    assert len(both.candidates) == 100
    variance = EXACT.function_variance(target)
    assert float(alone.vectors(target).square().sum()) < 1e-6 * float(variance.sum())
    assert float(both.vectors(target).square().sum()) > 0.5 * float(variance.sum())


@BOTH
def test_contract(posterior):
    check_posterior(on_pool(posterior), POOL)


@BOTH
def test_draws_have_the_mean_and_covariance_of_the_posterior(posterior):
    pooled = on_pool(posterior)
    values = pooled.conditional(POOL[:30], pooled.sample(20_000, torch.Generator().manual_seed(0))).mean
    assert torch.allclose(values.mean(0), posterior.function_mean(POOL[:30]), atol=0.06)
    scale = posterior.function_variance(POOL[:30]).sqrt()
    error = (torch.cov(values.mT) - posterior.covariance(POOL[:30], POOL[:30])) / torch.outer(scale, scale)
    assert error.abs().max() < 0.05


def test_predictive_space():
    space = predictive_space(on_pool(), as_pool(POOL), labelled=X)
    check_space(space, tolerance=1e-6)
    assert torch.allclose(space.gram(torch.arange(300)), EXACT.covariance(POOL, POOL) / 0.1, atol=1e-4)


def test_information_is_that_of_the_process():
    assert torch.equal(bald(on_pool(), as_pool(POOL)).values, bald(EXACT, as_pool(POOL)).values)


def test_select_makes_draws_for_the_pool():
    found = select(POOL, posterior=EXACT, labelled=X, budget=5).index.tolist()
    assert found == select(POOL, posterior=on_pool(), labelled=X, budget=5).index.tolist()


def test_covariances_are_found_only_where_they_are_needed(monkeypatch):
    monkeypatch.setattr("coresift.posteriors.nystrom.covariance_vectors", None)
    for strategy in ("bald", "k-center", "variance", "random"):
        select(POOL, posterior=EXACT, strategy=strategy, budget=5)


def test_a_pool_without_variance():
    posterior = exact_posterior(Matern52(X[0], torch.ones(2).double(), 1.0), 1e-40, X[:1], X[:1, 0])
    with pytest.raises(InputError, match="the model is certain of all points"):
        covariance_vectors(posterior, X[:1].repeat(3, 1))
