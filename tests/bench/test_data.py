from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression

from coresift.bench.data import TABLES, Table, checksum, generated_year, load_energy, load_table
from coresift.bench.data.readers import read_year
from coresift.errors import InputError

FOLDER = Path(
    os.environ.get("CORESIFT_DATA") or Path(__file__).parents[3].joinpath("shared", "data", "regression")
)
# The first line of the official file.
YEAR_LINE = """2001,49.94357,21.47114,73.07750,8.74861,-17.40628,-13.09905,-25.01202,-12.23257,7.83089,
-2.46783,3.32136,-2.31521,10.20556,611.10913,951.08960,698.11428,408.98485,383.70912,326.51512,238.11327,251.42414,
187.17351,100.42652,179.19498,-8.41558,-317.87038,95.86266,48.10259,-95.66303,-18.06215,1.96984,34.42438,
11.72670,1.36790,7.79444,-0.36994,-133.67852,-83.26165,-37.29765,73.04667,-37.36684,-3.13853,-24.21531,
-13.23066,15.93809,-18.60478,82.15479,240.57980,-10.29407,31.58431,-25.38187,-3.90772,13.29258,41.55060,
-7.26272,-21.00863,105.50848,64.29856,26.08481,-44.59110,-8.30657,7.93706,-10.73660,-95.44766,-82.03307,
-35.59194,4.69525,70.95626,28.09139,6.02015,-37.13767,-41.12450,-8.40816,7.19877,-8.60176,-5.90857,-12.32437,
14.68734,-54.32125,40.14786,13.01620,-54.40548,58.99367,15.37344,1.11144,-23.08793,68.40795,-1.82223,
-27.46348,2.26327""".replace("\n", "")


def stored(name: str) -> Table:
    """The table from the data folder; without one, the test is skipped."""
    if not (FOLDER / f"{name}.npz").exists() and name != "energy":
        pytest.skip(f"needs {name}.npz in a data folder; name one with CORESIFT_DATA")
    return load_table(name, FOLDER)


def assert_same(table: Table, other: Table) -> None:
    assert (table.name, table.target) == (other.name, other.target)
    assert table.x.dtype == other.x.dtype and table.y.dtype == np.float64
    np.testing.assert_array_equal(table.x, other.x)
    np.testing.assert_array_equal(table.y, other.y)


@pytest.mark.parametrize(
    ("name", "shape", "mean"),
    [
        ("yacht", (308, 6), 10.495),
        ("boston", (506, 13), 22.533),
        ("energy", (768, 8), 22.307),
        ("power", (9568, 4), 454.365),
        ("protein", (45730, 9), 7.749),
    ],
)
def test_published_rows_and_means(name: str, shape: tuple[int, int], mean: float) -> None:
    table = stored(name)
    assert table.x.shape == shape and table.x.dtype == np.float64
    assert table.y.mean() == pytest.approx(mean, abs=5e-4)


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("yacht", None),
        ("boston", None),
        ("power", "AT,V,AP,RH,PE"),
        ("protein", "RMSD,F1,F2,F3,F4,F5,F6,F7,F8,F9"),
    ],
)
def test_official_text_gives_the_same_table(name: str, header: str | None, tmp_path: Path) -> None:
    table = stored(name)
    columns = [table.y, *table.x.T] if name == "protein" else [*table.x.T, table.y]
    # As the official yacht file, the text ends in a blank line.
    lines = [(" " if header is None else ",").join(f"{v:.9g}" for v in row) for row in np.stack(columns, 1)]
    text = "\n".join([*([header] if header else []), *lines, "", ""])
    (tmp_path / TABLES[name].file).write_text(text, encoding="utf-8")
    assert_same(load_table(name, tmp_path), table)


