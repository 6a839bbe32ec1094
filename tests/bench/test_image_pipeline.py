"""The image experiments in miniature: bytes in, crops and flips, a small ResNet, batches, measures."""

import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from coresift import InputError
from coresift.bench.batch_map import BatchMap
from coresift.bench.config import Experiment, Source
from coresift.bench.measures import calibration_error, measure
from coresift.bench.replay import Method, Round, Simulation, run, step
from coresift.bench.report import write_report
from coresift.bench.runner import run_experiment
from coresift.bench.statistics import nearest_distance
from coresift.bench.store import Log
from coresift.bench.suites import Suite, is_suite
from coresift.cli import app
from coresift.estimators import DropoutClassifier, NeuralLinearClassifier
from coresift.estimators.networks import Augment, ResNet18
from coresift.estimators.networks.layers import Standardise
from coresift.estimators.networks.optimisers import Adam
from coresift.posteriors.network import NetworkPosterior


def pictures(num: int, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    """Bytes (n, 3, 12, 12) with a bright square, a bar or a cross, somewhere in the noise; and which."""
    random = np.random.default_rng(seed)
    x, y = random.integers(0, 120, (num, 3, 12, 12), dtype=np.uint8), random.integers(0, 3, num)
    for image, kind in zip(x, y, strict=True):
        row, column = random.integers(1, 6, 2)
        part = image[:, row : row + 5, column : column + 5]
        if kind == 0:
            part[...] = 230
        elif kind == 1:
            part[:, 2] = 230
        else:
            part[:, 2], part[:, :, 2] = 230, 230
    return torch.from_numpy(x), y


EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SMALL = {
    "network": partial(ResNet18, width=4, features=8),
    "epochs": 6,
    "schedule": "one-cycle",
    "learning_rate": 1e-2,
    "weight_decay": 0.01,
    "batch_size": 32,
    "least_steps": 120,
    "augment": Augment(padding=1),
    "progress": False,
}
QUICK = {**SMALL, "least_steps": 20}  # where a model need not be good


@pytest.mark.parametrize("strategy", ["acs-fw", "predictive-lcmd", "badge", "k-center", "bald"])
def test_rounds_of_labelling(strategy):
    x, y = pictures(420)
    model = NeuralLinearClassifier(**{**SMALL, "least_steps": 80}, precision="bfloat16", num_predictive=20)
    budget = 20 if strategy == "acs-fw" else 40  # it takes several batches, because they are not filled
    simulation = Simulation(x, y, model, first=80, batch=budget, budget=budget, num_test=120)
    method = Method(strategy, num_samples=10, exact=False, fill=strategy != "acs-fw")
    assert (simulation.test_rows(0) == np.arange(300, 420)).all()
    turns = [turn for (turn,) in run(simulation, [simulation.begin(method, seed=0)])]
    last = turns[-1]
    assert last.labels == 80 + budget and last.rmse is None
    assert last.accuracy is not None and last.accuracy > 0.6
    assert last.error == 1 - last.accuracy
    assert last.calibration_error is not None and 0 <= last.calibration_error < 0.4
    assert -1.0 < last.log_density < 0
    bought = [row for turn in turns for row in turn.bought]
    assert len(set(bought)) == budget and max(bought) < 300


def test_channels_come_first():
    x, y = pictures(40)
    with pytest.raises(InputError, match=r"shape \(40, 12, 12, 3\), expected .* np.moveaxis\(X, 3, 1\)"):
        NeuralLinearClassifier(**SMALL).fit(np.moveaxis(x.numpy(), 1, 3), y)


def test_dropout_on_images():
    x, y = pictures(300, 1)
    model = DropoutClassifier(**SMALL, where="last", random_state=1).fit(x[:200], y[:200])
    assert model.score(x[200:], y[200:]) > 0.8


def test_bytes_are_standardised_like_numbers():
    x, _ = pictures(30, 2)
    of_bytes, of_numbers = Standardise.of(x), Standardise.of(x.double())
    torch.testing.assert_close(of_bytes.mean, of_numbers.mean)
    torch.testing.assert_close(of_bytes.std, of_numbers.std)
    torch.testing.assert_close(of_bytes(x), of_numbers(x.double()))
    assert Standardise.of(torch.full((4, 2, 3, 3), 7, dtype=torch.uint8)).std.eq(1).all()


def test_crops_and_flips_of_bytes():
    torch.manual_seed(0)
    image = torch.arange(1, 31, dtype=torch.uint8).view(1, 1, 5, 6).expand(400, 2, 5, 6)
    found = Augment(padding=2)(image)
    assert found.shape == image.shape and found.dtype == torch.uint8
    padded = torch.nn.functional.pad(image[0, 0], [2] * 4)
    flipped = torch.nn.functional.pad(image[0, 0].flip(1), [2] * 4)
    crops = {
        (source[row : row + 5, column : column + 6].numpy().tobytes())
        for source in (padded, flipped)
        for row in range(5)
        for column in range(5)
    }
    seen = {one[0].contiguous().numpy().tobytes() for one in found}
    assert seen <= crops and len(seen) > 45  # of 50
    assert torch.equal(found[:, 0], found[:, 1])  # channels move together
    only = Augment(padding=0, flip=False)(image)
    assert torch.equal(only, image)


def test_channels_are_not_last_in_memory_on_a_cpu():
    """There, the gradient of strided filters of size 1 may write where it should not."""
    images = torch.zeros(4, 3, 8, 8)
    assert Augment(padding=1)(images).is_contiguous()
    network, seen = ResNet18(3, width=4), []
    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_pre_hook(lambda _, x: seen.append(x[0].is_contiguous()))
    network(images.contiguous(memory_format=torch.channels_last))
    assert len(seen) == 20 and all(seen)


def test_small_sets_are_passed_over_more_often(monkeypatch):
    seen = []
    step = Adam.step
    monkeypatch.setattr(Adam, "step", lambda self, *rest: (seen.append(float(rest[1])), step(self, *rest))[1])
    x, y = pictures(64, 3)
    NeuralLinearClassifier(**SMALL).fit(x, y)  # two steps an epoch
    assert len(seen) == 120
    peak = int(np.argmax(seen))
    assert 20 <= peak <= 28 and seen[0] < 0.3 * seen[peak] and seen[-1] < 0.02 * seen[peak]


def test_calibration_error():
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(200_000, generator=generator)
    right = torch.rand(200_000, generator=generator) < confidence
    assert calibration_error(confidence, right) < 0.006
    assert calibration_error(torch.full((10,), 0.9), torch.zeros(10, dtype=torch.bool)) == pytest.approx(0.9)


def test_a_class_that_was_never_met_is_wrong():
    x, y = pictures(200, 4)
    train = np.flatnonzero(y[:120] != 2)
    order = np.concatenate([train, np.arange(120, 200)])
    simulation = Simulation(
        x[order],
        y[order],
        NeuralLinearClassifier(**QUICK),
        first=len(train) - 5,
        batch=5,
        budget=5,
        num_test=80,
    )
    (turn, *_) = next(run(simulation, [simulation.begin(Method("random"), 0)]))
    assert turn.accuracy is not None and turn.accuracy <= (y[120:] != 2).mean()


def test_an_unmet_class_is_as_unlikely_as_what_models_call_impossible():
    predictive = torch.distributions.Categorical(probs=torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]]))
    found = measure(predictive, np.array(["a", "c", "z"]), np.array(["a", "c"]))
    assert found["log_density"] == pytest.approx(np.log([0.5, 0.75, 1e-6]).mean())
    assert found["accuracy"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("images", [True, False])
def test_few_images_stay_on_the_device(images, monkeypatch):
    """A small table is quicker on the CPU, a network for images is not; "cpu:0" stands for a GPU."""
    moved, to = [], NetworkPosterior.to
    monkeypatch.setattr(
        NetworkPosterior, "to", lambda self, device: (moved.append(device), to(self, device))[1]
    )
    x, y = pictures(80)
    options = {**SMALL, "least_steps": 0, "epochs": 1, "device": "cpu:0"}
    rows = x if images else x[:, :, 0, 0].double().numpy()
    if not images:
        options |= {"network": None, "augment": None}
    model = NeuralLinearClassifier(**options)
    simulation = Simulation(rows, y, model, first=20, batch=5, budget=5, num_test=20)
    step(simulation, [simulation.begin(Method("maxent"), 0)])
    assert moved == ([] if images else ["cpu"])


def test_map_of_batches(tmp_path, monkeypatch):
    x, y = pictures(420)
    simulation = Simulation(
        x, y, NeuralLinearClassifier(**SMALL), first=40, batch=10, budget=10, num_test=120
    )
    methods = {name: Method(name) for name in ("maxent", "k-center")}
    found = BatchMap.of(simulation, methods, budget=20, shown=100)
    assert len(found.features) == len(found.classes) <= 140
    for name, batch in found.batches.items():
        assert len(set(batch.tolist())) == 20
        assert found.spread[name] == pytest.approx(nearest_distance(found.features[batch]) / found.random[0])
    assert found.spread["k-center"] > 1 > found.spread["maxent"]
    found.save(tmp_path / "map.npz")
    with np.load(tmp_path / "map.npz") as arrays:
        assert (arrays["batch maxent"] == found.batches["maxent"]).all()
    titles = [axes.get_title("left") for axes in found.picture().axes]
    assert titles == ["maxent", "k-center"]
    few = replace(found, features=found.features[:25], classes=np.array(list("abcde") * 5))
    assert len(replace(few, batches={"maxent": np.arange(4)}).picture().axes) == 1
    dropout = replace(simulation, model=DropoutClassifier(**SMALL, where="last"))
    monkeypatch.setattr(DropoutClassifier, "fit_many", lambda *_: pytest.fail("trained for nothing"))
    with pytest.raises(InputError, match="a model's features, but DropoutClassifier has not both"):
        BatchMap.of(dropout, methods, budget=20)


def test_a_small_batch_is_compared_with_small_ones():
    """Few points lie further apart than many, whoever chose them."""
    x, y = pictures(420)
    model = NeuralLinearClassifier(**{**SMALL, "least_steps": 30})
    simulation = Simulation(x, y, model, first=40, batch=10, budget=10, num_test=120)
    methods = {
        "k-center": Method("k-center"),
        "few": Method("acs-fw", num_samples=6, exact=False, fill=False),
    }
    found = BatchMap.of(simulation, methods, budget=100, shown=300, num_draws=1000)
    few = found.batches["few"]
    assert len(few) < 40 and len(found.features) == 260
    random = np.random.default_rng(1)
    draws = [
        nearest_distance(found.features[random.choice(260, len(few), replace=False)]) for _ in range(1000)
    ]
    assert found.spread["few"] == pytest.approx(
        nearest_distance(found.features[few]) / np.mean(draws), rel=0.1
    )
    assert np.mean(draws) > 1.3 * found.random[0]
    full = BatchMap.of(simulation, {"k-center": Method("k-center")}, budget=100, shown=300, num_draws=1000)
    assert (full.spread["k-center"], full.random) == (found.spread["k-center"], found.random)


def test_a_rare_class_is_among_the_first_labels():
    """With a model of one class a run could not go on, and would stop there each time."""
    x, _ = pictures(120)
    for y in (np.arange(120) == 60, np.where(np.arange(120) < 117, "common", "rare")):
        simulation = Simulation(x, y, NeuralLinearClassifier(**SMALL), first=5, batch=5, budget=5, num_test=2)
        for seed in range(3):
            labelled = simulation.begin(Method("random"), seed).labelled
            assert len(set(labelled)) == 5 and len(set(y[list(labelled)])) == 2
    alone = replace(simulation, y=np.zeros(120, dtype=int))
    assert len(alone.begin(Method("random"), 0).labelled) == 5


def test_classes_are_imputed():
    """Until a batch is complete, its labels are the model's own: the likeliest classes."""
    x, y = pictures(140)
    words = np.array(["square", "bar", "cross"])[y]
    simulation = Simulation(
        x, words, NeuralLinearClassifier(**QUICK), first=60, batch=4, budget=4, num_test=40
    )
    state = simulation.begin(Method("maxent", refit_every=2, impute=True), 0)
    (turn,) = next(run(simulation, [state]))
    assert turn.bought == () and len(turn.guesses) == 2 and set(turn.guesses) <= {"square", "bar", "cross"}
    turns = [turn for (turn,) in run(simulation, [state])]
    assert [turn.guessed for turn in turns] == [0, 2, 0] and len(turns[1].bought) == 4


def test_all_labels_at_once():
    x, y = pictures(200, 5)
    simulation = Simulation(x, y, NeuralLinearClassifier(**QUICK), first=150, batch=1, budget=0, num_test=50)
    (turns,) = run(simulation, [simulation.begin(Method("random"), 0)])
    assert turns[0].labels == 150 and turns[0].chosen == ()


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda path: path.stem)
def test_experiments_can_be_read(path):
    parts = Suite.load(path).parts.values() if is_suite(path) else [Experiment.load(path)]
    assert all(part.data and part.methods for part in parts)


