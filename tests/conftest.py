"""What tests share."""

import os

# Tests run side by side, one process a core. Threads within each, or within the programs that it starts,
# would only wait for each other. Libraries read this variable when they are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import functools
import multiprocessing
import platform
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.testing

from coresift.cli import app
from coresift.search.ray import start_on_this_machine

# Commands that tests kill are forked from a process that has imported everything: a kill then hits the work,
# not the imports.
forkserver = multiprocessing.get_context("forkserver")
forkserver.set_forkserver_preload(
    [
        __name__,
        "coresift.labelling.project",
        "coresift.labelling.exporting",
        "coresift.bench.runner",
        "pydantic",  # by typer, for any command
        "typer._adapters",
    ]
)
EXAMPLES = Path(__file__).parent.parent / "examples"

torch.set_num_threads(1)
# The command line is built once, and not for each command that a test runs.
typer.testing._get_command = functools.cache(typer.testing._get_command)


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A Ray of this process's own: one that joined another's would be ended together with that.

    One for all tests: its start takes seconds.
    """
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
        path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
        outcome = subprocess.run(
            [sys.executable, "-W", "error", str(request.path)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert outcome.returncode == 0, outcome.stderr

    return run


def run_command(words: tuple[str, ...], said: Path, before: str) -> None:
    """Run some code, and then the command line, with what it says in a file."""
    exec(before, {})
    with said.open("w", encoding="utf-8") as file:
        sys.stdout, sys.stderr = file, file
        try:
            sys.exit(app(words, standalone_mode=False) or 0)
        finally:
            file.flush()
            os.fsync(file.fileno())


@pytest.fixture(scope="session")
def start() -> Callable[..., multiprocessing.process.BaseProcess]:
    """Starts a command in a process of its own: ``start(said, *words)``."""

    def start_command(said: Path, *words: object, before: str = "") -> multiprocessing.process.BaseProcess:
        process = forkserver.Process(target=run_command, args=(tuple(map(str, words)), said, before))
        process.start()
        return process

    return start_command


@pytest.fixture
def run_example(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs an example as a script, and returns what it says. The commands that it starts run in this process,
    too: each would take seconds to import torch and scikit-learn.
    """
    run_process = subprocess.run

    def run_words(words: list[str], **options: Any) -> Any:
        if words[:3] != [sys.executable, "-m", "coresift"]:
            return run_process(words, **options)
        outcome = typer.testing.CliRunner().invoke(app, words[3:], catch_exceptions=False)
        print(outcome.output)
        assert outcome.exit_code == 0, outcome.output
        return outcome

    def run(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        monkeypatch.setattr(subprocess, "run", run_words)
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capfd.readouterr().out

    return run
