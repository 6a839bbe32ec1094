"""Batches go out as CSV and come back as answers, whatever people and spreadsheets did to the file."""

import csv
import io
import os
import re
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coresift.errors import InputError
from coresift.labelling.labellers.files import read_answers, read_content, write_batch
from coresift.labelling.labels import is_label, plain_class
from coresift.labelling.records import Answer, Chosen

IDS = {"a", "b", "c"}
CLASSES = ["cat", "dog", "=cmd()", "@SUM(A1)", "<script>alert(1)</script>", 'say "hi", twice', "two\nlines"]
FORMULAS = [
    "=cmd()",
    "+1+1",
    "-x",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "  =1",
    "\u3000\uff1d1",
    "\uff0b",
    "'=1",
    "''=1",
]

# Any text that UTF-8 can hold, and often what is hard on CSV files or spreadsheets.
texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    st.text(" \t\r\n\"',;=+-@\uff1d\u2028\x1c\ufeffab1.e", max_size=6),
    st.sampled_from(FORMULAS),
)
names = texts.filter(str.strip)


def read_all(folder, content, task="classification", classes=None, known=IDS, id_column=None):
    return read_answers(
        folder / "labelled.csv",
        content if isinstance(content, bytes) else content.encode(),
        target="price",
        task=task,
        are_known=lambda ids: [one in known for one in ids],
        classes=classes,
        id_column=id_column,
    )


def read(*words, **options):
    return read_all(*words, **options)[0]


def write(path, target, rows, id_column=None):
    """A batch of the items that rows tell an id and further columns of."""
    batch = [Chosen(place, row["id"], place + 1) for place, row in enumerate(rows)]
    described = [{name: cell for name, cell in row.items() if name != "id"} for row in rows]
    write_batch(path, target, batch, described, id_column)


def cells_of(path):
    return list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="")))


def zipped():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    return stream.getvalue()


