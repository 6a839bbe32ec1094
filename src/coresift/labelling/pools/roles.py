"""Settle which column of a table has which role: name items, be predicted, be learned from, tell costs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain

from coresift.errors import InputError
from coresift.labelling.labels import PLAIN_NUMBERS
from coresift.labelling.pools.arrow import USABLE, TableFile
from coresift.labelling.pools.base import Reading, row_name


def settle(reading: Reading, file: TableFile) -> Reading:
    """Fill in the columns that a reading leaves open, and raise where its roles do not fit the file."""
    listed = chain.from_iterable(_split_names(text, file.kinds) for text in reading.features)
    reading = replace(reading, features=tuple(dict.fromkeys(listed)))
    _check_columns(reading, file)
    roles = {reading.target, reading.cost, reading.group, reading.text}
    if reading.id is None and "id" in file.kinds.keys() - roles - set(reading.features):
        reading = replace(reading, id="id")
    if not reading.features:
        # An "id" next to another column that names items is nothing to learn from either.
        others = roles | {reading.id, "id"}
        reading = replace(reading, features=tuple(name for name in file.columns if name not in others))
        _check_target(reading, file)
        _check_id(reading, file)
        _check_commas(reading, file)
    _check_features(reading, file)
    return reading


def column_values(file: TableFile, names: Collection[str | None]) -> dict[str | None, list[str | None]]:
    """Read those of the columns that are there, without spaces around a text; ``None`` where it is empty."""
    columns = file.texts([name for name in file.kinds if name in names])
    return {name: [(text or "").strip() or None for text in texts] for name, texts in columns.items()}


def why_no_ids(values: Sequence[str | None], path: str) -> str | None:
    """Say why a column cannot name items: a value is missing, or is there twice; ``None`` where it can."""
    first: dict[str, int] = {}
    for row, value in enumerate(values):
        if value is None:
            return f"is empty in {row_name(path, row)}"
        if first.setdefault(value, row) != row:
            return f"holds {value!r} in {row_name(path, first[value])} and {row_name(path, row)}"
    return None


def _is_distinct(file: TableFile, name: str) -> bool:
    return why_no_ids(column_values(file, [name])[name], "") is None


def _check_columns(reading: Reading, file: TableFile) -> None:
    path, kinds = reading.path, file.kinds
    for name in (reading.id, reading.text, reading.cost, reading.group, *reading.features):
        if name is not None and name not in kinds:
            raise InputError(f"{path} has no column {name!r}; it has {', '.join(map(repr, kinds))}")
    for role in ("id", "target", "text"):
        if (name := getattr(reading, role)) in reading.features:
            raise InputError(f"column {name!r} is the {role} of {path}; take it out of the features")
    if reading.text is not None and kinds[reading.text] != "category":
        raise InputError(f"column {reading.text!r} of {path} holds {kinds[reading.text]}, expected text")


def _check_target(reading: Reading, file: TableFile) -> None:
    """Raise where a feature by default nearly has the name of the target: it would predict itself."""
    if reading.target is None or reading.target in file.kinds:
        return
    if nearest := _nearest_name(reading.target, reading.features):
        raise InputError(
            f"{reading.path} has no column {reading.target!r}; did you mean {nearest!r}? "
            "if that is a feature, list the columns to learn from with --features"
        )


def _check_id(reading: Reading, file: TableFile) -> None:
    """Raise where a feature by default, such as ID, or Sample ID with distinct values, seems to name items.

    Labels that come with these ids would go to the rows of these numbers.
    """
    for name in reading.features if reading.id is None else ():
        if _is_id(name) or (_is_called_id(name) and _is_distinct(file, name)):
            raise InputError(
                f"{reading.path} has no column 'id'; did you mean {name!r}? say --id {shlex.quote(name)}, or "
                "list the columns to learn from with --features to have items named by their row numbers"
            )


def _check_commas(reading: Reading, file: TableFile) -> None:
    """Raise where a feature by default has numbers with commas: it would be taken for a category."""
    for name, example in file.with_commas.items():
        if name in reading.features:
            raise InputError(
                f"column {name!r} of {reading.path} has numbers such as {example!r}: {PLAIN_NUMBERS}; "
                "correct them, or list the columns to learn from with --features, where one like this "
                "is a category"
            )


def _check_features(reading: Reading, file: TableFile) -> None:
    for name in reading.features:
        if file.kinds[name] not in USABLE:
            raise InputError(
                f"column {name!r} of {reading.path} holds {file.kinds[name]}, expected numbers, text or "
                "dates; name the features to leave it out"
            )
    if not reading.features and reading.text is None:
        columns = ", ".join(map(repr, file.kinds))
        raise InputError(f"{reading.path} has no column to learn from; it has {columns}")


def _split_names(text: str, columns: Collection[str]) -> Iterator[str]:
    """The columns in a list separated by commas; commas in the name of a column are part of it."""
    # The longest first, and first as it is written, since names may have spaces around them too.
    known = "|".join(re.escape(name) for name in sorted(columns, key=len, reverse=True))
    for match in re.finditer(rf"(?:\s*?({known})\s*|([^,]*))(?:,|$)", text):
        if name := match[1] or match[2].strip():
            yield name


def _nearest_name(name: str, columns: Sequence[str]) -> str | None:
    """The column with that name except for case, punctuation or a letter or so, if there is one."""
    # However alike they look, score_2023 is not a slip for score_2024.
    digits = re.findall(r"\d", name)
    alike = {_bare(column): column for column in columns if re.findall(r"\d", column) == digits}
    nearest = get_close_matches(_bare(name), alike, n=1, cutoff=0.85)
    return alike[nearest[0]] if nearest else None


def _bare(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _is_called_id(name: str) -> bool:
    """Tell whether a name says that a column names things, such as ID, Sample ID, sample_id or SampleId.

    >>> [_is_called_id(name) for name in ("Sample ID", "PassengerId", "grid", "Idaho")]
    [True, True, False, False]
    """
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return not {"id", "uuid", "guid"}.isdisjoint(map(str.casefold, words))


def _is_id(name: str) -> bool:
    """Tell whether a name is "id" except for case and spaces."""
    return "".join(name.split()).casefold() == "id"
