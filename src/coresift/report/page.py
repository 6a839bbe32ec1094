"""Make one self-contained HTML page of paragraphs, tables and figures; it loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from typing import TypeAlias

from matplotlib.figure import Figure

from coresift import limits
from coresift.report.figures import to_svg


@dataclass(frozen=True)
class Heading:
    """Opens a section."""

    text: str

    def to_html(self) -> str:
        return f"<h2>{escape(self.text)}</h2>"

    def to_markdown(self) -> str:
        return f"## {self.text}"


@dataclass(frozen=True)
class Table:
    """Holds rows under column names; the first column names the rows.

    Cells are aligned to the right or, with ``words``, to the left. HTML folds a cell with a long text.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    words: bool = False

    def to_html(self) -> str:
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.columns)
        body = "\n".join(map(_row, self.rows))
        kind = ' class="words"' if self.words else ""
        # The wrapper scrolls where a phone is narrower than the table.
        return (
            f'<div class="wide"><table{kind}><caption>{escape(self.caption)}</caption>\n'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
        )

    def to_markdown(self) -> str:
        rule = "|---|" + "--:|" * (len(self.columns) - 1)
        rows = map(_markdown_row, self.rows)
        return "\n".join([self.caption, "", _markdown_row(self.columns), rule, *rows])


def _row(cells: Sequence[str]) -> str:
    first, *others = map(_cell, cells)
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'


def _cell(text: str) -> str:
    """Fold a long text: it shows its beginning, and all of it when opened."""
    if len(text) <= limits.CELL:
        return escape(text)
    return f"<details><summary>{escape(text[: limits.CELL])}…</summary>{escape(text)}</details>"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


@dataclass(frozen=True)
class Picture:
    """Holds a figure; screen readers read the caption. HTML embeds the figure, Markdown links to ``file``."""

    figure: Figure
    caption: str
    file: str = ""

    def to_html(self) -> str:
        # As an image, not as SVG elements of the page: otherwise names inside two figures could clash.
        image = data_uri("image/svg+xml", to_svg(self.figure).encode())
        caption = escape(self.caption)
        return f'<figure><img alt="{caption}" src="{image}"><figcaption>{caption}</figcaption></figure>'

    def to_markdown(self) -> str:
        return f"![{self.caption}]({self.file})"


@dataclass(frozen=True)
class Markup:
    """Holds HTML whose text is already escaped, with its style and script. Markdown shows the caption."""

    html: str
    caption: str
    style: str = ""
    script: str = ""

    def to_html(self) -> str:
        return f"<figure>{self.html}<figcaption>{escape(self.caption)}</figcaption></figure>"

    def to_markdown(self) -> str:
        return self.caption


# A string is a paragraph.
Part: TypeAlias = str | Heading | Table | Picture | Markup


@cache
def asset(name: str) -> str:
    """Read a file that is shipped next to this module."""
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def page(title: str, parts: Iterable[Part]) -> str:
    """Make a whole HTML document; all text is escaped.

    A content security policy forbids the browser to load anything, and to run any script but those of the
    `Markup` among the parts. User data that slipped through unescaped would still do nothing.

    >>> "<p>a &lt; b</p>" in page("On order", ["a < b"])
    True
    """
    parts = list(parts)
    markups = [part for part in parts if isinstance(part, Markup)]
    styles = dict.fromkeys(part.style for part in markups)
    scripts = list(filter(None, dict.fromkeys(part.script for part in markups)))
    return asset("page.html").format(
        title=escape(title),
        scripts=" ".join(map(_allowed, scripts)) or "'none'",
        style="".join([asset("page.css"), *styles]),
        body="\n".join([*map(_html, parts), *map("<script>{}</script>".format, scripts)]),
    )


def _html(part: Part) -> str:
    return f"<p>{escape(part)}</p>" if isinstance(part, str) else part.to_html()


def _allowed(script: str) -> str:
    """Name a script in the content security policy."""
    return f"'sha256-{_base64(hashlib.sha256(script.encode()).digest())}'"


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
    body = [part if isinstance(part, str) else part.to_markdown() for part in parts]
    return "\n\n".join([f"# {title}", *body]) + "\n"


def data_uri(kind: str, content: bytes) -> str:
    """Write a file of a MIME type into an address.

    >>> data_uri("text/plain", b"abc")
    'data:text/plain;base64,YWJj'
    """
    return f"data:{kind};base64,{_base64(content)}"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
