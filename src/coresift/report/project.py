"""The page about a labelling project: how far it is, what to label next and why, and what that is worth."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from PIL import Image, ImageOps

from coresift.atomic import write_text
from coresift.labelling.records import PlacedItem, ProjectReport, State
from coresift.reading import open_image
from coresift.report.figures import error_with_forecast
from coresift.report.page import Heading, Markup, Part, Picture, Table, page

# How much is kept of a text, in characters: of the batch, of all other items, and of a name.
BATCH_TEXT, OTHER_TEXT, NAME = 2000, 240, 80
# Longest side of a thumbnail in pixels, and what all of them may weigh in bytes.
THUMBNAIL, THUMBNAILS = 128, 1_500_000
COLUMNS, CLASSES = 3, 25  # as many are shown of a table and of a bar chart
WIDTH, HEIGHT, MARGIN = 480, 440, 16  # of the map


def write_project_report(report: ProjectReport, path: Path) -> None:
    """Write the page; whoever looks sees the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Half a surrogate pair, as in the name of a file that is not UTF-8, becomes a question mark.
    write_text(path, project_page(report), errors="replace")


def project_page(report: ProjectReport) -> str:
    """The page as HTML.

    >>> new = ProjectReport("flats", "regression", "price", {"labelled": 3, "unlabelled": 7})
    >>> "3 of 10 items are labelled" in project_page(new)
    True
    """
    asked = sorted((item for item in report.map if item.rank is not None), key=lambda item: item.rank or 0)
    still_out = [item for item in asked if item.state == "pending"]
    done = bool(asked) and not still_out
    heading = "What was asked last, and why" if done else "What to label next, and why"
    settings = [[_cut(key), _cut(value, BATCH_TEXT)] for key, value in report.settings.items()]
    sections: dict[str, list[Part]] = {
        "How the error falls": _curve(report),
        heading: _last_batch(report, asked) if done else _open_batch(report, asked, still_out),
        "Labels so far": _labels(report),
        "Rounds": _rounds(report),
    }
    parts: list[Part] = [_summary(report, len(asked), len(still_out)), _states(report.counts)]
    # Once the batch is done, what it should bring is told with the batch: on top it would read as news.
    if not done:
        current = not report.rounds or report.rounds[-1].labels == report.counts.get("labelled", 0)
        parts += [*([] if current else _dated(report)), *report.worth]
    for title, section in sections.items():
        parts += [Heading(title), *section]
    if settings:
        parts += [
            Heading("Settings"),
            Table(["setting", "value"], settings, "How this was made.", words=True),
        ]
    return page(f"{_cut(report.name)}: the state of the labelling", parts)


def _summary(report: ProjectReport, size: int, still_out: int) -> str:
    labelled, pending, skipped = (report.counts.get(state, 0) for state in ("labelled", "pending", "skipped"))
    text = f"A {report.task} project; the label is {_cut(report.target)}. {labelled:,} of "
    text += f"{sum(report.counts.values()):,} items are labelled, {pending:,} wait for an answer, "
    text += f"{skipped:,} were skipped."
    if report.standing and still_out:
        left = "the batch" if still_out == size else f"what is left of the batch, {still_out:,} of {size:,},"
        of_size = f", of size {size}" if still_out == size else ""
        text += f" Next to label: {left} of round {report.standing[-1].number}, shown below{of_size}."
    elif report.rounds and not pending:
        text += " Nothing is out: coresift select brings the next batch."
    if report.curve:
        last = report.curve[-1]
        text += f" With {last.labels:,} labels, the {_cut(report.error_name)} is {last.error:.3g}"
        known = math.isfinite(last.low) and math.isfinite(last.high)
        text += f", between {last.low:.3g} and {last.high:.3g}" if known else ""
        text += f"{_measured(report, last.labels)}."
    return text


def _measured(report: ProjectReport, learned: int) -> str:
    """Why an error is that of fewer labels than there are: some only tested it, others came in later."""
    if not report.rounds or learned == report.counts.get("labelled", 0):
        return ""
    number, there = report.rounds[-1].number, report.rounds[-1].labels
    if learned == there:
        return f"; it was measured in round {number}, when there were as many"
    # Not "on all others": of many labels, some are neither trained nor tested on.
    trained = f"by training on {learned:,} of the {there:,} labels then and testing on others"
    return f"; it was measured in round {number}, {trained}"


