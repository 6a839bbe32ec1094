"""The look-ahead oracle."""

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor

from coresift.bench.models import MembersRegressor
from coresift.bench.oracle import BeamSearch
from coresift.bench.replay import Method, Simulation, run


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 3))
    model = MembersRegressor(RandomForestRegressor(8, oob_score=True))
    return Simulation(x, x[:, 0] ** 3, model, first=10, batch=10, budget=30)


def test_a_beam_of_one_is_a_greedy_look_ahead(simulation: Simulation) -> None:
    rounds = BeamSearch(beam=1, random=3, strategies=()).run(simulation, seed=0)
    assert [turn.labels for turn in rounds] == [10, 20, 30, 40]
    bought = [row for turn in rounds for row in turn.bought]
    assert len(set(bought)) == 30
    assert not set(bought) & set(simulation.test_rows(0).tolist())


def test_knowing_the_labels_helps(simulation: Simulation) -> None:
    """In the mean over seeds, the oracle ends below random, whose candidates it chooses among."""
    seeds = range(4)
    oracle = [BeamSearch(beam=1, random=8, strategies=()).run(simulation, seed)[-1].error for seed in seeds]
    *_, last = run(simulation, [simulation.begin(Method("random"), seed) for seed in seeds])
    assert np.mean(oracle) < 0.95 * np.mean([turn.error for turn in last])


def test_the_same_seed_gives_the_same_rounds(simulation: Simulation) -> None:
    first, second = (
        BeamSearch(beam=2, random=2, strategies=("k-center",)).run(simulation, seed=1) for _ in range(2)
    )
    assert [turn.chosen for turn in first] == [turn.chosen for turn in second]
