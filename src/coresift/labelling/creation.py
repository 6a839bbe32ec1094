"""Create a project: read the pool and its labels, compute features, and open a ledger."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

import coresift
from coresift.errors import InputError, cannot_write
from coresift.labelling import storage
from coresift.labelling.database import NAME as LEDGER
from coresift.labelling.encoders import broken_images, write_features
from coresift.labelling.labellers.files import RESERVED, answer_parts, read_answers, read_content
from coresift.labelling.labels import (
    PLAIN_NUMBERS,
    is_label,
    is_number,
    is_separated_number,
    plain_class,
    plain_number,
)
from coresift.labelling.ledger import Ledger
from coresift.labelling.pools import ItemPool, Reading, open_pool
from coresift.labelling.pools.base import row_name
from coresift.labelling.records import Answer, Task
from coresift.labelling.settings import Settings


@dataclass(frozen=True)
class Beginning:
    """The options of a new project."""

    reading: Reading
    task: Task | None = None  # by default what the labels look like
    classes: Sequence[str] | None = None  # the labels that are allowed; None for any
    labels: Path | None = None  # a file of further labels
    hand_picked: bool = False  # whether the labels were picked by hand, not drawn at random
    embedding: str | None = None  # computes features of texts or images, see `write_features`
    seed: int = 0  # of everything random
    skip_broken: bool = False  # ignore images that cannot be read

    def checked(self) -> Beginning:
        """Raise for options that no project can have; return them with classes in their plain form."""
        if not 0 <= self.seed < 2**32:
            raise InputError(f"--seed is {self.seed}, expected an integer from 0 to {2**32 - 1}")
        target = self.reading.target
        if target is None:
            raise InputError("say what is to be learned: --target COLUMN")
        answer_parts(target)  # raises for a name that answers need
        if target in RESERVED:
            raise InputError(f"--target is {target!r}, which is a column of exports; rename it")
        if self.classes is None:
            return self
        if self.task == "regression":
            raise InputError("--classes goes with --task classification")
        classes = tuple(dict.fromkeys(map(plain_class, self.classes)))
        return replace(self, classes=classes, task=self.task or "classification")


class _FirstLabels(NamedTuple):
    """The labels that exist when a project begins."""

    task: Task
    known: Mapping[int, str]  # the labels of the pool, by position
    no_label_words: int  # number of cells with a word for no label
    file: tuple[Sequence[Answer], str, str] | tuple[()]  # answers of a file, its name and fingerprint


def create_project(folder: Path, beginning: Beginning) -> None:
    """Make the files of a project; the folder is a project once all of them are there."""
    pool_path = Path(beginning.reading.path)
    storage.check_nothing_is_lost(folder, pool_path)
    beginning = beginning.checked()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(f"the folder {folder}", error) from None
    with storage.locked(FileLock(folder / storage.LOCK)):
        storage.check_nothing_is_lost(folder, pool_path)  # once more: another init may have ended since
        pool = _open(beginning)
        labels = _first_labels(beginning, pool)
        with storage.readable(pool_path):  # before its features are computed: it may change meanwhile
            pool_fingerprint, stamp = pool.fingerprint(), storage.stamp_of(Path(pool.reading.path))
        with storage.unfinished(folder) as new:
            made = write_features(
                pool, new / storage.FEATURES, embedding=beginning.embedding, seed=beginning.seed
            )
            settings = Settings(
                reading=pool.reading,
                kind=pool.kind,
                task=labels.task,
                target=str(beginning.reading.target),
                classes=None if beginning.classes is None else tuple(beginning.classes),
                features=made,
                fingerprint=pool_fingerprint,
                seed=beginning.seed,
                hand_picked=beginning.hand_picked,
                stamp=stamp,
            )
            facts = {
                "settings": asdict(settings),
                "coresift": coresift.__version__,
                "ignored": labels.no_label_words,
                "features": storage.describe_features(new / storage.FEATURES),
            }
            Ledger.create(new / LEDGER, pool.ids(), facts, labels.known, *labels.file).close()
            for name in (storage.FEATURES, LEDGER):  # with the ledger, the folder is a project
                os.replace(new / name, folder / name)


def _open(beginning: Beginning) -> ItemPool:
    with storage.readable(beginning.reading.path):
        pool = open_pool(beginning.reading)
        if beginning.skip_broken:
            if pool.kind != "images":
                raise InputError("--skip-broken is for folders of images; leave it out")
            pool = open_pool(replace(beginning.reading, skip=tuple(broken_images(pool))))
        pool.check_writable()
    return pool


def _first_labels(beginning: Beginning, pool: ItemPool) -> _FirstLabels:
    """Read the labels of the pool and of a file, and find out the task if nobody said it."""
    known, words_in_pool = _pool_labels(beginning, pool)
    path = beginning.labels
    content = b"" if path is None else read_content(path)
    assumed = beginning.task or "classification"  # the labels may tell the task
    answers, words_in_file = _read(beginning, pool, content, assumed)
    labels = [*known.values(), *(answer.label for answer in answers if answer.label)]
    task = beginning.task or _guess_task(labels, str(beginning.reading.target), pool.targets is not None)
    if task != assumed:
        answers, _ = _read(beginning, pool, content, task)
    known = {position: _checked(label, position, task, beginning) for position, label in known.items()}
    file = () if path is None else (answers, path.name, storage.fingerprint_of(content))
    return _FirstLabels(task, known, words_in_pool + words_in_file, file)


def _pool_labels(beginning: Beginning, pool: ItemPool) -> tuple[dict[int, str], int]:
    """The labels of the pool by position, and how many other cells have a word for no label."""
    cells = {position: text for position, text in enumerate(pool.targets or ()) if text is not None}
    labels = {
        position: plain_class(text) for position, text in cells.items() if is_label(text, beginning.classes)
    }
    return labels, len(cells) - len(labels)


def _read(beginning: Beginning, pool: ItemPool, content: bytes, task: Task) -> tuple[list[Answer], int]:
    """Read the file of labels, if there is one."""
    if beginning.labels is None:
        return [], 0
    ids = set(pool.ids())
    return read_answers(
        beginning.labels,
        content,
        target=str(beginning.reading.target),
        task=task,
        are_known=lambda some: [id_ in ids for id_ in some],
        classes=beginning.classes,
        id_column=pool.reading.id,
    )


def _checked(label: str, position: int, task: Task, beginning: Beginning) -> str:
    """A label of the pool, if the project can have it; numbers in their shortest form."""
    where = f"{row_name(beginning.reading.path, position)} of the pool"
    if task == "regression":
        return plain_number(f"{where}, column {beginning.reading.target!r}", label)
    if beginning.classes is not None and label not in beginning.classes:
        raise InputError(f"{where}: {label!r} is none of {', '.join(beginning.classes)}")
    return label


def _guess_task(labels: Sequence[str], target: str, is_column: bool) -> Task:
    """Guess the task: words and few integers are classes, other labels numbers."""
    which = "say --task regression or --task classification"
    if not labels:
        missing = "" if is_column else f", and no column {target!r}"
        raise InputError(f"the pool has no labels to tell by{missing}; {which}")
    try:
        numbers = {float(label) for label in labels}
    except ValueError:
        _refuse_separated_numbers(labels, target)
        return "classification"
    if len(numbers) > 20 or not all(map(float.is_integer, numbers)):
        return "regression"
    if 2 * len(numbers) > len(labels):
        raise InputError(f"{len(numbers)} different integers may be classes or not; {which}")
    return "classification"


def _refuse_separated_numbers(labels: Sequence[str], target: str) -> None:
    """Raise if all labels are numbers, and some have a decimal comma or separators between thousands."""
    if all(map(is_separated_number, labels)):
        odd = next(label for label in labels if not is_number(label))
        raise InputError(
            f"{target!r} has labels such as {odd!r}: {PLAIN_NUMBERS}; if they are classes, say --task "
            "classification"
        )
