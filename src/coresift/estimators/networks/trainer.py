"""The trainer: fits S independent networks as one computation; one network is the case S = 1."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from coresift.checks import check_integer
from coresift.estimators.networks.stack import Stack
from coresift.progress import progress_bar
from coresift.search.kernels import recorded
from coresift.threads import count_again, enough_threads
from coresift.types import InputError

# Row numbers drawn at a time for the orders of coming epochs.
_ORDERED = 2**20
# Steps of an epoch that is recorded, at most: a CUDA graph holds each kernel of each step.
_MOST_RECORDED = 64
# The share of the epochs in which the learning rate of one cycle rises.
_RISING = 0.2
# The learning rate that a cosine ends with.
_LAST_RATE = 1e-5

Schedule = Literal["cosine", "one-cycle"]


@dataclass(frozen=True, eq=False)
class LabelledStack:
    """S labelled sets, padded to one length.

    Attributes
    ----------
    x : (S, n, ...), y : (S, n, ...); padding is zero.
    sizes : (S,) how many rows of each are real.
    """

    x: Tensor
    y: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, sets: Sequence[tuple[Tensor, Tensor]]) -> LabelledStack:
        """Stack labelled sets (x, y) of any sizes."""
        pad = torch.nn.utils.rnn.pad_sequence
        sizes = torch.tensor([len(x) for x, _ in sets])
        return cls(pad([x for x, _ in sets], True), pad([y for _, y in sets], True), sizes)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> LabelledStack:
        y = self.y.to(device, dtype if self.y.is_floating_point() else self.y.dtype)
        # Images are bytes, and stay so until they are needed.
        x = self.x.to(device, dtype if self.x.is_floating_point() else self.x.dtype)
        return LabelledStack(x, y, self.sizes.to(device))

    def orders(self, generators: Sequence[torch.Generator], epochs: int) -> Iterator[Tensor]:
        """Orders (S, n) of the real rows of each set, drawn from its own generator; padding stays behind."""
        longest = self.x.shape[1]
        # Many epochs are drawn at a time: one call for each network and epoch would outlast a GPU's work.
        ahead = max(min(epochs, _ORDERED // (len(self.sizes) * longest)), 1)
        for start in range(0, epochs, ahead):
            keys = torch.arange(1.0, longest + 1).repeat(min(ahead, epochs - start), len(self.sizes), 1)
            for part, size, generator in zip(keys.unbind(1), self.sizes.tolist(), generators, strict=True):
                part[:, :size] = torch.rand(len(part), size, generator=generator)
            yield from keys.to(self.x.device).argsort(dim=2, stable=True)

    def ordered(self, order: Tensor) -> LabelledStack:
        """The same sets with rows in the order (S, n)."""
        ordered = LabelledStack(take_rows(self.x, order), take_rows(self.y, order), self.sizes)
        ordered.__dict__["rows"] = self.rows  # to look for padding again would wait for the GPU
        return ordered

    @cached_property
    def rows(self) -> Tensor | None:
        """(S, n) one over the size for real rows and zero for padding; ``None`` where nothing is padded."""
        length = self.x.shape[1]
        if bool((self.sizes == length).all()):
            return None
        real = torch.arange(length, device=self.x.device) < self.sizes[:, None]
        return real / self.sizes[:, None].to(self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in."""
        return self.x.dtype if self.x.is_floating_point() else torch.float32


class Objective(Protocol):
    """What is minimised.

    Attributes
    ----------
    whole : whether the loss needs the network's outputs of all labelled points in each step, as an exact
        last layer does.
    alone : whether it needs those of the mini-batch, from a pass through the network of its own.
    recordable : whether the loss is a fixed sequence of kernels, to be recorded into a CUDA graph: it looks
        at no values and draws no noise. One that does not say is not recorded.
    """

    @property
    def whole(self) -> bool: ...

    @property
    def alone(self) -> bool: ...

    @property
    def recordable(self) -> bool: ...

    def __call__(self, outputs: Tensor, data: LabelledStack, index: Rows, share: Tensor) -> Tensor:
        """(S,) losses.

        Parameters
        ----------
        outputs : (S, n, D) of all points if ``whole``, then (S, m, D) of the mini-batch if ``alone``.
        data : the labelled sets, shuffled.
        index : the mini-batch's rows, for `take_rows`.
        share : (S, m) how much each row counts: one over the mini-batch's size, zero for padding.
        """
        ...


