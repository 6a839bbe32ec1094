"""The named methods: each a pair of a space or score and a selector; and `select`, the one-line way in."""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coresift.checks import (
    as_bytes,
    check_budget,
    check_finite,
    check_integer,
    check_memory,
    check_probabilities,
    check_shape,
    check_switch,
)
from coresift.errors import shown
from coresift.limits import LIBRARY_BYTES
from coresift.pool import Pool, PoolLike, as_array, as_float, as_pool
from coresift.posteriors.base import LastLayerPosterior, Posterior
from coresift.posteriors.linear import LinearPosterior, NormalInverseGammaPosterior
from coresift.posteriors.network import at_the_last_layer
from coresift.posteriors.probit import ProbitPosterior
from coresift.posteriors.samples import ClassSamples, GaussianSamples
from coresift.scores.bald import bald
from coresift.scores.base import Score
from coresift.scores.entropy import entropy
from coresift.scores.simple import acs_norm, margin, variance
from coresift.selectors.base import Selector
from coresift.selectors.distance import LCMD, KCenter, KMeansPlusPlus
from coresift.selectors.frank_wolfe import FrankWolfe
from coresift.selectors.giga import GIGA
from coresift.selectors.kmedoids import KMedoids
from coresift.selectors.log_det import GreedyLogDet
from coresift.selectors.ranking import GumbelTopB, TopB, UniformRandom
from coresift.spaces.base import Space
from coresift.spaces.features import feature_space, model_features
from coresift.spaces.fisher import fisher_space
from coresift.spaces.gradient import badge_space, class_probabilities
from coresift.spaces.likelihood import default_num_samples, likelihood_space
from coresift.spaces.predictive import Lengths, predictive_space
from coresift.threads import enough_threads
from coresift.types import Batch, InputError, make_generator

DEFAULT = "predictive-lcmd"
# Numbers for each point that distances between predictions are measured with, at most.
_DIMENSIONS = 512
# Predictions by so many times more samples than points may have their axes swapped.
_SWAPPED = 10
# Bytes that each point takes, as measured: in spaces of inner products, whose vectors are not stored; and
# beside stored vectors or a score, in selectors that keep more than `LCMD` does. In k-medoids, also in copies
# of each number of its vector.
_BYTES_OF_PRODUCTS = 170
_BYTES_BESIDE: dict[type, int] = {GIGA: 70, GreedyLogDet: 70, TopB: 50, GumbelTopB: 75, UniformRandom: 40}
_BYTES_OF_MEDOIDS, _COPIES_OF_MEDOIDS = 100, 12
# Posteriors whose spaces have closed forms.
_LINEAR = (LinearPosterior, NormalInverseGammaPosterior)


@dataclass(frozen=True)
class Problem:
    """All that a space or a score may be built from.

    Attributes
    ----------
    pool : the unlabelled points.
    posterior_or_none : the model; `posterior` raises where a strategy needs one and there is none.
    labelled : (M, ...) labelled points, in the form of the pool's rows.
    features, labelled_features : where distances are to be measured, if the model has no features itself.
    num_samples : J, how many posterior samples to draw.
    exact : whether to use closed forms where there are any.
    memory : bytes the process may hold; ``None`` is no limit.
    """

    pool: Pool
    posterior_or_none: Posterior | None
    labelled: Tensor | None
    features: Pool | None
    labelled_features: Tensor | None
    num_samples: int
    generator: torch.Generator
    exact: bool = True
    memory: int | None = None

    @property
    def posterior(self) -> Posterior:
        if self.posterior_or_none is None:
            raise InputError(
                "this strategy needs a model: pass posterior=, probs= or means= and variances=; "
                "'random' and 'k-center' do without"
            )
        return self.posterior_or_none