REFUSED = {
    "empty file": ("", "row 1: the file is empty; the first row should name the columns 'id' and 'price'"),
    "only a mark": (b"\xef\xbb\xbf", "row 1: the file is empty"),
    "blank lines": ("\n \n\r\n,,\n", "row 1: the file is empty"),
    "no header": ("a,3\nb,4\n", "row 1: no column 'id', only 'a, 3'; the first row should name"),
    "no id": ("item,price\na,3\n", "row 1: no column 'id', only 'item, price'"),
    "no target": ("id,cost\na,3\n", "row 1: no column 'price', only 'id, cost'"),
    "other columns, semicolons": ("id;cost\na;3\n", "row 1: no column 'id', only 'id;cost'"),
    "header after a blank line": ("\nitem,price\na,3\n", "row 2: no column 'id'"),
    "column twice": ("id,price,price\na,3,4\n", "row 1: 2 columns are named 'price'; keep one"),
    "id twice in the header": ("id,price,id \na,3,b\n", "row 1: 2 columns are named 'id'"),
    "text for a number": ("id,price\na,3\nb,abc\n", "row 3, column 'price': 'abc' is not a number"),
    "under label": ("id,label\na,abc\n", "row 2, column 'label': 'abc' is not a number"),
    "decimal comma": (
        'id,price\na,"1,5"\n',
        "row 2, column 'price': '1,5' is not a number; decimals need a point",
    ),
    "decimal comma, semicolons": (
        "id;price\na;1,5\n",
        "row 2, column 'price': '1,5' is not a number; decimals",
    ),
    "decimal comma, no quotes": (
        "id,price\na,1,5\n",
        "row 2: the header has 2 cells, this row 3; quote a cell that holds ','",
    ),
    "thousands": (
        'id,price\na,"1,234.5"\n',
        "row 2, column 'price': '1,234.5' is not a number; .* thousands",
    ),
    "thousands by space": (
        "id,price\na,1 234\n",
        "row 2, column 'price': '1 234' is not a number; .* thousands",
    ),
    "inf": ("id,price\na,-inf\n", "row 2, column 'price': '-inf' is not a number$"),
    "1e400": ("id,price\na,1e400\n", "row 2, column 'price': '1e400' is too large for a number"),
    # As features are: its square is none that a program can hold.
    "1e200": ("id,price\na,3\nb,-1e200\n", "row 3, column 'price': '-1e200' is too large for a number"),
    "underscores": ("id,price\na,1_000\n", "row 2, column 'price': '1_000' is not a number$"),
    "digits of other scripts": ("id,price\na,\u0663\n", "row 2, column 'price': '\u0663' is not a number$"),
    "a formula for a number": ("id,price\na,=1+1\n", "row 2, column 'price': '=1[+]1' is not a number$"),
    "a long cell": (
        f"id,price\na,{'1' * 100_000}x\n",
        "row 2, column 'price': '1{57}[.]{3}' is not a number$",
    ),
    "empty id": ("id,price\n ,3\n", "row 2, column 'id': it is empty; fill it in or drop the row"),
    "unknown id": ("id,price\na,3\nzz,4\n", "row 3, column 'id': 'zz' is not in the project; is the file"),
    "two unknown ids": (
        "id,price,skip\na,3,\nzz,4,\nyy,,\nxx,,x\n",
        r"row 3, column 'id': 'zz' is not in the project, nor are 1 more of 3 answers \('xx'\); is the file",
    ),
    "unknown ids": (
        "id,price\na,1\n" + "".join(f"{i},1\n" for i in range(500)),
        r"row 3, column 'id': '0' is not in the project, nor are 499 more of 501 answers "
        r"\('1', '2', '3', '4', \.\.\.\); is",
    ),
    "two answers": (
        "id,price\na,3\nb,1\na,4\n",
        "row 4, column 'price': '4' for id 'a', but row 2 has '3'; keep one",
    ),
    "answered and skipped in two rows": (
        "id,price,skip\na,3,\na,,x\n",
        "row 3, column 'price': skipped for id 'a', but row 2 has '3'; keep one",
    ),
    "answered and skipped": (
        "id,price,skip\na,3,x\n",
        "row 2, column 'price': '3', but the row is marked to skip",
    ),
    "PNG": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is not text but perhaps a workbook .* save it as CSV UTF-8"),
    "workbook": (zipped(), "is not text but perhaps a workbook .* save it as CSV UTF-8"),
    "null bytes": (b"id,price\na,\0\n", "is not text .* save it as CSV UTF-8"),
    "UTF-16": ("id,price\na,3\n".encode("utf-16"), "is in UTF-16; save it as CSV UTF-8"),
    "UTF-16 without a mark": ("id,price\na,3\n".encode("utf-16-le"), "is not text .* save it as CSV UTF-8"),
    "Latin-1": (
        'id,price,text\na,3,"x\ny"\nb,3,é\n'.encode("latin-1"),
        "row 3: byte 0xe9 is not UTF-8; save it",
    ),
    "Latin-1 after a mark": (b"\xef\xbb\xbfid,price\n\xe9,3\n", "row 2: byte 0xe9 is not UTF-8; save it"),
    "open quote": ('id,price\na,3\nb,"4\nc,5\n', "row 3: a quotation mark is not closed"),
    "text after a quote": (
        'id,price\na,"3" or 4\n',
        "row 2: a quotation mark is not closed, or text follows it",
    ),
    "too few cells": ("id,price,text\na\n", "row 2: the header has 3 cells, this row 1"),
    "cut off": (
        "id,price,text\na,3,x\nb,12",
        "row 3: the header has 3 cells, this row 2; .* see that the file is whole",
    ),
    "too many cells": ("id,price,text\na,3,so, what\n", "row 2: the header has 3 cells, this row 4"),
    "no date": ("id,price,at\na,3,yesterday\n", "row 2, column 'at': 'yesterday' is not a time; write it as"),
    "no day": (
        "id,price,completed_at\na,3,2030-02-30\n",
        "row 2, column 'completed_at': '2030-02-30' is not a time",
    ),
    "before the first year": (
        "id,price,at\na,3,0001-01-01T00:00+14:00\n",
        "row 2, column 'at': .* is not a time",
    ),
    "after a late header": ("\n\nid,price\na,x\n", "row 4, column 'price': 'x' is not a number"),
    "after quoted new lines": (
        'id,text,price\na,"1\n2\r\n3",3\n\nb,,x\n',
        "row 4, column 'price': 'x' is not a num",
    ),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(tmp_path, content, message):
    with pytest.raises(InputError, match=message) as refused:
        read(tmp_path, content, "regression")
    assert str(refused.value).startswith(str(tmp_path / "labelled.csv"))
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300 + len(str(tmp_path))


READ = {
    "plain": ("id,price\na,3\nb,4\n", ["3", "4"]),
    "header only": ("id,price\n", []),
    # As of items that a smaller pool no longer has.
    "not answered, nor known": ("id,price\nzz,\nyy,NA\na,3\n", ["3"]),
    "not answered": ("id,price\na,\nb, \nc,3\n", ["3"]),
    "mark at the start": (b"\xef\xbb\xbfid,price\na,3\n", ["3"]),
    "CRLF": ("id,price\r\na,3\r\nb,4\r\n", ["3", "4"]),
    "old Mac": ("id,price\ra,3\rb,4\r", ["3", "4"]),
    "no end of line": ("id,price\na,3", ["3"]),
    "semicolons": ("id;price;text\na;3;x, y\n", ["3"]),
    "tabs": ("id\tprice\ttext\na\t3\tx, y\n", ["3"]),
    "label for the target": ("label,id\n3,a\n", ["3"]),
    "the target before label": ("id,label,price\na,4,3\n", ["3"]),
    "same answer twice": ("id,price\na,3\na,3.0\n", ["3"]),
    "not answered, then answered": ("id,price\na,\na,3\n", ["3"]),
    "white space": (" id , price\n a ,\u00a03 \n", ["3"]),
    "blank lines": ("\nid,price\n\na,3\n,\n", ["3"]),
    "other columns twice": ("id,price,text,text\na,3,x,y\n", ["3"]),
    "empty cells left out": ("id,price,skip,text\na,3\nb,4,,x\n", ["3", "4"]),
    "empty cells too many": ("id,price,,\na,3,,,,\n", ["3"]),
    "numbers": ("id,price\na,-1.50\nb,+.5e3\nc,1e-30\n", ["-1.5", "500", "1e-30"]),
    "long cells": (f"id,price,text\na,3,{'x' * 100_000}\nb,4,{'y' * 300_000}\n", ["3", "4"]),
    "quotes": ('"id","price","text"\n"a","3","so ""it"" is, and\n""new"""\n', ["3"]),
    "a quote within": ('id,price,text\na,3,5" pipe\n', ["3"]),
    "markup": ("id,price,text\na,3,<b onclick='x'>&amp;</b>\n", ["3"]),
    "skipped": ("id,price,skip\na,,x\nb,,Yes\nc,,1\n", [None, None, None]),
    "not skipped": ("id,price,skip\na,3,no\nb,4,0\nc,,False\n", ["3", "4"]),
}


@pytest.mark.parametrize(("content", "labels"), READ.values(), ids=READ)
def test_read(tmp_path, content, labels):
    answers = read(tmp_path, content, "regression")
    assert [answer.label for answer in answers] == labels
    assert {answer.id for answer in answers} <= IDS


@pytest.mark.parametrize("label", CLASSES)
@pytest.mark.parametrize("classes", [None, CLASSES])
def test_classes(tmp_path, label, classes):
    cell = label.replace('"', '""')
    for written in (f'"{cell}"', f'"  {cell}\t"'):
        assert read(tmp_path, f"id,price\na,{written}\n", classes=classes) == [Answer("a", label)]


@pytest.mark.parametrize(
    ("written", "label"),
    [
        ("1.0", "1"),
        ("-3.00", "-3"),
        ("007", "007"),
        ("007.0", "007"),
        ("1.10", "1.10"),
        ("v1.0", "v1.0"),
        ("1.", "1."),
    ],
)
def test_whole_numbers_among_classes_have_no_fraction(tmp_path, written, label):
    assert read(tmp_path, f"id,price\na,{written}\n") == [Answer("a", label)]
    assert read(tmp_path, f"id,price\na,{written}\n", classes=["x", label]) == [Answer("a", label)]


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_words_for_no_label_are_passed_over_and_counted(tmp_path, task):
    cells = {"a": "NA", "b": "NaN", "c": "null", " a": "n/a", " b": "nan", " c": ""}
    words = "".join(f"{one},{word},\n" for one, word in cells.items())
    assert read_all(tmp_path, f"id,price,skip\n{words}a,3,\nb,NULL,x\n", task) == (
        [Answer("a", "3"), Answer("b", None)],
        5,
    )


def test_words_for_no_label_may_be_classes_by_name(tmp_path):
    content = "id,price\na,NA\nb,EU\nc,NaN\n"
    assert read_all(tmp_path, content, classes=["EU", "NA"]) == ([Answer("a", "NA"), Answer("b", "EU")], 1)


@pytest.mark.parametrize("header", ["key,price", "id,price", "price,key,id", "key;price"])
def test_ids_may_have_the_name_that_the_pool_has_for_them(tmp_path, header):
    separator = ";" if ";" in header else ","
    cells = {"key": "a", "price": "3", "id": "a" if "key" not in header else "another"}
    row = separator.join(cells[name] for name in header.split(separator))
    assert read(tmp_path, f"{header}\n{row}\n", id_column=" key") == [Answer("a", "3")]


@pytest.mark.parametrize("own", ["state", "predicted", "probability", "std", "round", "deviation"])
def test_ids_under_a_name_that_exports_have_for_something_else(tmp_path, own):
    exported = f"id,{own},price\na,labelled,3\n"
    for content in (exported, f"{own},price\na,3\n"):
        assert read(tmp_path, content, id_column=own) == [Answer("a", "3")]


def test_mistakes_name_the_column_of_ids_that_is_there(tmp_path):
    for content, message in (
        ("ID,price\na,3\n", "no column 'key' or 'id', only 'ID, price'"),
        ("key,price\nzz,3\n", "row 2, column 'key': 'zz' is not in the project"),
        ("key,price\n ,3\n", "row 2, column 'key': it is empty"),
    ):
        with pytest.raises(InputError, match=message):
            read(tmp_path, content, id_column="key")
    # A name that another part of an answer has stays with that.
    assert read(tmp_path, "id,price,who\na,3,ann\n", id_column="who") == [Answer("a", "3", "ann")]


def test_class_copied_from_a_guarded_cell(tmp_path):
    assert read(tmp_path, "id,price\na,'=cmd()\n") == [Answer("a", "=cmd()")]
    assert read(tmp_path, "id,price\na,'=cmd()\n", classes=["'=cmd()", "=cmd()"]) == [Answer("a", "'=cmd()")]


@pytest.mark.parametrize(
    ("label", "hint"),
    [("Dgo", "did you mean 'dog'"), ("CAT", "did you mean 'cat'"), ("zebra", "they are 'cat, dog'")],
)
def test_outside_the_classes(tmp_path, label, hint):
    message = f"row 3, column 'price': '{label}' is none of the 2 classes; {hint}"
    with pytest.raises(InputError, match=re.escape(message)):
        read(tmp_path, f"id,price\na,cat\nb,{label}\n", classes=["cat", "dog"])


@pytest.mark.parametrize(
    ("written", "utc"),
    [
        ("2030-01-31", "2030-01-31T00:00:00+00:00"),
        ("2030-01-31 15:00", "2030-01-31T15:00:00+00:00"),
        ("2030-01-31T15:00Z", "2030-01-31T15:00:00+00:00"),
        (" 2030-01-31T15:00:00.5+02:00 ", "2030-01-31T13:00:00.500000+00:00"),
        ("", None),
    ],
)
def test_who_and_when(tmp_path, written, utc):
    for header in ("id,price,who,at", "id,price,annotator,completed_at"):
        answers = read(tmp_path, f"{header}\na,3, Åsa ,{written}\nb,,,no time\nc,x,,\n")
        assert answers == [Answer("a", "3", "Åsa", utc), Answer("c", "x")]


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.csv: No such file or directory; name the CSV file"):
        read_content(tmp_path / "nothing.csv")
    with pytest.raises(InputError, match="Is a directory; name the CSV file"):
        read_content(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path):
    path = tmp_path / "labelled.csv"
    path.touch(0o000)
    with pytest.raises(InputError, match="Permission denied; name the CSV file"):
        read_content(path)


def test_many_rows(tmp_path):
    known = {f"item {i}" for i in range(100_000)}
    content = "id,price,skip,who,text\n" + "".join(
        f"{one},{i}.5,,me,some text\n" for i, one in enumerate(known)
    )
    answers = read(tmp_path, content, "regression", known=known)
    assert len(answers) == 100_000


def test_long_cells_leave_the_limit_of_others_alone(tmp_path):
    csv.field_size_limit(131_072)
    read(tmp_path, f"id,price\na,{'x' * 200_000}\n")
    with pytest.raises(InputError):
        read(tmp_path, "")
    assert csv.field_size_limit() == 131_072


def test_batch(tmp_path):
    path = tmp_path / "batch.csv"
    rows = [
        {"id": "a", "text": "é, \0\ud800"},
        {"id": "-2", "rank": "7", "at": "-2", "price": "=1"},
    ]
    write(path, "price", rows)
    assert path.read_bytes().startswith(
        b"\xef\xbb\xbfid,price,skip,who,rank,text,item rank,item at,item price\r\n"
    )
    assert cells_of(path)[1:] == [
        ["a", "", "", "", "1", "é, \ufffd\ufffd", "", "", ""],
        ["-2", "", "", "", "2", "", "7", "-2", "'=1"],
    ]
    assert os.listdir(tmp_path) == ["batch.csv"]
    write(path, "price", [])
    assert cells_of(path) == [["id", "price", "skip", "who", "rank"]]
    write(path, "rank", [{"id": "a", "rank": "7"}])
    assert cells_of(path) == [
        ["id", "rank", "skip", "who", "item rank", "item item rank"],
        ["a", "", "", "", "1", "7"],
    ]


def test_only_a_batch_with_other_letters_has_a_mark_at_its_start(tmp_path):
    for note, marked in (("plain", False), ("schön", True)):
        write_batch(tmp_path / "batch.csv", "kind", [Chosen(0, "a", 1)], [{"note": note}])
        assert (tmp_path / "batch.csv").read_bytes().startswith(b"\xef\xbb\xbf") is marked
    with (tmp_path / "batch.csv").open(newline="", encoding="utf-8-sig") as file:
        assert next(csv.DictReader(file))["note"] == "schön"


def test_no_column_of_a_batch_is_taken_for_another(tmp_path):
    path = tmp_path / "batch.csv"
    others = ["label", "item label", " key", "text"]
    write(path, "price", [{"id": "a", **{name: name.upper() for name in others}}], "key")
    header, row = cells_of(path)
    assert header[5:] == ["item label", "item item label", "item key", "text"]
    assert row[5:] == [name.upper() for name in others]


def test_batch_that_cannot_be_written(tmp_path):
    path = tmp_path / "batch.csv"
    path.write_text("as it was")
    for wrong in (" ", "a\0", "\ud800"):
        with pytest.raises(InputError, match="an item has the id"):
            write(path, "price", [{"id": "a"}, {"id": wrong}])
    with pytest.raises(InputError, match="the target cannot be named 'who'"):
        write(path, "who", [{"id": "a"}])
    with pytest.raises(InputError, match=r"should end in \.csv"):
        write(tmp_path / "batch.xlsx", "price", [{"id": "a"}])
    with pytest.raises(InputError, match="No such file or directory; name a file in a folder"):
        write(tmp_path / "nowhere" / "batch.csv", "price", [{"id": "a"}])
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=r"folder\.csv: Is a directory"):
        write(tmp_path / "folder.csv", "price", [{"id": "a"}])
    assert path.read_text() == "as it was"
    assert sorted(os.listdir(tmp_path)) == ["batch.csv", "folder.csv"]


