"""The three questions that selectors ask about a pool, and the engines that answer them.

*Which vector points most along this one?* is answered by a `CosineSearch`, *which point is farthest from the
centres so far?* by `CentreDistances`, and *whose label would tell most about the targets?* by `LabelGains`.
An engine is the code that answers on one kind of device.

A selector that scans the pool only by these questions is written once and runs on every engine; which other
calls every engine answers is in docs/extending.md. Frank-Wolfe
and GIGA ask the first one, LCMD and k-center the second; k-means++ has points drawn at random by
`CentreDistances.draw`. `VarianceReduction` asks the third. A new selector calls `cosine_search`,
`centre_distances` or `label_gains` in its `_choose`, or is a subclass of
`selectors.distance.DistanceSelector`; docs/extending.md has examples. If it writes its step as a function of
tensors and passes it to `repeat`, a GPU makes many steps at a time.

These functions choose who answers in two steps: by the type of the space and, if it is a `VectorSpace`, by
the device of its vectors. A space of a new type, as on Ray, registers its own answers with ``register`` of
each function, such as ``cosine_search.register``. A new kind of device is a module with one call of
`register_engine`; it is listed in `_MODULES`, or imported before the first search.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from coresift.spaces.base import Space
from coresift.spaces.vectors import VectorSpace
from coresift.types import Index


class CosineSearch(ABC):
    """Finds the open point whose vector has the largest cosine with an element of the space.

    Elements, and all tensors that it returns, are on the device of the space. Indices that are closed or
    reopened may be on the CPU.

    Attributes
    ----------
    space : whose vectors are searched.
    run_length : the largest number of steps that `repeat` makes without the host in between. Where it is one,
        the host sees each step before the next.
    """

    space: Space
    run_length: int = 1

    @abstractmethod
    def argmax(self, element: Tensor, orthogonal_to: Tensor | None = None) -> Tensor:
        """Find the open point with the largest <element, L_n> / ||L_n||.

        If ``orthogonal_to`` is given, an element u of norm one, the norm of L_n is replaced by that of its
        part orthogonal to u: <element, L_n> / sqrt(||L_n||^2 - <u, L_n>^2). GIGA asks for this.

        Returns a 0-dimensional integer tensor: ties go to the lower index, and -1 means that no point is
        open.
        """

    def vector(self, n: Tensor) -> Tensor:
        """Look up the element L_n of a 0-dimensional index, on a GPU without asking the host.

        For an index of -1 it is any element, as long as its numbers are finite.
        """
        return self.space.vector(max(int(n), 0))

    @abstractmethod
    def close(self, index: Tensor) -> None:
        """Take the points ``index`` (k,), or one 0-dimensional index, out of the search; -1 stands for no
        point.
        """

    @abstractmethod
    def reopen(self, index: Tensor) -> None:
        """Put the points ``index`` (k,) back into the search.

        Steps of `repeat` may close points. A selector that does not accept some of these steps puts their
        points back.
        """

    def repeat(self, step: Step, inputs: Tensors, state: Tensors, times: int) -> Tensors:
        """Make ``times`` steps, ``state = step(self, inputs, state)``, and return all states on the way.

        Parameters
        ----------
        step : a function that may call `argmax`, `vector` and `close`. A GPU records its tensor operations
            once and replays them. Therefore they must be the same in each step, whatever the values. Each
            function object is recorded anew: define the function once, and pass the same one in each call.
        inputs : tensors that stay the same over these steps, such as the target.
        state : tensors that change; shapes and types stay the same.
        times : at most `run_length`.

        Returns the tensors of the state after each step, each with one more axis of size ``times`` in front.
        """
        states = [state := step(self, inputs, state) for _ in range(times)]
        if times == 1:  # without a copy
            return tuple(part[None] for part in state)
        return tuple(torch.stack(parts) for parts in zip(*states, strict=True))


class CentreDistances(ABC):
    """Keeps the squared distance from every point to the nearest of a growing set of centres.

    The first centres are the labelled points (`Space.anchors`) and the pending points. Where there are none,
    the origin is the first centre. The points nearest to centre k are cluster k.

    A point within rounding of a centre is a duplicate of it, at distance zero: one whose squared distance is
    at most `spaces.base.SAME` times the sum of both squared norms. For stored vectors that sum is taken as
    twice the squared norm of the centre, and squared distances too small for float32 are zero too.

    Attributes
    ----------
    run_length : the largest number of steps that `repeat` makes without the host in between.
    """

    run_length: int = 1
    _sums: Tensor

    @property
    def sums(self) -> Tensor:
        """(K,) float64 sum of the squared distances in each cluster, in the order in which centres were
        added.

        A GPU may have more entries than there are centres; those are zero.
        """
        return self._sums

    def largest_cluster(self) -> Tensor:
        """The 0-dimensional number of the cluster with the largest sum; ties go to the lower number."""
        return self.sums.argmax()

    @abstractmethod
    def farthest(self, cluster: Tensor | None = None) -> Tensor:
        """Find the open point farthest from its centre, in one cluster or in all.

        Returns a 0-dimensional integer tensor: ties go to the lower index, and -1 means that no open point is
        at a distance above zero.
        """

    @abstractmethod
    def add(self, n: Tensor) -> None:
        """Make the point of a 0-dimensional index a centre; -1 adds none."""

    @abstractmethod
    def draw(self, share: float) -> Tensor:
        """Find the open point at which the cumulative sum of squared distances reaches ``share`` of the
        whole.

        Returns a 0-dimensional integer tensor; -1 means that no open point is at a distance above zero.
        """

    @abstractmethod
    def radius(self) -> float:
        """The largest distance of any point to its nearest centre."""

    def spread(self) -> float:
        """The root of the sum of all squared distances."""
        return math.sqrt(max(float(self.sums.sum()), 0.0))

    def repeat(self, step: Callable[[Any], Tensor], times: int) -> Tensor:
        """Make ``times`` steps, at most `run_length`, and return (times,) what each returned.

        Parameters
        ----------
        step : calls `largest_cluster`, `farthest` and `add`, and returns the 0-dimensional index of the point
            that it made a centre, or -1. As for `CosineSearch.repeat`, its tensor operations must be the same
            in each step, and the function the same object in each call.
        """
        return torch.stack([step(self) for _ in range(times)])


class LabelGains(ABC):
    """Keeps, for every point, by how much its label would lower the summed variance of some targets.

    Vectors are in units of the points' noise: their inner products are the covariances of the noiseless
    outputs, and the noise of a label has variance one. The module `search.gains` has the formula. The targets
    are those of the space (`VectorSpace.target_moment`) or, where it has none, its own points.
    """

    @abstractmethod
    def argmax(self) -> Tensor:
        """Find the open point of the largest gain.

        Returns a 0-dimensional integer tensor: ties go to the lower index, and -1 means that no point is
        open.
        """

    @abstractmethod
    def add(self, n: Tensor) -> None:
        """Count the point of a 0-dimensional index as labelled from here on."""

    @abstractmethod
    def close(self, index: Tensor) -> None:
        """Take the points ``index`` (k,), or one 0-dimensional index, out of the search."""

    @abstractmethod
    def reopen(self, index: Tensor) -> None:
        """Put the points ``index`` (k,) back into the search."""

    @abstractmethod
    def remaining(self) -> float:
        """The root of the targets' summed variance, given the labels so far."""


