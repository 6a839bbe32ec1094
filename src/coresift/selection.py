"""Choose a batch in one call: `select` turns what a caller has into a problem, and runs a strategy on it.

The class `Selection`, a batch while a selector chooses it, is in `coresift.selectors.base`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coresift.checks import (
    check_budget,
    check_choice,
    check_finite,
    check_index,
    check_integer,
    check_probabilities,
    check_shape,
    make_generator,
)
from coresift.errors import InputError, shown
from coresift.limits import SWAPPED_AXES
from coresift.memory import check_memory, held_bytes, left_for_space
from coresift.pool import ArrayPool, Pool, PoolLike, as_float, as_pool
from coresift.posteriors.base import Posterior
from coresift.posteriors.gaussian_process import GaussianProcessPosterior
from coresift.posteriors.network import last_layer_input, split_last_layer
from coresift.posteriors.nystrom import GaussianProcessOnPool
from coresift.posteriors.samples import ClassSamples, GaussianSamples
from coresift.spaces.base import Problem, default_num_samples
from coresift.strategies import DEFAULT, STRATEGIES, Strategy, find_strategy
from coresift.threads import enough_threads
from coresift.types import Batch

_CLASS_AXES = "samples, points, classes"
_OPTION = "pass strategy=find_strategy(name, {0}=...)"
_RESOURCE = "pass resources=Resources({0}=...)"
# Arguments that `select` had before, and what to pass instead.
_OLD_ARGUMENTS = {
    "num_samples": _OPTION,
    "exact": _OPTION,
    "memory": _RESOURCE,
    "engine": _RESOURCE,
    "num_workers": _RESOURCE,
    "labelled_features": "pass features=(features of the pool, features of the labelled points)",
    "half": "leave it out; vectors are scanned in their own precision",
}


@dataclass(frozen=True)
class Resources:
    """Says what a selection may use.

    Attributes
    ----------
    memory : how much the process may hold, your own arrays included, such as "2GB" or a number of bytes; the
        vectors of larger pools then go to a temporary file. No limit by default.
    engine : "ray" shares the pool among the workers of a Ray cluster; see docs/cluster.md.
    num_workers : how many workers; by default one for each CPU of the cluster.
    """

    memory: int | str | None = None
    engine: Literal["ray"] | None = None
    num_workers: int | None = None

    def __post_init__(self) -> None:
        if self.engine is not None:
            check_choice(self.engine, ["ray"], "engine")
        if self.num_workers is not None:
            if self.engine is None:
                raise InputError("num_workers= goes with engine='ray'")
            check_integer(self.num_workers, 1, "num_workers")


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
    target: Any = None,
    features: Any = None,
    pending: Iterable[int] = (),
    exclude: Iterable[int] = (),
    resources: Resources = Resources(),  # noqa: B008  (frozen)
    seed: int = 0,
    **old: Any,
) -> Batch:
    """Choose which points to label next.

    The model is a ``posterior``, or a fitted estimator that has one, and reads the ``pool``. Or it comes as
    predictions of K posterior samples, ensemble members or dropout passes: class probabilities ``probs``, or
    Gaussian ``means`` and ``variances``.

    Parameters
    ----------
    pool : the unlabelled points: array, tensor, data frame, or path of a .npy, Parquet or Arrow file. With
        ``probs`` or ``means``, the pool's rows are the ``features``.
    budget : how many points to choose.
    strategy : a name from `STRATEGIES`, or a `Strategy` such as ``find_strategy("acs-fw", num_samples=64)``.
    probs : (K, N, C) class probabilities.
    means, variances : (K, N) Gaussian predictions; ``variances`` is anything that broadcasts to them.
    labelled : points with labels. 'badge' and strategies with 'lcmd', 'kmeans++' or 'center' in their names
        keep a distance from these points; without any, from the origin or the features' mean. 'bait',
        'typiclust' and 'uncertainty-herding' use them too. In the form of the pool: rows (M, d),
        probabilities (K, M, C), means (K, M), or a pair (means, variances).
    target : where the model will be used, for 'variance-reduction' and 'epig'; as ``labelled``, or the pool.
    features : (N, D), or a pair of these and (M, D) of the labelled points. 'k-center', 'k-medoids', 'lcmd',
        'typiclust', 'uncertainty-herding' and 'badge' measure distances between them; by default, between the
        model's own features or the pool's rows. The default compares predictions, see `spaces.Predictive`.
    pending : indices of points already sent for labelling: they count as chosen.
    exclude : indices of points that cannot be labelled.
    resources : a memory limit, or a Ray cluster.
    seed : the same seed gives the same batch.

    >>> probs_K_N_C = torch.softmax(torch.randn(20, 100, 3, generator=torch.Generator().manual_seed(0)), -1)
    >>> len(set(select(probs=probs_K_N_C, budget=5).index.tolist()))
    5
    """
    _check_arguments(old)
    method = find_strategy(strategy)
    given = _Given(pool, posterior, probs, means, variances, labelled, target, features)
    problem = _problem(given, method, budget, resources, seed)
    if resources.engine == "ray":
        return _ray(method)(method, problem, budget, pending, exclude, num_workers=resources.num_workers)
    with enough_threads(len(problem.pool) * problem.num_samples):
        if problem.memory is not None:
            taken = int(budget) + len(check_index(pending, len(problem.pool), "pending"))
            problem = replace(problem, memory=left_for_space(problem.memory, method, problem, taken))
        return method.run(problem, budget, pending, exclude)


class _Given(NamedTuple):
    """Holds the points and the model as the caller passed them."""

    pool: Any
    posterior: Any
    probs: Any
    means: Any
    variances: Any
    labelled: Any
    target: Any
    features: Any

    @property
    def predicted(self) -> bool:
        """Whether predictions were passed instead of a model."""
        return self.probs is not None or self.means is not None


def _check_arguments(old: dict[str, Any]) -> None:
    """Raise where arguments are unknown, or have another home now."""
    for name in old:
        if name in _OLD_ARGUMENTS:
            raise InputError(f"select has no argument {name}= any more; {_OLD_ARGUMENTS[name].format(name)}")
        raise TypeError(f"select() got an unexpected keyword argument {name!r}")


def _problem(given: _Given, method: Strategy, budget: int, resources: Resources, seed: int) -> Problem:
    local = resources.engine is None  # the workers of a cluster apply a network themselves
    held = held_bytes() if local and resources.memory is not None else 0
    model, source = _model(given)  # source: the pool
    budget = check_budget(budget, len(source))
    known, target = _labelled_rows(given, source), _target_rows(given, source, method)
    of_pool = given.pool if given.predicted and given.features is None else given.features
    features, labelled_features = _features(of_pool, len(source))
    memory = None if resources.memory is None else check_memory(resources.memory, len(source), held)
    if local and not given.predicted:
        before, target = source, last_layer_input(model, target)
        model, source, known = split_last_layer(model, source, known, memory)
        if memory is not None and source is not before:
            memory -= max(held_bytes() - held, 0)  # the network's outputs, where they are kept in memory
    generator = make_generator(seed)
    if isinstance(model, GaussianProcessPosterior):
        model = GaussianProcessOnPool.of(model, source, generator, target=target)
    return Problem(
        source,
        model,
        generator=generator,
        labelled=known,
        target=target,
        features=features,
        labelled_features=labelled_features,
        points=features if given.predicted else None,  # several points may have the same predictions
        num_samples=method.num_samples or default_num_samples(budget, model),
        exact=method.exact,
        memory=memory,
    )


def _ray(method: Strategy) -> Callable[..., Batch]:
    """Return the function that chooses on a cluster; raise where a strategy cannot."""
    if not method.shards:
        able = ", ".join(name for name, row in STRATEGIES.items() if row.shards)
        raise InputError(f"this strategy cannot choose from a pool in shards; those that can are {able}")
    from coresift.search.ray import select_on_ray  # an optional package

    return select_on_ray


def _model(given: _Given) -> tuple[Posterior | None, Pool]:
    """Return the posterior, and the pool that it reads.

    If predictions were passed instead of a model, these are themselves the pool: a row holds the K samples'
    predictions for one point (see `posteriors.samples`).
    """
    if sum(model is not None for model in (given.posterior, given.probs, given.means)) > 1:
        raise InputError("pass only one of posterior=, probs= and means=")
    if (given.means is None) != (given.variances is None):
        raise InputError(
            "means= and variances= go together; for an ensemble without variances pass a noise variance"
        )
    if given.probs is not None:
        return _class_model(given.probs)
    if given.means is not None:
        return _gaussian_model(given.means, given.variances)
    if given.pool is None:
        raise InputError("nothing to choose from: pass a pool, or probs=, or means= and variances=")
    source = as_pool(given.pool)
    return None if given.posterior is None else _posterior(given.posterior), source


def _class_model(probs: Any) -> tuple[Posterior, Pool]:
    rows = _array(probs, "probs", _CLASS_AXES)
    _warn_of_swapped_axes(rows, "probs")
    source = ArrayPool(rows.swapaxes(0, 1))
    with enough_threads(math.prod(rows.shape)):
        for chunk in source.chunks():
            check_finite(chunk.x, chunk.start, "array of probabilities")
            check_probabilities(chunk.x, chunk.start)
    return ClassSamples(rows.shape[0]), source


def _gaussian_model(means: Any, variances: Any) -> tuple[Posterior, Pool]:
    rows = _gaussian(means, variances, "means")
    _warn_of_swapped_axes(rows[..., 0], "means")
    return GaussianSamples(rows.shape[0]), ArrayPool(rows.swapaxes(0, 1))


def _labelled_rows(given: _Given, source: Pool) -> Tensor | None:
    return _labelled(_in_form_of_pool(given, given.labelled, "labelled"), source)


def _target_rows(given: _Given, source: Pool, method: Strategy) -> Tensor | None:
    """Return the rows of the target; raise where the strategy uses none."""
    if given.target is None:
        return None
    if not method.uses_target:
        able = ", ".join(name for name, row in STRATEGIES.items() if row.uses_target)
        raise InputError(f"this strategy does not use target=; those that do are {able}")
    target = _labelled(_in_form_of_pool(given, given.target, "target"), source, "target")
    if target is None:
        raise InputError("target= holds no points; leave it out where the model will be used on the pool")
    return target


def _in_form_of_pool(given: _Given, rows: Any, name: str) -> Any:
    """Return points that came as predictions in the form of the pool's rows, others as they are."""
    if rows is None or not given.predicted:
        return rows
    if given.probs is not None:
        return _array(rows, name, _CLASS_AXES).swapaxes(0, 1)
    return _gaussian(*_with_variances(rows, given.variances, name), name).swapaxes(0, 1)


