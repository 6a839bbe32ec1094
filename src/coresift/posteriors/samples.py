"""Models known by samples: how a network, an ensemble or a dropout model of your own comes in.

Predictions that are already computed are themselves the pool: a row holds the K samples' predictions for one
point. Where predictions must be computed chunk by chunk, pass a function instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, MixtureSameFamily, Normal
from torch.nn.functional import logsigmoid

from coresift import limits
from coresift.checks import check_finite, check_probabilities, check_samples, check_shape
from coresift.errors import InputError
from coresift.pool import Pool
from coresift.posteriors.base import Posterior

# A tree or a saturated softmax gives probability zero where it means "not seen". With log 0, one sample would
# outweigh all others; therefore probabilities are floored before they are compared.
FLOOR = 1e-6

Family = TypeVar("Family", bound=Distribution)


class _Finite:
    """Draws from K samples, of which no more are known, without repetition."""

    num_samples: int

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        return choose(self.num_samples, num, generator)


@dataclass(frozen=True)
class ClassSamples(_Finite):
    """Reads class probabilities of K posterior samples; a pool row is a (K, C) table.

    >>> probs_N_K_C = torch.tensor([[[0.9, 0.1], [0.1, 0.9]]])
    >>> ClassSamples(num_samples=2).predictive(probs_N_K_C).probs
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """

    num_samples: int

    def conditional(self, x: Tensor, theta: Tensor) -> Categorical:
        probs = self._checked(x)[:, theta].transpose(0, 1)  # (J, n, C)
        return Categorical(probs=probs, validate_args=False)

    def predictive(self, x: Tensor) -> Categorical:
        def mean(rows: Tensor) -> Categorical:
            return Categorical(probs=mean_over(self._checked(rows).transpose(0, 1)), validate_args=False)

        return by_blocks(mean, x, x[:1].numel())

    def _checked(self, x: Tensor) -> Tensor:
        check_shape(x, (None, self.num_samples, None), "a chunk of class probabilities")
        check_probabilities(x)
        # In float64: where samples differ only in the last digits, float32 would leave only rounding.
        return _floored(x.double())


@dataclass(frozen=True)
class GaussianSamples(_Finite):
    """Reads Gaussian predictions of K posterior samples; a pool row is a (K, 2) table of means and variances.

    The predictive, a mixture of K Gaussians, is replaced by the Gaussian of the same mean and variance. The
    expected log-likelihood is then still exact, and only the entropy, a constant in theta, is an upper bound.
    """

    num_samples: int

    def conditional(self, x: Tensor, theta: Tensor) -> Normal:
        mean, variance = self._checked(x)[:, theta].permute(2, 1, 0)  # (J, n) each
        return Normal(mean, variance.sqrt(), validate_args=False)

    def predictive(self, x: Tensor) -> Normal:
        return _matched_normal(*self._checked(x).permute(2, 1, 0))

    def _checked(self, x: Tensor) -> Tensor:
        check_shape(x, (None, self.num_samples, 2), "a chunk of means and variances")
        if bool((x[..., 1] <= 0).any()):
            raise InputError(f"a variance is {float(x[..., 1].min()):.3g}, expected positive numbers")
        return x.double()


@dataclass(frozen=True)
class SampledPredictions(_Finite):
    """Wraps a function of a chunk that returns the predictions of K posterior samples at once.

    It maps x (n, ...) to class probabilities (K, n, C), or to means and variances (K, n, 2) with
    ``classes=False``. The k-th sample must be the same for every chunk: the same ensemble member, the same
    dropout mask.

    >>> votes = SampledPredictions(lambda x: torch.softmax(x * torch.ones(4, 1, 1), -1), num_samples=4)
    >>> votes.predictive(torch.zeros(1, 2)).probs
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """

    function: Callable[[Tensor], Tensor]
    num_samples: int
    classes: bool = True

    @property
    def _table(self) -> ClassSamples | GaussianSamples:
        return (ClassSamples if self.classes else GaussianSamples)(self.num_samples)

    def conditional(self, x: Tensor, theta: Tensor) -> Distribution:
        return self._table.conditional(self.function(x).transpose(0, 1), theta)

    def predictive(self, x: Tensor) -> Distribution:
        return self._table.predictive(self.function(x).transpose(0, 1))


@dataclass(frozen=True)
class FunctionPosterior:
    """Wraps a function of a chunk and one posterior sample that returns a torch Distribution.

    ``function(x, theta_j)`` has batch shape (n,); ``samples`` are theta_1..theta_K, anything the function
    understands: state dicts, networks, seeds. The predictive is the mixture over all K samples: exact for
    classes, the Gaussian of the same mean and variance for Gaussians, a `MixtureSameFamily` for others.

    >>> posterior = FunctionPosterior(lambda x, slope: Normal(slope * x[:, 0], 1.0), [0.0, 1.0, 2.0])
    >>> posterior.predictive(torch.tensor([[3.0]])).mean
    tensor([3.])
    """

    function: Callable[[Tensor, Any], Distribution]
    samples: tuple[Any, ...] | list[Any]

    def __post_init__(self) -> None:
        if not len(self.samples):
            raise InputError("a posterior needs at least one sample")

    @property
    def num_samples(self) -> int:
        return len(self.samples)

    def sample(self, num: int, generator: torch.Generator) -> list[Any]:
        return [self.samples[int(k)] for k in choose(len(self.samples), num, generator)]

    def conditional(self, x: Tensor, theta: list[Any]) -> Distribution:
        return stack([self.function(x, sample) for sample in theta])

    def predictive(self, x: Tensor) -> Distribution:
        samples = list(self.samples)
        numbers = len(samples) * numbers_a_row(stack([self.function(x[: limits.TRIAL_ROWS], samples[0])]))
        return by_blocks(lambda rows: mixture(self.conditional(rows, samples)), x, numbers)


@singledispatch
def mixture(each: Distribution) -> Distribution:
    """Return the mixture of K equal parts (K, n) -> (n,), in the form that `FunctionPosterior` names."""
    names = _names(each)
    parts = _joined([each], lambda values: values[0].movedim(0, 1), names)
    weights = torch.ones(parts.batch_shape, device=getattr(parts, names[0]).device)
    return MixtureSameFamily(Categorical(probs=weights), parts)


@mixture.register
def _(each: Categorical) -> Distribution:
    return Categorical(probs=mean_over(each.probs))


@mixture.register
def _(each: Bernoulli) -> Distribution:
    # Logits keep how near to one a probability is that rounds to one.
    logits = each.logits.double()
    yes, no = (logsigmoid(side * logits).logsumexp(0) for side in (1, -1))
    agreed = (logits == logits[0]).all(0)
    return Bernoulli(logits=torch.where(agreed, logits[0], yes - no))


@mixture.register
def _(each: Normal) -> Distribution:
    return _matched_normal(each.mean, each.variance)


@mixture.register
def _(each: Independent) -> Distribution:  # type: ignore[type-arg]
    if not isinstance(each.base_dist, Normal):
        return mixture.dispatch(object)(each)
    return Independent(mixture(each.base_dist), each.reinterpreted_batch_ndims, validate_args=False)


def mean_over(each: Tensor) -> Tensor:
    """Return (...) the mean of (K, ...), exact where all K are equal, which a rounded sum is not."""
    return each[0] + (each - each[0]).mean(0)


def numbers_a_row(each: Distribution) -> int:
    """Return how many numbers J samples, of batch shape (J, n), predict for one row."""
    width = each.probs.shape[-1] if isinstance(each, Categorical) else each.event_shape.numel()
    return int(each.batch_shape[0] * width)


@torch.no_grad()
def first_prediction(posterior: Posterior, pool: Pool, theta: Any) -> Distribution:
    """Return what samples predict for a pool's first row; raise where they cannot disagree."""
    row = next(pool.chunks()).x[:1]
    check_finite(row)
    each = posterior.conditional(row, theta)
    check_samples(each)
    return each


