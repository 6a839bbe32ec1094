from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coresift.errors import InputError
from coresift.labelling.encoders import write_features
from coresift.labelling.pools import Block, ItemPool, Reading, open_pool
from coresift.labelling.pools.csv_file import CsvFile
from coresift.labelling.pools.tables import TablePool


def many_rows() -> str:
    generator = np.random.default_rng(1)
    lines = [
        f"{i},{generator.normal() if i % 7 else ''},{'abc'[i % 3]},name {i},{generator.gamma(0.1)},5"
        for i in range(120)
    ]
    return "\n".join(["key,x,c,person,tail,same", *lines, ""])


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_blocks_of_any_size_give_the_same_features(files: Any, size: int) -> None:
    path = files.write("pool.csv", many_rows())
    whole = files.encode(open_pool(Reading(path, id="key")))
    described = open_pool(Reading(path, id="key")).describe([119, 3, 60])
    pool = TablePool(Reading(path, id="key"), CsvFile(Path(path), block=size))
    np.testing.assert_array_equal(files.encode(pool), whole)
    assert pool.describe([119, 3, 60]) == described and described[0]["person"] == "name 119"
    about = files.about(pool)
    assert "'same': a single value" in about and "'person': text, with another value in most rows" in about
    assert abs(whole).max() <= 10


def test_encoders_fitted_to_a_sample_are_nearly_those_of_all(files: Any) -> None:
    pool = open_pool(Reading(files.write("pool.csv", many_rows()), id="key", features=("x", "c")))
    whole = files.encode(pool)
    sampled = files.encode(pool, sample_rows=60)
    assert sampled.shape == whole.shape and not np.array_equal(sampled, whole)
    np.testing.assert_allclose(sampled, whole, atol=0.3)
    np.testing.assert_array_equal(sampled, files.encode(pool, sample_rows=60))


def test_a_run_that_fails_leaves_no_half_file(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files.write("pool.csv", many_rows())
    pool = TablePool(Reading(path), CsvFile(Path(path), block=30))
    target = tmp_path / "out" / "features.npy"
    target.parent.mkdir()
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
    files: Any, tmp_path: Path, content: str, options: dict[str, Any], message: str
) -> None:
    pool = open_pool(Reading(files.write("pool.csv", content), **options))
    with pytest.raises(InputError, match=message):
        write_features(pool, tmp_path / "features.npy")
    assert not (tmp_path / "features.npy").exists()


def test_arrays_have_no_texts(tmp_path: Path) -> None:
    np.save(tmp_path / "good.npy", np.ones((3, 2)))
    with pytest.raises(InputError, match="holds no texts or images"):
        write_features(open_pool(Reading(str(tmp_path / "good.npy"))), tmp_path / "f.npy", embedding="minilm")
