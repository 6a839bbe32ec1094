"""An open project: its ledger, pool and features, and the model of its labels."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from coresift import limits
from coresift.errors import InputError
from coresift.labelling import storage
from coresift.labelling.database import NAME as LEDGER
from coresift.labelling.database import damaged
from coresift.labelling.labels import is_number
from coresift.labelling.ledger import AddedAnswers, Ledger
from coresift.labelling.model import default_model, predicted, std_factor
from coresift.labelling.pools import ItemPool, open_pool
from coresift.labelling.records import Answer, Chosen, Labelled
from coresift.labelling.settings import Settings
from coresift.types import Index


class LostPoolError(InputError):
    """The pool is gone or has changed; ``reason`` says which."""

    def __init__(self, reason: str, project: OpenProject) -> None:
        self.reason = reason
        super().__init__(
            f"{reason}; put it back as it was, or keep the labels with: coresift export {project.folder} "
            f"labels.csv, and begin anew with: {project.new_project('labels.csv')}"
        )


class OpenProject:
    """A project that exists: its ledger, its pool and features, and the model of its labels.

    It looks things up, adds answers and fits the model, which is all that `NextBatch` needs. `Project` is an
    `OpenProject` that also creates projects, chooses batches and ingests files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.ledger = Ledger(self.folder / LEDGER)
        self._lock = FileLock(self.folder / storage.LOCK)
        with ExitStack() as undo:
            undo.callback(self.close)
            self.settings = self._read_settings()
            undo.pop_all()
        self.task, self.target = self.settings.task, self.settings.target
        self.pool_kind, self.classes = self.settings.kind, self.settings.classes

    def _read_settings(self) -> Settings:
        try:
            return Settings.from_json(self.recall("settings"))
        except (KeyError, TypeError) as error:
            raise damaged(self.ledger.path, f"its settings are not whole: {error}") from None

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The pool and its features.

    @cached_property
    def pool(self) -> ItemPool:
        """The items as people know them; raises if they have changed since the project began."""
        path, settings = Path(self.settings.reading.path), self.settings
        try:
            with storage.readable(path):
                pool = open_pool(settings.reading)
                if settings.stamp != storage.stamp_of(path) and settings.fingerprint != pool.fingerprint():
                    raise InputError(
                        f"{path} has changed since the project began, and its rows may be others now"
                    )
        except InputError as error:
            raise LostPoolError(str(error), self) from None
        return pool

    def why_lost(self) -> str | None:
        """Say why the pool cannot be used any more; ``None`` if it can."""
        try:
            len(self.pool)
        except LostPoolError as error:
            return error.reason
        return None

    def new_project(self, labels: str) -> str:
        """Return the command that begins a new project with a file of this project's labels."""
        words = ["coresift", "init", "NEW", "--pool", "POOL", "--target", self.target, "--task", self.task]
        if self.settings.reading.id not in (None, "id"):
            words += ["--id", str(self.settings.reading.id)]
        if not all(self.drawn_at_random(self.ledger.labels())):
            words.append("--hand-picked")
        return shlex.join([*words, "--labels", labels])

    @cached_property
    def features(self) -> npt.NDArray[np.float32]:
        """(N, d) the pool's features, on disk; raises if they have changed since the project began."""
        return storage.open_features(self.folder, len(self.ledger), self.recall("features") or {})

    def rows(self, positions: Sequence[int] | Index) -> npt.NDArray[np.float32]:
        """(n, d) the features of some items."""
        # In the order of the file, which is read much faster that way.
        index = np.asarray(positions, dtype=np.int64)
        order = np.argsort(index, kind="stable")
        rows = np.empty((len(index), self.features.shape[1]), np.float32)
        rows[order] = self.features[index[order]]
        return rows

    def check(self) -> None:
        """Raise if any part of the ledger or the features is damaged."""
        if problem := self.ledger.damage():
            raise damaged(self.ledger.path, problem)
        made, path = self.recall("features"), self.folder / storage.FEATURES
        if len(self.features) and made and made["fingerprint"] != storage.fingerprint_of(path):
            raise storage.lost_features(self.folder, "has changed since the project began")

    # Items, facts and answers.

    def describe(self, positions: Sequence[int]) -> list[dict[str, str]]:
        """Describe items for people, by column."""
        return self.pool.describe(positions)

    def pending(self) -> list[Chosen]:
        """Return the items that were asked for and have no answer, by round and rank."""
        return [item for _, item in self.ledger.pending()]

    def positions(self, ids: Sequence[str]) -> list[int]:
        """Return the positions of items in the pool, each once; raises for an id that is not in it."""
        positions: dict[int, str] = {}
        for id_, position in zip(ids, self.ledger.positions(ids), strict=True):
            if position is None:
                raise InputError(f"there is no item {id_!r} in the pool")
            positions[position] = id_
        return list(positions)

    def are_items(self, ids: Sequence[str]) -> list[bool]:
        """Tell which ids belong to items in the pool."""
        return [position is not None for position in self.ledger.positions(ids)]

    def recall(self, key: str) -> Any:
        """Return a fact that was kept."""
        return self.ledger.recall(key)

    def remember(self, key: str, value: Any) -> None:
        """Keep a small fact."""
        with self.writing(wait=10.0):
            self.ledger.remember(key, value)

    def writing(self, wait: float = 0.0) -> AbstractContextManager[None]:
        """Hold the project's lock; raises `BusyError` if another program has it after ``wait`` seconds."""
        return storage.locked(self._lock, wait)

    def add(self, answers: Sequence[Answer], source: str) -> AddedAnswers:
        """Add the answers that a `Labeller` collected; what is known already changes nothing.

        Labels are checked here, because a `Labeller` may hand over anything. `coresift ingest` takes another
        path, `Project.ingest_file`, where they are checked as the file is read.
        """
        for answer in answers:
            self._check_label(answer, source)
        with self.writing(wait=10.0):
            return self.ledger.add_answers(answers, source)

    def _check_label(self, answer: Answer, source: str) -> None:
        """Raise for a label that the project cannot have."""
        if answer.label is None:
            return
        where = f"{source}, item {answer.id!r}: {answer.label!r}"
        if self.task == "regression" and not is_number(answer.label):
            raise InputError(f"{where} is not a number")
        if self.classes is not None and answer.label not in self.classes:
            raise InputError(f"{where} is none of {', '.join(self.classes)}")

    def class_counts(self) -> dict[str, int]:
        """Count the items of each class, the most frequent first; empty for a regression."""
        return {} if self.task == "regression" else self.ledger.label_counts()

    # The model.

    def labels_and_values(self) -> tuple[list[Labelled], npt.NDArray[Any]]:
        """Return the labels in the order in which they came, and the targets y (n,): numbers or classes."""
        labelled = self.ledger.labels()
        dtype = np.float64 if self.task == "regression" else np.str_
        return labelled, np.array([one.label for one in labelled], dtype=dtype)

    def drawn_at_random(self, labelled: Sequence[Labelled]) -> list[bool]:
        """Tell for each label whether its item was drawn at random from the pool."""
        rounds = [made for made in self.ledger.rounds() if made.strategy == "random"]
        others = {made.number: set(self.positions(made.asked["must_include"])) for made in rounds}
        if not self.settings.hand_picked:  # the first labels; later ones that no round asked for are not
            others[0] = {one.position for one in labelled if not one.first}
        return [one.round in others and one.position not in others[one.round] for one in labelled]

    def fit(self) -> Any | None:
        """Fit the model to all labels; ``None`` if these are too few to learn from."""
        return self.fit_to(*self.labels_and_values())

    def fit_to(self, labelled: Sequence[Labelled], values: npt.NDArray[Any]) -> Any | None:
        """Fit the model to labels and their values (n,); ``None`` if these are too few to learn from."""
        if len(labelled) < limits.LEAST_LABELS or len(np.unique(values)) < 2:
            return None
        model = default_model(self.task, len(labelled), self.settings.seed)
        return model.fit(self.rows([one.position for one in labelled]), values)

    def predictions(self, positions: Sequence[int]) -> list[tuple[str, float] | None]:
        """Return for each item the predicted label and its probability, or for numbers its std."""
        model = self.fit()
        if model is None:
            return [None] * len(positions)
        return list(predicted(model, self.task, self.rows(positions), self.std_factor(model)))

    def std_factor(self, model: Any) -> float:
        """Return the factor that calibrates the standard deviations of a model of all labels."""
        if self.task == "classification":
            return 1.0
        labelled, values = self.labels_and_values()
        size, seed = len(self.features), self.settings.seed
        sample = np.random.default_rng(seed).choice(size, min(limits.POOL_SAMPLE, size), replace=False)
        x = self.rows([one.position for one in labelled])
        return std_factor(model, x, values, self.rows(sample), seed)
