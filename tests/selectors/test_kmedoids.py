"""K-Medoids by turns against brute force, and against a plain search by swaps."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coresift import limits
from coresift.errors import InputError
from coresift.selectors import KMedoids
from coresift.spaces import FeatureSpace, GramSpace, VectorSpace
from coresift.spaces.vectors import OnDisk
from coresift.testing import check_selector


def normal(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def clumps(rows, size, num, seed=0):
    """(rows, size) points around ``num`` places."""
    places = 3 * normal(rows, num, seed=seed + 1)
    return places[:, torch.arange(size) % num] + normal(rows, size, seed=seed)


def cost(points, index):
    """The sum of distances to the nearest of some columns."""
    return float(torch.cdist(points.mT, points[:, index].mT).min(1).values.sum())


def swaps(distance, start):
    """Swap a medoid for another point, the best pair each time, until no swap shortens the sum of distances.
    Returns the medoids.

    The swaps of PAM, with each pair's change from sums over the points of one medoid: section 3 of Schubert
    and Rousseeuw, Fast and Eager k-Medoids Clustering, 2021.
    """
    distance, medoids = np.asarray(distance, dtype=np.float64), np.asarray(start, dtype=np.int64).copy()
    while True:
        to_medoids = distance[:, medoids]  # (n, k)
        owner = to_medoids.argmin(1)
        first = to_medoids.min(1)
        to_medoids[np.arange(len(owner)), owner] = np.inf
        second = to_medoids.min(1, initial=distance.max() * len(distance))
        nearer = np.minimum(distance - first[:, None], 0)  # (n, candidates)
        owned = np.eye(len(medoids))[owner]  # (n, k)
        change = owned.T @ (np.minimum(distance - second[:, None], 0) - nearer) + nearer.sum(0)
        change += (owned.T @ (second - first))[:, None]  # (k, candidates)
        change[:, medoids] = 0
        leaves, comes = np.unravel_index(change.argmin(), change.shape)
        if change[leaves, comes] >= -1e-9 * first.sum():
            return medoids
        medoids[leaves] = comes


def test_swaps_against_all_subsets():
    points = clumps(2, 12, 3)
    distance = torch.cdist(points.mT, points.mT).numpy()
    for num in (1, 2, 4):
        best = min(cost(points, list(some)) for some in combinations(range(12), num))
        starts = [np.random.default_rng(seed).permutation(12)[:num] for seed in range(5)]
        found = [cost(points, swaps(distance, start)) for start in starts]
        assert min(found) == pytest.approx(best) and max(found) <= 1.2 * best


def test_middles_of_three_clumps():
    selector = KMedoids()
    centres = torch.tensor([[0.0, 20.0, 40.0], [0.0, 20.0, 0.0]], dtype=torch.float64)
    points = torch.cat([centres[:, [k]] + normal(2, 30, seed=k) for k in range(3)], 1)
    batch = selector.select(FeatureSpace(points), 3)
    assert sorted(batch.index // 30) == [0, 1, 2]
    assert batch.weights.sum() == pytest.approx(90)
    assert (np.diff(batch.weights) <= 0).all()
    assert batch.residuals == pytest.approx(cost(points, batch.index))
    rest = selector.select(FeatureSpace(points), 2, pending=[5])
    assert sorted(rest.index // 30) == [1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contract(dtype):
    for budget in (1, 10, 30):
        check_selector(KMedoids(), VectorSpace(normal(5, 46).to(dtype)), budget=budget)
        check_selector(KMedoids(), FeatureSpace(normal(2, 46).to(dtype)), budget=budget)


@settings(max_examples=60, deadline=None)
@given(
    vectors=hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 3), st.integers(2, 14)),
        elements=st.integers(-2, 2).map(float),
    ),
    data=st.data(),
)
def test_any_points_give_exactly_the_budget(vectors, data):
    """Duplicates, ties and one dimension: of identical points one, unless the pool leaves no choice."""
    size = vectors.shape[1]
    some = st.lists(st.integers(0, size - 1), max_size=4, unique=True)
    pending, exclude = data.draw(some), data.draw(some)
    left = np.setdiff1d(np.arange(size), pending + exclude)
    if len(left) == 0:
        return
    budget = data.draw(st.integers(1, len(left)))
    batch = KMedoids().select(
        FeatureSpace(torch.from_numpy(vectors)), budget, pending=pending, exclude=exclude
    )
    assert len(batch) == len(set(batch.index.tolist())) == budget
    assert set(batch.index.tolist()) <= set(left.tolist())
    held = {tuple(vectors[:, n]) for n in pending}
    kinds = {tuple(vectors[:, n]) for n in left} - held
    assert len({tuple(vectors[:, n]) for n in batch.index} - held) == min(budget, len(kinds))
    assert batch.weights.sum() + batch.pending_weights.sum() == pytest.approx(size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("pending", [[], [3, 50, 7]])
def test_each_is_the_middle_of_its_points(dtype, pending):
    """Every sum of distances by brute force; the first hundred points are there three times."""
    points = clumps(3, 700, 12)
    points = torch.cat([points, points[:, :100], points[:, :100]], 1)
    batch = KMedoids().select(FeatureSpace(points.to(dtype)), 25, pending=pending)
    members = [*sorted(pending), *batch.index.tolist()]
    covered = np.setdiff1d(np.arange(points.shape[1]), pending)
    distance = torch.cdist(points.mT, points.mT)[covered]
    owner = distance[:, members].argmin(1)
    for number, medoid in enumerate(members):
        own = distance[owner == number]
        if number >= len(pending):
            assert float(own[:, medoid].sum()) <= (1 + 1e-5) * float(
                own[:, covered[owner == number]].sum(0).min()
            )
        weight = np.concatenate([batch.pending_weights, batch.weights])[number]
        assert weight == pytest.approx(len(own) * points.shape[1] / len(covered))
    assert batch.residuals == pytest.approx(float(distance[:, members].min(1).values.sum()))


@pytest.mark.parametrize("num", [1, 3])
def test_large_clusters(num):
    """Of more points than may become the middle: the best of all is among those nearest to the mean."""
    points = torch.cat([normal(3, 2500, seed=k) + 50 * k for k in range(num)], 1)
    assert points.shape[1] // num > limits.MOST_MIDDLES
    batch = KMedoids().select(FeatureSpace(points.float()), num)
    for n in batch.index.tolist():
        own = points[:, n - n % 2500 :][:, :2500]
        sums = torch.cdist(own.mT, own.mT).sum(0)
        assert float(sums[n % 2500]) <= (1 + 1e-6) * float(sums.min())


def test_the_working_set_does_not_matter(monkeypatch):
    space = FeatureSpace(clumps(4, 600, 9))
    expected = KMedoids().select(space, 40, pending=[2], seed=5)
    for size in (1, 700):
        monkeypatch.setattr(limits, "MEDOID_WORKING_SET", size)
        found = KMedoids().select(space, 40, pending=[2], seed=5)
        assert found.index.tolist() == expected.index.tolist()
        assert found.weights.tolist() == expected.weights.tolist()


def test_units_and_distance_from_the_origin_do_not_matter():
    """In float32, where squares of these numbers are too large, or what is left of them too little."""
    points = clumps(3, 500, 20)
    expected = cost(points, KMedoids().select(FeatureSpace(points), 20).index)
    for moved in (1e25 * points, points + 3000):
        batch = KMedoids().select(FeatureSpace(moved.float()), 20)
        assert cost(points, batch.index) <= 1.05 * expected


def test_points_that_rounding_cannot_tell_apart():
    """Distances are all rounding, in products at least: still no point is taken twice."""
    points = (1000 * (torch.arange(300) % 2) + 1e-3 * normal(4, 300)).float()
    for seed in range(5):
        batch = KMedoids().select(FeatureSpace(points), 40, seed=seed)
        assert len(set(batch.index.tolist())) == 40
        assert set(batch.index % 2) == {0, 1}


def test_all_points():
    points = normal(2, 50)
    batch = KMedoids().select(FeatureSpace(points), 50)
    assert batch.index.tolist() == list(range(50))
    assert batch.weights.tolist() == [1.0] * 50
    assert batch.residuals.tolist() == [0.0]
    assert sorted(KMedoids().select(FeatureSpace(points), 47, pending=[9, 4, 11]).index) == sorted(
        set(range(50)) - {9, 4, 11}
    )


@pytest.mark.parametrize("points", [normal(8, 400), clumps(8, 400, 12), clumps(2, 400, 80)])
@pytest.mark.parametrize("num", [5, 12, 80])
def test_sums_compared_with_those_of_swaps(points, num):
    """At most a twentieth above, on average over starts, and well below that of random points."""
    space, distance = FeatureSpace(points), torch.cdist(points.mT, points.mT).numpy()
    starts = [torch.randperm(400, generator=torch.Generator().manual_seed(seed))[:num] for seed in range(3)]
    drawn = np.mean([cost(points, start) for start in starts])
    swapped = np.mean([cost(points, swaps(distance, start)) for start in starts])
    turns = np.mean([cost(points, KMedoids().select(space, num, seed=seed).index) for seed in range(3)])
    assert turns <= 1.05 * swapped
    assert turns <= 0.97 * drawn


def test_more_turns_never_cost_more():
    points = clumps(6, 3000, 100)
    costs = [
        KMedoids(max_iterations=turns).select(FeatureSpace(points), 150).residuals[0]
        for turns in (0, 1, 2, 4, 100)
    ]
    assert (np.diff(costs) <= 0).all() and costs[-1] < 0.9 * costs[0]


def test_a_large_pool():
    points = clumps(8, 20_000, 500)
    space = FeatureSpace(points.float())
    batch = KMedoids().select(space, 300)
    assert len(set(batch.index.tolist())) == 300
    assert batch.weights.sum() == 20_000
    assert batch.index.tolist() == KMedoids().select(space, 300).index.tolist()
    assert batch.residuals[0] < 0.95 * cost(points, torch.arange(300))


def test_a_space_without_vectors_is_refused():
    with pytest.raises(InputError, match="needs stored vectors, which a GramSpace does not have"):
        KMedoids().select(GramSpace(torch.eye(9)), 3)


def test_excluded_points_count_but_are_not_chosen():
    """One open point near a hundred excluded ones stands for them all."""
    selector = KMedoids()
    points = torch.cat([0.5 * normal(1, 20), 10 + 0.5 * normal(1, 100, seed=1)], 1)
    batch = selector.select(FeatureSpace(points), 1, exclude=range(21, 120))
    assert batch.index.tolist() == [20]
    batch = selector.select(FeatureSpace(points), 2, exclude=range(21, 120))
    assert batch.index[0] == 20 and batch.index[1] < 20 and batch.weights.tolist() == [100, 20]
    assert batch.residuals == pytest.approx(cost(points, batch.index))
    batch = selector.select(FeatureSpace(points), 2, pending=[25], exclude=[*range(26, 120), *range(5)])
    assert batch.pending_weights.sum() + batch.weights.sum() == pytest.approx(120)
    assert not {*batch.index.tolist()} & {25, *range(26, 120), *range(5)}


@given(
    hnp.arrays(np.float64, (2, 14), elements=st.integers(-3, 3)),
    st.sets(st.integers(0, 13), max_size=8),
    st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_excluded_points_with_copies(values, excluded, budget):
    points = torch.from_numpy(values)
    batch = KMedoids().select(FeatureSpace(points), budget, exclude=excluded)
    assert len({*batch.index.tolist()} - excluded) == budget
    assert batch.residuals == pytest.approx(cost(points, batch.index), abs=1e-6)
    assert batch.weights.sum() == pytest.approx(14)


def test_an_excluded_point_costs_next_to_nothing():
    """The best batch found without it stays allowed. Searches that start elsewhere end within 2% of each
    other.
    """
    points = normal(5, 400)
    alone = KMedoids().select(FeatureSpace(points), 10)
    left_out = next(n for n in range(400) if n not in alone.index)
    with_one_less = KMedoids().select(FeatureSpace(points), 10, exclude=[left_out])
    assert cost(points, with_one_less.index) <= 1.02 * cost(points, alone.index)


@pytest.mark.parametrize("num_open", [30, 60, 900])
def test_a_sample_of_excluded_points(num_open):
    """Few vectors are fetched from a file, and each stands for as many as it was drawn from."""
    points, fetched = torch.cat([normal(2, 500), 20 + normal(2, 500, seed=1)], 1), []

    class Counted(OnDisk):
        def at(self, index):
            fetched.append(len(index))
            return super().at(index)

    columns = Counted(2, 1000, torch.float64, 1024)
    columns.write(0, points)
    open_points = np.random.default_rng(0).permutation(1000)[:num_open]
    closed = np.setdiff1d(np.arange(1000), open_points)
    batch = KMedoids(max_points=80).select(VectorSpace(columns), 4, exclude=closed)
    assert max(fetched) <= 80 and not {*batch.index} & {*closed.tolist()}
    near = batch.weights[points[0, batch.index].numpy() < 10].sum()
    assert batch.weights.sum() == pytest.approx(1000) and abs(near - 500) < 150


def test_pending_points_in_a_clump_leave_the_others_to_be_chosen():
    points = torch.tensor([[0, 0.01, 0.02, 0.03, 0.04, 5, 5.1, 5.2, 10, 10.1, 10.2]]).double()
    batch = KMedoids().select(FeatureSpace(points), 2, pending=[0, 1, 2, 3])
    assert sorted(batch.index.tolist()) == [6, 9]
