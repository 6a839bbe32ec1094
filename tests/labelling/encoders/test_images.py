from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image
from torch import nn

from coresift.errors import InputError
from coresift.labelling.encoders import write_features
from coresift.labelling.encoders.images import colours_and_edges, decoded
from coresift.labelling.pools import Reading, open_pool


def test_copies_of_images_have_few_dimensions(files: Any) -> None:
    folder = files.images(4)
    for file in sorted(folder.rglob("*.*")):
        for copy in range(5):
            (folder / f"{file.stem}-{copy}{file.suffix}").write_bytes(file.read_bytes())
    rows = files.encode(open_pool(Reading(str(folder))))
    assert rows.shape == (24, 3) and rows.std(0).min() > 0.01


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "I", "I;16", "F"])
def test_images_of_any_mode(tmp_path: Path, mode: str) -> None:
    ramp = np.linspace(0, 255, 64 * 64).reshape(64, 64)
    image = Image.fromarray(ramp.astype(np.uint8))
    if mode in ("I", "I;16"):
        image = Image.fromarray((ramp * 200).astype(np.uint16 if mode == "I;16" else np.int32))
    image = image.convert(mode) if image.mode != mode else image
    image.save(tmp_path / "ramp.tif")
    pixels = decoded([tmp_path / "ramp.tif"], 32)
    assert pixels.shape == (1, 32, 32, 3) and pixels.max() <= 1
    assert pixels[0, 0].mean() < 0.2 and pixels[0, -1].mean() > 0.8


@pytest.mark.parametrize("mode", ["I", "F"])
def test_images_below_zero(tmp_path: Path, mode: str) -> None:
    """Heights below the sea and air in a scan are dark, not bright."""
    ramp = np.linspace(-1000, 1000, 64 * 64).reshape(64, 64)
    Image.fromarray(ramp.astype(np.int32 if mode == "I" else np.float32)).save(tmp_path / "ramp.tif")
    rows = decoded([tmp_path / "ramp.tif"], 32)[0].mean((1, 2))
    assert (np.diff(rows) > 0).all() and rows[0] < 0.05 and rows[-1] > 0.95
    np.testing.assert_allclose(rows[15:17].mean(), 0.5, atol=0.02)


@pytest.mark.parametrize("embedding", [None, f"{__name__}:Averages"])
def test_images_that_cannot_be_read_are_named_together(
    files: Any, tmp_path: Path, embedding: str | None
) -> None:
    folder = files.images(30)
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
    assert len(files.encode(open_pool(Reading(str(folder))), embedding=embedding)) == 17


def test_no_image_starts_another_program(files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow decodes EPS by Ghostscript, and looks at a file's content rather than at its name."""
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    folder = files.images()
    Image.new("RGB", (40, 40), "red").save(folder / "0.PNG", format="EPS")
    with pytest.raises(InputError, match=r"cannot read 1 of the 12 images .*: 0.PNG; ") as caught:
        write_features(open_pool(Reading(str(folder))), tmp_path / "features.npy")
    assert not (tmp_path / "started").exists()
    assert "PNG, JPEG" in str(caught.value)


@pytest.mark.parametrize("embedding", [None, f"{__name__}:Averages"])
def test_bars_move_while_images_are_looked_at(
    files: Any, monkeypatch: pytest.MonkeyPatch, embedding: str | None
) -> None:
    steps: dict[str, list[int]] = {}

    @contextmanager
    def watched(what: str, total: int) -> Iterator[Callable[[int], None]]:
        steps[what] = []
        yield steps[what].append
        assert sum(steps[what]) == total

    pool = open_pool(Reading(str(files.images(40))))
    whole = files.encode(pool, embedding=embedding)
    monkeypatch.setattr("coresift.labelling.encoders.progress_bar", watched)
    monkeypatch.setattr("coresift.labelling.encoders.images.progress_bar", watched)
    monkeypatch.setattr(pool, "block_size", 8)
    np.testing.assert_allclose(files.encode(pool, embedding=embedding), whole, atol=1e-5)
    assert steps == {"looking at a sample of the images": [32, 8], "reading the pool": [8] * 5}


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
        noise = 1e6 + 0.1 * torch.arange(len(images)).to(colours)[:, None]
        return torch.cat([noise, torch.zeros_like(noise), colours], 1)


NOT_A_NETWORK = 3


class Maps(nn.Module):
    input_size = 8

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images


def test_a_network_of_the_users_own(files: Any, tmp_path: Path) -> None:
    pool = open_pool(Reading(str(files.images())))
    rows = files.encode(pool, embedding=f"{__name__}:Averages")
    colours = decoded(pool.take(np.arange(12)).images, 16).mean((1, 2))
    colours -= colours.mean(0)
    np.testing.assert_allclose(rows, colours / colours.std(), rtol=1e-3, atol=1e-3)
    # Features that are the same for all images are left out, and others are not measured by them.
    np.testing.assert_allclose(files.encode(pool, embedding=f"{__name__}:Constants"), rows, atol=1e-5)
    for name, message in (
        ("NOT_A_NETWORK", "gives a int, expected a torch.nn.Module"),
        ("Maps", r"made \(12, 3, 8, 8\) of images \(12, 3, 8, 8\), expected \(12, d\)"),
        ("Nothing", "has no attribute 'Nothing'"),
    ):
        with pytest.raises(InputError, match=message):
            write_features(pool, tmp_path / "other.npy", embedding=f"{__name__}:{name}")
