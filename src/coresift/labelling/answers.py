"""Read answers from CSV files, and check which files may be overwritten."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coresift.errors import InputError
from coresift.labelling.database import NAME as LEDGER
from coresift.labelling.labellers.files import read_answers, read_content, write_batch
from coresift.labelling.ledger import Ingested
from coresift.labelling.opened import OpenProject
from coresift.labelling.records import Answer, Chosen
from coresift.labelling.storage import FEATURES, LOCK, fingerprint_of


class BatchFile:
    """A CSV file as a `Labeller`: it is written for annotators, who fill it in."""

    def __init__(self, project: OpenProject, path: Path) -> None:
        self.project, self.path = project, path

    def ask(self, items: Sequence[Chosen], commit: Callable[[], None]) -> None:
        described = self.project.describe([item.position for item in items])
        id_column = self.project.settings.reading.id
        write_batch(self.path, self.project.target, items, described, id_column, commit)

    def collect(self, add: Callable[[Sequence[Answer]], Any]) -> Any:
        return add(self.read()[0])

    def read(self) -> tuple[list[Answer], int, str]:
        """Read the answers, the number of rows that were ignored, and the fingerprint of the file."""
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
class Intake:
    """The effect of a file of labels.

    Attributes
    ----------
    changed : what its answers changed.
    ignored : number of rows with a word for no label, such as NA.
    known : the classes that labels had before.
    new_classes : how many labels each new class has; empty if classes were named at the start.
    """

    changed: Ingested
    ignored: int
    known: tuple[str, ...] = ()
    new_classes: Mapping[str, int] = field(default_factory=dict)


def ingest(file: BatchFile) -> Intake:
    """Add the labels of a file to the ledger."""
    project = file.project
    before = project.class_counts()
    answers, ignored, fingerprint = file.read()
    changed = project.ledger.add_answers(answers, file.path.name, fingerprint)
    if project.classes is not None:
        return Intake(changed, ignored)
    new = {name: count for name, count in project.class_counts().items() if name not in before}
    return Intake(changed, ignored, tuple(before), new)


def check_replaceable(project: OpenProject, path: Path) -> None:
    """Raise if writing to ``path`` would lose the pool, the project itself, or answers not ingested yet."""
    resolved = path.resolve()
    if resolved == Path(project.settings.reading.path).resolve():
        raise InputError(f"{path} is the pool; name another file")
    # SQLite keeps files next to the ledger, whose names begin with its own.
    own = resolved.name in (FEATURES, LOCK) or resolved.name.startswith(LEDGER)
    if own and resolved.parent == project.folder.resolve():
        raise InputError(f"{path} is what the project itself is kept in; name another file")
    if path.suffix.lower() == ".csv" and path.exists():
        _check_ingested(project, path)


def _check_ingested(project: OpenProject, path: Path) -> None:
    try:
        answers, _, fingerprint = BatchFile(project, path).read()
    except InputError:
        raise InputError(
            f"{path} is there and is no batch to write over; mend it, remove it, or name another file"
        ) from None
    if not project.ledger.knows_answers(answers, path.name, fingerprint):
        raise InputError(f"{path} has answers in it: take them in with coresift ingest, or name another file")
