"""The training set so far as one file, with the model's predictions for the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coresift.atomic import replacing
from coresift.labelling.cells import guarded
from coresift.labelling.labellers.files import answer_columns, answer_parts, free_names
from coresift.labelling.pools.arrow import as_texts
from coresift.progress import progress_bar
from coresift.types import InputError

if TYPE_CHECKING:
    from coresift.labelling.project import Project
    from coresift.labelling.records import Answer


def write_export(project: Project, path: Path) -> dict[str, int]:
    """Write all items: their labels, predictions where there are none, and the pool's own columns.

    These come as they were and in their order. A Parquet file has the types of a Parquet pool; of a CSV pool
    it has numbers as numbers, and all else, dates too, as the text that stands there. In a CSV file no cell
    starts a formula: an apostrophe keeps it text, as in batches.

    Parameters
    ----------
    path : a ``.parquet`` or ``.csv`` file; it is there whole or not at all.

    Returns
    -------
    How many items have a label, and how many a prediction.
    """
    return _write(path, project.target, len(project.pool), _blocks(project, as_text=_is_text(path)))


def write_labels(project: Project, path: Path) -> dict[str, int]:
    """Write the answers alone, as the ledger has them, for want of the pool; otherwise as `write_export`.

    A CSV file of them is one that ``coresift init --labels`` takes.
    """
    found, rounds = project.ledger.answers(), _rounds(project)
    given = found.values()
    columns = _columns(
        project,
        [one.id for one in given],
        ["skipped" if one.label is None else "labelled" for one in given],
        [one.label for one in given],
        {**_given(given), "round": _integers([rounds.get(position) for position in found])},
    )
    return _write(path, project.target, len(found), iter([columns]))


def _is_text(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def _write(path: Path, target: str, size: int, blocks: Iterator[dict[str, Any]]) -> dict[str, int]:
    """Write columns to a file, and count what they have of labels and predictions."""
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
            for count, name in (("labelled", target), ("predicted", "predicted")):
                counts[count] += len(columns[name]) - columns[name].null_count if name in columns else 0
            if _is_text(path):  # which a spreadsheet may open
                columns = {guarded(name): _guarded(column) for name, column in columns.items()}
            table = pa.table(columns)
            writer = writer or opened.enter_context(writers[path.suffix.lower()](file, table.schema))
            writer.write_table(table)
            advance(len(table))
    return counts


def _guarded(column: Any) -> Any:
    """An Arrow array for a CSV file: numbers as they are, and all else as text that starts no formula."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_integer(column.type):
        return column
    if types.is_float32(column.type) or types.is_float64(column.type):
        # "nan" in a cell would make a spreadsheet take the column for text.
        return pa.array(column.to_numpy(zero_copy_only=False), from_pandas=True)
    return pa.array([None if text is None else guarded(text) for text in as_texts(column)], pa.string())


def _blocks(project: Project, *, as_text: bool) -> Iterator[dict[str, Any]]:
    """Columns of the file as Arrow arrays, some rows at a time; ``as_text`` as in `ItemPool.own_columns`."""
    pool, states = project.pool, project.ledger.states()
    answers, rounds = project.ledger.answers(), _rounds(project)
    ids, model, start = pool.ids(), project.fit(), 0
    std_factor = 1.0 if model is None else project.std_factor(model)
    reading = project.settings.reading
    for own in pool.own_columns(as_text=as_text):
        size = len(next(iter(own.values())))
        here = slice(start, start + size)
        given = [answers.get(position) for position in range(here.start, here.stop)]
        labels = [None if one is None else one.label for one in given]
        unlabelled = np.array([label is None for label in labels])
        best, probabilities = _predicted(project, model, here, unlabelled, std_factor)
        asked = _integers([rounds.get(position) for position in range(here.start, here.stop)])
        columns = _columns(
            project,
            ids[here],
            [states.get(position, "unlabelled") for position in range(here.start, here.stop)],
            labels,
            {**best, **_given(given), "round": asked, **probabilities},
        )
        # A column that would be read as part of an answer too: exports are handed in as labels elsewhere.
        names = free_names(own, {*columns, *answer_columns(project.target, reading.id)})
        columns |= {names[name]: column for name, column in own.items()}
        yield columns
        start = here.stop


def _columns(
    project: Project,
    ids: Sequence[str],
    states: Sequence[str],
    labels: Sequence[str | None],
    others: dict[str, Any],
) -> dict[str, Any]:
    """Columns of items, with others after them, which give way to the names of ids and labels."""
    columns: dict[str, Any] = {
        _id_column(project): _texts(ids),
        "state": _texts(states),
        project.target: _labels(project, labels),
    }
    names = free_names(others, set(columns))
    return columns | {names[name]: column for name, column in others.items()}


def _predicted(
    project: Project, model: Any | None, here: slice, wanted: npt.NDArray[np.bool_], std_factor: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Predictions for the wanted items of a slice of the pool, and for classes the probability of each."""
    certainty = "std" if project.task == "regression" else "probability"
    if model is None:
        nothing = [None] * len(wanted)
        return {"predicted": _labels(project, nothing), certainty: _numbers(nothing)}, {}
    rows = project.features[here]
    if project.task == "regression":
        mean, std = model.predict(rows, return_std=True)
        values = {"predicted": mean, "std": std_factor * std}
        return {name: _numbers(np.where(wanted, column, np.nan)) for name, column in values.items()}, {}
    probs = np.where(wanted[:, None], model.predict_proba(rows), np.nan)  # (n, C)
    best = model.classes_[probs.argmax(1)].tolist()
    names = [name if want else None for name, want in zip(best, wanted.tolist(), strict=True)]
    each = {
        f"probability_{name}": _numbers(column) for name, column in zip(model.classes_, probs.T, strict=True)
    }
    return {"predicted": _texts(names), certainty: _numbers(probs.max(1))}, each


def _rounds(project: Project) -> dict[int, int]:
    """The round that asked for each label, by position; 0 where none did."""
    return {one.position: one.round for one in project.ledger.labels()}


def _id_column(project: Project) -> str:
    """What ids are called: as in the pool, so that no project takes them for those of another column."""
    return answer_parts(project.target, project.settings.reading.id)["id"][0]


def _given(answers: Collection[Answer | None]) -> dict[str, Any]:
    """What exports have of answers beside their labels; handed in again, they are known by it."""
    return {
        "skip": _texts(["x" if one is not None and one.label is None else None for one in answers]),
        "who": _texts([None if one is None else one.who for one in answers]),
        "at": _texts([None if one is None else one.at for one in answers]),
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
