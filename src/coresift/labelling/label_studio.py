"""Label Studio as the place where people answer: batches go out as tasks, annotations come back as answers.

What is asked for twice happens once: a task carries its item's id, and what is there is looked up first.
"""

from __future__ import annotations

import html
import re
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Protocol
from xml.etree import ElementTree

from coresift.labelling.label_studio_client import (
    CONTROL,
    AnswerError,
    LabelStudio,
    UnavailableError,
    checked_url,
    field,
    is_trusted,
    on_one_line,
    read_token,
    task_filter,
    trust,
)
from coresift.labelling.labels import is_label, is_number, plain_class
from coresift.labelling.project import BusyError, NothingLeftError
from coresift.labelling.records import Answer, Chosen, Round, Task
from coresift.types import InputError

CONNECTION, SEEN = "label_studio", "label_studio_seen"
VERSION = "coresift"
CHUNK = 50
# Characters of a class that somebody typed in; longer texts are no classes.
LONGEST_CLASS = 1000
# Tasks change while their pages are read, so that a later change may be seen before an earlier one.
OVERLAP = timedelta(minutes=10)
# The controls that can give one label for a whole item, and what they call its value.
CONTROLS = {"Choices": "choices", "Taxonomy": "taxonomy", "Number": "number", "TextArea": "text"}


