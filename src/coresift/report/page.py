"""One self-contained HTML page from paragraphs, tables and figures: nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from matplotlib.figure import Figure

from coresift.report.figures import to_svg


@dataclass(frozen=True)
class Heading:
    """Opens a section."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows under column names; the first column names the rows. Cells stand right, but words left."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    words: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure; the caption is what is read out to those who cannot see it.

    HTML holds the figure itself, Markdown points to a file of it.
    """

    figure: Figure
    caption: str
    file: str = ""


@dataclass(frozen=True)
class Markup:
    """HTML that its maker has escaped, under a caption; the style and the script that it needs.

    Its script is the only one that the page lets run. Markdown holds the caption alone.
    """

    html: str
    caption: str
    style: str = ""
    script: str = ""


Part: TypeAlias = str | Heading | Table | Picture | Markup


def page(title: str, parts: Iterable[Part]) -> str:
    """A whole HTML document. A string is a paragraph; all text is escaped.

    A policy in its head forbids the browser to load anything, and to run anything but the scripts of its
    parts: text from a user's data that slipped through unescaped would still do nothing.

    >>> "<p>a &lt; b</p>" in page("On order", ["a < b"])
    True
    """
    parts = list(parts)
    made = [part for part in parts if isinstance(part, Markup)]
    scripts = dict.fromkeys(part.script for part in made if part.script)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    return _PAGE.format(
        title=escape(title),
        scripts=" ".join(f"'sha256-{value}'" for value in hashes) or "'none'",
        style=_STYLE + "".join(dict.fromkeys(part.style for part in made)),
        body="\n".join([*map(_html, parts), *(f"<script>{script}</script>" for script in scripts)]),
    )


def markdown(title: str, parts: Iterable[Part]) -> str:
    """The same as Markdown; pictures are files beside it.

    >>> print(markdown("Two", [Table(["row", "a"], [["b", "1"]], "One table.")]))
    # Two
    <BLANKLINE>
    One table.
    <BLANKLINE>
    | row | a |
    |---|--:|
    | b | 1 |
    <BLANKLINE>
    """
    blocks = [f"# {title}"]
    for part in parts:
        if isinstance(part, Heading):
            blocks.append(f"## {part.text}")
        elif isinstance(part, Table):
            rule = "|---|" + "--:|" * (len(part.columns) - 1)
            lines = (_line(part.columns), rule, *map(_line, part.rows))
            blocks += [part.caption, "\n".join(lines)]
        elif isinstance(part, Picture):
            blocks.append(f"![{part.caption}]({part.file})")
        else:
            blocks.append(part if isinstance(part, str) else part.caption)
    return "\n\n".join(blocks) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _html(part: Part) -> str:
    if isinstance(part, str):
        return f"<p>{escape(part)}</p>"
    if isinstance(part, Heading):
        return f"<h2>{escape(part.text)}</h2>"
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Markup):
        return f"<figure>{part.html}<figcaption>{escape(part.caption)}</figcaption></figure>"
    # An image of its own, not SVG in the page: names inside two figures then cannot clash.
    image = base64.b64encode(to_svg(part.figure).encode()).decode()
    caption = escape(part.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/svg+xml;base64,{image}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = "\n".join(
        f'<tr><th scope="row">{_cell(first)}</th>'
        + "".join(f"<td>{_cell(cell)}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in table.rows
    )
    kind = ' class="words"' if table.words else ""
    # The wrapper scrolls where a phone is narrower than the table.
    return (
        f'<div class="wide"><table{kind}><caption>{escape(table.caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _cell(text: str) -> str:
    """A long text is folded: its beginning is seen, and all of it when opened."""
    if len(text) <= _LONG:
        return escape(text)
    return f"<details><summary>{escape(text[:_LONG])}…</summary>{escape(text)}</details>"


_LONG = 48

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:;
 style-src 'unsafe-inline'; script-src {scripts}; base-uri 'none'; form-action 'none'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""

_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1c2430; --soft: #5a6573; --line: #d9dee5;
}
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #14181e; --ink: #e6e9ee; --soft: #a3adba; --line: #343c47; }
}
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 1.0625rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 52rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 1.5rem; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 0.75rem; }
p { max-width: 42rem; margin: 0 0 1rem; }
figure { margin: 1.5rem 0; }
img {
  display: block; box-sizing: border-box; width: 100%; height: auto;
  background: #ffffff; border: 1px solid var(--line); border-radius: 0.5rem; padding: 0.75rem;
}
figcaption, caption { color: var(--soft); font-size: 0.9rem; line-height: 1.45; text-align: left; }
figcaption { margin-top: 0.6rem; }
caption { margin-bottom: 0.6rem; }
.wide { overflow-x: auto; margin: 1.5rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.95rem; }
th, td { padding: 0.35rem 1.1rem 0.35rem 0; text-align: right; white-space: nowrap; }
thead th { border-bottom: 1px solid var(--soft); }
tbody tr + tr > * { border-top: 1px solid var(--line); }
th:first-child { text-align: left; }
tbody th { font-weight: 500; }
.words :is(th, td) { text-align: left; vertical-align: top; }
.words td { white-space: normal; }
details[open] { white-space: pre-wrap; overflow-wrap: anywhere; }
details[open] summary { color: var(--soft); }
@media print {
  .wide { overflow: visible; }
  th, td { white-space: normal; overflow-wrap: break-word; }
  figure, tr { break-inside: avoid; }
}
"""
