"""The commands that send batches to Label Studio and bring labels back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from coresift.cli.common import Json, ProjectFolder, Text, open_project, say

if TYPE_CHECKING:
    from coresift.labelling.labellers.label_studio import LabelStudioLabeller
    from coresift.labelling.project import Project

# The larger imports are inside the commands: the others should not wait for them.

commands = typer.Typer(no_args_is_help=True, help="Send batches to Label Studio and bring labels back.")

TokenFile = Annotated[
    Path | None,
    Option(help="A file of mode 600 with the token; without it, the variable LABEL_STUDIO_API_KEY is used."),
]
TrustServer = Annotated[
    Text,
    Option(metavar="URL", help="Trust this server, which the project names: send it the token from now on."),
]


@contextmanager
def _connected(
    project: Path, token_file: Path | None, trusted: str | None
) -> Iterator[tuple[Project, LabelStudioLabeller]]:
    """Open a project and connect to its server; at a terminal, ask whether to trust one not used before."""
    from coresift.labelling.labellers import label_studio

    def confirm(url: str) -> bool:
        if trusted is not None:
            return trusted.strip().rstrip("/") == url
        question = f"The project names the server {url}, which you have not used before. Send it your token?"
        return sys.stdin.isatty() and sys.stderr.isatty() and typer.confirm(question, err=True)

    with open_project(project) as opened, label_studio.open_server(opened, token_file, confirm) as server:
        yield opened, label_studio.LabelStudioLabeller(opened, server)


@commands.command()
def connect(
    project: ProjectFolder,
    url: Annotated[str, Option(help="The server's address, such as http://127.0.0.1:8080.")],
    title: Annotated[Text, Option(help="A project's title there; it is created if there is none.")] = None,
    project_id: Annotated[int | None, Option(help="The number of an existing Label Studio project.")] = None,
    control: Annotated[Text, Option(help="The control for the label, if there are several.")] = None,
    token_file: TokenFile = None,
    allow_http: Annotated[
        bool, Option("--allow-http", help="Send the token unencrypted to another machine.")
    ] = False,
    json: Json = False,
) -> None:
    """Connect the project to a Label Studio project."""
    from coresift.labelling.labellers import label_studio

    token = label_studio.read_token(token_file)
    with (
        open_project(project) as opened,
        label_studio.LabelStudio(url, token, allow_http=allow_http) as server,
    ):
        if project_id is None:
            title = title or project.absolute().name
        made = label_studio.connect(opened, server, project_id, title, control)
    message = f"connected to {made.page}; send the batch with: coresift labelstudio push {project}"
    say(json, asdict(made), message)


@commands.command()
def push(
    project: ProjectFolder, token_file: TokenFile = None, trust_server: TrustServer = None, json: Json = False
) -> None:
    """Send the pending items as tasks, in the order of choice."""
    with _connected(project, token_file, trust_server) as (opened, labeller):
        pushed = labeller.ask(opened.pending())
    say(json, asdict(pushed), f"{pushed.sent} tasks sent, {pushed.present} were there already")


@commands.command()
def pull(
    project: ProjectFolder, token_file: TokenFile = None, trust_server: TrustServer = None, json: Json = False
) -> None:
    """Collect annotations."""
    with _connected(project, token_file, trust_server) as (opened, labeller):
        done = labeller.collect(lambda answers: opened.add(answers, labeller.source))
    say(
        json,
        asdict(done),
        f"{done.new} new labels, {done.corrected} corrections, {done.skipped} skipped, {done.same} known",
        *done.unusable,
    )


@commands.command()
def watch(
    project: ProjectFolder,
    batch_size: Annotated[int, Option(help="The number of items in each further batch.")],
    every: Annotated[float, Option(help="Seconds between two checks.")] = 30.0,
    rounds: Annotated[int | None, Option(help="Stop after this many batches; never by default.")] = None,
    token_file: TokenFile = None,
    trust_server: TrustServer = None,
    json: Json = False,
) -> None:
    """Collect each batch when it is answered, choose the next one and send it, until Ctrl-C."""
    from coresift.labelling.labellers.label_studio import watch as watch_server
    from coresift.labelling.project import Request

    with _connected(project, token_file, trust_server) as (opened, labeller):
        learner = opened.learner(Request(batch_size), labeller.source)
        done = watch_server(learner, labeller, every, rounds, report=lambda line: typer.echo(line, err=json))
    say(json, asdict(done), f"{done.rounds} batches done ({done.ended})")
