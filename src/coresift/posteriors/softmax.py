"""A Bayesian softmax layer: Gaussian weights on given features, class probabilities out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import Categorical

from coresift.checks import check_integer, check_shape
from coresift.errors import InputError
from coresift.posteriors.samples import by_blocks, own_generator


@dataclass(frozen=True, eq=False)
class SoftmaxPosterior:
    """W ~ N(mean, diag(std^2) + sum_r factor_r factor_r^T), y | x, W ~ Categorical(softmax(W x)).

    ``mean`` and ``std`` are (C, D), ``factor`` is (R, C, D): a mean-field posterior has none, a full
    covariance as many as its Cholesky factor has columns. The predictive averages over ``num_predictive``
    samples of W, always the same ones.

    >>> posterior = SoftmaxPosterior(torch.zeros(3, 2), torch.ones(3, 2), torch.zeros(0, 3, 2))
    >>> posterior.conditional(torch.ones(4, 2), posterior.sample(5, torch.Generator())).batch_shape
    torch.Size([5, 4])
    """

    mean: Tensor
    std: Tensor
    factor: Tensor
    num_predictive: int = 100

    def to(self, device: torch.device | str) -> SoftmaxPosterior:
        tensors = {name: getattr(self, name).to(device) for name in ("mean", "std", "factor")}
        return replace(self, **tensors)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_predictive", check_integer(self.num_predictive, 1, "num_predictive"))
        check_shape(self.mean, (None, None), "the mean of the weights")
        check_shape(self.std, tuple(self.mean.shape), "the std of the weights")
        check_shape(self.factor, (None, *self.mean.shape), "the factor of the weights")
        if bool((self.std < 0).any()):
            raise InputError(f"a standard deviation is {float(self.std.min()):.3g}, expected at least zero")

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw (J, C, D) samples of the weights, on the CPU so that a seed means the same on all devices."""
        own = torch.randn(num, *self.mean.shape, generator=generator).to(self.mean)
        shared = torch.randn(num, len(self.factor), generator=generator).to(self.mean)
        return self.mean + own * self.std + torch.einsum("jr,rcd->jcd", shared, self.factor)

    def features(self, x: Tensor) -> Tensor:
        """Return (n, D) the rows themselves, in the posterior's precision."""
        check_shape(x, (None, self.mean.shape[1]), "x")
        return x.to(self.mean)

    def outputs(self, features: Tensor, theta: Tensor) -> Tensor:
        """Return (J, n, C) the logits."""
        return features @ theta.mT

    def likelihood(self, outputs: Tensor, theta: Tensor) -> Categorical:
        # A log probability of minus infinity would rule an outcome out for good.
        return Categorical(logits=torch.log_softmax(outputs, -1).clamp(min=-30), validate_args=False)

    def conditional(self, x: Tensor, theta: Tensor) -> Categorical:
        return self.likelihood(self.outputs(self.features(x), theta), theta)

    @cached_property
    def _draws(self) -> Tensor:
        return self.sample(self.num_predictive, own_generator())

    def predictive(self, x: Tensor) -> Categorical:
        def mean(rows: Tensor) -> Categorical:
            return Categorical(probs=self.conditional(rows, self._draws).probs.mean(0), validate_args=False)

        return by_blocks(mean, x, len(self._draws) * len(self.mean))
