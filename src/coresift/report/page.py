"""Make one self-contained HTML page of paragraphs, tables and figures; it loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, singledispatch
from html import escape
from importlib import resources
from typing import Any, TypeAlias

from matplotlib.figure import Figure

from coresift import limits
from coresift.report.figures import to_svg


@dataclass(frozen=True)
class Heading:
    """Opens a section."""

    text: str


@dataclass(frozen=True)
class Table:
    """Holds rows under column names; the first column names the rows.

    Cells are aligned to the right or, with ``words``, to the left.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    words: bool = False


@dataclass(frozen=True)
class Picture:
    """Holds a figure; screen readers read the caption. HTML embeds the figure, Markdown links to ``file``."""

    figure: Figure
    caption: str
    file: str = ""


@dataclass(frozen=True)
class Markup:
    """Holds HTML whose text is already escaped, with a caption, and the style and script that it needs.

    The page allows no other scripts. Markdown shows the caption only.
    """

    html: str
    caption: str
    style: str = ""
    script: str = ""


Part: TypeAlias = str | Heading | Table | Picture | Markup


@cache
def asset(name: str) -> str:
    """Read a file that is shipped next to this module."""
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def page(title: str, parts: Iterable[Part]) -> str:
    """Make a whole HTML document. A string becomes a paragraph; all text is escaped.

    A content security policy forbids the browser to load anything, and to run any script but those of the
    parts. User data that slipped through unescaped would still do nothing.

    >>> "<p>a &lt; b</p>" in page("On order", ["a < b"])
    True
    """
    parts = list(parts)
    scripts = _different(part.script for part in parts if isinstance(part, Markup))
    styles = _different(part.style for part in parts if isinstance(part, Markup))
    hashes = [_base64(hashlib.sha256(script.encode()).digest()) for script in scripts]
    return _PAGE.format(
        title=escape(title),
        scripts=" ".join(f"'sha256-{value}'" for value in hashes) or "'none'",
        style=asset("page.css") + "".join(styles),
        body="\n".join([*map(_to_html, parts), *(f"<script>{script}</script>" for script in scripts)]),
    )


def _different(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def data_uri(kind: str, content: bytes) -> str:
    """Write a file of a MIME type into an address.

    >>> data_uri("text/plain", b"abc")
    'data:text/plain;base64,YWJj'
    """
    return f"data:{kind};base64,{_base64(content)}"


@singledispatch
def _to_html(part: Any) -> str:
    return f"<p>{escape(part)}</p>"


@_to_html.register
def _(part: Heading) -> str:
    return f"<h2>{escape(part.text)}</h2>"


@_to_html.register
def _(part: Markup) -> str:
    return f"<figure>{part.html}<figcaption>{escape(part.caption)}</figcaption></figure>"


@_to_html.register
def _(part: Picture) -> str:
    # As an image, not as SVG elements of the page: otherwise names inside two figures could clash.
    image = data_uri("image/svg+xml", to_svg(part.figure).encode())
    caption = escape(part.caption)
    return f'<figure><img alt="{caption}" src="{image}"><figcaption>{caption}</figcaption></figure>'


@_to_html.register
def _(part: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in part.columns)
    kind = ' class="words"' if part.words else ""
    # The wrapper scrolls where a phone is narrower than the table.
    return (
        f'<div class="wide"><table{kind}><caption>{escape(part.caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join(map(_table_row, part.rows))
        + "\n</tbody></table></div>"
    )


def _table_row(row: Sequence[str]) -> str:
    first, *cells = map(_cell, row)
    return f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _cell(text: str, longest: int = limits.CELL) -> str:
    """Fold a long text: it shows its beginning, and all of it when opened."""
    if len(text) <= longest:
        return escape(text)
    return f"<details><summary>{escape(text[:longest])}…</summary>{escape(text)}</details>"


def markdown(title: str, parts: Iterable[Part]) -> str:
    """Write the same parts as Markdown; pictures are files next to it.

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
    return "\n\n".join([f"# {title}", *map(_to_markdown, parts)]) + "\n"


@singledispatch
def _to_markdown(part: Any) -> str:
    return part if isinstance(part, str) else str(part.caption)


@_to_markdown.register
def _(part: Heading) -> str:
    return f"## {part.text}"


@_to_markdown.register
def _(part: Picture) -> str:
    return f"![{part.caption}]({part.file})"


@_to_markdown.register
def _(part: Table) -> str:
    rule = "|---|" + "--:|" * (len(part.columns) - 1)
    return "\n".join([part.caption, "", _line(part.columns), rule, *map(_line, part.rows)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


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
