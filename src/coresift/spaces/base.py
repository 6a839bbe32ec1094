"""Spaces: the vectors L_1..L_N of a pool, seen through their inner products; what they are built from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, singledispatch
from typing import Any

import torch
from torch import Tensor

from coresift.checks import check_integer, check_shape
from coresift.errors import InputError
from coresift.limits import CLOSED_FORM_BYTES
from coresift.pool import Pool
from coresift.posteriors.base import FiniteSamples, Posterior

# Two points are the same if their squared distance is at most this share of the sum of their squared norms.
SAME = 1e-10
# The smallest norm, and one over the largest, whose inner products can be squared and summed in float64.
SMALLEST_NORM = 1e-140


@dataclass(frozen=True)
class Problem:
    """Holds all that a space or a score may be built from.

    Attributes
    ----------
    pool : the unlabelled points.
    model : the posterior, if there is one; `posterior` raises where a strategy needs one and there is none.
    generator : for all random draws.
    labelled : (M, ...) labelled points, in the form of the pool's rows.
    target : (T, ...) where the model will be used, in the same form; ``None`` is the pool itself.
    features, labelled_features : where distances are measured, instead of in the model's own features.
    points : a pool whose equal rows are duplicates, where this is not ``pool``.
    num_samples : J, how many posterior samples to draw.
    exact : whether to use closed forms where there are any.
    memory : bytes for the libraries and the space; vectors that do not fit go to a temporary file. ``None``
        is no limit.
    """

    pool: Pool
    model: Posterior | None = None
    _: KW_ONLY
    generator: torch.Generator = field(default_factory=torch.Generator)
    labelled: Tensor | None = None
    target: Tensor | None = None
    features: Pool | None = None
    labelled_features: Tensor | None = None
    points: Pool | None = None
    num_samples: int = 256
    exact: bool = True
    memory: int | None = None

    @property
    def posterior(self) -> Posterior:
        if self.model is None:
            raise InputError(
                "this strategy needs a model: pass posterior=, probs= or means= and variances=; "
                "'random' and 'k-center' do without"
            )
        return self.model

    def draw(self) -> Any:
        """Draw theta_1..theta_J from the posterior."""
        return self.posterior.sample(check_integer(self.num_samples, 1, "num_samples"), self.generator)

    def closed_form(self, function: Any) -> Any:
        """Return what the posterior's type has registered with a `functools.singledispatch` function.

        ``None`` where there is nothing, or samples are wanted. A posterior with closed forms registers them
        with the functions named ``exact_...`` of spaces and scores.
        """
        found = function.dispatch(type(self.posterior))
        return found if self.exact and found is not function.dispatch(object) else None

    def check_labelled_features(self) -> None:
        """Raise where labelled points come without features, or not as many as there are features."""
        if self.features is None or self.labelled is None:
            return
        if self.labelled_features is None:
            raise InputError(
                "labelled points need features too: pass features=(features of the pool, features of the "
                "labelled points)"
            )
        if len(self.labelled) != len(self.labelled_features):
            raise InputError(
                f"labelled= holds {len(self.labelled)} points, but features= those of "
                f"{len(self.labelled_features)} labelled points"
            )


def default_num_samples(budget: int, model: Posterior | None = None) -> int:
    """Return J, the number of posterior samples for a batch of ``budget`` points.

    In J dimensions about J points reproduce the whole pool, and further choices mean nothing. Therefore J is
    twice the budget: at least 128, since inner products have a relative error of about 1/sqrt(J), and at most
    1024, since memory and time grow with J. A ``model`` of which only K samples are known, such as an
    ensemble, gives all of them, again up to 1024: to leave some out at random would make the batch depend on
    the seed.

    >>> [default_num_samples(budget) for budget in (10, 200, 5000)]
    [128, 400, 1024]
    """
    known = model.num_samples if isinstance(model, FiniteSamples) else 0
    return min(max(2 * check_integer(budget, 1, "budget"), 128, known), 1024)


class Space(ABC):
    """The pool's points as vectors L_1..L_N of a Hilbert space.

    The distance between points n and i is ||L_n - L_i||.

    An *element* is a vector of the Hilbert space, such as L(w) = sum_n w_n L_n. A float64 tensor represents
    it: its D numbers where vectors are stored, the weights w and the N inner products with the pool where
    there are closed forms. To add or scale elements is to add or scale these tensors. Selectors need not know
    which they are, so each algorithm is written once. All tensors are on the same device.

    Seven members make a space: `norms`, `total`, `vector`, `inner`, `inner_at`, `dot` and `gram`. The others
    have defaults. A space that does not keep all norms in memory, as on Ray, goes without `norms`. It defines
    `__len__`, and registers its own `norms_at`, `norm_sum` and `selectable`.

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
        """(...) <x, y> of any number of elements x (..., *) with one y, all sums of points of the pool."""

    @abstractmethod
    def gram(self, index: Tensor) -> Tensor:
        """(k, k) float64, inner products among the points of ``index``."""

    def anchors(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield elements (k, ...) and squared norms (k,) of the labelled points, a few at a time.

        Selectors that measure distances begin with these points as centres.
        """
        return iter(())


# Three questions about norms. A space that does not keep all norms in memory registers its own answers.


@singledispatch
def norms_at(space: Space, index: Tensor) -> Tensor:
    """(k,) float64 on the device of the space, the norms of the points ``index``, a tensor there."""
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
        raise out_of_range(f"the largest vector has a norm of {largest:.3g},")
    return space.norms > 0


def out_of_range(what: str) -> InputError:
    """Return the error to raise where float64 cannot hold what is computed from the vectors."""
    return InputError(
        f"{what} out of the range of float64 arithmetic; measure the pool's columns in other units, so that "
        "their numbers are of about size one"
    )


class KernelSpace(Space):
    """A space whose inner products are computed in closed form, one column at a time: O(N) memory.

    An element is a (2, N) tensor: the weights of the points that it is a sum of, and its N inner products
    with the pool. Labelled points have no weights, so no `dot`.
    """

    bytes_per_point: int = CLOSED_FORM_BYTES  # memory

    @abstractmethod
    def column(self, n: int) -> Tensor:
        """(N,) the inner products <L_n, L_i> for all i."""

    @abstractmethod
    def row_sums(self) -> Tensor:
        """(N,) the sums <L, L_n>."""

    @cached_property
    def _total(self) -> Tensor:
        return torch.stack([torch.ones_like(self.norms), self.row_sums()])

    def total(self) -> Tensor:
        return self._total

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
        check_shape(matrix, (len(matrix), len(matrix)), "a Gram matrix")
        self.matrix = matrix.double()
        self.norms = self.matrix.diagonal().clamp(min=0).sqrt()

    def row_sums(self) -> Tensor:
        return self.matrix.sum(0)

    def column(self, n: int) -> Tensor:
        return self.matrix[n]

    def gram(self, index: Tensor) -> Tensor:
        return self.matrix[index][:, index]
