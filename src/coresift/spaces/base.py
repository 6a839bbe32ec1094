"""Spaces: the vectors L_1..L_N of a pool, seen only through inner products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coresift.types import Index, InputError

if TYPE_CHECKING:
    from coresift.spaces.centres import Centres

# Labelled points looked at together: one pass over the pool serves them all.
ANCHORS = 64
# Two points are the same if their squared distance is below this share of their squared norms.
SAME = 1e-10
# The smallest norm, and one over the largest, whose inner products can be squared and summed in float64.
LEAST_NORM = 1e-140


class Space(ABC):
    """The pool's points as vectors of a Hilbert space.

    An element of the space, such as L(w) = sum_n w_n L_n, is held by its *coordinates*: a float64 tensor
    that is linear in the element. Stored vectors use their J numbers, closed forms the N inner products
    with the pool. Selectors add and scale coordinates without knowing which, so each algorithm is
    written once.

    Attributes
    ----------
    norms : (N,) float64, ||L_n||.
    resolution : relative rounding error of an inner product; nearer points count as the same.
    scale : the unit of norms and coordinates, a power of two. It is one unless the vectors are so large or
        so small that their squares would not fit into a float.
    additive : whether the sum of the vectors is what the pool says as a whole, as it is for likelihoods and
        their gradients, but not for features.
    """

    norms: Tensor
    resolution: float = 1e-14
    scale: float = 1.0
    additive: bool = True

    def __len__(self) -> int:
        return len(self.norms)

    @abstractmethod
    def total(self) -> Tensor:
        """Coordinates of L = sum_n L_n."""

    def norm_at(self, index: Tensor) -> Tensor:
        """(k,) float64, the norms of the points ``index``."""
        return self.norms[index]

    def norm_total(self) -> float:
        """The sum of all norms."""
        return float(self.norms.sum())

    @abstractmethod
    def coordinates(self, n: int) -> Tensor:
        """Coordinates of L_n."""

    @abstractmethod
    def inner(self, element: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """<element, L_n> for every n, block by block, in order: pairs of a slice and its (..., n) values, for
        any number of elements.
        """

    @abstractmethod
    def inner_at(self, element: Tensor, index: Tensor) -> Tensor:
        """(..., k) float64, <element, L_n> for the k points of ``index`` and any number of elements."""

    @abstractmethod
    def gram(self, index: Tensor) -> Tensor:
        """(k, k) float64, inner products among the points of ``index``."""

    @abstractmethod
    def squared_total(self) -> float:
        """<L, L>."""

    def factor(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """A (r, k) and y (r,) with ||A w - y||^2 = ||L - L(w)||^2 + constant, for weights w on ``index``."""
        # A^T A = gram, A^T y = <L, L_n>: eigenvectors give such an A even where points depend on each other.
        # Of unit vectors: short ones would be lost beside long ones.
        gram = self.gram(index)
        norms = gram.diagonal().clamp_min(torch.finfo(gram.dtype).tiny).sqrt()
        values, vectors = torch.linalg.eigh(gram / norms / norms[:, None])
        kept = values > values[-1] * len(values) * 1e-13
        root, vectors = values[kept].sqrt(), vectors[:, kept]
        return root[:, None] * vectors.mT * norms, vectors.mT @ (
            self.inner_at(self.total(), index) / norms
        ) / root

    def anchors(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Coordinates (k, ...) and squared norms (k,) of the labelled points that were mapped along with the
        pool, a few at a time.
        """
        return iter(())

    def check_scale(self) -> None:
        """Raise where norms are too large or too small for float64 to hold products of inner products."""
        largest = float(self.norms.max())
        if largest != 0 and not LEAST_NORM <= largest <= 1 / LEAST_NORM:  # also where it is NaN
            raise InputError(
                f"the largest vector has a norm of {largest:.3g}, out of the range of float64 arithmetic; "
                "measure the pool's columns in other units, so that their numbers are of about size one"
            )

    @property
    def selectable(self) -> Tensor:
        """(N,) bool, a new mask: a vector of norm zero carries no information and is never chosen."""
        return self.norms > 0

    def scan(self, allowed: Tensor, once: bool = False) -> Search:
        """To find winners among the points of a mask (N,), which may lose points as time goes by.

        With ``once``, a winner that a step was made to is taken out before the next is asked for.
        """
        return EveryTime(self, allowed)

    def centres(self, allowed: Tensor, pending: Index) -> Centres:
        """Distances to the nearest of a growing set of points."""
        from coresift.spaces.centres import Centres

        return Centres(self, allowed, pending)

    def argmax(self, element: Tensor, allowed: Tensor) -> int:
        """The allowed point with the largest <element, L_n> / ||L_n||; ties go to the lower index.

        ``allowed`` is an (N,) mask with at least one point of norm above zero.
        """
        best, where = -torch.inf, -1
        for part, values in self.inner(element):
            cosine = torch.where(allowed[part], values / self.norms[part], -torch.inf)
            position = int(cosine.argmax())
            if float(cosine[position]) > best:
                best, where = float(cosine[position]), part.start + position
        if where < 0:
            raise FloatingPointError("no inner product is a number: the vectors' scales are out of range")
        return where


