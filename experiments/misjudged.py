"""How many of the images that a model misjudges are in the batches that strategies choose.

    python experiments/misjudged.py experiments/cifar10.toml --seed 0 --device cuda --out misjudged.jsonl \
        --rounds experiments/results/cifar10/rounds.parquet

The model is fitted to the labels that the recorded run of a method had at each round, and each strategy
chooses the next batch with it; labels of the pool say what the batch holds. The last line is of a batch that
knows them: all misjudged images, then those of highest entropy, with what a model that learned from it is
worth on the test set. No strategy could buy more of what the model gets wrong.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from lines import write
from schedules import bought

from coresift.bench.config import Experiment
from coresift.bench.replay import Method, Simulation, State, choose
from coresift.types import Index

STRATEGIES = ["maxent", "margin", "bald", "k-center", "predictive-lcmd", "random"]


def main() -> None:
    """Write a line for each round, and one for the batch that knows."""
    parser = argparse.ArgumentParser(description="Count misjudged images in batches.")
    parser.add_argument("config", type=Path)
    parser.add_argument("--rounds", type=Path, required=True, help="rounds.parquet of an experiment's report")
    parser.add_argument("--method", default="predictive-lcmd", help="whose labels")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    experiment = Experiment.load(given.config)
    (data,) = experiment.data
    simulation = experiment.simulation(data, None, given.device, workers=1)
    first, last = simulation.first, simulation.first + simulation.budget
    for labels in range(first, last, simulation.batch):
        rows = bought(simulation, given.rounds, given.method, str(given.seed), str(labels))
        line, knowing = batches(simulation, rows, given.seed)
        write(given.out, {"data": data, "labels_of": given.method, "seed": given.seed} | line)
    rows = np.concatenate([rows, knowing])
    model = simulation.model.set_params(random_state=given.seed).fit(simulation.x[rows], simulation.y[rows])
    test = simulation.test_rows(given.seed)
    accuracy = float((model.predict(simulation.x[test]) == simulation.y[test]).mean())
    line = {"data": data, "labels_of": f"{given.method}, then all misjudged", "seed": given.seed}
    write(given.out, line | {"labels": len(rows), "accuracy": accuracy})


def batches(simulation: Simulation, rows: Index, seed: int) -> tuple[dict[str, object], Index]:
    """What batches hold that are chosen by a model of these rows, and the batch that knows."""
    model = simulation.model.set_params(random_state=seed).fit(simulation.x[rows], simulation.y[rows])
    state = State(Method("maxent"), seed, tuple(rows.tolist()))
    pool = simulation.pool_rows(state)
    misjudged = pool[model.predict(simulation.x[pool]) != simulation.y[pool]]
    wanted = min(simulation.batch, simulation.first + simulation.budget - len(rows))
    found = {
        name: choose(simulation, replace(state, method=Method(name)), model.posterior_, wanted)
        for name in STRATEGIES
    }
    line = {
        "labels": len(rows),
        "left": len(pool),
        "misjudged": len(misjudged),
        "misjudged_in_batch": {name: int(np.isin(batch, misjudged).sum()) for name, batch in found.items()},
        "shared_with_maxent": {name: len({*batch} & {*found["maxent"]}) for name, batch in found.items()},
    }
    ranked = np.array(found["maxent"])
    knowing = np.concatenate([misjudged, ranked[~np.isin(ranked, misjudged)]])[:wanted]
    return line, knowing


if __name__ == "__main__":
    main()
