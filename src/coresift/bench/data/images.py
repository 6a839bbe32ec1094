"""Registry of image sets, in ``images.toml``: where to get them, and how to check them."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from coresift.bench.data.image_files import FORMS, Array, Arrays, Form, Images, Shape, read_arrays
from coresift.bench.data.readers import reading
from coresift.bench.data.tables import ADVICE, data_folder, registry
from coresift.errors import InputError, suggestion


@dataclass(frozen=True)
class ImageSource:
    """A published image set."""

    shape: Shape  # (channels, height, width) of an image
    class_names: tuple[str, ...]  # (C,) what the labels 0 to C-1 stand for
    counts: tuple[int, ...]  # (C,) training images of each class
    test_counts: tuple[int, ...]  # (C,)
    means: tuple[float, ...]  # (channels,) of training images, from 0 for black to 1, to four decimals
    forms: tuple[str, ...]  # of the official files, see `FORMS`
    origin: str  # where to get those files
    licence: str  # what they may be used for


IMAGES = registry("images.toml", ImageSource)


def are_images(name_or_path: str | Path) -> bool:
    """Whether this is for `load_images`: a name in `IMAGES`, or an ``.npz`` file of more than rows."""
    path = Path(name_or_path)
    of_arrays = path.suffix.lower() == ".npz" and path.is_file()
    return str(name_or_path) in IMAGES or (of_arrays and _num_axes(path) > 2)


def _num_axes(path: Path) -> int:
    """Return how many axes the array ``x`` of an ``.npz`` file has; zero where it has no ``x``."""
    with reading(path, "arrays"), zipfile.ZipFile(path) as file:
        if "x.npy" not in file.namelist():
            return 0
        with file.open("x.npy") as array:  # no more than its head, of what may be gigabytes
            np.lib.format.read_magic(array)
            shape, *_ = np.lib.format.read_array_header_1_0(array)
    return len(shape)


def load_images(name_or_path: str | Path, folder: str | Path | None = None) -> Images:
    """Load a published image set by name, or images of the user by the path of their file.

    Parameters
    ----------
    name_or_path : a name in `IMAGES`, or the path of an ``.npz`` file with arrays ``x`` and ``test_x`` of
        bytes (n, channels, height, width), and ``y`` and ``test_y`` of labels (n,), numbers or words.
    folder : where published sets lie, in ``<name>``, ``images/<name>`` or right there: as sheets that
        `write_sheets` made, as the official files, or as ``<name>.npz`` with arrays ``x``, ``y``, ``test_x``
        and ``test_y``, whichever is found first. By default what the environment variable ``CORESIFT_DATA``
        names, or else ``data``.

    >>> load_images("cifar")
    Traceback (most recent call last):
    coresift.errors.InputError: there is no image set or file 'cifar'; did you mean 'cifar10'?
    """
    name = str(name_or_path)
    if name in IMAGES:
        return _load_published(name, data_folder(folder))
    if Path(name).is_file():
        return _read_own(Path(name))
    raise InputError(f"there is no image set or file {name!r}; {suggestion(name, IMAGES)}")


def _load_published(name: str, folder: Path) -> Images:
    source = IMAGES[name]
    form, paths = _find(name, source, folder)
    x, y, test_x, test_y = form.read(paths, source.shape)
    difference = (
        _difference(x, y, source.shape, source.counts, "training")
        or _difference(test_x, test_y, source.shape, source.test_counts, "test")
        or _difference_of_means(x, source.means)
    )
    if difference:
        raise InputError(
            f"{paths[0].parent} does not hold the published set {name!r}, read from {paths[0].name}: "
            f"{difference}; get it from {source.origin}"
        )
    return _images(name, (x, y.astype(np.int64), test_x, test_y.astype(np.int64)), source.class_names)


def _images(name: str, arrays: Arrays, class_names: tuple[str, ...]) -> Images:
    # Some files hold their axes in another order.
    x, y, test_x, test_y = map(np.ascontiguousarray, arrays)
    return Images(name, x, y, test_x, test_y, class_names)


def _read_own(path: Path) -> Images:
    """Read images of the user, whose classes are in the order of their labels."""
    x, y, test_x, test_y = read_arrays([path])
    _check_split(path, "x", x, y)
    _check_split(path, "test_x", test_x, test_y)
    if x.shape[1:] != test_x.shape[1:]:
        raise InputError(f"{path}: images are {x.shape[1:]} for training, but {test_x.shape[1:]} for testing")
    if y.dtype.kind + test_y.dtype.kind not in ("ii", "iu", "ui", "uu", "UU", "bb"):
        raise InputError(
            f"{path}: y is of type {y.dtype} and test_y of type {test_y.dtype}, expected integers or "
            "words in both; astype(int) or astype(str) makes them so"
        )
    classes, codes = np.unique(np.concatenate([y.tolist(), test_y.tolist()]), return_inverse=True)
    known, asked = codes[: len(y)], codes[len(y) :]
    if len(np.unique(known)) < 2:
        raise InputError(f"{path}: all labels in y are {y[0]}, expected at least two classes")
    if not np.isin(asked, known).any():
        raise InputError(f"{path}: no label in test_y, such as {test_y[0]}, is one of those in y")
    return _images(path.stem, (x, known, test_x, asked), tuple(map(str, classes.tolist())))


def _check_split(path: Path, name: str, pixels: Array, labels: Array) -> None:
    if pixels.ndim != 4 or pixels.dtype != np.uint8 or _channels_last(pixels):
        raise InputError(
            f"{path}: {name} has shape {pixels.shape} and type {pixels.dtype}, expected bytes (uint8), "
            f"(images, channels, height, width); {_how_to_mend(name, pixels)}"
        )
    if not pixels.size:
        raise InputError(f"{path}: {name} has shape {pixels.shape}, so there is nothing in it")
    if labels.shape != pixels.shape[:1]:
        raise InputError(
            f"{path}: {name} holds {len(pixels)} images, but its labels have shape {labels.shape}"
        )


def _channels_last(pixels: Array) -> bool:
    return pixels.ndim == 4 and min(pixels.shape[1:3]) > 4 and pixels.shape[3] in (1, 3, 4)


def _how_to_mend(name: str, pixels: Array) -> str:
    if pixels.ndim == 3:
        return f"{name}[:, None] adds a channel"
    if _channels_last(pixels):
        return f"np.moveaxis({name}, 3, 1) brings the channels forward"
    return f"{name}.astype(np.uint8) makes bytes of numbers from 0 to 255"


def _find(name: str, source: ImageSource, folder: Path) -> tuple[Form, Sequence[Path]]:
    """Find the first form with all of its files."""
    forms = [FORMS["sheets"], *map(FORMS.__getitem__, source.forms), Form((f"{name}.npz",), read_arrays)]
    incomplete = []
    for place, form in product((folder / name, folder / "images" / name, folder), forms):
        for inner in dict.fromkeys((place, place / form.subfolder)):
            found = _present(inner, form.files)
            missing = sorted({*form.files} - found.keys())
            if not missing:
                return form, list(found.values())
            if found:
                incomplete.append(f" {inner} has {', '.join(found)} but no {', '.join(missing)}.")
    wanted = "; or ".join(", ".join(form.files) for form in forms)
    raise InputError(
        f"the image set {name!r} is not in the folder {folder}: neither there nor in {name} or images/{name} "
        f"within it are {wanted}.{''.join(incomplete)} Get it from {source.origin}, licence: "
        f"{source.licence}; {ADVICE}"
    )


def _present(folder: Path, files: Sequence[str]) -> dict[str, Path]:
    """Return those of the files that are in the folder, packed or unpacked."""
    found = {}
    for file in files:
        packed, unpacked = folder / file, folder / file.removesuffix(".gz")
        path = packed if packed.is_file() else unpacked
        if path.is_file():
            found[file] = path
    return found


def _difference(x: Array, y: Array, shape: Shape, counts: tuple[int, ...], split: str) -> str:
    """Describe how images (n, ...) and labels (n,) differ from the published ones; empty if they do not."""
    expected = (sum(counts), *shape)
    if x.shape != expected or x.dtype != np.uint8:
        return f"its {split} images have shape {x.shape} and type {x.dtype}, expected {expected} and uint8"
    if y.shape != expected[:1] or y.dtype.kind not in "iu":
        return (
            f"its {split} labels have shape {y.shape} and type {y.dtype}, "
            f"expected {expected[:1]} and integers"
        )
    if y.min() < 0 or y.max() >= len(counts):
        return f"its {split} labels lie in {y.min()} to {y.max()}, expected 0 to {len(counts) - 1}"
    seen = tuple(np.bincount(y.astype(np.int64), minlength=len(counts)).tolist())
    return "" if seen == counts else f"its {split} classes have {seen} images, expected {counts}"


def _difference_of_means(x: Array, expected: tuple[float, ...]) -> str:
    # Sums in integers: a copy of x in floating point would take eight times its memory.
    means = x.sum((0, 2, 3), dtype=np.uint64) / (255 * x[:, 0].size)
    if np.allclose(means, expected, rtol=0, atol=1e-4):
        return ""
    seen, wanted = (", ".join(f"{mean:.4f}" for mean in values) for values in (means, expected))
    return f"its channels have means {seen}, expected {wanted}"
