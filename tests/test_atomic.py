"""Files are written whole or not at all."""

import os
import threading

import pytest
from typer.testing import CliRunner

from coresift.atomic import replacing, write_text
from coresift.bench.store import Log, pack
from coresift.cli import app


def test_the_new_file_has_the_mode_of_any_other(tmp_path):
    write_text(tmp_path / "a.txt", "é")
    (tmp_path / "b.txt").touch()
    assert (tmp_path / "a.txt").read_bytes() == "é".encode()
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "b.txt").stat().st_mode


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path):
    path = tmp_path / "private.csv"
    path.touch(0o600)
    write_text(path, "mine")
    assert path.read_text() == "mine" and path.stat().st_mode & 0o777 == 0o600


def test_after_an_error_the_old_file_is_there_alone(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def stopped():
        with replacing(path) as file:
            file.write(b"new")
            file.flush()
            assert path.read_text() == "old"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_that_cannot_be_taken(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError), replacing(tmp_path / "folder") as file:
        file.write(b"new")
    with pytest.raises(OSError, match="too long"), replacing(tmp_path / ("x" * 300)) as file:
        file.write(b"new")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_two_writers_share_no_file(tmp_path):
    path, both = tmp_path / "a.txt", threading.Barrier(2)

    def write(text):
        with replacing(path) as file:
            both.wait()  # both files are open
            for letter in text:
                file.write(letter.encode() * 1000)
                os.fsync(file.fileno())

    writers = [threading.Thread(target=write, args=(letter * 20,)) for letter in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert path.read_text() in ("a" * 20_000, "b" * 20_000)
    assert list(tmp_path.iterdir()) == [path]


def test_no_writer_of_a_project_follows_a_planted_link(tmp_path):
    """In a folder that others may write to, a link waits under a name that can be foreseen."""
    victim, folder, out = tmp_path / "victim", tmp_path / "project", tmp_path / "out"
    victim.write_text("mine")
    rows = "".join(f"item-{row},{row},{'' if row > 9 else row % 2}\n" for row in range(20))
    (tmp_path / "pool.csv").write_text(f"id,a,kind\n{rows}")
    names = ["ledger.sqlite", "features.npy", "report.html", "all.csv", "all.parquet", "batch.csv"]
    for where in (folder, out):
        where.mkdir()
        for name in names:
            for planted in (f".{name}.new", f"{name}.new", f".{name}.partial", f".{name}.{os.getpid()}.new"):
                (where / planted).symlink_to(victim)

    for words in (
        ["init", folder, "--pool", tmp_path / "pool.csv", "--target", "kind"],
        ["select", folder, "--batch-size", "2", "--out", out / "batch.csv"],
        ["report", folder, "--out", out / "report.html"],
        ["export", folder, out / "all.csv"],
        ["export", folder, out / "all.parquet"],
    ):
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.output + repr(done.exception)
    assert victim.read_text() == "mine"
    assert {path.name for path in out.iterdir() if not path.is_symlink()} == set(names[2:])


def test_no_writer_of_experiments_follows_a_planted_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("random.new", "rounds.new"):
        (tmp_path / name).symlink_to(victim)
    log = Log(tmp_path / "random.jsonl")
    log.open({})
    pack([], {}, tmp_path / "rounds.parquet")
    assert victim.read_text() == "mine"
    assert log.settings() == {}
