"""Batch norm of images together with what follows it, as a few passes over memory on a GPU.

Convolutions are quick there, so batch norm, the sum with a residual and ReLU would take nearly half of a
training step if each read and wrote its images by itself. In bfloat16 torch has no quick batch norm at all.
"""

from __future__ import annotations

import functools
import typing
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from coresift.search.kernels import compiled, power_of_two

# What kernels look up here is triton.language and its constexpr, from the first time they are needed.
constexpr = Any
tl: Any = None

# Channels and pixels that a program reads at a time.
_CHANNELS, _PIXELS = 64, 64
# Programs of a sum for each multiprocessor: few enough for their sums to be added by one program.
_PROGRAMS = 4


class BatchNorm(nn.BatchNorm2d):
    """Batch norm of images (n, channels, height, width), the sum with a residual, and ReLU.

    On a GPU all of it is computed at once where Triton is to be had; images then lie with their channels last
    in memory.

    Parameters
    ----------
    relu : whether negative numbers become zero at the end.

    >>> images, norm = torch.tensor([[[[1.0, 3.0]]]]), BatchNorm(1)
    >>> norm(images).detach().round(), norm(images, images).detach().round()
    (tensor([[[[0., 1.]]]]), tensor([[[[0., 4.]]]]))
    """

    def __init__(self, channels: int, relu: bool = True) -> None:
        super().__init__(channels)
        self.relu = relu

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if not self._has_kernels(x, residual):
            normed = super().forward(x)
            normed = normed if residual is None else normed + residual
            return torch.relu(normed) if self.relu else normed
        state = self.weight, self.bias, self.running_mean, self.running_var
        momentum = self.momentum if self.training else None
        fused: Tensor = Fused.apply(x, residual, *state, momentum, self.eps, self.relu)[0]  # type: ignore[no-untyped-call]
        return fused

    def _has_kernels(self, x: Tensor, residual: Tensor | None) -> bool:
        """Whether it is a case for the kernels; of any other, torch makes something or says what is wrong."""
        if self.training:
            usual = self.momentum is not None and x.numel() > x.shape[1]
        else:
            usual = not torch.is_grad_enabled() and x.numel() > 0
        fits = x.shape[1] == self.num_features and (residual is None or residual.shape == x.shape)
        single = self.weight.dtype == torch.float32 and x.dtype != torch.float64
        return usual and fits and single and x.is_cuda and _kernels() is not None


