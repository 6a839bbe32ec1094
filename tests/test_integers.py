"""Integers of NumPy mean what those of Python mean, at every door; they wrap around in arithmetic."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from coresift import InputError, find_strategy, select
from coresift.bench.replay import Method, Simulation
from coresift.estimators import (
    DropoutClassifier,
    EnsembleRegressor,
    NeuralLinearClassifier,
    NeuralLinearRegressor,
)
from coresift.estimators.dropout import DropoutPosterior
from coresift.estimators.networks import MLP, Augment, ResNet18, Trainer
from coresift.pool import ArrayPool, NumpyPool
from coresift.posteriors import BayesianProbitRegression, LinearPosterior, SoftmaxPosterior
from coresift.selectors import Exhaustive, FrankWolfe, KCenter, KMedoids
from coresift.spaces import VectorSpace, default_num_samples

KINDS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
X = np.random.default_rng(0).normal(size=(200, 3))
Y = X[:, 0] + X[:, 1] ** 2
POSTERIOR = LinearPosterior(torch.zeros(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64), 1.0)
PROBS = np.random.default_rng(1).dirichlet(np.ones(3), (8, 200))


@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_beside_points_of_norm_zero(kind):
    """Fewer points can be chosen than are left out: the difference is negative, and must not wrap."""
    vectors = torch.zeros(3, 100)
    vectors[:, :50] = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    for selector in (KCenter(), FrankWolfe()):
        with pytest.warns(UserWarning, match="50 of 100 vectors have zero norm"):
            assert len(selector.select(VectorSpace(vectors), kind(3))) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["predictive-lcmd", "acs-fw", "bald", "k-center", "k-medoids", "random"])
def test_select(kind, strategy):
    def chosen(number):
        lists = {"pending": np.array([5, 100], number), "exclude": [number(7), number(90)]}
        given = {"budget": number(100), "seed": number(3), **lists}
        method = find_strategy(strategy, num_samples=number(120))
        return select(X, probs=PROBS, strategy=method, **given).index.tolist()

    assert chosen(kind) == chosen(int)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint64])
def test_by_default_samples_grow_with_the_budget(kind):
    assert default_num_samples(kind(127)) == 254
    sampled = find_strategy("acs-fw", exact=False)
    batches = [select(X, posterior=POSTERIOR, strategy=sampled, budget=number(127)) for number in (kind, int)]
    assert batches[0].index.tolist() == batches[1].index.tolist()


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint64])
@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        (NeuralLinearRegressor, {"num_members": 2, "calibration_folds": 2, "regularisation": 1}),
        (NeuralLinearRegressor, {"calibration_folds": 64}),
        (EnsembleRegressor, {"num_members": 2}),
        (DropoutClassifier, {"num_predictive": 100, "least_steps": 3}),
        (NeuralLinearClassifier, {"num_predictive": 100, "least_steps": 3, "covariance": 2}),
    ],
)
def test_estimators(kind, estimator, options):
    def predicted(number):
        given = {name: number(value) for name, value in options.items()}
        model = estimator(
            **given, epochs=number(2), batch_size=number(100), random_state=number(0), progress=False
        )
        y = Y if estimator.__name__.endswith("Regressor") else Y > 0
        return model.fit(X[:130], y[:130]).predict(X[130:]).tolist()

    assert predicted(kind) == predicted(int)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint64])
def test_networks_pools_and_simulations(kind, tmp_path):
    assert ResNet18(kind(1), kind(8), kind(20)).last.weight.shape == (8, 160)
    assert MLP(kind(3), [kind(100), kind(100)])(torch.ones(2, 3)).shape == (2, 100)
    images = torch.ones(2, 1, 4, 4)
    assert Augment(kind(100))(images).shape == images.shape
    np.save(tmp_path / "pool.npy", X)
    for pool in (ArrayPool(X, kind(100)), NumpyPool(tmp_path, kind(100))):
        assert [chunk.start for chunk in pool.chunks()] == [0, 100]
    assert Trainer(kind(3), batch_size=kind(2), least_steps=kind(100)).num_epochs(100) == 3
    simulation = Simulation(X, Y, None, kind(100), kind(50), kind(60), num_test=kind(20))
    state = simulation.begin(Method("random"), kind(3))
    assert state == simulation.begin(Method("random"), 3)
    assert simulation.wanted(replace(state, pseudo_labels=((0, 0.0),))) == 49
    assert BayesianProbitRegression(max_iterations=kind(100)).max_iterations == 100


@pytest.mark.parametrize("wrong", [True, 2.5, "3", None, -1, float("nan")])
def test_what_is_no_integer(wrong):
    network = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(3, 2))
    weights = torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(0, 2, 3)
    doors = [
        lambda: select(X, posterior=POSTERIOR, budget=wrong),
        lambda: KCenter().select(VectorSpace(torch.ones(2, 3)), wrong),
        lambda: ArrayPool(X, wrong),
        lambda: Exhaustive(wrong),
        lambda: KMedoids(max_points=wrong),
        lambda: KMedoids(max_iterations=wrong),
        lambda: Trainer(epochs=wrong),
        lambda: Augment(wrong),
        lambda: MLP(wrong),
        lambda: MLP(3, [wrong]),
        lambda: ResNet18(width=wrong),
        lambda: DropoutPosterior(network, num_predictive=wrong),
        lambda: SoftmaxPosterior(*weights, num_predictive=wrong),
        lambda: BayesianProbitRegression(max_iterations=wrong),
        lambda: Simulation(X, Y, None, batch=wrong),
        lambda: default_num_samples(wrong),
        lambda: NeuralLinearRegressor(epochs=wrong).fit(X, Y),
        lambda: NeuralLinearRegressor(calibration_folds=wrong).fit(X, Y),
        lambda: EnsembleRegressor(num_members=wrong).fit(X, Y),
        lambda: DropoutClassifier(num_predictive=wrong).fit(X, Y > 0),
    ]
    for door in doors:
        with pytest.raises(InputError, match="expected an integer"):
            door()


def test_a_mask_is_no_list_of_indices():
    for mask in (np.zeros(200, bool), [True, False], torch.zeros(200, dtype=torch.bool)):
        with pytest.raises(InputError, match=r"of a mask, pass np.flatnonzero\(mask\)"):
            select(X, strategy="random", budget=2, exclude=mask)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, 10**30])
def test_seeds_beyond_64_bits(seed):
    with pytest.raises(InputError, match=f"seed is {seed}, expected a number of at most 64 bits"):
        select(X, strategy="random", budget=2, seed=seed)


@pytest.mark.parametrize("seed", [2**64 - 1, -(2**63), np.uint64(2**64 - 1), np.int8(-1)])
def test_seeds_of_64_bits(seed):
    assert len(select(X, strategy="random", budget=2, seed=seed)) == 2