class Search(ABC):
    """Finds the allowed point with the largest <element, L_n> / ||L_n||; ties go to the lower index.

    Attributes
    ----------
    allowed : (N,) bool; points may be taken out of it as time goes by, and none put in.
    """

    allowed: Tensor

    @abstractmethod
    def argmax(self, element: Tensor) -> int: ...

    def foresee(
        self,
        target: Tensor,
        position: Tensor,
        with_target: float,
        square: float,
        sigma: float,
        tolerance: float,
    ) -> list[int]:
        """The winners of the next Frank-Wolfe steps, where it is quicker to find many at once.

        Parameters
        ----------
        target, position : coordinates of the target and of L(w).
        with_target, square : <target, L(w)> and <L(w), L(w)>.
        sigma : the sum of the norms of the target's points.
        tolerance : the target is reached at this distance, relative to its length.
        """
        return []


class EveryTime(Search):
    """The search that looks at all points each time."""

    def __init__(self, space: Space, allowed: Tensor) -> None:
        self.space, self.allowed = space, allowed

    def argmax(self, element: Tensor) -> int:
        return self.space.argmax(element, self.allowed)


class KernelSpace(Space):
    """A space whose inner products are computed in closed form, a column at a time: O(N) memory.

    The coordinates of an element are its N inner products with the pool.
    """

    @abstractmethod
    def coordinates(self, n: int) -> Tensor:
        """(N,) the column <L_n, L_m> for all m."""

    @abstractmethod
    def total(self) -> Tensor:
        """(N,) the row sums <L, L_n>."""

    def inner(self, element: Tensor) -> Iterator[tuple[slice, Tensor]]:
        yield slice(0, len(self)), element

    def inner_at(self, element: Tensor, index: Tensor) -> Tensor:
        return element[..., index]

    def squared_total(self) -> float:
        return float(self.total().sum())


class GramSpace(KernelSpace):
    """A space given by its whole matrix of inner products (N, N), for small pools and for tests."""

    def __init__(self, matrix: Tensor) -> None:
        size = len(matrix)
        if matrix.shape != (size, size):
            raise InputError(f"a Gram matrix is square, got shape {tuple(matrix.shape)}")
        self.matrix = matrix.double()
        self.norms = self.matrix.diagonal().clamp(min=0).sqrt()

    def total(self) -> Tensor:
        return self.matrix.sum(0)

    def coordinates(self, n: int) -> Tensor:
        return self.matrix[n]

    def gram(self, index: Tensor) -> Tensor:
        return self.matrix[index][:, index]
