"""A labelling project from its first command to its last, as people run it."""

import csv
import json
import os
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from coresift import select
from coresift.cli import app
from coresift.labelling import storage
from coresift.labelling.encoders import write_features
from coresift.labelling.exporting import write_export, write_labels
from coresift.labelling.ledger import Ledger
from coresift.labelling.project import Project

N = 200


def pool(path, known=20, regression=False, **more):
    """A small table; the label is whether a is above zero, or 3 a."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, N))
    truth = [repr(float(3 * x)) if regression else ("yes" if x > 0 else "no") for x in a]
    given = [label if row < known else None for row, label in enumerate(truth)]
    if regression:
        given = [None if label is None else float(label) for label in given]
    columns = {"id": [f"item-{row}" for row in range(N)], "a": a, "b": b, **more}
    pa.parquet.write_table(pa.table({**columns, "kind": pa.array(given)}), path)
    return dict(zip(columns["id"], truth, strict=True))


def run(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.output


def say(*words):
    return json.loads(run(*words, "--json"))


def answer(batch, truth, out, skip=()):
    """Fill a batch in as an annotator does."""
    with batch.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["id"] in skip:
            row["skip"] = "x"
        else:
            row["kind"] = truth[row["id"]]
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def project(tmp_path):
    """A project and its true labels."""
    truth = pool(
        tmp_path / "pool.parquet", cost=np.arange(N) % 3 + 1.0, group=[f"g{row % 5}" for row in range(N)]
    )
    folder = tmp_path / "project"
    run(
        "init",
        folder,
        "--pool",
        tmp_path / "pool.parquet",
        "--target",
        "kind",
        "--cost",
        "cost",
        "--group",
        "group",
    )
    return folder, truth


def test_the_whole_loop(project, tmp_path):
    folder, truth = project
    batch, answers = tmp_path / "batch.csv", tmp_path / "labelled.csv"
    seen = set()
    for number in (1, 2):
        made = say("select", folder, "--batch-size", 8, "--out", batch)
        ids = [one["id"] for one in made["batch"]]
        assert made["number"] == number and len(set(ids)) == 8 and not seen & set(ids) and not made["again"]
        assert not {int(one.removeprefix("item-")) for one in ids} & set(range(20))
        assert [one["rank"] for one in made["batch"]] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert sum(one["nearest"] for one in made["batch"]) == pytest.approx(N, rel=0.01)
        seen |= set(ids)
        answer(batch, truth, answers, skip=ids[:1])
        taken = say("ingest", folder, answers)
        assert (taken["new"], taken["skipped"], taken["counts"]["pending"]) == (7, 1, 0)
        assert say("ingest", folder, answers)["same"] == 8
    counts = say("status", folder)["counts"]
    assert counts == {"labelled": 34, "pending": 0, "unlabelled": 164, "skipped": 2, "excluded": 0}
    assert "34 labelled" in run("status", folder)
    facts = say("export", folder, tmp_path / "all.parquet")
    assert (facts["labelled"], facts["predicted"]) == (34, 166)
    rows = pa.parquet.read_table(tmp_path / "all.parquet").to_pylist()
    assert [row["id"] for row in rows] == list(truth)
    assert all(row["kind"] == truth[row["id"]] for row in rows if row["state"] == "labelled")
    rest = [row for row in rows if row["state"] != "labelled"]
    assert np.mean([row["predicted"] == truth[row["id"]] for row in rest]) > 0.8
    assert all(row["kind"] is None for row in rest)
    for row in rest:
        each = {name: row[f"probability_{name}"] for name in ("no", "yes")}
        assert sum(each.values()) == pytest.approx(1) and row["probability"] == each[row["predicted"]] >= 0.5
    labelled = [row for row in rows if row["state"] == "labelled"]
    assert all(row["probability"] is None and row["probability_yes"] is None for row in labelled)
    assert [[row["round"] for row in labelled].count(number) for number in (0, 1, 2)] == [20, 7, 7]
    assert all(row["round"] is None for row in rest)
    run("report", folder)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "item-3" in page and "predictive-lcmd" in page
    (label, probability), *_ = made["notes"]["predicted"]
    assert f"predicted {label} ({probability:.0%})" in page


def test_a_batch_keeps_the_weights_and_residuals_of_its_selector(project, tmp_path):
    folder, _ = project
    made = say("select", folder, "--batch-size", 6, "--strategy", "acs-fw")
    with Project(folder) as opened:
        kept = opened.ledger.rounds()[-1]
        (cold,) = opened.ledger.rounds()
        labels, _ = opened.labels_and_values()
        known = [one.position for one in labels]
        rest = np.setdiff1d(np.arange(N), known)
        batch = select(
            opened.rows(rest),
            budget=6,
            strategy="acs-fw",
            posterior=opened.fit().posterior_,
            labelled=opened.rows(known),
            seed=cold.seed,
        )
    assert rest[batch.index].tolist() == [one.position for one in kept.batch]
    np.testing.assert_allclose([one.weight for one in kept.batch], batch.weights, rtol=1e-5)
    np.testing.assert_allclose(kept.residuals, batch.residuals, rtol=1e-5)
    assert [one["weight"] for one in made["batch"]] == [one.weight for one in kept.batch]
    run("report", folder)
    # The default spreads its batch, and weighs nothing.
    default = say("select", folder, "--batch-size", 6, "--more")["batch"]
    assert all(one["weight"] is None and one["nearest"] > 0 for one in default)


def test_numbers(tmp_path):
    truth = pool(tmp_path / "pool.parquet", known=30, regression=True)
    folder, batch = tmp_path / "project", tmp_path / "batch.csv"
    assert (
        say("init", folder, "--pool", tmp_path / "pool.parquet", "--target", "kind")["task"] == "regression"
    )
    say("select", folder, "--batch-size", 10, "--out", batch)
    answer(batch, truth, batch)
    assert say("ingest", folder, batch)["new"] == 10
    run("export", folder, tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    errors = [float(row["predicted"]) - float(truth[row["id"]]) for row in rows if row["predicted"]]
    assert len(errors) == N - 40 and np.sqrt(np.mean(np.square(errors))) < 1.0
    run("report", folder)


def test_asked_twice_it_answers_the_same(project, tmp_path):
    folder, truth = project
    first = say("select", folder, "--batch-size", 5, "--out", tmp_path / "one.csv")
    second = say("select", folder, "--batch-size", 5, "--out", tmp_path / "two.csv")
    assert second["again"] and second["batch"] == first["batch"]
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    third = say("select", folder, "--batch-size", 5, "--more")
    assert third["number"] == 2 and not {one["id"] for one in third["batch"]} & {
        one["id"] for one in first["batch"]
    }
    # Something came in: a new round, around what is still out.
    answer(tmp_path / "one.csv", truth, tmp_path / "labelled.csv")
    say("ingest", folder, tmp_path / "labelled.csv")
    fourth = say("select", folder, "--batch-size", 5)
    assert fourth["number"] == 3 and not {one["id"] for one in fourth["batch"]} & {
        one["id"] for one in third["batch"]
    }


def test_another_batch_is_not_chosen_by_accident(project, tmp_path):
    folder, truth = project
    batch = tmp_path / "batch.csv"
    first = say("select", folder, "--batch-size", 20, "--out", batch)["batch"]
    written = batch.read_bytes()
    refused = run("select", folder, "--batch-size", 5, "--out", batch, code=2)
    assert "20 items are pending already" in refused and "--more" in refused and "--replace" in refused
    assert batch.read_bytes() == written and say("status", folder)["counts"]["pending"] == 20
    assert "say one" in run("select", folder, "--batch-size", 5, "--more", "--replace", code=2)
    # Once answers came in, what is left may stay pending.
    with batch.open(encoding="utf-8-sig") as file:
        head = "".join(next(file) for _ in range(4))
    (tmp_path / "some.csv").write_text(head)
    answer(tmp_path / "some.csv", truth, tmp_path / "some.csv")
    assert say("ingest", folder, tmp_path / "some.csv")["new"] == 3
    assert "still pending from earlier batches: 17" in run("select", folder, "--batch-size", 5)
    assert say("pending", folder)["pending"] == 22 and len(first) == 20


@pytest.mark.parametrize("known", [5, 20])  # without a model, and with one
def test_a_withdrawn_batch_leaves_no_trace_in_the_choice(tmp_path, known):
    pool(tmp_path / "pool.parquet", known)
    folder, batch = tmp_path / "project", tmp_path / "batch.csv"
    run("init", folder, "--pool", tmp_path / "pool.parquet", "--target", "kind")
    words = "select", folder, "--batch-size", 6, "--strategy", "random", "--out", batch
    first = say(*words)["batch"]
    run("reopen", folder, f"@{batch}")
    second = say(*words)
    assert second["batch"] == first and second["number"] == 2 and not second["again"]
    # Another size in its place, and back; asked the same again, --replace does nothing.
    smaller = say("select", folder, "--batch-size", 4, "--replace", "--out", batch)
    assert len(smaller["batch"]) == 4 and say("status", folder)["counts"]["pending"] == 4
    assert say("select", folder, "--batch-size", 4, "--replace")["again"]
    assert say(*words, "--replace")["batch"] == first
    rounds = say("status", folder)["rounds"]
    assert [(one["items"], one["pending"], one["withdrawn"]) for one in rounds] == [
        (6, 0, 6),
        (6, 0, 6),
        (4, 0, 4),
        (6, 6, 0),
    ]


def test_a_withdrawn_item_may_be_asked_for_at_once(project):
    folder, _ = project
    first = say("select", folder, "--batch-size", 4)["batch"]
    words = "--must-include", first[3]["id"], "--exclude", first[0]["id"]
    second = say("select", folder, "--batch-size", 3, "--replace", *words)["batch"]
    assert second[0]["id"] == first[3]["id"] and first[0]["id"] not in {one["id"] for one in second}
    assert say("status", folder)["counts"]["excluded"] == 1


def test_the_same_project_chooses_the_same(tmp_path):
    pool(tmp_path / "pool.parquet")
    batches = []
    for name in ("one", "two"):
        run("init", tmp_path / name, "--pool", tmp_path / "pool.parquet", "--target", "kind")
        batches.append(say("select", tmp_path / name, "--batch-size", 6)["batch"])
    assert batches[0] == batches[1]


def test_filled_in_answers_are_not_written_over(project, tmp_path):
    folder, truth = project
    batch = tmp_path / "batch.csv"
    run("select", folder, "--batch-size", 5, "--out", batch)
    answer(batch, truth, batch)
    assert "has answers in it" in run("select", folder, "--batch-size", 5, "--out", batch, code=2)
    run("ingest", folder, batch)
    run("select", folder, "--batch-size", 5, "--out", batch)
    assert "is the pool" in run(
        "select", folder, "--batch-size", 5, "--out", tmp_path / "pool.parquet", code=2
    )


def test_a_broken_file_changes_nothing(project, tmp_path):
    folder, _ = project
    say("select", folder, "--batch-size", 5)
    before = say("status", folder)
    for place, text in enumerate(
        ["id,kind\nitem-50,yes\nnobody,no\n", "id,kind\nitem-50,yes\nitem-50,no\n", "\0\1"]
    ):
        path = tmp_path / f"{place}.csv"
        path.write_text(text)
        assert run("ingest", folder, path, code=2).count("\n") == 1
        assert say("status", folder) == before
    path.write_text("id,kind\nitem-50,yes\n")
    assert say("ingest", folder, path)["new"] == 1


def test_a_pool_that_changed_is_refused(project, tmp_path):
    folder, _ = project
    path = tmp_path / "pool.parquet"
    table = pa.parquet.read_table(path)
    os.utime(path)  # touched, but the same
    run("select", folder, "--batch-size", 2, "--out", tmp_path / "one.csv")
    pa.parquet.write_table(table.slice(1), path)
    for words in (
        ["select", folder, "--batch-size", 3, "--out", tmp_path / "two.csv"],
        ["pending", folder, "--out", tmp_path / "two.csv"],
        ["report", folder],
    ):
        text = run(*words, code=2)
        assert "has changed since the project began" in text and text.count("\n") == 1
        assert f"coresift export {folder} labels.csv" in text and "--labels labels.csv" in text
    assert say("status", folder)["counts"]["pending"] == 2


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("regression", [False, True])
def test_labels_outlive_the_pool(tmp_path, gone, regression):
    path, folder, out = tmp_path / "pool.parquet", tmp_path / "project", tmp_path / "labels.csv"
    truth = pool(path, known=20, regression=regression)
    run("init", folder, "--pool", path, "--target", "kind")
    given = tmp_path / "given.csv"
    given.write_text(
        f"id,kind,skip,who,at\nitem-50,{truth['item-50']},,ann,2030-01-31T15:00Z\nitem-60,,x,ben,\n"
    )
    run("ingest", folder, given)
    table = pa.parquet.read_table(path)
    path.unlink()
    if not gone:  # without the items of no label, which the labels do not mind
        pa.parquet.write_table(table.slice(0, 100), path)
    text = run("export", folder, out)
    assert ("there is no file" if gone else "has changed") in text and "only the labels are written" in text
    assert "row numbers" not in text
    facts = say("export", folder, tmp_path / "labels.parquet")
    assert (facts["labelled"], facts["predicted"]) == (21, 0) and "only the labels" in facts["warning"]
    assert "coresift init" not in facts["warning"]  # which takes labels from CSV files alone
    rows = as_rows(out)
    assert list(rows[0]) == ["id", "state", "kind", "skip", "who", "at", "round"]
    assert {row["id"]: row["kind"] for row in rows[:-1]} == {
        one: truth[one] for one in [*(f"item-{row}" for row in range(20)), "item-50"]
    }
    assert (rows[-2]["who"], rows[-2]["at"]) == ("ann", "2030-01-31T15:00:00+00:00")
    assert [rows[-1][name] for name in ("id", "state", "kind", "skip", "who")] == [
        "item-60", "skipped", "", "x", "ben",
    ]  # fmt: skip
    # The way out that the errors name.
    new = table.slice(0, 100).drop_columns("kind")
    pa.parquet.write_table(new, tmp_path / "new.parquet")
    task = "regression" if regression else "classification"
    command = f"coresift init NEW --pool POOL --target kind --task {task} --hand-picked --labels {out}"
    assert command in text
    places = {"NEW": tmp_path / "anew", "POOL": tmp_path / "new.parquet"}
    made = say(*(places.get(word, word) for word in shlex.split(command)[1:]))
    assert made["labels"] == 21 and made["task"] == task
    with Project(tmp_path / "anew") as opened:
        assert opened.settings.hand_picked and opened.ledger.counts()["skipped"] == 1


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_labels_alone_are_written_over_nothing(project, tmp_path, ending):
    """An earlier export may be all that is left of the pool."""
    folder, _ = project
    out = tmp_path / f"all.{ending}"
    run("export", folder, out)
    before = out.read_bytes()
    (tmp_path / "pool.parquet").rename(tmp_path / "moved.parquet")
    text = run("export", folder, out, code=2)
    assert "there is no file" in text and f"{out} is there and may hold more" in text
    assert text.count("\n") == 1 and out.read_bytes() == before
    run("export", folder, tmp_path / f"labels.{ending}")


@pytest.mark.parametrize("lost", [False, True])
def test_exports_call_the_ids_what_the_pool_does(tmp_path, lost):
    """Ids of two columns may be alike, and labels that went by the wrong one would all be wrong."""
    path, folder, out = tmp_path / "pool.parquet", tmp_path / "project", tmp_path / "labels.csv"
    truth = pool(path, known=0, sku=[f"item-{N - 1 - row}" for row in range(N)])
    by_sku = {f"item-{N - 1 - row}": truth[f"item-{row}"] for row in range(N)}
    given = tmp_path / "given.csv"
    given.write_text("id,kind\n" + "".join(f"item-{row},{by_sku[f'item-{row}']}\n" for row in range(30)))
    words = "--pool", path, "--target", "kind", "--task", "classification"
    run("init", folder, *words, "--id", "sku", "--labels", given)
    path.rename(tmp_path / "moved.parquet")
    if lost:
        text = run("report", folder, code=2)
        assert "--target kind --task classification --id sku --labels labels.csv" in text
    else:
        (tmp_path / "moved.parquet").rename(path)
    assert ("--id sku --labels" in run("export", folder, out)) == lost
    assert {row["sku"]: row["kind"] for row in as_rows(out) if row["kind"]} == {
        f"item-{row}": by_sku[f"item-{row}"] for row in range(30)
    }
    if lost:
        (tmp_path / "moved.parquet").rename(path)
    assert "no column 'id', only 'sku, state" in run(
        "init", tmp_path / "two", *words, "--labels", out, code=2
    )
    assert say("init", tmp_path / "two", *words, "--id", "sku", "--labels", out)["labels"] == 30
    for one in (folder, tmp_path / "two"):  # the same rows have the same labels
        with Project(one) as opened:
            found = {position: given.label for position, given in opened.ledger.answers().items()}
        assert found == {row: truth[f"item-{row}"] for row in range(N - 30, N)}


def test_exports_go_into_a_smaller_pool(project, tmp_path):
    """It misses items that nobody labelled; those that somebody did are named."""
    folder, _ = project
    run("export", folder, tmp_path / "all.csv")
    table = pa.parquet.read_table(tmp_path / "pool.parquet").drop_columns("kind")
    words = "--target", "kind", "--labels", tmp_path / "all.csv"
    pa.parquet.write_table(table.slice(0, 100), tmp_path / "small.parquet")
    assert say("init", tmp_path / "small", "--pool", tmp_path / "small.parquet", *words)["labels"] == 20
    pa.parquet.write_table(table.slice(3), tmp_path / "less.parquet")
    text = run("init", tmp_path / "less", "--pool", tmp_path / "less.parquet", *words, code=2)
    assert "'item-0' is not in the project, nor are 2 more of 20 answers ('item-1', 'item-2');" in text


def test_an_export_that_was_filled_in_undoes_no_correction(project, tmp_path):
    folder, _ = project
    first, mended = tmp_path / "first.csv", tmp_path / "mended.csv"
    first.write_text("id,kind,skip\nitem-50,yes,\nitem-51,,x\n")
    run("ingest", folder, first)
    run("export", folder, tmp_path / "all.csv")
    mended.write_text("id,kind,who\nitem-50,mended,ben\nitem-51,mended,ben\nitem-0,mended,ben\n")
    run("ingest", folder, mended)
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows[60]["kind"] = "yes"
    with (tmp_path / "filled.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    taken = say("ingest", folder, tmp_path / "filled.csv")
    assert (taken["new"], taken["same"], taken["outdated"]) == (1, 19, 3) and not taken["corrections"]
    assert say("status", folder)["classes"]["mended"] == 3


def test_a_file_is_read_once(project, tmp_path, monkeypatch):
    """A pipe gives nothing a second time, and a file may be saved anew while the project begins."""
    folder, _ = project
    read = Path.read_bytes
    pipes = {"63": b"id,kind\nitem-50,yes\n"}
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: pipes.pop(path.name, b"") if path.name == "63" else read(path)
    )
    assert say("ingest", folder, "/dev/fd/63")["new"] == 1
    pipes["63"] = b"id,kind\nitem-51,yes\nitem-52,no\n"
    assert say("ingest", folder, "/dev/fd/63")["new"] == 2
    # The second time for the numbers that they are.
    pool(tmp_path / "numbers.parquet", known=0)
    words = "--pool", tmp_path / "numbers.parquet", "--target", "kind", "--labels"
    pipes["63"] = b"id,kind\nitem-51,1.5\nitem-52,2.5\n"
    assert say("init", tmp_path / "piped", *words, "/dev/fd/63")["labels"] == 2
    labels = tmp_path / "known.csv"
    labels.write_text("id,kind\nitem-0,yes\n")

    def slowly(*given, **more):
        labels.write_text("id,kind\nitem-0,yes\nitem-1,no\n")
        return write_features(*given, **more)

    monkeypatch.setattr("coresift.labelling.creation.write_features", slowly)
    assert say("init", tmp_path / "slow", *words, labels, "--task", "classification")["labels"] == 1
    assert say("ingest", tmp_path / "slow", labels)["new"] == 1


def test_a_pool_that_changes_while_the_project_begins_is_noticed(tmp_path, monkeypatch):
    def slowly(*given, **more):
        made = write_features(*given, **more)
        table = pa.parquet.read_table(tmp_path / "pool.parquet")
        pa.parquet.write_table(table.slice(1), tmp_path / "pool.parquet")
        return made

    monkeypatch.setattr("coresift.labelling.creation.write_features", slowly)
    pool(tmp_path / "pool.parquet")
    words = "--pool", tmp_path / "pool.parquet", "--target", "kind"
    assert "has changed since" in run("init", tmp_path / "project", *words, code=2)


@pytest.mark.parametrize(
    "where",
    [
        ["open_project.open_pool", "creation.open_pool"],
        ["storage.stamp_of"],
        ["pools.ItemPool.fingerprint"],
    ],
)
def test_a_pool_that_may_not_be_read(project, tmp_path, monkeypatch, where):
    """Root may read everything, and so the system is made to refuse."""
    folder, _ = project
    os.utime(tmp_path / "pool.parquet")  # so that its content is looked at again

    def refuse(*_):
        raise PermissionError(13, "Permission denied", str(tmp_path / "pool.parquet"))

    with monkeypatch.context() as patch:
        for name in where:
            patch.setattr(f"coresift.labelling.{name}", refuse)
        text = run("report", folder, code=2)
        assert "cannot read" in text and "pool.parquet: Permission denied; put it back" in text
        assert "only the labels are written" in run("export", folder, tmp_path / "all.csv")
        words = "init", tmp_path / "other", "--pool", tmp_path / "pool.parquet", "--target", "kind"
        text = run(*words, code=2)
        assert "pool.parquet: Permission denied" in text and text.count("\n") == 1
    run(*words)


def test_labels_by_row_number_are_no_better_than_their_rows(tmp_path):
    np.save(tmp_path / "pool.npy", np.random.default_rng(0).normal(size=(20, 3)))
    (tmp_path / "known.csv").write_text("id,kind\n3,yes\n4,no\n")
    words = "--pool", tmp_path / "pool.npy", "--target", "kind", "--labels", tmp_path / "known.csv"
    run("init", tmp_path / "project", *words, "--task", "classification")
    (tmp_path / "pool.npy").unlink()
    text = run("export", tmp_path / "project", tmp_path / "all.csv")
    assert "items are named by their row numbers: make sure that the rows of a new pool are the same" in text


def test_answers_with_a_mistake_are_not_written_over(project, tmp_path):
    folder, truth = project
    batch = tmp_path / "batch.csv"
    run("select", folder, "--batch-size", 3, "--out", batch)
    answer(batch, {**truth, **dict.fromkeys(truth, "yes")}, batch)
    batch.write_bytes(batch.read_bytes() + b'"')
    run("ingest", folder, batch, code=2)
    before = batch.read_bytes()
    assert "no batch to write over" in run("select", folder, "--batch-size", 3, "--out", batch, code=2)
    assert batch.read_bytes() == before
    run("pending", folder, "--out", tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_text(encoding="utf-8-sig").count("item-") == 3


def test_nothing_is_chosen_that_cannot_be_written(project, tmp_path):
    folder, _ = project
    for out in ("batch.xlsx", "nowhere/batch.csv"):
        run("select", folder, "--batch-size", 3, "--more", "--out", tmp_path / out, code=2)
    assert say("status", folder)["counts"]["pending"] == 0
    for words in (["export", folder], ["report", folder, "--out"]):
        assert "is the pool" in run(*words, tmp_path / "pool.parquet", code=2)


def test_a_batch_that_cannot_be_written_is_not_chosen(project, tmp_path):
    folder, _ = project
    run("select", folder, "--batch-size", 5, "--out", tmp_path / "batch.csv")
    # The first name is too long; no user may make a file like the second.
    for out in (tmp_path / f"{'x' * 256}.csv", Path("/proc/self/batch.csv")):
        text = run("select", folder, "--batch-size", 5, "--more", "--out", out, code=2)
        assert "cannot write" in text or "there is no folder" in text
    assert say("status", folder)["counts"]["pending"] == 5
    assert sorted(file.name for file in tmp_path.iterdir()) == ["batch.csv", "pool.parquet", "project"]


def test_a_batch_that_cannot_be_shown_is_not_chosen(project, tmp_path, monkeypatch):
    folder, _ = project
    monkeypatch.setattr(Project, "describe", lambda *_: 1 / 0)
    words = "select", folder, "--batch-size", 5, "--out", tmp_path / "batch.csv"
    assert isinstance(CliRunner().invoke(app, [str(word) for word in words]).exception, ZeroDivisionError)
    assert say("status", folder)["counts"]["pending"] == 0 and not (tmp_path / "batch.csv").exists()


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"id": [f"item\0{row}" for row in range(N)]}, "no CSV file can hold"),
        (
            {"when": pa.array([0] * 7 + [10**18] * (N - 7), pa.timestamp("us"))},
            "row 7 (counted from 0), column 'when'",
        ),
        ({"when": pa.array(range(N), pa.timestamp("s", "Mars/Olympus"))}, "time zones have to be known"),
    ],
)
def test_an_init_refuses_what_no_batch_could_show(tmp_path, column, said):
    pool(tmp_path / "pool.parquet", **column)
    words = "init", tmp_path / "project", "--pool", tmp_path / "pool.parquet", "--target", "kind"
    assert said in run(*words, "--features", "a,b", code=2)
    assert not (tmp_path / "project" / "ledger.sqlite").exists()


@pytest.mark.parametrize("name", ["ledger.sqlite", "ledger.sqlite-wal", "features.npy", ".lock"])
def test_the_project_is_not_written_over(project, name):
    folder, _ = project
    own = folder / name
    before = own.read_bytes() if own.exists() else None
    for out in (own, folder / ".." / folder.name / name):
        assert "is what the project itself is kept in" in run("report", folder, "--out", out, code=2)
    assert (own.read_bytes() if own.exists() else None) == before
    run("report", folder, "--out", folder / "report.html")


def test_exports_are_not_written_over_answers(project, tmp_path):
    folder, truth = project
    batch, out = tmp_path / "batch.csv", tmp_path / "all.csv"
    run("select", folder, "--batch-size", 5, "--out", batch)
    answer(batch, truth, batch)
    before = batch.read_bytes()
    for words in (["export", folder, batch], ["report", folder, "--out", batch]):
        assert "has answers in it" in run(*words, code=2) and batch.read_bytes() == before
    run("ingest", folder, batch)
    run("export", folder, batch)  # by now the ledger has them
    # One export is written over another, also where labels were corrected in between.
    run("export", folder, out)
    (tmp_path / "mended.csv").write_text("id,kind\nitem-0,maybe\n")
    run("ingest", folder, tmp_path / "mended.csv")
    run("export", folder, out)
    assert as_rows(out)[0]["kind"] == "maybe"


def test_answers_that_insist_are_not_written_over(project, tmp_path):
    """Though the same label was given before: it was corrected since, and is meant anew."""
    folder, _ = project
    mine, other = tmp_path / "mine.csv", tmp_path / "other.csv"
    mine.write_text("id,kind,who,at\nitem-50,yes,ann,\n")
    other.write_text("id,kind,who\nitem-50,no,ben\n")
    for given in (mine, other):
        run("ingest", folder, given)
    run("pending", folder, "--out", mine)  # what was in it is known, and corrected since
    mine.write_text("id,kind,who,at\nitem-50,yes,ann,2099-01-01\n")
    assert "has answers in it" in run("pending", folder, "--out", mine, code=2)
    assert say("ingest", folder, mine)["corrected"] == 1
    run("pending", folder, "--out", mine)


@pytest.mark.parametrize("own", ["state", "predicted"])
def test_exports_of_pools_whose_ids_have_a_name_of_theirs(tmp_path, own):
    folder, out = tmp_path / "project", tmp_path / "all.csv"
    (tmp_path / "pool.csv").write_text(
        f"{own},a,kind\n"
        + "".join(f"place-{row},{row},{'xy'[row % 2] if row < 4 else ''}\n" for row in range(9))
    )
    words = "--pool", tmp_path / "pool.csv", "--id", own, "--target", "kind"
    run("init", folder, *words)
    for _ in range(2):
        run("export", folder, out)
    assert [row["id"] for row in as_rows(out)] == [f"place-{row}" for row in range(9)]
    assert say("init", tmp_path / "anew", *words, "--labels", out)["labels"] == 4


def test_exports_of_pools_with_the_columns_of_answers(tmp_path):
    """They are read again as what they are, and may be written over."""
    folder, out = tmp_path / "project", tmp_path / "all.csv"
    more = {name: ["x"] * N for name in ("skip", "label", "annotator", "item skip")}
    truth = pool(tmp_path / "pool.parquet", **more)
    run("init", folder, "--pool", tmp_path / "pool.parquet", "--target", "kind")
    for _ in range(2):
        run("export", folder, out)
    names = list(as_rows(out)[0])
    assert names[-4:] == ["item skip", "item label", "item annotator", "item item skip"]
    pool(tmp_path / "new.parquet", known=0)
    words = "init", tmp_path / "anew", "--pool", tmp_path / "new.parquet", "--target", "kind", "--labels", out
    assert say(*words)["labels"] == 20
    with Project(tmp_path / "anew") as opened:
        assert opened.ledger.label_counts().keys() <= set(truth.values())


@pytest.mark.parametrize("known", ["key", "id"])
def test_a_pool_with_an_id_beside_that_which_names_items(tmp_path, known):
    """Its ids are those of other rows: labels that went by them would all be wrong."""
    folder, batch = tmp_path / "project", tmp_path / "batch.csv"
    truth = pool(
        tmp_path / "pool.parquet",
        known=0,
        key=[f"key-{row}" for row in range(N)],
        rank=[str(row) for row in range(N)],
    )
    labels = tmp_path / "labels.csv"
    # As in a file made from the pool, or from a batch.
    labels.write_text("id,key,kind\nitem-7,key-8,yes\n" if known == "key" else "id,kind\nkey-8,yes\n")
    words = "--target", "kind", "--task", "classification", "--id", "key", "--labels", labels
    text = run("init", folder, "--pool", tmp_path / "pool.parquet", *words)
    assert "items are named by column 'key'" in text.splitlines()
    made = say("select", folder, "--batch-size", 5, "--out", batch)
    with batch.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [one["id"] for one in made["batch"]]
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4", "5"]
    for row in rows:
        place = row["id"].removeprefix("key-")
        assert (row["item id"], row["item rank"]) == (f"item-{place}", place)
    answer(batch, {f"key-{row}": truth[f"item-{row}"] for row in range(N)}, batch)
    assert say("ingest", folder, batch)["new"] == 5
    run("pending", folder, "--out", tmp_path / "rest.csv")
    labels.write_text(labels.read_text().replace("8", "9"))
    assert say("ingest", folder, labels)["new"] == 1
    with Project(folder) as opened:
        found = {one.position: one.label for one in opened.ledger.labels()}
    assert found[8] == found[9] == "yes" and len(found) == 7
    chosen = [int(one["id"].removeprefix("key-")) for one in made["batch"]]
    assert {place: found[place] for place in chosen} == {place: truth[f"item-{place}"] for place in chosen}


def test_no_pool_is_written_over_by_its_project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    np.save(folder / "features.npy", np.random.default_rng(0).normal(size=(20, 3)))
    np.save(tmp_path / "pool.npy", np.zeros((5, 2)) + np.arange(2))
    before = (folder / "features.npy").read_bytes()
    words = "--target", "kind", "--task", "classification", "--pool"
    text = run("init", folder, *words, folder / "features.npy", code=2)
    assert "is the pool, and a project in" in text and "name another folder" in text
    text = run("init", folder, *words, tmp_path / "pool.npy", code=2)
    assert "has no ledger.sqlite, but a features.npy" in text and "remove it if" in text
    assert (folder / "features.npy").read_bytes() == before
    run("init", tmp_path / "other", *words, folder / "features.npy")


def test_an_init_that_fails_late_can_be_repeated(tmp_path, monkeypatch):
    np.save(tmp_path / "pool.npy", np.random.default_rng(0).normal(size=(20, 3)))
    words = "init", tmp_path / "project", "--pool", tmp_path / "pool.npy", "--target", "kind"

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("coresift.labelling.creation.Ledger.create", fail)
        CliRunner().invoke(app, [*map(str, words), "--task", "classification"])
    assert not (tmp_path / "project" / "features.npy").exists()
    run(*words, "--task", "classification")


def test_an_init_sees_the_project_that_another_made_while_it_took_the_lock(tmp_path, monkeypatch):
    np.save(tmp_path / "pool.npy", np.random.default_rng(0).normal(size=(20, 3)))
    folder = tmp_path / "project"
    words = "init", folder, "--pool", tmp_path / "pool.npy", "--target", "kind", "--task", "classification"
    lock = storage.locked

    def after_another(*given):
        monkeypatch.undo()
        run(*words)
        (tmp_path / "labels.csv").write_text("id,kind\n1,yes\n2,no\n3,yes\n")
        run("ingest", folder, tmp_path / "labels.csv")
        return lock(*given)

    monkeypatch.setattr(storage, "locked", after_another)
    assert "is a project already" in run(*words, code=2)
    with Project(folder) as opened:
        assert len(opened.labels_and_values()[0]) == 3 and opened.features.shape == (20, 3)


@pytest.mark.parametrize("moved", [(), ("features.npy",)])
def test_what_an_init_that_was_killed_left_is_in_nobodys_way(tmp_path, moved):
    np.save(tmp_path / "pool.npy", np.random.default_rng(0).normal(size=(20, 3)))
    folder = tmp_path / "project"
    words = "init", folder, "--pool", tmp_path / "pool.npy", "--target", "kind", "--task", "classification"
    run(*words)
    made = folder / storage.UNFINISHED
    made.mkdir()
    for name in {"features.npy", "ledger.sqlite"}.difference(moved):
        (folder / name).rename(made / name)
    run(*words)
    assert not made.exists() and say("status", folder)["counts"]["unlabelled"] == 20


def test_features_of_somebody_else_stay_where_an_init_was_killed(tmp_path):
    np.save(tmp_path / "pool.npy", np.random.default_rng(0).normal(size=(20, 3)))
    folder = tmp_path / "project"
    made = folder / storage.UNFINISHED
    made.mkdir(parents=True)
    for place in (folder, made):
        np.save(place / "features.npy", np.ones((4, 2)))
    words = "init", folder, "--pool", tmp_path / "pool.npy", "--target", "kind", "--task", "classification"
    assert "has no ledger.sqlite, but a features.npy" in run(*words, code=2)
    assert np.load(folder / "features.npy").shape == (4, 2)


def test_a_pool_is_no_leftover_of_an_init_that_was_killed(tmp_path):
    np.save(tmp_path / "features.npy", np.ones((20, 3)))
    (tmp_path / storage.UNFINISHED).mkdir()
    (tmp_path / storage.UNFINISHED / "ledger.sqlite").touch()
    words = (
        "init",
        tmp_path,
        "--pool",
        tmp_path / "features.npy",
        "--target",
        "kind",
        "--task",
        "classification",
    )
    assert "is the pool" in run(*words, code=2)
    assert np.load(tmp_path / "features.npy").shape == (20, 3)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_no_model_would_take(tmp_path, seed):
    np.save(tmp_path / "pool.npy", np.random.default_rng(0).normal(size=(20, 3)))
    words = "init", tmp_path / "new", "--pool", tmp_path / "pool.npy", "--target", "y", "--task", "regression"
    assert f"--seed is {seed}, expected an integer" in run(*words, "--seed", seed, code=2)


def test_a_folder_that_cannot_be_written_to(project, tmp_path, monkeypatch):
    folder, _ = project
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and may(path, mode))
    assert say("status", folder)["counts"]["labelled"] == 20
    assert say("export", folder, tmp_path / "all.csv")["labelled"] == 20
    run("report", folder, "--out", tmp_path / "page.html")
    # A lock that nobody can take, which root meets too.
    (folder / ".lock").unlink(missing_ok=True)
    (folder / ".lock").mkdir()
    text = run("select", folder, "--batch-size", 3, code=2)
    assert f"cannot write to the folder {folder}" in text and text.count("\n") == 1
    (tmp_path / "new" / ".lock").mkdir(parents=True)
    words = "--pool", tmp_path / "pool.parquet", "--target", "kind"
    text = run("init", tmp_path / "new", *words, code=2)
    assert f"cannot write to the folder {tmp_path / 'new'}" in text and text.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_mode_555(project, tmp_path):
    folder, _ = project
    folder.chmod(0o555)
    try:
        assert say("status", folder)["counts"]["labelled"] == 20
        assert "cannot write to the folder" in run("select", folder, "--batch-size", 3, code=2)
    finally:
        folder.chmod(0o755)


def test_numbers_too_large_for_a_model_are_refused(tmp_path):
    folder, labels = tmp_path / "project", tmp_path / "labels.csv"
    pool(tmp_path / "pool.parquet", known=30, regression=True)
    words = "--pool", tmp_path / "pool.parquet", "--target", "kind"
    run("init", folder, *words)
    labels.write_text("id,kind\nitem-50,3\nitem-51,1e200\n")
    for command in (["ingest", folder, labels], ["init", tmp_path / "other", *words, "--labels", labels]):
        text = run(*command, code=2)
        assert "row 3, column 'kind': '1e200' is too large" in text and text.count("\n") == 1
    table = pa.table({"a": [1.0, 2.0, 3.0], "kind": [0.5, 1e200, None]})
    pa.parquet.write_table(table, tmp_path / "large.parquet")
    text = run("init", tmp_path / "other", "--pool", tmp_path / "large.parquet", "--target", "kind", code=2)
    assert "row 1 (counted from 0) of the pool, column 'kind': '1e+200' is too large" in text
    labels.write_text("id,kind\nitem-50,1e60\n")  # mad, but of no harm to the program
    run("ingest", folder, labels)
    run("select", folder, "--batch-size", 3)
    run("export", folder, tmp_path / "all.csv")


def test_labelled_items_are_not_excluded_and_fixed_ones_come_once(project):
    folder, _ = project
    assert "has a label" in run("select", folder, "--batch-size", 3, "--exclude", "item-1", code=2)
    made = say("select", folder, "--batch-size", 3, "--must-include", "item-50", "--must-include", "item-50")
    assert [one["id"] for one in made["batch"]].count("item-50") == 1 and len(made["batch"]) == 3
    words = [word for one in (60, 61, 62) for word in ("--must-include", f"item-{one}")]
    assert "do not keep to the limits" in run("select", folder, "--batch-size", 2, "--more", *words, code=2)


def test_what_labels_look_like(tmp_path):
    for place, (labels, task) in enumerate(
        [
            (["1", "2", "1", "2"], "classification"),
            (["1.5", "2"], "regression"),
            ([str(number) for number in range(30)], "regression"),
            (["200000", "201234", "199000"], "may be classes or not"),
            (["1", "one"], "is not a number"),
            (["1,5", "2,5", "a"], "classification"),
            (
                ["1,5", "2,5", "3"],
                "labels such as '1,5': decimals need a point, and thousands no separator; if",
            ),
        ]
    ):
        pool(tmp_path / "pool.parquet", known=0)
        known = tmp_path / f"known-{place}.csv"
        known.write_text("id;kind\n" + "".join(f"item-{row};{label}\n" for row, label in enumerate(labels)))
        words = [
            "init",
            tmp_path / f"project-{place}",
            "--pool",
            tmp_path / "pool.parquet",
            "--target",
            "kind",
        ]
        if task in ("classification", "regression"):
            assert say(*words, "--labels", known)["task"] == task
        else:
            more = ["--task", "regression"] if "is not" in task else []
            assert task in run(*words, "--labels", known, *more, code=2)
    assert "column of exports" in run(*words[:-1], "state", code=2)


def test_only_first_labels_count_as_drawn_at_random(tmp_path):
    truth = pool(tmp_path / "pool.parquet", known=0)
    run(
        "init",
        tmp_path / "project",
        "--pool",
        tmp_path / "pool.parquet",
        "--target",
        "kind",
        "--task",
        "classification",
    )
    later = tmp_path / "later.csv"
    later.write_text("id,kind\n" + "".join(f"item-{row},{truth[f'item-{row}']}\n" for row in range(60)))
    run("ingest", tmp_path / "project", later)
    assert "No label was drawn at random" in run("select", tmp_path / "project", "--batch-size", 5)


def test_without_labels_the_batch_is_spread(tmp_path):
    pool(tmp_path / "pool.parquet", known=0)
    folder = tmp_path / "project"
    words = "init", folder, "--pool", tmp_path / "pool.parquet", "--target", "kind"
    assert "say --task" in run(*words, code=2)
    assert say(*words, "--classes", "a,b,c")["task"] == "classification"
    text = run("select", folder, "--batch-size", 5)
    assert "too few labels for a model" in text and "k-medoids" in text
    assert len(say("select", folder, "--batch-size", 5)["batch"]) == 5
    run("report", folder)
    run("export", folder, tmp_path / "all.csv")


def test_labels_from_a_file(tmp_path):
    truth = pool(tmp_path / "pool.parquet", known=0)
    labels = tmp_path / "known.csv"
    labels.write_text(
        "id,kind,who\n" + "".join(f"item-{row},{truth[f'item-{row}']},ann\n" for row in range(12))
    )
    folder = tmp_path / "project"
    made = say("init", folder, "--pool", tmp_path / "pool.parquet", "--target", "kind", "--labels", labels)
    assert (made["labels"], made["task"]) == (12, "classification")
    with Project(folder) as opened:
        assert {one.who for one in opened.ledger.labels()} == {"ann"}
    labels.write_text("id,kind\nitem-0,yes\nnobody,no\n")
    other = tmp_path / "other"
    text = run(
        "init", other, "--pool", tmp_path / "pool.parquet", "--target", "kind", "--labels", labels, code=2
    )
    assert "row 3" in text and "nobody" in text and not (other / "ledger.sqlite").exists()


def test_limits(project):
    folder, _ = project
    made = say("select", folder, "--budget", 12)
    costs = [int(one["id"].removeprefix("item-")) % 3 + 1 for one in made["batch"]]
    assert 11 <= sum(costs) <= 12
    made = say("select", folder, "--batch-size", 5, "--per-group", 1, "--more")
    assert len({int(one["id"].removeprefix("item-")) % 5 for one in made["batch"]}) == 5
    made = say("select", folder, "--batch-size", 20, "--per-group", 2, "--more")
    assert len(made["batch"]) == 10  # five groups, two of each
    made = say(
        "select", folder, "--batch-size", 4, "--must-include", "item-150", "--must-include", "item-151",
        "--exclude", "item-190", "--more",
    )  # fmt: skip
    ids = [one["id"] for one in made["batch"]]
    assert ids[:2] == ["item-150", "item-151"] and len(ids) == 4
    assert say("status", folder)["counts"]["excluded"] == 1
    assert "must be included, but it is pending" in run(
        "select", folder, "--batch-size", 2, "--must-include", "item-150", "--more", code=2
    )


def test_until_nothing_is_left(tmp_path):
    pool(tmp_path / "pool.parquet", known=190)
    folder = tmp_path / "project"
    run("init", folder, "--pool", tmp_path / "pool.parquet", "--target", "kind")
    assert len(say("select", folder, "--batch-size", 50)["batch"]) == 10
    assert "every item" in run("select", folder, "--batch-size", 50, "--more", code=4)
    run("reopen", folder, "item-195")
    more = say("select", folder, "--batch-size", 50, "--more")
    assert [one["id"] for one in more["batch"]] == ["item-195"]


def test_ids_from_a_file(project, tmp_path):
    folder, _ = project
    (tmp_path / "ids.txt").write_text("item-30\nitem-31\n")
    made = say("select", folder, "--batch-size", 3, "--must-include", f"@{tmp_path / 'ids.txt'}")
    assert [one["id"] for one in made["batch"]][:2] == ["item-30", "item-31"]
    assert "cannot read ids" in run("select", folder, "--batch-size", 3, "--exclude", "@nowhere", code=2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["select", "{}", "--batch-size", "0"], "--batch-size is 0"),
        (["select", "{}"], "say how many items"),
        (["select", "{}", "--batch-size", "3", "--strategy", "bold"], "did you mean 'bald'"),
        (["select", "{}", "--batch-size", "3", "--candidates", "some"], "--candidates is 'some'"),
        (["select", "{}", "--batch-size", "3", "--engine", "horse"], "--engine is 'horse'"),
        (["select", "{}", "--batch-size", "3", "--exclude", "nobody"], "there is no item 'nobody'"),
        (["select", "{}/nowhere", "--batch-size", "3"], "is no project"),
        (["ingest", "{}", "nowhere.csv"], "nowhere.csv"),
        (["export", "{}", "all.txt"], "should end in .parquet or .csv"),
        (["export", "{}", "/nowhere/all.csv"], "there is no folder /nowhere"),
        (["init", "{}", "--pool", "x.csv", "--target", "y"], "is a project already"),
        (["init", "{}-2", "--pool", "x.csv", "--target", "y", "--task", "magic"], "--task is 'magic'"),
    ],
)
def test_mistakes_are_one_line(project, words, message):
    folder, _ = project
    text = run(*[word.format(folder) for word in words], code=2)
    assert message in text and text.count("\n") == 1


def test_ray_is_asked_through_the_command(project, cluster):
    folder, _ = project
    on_ray = say("select", folder, "--batch-size", 6, "--engine", "ray")
    with Project(folder) as opened:
        opened.reopen([one["id"] for one in on_ray["batch"]])
    here = say("select", folder, "--batch-size", 6, "--candidates", "all")
    assert len(on_ray["batch"]) == len(here["batch"]) == 6


def test_the_program_itself(project):
    """Once as a process of its own."""
    folder, _ = project
    words = [sys.executable, "-W", "error", "-m", "coresift", "status", str(folder), "--json"]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=120, cwd=Path(folder).parent, env=os.environ
    )
    assert done.returncode == 0 and json.loads(done.stdout)["counts"]["labelled"] == 20


STANDING = """id,town,sold,area,who,note
007,n/a,2025-05-22,50,ann,=1+1
b2,Ulm,2024-01-31,n/a,bob,-3
c3,,2023-12-01,1.50,,' quoted
"""


def as_rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_exports_have_the_columns_of_a_csv_pool_as_they_stand(tmp_path):
    file, folder = tmp_path / "pool.csv", tmp_path / "project"
    file.write_text(STANDING)
    run("init", folder, "--pool", file, "--target", "price", "--task", "regression")
    run("export", folder, tmp_path / "all.csv")
    rows = as_rows(tmp_path / "all.csv")
    names = ["id", "state", "price", "predicted", "std", "skip", "who", "at", "round"]
    assert list(rows[0]) == [*names, "town", "sold", "area", "item who", "note"]
    own = [[row[name] for name in ("id", "town", "sold", "area", "item who", "note")] for row in rows]
    assert own == [
        ["007", "n/a", "2025-05-22", "50", "ann", "'=1+1"],  # no formula
        ["b2", "Ulm", "2024-01-31", "n/a", "bob", "-3"],
        ["c3", "", "2023-12-01", "1.50", "", "' quoted"],
    ]
    run("export", folder, tmp_path / "all.parquet")
    table = pa.parquet.read_table(tmp_path / "all.parquet")
    assert table.column_names == list(rows[0])
    # Numbers are numbers there, and nothing is taken for a formula.
    assert table["area"].to_pylist() == [50.0, None, 1.5]
    assert table["sold"].to_pylist() == ["2025-05-22", "2024-01-31", "2023-12-01"]
    assert table["town"].to_pylist() == ["n/a", "Ulm", None]
    assert table["note"].to_pylist() == ["=1+1", "-3", "' quoted"]


def test_exports_have_the_types_of_a_parquet_pool(tmp_path):
    file, folder = tmp_path / "pool.parquet", tmp_path / "project"
    days = pa.array([20230, 20231, None], pa.date32())
    own = pa.table(
        {
            "town": pa.array(["Ulm", "@Bonn", None]).dictionary_encode(),
            "day": days,
            "rooms": pa.array([3, None, 2**60 + 1], pa.int64()),
            "area": pa.array([0.1, -2.5, None], pa.float32()),
            "sold": [True, False, None],
            "at": days.cast(pa.timestamp("ms", "UTC")),
        }
    )
    more = {"key": ["a", "b", "c"], "tax": [0.5, float("nan"), None]}
    for name, values in more.items():
        own = own.append_column(name, pa.array(values))
    pa.parquet.write_table(own, file, row_group_size=2)
    own = own.drop_columns(list(more))
    run("init", folder, "--pool", file, "--id", "key", "--target", "price", "--task", "regression")
    run("export", folder, tmp_path / "all.parquet")
    table = pa.parquet.read_table(tmp_path / "all.parquet")
    assert table.column_names[0] == "key"
    assert table.column_names[9:] == [*own.column_names[:-1], "item at", "tax"]
    kept = table.select(table.column_names[9:-1]).rename_columns(own.column_names)
    assert kept.schema.remove_metadata() == own.schema and kept.to_pylist() == own.to_pylist()
    run("export", folder, tmp_path / "all.csv")
    assert [list(row.values())[9:] for row in as_rows(tmp_path / "all.csv")] == [
        ["Ulm", "2025-05-22", "3", "0.1", "True", "2025-05-22 00:00:00+00:00", "0.5"],
        ["'@Bonn", "2025-05-23", "", "-2.5", "False", "2025-05-23 00:00:00+00:00", ""],
        ["", "", str(2**60 + 1), "", "", "", ""],
    ]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_exports_of_arrays_have_all_numbers(tmp_path, ending):
    numbers = np.random.default_rng(0).normal(size=(5, 30))
    np.save(tmp_path / "pool.npy", numbers)
    folder, out = tmp_path / "project", tmp_path / f"all.{ending}"
    run("init", folder, "--pool", tmp_path / "pool.npy", "--target", "kind", "--task", "classification")
    run("export", folder, out)
    rows = as_rows(out) if ending == "csv" else pa.parquet.read_table(out).to_pylist()
    np.testing.assert_array_equal([[float(row[str(i)]) for i in range(30)] for row in rows], numbers)


def test_exported_std_is_calibrated(tmp_path):
    pool(tmp_path / "pool.parquet", known=10, regression=True)
    run(
        "init",
        tmp_path / "p",
        "--pool",
        tmp_path / "pool.parquet",
        "--target",
        "kind",
        "--task",
        "regression",
    )
    run("export", tmp_path / "p", tmp_path / "all.parquet")
    exported = [row["std"] for row in pa.parquet.read_table(tmp_path / "all.parquet").to_pylist()[10:]]
    with Project(tmp_path / "p") as opened:
        model = opened.fit()
        raw = model.predict(opened.features[10:], return_std=True)[1]
        np.testing.assert_allclose(exported, opened.std_factor(model) * raw, rtol=1e-5)


@pytest.mark.parametrize("target", ["round", "std"])
def test_exports_keep_labels_of_a_target_that_older_projects_may_have(tmp_path, target):
    (tmp_path / "pool.csv").write_text("id,x,y\na,1,2.5\nb,2,\n")
    words = "--pool", tmp_path / "pool.csv", "--target"
    run("init", tmp_path / "p", *words, "y", "--task", "regression")
    assert "is a column of exports" in run("init", tmp_path / "q", *words, target, code=2)
    with Project(tmp_path / "p") as opened:
        opened.target = target
        write_export(opened, tmp_path / "all.parquet")
        write_labels(opened, tmp_path / "labels.parquet")
    for file in ("all", "labels"):
        row = pa.parquet.read_table(tmp_path / f"{file}.parquet").to_pylist()[0]
        assert row[target] == 2.5 and row["item round" if target == "round" else "round"] == 0


def test_settings_of_a_newer_version(project):
    folder, _ = project
    with Project(folder) as opened:
        opened.remember("settings", {**opened.recall("settings"), "sparkles": True})
    text = run("select", folder, "--batch-size", 3, code=2)
    assert "does not know: sparkles" in text and "update coresift" in text
    with Ledger(folder / "ledger.sqlite") as ledger:
        ledger.remember("settings", {"task": "regression"})
    assert "its settings are not whole" in run("select", folder, "--batch-size", 3, code=2)


def test_features_are_those_of_the_beginning(project):
    folder, _ = project
    path = folder / "features.npy"
    rows = np.load(path)
    copied = path.read_bytes()
    path.write_bytes(copied)  # another time, and the same content
    assert "no damage was found" in run("status", folder, "--check")
    for other in (rows[:-1], rows[::-1], rows.astype(np.float64), np.ones(3)):
        np.save(path, other)
        text = run("select", folder, "--batch-size", 3, code=2)
        assert "coresift repair" in text and len(text.splitlines()) == 1
    for broken in (b"", copied[:200], b"PK\3\4" + copied):
        path.write_bytes(broken)
        assert "features.npy cannot be read" in run("select", folder, "--batch-size", 3, code=2)
    # A bit that the disk has changed leaves the time as it was.
    path.write_bytes(copied[:-1] + b"\1")
    with Project(folder) as opened:
        made = opened.recall("features")
        opened.remember("features", {**made, "time": path.stat().st_mtime_ns})
        assert opened.features.shape == rows.shape
    assert "has changed since the project began" in run("status", folder, "--check", code=2)
    assert say("status", folder)["counts"]["pending"] == 0


def test_what_can_be_read_of_a_damaged_ledger_is_saved(project, tmp_path):
    folder, truth = project
    (tmp_path / "more.csv").write_text("id,kind\n" + "".join(f"{one},{truth[one]}\n" for one in truth))
    run("ingest", folder, tmp_path / "more.csv")
    path = folder / "ledger.sqlite"
    sound = path.read_bytes()
    for page in (7, 0, 1, 2):  # of events, of the schema, of facts and of items
        content = bytearray(sound)
        content[page * 4096 : page * 4096 + 64] = bytes(range(64))
        path.write_bytes(content)
        run("status", folder, code=2)
        saved = tmp_path / f"saved-{page}"
        made = say("repair", folder, saved)
        assert path.read_bytes() == content
        with (saved / "labels.csv").open(newline="", encoding="utf-8") as file:
            found = {row["id"]: row.get("kind", row.get("label")) for row in csv.DictReader(file)}
        assert found.items() <= truth.items() and len(found) == made["labels"]
        assert found == truth or page == 7
    words = shlex.split(say("repair", folder, tmp_path / "saved")["command"])[1:]
    words[1] = str(tmp_path / "new")
    run(*words)
    assert "is there already" in run("repair", folder, saved, code=2)


def test_a_sound_ledger_is_saved_whole(project, tmp_path):
    folder, _ = project
    made = say("repair", folder, tmp_path / "saved")
    assert made["labels"] == 20 and made["rows"]["items"] == N and not any(made["lost"].values())


def without_triggers(path):
    """A connection that may change what a ledger only adds to, as damage does."""
    connection = sqlite3.connect(path, isolation_level=None)
    for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    return closing(connection)


def labels_in(path):
    with path.open(newline="", encoding="utf-8") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def test_a_repaired_project_begins_with_the_same_features_and_seed(tmp_path):
    pool(tmp_path / "my pool.parquet", **{"c, d": np.arange(N) * 1.0, "e": np.ones(N)})
    folder = tmp_path / "my project"
    words = ["--pool", tmp_path / "my pool.parquet", "--target", "kind", "--features", "a,c, d", "--seed", 7]
    run("init", folder, *words)
    command = shlex.split(say("repair", folder, tmp_path / "saved it")["command"])[1:]
    command[1] = str(tmp_path / "new")
    run(*command)
    with Project(folder) as old, Project(tmp_path / "new") as new:
        assert new.settings.reading == old.settings.reading and new.settings.seed == 7
        assert np.array_equal(new.features, old.features)
    # The commands that errors print can be pasted too.
    np.save(folder / "features.npy", np.ones(3))
    assert f"coresift repair {shlex.quote(str(folder))} OUT" in run(
        "select", folder, "--batch-size", 3, code=2
    )
    path = folder / "ledger.sqlite"
    content = bytearray(path.read_bytes())
    content[4096:4160] = bytes(range(64))
    path.write_bytes(content)
    assert f"coresift repair {shlex.quote(str(folder))} OUT" in run("status", folder, code=2)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file whose reading fails")
def test_repair_says_that_the_ledger_cannot_be_read(tmp_path):
    (tmp_path / "ledger.sqlite").symlink_to("/proc/self/mem")
    text = run("repair", tmp_path, tmp_path / "saved", code=2)
    assert f"cannot read {tmp_path / 'ledger.sqlite'}" in text.replace("\n", "")


@pytest.mark.parametrize("garbage", [2**60, 5000])  # beyond what the file could hold, and not
def test_a_damaged_key_hides_no_later_rows(project, tmp_path, garbage):
    folder, truth = project
    (tmp_path / "more.csv").write_text("id,kind\n" + "".join(f"{one},{truth[one]}\n" for one in truth))
    run("ingest", folder, tmp_path / "more.csv")
    path = folder / "ledger.sqlite"
    with without_triggers(path) as connection:
        query = "SELECT position FROM events ORDER BY event DESC LIMIT 2"
        (last,), (lost,) = connection.execute(query)
        ((count,),) = connection.execute("SELECT MAX(event) FROM events")
        connection.execute("UPDATE events SET event = ? WHERE event = ?", (garbage, count - 1))
        connection.execute("UPDATE events SET event = ? WHERE event = ?", (2**60 + 1, count))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    # Give the last row its key back, as an integer of variable size that takes the same nine bytes.
    written = b"\x88" + 7 * b"\x80" + b"\x01"
    assert content.count(written) == 1 and count < 256
    path.write_bytes(content.replace(written, 8 * b"\x80" + bytes([count])))
    made = say("repair", folder, tmp_path / "saved")
    found = labels_in(tmp_path / "saved" / "labels.csv")
    missing = {f"item-{lost}"} if garbage == 2**60 else set()
    assert f"item-{last}" in found and truth.keys() - found.keys() == missing
    assert made["lost"]["events"] > 0


@pytest.mark.parametrize("settings", [None, 3, '{"target": "kind", "reading": [1]}'])
def test_repair_works_with_damaged_settings_and_times(project, tmp_path, settings):
    folder, _ = project
    with without_triggers(folder / "ledger.sqlite") as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'value TEXT NOT NULL', 'value')")
        connection.execute("PRAGMA writable_schema = RESET")
        connection.execute("UPDATE facts SET value = ? WHERE key = 'settings'", (settings,))
        connection.execute("UPDATE events SET at = '2030-01-\x07', said_at = NULL WHERE position = 3")
    made = say("repair", folder, tmp_path / "saved")
    assert made["labels"] == 20 and made["command"] is None
    found = labels_in(tmp_path / "saved" / "labels.csv")
    assert [name for name, row in found.items() if not row["at"]] == ["item-3"]


def test_a_damaged_schema_is_told_in_one_line(project, tmp_path):
    """SQLite quotes it, with its line ends."""
    folder, _ = project
    path = folder / "ledger.sqlite"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"seed INTEGER NOT NULL", b"`eed\x1bINTEGER NOT NULL", 1))
    for words in (["status", folder], ["select", folder, "--batch-size", 2]):
        text = run(*words, code=2)
        assert "malformed database schema (rounds)" in text
        assert text.count("\n") == 1 and text.strip().isprintable()
    assert say("repair", folder, tmp_path / "saved")["labels"] == 20


def test_the_settings_are_saved_of_a_ledger_that_is_cut_short(project, tmp_path):
    """Where some tables are beyond the end of the file."""
    folder, _ = project
    os.truncate(folder / "ledger.sqlite", 4 * 4096)
    made = say("repair", folder, tmp_path / "saved")
    assert made["rows"]["facts"] >= 4 and "--target kind" in made["command"]


def test_repair_works_with_a_schema_that_is_no_text(project, tmp_path):
    folder, _ = project
    path = folder / "ledger.sqlite"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"CREATE TRIGGER", b"CREATE \xddRIGGER", 1))
    assert path.read_bytes() != content
    assert say("repair", folder, tmp_path / "saved")["labels"] == 20
    for words in (["status", folder], ["select", folder, "--batch-size", 2]):
        assert "ledger.sqlite is damaged" in run(*words, code=2)
