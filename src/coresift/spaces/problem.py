"""Define what a space or a score is built from."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor

from coresift.checks import check_integer
from coresift.errors import InputError
from coresift.pool import Pool
from coresift.posteriors.base import Posterior


@dataclass(frozen=True)
class Problem:
    """Holds all that a space or a score may be built from.

    Attributes
    ----------
    pool : the unlabelled points.
    model : the posterior, if there is one; `posterior` raises where a strategy needs one and there is none.
    generator : for all random draws.
    labelled : (M, ...) labelled points, in the form of the pool's rows.
    features, labelled_features : where distances are measured, instead of in the model's own features.
    points : a pool whose equal rows are duplicates, where this is not ``pool``.
    num_samples : J, how many posterior samples to draw.
    exact : whether to use closed forms where there are any.
    memory : bytes for the libraries and the space; vectors that do not fit go to a temporary file. ``None``
        is no limit.
    """

    pool: Pool
    model: Posterior | None = None
    _: KW_ONLY
    generator: torch.Generator = field(default_factory=torch.Generator)
    labelled: Tensor | None = None
    features: Pool | None = None
    labelled_features: Tensor | None = None
    points: Pool | None = None
    num_samples: int = 256
    exact: bool = True
    memory: int | None = None

    @property
    def posterior(self) -> Posterior:
        if self.model is None:
            raise InputError(
                "this strategy needs a model: pass posterior=, probs= or means= and variances=; "
                "'random' and 'k-center' do without"
            )
        return self.model

    def draw(self) -> Any:
        """Draw theta_1..theta_J from the posterior."""
        return self.posterior.sample(check_integer(self.num_samples, 1, "num_samples"), self.generator)

    def closed_form(self, function: Any) -> Any:
        """Return what the posterior's type has registered with a `functools.singledispatch` function.

        ``None`` where there is nothing, or samples are wanted. A posterior with closed forms registers them
        with the functions named ``exact_...`` of spaces and scores.
        """
        found = function.dispatch(type(self.posterior))
        return found if self.exact and found is not function.dispatch(object) else None

    def check_labelled_features(self) -> None:
        """Raise where labelled points come without features, or not as many as there are features."""
        if self.features is None or self.labelled is None:
            return
        if self.labelled_features is None:
            raise InputError(
                "labelled points need features too: pass features=(features of the pool, features of the "
                "labelled points)"
            )
        if len(self.labelled) != len(self.labelled_features):
            raise InputError(
                f"labelled= holds {len(self.labelled)} points, but features= those of "
                f"{len(self.labelled_features)} labelled points"
            )


def default_num_samples(budget: int) -> int:
    """Return J, the number of posterior samples for a batch of ``budget`` points.

    In J dimensions about J points reproduce the whole pool, and further choices mean nothing. Therefore J is
    twice the budget: at least 128, since inner products have a relative error of about 1/sqrt(J), and at most
    1024, since memory and time grow with J.

    >>> [default_num_samples(budget) for budget in (10, 200, 5000)]
    [128, 400, 1024]
    """
    return min(max(2 * check_integer(budget, 1, "budget"), 128), 1024)
