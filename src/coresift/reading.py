"""Read other people's files with care: check the header of a table, open images of known formats only."""

from __future__ import annotations

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


def is_number(text: str) -> bool:
    """Tell whether a text can be read as a number.

    >>> is_number("1.5e-3"), is_number("?")
    (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_header(path: Path, names: Sequence[str]) -> None:
    """Raise where the column names are not a header, or do not identify the columns."""
    _check_separator(path, names)
    # Both tests are needed: 1.5e-3 is data with a letter in it, and "?" is data that is not a number.
    letters = any(character.isalpha() for character in "".join(names))
    if not letters or all(is_number(name) for name in names if name.strip()):
        raise InputError(f"{path} has no header: its first line is {','.join(names)[:60]}; put names there")
    unnamed = next((index for index, name in enumerate(names) if not name.strip()), None)
    if unnamed is not None:
        raise InputError(
            f"column {unnamed} of {path} has no name; if it is the index of a DataFrame, "
            "write the file with index=False, otherwise name it"
        )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InputError(
            f"{path} has more than one column named {', '.join(map(repr, repeated))}; "
            "give each a name of its own or drop it"
        )


def _check_separator(path: Path, names: Sequence[str]) -> None:
    if len(names) > 1 or path.suffix.lower() != ".csv":
        return
    for separator in ";\t":
        if separator in names[0]:
            raise InputError(
                f"{path} has one column, {names[0][:60]!r}: its separator seems to be {separator!r}; "
                "write it with commas"
            )


def without_index(path: Path, table: Any, target: str | None) -> Any:
    """Drop the columns of an Arrow table that pandas marked as its index, unless one is the target."""
    # Where the index is a range, pandas writes a description instead of a name.
    described = (table.schema.pandas_metadata or {}).get("index_columns", [])
    index = {name for name in described if isinstance(name, str) and name != target}
    kept = [number for number, name in enumerate(table.column_names) if name not in index]
    if not kept:
        raise InputError(f"{path} has no columns but an index of pandas; make columns of it by reset_index()")
    return table.select(kept)
