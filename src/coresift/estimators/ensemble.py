"""Deep ensembles: networks that differ in their initialisation and shuffling, trained side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from coresift.estimators.base import NetworkClassifier
from coresift.estimators.networks.losses import Likelihood
from coresift.estimators.stacked import Networks, StackedEstimator, StackedRegressor
from coresift.posteriors.network import outputs_of
from coresift.posteriors.samples import by_blocks, choose, mixture


@dataclass(frozen=True, eq=False)
class EnsemblePosterior:
    """K networks with equal weights: its samples are the members, its predictive their mixture.

    Attributes
    ----------
    members : each rows (n, ...) -> outputs (n, C), in evaluation mode.
    likelihood : outputs (J, n, C) -> a Distribution of batch shape (J, n).
    """

    members: tuple[nn.Module, ...]
    likelihood: Likelihood

    def to(self, device: torch.device | str) -> EnsemblePosterior:
        """Move to another device; the members themselves move, as modules do."""
        return EnsemblePosterior(tuple(member.to(device) for member in self.members), self.likelihood)

    @property
    def num_samples(self) -> int:
        return len(self.members)

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw the indices of up to ``num`` members, without repetition."""
        return choose(len(self.members), num, generator)

    def conditional(self, x: Tensor, theta: Iterable[Any]) -> Distribution:
        return self.likelihood(torch.stack([outputs_of(self.members[int(k)], x) for k in theta]))

    def predictive(self, x: Tensor) -> Distribution:
        members = range(len(self.members))
        numbers = len(members) * outputs_of(self.members[0], x[:1]).numel()
        return by_blocks(lambda rows: mixture(self.conditional(rows, members)), x, numbers)


@dataclass(eq=False, repr=False, kw_only=True)
class _Ensemble(StackedEstimator):
    """What ensembles share."""

    posterior_type = EnsemblePosterior

    num_members: int = 20

    def _new_posterior(self, networks: Networks, likelihood: Likelihood, *_: Tensor) -> EnsemblePosterior:
        return EnsemblePosterior(tuple(networks), likelihood)

    def _networks(self) -> Networks:
        return list(self.posterior_.members)


@dataclass(eq=False, repr=False, kw_only=True)
class EnsembleRegressor(StackedRegressor, _Ensemble):
    """Regression with a deep ensemble: each member predicts a mean and a variance.

    Members are trained by the Gaussian log density of mini-batches, all side by side on the same data, each
    from its own initialisation and in its own order. The predictive is the Gaussian with the mean and
    variance of their mixture. Inputs and outputs are standardised inside; predictions and ``posterior_``
    are in the units of ``y``.

    Parameters
    ----------
    network : the members' layers below the last, linear one, see `NeuralLinearClassifier`.
    num_members : K. In K dimensions about K points already represent a whole pool: more members than points
        in a batch are better.
    epochs, learning_rate, batch_size, weight_decay, schedule, least_steps : see `Trainer`.
    augment, random_state, device, precision, progress : see `NeuralLinearClassifier`.

    Attributes
    ----------
    posterior_ : for `coresift.select`; its samples are the members.

    References
    ----------
    Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles, 2017.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = EnsembleRegressor(num_members=3, epochs=20, random_state=0).fit(x, x[:, 0] ** 2)
    >>> mean, std = model.predict(x, return_std=True)
    >>> mean.shape, bool((std > 0).all())
    ((40,), True)
    """

    weight_decay: float = 1.0


class EnsembleClassifier(NetworkClassifier, _Ensemble):
    """Classification with a deep ensemble: each member predicts class probabilities, and they are averaged.

    Members are trained by the cross-entropy of mini-batches, all side by side on the same data, each from its
    own initialisation and in its own order. Inputs are standardised inside.

    Parameters
    ----------
    network, num_members, ..., progress : as for `EnsembleRegressor`.

    Attributes
    ----------
    classes_ : the labels, in the order of ``predict_proba``'s columns; after ``fit_many``, those of all sets.
    posterior_ : for `coresift.select`; its samples are the members.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = EnsembleClassifier(num_members=3, epochs=20, random_state=0)
    >>> model = model.fit(x, np.where(x[:, 0] > 0, "+", "-"))
    >>> model.predict(x[[0, -1]]).tolist()
    ['-', '+']
    """
