"""The table of strategies: named pairs of a space or score and a selector, and what each can do."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from coresift import limits
from coresift.checks import as_bytes, check_index, check_integer, check_room, check_switch
from coresift.errors import InputError
from coresift.pool import as_pool
from coresift.posteriors.samples import numbers_a_row, rows_at_a_time
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
from coresift.spaces.features import features, model_features
from coresift.spaces.fisher import fisher
from coresift.spaces.gradient import badge
from coresift.spaces.likelihood import Likelihood
from coresift.spaces.predictive import Predictive
from coresift.spaces.problem import Problem
from coresift.spaces.storage import Columns, bytes_per_vector
from coresift.types import Batch

DEFAULT = "predictive-lcmd"


@dataclass(frozen=True)
class Strategy:
    """Pairs what builds a space or a score with the selector that chooses from it.

    Attributes
    ----------
    build : makes the space or the score of a `Problem`.
    selector : chooses from it.
    about : one line for people.
    num_samples : J, posterior samples; ``None`` grows with the budget, see `default_num_samples`.
    exact : ``False`` draws samples also where the model has a closed form: in the likelihood, Fisher and
        predictive spaces and in BALD. Features, entropy, margin and variance draw nothing.
    needs_model : whether it needs a posterior or predictions.
    needs_classes : whether it needs class probabilities.
    uses_labelled : whether it keeps a distance from labelled points.
    streams : whether its vectors go to a file where they exceed the memory limit.
    shards : whether it runs on Ray: its vectors are stored and made point by point.
    bytes_per_point : memory that the selector needs besides the space.
    medoids : whether the selector keeps distances of all pairs among its ``max_points`` points.
    """

    build: Callable[[Problem], Any]
    selector: Selector[Any]
    about: str
    num_samples: int | None = None
    exact: bool = True
    needs_model: bool = True
    needs_classes: bool = False
    uses_labelled: bool = False
    streams: bool = False
    shards: bool = False
    bytes_per_point: int = 0
    medoids: bool = False

    def __post_init__(self) -> None:
        check_switch(self.exact, "exact")
        if self.num_samples is not None:
            object.__setattr__(self, "num_samples", check_integer(self.num_samples, 2, "num_samples"))

    def run(
        self, problem: Problem, budget: int, pending: Iterable[int] = (), exclude: Iterable[int] = ()
    ) -> Batch:
        """Build the space or score, then choose."""
        if problem.memory is not None:
            pending = check_index(pending, len(problem.pool), "pending")
            memory = self._memory_left(problem, problem.memory - _bytes_of_blocks(problem))
            problem = replace(problem, memory=self._beside_vectors(problem, memory, budget + len(pending)))
        space = self.build(problem)
        if isinstance(space, Score) and problem.points is not None:
            space = replace(space, pool=problem.points)
        return self.selector.select(space, budget, pending=pending, exclude=exclude, seed=problem.generator)

    def _memory_left(self, problem: Problem, memory: int) -> int:
        """Return the bytes that the selector leaves for the libraries and the space."""
        size = len(problem.pool)
        if not self.medoids:
            if self.bytes_per_point:
                check_room(size, self.bytes_per_point, memory, "raise the limit")
            return memory - self.bytes_per_point * size
        selector: Any = self.selector
        pairs = limits.MEDOID_PAIR_BYTES * min(size, selector.max_points) ** 2
        if limits.LIBRARY_BYTES + pairs > memory:
            raise InputError(
                f"k-medoids needs {as_bytes(limits.LIBRARY_BYTES + pairs)}, with the libraries, and has "
                f"{as_bytes(memory)}; raise the limit"
            )
        # Without room for copies of all vectors, these go to a file, and a sample of them is clustered.
        row = (problem.pool if problem.features is None else problem.features).take([0])
        vector = model_features(problem.model if problem.features is None else None, row)
        besides = (self.bytes_per_point + limits.MEDOID_COPIES * vector.nbytes) * size
        return max(int(memory - pairs - besides), limits.LIBRARY_BYTES)

    def _beside_vectors(self, problem: Problem, memory: int, taken: int) -> int:
        """Return the bytes that are left besides the vectors of the ``taken`` points, which selectors keep.

        Raise where they do not fit, or where all vectors must be in memory and do not fit.
        """
        if self.medoids or issubclass(self.selector._source, Score):
            return memory
        columns = _columns_of_one(self.build, problem)
        if columns is None:
            return memory
        beside = limits.COPIES_TAKEN * 8 * columns.shape[0] * taken
        needed, advice = limits.LIBRARY_BYTES + beside, "raise the limit, or choose fewer points at a time"
        if not self.streams:
            needed += bytes_per_vector(columns.shape[0], columns.dtype) * len(problem.pool)
            advice = "raise the limit, or try 'acs-fw' or 'predictive-lcmd'"
        if needed > memory:
            raise InputError(
                f"this strategy needs {as_bytes(needed)} for {len(problem.pool):,} vectors of "
                f"{columns.shape[0]:,} numbers and a batch of {taken:,}, with the libraries, and has "
                f"{as_bytes(memory)} of the limit left; {advice}"
            )
        return memory - beside

    def with_options(self, **options: Any) -> Strategy:
        """Return the strategy with other options: its own two, or those of its builder or selector.

        >>> STRATEGIES["acs-fw"].with_options(num_samples=64, fill=False).selector
        FrankWolfe(fill=False, tolerance=1e-06, start='zero')
        """
        changed = self
        for name, value in options.items():
            changed = changed._with_option(name, value)
        return changed

    def _with_option(self, name: str, value: Any) -> Strategy:
        if name in ("num_samples", "exact"):
            return replace(self, **{name: value})
        for part in ("build", "selector"):
            if name in _options(getattr(self, part)):
                changed: Any = replace(getattr(self, part), **{name: value})
                return replace(self, **{part: changed})
        known = ["num_samples", "exact", *_options(self.build), *_options(self.selector)]
        raise InputError(f"this strategy has no option {name}; it has {', '.join(known)}")


def _columns_of_one(build: Callable[[Problem], Any], problem: Problem) -> Columns | None:
    """Build the space of the first point alone, to see how wide its vector is; ``None`` if it stores none."""
    generator = torch.Generator()
    generator.set_state(problem.generator.get_state())
    features = None if problem.features is None else as_pool(problem.features.take([0]))
    alone = replace(
        problem,
        pool=as_pool(problem.pool.take([0])),
        features=features,
        labelled=None,
        labelled_features=None,
        generator=generator,
        memory=None,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(build(alone), "columns", None)


def _bytes_of_blocks(problem: Problem) -> int:
    """Return the bytes that blocks of predictions need beyond what counts as the libraries'."""
    if problem.model is None:
        return 0
    theta = problem.model.sample(problem.num_samples, torch.Generator())
    each = problem.model.conditional(problem.pool.take([0]), theta)
    numbers = numbers_a_row(each) * rows_at_a_time(each, limits.POOL_BLOCK)
    if numbers <= limits.MAPPED_NUMBERS:
        return 0
    return min(limits.BLOCK_NUMBER_BYTES * numbers, limits.MOST_BLOCK_BYTES)


