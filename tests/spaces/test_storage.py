"""Vectors in memory and on disk, and the memory that a process may hold."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import coresift
from coresift.memory import check_memory, held_bytes
from coresift.pool import as_pool, keep_rows
from coresift.posteriors import BayesianLinearRegression
from coresift.spaces.vectors import InMemory, OnDisk, map_pool


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


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
    monkeypatch.setattr("coresift.limits.LIBRARY_BYTES", 0)
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
def test_the_caller_s_arrays_count():
    before = held_bytes()
    rows = np.ones(10**8)
    assert 7e8 < held_bytes() - before < 9e8
    options = {"budget": 2, "strategy": "k-center", "resources": coresift.Resources("1GB")}
    with pytest.raises(coresift.InputError, match=r"memory is '1GB'.* the process holds .* already"):
        coresift.select(rows[:1000, None], **options)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see the resident set")
def test_the_limit_is_kept(tmp_path):
    """A pool whose vectors alone are larger than the limit; in a process of its own."""
    np.save(tmp_path / "pool.npy", np.random.default_rng(0).normal(size=(850_000, 3)).astype(np.float32))
    program = textwrap.dedent(f"""
        import torch, coresift
        from coresift.posteriors import BayesianLinearRegression

        torch.manual_seed(0)
        x = torch.randn(20, 3)
        posterior = BayesianLinearRegression(noise_variance=0.3).fit(x, x[:, 0])
        strategy = coresift.find_strategy("acs-lcmd", num_samples=150, exact=False)
        options = dict(posterior=posterior, budget=3, strategy=strategy)
        resources = coresift.Resources("500MB")
        batch = coresift.select({str(tmp_path / "pool.npy")!r}, resources=resources, **options)
        peak = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
        print(int(peak[0]) * 1024, batch.index.tolist())
    """)
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    peak, index = found.stdout.split(maxsplit=1)
    assert int(peak) < 500e6
    assert "go to a temporary file of 510.0 MB" in found.stderr.replace("\n", " ")
    torch.manual_seed(0)
    x = torch.randn(20, 3)
    posterior = BayesianLinearRegression(noise_variance=0.3).fit(x, x[:, 0])
    strategy = coresift.find_strategy("acs-lcmd", num_samples=150, exact=False)
    batch = coresift.select(tmp_path / "pool.npy", strategy=strategy, posterior=posterior, budget=3)
    assert index.strip() == str(batch.index.tolist())


def test_features_of_a_network_go_to_a_file_too():
    parts = [normal(100, 3, seed=seed) for seed in range(5)]
    kept = keep_rows(parts, 500, memory=10_000)
    assert isinstance(kept.rows, np.memmap)
    assert torch.equal(torch.cat([chunk.x for chunk in kept.chunks()]), torch.cat(parts))
    assert torch.equal(kept.take([499, 3]), torch.cat(parts)[[499, 3]])


@pytest.mark.parametrize("strategy", ["acs-fw", "acs-fisher", "maxent", "random", "greedy-logdet"])
def test_what_does_not_fit_says_so(strategy, monkeypatch):
    monkeypatch.setattr("coresift.limits.LIBRARY_BYTES", 0)
    monkeypatch.setattr("coresift.selection.check_memory", lambda memory, *_: memory)
    pool = normal(1000, 3)
    posterior = BayesianLinearRegression().fit(pool[:20], pool[:20, 0])
    resources = coresift.Resources(30_000)
    with pytest.raises(
        coresift.InputError, match=r"needs 0.[0-2] MB for 1,000 points.* has 0.0 MB of the limit left; "
    ):
        coresift.select(pool, posterior=posterior, budget=3, strategy=strategy, resources=resources)


def test_wide_rows_do_not_fit(monkeypatch):
    """Of gradients, room is needed for each number."""
    monkeypatch.setattr("coresift.limits.LIBRARY_BYTES", 0)
    monkeypatch.setattr("coresift.selection.check_memory", lambda memory, *_: memory)
    resources = coresift.Resources(10**6)
    options = {"budget": 3, "strategy": "badge", "resources": resources}
    probs = normal(4, 1000, 3).softmax(-1)
    assert len(coresift.select(normal(1000, 5), probs=probs, **options)) == 3
    with pytest.raises(coresift.InputError, match=r"needs 7.7 MB for 1,000 points"):
        coresift.select(normal(1000, 310), probs=probs, **options)


@pytest.mark.parametrize("strategy", ["k-center", "lcmd", "k-medoids"])
def test_features_go_to_a_file(strategy, monkeypatch, capsys):
    pool, labelled = normal(5000, 8), normal(10, 8, seed=1)
    options = {"budget": 4, "strategy": strategy, "labelled": labelled}
    expected = coresift.select(pool, **options).index.tolist()
    monkeypatch.setattr("coresift.limits.LIBRARY_BYTES", 0)
    monkeypatch.setattr("coresift.selection.check_memory", lambda memory, *_: memory)
    # To cluster 4000 points takes 1.9 MB, and 5000 points 2.4 MB.
    memory = 2_200_000 if strategy == "k-medoids" else 10**5
    batch = coresift.select(pool, resources=coresift.Resources(memory), **options)
    assert "they go to a temporary file" in capsys.readouterr().err
    assert batch.index.tolist() == expected or strategy == "k-medoids"  # which clusters a sample there


def test_clustering_does_not_fit():
    """A pool of few wide rows is clustered whole, also where it is in a file."""
    probs = np.full((5, 1000, 4000), 1 / 4000, np.float32)
    resources = coresift.Resources(held_bytes() + 900_000_000)
    with pytest.raises(coresift.InputError, match=r"needs 1.4 GB for 1,000 points"):
        coresift.select(probs=probs, budget=3, strategy="k-medoids", resources=resources)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "dask"}, "engine is 'dask', expected 'ray'"),
        ({"num_workers": 2}, "goes with engine='ray'"),
    ],
)
def test_engines_that_there_are(options, message):
    with pytest.raises(coresift.InputError, match=message):
        coresift.Resources(**options)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see the resident set")
@pytest.mark.parametrize(
    "lines",
    [
        # 40 samples of 1000 classes: vectors of 40,000 numbers, before they are projected.
        """
        probs = torch.rand(40, 500, 1000)
        resources = coresift.Resources("800MB")
        coresift.select(probs=probs.div_(probs.sum(-1, keepdim=True)), budget=3, resources=resources)
        """,
        # Ten numbers for each point, in memory: all of them come closer to the first centre.
        """
        resources = coresift.Resources("600MB")
        coresift.select(np.load("pool.npy", mmap_mode="r"), budget=3, strategy="lcmd", resources=resources)
        """,
        # An array of the caller's, and rows so wide that a block of 8192 would be all of them.
        """
        resources = coresift.Resources("1000MB")
        coresift.select(torch.rand(3000, 20_000), budget=3, strategy="k-center", resources=resources)
        """,
        # Vectors of 50,000 numbers in float64, and as many for each point that is taken.
        """
        probs = torch.rand(50, 200, 1000)
        options = dict(probs=probs.div_(probs.sum(-1, keepdim=True)), strategy="greedy-logdet", budget=100)
        try:
            coresift.select(**options, resources=coresift.Resources("850MB"))
        except coresift.InputError as error:
            assert "200 vectors of 50,000 numbers and a batch of 100" in str(error), error
        else:
            raise AssertionError("it does not fit")
        coresift.select(**options, resources=coresift.Resources("1000MB"))
        """,
    ],
    ids=["many classes", "many points", "wide rows", "wide vectors"],
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
    limit = max(int(number) for number in re.findall(r'Resources\("(\d+)MB"', lines))
    assert int(found.stdout) < 1e6 * limit
