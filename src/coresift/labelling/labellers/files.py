"""Exchange batches and answers as CSV files, as spreadsheets read and write them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from coresift.atomic import replacing, sync
from coresift.errors import InputError, cannot_write
from coresift.labelling.cells import (
    SEPARATORS,
    decode,
    guarded,
    is_writable,
    long_cells,
    read_header,
    read_records,
    unguarded,
)
from coresift.labelling.labels import is_label, nearest_class, plain_class, plain_number, quoted
from coresift.labelling.records import Answer, Chosen, Task

# What a cell holds in the column "skip" where an item is not skipped.
_NOT_SKIPPED = frozenset({"", "0", "0.0", "f", "false", "n", "no"})
# Further columns of exports; older ones have "deviation" for "std".
RESERVED = ("state", "predicted", "probability", "std", "round", "deviation")


def write_batch(
    path: Path,
    target: str,
    batch: Sequence[Chosen],
    described: Sequence[Mapping[str, str]],
    id_column: str | None = None,
    commit: Callable[[], None] = lambda: None,
) -> None:
    """Write a batch for the people who label it.

    The columns are ``id``, the target, ``skip`` and ``who``, where the last three are to be filled in,
    ``rank``, and then the columns of the pool; see `free_names`. No cell starts a formula: an apostrophe
    keeps it text, and `read_answers` takes it away.

    Parameters
    ----------
    path : ends in ``.csv``. A file there is replaced, as a whole or not at all.
    described : for each item what helps to label it, by column.
    id_column : the pool's own name for the ids.
    commit : is called when all is written to the disk, just before the file takes its name. Where it raises
        an error, the file that was there stays.
    """
    if path.suffix.lower() != ".csv":
        raise InputError(f"cannot write {path}: its name should end in .csv")
    text = _batch_text(target, batch, described, id_column)
    advice = "name a file in a folder of yours"
    try:
        with replacing(path) as file:
            # The mark at the start tells spreadsheets that this is UTF-8. Where all is ASCII they need none,
            # and others, such as Python's csv, would take it for a part of the first column's name.
            file.write(text.encode("ascii" if text.isascii() else "utf-8-sig"))
            sync(file)
            commit()
            advice = "its items are pending: write them to another file with coresift pending"
    except OSError as error:
        raise cannot_write(path, error, advice) from None


def _batch_text(
    target: str, batch: Sequence[Chosen], described: Sequence[Mapping[str, str]], id_column: str | None
) -> str:
    others = list(dict.fromkeys(name for columns in described for name in columns))
    taken = answer_columns(target, id_column)
    rank = free_names(["rank"], taken)["rank"]  # which may be the target, too
    rows = [["id", target, "skip", "who", rank, *free_names(others, {rank, *taken}).values()]]
    for item, columns in zip(batch, described, strict=True):
        if not is_writable(item.id):
            raise InputError(f"an item has the id {item.id!r}, which no CSV file can hold; rename it")
        rows.append([item.id, "", "", "", str(item.rank), *(columns.get(name, "") for name in others)])
    text = io.StringIO()
    # It ends lines as RFC 4180 has it, and so quotes both characters of a line's end.
    csv.writer(text).writerows(map(guarded, row) for row in rows)
    return text.getvalue()


def read_content(path: Path) -> bytes:
    """Read a file with labels, once for all its uses: a pipe gives nothing a second time."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; name the CSV file with the labels") from None


def read_answers(
    path: Path,
    content: bytes,
    *,
    target: str,
    task: Task,
    are_known: Callable[[Sequence[str]], Sequence[bool]],
    classes: Sequence[str] | None,
    id_column: str | None = None,
) -> tuple[list[Answer], int]:
    """Read all answers in a file, or none where anything is wrong.

    The file is CSV in UTF-8 with commas, semicolons or tabs. Its first row names the columns: ``id``, or the
    pool's own name for it, and the target, or ``label`` in its place; perhaps ``skip`` (where 0, no and false
    mean no), ``who`` or ``annotator``, and ``at`` or ``completed_at``, in ISO 8601. No others are read.

    A row without a label or a mark to skip it is not answered yet and left out, whether its id is known or
    not, and so is a row with a word for no label, such as NA; see `is_label`. Any mistake raises an
    `InputError` that names the row as a spreadsheet counts it.

    White space around cells is removed, except in an id that is known with it. Numbers come back in their
    shortest form, so that 1.50 and 1.5 are the same answer, classes as `plain_class` writes them, and times
    in UTC, also those without a zone. Of two rows with the same answer for an item the first is kept. Also
    returns how many rows were left out for a word that stands for no label; empty rows are not counted.

    Parameters
    ----------
    content : of the file; see `read_content`.
    are_known : tells for each of some ids whether the project has an item with it.
    classes : the labels that are allowed; ``None`` for any.
    id_column : the pool's own name for the ids.
    """
    table = _Table(path, content, answer_parts(target, id_column))
    no_label_words = _blank_words(table.rows, classes)
    rows = [row for row in table.rows if row.label or row.is_skipped]
    allowed = None if classes is None else dict.fromkeys(classes)  # fast to look in, and in their order
    named = zip(rows, _known_ids(table, rows, are_known), strict=True)
    answers = _distinct(table, [(row, _answer(table, row, name, task, allowed)) for row, name in named])
    return answers, no_label_words