@dataclass(frozen=True)
class Strategy:
    """A named method.

    Attributes
    ----------
    build : makes the space or the score.
    selector : chooses from it.
    about : one line for people.
    """

    build: Callable[[Problem], Any]
    selector: Selector[Any]
    about: str

    def run(
        self, problem: Problem, budget: int, pending: Iterable[int] = (), exclude: Iterable[int] = ()
    ) -> Batch:
        """Build, then choose."""
        if problem.memory is not None:
            problem = replace(problem, memory=_memory_left(self.selector, problem, problem.memory))
        space = self.build(problem)
        of_predictions = isinstance(problem.posterior_or_none, ClassSamples | GaussianSamples)
        if isinstance(space, Score) and of_predictions and problem.features is not None:
            # Points are the same where their features are: other points may have the same predictions.
            space = replace(space, pool=problem.features)
        return self.selector.select(space, budget, pending=pending, exclude=exclude, seed=problem.generator)


def _check_room(problem: Problem, bytes_a_point: int, instead: str) -> None:
    """Raise where what is kept in memory for each point does not fit there beside the libraries."""
    needed = LIBRARY_BYTES + bytes_a_point * len(problem.pool)
    if problem.memory is not None and needed > problem.memory:
        raise InputError(
            f"this strategy needs {as_bytes(needed)} for {len(problem.pool):,} points, with the libraries, "
            f"and has {as_bytes(problem.memory)} of the limit left; {instead}"
        )


def _memory_left(selector: Selector[Any], problem: Problem, memory: int) -> int:
    """Bytes that are left for the libraries and a space, given what the selector keeps beside it."""
    if not isinstance(selector, KMedoids):
        beside = _BYTES_BESIDE.get(type(selector), 0)
        if beside:
            _check_room(problem, beside, "raise the limit")
        return memory - beside * len(problem.pool)
    matrix = 12 * min(len(problem.pool), selector.max_points) ** 2  # of distances, in float64 and float32
    if LIBRARY_BYTES + matrix > memory:
        raise InputError(
            f"k-medoids needs {as_bytes(LIBRARY_BYTES + matrix)}, with the libraries, and has "
            f"{as_bytes(memory)}; raise the limit"
        )
    # Where there is no room for copies of all vectors, they go to a file, and a sample of them is clustered.
    beside = _BYTES_OF_MEDOIDS + _COPIES_OF_MEDOIDS * _first_features(problem).nbytes
    return max(memory - matrix - beside * len(problem.pool), LIBRARY_BYTES)


def _first_features(problem: Problem) -> Tensor:
    """(1, D) the features of the first point."""
    if problem.features is not None:
        return model_features(None, problem.features.take([0]))
    return model_features(problem.posterior_or_none, problem.pool.take([0]))


def _likelihood(problem: Problem, centred: bool = False) -> Space:
    if problem.exact and isinstance(problem.posterior, _LINEAR):
        _check_room(problem, _BYTES_OF_PRODUCTS, "pass exact=False for sampled vectors, which go to a file")
    return likelihood_space(
        problem.posterior,
        problem.pool,
        problem.num_samples,
        generator=problem.generator,
        labelled=problem.labelled,
        centred=centred,
        exact=problem.exact,
        memory=problem.memory,
    )


def _centred(problem: Problem) -> Space:
    return _likelihood(problem, centred=True)


def _fisher(problem: Problem) -> Space:
    if problem.memory is not None:
        row, posterior, width = problem.pool.take([0]), problem.posterior, 0
        if isinstance(posterior, ProbitPosterior):  # rows and directions
            width = 2 * row.numel()
        elif isinstance(posterior, LastLayerPosterior) and not isinstance(posterior, _LINEAR):
            seen = posterior.features(row)
            outputs = posterior.outputs(seen, posterior.sample(2, torch.Generator()))
            # Gradients for each sample, and features; both are then joined.
            width = 3 * (problem.num_samples * outputs[0].numel() + seen.numel())
        _check_room(problem, _BYTES_OF_PRODUCTS + 8 * width, "try 'acs-fw' or 'predictive-lcmd'")
    return fisher_space(
        problem.posterior,
        problem.pool,
        problem.num_samples,
        generator=problem.generator,
        labelled=problem.labelled,
    )


def _predictive(
    problem: Problem, num_dimensions: int | None = None, lengths: Lengths = "information"
) -> Space:
    return predictive_space(
        problem.posterior,
        problem.pool,
        problem.num_samples,
        generator=problem.generator,
        labelled=problem.labelled,
        num_dimensions=num_dimensions,
        lengths=lengths,
        memory=problem.memory,
    )