@pytest.fixture
def small_experiment(tmp_path):
    """On 240 images of one's own in a file, two methods, two seeds and two rounds."""
    x, y = pictures(360, 6)
    train, test, words = x[:240].numpy(), x[240:].numpy(), np.array(["square", "bar", "cross"])[y]
    np.savez(tmp_path / "mine.npz", x=train, y=words[:240], test_x=test, test_y=words[240:])
    config = tmp_path / "small.toml"
    config.write_text(
        f"data = '{tmp_path / 'mine.npz'}'\n"
        """
        methods = ["random", "k-medoids"]
        seeds = 2
        first = 40
        batch = 20
        budget = 20
        [model]
        width = 4
        padding = 1
        flip = true
        epochs = 2
        schedule = "one-cycle"
        batch_size = 32
        least_steps = 5
        """
    )
    return Experiment.load(config)


def test_an_experiment_from_files_to_the_report(small_experiment, tmp_path):
    run_experiment(small_experiment, tmp_path / "results")
    whole = replace(small_experiment.only(methods=["random"]), seeds=1, first="all", budget=0)
    run_experiment(whole, tmp_path / "whole")
    write_report(tmp_path / "whole")
    text = (tmp_path / "whole" / "tables.md").read_text(encoding="utf-8")
    assert "accuracy at 240 labels" in text and "refits, where" not in text and "times as often" not in text
    assert not list((tmp_path / "whole").glob("*.png"))

    write_report(tmp_path / "results", ceiling=tmp_path / "whole")
    text = (tmp_path / "results" / "tables.md").read_text(encoding="utf-8")
    (end,) = Log(tmp_path / "whole" / "mine" / "random.jsonl").rounds()[0]
    assert f"With all 240 labels, accuracy is {end.accuracy:.4f}." in text
    with pytest.raises(InputError, match="no finished runs with first"):
        write_report(tmp_path / "whole", ceiling=tmp_path / "results")
    assert "accuracy at 60 labels" in text and "k-medoids" in text
    settings = Log(tmp_path / "results" / "mine" / "random.jsonl").settings()
    assert settings["model"]["width"] == 4 and settings["model"]["flip"] is True


