"""Send items to Label Studio as tasks, and collect annotations as answers.

What is asked for twice happens once: a task carries its item's id, and the tasks there are looked up first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from coresift import limits
from coresift.labelling.labellers.label_studio.annotations import (
    Annotation,
    expected_instead,
    predicted_result,
    shown_data,
)
from coresift.labelling.labellers.label_studio.configuration import LabellingProject
from coresift.labelling.labellers.label_studio.connection import SEEN, Connection
from coresift.labelling.labellers.label_studio.fields import AnswerError, on_one_line, time_of
from coresift.labelling.labellers.label_studio.fields import field as field_of
from coresift.labelling.labellers.label_studio.server import LabelStudio, task_filter
from coresift.labelling.records import Answer, Chosen

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
    """What came back: answers by what they changed, annotated tasks that are not ours, and complaints.

    Each entry of ``unusable`` tells of an annotation that holds no label of the project.
    """

    new: int = 0
    same: int = 0
    corrected: int = 0
    skipped: int = 0
    outdated: int = 0
    foreign: int = 0
    unusable: tuple[str, ...] = ()


class LabelStudioLabeller:
    """A project on a Label Studio server as a `coresift.loop.Labeller`.

    Parameters
    ----------
    project : the labelling project, which is connected to the server.
    server : the Label Studio server.
    predicted : show people what the model predicts.
    chunk : tasks sent at a time.
    """

    def __init__(
        self,
        project: LabellingProject,
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
        ours = task_filter("data.coresift_project", "equal", "String", self._connection.key)
        there, last = set(), 0
        for task in self._server.tasks(self._connection.project_id, ours, include="id,data"):
            data = field_of(task, "data", dict)
            if data.get("coresift_project") == self._connection.key:
                there.add(field_of(data, "coresift_id", str))
                last = max(last, min(field_of(data, "coresift_order", int), 2**53))
        return there, last

    def _tasks(self, items: Sequence[Chosen], first: int) -> Iterator[dict[str, Any]]:
        """The tasks of items, in a queue that begins at ``first``."""
        project, connection = self._project, self._connection
        positions = [item.position for item in items]
        predictions: Sequence[tuple[str, float] | None] = [None] * len(items)
        if self._predicted and items:
            predictions = project.predictions(positions)
        described = zip(items, project.describe(positions), predictions, strict=True)
        for order, (item, columns, prediction) in enumerate(described, first):
            data = shown_data(connection, self._server, project.kind, columns)
            data |= {"coresift_project": connection.key, "coresift_id": item.id}
            data |= {"coresift_rank": item.rank, "coresift_order": order}
            result = predicted_result(connection, prediction)
            # The score is the place in the queue and nothing else: the lowest is served first.
            predicted = {"model_version": MODEL_VERSION, "score": order, "result": result}
            yield {"data": data, "predictions": [predicted]}

    def collect(self, add: Callable[[Sequence[Answer]], Any]) -> Pulled:
        """Add what was annotated, skipped or corrected since the last look.

        Of several annotations of an item, the latest that is not a skip counts.
        """
        seen = self._seen()
        look = _Look(self._project, self._connection, latest=seen)
        changed = []
        if seen:
            # With a Z: other ways to write the zone are an error of the server.
            after = f"{seen - OVERLAP:%Y-%m-%dT%H:%M:%S.%fZ}"
            # Not by the time of completion: a skipped task has none, and a correction leaves it as it was.
            changed.append(task_filter("updated_at", "greater", "Datetime", after))
        for task in self._server.tasks(self._connection.project_id, *changed, fields="all"):
            look.read(task)
        answers = look.answers()
        counts = add(answers).counts() if answers else {}
        # What could not be read is looked at again. A time to come would hide all that is annotated before.
        if look.latest and look.latest != seen and not look.odd:
            self._project.remember(SEEN, min(look.latest, datetime.now(UTC)).isoformat())
        return Pulled(**counts, foreign=look.foreign, unusable=tuple(look.unusable))

    def _seen(self) -> datetime | None:
        """The time of the latest change that was collected; ``None`` to read everything."""
        try:
            return time_of({"updated_at": self._project.recall(SEEN)})
        except AnswerError:
            return None


@dataclass
class _Look:
    """What one look at the tasks of a server finds.

    Attributes
    ----------
    latest : the time of the latest change.
    annotations : the one that counts for each item.
    foreign : annotated tasks of other projects.
    unusable : complaints, for people.
    odd : whether a task could not be read.
    """

    project: LabellingProject
    connection: Connection
    latest: datetime | None
    annotations: dict[str, Annotation] = field(default_factory=dict)
    foreign: int = 0
    unusable: list[str] = field(default_factory=list)
    odd: bool = False

    def read(self, task: Any) -> None:
        data, annotations = field_of(task, "data", dict), field_of(task, "annotations", list)
        if data.get("coresift_project") != self.connection.key:
            self.foreign += bool(annotations)
        elif annotations:
            try:
                self._read_ours(data, annotations)
            except (AnswerError, UnicodeEncodeError) as error:
                self.odd = True
                self.unusable.append(f"task {on_one_line(repr(task.get('id')))}: {error}")
        if task.get("updated_at"):
            self.latest = max(filter(None, (self.latest, time_of(task))))

    def _read_ours(self, data: Any, annotations: Sequence[Any]) -> None:
        id_ = field_of(data, "coresift_id", str)
        if not self.project.are_items([id_])[0]:
            raise AnswerError(f"there is no item {on_one_line(repr(id_))} in the pool")
        for sent in annotations:
            annotation = Annotation.read(self.connection, sent)
            known = self.annotations.get(id_, annotation)
            self.annotations[id_] = max(known, annotation, key=lambda each: (each.finished, each.time))

    def answers(self) -> list[Answer]:
        """The answers, without those that hold no label of the project."""
        answers = []
        for id_, given in self.annotations.items():
            expected = expected_instead(self.project, given.label) if given.finished else None
            if expected:
                label = on_one_line(repr(given.label))
                self.unusable.append(f"item {id_!r} was labelled {label}, expected {expected}")
            else:
                answers.append(Answer(id_, given.label, given.who, given.at))
        return answers