def _dated(report: ProjectReport) -> list[Part]:
    """Of which round the figures are."""
    if not report.rounds or not (report.worth or report.curve):
        return []
    last = report.rounds[-1]
    return [
        f"The figures date from round {last.number}, when there were {last.labels:,} labels; the next "
        "coresift select brings new ones."
    ]


def _states(counts: Mapping[State, int]) -> Markup:
    present = {state: counts[state] for state in _GLYPHS if counts.get(state)}
    bar = "".join(f'<i class="{state}" style="flex-grow:{count}"></i>' for state, count in present.items())
    legend = _legend({state: f"{state} {count:,}" for state, count in present.items()})
    return Markup(f'<div class="stack">{bar}</div>{legend}', "The items of the pool.", _STYLE)


def _legend(names: Mapping[Any, str]) -> str:
    marks = (
        f'<li><svg class="{kind}" viewBox="-7 -7 14 14"><path d="M0 0{_GLYPHS[kind]}"/></svg>{name}</li>'
        for kind, name in names.items()
    )
    return f'<ul class="legend">{"".join(marks)}</ul>'


def _curve(report: ProjectReport) -> list[Part]:
    if not (report.curve or report.fitted):
        return ["There is no curve yet: it begins once there are labels enough for cross-validation."]
    name = _cut(report.error_name)
    caption = (
        f"{name}, by the number of labels. Bars and bands are rough intervals; what is not measured yet "
    )
    caption += "is dashed."
    return [Picture(error_with_forecast(report.curve, report.fitted, report.random, name), caption)]


def _labels(report: ProjectReport) -> list[Part]:
    values = [value for value in report.values if math.isfinite(value)]
    if report.classes:
        ranked = sorted(report.classes.items(), key=lambda pair: -pair[1])
        rows = [(_cut(label), count) for label, count in ranked[:CLASSES]]
        if rest := ranked[CLASSES:]:
            rows.append((f"{len(rest)} other classes", sum(count for _, count in rest)))
    elif values:
        edges = MaxNLocator(12).tick_values(min(values), max(values))
        spans = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
        rows = list(zip(spans, np.histogram(values, edges)[0].tolist(), strict=True))
    else:
        return ["There are no labels yet."]
    most = max(1, *(count for _, count in rows))
    bars = "".join(
        f'<dt dir="auto">{escape(name)}</dt>'
        f'<dd><i class="labelled" style="width:{80 * count / most:.1f}%"></i>{count:,}</dd>'
        for name, count in rows
    )
    return [Markup(f'<dl class="bars">{bars}</dl>', f"How many items have which {_cut(report.target)}.")]


def _rounds(report: ProjectReport) -> list[Part]:
    if not report.rounds:
        return ["No batch has been chosen yet."]
    rows = []
    for each in report.rounds:
        when = f"{datetime.fromisoformat(each.at):%Y-%m-%d %H:%M %Z}"
        sizes = [f"{each.labels:,}", f"{len(each.batch):,}", _number(report.answered.get(each.number), ",")]
        if report.withdrawn:
            sizes.append(f"{report.withdrawn.get(each.number, 0):,}")
        rows.append([str(each.number), when, _cut(each.strategy), *sizes, f"{each.seconds:.1f}"])
    gone = ["withdrawn"] if report.withdrawn else []
    columns = ["round", "when", "strategy", "labels before", "batch", "answered", *gone, "seconds"]
    return [Table(columns, rows, "The batches, and how long it took to choose them.")]


def _last_batch(report: ProjectReport, batch: Sequence[PlacedItem]) -> list[Part]:
    """A batch of which nothing is out any more, and what was said of it."""
    others = [item for item in report.map if item.rank is None]
    caption = "The last batch, of which nothing is out any more, in the order of choice; the share is of the "
    caption += "pool, for which an item stands."
    return [
        *_dated(report),
        *report.worth,
        *_earlier(report, 0),
        *_drawn(report, [*batch, *others]),
        _table(batch, caption),
    ]