def _posterior(given: Any) -> Posterior:
    """Return a posterior, or that of a fitted estimator."""
    is_class = isinstance(given, type)
    found = given if isinstance(given, Posterior) else getattr(given, "posterior_", None)
    if isinstance(found, Posterior) and not is_class:
        return found
    name = (given if is_class else type(given)).__name__
    if hasattr(given, "posterior_type") and not is_class:  # an estimator of this library
        raise InputError(f"{name} is not fitted yet; call fit(X, y) on it first")
    advice = {
        "predict": "pass what several fits of it predict as probs=, or as means= and variances=",
        "fit": "pass what its fit(x, y) returns",
    }
    lacks = "it lacks sample, conditional or predictive"
    why = next((text for method, text in advice.items() if hasattr(given, method)), lacks)
    raise InputError(f"{name} is no posterior: {why}")


def _features(features: Any, num_points: int) -> tuple[Pool | None, Tensor | None]:
    """Return the features of the pool and those of the labelled points."""
    if features is None:
        return None, None
    is_pair = isinstance(features, tuple) and len(features) == 2
    of_pool, of_labelled = features if is_pair else (features, None)
    found = as_pool(of_pool)
    if len(found) != num_points:
        raise InputError(f"the pool's features hold {len(found)} points, but the predictions {num_points}")
    return found, _labelled(of_labelled, found)


