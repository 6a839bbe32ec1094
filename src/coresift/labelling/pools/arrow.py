"""Turn columns of Arrow into texts, numbers and dates."""

from __future__ import annotations

from typing import Any

import numpy as np

from coresift.types import Floats

# The kinds of columns to learn from.
USABLE = ("number", "date", "category")
# What Arrow raises for a date that Python cannot hold, or in a time zone that is not known.
NO_TEXT = (OverflowError, ValueError)
# Steps that rewrite 3.1.2024, with or without a time after it, as 2024-01-03.
_DAY_FIRST = (
    (r"^(\d)\.", r"0\1."),
    (r"^(\d\d)\.(\d)\.", r"\1.0\2."),
    (r"^(\d\d)\.(\d\d)\.(\d{4})\b", r"\3-\2-\1"),
)


def column_kind(type: Any) -> str:
    """The kind of a column with an Arrow type: one of `USABLE`, or what else it holds in words."""
    from pyarrow import types

    if types.is_dictionary(type):
        type = type.value_type
    # A column without any value may as well hold numbers.
    if any(fits(type) for fits in (types.is_integer, types.is_floating, types.is_decimal, types.is_null)):
        return "number"
    if types.is_timestamp(type) or types.is_date(type):
        return "date"
    if types.is_string(type) or types.is_large_string(type) or types.is_boolean(type):
        return "category"
    return str(type)


def as_texts(column: Any) -> list[str | None]:
    """The values of an Arrow array as text, ``None`` where one is missing.

    Raises one of `NO_TEXT` for a date outside Python's range or in an unknown time zone.
    """
    import pyarrow as pa

    column = _decoded(column)
    if pa.types.is_floating(column.type):
        numbers = column.to_numpy(zero_copy_only=False)
        # NumPy writes the 0.1 of single precision as 0.1; for double precision Python is faster.
        values = map(str, numbers.tolist() if numbers.dtype == np.float64 else numbers)
        return [None if value == "nan" else value for value in values]
    if pa.types.is_timestamp(column.type):
        # Python's times have no nanoseconds.
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return [None if value is None else str(value) for value in column.to_pylist()]


def has_text(column: Any) -> bool:
    """Tell whether `as_texts` can show an Arrow array."""
    try:
        as_texts(column)
    except NO_TEXT:
        return False
    return True


def extremes(dates: Any) -> Any:
    """The first and the last date of an Arrow array."""
    import pyarrow as pa
    import pyarrow.compute as compute

    dates = _decoded(dates)
    return pa.array(compute.call_function("min_max", [dates]).values(), dates.type)


def as_numbers(column: Any) -> Floats:
    """(n,) the values of an Arrow array of numbers or dates, which become days since 1970."""
    import pyarrow as pa

    column = _decoded(column)
    date = column_kind(column.type) == "date"
    if date:
        unit = pa.timestamp("us", getattr(column.type, "tz", None))
        column = column.cast(unit, safe=False).cast(pa.int64())
    # Not safe: integers above 2^53 are rounded.
    numbers: Floats = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers / 86_400e6 if date else numbers


def parsed(column: Any, type: Any) -> Any:
    """Parse text as ``type``, ignoring spaces around it; dates may have the day first, with dots."""
    import pyarrow as pa
    import pyarrow.compute as compute

    try:
        return column.cast(type)
    except pa.ArrowInvalid:
        column = compute.call_function("utf8_trim_whitespace", [column])
    if pa.types.is_timestamp(type):
        for pattern, replacement in _DAY_FIRST:
            column = compute.replace_substring_regex(column, pattern=pattern, replacement=replacement)
    return column.cast(type)


def fits(column: Any, type: Any) -> bool:
    """Tell whether all texts of a column can be `parsed` as ``type``."""
    import pyarrow as pa

    try:
        parsed(column, type)
    except pa.ArrowInvalid:
        return False
    return True


def all_match(column: Any, pattern: str) -> bool:
    """Tell whether all texts that are not missing match a pattern."""
    import pyarrow.compute as compute

    return compute.all(compute.match_substring_regex(column, pattern=pattern), min_count=0).as_py() is True


def first_with_comma(column: Any) -> str | None:
    """The first text that has a comma in it."""
    import pyarrow.compute as compute

    texts = column.filter(compute.match_substring(column, pattern=","))
    return str(texts[0]) if len(texts) else None


def _decoded(column: Any) -> Any:
    """A column of Arrow's dictionary type as its values."""
    import pyarrow as pa

    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
