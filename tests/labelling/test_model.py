"""The models that a labelling project fits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from coresift import select
from coresift.estimators import NeuralLinearRegressor
from coresift.labelling.model import MODEL_NAMES, default_model, quick_model, std_factor
from coresift.labelling.records import Task

x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
labels = {"regression": x[:, 0] + 0.1 * x[:, 1], "classification": np.where(x[:, 0] > 0, "up", "down")}
TASKS: list[Task] = ["regression", "classification"]


@pytest.mark.parametrize("task", TASKS)
def test_the_default_learns_chooses_and_repeats_itself(task: Task) -> None:
    y = labels[task]
    model, again = (default_model(task, 60, seed=1).fit(x[:60], y[:60]) for _ in range(2))
    batch, repeated = (
        select(x[60:], budget=20, posterior=one.posterior_, labelled=x[:60]) for one in (model, again)
    )
    assert batch.index.tolist() == repeated.index.tolist() and len(batch) == 20
    assert model.score(x[60:], y[60:]) > 0.85
    assert task in MODEL_NAMES


@pytest.mark.parametrize("task", TASKS)
def test_twenty_labels_are_enough_to_fit(task: Task) -> None:
    model = default_model(task, 20, seed=0).fit(x[:20], labels[task][:20])
    assert model.predict(x).shape == (200,)


def test_a_pool_is_read_in_chunks() -> None:
    model = default_model("classification", 60, seed=0).fit(x[:60], labels["classification"][:60])
    whole = model.posterior_.predictive(torch.as_tensor(x)).probs
    part = model.posterior_.predictive(torch.as_tensor(x[50:57])).probs
    torch.testing.assert_close(whole[50:57], part)


def test_many_labels_take_fewer_epochs() -> None:
    assert [default_model("regression", num, 0).epochs for num in (20, 1000, 3000, 10**6)] == [60, 60, 20, 12]
    assert [default_model("regression", num, 0).batch_size for num in (5000, 20_000)] == [None, 2000]


@pytest.mark.parametrize("num", [2, 30, 65, 130, 260, 1001, 5000])
def test_mini_batches_of_the_quick_model_are_of_one_size(num: int) -> None:
    size = quick_model("regression", num, 0).batch_size
    assert size is not None and (num % size == 0 or num % size > 0.7 * size)


def test_std_of_numbers_goes_by_left_out_labels_and_not_by_the_level_of_a_fit() -> None:
    """Two fits that differ tenfold in how uncertain they are end up level, at the error on new labels."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    y = x[:, 0] + rng.normal(size=400)
    model = NeuralLinearRegressor(epochs=5, calibration_folds=0, random_state=0).fit(x[:100], y[:100])
    mean, std = model.predict(x[100:], return_std=True)
    factor = std_factor(model, x[:100], y[:100], x, seed=0)
    assert factor * std.mean() == pytest.approx(np.sqrt(np.mean((y[100:] - mean) ** 2)), rel=0.15)
    head = model.posterior_.head
    model.posterior_ = replace(model.posterior_, head=replace(head, rate=100 * head.rate))
    assert std_factor(model, x[:100], y[:100], x, seed=0) == pytest.approx(factor / 10)
