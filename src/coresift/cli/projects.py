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

from coresift.cli import words
from coresift.cli.common import Json, ProjectFolder, say, split_names, writing
from coresift.errors import InputError

if TYPE_CHECKING:
    from coresift.labelling.ledger import Ledger
    from coresift.labelling.project import Project

# Imports are inside the commands: the others should not wait for them.

Features = Annotated[
    str | None, typer.Option(help="Columns to learn from, separated by commas; all by default.")
]
IdColumn = Annotated[
    str | None, typer.Option("--id", help="The column that names items; 'id' or row numbers by default.")
]
AnyTask = Annotated[
    str | None, typer.Option(help="regression or classification; guessed from the labels by default.")
]
Classes = Annotated[
    str | None, typer.Option(help="The labels that are allowed, separated by commas; any by default.")
]
HandPicked = Annotated[
    bool, typer.Option("--hand-picked", help="Known labels were picked by hand, not drawn at random.")
]
Embedding = Annotated[
    str | None, typer.Option(help="Computes features of images or text: module:name of a torch module.")
]
SkipBroken = Annotated[
    bool, typer.Option("--skip-broken", help="Ignore images that cannot be read, and list them.")
]


def init(
    project: ProjectFolder,
    pool: Annotated[Path, typer.Option(help="A .csv, .parquet or .npy file, or a folder of images.")],
    target: Annotated[str, typer.Option(help="The column to predict; it may be partly filled.")],
    features: Features = None,
    text: Annotated[str | None, typer.Option(help="The column of text to learn from.")] = None,
    id_column: IdColumn = None,
    cost: Annotated[str | None, typer.Option(help="The column with the cost of each label.")] = None,
    group: Annotated[str | None, typer.Option(help="The column of groups.")] = None,
    task: AnyTask = None,
    classes: Classes = None,
    labels: Annotated[Path | None, typer.Option(help="A file of labels that are known already.")] = None,
    hand_picked: HandPicked = False,
    embedding: Embedding = None,
    skip_broken: SkipBroken = False,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 0,
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
        facts = _facts(made)
        say(json, facts, *_begun(made, facts, told=task is not None or classes is not None))


def _facts(project: Project) -> dict[str, Any]:
    """The facts of a new project."""
    from coresift.labelling.labels import alike_classes

    settings = project.settings
    return {
        "project": str(project.folder),
        "items": len(project.ledger),
        "labels": project.ledger.counts()["labelled"],
        "task": settings.task,
        "features": settings.features,
        "id": settings.reading.id,
        "corrections": [asdict(one) for one in project.ledger.first_corrections()],
        "ignored": project.recall("ignored"),
        "alike_classes": alike_classes(project.class_counts() if settings.classes is None else {}),
        "broken": settings.reading.skip,
    }


def _begun(project: Project, facts: Mapping[str, Any], told: bool) -> list[str]:
    """What people read about a new project."""
    settings, labels = project.settings, facts["labels"]
    expects_labels = project.pool.targets() is not None or labels
    return [
        f"{project.folder}: {facts['items']:,} items, {labels:,} with a label; {settings.task} of "
        f"{settings.target}",
        *words.task_was_guessed(settings.task, labels, told),
        f"features: {settings.features}",
        f"items are named by {project.pool.named_by}",
        *words.first_labels(labels, settings.hand_picked),
        *words.broken_images(settings.reading.skip),
        *words.corrections(project.ledger.first_corrections()),
        *words.ignored_cells(facts["ignored"], project),
        *words.alike_classes(facts["alike_classes"], project.class_counts()),
        *([] if expects_labels else [words.no_labels(project.kind, settings.target)]),
        words.next_step(project.folder, project.ledger.counts()["unlabelled"]),
    ]


def status(
    project: ProjectFolder,
    check: Annotated[
        bool, typer.Option("--check", help="Look for damage in all of the ledger and the features.")
    ] = False,
    json: Json = False,
) -> None:
    """Show counts and rounds, and how many items of each are pending."""
    # The ledger alone: a model would take longer to import than all the rest.
    from coresift.labelling.database import NAME
    from coresift.labelling.ledger import Ledger

    if check:
        _check(project)
    with Ledger(project / NAME) as ledger:
        settings, counts, rounds = ledger.recall("settings"), ledger.counts(), _rounds(ledger)
        classes = _class_counts(ledger, settings)
    facts = {"task": settings["task"], "target": settings["target"]}
    say(
        json,
        {**facts, "counts": counts, "classes": classes, "rounds": rounds},
        f"{project}: {settings['task']} of {settings['target']}, from {settings['reading']['path']}",
        ", ".join(f"{count:,} {state}" for state, count in counts.items()),
        *(["no damage was found in the ledger and the features"] if check else []),
        *([f"classes: {words.classes(classes)}"] if classes else []),
    )
    if rounds and not json:
        Console().print(_table(rounds))


def _check(project: Path) -> None:
    """Raise for damage in the ledger or the features."""
    from coresift.labelling.project import Project

    with Project(project) as opened:
        opened.check()


def _class_counts(ledger: Ledger, settings: Mapping[str, Any]) -> dict[str, int]:
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
    columns = {name: name for name in rounds[0]} | {"at": "chosen"}
    if not any(facts["withdrawn"] for facts in rounds):  # a line of a terminal is short
        del columns["withdrawn"]
    shown = {"at": lambda at: at[:16].replace("T", " "), "seconds": "{:.1f}".format}
    table = Table(*columns.values(), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for facts in rounds:
        table.add_row(*(shown.get(name, str)(facts[name]) for name in columns))
    return table


def report(
    project: ProjectFolder,
    out: Annotated[
        Path | None, typer.Option(help="The page to write; PROJECT/report.html by default.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    json: Json = False,
) -> None:
    """Write one page about the project: counts, curve, map, batch and rounds."""
    from coresift.labelling.overview import overview
    from coresift.labelling.project import Project
    from coresift.report.project import write_project_report

    path = out or project / "report.html"
    with Project(project) as opened:
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
    from coresift.labelling.project import Project

    with Project(project) as opened:
        opened.check_replaceable(out)
        reason = opened.why_lost()
        if reason is not None and out.exists():
            raise InputError(
                f"{reason}; so only the labels can be written, and {out} is there and may hold more: name "
                "another file"
            )
        warning = None if reason is None else words.lost_pool(opened, reason, out)
        with writing(out):
            facts = write_export(opened, out) if reason is None else write_labels(opened, out)
    say(
        json,
        {**facts, "out": str(out), "warning": warning},
        f"written to {out}: {facts['labelled']:,} labels, {facts['predicted']:,} predictions",
        *([] if warning is None else [f"warning: {warning}"]),
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
        f"lost {lost}, and perhaps the last ones" if lost else "no gaps between them; the last may be lost",
        f"{out / 'labels.csv'} has {saved.labels:,} answers{unnamed}",
        *([] if saved.command is None else [f"begin anew with: {saved.command}"]),
    )
