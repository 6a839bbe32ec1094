"""Scores: each says what a pool point is worth on its own; higher scores should be labelled sooner."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial, singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Normal, StudentT

from coresift import limits
from coresift.checks import check_classes, check_finite, check_integer, check_samples, check_shape
from coresift.errors import InputError
from coresift.pool import Pool, as_pool, read
from coresift.posteriors.base import FiniteSamples, Posterior
from coresift.posteriors.gaussian_process import GaussianProcessPosterior
from coresift.posteriors.linear import LinearPosterior, NormalInverseGammaPosterior
from coresift.posteriors.nystrom import GaussianProcessOnPool
from coresift.posteriors.probit import ProbitPosterior
from coresift.posteriors.samples import choose, first_prediction, mixture, numbers_a_row, rows_at_a_time
from coresift.spaces.base import Problem, Space
from coresift.spaces.covariance import Rows, covariance_rows
from coresift.spaces.gradient import class_probabilities
from coresift.spaces.predictive import margin_uncertainty
from coresift.special import student_t_entropy
from coresift.types import Index


@dataclass(frozen=True, eq=False)
class Score:
    """One number for each point, ``values`` (N,); equal rows of the ``pool`` are duplicates.

    A subclass that has more for its selector says what that takes.
    """

    values: Tensor
    pool: Pool | None = None

    @property
    def bytes_per_point(self) -> int:
        """Memory for each point, besides what the selector counts."""
        return 0

    @property
    def bytes_of_matrices(self) -> int:
        """Memory that does not depend on how many points there are."""
        return 0

    def __post_init__(self) -> None:
        check_shape(self.values, (None,), "a score")
        check_finite(self.values, what="score")

    def __len__(self) -> int:
        return len(self.values)

    def identity(self, index: Index) -> list[bytes]:
        """Return bytes for each point that are equal for duplicates."""
        if self.pool is None:
            return [int(n).to_bytes(8, "little") for n in index]
        # Adding zero turns -0.0 into 0.0, so that equal numbers have equal bytes.
        return [row.tobytes() for row in (self.pool.take(index) + 0.0).cpu().numpy()]


def score_pool(function: Callable[[Tensor], Tensor], pool: Pool, block: int = limits.POOL_BLOCK) -> Score:
    """Score a pool with a function from rows (n, ...) to numbers (n,), ``block`` rows at a time.

    Blocks of large rows, such as the predictions of many samples for many classes, have fewer rows.
    """
    width = next(pool.chunks()).x[0].numel()
    block = max(min(block, limits.BLOCK_NUMBERS // max(width, 1)), 1)
    with torch.no_grad():
        values = [function(chunk.x).double().cpu() for chunk in read(pool, block)]
    return Score(torch.cat(values), pool)


def acs_norm(space: Space, pool: Pool | None = None) -> Score:
    """Score points by the paper's acquisition function ||L_n||^2, in units of the space's scale."""
    return Score(torch.square(space.norms).cpu(), pool)


def margin(posterior: Posterior, pool: Pool) -> Score:
    """Score points by margin uncertainty: one minus the gap between the two most likely classes."""
    return score_pool(lambda x: margin_uncertainty(class_probabilities(posterior, x)), pool)


def variance(posterior: Posterior, pool: Pool) -> Score:
    """Score points by the variance of y; for classes the sum of p (1 - p), for several outputs their sum."""

    def total_variance(x: Tensor) -> Tensor:
        predictive = posterior.predictive(x)
        if isinstance(predictive, Categorical):
            check_classes(predictive.probs.shape[-1])
            return (predictive.probs * (1 - predictive.probs)).sum(-1)
        return predictive.variance.flatten(1).sum(1) if predictive.event_shape else predictive.variance

    return score_pool(total_variance, pool)


def entropy(posterior: Posterior, pool: Pool) -> Score:
    """Score points by H[y | x_n, D0], in nats; differential for continuous outputs."""
    return score_pool(lambda x: _entropy(posterior.predictive(x)), pool)


def _entropy(distribution: Distribution) -> Tensor:
    """Return the entropy of each member of a batch of distributions."""
    if isinstance(distribution, StudentT):  # by a formula that is faster than torch's
        return student_t_entropy(distribution.df, distribution.scale)
    if isinstance(distribution, Categorical):
        check_classes(distribution.probs.shape[-1])
    try:
        return distribution.entropy()
    except NotImplementedError:
        raise InputError(
            f"{type(distribution).__name__} has no entropy in closed form; "
            "choose a strategy that needs none, such as 'acs-fw' or 'variance'"
        ) from None


def bald(
    posterior: Posterior,
    pool: Pool,
    num_samples: int = 256,
    *,
    numbers: int = limits.BALD_NUMBERS,
    **given: Any,
) -> Score:
    """Score points by expected information gain: in closed form for linear and probit regression
    and for Gaussian processes, sampled for others.

    I[y; theta | x, D0] = H[y | x, D0] - E[H[y | x, theta]], never below zero. For regression, the entropy of
    the prediction is that of ``posterior.predictive``, for which dropout uses draws of its own.

    ``numbers`` is how many numbers the J samples may return for a block of rows, and ``given`` are further
    attributes of a `Problem`, such as ``generator``; ``exact=False`` samples for all models.
    """
    return information_gain(Problem(pool, posterior, num_samples=num_samples, **given), numbers)


def information_gain(problem: Problem, numbers: int = limits.BALD_NUMBERS) -> Score:
    """Score the points of a problem by `bald`."""
    posterior, pool = problem.posterior, problem.pool
    if exact := problem.closed_form(exact_information):
        return score_pool(partial(exact, posterior), pool)
    if isinstance(posterior, FiniteSamples):
        # The predictive is the mixture of all K samples. Fewer in the second term would not be information.
        problem = replace(problem, num_samples=posterior.num_samples)
    theta = problem.draw()
    rows = next(pool.chunks()).x[: limits.BALD_FEWEST_ROWS]
    check_finite(rows)
    size = numbers // numbers_a_row(posterior.conditional(rows, theta))

    def gain(x: Tensor) -> Tensor:
        each = posterior.conditional(x, theta)
        check_samples(each)
        # For classes, both terms use the same draws and share their noise. A predictive that is the mean of
        # other draws would leave a difference that is small compared to the noise of the two.
        discrete = isinstance(each, Categorical | Bernoulli)
        whole = _entropy(mixture(each) if discrete else posterior.predictive(x))
        return (whole - _entropy(each).mean(0)).clamp(min=0)

    return score_pool(gain, pool, min(max(size, limits.BALD_FEWEST_ROWS), limits.BALD_MOST_ROWS))


@singledispatch
def exact_information(posterior: Posterior, x: Tensor) -> Tensor:
    """Return (n,) the expected information gain by formula. Posteriors that have one register it here."""
    raise InputError(f"the information gain of a {type(posterior).__name__} has no closed form")


@exact_information.register
def _(posterior: GaussianProcessOnPool, x: Tensor) -> Tensor:
    return exact_information(posterior.process, x)


@exact_information.register(GaussianProcessPosterior)
@exact_information.register(LinearPosterior)
def _(posterior: GaussianProcessPosterior | LinearPosterior, x: Tensor) -> Tensor:
    """Return 1/2 log(1 + v / s0^2) for the variance v of f(x), x^T S x in linear regression."""
    return 0.5 * torch.log1p(posterior.function_variance(x) / posterior.noise_variance)


@exact_information.register
def _(posterior: NormalInverseGammaPosterior, x: Tensor) -> Tensor:
    shape = torch.tensor(posterior.shape, dtype=torch.float64)
    mean_log_variance = math.log(posterior.rate) - float(torch.digamma(shape))
    expected = 0.5 * (math.log(2 * math.pi * math.e) + mean_log_variance)
    return _entropy(posterior.predictive(x)) - expected


@exact_information.register
def _(posterior: ProbitPosterior, x: Tensor) -> Tensor:
    """Return H[Phi(zeta)] - E[H[Phi(f)]] with f ~ N(mu^T x, s_nn), by quadrature."""
    rule = np.polynomial.legendre.leggauss(limits.PROBIT_NODES)
    nodes, weights = (torch.from_numpy(numbers).to(posterior.mean.device) for numbers in rule)
    mean = (posterior.features(x) @ posterior.mean).double()
    std = posterior.function_variance(x).sqrt().clamp(min=1e-12)
    # Gauss-Legendre where density and entropy are above rounding. Nodes that follow the density alone, as
    # those of Gauss-Hermite, step over the entropy where the standard deviation is large.
    # Beyond 9 standard deviations there is no density, and beyond 10 from zero labels are certain.
    low, high = ((mean + side * 9 * std).clamp(-10, 10) for side in (-1, 1))
    latent = (low + high) / 2 + nodes[:, None] * (high - low) / 2  # (nodes, n)
    density = torch.exp(-0.5 * ((latent - mean) / std).square()) / (std * math.sqrt(2 * math.pi))
    each = posterior.likelihood(latent.unsqueeze(-1), latent)
    expected = weights @ (density * _entropy(each)) * (high - low) / 2
    # In float64 too: rounding in float32 would exceed the gain of a sure point.
    zeta = mean / (1 + std.square()).sqrt()
    whole = _entropy(posterior.likelihood(zeta.unsqueeze(-1), zeta))
    return (whole - expected).clamp(min=0)


@dataclass(frozen=True)
class PredictiveInformation:
    """Scores points by expected predictive information gain (EPIG): what their labels say about the target's.

    The score is the mean over targets t of the mutual information between labels,

        I[y_n; y_t] = H[y_n] + H[y_t] - H[y_n, y_t]

    For classes, it is exact for the J posterior samples: p(y_n, y_t) = (1/J) sum_j p_j(y_n) p_j(y_t). For
    regression, labels are jointly Gaussian with the covariance c of both predictions over the posterior, and
    I = -1/2 log(1 - c^2 / (V_n V_t)), where V are predictive variances. That is exact for linear regression
    with known noise; samples of other models have a mixture of Gaussians, whose moments are used.

    Parameters
    ----------
    num_targets : this many points are drawn at random from larger targets; fewer if the samples of so many
        targets and classes are too many numbers (``limits.TARGET_NUMBERS``).

    References
    ----------
    Bickford Smith et al., Prediction-Oriented Bayesian Active Learning, 2023.
    """

    num_targets: int = 256

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_targets", check_integer(self.num_targets, 1, "num_targets"))

    def __call__(self, problem: Problem) -> Score:
        posterior, pool, theta = problem.posterior, problem.pool, problem.draw()
        with torch.no_grad():
            first = first_prediction(posterior, pool, theta)
            targets = self._targets(problem, numbers_a_row(first))
            if isinstance(first, Categorical | Bernoulli):
                other = _class_samples(posterior.conditional(targets, theta))
                width = other.shape[1] * other.shape[2] ** 2
                information = partial(_information_of_classes, posterior, theta, other)
                return score_pool(information, pool, max(limits.JOINT_NUMBERS // width, 1))
            if not isinstance(first, Normal):
                raise InputError(
                    "'epig' needs classes or one Gaussian output, but the model predicts a "
                    f"{type(first).__name__}; try 'variance-reduction'"
                )
            rows_of = covariance_rows(problem, theta)
            return score_pool(
                partial(_information_of_gaussians, rows_of, _correlated(*rows_of(targets))), pool
            )

    def _targets(self, problem: Problem, numbers: int) -> Tensor:
        """Draw (T, ...) rows of the target, for each of which so many ``numbers`` are predicted."""
        source = problem.pool if problem.target is None else as_pool(problem.target)
        most = max(min(self.num_targets, limits.TARGET_NUMBERS // numbers), 1)
        return source.take(choose(len(source), most, problem.generator).numpy())


def _class_samples(each: Distribution) -> Tensor:
    """Return (J, n, C) class probabilities in float64."""
    probs: Tensor = each.probs.double()  # type: ignore[attr-defined]
    return torch.stack([1 - probs, probs], -1) if isinstance(each, Bernoulli) else probs


def _information_of_classes(posterior: Posterior, theta: Any, targets: Tensor, x: Tensor) -> Tensor:
    """Return (n,) EPIG of points with respect to targets of class probabilities (J, T, C)."""
    probs = _class_samples(posterior.conditional(x, theta))
    (num, size, classes), total = probs.shape, probs.new_zeros(len(x))
    own = _entropy(Categorical(probs=probs.mean(0), validate_args=False))
    # Of many classes, a few targets at a time.
    for part in torch.split(targets, max(limits.JOINT_NUMBERS // (size * classes**2), 1), 1):
        joint = probs.reshape(num, -1).mT @ part.reshape(num, -1) / num
        joint_entropy = -torch.xlogy(joint, joint).view(size, classes, -1, classes).sum((1, 3))  # (n, T)
        others = _entropy(Categorical(probs=part.mean(0), validate_args=False))
        total += (own[:, None] + others - joint_entropy).clamp(min=0).sum(1)
    return total / targets.shape[1]


def _correlated(rows: Tensor, noise: Tensor) -> Tensor:
    """Return (n, D) vectors whose inner products are the correlations of labels at different points."""
    rows = rows.double()
    return rows / (rows.square().sum(1) + noise).sqrt()[:, None]


def _information_of_gaussians(rows_of: Rows, targets: Tensor, x: Tensor) -> Tensor:
    """Return (n,) EPIG of points with respect to targets (T, D) of `_correlated`."""
    correlation = _correlated(*rows_of(x)) @ targets.mT
    return -0.5 * torch.log1p(-correlation.square()).mean(1)


@dataclass(frozen=True, eq=False)
class ClassScore(Score):
    """Class probabilities ``probs`` (N, J, C) by J posterior samples, with their information as values."""

    _: KW_ONLY
    probs: Tensor

    @property
    def bytes_per_point(self) -> int:
        return int(self.probs[0].nbytes) + limits.TOP_BYTES


def class_score(problem: Problem) -> ClassScore:
    """Keep the class probabilities of a pool by J samples, in float32; `BatchBALD` chooses from them."""
    posterior, theta = problem.posterior, problem.draw()
    with torch.no_grad():
        first = first_prediction(posterior, problem.pool, theta)
        if not isinstance(first, Categorical | Bernoulli):
            class_probabilities(posterior, problem.pool.take([0]))  # raises
        block, table = rows_at_a_time(first, limits.MAPPED_ROWS), torch.empty(0)
        for chunk in read(problem.pool, block):
            probs = _class_samples(posterior.conditional(chunk.x, theta)).transpose(0, 1)
            if not len(table):
                table = torch.empty(len(problem.pool), *probs.shape[1:], device=probs.device)
            table[chunk.start : chunk.start + len(chunk)] = probs
        imagined = table.new_ones(1), table.new_full((1, table.shape[1]), 1 / table.shape[1])
        return ClassScore(label_information(table, *imagined), problem.pool, probs=table)


def label_information(probs: Tensor, weights: Tensor, beliefs: Tensor) -> Tensor:
    """Return (N,) what labels say about theta, on average over M imagined states of knowledge.

    In state m, of probability ``weights`` (M,), sample j has the probability ``beliefs`` (M, J). With p_njc
    the ``probs`` (N, J, C), the result is

        sum_m weights_m ( H[sum_j beliefs_mj p_nj] - sum_j beliefs_mj H[p_nj] )
    """
    _, num, classes = probs.shape
    weights, beliefs = weights.double(), beliefs.double()
    found = []
    for part in torch.split(probs, max(limits.JOINT_NUMBERS // (classes * max(len(weights), num)), 1)):
        block = part.double()  # (n, J, C)
        mixed = torch.einsum("mj,njc->nmc", beliefs, block)
        entropy = -torch.xlogy(mixed, mixed).sum(2) @ weights
        noise = -torch.xlogy(block, block).sum(2) @ (weights @ beliefs)
        found.append((entropy - noise).clamp(min=0).cpu())
    return torch.cat(found)
