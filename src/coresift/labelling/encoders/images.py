"""Encode images, by their colours and edges or by a network."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from coresift import limits
from coresift.errors import InputError
from coresift.labelling.encoders.base import Array, Directions, Encoder, embedding_scale
from coresift.labelling.pools.base import Block
from coresift.progress import progress_bar
from coresift.reading import open_image
from coresift.types import Floats

if TYPE_CHECKING:
    from PIL import Image

Pixels: TypeAlias = npt.NDArray[np.float32]


class UnreadableImageError(InputError):
    """A file holds no image that Pillow can read."""


def image_encoder(sample: Sequence[Path], embedding: str | None, seed: int) -> Encoder:
    """Fit the network that ``embedding`` names, or by default an encoder of colours and edges."""
    return LookEncoder(sample, seed) if embedding is None else NetworkEncoder(sample, embedding)


class LookEncoder:
    """Encode images in the main directions of their colours and edges."""

    def __init__(self, sample: Sequence[Path], seed: int) -> None:
        from sklearn.decomposition import PCA

        described = _with_a_bar(_look, sample)
        pca = PCA(min(limits.IMAGE_DIRECTIONS, *described.shape), random_state=seed)
        self._directions = Directions(pca, described, float(np.linalg.norm(described)))
        self.about = f"images by their colours and edges in {self._directions.about}"

    def encode(self, block: Block) -> Array:
        return self._directions(_look(block.images))


class NetworkEncoder:
    """Encode images by the network that "package.module:name" names."""

    def __init__(self, sample: Sequence[Path], embedding: str) -> None:
        self._name, network = embedding, _network(embedding)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._network = network.eval().to(self._device)
        self._side = int(getattr(network, "input_size", None) or limits.NETWORK_SIDE)
        some = sample[:: max(1, len(sample) // limits.SAMPLE_EMBEDDED)]
        self._scale = embedding_scale(_with_a_bar(self._embed, some))
        self.about = f"images embedded by {embedding}"

    def _embed(self, files: Sequence[Path]) -> Array:
        images = torch.from_numpy(decoded(files, self._side)).permute(0, 3, 1, 2)
        with torch.inference_mode():
            out = self._network(images.to(self._device))
        shape = tuple(getattr(out, "shape", ())) or type(out).__name__
        if not isinstance(out, torch.Tensor) or out.shape[:-1] != (len(images),):
            given, expected = tuple(images.shape), f"({len(images)}, d)"
            raise InputError(f"{self._name} made {shape} of images {given}, expected {expected}")
        return out.float().cpu().numpy()

    def encode(self, block: Block) -> Array:
        return self._scale(self._embed(block.images))


def _network(embedding: str) -> nn.Module:
    module, _, name = embedding.partition(":")
    try:
        value = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"embedding is {embedding!r}, expected 'package.module:name' that can be imported ({error}); "
            "PYTHONPATH names the folders that are searched"
        ) from None
    network = value if isinstance(value, nn.Module) or not callable(value) else value()
    if not isinstance(network, nn.Module):
        raise InputError(f"{embedding} gives a {type(network).__name__}, expected a torch.nn.Module")
    return network


def _with_a_bar(see: Callable[[Sequence[Path]], Array], sample: Sequence[Path]) -> Array:
    """(n, d) what ``see`` makes of a sample of n images, some at a time."""
    blocks = []
    with progress_bar("looking at a sample of the images", len(sample)) as advance:
        for start in range(0, len(sample), limits.IMAGE_BLOCK):
            files = sample[start : start + limits.IMAGE_BLOCK]
            blocks.append(see(files))
            advance(len(files))
    return np.concatenate(blocks)


def _look(files: Sequence[Path]) -> Floats:
    # In double precision, for the same reason as the weights of words.
    return colours_and_edges(decoded(files)).astype(np.float64)


def colours_and_edges(images: Pixels, cell: int = 8, angles: int = 8) -> Pixels:
    """Describe ``images`` (n, side, side, 3) in 0..1 by a thumbnail and by the directions of edges.

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


def decoded(files: Sequence[Path], side: int = limits.IMAGE_SIDE) -> Pixels:
    """Decode images to (n, side, side, 3) colours in 0..1."""
    from PIL import Image

    pixels = np.empty((len(files), side, side, 3), np.float32)
    for image_pixels, file in zip(pixels, files, strict=True):
        try:
            image = _upright(file, side)
            image = image.convert("RGBA").convert("RGB").resize((side, side), Image.Resampling.BOX)
            image_pixels[:] = np.asarray(image, np.float32) / 255
        # Pillow reports a broken PNG by a SyntaxError.
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            why = str(error).splitlines()[0]
            raise UnreadableImageError(f"cannot read the image {file}: {why}") from None
    return pixels


def _upright(file: Path, side: int) -> Image.Image:
    """An image turned as its camera says, and in 8 bits a colour."""
    from PIL import Image, ImageOps

    with open_image(file) as opened:
        opened.draft("RGB", (2 * side, 2 * side))  # lets a JPEG be decoded at a fraction of its size
        image: Image.Image = ImageOps.exif_transpose(opened)
    if not image.mode.startswith(("I", "F")):
        return image
    # Of 16 bits and more, Pillow would keep the lowest 8; a byte below zero would come out bright.
    values = np.asarray(image, np.float32)
    values = values - min(float(values.min()), 0.0)
    return Image.fromarray((255 / max(float(values.max()), 1.0) * values).astype(np.uint8))
