"""What is put around a feature extractor: standardisation, a constant feature, a last layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from coresift import limits
from coresift.checks import check_shape
from coresift.errors import InputError

Precision = Literal["float32", "bfloat16"]

# Bytes have a standard deviation of dozens; numbers between 0 and 1 of at most 0.5, standardised ones of 1.
_STD_OF_BYTES = 2
# More than images between 0 and 1 may hold, with what sharpening adds at edges.
_BEYOND_ONE = 1.5


class Standardise(nn.Module):
    """Standardise rows by a fixed mean and standard deviation: (x - mean) / std, float64 in, float32 out.

    A large offset, such as a date's, is subtracted before it can cost precision. This layer comes before
    every trained network, so rows of another shape than those trained on are caught here.

    Parameters
    ----------
    units : of images: 255 for bytes, 1 for numbers between 0 and 1, 0 for any others.
    """

    mean: Tensor
    std: Tensor
    units: Tensor  # of images only

    def __init__(self, mean: Tensor, std: Tensor, units: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("mean", mean.double())
        self.register_buffer("std", std.double())
        if mean.ndim == 3:
            self.register_buffer("units", self.mean.new_tensor(units))

    @classmethod
    def of(cls, x: Tensor) -> Standardise:
        """To mean zero and variance one: columns of rows (n, d), channels of images (n, channels, ...).

        A constant column keeps its scale.
        """
        values = x.movedim(1, -1).flatten(0, -2)  # (..., channels)
        mean, std, varies = (_moments_of_bytes if x.dtype == torch.uint8 else _moments)(values)
        shape = (-1, *[1] * (x.ndim - 2))
        return cls(mean.view(shape), torch.where(varies, std, 1.0).view(shape), _units(x, std))

    def forward(self, x: Tensor) -> Tensor:
        check_shape(x, (None, len(self.mean), *[None] * (self.mean.ndim - 1)), "the input of the network")
        if self.mean.ndim == 3 and not self.training:  # a recorded training step cannot read values
            self._check_units(x[: limits.IMAGES_CHECKED])
        return ((x - self.mean) / self.std).float()

    def _check_units(self, images: Tensor) -> None:
        """Raise if images between 0 and 1 are given to a network that was trained on bytes, or vice versa.

        Bytes as numbers are recognised as integers, however dark they are; resized ones by their size. One
        bright spot does not make other images bytes.
        """
        images = images.double()
        integers = (images == images.round()).all()
        small = (images >= 0).all() & (images <= 1).all() & ~integers
        large = (images.mean() > _BEYOND_ONE) | (integers & (images > _BEYOND_ONE).any())
        too_small, too_large = torch.stack([(self.units == 255) & small, (self.units == 1) & large]).tolist()
        if too_small:
            raise InputError(
                "the network was trained on bytes, 0 to 255, or images like them; these lie between 0 and 1: "
                "multiply by 255"
            )
        if too_large:
            raise InputError(
                "the network was trained on images between 0 and 1; these go up to "
                f"{float(images.max()):g}: divide by 255 if they are bytes"
            )


def _moments(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means and standard deviations of the columns of (n, d), and which columns vary beyond rounding."""
    values = values.double()
    std = values.std(0, correction=0)
    return values.mean(0), std, std > 1e-12 * values.abs().amax(0)


def _moments_of_bytes(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same of bytes (n, d), which are counted: as float64 a set of images may not fit into memory."""
    counts = torch.stack([torch.bincount(channel, minlength=256) for channel in values.unbind(1)])
    shares, levels = counts.double() / len(values), torch.arange(256.0, device=values.device).double()
    mean = shares @ levels
    std = (shares * (levels - mean[:, None]).square()).sum(1).sqrt()
    return mean, std, std > 0


def _units(images: Tensor, std: Tensor) -> float:
    """The units of images (n, channels, height, width), see `Standardise`; 0 for other rows."""
    if images.ndim != 4 or bool(images.min() < 0) or bool(images.max() > 255):
        return 0.0
    are_bytes = images.dtype == torch.uint8
    if bool(images.max() <= 1):
        return 0.0 if are_bytes else 1.0  # other bytes of the pool may be brighter than these dark ones
    if not bool((std > _STD_OF_BYTES).any()):
        return 0.0  # integers that differ by little may as well be counts
    return 255.0 if are_bytes or bool((images == images.round()).all()) else 0.0


class AppendOne(nn.Module):
    """Append a constant feature, which stands for the bias of a last layer without one."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, torch.ones_like(x[..., :1])], -1)


def substate(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the entries whose name starts with ``prefix``, without it.

    >>> substate({"head.bias": 1, "extractor.bias": 2}, "head.")
    {'bias': 1}
    """
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


class Headed(nn.Module):
    """A feature extractor (n, ...) -> (n, D) with a head, to be trained together.

    A linear head makes the outputs. Any other head is applied by the objective, and features are the outputs.
    Images stay bytes until a mini-batch of them is needed; then ``before`` augments and standardises it, on
    the device.

    Parameters
    ----------
    before : rows (n, ...) as stored -> rows for the extractor.
    precision : of the extractor while it is trained on a GPU. Evaluation is always in float32: in half
        precision the features of a row would depend on the other rows of its block.
    """

    extractor: Any

    def __init__(
        self,
        extractor: nn.Module,
        head: nn.Module,
        before: Sequence[nn.Module] = (),
        precision: Precision = "float32",
    ) -> None:
        super().__init__()
        self.before, self.extractor, self.head = nn.Sequential(*before), extractor, head
        self.precision = precision

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.before(x)
        half = self.precision == "bfloat16" and self.training and x.is_cuda
        # A cache of weights in half precision would outlive the CUDA graph it was made in.
        with torch.autocast(x.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            features: Tensor = self.extractor(x)
        features = features.to(x.dtype)
        return self.head(features) if isinstance(self.head, nn.Linear) else features

    @property
    def stacked(self) -> Callable[..., Tensor] | None:
        """Compute S networks at once, if the extractor can (see `MLP`) and takes its rows as they are."""
        as_they_are = len(self.before) == 0 and self.precision == "float32"
        return self._stacked if as_they_are and hasattr(self.extractor, "stacked") else None

    def _stacked(
        self, state: dict[str, Tensor], x: Tensor, rows: Tensor | None, settle: bool = False
    ) -> Tensor:
        features: Tensor = self.extractor.stacked(substate(state, "extractor."), x, rows, settle)
        if not isinstance(self.head, nn.Linear):
            return features
        return torch.baddbmm(state["head.bias"].unsqueeze(1), features, state["head.weight"].mT)


def is_frozen(layer: nn.Module) -> bool:
    """Tell whether a layer has parameters of its own, and none of them is trained."""
    own = list(layer.parameters(recurse=False))
    return bool(own) and not any(value.requires_grad for value in own)
