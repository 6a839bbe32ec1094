"""BAIT: the batch that leaves the least uncertainty about a last layer, where the pool depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical

from coresift import limits
from coresift.checks import check_integer, check_positive
from coresift.errors import InputError
from coresift.pool import Pool, as_pool, read
from coresift.scores import Score
from coresift.selectors.base import Selection, Selector, distinct
from coresift.spaces.base import Problem
from coresift.spaces.features import model_features
from coresift.spaces.gradient import class_probabilities


@dataclass(frozen=True, eq=False)
class FisherScore(Score):
    """Fisher information of a last layer: I(x_n) = (R_n R_n^T) kron (x_n x_n^T), with values tr I(x_n).

    Attributes
    ----------
    features : x (N, d), the last layer's input.
    roots : R (N, C, r), for C outputs; R R^T = diag(p) - p p^T for class probabilities p, and one for
        numbers, whose noise has the variance one.
    known : (C d, C d), the sum of I over labelled points.
    """

    _: KW_ONLY
    features: Tensor
    roots: Tensor
    known: Tensor

    @property
    def bytes_per_point(self) -> int:
        width = self.roots.shape[2]
        return 8 * (self.features.shape[1] + self.roots[0].numel() + 6 * width**2) + limits.TOP_BYTES

    @property
    def bytes_of_matrices(self) -> int:
        return limits.FISHER_PAIR_BYTES * int(self.known.numel())


def fisher_score(problem: Problem) -> FisherScore:
    """Compute the Fisher information of a problem's points, with the features that 'badge' uses."""
    problem.check_labelled_features()

    @torch.no_grad()
    def map_rows(source: Pool, seen: Pool | None) -> tuple[Tensor, Tensor]:
        roots = torch.cat([_roots(problem, block.x) for block in read(source)])
        model = None if seen else problem.posterior
        rows = torch.cat([model_features(model, block.x) for block in read(seen or source)])
        return rows.to(roots), roots

    seen = None if problem.features is None else as_pool(problem.features.take([0]))
    _check_width(*map_rows(as_pool(problem.pool.take([0])), seen))
    features, roots = map_rows(problem.pool, problem.features)
    known = features.new_zeros(2 * [features.shape[1] * roots.shape[1]])
    if problem.labelled is not None:
        beside = problem.labelled_features
        known = information(*map_rows(as_pool(problem.labelled), None if beside is None else as_pool(beside)))
    values = roots.square().sum((1, 2)) * features.square().sum(1)
    return FisherScore(values, problem.pool, features=features, roots=roots, known=known)


def _check_width(features: Tensor, roots: Tensor) -> None:
    """Raise where matrices of Fisher information would be too wide, judged by a point (1, d), (1, C, r)."""
    width = features.shape[1] * roots.shape[1]
    if width > limits.FISHER_WIDTH:
        raise InputError(
            f"'bait' keeps matrices of {width:,} x {width:,} numbers for {features.shape[1]:,} features and "
            f"{roots.shape[1]:,} outputs, at most {limits.FISHER_WIDTH:,}; try 'badge' or 'predictive-lcmd'"
        )


def _roots(problem: Problem, x: Tensor) -> Tensor:
    """Return R (n, C, r) in float64."""
    predictive = problem.posterior.predictive(x)
    if not isinstance(predictive, Categorical | Bernoulli):
        if predictive.event_shape:
            raise InputError("'bait' needs classes or one output; try 'variance-reduction'")
        return torch.ones(len(x), 1, 1, dtype=torch.float64, device=x.device)
    probs = class_probabilities(problem.posterior, x).double()
    # Column y is sqrt(p_y) (e_y - p).
    return probs.sqrt()[:, None] * (torch.eye(probs.shape[1]).to(probs) - probs[:, :, None])


def information(features: Tensor, roots: Tensor) -> Tensor:
    """(C d, C d) sum_n (R_n R_n^T) kron (x_n x_n^T)."""
    weights = roots @ roots.mT  # (N, C, C)
    classes, width = weights.shape[1], features.shape[1]
    total = features.new_empty(classes, width, classes, width)
    for row in range(classes):
        for column in range(row + 1):
            block = features.mT @ (weights[:, row, column, None] * features)
            total[row, :, column], total[column, :, row] = block, block
    return total.view(classes * width, classes * width)