def test_more_seeds_and_methods_later(small_experiment, tmp_path, monkeypatch):
    trained, torn = [], tmp_path / "torn"
    fit_many = NeuralLinearClassifier.fit_many

    def counted(self, sets, seeds):
        trained.extend(len(x) for x, _ in sets)
        return fit_many(self, sets, seeds)

    def rounds(folder):
        found = {name: Log(folder / "mine" / f"{name}.jsonl").rounds() for name in ("random", "k-medoids")}
        return {
            (name, seed): [replace(turn, fit_seconds=0.0, select_seconds=0.0) for turn in turns]
            for name, seeds in found.items()
            for seed, turns in sorted(seeds.items())
        }

    monkeypatch.setattr(NeuralLinearClassifier, "fit_many", counted)
    run_experiment(small_experiment, tmp_path / "whole")
    # What the first method began with is not trained again for the second.
    assert trained == [40, 60, 40, 60, 60, 60]

    trained.clear()
    run_experiment(replace(small_experiment.only(methods=["random"]), seeds=1), torn)
    log = torn / "mine" / "random.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))  # killed in its second fit
    run_experiment(small_experiment, torn)
    run_experiment(replace(small_experiment, seeds=1), torn)  # nothing is lost by that
    assert trained == [40, 60, 60, 40, 60, 40, 60, 60]
    assert rounds(torn) == rounds(tmp_path / "whole")
    run_experiment(small_experiment, tmp_path / "together", together=True)
    assert rounds(tmp_path / "together") == rounds(tmp_path / "whole")

    # Two processes share the seeds, and their files are joined.
    trained.clear()
    joined = tmp_path / "joined" / "mine"
    joined.mkdir(parents=True)
    for seed in (1, 0):
        run_experiment(small_experiment, tmp_path / f"seed{seed}", only_seed=seed)
        for part in (tmp_path / f"seed{seed}" / "mine").glob("*.jsonl"):
            with (joined / part.name).open("a") as file:
                file.write(part.read_text())
    assert trained == [40, 60, 60] * 2
    run_experiment(small_experiment, joined.parent)
    assert trained == [40, 60, 60] * 2 and rounds(joined.parent) == rounds(tmp_path / "whole")
    with pytest.raises(InputError, match="no seed 2 among 2"):
        run_experiment(small_experiment, tmp_path / "none", only_seed=2)


