"""Small layers around a feature extractor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coresift.checks import check_shape
from coresift.types import InputError

# Images of bytes deviate by dozens; those between 0 and 1 by a half at most, standardised ones by about 1.
_DEVIATION_OF_BYTES = 2
# Beyond what images between 0 and 1 may hold, with what sharpening adds at edges.
_BEYOND_ONE = 1.5
# Images of a block that are looked at to see whether they are in the same units.
_LOOKED_AT = 64


class Standardise(nn.Module):
    """(x - mean) / deviation, with both fixed: float64 in, float32 out.

    A large offset, such as a date's, is taken out before it can cost precision.

    It stands before every trained network, so rows of another form than those trained on are caught here.

    Parameters
    ----------
    units : of the images that these are of: 255 for bytes, 1 for numbers between 0 and 1, 0 for any others;
        where that is not known, images that deviate as much are taken for bytes.
    """

    mean: Tensor
    deviation: Tensor
    units: Tensor  # of images only

    def __init__(self, mean: Tensor, deviation: Tensor, units: float | None = None) -> None:
        super().__init__()
        self.register_buffer("mean", mean.double())
        self.register_buffer("deviation", deviation.double())
        if mean.ndim == 3:
            if units is None:
                units = 255.0 if bool((deviation > _DEVIATION_OF_BYTES).any()) else 0.0
            self.register_buffer("units", self.mean.new_tensor(units))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if self.mean.ndim == 3:  # models were once saved without
            state_dict.setdefault(f"{prefix}units", self.units)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @classmethod
    def of(cls, x: Tensor) -> Standardise:
        """To mean zero and variance one: columns of rows (n, d), channels of images (n, channels, ...).

        A constant column stays as it is.
        """
        shape = (-1, *[1] * (x.ndim - 2))
        values = x.movedim(1, -1).flatten(0, -2)  # (..., channels)
        if x.dtype == torch.uint8:  # counted, since as numbers a set of images may not fit
            counts = torch.stack([torch.bincount(channel, minlength=256) for channel in values.unbind(1)])
            shares, levels = counts.double() / len(values), torch.arange(256.0, device=x.device).double()
            mean = shares @ levels
            deviation = (shares * (levels - mean[:, None]).square()).sum(1).sqrt()
            scale = torch.where(deviation > 0, deviation, 1.0)
            return cls(mean.view(shape), scale.view(shape), _units(x, deviation))
        values = values.double()
        deviation = values.std(0, correction=0)
        varies = deviation > 1e-12 * values.abs().amax(0)  # beyond rounding
        scale = torch.where(varies, deviation, 1.0)
        return cls(values.mean(0).view(shape), scale.view(shape), _units(x, deviation))

    def forward(self, x: Tensor) -> Tensor:
        check_shape(
            x, (None, len(self.mean), *[None] * (self.mean.ndim - 1)), "what is given to the fitted network"
        )
        if self.mean.ndim == 3 and not self.training:  # a recorded training step cannot wait for an answer
            self._check_units(x[:_LOOKED_AT])
        return ((x - self.mean) / self.deviation).float()

    def _check_units(self, images: Tensor) -> None:
        """Raise where images between 0 and 1 are given to a network that knows bytes, or the other way round.

        Bytes as numbers are told by being whole, however dark they are; resized ones by being large. A bright
        spot in other images makes no bytes of them.
        """
        images = images.double()
        whole = (images == images.round()).all()
        small = (images >= 0).all() & (images <= 1).all() & ~whole
        large = (images.mean() > _BEYOND_ONE) | (whole & (images > _BEYOND_ONE).any())
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


def _units(images: Tensor, deviation: Tensor) -> float:
    """What images (n, channels, height, width) that deviate so are in, see `Standardise`; 0 of other rows."""
    if images.ndim != 4:
        return 0.0
    of_bytes = images.dtype == torch.uint8
    if bool(images.min() < 0) or bool(images.max() > 255):
        return 0.0
    if bool(images.max() <= 1):  # bytes so dark may have brighter ones beside them
        return 0.0 if of_bytes else 1.0
    whole = of_bytes or bool((images == images.round()).all())
    # Whole numbers that differ by little may as well be counts.
    return 255.0 if whole and bool((deviation > _DEVIATION_OF_BYTES).any()) else 0.0


class AppendOne(nn.Module):
    """Appends a constant feature, so that a last layer without bias has one."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, torch.ones_like(x[..., :1])], -1)
