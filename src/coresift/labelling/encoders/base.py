"""What an encoder is, and the scale and wording that encoders share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from coresift import limits
from coresift.labelling.pools.base import Block

Array: TypeAlias = npt.NDArray[Any]


class Encoder(Protocol):
    """One way to turn items into features, fitted to a sample when it is made; ``about`` describes them."""

    about: str

    def encode(self, block: Block) -> Array:
        """Turn n items into their features (n, d)."""


class Scale:
    """Centre features and divide all of them by one number, which keeps their distances.

    It is fitted to a sample (n, d), computed from numbers of a ``magnitude``, (d,) or one for all. Features
    are left out that vary no more than rounding makes them.
    """

    def __init__(self, sample: Array, magnitude: Array | float) -> None:
        std = sample.std(0)
        self.kept = std > limits.ROUNDING * magnitude
        self._mean = sample.mean(0)
        # The root of the average variance of those kept.
        self._std = float(np.sqrt(np.mean(std[self.kept] ** 2))) if self.kept.any() else 1.0

    def __call__(self, features: Array) -> Array:
        """(n, d) features to those kept, scaled."""
        scaled: Array = ((features - self._mean) / self._std)[:, self.kept]
        return scaled


def embedding_scale(sample: Array) -> Scale:
    """The scale of what a network gives (n, d), without features that are the same for all."""
    sample = sample.astype(np.float64)
    return Scale(sample, np.sqrt(np.mean(sample**2, axis=0)))


class Directions:
    """Reduce descriptions of items to coordinates in their main directions, and scale these.

    A ``reducer`` such as `sklearn.decomposition.PCA` is fitted to a sample (n, D) with this ``norm``.
    """

    def __init__(self, reducer: Any, sample: Any, norm: float) -> None:
        self._reducer = reducer
        # There is no variance to explain where all items are the same.
        with np.errstate(invalid="ignore", divide="ignore"):
            coordinates = reducer.fit(sample).transform(sample)
        # A few distinct items have few directions; the others are rounding next to the size of the sample.
        self._scale = Scale(coordinates, norm / np.sqrt(sample.shape[0]))
        self.about = counted(int(self._scale.kept.sum()), "dimension")

    def __call__(self, described: Any) -> Array:
        return self._scale(self._reducer.transform(described))


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """Write a number with its noun: 1 category, 2 categories."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def left_out(names: Sequence[str], which: npt.NDArray[np.bool_], why: str) -> str:
    """Say in brackets which columns are left out, and why; empty where none is."""
    left = [repr(name) for name, out in zip(names, which, strict=True) if out]
    more = f" and {len(left) - 5} more" if len(left) > 5 else ""
    return f" (without {', '.join(left[:5])}{more}: {why})" if left else ""
