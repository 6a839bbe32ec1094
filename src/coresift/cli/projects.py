"""The commands of a project as a whole: init, status, report, export, repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from typer import Option

from coresift.cli import words
from coresift.cli.common import Json, ProjectFolder, open_project, say, split_names, writing
from coresift.errors import InputError

if TYPE_CHECKING:
    from coresift.labelling.ledger import Ledger
    from coresift.labelling.project import Project

# The larger imports are inside the commands: the others should not wait for them.


def init(
    project: ProjectFolder,
    pool: Annotated[Path, Option(help="A .csv, .parquet or .npy file, or a folder of images.")],
    target: Annotated[str, Option(help="The column to predict; it may be partly filled.")],
    features: Annotated[
        str | None, Option(help="Columns to learn from, with commas; all by default.")
    ] = None,
    text: Annotated[str | None, Option(help="The column of text to learn from.")] = None,
    id_column: Annotated[
        str | None, Option("--id", help="The column of ids; 'id' or the row numbers by default.")
    ] = None,
    cost: Annotated[str | None, Option(help="The column with the cost of each label.")] = None,
    group: Annotated[str | None, Option(help="The column with the group of each item.")] = None,
    task: Annotated[str | None, Option(help="regression or classification; guessed by default.")] = None,
    classes: Annotated[str | None, Option(help="The labels allowed, with commas; any by default.")] = None,
    labels: Annotated[Path | None, Option(help="A file of labels that are known already.")] = None,
    hand_picked: Annotated[
        bool, Option("--hand-picked", help="The known labels were picked by hand, not drawn at random.")
    ] = False,
    embedding: Annotated[
        str | None, Option(help="module:name of a torch module that computes features of images or texts.")
    ] = None,
    skip_broken: Annotated[
        bool, Option("--skip-broken", help="Leave out images that cannot be read.")
    ] = False,
    seed: Annotated[int, Option(help="The random seed.")] = 0,
    json: Json = False,
) -> None:
    """Begin a labelling project from a pool of items."""
    from coresift.labelling.pools import Reading
    from coresift.labelling.project import Project

    if task not in (None, "regression", "classification"):
        raise InputError(f"--task is {task!r}, expected regression or classification")
    listed = (features,) if features else ()  # only the pool knows which commas are part of a name
    with Project.create(
        project,
        Reading(str(pool.absolute()), id_column, target, listed, text=text, cost=cost, group=group),
        task=task,
        classes=split_names(classes) or None,
        labels=labels,
        hand_picked=hand_picked,
        embedding=embedding,
        seed=seed,
        skip_broken=skip_broken,
    ) as made:
        _say_begun(made, json, is_guessed=task is None and classes is None)


def _say_begun(project: Project, json: bool, is_guessed: bool) -> None:
    """Print the facts of a new project."""
    from coresift.labelling.labels import alike_classes

    settings, counts, classes = project.settings, project.ledger.counts(), project.class_counts()
    items, labels, broken = len(project.ledger), counts["labelled"], settings.reading.skip
    corrections, ignored = project.ledger.first_corrections(), project.recall("ignored")
    alike = alike_classes(classes if settings.classes is None else {})
    facts = {
        "project": str(project.folder),
        "items": items,
        "labels": labels,
        "task": settings.task,
        "features": settings.features,
        "id": settings.reading.id,
        "corrections": [*map(asdict, corrections)],
        "ignored": ignored,
        "alike_classes": alike,
        "broken": broken,
    }
    say(
        json,
        facts,
        f"{project.folder}: {items:,} items, {labels:,} with a label; {settings.task} of {settings.target}",
        words.guessed_task(settings.task) if labels and is_guessed else None,
        f"features: {settings.features}",
        f"items are named by {project.pool.named_by}",
        words.first_labels(labels) if labels and not settings.hand_picked else None,
        *words.broken_images(broken),
        words.corrections(corrections),
        words.ignored_cells(ignored, settings.task),
        words.alike_classes(alike, classes),
        None if labels or project.pool.targets is not None else words.no_labels(project),
        words.next_step(project.folder, counts["unlabelled"]),
    )


def status(
    project: ProjectFolder,
    check: Annotated[bool, Option("--check", help="Check the ledger and the features for damage.")] = False,
    json: Json = False,
) -> None:
    """Show the numbers of labelled and pending items, and the rounds so far."""
    # The ledger alone: a model would take longer to import than all the rest.
    from coresift.labelling.database import NAME
    from coresift.labelling.ledger import Ledger

    if check:
        with open_project(project) as opened:
            opened.check()
    with Ledger(project / NAME) as ledger:
        settings, counts, rounds = ledger.recall("settings"), ledger.counts(), _rounds(ledger)
        classes = _classes(ledger, settings)
    say(
        json,
        {
            "task": settings["task"],
            "target": settings["target"],
            "counts": counts,
            "classes": classes,
            "rounds": rounds,
        },
        f"{project}: {settings['task']} of {settings['target']}, from {settings['reading']['path']}",
        ", ".join(f"{count:,} {state}" for state, count in counts.items()),
        "no damage was found in the ledger and the features" if check else None,
        f"classes: {words.classes(classes)}" if classes else None,
    )
    if rounds and not json:
        Console().print(_table(rounds))


def _classes(ledger: Ledger, settings: Mapping[str, Any]) -> dict[str, int]:
    """The labels of each class, also of named classes without a label; none for a regression."""
    if settings["task"] == "regression":
        return {}
    counts = ledger.label_counts()
    return counts | {name: 0 for name in settings["classes"] or () if name not in counts}


def _rounds(ledger: Ledger) -> list[dict[str, Any]]:
    """The facts of each round."""
    pending = Counter(number for number, _ in ledger.pending())
    withdrawn = ledger.withdrawn()
    return [
        {
            "round": made.number,
            "at": made.at,
            "strategy": made.strategy,
            "labels": made.labels,
            "items": len(made.batch),
            "pending": pending[made.number],
            "withdrawn": len(withdrawn.get(made.number, ())),
            "seconds": made.seconds,
        }
        for made in ledger.rounds()
    ]


def _table(rounds: Sequence[Mapping[str, Any]]) -> Table:
    # Without a column of zeros, the table fits into 80 characters.
    names = [name for name in rounds[0] if name != "withdrawn" or any(facts[name] for facts in rounds)]
    columns = ["chosen" if name == "at" else name for name in names]
    table = Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for facts in rounds:
        shown = {**facts, "at": facts["at"][:16].replace("T", " "), "seconds": f"{facts['seconds']:.1f}"}
        table.add_row(*(str(shown[name]) for name in names))
    return table


def report(
    project: ProjectFolder,
    out: Annotated[Path | None, Option(help="The page to write; PROJECT/report.html by default.")] = None,
    show: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
    json: Json = False,
) -> None:
    """Write one page about the project: counts, curve, map, batch and rounds."""
    from coresift.labelling.overview import overview
    from coresift.report.project import write_project_report

    path = out or project / "report.html"
    with open_project(project) as opened:
        opened.check_replaceable(path)
        with writing(path):
            write_project_report(overview(opened), path)
    say(json, {"report": str(path)}, f"written to {path}")
    if show:
        typer.launch(str(path))


def export(
    project: ProjectFolder,
    out: Annotated[Path, typer.Argument(help="The .parquet or .csv file to write.")],
    json: Json = False,
) -> None:
    """Write all items: labels, and the model's predictions for the rest."""
    from coresift.labelling.exporting import write_export, write_labels

    with open_project(project) as opened:
        opened.check_replaceable(out)
        reason = opened.why_lost()
        if reason is not None and out.exists():
            raise InputError(
                f"{reason}; only the labels can be written, and {out} is there and may hold more: name "
                "another file"
            )
        write = write_export if reason is None else write_labels
        warning = None if reason is None else words.lost_pool(opened, reason, out)
        with writing(out):
            facts = write(opened, out)
    say(
        json,
        {**facts, "out": str(out), "warning": warning},
        f"written to {out}: {facts['labelled']:,} labels, {facts['predicted']:,} predictions",
        f"warning: {warning}" if warning else None,
    )


def repair(
    project: ProjectFolder,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The new folder to write to.")],
    json: Json = False,
) -> None:
    """Save what can be read of a damaged ledger to new files; the project stays as it is."""
    from coresift.labelling.repair import repair as read_damaged

    with writing(out):
        saved = read_damaged(project, out)
    read = ", ".join(f"{count:,} {name}" for name, count in saved.rows.items())
    lost = ", ".join(f"{count:,} {name}" for name, count in saved.lost.items() if count)
    unnamed = f", without {saved.unnamed:,} of items whose id is lost" if saved.unnamed else ""
    say(
        json,
        asdict(saved),
        f"read {read}; written to {out}",
        f"lost {lost}; more may be lost at the end"
        if lost
        else "no gaps were found, but the last ones may be lost",
        f"{out / 'labels.csv'} has {saved.labels:,} answers{unnamed}",
        f"begin a new project with: {saved.command}" if saved.command else None,
    )
