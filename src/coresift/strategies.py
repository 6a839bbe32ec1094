"""The table of strategies: named pairs of a space or score and a selector, and what each can do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch

from coresift.checks import check_integer, check_switch
from coresift.errors import InputError, suggestion
from coresift.pool import Pool
from coresift.posteriors.base import Posterior
from coresift.scores import (
    PredictiveInformation,
    Score,
    acs_norm,
    class_score,
    entropy,
    information_gain,
    margin,
    variance,
)
from coresift.selectors import (
    GIGA,
    LCMD,
    Bait,
    BatchBALD,
    FrankWolfe,
    GreedyLogDet,
    GumbelTopB,
    KCenter,
    KMeansPlusPlus,
    KMedoids,
    Selector,
    TopB,
    TypiClust,
    UncertaintyHerding,
    UniformRandom,
    VarianceReduction,
)
from coresift.selectors.bait import fisher_score
from coresift.selectors.herding import coverage_score
from coresift.spaces.base import Problem
from coresift.spaces.covariance import PredictiveCovariance
from coresift.spaces.features import features
from coresift.spaces.gradient import badge, fisher
from coresift.spaces.likelihood import Likelihood
from coresift.spaces.predictive import Predictive
from coresift.types import Batch

DEFAULT = "predictive-lcmd"
_OWN_OPTIONS = ("num_samples", "exact")


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
    uses_target : whether it chooses for the points where the model will be used.
    streams : whether its vectors go to a file where they exceed the memory limit.
    shards : whether it runs on Ray. The vectors must be stored, and each made from its own point alone. The
        selector may call what the table in docs/extending.md lists for Ray: not `Space.norms`, for example.
    """

    build: Callable[[Problem], Any]
    selector: Selector[Any]
    about: str
    num_samples: int | None = None
    exact: bool = True
    needs_model: bool = True
    needs_classes: bool = False
    uses_labelled: bool = False
    uses_target: bool = False
    streams: bool = False
    shards: bool = False

    def __post_init__(self) -> None:
        check_switch(self.exact, "exact")
        if self.num_samples is not None:
            object.__setattr__(self, "num_samples", check_integer(self.num_samples, 2, "num_samples"))

    def run(
        self, problem: Problem, budget: int, pending: Iterable[int] = (), exclude: Iterable[int] = ()
    ) -> Batch:
        """Build the space or score, then choose."""
        space = self.build(problem)
        if isinstance(space, Score) and problem.points is not None:
            space = replace(space, pool=problem.points)
        # A selector's seed may be a generator. This one goes on where the draws of `build` ended.
        return self.selector.select(space, budget, pending=pending, exclude=exclude, seed=problem.generator)

    def with_options(self, **options: Any) -> Strategy:
        """Return the strategy with other options: its own two, or those of its builder or selector.

        >>> STRATEGIES["acs-fw"].with_options(num_samples=64, fill=False).selector
        FrankWolfe(fill=False, tolerance=1e-06, start='zero')
        """
        # A builder's option comes first where the selector has one of the same name.
        parts = {name: part for part in ("selector", "build") for name in _options(getattr(self, part))}
        changed: dict[str, Any] = {"build": self.build, "selector": self.selector}
        for name, value in options.items():
            if name in _OWN_OPTIONS:
                changed[name] = value
            elif name in parts:
                changed[parts[name]] = replace(changed[parts[name]], **{name: value})
            else:
                known = ", ".join([*_OWN_OPTIONS, *_options(self.build), *_options(self.selector)])
                raise InputError(f"this strategy has no option {name}; it has {known}")
        return replace(self, **changed) if options else self


def _options(part: Any) -> list[str]:
    return [field.name for field in fields(part) if field.init] if is_dataclass(part) else []


def _scored(function: Callable[[Posterior, Pool], Score], problem: Problem) -> Score:
    return function(problem.posterior, problem.pool)


def _norm(problem: Problem) -> Score:
    return acs_norm(Likelihood()(problem), problem.pool)


def _no_score(problem: Problem) -> Score:
    return Score(torch.zeros(len(problem.pool)), problem.pool)


# Vectors that are stored, and made point by point. "acs-giga" has such vectors too, and GIGA asks only
# `cosine_search`. Its row has neither flag: the strategy is not tested in shards or with vectors in a file.
_STORED: dict[str, Any] = {"streams": True, "shards": True}
_STORED_LABELLED: dict[str, Any] = {**_STORED, "uses_labelled": True}
_FEATURES: dict[str, Any] = {"streams": True, "uses_labelled": True, "needs_model": False}