def _labelled(rows: Any, pool: Pool, name: str = "labelled") -> Tensor | None:
    """Return labelled or target points, checked against the pool's rows; ``None`` where there are none."""
    if rows is None:
        return None
    tensor = as_float(rows)
    if tensor.ndim and len(tensor) == 0:
        return None
    check_shape(tensor, (None, *next(pool.chunks()).x.shape[1:]), f"an array of {name} points")
    check_finite(tensor, what=f"array of {name} points")
    return tensor


def _with_variances(points: Any, variances: Any, name: str) -> tuple[Any, Any]:
    """Return means and variances of some points; the pool's variances where all points share them."""
    if isinstance(points, tuple):
        if len(points) != 2:
            raise InputError(f"{name} is a tuple of {len(points)}, expected (means, variances)")
        return points[0], points[1]
    shape = np.shape(variances)
    if shape and shape[-1] != 1:
        raise InputError(
            f"variances= of shape {tuple(shape)} are those of the pool's points, not of the {name} ones; "
            f"pass {name}=(means, variances)"
        )
    return points, variances


def _array(values: Any, name: str, axes: str) -> Any:
    """Return an array or tensor with as many dimensions as ``axes`` names."""
    try:
        array = values.detach() if isinstance(values, Tensor) else np.asanyarray(values)
    except ValueError:
        raise InputError(f"{name} has rows of different lengths, expected an array ({axes})") from None
    missing = axes.count(",") + 1 - array.ndim
    if missing:
        advice = f"; of a single model, pass {name}[None]" if missing == 1 else ""
        raise InputError(f"{name} has shape {tuple(array.shape)}, expected ({axes}){advice}")
    if 0 in array.shape and name not in ("labelled", "target"):  # there may be no labelled points
        raise InputError(f"{name} has shape {tuple(array.shape)}, expected at least one of each ({axes})")
    if isinstance(array, np.ma.MaskedArray):
        return np.ma.filled(array.astype(np.float64), np.nan)  # reported later, with its row
    return array


