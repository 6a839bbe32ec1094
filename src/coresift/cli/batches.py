"""The commands between two rounds: select, pending, ingest, reopen."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from coresift.cli import words
from coresift.cli.common import Json, ProjectFolder, open_project, read_ids, say, writing
from coresift.errors import InputError

if TYPE_CHECKING:
    from coresift.labelling.project import Project

# The larger imports are inside the commands: the others should not wait for them.

Wait = Annotated[float, Option(help="Seconds to wait for another program that is writing.")]


def select(
    project: ProjectFolder,
    batch_size: Annotated[int | None, Option(help="Number of items.")] = None,
    budget: Annotated[float | None, Option(help="The most that the batch may cost.")] = None,
    out: Annotated[Path | None, Option(help="The CSV file to write for the annotators.")] = None,
    strategy: Annotated[str | None, Option(help="One of those that coresift strategies lists.")] = None,
    exclude: Annotated[
        list[str] | None, Option(help="An item that can never be labelled; repeat it, or @FILE with ids.")
    ] = None,
    must_include: Annotated[
        list[str] | None, Option(help="An item that the batch must contain; repeat it, or @FILE with ids.")
    ] = None,
    per_group: Annotated[int | None, Option(help="The largest number of items of one group.")] = None,
    candidates: Annotated[str, Option(help="Items to consider, drawn at random; or 'all'.")] = "100000",
    engine: Annotated[str | None, Option(help="'ray' shares the pool among a cluster's workers.")] = None,
    more: Annotated[bool, Option("--more", help="Choose a further batch while items are pending.")] = False,
    replace: Annotated[
        bool, Option("--replace", help="Withdraw the pending items and choose again.")
    ] = False,
    wait: Wait = 0.0,
    json: Json = False,
) -> None:
    """Choose which items to label next."""
    from coresift.labelling.settings import Request
    from coresift.strategies import DEFAULT

    if engine not in (None, "ray"):
        raise InputError(f"--engine is {engine!r}, expected ray")
    with open_project(project) as opened:
        request = Request(
            batch_size=batch_size,
            budget=budget,
            strategy=strategy or DEFAULT,
            exclude=read_ids(opened, exclude),
            must_include=read_ids(opened, must_include),
            per_group=per_group,
            candidates=_read_candidates(candidates),
            engine=engine,
        )
        if out is not None:  # before anything is chosen
            _check_batch_file(opened, out)
        made, again = opened.next_round(request, more, wait, out=out, replace=replace)
        shortage = words.shortage(opened, made, out)
        lines = [*words.batch(made, again, shortage), *words.where(opened, made, out)]
    facts = {**asdict(made), "again": again, "shortage": shortage, "out": str(out) if out else None}
    say(json, facts, *lines)


def _read_candidates(text: str) -> int | None:
    if text != "all" and not text.isdigit():
        raise InputError(f"--candidates is {text!r}, expected an integer or 'all'")
    return None if text == "all" else int(text)


def _check_batch_file(project: Project, out: Path) -> None:
    with writing(out):  # its name may be too long
        project.check_replaceable(out)
    if out.suffix.lower() != ".csv":
        raise InputError(f"{out} should end in .csv")
    if not out.absolute().parent.is_dir():
        raise InputError(f"there is no folder {out.parent} to write {out.name} into")
    len(project.pool)  # raises if it is gone or has changed


def pending(
    project: ProjectFolder,
    out: Annotated[Path | None, Option(help="The CSV file to write; without it, ids are printed.")] = None,
    json: Json = False,
) -> None:
    """List the pending items of all rounds, or write them to a file again."""
    from coresift.labelling.answers import BatchFile

    with open_project(project) as opened:
        items = opened.pending()
        if out is not None:
            _check_batch_file(opened, out)
            BatchFile(opened, out).ask(items, lambda: None)
    ids = [item.id for item in items]
    lines = [f"{len(ids)} pending items written to {out}"] if out else map(words.printable, ids)
    say(json, {"pending": len(ids), "items": ids, "out": str(out) if out else None}, *lines)
    if not (out or ids or json):
        typer.echo("no item is pending", err=True)  # not among the ids, which may go to a file


# What `Ingested` counts, as it is printed.
_OUTCOMES = {
    "new": "new labels",
    "corrected": "corrections",
    "skipped": "skipped",
    "same": "known already",
    "outdated": "ignored, since a newer answer or a correction is known",
}


def ingest(
    project: ProjectFolder,
    file: Annotated[Path, typer.Argument(help="A CSV file with ids and labels.")],
    wait: Wait = 10.0,
    json: Json = False,
) -> None:
    """Add the labels of a file, which may be partly filled in and may come several times."""
    from coresift.labelling.labels import alike_classes

    with open_project(project) as opened:
        intake = opened.ingest_file(file, wait)
        changed, counts = asdict(intake.changed), opened.ledger.counts()
        # At first there is nothing that a class could be new to.
        new_classes = intake.new_classes if intake.known else {}
        alike = alike_classes(intake.new_classes)
        told = ", ".join(f"{changed[name]} {word}" for name, word in _OUTCOMES.items() if changed[name])
        others = {"new_classes": new_classes, "ignored": intake.ignored, "alike_classes": alike}
        say(
            json,
            {**changed, "counts": counts, **others},
            f"{file}: {told or 'no answers in it'}",
            f"{counts['labelled']:,} labels now, {counts['pending']:,} items pending",
            words.corrections(intake.changed.corrections),
            words.ignored_cells(intake.ignored, opened.task),
            words.new_classes(new_classes, intake.known),
            words.alike_classes(alike, intake.new_classes),
        )


def reopen(
    project: ProjectFolder,
    items: Annotated[list[str], typer.Argument(help="Ids, or @FILE with ids or of a batch.")],
    json: Json = False,
) -> None:
    """Let pending, skipped or excluded items be chosen again."""
    with open_project(project) as opened:
        ids = read_ids(opened, items)
        count = opened.reopen(ids)
    kept = "" if count == len(set(ids)) else "; the others were not pending, skipped or excluded"
    say(json, {"reopened": count}, f"{count} items may be chosen again{kept}")
