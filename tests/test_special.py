from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch

from coresift.special import bivariate_normal_cdf, normal_cdf_covariance, student_t_entropy

ARGUMENTS = [-8.0, -3.0, -1.0, -1e-3, 0.0, 0.5, 1.0, 1.0001, 2.0, 3.0, 8.0]
MAGNITUDES = [0.1, 0.3, 0.5, 0.75, 0.9, 0.925, 0.95, 0.99, 0.999, 0.9999]
CORRELATIONS = [0.0, *MAGNITUDES, *(-rho for rho in MAGNITUDES)]


def float64(values: object) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def cdf_by_conditioning(h: float, k: float, rho: float) -> float:
    """int_{-inf}^h phi(x) Phi((k - rho x) / sqrt(1 - rho^2)) dx."""
    width = math.sqrt(1 - rho * rho)

    def integrand(x: float) -> float:
        return scipy.special.ndtr((k - rho * x) / width) * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    # Phi steps from 1 to 0 around k / rho: show quad where.
    steps = [k / rho + move * width / abs(rho) for move in (-8, -2, 0, 2, 8)] if rho else []
    breaks = [-12.0, *sorted(x for x in [*steps, -3.0, 0.0, 3.0] if -12 < x < h), h]
    return sum(
        scipy.integrate.quad(integrand, low, high, epsabs=1e-14, epsrel=1e-13)[0]
        for low, high in itertools.pairwise(breaks)
    )


@pytest.mark.parametrize("rho", CORRELATIONS)
def test_cdf_against_the_integral_over_the_conditional(rho: float) -> None:
    pairs = list(itertools.product(ARGUMENTS, ARGUMENTS))
    expected = float64([cdf_by_conditioning(h, k, rho) for h, k in pairs])
    h, k = float64(pairs).unbind(1)
    # Quad asks for 1e-14 on each of at most nine pieces.
    torch.testing.assert_close(bivariate_normal_cdf(h, k, float64(rho)), expected, rtol=0, atol=1e-13)


def test_cdf_at_its_limits() -> None:
    h, k = torch.meshgrid(float64([-math.inf, *ARGUMENTS, math.inf]), float64(ARGUMENTS), indexing="ij")
    cdf_h, cdf_k = torch.special.ndtr(h), torch.special.ndtr(k)
    limits = {
        1.0: torch.minimum(cdf_h, cdf_k),
        0.0: cdf_h * cdf_k,
        -1.0: (cdf_h + cdf_k - 1).clamp(min=0),
    }
    for rho, expected in limits.items():
        torch.testing.assert_close(bivariate_normal_cdf(h, k, float64(rho)), expected, rtol=0, atol=1e-15)
    for rho in CORRELATIONS:
        infinite = bivariate_normal_cdf(float64([-math.inf, math.inf])[:, None], k[0], float64(rho))
        torch.testing.assert_close(infinite, torch.stack([0 * cdf_k[0], cdf_k[0]]), rtol=0, atol=1e-15)


def test_cdf_is_continuous_where_the_method_changes() -> None:
    h, k = torch.meshgrid(float64(ARGUMENTS), float64(ARGUMENTS), indexing="ij")
    for sign in (-1, 1):
        below, above = (bivariate_normal_cdf(h, k, float64(sign * rho)) for rho in (0.925, 0.925 + 1e-15))
        torch.testing.assert_close(below, above, rtol=0, atol=2e-15)


def covariance_to_many_digits(h: float, k: float, rho: float) -> mpmath.mpf:
    """The difference itself: with 60 digits, cancellation leaves more than enough."""
    with mpmath.workdps(60):
        h, k, rho = mpmath.mpf(h), mpmath.mpf(k), mpmath.mpf(rho)
        width = mpmath.sqrt(1 - rho * rho)
        steps = [k / rho + move * width / abs(rho) for move in (-12, -6, -2, 0, 2, 6, 12)]
        breaks = [mpmath.mpf(-20), *sorted(x for x in [*steps, -8, 0] if -20 < x < h), h]
        cdf = mpmath.quad(lambda x: mpmath.npdf(x) * mpmath.ncdf((k - rho * x) / width), breaks, maxdegree=7)
        return cdf - mpmath.ncdf(h) * mpmath.ncdf(k)


@pytest.mark.parametrize(
    ("h", "k", "rho"),
    [
        (0.5, -0.3, 1e-6),
        (-6, -6, 0.01),
        (-6, -5, 0.5),
        (-5, 4, 0.3),
        (-7, -7, 0.9),
        (-6, -6.5, 0.95),
        (-6, 6, -0.99),
        (2, 2, -0.99),
    ],
)
def test_covariance_keeps_its_digits_where_the_difference_cancels(h: float, k: float, rho: float) -> None:
    expected = float(covariance_to_many_digits(h, k, rho))
    arguments = float64(h), float64(k), float64(rho)
    scale = math.prod(float(normal_cdf_covariance(float64(z), float64(z), float64(abs(rho)))) for z in (h, k))
    assert float(normal_cdf_covariance(*arguments)) == pytest.approx(
        expected, rel=0, abs=1e-12 * math.sqrt(scale)
    )


def test_covariance_symmetries() -> None:
    h, k, rho = (torch.rand(3, 500, dtype=torch.float64, generator=torch.manual_seed(0)) * 2 - 1).unbind()
    h, k = 5 * h, 5 * k
    covariance = normal_cdf_covariance(h, k, rho)
    for other in (
        normal_cdf_covariance(k, h, rho),
        normal_cdf_covariance(-h, -k, rho),
        -normal_cdf_covariance(h, -k, -rho),
    ):
        torch.testing.assert_close(other, covariance, rtol=1e-10, atol=1e-17)


def test_owens_t_gives_the_diagonal() -> None:
    h, rho = float64([-2.0, 0.0, 1.0, 3.0])[:, None], float64([0.2, 0.9, 0.99])
    cdf = torch.special.ndtr(h)
    expected = cdf * (1 - cdf) - 2 * float64(
        scipy.special.owens_t(h.numpy(), ((1 - rho) / (1 + rho)).sqrt().numpy())
    )
    torch.testing.assert_close(normal_cdf_covariance(h, h, rho), expected, rtol=0, atol=1e-15)


def test_student_t_entropy() -> None:
    df, scale = np.meshgrid([0.5, 1.0, 2.5, 30.0, 1e4], [1e-3, 1.0, 50.0])
    entropy = student_t_entropy(float64(df), float64(scale))
    same = torch.distributions.StudentT(float64(df), 0.0, float64(scale)).entropy()
    # The log gammas of df = 1e4 are some 4e4 in size and cancel: 1e-11 is their rounding.
    torch.testing.assert_close(entropy, same, rtol=0, atol=1e-10)
    torch.testing.assert_close(entropy, float64(scipy.stats.t(df, scale=scale).entropy()), rtol=0, atol=1e-10)
    torch.testing.assert_close(student_t_entropy(2.5, float64(scale[:, 2])), entropy[:, 2])
    normal = 0.5 * math.log(2 * math.pi * math.e)
    assert float(student_t_entropy(1e6, torch.ones(()))) == pytest.approx(normal, abs=2e-6)
