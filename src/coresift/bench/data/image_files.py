"""Read images: one reader for each form of file, in the table `FORMS`; with a writer of sheets."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from coresift.atomic import replacing
from coresift.bench.data.readers import load_arrays, reading
from coresift.errors import InputError
from coresift.reading import open_image, pillow
from coresift.types import Index

Pixels: TypeAlias = npt.NDArray[np.uint8]
Shape: TypeAlias = tuple[int, int, int]
Array: TypeAlias = npt.NDArray[Any]
Split: TypeAlias = tuple[Array, Array]  # images (n, channels, height, width) and labels (n,)
Arrays: TypeAlias = tuple[Array, Array, Array, Array]  # images and labels for training, then for testing

# A sheet holds 10 columns of 500 images, filled column by column. WebP knows no side longer than its limit.
ROWS, COLUMNS = 500, 10
PER_SHEET = ROWS * COLUMNS
WEBP_LIMIT = 16383


@dataclass(frozen=True, eq=False)
class Images:
    """A classification problem on images, with the published split."""

    name: str  # for headings
    x: Pixels  # (N, channels, height, width) training images, the pool
    y: Index  # (N,) their labels, 0 to C-1
    test_x: Pixels  # (M, channels, height, width)
    test_y: Index  # (M,)
    class_names: tuple[str, ...]  # (C,)


Reader: TypeAlias = Callable[[Sequence[Path], Shape], Arrays]


@dataclass(frozen=True)
class Form:
    """A form that an image set comes in: its files, all of them needed, and what reads them."""

    files: tuple[str, ...]  # one that ends in ``.gz`` may also be unpacked
    read: Reader
    subfolder: str = ""  # where the official archive unpacks them to


def write_sheets(images: Images, folder: str | Path) -> None:
    """Pack a set into a few files, to move it to another machine; `load_images` reads them.

    Sheets ``train_00.webp``, ..., ``test_00.webp``, ... are lossless WebP pictures of 5000 images each, grey
    ones with three equal channels; the last of a split is padded with zeros. Labels are in
    ``train_labels.npy`` and ``test_labels.npy``.
    """
    pillow()  # raises where it is missing, before anything is written
    _check_sheets(images.x)
    _check_sheets(images.test_x)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    labels = {folder / "train_labels.npy": images.y, folder / "test_labels.npy": images.test_y}
    # A set is found by its labels, which are written last: what was stopped halfway is not taken for a set.
    for path in labels:
        path.unlink(missing_ok=True)
    for split, x in {"train": images.x, "test": images.test_x}.items():
        for number, start in enumerate(range(0, len(x), PER_SHEET)):
            _write_sheet(x[start : start + PER_SHEET], folder / f"{split}_{number:02d}.webp")
    for path, y in labels.items():
        with replacing(path) as file:
            np.save(file, y)


def _check_sheets(x: Pixels) -> None:
    channels, height, width = x.shape[1:]
    if x.dtype != np.uint8 or channels not in (1, 3):
        raise InputError(f"images have {channels} channels of {x.dtype}, expected 1 or 3 of uint8")
    if max(ROWS * height, COLUMNS * width) > WEBP_LIMIT:
        raise InputError(
            f"images are {height} high and {width} wide, expected at most {WEBP_LIMIT // ROWS} and "
            f"{WEBP_LIMIT // COLUMNS} in sheets of {ROWS} by {COLUMNS}; use numpy.savez instead"
        )


def _write_sheet(x: Pixels, path: Path) -> None:
    channels, height, width = x.shape[1:]
    block = np.zeros((PER_SHEET, channels, height, width), np.uint8)
    block[: len(x)] = x
    columns = block.reshape(COLUMNS, ROWS, channels, height, width).transpose(1, 3, 0, 4, 2)
    sheet = columns.reshape(ROWS * height, COLUMNS * width, channels)
    colours = np.ascontiguousarray(np.broadcast_to(sheet, (*sheet.shape[:2], 3)))
    with replacing(path) as file:
        pillow().fromarray(colours).save(file, "WEBP", lossless=True, quality=80, method=4)


def read_arrays(paths: Sequence[Path], shape: Shape | None = None) -> Arrays:
    """Read an ``.npz`` file of the arrays of `Images`."""
    content = "arrays x, y, test_x and test_y of plain types, not of objects"
    x, y, test_x, test_y = load_arrays(paths[0], ("x", "y", "test_x", "test_y"), content)
    return x, y, test_x, test_y


def _read_idx(paths: Sequence[Path], shape: Shape) -> Arrays:
    x, y, test_x, test_y = (_idx(path, axes) for path, axes in zip(paths, (3, 1, 3, 1), strict=True))
    return x[:, None], y, test_x[:, None], test_y


def _read_sheets(paths: Sequence[Path], shape: Shape) -> Arrays:
    train, test = paths[:2]
    return *_sheets(train, shape), *_sheets(test, shape)


def _one_by_one(read: Callable[[Path, Shape], Split]) -> Reader:
    """Make a reader of several files with images and labels: the last is the test set."""

    def read_all(paths: Sequence[Path], shape: Shape) -> Arrays:
        (*x, test_x), (*y, test_y) = zip(*(read(path, shape) for path in paths), strict=True)
        return np.concatenate(x), np.concatenate(y), test_x.copy(), test_y.copy()

    return read_all


def _sheets(labels: Path, shape: Shape) -> Split:
    """Read a split that `write_sheets` wrote, found by its file of labels."""
    channels, height, width = shape
    with reading(labels, "an array of labels"):
        y: Array = np.load(labels)
        x = np.empty((len(y), *shape), np.uint8)
    for number, start in enumerate(range(0, len(y), PER_SHEET)):
        path = labels.with_name(labels.name.replace("labels.npy", f"{number:02d}.webp"))
        with reading(path, f"images {start} and on of {len(y)}"), open_image(path) as image:
            sheet = np.asarray(image.convert("RGB"))
        expected = (ROWS * height, COLUMNS * width)
        if sheet.shape[:2] != expected:
            raise InputError(
                f"{path} is {sheet.shape[0]} high and {sheet.shape[1]} wide, expected {expected[0]} and "
                f"{expected[1]}: {COLUMNS} columns of {ROWS} images, {height} high and {width} wide"
            )
        # (rows, height, columns, width, channels) to (columns, rows, channels, height, width)
        block = sheet.reshape(ROWS, height, COLUMNS, width, 3)[..., :channels].transpose(2, 0, 4, 1, 3)
        x[start : start + PER_SHEET] = block.reshape(PER_SHEET, *shape)[: len(y) - start]
    return x, y


def _idx(path: Path, axes: int) -> Pixels:
    """Read an idx file: two zeros, the type, the number of axes, their sizes, and the bytes."""
    opened = gzip.open if path.suffix == ".gz" else open
    with reading(path, f"bytes along {axes} axes"), opened(path, "rb") as file:
        content = file.read()
        expected = bytes((0, 0, 8, axes))  # 8 stands for bytes
        if content[:4] != expected:
            raise InputError(f"{path} starts with {content[:4].hex(' ')}, expected {expected.hex(' ')}")
        start = 4 + 4 * axes
        sizes = struct.unpack(f">{axes}I", content[4:start])
        if len(content) - start != prod(sizes):
            raise InputError(f"{path} holds {len(content) - start} bytes, expected {prod(sizes)} for {sizes}")
    # A copy, since an array over the file's own bytes could not be written to.
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes).copy()


def _records(path: Path, shape: Shape) -> Split:
    """Read records of the binary version of CIFAR-10: a label, then an image."""
    length, record = path.stat().st_size, 1 + prod(shape)
    if length == 0 or length % record:
        raise InputError(
            f"{path} is {length} bytes long, expected a multiple of {record}: a label and {record - 1} pixels"
        )
    # Mapped, so that joining the batches is the one copy.
    records = np.asarray(np.memmap(path, np.uint8, "r")).reshape(-1, record)
    return records[:, 1:].reshape(-1, *shape), records[:, 0]


class _Kept:
    """Replaces all that a pickled array is made with: keeps its arguments and computes nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _as_bytes(text: str, encoding: str) -> bytes:
    """Do what ``_codecs.encode`` does when Python 3 writes bytes to an old pickle."""
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Kept,
    ("numpy._core.multiarray", "_reconstruct"): _Kept,
    ("numpy", "ndarray"): _Kept,
    ("numpy", "dtype"): _Kept,
    ("_codecs", "encode"): _as_bytes,
}


