"""The files of a project's folder: its lock, its features, and what a killed init leaves."""

from __future__ import annotations

import hashlib
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from coresift.errors import InputError, cannot_write, is_full
from coresift.labelling.database import NAME as LEDGER

FEATURES, LOCK = "features.npy", ".lock"
# The folder in a project's folder where its files are made; it is removed at the end.
UNFINISHED = ".coresift-init"


class BusyError(InputError):
    """Another program is writing to the project."""

    exit_code = 3


@contextmanager
def locked(lock: FileLock, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock of a project; it is freed when the process ends, however that happens."""
    folder = Path(lock.lock_file).parent
    try:
        held = lock.acquire(timeout=wait)
    except Timeout:
        raise BusyError(f"another program is writing to {folder}; wait for it to end") from None
    except OSError as error:
        raise cannot_write(f"to the folder {folder}", error) from None
    with held:
        yield


@contextmanager
def readable(path: Path | str) -> Iterator[None]:
    """Turn a system's refusal to read a pool into an error of ours."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {error.filename or path}: {error.strerror}") from None


# Features.


def describe_features(path: Path) -> dict[str, Any]:
    """Return what shows later whether a file of features has changed."""
    return {"time": path.stat().st_mtime_ns, "fingerprint": fingerprint_of(path)}


def open_features(folder: Path, items: int, made: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """Map a project's features (items, d) from the disk; raise if they have changed since the beginning.

    ``made`` is the result of `describe_features` then, and empty in old projects.
    """
    path = folder / FEATURES
    try:
        rows = np.lib.format.open_memmap(path, mode="r")
        known_time = made.get("time") in (None, path.stat().st_mtime_ns)
        same = known_time or made["fingerprint"] == fingerprint_of(path)
    except Exception as error:  # NumPy parses a header as Python, which fails in many ways
        raise lost_features(folder, f"cannot be read: {error}") from None
    if rows.ndim != 2 or len(rows) != items or rows.dtype != np.float32:
        expected = f"({items}, d) of float32"
        raise lost_features(folder, f"has the shape {rows.shape} of {rows.dtype}, expected {expected}")
    if not same:
        raise lost_features(folder, "has changed since the project began")
    return rows


def lost_features(folder: Path, reason: str) -> InputError:
    """Return the error to raise for features that are damaged or have changed."""
    return InputError(
        f"{folder / FEATURES} {reason}; put it back as it was, or save the labels for a new project "
        f"with: coresift repair {shlex.quote(str(folder))} OUT"
    )


def fingerprint_of(content: bytes | Path) -> str:
    """Compute the SHA-256 of some bytes, or of a file's content."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stamp_of(path: Path) -> str:
    """Compute a digest of the sizes and times of a pool's files."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in filter(Path.is_file, files):
        name, stat = file.relative_to(path), file.stat()
        digest.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


# New projects.


@contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """Give a folder in which to make a project's files, and remove what a killed init left."""
    new = folder / UNFINISHED
    _remove_unfinished(folder)
    new.mkdir()
    try:
        yield new
    except OSError as error:
        if is_full(error):
            raise cannot_write(f"to the folder {folder}", error) from None
        raise
    finally:
        _remove_unfinished(folder)


def _remove_unfinished(folder: Path) -> None:
    if _is_leftover(folder):
        (folder / FEATURES).unlink(missing_ok=True)
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)


def _is_leftover(folder: Path) -> bool:
    """Whether the features in a folder without a ledger are from a killed init, which had moved them only."""
    new = folder / UNFINISHED
    return (new / LEDGER).exists() and not (new / FEATURES).exists()


def check_nothing_is_lost(folder: Path, pool: Path) -> None:
    """Raise where a new project would be written over what is there."""
    if (folder / LEDGER).exists():
        raise InputError(f"{folder} is a project already; go on with coresift select, or name another")
    features = folder / FEATURES
    if features.exists() and features.resolve() == pool.resolve():
        raise InputError(
            f"{pool} is the pool, and a project in {folder} would be written over it; name another folder"
        )
    if features.exists() and not _is_leftover(folder):
        raise InputError(
            f"{folder} has no {LEDGER}, but a {FEATURES} that a project would be written over; name another "
            "folder, or remove it if it is left of a project"
        )
