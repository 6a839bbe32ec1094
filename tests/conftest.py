"""What tests share."""

import os

# Tests run side by side, one process a core. Threads within each, or within the programs that it starts,
# would only wait for each other. Libraries read this variable when they are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

from coresift.search.ray import start_on_this_machine

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray of this process's own: one that joined another's would be ended together with that."""
    ray = pytest.importorskip("ray", reason="needs the ray package")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        start_on_this_machine(num_cpus=2)
        yield
        ray.shutdown()


@pytest.fixture
def run_interpreted(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Runs the test's file as a script, with kernels in Triton's interpreter instead of on a GPU: Triton
    decides on that when it is imported, hence a process of its own.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("the interpreter is tested where `make install` installs Triton")

    def run() -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        outcome = subprocess.run(
            [sys.executable, "-W", "error", str(request.path)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert outcome.returncode == 0, outcome.stderr

    return run
