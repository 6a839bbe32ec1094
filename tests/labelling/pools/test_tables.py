from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from coresift.errors import InputError
from coresift.labelling.pools import Reading, open_pool

HOUSES = """id,area,town,built,sold,price
a1,50,Ulm,1990-01-01,true,100
b2,70.5,Bonn,2000-06-15,false,
c3,,Ulm,2010-01-01,true,300.5
d4,90,,,true,NA
"""


def test_a_table_with_all_kinds_of_columns(files: Any) -> None:
    pool = open_pool(Reading(files.write("houses.csv", HOUSES), target="price"))
    assert (pool.kind, len(pool), pool.ids()) == ("table", 4, ["a1", "b2", "c3", "d4"])
    assert pool.reading.id == "id" and pool.reading.features == ("area", "town", "built", "sold")
    assert (pool.numbers, pool.categories) == (["area", "built"], ["town", "sold"])
    assert pool.targets == ["100", None, "300.5", "NA"] and pool.named_by == "column 'id'"
    assert pool.costs is None and pool.groups is None
    assert pool.describe([2, 0, 2])[:2] == [
        {"area": "", "town": "Ulm", "built": "2010-01-01", "sold": "true"},
        {"area": "50", "town": "Ulm", "built": "1990-01-01", "sold": "true"},
    ]
    rows = files.encode(pool)
    # Two numbers and whether each is missing; three towns with "missing"; sold or not.
    assert rows.shape == (4, 4 + 3 + 2)
    np.testing.assert_allclose(rows[:, :2].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(rows[:, :2].std(0), 1, atol=1e-6)
    assert rows[2, 0] == pytest.approx(np.median(rows[:, 0]))
    assert set(rows[:, 2:].ravel().tolist()) == {0.0, 1.0}
    about = files.about(pool)
    assert about == "2 numbers, missing values filled with medians, 2 categories (5 columns)"
    # What the ledger keeps opens the same pool.
    kept = json.loads(json.dumps(asdict(pool.reading)))
    kept |= {name: tuple(kept[name]) for name in ("features", "skip")}
    assert open_pool(Reading(**kept)).reading == pool.reading


def test_a_parquet_file_reads_as_the_same_table_in_csv(files: Any) -> None:
    text = open_pool(Reading(files.write("houses.csv", HOUSES), target="price"))
    columns = {
        "id": ["a1", "b2", "c3", "d4"],
        "area": pa.array([50, 70.5, None, 90], pa.float32()),
        "town": pa.array(["Ulm", "Bonn", "Ulm", None]).dictionary_encode(),
        "built": pa.array(
            [datetime(1990, 1, 1), datetime(2000, 6, 15), datetime(2010, 1, 1), None], pa.timestamp("ns")
        ),
        "sold": ["true", "false", "true", "true"],
        "price": [100.0, None, 300.5, float("nan")],
    }
    pool = open_pool(Reading(files.parquet(columns, row_group_size=3), target="price"))
    assert pool.ids() == text.ids() and pool.reading.features == text.reading.features
    assert pool.targets == ["100.0", None, "300.5", None]
    assert pool.describe([3, 1])[1] == {
        "area": "70.5", "town": "Bonn", "built": "2000-06-15 00:00:00", "sold": "false"
    }  # fmt: skip
    np.testing.assert_array_equal(files.encode(pool), files.encode(text))


def test_costs_and_groups(files: Any) -> None:
    path = files.write("pool.csv", "key,x,minutes,site\n1,5,2.5,north\n1,6,3,south\n")
    pool = open_pool(Reading(path, features=("x",), cost="minutes", group="site"))
    assert pool.ids() == ["0", "1"] and pool.reading.id is None
    costs = pool.costs
    assert costs is not None and costs.tolist() == [2.5, 3] and pool.groups == ["north", "south"]


BROKEN_TABLES: list[tuple[str | bytes, dict[str, Any], str]] = [
    ("", {}, "is empty; its first line should name the columns"),
    ("a,b\n", {}, "has a header and no rows"),
    ("a;b\n1,5;2,5\n1;2\n", {}, "column 'a' .* numbers such as '1,5': decimals need a point, .* --features"),
    ('a,b\n"1,234.5",2\n', {}, "column 'a' .* numbers such as '1,234.5': decimals need a point"),
    ("1,2\n3,4\n", {}, "has no header: its first line is 1,2"),
    ("a,a\n1,2\n", {}, "more than one column named 'a'"),
    ("a,\n1,2\n", {}, "column 1 of .* has no name"),
    ("a,b\n1,2\n1,2,3\n", {}, "row 3: Expected 2 columns, got 3"),
    (b"PK\x03\x04\xff\xfe\x00\n\n", {}, "does not begin with text in UTF-8"),
    (b"ab\x00c,d\n1,2\n", {}, "does not begin with text"),
    (b"a,b\n1,x\n2,\xe4\n", {}, "column 'b': row 3: .*invalid UTF8"),
    ("id,x\n1,2\n", {"features": ("y",)}, "has no column 'y'; it has 'id', 'x'"),
    ("id,x\n1,2\n", {"text": "y"}, "has no column 'y'"),
    ("id,x\n1,2\n", {"target": "x"}, "has no column to learn from; it has 'id', 'x'"),
    (
        "a,Status?\n1,ok\n",
        {"target": "status"},
        r"has no column 'status'; did you mean 'Status\?'\? if that is a feature, list the columns to "
        "learn from with --features",
    ),
    ("id,helth state\n1,ok\n", {"target": "health_state"}, "did you mean 'helth state'"),
    ("id,x\n1,2\n", {"target": "x", "features": ("x",)}, "column 'x' is the target"),
    ("k,x\na,2\na,3\n", {"id": "k"}, "column 'k' .* holds 'a' in row 2 and row 3; correct it"),
    ("k,x\na,2\n ,3\n", {"id": "k"}, "column 'k' .* is empty in row 3; correct it"),
    (
        "id,x\na,2\n7,3\n7,3\n",
        {},
        "column 'id' of .* cannot be used as ids, because it holds '7' in row 3 and row 4; "
        "name another column with --id, or rename this one to have items named by their row numbers",
    ),
    ("id,x\na,2\n ,3\n", {"target": "y"}, "column 'id' .* because it is empty in row 3; name another column"),
    ("x,c\n1,2\n1,0\n", {"cost": "c"}, "holds '0' in row 3, column 'c'; a cost is a number above zero"),
    ("x,c\n1,free\n", {"cost": "c"}, "holds 'free' in row 2, column 'c'"),
    ("x,g\n1,2\n1,\n", {"group": "g"}, "holds nothing in row 3, column 'g'"),
]


@pytest.mark.parametrize(("content", "options", "message"), BROKEN_TABLES)
def test_broken_tables_are_refused(
    files: Any, content: str | bytes, options: dict[str, Any], message: str
) -> None:
    path = files.write("pool.csv", content)
    with pytest.raises(InputError, match=message) as caught:
        open_pool(Reading(path, **options))
    assert "\n" not in str(caught.value) and ("pool.csv" in str(caught.value))
