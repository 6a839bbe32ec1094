"""Draw the map of a pool for a page: every item a mark, the batch numbered, details of what is pointed at."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from coresift import limits
from coresift.labelling.records import PlacedItem
from coresift.reading import open_image
from coresift.report.page import Markup, asset, data_uri

WIDTH, HEIGHT, MARGIN = 480, 440, 16

# SVG paths, relative to the position of the item: states differ in shape as well as in colour.
GLYPHS: dict[Any, str] = {
    "batch": "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    "labelled": "m-2.5-2.5h5v5h-5z",
    "pending": "m0-4l4 7h-8z",
    "skipped": "m-3-3l6 6m0-6l-6 6",
    "excluded": "m-4 0h8",
    "unlabelled": "h0",
}


def item_map(items: Sequence[PlacedItem], about: str) -> Markup:
    """Draw the items, the batch first. Without its script, the drawing is complete except for the details."""
    index = {item.id: number for number, item in enumerate(items)}
    columns, images = column_names(items), _thumbnails(items)
    paths, marks, entries = dict.fromkeys(reversed(GLYPHS), ""), list[str](), []
    for item, (x, y) in zip(items, _coordinates(items), strict=True):
        entries.append({"x": x, "y": y, **_details(item, columns, index), **images.get(item.id, {})})
        if item.rank is None:  # one path for each state, so that thousands of items are drawn fast
            paths[item.state] += f"M{x:g} {y:g}{GLYPHS[item.state]}"
        else:
            circle = f'<circle r="9"/><text>{item.rank}</text>'
            marks.append(f'<g class="batch" transform="translate({x:g} {y:g})">{circle}</g>')
    data = _json({"columns": [*map(cut, columns)], "items": entries})
    drawn = {state: path for state, path in paths.items() if path}
    drawing = "".join(f'<path class="{state}" d="{path}"/>' for state, path in drawn.items())
    names = {"batch": "batch, numbered by rank"} if marks else {}
    names |= {state: state for state in reversed(drawn)}
    html = asset("map.html").format(
        width=WIDTH,
        height=HEIGHT,
        drawing=drawing,
        marks="".join(reversed(marks)),  # the first item of the batch is drawn on top of the others
        legend=legend(names),
        data=data,
    )
    lines = " Lines connect an item of the batch with items that it represents." if marks else ""
    return Markup(html, about + lines, script=asset("map.js"))


def legend(names: Mapping[Any, str]) -> str:
    """List marks with their names, as HTML."""
    marks = (
        f'<li><svg class="{kind}" viewBox="-7 -7 14 14"><path d="M0 0{GLYPHS[kind]}"/></svg>{name}</li>'
        for kind, name in names.items()
    )
    return f'<ul class="legend">{"".join(marks)}</ul>'


def _details(item: PlacedItem, columns: Sequence[str], index: Mapping[str, int]) -> dict[str, Any]:
    """Collect what the script shows of an item."""
    entry = {"id": cut(item.id), "state": item.state}
    if item.rank is None:
        return entry | {"text": described(item, columns, limits.OTHER_TEXT)}
    facts = {
        f"weight {formatted(item.weight)}": item.weight,
        f"represents {formatted(item.share, '.1%')} of the pool": item.share,
        f"predicted {prediction(item)}": item.predicted,
    }
    why = [f"Number {item.rank} of the batch", *(text for text, value in facts.items() if value is not None)]
    near = [index.get(other, cut(other)) for other in item.stands_for]
    return entry | {"why": ", ".join(why), "near": near, "text": described(item, columns, limits.BATCH_TEXT)}


def _coordinates(items: Sequence[PlacedItem]) -> list[tuple[float, float]]:
    """Scale positions to the drawing, with the same scale in both directions."""
    values = np.array([(item.x, -item.y) for item in items])  # (items, 2); in SVG, y grows downwards
    room = (np.array([WIDTH, HEIGHT]) - 2 * MARGIN) / np.maximum(np.ptp(values, 0), 1e-12)
    drawn = np.array([WIDTH, HEIGHT]) / 2 + (values - (values.max(0) + values.min(0)) / 2) * room.min()
    return list(map(tuple, drawn.round(1).tolist()))


def _thumbnails(items: Sequence[PlacedItem], room: int = limits.THUMBNAILS) -> dict[str, dict[str, str]]:
    """Make thumbnails of the batch, then of what it represents, while there is room: id -> its image."""
    paths = {item.id: item.description.get("image") for item in items}
    batch = {item.id: item.stands_for for item in items if item.rank is not None}
    thumbnails = {}
    for id_ in dict.fromkeys([*batch, *chain.from_iterable(batch.values())]):
        image = _thumbnail(paths.get(id_)) if room > 0 else ""
        if image:
            thumbnails[id_] = {"image": image}
            room -= len(image)
    return thumbnails


def _thumbnail(path: str | None) -> str:
    """Make a small copy of an image; empty where there is none or it cannot be read."""
    if not path:
        return ""
    buffer = io.BytesIO()
    try:
        with open_image(Path(path)) as image:
            image.thumbnail((limits.THUMBNAIL, limits.THUMBNAIL))
            small = ImageOps.exif_transpose(image).convert("RGBA")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return ""
    Image.alpha_composite(Image.new("RGBA", small.size, "white"), small).convert("RGB").save(buffer, "JPEG")
    return data_uri("image/jpeg", buffer.getvalue())


def _json(value: Any) -> str:
    """Write JSON that stays text inside a script element, whatever its strings hold."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.translate({ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"})


def cut(text: str, limit: int = limits.NAME) -> str:
    """Shorten a text to ``limit`` characters.

    >>> cut("a long name", 7)
    'a long…'
    """
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def formatted(value: float | None, spec: str = ".3g") -> str:
    """Format a number that may be missing.

    >>> formatted(0.25, ".0%"), formatted(None)
    ('25%', '-')
    """
    return "-" if value is None else format(value, spec)


def prediction(item: PlacedItem) -> str:
    """Format the predicted label: a class with its probability, a number to four digits."""
    if item.predicted is None:
        return "-"
    label, probability = item.predicted
    return f"{float(label):.4g}" if probability is None else f"{cut(label)} ({probability:.0%})"


def column_names(items: Sequence[PlacedItem]) -> list[str]:
    """List the columns that describe any of the items."""
    return list(dict.fromkeys(name for item in items for name in item.description))


def described(item: PlacedItem, columns: Sequence[str], limit: int) -> list[str]:
    """Return the texts that describe an item: each up to the limit, together up to four times as much."""
    texts, room = [], 4 * limit
    for name in columns:
        text = item.description.get(name, "")
        # Only the name of a file: readers of the page need not know the folder.
        texts.append(cut(Path(text).name if name == "image" else text, max(1, min(limit, room))))
        room -= len(texts[-1])
    return texts
