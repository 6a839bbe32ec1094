"""K-Medoids: the points that stand in the middle of the pool's clusters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from coresift.selectors.base import Account, Selector
from coresift.spaces.base import Space
from coresift.types import Floats, InputError


@dataclass(frozen=True)
class KMedoids(Selector[Space]):
    """FasterPAM on the pool, or on a uniform sample of it where all pairs would be too many.

    Pending points hold medoids of their own: as many further medoids are sought as there are pending points,
    and those nearest to the pending ones are left out of the batch. Points come in the order of how many are
    nearest to them, which is also their weight.

    Parameters
    ----------
    max_points : the largest sample, for memory of ``4 * max_points^2`` bytes; at least twice the number of
        medoids is taken all the same.
    """

    max_points: int = 4000

    def _choose(self, space: Space, account: Account, generator: torch.Generator) -> tuple[Floats, Floats]:
        try:
            from kmedoids import fasterpam
        except ImportError:
            raise InputError(
                'K-Medoids needs the kmedoids package: pip install "coresift[kmedoids]"'
            ) from None
        candidates = account.open.nonzero()[:, 0].cpu()
        count = min(account.budget + len(account.pending), len(candidates))
        size = max(self.max_points, 2 * count)
        if size < len(candidates):
            candidates = candidates[torch.randperm(len(candidates), generator=generator)[:size]].sort().values
        # Pending points come last, so that positions below len(candidates) are those of candidates.
        distance = _distances(space, torch.cat([candidates, torch.from_numpy(account.pending)]))
        among = np.ascontiguousarray(distance[: len(candidates), : len(candidates)])
        start = torch.randperm(len(candidates), generator=generator)[:count].numpy().astype(np.uint64)
        # One thread and an own start: the same seed gives the same medoids on any machine.
        result = fasterpam(among, start, n_cpu=1)
        medoids = np.asarray(result.medoids, dtype=np.int64)
        _, held = linear_sum_assignment(distance[len(candidates) :, medoids])
        medoids = np.delete(medoids, held[: count - account.budget])
        # How many points each member of the account is nearest to, in the pool as a whole.
        members = np.concatenate([np.arange(len(candidates), len(distance)), medoids])
        to_members = distance[members, : len(candidates)]
        sizes = np.bincount(to_members.argmin(0), minlength=len(members)) * (len(space) / len(candidates))
        held, own = np.split(sizes, [len(account.pending)])
        order = np.argsort(-own, kind="stable")
        for position in order:
            account.take(int(candidates[medoids[position]]))
        return np.concatenate([held, own[order]]), np.array([float(to_members.min(0).sum())])


def _distances(space: Space, index: torch.Tensor) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """(k, k) distances between points, from their inner products."""
    gram = space.gram(index.to(space.norms.device))
    squares = gram.diagonal()
    return (squares[:, None] + squares - 2 * gram).clamp(min=0).sqrt().float().cpu().numpy()
