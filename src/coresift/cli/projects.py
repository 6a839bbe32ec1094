"""The commands of a labelling project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from typer import Option

from coresift.cli import words
from coresift.cli.common import Json, ProjectFolder, Text, open_project, read_ids, say, split_names, writing
from coresift.errors import InputError

if TYPE_CHECKING:
    from coresift.labelling.ledger import Ledger
    from coresift.labelling.project import Project

# The larger imports are inside the commands: the others should not wait for them.

Items: TypeAlias = list[str] | None
Wait = Annotated[float, Option(help="Seconds to wait for another program that is writing.")]


def init(
    project: ProjectFolder,
    pool: Annotated[Path, Option(help="A .csv, .parquet or .npy file, or a folder of images.")],
    target: Annotated[str, Option(help="The column to predict; it may be partly filled.")],
    features: Annotated[Text, Option(help="Columns to learn from, with commas; all by default.")] = None,
    text: Annotated[Text, Option(help="The column of text to learn from.")] = None,
    id_column: Annotated[Text, Option("--id", help="The column of ids; 'id' or row numbers if none.")] = None,
    cost: Annotated[Text, Option(help="The column with the cost of each label.")] = None,
    group: Annotated[Text, Option(help="The column with the group of each item.")] = None,
    task: Annotated[Text, Option(help="regression or classification; guessed by default.")] = None,
    classes: Annotated[Text, Option(help="The labels allowed, with commas; any by default.")] = None,
    labels: Annotated[Path | None, Option(help="A file of labels that are known already.")] = None,
    hand_picked: Annotated[
        bool, Option("--hand-picked", help="The known labels were picked by hand.")
    ] = False,
    embedding: Annotated[
        Text, Option(help="module:name of a torch module for images; minilm or tfidf for texts.")
    ] = None,
    skip_broken: Annotated[bool, Option("--skip-broken", help="Skip images that cannot be read.")] = False,
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
    corrections, no_label_words = project.ledger.first_corrections(), project.recall("ignored")
    alike = alike_classes(classes) if settings.classes is None else []
    facts = {
        "project": project.folder,
        "items": len(project.ledger),
        "labels": counts["labelled"],
        "task": settings.task,
        "features": settings.features,
        "id": settings.reading.id,
        "corrections": [*map(asdict, corrections)],
        "ignored": no_label_words,
        "alike_classes": alike,
        "broken": settings.reading.skip,
    }
    say(
        json,
        facts,
        *words.begun(project, counts["labelled"], is_guessed),
        words.corrections(corrections),
        words.no_label_words(no_label_words, settings.task),
        words.alike_classes(alike, classes),
        None if counts["labelled"] or project.pool.targets is not None else words.no_labels(project),
        words.next_step(project.folder, counts["unlabelled"]),
    )


def select(
    project: ProjectFolder,
    batch_size: Annotated[int | None, Option(help="Number of items.")] = None,
    budget: Annotated[float | None, Option(help="The most that the batch may cost.")] = None,
    out: Annotated[Path | None, Option(help="The CSV file to write for the annotators.")] = None,
    strategy: Annotated[Text, Option(help="One of those that coresift strategies lists.")] = None,
    exclude: Annotated[
        Items, Option(help="An item that can never be labelled; repeat it, or @FILE with ids.")
    ] = None,
    must_include: Annotated[Items, Option(help="An item to include; repeat it, or @FILE with ids.")] = None,
    per_group: Annotated[int | None, Option(help="The largest number of items of one group.")] = None,
    candidates: Annotated[str, Option(help="Items to consider, drawn at random; or 'all'.")] = "100000",
    engine: Annotated[Text, Option(help="'ray' shares the pool among a cluster's workers.")] = None,
    more: Annotated[bool, Option("--more", help="Choose a further batch while items are pending.")] = False,
    replace: Annotated[bool, Option("--replace", help="Withdraw pending items and choose again.")] = False,
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
    facts = {**asdict(made), "again": again, "shortage": shortage, "out": out}
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
    say(json, {"pending": len(ids), "items": ids, "out": out}, *lines)
    if not (out or ids or json):
        typer.echo("no item is pending", err=True)  # not among the ids, which may go to a file


# What `AddedAnswers` counts, as it is printed.
_OUTCOMES = {
    "new": "new labels",
    "corrected": "corrections",
    "skipped": "skipped",
    "same": "known already",
    "outdated": "outdated, since a newer answer or a correction is known",
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
        ingested = opened.ingest_file(file, wait)
        outcomes, counts = asdict(ingested.outcomes), opened.ledger.counts()
        # At first there is nothing that a class could be new to.
        new_classes = ingested.new_classes if ingested.known else {}
        alike = alike_classes(ingested.new_classes)
        told = ", ".join(f"{outcomes[name]} {word}" for name, word in _OUTCOMES.items() if outcomes[name])
        others = {"new_classes": new_classes, "ignored": ingested.no_label_words, "alike_classes": alike}
        say(
            json,
            {**outcomes, "counts": counts, **others},
            f"{file}: {told or 'no answers in it'}",
            f"{counts['labelled']:,} labels now, {counts['pending']:,} items pending",
            words.corrections(ingested.outcomes.corrections),
            words.no_label_words(ingested.no_label_words, opened.task),
            words.new_classes(new_classes, ingested.known),
            words.alike_classes(alike, ingested.new_classes),
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
    task, target = settings["task"], settings["target"]
    say(
        json,
        {"task": task, "target": target, "counts": counts, "classes": classes, "rounds": rounds},
        f"{project}: {task} of {target}, from {settings['reading']['path']}",
        words.listed(counts.items()),
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
    names = dict(zip(rounds[0], rounds[0], strict=True)) | {"at": "chosen"}
    if not any(facts["withdrawn"] for facts in rounds):
        del names["withdrawn"]  # without a column of zeros, the table fits into 80 characters
    table = Table(*names.values(), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
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
    say(json, {"report": path}, f"written to {path}")
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
        write, warning = write_export, None
        if reason := opened.why_lost():
            if out.exists():
                only = "only the labels can be written"
                raise InputError(f"{reason}; {only}, and {out} is there and may hold more: name another file")
            write, warning = write_labels, words.lost_pool(opened, reason, out)
        with writing(out):
            facts = write(opened, out)
    say(
        json,
        {**facts, "out": out, "warning": warning},
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
    lost = words.listed((name, count) for name, count in saved.lost.items() if count)
    gaps = "no gaps were found, but the last ones may be lost"
    unnamed = f", without {saved.unnamed:,} of items whose id is lost" if saved.unnamed else ""
    say(
        json,
        asdict(saved),
        f"read {words.listed(saved.rows.items())}; written to {out}",
        f"lost {lost}; more may be lost at the end" if lost else gaps,
        f"{out / 'labels.csv'} has {saved.labels:,} answers{unnamed}",
        f"begin a new project with: {saved.command}" if saved.command else None,
    )


COMMANDS = (init, select, pending, ingest, status, report, export, reopen, repair)
