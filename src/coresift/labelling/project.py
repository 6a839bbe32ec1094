"""A project: a folder with a ledger and the pool's features, and what is done between two rounds."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

import coresift
from coresift.errors import cannot_write, is_full
from coresift.labelling.choose import Limits, asker, choose_within, stands_for
from coresift.labelling.encoders import broken_images, write_features
from coresift.labelling.labellers.files import RESERVED, answer_parts, read_answers, read_content, write_batch
from coresift.labelling.labels import (
    PLAIN_NUMBERS,
    is_label,
    is_number,
    is_separated_number,
    plain_class,
    plain_number,
)
from coresift.labelling.ledger import NAME as LEDGER
from coresift.labelling.ledger import Ingested, Labelled, Ledger, damaged, now
from coresift.labelling.model import MODEL_NAMES, default_model, std_factor
from coresift.labelling.pools import ItemPool, Reading, open_pool
from coresift.labelling.pools.base import row_name
from coresift.labelling.records import Answer, Chosen, Round, Task
from coresift.labelling.worth import information, worth
from coresift.strategies import DEFAULT, find_strategy, select
from coresift.types import Index, InputError

FEATURES, LOCK = "features.npy", ".lock"
# The folder in a project's folder where `Project.create` makes its files; it is gone once they are there.
UNFINISHED = ".coresift-init"
# With fewer labels than this a model knows too little to choose by.
LEAST_LABELS = 10
# Spread over the features alone, by points in the middle of others: oddities teach a first model little.
COLD = "k-medoids"
# Items that are looked at for a batch, drawn at random from larger pools.
CANDIDATES = 100_000
# The same without a model: medoids are moved often, and a sample tells as well where the middles are.
COLD_CANDIDATES = 20_000
# Items that stand for the whole pool where a number is averaged over it.
_POOL_SAMPLE = 5000


class BusyError(InputError):
    """Another program is writing to the project."""

    exit_code = 3


class NothingLeftError(InputError):
    """There is nothing left to choose."""

    exit_code = 4


class LostPoolError(InputError):
    """The pool is gone, or another by now; ``reason`` says which."""

    def __init__(self, reason: str, project: Project) -> None:
        self.reason = reason
        super().__init__(
            f"{reason}; put it back as it was, or keep the labels with: coresift export {project.folder} "
            f"labels.csv, and begin anew with: {project.new_project('labels.csv')}"
        )


@dataclass(frozen=True)
class Settings:
    """What a project was told when it began.

    Attributes
    ----------
    reading : how the pool is read.
    kind : of pool.
    task, target : what is learned.
    classes : the labels that are allowed; ``None`` for any.
    features : what was made of the pool, in words.
    fingerprint : of the pool.
    seed : of everything that is drawn.
    hand_picked : whether labels that were there at first were picked by hand, and not drawn at random.
    stamp : sizes and times of the pool's files: while they are the same, so is the pool.
    """

    reading: Reading
    kind: str
    task: Task
    target: str
    classes: tuple[str, ...] | None
    features: str
    fingerprint: str
    seed: int
    hand_picked: bool = False
    stamp: str = ""

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Settings:
        """From what JSON made of it."""
        reading = dict(described["reading"])
        known = {name.name for kind in (cls, Reading) for name in fields(kind)}
        if unknown := {*described, *reading} - known:
            raise InputError(
                f"the project has settings that this version does not know: {', '.join(sorted(unknown))}; it "
                "was made by a newer version of coresift: update coresift"
            )
        reading["features"] = tuple(reading["features"])
        reading["skip"] = tuple(reading.get("skip", ()))
        classes = described["classes"]
        return cls(
            **{
                **described,
                "reading": Reading(**reading),
                "classes": None if classes is None else tuple(classes),
            }
        )


@dataclass(frozen=True)
class Request:
    """What a batch is asked for with.

    Attributes
    ----------
    batch_size : how many items; may be left out where there is a budget.
    budget : what they may cost together.
    strategy : a name from `STRATEGIES`.
    exclude : ids of items that cannot be labelled, now or later.
    must_include : ids of items that the batch has to hold.
    per_group : at most so many of a group.
    candidates : how many items to look at, drawn at random; ``None`` for all.
    engine : "ray" for a cluster.
    """

    batch_size: int | None = None
    budget: float | None = None
    strategy: str = DEFAULT
    exclude: tuple[str, ...] = ()
    must_include: tuple[str, ...] = ()
    per_group: int | None = None
    candidates: int | None = CANDIDATES
    engine: str | None = None

    def __post_init__(self) -> None:
        if self.batch_size is None and self.budget is None:
            raise InputError("say how many items with --batch-size, or what they may cost with --budget")
        for name in ("batch_size", "budget", "per_group", "candidates"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"--{name.replace('_', '-')} is {value}, expected a number above zero")
        find_strategy(self.strategy)


@dataclass(frozen=True)
class Intake:
    """What a file of labels brought.

    Attributes
    ----------
    changed : what its answers changed.
    passed_over : how many rows have a word for no label, such as NA.
    known : the classes that labels had before.
    new_classes : how many labels each other class has by now; none where classes were named at the start.
    """

    changed: Ingested
    passed_over: int
    known: tuple[str, ...] = ()
    new_classes: Mapping[str, int] = field(default_factory=dict)


class Project:
    """A labelling project.

    Parameters
    ----------
    folder : where it lies; `create` makes one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.ledger = Ledger(self.folder / LEDGER)
        try:
            self.settings = Settings.of(self.ledger.recall("settings"))
        except InputError:
            self.close()
            raise
        except (KeyError, TypeError) as error:
            self.close()
            raise damaged(self.ledger.path, f"its settings are not whole: {error}") from None

    @classmethod
    def create(
        cls,
        folder: Path,
        reading: Reading,
        *,
        task: Task | None = None,
        classes: Sequence[str] | None = None,
        labels: Path | None = None,
        hand_picked: bool = False,
        embedding: str | None = None,
        seed: int = 0,
        skip_broken: bool = False,
    ) -> Project:
        """Begin a project: read the pool, make features of it, and open a ledger.

        Parameters
        ----------
        reading : how the pool is read.
        task : by default what the labels in the pool look like.
        classes : the labels that are allowed.
        labels : a file of further labels.
        hand_picked : whether labels that are there were picked by hand, and not drawn at random.
        embedding : what makes features of texts or images, see `write_features`.
        skip_broken : leave out images that cannot be read.
        """
        folder = Path(folder)
        _check_nothing_is_lost(folder, Path(reading.path))
        if not 0 <= seed < 2**32:
            raise InputError(f"--seed is {seed}, expected an integer from 0 to {2**32 - 1}")
        if reading.target is None:
            raise InputError("say what is to be learned: --target COLUMN")
        answer_parts(reading.target)  # raises for a name that answers need
        if reading.target in RESERVED:
            raise InputError(f"--target is {reading.target!r}, which is a column of exports; rename it")
        if classes is not None:
            classes = tuple(dict.fromkeys(map(plain_class, classes)))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(f"the folder {folder}", error) from None
        with _writing(folder):
            # Once more: another init may have ended since.
            _check_nothing_is_lost(folder, Path(reading.path))
            with _readable(reading.path):
                pool = open_pool(reading)
                if skip_broken:
                    if pool.kind != "images":
                        raise InputError("--skip-broken is for folders of images; leave it out")
                    pool = open_pool(replace(reading, skip=tuple(broken_images(pool))))
                pool.check_writable()
            said = {position: text for position, text in enumerate(pool.targets() or ()) if text is not None}
            known = {
                position: plain_class(text) for position, text in said.items() if is_label(text, classes)
            }
            ids = pool.ids()
            among = set(ids)
            content = b"" if labels is None else read_content(labels)

            def read(task: Task) -> tuple[list[Answer], int]:
                if labels is None or reading.target is None:
                    return [], 0
                return read_answers(
                    labels,
                    content,
                    target=reading.target,
                    task=task,
                    ids=lambda some: [one in among for one in some],
                    classes=classes,
                    id_column=pool.reading.id,
                )

            if classes is not None:
                task = task or "classification"
            # As text first: they may be what tells the task.
            answers, passed_over = read(task or "classification")
            passed_over += len(said) - len(known)
            guess = [*known.values(), *(one.label for one in answers if one.label)]
            task = task or _guess_task(guess, reading.target, pool.targets() is not None)
            if task == "regression":
                answers, _ = read(task)
                known = {
                    position: plain_number(
                        f"{row_name(reading.path, position)} of the pool, column {reading.target!r}", label
                    )
                    for position, label in known.items()
                }
            if classes is not None:
                _check_classes(known, classes, task, reading.path)
            with _readable(reading.path):  # before its features are made: it may change while that goes on
                fingerprint, stamp = pool.fingerprint(), _stamp(Path(pool.reading.path))
            with _unfinished(folder) as new:
                facts = write_features(pool, new / FEATURES, embedding=embedding, seed=seed)
                settings = Settings(
                    reading=pool.reading,
                    kind=pool.kind,
                    task=task,
                    target=reading.target,
                    classes=None if classes is None else tuple(classes),
                    features=facts.about,
                    fingerprint=fingerprint,
                    seed=seed,
                    hand_picked=hand_picked,
                    stamp=stamp,
                )
                facts_kept = {
                    "settings": asdict(settings),
                    "coresift": coresift.__version__,
                    "passed_over": passed_over,
                    "features": {
                        "time": _time(new / FEATURES),
                        "fingerprint": _fingerprint_of(new / FEATURES),
                    },
                }
                source = () if labels is None else (answers, labels.name, _fingerprint_of(content))
                Ledger.create(new / LEDGER, ids, facts_kept, known, *source).close()
                # The ledger comes last: with it, the folder is a project.
                for name in (FEATURES, LEDGER):
                    os.replace(new / name, folder / name)
        return cls(folder)

    def close(self) -> None:
        self.ledger.close()

    def __enter__(self) -> Project:
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
            with _readable(path):
                pool = open_pool(self.settings.reading)
                same = _stamp(path) == self.settings.stamp or pool.fingerprint() == self.settings.fingerprint
        except InputError as error:
            raise LostPoolError(str(error), self) from None
        if not same:
            raise LostPoolError(
                f"{path} has changed since the project began, and its rows may be others now", self
            )
        return pool

    def why_lost(self) -> str | None:
        """Why the pool cannot be had any more; ``None`` where it can."""
        try:
            len(self.pool)
        except LostPoolError as error:
            return error.reason
        return None

    def new_project(self, labels: str) -> str:
        """The command that takes a file of this project's labels into a new one."""
        words = ["coresift", "init", "NEW", "--pool", "POOL", "--target", self.target, "--task", self.task]
        if self.settings.reading.id not in (None, "id"):
            words += ["--id", str(self.settings.reading.id)]
        if not all(self._drawn(self.ledger.labels())):
            words.append("--hand-picked")
        return shlex.join([*words, "--labels", labels])

    @cached_property
    def features(self) -> npt.NDArray[np.float32]:
        """(N, d) the pool's features, on disk; an error where they are no longer those of the beginning."""
        path, made = self.folder / FEATURES, self.recall("features") or {}
        try:
            rows = np.lib.format.open_memmap(path, mode="r")
            same = made.get("time") in (None, _time(path)) or made["fingerprint"] == _fingerprint_of(path)
        except Exception as error:  # NumPy parses a header as Python, which fails in many ways
            raise self._lost_features(f"cannot be read: {error}") from None
        if rows.ndim != 2 or len(rows) != len(self.ledger) or rows.dtype != np.float32:
            expected = f"({len(self.ledger)}, d) of float32"
            raise self._lost_features(f"has the shape {rows.shape} of {rows.dtype}, expected {expected}")
        if not same:
            raise self._lost_features("has changed since the project began")
        return rows

    def _lost_features(self, reason: str) -> InputError:
        return InputError(
            f"{self.folder / FEATURES} {reason}; put it back as it was, or save the labels for a new project "
            f"with: coresift repair {shlex.quote(str(self.folder))} OUT"
        )

    def check(self) -> None:
        """Raise for damage in the ledger or the features, looking at all that is in them."""
        if problem := self.ledger.damage():
            raise damaged(self.ledger.path, problem)
        made = self.recall("features")
        if len(self.features) and made and made["fingerprint"] != _fingerprint_of(self.folder / FEATURES):
            raise self._lost_features("has changed since the project began")

    def describe(self, positions: Sequence[int]) -> list[dict[str, str]]:
        """Items for people to see, by column."""
        return self.pool.describe(positions)

    def pending(self) -> list[Chosen]:
        """Items that were sent out and have no answer, by round and rank."""
        return [item for _, item in self.ledger.pending()]

    def recall(self, key: str) -> Any:
        """A fact that was kept."""
        return self.ledger.recall(key)

    def remember(self, key: str, value: Any) -> None:
        """Keep a small fact."""
        with self.writing(wait=10.0):
            self.ledger.remember(key, value)

    @contextmanager
    def writing(self, wait: float = 0.0) -> Iterator[None]:
        """Be the one that writes; others are told, after they waited for so many seconds."""
        with _writing(self.folder, wait):
            yield

    # Answers.

    def ingest_file(self, path: Path, wait: float = 10.0) -> Intake:
        """Take labels in from a file."""
        with self.writing(wait):
            before = self.class_counts()
            content = read_content(path)
            answers, passed_over = self._answers(path, content)
            changed = self.ledger.add_answers(answers, path.name, _fingerprint_of(content))
            if self.classes is not None:
                return Intake(changed, passed_over)
            new = {name: count for name, count in self.class_counts().items() if name not in before}
            return Intake(changed, passed_over, tuple(before), new)

    def class_counts(self) -> dict[str, int]:
        """How many items have which class, the most frequent first; numbers are none."""
        return {} if self.task == "regression" else self.ledger.label_counts()

    def _answers(self, path: Path, content: bytes) -> tuple[list[Answer], int]:
        return read_answers(
            path,
            content,
            target=self.target,
            task=self.task,
            ids=self.are_items,
            classes=self.classes,
            id_column=self.settings.reading.id,
        )

    def are_items(self, ids: Sequence[str]) -> list[bool]:
        """Whether ids are those of items in the pool."""
        return [position is not None for position in self.ledger.positions(ids)]

    def check_replaceable(self, path: Path) -> None:
        """Raise where something would be lost: the pool, the project itself, answers not taken in yet."""
        whole = path.resolve()
        if whole == Path(self.settings.reading.path).resolve():
            raise InputError(f"{path} is the pool; name another file")
        # SQLite keeps files beside the ledger, whose names begin with its own.
        own = whole.name in (FEATURES, LOCK) or whole.name.startswith(LEDGER)
        if own and whole.parent == self.folder.resolve():
            raise InputError(f"{path} is what the project itself is kept in; name another file")
        if path.suffix.lower() != ".csv" or not path.exists():
            return
        try:
            content = read_content(path)
            answers, _ = self._answers(path, content)
        except InputError:
            raise InputError(
                f"{path} is there and is no batch to write over; mend it, remove it, or name another file"
            ) from None
        if not self.ledger.knows_answers(answers, path.name, _fingerprint_of(content)):
            raise InputError(
                f"{path} has answers in it: take them in with coresift ingest, or name another file"
            )

    def ingest(self, answers: Sequence[Answer], source: str) -> Mapping[str, int]:
        """Take answers in from elsewhere; what is known already changes nothing."""
        for answer in answers:
            if answer.label is not None:
                self._check_label(answer, source)
        with self.writing(wait=10.0):
            return self.ledger.add_answers(answers, source).counts()

    def _check_label(self, answer: Answer, source: str) -> None:
        if self.task == "regression":
            if not is_number(answer.label or ""):
                raise InputError(f"{source}, item {answer.id!r}: {answer.label!r} is not a number")
        elif self.classes is not None and answer.label not in self.classes:
            raise InputError(
                f"{source}, item {answer.id!r}: {answer.label!r} is none of {', '.join(self.classes)}"
            )

    # The model.

    def labels(self) -> tuple[list[Labelled], npt.NDArray[Any]]:
        """The labels in the order in which they came, and their values (n,): numbers or classes."""
        found = self.ledger.labels()
        kind = np.float64 if self.task == "regression" else np.str_
        return found, np.array([one.label for one in found], dtype=kind)

    def rows(self, positions: Sequence[int] | Index) -> npt.NDArray[np.float32]:
        """(n, d) the features of some items."""
        # In the order of the file, which is read much faster so.
        index = np.asarray(positions, dtype=np.int64)
        order = np.argsort(index, kind="stable")
        found = np.empty((len(index), self.features.shape[1]), np.float32)
        found[order] = self.features[index[order]]
        return found

    def fit(self) -> Any | None:
        """The model on all labels; ``None`` where these are too few to learn from."""
        found, values = self.labels()
        if len(found) < LEAST_LABELS or len(np.unique(values)) < 2:
            return None
        model = default_model(self.task, len(found), self.settings.seed)
        return model.fit(self.rows([one.position for one in found]), values)

    def predictions(self, positions: Sequence[int]) -> list[tuple[str, float] | None]:
        """For each item the predicted label and its probability, or for numbers its standard deviation."""
        model = self.fit()
        if model is None:
            return [None] * len(positions)
        return list(predicted(model, self.task, self.rows(positions), self.std_factor(model)))

    def std_factor(self, model: Any) -> float:
        """What the standard deviations of a model of all labels are multiplied by; see `std_factor`."""
        if self.task == "classification":
            return 1.0
        found, values = self.labels()
        size, seed = len(self.features), self.settings.seed
        some = np.random.default_rng(seed).choice(size, min(_POOL_SAMPLE, size), replace=False)
        return std_factor(model, self.rows([one.position for one in found]), values, self.rows(some), seed)

    # The next batch.

    def select(self, batch_size: int) -> Round:
        """Choose the next batch of so many items and write it down."""
        return self.next_round(Request(batch_size))[0]

    def next_round(
        self,
        request: Request,
        more: bool = False,
        wait: float = 0.0,
        *,
        out: Path | None = None,
        replace: bool = False,
    ) -> tuple[Round, bool]:
        """Choose the next batch and write it down; and whether it is the last one again.

        Asked the same twice with nothing new between, it gives the same batch, and nothing is chosen twice.
        Asked for something else while items are pending and no answer came in, it raises an `InputError`.

        Parameters
        ----------
        more : choose a further batch, even though nothing came in since the last.
        wait : seconds to wait for another program that is writing.
        out : a CSV file for the batch. Where it cannot be written, nothing is chosen.
        replace : withdraw all items that are pending, and choose anew.
        """
        if more and replace:
            raise InputError("--more keeps the items that are pending, --replace withdraws them; say one")
        with self.writing(wait):
            rounds, pending = self.ledger.rounds(), self.ledger.pending()
            asked = asdict(request)
            if rounds and not more:
                last = rounds[-1]
                same = last.asked == json.loads(json.dumps(asked))
                others = replace and any(number != last.number for number, _ in pending)
                if same and not others and self.ledger.nothing_since(last.number):
                    if out is not None:
                        self.write_batch(out, last.batch)
                    return last, True
            if pending and not (more or replace) and not self.ledger.answers_since(rounds[-1].number):
                raise InputError(self._about_pending(len(pending)))
            withdrawn = [item.position for _, item in pending] if replace else []
            gone = Counter({number: len(items) for number, items in self.ledger.withdrawn().items()})
            gone.update(number for number, _ in pending if replace)
            # Withdrawn batches do not count, so that the same command gives the same batch after them.
            turn = 1 + sum(gone[one.number] < len(one.batch) for one in rounds)
            made = self._choose(request, asked, len(rounds) + 1, turn, withdrawn)

            def commit() -> None:
                self.ledger.add_round(made, self._positions(request.exclude), withdrawn)

            if out is None:
                commit()
            else:
                self.write_batch(out, made.batch, commit)
            return made, False

    def _about_pending(self, count: int) -> str:
        """Why nothing is chosen while items are pending, and what to do."""
        return (
            f"{count:,} {'item is' if count == 1 else 'items are'} pending already, and no answer came in "
            "since the last batch; --more chooses further items, --replace withdraws the pending ones and "
            f"chooses anew, and coresift pending {self.folder} lists them"
        )

    def write_batch(
        self, out: Path, batch: Sequence[Chosen], commit: Callable[[], None] = lambda: None
    ) -> None:
        """Write items to a CSV file for the people who label them; see `files.write_batch`."""
        described = self.describe([one.position for one in batch])
        write_batch(out, self.target, batch, described, self.settings.reading.id, commit)

    def reopen(self, ids: Sequence[str]) -> int:
        """Let items be chosen again that are pending, skipped or excluded; how many these were."""
        with self.writing(wait=10.0):
            states = self.ledger.states()
            back = [
                one for one in self._positions(ids) if states.get(one) in ("pending", "skipped", "excluded")
            ]
            self.ledger.reopen(back)
            return len(back)

    def _choose(
        self, request: Request, asked: Mapping[str, Any], number: int, turn: int, withdrawn: Sequence[int]
    ) -> Round:
        """The next batch, drawn as that of this ``turn``; items that are ``withdrawn`` are open again."""
        began = time.perf_counter()
        found, values = self.labels()
        model = self.fit()
        fitted = time.perf_counter()
        seed = int(np.random.SeedSequence([self.settings.seed, turn]).generate_state(1)[0])
        strategy = COLD if model is None and request.strategy != "random" else request.strategy
        pending = len(self.ledger.pending()) - len(withdrawn)
        open_items = self.ledger.counts()["unlabelled"] + len(withdrawn)
        batch, looked_at, weights = self._batch(request, strategy, model, found, seed, withdrawn)
        if not batch:
            raise NothingLeftError("there is nothing left to choose within these limits")
        ids = self.ledger.ids(batch)
        chosen = time.perf_counter()
        notes = {
            "cold": model is None,
            "looked_at": looked_at,
            "candidates": looked_at - pending,
            "open": open_items,
            "fit_seconds": round(fitted - began, 3),
            "choose_seconds": round(chosen - fitted, 3),
            "predicted": [] if model is None else self._expected(model, batch),
            **self._worth(found, values, model, batch, seed),
        }
        return Round(
            number=number,
            at=now(),
            strategy=strategy,
            seed=seed,
            model="none" if model is None else MODEL_NAMES[self.task],
            data=self._fingerprint(found),
            asked=asked,
            labels=len(values),
            seconds=round(time.perf_counter() - began, 3),
            notes=notes,
            batch=tuple(
                Chosen(position, id_, rank, weight)
                for rank, (position, id_, weight) in enumerate(zip(batch, ids, weights, strict=True), 1)
            ),
        )

    def _batch(
        self,
        request: Request,
        strategy: str,
        model: Any | None,
        found: Sequence[Labelled],
        seed: int,
        withdrawn: Sequence[int],
    ) -> tuple[list[int], int, list[float]]:
        """Positions of the batch, how many items were looked at, and how many each stands for."""
        states = self.ledger.states()
        states.update(dict.fromkeys(withdrawn, "unlabelled"))
        first, closed = (self._positions(ids) for ids in (request.must_include, request.exclude))
        for position in closed:
            if states.get(position) == "labelled":
                raise InputError(
                    f"item {self.ledger.ids([position])[0]!r} has a label and cannot be excluded"
                )
        for position in first:
            if states.get(position, "unlabelled") != "unlabelled" or position in closed:
                raise InputError(
                    f"item {self.ledger.ids([position])[0]!r} must be included, but it is "
                    f"{states.get(position, 'excluded')}"
                )
        taken = [position for position, state in states.items() if state == "pending"]
        out = {position for position, state in states.items() if state not in ("pending", "unlabelled")}
        open_mask = np.ones(len(self.features), bool)
        open_mask[[*out, *closed, *taken]] = False
        open_items = np.flatnonzero(open_mask)
        most = request.candidates
        if model is None and strategy == COLD:
            most = min(most or COLD_CANDIDATES, COLD_CANDIDATES)
        if most is not None and len(open_items) > most:
            open_items = np.random.default_rng(seed).choice(open_items, most, replace=False)
        looked_at = np.unique(np.concatenate([open_items, np.array([*taken, *first], np.int64)])).astype(
            np.int64
        )
        if len(looked_at) == len(taken):
            raise NothingLeftError("every item of the pool has a label, is pending, skipped or excluded")
        rows = self.rows(looked_at)
        limits = self._limits(request, looked_at)
        waiting, fixed = (
            np.searchsorted(looked_at, taken).tolist(),
            np.searchsorted(looked_at, first).tolist(),
        )
        labelled = self.rows([one.position for one in found]) if model is not None else None
        size = min(request.batch_size or len(looked_at), len(looked_at) - len(taken))
        if request.engine is not None:
            return self._on_cluster(request, strategy, model, labelled, size, taken, out | set(closed), seed)
        posterior = None if model is None else model.posterior_
        ask = asker(rows, posterior, labelled, strategy, size if request.batch_size else 128, seed)
        batch = choose_within(ask, len(rows), limits, waiting, [], fixed)
        shares = np.bincount(stands_for(rows, batch), minlength=len(batch)) if batch else np.empty(0)
        scale = len(self.features) / len(rows)
        return looked_at[batch].tolist(), len(looked_at), (shares * scale).round(1).tolist()

    def _expected(self, model: Any, batch: Sequence[int]) -> list[tuple[str, float | None]]:
        """The predicted label of each item of a batch when it was chosen, and the probability of a class."""
        # Standard deviations would have to be calibrated first, which takes longer than all else here.
        return [
            (label, None if self.task == "regression" else probability)
            for label, probability in predicted(model, self.task, self.rows(batch))
        ]

    def _worth(
        self,
        found: Sequence[Labelled],
        values: npt.NDArray[Any],
        model: Any | None,
        batch: Sequence[int],
        seed: int,
    ) -> dict[str, Any]:
        """What the batch is worth, in words and curves."""
        if model is None:
            return {}
        asked = np.array([one.round for one in found])
        some = np.random.default_rng(seed).choice(
            len(self.features), min(_POOL_SAMPLE, len(self.features)), replace=False
        )
        shares = information(model.posterior_, self.rows(some), self.rows(batch), seed)
        found_worth = worth(
            self.rows([one.position for one in found]),
            values,
            asked,
            np.array(self._drawn(found)),
            self.task,
            batch_size=len(batch),
            information=shares,
            earlier=[
                (one.labels, *one.notes["gain"]) for one in self.ledger.rounds() if one.notes.get("gain")
            ],
            seed=seed,
        )
        curves = {
            name: [astuple(point) for point in getattr(found_worth, name)]
            for name in ("curve", "fitted", "random")
        }
        share, random_share = shares or (None, None)
        return {
            "information": share,
            "random_information": random_share,
            "gain": found_worth.gain,
            "worth": list(found_worth.sentences),
            "curves": curves,
        }

    def _drawn(self, found: Sequence[Labelled]) -> list[bool]:
        """Whether each label is one of a random part of the pool."""
        by_chance = {one.number: one for one in self.ledger.rounds() if one.strategy == "random"}

        def drawn(one: Labelled) -> bool:
            if one.round not in by_chance:
                return one.first and one.round == 0 and not self.settings.hand_picked
            fixed = by_chance[one.round].asked["must_include"]
            return not fixed or self.ledger.ids([one.position])[0] not in fixed

        return [drawn(one) for one in found]

    def _on_cluster(
        self,
        request: Request,
        strategy: str,
        model: Any | None,
        labelled: npt.NDArray[np.float32] | None,
        size: int,
        taken: Sequence[int],
        closed: set[int],
        seed: int,
    ) -> tuple[list[int], int, list[float]]:
        if (
            model is None
            or request.budget is not None
            or request.per_group is not None
            or request.must_include
        ):
            raise InputError(
                "--engine ray chooses by a model and a number of items alone; leave out budgets, groups and "
                "fixed items, or the engine"
            )
        batch = select(
            self.folder / FEATURES,
            budget=size,
            strategy=strategy,
            posterior=model.posterior_,
            labelled=labelled,
            pending=taken,
            exclude=sorted(closed),
            engine="ray",
            seed=seed,
        )
        positions = batch.index.tolist()
        sample = np.random.default_rng(seed).integers(0, len(self.features), CANDIDATES)
        rows = np.concatenate([self.rows(positions), self.rows(sample)])
        shares = np.bincount(stands_for(rows, range(len(positions))), minlength=len(positions))
        scale = len(self.features) / len(rows)
        return positions, len(self.features), (shares * scale).round(1).tolist()

    def _limits(self, request: Request, looked_at: Index) -> Limits:
        costs = groups = None
        if request.budget is not None:
            costs = self.pool.costs()
            if costs is None:
                raise InputError("--budget is in the unit of a cost column; name one with --cost at init")
            costs = costs[looked_at]
        if request.per_group is not None:
            every = self.pool.groups()
            if every is None:
                raise InputError("--per-group needs a column of groups; name one with --group at init")
            groups = [every[position] for position in looked_at]
        return Limits(request.batch_size, request.budget, costs, request.per_group, groups)

    def _positions(self, ids: Sequence[str]) -> list[int]:
        found = self.ledger.positions(ids)
        for id_, position in zip(ids, found, strict=True):
            if position is None:
                raise InputError(f"there is no item {id_!r} in the pool")
        return list(dict.fromkeys(position for position in found if position is not None))

    def _fingerprint(self, found: Sequence[Labelled]) -> str:
        """Of the pool and of the labels."""
        digest = hashlib.sha256(self.settings.fingerprint.encode())
        for one in found:
            digest.update(f"{one.position} {one.label}\n".encode())
        return digest.hexdigest()