def _projected_predictive(problem: Problem) -> Space:
    return _predictive(problem, _DIMENSIONS, lengths="wavering")


def _check_labelled_features(problem: Problem) -> None:
    """Raise where labelled points have no place among the features, or not each its own."""
    if problem.features is None or problem.labelled is None:
        return
    if problem.labelled_features is None:
        raise InputError(
            "features= and labelled= go with labelled_features=, the same features of those points"
        )
    if len(problem.labelled) != len(problem.labelled_features):
        raise InputError(
            f"labelled= holds {len(problem.labelled)} points, but labelled_features= "
            f"{len(problem.labelled_features)}"
        )


def _features(problem: Problem) -> Space:
    _check_labelled_features(problem)
    if problem.features is not None:
        return feature_space(None, problem.features, problem.labelled_features, problem.memory)
    return feature_space(problem.posterior_or_none, problem.pool, problem.labelled, problem.memory)


def _badge(problem: Problem) -> Space:
    _check_labelled_features(problem)
    if problem.memory is not None:
        # Probabilities, predicted labels and features come in float64, and are then joined.
        classes = class_probabilities(problem.posterior, problem.pool.take([0])).numel()
        width = 8 * (4 * classes + 3 * _first_features(problem).numel())
        _check_room(problem, _BYTES_OF_PRODUCTS + width, "try 'predictive-lcmd'")
    if problem.labelled is None and problem.labelled_features is not None:
        raise InputError(
            "labelled_features= goes with labelled= here: gradients need what the model predicts"
        )
    return badge_space(
        problem.posterior, problem.pool, problem.labelled, problem.features, problem.labelled_features
    )


def _bald(problem: Problem) -> Score:
    return bald(problem.posterior, problem.pool, problem.num_samples, generator=problem.generator)


def _entropy(problem: Problem) -> Score:
    return entropy(problem.posterior, problem.pool)


def _margin(problem: Problem) -> Score:
    return margin(problem.posterior, problem.pool)


def _variance(problem: Problem) -> Score:
    return variance(problem.posterior, problem.pool)


def _norm(problem: Problem) -> Score:
    return acs_norm(_likelihood(problem), problem.pool)


def _nothing(problem: Problem) -> Score:
    return Score(torch.zeros(len(problem.pool)), problem.pool)


STRATEGIES: dict[str, Strategy] = {
    "acs-fw": Strategy(_likelihood, FrankWolfe(), "likelihood space, Frank-Wolfe: the paper's method"),
    "acs-fisher": Strategy(_fisher, FrankWolfe(), "Fisher space, Frank-Wolfe: the paper's closed forms"),
    "acs-giga": Strategy(_likelihood, GIGA(), "likelihood space, geodesic ascent"),
    "acs-kmeans++": Strategy(_likelihood, KMeansPlusPlus(), "likelihood space, k-means++ draws"),
    "acs-lcmd": Strategy(
        _likelihood,
        LCMD(),
        "likelihood space, largest cluster and maximum distance from labelled points or the origin",
    ),
    "acs-centred-lcmd": Strategy(_centred, LCMD(), "the same on centred likelihoods"),
    "acs-norm": Strategy(_norm, TopB(), "the longest vectors of the likelihood space"),
    "bald": Strategy(_bald, TopB(), "most information about the model, point by point"),
    "power-bald": Strategy(_bald, GumbelTopB("power"), "BALD, drawn in proportion"),
    "softmax-bald": Strategy(_bald, GumbelTopB("softmax"), "BALD, drawn by its exponential"),
    "softrank-bald": Strategy(_bald, GumbelTopB("softrank"), "BALD, drawn by rank"),
    "maxent": Strategy(_entropy, TopB(), "highest predictive entropy"),
    "margin": Strategy(_margin, TopB(), "smallest gap between the two likeliest classes"),
    "variance": Strategy(_variance, TopB(), "highest predictive variance"),
    "badge": Strategy(_badge, KMeansPlusPlus(), "hypothetical loss gradients, k-means++ draws"),
    "predictive-lcmd": Strategy(
        _projected_predictive,
        LCMD(),
        "what the model cannot yet predict, largest cluster and maximum distance from labelled points or the "
        "origin",
    ),
    "greedy-logdet": Strategy(_predictive, GreedyLogDet(), "jointly most informative labels"),
    "k-center": Strategy(
        _features, KCenter(), "farthest first from labelled points or the mean, in the model's features"
    ),
    "k-medoids": Strategy(_features, KMedoids(), "middles of clusters of the model's features"),
    "lcmd": Strategy(
        _features,
        LCMD(),
        "largest cluster and maximum distance from labelled points or the mean, in the model's features",
    ),
    "random": Strategy(_nothing, UniformRandom(), "chance, the baseline to beat"),
}


