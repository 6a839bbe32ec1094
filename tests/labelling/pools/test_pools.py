from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coresift.errors import InputError
from coresift.labelling.encoders import write_features
from coresift.labelling.pools import Reading, open_pool


def test_fingerprints_change_with_content(files: Any) -> None:
    path = files.write("houses.csv", "id,area,price\na1,50,100\nb2,70.5,\n")
    before = open_pool(Reading(path)).fingerprint()
    assert open_pool(Reading(path, target="price")).fingerprint() == before
    files.write("houses.csv", "id,area,price\na1,50,100\nb2,70.6,\n")
    assert open_pool(Reading(path)).fingerprint() != before
    folder = files.images(3)
    seen = [open_pool(Reading(str(folder))).fingerprint()]
    (folder / "0.PNG").rename(folder / "00.PNG")
    seen.append(open_pool(Reading(str(folder))).fingerprint())
    with (folder / "2.PNG").open("ab") as file:
        file.write(b"more")
    seen.append(open_pool(Reading(str(folder))).fingerprint())
    assert len(set(seen)) == 3


def test_other_broken_pools_are_refused(files: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "words.npy", np.array([["a"], ["b"]]))
    np.save(tmp_path / "flat.npy", np.ones(3))
    np.save(tmp_path / "good.npy", np.ones((3, 2)))
    (tmp_path / "empty").mkdir()
    nested = files.parquet({"x": [1.0], "points": [[1, 2]]})
    for path, options, message in (
        (tmp_path / "none.csv", {}, "there is no file or folder"),
        (files.write("pool.xlsx", "x"), {}, "should end in .csv, .parquet or .npy"),
        (files.write("bad.parquet", "x,y"), {}, "cannot read .*bad.parquet"),
        (files.write("bad.npy", "x,y"), {}, "cannot read .*bad.npy"),
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
    folder = files.images(3)
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
