"""Learning curves: cross-validate quick models on the first k labels, and fit a + b n^-c to their errors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coresift import limits
from coresift.labelling.model import quick_model
from coresift.labelling.records import CurvePoint, Task
from coresift.types import Floats, Index

FOLDS = 5
# Folds share most of their training rows: the variance of their mean is that of independent tests, plus this
# much of it (Nadeau and Bengio, Inference for the Generalization Error, 2003, for tests of 1/5).
TRAINING = FOLDS / (FOLDS - 1)
NORMAL = 1.645  # quantile for 90% intervals
# Learning curves fall as n^-c, with c around one half; nearly all known ones are within these bounds.
_POWERS = np.geomspace(0.1, 2.0, 25)
_USUAL_POWER, _POWER_SPREAD = 0.5, 0.7
# Early points may deviate from the curve: by so much, in logarithms, for each halving of the labels.
_DRIFT = 0.15


@dataclass(frozen=True, eq=False)
class Losses:
    """Losses (R, t) of t test rows in R repeats of the cross-validation, by models trained on ``labels``.

    A loss is 0 or 1 for a class, and a squared error for a number.
    """

    labels: int
    losses: Floats

    def rows(self) -> Floats:
        """(t,) the means over repeats."""
        return np.asarray(self.losses.mean(0))

    def join(self, more: Losses) -> Losses:
        """Add the losses of further repeats."""
        return Losses(self.labels, np.concatenate([self.losses, more.losses]))


@dataclass(frozen=True, eq=False)
class CrossValidator:
    """Trains quick models without a fold, and tests them on it, in several repeats with other folds."""

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    folds: Index  # (R, n) the fold in which a row is tested, in each repeat; -1 for rows that never are
    task: Task
    seed: int

    def cross_validate(self, orders: Sequence[Index], size: int | None = None) -> Losses:
        """Train on the first ``size`` rows of each repeat's order that are not in the fold.

        By default ``size`` is the largest that all folds allow.
        """
        left = [
            order[folds[order] != fold]
            for order, folds in zip(orders, self.folds, strict=True)
            for fold in range(FOLDS)
        ]
        size = min(map(len, left)) if size is None else size
        sets = [rows[:size] for rows in left]
        losses = np.zeros(self.folds.shape)
        for number, (rows, model) in enumerate(zip(sets, self._models(sets, size), strict=True)):
            repeat, fold = divmod(number, FOLDS)
            out = self.folds[repeat] == fold
            predicted = model.predict(self.x[out]) if model else np.repeat(self.y[rows[:1]], out.sum())
            wrong = predicted != self.y[out]
            losses[repeat, out] = wrong if self.task == "classification" else (predicted - self.y[out]) ** 2
        return Losses(size, losses[:, self.folds[0] >= 0])

    def _models(self, sets: Sequence[Index], size: int) -> Iterator[Any | None]:
        """Fit a model to each set of rows; ``None`` for a set whose labels are all the same."""
        several = [rows for rows in sets if len(np.unique(self.y[rows])) > 1]
        seeds = [(self.seed + number) % 2**32 for number in range(len(several))]
        model = quick_model(self.task, size, self.seed)
        fits = iter(model.fit_many([(self.x[r], self.y[r]) for r in several], seeds) if several else ())
        for rows in sets:
            yield next(fits) if len(np.unique(self.y[rows])) > 1 else None

    def cross_validate_first(self, counts: Sequence[int]) -> list[Losses]:
        """Train on the first rows, for each count."""
        return [self.cross_validate([np.arange(count)] * len(self.folds)) for count in counts]

    def error(self, loss: Any) -> Any:
        """Turn mean losses into the error rate, or the root of squared errors."""
        return loss if self.task == "classification" else np.sqrt(loss)

    def point(self, tested: Losses) -> CurvePoint:
        """Return a measured point, with Wilson's interval for classes and a log-normal one for numbers."""
        rows = tested.rows()
        mean, num = rows.mean(), len(rows) / (1 + TRAINING)
        if self.task == "classification":
            middle = (mean + NORMAL**2 / (2 * num)) / (1 + NORMAL**2 / num)
            half = np.sqrt(mean * (1 - mean) / num + (NORMAL / (2 * num)) ** 2)
            half *= NORMAL / (1 + NORMAL**2 / num)
            low, high = middle - half, middle + half
        else:
            ratio = np.exp(NORMAL * rows.std() / np.sqrt(num) / max(mean, 1e-300))
            low, high = mean / ratio, mean * ratio
        return CurvePoint(tested.labels, *(float(self.error(value)) for value in (mean, max(low, 0.0), high)))

    def replicates(
        self, tested: Sequence[Losses], generator: np.random.Generator
    ) -> tuple[list[int], Floats]:
        """Draw errors (R, m) of other test rows and other training sets; also returns the counts (m,).

        All counts share the test rows that are drawn, but not the training sets.
        """
        num = limits.CURVE_REPLICATES
        losses = np.stack([one.rows() for one in tested])  # (m, t)
        rows, means = losses.shape[1], losses.mean(1)
        picked = generator.multinomial(rows, np.full(rows, 1 / rows), size=num) / rows  # (R, t)
        is_rate = self.task == "classification"
        variance = np.maximum(means * (1 - means), 1 / rows) if is_rate else losses.var(1)
        noise = generator.normal(size=(num, len(tested))) * np.sqrt(variance * TRAINING / rows)
        replicated = np.maximum(picked @ losses.T + noise, 0.1 * means)
        return [one.labels for one in tested], np.asarray(self.error(replicated))