class LabellingProject(Protocol):
    """What is asked of a labelling project; see `coresift.labelling.project.Project`."""

    @property
    def task(self) -> Task: ...
    @property
    def target(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def classes(self) -> tuple[str, ...] | None: ...
    def are_items(self, ids: Sequence[str]) -> list[bool]: ...
    def pending(self) -> list[Chosen]: ...
    def describe(self, positions: Sequence[int]) -> list[dict[str, str]]: ...
    def predictions(self, positions: Sequence[int]) -> list[tuple[str, float] | None]: ...
    def ingest(self, answers: Sequence[Answer], source: str) -> Mapping[str, int]: ...
    def select(self, batch_size: int) -> Round: ...
    def recall(self, key: str) -> Any: ...
    def remember(self, key: str, value: Any) -> None: ...


@dataclass(frozen=True)
class Connection:
    """Where a project's items are labelled.

    Attributes
    ----------
    url, allow_http : of the server, see `LabelStudio`.
    project_id, created : the project there, and whether it was made for this.
    key : tells the tasks of this project from others there.
    control, kind : name and tag of the control that gives the label.
    item : name of the tag that the control refers to.
    shows : the tags that show an item, by the variables that they read.
    """

    url: str
    allow_http: bool
    project_id: int
    created: bool
    key: str
    control: str
    kind: str
    item: str
    shows: Mapping[str, str]

    @classmethod
    def of(cls, project: LabellingProject) -> Connection:
        """The connection that a project remembers."""
        if not (known := project.recall(CONNECTION)):
            raise InputError("the project is not connected to Label Studio: coresift labelstudio connect")
        try:
            found = cls(**known)
            texts = (found.url, found.key, found.control, found.kind, found.item, *found.shows)
            texts += tuple(found.shows.values())
            good = all(isinstance(text, str) for text in texts) and found.kind in CONTROLS
        except (TypeError, AttributeError):
            good = False
        if not good or type(found.project_id) is not int:
            raise InputError("the project's connection to Label Studio is damaged: connect it again")
        return found

    @property
    def page(self) -> str:
        """Where people find the project."""
        return f"{self.url}/projects/{self.project_id}"


@dataclass(frozen=True)
class Pushed:
    """How many tasks were sent, and how many pending items were there already."""

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


@dataclass(frozen=True)
class Watched:
    """How many batches were seen answered, and why the watch ended."""

    rounds: int
    ended: Literal["rounds", "stopped", "nothing left"]


def open_server(
    project: LabellingProject,
    token_file: Path | None = None,
    confirm: Callable[[str], bool] = lambda url: False,
) -> LabelStudio:
    """The server that a project is connected to.

    The project may come from somebody else, and with it the server. A server that the user has not trusted
    with a token before is therefore used only if ``confirm`` says so of its url.
    """
    connection = Connection.of(project)
    url, _ = checked_url(connection.url, connection.allow_http)
    if not is_trusted(url):
        if not confirm(url):
            raise InputError(
                f"the project names the server {url}, which you have not used before: "
                f"if you trust it with your token, add --trust-server {url}"
            )
        trust(url)
    return LabelStudio(url, read_token(token_file), allow_http=connection.allow_http)


def connect(
    project: LabellingProject,
    server: LabelStudio,
    project_id: int | None = None,
    title: str | None = None,
    control: str | None = None,
) -> Connection:
    """Find a project on the server by its id or title, or make one of that title; remember it.

    An existing project stays as it is; ``control`` names what gives the label, where there are several.
    The next pull reads everything there is. The server counts as trusted from now on: the caller named it.
    """
    if (project_id is None) == (title is None):
        raise InputError("give either the id or the title of a Label Studio project")
    if title is not None:
        found = server.pages("/api/projects/", "results", "count", title=title, include="id,title")
        same = [field(row, "id", int) for row in found if row.get("title") == title]
        if len(same) > 1:
            ids = ", ".join(map(str, same[:5]))
            raise InputError(f"{len(same)} projects have the title {title!r} (ids {ids}); give an id")
        project_id = same[0] if same else None
    if project_id is None:
        made = {"title": title, "label_config": configuration(project), "enable_empty_annotation": False}
        there = server.request("POST", "/api/projects/", json=made)
    else:
        there = server.request("GET", f"/api/projects/{project_id}/")
    connection = Connection(
        url=server.url,
        allow_http=server.allow_http,
        project_id=field(there, "id", int),
        created=project_id is None,
        key=(project.recall(CONNECTION) or {}).get("key") or uuid.uuid4().hex,
        **read_configuration(field(there, "label_config", str), project, control),
    )
    trust(server.url)
    project.remember(CONNECTION, asdict(connection))
    project.remember(SEEN, None)
    return connection


def configuration(project: LabellingProject) -> str:
    """A labelling configuration that fits the pool and its labels."""
    view = ElementTree.Element("View")
    # What follows a dollar sign is a variable there, so classes with one are typed in.
    ElementTree.SubElement(view, "Header", value=project.target.replace("$", ""))
    shown = {"text": ("Text", "$text"), "images": ("Image", "$image")}
    tag, variable = shown.get(project.kind, ("Table", "$fields"))
    plain = {"valueType": "text"} if tag == "Text" else {}
    ElementTree.SubElement(view, tag, {"name": "item", "value": variable, **plain})
    control = {"name": "label", "toName": "item", "required": "true"}
    if project.task == "regression":
        ElementTree.SubElement(view, "Number", control)
    elif project.classes and "$" not in "".join(project.classes):
        choices = ElementTree.SubElement(view, "Choices", control, choice="single")
        for name in project.classes:
            ElementTree.SubElement(choices, "Choice", value=name)
    else:
        ElementTree.SubElement(view, "TextArea", control, maxSubmissions="1", editable="true")
    return ElementTree.tostring(view, encoding="unicode")


def read_configuration(config: str, project: LabellingProject, control: str | None = None) -> dict[str, Any]:
    """The control that gives the label and the tags that show an item, as fields of a `Connection`."""
    try:
        tags = list(ElementTree.fromstring(config).iter())
    except (ElementTree.ParseError, ValueError) as error:
        raise AnswerError(f"the project's labelling configuration could not be read: {error}") from None
    known = [tag for tag in tags if tag.tag in CONTROLS and tag.get("perRegion") != "true"]
    known = [tag for tag in known if tag.get("choice") != "multiple"]
    fitting = [tag for tag in known if control in (None, tag.get("name"))]
    if len(fitting) != 1:
        names = on_one_line(", ".join(f"{tag.tag} {tag.get('name')!r}" for tag in known)) or "none"
        wanted = "Choices (single), Taxonomy, Number or TextArea"
        raise InputError(f"found {names}, expected a {wanted} for the label; add one, or name one of several")
    chosen = fitting[0]
    offered = {choice.get("alias") or choice.get("value") for choice in chosen.iter("Choice")}
    if chosen.tag == "Choices" and project.classes and (odd := offered.difference(project.classes)):
        names = ", ".join(project.classes)
        choices = on_one_line(str(sorted(map(str, odd))))
        raise InputError(f"the choices {choices} are none of the classes {names}; rename them")
    if not chosen.get("name") or not chosen.get("toName"):
        raise InputError(f"the {chosen.tag} for the label has no name or toName; add them")
    values = [(tag.get("value", ""), tag.tag) for tag in tags if tag.tag not in CONTROLS]
    shows = {value[1:]: tag for value, tag in values if value.startswith("$")}
    if project.kind == "images" and "Image" not in shows.values():
        raise InputError("the items are images, but the labelling configuration has no Image; add one")
    return {"control": chosen.get("name"), "kind": chosen.tag, "item": chosen.get("toName"), "shows": shows}


def push(project: LabellingProject, server: LabelStudio, predicted: bool = True) -> Pushed:
    """Send the pending items that are not there yet, to be served in their order, after earlier ones.

    With ``predicted``, people see what the model expects.
    """
    connection = Connection.of(project)
    where = f"/api/projects/{connection.project_id}"
    ours = task_filter("data.coresift_project", "equal", "String", connection.key)
    there, last = set(), 0
    for task in server.tasks(connection.project_id, ours, include="id,data"):
        data = field(task, "data", dict)
        if data.get("coresift_project") == connection.key:
            there.add(field(data, "coresift_id", str))
            last = max(last, min(field(data, "coresift_order", int), 2**53))
    pending = project.pending()
    missing = [item for item in pending if item.id not in there]
    positions = [item.position for item in missing]
    guesses = project.predictions(positions) if predicted and missing else [None] * len(missing)
    tasks = zip(missing, project.describe(positions), guesses, strict=True)
    chunk: list[Any] = []
    for order, (item, columns, guess) in enumerate(tasks, last + 1):
        known = {"coresift_project": connection.key, "coresift_id": item.id, "coresift_rank": item.rank}
        # The score is the place in the queue and nothing else: the lowest is served first.
        prediction = {"model_version": VERSION, "score": order, "result": _result(connection, guess)}
        shown = _shown(connection, server, project.kind, columns)
        chunk.append({"data": {**shown, **known, "coresift_order": order}, "predictions": [prediction]})
        if len(chunk) == CHUNK or item is missing[-1]:
            server.request("POST", f"{where}/import", json=chunk)
            chunk = []
    if pending:
        # After the tasks, because a version that no prediction has is refused.
        server.request(
            "PATCH", f"{where}/", json={"sampling": "Uncertainty sampling", "model_version": VERSION}
        )
    return Pushed(sent=len(missing), present=len(pending) - len(missing))


def pull(project: LabellingProject, server: LabelStudio) -> Pulled:
    """Bring in what was annotated, skipped or corrected since the last time.

    Of several annotations of an item, the latest counts that is not a skip.
    """
    connection = Connection.of(project)
    seen = _seen(project)
    since = []
    if seen:
        # With a Z: other ways to write the zone are an error of the server.
        after = f"{seen - OVERLAP:%Y-%m-%dT%H:%M:%S.%fZ}"
        # Not by the time of completion: a skipped task has none, and a correction leaves it as it was.
        since.append(task_filter("updated_at", "greater", "Datetime", after))
    given: dict[str, _Annotation] = {}
    unusable: list[str] = []
    foreign, latest, odd = 0, seen, False
    for task in server.tasks(connection.project_id, *since, fields="all"):
        data, annotations = field(task, "data", dict), field(task, "annotations", list)
        if data.get("coresift_project") != connection.key:
            foreign += bool(annotations)
        elif annotations:
            try:
                id_ = field(data, "coresift_id", str)
                if not project.are_items([id_])[0]:
                    raise AnswerError(f"there is no item {on_one_line(repr(id_))} in the pool")
                for annotation in annotations:
                    found = _Annotation.read(connection, annotation)
                    given[id_] = max(given.get(id_, found), found, key=lambda one: (one.finished, one.time))
            except (AnswerError, UnicodeEncodeError) as error:
                odd = True
                unusable.append(f"task {on_one_line(repr(task.get('id')))}: {error}")
        if task.get("updated_at"):
            latest = max(filter(None, (latest, _time(task))))
    answers = []
    for id_, last in given.items():
        if last.finished and (expected := _expected(project, last.label)):
            label = on_one_line(repr(last.label))
            unusable.append(f"item {id_!r} was labelled {label}, expected {expected}")
        else:
            answers.append(Answer(id_, last.label, last.who, last.at))
    counts = project.ingest(answers, f"Label Studio {connection.page}") if answers else {}
    # What could not be read is looked at again. A time to come would hide all that is annotated before it.
    if latest and latest != seen and not odd:
        project.remember(SEEN, min(latest, datetime.now(UTC)).isoformat())
    return Pulled(**counts, foreign=foreign, unusable=tuple(unusable))


def watch(
    project: LabellingProject,
    server: LabelStudio,
    batch_size: int,
    every: float = 30.0,
    rounds: int | None = None,
    predicted: bool = True,
    stop: threading.Event | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Watched:
    """Keep people in work: as soon as a batch is answered, choose the next one and send it.

    Parameters
    ----------
    every : seconds between two looks at the server.
    rounds : batches to see answered, with the one that is out at the start; ``None`` for no end.
    stop : ends the watch when it is set, as Ctrl-C does.
    report : is told what happens, a line at a time.
    """
    stop = stop or threading.Event()
    done, sent, told = 0, False, set[str]()
    try:
        while not stop.is_set():
            try:
                if not sent and project.pending():
                    pushed = push(project, server, predicted)
                    sent = True
                    report(f"sent {pushed.sent} items, {pushed.present} were there")
                pulled = pull(project, server)
                for line in sorted(set(pulled.unusable) - told):
                    report(f"{line}; correct it in Label Studio")
                told.update(pulled.unusable)
                left = len(project.pending())
                if changed := pulled.new + pulled.corrected + pulled.skipped:
                    report(f"{changed} answers came in, {left} are open")
                if not left:
                    done += sent
                    if rounds is not None and done >= rounds:
                        return Watched(done, "rounds")
                    try:
                        chosen = project.select(batch_size)
                    except NothingLeftError:
                        return Watched(done, "nothing left")
                    report(f"round {chosen.number}: chose {len(chosen.batch)} items")
                    sent = False
                    continue
            except (UnavailableError, AnswerError, BusyError) as error:
                report(f"{error}; waiting {every:g} s")
            stop.wait(every)
    except KeyboardInterrupt:
        pass  # What was cut short is made up for by the next push and pull.
    return Watched(done, "stopped")


def _shown(link: Connection, server: LabelStudio, kind: str, columns: Mapping[str, str]) -> dict[str, Any]:
    """What the labelling configuration shows of an item, by variable."""
    whole = "\n".join(value if len(columns) == 1 else f"{name}: {value}" for name, value in columns.items())
    data: dict[str, Any] = {}
    for variable, tag in link.shows.items():
        data[variable] = columns.get(variable, whole)
        if tag == "Image" and kind == "images":
            data[variable] = server.upload(link.project_id, Path(columns["image"]))
        elif tag == "Table":
            # A list, because the names of an object would be sorted.
            data[variable] = [{"column": name, "value": value} for name, value in columns.items()]
        elif tag == "HyperText":
            data[variable] = html.escape(data[variable]).replace("\n", "<br>")
    return data


def _result(connection: Connection, guess: tuple[str, float] | None) -> list[dict[str, Any]]:
    """A predicted label, as Label Studio writes it down."""
    if guess is None:
        return []
    label, kind = guess[0], connection.kind
    value = float(label) if kind == "Number" else [label.split(" / ") if kind == "Taxonomy" else label]
    names = {"from_name": connection.control, "to_name": connection.item}
    return [{**names, "type": kind.lower(), "value": {CONTROLS[kind]: value}}]


@dataclass(frozen=True)
class _Annotation:
    """What one annotation says: a label, or, where it is not finished, that the item was skipped."""

    finished: bool
    time: datetime
    at: str
    label: str | None
    who: str | None

    @classmethod
    def read(cls, connection: Connection, annotation: Any) -> _Annotation:
        finished = not field(annotation, "was_cancelled", bool)
        label = _label(connection, field(annotation, "result", list)) if finished else None
        at = field(annotation, "updated_at", str)
        return cls(finished, _time(annotation), at, label, _who(annotation))


def _time(row: Any) -> datetime:
    """When a task or an annotation was changed last."""
    text = field(row, "updated_at", str)
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None or time.year < 2000 or CONTROL.search(text):
            raise ValueError
        return time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise AnswerError("the server sent an 'updated_at' that is no time with a zone") from None


def _seen(project: LabellingProject) -> datetime | None:
    """When the latest change was made that a pull has seen; ``None`` to read everything."""
    try:
        return _time({"updated_at": project.recall(SEEN)})
    except AnswerError:
        return None


def _label(connection: Connection, result: Sequence[Any]) -> str | None:
    """The one label in an annotation; ``None`` where there is none, or several."""
    ours = [
        row for row in result if field({"result": row}, "result", dict).get("from_name") == connection.control
    ]
    found = field(ours[0], "value", dict).get(CONTROLS[connection.kind]) if len(ours) == 1 else None
    entries = found if isinstance(found, list) else [found]
    if len(entries) != 1:
        return None
    path = entries[0] if isinstance(entries[0], list) else [entries[0]]
    if not all(isinstance(step, str | int | float) for step in path):
        return None
    return plain_class(" / ".join(str(step) for step in path).strip()) or None


def _expected(project: LabellingProject, label: str | None) -> str | None:
    """What should have been there instead of a label; ``None`` where it is fine."""
    text = label or ""
    if project.task == "regression":
        return None if is_number(text) else "a number"
    if project.classes is not None:
        return None if text in project.classes else " or ".join(project.classes)
    fine = is_label(text, None) and len(text) <= LONGEST_CLASS and not CONTROL.search(text)
    return None if fine else "a class"


def _who(annotation: Mapping[str, Any]) -> str | None:
    """The address of the person who annotated, or else their number."""
    # "First Last first@example.org, 1"; only the end is searched, since a long text would take for ever
    found = re.search(r"(\S+@\S+), \d+$", str(annotation.get("created_username"))[-400:])
    by = annotation.get("completed_by")
    return on_one_line(found[1]) if found else str(by) if isinstance(by, int) else None