STRATEGIES: dict[str, Strategy] = {
    "acs-fw": Strategy(
        Likelihood(), FrankWolfe(), "likelihood space, Frank-Wolfe: the paper's method", **_STORED
    ),
    "acs-fisher": Strategy(fisher, FrankWolfe(), "Fisher space, Frank-Wolfe: the paper's closed forms"),
    "acs-giga": Strategy(Likelihood(), GIGA(), "likelihood space, geodesic ascent"),
    "acs-kmeans++": Strategy(
        Likelihood(), KMeansPlusPlus(), "likelihood space, k-means++ draws", **_STORED_LABELLED
    ),
    "acs-lcmd": Strategy(
        Likelihood(),
        LCMD(),
        "likelihood space, LCMD (largest cluster, maximum distance) from labelled points or the origin",
        **_STORED_LABELLED,
    ),
    "acs-centred-lcmd": Strategy(
        Likelihood(centred=True),
        LCMD(),
        "acs-lcmd on likelihoods minus each point's mean over the posterior samples",
        **_STORED_LABELLED,
    ),
    "acs-norm": Strategy(_norm, TopB(), "the vectors of largest norm in the likelihood space", streams=True),
    "bald": Strategy(information_gain, TopB(), "most information about the model, point by point"),
    "power-bald": Strategy(information_gain, GumbelTopB("power"), "BALD, drawn in proportion"),
    "softmax-bald": Strategy(information_gain, GumbelTopB("softmax"), "BALD, drawn by its exponential"),
    "softrank-bald": Strategy(information_gain, GumbelTopB("softrank"), "BALD, drawn by rank"),
    "batch-bald": Strategy(
        class_score,
        BatchBALD(),
        "most information about the model, by all labels jointly",
        needs_classes=True,
    ),
    "maxent": Strategy(partial(_scored, entropy), TopB(), "highest predictive entropy"),
    "margin": Strategy(
        partial(_scored, margin), TopB(), "smallest gap between the two likeliest classes", needs_classes=True
    ),
    "variance": Strategy(partial(_scored, variance), TopB(), "highest predictive variance"),
    "badge": Strategy(
        badge,
        KMeansPlusPlus(),
        "hypothetical loss gradients, k-means++ draws",
        needs_classes=True,
        uses_labelled=True,
    ),
    "bait": Strategy(
        fisher_score,
        Bait(),
        "least uncertainty about a last layer where the pool depends on it",
        uses_labelled=True,
    ),
    "predictive-lcmd": Strategy(
        Predictive(num_dimensions=512, scaling="margin"),
        LCMD(),
        "predictive space, LCMD (largest cluster, maximum distance) from labelled points or the origin",
        **_STORED_LABELLED,
    ),
    "greedy-logdet": Strategy(
        Predictive(num_dimensions=None, scaling="information"),
        GreedyLogDet(),
        "jointly most informative labels",
    ),
    "variance-reduction": Strategy(
        PredictiveCovariance(),
        VarianceReduction(),
        "lowest predictive variance at the target, given the labels of the batch",
        uses_target=True,
        **_STORED,
    ),
    "epig": Strategy(
        PredictiveInformation(),
        TopB(),
        "most information about labels at the target, point by point",
        uses_target=True,
    ),
    "k-center": Strategy(
        features,
        KCenter(),
        "farthest first from labelled points or the mean, in the model's features",
        **_FEATURES,
    ),
    "k-medoids": Strategy(
        features, KMedoids(), "centres of clusters of the model's features", streams=True, needs_model=False
    ),
    "lcmd": Strategy(
        features,
        LCMD(),
        "LCMD (largest cluster, maximum distance) from labelled points or the mean, in the model's features",
        **_FEATURES,
    ),
    "typiclust": Strategy(
        features,
        TypiClust(),
        "most typical points of the largest clusters without labels, in the model's features",
        uses_labelled=True,
        needs_model=False,
    ),
    "uncertainty-herding": Strategy(
        coverage_score,
        UncertaintyHerding(),
        "widest coverage of the pool, weighted by uncertainty, in the model's features",
        uses_labelled=True,
        needs_model=False,
    ),
    "random": Strategy(_no_score, UniformRandom(), "at random, the baseline", needs_model=False),
}


def find_strategy(strategy: str | Strategy, **options: Any) -> Strategy:
    """Return a strategy by its name, with options; an unknown name raises an error with similar names.

    >>> find_strategy("predictive-lcmd", num_samples=64, num_dimensions=256).build
    Predictive(num_dimensions=256, scaling='margin')
    """
    if not isinstance(strategy, str | Strategy):
        raise InputError(f"a strategy is a name or a Strategy, got {type(strategy).__name__}")
    if isinstance(strategy, str) and strategy not in STRATEGIES:
        raise InputError(f"unknown strategy {strategy!r}; {suggestion(strategy, STRATEGIES)}")
    found = STRATEGIES[strategy] if isinstance(strategy, str) else strategy
    return found.with_options(**options)
