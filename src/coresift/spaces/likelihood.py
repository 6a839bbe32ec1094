"""Likelihood spaces: L_n(theta) = E[log p(y | x_n, theta)] + H[y | x_n] under the Euclidean product."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    Normal,
    StudentT,
    kl_divergence,
    register_kl,
)
from torch.nn.functional import logsigmoid

from coresift.errors import InputError
from coresift.limits import NUM_OUTCOMES, POOL_BLOCK
from coresift.pool import Pool
from coresift.posteriors.base import Posterior
from coresift.posteriors.samples import first_prediction, rows_at_a_time
from coresift.spaces.base import Problem, Space
from coresift.spaces.vectors import VectorSpace, mapped_space
from coresift.special import student_t_entropy
from coresift.types import Chunk


@dataclass(frozen=True)
class Likelihood:
    """Builds the likelihood space of a problem: in closed form where there is one, else sampled.

    Parameters
    ----------
    centred : subtract each point's mean over theta, so that inner products are covariances. A constant added
        to a log-likelihood does not change the posterior; only the centred product ignores it.
    """

    centred: bool = False

    def __call__(self, problem: Problem) -> Space:
        if exact := problem.closed_form(exact_likelihood_space):
            space: Space = exact(problem.posterior, problem.pool, problem.labelled, self.centred)
            return space
        return _sampled(problem, self.centred)


def likelihood_space(
    posterior: Posterior, pool: Pool, num_samples: int = 256, *, centred: bool = False, **given: Any
) -> Space:
    """Build the space of expected log-likelihoods: in closed form for linear regression, sampled for others.

    ``given`` are further attributes of a `Problem`, such as ``generator`` and ``labelled``; ``exact=False``
    samples it for all models.
    """
    return Likelihood(centred)(Problem(pool, posterior, num_samples=num_samples, **given))


@singledispatch
def exact_likelihood_space(
    posterior: Posterior, pool: Pool, labelled: Tensor | None = None, centred: bool = False
) -> Space:
    """Build the likelihood space in closed form: E[L_n L_m], or Cov[L_n, L_m] where ``centred``.

    Posteriors that have one register it here.
    """
    raise InputError(f"the likelihood space of a {type(posterior).__name__} has no closed form")


def sampled_likelihood_space(
    posterior: Posterior,
    pool: Pool,
    num_samples: int = 256,
    *,
    centred: bool = False,
    dtype: torch.dtype = torch.float32,
    **given: Any,
) -> VectorSpace:
    """Map points to random projections (paper, Algorithm 2): [L_n(theta_1), ..., L_n(theta_J)] / sqrt(J).

    The same samples serve all points. J is ``num_samples``, or fewer where the posterior holds fewer; see
    `default_num_samples`. The (J, N) vectors are stored as ``dtype``, and ``given`` are further attributes of
    a `Problem`, such as ``generator``, ``labelled`` and ``memory``.

    >>> from coresift.pool import as_pool
    >>> from coresift.posteriors import ClassSamples
    >>> probs_N_K_C = torch.tensor([[[0.9, 0.1], [0.1, 0.9]], [[0.5, 0.5], [0.5, 0.5]]])
    >>> space = sampled_likelihood_space(ClassSamples(2), as_pool(probs_N_K_C), generator=torch.Generator())
    >>> space.norms.round(decimals=3)
    tensor([0.5110, 0.0000], dtype=torch.float64)
    """
    return _sampled(Problem(pool, posterior, num_samples=num_samples, **given), centred, dtype)


def _sampled(problem: Problem, centred: bool, dtype: torch.dtype = torch.float32) -> VectorSpace:
    posterior, theta = problem.posterior, problem.draw()
    seed = int(torch.randint(2**62, (), generator=problem.generator))

    def vectors(block: Chunk) -> Tensor:
        predictive, conditional = posterior.predictive(block.x), posterior.conditional(block.x, theta)
        values = expected_log_likelihood(predictive, conditional, seed + block.start)
        if centred:
            values = values - values.mean(0)
        return values / math.sqrt(len(values))

    size = rows_at_a_time(first_prediction(posterior, problem.pool, theta), POOL_BLOCK)
    return mapped_space(problem, size, vectors, dtype)


def expected_log_likelihood(predictive: Distribution, conditional: Distribution, seed: int = 0) -> Tensor:
    """Return (J, n) L_n(theta_j) = -KL(p(y | x_n, D0) || p(y | x_n, theta_j)), at most zero.

    Any pair known to `torch.distributions.kl_divergence` is exact; add a new pair with `register_kl`. For
    other pairs the expectation is taken over outcomes drawn from the predictive, new for each point, so that
    duplicates have similar but not equal vectors. Classes and Gaussians are compared in float64.

    The predictive has batch shape (n,), the conditional (J, n).
    """
    # torch's own divergence of classes is infinite where a probability rounds to zero.
    if isinstance(predictive, Categorical) and isinstance(conditional, Categorical):
        log_p, log_q = (each.logits.double().log_softmax(-1) for each in (predictive, conditional))
        probs = predictive.probs.double()
        return (probs * (log_q - log_p)).sum(-1).clamp(max=0) / probs.sum(-1)
    if isinstance(predictive, Bernoulli) and isinstance(conditional, Bernoulli):
        p, q = predictive.logits.double(), conditional.logits.double()
        yes, no = (torch.sigmoid(s * p) * (logsigmoid(s * q) - logsigmoid(s * p)) for s in (1, -1))
        return (yes + no).clamp(max=0)
    predictive, conditional = _in_double(predictive), _in_double(conditional)
    try:
        return -kl_divergence(predictive.expand(conditional.batch_shape), conditional)
    except NotImplementedError:
        return _monte_carlo(predictive, conditional, seed)


def _monte_carlo(predictive: Distribution, conditional: Distribution, seed: int) -> Tensor:
    """Estimate L_n(theta_j) from outcomes drawn from the predictive, the same ones for every theta."""
    device = predictive.mean.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):  # the global state stays
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)
        outcomes = predictive.sample((NUM_OUTCOMES,))
    values = torch.zeros(conditional.batch_shape, dtype=torch.float64, device=device)
    for outcome in outcomes:
        ratio = (conditional.log_prob(outcome) - predictive.log_prob(outcome)).double()
        # The mean of exp(ratio) - 1 is zero. Without it there is less noise, and no term is above zero.
        values += ratio - torch.expm1(ratio)
    return values / len(outcomes)


def _in_double(distribution: Distribution) -> Distribution:
    """Return Gaussians in float64, where two that are nearly the same still differ; others as they are."""
    if isinstance(distribution, Independent):
        base = _in_double(distribution.base_dist)
        return Independent(base, distribution.reinterpreted_batch_ndims, validate_args=False)
    if isinstance(distribution, Normal):
        return Normal(distribution.loc.double(), distribution.scale.double(), validate_args=False)
    return distribution


@register_kl(StudentT, Normal)  # type: ignore[no-untyped-call, untyped-decorator]
def _kl_student_t_normal(p: StudentT, q: Normal) -> Tensor:
    """Cross-entropy minus entropy; infinite where the variance of the t is (two degrees or fewer)."""
    constant = 0.5 * math.log(2 * math.pi)
    cross = constant + q.scale.log() + (p.variance + (p.loc - q.loc) ** 2) / (2 * q.variance)
    return cross - student_t_entropy(p.df, p.scale)