def _open_batch(
    report: ProjectReport, asked: Sequence[PlacedItem], still_out: Sequence[PlacedItem]
) -> list[Part]:
    """What is still to be labelled of a batch; the rest of it is on the map like any other item."""
    others = [
        replace(item, rank=None, weight=None, stands_for=(), share=None, predicted=None)
        for item in report.map
        if item.rank is None or item.state != "pending"
    ]
    parts = [*_earlier(report, len(still_out)), *_drawn(report, [*still_out, *others])]
    if not still_out:
        why = "all batches were withdrawn" if report.rounds else "no batch has been chosen"
        return [*parts, f"Nothing is asked for: {why}."]
    caption = "The batch, in the order of choice; the share is of the pool, for which an item stands."
    if len(still_out) < len(asked):
        caption += f" {len(asked) - len(still_out):,} of its {len(asked):,} items are no longer out and not "
        caption += "shown here."
    return [*parts, _table(still_out, caption)]


def _earlier(report: ProjectReport, still_out: int) -> list[Part]:
    """Where to find what is out and not of the last batch."""
    count = report.counts.get("pending", 0) - still_out
    if not report.rounds or count <= 0:
        return []
    return [f"Of earlier batches, {count:,} items still wait for an answer: coresift pending lists them."]


def _drawn(report: ProjectReport, items: Sequence[PlacedItem]) -> list[Part]:
    placed = [item for item in items if math.isfinite(item.x) and math.isfinite(item.y)]
    return [_map(placed, report.map_about)] if placed else []


def _table(batch: Sequence[PlacedItem], caption: str) -> Table:
    names = _columns(batch)[:COLUMNS]
    numbers = [[str(item.rank), _number(item.weight), _number(item.share, ".1%")] for item in batch]
    texts = [_texts(item, names, BATCH_TEXT) for item in batch]
    rows = [[_cut(item.id), *a, *b] for item, a, b in zip(batch, numbers, texts, strict=True)]
    columns = ["id", "rank", "weight", "share", *map(_cut, names)]
    if any(item.predicted is not None for item in batch):
        columns.insert(4, "predicted")
        for item, row in zip(batch, rows, strict=True):
            row.insert(4, _prediction(item))
    return Table(columns, rows, caption, words=True)


def _prediction(item: PlacedItem) -> str:
    """The predicted label with its probability; a number rounded, for nobody knows it to all its digits."""
    if item.predicted is None:
        return "-"
    label, probability = item.predicted
    if probability is None:
        return f"{float(label):.4g}"
    return f"{_cut(label)} ({probability:.0%})"


def _map(items: Sequence[PlacedItem], about: str) -> Markup:
    """The items, the batch first, as a drawing that stands by itself; a script tells of what is pointed at.

    The drawing has one path for all items of a state, so that thousands are drawn at once.
    """
    index = {item.id: number for number, item in enumerate(items)}
    columns, images = _columns(items), _thumbnails(items, index)
    entries, marks = [], []
    paths: dict[str, str] = dict.fromkeys(reversed(_GLYPHS), "")
    for number, (item, (x, y)) in enumerate(zip(items, _places(items), strict=True)):
        entry: dict[str, Any] = {"id": _cut(item.id), "x": x, "y": y, "state": item.state}
        if item.rank is None:
            paths[item.state] += f"M{x:g} {y:g}{_GLYPHS[item.state]}"
        else:
            entry["why"] = f"Number {item.rank} of the batch"
            entry["why"] += "" if item.weight is None else f", weight {_number(item.weight)}"
            entry["why"] += "" if item.share is None else f", stands for {item.share:.1%} of the pool"
            entry["why"] += "" if item.predicted is None else f", predicted {_prediction(item)}"
            entry["near"] = [index.get(each, _cut(each)) for each in item.stands_for]
            mark = f'<circle r="9"/><text>{item.rank}</text>'
            marks.append(f'<g class="batch" transform="translate({x:g} {y:g})">{mark}</g>')
        entry["text"] = _texts(item, columns, OTHER_TEXT if item.rank is None else BATCH_TEXT)
        entries.append(entry | ({"image": images[number]} if number in images else {}))
    drawing = "".join(f'<path class="{state}" d="{path}"/>' for state, path in paths.items() if path)
    names = {"batch": "batch, numbered by rank"} if marks else {}
    legend = _legend(names | {state: state for state in _GLYPHS if paths[state]})
    data = _json({"columns": [*map(_cut, columns)], "items": entries})
    html = (
        f'<div class="map"><svg viewBox="0 0 {WIDTH} {HEIGHT}" tabindex="0" role="application" '
        'aria-label="Map of the pool: arrow keys go from item to item, the batch first">'
        # The first of the batch comes last, on top of the others.
        f'{drawing}<path class="ties" d=""/>{"".join(reversed(marks))}<path class="ring" d=""/></svg>'
        '<div class="card" aria-live="polite"><p>Point at an item, or press the arrow keys in the map.</p>'
        f'</div></div>{legend}<script type="application/json" id="items">{data}</script>'
    )
    lines = " Lines lead from an item of the batch to those that it stands for." if marks else ""
    return Markup(html, about + lines, script=_SCRIPT)


