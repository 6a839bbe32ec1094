"""Train S independent networks as one computation; one network is the case S = 1."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from coresift import limits
from coresift.checks import check_choice, check_integer, check_not_negative, check_switch
from coresift.errors import InputError
from coresift.estimators.networks.labelled import LabelledStack, Rows, take_rows
from coresift.estimators.networks.losses import Objective
from coresift.estimators.networks.optimisers import optimiser
from coresift.estimators.networks.stack import Stack
from coresift.progress import progress_bar
from coresift.search.graphs import recorded
from coresift.threads import count_again, enough_threads

Schedule = Literal["cosine", "one-cycle"]


@dataclass(frozen=True)
class Trainer:
    """Train with Adam and cosine annealing over mini-batches, all networks of a stack side by side.

    Each network sees its own data in its own order and takes its own number of steps in an epoch: the result
    is the same as if it were trained alone.

    Parameters
    ----------
    epochs : passes over each network's data.
    learning_rate : at the start of the cosine; at its end it is 1e-5.
    batch_size : rows of a mini-batch, at most the size of the labelled set; ``None`` is the paper's rule,
        the largest power of two within half the set, at most 512. The last mini-batch has the remaining rows;
        a single remaining row is left out, another one in each epoch.
    weight_decay : L2 penalty on weight matrices, ``weight_decay / 2 ||W||^2`` added to the mean loss; its
        gradient goes through Adam with the rest. In one cycle it is decoupled, as in AdamW: each step shrinks
        a weight by this factor times the learning rate.
    decay_gains : whether the gains of norms decay too, which limits what the features can express.
    schedule : "cosine", or "one-cycle" for a rise over the first fifth of the epochs and a cosine after it,
        which allows a larger learning rate and needs fewer epochs. In one cycle labelled sets are split
        into mini-batches of equal size: a last one with few rows would be noise, also for batch norm.
    least_steps : for small sets, more epochs than ``epochs`` are run, until this many steps are made.
    progress : show a bar on a terminal once training has taken two seconds.
    """

    epochs: int = 1000
    learning_rate: float = 1e-2
    batch_size: int | None = None
    weight_decay: float = 1.0
    decay_gains: bool = False
    schedule: Schedule = "cosine"
    least_steps: int = 0
    progress: bool = True

    def __post_init__(self) -> None:
        checked: dict[str, float] = {
            "epochs": check_integer(self.epochs, 0, "epochs"),
            "least_steps": check_integer(self.least_steps, 0, "least_steps"),
            "learning_rate": check_not_negative(self.learning_rate, "learning_rate"),
            "weight_decay": check_not_negative(self.weight_decay, "weight_decay"),
        }
        if self.batch_size is not None:
            checked["batch_size"] = check_integer(self.batch_size, 1, "batch_size")
        vars(self).update(checked)
        check_choice(self.schedule, ("cosine", "one-cycle"), "schedule")
        check_switch(self.progress, "progress")

    def train(
        self, stack: Stack, objective: Objective, data: LabelledStack, generators: Sequence[torch.Generator]
    ) -> None:
        """Train the networks in place; ``generators`` shuffle, one for each network."""
        sizes: list[int] = data.sizes.tolist()
        self._check_sets(len(stack), sizes, len(generators))
        if not stack.parameters:
            return
        # One draw from each generator, so that a network's order of rows does not depend on the others.
        seeds = [int(torch.randint(2**62, (), generator=generator)) for generator in generators]
        # A step multiplies every weight by every row of its mini-batches.
        rows = max(sizes) if objective.whole else max(self.mini_batches(max(sizes)))
        data = data.to(stack.flat.device, stack.flat.dtype)
        epochs = self.num_epochs(sizes[0])
        with _noise_from(seeds[0], stack.flat.device), enough_threads(stack.flat.numel() * rows):
            run = _Steps(self, stack, objective, data).runner()
            rates = self._rates(epochs).to(stack.flat)
            with progress_bar("training", epochs) as advance:
                for order, rate in zip(data.orders(generators, epochs), rates, strict=True):
                    run(order, rate)
                    count_again()
                    if self.progress:
                        advance(1)
            stack.settle(data.x, data.rows, [epochs * len(self.mini_batches(size)) for size in sizes])
        if not bool(stack.flat.isfinite().all()):
            raise InputError(
                "training failed: weights are no longer finite; try a smaller learning_rate, or options "
                "nearer to their defaults, and check for targets of extreme size"
            )

    def _check_sets(self, networks: int, sizes: Sequence[int], generators: int) -> None:
        if not networks == len(sizes) == generators:
            raise InputError(
                f"{networks} networks, {len(sizes)} labelled sets and {generators} generators do not match"
            )
        if len({self.num_epochs(size) for size in sizes}) > 1:
            raise InputError(
                f"labelled sets of {min(sizes)} to {max(sizes)} rows need different numbers of "
                f"epochs for {self.least_steps} steps; train them separately"
            )

    def mini_batches(self, size: int) -> list[int]:
        """Return the sizes of the mini-batches of an epoch, for a labelled set of ``size`` rows."""
        default = min(2 ** int(math.log2(max(size // 2, 2))), 512)
        most = min(default if self.batch_size is None else self.batch_size, size)
        if self.schedule == "cosine":
            full, rest = divmod(size, most)
            return [most] * full + [rest] * (rest > 1)  # batch norm needs two rows
        steps = min(math.ceil(size / most), max(size // min(most, 2), 1))
        return [size * (step + 1) // steps - size * step // steps for step in range(steps)]

    def num_epochs(self, size: int) -> int:
        """Return how many passes are made over a labelled set of ``size`` rows."""
        return max(self.epochs, math.ceil(self.least_steps / len(self.mini_batches(size))))

    def _rates(self, epochs: int) -> Tensor:
        """Return the learning rate of each epoch."""
        rising = math.ceil(limits.RISING_SHARE * epochs) if self.schedule == "one-cycle" else 0
        rates = [self.learning_rate * (epoch + 1) / (rising + 1) for epoch in range(rising)]
        for epoch in range(epochs - rising):
            cosine = 0.5 * (1 + math.cos(math.pi * epoch / (epochs - rising)))
            rates.append(limits.LAST_RATE + (self.learning_rate - limits.LAST_RATE) * cosine)
        return torch.tensor(rates)


class _Steps:
    """The steps of one training run, one by one or recorded."""

    def __init__(self, trainer: Trainer, stack: Stack, objective: Objective, data: LabelledStack) -> None:
        self.stack, self.objective, self.data = stack, objective, data
        self.parameters = list(stack.parameters.values())
        self.steps = data.steps([trainer.mini_batches(size) for size in data.sizes.tolist()])
        self.padded = not all(isinstance(index, slice) for index, _, _ in self.steps)
        decoupled = trainer.schedule == "one-cycle"
        self.optimiser = optimiser(stack, trainer.weight_decay, trainer.decay_gains, decoupled)
        self.by_width: dict[int, Recorded] = defaultdict(lambda: Recorded(self.step_of_rows))

    def runner(self) -> Callable[[Tensor, Tensor], None]:
        """Return a function of an epoch's order of rows (S, n) and its learning rate."""
        if not (self.stack.recordable and self.objective.recordable):
            return self.epoch
        if self.stack.records_steps and not self.objective.whole:
            return self.epoch_by_steps
        return Recorded(self.epoch) if len(self.steps) <= limits.STEPS_RECORDED else self.epoch

    def epoch(self, order: Tensor, rate: Tensor) -> None:
        shuffled = self.data.ordered(order)
        for index, weights, active in self.steps:
            self.step(shuffled, index, weights, active, rate)

    def epoch_by_steps(self, order: Tensor, rate: Tensor) -> None:
        for index, weights, _ in self.steps:
            self.by_width[weights.shape[1]](order[:, index], weights, rate)

    def step_of_rows(self, rows: Tensor, weights: Tensor, rate: Tensor) -> None:
        self.step(self.data.ordered(rows), slice(0, rows.shape[1]), weights, None, rate)

    def step(
        self, shuffled: LabelledStack, index: Rows, weights: Tensor, active: Tensor | None, rate: Tensor
    ) -> None:
        outputs = [self.stack(shuffled.x, self.data.rows)] if self.objective.whole else []
        if self.objective.alone:
            outputs.append(self.stack(take_rows(shuffled.x, index), weights if self.padded else None))
        together = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
        losses = self.objective(together, shuffled, index, weights)
        self.optimiser.step(torch.autograd.grad(losses.sum(), self.parameters), rate, active)


class Recorded:
    """Record the kernels of a function on its first call, and launch them as one from then on.

    The kernels of small networks take less time than their launches. The function must do the same on every
    call, and change nothing but tensors.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *arguments: Tensor) -> None:
        if self.graph is None:
            self._record(arguments)
            return
        for kept, argument in zip(self.inputs, arguments, strict=True):
            kept.copy_(argument)
        self.graph.replay()

    def _record(self, arguments: tuple[Tensor, ...]) -> None:
        """Run once as it is, on another stream, which is the warm-up that recording needs; then record."""
        self.inputs = [argument.clone() for argument in arguments]
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.function(*self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = recorded(lambda: self.function(*self.inputs))


@contextmanager
def _noise_from(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators, from which layers such as dropout draw, and restore them at the end.

    Denormal numbers are flushed to zero meanwhile: decayed weights become that small, and slow on a CPU.
    """
    cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(seed)
        torch.set_flush_denormal(True)
        try:
            yield
        finally:
            torch.set_flush_denormal(False)
