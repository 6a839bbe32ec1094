import io

import pytest
from rich.console import Console

import coresift.progress
from coresift.progress import now_and_then, progress_bar


def test_silent_where_nobody_watches(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bar("counting", 2, after=-1.0) as advance:
        advance(1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("patience", "shown"), [(-1.0, True), (60.0, False)])
def test_a_bar_on_a_terminal_after_a_while(
    monkeypatch: pytest.MonkeyPatch, patience: float, shown: bool
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        coresift.progress, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=80)
    )
    with progress_bar("counting sheep", 2, after=patience) as advance:
        advance(1)
        with progress_bar("inner", 2, after=patience) as inner:  # a bar within a bar does no harm
            inner(2)
        advance(1)
    assert ("counting sheep" in screen.getvalue()) == shown


def test_a_line_every_ten_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(coresift.progress.time, "monotonic", lambda: clock)
    clock = 0.0
    say_sometimes = now_and_then(lines.append)
    for clock in (4.0, 9.0, 11.0, 20.0, 21.0, 22.0):
        say_sometimes(str(clock))
    assert lines == ["11.0", "21.0"]