def _places(items: Sequence[PlacedItem]) -> list[tuple[float, float]]:
    """Where the items are drawn, all directions to one scale."""
    values = np.array([(item.x, -item.y) for item in items])  # (items, 2); down the page is positive
    room = (np.array([WIDTH, HEIGHT]) - 2 * MARGIN) / np.maximum(np.ptp(values, 0), 1e-12)
    drawn = np.array([WIDTH, HEIGHT]) / 2 + (values - (values.max(0) + values.min(0)) / 2) * room.min()
    return [(x, y) for x, y in drawn.round(1).tolist()]


def _thumbnails(items: Sequence[PlacedItem], index: Mapping[str, int]) -> dict[int, str]:
    """Pictures of the batch, then of what it stands for, while there is room: position -> data URI."""
    batch = [item for item in items if item.rank is not None]
    wanted = [*(item.id for item in batch), *(each for item in batch for each in item.stands_for)]
    found: dict[int, str] = {}
    room = THUMBNAILS
    for number in dict.fromkeys(index[each] for each in wanted if each in index):
        path = items[number].description.get("image")
        if room > 0 and path and (picture := _thumbnail(Path(path))):
            found[number] = picture
            room -= len(picture)
    return found


def _thumbnail(path: Path) -> str | None:
    """A small copy of a picture; nothing where it cannot be read."""
    buffer = io.BytesIO()
    try:
        with open_image(path) as image:
            image.thumbnail((THUMBNAIL, THUMBNAIL))
            small = ImageOps.exif_transpose(image).convert("RGBA")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    Image.alpha_composite(Image.new("RGBA", small.size, "white"), small).convert("RGB").save(buffer, "JPEG")
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _columns(items: Sequence[PlacedItem]) -> list[str]:
    return list(dict.fromkeys(name for item in items for name in item.description))


def _texts(item: PlacedItem, columns: Sequence[str], limit: int) -> list[str]:
    """Texts up to the limit, and up to four times as much in all."""
    texts, room = [], 4 * limit
    for name in columns:
        text = item.description.get(name, "")
        # Others need not know where somebody's files lie.
        texts.append(_cut(Path(text).name if name == "image" else text, max(1, min(limit, room))))
        room -= len(texts[-1])
    return texts


def _cut(text: str, limit: int = NAME) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _number(value: float | None, kind: str = ".3g") -> str:
    return "-" if value is None else format(value, kind)