class _Unpickler(pickle.Unpickler):
    """Reads lists, numbers, strings and arrays; a pickle that names anything else, to call it, is refused."""

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it calls for {module}.{name}, and was not run")
        return _ALLOWED[module, name]


def _unpickled(path: Path, shape: Shape) -> Split:
    """Read a pickled dictionary of the Python version of CIFAR-10, without running it."""
    with reading(path, "a pickled batch of CIFAR-10, data and labels"), path.open("rb") as file:
        batch = _Unpickler(file, encoding="bytes").load()
        # Python 2 wrote the keys as bytes.
        held = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        _, sizes, dtype, by_column, content = held["data"].state
        if dtype.arguments[0] not in ("u1", b"u1"):
            raise InputError(f"{path} holds pixels of type {dtype.arguments[0]}, expected u1")
        pixels = np.frombuffer(content, np.uint8).reshape(sizes, order="F" if by_column else "C")
        return pixels.reshape(-1, *shape), np.array(held["labels"])


def _mat(path: Path, shape: Shape) -> Split:
    """Read a Matlab file of SVHN."""
    from scipy.io import loadmat

    with reading(path, "X of shape (height, width, channels, N) and y"):
        arrays = loadmat(path, variable_names=["X", "y"])
        x, y = arrays["X"].transpose(3, 2, 0, 1), arrays["y"].ravel()
    # The label 10 stands for the digit 0.
    return x, np.where(y == 10, 0, y)


_BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
_IDX = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
_SHEETS = ("train_labels.npy", "test_labels.npy", "train_00.webp", "test_00.webp")
FORMS = {
    "sheets": Form(_SHEETS, _read_sheets),
    "records": Form(tuple(f"{name}.bin" for name in _BATCHES), _one_by_one(_records), "cifar-10-batches-bin"),
    "pickles": Form(_BATCHES, _one_by_one(_unpickled), "cifar-10-batches-py"),
    "idx": Form(tuple(f"{name}-ubyte.gz" for name in _IDX), _read_idx),  # of MNIST
    "mat": Form(("train_32x32.mat", "test_32x32.mat"), _one_by_one(_mat)),
}