def test_images_that_were_split_anew(small_experiment, tmp_path):
    """The same images in the same order, but others of them for testing, are another experiment."""
    first = replace(small_experiment.only(methods=["random"]), seeds=1)
    run_experiment(first, tmp_path / "results")
    with np.load(tmp_path / "mine.npz") as arrays:
        x, y = (np.concatenate([arrays[name], arrays[f"test_{name}"]]) for name in "xy")
    np.savez(tmp_path / "mine.npz", x=x[:120], y=y[:120], test_x=x[120:], test_y=y[120:])
    with pytest.raises(InputError, match="num_test"):
        run_experiment(first, tmp_path / "results")


def test_published_images_have_the_settings_that_they_had(small_experiment):
    """Their split is published, and results with them are to be opened again."""
    simulation = small_experiment.simulation("mine", None, "cpu", 1)
    own = small_experiment.settings("mine", "random", simulation)
    published = replace(small_experiment, data={"mine": Source("svhn")})
    assert own["num_test"] == 120
    assert set(own) - set(published.settings("mine", "random", simulation)) == {"num_test"}


def test_joined_files_must_have_one_setting(tmp_path):
    log, other = Log(tmp_path / "a.jsonl"), Log(tmp_path / "b.jsonl")
    log.open({"batch": 1}, {"command": "one"})
    other.open({"batch": 2}, {"command": "two"})
    joined = Log(tmp_path / "c.jsonl")
    joined.path.write_text(log.path.read_text() + other.path.read_text())
    assert [made["command"] for made in joined.made()] == ["one", "two"]
    with pytest.raises(InputError, match="different settings"):
        joined.settings()


