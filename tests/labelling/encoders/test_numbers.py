from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from coresift.labelling.pools import Reading, open_pool


def test_numbers_of_two_values_become_0_and_1(files: Any) -> None:
    columns = {"rare": [5.0] + [2.0] * 999, "usual": np.arange(1000.0)}
    rows = files.encode(open_pool(Reading(files.parquet(columns), target="price")))
    assert rows[:2, 0].tolist() == [1.0, 0.0] and rows[:, 1].std() == pytest.approx(1)


def test_numbers_that_differ_by_rounding_are_the_same(files: Any) -> None:
    milliseconds = np.array([0, 1, 5, 9])
    columns = {
        "sum": [0.1 + 0.2, 0.3, 0.3, None],
        "same": [0.1 + 0.2, 0.3, 0.3, 0.3],
        "time": pa.array(1_750_000_000_000 + milliseconds, pa.timestamp("ms")),
    }
    pool = open_pool(Reading(files.parquet(columns), target="price"))
    rows = files.encode(pool)
    # The times, and whether "sum" is missing.
    expected = (milliseconds - milliseconds.mean()) / milliseconds.std()
    np.testing.assert_allclose(rows[:, 0], expected, atol=0.01)
    assert rows[:, 1:].tolist() == [[0], [0], [0], [1]]
    assert "'same': a single value" in files.about(pool)
