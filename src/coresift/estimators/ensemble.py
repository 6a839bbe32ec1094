"""Deep ensembles: networks that differ in their initialisation and shuffling, trained side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from coresift.estimators.plain import KnownByNetworks, Likelihood, PlainClassifier, PlainRegressor
from coresift.posteriors.network import outputs_of
from coresift.posteriors.samples import by_blocks, choose, mixture


@dataclass(frozen=True, eq=False)
class EnsemblePosterior:
    """K networks of equal standing: its samples are the members, its predictive their mixture.

    Attributes
    ----------
    members : each rows (n, ...) -> outputs (n, C), in evaluation mode.
    likelihood : outputs (J, n, C) -> a Distribution of batch shape (J, n).
    """

    members: tuple[nn.Module, ...]
    likelihood: Likelihood

    def to(self, device: torch.device | str) -> EnsemblePosterior:
        """The same on another device; the members move there, as modules do."""
        return EnsemblePosterior(tuple(member.to(device) for member in self.members), self.likelihood)

    @property
    def num_samples(self) -> int:
        return len(self.members)

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Positions of up to ``num`` members, without repetition."""
        return choose(len(self.members), num, generator)

    def conditional(self, x: Tensor, theta: Iterable[Any]) -> Distribution:
        return self.likelihood(torch.stack([outputs_of(self.members[int(k)], x) for k in theta]))

    def predictive(self, x: Tensor) -> Distribution:
        everyone = range(len(self.members))
        numbers = len(everyone) * outputs_of(self.members[0], x[:1]).numel()
        return by_blocks(lambda rows: mixture(self.conditional(rows, everyone)), x, numbers)


class _Ensemble(KnownByNetworks):
    """What ensembles share."""

    num_members: int
    posterior_: EnsemblePosterior

    def __init__(
        self,
        network: nn.Module | Callable[[int], nn.Module] | None = None,
        *,
        num_members: int = 20,
        epochs: int = 300,
        learning_rate: float = 1e-2,
        batch_size: int | None = None,
        weight_decay: float = 1.0,
        random_state: int | None = None,
        device: str = "cpu",
        progress: bool = True,
    ) -> None:
        self.network = network
        self.num_members = num_members
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.random_state = random_state
        self.device = device
        self.progress = progress

    @property
    def _num_networks(self) -> int:
        return int(self.num_members)

    def _check_options(self) -> None:
        super()._check_options()
        self._check_option("num_members", Integral, 1)

    def _set_posterior(self, networks: Sequence[nn.Module], likelihood: Likelihood) -> None:
        self.posterior_ = EnsemblePosterior(tuple(networks), likelihood)

    def _networks(self) -> Sequence[nn.Module]:
        return self.posterior_.members


class EnsembleRegressor(PlainRegressor, _Ensemble):
    """Regression with a deep ensemble: each member predicts a mean and a variance.

    Members are trained by the Gaussian log density of mini-batches, all side by side on the same data, each
    from its own initialisation and in its own order. The predictive is the Gaussian with the mean and
    variance of their mixture. Inputs and outputs are standardised inside; predictions and ``posterior_``
    are in the units of ``y``.

    Parameters
    ----------
    network : the members' layers below the last, linear one: ``None`` for two layers of 30 units with batch
        norm, a module (used for its layers; its weights are drawn anew), or a function from the number of
        columns or channels to a module.
    num_members : K. In K dimensions about K points already stand for a whole pool: more members than points
        in a batch are better.
    epochs, learning_rate, batch_size, weight_decay : see `Trainer`.
    random_state : seed of weights and shuffling.
    device : where to train, "cpu" or "cuda".
    progress : show a bar on a terminal once training has taken two seconds.

    Attributes
    ----------
    posterior_ : for `coresift.select`; its samples are the members.

    References
    ----------
    Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles, 2017.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = EnsembleRegressor(num_members=3, epochs=20, random_state=0).fit(x, x[:, 0] ** 2)
    >>> mean, deviation = model.predict(x, return_std=True)
    >>> mean.shape, bool((deviation > 0).all())
    ((40,), True)
    """


class EnsembleClassifier(PlainClassifier, _Ensemble):
    """Classification with a deep ensemble: each member predicts class probabilities, and they are averaged.

    Members are trained by the cross-entropy of mini-batches, all side by side on the same data, each from its
    own initialisation and in its own order. Inputs are standardised inside.

    Parameters
    ----------
    network, num_members, epochs, learning_rate, batch_size, weight_decay, random_state, device, progress :
        as for `EnsembleRegressor`.

    Attributes
    ----------
    classes_ : (C,) the labels, in the order of ``predict_proba``'s columns; after ``fit_many``, those of all
        sets.
    posterior_ : for `coresift.select`; its samples are the members.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = EnsembleClassifier(num_members=3, epochs=20, random_state=0)
    >>> model = model.fit(x, np.where(x[:, 0] > 0, "+", "-"))
    >>> model.predict(x[[0, -1]]).tolist()
    ['-', '+']
    """

    def __init__(
        self,
        network: nn.Module | Callable[[int], nn.Module] | None = None,
        *,
        num_members: int = 20,
        epochs: int = 300,
        learning_rate: float = 1e-2,
        batch_size: int | None = None,
        weight_decay: float = 1e-2,
        random_state: int | None = None,
        device: str = "cpu",
        progress: bool = True,
    ) -> None:
        super().__init__(
            network,
            num_members=num_members,
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            weight_decay=weight_decay,
            random_state=random_state,
            device=device,
            progress=progress,
        )
