from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from coresift.errors import InputError
from coresift.labelling.pools import Reading, open_pool


def test_an_id_with_another_part_names_no_item(files: Any) -> None:
    path = files.write("pool.csv", "id,key,x\n1,a,5\n1,b,6\n")
    for options in ({"group": "id"}, {"target": "id"}, {"features": ("id", "x")}):
        assert open_pool(Reading(path, **options)).ids() == ["0", "1"]
    pool = open_pool(Reading(path, id="key"))
    assert pool.ids() == ["a", "b"] and pool.reading.features == ("x",)


@pytest.mark.parametrize("name", ["ID", "Id", " id", "I D"])
def test_a_column_that_is_nearly_the_id_is_asked_about(files: Any, name: str) -> None:
    path = files.write("pool.csv", f"{name},x,price\n5,1,\n6,2,\n")
    with pytest.raises(
        InputError, match=f"has no column 'id'; did you mean '{name}'[?] say --id '?{name}'?, or"
    ):
        open_pool(Reading(path, target="price"))
    assert open_pool(Reading(path, id=name)).ids() == ["5", "6"]
    listed = open_pool(Reading(path, target="price", features=("x",)))
    assert listed.ids() == ["0", "1"] and listed.named_by == "their row number, from 0"
    # One that has another part is no id, and neither is one that only looks like it.
    assert open_pool(Reading(path, target=name, features=("x",))).ids() == ["0", "1"]
    open_pool(Reading(files.write("other.csv", "idx,aid,x\n5,1,1\n6,2,2\n")))


@pytest.mark.parametrize("name", ["Sample ID", "sample_id", "PassengerId", "uuid"])
def test_a_column_that_seems_to_name_items_is_asked_about(files: Any, name: str) -> None:
    path = files.write("pool.csv", f"{name},x\nS5,1\nS6,2\n")
    with pytest.raises(InputError, match=f"did you mean '{name}'[?] say --id '?{name}'?, or"):
        open_pool(Reading(path, target="price"))
    # One that comes twice names something else, such as customers.
    open_pool(Reading(files.write("other.csv", f"{name},x\nS5,1\nS5,2\n"), target="price"))


def test_numbers_with_commas_may_be_categories_if_listed(files: Any) -> None:
    path = files.write("pool.csv", "id;codes\na;1,2\nb;3\n")
    with pytest.raises(InputError, match="where one like this is a category"):
        open_pool(Reading(path))
    assert open_pool(Reading(path, features=("codes",))).categories == ["codes"]


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ("a,status?", {"target": "status", "features": ("a", "status?")}),  # somebody means it
        ("score_2023,score_2022", {"target": "score_2024"}),
        ("male,age", {"target": "female"}),
        ("status?,a", {"target": "status", "text": "status?"}),
        ("status?,a", {"target": "status", "group": "status?"}),
    ],
)
def test_targets_to_come_may_resemble_columns(files: Any, columns: str, options: dict[str, Any]) -> None:
    pool = open_pool(Reading(files.write("pool.csv", f"{columns}\nx,2\ny,3\n"), **options))
    assert pool.targets is None
    open_pool(pool.reading)  # as a project does later


@pytest.mark.parametrize(
    ("listed", "features"),
    [
        ("DBH (cm),Höhe, m", ["DBH (cm)", "Höhe, m"]),
        (" Höhe, m , DBH (cm),", ["Höhe, m", "DBH (cm)"]),
        ("m,m,Höhe, m", ["m", "Höhe, m"]),
        (" spaced ", [" spaced "]),
    ],
)
def test_columns_with_commas_in_their_names(tmp_path: Path, listed: str, features: list[str]) -> None:
    names = ["m", "DBH (cm)", "Höhe, m", " spaced "]
    pa.parquet.write_table(pa.table({name: [1.0, 2.0] for name in names}), tmp_path / "pool.parquet")
    pool = open_pool(Reading(str(tmp_path / "pool.parquet"), features=(listed,)))
    assert list(pool.reading.features) == features
    assert open_pool(pool.reading).reading == pool.reading
    with pytest.raises(
        InputError, match=r"no column 'Höhe'; it has 'm', 'DBH \(cm\)', 'Höhe, m', ' spaced '"
    ):
        open_pool(Reading(str(tmp_path / "pool.parquet"), features=("m,Höhe,DBH (cm)",)))
