"""Checks that a posterior, space or selector of your own keeps its contract; ours are tested by the same.

Each raises an `AssertionError` that says what differs.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from coresift.errors import InputError
from coresift.posteriors.base import Posterior
from coresift.scores import Score
from coresift.search import cosine_search
from coresift.selectors.base import Selector
from coresift.spaces.base import Space
from coresift.spaces.likelihood import expected_log_likelihood
from coresift.types import Batch


def check_posterior(
    posterior: Posterior, x: Tensor, *, num_samples: int = 64, tolerance: float = 1e-6
) -> None:
    """Check that a posterior's three methods fit together on rows ``x`` (n, ...), n at least 2.

    Shapes; the same draws from the same seed; each row's distribution independent of the rows around it;
    L_n(theta) finite and at most zero; and E[E[y | x, theta]] = E[y | x] within six standard errors.

    >>> from coresift.posteriors import LinearPosterior
    >>> check_posterior(LinearPosterior(torch.zeros(2), torch.eye(2), 1.0), torch.randn(5, 2))
    """
    name = type(posterior).__name__
    assert isinstance(posterior, Posterior), f"{name} lacks sample, conditional or predictive"
    with torch.no_grad():
        theta = posterior.sample(num_samples, torch.Generator().manual_seed(0))
        again = posterior.sample(num_samples, torch.Generator().manual_seed(0))
        conditional, predictive = posterior.conditional(x, theta), posterior.predictive(x)
        shape, size = tuple(conditional.batch_shape), len(x)
        assert shape[1:] == (size,), f"conditional has batch shape {shape}, expected (J, {size})"
        assert shape[0] <= num_samples, "sample returned more draws than asked for"
        shape = tuple(predictive.batch_shape)
        assert shape == (size,), f"predictive has batch shape {shape}, expected ({size},)"
        mean, half = _mean(conditional), size // 2
        _assert_close(_mean(posterior.conditional(x, again)), mean, tolerance, "draws from one seed")
        for rest, whole in (
            (posterior.conditional(x[half:], theta), mean[:, half:]),
            (posterior.predictive(x[half:]), _mean(predictive)[half:]),
        ):
            _assert_close(_mean(rest), whole, tolerance, "rows alone and together")
        values = expected_log_likelihood(predictive, conditional)
        finite, largest = bool(torch.isfinite(values).all()), float(values.max())
        assert finite, "L_n(theta) is not finite: does a sample rule an outcome out?"
        assert largest <= tolerance, f"L_n(theta) is {largest}, expected at most zero"
        spread = mean.std(0) if len(mean) > 1 else torch.zeros_like(mean[0])
        gap = (mean.mean(0) - _mean(predictive)).abs()
        assert bool((gap <= 6 * spread / len(mean) ** 0.5 + 1e-3 * (1 + spread)).all()), (
            f"the mean over samples differs from the predictive mean by up to {float(gap.max()):.3g}"
        )


def check_space(space: Space, *, tolerance: float | None = None) -> None:
    """Check that norms, totals, columns and Gram matrix of a small space (N up to some hundreds) agree.

    >>> from coresift.spaces import VectorSpace
    >>> check_space(VectorSpace(torch.randn(3, 10)))
    """
    size = len(space)
    index = torch.arange(size, device=space.norms.device)
    gram = space.gram(index)
    scale = float(gram.abs().max()) + 1e-300
    near = (max(space.resolution, 1e-9) if tolerance is None else tolerance) * scale
    _assert_close(gram, gram.mT, near, "the Gram matrix and its transpose")
    smallest = float(torch.linalg.eigvalsh(gram)[0])
    assert smallest >= -near * size, f"the Gram matrix has a negative eigenvalue: {smallest:.3g}"
    _assert_close(space.norms**2, gram.diagonal(), near, "squared norms and the Gram matrix")
    for n in range(size):
        column = space.vector(n)
        _assert_close(_inner(space, column), gram[n], near, f"column {n} and the Gram matrix")
        _assert_close(space.inner_at(column, index), gram[n], near, f"inner_at and column {n}")
    total = space.total()
    _assert_close(_inner(space, total), gram.sum(0), near * size, "the total and the sum of columns")
    _assert_close(
        space.dot(total, total), gram.sum(), near * size**2, "the dot product of the total and the sum of all"
    )
    allowed = space.norms > 0
    if bool(allowed.any()):
        cosine = torch.where(allowed, gram.sum(0) / space.norms, -torch.inf)
        best = int(cosine_search(space, allowed).argmax(total))
        gap = float(cosine.max() - cosine[best])
        assert gap <= near * size, f"cosine_search found {best}, not the maximum"
    for coordinates, squares in space.anchors():
        values = _inner(space, coordinates)  # (k, N)
        bound = squares[:, None] * space.norms**2 + near**2 + near * scale
        holds = bool((squares >= -near).all()) and bool((values**2 <= bound).all())
        assert holds, "a labelled point breaks the Cauchy-Schwarz inequality"


def check_selector(selector: Selector[Any], source: Space | Score, *, budget: int | None = None) -> None:
    """Check that a selector keeps its promises on a space or a score (N at least 8).

    Exactly ``budget`` distinct points in a fixed order, pending and excluded points left out, the same batch
    from the same seed, weights of at least zero, and clear errors for impossible budgets.

    >>> from coresift.selectors import FrankWolfe
    >>> from coresift.spaces import VectorSpace
    >>> check_selector(FrankWolfe(), VectorSpace(torch.randn(3, 10)))
    """
    size = len(source)
    budget = max(size // 4, 1) if budget is None else budget
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = selector.select(source, budget, seed=1)
        again = selector.select(source, budget, seed=1)
        taken, closed = batch.index[: budget // 2], batch.index[budget // 2 : budget // 2 + 1]
        rest = selector.select(source, budget, pending=taken, exclude=closed, seed=1)
        for impossible in (0, -1, size + 1):
            try:
                selector.select(source, impossible)
            except InputError:
                continue
            raise AssertionError(f"a budget of {impossible} in a pool of {size} gave no InputError")
    for found in (batch, rest):
        fits = len(found) == budget if selector.exact_size else len(found) <= budget
        assert fits, f"asked for {budget} points, got {len(found)}"
        _check_batch(found, size)
    assert (batch.index == again.index).all(), "the same seed gave another batch"
    wrong = np.isin(rest.index, np.concatenate([taken, closed]))
    assert not wrong.any(), "a pending or excluded point was chosen"


def _check_batch(batch: Batch, size: int) -> None:
    """Check that a batch from a pool of ``size`` points holds possible values."""
    assert len(np.unique(batch.index)) == len(batch), "a point was chosen twice"
    assert ((batch.index >= 0) & (batch.index < size)).all(), "a point lies outside the pool"
    if batch.weights is not None:
        enough = len(batch.weights) == len(batch)
        assert enough and (batch.weights >= 0).all(), "weights are missing or negative"
    if batch.residuals is not None:
        assert np.isfinite(batch.residuals).all(), "a residual is not finite"
    if batch.information is not None:
        assert -1e-9 <= batch.information <= 1 + 1e-9, f"information is {batch.information}"


def _inner(space: Space, element: Tensor) -> Tensor:
    return torch.cat([values for _, values in space.inner(element)], -1)


def _mean(distribution: Distribution) -> Tensor:
    """The mean of y, or the probabilities of its classes."""
    probs = distribution.probs if isinstance(distribution, Categorical | Bernoulli) else None
    return distribution.mean if probs is None else probs


def _assert_close(left: Tensor, right: Tensor, tolerance: float, what: str) -> None:
    assert left.shape == right.shape, f"{what}: shapes {tuple(left.shape)} and {tuple(right.shape)}"
    gap = float((left - right).abs().max()) if left.numel() else 0.0
    assert gap <= tolerance, f"{what} differ by {gap:.3g}, more than {tolerance:.3g}"
