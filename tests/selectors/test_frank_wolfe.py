"""Frank-Wolfe and GIGA: against the paper's algorithm written plainly, and against theory."""

import math

import numpy as np
import pytest
import torch

import coresift
from coresift.pool import as_pool
from coresift.posteriors import BayesianLinearRegression
from coresift.selectors import GIGA, Exhaustive, FrankWolfe, best_weights, information
from coresift.spaces import GramSpace, VectorSpace, exact_fisher_space


def random_vectors(rows, columns, seed=0):
    return torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def algorithm_1(vectors, budget):
    """The paper's Algorithm 1, line by line, with the N x N kernel matrix: weights after every step."""
    kernel = (vectors.mT @ vectors).numpy()
    sigmas = np.sqrt(np.diag(kernel))
    sigma = sigmas.sum()
    ones, weights, trace = np.ones(len(sigmas)), np.zeros(len(sigmas)), []
    for _ in range(budget):
        chosen = int(np.argmax((ones - weights) @ kernel / sigmas))
        vertex = np.zeros(len(sigmas))
        vertex[chosen] = sigma / sigmas[chosen]
        step = vertex - weights
        gamma = (step @ kernel @ (ones - weights)) / (step @ kernel @ step)
        weights = (1 - gamma) * weights + gamma * vertex
        trace.append((chosen, weights.copy(), math.sqrt((ones - weights) @ kernel @ (ones - weights))))
    return trace


@pytest.mark.parametrize("seed", range(5))
def test_algorithm_1_step_by_step(seed):
    vectors = random_vectors(6, 40, seed)
    trace = algorithm_1(vectors, 15)
    for budget in range(1, 16):
        batch = FrankWolfe(start="zero", fill=False).select(VectorSpace(vectors), budget)
        order = list(dict.fromkeys(chosen for chosen, _, _ in trace[:budget]))
        assert batch.index.tolist() == order
        np.testing.assert_allclose(batch.weights, trace[budget - 1][1][order], rtol=1e-8)
        np.testing.assert_allclose(
            batch.residuals, [residual for _, _, residual in trace[:budget]], rtol=1e-7
        )


@pytest.mark.parametrize("selector", [FrankWolfe(), FrankWolfe(start="zero", fill=False), GIGA()])
def test_stored_gram_and_closed_form_spaces_agree(selector):
    """The linear Fisher space, written out as vectors, as a Gram matrix, and in closed form."""
    x, pool = random_vectors(20, 3), random_vectors(50, 3, seed=1)
    posterior = BayesianLinearRegression(noise_variance=0.5).fit(x, x[:, 0])
    closed = exact_fisher_space(posterior, as_pool(pool))
    right = pool @ torch.linalg.cholesky(posterior.covariance)
    vectors = torch.einsum("np,nq->pqn", pool, right).flatten(0, 1) / 0.5
    stored = VectorSpace(vectors)
    whole = GramSpace(vectors.mT @ vectors)
    batches = [selector.select(space, 12) for space in (closed, stored, whole)]
    for batch in batches[1:]:
        assert batch.index.tolist() == batches[0].index.tolist()
        np.testing.assert_allclose(batch.weights, batches[0].weights, rtol=1e-5)
        np.testing.assert_allclose(batch.residuals, batches[0].residuals, rtol=1e-5)
        assert batch.information == pytest.approx(batches[0].information, abs=1e-8)


def test_start_at_a_vertex_keeps_the_polytope_and_zero_does_not():
    space = VectorSpace(random_vectors(8, 60))
    sigma = float(space.norms.sum())
    for budget in (1, 3, 10):
        vertex = FrankWolfe(start="vertex", fill=False).select(space, budget)
        assert vertex.weights @ space.norms[vertex.index].numpy() == pytest.approx(sigma)
        zero = FrankWolfe(start="zero", fill=False).select(space, budget)
        assert zero.weights @ space.norms[zero.index].numpy() < sigma * (1 - 1e-6)


@pytest.mark.parametrize("start", ["zero", "vertex"])
def test_a_line_search_never_raises_the_residual(start):
    space = VectorSpace(random_vectors(10, 80))
    residuals = FrankWolfe(start=start, fill=False).select(space, 40).residuals
    assert (np.diff(residuals) <= 1e-9).all()
    assert residuals[0] <= float(space.total().norm()) or start == "vertex"


@pytest.mark.parametrize("pending", [[], [3, 4]])
@pytest.mark.parametrize(
    "selector", [FrankWolfe(), GIGA(), FrankWolfe(fill=False), FrankWolfe(start="vertex")]
)
@pytest.mark.parametrize("rows", [4, 30])
def test_weights_say_what_they_claim(selector, pending, rows):
    """With those of pending points they are as close to L as ``information`` or the residual tells."""
    vectors = random_vectors(rows, 100)
    batch = selector.select(VectorSpace(vectors), 40, pending=pending)
    approximation = vectors[:, batch.index] @ torch.from_numpy(batch.weights)
    approximation += vectors[:, pending] @ torch.from_numpy(batch.pending_weights)
    gap, whole = float((vectors.sum(1) - approximation).norm()), float(vectors.sum(1).norm())
    if selector.fill:
        assert 1 - (gap / whole) ** 2 == pytest.approx(batch.information, abs=1e-9)
        assert gap <= batch.residuals[-1] * (1 + 1e-9) + 1e-5 * whole if len(batch.residuals) else True
    elif len(batch.residuals):
        assert gap == pytest.approx(batch.residuals[-1], rel=1e-6, abs=1e-5 * whole)
    assert (np.diff(batch.residuals) <= 1e-9 * whole).all()


