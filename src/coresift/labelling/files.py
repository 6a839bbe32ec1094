"""The files that go out to the people who label, and come back: CSV, as spreadsheets read and write it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path

from coresift.atomic import replacing, sync
from coresift.errors import cannot_write
from coresift.labelling.records import LARGEST, Answer, Chosen, Task
from coresift.types import InputError

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
# What a spreadsheet may take for a formula, or may drop so that a formula comes first. The last four are =+-@
# as wide as a Chinese character, which spreadsheets there read as the plain ones.
_FORMULA = re.compile(r"[\t\r\n]|\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")
# A null character, by which binary files are known, and halves of characters, for which UTF-8 has no place.
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")
_NOT_SKIPPED = frozenset({"", "0", "0.0", "f", "false", "n", "no"})
# A whole number as programs write those of a column with gaps: 1.0, but neither 1.10 nor 007.
_WHOLE = re.compile(r"(-?[0-9]+)\.0+")
# Words that stand for no label; the CSV reader of pools has them for missing values.
_NOTHING = frozenset({"", "#N/A", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"})
# Names of columns that exports have beside those of an answer; older ones have "deviation" for "std".
RESERVED = ("state", "predicted", "probability", "std", "round", "deviation")
# What may stand between the columns of a CSV file.
SEPARATORS = ",;\t"
PLAIN_NUMBERS = "decimals need a point, and thousands no separator"


@dataclass(frozen=True)
class _Row:
    """One row of a file, as it stands there, and its number in a spreadsheet."""

    number: int
    id: str
    label: str
    skip: str = ""
    who: str = ""
    at: str = ""


def write_batch(
    path: Path,
    target: str,
    batch: Sequence[Chosen],
    described: Sequence[Mapping[str, str]],
    id_column: str | None = None,
    commit: Callable[[], None] = lambda: None,
) -> None:
    """Write a batch for the people who label it.

    The columns are ``id``, the target, ``skip`` and ``who``, of which the last three are to be filled in,
    ``rank``, and then what the pool says of the items. A column of its own that would be read as part of an
    answer gets "item" before its name. No cell starts a formula: an apostrophe keeps it text, which
    `read_answers` takes away.

    Parameters
    ----------
    path : ends in ``.csv``. A file there is replaced, as a whole or not at all.
    target : what is asked for.
    batch : the items.
    described : for each of them what helps to label it, by column.
    id_column : the pool's own name for the ids.
    commit : is called when all is written to the disk, just before the file takes its name. Where it raises
        an error, the file that was there stays.
    """
    if path.suffix.lower() != ".csv":
        raise InputError(f"cannot write {path}: its name should end in .csv")
    others = dict.fromkeys(name for columns in described for name in columns)
    taken = answer_columns(target, id_column)
    rank = free_names(["rank"], taken)["rank"]  # which may be the target, too
    header = ["id", target, "skip", "who", rank, *free_names(others, {rank, *taken}).values()]
    text = io.StringIO()
    writer = csv.writer(text)  # ends lines as RFC 4180 has it, and so quotes both characters of a line's end
    writer.writerow([guarded(name) for name in header])
    for one, columns in zip(batch, described, strict=True):
        if not is_writable(one.id):
            raise InputError(f"an item has the id {one.id!r}, which no CSV file can hold; rename it")
        cells = [one.id, "", "", "", str(one.rank), *(columns.get(name, "") for name in others)]
        writer.writerow([guarded(cell) for cell in cells])
    advice = "name a file in a folder of yours"
    try:
        with replacing(path) as file:
            # The mark at the start tells spreadsheets that this is UTF-8. Where all is ASCII they need none,
            # and others, such as Python's csv, would take it for a part of the first column's name.
            file.write(text.getvalue().encode("ascii" if text.getvalue().isascii() else "utf-8-sig"))
            sync(file)
            commit()
            advice = "its items are pending: write them to another file with coresift pending"
    except OSError as error:
        raise cannot_write(path, error, advice) from None


def is_writable(name: str) -> bool:
    """Whether a CSV file can hold this id, such that it is read back as it was."""
    return bool(name.strip()) and not _UNWRITABLE.search(name)


def read_content(path: Path) -> bytes:
    """What a file with labels holds.

    It is read this once for whatever is made of it: a pipe gives nothing a second time, and a file may be
    saved anew in between.
    """
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
    ids: Callable[[Sequence[str]], Sequence[bool]],
    classes: Sequence[str] | None,
    id_column: str | None = None,
) -> tuple[list[Answer], int]:
    """Read what people said, all of it or, where anything is wrong, nothing.

    The file is CSV in UTF-8 with commas, semicolons or tabs. Its first row names the columns: ``id``, or the
    pool's own name for it, and the target, or ``label`` in its place; perhaps ``skip`` (where 0, no and false
    are no mark), ``who`` or ``annotator``, and ``at`` or ``completed_at``, in ISO 8601. Others are ignored. A
    row with neither a label nor a mark to skip it is not answered yet and left out, known id or not, and so
    is one with a word for no label; see `is_label`. Any mistake raises an `InputError` that names the row as
    a spreadsheet counts it.

    White space around cells does not count, except in an id that is known with it. Numbers come back in their
    shortest form, so that 1.50 and 1.5 are the same answer, classes as `plain_class` has them, and times in
    UTC, which is also what a time without a zone is taken for. Of two rows that give an item the same answer
    the first is kept.

    Parameters
    ----------
    path, content : of the file; see `read_content`.
    target : what was asked for.
    task : whether labels are numbers or classes.
    ids : tells for each id whether it is known.
    classes : the labels that are allowed; ``None`` for any.
    id_column : the pool's own name for the ids.

    Returns
    -------
    The answers, and how many rows were passed over for a word that stands for no label.
    """
    columns, rows = _read_rows(path, content, answer_parts(target, id_column))
    allowed = None if classes is None else dict.fromkeys(classes)  # fast to look in, and in their order
    found: dict[str, Answer] = {}
    numbers: dict[str, int] = {}
    answered: list[tuple[_Row, str]] = []
    passed_over = 0
    for row in rows:
        skipped = row.skip.strip().lower() not in _NOT_SKIPPED
        text = row.label.strip()
        if text and not is_label(text, classes):
            text, passed_over = "", passed_over + (not skipped)
        if skipped and text:
            raise InputError(
                f"{path}, row {row.number}, column {columns['label']!r}: {_shown(text)}, but the row is "
                "marked to skip; clear one of the two"
            )
        if skipped or text:
            answered.append((row, text))
    known = _known_ids(path, columns["id"], [row for row, _ in answered], ids)
    for (row, text), name in zip(answered, known, strict=True):
        where = f"{path}, row {row.number}, column {columns['label']!r}"
        label = None
        if text:
            label = plain_number(where, text) if task == "regression" else _class(where, text, allowed)
        at = _time(path, row, columns["at"]) if row.at.strip() else None
        answer = Answer(name, label, _unguarded(row.who.strip()).strip() or None, at)
        earlier, number = found.setdefault(name, answer), numbers.setdefault(name, row.number)
        if earlier.label != label:
            said, says = ("skipped" if one is None else _shown(one) for one in (earlier.label, label))
            raise InputError(
                f"{where}: {says} for id {_shown(name)}, but row {number} has {said}; keep one of the two"
            )
    return list(found.values()), passed_over


def read_ids(path: Path, columns: Sequence[str]) -> list[str]:
    """Ids in a file: those in the first of the columns that is there, or one in each line."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read ids from {path}: {error}") from None
    found = [line.strip() for line in text.splitlines()]
    with _long_cells():
        for separator in SEPARATORS:
            first, names = _header(text, separator)
            column = next((name for name in columns if name in names), None)
            if column is not None:
                try:
                    records = _records(path, text, separator)[first:]
                except InputError as error:
                    raise InputError(f"cannot read ids from {error}") from None
                place = names.index(column)
                found = [_unguarded(cells[place]) for cells in records if len(cells) > place]
                break
    return [one for one in found if one.strip()]


