"""Saved models: what is read is what was written; damage is told in one line, and never predicts wrongly."""

import json
import os
import random
import shutil
import sys

import numpy as np
import pytest
import torch

from coresift import InputError
from coresift.estimators import (
    EnsembleClassifier,
    EnsembleRegressor,
    GaussianProcessRegressor,
    LaplaceClassifier,
    NeuralLinearClassifier,
    NeuralLinearRegressor,
)

X = np.random.default_rng(0).normal(size=(30, 3))
Y = X[:, 0] + X[:, 1] ** 2
ODD = [None, -1, 0, 1.5, "x", [], {}, True, 10**30, float("nan"), [1, "a"], 2]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    options = {"epochs": 2, "random_state": 0, "progress": False}
    models = [
        NeuralLinearRegressor(num_members=2, calibration_folds=0, **options).fit(X, Y),
        NeuralLinearClassifier(**options).fit(X, np.where(Y > 0, "up", "down")),
        EnsembleRegressor(num_members=2, **options).fit(X, np.stack([Y, -Y], 1)),
        LaplaceClassifier(**options).fit(X, Y > 0),
        GaussianProcessRegressor(random_state=0, progress=False).fit(X, Y),
    ]
    folders = [tmp_path_factory.mktemp("model") for _ in models]
    for model, folder in zip(models, folders, strict=True):
        model.save(folder)
    return list(zip(models, folders, strict=True))


def weights(folder):
    return next(folder.glob("*.safetensors"))


