"""Uncertainty herding against its definition."""

import math

import pytest
import torch

import coresift
from coresift import InputError, find_strategy, limits, select
from coresift.pool import as_pool
from coresift.posteriors import BayesianLinearRegression, ClassSamples
from coresift.scores import Score, margin
from coresift.selectors import UncertaintyHerding
from coresift.selectors.herding import CoverageScore, coverage_score, typical_distance
from coresift.spaces import Problem
from coresift.testing import check_selector


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def score_of(rows, values=None, labelled=None):
    values = torch.ones(len(rows)).double() if values is None else values
    return CoverageScore(
        values, as_pool(rows), features=rows, labelled=rows[:0] if labelled is None else labelled
    )


def coverage(rows, values, centres, bandwidth):
    """The definition, point by point."""
    total = 0.0
    for row, value in zip(rows, values.tolist(), strict=True):
        kernels = [math.exp(-float((row - c).square().sum()) / (2 * bandwidth**2)) for c in centres]
        total += value * max(kernels, default=0.0)
    return total


@pytest.mark.parametrize("bandwidth", [0.3, 2.0])
@pytest.mark.parametrize("block", [1, 5, 256])
def test_steps_are_those_of_the_definition(bandwidth, block, monkeypatch):
    monkeypatch.setattr(limits, "HERDING_BLOCK", block)
    rows, values, labelled = normal(40, 2), normal(40, seed=1).abs(), normal(3, 2, seed=2)
    centres, expected, exclude = [*labelled, rows[5]], [], [1, 8]
    for _ in range(6):
        rest = [n for n in range(40) if n not in [5, *exclude, *expected]]
        best = max(rest, key=lambda n: coverage(rows, values, [*centres, rows[n]], bandwidth))
        expected.append(best)
        centres.append(rows[best])
    batch = UncertaintyHerding(bandwidth).select(
        score_of(rows, values, labelled), 6, pending=[5], exclude=exclude
    )
    assert batch.index.tolist() == expected
    left = 1 - coverage(rows, values, centres, bandwidth) / float(values.sum())
    assert batch.residuals[-1] == pytest.approx(left)
    assert (batch.residuals[1:] <= batch.residuals[:-1]).all()


def test_with_a_small_bandwidth_it_is_margin_sampling():
    rows, probs = normal(50, 3), torch.softmax(normal(50, 4, seed=1), -1)
    given = {"probs": probs[None], "features": rows, "budget": 9}
    batch = select(**given, strategy=find_strategy("uncertainty-herding", bandwidth=1e-3)).index.tolist()
    assert batch == select(**given, strategy="margin").index.tolist()


def test_uncertainty_of_classes_numbers_and_no_model():
    rows, probs = normal(30, 3), torch.softmax(normal(30, 4, seed=1), -1)
    pool = as_pool(probs[:, None])
    score = coverage_score(Problem(pool, ClassSamples(1), features=as_pool(rows)))
    expected = margin(ClassSamples(1), pool).values
    torch.testing.assert_close(score.values, expected / expected.max())
    posterior = BayesianLinearRegression(0.5).fit(rows[:9], rows[:9, 0])
    score = coverage_score(Problem(as_pool(rows), posterior, labelled=rows[:4]))
    variance = posterior.predictive(rows).variance
    torch.testing.assert_close(score.values, variance / variance.max())
    torch.testing.assert_close(score.labelled, score.features[:4])
    assert bool((coverage_score(Problem(as_pool(rows))).values == 1).all())


def test_the_bandwidth_falls_with_the_number_of_labels():
    rows, sample = normal(300, 2), torch.arange(300)
    few, some, all_points = (
        typical_distance(rows, sample, num, torch.Generator().manual_seed(0)) for num in (3, 30, 300)
    )
    assert few > 2 * some > 4 * all_points
    distances = torch.cdist(rows, rows).fill_diagonal_(torch.inf)
    assert all_points == pytest.approx(float(distances.min(1).values.median()))
    assert typical_distance(torch.ones(9, 2), torch.arange(9), 4, torch.Generator()) == 1.0


def test_a_sample_stands_for_the_pool(monkeypatch):
    """Of three clusters, all are covered, whichever points are in the sample."""
    rows = torch.cat([normal(200, 2, seed=k) + 20 * torch.eye(3, 2)[k] for k in range(3)])
    monkeypatch.setattr(limits, "HERDED_POINTS", 60)
    for seed in range(3):
        batch = select(rows, strategy="uncertainty-herding", budget=3, seed=seed).index
        assert sorted(batch // 200) == [0, 1, 2]
        assert float(torch.cdist(rows[batch], rows).min(0).values.mean()) < 2


def test_contract_and_duplicates():
    rows = normal(40, 3)
    for labelled in (None, normal(6, 3, seed=1)):
        check_selector(UncertaintyHerding(), score_of(rows, labelled=labelled))
    batch = select(rows.repeat(2, 1), strategy="uncertainty-herding", budget=60).index.tolist()
    assert len({n % 40 for n in batch[:40]}) == 40 and len(set(batch)) == 60
    sure = torch.eye(2).double()[None, torch.arange(40) % 2]
    assert len(select(rows, probs=sure, strategy="uncertainty-herding", budget=5)) == 5


def test_the_order_and_the_unit_of_the_pool_do_not_matter():
    rows, order = normal(60, 3), torch.randperm(60, generator=torch.Generator().manual_seed(1))
    strategy = find_strategy("uncertainty-herding", bandwidth=0.3)
    batch = select(rows, strategy=strategy, budget=9).index.tolist()
    assert order[select(rows[order], strategy=strategy, budget=9).index].tolist() == batch
    given = {"strategy": "uncertainty-herding", "budget": 9}
    assert select(rows, **given).index.tolist() == select(2.0**40 * rows, **given).index.tolist()


def test_what_it_refuses(monkeypatch):
    with pytest.raises(InputError, match="UncertaintyHerding chooses from a CoverageScore"):
        UncertaintyHerding().select(Score(torch.ones(9)), 2)
    with pytest.raises(InputError, match="bandwidth is 0"):
        UncertaintyHerding(bandwidth=0.0)
    monkeypatch.setattr("coresift.limits.LIBRARY_BYTES", 0)
    monkeypatch.setattr("coresift.selection.check_memory", lambda memory, *_: memory)
    given = {"pool": normal(1000, 50), "budget": 3, "strategy": "uncertainty-herding"}
    with pytest.raises(InputError, match=r"this strategy needs 1.8 MB for 1,000 points"):
        select(**given, resources=coresift.Resources(1_000_000))
    assert len(select(**given, resources=coresift.Resources(2_000_000))) == 3
