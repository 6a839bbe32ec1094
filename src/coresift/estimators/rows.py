"""Check the rows and targets that estimators are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coresift.types import InputError

# How many channels an image may have at most, if they might be confused with a height or width.
_MOST_CHANNELS = 4
_CHANNELS = (1, 3, 4)


def one_line(check: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a check by scikit-learn, and raise its errors as ours, on one line."""
    try:
        return check(*arguments, **options)
    except ValueError as error:
        raise InputError(" ".join(str(error).split())) from None


def bytes_of_images(X: Any, tabular: bool, least: int) -> Tensor | None:
    """Return images of bytes (n, channels, height, width) as they are, without a copy; else ``None``.

    Raises if there are fewer than ``least``, or if rows of any type have a shape that is a likely mistake.
    """
    if not isinstance(X, Tensor | np.ndarray):
        return None
    shape, are_bytes = tuple(X.shape), X.dtype in (torch.uint8, np.uint8)
    if tabular and len(shape) > 2:
        raise InputError(
            f"X has shape {shape}, but without network= rows are those of a table; "
            "for images (n, channels, height, width) pass network=ResNet18"
        )
    if advice := _advice(shape, are_bytes):
        raise InputError(f"images have shape {shape}, expected (n, channels, height, width); {advice}")
    if tabular or len(shape) != 4 or not are_bytes:
        return None
    if len(X) < least:
        raise InputError(f"X holds {len(X)} images, expected at least {least}")
    # torch shares memory only with arrays that are writeable and have positive strides.
    return torch.as_tensor(np.require(X, requirements=["C", "W"]) if isinstance(X, np.ndarray) else X)


def _advice(shape: tuple[int, ...], are_bytes: bool) -> str | None:
    """Say what to do about images in a shape that would be misread; ``None`` if nothing looks like it."""
    if len(shape) == 3 and are_bytes and shape[1] > _MOST_CHANNELS:
        alone = "one image alone is X[None]; to " if shape[0] in _CHANNELS else ""
        return f"{alone}give grey images a channel, as X[:, None] does"
    # Feature maps, with many channels and few pixels, have no channels at the end.
    channels_last = len(shape) == 4 and min(shape[1:3]) > _MOST_CHANNELS and shape[3] in _CHANNELS
    return "put the channels first, as np.moveaxis(X, 3, 1) does" if channels_last else None
