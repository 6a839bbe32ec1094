"""The commands between two rounds: select, pending, ingest, reopen."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coresift.cli import words
from coresift.cli.common import Json, ProjectFolder, printable, read_ids, say, writing
from coresift.errors import InputError

if TYPE_CHECKING:
    from coresift.labelling.project import Project

# Imports are inside the commands: the others should not wait for them.

Budget = Annotated[
    float | None, typer.Option(help="What they may cost together, in the unit of the cost column.")
]
Excluded = Annotated[
    list[str] | None, typer.Option(help="An item that can never be labelled; repeat it, or @FILE of ids.")
]
Included = Annotated[
    list[str] | None, typer.Option(help="An item the batch must contain; repeat it, or @FILE of ids.")
]
Candidates = Annotated[
    str, typer.Option(help="How many items to look at, drawn at random from larger pools, or 'all'.")
]
More = Annotated[
    bool, typer.Option("--more", help="A further batch, even if nothing came in since the last.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Withdraw the pending items, and choose anew.")]
Wait = Annotated[float, typer.Option(help="Seconds to wait for another program that is writing.")]


def select(
    project: ProjectFolder,
    batch_size: Annotated[int | None, typer.Option(help="Number of items.")] = None,
    budget: Budget = None,
    out: Annotated[Path | None, typer.Option(help="The CSV file to write for the annotators.")] = None,
    strategy: Annotated[str | None, typer.Option(help="See coresift strategies.")] = None,
    exclude: Excluded = None,
    must_include: Included = None,
    per_group: Annotated[int | None, typer.Option(help="The largest number of items of one group.")] = None,
    candidates: Candidates = "100000",
    engine: Annotated[str | None, typer.Option(help="ray: share the pool among a cluster's workers.")] = None,
    more: More = False,
    replace: Replace = False,
    wait: Wait = 0.0,
    json: Json = False,
) -> None:
    """Choose which items to label next."""
    from coresift.labelling.project import Project, Request
    from coresift.strategies import DEFAULT

    if engine not in (None, "ray"):
        raise InputError(f"--engine is {engine!r}, expected ray")
    with Project(project) as opened:
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
        ids = [item.id for item in made.batch]
        lines = [*words.batch(made, again, shortage), *_where(opened, ids, out)]
    facts = {**asdict(made), "again": again, "shortage": shortage, "out": str(out) if out else None}
    say(json, facts, *lines)


def _read_candidates(text: str) -> int | None:
    if text != "all" and not text.isdigit():
        raise InputError(f"--candidates is {text!r}, expected an integer or 'all'")
    return None if text == "all" else int(text)


def _where(project: Project, ids: list[str], out: Path | None) -> list[str]:
    """Say where a batch is, and what is pending from earlier ones."""
    lists_all = f"coresift pending {project.folder} lists all"
    if out is None:
        lines = words.listed_ids(ids, lists_all)
        lines.append(f"write them to a file with: coresift pending {project.folder} --out batch.csv")
    else:
        lines = [
            f"written to {out}; fill in {project.target!r} and run: coresift ingest {project.folder} {out}"
        ]
    earlier = len(project.pending()) - len(ids)
    return [*lines, *([f"still pending from earlier batches: {earlier:,}; {lists_all}"] if earlier else [])]


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
    out: Annotated[
        Path | None,
        typer.Option(help="The CSV file to write for the annotators; ids are printed by default."),
    ] = None,
    json: Json = False,
) -> None:
    """List all pending items, of whatever round, or write them to a file once more."""
    from coresift.labelling.answers import BatchFile
    from coresift.labelling.project import Project

    with Project(project) as opened:
        items = opened.pending()
        if out is not None:
            _check_batch_file(opened, out)
            BatchFile(opened, out).ask(items, lambda: None)
    ids = [item.id for item in items]
    lines = map(printable, ids) if out is None else [f"{len(ids)} pending items written to {out}"]
    say(json, {"pending": len(ids), "items": ids, "out": str(out) if out else None}, *lines)
    if out is None and not ids and not json:
        typer.echo("no item is pending", err=True)  # not among the ids, which may go to a file


# What `Ingested` counts, as it is printed.
_OUTCOMES = {
    "new": "new labels",
    "corrected": "corrections",
    "skipped": "skipped",
    "same": "known already",
    "outdated": "older than what is known or corrected since, and left out",
}


def ingest(
    project: ProjectFolder,
    file: Annotated[Path, typer.Argument(help="A CSV file with ids and labels.")],
    wait: Wait = 10.0,
    json: Json = False,
) -> None:
    """Take labels in; a file may be partial, and may come twice."""
    from coresift.labelling.labels import alike_classes
    from coresift.labelling.project import Project

    with Project(project) as opened:
        intake = opened.ingest_file(file, wait)
        changed, counts = asdict(intake.changed), opened.ledger.counts()
        # At first there is nothing that a class could be new to.
        new_classes = intake.new_classes if intake.known else {}
        alike = alike_classes(intake.new_classes)
        told = ", ".join(f"{changed[name]} {word}" for name, word in _OUTCOMES.items() if changed[name])
        more = {"new_classes": new_classes, "ignored": intake.ignored, "alike_classes": alike}
        say(
            json,
            {**changed, "counts": counts, **more},
            f"{file}: {told or 'no answers in it'}",
            f"{counts['labelled']:,} labels now, {counts['pending']:,} items pending",
            *words.corrections(intake.changed.corrections),
            *words.ignored_cells(intake.ignored, opened),
            *words.new_classes(new_classes, intake.known),
            *words.alike_classes(alike, intake.new_classes),
        )


def reopen(
    project: ProjectFolder,
    items: Annotated[list[str], typer.Argument(help="Ids, or @FILE of ids or of a batch.")],
    json: Json = False,
) -> None:
    """Let items be chosen again that are pending, skipped or excluded."""
    from coresift.labelling.project import Project

    with Project(project) as opened:
        ids = read_ids(opened, items)
        count = opened.reopen(ids)
    kept = "" if count == len(set(ids)) else "; the others were not pending, skipped or excluded"
    say(json, {"reopened": count}, f"{count} items may be chosen again{kept}")
