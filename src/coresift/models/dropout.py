"""Monte Carlo dropout: a network trained with dropout, with a posterior sample for each set of masks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from coresift.models.gaussian import check_positive
from coresift.models.samples import categorical, gaussian, mixture
from coresift.types import InputError

# Layers that drop whole channels; a plain Dropout drops single units.
_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
# Numbers that a layer holds at a time, over all samples and a block of rows: what a cache holds is fastest.
_WORKING_SET = 2**20


@dataclass(frozen=True, eq=False)
class DropoutPosterior:
    """A network with dropout, in all of its layers or only in the last: its masks are the posterior samples.

    The paper's Algorithm 2 compares points under the *same* theta_j. So a sample fixes one mask for each call
    of a dropout layer, and every row of every chunk sees that mask, where the network in training mode would
    draw another for each row. Batch norm and all else are in evaluation mode. The network is copied: the
    posterior stays what it is while training goes on.

    Parameters
    ----------
    network : rows (n, ...) -> outputs (n, C), with layers `nn.Dropout`, `nn.Dropout1d`, 2d or 3d.
    likelihood : what the outputs mean: "classes" for logits, "gaussian" for means, or a function from outputs
        (J, n, ...) to a Distribution of batch shape (J, n).
    noise_variance : of y, in the Gaussian case.
    num_predictive : how many sets of masks the predictive averages over; always the same ones.

    References
    ----------
    Gal and Ghahramani, Dropout as a Bayesian Approximation, 2016.

    >>> network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    >>> posterior = DropoutPosterior(network)
    >>> posterior.conditional(torch.ones(4, 2), posterior.sample(5, torch.Generator())).batch_shape
    torch.Size([5, 4])
    """

    network: nn.Module
    likelihood: Literal["classes", "gaussian"] | Callable[[Tensor], Distribution] = "classes"
    noise_variance: float | None = None
    num_predictive: int = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", copy.deepcopy(self.network).eval())
        if not self._layers:
            raise InputError(
                "the network has no dropout layer: it needs nn.Dropout, nn.Dropout1d, nn.Dropout2d or "
                "nn.Dropout3d (a call of F.dropout cannot be seen from outside)"
            )
        if isinstance(self.likelihood, str) and self.likelihood not in ("classes", "gaussian"):
            raise InputError(
                f"likelihood is {self.likelihood!r}, expected 'classes', 'gaussian' or a function"
            )
        if (self.likelihood == "gaussian") != (self.noise_variance is not None):
            raise InputError("noise_variance goes with likelihood='gaussian', and each needs the other")
        if self.noise_variance is not None:
            check_positive(self.noise_variance, "noise_variance")

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """(J,) seeds, each of one set of masks: its masks are drawn when needed, and always the same."""
        return torch.randint(2**62, (num,), generator=generator)

    def conditional(self, x: Tensor, theta: Tensor) -> Distribution:
        outputs = self.outputs(x, theta)
        if self.likelihood == "classes":
            return categorical(outputs)
        if self.noise_variance is not None:
            mean = outputs.reshape(*outputs.shape[:2], -1)
            return gaussian(mean, torch.full_like(mean, self.noise_variance**0.5))
        assert callable(self.likelihood)
        return self.likelihood(outputs)

    def predictive(self, x: Tensor) -> Distribution:
        return mixture(self.conditional(x, self._seeds))

    @torch.no_grad()
    def outputs(self, x: Tensor, theta: Tensor) -> Tensor:
        """(J, n, ...) the network's outputs with the masks of each seed."""
        where = next(self.network.parameters())
        x = x.to(where.device, where.dtype)
        layers = self._record(x[:1])
        masks = [_draw(layers, int(seed)) for seed in theta]
        together = [torch.stack(each).to(where) for each in zip(*masks, strict=True)]
        widest = max(row.numel() for _, row in layers)
        size = max(_WORKING_SET // (len(theta) * widest), 1)
        return torch.cat([self._masked(rows, together) for rows in torch.split(x, size)], 1)

    def _masked(self, x: Tensor, masks: list[Tensor]) -> Tensor:
        """(J, n, ...) outputs, with masks (J, ...) in the order in which the layers are called."""

        def one(*own: Tensor) -> Tensor:
            remaining = iter(own)
            with self._hooked(lambda _, output: output * next(remaining)):
                outputs: Tensor = self.network(x)
                return outputs

        try:
            # What comes before the first dropout layer is computed once for all samples.
            outputs: Tensor = torch.vmap(one)(*masks)
        except RuntimeError:  # a network that torch cannot vectorise
            outputs = torch.stack([one(*own) for own in zip(*masks, strict=True)])
        return outputs

    def _record(self, row: Tensor) -> list[tuple[nn.Module, torch.Size]]:
        """The dropout layers in the order of their calls, and the shape of a row there."""
        calls: list[tuple[nn.Module, torch.Size]] = []

        def note(layer: nn.Module, output: Tensor) -> Tensor:
            if len(output) != 1:
                raise InputError(
                    f"a dropout layer sees shape {tuple(output.shape)} for a single row of the pool; "
                    "rows must stay apart, along the first axis"
                )
            calls.append((layer, output.shape[1:]))
            return output

        with self._hooked(note):
            self.network(row)
        if not calls:
            raise InputError("the network has dropout layers, but calls none of them")
        return calls

    @contextmanager
    def _hooked(self, change: Callable[[nn.Module, Tensor], Tensor]) -> Iterator[None]:
        """Put every dropout layer's output, which is its input in evaluation mode, through ``change``."""
        hooks = [
            layer.register_forward_hook(lambda layer, _, output: change(layer, output))
            for layer in self._layers
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @cached_property
    def _layers(self) -> list[nn.Module]:
        return [layer for layer in self.network.modules() if isinstance(layer, (nn.Dropout, *_CHANNELS))]

    @cached_property
    def _seeds(self) -> Tensor:
        return self.sample(self.num_predictive, torch.Generator().manual_seed(0))


def _draw(layers: list[tuple[nn.Module, torch.Size]], seed: int) -> list[Tensor]:
    """One set of masks, each of the shape of a row or of its channels: zero, or 1 / (1 - p) where kept."""
    generator = torch.Generator().manual_seed(seed)
    masks = []
    for layer, row in layers:
        shape = (row[0], *(1 for _ in row[1:])) if isinstance(layer, _CHANNELS) else row
        rate = float(layer.p)  # type: ignore[arg-type]
        kept = torch.rand(shape, generator=generator) >= rate
        masks.append(kept / (1 - rate) if rate < 1 else kept.float())
    return masks