def _options(part: Any) -> list[str]:
    if not is_dataclass(part):
        return []
    return [field.name for field in fields(part) if field.init]


def _bald(problem: Problem) -> Score:
    return bald(
        problem.posterior,
        problem.pool,
        problem.num_samples,
        generator=problem.generator,
        exact=problem.exact,
    )


def _entropy(problem: Problem) -> Score:
    return entropy(problem.posterior, problem.pool)


def _margin(problem: Problem) -> Score:
    return margin(problem.posterior, problem.pool)


def _variance(problem: Problem) -> Score:
    return variance(problem.posterior, problem.pool)


def _norm(problem: Problem) -> Score:
    return acs_norm(Likelihood()(problem), problem.pool)


def _no_score(problem: Problem) -> Score:
    return Score(torch.zeros(len(problem.pool)), problem.pool)


_TOP: dict[str, Any] = {"bytes_per_point": limits.TOP_BYTES}
_GUMBEL: dict[str, Any] = {"bytes_per_point": limits.GUMBEL_BYTES}
# Vectors that are stored, and made point by point.
_STORED: dict[str, Any] = {"streams": True, "shards": True}
_STORED_LABELLED: dict[str, Any] = {**_STORED, "uses_labelled": True}
_FEATURES: dict[str, Any] = {"streams": True, "uses_labelled": True, "needs_model": False}

