"""Forty of the paper's yacht networks, trained side by side and one by one in the same run.

The baseline is the model as one would write it in plain PyTorch: layers, `torch.linalg`, a Student's t
density and `torch.optim.Adam`. All times are per network. Usage: python benchmarks/training.py [--quick]
"""

from __future__ import annotations

import sys
import time

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from coresift.models.neural_linear import ExactLastLayer
from coresift.networks import MLP, LabelledStack, Stack, Trainer

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
    torch.manual_seed(0)
    sets = [(torch.randn(LABELS, INPUTS), torch.randn(LABELS)) for _ in range(40)]
    plain(*sets[0], epochs=2)
    stacked(sets[:2], epochs=2)
    seconds: dict[str, tuple[float, float]] = {}

    def measure(what: str, count: int, function: object, *arguments: object) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        function(*arguments)  # type: ignore[operator]
        seconds[what] = ((time.perf_counter() - wall) / count, (time.process_time() - cpu) / count)

    # In turn, so that a slow spell of the machine meets them all.
    measure("plain PyTorch, one by one", 1, plain, *sets[0], epochs)
    measure("40 side by side", 40, stacked, sets, epochs)
    measure("plain PyTorch, one by one, once more", 1, plain, *sets[1], epochs)
    measure("plain PyTorch with features computed once", 1, plain, *sets[2], epochs, False)
    measure("the trainer, one by one", 1, stacked, sets[:1], epochs)

    table = Table(title=f"{LABELS} labels, {epochs} epochs; torch on {torch.get_num_threads()} threads")
    for heading in ("what", "wall s a network", "CPU s a network", "side by side is faster (wall)", "(CPU)"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    fast = seconds["40 side by side"]
    for what, (wall, cpu) in seconds.items():
        table.add_row(what, f"{wall:.3f}", f"{cpu:.3f}", f"{wall / fast[0]:.1f} x", f"{cpu / fast[1]:.1f} x")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