class Fused(torch.autograd.Function):
    """Batch norm, a residual added and ReLU, by kernels; also the mean and one over the deviation of each
    channel. Without a momentum the running statistics decide, as in evaluation, and there is no gradient.
    """

    @staticmethod
    def forward(
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float | None,
        epsilon: float,
        relu: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, residual = _channels_last(x), None if residual is None else _channels_last(residual.to(x.dtype))
        y, grid, kernels = torch.empty_like(x), _Grid(x), _kernels()
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            if momentum is None:
                mean, inverse = running_mean.clone(), (running_var + epsilon).rsqrt()
            else:
                mean, inverse, sums = torch.empty_like(weight), torch.empty_like(weight), grid.sums()
                kernels.sum_up[grid.adding](x, sums, *grid.sizes, **grid.blocks)
                kernels.find_statistics[grid.channels](
                    x, sums, mean, inverse, running_mean, running_var, momentum, epsilon, *grid.sizes,
                    **grid.all_sums,
                )  # fmt: skip
            kernels.norm[grid.each](
                x, x if residual is None else residual, y, mean, inverse, weight, bias, *grid.sizes,
                RESIDUAL=residual is not None, RELU=relu, **grid.blocks,
            )  # fmt: skip
        return y, mean, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, residual, weight, bias, *_, relu = inputs
        y, mean, inverse = output
        ctx.mark_non_differentiable(mean, inverse)
        # Without a residual, where ReLU was zero follows from x.
        ctx.save_for_backward(x, weight, bias, mean, inverse, None if residual is None else y)
        ctx.relu = relu

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight, bias, mean, inverse, y = ctx.saved_tensors
        x, upper = _channels_last(x), _channels_last(gradients[0])
        residual = y is not None
        lower, kept = torch.empty_like(x), torch.empty_like(x) if residual else x
        grid = _Grid(x)
        sums, totals = grid.sums(), torch.empty(2, len(weight), device=x.device)
        state, kernels = (mean, inverse, weight, bias), _kernels()
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            kernels.sum_up_gradients[grid.adding](
                upper, x, y if residual else x, kept, *state, sums, *grid.sizes,
                RESIDUAL=residual, RELU=ctx.relu, **grid.blocks,
            )  # fmt: skip
            kernels.add[grid.channels](sums, totals, *grid.sizes, **grid.all_sums)
            # With a residual, what ReLU let through was kept, as the residual's own gradient.
            kernels.norm_gradients[grid.each](
                kept if residual else upper, x, lower, *state, totals, *grid.sizes,
                RELU=ctx.relu and not residual, **grid.blocks,
            )  # fmt: skip
        return lower, kept if residual else None, totals[1], totals[0], None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        """Networks side by side, along the first dimension: one after the other."""
        if any(at for at in in_dims):
            raise ValueError(f"networks side by side lie along the first dimension, got {in_dims}")
        each = []
        for one in range(info.batch_size):
            own = (value if at is None else value[one] for value, at in zip(inputs, in_dims, strict=True))
            each.append(Fused.apply(*own))  # type: ignore[no-untyped-call]
        return tuple(torch.stack(values) for values in zip(*each, strict=True)), (0, 0, 0)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


class _Grid:
    """How kernels are spread over images (n, channels, height, width).

    Attributes
    ----------
    sizes : how many pixels in all, how many of them a program adds up, how many programs do, and channels.
    adding, each, channels : programs that add up, that look at each number, that look at each channel.
    """

    def __init__(self, x: Tensor) -> None:
        self.device, width = x.device, x.shape[1]
        pixels = x.numel() // width
        units = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
        across, blocks = -(-width // _CHANNELS), -(-pixels // _PIXELS)
        share = -(-blocks // max(min(_PROGRAMS * units // across, blocks), 1))
        programs = -(-blocks // share)
        self.sizes = pixels, share * _PIXELS, programs, width
        self.adding, self.each, self.channels = (programs, across), (blocks, across), (-(-width // 8),)
        self.blocks = {"CHANNELS": min(_CHANNELS, power_of_two(width)), "PIXELS": _PIXELS}
        self.all_sums = {"PROGRAMS": power_of_two(programs)}

    def sums(self) -> Tensor:
        """Room for two sums of each program and channel."""
        return torch.empty(2, *self.sizes[2:], device=self.device)


@functools.cache
def _kernels() -> Any:
    functions = _sum_up, _find_statistics, _norm, _sum_up_gradients, _add, _norm_gradients
    return compiled(globals(), *functions, any_value=("pixels", "share", "programs"))


# Kernels. Images lie as (pixels, channels); sums and state are float32. A block of numbers is read whole
# before it is used, and sums of a program's blocks are added over its threads only at the end.


def _sum_up(
    x: typing.Any,
    sums: typing.Any,
    pixels: typing.Any,
    share: typing.Any,
    programs: typing.Any,
    width: typing.Any,
    CHANNELS: constexpr,
    PIXELS: constexpr,
) -> None:
    """Sums of the numbers and of their squares, less the first pixel: so an offset costs no precision."""
    program = tl.program_id(0)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < width
    first = tl.load(x + channel, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((PIXELS, CHANNELS), tl.float32)
    squares = tl.zeros((PIXELS, CHANNELS), tl.float32)
    start = tl.cast(program, tl.int64) * share
    for begin in range(0, share, PIXELS):
        pixel = start + begin + tl.arange(0, PIXELS)
        mask = (pixel < pixels)[:, None] & inside[None, :]
        value = tl.load(x + pixel[:, None] * width + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - first[None, :], 0.0)
        total += value
        squares += value * value
    place = sums + program * width + channel
    tl.store(place, tl.sum(total, axis=0), mask=inside)
    tl.store(place + programs * width, tl.sum(squares, axis=0), mask=inside)


def _find_statistics(
    x: typing.Any,
    sums: typing.Any,
    mean: typing.Any,
    inverse: typing.Any,
    running_mean: typing.Any,
    running_var: typing.Any,
    momentum: typing.Any,
    epsilon: typing.Any,
    pixels: typing.Any,
    share: typing.Any,
    programs: typing.Any,
    width: typing.Any,
    PROGRAMS: constexpr,
) -> None:
    """Each channel's mean and one over its deviation, and what evaluation will go by."""
    channel = tl.program_id(0) * 8 + tl.arange(0, 8)
    program = tl.arange(0, PROGRAMS)
    inside = channel < width
    mask = (program < programs)[:, None] & inside[None, :]
    place = sums + program[:, None] * width + channel[None, :]
    offset = tl.sum(tl.load(place, mask=mask, other=0.0), axis=0) / pixels
    square = tl.sum(tl.load(place + programs * width, mask=mask, other=0.0), axis=0) / pixels
    variance = tl.maximum(square - offset * offset, 0.0)
    found = tl.load(x + channel, mask=inside, other=0.0).to(tl.float32) + offset
    tl.store(mean + channel, found, mask=inside)
    tl.store(inverse + channel, 1 / tl.sqrt(variance + epsilon), mask=inside)
    old = tl.load(running_mean + channel, mask=inside, other=0.0)
    tl.store(running_mean + channel, old + momentum * (found - old), mask=inside)
    old = tl.load(running_var + channel, mask=inside, other=0.0)
    unbiased = variance * (pixels / (pixels - 1.0))
    tl.store(running_var + channel, old + momentum * (unbiased - old), mask=inside)


def _norm(
    x: typing.Any,
    residual: typing.Any,
    y: typing.Any,
    mean: typing.Any,
    inverse: typing.Any,
    weight: typing.Any,
    bias: typing.Any,
    pixels: typing.Any,
    share: typing.Any,
    programs: typing.Any,
    width: typing.Any,
    RESIDUAL: constexpr,
    RELU: constexpr,
    CHANNELS: constexpr,
    PIXELS: constexpr,
) -> None:
    """Write y = max((x - mean) inverse weight + bias + residual, 0)."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < width
    pixel = tl.cast(tl.program_id(0), tl.int64) * PIXELS + tl.arange(0, PIXELS)
    mask = (pixel < pixels)[:, None] & inside[None, :]
    place = pixel[:, None] * width + channel[None, :]
    value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    if RESIDUAL:
        added = tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    centre = tl.load(mean + channel, mask=inside, other=0.0)
    scale = tl.load(inverse + channel, mask=inside, other=0.0)
    gain = tl.load(weight + channel, mask=inside, other=0.0)
    shift = tl.load(bias + channel, mask=inside, other=0.0)
    value = (value - centre[None, :]) * scale[None, :] * gain[None, :] + shift[None, :]
    if RESIDUAL:
        value += added
    if RELU:
        value = tl.where(value < 0, 0.0, value)  # what is no number stays so
    tl.store(y + place, value, mask=mask)


def _sum_up_gradients(
    upper: typing.Any,
    x: typing.Any,
    y: typing.Any,
    kept: typing.Any,
    mean: typing.Any,
    inverse: typing.Any,
    weight: typing.Any,
    bias: typing.Any,
    sums: typing.Any,
    pixels: typing.Any,
    share: typing.Any,
    programs: typing.Any,
    width: typing.Any,
    RESIDUAL: constexpr,
    RELU: constexpr,
    CHANNELS: constexpr,
    PIXELS: constexpr,
) -> None:
    """Sums of the gradients that ReLU lets through, and of their products with the normed numbers."""
    program = tl.program_id(0)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < width
    centre = tl.load(mean + channel, mask=inside, other=0.0)
    scale = tl.load(inverse + channel, mask=inside, other=0.0)
    gain = tl.load(weight + channel, mask=inside, other=0.0)
    shift = tl.load(bias + channel, mask=inside, other=0.0)
    total = tl.zeros((PIXELS, CHANNELS), tl.float32)
    products = tl.zeros((PIXELS, CHANNELS), tl.float32)
    start = tl.cast(program, tl.int64) * share
    for begin in range(0, share, PIXELS):
        pixel = start + begin + tl.arange(0, PIXELS)
        mask = (pixel < pixels)[:, None] & inside[None, :]
        place = pixel[:, None] * width + channel[None, :]
        gradient = tl.load(upper + place, mask=mask, other=0.0).to(tl.float32)
        normed = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        normed = (normed - centre[None, :]) * scale[None, :]
        if RELU:
            if RESIDUAL:
                out = tl.load(y + place, mask=mask, other=0.0).to(tl.float32)
            else:
                out = normed * gain[None, :] + shift[None, :]
            gradient = tl.where(out <= 0, 0.0, gradient)
        if RESIDUAL:
            tl.store(kept + place, gradient, mask=mask)
        total += gradient
        products += gradient * normed
    place = sums + program * width + channel
    tl.store(place, tl.sum(total, axis=0), mask=inside)
    tl.store(place + programs * width, tl.sum(products, axis=0), mask=inside)


def _add(
    sums: typing.Any,
    totals: typing.Any,
    pixels: typing.Any,
    share: typing.Any,
    programs: typing.Any,
    width: typing.Any,
    PROGRAMS: constexpr,
) -> None:
    """The sums of all programs."""
    channel = tl.program_id(0) * 8 + tl.arange(0, 8)
    program = tl.arange(0, PROGRAMS)
    inside = channel < width
    mask = (program < programs)[:, None] & inside[None, :]
    place = sums + program[:, None] * width + channel[None, :]
    first = tl.sum(tl.load(place, mask=mask, other=0.0), axis=0)
    second = tl.sum(tl.load(place + programs * width, mask=mask, other=0.0), axis=0)
    tl.store(totals + channel, first, mask=inside)
    tl.store(totals + width + channel, second, mask=inside)


def _norm_gradients(
    upper: typing.Any,
    x: typing.Any,
    lower: typing.Any,
    mean: typing.Any,
    inverse: typing.Any,
    weight: typing.Any,
    bias: typing.Any,
    totals: typing.Any,
    pixels: typing.Any,
    share: typing.Any,
    programs: typing.Any,
    width: typing.Any,
    RELU: constexpr,
    CHANNELS: constexpr,
    PIXELS: constexpr,
) -> None:
    """Write lower = (g - mean g - normed mean (g normed)) inverse weight; g is what ReLU lets through."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < width
    pixel = tl.cast(tl.program_id(0), tl.int64) * PIXELS + tl.arange(0, PIXELS)
    mask = (pixel < pixels)[:, None] & inside[None, :]
    place = pixel[:, None] * width + channel[None, :]
    gradient = tl.load(upper + place, mask=mask, other=0.0).to(tl.float32)
    normed = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    centre = tl.load(mean + channel, mask=inside, other=0.0)
    scale = tl.load(inverse + channel, mask=inside, other=0.0)
    gain = tl.load(weight + channel, mask=inside, other=0.0)
    shift = tl.load(bias + channel, mask=inside, other=0.0)
    mean_gradient = tl.load(totals + channel, mask=inside, other=0.0) / pixels
    mean_product = tl.load(totals + width + channel, mask=inside, other=0.0) / pixels
    normed = (normed - centre[None, :]) * scale[None, :]
    if RELU:
        gradient = tl.where(normed * gain[None, :] + shift[None, :] <= 0, 0.0, gradient)
    gradient = gradient - mean_gradient[None, :] - normed * mean_product[None, :]
    tl.store(lower + place, gradient * (scale * gain)[None, :], mask=mask)
