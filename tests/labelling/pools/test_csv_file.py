from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coresift.labelling.encoders import write_features
from coresift.labelling.pools import Reading, open_pool


def test_rows_far_down_decide_what_a_column_of_csv_holds(files: Any) -> None:
    # More than the reader takes at a time.
    lines = "\n".join(["a,b", *(f"{i},{i:060d}" for i in range(150_000)), "x,1.5", ""])
    pool = open_pool(Reading(files.write("pool.csv", lines), features=("a", "b")))
    assert (pool.numbers, pool.categories, len(pool)) == (["b"], ["a"], 150_001)
    assert pool.describe([150_000, 140_000]) == [
        {"a": "x", "b": "1.5"},
        {"a": "140000", "b": f"{140_000:060d}"},
    ]


def test_spaces_around_values_do_not_matter(files: Any) -> None:
    path = files.write("pool.csv", "key,day,x\n a , 2024-01-05 , 1.5 \nb,2024-01-06,2\n")
    pool = open_pool(Reading(path, id="key", features=("day", "x", "x")))
    assert pool.ids() == ["a", "b"] and pool.numbers == ["day", "x"]
    np.testing.assert_array_equal(np.diff(pool.take(np.arange(2)).numbers, axis=0), [[1, 0.5]])


@pytest.mark.parametrize("separator", [";", "\t"])
def test_separators(files: Any, separator: str) -> None:
    rows = ["id,a,b,note", 'i1,1.5,x,"one; two\tthree"', "i2,2.5,y,four"]
    plain = open_pool(Reading(files.write("plain.csv", "\n".join(rows) + "\n"), target="kind"))
    table = [next(csv.reader([row])) for row in rows]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator).writerows(table)
    other = open_pool(Reading(files.write("other.csv", text.getvalue()), target="kind"))
    assert other.ids() == plain.ids() == ["i1", "i2"]
    assert other.describe([0, 1]) == plain.describe([0, 1])
    assert other.numbers == ["a"] and other.categories == ["b", "note"]


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ('id,"Rate it; 1 bad; 5 good; 0 unknown",y', ["id", "Rate it; 1 bad; 5 good; 0 unknown", "y"]),
        ('id;"a, b, c, d";y', ["id", "a, b, c, d", "y"]),
        ('id,"size; 5"" or 6; or\n7; or 8",y', ["id", 'size; 5" or 6; or\n7; or 8', "y"]),
        ('id,size 5",y', ["id", 'size 5"', "y"]),
    ],
)
def test_no_separator_splits_a_quoted_name(files: Any, header: str, columns: list[str]) -> None:
    separator = header[2]
    rows = "".join(separator.join((name, "1", "2")) + "\n" for name in "ab")
    pool = open_pool(Reading(files.write("pool.csv", f"{header}\n{rows}"), target="y"))
    assert ["id", *pool.numbers, "y"] == columns


def test_dates_with_the_day_first_are_numbers(files: Any, tmp_path: Path) -> None:
    path = files.write("pool.csv", "day,iso\n30.10.2024,2024-10-30\n3.1.2024 06:00, 2024-01-03 06:00\n,\n")
    pool = open_pool(Reading(path))
    assert pool.numbers == ["day", "iso"]
    numbers = pool.take(np.arange(3)).numbers
    np.testing.assert_array_equal(numbers[:, 0], numbers[:, 1])
    assert numbers[0, 0] == 20026 and np.isnan(numbers[2, 0])
    # There is no 13th month, and what is left out is left out for a true reason.
    days = [f"{row % 28 + 1:02}/{row % 12 + 1:02}/20{row % 90 + 10}" for row in range(60)]
    path = files.write("other.csv", "x,day\n" + "".join(f"{row},{day}\n" for row, day in enumerate(days)))
    about = write_features(open_pool(Reading(path)), tmp_path / "features.npy")
    assert "without 'day': dates have to be written as 2024-10-30 or 30.10.2024" in about
