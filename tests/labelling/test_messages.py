"""What the commands of a project tell people, and what they take from files that people have at hand."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image
from typer.testing import CliRunner

from coresift.cli import app

N = 60


def run(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.output


def say(*words):
    return json.loads(run(*words, "--json"))


def begin(folder, known=20, ids=None, more=()):
    """A project on 60 items of which the first have a label."""
    rng = np.random.default_rng(0)
    kinds = [("bill", "ship", "tech")[row % 3] if row < known else None for row in range(N)]
    columns = {
        "id": ids or [f"item-{row}" for row in range(N)],
        "a": rng.normal(size=N),
        "group": [f"g{row % 5}" for row in range(N)],
        "kind": pa.array(kinds, pa.string()),
    }
    pa.parquet.write_table(pa.table(columns), folder / "pool.parquet")
    words = "--target", "kind", "--task", "classification", "--group", "group"
    run("init", folder / "project", "--pool", folder / "pool.parquet", *words, *more)
    return folder / "project"


def labels(path, given):
    path.write_text("id,kind\n" + "".join(f"item-{row},{label}\n" for row, label in given.items()))
    return path


# A batch that is smaller than was asked for.


def test_fewer_are_left_than_were_asked_for(tmp_path):
    project = begin(tmp_path)
    lines = run("select", project, "--batch-size", 500).splitlines()
    some = "only 40 items were left, not 500; to undo this"
    assert f"{some}, ask again with --out batch.csv and then: coresift reopen {project} @batch.csv" in lines
    batch = tmp_path / "chosen.csv"
    again = say("select", project, "--batch-size", 500, "--out", batch)
    undo = f"coresift reopen {project} @{batch}"
    assert again["shortage"] == f"{some}: {undo}" and len(again["batch"]) == 40
    assert say(*undo.split()[1:])["reopened"] == 40 and say("status", project)["counts"]["pending"] == 0


def test_limits_are_not_taken_for_the_end_of_the_pool(tmp_path):
    project = begin(tmp_path)
    assert say("select", project, "--batch-size", 5)["shortage"] is None
    words = "select", project, "--batch-size", 20, "--more"
    assert "only 5 items were within the limits, not 20" in run(*words, "--per-group", 1)
    assert "only 7 items were looked at, not 20; --more chooses" in run(*words, "--candidates", 7)
    assert "only" not in run("select", project, "--batch-size", 3, "--more").splitlines()[1]


# What is taken for granted.


def test_what_init_takes_for_granted_is_told(tmp_path):
    rows = "".join(f"{row},{('yes', 'no')[row % 2] if row < 8 else ''}\n" for row in range(30))
    (tmp_path / "pool.csv").write_text("x,kind\n" + rows)
    words = "--pool", tmp_path / "pool.csv", "--target", "kind"
    text = run("init", tmp_path / "one", *words)
    assert "looks like classification by the labels; say --task classification to be sure" in text
    assert "assume that the 8 labels were drawn at random" in text and "--hand-picked" in text
    assert "--batch-size 22 --out" in text
    text = run("init", tmp_path / "two", *words, "--task", "classification", "--hand-picked")
    assert "looks like" not in text and "--hand-picked" not in text
    (tmp_path / "pool.csv").write_text("x,kind\n1,yes\n2,no\n")
    assert "there is nothing to choose" in run("init", tmp_path / "three", *words)


def test_a_look_at_a_part_of_the_pool_is_told(tmp_path):
    project = begin(tmp_path)
    text = run("select", project, "--batch-size", 3, "--candidates", 30)
    assert "looked at 30 of 40 items without a label, drawn at random; to look at all of them next" in text
    text = run("select", project, "--batch-size", 3, "--candidates", "all", "--replace")
    assert "looked at" not in text
    text = run("select", project, "--batch-size", 3, "--candidates", 36, "--more")
    assert "looked at 36 of 37 items" in text


def test_broken_images_may_be_left_out(tmp_path):
    images = tmp_path / "images"
    (images / "a").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for row in range(8):
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8)).save(images / f"{row}.png")
    for name in ("a/broken.png", "empty.jpg"):
        (images / name).write_bytes(b"")
    words = "init", tmp_path / "project", "--pool", images, "--target", "kind", "--task", "classification"
    assert "cannot read 2 of the 10 images" in run(*words, code=2)
    lines = run(*words, "--skip-broken").splitlines()
    first = lines.index("images that cannot be read and were left out: 2")
    assert lines[first + 1 : first + 3] == ["a/broken.png", "empty.jpg"]
    made = say("select", tmp_path / "project", "--batch-size", 20, "--out", tmp_path / "batch.csv")
    assert sorted(one["id"] for one in made["batch"]) == [f"{row}.png" for row in range(8)]
    for row in range(8):
        (images / f"{row}.png").unlink()
    words = "init", tmp_path / "other", *words[2:], "--skip-broken"
    assert "holds 2 images, and none of them can be read" in run(*words, code=2)
    (tmp_path / "pool.csv").write_text("x\n1\n2\n")
    words = "init", tmp_path / "other", "--pool", tmp_path / "pool.csv", "--target", "y", "--skip-broken"
    assert "--skip-broken is for folders of images" in run(*words, code=2)


# What was chosen, without a file.


def test_ids_are_printed(tmp_path):
    project = begin(tmp_path)
    assert run("pending", project) == "no item is pending\n"
    text = run("select", project, "--batch-size", 5)
    ids = say("pending", project)["items"]
    assert len(ids) == 5 and run("pending", project).splitlines() == ids
    lines = text.splitlines()
    first = lines.index(ids[0])
    assert lines[first : first + 5] == ids and f"coresift pending {project} --out batch.csv" in text
    (tmp_path / "ids.txt").write_text(run("pending", project))
    assert say("reopen", project, f"@{tmp_path / 'ids.txt'}")["reopened"] == 5


def test_ids_of_large_batches_and_odd_ids_do_no_harm_to_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr("coresift.limits.SHOWN_IDS", 3)
    project = begin(tmp_path, ids=[f"\x1b[2J{row}" for row in range(N)])
    text = run("select", project, "--batch-size", 5)
    assert "... and 2 more" in text and "\x1b" not in text and "\x1b" not in run("pending", project)


# Ids from a file.


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_batch_file_is_read_for_its_ids(tmp_path, separator):
    # One that a spreadsheet would run, one in which lines end, one with an apostrophe of its own.
    ids = ["=1+1", "two\nlines, one id", "'plain", *(f"item-{row}" for row in range(3, N))]
    project = begin(tmp_path, known=0, ids=ids)
    batch = tmp_path / "batch.csv"
    run("select", project, "--batch-size", N, "--out", batch)
    if separator != ",":  # as a spreadsheet saves it
        with batch.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
        with batch.open("w", newline="", encoding="utf-8-sig") as file:
            csv.writer(file, delimiter=separator).writerows(rows)
    assert say("reopen", project, f"@{batch}")["reopened"] == N


def test_ids_of_a_batch_with_a_long_text(tmp_path):
    project, batch = begin(tmp_path), tmp_path / "batch.csv"
    batch.write_text(f'id,text\nitem-30,"{"word " * 40_000}"\n\nitem-31,short\n')
    run("select", project, "--batch-size", 40)
    assert say("reopen", project, f"@{batch}")["reopened"] == 2


def test_ids_under_the_name_that_the_pool_has_for_them(tmp_path):
    (tmp_path / "pool.csv").write_text(
        "sku,a,id\n" + "".join(f"s{row},{row},s{row + 1}\n" for row in range(20))
    )
    words = "--pool", tmp_path / "pool.csv", "--id", "sku", "--target", "kind", "--task", "classification"
    run("init", tmp_path / "project", *words)
    (tmp_path / "some.csv").write_text("id,sku\ns4,s3\ns6,s5\n")
    made = say(
        "select", tmp_path / "project", "--batch-size", 2, "--must-include", f"@{tmp_path / 'some.csv'}"
    )
    assert [one["id"] for one in made["batch"]] == ["s3", "s5"]


def test_ids_one_a_line_and_a_broken_batch(tmp_path):
    project, file = begin(tmp_path), tmp_path / "ids"
    run("select", project, "--batch-size", 40)
    file.write_text("\n item-30 \r\nitem-31")
    assert say("reopen", project, f"@{file}")["reopened"] == 2
    file.write_text('id,text\nitem-32,"never closed\nitem-33,x\n')
    text = run("reopen", project, f"@{file}", code=2)
    assert "cannot read ids" in text and "is not closed" in text and text.count("\n") == 1


# Classes that nobody gave before.


def test_new_classes_are_told(tmp_path):
    project = begin(tmp_path)
    given = labels(tmp_path / "one.csv", {30: "Bill ", 31: "bill", 32: "tehc", 33: "Bill", 34: "new"})
    lines = run("ingest", project, given).splitlines()
    wrong = "'Bill' (2, did you mean 'bill'?), 'tehc' (1, did you mean 'tech'?), 'new' (1)"
    assert lines[2:] == [f"new classes: {wrong}; if that is a mistake, correct the file and ingest it again"]
    assert say("ingest", project, given)["new_classes"] == {}  # they are known by now
    right = labels(tmp_path / "one.csv", {30: "bill", 31: "bill", 32: "tech", 33: "bill", 34: "ship"})
    corrected = say("ingest", project, right)
    assert (corrected["corrected"], corrected["new_classes"]) == (4, {})
    other = labels(tmp_path / "two.csv", {40: "tehc"})
    assert say("ingest", project, other)["new_classes"] == {"tehc": 1}


def test_many_new_classes_are_counted(tmp_path):
    project = begin(tmp_path)
    given = labels(tmp_path / "one.csv", {20 + row: f"kind {row}" for row in range(12)} | {40: "x" * 500})
    line = run("ingest", project, given).splitlines()[2]
    assert " and 3 more; if" in line and len(line) < 300


def test_no_class_is_new_at_first_or_where_they_were_named(tmp_path):
    for name, options in (("first", {"known": 0}), ("named", {"more": ["--classes", "bill,ship,tech,late"]})):
        (tmp_path / name).mkdir()
        project = begin(tmp_path / name, **options)
        given = labels(tmp_path / "one.csv", {30: "late", 31: "bill"})
        assert "new classes" not in run("ingest", project, given)


def test_spellings_of_a_class_are_told_from_the_start(tmp_path):
    given = labels(tmp_path / "one.csv", {30: "Yes", 31: "yes", 32: " YES ", 33: "no", 34: "yes"})
    told = "classes that differ only by case or spaces: 'yes' (2), 'Yes' (1), 'YES' (1); if they are"
    for name, words in (
        ("first", []),
        ("known", ["--labels", given]),
        ("named", ["--classes", "Yes,yes,YES,no"]),
    ):
        (tmp_path / name).mkdir()
        project = begin(tmp_path / name, known=0, more=words)
        again = tmp_path / name / "again"
        found = say("init", again, "--pool", tmp_path / name / "pool.parquet", "--target", "kind",
                    "--task", "classification", *words)  # fmt: skip
        assert found["alike_classes"] == ([["yes", "Yes", "YES"]] if name == "known" else [])
        text = run("ingest", project, given)
        assert (told in text) == (name == "first") and "new classes" not in text
    # Both are new to the project, and to each other.
    more = labels(tmp_path / "two.csv", {40: "may be", 41: "maybe"})
    assert say("ingest", tmp_path / "first" / "project", more)["alike_classes"] == [["may be", "maybe"]]


# Labels that stand for none, and numbers of classes.


def test_words_for_no_label_are_ignored_everywhere(tmp_path):
    (tmp_path / "pool.csv").write_text("id,a,kind\n" + "".join(f"item-{row},{row},{kind}\n" for row, kind in
                                       enumerate(["x", "y", "NA", "null", "", "x"])))  # fmt: skip
    known = labels(tmp_path / "known.csv", {2: "NaN", 4: "y"})
    words = "--pool", tmp_path / "pool.csv", "--target", "kind", "--labels", known
    made = say("init", tmp_path / "json", *words)
    assert (made["labels"], made["ignored"]) == (4, 3)
    text = run("init", tmp_path / "one", *words)
    assert "3 cells ignored: their word (NA, null or the like) means that there is no label" in text
    given = labels(tmp_path / "given.csv", {2: "NA", 3: "x"})
    assert "1 cells ignored" in run("ingest", tmp_path / "one", given)
    assert say("status", tmp_path / "one")["classes"] == {"x": 3, "y": 2}
    text = run("init", tmp_path / "two", *words[:-2], "--classes", "x,y,NA")
    assert "1 cells ignored" in text and say("status", tmp_path / "two")["classes"]["NA"] == 1
    assert say("ingest", tmp_path / "two", given)["ignored"] == 0


@pytest.mark.parametrize("classes", [[], ["--classes", "0.0,1.0"]])
def test_classes_of_numbers_are_the_same_with_a_fraction(tmp_path, classes):
    kinds = [
        float(row % 2) if row < 20 else None for row in range(N)
    ]  # as pandas has whole numbers with gaps
    table = pa.table({"id": [f"item-{row}" for row in range(N)], "a": range(N), "kind": kinds})
    pa.parquet.write_table(table, tmp_path / "pool.parquet")
    known = labels(tmp_path / "known.csv", {20: "1.0", 21: "0"})
    words = "--pool", tmp_path / "pool.parquet", "--target", "kind", "--labels", known, *classes
    assert say("init", tmp_path / "project", *words)["task"] == "classification"
    run("ingest", tmp_path / "project", labels(tmp_path / "one.csv", {30: "1", 31: "0.0", 0: "0"}))
    assert say("status", tmp_path / "project")["classes"] == {"0": 12, "1": 12}


# What names the items.


def test_what_names_the_items_is_told(tmp_path):
    (tmp_path / "pool.csv").write_text("ID,a,kind\n" + "".join(f"{row + 1},{row},x\n" for row in range(20)))
    words = "--pool", tmp_path / "pool.csv", "--target", "kind", "--task", "classification"
    text = run("init", tmp_path / "project", *words, code=2)
    assert "did you mean 'ID'? say --id ID, or" in text and text.count("\n") == 1
    assert "items are named by column 'ID'" in run("init", tmp_path / "project", *words, "--id", "ID")
    given = tmp_path / "given.csv"
    given.write_text("ID,kind\n5,y\n")
    corrected = say("ingest", tmp_path / "project", given)["corrections"]
    assert corrected == [{"id": "5", "before": "x", "after": "y", "who": None}]
    text = run("init", tmp_path / "rows", *words, "--features", "a")
    assert "items are named by their row number, from 0" in text


# Corrections.


def test_corrections_are_named(tmp_path):
    project, given = begin(tmp_path), tmp_path / "given.csv"
    given.write_text("id,kind,who\nitem-0,ship,ben\nitem-1,ship,ben\nitem-2,bill,\nitem-30,bill,ben\n")
    lines = run("ingest", project, given).splitlines()
    assert lines[0] == f"{given}: 1 new labels, 2 corrections, 1 known already"
    assert lines[2:] == ["corrected: 'item-0' from 'bill' to 'ship' by 'ben', 'item-2' from 'tech' to 'bill'"]
    many = labels(tmp_path / "many.csv", dict.fromkeys(range(3, 12), "late"))
    line = run("ingest", project, many).splitlines()[2]
    assert line.startswith("corrected: 'item-3' from 'bill' to 'late', ") and line.endswith(" and 4 more")


def test_a_skip_that_takes_a_label_away_is_named(tmp_path):
    project, given = begin(tmp_path), tmp_path / "given.csv"
    given.write_text("id,kind,skip,who\nitem-0,,x,ben\nitem-30,,x,ben\n")
    lines = run("ingest", project, given).splitlines()
    assert lines == [
        f"{given}: 2 skipped",
        "19 labels now, 0 items pending",
        "corrected: 'item-0' from 'bill' to skipped by 'ben'",
    ]


def test_labels_of_the_pool_that_a_file_replaces_are_named(tmp_path):
    project, given = begin(tmp_path), tmp_path / "given.csv"
    given.write_text(
        "id,kind,skip,who,at\nitem-0,ship,,,2001-01-01\nitem-1,ship,,,\nitem-2,,x,ben,\nitem-30,ship,,,\n"
    )
    words = "--pool", tmp_path / "pool.parquet", "--target", "kind", "--labels", given
    lines = run("init", tmp_path / "two", *words).splitlines()
    assert "60 items, 20 with a label" in lines[0]
    assert "corrected: 'item-0' from 'bill' to 'ship', 'item-2' from 'tech' to skipped by 'ben'" in lines
    assert say("init", tmp_path / "three", *words)["corrections"] == [
        {"id": "item-0", "before": "bill", "after": "ship", "who": None},
        {"id": "item-2", "before": "tech", "after": None, "who": "ben"},
    ]
    assert not any(line.startswith("corrected") for line in run("status", project).splitlines())


def test_a_file_that_has_grown_is_told_what_was_left_out(tmp_path):
    project, mine = begin(tmp_path), labels(tmp_path / "mine.csv", {30: "bill"})
    run("ingest", project, mine)
    run("ingest", project, labels(tmp_path / "mended.csv", {30: "ship"}))
    text = run("ingest", project, labels(mine, {30: "bill", 31: "tech"}))
    assert "1 new labels, 1 outdated, since a newer answer or a correction is known" in text
    assert say("status", project)["classes"]["ship"] == 8


# How many labels each class has.


def test_status_counts_the_labels_of_each_class(tmp_path):
    project = begin(tmp_path, more=["--classes", "late,bill,ship,tech"])
    assert "classes: 'bill' (7), 'ship' (7), 'tech' (6), 'late' (0)" in run("status", project).splitlines()
    run("ingest", project, labels(tmp_path / "one.csv", {0: "tech", 30: "tech"}))  # the first a correction
    assert list(say("status", project)["classes"].items()) == [
        ("tech", 8),
        ("ship", 7),
        ("bill", 6),
        ("late", 0),
    ]


def test_status_names_the_commonest_of_many_classes(tmp_path):
    project = begin(tmp_path, known=0)
    assert "classes" not in run("status", project)
    kinds = {row: f"kind {row}" for row in range(12)} | {20: "x" * 500, 21: "x" * 500}
    run("ingest", project, labels(tmp_path / "one.csv", kinds))
    (line,) = [line for line in run("status", project).splitlines() if line.startswith("classes: ")]
    assert line.startswith("classes: 'xxx") and "...' (2), 'kind 0' (1), " in line
    assert line.endswith("'kind 8' (1) and 3 more") and len(say("status", project)["classes"]) == 13


# A target that is nearly the name of a column.


@pytest.mark.parametrize("task", [[], ["--task", "classification"]])
def test_a_target_that_is_nearly_a_column_is_no_feature(tmp_path, task):
    table = "age,status?\n" + "".join(f"{row},{('ok', 'ill')[row % 2]}\n" for row in range(20))
    (tmp_path / "trees.csv").write_text(table)
    words = "init", tmp_path / "project", "--pool", tmp_path / "trees.csv", *task, "--target"
    text = run(*words, "status", code=2)
    assert "no column 'status'; did you mean 'status?'?" in text and text.count("\n") == 1
    assert say(*words, "status?")["labels"] == 20


# The page, once answers came in.


def test_the_page_after_the_batch_is_answered(tmp_path):
    project = begin(tmp_path, known=40)
    batch = [int(one["id"][5:]) for one in say("select", project, "--batch-size", 6)["batch"]]
    given = {row: ("bill", "ship", "tech")[row % 3] for row in batch}
    page = project / "report.html"

    def told():
        run("report", project)
        return page.read_text(encoding="utf-8")

    assert "What to label next, and why" in told() and "figures are from round" not in told()
    run("ingest", project, labels(tmp_path / "some.csv", {row: given[row] for row in batch[:2]}))
    assert "4 of 6 items left" in told() and "from round 1, when there were 40 labels" in told()
    run("ingest", project, labels(tmp_path / "all.csv", given))
    text = told()
    assert "The last batch" in text and "What to label next" not in text
    assert "No item is pending; coresift select chooses the next batch." in text
    assert "by training on 32 of its 40 labels and testing on others" in text
    assert text.index("The last batch") < text.index("are from round 1") < text.index("After this batch")


def test_the_page_after_the_batch_is_withdrawn(tmp_path):
    project, batch = begin(tmp_path, known=40), tmp_path / "batch.csv"

    def told():
        run("report", project)
        return (project / "report.html").read_text(encoding="utf-8")

    first = say("select", project, "--batch-size", 6, "--out", batch)["batch"]
    run("reopen", project, f"@{batch}")
    text = told()
    assert "<td>6</td><td>0</td><td>6</td>" in text  # of the batch, answered and withdrawn
    assert (
        "There is nothing to label: all batches were withdrawn." in text
        and "Number 1 of the batch" not in text
    )
    assert "After this batch" not in text
    # With a part withdrawn, the rest is asked for; with a later batch withdrawn, the earlier one.
    run("select", project, "--batch-size", 6)
    run("reopen", project, first[0]["id"], first[1]["id"])
    assert "the batch of round 2, shown below (4 items)" in told()
    later = [one["id"] for one in say("select", project, "--batch-size", 3, "--more")["batch"]]
    assert "the batch of round 3" in told()
    run("reopen", project, *later)
    assert "the batch of round 2" in told()
