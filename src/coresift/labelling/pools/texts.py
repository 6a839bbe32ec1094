"""Read pools that are texts in a column of a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coresift.labelling.pools.arrow import as_texts
from coresift.labelling.pools.base import Block
from coresift.labelling.pools.tables import TablePool
from coresift.types import Index


class TextPool(TablePool):
    """Rows of a table with a column of text to learn from, and perhaps other columns."""

    kind = "text"

    def _as_block(self, rows: Index, batch: Any) -> Block:
        texts = as_texts(batch.column(self.reading.text))
        return replace(super()._as_block(rows, batch), texts=[text or "" for text in texts])
