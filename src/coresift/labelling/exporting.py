"""Write the items of a project to one file: labels, and the model's predictions for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coresift.atomic import replacing
from coresift.labelling.cells import guarded
from coresift.labelling.labellers.files import answer_columns, answer_parts, free_names
from coresift.labelling.pools.arrow import as_texts
from coresift.labelling.records import Answer, State
from coresift.progress import progress_bar
from coresift.types import InputError

if TYPE_CHECKING:
    from coresift.labelling.project import Project

_NO_ANSWER = Answer("", None)


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
    return _write(path, project.target, len(project.pool), _Export(project, _is_csv(path)).blocks())


def write_labels(project: Project, path: Path) -> dict[str, int]:
    """Write the ledger's answers only, because the pool is lost; otherwise as `write_export`.

    ``coresift init --labels`` reads such a CSV file.
    """
    answers, states, rounds = project.ledger.answers(), project.ledger.states(), _rounds(project)
    given, ids = list(answers.values()), [answer.id for answer in answers.values()]
    asked = _integers([rounds.get(position) for position in answers])
    stated = [states[position] for position in answers]
    columns = _columns(project, ids, stated, given, {**_given(given, stated), "round": asked})
    return _write(path, project.target, len(answers), iter([columns]))


def _is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def _write(path: Path, target: str, size: int, blocks: Iterator[dict[str, Any]]) -> dict[str, int]:
    """Write blocks of columns to a file, and count labels and predictions."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    writers = {".parquet": parquet.ParquetWriter, ".csv": csv.CSVWriter}
    if path.suffix.lower() not in writers:
        raise InputError(f"{path} should end in .parquet or .csv")
    if not path.absolute().parent.is_dir():
        raise InputError(f"there is no folder {path.parent} to write {path.name} into")
    counts = {"labelled": 0, "predicted": 0}
    writer: Any = None
    with replacing(path) as file, ExitStack() as opened, progress_bar("writing items", size) as advance:
        for columns in blocks:
            counts["labelled"] += _count(columns[target])
            counts["predicted"] += _count(columns["predicted"]) if "predicted" in columns else 0
            if _is_csv(path):  # which a spreadsheet may open
                columns = {guarded(name): _guarded(column) for name, column in columns.items()}
            table = pa.table(columns)
            writer = writer or opened.enter_context(writers[path.suffix.lower()](file, table.schema))
            writer.write_table(table)
            advance(len(table))
    return counts


def _count(column: Any) -> int:
    return len(column) - int(column.null_count)


def _guarded(column: Any) -> Any:
    """An Arrow array for a CSV file: numbers unchanged, everything else as text that starts no formula."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_integer(column.type):
        return column
    if types.is_float32(column.type) or types.is_float64(column.type):
        # "nan" in a cell would make a spreadsheet take the column for text.
        return pa.array(column.to_numpy(zero_copy_only=False), from_pandas=True)
    return _texts([None if text is None else guarded(text) for text in as_texts(column)])


class _Export:
    """The items of a project as columns; ``as_text`` is that of `ItemPool.own_columns`."""

    def __init__(self, project: Project, as_text: bool) -> None:
        self.project, self.as_text = project, as_text
        self.states, self.answers = project.ledger.states(), project.ledger.answers()
        self.ids, self.rounds = project.pool.ids(), _rounds(project)

    @cached_property
    def model(self) -> Any | None:
        return self.project.fit()

    @cached_property
    def std_factor(self) -> float:
        return self.project.std_factor(self.model)

    def blocks(self) -> Iterator[dict[str, Any]]:
        """Yield the columns of some items at a time, as Arrow arrays."""
        start, reading = 0, self.project.settings.reading
        for own in self.project.pool.own_columns(as_text=self.as_text):
            positions = range(start, start + len(next(iter(own.values()))))
            columns = self._block(positions)
            # Own columns that would be read as part of an answer are renamed: exports are read as labels.
            names = free_names(own, {*columns, *answer_columns(self.project.target, reading.id)})
            yield columns | {names[name]: column for name, column in own.items()}
            start = positions.stop

    def _block(self, positions: range) -> dict[str, Any]:
        """The columns of some items, without those of the pool."""
        answers = [self.answers.get(position, _NO_ANSWER) for position in positions]
        states = [self.states.get(position, "unlabelled") for position in positions]
        wanted = np.array([answer.label is None for answer in answers])
        predicted, probabilities = self._predicted(positions, wanted)
        asked = _integers([self.rounds.get(position) for position in positions])
        others = {**predicted, **_given(answers, states), "round": asked, **probabilities}
        return _columns(self.project, self.ids[positions.start : positions.stop], states, answers, others)

    def _predicted(
        self, positions: range, wanted: npt.NDArray[np.bool_]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Predictions for the wanted items, and for classes the probability of each."""
        is_regression = self.project.task == "regression"
        if self.model is None:
            nothing = [None] * len(wanted)
            certainty = "std" if is_regression else "probability"
            return {"predicted": _labels(self.project, nothing), certainty: _numbers(nothing)}, {}
        rows = self.project.features[positions.start : positions.stop]
        if is_regression:
            mean, std = self.model.predict(rows, return_std=True)
            mean, std = (np.where(wanted, values, np.nan) for values in (mean, self.std_factor * std))
            return {"predicted": _numbers(mean), "std": _numbers(std)}, {}
        probs = np.where(wanted[:, None], self.model.predict_proba(rows), np.nan)  # (n, C)
        names = self.model.classes_[probs.argmax(1)].tolist()
        best = [name if want else None for name, want in zip(names, wanted.tolist(), strict=True)]
        each = zip(self.model.classes_, probs.T, strict=True)
        return {"predicted": _texts(best), "probability": _numbers(probs.max(1))}, {
            f"probability_{name}": _numbers(column) for name, column in each
        }


def _columns(
    project: Project,
    ids: Sequence[str],
    states: Sequence[State],
    answers: Sequence[Answer],
    others: dict[str, Any],
) -> dict[str, Any]:
    """Columns of ids, states and labels, and then others, which are renamed if they have the same name."""
    # Ids are called as in the pool, so that no project takes them for those of another column.
    id_column = answer_parts(project.target, project.settings.reading.id)["id"][0]
    labels = _labels(project, [answer.label for answer in answers])
    columns = {id_column: _texts(ids), "state": _texts(states), project.target: labels}
    names = free_names(others, set(columns))
    return columns | {names[name]: column for name, column in others.items()}


def _rounds(project: Project) -> dict[int, int]:
    """The round that asked for each label, by position; 0 if none did."""
    return {one.position: one.round for one in project.ledger.labels()}


def _given(answers: Sequence[Answer], states: Sequence[State]) -> dict[str, Any]:
    """The columns of answers besides their labels, by which they are known if they come in again."""
    return {
        "skip": _texts(["x" if state == "skipped" else None for state in states]),
        "who": _texts([answer.who for answer in answers]),
        "at": _texts([answer.at for answer in answers]),
    }


def _numbers(values: Any) -> Any:
    import pyarrow as pa

    return pa.array(np.array(values, dtype=np.float64), from_pandas=True)


def _integers(values: Sequence[int | None]) -> Any:
    import pyarrow as pa

    return pa.array(values, pa.int64())


def _texts(values: Sequence[str | None]) -> Any:
    import pyarrow as pa

    return pa.array(values, pa.string())


def _labels(project: Project, values: Sequence[str | None]) -> Any:
    return _numbers(values) if project.task == "regression" else _texts(values)
