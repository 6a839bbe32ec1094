"""What the models of experiments are worth, trained on labels of the pool and tested on 10,000 others of it.

    python experiments/schedules.py cifar10 5000 10000 \
        --configs experiments/cifar10.toml experiments/cifar10_paper_schedule.toml --device cuda

Labels are drawn at random, or are those that a recorded run had bought, as method/seed/labels:

    python experiments/schedules.py svhn maxent/0/4000 --configs experiments/svhn.toml --device cuda \
        --rounds experiments/results/svhn_first_schedule/rounds.parquet

Test sets are left alone: schedules are chosen by this.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from lines import write

from coresift.bench.config import Experiment, Source
from coresift.bench.replay import Method, Simulation
from coresift.types import Index

HELD_OUT = 10_000


def main() -> None:
    """Train and test, and write a line for each."""
    parser = argparse.ArgumentParser(description="Compare schedules on labels held out of the pool.")
    parser.add_argument("data")
    parser.add_argument("labels", nargs="+", help="how many, or method/seed/labels of recorded rounds")
    parser.add_argument("--configs", type=Path, nargs="+", required=True)
    parser.add_argument("--rounds", type=Path, help="rounds.parquet of an experiment's report")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("schedules.jsonl"))
    given = parser.parse_args()
    for config in given.configs:
        experiment = Experiment.load(config)
        source = experiment.data.get(given.data, Source(given.data))
        experiment = replace(experiment, data={given.data: source})
        simulation = experiment.simulation(given.data, None, given.device, workers=1)
        pool = np.random.default_rng(12345).permutation(len(simulation.y) - (simulation.num_test or 0))
        for labels in given.labels:
            if labels.isdigit():
                rows, others = pool[HELD_OUT : HELD_OUT + int(labels)], pool
            else:
                rows = bought(simulation, given.rounds, *labels.split("/"))
                others = pool[~np.isin(pool, rows)]
            start = time.perf_counter()
            model = simulation.model.set_params(random_state=0)
            model.fit(simulation.x[rows], simulation.y[rows])
            seconds = time.perf_counter() - start
            probs, truth = (
                model.predict_proba(simulation.x[others[:HELD_OUT]]),
                simulation.y[others[:HELD_OUT]],
            )
            line = {
                "data": given.data,
                "labels": int(labels) if labels.isdigit() else labels,
                "accuracy": float((probs.argmax(1) == truth).mean()),
                "nll": -float(np.log(probs[np.arange(len(truth)), truth].clip(1e-38)).mean()),
                "seconds": round(seconds, 1),
                "options": experiment.options(given.data),
            }
            write(given.out, line)


def bought(simulation: Simulation, rounds: Path, method: str, seed: str, labels: str) -> Index:
    """The rows that a run had labels of when it had that many."""
    filters = [("method", "==", method), ("seed", "==", int(seed)), ("labels", "<", int(labels))]
    earlier = pq.read_table(rounds, filters=filters).to_pylist()
    rows = simulation.begin(Method("random"), int(seed)).labelled
    rows += tuple(row for one in sorted(earlier, key=lambda one: one["labels"]) for row in one["chosen"])
    if len(rows) != int(labels):
        raise SystemExit(f"{rounds} has no {method} with seed {seed} and {labels} labels")
    return np.array(rows)


if __name__ == "__main__":
    main()
