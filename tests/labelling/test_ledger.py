"""The ledger: what happened is added to, and states follow from it."""

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coresift.errors import InputError
from coresift.labelling.ledger import AddedAnswers, Correction, Ledger
from coresift.labelling.records import Answer, Chosen, Round

IDS = [f"item {number}" for number in range(10)]


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "ledger.sqlite", IDS, {"colour": "blue"}, {0: "cat", 1: "dog"}) as made:
        yield made


def a_round(number, positions, **changes):
    batch = tuple(
        Chosen(position, IDS[position], rank, 1.5, 2.5) for rank, position in enumerate(positions, 1)
    )
    made = Round(number, "2026-01-01T00:00:00+00:00", "bald", 7, "network", "abc", {"batch_size": 2}, 2, 0.5)
    return replace(made, **{"batch": batch, "notes": {"cold": False}, **changes})


def history(ledger, position):
    """The labels that an item had."""
    rows = ledger.rows("SELECT label FROM events WHERE position = ? ORDER BY event", (position,))
    return [label for (label,) in rows]


def test_states_follow_from_what_happened(ledger):
    assert ledger.counts() == {"labelled": 2, "pending": 0, "unlabelled": 8, "skipped": 0, "excluded": 0}
    ledger.add_round(a_round(1, [5, 3, 4]), excluded=[9])
    assert ledger.states() == {
        0: "labelled",
        1: "labelled",
        3: "pending",
        4: "pending",
        5: "pending",
        9: "excluded",
    }
    assert [(number, item.position) for number, item in ledger.pending()] == [(1, 5), (1, 3), (1, 4)]
    changed = ledger.add_answers([Answer("item 5", "cat", "ann"), Answer("item 3", None)], "a.csv")
    assert changed == AddedAnswers(new=1, skipped=1)
    assert ledger.counts() == {"labelled": 3, "pending": 1, "unlabelled": 4, "skipped": 1, "excluded": 1}
    ledger.reopen([3, 9])
    assert ledger.counts() == {"labelled": 3, "pending": 1, "unlabelled": 6, "skipped": 0, "excluded": 0}
    assert [one.position for one in ledger.labels()] == [0, 1, 5]
    assert [(one.round, one.who) for one in ledger.labels()] == [(0, None), (0, None), (1, "ann")]
    assert ledger.damage() is None


def test_rounds_come_back_as_they_were(ledger):
    first, second = (
        a_round(1, [5, 3]),
        a_round(2, [7], strategy="acs-fw", notes={"worth": ["much"]}, residuals=(0.5, 0.25)),
    )
    ledger.add_round(first)
    assert ledger.nothing_since(1)
    ledger.add_round(second)
    assert ledger.rounds() == [first, second]
    assert not ledger.nothing_since(1)
    ledger.add_answers([Answer("item 7", "cat")], "a.csv")
    assert not ledger.nothing_since(2)


def test_a_round_is_written_whole_or_not_at_all(ledger):
    broken = a_round(1, [5, 3])
    broken = replace(broken, batch=(*broken.batch, Chosen(99, "nobody", 3)))
    with pytest.raises(sqlite3.IntegrityError):
        ledger.add_round(broken)
    assert ledger.rounds() == [] and ledger.pending() == []


def test_a_correction_is_a_new_event(ledger):
    changed = ledger.add_answers([Answer("item 0", "dog", "ben")], "b.csv")
    assert changed == AddedAnswers(corrected=1, corrections=(Correction("item 0", "cat", "dog", "ben"),))
    assert changed.counts() == {"new": 0, "same": 0, "corrected": 1, "skipped": 0, "outdated": 0}
    assert history(ledger, 0) == ["cat", "dog"]
    assert {one.position: one.label for one in ledger.labels()} == {0: "dog", 1: "dog"}


def test_a_file_that_comes_again_undoes_no_correction(ledger):
    first, second = [Answer("item 5", "cat")], [Answer("item 5", "dog")]
    assert ledger.add_answers(first, "a.csv", "1") == AddedAnswers(new=1)
    assert ledger.add_answers(second, "b.csv", "2").corrected == 1
    for _ in range(10):
        assert ledger.add_answers(first, "a.csv", "1") == AddedAnswers(outdated=1)
    assert ledger.labels()[-1].label == "dog" and history(ledger, 5) == ["cat", "dog"]


