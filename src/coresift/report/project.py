"""Write the page about a labelling project: its progress, what to label next and why, and what to expect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from html import escape
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from coresift import limits
from coresift.atomic import write_text
from coresift.labelling.records import PlacedItem, ProjectReport, Round, State
from coresift.report.figures import error_with_forecast
from coresift.report.item_map import (
    GLYPHS,
    column_names,
    cut,
    described,
    formatted,
    item_map,
    legend,
    prediction,
)
from coresift.report.page import Heading, Markup, Part, Picture, Table, asset, page

_EXPLAINED = {
    "weight": "weight: how much the item counts in the sum that approximates the pool.",
    "share": "share: the fraction of the pool that is nearer to this item than to the rest of the batch.",
}


def write_project_report(report: ProjectReport, path: Path) -> None:
    """Write the page; readers see the old page or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Half a surrogate pair, as in a file name that is not UTF-8, becomes a question mark.
    write_text(path, project_page(report), errors="replace")


def project_page(report: ProjectReport) -> str:
    """Make the page as HTML.

    >>> new = ProjectReport("flats", "regression", "price", {"labelled": 3, "unlabelled": 7})
    >>> "3 of 10 items are labelled" in project_page(new)
    True
    """
    batch = sorted((item for item in report.map if item.rank is not None), key=lambda item: item.rank or 0)
    pending = [item for item in batch if item.state == "pending"]
    top: list[Part] = [_summary(report, len(batch), len(pending)), _states(report.counts)]
    curve: list[Part] = [Heading("Learning curve"), *_curve(report)]
    if batch and not pending:
        # Its forecasts are shown with it: at the top they would look as if they were to come.
        parts = [*top, *curve, Heading("The last batch"), *_finished_batch(report, batch)]
    else:
        current = not report.rounds or report.rounds[-1].labels == report.counts.get("labelled", 0)
        forecast: list[Part] = [*([] if current else _dated(report)), *report.worth]
        shown: list[Part] = [Heading("What to label next, and why"), *_open_batch(report, batch, pending)]
        parts = [*top, *forecast, *curve, *shown]
    parts += [Heading("Labels so far"), *_labels(report), Heading("Rounds"), *_rounds(report)]
    return page(f"{cut(report.name)}: labelling report", [*parts, *_settings(report.settings)])


# The top.


def _summary(report: ProjectReport, size: int, pending: int) -> str:
    counts = report.counts
    parts = [
        f"This {report.task} project predicts {cut(report.target)}.",
        f"{counts.get('labelled', 0):,} of {sum(counts.values()):,} items are labelled, "
        f"{counts.get('pending', 0):,} are pending and {counts.get('skipped', 0):,} were skipped.",
        _next_step(report, size, pending),
        _latest_error(report),
    ]
    return " ".join(part for part in parts if part)


def _next_step(report: ProjectReport, size: int, pending: int) -> str:
    if report.standing and pending:
        items = f"{size:,} items" if pending == size else f"{pending:,} of {size:,} items left"
        return f"Label next: the batch of round {report.standing[-1].number}, shown below ({items})."
    if report.rounds and not report.counts.get("pending"):
        return "No item is pending; coresift select chooses the next batch."
    return ""


def _latest_error(report: ProjectReport) -> str:
    if not report.curve:
        return ""
    last = report.curve[-1]
    text = f"With {last.labels:,} labels, the {cut(report.error_name)} is {last.error:.3g}"
    if math.isfinite(last.low) and math.isfinite(last.high):
        text += f", between {last.low:.3g} and {last.high:.3g}"
    return f"{text}{_when_measured(report, last.labels)}."


def _when_measured(report: ProjectReport, trained: int) -> str:
    """Explain why an error is that of fewer labels than there are."""
    if not report.rounds or trained == report.counts.get("labelled", 0):
        return ""
    last = report.rounds[-1]
    if trained == last.labels:
        return f"; measured in round {last.number}, which had as many labels"
    # Not "on all others": if there are many labels, some are neither trained nor tested on.
    return (
        f"; measured in round {last.number}, by training on {trained:,} of its {last.labels:,} labels and "
        "testing on others"
    )


def _dated(report: ProjectReport) -> list[Part]:
    """Say from which round the figures are."""
    if not report.rounds or not (report.worth or report.curve):
        return []
    last = report.rounds[-1]
    return [
        f"These figures are from round {last.number}, when there were {last.labels:,} labels. The next "
        "coresift select updates them."
    ]


def _states(counts: Mapping[State, int]) -> Part:
    present = {state: counts[state] for state in GLYPHS if counts.get(state)}
    bar = "".join(f'<i class="{state}" style="flex-grow:{count}"></i>' for state, count in present.items())
    names = legend({state: f"{state} {count:,}" for state, count in present.items()})
    return Markup(
        f'<div class="stack">{bar}</div>{names}', "Items of the pool, by state.", asset("project.css")
    )


def _curve(report: ProjectReport) -> list[Part]:
    if not (report.curve or report.fitted):
        return ["There is no learning curve yet: it needs enough labels for cross-validation."]
    name = cut(report.error_name)
    caption = f"{name} against the number of labels, with approximate intervals; forecasts are dashed."
    return [Picture(error_with_forecast(report.curve, report.fitted, report.random, name), caption)]


# The batch.


