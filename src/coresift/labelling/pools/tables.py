"""Read pools that are tables in CSV or Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from coresift.labelling.labels import is_number
from coresift.labelling.pools.arrow import USABLE, TableFile, as_numbers, as_texts
from coresift.labelling.pools.base import Block, ItemPool, Kind, Positions, Reading, check_numbers, row_name
from coresift.labelling.pools.roles import column_values, settle, why_no_ids
from coresift.pool import checked_index
from coresift.types import Floats, Index, InputError


class TablePool(ItemPool):
    """Rows of a table."""

    kind: Kind = "table"

    def __init__(self, reading: Reading, file: TableFile) -> None:
        is_id_named = reading.id is not None
        self._file = file
        self.reading = reading = settle(reading, file)
        kinds = {name: file.kinds[name] for name in reading.features}
        self.numbers = [name for name, kind in kinds.items() if kind in ("number", "date")]
        self.categories = [name for name, kind in kinds.items() if kind == "category"]
        # All in one go: reading a large file again costs seconds.
        roles = {reading.id, reading.target, reading.cost, reading.group}
        columns = column_values(file, [name for name in file.kinds if name in roles])
        self._targets = columns.get(reading.target or "")
        self._ids = self._groups = self._costs = None
        if reading.id is not None:
            self._ids = self._as_ids(columns[reading.id], is_id_named)
            self.named_by = f"column {reading.id!r}"
        if reading.group is not None:
            self._groups = self._filled(reading.group, columns)
        if reading.cost is not None:
            self._costs = self._as_costs(self._filled(reading.cost, columns))

    def __len__(self) -> int:
        return self._file.num_rows

    def ids(self) -> list[str]:
        return list(self._ids or super().ids())

    def targets(self) -> list[str | None] | None:
        return self._targets

    def costs(self) -> Floats | None:
        return self._costs

    def groups(self) -> list[str] | None:
        return self._groups

    def describe(self, positions: Positions) -> list[dict[str, str]]:
        names = self._shown()
        wanted, numbers = np.unique(checked_index(positions, len(self)), return_inverse=True)
        described: list[dict[str, str]] = []
        for _, columns in self._file.texts(names, wanted):
            for values in zip(*columns, strict=True):
                described.append({name: value or "" for name, value in zip(names, values, strict=True)})
        return [dict(described[number]) for number in numbers]

    def check_writable(self) -> None:
        super().check_writable()
        self._file.check_dates(self._shown())

    def own_columns(self, *, as_text: bool) -> Iterator[dict[str, Any]]:
        names = self._shown()
        for _, batch in self._file.rows(names, as_text=True):
            typed = batch if as_text else self._file.typed(batch)
            yield {name: typed.column(name) for name in names}

    def blocks(self) -> Iterator[Block]:
        return self._blocks(None)

    def take(self, positions: Index) -> Block:
        blocks = list(self._blocks(positions))
        return Block(
            np.concatenate([block.numbers for block in blocks]),
            np.concatenate([block.categories for block in blocks]),
            [text for block in blocks for text in block.texts],
        )

    def _blocks(self, wanted: Index | None) -> Iterator[Block]:
        names = [name for name in (*self.reading.features, self.reading.text) if name]
        for rows, batch in self._file.rows(names, as_text=False, wanted=wanted):
            yield self._as_block(rows, batch)

    def _as_block(self, rows: Index, batch: Any) -> Block:
        numbers = np.empty((len(rows), len(self.numbers)))
        for column, name in enumerate(self.numbers):
            numbers[:, column] = as_numbers(batch.column(name))
        check_numbers(self.reading.path, numbers, rows, self.numbers)
        categories = np.empty((len(rows), len(self.categories)), dtype=object)
        for column, name in enumerate(self.categories):
            categories[:, column] = as_texts(batch.column(name))
        return Block(numbers, categories)

    def _shown(self) -> list[str]:
        """The columns but id and target, in order; an index of pandas only where it is learned from."""
        known = {*self._file.columns, *self.reading.features} - {self.reading.id, self.reading.target}
        return [name for name, kind in self._file.kinds.items() if name in known and kind in USABLE]

    def _as_ids(self, values: Sequence[str | None], is_named: bool) -> list[str]:
        """The names of items in a column that somebody named, or that is called "id".

        The latter is binding too: with rows as names instead, labels that come with its ids would go to the
        rows of these numbers.
        """
        wrong = why_no_ids(values, self.reading.path)
        if wrong:
            advice = (
                "name another column with --id, or rename this one to have items named by their row numbers"
            )
            if is_named:
                advice = "correct it, or name another column with --id"
            raise InputError(
                f"column {self.reading.id!r} of {self.reading.path} cannot be used as ids, because it "
                f"{wrong}; {advice}"
            )
        return [str(value) for value in values]

    def _filled(self, name: str, columns: Mapping[str, Sequence[str | None]]) -> list[str]:
        """The values of a column that has to have one in every row."""
        values = columns[name]
        if None in values:
            row = row_name(self.reading.path, values.index(None))
            raise InputError(f"{self.reading.path} holds nothing in {row}, column {name!r}; fill it in")
        return [str(value) for value in values]

    def _as_costs(self, texts: Sequence[str]) -> Floats:
        costs = np.array([float(text) if is_number(text) else 0.0 for text in texts])
        if (costs <= 0).any():
            row = int((costs <= 0).argmax())
            raise InputError(
                f"{self.reading.path} holds {texts[row]!r} in {row_name(self.reading.path, row)}, column "
                f"{self.reading.cost!r}; a cost is a number above zero"
            )
        return costs