def guarded(cell: str) -> str:
    """The cell such that no spreadsheet runs it; see `_unguarded`."""
    cell = _UNWRITABLE.sub("\ufffd", cell)
    return "'" + cell if _needs_guard(cell) else cell


def _unguarded(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and _needs_guard(cell[1:]) else cell


def _needs_guard(cell: str) -> bool:
    """Whether the cell may run as a formula, or looks guarded already, and so gets one apostrophe more."""
    bare = cell.lstrip("'")
    return _FORMULA.match(bare) is not None and not _NUMBER.fullmatch(bare)


def answer_parts(target: str, id_column: str | None = None) -> dict[str, tuple[str, ...]]:
    """The parts of an answer, and the columns that each may stand in, the first that is there.

    Beside an ``id``, the pool's own name for it comes first: in a file made from the pool both may be there,
    and a batch has an ``id`` alone. Not so a name that an export has for something else.
    """
    parts = {
        "id": ("id",),
        "label": (target.strip(), "label"),
        "skip": ("skip",),
        "who": ("who", "annotator"),
        "at": ("at", "completed_at"),
    }
    if any(target.strip() in names for part, names in parts.items() if part != "label"):
        raise InputError(f"the target cannot be named {target!r}, which is a column of its own; rename it")
    own = (id_column or "").strip()
    if own and not any(own in names for names in parts.values()):
        parts["id"] = ("id", own) if own in RESERVED else (own, "id")
    return parts


def answer_columns(target: str, id_column: str | None = None) -> set[str]:
    """The names of all columns that may be read as a part of an answer."""
    return {name for names in answer_parts(target, id_column).values() for name in names}


def free_names(names: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """What a pool's columns are called in a file: each its own name, with "item" before one that is taken."""
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


def _read_rows(
    path: Path, content: bytes, parts: Mapping[str, Sequence[str]]
) -> tuple[dict[str, str], list[_Row]]:
    """The names of the columns that hold the parts of an answer, and the rows that are not blank."""
    with _long_cells():
        text = _as_text(path, content)
        headers = {separator: _header(text, separator) for separator in SEPARATORS}
        labels = set(parts["label"])
        ids = set(parts["id"])
        fitting = [one for one, (_, names) in headers.items() if ids & set(names) and labels & set(names)]
        separator = fitting[0] if fitting else ","
        records = _records(path, text, separator)
    first, header = headers[separator]
    columns = _columns(path, first, header, parts)
    places = {part: header.index(name) for part, name in columns.items()}
    needed = max(places["id"], places["label"])
    rows = []
    for number, cells in enumerate(records[first:], first + 1):
        if not any(map(str.strip, cells)):
            continue
        # Spreadsheets may leave out empty cells at the end of a row, but a row without an end was cut off.
        cut = len(cells) < len(header) and number == len(records) and not text.endswith(("\n", "\r"))
        if cut or len(cells) <= needed or any(map(str.strip, cells[len(header) :])):
            raise InputError(
                f"{path}, row {number}: the header has {len(header)} cells, this row {len(cells)}; quote a "
                f"cell that holds {separator!r} or a new line, and see that the file is whole"
            )
        row = _Row(number, **{part: cells[place] for part, place in places.items() if place < len(cells)})
        if not row.id.strip():
            raise InputError(
                f"{path}, row {number}, column {columns['id']!r}: it is empty; fill it in or drop the row"
            )
        rows.append(row)
    return columns, rows


@contextmanager
def _long_cells() -> Iterator[None]:
    """Texts in cells may be as long as they like."""
    before = csv.field_size_limit(2**31 - 1)  # the most it takes on every platform
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _as_text(path: Path, content: bytes) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path} is in UTF-16; save it as CSV UTF-8")
    if b"\0" in content:
        raise InputError(f"{path} is not text but perhaps a workbook or a picture; save it as CSV UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The error counts bytes after the mark at the start, and so does what it holds.
        good, bad = error.object[: error.start].decode(), error.object[error.start]
        row = sum(1 for _ in csv.reader(io.StringIO(good + "?", newline="")))
        raise InputError(f"{path}, row {row}: byte {bad:#x} is not UTF-8; save it as CSV UTF-8") from None


def _header(text: str, separator: str) -> tuple[int, list[str]]:
    """The number of the first row that is not blank, and the names in it; 0 and none where all are."""
    for number, cells in enumerate(csv.reader(io.StringIO(text, newline=""), delimiter=separator), 1):
        if any(map(str.strip, cells)):
            return number, [_unguarded(cell.strip()).strip() for cell in cells]
    return 0, []


def _records(path: Path, text: str, separator: str) -> list[list[str]]:
    """All rows, blank ones too, so that places in the list are those in a spreadsheet."""
    records: list[list[str]] = []
    try:
        # Strict, since otherwise a quotation mark that is not closed swallows the rest of the file.
        for cells in csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True):
            records.append(cells)
    except csv.Error:
        raise InputError(
            f"{path}, row {len(records) + 1}: a quotation mark is not closed, or text follows it; close "
            "it, and double those that are part of a text"
        ) from None
    return records


def _columns(path: Path, row: int, header: list[str], parts: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The name of the column that holds each part of an answer, where there is one."""
    wanted = {"id": " or ".join(map(repr, parts["id"])), "label": repr(parts["label"][0])}
    expected = f"the first row should name the columns {wanted['id']} and {wanted['label']}"
    if not header:
        raise InputError(f"{path}, row 1: the file is empty; {expected}")
    names = {part: next((name for name in known if name in header), None) for part, known in parts.items()}
    for part, words in wanted.items():
        if names[part] is None:
            seen = _shown(", ".join(header))
            raise InputError(f"{path}, row {row}: no column {words}, only {seen}; {expected}")
    for name in names.values():
        if name is not None and header.count(name) > 1:
            raise InputError(f"{path}, row {row}: {header.count(name)} columns are named {name!r}; keep one")
    return {part: name for part, name in names.items() if name is not None}


def _known_ids(
    path: Path, column: str, rows: Sequence[_Row], ids: Callable[[Sequence[str]], Sequence[bool]]
) -> list[str]:
    """The id of each row as the project knows it; one that it does not know as it stands is trimmed."""
    exact = [_unguarded(row.id) for row in rows]
    names = [
        name if known else _unguarded(row.id.strip()).strip()
        for row, name, known in zip(rows, exact, ids(exact), strict=True)
    ]
    unknown = [place for place, known in enumerate(ids(names)) if not known]
    if unknown:
        first, *others = (_shown(names[place]) for place in unknown[:5])
        more, shown = len(unknown) - 1, ", ".join([*others, *(["..."] if len(unknown) > 5 else [])])
        nor = f", nor are {more} more of {len(rows)} answers ({shown})" if more else ""
        raise InputError(
            f"{path}, row {rows[unknown[0]].number}, column {column!r}: {first} is not in the project{nor}; "
            "is the file of another project, or did a program change the ids?"
        )
    return names


def plain_number(where: str, text: str) -> str:
    """The number in its shortest form."""
    if is_number(text):
        return repr(float(text)).removesuffix(".0")
    if _NUMBER.fullmatch(text):
        raise InputError(f"{where}: {_shown(text)} is too large for a number")
    hint = f"; {PLAIN_NUMBERS}" if is_separated_number(text) else ""
    raise InputError(f"{where}: {_shown(text)} is not a number{hint}")


def is_number(text: str) -> bool:
    """Whether a text is a number that can be a label."""
    return _NUMBER.fullmatch(text) is not None and abs(float(text)) <= LARGEST


def is_separated_number(text: str) -> bool:
    """Whether a text is a number, perhaps with a decimal comma or with marks between thousands."""
    return _NUMBER.fullmatch(re.sub(r"[,'\u2019\s]", "", text)) is not None


def _class(where: str, text: str, classes: Collection[str] | None) -> str:
    """The class, which may be guarded like other cells, since people copy them."""
    label = text if classes is not None and text in classes else plain_class(_unguarded(text).strip())
    if classes is None or label in classes:
        return label
    nearest = nearest_class(label, classes)
    hint = f"did you mean {nearest!r}?" if nearest else f"they are {_shown(', '.join(classes))}"
    raise InputError(f"{where}: {_shown(label)} is none of the {len(classes)} classes; {hint}")


def plain_class(text: str) -> str:
    """The class without the fraction of a whole number, so that the 1.0 of a program is the 1 of people."""
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def is_label(text: str, classes: Collection[str] | None) -> bool:
    """Whether a text is a label, and not a word for none such as NA that is no class by name."""
    return text not in _NOTHING or text in (classes or ())


def alike_classes(classes: Iterable[str]) -> list[list[str]]:
    """Classes that differ from each other by case or spaces alone."""
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault("".join(name.split()).casefold(), []).append(name)
    return [names for names in alike.values() if len(names) > 1]


def nearest_class(label: str, classes: Collection[str]) -> str | None:
    """The class that somebody may have meant, if one is nearly that."""
    alike: dict[str, str] = {}
    for name in classes:  # where some differ by case alone, the first of them
        alike.setdefault(name.lower(), name)
    nearest = get_close_matches(label.lower(), alike, n=1)
    return alike[nearest[0]] if nearest else None


def _time(path: Path, row: _Row, column: str) -> str:
    try:
        time = datetime.fromisoformat(row.at.strip())
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        raise InputError(
            f"{path}, row {row.number}, column {column!r}: {_shown(row.at)} is not a time; write it as "
            "2030-01-31T15:00Z"
        ) from None


def _shown(text: str) -> str:
    """The text on one line, shortened."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
