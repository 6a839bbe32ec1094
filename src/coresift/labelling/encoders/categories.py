"""Encode columns of categories."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from coresift import limits
from coresift.labelling.encoders.base import Array, counted, left_out
from coresift.labelling.pools.base import Block

# Matches dates in numbers, with day and month in any order.
_DATE = re.compile(r"\s*\d{1,4}[-./]\d{1,2}[-./]\d{1,4}\b")


class CategoryEncoder:
    """Encode each column as columns of 0 and 1, one for each frequent category and one for all others.

    The sample (n, q) is of texts, ``None`` where one is missing. Where the pool has no column of text
    (``has_text``), a column of sentences is worth a hint.
    """

    def __init__(self, sample: npt.NDArray[np.object_], names: Sequence[str], has_text: bool) -> None:
        counts = np.array([len(set(column)) for column in sample.T], dtype=int)
        # Names, addresses, invoice numbers: nothing that is true of one row is true of another.
        distinct = (counts > limits.CATEGORIES) & (counts > len(sample) / 2)
        dated = _mostly(sample, distinct, lambda text: _DATE.match(text) is not None)
        sentences = _mostly(sample, distinct & (not has_text), lambda text: len(text.split()) > 2)
        self._kept = (counts > 1) & ~distinct
        varied = hint = "text, with another value in most rows"
        if sentences.any():
            hint += f"; --text {shlex.quote(names[int(sentences.argmax())])} learns from its words"
        self.about = (
            self._fit(sample)
            + left_out(names, counts == 1, "a single value")
            + left_out(names, distinct & ~sentences & ~dated, varied)
            + left_out(names, sentences, hint)
            + left_out(names, dated, "dates have to be written as 2024-10-30 or 30.10.2024")
        )

    def _fit(self, sample: npt.NDArray[np.object_]) -> str:
        """Fit to the columns that are kept, and say what becomes of them."""
        from sklearn.preprocessing import OneHotEncoder

        self._one_hot = OneHotEncoder(
            handle_unknown="infrequent_if_exist",
            max_categories=limits.CATEGORIES,
            sparse_output=False,
            dtype=np.float32,
        )
        if not self._kept.any():
            return "0 categories"
        self._one_hot.fit(self._filled(sample))
        width = len(self._one_hot.get_feature_names_out())
        return f"{counted(int(self._kept.sum()), 'category', 'categories')} ({width} columns)"

    def _filled(self, categories: npt.NDArray[np.object_]) -> npt.NDArray[np.object_]:
        categories = categories[:, self._kept]
        return np.where(categories == None, "missing", categories)  # noqa: E711, by element

    def encode(self, block: Block) -> Array:
        if not self._kept.any():
            return np.empty((len(block), 0))
        encoded: Array = self._one_hot.transform(self._filled(block.categories))
        return encoded


def _mostly(
    sample: npt.NDArray[np.object_], tested: npt.NDArray[np.bool_], test: Callable[[str], bool]
) -> npt.NDArray[np.bool_]:
    """(q,) whether a column is ``tested`` and most of its texts pass the test."""
    passed = [
        bool(is_tested) and np.mean([test(text or "") for text in column]) > 0.5
        for column, is_tested in zip(sample.T, tested, strict=True)
    ]
    return np.array(passed, dtype=bool)
