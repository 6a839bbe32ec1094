"""What networks minimise in training, and what their outputs mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from coresift.estimators.networks.labelled import LabelledStack, Rows, take_rows
from coresift.posteriors.samples import gaussian

# The least variance of a standardised target: without it a network that fits its labels exactly would be
# infinitely certain of them.
LEAST_VARIANCE = 1e-4

# The meaning of a network's outputs (J, n, C): a Distribution of batch shape (J, n).
Likelihood: TypeAlias = Callable[[Tensor], Distribution]


class Objective:
    """What is minimised; by default a loss of the mini-batch's rows, each by itself.

    Attributes
    ----------
    whole : whether each step needs the network's outputs of all labelled points, as an exact last layer does.
    alone : whether it needs those of the mini-batch, from a separate pass through the network.
    recordable : whether a CUDA graph can record the loss: it reads no values on the host and draws no noise
        there.
    """

    whole: bool = False
    alone: bool = True
    recordable: bool = True

    def __call__(self, outputs: Tensor, data: LabelledStack, index: Rows, weights: Tensor) -> Tensor:
        """Return the losses (S,).

        Parameters
        ----------
        outputs : (S, n, D) of all points if ``whole``, then (S, m, D) of the mini-batch if ``alone``.
        data : the labelled sets, shuffled.
        index : the mini-batch's rows, for `take_rows`.
        weights : (S, m) of the rows: 1 / size of the mini-batch, zero for padding.
        """
        return (self.of_rows(outputs, take_rows(data.y, index)) * weights).sum(1)

    def of_rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(S, m) the losses of rows with outputs (S, m, D) and targets y (S, m, ...)."""
        raise NotImplementedError


class SquaredError(Objective):
    """Half the squared error."""

    def of_rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (y - outputs).square().sum(2)


class GaussianLoss(Objective):
    """Minus the log density under each network's means and variances, up to a constant."""

    def of_rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, variance = _moments(outputs)
        return (0.5 * (variance.log() + (y - mean).square() / variance)).sum(2)


class CrossEntropy(Objective):
    """Minus the log probability of the class."""

    def of_rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        return -outputs.log_softmax(2).gather(2, y.unsqueeze(2)).squeeze(2)


@dataclass(frozen=True, eq=False)
class GaussianOutputs:
    """Read outputs (..., 2 O), means and variances of standardised targets, as Gaussians in the units of y.

    Attributes
    ----------
    mean, std : (O,) of the targets.
    """

    mean: Tensor
    std: Tensor

    def __call__(self, outputs: Tensor) -> Distribution:
        mean, variance = _moments(outputs.double())
        shift, scale = self.mean.to(mean), self.std.to(mean)
        return gaussian(mean * scale + shift, variance.sqrt() * scale)


