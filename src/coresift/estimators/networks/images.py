"""Networks for images: a ResNet-18, crops and flips at random, and the precision of training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coresift.checks import check_integer


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


class ResNet18(nn.Module):
    """Images (n, channels, height, width) -> features (n, features).

    Made for images of about 32 x 32, such as CIFAR: a stem of 3 x 3 filters that keeps the size, no pooling
    before the global average, stages of ``width`` 64 to 512 filters, then a layer of 32 units with
    ReLU. All weights start from Glorot's uniform distribution.

    References
    ----------
    He et al., Deep Residual Learning for Image Recognition, 2016.
    Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, 2010.

    >>> ResNet18(channels=1, width=4).eval()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 32])
    """

    recordable = True  # a fixed sequence of kernels, for any images

    def __init__(self, channels: int = 3, features: int = 32, width: int = 64) -> None:
        super().__init__()
        channels, features, width = (
            check_integer(value, 1, name)
            for name, value in (("channels", channels), ("features", features), ("width", width))
        )
        self.stem = nn.Sequential(Convolution(channels, width), nn.BatchNorm2d(width))
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        blocks: list[nn.Module] = []
        for stage in range(4):
            blocks.append(ResidualBlock(sizes[stage], sizes[stage + 1], stride=1 if stage == 0 else 2))
            blocks.append(ResidualBlock(sizes[stage + 1], sizes[stage + 1]))
        self.blocks = nn.Sequential(*blocks)
        self.last = FullyConnected(sizes[-1], features)

    def forward(self, x: Tensor) -> Tensor:
        # Channels last is the faster format on a GPU; on a CPU torch 2.13 writes out of bounds with it, in
        # gradients of strided filters of size 1.
        x = x.contiguous(memory_format=torch.channels_last if x.is_cuda else torch.contiguous_format)
        hidden = self.blocks(torch.relu(self.stem(x)))
        return torch.relu(self.last(hidden.mean((2, 3))))


class ResidualBlock(nn.Module):
    """Two layers of 3 x 3 filters, added to their input; filters of size 1 adapt it if the sizes differ."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Sequential(Convolution(inputs, outputs, stride=stride), nn.BatchNorm2d(outputs))
        self.second, self.norm = Convolution(outputs, outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                Convolution(inputs, outputs, size=1, stride=stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        return torch.relu(self.norm(self.second(hidden)) + self.shortcut(x))


# Layers with `reset_parameters`, so that each can be initialised again by itself.


class Convolution(nn.Conv2d):
    """Filters of odd ``size`` without bias, padded to keep the image's size, with Glorot's weights."""

    def __init__(self, inputs: int, outputs: int, size: int = 3, stride: int = 1) -> None:
        super().__init__(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)


class FullyConnected(nn.Linear):
    """A linear layer with Glorot's weights and a bias of zero."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)