@dataclass(frozen=True)
class Trainer:
    """Adam with cosine annealing over mini-batches, for all networks of a stack side by side.

    Each network sees its own data in its own order and takes its own number of steps an epoch, so it ends as
    if it were trained alone.

    Parameters
    ----------
    epochs : passes over each network's data.
    learning_rate : the first of the cosine; the last is 1e-5.
    batch_size : rows of a mini-batch, at most the size of the labelled set; ``None`` is the paper's rule,
        the largest power of two within half the set, at most 512. The last mini-batch has what remains; a
        single row is left out, another one in each epoch.
    weight_decay : L2 penalty on weight matrices, ``weight_decay / 2 ||W||^2`` beside the mean loss; its
        gradient goes through Adam with the rest. In one cycle it is apart from Adam, as the share of a weight
        by which each step shrinks it, times the learning rate.
    decay_gains : the same on the gains of norms: the features can then say less.
    schedule : "cosine", or "one-cycle" for a rise over the first fifth of the epochs and a cosine after it,
        which bears a larger learning rate and needs fewer epochs. In one cycle labelled sets are split
        evenly: a step by the few rows that may remain is noise, and so is what batch norm makes of them.
    least_steps : small sets are passed over more often than ``epochs``, until that many steps are made.
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
        for name, least in (("epochs", 0), ("batch_size", 1), ("least_steps", 0)):
            if getattr(self, name) is not None or name != "batch_size":
                object.__setattr__(self, name, check_integer(getattr(self, name), least, name))

    def train(
        self, stack: Stack, objective: Objective, data: LabelledStack, generators: Sequence[torch.Generator]
    ) -> None:
        """Train the networks in place; ``generators`` shuffle, one for each."""
        if not len(stack) == len(data.sizes) == len(generators):
            raise InputError(
                f"{len(stack)} networks, {len(data.sizes)} labelled sets and {len(generators)} generators "
                "do not go together"
            )
        if len({self.num_epochs(size) for size in data.sizes.tolist()}) > 1:
            raise InputError(
                f"labelled sets of {min(data.sizes)} to {max(data.sizes)} rows need different numbers of "
                f"epochs for {self.least_steps} steps; train them apart"
            )
        device = stack.flat.device
        # Layers that draw noise, such as dropout, take it from torch's global generators: seed those for the
        # time being. One draw from each of ours, so that a network's own order does not depend on the others.
        seeds = [int(torch.randint(2**62, (), generator=generator)) for generator in generators]
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.default_generator.manual_seed(seeds[0])
            if device.type == "cuda":
                torch.cuda.manual_seed(seeds[0])
            # Weights that decay end as numbers too small for a CPU to be quick with.
            torch.set_flush_denormal(True)
            # A step multiplies every weight by every row of its mini-batches.
            widest = max(max(self._split(size)) for size in data.sizes.tolist())
            work = stack.flat.numel() * (max(data.sizes.tolist()) if objective.whole else widest)
            try:
                with enough_threads(work):
                    self._train(stack, objective, data.to(device, stack.flat.dtype), generators)
            finally:
                torch.set_flush_denormal(False)
        if not bool(stack.flat.isfinite().all()):
            raise InputError(
                "training broke down: weights are no longer numbers; try a smaller learning_rate, or "
                "options nearer to their defaults, and check for targets of extreme size"
            )

    def _train(
        self, stack: Stack, objective: Objective, data: LabelledStack, generators: Sequence[torch.Generator]
    ) -> None:
        parameters = list(stack.parameters.values())
        if not parameters:
            return
        rows, plan = data.rows, _Plan(data, [self._split(size) for size in data.sizes.tolist()])
        update = self._updates(stack)

        def train_step(
            shuffled: LabelledStack, index: Rows, share: Tensor, active: Tensor | None, rate: Tensor
        ) -> None:
            parts = [stack(shuffled.x, rows)] if objective.whole else []
            if objective.alone:
                parts.append(stack(take_rows(shuffled.x, index), None if plan.full else share))
            outputs = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
            losses = objective(outputs, shuffled, index, share)
            update(torch.autograd.grad(losses.sum(), parameters), rate, active)

        def train_epoch(order: Tensor, rate: Tensor) -> None:
            shuffled = data.ordered(order)
            for index, share, active in plan.steps():
                train_step(shuffled, index, share, active, rate)

        def train_rows(rows: Tensor, share: Tensor, rate: Tensor) -> None:
            few = LabelledStack(take_rows(data.x, rows), take_rows(data.y, rows), data.sizes)
            train_step(few, slice(0, rows.shape[1]), share, None, rate)

        by_width: dict[int, _Recorded] = defaultdict(lambda: _Recorded(train_rows))

        def train_by_steps(order: Tensor, rate: Tensor) -> None:
            for index, share, _ in plan.steps():
                by_width[share.shape[1]](order[:, index], share, rate)

        run: Callable[[Tensor, Tensor], None] = train_epoch
        if stack.recordable and getattr(objective, "recordable", False):
            if stack.records_steps and not objective.whole:
                run = train_by_steps
            elif len(plan) <= _MOST_RECORDED:
                run = _Recorded(train_epoch)
        epochs = self.num_epochs(int(data.sizes[0]))
        rates = torch.tensor([self._rate(epoch, epochs) for epoch in range(epochs)]).to(stack.flat)
        with progress_bar("training", epochs) as advance:
            for order, rate in zip(data.orders(generators, epochs), rates, strict=True):
                run(order, rate)
                count_again()
                if self.progress:
                    advance(1)
        stack.settle(data.x, rows, [epochs * len(self._split(size)) for size in data.sizes.tolist()])

    def _updates(self, stack: Stack) -> Callable[[Sequence[Tensor], Tensor, Tensor | None], None]:
        """What moves the weights: a function of gradients, learning rate and active networks, or ``None``."""
        trained, one_cycle = stack.trained(), self.schedule == "one-cycle"
        if stack.records_steps and one_cycle and trained is None and stack.flat.dtype == torch.float32:
            return _AdamAlone(stack, self.weight_decay, self.decay_gains).step
        adam = _Adam(stack.flat)
        decay = (stack.decayed(self.decay_gains) * self.weight_decay).expand_as(stack.flat).contiguous()

        def update(gradients: Sequence[Tensor], rate: Tensor, active: Tensor | None) -> None:
            gradient = torch.cat([part.flatten(1) for part in gradients], 1)
            if one_cycle:
                adam.shrink(decay if trained is None else decay * trained, rate, active)
            else:
                gradient = torch.addcmul(gradient, stack.flat, decay)
            adam.step(gradient if trained is None else gradient * trained, rate, active)

        return update

    def _split(self, size: int) -> list[int]:
        """How many rows of a labelled set are in each mini-batch of an epoch."""
        usual = min(2 ** int(math.log2(max(size // 2, 2))), 512)
        most = min(usual if self.batch_size is None else self.batch_size, size)
        # Batch norm has nothing to compare a single row with.
        if self.schedule == "cosine":
            whole, rest = divmod(size, most)
            return [most] * whole + [rest] * (rest > 1)
        steps = min(math.ceil(size / most), max(size // min(most, 2), 1))
        return [size * (step + 1) // steps - size * step // steps for step in range(steps)]

    def num_epochs(self, size: int) -> int:
        """Passes over a labelled set of that size."""
        return max(self.epochs, math.ceil(self.least_steps / len(self._split(size))))

    def _rate(self, epoch: int, epochs: int) -> float:
        rising = math.ceil(_RISING * epochs) if self.schedule == "one-cycle" else 0
        if epoch < rising:
            return self.learning_rate * (epoch + 1) / (rising + 1)
        cosine = 0.5 * (1 + math.cos(math.pi * (epoch - rising) / (epochs - rising)))
        return _LAST_RATE + (self.learning_rate - _LAST_RATE) * cosine


Rows: TypeAlias = "Tensor | slice"


def take_rows(values: Tensor, index: Rows) -> Tensor:
    """(S, n, ...) -> (S, m, ...), each network's own rows; ``index`` is (S, m), or a slice that all share."""
    if isinstance(index, slice):
        return values[:, index]
    return values[torch.arange(len(values), device=values.device)[:, None], index]


