"""The active learning loop: fit, choose, measure, ask, add.

A `Learner` fits a model and chooses, a `Labeller` answers, and `turn` runs one round with both. There are
two kinds of pairs: a simulated run and a table that has all labels (`coresift.bench.replay`), or a
labelling project and files or a labelling server (`coresift.labelling`).

The commands for CSV files do not use `turn`, because people may take days to fill in a file. `coresift
select` ends with `ask_next`. `coresift ingest` calls neither `Labeller.collect` nor `Learner.add`: it adds
the answers through `coresift.labelling.project.Project.ingest_file`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

AskedItem = TypeVar("AskedItem", contravariant=True)
GivenAnswer = TypeVar("GivenAnswer", covariant=True)
TakenAnswer = TypeVar("TakenAnswer", contravariant=True)
Item = TypeVar("Item")
AnyAnswer = TypeVar("AnyAnswer")
Model = TypeVar("Model")
Record = TypeVar("Record")


class Labeller(Protocol[AskedItem, GivenAnswer]):
    """The source of labels: a table, people with a CSV file, a labelling server, a page in the browser.

    A labeller is told what to ask, and hands over what was answered. It decides when each becomes durable,
    because only it knows when nothing can get lost on the way.
    """

    def ask(self, items: Sequence[AskedItem], commit: Callable[[], None]) -> Any:
        """Send items to the people who label them, in the order of choice.

        Items may be asked for again before they are answered, and must then not arrive twice. Call ``commit``
        once, when the items can no longer get lost: it records that they are asked for. A file calls it when
        its content is on the disk and only its name is missing; a server calls it before it sends, since it
        can send again. After an error before that, nothing was asked.
        """

    def collect(self, add: Callable[[Sequence[GivenAnswer]], Any]) -> Any:
        """Hand the answers that came in to ``add``, all at once; none of them may be lost if that fails.

        What marks answers as collected, such as the time of the last look, is kept after ``add`` returned.
        """


class Learner(Protocol[Model, Item, TakenAnswer, Record]):
    """The learner that needs labels: one simulated run, or a labelling project."""

    def pending(self) -> Sequence[Item]:
        """Return the items that were asked for and have no answer yet."""

    def fit(self) -> Model:
        """Fit a model to the labels so far."""

    def choose(self, model: Model) -> Sequence[Item]:
        """Choose what to ask next."""

    def look(self, model: Model, items: Sequence[Item]) -> Record:
        """Measure the model and what was chosen: the record of this turn."""

    def commit(self, record: Record) -> None:
        """Write the record down; from now on its items are pending."""

    def add(self, answers: Sequence[TakenAnswer]) -> Any:
        """Add answers to the labels."""


def ask_next(learner: Learner[Model, Item, AnyAnswer, Record], labeller: Labeller[Item, AnyAnswer]) -> Record:
    """Fit, choose, look and ask: the half of a turn that ends where somebody has to answer.

    In a labelling project, the learner is a `coresift.labelling.rounds.NextBatch`.
    """
    model = learner.fit()
    items = learner.choose(model)
    record = learner.look(model, items)
    labeller.ask(items, lambda: learner.commit(record))
    return record


def turn(learner: Learner[Model, Item, AnyAnswer, Record], labeller: Labeller[Item, AnyAnswer]) -> None:
    """Run one round; where items are pending, ask for them again instead of choosing others."""
    pending = learner.pending()
    if pending:
        labeller.ask(pending, lambda: None)
    else:
        ask_next(learner, labeller)
    labeller.collect(learner.add)