def test_joined_files_must_have_different_seeds_and_whole_lines(tmp_path):
    log = Log(tmp_path / "a.jsonl")
    log.open({"batch": 1})
    for fits in range(2):
        log.append({0: Round(fits, 10 + fits, 0, None, -1.0, accuracy=0.5)})
    text = log.path.read_text()
    log.path.write_text(2 * text)
    with pytest.raises(InputError, match="share a seed: seed 0 has fit 0 after fit 1"):
        log.rounds()
    log.path.write_text(text[:-20] + text)
    with pytest.raises(InputError, match="is damaged; if files were joined"):
        log.rounds()


def test_a_map_from_the_command_line(small_experiment, tmp_path, monkeypatch):
    """Of the paper's methods, where the file has any."""
    monkeypatch.chdir(tmp_path)
    made, shown = BatchMap.of, []
    monkeypatch.setattr(
        BatchMap, "of", lambda run, *rest: (shown.append(run.model.progress), made(run, *rest))[1]
    )
    found = CliRunner().invoke(app, ["experiment", "map", "small.toml", "--budget", "10"])
    monkeypatch.setattr(BatchMap, "of", made)
    assert shown == [True]  # no other bar is there while it is trained
    assert found.exit_code == 0 and "mine k-medoids: nearest-neighbour distance" in found.output
    assert (tmp_path / "batches-mine.png").exists() and (tmp_path / "batches-mine.npz").exists()
    config = tmp_path / "small.toml"
    config.write_text(config.read_text().replace("k-medoids", "maxent"))
    found = CliRunner().invoke(app, ["experiment", "map", "small.toml", "--budget", "10"])
    assert "mine maxent" in found.output and "mine random" not in found.output
    shutil.copy("mine.npz", "yours.npz")
    config.write_text(re.sub("data = .*", "data = ['mine.npz', 'yours.npz']", config.read_text()))
    found = CliRunner().invoke(app, ["experiment", "map", "small.toml", "--out", "both.png"])
    assert found.exit_code == 2 and "one file cannot hold the maps of mine, yours" in found.output
    with pytest.raises(InputError, match="budget is 1, expected from 2 to the 200 points"):
        BatchMap.of(small_experiment.simulation("mine", None, "cpu", 1), {}, budget=1)


def test_files_that_are_not_there_or_not_for_images(small_experiment, tmp_path):
    config = tmp_path / "small.toml"
    text = config.read_text()
    config.write_text(text.replace("mine.npz", "yours.npz"))
    with pytest.raises(InputError, match=r"there is no file '.*yours\.npz', seen from"):
        Experiment.load(config)
    for old, new, message in (
        ("width = 4", "width = 0", r"\[model\] width is 0, expected an integer of at least 1"),
        ("padding = 1", "padding = '4'", r"\[model\] padding is '4', expected an integer of at least 0"),
        ("flip = true", "flip = 'no'", r"\[model\] flip is 'no', expected true or false"),
        ("seeds = 2", "test_share = 0.3", "images have a test set of their own; leave out test_share"),
    ):
        config.write_text(text.replace(old, new))
        with pytest.raises(InputError, match=message):
            Experiment.load(config)
    path = next(line for line in text.splitlines() if line.startswith("data")).split("'")[1]
    config.write_text(text.replace(f"data = '{path}'", "") + f"[data.'{path}']\ntarget = 'y'\n")
    with pytest.raises(InputError, match="'target' is not known; there are model"):
        Experiment.load(config)
