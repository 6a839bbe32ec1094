"""Write the sentences that the commands of a project print. Each function returns lines, often none."""

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


# A new project.


def task_was_guessed(task: str, labels: int, told: bool) -> list[str]:
    """Say that the task was guessed from the labels."""
    if told or not labels:
        return []
    other = "regression" if task == "classification" else "classification"
    return [f"the task looks like {task} by the labels; say --task {task} to be sure, or --task {other}"]


def no_labels(kind: str, target: str) -> str:
    """Say why there are no labels yet."""
    has_columns = kind in ("table", "text")
    reason = f"no labels, since the pool has no column {target!r}" if has_columns else "no labels yet"
    return f"{reason}: all are to come"


def next_step(project: Path, unlabelled: int) -> str:
    """Say what comes after init."""
    if not unlabelled:
        return "every item has a label or is skipped: there is nothing to choose"
    size = min(50, unlabelled)
    return f"choose the first batch with: coresift select {project} --batch-size {size} --out batch.csv"


def broken_images(images: Sequence[str]) -> list[str]:
    """List images that are ignored."""
    if not images:
        return []
    return [f"images that cannot be read and were left out: {len(images):,}", *map(printable, images)]


def first_labels(count: int, hand_picked: bool) -> list[str]:
    """Say that the first labels count as drawn at random."""
    if not count or hand_picked:
        return []
    labels = "label" if count == 1 else f"{count:,} labels"
    return [
        f"error estimates take the {labels} for drawn at random from the pool; if somebody picked them, make "
        "the project again with --hand-picked"
    ]


# Labels.


def ignored_cells(count: int, project: Project) -> list[str]:
    """Count cells with a word for no label."""
    if not count:
        return []
    hint = "; if it is a class, name it with --classes at init" if project.task == "classification" else ""
    return [f"{count:,} cells ignored: their word (NA, null or the like) stands for no label{hint}"]


def corrections(replaced: Sequence[Correction], shown: int = limits.SHOWN_CORRECTIONS) -> list[str]:
    """Name labels that were replaced."""
    if not replaced:
        return []
    more = f" and {len(replaced) - shown:,} more" if len(replaced) > shown else ""
    return [f"corrected: {', '.join(map(_correction, replaced[:shown]))}{more}"]


def _correction(one: Correction) -> str:
    after = "skipped" if one.after is None else _short(one.after)
    by = f" by {_short(one.who)}" if one.who else ""
    return f"{_short(one.id)} from {_short(one.before)} to {after}{by}"


def alike_classes(alike: Sequence[Sequence[str]], counts: Mapping[str, int]) -> list[str]:
    """Name classes that may be one in several spellings."""
    if not alike:
        return []
    listed = (classes({name: counts[name] for name in names}) for names in alike[: limits.SHOWN_CLASSES])
    return [
        f"classes that differ by case or spaces alone: {'; '.join(listed)}; if they are meant to be one, "
        "ingest a file that corrects them"
    ]


def new_classes(counts: Mapping[str, int], known: Sequence[str]) -> list[str]:
    """Name classes that no label had before, with known ones that may be meant."""
    from coresift.labelling.labels import nearest_class

    if not counts:
        return []
    nearest = {name: nearest_class(name, known) for name in list(counts)[: limits.SHOWN_CLASSES]}
    hints = {name: f", did you mean {_short(near)}?" for name, near in nearest.items() if near}
    return [
        f"new classes: {classes(counts, hints)}; if that is a mistake, correct the file and ingest it again"
    ]


def classes(
    counts: Mapping[str, int], hints: Mapping[str, str] | None = None, shown: int = limits.SHOWN_CLASSES
) -> str:
    """List classes with their numbers of labels, and with hints."""
    hints = hints or {}
    listed = (f"{_short(name)} ({count:,}{hints.get(name, '')})" for name, count in [*counts.items()][:shown])
    more = f" and {len(counts) - shown:,} more" if len(counts) > shown else ""
    return ", ".join(listed) + more


def _short(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:57]}...")


# A batch.


def batch(made: Round, again: bool, shortage: str | None) -> list[str]:
    """Describe a batch: how it was chosen, and the forecast."""
    note = " (chosen before, and nothing came in since)" if again else ""
    cold = (
        "too few labels for a model yet, or all the same: this batch is spread over the pool by its features "
        "alone"
    )
    return [
        f"round {made.number}: {len(made.batch)} items by {made.strategy}, after {made.labels} labels{note}",
        *([shortage] if shortage else []),
        *([cold] if made.notes.get("cold") else []),
        *_looked_at(made),
        *made.notes.get("worth", ()),
    ]


def _looked_at(made: Round) -> list[str]:
    """Say that a batch was chosen from a part of the pool."""
    seen, there = made.notes.get("candidates", 0), made.notes.get("open", 0)
    if seen >= there:
        return []
    # Without a model, --candidates changes nothing.
    hint = "" if made.notes.get("cold") else "; to look at all of them next time, add --candidates all"
    return [f"looked at {seen:,} of {there:,} items without a label, drawn at random{hint}"]


def shortage(project: Project, made: Round, out: Path | None) -> str | None:
    """Say why a batch has fewer items than were asked for; ``None`` if it has as many."""
    size, wanted = len(made.batch), made.asked["batch_size"]
    if wanted is None or size >= wanted:
        return None
    some = f"only {size} {'item was' if size == 1 else 'items were'}"
    if not project.ledger.counts()["unlabelled"]:
        # The same request again gives the same batch, this time with a file of it.
        first = "" if out else ", ask again with --out batch.csv and then"
        undo = f"to undo this{first}: coresift reopen {project.folder} @{out or 'batch.csv'}"
        return f"{some} left, not {wanted}; {undo}"
    if made.asked["budget"] is not None or made.asked["per_group"] is not None:
        return f"{some} within the limits, not {wanted}"
    return f"{some} looked at, not {wanted}; --more brings further ones"


def listed_ids(ids: Sequence[str], rest: str) -> list[str]:
    """List ids, one in a line; of many the first, and how to see the rest."""
    shown = limits.SHOWN_IDS
    more = [f"... and {len(ids) - shown:,} more: {rest}"] if len(ids) > shown else []
    return [*map(printable, ids[:shown]), *more]


def lost_pool(project: Project, reason: str, out: Path) -> str:
    """Say that only the labels are exported, and how to go on."""
    parts = [reason, "only the labels are written, as the ledger has them"]
    if project.settings.reading.id is None and project.kind != "images":
        parts.append("items are named by their row numbers: see that the rows of a new pool are the same")
    if out.suffix.lower() == ".csv":  # which is what init takes
        parts.append(f"begin anew with: {project.new_project(str(out))}")
    return "; ".join(parts)