def test_an_older_answer_does_not_replace_a_later_one(ledger):
    later = Answer("item 5", "cat", at="2026-02-02T12:00:00+02:00")
    assert ledger.add_answers([later], "a") == AddedAnswers(new=1)
    earlier = Answer("item 5", "dog", at="2026-02-02T09:59:00+00:00")
    assert ledger.add_answers([earlier], "a") == AddedAnswers(outdated=1)
    assert ledger.add_answers([replace(earlier, at="2026-02-02T10:01:00+00:00")], "a").corrected == 1


@pytest.mark.parametrize(("who", "source"), [("ann", "tuesday.csv"), (None, "a.csv")])
def test_a_file_that_has_grown_undoes_no_correction(ledger, who, source):
    ledger.add_answers([Answer("item 5", "cat", who)], "a.csv", "1")
    ledger.add_answers([Answer("item 5", "dog", "ben")], "b.csv", "2")
    grown = [Answer("item 5", "cat", who), Answer("item 6", "cat", who)]
    for number in range(2):
        changed = ledger.add_answers(grown, source, f"3-{number}")
        assert changed == AddedAnswers(new=1 - number, same=number, outdated=1)
    assert history(ledger, 5) == ["cat", "dog"]


@pytest.mark.parametrize(("first", "second"), [(None, "ben"), ("ann", None), ("ann", "ben")])
def test_files_of_one_name_may_be_of_several_people(ledger, first, second):
    """As they are where all of them get a batch.csv; who has no name is not taken for one who has."""
    ledger.add_answers([Answer("item 5", "cat", first)], "batch.csv", "1")
    ledger.add_answers([Answer("item 5", "dog", second)], "batch.csv", "2")
    grown = [Answer("item 5", "cat", first), Answer("item 6", "cat", first)]
    assert ledger.add_answers(grown, "batch.csv", "3") == AddedAnswers(new=1, outdated=1)


def test_an_answer_is_known_by_its_time(ledger):
    """As those of an export are, which are all older than what was said since."""
    ledger.add_answers([Answer("item 5", "cat", "ann")], "a.csv")
    ledger.add_answers([Answer("item 6", "cat", "ann", "2026-02-02T10:01:00.120000Z")], "a.csv")
    exported = list(ledger.answers().values())
    assert [(one.id, one.label, one.who) for one in exported[2:]] == [
        ("item 5", "cat", "ann"),
        ("item 6", "cat", "ann"),
    ]
    # As they come back from a file.
    zone = timezone(timedelta(hours=1))
    times = [datetime.fromisoformat(one.at).astimezone(zone).isoformat() for one in exported]
    again = [replace(one, at=time) for one, time in zip(exported, times, strict=True)]
    assert ledger.add_answers(again, "export.csv", "1") == AddedAnswers(same=4)
    ledger.add_answers([Answer(f"item {number}", "cow", "ben") for number in (0, 5, 6)], "b.csv")
    grown = [*again, Answer("item 7", "cat")]
    assert ledger.knows_answers(again, "export.csv") and not ledger.knows_answers(grown, "export.csv")
    assert ledger.add_answers(grown, "export.csv", "2") == AddedAnswers(new=1, same=1, outdated=3)
    # Of another time, or another person at that time, it is another answer.
    assert not ledger.knows_answers([replace(again[3], who="cid")], "a.csv")
    insisted = replace(again[2], at="2099-01-01T00:00:00+00:00")
    assert not ledger.knows_answers([insisted], "a.csv")
    assert ledger.add_answers([insisted], "a.csv").corrected == 1


def test_a_skip_removes_a_label_by_name(ledger):
    changed = ledger.add_answers([Answer("item 0", None, "ben"), Answer("item 5", None, "ben")], "b.csv")
    assert changed == AddedAnswers(skipped=2, corrections=(Correction("item 0", "cat", None, "ben"),))


