"""The Fisher space of probit regression, in closed form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coresift import limits
from coresift.checks import check_covariance, check_finite
from coresift.pool import Pool, read
from coresift.posteriors.probit import ProbitPosterior
from coresift.progress import progress_bar
from coresift.spaces.base import KernelSpace, labelled_elements
from coresift.spaces.gradient import exact_fisher_space
from coresift.special import normal_cdf_covariance


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
