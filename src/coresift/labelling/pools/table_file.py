"""Read tables that are larger than memory piece by piece: what all files of tables have in common."""

from __future__ import annotations

import csv
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from coresift import limits
from coresift.labelling.pools.arrow import NO_TEXT, as_texts
from coresift.types import Index, InputError


class TableFile(ABC):
    """A table in a file, which may be larger than memory.

    Attributes
    ----------
    columns : the names of its columns, without an index that pandas wrote.
    kinds : the kind of each column, an index included; see `coresift.labelling.pools.arrow.column_kind`.
    num_rows : above zero.
    with_commas : columns of text where all values are numbers, some with a comma, and an example of each.
    """

    columns: list[str]
    kinds: dict[str, str]
    num_rows: int
    with_commas: dict[str, str]

    @abstractmethod
    def rows(
        self, names: Sequence[str], *, as_text: bool, wanted: Index | None = None
    ) -> Iterator[tuple[Index, Any]]:
        """Read row numbers and record batches of these columns, of all rows or of the ascending ``wanted``.

        ``as_text`` gives what is written in the file, where "NA" may be a name; otherwise it is a missing
        value.
        """

    def texts(
        self, names: Sequence[str], wanted: Index | None = None
    ) -> Iterator[tuple[Index, list[list[str | None]]]]:
        """Read row numbers and what is written in each of the columns; see `rows`."""
        # Asked for no column, the CSV reader would give all.
        for rows, batch in self.rows(names, as_text=True, wanted=wanted) if names else ():
            try:
                columns = [as_texts(batch.column(name)) for name in names]
            except NO_TEXT:
                self.check_dates(names)
                raise
            yield rows, columns

    def typed(self, batch: Any) -> Any:
        """A record batch that was read as text, with columns of numbers as numbers."""
        return batch

    def check_dates(self, names: Sequence[str]) -> None:
        """Raise for a date in these columns that cannot be shown to people; see `as_texts`."""
        return


def pick(
    batches: Any, start: int, wanted: Index | None, block: int = limits.POOL_BLOCK
) -> Iterator[tuple[Index, Any]]:
    """Cut ``batches`` from row ``start`` on into blocks, and keep the ``wanted`` rows of each."""
    for batch in batches:
        for first in range(0, len(batch), block):
            piece = batch.slice(first, block)
            rows = np.arange(start + first, start + first + len(piece))
            if wanted is not None:
                low, high = np.searchsorted(wanted, [rows[0], rows[-1] + 1])
                rows = wanted[low:high]
                piece = piece.take(rows - start - first) if len(rows) else piece
            if len(rows):
                yield rows, piece
        start += len(batch)
        if wanted is not None and (len(wanted) == 0 or start > wanted[-1]):
            return


@contextmanager
def explained(path: Path, names: Sequence[str] = ()) -> Iterator[None]:
    """Turn errors of readers into ours, in one line, with rows and columns as we count and name them."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, csv.Error) as error:
        message = str(error).splitlines()[0]
        # Arrow counts lines, with the header as 1, and so do we.
        message = message.replace("Row #", "row ")
        message = re.sub(r"In CSV column #(\d+)", lambda match: f"column {names[int(match[1])]!r}", message)
        advice = "; save the table in UTF-8" if "UTF8" in message else ""
        raise InputError(f"cannot read {path}: {message}{advice}") from None
