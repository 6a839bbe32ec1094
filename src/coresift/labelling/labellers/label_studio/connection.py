"""Connect a labelling project to a project of a Label Studio server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from coresift.labelling.labellers.label_studio.configuration import (
    CONTROLS,
    LabellingProject,
    configuration,
    read_configuration,
)
from coresift.labelling.labellers.label_studio.fields import field
from coresift.labelling.labellers.label_studio.server import LabelStudio
from coresift.labelling.labellers.label_studio.tokens import check_url, is_trusted, read_token, trust
from coresift.types import InputError

# The names under which a project remembers its connection, and the time of the latest change it has seen.
CONNECTION, SEEN = "label_studio", "label_studio_seen"


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
        known = project.recall(CONNECTION)
        if not known:
            raise InputError("the project is not connected to Label Studio: coresift labelstudio connect")
        try:
            connection = cls(**known)
            good = connection._is_sound()
        except (TypeError, AttributeError):
            good = False
        if not good:
            raise InputError("the project's connection to Label Studio is damaged: connect it again")
        return connection

    def _is_sound(self) -> bool:
        texts = (self.url, self.key, self.control, self.kind, self.item, *self.shows, *self.shows.values())
        are_texts = all(isinstance(text, str) for text in texts)
        return are_texts and self.kind in CONTROLS and type(self.project_id) is int

    @property
    def page(self) -> str:
        """Where people find the project."""
        return f"{self.url}/projects/{self.project_id}"


def open_server(
    project: LabellingProject,
    token_file: Path | None = None,
    confirm: Callable[[str], bool] = lambda url: False,
) -> LabelStudio:
    """Open the server that a project is connected to.

    The project may come from somebody else, and with it the server. A server that the user has not trusted
    with a token before is therefore used only if ``confirm`` agrees to its url.
    """
    connection = Connection.of(project)
    url, _ = check_url(connection.url, connection.allow_http)
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
    """Find a project on the server by its id or title, or make one with that title; remember it.

    An existing project stays as it is; ``control`` names what gives the label, where there are several.
    The next look reads all annotations. The server is trusted from now on, since the caller named it.
    """
    if (project_id is None) == (title is None):
        raise InputError("give either the id or the title of a Label Studio project")
    if title is not None:
        project_id = _project_id(server, title)
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


def _project_id(server: LabelStudio, title: str) -> int | None:
    """The id of the project with a title, ``None`` where there is none."""
    listed = server.pages("/api/projects/", "results", "count", title=title, include="id,title")
    same = [field(row, "id", int) for row in listed if row.get("title") == title]
    if len(same) > 1:
        ids = ", ".join(map(str, same[:5]))
        raise InputError(f"{len(same)} projects have the title {title!r} (ids {ids}); give an id")
    return same[0] if same else None
