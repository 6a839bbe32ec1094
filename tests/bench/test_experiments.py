from __future__ import annotations

import json
import random
import re
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from coresift import STRATEGIES, InputError
from coresift.bench import runner
from coresift.bench.config import Experiment, Source
from coresift.bench.data import load_table
from coresift.bench.replay import Method, Round, step
from coresift.bench.report import write_report
from coresift.bench.runner import run_experiment
from coresift.bench.store import Log, read
from coresift.cli import app
from coresift.estimators import LaplaceRegressor, NeuralLinearRegressor
from coresift.progress import now_and_then

TABLE1 = Path(__file__).parents[2] / "experiments" / "table1.toml"


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# What an experiment is.


def test_the_papers_experiment() -> None:
    experiment = Experiment.load(TABLE1)
    assert list(experiment.data) == ["yacht", "boston", "energy", "power"]
    assert (experiment.seeds, experiment.first, experiment.batch, experiment.budget) == (40, 20, 10, 100)
    methods = {name: method.resolved() for name, method in experiment.methods.items()}
    assert methods["acs-fw"] is STRATEGIES["acs-fw"]
    assert methods["maxent-i"] is methods["maxent-sg"] is STRATEGIES["maxent"]
    assert [name for name, one in methods.items() if not getattr(one.selector, "fill", True)] == [
        name for name in methods if name.endswith("-unfilled")
    ]
    assert experiment.methods["maxent-i"] == Method("maxent", refit_every=1, impute=True)
    assert experiment.methods["acs-fw-j10"] == Method("acs-fw", num_samples=10, exact=False)
    # A table's options go over those of the model, and the paper has no calibration.
    assert experiment.options("yacht") == {"calibration_folds": 0, "batch_size": 32}
    assert experiment.options("boston") == {"calibration_folds": 0}
    for data in experiment.data:
        NeuralLinearRegressor(**experiment.options(data))._check_options()


def test_options_reach_the_simulation(tmp_path: Path) -> None:
    text = """
    methods = ["random"]
    first = 7
    batch = 3
    budget = 11
    test_share = 0.3
    [model]
    kind = "laplace"
    epochs = 9
    weight_decay = 0.5
    [data.energy]
    model.epochs = 4
    """
    experiment = Experiment.load(written(tmp_path / "one.toml", text))
    table = experiment.simulation("energy", None, "cpu", 2)
    assert (table.first, table.batch, table.budget, table.test_share, table.workers) == (7, 3, 11, 0.3, 2)
    assert isinstance(table.model, LaplaceRegressor)
    assert (table.model.epochs, table.model.weight_decay, table.model.progress) == (4, 0.5, False)
    np.testing.assert_array_equal(table.x, load_table("energy").x)


