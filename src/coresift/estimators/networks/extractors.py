"""Feature extractors: the paper's for tables and for images, and how any extractor gets new weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from coresift.checks import check_integer
from coresift.errors import InputError
from coresift.estimators.networks.layers import is_frozen

_EPSILON = 1e-5
# What makes an extractor: ``None`` for an `MLP`, a module, or a function from columns or channels to one.
Network: TypeAlias = "nn.Module | Callable[[int], nn.Module] | None"


class MLP(nn.Module):
    """Layers of ``widths`` units, each Linear, BatchNorm1d, ReLU; two of 30 units are the paper's.

    The linear layers have no bias, since batch norm would subtract it again. The layers are torch's own, so
    a network works anywhere; `stacked` computes S of them at once.

    >>> MLP(6)(torch.zeros(4, 6)).shape
    torch.Size([4, 30])
    """

    def __init__(self, inputs: int, widths: Sequence[int] = (30, 30)) -> None:
        super().__init__()
        widths = [check_integer(width, 1, "a width") for width in widths]
        sizes = [check_integer(inputs, 1, "inputs"), *widths]
        self.linear = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in zip(sizes, widths, strict=False))
        self.norm = nn.ModuleList(nn.BatchNorm1d(width, eps=_EPSILON) for width in widths)

    def forward(self, x: Tensor) -> Tensor:
        for linear, norm in zip(self.linear, self.norm, strict=True):
            x = torch.relu(norm(linear(x)))
        return x

    def stacked(
        self, state: dict[str, Tensor], x: Tensor, rows: Tensor | None, settle: bool = False
    ) -> Tensor:
        """S networks in training mode: (S, n, inputs) -> (S, n, features).

        Parameters
        ----------
        state : parameters and buffers by name, each with S in front.
        rows : (S, n), 1 / number of real rows, zero for padding; ``None`` if all are real.
        settle : keep the rows' statistics for evaluation mode, which then gives the same outputs.
        """
        if rows is None and x.shape[1] == 1:  # torch's batch norm raises for a single row
            rows = x.new_ones(x.shape[:2])
        columns = x.mT  # (S, width, n): each unit's values are contiguous, for batch norm and products
        for layer in range(len(self.linear)):
            columns = torch.bmm(state[f"linear.{layer}.weight"], columns)
            if settle:
                mean, variance = _statistics(columns, rows)
                state[f"norm.{layer}.running_mean"].copy_(mean.squeeze(2))
                state[f"norm.{layer}.running_var"].copy_(variance.squeeze(2))
            gain, shift = state[f"norm.{layer}.weight"], state[f"norm.{layer}.bias"]
            columns = torch.relu_(_batch_norm(columns, rows, gain, shift))
        return columns.mT


def _statistics(columns: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """Means and variances (S, width, 1) of columns (S, width, n) over the rows."""
    if rows is None:
        rows = columns.new_full((len(columns), columns.shape[2]), 1 / columns.shape[2])
    mean = torch.bmm(columns, rows.unsqueeze(2))
    return mean, torch.bmm((columns - mean).square(), rows.unsqueeze(2))


def _batch_norm(columns: Tensor, rows: Tensor | None, gain: Tensor, shift: Tensor) -> Tensor:
    """Batch norm of S networks at once: columns (S, width, n); gain, shift (S, width); ``rows`` as above."""
    # torch's kernel is made for many rows of few channels; on a GPU, for hundreds of networks, plain sums are
    # faster by a third.
    if rows is not None or columns.is_cuda:
        mean, variance = _statistics(columns, rows)
        return (columns - mean) * (torch.rsqrt(variance + _EPSILON) * gain.unsqueeze(2)) + shift.unsqueeze(2)
    # One batch norm over S * width channels, which on a CPU is twice as fast as plain sums.
    channels = columns.view(1, -1, columns.shape[2])
    gain, shift = gain.flatten(), shift.flatten()
    normal = nn.functional.batch_norm(channels, None, None, gain, shift, training=True, eps=_EPSILON)
    return normal.view(columns.shape)


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
        channels = check_integer(channels, 1, "channels")
        features, width = check_integer(features, 1, "features"), check_integer(width, 1, "width")
        self.stem = nn.Sequential(Convolution(channels, width), nn.BatchNorm2d(width))
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        self.blocks = nn.Sequential()
        for stage in range(4):
            self.blocks.append(ResidualBlock(sizes[stage], sizes[stage + 1], stride=1 if stage == 0 else 2))
            self.blocks.append(ResidualBlock(sizes[stage + 1], sizes[stage + 1]))
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
            self.shortcut.append(Convolution(inputs, outputs, size=1, stride=stride))
            self.shortcut.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        return torch.relu(self.norm(self.second(hidden)) + self.shortcut(x))


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


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Seed torch's global generator, from which layers draw, by a draw from ``generator``."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield


def new_network(network: Network, inputs: int, generator: torch.Generator) -> nn.Module:
    """Return a feature extractor whose weights are drawn from ``generator``; ``network`` stays as it is."""
    with seeded(generator):
        if network is None:
            return MLP(inputs)
        if isinstance(network, nn.Module):
            return _redrawn(copy.deepcopy(network))
        return copy.deepcopy(network(inputs))  # a function may return the same module each time


def _redrawn(network: nn.Module) -> nn.Module:
    """Draw all weights again, except those of frozen layers."""
    for name, layer in network.named_modules():
        if is_frozen(layer):
            continue
        reset: Any = getattr(layer, "reset_parameters", None)
        if reset is not None:
            reset()
        elif list(layer.parameters(recurse=False)):
            raise InputError(
                f"layer {name!r} of the network, a {type(layer).__name__}, has no "
                "reset_parameters to draw its weights again; pass a function that makes the network instead"
            )
    return network


def count_features(extractor: nn.Module, x: Tensor) -> int:
    """Return how many features a network makes of rows like ``x`` (n, ...)."""
    with torch.no_grad():
        features = extractor.to(x.device).eval()(x[:1]).cpu()
        extractor.cpu()
    if features.ndim != 2:
        raise InputError(
            f"the network turns one row into shape {tuple(features.shape)}, expected (1, features); "
            "end it with pooling or nn.Flatten()"
        )
    return int(features.shape[1])