def _gaussian(means: Any, variances: Any, name: str) -> Tensor:
    """Return (K, N, 2) means and variances."""
    mean = as_float(_array(means, name, "samples, points"))
    try:
        spread = as_float(variances).to(mean)
    except InputError:
        raise InputError(
            f"variances are {shown(variances)}, expected a positive number or an array of such numbers"
        ) from None
    try:
        return torch.stack([mean, spread.expand(mean.shape)], -1)
    except RuntimeError:
        raise InputError(
            f"variances of shape {tuple(spread.shape)} do not broadcast to {name} of shape "
            f"{tuple(mean.shape)}; for labelled points with variances of their own pass "
            "labelled=(means, variances)"
        ) from None


def _warn_of_swapped_axes(values: Any, name: str) -> None:
    """Warn where predictions (K, N, ...) look like those of (N, K, ...).

    Few ensembles have ten times as many members as there are points. Even then, the members' predictions for
    one point differ less than one member's predictions for many points.
    """
    num_samples, num_points = values.shape[:2]
    if num_samples <= SWAPPED_AXES * num_points or num_points < 2:
        return
    some = as_float(values[: 100 * SWAPPED_AXES])
    if some.var(0).mean() > some.var(1).mean():
        warnings.warn(
            f"{name} has shape {tuple(values.shape)}, {num_samples} samples of {num_points} points; if these "
            f"are {num_samples} points, swap the axes, as np.swapaxes({name}, 0, 1) does",
            stacklevel=6,
        )
