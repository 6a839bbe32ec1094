"""Small work uses one thread, large work the free cores, and the caller's setting is kept."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from coresift import select, threads
from coresift.estimators import EnsembleClassifier, NeuralLinearRegressor
from coresift.limits import RECOUNT_SECONDS
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
    with threads.enough_threads(1e9):
        for free, expected in ((1, 1), (2, 2)):  # noqa: B007
            threads.count_again(interval=0.0)
            assert torch.get_num_threads() == expected
    threads.count_again()  # of no effect outside


def test_a_program_that_runs_for_a_moment_holds_no_core(monkeypatch):
    looks = iter([1, 1, 0])
    monkeypatch.setattr(threads, "_running_elsewhere", lambda: next(looks))
    assert threads.free_cores() == len(threads.usable_cores())


def test_own_threads_that_go_to_sleep_meanwhile_are_not_taken_for_others(monkeypatch):
    own = iter([3, 1])
    monkeypatch.setattr(threads, "_running_here", lambda: next(own))
    monkeypatch.setattr(threads.Path, "read_text", lambda _: "0.20 0.18 0.12 3/80 11206")
    assert threads._running_elsewhere() == 0


@pytest.mark.parametrize(("share", "expected"), [(0.2, 2), (1.1, 1), (2.0, 1)])
def test_of_some_cores_only_those_count_that_others_keep_busy(monkeypatch, share, expected):
    monkeypatch.setattr(threads, "usable_cores", lambda: {0, 1})
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 16)
    monkeypatch.setattr(threads, "_running_elsewhere", lambda: 9)
    monkeypatch.setattr(threads, "_others", others := threads._Others())
    others._before = threads._Look({0, 1}, time.monotonic() - 1, others._before.others)
    monkeypatch.setattr(others, "_look", lambda cores: before_and(others._before, share))
    assert threads.free_cores() == expected


def before_and(before, share):
    return threads._Look(before.cores, before.time + 1, before.others + share)


def test_time_of_cores_is_told_apart(monkeypatch):
    text = "cpu 900 0 0 0 0 0 0 0 0 0\ncpu0 100 20 3 7 7 4 5 7 0 0\ncpu1 300 0 0 0 0 0 0 0 0 0\nintr 5 0"
    monkeypatch.setattr(threads.Path, "read_text", lambda _: text)
    ticks = threads.os.sysconf("SC_CLK_TCK")
    assert threads._busy_seconds({0}) == 132 / ticks
    assert threads._busy_seconds({0, 1}) == 432 / ticks


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not tie processes to cores")
def test_cores_that_this_process_may_not_use_are_not_free():
    code = "import os; os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])\n"
    code += "from coresift.threads import free_cores, usable_cores; print(len(usable_cores()), free_cores())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1 1\n"


@pytest.mark.skipif(not Path("/proc/loadavg").exists(), reason="the system does not count running threads")
@pytest.mark.parametrize("more", [0, 8], ids=["of all", "of some cores"])
def test_cores_that_others_hold_are_not_free(monkeypatch, more):
    monkeypatch.setattr(threads.os, "cpu_count", lambda: len(threads.usable_cores()) + more)
    loop = "print(flush=True)\nwhile True: pass"
    command = [sys.executable, "-c", loop]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in threads.usable_cores()]
    try:
        for process in others:
            process.stdout.read(1)  # it runs
        until = time.monotonic() + 5
        while threads.free_cores() > 1 and time.monotonic() < until:
            time.sleep(RECOUNT_SECONDS)  # how busy cores are is known after a while
        assert threads.free_cores() == 1
    finally:
        for process in others:
            process.kill()
            process.communicate()
