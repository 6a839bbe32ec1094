"""What stands before a feature extractor in training: crops and flips of images, and the precision."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from coresift.checks import check_integer

Precision = Literal["float32", "bfloat16"]


class Augment(nn.Module):
    """Images (n, channels, height, width) cropped at random from a border of zeros, and flipped at random.

    In training mode only, and on the device the images are on; each image has a crop and a flip of its own.

    Parameters
    ----------
    padding : how wide the border is, and how far a crop can move.
    flip : whether left and right may change places; not for digits.

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
        move = torch.randint(2 * self.padding + 1, (2, num, 1), device=x.device)
        rows = move[0] + torch.arange(height, device=x.device)  # (n, height)
        columns = torch.arange(width, device=x.device).expand(num, -1)
        if self.flip:
            flipped = torch.rand(num, 1, device=x.device) < 0.5
            columns = torch.where(flipped, width - 1 - columns, columns)
        columns = move[1] + columns
        each = torch.arange(num, device=x.device)[:, None, None]
        moved = padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        # Channels now come last in memory, as a GPU wants them; a CPU may not bear it, see `ResNet18`.
        return moved if x.is_cuda else moved.contiguous()


class Prepared(nn.Module):
    """A feature extractor with what is done to its rows on the way, to be trained as one network.

    Images stay bytes until a mini-batch of them is needed: ``before`` augments and standardises it then, on
    the device.

    Parameters
    ----------
    before : rows (n, ...) as they are kept -> rows for the extractor.
    extractor : rows (n, ...) -> features (n, D).
    precision : what the extractor computes in while it is trained on a GPU. Evaluation is always in float32:
        in half precision the features of a row would vary with the rows beside it.
    """

    def __init__(self, before: nn.Module, extractor: nn.Module, precision: Precision = "float32") -> None:
        super().__init__()
        self.before, self.extractor, self.precision = before, extractor, precision

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.before(x)
        half = self.precision == "bfloat16" and self.training and x.is_cuda
        # A cache of weights in half precision would outlive the CUDA graph that it was made in.
        with torch.autocast(x.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            features: Tensor = self.extractor(x)
        return features.to(x.dtype)
