"""BAIT against its definition, and against variance reduction where the two are the same."""

import pytest
import torch

from coresift import InputError, Resources, select
from coresift.pool import as_pool
from coresift.posteriors import BayesianLinearRegression, ClassSamples
from coresift.scores import Score
from coresift.selectors import Bait, VarianceReduction
from coresift.selectors.bait import FisherScore, fisher_score, information
from coresift.spaces import Problem, VectorSpace
from coresift.testing import check_selector


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def score_of(rows, probs, labelled=None, known=None):
    problem = Problem(
        as_pool(probs[:, None]),
        ClassSamples(1),
        features=as_pool(rows),
        labelled=None if known is None else known[:, None],
        labelled_features=labelled,
    )
    return fisher_score(problem)


def written_out(row, probs):
    """sum_y p_y g_y g_y^T with g_y the gradient of -log p_y with respect to the last layer's weights."""
    total = 0.0
    for label, weight in enumerate(probs):
        gradient = torch.outer(probs - torch.eye(len(probs)).to(probs)[label], row).flatten()
        total = total + weight * torch.outer(gradient, gradient)
    return total


def uncertainty(matrices, known, target, batch):
    return float(torch.trace(torch.linalg.solve(known + sum(matrices[n] for n in batch), target)))


@pytest.mark.parametrize("classes", [2, 3])
def test_steps_forward_and_backward_are_those_of_the_definition(classes):
    rows, probs = normal(14, 3), torch.softmax(normal(14, classes, seed=1), -1)
    labelled, known = normal(4, 3, seed=2), torch.softmax(normal(4, classes, seed=3), -1)
    matrices = [written_out(*point) for point in zip(rows, probs, strict=True)]
    prior = torch.eye(3 * classes).double()
    prior += sum(written_out(*point) for point in zip(labelled, known, strict=True))
    score, target = score_of(rows, probs, labelled, known), sum(matrices)
    torch.testing.assert_close(information(score.features, score.roots), target, rtol=1e-4, atol=1e-6)
    chosen = [2]  # pending
    for _ in range(6):
        rest = [n for n in range(14) if n not in chosen]
        chosen.append(min(rest, key=lambda n: uncertainty(matrices, prior, target, [*chosen, n])))
    forward = Bait(oversample=1).select(score, 6, pending=[2]).index.tolist()
    assert forward == chosen[1:]
    for _ in range(3):
        chosen.remove(
            min(
                chosen[1:],
                key=lambda n: uncertainty(matrices, prior, target, [m for m in chosen if m != n]),
            )
        )
    assert Bait().select(score, 3, pending=[2]).index.tolist() == chosen[1:]


def test_for_one_output_it_is_variance_reduction():
    rows = normal(30, 4)
    posterior = BayesianLinearRegression(0.5).fit(rows[:6], rows[:6, 0])
    score = fisher_score(Problem(as_pool(rows), posterior, labelled=rows[:6]))
    covariance = torch.linalg.inv(0.7 * torch.eye(4) + rows[:6].mT @ rows[:6])
    space = VectorSpace(torch.linalg.cholesky(covariance).mT @ rows.mT)
    expected = VarianceReduction().select(space, 8, pending=[1, 4]).index.tolist()
    assert Bait(0.7, oversample=1).select(score, 8, pending=[1, 4]).index.tolist() == expected


def test_contract_and_duplicates():
    rows, probs = normal(20, 3), torch.softmax(normal(20, 3, seed=1), -1)
    check_selector(Bait(), score_of(rows, probs))
    twice = select(
        rows.repeat(2, 1), probs=probs.repeat(2, 1)[None], strategy="bait", budget=30
    ).index.tolist()
    assert len(set(twice)) == 30 and len({n % 20 for n in twice}) == 20
    with pytest.raises(InputError, match="Bait chooses from a FisherScore"):
        Bait().select(Score(torch.ones(9)), 2)
    assert isinstance(score_of(rows, probs), FisherScore)


def test_the_order_of_the_pool_does_not_matter():
    rows, probs = normal(30, 3), torch.softmax(normal(30, 3, seed=1), -1)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    batch = Bait().select(score_of(rows, probs), 7).index.tolist()
    assert order[Bait().select(score_of(rows[order], probs[order]), 7).index].tolist() == batch


def test_too_many_features_and_classes_are_refused():
    """In one line, before matrices of all pairs are made, and with a limit on memory in words of it."""
    probs = torch.softmax(torch.randn(3, 40, 100, generator=torch.Generator().manual_seed(0)), -1)
    with pytest.raises(InputError, match="'bait' keeps matrices of 10,000 x 10,000 numbers"):
        select(probs=probs, features=torch.randn(40, 100), budget=2, strategy="bait")
    with pytest.raises(InputError, match=r"needs .* for its matrices, with the libraries"):
        select(
            probs=probs,
            features=torch.randn(40, 80),
            budget=2,
            strategy="bait",
            resources=Resources(memory="2GB"),
        )
