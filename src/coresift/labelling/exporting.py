"""Write the items of a project to one file: labels, and the model's predictions for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet, types

from coresift.atomic import replacing
from coresift.errors import InputError
from coresift.labelling.cells import guarded
from coresift.labelling.labellers.files import answer_columns, answer_parts, free_names
from coresift.labelling.pools.arrow import as_texts
from coresift.labelling.records import Answer
from coresift.progress import progress_bar

if TYPE_CHECKING:
    from coresift.labelling.project import Project

Columns: TypeAlias = dict[str, Any]  # name -> an Arrow array

_NO_ANSWER = Answer("", None)
_WRITERS = {".parquet": parquet.ParquetWriter, ".csv": csv.CSVWriter}


def write_export(project: Project, path: Path) -> dict[str, int]:
    """Write all items: their labels, predictions for items without one, and the pool's own columns.

    The own columns are unchanged and in order. A Parquet file keeps the types of a Parquet pool; from a CSV
    pool it has numbers as numbers, and all other cells, also dates, as text. In a CSV file no cell starts a
    formula: an apostrophe keeps it text, as in batches.

    Parameters
    ----------
    path : a ``.parquet`` or ``.csv`` file, which is written completely or not at all.

    Returns
    -------
    How many items have a label, and how many a prediction.
    """
    return _write(path, project.target, len(project.pool), _Items(project).blocks(as_text=_is_csv(path)))


def write_labels(project: Project, path: Path) -> dict[str, int]:
    """Write the ledger's answers only, because the pool is lost; otherwise as `write_export`.

    ``coresift init --labels`` reads such a CSV file.
    """
    items = _Items(project)
    ids = [answer.id for answer in items.answers.values()]
    columns = items.columns(list(items.answers), ids, {}, {})
    return _write(path, project.target, len(ids), iter([columns]))


def _is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def _write(path: Path, target: str, size: int, blocks: Iterator[Columns]) -> dict[str, int]:
    """Write blocks of columns to a file, and count labels and predictions."""
    make_writer = _WRITERS.get(path.suffix.lower())
    if make_writer is None:
        raise InputError(f"{path} should end in .parquet or .csv")
    if not path.absolute().parent.is_dir():
        raise InputError(f"there is no folder {path.parent} to write {path.name} into")
    counts = {"labelled": 0, "predicted": 0}
    writer: Any = None
    with replacing(path) as file, ExitStack() as opened, progress_bar("writing items", size) as advance:
        for columns in blocks:
            for count, name in (("labelled", target), ("predicted", "predicted")):
                if name in columns:
                    counts[count] += len(columns[name]) - columns[name].null_count
            if _is_csv(path):  # which a spreadsheet may open
                columns = {guarded(name): _guarded(column) for name, column in columns.items()}
            table = pa.table(columns)
            writer = writer or opened.enter_context(make_writer(file, table.schema))
            writer.write_table(table)
            advance(len(table))
    return counts


def _guarded(column: Any) -> Any:
    """An Arrow array for a CSV file: numbers unchanged, everything else as text that starts no formula."""
    if types.is_integer(column.type):
        return column
    if types.is_float32(column.type) or types.is_float64(column.type):
        # "nan" in a cell would make a spreadsheet take the column for text.
        return pa.array(column.to_numpy(zero_copy_only=False), from_pandas=True)
    return _texts([None if text is None else guarded(text) for text in as_texts(column)])


class _Items:
    """The items of a project as columns."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.is_regression = project.task == "regression"
        self.states, self.answers = project.ledger.states(), project.ledger.answers()
        # The round that asked for each label, by position; 0 if none did.
        self.rounds = {one.position: one.round for one in project.ledger.labels()}

    def blocks(self, as_text: bool) -> Iterator[Columns]:
        """Yield the columns of some items at a time; ``as_text`` is that of `ItemPool.own_columns`."""
        project, ids, start = self.project, self.project.pool.ids(), 0
        model = project.fit()
        std_factor = 1.0 if model is None else project.std_factor(model)
        for own in project.pool.own_columns(as_text=as_text):
            positions = range(start, start + len(next(iter(own.values()))))
            start = positions.stop
            predicted = self._predicted(model, std_factor, positions)
            columns = self.columns(positions, ids[positions.start : positions.stop], *predicted)
            # Own columns that would be read as part of an answer are renamed: exports are read as labels.
            taken = {*columns, *answer_columns(project.target, project.settings.reading.id)}
            yield columns | _renamed(own, taken)

    def columns(
        self, positions: Sequence[int], ids: Sequence[str], predicted: Columns, probabilities: Columns
    ) -> Columns:
        """The columns of some items without those of the pool, with predictions among the others."""
        project = self.project
        answers = [self.answers.get(position, _NO_ANSWER) for position in positions]
        states = [self.states.get(position, "unlabelled") for position in positions]
        # Ids are called as in the pool, so that no project takes them for those of another column.
        id_column = answer_parts(project.target, project.settings.reading.id)["id"][0]
        labels = self._labels([answer.label for answer in answers])
        first = {id_column: _texts(ids), "state": _texts(states), project.target: labels}
        others = {
            **predicted,
            # Answers are known by these if they come in again.
            "skip": _texts(["x" if state == "skipped" else None for state in states]),
            "who": _texts([answer.who for answer in answers]),
            "at": _texts([answer.at for answer in answers]),
            "round": pa.array([self.rounds.get(position) for position in positions], pa.int64()),
            **probabilities,
        }
        return first | _renamed(others, set(first))

    def _predicted(self, model: Any | None, std_factor: float, positions: range) -> tuple[Columns, Columns]:
        """Predictions for the items without a label, and for classes the probability of each."""
        wanted = np.array([self.answers.get(position, _NO_ANSWER).label is None for position in positions])
        if model is None:
            nothing = [None] * len(wanted)
            certainty = "std" if self.is_regression else "probability"
            return {"predicted": self._labels(nothing), certainty: _numbers(nothing)}, {}
        rows = self.project.features[positions.start : positions.stop]
        if self.is_regression:
            mean, std = model.predict(rows, return_std=True)
            mean, std = (np.where(wanted, values, np.nan) for values in (mean, std_factor * std))
            return {"predicted": _numbers(mean), "std": _numbers(std)}, {}
        probs = np.where(wanted[:, None], model.predict_proba(rows), np.nan)  # (n, C)
        names = model.classes_[probs.argmax(1)].tolist()
        best = [name if want else None for name, want in zip(names, wanted, strict=True)]
        return {"predicted": _texts(best), "probability": _numbers(probs.max(1))}, {
            f"probability_{name}": _numbers(column)
            for name, column in zip(model.classes_, probs.T, strict=True)
        }

    def _labels(self, values: Sequence[str | None]) -> Any:
        return _numbers(values) if self.is_regression else _texts(values)


def _renamed(columns: Columns, taken: set[str]) -> Columns:
    names = free_names(columns, taken)
    return {names[name]: column for name, column in columns.items()}


def _numbers(values: Any) -> Any:
    return pa.array(np.array(values, dtype=np.float64), from_pandas=True)


def _texts(values: Sequence[str | None]) -> Any:
    return pa.array(values, pa.string())
