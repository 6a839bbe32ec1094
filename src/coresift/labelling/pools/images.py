"""Read pools that are folders of images."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from coresift import limits
from coresift.errors import InputError
from coresift.labelling.cells import is_writable
from coresift.labelling.pools.base import Block, ItemPool, Positions, Reading, refuse_columns
from coresift.pool import checked_index
from coresift.types import Index

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


class ImageFolder(ItemPool):
    """Image files of a folder and its subfolders, sorted by path and named by it."""

    kind = "images"
    named_by = "their path in the folder"
    block_size = limits.IMAGE_BLOCK

    def __init__(self, reading: Reading) -> None:
        refuse_columns(reading, "a folder of images")
        self.reading = reading
        names = _image_names(Path(reading.path))
        self._ids = sorted(set(names) - set(reading.skip))
        if not names:
            endings = ", ".join(SUFFIXES)
            raise InputError(f"{reading.path} holds no image; their names should end in {endings}")
        if not self._ids:
            raise InputError(f"{reading.path} holds {len(names)} images, and none of them can be read")
        for name in self._ids:
            if not is_writable(name):  # it is not UTF-8, and no table or page could hold it
                raise InputError(f"{reading.path} holds an image named {name!a}; give it a name in UTF-8")

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self) -> list[str]:
        return list(self._ids)

    def _files(self, positions: Positions) -> list[Path]:
        return [Path(self.reading.path, self._ids[position]) for position in positions]

    def take(self, positions: Index) -> Block:
        count = len(positions)
        return Block(np.empty((count, 0)), np.empty((count, 0), dtype=object), images=self._files(positions))

    def describe(self, positions: Positions) -> list[dict[str, str]]:
        return [{"image": str(file)} for file in self._files(checked_index(positions, len(self)))]

    def own_columns(self, *, as_text: bool) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self), limits.POOL_BLOCK):
            files = self._files(range(start, min(start + limits.POOL_BLOCK, len(self))))
            yield {"image": pa.array(map(str, files))}

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name in self._ids:
            content = Path(self.reading.path, name).read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()


def _image_names(folder: Path) -> list[str]:
    """The paths of images in a folder, without hidden files: a Mac leaves some with names of images."""
    files = (file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    names = (file.relative_to(folder).as_posix() for file in files)
    return [name for name in names if "/." not in f"/{name}"]
