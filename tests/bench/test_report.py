"""The report on an experiment, on small folders whose figures are worked out by hand."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import ttest_rel

from coresift import InputError
from coresift.bench.display import display
from coresift.bench.published import departure, paper_name, paper_rmse, paper_seconds
from coresift.bench.replay import Round
from coresift.bench.report import _curves, write_report
from coresift.bench.results import Results, standings
from coresift.bench.statistics import compare_pairs, holm, seeds_needed
from coresift.bench.store import Log, Record, pack, read
from coresift.bench.tables import NOTHING
from coresift.progress import now_and_then
from coresift.report.figures import CurvePanel, curve_panels

FIRST, BATCH, FULL, SEEDS = 20, 10, 40, 8
RESULTS = Path(__file__).parents[2] / "experiments" / "results"


def error(method: str, seed: int, labels: int) -> float:
    """Better by method, the same for all at the start."""
    gain = {"random": 0.0, "lcmd": 1.0, "acs-fisher": -1.0, "maxent": 0.2 if seed % 2 else -0.2}
    noise = np.random.default_rng([seed, labels, len(method)]).normal() / 100
    return (
        4
        + 0.1 * seed
        + (FULL - labels) / 10
        + noise
        - gain.get(method, 0.5) * (labels - FIRST) / (FULL - FIRST)
    )


def run(
    method: str, seed: int, steps: list[int], *, impute: bool = False, stop: int | None = None
) -> list[Round]:
    """The rounds of a run that chooses so many points after each fit."""
    labels = guessed = 0
    rounds = []
    for fits, wanted in enumerate([*steps, 0]):
        true = FIRST + labels
        # A fit on imputed labels has an error that would be seen at once if it came into any figure.
        rmse = 1000.0 if guessed else error(method, seed, true)
        chosen = tuple(range(labels + guessed, labels + guessed + wanted))
        bought = (
            () if impute and guessed + wanted < BATCH else tuple(range(labels, labels + guessed + wanted))
        )
        rounds.append(
            Round(
                fits,
                true,
                guessed,
                rmse,
                -1.0,
                chosen,
                (),
                bought if wanted else (),
                2.0,
                0.5 if wanted else 0.0,
            )
        )
        labels, guessed = (labels + len(bought), 0) if bought else (labels, guessed + wanted)
    return rounds[:stop]


def settings(data: str, method: str, /, **changed: Any) -> dict[str, Any]:
    """Those of the paper's protocol, though runs here end sooner."""
    paper = {"data": {"table": data}, "first": FIRST, "batch": BATCH, "budget": 100}
    single = method in ("maxent-sg", "maxent-i")
    return {**paper, "method": {"strategy": method, "refit_every": 1 if single else None}, **changed}


