"""Closed-form spaces of Bayesian linear and probit regression.

Linear regression: with s_ni = x_n^T S x_i, known noise s0^2,

    Fisher      (x_n^T x_i) s_ni / s0^4
    centred     s_ni^2 / (2 s0^4)
    Euclidean   a_n a_i + centred,      a_n = E[L_n] = 1/2 log(1 + s_nn/s0^2) - s_nn/s0^2

and unknown noise, theta | s2 ~ N(mu, s2 V), s2 ~ IG(a, b), s_ni = x_n^T V x_i, predictive variance V_n:

    Fisher      (a/b) (x_n^T x_i) s_ni                                                        (in theta)
    centred     s_ni^2 / 2 + 1/4 [trigamma(a) - (V_n + V_i)/b + V_n V_i a/b^2]
    Euclidean   m_n m_i + centred,      m_n = E[L_n]

All are sums of products of linear kernels, and need no N x N matrix. The Euclidean forms are not in the
paper: they are the limit of its Algorithm 2 for infinitely many samples.

Probit regression: see `ProbitFisherSpace`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coresift import limits
from coresift.checks import check_covariance, check_finite
from coresift.pool import Pool, read
from coresift.posteriors.linear import GaussianWeights, LinearPosterior, NormalInverseGammaPosterior
from coresift.posteriors.nystrom import GaussianProcessOnPool
from coresift.posteriors.probit import ProbitPosterior
from coresift.progress import progress_bar
from coresift.spaces.base import KernelSpace, labelled_elements
from coresift.spaces.gradient import exact_fisher_space
from coresift.spaces.likelihood import exact_likelihood_space
from coresift.spaces.outer import OuterKernel, OuterSpace
from coresift.spaces.predictive import exact_predictive_rows
from coresift.special import normal_cdf_covariance, student_t_entropy


@exact_fisher_space.register(LinearPosterior)
@exact_fisher_space.register(NormalInverseGammaPosterior)
def _(
    posterior: LinearPosterior | NormalInverseGammaPosterior, pool: Pool, labelled: Tensor | None = None
) -> OuterSpace:
    if isinstance(posterior, LinearPosterior):
        scale = posterior.noise_variance**-2
    else:
        scale = posterior.shape / posterior.rate
    kernel = OuterKernel(_sides(posterior), scale, posterior.covariance.double())
    return OuterSpace(kernel, pool, labelled)


@exact_likelihood_space.register
def _(
    posterior: LinearPosterior, pool: Pool, labelled: Tensor | None = None, centred: bool = False
) -> OuterSpace:
    noise = posterior.noise_variance

    def mean(x: Tensor) -> Tensor:
        ratio = posterior.function_variance(x) / noise
        return (0.5 * torch.log1p(ratio) - ratio).unsqueeze(1)

    sides = _sides(posterior, posterior.factor.double())
    kernel = OuterKernel(sides, 0.5 / noise**2, offset=None if centred else mean)
    return OuterSpace(kernel, pool, labelled)


@exact_likelihood_space.register
def _(
    posterior: NormalInverseGammaPosterior,
    pool: Pool,
    labelled: Tensor | None = None,
    centred: bool = False,
) -> OuterSpace:
    a, b = posterior.shape, posterior.rate
    shape = torch.tensor(a, dtype=torch.float64)
    trigamma = float(torch.special.polygamma(1, shape))
    mean_log_precision = float(torch.digamma(shape)) - math.log(b)

    def offset(x: Tensor) -> Tensor:
        """Return (n, 3) m_n, 1, V_n."""
        ratio = posterior.function_variance(x)
        scale = (b / a * (1 + ratio)).sqrt()
        variance = a / (a - 1) * scale.square()
        constant = 0.5 * math.log(2 * math.pi)
        mean = student_t_entropy(2 * a, scale) - constant + 0.5 * mean_log_precision - ratio / 2
        return torch.stack([mean - variance * a / (2 * b), torch.ones_like(mean), variance], 1)

    metric = [
        [0.0 if centred else 1.0, 0.0, 0.0],
        [0.0, trigamma / 4, -1 / (4 * b)],
        [0.0, -1 / (4 * b), a / (4 * b**2)],
    ]
    offset_metric = torch.tensor(metric, dtype=torch.float64, device=posterior.mean.device)
    sides = _sides(posterior, posterior.factor.double())
    return OuterSpace(OuterKernel(sides, 0.5, None, offset, offset_metric), pool, labelled)


@exact_predictive_rows.register
def _(posterior: LinearPosterior, x: Tensor) -> Tensor:
    return posterior.features(x) @ (posterior.factor / math.sqrt(posterior.noise_variance))


@exact_predictive_rows.register
def _(posterior: GaussianProcessOnPool, x: Tensor) -> Tensor:
    return posterior.vectors(x) / math.sqrt(posterior.process.noise_variance)


@exact_predictive_rows.register
def _(posterior: NormalInverseGammaPosterior, x: Tensor) -> Tensor:
    return posterior.features(x) @ posterior.factor


def _sides(
    posterior: GaussianWeights, factor: Tensor | None = None
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Make both sides of a kernel x^T F, or x^T.

    With S = F F^T, the product of both is x^T S x. X^T X S would cancel out where columns lie far from zero.
    """

    def sides(x: Tensor) -> tuple[Tensor, Tensor]:
        rows = posterior.features(x).double()
        rows = rows if factor is None else rows @ factor
        return rows, rows

    return sides