class _Plan:
    """Which rows of a shuffled set are in which mini-batch: the next ones each time, for each network.

    Parameters
    ----------
    splits : for each network, the rows of its mini-batches.

    Attributes
    ----------
    full : whether no mini-batch is padded.
    """

    def __init__(self, data: LabelledStack, splits: Sequence[Sequence[int]]) -> None:
        pad = torch.nn.utils.rnn.pad_sequence
        sizes = pad([torch.tensor(split) for split in splits], True)  # (S, steps)
        starts = sizes.cumsum(1) - sizes
        column = torch.arange(int(sizes.max()))
        real = column < sizes[:, :, None]  # (S, steps, m)
        share = (real / sizes[:, :, None].clamp(min=1).double()).to(data.x.device, data.dtype)
        active = sizes > 0  # a network whose epoch is over waits for the others
        # Where one waits in any step, each counts its own in all of them.
        taking_part = [None] * sizes.shape[1] if bool(active.all()) else active.to(data.x.device).unbind(1)
        self.full = True
        self._steps: list[tuple[Rows, Tensor, Tensor | None]] = []
        for step, part in enumerate(taking_part):
            first, width = int(starts[0, step]), int(sizes[:, step].max())
            index: Rows = slice(first, first + width)
            if not bool(((starts[:, step] == first) & (sizes[:, step] == width)).all()):
                place = starts[:, step, None] + column[:width]
                index = torch.where(real[:, step, :width], place, 0).to(data.x.device)
                self.full = False
            self._steps.append((index, share[:, step, :width], part))

    def __len__(self) -> int:
        return len(self._steps)

    def steps(self) -> Iterator[tuple[Rows, Tensor, Tensor | None]]:
        """Rows, their shares (S, m), and which networks take part (S,), or ``None`` for all; step by step."""
        return iter(self._steps)


