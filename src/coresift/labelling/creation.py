"""Begin a project: read the pool and its labels, make features, and open a ledger."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import coresift
from coresift.errors import InputError, cannot_write
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
from coresift.labelling.storage import (
    FEATURES,
    check_nothing_is_lost,
    describe_features,
    fingerprint_of,
    locked,
    readable,
    stamp_of,
    unfinished,
)


@dataclass(frozen=True)
class Beginning:
    """What a project is begun with.

    Attributes
    ----------
    reading : how the pool is read.
    task : by default what the labels look like.
    classes : the labels that are allowed; ``None`` for any.
    labels : a file of further labels.
    hand_picked : whether labels that are there were picked by hand, and not drawn at random.
    embedding : what makes features of texts or images, see `write_features`.
    seed : of everything that is drawn.
    skip_broken : leave out images that cannot be read.
    """

    reading: Reading
    task: Task | None = None
    classes: Sequence[str] | None = None
    labels: Path | None = None
    hand_picked: bool = False
    embedding: str | None = None
    seed: int = 0
    skip_broken: bool = False

    def checked(self) -> Beginning:
        """Raise for what no project can be begun with; return it with classes in their plain form."""
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
        classes = tuple(dict.fromkeys(map(plain_class, self.classes)))
        return replace(self, classes=classes, task=self.task or "classification")


@dataclass(frozen=True)
class FirstLabels:
    """The labels that are there when a project begins.

    Attributes
    ----------
    task : what they are.
    known : those of the pool, by position.
    answers : those of a file.
    ignored : cells whose word stands for no label.
    source : name and fingerprint of the file, if there is one.
    """

    task: Task
    known: Mapping[int, str]
    answers: Sequence[Answer]
    ignored: int
    source: tuple[str, str] | tuple[()]


def create_project(folder: Path, beginning: Beginning) -> None:
    """Make the files of a project; the folder is a project once all of them are there."""
    pool_path = Path(beginning.reading.path)
    check_nothing_is_lost(folder, pool_path)
    beginning = beginning.checked()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(f"the folder {folder}", error) from None
    with locked(folder):
        check_nothing_is_lost(folder, pool_path)  # once more: another init may have ended since
        pool = _open(beginning)
        labels = _first_labels(beginning, pool)
        with readable(pool_path):  # before its features are made: it may change while that goes on
            fingerprint, stamp = pool.fingerprint(), stamp_of(Path(pool.reading.path))
        with unfinished(folder) as new:
            made = write_features(pool, new / FEATURES, embedding=beginning.embedding, seed=beginning.seed)
            settings = Settings(
                reading=pool.reading,
                kind=pool.kind,
                task=labels.task,
                target=str(beginning.reading.target),
                classes=None if beginning.classes is None else tuple(beginning.classes),
                features=made.about,
                fingerprint=fingerprint,
                seed=beginning.seed,
                hand_picked=beginning.hand_picked,
                stamp=stamp,
            )
            facts = {
                "settings": asdict(settings),
                "coresift": coresift.__version__,
                "passed_over": labels.ignored,
                "features": describe_features(new / FEATURES),
            }
            source = (labels.answers, *labels.source) if labels.source else ()
            Ledger.create(new / LEDGER, pool.ids(), facts, labels.known, *source).close()
            for name in (FEATURES, LEDGER):  # with the ledger, the folder is a project
                os.replace(new / name, folder / name)


def _open(beginning: Beginning) -> ItemPool:
    with readable(beginning.reading.path):
        pool = open_pool(beginning.reading)
        if beginning.skip_broken:
            if pool.kind != "images":
                raise InputError("--skip-broken is for folders of images; leave it out")
            pool = open_pool(replace(beginning.reading, skip=tuple(broken_images(pool))))
        pool.check_writable()
    return pool


def _first_labels(beginning: Beginning, pool: ItemPool) -> FirstLabels:
    """Read the labels of the pool and of a file, and find out the task if nobody said it."""
    classes, path = beginning.classes, beginning.reading.path
    cells = {position: text for position, text in enumerate(pool.targets() or ()) if text is not None}
    known = {position: plain_class(text) for position, text in cells.items() if is_label(text, classes)}
    unlabelled_cells = len(cells) - len(known)
    content = b"" if beginning.labels is None else read_content(beginning.labels)
    # As classes first: the labels may be what tells the task.
    answers, ignored = _read(beginning, pool, content, beginning.task or "classification")
    labels = [*known.values(), *(answer.label for answer in answers if answer.label)]
    task = beginning.task or _guess_task(labels, str(beginning.reading.target), pool.targets() is not None)
    if task == "regression":
        if beginning.task is None:
            answers, _ = _read(beginning, pool, content, task)
        known = {
            position: plain_number(
                f"{row_name(path, position)} of the pool, column {beginning.reading.target!r}", label
            )
            for position, label in known.items()
        }
    if classes is not None:
        _check_classes(known, classes, task, path)
    return FirstLabels(
        task,
        known,
        answers,
        ignored + unlabelled_cells,
        () if beginning.labels is None else (beginning.labels.name, fingerprint_of(content)),
    )


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
        ids=lambda some: [id_ in ids for id_ in some],
        classes=beginning.classes,
        id_column=pool.reading.id,
    )


def _guess_task(labels: Sequence[str], target: str, is_column: bool) -> Task:
    """Tell what labels look like: words and few integers are classes, others numbers."""
    which = "say --task regression or --task classification"
    if not labels:
        missing = "" if is_column else f", and no column {target!r}"
        raise InputError(f"the pool has no labels to tell by{missing}; {which}")
    try:
        numbers = {float(label) for label in labels}
    except ValueError:
        if not all(map(is_separated_number, labels)):
            return "classification"
        odd = next(label for label in labels if not is_number(label))
        raise InputError(
            f"{target!r} has labels such as {odd!r}: {PLAIN_NUMBERS}; if they are classes, say --task "
            "classification"
        ) from None
    if len(numbers) > 20 or not all(number.is_integer() for number in numbers):
        return "regression"
    if 2 * len(numbers) > len(labels):
        raise InputError(f"{len(numbers)} different integers may be classes or not; {which}")
    return "classification"


def _check_classes(known: Mapping[int, str], classes: Sequence[str], task: Task, pool: str) -> None:
    if task == "regression":
        raise InputError("--classes goes with --task classification")
    for position, label in known.items():
        if label not in classes:
            raise InputError(
                f"{row_name(pool, position)} of the pool: {label!r} is none of {', '.join(classes)}"
            )
