"""Gaussian process regression with a Matern 5/2 kernel that is fitted by marginal likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coresift import limits
from coresift.checks import check_integer, check_shape, check_switch
from coresift.estimators.estimator import LabelledSet, Regressor
from coresift.estimators.marginal_likelihood import (
    MarginalLikelihood,
    Parameters,
    Prior,
    optimised,
    starts,
)
from coresift.estimators.networks.layers import Standardise
from coresift.estimators.saving import State
from coresift.posteriors.gaussian_process import (
    GaussianProcessPosterior,
    exact_posterior,
    inducing_posterior,
)
from coresift.posteriors.kernels import Matern52, pivoted_cholesky
from coresift.progress import progress_bar
from coresift.threads import enough_threads

_TENSORS = ("points", "weights", "root", "remaining")


class _Scaled(NamedTuple):
    """A labelled set with the scales of its columns and targets."""

    x: Tensor  # (n, d)
    y: Tensor  # (n,)
    of_x: Standardise
    of_y: Standardise

    def likelihood(self, rows: Tensor) -> MarginalLikelihood:
        """Return the marginal likelihood of some rows, standardised."""
        x = (self.x[rows] - self.of_x.mean) / self.of_x.std
        return MarginalLikelihood(x, (self.y[rows] - self.of_y.mean) / self.of_y.std)


@dataclass(eq=False, repr=False, kw_only=True)
class GaussianProcessRegressor(Regressor):
    """Regression with a Gaussian process: a Matern 5/2 kernel with a length scale for each column, and noise.

    Length scales, variance and noise are the most probable ones given the labels and weak priors. Each
    optimisation is one call of SciPy's L-BFGS, also in ``fit_many``: a batched Cholesky decomposition of 40
    matrices of 220 rows is no faster than 40 single ones. Columns and targets are standardised inside;
    predictions and ``posterior_`` are in the units of ``y``.

    Length scales are between 0.01 and 1000 standard deviations of a column; their logarithms have the prior
    N(sqrt 2 + 1/2 log d, 3) for d columns. The noise variance is between 1e-8 and 1e4 times the kernel's, and
    the logarithm of this ratio has the prior N(-2, 1.5^2). On small tables, the priors changed errors with
    220 labels by about a percent; with 20 labels, the model was often far too certain without them.

    Parameters
    ----------
    num_restarts : how many further starts of the optimiser to draw at random. They are compared on at most
        500 of the labels, and the best is continued on all.
    num_exact : up to so many labels the posterior is exact, in time O(n^3) and memory O(n^2). From more
        labels, the kernel is fitted to as many, at most 2000, drawn at random, and inducing points stand for
        all.
    num_inducing : how many inducing points, chosen among those drawn, each where the kernel's largest
        variance is left.
    priors : ``False`` for the parameters of largest marginal likelihood within these bounds.
    max_iterations : of the optimiser, for each start.
    random_state : draws the starts, and the labels where only some are used.
    device, progress : see `NeuralLinearClassifier`. All is computed in float64.

    Attributes
    ----------
    posterior_ : for `coresift.select`, with its ``kernel`` and ``noise_variance``.
    log_marginal_likelihood_ : of the labels that the kernel was fitted to, in units of ``y``.

    References
    ----------
    Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapters 2 and 5.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = GaussianProcessRegressor().fit(x, x[:, 0] ** 2)
    >>> mean, std = model.predict([[0.5]], return_std=True)
    >>> mean.round(3).tolist(), bool(std < 0.01)
    ([0.25], True)
    """

    posterior_type = GaussianProcessPosterior
    _target_checks: ClassVar[dict[str, bool]] = {"multi_output": False, "y_numeric": True}

    num_restarts: int = 1
    num_exact: int = 5000
    num_inducing: int = 500
    priors: bool = True
    max_iterations: int = 100

    def _check_options(self) -> None:
        super()._check_options()
        check_integer(self.num_restarts, 0, "num_restarts")
        for name in ("num_exact", "num_inducing", "max_iterations"):
            check_integer(getattr(self, name), 1, name)
        for name in ("priors", "progress"):
            check_switch(getattr(self, name), name)

    @staticmethod
    def _fit_together(estimators: Sequence[GaussianProcessRegressor], sets: Sequence[LabelledSet]) -> None:
        steps = sum(estimators[0]._num_steps(len(x)) for x, _ in sets)
        with progress_bar("fitting Gaussian processes", steps) as advance:
            shown = advance if estimators[0].progress else lambda _: None
            for estimator, (x, y) in zip(estimators, sets, strict=True):
                with enough_threads(min(len(x), estimator.num_exact) ** 2):
                    estimator._fit_one(x.to(estimator.device), y[:, 0].to(estimator.device), shown)

    def _num_steps(self, size: int) -> int:
        """Return how many iterations, and labels looked at after these, a fit to so many labels takes."""
        refined, inducing = size > limits.START_ROWS, size > self.num_exact
        runs = int(self.num_restarts) + 1 + refined
        return runs * int(self.max_iterations) + size * inducing

    def _fit_one(self, x: Tensor, y: Tensor, advance: Callable[[int], None]) -> None:
        labelled = _Scaled(x, y, Standardise.of(x), Standardise.of(y[:, None]))
        generator = self._generator()
        order = torch.randperm(len(x), generator=generator).to(x.device)
        exact = len(x) <= self.num_exact
        rows = order if exact else order[: min(limits.KERNEL_ROWS, int(self.num_exact))]
        begin = starts(x.shape[1], self.num_restarts, generator)
        kernel, noise = self._fitted_kernel(labelled, rows, begin, advance)
        mean = float(labelled.of_y.mean)
        if exact:
            self.posterior_ = exact_posterior(kernel, noise, x, y, mean)
            return
        pivots, _ = pivoted_cholesky(kernel(x[rows], x[rows]), self.num_inducing)
        self.posterior_ = inducing_posterior(kernel, noise, x, y, x[rows[pivots]], mean, advance)

    def _fitted_kernel(
        self, labelled: _Scaled, rows: Tensor, begin: Sequence[Parameters], advance: Callable[[int], None]
    ) -> tuple[Matern52, float]:
        """Return the kernel and the noise variance under which the labels of some rows are most likely."""
        priors = [Prior.of(labelled.x.shape[1])] if self.priors else []
        for part in (rows[: limits.START_ROWS], rows)[: 1 + (len(rows) > limits.START_ROWS)]:
            likelihood = labelled.likelihood(part)
            begin = [optimised([likelihood, *priors], begin, int(self.max_iterations), advance)]
        loss, variance = likelihood.value_and_variance(begin[0])
        std = float(labelled.of_y.std)
        self.log_marginal_likelihood_ = -loss - len(rows) * math.log(std)
        lengths = torch.from_numpy(begin[0][:-1]).exp().to(labelled.x) * labelled.of_x.std
        kernel = Matern52(labelled.of_x.mean, lengths, variance * std**2)
        return kernel, kernel.variance * math.exp(begin[0][-1])

    def _fitted_state(self) -> State:
        posterior, kernel = self.posterior_, self.posterior_.kernel
        tensors = {"kernel.centre": kernel.centre, "kernel.lengths": kernel.lengths}
        tensors |= {
            name: getattr(posterior, name) for name in _TENSORS if getattr(posterior, name) is not None
        }
        numbers = (kernel.variance, posterior.noise_variance, posterior.mean, self.log_marginal_likelihood_)
        return tensors | {"numbers": torch.tensor(numbers, dtype=torch.float64)}, {}

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        if self._target_shape:
            raise ValueError("the weights are for other targets than those described")
        check_shape(tensors["points"], (None, self.n_features_in_), "points")
        variance, noise, mean, self.log_marginal_likelihood_ = tensors["numbers"].tolist()
        kernel = Matern52(tensors["kernel.centre"], tensors["kernel.lengths"], variance)
        given: dict[str, Any] = {name: tensors.get(name) for name in _TENSORS}
        self.posterior_ = GaussianProcessPosterior(kernel, **given, noise_variance=noise, mean=mean)
