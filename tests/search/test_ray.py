"""A pool in shards gives the batch that it gives in memory, whatever happens to the workers."""

import os
import signal
import warnings
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from coresift import InputError, Resources, select
from coresift.pool import DatasetPool, as_pool
from coresift.posteriors import BayesianLinearRegression
from coresift.posteriors.samples import ClassSamples, GaussianSamples
from coresift.search import centre_distances
from coresift.search.ray import RaySpace, ray_space, select_on_ray
from coresift.search.shards import Shard, Shards, shard_starts
from coresift.selectors import GreedyLogDet
from coresift.spaces import Problem
from coresift.spaces.base import norm_sum, selectable
from coresift.strategies import STRATEGIES

ray = pytest.importorskip("ray", reason="needs the ray package")

pytestmark = [
    pytest.mark.usefixtures("cluster"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SIZE = 3000
SHARDED = [name for name, strategy in STRATEGIES.items() if strategy.shards]


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(size=(SIZE, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(rows, tmp_path_factory):
    """Files of different lengths, in the order of their names."""
    path = tmp_path_factory.mktemp("pool")
    for number, part in enumerate(np.split(rows, [100, 1000, 1001, 2600])):
        np.save(path / f"part-{number}.npy", part)
    return path


@pytest.fixture(scope="module")
def idle(cluster):
    """Workers that wait for their next shard."""
    return []


@pytest.fixture
def lasting_workers(idle, monkeypatch):
    """Workers that hold one shard after another: what a process needs to import takes it seconds."""

    class Worker:  # a local class travels by value: workers cannot import this file
        def hold(self, *recipe):
            self._shard = Shard(*recipe)

        def answer(self, question):
            return self._shard.answer(question)

    def start(shards, number):
        worker = idle.pop() if idle else ray.remote(num_cpus=0)(Worker).remote()
        worker.hold.remote(*shards._common, shards._parts[number], *shards._rest)
        return worker

    monkeypatch.setattr(Shards, "_start", start)
    monkeypatch.setattr(Shards, "close", lambda shards: idle.extend(shards._actors))


def test_no_other_machine_reaches_a_cluster_that_is_started_here():
    psutil = pytest.importorskip("psutil", reason="needs psutil, which comes with Ray")
    here, listening = psutil.Process(), set()
    for process in [here, *here.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # a worker may end meanwhile
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    listening.add(connection.laddr.ip.removeprefix("::ffff:"))
    assert listening and listening <= {"127.0.0.1", "::1"}


def regression(rows):
    generator = np.random.default_rng(1)
    x = torch.tensor(rows[:20] + 0.1 * generator.normal(size=(20, 4)), dtype=torch.float32)
    return BayesianLinearRegression(noise_variance=0.1).fit(x, x @ torch.arange(1.0, 5.0)), x


def problem(pool, posterior, labelled=None, num_samples=16):
    return Problem(
        pool=as_pool(pool),
        model=posterior,
        labelled=labelled,
        num_samples=num_samples,
        generator=torch.Generator().manual_seed(7),
        exact=False,
    )


def assert_same(batch, expected):
    assert batch.index.tolist() == expected.index.tolist()
    for name in ("weights", "pending_weights", "residuals"):
        seen, wanted = getattr(batch, name), getattr(expected, name)
        assert (seen is None) == (wanted is None)
        if seen is not None:
            # LCMD's squared distances may have an error of 16 roundings of float32 (`VectorDistances`), so a
            # residual of zero is known up to the square root of that.
            largest, share = np.abs(wanted).max(initial=0), 1.4e-3 if name == "residuals" else 1e-6
            np.testing.assert_allclose(seen, wanted, rtol=1e-6, atol=share * largest)
    assert (batch.information is None) == (expected.information is None)


@pytest.mark.usefixtures("lasting_workers")
@pytest.mark.parametrize("name", SHARDED)
def test_the_same_batch_as_in_memory(name, rows, folder):
    """With pending, excluded and labelled points, and from a folder of files."""
    posterior, labelled = regression(rows)
    strategy = STRATEGIES[name]
    plain, full = (None, [], []), (labelled, [5, 2999, 1500, 7], [0, 1, 1501])
    # The others run without labelled, pending and excluded points too.
    only_full = name in ("acs-kmeans++", "acs-lcmd", "acs-centred-lcmd")
    for known, pending, exclude in [full] if only_full else [plain, full]:
        expected = strategy.run(problem(rows, posterior, known), 40, pending, exclude)
        on_ray = problem(folder, posterior, known)
        batch = select_on_ray(strategy, on_ray, 40, pending, exclude, num_workers=2)
        assert_same(batch, expected)
        assert not {*pending, *exclude} & set(batch.index.tolist())


@pytest.mark.usefixtures("lasting_workers")
def test_a_sampled_classifier_in_memory(rows):
    """Rows that are themselves in memory travel to the workers; three of these share two cores."""
    probs_N_K_C = torch.softmax(2 * torch.randn(700, 12, 3, generator=torch.Generator().manual_seed(0)), -1)
    for name in ("acs-fw", "predictive-lcmd"):
        expected = STRATEGIES[name].run(problem(probs_N_K_C, ClassSamples(12)), 30)
        on_ray = problem(probs_N_K_C, ClassSamples(12))
        assert_same(select_on_ray(STRATEGIES[name], on_ray, 30, num_workers=3), expected)


@pytest.mark.usefixtures("lasting_workers")
def test_a_selector_that_reads_the_norms_of_all_points(rows):
    strategy = replace(STRATEGIES["predictive-lcmd"], selector=GreedyLogDet())
    with pytest.raises(InputError, match="norms of all points stay with the workers"):
        select_on_ray(strategy, problem(rows, regression(rows)[0]), 3, num_workers=2)


@pytest.mark.parametrize("name", ["acs-fw", "predictive-lcmd", "acs-kmeans++"])
def test_a_worker_that_is_killed(name, rows, folder, request):
    """In the middle of a run: another takes its place, and nothing else changes."""
    if name != "acs-fw":  # the first has workers as users have them
        request.getfixturevalue("lasting_workers")
    posterior, labelled = regression(rows)
    strategy = STRATEGIES[name]
    pending = [11, 2000]
    expected = strategy.run(problem(rows, posterior, labelled), 30, pending)
    with ray_space(strategy, problem(folder, posterior, labelled), num_workers=2) as space:
        watched = Killing(space.shards, after=25)
        with pytest.warns(RuntimeWarning, match="died; another takes its place"):
            batch = strategy.selector.select(space, 30, pending=pending, seed=watched.generator)
        assert watched.count > 25
    assert_same(batch, expected)


class Killing:
    """Kills the process of one worker before a given question to all."""

    def __init__(self, shards, after):
        self.count, self._after, self._shards, self._ask = 0, after, shards, shards.ask
        shards.ask = self.ask
        self.generator = torch.Generator()
        self.generator.set_state(torch.from_numpy(np.array(shards.ask("build")[0].state)))
        self.count = 0

    def ask(self, method, arguments=lambda _: ()):
        self.count += 1
        if self.count == self._after:
            os.kill(self._shards.ask_one(1, "process"), signal.SIGKILL)
        return self._ask(method, arguments)


@pytest.mark.usefixtures("lasting_workers")
def test_duplicates_and_vectors_of_norm_zero(rows):
    """Points without information are never chosen, copies last; also where a shard holds nothing else."""
    some = np.concatenate([rows[:20], np.zeros((30, 4), np.float32), np.repeat(rows[:10], 10, 0)])
    posterior, _ = regression(rows)
    for name in ("acs-fw", "predictive-lcmd"):
        # Of sampled predictions, those of copies in other blocks differ by rounding: any copy may be chosen.
        exact = name == "predictive-lcmd"
        pools = [replace(problem(some, posterior, num_samples=8), exact=exact) for _ in range(2)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*have zero norm")
            expected = STRATEGIES[name].run(pools[0], 25)
            assert_same(select_on_ray(STRATEGIES[name], pools[1], 25, num_workers=2), expected)


@pytest.mark.usefixtures("lasting_workers")
@pytest.mark.parametrize("exponent", [-400, 400])
def test_shards_of_very_different_scales(exponent, rows):
    """Vectors at the limits of float64, and much smaller ones in the last shards."""
    scales = np.full(SIZE, 2.0**exponent)
    scales[SIZE // 2 :] *= 2.0**-60
    means = rows.T.astype(np.float64) * scales  # of four samples
    pool = np.stack([means.T, np.ones_like(means.T)], -1)
    choose = STRATEGIES["predictive-lcmd"]
    expected = choose.run(problem(pool, GaussianSamples(4)), 12)
    assert_same(select_on_ray(choose, problem(pool, GaussianSamples(4)), 12, num_workers=3), expected)


@pytest.mark.usefixtures("lasting_workers")
def test_only_part_of_the_shards_may_be_chosen_from(rows, folder):
    posterior, _ = regression(rows)
    exclude = range(1200, SIZE)
    for name in ("acs-fw", "predictive-lcmd"):
        expected = STRATEGIES[name].run(problem(rows, posterior), 10, exclude=exclude)
        on_ray = problem(folder, posterior)
        assert_same(select_on_ray(STRATEGIES[name], on_ray, 10, exclude=exclude, num_workers=2), expected)


@pytest.mark.usefixtures("lasting_workers")
def test_the_space_itself(rows, folder):
    posterior, _ = regression(rows)
    strategy = STRATEGIES["acs-fw"]
    whole_problem, on_ray = problem(rows, posterior), problem(folder, posterior)
    whole = strategy.build(whole_problem)
    with ray_space(strategy, on_ray, num_workers=2) as space:
        assert isinstance(space, RaySpace) and len(space) == SIZE
        assert torch.equal(on_ray.generator.get_state(), whole_problem.generator.get_state())
        torch.testing.assert_close(space.total(), whole.total())
        assert norm_sum(space) == pytest.approx(norm_sum(whole))
        assert torch.equal(selectable(space), selectable(whole))
        index = torch.tensor([2999, 0, 1500, 1500, 77])
        assert torch.equal(space.columns_at(index), whole.columns_at(index))
        element = torch.randn(2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        seen = torch.cat([values for _, values in space.inner(element)], 1)
        torch.testing.assert_close(
            seen, torch.cat([v for _, v in whole.inner(element)], 1), rtol=1e-5, atol=1e-6
        )
        centres, expected = (
            centre_distances(one, selectable(one), np.array([3, 2000]), 0) for one in (space, whole)
        )
        assert centres.radius() == pytest.approx(expected.radius())
        assert centres.spread() == pytest.approx(expected.spread())
        assert centres.farthest() == expected.farthest()
        assert [centres.draw(k / 10) for k in range(10)] == [expected.draw(k / 10) for k in range(10)]


@pytest.mark.usefixtures("lasting_workers")
def test_a_dataset(rows):
    data = pytest.importorskip("ray.data", reason="needs ray[data]")
    posterior, _ = regression(rows)
    table = pa.table({"id": [str(n) for n in range(SIZE)], **{f"x{k}": rows[:, k] for k in range(4)}})
    pool = as_pool(data.from_arrow([table.slice(0, 700), table.slice(700)]).materialize())
    assert isinstance(pool, DatasetPool) and pool.columns == ["x0", "x1", "x2", "x3"]
    np.testing.assert_array_equal(torch.cat([chunk.x for chunk in pool.chunks()]).numpy(), rows)
    np.testing.assert_array_equal(pool.take([2999, 3, 800, 3]).numpy(), rows[[2999, 3, 800, 3]])
    expected = STRATEGIES["acs-fw"].run(problem(rows, posterior), 20)
    assert_same(select_on_ray(STRATEGIES["acs-fw"], problem(pool, posterior), 20, num_workers=2), expected)
    with pytest.raises(InputError, match="column 'id' of the dataset holds string, expected numbers"):
        DatasetPool(data.from_arrow(table), ["id"])


@pytest.mark.usefixtures("lasting_workers")
def test_parquet_files(rows, tmp_path):
    posterior, _ = regression(rows)
    for number, part in enumerate(np.split(rows, [1700, 1800])):
        columns = {f"x{k}": part[:, k] for k in range(4)}
        pyarrow.parquet.write_table(pa.table(columns), tmp_path / f"{number}.parquet", row_group_size=300)
    expected = STRATEGIES["acs-fw"].run(problem(rows, posterior), 20)
    batch = select_on_ray(STRATEGIES["acs-fw"], problem(tmp_path, posterior), 20, num_workers=2)
    assert_same(batch, expected)


@pytest.mark.usefixtures("lasting_workers")
def test_errors_come_through(rows, folder):
    posterior, _ = regression(rows)
    with pytest.raises(InputError, match=r"those that can are acs-fw, .*predictive-lcmd"):
        select(folder, posterior=posterior, strategy="k-center", budget=5, resources=Resources(engine="ray"))
    exact = replace(problem(folder, posterior), exact=True)
    with pytest.raises(InputError, match="pass exact=False"):
        select_on_ray(STRATEGIES["acs-fw"], exact, 5)
    with pytest.raises(InputError, match="num_workers is 0"):
        select_on_ray(STRATEGIES["acs-fw"], problem(folder, posterior), 5, num_workers=0)
    broken = rows.copy()
    broken[2900, 3] = np.nan
    with pytest.raises(InputError, match="nan in row 2900, column 3"):
        select_on_ray(STRATEGIES["acs-fw"], problem(broken, posterior), 5, num_workers=2)


def test_no_ray(rows, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    posterior, _ = regression(rows)
    with pytest.raises(InputError, match=r'pip install "\.\[ray\]"'):
        select_on_ray(STRATEGIES["acs-fw"], problem(rows, posterior), 5)


def test_borders_of_shards():
    for size in (1, 5, 3000, 100_000, 10**7 + 1):
        for num in (1, 2, 7):
            starts = shard_starts(size, num)
            assert starts[0] == 0 and starts[-1] == size
            assert len(starts) == min(size, num) + 1
            assert np.diff(starts).max() <= 1.5 * size / num + 1
    assert (shard_starts(10**7, 64)[:-1] % 8192 == 0).all()