def write(
    log: Log, rounds_of: dict[int, list[Round]], made: dict[str, str] | None = None, /, **changed: Any
) -> None:
    log.open(settings(log.path.parent.name, log.path.stem, **changed), made)
    for seed, rounds in rounds_of.items():
        for turn in rounds:
            log.append({seed: turn})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data sets; all kinds of methods on the first, few and unfinished ones on the second."""
    folder = tmp_path_factory.mktemp("results")
    origin = {"command": "coresift reproduce", "commit": "abc123", "torch": "2.9"}
    full = [BATCH, BATCH]
    for method in ("random", "lcmd", "acs-fisher", "maxent"):
        log = Log(folder / "yacht" / f"{method}.jsonl")
        write(log, {seed: run(method, seed, full) for seed in range(SEEDS)}, origin)
    write(Log(folder / "yacht/maxent.jsonl"), {SEEDS: run("maxent", SEEDS, full, stop=2)}, origin)
    uneven = {seed: run("unfilled", seed, [7, 6, 7] if seed % 2 else [5, 5, 5, 5]) for seed in range(SEEDS)}
    write(Log(folder / "yacht/unfilled.jsonl"), uneven)
    single = [1] * (2 * BATCH)
    write(
        Log(folder / "yacht/maxent-sg.jsonl"), {seed: run("maxent-sg", seed, single) for seed in range(SEEDS)}
    )
    imputed = {seed: run("maxent-i", seed, single, impute=True) for seed in range(SEEDS)}
    write(Log(folder / "yacht/maxent-i.jsonl"), imputed)
    write(Log(folder / "boston/random.jsonl"), {seed: run("random", seed, full) for seed in range(3)})
    write(Log(folder / "boston/lcmd.jsonl"), {0: run("lcmd", 0, full), 1: run("lcmd", 1, full, stop=1)})
    return folder


@pytest.fixture(scope="module")
def out(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "deeper"
    assert write_report(folder, out) == out / "report.html"
    return out


def results(folder: Path, data: str, *, known: bool = True) -> Results:
    found = {path.stem: Log(path).settings() for path in (folder / data).glob("*.jsonl")}
    return Results.gather(
        data, [record for record in read(folder)[0] if record.data == data], found if known else None
    )


def section(out: Path, data: str, file: str = "table1.md") -> str:
    return (out / file).read_text(encoding="utf-8").split(f"## {data}\n")[1].split("\n## ")[0]


def rows(out: Path, data: str, column: str, file: str = "table1.md") -> dict[str, list[str]]:
    """The table of a data set that has such a column: row name -> cells."""
    blocks = section(out, data, file).split("\n\n")
    table = next(block for block in blocks if block.startswith("|") and column in block)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {name: cells for name, *cells in lines[2:]}


def cell(values: list[float], digits: int = 3) -> str:
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.{digits}f}"


def test_equal_labels(out: Path) -> None:
    table = rows(out, "yacht", "RMSE at 40 labels")
    for method, refits in {
        "random": "2",
        "maxent": "2",
        "unfilled": "3.5",
        "maxent-sg": "20",
        "maxent-i": "20",
    }.items():
        assert table[method][:3] == [cell([error(method, seed, FULL) for seed in range(SEEDS)]), "8", refits]
    assert next(iter(table)) == "lcmd"
    ours = np.array([error("random", seed, FULL) for seed in range(SEEDS)])
    z = (ours.mean() - 1.272) / np.sqrt(ours.var(ddof=1) / SEEDS + 0.0593**2)
    assert table["random"][3:] == ["1.272 ± 0.059", f"{z:+.1f}", "higher"]
    assert table["acs-fisher"][3] == "1.031 ± 0.044"
    assert table["lcmd"][3:] == [NOTHING] * 3


def test_equal_refits(out: Path) -> None:
    table = rows(out, "yacht", "RMSE after 2 refits")
    assert table["random"] == [cell([error("random", seed, FULL) for seed in range(SEEDS)]), "40", "8"]
    unfilled = [error("unfilled", seed, 33 if seed % 2 else 30) for seed in range(SEEDS)]
    assert table["unfilled"] == [cell(unfilled), "31.5", "8"]
    assert table["maxent-sg"][:2] == [cell([error("maxent-sg", seed, 22) for seed in range(SEEDS)]), "22"]
    # Two fits on imputed labels are two refits and no result: it still stands at its start.
    assert table["maxent-i"][:2] == [cell([error("maxent-i", seed, 20) for seed in range(SEEDS)]), "20"]


def test_curves_lie_on_the_common_grid(folder: Path) -> None:
    found = results(folder, "yacht")
    assert found.label_grid() == [20, 30, 40]
    unfilled = found.curve("unfilled", "labels", [20, 30, 40])
    np.testing.assert_allclose(unfilled[1], [error("unfilled", 1, labels) for labels in (20, 27, 40)])
    assert found.refit_grid("maxent-i") == [0, 10, 20]
    assert found.curve("maxent-i", "fits", range(21)).max() < 1000


@pytest.mark.parametrize("known", [True, False])
def test_seconds(folder: Path, out: Path, known: bool) -> None:
    found = results(folder, "yacht", known=known)
    assert found.seconds("random") == pytest.approx((0.5, 2.5, 7.0))
    # Ten choices and ten fits lead to a batch, whether its labels are imputed or bought one by one.
    assert found.seconds("maxent-i") == pytest.approx((5.0, 25.0, 52.0))
    assert found.seconds("maxent-sg") == pytest.approx((5.0, 25.0, 52.0))
    assert rows(out, "yacht", "batch")["random"] == ["0.5", "0.0", "2.5", "8.9", "7", "88.6"]


def test_refits_within_a_batch_belong_to_its_round(tmp_path: Path) -> None:
    method = {"strategy": "maxent", "refit_every": 2}
    # Five fits to a batch, and the part of a batch at the end is a round too.
    seeds = {seed: run("twos", seed, [2] * 12) for seed in range(2)}
    write(Log(tmp_path / "yacht/twos.jsonl"), seeds, method=method)
    assert results(tmp_path, "yacht").seconds("twos") == pytest.approx((12 * 0.5 / 3, 12 * 2.5 / 3, 32.0))


def test_the_papers_figures_stand_beside_its_protocol_only(tmp_path: Path) -> None:
    seeds = {seed: run("random", seed, [BATCH, BATCH]) for seed in range(2)}
    write(Log(tmp_path / "yacht/random.jsonl"), seeds)
    write(Log(tmp_path / "yacht/maxent.jsonl"), seeds, batch=5)
    write(Log(tmp_path / "boston/random.jsonl"), seeds, data={"table": "own/boston.csv"})
    Log(tmp_path / "energy/random.jsonl").open({})
    for seed, rounds in seeds.items():
        for turn in rounds:
            Log(tmp_path / "energy/random.jsonl").append({seed: turn})
    write_report(tmp_path)
    assert rows(tmp_path, "yacht", "RMSE at 40")["random"][3] == "1.272 ± 0.059"
    for data, method in {"yacht": "maxent", "boston": "random", "energy": "random"}.items():
        # Where nothing of the paper's can stand beside ours, there is no column for it.
        columns = 3 if data == "yacht" else 0
        assert rows(tmp_path, data, "RMSE at 40")[method][3:] == [NOTHING] * columns
        seconds = rows(tmp_path, data, "batch |")[method]
        assert len(seconds) == 3 + columns and (not columns or seconds[1::2] == [NOTHING] * 3)
    why = "The paper's figures are left out for"
    assert f"{why} maxent: first, batch and budget are 20, 5, 100, and 20, 10, 100 in the paper." in section(
        tmp_path, "yacht"
    )
    assert f"{why} random: the table is own/boston.csv, not the published one." in section(tmp_path, "boston")
    assert f"{why} random: the table is not known" in section(tmp_path, "energy")


def test_what_departs_from_the_paper() -> None:
    large = {"first": 200, "batch": 1000, "budget": 10000}
    assert departure("year", settings("year", "random", **large)) == ""
    assert departure("year", settings("year", "random"))
    assert departure("yacht", settings("yacht", "random", **large))
    assert departure("protein", settings("protein", "random")) == "the paper has no such data set"


def test_mixed_settings_are_told(tmp_path: Path, out: Path) -> None:
    seeds = {seed: run("random", seed, [BATCH]) for seed in range(2)}
    differing: dict[str, dict[str, Any]] = {
        "lcmd": {"model": {"epochs": 5, "width": 1}},
        "maxent": {"model": {"width": 1, "epochs": 9}, "beside": ["maxent"], "seeds": 2},
        "random": {"model": {"width": 1, "epochs": 5}},
    }
    for method, changed in differing.items():
        write(Log(tmp_path / f"yacht/{method}.jsonl"), seeds, **changed)
    Log(tmp_path / "yacht/unbegun.jsonl").open({"batch": 3})
    write_report(tmp_path)
    assert (
        section(tmp_path, "yacht")
        .strip()
        .startswith(
            "Warning: these methods were run with different settings, and cannot be compared: "
            "model (lcmd, random against maxent); seeds (lcmd, random against maxent).\n"
        )
    )
    assert "Warning" not in (out / "table1.md").read_text(encoding="utf-8")


def test_pairs(out: Path) -> None:
    table = rows(out, "yacht", "than random")
    gaps = [error("lcmd", seed, FULL) - error("random", seed, FULL) for seed in range(SEEDS)]
    # All eight differences have one sign: 2 / 2^8, times the six methods compared.
    assert table["lcmd"] == [cell(gaps), "8", f"{6 * 2 / 2**8:.4f}", "better than random"]
    assert table["acs-fisher"][-1] == "worse than random"
    assert table["maxent"][-1] == "not significantly different from random"
    assert rows(out, "yacht", "than lcmd")["random"][-1] == "worse than lcmd"


@pytest.mark.parametrize(("sign", "word"), [(1, "better"), (-1, "worse")])
def test_the_verdict_follows_the_ranks(sign: int, word: str) -> None:
    gaps = [-0.1] * 35 + [2.0] * 5
    errors = {"random": dict.fromkeys(range(40), 5.0), "m": {i: 5 + sign * gap for i, gap in enumerate(gaps)}}
    (pair,) = compare_pairs(errors, "random")
    assert sign * pair.difference.mean > 0
    assert pair.verdict == f"mostly {word} than random, but not in the mean"


def test_pairs_share_seeds_and_need_two() -> None:
    errors = {"random": {0: 1.0, 1: 2.0, 2: 3.0}, "same": {1: 2.0, 2: 3.0, 9: 0.0}, "alone": {0: 0.5, 9: 0.0}}
    (pair,) = compare_pairs(errors, "random")
    assert (pair.method, pair.num_seeds, pair.p_value) == ("same", 2, 1.0)
    assert pair.verdict == "not significantly different from random"


def test_seeds_needed() -> None:
    for compared in range(1, 40):
        needed = seeds_needed(compared)
        for seeds, told in {needed - 1: False, needed: True}.items():
            errors = {str(m): {seed: -1.0 - seed for seed in range(seeds)} for m in range(compared)}
            pairs = compare_pairs({"random": dict.fromkeys(range(seeds), 0.0), **errors}, "random")
            assert (max(pair.p_value for pair in pairs) <= 0.05) is told


def test_holm() -> None:
    # By hand: 4 x 0.005; 3 x 0.01; 2 x 0.03; then 0.04 may not come below the 0.06 before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_standings() -> None:
    def runs(data: str, method: str, errors: list[float]) -> list[Record]:
        return [
            Record(data, method, seed, (Round(0, 20, 0, value, 0.0),)) for seed, value in enumerate(errors)
        ]

    first = Results.gather(
        "a", [*runs("a", "random", [1, 3]), *runs("a", "m", [1, 1]), *runs("a", "n", [0.1, 0.1])]
    )
    second = Results.gather("b", [*runs("b", "random", [4, 4, 9]), *runs("b", "m", [8, 8])])
    found = {standing.method: standing for standing in standings([first, second])}
    assert list(found) == ["m", "random", "n"]
    # Half on one, twice on the other, over the seeds that both have.
    assert found["m"].at_labels == {"a": 0.5, "b": 2.0}
    assert found["m"].overall == pytest.approx((1.0, 1.0))


def headline(out: Path, file: str = "table1.md") -> str:
    """What the report says first of methods; the page says the same."""
    blocks = (out / file).read_text(encoding="utf-8").split("\n\n")
    (found,) = [block for block in blocks if block.startswith("The most accurate at equal labels is")]
    assert found in (out / "report.html").read_text(encoding="utf-8")
    return found


@pytest.mark.parametrize(
    ("seeds", "verdict"),
    [
        (1, "This is not tested: a test needs two seeds that both have finished."),
        (2, "By the paired tests below, it is not significantly different from random."),
        (SEEDS, "By the paired tests below, it is better than random."),
    ],
)
def test_the_first_sentence_says_what_the_tests_say(tmp_path: Path, seeds: int, verdict: str) -> None:
    for name in ("random", "lcmd"):
        write(Log(tmp_path / f"yacht/{name}.jsonl"), {seed: run(name, seed, [20]) for seed in range(seeds)})
    write_report(tmp_path)
    assert headline(tmp_path).endswith(f" times at equal refits), on yacht. {verdict}")


def test_the_first_sentence_counts_data_sets(out: Path, classes: Path) -> None:
    assert headline(out).endswith(
        "refits), in geometric mean over boston, yacht. By the paired tests below, it is "
        "better than random (1 of 2 data sets); not tested against random (1 of 2 data sets)."
    )
    assert headline(classes, "tables.md").endswith(
        "better than random, if differences are normal (1 of 2 data sets); "
        "better than random (1 of 2 data sets)."
    )


def test_random_may_be_the_most_accurate(tmp_path: Path) -> None:
    for name in ("random", "acs-fisher"):
        write(Log(tmp_path / f"yacht/{name}.jsonl"), {seed: run(name, seed, [20]) for seed in range(2)})
    write_report(tmp_path)
    assert headline(tmp_path) == "The most accurate at equal labels is random itself, on yacht."


def test_partial_results_are_named(out: Path) -> None:
    text = (out / "table1.md").read_text(encoding="utf-8")
    assert "Unfinished runs are left out: maxent 1." in text
    assert "Unfinished runs are left out: lcmd 1. With fewer than 6 finished seeds" in text
    # Six are compared with one on eight seeds, which is enough.
    assert "With fewer" not in section(out, "yacht")
    cells = rows(out, "boston", "RMSE at 40 labels")["lcmd"]
    assert "±" not in cells[0] and cells[1] == "1"
    assert "than random" not in text.split("## boston")[1].split("## yacht")[0]


def test_more_methods_need_more_seeds(tmp_path: Path) -> None:
    for number in range(12):
        seeds = {seed: run("random", seed, [BATCH]) for seed in range(8)}
        write(Log(tmp_path / f"yacht/{number}.jsonl"), seeds)
    write_report(tmp_path)
    assert "With fewer than 9 finished seeds" in section(tmp_path, "yacht")


def test_a_single_seed_has_errors_and_no_spread(tmp_path: Path) -> None:
    log = Log(tmp_path / "yacht" / "random.jsonl")
    log.open({"data": {"table": "yacht"}, "first": FIRST, "batch": BATCH, "budget": FULL - FIRST})
    for turn in run("random", 0, [BATCH, BATCH]):
        log.append({0: turn})
    write_report(tmp_path)
    text = (tmp_path / "table1.md").read_text()
    assert f"| random | {error('random', 0, FULL):.3f} | 1 | 2 |" in text
    assert "nan" not in text
    assert (tmp_path / "curves-yacht.png").exists()


def test_nothing_finished(tmp_path: Path) -> None:
    write(
        Log(tmp_path / "energy/random.jsonl"), {seed: run("random", seed, [10], stop=1) for seed in range(3)}
    )
    write_report(tmp_path)
    assert "Unfinished runs are left out: random 3." in (tmp_path / "table1.md").read_text(encoding="utf-8")
    assert not list(tmp_path.glob("*.png"))


def test_nothing_begun(tmp_path: Path) -> None:
    write(Log(tmp_path / "energy/random.jsonl"), {})
    write_report(tmp_path)
    assert "There is no ranking yet" in (tmp_path / "table1.md").read_text(encoding="utf-8")


def test_page_needs_nothing_else(out: Path) -> None:
    text = (out / "report.html").read_text(encoding="utf-8")
    links = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert len(links) == 2
    assert all(link.startswith("data:image/svg+xml;base64,") for link in links)
    assert "Command: coresift reproduce. Commit: abc123. Torch: 2.9." in text
    for data in ("yacht", "boston"):
        assert (out / f"curves-{data}.png").read_bytes().startswith(b"\x89PNG")
        assert f"](curves-{data}.png)" in (out / "table1.md").read_text(encoding="utf-8")


def test_many_commands_are_listed_at_the_end(tmp_path: Path) -> None:
    for method in ("random", "lcmd"):
        origin = {"command": f"coresift experiment run --methods {method}", "torch": "2.9"}
        write(Log(tmp_path / f"yacht/{method}.jsonl"), {0: [Round(0, 20, 0, 1.0, 0.0)]}, origin)
    write_report(tmp_path)
    text = (tmp_path / "table1.md").read_text(encoding="utf-8")
    assert "These results were made by 2 commands, listed at the end. Torch: 2.9." in text
    assert text.split("\n\n")[-3] == "## Commands"
    assert text.endswith("run --methods lcmd\n\ncoresift experiment run --methods random\n")


def test_rounds_come_back(folder: Path, out: Path) -> None:
    table = pq.read_table(out / "rounds.parquet")
    assert pq.ParquetFile(out / "rounds.parquet").metadata.row_group(0).column(0).compression == "ZSTD"
    rounds = [(record, turn) for record in read(folder)[0] for turn in record.rounds]
    assert table.num_rows == len(rounds)
    for row, (record, turn) in zip(table.to_pylist(), rounds, strict=True):
        assert (row["data"], row["method"], row["seed"]) == (record.data, record.method, record.seed)
        assert (row["fits"], row["labels"], row["guessed"]) == (turn.fits, turn.labels, turn.guessed)
        assert (row["rmse"], tuple(row["chosen"])) == (turn.rmse, turn.chosen)


def test_a_report_of_packed_rounds_is_the_same(folder: Path, out: Path, tmp_path: Path) -> None:
    runs, origins = read(folder)
    packed, packed_origins = read(out)
    assert origins == packed_origins
    assert [replace(run, rounds=()) for run in runs] == [replace(run, rounds=()) for run in packed]
    for one, other in zip(runs, packed, strict=True):
        if one.rounds[-1].chosen == ():  # of a stopped run the last purchase cannot be known
            assert one.rounds == other.rounds
    shutil.copy(out / "rounds.parquet", tmp_path)
    write_report(tmp_path)
    for name in ("table1.md", "rounds.parquet"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()


def test_packed_rounds_of_unknown_origin(folder: Path, tmp_path: Path) -> None:
    pack(read(folder)[0], {}, tmp_path / "rounds.parquet")
    write_report(tmp_path)
    text = (tmp_path / "table1.md").read_text(encoding="utf-8")
    assert "The most accurate at equal labels is lcmd" in text and "Command" not in text


@pytest.mark.parametrize(
    "folder", sorted(RESULTS.glob("*/rounds.parquet")), ids=lambda path: path.parent.name
)
def test_published_tables_are_what_the_rounds_say(folder: Path, tmp_path: Path) -> None:
    folder = folder.parent
    with_ceiling = folder.name in ("cifar10", "fashion_mnist", "svhn")
    write_report(folder, tmp_path, ceiling=RESULTS / "all_labels" if with_ceiling else None)
    (tables,) = tmp_path.glob("*.md")
    assert tables.read_text(encoding="utf-8") == (folder / tables.name).read_text(encoding="utf-8")


def test_what_the_paper_has() -> None:
    assert paper_name("power", "acs-fw-J10-unfilled") == "ACS-FW"
    assert paper_name("power", "acs-fw-J100") == ""
    assert paper_rmse("year", "acs-fw-j10") == (12.194, 0.0596)
    assert paper_rmse("year", "maxent-i") is None
    assert paper_seconds("yacht", "maxent-sg") is None
    assert paper_rmse("elsewhere", "random") is None


def test_a_run_astray_is_not_the_best(tmp_path: Path) -> None:
    for method, value in {"a": float("nan"), "random": 2.0, "z": 1.0}.items():
        write(Log(tmp_path / f"d/{method}.jsonl"), {seed: [Round(0, 20, 0, value, 0.0)] for seed in range(2)})
    write_report(tmp_path)
    assert results(tmp_path, "d").ranked() == ["z", "random", "a"]
    assert "The most accurate at equal labels is z" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_one_lucky_run_is_not_the_best(tmp_path: Path) -> None:
    for method, errors in {"lucky": [1.0], "random": [3.0, 3.5], "z": [2.0, 2.5]}.items():
        runs = {seed: [Round(0, 20, 0, value, 0.0)] for seed, value in enumerate(errors)}
        write(Log(tmp_path / f"d/{method}.jsonl"), runs)
    write_report(tmp_path)
    found = results(tmp_path, "d")
    assert found.ranked() == ["z", "random", "lucky"]
    assert [each.method for each in standings([found])] == ["z", "random", "lucky"]
    assert "minus that of z, in pairs" in (tmp_path / "table1.md").read_text(encoding="utf-8")


def test_more_runs_of_random_make_nobody_lone(tmp_path: Path) -> None:
    for method, errors in {"random": [3.0, 3.5], "z": [2.0]}.items():
        runs = {seed: [Round(0, 20, 0, value, 0.0)] for seed, value in enumerate(errors)}
        write(Log(tmp_path / f"d/{method}.jsonl"), runs)
    assert results(tmp_path, "d").ranked() == ["z", "random"]


# Classes.

FEW = 3


def accuracy(method: str, seed: int, labels: int) -> float:
    return round(1 - error(method, seed, labels) / 20, 4)


def run_classes(method: str, seed: int, steps: list[int]) -> list[Round]:
    return [
        replace(
            turn,
            rmse=None,
            log_density=-error(method, seed, turn.labels) / 10,
            accuracy=accuracy(method, seed, turn.labels),
            calibration_error=error(method, seed, turn.labels) / 100,
        )
        for turn in run(method, seed, steps)
    ]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Few seeds of images, and as many as are needed; with the report on them."""
    folder = tmp_path_factory.mktemp("classes")
    for data, seeds in {"cifar10": FEW, "svhn": SEEDS}.items():
        for method in ("random", "lcmd", "acs-fisher", "maxent"):
            runs = {seed: run_classes(method, seed, [BATCH, BATCH]) for seed in range(seeds)}
            write(Log(folder / data / f"{method}.jsonl"), runs)
        uneven = {seed: run_classes("unfilled", seed, [5, 5, 5, 5]) for seed in range(seeds)}
        write(Log(folder / data / "unfilled.jsonl"), uneven)
    write_report(folder)
    return folder


