"""Read pools that are folders of images."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coresift import limits
from coresift.labelling.pools.base import Block, ItemPool, Positions, Reading, refuse_columns
from coresift.pool import checked_index
from coresift.types import Index, InputError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


class ImageFolder(ItemPool):
    """Image files of a folder and its subfolders, sorted by path and named by it."""

    kind = "images"
    named_by = "their path in the folder"
    block_size = limits.IMAGE_BLOCK

    def __init__(self, reading: Reading) -> None:
        refuse_columns(reading, "a folder of images")
        self.reading = reading
        folder = Path(reading.path)
        names = _image_names(folder)
        self._ids = sorted(set(names) - set(reading.skip))
        if names and not self._ids:
            raise InputError(f"{folder} holds {len(names)} images, and none of them can be read")
        if not self._ids:
            raise InputError(f"{folder} holds no image; their names should end in {', '.join(SUFFIXES)}")
        for name in self._ids:
            try:
                name.encode()
            except UnicodeEncodeError:  # the name is not UTF-8, and no table or page could hold it
                raise InputError(f"{folder} holds an image named {name!a}; give it a name in UTF-8") from None

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self) -> list[str]:
        return list(self._ids)

    def take(self, positions: Index) -> Block:
        images = [Path(self.reading.path, self._ids[position]) for position in positions]
        return Block(np.empty((len(images), 0)), np.empty((len(images), 0), dtype=object), images=images)

    def describe(self, positions: Positions) -> list[dict[str, str]]:
        return [{"image": str(file)} for file in self.take(checked_index(positions, len(self))).images]

    def own_columns(self, *, as_text: bool) -> Iterator[dict[str, Any]]:
        import pyarrow as pa

        files = [str(file) for file in self.take(np.arange(len(self))).images]
        for start in range(0, len(files), limits.POOL_BLOCK):
            yield {"image": pa.array(files[start : start + limits.POOL_BLOCK])}

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name in self._ids:
            content = Path(self.reading.path, name).read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()


def _image_names(folder: Path) -> list[str]:
    """The paths of images in a folder, without hidden files: a Mac leaves some with names of images."""
    files = (
        file.relative_to(folder)
        for file in folder.rglob("*")
        if file.suffix.lower() in SUFFIXES and file.is_file()
    )
    return [file.as_posix() for file in files if not any(part.startswith(".") for part in file.parts)]
