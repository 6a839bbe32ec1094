from __future__ import annotations

from typing import Any

from coresift.labelling.pools import Reading, open_pool


def test_images(files: Any) -> None:
    folder = files.images()
    (folder / "notes.txt").write_text("no image")
    (folder / ".hidden.png").write_text("no image")
    pool = open_pool(Reading(str(folder), target="animal"))
    assert (pool.kind, len(pool)) == ("images", 12)
    assert pool.ids() == sorted(pool.ids()) and pool.ids()[0] == "0.PNG" and pool.ids()[-1] == "more/9.jpg"
    assert pool.describe([11]) == [{"image": str(folder / "more" / "9.jpg")}]
    # Of twelve about their mean, eleven are enough to tell the twelfth.
    assert files.encode(pool).shape == (12, 11)
