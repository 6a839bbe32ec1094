"""Tables of the benchmark suites, from PMLB and from the UCI data sets of Evans, in ``suite.toml``."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coresift.bench.data.readers import Table, load_arrays, reading
from coresift.errors import InputError

TEXT_COLUMNS = 128  # of texts, after the reduction
MOST_ROWS = 20_000  # larger tables are random subsets

_SOURCES = {
    "pmlb": (
        "{name}.tsv.gz (its name may begin with a number, as in 564_fried.tsv.gz)",
        "https://github.com/EpistasisLab/pmlb, licence: MIT",
    ),
    "uci": (
        "{name}/data.csv.gz",
        "https://github.com/treforevans/uci_datasets, licence: MIT",
    ),
    "text": (
        "{name}.jsonl.gz (JSON lines with text and label)",
        "https://cogcomp.seas.upenn.edu/Data/QA/QC (trec6) or "
        "https://github.com/PolyAI-LDN/task-specific-datasets (banking77, licence: CC BY 4.0)",
    ),
    "covertype": ("covtype.data.gz", "https://archive.ics.uci.edu/dataset/31/covertype, licence: CC BY 4.0"),
}
# The ends of paths of official files.
_PATTERNS = {
    "pmlb": r"/(\d+_)?{name}\.tsv\.gz$",
    "uci": r"/{name}/data\.csv\.gz$",
    "text": r"/{name}\.jsonl\.gz$",
    "covertype": r"/covtype\.data\.gz$",
}


@dataclass(frozen=True)
class SuiteTable:
    """A table of the suites."""

    task: Literal["regression", "classification"]
    shape: tuple[int, int]  # of x, without constant columns and at most `MOST_ROWS` rows
    origin: str  # a key of the sources


def _registry() -> dict[str, SuiteTable]:
    text = resources.files(__package__).joinpath("suite.toml").read_text(encoding="utf-8")
    return {
        name: SuiteTable(task, (rows, columns), origin)  # type: ignore[arg-type]
        for task, tables in tomllib.loads(text).items()
        for name, (rows, columns, origin) in tables.items()
    }


SUITE = _registry()


def load_suite_table(name: str, folder: Path) -> Table:
    """Load a table by its name in `SUITE`: its official file, or ``<name>.npz`` of arrays x and y.

    The file may be in a folder of the folder. Rows with missing values and constant columns are dropped, and
    of more than 20,000 rows a random 20,000 are kept.
    """
    source = SUITE[name]
    path = _find(name, source, folder)
    x, y = _read(path)
    kept = np.isfinite(x).all(1) & np.isfinite(y)
    x, y = x[kept], y[kept]
    x = x[:, (x != x[:1]).any(0)]
    if len(x) > MOST_ROWS:
        rows = np.random.default_rng(0).permutation(len(x))[:MOST_ROWS]
        x, y = x[rows], y[rows]
    if x.shape != source.shape:
        raise InputError(
            f"{path} is not the published table: it has shape {x.shape}, expected {source.shape}"
        )
    x = x.astype(np.float32).astype(np.float64)
    if source.task == "regression":
        return Table(name, x, y.astype(np.float32).astype(np.float64), "target")
    classes, codes = np.unique(y, return_inverse=True)
    return Table(name, x, codes.astype(np.float64), "class", tuple(f"{value:g}" for value in classes))


def _find(name: str, source: SuiteTable, folder: Path) -> Path:
    """Return the file of a table, in the folder or below it."""
    official, origin = _SOURCES[source.origin]
    wanted = re.compile(_PATTERNS[source.origin].format(name=re.escape(name)), re.IGNORECASE)
    found = sorted(folder.rglob(f"{name}.npz"))
    found += sorted(path for path in folder.rglob("*.gz") if wanted.search(path.as_posix()))
    if not found:
        raise InputError(
            f"the table {name!r} is not in the folder {folder} or below it: there is no {name}.npz and no "
            f"{official.format(name=name)}. Get it from {origin}; point to another folder with --folder or "
            "the environment variable CORESIFT_DATA"
        )
    return found[0]


def _read(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Read rows (N, d) and targets (N,): ``target`` of a header, or else the last column."""
    if path.suffix == ".npz":
        return load_arrays(path, ("x", "y"), "arrays x and y of numbers")  # type: ignore[return-value]
    if path.name.endswith(".jsonl.gz"):
        return _read_texts(path)
    import pyarrow.csv as csv

    with_header = path.name.endswith(".tsv.gz")
    with reading(path, "a table of numbers"):
        columns = csv.read_csv(
            path,
            read_options=csv.ReadOptions(autogenerate_column_names=not with_header),
            parse_options=csv.ParseOptions(delimiter="\t" if with_header else ","),
        )
        names = columns.column_names
        target = "target" if with_header else names[-1]
        arrays = {name: columns[name].to_numpy().astype(np.float64) for name in names}
    y = arrays.pop(target)
    return np.column_stack(list(arrays.values())), y


def _read_texts(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Read JSON lines with ``text`` and ``label``: TF-IDF of words and pairs, reduced to `TEXT_COLUMNS`."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    with reading(path, "JSON lines with text and label"), gzip.open(path, "rt", encoding="utf-8") as lines:
        described = [json.loads(line) for line in lines]
        texts, labels = [one["text"] for one in described], [str(one["label"]) for one in described]
    counts = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2).fit_transform(texts)
    x = TruncatedSVD(TEXT_COLUMNS, random_state=0).fit_transform(counts)
    return x, np.unique(labels, return_inverse=True)[1].astype(np.float64)