def test_accuracy_is_shown_of_classes(classes: Path) -> None:
    table = rows(classes, "svhn", "accuracy at 40 labels", "tables.md")
    for method, refits in {"random": "2", "unfilled": "4"}.items():
        expected = cell([accuracy(method, seed, FULL) for seed in range(SEEDS)], 4)
        assert table[method] == [expected, "8", refits]
    assert (next(iter(table)), list(table)[-1]) == ("lcmd", "acs-fisher")
    table = rows(classes, "svhn", "accuracy after 2 refits", "tables.md")
    expected = cell([accuracy("unfilled", seed, 30) for seed in range(SEEDS)], 4)
    assert table["unfilled"] == [expected, "30", "8"]
    assert not (classes / "table1.md").exists()
    for file in ("tables.md", "report.html"):
        text = (classes / file).read_text(encoding="utf-8")
        assert "Which labels to buy: the classification experiments" in text
        assert "All results are test accuracy, mean ± standard error" in text
        assert not re.search("RMSE|regression|paper|Table [12]|nan", text.split("<main>")[-1])


def test_greater_accuracy_is_better(classes: Path) -> None:
    table = rows(classes, "svhn", "than random", "tables.md")
    gains = [accuracy("lcmd", seed, FULL) - accuracy("random", seed, FULL) for seed in range(SEEDS)]
    assert np.mean(gains) > 0
    assert table["lcmd"] == [f"+{cell(gains, 4)}", "8", f"{4 * 2 / 2**8:.4f}", "better than random"]
    assert table["acs-fisher"][0].startswith("-") and table["acs-fisher"][-1] == "worse than random"
    assert table["maxent"][-1] == "not significantly different from random"
    against = rows(classes, "svhn", "than lcmd", "tables.md")["random"]
    assert against[0].startswith("-") and against[-1] == "worse than lcmd"
    assert "t-test" not in section(classes, "svhn", "tables.md")


