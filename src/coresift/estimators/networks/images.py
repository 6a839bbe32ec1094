"""Prepare images for a feature extractor in training: random crops and flips, and the precision."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from coresift.checks import check_integer

Precision = Literal["float32", "bfloat16"]


class Augment(nn.Module):
    """Crop images (n, channels, height, width) at random from a border of zeros, and flip them at random.

    This happens in training mode only, on the images' own device, and differently for each image.

    Parameters
    ----------
    padding : the width of the border, and how far a crop can move.
    flip : whether left and right may be swapped; not for digits.

    >>> images = torch.arange(12.0).view(1, 1, 3, 4)
    >>> torch.equal(Augment().eval()(images), images), Augment(padding=1)(images).shape
    (True, torch.Size([1, 1, 3, 4]))
    """

    def __init__(self, padding: int = 4, flip: bool = True) -> None:
        super().__init__()
        self.padding, self.flip = check_integer(padding, 0, "padding"), flip

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        num, _, height, width = x.shape
        padded = nn.functional.pad(x, [self.padding] * 4)
        shift = torch.randint(2 * self.padding + 1, (2, num, 1), device=x.device)
        rows = shift[0] + torch.arange(height, device=x.device)  # (n, height)
        columns = torch.arange(width, device=x.device).expand(num, -1)
        if self.flip:
            flipped = torch.rand(num, 1, device=x.device) < 0.5
            columns = torch.where(flipped, width - 1 - columns, columns)
        columns = shift[1] + columns
        image = torch.arange(num, device=x.device)[:, None, None]
        cropped = padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]
        cropped = cropped.permute(0, 3, 1, 2)
        # Channels are last in memory now, which is best on a GPU but not safe on a CPU, see `ResNet18`.
        return cropped if x.is_cuda else cropped.contiguous()


class Prepared(nn.Module):
    """A feature extractor with the preparation of its rows, to be trained as one network.

    Images stay bytes until a mini-batch of them is needed; then ``before`` augments and standardises it, on
    the device.

    Parameters
    ----------
    before : rows (n, ...) as stored -> rows for the extractor.
    extractor : rows (n, ...) -> features (n, D).
    precision : of the extractor while it is trained on a GPU. Evaluation is always in float32: in half
        precision the features of a row would depend on the other rows of its block.
    """

    def __init__(self, before: nn.Module, extractor: nn.Module, precision: Precision = "float32") -> None:
        super().__init__()
        self.before, self.extractor, self.precision = before, extractor, precision

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.before(x)
        half = self.precision == "bfloat16" and self.training and x.is_cuda
        # A cache of weights in half precision would outlive the CUDA graph it was made in.
        with torch.autocast(x.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            features: Tensor = self.extractor(x)
        return features.to(x.dtype)
