"""Read pools that are tables in CSV or Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coresift.errors import InputError
from coresift.labelling.labels import is_number
from coresift.labelling.pools.arrow import USABLE, TableFile, as_numbers, as_texts
from coresift.labelling.pools.base import Block, ItemPool, Positions, Reading, check_numbers, row_name
from coresift.labelling.pools.roles import column_values, settle, why_no_ids
from coresift.pool import checked_index
from coresift.types import Floats, Index


class TablePool(ItemPool):
    """Rows of a table, perhaps with a column of text to learn from."""

    def __init__(self, reading: Reading, file: TableFile) -> None:
        self._file = file
        self.reading = settled = settle(reading, file)
        self.kind = "table" if reading.text is None else "text"
        self.categories = [name for name in settled.features if file.kinds[name] == "category"]
        self.numbers = [name for name in settled.features if file.kinds[name] != "category"]
        # All in one go: reading a large file again costs seconds.
        columns = column_values(file, {settled.id, settled.target, settled.cost, settled.group})
        self.targets, self._ids = columns.get(settled.target), columns.get(settled.id)
        if self._ids is not None:
            self._check_ids(self._ids, is_named=reading.id is not None)
            self.named_by = f"column {settled.id!r}"
        self.groups = self._filled(settled.group, columns)
        self.costs = self._as_costs(self._filled(settled.cost, columns))
        # What people are shown; an index of pandas only where it is learned from.
        known = {*file.columns, *settled.features} - {settled.id, settled.target}
        self._shown = [name for name, kind in file.kinds.items() if name in known and kind in USABLE]

    def __len__(self) -> int:
        return self._file.num_rows

    def ids(self) -> list[str]:
        return super().ids() if self._ids is None else list(map(str, self._ids))

    def describe(self, positions: Positions) -> list[dict[str, str]]:
        wanted, rows = np.unique(checked_index(positions, len(self)), return_inverse=True)
        columns = self._file.texts(self._shown, wanted)
        return [{name: texts[row] or "" for name, texts in columns.items()} for row in rows]

    def check_writable(self) -> None:
        super().check_writable()
        self._file.check_dates(self._shown)

    def own_columns(self, *, as_text: bool) -> Iterator[dict[str, Any]]:
        for _, batch in self._file.rows(self._shown, typed=() if as_text else ("number",)):
            yield dict(zip(self._shown, batch.columns, strict=True))

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
        text = self.reading.text
        names = self.reading.features if text is None else (*self.reading.features, text)
        for rows, batch in self._file.rows(names, wanted=wanted):
            numbers = _matrix(batch, self.numbers, as_numbers, np.float64)
            check_numbers(self.reading.path, numbers, rows, self.numbers)
            texts = () if text is None else [value or "" for value in as_texts(batch.column(text))]
            yield Block(numbers, _matrix(batch, self.categories, as_texts, object), texts)

    def _check_ids(self, values: Sequence[str | None], is_named: bool) -> None:
        """Raise where the column of ids, which somebody named or which is called "id", cannot name items.

        The latter is binding too: with rows as names instead, labels that come with its ids would go to the
        rows of these numbers.
        """
        wrong = why_no_ids(values, self.reading.path)
        if wrong is None:
            return
        advice = "name another column with --id, or rename this one to have items named by their row numbers"
        if is_named:
            advice = "correct it, or name another column with --id"
        raise InputError(
            f"column {self.reading.id!r} of {self.reading.path} cannot be used as ids, because it {wrong}; "
            f"{advice}"
        )

    def _filled(self, name: str | None, columns: Mapping[str | None, list[str | None]]) -> list[str] | None:
        """The values of a column, if there is one; it has to have one in every row."""
        values = columns.get(name)
        if values is None:
            return None
        if None in values:
            row = row_name(self.reading.path, values.index(None))
            raise InputError(f"{self.reading.path} holds nothing in {row}, column {name!r}; fill it in")
        return list(map(str, values))

    def _as_costs(self, texts: Sequence[str] | None) -> Floats | None:
        if texts is None:
            return None
        costs = np.array([float(text) if is_number(text) else 0.0 for text in texts])
        if (costs <= 0).any():
            row = int((costs <= 0).argmax())
            raise InputError(
                f"{self.reading.path} holds {texts[row]!r} in {row_name(self.reading.path, row)}, column "
                f"{self.reading.cost!r}; a cost is a number above zero"
            )
        return costs


def _matrix(batch: Any, names: Sequence[str], values: Callable[[Any], Any], dtype: type) -> Any:
    """(n, p) the values of columns of a record batch."""
    columns: npt.NDArray[Any] = np.array([values(batch.column(name)) for name in names], dtype)
    return columns.reshape(-1, batch.num_rows).T.copy()
