"""The ledger: what happened is added to, and states follow from it."""

import sqlite3
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coresift.labelling.ledger import Ingested, Ledger
from coresift.labelling.records import Answer, Chosen, Round
from coresift.types import InputError

IDS = [f"item {number}" for number in range(10)]


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "ledger.sqlite", IDS, {"colour": "blue"}, {0: "cat", 1: "dog"}) as made:
        yield made


def a_round(number, positions, **changes):
    batch = tuple(Chosen(position, IDS[position], rank, 1.5) for rank, position in enumerate(positions, 1))
    made = Round(number, "2026-01-01T00:00:00+00:00", "bald", 7, "network", "abc", {"batch_size": 2}, 2, 0.5)
    return replace(made, **{"batch": batch, "notes": {"cold": False}, **changes})


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
    assert changed == Ingested(new=1, skipped=1)
    assert ledger.counts() == {"labelled": 3, "pending": 1, "unlabelled": 4, "skipped": 1, "excluded": 1}
    ledger.reopen([3, 9])
    assert ledger.counts() == {"labelled": 3, "pending": 1, "unlabelled": 6, "skipped": 0, "excluded": 0}
    assert [one.position for one in ledger.labels()] == [0, 1, 5]
    assert [(one.round, one.who) for one in ledger.labels()] == [(0, None), (0, None), (1, "ann")]
    assert ledger.damage() is None


def test_rounds_come_back_as_they_were(ledger):
    first, second = a_round(1, [5, 3]), a_round(2, [7], strategy="acs-fw", notes={"worth": ["much"]})
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
    assert ledger.add_answers([Answer("item 0", "dog", "ben")], "b.csv") == Ingested(corrected=1)
    assert [label for _, _, label, _ in ledger.history(0)] == ["cat", "dog"]
    assert {one.position: one.label for one in ledger.labels()} == {0: "dog", 1: "dog"}


def test_a_file_that_comes_again_undoes_no_correction(ledger):
    first, second = [Answer("item 5", "cat")], [Answer("item 5", "dog")]
    assert ledger.add_answers(first, "a.csv", "1") == Ingested(new=1)
    assert ledger.add_answers(second, "b.csv", "2") == Ingested(corrected=1)
    for _ in range(10):
        assert ledger.add_answers(first, "a.csv", "1") == Ingested(outdated=1)
    assert ledger.labels()[-1].label == "dog" and len(ledger.history(5)) == 2


def test_an_older_answer_does_not_replace_a_later_one(ledger):
    later = Answer("item 5", "cat", at="2026-02-02T12:00:00+02:00")
    assert ledger.add_answers([later], "a") == Ingested(new=1)
    earlier = Answer("item 5", "dog", at="2026-02-02T09:59:00+00:00")
    assert ledger.add_answers([earlier], "a") == Ingested(outdated=1)
    assert ledger.add_answers([replace(earlier, at="2026-02-02T10:01:00+00:00")], "a") == Ingested(
        corrected=1
    )


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
    assert not ledger.knows_file("1") and len(ledger.labels()) == 2


def test_what_is_no_ledger_is_said_to_be_none(tmp_path):
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(InputError, match="is no ledger: file is not a database"):
        Ledger(path)
    path.unlink()
    sqlite3.connect(path).close()
    with pytest.raises(InputError, match="a ledger of version 0, this program reads 1"):
        Ledger(path)


def test_creation_that_fails_leaves_no_ledger(tmp_path):
    path = tmp_path / "ledger.sqlite"
    with pytest.raises(sqlite3.IntegrityError):
        Ledger.create(path, ["a", "a"], {}, {})
    assert not path.exists()
    Ledger.create(path, ["a", "b"], {}, {}).close()


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
