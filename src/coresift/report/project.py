"""Write the page about a labelling project: its progress, what to label next and why, and what to expect."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from html import escape
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from coresift import limits
from coresift.atomic import write_text
from coresift.labelling.records import PlacedItem, ProjectReport, State
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

_FACTS: dict[str, Callable[[PlacedItem], str]] = {
    "rank": lambda item: str(item.rank),
    "weight": lambda item: formatted(item.weight),
    "share": lambda item: formatted(item.share, ".1%"),
    "predicted": prediction,
}
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
    is_answered = bool(batch) and not pending
    forecast: list[Part] = [*_dated(report, is_answered), *report.worth]
    curve: list[Part] = [Heading("Learning curve"), _curve(report)]
    top = [*forecast, *curve, Heading("What to label next, and why")]
    if is_answered:
        # Its forecast is shown with it; at the top it would look like a forecast for the next batch.
        top = [*curve, Heading("The last batch"), *forecast]
    parts = [
        *(_summary(report, len(batch), len(pending)), _states(report.counts)),
        *top,
        *_batch(report, batch, pending),
        *(Heading("Labels so far"), _labels(report)),
        *(Heading("Rounds"), _rounds(report)),
        *_settings(report.settings),
    ]
    return page(f"{cut(report.name)}: labelling report", parts)


def _summary(report: ProjectReport, size: int, pending: int) -> str:
    counts = report.counts
    sentences = [
        f"This {report.task} project predicts {cut(report.target)}.",
        f"{counts.get('labelled', 0):,} of {sum(counts.values()):,} items are labelled, "
        f"{counts.get('pending', 0):,} are pending and {counts.get('skipped', 0):,} were skipped.",
        _next_step(report, size, pending),
        _latest_error(report),
    ]
    return " ".join(filter(None, sentences))


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
    if math.isfinite(last.high - last.low):
        text += f", between {last.low:.3g} and {last.high:.3g}"
    return f"{text}{_when_measured(report, last.labels)}."


def _when_measured(report: ProjectReport, trained: int) -> str:
    """Explain why an error is that of fewer labels than there are."""
    if not report.rounds or trained == report.counts.get("labelled", 0):
        return ""
    last = report.rounds[-1]
    if trained == last.labels:
        return f"; measured in round {last.number}, when there were as many labels"
    # Not "on all others": if there are many labels, some are neither trained nor tested on.
    return (
        f"; measured in round {last.number}, by training on {trained:,} of its {last.labels:,} labels and "
        "testing on others"
    )


def _dated(report: ProjectReport, is_answered: bool) -> list[Part]:
    """Say from which round the figures are, unless nothing came in since."""
    if not report.rounds or not (report.worth or report.curve):
        return []
    last = report.rounds[-1]
    if last.labels == report.counts.get("labelled", 0) and not is_answered:
        return []
    return [
        f"These figures are from round {last.number}, when there were {last.labels:,} labels. The next "
        "coresift select updates them."
    ]


def _states(counts: Mapping[State, int]) -> Part:
    present = {state: count for state in GLYPHS if (count := counts.get(state))}
    bar = "".join(f'<i class="{state}" style="flex-grow:{count}"></i>' for state, count in present.items())
    names = legend({state: f"{state} {count:,}" for state, count in present.items()})
    return Markup(
        f'<div class="stack">{bar}</div>{names}', "Items of the pool, by state.", asset("project.css")
    )


def _curve(report: ProjectReport) -> Part:
    if not (report.curve or report.fitted):
        return "There is no learning curve yet: it needs enough labels for cross-validation."
    name = cut(report.error_name)
    caption = f"{name} against the number of labels, with approximate intervals; forecasts are dashed."
    return Picture(error_with_forecast(report.curve, report.fitted, report.random, name), caption)


def _batch(report: ProjectReport, batch: Sequence[PlacedItem], pending: Sequence[PlacedItem]) -> list[Part]:
    """Show the pending items of a batch or, if none is pending, all of it."""
    shown, parts = pending or batch, list[Part]()
    earlier = report.counts.get("pending", 0) - len(pending)
    if report.rounds and earlier > 0:
        parts = [f"{earlier:,} items of earlier batches are still pending; coresift pending lists them."]
    parts += _map(report, shown)
    if shown:
        return [*parts, _batch_table(shown, _caption(len(pending), len(batch)))]
    why = "all batches were withdrawn" if report.rounds else "no batch has been chosen"
    return [*parts, f"There is nothing to label: {why}."]


def _map(report: ProjectReport, shown: Sequence[PlacedItem]) -> list[Part]:
    """Draw the map; items of the batch that are not shown look like items outside the batch."""
    ids = {item.id for item in shown}
    items = [*shown, *(replace(item, rank=None) for item in report.map if item.id not in ids)]
    placed = [item for item in items if math.isfinite(item.x + item.y)]
    return [item_map(placed, report.map_about)] if placed else []


def _caption(pending: int, size: int) -> str:
    gone = f" {size - pending:,} of its {size:,} items are no longer pending." if pending < size else ""
    return "The batch, in the order of choice." + (gone if pending else " None of its items is pending.")


def _batch_table(batch: Sequence[PlacedItem], caption: str) -> Table:
    """List the batch; columns that are empty for all items are left out."""
    texts = column_names(batch)[: limits.COLUMNS]
    facts = [[prepare(item) for item in batch] for prepare in _FACTS.values()]
    shown = {name: cells for name, cells in zip(_FACTS, facts, strict=True) if {*cells} != {"-"}}
    rows = [
        [cut(item.id), *cells, *described(item, texts, limits.BATCH_TEXT)]
        for item, *cells in zip(batch, *shown.values(), strict=True)
    ]
    explained = [text for name, text in _EXPLAINED.items() if name in shown]
    return Table(["id", *shown, *map(cut, texts)], rows, " ".join([caption, *explained]), words=True)


def _labels(report: ProjectReport) -> Part:
    rows = _class_counts(report.classes) or _histogram(report.values)
    if not rows:
        return "There are no labels yet."
    most = max(1, max(count for _, count in rows))
    bars = "".join(
        f'<dt dir="auto">{escape(name)}</dt>'
        f'<dd><i class="labelled" style="width:{80 * count / most:.1f}%"></i>{count:,}</dd>'
        for name, count in rows
    )
    return Markup(f'<dl class="bars">{bars}</dl>', f"Number of labelled items by {cut(report.target)}.")


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


def _rounds(report: ProjectReport) -> Part:
    if not report.rounds:
        return "No batch has been chosen yet."
    rows = [
        {
            "round": str(made.number),
            "when": f"{datetime.fromisoformat(made.at):%Y-%m-%d %H:%M %Z}",
            "strategy": cut(made.strategy),
            "labels before": f"{made.labels:,}",
            "batch": f"{len(made.batch):,}",
            "answered": formatted(report.answered.get(made.number), ","),
            **({"withdrawn": f"{report.withdrawn.get(made.number, 0):,}"} if report.withdrawn else {}),
            "seconds": f"{made.seconds:.1f}",
        }
        for made in report.rounds
    ]
    cells = [list(row.values()) for row in rows]
    return Table(list(rows[0]), cells, "The batches, with the seconds it took to choose each.")


def _settings(settings: Mapping[str, str]) -> list[Part]:
    if not settings:
        return []
    rows = [[cut(name), cut(value, limits.BATCH_TEXT)] for name, value in settings.items()]
    return [Heading("Settings"), Table(["setting", "value"], rows, "How batches are chosen.", words=True)]