def test_norms_of_very_different_size():
    for seed in range(20):
        sizes = 10 ** (8 * random_vectors(1, 40, seed).clamp(-1, 1))
        for selector in (FrankWolfe(), FrankWolfe(fill=False), GIGA(), GIGA(fill=False)):
            batch = selector.select(VectorSpace(random_vectors(5, 40, seed) * sizes), 20)
            assert (batch.weights >= 0).all()
            assert np.isfinite(batch.weights).all()


def test_a_large_batch_of_points_that_hardly_differ():
    """Frank-Wolfe, and the weights that tell its information, on a thousand nearly dependent vectors."""
    pool = random_vectors(4000, 30)
    posterior = BayesianLinearRegression(noise_variance=1.0).fit(pool[:50], pool[:50, 0])
    for strategy in ("acs-fw", "acs-lcmd"):
        batch = coresift.select(pool, posterior=posterior, budget=1000, strategy=strategy)
        assert len(set(batch.index.tolist())) == 1000
        assert 0.9 < batch.information <= 1


def test_residuals_and_weights_belong_together():
    vectors = random_vectors(10, 80)
    for selector in (FrankWolfe(fill=False), FrankWolfe(start="zero", fill=False), GIGA(fill=False)):
        batch = selector.select(VectorSpace(vectors), 12)
        approximation = vectors[:, batch.index] @ torch.from_numpy(batch.weights)
        gap = float((vectors.sum(1) - approximation).norm())
        assert gap == pytest.approx(batch.residuals[-1], rel=1e-7)


def test_plain_steps_find_fewer_points_than_asked_and_fill_makes_up_for_it():
    """In 4 dimensions a few points reproduce L; a full batch goes on in layers."""
    space = VectorSpace(random_vectors(4, 300))
    plain = FrankWolfe(fill=False).select(space, 100)
    full = FrankWolfe().select(space, 100)
    assert len(plain) < 60
    assert len(full) == len(set(full.index.tolist())) == 100
    # The first points are the published ones.
    assert full.index[: len(plain)].tolist() == plain.index.tolist()


def test_layers_are_spread_like_summaries():
    """What fills up a batch covers the pool better than the points most aligned with L would."""
    vectors = random_vectors(4, 400).abs() + torch.tensor([[3.0], [1.0], [0.5], [0.2]])
    space = VectorSpace(vectors)
    batch = FrankWolfe().select(space, 60)
    tail = torch.from_numpy(batch.index[30:])
    top = (space.inner_at(space.total(), torch.arange(400)) / space.norms).argsort(descending=True)[:30]
    layers, aligned = (
        torch.cdist(vectors.mT, vectors[:, set_].mT).min(1).values.mean() for set_ in (tail, top)
    )
    assert layers < aligned


def test_theory_frank_wolfe_converges_at_least_as_one_over_step():
    """||L - L(w)||^2 <= 4 sigma^2 / (t + 2) from a vertex, the standard bound for diameter 2 sigma."""
    space = VectorSpace(random_vectors(30, 100))
    sigma = float(space.norms.sum())
    residuals = FrankWolfe(fill=False).select(space, 60).residuals
    steps = np.arange(1, len(residuals) + 1)
    assert (residuals**2 <= 2 * (2 * sigma) ** 2 / (steps + 1)).all()


def test_giga_comes_closer_than_frank_wolfe():
    """Median over problems of the residual after the same number of steps."""
    ratios = []
    for seed in range(10):
        space = VectorSpace(random_vectors(30, 200, seed).abs())
        giga, wolfe = (
            selector.select(space, 15).residuals[-1]
            for selector in (GIGA(fill=False), FrankWolfe(fill=False))
        )
        ratios.append(giga / wolfe)
    assert np.median(ratios) < 1


def test_no_selector_beats_the_referee():
    for seed in range(3):
        space = VectorSpace(random_vectors(4, 9, seed))
        best = Exhaustive().select(space, 3)
        for selector in (FrankWolfe(), GIGA()):
            assert selector.select(space, 3).information <= best.information + 1e-9
        _, rest = best_weights(space, torch.from_numpy(best.index))
        assert best.residuals[0] == pytest.approx(math.sqrt(rest))


def test_all_points_carry_all_information():
    space = VectorSpace(random_vectors(5, 12))
    assert FrankWolfe().select(space, 12).information == pytest.approx(1)
    assert information(space, torch.tensor([], dtype=torch.long)) == 0


def test_pending_points_are_not_paid_for_twice():
    """With one cluster pending, the batch goes to the other."""
    clusters = torch.cat(
        [
            torch.tensor([[5.0], [0.0]]) + 0.1 * random_vectors(2, 50),
            torch.tensor([[0.0], [4.0]]) + 0.1 * random_vectors(2, 50, seed=1),
        ],
        1,
    )
    for selector in (FrankWolfe(), FrankWolfe(start="zero"), GIGA()):
        assert selector.select(VectorSpace(clusters), 1).index[0] < 50
        batch = selector.select(VectorSpace(clusters), 1, pending=[3])
        assert batch.index[0] >= 50


def test_excluded_points_still_count_for_the_pool():
    """An excluded point cannot be chosen, but a neighbour that stands for it can."""
    vectors = torch.tensor([[9.0, 1.0, 0.0], [0.0, 0.1, 1.5]], dtype=torch.float64)
    assert FrankWolfe().select(VectorSpace(vectors), 1, exclude=[0]).index.tolist() == [1]
