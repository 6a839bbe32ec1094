"""Label Studio: against answers that were recorded from a server, and against a server on this machine."""

import json
import math
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from coresift.cli import app
from coresift.errors import InputError
from coresift.labelling.labellers.label_studio import (
    LabelStudio,
    LabelStudioLabeller,
    connect,
    open_server,
    read_token,
    watch,
)
from coresift.labelling.labellers.label_studio.connection import (
    Connection,
    configuration,
    read_configuration,
)
from coresift.labelling.labellers.label_studio.labeller import Pulled, Pushed
from coresift.labelling.labellers.label_studio.server import AnswerError, Patience, UnavailableError
from coresift.labelling.labellers.label_studio.tokens import servers_file
from coresift.labelling.labellers.label_studio.watching import Watched
from coresift.labelling.ledger import AddedAnswers
from coresift.labelling.pools import Reading
from coresift.labelling.project import BusyError, NothingLeftError, Project, Request
from coresift.labelling.records import Answer, Chosen, Round, Task

httpx = pytest.importorskip("httpx", reason="needs the httpx package")

ANSWERS = Path(__file__).parent / "label_studio_answers"
LEGACY = "0123456789abcdef0123456789abcdef01234567"
PERSONAL = "header.claims.signature"
URL = "http://127.0.0.1:8080"


