"""Forty of the paper's yacht networks, trained side by side and one by one in the same run.

The baseline is the model as one would write it in plain PyTorch: layers, `torch.linalg`, a Student's t
density and `torch.optim.Adam`. All times are per network. Usage: python benchmarks/training.py [--quick]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from coresift.estimators.networks import MLP, LabelledStack, Stack, Trainer
from coresift.estimators.networks.losses import ExactLastLayer

LABELS, INPUTS, BATCH = 120, 6, 32


def plain(x: Tensor, y: Tensor, epochs: int, again: bool = True) -> nn.Module:
    """One network, one loop, as the paper reads: in each step the whole set goes through the network for
    the last layer's posterior, and the mini-batch for its density.

    With ``again=False`` the mini-batch's features are taken from those of the whole set, as `Trainer` does.
    """
    network = nn.Sequential(
        nn.Linear(INPUTS, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 30), nn.BatchNorm1d(30), nn.ReLU()
    )
    weights = [layer.weight for layer in network if isinstance(layer, nn.Linear)]
    others = [value for value in network.parameters() if all(value is not weight for weight in weights)]
    groups = [{"params": weights, "weight_decay": 1.0}, {"params": others}]
    optimiser = torch.optim.Adam(groups, lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs, 1e-5)
    one = torch.ones(len(x), 1)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            features = torch.cat([network(x), one], 1)
            precision = torch.eye(31) + features.T @ features
            covariance = torch.linalg.inv(precision)
            mean = covariance @ features.T @ y
            shape = 1 + len(x) / 2
            rate = 1 + 0.5 * (y @ y - mean @ precision @ mean)
            batch = torch.cat([network(x[rows]), one[rows]], 1) if again else features[rows]
            scale = (rate / shape * (1 + (batch @ covariance * batch).sum(1))).sqrt()
            loss = -torch.distributions.StudentT(2 * shape, batch @ mean, scale).log_prob(y[rows]).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        schedule.step()
    return network


def stacked(sets: list[tuple[Tensor, Tensor]], epochs: int) -> Stack:
    stack = Stack([MLP(INPUTS) for _ in sets])
    generators = [torch.Generator().manual_seed(seed) for seed in range(len(sets))]
    trainer = Trainer(epochs=epochs, batch_size=BATCH)
    trainer.train(stack, ExactLastLayer(), LabelledStack.of([(x, y[:, None]) for x, y in sets]), generators)
    return stack


def main() -> None:
    epochs = 20 if "--quick" in sys.argv else 1000
    rounds = 4 if "--quick" in sys.argv else 20
    torch.manual_seed(0)
    sets = [(torch.randn(LABELS, INPUTS), torch.randn(LABELS)) for _ in range(40)]
    part = epochs // rounds
    ways: dict[str, tuple[int, Callable[[], object]]] = {
        "40 side by side": (40, lambda: stacked(sets, part)),
        "plain PyTorch, one by one": (1, lambda: plain(*sets[0], part)),
        "plain, features computed once": (1, lambda: plain(*sets[0], part, again=False)),
        "the trainer, one by one": (1, lambda: stacked(sets[:1], part)),
    }
    # In turn, a part of the epochs at a time, so that a slow spell of the machine meets them all.
    wall: dict[str, list[float]] = {what: [] for what in ways}
    cpu: dict[str, list[float]] = {what: [] for what in ways}
    for turn in range(rounds + 1):
        for what, (count, train) in ways.items():
            before = time.perf_counter(), time.process_time()
            train()
            if turn:  # the first is for warming up
                wall[what].append((time.perf_counter() - before[0]) / count)
                cpu[what].append((time.process_time() - before[1]) / count)

    table = Table(title=f"{LABELS} labels, {epochs} epochs; torch on {torch.get_num_threads()} threads")
    headings = ("what", "wall s a network", "CPU s a network", "side by side is faster", "median of turns")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "what" else "right")
    fast = wall["40 side by side"]
    for what, times in wall.items():
        ratios = [one / two for one, two in zip(times, fast, strict=True)]
        table.add_row(
            what,
            f"{sum(times):.3f}",
            f"{sum(cpu[what]):.3f}",
            f"{sum(times) / sum(fast):.1f} x",
            f"{statistics.median(ratios):.1f} x",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
