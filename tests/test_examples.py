"""The examples run as they stand, as a reader would start them."""

import re
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, folder, *arguments):
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_own_classifier(tmp_path):
    text = run("own_classifier.py", tmp_path, "out")
    chosen = re.findall(
        r"^image +(\d+): perhaps a (\d), with probability (0\.\d+|1\.00)$", text, re.MULTILINE
    )
    assert len({int(image) for image, _, _ in chosen}) == 20
    assert matplotlib.image.imread(tmp_path / "out" / "chosen.png").shape == (320, 400, 4)


def test_bagging(tmp_path):
    text = run("bagging.py", tmp_path)
    rows = np.array(re.findall(r"\d+", text.split("next:")[1]), dtype=int)
    assert len(set(rows.tolist())) == 20 and rows.max() < 768


def test_labelling_through_files(tmp_path, run_example):
    text = run_example("labelling/files.py", tmp_path / "out")
    share = float(re.search(r"([\d.]+)% of the 1727 other digits are read right", text)[1])
    assert share > 70 and "68 labels now, 0 items pending" in text
    assert (tmp_path / "out" / "digits" / "report.html").stat().st_size > 50_000
