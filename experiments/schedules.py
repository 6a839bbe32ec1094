"""What the models of experiments are worth, trained on labels of the pool and tested on 10,000 others of it.

    python experiments/schedules.py cifar10 5000 10000 \
        --configs experiments/cifar10.toml experiments/cifar10_paper_schedule.toml --device cuda

Test sets are left alone: schedules are chosen by this.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from coresift.experiments.config import Experiment, Source

HELD_OUT = 10_000


def main() -> None:
    """Train and test, and write a line for each."""
    parser = argparse.ArgumentParser(description="Compare schedules on labels held out of the pool.")
    parser.add_argument("data")
    parser.add_argument("labels", type=int, nargs="+")
    parser.add_argument("--configs", type=Path, nargs="+", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("schedules.jsonl"))
    given = parser.parse_args()
    for config in given.configs:
        experiment = replace(Experiment.load(config), data={given.data: Source(given.data)})
        simulation = experiment.simulation(given.data, None, given.device, workers=1)
        pool = np.random.default_rng(12345).permutation(len(simulation.y) - (simulation.num_test or 0))
        held_out = pool[:HELD_OUT]
        for labels in given.labels:
            rows, start = pool[HELD_OUT : HELD_OUT + labels], time.perf_counter()
            model = simulation.model.set_params(random_state=0)
            model.fit(simulation.x[rows], simulation.y[rows])
            seconds = time.perf_counter() - start
            probs, truth = model.predict_proba(simulation.x[held_out]), simulation.y[held_out]
            line = {
                "data": given.data,
                "labels": labels,
                "accuracy": float((probs.argmax(1) == truth).mean()),
                "nll": -float(np.log(probs[np.arange(len(truth)), truth].clip(1e-38)).mean()),
                "seconds": round(seconds, 1),
                "options": experiment.options(given.data),
            }
            print(json.dumps(line), flush=True)
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