@pytest.fixture(autouse=True)
def own_configuration(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written to the configuration folder of the user who runs the tests."""
    for name in ("HOME", "XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.setenv(name, str(tmp_path_factory.mktemp("configuration")))


@dataclass
class Items:
    """A labelling project in memory: items are asked for in their order."""

    items: Sequence[dict[str, str]]
    task: Task = "classification"
    target: str = "animal"
    pool_kind: str = "table"
    classes: tuple[str, ...] | None = ("cat", "dog")
    model: Callable[[int], tuple[str, float] | None] = lambda position: None
    chosen: list[Chosen] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)

    def are_items(self, ids: Sequence[str]) -> list[bool]:
        return [id_ in {f"item-{k}" for k in range(len(self.items))} for id_ in ids]

    def pending(self) -> list[Chosen]:
        return [item for item in self.chosen if item.id not in self.answers]

    def describe(self, positions: Sequence[int]) -> list[dict[str, str]]:
        return [self.items[position] for position in positions]

    def predictions(self, positions: Sequence[int]) -> list[tuple[str, float] | None]:
        return [self.model(position) for position in positions]

    def add(self, answers: Sequence[Answer], source: str) -> AddedAnswers:
        count = dict.fromkeys(("new", "same", "corrected", "skipped", "outdated"), 0)
        for answer in answers:
            known = self.answers.get(answer.id)
            assert answer.at is not None and datetime.fromisoformat(answer.at).tzinfo is not None
            if known and known.label == answer.label:
                count["same"] += 1
            elif known and datetime.fromisoformat(answer.at) < datetime.fromisoformat(known.at or ""):
                count["outdated"] += 1
            else:
                self.answers[answer.id] = answer
                corrected = known is not None and known.label is not None
                count["skipped" if answer.label is None else "corrected" if corrected else "new"] += 1
        return AddedAnswers(**count)

    def next_items(self, batch_size: int) -> list[Chosen]:
        if (start := len(self.chosen)) == len(self.items):
            raise NothingLeftError("every item of the pool has a label, is pending, skipped or excluded")
        stop = min(start + batch_size, len(self.items))
        return [Chosen(k, f"item-{k}", k - start + 1) for k in range(start, stop)]

    def select(self, batch_size: int) -> None:
        self.chosen.extend(self.next_items(batch_size))

    def learner(self, request: Request, source: str) -> "NextItems":
        return NextItems(self, request.batch_size or 0, source)

    def recall(self, key: str) -> Any:
        return json.loads(self.facts.get(key, "null"))

    def remember(self, key: str, value: Any) -> None:
        self.facts[key] = json.dumps(value)


@dataclass
class NextItems:
    """A project in memory as a learner, without a model."""

    project: Items
    batch_size: int
    source: str

    def pending(self) -> list[Chosen]:
        return self.project.pending()

    def fit(self) -> None:
        return None

    def choose(self, model: None) -> list[Chosen]:
        return self.project.next_items(self.batch_size)

    def look(self, model: None, items: Sequence[Chosen]) -> Round:
        return Round(1, "2026-01-01T00:00:00+00:00", "random", 0, "none", "", {}, 0, 0.0, batch=tuple(items))

    def commit(self, record: Round) -> None:
        self.project.chosen.extend(record.batch)

    def add(self, answers: Sequence[Answer]) -> AddedAnswers:
        return self.project.add(answers, self.source)


def push(project: Any, server: LabelStudio, **options: Any) -> Pushed:
    return LabelStudioLabeller(project, server, **options).ask(project.pending(), lambda: None)


def pull(project: Any, server: LabelStudio) -> Pulled:
    labeller = LabelStudioLabeller(project, server)
    return labeller.collect(lambda answers: project.add(answers, labeller.source))


def watch_project(project: Any, server: LabelStudio, batch_size: int, **options: Any) -> Watched:
    labeller = LabelStudioLabeller(project, server)
    return watch(project.learner(Request(batch_size), labeller.source), labeller, **options)


def table(count: int, **options: Any) -> Items:
    return Items([{"legs & <b>arms</b>": "4", "name": f"number {k}"} for k in range(count)], **options)


# Recorded answers.


def recorded(name: str) -> Any:
    return json.loads((ANSWERS / f"{name}.json").read_text(encoding="utf-8"))


def answer(name: str) -> Any:
    """An answer as it was recorded; one object for each, because a response is used up when it is read."""
    known = recorded(name)
    return httpx.Response(known["status"], json=known["body"])


def serving(
    routes: Mapping[str, Any], token: str = LEGACY, url: str = URL, **options: Any
) -> tuple[LabelStudio, list[Any]]:
    """A server that answers a route from a list, or always with one answer; and what it was asked."""
    asked: list[Any] = []

    def handle(request: Any) -> Any:
        asked.append(request)
        route = routes[f"{request.method} {request.url.path}"]
        given = route.pop(0) if isinstance(route, list) else route
        if callable(given):
            given = given(request)
        if isinstance(given, Exception):
            raise given
        return answer(given) if isinstance(given, str) else given

    return LabelStudio(url, token, httpx.MockTransport(handle), **options), asked


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr("coresift.labelling.labellers.label_studio.server.time.sleep", waited.append)
    return waited


def connected(project: Items, kind: str = "Choices", **changes: Any) -> Items:
    known = {"url": URL, "allow_http": False, "project_id": 9, "created": True, "key": "recorded"}
    known |= {"control": "label", "kind": kind, "item": "item", "shows": {"fields": "Table"}, **changes}
    project.remember("label_studio", known)
    return project


def project_of(folder: Path, count: int, url: str = URL) -> Project:
    """A project on the disk, connected to a server."""
    (folder / "pool.csv").write_text("id,legs\n" + "".join(f"item-{k},{k}\n" for k in range(count)))
    reading = Reading(str(folder / "pool.csv"), target="animal")
    project = Project.create(folder / "project", reading, classes=("cat", "dog"))
    project.remember("label_studio", connected(table(count), url=url).recall("label_studio"))
    return project


def test_a_legacy_token_travels_in_the_header_and_is_shown_nowhere() -> None:
    server, asked = serving({"GET /api/projects/": "wrong_token"})
    with server, pytest.raises(InputError, match="does not accept the token") as caught:
        server.request("GET", "/api/projects/")
    assert asked[0].headers["Authorization"] == f"Token {LEGACY}"
    assert LEGACY not in f"{server!r} {server} {caught.value}"


def test_a_personal_token_buys_access_and_buys_it_again_when_it_ran_out() -> None:
    access = [httpx.Response(200, json={"access": name}) for name in ("first", "second")]
    routes = {
        "POST /api/token/refresh": access,
        "GET /api/projects/": ["projects", "projects", "expired", "projects"],
    }
    server, asked = serving(routes, PERSONAL)
    for _ in range(3):
        assert server.request("GET", "/api/projects/")["count"] == 1
    assert [json.loads(one.content) for one in asked if one.method == "POST"] == [{"refresh": PERSONAL}] * 2
    sent = [one.headers.get("Authorization") for one in asked]
    assert sent == [None, "Bearer first", "Bearer first", "Bearer first", None, "Bearer second"]


def test_a_personal_token_that_was_withdrawn_is_not_tried_forever() -> None:
    server, asked = serving({"POST /api/token/refresh": "wrong_token"}, PERSONAL)
    with pytest.raises(InputError, match="does not accept the token"):
        server.request("GET", "/api/projects/")
    assert len(asked) == 1


def test_what_changes_nothing_is_asked_again_after_longer_and_longer_pauses(pauses: list[float]) -> None:
    away = [httpx.ConnectError("refused"), httpx.Response(503), httpx.Response(429), "projects"]
    server, asked = serving({"GET /api/projects/": away})
    assert server.request("GET", "/api/projects/")["count"] == 1
    assert len(asked) == 4 and pauses == [0.5, 1.0, 2.0]


def test_a_server_that_stays_away_is_reported_without_the_token(pauses: list[float]) -> None:
    server, asked = serving({"GET /api/projects/": lambda _: httpx.ReadTimeout(f"no answer to {LEGACY}")})
    with pytest.raises(UnavailableError, match=r"could not be reached \(no answer to \.\.\.\)"):
        server.request("GET", "/api/projects/")
    assert len(asked) == 5


def test_what_might_happen_twice_is_asked_once(pauses: list[float]) -> None:
    server, asked = serving({"POST /api/projects/9/import": httpx.Response(502)})
    with pytest.raises(UnavailableError, match="answered 502"):
        server.request("POST", "/api/projects/9/import", json=[])
    assert len(asked) == 1 and not pauses


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ("no_project", "answered 404 to GET /api/x: No Project matches"),
        ("bad_import", "answered 400 to GET /api/x: .*key is expected in task data"),
        (httpx.Response(400, json=["no"]), "answered 400 to GET /api/x: \\['no'\\]"),
        (httpx.Response(200, text="<html>"), "is it Label Studio"),
        (
            httpx.Response(302, headers={"Location": "https://elsewhere.example"}),
            "points to https://elsewhere",
        ),
    ],
)
def test_other_answers_are_explained(response: Any, message: str) -> None:
    server, asked = serving({"GET /api/x": response})
    with pytest.raises(InputError, match=message) as caught:
        server.request("GET", "/api/x")
    assert len(asked) == 1 and not isinstance(caught.value, UnavailableError)


@pytest.mark.parametrize(
    "url",
    [
        "labels.example.org",
        "ftp://127.0.0.1",
        "http://me:secret@127.0.0.1",
        "http://[::1",
        "http://a:b",
        "http:///x",
    ],
)
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="expected a server's url") as caught:
        LabelStudio(url, LEGACY)
    assert "secret" not in str(caught.value)


def test_a_token_is_not_sent_in_the_clear_unless_that_is_allowed() -> None:
    for url in ("http://labels.example.org", "http://10.0.0.1:8080"):
        with pytest.raises(InputError, match="use https"):
            LabelStudio(url, LEGACY)
        assert LabelStudio(url, LEGACY, allow_http=True).url == url
    for url in (
        "http://localhost:8080",
        "http://127.1.2.3",
        "http://[::1]:80",
        "https://labels.example.org/here",
    ):
        assert LabelStudio(f"{url}/", LEGACY).url == url


def test_tokens_come_from_the_environment_or_a_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LABEL_STUDIO_API_KEY", raising=False)
    with pytest.raises(
        InputError,
        match="set the environment variable LABEL_STUDIO_API_KEY, or name a file with --token-file",
    ):
        read_token()
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", " ours\n")
    assert read_token() == "ours"
    path = tmp_path / "token"
    with pytest.raises(InputError, match="no token could be read"):
        read_token(path)
    path.write_text(f"{LEGACY}\n")
    path.chmod(0o640)
    with pytest.raises(InputError, match=r"mode 640.*chmod 600") as caught:
        read_token(path)
    assert LEGACY not in str(caught.value)
    path.chmod(0o600)
    assert read_token(path) == LEGACY


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "ümlaut"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(InputError, match="copy it again") as caught:
        LabelStudio(URL, token)
    assert not token or token not in str(caught.value)


def test_without_httpx_the_user_reads_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(InputError, match=r'pip install "\.\[labelstudio\]" in the folder of the clone'):
        LabelStudio(URL, LEGACY)


def test_all_pages_are_read() -> None:
    body = recorded("tasks_choices")["body"]

    def page(request: Any) -> Any:
        start = 3 * (int(request.url.params["page"]) - 1)
        return httpx.Response(200, json={**body, "tasks": body["tasks"][start : start + 3]})

    server, asked = serving({"GET /api/tasks": page}, patience=Patience(page_size=3))
    assert list(server.tasks(9)) == body["tasks"] and len(asked) == 3


# Connecting.


def test_a_project_is_found_by_its_title() -> None:
    project = table(3)
    server, _ = serving({"GET /api/projects/": "projects", "GET /api/projects/9/": "project"})
    found = connect(project, server, title="animals")
    assert found == Connection.of(project) and not found.created
    assert found.page == f"{URL}/projects/9"
    assert (found.control, found.kind, found.item, found.shows) == (
        "label",
        "Choices",
        "item",
        {"fields": "Table"},
    )
    assert LEGACY not in str(project.facts)
    assert connect(project, server, project_id=9).key == found.key
    assert open_server_url(project) == URL


def open_server_url(project: Items) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABEL_STUDIO_API_KEY", LEGACY)
        return open_server(project).url


def test_a_project_is_made_where_there_is_none_of_that_title() -> None:
    made = httpx.Response(201, json=recorded("project")["body"])
    server, asked = serving({"GET /api/projects/": "projects", "POST /api/projects/": made})
    assert connect(table(3), server, title="animal").created
    assert json.loads(asked[-1].content)["label_config"] == configuration(table(3))


def test_what_to_connect_to_is_said_once_and_clearly() -> None:
    twice = recorded("projects")["body"]
    twice = {"count": 2, "results": twice["results"] * 2}
    server, _ = serving({"GET /api/projects/": httpx.Response(200, json=twice)})
    with pytest.raises(InputError, match="2 projects have the title 'animals'"):
        connect(table(3), server, title="animals")
    for options in ({}, {"project_id": 9, "title": "animals"}):
        with pytest.raises(InputError, match="either the id or the title"):
            connect(table(3), server, **options)
    with pytest.raises(InputError, match="coresift labelstudio connect"):
        pull(table(3), server)


def test_names_are_escaped_in_a_configuration() -> None:
    classes = ('"a" & <b>', "plain", "it's")
    project = table(1, classes=classes, target="<what> & $why")
    root = ElementTree.fromstring(configuration(project))
    assert [choice.get("value") for choice in root.iter("Choice")] == list(classes)
    assert root[0].get("value") == "<what> & why"
    assert read_configuration(configuration(project), project)["kind"] == "Choices"


@pytest.mark.parametrize(
    ("options", "control", "shows"),
    [
        ({"pool_kind": "text", "classes": None}, "TextArea", {"text": "Text"}),
        ({"pool_kind": "images", "classes": ("$5", "$10")}, "TextArea", {"image": "Image"}),
        ({"pool_kind": "array", "task": "regression", "classes": None}, "Number", {"fields": "Table"}),
    ],
)
def test_a_configuration_fits_the_pool(options: dict[str, Any], control: str, shows: dict[str, str]) -> None:
    project = table(1, **options)
    found = read_configuration(configuration(project), project)
    assert (found["kind"], found["shows"]) == (control, shows)


TEXT = '<Text name="t" value="$text"/>'
CHOICES = '<Choices name="{0}" toName="t" choice="{1}"><Choice value="cat"/><Choice value="dog"/></Choices>'


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("<View>", "could not be read"),
        (f"<View>{TEXT}</View>", "found none"),
        (f"<View>{TEXT}{CHOICES.format('a', 'multiple')}</View>", "found none"),
        (f'<View>{TEXT}<TextArea name="a" toName="t" perRegion="true"/></View>', "found none"),
        (
            f"<View>{TEXT}{CHOICES.format('a', 'single')}{CHOICES.format('b', 'single')}</View>",
            "one of several",
        ),
        (
            f"<View>{TEXT}{CHOICES.format('a', 'single').replace('dog', 'Dog')}</View>",
            "'Dog'. are none of",
        ),
    ],
)
def test_a_configuration_without_a_fitting_control_is_refused(config: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_configuration(config, table(1))


def test_the_control_can_be_named_and_images_need_a_tag() -> None:
    config = f"<View>{TEXT}{CHOICES.format('a', 'single')}{CHOICES.format('b', 'single')}</View>"
    assert read_configuration(config, table(1), "b")["control"] == "b"
    with pytest.raises(InputError, match="has no Image"):
        read_configuration(config, table(1, pool_kind="images"), "b")


# Pulling.


def test_annotations_come_back_as_answers() -> None:
    project = connected(table(6))
    project.select(6)
    server, asked = serving({"GET /api/tasks": "tasks_choices"})
    pulled = pull(project, server)
    assert (pulled.new, pulled.skipped, pulled.foreign) == (3, 1, 1)
    assert pulled.unusable == ("item 'item-5' was labelled None, expected cat or dog",)
    # Labelled, corrected, skipped, and labelled twice and then skipped.
    labels = {id_: given.label for id_, given in project.answers.items()}
    assert labels == {"item-0": "cat", "item-1": "dog", "item-2": None, "item-3": "dog"}
    assert {given.who for given in project.answers.values()} == {"annotator@example.com"}
    assert [item.id for item in project.pending()] == ["item-4", "item-5"]
    again = pull(project, server)
    assert (again.new, again.same, again.skipped) == (0, 4, 0)
    first, second = (json.loads(one.url.params["query"])["filters"]["items"] for one in asked)
    assert not first and second[0]["filter"] == "filter:tasks:updated_at" and second[0]["value"].endswith("Z")
    latest = max(task["updated_at"] for task in recorded("tasks_choices")["body"]["tasks"])
    assert second[0]["value"] < latest


def test_a_correction_replaces_the_answer() -> None:
    project = connected(table(6))
    body = recorded("tasks_choices")["body"]
    later = json.loads(json.dumps(body))
    annotation = later["tasks"][0]["annotations"][0]
    annotation["result"][0]["value"]["choices"] = ["dog"]
    annotation["updated_at"] = later["tasks"][0]["updated_at"] = "2040-01-01T00:00:00Z"
    server, _ = serving({"GET /api/tasks": [httpx.Response(200, json=one) for one in (body, later, body)]})
    pull(project, server)
    assert pull(project, server).corrected == 1
    assert project.answers["item-0"].label == "dog" and project.answers["item-0"].at == "2040-01-01T00:00:00Z"
    assert pull(project, server).outdated == 1


@pytest.mark.parametrize(
    ("kind", "task", "labels"),
    [
        ("Number", "regression", ["0.1", "12", "1e-17", "-12345678.901234567"]),
        ("Taxonomy", "classification", ["animal / cat"]),
        ("TextArea", "classification", ["cat", "cow"]),
    ],
)
def test_each_kind_of_control_gives_its_label_as_text(kind: str, task: Task, labels: list[str]) -> None:
    project = connected(table(4, task=task, classes=None), kind)
    server, _ = serving({"GET /api/tasks": f"tasks_{kind.lower()}"})
    pulled = pull(project, server)
    assert [given.label for given in project.answers.values()] == labels
    # Two paths of a taxonomy are no label.
    assert len(pulled.unusable) == (kind == "Taxonomy")


def test_labels_that_the_project_does_not_know_are_left_out_and_told() -> None:
    for options, message in (
        ({}, "'cow', expected cat or dog"),
        ({"task": "regression"}, "'cow', expected a number"),
    ):
        project = connected(table(2, **options), "TextArea")
        server, _ = serving({"GET /api/tasks": "tasks_textarea"})
        assert message in pull(project, server).unusable[-1]
        assert "item-1" not in project.answers


@pytest.mark.parametrize("word", ["NA", "null", "n/a", "\x1b[2J", "\u202e"])
def test_a_word_for_no_label_is_none_unless_it_is_a_class_by_name(word: str) -> None:
    body = recorded("tasks_textarea")["body"]
    for task in body["tasks"]:
        for annotation in task["annotations"]:
            annotation["result"][0]["value"]["text"] = [word]
    for classes in (None, (word, "cat")):
        project = connected(table(2, classes=classes), "TextArea")
        server, _ = serving({"GET /api/tasks": httpx.Response(200, json=body)})
        pulled = pull(project, server)
        if classes is None:
            assert not project.answers
            assert f"item 'item-1' was labelled {word!r}, expected a class" in pulled.unusable
        else:
            assert {given.label for given in project.answers.values()} == {word} and not pulled.unusable


def test_an_item_that_was_opened_again_is_not_skipped_by_the_annotation_that_skipped_it(
    tmp_path: Path,
) -> None:
    """Which a pull reads again for ten minutes, and after the next `connect`."""
    with project_of(tmp_path, 6) as project:
        server, _ = serving({"GET /api/tasks": "tasks_choices"})
        assert pull(project, server).skipped == 1 and project.ledger.states()[2] == "skipped"
        project.reopen(["item-2"])
        project.select(3)  # all that are open, and so this one too
        for _ in range(2):
            pulled = pull(project, server)
            assert (pulled.skipped, pulled.outdated, project.ledger.states()[2]) == (0, 1, "pending")
            project.remember("label_studio_seen", None)


# Pushing and watching, with a server that keeps tasks and does little else.


@dataclass
class Desk:
    """A server in memory with one project, and somebody who answers tasks in the order of their scores."""

    tasks: list[dict[str, Any]] = field(default_factory=list)
    patched: list[Any] = field(default_factory=list)
    failures: list[Any] = field(default_factory=list)
    diligent: bool = False
    requests: int = 0

    def handle(self, request: Any) -> Any:
        self.requests += 1
        path = request.url.path
        if "commit_to_project" in request.url.params:
            return httpx.Response(201, json={"file_upload_ids": [7]})
        if path == "/api/import/file-upload/7":
            return httpx.Response(200, json={"id": 7, "file": "upload/9/1234-picture.png", "size": 3})
        if path == "/api/tasks":
            if self.diligent and request.url.params.get("fields") == "all":
                self.work()
            return httpx.Response(200, json={"tasks": self.tasks, "total": len(self.tasks)})
        if request.method == "PATCH":
            self.patched.append(json.loads(request.content))
            return httpx.Response(200, json={})
        if self.failures and (failure := self.failures.pop(0)):
            raise failure
        for task in json.loads(request.content):
            self.tasks.append({**task, "annotations": [], "updated_at": "2026-01-01T00:00:00Z"})
        return httpx.Response(201, json={})

    def work(self) -> None:
        waiting = [task for task in self.tasks if not task["annotations"]]
        if waiting:
            first = min(waiting, key=lambda task: float(task["predictions"][0]["score"]))
            result = [{"from_name": "label", "value": {"choices": ["cat"]}}]
            given = {"result": result, "was_cancelled": False, "updated_at": "2026-01-01T00:00:00Z"}
            first["annotations"].append(given)

    def open(self) -> LabelStudio:
        return LabelStudio(URL, LEGACY, httpx.MockTransport(self.handle))

    def ids(self) -> list[str]:
        return [task["data"]["coresift_id"] for task in self.tasks]


def test_a_batch_goes_out_once_in_its_order() -> None:
    project = connected(table(9, model=lambda position: ("dog", 0.75) if position % 2 else None))
    desk = Desk()
    server = desk.open()
    assert push(project, server) == Pushed(0, 0) and not desk.patched
    project.select(4)
    assert push(project, server) == Pushed(4, 0)
    assert push(project, server) == Pushed(0, 4)
    project.select(3)
    assert push(project, server) == Pushed(3, 4)
    assert desk.ids() == [f"item-{k}" for k in range(7)]
    guesses = [task["predictions"][0] for task in desk.tasks]
    assert [guess["score"] for guess in guesses] == [1, 2, 3, 4, 5, 6, 7]
    assert [len(guess["result"]) for guess in guesses] == [0, 1, 0, 1, 0, 1, 0]
    assert guesses[1]["result"][0]["value"] == {"choices": ["dog"]}
    assert desk.patched[-1] == {
        "sampling": "Uncertainty sampling",
        "model_version": guesses[0]["model_version"],
    }
    shown = desk.tasks[0]["data"]
    assert (
        shown["fields"][0] == {"column": "legs & <b>arms</b>", "value": "4"} and shown["coresift_rank"] == 1
    )


def test_a_push_that_was_cut_short_is_completed_by_the_next() -> None:
    project = connected(table(5))
    project.select(5)
    desk = Desk(failures=[None, httpx.ReadTimeout("lost")])
    with pytest.raises(UnavailableError):
        push(project, desk.open(), chunk=2)
    assert len(desk.tasks) == 2
    assert push(project, desk.open()) == Pushed(3, 2)
    assert desk.ids() == [f"item-{k}" for k in range(5)]
    assert [task["predictions"][0]["score"] for task in desk.tasks] == [1, 2, 3, 4, 5]


def test_tasks_show_what_the_configuration_reads(tmp_path: Path) -> None:
    desk = Desk()
    shows = {"page": "HyperText", "name": "Text", "fields": "Table"}
    project = connected(table(1), shows=shows)
    project.select(1)
    push(project, desk.open())
    data = desk.tasks[0]["data"]
    assert data["page"] == "legs &amp; &lt;b&gt;arms&lt;/b&gt;: 4<br>name: number 0"
    assert data["name"] == "number 0" and len(data["fields"]) == 2
    picture = tmp_path / "picture.png"
    images = connected(Items([{"image": str(picture)}], pool_kind="images"), shows={"image": "Image"})
    images.select(1)
    desk = Desk()
    with pytest.raises(InputError, match="could not be read"):
        push(images, desk.open())
    picture.write_bytes(b"png")
    push(images, desk.open())
    assert desk.tasks[-1]["data"]["image"] == "/data/upload/9/1234-picture.png"


@pytest.mark.parametrize(
    ("kind", "label", "value"),
    [
        ("Number", "0.25", {"number": 0.25}),
        ("Taxonomy", "animal / cat", {"taxonomy": [["animal", "cat"]]}),
        ("TextArea", "cat", {"text": ["cat"]}),
    ],
)
def test_predictions_are_written_as_the_control_reads_them(kind: str, label: str, value: Any) -> None:
    project = connected(table(1, model=lambda _: (label, 0.5)), kind)
    project.select(1)
    desk = Desk()
    push(project, desk.open())
    result = desk.tasks[0]["predictions"][0]["result"][0]
    assert result == {"from_name": "label", "to_name": "item", "type": kind.lower(), "value": value}
    desk.tasks.clear()
    push(project, desk.open(), predicted=False)
    assert desk.tasks[0]["predictions"][0]["result"] == []


def test_a_watch_sends_batch_after_batch() -> None:
    project = connected(table(9))
    project.select(3)
    desk, lines = Desk(diligent=True), list[str]()
    assert watch_project(project, desk.open(), 2, every=0.0, rounds=3, report=lines.append) == Watched(
        3, "rounds"
    )
    assert len(project.answers) == len(desk.tasks) == 3 + 2 + 2
    assert lines[0] == "sent 3 items, 0 were there" and "1 answers came in, 0 are open" in lines
    assert watch_project(project, desk.open(), 2, every=0.0) == Watched(1, "nothing left")
    assert len(project.answers) == 9


def test_a_watch_of_a_project_ends_when_all_items_are_answered(tmp_path: Path) -> None:
    with project_of(tmp_path, 4) as project:
        assert watch_project(project, Desk(diligent=True).open(), 3, every=0.0) == Watched(2, "nothing left")
        assert set(project.ledger.states().values()) == {"labelled"}


def test_a_watch_waits_while_the_server_is_away(pauses: list[float]) -> None:
    project = connected(table(2))
    desk = Desk(diligent=True, failures=[httpx.ConnectError("refused")] * 2)
    lines: list[str] = []
    assert watch_project(project, desk.open(), 2, every=0.0, rounds=1, report=lines.append).rounds == 1
    assert sum("could not be reached (refused)" in line for line in lines) == 2


def test_a_watch_waits_while_another_program_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    project = connected(table(2))
    desk, lines, choose = Desk(diligent=True), list[str](), project.next_items
    busy = [BusyError("another program is writing"), None]

    def once_busy(batch_size: int) -> list[Chosen]:
        if (error := busy.pop(0)) is not None:
            raise error
        return choose(batch_size)

    monkeypatch.setattr(project, "next_items", once_busy)
    assert watch_project(project, desk.open(), 2, every=0.0, rounds=1, report=lines.append).rounds == 1
    assert "another program is writing; waiting 0 s" in lines


def test_a_watch_tells_of_an_unusable_label_once_and_stops_when_told() -> None:
    project = connected(table(2))
    project.select(1)
    desk, stop, lines = Desk(), threading.Event(), list[str]()
    server = desk.open()
    push(project, server)
    desk.work()
    desk.tasks[0]["annotations"][0]["result"][0]["value"]["choices"] = ["cow"]

    def report(line: str) -> None:
        lines.append(line)

    thread = threading.Thread(
        target=watch_project,
        args=(project, server, 1),
        kwargs={"every": 0.01, "stop": stop, "report": report},
    )
    thread.start()
    limit = time.monotonic() + 20.0
    while desk.requests < 12 and time.monotonic() < limit:
        time.sleep(0.01)
    stop.set()
    thread.join(20.0)
    assert not thread.is_alive() and desk.requests >= 12
    assert lines == [
        "sent 0 items, 1 were there",
        "item 'item-0' was labelled 'cow', expected cat or dog; correct it in Label Studio",
    ]


def test_ctrl_c_ends_a_watch_cleanly() -> None:
    project = connected(table(4))
    desk = Desk(failures=[KeyboardInterrupt()])
    assert watch_project(project, desk.open(), 2) == Watched(0, "stopped")
    desk.diligent = True
    assert watch_project(project, desk.open(), 2, every=0.0, rounds=1) == Watched(1, "rounds")
    assert desk.ids() == ["item-0", "item-1"]


# A server on this machine that is not what it seems.

Script = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def listening(script: Script) -> Iterator[str]:
    """The url of a server that answers each request as ``script`` does."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.close_connection = True
            with suppress(OSError):  # the client may have hung up
                script(self)

        do_GET = do_POST = do_PATCH = answer

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def test_a_server_gets_the_token_only_when_the_user_trusts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[str | None] = []

    def script(handler: BaseHTTPRequestHandler) -> None:
        tokens.append(handler.headers["Authorization"])
        send(handler, b'{"tasks": [], "total": 0}')

    monkeypatch.setenv("LABEL_STUDIO_API_KEY", LEGACY)
    with listening(script) as url:
        project_of(tmp_path, 2, url).close()
        words = ["labelstudio", "pull", str(tmp_path / "project")]
        for more in ([], ["--trust-server", "https://labels.example.org"]):
            refused = CliRunner().invoke(app, [*words, *more])
            assert refused.exit_code == 2 and not tokens
            assert f"names the server {url}, which you have not used before" in refused.output
        assert CliRunner().invoke(app, [*words, "--trust-server", f"{url}/"]).exit_code == 0
        assert CliRunner().invoke(app, words).exit_code == 0
    assert tokens == [f"Token {LEGACY}"] * 2
    assert servers_file().read_text() == f"{url}\n"
    if os.name == "posix":
        assert servers_file().stat().st_mode & 0o777 == 0o600
        servers_file().chmod(0o620)
        assert "others may write" in CliRunner().invoke(app, words).output


@pytest.mark.parametrize("words", [["--project-id", "9"], []])
def test_connect_by_id_and_by_the_name_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    asked: list[str] = []

    def script(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        send(handler, b'{"detail": "there is none"}', 404)

    monkeypatch.setenv("LABEL_STUDIO_API_KEY", LEGACY)
    with listening(script) as url:
        project_of(tmp_path, 2, url).close()
        CliRunner().invoke(app, ["labelstudio", "connect", str(tmp_path / "project"), "--url", url, *words])
    assert asked and asked[0].startswith("/api/projects/9" if words else "/api/projects/?title=project")


def never_ending(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"[" * 2**16)


def slow(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, and already within the headers."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while True:
        handler.wfile.write(b"x")
        time.sleep(0.02)


def body(content: bytes, **options: Any) -> Script:
    return lambda handler: send(handler, content, **options)


def after_redirect(path: str) -> Script:
    return body(b"", status=302, Location=f"{path}?key={LEGACY}#{LEGACY}")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (never_ending, "sent more than 1 MiB at once"),
        (slow, "took longer than 0.2 s"),
        (body(zlib.compress(bytes(2**24)), Content_Encoding="deflate"), "in the encoding deflate"),
        (body(b"[" * 100_000), "did not answer GET /api/x in JSON"),
        (body(b"[" * 101 + b"]" * 101), "JSON of more than 100 levels"),
        (body(b'{"a": NaN}'), "did not answer GET /api/x in JSON"),
        (body(b'{"a": ' + b"9" * 5000 + b"}"), "did not answer GET /api/x in JSON"),
        (body(b"\xff\xfe\x00"), "did not answer GET /api/x in JSON"),
        (body(b"{}", Content_Length="9"), "could not be reached"),
        (body(json.dumps([LEGACY]).encode().replace(b"0", b"\\u0030")), "sent the token back"),
        (body(json.dumps({"detail": "\x1b[2J \u202e \ud800 x"}).encode(), status=400), r": \?\[2J \? \? x$"),
        (body(b"", status=302), "did not answer GET /api/x in JSON"),
        (after_redirect("/login/\x1b[2J"), "Invalid URL in location header"),
        (after_redirect("/login/\x9b2J"), r"points to /login/\?2J; use that"),
        (
            after_redirect(f"https://{LEGACY}.example.org/{LEGACY}"),
            r"points to https://\.\.\.\.example\.org/\.\.\.;",
        ),
    ],
)
def test_a_hostile_answer_is_refused_in_one_line(script: Script, message: str) -> None:
    patience = Patience(num_bytes=2**20, request_seconds=0.2 if script is slow else 60, pauses=())
    refused = pytest.raises(InputError, match=message)
    with listening(script) as url, LabelStudio(url, LEGACY, patience=patience) as server, refused as caught:
        server.request("GET", "/api/x")
    assert LEGACY not in str(caught.value) and str(caught.value).isprintable()


def test_an_odd_annotation_is_told_and_read_again(tmp_path: Path) -> None:
    body = recorded("tasks_choices")["body"]
    good = json.dumps(body)
    first, second, third, fourth = body["tasks"][:4]
    first["annotations"][0]["updated_at"] = None
    second["data"]["coresift_id"] = "\ud800"
    second["updated_at"] = "9999-12-31T00:00:00Z"  # would hide what changes from now on
    third["data"]["coresift_id"] = "\x1b[2J"
    fourth["annotations"][-1]["created_username"] = "A \x1b@example.org, 1"
    answers = [httpx.Response(200, text=text) for text in (json.dumps(body), good, good)]
    server, asked = serving({"GET /api/tasks": answers})
    with project_of(tmp_path, 6) as project:
        pulled = pull(project, server)
        assert (pulled.new, len(pulled.unusable)) == (1, 4)
        assert all(line.isprintable() for line in pulled.unusable)
        assert f"task {first['id']}: the server sent null as 'updated_at', expected a text" in pulled.unusable
        assert pull(project, server).new == 2
        pull(project, server)
    since = [json.loads(request.url.params["query"])["filters"]["items"] for request in asked]
    assert since[:2] == [[], []] and since[2]


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values in a JSON value are."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield (*path, key)
        yield from paths(child, (*path, key))


def mutated(answer: Any, rng: random.Random) -> bytes:
    """An answer in which one value is another one, missing, or cut off."""
    values = [
        None,
        True,
        -1,
        10**30,
        0.5,
        math.nan,
        math.inf,
        "",
        "\x1b[2J",
        "\ud800",
        [],
        {},
        [[]],
        {"a": []},
    ]
    values += [LEGACY, "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", json.loads("[" * 200 + "]" * 200)]
    whole = json.loads(json.dumps([answer]))
    *path, key = rng.choice(list(paths(whole)))
    parent = whole
    for step in path:
        parent = parent[step]
    kind = rng.randrange(8)
    if kind == 0:
        return json.dumps(answer).encode()[: rng.randrange(30)]
    if kind == 1 and path:
        del parent[key]
    else:
        parent[key] = [parent[key]] if kind == 2 else rng.choice(values)
    return json.dumps(whole[0]).encode()


@pytest.mark.parametrize("seed", range(2))
def test_no_mutated_answer_ends_a_watch(seed: int) -> None:
    rng = random.Random(seed)
    given = [{"from_name": "label", "value": {"choices": ["cat"]}}]
    at = {"updated_at": "2026-01-01T00:00:00Z"}
    tasks = [
        {
            "id": k,
            "data": {"coresift_project": "recorded", "coresift_id": f"item-{k}", "coresift_order": k},
            "annotations": [
                {"result": given, "was_cancelled": False, "created_username": "A a@b.org, 1", **at}
            ],
            **at,
        }
        for k in range(2)
    ]
    asked = 0

    def script(handler: BaseHTTPRequestHandler) -> None:
        nonlocal asked
        asked += 1
        answer = {"tasks": tasks, "total": 2} if handler.path.startswith("/api/tasks") else {}
        send(handler, mutated(answer, rng) if asked == odd else json.dumps(answer).encode())

    with listening(script) as url, LabelStudio(url, LEGACY) as server:
        for _ in range(20):
            asked, odd, lines = 0, rng.choice((1, 3)), list[str]()
            project = connected(table(4))
            project.select(2)
            done = watch_project(project, server, 2, every=0.0, rounds=1, report=lines.append)
            assert done == Watched(1, "rounds") and len(project.answers) == 2
            assert all(line.isprintable() and LEGACY not in line for line in lines)


def test_a_list_without_an_end_is_given_up() -> None:
    routes = {"GET /api/tasks": lambda _: httpx.Response(200, json={"tasks": [{}], "total": 9**9})}
    server, asked = serving(routes, patience=Patience(pages=3))
    with pytest.raises(AnswerError, match="3 pages of tasks without an end"):
        list(server.tasks(9))
    assert len(asked) == 3
    server, asked = serving(routes, patience=Patience(list_seconds=-1.0))
    with pytest.raises(UnavailableError, match="to list tasks"):
        list(server.tasks(9))
    assert len(asked) == 1


# A server on this machine.


@dataclass(frozen=True)
class Annotator:
    """Somebody who works at a real server, through the requests that its pages make."""

    client: Any
    project_id: int

    def next(self) -> dict[str, Any]:
        return self.asked("GET", f"/api/projects/{self.project_id}/next")

    def submit(self, task: int, kind: str, value: Any) -> int:
        result = {"from_name": "label", "to_name": "item", "type": kind, "value": {kind: value}}
        return int(self.asked("POST", f"/api/tasks/{task}/annotations/", json={"result": [result]})["id"])

    def correct(self, annotation: int, label: str) -> None:
        result = {"from_name": "label", "to_name": "item", "type": "choices", "value": {"choices": [label]}}
        self.asked("PATCH", f"/api/annotations/{annotation}/", json={"result": [result]})

    def skip(self, task: int) -> None:
        self.asked("POST", f"/api/tasks/{task}/annotations/", json={"result": [], "was_cancelled": True})

    def asked(self, method: str, path: str, **content: Any) -> Any:
        response = self.client.request(method, path, **content)
        response.raise_for_status()
        return response.json()


@pytest.fixture(scope="module")
def real_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Label Studio of this process's own, with nothing in it.

    It takes a minute or two to start, seconds if `make label-studio` prepared it.
    """
    command = os.environ.get("CORESIFT_LABEL_STUDIO") or shutil.which("label-studio")
    if not command:
        pytest.skip("needs the label-studio command, or its path in CORESIFT_LABEL_STUDIO")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    folder = tmp_path_factory.mktemp("label-studio")
    prepared = (
        Path(command).resolve().parent.parent / "empty"
    )  # by `make label-studio`: the tables of the database
    if prepared.is_dir():
        shutil.copytree(prepared, folder, dirs_exist_ok=True)
    settings = {
        "LABEL_STUDIO_BASE_DATA_DIR": str(folder),
        "LABEL_STUDIO_USERNAME": "annotator@example.com",
        "LABEL_STUDIO_PASSWORD": "only-on-loopback",
        "LABEL_STUDIO_USER_TOKEN": LEGACY,
        "LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN": "true",
        "COLLECT_ANALYTICS": "false",
        "LATEST_VERSION_CHECK": "false",
        "SENTRY_DSN": "",
        "FRONTEND_SENTRY_DSN": "",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [command, "start", "--internal-host", "127.0.0.1", "--port", port, "--no-browser"],
            env={**os.environ, **settings},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for_health(url, process)
        yield url
    finally:
        # The whole group: the server may have started others.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30.0)


def wait_for_health(url: str, process: "subprocess.Popen[bytes]", limit: float = 300.0) -> None:
    start = time.monotonic()
    with httpx.Client(trust_env=False) as client:
        while process.poll() is None and time.monotonic() - start < limit:
            try:
                if client.get(f"{url}/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
    pytest.fail(f"Label Studio did not start within {limit:g} s (exit code {process.poll()})")


@pytest.fixture
def client(real_url: str) -> Iterator[Any]:
    header = {"Authorization": f"Token {LEGACY}"}
    with httpx.Client(base_url=real_url, headers=header, trust_env=False, timeout=60.0) as found:
        yield found


@pytest.fixture
def server(real_url: str) -> Iterator[LabelStudio]:
    with LabelStudio(real_url, LEGACY) as found:
        yield found


@pytest.mark.label_studio
def test_rounds_with_a_real_server(server: LabelStudio, client: Any) -> None:
    project = table(6, model=lambda position: ("dog", 0.75) if position == 1 else None)
    project.select(4)
    connection = connect(project, server, title="Animals & <others>")
    assert connection.created and not connect(project, server, title="Animals & <others>").created
    assert push(project, server) == Pushed(4, 0)
    assert push(project, server) == Pushed(0, 4)

    # Somebody labels in the order of the batch, and skips the third.
    annotator = Annotator(client, connection.project_id)
    first = annotator.next()
    given = annotator.submit(first["id"], "choices", ["cat"])
    second = annotator.next()
    assert second["predictions"][0]["result"][0]["value"] == {"choices": ["dog"]}
    annotator.submit(second["id"], "choices", ["dog"])
    third = annotator.next()
    annotator.skip(third["id"])
    assert [one["data"]["coresift_id"] for one in (first, second, third)] == ["item-0", "item-1", "item-2"]
    pulled = pull(project, server)
    assert (pulled.new, pulled.skipped, pulled.unusable) == (2, 1, ())
    assert project.answers["item-0"].label == "cat" and project.answers["item-2"].label is None
    assert project.answers["item-0"].who == "annotator@example.com"

    # A correction, beside a task of somebody else.
    annotator.correct(given, "dog")
    other = [{"data": {"fields": []}}]
    there = annotator.asked(
        "POST",
        f"/api/projects/{connection.project_id}/import",
        params={"return_task_ids": "true"},
        json=other,
    )
    annotator.submit(there["task_ids"][0], "choices", ["cat"])
    pulled = pull(project, server)
    assert (pulled.new, pulled.corrected, pulled.same, pulled.foreign) == (0, 1, 2, 1)
    assert project.answers["item-0"].label == "dog"

    # The rest of this batch and the whole next one, while a watch looks on.
    def report(line: str) -> None:
        if line.startswith("sent"):
            for item in project.pending():
                task = annotator.next()
                assert task["data"]["coresift_id"] == item.id
                annotator.submit(task["id"], "choices", ["cat"])

    assert watch_project(project, server, 2, every=0.1, rounds=2, report=report) == Watched(2, "rounds")
    assert [project.answers[f"item-{k}"].label for k in (3, 4, 5)] == ["cat"] * 3


@pytest.mark.label_studio
def test_images_and_numbers_with_a_personal_token(server: LabelStudio, client: Any, tmp_path: Path) -> None:
    server._token = client.post("/api/token/").json()["token"]
    paths = [tmp_path / f"picture {k} ü.png" for k in range(3)]
    for path in paths:
        path.write_bytes(picture())
    items = [{"image": str(path)} for path in paths]
    project = Items(items, "regression", "size", "images", None, model=lambda _: ("0.5", 0.1))
    connection = connect(project, server, title="Sizes")
    server._access = "ran out"
    project.select(2)
    assert push(project, server) == Pushed(2, 0)
    annotator = Annotator(client, connection.project_id)
    for value in (0.1234567890123456, -3):
        task = annotator.next()
        assert client.get(task["data"]["image"]).content == picture()
        annotator.submit(task["id"], "number", value)
    assert pull(project, server).new == 2
    assert [given.label for given in project.answers.values()] == ["0.1234567890123456", "-3"]
    # What people write themselves, in a configuration of their own.
    config = '<View><HyperText name="item" value="$page"/><TextArea name="label" toName="item"/></View>'
    made = annotator.asked("POST", "/api/projects/", json={"title": "Own", "label_config": config})
    words = Items([{"text": "<b>so & so</b>"}], pool_kind="text", classes=None)
    words.select(1)
    assert not connect(words, server, project_id=made["id"]).created
    push(words, server)
    reader = Annotator(client, made["id"])
    task = reader.next()
    assert task["data"]["page"] == "&lt;b&gt;so &amp; so&lt;/b&gt;"
    result = {"from_name": "label", "to_name": "item", "type": "textarea", "value": {"text": ["cat"]}}
    reader.asked("POST", f"/api/tasks/{task['id']}/annotations/", json={"result": [result]})
    assert pull(words, server).new == 1 and words.answers["item-0"].label == "cat"


def picture() -> bytes:
    """A PNG of two by two pixels."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = part(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0))
    rows = zlib.compress((b"\0" + b"\xff\0\0" * 2) * 2)
    return b"\x89PNG\r\n\x1a\n" + header + part(b"IDAT", rows) + part(b"IEND", b"")


@pytest.mark.label_studio
def test_the_example_with_a_real_server(
    real_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_example: Callable[..., str]
) -> None:
    """The commands themselves, two rounds of ten with a skipped item in each."""
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", LEGACY)
    said = run_example("labelling/label_studio.py", real_url, tmp_path)
    assert "38 labelled, 0 pending, 1,757 unlabelled, 2 skipped" in said
    assert LEGACY not in said
    assert not any(LEGACY.encode() in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
