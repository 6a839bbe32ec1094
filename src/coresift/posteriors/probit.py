"""Bayesian probit regression: Gaussian weights, fitted by expectation propagation or Laplace."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Bernoulli

from coresift.checks import check_choice, check_integer, check_positive
from coresift.errors import InputError
from coresift.posteriors.linear import GaussianWeights, check_labelled, gaussian_prior, quadratic


@dataclass(frozen=True, eq=False)
class ProbitPosterior(GaussianWeights):
    """theta ~ N(mean, covariance), y in {0, 1} with p(y = 1 | x, theta) = Phi(theta^T x).

    The predictive is exact: p(y = 1 | x) = Phi(zeta) with zeta = mean^T x / sqrt(1 + x^T covariance x).

    >>> posterior = ProbitPosterior(torch.tensor([1.0, 0.0]), torch.eye(2))
    >>> posterior.predictive(torch.tensor([[0.0, 3.0], [1.0, 0.0]])).probs
    tensor([0.5000, 0.7602])
    """

    def likelihood(self, outputs: Tensor, theta: Tensor) -> Bernoulli:
        return _bernoulli(outputs.squeeze(-1))

    def predictive(self, x: Tensor) -> Bernoulli:
        scale = (1 + self.function_variance(x)).sqrt().to(self.mean)
        return _bernoulli(self.features(x) @ self.mean / scale)


@dataclass(frozen=True)
class BayesianProbitRegression:
    """Fits probit regression with a Gaussian prior and a Gaussian approximation of the posterior.

    The columns of x are used as they are: append a column of ones for an intercept.

    Parameters
    ----------
    method : ``"ep"``, expectation propagation, matches the mean and the covariance and is the more accurate;
        ``"laplace"`` takes the mode and the curvature there.
    prior_mean : a number or (d,).
    prior_covariance : a variance shared by all weights, (d,) variances, or a (d, d) covariance.
    max_iterations : a RuntimeWarning says when they were too few.
    tolerance : the fit ends when an iteration moves it by less, in posterior standard deviations.

    References
    ----------
    Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, sections 3.4 and 3.6.

    >>> x = torch.tensor([[1.0], [2.0], [-1.0]], dtype=torch.float64)
    >>> posterior = BayesianProbitRegression().fit(x, torch.tensor([True, True, False]))
    >>> bool(posterior.mean > 0), bool(posterior.covariance < 1)
    (True, True)
    """

    method: Literal["ep", "laplace"] = "ep"
    prior_mean: float | Tensor = 0.0
    prior_covariance: float | Tensor = 1.0
    max_iterations: int = 1000
    tolerance: float = 1e-8

    def __post_init__(self) -> None:
        check_choice(self.method, ["ep", "laplace"], "method")
        object.__setattr__(self, "max_iterations", check_integer(self.max_iterations, 1, "max_iterations"))
        check_positive(self.tolerance, "tolerance")

    def fit(self, x: Tensor, y: Tensor) -> ProbitPosterior:
        """Condition on rows ``x`` (n, d) and labels ``y`` (n,) of 0 and 1; n may be zero, for the prior."""
        given, y = check_labelled(x, y)
        wrong = ((y != 0) & (y != 1)).nonzero()
        if len(wrong):
            row = int(wrong[0])
            raise InputError(
                f"y holds {float(y[row]):g} in row {row}, expected labels 0 and 1; "
                "map other codings, such as -1 and 1, to these first"
            )
        x = given.double()
        mean, precision = gaussian_prior(self.prior_mean, self.prior_covariance, x)
        signed = x * (2 * y.double() - 1)[:, None]  # p(y | x, theta) = Phi(theta^T signed) for either label
        solve = self._expectation_propagation if self.method == "ep" else self._laplace
        mean, covariance = solve(signed, mean, precision)
        return ProbitPosterior(mean.to(given), covariance.to(given))

    def _expectation_propagation(
        self, x: Tensor, prior_mean: Tensor, prior_precision: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return mean (d,) and covariance (d, d) for signed rows ``x`` (n, d).

        Each label's likelihood is replaced by a site exp(shift_n f - precision_n f^2 / 2) in f = theta^T x_n,
        such that mean and variance of f are the same with either. All sites are updated together, by damped
        steps, with more damping once they overshoot.
        """
        site_precision, site_shift = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
        shift, damping, change = prior_precision @ prior_mean, 0.5, math.inf
        for _ in range(self.max_iterations):
            mean, covariance = _gaussian(prior_precision, shift, x, site_precision, site_shift)
            f_mean, f_variance = x @ mean, quadratic(x, covariance)
            # The cavity: f without its own site. Sites of a log-concave likelihood are non-negative, and
            # the rest is therefore a proper Gaussian.
            rest = 1 - site_precision * f_variance
            cavity_mean = (f_mean - site_shift * f_variance) / rest
            cavity_variance = f_variance / rest
            scale = (1 + cavity_variance).sqrt()
            slope, curvature = _log_cdf_derivatives(cavity_mean / scale)
            slope, curvature = slope / scale, curvature / scale**2
            # 1 / tilted variance - 1 / cavity variance, and likewise for the shift, without dividing by a
            # variance that is zero for a row of zeros.
            kept = 1 - cavity_variance * curvature
            precision_step = curvature / kept - site_precision
            shift_step = (cavity_mean * curvature + slope) / kept - site_shift
            previous = change
            change = float((precision_step * f_variance).norm() + (shift_step * f_variance.sqrt()).norm())
            if change < self.tolerance:
                break
            if change > previous:
                damping /= 2
            site_precision = site_precision + damping * precision_step
            site_shift = site_shift + damping * shift_step
        else:
            self._warn("expectation propagation", change)
        return mean, covariance

    def _laplace(self, x: Tensor, prior_mean: Tensor, prior_precision: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mode (d,), found by Newton's method, and the inverse curvature there (d, d)."""

        def log_density(theta: Tensor) -> float:
            shift = theta - prior_mean
            return float(torch.special.log_ndtr(x @ theta).sum() - 0.5 * shift @ prior_precision @ shift)

        mode, height = prior_mean, log_density(prior_mean)
        for _ in range(self.max_iterations):
            slope, curvature = _log_cdf_derivatives(x @ mode)
            gradient = x.mT @ slope - prior_precision @ (mode - prior_mean)
            step, covariance = _gaussian(prior_precision, gradient, x, curvature, torch.zeros_like(slope))
            change = max(float(gradient @ step), 0.0) ** 0.5  # the step in posterior standard deviations
            if change < self.tolerance:
                break
            # A full step may overshoot far from the mode, and near it can lower the density by rounding.
            while log_density(mode + step) < height - 1e-12 * abs(height):
                step = step / 2
            mode = mode + step
            height = log_density(mode)
        else:
            self._warn("Newton's method", change)
        return mode, covariance

    def _warn(self, what: str, change: float) -> None:
        warnings.warn(
            f"{what} still moved by {change:.3g} posterior standard deviations after {self.max_iterations} "
            f"iterations (tolerance {self.tolerance:g}); raise max_iterations, or scale the columns of x",
            RuntimeWarning,
            stacklevel=4,
        )


def _gaussian(
    prior_precision: Tensor, prior_shift: Tensor, x: Tensor, precision: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    """Return mean (d,) and covariance (d, d) of a Gaussian prior times Gaussian sites along rows (n, d)."""
    posterior_precision = prior_precision + x.mT @ (precision[:, None] * x)
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(posterior_precision))
    return covariance @ (prior_shift + x.mT @ shift), covariance


def _log_cdf_derivatives(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first derivative of log Phi and minus the second, which lies between 0 and 1."""
    # phi / Phi through erfcx, which does not underflow for any z.
    slope = math.sqrt(2 / math.pi) / torch.special.erfcx(-z / math.sqrt(2))
    return slope, (slope * (z + slope)).clamp(0, 1)


def _bernoulli(z: Tensor) -> Bernoulli:
    """Return the distribution of Y = 1 with probability Phi(z)."""
    # log Phi(z) - log Phi(-z) keeps the smaller of the two probabilities, where Phi(z) would round to 1.
    logits = torch.special.log_ndtr(z) - torch.special.log_ndtr(-z)
    # They are about z^2 / 2, which has to stay finite.
    return Bernoulli(logits=logits.clamp(-1e9, 1e9))