Tensors = tuple[Tensor, ...]
# A step of `CosineSearch.repeat`: it maps the search, inputs and a state to the next state.
Step = Callable[[CosineSearch, Any, Any], Tensors]


@singledispatch
def cosine_search(space: Space, open: Tensor) -> CosineSearch:
    """Prepare the search for the largest cosine among the points of a mask.

    Parameters
    ----------
    space : decides by its type who answers.
    open : (N,) bool, the points that may be found, each of norm above zero. The search has a copy: to change
        which points it finds, call its `close` and `reopen`.
    """
    raise TypeError(f"nothing searches a {type(space).__name__}; register it with cosine_search.register")


@singledispatch
def centre_distances(space: Space, open: Tensor, pending: Index, budget: int) -> CentreDistances:
    """Prepare the distances to the first centres.

    Parameters
    ----------
    space : decides by its type who answers.
    open : (N,) bool, the points that may become centres; all points count in the sums.
    pending : points that are centres from the start.
    budget : how many centres will be added at most.
    """
    raise TypeError(f"nothing searches a {type(space).__name__}; register it with centre_distances.register")


@singledispatch
def label_gains(space: Space, open: Tensor, pending: Index) -> LabelGains:
    """Prepare the gains of labels, after those of the pending points.

    Parameters
    ----------
    space : decides by its type who answers.
    open : (N,) bool, the points that may be found. The search has a copy, as in `cosine_search`.
    pending : points that count as labelled from the start.
    """
    raise TypeError(f"nothing searches a {type(space).__name__}; register it with label_gains.register")


@dataclass(frozen=True)
class Engine:
    """What answers for stored vectors on one kind of device, a CPU or a GPU.

    Ray is not one of them, although users write ``Resources(engine="ray")``: its pool is a space of another
    type, `search.ray.RaySpace`, which registers its own answers.
    """

    cosine_search: Callable[[VectorSpace, Tensor], CosineSearch]
    centre_distances: Callable[[VectorSpace, Tensor, Index, int], CentreDistances]
    label_gains: Callable[[VectorSpace, Tensor, Index], LabelGains]


_ENGINES: dict[str, Engine] = {}
# The modules that call `register_engine`, imported when vectors on such a device are first searched.
_MODULES = {"cpu": "coresift.search.cpu", "cuda": "coresift.search.cuda"}


def register_engine(device_type: str, engine: Engine) -> None:
    """Let an engine answer for the stored vectors on devices of a type, such as "cuda"."""
    _ENGINES[device_type] = engine


def engine_for(device: torch.device) -> Engine:
    """The engine for a device; that of the CPU, which is plain torch, where there is no other."""
    if device.type not in _ENGINES:
        importlib.import_module(_MODULES.get(device.type, _MODULES["cpu"]))
    return _ENGINES.get(device.type) or _ENGINES["cpu"]


@cosine_search.register
def _(space: VectorSpace, open: Tensor) -> CosineSearch:
    return engine_for(space.device).cosine_search(space, open)


@centre_distances.register
def _(space: VectorSpace, open: Tensor, pending: Index, budget: int) -> CentreDistances:
    return engine_for(space.device).centre_distances(space, open, pending, budget)


@label_gains.register
def _(space: VectorSpace, open: Tensor, pending: Index) -> LabelGains:
    return engine_for(space.device).label_gains(space, open, pending)


def where_reached(weights: Tensor, level: float) -> int:
    """The first index where the cumulative sum is above a level; -1 where all weights are zero.

    Rounding may keep the whole sum from a level near it: then it is the last index of a weight above zero.
    """
    # right=True skips points of weight zero, on which the sum stands still.
    found = int(torch.searchsorted(weights.cumsum(0), level, right=True))
    if found < len(weights):
        return found
    positive = weights.nonzero()
    return int(positive[-1]) if len(positive) else -1
