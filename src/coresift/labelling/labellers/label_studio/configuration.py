"""Write and read labelling configurations, the XML in which Label Studio describes a project's page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from xml.etree import ElementTree

from coresift.labelling.labellers.label_studio.fields import AnswerError, on_one_line
from coresift.labelling.records import Task
from coresift.types import InputError

# The controls that can give one label for a whole item, and their names for its value.
CONTROLS = {"Choices": "choices", "Taxonomy": "taxonomy", "Number": "number", "TextArea": "text"}


class LabellingProject(Protocol):
    """What Label Studio asks of a labelling project; see `coresift.labelling.project.Project`."""

    @property
    def task(self) -> Task: ...
    @property
    def target(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def classes(self) -> tuple[str, ...] | None: ...
    def are_items(self, ids: Sequence[str]) -> list[bool]: ...
    def describe(self, positions: Sequence[int]) -> list[dict[str, str]]: ...
    def predictions(self, positions: Sequence[int]) -> list[tuple[str, float] | None]: ...
    def recall(self, key: str) -> Any: ...
    def remember(self, key: str, value: Any) -> None: ...


def configuration(project: LabellingProject) -> str:
    """Write a labelling configuration that fits the pool and its labels."""
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
    """Find the control that gives the label and the tags that show an item, as fields of a `Connection`."""
    try:
        tags = list(ElementTree.fromstring(config).iter())
    except (ElementTree.ParseError, ValueError) as error:
        raise AnswerError(f"the project's labelling configuration could not be read: {error}") from None
    chosen = _control(tags, control)
    _check_choices(chosen, project)
    values = [(tag.get("value", ""), tag.tag) for tag in tags if tag.tag not in CONTROLS]
    shows = {value[1:]: tag for value, tag in values if value.startswith("$")}
    if project.kind == "images" and "Image" not in shows.values():
        raise InputError("the items are images, but the labelling configuration has no Image; add one")
    return {"control": chosen.get("name"), "kind": chosen.tag, "item": chosen.get("toName"), "shows": shows}


def _control(tags: list[ElementTree.Element], name: str | None) -> ElementTree.Element:
    """The one control for a whole item's label, or the one of this name."""
    controls = [tag for tag in tags if tag.tag in CONTROLS and tag.get("perRegion") != "true"]
    controls = [tag for tag in controls if tag.get("choice") != "multiple"]
    fitting = [tag for tag in controls if name in (None, tag.get("name"))]
    if len(fitting) != 1:
        names = on_one_line(", ".join(f"{tag.tag} {tag.get('name')!r}" for tag in controls)) or "none"
        wanted = "Choices (single), Taxonomy, Number or TextArea"
        raise InputError(f"found {names}, expected a {wanted} for the label; add one, or name one of several")
    return fitting[0]


def _check_choices(control: ElementTree.Element, project: LabellingProject) -> None:
    offered = {choice.get("alias") or choice.get("value") for choice in control.iter("Choice")}
    odd = offered.difference(project.classes or ())
    if control.tag == "Choices" and project.classes and odd:
        names = ", ".join(project.classes)
        choices = on_one_line(str(sorted(map(str, odd))))
        raise InputError(f"the choices {choices} are none of the classes {names}; rename them")
    if not control.get("name") or not control.get("toName"):
        raise InputError(f"the {control.tag} for the label has no name or toName; add them")
