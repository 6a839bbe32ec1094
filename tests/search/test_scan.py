"""Scans, distances and storage: the quick ways choose what the plain ones do, wherever the vectors lie."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coresift
from coresift.checks import check_memory
from coresift.pool import as_pool, keep_rows
from coresift.posteriors import BayesianLinearRegression
from coresift.selectors import GIGA, LCMD, FrankWolfe, GreedyLogDet, KCenter, KMeansPlusPlus, KMedoids
from coresift.spaces import GramSpace, VectorSpace, vectors
from coresift.spaces.centres import Centres, VectorCentres
from coresift.spaces.outer import stored_outer_space
from coresift.spaces.storage import InMemory, OnDisk, map_pool

SELECTORS = [FrankWolfe(), FrankWolfe(fill=False), LCMD(), KCenter(), KMeansPlusPlus()]


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
    allowed = space.selectable
    allowed[::7] = False
    search = space.scan(allowed)
    direction = normal(dimensions, seed=seed + 1, dtype=torch.float64)
    for step in range(60):
        found = search.argmax(direction * 10.0 ** (step % 9))
        expected, cosines = winner(values, direction / direction.norm(), allowed)
        assert allowed[found]
        # Where the rounding of float64 itself decides, either will do.
        assert found == expected or cosines[expected] - cosines[found] <= 2e-13
        if step % 3:
            allowed[found] = False
        direction = direction / direction.norm() + turn * normal(dimensions, seed=step, dtype=torch.float64)
    assert search.asked == 60 and search.made <= 60


def test_scans_are_saved_where_directions_turn_little():
    values = normal(3, 20_000)
    space = VectorSpace(values)
    search = space.scan(space.selectable)
    direction = normal(3, seed=1, dtype=torch.float64)
    for step in range(200):
        assert search.argmax(direction) == winner(values, direction, search.allowed)[0]
        direction = direction + 0.01 * normal(3, seed=step, dtype=torch.float64)
    assert search.made < 100


def test_a_point_that_was_taken_out_hides_nobody():
    """The best was taken out, the second best lies in its block, and a worse one in a block before."""
    values = normal(4, 300)
    direction = normal(4, seed=1, dtype=torch.float64)
    direction = direction / direction.norm()
    cosines = winner(values, direction, torch.ones(300, dtype=torch.bool))[1]
    order = cosines.argsort(descending=True)
    values = values[:, torch.cat([order[2:102], order[:2], order[102:]])]  # the best is at 100
    space = VectorSpace(values)
    space.columns.block = space.sizes.block = 100
    allowed = space.selectable
    search = space.scan(allowed)
    allowed[100] = False
    leaders = search._scan(direction, False)
    assert int(leaders.index[(direction @ leaders.units).argmax()]) == 101


def test_all_cosines_below_zero():
    values = -normal(4, 500).abs()
    search = (space := VectorSpace(values)).scan(space.selectable)
    direction = torch.ones(4, dtype=torch.float64)
    assert search.argmax(direction) == winner(values, direction, search.allowed)[0]


def test_more_near_ties_than_are_looked_at_together():
    values = torch.tensor([[0.5], [0.75**0.5]]).repeat(1, 70_000)
    values[:, 66_000:] = torch.tensor([[0.9], [0.19**0.5]])
    assert VectorSpace(values).argmax(torch.tensor([1.0, 0.0]).double(), torch.ones(70_000).bool()) == 66_000
    values = 1 + 3e-3 * normal(128, 20_000)  # all nearly parallel
    space, direction = VectorSpace(values), torch.ones(128, dtype=torch.float64)
    expected = winner(values, direction, space.selectable)[0]
    assert space.argmax(direction, space.selectable) == expected


@pytest.mark.parametrize("dimensions", [3, 300])
def test_copies_give_the_first(dimensions):
    for num in (2, 44, 45, 400):
        space = VectorSpace(normal(dimensions, 1, seed=num).repeat(1, num))
        assert space.argmax(normal(dimensions, seed=num).double(), space.selectable) == 0


def test_vectors_of_length_zero_never_win():
    space = VectorSpace(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    assert space.argmax(torch.tensor([-1.0, 0.0]).double(), torch.ones(2).bool()) == 1


def test_an_empty_set_of_labelled_points_is_none():
    values = normal(3, 50)
    expected = LCMD().select(VectorSpace(values), 5).index.tolist()
    assert LCMD().select(VectorSpace(values, torch.empty(3, 0)), 5).index.tolist() == expected


def test_a_pool_of_copies_gives_the_first():
    space = VectorSpace(normal(4, 1).repeat(1, 200_000))
    assert space.scan(space.selectable).argmax(torch.ones(4, dtype=torch.float64)) == 0


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
@pytest.mark.parametrize("dimensions", [5, 40])
def test_many_steps_at_once_as_one_by_one(selector, dimensions, monkeypatch):
    """The way a GPU goes, here without one."""
    values = normal(dimensions, 3000) + 0.2
    options = {"pending": [3, 77], "exclude": range(100, 300), "seed": 1}
    expected = selector.select(VectorSpace(values), 90, **options).index.tolist()
    monkeypatch.setattr(vectors, "has_kernels", lambda space: True)
    assert selector.select(VectorSpace(values), 90, **options).index.tolist() == expected


@pytest.mark.parametrize("selector", [FrankWolfe(), LCMD(), KCenter()])
def test_many_steps_at_once_among_copies(selector, monkeypatch):
    values = (normal(4, 40) + 0.2).repeat(1, 20)
    expected = selector.select(VectorSpace(values), 60).index.tolist()
    monkeypatch.setattr(vectors, "has_kernels", lambda space: True)
    assert selector.select(VectorSpace(values), 60).index.tolist() == expected


@pytest.mark.parametrize("dimensions", [4, 50])
def test_distances_as_in_float64(dimensions):
    kinds = normal(dimensions, 20)
    values = kinds[:, torch.arange(2000) % 20] + 0.1 * normal(dimensions, 2000, seed=1)
    labelled = normal(dimensions, 100, seed=2)
    space = VectorSpace(values, labelled)
    exact = Centres(_Plain(values, labelled), space.selectable, np.array([5]))
    quick = VectorCentres(space, space.selectable, np.array([5]))
    for n in (7, 1003, 555, 12, 13, 14, 1999):
        for centres in (exact, quick):
            centres.add(n)
        assert torch.allclose(quick.nearest.values * quick.unit**2, exact.nearest.values.float(), rtol=1e-5)
        assert torch.equal(quick.owner.values, exact.owner.values)
        assert torch.allclose(quick.sums * quick.unit**2, exact.sums, rtol=1e-5, atol=1e-9)
        assert quick.farthest() == exact.farthest()
    assert (quick.passed_over > 0) == (dimensions == 50)


class _Plain(GramSpace):
    """The same points by their inner products, with labelled points."""

    def __init__(self, values, labelled):
        super().__init__(values.double().mT @ values.double())
        self._cross, self._squares = labelled.double().mT @ values.double(), labelled.double().square().sum(0)

    def anchors(self):
        yield self._cross, self._squares


def test_columns_on_disk():
    values = normal(3, 2500)
    columns = OnDisk(3, 2500, torch.float32, 1024)
    for start in (0, 700, 2000):
        columns.write(start, values[:, start : start + 1300])
    assert [len(range(*part.indices(2500))) for part in columns.parts()] == [1024, 1024, 452]
    index = torch.tensor([2499, 0, 1024, 1023])
    assert torch.equal(columns.at(index), values[:, index])
    assert torch.equal(torch.cat([columns.part(part).clone() for part in columns.parts()], 1), values)


def test_where_vectors_go(capsys, monkeypatch):
    monkeypatch.setattr("coresift.spaces.storage.LIBRARY_BYTES", 0)
    pool = as_pool(normal(4000, 8))
    assert isinstance(map_pool(pool, 512, lambda block: block.x.mT, memory=10**6), InMemory)
    columns = map_pool(pool, 512, lambda block: block.x.mT, memory=2 * 10**5)
    assert isinstance(columns, OnDisk)
    assert "4,000 vectors of 8 numbers do not fit into the memory limit" in capsys.readouterr().err
    assert torch.equal(columns.at(torch.arange(4000)), pool.rows.mT)


@pytest.mark.parametrize("memory", ["2GiB", 2**31, "2.147483648e9", " 2097152 KiB"])
def test_ways_to_say_a_limit(memory):
    assert check_memory(memory, 1000) == 2**31


@pytest.mark.parametrize("memory", ["", "much", "-1GB", "0", "1.2.3GB", 10**6, "1MB"])
def test_limits_that_cannot_be(memory):
    with pytest.raises(coresift.InputError, match="memory is"):
        check_memory(memory, 1000)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see the resident set")
def test_the_limit_is_kept(tmp_path):
    """A pool whose vectors alone are larger than the limit; in a process of its own."""
    np.save(tmp_path / "pool.npy", np.random.default_rng(0).normal(size=(1_200_000, 3)).astype(np.float32))
    program = textwrap.dedent(f"""
        import torch, coresift
        from coresift.posteriors import BayesianLinearRegression

        torch.manual_seed(0)
        x = torch.randn(20, 3)
        posterior = BayesianLinearRegression(noise_variance=0.3).fit(x, x[:, 0])
        options = dict(posterior=posterior, budget=5, num_samples=150, exact=False, strategy="acs-lcmd")
        batch = coresift.select({str(tmp_path / "pool.npy")!r}, memory="600MB", **options)
        peak = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
        print(int(peak[0]) * 1024, batch.index.tolist())
    """)
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    peak, index = found.stdout.split(maxsplit=1)
    assert int(peak) < 600e6
    assert "go to a temporary file of 720.0 MB" in found.stderr.replace("\n", " ")
    torch.manual_seed(0)
    x = torch.randn(20, 3)
    posterior = BayesianLinearRegression(noise_variance=0.3).fit(x, x[:, 0])
    options = {"posterior": posterior, "budget": 5, "num_samples": 150, "exact": False}
    batch = coresift.select(tmp_path / "pool.npy", strategy="acs-lcmd", **options)
    assert index.strip() == str(batch.index.tolist())


def test_features_of_a_network_go_to_a_file_too():
    parts = [normal(100, 3, seed=seed) for seed in range(5)]
    kept = keep_rows(parts, 500, memory=10_000)
    assert isinstance(kept.rows, np.memmap)
    assert torch.equal(torch.cat([chunk.x for chunk in kept.chunks()]), torch.cat(parts))
    assert torch.equal(kept.take([499, 3]), torch.cat(parts)[[499, 3]])


@pytest.mark.parametrize("strategy", ["acs-fw", "acs-fisher", "maxent", "random", "greedy-logdet"])
def test_what_does_not_fit_says_so(strategy, monkeypatch):
    monkeypatch.setattr("coresift.strategies.LIBRARY_BYTES", 0)
    monkeypatch.setattr("coresift.strategies.check_memory", lambda memory, size: memory)
    pool = normal(1000, 3)
    posterior = BayesianLinearRegression().fit(pool[:20], pool[:20, 0])
    with pytest.raises(
        coresift.InputError, match=r"needs 0.[0-2] MB for 1,000 points.* has 0.0 MB of the limit left; "
    ):
        coresift.select(pool, posterior=posterior, budget=3, strategy=strategy, memory=30_000)


def test_wide_rows_do_not_fit(monkeypatch):
    """Of gradients, room is needed for each number."""
    monkeypatch.setattr("coresift.strategies.LIBRARY_BYTES", 0)
    monkeypatch.setattr("coresift.strategies.check_memory", lambda memory, size: memory)
    probs, options = normal(4, 1000, 3).softmax(-1), {"budget": 3, "strategy": "badge", "memory": 10**6}
    assert len(coresift.select(normal(1000, 5), probs=probs, **options)) == 3
    with pytest.raises(coresift.InputError, match=r"needs 7.7 MB for 1,000 points"):
        coresift.select(normal(1000, 310), probs=probs, **options)


@pytest.mark.parametrize("strategy", ["k-center", "lcmd", "k-medoids"])
def test_features_go_to_a_file(strategy, monkeypatch, capsys):
    pool, labelled = normal(5000, 8), normal(10, 8, seed=1)
    options = {"budget": 4, "strategy": strategy, "labelled": labelled}
    expected = coresift.select(pool, **options).index.tolist()
    monkeypatch.setattr("coresift.strategies.LIBRARY_BYTES", 0)
    monkeypatch.setattr("coresift.spaces.storage.LIBRARY_BYTES", 10**9)
    monkeypatch.setattr("coresift.strategies.check_memory", lambda memory, size: memory)
    batch = coresift.select(pool, memory=2 * 10**8, **options)
    assert "they go to a temporary file" in capsys.readouterr().err
    assert batch.index.tolist() == expected or strategy == "k-medoids"  # which clusters a sample there


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "dask"}, "engine is 'dask', expected 'ray'"),
        ({"num_workers": 2}, "goes with engine='ray'"),
    ],
)
def test_engines_that_there_are(options, message):
    with pytest.raises(coresift.InputError, match=message):
        coresift.select(normal(50, 3), budget=3, strategy="random", **options)


def test_pending_points_that_say_nothing():
    values = normal(3, 50)
    values[:, 7] = 0
    assert len(FrankWolfe().select(VectorSpace(values), 5, pending=[7])) == 5


ALL_SELECTORS = [FrankWolfe(), GIGA(), LCMD(), KCenter(), KMeansPlusPlus(), KMedoids()]


@pytest.mark.parametrize("selector", ALL_SELECTORS, ids=lambda selector: type(selector).__name__)
@pytest.mark.parametrize(
    ("dtype", "exponent"),
    [(torch.float32, e) for e in (-120, -83, 126)] + [(torch.float64, e) for e in (-1000, -200, 509, 1000)],
)
def test_the_same_batch_at_any_scale(selector, dtype, exponent):
    """A power of two rounds nothing, so that all numbers of a batch are the same."""
    values, labelled = normal(6, 300, dtype=dtype) / 4, normal(6, 3, seed=1, dtype=dtype) / 4
    expected = selector.select(VectorSpace(values, labelled), 8, pending=[5])
    large, large_labelled = values * 2.0**exponent, labelled * 2.0**exponent
    before = large.clone()
    batch = selector.select(VectorSpace(large, large_labelled), 8, pending=[5])
    assert torch.equal(large, before)  # the caller's tensor
    assert batch.index.tolist() == expected.index.tolist()
    assert np.allclose(batch.weights, expected.weights, rtol=1e-6)
    assert batch.information == pytest.approx(expected.information)
    assert np.allclose(batch.residuals * 2.0**-exponent, expected.residuals, rtol=1e-6, atol=1e-7)
    if not isinstance(selector, GIGA):
        found = selector.select(VectorSpace(on_disk(large), large_labelled), 8, pending=[5])
        if not isinstance(selector, KMedoids):  # which uses another method there
            assert found.index.tolist() == expected.index.tolist()


@pytest.mark.parametrize("strategy", ["k-center", "lcmd", "k-medoids"])
@pytest.mark.parametrize("exponent", [-110, -83, 126])
def test_features_at_any_scale(strategy, exponent):
    """Also where the mean cannot be subtracted from them in float32."""
    rows, labelled = normal(200, 4) / 4, normal(5, 4, seed=1) / 4
    rows, labelled = rows.half().float(), labelled.half().float()  # few digits, so that none are lost
    options = {"strategy": strategy, "budget": 6}
    expected = coresift.select(rows, labelled=labelled, **options)
    batch = coresift.select(rows * 2.0**exponent, labelled=labelled * 2.0**exponent, **options)
    assert batch.index.tolist() == expected.index.tolist()
    assert np.allclose(batch.residuals * 2.0**-exponent, expected.residuals)


@pytest.mark.parametrize("exponent", [-600, 600])
def test_gradients_at_any_scale(exponent):
    probs, rows = normal(4, 100, 3).softmax(-1), normal(100, 5, dtype=torch.float64)
    expected = coresift.select(rows, probs=probs, strategy="badge", budget=6)
    batch = coresift.select(rows * 2.0**exponent, probs=probs, strategy="badge", budget=6)
    assert batch.index.tolist() == expected.index.tolist()


@pytest.mark.parametrize("scale", [1e-250, 1e250])
def test_gradients_out_of_range_are_refused(scale):
    side = normal(10, 3, dtype=torch.float64) * scale
    with pytest.raises(coresift.InputError, match="out of the range of float64"):
        stored_outer_space(side, side)


def test_log_determinants_of_very_large_and_very_small_vectors():
    """The identity in I + K is lost beside large vectors, and small ones are chosen by their norms."""
    values = normal(5, 60, dtype=torch.float64)
    large = GreedyLogDet().select(VectorSpace(values * 2.0**40), 4).index.tolist()
    assert GreedyLogDet().select(VectorSpace(values * 2.0**700), 4).index.tolist() == large
    norms = values.square().sum(0).argsort(descending=True)[:4].tolist()
    assert GreedyLogDet().select(VectorSpace(values * 2.0**-700), 4).index.tolist() == norms


@pytest.mark.parametrize("scale", [1e-290, 1e290, np.inf])
def test_inner_products_out_of_range_are_refused(scale):
    values = normal(3, 20, dtype=torch.float64)
    with pytest.raises(coresift.InputError, match=r"norm of .*, out of the range of float64 arithmetic"):
        LCMD().select(GramSpace(values.mT @ values * scale), 3)


def test_labelled_points_in_other_units_are_refused():
    space = VectorSpace(normal(3, 20), 1e30 * normal(3, 2))
    with pytest.raises(coresift.InputError, match=r"times as large as the pool's.* same units"):
        LCMD().select(space, 3)


@pytest.mark.parametrize("offset", [0.5, 16.0, 1000.0, 30_000.0])
@pytest.mark.parametrize("lies_on_disk", [False, True])
def test_distances_in_a_narrow_cone(offset, lies_on_disk):
    """All vectors nearly parallel, with labelled points inside the cone and outside it."""
    values = offset + normal(40, 3000)
    labelled = torch.cat([offset + normal(40, 3, seed=1), normal(40, 70, seed=2)], 1)
    space = VectorSpace(on_disk(values) if lies_on_disk else values, labelled)
    centres = VectorCentres(space, space.selectable, np.array([5]))
    places = torch.cat([labelled.mT, values[:, 5:6].mT]).double()
    for n in (7, 1003, 555, 12, 13, 14, 1999):
        centres.add(n)
        places = torch.cat([places, values[:, n : n + 1].mT.double()])
        expected, owner = (values.mT.double()[:, None] - places).square().sum(2).min(1)
        found = centres.nearest.at(torch.arange(3000))[0].double() * centres.unit**2
        # What is computed from squared norms in float64 rounds by their last digits.
        assert torch.allclose(found, expected, rtol=1e-6, atol=1e-10 * 2 * 40 * offset**2)
        assert torch.equal(centres.owner.at(torch.arange(3000))[0].long(), owner)


def test_few_points_are_looked_at_twice_in_a_narrow_cone(monkeypatch):
    """A scan measures from the pool's mean: float64 is for points that change hands, and few others."""
    space = VectorSpace(300 + normal(50, 4000))
    centres = VectorCentres(space, space.selectable, np.empty(0, dtype=np.int64))
    looked_at, exact = [], VectorCentres._exact

    def count(self, vectors, *centre):
        looked_at.append(vectors.shape[1])
        return exact(self, vectors, *centre)

    monkeypatch.setattr(VectorCentres, "_exact", count)
    for n in range(20):
        centres.add(n)
    assert sum(looked_at) < 20 * 4000 / 2


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see the resident set")
@pytest.mark.parametrize(
    "lines",
    [
        # 40 samples of 1000 classes: vectors of 40,000 numbers, before they are projected.
        """
        probs = torch.rand(40, 500, 1000)
        coresift.select(probs=probs.div_(probs.sum(-1, keepdim=True)), budget=3, memory="800MB")
        """,
        # Ten numbers for each point, in memory: all of them come closer to the first centre.
        """
        coresift.select(np.load("pool.npy", mmap_mode="r"), budget=3, strategy="lcmd", memory="600MB")
        """,
    ],
    ids=["many classes", "many points"],
)
def test_the_limit_is_kept_while_vectors_are_computed_with(lines, tmp_path):
    np.save(tmp_path / "pool.npy", np.random.default_rng(0).normal(size=(1_500_000, 10)).astype(np.float32))
    program = (
        "import numpy as np, torch, coresift\n"
        + textwrap.dedent(lines)
        + 'peak = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]\n'
        + "print(int(peak[0]) * 1024)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert int(found.stdout) < (800e6 if "800MB" in lines else 600e6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors_stay_as_they_are(dtype):
    values = normal(3, 50, dtype=dtype)
    before = values.clone()
    space = VectorSpace(values)
    assert torch.equal(space.norms, before.double().square().sum(0).sqrt())
    for selector in ALL_SELECTORS:
        selector.select(space, 5)
    assert torch.equal(values, before)
