"""Suites: files, tables, runs and the page, in miniature."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from coresift.bench.data.suite import SUITE, SuiteTable, load_suite_table
from coresift.bench.store import read
from coresift.bench.suite_report import groups
from coresift.bench.suites import Suite
from coresift.bench.summary import Summary
from coresift.cli import app
from coresift.errors import InputError

MINIATURE = """
seeds = 2
first = 10
batch = 10
budget = 20

[regression]
judged = true
data = ["lines.csv", "waves.csv"]
methods = ["random", "predictive-lcmd", "k-center"]
models.forest = {kind = "forest", num_trees = 8}

[classification]
per_class = 2
data = ["kinds.csv"]
methods = ["random", "margin", "acs-fw", "oracle"]
models.forest = {kind = "forest", num_trees = 8}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables and a suite, which was run in two processes."""
    folder = tmp_path_factory.mktemp("suite")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_tables()
        call("run", "mine.toml", "--workers", "2")
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of these."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_tables() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3))
    targets = {"lines": x[:, 0] + x[:, 1], "waves": np.sin(3 * x[:, 0])}
    for name, y in targets.items():
        np.savetxt(f"{name}.csv", np.column_stack([x, y]), delimiter=",", header="a,b,c,y", comments="")
    kinds = np.array(["few", "many", "some"])[np.digitize(x[:, 0], [-1.2, 0.5])]
    rows = [",".join([*map(str, row), kind]) for row, kind in zip(x.tolist(), kinds, strict=True)]
    Path("kinds.csv").write_text("\n".join(["a,b,c,kind", *rows]) + "\n")
    Path("mine.toml").write_text(MINIATURE)


def call(*words: str) -> str:
    result = CliRunner().invoke(app, ["experiment", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_run_and_report(folder: Path) -> None:
    """One command runs all parts in two processes, and runs nothing twice; another makes the page."""
    records, _ = read(folder / "results" / "mine" / "regression-forest")
    assert len(records) == 2 * 3 * 2 and all(record.done for record in records)
    assert {*records[0].rounds[-1].judged} == {"extra trees", "gaussian process"}
    assert records[0].rounds[0].judged is None
    classes, _ = read(folder / "results" / "mine" / "classification-forest")
    assert {record.rounds[0].labels for record in classes} == {10}
    before = (folder / "results/mine/classification-forest/kinds/margin.jsonl").read_bytes()
    call("run", "mine.toml")
    assert (folder / "results/mine/classification-forest/kinds/margin.jsonl").read_bytes() == before

    call("report", "results/mine")
    page = (folder / "results/mine/report.md").read_text()
    assert "the default, predictive-lcmd, is significantly worse than random on" in page
    assert len(page.splitlines()) < 80
    html = (folder / "results/mine/report.html").read_text()
    assert "kinds" in html and "waves" in html
    assert "of the oracle's gain" in page.split("## Classification")[1]
    # The page can be made from the packed rounds alone.
    for log in folder.glob("results/mine/*/*/*.jsonl"):
        log.unlink()
    call("report", "results/mine")
    assert (folder / "results/mine/report.md").read_text() == page


def test_summary_takes_seeds_that_all_methods_have(folder: Path) -> None:
    records, _ = read(folder / "results" / "mine" / "regression-forest")
    lines = [record for record in records if record.data == "lines"]
    kept = [record for record in lines if (record.method, record.seed) != ("k-center", 1)]
    summary = Summary.of(kept)
    assert {errors.shape for errors in summary.errors["lines"].values()} == {(1, 3)}
    assert summary.gain("random").mean == pytest.approx(1)


def test_the_oracle_is_no_method_to_compare(folder: Path) -> None:
    records, _ = read(folder / "results" / "mine" / "classification-forest")
    summary = Summary.of(records)
    assert "oracle" not in summary.methods and "oracle" not in summary.counts("random")
    random, best = (summary.areas["kinds"][name].mean() for name in ("random", "oracle"))
    share = summary.attained("margin")
    assert share == pytest.approx((random - summary.areas["kinds"]["margin"].mean()) / (random - best))


def test_an_oracle_that_was_stopped_continues(folder: Path) -> None:
    log = folder / "results/mine/classification-forest/kinds/oracle.jsonl"
    lines = log.read_text().splitlines()
    log.write_text("\n".join(lines[:3]) + "\n")
    call("run", "mine.toml", "--methods", "oracle")
    chosen = [
        [json.loads(line).get("chosen") for line in text] for text in (lines, log.read_text().splitlines())
    ]
    assert sorted(map(str, chosen[0])) == sorted(map(str, chosen[1]))


def test_first_labels_have_each_class(folder: Path) -> None:
    suite = Suite.load("mine.toml")
    simulation = suite.parts["classification-forest"].simulation("kinds", None, "cpu", 1)
    for seed in range(5):
        rows = list(
            simulation.begin(next(iter(suite.parts["classification-forest"].methods.values())), seed).labelled
        )
        assert min(np.unique(simulation.y[rows], return_counts=True)[1]) >= 2


@pytest.mark.parametrize("name", ["quick", "tables", "large", "text", "oracle"])
def test_suites_that_come_with_the_package(name: str) -> None:
    suite = Suite.load(f"suite:{name}")
    for part in suite.parts.values():
        assert "random" in part.methods and "predictive-lcmd" in part.methods


def test_unknown_words_are_told() -> None:
    with pytest.raises(InputError, match="did you mean 'quick'"):
        Suite.load("suite:quik")
    with pytest.raises(InputError, match="--data: 'no3' is not known"):
        Suite.load("suite:quick").only(["no3"])


def test_official_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PMLB has a header and a column `target`; the other collection has neither."""
    monkeypatch.setitem(SUITE, "tiny", SuiteTable("classification", (3, 2), "pmlb"))
    monkeypatch.setitem(SUITE, "plain", SuiteTable("regression", (3, 1), "uci"))
    with gzip.open(tmp_path / "123_Tiny.tsv.gz", "wt") as file:
        file.write("a\tsame\ttarget\tb\n1\t7\t2\t0.5\n2\t7\t5\t1.5\n3\t7\t2\t2.5\n4\t7\t2\t\n")
    (tmp_path / "plain").mkdir()
    with gzip.open(tmp_path / "plain" / "data.csv.gz", "wt") as file:
        file.write("1,-0.5\n2,0.5\n3,0.0\n")
    table = load_suite_table("tiny", tmp_path)
    assert table.x.tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]
    assert table.y.tolist() == [0, 1, 0] and table.classes == ("2", "5")
    assert load_suite_table("plain", tmp_path).y.tolist() == [-0.5, 0.5, 0.0]
    with pytest.raises(
        InputError, match=r"564_fried.tsv.gz.*Get it from https://github.com/EpistasisLab/pmlb"
    ):
        load_suite_table("fried", tmp_path)


def test_groups_of_ranks() -> None:
    assert groups([1.0, 2.0, 3.0], 5.0) == [(0, 2)]
    assert groups([1.0, 4.0], 1.0) == []


WORKER = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from coresift.bench.suites import _end_with_parent

if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_end_with_parent)
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 600).result()
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for a process in /proc")
def test_workers_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    """A worker that goes on would keep the logs locked, and the next run could not continue them."""
    script = tmp_path / "run.py"
    script.write_text(WORKER)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        worker = Path("/proc", run.stdout.readline().strip())
        assert worker.is_dir()
        run.kill()
    until = time.monotonic() + 30
    while worker.is_dir() and time.monotonic() < until:
        time.sleep(0.05)
    assert not worker.is_dir()
