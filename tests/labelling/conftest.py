"""What tests of pools and of their features share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from coresift import limits
from coresift.labelling import curves
from coresift.labelling.encoders import write_features
from coresift.labelling.pools import ItemPool


@pytest.fixture(scope="module", autouse=True)
def quick_curves() -> Iterator[None]:
    """Learning curves of models that are trained for a few epochs, without further repeats: many batches have
    one.
    """
    quick_model = curves.quick_model
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "quick_model", lambda *data: quick_model(*data).set_params(epochs=3))
        patch.setattr(limits, "MOST_CURVE_REPEATS", limits.CURVE_REPEATS)
        yield


class PoolFiles:
    """Writes the files of pools to a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, content: str | bytes) -> str:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def parquet(self, columns: dict[str, Any], **options: Any) -> str:
        path = self.folder / "pool.parquet"
        pyarrow.parquet.write_table(pa.table(columns), path, **options)
        return str(path)

    def images(self, count: int = 12) -> Path:
        photos = self.folder / "photos"
        (photos / "more").mkdir(parents=True)
        generator = np.random.default_rng(0)
        for i in range(count):
            pixels = generator.integers(0, 255, (20 + i, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(photos / (f"more/{i}.jpg" if i % 2 else f"{i}.PNG"))
        return photos

    def encode(self, pool: ItemPool, **options: Any) -> npt.NDArray[np.float32]:
        """The features, checked for what holds of all of them."""
        self.about(pool, **options)
        rows: npt.NDArray[np.float32] = np.load(self.folder / "features.npy")
        assert rows.ndim == 2 and len(rows) == len(pool) and rows.dtype == np.float32
        assert np.isfinite(rows).all()
        return rows

    def about(self, pool: ItemPool, **options: Any) -> str:
        return write_features(pool, self.folder / "features.npy", **options)


@pytest.fixture
def files(tmp_path: Path) -> PoolFiles:
    return PoolFiles(tmp_path)
