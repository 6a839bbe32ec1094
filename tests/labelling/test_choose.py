"""Batches within limits keep the weights of the selector where these are weights of the whole batch."""

import numpy as np
import pytest
import torch

from coresift.labelling.choose import Limits, choose_within, nearest_of
from coresift.selection import select
from coresift.selectors import FrankWolfe
from coresift.selectors.information import best_weights
from coresift.spaces.vectors import VectorSpace
from coresift.strategies import Strategy

vectors = torch.randn(6, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5
space = VectorSpace(vectors)
fixed = Strategy(lambda problem: space, FrankWolfe(), "Frank-Wolfe on these vectors")


def ask(num, pending, closed):
    rows = np.zeros((40, 1), np.float32)
    return select(rows, budget=num, strategy=fixed, pending=pending, exclude=closed)


def test_weights_are_those_of_the_whole_batch():
    picked = choose_within(ask, 40, Limits(size=5), pending=[7], must_include=[3, 1])
    assert picked.rows[:2] == (3, 1) and len(picked.rows) == 5 and 7 not in picked.rows
    index = torch.tensor([*picked.rows, 7])
    np.testing.assert_allclose(picked.weights, best_weights(space, index)[0][:-1], atol=1e-9)
    assert picked.residuals and min(picked.residuals) == picked.residuals[-1]


@pytest.mark.parametrize(("cheap", "budget", "is_cut"), [(1.0, 8.0, False), (4.0, 6.0, True)])
def test_a_batch_that_limits_cut_has_no_weights(cheap, budget, is_cut):
    """Two items at the usual price are asked for where only one can be paid."""
    costs = np.where(np.arange(40) % 2, cheap, 4.0)
    picked = choose_within(ask, 40, Limits(budget=budget, costs=costs), pending=[], must_include=[])
    assert 0 < sum(costs[list(picked.rows)]) <= budget
    assert (picked.weights is None) == is_cut


def test_the_nearest_of_a_batch_is_found_in_blocks():
    rows = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    distances = np.square(rows[:, None] - rows[None, :4]).sum(2)
    for block in (1, 7, 50):
        assert (nearest_of(rows, rows[:4], block) == distances.argmin(1)).all()
