"""The commands of a labelling project: parse, call, print."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coresift.errors import InputError, cannot_write

if TYPE_CHECKING:
    from coresift.labelling.ledger import Correction
    from coresift.labelling.project import Project
    from coresift.labelling.records import Round

# Imports are inside the commands: the others should not wait for them.

ProjectFolder = Annotated[Path, typer.Argument(metavar="PROJECT", help="The project's folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]

# Classes, or corrections, that are named in one line; the others are counted.
_SHOWN_CLASSES, _SHOWN_CORRECTIONS = 10, 5
# Ids that are printed of a batch without a file.
_SHOWN_IDS = 100


def add_commands(app: typer.Typer) -> None:
    """Add the commands of labelling projects to an application."""
    for command in (init, select, pending, ingest, status, report, export, reopen, repair):
        app.command()(command)
    studio = typer.Typer(no_args_is_help=True, help="Send batches to Label Studio and bring labels back.")
    for studio_command in (connect, push, pull, watch):
        studio.command()(studio_command)
    app.add_typer(studio, name="labelstudio")


def _say(as_json: bool, facts: Mapping[str, Any], *lines: str) -> None:
    if as_json:
        typer.echo(json_format.dumps(facts))
    else:
        for line in lines:
            typer.echo(line)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _ids(project: Project, given: list[str] | None) -> tuple[str, ...]:
    """Ids as they are, or with ``@`` in front of the name of a file that has one in each line, or a column of
    them as a batch has; ``@@`` stands for an ``@`` that an id begins with.
    """
    from coresift.labelling.labellers.files import answer_parts, read_ids

    columns = answer_parts(project.target, project.settings.reading.id)["id"]
    found: list[str] = []
    for one in given or ():
        if not one.startswith("@") or one.startswith("@@"):
            found.append(one.replace("@@", "@", 1) if one.startswith("@@") else one)
            continue
        found += read_ids(Path(one[1:]), columns)
    return tuple(found)


def init(
    project: ProjectFolder,
    pool: Annotated[Path, typer.Option(help="A .csv, .parquet or .npy file, or a folder of images.")],
    target: Annotated[str, typer.Option(help="What is to be learned; a column that may be partly filled.")],
    features: Annotated[
        str | None, typer.Option(help="Columns to learn from, with commas between; all by default.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="The column of text to learn from.")] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="The column that names items; 'id' or row numbers by default.")
    ] = None,
    cost: Annotated[str | None, typer.Option(help="The column of what a label costs.")] = None,
    group: Annotated[str | None, typer.Option(help="The column of groups.")] = None,
    task: Annotated[
        str | None, typer.Option(help="regression or classification; by default what labels look like.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="The labels that are allowed, with commas between; any by default.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="A file of labels that are known already.")] = None,
    hand_picked: Annotated[
        bool, typer.Option("--hand-picked", help="Known labels were picked by hand, not drawn at random.")
    ] = False,
    embedding: Annotated[
        str | None, typer.Option(help="What makes numbers of images or text: module:name of a torch module.")
    ] = None,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave out images that cannot be read, and list them.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn at random.")] = 0,
    json: Json = False,
) -> None:
    """Begin a labelling project from a pool of items."""
    from coresift.labelling.labels import alike_classes
    from coresift.labelling.pools import Reading
    from coresift.labelling.project import Project

    if task not in (None, "regression", "classification"):
        raise InputError(f"--task is {task!r}, expected regression or classification")
    listed = (features,) if features else ()  # which commas are part of a name, only the pool can tell
    reading = Reading(str(pool.absolute()), id_column, target, listed, text=text, cost=cost, group=group)
    with Project.create(
        project,
        reading,
        task=task,  # type: ignore[arg-type]
        classes=_names(classes) or None,
        labels=labels,
        hand_picked=hand_picked,
        embedding=embedding,
        seed=seed,
        skip_broken=skip_broken,
    ) as made:
        counts = made.ledger.counts()
        settings, known_column = made.settings, made.pool.targets() is not None
        passed_over = made.recall("passed_over")
        corrections = made.ledger.first_corrections()
        classes_there = made.class_counts() if settings.classes is None else {}
        alike = alike_classes(classes_there)
        facts = {
            "project": str(project),
            "items": len(made.ledger),
            "labels": counts["labelled"],
            "task": settings.task,
            "features": settings.features,
            "id": settings.reading.id,
            "corrections": [asdict(one) for one in corrections],
            "passed_over": passed_over,
            "alike_classes": alike,
            "broken": settings.reading.skip,
        }
        _say(
            json,
            facts,
            f"{project}: {len(made.ledger):,} items, {counts['labelled']:,} with a label; {settings.task} of "
            f"{settings.target}",
            *_about_task(settings.task, counts["labelled"], told=task is not None or classes is not None),
            f"features: {settings.features}",
            f"items are named by {made.pool.named_by}",
            *_about_first_labels(counts["labelled"], hand_picked),
            *_about_broken(settings.reading.skip),
            *_about_corrections(corrections),
            *_about_passed_over(passed_over, made),
            *_about_alike_classes(alike, classes_there),
            *(
                []
                if known_column or counts["labelled"]
                else [f"{_no_labels(made.kind, target)}: all are to come"]
            ),
            _next_step(project, counts["unlabelled"]),
        )


def _about_task(task: str, labels: int, told: bool) -> list[str]:
    other = "regression" if task == "classification" else "classification"
    if told or not labels:
        return []
    return [f"the task looks like {task} by the labels; say --task {task} to be sure, or --task {other}"]


def _no_labels(kind: str, target: str) -> str:
    """Why there are no labels yet."""
    columns = kind in ("table", "text")
    return f"no labels, since the pool has no column {target!r}" if columns else "no labels yet"


def _next_step(project: Path, unlabelled: int) -> str:
    if not unlabelled:
        return "every item has a label or is skipped: there is nothing to choose"
    size = min(50, unlabelled)
    return f"choose the first batch with: coresift select {project} --batch-size {size} --out batch.csv"


def _about_broken(images: Sequence[str]) -> list[str]:
    if not images:
        return []
    return [f"images that cannot be read and were left out: {len(images):,}", *map(_plain_id, images)]


def _about_first_labels(count: int, hand_picked: bool) -> list[str]:
    if not count or hand_picked:
        return []
    labels = "label" if count == 1 else f"{count:,} labels"
    return [
        f"error estimates take the {labels} for drawn at random from the pool; if somebody picked them, make "
        "the project again with --hand-picked"
    ]


def select(
    project: ProjectFolder,
    batch_size: Annotated[int | None, typer.Option(help="How many items.")] = None,
    budget: Annotated[
        float | None, typer.Option(help="What they may cost together, in the unit of the cost column.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The CSV file to write for the annotators.")] = None,
    strategy: Annotated[str | None, typer.Option(help="See coresift strategies.")] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="An item that cannot be labelled, now or later; repeat it, or @FILE of ids."),
    ] = None,
    must_include: Annotated[
        list[str] | None, typer.Option(help="An item the batch has to hold; repeat it, or @FILE of ids.")
    ] = None,
    per_group: Annotated[int | None, typer.Option(help="At most so many items of one group.")] = None,
    candidates: Annotated[
        str, typer.Option(help="How many items to look at, drawn at random from larger pools, or 'all'.")
    ] = "100000",
    engine: Annotated[str | None, typer.Option(help="ray: share the pool among a cluster's workers.")] = None,
    more: Annotated[
        bool, typer.Option("--more", help="A further batch, though nothing came in since the last.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Withdraw the items that are pending, and choose anew.")
    ] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for another program that is writing.")] = 0.0,
    json: Json = False,
) -> None:
    """Choose which items to label next."""
    from coresift.labelling.project import Project, Request
    from coresift.strategies import DEFAULT

    if engine not in (None, "ray"):
        raise InputError(f"--engine is {engine!r}, expected ray")
    if candidates != "all" and not candidates.isdigit():
        raise InputError(f"--candidates is {candidates!r}, expected a whole number or 'all'")
    with Project(project) as opened:
        request = Request(
            batch_size=batch_size,
            budget=budget,
            strategy=strategy or DEFAULT,
            exclude=_ids(opened, exclude),
            must_include=_ids(opened, must_include),
            per_group=per_group,
            candidates=None if candidates == "all" else int(candidates),
            engine=engine,
        )
        if out is not None:  # before anything is chosen that could then not be written
            _check_batch_file(opened, out)
        made, again = opened.next_round(request, more, wait, out=out, replace=replace)
        lines = [
            f"round {made.number}: {len(made.batch)} items by {made.strategy}, after {made.labels} labels"
            + (" (chosen before, and nothing came in since)" if again else "")
        ]
        shortage = _shortage(opened, made, out)
        if shortage is not None:
            lines.append(shortage)
        if made.notes.get("cold"):
            lines.append(
                "too few labels for a model yet, or all the same: this batch is spread over the pool by its "
                "features alone"
            )
        lines += _about_candidates(made)
        lines += made.notes.get("worth", ())
        if out is None:
            lines += _listed_ids([one.id for one in made.batch], f"coresift pending {project} lists all")
            lines.append(f"write them to a file with: coresift pending {project} --out batch.csv")
        else:
            lines.append(
                f"written to {out}; fill in {opened.target!r} and run: coresift ingest {project} {out}"
            )
        earlier = len(opened.pending()) - len(made.batch)
        if earlier:
            lines.append(
                f"still pending from earlier batches: {earlier:,}; coresift pending {project} lists all"
            )
        facts = {**asdict(made), "again": again, "shortage": shortage, "out": str(out) if out else None}
        _say(json, facts, *lines)


def _about_candidates(made: Round) -> list[str]:
    """A line where a batch was chosen from a part of the pool."""
    seen, there = made.notes.get("candidates", 0), made.notes.get("open", 0)
    if seen >= there:
        return []
    how = f"looked at {seen:,} of {there:,} items without a label, drawn at random"
    if made.notes.get("cold"):  # where `COLD_CANDIDATES` are the most
        return [how]
    return [f"{how}; to look at all of them next time, add --candidates all"]


def _shortage(project: Project, made: Round, out: Path | None) -> str | None:
    """Why a batch has fewer items than were asked for; nothing where it has as many."""
    size, asked = len(made.batch), made.asked
    if asked["batch_size"] is None or size >= asked["batch_size"]:
        return None
    some = f"only {size} {'item was' if size == 1 else 'items were'}"
    if not project.ledger.counts()["unlabelled"]:
        # Asked the same again, select gives the same batch, with a file of it this time.
        first = "" if out else ", ask again with --out batch.csv and then"
        undo = f"to undo this{first}: coresift reopen {project.folder} @{out or 'batch.csv'}"
        return f"{some} left, not {asked['batch_size']}; {undo}"
    if asked["budget"] is not None or asked["per_group"] is not None:
        return f"{some} within the limits, not {asked['batch_size']}"
    return f"{some} looked at, not {asked['batch_size']}; --more brings further ones"


def _check_batch_file(project: Project, out: Path) -> None:
    try:
        project.check_replaceable(out)
    except OSError as error:  # such as of a name that is too long
        raise cannot_write(out, error) from None
    if out.suffix.lower() != ".csv":
        raise InputError(f"{out} should end in .csv")
    if not out.absolute().parent.is_dir():
        raise InputError(f"there is no folder {out.parent} to write {out.name} into")
    len(project.pool)  # raises where it is gone, or another by now


def _listed_ids(ids: Sequence[str], rest: str) -> list[str]:
    """Ids for people to read, one in a line; of many the first, and how to see the rest."""
    shown = [_plain_id(one) for one in ids[:_SHOWN_IDS]]
    more = len(ids) - len(shown)
    return [*shown, *([f"... and {more:,} more: {rest}"] if more else [])]


def _plain_id(name: str) -> str:
    """The id as it stands, or quoted where it could do something to a terminal."""
    return name if name.isprintable() else repr(name)


def pending(
    project: ProjectFolder,
    out: Annotated[
        Path | None,
        typer.Option(help="The CSV file to write for the annotators; ids are printed by default."),
    ] = None,
    json: Json = False,
) -> None:
    """List all items that are pending, of whatever round, or write them to a file once more."""
    from coresift.labelling.project import Project

    with Project(project) as opened:
        if out is not None:
            _check_batch_file(opened, out)
        waiting = opened.pending()
        if out is not None:
            opened.write_batch(out, waiting)
    ids = [one.id for one in waiting]
    facts = {"pending": len(ids), "items": ids, "out": str(out) if out else None}
    if out is not None:
        _say(json, facts, f"{len(ids)} pending items written to {out}")
        return
    _say(json, facts, *map(_plain_id, ids))
    if not ids and not json:
        typer.echo("no item is pending", err=True)  # not among the ids, which may go to a file


def ingest(
    project: ProjectFolder,
    file: Annotated[Path, typer.Argument(help="A CSV file with ids and labels.")],
    wait: Annotated[float, typer.Option(help="Seconds to wait for another program that is writing.")] = 10.0,
    json: Json = False,
) -> None:
    """Take labels in; a file may be partial, and may come twice."""
    from coresift.labelling.labels import alike_classes
    from coresift.labelling.project import Project

    with Project(project) as opened:
        intake = opened.ingest_file(file, wait)
        changed = asdict(intake.changed)
        counts = opened.ledger.counts()
        # At first there is nothing that a class could be new to.
        new_classes = intake.new_classes if intake.known else {}
        alike = alike_classes(intake.new_classes)
        words = {
            "new": "new labels",
            "corrected": "corrections",
            "skipped": "skipped",
            "same": "known already",
            "outdated": "older than what is known or corrected since, and left out",
        }
        said = ", ".join(f"{changed[name]} {word}" for name, word in words.items() if changed[name])
        facts = {
            **changed,
            "counts": counts,
            "new_classes": new_classes,
            "passed_over": intake.passed_over,
            "alike_classes": alike,
        }
        _say(
            json,
            facts,
            f"{file}: {said or 'no answers in it'}",
            f"{counts['labelled']:,} labels now, {counts['pending']:,} items pending",
            *_about_corrections(intake.changed.corrections),
            *_about_passed_over(intake.passed_over, opened),
            *_about_new_classes(new_classes, intake.known),
            *_about_alike_classes(alike, intake.new_classes),
        )


def _about_corrections(corrections: Sequence[Correction]) -> list[str]:
    if not corrections:
        return []
    some = [
        f"{_short(one.id)} from {_short(one.before)} to "
        + ("skipped" if one.after is None else _short(one.after))
        + (f" by {_short(one.who)}" if one.who else "")
        for one in corrections[:_SHOWN_CORRECTIONS]
    ]
    rest = len(corrections) - len(some)
    return [f"corrected: {', '.join(some)}" + (f" and {rest:,} more" if rest else "")]


def _about_passed_over(count: int, project: Project) -> list[str]:
    if not count:
        return []
    hint = "; if it is a class, name it with --classes at init" if project.task == "classification" else ""
    return [f"{count:,} cells passed over, whose word (NA, null or the like) stands for no label{hint}"]


def _about_alike_classes(alike: Sequence[Sequence[str]], counts: Mapping[str, int]) -> list[str]:
    """A line for classes that are one in several spellings, it seems."""
    if not alike:
        return []
    told = "; ".join(_listed({name: counts[name] for name in names}, {}) for names in alike[:_SHOWN_CLASSES])
    return [
        f"classes that differ by case or spaces alone: {told}; if they are meant to be one, ingest a file "
        "that corrects them"
    ]


def _about_new_classes(counts: Mapping[str, int], known: Sequence[str]) -> list[str]:
    from coresift.labelling.labels import nearest_class

    if not counts:
        return []
    meant = {name: nearest_class(name, known) for name in list(counts)[:_SHOWN_CLASSES]}
    asked = {name: f", did you mean {_short(near)}?" for name, near in meant.items() if near}
    return [
        f"new classes: {_listed(counts, asked)}; if that is a mistake, correct the file and ingest it again"
    ]


def _listed(counts: Mapping[str, int], asked: Mapping[str, str]) -> str:
    """Classes with how many labels they have, and what is to be asked about them."""
    some = list(counts.items())[:_SHOWN_CLASSES]
    shown = ", ".join(f"{_short(name)} ({count:,}{asked.get(name, '')})" for name, count in some)
    return shown + (f" and {len(counts) - len(some):,} more" if len(counts) > len(some) else "")


def _short(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:57]}...")


def status(
    project: ProjectFolder,
    check: Annotated[
        bool, typer.Option("--check", help="Look for damage in all of the ledger and the features.")
    ] = False,
    json: Json = False,
) -> None:
    """Show counts, rounds, and what is out since when."""
    # The ledger alone: a model would take longer to import than all the rest.
    from coresift.labelling.ledger import NAME, Ledger

    if check:
        _check(project)
    with Ledger(project / NAME) as ledger:
        settings, counts, rounds = ledger.recall("settings"), ledger.counts(), ledger.rounds()
        waiting: dict[int, int] = {}
        for number, _ in ledger.pending():
            waiting[number] = waiting.get(number, 0) + 1
        withdrawn = {number: len(items) for number, items in ledger.withdrawn().items()}
        classes: dict[str, int] = {}
        if settings["task"] == "classification":
            # Those that were named at the start are worth knowing without a label too.
            classes = ledger.label_counts()
            classes |= {name: 0 for name in settings["classes"] or () if name not in classes}
    described = [
        {
            "round": one.number,
            "at": one.at,
            "strategy": one.strategy,
            "labels": one.labels,
            "items": len(one.batch),
            "pending": waiting.get(one.number, 0),
            "withdrawn": withdrawn.get(one.number, 0),
            "seconds": one.seconds,
        }
        for one in rounds
    ]
    if json:
        told = {name: settings[name] for name in ("task", "target")}
        _say(True, {**told, "counts": counts, "classes": classes, "rounds": described})
        return
    pool = settings["reading"]["path"]
    typer.echo(f"{project}: {settings['task']} of {settings['target']}, from {pool}")
    typer.echo(", ".join(f"{count:,} {state}" for state, count in counts.items()))
    if check:
        typer.echo("no damage was found in the ledger and the features")
    if classes:
        typer.echo(f"classes: {_listed(classes, {})}")
    if described:
        # A column more where it says something: a line of a terminal is short.
        gone = ["withdrawn"] if withdrawn else []
        columns = ["round", "chosen", "strategy", "labels", "items", "pending", *gone, "seconds"]
        table = Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for one in described:
            at = str(one["at"])[:16].replace("T", " ")
            table.add_row(
                str(one["round"]),
                at,
                str(one["strategy"]),
                str(one["labels"]),
                str(one["items"]),
                str(one["pending"]),
                *(str(one[name]) for name in gone),
                f"{one['seconds']:.1f}",
            )
        Console().print(table)


def _check(project: Path) -> None:
    """Raise for damage in the ledger or the features."""
    from coresift.labelling.project import Project

    with Project(project) as opened:
        opened.check()


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
        try:
            write_project_report(overview(opened), path)
        except OSError as error:
            raise cannot_write(path, error) from None
    _say(json, {"report": str(path)}, f"written to {path}")
    if show:
        typer.launch(str(path))


def export(
    project: ProjectFolder,
    out: Annotated[Path, typer.Argument(help="The .parquet or .csv file to write.")],
    json: Json = False,
) -> None:
    """Write all items: labels where there are any, the model's predictions for the rest."""
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
        warning = None if reason is None else _about_lost_pool(opened, reason, out)
        try:
            facts = write_export(opened, out) if reason is None else write_labels(opened, out)
        except OSError as error:
            raise cannot_write(out, error) from None
    _say(
        json,
        {**facts, "out": str(out), "warning": warning},
        f"written to {out}: {facts['labelled']:,} labels, {facts['predicted']:,} predictions",
        *([] if warning is None else [f"warning: {warning}"]),
    )


