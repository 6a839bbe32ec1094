"""Selectors, strategies and estimators on a GPU choose the same points as on the CPU; all tests need a GPU.

The kernels are tested in test_cuda.py, also without a GPU.
"""

from functools import partial

import numpy as np
import pytest
import torch
from selectors_to_test import SEARCHING

from coresift import STRATEGIES, select
from coresift.estimators import (
    DropoutClassifier,
    DropoutRegressor,
    EnsembleClassifier,
    EnsembleRegressor,
    GaussianProcessRegressor,
    LaplaceClassifier,
    LaplaceRegressor,
    NeuralLinearClassifier,
    NeuralLinearRegressor,
)
from coresift.estimators.networks import MLP, Augment, LabelledStack, ResNet18, Stack, Trainer
from coresift.estimators.networks.losses import ExactLastLayer
from coresift.posteriors import BayesianLinearRegression, ProbitPosterior
from coresift.selectors import FrankWolfe, GreedyLogDet, KMeansPlusPlus, VarianceReduction
from coresift.spaces import VectorSpace
from coresift.testing import check_selector, check_space

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "selector", [*SEARCHING, FrankWolfe(start="vertex"), GreedyLogDet(), VarianceReduction()]
)
def test_selectors(selector, dtype):
    vectors = normal(6, 200).to(dtype)
    space = VectorSpace(vectors.cuda())
    check_space(space)
    check_selector(selector, space)
    expected = selector.select(VectorSpace(vectors), 12, seed=1)
    assert selector.select(space, 12, seed=1).index.tolist() == expected.index.tolist()


@pytest.mark.parametrize("selector", [one for one in SEARCHING if not isinstance(one, KMeansPlusPlus)])
def test_runs_of_many_steps(selector):
    """Duplicates, pending and excluded points lie within runs that no host looks at."""
    vectors = normal(6, 5000).float()
    vectors[:, 1::3] = vectors[:, ::3][:, : len(range(1, 5000, 3))]
    options = {"pending": [3, 9], "exclude": [1, 2], "seed": 1}
    expected = selector.select(VectorSpace(vectors), 300, **options).index.tolist()
    assert selector.select(VectorSpace(vectors.cuda()), 300, **options).index.tolist() == expected


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("labelled", [None, normal(5, 4, seed=1)])
def test_strategies(strategy, labelled):
    pool = normal(60, 4)
    for posterior in (
        ProbitPosterior(normal(4), torch.eye(4, dtype=torch.float64)),
        BayesianLinearRegression().fit(pool[:8], pool[:8, 0]),
    ):
        if strategy in ("badge", "margin", "batch-bald") and not isinstance(posterior, ProbitPosterior):
            continue
        on_gpu = type(posterior)(
            posterior.mean.cuda(),
            posterior.covariance.cuda(),
            *([] if isinstance(posterior, ProbitPosterior) else [posterior.shape, posterior.rate]),
        )
        options = {"budget": 7, "strategy": strategy, "labelled": labelled}
        expected = select(pool, posterior=posterior, **options).index.tolist()
        assert select(pool, posterior=on_gpu, **options).index.tolist() == expected
        assert select(pool.cuda(), posterior=on_gpu, **options).index.tolist() == expected


def test_training_side_by_side():
    """In float64 the GPU ends where the CPU does."""
    sets = [(normal(size, 3, seed=size), normal(size, 1, seed=size + 1)) for size in (20, 33, 7)]
    torch.manual_seed(0)
    members = [MLP(3, (8, 5)).double() for _ in sets]
    stacks = []
    for device in ("cpu", "cuda"):
        stack = Stack(members, device, torch.float64)
        generators = [torch.Generator().manual_seed(seed) for seed in range(3)]
        Trainer(epochs=20, progress=False).train(stack, ExactLastLayer(), LabelledStack.of(sets), generators)
        stacks.append(stack.flat.cpu())
    torch.testing.assert_close(stacks[0], stacks[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        NeuralLinearRegressor(epochs=50, device="cuda", random_state=0),
        NeuralLinearClassifier(epochs=50, device="cuda", random_state=0),
        EnsembleRegressor(epochs=50, num_members=3, device="cuda", random_state=0),
        EnsembleClassifier(epochs=50, num_members=3, device="cuda", random_state=0),
        GaussianProcessRegressor(device="cuda", random_state=0),
        GaussianProcessRegressor(num_exact=50, num_inducing=20, device="cuda", random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_estimators(model):
    x = normal(100, 3).numpy()
    y = x[:, 0] > 0 if hasattr(model, "predict_proba") else x[:, 0]
    assert model.fit(x, y).score(x, y) > 0.8
    classes = ["badge", "margin"] if hasattr(model, "predict_proba") else []
    for strategy in ("acs-fw", "acs-lcmd", "bald", "k-center", "k-medoids", *classes):
        for pool in (x, torch.from_numpy(x).cuda()):  # labelled points stay where they are
            given = {"posterior": model.posterior_, "labelled": x[:3]}
            assert len(select(pool, **given, budget=5, strategy=strategy)) == 5


@pytest.mark.parametrize("kind", [NeuralLinearClassifier, DropoutClassifier])
def test_images_of_bytes(kind):
    """Recorded steps, two widths of mini-batch among them, learn to tell dark images from bright ones."""
    y = torch.arange(200) % 2
    x = torch.randint(0, 128, (200, 1, 8, 8), dtype=torch.uint8) + (100 * y[:, None, None, None]).byte()
    model = kind(
        partial(ResNet18, width=4),
        epochs=10,
        batch_size=64,
        schedule="one-cycle",
        augment=Augment(1),
        precision="bfloat16",
        device="cuda",
        random_state=0,
    )
    model.fit(x.cuda(), y)
    probs = model.predict_proba(x)
    assert (probs.argmax(1) == y.numpy()).mean() > 0.9
    np.testing.assert_allclose(model.posterior_.to("cpu").predictive(x).probs, probs, atol=0.02)


@pytest.mark.parametrize(
    "kind",
    [
        NeuralLinearRegressor,
        EnsembleRegressor,
        EnsembleClassifier,
        DropoutRegressor,
        DropoutClassifier,
        LaplaceRegressor,
        LaplaceClassifier,
        NeuralLinearClassifier,
        GaussianProcessRegressor,
    ],
)
def test_posteriors_move_to_the_cpu(kind):
    x = normal(60, 3)
    few = {} if kind is GaussianProcessRegressor else {"epochs": 5}
    model = kind(**few, device="cuda", random_state=0)
    y = x[:, 0] > 0 if hasattr(model, "predict_proba") else x[:, 0]
    posterior = model.fit(x.numpy(), y.numpy()).posterior_
    expected = posterior.predictive(x).mean if y.is_floating_point() else posterior.predictive(x).probs
    moved = posterior.to("cpu").predictive(x)
    actual = moved.mean if y.is_floating_point() else moved.probs
    assert actual.device.type == "cpu"
    torch.testing.assert_close(actual, expected.cpu(), rtol=1e-3, atol=1e-4)
