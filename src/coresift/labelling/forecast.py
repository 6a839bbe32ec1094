"""Forecast what a batch brings: the error so far, the error after it, and whether random would do as well."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coresift import limits
from coresift.errors import InputError
from coresift.labelling import curves
from coresift.labelling.curves import CrossValidator, Losses
from coresift.labelling.records import CurvePoint, Task
from coresift.pool import as_pool
from coresift.posteriors.base import Posterior
from coresift.posteriors.network import split_last_layer
from coresift.selectors.information import information as share_of_total
from coresift.spaces.likelihood import sampled_likelihood_space
from coresift.spaces.vectors import VectorSpace
from coresift.types import Floats, Index


@dataclass(frozen=True)
class Forecast:
    """What is known about a batch before it is labelled; ``sentences`` say it to people."""

    # Shares of the pool's information that the batch and random batches carry, see `information`.
    information: tuple[float, float] | None
    # Cross-validated error after each round so far, by the number of labels without the tested fold.
    curve: tuple[CurvePoint, ...] = ()
    # The curve error = a + b n^-c through these, at the same counts, now, and after the batch.
    fitted: tuple[CurvePoint, ...] = ()
    # The same for labels drawn at random; empty if these were too few.
    random: tuple[CurvePoint, ...] = ()
    # Fraction of the error that twice as many labels would remove: median and 90% quantile of fitted curves.
    gain: tuple[float, float] | None = None
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _Labels:
    """The labels in the order of their rounds, or a random sample of many; ``total`` counts all."""

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    rounds: npt.NDArray[Any]
    is_random: npt.NDArray[np.bool_]
    total: int

    def sorted(self, seed: int) -> _Labels:
        """Sort the labels by rounds, and sample some of many."""
        counts = len(self.x), len(self.y), len(self.rounds), len(self.is_random)
        if len(set(counts)) > 1:
            seen = "{} rows, {} labels, {} rounds and {} marks of random ones".format(*counts)
            raise InputError(f"there are {seen}, expected as many of each")
        order = np.argsort(self.rounds, kind="stable")  # answers may come late
        if self.total > limits.CURVE_LABELS:  # a sample is enough, and takes seconds
            sample = np.random.default_rng(seed).choice(self.total, limits.CURVE_LABELS, replace=False)
            order = order[np.sort(sample)]
        x, y, rounds, is_random = self.x[order], self.y[order], self.rounds[order], self.is_random[order]
        return _Labels(x, y, rounds, is_random, self.total)

    @property
    def is_fair(self) -> bool:
        """Whether enough labels were drawn at random to represent the pool."""
        return int(self.is_random.sum()) >= limits.LEAST_RANDOM

    def tested(self) -> Index:
        """The rows to test on."""
        return np.flatnonzero(self.is_random) if self.is_fair else np.arange(len(self.y))

    def problem(self) -> str | None:
        """Why nothing can be said about the error."""
        if len(self.y) < limits.LEAST_FORECAST:
            return (
                f"{len(self.y)} labels are too few to say what more of them would bring; "
                f"{limits.LEAST_FORECAST} may do."
            )
        if len(np.unique(self.y)) < 2:
            return f"All {len(self.y)} labels are the same, so there is no error to speak of yet."
        return None


@dataclass(frozen=True, eq=False)
class _Extrapolation:
    """The learning curve so far, and its continuation."""

    tester: CrossValidator
    measured: tuple[CurvePoint, ...]  # the cross-validated points
    targets: tuple[int, ...]  # (t,) counts at which curves are evaluated; the last is twice the current count
    draws: Floats  # (R, t) errors there
    is_steady: bool  # whether other folds and seeds would hardly change the forecast

    @property
    def fitted(self) -> tuple[CurvePoint, ...]:
        return curves.points(self.targets[:-1], self.draws)

    def gain(self, now: int) -> tuple[float, float]:
        """The fraction of the error that twice as many labels would remove, see `Forecast.gain`."""
        at_present = self.draws[:, self.targets.index(now)]
        # If no error is left, none can be removed.
        gains = np.where(at_present > 0, 1 - self.draws[:, -1] / np.maximum(at_present, 1e-300), 0.0)
        likely, most = np.quantile(gains, (0.5, 0.9)).tolist()
        return likely, most


def information(
    posterior: Posterior, pool_rows: npt.NDArray[Any], batch_rows: npt.NDArray[Any], seed: int = 0
) -> tuple[float, float] | None:
    """Compute the shares of the pool's information that a batch and random batches of its size carry.

    The second is the mean over five random batches. A share is 1 - ||L - L(w)||^2 / ||L||^2 with the best
    weights w >= 0 on the batch, where L is the sum of the likelihood vectors of a random sample of the pool.
    ``None`` if the posterior has fewer samples than twice the batch size, as small ensembles do: in so few
    dimensions any batch seems to represent the whole pool. ``pool_rows`` (N, d) are such a sample, and
    ``batch_rows`` are (b, d).
    """
    rng = np.random.default_rng(seed)
    size, num = len(batch_rows), len(pool_rows)
    drawn = [rng.choice(num, min(size, num), replace=False) for _ in range(limits.RANDOM_BATCHES)]
    batches = np.concatenate([batch_rows, *(pool_rows[index] for index in drawn)])
    head, pool, rows = split_last_layer(posterior, as_pool(pool_rows), torch.as_tensor(batches))
    generator = torch.Generator().manual_seed(seed)
    space = sampled_likelihood_space(
        head, pool, limits.INFORMATION_SAMPLES, generator=generator, labelled=rows
    )
    if space.labelled is None or len(space.labelled) < 2 * size:
        return None
    total, shares = space.total(), []
    for vectors in torch.split(space.labelled.double(), [size, *map(len, drawn)], dim=1):
        # One more vector is the sum of all others, so that the total is that of the pool.
        whole = VectorSpace(torch.cat([vectors, (total - vectors.sum(1))[:, None]], 1))
        shares.append(share_of_total(whole, torch.arange(vectors.shape[1])))
    return shares[0], float(np.mean(shares[1:]))


def forecast(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    rounds: npt.NDArray[Any],
    random_rows: npt.NDArray[Any],
    task: Task,
    *,
    batch_size: int,
    information: tuple[float, float] | None = None,
    earlier: Sequence[tuple[int, float, float]] = (),
    seed: int = 0,
    flat: tuple[float, float] = limits.FLAT,
) -> Forecast:
    """Forecast the error after a batch, and what random labels would give, from the labels so far.

    Five times a fifth of the labels is left out, and quick models are trained on the first k of the others.
    That is repeated with other folds and seeds until the forecast hardly changes. If at least 50 labels were
    drawn at random, only those are tested on, because they represent the pool. Otherwise all are; since
    chosen items are harder, the error on the pool is then overestimated.

    Parameters
    ----------
    x, y : (n, d) features and (n,) labels, in the order in which they came.
    rounds : (n,) the round of each label, 0 for first labels.
    random_rows : (n,) bool, which were drawn at random from the pool.
    batch_size : labels that the batch will add.
    information : the result of `information`, for a sentence.
    earlier : (labels, *gain) of earlier rounds; stopping is advised only if several agree.
    flat : gains below which a curve is flat.
    """
    labels = _Labels(x, y, rounds, random_rows, len(y)).sorted(seed)
    sentences = []
    if information is not None:
        of_batch, of_random = information
        sentences.append(
            f"Weighted, the batch carries {of_batch:.0%} of the pool's information, as the model sees it; a "
            f"random batch of the same size carries {of_random:.0%} on average."
        )
    if problem := labels.problem():
        return Forecast(information, sentences=(*sentences, problem))
    generator = np.random.default_rng(seed)
    now, after = labels.total, labels.total + batch_size
    found = _extrapolate(labels, task, now, after, seed, generator)
    words = _Words(task, found.is_steady)
    sentences.append(
        f"After this batch, at {after} labels, the {words.name} should be {words.point(found.fitted[-1])}."
    )
    random, more = _compare(labels, found, words, generator)
    gain = found.gain(now)
    sentences += more
    if _has_stopped([*earlier, (now, *gain)], flat):
        sentences.append(
            f"The {words.name} seems to have stopped falling: {limits.ROUNDS_TO_STOP} rounds agree that "
            f"twice as many labels would take off little of it, by the latest some {gain[0]:.0%} and hardly "
            f"more than {gain[1]:.0%}. Consider stopping here."
        )
    return Forecast(information, found.measured, found.fitted, random, gain, tuple(sentences))


def _extrapolate(
    labels: _Labels, task: Task, now: int, after: int, seed: int, generator: np.random.Generator
) -> _Extrapolation:
    """Cross-validate and fit curves, with further repeats until the forecast hardly changes."""
    tested, size, counts = labels.tested(), len(labels.y), curves.label_counts(labels.rounds)
    tester = CrossValidator(labels.x, labels.y, curves.draw_folds(tested, size, generator), task, seed)
    measured = tester.cross_validate_first(counts)
    targets = (*sorted({*(one.labels for one in measured), now, after}), 2 * now)
    while True:
        draws = curves.learning_curves(*tester.replicates(measured, generator), targets, generator)
        last, num_repeats = curves.points(targets[:-1], draws)[-1], len(measured[0].losses)
        moves = _spread_of_repeats(tester, measured, after, generator)
        is_steady = bool(moves <= limits.CURVE_STEADY * (last.high - last.low))
        if is_steady or num_repeats >= limits.MOST_CURVE_REPEATS:
            points_so_far = tuple(map(tester.point, measured))
            return _Extrapolation(tester, points_so_far, targets, draws, is_steady)
        folds = curves.draw_folds(tested, size, generator)
        again = replace(tester, folds=folds, seed=seed + num_repeats * curves.FOLDS)
        measured = [
            one.join(more) for one, more in zip(measured, again.cross_validate_first(counts), strict=True)
        ]


def _spread_of_repeats(
    tester: CrossValidator, measured: Sequence[Losses], target: int, generator: np.random.Generator
) -> float:
    """Compute four standard errors of the forecast from forecasts of single repeats."""
    num_repeats = len(measured[0].losses)
    singles = []
    for repeat in range(num_repeats):
        alone = [Losses(one.labels, one.losses[[repeat]]) for one in measured]
        singles.append(curves.learning_curves(*tester.replicates(alone, generator), [target], generator))
    return float(4 * np.std(np.median(singles, 1), ddof=1) / np.sqrt(num_repeats))


# Chosen labels against random ones.


def _compare(
    labels: _Labels, found: _Extrapolation, words: _Words, generator: np.random.Generator
) -> tuple[tuple[CurvePoint, ...], list[str]]:
    """The curve of labels drawn at random, and sentences on whether choosing helps.

    Models trained on labels drawn at random from the pool are compared, on the same test rows, with models
    trained on as many labels drawn from all. This shows what a chosen label is worth next to a random one, at
    as many labels as there are random ones, not for larger sets; and a thinned batch is less well spread than
    a whole one.
    """
    if labels.is_random.all():
        return found.fitted, ["All labels so far were drawn at random, so there is nothing to compare yet."]
    if not labels.is_fair:
        num = int(labels.is_random.sum())
        few = {0: "No label was", 1: "Only 1 label was"}.get(num, f"Only {num} labels were")
        return (), [
            f"{few} drawn at random, so all labels were tested on; chosen ones are harder, and on the pool "
            f"the {words.name} may be lower. With {limits.LEAST_RANDOM} random ones it could also be told "
            "whether choosing helps."
        ]
    random, mixed = _against_random(found.tester, labels.is_random, generator)
    draws = curves.learning_curves(*found.tester.replicates(random, generator), found.targets, generator)
    curve = curves.points(found.targets[:-1], draws)
    return curve, [
        f"As many labels drawn at random should give {words.point(curve[-1])}.",
        _verdict(found.tester, mixed, random[-1], words),
    ]


def _against_random(
    tester: CrossValidator, is_random: npt.NDArray[np.bool_], generator: np.random.Generator
) -> tuple[list[Losses], Losses]:
    """Losses of models of a quarter, a half and all of the random labels; and of as many of all labels."""
    repeats = len(tester.folds)
    random, mixed = (
        [generator.permutation(rows) for _ in range(repeats)]
        for rows in (np.flatnonzero(is_random), np.arange(len(is_random)))
    )
    most = tester.cross_validate(random)
    fewer = [tester.cross_validate(random, most.labels // part) for part in (4, 2)]
    return [*fewer, most], tester.cross_validate(mixed, most.labels)


def _verdict(tester: CrossValidator, mixed: Losses, random: Losses, words: _Words) -> str:
    """Say whether chosen labels are better than random ones, by losses on the same rows."""
    # Absolute errors of numbers: the squares of a few rows would outweigh all others.
    gaps = tester.error(mixed.losses) - tester.error(random.losses)  # (R, t)
    repeats, num = gaps.shape
    # All repeats draw from the same labels: the noise of a mean is that of one repeat, not of their average.
    # Beyond it, means differ between repeats.
    variance = gaps.var(1).mean() * (1 + curves.TRAINING) / num + gaps.mean(1).var(ddof=1) / repeats
    half = curves.NORMAL * np.sqrt(variance)
    ours, theirs = (words.number(tester.point(one).error) for one in (mixed, random))
    seen = f"{mixed.labels} labels drawn from all so far give {ours}, as many random ones {theirs}"
    if gaps.mean() + half < 0:
        return f"Choosing helps: {seen}."
    if gaps.mean() - half > 0:
        return f"Random would have done better: {seen}."
    return f"Random would have done as well, as far as can be told: {seen}."


def _has_stopped(rounds: Sequence[tuple[int, float, float]], flat: tuple[float, float] = limits.FLAT) -> bool:
    """Whether the latest rounds, each with its labels and its gain, agree that the curve is flat."""
    agreed, fewest = 0, math.inf
    for labels, likely, most in reversed(rounds):
        if not (labels >= limits.LEAST_TO_STOP and likely < flat[0] and most < flat[1]):
            return False
        if labels * limits.NEW_LABELS_TO_STOP <= fewest:
            agreed, fewest = agreed + 1, labels
        if agreed == limits.ROUNDS_TO_STOP:
            return True
    return False


# Sentences.


@dataclass(frozen=True)
class _Words:
    """How errors are put into words."""

    task: Task
    is_steady: bool = True

    @property
    def name(self) -> str:
        return "error rate" if self.task == "classification" else "RMSE"

    def number(self, error: float) -> str:
        return f"{error:.1%}" if self.task == "classification" else f"{error:.3g}"

    def point(self, point: CurvePoint) -> str:
        error, low, high = map(self.number, (point.error, point.low, point.high))
        if self.is_steady:
            return f"{error} (rough interval {low} to {high})"
        return f"roughly between {low} and {high}"
