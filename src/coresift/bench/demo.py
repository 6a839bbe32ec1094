"""The demonstration: three strategies on a real table, and what a batch looks like.

A model learns the heating load of buildings from few labels, bought in batches. Runs of one seed share the
split, the first labels and the initial network, so strategies can be compared in pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from coresift.atomic import write_text
from coresift.bench.data import load_energy
from coresift.bench.display import display
from coresift.bench.plane import probit_pictures
from coresift.bench.replay import Method, Simulation
from coresift.bench.replay import run as replay
from coresift.bench.statistics import Estimate
from coresift.errors import InputError, cannot_write
from coresift.estimators import NeuralLinearRegressor
from coresift.report import page as html
from coresift.report.figures import CurvePanel, curve_panels, save
from coresift.threads import enough_threads
from coresift.types import Floats

STRATEGIES = ("random", "maxent", "acs-fw")
FIRST_LABELS, BATCH, EPOCHS = 20, 10, 50


def demo_model() -> NeuralLinearRegressor:
    """Make the model, with a short training so that the demonstration takes less than a minute."""
    return NeuralLinearRegressor(epochs=EPOCHS, learning_rate=0.03, calibration_folds=0, progress=False)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Test errors of several strategies."""

    num_labels: tuple[int, ...]  # (rounds,)
    rmse: dict[str, Floats]  # strategy -> (seeds, rounds)

    def rows(self) -> list[list[str]]:
        """Make a table: a row for each number of labels, a cell for each strategy, mean ± standard error."""
        return [
            [str(labels), *(f"{Estimate.over(errors[:, i]):.2f}" for errors in self.rmse.values())]
            for i, labels in enumerate(self.num_labels)
        ]

    def conclusion(self) -> str:
        """Say how acs-fw ends against the others, by paired differences; two standard errors are clear."""
        own = self.rmse["acs-fw"][:, -1]
        others = {name: errors[:, -1] for name, errors in self.rmse.items() if name != "acs-fw"}
        phrases = [_against(name, Estimate.over(own - errors)) for name, errors in others.items()]
        return (
            f"With {self.num_labels[-1]} labels, the error of acs-fw is {' and '.join(phrases)} "
            f"(paired differences over {len(own)} splits, mean ± standard error)."
        )


def _against(name: str, gap: Estimate) -> str:
    size, side = f"{abs(gap.mean):.2f} ± {gap.error:.2f}", "below" if gap.mean < 0 else "above"
    if abs(gap.mean) > 2 * gap.error:
        return f"{size} {side} that of {name}"
    return f"not clearly different from that of {name} ({size} {side})"


def compare(num_seeds: int, num_rounds: int, console: Console) -> Comparison:
    """Replay every strategy with every seed."""
    x, y = load_energy()
    simulation = Simulation(x, y, demo_model(), first=FIRST_LABELS, batch=BATCH, budget=BATCH * num_rounds)
    runs = list(product(STRATEGIES, range(num_seeds)))
    states = [simulation.begin(Method(name), seed) for name, seed in runs]
    num_labels, errors = [], []
    with display("energy", runs, simulation, console) as show:
        for rounds in replay(simulation, states):
            num_labels.append(rounds[0].labels)
            errors.append([turn.error for turn in rounds])
            show(dict(zip(runs, rounds, strict=True)))
    rmse = np.array(errors).T.reshape(len(STRATEGIES), num_seeds, len(errors))
    return Comparison(tuple(num_labels), dict(zip(STRATEGIES, rmse, strict=True)))


def run(
    out: Path, *, num_seeds: int = 10, num_rounds: int = 10, console: Console | None = None
) -> Comparison:
    """Run the demonstration: progress and a table on the console, figures and a page in ``out``."""
    if num_seeds < 2:
        raise InputError(f"seeds is {num_seeds}, expected at least 2: one run has no error bars")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(out, error) from None
    console = console or Console()
    with enough_threads(0):
        comparison = compare(num_seeds, num_rounds, console)
        batches, distances = probit_pictures()
    errors = {name: (comparison.num_labels, errors) for name, errors in comparison.rmse.items()}
    curves = curve_panels([CurvePanel("labels", errors)], "test RMSE, kWh/m²")
    save(curves, out / "curves.png")
    save(batches, out / "batches.png")
    parts = _story(comparison, curves, batches, distances)
    write_text(out / "index.html", html.page("Which buildings to simulate next?", parts))
    table = Table(title="test RMSE, kWh/m², mean ± standard error")
    for name in ("labels", *comparison.rmse):
        table.add_column(name, justify="right")
    for row in comparison.rows():
        table.add_row(*row)
    console.print(table)
    console.print(comparison.conclusion(), highlight=False)
    console.print(f"The page: {out / 'index.html'}", highlight=False, soft_wrap=True)
    return comparison


def _story(comparison: Comparison, curves: Figure, batches: Figure, distances: str) -> Sequence[html.Part]:
    seeds = len(comparison.rmse["acs-fw"])
    return [
        "A model predicts the heating load of a building from its shape and windows. Every label costs a "
        "simulation. Which unlabelled buildings should be simulated next, ten at a time? Random choice "
        "(random) is the baseline. Maximum entropy (maxent) takes the ten buildings with the most uncertain "
        "predictions, one by one. ACS-FW (acs-fw) chooses ten buildings that together approximate what the "
        "labels of all the others would tell the model.",
        comparison.conclusion(),
        html.Picture(
            curves,
            f"Test error against labels: mean over {seeds} random splits, bands of two standard errors. "
            "The strategies share the splits, the first labels and the initial networks.",
        ),
        html.Table(
            ["labels", *comparison.rmse], comparison.rows(), "Test RMSE in kWh/m², mean ± standard error."
        ),
        html.Heading("Why the best points do not make the best batch"),
        "Similar points have similar scores. The ten highest scores therefore often belong to nearly the "
        "same point, and once it has a label, the others add little. ACS takes this overlap into account: a "
        f"point counts only for what the rest of the batch does not explain. {distances}",
        html.Picture(
            batches,
            "Probit regression in the plane. Darker blue: a single label there would be more informative "
            "(BALD). Orange: the batch of ten.",
        ),
        html.Heading("Data and model"),
        "Data: UCI energy efficiency, 768 buildings, 8 inputs (Tsanas and Xifara, 2012; CC BY 4.0). A fifth "
        "of the rows is the test set, a different one for each split. Model: neural linear regression, a "
        "network with two hidden layers of 30 units and exact Bayesian linear regression on its features, "
        f"trained again after every batch, for only {EPOCHS} epochs so that the demonstration takes less "
        "than a minute. The test set is used only for the errors shown here.",
    ]
