"""Properties that every selector keeps, drawn at random, and what each is known for."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from selectors_to_test import OF_SCORES, OF_SPACES, STEADY

from coresift.pool import ArrayPool, as_pool
from coresift.posteriors import BayesianLinearRegression, BayesianProbitRegression, ClassSamples
from coresift.posteriors.softmax import SoftmaxPosterior
from coresift.scores import Score
from coresift.search.cpu_distances import VectorDistances
from coresift.selectors import (
    LCMD,
    Exhaustive,
    FrankWolfe,
    GreedyLogDet,
    GumbelTopB,
    KCenter,
    KMeansPlusPlus,
    KMedoids,
    TopB,
    TypiClust,
    UniformRandom,
)
from coresift.selectors.information import factor
from coresift.spaces import (
    FeatureSpace,
    GramSpace,
    ProbitFisherSpace,
    VectorSpace,
    exact_fisher_space,
    exact_likelihood_space,
    feature_space,
    sampled_likelihood_space,
)
from coresift.spaces.base import selectable
from coresift.testing import check_selector, check_space


def random_vectors(rows, columns, seed=0):
    return torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def name(value):
    return repr(value)


@pytest.mark.parametrize("selector", OF_SPACES, ids=name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contract_on_spaces(selector, dtype):
    check_selector(selector, VectorSpace(random_vectors(5, 40).to(dtype)))
    check_selector(selector, FeatureSpace(random_vectors(3, 40).to(dtype), random_vectors(3, 6).to(dtype)))
    if not isinstance(selector, KMedoids | TypiClust):
        gram = random_vectors(7, 40)
        check_selector(selector, GramSpace(gram.mT @ gram))


@pytest.mark.parametrize("selector", [*STEADY, KMeansPlusPlus()], ids=name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contract_on_closed_forms(selector, dtype):
    """Most of the pool is chosen, so that rounding has every chance to bring a point in twice."""
    pool = random_vectors(60, 8).to(dtype)
    source = as_pool(torch.cat([pool, pool[:10]]))
    linear = BayesianLinearRegression(0.3).fit(pool[:5], pool[:5, 0])
    unknown = BayesianLinearRegression().fit(pool[:5], pool[:5, 0])
    probit = BayesianProbitRegression().fit(pool[:5], pool[:5, 0] > 0)
    for space in (
        exact_likelihood_space(linear, source),
        exact_likelihood_space(unknown, source, centred=True),
        exact_fisher_space(linear, source, pool[:5]),
        ProbitFisherSpace(probit, source),
    ):
        check_selector(selector, space, budget=40)
        assert len(set((selector.select(space, 55).index % 60).tolist())) == 55


@pytest.mark.parametrize("selector", OF_SCORES, ids=name)
def test_contract_on_scores(selector):
    check_selector(selector, Score(random_vectors(1, 40)[0].abs()))


def test_contract_of_the_referee():
    check_selector(Exhaustive(), VectorSpace(random_vectors(4, 10)))


small_vectors = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 4), st.integers(2, 14)),
    elements=st.integers(-3, 3).map(float),
)


@pytest.mark.parametrize("selector", [*STEADY, KMeansPlusPlus()], ids=name)
@settings(max_examples=40, deadline=None)
@given(vectors=small_vectors, data=st.data())
def test_any_vectors_give_exactly_the_budget(selector, vectors, data):
    """Zero vectors, duplicates, opposites, ties, one dimension: still exactly b points."""
    space = VectorSpace(torch.from_numpy(vectors))
    usable = np.flatnonzero(space.norms.numpy() > 0)
    if len(usable) < 2:
        return
    pending = data.draw(st.lists(st.sampled_from(range(vectors.shape[1])), max_size=3, unique=True))
    exclude = data.draw(st.lists(st.sampled_from(range(vectors.shape[1])), max_size=3, unique=True))
    open_points = np.setdiff1d(usable, pending + exclude)
    if len(open_points) == 0:
        return
    zeros = np.setdiff1d(range(len(space)), [*usable, *pending, *exclude])
    budget = data.draw(st.integers(1, len(open_points) + len(zeros)))
    told = budget > len(open_points) or 2 * len(usable) <= len(space)
    with pytest.warns(UserWarning, match="zero norm") if told else _nothing():
        batch = selector.select(space, budget, pending=pending, exclude=exclude, seed=3)
    assert len(batch) == len(set(batch.index.tolist())) == budget
    assert set(batch.index[: len(open_points)].tolist()) <= set(open_points.tolist())
    assert set(batch.index[len(open_points) :].tolist()) <= set(zeros.tolist())
    if batch.weights is not None:
        assert (batch.weights >= 0).all()
    assert 0 <= batch.information <= 1 + 1e-9
    # Of identical points at most one, unless the pool leaves no choice.
    held = {tuple(vectors[:, n]) for n in pending if n in usable}
    kinds = {tuple(vectors[:, n]) for n in open_points} - held
    chosen = [tuple(vectors[:, n]) for n in batch.index[: len(open_points)]]
    new = {kind for kind in chosen if kind not in held}
    assert len(new) == min(budget, len(kinds))


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


@pytest.mark.parametrize("selector", STEADY, ids=name)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(3, 12), size=st.integers(5, 60), data=st.data())
def test_the_order_of_the_pool_does_not_matter(selector, seed, rows, size, data):
    """From three dimensions on: on a circle all points of one side lie in one direction, a tie for GIGA."""
    vectors = random_vectors(rows, size, seed)
    budget = data.draw(st.integers(1, size // 2))
    pending = data.draw(st.lists(st.integers(0, size - 1), max_size=2, unique=True))
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    position = order.argsort()
    batch = selector.select(VectorSpace(vectors), budget, pending=pending)
    shuffled = selector.select(VectorSpace(vectors[:, order]), budget, pending=position[pending].tolist())
    assert order[shuffled.index].tolist() == batch.index.tolist()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), chunk=st.sampled_from([1, 7, 1000]))
def test_the_chunk_size_does_not_matter(seed, chunk):
    """Bit for bit: spaces compute on blocks of their own size."""
    probs = torch.softmax(2 * random_vectors(300 * 12, 3, seed).reshape(300, 12, 3), -1).float()
    batches = []
    for size in (chunk, 300):
        generator = torch.Generator().manual_seed(seed)
        space = sampled_likelihood_space(ClassSamples(12), ArrayPool(probs, size), 8, generator=generator)
        batches.append([s.select(space, 9, seed=seed).index.tolist() for s in [*STEADY, KMeansPlusPlus()]])
    assert batches[0] == batches[1]


@pytest.mark.parametrize("selector", [KCenter(), LCMD(), GreedyLogDet()], ids=name)
def test_pending_points_continue_a_greedy_batch(selector):
    """Choosing three and then three more equals choosing six."""
    space = VectorSpace(random_vectors(6, 50))
    # The first centre, the origin, gives way to pending points: start from a labelled point instead.
    space = VectorSpace(space.vectors, random_vectors(6, 1, seed=5))
    whole = selector.select(space, 6).index.tolist()
    more = selector.select(space, 3, pending=whole[:3]).index.tolist()
    assert whole[3:] == more


def test_k_center_is_a_two_approximation():
    """Farthest first covers with at most twice the best radius (here found by trying every set)."""
    from itertools import combinations

    points = random_vectors(2, 12, seed=2)
    distance = torch.cdist(points.mT, points.mT)
    batch = KCenter().select(FeatureSpace(points), 3, pending=[0])
    best = min(distance[[0, *others]].min(0).values.max() for others in combinations(range(12), 3))
    assert distance[[0, *batch.index.tolist()]].min(0).values.max() <= 2 * best + 1e-12
    assert batch.residuals[-1] == pytest.approx(
        float(distance[[0, *batch.index.tolist()]].min(0).values.max())
    )


def test_greedy_log_det_maximises_each_step():
    vectors = random_vectors(5, 30)
    gram = vectors.mT @ vectors
    chosen = [4]
    batch = GreedyLogDet().select(VectorSpace(vectors), 5, pending=chosen)
    for n in batch.index.tolist():
        gains = [
            float(torch.logdet(torch.eye(len(chosen) + 1) + gram[[*chosen, m]][:, [*chosen, m]]))
            if m not in chosen
            else -np.inf
            for m in range(30)
        ]
        assert n == int(np.argmax(gains))
        chosen.append(n)


def test_k_means_plus_plus_draws_by_squared_distance():
    """Frequencies of the second draw against the probabilities, within five standard errors."""
    space = VectorSpace(torch.tensor([[1.0, 2.0, 4.0, 7.0]], dtype=torch.float64))
    counts = np.zeros(4)
    for seed in range(500):
        counts[KMeansPlusPlus().select(space, 1, pending=[0], seed=seed).index[0]] += 1
    expected = np.array([0.0, 1.0, 9.0, 36.0]) / 46
    assert (np.abs(counts / 500 - expected) <= 5 * np.sqrt(expected * (1 - expected) / 500) + 1e-12).all()


def test_power_draws_in_proportion_to_the_score():
    score = Score(torch.tensor([1.0, 2.0, 5.0]).double())
    counts = np.zeros(3)
    for seed in range(500):
        counts[GumbelTopB("power").select(score, 1, seed=seed).index[0]] += 1
    expected = np.array([1, 2, 5]) / 8
    assert (np.abs(counts / 500 - expected) <= 5 * np.sqrt(expected * (1 - expected) / 500)).all()
    sharp = GumbelTopB("power", beta=1e6).select(score, 2).index.tolist()
    assert sharp == TopB().select(score, 2).index.tolist() == [2, 1]


def test_lcmd_by_hand():
    """Labelled points own clusters; the heavier one gives the first point, its farthest."""
    space = VectorSpace(torch.tensor([[1.0, 2.0, 3.0, 10.5, 11.0]]), torch.tensor([[0.0, 10.0]]))
    batch = LCMD().select(space, 2)
    # Cluster 0 has 1 + 4 + 9, cluster 10 has 0.25 + 1; with 3 a centre, 0's is left with 1 and 3's with 1,
    # and 10's 1.25 is the largest.
    assert batch.index.tolist() == [2, 4]


def test_duplicates_come_last_in_rankings():
    rows = torch.tensor([[1.0], [1.0], [2.0], [-0.0], [0.0]])
    score = Score(torch.tensor([5.0, 5.0, 1.0, 3.0, 4.0]), as_pool(rows))
    assert TopB().select(score, 3).index.tolist() == [0, 4, 2]
    assert TopB().select(score, 5).index.tolist() == [0, 4, 2, 1, 3]
    assert TopB().select(score, 2, pending=[1]).index.tolist() == [4, 2]


def test_a_random_batch_is_a_uniform_draw():
    """Duplicates too: 30 of 40 points are the same, and so are about three quarters of what is drawn."""
    score = Score(torch.zeros(40), as_pool(torch.arange(40.0)[:, None].clamp(min=29)))
    drawn = np.concatenate([UniformRandom().select(score, 4, seed=seed).index for seed in range(500)])
    assert len(drawn) == 2000 and abs((drawn < 30).mean() - 0.75) < 0.03
    assert (np.abs(np.bincount(drawn, minlength=40) - 50) < 5 * np.sqrt(50)).all()
    assert 7 not in UniformRandom().select(score, 30, pending=[7], exclude=[1, 2]).index


def test_many_duplicates_are_cheap():
    """A pool of few distinct points: each is set aside with all its copies at once."""
    distinct = random_vectors(6, 20)
    vectors = distinct.repeat(1, 500)
    batch = FrankWolfe().select(VectorSpace(vectors.float()), 20)
    assert len(set((batch.index % 20).tolist())) == 20


@pytest.mark.parametrize("selector", [KCenter(), LCMD(), KMeansPlusPlus()], ids=repr)
def test_duplicates_of_centres_are_not_searched_for(selector, monkeypatch):
    """A model whose features have died maps all points to a few: the rest of the batch costs no scans."""
    scans = []
    farthest, draw = VectorDistances.farthest, VectorDistances.draw
    monkeypatch.setattr(VectorDistances, "farthest", lambda *given: scans.append(1) or farthest(*given))
    monkeypatch.setattr(VectorDistances, "draw", lambda *given: scans.append(1) or draw(*given))
    vectors = random_vectors(6, 4).repeat(1, 100)
    far = 100 * random_vectors(6, 50)  # labelled points, each the centre of a cluster with no point
    batch = selector.select(VectorSpace(vectors, far), 200)
    assert len(set(batch.index.tolist())) == 200
    assert {n % 4 for n in batch.index[:4].tolist()} == {0, 1, 2, 3}
    rest = [n for n in range(400) if n not in batch.index[:4]]
    assert batch.index[4:].tolist() == rest[:196]
    assert len(batch.residuals) == 200 and (batch.residuals[3:] == batch.residuals[3]).all()
    assert len(scans) < 20


def test_zero_vectors_are_counted_and_never_chosen():
    vectors = torch.tensor([[1.0, 0.0, 2.0, 0.0]])
    with pytest.warns(UserWarning, match=r"2 of 4 vectors have zero norm \(first: index 1\)"):
        batch = FrankWolfe().select(VectorSpace(vectors), 2)
    assert sorted(batch.index.tolist()) == [0, 2]


def test_float32_and_float64_choose_alike():
    vectors = random_vectors(12, 500)
    for selector in STEADY:
        double, single = (
            selector.select(VectorSpace(vectors.to(d)), 20) for d in (torch.float64, torch.float32)
        )
        assert double.index.tolist() == single.index.tolist()


def test_near_points_are_told_apart_in_float32():
    """Two clusters far apart: k-center covers both as well as in float64."""
    points = random_vectors(2, 400)
    points[:, 200:] += 3000
    radius = [
        KCenter().select(FeatureSpace(points.to(d)), 40).residuals[-1] for d in (torch.float64, torch.float32)
    ]
    assert radius[1] == pytest.approx(radius[0], rel=0.1)


@pytest.mark.parametrize("selector", [LCMD(), KCenter(), KMeansPlusPlus()])
def test_vectors_whose_squares_vanish_in_float32(selector):
    """They come last, and once."""
    generator = torch.Generator().manual_seed(0)
    lengths = 10.0 ** (-30 * torch.rand(300, generator=generator))
    vectors = torch.randn(6, 300, generator=generator) * lengths
    batch = selector.select(VectorSpace(vectors), 250, seed=0).index
    assert len(set(batch.tolist())) == 250
    assert lengths[batch[:100]].min() > 1e-16


def test_features_keep_the_precision_of_the_rows():
    """So that those of a network, whose last layer counts in float64, are fit for the kernels on a GPU."""
    head = SoftmaxPosterior(*(torch.zeros(*shape).double() for shape in ((2, 4), (2, 4), (0, 2, 4))))
    rows = random_vectors(30, 4)
    exact, space = (feature_space(head, as_pool(x), x[:3]) for x in (rows, rows.float()))
    assert exact.vectors.dtype == torch.float64 and space.vectors.dtype == torch.float32
    torch.testing.assert_close(space.vectors.double(), exact.vectors, atol=1e-5, rtol=0)


def test_feature_space_is_centred_and_keeps_the_contract():
    rows = random_vectors(30, 4) + 100
    space = feature_space(None, as_pool(rows), rows[:3])
    check_space(space)
    assert float(space.total().abs().max()) < 1e-9
    assert selectable(space).all()


def test_ranks_are_those_of_open_points():
    """With weights 1 / rank the best of 50 open points comes first in 1 / H_50 of all draws, 22%."""
    score, best = Score(torch.linspace(1, 0, 100)), 50
    for gone in ({"exclude": range(50)}, {"pending": range(50)}):
        draws = [GumbelTopB("softrank").select(score, 1, **gone, seed=seed).index[0] for seed in range(600)]
        assert abs(np.mean(np.array(draws) == best) - 1 / np.sum(1 / np.arange(1, 51))) < 0.07


def test_equal_scores_are_drawn_alike():
    score = Score(torch.zeros(100))
    draws = [GumbelTopB("softrank").select(score, 1, seed=seed).index[0] for seed in range(600)]
    assert abs(np.mean(draws) - 49.5) < 6  # five standard errors


def test_short_vectors_are_not_lost_beside_long_ones():
    """A factor of inner products has them all, over seven orders of magnitude of length."""
    vectors = random_vectors(6, 30) * torch.logspace(-3, 4, 30, dtype=torch.float64)
    index = torch.tensor([0, 3, 6, 9, 12, 28])
    matrix, _ = factor(GramSpace(vectors.mT @ vectors), index)
    lengths = vectors[:, index].norm(dim=0)
    gram = matrix.mT @ matrix / lengths / lengths[:, None]
    units = vectors[:, index] / lengths
    torch.testing.assert_close(gram, units.mT @ units, rtol=0, atol=1e-12)