def test_energy_is_shipped_and_the_same_in_every_file(tmp_path: Path) -> None:
    shipped = load_table("energy", tmp_path)
    np.testing.assert_allclose(shipped.x, load_energy()[0], rtol=1e-7)
    assert_same(stored("energy"), shipped)
    np.savez(tmp_path / "energy.npz", x=load_energy()[0], y=load_energy()[1])
    assert_same(load_table("energy", tmp_path), shipped)


def test_folder_is_the_argument_or_the_variable_or_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CORESIFT_DATA", raising=False)
    with pytest.raises(
        InputError, match=r"'yacht' is not in the folder data: there is no yacht\.npz and no yac"
    ):
        load_table("yacht")
    monkeypatch.setenv("CORESIFT_DATA", "elsewhere")
    with pytest.raises(InputError, match=r"the folder elsewhere.*Get it from https://archive\.ics\.uci\.edu"):
        load_table("power")
    with pytest.raises(InputError, match="the folder here"):
        load_table("power", "here")


def test_other_numbers_are_not_the_published_table(tmp_path: Path) -> None:
    x, y = load_energy()
    np.savez(tmp_path / "energy.npz", x=x[::-1], y=y[::-1])
    with pytest.raises(InputError, match=r"checksum .*, expected 2351cd5c1123; .* order of its rows differs"):
        load_table("energy", tmp_path)
    np.savez(tmp_path / "energy.npz", x=x[1:], y=y[1:])
    with pytest.raises(InputError, match=r"shape \(767, 8\), expected \(768, 8\)"):
        load_table("energy", tmp_path)
    # As the message says, the path itself is taken as it stands.
    np.testing.assert_array_equal(load_table(tmp_path / "energy.npz").x, x[1:])


def test_checksum_sees_numbers_not_files() -> None:
    x, y = load_energy()
    same = checksum(np.asfortranarray(x.astype(np.float32)), y)
    assert same == checksum(x, y) == TABLES["energy"].checksum
    assert checksum(x.reshape(384, 16), y) != same


def test_year_reads_the_real_part(tmp_path: Path) -> None:
    part = FOLDER / "year_part.npz"
    if not part.exists():
        pytest.skip("needs year_part.npz in a data folder; name one with CORESIFT_DATA")
    with np.load(part) as arrays:
        x, y = arrays["x"], arrays["y"]
    path = tmp_path / "YearPredictionMSD.txt"
    np.savetxt(path, np.column_stack([y, x]), delimiter=",", fmt=["%d", *["%.5f"] * 90])
    table = read_year(path)
    assert table.x.dtype == np.float32
    np.testing.assert_allclose(table.x, x, rtol=1e-7, atol=1e-5)
    np.testing.assert_array_equal(table.y, y)
    with pytest.raises(InputError, match=r"shape \(1176, 90\), expected \(515345, 90\)"):
        load_table("year", tmp_path)


@pytest.fixture
def short_year(monkeypatch: pytest.MonkeyPatch) -> int:
    """Expects fewer rows of the year table, which has half a gigabyte; but more than are read at a time."""
    rows = 10_000
    monkeypatch.setitem(TABLES, "year", replace(TABLES["year"], shape=(rows, 90)))
    return rows


def test_year_is_read_as_it_was_written(tmp_path: Path, short_year: int) -> None:
    path = tmp_path / "YearPredictionMSD.txt"
    made = generated_year(short_year)
    columns = pa.table({"year": made.y.astype(int)} | {f"f{i}": made.x[:, i] for i in range(90)})
    with path.open("wb") as file:
        file.write(f"{YEAR_LINE}\n".encode())
        pa.csv.write_csv(columns[1:], file, pa.csv.WriteOptions(include_header=False))
    assert path.stat().st_size > 4 * pa.csv.ReadOptions().block_size
    table = load_table("year", tmp_path)
    assert table.x.dtype == np.float32 and table.x.shape == (short_year, 90)
    np.testing.assert_array_equal(table.x[1:], made.x[1:])
    np.testing.assert_array_equal(table.y[1:], made.y[1:])


