from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coresift.labelling.pools import Reading, open_pool


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_texts_with_quotes_commas_and_newlines(files: Any, newline: str, mark: str) -> None:
    lines = ["id,question,answer", '007,"a ""b"", c', 'd",1', "NA,plain words,", "8,,2", ""]
    path = files.write("pool.csv", mark + newline.join(lines))
    pool = open_pool(Reading(path, target="answer", text="question"))
    assert (pool.kind, pool.ids(), pool.targets) == ("text", ["007", "NA", "8"], ["1", None, "2"])
    texts = [f'a "b", c{newline}d', "plain words", ""]
    assert [row["question"] for row in pool.describe(range(3))] == texts
    assert [text for block in pool.blocks() for text in block.texts] == texts
    # Letters are no words, so that one of the three texts has any.
    assert files.encode(pool, embedding="tfidf").shape[1] == 1


def test_a_text_column_of_numbers_stays_text(files: Any) -> None:
    pool = open_pool(Reading(files.write("pool.csv", "t,x\n12,1\n13,2\n"), text="t"))
    assert pool.take(np.arange(2)).texts == ["12", "13"]
