"""Files that are written as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from stat import S_IMODE
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that takes the name ``path`` at the end of the ``with`` block.

    Until then it has a random name in the same folder. It is written through to the disk before it is
    renamed: a reader of ``path`` sees the old content or the new one, even after a power cut. After an
    error it is removed, and ``path`` is as it was. A file that is replaced keeps its mode. ``file.name``
    is for writers that want a path.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder, "greeting.txt")) as file:
    ...         _ = file.write(b"hello")
    ...     [(found.name, found.read_text()) for found in Path(folder).iterdir()]
    [('greeting.txt', 'hello')]
    """
    new = path.with_name(f".coresift-{token_hex(8)}.tmp")
    file = new.open("xb")  # "x" opens nothing that is there, be it a link
    try:
        with file:
            if path.is_file() and not path.is_symlink():
                new.chmod(S_IMODE(path.stat().st_mode))
            yield file
            sync(file)
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    with suppress(OSError):  # the new name has to reach the disk too; not all systems open folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_text(path: Path, text: str, errors: str = "strict") -> None:
    """Write a text file in UTF-8, as a whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode(errors=errors))


def sync(file: BinaryIO) -> None:
    """Write what was written to ``file`` through to the disk."""
    file.flush()
    os.fsync(file.fileno())
