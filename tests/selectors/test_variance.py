"""Variance reduction against its definition: models that are fitted again with each candidate added."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coresift import InputError, Resources, find_strategy, select
from coresift.pool import as_pool
from coresift.posteriors import (
    BayesianLinearRegression,
    ClassSamples,
    FunctionPosterior,
    GaussianSamples,
    Matern52,
    exact_posterior,
)
from coresift.scores import PredictiveInformation
from coresift.search.gains import VectorTable
from coresift.selectors import VarianceReduction
from coresift.spaces import GramSpace, PredictiveCovariance, Problem, VectorSpace
from coresift.spaces.vectors import OnDisk


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def greedy(gram, cross, noise, budget, pending=()):
    """The definition: inner products among points (N, N) and with targets (N, T), noise variances (N,)."""
    chosen, batch = list(pending), []
    for _ in range(budget):
        falls = torch.full((len(gram),), -1.0, dtype=torch.float64)
        for n in set(range(len(gram))) - set(chosen):
            some = [*chosen, n]
            known = gram[some][:, some] + torch.diag(noise[some])
            falls[n] = (cross[some] * torch.linalg.solve(known, cross[some])).sum()
        n = int(falls.argmax())
        chosen.append(n)
        batch.append(n)
    return batch


def targeted(vectors, targets, noise):
    """A space of vectors phi (D, N) for targets (D, T)."""
    space = VectorSpace((vectors / noise.sqrt()).to(vectors.dtype))
    space.target_moment = targets @ targets.mT
    return space


def test_linear_regression_fitted_again():
    """The batch is the one that fits of the model, with each candidate added, would choose."""
    pool, target, labelled = normal(25, 4), normal(11, 4, seed=1) + 1, normal(6, 4, seed=2)
    model = BayesianLinearRegression(0.4)

    def variance(rows):  # the targets' variance does not depend on the labels
        return float(model.fit(rows, torch.zeros(len(rows)).double()).function_variance(target).sum())

    rows, expected = labelled, []
    for _ in range(5):
        after = [np.inf if n in expected else variance(torch.cat([rows, pool[[n]]])) for n in range(25)]
        expected.append(int(np.argmin(after)))
        rows = torch.cat([rows, pool[expected[-1:]]])
    posterior = model.fit(labelled, labelled[:, 0])
    batch = select(pool, posterior=posterior, target=target, strategy="variance-reduction", budget=5)
    assert batch.index.tolist() == expected
    # The residual is the root of the targets' variance, in units of the noise.
    assert batch.residuals[-1] == pytest.approx((variance(rows) / 0.4) ** 0.5)
    more = select(
        pool,
        posterior=posterior,
        target=target,
        strategy="variance-reduction",
        budget=3,
        pending=batch.index[:2],
    )
    assert more.index.tolist() == expected[2:]


def test_a_gaussian_process():
    """Its covariances as they are, against finite vectors of them."""
    pool, target, labelled = normal(40, 2), normal(15, 2, seed=1), normal(6, 2, seed=2)
    kernel = Matern52(torch.zeros(2).double(), torch.ones(2).double(), 1.0)
    process = exact_posterior(kernel, 0.1, labelled, labelled[:, 0])
    noise = torch.full((40,), 0.1).double()
    expected = greedy(process.covariance(pool, pool), process.covariance(pool, target), noise, 6)
    batch = select(pool, posterior=process, target=target, strategy="variance-reduction", budget=6)
    assert batch.index.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(2, 12), size=st.integers(10, 50))
def test_batches_are_those_of_the_definition(dtype, seed, rows, size):
    vectors, targets = 3 * normal(rows, size, seed=seed), normal(rows, 7, seed=seed + 1)
    noise = normal(size, seed=seed + 2).exp()
    expected = greedy(vectors.mT @ vectors, vectors.mT @ targets, noise, 8, pending=[1, 2])
    space = targeted(vectors.to(dtype), targets, noise)
    batch = VarianceReduction().select(space, 8, pending=[2, 1]).index.tolist()
    if dtype == torch.float64:
        assert batch == expected
    else:  # vectors that are rounded are other vectors: as good a batch
        chosen = [[1, 2, *some] for some in (batch, expected)]
        falls = [fall(vectors, targets, noise, some) for some in chosen]
        assert falls[0] == pytest.approx(falls[1], rel=1e-4)


def fall(vectors, targets, noise, index):
    some = vectors[:, index]
    known = some.mT @ some + torch.diag(noise[index])
    cross = some.mT @ targets
    return float((cross * torch.linalg.solve(known, cross)).sum())


def test_gram_matrices_and_files_give_the_same_batch():
    vectors = normal(6, 3000)
    expected = VarianceReduction().select(VectorSpace(vectors), 40, pending=[5], exclude=[7]).index.tolist()
    small = VectorSpace(vectors[:, :80])
    gram = GramSpace(vectors[:, :80].mT @ vectors[:, :80])
    assert VarianceReduction().select(gram, 20).index.tolist() == (
        VarianceReduction().select(small, 20).index.tolist()
    )
    columns = OnDisk(6, 3000, torch.float64, 1024)
    columns.write(0, vectors)
    stored = VarianceReduction().select(VectorSpace(columns), 40, pending=[5], exclude=[7])
    assert stored.index.tolist() == expected
    with pytest.raises(InputError, match=r"a GramSpace stores no vectors; .* at most 4,096 such points"):
        VarianceReduction().select(GramSpace(torch.eye(5000)), 2)


def test_rounding_is_noticed(monkeypatch):
    """Little noise, few dimensions: after a few steps hardly any variance is left of vectors in float32."""
    refreshed, refresh = [], VectorTable.refresh
    monkeypatch.setattr(VectorTable, "refresh", lambda *given: refreshed.append(1) or refresh(*given))
    vectors = 300 * normal(8, 2000, dtype=torch.float32)
    batches = [
        VarianceReduction().select(VectorSpace(vectors.to(d)), 60) for d in (torch.float64, torch.float32)
    ]
    assert len(refreshed) > 2
    assert batches[0].index.tolist() == batches[1].index.tolist()


@pytest.mark.parametrize("exponent", [-200, 200])
def test_very_large_and_very_small_vectors(exponent):
    """Of very small ones, noise hides all; of very large ones, none."""
    vectors = normal(5, 60)
    far, near = (
        VarianceReduction().select(VectorSpace(vectors * 2.0**power), 4).index.tolist()
        for power in (exponent, exponent // 5)
    )
    assert far == near


def test_targets_that_are_certain_are_refused():
    space = VectorSpace(normal(3, 20))
    space.target_moment = torch.zeros(3, 3).double()
    with pytest.raises(InputError, match="predict the same for all targets"):
        VarianceReduction().select(space, 2)


def test_covariances_of_samples():
    """Vectors and targets against the covariance and the noise of what samples predict."""
    means, variances = normal(200, 9), normal(200, 9, seed=1).exp()
    target = normal(200, 5, seed=2)
    pool = torch.stack([means, variances], -1).transpose(0, 1)
    given = torch.stack([target, torch.ones_like(target)], -1).transpose(0, 1)
    problem = Problem(as_pool(pool), GaussianSamples(200), target=given)
    space = PredictiveCovariance()(problem)
    std = variances.mean(0).sqrt()
    covariance = torch.cov(means.mT, correction=0) / std / std[:, None]
    torch.testing.assert_close(space.gram(torch.arange(9)), covariance)
    cross = ((means - means.mean(0)).mT @ (target - target.mean(0)) / 200) / std[:, None]
    vectors = space.columns_at(torch.arange(9))
    torch.testing.assert_close(vectors.mT @ space.target_moment @ vectors, cross @ cross.mT)


def test_the_pool_is_the_target_by_default():
    probs = torch.softmax(2 * normal(30, 60, 3), -1)
    batches = [
        select(probs=probs, strategy="variance-reduction", budget=6, target=target).index.tolist()
        for target in (None, probs)
    ]
    assert batches[0] == batches[1]


@pytest.mark.parametrize("classes", [2, 4])
def test_classes_are_ranked_nearly_as_by_information(classes):
    """The first gain against exact EPIG, over smooth class probabilities."""
    rows, target = normal(300, 3), normal(100, 3, seed=1) + 0.5
    weights = list(0.7 * normal(200, 3, classes, seed=2))
    probs = torch.softmax(torch.stack([rows @ w for w in weights]), -1).transpose(0, 1)
    others = torch.softmax(torch.stack([target @ w for w in weights]), -1).transpose(0, 1)
    problem = Problem(as_pool(probs), ClassSamples(200), target=others)
    information = PredictiveInformation()(problem).values
    space = PredictiveCovariance(None)(problem)
    vectors = space.columns_at(torch.arange(300))
    gain = (vectors * (space.target_moment @ vectors)).sum(0) / (1 + vectors.square().sum(0))
    ranks = torch.stack([values.argsort().argsort().double() for values in (information, gain)])
    assert float(torch.corrcoef(ranks)[0, 1]) > 0.95


def test_a_limit_on_memory_counts_matrices(monkeypatch):
    monkeypatch.setattr("coresift.limits.LIBRARY_BYTES", 0)
    monkeypatch.setattr("coresift.selection.check_memory", lambda memory, *_: memory)
    pool = normal(50, 40)
    posterior = FunctionPosterior(lambda x, w: torch.distributions.Normal(x @ w, 1.0), list(normal(64, 40)))
    given = {"posterior": posterior, "strategy": find_strategy("variance-reduction"), "budget": 2}
    with pytest.raises(InputError, match="raise the limit"):
        select(pool, **given, resources=Resources(400_000))
    select(pool, **given, resources=Resources(500_000))