def find_strategy(strategy: str | Strategy) -> Strategy:
    """Look a strategy up by name; an unknown name raises an error that says the near ones."""
    if isinstance(strategy, Strategy):
        return strategy
    if not isinstance(strategy, str):
        raise InputError(f"a strategy is a name or a Strategy, got {type(strategy).__name__}")
    if strategy in STRATEGIES:
        return STRATEGIES[strategy]
    near = difflib.get_close_matches(strategy.lower(), STRATEGIES, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(STRATEGIES)}"
    raise InputError(f"unknown strategy {strategy!r}; {hint}")


def select(
    pool: PoolLike | None = None,
    *,
    budget: int,
    strategy: str | Strategy = DEFAULT,
    posterior: Posterior | None = None,
    probs: Any = None,
    means: Any = None,
    variances: Any = None,
    labelled: Any = None,
    features: PoolLike | None = None,
    labelled_features: Any = None,
    pending: Iterable[int] = (),
    exclude: Iterable[int] = (),
    num_samples: int | None = None,
    exact: bool = True,
    memory: int | str | None = None,
    engine: Literal["ray"] | None = None,
    num_workers: int | None = None,
    seed: int = 0,
) -> Batch:
    """Choose which points to label next.

    The model comes in one of three ways: a ``posterior``, or a fitted estimator that has one, with a ``pool``
    for it to read; class probabilities ``probs`` of K posterior samples, ensemble members or dropout passes;
    or Gaussian ``means`` and ``variances`` of the same.

    Parameters
    ----------
    pool : the unlabelled points: array, tensor, data frame, or path of a .npy, Parquet or Arrow file.
    budget : how many points to choose; exactly so many come back.
    strategy : a name from `STRATEGIES`, or a `Strategy`.
    posterior : a posterior, or a fitted estimator from `coresift.estimators`.
    probs : (K, N, C) class probabilities.
    means, variances : (K, N) Gaussian predictions; ``variances`` may be anything that broadcasts, such as one
        noise variance.
    labelled : the points that have labels already, for strategies that keep a distance from them: those with
        'lcmd', 'kmeans++' or 'center' in their names, and 'badge'. In the form of what stands for the pool:
        rows (M, d), probabilities (K, M, C), means (K, M) where all points share one variance, or a pair
        (means, variances). Without any, distances are kept from the origin: from a point that the model is
        sure about or, among features, from their mean.
    features, labelled_features : (N, D) and (M, D), where 'k-center', 'k-medoids', 'lcmd' and 'badge' measure
        distances; by default the model's own features, or the pool's rows, which may be given beside
        ``probs`` or ``means`` for that.
    pending : points already sent for labelling: they count as taken and are not chosen again.
    exclude : points that cannot be labelled.
    num_samples : J; grows with the budget by default (see `default_num_samples`).
    exact : ``False`` samples the likelihood space of linear models too, which has a closed form.
    memory : how much the process may hold, such as "2GB" or a number of bytes; the vectors of larger pools
        then go to a temporary file. No limit by default.
    engine, num_workers : "ray" shares the pool among so many workers of a cluster, one for each CPU by
        default; see docs/cluster.md.
    seed : the same seed gives the same batch.

    >>> probs_K_N_C = torch.softmax(torch.randn(20, 100, 3, generator=torch.Generator().manual_seed(0)), -1)
    >>> batch = select(probs=probs_K_N_C, budget=5)
    >>> len(set(batch.index.tolist()))
    5
    """
    method = find_strategy(strategy)
    source, posterior, known = _model(pool, posterior, probs, means, variances, labelled)
    budget = check_budget(budget, len(source))
    if pool is not None and (probs is not None or means is not None) and features is None:
        features = pool
    seen = None if features is None else as_pool(features)
    if seen is not None and len(seen) != len(source):
        raise InputError(f"the pool's features hold {len(seen)} points, but the predictions {len(source)}")
    if seen is None and labelled_features is not None:
        raise InputError("labelled_features= goes with features=; of the pool's own rows, pass labelled=")
    if engine is not None and not (isinstance(engine, str) and engine == "ray"):
        raise InputError(f"engine is {shown(engine)}, expected 'ray', or None for this process alone")
    if num_workers is not None and engine is None:
        raise InputError("num_workers= goes with engine='ray'")
    check_switch(exact, "exact")
    limit = check_memory(memory, len(source))
    if engine is None:  # else the workers apply a network themselves
        posterior, source, known = at_the_last_layer(posterior, source, known, limit)
    problem = Problem(
        pool=source,
        posterior_or_none=posterior,
        labelled=known,
        features=seen,
        labelled_features=None if seen is None else _labelled(labelled_features, seen),
        num_samples=default_num_samples(budget)
        if num_samples is None
        else check_integer(num_samples, 2, "num_samples"),
        generator=make_generator(seed),
        exact=exact,
        memory=limit,
    )
    if engine == "ray":
        from coresift.search.ray import select_on_ray

        return select_on_ray(method, problem, budget, pending, exclude, num_workers=num_workers)
    with enough_threads(len(source) * problem.num_samples):
        return method.run(problem, budget, pending, exclude)