def _about_lost_pool(project: Project, reason: str, out: Path) -> str:
    told = [reason, "only the labels are written, as the ledger has them"]
    if project.settings.reading.id is None and project.kind != "images":
        told.append("items are named by their row numbers: see that the rows of a new pool are the same")
    if out.suffix.lower() == ".csv":  # which is what init takes
        told.append(f"begin anew with: {project.new_project(str(out))}")
    return "; ".join(told)


def reopen(
    project: ProjectFolder,
    items: Annotated[list[str], typer.Argument(help="Ids, or @FILE of ids or of a batch.")],
    json: Json = False,
) -> None:
    """Let items be chosen again that are pending, skipped or excluded."""
    from coresift.labelling.project import Project

    with Project(project) as opened:
        ids = _ids(opened, items)
        count = opened.reopen(ids)
    kept = "" if count == len(set(ids)) else "; the others were not pending, skipped or excluded"
    _say(json, {"reopened": count}, f"{count} items may be chosen again{kept}")


def repair(
    project: ProjectFolder,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The new folder to write to.")],
    json: Json = False,
) -> None:
    """Save what can be read of a damaged ledger to new files; the project stays as it is."""
    from coresift.labelling.repair import repair as read_damaged

    try:
        saved = read_damaged(project, out)
    except OSError as error:
        raise cannot_write(out, error) from None
    read = ", ".join(f"{count:,} {name}" for name, count in saved.rows.items())
    lost = ", ".join(f"{count:,} {name}" for name, count in saved.lost.items() if count)
    _say(
        json,
        asdict(saved),
        f"read {read}; written to {out}",
        f"lost {lost}, and perhaps the last ones"
        if lost
        else "no gaps between them; the last ones may be lost",
        f"{out / 'labels.csv'} has {saved.labels:,} answers"
        + (f", without {saved.unnamed:,} of items whose id is lost" if saved.unnamed else ""),
        *([] if saved.command is None else [f"begin anew with: {saved.command}"]),
    )


TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="A file with the token, of mode 600; else the environment variable LABEL_STUDIO_API_KEY has it."
    ),
]


TrustServer = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Send the token to this server, which the project names, from now on."),
]


def _confirm(trusted: str | None) -> Callable[[str], bool]:
    """Ask the user about a server, where somebody is there to answer, unless ``trusted`` is its url."""

    def confirm(url: str) -> bool:
        if trusted is not None:
            return trusted.strip().rstrip("/") == url
        asked = f"The project names the server {url}, which you have not used before. Send it your token?"
        return sys.stdin.isatty() and sys.stderr.isatty() and typer.confirm(asked, err=True)

    return confirm


def connect(
    project: ProjectFolder,
    url: Annotated[str, typer.Option(help="Of the server, such as http://127.0.0.1:8080.")],
    title: Annotated[
        str | None, typer.Option(help="Of the Label Studio project, which is made if there is none.")
    ] = None,
    project_id: Annotated[int | None, typer.Option(help="Of a Label Studio project that is there.")] = None,
    control: Annotated[
        str | None, typer.Option(help="Which of its controls has the label, where it has several.")
    ] = None,
    token_file: TokenFile = None,
    allow_http: Annotated[
        bool, typer.Option("--allow-http", help="Send the token unencrypted to another machine.")
    ] = False,
    json: Json = False,
) -> None:
    """Connect the project to a Label Studio project."""
    from coresift.labelling import label_studio
    from coresift.labelling.label_studio_client import LabelStudio, read_token
    from coresift.labelling.project import Project

    token = read_token(token_file)
    with Project(project) as opened, LabelStudio(url, token, allow_http=allow_http) as server:
        if project_id is None:
            title = title or project.absolute().name
        made = label_studio.connect(opened, server, project_id, title, control)
    _say(
        json,
        asdict(made),
        f"connected to {made.page}; send the batch with: coresift labelstudio push {project}",
    )