@dataclass(frozen=True)
class Bait(Selector[Score]):
    """Greedily minimises tr[(lambda I + sum_{labelled and batch} I(x))^-1 sum_{pool} I(x)].

    I(x) is the Fisher information of the last layer, from a `FisherScore`. Points are added one by one until
    there are ``oversample`` times as many as asked for; then those that are missed least are taken out, one
    by one. For one output, and without taking points out, this is variance reduction with the features for
    vectors.

    Parameters
    ----------
    prior_precision : lambda.
    oversample : one takes no points out.

    References
    ----------
    Ash et al., Gone Fishing: Neural Active Learning with Fisher Embeddings, 2021.
    """

    prior_precision: float = 1.0
    oversample: int = 2

    def __post_init__(self) -> None:
        check_positive(self.prior_precision, "prior_precision")
        object.__setattr__(self, "oversample", check_integer(self.oversample, 1, "oversample"))

    def _choose(self, score: Score, selection: Selection, generator: torch.Generator) -> tuple[None, None]:
        if not isinstance(score, FisherScore):
            raise InputError("Bait chooses from a FisherScore, the Fisher information of a last layer")
        design = _Design(score, self.prior_precision)
        for n in selection.pending.tolist():
            design.change(n)
        chosen, duplicates = self._add(score, selection, design)
        while len(chosen) > selection.budget:
            least = chosen[int(design.losses(torch.tensor(chosen)).argmin())]
            design.change(least, sign=-1)
            chosen.remove(least)
        for n in [*chosen, *sorted(duplicates)][: selection.budget]:
            selection.take(n)
        return None, None

    def _add(self, score: Score, selection: Selection, design: _Design) -> tuple[list[int], list[int]]:
        """Add points one by one; also return the duplicates that were met on the way."""
        chosen, duplicates = list[int](), list[int]()
        most = self.oversample * selection.budget
        for n in islice(distinct(score, selection, design.gains, duplicates), most):
            chosen.append(n)
            design.change(n)
        return chosen, duplicates


class _Design:
    """What is known about a last layer given some labels, and what each label would change.

    With U_n = R_n kron x_n (C d, r), S = (lambda I + sum I)^-1 and M = sum_{pool} I, it keeps for each point

        V_n = U_n^T S U_n        Q_n = U_n^T S M S U_n        (r, r)

    A further label lowers tr[S M] by tr[(I + V_n)^-1 Q_n]; to take one out raises it by tr[(I - V_n)^-1 Q_n].
    """

    def __init__(self, score: FisherScore, prior_precision: float) -> None:
        self._features, self._roots = score.features, score.roots
        prior = prior_precision * torch.eye(len(score.known)).to(score.known)
        self._covariance = torch.cholesky_inverse(torch.linalg.cholesky(prior + score.known))
        self._moment = information(self._features, self._roots)
        self._v = self._quadratic(self._covariance)
        self._q = self._quadratic(self._covariance @ self._moment @ self._covariance)

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        classes, width = self._roots.shape[1], self._features.shape[1]
        size = max(limits.JOINT_NUMBERS // (classes**2 * width), 1)
        return zip(torch.split(self._features, size), torch.split(self._roots, size), strict=True)

    def _quadratic(self, matrix: Tensor) -> Tensor:
        """(N, r, r) U_n^T matrix U_n."""
        classes, width = self._roots.shape[1], self._features.shape[1]
        parts = matrix.view(classes, width, classes, width).transpose(1, 2).reshape(-1, width, width)
        found = []
        for rows, roots in self._blocks():
            products = torch.einsum("nd,kde,ne->nk", rows, parts, rows).view(-1, classes, classes)
            found.append(roots.mT @ products @ roots)
        return torch.cat(found)

    def _times(self, matrix: Tensor) -> Tensor:
        """(N, r, s) U_n^T matrix, for a matrix (C d, s)."""
        parts = matrix.view(self._roots.shape[1], self._features.shape[1], -1)
        return torch.cat(
            [roots.mT @ torch.einsum("nd,cds->ncs", rows, parts) for rows, roots in self._blocks()]
        )

    def change(self, n: int, sign: int = 1) -> None:
        """Add a label, or take it out with a ``sign`` of -1."""
        own = torch.kron(self._roots[n], self._features[n][:, None])  # U_n
        explained = self._covariance @ own
        values, vectors = torch.linalg.eigh(own.mT @ explained)
        step = explained @ (vectors / (1 + sign * values).clamp(min=1e-12).sqrt())  # S U (I +- V)^(-1/2)
        target = self._moment @ step
        a, b = self._times(step), self._times(self._covariance @ target)
        cross = a @ b.mT
        self._v -= sign * (a @ a.mT)
        self._q -= sign * (cross + cross.mT) - a @ (step.mT @ target) @ a.mT
        self._covariance -= sign * (step @ step.mT)

    def gains(self) -> Tensor:
        """(N,) on the CPU, by how much a label of each point lowers tr[S M]."""
        return _traces(self._v, self._q)

    def losses(self, index: Tensor) -> Tensor:
        """(k,) on the CPU, by how much it rises without the labels of these points."""
        return _traces(-self._v[index], self._q[index])


def _traces(v: Tensor, q: Tensor) -> Tensor:
    """(n,) tr[(I + V_n)^-1 Q_n]."""
    identity = torch.eye(v.shape[-1]).to(v)
    traces: Tensor = torch.linalg.solve(identity + v, q).diagonal(dim1=1, dim2=2).sum(1)
    return traces.cpu()
