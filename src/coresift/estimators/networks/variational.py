"""Train a Bayesian softmax layer together with a network, by variational inference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coresift.estimators.networks.labelled import LabelledStack, Rows, take_rows
from coresift.estimators.networks.losses import Objective
from coresift.estimators.networks.stack import Stack
from coresift.posteriors.softmax import SoftmaxPosterior


class VariationalSoftmax(nn.Module):
    """q(W) = N(mean, diag(std^2) + sum_r factor_r factor_r^T) of softmax(W x), with the prior N(0, I).

    Means start from N(0, 0.05^2) and log standard deviations from N(-4, 0.05^2) (paper, appendix); factors
    start so small that they at most double the variance. Without factors this is mean-field inference.

    Parameters
    ----------
    features : D, with the constant that stands for a bias.
    classes : C.
    rank : R, how many factors; C D of them can represent any covariance.
    generator : of the initial values; torch's own by default.

    Attributes
    ----------
    mean, log_std : (C D,), factor : (R C D,). They are flat, so that weight decay, which is for matrices,
        leaves them to their prior. Parameters of S layers, with S in front of every shape, work as well.

    >>> layer = VariationalSoftmax(features=3, classes=2)
    >>> logits, divergence = layer(torch.ones(5, 3), torch.randn(5, layer.noises))
    >>> logits.shape, divergence.shape
    (torch.Size([5, 2]), torch.Size([]))
    """

    def __init__(
        self, features: int, classes: int, rank: int = 0, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.features, self.classes, self.rank = features, classes, rank
        size = classes * features
        self.mean = nn.Parameter(0.05 * torch.randn(size, generator=generator))
        self.log_std = nn.Parameter(-4 + 0.05 * torch.randn(size, generator=generator))
        small = math.exp(-4) / math.sqrt(max(rank, 1))
        self.factor = nn.Parameter(small * torch.randn(rank * size, generator=generator))

    @property
    def noises(self) -> int:
        """How many standard normal numbers the logits of one row need."""
        return self.classes + self.rank

    def forward(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and divergence, the two parts of the evidence lower bound."""
        return self.logits(features, noise), self.kl()

    def logits(self, features: Tensor, noise: Tensor) -> Tensor:
        """(n, C) draws of W x for features (n, D) and standard normal noise (n, C + R).

        W x is Gaussian for given x, so its few numbers are drawn instead of the many of W. Each row has its
        own weights, which makes the gradient less noisy: local reparametrisation (Kingma et al., Variational
        Dropout and the Local Reparameterization Trick, 2015).
        """
        mean, std, factor = self._shaped()
        own, shared = noise[..., : self.classes], noise[..., self.classes :]
        spread = (features.square() @ std.square().mT).sqrt()  # (n, C)
        outputs = torch.addcmul(features @ mean.mT, spread, own)
        if self.rank:
            projected = torch.unflatten(features @ factor.flatten(-3, -2).mT, -1, (self.rank, self.classes))
            outputs = outputs + (shared.unsqueeze(-2) @ projected).squeeze(-2)  # (n, 1, R) @ (n, R, C)
        return outputs

    def kl(self) -> Tensor:
        """KL(q(W) || N(0, I)), a number: (trace + ||mean||^2 - C D - log determinant) / 2."""
        variance = (2 * self.log_std).exp()
        twice = (variance + self.mean.square() - 1 - 2 * self.log_std).sum(-1)
        twice = twice + self.factor.square().sum(-1)
        if self.rank:
            factor = torch.unflatten(self.factor, -1, (self.rank, -1))  # (R, C D)
            # The determinant lemma, in float64: the matrix holds both ones and (factor / std)^2.
            scaled = (factor / variance.sqrt().unsqueeze(-2)).double()
            inner = torch.eye(self.rank, dtype=scaled.dtype, device=scaled.device) + scaled @ scaled.mT
            diagonal = torch.linalg.cholesky(inner).diagonal(dim1=-2, dim2=-1)
            twice = twice - 2 * diagonal.log().sum(-1).to(twice)
        return 0.5 * twice

    def posterior(self, num_predictive: int = 100) -> SoftmaxPosterior:
        """Return the learned distribution, in float64, for features with their constant."""
        mean, std, factor = (value.detach().double() for value in self._shaped())
        return SoftmaxPosterior(mean, std, factor, num_predictive)

    def _shaped(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean (C, D), standard deviation (C, D) and factor (R, C, D)."""
        matrix = (self.classes, self.features)
        mean, std = (torch.unflatten(value, -1, matrix) for value in (self.mean, self.log_std.exp()))
        return mean, std, torch.unflatten(self.factor, -1, (self.rank, *matrix))


class EvidenceLowerBound(Objective):
    """Minus the evidence lower bound of a stack of networks `Headed` by a `VariationalSoftmax`,
    per labelled point.

    The mean over a mini-batch of -log softmax(W x)_y, with W x drawn by local reparametrisation, plus
    KL(q || prior) / n. Each network draws its noise from its own generator, and only for its own rows, so the
    result is the same as if it were trained alone.

    Parameters
    ----------
    generators : S, on the CPU, so that a seed means the same on every device. They are not those that
        shuffle, since orders are drawn many epochs ahead, and how many depends on the other networks. If the
        stack's steps are recorded, the GPU's generator is used instead, which gives new noise on each replay.
    """

    def __init__(self, stack: Stack, generators: Sequence[torch.Generator]) -> None:
        self.stack, self.generators, self.recordable = stack, generators, stack.records_steps

    def __call__(self, outputs: Tensor, data: LabelledStack, index: Rows, weights: Tensor) -> Tensor:
        head = cast(VariationalSoftmax, self.stack.template.head)
        parameters = {name: self.stack.parameters[f"head.{name}"] for name, _ in head.named_parameters()}
        if self.recordable:
            noise = torch.randn(*weights.shape, head.noises, dtype=outputs.dtype, device=outputs.device)
        else:
            noise = self._noise(weights, head.noises).to(outputs)
        features = torch.cat([outputs, torch.ones_like(outputs[..., :1])], -1)  # with a constant
        logits, divergence = functional_call(head, parameters, (features, noise))
        labels = take_rows(data.y, index)
        errors = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        losses: Tensor = (errors.view(weights.shape) * weights).sum(1) + divergence / data.sizes
        return losses

    def _noise(self, weights: Tensor, width: int) -> Tensor:
        """(S, m, width) standard normal for real rows, which come first, and zero for padding."""
        noise = torch.zeros(*weights.shape, width, dtype=weights.dtype)
        counts = (weights > 0).sum(1).tolist()
        for rows, count, generator in zip(noise, counts, self.generators, strict=True):
            rows[:count].normal_(generator=generator)
        return noise