@pytest.mark.parametrize("kind", ["neural-linear", "ensemble", "dropout", "laplace"])
def test_classes_of_a_table(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From words in a file to accuracies, with every model."""
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(120, 2))
    lines = [f"{a},{b},{'above' if a + b > 0 else 'below'}" for a, b in rows.tolist()]
    (tmp_path / "sides.csv").write_text("\n".join(["a,b,side", *lines]))
    text = f"""
    data = "sides.csv"
    methods = ["margin"]
    seeds = 2
    first = 10
    batch = 5
    budget = 10
    [model]
    kind = "{kind}"
    epochs = 40
    """
    with pytest.raises(
        InputError, match=r"column 'side' of sides.csv holds words; .* task = 'classification'"
    ):
        Experiment.load(written(tmp_path / "one.toml", text)).simulation("sides", None, "cpu", 1)
    experiment = Experiment.load(written(tmp_path / "two.toml", "task = 'classification'\n" + text))
    run_experiment(experiment, tmp_path / "results")
    write_report(tmp_path / "results")
    found = pq.read_table(tmp_path / "results" / "rounds.parquet").to_pylist()
    assert [turn["labels"] for turn in found] == [10, 15, 20] * 2
    assert min(turn["accuracy"] for turn in found if turn["labels"] == 20) > 0.7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budgets = 3", "one.toml: 'budgets' is not known; did you mean 'budget'"),
        ("[model]\nepoch = 3", r"\[model\]: 'epoch' is not known; did you mean 'epochs'"),
        ("[model]\nkind = 'neural-liner'", r"model.kind: 'neural-liner' is not .* mean 'neural-linear'\?"),
        (
            "[model]\nkind = 'xyz'",
            r"model.kind: 'xyz' is not known; there are auto, dropout, ensemble, forest, gaussian-process, l",
        ),
        ("[model]\nkind = 'gaussian-process'\nwidths = [3]", r"\[model\]: 'widths' is not known"),
        ("[model]\nkind = 'laplace'\nprior_variance = 1", r"\[model\]: 'prior_variance' is not known"),
        ("[method.x]\nstrategies = 'maxent'", r"\[method.x\]: 'strategies' is not .* mean 'strategy'"),
        ("[method.x]\nstrategy = 'maxnet'", r"unknown strategy 'maxnet'; did you mean 'maxent'"),
        ("[method.acs-wf]\nfill = false", r"unknown strategy 'acs-wf'; did you mean 'acs-fw'"),
        ("[method.bald]\nfill = false", r"fill=False is for Frank-Wolfe and GIGA, not for 'bald'"),
        ("methods = ['acs-fv']", r"methods: 'acs-fv' is not known; did you mean 'acs-fw'"),
        ("[data.energy]\nmodal.epochs = 3", r"\[data.energy\]: 'modal' is not known; did you mean 'model'\?"),
        ("[data.energy]\nmodel.epocs = 3", r"\[data.energy\] model: 'epocs' is not .* did you mean 'epochs'"),
        ("data = 'energy'", "must name at least one data set and one method"),
        ("methods = ['random']", "must name at least one data set and one method"),
        ("data = energy", "one.toml is not TOML: "),
        (
            "data = 'energy'\nmethods = ['random']\nseeds = 0",
            "seeds is 0, expected an integer of at least 1",
        ),
    ],
)
def test_unknown_words(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Experiment.load(written(tmp_path / "one.toml", text))


def test_unknown_table(tmp_path: Path) -> None:
    path = written(tmp_path / "one.toml", "data = 'enrgy'\nmethods = ['random']")
    with pytest.raises(InputError, match="no table or file 'enrgy'; did you mean 'energy'"):
        run_experiment(Experiment.load(path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_data_by_name_by_list_and_by_table(tmp_path: Path) -> None:
    rest = "\nmethods = ['random']\n"
    texts = [
        "data = 'energy'" + rest,
        "data = ['energy', 'yacht']" + rest,
        rest + "[data.energy]\nmodel.epochs = 3\n[data.yacht]",
    ]
    one, two, tables = (Experiment.load(written(tmp_path / "one.toml", text)).data for text in texts)
    assert one == {"energy": Source("energy")}
    assert two == {"energy": Source("energy"), "yacht": Source("yacht")}
    assert tables == {"energy": Source("energy", model={"epochs": 3}), "yacht": Source("yacht")}


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(50, 3))
    lines = ["a,b,c", *(f"{a!r},{b!r},{c!r}" for a, b, c in x.tolist())]
    file = written(tmp_path / "mine.csv", "\n".join(lines) + "\n")
    text = f"""
    methods = ["random"]
    seeds = 1
    first = 10
    batch = 10
    budget = 10
    model.epochs = 2
    [data."{file.as_posix()}"]
    target = "b"
    """
    experiment = Experiment.load(written(tmp_path / "one.toml", text))
    table = experiment.simulation("mine", None, "cpu", 1)
    np.testing.assert_array_equal(table.x, x[:, [0, 2]])
    np.testing.assert_array_equal(table.y, x[:, 1])
    run_experiment(experiment, tmp_path / "out")
    assert [record.data for record in read(tmp_path / "out")[0]] == ["mine"]


def test_tables_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "mine.csv" for folder in ("here", "there")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("x,y\n1,2\n")
    text = f"data = ['{paths[0]}', '{paths[1]}']\nmethods = ['random']"
    with pytest.raises(InputError, match=r"here/mine.csv.*there/mine.csv.*mine"):
        Experiment.load(written(tmp_path / "one.toml", text))


def test_only_a_part() -> None:
    experiment = Experiment.load(TABLE1)
    assert experiment.only() == experiment
    part = experiment.only(["power", "yacht"], ["acs-fw"])
    assert part == replace(
        experiment,
        data={name: experiment.data[name] for name in ("power", "yacht")},
        methods={"acs-fw": Method("acs-fw")},
    )
    simulation = SMALL.simulation("energy", None, "cpu", 1)
    assert part.settings("yacht", "acs-fw", simulation) == experiment.settings("yacht", "acs-fw", simulation)
    with pytest.raises(InputError, match="--data: 'yatch' is not known; did you mean 'yacht'"):
        experiment.only(["yatch"])
    with pytest.raises(InputError, match="--methods: 'acs-fv' is not known; did you mean 'acs-fw'"):
        experiment.only(methods=["random", "acs-fv"])


# The record.


def test_a_round_is_read_as_it_was_written(tmp_path: Path) -> None:
    log = Log(tmp_path / "data" / "method.jsonl")
    log.open({"seeds": 2}, {"command": "none"})
    rounds = [
        Round(0, 20, 0, 1 / 3, -1e-17, (5, 6), (0.1, 2 / 7), (), 0.5, 0.25),
        Round(1, 20, 2, float(np.nextafter(1, 2)), -float("inf")),
    ]
    for turn in rounds:
        log.append({0: turn, 1: replace(turn, rmse=turn.rmse * 3)})
    assert log.rounds() == {0: rounds, 1: [replace(turn, rmse=turn.rmse * 3) for turn in rounds]}
    assert (log.settings(), log.made()) == ({"seeds": 2}, [{"command": "none"}])
    before = log.path.read_bytes()
    log.cut(log.rounds())
    log.cut(log.rounds(), {"command": "none"})
    assert log.path.read_bytes() == before
    log.cut(log.rounds(), {"command": "another"})
    assert log.made() == [{"command": "none"}, {"command": "another"}]
    assert [(one.data, one.method, one.seed) for one in read(tmp_path)[0]] == [
        ("data", "method", 0),
        ("data", "method", 1),
    ]


def test_a_file_without_rounds_is_begun_anew(tmp_path: Path) -> None:
    # A mistake in the model's options shows in the first fit: the mended experiment must not trip over that.
    log = Log(tmp_path / "method.jsonl")
    for text in ("", '{"settings": {"bat', '{"settings": {"batch": 1}, "made": {}}\n{"seed": 0, "fi'):
        log.path.write_text(text, encoding="utf-8")
        log.open({"batch": 2})
        assert log.settings() == {"batch": 2}
        assert log.rounds() == {}


# The runner.

SMALL = Experiment(
    data={"energy": Source("energy")},
    methods={
        # Two samples span so little that Frank-Wolfe buys fewer labels than it may; seeds end apart.
        "acs-fw-unfilled": Method("acs-fw", num_samples=2, exact=False, fill=False),
        "maxent-i": Method("maxent", refit_every=1, impute=True),
        "random": Method("random"),
    },
    model={"epochs": 5},
    seeds=3,
    batch=10,
    budget=15,
)


def timeless(rounds: Iterable[Round]) -> list[Round]:
    """All of the rounds but the seconds."""
    return [replace(turn, fit_seconds=0.0, select_seconds=0.0) for turn in rounds]


def results(out: Path) -> dict[tuple[str, str, int], list[Round]]:
    """All rounds by data set, method and seed; without the seconds."""
    return {(one.data, one.method, one.seed): timeless(one.rounds) for one in read(out)[0]}


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of SMALL, which nobody may change."""
    out = tmp_path_factory.mktemp("finished")
    run_experiment(SMALL, out)
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    for path in finished.rglob("*.jsonl"):
        target = tmp_path / "copied" / path.relative_to(finished)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return tmp_path / "copied"


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many models were trained in each call."""
    counts: list[int] = []
    fit_many: Callable[..., Any] = NeuralLinearRegressor.fit_many

    def counted(self: NeuralLinearRegressor, sets: Any, seeds: Any) -> Any:
        counts.append(len(sets))
        return fit_many(self, sets, seeds)

    monkeypatch.setattr(NeuralLinearRegressor, "fit_many", counted)
    return counts


def test_results_are_complete(finished: Path) -> None:
    found = results(finished)
    assert set(found) == {("energy", name, seed) for name in SMALL.methods for seed in range(3)}
    for (_, name, _), rounds in found.items():
        assert rounds[-1].labels == 35 and rounds[-1].chosen == ()
        assert [turn.fits for turn in rounds] == list(range(len(rounds)))
        assert len(rounds) == 16 if name == "maxent-i" else len(rounds) >= 3
    # Of a seed, all methods have the first fit in common.
    for seed in range(3):
        assert len({found["energy", name, seed][0].rmse for name in SMALL.methods}) == 1
    (made,) = Log(finished / "energy" / "random.jsonl").made()
    assert {"command", "coresift", "python", "torch", "device"} <= set(made) and made["device"] == "CPU"


def test_the_loop_in_one_piece_gives_the_same(finished: Path) -> None:
    table, recorded = SMALL.simulation("energy", None, "cpu", 1), results(finished)
    for name, method in SMALL.methods.items():
        rounds: dict[int, list[Round]] = {seed: [] for seed in range(3)}
        states = [table.begin(method, seed) for seed in range(3)]
        while states := [state for state in states if not state.done]:
            seeds = [state.seed for state in states]
            states, turns = step(table, states)
            for seed, turn in zip(seeds, turns, strict=True):
                rounds[seed].append(turn)
        for seed in range(3):
            assert timeless(rounds[seed]) == recorded["energy", name, seed]


def test_what_is_finished_is_not_repeated(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("a model was trained")

    monkeypatch.setattr(NeuralLinearRegressor, "fit_many", fail)
    before = contents(copied)
    run_experiment(SMALL, copied)
    assert contents(copied) == before
    with pytest.raises(AssertionError, match="a model was trained"):
        run_experiment(SMALL, copied.with_name("new"))


def test_an_added_method_is_all_that_runs(copied: Path, fits: list[int]) -> None:
    before = contents(copied)
    run_experiment(replace(SMALL, methods={**SMALL.methods, "maxent": Method("maxent")}), copied)
    assert fits == [3, 3, 3]
    after = contents(copied)
    assert set(after) - set(before) == {"maxent.jsonl"}
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"batch": 9}, "batch 10, now 9"),
        ({"seeds": 4}, "seeds 3, now 4"),
        ({"model": {"epochs": 6}}, "model.epochs 5, now 6"),
        ({"first": 19, "test_share": 0.25}, "first 20, now 19; test_share 0.2, now 0.25"),
        ({"methods": {"random": Method("random", num_samples=4)}}, "method.num_samples None, now 4"),
        ({"data": {"energy": Source("energy", model={"epochs": 5})}}, "data.model.epochs None, now 5"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_settings_are_named(copied: Path, changes: dict[str, Any], named: str) -> None:
    before = contents(copied)
    with pytest.raises(InputError, match=rf"jsonl was made with other settings \({named}\); name another"):
        run_experiment(replace(SMALL, **changes), copied)
    assert contents(copied) == before


def test_a_table_that_changed_is_noticed(tmp_path: Path) -> None:
    """Rows that were added would shift the splits: what is recorded does not go with them."""
    rows = np.random.default_rng(0).normal(size=(80, 3))
    path = tmp_path / "mine.csv"
    write_rows = lambda number: np.savetxt(path, rows[:number], delimiter=",", header="a,b,y", comments="")  # noqa: E731
    write_rows(70)
    experiment = replace(SMALL, data={"mine": Source(str(path))}, methods={"random": Method("random")})
    run_experiment(experiment, tmp_path / "out")
    write_rows(80)
    with pytest.raises(InputError, match=r"made with other settings \(checksum '.*', now '.*'\)"):
        run_experiment(experiment, tmp_path / "out")


def test_one_process_at_a_time(copied: Path) -> None:
    with (
        Log(copied / "energy" / "random.jsonl").locked(),
        pytest.raises(InputError, match="another process is writing to"),
    ):
        run_experiment(SMALL, copied)
    run_experiment(SMALL, copied)


def test_a_turn_that_was_written_twice_is_noticed(copied: Path) -> None:
    log = Log(copied / "energy" / "random.jsonl")
    lines = log.path.read_text().splitlines(keepends=True)
    log.path.write_text("".join(lines[:4] + lines[1:4]))
    with pytest.raises(InputError, match="share a seed: seed 0 has fit 0 after fit"):
        run_experiment(SMALL, copied)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds = '2'", "seeds is '2', expected an integer"),
        ("first = 1", "first is 1"),
        ("test_share = 0.0", "test_share is 0.0"),
        ("method = ['random']", r"method is \['random'\], expected a table"),
        ("methods = 3", "methods is 3, expected a name or a list of names"),
        ("methods = ['random', 3]", "expected a name or a list of names"),
        ("model = 'laplace'", "model is 'laplace', expected a table: options below a line"),
        ("[method]\nmine = 'maxent'", r"method\.mine is 'maxent', expected a table"),
        ("[model]\ndevice = 'cuda'", "'device' is not known"),
        ("[method.'a/b']\nstrategy = 'random'", "'a/b' is no name for a file"),
        (f"[method.{'x' * 300}]\nstrategy = 'random'", r"'xxx.* is no name for a file"),
        ("[method.mine]\nstrategy = 'maxent'\nrefit_every = 0", "refit_every is 0"),
        ("[method.mine]\nstrategy = 'maxent'\nrefit_every = 2.5", "refit_every is 2.5, expected an int"),
        ("[method.mine]\nstrategy = 'maxent'\nnum_samples = '10'", "num_samples is '10', expected an int"),
        ("[method.mine]\nstrategy = 'maxent'\nimpute = 'no'", "impute is 'no', expected true or false"),
    ],
)
def test_values_that_make_no_sense(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    methods = "" if "method" in text else "methods = 'random'\n"
    path.write_text(f"data = 'energy'\n{methods}{text}\n")
    with pytest.raises(InputError, match=message):
        Experiment.load(path)
    for text, message in (
        ("data = 3", "data is 3"),
        ("data = [3]", r"data is \[3\]"),
        ("data.yacht = 'x'", "yacht is 'x'"),
    ):
        path.write_text(f"{text}\nmethods = 'random'\n")
        with pytest.raises(InputError, match=message):
            Experiment.load(path)
    with pytest.raises(InputError, match="widths is 30"):
        replace(SMALL, model={"widths": 30}).simulation("energy", None, "cpu", 1)


def turn_of(line: str) -> int:
    return int(json.loads(line)["fits"])


@pytest.mark.parametrize("method", ["maxent-i", "acs-fw-unfilled"])
@pytest.mark.parametrize("loss", ["line", "seeds", "turns", "rounds"])
def test_what_was_torn_is_done_again(
    finished: Path, copied: Path, fits: list[int], loss: str, method: str
) -> None:
    path = copied / "energy" / f"{method}.jsonl"
    header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    last = max(turn_of(line) for line in lines)
    whole = {turn: [line for line in lines if turn_of(line) == turn] for turn in range(last + 1)}
    if loss == "line":  # the last line is cut in its middle
        kept, missing = [*lines[:-1], lines[-1][:20]], 1
    elif loss == "seeds":  # the third turn was written for one seed only
        kept, missing = [*whole[0], *whole[1], whole[2][0]], last - 1
    elif loss == "turns":
        kept, missing = [*whole[0], *whole[1]], last - 1
    else:
        kept, missing = [], last + 1
    path.write_text(header + "".join(kept), encoding="utf-8")
    assert results(copied) != results(finished)
    run_experiment(SMALL, copied)
    assert results(copied) == results(finished)
    assert path.read_text(encoding="utf-8").startswith(header)
    # No more was trained than was lost.
    assert fits == [len(whole[turn]) for turn in range(last + 1 - missing, last + 1)]


def test_training_all_methods_together(finished: Path, tmp_path: Path, fits: list[int]) -> None:
    run_experiment(SMALL, tmp_path, together=True)
    # All begin with the same labels, so with the same three models.
    assert fits[:3] == [3, 9, 9] and len(fits) == 16 and fits[-1] == 3
    together, apart = results(tmp_path), results(finished)
    assert set(together) == set(apart)
    for run, rounds in together.items():
        assert rounds[-1].labels == 35
        # Rounding differs and grows from turn to turn, so only the beginning can be compared.
        assert rounds[0].rmse == pytest.approx(apart[run][0].rmse, rel=1e-4)
    with pytest.raises(InputError, match=r"other settings \(beside "):
        run_experiment(SMALL, tmp_path)

    # It was stopped in its second turn, after it had written what some of the methods did.
    fits.clear()
    for name in SMALL.methods:
        path = tmp_path / "energy" / f"{name}.jsonl"
        header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        turns = 1 if name == "random" else 2
        path.write_text(header + "".join(line for line in lines if turn_of(line) < turns), encoding="utf-8")
    run_experiment(SMALL, tmp_path, together=True)
    assert results(tmp_path) == together
    assert len(fits) == 16 - 1  # the second turn is done again for all


def test_a_mended_mistake_is_forgotten(tmp_path: Path) -> None:
    small = replace(SMALL, methods={"random": Method("random")}, seeds=1)
    with pytest.raises(InputError, match="epochs is -1"):
        run_experiment(replace(small, model={"epochs": -1}), tmp_path)
    run_experiment(small, tmp_path)
    assert len(read(tmp_path)[0]) == 1


def test_devices_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="device is 'cuda', but torch finds no such device here; try 'cpu'"):
        run_experiment(SMALL, tmp_path / "out", device="cuda")
    assert not (tmp_path / "out").exists()


# A process that is killed.

TO_KILL = """
data = "energy"
methods = ["acs-fw-unfilled", "maxent-i", "random"]
seeds = 3
batch = 8
budget = 20
model.epochs = 30
[method.acs-fw-unfilled]
strategy = "acs-fw"
num_samples = 2
exact = false
fill = false
[method.maxent-i]
strategy = "maxent"
refit_every = 1
impute = true
"""
# Dies in a write, with only a share of what was to be written on the disk.
DIES_WRITING = """
import os, signal
from coresift.bench.store import Log

whole, left = Log.append, [{turns}]

def torn(self, rounds):
    before = self.path.stat().st_size
    whole(self, rounds)
    left[0] -= 1
    if left[0] == 0:
        os.truncate(self.path, before + int({share} * (self.path.stat().st_size - before)))
        os.kill(os.getpid(), signal.SIGKILL)

Log.append = torn
"""


def num_lines(out: Path) -> int:
    """Rounds on the disk, of all methods."""
    return sum(path.read_bytes().count(b"\n") - 1 for path in out.glob("*/*.jsonl"))


def files(out: Path) -> set[tuple[str, int, int]]:
    """What changes as soon as a process does anything: it begins by writing the logs anew."""
    return {(path.name, path.stat().st_ino, path.stat().st_size) for path in out.glob("*/*.jsonl")}


def test_killed_processes_change_nothing(tmp_path: Path, start: Callable[..., BaseProcess]) -> None:
    chance = random.Random(2026)  # of the moments; what a process is at then differs from time to time
    config, out = written(tmp_path / "one.toml", TO_KILL), tmp_path / "killed"
    run_experiment(Experiment.load(config), tmp_path / "undisturbed")
    total = num_lines(tmp_path / "undisturbed")
    words = "experiment", "run", config, "--out", out

    def kill(process: BaseProcess, num: int) -> None:
        """As soon as it works and ``num`` rounds are there, and a little later."""
        seen, deadline = files(out), time.monotonic() + 60
        while files(out) == seen or num_lines(out) < num:
            assert process.exitcode is None and time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.3))
        process.kill()

    early, late = (int(chance.uniform(0, 0.3) * total), int(chance.uniform(0.6, 0.85) * total))
    moments = sorted([early, late, *(int(chance.uniform(0, 0.85) * total) for _ in range(3))])
    for num in [*moments, None]:
        # The last one dies by itself, in a write.
        torn = DIES_WRITING.format(turns=chance.randint(1, 3), share=chance.random())
        process = start(tmp_path / "said", *words, before=torn if num is None else "")
        try:
            if num is not None:
                kill(process, num)
            process.join(60)
            assert process.exitcode == -signal.SIGKILL
        finally:
            process.kill()
    assert num_lines(out) < total
    process = start(tmp_path / "said", *words)
    process.join(60)
    assert process.exitcode == 0
    assert results(out) == results(tmp_path / "undisturbed")
    assert {path.suffix for path in out.glob("*/*")} <= {".jsonl", ".lock"}


# The command line.

COMMANDS = """
data = "energy"
methods = ["random", "maxent"]
seeds = 2
budget = 10
model.epochs = 3
"""


def called(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["experiment", *map(str, arguments)])


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    never = partial(now_and_then, every=float("inf"))  # a busy machine may be slow
    monkeypatch.setattr("coresift.bench.display.now_and_then", never)
    config = written(tmp_path / "mine.toml", COMMANDS)
    part = called("run", config, "--methods", "random", "--data", "energy", "--seeds", "3", "--out", "part")
    assert part.exit_code == 0
    assert {(one.method, one.seed) for one in read(Path("part"))[0]} == {
        ("random", seed) for seed in range(3)
    }

    ran = called("run", config)
    assert ran.exit_code == 0
    assert re.fullmatch(
        r"took \d+ s, at most [\d.]+ GB of memory.*\n"
        "results are in results/mine; read them with: coresift experiment report results/mine\n",
        ran.stdout,
    )
    assert [line.split(",")[0] for line in ran.stderr.splitlines()] == [
        "energy random: 2 seeds",
        "energy maxent: 2 seeds",
    ]
    found = results(Path("results/mine"))
    assert len(found) == 4 and found["energy", "random", 0] != found["energy", "maxent", 0]

    missing = called("report", "results/mine", "--out", "report", "--ceiling", "results/mine")
    assert missing.exit_code == 2 and 'no finished runs with first = "all"' in missing.stderr
    reported = called("report", "results/mine", "--out", "report")
    assert (reported.exit_code, reported.stdout) == (0, "written to report/report.html\n")
    page = Path("report/report.html").read_text(encoding="utf-8")
    mean = np.mean([found["energy", "maxent", seed][-1].rmse for seed in (0, 1)])
    assert f"{mean:.2f}" in page
    assert sorted(path.name for path in Path("results/mine").iterdir()) == ["energy"]

    drawn = called("figure", "linear-norms", "--out", "new/folder/norms.png")
    assert (drawn.exit_code, drawn.stdout) == (0, "written to new/folder/norms.png\n")
    assert Path("new/folder/norms.png").read_bytes().startswith(b"\x89PNG")


def test_commands_pass_their_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(runner, "run_experiment", lambda *given, **options: seen.append((*given, options)))
    config = written(tmp_path / "mine.toml", COMMANDS)
    options = ["--folder", "tables", "--device", "cuda", "--workers", "3", "--together"]
    assert called("run", config, *options, "--methods", " maxent ,", "--seed", "1").exit_code == 0
    expected = {"folder": Path("tables"), "device": "cuda", "workers": 3, "together": True, "only_seed": 1}
    assert seen == [(Experiment.load(config).only(methods=["maxent"]), Path("results/mine"), expected)]


def test_a_stopped_run_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_experiment", interrupted)
    stopped = called("run", written(tmp_path / "mine.toml", COMMANDS))
    assert (stopped.exit_code, stopped.stdout) == (130, "")
    assert stopped.stderr == "stopped; the same command continues after the last finished round\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere.toml"], "there is no file nowhere.toml"),
        (
            ["run", "mine.toml", "--methods", "maxnet"],
            "--methods: 'maxnet' is not known; did you mean 'maxent'?",
        ),
        (["run", "mine.toml", "--data", "enrgy"], "--data: 'enrgy' is not known; did you mean 'energy'?"),
        (["run", "mine.toml", "--seeds", "0"], "seeds is 0, expected an integer of at least 1"),
        (["run", "large.toml"], "20 first labels and 600 bought in batches of 10 cannot come from the 614"),
        (
            ["report", "empty"],
            "empty holds no results: there is no DATA/METHOD.jsonl or rounds.parquet in it",
        ),
        (["figure", "linear"], "there is no figure 'linear'; there are probit-batches, linear-norms"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "mine.toml", COMMANDS)
    written(tmp_path / "large.toml", COMMANDS.replace("budget = 10", "budget = 600"))
    Path("empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    failed = called(*arguments)
    assert failed.exit_code == 2
    assert failed.stdout == ""
    assert failed.stderr.startswith(f"coresift: {message}")
    assert failed.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before  # nothing is left behind


def test_numbers_of_numpy_are_numbers() -> None:
    method = Method("random", num_samples=np.int64(16))  # type: ignore[arg-type]
    assert type(method.num_samples) is int and json.dumps(method.num_samples) == "16"
