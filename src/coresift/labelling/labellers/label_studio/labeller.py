"""Send items to Label Studio as tasks, and collect annotations as answers.

What is asked for twice happens once: a task carries its item's id, and the tasks there are looked up first.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coresift import limits
from coresift.labelling.labellers.label_studio.connection import CONTROLS, SEEN, Connection
from coresift.labelling.labellers.label_studio.server import (
    CONTROL,
    AnswerError,
    LabelStudio,
    field,
    on_one_line,
    time_of,
)
from coresift.labelling.labels import is_label, is_number, plain_class
from coresift.labelling.records import Answer, Chosen

if TYPE_CHECKING:
    from coresift.labelling.open_project import OpenProject

MODEL_VERSION = "coresift"
# Tasks change while their pages are read, so that a later change may be seen before an earlier one.
OVERLAP = timedelta(minutes=10)


@dataclass(frozen=True)
class Pushed:
    """How many tasks were sent, and how many items had one already."""

    sent: int
    present: int


@dataclass(frozen=True)
class Pulled:
    """What came back: answers by what they changed, annotated tasks that are not ours, and complaints."""

    new: int = 0
    same: int = 0
    corrected: int = 0
    skipped: int = 0
    outdated: int = 0
    foreign: int = 0
    unusable: tuple[str, ...] = ()  # of annotations that hold no label of the project


class LabelStudioLabeller:
    """A project on a Label Studio server as a `coresift.loop.Labeller`.

    Parameters
    ----------
    project : the labelling project, which is connected to the server.
    predicted : show people what the model predicts.
    chunk : tasks sent at a time.
    """

    def __init__(
        self,
        project: OpenProject,
        server: LabelStudio,
        predicted: bool = True,
        chunk: int = limits.TASKS_SENT,
    ) -> None:
        self._project, self._server = project, server
        self._predicted, self._chunk = predicted, chunk
        self._connection = Connection.of(project)
        self._sent: set[str] = set()  # ids of items known to be there
        self.source = f"Label Studio {self._connection.page}"

    def ask(self, items: Sequence[Chosen], commit: Callable[[], None] = lambda: None) -> Pushed:
        """Send the items that are not there yet, to be served in their order, after earlier ones."""
        commit()
        ids = {item.id for item in items}
        if ids <= self._sent:
            return Pushed(0, len(items))
        there, last = self._tasks_there()
        missing = [item for item in items if item.id not in there]
        where = f"/api/projects/{self._connection.project_id}"
        tasks = self._tasks(missing, last + 1)
        while chunk := list(islice(tasks, self._chunk)):
            self._server.request("POST", f"{where}/import", json=chunk)
        # After the tasks, because a version that no prediction has is refused.
        settings = {"sampling": "Uncertainty sampling", "model_version": MODEL_VERSION}
        self._server.request("PATCH", f"{where}/", json=settings)
        self._sent = there | ids
        return Pushed(sent=len(missing), present=len(items) - len(missing))

    def _tasks_there(self) -> tuple[set[str], int]:
        """The ids of items that have a task, and the last place in the queue."""
        ours = _task_filter("data.coresift_project", "equal", "String", self._connection.key)
        there, last = set(), 0
        for task in self._server.tasks(self._connection.project_id, ours, include="id,data"):
            data = field(task, "data", dict)
            if data.get("coresift_project") == self._connection.key:
                there.add(field(data, "coresift_id", str))
                last = max(last, min(field(data, "coresift_order", int), 2**53))
        return there, last

    def _tasks(self, items: Sequence[Chosen], first: int) -> Iterator[dict[str, Any]]:
        """The tasks of items, in a queue that begins at ``first``."""
        project, connection = self._project, self._connection
        positions = [item.position for item in items]
        is_predicted = self._predicted and items
        predictions = project.predictions(positions) if is_predicted else [None] * len(items)
        described = zip(items, project.describe(positions), predictions, strict=True)
        for order, (item, columns, prediction) in enumerate(described, first):
            data = {
                **self._shown(columns),
                "coresift_project": connection.key,
                "coresift_id": item.id,
                "coresift_rank": item.rank,
                "coresift_order": order,
            }
            result = _predicted_result(connection, prediction)
            # The score is the place in the queue and nothing else: the lowest is served first.
            predicted = {"model_version": MODEL_VERSION, "score": order, "result": result}
            yield {"data": data, "predictions": [predicted]}

    def _shown(self, columns: Mapping[str, str]) -> dict[str, Any]:
        """What the labelling configuration shows of an item, by variable."""
        lines = [f"{name}: {value}" for name, value in columns.items()]
        whole = "\n".join(lines if len(lines) > 1 else columns.values())
        shows = self._connection.shows.items()
        return {name: self._as_tag(tag, columns.get(name, whole), columns) for name, tag in shows}

    def _as_tag(self, tag: str, text: str, columns: Mapping[str, str]) -> Any:
        """What a tag takes to show an item of these columns; most take a text."""
        if tag == "Image" and self._project.pool_kind == "images":
            return self._server.upload(self._connection.project_id, Path(columns["image"]))
        if tag == "Table":  # a list, because the names of an object would be sorted
            return [{"column": name, "value": value} for name, value in columns.items()]
        return html.escape(text).replace("\n", "<br>") if tag == "HyperText" else text

    def collect(self, add: Callable[[Sequence[Answer]], Any]) -> Pulled:
        """Add what was annotated, skipped or corrected since the last look.

        Of several annotations of an item, the latest that is not a skip counts.
        """
        seen = self._seen()
        look = _Look(self._project, self._connection, seen)
        changed = []
        if seen:
            # With a Z: other ways to write the zone are an error of the server.
            after = f"{seen - OVERLAP:%Y-%m-%dT%H:%M:%S.%fZ}"
            # Not by the time of completion: a skipped task has none, and a correction leaves it as it was.
            changed.append(_task_filter("updated_at", "greater", "Datetime", after))
        for task in self._server.tasks(self._connection.project_id, *changed, fields="all"):
            look.read(task)
        answers = look.answers()
        counts = add(answers).counts() if answers else {}
        # What could not be read is looked at again. A time to come would hide all that is annotated before.
        if look.latest and look.latest != seen and not look.is_odd:
            self._project.remember(SEEN, min(look.latest, datetime.now(UTC)).isoformat())
        return Pulled(**counts, foreign=look.foreign, unusable=tuple(look.unusable))

    def _seen(self) -> datetime | None:
        """The time of the latest change that was collected; ``None`` to read everything."""
        try:
            return time_of({"updated_at": self._project.recall(SEEN)})
        except AnswerError:
            return None


def _task_filter(column: str, operator: str, type: str, value: str) -> dict[str, str]:
    """A condition on tasks, as their list on the server takes it; see `LabelStudio.tasks`."""
    return {"filter": f"filter:tasks:{column}", "operator": operator, "type": type, "value": value}


class _Look:
    """What one look at the tasks of a server finds; its fields are as in `Pulled`."""

    def __init__(self, project: OpenProject, connection: Connection, latest: datetime | None) -> None:
        self.project, self.connection = project, connection
        self.latest = latest  # the time of the latest change
        # For each item the annotation that counts: whether it is no skip, its time, and what it answers.
        self.given: dict[str, tuple[bool, datetime, Answer]] = {}
        self.is_odd = False  # whether a task could not be read
        self.foreign, self.unusable = 0, list[str]()

    def read(self, task: Any) -> None:
        data, annotations = field(task, "data", dict), field(task, "annotations", list)
        if data.get("coresift_project") != self.connection.key:
            self.foreign += bool(annotations)
        elif annotations:
            try:
                self._read_ours(data, annotations)
            except (AnswerError, UnicodeEncodeError) as error:
                self.is_odd = True
                self.unusable.append(f"task {on_one_line(repr(task.get('id')))}: {error}")
        if task.get("updated_at"):
            self.latest = max(filter(None, (self.latest, time_of(task))))

    def _read_ours(self, data: Any, annotations: Sequence[Any]) -> None:
        id_ = field(data, "coresift_id", str)
        if not self.project.are_items([id_])[0]:
            raise AnswerError(f"there is no item {on_one_line(repr(id_))} in the pool")
        for sent in annotations:
            is_finished = not field(sent, "was_cancelled", bool)
            label = _label(self.connection, field(sent, "result", list)) if is_finished else None
            answer = Answer(id_, label, _who(sent), field(sent, "updated_at", str))
            given = (is_finished, time_of(sent), answer)
            self.given[id_] = max(self.given.get(id_, given), given, key=itemgetter(0, 1))

    def answers(self) -> list[Answer]:
        """The answers; those that hold no label of the project become complaints instead."""
        answers = []
        for is_finished, _, answer in self.given.values():
            is_fine, expected = _check(self.project, answer.label or "")
            if is_fine or not is_finished:
                answers.append(answer)
            else:
                label = on_one_line(repr(answer.label))
                self.unusable.append(f"item {answer.id!r} was labelled {label}, expected {expected}")
        return answers


def _check(project: OpenProject, label: str) -> tuple[bool, str]:
    """Tell whether a project can have a label, and what it expects."""
    if project.task == "regression":
        return is_number(label), "a number"
    if project.classes is not None:
        return label in project.classes, " or ".join(project.classes)
    is_short = len(label) <= limits.CLASS_CHARACTERS
    return is_short and is_label(label, None) and not CONTROL.search(label), "a class"


def _predicted_result(connection: Connection, prediction: tuple[str, float] | None) -> list[dict[str, Any]]:
    """A predicted label, as Label Studio writes it."""
    if prediction is None:
        return []
    label, kind = prediction[0], connection.kind
    value = float(label) if kind == "Number" else [label.split(" / ") if kind == "Taxonomy" else label]
    names = {"from_name": connection.control, "to_name": connection.item}
    return [{**names, "type": kind.lower(), "value": {CONTROLS[kind]: value}}]


def _label(connection: Connection, result: Sequence[Any]) -> str | None:
    """The one label in an annotation; ``None`` where there is none, or several."""
    rows = [field({"result": row}, "result", dict) for row in result]
    ours = [row for row in rows if row.get("from_name") == connection.control]
    if len(ours) != 1:
        return None
    entries = _as_list(field(ours[0], "value", dict).get(CONTROLS[connection.kind]))
    return _class_of(entries[0]) if len(entries) == 1 else None


def _class_of(value: Any) -> str | None:
    """A class, or the path to one in a taxonomy, as text; ``None`` for anything else."""
    path = _as_list(value)
    if not all(isinstance(step, str | int | float) for step in path):
        return None
    return plain_class(" / ".join(map(str, path)).strip()) or None


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _who(annotation: Mapping[str, Any]) -> str | None:
    """The address of the person who annotated, or else their number."""
    # "First Last first@example.org, 1"; only the end is searched, since a long text would take for ever
    address = re.search(r"(\S+@\S+), \d+$", str(annotation.get("created_username"))[-400:])
    if address:
        return on_one_line(address[1])
    by = annotation.get("completed_by")
    return str(by) if isinstance(by, int) else None
