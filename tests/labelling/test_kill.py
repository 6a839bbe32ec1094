"""Killed at any moment, a project loses nothing that was reported as done, and the next command goes on."""

import csv
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from coresift.labelling.project import Project


@pytest.fixture(scope="module")
def finish(start):
    """Runs a command to its end, and returns how long that took."""

    def run(said, *words):
        began = time.perf_counter()
        child = start(said, *words)
        child.join(120)
        assert child.exitcode == 0, said.read_text()
        return time.perf_counter() - began

    return run


@pytest.fixture(scope="module")
def fresh(finish, tmp_path_factory):
    """A project with a few labels, and what it is asked."""
    folder = tmp_path_factory.mktemp("killed")
    rng = np.random.default_rng(0)
    with (folder / "pool.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "a", "b", "kind"])
        for number, (a, b) in enumerate(rng.normal(size=(300, 2))):
            writer.writerow([f"item-{number}", a, b, ("yes" if a > 0 else "no") if number < 20 else ""])
    said = folder / "said"
    finish(said, "init", folder / "project", "--pool", folder / "pool.csv", "--target", "kind")
    return folder


def moments(longest, seed, count=12):
    """When to kill a command that takes so long: at random in each of ``count`` equal parts of its run."""
    return 1.1 * longest * (np.arange(count) + np.random.default_rng(seed).random(count)) / count


@pytest.fixture
def kill(start):
    """Starts a command, and kills it at a moment."""

    def run(said, words, moment):
        child = start(said, *words)
        time.sleep(moment)
        child.kill()
        child.join()

    return run


@pytest.fixture
def killed(fresh, kill, tmp_path):
    """Kills a command at a moment, in a copy of the project; returns that, and what the command has said."""

    def run(words, number, moment):
        project, said = tmp_path / f"project-{number}", tmp_path / "said"
        shutil.copytree(fresh / "project", project)
        said.unlink(missing_ok=True)
        kill(said, words(project), moment)
        with Project(project) as opened:
            assert opened.ledger.damage() is None
        return project, said.read_text() if said.exists() else ""

    return run


def test_init_killed(fresh, finish, kill, tmp_path):
    def words(project):
        return "init", project, "--pool", fresh / "pool.csv", "--target", "kind"

    longest, found = finish(tmp_path / "said", *words(tmp_path / "whole")), []
    for number, moment in enumerate(moments(longest, seed=3, count=6)):
        project = tmp_path / f"project-{number}"
        kill(tmp_path / "said", words(project), moment)
        found.append((project / "ledger.sqlite").exists())
        if not found[-1]:
            finish(tmp_path / "said", *words(project))
        with Project(project) as opened:
            assert opened.ledger.damage() is None
            assert (
                len(opened.ledger) == len(opened.features) == 300 and len(opened.labels_and_values()[0]) == 20
            )
    assert False in found


def test_select_killed(fresh, finish, killed, tmp_path):
    def words(project):
        return "select", project, "--batch-size", 10, "--out", tmp_path / "batch.csv"

    whole = tmp_path / "whole"
    shutil.copytree(fresh / "project", whole)
    longest = finish(tmp_path / "said", *words(whole))
    with Project(whole) as opened:
        expected = [item.id for item in opened.pending()]
    assert len(expected) == 10
    found = []
    for number, moment in enumerate(moments(longest, seed=1)):
        project, said = killed(words, number, moment)
        with Project(project) as opened:
            rounds = opened.ledger.rounds()
            found.append(len(rounds))
            assert len(rounds) == 1 if "round 1" in said else len(rounds) <= 1
        finish(tmp_path / "said", *words(project))
        with Project(project) as opened:
            assert len(opened.ledger.rounds()) == 1
            assert [item.id for item in opened.pending()] == expected
        with (tmp_path / "batch.csv").open(newline="", encoding="utf-8-sig") as file:
            assert [row["id"] for row in csv.DictReader(file)] == expected
    assert 0 in found  # else no kill hit anything


def test_ingest_killed(fresh, finish, killed, tmp_path):
    labels = {f"item-{number}": "yes" if number % 2 else "no" for number in range(100, 200)}
    path = Path(tmp_path / "labelled.csv")
    path.write_text("id,kind\n" + "".join(f"{one},{label}\n" for one, label in labels.items()))

    def words(project):
        return "ingest", project, path

    def known(project):
        with Project(project) as opened:
            found, _ = opened.labels_and_values()
            ids = opened.ledger.ids([one.position for one in found])
            assert len(set(ids)) == len(ids)
            events = opened.ledger.rows("SELECT COUNT(*) FROM events WHERE kind = 'labelled'")
            assert events == [(len(ids),)]
            return {id_: one.label for id_, one in zip(ids, found, strict=True) if id_ in labels}

    whole = tmp_path / "whole"
    shutil.copytree(fresh / "project", whole)
    longest = finish(tmp_path / "said", *words(whole))
    assert known(whole) == labels
    found = []
    for number, moment in enumerate(moments(longest, seed=2)):
        project, said = killed(words, number, moment)
        before = known(project)
        found.append(len(before))
        assert before in ({}, labels)
        if "new labels" in said:
            assert before == labels
        finish(tmp_path / "said", *words(project))
        assert known(project) == labels
    assert 0 in found


def test_two_at_once(fresh, start, tmp_path):
    project = tmp_path / "project"
    shutil.copytree(fresh / "project", project)
    said = [tmp_path / f"said-{number}" for number in range(3)]
    words = ("select", project, "--batch-size", 10, "--wait", 60)
    children = [start(one, *words) for one in said]
    for child, one in zip(children, said, strict=True):
        child.join(120)
        assert child.exitcode == 0, one.read_text()
    with Project(project) as opened:
        assert len(opened.ledger.rounds()) == 1 and len(opened.pending()) == 10
    assert sum("the same batch again" in one.read_text() for one in said) == 2


def test_the_second_is_told(fresh, start, tmp_path):
    project = tmp_path / "project"
    shutil.copytree(fresh / "project", project)
    with Project(project) as opened, opened.writing():
        child = start(tmp_path / "said", "select", project, "--batch-size", 10)
        child.join(60)
        assert child.exitcode == 3
    assert "another program is writing to" in (tmp_path / "said").read_text()
    with Project(project) as opened:
        assert opened.ledger.rounds() == []