def _finished_batch(report: ProjectReport, batch: Sequence[PlacedItem]) -> list[Part]:
    """Show a batch without pending items, and its forecast."""
    others = [item for item in report.map if item.rank is None]
    table = _batch_table(batch, "In the order of choice; none of these items is pending.")
    return [*_dated(report), *report.worth, *_earlier(report, 0), *_drawn(report, [*batch, *others]), table]


def _open_batch(
    report: ProjectReport, batch: Sequence[PlacedItem], pending: Sequence[PlacedItem]
) -> list[Part]:
    """Show the pending items of a batch; its other items are on the map like items outside the batch."""
    others = [
        replace(item, rank=None, weight=None, stands_for=(), share=None, predicted=None)
        for item in report.map
        if item.rank is None or item.state != "pending"
    ]
    parts = [*_earlier(report, len(pending)), *_drawn(report, [*pending, *others])]
    if not pending:
        why = "all batches were withdrawn" if report.rounds else "no batch has been chosen"
        return [*parts, f"There is nothing to label: {why}."]
    caption = "The batch, in the order of choice."
    if len(pending) < len(batch):
        caption += f" {len(batch) - len(pending):,} of its {len(batch):,} items are no longer pending."
    return [*parts, _batch_table(pending, caption)]


def _earlier(report: ProjectReport, pending: int) -> list[Part]:
    """Say how to find the pending items of earlier batches."""
    count = report.counts.get("pending", 0) - pending
    if not report.rounds or count <= 0:
        return []
    return [f"{count:,} items of earlier batches are still pending; coresift pending lists them."]


def _drawn(report: ProjectReport, items: Sequence[PlacedItem]) -> list[Part]:
    placed = [item for item in items if math.isfinite(item.x) and math.isfinite(item.y)]
    return [item_map(placed, report.map_about)] if placed else []


def _batch_table(batch: Sequence[PlacedItem], caption: str) -> Table:
    """List the batch; columns that are empty for all items are left out."""
    columns = {"id": [cut(item.id) for item in batch], "rank": [str(item.rank) for item in batch]}
    optional = {
        "weight": [formatted(item.weight) for item in batch],
        "share": [formatted(item.share, ".1%") for item in batch],
        "predicted": [prediction(item) for item in batch],
    }
    columns |= {name: cells for name, cells in optional.items() if {*cells} != {"-"}}
    captions = [caption, *(text for name, text in _EXPLAINED.items() if name in columns)]
    names = column_names(batch)[: limits.COLUMNS]
    texts = [described(item, names, limits.BATCH_TEXT) for item in batch]
    rows = [[*values, *row] for values, row in zip(zip(*columns.values(), strict=True), texts, strict=True)]
    return Table([*columns, *map(cut, names)], rows, " ".join(captions), words=True)


# Labels and rounds.


def _labels(report: ProjectReport) -> list[Part]:
    rows = _class_counts(report.classes) if report.classes else _histogram(report.values)
    if not rows:
        return ["There are no labels yet."]
    most = max(1, *(count for _, count in rows))
    bars = "".join(
        f'<dt dir="auto">{escape(name)}</dt>'
        f'<dd><i class="labelled" style="width:{80 * count / most:.1f}%"></i>{count:,}</dd>'
        for name, count in rows
    )
    return [Markup(f'<dl class="bars">{bars}</dl>', f"Number of labelled items by {cut(report.target)}.")]


def _class_counts(classes: Mapping[str, int]) -> list[tuple[str, int]]:
    ranked = sorted(classes.items(), key=lambda pair: -pair[1])
    rows = [(cut(label), count) for label, count in ranked[: limits.CLASSES]]
    rest = ranked[limits.CLASSES :]
    return [*rows, (f"{len(rest)} other classes", sum(count for _, count in rest))] if rest else rows


def _histogram(values: Sequence[float]) -> list[tuple[str, int]]:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return []
    edges = MaxNLocator(12).tick_values(min(finite), max(finite))
    spans = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    return list(zip(spans, np.histogram(finite, edges)[0].tolist(), strict=True))


def _rounds(report: ProjectReport) -> list[Part]:
    if not report.rounds:
        return ["No batch has been chosen yet."]
    withdrawn = ["withdrawn"] if report.withdrawn else []
    columns = ["round", "when", "strategy", "labels before", "batch", "answered", *withdrawn, "seconds"]
    rows = [_round_row(report, made) for made in report.rounds]
    return [Table(columns, rows, "The batches, with the seconds it took to choose each.")]


def _round_row(report: ProjectReport, made: Round) -> list[str]:
    return [
        str(made.number),
        f"{datetime.fromisoformat(made.at):%Y-%m-%d %H:%M %Z}",
        cut(made.strategy),
        f"{made.labels:,}",
        f"{len(made.batch):,}",
        formatted(report.answered.get(made.number), ","),
        *([f"{report.withdrawn.get(made.number, 0):,}"] if report.withdrawn else []),
        f"{made.seconds:.1f}",
    ]


def _settings(settings: Mapping[str, str]) -> list[Part]:
    if not settings:
        return []
    rows = [[cut(name), cut(value, limits.BATCH_TEXT)] for name, value in settings.items()]
    return [Heading("Settings"), Table(["setting", "value"], rows, "How batches are chosen.", words=True)]