def read_ids(path: Path, columns: Sequence[str]) -> list[str]:
    """Read ids from a file: those in the first of the columns that is there, or one in each line."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read ids from {path}: {error}") from None
    try:
        with long_cells():
            ids = _listed(path, text, columns)
    except InputError as error:
        raise InputError(f"cannot read ids from {error}") from None
    return [name for name in ids if name.strip()]


def _listed(path: Path, text: str, columns: Sequence[str]) -> list[str]:
    header = _find_header(text, columns)
    if header is None:
        return [line.strip() for line in text.splitlines()]
    separator, first, names = header
    column = next(names.index(name) for name in columns if name in names)
    records = read_records(path, text, separator)[first:]
    return [unguarded(cells[column]) for cells in records if len(cells) > column]


def answer_parts(target: str, id_column: str | None = None) -> dict[str, tuple[str, ...]]:
    """The parts of an answer, and the columns that each may be in, where the first that is there counts.

    The pool's own name for the ids comes before ``id``: a file made from the pool may have both, and a batch
    has an ``id`` only. A name that an export has for something else comes after it.
    """
    target, own = target.strip(), (id_column or "").strip()
    parts = {"id": ("id",), "skip": ("skip",), "who": ("who", "annotator"), "at": ("at", "completed_at")}
    if target in chain(*parts.values()):
        raise InputError(f"the target cannot be named {target!r}, which is a column of its own; rename it")
    parts["label"] = (target, "label")
    if own and own not in chain(*parts.values()):
        parts["id"] = ("id", own) if own in RESERVED else (own, "id")
    return parts


def answer_columns(target: str, id_column: str | None = None) -> set[str]:
    """The names of all columns that may be read as a part of an answer."""
    return set(chain(*answer_parts(target, id_column).values()))


def free_names(names: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """Name a pool's columns in a file: each by its own name, with "item" before one that is taken."""
    free: dict[str, str] = {}
    given = set[str]()
    for name in names:
        new = name
        # Spaces around a name are lost when the file is read again.
        while new.strip() in taken or new in given:
            new = f"item {new.strip()}"
        given.add(new)
        free[name] = new
    return free


@dataclass
class _Row:
    """One row of a file, and its number in a spreadsheet; spaces are stripped, but not from the id."""

    number: int
    id: str
    label: str
    skip: str = ""
    who: str = ""
    at: str = ""

    @property
    def is_skipped(self) -> bool:
        return self.skip.lower() not in _NOT_SKIPPED


class _Table:
    """The rows of a file that are not blank, and the names of the columns with the parts of an answer."""

    def __init__(self, path: Path, content: bytes, parts: Mapping[str, Sequence[str]]) -> None:
        with long_cells():
            text = decode(path, content)
            header = _find_header(text, parts["id"], parts["label"])
            if header is None:
                raise _no_header(path, text, parts)
            self._separator, first, self._header = header
            records = read_records(path, text, self._separator)
        self._path, self._columns = path, _columns(path, first, self._header, parts)
        self._indices = {part: self._header.index(name) for part, name in self._columns.items()}
        # Spreadsheets may leave out empty cells at the end of a row, but a row without an end was cut off.
        self._last = None if text.endswith(("\n", "\r")) else len(records)
        numbered = enumerate(records[first:], first + 1)
        self.rows = [self._row(number, cells) for number, cells in numbered if any(map(str.strip, cells))]

    def where(self, row: _Row, part: str) -> str:
        return f"{self._path}, row {row.number}, column {self._columns[part]!r}"

    def _row(self, number: int, cells: Sequence[str]) -> _Row:
        width, indices = len(self._header), self._indices
        least = width if number == self._last else 1 + max(indices["id"], indices["label"])
        if len(cells) < least or any(map(str.strip, cells[width:])):
            raise InputError(
                f"{self._path}, row {number}: the header has {width} cells, this row {len(cells)}; quote a "
                f"cell that holds {self._separator!r} or a new line, and see that the file is whole"
            )
        held = {part: cells[index].strip() for part, index in indices.items() if index < len(cells)}
        row = _Row(number, **{**held, "id": cells[indices["id"]]})
        if not held["id"]:
            raise InputError(f"{self.where(row, 'id')}: it is empty; fill it in or drop the row")
        return row


