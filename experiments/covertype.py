"""Does a labelling project save labels? Covertype through the very commands that people run.

    python experiments/covertype.py predictive-lcmd results.jsonl --data covertype.npz

All 581,012 rows are the pool; 100 labels at the start, ten batches of 100. After each batch the model that
the project would choose with next is tested on 50,000 rows with odd numbers, on which no choice was made.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from lines import write

from coresift.cli import app
from coresift.labelling.project import Project


def coresift(*words: object) -> None:
    """Run a command."""
    if app([str(word) for word in words], standalone_mode=False):
        raise SystemExit("a command failed")  # else what an earlier one left would be taken for its result


def answer(batch: Path, labels: np.ndarray) -> None:
    """Fill a batch in, as an annotator would."""
    with batch.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    with batch.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["id", "cover"])
        writer.writeheader()
        writer.writerows({"id": row["id"], "cover": labels[int(row["id"])]} for row in rows)


def main() -> None:
    """Run one strategy for some seeds, and write a line for each number of labels."""
    parser = argparse.ArgumentParser(description="Covertype through the commands of a labelling project.")
    parser.add_argument("strategy")
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="covertype.npz, with arrays x and y")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    with np.load(given.data) as arrays:
        x, y = arrays["x"], arrays["y"]
    folder = Path(tempfile.mkdtemp())
    columns = {f"x{number}": column for number, column in enumerate(x.T)}
    pa.parquet.write_table(pa.table(columns), folder / "pool.parquet")
    for seed in range(given.seeds):
        rng = np.random.default_rng(seed)
        first = rng.choice(len(y), 100, replace=False)
        tested = rng.choice(len(y) // 2, 50_000, replace=False) * 2 + 1
        project, known, batch = (
            folder / name for name in (f"project-{seed}", f"known-{seed}.csv", f"batch-{seed}.csv")
        )
        known.write_text("id,cover\n" + "".join(f"{row},{y[row]}\n" for row in first), encoding="utf-8")
        words = ["--target", "cover", "--task", "classification", "--labels", known, "--seed", seed]
        coresift("init", project, "--pool", folder / "pool.parquet", *words)
        for number in range(given.rounds + 1):
            start = time.perf_counter()
            with Project(project) as opened:
                labelled = [one.position for one in opened.ledger.labels()]
                model = opened.fit()
                assert model is not None
                rows = np.setdiff1d(tested, labelled)
                accuracy = float((model.predict(opened.rows(rows)) == y[rows].astype(str)).mean())
            line = {
                "strategy": given.strategy, "seed": seed, "labels": len(labelled), "accuracy": accuracy,
                "seconds": round(time.perf_counter() - start, 1),
            }  # fmt: skip
            write(given.out, line)
            if number < given.rounds:
                coresift("select", project, "--batch-size", 100, "--strategy", given.strategy, "--out", batch)
                answer(batch, y)
                coresift("ingest", project, batch)


if __name__ == "__main__":
    main()