def learning_curves(
    labels: Sequence[int], errors: Floats, targets: Sequence[int], generator: np.random.Generator
) -> Floats:
    """Compute errors (R, t) at ``targets``, from a curve a + b n^-c with a, b >= 0 through each replicate.

    The replicates are ``errors`` (R, m) measured at ``labels`` (m,) counts. The fit is by least squares, with
    less weight on outliers. Few points hardly determine c: a prior around one half, with another centre in
    each replicate, spreads the curves as c is uncertain.
    """
    scale = max(labels)
    counts, wanted = np.asarray(labels) / scale, np.asarray(targets) / scale
    errors = errors * np.exp(_DRIFT * np.log2(1 / counts) * generator.normal(size=errors.shape))
    spread = np.maximum(errors.std(0), 1e-3 * errors.mean() + 1e-12)
    centres = generator.normal(np.log(_USUAL_POWER), _POWER_SPREAD, size=(len(errors), 1))
    distance = (np.log(_POWERS) - centres) / _POWER_SPREAD  # (R, p)
    u = counts ** -_POWERS[:, None, None]  # (p, 1, m)
    weights, rows = np.ones_like(errors) / spread**2, np.arange(len(errors))
    for _ in range(2):  # the second time with weights for outliers
        a, b = _lines(u, errors, weights)
        losses = (weights * (errors - a - b * u) ** 2).sum(2)  # (p, R)
        best = (losses.T + distance**2).argmin(1)
        a, b, power = a[best, rows], b[best, rows], _POWERS[best][:, None]  # (R, 1)
        off = np.abs(errors - a - b * counts**-power) / spread
        weights = 1 / (spread**2 * np.maximum(off / 2, 1))
    return np.asarray(a + b * wanted**-power)


def _lines(u: Floats, errors: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Find a, b >= 0 (p, R, 1) with the least weighted squares of errors (R, m) - a - b u (p, 1, m)."""

    def total(values: Floats) -> Floats:
        return np.asarray((weights * values).sum(-1, keepdims=True))

    num = weights.sum(1, keepdims=True)
    mean_u, mean = total(u) / num, total(errors) / num
    b = total((u - mean_u) * (errors - mean)) / np.maximum(total((u - mean_u) ** 2), 1e-300)
    b = np.maximum(b, 0)
    a = mean - b * mean_u
    return np.maximum(a, 0), np.where(a < 0, total(u * errors) / total(u**2), b)


def points(labels: Sequence[int], draws: Floats) -> tuple[CurvePoint, ...]:
    """Return the medians and 90% intervals of curves (R, t) at their first counts."""
    low, middle, high = np.quantile(draws[:, : len(labels)], (0.05, 0.5, 0.95), axis=0).tolist()
    return tuple(CurvePoint(*point) for point in zip(labels, middle, low, high, strict=True))


def draw_folds(tested: Index, num: int, generator: np.random.Generator) -> Index:
    """Draw the folds (R, num) of the tested rows.

    Five consecutive rows are in five folds, so that every fold leaves about as many of the first k rows.
    """
    blocks = math.ceil(len(tested) / FOLDS)
    drawn = generator.permuted(np.tile(np.arange(FOLDS), (limits.CURVE_REPEATS, blocks, 1)), axis=2)
    folds = np.full((limits.CURVE_REPEATS, num), -1)
    folds[:, tested] = drawn.reshape(limits.CURVE_REPEATS, -1)[:, : len(tested)]
    return folds


def label_counts(rounds: npt.NDArray[Any]) -> list[int]:
    """Return five counts of labels at the ends of rounds; after few rounds, also at a half and a quarter."""
    num = len(rounds)
    ends = {int((rounds <= number).sum()) for number in np.unique(rounds)}
    if len(ends) < 4:
        ends |= {num // 2, num // 4}
    known = np.array(sorted(end for end in ends if end >= limits.LEAST_LABELS))
    wanted = np.geomspace(known[0], num, limits.CURVE_POINTS)
    return sorted({int(known[np.abs(np.log(known / one)).argmin()]) for one in wanted})
