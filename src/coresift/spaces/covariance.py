"""The covariance of predictions in units of the noise, and its sum over a target set."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from coresift.limits import MAPPED_ROWS
from coresift.pool import as_pool, read
from coresift.posteriors.samples import FLOOR, first_prediction, mean_over, rows_at_a_time
from coresift.spaces.base import Problem
from coresift.spaces.predictive import exact_predictive_rows, project
from coresift.spaces.vectors import VectorSpace, mapped_space
from coresift.types import Chunk

# Maps rows x (n, ...) of a pool to vectors (n, D) and noise variances (n,).
Rows = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class PredictiveCovariance:
    """Builds the space for `VarianceReduction`: what labels say about predictions at the targets.

    Inner products of phi_n are covariances of the model's predictions without noise. The vectors of the space
    are phi_n / sqrt(s_n), where s_n is the variance of the noise at point n, and ``target_moment`` is the sum
    of phi_t phi_t^T over ``Problem.target`` or, without it, over the pool.

    A model with a closed form registers it with `exact_predictive_rows`: vectors phi_n / sqrt(s) for a noise
    variance s that all points share. Variances are then in units of s. For other models, phi_n are the
    deviations of what J samples predict from their mean, over sqrt(J), and s_n is the mean over samples of
    the variance of y.

    For classes, these are the deviations of all C probabilities, one after the other, and s_n is the mean
    over samples of sum_c p_c (1 - p_c). That is exact for two classes as far as label and prediction are
    jointly Gaussian. For more, one label stands for C observations, one for each class, and covariances
    between different classes are left out.

    Parameters
    ----------
    num_dimensions : longer vectors are projected to this many numbers by random signs, as in `Predictive`;
        ``None`` keeps all.
    """

    num_dimensions: int | None = 512

    def __call__(self, problem: Problem) -> VectorSpace:
        posterior, theta = problem.posterior, problem.draw()
        seed = int(torch.randint(2**62, (), generator=problem.generator))
        rows_of = covariance_rows(problem, theta)
        if problem.closed_form(exact_predictive_rows):
            return _space(problem, MAPPED_ROWS, rows_of)

        def projected(x: Tensor) -> tuple[Tensor, Tensor]:
            rows, noise = rows_of(x)
            return project(rows, self.num_dimensions, seed), noise

        first = first_prediction(posterior, problem.pool, theta)
        return _space(problem, rows_at_a_time(first, MAPPED_ROWS), projected)


def covariance_rows(problem: Problem, theta: Any) -> Rows:
    """Return the function that maps rows to vectors phi_n and noise: in closed form, or for J samples."""
    posterior = problem.posterior
    if exact := problem.closed_form(exact_predictive_rows):

        def exact_rows(x: Tensor) -> tuple[Tensor, Tensor]:
            rows = exact(posterior, x)
            return rows, rows.new_ones(len(rows))

        return exact_rows
    return lambda x: deviations_and_noise(posterior.conditional(x, theta))


def _space(problem: Problem, block: int, rows_of: Rows) -> VectorSpace:
    """Map the pool; the sum over the targets is taken on the way where they are the pool."""
    moment: list[Tensor] = []

    def add(rows: Tensor) -> None:
        fine = rows.double()
        moment[:] = [moment[0].addmm_(fine.mT, fine) if moment else fine.mT @ fine]

    def vectors(chunk: Chunk) -> Tensor:
        rows, noise = rows_of(chunk.x)
        if problem.target is None:
            add(rows)
        return (rows / noise.sqrt()[:, None]).mT

    space = mapped_space(replace(problem, labelled=None), block, vectors)
    if problem.target is not None:
        with torch.no_grad():
            for chunk in read(as_pool(problem.target), block):
                add(rows_of(chunk.x)[0])
    space.target_moment = moment[0]
    space.additive = False  # log-likelihoods of points add up, predictions do not
    return space


def deviations_and_noise(each: Distribution) -> tuple[Tensor, Tensor]:
    """(n, J O) deviations of what J samples predict from their mean, over sqrt(J), and (n,) the noise.

    The O numbers that a sample predicts are class probabilities, or the means of O outputs. The noise is the
    mean over samples of the variance of y, summed over outputs.

    >>> rows, noise = deviations_and_noise(Bernoulli(torch.tensor([[0.2], [0.6]])))
    >>> rows.square().sum(1), noise
    (tensor([0.0400]), tensor([0.2000]))
    """
    values: Any = each.probs if isinstance(each, Categorical | Bernoulli) else each.mean
    spread = values * (1 - values) if isinstance(each, Categorical) else each.variance
    deviations = (values - mean_over(values)).transpose(0, 1).flatten(1)
    # Classes have a lower bound on their probabilities too.
    least = FLOOR if isinstance(each, Categorical | Bernoulli) else 1e-30
    noise = mean_over(spread).reshape(deviations.shape[0], -1).sum(1).clamp_min(least)
    return deviations / math.sqrt(len(values)), noise
