"""Uncertainty herding: the batch that covers the pool where the model is uncertain."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical

from coresift import limits
from coresift.checks import check_positive
from coresift.errors import InputError
from coresift.posteriors.samples import choose
from coresift.scores import Score, margin, variance
from coresift.selectors.base import Selection, Selector
from coresift.spaces.base import Problem
from coresift.spaces.features import features
from coresift.types import Floats


@dataclass(frozen=True, eq=False)
class CoverageScore(Score):
    """Uncertainty ``values`` (N,), at least zero, with the features in which points are near or far.

    Attributes
    ----------
    features : (N, D).
    labelled : (M, D) features of the labelled points.
    unit : what the features are divided by, a power of two; one unless they are very large or very small.
    """

    _: KW_ONLY
    features: Tensor
    labelled: Tensor
    unit: float = 1.0

    @property
    def bytes_per_point(self) -> int:
        return limits.HERDING_COPIES * int(self.features[0].nbytes) + limits.HERDING_BYTES


def coverage_score(problem: Problem) -> CoverageScore:
    """Compute uncertainty and features of a problem's points.

    The uncertainty is one minus the margin for classes, the share of the largest predictive variance for
    numbers, and one without a model.
    """
    space = features(replace(problem, memory=None))
    anchors = [elements for elements, _ in space.anchors()]
    labelled = torch.cat([space.vectors.new_empty(0, len(space.vectors)).double(), *anchors])
    values = torch.ones(len(problem.pool), dtype=torch.float64)
    if problem.model is not None:
        with torch.no_grad():
            first = problem.model.predictive(problem.pool.take([0]))
        uncertainty = margin if isinstance(first, Categorical | Bernoulli) else variance
        values = uncertainty(problem.model, problem.pool).values.clamp(min=0)
        values /= values.max().clamp(min=torch.finfo(values.dtype).tiny)
    rows = space.vectors.mT.contiguous()
    return CoverageScore(values, problem.pool, features=rows, labelled=labelled, unit=space.scale)


@dataclass(frozen=True)
class UncertaintyHerding(Selector[Score]):
    """Greedily maximises the coverage of the pool, weighted by its uncertainty u, from a `CoverageScore`:

        sum_n u_n max_{c in labelled, pending and batch} k(x_n, c)    k(x, c) = exp(-||x - c||^2 / 2 s^2)

    With few labels s is large, and the batch represents the pool; with many labels s is small, and each point
    counts by its own uncertainty. By default, s is the median distance from a point of the pool to the
    nearest of m points drawn at random from it, where m is the number of labelled points, pending points and
    points to choose. The paper takes the smallest distance between two labelled points. Ours decays in the
    same way, exists before there are labels, and does not depend on a single pair of near-duplicates.

    Of pools of more than ``limits.HERDED_POINTS`` points, the sum is over a random sample; all points may be
    chosen. Gains can only fall as the batch grows: a step computes again only those that may still be the
    largest. Residuals are the shares of the uncertainty that are not covered yet. The paper also calibrates
    the model's probabilities; here they are used as they are. Where the model is sure of all points, u is
    one.

    Parameters
    ----------
    bandwidth : s, in units of the features; ``None`` is the rule above.

    References
    ----------
    Bae, Oliveira and Sutherland, Uncertainty Herding: One Active Learning Method for All Label Budgets, 2025.

    >>> rows = torch.tensor([[0.0], [0.1], [0.2], [5.0], [9.0]])
    >>> score = CoverageScore(torch.ones(5), features=rows, labelled=torch.zeros(0, 1))
    >>> UncertaintyHerding(bandwidth=1.0).select(score, budget=2).index
    array([1, 3])
    """

    bandwidth: float | None = None

    def __post_init__(self) -> None:
        if self.bandwidth is not None:
            check_positive(self.bandwidth, "bandwidth")

    def _choose(self, score: Score, selection: Selection, generator: torch.Generator) -> tuple[None, Floats]:
        if not isinstance(score, CoverageScore):
            raise InputError("UncertaintyHerding chooses from a CoverageScore, uncertainty and features")
        rows = score.features
        sample = choose(len(rows), limits.HERDED_POINTS, generator)
        num = len(score.labelled) + len(selection.pending) + selection.budget
        if self.bandwidth is None:
            scale = typical_distance(rows, sample, num, generator)
        else:
            scale = self.bandwidth / score.unit
        values = score.values if bool((score.values > 0).any()) else torch.ones_like(score.values)
        # Where the sample is sure although others are not, it counts evenly.
        weights = values[sample] if bool((values[sample] > 0).any()) else torch.ones(len(sample))
        coverage = _Coverage(rows, sample, weights, scale)
        coverage.add(score.labelled)
        coverage.add(rows[torch.from_numpy(selection.pending).to(rows.device)])
        seen = set(score.identity(selection.pending)) if len(selection.pending) else set()
        bounds = coverage.all_gains().masked_fill_(~selection.open, -torch.inf)
        duplicates, residuals = list[int](), list[float]()
        while not selection.full and math.isfinite(float(bounds.max())):
            n = _largest(coverage, bounds)
            bounds[n] = -torch.inf
            identity = score.identity(np.array([n]))[0]
            if identity in seen:
                duplicates.append(n)
                continue
            seen.add(identity)
            selection.take(n)
            coverage.add(rows[[n]])
            residuals.append(coverage.uncovered())
        for n in sorted(duplicates)[: selection.budget - len(selection.chosen)]:
            selection.take(n)
            residuals.append(coverage.uncovered())
        return None, np.array(residuals)


def _largest(coverage: _Coverage, bounds: Tensor) -> int:
    """Return the point of the largest gain; ``bounds`` (N,) are at least the gains, and are lowered."""
    size = min(limits.HERDING_BLOCK, len(bounds))
    while True:
        tops = bounds.topk(min(size + 1, len(bounds)))
        index = tops.indices[:size][tops.values[:size] > -torch.inf]
        bounds[index] = coverage.gains(index)
        best = bounds[index].max()
        if len(index) == len(bounds) or best >= tops.values[-1]:
            return int(index[bounds[index] == best].min())


def typical_distance(rows: Tensor, sample: Tensor, num: int, generator: torch.Generator) -> float:
    """Return the median distance from points to the nearest of ``num`` others drawn at random, above zero."""
    drawn = choose(len(rows), min(max(num, 1), len(sample)), generator)
    points, others = rows[sample.to(rows.device)].double(), rows[drawn.to(rows.device)].double()
    nearest = []
    block = max(limits.DISTANCE_WORKING_SET // len(others), 1)
    for some, index in zip(torch.split(points, block), torch.split(sample, block), strict=True):
        distances = torch.cdist(some, others, compute_mode="donot_use_mm_for_euclid_dist")
        distances.masked_fill_((index[:, None] == drawn).to(rows.device), torch.inf)  # a point is not its own
        nearest.append(distances.amin(1))
    found = torch.cat(nearest)
    found = found[(found > 0) & found.isfinite()]
    return float(found.median()) if len(found) else 1.0


class _Coverage:
    """How well a sample of the pool is covered: max_c k(x_n, c) for each of its points (S,)."""

    def __init__(self, rows: Tensor, sample: Tensor, weights: Tensor, scale: float) -> None:
        self._rows, self._unit = rows, 1 / (math.sqrt(2) * scale)
        self._points = rows[sample.to(rows.device)].double() * self._unit
        self._squares = self._points.square().sum(1)
        self._weights = weights.to(self._points)
        self._covered = torch.zeros_like(self._weights)
        self._block = max(limits.DISTANCE_WORKING_SET // len(sample), 1)

    def _kernel(self, rows: Tensor) -> Tensor:
        """(n, S) k between rows (n, D) and the sample."""
        scaled = rows.double() * self._unit
        exponent = torch.addmm(-self._squares, scaled, self._points.mT, alpha=2.0)
        exponent -= scaled.square().sum(1, keepdim=True)
        return exponent.clamp_(max=0).exp_()

    def add(self, rows: Tensor) -> None:
        """Count rows (n, D) as centres."""
        for block in torch.split(rows, self._block):
            if len(block):
                self._covered = torch.maximum(self._covered, self._kernel(block).amax(0))

    def gains(self, index: Tensor) -> Tensor:
        """(n,) on the CPU, by how much the weighted coverage grows with each point as a further centre."""
        return self._gains(self._rows[index.to(self._rows.device)])

    def all_gains(self) -> Tensor:
        """(N,) the gains of all points."""
        return self._gains(self._rows)

    def _gains(self, rows: Tensor) -> Tensor:
        blocks = torch.split(rows, self._block)
        parts = [
            (self._kernel(block) - self._covered).clamp_(min=0) @ self._weights
            for block in blocks
            if len(block)
        ]
        return torch.cat(parts).cpu()

    def uncovered(self) -> float:
        """Return the share of the weights that is not covered."""
        return float(((1 - self._covered) @ self._weights) / self._weights.sum())
