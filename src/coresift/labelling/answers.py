"""Labels that come in: from files, or from elsewhere."""

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
        return add(self.read().answers)

    def read(self) -> FilledIn:
        """Read what was filled in."""
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
        return FilledIn(answers, ignored, self.path.name, fingerprint_of(content))


@dataclass(frozen=True)
class FilledIn:
    """What a file of labels holds.

    Attributes
    ----------
    ignored : rows with a word for no label, such as NA.
    source, fingerprint : the name of the file, and of what it holds.
    """

    answers: Sequence[Answer]
    ignored: int
    source: str
    fingerprint: str


@dataclass(frozen=True)
class Intake:
    """What a file of labels brought.

    Attributes
    ----------
    changed : what its answers changed.
    ignored : rows with a word for no label, such as NA.
    known : the classes that labels had before.
    new_classes : how many labels each other class has by now; none where classes were named at the start.
    """

    changed: Ingested
    ignored: int
    known: tuple[str, ...] = ()
    new_classes: Mapping[str, int] = field(default_factory=dict)


def ingest_file(project: OpenProject, path: Path) -> Intake:
    """Add the labels of a file to the ledger."""
    before = project.class_counts()
    file = BatchFile(project, path).read()
    changed = project.ledger.add_answers(file.answers, file.source, file.fingerprint)
    if project.classes is not None:
        return Intake(changed, file.ignored)
    new = {name: count for name, count in project.class_counts().items() if name not in before}
    return Intake(changed, file.ignored, tuple(before), new)


def check_replaceable(project: OpenProject, path: Path) -> None:
    """Raise where something would be lost: the pool, the project itself, answers not ingested yet."""
    resolved = path.resolve()
    if resolved == Path(project.settings.reading.path).resolve():
        raise InputError(f"{path} is the pool; name another file")
    # SQLite keeps files next to the ledger, whose names begin with its own.
    own = resolved.name in (FEATURES, LOCK) or resolved.name.startswith(LEDGER)
    if own and resolved.parent == project.folder.resolve():
        raise InputError(f"{path} is what the project itself is kept in; name another file")
    if path.suffix.lower() != ".csv" or not path.exists():
        return
    try:
        file = BatchFile(project, path).read()
    except InputError:
        raise InputError(
            f"{path} is there and is no batch to write over; mend it, remove it, or name another file"
        ) from None
    if not project.ledger.knows_answers(file.answers, file.source, file.fingerprint):
        raise InputError(f"{path} has answers in it: take them in with coresift ingest, or name another file")