STRATEGIES: dict[str, Strategy] = {
    "acs-fw": Strategy(
        Likelihood(), FrankWolfe(), "likelihood space, Frank-Wolfe: the paper's method", **_STORED
    ),
    "acs-fisher": Strategy(fisher, FrankWolfe(), "Fisher space, Frank-Wolfe: the paper's closed forms"),
    "acs-giga": Strategy(
        Likelihood(),
        GIGA(),
        "likelihood space, geodesic ascent",
        bytes_per_point=limits.GIGA_BYTES,
    ),
    "acs-kmeans++": Strategy(
        Likelihood(), KMeansPlusPlus(), "likelihood space, k-means++ draws", **_STORED_LABELLED
    ),
    "acs-lcmd": Strategy(
        Likelihood(),
        LCMD(),
        "likelihood space, largest cluster and maximum distance from labelled points or the origin",
        **_STORED_LABELLED,
    ),
    "acs-centred-lcmd": Strategy(
        Likelihood(centred=True), LCMD(), "the same on centred likelihoods", **_STORED_LABELLED
    ),
    "acs-norm": Strategy(_norm, TopB(), "the longest vectors of the likelihood space", streams=True, **_TOP),
    "bald": Strategy(_bald, TopB(), "most information about the model, point by point", **_TOP),
    "power-bald": Strategy(_bald, GumbelTopB("power"), "BALD, drawn in proportion", **_GUMBEL),
    "softmax-bald": Strategy(_bald, GumbelTopB("softmax"), "BALD, drawn by its exponential", **_GUMBEL),
    "softrank-bald": Strategy(_bald, GumbelTopB("softrank"), "BALD, drawn by rank", **_GUMBEL),
    "maxent": Strategy(_entropy, TopB(), "highest predictive entropy", **_TOP),
    "margin": Strategy(
        _margin, TopB(), "smallest gap between the two likeliest classes", needs_classes=True, **_TOP
    ),
    "variance": Strategy(_variance, TopB(), "highest predictive variance", **_TOP),
    "badge": Strategy(
        badge,
        KMeansPlusPlus(),
        "hypothetical loss gradients, k-means++ draws",
        needs_classes=True,
        uses_labelled=True,
    ),
    "predictive-lcmd": Strategy(
        Predictive(num_dimensions=512, scaling="margin"),
        LCMD(),
        "what the model cannot yet predict, largest cluster and maximum distance from labelled points or the "
        "origin",
        **_STORED_LABELLED,
    ),
    "greedy-logdet": Strategy(
        Predictive(num_dimensions=None, scaling="information"),
        GreedyLogDet(),
        "jointly most informative labels",
        bytes_per_point=limits.LOG_DET_BYTES,
    ),
    "k-center": Strategy(
        features,
        KCenter(),
        "farthest first from labelled points or the mean, in the model's features",
        **_FEATURES,
    ),
    "k-medoids": Strategy(
        features,
        KMedoids(),
        "middles of clusters of the model's features",
        streams=True,
        needs_model=False,
        medoids=True,
        bytes_per_point=limits.MEDOID_BYTES,
    ),
    "lcmd": Strategy(
        features,
        LCMD(),
        "largest cluster and maximum distance from labelled points or the mean, in the model's features",
        **_FEATURES,
    ),
    "random": Strategy(
        _no_score,
        UniformRandom(),
        "at random, the baseline",
        needs_model=False,
        bytes_per_point=limits.RANDOM_BYTES,
    ),
}


def find_strategy(strategy: str | Strategy, **options: Any) -> Strategy:
    """Return a strategy by its name, with options; an unknown name raises an error with similar names.

    >>> find_strategy("predictive-lcmd", num_samples=64, num_dimensions=256).build
    Predictive(num_dimensions=256, scaling='margin')
    """
    return _by_name(strategy).with_options(**options)


def _by_name(strategy: str | Strategy) -> Strategy:
    if isinstance(strategy, Strategy):
        return strategy
    if not isinstance(strategy, str):
        raise InputError(f"a strategy is a name or a Strategy, got {type(strategy).__name__}")
    if strategy in STRATEGIES:
        return STRATEGIES[strategy]
    near = difflib.get_close_matches(strategy.lower(), STRATEGIES, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(STRATEGIES)}"
    raise InputError(f"unknown strategy {strategy!r}; {hint}")
