"""Labelled sets of several networks side by side, and the order in which training reads their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from coresift import limits

# Rows of each network's set: (S, m), or a slice that all networks share.
Rows: TypeAlias = "Tensor | slice"


def take_rows(values: Tensor, index: Rows) -> Tensor:
    """Take each network's own rows: (S, n, ...) -> (S, m, ...)."""
    if isinstance(index, slice):
        return values[:, index]
    return values[torch.arange(len(values), device=values.device)[:, None], index]


@dataclass(frozen=True, eq=False)
class LabelledStack:
    """Hold S labelled sets, padded to one number of rows.

    Attributes
    ----------
    x : (S, n, ...), y : (S, n, ...); padding is zero.
    sizes : (S,) how many rows of each set are real.
    """

    x: Tensor
    y: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, sets: Sequence[tuple[Tensor, Tensor]]) -> LabelledStack:
        """Stack labelled sets (x, y) of any sizes."""
        x, y = (pad_sequence(list(values), batch_first=True) for values in zip(*sets, strict=True))
        return cls(x, y, torch.tensor([len(x) for x, _ in sets]))

    def to(self, device: torch.device | str, dtype: torch.dtype) -> LabelledStack:
        """Move to a device; floating point numbers get ``dtype``, bytes and class codes stay as they are."""
        x, y = (value.to(dtype) if value.is_floating_point() else value for value in (self.x, self.y))
        return LabelledStack(x.to(device), y.to(device), self.sizes.to(device))

    def orders(self, generators: Sequence[torch.Generator], epochs: int) -> Iterator[Tensor]:
        """Yield an order (S, n) of the real rows for each epoch; padding stays at the end.

        Each network's order is drawn from its own generator, for many epochs at a time: one call for each
        network and epoch would take longer than a GPU's work.
        """
        longest = self.x.shape[1]
        ahead = max(min(epochs, limits.ROW_NUMBERS_DRAWN // (len(self.sizes) * longest)), 1)
        for start in range(0, epochs, ahead):
            keys = torch.arange(1.0, longest + 1).repeat(min(ahead, epochs - start), len(self.sizes), 1)
            for part, size, generator in zip(keys.unbind(1), self.sizes.tolist(), generators, strict=True):
                part[:, :size] = torch.rand(len(part), size, generator=generator)
            yield from keys.to(self.x.device).argsort(dim=2, stable=True)

    def ordered(self, order: Tensor) -> LabelledStack:
        """Return the same sets with their rows in the order (S, n), or some of them if nothing is padded."""
        ordered = replace(self, x=take_rows(self.x, order), y=take_rows(self.y, order))
        ordered.__dict__["rows"] = self.rows  # to look for padding again would wait for the GPU
        return ordered

    @cached_property
    def rows(self) -> Tensor | None:
        """(S, n) 1 / size for real rows and zero for padding; ``None`` if nothing is padded."""
        longest = self.x.shape[1]
        if bool((self.sizes == longest).all()):
            return None
        real = torch.arange(longest, device=self.x.device) < self.sizes[:, None]
        return real / self.sizes[:, None].to(self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """The floating point type of the computation."""
        return self.x.dtype if self.x.is_floating_point() else torch.float32

    def steps(self, splits: Sequence[Sequence[int]]) -> list[tuple[Rows, Tensor, Tensor | None]]:
        """Say which rows of the shuffled sets are in which mini-batch: the next ones each time.

        Returns for each step of an epoch the rows, their weights (S, m), which sum to one, and which networks
        take part (S,), or ``None`` for all. ``splits`` are the sizes of each network's mini-batches.
        """
        sizes = pad_sequence([torch.tensor(split) for split in splits], True)  # (S, steps)
        starts = sizes.cumsum(1) - sizes
        column = torch.arange(int(sizes.max()))
        real = column < sizes[:, :, None]  # (S, steps, m)
        weights = (real / sizes[:, :, None].clamp(min=1).double()).to(self.x.device, self.dtype)
        active = sizes > 0  # a network whose epoch is over waits for the others
        # If one network waits in any step, each network counts its own steps, in all of them.
        taking_part = [None] * sizes.shape[1] if bool(active.all()) else active.to(self.x.device).unbind(1)
        steps: list[tuple[Rows, Tensor, Tensor | None]] = []
        for step, part in enumerate(taking_part):
            first, width = int(starts[0, step]), int(sizes[:, step].max())
            index: Rows = slice(first, first + width)
            if not bool(((starts[:, step] == first) & (sizes[:, step] == width)).all()):
                rows = starts[:, step, None] + column[:width]
                index = torch.where(real[:, step, :width], rows, 0).to(self.x.device)
            steps.append((index, weights[:, step, :width], part))
        return steps
