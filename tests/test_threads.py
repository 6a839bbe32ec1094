"""Small work uses one thread, large work the free cores, and the caller's setting is kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from coresift import select, threads
from coresift.estimators import EnsembleClassifier, NeuralLinearRegressor
from coresift.scores import Score
from coresift.selectors import TopB
from coresift.strategies import Strategy


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


class Watch(nn.Module):
    """Notes how many threads a network computes with."""

    seen: list[int] = []  # noqa: RUF012

    def forward(self, x):
        self.seen.append(torch.get_num_threads())
        return x


def rows(num, columns=4):
    return torch.randn(num, columns, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("estimator", [NeuralLinearRegressor, EnsembleClassifier])
def test_a_small_network_uses_one_thread(estimator):
    Watch.seen.clear()
    x = rows(20)
    model = estimator(network=nn.Sequential(nn.Linear(4, 5), Watch()), num_members=2, epochs=2)
    model.fit(x, x[:, 0] > 0 if estimator is EnsembleClassifier else x[:, 0])
    model.predict(x)
    select(rows(50), budget=3, posterior=model.posterior_)
    assert Watch.seen and set(Watch.seen) == {1}


@pytest.mark.parametrize("free", [1, 2, 16])
def test_a_large_network_uses_the_free_cores_up_to_the_caller_s_setting(monkeypatch, free):
    monkeypatch.setattr(threads, "free_cores", lambda: free)
    Watch.seen.clear()
    x = rows(500)
    network = nn.Sequential(nn.Linear(4, 2000), Watch(), nn.Linear(2000, 2))
    EnsembleClassifier(network=network, num_members=2, epochs=1, batch_size=256).fit(x, x[:, 0] > 0)
    assert min(free, 2) in Watch.seen


@pytest.mark.parametrize(("size", "expected"), [(100, 1), (200_000, 2)])
def test_select(monkeypatch, size, expected):
    monkeypatch.setattr(threads, "free_cores", lambda: 2)
    seen = []

    def build(problem):
        seen.append(torch.get_num_threads())
        return Score(torch.arange(float(len(problem.pool))), problem.pool)

    select(rows(size), budget=2, strategy=Strategy(build, TopB(), "the last ones"))
    assert seen == [expected]


def test_the_setting_is_kept_after_an_error():
    with pytest.raises(ValueError, match="no rows"), threads.enough_threads(0):
        raise ValueError("no rows")


def test_blocks_inside_each_other(monkeypatch):
    monkeypatch.setattr(threads, "free_cores", lambda: 2)
    with threads.enough_threads(0):
        with threads.enough_threads(1e9):
            assert torch.get_num_threads() == 2  # the caller's, not the one of the block around
        assert torch.get_num_threads() == 1


def test_load_that_comes_and_goes(monkeypatch):
    free = 2
    monkeypatch.setattr(threads, "free_cores", lambda: free)
    monkeypatch.setattr(threads, "INTERVAL", 0.0)
    with threads.enough_threads(1e9):
        for free, expected in ((1, 1), (2, 2)):  # noqa: B007
            threads.count_again()
            assert torch.get_num_threads() == expected
    threads.count_again()  # of no effect outside


@pytest.mark.skipif(not Path("/proc/loadavg").exists(), reason="the system does not count running threads")
def test_cores_that_others_hold_are_not_free():
    loop = "print(flush=True)\nwhile True: pass"
    command = [sys.executable, "-c", loop]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(os.cpu_count())]
    try:
        for process in others:
            process.stdout.read(1)  # it runs
        assert threads.free_cores() == 1
    finally:
        for process in others:
            process.kill()
            process.communicate()
