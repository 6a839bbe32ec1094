from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coresift.errors import InputError
from coresift.labelling.pools import Reading, open_pool


def test_arrays(files: Any, tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(30, 4, 6)) * 3 + 1
    array[:, 0, 0], array[3, 1, 1] = 7, np.nan
    np.save(tmp_path / "pool.npy", array)
    pool = open_pool(Reading(str(tmp_path / "pool.npy"), target="price"))
    assert (pool.kind, len(pool), pool.ids()[-1], pool.targets) == ("array", 30, "29", None)
    assert pool.named_by == "their row number, from 0"
    shown = pool.describe([5])[0]
    assert list(shown) == [str(i) for i in range(20)] and float(shown["19"]) == array[5].ravel()[19]
    assert pool.describe([]) == [] and pool.take(np.array([], dtype=int)).numbers.shape == (0, 24)
    rows = files.encode(pool)
    assert rows.shape == (
        30,
        24,
    )  # one column is the same in all rows, and one has a column for what is missing
    np.testing.assert_allclose(rows[:, :-1].std(0), 1, rtol=1e-5)
    assert rows[:, -1].tolist() == [float(row == 3) for row in range(30)]


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
