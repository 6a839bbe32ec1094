"""Any model at all, through its samples: how a network, an ensemble or a dropout model of your own comes in.

Predictions that are already computed are themselves the pool: a row holds what the K samples say of one
point. Where the predictions must be computed chunk by chunk, hand in a function instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, MixtureSameFamily, Normal
from torch.nn.functional import logsigmoid

from coresift.checks import check_integer, check_probabilities, check_shape
from coresift.types import InputError

# A tree or a saturated softmax says "impossible" where it means "not seen": log 0 would make one sample's
# opinion outweigh everything, so probabilities are floored before they are compared.
FLOOR = 1e-6
# The floors of all classes together are at most this: of thousands of classes, each at FLOOR, a sure point
# would seem unsure.
_MOST_FLOORED = 1e-5
# Numbers that a predictive holds at a time, over all samples, a block of rows and what is said of each: a
# quarter of a gigabyte with what is computed on the way. A pool's own blocks of ten classes stay whole.
_AT_A_TIME = 2**23
# Numbers that a block of points holds while it is mapped, as a rule.
_WORKING_SET = 2**20
# Rows that a function is shown to see how much it says of one: single rows are where mistakes of shape hide.
_A_FEW = 16

Predictive = TypeVar("Predictive", bound=Distribution)


@dataclass(frozen=True)
class ClassSamples:
    """Class probabilities from K posterior samples; a pool row is a (K, C) table.

    >>> probs_N_K_C = torch.tensor([[[0.9, 0.1], [0.1, 0.9]]])
    >>> ClassSamples(num_samples=2).predictive(probs_N_K_C).probs
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """

    num_samples: int

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Positions of up to ``num`` of the K samples, without repetition."""
        return choose(self.num_samples, num, generator)

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
        # In float64: where samples agree but for a few digits, float32 would leave only rounding of them.
        return _floored(x.double())


@dataclass(frozen=True)
class GaussianSamples:
    """Gaussian predictions from K posterior samples; a pool row is a (K, 2) table of means and variances.

    The predictive, a mixture of K Gaussians, is replaced by the Gaussian of the same mean and variance:
    the expected log-likelihood under the mixture is then exact, and only the entropy, a constant in
    theta, is an upper bound.
    """

    num_samples: int

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Positions of up to ``num`` of the K samples, without repetition."""
        return choose(self.num_samples, num, generator)

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
class SampledPredictions:
    """A function of a chunk that returns what K posterior samples predict, all at once.

    Parameters
    ----------
    function : x (n, ...) -> class probabilities (K, n, C), or means and variances (K, n, 2) without classes.
        The k-th sample must be the same for every chunk: the same ensemble member, the same dropout mask.
    num_samples : K.
    classes : whether the function returns class probabilities.

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

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Positions of up to ``num`` of the K samples, without repetition."""
        return self._table.sample(num, generator)

    def conditional(self, x: Tensor, theta: Tensor) -> Distribution:
        return self._table.conditional(self.function(x).transpose(0, 1), theta)

    def predictive(self, x: Tensor) -> Distribution:
        return self._table.predictive(self.function(x).transpose(0, 1))


@dataclass(frozen=True)
class FunctionPosterior:
    """A function of a chunk and of one posterior sample that returns a torch Distribution.

    Parameters
    ----------
    function : (x, theta_j) -> Distribution with batch shape (n,).
    samples : theta_1..theta_K, anything the function understands: state dicts, networks, seeds.

    The predictive is the mixture over all K samples: exact for classes, the Gaussian of the same mean and
    variance for Gaussians, and a `MixtureSameFamily` for everything else.

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
        """Up to ``num`` of the samples, without repetition."""
        return [self.samples[int(k)] for k in choose(len(self.samples), num, generator)]

    def conditional(self, x: Tensor, theta: list[Any]) -> Distribution:
        return stack([self.function(x, sample) for sample in theta])

    def predictive(self, x: Tensor) -> Distribution:
        everyone = list(self.samples)
        numbers = len(everyone) * numbers_a_row(stack([self.function(x[:_A_FEW], everyone[0])]))
        return by_blocks(lambda rows: mixture(self.conditional(rows, everyone)), x, numbers)


def mixture(each: Distribution) -> Distribution:
    """The mixture of K equal parts (K, n) -> (n,), in the form that `FunctionPosterior` names."""
    if isinstance(each, Categorical):
        return Categorical(probs=mean_over(each.probs))
    if isinstance(each, Bernoulli):
        # Through logits, which know how near to one a probability is that rounds to one.
        logits = each.logits.double()
        yes, no = (logsigmoid(side * logits).logsumexp(0) for side in (1, -1))
        agreed = (logits == logits[0]).all(0)
        return Bernoulli(logits=torch.where(agreed, logits[0], yes - no))
    if isinstance(each, Normal):
        return _matched_normal(each.mean, each.variance)
    if isinstance(each, Independent) and isinstance(each.base_dist, Normal):
        return Independent(mixture(each.base_dist), each.reinterpreted_batch_ndims, validate_args=False)
    parts = _parameters(each, lambda value: value.movedim(0, 1))
    weights = Categorical(probs=torch.ones(parts.batch_shape, device=getattr(parts, _names(parts)[0]).device))
    return MixtureSameFamily(weights, parts)