@pytest.mark.parametrize("at", [None, "2026-02-02T10:01:00Z"])
def test_a_skip_that_comes_again_does_not_close_an_item_that_was_opened(ledger, at):
    skip = Answer("item 5", None, "ann", at)
    assert ledger.add_answers([skip], "a.csv", "1") == AddedAnswers(skipped=1)
    ledger.reopen([5])
    assert ledger.add_answers([skip], "a.csv", "1") == AddedAnswers(outdated=1)
    assert ledger.add_answers([skip, Answer("item 6", "cat", "ann")], "a.csv", "2") == AddedAnswers(
        new=1, outdated=1
    )
    assert ledger.states()[5] == "unlabelled"
    # Asked once more, people may skip it once more; a time tells whether they did.
    ledger.add_round(a_round(1, [5]))
    assert ledger.add_answers([skip], "a.csv", "3") == (
        AddedAnswers(skipped=1) if at is None else AddedAnswers(outdated=1)
    )
    assert ledger.add_answers([replace(skip, at="2026-02-02T10:02:00Z")], "a.csv").outdated == 0
    # Somebody else means it at any time.
    ledger.reopen([5])
    assert ledger.add_answers([replace(skip, who="ben", at=None)], "b.csv") == AddedAnswers(skipped=1)


def test_a_skip_that_comes_again_undoes_no_label(ledger):
    ledger.add_answers([Answer("item 5", None, "ann")], "a.csv")
    ledger.add_answers([Answer("item 5", "dog", "ben")], "b.csv")
    assert ledger.add_answers([Answer("item 5", None, "ann")], "a.csv") == AddedAnswers(outdated=1)


def test_people_may_change_their_minds(ledger):
    """An answer given before counts again where nobody else spoke since, or where it has another time."""
    for label in ("cat", "dog", "cat", "dog"):
        ledger.add_answers([Answer("item 5", label, "ann")], "a.csv")
        assert ledger.labels()[-1].label == label
    ledger.add_answers([Answer("item 5", "cow", "ben")], "b.csv")
    later = Answer("item 5", "dog", "ann", "2026-02-02T10:01:00+00:00")
    assert ledger.add_answers([later], "a.csv").corrected == 1
    # What somebody else said before is not theirs to repeat.
    assert ledger.add_answers([Answer("item 5", "cat", "cid")], "c.csv").corrected == 1


def test_people_may_change_their_minds_with_a_whole_file(ledger):
    """A file that came in before counts again where nobody else spoke since."""
    for label in ("cat", "dog", "cat", "dog", "cat"):
        again = [Answer("item 5", label, "ann")]
        assert not ledger.knows_answers(again, "a.csv", label)
        ledger.add_answers(again, "a.csv", label)
        assert ledger.labels()[-1].label == label and ledger.knows_answers(again, "a.csv", label)
    ledger.add_answers([Answer("item 5", "cow", "ben")], "b.csv")
    for name in ("a.csv", "copy.csv"):
        assert ledger.add_answers([Answer("item 5", "dog", "ann")], name, "dog") == AddedAnswers(outdated=1)


def test_a_whole_file_is_known_by_answers_that_others_gave_before(ledger):
    """They were left out as known, and so it does not stand anywhere that its sender gave them too."""
    given = [Answer("item 0", "cat", "ann"), Answer("item 5", "cat", "ann")]
    assert ledger.add_answers(given, "a.csv", "1") == AddedAnswers(new=1, same=1)
    ledger.add_answers([Answer("item 0", "dog", "ben")], "b.csv")
    assert ledger.add_answers(given, "a.csv", "1") == AddedAnswers(same=1, outdated=1)
    # Grown, and then as that once more.
    ledger.add_answers([Answer("item 5", "dog", "ben")], "b.csv")
    for _ in range(2):
        assert ledger.add_answers(given[1:], "a.csv", "2") == AddedAnswers(outdated=1)


