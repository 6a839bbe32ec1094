"""The demonstration: three ways of choosing labels on a real table, and what a batch looks like.

A building's heating load is learned from few labels, in batches. All strategies see the same splits, the same
first labels and the same random features, so that they compare in pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor

from coresift.atomic import write_text
from coresift.bench.data import load_energy
from coresift.pool import as_pool
from coresift.posteriors import BayesianLinearRegression, BayesianProbitRegression, Posterior
from coresift.report import page as html
from coresift.report.figures import BatchPanel, batch_picture, learning_curves, save, standard_error
from coresift.scores import bald
from coresift.strategies import select
from coresift.threads import enough_threads
from coresift.types import Floats, InputError

STRATEGIES = ("random", "maxent", "acs-fw")
FIRST_LABELS, BATCH = 20, 10


# The model.

NUM_FEATURES = 300
REGRESSION = BayesianLinearRegression(noise_rate=0.01)


@dataclass(frozen=True, eq=False)
class RandomFeatures:
    """A constant, the d inputs, and cosines of random directions: what the linear model sees of a point.

    Attributes
    ----------
    directions : (d, D) standard normal.
    phases : (D,) uniform.
    log_scales : (d + 2,) logarithms of how fast each input turns the cosines, then of the prior deviations of
        the linear and of the cosine part.
    """

    directions: Tensor
    phases: Tensor
    log_scales: Tensor

    @classmethod
    def draw(cls, dimension: int, generator: torch.Generator) -> RandomFeatures:
        directions = torch.randn(dimension, NUM_FEATURES, dtype=torch.float64, generator=generator)
        phases = 2 * math.pi * torch.rand(NUM_FEATURES, dtype=torch.float64, generator=generator)
        start = torch.tensor([1 / 3] * dimension + [10.0, 10.0], dtype=torch.float64).log()
        return cls(directions, phases, start)

    def rescaled(self, move: Tensor) -> RandomFeatures:
        """The same features with scales moved by about ``move`` (d + 2,), in logarithms."""
        # Never by more than 4, or a long step of a search might overflow.
        return replace(self, log_scales=self.log_scales + 4 * torch.tanh(move / 4))

    def __call__(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, 1 + d + D)."""
        *_, linear, cosine = self.log_scales.exp()
        rates = self.log_scales[:-2].exp()
        waves = torch.cos((x * rates) @ self.directions + self.phases)
        constant = torch.ones_like(x[:, :1])
        return torch.cat(
            [
                linear * constant,
                linear / math.sqrt(x.shape[1]) * x,
                cosine * math.sqrt(2 / len(self.phases)) * waves,
            ],
            1,
        )


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted model: a posterior over the weights of ``features``, in standardised units."""

    features: RandomFeatures
    posterior: Posterior
    mean: Tensor
    deviation: Tensor

    def predict(self, x: Tensor) -> Tensor:
        """(n, d) -> (n,) expected targets, in their own unit."""
        return self.mean + self.deviation * self.posterior.predictive(self.features(x)).mean


def fit(x: Tensor, y: Tensor, features: RandomFeatures) -> Fitted:
    """Learn the scales of the features by the evidence of the labels, then the weights in closed form.

    The scales have a standard normal prior, in logarithms, around those of ``features``: twenty labels alone
    would not hold them.
    """
    mean, deviation = y.mean(), y.std()
    target = (y - mean) / deviation
    shape = REGRESSION.noise_shape + len(x) / 2
    move = torch.zeros_like(features.log_scales, requires_grad=True)
    search = torch.optim.LBFGS([move], max_iter=50, line_search_fn="strong_wolfe")

    def loss() -> float:
        """Minus the log evidence and the log prior, up to a constant."""
        search.zero_grad()
        seen = features.rescaled(move)(x)
        # With weights and noise integrated out, y is Student's t with the scale matrix I + F F^T.
        factor = torch.linalg.cholesky(torch.eye(len(x), dtype=x.dtype) + seen @ seen.mT)
        white = torch.linalg.solve_triangular(factor, target[:, None], upper=False)
        rate = REGRESSION.noise_rate + white.square().sum() / 2
        value = factor.diagonal().log().sum() + shape * rate.log() + move.square().sum() / 2
        value.backward()
        return float(value.detach())

    search.step(loss)  # type: ignore[no-untyped-call]
    learned = features.rescaled(move.detach())
    return Fitted(learned, REGRESSION.fit(learned(x), target), mean, deviation)


# The comparison.


@dataclass(frozen=True, eq=False)
class Comparison:
    """Test errors of several strategies.

    Attributes
    ----------
    num_labels : (rounds,)
    rmse : strategy -> (seeds, rounds)
    """

    num_labels: tuple[int, ...]
    rmse: dict[str, Floats]

    def rows(self) -> list[list[str]]:
        """The table: a row per number of labels, a cell per strategy, mean ± standard error."""
        return [
            [str(count)]
            + [f"{v[:, i].mean():.2f} ± {standard_error(v[:, i]):.2f}" for v in self.rmse.values()]
            for i, count in enumerate(self.num_labels)
        ]

    def conclusion(self) -> str:
        """Where acs-fw ends against the others, from paired differences; clear beyond two standard errors."""
        phrases = []
        for name in self.rmse:
            if name == "acs-fw":
                continue
            gap = self.rmse["acs-fw"][:, -1] - self.rmse[name][:, -1]
            mean, error = float(gap.mean()), float(standard_error(gap))
            size, side = f"{abs(mean):.2f} ± {error:.2f}", "below" if mean < 0 else "above"
            if abs(mean) > 2 * error:
                phrases.append(f"{size} {side} {name}'s")
            else:
                phrases.append(f"not clearly different from {name}'s ({size} {side})")
        seeds = len(self.rmse["acs-fw"])
        return (
            f"With {self.num_labels[-1]} labels the error of acs-fw is {' and '.join(phrases)}, "
            f"over {seeds} splits compared in pairs."
        )


def compare(num_seeds: int, num_rounds: int, report: Callable[[str, int, float], None]) -> Comparison:
    """Run every strategy on every seed; ``report`` hears strategy, labels and error as it goes."""
    table_x, table_y = (torch.from_numpy(array) for array in load_energy())
    curves: dict[str, list[list[float]]] = {name: [] for name in STRATEGIES}
    for seed in range(num_seeds):
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(table_x), generator=generator)
        test, train = order.tensor_split([len(order) // 5])
        x = (table_x - table_x[train].mean(0)) / table_x[train].std(0)
        features = RandomFeatures.draw(x.shape[1], generator)
        for name in STRATEGIES:
            labelled, pool, curve = train[:FIRST_LABELS], train[FIRST_LABELS:], []
            for round_number in range(num_rounds + 1):
                model = fit(x[labelled], table_y[labelled], features)
                errors = model.predict(x[test]) - table_y[test]
                curve.append(float(errors.square().mean().sqrt()))
                report(name, len(labelled), curve[-1])
                if round_number == num_rounds:
                    break
                batch = select(
                    model.features(x[pool]),
                    posterior=model.posterior,
                    budget=BATCH,
                    strategy=name,
                    seed=1000 * seed + round_number,
                )
                chosen = torch.zeros(len(pool), dtype=torch.bool)
                chosen[batch.index] = True
                labelled, pool = torch.cat([labelled, pool[chosen]]), pool[~chosen]
            curves[name].append(curve)
    num_labels = tuple(FIRST_LABELS + BATCH * i for i in range(num_rounds + 1))
    return Comparison(num_labels, {name: np.array(values) for name, values in curves.items()})


# The picture of a batch.


@dataclass(frozen=True, eq=False)
class PlaneProblem:
    """Two classes in the plane (figure 2 of the paper): ten labels, p(y = 1 | x) = Phi(5 x_1), and a pool."""

    x: Tensor
    y: Tensor
    pool: Tensor

    @classmethod
    def draw(cls, seed: int) -> PlaneProblem:
        generator = torch.Generator().manual_seed(seed)
        points = torch.randn(410, 2, dtype=torch.float64, generator=generator)
        x, pool = points[:10], points[10:]
        chance = torch.rand(10, dtype=torch.float64, generator=generator)
        return cls(x, (chance < torch.special.ndtr(5 * x[:, 0])).double(), pool)

    def batch(self, strategy: str) -> Tensor:
        """(10, 2) the chosen points."""
        posterior = BayesianProbitRegression().fit(self.x, self.y)
        return self.pool[select(self.pool, posterior=posterior, budget=10, strategy=strategy).index]


def nearest_distance(batch: Tensor) -> float:
    """Mean distance from a point of the batch (b, d) to the nearest other one: small where it is clumped.

    >>> nearest_distance(torch.tensor([[0.0], [1.0], [3.0]]))  # 1, 1 and 2
    1.3333333730697632
    """
    distances = torch.cdist(batch, batch).fill_diagonal_(torch.inf)
    return float(distances.min(1).values.mean())


def draw_batches() -> tuple[Figure, str]:
    """The picture, for the first of twenty problems, and a sentence with the numbers of all twenty."""
    problems = [PlaneProblem.draw(seed) for seed in range(20)]
    first = problems[0]
    posterior = BayesianProbitRegression().fit(first.x, first.y)
    extent = 3.6
    line = torch.linspace(-extent, extent, 181, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line).flip(1)  # the second coordinate runs over rows
    shape = (len(line), len(line))
    surface = bald(posterior, as_pool(grid), generator=torch.Generator()).values.reshape(shape)
    boundary = (grid @ posterior.mean).reshape(shape)

    panels, spreads = [], []
    for strategy, title in (
        ("bald", "The ten best by BALD, one by one"),
        ("acs-fisher", "Ten by ACS-FW, together"),
    ):
        batches = [problem.batch(strategy) for problem in problems]
        distance = nearest_distance(batches[0])
        note = f"mean distance to the nearest other of the batch: {distance:.2f}"
        panels.append(BatchPanel(title, note, batches[0].numpy()))
        spreads.append(np.mean([nearest_distance(batch) for batch in batches]))
    figure = batch_picture(
        panels,
        pool=first.pool.numpy(),
        labelled=first.x.numpy(),
        classes=first.y.numpy(),
        surface=surface.numpy(),
        boundary=boundary.numpy(),
        extent=extent,
    )
    return figure, (
        f"Over {len(problems)} problems drawn at random, a point of a batch by BALD is {spreads[0]:.2f} from "
        f"the nearest other point of its batch on average, a point of a batch by ACS {spreads[1]:.2f}."
    )


# What people see.


def run(
    out: Path, *, num_seeds: int = 10, num_rounds: int = 10, console: Console | None = None
) -> Comparison:
    """Run the demonstration: progress and a table on the console, figures and a page in ``out``."""
    if num_seeds < 2:
        raise InputError(f"seeds is {num_seeds}, expected at least 2: one run alone has no error bars")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {out}: {error.strerror}") from None
    console = console or Console()

    with enough_threads(0), _progress(console, num_seeds * (num_rounds + 1)) as report:
        comparison = compare(num_seeds, num_rounds, report)
        batches, spread = draw_batches()
    curves = learning_curves(comparison.num_labels, comparison.rmse, "test RMSE, kWh/m²")
    save(curves, out / "curves.png")
    save(batches, out / "batches.png")
    text = html.page("Which buildings to simulate next?", _story(comparison, curves, batches, spread))
    write_text(out / "index.html", text)

    table = Table("labels", *comparison.rmse, title="test RMSE, kWh/m², mean ± standard error")
    for column in table.columns:
        column.justify = "right"
    for row in comparison.rows():
        table.add_row(*row)
    console.print(table)
    console.print(comparison.conclusion(), highlight=False)
    console.print(f"The whole story: {out / 'index.html'}", highlight=False, soft_wrap=True)
    return comparison


def _story(comparison: Comparison, curves: Figure, batches: Figure, spread: str) -> Sequence[html.Part]:
    seeds = len(comparison.rmse["acs-fw"])
    return [
        "A model is to predict the heating load of a building from its shape and windows. Every label costs "
        "a simulation, so the question is which of the buildings without one to simulate next, ten at a "
        "time. Chance is the baseline (random). Maximum entropy (maxent) takes the ten buildings the model "
        "is least sure about, one by one. ACS-FW chooses ten buildings that together stand for what the "
        "labels of all the others would tell the model.",
        comparison.conclusion(),
        html.Picture(
            curves,
            f"Test error against labels: mean over {seeds} random splits, bands of two standard errors. "
            "The strategies share splits, first labels and random features.",
        ),
        html.Table(
            ["labels", *comparison.rmse], comparison.rows(), "Test RMSE in kWh/m², mean ± standard error."
        ),
        html.Heading("Why a batch is more than its best points"),
        "Points that are alike are also alike in what they are worth. To take the best ones one by one is "
        "therefore to ask nearly the same question several times; once the first answer is in, the others "
        "tell little. ACS accounts for that overlap: a point counts only for what the rest of the batch does "
        f"not yet explain. {spread}",
        html.Picture(
            batches,
            "Probit regression in the plane. The darker the blue, the more a single label there would tell "
            "the model (BALD). Orange: the batch of ten.",
        ),
        html.Heading("How it was done"),
        "Data: UCI energy efficiency, 768 buildings, 8 inputs (Tsanas and Xifara, 2012; CC BY 4.0); a fifth "
        "is held out for testing in each split. Model: Bayesian linear regression with unknown noise on "
        f"{NUM_FEATURES} random Fourier features, whose scales are learned again after every batch from the "
        "labels at hand, by their marginal likelihood. The test set serves for nothing but the error shown.",
    ]


@contextmanager
def _progress(console: Console, steps: int) -> Iterator[Callable[[str, int, float], None]]:
    """A bar per strategy with its latest error; gives the function to report to."""
    columns = TextColumn("{task.description:>8}"), BarColumn(), TextColumn("{task.fields[latest]}")
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        tasks = {name: progress.add_task(name, total=steps, latest="") for name in STRATEGIES}

        def report(name: str, labels: int, error: float) -> None:
            progress.update(tasks[name], advance=1, latest=f"{labels:3d} labels  RMSE {error:5.2f}")

        yield report