def _moments(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances (..., O) from outputs (..., 2 O)."""
    mean, raw = outputs.chunk(2, -1)
    # Softplus and not exp: far from the labelled points the variance grows, but does not explode.
    return mean, nn.functional.softplus(raw) + LEAST_VARIANCE


@dataclass(frozen=True)
class ExactLastLayer(Objective):
    """Minus the predictive log density of a mini-batch, given the last layer's posterior on the whole set,
    up to a constant.

    theta | s2 ~ N(0, s2 prior_variance I), s2 ~ InverseGamma(noise_shape, noise_rate), a weight vector and a
    noise variance for each output; the predictive is Student's t. Gradients flow through the posterior.

    With ``alone`` the mini-batch goes through the network in a separate pass. Batch norm then uses other
    statistics than for the posterior: noise that keeps the network from fitting the noise of the labels.
    """

    prior_variance: float = 1.0
    noise_shape: float = 1.0
    noise_rate: float = 1.0
    alone: bool = False
    whole = True

    def __call__(self, outputs: Tensor, data: LabelledStack, index: Rows, weights: Tensor) -> Tensor:
        ones = outputs.new_ones(len(outputs), 1, outputs.shape[1])
        columns = torch.cat([outputs.mT, ones], 1)  # (S, D, n), the features with a constant
        if data.rows is not None:
            real = [data.rows > 0, weights > 0] if self.alone else [data.rows > 0]
            columns = columns * torch.cat(real, 1).unsqueeze(1)
        loss: Any = _PredictiveLoss.apply
        losses: Tensor = loss(columns, data, index, weights, self)
        return losses


class _PredictiveLoss(torch.autograd.Function):
    """Minus the predictive log density of a mini-batch, with its gradient written out.

    With Phi (D, n) the features, P = I / prior_variance + Phi Phi^T, q = Phi Y and theta = P^-1 q, a row phi
    has s = phi^T P^-1 phi and the location theta^T phi; the noise has the rate b0 + (Y^T Y - q^T theta) / 2.
    The gradient needs the same solutions as the value, so both are computed at once: automatic
    differentiation of the Cholesky factor would cost twice as much again.
    """

    @staticmethod
    def forward(
        ctx: Any, columns: Tensor, data: LabelledStack, index: Rows, weights: Tensor, prior: ExactLastLayer
    ) -> Tensor:
        """(S,) losses from columns (S, D, n) and the mini-batch's rows (S, m), or columns (S, D, n + m)."""
        targets, length = data.y, data.y.shape[1]
        where = index if isinstance(index, slice) else index.unsqueeze(1).expand(-1, columns.shape[1], -1)
        batch = columns[:, :, length:]  # (S, D, m) if it comes from a separate pass
        columns = columns[:, :, :length]
        if not prior.alone:
            batch = columns[:, :, where] if isinstance(where, slice) else columns.gather(2, where)
        theta, pulled, shape, rate = _posterior(columns, batch, data, prior)
        spread = 1 + (batch * pulled).sum(1).unsqueeze(2)  # (S, m, 1), 1 + s
        errors, weights = take_rows(targets, index) - batch.mT @ theta, weights.unsqueeze(2)
        losses, by_log_variance, by_location = _student_t(errors, weights, shape, rate, spread)

        by_spread = by_log_variance.sum(2, keepdim=True) / spread  # (S, m, 1)
        by_rate = by_log_variance.sum(1, keepdim=True) / rate  # (S, 1, O)
        toward = torch.bmm(pulled, by_location)  # (S, D, O)
        weighted = pulled * by_spread.mT
        # Through P, which holds every row twice, and is symmetric.
        half = torch.baddbmm((0.5 * theta * by_rate - toward) @ theta.mT, weighted, pulled.mT, alpha=-1)
        gradient = torch.bmm(half + half.mT, columns)
        gradient.baddbmm_(toward - theta * by_rate, targets.mT)  # through q
        direct = torch.baddbmm(2 * weighted, theta, by_location.mT)
        if prior.alone:
            gradient = torch.cat([gradient, direct], 2)
        elif isinstance(where, slice):
            gradient[:, :, where] += direct
        else:
            gradient.scatter_add_(2, where, direct)
        ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        # The outer gradient of a sum of losses is one: on a CPU it is cheaper to check than to multiply.
        if outer[0].is_cuda or not bool((outer[0] == 1).all()):
            gradient = gradient * outer[0].view(-1, 1, 1)
        return gradient, None, None, None, None


def _posterior(
    columns: Tensor, batch: Tensor, data: LabelledStack, prior: ExactLastLayer
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solve the last layer on features (S, D, n), and for a mini-batch of features phi (S, D, m).

    Returns theta (S, D, O), P^-1 phi (S, D, m), and the noise's shape (S, 1, 1) and rate (S, 1, O).
    """
    identity = torch.eye(columns.shape[1], dtype=columns.dtype, device=columns.device) / prior.prior_variance
    factor, failed = torch.linalg.cholesky_ex(torch.baddbmm(identity, columns, columns.mT))
    # No exception, which would wait for the GPU in every step: the trainer checks once, at the end.
    factor = factor.masked_fill(failed.bool().view(-1, 1, 1), torch.nan)
    summary = columns @ data.y  # q (S, D, O)
    solved = _solve(factor, torch.cat([batch, summary], 2))
    pulled, theta = solved[:, :, : batch.shape[2]], solved[:, :, batch.shape[2] :]
    shape = (prior.noise_shape + data.sizes / 2).to(columns).view(-1, 1, 1)
    rate = prior.noise_rate + 0.5 * (data.y.square().sum(1) - (summary * theta).sum(1)).unsqueeze(1)
    return theta, pulled, shape, rate


def _student_t(
    errors: Tensor, weights: Tensor, shape: Tensor, rate: Tensor, spread: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses (S,), and their derivatives (S, m, O) by log variance and by location."""
    variance = rate / shape * spread  # the squared scale of Student's t
    ratio = errors.square() / (2 * shape * variance)
    densities = 0.5 * variance.log() + (shape + 0.5) * torch.log1p(ratio)
    heavy = (shape + 0.5) / (1 + ratio)
    by_log_variance = weights * (0.5 - heavy * ratio)
    by_location = -weights * heavy * errors / (shape * variance)
    return (densities * weights).sum((1, 2)), by_log_variance, by_location


def _solve(factor: Tensor, right: Tensor) -> Tensor:
    """(S, D, m) P^-1 right, from the lower Cholesky factor of P (S, D, D)."""
    if not factor.is_cuda:
        return torch.cholesky_solve(right, factor)
    # The same in two steps: torch's own solver of many small systems cannot be recorded in a CUDA graph.
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    solved: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return solved
