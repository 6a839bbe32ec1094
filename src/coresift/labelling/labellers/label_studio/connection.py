"""Connect a labelling project to a project of a Label Studio server, and agree on its page.

The page is described by a labelling configuration in XML, which is written here or read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from coresift.errors import InputError
from coresift.labelling.labellers.label_studio.server import AnswerError, LabelStudio, field, on_one_line
from coresift.labelling.labellers.label_studio.tokens import check_url, is_trusted, read_token, trust

if TYPE_CHECKING:
    from coresift.labelling.open_project import OpenProject

# The controls that can give one label for a whole item, and their names for its value.
CONTROLS = {"Choices": "choices", "Taxonomy": "taxonomy", "Number": "number", "TextArea": "text"}
# The names under which a project remembers its connection, and the time of the latest change it has seen.
CONNECTION, SEEN = "label_studio", "label_studio_seen"


@dataclass(frozen=True)
class Connection:
    """Where a project's items are labelled."""

    url: str  # of the server, see `LabelStudio`
    allow_http: bool
    project_id: int  # there
    created: bool  # whether the project there was made for this one
    key: str  # tells the tasks of this project from others there
    control: str  # name of the control that gives the label
    kind: str  # tag of the control
    item: str  # name of the tag that the control refers to
    shows: Mapping[str, str]  # the tags that show an item, by the variables that they read

    @classmethod
    def of(cls, project: OpenProject) -> Connection:
        """The connection that a project remembers."""
        known = project.recall(CONNECTION)
        if not known:
            raise InputError("the project is not connected to Label Studio: coresift labelstudio connect")
        try:
            connection = cls(**known)
            is_sound = connection._is_sound()
        except (TypeError, AttributeError):
            is_sound = False
        if not is_sound:
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
    project: OpenProject, token_file: Path | None = None, confirm: Callable[[str], bool] = lambda url: False
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
    project: OpenProject,
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


def configuration(project: OpenProject) -> str:
    """Write a labelling configuration that fits the pool and its labels."""
    view = ElementTree.Element("View")
    # What follows a dollar sign is a variable there, so classes with one are typed in.
    ElementTree.SubElement(view, "Header", value=project.target.replace("$", ""))
    shown = {"text": ("Text", "$text"), "images": ("Image", "$image")}
    tag, variable = shown.get(project.pool_kind, ("Table", "$fields"))
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


def read_configuration(config: str, project: OpenProject, control: str | None = None) -> dict[str, Any]:
    """Find the control that gives the label and the tags that show an item, as fields of a `Connection`."""
    try:
        tags = list(ElementTree.fromstring(config).iter())
    except (ElementTree.ParseError, ValueError) as error:
        raise AnswerError(f"the project's labelling configuration could not be read: {error}") from None
    chosen = _control(tags, control)
    _check_choices(chosen, project)
    shown = [tag for tag in tags if tag.tag not in CONTROLS and tag.get("value", "").startswith("$")]
    shows = {tag.attrib["value"][1:]: tag.tag for tag in shown}
    if project.pool_kind == "images" and "Image" not in shows.values():
        raise InputError("the items are images, but the labelling configuration has no Image; add one")
    return {"control": chosen.get("name"), "kind": chosen.tag, "item": chosen.get("toName"), "shows": shows}


def _control(tags: list[ElementTree.Element], name: str | None) -> ElementTree.Element:
    """The one control for a whole item's label, or the one of this name."""
    controls = [tag for tag in tags if _gives_one_label(tag)]
    fitting = [tag for tag in controls if name in (None, tag.get("name"))]
    if len(fitting) != 1:
        names = on_one_line(", ".join(f"{tag.tag} {tag.get('name')!r}" for tag in controls)) or "none"
        wanted = "Choices (single), Taxonomy, Number or TextArea"
        raise InputError(f"found {names}, expected a {wanted} for the label; add one, or name one of several")
    return fitting[0]


def _gives_one_label(tag: ElementTree.Element) -> bool:
    return tag.tag in CONTROLS and tag.get("perRegion") != "true" and tag.get("choice") != "multiple"


def _check_choices(control: ElementTree.Element, project: OpenProject) -> None:
    if not control.get("name") or not control.get("toName"):
        raise InputError(f"the {control.tag} for the label has no name or toName; add them")
    if control.tag != "Choices" or not project.classes:
        return
    offered = {str(choice.get("alias") or choice.get("value")) for choice in control.iter("Choice")}
    if odd := sorted(offered.difference(project.classes)):
        names = ", ".join(project.classes)
        raise InputError(f"the choices {on_one_line(str(odd))} are none of the classes {names}; rename them")
