"""Turn items into features, the numbers that a model sees.

Each encoder is fitted to a sample of the pool, which gives it medians, words or directions of images. Then
the pool is encoded block by block, so that memory does not grow with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coresift import limits
from coresift.atomic import replacing
from coresift.errors import InputError
from coresift.labelling.encoders.base import Encoder
from coresift.labelling.encoders.categories import CategoryEncoder
from coresift.labelling.encoders.images import UnreadableImageError, decoded, image_encoder
from coresift.labelling.encoders.numbers import NumberEncoder
from coresift.labelling.encoders.texts import text_encoder
from coresift.labelling.pools.base import Block, ItemPool
from coresift.progress import progress_bar
from coresift.reading import FORMATS


def write_features(
    pool: ItemPool,
    path: Path,
    *,
    embedding: str | None = None,
    seed: int = 0,
    sample_rows: int = limits.SAMPLE_ROWS,
) -> str:
    """Write the features of a pool as a ``.npy`` file of float32 (N, d), which appears when it is complete.

    Returns what the features are, in words for people.

    Parameters
    ----------
    embedding : for texts "minilm" or "tfidf", by default the first that is installed; for images
        "package.module:name", a `torch.nn.Module` or a function that returns one.
    seed : of the sample that the encoders are fitted to, and of their own random numbers.
    sample_rows : how many rows of a table or an array the encoders are fitted to.
    """
    if embedding is not None and pool.kind in ("table", "array"):
        raise InputError(
            f"embedding is {embedding!r}, but {pool.reading.path} holds no texts or images; leave it out"
        )
    try:
        encoders = _fit(pool, embedding, seed, sample_rows)
        return _write(pool, path, encoders)
    except UnreadableImageError as error:
        raise InputError(_unreadable(pool) or str(error)) from None


def broken_images(pool: ItemPool) -> list[str]:
    """Find the images of a pool that cannot be read, by their ids."""
    broken = []
    with progress_bar("looking for images that cannot be read", len(pool)) as advance:
        for position, name in enumerate(pool.ids()):
            try:
                decoded(pool.take(np.array([position])).images)
            except UnreadableImageError:
                broken.append(name)
            advance(1)
    return broken


def _fit(pool: ItemPool, embedding: str | None, seed: int, sample_rows: int) -> list[Encoder]:
    """The encoders that a pool needs, fitted to a sample of it."""
    size = {"images": limits.SAMPLE_IMAGES, "text": limits.SAMPLE_TEXTS}.get(pool.kind, sample_rows)
    # Of wide rows fewer, for memory.
    size = min(size, max(100, limits.SAMPLE_NUMBERS // max(1, len(pool.numbers))))
    positions = np.arange(len(pool))
    if len(pool) > size:
        positions = np.sort(np.random.default_rng(seed).choice(len(pool), size, replace=False))
    sample = pool.take(positions)
    encoders: list[Encoder] = []
    if pool.kind == "images":
        encoders.append(image_encoder(sample.images, embedding, seed))
    if pool.kind == "text":
        encoders.append(text_encoder(sample.texts, str(pool.reading.text), embedding, seed))
    if pool.numbers:
        encoders.append(NumberEncoder(sample.numbers, pool.numbers))
    if pool.categories:
        encoders.append(CategoryEncoder(sample.categories, pool.categories, pool.kind == "text"))
    return encoders


def _encode(encoders: Sequence[Encoder], block: Block) -> npt.NDArray[np.float32]:
    """(n, d) the features that all encoders make of n items."""
    encoded = [encoder.encode(block) for encoder in encoders]
    return np.concatenate(encoded, axis=1, dtype=np.float32)


def _write(pool: ItemPool, path: Path, encoders: list[Encoder]) -> str:
    about, rows = ", ".join(encoder.about for encoder in encoders), 0
    num_features = _encode(encoders, pool.take(np.arange(1))).shape[1]
    if num_features == 0:
        raise InputError(f"{pool.reading.path} has nothing to learn from: {about}")
    with replacing(path) as file, progress_bar("reading the pool", len(pool)) as advance:
        header = {"descr": "<f4", "fortran_order": False, "shape": (len(pool), num_features)}
        np.lib.format.write_array_header_1_0(file, header)
        for block in pool.blocks():
            file.write(np.ascontiguousarray(_encode(encoders, block), "<f4").data)
            rows += len(block)
            advance(len(block))
        if rows != len(pool):
            raise InputError(
                f"{pool.reading.path} had {len(pool)} items and now {rows}; leave it as it is meanwhile"
            )
    return about


def _unreadable(pool: ItemPool) -> str:
    """What to say about all images of a pool that cannot be read; empty where all can."""
    broken = broken_images(pool)
    if not broken:  # what failed once may have been a busy disk
        return ""
    names = ", ".join(broken[: limits.NAMED_IMAGES]) + (", ..." if len(broken) > limits.NAMED_IMAGES else "")
    return (
        f"cannot read {len(broken)} of the {len(pool)} images in {pool.reading.path}: {names}; they are "
        f"broken, or their format is none of {', '.join(FORMATS)}: move them out of the folder, or "
        "leave them out with --skip-broken"
    )
