"""Read tables in Parquet files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet

from coresift import limits
from coresift.labelling.pools.arrow import (
    NO_TEXT,
    USABLE,
    TableFile,
    as_texts,
    column_kind,
    decoded,
    explained,
    pick,
    within,
)
from coresift.labelling.pools.base import row_name
from coresift.reading import check_header, without_index
from coresift.types import Index, InputError


class ParquetFile(TableFile):
    """A Parquet file, read by its row groups."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with explained(path):
            self._file = pa.parquet.ParquetFile(path, buffer_size=limits.PARQUET_BYTES)
            schema = self._file.schema_arrow
        check_header(path, schema.names)
        self.columns = without_index(path, schema.empty_table(), None).column_names
        self.kinds = {field.name: column_kind(field.type) for field in schema}
        self.with_commas = {}
        self.num_rows = self._file.metadata.num_rows
        if self.num_rows == 0:
            raise InputError(f"{path} has no rows; a pool needs items")

    def rows(
        self, names: Sequence[str], typed: Collection[str] = USABLE, wanted: Index | None = None
    ) -> Iterator[tuple[Index, Any]]:
        start = 0
        with explained(self._path):
            for group in range(self._file.num_row_groups):
                count = self._file.metadata.row_group(group).num_rows
                if len(within(wanted, start, count)):
                    batches = self._file.iter_batches(limits.POOL_BLOCK, [group], list(names))
                    for rows, batch in pick(batches, start, wanted):
                        batch.validate(full=True)  # texts that are not UTF-8 would fail later
                        yield rows, batch
                start += count

    def check_dates(self, names: Sequence[str]) -> None:
        dates = [name for name in names if self.kinds[name] == "date"]
        for rows, batch in self.rows(dates) if dates else ():
            for name in dates:
                self._check_column(name, decoded(batch.column(name)), rows)

    def _check_column(self, name: str, dates: Any, rows: Index) -> None:
        first_and_last = pa.array(compute.min_max(dates).values(), dates.type)
        if _has_text(first_and_last):
            return
        row = next(row for row, date in zip(rows, dates, strict=True) if not _has_text(pa.array([date])))
        raise InputError(
            f"{self._path} has a date in {row_name(self._path, row)}, column {name!r}, that cannot be shown; "
            f"years go from 1 to 9999, and time zones have to be known ({dates.type}): correct it"
        )


def _has_text(dates: Any) -> bool:
    """Tell whether `as_texts` can show an Arrow array."""
    try:
        return bool(as_texts(dates))
    except NO_TEXT:
        return False
