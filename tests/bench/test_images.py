from __future__ import annotations

import gzip
import os
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from coresift.bench.data import IMAGES, Images, are_images, load_images, write_sheets
from coresift.errors import InputError

FOLDER = Path(os.environ.get("CORESIFT_DATA") or Path(__file__).parents[3].joinpath("shared", "data"))
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def made(name: str, monkeypatch: pytest.MonkeyPatch, count: int = 60) -> Images:
    """Small images in place of a published set, which the registry then describes."""
    generator = np.random.default_rng(0)
    source = IMAGES[name]
    shape = (source.shape[0], 4, 6)  # not square, so that no two axes can be mistaken for each other
    x, test_x = (generator.integers(256, size=(n, *shape), dtype=np.uint8) for n in (count, 20))
    y, test_y = (generator.permutation(np.arange(n) % 10) for n in (count, 20))
    small = replace(
        source,
        shape=shape,
        counts=tuple(np.bincount(y).tolist()),
        test_counts=tuple(np.bincount(test_y).tolist()),
        means=tuple((x / 255).mean((0, 2, 3)).tolist()),
    )
    monkeypatch.setitem(IMAGES, name, small)
    return Images(name, x, y, test_x, test_y, source.class_names)


def assert_same(images: Images, other: Images) -> None:
    assert (images.name, images.class_names) == (other.name, other.class_names)
    for pixels, labels in ((images.x, images.y), (images.test_x, images.test_y)):
        assert pixels.dtype == np.uint8 and pixels.flags.c_contiguous and labels.dtype == np.int64
        torch.from_numpy(pixels)  # which warns of an array that cannot be written to
    for field in ("x", "y", "test_x", "test_y"):
        np.testing.assert_array_equal(getattr(images, field), getattr(other, field))


def batches(images: Images) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images (n, pixels) and labels (n,) in five batches of training and one of testing."""
    x, test_x = (array.reshape(len(array), -1) for array in (images.x, images.test_x))
    train = zip(np.split(x, 5), np.split(images.y, 5), strict=True)
    return [*train, (test_x, images.test_y)]


def write_records(images: Images, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (x, y) in zip(BATCHES, batches(images), strict=True):
        (folder / f"{name}.bin").write_bytes(np.column_stack([y, x]).astype(np.uint8).tobytes())


def write_pickles(images: Images, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (x, y) in zip(BATCHES, batches(images), strict=True):
        batch = {b"batch_label": b"a batch", b"data": x, b"labels": y.tolist(), b"filenames": [b"a.png"]}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


def write_old_pickles(images: Images, folder: Path) -> None:
    """By hand, as Python 2 wrote the official files: strings of bytes and numpy's old module."""
    folder.mkdir(parents=True, exist_ok=True)

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(value)) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    for name, (x, y) in zip(BATCHES, batches(images), strict=True):
        reconstructed = (
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
        )
        dtype = (
            b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNNK\x00K\x00K\x00tb"
        )
        sizes = b"(" + number(x.shape[0]) + number(x.shape[1]) + b"t"
        data = reconstructed + b"(K\x01" + sizes + dtype + b"\x89" + text(x.tobytes()) + b"tb"
        labels = b"](" + b"".join(map(number, y)) + b"e"
        (folder / name).write_bytes(b"\x80\x02}(" + text(b"data") + data + text(b"labels") + labels + b"u.")


