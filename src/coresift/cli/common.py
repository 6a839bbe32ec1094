"""What the commands share: options, ways to print, and ids as users give them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from coresift.errors import cannot_write

if TYPE_CHECKING:
    from coresift.labelling.project import Project

ProjectFolder = Annotated[Path, typer.Argument(metavar="PROJECT", help="The project's folder.")]
Text: TypeAlias = str | None
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def open_project(folder: Path) -> Project:
    """Open a project. It is imported here: with a model it takes longer to import than all the rest."""
    from coresift.labelling.project import Project

    return Project(folder)


def say(as_json: bool, facts: Mapping[str, Any], *lines: str | None) -> None:
    """Print facts for a script, or lines for people, without those that are ``None``."""
    for line in [json.dumps(facts, default=fspath)] if as_json else lines:
        if line is not None:
            typer.echo(line)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a system's refusal to write ``path`` into an error of ours."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from None


def split_names(text: str | None) -> tuple[str, ...]:
    """Split names at commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def read_ids(project: Project, given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the given ids; ``@FILE`` stands for the ids in a file, ``@@`` for an ``@`` that starts an id.

    The file has an id in each line, or a column of ids like a batch.
    """
    from coresift.labelling.labellers.files import answer_parts, read_ids

    columns = answer_parts(project.target, project.settings.reading.id)["id"]
    ids: list[str] = []
    for text in given or ():
        is_file = text.startswith("@") and not text.startswith("@@")
        ids += read_ids(Path(text[1:]), columns) if is_file else [text.removeprefix("@")]
    return tuple(ids)
