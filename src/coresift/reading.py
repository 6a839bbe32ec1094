"""Read other people's files with care: check the header of a table, open images of known formats only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coresift.errors import InputError

if TYPE_CHECKING:
    import PIL.Image

# Pillow decodes these itself; for some others, such as EPS, it runs other programs on the file.
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")


def pillow() -> Any:
    """Return ``PIL.Image``, or raise with the install command."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError("images need Pillow: pip install pillow") from None
    return Image


def open_image(path: Path) -> PIL.Image.Image:
    """Open an image in one of the ``FORMATS``, whatever the name of the file says."""
    image: PIL.Image.Image = pillow().open(path, formats=FORMATS)
    return image


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_header(path: Path, names: Sequence[str]) -> None:
    """Raise where the column names are not a header, or do not identify the columns."""
    separator = re.search("[;\t]", names[0]) if len(names) == 1 else None
    if separator and path.suffix.lower() == ".csv":
        raise InputError(
            f"{path} has one column, {names[0][:60]!r}: its separator seems to be {separator[0]!r}; "
            "write it with commas"
        )
    # Both tests are needed: 1.5e-3 is data with a letter in it, and "?" is data that is not a number.
    has_letters = any(map(str.isalpha, "".join(names)))
    if not has_letters or all(map(_is_number, filter(str.strip, names))):
        raise InputError(f"{path} has no header: its first line is {','.join(names)[:60]}; put names there")
    nameless = [index for index, name in enumerate(names) if not name.strip()]
    if nameless:
        raise InputError(
            f"column {nameless[0]} of {path} has no name; if it is the index of a DataFrame, "
            "write the file with index=False, otherwise name it"
        )
    repeated = ", ".join(repr(name) for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise InputError(
            f"{path} has more than one column named {repeated}; give each a name of its own or drop it"
        )


def without_index(path: Path, table: Any, target: str | None) -> Any:
    """Drop the columns of an Arrow table that pandas marked as its index, unless one is the target."""
    # Where the index is a range, pandas writes a description instead of a name.
    described = (table.schema.pandas_metadata or {}).get("index_columns", [])
    index = [name for name in described if isinstance(name, str) and name != target]
    kept = [number for number, name in enumerate(table.column_names) if name not in index]
    if not kept:
        raise InputError(f"{path} has no columns but an index of pandas; make columns of it by reset_index()")
    return table.select(kept)
