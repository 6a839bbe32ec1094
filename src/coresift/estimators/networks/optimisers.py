"""Adam for a stack of networks, with weight decay, and for networks that wait for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from coresift.estimators.networks.stack import Stack

# Changes the weights, given gradients, the learning rate and the networks that take part (``None`` for all).
Update: TypeAlias = Callable[[Sequence[Tensor], Tensor, Tensor | None], None]


def optimiser(stack: Stack, weight_decay: float, decay_gains: bool, decoupled: bool) -> Update:
    """Return the function that changes a stack's weights in each step.

    Parameters
    ----------
    weight_decay, decay_gains : see `Trainer`.
    decoupled : whether weight decay is applied apart from the gradient, as AdamW does.
    """
    trained = stack.trained()
    if decoupled and trained is None and stack.records_steps and stack.flat.dtype == torch.float32:
        return SingleAdam(stack, weight_decay, decay_gains).step
    adam = Adam(stack.flat)
    decay = (stack.decayed(decay_gains) * weight_decay).expand_as(stack.flat).contiguous()

    def update(gradients: Sequence[Tensor], rate: Tensor, active: Tensor | None) -> None:
        gradient = torch.cat([part.flatten(1) for part in gradients], 1)
        if decoupled:
            adam.shrink(decay if trained is None else decay * trained, rate, active)
        else:
            gradient = torch.addcmul(gradient, stack.flat, decay)
        adam.step(gradient if trained is None else gradient * trained, rate, active)

    return update


class Adam:
    """Adam on (S, P) parameters; a network that waits for the others keeps its own count of steps."""

    betas = (0.9, 0.999)
    epsilon = 1e-8

    def __init__(self, flat: Tensor) -> None:
        self.flat, self.mean, self.square = flat, torch.zeros_like(flat), torch.zeros_like(flat)
        self.count = flat.new_zeros((), dtype=torch.float64)  # of steps, if all networks take part in each
        self.counts = flat.new_zeros(len(flat), 1)  # if some wait

    @torch.no_grad()
    def shrink(self, decay: Tensor, rate: Tensor, active: Tensor | None) -> None:
        """Multiply the weights by 1 - rate * ``decay`` (S, P): weight decay apart from the gradient.

        References
        ----------
        Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019.
        """
        rate = rate if active is None else rate * active[:, None].to(decay)
        self.flat.sub_(self.flat * decay * rate)

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: Tensor, active: Tensor | None) -> None:
        """Change the weights of the active networks, or of all; the others keep theirs, and their moments."""
        first, second = self.betas
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
        scale = self.square.div(1 - second**count).sqrt_().add_(self.epsilon)
        self.flat.sub_(self.mean.div(scale).mul_(rate / (1 - first**count)))


class SingleAdam:
    """torch's own AdamW for a stack of one large network, which reads the weights once in each step."""

    def __init__(self, stack: Stack, weight_decay: float, decay_gains: bool) -> None:
        self.parameters = {name: value.detach().squeeze(0) for name, value in stack.parameters.items()}
        groups: dict[bool, list[Tensor]] = {}
        for name, value in self.parameters.items():
            groups.setdefault(stack.decays(name, decay_gains), []).append(value)
        self.adam = torch.optim.AdamW(
            [{"params": group, "weight_decay": weight_decay * decays} for decays, group in groups.items()],
            betas=Adam.betas,
            eps=Adam.epsilon,
            fused=True,
            capturable=stack.flat.is_cuda,
        )

    def step(self, gradients: Sequence[Tensor], rate: Tensor, active: Tensor | None = None) -> None:
        assert active is None, "a single network never waits"
        for group in self.adam.param_groups:
            group["lr"] = rate
        for value, gradient in zip(self.parameters.values(), gradients, strict=True):
            # Both must have the same memory format; gradients of filters come with channels last.
            value.grad = gradient.squeeze(0).contiguous()
        self.adam.step()
        self.adam.zero_grad()
