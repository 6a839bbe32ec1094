"""What the commands share: options, ways to print, and ids as users give them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from coresift.labelling.project import Project

ProjectFolder = Annotated[Path, typer.Argument(metavar="PROJECT", help="The project's folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def say(as_json: bool, facts: Mapping[str, Any], *lines: str) -> None:
    """Print facts for a script, or lines for people."""
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        for line in lines:
            typer.echo(line)


def split_names(text: str | None) -> tuple[str, ...]:
    """Split names with commas between."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def read_ids(project: Project, given: Sequence[str] | None) -> tuple[str, ...]:
    """Return ids as they are, or from a file whose name has ``@`` in front.

    The file has an id in each line, or a column of ids as a batch has. ``@@`` stands for an ``@`` that an id
    begins with.
    """
    from coresift.labelling.labellers.files import answer_parts, read_ids

    columns = answer_parts(project.target, project.settings.reading.id)["id"]
    ids: list[str] = []
    for text in given or ():
        if text.startswith("@@"):
            ids.append(text[1:])
        elif text.startswith("@"):
            ids += read_ids(Path(text[1:]), columns)
        else:
            ids.append(text)
    return tuple(ids)


def printable(name: str) -> str:
    """Return an id as it stands, or quoted where it could do something to a terminal."""
    return name if name.isprintable() else repr(name)