def _find_header(text: str, *needed: Sequence[str]) -> tuple[str, int, list[str]] | None:
    """Find the separator that splits the header into names with one of each kind; with its row and names."""
    for separator in SEPARATORS:
        row, names = read_header(text, separator)
        if not any(map(set(names).isdisjoint, needed)):
            return separator, row, names
    return None


def _columns(path: Path, row: int, header: list[str], parts: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The name of the column with each part of an answer, where there is one."""
    # The first name that is there overwrites those after it.
    columns = {part: name for part, known in parts.items() for name in reversed(known) if name in header}
    for name in columns.values():
        if header.count(name) > 1:
            raise InputError(f"{path}, row {row}: {header.count(name)} columns are named {name!r}; keep one")
    return columns


def _no_header(path: Path, text: str, parts: Mapping[str, Sequence[str]]) -> InputError:
    row, header = read_header(text, ",")
    words = " or ".join(map(repr, parts["id"])), repr(parts["label"][0])
    expected = f"the first row should name the columns {words[0]} and {words[1]}"
    if not header:
        return InputError(f"{path}, row 1: the file is empty; {expected}")
    missing = words[0] if set(parts["id"]).isdisjoint(header) else words[1]
    seen = quoted(", ".join(header))
    return InputError(f"{path}, row {row}: no column {missing}, only {seen}; {expected}")


def _blank_words(rows: Sequence[_Row], classes: Sequence[str] | None) -> int:
    """Make cells empty that hold a word for no label; count those of items that are not skipped."""
    words = [row for row in rows if row.label and not is_label(row.label, classes)]
    for row in words:
        row.label = ""
    return sum(not row.is_skipped for row in words)


def _answer(table: _Table, row: _Row, name: str, task: Task, classes: Collection[str] | None) -> Answer:
    where = table.where(row, "label")
    if row.is_skipped and row.label:
        raise InputError(f"{where}: {quoted(row.label)}, but the row is marked to skip; clear one of the two")
    label = _label(where, row.label, task, classes) if row.label else None
    at = _time(table.where(row, "at"), row.at) if row.at else None
    return Answer(name, label, unguarded(row.who).strip() or None, at)


def _distinct(table: _Table, given: Iterable[tuple[_Row, Answer]]) -> list[Answer]:
    """The first answer for each item; raises where a later one differs."""
    first: dict[str, tuple[_Row, Answer]] = {}
    for row, answer in given:
        earlier, known = first.setdefault(answer.id, (row, answer))
        if known.label != answer.label:
            said, says = (quoted(one.label) if one.label else "skipped" for one in (known, answer))
            where = f"{table.where(row, 'label')}: {says} for id {quoted(answer.id)}"
            raise InputError(f"{where}, but row {earlier.number} has {said}; keep one of the two")
    return [answer for _, answer in first.values()]


def _known_ids(
    table: _Table, rows: Sequence[_Row], are_known: Callable[[Sequence[str]], Sequence[bool]]
) -> list[str]:
    """The id of each row as the project knows it; one that is not known as it is written is trimmed."""
    names = [unguarded(row.id) for row in rows]
    for index in _unknown(names, are_known):
        names[index] = unguarded(rows[index].id.strip()).strip()
    unknown = _unknown(names, are_known)
    if not unknown:
        return names
    first, *others = (quoted(names[index]) for index in unknown[:5])
    more = len(unknown) - 1
    listed = ", ".join(others) + (", ..." if more > 4 else "")
    nor = f", nor are {more} more of {len(rows)} answers ({listed})" if more else ""
    raise InputError(
        f"{table.where(rows[unknown[0]], 'id')}: {first} is not in the project{nor}; "
        "is the file of another project, or did a program change the ids?"
    )


def _unknown(names: Sequence[str], are_known: Callable[[Sequence[str]], Sequence[bool]]) -> list[int]:
    return [index for index, known in enumerate(are_known(names)) if not known]


def _label(where: str, text: str, task: Task, classes: Collection[str] | None) -> str:
    """The label in a cell; a class may be guarded like other cells, since people copy them."""
    if task == "regression":
        return plain_number(where, text)
    if classes is not None and text in classes:
        return text
    label = plain_class(unguarded(text).strip())
    if classes is None or label in classes:
        return label
    nearest = nearest_class(label, classes)
    hint = f"did you mean {nearest!r}?" if nearest else f"they are {quoted(', '.join(classes))}"
    raise InputError(f"{where}: {quoted(label)} is none of the {len(classes)} classes; {hint}")


def _time(where: str, text: str) -> str:
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        raise InputError(f"{where}: {quoted(text)} is not a time; write it as 2030-01-31T15:00Z") from None
