from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from coresift.errors import InputError
from coresift.labelling.pools import Reading, open_pool


def test_types_of_parquet_columns(files: Any) -> None:
    columns = {
        "whole": pa.array([1, 2**60, None], pa.int64()),
        "day": [date(2024, 1, 1), date(2024, 1, 2), None],
        "flag": [True, False, None],
        "none": pa.nulls(3),
        "single": pa.array([0.1, 0.2, None], pa.float32()),
        "zone": pa.array([0, 86_400_000, None], pa.timestamp("ms", "UTC")),
        "label": [3, None, 4],
    }
    pool = open_pool(Reading(files.parquet(columns), target="label"))
    assert pool.numbers == ["whole", "day", "none", "single", "zone"] and pool.categories == ["flag"]
    assert pool.targets == ["3", None, "4"] and pool.ids() == ["0", "1", "2"]
    block = pool.take(np.array([0, 1, 2]))
    np.testing.assert_allclose(
        block.numbers[1] - block.numbers[0], [2.0**60 - 1, 1, np.nan, 0.1, 1], rtol=1e-6
    )
    assert np.isnan(block.numbers[2]).all() and block.categories[:, 0].tolist() == ["True", "False", None]
    assert pool.describe([0])[0]["single"] == "0.1"
    assert "'none'" in files.about(pool)


def test_an_index_of_pandas_may_name_items_and_is_nothing_to_learn_from(tmp_path: Path) -> None:
    table = pa.table({"x": [1.0, 2.0], "key": ["a", "b"]})
    table = table.replace_schema_metadata({"pandas": json.dumps({"index_columns": ["key"]})})
    pyarrow.parquet.write_table(table, tmp_path / "pool.parquet")
    reading = Reading(str(tmp_path / "pool.parquet"))
    assert open_pool(reading).reading.features == ("x",)
    assert open_pool(replace(reading, id="key")).ids() == ["a", "b"]


@pytest.mark.parametrize("column", ["id", "word"])
def test_parquet_text_that_is_not_utf_8(tmp_path, column):
    size = 5
    places = pa.py_buffer(np.arange(size + 1, dtype=np.int32).tobytes())
    odd = pa.Array.from_buffers(pa.string(), size, [None, places, pa.py_buffer(b"abc\xffd")])
    table = pa.table({"id": list("vwxyz"), "word": list("vwxyz"), "a": np.arange(5.0)})
    table = table.set_column(table.column_names.index(column), column, odd)
    pa.parquet.write_table(table, tmp_path / "pool.parquet")
    with pytest.raises(InputError, match=r"Invalid UTF8.*save the table in UTF-8"):
        list(open_pool(Reading(str(tmp_path / "pool.parquet"))).blocks())
