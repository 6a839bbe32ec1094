"""An open project: what its folder and its pool hold, and the model of its labels."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from coresift import limits
from coresift.errors import InputError
from coresift.labelling.database import NAME as LEDGER
from coresift.labelling.database import damaged
from coresift.labelling.labels import is_number
from coresift.labelling.ledger import Ingested, Ledger
from coresift.labelling.model import default_model, predicted, std_factor
from coresift.labelling.pools import ItemPool, open_pool
from coresift.labelling.records import Answer, Chosen, Labelled, Task
from coresift.labelling.settings import Settings
from coresift.labelling.storage import (
    FEATURES,
    fingerprint_of,
    locked,
    lost_features,
    open_features,
    readable,
    stamp_of,
)
from coresift.types import Index


class LostPoolError(InputError):
    """The pool is gone, or another by now; ``reason`` says which."""

    def __init__(self, reason: str, project: OpenProject) -> None:
        self.reason = reason
        super().__init__(
            f"{reason}; put it back as it was, or keep the labels with: coresift export {project.folder} "
            f"labels.csv, and begin anew with: {project.new_project('labels.csv')}"
        )


class OpenProject:
    """A project's ledger, pool and features, and the model of its labels.

    Parameters
    ----------
    folder : where it lies.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.ledger = Ledger(self.folder / LEDGER)
        self._is_writing = False
        try:
            self.settings = Settings.from_json(self.ledger.recall("settings"))
        except InputError:
            self.close()
            raise
        except (KeyError, TypeError) as error:
            self.close()
            raise damaged(self.ledger.path, f"its settings are not whole: {error}") from None

    def close(self) -> None:
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What there is.

    @property
    def task(self) -> Task:
        return self.settings.task

    @property
    def target(self) -> str:
        return self.settings.target

    @property
    def kind(self) -> str:
        return self.settings.kind

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.settings.classes

    @cached_property
    def pool(self) -> ItemPool:
        """The items as people know them; an error where they are no longer those of the beginning."""
        path = Path(self.settings.reading.path)
        try:
            with readable(path):
                pool = open_pool(self.settings.reading)
                known = stamp_of(path) == self.settings.stamp
                same = known or pool.fingerprint() == self.settings.fingerprint
        except InputError as error:
            raise LostPoolError(str(error), self) from None
        if not same:
            raise LostPoolError(
                f"{path} has changed since the project began, and its rows may be others now", self
            )
        return pool

    def why_lost(self) -> str | None:
        """Say why the pool cannot be had any more; ``None`` where it can."""
        try:
            len(self.pool)
        except LostPoolError as error:
            return error.reason
        return None

    def new_project(self, labels: str) -> str:
        """Return the command that takes a file of this project's labels into a new one."""
        words = ["coresift", "init", "NEW", "--pool", "POOL", "--target", self.target, "--task", self.task]
        if self.settings.reading.id not in (None, "id"):
            words += ["--id", str(self.settings.reading.id)]
        if not all(self.drawn_at_random(self.ledger.labels())):
            words.append("--hand-picked")
        return shlex.join([*words, "--labels", labels])

    @cached_property
    def features(self) -> npt.NDArray[np.float32]:
        """(N, d) the pool's features, on disk; an error where they are no longer those of the beginning."""
        return open_features(self.folder, len(self.ledger), self.recall("features") or {})

    def rows(self, positions: Sequence[int] | Index) -> npt.NDArray[np.float32]:
        """(n, d) the features of some items."""
        # In the order of the file, which is read much faster that way.
        index = np.asarray(positions, dtype=np.int64)
        order = np.argsort(index, kind="stable")
        rows = np.empty((len(index), self.features.shape[1]), np.float32)
        rows[order] = self.features[index[order]]
        return rows

    def check(self) -> None:
        """Raise for damage in the ledger or the features, looking at all that is in them."""
        if problem := self.ledger.damage():
            raise damaged(self.ledger.path, problem)
        made = self.recall("features")
        if len(self.features) and made and made["fingerprint"] != fingerprint_of(self.folder / FEATURES):
            raise lost_features(self.folder, "has changed since the project began")

    def describe(self, positions: Sequence[int]) -> list[dict[str, str]]:
        """Describe items for people, by column."""
        return self.pool.describe(positions)

    def pending(self) -> list[Chosen]:
        """Return the items that were asked for and have no answer, by round and rank."""
        return [item for _, item in self.ledger.pending()]

    def positions(self, ids: Sequence[str]) -> list[int]:
        """Return the positions of items in the pool, each once; raises for an id that is not in it."""
        found = dict(zip(ids, self.ledger.positions(ids), strict=True))
        for id_, position in found.items():
            if position is None:
                raise InputError(f"there is no item {id_!r} in the pool")
        return [position for position in found.values() if position is not None]

    def are_items(self, ids: Sequence[str]) -> list[bool]:
        """Tell which ids are those of items in the pool."""
        return [position is not None for position in self.ledger.positions(ids)]

    def recall(self, key: str) -> Any:
        """Return a fact that was kept."""
        return self.ledger.recall(key)

    def remember(self, key: str, value: Any) -> None:
        """Keep a small fact."""
        with self.writing(wait=10.0):
            self.ledger.remember(key, value)

    @contextmanager
    def writing(self, wait: float = 0.0) -> Iterator[None]:
        """Be the one that writes; others wait as many seconds as they like, and are told then."""
        if self._is_writing:
            yield
            return
        with locked(self.folder, wait):
            self._is_writing = True
            try:
                yield
            finally:
                self._is_writing = False

    # Answers.

    def add(self, answers: Sequence[Answer], source: str) -> Ingested:
        """Add answers from elsewhere; what is known already changes nothing."""
        self._check_labels(answers, source)
        with self.writing(wait=10.0):
            return self.ledger.add_answers(answers, source)

    def class_counts(self) -> dict[str, int]:
        """Count the items of each class, the most frequent first; numbers have none."""
        return {} if self.task == "regression" else self.ledger.label_counts()

    def _check_labels(self, answers: Sequence[Answer], source: str) -> None:
        """Raise for labels that the project cannot have."""
        for answer in answers:
            if answer.label is None:
                continue
            where = f"{source}, item {answer.id!r}: {answer.label!r}"
            if self.task == "regression" and not is_number(answer.label):
                raise InputError(f"{where} is not a number")
            if self.classes is not None and answer.label not in self.classes:
                raise InputError(f"{where} is none of {', '.join(self.classes)}")

    # The model.

    def labels(self) -> tuple[list[Labelled], npt.NDArray[Any]]:
        """Return the labels in the order in which they came, and their values (n,): numbers or classes."""
        labelled = self.ledger.labels()
        kind = np.float64 if self.task == "regression" else np.str_
        return labelled, np.array([one.label for one in labelled], dtype=kind)

    def drawn_at_random(self, labelled: Sequence[Labelled]) -> list[bool]:
        """Tell of each label whether its item was drawn at random from the pool."""
        rounds = self.ledger.rounds()
        included = {one.number: one.asked["must_include"] for one in rounds if one.strategy == "random"}

        def is_random(one: Labelled) -> bool:
            if one.round in included:
                wished = included[one.round]
                return not wished or self.ledger.ids([one.position])[0] not in wished
            return one.first and one.round == 0 and not self.settings.hand_picked

        return [is_random(one) for one in labelled]

    def fit(self) -> Any | None:
        """Fit the model to all labels; ``None`` where these are too few to learn from."""
        labelled, values = self.labels()
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
        """Return what calibrates the standard deviations of a model of all labels; see `std_factor`."""
        if self.task == "classification":
            return 1.0
        labelled, values = self.labels()
        size, seed = len(self.features), self.settings.seed
        some = np.random.default_rng(seed).choice(size, min(limits.POOL_SAMPLE, size), replace=False)
        return std_factor(model, self.rows([one.position for one in labelled]), values, self.rows(some), seed)
