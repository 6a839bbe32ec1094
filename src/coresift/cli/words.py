"""Sentences that the commands of a project print. Each function returns lines, often none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coresift import limits
from coresift.cli.common import printable

if TYPE_CHECKING:
    from coresift.labelling.ledger import Correction
    from coresift.labelling.project import Project
    from coresift.labelling.records import Round


def task_was_guessed(task: str, labels: int, told: bool) -> list[str]:
    """Say that the task was told by the labels."""
    other = "regression" if task == "classification" else "classification"
    if told or not labels:
        return []
    return [f"the task looks like {task} by the labels; say --task {task} to be sure, or --task {other}"]


def no_labels(kind: str, target: str) -> str:
    """Say why there are no labels yet."""
    columns = kind in ("table", "text")
    return f"no labels, since the pool has no column {target!r}" if columns else "no labels yet"


def next_step(project: Path, unlabelled: int) -> str:
    """Say what comes after init."""
    if not unlabelled:
        return "every item has a label or is skipped: there is nothing to choose"
    size = min(50, unlabelled)
    return f"choose the first batch with: coresift select {project} --batch-size {size} --out batch.csv"


def broken_images(images: Sequence[str]) -> list[str]:
    """List images that were left out."""
    if not images:
        return []
    return [f"images that cannot be read and were left out: {len(images):,}", *map(printable, images)]


def first_labels(count: int, hand_picked: bool) -> list[str]:
    """Say that first labels count as drawn at random."""
    if not count or hand_picked:
        return []
    labels = "label" if count == 1 else f"{count:,} labels"
    return [
        f"error estimates take the {labels} for drawn at random from the pool; if somebody picked them, make "
        "the project again with --hand-picked"
    ]


def ignored_cells(count: int, project: Project) -> list[str]:
    """Count cells with a word for no label."""
    if not count:
        return []
    hint = "; if it is a class, name it with --classes at init" if project.task == "classification" else ""
    return [f"{count:,} cells ignored: their word (NA, null or the like) stands for no label{hint}"]


def corrections(found: Sequence[Correction], shown: int = limits.SHOWN_CORRECTIONS) -> list[str]:
    """Name labels that were replaced."""
    if not found:
        return []
    some = [
        f"{_short(one.id)} from {_short(one.before)} to "
        + ("skipped" if one.after is None else _short(one.after))
        + (f" by {_short(one.who)}" if one.who else "")
        for one in found[:shown]
    ]
    rest = len(found) - len(some)
    return [f"corrected: {', '.join(some)}" + (f" and {rest:,} more" if rest else "")]


def alike_classes(alike: Sequence[Sequence[str]], counts: Mapping[str, int]) -> list[str]:
    """Name classes that seem to be one in several spellings."""
    if not alike:
        return []
    some = alike[: limits.SHOWN_CLASSES]
    told = "; ".join(classes({name: counts[name] for name in names}) for names in some)
    return [
        f"classes that differ by case or spaces alone: {told}; if they are meant to be one, ingest a file "
        "that corrects them"
    ]


def new_classes(counts: Mapping[str, int], known: Sequence[str]) -> list[str]:
    """Name classes that no label had before, with known ones that may be meant."""
    from coresift.labelling.labels import nearest_class

    if not counts:
        return []
    meant = {name: nearest_class(name, known) for name in list(counts)[: limits.SHOWN_CLASSES]}
    hints = {name: f", did you mean {_short(near)}?" for name, near in meant.items() if near}
    return [
        f"new classes: {classes(counts, hints)}; if that is a mistake, correct the file and ingest it again"
    ]


def classes(
    counts: Mapping[str, int], hints: Mapping[str, str] | None = None, shown: int = limits.SHOWN_CLASSES
) -> str:
    """List classes with how many labels they have, and with hints."""
    some = list(counts.items())[:shown]
    listed = ", ".join(f"{_short(name)} ({count:,}{(hints or {}).get(name, '')})" for name, count in some)
    return listed + (f" and {len(counts) - len(some):,} more" if len(counts) > len(some) else "")


def _short(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:57]}...")


def batch(made: Round, again: bool, shortage: str | None) -> list[str]:
    """Describe a batch: how it was chosen, and what it is worth."""
    note = " (chosen before, and nothing came in since)" if again else ""
    lines = [
        f"round {made.number}: {len(made.batch)} items by {made.strategy}, after {made.labels} labels{note}",
        *([] if shortage is None else [shortage]),
    ]
    if made.notes.get("cold"):
        lines.append(
            "too few labels for a model yet, or all the same: this batch is spread over the pool by its "
            "features alone"
        )
    return [*lines, *_looked_at(made), *made.notes.get("worth", ())]


def _looked_at(made: Round) -> list[str]:
    """Say that a batch was chosen from a part of the pool."""
    seen, there = made.notes.get("candidates", 0), made.notes.get("open", 0)
    if seen >= there:
        return []
    how = f"looked at {seen:,} of {there:,} items without a label, drawn at random"
    if made.notes.get("cold"):  # where --candidates changes nothing
        return [how]
    return [f"{how}; to look at all of them next time, add --candidates all"]


def shortage(project: Project, made: Round, out: Path | None) -> str | None:
    """Say why a batch has fewer items than were asked for; ``None`` where it has as many."""
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


def listed_ids(ids: Sequence[str], rest: str, shown: int | None = None) -> list[str]:
    """List ids, one in a line; of many the first, and how to see the rest."""
    some = [printable(id_) for id_ in ids[: limits.SHOWN_IDS if shown is None else shown]]
    more = len(ids) - len(some)
    return [*some, *([f"... and {more:,} more: {rest}"] if more else [])]


def lost_pool(project: Project, reason: str, out: Path) -> str:
    """Say that only the labels are exported, and how to go on."""
    told = [reason, "only the labels are written, as the ledger has them"]
    if project.settings.reading.id is None and project.kind != "images":
        told.append("items are named by their row numbers: see that the rows of a new pool are the same")
    if out.suffix.lower() == ".csv":  # which is what init takes
        told.append(f"begin anew with: {project.new_project(str(out))}")
    return "; ".join(told)