def test_few_seeds_have_a_t_test(classes: Path) -> None:
    table = rows(classes, "cifar10", "than random", "tables.md")
    found = {
        method: ttest_rel(
            [accuracy(method, seed, FULL) for seed in range(FEW)],
            [accuracy("random", seed, FULL) for seed in range(FEW)],
        ).pvalue
        for method in table
    }
    for method, p_value in zip(found, holm([*found.values()]), strict=True):
        # Three signs: at best 2 / 2^3, which Holm's correction brings to one half at least.
        assert float(table[method][2]) >= 0.5
        assert table[method][3] == ("< 0.0001" if p_value < 1e-4 else f"{p_value:.4f}")
    assert table["lcmd"][-1] == "better than random, if differences are normal"
    assert table["acs-fisher"][-1] == "worse than random, if differences are normal"
    assert table["maxent"][-1] == "not significantly different from random"
    text = section(classes, "cifar10", "tables.md")
    assert "p, Wilcoxon | p, t-test" in text
    assert "With fewer than 8 finished seeds" in text and "it assumes normal differences" in text


def test_differences_without_scatter_tell_a_t_test_nothing() -> None:
    errors = {"random": {0: 1 - 0.83, 1: 1 - 0.81}, "m": {0: 1 - 0.84, 1: 1 - 0.82}}
    (pair,) = compare_pairs(errors, "random", if_normal=True)
    assert (pair.p_if_normal, pair.verdict) == (1.0, "not significantly different from random")


