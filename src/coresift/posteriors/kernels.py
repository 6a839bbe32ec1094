"""The Matern 5/2 kernel, random features whose products approximate it, and pivots of a covariance."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from scipy.linalg.lapack import dpstrf
from torch import Tensor

from coresift.checks import check_positive, check_shape


def matern52(squares: Tensor) -> tuple[Tensor, Tensor]:
    """Return a = sqrt(5 squares) and exp(-a), of which the kernel is (1 + a + a^2 / 3) exp(-a)."""
    root = squares.mul(5).sqrt_()
    return root, root.neg().exp_()


def squared_distances(x: Tensor, z: Tensor) -> Tensor:
    """Return (n, m) |x_i - z_k|^2 of rows (n, d) and (m, d)."""
    sums = x.square().sum(1)[:, None] + z.square().sum(1)
    # Rounding of 1e-16 in the square changes the kernel by as much: it has no term linear in the distance.
    return torch.addmm(sums, x, z.mT, alpha=-2).clamp_(min=0)


@dataclass(frozen=True, eq=False)
class Matern52:
    """Computes k(x, z) = variance (1 + a + a^2 / 3) exp(-a), a = sqrt(5) |(x - z) / lengths|.

    Attributes
    ----------
    centre : (d,) what is subtracted from rows first, so that a large offset costs no precision.
    lengths : (d,) a length scale for each column.
    variance : k(x, x).

    >>> kernel = Matern52(torch.zeros(1), torch.ones(1), variance=2.0)
    >>> kernel(torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0]])).round(decimals=3)
    tensor([[2.0000, 1.0480]])
    """

    centre: Tensor
    lengths: Tensor
    variance: float

    def __post_init__(self) -> None:
        check_shape(self.lengths, tuple(self.centre.shape), "lengths")
        check_positive(self.variance, "variance")

    def to(self, device: torch.device | str) -> Self:
        """Return the kernel on another device."""
        return replace(self, centre=self.centre.to(device), lengths=self.lengths.to(device))

    def scaled(self, x: Tensor) -> Tensor:
        """Return (n, d) rows in units of the length scales."""
        check_shape(x, (None, len(self.centre)), "x")
        return (x.to(self.centre) - self.centre) / self.lengths

    def __call__(self, x: Tensor, z: Tensor) -> Tensor:
        """Return (n, m) k(x_i, z_k) of rows (n, d) and (m, d)."""
        root, decay = matern52(squared_distances(self.scaled(x), self.scaled(z)))
        return root.square().div_(3).add_(root).add_(1).mul_(decay).mul_(self.variance)

    def frequencies(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw (num, d) frequencies of scaled rows from the kernel's spectral density.

        It is Student's t with 2 nu = 5 degrees of freedom: a Gaussian over the root of a chi-squared / 5.
        """
        normal = torch.randn(num, len(self.centre) + 5, dtype=self.centre.dtype, generator=generator)
        columns, rest = normal[:, 5:], normal[:, :5]
        return (columns / rest.square().mean(1, keepdim=True).sqrt()).to(self.centre.device)

    def fourier(self, x: Tensor, frequencies: Tensor) -> Tensor:
        """Return (n, 2 F) random Fourier features at F frequencies.

        Their products are k(x, z) with an error of about variance / sqrt(2 F).
        """
        angles = self.scaled(x) @ frequencies.mT
        return torch.cat([angles.cos(), angles.sin()], 1) * math.sqrt(self.variance / len(frequencies))


def pivoted_cholesky(matrix: Tensor, num: int, tolerance: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return D <= ``num`` pivots of a covariance (n, n), and the Cholesky factor (D, D) of their part of it.

    Each pivot is the point with the largest variance given the pivots before it. They end where no variance
    is above ``tolerance``, or above rounding.

    >>> index, factor = pivoted_cholesky(torch.diag(torch.tensor([1.0, 0.0, 4.0])), 3)
    >>> index.tolist(), factor.diagonal().tolist()
    ([2, 0], [2.0, 1.0])
    """
    # With a tolerance of -1, LAPACK ends at n eps times the largest variance.
    factor, pivots, rank, _ = dpstrf(matrix.double().cpu().numpy(), tol=tolerance or -1.0, lower=1)
    num = min(num, int(rank))
    found = torch.from_numpy(factor[:num, :num]).tril()
    return (torch.from_numpy(pivots[:num]).long() - 1).to(matrix.device), found.to(matrix.device)