def rows_at_a_time(each: Distribution, most: int) -> int:
    """Return how many rows to map at a time, a power of two, given the predictions for a few of them.

    A part of a pool that begins at a multiple of 8192 is then cut at the same rows as the whole.
    """
    numbers = numbers_a_row(each)
    # A block of 64 rows is faster than single rows, as long as it is not too large.
    size = max(limits.MAPPED_NUMBERS // numbers, min(64, limits.PREDICTIVE_NUMBERS // numbers), 1)
    return int(2 ** int(math.log2(min(size, most))))


def by_blocks(predictive: Callable[[Tensor], Family], x: Tensor, numbers: int) -> Family:
    """Return ``predictive(x)``, of batch shape (n,), computed for as many rows at a time as fit into memory.

    It has one of the forms of `mixture`; the samples predict so many ``numbers`` for one row.
    """
    size = max(limits.PREDICTIVE_NUMBERS // max(numbers, 1), 1)
    whole: Family = _concatenated([predictive(rows) for rows in torch.split(x, size)])
    return whole


def categorical(logits: Tensor) -> Categorical:
    """Return classes of probability softmax(logits), floored and in float64 as in `ClassSamples`."""
    return Categorical(probs=_floored(logits.double().softmax(-1)), validate_args=False)


def gaussian(mean: Tensor, std: Tensor) -> Distribution:
    """Return Gaussians of batch shape (J, n) from (J, n, O), in float64; several outputs are independent."""
    normal = Normal(mean.double(), std.double(), validate_args=False)
    if mean.shape[-1] > 1:
        return Independent(normal, 1, validate_args=False)
    return Normal(normal.loc.squeeze(-1), normal.scale.squeeze(-1), validate_args=False)


def _floored(probs: Tensor) -> Tensor:
    # With thousands of classes at this floor, a sure point would seem unsure.
    probs = probs.clamp(min=min(FLOOR, 1e-5 / probs.shape[-1]))
    return probs / probs.sum(-1, keepdim=True)


def stack(distributions: list[Distribution]) -> Distribution:
    """Return one distribution of batch shape (J, n) from J of one family with batch shape (n,)."""
    families = {type(distribution).__name__ for distribution in distributions}
    if len(families) > 1:
        raise InputError(f"the function returned several families: {', '.join(sorted(families))}")
    if not isinstance(distributions[0], Distribution):
        raise InputError(f"the function returned {families.pop()}, expected a torch Distribution")
    stacked: Distribution = _joined(distributions, torch.stack, _names(distributions[0]))
    return stacked


def _joined(parts: Any, join: Callable[..., Tensor], names: list[str]) -> Any:
    """Return one distribution from parts of a family, whose arguments of these names are joined."""
    arguments = {name: join([getattr(part, name) for part in parts]) for name in names}
    return type(parts[0])(**arguments, validate_args=False)


def _concatenated(parts: list[Any]) -> Any:
    """Return one distribution of batch shape (n,) from parts of one family, each for some of the rows."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Independent):
        base = _concatenated([part.base_dist for part in parts])
        return Independent(base, first.reinterpreted_batch_ndims, validate_args=False)
    if isinstance(first, MixtureSameFamily):
        weights = _concatenated([part.mixture_distribution for part in parts])
        return MixtureSameFamily(weights, _concatenated([part.component_distribution for part in parts]))
    return _joined(parts, torch.cat, ["probs"] if isinstance(first, Categorical) else _names(first))


def _names(distribution: Distribution) -> list[str]:
    """Return the names of the arguments that rebuild a distribution."""
    names = list(distribution.arg_constraints)
    if "logits" in names and "probs" in names:
        names.remove("probs")
    if "scale_tril" in names:
        names = ["loc", "scale_tril"]
    if not names or not all(hasattr(distribution, name) for name in names):
        raise InputError(
            f"{type(distribution).__name__} has no plain parameters to stack; write a posterior with "
            "sample, conditional and predictive instead"
        )
    return names


def _matched_normal(mean: Tensor, variance: Tensor) -> Normal:
    """Return (n,) the Gaussian with the mean and variance of a mixture of K equal parts (K, n)."""
    spread = mean.var(0, correction=0)
    return Normal(mean.mean(0), (variance.mean(0) + spread).sqrt(), validate_args=False)


def own_generator() -> torch.Generator:
    """Return the generator of the samples that a predictive averages over; nobody chooses its seed."""
    return torch.Generator().manual_seed(0x5EED_0F_0A_C0DE)


def choose(available: int, num: int, generator: torch.Generator) -> Tensor:
    """Return (min(num, available),) distinct indices; all of them, in order, where ``num`` is as many."""
    if num >= available:
        return torch.arange(available)
    return torch.randperm(available, generator=generator)[:num].sort().values
