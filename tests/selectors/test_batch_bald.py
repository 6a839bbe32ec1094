"""BatchBALD against its definition, by enumerating the joint outcomes of a batch."""

from itertools import product

import pytest
import torch
from torch.distributions import Bernoulli

from coresift import InputError, select
from coresift.pool import as_pool
from coresift.posteriors import FunctionPosterior
from coresift.scores import ClassScore, Score, label_information
from coresift.selectors import BatchBALD
from coresift.testing import check_selector


def class_probabilities(num: int, size: int, classes: int, seed: int = 0) -> torch.Tensor:
    """(N, J, C)"""
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(2 * torch.randn(size, num, classes, generator=generator), -1)


def score_of(probs: torch.Tensor, rows: torch.Tensor | None = None) -> ClassScore:
    return ClassScore(torch.zeros(len(probs)), None if rows is None else as_pool(rows), probs=probs)


def joint_information(probs: torch.Tensor, batch: list[int]) -> float:
    """I[y_1..y_b; theta] as H[y_1..y_b] - E[H[y_1..y_b | theta]], with a sum over all outcomes."""
    probs = probs.double()
    information = 0.0
    for labels in product(range(probs.shape[2]), repeat=len(batch)):
        likelihood = torch.stack([probs[n, :, label] for n, label in zip(batch, labels, strict=True)]).prod(0)
        information -= float(likelihood.mean() * likelihood.mean().log())
        information += float((likelihood * likelihood.log()).mean())
    return information


@pytest.mark.parametrize("classes", [2, 3])
def test_each_step_maximises_the_joint_information(classes):
    probs = class_probabilities(20, 12, classes)
    chosen = [4]
    for n in BatchBALD().select(score_of(probs), 4, pending=[4]).index.tolist():
        gains = [joint_information(probs, [*chosen, m]) if m not in chosen else -1.0 for m in range(12)]
        assert n == max(range(12), key=gains.__getitem__)
        chosen.append(n)


def test_drawn_outcomes_are_near_the_sum_over_all():
    """The information of a fourth label given three: the mean over 1000 times 20 draws of the 27 outcomes."""
    probs, members = class_probabilities(20, 12, 3), [1, 5, 9]
    generator = torch.Generator().manual_seed(0)
    all_outcomes = BatchBALD(27)._states(probs, members, generator)
    assert len(all_outcomes[0]) == 27
    drawn = [BatchBALD(20)._states(probs, members, generator) for _ in range(1000)]
    weights, beliefs = torch.cat([one[0] for one in drawn]) / 1000, torch.cat([one[1] for one in drawn])
    expected, found = (label_information(probs, *states) for states in (all_outcomes, (weights, beliefs)))
    torch.testing.assert_close(found, expected, rtol=0.02, atol=1e-3)


def test_contract_with_and_without_draws():
    for num_outcomes in (5, 1000):
        check_selector(BatchBALD(num_outcomes), score_of(class_probabilities(10, 30, 3)))
    with pytest.raises(InputError, match="chooses from a ClassScore"):
        BatchBALD().select(Score(torch.ones(9)), 2)


def test_duplicates_come_last():
    probs = class_probabilities(10, 6, 2).repeat(2, 1, 1)
    batch = BatchBALD().select(score_of(probs, probs.flatten(1)), 8).index.tolist()
    assert len({n % 6 for n in batch[:6]}) == 6 and len(set(batch)) == 8


def test_a_batch_is_less_redundant_than_the_best_points():
    """Of two points that say the same, the second says less than another that alone says less."""
    first, other = torch.tensor([0.9, 0.9, 0.1, 0.1]), torch.tensor([0.8, 0.2, 0.8, 0.2])
    probs = torch.stack([first, first, other])
    probs = torch.stack([probs, 1 - probs], 2)
    bald = label_information(probs, torch.ones(1), torch.full((1, 4), 0.25))
    assert bald[0] == bald[1] > bald[2]
    assert BatchBALD().select(score_of(probs), 2).index.tolist() == [0, 2]


def test_one_probability_of_two_classes_and_no_classes():
    yes = torch.rand(30, 8, generator=torch.Generator().manual_seed(2))
    one = FunctionPosterior(lambda x, draw: Bernoulli(yes[draw][x[:, 0].long()]), list(torch.arange(30)))
    pool = torch.arange(8.0)[:, None]
    batches = [
        select(pool, posterior=one, strategy="batch-bald", budget=3),
        select(probs=torch.stack([1 - yes, yes], -1), strategy="batch-bald", budget=3),
    ]
    assert batches[0].index.tolist() == batches[1].index.tolist()
    with pytest.raises(InputError, match="needs class probabilities"):
        select(means=yes, variances=1.0, strategy="batch-bald", budget=2)
