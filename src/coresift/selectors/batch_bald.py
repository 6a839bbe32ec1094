"""BatchBALD: the batch of labels that say most about the model jointly, for classes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coresift.checks import check_integer
from coresift.errors import InputError
from coresift.scores import ClassScore, Score, label_information
from coresift.selectors.base import Selection, Selector, distinct


@dataclass(frozen=True)
class BatchBALD(Selector[Score]):
    """Greedily maximises the information I[y_1..y_b; theta] of a batch's labels, given class probabilities.

    Each step adds the point n with the largest I[y_n; theta | y_B], the mean over all outcomes y_B of the
    batch so far of what y_n would still say about theta; the sum over the steps is the joint information. As
    long as there are at most ``num_outcomes`` outcomes, C^|B|, the mean is over all of them. From then on it
    is over ``num_outcomes`` outcomes drawn from p(y_B), drawn again in each step, and the same for all
    points. The batch is within 1 - 1/e of the best where the mean is exact.

    It chooses from a `ClassScore`. Duplicates of points in the batch come when no other point is left.

    References
    ----------
    Kirsch, van Amersfoort and Gal, BatchBALD: Efficient and Diverse Batch Acquisition, 2019.

    >>> probs = torch.tensor([[[0.9], [0.1]], [[0.8], [0.2]], [[0.4], [0.4]]])  # (N, J, 1): the first class
    >>> score = ClassScore(torch.zeros(3), probs=torch.cat([probs, 1 - probs], 2))
    >>> BatchBALD().select(score, budget=2).index
    array([0, 1])
    """

    num_outcomes: int = 1000

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_outcomes", check_integer(self.num_outcomes, 1, "num_outcomes"))

    def _choose(self, score: Score, selection: Selection, generator: torch.Generator) -> tuple[None, None]:
        if not isinstance(score, ClassScore):
            raise InputError("BatchBALD chooses from a ClassScore, class probabilities by posterior samples")
        duplicates = list[int]()
        for n in distinct(score, selection, lambda: self._gains(score, selection, generator), duplicates):
            selection.take(n)
            if selection.full:
                break
        for n in sorted(duplicates)[: selection.budget - len(selection.chosen)]:
            selection.take(n)
        return None, None

    def _gains(self, score: ClassScore, selection: Selection, generator: torch.Generator) -> Tensor:
        """Return (N,) I[y_n; theta | y_B], of which those of points in the batch mean nothing."""
        return label_information(score.probs, *self._states(score.probs, selection.members, generator))

    def _states(self, probs: Tensor, members: list[int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the probabilities (M,) of outcomes y_B, and what each would make of the samples (M, J)."""
        chosen = probs[members].double()  # (B, J, C)
        _, num, classes = probs.shape
        if len(members) * math.log(classes) <= math.log(self.num_outcomes):
            likelihood = chosen.new_ones(1, num)
            for each in chosen:
                likelihood = (likelihood[:, None] * each.mT).reshape(-1, num)
            weights = likelihood.mean(1)
            return weights, likelihood / likelihood.sum(1, keepdim=True)
        # A sample theta_j, then a label of each point by it: a draw from p(y_B).
        theta = torch.randint(num, (self.num_outcomes,), generator=generator)
        uniform = torch.rand(self.num_outcomes, len(members), 1, dtype=torch.float64, generator=generator)
        log_likelihood = chosen.new_zeros(self.num_outcomes, num)
        for position, each in enumerate(chosen):
            levels = each[theta.to(each.device)].cumsum(1)  # (M, C)
            labels = (levels < uniform[:, position].to(each) * levels[:, -1:]).sum(1)
            log_likelihood += each[:, labels].mT.log()
        weights = log_likelihood.new_full((self.num_outcomes,), 1 / self.num_outcomes)
        return weights, log_likelihood.softmax(1)
