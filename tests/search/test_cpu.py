"""The engine of plain torch finds what brute force in float64 finds, wherever the vectors are stored."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from selectors_to_test import SEARCHING

from coresift import limits
from coresift.search import centre_distances, cosine_search
from coresift.search.cpu import VectorSearch
from coresift.search.cpu_distances import PlainDistances, VectorDistances
from coresift.selectors import LCMD, FrankWolfe, KCenter, KMeansPlusPlus
from coresift.spaces import GramSpace, VectorSpace
from coresift.spaces.base import SAME, labelled_elements, selectable
from coresift.spaces.vectors import OnDisk

NONE = np.empty(0, dtype=np.int64)
SELECTORS = SEARCHING


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def on_disk(values, block=1024):
    columns = OnDisk(*values.shape, values.dtype, block)
    columns.write(0, values)
    return columns


def winner(values, direction, allowed):
    """By brute force in float64."""
    fine = values.double()
    cosines = (direction @ fine) / fine.square().sum(0).sqrt()
    cosines[~allowed] = -torch.inf
    return int((cosines == cosines.max()).int().argmax()), cosines


def pool_with_ties(kind, dimensions, size, seed):
    values = normal(dimensions, size, seed=seed)
    if kind == "copies":
        values = values[:, torch.randint(5, (size,), generator=torch.Generator().manual_seed(seed))]
    if kind == "near":  # closer to each other than the rounding of a scan
        values = values[:, :1] + 1e-6 * values
    if kind == "long and short":
        values = values * torch.logspace(-18, 18, size)
    return values


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["plain", "copies", "near", "long and short"]),
    st.sampled_from([2, 3, 10, 40]),
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.01, 0.3, 3.0]),
    st.booleans(),
)
def test_winners_are_those_of_scanning_every_time(kind, dimensions, seed, turn, lies_on_disk):
    values = pool_with_ties(kind, dimensions, 3000, seed)
    space = VectorSpace(on_disk(values) if lies_on_disk else values)
    allowed = selectable(space)
    allowed[::7] = False
    search = cosine_search(space, allowed)
    direction = normal(dimensions, seed=seed + 1, dtype=torch.float64)
    for step in range(60):
        found = int(search.argmax(direction * 10.0 ** (step % 9)))
        expected, cosines = winner(values, direction / direction.norm(), allowed)
        assert allowed[found]
        # Where the rounding of float64 itself decides, either will do.
        assert found == expected or cosines[expected] - cosines[found] <= 2e-13
        if step % 3:
            allowed[found] = False
            search.close(torch.tensor([found]))
        direction = direction / direction.norm() + turn * normal(dimensions, seed=step, dtype=torch.float64)


def test_a_point_that_was_taken_out_hides_nobody():
    """The best was taken out, the second best lies in its block, and a worse one in a block before."""
    values = normal(4, 300)
    direction = normal(4, seed=1, dtype=torch.float64)
    direction = direction / direction.norm()
    cosines = winner(values, direction, torch.ones(300, dtype=torch.bool))[1]
    order = cosines.argsort(descending=True)
    values = values[:, torch.cat([order[2:102], order[:2], order[102:]])]  # the best is at 100
    space = VectorSpace(values)
    space.columns.block = space.norm_table.block = 100
    search = cosine_search(space, selectable(space))
    assert int(search.argmax(direction)) == 100
    search.close(torch.tensor(100))
    assert int(search.argmax(direction)) == 101
    search.reopen(torch.tensor([100]))
    assert int(search.argmax(direction)) == 100


def argmax(space, direction):
    return int(cosine_search(space, selectable(space)).argmax(direction))


def test_all_cosines_below_zero():
    values, direction = -normal(4, 500).abs(), torch.ones(4, dtype=torch.float64)
    allowed = torch.arange(500) % 3 > 0
    found = cosine_search(VectorSpace(values), allowed).argmax(direction)
    assert int(found) == winner(values, direction, allowed)[0]


def test_no_open_points():
    space = VectorSpace(normal(4, 50))
    search = cosine_search(space, selectable(space))
    search.close(torch.arange(50))
    search.close(torch.tensor(-1))
    assert int(search.argmax(torch.ones(4, dtype=torch.float64))) == -1


def test_more_near_ties_than_are_looked_at_together():
    values = torch.tensor([[0.5], [0.75**0.5]]).repeat(1, 70_000)
    values[:, 66_000:] = torch.tensor([[0.9], [0.19**0.5]])
    assert argmax(VectorSpace(values), torch.tensor([1.0, 0.0]).double()) == 66_000
    values = 1 + 3e-3 * normal(128, 20_000)  # all nearly parallel
    space, direction = VectorSpace(values), torch.ones(128, dtype=torch.float64)
    assert argmax(space, direction) == winner(values, direction, selectable(space))[0]


@pytest.mark.parametrize("dimensions", [3, 300])
def test_copies_give_the_first(dimensions):
    for num in (2, 44, 45, 400):
        space = VectorSpace(normal(dimensions, 1, seed=num).repeat(1, num))
        assert argmax(space, normal(dimensions, seed=num).double()) == 0


def test_vectors_of_length_zero_never_win():
    space = VectorSpace(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    found = cosine_search(space, torch.ones(2, dtype=torch.bool)).argmax(torch.tensor([-1.0, 0.0]).double())
    assert int(found) == 1


def test_a_pool_of_copies_gives_the_first():
    assert argmax(VectorSpace(normal(4, 1).repeat(1, 200_000)), torch.ones(4, dtype=torch.float64)) == 0


@pytest.mark.parametrize("lies_on_disk", [False, True])
@pytest.mark.parametrize("dimensions", [3, 30])
def test_cosines_beside_an_element(lies_on_disk, dimensions):
    """GIGA's question, against brute force and against the engine for any space."""
    values = normal(dimensions, 4000) + 0.5
    space = VectorSpace(on_disk(values) if lies_on_disk else values)
    plain = cosine_search(GramSpace(values.double().mT @ values.double()), torch.arange(4000) % 5 > 0)
    search = cosine_search(space, torch.arange(4000) % 5 > 0)
    for step in range(10):
        weights = torch.zeros(4000, dtype=torch.float64)
        weights[step * 7 : step * 7 + 3] = 1.0
        unit = values.double() @ weights
        weights, unit = weights / unit.norm(), unit / unit.norm()
        towards = space.total() / space.total().norm() - unit
        fine = values.double()
        scores = towards @ fine / (fine.square().sum(0) - (unit @ fine) ** 2).sqrt()
        scores[::5] = -torch.inf
        found = int(search.argmax(towards, orthogonal_to=unit))
        assert scores[found] >= scores.max() - 1e-9
        element = torch.stack([weights, unit @ fine])
        residual = torch.stack([weights, towards @ fine])
        assert int(plain.argmax(residual, orthogonal_to=element)) == found


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("dimensions", [5, 40])
def test_on_disk_as_in_memory(selector, dimensions):
    values, labelled = normal(dimensions, 5000) + 0.2, normal(dimensions, 70, seed=1)
    options = {"pending": [3, 77], "exclude": range(100, 300), "seed": 1}
    expected = selector.select(VectorSpace(values, labelled), 60, **options)
    space = VectorSpace(on_disk(values), labelled)
    found = selector.select(space, 60, **options)
    assert found.index.tolist() == expected.index.tolist()
    # Close to the target a residual is a small difference of large numbers.
    assert np.allclose(found.residuals, expected.residuals, rtol=1e-3)


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("kind", ["plain", "copies"])
def test_steps_looked_ahead_as_one_by_one(selector, kind, monkeypatch):
    """As on a GPU, where the host sees several steps at once."""
    values = normal(5, 2000) + 0.2 if kind == "plain" else (normal(4, 40) + 0.2).repeat(1, 20)
    options = {"pending": [3, 77], "exclude": range(100, 300), "seed": 1}
    expected = selector.select(VectorSpace(values), 60, **options)
    monkeypatch.setattr(VectorSearch, "run_length", 7)
    if not isinstance(selector, KMeansPlusPlus):  # which draws with the host's random numbers
        monkeypatch.setattr(VectorDistances, "run_length", 7)
    batch = selector.select(VectorSpace(values), 60, **options)
    assert batch.index.tolist() == expected.index.tolist()
    if isinstance(selector, FrankWolfe):
        np.testing.assert_allclose(batch.residuals, expected.residuals, atol=1e-5 * expected.residuals[0])