def push(
    project: ProjectFolder,
    token_file: TokenFile = None,
    trust_server: TrustServer = None,
    json: Json = False,
) -> None:
    """Send the pending items as tasks, in their order."""
    from coresift.labelling import label_studio
    from coresift.labelling.project import Project

    confirm = _confirm(trust_server)
    with Project(project) as opened, label_studio.open_server(opened, token_file, confirm) as server:
        done = label_studio.push(opened, server)
    _say(json, asdict(done), f"{done.sent} tasks sent, {done.present} were there already")


def pull(
    project: ProjectFolder,
    token_file: TokenFile = None,
    trust_server: TrustServer = None,
    json: Json = False,
) -> None:
    """Take in what was annotated."""
    from coresift.labelling import label_studio
    from coresift.labelling.project import Project

    confirm = _confirm(trust_server)
    with Project(project) as opened, label_studio.open_server(opened, token_file, confirm) as server:
        found = label_studio.pull(opened, server)
    _say(
        json,
        asdict(found),
        f"{found.new} new labels, {found.corrected} corrections, {found.skipped} skipped, {found.same} known",
        *found.unusable,
    )


def watch(
    project: ProjectFolder,
    batch_size: Annotated[int, typer.Option(help="How many items in each further batch.")],
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 30.0,
    rounds: Annotated[int | None, typer.Option(help="End after so many batches; never by default.")] = None,
    token_file: TokenFile = None,
    trust_server: TrustServer = None,
    json: Json = False,
) -> None:
    """Whenever a batch is done, take it in, choose the next and send it; Ctrl-C ends it."""
    from coresift.labelling import label_studio
    from coresift.labelling.project import Project

    confirm = _confirm(trust_server)
    with Project(project) as opened, label_studio.open_server(opened, token_file, confirm) as server:
        done = label_studio.watch(
            opened, server, batch_size, every, rounds, report=lambda line: typer.echo(line, err=json)
        )
    _say(json, asdict(done), f"{done.rounds} batches done ({done.ended})")
