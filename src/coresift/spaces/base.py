"""Spaces: the vectors L_1..L_N of a pool, seen only through their inner products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import singledispatch

import torch
from torch import Tensor

from coresift.types import InputError

# Two points are the same if their squared distance is below this share of the sum of their squared norms.
SAME = 1e-10
# The smallest norm, and one over the largest, whose inner products can be squared and summed in float64.
SMALLEST_NORM = 1e-140


class Space(ABC):
    """The pool's points as vectors of a Hilbert space.

    An *element* of the space, such as L(w) = sum_n w_n L_n, is a float64 tensor that is linear in the
    element. Stored vectors use their J numbers; closed forms use the weights w and the N inner products with
    the pool. Selectors add and scale elements without knowing which, so each algorithm is written once. All
    tensors are on the same device.

    Seven members make a space: `norms`, `total`, `vector`, `inner`, `inner_at`, `dot` and `gram`. The others
    have defaults.

    Attributes
    ----------
    norms : (N,) float64, ||L_n||.
    resolution : relative rounding error of an inner product; points nearer than that count as the same.
    scale : the unit of norms and elements, a power of two. It is one unless the vectors are so large or so
        small that their squares would not fit into a float.
    additive : whether the sum of the vectors describes the whole pool, as for likelihoods and their
        gradients, but not for features.
    """

    norms: Tensor
    resolution: float = 1e-14
    scale: float = 1.0
    additive: bool = True

    def __len__(self) -> int:
        return len(self.norms)

    @abstractmethod
    def total(self) -> Tensor:
        """The element L = sum_n L_n."""

    @abstractmethod
    def vector(self, n: int) -> Tensor:
        """The element L_n."""

    @abstractmethod
    def inner(self, element: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Compute <element, L_n> for every n, block by block in order, for any number of elements (..., *).

        Yields pairs of a slice of the pool and its values (..., n).
        """

    @abstractmethod
    def inner_at(self, element: Tensor, index: Tensor) -> Tensor:
        """(..., k) float64, <element, L_n> for the k points of ``index`` and any number of elements."""

    @abstractmethod
    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        """(...) <x, y> of any number of elements x (..., *) with one y, all of them sums of points of the
        pool.
        """

    @abstractmethod
    def gram(self, index: Tensor) -> Tensor:
        """(k, k) float64, inner products among the points of ``index``."""

    def anchors(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Elements (k, ...) and squared norms (k,) of the labelled points that were mapped along with the
        pool, a few at a time.
        """
        return iter(())


# What a space need not have all norms in memory for. Spaces that do not keep them register their own answers.


@singledispatch
def norms_at(space: Space, index: Tensor) -> Tensor:
    """(k,) float64, the norms of the points ``index``."""
    return space.norms[index]


@singledispatch
def norm_sum(space: Space) -> float:
    """The sum of all norms."""
    return float(space.norms.sum())


@singledispatch
def selectable(space: Space) -> Tensor:
    """(N,) bool, a new mask: a vector of norm zero carries no information and is never chosen.

    Raises where norms are too large or too small for float64 to hold products of inner products.
    """
    largest = float(space.norms.max())
    if largest != 0 and not SMALLEST_NORM <= largest <= 1 / SMALLEST_NORM:  # also where it is NaN
        raise InputError(
            f"the largest vector has a norm of {largest:.3g}, out of the range of float64 arithmetic; "
            "measure the pool's columns in other units, so that their numbers are of about size one"
        )
    return space.norms > 0


class KernelSpace(Space):
    """A space whose inner products are computed in closed form, one column at a time: O(N) memory.

    An element is a (2, N) tensor: the weights of the points that it is a sum of, and its N inner products
    with the pool. Labelled points have no weights, so no `dot`.
    """

    @abstractmethod
    def column(self, n: int) -> Tensor:
        """(N,) the inner products <L_n, L_m> for all m."""

    @abstractmethod
    def row_sums(self) -> Tensor:
        """(N,) the sums <L, L_n>."""

    def total(self) -> Tensor:
        return torch.stack([torch.ones_like(self.norms), self.row_sums()])

    def vector(self, n: int) -> Tensor:
        column = self.column(n)
        element = torch.stack([torch.zeros_like(column), column])
        element[0, n] = 1.0
        return element

    def inner(self, element: Tensor) -> Iterator[tuple[slice, Tensor]]:
        yield slice(0, len(self)), element[..., 1, :]

    def inner_at(self, element: Tensor, index: Tensor) -> Tensor:
        return element[..., 1, index]

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        return x[..., 0, :] @ y[1]


def labelled_elements(products: Tensor) -> Tensor:
    """(k, 2, N) the elements of labelled points in a `KernelSpace`, given their inner products (k, N)."""
    return torch.stack([torch.zeros_like(products), products], 1)


class GramSpace(KernelSpace):
    """A space given by its whole matrix of inner products (N, N), for small pools and for tests."""

    def __init__(self, matrix: Tensor) -> None:
        size = len(matrix)
        if matrix.shape != (size, size):
            raise InputError(f"a Gram matrix is square, got shape {tuple(matrix.shape)}")
        self.matrix = matrix.double()
        self.norms = self.matrix.diagonal().clamp(min=0).sqrt()

    def row_sums(self) -> Tensor:
        return self.matrix.sum(0)

    def column(self, n: int) -> Tensor:
        return self.matrix[n]

    def gram(self, index: Tensor) -> Tensor:
        return self.matrix[index][:, index]
