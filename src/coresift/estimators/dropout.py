"""Monte Carlo dropout: a network trained with dropout, with a posterior sample for each set of masks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from coresift import limits
from coresift.checks import check_choice, check_integer, check_positive
from coresift.errors import InputError, shown
from coresift.estimators.base import NetworkClassifier
from coresift.estimators.networks.extractors import seeded
from coresift.estimators.networks.losses import Likelihood
from coresift.estimators.stacked import Networks, StackedEstimator, StackedRegressor
from coresift.posteriors.network import input_tensor, rows_per_pass
from coresift.posteriors.samples import by_blocks, categorical, gaussian, mixture, own_generator

_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # drop whole channels
_DROPOUT = (nn.Dropout, *_CHANNELS)  # a plain one drops single units
_WIDTH = 30  # of the hidden layers of the estimators' default network


@dataclass(frozen=True, eq=False)
class DropoutPosterior:
    """A network with dropout, in all of its layers or only in the last: its masks are the posterior samples.

    The paper's Algorithm 2 compares points under the *same* theta_j. Therefore a sample fixes one mask for
    each call of a dropout layer, and every row of every chunk sees that mask; in training mode the network
    would draw another for each row. All other layers are in evaluation mode. The network is copied, so
    further training does not change the posterior.

    Parameters
    ----------
    network : rows (n, ...) -> outputs (n, C), with layers `nn.Dropout`, `nn.Dropout1d`, 2d or 3d.
    likelihood : the meaning of the outputs: "classes" for logits, "gaussian" for means, or a function from
        outputs (J, n, ...) to a Distribution of batch shape (J, n).
    noise_variance : of y, in the Gaussian case.
    num_predictive : how many sets of masks the predictive averages over, always the same ones.

    References
    ----------
    Gal and Ghahramani, Dropout as a Bayesian Approximation, 2016.

    >>> network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    >>> posterior = DropoutPosterior(network)
    >>> posterior.conditional(torch.ones(4, 2), posterior.sample(5, torch.Generator())).batch_shape
    torch.Size([5, 4])
    """

    network: nn.Module
    likelihood: Literal["classes", "gaussian"] | Callable[[Tensor], Distribution] = "classes"
    noise_variance: float | None = None
    num_predictive: int = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", copy.deepcopy(self.network).eval())
        if not self._layers:
            raise InputError(
                "the network has no dropout layer: it needs nn.Dropout, nn.Dropout1d, nn.Dropout2d or "
                "nn.Dropout3d (a call of F.dropout cannot be seen from outside)"
            )
        num_predictive = check_integer(self.num_predictive, 1, "num_predictive")
        object.__setattr__(self, "num_predictive", num_predictive)
        if not callable(self.likelihood) and self.likelihood not in ("classes", "gaussian"):
            raise InputError(
                f"likelihood is {shown(self.likelihood)}, expected 'classes', 'gaussian' or a function"
            )
        if (self.likelihood == "gaussian") != (self.noise_variance is not None):
            raise InputError("likelihood='gaussian' needs noise_variance=, and no other likelihood takes it")
        if self.noise_variance is not None:
            check_positive(self.noise_variance, "noise_variance")

    def to(self, device: torch.device | str) -> DropoutPosterior:
        """Copy to another device."""
        moved = replace(self)  # with a copy of the network
        moved.network.to(device)
        return moved

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw (J,) seeds, one for each set of masks, which are drawn from it when they are needed."""
        return torch.randint(2**62, (num,), generator=generator)

    def conditional(self, x: Tensor, theta: Tensor) -> Distribution:
        outputs = self.outputs(x, theta)
        if callable(self.likelihood):
            return self.likelihood(outputs)
        if self.noise_variance is not None:
            mean = outputs.reshape(*outputs.shape[:2], -1)
            return gaussian(mean, torch.full_like(mean, self.noise_variance**0.5))
        if outputs.shape[-1] < 2:
            raise InputError(
                "likelihood 'classes' needs an output for each class, the network has one; for a single "
                "logit pass a function, such as lambda outputs: Bernoulli(logits=outputs[..., 0])"
            )
        return categorical(outputs)

    def predictive(self, x: Tensor) -> Distribution:
        numbers = self.num_predictive * self.outputs(x[:1], self._seeds[:1]).numel()
        return by_blocks(lambda rows: mixture(self.conditional(rows, self._seeds)), x, numbers)

    @torch.no_grad()
    def outputs(self, x: Tensor, theta: Tensor) -> Tensor:
        """(J, n, ...) the network's outputs with the masks of each seed."""
        where = input_tensor(self.network)
        layers = self._record(x[:1].to(where))
        masks = [_draw(layers, int(seed)) for seed in theta]
        stacked = [torch.stack(samples).to(where.device) for samples in zip(*masks, strict=True)]
        widest = max(row.numel() for _, row in layers)
        size = max(min(limits.MASKED_NUMBERS // (len(theta) * widest), rows_per_pass(x.shape[1:])), 1)
        return torch.cat([self._masked(rows.to(where), stacked) for rows in torch.split(x, size)], 1)

    def _masked(self, x: Tensor, masks: list[Tensor]) -> Tensor:
        """(J, n, ...) outputs, with masks (J, ...) in the order in which the layers are called."""

        def single(*own: Tensor) -> Tensor:
            remaining = iter(own)
            with self._hooked(lambda _, output: output * next(remaining).to(output)):
                outputs: Tensor = self.network(x)
                return outputs

        try:  # what comes before the first dropout layer is computed once for all samples
            outputs: Tensor = torch.vmap(single)(*masks)
        except RuntimeError:  # a network that torch cannot vectorise
            outputs = torch.stack([single(*own) for own in zip(*masks, strict=True)])
        return outputs

    def _record(self, row: Tensor) -> list[tuple[nn.Module, torch.Size]]:
        """List the dropout layers in the order of their calls, with the shape of a row there."""
        calls: list[tuple[nn.Module, torch.Size]] = []

        def note(layer: nn.Module, output: Tensor) -> Tensor:
            if len(output) != 1:
                raise InputError(
                    f"a dropout layer sees shape {tuple(output.shape)} for a single row of the pool; "
                    "rows must stay separate, along the first axis"
                )
            calls.append((layer, output.shape[1:]))
            return output

        with self._hooked(note):
            self.network(row)
        if not calls:
            raise InputError("the network has dropout layers, but calls none of them")
        return calls

    @contextmanager
    def _hooked(self, change: Callable[[nn.Module, Tensor], Tensor]) -> Iterator[None]:
        """Apply ``change`` to every dropout layer's output, which is its input in evaluation mode."""
        with ExitStack() as hooks:
            for layer in self._layers:
                hook = layer.register_forward_hook(lambda layer, _, output: change(layer, output))
                hooks.callback(hook.remove)
            yield

    @cached_property
    def _layers(self) -> list[nn.Module]:
        return [layer for layer in self.network.modules() if isinstance(layer, _DROPOUT)]

    @cached_property
    def _seeds(self) -> Tensor:
        return self.sample(self.num_predictive, own_generator())


@dataclass(eq=False, repr=False, kw_only=True)
class _Dropout(StackedEstimator):
    """What the estimators share: one network, with dropout before its head."""

    posterior_type = DropoutPosterior

    dropout: float = 0.1
    where: Literal["all", "last"] = "all"
    num_predictive: int = 100

    def _check_options(self) -> None:
        super()._check_options()
        check_integer(self.num_predictive, 1, "num_predictive")
        if not isinstance(self.dropout, Real) or not 0 < self.dropout < 1:
            raise InputError(f"dropout is {shown(self.dropout)}, expected a probability between 0 and 1")
        check_choice(self.where, ("all", "last"), "where")

    def _new_extractor(self, inputs: int, generator: torch.Generator) -> nn.Module:
        own = self.network is not None
        extractor = super()._new_extractor(inputs, generator) if own else self._plain(inputs, generator)
        if self.where == "last":
            _remove_dropout(extractor)
        return nn.Sequential(extractor, nn.Dropout(self.dropout))

    def _plain(self, inputs: int, generator: torch.Generator) -> nn.Module:
        """No batch norm: if sets of several sizes are fitted together, its statistics would see padding."""
        with seeded(generator):
            first, second = nn.Linear(inputs, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        return nn.Sequential(first, nn.ReLU(), nn.Dropout(self.dropout), second, nn.ReLU())

    def _new_posterior(self, networks: Networks, likelihood: Likelihood, *_: Tensor) -> DropoutPosterior:
        return DropoutPosterior(networks[0], likelihood, num_predictive=self.num_predictive)

    def _networks(self) -> Networks:
        return [self.posterior_.network]


class DropoutRegressor(StackedRegressor, _Dropout):
    """Regression with Monte Carlo dropout: a network predicts a mean and a variance under each set of masks.

    Trained by the Gaussian log density of mini-batches. The predictive is the Gaussian with the mean and
    variance of the mixture over masks. Inputs and outputs are standardised inside; predictions and
    ``posterior_`` are in the units of ``y``. In ``fit_many`` training uses other masks than in ``fit``.

    Parameters
    ----------
    network : the layers below the last one, see `NeuralLinearClassifier`; by default without batch norm.
    dropout : the probability with which a unit is dropped.
    where : "all" for dropout after every hidden layer, "last" for dropout only before the last layer. A
        network of the user's gets one before the last layer; "all" keeps the dropout layers that it has,
        "last" removes them.
    num_predictive : how many sets of masks a prediction averages over.
    epochs, learning_rate, batch_size, weight_decay, schedule, least_steps : see `Trainer`.
    augment, random_state, device, precision, progress : see `NeuralLinearClassifier`.

    Attributes
    ----------
    posterior_ : for `coresift.select`, a `DropoutPosterior`.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = DropoutRegressor(epochs=20, random_state=0).fit(x, x[:, 0] ** 2)
    >>> mean, std = model.predict(x, return_std=True)
    >>> mean.shape, bool((std > 0).all())
    ((40,), True)
    """


class DropoutClassifier(NetworkClassifier, _Dropout):
    """Classification with Monte Carlo dropout: class probabilities are averaged over masks.

    Trained by the cross-entropy of mini-batches. Inputs are standardised inside.

    Parameters
    ----------
    network, dropout, where, ..., progress : as for `DropoutRegressor`.

    Attributes
    ----------
    classes_ : the labels, in the order of ``predict_proba``'s columns; after ``fit_many``, those of all sets.
    posterior_ : for `coresift.select`, a `DropoutPosterior`.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = DropoutClassifier(epochs=20, random_state=0).fit(x, np.where(x[:, 0] > 0, "+", "-"))
    >>> model.predict(x[[0, -1]]).tolist()
    ['-', '+']
    """


def _remove_dropout(network: nn.Module) -> None:
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, _DROPOUT):
                setattr(parent, name, nn.Identity())


def _draw(layers: list[tuple[nn.Module, torch.Size]], seed: int) -> list[Tensor]:
    """Draw a set of masks, each of the shape of a row or of its channels: zero, or 1 / (1 - p) if kept."""
    generator = torch.Generator().manual_seed(seed)
    masks = []
    for layer, row in layers:
        shape = (row[0], *[1] * (len(row) - 1)) if isinstance(layer, _CHANNELS) else row
        rate = float(layer.p)  # type: ignore[arg-type]
        kept = torch.rand(shape, generator=generator) >= rate
        masks.append(kept / (1 - rate) if rate < 1 else kept.float())
    return masks