def predicted(
    model: Any, task: Task, rows: npt.NDArray[np.float32], std_factor: float = 1.0
) -> Iterator[tuple[str, float]]:
    """For rows (n, d), the predicted label and its probability, or for numbers its standard deviation."""
    for start in range(0, len(rows), 65536):
        part = rows[start : start + 65536]
        if task == "regression":
            mean, std = model.predict(part, return_std=True)
            yield from zip(map(repr, mean.tolist()), (std_factor * std).tolist(), strict=True)
        else:
            probs = model.predict_proba(part)
            names = model.classes_[probs.argmax(1)].tolist()
            yield from zip(names, probs.max(1).tolist(), strict=True)


def _stamp(path: Path) -> str:
    """Sizes and times of the files of a pool."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    found = [(str(file.relative_to(path)), file.stat()) for file in files if file.is_file()]
    digest = hashlib.sha256()
    for name, about in found:
        digest.update(f"{name} {about.st_size} {about.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _time(path: Path) -> int:
    """When a file was written last, in nanoseconds."""
    return path.stat().st_mtime_ns


def _fingerprint_of(content: bytes | Path) -> str:
    """SHA-256 of what a file holds, or of the file."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _readable(path: Path | str) -> Iterator[None]:
    """What the system says against reading a pool, such as that one may not, as an error of ours."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {error.filename or path}: {error.strerror}") from None


@contextmanager
def _writing(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """The lock of a project; it goes with the process, however that ends."""
    try:
        lock = FileLock(folder / LOCK, timeout=wait).acquire()
    except Timeout:
        raise BusyError(f"another program is writing to {folder}; wait for it to end") from None
    except OSError as error:
        raise cannot_write(f"to the folder {folder}", error) from None
    with lock:
        yield


@contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """Give a folder to make a project's files in, and remove what an init that was cut short left."""
    new = folder / UNFINISHED
    _remove_unfinished(folder)
    new.mkdir()
    try:
        yield new
    except OSError as error:
        if is_full(error):
            raise cannot_write(f"to the folder {folder}", error) from None
        raise
    finally:
        _remove_unfinished(folder)