def test_the_end_of_the_budget(classes: Path) -> None:
    ends = [error("unfilled", seed, FULL) for seed in range(SEEDS)]
    surprise, gaps = cell([end / 10 for end in ends], 4), cell([end / 100 for end in ends], 4)
    table = rows(classes, "svhn", "NLL", "tables.md")
    assert table["unfilled"] == [surprise, gaps, "4", "0.5", "2.5", "12"]


def test_standings_of_classes_are_by_what_is_wrong(classes: Path) -> None:
    text = (classes / "tables.md").read_text(encoding="utf-8")
    ratios = [
        np.sum([1 - accuracy("lcmd", seed, FULL) for seed in range(seeds)])
        / np.sum([1 - accuracy("random", seed, FULL) for seed in range(seeds)])
        for seeds in (FEW, SEEDS)
    ]
    mean = np.sqrt(ratios[0] * ratios[1])
    assert f"The most accurate at equal labels is lcmd: its error rate is {mean:.2f} times " in text
    assert "Error rate divided by that of random" in text
    assert f"| lcmd | {mean:.3f} | {mean:.3f} | {ratios[0]:.3f} | {ratios[1]:.3f} |" in text


def test_both_sorts_in_one_folder(folder: Path, out: Path, classes: Path, tmp_path: Path) -> None:
    for source in (folder / "yacht", folder / "boston", classes / "cifar10"):
        for path in source.glob("*.jsonl"):
            target = tmp_path / source.name / path.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    write_report(tmp_path)
    assert not (tmp_path / "tables.md").exists()
    assert section(tmp_path, "yacht").strip() == section(out, "yacht").strip()
    alone = section(classes, "cifar10", "tables.md")
    assert section(tmp_path, "cifar10").strip() == alone.strip()
    text = (tmp_path / "table1.md").read_text(encoding="utf-8")
    assert text.startswith("# Which labels to buy: the regression and classification experiments\n")
    assert "Results are test RMSE or, for classes, test accuracy, mean" in text
    # Each sort has a ranking of its own.
    assert "| method | equal labels | equal refits | boston | yacht |" in text
    assert "| method | equal labels | equal refits | cifar10 |" in text
    for row in pq.read_table(tmp_path / "rounds.parquet").to_pylist():
        of_classes = row["data"] == "cifar10"
        assert (row["rmse"] is None) is of_classes
        assert (row["accuracy"] is None) is not of_classes
        assert (row["calibration_error"] is None) is not of_classes
        if of_classes:
            assert row["accuracy"] == accuracy(row["method"], row["seed"], row["labels"])


