"""Rounds of labelling in Label Studio, with a script for an annotator that answers one task after another.

    LABEL_STUDIO_API_KEY=... python examples/labelling/label_studio.py http://127.0.0.1:8080 [FOLDER]

The pool is scikit-learn's handwritten digits. The server is one of your own, the token one of its legacy or
personal access tokens. A project "Digits" is made there; look at it while the script runs.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
from sklearn.datasets import load_digits

from coresift.labelling.labellers.label_studio import LabelStudio, read_token

url = sys.argv[1]
folder = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())
folder.mkdir(parents=True, exist_ok=True)
project = folder / "digits"


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
coresift("labelstudio", "connect", project, "--url", url, "--title", "Digits")
with LabelStudio(url, read_token()) as server:
    found = server.pages("/api/projects/", "results", "count", title="Digits", include="id,title")
    there = next(one["id"] for one in found if one["title"] == "Digits")
    for _ in range(2):
        coresift("select", project, "--batch-size", 10)
        coresift("labelstudio", "push", project)
        # The annotator: answers what is served, and skips the last one.
        for place in range(10):
            task = server.request("GET", f"/api/projects/{there}/next")
            label = str(truth[task["data"]["coresift_id"]])
            choice = {
                "from_name": "label",
                "to_name": "item",
                "type": "choices",
                "value": {"choices": [label]},
            }
            given = {"result": [], "was_cancelled": True} if place == 9 else {"result": [choice]}
            server.request("POST", f"/api/tasks/{task['id']}/annotations/", json=given)
        coresift("labelstudio", "pull", project)
coresift("status", project)