def _model(
    pool: PoolLike | None, posterior: Posterior | None, probs: Any, means: Any, variances: Any, labelled: Any
) -> tuple[Pool, Posterior | None, Tensor | None]:
    """What to choose from, the posterior that understands it, and the labelled points in the same form."""
    if sum(given is not None for given in (posterior, probs, means)) > 1:
        raise InputError("pass only one of posterior=, probs= and means=")
    if (means is None) != (variances is None):
        raise InputError(
            "means= and variances= go together; for an ensemble without variances pass a noise variance"
        )
    if probs is not None:
        rows = _array(probs, "probs", "samples, points, classes")
        _warn_of_swapped_axes(rows, "probs")
        source = as_pool(_rows_first(rows))
        with enough_threads(math.prod(rows.shape)):
            for chunk in source.chunks():
                check_finite(chunk.x, chunk.start, "array of probabilities")
                check_probabilities(chunk.x, chunk.start)
        if labelled is not None:
            labelled = _rows_first(_array(labelled, "labelled", "samples, points, classes"))
        return source, ClassSamples(rows.shape[0]), _labelled(labelled, source)
    if means is not None:
        rows = _gaussian(means, variances, "means")
        _warn_of_swapped_axes(rows[..., 0], "means")
        if labelled is not None:
            labelled = _rows_first(_gaussian(*_labelled_pair(labelled, variances), "labelled"))
        source = as_pool(_rows_first(rows))
        return source, GaussianSamples(rows.shape[0]), _labelled(labelled, source)
    if pool is None:
        raise InputError("nothing to choose from: pass a pool, or probs=, or means= and variances=")
    source = as_pool(pool)
    return source, None if posterior is None else _posterior(posterior), _labelled(labelled, source)


def _posterior(given: Any) -> Posterior:
    """A posterior, or that of a fitted estimator."""
    found = given if isinstance(given, Posterior) else getattr(given, "posterior_", None)
    if isinstance(found, Posterior) and not isinstance(given, type):
        return found
    name = given.__name__ if isinstance(given, type) else type(given).__name__
    if not isinstance(given, type) and any(
        "posterior_" in vars(kind).get("__annotations__", {}) for kind in type(given).__mro__
    ):
        raise InputError(f"{name} is not fitted yet; call fit(X, y) on it first")
    advice = "it lacks sample, conditional or predictive"
    if hasattr(given, "fit"):
        advice = "pass what its fit(x, y) returns"
    if hasattr(given, "predict"):
        advice = "pass what several fits of it predict as probs=, or as means= and variances="
    raise InputError(f"{name} is no posterior: {advice}")