def test_all_may_be_right(tmp_path: Path) -> None:
    for method in ("random", "lcmd"):
        runs = {seed: [Round(0, 20, 0, None, -0.1, accuracy=1.0, calibration_error=0.0)] for seed in range(2)}
        write(Log(tmp_path / f"d/{method}.jsonl"), runs)
    write_report(tmp_path)
    assert (
        rows(tmp_path, "d", "significantly different from random", "tables.md")["lcmd"][0]
        == "+0.0000 ± 0.0000"
    )
    assert "| random | 1.000 | 1.000 | 1.000 |" in (tmp_path / "tables.md").read_text(encoding="utf-8")


def test_the_axis_of_accuracies() -> None:
    values = np.array([[0.1, 0.9, 0.99], [0.1, 0.92, 1.0]])
    axes = curve_panels(
        [CurvePanel("labels", {"random": ([1, 2, 3], values)})], "accuracy", accuracy=True
    ).axes
    low, high = axes[0].get_ylim()
    assert axes[0].get_yscale() == "linear"
    assert 0.8 < low < 0.91 and high == 1


def test_bands_of_accuracies_are_within_the_picture() -> None:
    values = np.array([[0.1, 0.7, 0.8], [0.1, 0.9, 0.84]])  # (seeds, places), bands down to 0.6 and 0.78
    alone = np.array([[0.1, 0.75, 0.8]])  # no band
    curves = {"random": ([1, 2, 3], values), "lone": ([1, 2, 3], alone)}
    axes = curve_panels([CurvePanel("labels", curves)], "accuracy", accuracy=True).axes
    assert 0.5 < axes[0].get_ylim()[0] < 0.6


