"""What a batch is worth: how the error has fallen, where it is going, and whether chance would have done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coresift.labelling.model import quick_model
from coresift.labelling.records import CurvePoint, Task
from coresift.pool import as_pool
from coresift.posteriors.base import Posterior
from coresift.posteriors.network import at_the_last_layer
from coresift.selectors.information import information as share_of_total
from coresift.spaces.likelihood import sampled_likelihood_space
from coresift.spaces.vectors import VectorSpace
from coresift.types import Floats, Index, InputError

_Random = np.random.Generator

# Below this many labels a fold tests on a handful, and nothing can be said.
_LEAST_LABELS = 30
# So many labels drawn at random make a test set.
_LEAST_RANDOM = 50
# The smallest set that a point of a curve is trained on.
_LEAST_COUNT = 10
_MOST_COUNTS = 5
# Labels that are looked at.
_MOST_LABELS = 3000
_FOLDS = 5
# Cross-validation is repeated with other folds and seeds, so many times at once: from one run to the next the
# forecast moves by a seventh of its interval. It is enough if plus and minus two standard errors are within a
# quarter of the interval.
_REPEATS, _MOST_REPEATS = 4, 12
_STEADY = 0.25
# Folds share most of their training rows: the variance of their mean is that of independent tests, and this
# much of it again (Nadeau and Bengio, Inference for the Generalization Error, 2003, for tests of 1/5).
_TRAINING = _FOLDS / (_FOLDS - 1)
_NORMAL = 1.645  # quantile for intervals that would hold in 90% of cases, were all suppositions true
_REPLICATES = 400
# Learning curves fall as n^-c, with c around one half; nearly all known ones lie within these bounds.
_POWERS = np.geomspace(0.1, 2.0, 25)
_USUAL_POWER, _POWER_SPREAD = 0.5, 0.7
# Early on a curve may not have come to fall that way: by so much, in logarithms, a point may be off for each
# halving before the last.
_DRIFT = 0.15
# A curve is flat if twice as many labels would take off less than this share of the error, and in nine draws
# of ten less than that.
_FLAT, _SURELY_FLAT = 0.05, 0.1
# Stopping is advised after so many labels, where so many rounds agree, each with so many times the labels of
# the one before: with hardly any new labels they would say the same anyway.
_LEAST_TO_STOP, _ROUNDS_TO_STOP, _NEW_LABELS = 100, 3, 1.1
_POOL_SAMPLE = 5000
_NUM_SAMPLES = 1024
# Random batches that a batch's information is compared with.
_RANDOM_BATCHES = 5


@dataclass(frozen=True)
class Worth:
    """What is known of a batch before it is labelled.

    Attributes
    ----------
    information : shares of the pool's information that the batch and random batches carry, see `information`.
    curve : cross-validated error after each round so far; ``labels`` are those trained on, without the fold
        that was tested.
    fitted : the curve error = a + b n^-c through these, at the same counts, now, and after the batch.
    random : the same for labels drawn at random; empty where too few were.
    gain : share of the error that twice as many labels would take off, the median and the 90% quantile over
        fitted curves.
    sentences : all of that for people.
    """

    information: tuple[float, float] | None
    curve: tuple[CurvePoint, ...] = ()
    fitted: tuple[CurvePoint, ...] = ()
    random: tuple[CurvePoint, ...] = ()
    gain: tuple[float, float] | None = None
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _Tested:
    """Losses (R, t) of the tested rows, wrong or not or squared errors, by models trained on so many labels,
    in each repeat of the cross-validation.
    """

    labels: int
    losses: Floats

    def rows(self) -> Floats:
        """(t,) averages over repeats."""
        return np.asarray(self.losses.mean(0))


def information(
    posterior: Posterior, pool_rows: Any, batch_rows: Any, seed: int = 0
) -> tuple[float, float] | None:
    """Compute the shares of the pool's information that a batch and random batches of its size carry.

    For the latter it is the mean over five of them. A share is 1 - ||L - L(w)||^2 / ||L||^2 with the best
    weights w >= 0 on the batch, where L is the sum of the pool's likelihood vectors, here of a uniform sample
    of 5000. ``None`` where the posterior holds fewer
    samples than twice the batch, as small ensembles do: in so few dimensions any batch seems to stand for
    the whole pool.

    Parameters
    ----------
    pool_rows, batch_rows : (N, d) and (b, d).
    """
    rng = np.random.default_rng(seed)
    if len(pool_rows) > _POOL_SAMPLE:
        chosen = rng.choice(len(pool_rows), _POOL_SAMPLE, replace=False)
        pool_rows = np.asarray(pool_rows)[np.sort(chosen)]
    pool_rows, size = np.asarray(pool_rows), len(batch_rows)
    drawn = [
        rng.choice(len(pool_rows), min(size, len(pool_rows)), replace=False) for _ in range(_RANDOM_BATCHES)
    ]
    batches = np.concatenate([np.asarray(batch_rows), *(pool_rows[index] for index in drawn)])
    head, pool, rows = at_the_last_layer(posterior, as_pool(pool_rows), torch.as_tensor(batches))
    generator = torch.Generator().manual_seed(seed)
    space = sampled_likelihood_space(head, pool, _NUM_SAMPLES, generator=generator, labelled=rows)
    if space.labelled is None or len(space.labelled) < 2 * size:
        return None
    total, shares = space.total(), []
    for vectors in torch.split(space.labelled.double(), [size, *map(len, drawn)], dim=1):
        # One more vector stands for all the rest, so that the total is that of the pool.
        whole = VectorSpace(torch.cat([vectors, (total - vectors.sum(1))[:, None]], 1))
        shares.append(share_of_total(whole, torch.arange(vectors.shape[1])))
    return shares[0], float(np.mean(shares[1:]))


def worth(
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
    unit: str = "",
) -> Worth:
    """Say what the labels so far tell about a batch: the error after it, and what random labels would give.

    Five times a fifth of the labels is left out, and quick models are trained on the first k of the others.
    That is repeated with other folds and seeds, until the forecast hardly moves any more.
    If at least 50 labels were drawn at random, only those are tested on: they stand for the pool. Else all
    are, and since chosen items are harder, the error on the pool is overstated.

    Choosing is compared with chance on the same test rows: models trained on labels drawn at random from the
    pool, against as many drawn from all labels. This shows what a label of the kind that was chosen is worth
    beside a random one, at as many labels as there are random ones. It does not show the same for larger
    sets, and a thinned batch is less well spread than a whole one. That the order of all labels be compared
    with chance among them would not do: most of these were chosen.

    Parameters
    ----------
    x, y : (n, d) features and (n,) labels, in the order in which they came.
    rounds : (n,) the round that each belongs to, 0 for first labels.
    random_rows : (n,) bool, which were drawn at random from the pool.
    batch_size : labels that the batch will add.
    information : see the function of that name; said along.
    earlier : (labels, median, 90% quantile) of the ``gain`` of earlier rounds, by round; stopping is advised
        only where several agree.
    unit : of the labels, for the sentences.
    """
    if not len(x) == len(y) == len(rounds) == len(random_rows):
        raise InputError(
            f"there are {len(x)} rows, {len(y)} labels, {len(rounds)} rounds and {len(random_rows)} marks of "
            "chance, expected as many of each"
        )
    order = np.argsort(rounds, kind="stable")  # answers may come late
    x, y, rounds, random_rows = (np.asarray(part)[order] for part in (x, y, rounds, random_rows))
    num_labels = len(y)
    if num_labels > _MOST_LABELS:  # these tell as well, in seconds
        kept = np.sort(np.random.default_rng(seed).choice(num_labels, _MOST_LABELS, replace=False))
        x, y, rounds, random_rows = (part[kept] for part in (x, y, rounds, random_rows))
    sentences = []
    if information is not None:
        sentences.append(
            f"Weighted, the batch carries {information[0]:.0%} of the pool's information, as the model sees "
            f"it; a random batch of the same size carries {information[1]:.0%} on average."
        )
    if len(y) < _LEAST_LABELS or len(np.unique(y)) < 2:
        few = f"{len(y)} labels are too few to say what more of them would bring; {_LEAST_LABELS} may do."
        same = f"All {len(y)} labels are the same, so there is no error to speak of yet."
        return Worth(information, sentences=(*sentences, few if len(y) < _LEAST_LABELS else same))

    generator = np.random.default_rng(seed)
    num_random = int(random_rows.sum())
    fair = num_random >= _LEAST_RANDOM
    tested = np.flatnonzero(random_rows) if fair else np.arange(len(y))
    now, after = num_labels, num_labels + batch_size
    tester = _Tester(x, y, _folds(tested, len(y), generator), task, seed)
    ordered = [tester.test([np.arange(count)] * _REPEATS) for count in _counts(rounds)]
    targets = [*sorted({*(one.labels for one in ordered), now, after}), 2 * now]
    while True:
        draws = learning_curves(*tester.replicates(ordered, generator), targets, generator)
        fitted = _points(targets[:-1], draws)
        num_repeats = len(ordered[0].losses)
        singles = [
            learning_curves(*tester.replicates(one, generator), [after], generator)
            for one in (
                [_Tested(each.labels, each.losses[[r]]) for each in ordered] for r in range(num_repeats)
            )
        ]
        moves = 4 * np.std(np.median(singles, 1), ddof=1) / np.sqrt(num_repeats)
        steady = bool(moves <= _STEADY * (fitted[-1].high - fitted[-1].low))
        if steady or num_repeats >= _MOST_REPEATS:
            break
        again = replace(tester, folds=_folds(tested, len(y), generator), seed=seed + num_repeats * _FOLDS)
        further = [again.test([np.arange(count)] * _REPEATS) for count in _counts(rounds)]
        ordered = [
            _Tested(one.labels, np.concatenate([one.losses, more.losses]))
            for one, more in zip(ordered, further, strict=True)
        ]
    at_present = draws[:, targets.index(now)]
    # Where no error is left, none can be taken off.
    gains = np.where(at_present > 0, 1 - draws[:, -1] / np.maximum(at_present, 1e-300), 0.0)
    random: tuple[CurvePoint, ...] = ()
    name = "error rate" if task == "classification" else "RMSE"

    def say(point: CurvePoint) -> str:
        error, low, high = (_number(value, task, unit) for value in (point.error, point.low, point.high))
        return f"{error} (rough interval {low} to {high})" if steady else f"roughly between {low} and {high}"

    sentences.append(f"After this batch, at {after} labels, the {name} should be {say(fitted[-1])}.")
    if not fair:
        few = (
            "No label was"
            if num_random == 0
            else f"Only {num_random} label{' was' if num_random == 1 else 's were'}"
        )
        sentences.append(
            f"{few} drawn at random, so all labels were tested on; chosen ones are harder, and on the pool "
            f"the {name} may be lower. With {_LEAST_RANDOM} random ones it could also be told whether "
            "choosing helps."
        )
    elif random_rows.all():
        random = fitted
        sentences.append("All labels so far were drawn at random, so there is nothing to compare yet.")
    else:
        by_chance, mixed = _against_chance(tester, random_rows, generator)
        curves = learning_curves(*tester.replicates(by_chance, generator), targets, generator)
        random = _points(targets[:-1], curves)
        sentences.append(f"As many labels drawn at random should give {say(random[-1])}.")
        sentences.append(_verdict(tester, mixed, by_chance[-1], task, unit))
    likely, most = np.quantile(gains, (0.5, 0.9)).tolist()
    if _has_stopped([*earlier, (now, likely, most)]):
        sentences.append(
            f"The {name} seems to have stopped falling: {_ROUNDS_TO_STOP} rounds agree that twice as many "
            f"labels would take off little of it, by the latest some {likely:.0%} and hardly more than "
            f"{most:.0%}. Consider stopping here."
        )
    curve = tuple(tester.point(one) for one in ordered)
    return Worth(information, curve, fitted, random, (likely, most), tuple(sentences))


def _has_stopped(rounds: Sequence[tuple[int, float, float]]) -> bool:
    """Whether the latest rounds agree that the curve is flat, by the labels and the gain of each."""
    agreed, fewest = 0, math.inf
    for labels, likely, most in reversed(rounds):
        if not (labels >= _LEAST_TO_STOP and likely < _FLAT and most < _SURELY_FLAT):
            return False
        if labels * _NEW_LABELS <= fewest:
            agreed, fewest = agreed + 1, labels
        if agreed == _ROUNDS_TO_STOP:
            return True
    return False


@dataclass(frozen=True, eq=False)
class _Tester:
    """Trains quick models without a fold, and tests them on it, several times over with other folds.

    Attributes
    ----------
    folds : (R, n) the fold in which a row is tested, in each repeat; -1 for those that never are.
    """

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    folds: Index
    task: Task
    seed: int

    def test(self, orders: Sequence[Index], size: int | None = None) -> _Tested:
        """Train on the first ``size`` rows of an order that are not in the fold; each repeat has its order.

        By default as many as every fold leaves over.
        """
        kept = [
            order[folds[order] != fold]
            for order, folds in zip(orders, self.folds, strict=True)
            for fold in range(_FOLDS)
        ]
        size = min(map(len, kept)) if size is None else size
        sets = [rows[:size] for rows in kept]
        several = [rows for rows in sets if len(np.unique(self.y[rows])) > 1]
        seeds = [(self.seed + number) % 2**32 for number in range(len(several))]
        model = quick_model(self.task, size, self.seed)
        fits = iter(model.fit_many([(self.x[r], self.y[r]) for r in several], seeds) if several else ())
        losses = np.zeros(self.folds.shape)
        for number, rows in enumerate(sets):
            repeat, fold = divmod(number, _FOLDS)
            out = self.folds[repeat] == fold
            single = len(np.unique(self.y[rows])) == 1  # as for a network, which would not have it
            guess = np.repeat(self.y[rows[:1]], out.sum()) if single else next(fits).predict(self.x[out])
            wrong = guess != self.y[out] if self.task == "classification" else (guess - self.y[out]) ** 2
            losses[repeat, out] = wrong
        return _Tested(size, losses[:, self.folds[0] >= 0])

    def error(self, loss: Any) -> Any:
        """From mean losses: the error rate, or the root of squared errors."""
        return loss if self.task == "classification" else np.sqrt(loss)

    def point(self, tested: _Tested) -> CurvePoint:
        """A measured point; the interval is Wilson's for classes, that of the logarithm for numbers."""
        rows = tested.rows()
        mean, num = rows.mean(), len(rows) / (1 + _TRAINING)
        if self.task == "classification":
            middle = (mean + _NORMAL**2 / (2 * num)) / (1 + _NORMAL**2 / num)
            half = np.sqrt(mean * (1 - mean) / num + (_NORMAL / (2 * num)) ** 2)
            half *= _NORMAL / (1 + _NORMAL**2 / num)
            low, high = middle - half, middle + half
        else:
            ratio = np.exp(_NORMAL * rows.std() / np.sqrt(num) / max(mean, 1e-300))
            low, high = mean / ratio, mean * ratio
        return CurvePoint(tested.labels, *(float(self.error(value)) for value in (mean, max(low, 0.0), high)))

    def replicates(self, tested: Sequence[_Tested], generator: _Random) -> tuple[list[int], Floats]:
        """Counts (m,), and errors (R, m) as other test rows and other training sets would have given them.

        Test rows are shared by all counts, and are drawn anew for all at once; training sets are not.
        """
        losses = np.stack([one.rows() for one in tested])  # (m, t)
        num = losses.shape[1]
        picked = generator.multinomial(num, np.full(num, 1 / num), size=_REPLICATES) / num  # (R, t)
        means = losses.mean(1)
        variance = losses.var(1) if self.task == "regression" else np.maximum(means * (1 - means), 1 / num)
        noise = generator.normal(size=(_REPLICATES, len(tested))) * np.sqrt(variance * _TRAINING / num)
        replicated = np.maximum(picked @ losses.T + noise, 0.1 * means)
        return [one.labels for one in tested], np.asarray(self.error(replicated))


