"""Expected predictive information gain against its definition, by enumeration and by integration."""

import math

import pytest
import torch
from torch.distributions import Categorical, MultivariateNormal, Poisson

from coresift import InputError, select
from coresift.pool import as_pool
from coresift.posteriors import BayesianLinearRegression, ClassSamples, FunctionPosterior
from coresift.scores import PredictiveInformation, bald
from coresift.spaces import Problem


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def epig(pool, posterior, target=None, num_targets=256, **given):
    problem = Problem(as_pool(pool), posterior, target=target, **given)
    return PredictiveInformation(num_targets)(problem).values


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_against_enumeration(classes):
    """E over targets of sum over both labels of p(y, y') log p(y, y') / (p(y) p(y'))."""
    probs, target = torch.softmax(2 * normal(9, 12, classes), -1), torch.softmax(normal(4, 12, classes), -1)
    expected = torch.zeros(9, dtype=torch.float64)
    for n in range(9):
        for t in range(4):
            for own in range(classes):
                for other in range(classes):
                    joint = (probs[n, :, own] * target[t, :, other]).mean()
                    alone = probs[n, :, own].mean() * target[t, :, other].mean()
                    expected[n] += joint * (joint / alone).log() / 4
    found = epig(probs, ClassSamples(12), target)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
    # No label says more about another one than about the model.
    assert (found <= bald(ClassSamples(12), as_pool(probs)).values).all()


def test_linear_regression_against_the_entropy_of_both_labels():
    rows, target = normal(7, 3), normal(5, 3, seed=1)
    posterior = BayesianLinearRegression(0.3).fit(rows[:2], rows[:2, 0])
    expected = torch.zeros(7, dtype=torch.float64)
    for n in range(7):
        for t in range(5):
            both = torch.stack([rows[n], target[t]])
            covariance = both @ posterior.covariance @ both.mT + 0.3 * torch.eye(2)
            alone = 0.5 * (2 * math.pi * math.e * covariance.diagonal()).log().sum()
            expected[n] += (alone - MultivariateNormal(torch.zeros(2).double(), covariance).entropy()) / 5
    torch.testing.assert_close(epig(rows, posterior, target), expected)
    sampled = epig(rows, posterior, target, exact=False, num_samples=20_000)
    torch.testing.assert_close(sampled, expected, rtol=0.1, atol=0.01)


def test_targets_are_drawn_and_blocks_do_not_matter(monkeypatch):
    probs = torch.softmax(2 * normal(40, 10, 3), -1)
    whole = epig(probs, ClassSamples(10), num_targets=40)
    drawn = torch.stack(
        [
            epig(probs, ClassSamples(10), num_targets=10, generator=torch.Generator().manual_seed(seed))
            for seed in range(40)
        ]
    )
    assert drawn.std(0).min() > 0
    torch.testing.assert_close(drawn.mean(0), whole, rtol=0.15, atol=1e-3)
    monkeypatch.setattr("coresift.limits.JOINT_NUMBERS", 50)
    torch.testing.assert_close(epig(probs, ClassSamples(10), num_targets=40), whole)


def test_a_target_decides_what_is_chosen():
    """Labels of one group of points say nothing about the other."""
    pool = torch.block_diag(normal(20, 3), 3 * normal(20, 3, seed=1))
    posterior = BayesianLinearRegression(0.5).fit(torch.zeros(1, 6).double(), torch.zeros(1).double())
    for strategy in ("epig", "variance-reduction"):
        first, second, anywhere = (
            select(pool, posterior=posterior, strategy=strategy, target=target, budget=3).index
            for target in (pool[:20], pool[20:], None)
        )
        assert first.max() < 20 <= second.min() and anywhere.max() >= 20


def test_what_target_refuses():
    probs = torch.softmax(normal(6, 9, 3), -1)
    with pytest.raises(
        InputError, match=r"does not use target=; those that do are .*variance-reduction, epig"
    ):
        select(probs=probs, target=probs, budget=2)
    for target, message in (
        (probs[:, :0], "target= holds no points"),
        (probs[..., :2], r"target points has shape \(9, 6, 2\), expected \(any, 6, 3\)"),
        (probs[0], "target has shape"),
    ):
        with pytest.raises(InputError, match=message):
            select(probs=probs, target=target, strategy="epig", budget=2)
    with pytest.raises(InputError, match=r"pass target=\(means, variances\)"):
        select(means=probs[..., 0], variances=probs[..., 1], target=probs[..., 0], strategy="epig", budget=2)
    counts = FunctionPosterior(lambda x, rate: Poisson(rate * x[:, 0].exp()), [1.0, 2.0])
    with pytest.raises(InputError, match=r"'epig' needs classes or one Gaussian output, .* a Poisson"):
        select(normal(9, 2), posterior=counts, strategy="epig", budget=2)


def test_a_network_maps_its_targets_too():
    from coresift.posteriors import NetworkPosterior

    layer = torch.nn.Linear(3, 4).double()
    pool, target = normal(30, 3), normal(10, 3, seed=1)
    with torch.no_grad():
        features = layer(pool)
    head = BayesianLinearRegression(0.5).fit(features[:5], features[:5, 0])
    for strategy in ("epig", "variance-reduction"):
        with torch.no_grad():
            expected = select(features, posterior=head, target=layer(target), strategy=strategy, budget=4)
        found = select(
            pool, posterior=NetworkPosterior(layer, head), target=target, strategy=strategy, budget=4
        )
        assert found.index.tolist() == expected.index.tolist()


def test_many_classes_have_fewer_targets(monkeypatch):
    monkeypatch.setattr("coresift.limits.TARGET_NUMBERS", 100)
    posterior = FunctionPosterior(
        lambda x, w: Categorical(logits=x @ w), list(normal(5, 3, 4))
    )  # 20 numbers a row
    assert epig(normal(30, 3), posterior).shape == (30,)
