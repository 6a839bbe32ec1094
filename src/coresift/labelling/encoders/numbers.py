"""Encode columns of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coresift import limits
from coresift.labelling.encoders.base import Array, counted, left_out
from coresift.labelling.pools.base import Block
from coresift.types import Floats


class NumberEncoder:
    """Standardise numbers, fill missing values with medians, and mark by 0 and 1 where they were missing.

    Numbers with only two values become 0 and 1.
    """

    def __init__(self, sample: Floats, names: Sequence[str]) -> None:
        self._low, high = np.fmin.reduce(sample), np.fmax.reduce(sample)
        self._rounding = limits.ROUNDING_DOUBLE * np.fmax(abs(self._low), abs(high))
        sample = self._above_lowest(sample)
        missing = np.isnan(sample)
        # A value missing in some rows and the same in all others is something to learn from.
        partly_missing = missing.any(0) & ~missing.all(0)
        self._varied = (np.fmax.reduce(sample) > np.fmin.reduce(sample)) | partly_missing
        self.about = counted(int(self._varied.sum()), "number")
        self.about += left_out(names, ~self._varied, "a single value")
        if missing[:, self._varied].any():
            self.about += ", missing values filled with medians"
        self._fit(sample[:, self._varied])

    def _fit(self, sample: Floats) -> None:
        from sklearn.feature_selection import VarianceThreshold
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        self._scale = make_pipeline(
            SimpleImputer(strategy="median", add_indicator=True), VarianceThreshold(), StandardScaler()
        )
        if sample.shape[1] == 0:
            return
        self._scale.fit(sample)
        # Standardised, a mark in one row of a thousand would be thirty standard deviations away, the oddest
        # item of the pool to a model that has not met it yet.
        filled, scaler = self._scale[:-1].transform(sample), self._scale[-1]
        low, high = filled.min(0), filled.max(0)
        two_values = ((filled == low) | (filled == high)).all(0)
        scaler.mean_[two_values], scaler.scale_[two_values] = low[two_values], (high - low)[two_values]

    def _above_lowest(self, numbers: Floats) -> Floats:
        """Numbers as differences from the lowest, without rounding.

        The scaler leaves alone what varies little next to its mean, such as times within a second. And the
        difference of 0.1 + 0.2 and 0.3 is none.
        """
        above: Floats = numbers - self._low
        above[abs(above) <= self._rounding] = 0
        return above

    def encode(self, block: Block) -> Array:
        if not self._varied.any():
            return block.numbers[:, self._varied]
        scaled: Floats = self._scale.transform(self._above_lowest(block.numbers)[:, self._varied])
        # A single number a thousand standard deviations away would outweigh all else about an item.
        return np.clip(scaled, -limits.LARGEST_STD, limits.LARGEST_STD, out=scaled)