def test_year_is_known_by_its_range_and_first_row(tmp_path: Path, short_year: int) -> None:
    path = tmp_path / "year.npz"
    for year, message in ((1900, "targets lie in 1900 to 2001"), (2001, "checksum over 1 rows")):
        years = np.full(short_year, 2001)
        years[-1] = year
        np.savez_compressed(path, x=np.zeros((short_year, 90), np.float32), y=years)
        with pytest.raises(InputError, match=message):
            load_table("year", tmp_path)


def test_generated_year_can_be_learned_but_not_by_a_line() -> None:
    table = generated_year(rows=30_000)
    assert table.x.shape == (30_000, 90) and np.isfinite(table.x).all()
    assert np.median(table.y) > 2000 > table.y.mean() and np.array_equal(table.y, table.y.round())
    train, test = slice(20_000), slice(20_000, None)
    linear, boosted = (
        model.fit(table.x[train], table.y[train]).score(table.x[test], table.y[test])
        for model in (LinearRegression(), HistGradientBoostingRegressor())
    )
    assert linear + 0.1 < boosted and 0.2 < boosted < 0.4
    assert np.array_equal(generated_year(rows=10, seed=3).x, generated_year(rows=10, seed=3).x)


@pytest.mark.parametrize("kind", [".csv", ".parquet"])
def test_own_file(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"mine{kind}", {"a": [1, 2, 3], "b": [True, False, True], "c": [0.5, 1.5, 2.5]})
    table = load_table(str(path))
    assert (table.name, table.target) == ("mine", "c")
    assert table.x.tolist() == [[1, 1], [2, 0], [3, 1]] and table.x.dtype == np.float64
    assert table.y.tolist() == [0.5, 1.5, 2.5]
    table = load_table(path, target="a")
    assert table.x.tolist() == [[1, 0.5], [0, 1.5], [1, 2.5]] and table.y.tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", [".csv", ".parquet", ".npz"])
