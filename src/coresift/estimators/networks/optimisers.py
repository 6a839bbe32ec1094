"""Adam for a stack of networks, with weight decay, and for networks that wait for the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from coresift.estimators.networks.stack import Stack

_BETAS, _EPSILON = (0.9, 0.999), 1e-8


def optimiser(stack: Stack, weight_decay: float, decay_gains: bool, decoupled: bool) -> Adam | SingleAdam:
    """Return the optimiser for a stack; the options are those of `Adam`."""
    single = stack.records_steps and stack.flat.dtype == torch.float32
    if decoupled and single and stack.trained() is None:
        return SingleAdam(stack, weight_decay, decay_gains)
    return Adam(stack, weight_decay, decay_gains, decoupled)


class Adam:
    """Adam on all weights of a stack; a network that waits for the others keeps its own count of steps.

    The options are those of `Trainer`. If ``decoupled``, weight decay is applied apart from the gradient, as
    AdamW does (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019).
    """

    def __init__(self, stack: Stack, weight_decay: float, decay_gains: bool, decoupled: bool) -> None:
        self.flat, self.decoupled, self.trained = stack.flat, decoupled, stack.trained()
        decay = weight_decay * stack.decayed(decay_gains)
        self.decay = decay.expand_as(stack.flat).contiguous()
        self.mean, self.square = torch.zeros_like(stack.flat), torch.zeros_like(stack.flat)
        self.count = stack.flat.new_zeros((), dtype=torch.float64)  # of steps, if all networks take part
        self.counts = stack.flat.new_zeros(len(stack), 1)  # if some wait

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: Tensor, active: Tensor | None) -> None:
        """Change the weights of the networks ``active`` (S,), or of all; the others keep theirs."""
        gradient = torch.cat([part.flatten(1) for part in gradients], 1)
        if self.decoupled:
            own_rate = rate if active is None else rate * active[:, None].to(gradient)
            self.flat.sub_(self.flat * self.decay * own_rate)
        else:
            gradient = torch.addcmul(gradient, self.flat, self.decay)
        if self.trained is not None:
            gradient = gradient * self.trained
        self._step(gradient, rate, active)

    def _step(self, gradient: Tensor, rate: Tensor, active: Tensor | None) -> None:
        first, second = _BETAS
        if active is None:
            self.count += 1
            count = self.count
            self.mean.lerp_(gradient, 1 - first)
            self.square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        else:
            moving = active[:, None].to(gradient)
            self.counts += moving
            count, rate = self.counts, rate * moving
            self.mean.lerp_(gradient, (1 - first) * moving)
            self.square.lerp_(gradient.square(), (1 - second) * moving)
        scale = self.square.div(1 - second**count).sqrt_().add_(_EPSILON)
        self.flat.sub_(self.mean.div(scale).mul_(rate / (1 - first**count)))


class SingleAdam:
    """torch's own AdamW for a stack of one large network, which reads the weights once in each step."""

    def __init__(self, stack: Stack, weight_decay: float, decay_gains: bool) -> None:
        self.parameters = {name: value.detach().squeeze(0) for name, value in stack.parameters.items()}
        groups: dict[bool, list[Tensor]] = defaultdict(list)
        for name, value in self.parameters.items():
            groups[stack.decays(name, decay_gains)].append(value)
        self.adam = torch.optim.AdamW(
            [{"params": group, "weight_decay": weight_decay * decays} for decays, group in groups.items()],
            betas=_BETAS,
            eps=_EPSILON,
            fused=True,
            capturable=stack.flat.is_cuda,
        )

    def step(self, gradients: Sequence[Tensor], rate: Tensor, active: Tensor | None = None) -> None:
        for group in self.adam.param_groups:
            group["lr"] = rate
        for value, gradient in zip(self.parameters.values(), gradients, strict=True):
            # Both must have the same memory format; gradients of filters come with channels last.
            value.grad = gradient.squeeze(0).contiguous()
        self.adam.step()
        self.adam.zero_grad()