def learning_curves(
    labels: Sequence[int], errors: Floats, targets: Sequence[int], generator: _Random
) -> Floats:
    """(R, t) errors at the counts ``targets``, by a curve a + b n^-c with a, b >= 0 through each replicate.

    Least squares, with less weight on what lies far off. Few points hardly determine c: it is drawn towards
    one half, for each replicate towards a value that itself is drawn, so that what is not known of it widens
    the spread of the curves.

    Parameters
    ----------
    labels : (m,) counts.
    errors : (R, m) measured at these, replicated as chance would.
    """
    scale = max(labels)
    counts, wanted = np.asarray(labels) / scale, np.asarray(targets) / scale
    errors = errors * np.exp(_DRIFT * np.log2(1 / counts) * generator.normal(size=errors.shape))
    spread = np.maximum(errors.std(0), 1e-3 * errors.mean() + 1e-12)
    centres = generator.normal(np.log(_USUAL_POWER), _POWER_SPREAD, size=(len(errors), 1))
    weights, found = np.ones_like(errors) / spread**2, np.zeros((len(errors), len(wanted)))
    for _ in range(2):  # the second time with outliers known
        losses, parameters = [], []
        for power in _POWERS:
            a, b = _line(counts**-power, errors, weights)
            losses.append((weights * (errors - a - b * counts**-power) ** 2).sum(1))
            parameters.append(np.concatenate([a, b], 1))
        distance = (np.log(_POWERS) - centres) / _POWER_SPREAD  # (R, p)
        best = (np.stack(losses, 1) + distance**2).argmin(1)
        chosen = np.stack(parameters)[best, np.arange(len(errors))]  # (R, 2)
        power = _POWERS[best][:, None]
        found = chosen[:, :1] + chosen[:, 1:] * wanted**-power
        off = np.abs(errors - chosen[:, :1] - chosen[:, 1:] * counts**-power) / spread
        weights = 1 / (spread**2 * np.maximum(off / 2, 1))
    return found


