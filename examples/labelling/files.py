"""The whole loop of a labelling project through files, with a script for an annotator.

    python examples/labelling/files.py [FOLDER]

The pool is scikit-learn's handwritten digits, 1797 real images of 8 by 8 pixels. Twenty labels are known at
the start; two batches of 25 are chosen, "labelled" and taken in. The page at the end shows it all.
"""

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
from sklearn.datasets import load_digits

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
folder.mkdir(parents=True, exist_ok=True)
project, batch, answers = folder / "digits", folder / "batch.csv", folder / "labelled.csv"


def coresift(*words):
    """Run a command as one would in a shell."""
    print("$ coresift", *words)
    subprocess.run([sys.executable, "-m", "coresift", *map(str, words)], check=True)


# The pool: a column for each pixel, names, and a column of labels that is filled in a few rows only.
images, digits = load_digits(return_X_y=True)
names = [f"scan-{number:04d}" for number in range(len(images))]
columns = {f"pixel-{place}": column for place, column in enumerate(images.T)}
known = [str(digit) if number < 20 else None for number, digit in enumerate(digits)]
pa.parquet.write_table(pa.table({"id": names, **columns, "digit": known}), folder / "pool.parquet")
truth = dict(zip(names, digits, strict=True))

coresift(
    "init",
    project,
    "--pool",
    folder / "pool.parquet",
    "--target",
    "digit",
    "--classes",
    "0,1,2,3,4,5,6,7,8,9",
)
for _ in range(2):
    coresift("select", project, "--batch-size", 25, "--out", batch)
    # The annotator: fills in the column, and leaves one item aside.
    with batch.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    for place, row in enumerate(rows):
        if place == 24:
            row["skip"] = "yes"
        else:
            row["digit"] = truth[row["id"]]
        row["who"] = "script"
    with answers.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    coresift("ingest", project, answers)
coresift("status", project)
coresift("export", project, folder / "labelled.parquet")
coresift("report", project)

table = pa.parquet.read_table(folder / "labelled.parquet").to_pylist()
rest = [row for row in table if row["state"] == "unlabelled"]
right = sum(row["predicted"] == str(truth[row["id"]]) for row in rest)
print(f"{right / len(rest):.1%} of the {len(rest)} other digits are read right")