def inner_keys(value, key=()):
    """The way to every value inside a description."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield (*key, name)
        yield from inner_keys(inner, (*key, name))


def damage(folder, others, draw):
    """Cut a file short, flip bits of it, change a key or a value of the description, or swap files."""
    description = folder / "model.json"
    file = draw.choice([description, weights(folder)])
    data = bytearray(file.read_bytes())
    kind = draw.choice(["cut", "flip", "key", "value", "value", "swap", "gone"])
    if kind == "cut":
        file.write_bytes(data[: draw.randrange(len(data))])
    elif kind == "flip":
        for _ in range(20):
            data[draw.randrange(min(len(data), 300))] ^= 1 << draw.randrange(8)
        file.write_bytes(data)
    elif kind in ("key", "value"):
        described = json.loads(description.read_text())
        *way, last = draw.choice(list(inner_keys(described)))
        inner = described
        for name in way:
            inner = inner[name]
        if kind == "value":
            inner[last] = draw.choice(ODD)
        else:
            inner[f"{last}_"] = inner.pop(last)
        description.write_text(json.dumps(described))
    elif kind == "swap":
        file.write_bytes(draw.choice([weights, lambda other: other / "model.json"])(others).read_bytes())
    else:
        file.unlink()


@pytest.mark.parametrize("seed", range(40))
def test_damage_is_told_in_one_line(saved, tmp_path, seed):
    draw = random.Random(seed)
    (model, folder), (_, others) = draw.sample(saved, 2)
    shutil.copytree(folder, tmp_path / "model")
    damage(tmp_path / "model", others, draw)
    try:
        loaded = type(model).load(tmp_path / "model")
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:  # what was damaged is of no use but to train anew
        assert np.array_equal(loaded.predict(X), model.predict(X))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_features_in": 10**9}, "n_features_in is 1000000000, but the weights are for others"),
        ({"feature_names_in": ["a"]}, "feature_names_in does not hold 3 names"),
        ({"targets": {"classes": ["down", "up"], "type": "<U2"}}, "classes of type <U2 do not fit"),
        ({"targets": {"classes": ["up", "down"], "type": "<U4"}}, "classes of type <U4 do not fit"),
        ({"targets": {"classes": ["a", "b", "c"], "type": "<U1"}}, "the weights are for other targets"),
        ({"options": {"pace": 1}}, "unexpected keyword argument 'pace'"),
        ({"class": None}, "holds a None, not a NeuralLinearClassifier"),
    ],
)
def test_descriptions_that_do_not_fit(saved, tmp_path, change, message):
    shutil.copytree(saved[1][1], tmp_path / "model")
    file = tmp_path / "model" / "model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=message):
        NeuralLinearClassifier.load(tmp_path / "model")


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", "[" * 100_000, '{"class": '])
def test_descriptions_that_are_none(saved, tmp_path, text):
    shutil.copytree(saved[1][1], tmp_path / "model")
    (tmp_path / "model" / "model.json").write_text(text)
    with pytest.raises(InputError, match=r"cannot load the model in .*; check that its files are complete"):
        NeuralLinearClassifier.load(tmp_path / "model")


@pytest.mark.parametrize("version", [1, 99, "2", None])
def test_a_model_of_another_format(version, tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 2))
    NeuralLinearRegressor(epochs=2, progress=False).fit(x, x[:, 0]).save(tmp_path)
    file = tmp_path / "model.json"
    described = json.loads(file.read_text())
    if version is None:  # as it was before the format had a version
        del described["format"]
    else:
        described["format"] = version
    file.write_text(json.dumps(described))
    with pytest.raises(
        InputError, match=rf"has format {version!r}, .* reads format 2; fit the model and save"
    ):
        NeuralLinearRegressor.load(tmp_path)


def states_while(action, folder):
    """Run ``action``, and return all contents that ``folder`` had between two calls meanwhile."""
    states, seen = [], []

    def look(*_):
        with os.scandir(folder) as entries:
            now = sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in entries)
        if now not in seen:
            seen.append(now)
            states.append({path.name: path.read_bytes() for path in folder.iterdir()})

    sys.setprofile(look)
    try:
        action()
    finally:
        sys.setprofile(None)
    look()
    return states


def test_a_kill_while_saving_leaves_the_old_model_or_the_new_one(tmp_path):
    x, few = np.random.default_rng(0).normal(size=(20, 2)), {"epochs": 2, "progress": False}
    old = NeuralLinearRegressor(**few, random_state=0).fit(x, x[:, 0])
    new = NeuralLinearRegressor(**few, random_state=1).fit(x, x[:, 0] * 100)
    folder, copy = tmp_path / "model", tmp_path / "copy"
    old.save(folder)

    found = []
    for state in states_while(lambda: new.save(folder), folder):
        copy.mkdir()
        for name, content in state.items():
            (copy / name).write_bytes(content)
        loaded = NeuralLinearRegressor.load(copy).predict(x)
        found.append([np.allclose(loaded, model.predict(x)) for model in (old, new)])
        shutil.rmtree(copy)
    assert len(found) > 3 and [True, False] in found and found[-1] == [False, True]
    assert all(any(alike) for alike in found)
    assert len(list(folder.iterdir())) == 2


def test_saved_weights_that_are_damaged_or_missing(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 2))
    model = NeuralLinearRegressor(epochs=2, progress=False).fit(x, x[:, 0])
    model.save(tmp_path)
    (weights,) = tmp_path.glob("weights-*")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 64
    weights.write_bytes(content)
    with pytest.raises(InputError, match=r"weights-.* is damaged"):
        NeuralLinearRegressor.load(tmp_path)
    weights.unlink()
    with pytest.raises(InputError, match=r"only a part of a model: it has no weights-"):
        NeuralLinearRegressor.load(tmp_path)
    described = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps(described | {"weights": "../x"}))
    with pytest.raises(InputError, match=r"weights is '\.\./x'"):
        NeuralLinearRegressor.load(tmp_path)
    model.save(tmp_path)  # over what is damaged
    np.testing.assert_allclose(NeuralLinearRegressor.load(tmp_path).predict(x), model.predict(x))


@pytest.mark.parametrize("kind", [NeuralLinearRegressor, EnsembleClassifier])
def test_saved_whatever_the_device_and_the_seed_are_given_as(kind, tmp_path):
    few = {"num_members": 2, "epochs": 2, "progress": False}
    model = kind(**few, device=torch.device("cpu"), random_state=np.random.RandomState(0)).fit(X, Y > 0)
    model.save(tmp_path)
    for device in (None, torch.device("cpu")):
        again = kind.load(tmp_path, device=device)
        assert (again.predict(X) == model.predict(X)).all()
        assert str(again.device) == "cpu" and again.random_state is None