@settings(deadline=None)
@given(
    items=st.dictionaries(names, st.tuples(names, texts), max_size=5),
    target=st.sampled_from(["price", "=price", " +1 ", "größe"]),
    told=st.booleans(),
    separator=st.sampled_from(",;\t"),
)
def test_there_and_back(tmp_path_factory, items, target, told, separator):
    """Ids come back as they are and labels without white space around them, also with other separators."""
    path = tmp_path_factory.getbasetemp() / "batch.csv"
    labels = [label.strip() for label, _ in items.values()]
    if not told:  # then an apostrophe before a formula is taken for a guard
        labels = [re.sub(r"^[\s']+", "", label) for label in labels]
        labels = [plain_class(label) if is_label(label, None) else "x" for label in labels]
    write(path, target, [{"id": one, "text": text} for one, (_, text) in items.items()])
    header, *rows = cells_of(path)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(header)
        writer.writerows([row[0], label, *row[2:]] for row, label in zip(rows, labels, strict=True))
    answers, _ = read_answers(
        path,
        path.read_bytes(),
        target=target,
        task="classification",
        are_known=lambda ids: [one in items for one in ids],
        classes=labels if told else None,
    )
    assert answers == [Answer(one, label) for one, label in zip(items, labels, strict=True)]


@settings(deadline=None)
@given(
    rows=st.lists(st.fixed_dictionaries({"id": names}, optional={"rank": texts, "=text": texts}), max_size=5)
)
def test_no_cell_is_a_formula(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "formulas.csv"
    write(path, "@price", rows)
    for cell in (cell for row in cells_of(path) for cell in row):
        if cell.startswith(("\t", "\r", "\n")) or cell.lstrip()[:1] in {*"=+-@\uff1d\uff0b\uff0d\uff20"}:
            assert re.fullmatch(r"[+-]([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", cell)