def test_an_item_that_was_opened_again_takes_any_answer(ledger):
    ledger.add_answers([Answer("item 5", "cat", "ann")], "a.csv")
    ledger.add_answers([Answer("item 5", None, "ben")], "b.csv")
    ledger.reopen([5])
    assert ledger.add_answers([Answer("item 5", "cat", "ann")], "a.csv") == AddedAnswers(new=1)


def test_answers_are_known_that_would_change_nothing(ledger):
    ledger.add_answers([Answer("item 0", "dog", "ann")], "a.csv")
    ledger.add_answers([Answer("item 0", "cow", "ben")], "b.csv")
    assert ledger.knows_answers([Answer("item 0", "dog", "ann"), Answer("item 1", "dog")], "a.csv")
    for answer in (
        Answer("item 0", "dog", "cid"),
        Answer("item 0", "cat"),
        Answer("item 0", None),
        Answer("item 5", "cat"),
    ):
        assert not ledger.knows_answers([Answer("item 1", "dog"), answer], "c.csv")


@pytest.mark.parametrize("table", ["facts", "items", "rounds", "imports", "events"])
@pytest.mark.parametrize("change", ["DELETE FROM {}", "UPDATE {} SET rowid = rowid + 100"])
def test_nothing_can_be_changed(ledger, table, change):
    ledger.add_round(a_round(1, [5]))
    with pytest.raises(sqlite3.IntegrityError, match="only added to"):
        ledger._connection.execute(change.format(table))


def test_facts(ledger):
    assert ledger.recall("colour") == "blue" and ledger.recall("shape") is None
    ledger.remember("colour", {"red": [1, 2]})
    assert ledger.recall("colour") == {"red": [1, 2]}


def test_unknown_items_are_refused_and_nothing_is_kept(ledger):
    with pytest.raises(InputError, match=r"a.csv: there is no item 'item 77' in the pool"):
        ledger.add_answers([Answer("item 5", "cat"), Answer("item 77", "dog")], "a.csv", "1")
    assert ledger.row("SELECT COUNT(*) FROM imports WHERE fingerprint IS NOT NULL") == (0,)
    assert len(ledger.labels()) == 2


def test_what_is_no_ledger_is_said_to_be_none(tmp_path):
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(InputError, match="is no ledger: file is not a database"):
        Ledger(path)
    path.unlink()
    sqlite3.connect(path).close()
    with pytest.raises(InputError, match="a ledger of version 0, this program reads up to 2"):
        Ledger(path)


def test_nothing_is_added_to_a_damaged_ledger(tmp_path):
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path, [f"item {row}" for row in range(500)], {}, dict.fromkeys(range(200), "cat")).close()
    sound, rng, damaged = path.read_bytes(), np.random.default_rng(0), 0
    for _ in range(60):
        broken = bytearray(sound)
        for place in rng.integers(0, len(sound), 3):
            broken[place] ^= int(rng.integers(1, 256))
        path.write_bytes(broken)
        with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as plain:
            try:
                ok = plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            except (sqlite3.DatabaseError, UnicodeDecodeError):  # a message may quote a damaged schema
                ok = False
        if ok:  # such as a letter of a label: SQLite has no checksums
            continue
        damaged += 1
        with pytest.raises(InputError), Ledger(path) as opened:
            opened.add_answers([Answer("item 300", "dog")], "a.csv")
        assert path.read_bytes() == broken
    assert damaged > 10


@pytest.fixture
def read_only(monkeypatch):
    """As if nothing could be written; root can, whatever a folder's mode is."""
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and may(path, mode))


def test_a_ledger_is_read_where_nothing_can_be_written(ledger, read_only):
    ledger.add_answers([Answer("item 5", "cat")], "a.csv")
    ledger.close()
    before = sorted(file.name for file in ledger.path.parent.iterdir())
    with Ledger(ledger.path) as opened:
        assert opened.counts()["labelled"] == 3
        # Files beside it are what could not be made there.
        assert sorted(file.name for file in ledger.path.parent.iterdir()) == before == ["ledger.sqlite"]
        with pytest.raises(InputError, match=r"cannot write to .*: attempt to write a readonly database"):
            opened.remember("colour", "red")