class ProbitFisherSpace(KernelSpace):
    """The weighted Fisher inner product of probit regression (section 4 of the paper).

    With zeta_n = mu^T x_n / sqrt(1 + s_nn), rho_nm = s_nm / sqrt((1 + s_nn)(1 + s_mm)), s_nm = x_n^T S x_m:

        <L_n, L_m> = x_n^T x_m [ BvN(zeta_n, zeta_m, rho_nm) - Phi(zeta_n) Phi(zeta_m) ]

    As in the paper's appendix, the gradient of L_n is taken to be (Phi(zeta_n) - Phi(theta^T x_n)) x_n: that
    of logistic regression, with Phi for the logistic function. The gradient of the probit likelihood itself
    has no closed form here; a sampled gradient space uses it.

    ``row_sums`` visits all N^2 / 2 pairs once, some 10^7 a second, in memory O(N). The rows are needed again
    for each pair and so are kept, in float64, with their N d directions F^T x_n / sqrt(1 + s_nn), S = F F^T.

    >>> from coresift.pool import ArrayPool
    >>> posterior = ProbitPosterior(torch.zeros(2), torch.eye(2))
    >>> space = ProbitFisherSpace(posterior, ArrayPool(torch.eye(2)))
    >>> space.gram(torch.arange(2)).round(decimals=4).tolist()  # asin(1/2) / (2 pi) on the diagonal
    [[0.0833, 0.0], [0.0, 0.0833]]
    """

    # A correlation near 1 magnifies its own rounding: 1e-16 / sqrt(1 - rho^2).
    resolution = 1e-12

    def __init__(
        self,
        posterior: ProbitPosterior,
        pool: Pool,
        labelled: Tensor | None = None,
        tile: int = limits.PROBIT_TILE,
    ) -> None:
        self._tile = tile
        rows = torch.cat([posterior.features(block.x).double() for block in read(pool)])
        self._points = _Points.of(posterior, rows)
        self._labelled = None
        if labelled is not None:
            check_finite(labelled, what="labelled x")
            self._labelled = _Points.of(posterior, posterior.features(labelled).double())
        self.norms = self._points.squared_norms().sqrt()
        self.bytes_per_point += 2 * 8 * rows.shape[1]  # rows and directions

    def row_sums(self) -> Tensor:
        sums = torch.zeros_like(self.norms)
        tiles = [slice(start, start + self._tile) for start in range(0, len(self), self._tile)]
        pairs = [(left, right) for number, left in enumerate(tiles) for right in tiles[number:]]
        with progress_bar("inner products of all pairs", len(pairs)) as advance:
            for left, right in pairs:
                values = _inner(self._points[left], self._points[right])
                sums[left] += values.sum(1)
                if left != right:
                    sums[right] += values.sum(0)
                advance(1)
        return sums

    def column(self, n: int) -> Tensor:
        return _inner(self._points[n : n + 1], self._points)[0]

    def gram(self, index: Tensor) -> Tensor:
        chosen = self._points[index]
        strips = range(0, len(index), self._tile)
        return torch.cat([_inner(chosen[start : start + self._tile], chosen) for start in strips])

    def anchors(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self._labelled is None:
            return
        squares = self._labelled.squared_norms()
        for start in range(0, len(squares), limits.ANCHORS):
            part = slice(start, start + limits.ANCHORS)
            yield labelled_elements(_inner(self._labelled[part], self._points)), squares[part]


@exact_fisher_space.register
def _(posterior: ProbitPosterior, pool: Pool, labelled: Tensor | None = None) -> ProbitFisherSpace:
    return ProbitFisherSpace(posterior, pool, labelled)


@dataclass(frozen=True)
class _Points:
    """Holds what the inner product needs of n points."""

    rows: Tensor  # (n, d)
    directions: Tensor  # (n, d), so that rho_nm is their inner product
    zeta: Tensor  # (n,)

    @classmethod
    def of(cls, posterior: ProbitPosterior, rows: Tensor) -> _Points:
        directions = rows @ check_covariance(posterior.covariance.double(), "posterior covariance")
        scale = (1 + directions.square().sum(-1)).sqrt()
        return cls(rows, directions / scale[:, None], rows @ posterior.mean.double() / scale)

    def __getitem__(self, index: slice | Tensor) -> _Points:
        return _Points(self.rows[index], self.directions[index], self.zeta[index])

    def squared_norms(self) -> Tensor:
        """(n,) <L_n, L_n>."""
        # The paper's form, Phi (1 - Phi) - 2 T with Owen's T, is the same number, but cancels to nothing
        # for points the model is sure of, whose small norms would then look like large cosines.
        correlation = self.directions.square().sum(-1)
        return self.rows.square().sum(-1) * normal_cdf_covariance(self.zeta, self.zeta, correlation)


def _inner(left: _Points, right: _Points) -> Tensor:
    """(n, m) inner products between two sets of points."""
    correlation = left.directions @ right.directions.mT
    covariance = normal_cdf_covariance(left.zeta[:, None], right.zeta, correlation)
    return covariance.mul_(left.rows @ right.rows.mT)