class _Plain(GramSpace):
    """The same points by their inner products, with labelled points."""

    def __init__(self, values, labelled):
        super().__init__(values.double().mT @ values.double())
        self._cross, self._squares = labelled.double().mT @ values.double(), labelled.double().square().sum(0)

    def anchors(self):
        yield labelled_elements(self._cross), self._squares


@pytest.mark.parametrize("dimensions", [4, 50])
@pytest.mark.parametrize("draws", [False, True])
def test_distances_as_from_inner_products(dimensions, draws):
    kinds = normal(dimensions, 20)
    values = kinds[:, torch.arange(2000) % 20] + 0.1 * normal(dimensions, 2000, seed=1)
    labelled, allowed = normal(dimensions, 100, seed=2), torch.arange(2000) % 9 > 0
    stored, plain = VectorSpace(values, labelled), _Plain(values, labelled)
    lazy = centre_distances(stored, allowed, np.array([5]), 7)
    every = centre_distances(plain, allowed, np.array([5]), 7)
    assert isinstance(lazy, VectorDistances) and isinstance(every, PlainDistances)
    for n in (7, 1003, 555, 12, 13, 14, 1999):
        for distances in (lazy, every):
            distances.add(torch.tensor(n))
        assert int(lazy.largest_cluster()) == int(every.largest_cluster())
        assert int(lazy.farthest()) == int(every.farthest())
        assert int(lazy.farthest(lazy.largest_cluster())) == int(every.farthest(every.largest_cluster()))
        assert lazy.radius() == pytest.approx(every.radius())
        assert lazy.spread() == pytest.approx(every.spread(), rel=1e-4)
        if draws:  # which computes all distances in float64
            assert [int(lazy.draw(k / 8)) for k in range(8)] == [int(every.draw(k / 8)) for k in range(8)]
    assert torch.allclose(lazy.sums, every.sums, rtol=1e-5, atol=1e-9)