def _line(u: Floats, errors: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """(R, 1) each: a, b >= 0 with the least weighted squares of errors (R, m) - a - b u (m,)."""
    total = weights.sum(1, keepdims=True)
    mean_u = (weights * u).sum(1, keepdims=True) / total
    mean = (weights * errors).sum(1, keepdims=True) / total
    square = (weights * (u - mean_u) ** 2).sum(1, keepdims=True)
    b = (weights * (u - mean_u) * (errors - mean)).sum(1, keepdims=True) / np.maximum(square, 1e-300)
    b = np.maximum(b, 0)
    a = mean - b * mean_u
    through_zero = (weights * u * errors).sum(1, keepdims=True) / (weights * u**2).sum(1, keepdims=True)
    return np.maximum(a, 0), np.where(a < 0, through_zero, b)


def _points(labels: Sequence[int], draws: Floats) -> tuple[CurvePoint, ...]:
    low, middle, high = np.quantile(draws[:, : len(labels)], (0.05, 0.5, 0.95), axis=0).tolist()
    return tuple(CurvePoint(*point) for point in zip(labels, middle, low, high, strict=True))


def _folds(tested: Index, num: int, generator: _Random) -> Index:
    """(R, num) folds of the tested rows. Of five that came one after the other each is in another fold, so
    that every fold leaves about as many of the first k over.
    """
    blocks = -(-len(tested) // _FOLDS)
    drawn = generator.permuted(np.tile(np.arange(_FOLDS), (_REPEATS, blocks, 1)), axis=2)
    folds = np.full((_REPEATS, num), -1)
    folds[:, tested] = drawn.reshape(_REPEATS, -1)[:, : len(tested)]
    return folds


def _counts(rounds: npt.NDArray[Any]) -> list[int]:
    """How many labels there were after each round, of many rounds five; halves, where there were few."""
    num = len(rounds)
    ends = {int((rounds <= number).sum()) for number in np.unique(rounds)}
    if len(ends) < 4:
        ends |= {num // 2, num // 4}
    known = np.array(sorted(end for end in ends if end >= _LEAST_COUNT))
    wanted = np.geomspace(known[0], num, _MOST_COUNTS)
    return sorted({int(known[np.abs(np.log(known / one)).argmin()]) for one in wanted})


def _against_chance(
    tester: _Tester, random_rows: npt.NDArray[np.bool_], generator: _Random
) -> tuple[list[_Tested], _Tested]:
    """Models of a quarter, a half and all of the labels drawn at random; and of as many of all labels."""
    by_chance, mixed = (
        [generator.permutation(rows) for _ in range(_REPEATS)]
        for rows in (np.flatnonzero(random_rows), np.arange(len(random_rows)))
    )
    most = tester.test(by_chance)
    fewer = [tester.test(by_chance, most.labels // part) for part in (4, 2)]
    return [*fewer, most], tester.test(mixed, most.labels)


def _verdict(tester: _Tester, mixed: _Tested, by_chance: _Tested, task: Task, unit: str) -> str:
    """Whether labels like the chosen ones beat random ones, by the losses of the same rows."""
    # Absolute errors of numbers: the squares of a few rows would drown all others.
    gaps = tester.error(mixed.losses) - tester.error(by_chance.losses)  # (R, t)
    repeats, num = gaps.shape
    # All repeats draw from the same labels: the noise of a mean is that of one repeat, not of their average,
    # and means differ from repeat to repeat beyond it.
    variance = gaps.var(1).mean() * (1 + _TRAINING) / num + gaps.mean(1).var(ddof=1) / repeats
    half = _NORMAL * np.sqrt(variance)
    ours, theirs = (_number(tester.point(one).error, task, unit) for one in (mixed, by_chance))
    seen = f"{mixed.labels} labels drawn from all so far give {ours}, as many random ones {theirs}"
    if gaps.mean() + half < 0:
        return f"Choosing helps: {seen}."
    if gaps.mean() - half > 0:
        return f"Random would have done better: {seen}."
    return f"Random would have done as well, as far as can be told: {seen}."


def _number(error: float, task: Task, unit: str) -> str:
    return f"{error:.1%}" if task == "classification" else f"{error:.3g} {unit}".rstrip()
