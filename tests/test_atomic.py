"""Files are written whole or not at all."""

import os
import threading

import pytest

from coresift.atomic import replacing, write_text


def test_the_new_file_has_the_mode_of_any_other(tmp_path):
    write_text(tmp_path / "a.txt", "é")
    (tmp_path / "b.txt").touch()
    assert (tmp_path / "a.txt").read_bytes() == "é".encode()
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "b.txt").stat().st_mode


def test_after_an_error_the_old_file_is_there_alone(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def stopped():
        with replacing(path) as file:
            file.write(b"new")
            file.flush()
            assert path.read_text() == "old"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_that_cannot_be_taken(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError), replacing(tmp_path / "folder") as file:
        file.write(b"new")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_two_writers_share_no_file(tmp_path):
    path, both = tmp_path / "a.txt", threading.Barrier(2)

    def write(text):
        with replacing(path) as file:
            both.wait()  # both files are open
            for letter in text:
                file.write(letter.encode() * 1000)
                os.fsync(file.fileno())

    writers = [threading.Thread(target=write, args=(letter * 20,)) for letter in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert path.read_text() in ("a" * 20_000, "b" * 20_000)
    assert list(tmp_path.iterdir()) == [path]