def test_a_ledger_that_another_writes_is_read_with_what_that_added(ledger, read_only):
    ledger.add_answers([Answer("item 5", "cat")], "a.csv")  # in the log, while the writer is there
    with Ledger(ledger.path) as opened:
        assert opened.counts()["labelled"] == 3


def test_a_ledger_that_cannot_be_opened_is_not_said_to_be_none(ledger, monkeypatch):
    ledger.close()
    broken = f"file:{ledger.path}.nowhere?mode=ro"
    monkeypatch.setattr("coresift.labelling.database._connect", lambda *_: sqlite3.connect(broken, uri=True))
    with pytest.raises(InputError, match=r"cannot read .*ledger.sqlite: unable to open"):
        Ledger(ledger.path)


def test_creation_that_fails_leaves_no_ledger(tmp_path):
    path = tmp_path / "ledger.sqlite"
    with pytest.raises(sqlite3.IntegrityError):
        Ledger.create(path, ["a", "a"], {}, {})
    assert not path.exists()
    Ledger.create(path, ["a", "b"], {}, {}).close()


# Ledgers of version 1, which keep no weights of the selector and no residuals.


@pytest.fixture
def older(tmp_path):
    """A ledger as version 1 made it: with the columns it had, and a batch."""
    path = tmp_path / "older.sqlite"
    with Ledger.create(path, IDS, {"colour": "blue"}, {0: "cat"}) as made:
        made.add_round(a_round(1, [5, 3]))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("ALTER TABLE rounds DROP COLUMN residuals")
        connection.execute("ALTER TABLE events DROP COLUMN own_weight")
        connection.execute("PRAGMA user_version = 1")
    return path


def version(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def test_an_older_ledger_is_read_as_it_is_and_grows_when_something_is_added(older):
    with Ledger(older) as opened:
        before = opened.rounds()
        assert [(one.weight, one.nearest) for one in before[0].batch] == [(None, 2.5)] * 2
        assert before[0].residuals is None and opened.counts()["pending"] == 2
    assert version(older) == 1
    with Ledger(older) as opened, Ledger(older) as reader:
        with pytest.raises(sqlite3.IntegrityError):  # it is read as before after what failed
            opened.add_round(replace(a_round(2, [7]), batch=(Chosen(99, "nobody", 1),)))
        assert opened.rounds() == before and version(older) == 1
        second = a_round(2, [7], residuals=(0.5,))
        opened.add_round(second)
        assert opened.rounds() == [*reader.rounds()[:1], second] == [*before, second]
        reader.remember("colour", "red")
        assert reader.rounds() == [*before, second] and opened.recall("colour") == "red"
    assert version(older) == 2
    with Ledger(older) as opened:
        assert opened.rounds() == [*before, second] and opened.damage() is None
        with pytest.raises(sqlite3.IntegrityError, match="only added to"):
            opened._connection.execute("DELETE FROM rounds")


def test_an_older_ledger_is_read_where_nothing_can_be_written(older, read_only):
    with Ledger(older) as opened:
        assert len(opened.rounds()[0].batch) == 2 and opened.recall("colour") == "blue"


answers = st.lists(
    st.builds(Answer, st.sampled_from(IDS), st.one_of(st.none(), st.sampled_from(["cat", "dog"]))),
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(st.lists(answers, max_size=4))
def test_the_last_answer_counts(tmp_path_factory, files):
    """Whatever comes in, in whatever files, an item is as its last answer says."""
    folder = tmp_path_factory.mktemp("ledger")
    expected = {}
    with Ledger.create(folder / "ledger.sqlite", IDS, {}, {}) as ledger:
        for number, some in enumerate(files):
            distinct = list({one.id: one for one in some}.values())
            ledger.add_answers(distinct, f"{number}.csv", f"{number}")
            expected |= {one.id: one.label for one in distinct}
        states = ledger.states()
        assert {IDS[position]: state for position, state in states.items()} == {
            one: "skipped" if label is None else "labelled" for one, label in expected.items()
        }
        assert {IDS[one.position]: one.label for one in ledger.labels()} == {
            one: label for one, label in expected.items() if label is not None
        }
