from __future__ import annotations

from typing import Any

from coresift.labelling.pools import Reading, open_pool


def test_texts_that_are_left_out_are_worth_a_hint(files: Any) -> None:
    rows = "".join(f"{row},the review of row {row // 2},K{row}\n" for row in range(60))
    path = files.write("pool.csv", "x,review,key\n" + rows)
    about = files.about(open_pool(Reading(path)))
    assert "without 'key': text, with another value in most rows)" in about and "--text" not in about
    rows = "".join(f"{row},the review of row {row}\n" for row in range(60))
    path = files.write("pool.csv", "x,review\n" + rows)
    about = files.about(open_pool(Reading(path)))
    assert "without 'review': text, with another value in most rows; --text review learns" in about