def _labelled_pair(labelled: Any, variances: Any) -> tuple[Any, Any]:
    """Means and variances of labelled points; the pool's variances only where all points share them."""
    if isinstance(labelled, tuple):
        if len(labelled) != 2:
            raise InputError(f"labelled is a tuple of {len(labelled)}, expected (means, variances)")
        return labelled[0], labelled[1]
    shape = np.shape(variances)
    if shape and shape[-1] != 1:
        raise InputError(
            f"variances= of shape {tuple(shape)} are those of the pool's points, not of the labelled ones; "
            "pass labelled=(means, variances)"
        )
    return labelled, variances


def _labelled(rows: Any, pool: Pool) -> Tensor | None:
    """Labelled points, checked to look like the pool's rows; ``None`` where there are none."""
    if rows is None:
        return None
    array = rows.detach() if isinstance(rows, Tensor) else as_array(rows)
    if array.ndim and len(array) == 0:
        return None
    tensor = as_float(array)
    check_shape(tensor, (None, *next(pool.chunks()).x.shape[1:]), "an array of labelled points")
    check_finite(tensor, what="array of labelled points")
    return tensor


def _array(values: Any, name: str, axes: str) -> Any:
    try:
        array = values.detach() if isinstance(values, Tensor) else np.asanyarray(values)
    except ValueError:
        raise InputError(f"{name} has rows of different lengths, expected an array ({axes})") from None
    if array.ndim != axes.count(",") + 1:
        alone = f"; of a single model, pass {name}[None]" if array.ndim == axes.count(",") else ""
        raise InputError(f"{name} has shape {tuple(array.shape)}, expected ({axes}){alone}")
    if 0 in array.shape and name != "labelled":  # of labelled points there may be none
        raise InputError(f"{name} has shape {tuple(array.shape)}, expected at least one of each ({axes})")
    return array


def _warn_of_swapped_axes(values: Any, name: str) -> None:
    """Warn where predictions (K, N, ...) look like those of (N, K, ...).

    An ensemble has ten times as many members as the pool has points only if there are few points. Even then,
    members say more alike things of one point than one member says of many points; where it is the other
    way round, what should be members are points.
    """
    num_samples, num_points = values.shape[:2]
    if num_samples <= _SWAPPED * num_points or num_points < 2:
        return
    some = as_float(values[: 100 * _SWAPPED])
    over_samples, over_points = (float(some.var(axis).mean()) for axis in (0, 1))
    if over_samples > over_points:
        warnings.warn(
            f"{name} has shape {tuple(values.shape)}, {num_samples} samples of {num_points} points; if these "
            f"are {num_samples} points, swap the axes, as np.swapaxes({name}, 0, 1) does",
            stacklevel=4,
        )


def _rows_first(values: Any) -> Any:
    """(K, N, ...) -> (N, K, ...), as a view."""
    return values.transpose(0, 1) if isinstance(values, Tensor) else np.swapaxes(values, 0, 1)


def _gaussian(means: Any, variances: Any, name: str) -> Tensor:
    """(K, N, 2) means and variances."""
    mean = as_float(_array(means, name, "samples, points"))
    try:
        spread = as_float(variances.detach() if isinstance(variances, Tensor) else as_array(variances))
    except InputError:
        raise InputError(
            f"variances are {shown(variances)}, expected a positive number or an array of such numbers"
        ) from None
    spread = spread.to(mean)
    try:
        return torch.stack([mean, spread.expand(mean.shape)], -1)
    except RuntimeError:
        raise InputError(
            f"variances of shape {tuple(spread.shape)} do not broadcast to {name} of shape "
            f"{tuple(mean.shape)}; for labelled points with variances of their own pass "
            "labelled=(means, variances)"
        ) from None
