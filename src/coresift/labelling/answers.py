"""Write batches to CSV files, and read the answers in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coresift.labelling.labellers.files import read_answers, read_content, write_batch
from coresift.labelling.ledger import AddedAnswers
from coresift.labelling.open_project import OpenProject
from coresift.labelling.records import Answer, Chosen
from coresift.labelling.storage import fingerprint_of


class BatchFile:
    """A CSV file as a `Labeller`: it is written for annotators, who fill it in."""

    def __init__(self, project: OpenProject, path: Path) -> None:
        self.project, self.path = project, path

    def ask(self, items: Sequence[Chosen], commit: Callable[[], None]) -> None:
        described = self.project.describe([item.position for item in items])
        id_column = self.project.settings.reading.id
        write_batch(self.path, self.project.target, items, described, id_column, commit)

    def collect(self, add: Callable[[Sequence[Answer]], Any]) -> Any:
        """Hand over the answers in the file; `coresift.loop.turn` calls this.

        ``coresift ingest`` does not: it calls `Project.ingest_file`, which also records the file's
        fingerprint.
        """
        return add(self.read()[0])

    def read(self) -> tuple[list[Answer], int, str]:
        """Read the answers, the number of rows with a word for no label, and the file's fingerprint."""
        content, project = read_content(self.path), self.project
        answers, no_label_words = read_answers(
            self.path,
            content,
            target=project.target,
            task=project.task,
            are_known=project.are_items,
            classes=project.classes,
            id_column=project.settings.reading.id,
        )
        return answers, no_label_words, fingerprint_of(content)


@dataclass(frozen=True)
class IngestedFile:
    """What `Project.ingest_file` did with a file: what each answer changed, words for no label, new classes.

    ``known`` and ``new_classes`` are empty if the classes were named when the project began.
    """

    outcomes: AddedAnswers
    no_label_words: int  # number of rows with a word for no label, such as NA; empty rows are not counted
    known: tuple[str, ...] = ()  # classes that had a label before
    new_classes: Mapping[str, int] = field(default_factory=dict)  # the number of labels of each new class