class Referee:
    """Every distance in float64, rounded to float32 in the same unit, at once."""

    def __init__(self, values, centres, unit):
        self.fine, self.unit = values.double(), unit
        self.nearest = torch.full((values.shape[1],), torch.inf)
        self.owner = torch.zeros(values.shape[1], dtype=torch.long)
        self.count = 0
        for centre in centres:
            self.add(centre)

    def add(self, centre):
        distances = (self.fine - centre.double()[:, None]).square().sum(0)
        distances[distances <= 2 * SAME * centre.double().square().sum()] = 0
        rounded = (distances / self.unit**2).float()
        closer = rounded < self.nearest
        self.nearest[closer], self.owner[closer] = rounded[closer], self.count
        self.count += 1

    def sums(self):
        return torch.bincount(self.owner, self.nearest.double(), self.count)

    def lcmd(self, allowed):
        for cluster in self.sums().argsort(descending=True, stable=True):
            distances = torch.where(allowed & (self.owner == cluster), self.nearest, 0.0)
            if distances.max() > 0:
                return int(distances.argmax())
        return None

    def k_center(self, allowed):
        return int(torch.where(allowed, self.nearest, 0.0).argmax())


def narrow_cone(width, duplicates, dimensions, size, seed):
    values = normal(dimensions, size, seed=seed)
    values = 1 + width * values if width else values
    if duplicates:
        values[:, size // 2 :] = values[:, : size - size // 2]
    return values


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([0.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4]),
    st.booleans(),
    st.sampled_from([2, 10, 60]),
    st.integers(0, 10**6),
    st.sampled_from([0, 1, 5]),
    st.booleans(),
    st.booleans(),
)
def test_batches_are_those_of_distances_in_float64(
    width, duplicates, dimensions, seed, num_labelled, lies_on_disk, few
):
    """Cones of several widths, duplicates, labelled and pending centres, excluded points, small blocks."""
    values = narrow_cone(width, duplicates, dimensions, 2500, seed)
    labelled = narrow_cone(width, False, dimensions, num_labelled, seed + 1) if num_labelled else None
    pending, exclude = ([], []) if few else ([3, 2000], list(range(100, 300)))
    allowed = torch.ones(2500, dtype=torch.bool)
    allowed[pending + exclude] = False
    space = VectorSpace(on_disk(values) if lies_on_disk else values, labelled)
    centres = [*(labelled.mT if num_labelled else []), *(values[:, n] for n in pending)]
    for selector, rule in ((LCMD(), Referee.lcmd), (KCenter(), Referee.k_center)):
        referee = Referee(values, centres or [torch.zeros(dimensions)], space.unit)
        expected, left = [], allowed.clone()
        for _ in range(25):
            expected.append(rule(referee, left))
            referee.add(values[:, expected[-1]])
            left[expected[-1]] = False
        batch = selector.select(space, 25, pending=pending, exclude=exclude)
        assert batch.index.tolist() == expected


@pytest.mark.parametrize("near_ties", [1, 4096])
def test_sums_that_rounding_cannot_tell_apart(near_ties, monkeypatch):
    """Two clusters that are copies of each other but for one point: they are computed again."""
    monkeypatch.setattr(limits, "NEAR_TIES", near_ties)
    half = 100 + normal(30, 500)
    values = torch.cat([half, half + 20], 1)
    values[:, 700] += 1e-3
    space = VectorSpace(values, torch.stack([half.mean(1), half.mean(1) + 20], 1))
    referee = Referee(values, space.labelled.mT, space.unit)
    distances = centre_distances(space, torch.ones(1000, dtype=torch.bool), NONE, 5)
    assert int(distances.largest_cluster()) == int(referee.sums().argmax())
    assert int(distances.farthest()) == int(referee.nearest.argmax())
    assert torch.equal(distances.sums, referee.sums() * space.unit**2)


def test_few_distances_are_computed_in_float64_in_a_narrow_cone():
    space = VectorSpace(100 + normal(50, 4000))
    distances = centre_distances(space, selectable(space), NONE, 20)
    for _ in range(20):
        distances.add(distances.farthest(distances.largest_cluster()))
    assert distances.computed < 20 * 4000 / 4
