"""The paper's toy figures: how a batch grows in the plane, and what BALD and the ACS norm have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from coresift.bench.demo import PlaneProblem
from coresift.pool import as_pool
from coresift.posteriors import BayesianLinearRegression, BayesianProbitRegression, ProbitPosterior
from coresift.report.figures import COLOURS, INK, Stage, growing_batches, style
from coresift.scores import acs_norm, bald
from coresift.selectors import FrankWolfe
from coresift.spaces import ProbitFisherSpace, fisher_space
from coresift.types import Floats

EXTENT = 3.6
NOISE = 5.0


# Probit regression in the plane.


def probit_batches(stages: Sequence[int] = (1, 2, 3, 10), *, seed: int = 9, resolution: int = 120) -> Figure:
    """The batches of BALD and of ACS-FW as they grow (paper, figure on probit regression).

    The shade is what the last point of each panel was chosen by: BALD, which stays the same, and for ACS-FW
    the score of Frank-Wolfe (see `frank_wolfe_stages`), which turns with every step.

    Parameters
    ----------
    stages : after how many steps to show the batches.
    resolution : points along each side of the surfaces; even, as Frank-Wolfe's score is 0 / 0 at the origin.

    >>> [axes.get_title('left') for axes in probit_batches((1, 5), resolution=4).axes]
    ['t = 1', 't = 5', 't = 1', 't = 5']
    """
    problem = PlaneProblem.draw(seed)
    posterior = BayesianProbitRegression().fit(problem.x, problem.y)
    line = torch.linspace(-EXTENT, EXTENT, resolution, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line).flip(1)  # the second coordinate runs over rows

    batch = problem.batch("bald")
    information = bald(posterior, as_pool(grid), generator=torch.Generator()).values
    rows = {
        "BALD\nshade: information in a label": [(batch[:stage], information) for stage in stages],
        "ACS-FW\nshade: Frank-Wolfe's score": frank_wolfe_stages(posterior, problem.pool, grid, stages),
    }

    def picture(values: Tensor) -> Floats:
        return values.reshape(resolution, resolution).numpy()

    return growing_batches(
        {
            name: [
                Stage(f"t = {stage}", points.numpy(), picture(surface))
                for stage, (points, surface) in zip(stages, row, strict=True)
            ]
            for name, row in rows.items()
        },
        pool=problem.pool.numpy(),
        labelled=problem.x.numpy(),
        classes=problem.y.numpy(),
        boundary=picture(grid @ posterior.mean),
        extent=EXTENT,
    )


def frank_wolfe_stages(
    posterior: ProbitPosterior, pool: Tensor, grid: Tensor, stages: Sequence[int]
) -> list[tuple[Tensor, Tensor]]:
    """For each stage t: what Frank-Wolfe has chosen by step t, (at most t, 2), and what step t went by, (G,).

    That is <L - L(w), L_g> / ||L_g|| at the places of the grid (G, 2), with the weights w that t - 1 steps
    gave to points of the pool (N, 2): high where a label tells what the batch does not tell yet. Steps are
    those of the paper's Algorithm 1, which now and then go back to a point of the batch.
    """
    space = ProbitFisherSpace(posterior, as_pool(pool))
    both = ProbitFisherSpace(posterior, as_pool(torch.cat([pool, grid])))
    inner = torch.stack([both.coordinates(n)[len(pool) :] for n in range(len(pool))])  # (N, G)
    selector, found = FrankWolfe(fill=False), []
    for stage in stages:
        residual = inner.sum(0)  # <L, L_g>
        if stage > 1:
            before = selector.select(space, stage - 1)
            residual = residual - torch.as_tensor(before.weights) @ inner[before.index]
        found.append((pool[selector.select(space, stage).index], residual / both.norms[len(pool) :]))
    return found


# Linear regression on the line.


def linear_norms(num_labels: int = 10, *, seed: int = 0) -> Figure:
    """BALD beside the ACS norm over x^T x (paper, appendix), for y = x + noise of variance 5.

    The paper calls them equal up to a factor. In truth each is a rising function of the other,
    ACS / x^T x = (exp(2 BALD) - 1) / 5, so that both have the same best point.

    >>> [axes.get_title('left') for axes in linear_norms().axes]
    ['Labels and model', 'BALD', 'ACS norm / xᵀx']
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_labels, dtype=torch.float64, generator=generator)
    y = x + NOISE**0.5 * torch.randn(num_labels, dtype=torch.float64, generator=generator)
    posterior = BayesianLinearRegression(noise_variance=NOISE).fit(x[:, None], y)
    line = torch.linspace(-6, 6, 200, dtype=torch.float64)  # an even number: the origin is not among them
    pool = as_pool(line[:, None])
    information = bald(posterior, pool, generator=torch.Generator()).values
    norm = acs_norm(fisher_space(posterior, pool, generator=torch.Generator())).values / line.square()

    with style():
        figure = Figure(figsize=(11.4, 3.6))
        data, left, right = figure.subplots(1, 3)
        data.set_title("Labels and model")
        mean, deviation = line * posterior.mean, line.abs() * posterior.covariance[0].sqrt()
        band = mean - 2 * deviation, mean + 2 * deviation
        data.fill_between(line, *band, color=COLOURS[0], alpha=0.15, linewidth=0)
        data.plot(line, mean, color=COLOURS[0], label="posterior mean, ± 2 deviations")
        data.plot(line, line, color=INK, linestyle="--", linewidth=1.2, label="y = x")
        data.scatter(x, y, s=28, color=COLOURS[1], edgecolors="white", zorder=3, label="labels")
        data.legend(loc="upper left")
        left.set_title("BALD")
        left.set_ylabel("nats")
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
