"""The ring: who is called, in which order, and what is durable when."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from coresift.loop import ask_next, turn


class Counting:
    """Learns nothing, chooses the next two numbers, and writes down what was called."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.asked: list[int] = []
        self.known: dict[int, str] = {}

    def pending(self) -> list[int]:
        return [item for item in self.asked if item not in self.known]

    def fit(self) -> str:
        self.calls.append("fit")
        return "model"

    def choose(self, model: str) -> list[int]:
        self.calls.append(("choose", model))
        return [len(self.asked), len(self.asked) + 1]

    def look(self, model: str, items: Sequence[int]) -> list[int]:
        self.calls.append(("look", model, list(items)))
        return list(items)

    def commit(self, record: list[int]) -> None:
        self.calls.append("commit")
        self.asked += record

    def add(self, answers: Sequence[tuple[int, str]]) -> None:
        self.calls.append("add")
        self.known |= dict(answers)


class Slow:
    """Somebody who answers one item each time that answers are collected, and sees each item once."""

    def __init__(self) -> None:
        self.inbox: list[int] = []
        self.seen: set[int] = set()

    def ask(self, items: Sequence[int], commit: Callable[[], None]) -> None:
        commit()
        self.inbox += [item for item in items if item not in self.seen]
        self.seen |= set(items)

    def collect(self, add: Callable[[Sequence[tuple[int, str]]], Any]) -> None:
        add([(self.inbox[0], "yes")])
        self.inbox.pop(0)


def test_one_turn_is_fit_choose_look_ask_add() -> None:
    learner, labeller = Counting(), Slow()
    turn(learner, labeller)
    assert learner.calls == ["fit", ("choose", "model"), ("look", "model", [0, 1]), "commit", "add"]
    assert learner.known == {0: "yes"} and learner.pending() == [1]


def test_nothing_is_chosen_while_items_are_pending() -> None:
    learner, labeller = Counting(), Slow()
    for _ in range(4):
        turn(learner, labeller)
    assert learner.known == dict.fromkeys(range(4), "yes") and learner.calls.count("fit") == 2
    assert learner.asked == [0, 1, 2, 3]


def test_a_labeller_that_cannot_ask_leaves_nothing_pending() -> None:
    class Broken(Slow):
        def ask(self, items: Sequence[int], commit: Callable[[], None]) -> None:
            raise OSError("the disk is full")

    learner = Counting()
    with pytest.raises(OSError, match="disk is full"):
        turn(learner, Broken())
    assert learner.pending() == [] and "commit" not in learner.calls


def test_answers_that_could_not_be_added_are_handed_over_again() -> None:
    learner, labeller = Counting(), Slow()
    assert ask_next(learner, labeller) == [0, 1]

    def fail(answers: Sequence[tuple[int, str]]) -> None:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        labeller.collect(fail)
    labeller.collect(learner.add)
    assert learner.known == {0: "yes"}
