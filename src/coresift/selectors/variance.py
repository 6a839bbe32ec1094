"""Variance reduction: the batch whose labels make a model surest about a target set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from coresift import limits
from coresift.search import label_gains
from coresift.selectors.base import Selection, Selector, norms_of
from coresift.spaces.base import Space
from coresift.types import Floats


@dataclass(frozen=True)
class VarianceReduction(Selector[Space]):
    """Greedily lowers the summed predictive variance of the targets, given the labels of the batch.

    Each step takes the point n with the largest

        phi_n^T S M S phi_n / (phi_n^T S phi_n + s_n)

    where phi_n (D,) are vectors whose inner products are posterior covariances of predictions without noise,
    s_n is the variance of the noise at point n, M = sum_t phi_t phi_t^T over the targets and S is the
    identity, less what the labels before have explained; `search.gains` says how. The design is V-optimal;
    the criterion is also known as ALC (active learning Cohn) and as integrated mean squared error.

    A space for this selector has phi_n / sqrt(s_n) for vectors and M for `VectorSpace.target_moment`; without
    one, its own points are the targets. The residuals are the root of the targets' summed variance.

    References
    ----------
    Cohn, Ghahramani and Jordan, Active Learning with Statistical Models, 1996.
    Seo et al., Gaussian Process Regression: Active Data Selection and Test Point Rejection, 2000.

    >>> from coresift.spaces.vectors import VectorSpace
    >>> space = VectorSpace(torch.tensor([[3.0, 2.0, 0.0], [0.0, 0.1, 1.0]]))
    >>> space.target_moment = torch.diag(torch.tensor([0.0, 1.0]).double())  # the second number alone counts
    >>> VarianceReduction().select(space, budget=2).index
    array([2, 1])
    """

    bytes_per_pair: ClassVar[int] = limits.VARIANCE_PAIR_BYTES

    def _choose(self, space: Space, selection: Selection, generator: torch.Generator) -> tuple[None, Floats]:
        gains = label_gains(space, selection.open, selection.pending)
        residuals: list[float] = []
        while not selection.full:
            if selection.left == 0:  # only duplicates are left
                selection.reopen()
                gains.reopen(selection.open.nonzero()[:, 0])
            point = gains.argmax()
            n = int(point)
            norm = float(norms_of(space, [n]))
            if selection.duplicate_of(space, n, norm) is not None:
                gains.close(selection.set_aside(space, n))
                continue
            selection.take(n, norm)
            gains.close(point)
            gains.add(point)
            residuals.append(gains.remaining())
        return None, np.asarray(residuals, dtype=np.float64)