class _Recorded:
    """A function of tensors, run through a CUDA graph: its kernels are recorded once and launched as one.

    The kernels of small networks take less time than their launches. The function must do the same on every
    call, and change nothing but tensors.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *arguments: Tensor) -> None:
        if self.graph is None:
            self.inputs = [argument.clone() for argument in arguments]
            # The first call runs by itself, on a stream of its own as recording wants it, to warm up.
            stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.function(*self.inputs)
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = recorded(lambda: self.function(*self.inputs))
            return
        for kept, argument in zip(self.inputs, arguments, strict=True):
            kept.copy_(argument)
        self.graph.replay()


class _Adam:
    """Adam on (S, P) parameters; a network that waits for the others keeps its own count of steps."""

    betas = (0.9, 0.999)
    epsilon = 1e-8

    def __init__(self, flat: Tensor) -> None:
        self.flat, self.mean, self.square = flat, torch.zeros_like(flat), torch.zeros_like(flat)
        self.count = flat.new_zeros((), dtype=torch.float64)  # of steps, where all networks take each
        self.counts = flat.new_zeros(len(flat), 1)  # where some wait

    @torch.no_grad()
    def shrink(self, decay: Tensor, rate: Tensor, active: Tensor | None) -> None:
        """Weight decay apart from the gradient: the share ``decay`` (S, P) times the rate.

        References
        ----------
        Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019.
        """
        length = rate if active is None else rate * active[:, None].to(decay)
        self.flat.sub_(self.flat * decay * length)

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: Tensor, active: Tensor | None) -> None:
        """Move the active networks, or all; the others, and what is known of their gradients, stay."""
        first, second = self.betas
        if active is None:
            self.count += 1
            count, length = self.count, rate
            self.mean.lerp_(gradient, 1 - first)
            self.square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        else:
            moving = active[:, None].to(gradient)
            self.counts += moving
            count, length = self.counts, rate * moving
            self.mean.lerp_(gradient, (1 - first) * moving)
            self.square.lerp_(gradient.square(), (1 - second) * moving)
        spread = self.square.div(1 - second**count).sqrt_().add_(self.epsilon)
        self.flat.sub_(self.mean.div(spread).mul_(length / (1 - first**count)))


class _AdamAlone:
    """The same for one large network, in one cycle: torch's own, which passes over the weights once."""

    def __init__(self, stack: Stack, weight_decay: float, decay_gains: bool) -> None:
        self.parameters = {name: value.detach().squeeze(0) for name, value in stack.parameters.items()}
        groups: dict[bool, list[Tensor]] = {}
        for name, value in self.parameters.items():
            groups.setdefault(stack.decays(name, decay_gains), []).append(value)
        self.adam = torch.optim.AdamW(
            [{"params": each, "weight_decay": weight_decay * decays} for decays, each in groups.items()],
            betas=_Adam.betas,
            eps=_Adam.epsilon,
            fused=True,
            capturable=stack.flat.is_cuda,
        )

    def step(self, gradients: Sequence[Tensor], rate: Tensor, active: Tensor | None = None) -> None:
        assert active is None, "one network alone never waits"
        for group in self.adam.param_groups:
            group["lr"] = rate
        for value, gradient in zip(self.parameters.values(), gradients, strict=True):
            # One pass needs both in the same order; filters' gradients come with channels last.
            value.grad = gradient.squeeze(0).contiguous()
        self.adam.step()
        self.adam.zero_grad()