def mean_over(each: Tensor) -> Tensor:
    """(...) the mean of (K, ...), exact where all K agree: a rounded sum would make them seem to differ."""
    return each[0] + (each - each[0]).mean(0)


def numbers_a_row(each: Distribution) -> int:
    """How many numbers J samples of batch shape (J, n) say of one row."""
    width = each.probs.shape[-1] if isinstance(each, Categorical) else each.event_shape.numel()
    return int(each.batch_shape[0] * width)


def rows_at_a_time(each: Distribution, most: int) -> int:
    """How many rows to map at a time, at most, given what J samples say of a few: a power of two.

    A part of a pool that begins at a multiple of 8192 is then cut at the same rows as the whole.
    """
    numbers = numbers_a_row(each)
    # A block of 64 rows is quicker than single ones, as long as it is not too large.
    size = max(_WORKING_SET // numbers, min(64, _AT_A_TIME // numbers), 1)
    return int(2 ** int(math.log2(min(size, most))))


def by_blocks(predictive: Callable[[Tensor], Predictive], x: Tensor, numbers: int) -> Predictive:
    """``predictive(x)``, of batch shape (n,), from as many rows at a time as fit into memory.

    Parameters
    ----------
    predictive : a function of rows alone, in one of the forms of `mixture`.
    numbers : what one row takes on the way: for each sample, what it says of the row.
    """
    size = max(_AT_A_TIME // max(numbers, 1), 1)
    joined: Predictive = _end_to_end([predictive(rows) for rows in torch.split(x, size)])
    return joined


def categorical(logits: Tensor) -> Categorical:
    """Classes of probability softmax(logits), as `ClassSamples` would take them: floored, in float64."""
    return Categorical(probs=_floored(logits.double().softmax(-1)), validate_args=False)


def gaussian(mean: Tensor, deviation: Tensor) -> Distribution:
    """Gaussians of batch shape (J, n) from (J, n, O), in float64; several outputs are independent."""
    normal = Normal(mean.double(), deviation.double(), validate_args=False)
    if mean.shape[-1] > 1:
        return Independent(normal, 1, validate_args=False)
    return Normal(normal.loc.squeeze(-1), normal.scale.squeeze(-1), validate_args=False)


def _floored(probs: Tensor) -> Tensor:
    probs = probs.clamp(min=min(FLOOR, _MOST_FLOORED / probs.shape[-1]))
    return probs / probs.sum(-1, keepdim=True)


def stack(distributions: list[Distribution]) -> Distribution:
    """One distribution of batch shape (J, n) from J of batch shape (n,) and one family."""
    families = {type(distribution) for distribution in distributions}
    if len(families) > 1:
        names = ", ".join(sorted(family.__name__ for family in families))
        raise InputError(f"the function returned distributions of several families: {names}")
    first = distributions[0]
    if not isinstance(first, Distribution):
        raise InputError(f"the function returned {type(first).__name__}, expected a torch Distribution")
    stacked = {
        name: torch.stack([getattr(distribution, name) for distribution in distributions])
        for name in _names(first)
    }
    return _rebuild(first, stacked)


def _end_to_end(parts: list[Any]) -> Any:
    """One distribution of batch shape (n,) from several of one family, for some of the rows each."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Independent):
        base = _end_to_end([part.base_dist for part in parts])
        return Independent(base, first.reinterpreted_batch_ndims, validate_args=False)
    if isinstance(first, MixtureSameFamily):
        weights = _end_to_end([part.mixture_distribution for part in parts])
        return MixtureSameFamily(weights, _end_to_end([part.component_distribution for part in parts]))
    names = ["probs"] if isinstance(first, Categorical) else _names(first)
    return _rebuild(first, {name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def _names(distribution: Distribution) -> list[str]:
    """Names of the arguments that rebuild a distribution."""
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


def _parameters(distribution: Distribution, change: Callable[[Tensor], Tensor]) -> Distribution:
    return _rebuild(
        distribution, {name: change(getattr(distribution, name)) for name in _names(distribution)}
    )


def _rebuild(distribution: Distribution, arguments: dict[str, Any]) -> Distribution:
    family: Any = type(distribution)
    rebuilt: Distribution = family(**arguments, validate_args=False)
    return rebuilt


def _matched_normal(mean: Tensor, variance: Tensor) -> Normal:
    """(n,) the Gaussian with the mean and variance of a mixture of K equal parts (K, n)."""
    spread = mean.var(0, correction=0)
    return Normal(mean.mean(0), (variance.mean(0) + spread).sqrt(), validate_args=False)


def own_generator() -> torch.Generator:
    """For the draws that predictions are the mean of: not with a seed that people choose, or what they draw
    with that would be the same draws.
    """
    return torch.Generator().manual_seed(0x5EED_0F_0A_C0DE)


def choose(available: int, num: int, generator: torch.Generator) -> Tensor:
    """(min(num, available),) distinct positions; all of them, in order, where that is what is asked."""
    num = check_integer(num, 0, "num")
    if num >= available:
        return torch.arange(available)
    return torch.randperm(available, generator=generator)[:num].sort().values
