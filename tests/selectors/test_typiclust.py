"""TypiClust against its definition, on points whose clusters are known."""

import pytest
import torch

import coresift
from coresift import InputError, limits, select
from coresift.selectors import TypiClust
from coresift.spaces import FeatureSpace, GramSpace

SIZES = [31, 3, 12, 45, 22]


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def clusters():
    """(N, 2) rows of clusters far from each other, and (N,) which of them each row belongs to."""
    member = torch.arange(5).repeat_interleave(torch.tensor(SIZES))
    member = member[torch.randperm(len(member), generator=torch.Generator().manual_seed(1))]
    centres = 100 * torch.tensor([[0.0, 0], [1, 0], [0, 1], [1, 1], [3, 3]], dtype=torch.float64)
    return centres[member] + normal(len(member), 2), member


def most_typical(rows, index, num_neighbours):
    """The definition, point by point."""

    def typicality(n):
        distances = sorted(float((rows[n] - rows[m]).norm()) for m in index if m != n)[:num_neighbours]
        return len(distances) / sum(distances)

    return max(index, key=typicality)


@pytest.mark.parametrize("num_neighbours", [2, 20])
def test_the_definition_on_known_clusters(num_neighbours):
    rows, member = clusters()
    largest_first = sorted(range(5), key=lambda c: -SIZES[c])
    expected = [
        most_typical(rows, (member == c).nonzero()[:, 0].tolist(), num_neighbours) for c in largest_first
    ]
    selector = TypiClust(num_neighbours=num_neighbours)
    for seed in range(3):
        assert selector.select(FeatureSpace(rows.mT), 5, seed=seed).index.tolist() == expected
        # A pending point covers its cluster.
        pending = int((member == 4).nonzero()[0])
        assert selector.select(
            FeatureSpace(rows.mT), 4, pending=[pending], seed=seed
        ).index.tolist() == expected[:2] + [n for n in expected[2:] if member[n] != 4]
        # So does a labelled one.
        known = FeatureSpace(rows.mT, rows[member == 3][:1].mT + 0.1)
        assert selector.select(known, 4, seed=seed).index.tolist() == expected[1:]


def test_excluded_points_are_neighbours_and_never_chosen():
    rows, member = clusters()
    inside = (member == 3).nonzero()[:, 0].tolist()
    first = most_typical(rows, inside, 20)
    given = {"pool": rows, "budget": 5, "strategy": "typiclust"}
    assert select(**given).index[0] == first
    kept = inside[:2]
    exclude = [n for n in inside if n not in kept]
    batch = select(**given, exclude=exclude).index.tolist()
    distances = torch.cdist(rows[kept], rows[inside]).sort().values[:, 1:21].sum(1)
    assert batch[0] == kept[int(distances.argmin())]
    batch = select(**given, exclude=inside).index.tolist()  # a cluster without points to choose
    assert len(set(batch)) == 5 and not set(batch) & set(inside)


def test_more_labels_than_clusters():
    """Clusters with the fewest labelled points come first, and the most typical points in each."""
    rows, member = clusters()
    keep = member.ge(2) & member.le(3)
    rows, member = rows[keep], member[keep]
    batch = TypiClust(max_clusters=2).select(FeatureSpace(rows.mT), 8).index.tolist()
    assert member[batch].tolist() == [3, 2] * 4
    inside = (member == 2).nonzero()[:, 0].tolist()
    near = torch.cdist(rows[inside], rows[inside]).sort().values[:, 1:21].sum(1)
    assert [n for n in batch if member[n] == 2] == [inside[k] for k in near.argsort()[:4]]
    everything = TypiClust(max_clusters=2).select(FeatureSpace(rows.mT), len(rows)).index
    assert sorted(everything) == list(range(len(rows)))


def test_duplicates_come_last():
    rows = normal(20, 3).repeat(3, 1)
    batch = select(rows, strategy="typiclust", budget=30, labelled=rows[:4], pending=[5]).index
    assert not {n % 20 for n in batch[:15]} & {0, 1, 2, 3, 5}
    assert len({n % 20 for n in batch[:15]}) == 15 and len(set(batch)) == 30
    assert len(select(torch.ones(9, 2), strategy="typiclust", budget=4)) == 4


def test_the_order_of_the_pool_does_not_matter():
    rows = normal(300, 4)
    for budget in (10, 80):  # k-means on all points, and on small batches of them
        order = torch.randperm(300, generator=torch.Generator().manual_seed(2))
        batch = TypiClust().select(FeatureSpace(rows.mT), budget).index.tolist()
        shuffled = TypiClust().select(FeatureSpace(rows[order].mT), budget).index
        assert order[shuffled].tolist() == batch


def test_a_sample_of_a_large_cluster(monkeypatch):
    rows, member = clusters()
    expected = select(rows, strategy="typiclust", budget=5).index.tolist()
    monkeypatch.setattr(limits, "TYPICAL_CANDIDATES", 20)
    batch = select(rows, strategy="typiclust", budget=5).index.tolist()
    assert member[batch].tolist() == member[expected].tolist()
    assert batch[-2:] == expected[-2:]  # small clusters are looked at whole


def test_what_it_refuses(monkeypatch):
    with pytest.raises(InputError, match="TypiClust needs stored vectors, which a GramSpace"):
        TypiClust().select(GramSpace(torch.eye(9)), 2)
    with pytest.raises(InputError, match="max_clusters is 0, expected an integer of at least 1"):
        TypiClust(max_clusters=0)
    monkeypatch.setattr("coresift.limits.LIBRARY_BYTES", 0)
    monkeypatch.setattr("coresift.selection.check_memory", lambda memory, *_: memory)
    given = {"pool": normal(1000, 50), "budget": 3, "strategy": "typiclust"}
    with pytest.raises(InputError, match=r"this strategy needs 3.6 MB for 1,000 vectors"):
        select(**given, resources=coresift.Resources(1_000_000))
    assert len(select(**given, resources=coresift.Resources(4_000_000))) == 3