def test_words_to_predict_are_classes(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"mine{kind}"
    if kind == ".npz":
        np.savez(path, x=np.arange(3.0)[:, None], y=np.array(["oak", "ash", "oak"]))
    else:
        write(path, {"a": [0.0, 1.0, 2.0], "tree": ["oak", "ash", "oak"]})
    table = load_table(path)
    assert table.classes == ("ash", "oak") and table.y.tolist() == [1, 0, 1]
    assert table.x.tolist() == [[0], [1], [2]]


@pytest.mark.parametrize("kind", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1, 2], "tree": ["oak", None]}, r"mine.* has no 'tree' in row 1; drop such rows"),
        (
            {"town": ["Bath", "York"], "y": [1, 2]},
            "column 'town' of .* holds string, .* encode it or drop it",
        ),
        ({"a": [1, 2], "b": [3, None], "y": [1, 2]}, "nan in row 1, column 'b'; drop or impute"),
        ({"a": [1, 2], "y": [None, 2.0]}, "nan in row 0, column 'y'"),
        ({"a": [None, None], "y": [1, 2]}, "nan in row 0, column 'a'"),
        ({"a": [1.0, float("inf")], "y": [1, 2]}, "inf in row 1, column 'a'"),
        ({"y": [1, 2]}, "2 rows of 0 features"),
        ({"1.5": [1, 2], "2.5": [1, 2]}, r"no header: its first line is 1\.5,2\.5"),
    ],
)
def test_own_file_with_a_bad_column(kind: str, columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        load_table(write(tmp_path / f"mine{kind}", columns))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,a,b,y\n1,2,3,4,5\n", "more than one column named 'a', 'b'; give each a name of its own"),
        ("1.5e-3,2.0,10\n2.5e-3,3.0,20\n", r"no header: its first line is 1\.5e-3,2\.0,10; put names there"),
        ("1.5e-3,nan,,10\n2.5e-3,3.0,1,20\n", r"no header: its first line is 1\.5e-3,nan,,10"),
        ("?,2.0,10\n1.0,3.0,20\n", r"no header: its first line is \?,2\.0,10"),
        (",a,y\n0,1.5,2.5\n1,3.5,4.5\n", r"column 0 of .*mine\.csv has no name; .* index=False"),
        ('"a"," "\n1,2\n', r"column 1 of .*mine\.csv has no name"),
        ("a;b;y\n1;2;3\n", "one column, 'a;b;y': its separator seems to be ';'; .* commas"),
        ("a\tb\ty\n1\t2\t3\n", r"its separator seems to be '\\t'"),
        ("1.5;2.5\n3.5;4.5\n", "its separator seems to be ';'"),
    ],
)
def test_own_csv_with_bad_names(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_table(path)


def test_own_csv_with_some_names_that_are_numbers(tmp_path: Path) -> None:
    table = load_table(write(tmp_path / "mine.csv", {"0": [1, 2], "1e3": [3, 4], "price": [5, 6]}))
    assert table.x.tolist() == [[1, 3], [2, 4]] and table.y.tolist() == [5, 6]


@pytest.mark.parametrize("name", ["__index_level_0__", "house"])
def test_own_parquet_leaves_out_the_index_of_pandas(name: str, tmp_path: Path) -> None:
    # An index need not be numbers. A range is kept as a description, which names no column.
    columns = {"a": [1, 2], "b": [3, 4], name: ["north", "south"], "level": [7, 8]}
    path = write(tmp_path / "mine.parquet", columns, index=[name, "level", {"kind": "range", "name": "a"}])
    table = load_table(path)
    assert table.target == "b" and table.x.tolist() == [[1], [2]] and table.y.tolist() == [3, 4]
    table = load_table(path, target="level")  # asked for by name, it is meant
    assert table.x.tolist() == [[1, 3], [2, 4]] and table.y.tolist() == [7, 8]
    with pytest.raises(InputError, match=r"no columns but an index of pandas; .* reset_index\(\)"):
        load_table(write(path, {name: [1, 2]}, index=[name]))


def test_own_npz(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.arange(6).reshape(3, 2), y=np.arange(3))
    table = load_table(path)
    assert table.x.dtype == table.y.dtype == np.float64 and table.target == "y"
    np.savez(path, x=np.arange(6).reshape(3, 2), y=np.arange(2))
    with pytest.raises(InputError, match=r"y of shape \(2,\)"):
        load_table(path)
    np.savez(path, features=np.ones((2, 2)))
    with pytest.raises(InputError, match="it should hold arrays x and y"):
        load_table(path)


def test_names_and_files_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'protien'; did you mean 'protein'"):
        load_table("protien")
    with pytest.raises(InputError, match=r"there are yacht, boston, .*2dplanes, .*generated-year"):
        load_table(tmp_path / "0.csv")
    with pytest.raises(InputError, match="'energy' has a target of its own"):
        load_table("energy", target="roof_area")
    path = write(tmp_path / "mine.csv", {"a": [1], "y": [2]})
    with pytest.raises(InputError, match="no column 'z'; it has a, y"):
        load_table(path, target="z")
    with pytest.raises(InputError, match=r"its name should end in \.csv, \.parquet or \.npz"):
        load_table(path.rename(tmp_path / "mine.txt"))
    for ending in (".parquet", ".npz"):
        (tmp_path / f"broken{ending}").write_text("no table", encoding="utf-8")
        with pytest.raises(InputError, match="cannot read"):
            load_table(tmp_path / f"broken{ending}")


def write(path: Path, columns: dict[str, Any], index: list[Any] | None = None) -> Path:
    table = pa.table(columns)
    if index is not None:  # as pandas marks it
        table = table.replace_schema_metadata({"pandas": json.dumps({"index_columns": index})})
    if path.suffix == ".csv":
        pa.csv.write_csv(table, path, pa.csv.WriteOptions(quoting_style="needed"))
    else:
        pa.parquet.write_table(table, path)
    return path
