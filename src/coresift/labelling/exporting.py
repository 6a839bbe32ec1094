"""The training set so far as one file, with the model's predictions for the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coresift.labelling.files import guarded
from coresift.labelling.project import predicted
from coresift.labelling.table_files import as_texts
from coresift.progress import progress_bar
from coresift.types import InputError

if TYPE_CHECKING:
    from coresift.labelling.project import Project


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
    import pyarrow as pa
    from pyarrow import csv, parquet

    writers = {".parquet": parquet.ParquetWriter, ".csv": csv.CSVWriter}
    if path.suffix.lower() not in writers:
        raise InputError(f"{path} should end in .parquet or .csv")
    as_text = path.suffix.lower() == ".csv"
    if not path.absolute().parent.is_dir():
        raise InputError(f"there is no folder {path.parent} to write {path.name} into")
    new = path.with_name(f".{path.name}.new")
    counts = {"labelled": 0, "predicted": 0}
    writer: Any = None
    try:
        with progress_bar("writing items", len(project.pool)) as advance:
            for columns in _blocks(project, as_text=as_text):
                for count, name in (("labelled", project.target), ("predicted", "predicted")):
                    counts[count] += len(columns[name]) - columns[name].null_count
                if as_text:  # which a spreadsheet may open
                    columns = {guarded(name): _guarded(column) for name, column in columns.items()}
                table = pa.table(columns)
                writer = writer or writers[path.suffix.lower()](new, table.schema)
                writer.write_table(table)
                advance(len(table))
        writer.close()
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
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
    import numpy as np
    import pyarrow as pa

    pool, states = project.pool, project.ledger.states()
    labels = {one.position: one for one in project.ledger.labels()}
    ids, model, start = pool.ids(), project.fit(), 0

    def numbers(values: Sequence[Any]) -> Any:
        return pa.array(np.array(values, dtype=np.float64), from_pandas=True)

    def texts(values: Sequence[str | None]) -> Any:
        return pa.array(values, pa.string())

    answers = numbers if project.task == "regression" else texts
    for own in pool.own_columns(as_text=as_text):
        size = len(next(iter(own.values())))
        here = slice(start, start + size)
        known = [labels.get(position) for position in range(here.start, here.stop)]
        guesses: list[tuple[str | None, float]] = [(None, np.nan)] * size
        if model is not None:
            found = predicted(model, project.task, project.features[here])
            guesses = [
                guess if one is None else (None, np.nan) for one, guess in zip(known, found, strict=True)
            ]
        columns: dict[str, Any] = {
            "id": texts(ids[here]),
            "state": texts([states.get(position, "unlabelled") for position in range(here.start, here.stop)]),
            project.target: answers([None if one is None else one.label for one in known]),
            "predicted": answers([label for label, _ in guesses]),
            "deviation" if project.task == "regression" else "probability": numbers(
                [sure for _, sure in guesses]
            ),
            "who": texts([None if one is None else one.who for one in known]),
            "at": texts([None if one is None else one.at for one in known]),
        }
        for name, column in own.items():
            while name in columns:
                name = f"item {name}"
            columns[name] = column
        yield columns
        start = here.stop
