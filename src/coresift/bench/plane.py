"""The paper's toy figures: batches in the plane, and what BALD and the ACS norm have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from coresift.bench.statistics import nearest_distance
from coresift.pool import as_pool
from coresift.posteriors import BayesianLinearRegression, BayesianProbitRegression, ProbitPosterior
from coresift.report.figures import COLOURS, INK, BatchPanel, Plane, batch_picture, growing_batches, styled
from coresift.scores import acs_norm, bald
from coresift.selection import select
from coresift.selectors import FrankWolfe
from coresift.spaces import ProbitFisherSpace, fisher_space
from coresift.types import Floats

EXTENT = 3.6
NOISE = 5.0


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
        uniform = torch.rand(10, dtype=torch.float64, generator=generator)
        return cls(x, (uniform < torch.special.ndtr(5 * x[:, 0])).double(), pool)

    def posterior(self) -> ProbitPosterior:
        """Fit the model to the labels."""
        return BayesianProbitRegression().fit(self.x, self.y)

    def batch(self, strategy: str) -> Tensor:
        """Choose ten points (10, 2)."""
        return self.pool[select(self.pool, posterior=self.posterior(), budget=10, strategy=strategy).index]

    def plane(self, resolution: int) -> tuple[Plane, Tensor]:
        """Return what figures show besides batches, and the points (G * G, 2) of a grid."""
        line = torch.linspace(-EXTENT, EXTENT, resolution, dtype=torch.float64)
        grid = torch.cartesian_prod(line, line).flip(1)  # the second coordinate runs over rows
        boundary = _on_grid(grid @ self.posterior().mean)
        known = self.x.numpy(), self.y.numpy()
        return Plane(self.pool.numpy(), *known, boundary, EXTENT), grid


def _on_grid(values: Tensor) -> Floats:
    """(G * G,) -> (G, G)"""
    side = round(len(values) ** 0.5)
    return values.reshape(side, side).numpy()


def _bald(posterior: Any, points: Tensor) -> Tensor:
    return bald(posterior, as_pool(points), generator=torch.Generator()).values


def probit_pictures(num_problems: int = 20) -> tuple[Figure, str]:
    """Draw batches by BALD and by ACS for the first problem; with a sentence on the distances in all."""
    problems = [PlaneProblem.draw(seed) for seed in range(num_problems)]
    plane, grid = problems[0].plane(181)
    surface = _on_grid(_bald(problems[0].posterior(), grid))
    titles = {"bald": "The ten highest BALD scores", "acs-fisher": "Ten points chosen together by ACS-FW"}
    panels, means = [], []
    for strategy, title in titles.items():
        batches = [problem.batch(strategy).numpy() for problem in problems]
        distances = list(map(nearest_distance, batches))
        note = f"mean distance to the nearest other: {distances[0]:.2f}"
        panels.append(BatchPanel(title, batches[0], surface, note))
        means.append(np.mean(distances))
    return batch_picture(panels, plane), (
        f"Over {num_problems} random problems in the plane, the mean distance from a point to the nearest "
        f"other point of its batch is {means[0]:.2f} for BALD and {means[1]:.2f} for ACS."
    )


def probit_batches(stages: Sequence[int] = (1, 2, 3, 10), *, seed: int = 9, resolution: int = 120) -> Figure:
    """Draw the batches of BALD and of ACS-FW as they grow (paper, figure on probit regression).

    The shading is what the last point of each panel was chosen by: BALD, which does not change, and for
    ACS-FW the score of Frank-Wolfe (see `frank_wolfe_stages`), which changes with every step.

    Parameters
    ----------
    stages : after how many steps to show the batches.
    resolution : points along each side of the surfaces; even, as Frank-Wolfe's score is 0 / 0 at the origin.

    >>> [axes.get_title('left') for axes in probit_batches((1, 5), resolution=4).axes]
    ['t = 1', 't = 5', 't = 1', 't = 5']
    """
    problem = PlaneProblem.draw(seed)
    plane, grid = problem.plane(resolution)
    batch, information = problem.batch("bald"), _bald(problem.posterior(), grid)
    chosen = {
        "BALD\nshading: information in a label": [(batch[:stage], information) for stage in stages],
        "ACS-FW\nshading: Frank-Wolfe's score": frank_wolfe_stages(
            problem.posterior(), problem.pool, grid, stages
        ),
    }
    rows = defaultdict[str, list[BatchPanel]](list)
    for name, batches in chosen.items():
        for stage, (points, surface) in zip(stages, batches, strict=True):
            rows[name].append(BatchPanel(f"t = {stage}", points.numpy(), _on_grid(surface)))
    return growing_batches(rows, plane)


def frank_wolfe_stages(
    posterior: ProbitPosterior, pool: Tensor, grid: Tensor, stages: Sequence[int]
) -> list[tuple[Tensor, Tensor]]:
    """Return for each stage t what Frank-Wolfe chose by step t, (at most t, 2), and its score (G,) then.

    The score is <L - L(w), L_g> / ||L_g|| at the points of the grid (G, 2), with the weights w that t - 1
    steps gave to points of the pool (N, 2): it is high where a label tells what the batch does not tell yet.
    Steps are those of the paper's Algorithm 1, which sometimes return to a point of the batch.
    """
    space = ProbitFisherSpace(posterior, as_pool(pool))
    both = ProbitFisherSpace(posterior, as_pool(torch.cat([pool, grid])))
    inner = torch.stack([both.column(n)[len(pool) :] for n in range(len(pool))])  # (N, G)
    selector, chosen = FrankWolfe(fill=False), []
    for stage in stages:
        residual = inner.sum(0)  # <L, L_g>
        if stage > 1:
            before = selector.select(space, stage - 1)
            residual = residual - torch.as_tensor(before.weights) @ inner[before.index]
        chosen.append((pool[selector.select(space, stage).index], residual / both.norms[len(pool) :]))
    return chosen


@styled
def linear_norms(num_labels: int = 10, *, seed: int = 0) -> Figure:
    """Draw BALD next to the ACS norm over x^T x (paper, appendix), for y = x + noise of variance 5.

    The paper calls them equal up to a factor. In fact each is an increasing function of the other,
    ACS / x^T x = (exp(2 BALD) - 1) / 5, so both have the same best point.

    >>> [axes.get_title('left') for axes in linear_norms().axes]
    ['Labels and model', 'BALD', 'ACS norm / xᵀx']
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_labels, dtype=torch.float64, generator=generator)
    y = x + NOISE**0.5 * torch.randn(num_labels, dtype=torch.float64, generator=generator)
    posterior = BayesianLinearRegression(noise_variance=NOISE).fit(x[:, None], y)
    line = torch.linspace(-6, 6, 200, dtype=torch.float64)  # an even number: the origin is not among them
    pool = as_pool(line[:, None])
    information = _bald(posterior, line[:, None])
    norm = acs_norm(fisher_space(posterior, pool, generator=torch.Generator())).values / line.square()

    figure = Figure(figsize=(11.4, 3.6))
    data, left, right = figure.subplots(1, 3)
    mean, std = line * posterior.mean, line.abs() * posterior.covariance[0].sqrt()
    data.set_title("Labels and model")
    data.fill_between(line, mean - 2 * std, mean + 2 * std, color=COLOURS[0], alpha=0.15, linewidth=0)
    data.plot(line, mean, color=COLOURS[0], label="posterior mean ± 2 std")
    data.plot(line, line, color=INK, linestyle="--", linewidth=1.2, label="y = x")
    data.scatter(x, y, s=28, color=COLOURS[1], edgecolors="white", zorder=3, label="labels")
    data.legend(loc="upper left")
    left.set(title="BALD", ylabel="nats")
    left.plot(line, information, color=COLOURS[0])
    right.set_title("ACS norm / xᵀx")
    right.plot(line, norm, color=COLOURS[0])
    same = torch.expm1(2 * information) / NOISE
    right.plot(line[::8], same[::8], ".", color=INK, label="(exp(2 BALD) \N{MINUS SIGN} 1) / 5")
    right.legend(loc="upper center")
    for axes in (data, left, right):
        axes.set_xlabel("x")
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {"probit-batches": probit_batches, "linear-norms": linear_norms}
