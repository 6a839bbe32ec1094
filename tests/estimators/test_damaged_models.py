"""Damaged files of saved models: one line that names the folder, and never a wrong prediction."""

import json
import random
import shutil

import numpy as np
import pytest

from coresift import InputError
from coresift.estimators import (
    EnsembleRegressor,
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
