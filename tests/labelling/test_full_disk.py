"""On a full disk a command ends with one line and a code of its own, and what was there stays whole."""

import os
import subprocess

import numpy as np
import pytest
from typer.testing import CliRunner

from coresift.cli import app
from coresift.labelling.project import Project

NO_SPACE = 5


def run(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return done.exit_code, done.output


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.name != "posix" or os.geteuid() != 0 or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk, left):
    """Leave so many kilobytes free."""
    about = os.statvfs(disk)
    (disk / "fill").unlink(missing_ok=True)
    about = os.statvfs(disk)
    (disk / "fill").write_bytes(bytes(about.f_bavail * about.f_bsize - left * 1024))


def test_a_full_disk(small_disk, tmp_path):
    rows = np.random.default_rng(0).normal(size=(500, 2))
    np.save(tmp_path / "pool.npy", rows)
    labels = "".join(f"{row},{'yes' if a > 0 else 'no'}\n" for row, (a, _) in enumerate(rows))
    (tmp_path / "labels.csv").write_text("id,kind\n" + labels)
    folder = small_disk / "project"
    init = "init", folder, "--pool", tmp_path / "pool.npy", "--target", "kind", "--task", "classification"
    for left in (0, 12, 40):
        fill(small_disk, left)
        code, said = run(*init)
        assert code == NO_SPACE and len(said.splitlines()) == 1, said
    fill(small_disk, 900)
    assert run(*init)[0] == 0
    commands = {
        ("select", folder, "--batch-size", 5, "--out", small_disk / "batch.csv"): (0, 12),
        ("ingest", folder, tmp_path / "labels.csv"): (0, 12, 40),
        ("export", folder, small_disk / "all.csv"): (0, 12),
        ("export", folder, small_disk / "all.parquet"): (0, 4),
        ("report", folder): (0, 12),
        ("repair", folder, small_disk / "saved"): (0, 4),
    }
    for words, levels in commands.items():
        for left in levels:
            fill(small_disk, left)
            code, said = run(*words)
            assert code == NO_SPACE and len(said.splitlines()) == 1, said
            assert "No space left on device" in said or "the disk is full" in said
            assert run("status", folder)[0] == 0
            with Project(folder) as opened:
                assert opened.ledger.damage() is None
                assert opened.pending() == [] and opened.labels_and_values()[0] == []
    (small_disk / "fill").unlink()
    assert all(run(*words)[0] == 0 for words in commands)


@pytest.mark.parametrize("index", [True, False])
def test_a_ledger_with_a_log_is_read_on_a_full_disk(small_disk, index):
    from coresift.labelling.ledger import Ledger
    from coresift.labelling.records import Answer

    path = small_disk / "ledger.sqlite"
    Ledger.create(path, [str(row) for row in range(100)], {}, {}).close()
    if (child := os.fork()) == 0:  # a program that ends without closing it, as one that is killed does
        Ledger(path).add_answers([Answer("5", "cat")], "a.csv")
        os._exit(0)
    os.waitpid(child, 0)
    assert (small_disk / "ledger.sqlite-wal").stat().st_size > 0
    if not index:
        (small_disk / "ledger.sqlite-shm").unlink()
    fill(small_disk, 0)
    with Ledger(path) as opened:
        assert opened.counts()["labelled"] == 1
        with pytest.raises(Exception, match="the disk is full"):
            opened.add_answers([Answer("6", "cat")], "b.csv")
    with Ledger(path) as opened:
        assert opened.counts()["labelled"] == 1