def _remove_unfinished(folder: Path) -> None:
    if _is_leftover(folder):
        (folder / FEATURES).unlink(missing_ok=True)
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)


def _is_leftover(folder: Path) -> bool:
    """Whether the features in a folder without a ledger are those of an init that was cut short.

    That init had both files and had moved one of them.
    """
    new = folder / UNFINISHED
    return (new / LEDGER).exists() and not (new / FEATURES).exists()


def _check_nothing_is_lost(folder: Path, pool: Path) -> None:
    """Raise where a new project would be written over what is there."""
    if (folder / LEDGER).exists():
        raise InputError(f"{folder} is a project already; go on with coresift select, or name another")
    features = folder / FEATURES
    if not features.exists():
        return
    if features.resolve() == pool.resolve():
        raise InputError(
            f"{pool} is the pool, and a project in {folder} would be written over it; name another folder"
        )
    if _is_leftover(folder):
        return
    raise InputError(
        f"{folder} has no {LEDGER}, but a {FEATURES} that a project would be written over; name another "
        "folder, or remove it if it is left of a project"
    )


def _guess_task(known: Sequence[str], target: str, there: bool) -> Task:
    """What labels look like: words and few whole numbers are classes, others numbers."""
    which = "say --task regression or --task classification"
    if not known:
        missing = "" if there else f", and no column {target!r}"
        raise InputError(f"the pool has no labels to tell by{missing}; {which}")
    try:
        numbers = {float(label) for label in known}
    except ValueError:
        if not all(map(is_separated_number, known)):
            return "classification"
        odd = next(label for label in known if not is_number(label))
        raise InputError(
            f"{target!r} has labels such as {odd!r}: {PLAIN_NUMBERS}; if they are classes, say --task "
            "classification"
        ) from None
    if len(numbers) > 20 or not all(number.is_integer() for number in numbers):
        return "regression"
    if 2 * len(numbers) > len(known):
        raise InputError(f"{len(numbers)} different whole numbers may be classes or not; {which}")
    return "classification"


def _check_classes(known: Mapping[int, str], classes: Sequence[str], task: Task, pool: str) -> None:
    if task == "regression":
        raise InputError("--classes goes with --task classification")
    for position, label in known.items():
        if label not in classes:
            raise InputError(
                f"{row_name(pool, position)} of the pool: {label!r} is none of {', '.join(classes)}"
            )