@pytest.mark.parametrize(("seeds", "title"), [(1, ""), (2, "bands: mean ± two standard errors")])
def test_a_figure_says_what_its_bands_are(seeds: int, title: str) -> None:
    panel = CurvePanel("labels", {"random": ([1, 2], np.arange(2.0 * seeds).reshape(seeds, 2))})
    (legend,) = curve_panels([panel], "test RMSE").legends
    assert legend.get_title().get_text() == title


def test_one_panel_where_refits_follow_labels(folder: Path) -> None:
    found = results(folder, "yacht")
    full = {name: found.runs[name] for name in ("random", "lcmd")}
    together = _curves(replace(found, runs=full), list(full), None)
    assert [axes.get_xlabel() for axes in together.figure.axes] == ["labels"]
    assert "against labels: means" in together.caption and "dotted" not in together.caption
    apart = _curves(found, ["random", "unfilled"], None)
    assert [axes.get_xlabel() for axes in apart.figure.axes] == ["labels", "refits"]
    assert "against labels and against refits: means" in apart.caption and "dotted" in apart.caption


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ([Round(1, 30, 0, 2.0, 0.0), Round(1, 30, 0, 4.0, 0.0)], "30 labels, RMSE 3.000 ± 1.000"),
        (
            [Round(1, 30, 0, None, 0.0, accuracy=value, calibration_error=0.0) for value in (0.909, 0.915)],
            "30 labels, accuracy 0.912 ± 0.003",
        ),
    ],
)
def test_what_the_bars_say(rounds: list[Round], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    simulation: Any = SimpleNamespace(first=20, batch=10, budget=10)
    runs = [("m", 0), ("m", 1)]
    with display("data", runs, simulation) as show:
        show(dict(zip(runs, rounds, strict=True)))
    assert capsys.readouterr().err == f"data m: 2 seeds, {words}\n"


def test_a_log_hears_of_the_one_furthest_behind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation: Any = SimpleNamespace(first=20, batch=10, budget=30)
    last = {
        ("ahead", 0): Round(1, 30, 0, 2.0, 0.0, chosen=range(10), bought=range(10)),
        ("behind", 0): Round(1, 20, 0, 2.0, 0.0, chosen=range(10), bought=range(10)),
        ("done", 0): Round(1, 50, 0, 2.0, 0.0),
    }
    for pause, lines in ((60.0, ""), (-1.0, "data behind: 25%, 20 labels, RMSE 2.000\n")):
        every = partial(now_and_then, every=pause)
        monkeypatch.setattr("coresift.bench.display.now_and_then", every)
        with display("data", [*last, ("not begun", 0)], simulation) as show:
            show(last)
        assert capsys.readouterr().err == "data done: 1 seeds, 50 labels, RMSE 2.000\n" + lines


def test_a_level_is_drawn_within_the_picture():
    panel = CurvePanel("labels", {"random": ([1, 2, 3], np.array([[0.2, 0.6, 0.7], [0.2, 0.62, 0.72]]))})
    axes = curve_panels([panel], "accuracy", accuracy=True, level=("all labels", 0.9)).axes[0]
    (line,) = [line for line in axes.lines if line.get_label() == "all labels"]
    assert list(line.get_ydata()) == [0.9, 0.9] and axes.get_ylim()[1] > 0.9


@pytest.mark.parametrize("count", [6, 9])
def test_all_are_drawn_where_colours_do(count: int, tmp_path: Path) -> None:
    names = ["random", *(f"own-{number}" for number in range(count - 1))]
    for name in names:
        write(
            Log(tmp_path / f"mine/{name}.jsonl"), {seed: run(name, seed, [BATCH, BATCH]) for seed in range(3)}
        )
    write_report(tmp_path)
    text = (tmp_path / "table1.md").read_text(encoding="utf-8")
    assert ("other methods are not drawn" in text) is (count > 7)


def test_packed_rounds_are_not_lost(out: Path, tmp_path: Path) -> None:
    """Where new logs stand beside what is kept of others, or another experiment's rounds are in the way."""
    kept = tmp_path / "kept"
    kept.mkdir()
    shutil.copy(out / "rounds.parquet", kept)
    before = (kept / "rounds.parquet").read_bytes()
    write(Log(kept / "yacht/own.jsonl"), {0: run("own", 0, [BATCH, BATCH])})
    for given in (kept, tmp_path / "other"):
        if given != kept:
            write(Log(given / "mine/random.jsonl"), {0: run("random", 0, [BATCH])})
        with pytest.raises(InputError, match=r"has runs of lcmd on boston, .* that would be lost"):
            write_report(given, kept)
        assert (kept / "rounds.parquet").read_bytes() == before


def test_packed_rounds_grow_with_their_run(tmp_path: Path) -> None:
    """An unfinished run may also shrink, when what it had written of a turn is dropped."""
    log, rounds = Log(tmp_path / "yacht/own.jsonl"), run("own", 0, [BATCH, BATCH])
    for turns in (rounds[:2], rounds[:1], rounds):
        log.path.unlink(missing_ok=True)
        write(log, {0: turns})
        write_report(tmp_path)
    log.path.unlink()
    write(log, {0: rounds[:2]})
    with pytest.raises(InputError, match="has runs of own on yacht"):
        write_report(tmp_path)


def test_files_that_are_no_rounds(tmp_path: Path) -> None:
    path = tmp_path / "rounds.parquet"
    path.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(InputError, match=r"rounds.parquet is damaged, or no Parquet file"):
        write_report(tmp_path)
    pq.write_table(pa.table({"data": ["a"], "seed": [1]}), path)
    with pytest.raises(InputError, match=r"holds no rounds of experiments: it has no column 'chosen'"):
        write_report(tmp_path)
    for line in ({"seed": 1, "accuracy": 1.0, "data": "a"}, {"text": "hello"}):
        (tmp_path / "some").mkdir(exist_ok=True)
        (tmp_path / "some/thing.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
        with pytest.raises(InputError, match=r"thing.jsonl holds something else than rounds"):
            write_report(tmp_path)


@pytest.mark.parametrize("name", ["/../../mine", "..", "a\\b", "a\nb", "", "x" * 300])
def test_packed_rounds_write_nowhere_else(tmp_path: Path, name: str) -> None:
    """A data set's name becomes part of a file's name."""
    (tmp_path / "results" / "curves-").mkdir(parents=True)
    (tmp_path / "mine.png").write_text("mine")
    records = [Record(name, "random", seed, tuple(run("random", seed, [10]))) for seed in range(2)]
    pack(records, {}, tmp_path / "results" / "rounds.parquet")
    with pytest.raises(InputError, match=r"cannot be a data set's name"):
        write_report(tmp_path / "results")
    assert (tmp_path / "mine.png").read_text() == "mine"


def test_names_with_dollars_are_drawn_as_they_are(tmp_path: Path) -> None:
    """For matplotlib, what stands between two of them is a formula."""
    for method in ("random", "$\\nothing$"):
        write(Log(tmp_path / "price in $, not $^" / f"{method}.jsonl"), {0: run(method, 0, [10])})
    write_report(tmp_path)
    assert (tmp_path / "curves-price in $, not $^.png").exists()


def test_a_report_is_replaced_and_not_written_into(tmp_path: Path) -> None:
    """Whoever has the old files open, or is left with them after a kill, has them whole."""
    results, kept = tmp_path / "results", tmp_path / "kept"
    kept.mkdir()
    for method in ("random", "lcmd"):
        write(Log(results / "yacht" / f"{method}.jsonl"), {0: run(method, 0, [10])})
        write_report(results)
        if method == "random":
            before = {path.name: path.read_bytes() for path in results.iterdir() if path.is_file()}
            for name in before:
                (kept / name).hardlink_to(results / name)
    assert {"report.html", "table1.md", "curves-yacht.png", "rounds.parquet"} == {*before}
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before


def test_a_mistaken_ceiling_writes_nothing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="to be the ceiling of others"):
        write_report(folder, tmp_path / "new", ceiling=folder)
    assert not (tmp_path / "new").exists()


def test_methods_keep_their_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a data set lacks some of them."""
    figures = []
    monkeypatch.setattr("coresift.bench.report.save", lambda figure, _: figures.append(figure))
    for data, names in {"one": ["alpha", "random", "zeta"], "two": ["random", "zeta"]}.items():
        for name in names:
            turns = {seed: run(name, seed, [BATCH, BATCH]) for seed in range(3)}
            write(Log(tmp_path / data / f"{name}.jsonl"), turns)
    write_report(tmp_path)
    first, second = (
        {line.get_label(): (line.get_color(), line.get_marker()) for line in figure.axes[0].lines}
        for figure in figures
    )
    assert len(first) == 3 and second == {name: first[name] for name in ("random", "zeta")}
