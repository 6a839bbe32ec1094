"""Stored vectors choose the same batch at any scale, and refuse what float64 cannot hold."""

import numpy as np
import pytest
import torch
from selectors_to_test import SEARCHING

import coresift
from coresift.selectors import GIGA, LCMD, FrankWolfe, GreedyLogDet, KMedoids
from coresift.spaces import GramSpace, VectorSpace
from coresift.spaces.outer import stored_outer_space
from coresift.spaces.vectors import OnDisk

ALL_SELECTORS = [*SEARCHING, KMedoids()]


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def on_disk(values, block=1024):
    columns = OnDisk(*values.shape, values.dtype, block)
    columns.write(0, values)
    return columns


def test_pending_points_that_say_nothing():
    values = normal(3, 50)
    values[:, 7] = 0
    assert len(FrankWolfe().select(VectorSpace(values), 5, pending=[7])) == 5


@pytest.mark.parametrize("selector", ALL_SELECTORS, ids=lambda selector: type(selector).__name__)
@pytest.mark.parametrize(
    ("dtype", "exponent"),
    [(torch.float32, e) for e in (-120, -83, 126)] + [(torch.float64, e) for e in (-1000, -200, 509, 1000)],
)
def test_the_same_batch_at_any_scale(selector, dtype, exponent):
    """A power of two rounds nothing, so that all numbers of a batch are the same."""
    values, labelled = normal(6, 300, dtype=dtype) / 4, normal(6, 3, seed=1, dtype=dtype) / 4
    expected = selector.select(VectorSpace(values, labelled), 8, pending=[5])
    large, large_labelled = values * 2.0**exponent, labelled * 2.0**exponent
    before = large.clone()
    batch = selector.select(VectorSpace(large, large_labelled), 8, pending=[5])
    assert torch.equal(large, before)  # the caller's tensor
    assert batch.index.tolist() == expected.index.tolist()
    assert np.allclose(batch.weights, expected.weights, rtol=1e-6)
    assert batch.information == pytest.approx(expected.information)
    assert np.allclose(batch.residuals * 2.0**-exponent, expected.residuals, rtol=1e-6, atol=1e-7)
    if not isinstance(selector, GIGA):
        found = selector.select(VectorSpace(on_disk(large), large_labelled), 8, pending=[5])
        if not isinstance(selector, KMedoids):  # which uses another method there
            assert found.index.tolist() == expected.index.tolist()


@pytest.mark.parametrize("strategy", ["k-center", "lcmd", "k-medoids"])
@pytest.mark.parametrize("exponent", [-110, -83, 126])
def test_features_at_any_scale(strategy, exponent):
    """Also where the mean cannot be subtracted from them in float32."""
    rows, labelled = normal(200, 4) / 4, normal(5, 4, seed=1) / 4
    rows, labelled = rows.half().float(), labelled.half().float()  # few digits, so that none are lost
    options = {"strategy": strategy, "budget": 6}
    expected = coresift.select(rows, labelled=labelled, **options)
    batch = coresift.select(rows * 2.0**exponent, labelled=labelled * 2.0**exponent, **options)
    assert batch.index.tolist() == expected.index.tolist()
    assert np.allclose(batch.residuals * 2.0**-exponent, expected.residuals)


@pytest.mark.parametrize("exponent", [-600, 600])
def test_gradients_at_any_scale(exponent):
    probs, rows = normal(4, 100, 3).softmax(-1), normal(100, 5, dtype=torch.float64)
    expected = coresift.select(rows, probs=probs, strategy="badge", budget=6)
    batch = coresift.select(rows * 2.0**exponent, probs=probs, strategy="badge", budget=6)
    assert batch.index.tolist() == expected.index.tolist()


@pytest.mark.parametrize("scale", [1e-250, 1e250])
def test_gradients_out_of_range_are_refused(scale):
    side = normal(10, 3, dtype=torch.float64) * scale
    with pytest.raises(coresift.InputError, match="out of the range of float64"):
        stored_outer_space(side, side)


def test_log_determinants_of_very_large_and_very_small_vectors():
    """The identity in I + K is lost beside large vectors, and small ones are chosen by their norms."""
    values = normal(5, 60, dtype=torch.float64)
    large = GreedyLogDet().select(VectorSpace(values * 2.0**40), 4).index.tolist()
    assert GreedyLogDet().select(VectorSpace(values * 2.0**700), 4).index.tolist() == large
    norms = values.square().sum(0).argsort(descending=True)[:4].tolist()
    assert GreedyLogDet().select(VectorSpace(values * 2.0**-700), 4).index.tolist() == norms


@pytest.mark.parametrize("scale", [1e-290, 1e290, np.inf])
def test_inner_products_out_of_range_are_refused(scale):
    values = normal(3, 20, dtype=torch.float64)
    with pytest.raises(coresift.InputError, match=r"norm of .*, out of the range of float64 arithmetic"):
        LCMD().select(GramSpace(values.mT @ values * scale), 3)


def test_labelled_points_in_other_units_are_refused():
    space = VectorSpace(normal(3, 20), 1e30 * normal(3, 2))
    with pytest.raises(coresift.InputError, match=r"times as large as the pool's.* same units"):
        LCMD().select(space, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors_stay_as_they_are(dtype):
    values = normal(3, 50, dtype=dtype)
    before = values.clone()
    space = VectorSpace(values)
    assert torch.equal(space.norms, before.double().square().sum(0).sqrt())
    for selector in ALL_SELECTORS:
        selector.select(space, 5)
    assert torch.equal(values, before)


def test_an_empty_set_of_labelled_points_is_none():
    values = normal(3, 50)
    expected = LCMD().select(VectorSpace(values), 5).index.tolist()
    assert LCMD().select(VectorSpace(values, torch.empty(3, 0)), 5).index.tolist() == expected
