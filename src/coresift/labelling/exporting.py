"""The training set so far as one file, with the model's predictions for the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coresift.labelling.files import guarded
from coresift.labelling.project import predicted
from coresift.progress import progress_bar
from coresift.types import InputError

if TYPE_CHECKING:
    from coresift.labelling.project import Project


def write_export(project: Project, path: Path) -> dict[str, int]:
    """Write all items: their labels, predictions where there are none, and what is learned from.

    Dates are numbers, as the model sees them.

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
    if not path.absolute().parent.is_dir():
        raise InputError(f"there is no folder {path.parent} to write {path.name} into")
    new = path.with_name(f".{path.name}.new")
    counts = {"labelled": 0, "predicted": 0}
    writer: Any = None
    try:
        with progress_bar("writing items", len(project.pool)) as advance:
            for columns in _blocks(project):
                if path.suffix.lower() == ".csv":  # which a spreadsheet may open
                    columns = {name: _guarded(values) for name, values in columns.items()}
                arrays = {
                    name: pa.array(
                        values, pa.string() if isinstance(values, list) else pa.float64(), from_pandas=True
                    )
                    for name, values in columns.items()
                }
                table = pa.table(arrays)
                writer = writer or writers[path.suffix.lower()](new, table.schema)
                writer.write_table(table)
                counts["labelled"] += len(table) - table[project.target].null_count
                counts["predicted"] += len(table) - table["predicted"].null_count
                advance(len(table))
        writer.close()
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
    return counts


def _guarded(values: Any) -> Any:
    if not isinstance(values, list):
        return values
    return [None if value is None else guarded(value) for value in values]


def _blocks(project: Project) -> Iterator[dict[str, Any]]:
    """Columns of the file, some rows at a time: lists of text, and arrays of numbers with NaN for none."""
    import numpy as np

    pool, states = project.pool, project.ledger.states()
    labels = {one.position: one for one in project.ledger.labels()}
    ids, model, start = pool.ids(), project.fit(), 0

    def values(texts: Sequence[str | None]) -> Any:
        return np.array(texts, dtype=np.float64) if project.task == "regression" else list(texts)

    for block in pool.blocks():
        here = slice(start, start + len(block))
        known = [labels.get(position) for position in range(here.start, here.stop)]
        guesses: list[tuple[str | None, float]] = [(None, np.nan)] * len(block)
        if model is not None:
            found = predicted(model, project.task, project.features[here])
            guesses = [
                guess if one is None else (None, np.nan) for one, guess in zip(known, found, strict=True)
            ]
        columns: dict[str, Any] = {
            "id": ids[here],
            "state": [states.get(position, "unlabelled") for position in range(here.start, here.stop)],
            project.target: values([None if one is None else one.label for one in known]),
            "predicted": values([label for label, _ in guesses]),
            "deviation" if project.task == "regression" else "probability": np.array(
                [sure for _, sure in guesses]
            ),
            "who": [None if one is None else one.who for one in known],
            "at": [None if one is None else one.at for one in known],
        }
        own = {name: block.numbers[:, place] for place, name in enumerate(pool.numbers)}
        own |= {name: block.categories[:, place].tolist() for place, name in enumerate(pool.categories)}
        columns |= {f"item {name}" if name in columns else name: values for name, values in own.items()}
        if len(block.texts):
            columns.setdefault(pool.reading.text or "text", list(block.texts))
        if len(block.images):
            columns.setdefault("image", [str(file) for file in block.images])
        yield columns
        start = here.stop