def _json(value: Any) -> str:
    """JSON that stays text inside a script element, whatever its strings hold."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.translate({ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"})


# Drawn from a place on: kinds differ in shape as well as in colour.
_GLYPHS: dict[Any, str] = {
    "batch": "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    "labelled": "m-2.5-2.5h5v5h-5z",
    "pending": "m0-4l4 7h-8z",
    "skipped": "m-3-3l6 6m0-6l-6 6",
    "excluded": "m-4 0h8",
    "unlabelled": "h0",
}

_STYLE = """
.batch { color: #c24a00; } .labelled { color: #0072b2; } .pending { color: #b97f00; }
.skipped { color: #b0508a; } .excluded { color: #5a6573; } .unlabelled { color: #9aa5b1; }
@media screen and (prefers-color-scheme: dark) {
  .batch { color: #d95a12; } .labelled { color: #56b4e9; } .pending { color: #e69f00; }
  .skipped { color: #e095bf; } .excluded { color: #a3adba; } .unlabelled { color: #66717e; }
}
.stack { display: flex; gap: 2px; height: 1.4rem; border-radius: 0.3rem; overflow: hidden; }
.stack i { min-width: 4px; flex-basis: 0; background: currentColor; }
.bars { display: grid; grid-template-columns: fit-content(40%) 1fr; gap: 0.25rem 0.8rem; margin: 0; }
.bars dt { overflow-wrap: anywhere; }
.bars dd { display: flex; align-items: center; gap: 0.5rem; margin: 0; }
.bars i { height: 1rem; background: currentColor; }
.legend, .card ul { list-style: none; padding: 0; }
.legend { display: flex; flex-wrap: wrap; gap: 0.2rem 1.2rem; margin: 0.6rem 0 0; }
.legend svg { width: 1rem; height: 1rem; margin-right: 0.35rem; vertical-align: -0.12rem; }
svg path { fill: currentColor; stroke: currentColor; stroke-width: 1.4; }
svg path.unlabelled, .unlabelled path { stroke-width: 4.5; stroke-linecap: round; }
.map { display: grid; grid-template-columns: 3fr 2fr; gap: 1rem; }
.map svg, .card { border: 1px solid var(--line); border-radius: 0.5rem; }
.map circle { fill: currentColor; stroke: var(--paper); stroke-width: 1.5; }
.map text { fill: #ffffff; font: 700 10px sans-serif; text-anchor: middle; dominant-baseline: central; }
.map .ties, .map .ring { fill: none; stroke: var(--ink); }
.card { position: relative; min-height: 17rem; font-size: 0.9rem; overflow-wrap: anywhere; }
.card > * { position: absolute; inset: 0; padding: 0.75rem; overflow-y: auto; }
.card :is(p, h3, dl, dd, ul) { margin: 0 0 0.5rem; }
.card dt { color: var(--soft); }
.card dd { white-space: pre-wrap; }
.card img { width: auto; max-width: 8rem; padding: 0; margin-bottom: 0.5rem; }
.card li { display: flex; align-items: center; gap: 0.6rem; }
.card li img { max-width: 3.5rem; }
@media (max-width: 42rem) {
  .map { grid-template-columns: 1fr; }
  .map g circle { r: 12px; }
  .map text { font-size: 13px; }
}
@media print { figure { print-color-adjust: exact; } .card:has(> p) { display: none; } }
"""

_SCRIPT = """
"use strict";
(() => {
  const find = (name) => document.querySelector(name);
  const { columns, items } = JSON.parse(find("#items").textContent);
  const map = find(".map svg"), card = find(".card"), ring = find(".ring"), ties = find(".ties");
  let current = -1;

  // Text only ever becomes text: nothing from the data is read as HTML.
  const add = (parent, tag, text = "") => {
    const made = Object.assign(document.createElement(tag), { textContent: text, dir: "auto" });
    parent.append(made);
    return made;
  };
  const picture = (parent, item) => {
    if (item.image) Object.assign(add(parent, "img"), { src: item.image, alt: "" });
  };
  const show = (index) => {
    if (index === current) return;
    current = index;
    const item = items[index], all = document.createElement("div");
    const near = item.near ?? [...items.keys()].filter((i) => items[i].near?.includes(index));
    add(all, "h3", item.id);
    picture(all, item);
    add(all, "p", (item.why ? item.why + "; " : "") + item.state + ".");
    const list = add(all, "dl");
    item.text.forEach((text, i) => {
      if (text) add(list, "dt", columns[i]), add(list, "dd", text);
    });
    if (near.length) add(all, "p", item.near ? "It stands for these and others:" : "In the batch, for this:");
    const others = add(all, "ul");
    for (const i of near) {
      const other = Number.isInteger(i) ? items[i] : { id: i + " (not on the map)" };
      const line = add(others, "li");
      picture(line, other);
      add(line, "bdi", other.id);
    }
    card.replaceChildren(all);
    const ends = near.filter(Number.isInteger).map((i) => items[i]);
    const line = (end) => `M${item.x} ${item.y}L${end.x} ${end.y}m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0`;
    ties.setAttribute("d", ends.map(line).join(""));
    ring.setAttribute("d", `M${item.x} ${item.y}m-12 0a12 12 0 1 0 24 0a12 12 0 1 0-24 0`);
  };
  const point = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(map.getScreenCTM().inverse());
    let best = -1, least = 16;
    items.forEach((item, i) => {
      // A mark of the batch is larger, so it is met from farther away.
      const far = Math.hypot(item.x - at.x, item.y - at.y) - (item.why ? 8 : 0);
      if (far < least) [best, least] = [i, far];
    });
    if (best >= 0) show(best);
  };
  for (const kind of ["pointermove", "pointerdown"]) map.addEventListener(kind, point);
  map.addEventListener("focus", () => { if (current < 0 && map.matches(":focus-visible")) show(0); });
  map.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show((Math.max(current, 0) + step + items.length) % items.length);
  });
})();
"""
