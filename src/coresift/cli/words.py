"""Write the sentences that the commands of a project print; ``None`` where there is nothing to say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from coresift import limits
from coresift.labelling.labels import nearest_class, quoted

if TYPE_CHECKING:
    from coresift.labelling.ledger import Correction
    from coresift.labelling.project import Project
    from coresift.labelling.records import Round

T = TypeVar("T")


def printable(name: str) -> str:
    """Return an id, quoted if it has characters that control a terminal."""
    return name if name.isprintable() else repr(name)


def listed(counts: Iterable[tuple[str, int]]) -> str:
    """List names with their counts."""
    return ", ".join(f"{count:,} {name}" for name, count in counts)


# A new project.


def begun(project: Project, labels: int, is_guessed: bool) -> list[str]:
    """Say what was read, and what was assumed."""
    settings, items, broken = project.settings, len(project.ledger), project.settings.reading.skip
    of = f"{settings.task} of {settings.target}"
    lines = [f"{project.folder}: {items:,} items, {labels:,} with a label; {of}"]
    if labels and is_guessed:
        lines.append(_guessed_task(settings.task))
    lines += [f"features: {settings.features}", f"items are named by {project.pool.named_by}"]
    if labels and not settings.hand_picked:
        lines.append(_first_labels(labels))
    if broken:
        lines += [f"images that cannot be read and were left out: {len(broken):,}", *map(printable, broken)]
    return lines


def _guessed_task(task: str) -> str:
    other = "regression" if task == "classification" else "classification"
    return f"the task looks like {task} by the labels; say --task {task} to be sure, or --task {other}"


def _first_labels(count: int) -> str:
    labels = "label was" if count == 1 else f"{count:,} labels were"
    return (
        f"error estimates assume that the {labels} drawn at random from the pool; if somebody picked them, "
        "create the project again with --hand-picked"
    )


def no_labels(project: Project) -> str:
    """Say why there are no labels yet."""
    has_columns = project.pool_kind in ("table", "text")
    return "no labels yet" + (f": the pool has no column {project.target!r}" if has_columns else "")


def next_step(project: Path, unlabelled: int) -> str:
    """Say what comes after init."""
    if not unlabelled:
        return "every item has a label or is skipped: there is nothing to choose"
    size = min(50, unlabelled)
    return f"choose the first batch with: coresift select {project} --batch-size {size} --out batch.csv"


# Labels.


def no_label_words(count: int, task: str) -> str | None:
    """Count cells with a word for no label."""
    hint = "; if it is a class, name it with --classes at init" if task == "classification" else ""
    about = f"{count:,} cells ignored: their word (NA, null or the like) means that there is no label{hint}"
    return about if count else None


def corrections(replaced: Sequence[Correction]) -> str | None:
    """Name labels that were replaced."""
    return f"corrected: {_first_of(replaced, limits.SHOWN_CORRECTIONS, _correction)}" if replaced else None


def _correction(correction: Correction) -> str:
    after = "skipped" if correction.after is None else quoted(correction.after)
    by = f" by {quoted(correction.who)}" if correction.who else ""
    return f"{quoted(correction.id)} from {quoted(correction.before)} to {after}{by}"


def alike_classes(alike: Sequence[Sequence[str]], counts: Mapping[str, int]) -> str | None:
    """Name classes that may be one in several spellings."""
    groups = (classes({name: counts[name] for name in names}) for names in alike[: limits.SHOWN_CLASSES])
    advice = "if they are meant to be one, ingest a file that corrects them"
    return f"classes that differ only by case or spaces: {'; '.join(groups)}; {advice}" if alike else None


def new_classes(counts: Mapping[str, int], known: Sequence[str]) -> str | None:
    """Name classes that no label had before, with known ones that may be meant."""
    advice = "if that is a mistake, correct the file and ingest it again"
    return f"new classes: {classes(counts, known)}; {advice}" if counts else None


def classes(counts: Mapping[str, int], known: Sequence[str] = ()) -> str:
    """List classes with their numbers of labels, each with the known class that may be meant."""

    def counted(name: str) -> str:
        near = nearest_class(name, known)
        hint = f", did you mean {quoted(near)}?" if near else ""
        return f"{quoted(name)} ({counts[name]:,}{hint})"

    return _first_of([*counts], limits.SHOWN_CLASSES, counted)


def _first_of(items: Sequence[T], shown: int, word: Callable[[T], str]) -> str:
    """Write the first items, and how many more there are."""
    more = f" and {len(items) - shown:,} more" if len(items) > shown else ""
    return ", ".join(map(word, items[:shown])) + more


# A batch.


def batch(made: Round, again: bool, shortage: str | None) -> list[str | None]:
    """Describe a batch: how it was chosen, and the forecast."""
    note = " (the same batch again: no answer came in since)" if again else ""
    cold = "too few labels for a model, or all labels are the same"
    return [
        f"round {made.number}: {len(made.batch)} items by {made.strategy}, after {made.labels} labels{note}",
        shortage,
        f"{cold}: this batch is spread over the pool by the features alone"
        if made.notes.get("cold")
        else None,
        _candidates(made),
        *made.notes.get("worth", ()),
    ]


def _candidates(made: Round) -> str | None:
    """Say that a batch was chosen from a part of the pool."""
    seen, there = made.notes.get("candidates", 0), made.notes.get("open", 0)
    # Without a model, --candidates changes nothing.
    hint = "" if made.notes.get("cold") else "; to look at all of them next time, add --candidates all"
    about = f"looked at {seen:,} of {there:,} items without a label, drawn at random{hint}"
    return about if seen < there else None


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
    return f"{some} looked at, not {wanted}; --more chooses further items"


def where(project: Project, made: Round, out: Path | None) -> list[str]:
    """Say where a batch is, and what is pending from earlier ones."""
    folder, ids, shown = project.folder, [item.id for item in made.batch], limits.SHOWN_IDS
    lists_all = f"coresift pending {folder} lists all"
    lines = [f"written to {out}; fill in {project.target!r} and run: coresift ingest {folder} {out}"]
    if out is None:
        lines = [printable(name) for name in ids[:shown]]
        if len(ids) > shown:
            lines.append(f"... and {len(ids) - shown:,} more: {lists_all}")
        lines.append(f"write them to a file with: coresift pending {folder} --out batch.csv")
    if earlier := len(project.pending()) - len(ids):
        lines.append(f"still pending from earlier batches: {earlier:,}; {lists_all}")
    return lines


def lost_pool(project: Project, reason: str, out: Path) -> str:
    """Say that only the labels are exported, and how to go on."""
    parts = [reason, "only the labels are written, as the ledger has them"]
    if project.settings.reading.id is None and project.pool_kind != "images":
        named = "items are named by their row numbers"
        parts.append(f"{named}: make sure that the rows of a new pool are the same")
    if out.suffix.lower() == ".csv":  # which is what init takes
        parts.append(f"begin a new project with: {project.new_project(str(out))}")
    return "; ".join(parts)