def write_idx(images: Images, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, x, y in (("train", images.x, images.y), ("t10k", images.test_x, images.test_y)):
        for kind, array in (("images-idx3", x[:, 0]), ("labels-idx1", y.astype(np.uint8))):
            header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (folder / f"{split}-{kind}-ubyte").write_bytes(header + array.tobytes())


def write_packed_idx(images: Images, folder: Path) -> None:
    write_idx(images, folder)
    for path in list(folder.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def write_mat(images: Images, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, x, y in (("train", images.x, images.y), ("test", images.test_x, images.test_y)):
        labels = np.where(y == 0, 10, y).astype(np.uint8)[:, None]
        held = {"X": x.transpose(2, 3, 1, 0), "y": labels}
        savemat(folder / f"{split}_32x32.mat", held, do_compression=True)


def write_npz(images: Images, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {field: np.asfortranarray(getattr(images, field)) for field in ("x", "y", "test_x", "test_y")}
    np.savez(folder / f"{images.name}.npz", **arrays)


@pytest.mark.parametrize(
    ("name", "write", "place"),
    [
        *((name, write_sheets, name) for name in IMAGES),
        *((name, write_npz, "") for name in IMAGES),
        ("cifar10", write_records, "cifar10"),
        ("cifar10", write_records, "cifar-10-batches-bin"),
        ("cifar10", write_pickles, ""),
        ("cifar10", write_pickles, "images/cifar10/cifar-10-batches-py"),
        ("cifar10", write_old_pickles, "cifar10"),
        ("fashion_mnist", write_packed_idx, "fashion_mnist"),
        ("fashion_mnist", write_idx, "images/fashion_mnist"),
        ("svhn", write_mat, "svhn"),
    ],
)
def test_every_form_gives_the_same_arrays(
    name: str,
    write: Callable[[Images, Path], None],
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = made(name, monkeypatch)
    write(images, tmp_path / place)
    assert_same(load_images(name, tmp_path), images)
    monkeypatch.setenv("CORESIFT_DATA", str(tmp_path))
    assert_same(load_images(name), images)


@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist"])
def test_sheets_of_more_than_5000_images(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = made(name, monkeypatch, count=5003)
    write_sheets(images, tmp_path)
    assert_same(load_images(name, tmp_path), images)
    assert {path.name for path in tmp_path.glob("*.webp")} == {
        "train_00.webp",
        "train_01.webp",
        "test_00.webp",
    }
    with Image.open(tmp_path / "train_00.webp") as image:
        sheet = np.asarray(image)
    assert sheet.shape == (500 * 4, 10 * 6, 3)
    # Filled column by column: the image 501 is the second of the second column.
    channels = np.broadcast_to(images.x[501], (3, 4, 6))
    np.testing.assert_array_equal(sheet[4:8, 6:12], channels.transpose(1, 2, 0))
    with Image.open(tmp_path / "train_01.webp") as image:
        assert not np.asarray(image)[3 * 4 :].any()


def test_sheets_come_first_and_a_set_of_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = made("cifar10", monkeypatch)
    write_sheets(images, tmp_path / "cifar10")
    (tmp_path / "cifar10" / "cifar10.npz").write_text("no arrays", encoding="utf-8")
    (tmp_path / "cifar10.npz").write_text("no arrays", encoding="utf-8")
    assert_same(load_images("cifar10", tmp_path), images)


def test_sheets_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = made("cifar10", monkeypatch)
    with pytest.raises(
        InputError, match=r"33 high and 6 wide, expected at most 32 and 1638 .*; use numpy\.savez"
    ):
        write_sheets(replace(images, x=np.zeros((2, 3, 33, 6), np.uint8)), tmp_path)
    with pytest.raises(InputError, match="3 channels of float64, expected 1 or 3 of uint8"):
        write_sheets(replace(images, test_x=images.test_x / 255), tmp_path)
    with pytest.raises(InputError, match="4 channels of uint8"):
        write_sheets(replace(images, x=np.zeros((2, 4, 4, 4), np.uint8)), tmp_path)
    assert not list(tmp_path.iterdir())


def test_sheets_need_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = made("cifar10", monkeypatch)
    write_sheets(images, tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match="need Pillow: pip install pillow"):
        load_images("cifar10", tmp_path)
    with pytest.raises(InputError, match="need Pillow: pip install pillow"):
        write_sheets(images, tmp_path)


class Malicious:
    """Makes a folder when it is unpickled as it asks to be."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_does_not_run(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = made("cifar10", monkeypatch)
    write_pickles(images, tmp_path)
    mark = tmp_path / "mark"
    attack = pickle.dumps({b"data": Malicious(mark), b"labels": []}, protocol)
    (tmp_path / "data_batch_3").write_bytes(attack)
    with pytest.raises(InputError, match=rf"data_batch_3: .*it calls for {os.name}\.mkdir, and was not run"):
        load_images("cifar10", tmp_path)
    assert not mark.exists()
    pickle.loads(attack)  # the attack is one
    assert mark.exists()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (b"no pickle", "cannot read .*test_batch: UnpicklingError: .*; it should hold a pickled batch"),
        (b"", "cannot read .*test_batch: EOFError"),
        (pickle.dumps([1, 2]), "cannot read .*test_batch: AttributeError"),
        (pickle.dumps({"labels": []}), "cannot read .*test_batch: KeyError: 'data'"),
        (pickle.dumps({"data": np.zeros((20, 72)), "labels": []}, 2), "holds pixels of type f8, expected u1"),
        (pickle.dumps(print), r"it calls for builtins\.print, and was not run"),
    ],
)
def test_pickles_of_something_else(
    batch: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pickles(made("cifar10", monkeypatch), tmp_path)
    (tmp_path / "test_batch").write_bytes(batch)
    with pytest.raises(InputError, match=message):
        load_images("cifar10", tmp_path)


def test_pickled_arrays_may_lie_by_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = made("cifar10", monkeypatch)
    write_pickles(images, tmp_path)
    x = np.asfortranarray(images.test_x.reshape(20, -1))
    (tmp_path / "test_batch").write_bytes(pickle.dumps({"data": x, "labels": images.test_y.tolist()}, 2))
    assert_same(load_images("cifar10", tmp_path), images)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize(
    ("name", "write", "file", "message"),
    [
        (
            "cifar10",
            write_records,
            "data_batch_2.bin",
            "869 bytes long, expected a multiple of 73: a label and 72",
        ),
        ("cifar10", write_pickles, "data_batch_2", "cannot read .*data_batch_2"),
        ("cifar10", write_sheets, "train_00.webp", "cannot read .*train_00.webp.*images 0 and on of 60"),
        ("cifar10", write_npz, "cifar10.npz", "cannot read .*arrays x, y, test_x and test_y"),
        ("fashion_mnist", write_idx, "train-labels-idx1-ubyte", r"holds 53 bytes, expected 60 for \(60,\)"),
        ("fashion_mnist", write_packed_idx, "t10k-images-idx3-ubyte.gz", "cannot read .*EOFError"),
        (
            "svhn",
            write_mat,
            "test_32x32.mat",
            r"cannot read .*X of shape \(height, width, channels, N\) and y",
        ),
    ],
)
def test_files_cut_short(
    name: str,
    write: Callable[[Images, Path], None],
    file: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(made(name, monkeypatch), tmp_path)
    cut(tmp_path / file)
    with pytest.raises(InputError, match=message):
        load_images(name, tmp_path)


def test_idx_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(made("fashion_mnist", monkeypatch), tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes((tmp_path / "train-images-idx3-ubyte").read_bytes())
    with pytest.raises(InputError, match="labels-idx1-ubyte starts with 00 00 08 03, expected 00 00 08 01"):
        load_images("fashion_mnist", tmp_path)
    labels.write_bytes(b"\0\0\x08\x01\0")
    with pytest.raises(InputError, match=r"cannot read .*error: unpack"):
        load_images("fashion_mnist", tmp_path)


def test_sheets_of_another_size_or_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = made("cifar10", monkeypatch)
    write_sheets(replace(images, x=images.x[..., :5]), tmp_path)
    with pytest.raises(
        InputError, match="2000 high and 50 wide, expected 2000 and 60: 10 columns of 500 images"
    ):
        load_images("cifar10", tmp_path)
    write_sheets(images, tmp_path)
    np.save(tmp_path / "train_labels.npy", np.zeros(5001, np.uint8))
    with pytest.raises(InputError, match=r"train_01\.webp: FileNotFoundError.*images 5000 and on of 5001"):
        load_images("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"x": np.zeros((59, 3, 4, 6), np.uint8)},
            r"training images have shape \(59, 3, 4, 6\) and type uint8, expected \(60, 3, 4, 6\) and uint8",
        ),
        ({"test_x": np.zeros((20, 3, 4, 6))}, r"test images have shape \(20, 3, 4, 6\) and type float64"),
        ({"y": np.zeros(61, int)}, r"training labels have shape \(61,\) and type int64, expected \(60,\)"),
        ({"test_y": np.zeros(20)}, r"test labels have shape \(20,\) and type float64, .* integers"),
        ({"y": np.arange(60) % 10 + 1}, "training labels lie in 1 to 10, expected 0 to 9"),
        ({"y": np.arange(60) % 10 - 1}, "training labels lie in -1 to 8, expected 0 to 9"),
        ({"test_y": np.arange(20) // 3}, r"test classes have \(3, 3, 3, 3, 3, 3, 2, 0, 0, 0\) images, exp"),
        ({"x": np.full((60, 3, 4, 6), 51, np.uint8)}, r"means 0\.2000, 0\.2000, 0\.2000, expected 0\."),
    ],
)
def test_other_images_are_not_the_published_set(
    change: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_npz(replace(made("cifar10", monkeypatch), **change), tmp_path)
    with pytest.raises(
        InputError, match=f"not hold the published set 'cifar10'.*{message}.*; get it from https"
    ):
        load_images("cifar10", tmp_path)


def test_channels_in_another_order_are_told_by_their_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = made("cifar10", monkeypatch)
    write_records(replace(images, x=images.x[:, ::-1]), tmp_path)
    with pytest.raises(InputError, match="channels have means"):
        load_images("cifar10", tmp_path)


def test_sets_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match=r"no image set or file 'fashion-mnist'; did you mean 'fashion_mnist'\?"
    ):
        load_images("fashion-mnist")
    with pytest.raises(InputError, match="no image set or file 'x'; there are cifar10, fashion_mnist, svhn"):
        load_images("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CORESIFT_DATA", raising=False)
    with pytest.raises(
        InputError,
        match=r"'svhn' is not in the folder data: .*train_00\.webp.* or train_32x32\.mat, test_32x32\.mat;"
        r" or svhn\.npz\. Get it from http://ufldl\.stanford\.edu.*licence: non-commercial use only;",
    ):
        load_images("svhn")
    write_records(made("cifar10", monkeypatch), tmp_path / "cifar10")
    (tmp_path / "cifar10" / "test_batch.bin").unlink()
    with pytest.raises(InputError, match=r"data_batch_5\.bin but no test_batch\.bin\. Get it from"):
        load_images("cifar10", tmp_path)


@pytest.mark.parametrize("name", IMAGES)
def test_registry_adds_up(name: str) -> None:
    source = IMAGES[name]
    assert len(source.class_names) == len(source.counts) == len(source.test_counts) == 10
    assert len(source.means) == source.shape[0]
    sizes = {"cifar10": (50000, 10000), "fashion_mnist": (60000, 10000), "svhn": (73257, 26032)}
    assert (sum(source.counts), sum(source.test_counts)) == sizes[name]


@pytest.mark.parametrize(
    ("name", "first_labels"),
    [
        ("cifar10", ["frog", "truck", "truck", "deer"]),
        ("fashion_mnist", ["Ankle boot", "T-shirt/top", "T-shirt/top", "Dress"]),
        ("svhn", ["1", "9", "2", "3"]),
    ],
)
def test_published_sets(name: str, first_labels: list[str]) -> None:
    try:
        images = load_images(name, FOLDER)
    except InputError as error:
        if "is not in the folder" in str(error):
            pytest.skip(f"needs {name} in a data folder; name one with CORESIFT_DATA")
        raise
    source = IMAGES[name]
    assert images.x.shape == (sum(source.counts), *source.shape)
    assert images.test_x.shape == (sum(source.test_counts), *source.shape)
    assert [images.class_names[label] for label in images.y[:4]] == first_labels


def own_images(**change: np.ndarray) -> dict[str, np.ndarray]:
    """Six images of one's own and two for testing."""
    rng = np.random.default_rng(0)
    return {
        "x": rng.integers(0, 256, (6, 1, 5, 4), dtype=np.uint8),
        "y": np.array(["cat", "dog", "dog", "eel", "cat", "cat"]),
        "test_x": rng.integers(0, 256, (2, 1, 5, 4), dtype=np.uint8),
        "test_y": np.array(["fox", "cat"]),
        **change,
    }


def test_images_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "pets.npz"
    np.savez(path, **own_images())
    assert are_images(path) and are_images("svhn")
    images = load_images(path)
    assert images.name == "pets" and images.class_names == ("cat", "dog", "eel", "fox")
    assert images.y.tolist() == [0, 1, 1, 2, 0, 0] and images.test_y.tolist() == [3, 0]
    assert np.array_equal(images.x, own_images()["x"])
    np.savez(
        path, **own_images(x=np.asfortranarray(images.x), y=np.arange(6) % 2 > 0, test_y=images.test_y < 1)
    )
    assert np.array_equal(load_images(path).x, images.x) and load_images(path).x.flags.c_contiguous
    assert load_images(path).class_names == ("False", "True")
    np.savez(tmp_path / "table.npz", x=np.zeros((6, 3)), y=np.zeros(6))
    np.savez(tmp_path / "other.npz", z=np.zeros((6, 3, 3)))
    for name in ("table.npz", "other.npz", "none.npz", "pets.csv"):
        assert not are_images(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"x": np.zeros((6, 1, 5, 4))},
            r"x has shape \(6, 1, 5, 4\) and type float64, expected bytes .* x\.astype\(np\.uint8\) makes",
        ),
        (
            {"test_x": np.zeros((2, 5, 4), dtype=np.uint8)},
            r"test_x has shape \(2, 5, 4\) .* test_x\[:, None\] adds a channel",
        ),
        (
            {"x": np.zeros((6, 5, 6, 3), dtype=np.uint8), "test_x": np.zeros((2, 5, 6, 3), dtype=np.uint8)},
            r"x has shape \(6, 5, 6, 3\) .* np\.moveaxis\(x, 3, 1\) brings the channels forward",
        ),
        ({"test_x": np.zeros((0, 1, 5, 4), dtype=np.uint8)}, "so there is nothing in it"),
        ({"y": np.arange(5)}, r"x holds 6 images, but its labels have shape \(5,\)"),
        (
            {"test_y": np.zeros(2)},
            "y is of type <U3 and test_y of type float64, expected integers",
        ),
        ({"test_y": np.arange(2)}, "test_y of type int64, expected integers or words in both"),
        ({"y": np.array([b"cat"] * 6)}, r"y is of type \|S3 .* astype\(str\) makes them so"),
        ({"test_x": np.zeros((2, 3, 5, 4), dtype=np.uint8)}, r"\(1, 5, 4\) for training, but \(3, 5, 4\)"),
        ({"y": np.array([{}] * 6)}, "it should hold arrays x, .* of plain types, not of objects"),
        ({"test_y": None}, r"pets\.npz lacks test_y; it should hold arrays x, y, test_x"),
        ({"y": np.array(["cat"] * 6)}, "all labels in y are cat, expected at least two classes"),
        ({"test_y": np.array(["fox", "cow"])}, "no label in test_y, such as fox, is one of those in y"),
    ],
)
def test_images_of_ones_own_that_are_none(
    tmp_path: Path, change: dict[str, np.ndarray], message: str
) -> None:
    arrays = {name: value for name, value in own_images(**change).items() if value is not None}
    np.savez(tmp_path / "pets.npz", **arrays)
    assert are_images(tmp_path / "pets.npz")
    with pytest.raises(InputError, match=message):
        load_images(tmp_path / "pets.npz")


@pytest.mark.parametrize("content", [b"no archive", b"", "x.npy"])
def test_files_that_are_no_arrays(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "pets.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(content, "no array")
    with pytest.raises(InputError, match=r"cannot read .*pets\.npz: .*; it should hold arrays"):
        are_images(path)
