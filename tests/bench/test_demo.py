from __future__ import annotations

import io
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console
from typer.testing import CliRunner

import coresift
from coresift.bench import demo
from coresift.bench.data import load_energy
from coresift.cli import app
from coresift.report.figures import CurvePanel, curve_panels, save, to_svg
from coresift.report.page import Heading, Picture, Table, page
from coresift.threads import enough_threads

SEEDS, ROUNDS = 2, 2


class Reader(HTMLParser):
    """Collects what a page links to, the text of its table cells, and tags left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.cells: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[demo.Comparison, Path, str]:
    out = tmp_path_factory.mktemp("demo") / "deep" / "folder"
    console = Console(file=io.StringIO(), width=200)
    comparison = demo.run(out, num_seeds=SEEDS, num_rounds=ROUNDS, console=console)
    assert isinstance(console.file, io.StringIO)
    return comparison, out, console.file.getvalue()


def test_demo_writes_its_files(result: tuple[demo.Comparison, Path, str]) -> None:
    _, out, _ = result
    assert sorted(path.name for path in out.iterdir()) == ["batches.png", "curves.png", "index.html"]
    for name in ("batches.png", "curves.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")


def test_page_is_well_formed_and_needs_no_network(result: tuple[demo.Comparison, Path, str]) -> None:
    reader = Reader((result[1] / "index.html").read_text(encoding="utf-8"))
    assert reader.open == []
    assert len(reader.links) == 2
    assert all(link.startswith("data:image/") for link in reader.links)


def test_numbers_are_the_same_everywhere(result: tuple[demo.Comparison, Path, str]) -> None:
    comparison, out, printed = result
    assert comparison.num_labels == (20, 30, 40)
    text = (out / "index.html").read_text(encoding="utf-8")
    cells = iter(Reader(text).cells)
    assert [next(cells) for _ in range(4)] == ["labels", "random", "maxent", "acs-fw"]
    for i, count in enumerate(comparison.num_labels):
        assert next(cells) == str(count)
        for values in comparison.rmse.values():
            mean, error = values[:, i].mean(), values[:, i].std(ddof=1) / SEEDS**0.5
            cell = next(cells)
            assert cell == f"{mean:.2f} ± {error:.2f}"
            assert cell in printed
    assert comparison.conclusion() in printed


def test_strategies_share_their_start(result: tuple[demo.Comparison, Path, str]) -> None:
    start = [values[:, 0] for values in result[0].rmse.values()]
    np.testing.assert_array_equal(start[0], start[1])
    np.testing.assert_array_equal(start[0], start[2])
    assert all(values.shape == (SEEDS, ROUNDS + 1) for values in result[0].rmse.values())


def test_conclusion_says_who_won() -> None:
    def conclusion(gaps: list[float]) -> str:
        base = np.array([[1.0], [2.0], [3.0]])
        return demo.Comparison((20,), {"random": base, "acs-fw": base + np.array(gaps)[:, None]}).conclusion()

    assert "is 0.50 ± 0.06 below that of random (paired differences over 3 splits," in conclusion(
        [-0.4, -0.5, -0.6]
    )
    assert "is 0.50 ± 0.06 above that of random" in conclusion([0.4, 0.5, 0.6])
    assert "is not clearly different from that of random (0.03 ± 0.26 above)" in conclusion([0.5, -0.4, 0.0])


def test_model_learns_the_table() -> None:
    x, y = load_energy()
    train, test = np.split(np.random.default_rng(0).permutation(len(x)), [120])
    with enough_threads(0):
        model = demo.demo_model().set_params(random_state=0).fit(x[train], y[train])
    error = np.sqrt(np.mean((model.predict(x[test]) - y[test]) ** 2))
    assert error < 0.2 * y.std()  # a linear model ends near 0.3


def test_table_carries_its_source() -> None:
    files = resources.files("coresift.bench.data")
    assert files.joinpath("energy.csv").read_text(encoding="utf-8").startswith("relative_compactness,")
    assert "CC BY 4.0" in files.joinpath("README.md").read_text(encoding="utf-8")


def test_page_escapes_all_text() -> None:
    nasty = "<script>\"&'"
    figure = Figure()
    text = page(
        nasty, [nasty, Heading(nasty), Table([nasty], [[nasty, nasty]], nasty), Picture(figure, nasty)]
    )
    assert "<script>" not in text
    assert text.count("&lt;script&gt;&quot;&amp;&#x27;") == 10
    assert Reader(text).open == []


def test_figures_are_the_same_each_time_and_leave_the_style_alone(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    panels = [CurvePanel("labels", {"a": ([10, 20], np.array([[3.0, 2.0], [3.5, 1.0]]))})]
    assert to_svg(curve_panels(panels, "error")) == to_svg(curve_panels(panels, "error"))
    save(curve_panels(panels, "error"), tmp_path / "curves.pdf")
    assert dict(matplotlib.rcParams) == before


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = CliRunner().invoke
    assert run(app, ["--version"]).output == f"coresift {coresift.__version__}\n"
    listed = run(app, ["strategies"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in coresift.STRATEGIES)

    seen = []
    monkeypatch.setattr(demo, "run", lambda out, num_seeds: seen.append((out, num_seeds)))
    assert run(app, ["demo", "--out", str(tmp_path), "--seeds", "3"]).exit_code == 0
    assert seen == [(tmp_path, 3)]


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments in (["--seeds", "1", "--out", str(tmp_path)], ["--out", str(tmp_path / "file")]):
        failed = CliRunner().invoke(app, ["demo", *arguments])
        assert failed.exit_code == 2
        assert failed.stdout == ""
        assert failed.stderr.startswith("coresift: ")
        assert failed.stderr.count("\n") == 1
