"""Small layers around a feature extractor."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Standardise(nn.Module):
    """(x - mean) / deviation, with both fixed: float64 in, float32 out.

    A large offset, such as a date's, is taken out before it can cost precision.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.double())
        self.register_buffer("deviation", deviation.double())

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
            return cls(mean.view(shape), torch.where(deviation > 0, deviation, 1.0).view(shape))
        values = values.double()
        deviation = values.std(0, correction=0)
        varies = deviation > 1e-12 * values.abs().amax(0)  # beyond rounding
        return cls(values.mean(0).view(shape), torch.where(varies, deviation, 1.0).view(shape))

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) / self.deviation).float()


class AppendOne(nn.Module):
    """Appends a constant feature, so that a last layer without bias has one."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, torch.ones_like(x[..., :1])], -1)


def input_tensor(network: nn.Module) -> Tensor:
    """A tensor of the device and precision that a network's rows should have: its first.

    A `Standardise` in front wants more precision than the layers.
    """
    tensors: Iterable[Tensor] = network.state_dict().values()
    return next(value for value in tensors if value.is_floating_point())
