"""Write batches to CSV files, and read the answers in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coresift.labelling.labellers.files import read_answers, read_content, write_batch
from coresift.labelling.ledger import AddedAnswers
from coresift.labelling.opened import OpenProject
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
        """Hand over the answers in the file; `Project.ingest_file` also records the file's fingerprint."""
        return add(self.read()[0])

    def read(self) -> tuple[list[Answer], int, str]:
        """Read the answers, the number of rows that were ignored, and the file's fingerprint."""
        content, project = read_content(self.path), self.project
        answers, ignored = read_answers(
            self.path,
            content,
            target=project.target,
            task=project.task,
            ids=project.are_items,
            classes=project.classes,
            id_column=project.settings.reading.id,
        )
        return answers, ignored, fingerprint_of(content)


@dataclass(frozen=True)
class IngestedFile:
    """What `Project.ingest_file` did with a file: outcomes of its answers, ignored rows, and new classes.

    ``known`` and ``new_classes`` are empty if the classes were named when the project began.
    """

    outcomes: AddedAnswers
    ignored: int  # number of rows with a word for no label, such as NA
    known: tuple[str, ...] = ()  # classes that had a label before
    new_classes: Mapping[str, int] = field(default_factory=dict)  # the number of labels of each new class
