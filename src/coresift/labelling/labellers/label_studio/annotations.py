"""Read annotations as answers, and write items and predictions as tasks."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from coresift.labelling.labellers.label_studio.configuration import CONTROLS, LabellingProject
from coresift.labelling.labellers.label_studio.connection import Connection
from coresift.labelling.labellers.label_studio.fields import CONTROL, field, on_one_line, time_of
from coresift.labelling.labellers.label_studio.server import LabelStudio
from coresift.labelling.labels import is_label, is_number, plain_class
from coresift.limits import CLASS_CHARACTERS


@dataclass(frozen=True)
class Annotation:
    """What one annotation says: a label, or, where it is not finished, that the item was skipped."""

    finished: bool
    time: datetime
    at: str
    label: str | None
    who: str | None

    @classmethod
    def read(cls, connection: Connection, annotation: Any) -> Annotation:
        """Read an annotation as the server sent it."""
        finished = not field(annotation, "was_cancelled", bool)
        label = _label(connection, field(annotation, "result", list)) if finished else None
        at = field(annotation, "updated_at", str)
        return cls(finished, time_of(annotation), at, label, _who(annotation))


def expected_instead(project: LabellingProject, label: str | None) -> str | None:
    """Say what a project expects instead of a label; ``None`` where it is fine."""
    text = label or ""
    if project.task == "regression":
        return None if is_number(text) else "a number"
    if project.classes is not None:
        return None if text in project.classes else " or ".join(project.classes)
    fine = is_label(text, None) and len(text) <= CLASS_CHARACTERS and not CONTROL.search(text)
    return None if fine else "a class"


def shown_data(
    connection: Connection, server: LabelStudio, kind: str, columns: Mapping[str, str]
) -> dict[str, Any]:
    """What the labelling configuration shows of an item, by variable."""
    whole = "\n".join(value if len(columns) == 1 else f"{name}: {value}" for name, value in columns.items())
    data: dict[str, Any] = {}
    for variable, tag in connection.shows.items():
        data[variable] = columns.get(variable, whole)
        if tag == "Image" and kind == "images":
            data[variable] = server.upload(connection.project_id, Path(columns["image"]))
        elif tag == "Table":
            # A list, because the names of an object would be sorted.
            data[variable] = [{"column": name, "value": value} for name, value in columns.items()]
        elif tag == "HyperText":
            data[variable] = html.escape(data[variable]).replace("\n", "<br>")
    return data


def predicted_result(connection: Connection, prediction: tuple[str, float] | None) -> list[dict[str, Any]]:
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
    path = _as_list(entries[0]) if len(entries) == 1 else [None]
    if not all(isinstance(step, str | int | float) for step in path):
        return None
    return plain_class(" / ".join(str(step) for step in path).strip()) or None


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
