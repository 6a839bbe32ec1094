"""What every estimator built on networks does with what it is given: shapes, bytes, options."""

import inspect
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from coresift import InputError
from coresift.estimators import (
    DropoutClassifier,
    DropoutRegressor,
    EnsembleClassifier,
    EnsembleRegressor,
    LaplaceClassifier,
    LaplaceRegressor,
    NeuralLinearClassifier,
    NeuralLinearRegressor,
)
from coresift.estimators.dropout import DropoutPosterior
from coresift.estimators.ensemble import EnsemblePosterior
from coresift.estimators.networks import Augment, ResNet18, Stack
from coresift.estimators.networks.layers import Standardise
from coresift.estimators.networks.optimisers import Adam
from coresift.pool import ArrayPool
from coresift.posteriors.network import NetworkPosterior
from coresift.posteriors.samples import categorical
from coresift.posteriors.softmax import SoftmaxPosterior

CLASSIFIERS = [NeuralLinearClassifier, EnsembleClassifier, DropoutClassifier, LaplaceClassifier]
REGRESSORS = [NeuralLinearRegressor, EnsembleRegressor, DropoutRegressor]


def images(num: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Bytes (n, 3, 9, 7), dark ones and bright ones; and which."""
    random = np.random.default_rng(0)
    y = np.arange(num) % 2
    noise = random.integers(0, 128, (num, 3, 9, 7), dtype=np.uint8)
    return noise + (100 * y[:, None, None, None]).astype(np.uint8), y


def quick(kind, **options):
    few = {"num_members": 2} if kind in (EnsembleClassifier, EnsembleRegressor) else {}
    few |= {"network": partial(ResNet18, width=4, features=8), "epochs": 2, "random_state": 0} | options
    return kind(**few, progress=False)


@pytest.mark.parametrize("divisor", [1, 255.0])
def test_channels_come_first(divisor):
    x, y = images()
    last = np.moveaxis(x, 1, 3)
    model = quick(NeuralLinearClassifier)
    for rows in (last / divisor if divisor > 1 else last, torch.as_tensor(last / divisor)):
        with pytest.raises(InputError, match=r"shape \(40, 9, 7, 3\), expected .* np.moveaxis\(X, 3, 1\)"):
            model.fit(rows, y)
    model.fit(x, y)
    with pytest.raises(InputError, match=r"np.moveaxis\(X, 3, 1\)"):
        model.predict(last / divisor)


def test_feature_maps_and_sequences_are_not_images():
    """Many channels of few pixels are no channels at the end; numbers without a height are sequences."""
    random, y = np.random.default_rng(0), images()[1]
    for shape in ((16, 4, 4), (16, 1, 1), (8, 12)):
        x = random.normal(size=(40, *shape))
        network = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 4), nn.Tanh())
        assert quick(NeuralLinearClassifier, network=network).fit(x, y).predict(x).shape == (40,)


def test_grey_images_need_a_channel():
    x, y = images()
    with pytest.raises(InputError, match=r"shape \(40, 9, 7\), expected .* X\[:, None\]"):
        quick(NeuralLinearClassifier).fit(x[:, 0], y)
    assert quick(NeuralLinearClassifier).fit(x[:, 0][:, None], y).n_features_in_ == 1


def test_one_image_alone():
    x, y = images()
    model = quick(NeuralLinearClassifier).fit(x, y)
    with pytest.raises(InputError, match=r"shape \(3, 9, 7\), expected .*; one image alone is X\[None\]"):
        model.predict(x[0])
    assert model.predict(x[0][None]).shape == (1,)


def test_images_need_a_network():
    x, y = images()
    with pytest.raises(InputError, match=r"shape \(40, 3, 9, 7\), but .* pass network=ResNet18"):
        NeuralLinearClassifier().fit(x, y)


@pytest.mark.parametrize("kind", [NeuralLinearClassifier, NeuralLinearRegressor])
def test_bytes_are_checked_like_numbers(kind):
    x, y = images()
    model = quick(kind)
    for num in (0, 1):
        with pytest.raises(ValueError, match=f"{num} images, expected at least 2"):
            model.fit(x[:num], y[:num])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(x, y[:-1])
    with pytest.raises(ValueError, match="contains NaN"):
        model.fit(x, np.where(y == 0, np.nan, 1.0))
    with pytest.raises(ValueError, match="requires y"):
        model.fit(x, None)
    with pytest.raises(ValueError, match="0 images, expected at least 1"):
        model.fit(x, y).predict(x[:0])


@pytest.mark.parametrize("kind", REGRESSORS)
def test_several_outputs_of_bytes(kind):
    x, y = images()
    assert quick(kind).fit(x, np.stack([y, 1.0 - y], 1)).predict(x).shape == (40, 2)


def test_bytes_as_they_lie_in_memory(tmp_path):
    """Mirrored, read-only or in a file: no warning, which would be an error here, and the same numbers."""
    x, y = images()
    np.save(tmp_path / "x.npy", x)
    fixed = x.copy()
    fixed.flags.writeable = False
    mirrored = x[:, :, :, ::-1].copy()[:, :, :, ::-1]
    assert mirrored.strides[3] < 0
    expected = quick(NeuralLinearClassifier).fit(x, y).predict_proba(x)
    for same in (mirrored, fixed, np.load(tmp_path / "x.npy", mmap_mode="r")):
        assert (quick(NeuralLinearClassifier).fit(same, y).predict_proba(same) == expected).all()


@pytest.mark.parametrize("kind", [*CLASSIFIERS, LaplaceRegressor])
def test_a_posterior_says_what_rows_it_is_made_for(kind):
    x, y = images()
    posterior = quick(kind).fit(x, y).posterior_
    with pytest.raises(InputError, match=r"shape \((1|40), 9, 7, 3\), expected \(any, 3, any, any\)"):
        posterior.predictive(torch.as_tensor(x).movedim(1, 3))
    table = quick(kind, network=None).fit(x[:, :, 0, 0], y).posterior_
    with pytest.raises(InputError, match=r"shape \((1|40), 1\), expected \(any, 3\)"):
        table.predictive(torch.zeros(40, 1))


@pytest.mark.parametrize("kind", [*CLASSIFIERS, LaplaceRegressor])
def test_images_of_other_units(kind, tmp_path):
    """Bytes, and bytes as numbers, are what was trained on; the same between 0 and 1 would look all dark."""
    x, y = images()
    model = quick(kind).fit(x, y)
    model.save(tmp_path)
    for one in (model, kind.load(tmp_path, network=model.network)):
        for same in (x, x.astype(np.float32), np.zeros_like(x, dtype=np.float64)):
            one.predict(same)
        one.posterior_.predictive(torch.as_tensor(x).float())
        for rows in (x / 255, (x / 255).astype(np.float32)):
            with pytest.raises(InputError, match=r"trained on bytes, 0 to 255, .* multiply by 255"):
                one.predict(rows)
            with pytest.raises(InputError, match=r"trained on bytes"):
                one.posterior_.predictive(torch.as_tensor(rows))
    quick(kind).fit(x / 255, y).predict(x / 255)


@pytest.mark.parametrize("kind", [*CLASSIFIERS, LaplaceRegressor])
def test_bytes_for_a_network_of_numbers_between_0_and_1(kind, tmp_path):
    """They would all look glaring, in whatever type they come and however dark."""
    x, y = images()
    model = quick(kind).fit(x / 255, y)
    model.save(tmp_path)
    dark, resized = np.zeros_like(x), x + 0.5
    dark[0, 0, 0, 0] = 7
    spot = x / 255
    spot[0, 0, 0, 0] = 1.8  # what sharpening may make of an edge is in order
    for one in (model, kind.load(tmp_path, network=model.network)):
        for rows in (x, x.astype(np.float32), dark, resized):
            with pytest.raises(InputError, match=r"between 0 and 1; these go up to .*: divide by 255"):
                one.predict(rows)
        one.predict(spot)
        one.predict(np.zeros_like(x))


@pytest.mark.parametrize("kind", [NeuralLinearClassifier, EnsembleClassifier, LaplaceRegressor])
def test_fields_of_a_wide_range_may_be_small(kind):
    """Numbers that are not whole were no bytes: one field of them may lie between 0 and 1."""
    x, y = images()
    fields = x * 0.37
    model = quick(kind).fit(fields, y)
    small = fields[:1] / fields[:1].max()
    together = model.predict(np.concatenate([small, fields]))
    np.testing.assert_allclose(model.predict(small)[0], together[0], rtol=1e-5, atol=1e-5)


def test_units_are_not_looked_at_in_training(monkeypatch):
    """A GPU would wait for the answer in each step, and steps that are recorded cannot."""
    x, y = images()
    seen, stack = [], Stack.__call__

    def step(self, *rows):
        monkeypatch.setattr(Standardise, "_check_units", lambda *_: seen.append("in a step"))
        outputs = stack(self, *rows)
        monkeypatch.setattr(Standardise, "_check_units", lambda *_: seen.append("elsewhere"))
        return outputs

    monkeypatch.setattr(Stack, "__call__", step)
    quick(NeuralLinearClassifier).fit(x, y).predict(x)
    assert set(seen) == {"elsewhere"}


def test_mini_batches_of_one_row():
    x, y = images()
    rows = x[:, :, 0, 0].astype(float)
    for kind in (EnsembleRegressor, EnsembleClassifier, NeuralLinearClassifier, NeuralLinearRegressor):
        assert np.isfinite(quick(kind, network=None, batch_size=1).fit(rows, y).predict(rows)).all()


@pytest.mark.parametrize("kind", [EnsembleClassifier, LaplaceClassifier])
def test_small_sets_are_passed_over_more_often(kind, monkeypatch):
    rates, step = [], Adam.step
    monkeypatch.setattr(
        Adam, "step", lambda self, *rest: (rates.append(float(rest[1])), step(self, *rest))[1]
    )
    x, y = images()
    rows = x[:, :, 0, 0].astype(float)
    options = {"network": None, "schedule": "one-cycle", "batch_size": 20, "least_steps": 30}
    models = quick(kind, **options).fit_many([(rows, y), (rows[:20], y[:20])], seeds=[0, 1])
    assert len(rates) == 60  # 15 epochs of two steps, and 30 of one
    assert 3 <= np.argmax(rates) < 10 and rates[29] < 0.1 * max(rates)
    assert all(np.isfinite(model.predict_proba(rows)).all() for model in models)


def test_options_are_arguments_with_names():
    """Also those that come from a class above; `inspect` and `help` show them with their defaults."""
    parameters = inspect.signature(EnsembleRegressor).parameters
    assert set(parameters) == set(EnsembleRegressor().get_params())
    positional = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert positional == ["network"]
    decays = {kind: kind().weight_decay for kind in (EnsembleRegressor, EnsembleClassifier)}
    assert decays == {EnsembleRegressor: 1.0, EnsembleClassifier: 1e-2}
    assert clone(EnsembleRegressor(epochs=7)).set_params(num_members=3).get_params()["epochs"] == 7
    with pytest.raises(TypeError, match="unexpected keyword argument 'epoch'"):
        EnsembleRegressor(epoch=7)


def test_an_estimator_is_told_of_no_option_that_it_lacks():
    x, y = images()
    rows = x[:, :, 0, 0].astype(float)
    with pytest.raises(InputError, match=r"training failed: .* smaller learning_rate") as raised:
        quick(EnsembleRegressor, network=None, learning_rate=1e30, epochs=9).fit(rows, y)
    assert "prior_variance" not in str(raised.value)


def test_a_network_gets_few_large_images_at_a_time():
    """What a wide network computes on the way takes many times the memory of the images."""
    sizes = []

    class Means(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x):
            sizes.append(len(x))
            return x.mean((2, 3)) * self.scale

    head = SoftmaxPosterior(torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(0, 2, 3))
    posterior = NetworkPosterior(Means(), head)
    for side, most in ((8, 1024), (224, 27)):
        sizes.clear()
        pixels = np.ones((1030 if side == 8 else 60, 3, side, side), dtype=np.uint8)
        features = posterior.map_pool(ArrayPool(pixels)).rows
        assert features.shape == (len(pixels), 3) and max(sizes) == most
        images = torch.from_numpy(pixels)
        torch.testing.assert_close(posterior.features(images), features)
        for several in (
            EnsemblePosterior((Means(), Means()), categorical),
            DropoutPosterior(nn.Sequential(Means(), nn.Dropout(0.5)), num_predictive=2),
        ):
            sizes.clear()
            assert several.predictive(images).batch_shape == (len(pixels),) and max(sizes) == most


@pytest.mark.parametrize("kind", [NeuralLinearClassifier, EnsembleClassifier])
def test_fitting_shows_a_network_few_large_images_at_a_time(kind, monkeypatch):
    """In evaluation too, where what a network makes of labelled images is looked at after training."""
    monkeypatch.setattr("coresift.posteriors.network.NETWORK_NUMBERS", 7 * 3 * 9 * 7)
    sizes = []

    class Watched(ResNet18):
        def forward(self, x):
            if not self.training:
                sizes.append(len(x))
            return super().forward(x)

    x, y = images()
    quick(kind, network=partial(Watched, width=4, features=8), epochs=30, batch_size=20).fit(x, y)
    assert max(sizes) == 7


class Frame(nn.Module):
    """Paints an edge black in training; the range of what it is given goes to a list, where there is one."""

    def __init__(self, seen=None):
        super().__init__()
        self.seen = seen

    def __deepcopy__(self, memo):
        return Frame(self.seen)  # all copies write to one list

    def forward(self, x):
        if not self.training:
            return x
        if self.seen is not None:
            self.seen.append((float(x.min()), float(x.max())))
        return torch.cat([torch.zeros_like(x[..., :1]), x[..., 1:]], -1)


@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize("unit", [1, 255.0])
def test_augmenting_sees_images_as_they_are(kind, unit):
    """Of bytes and of the same as numbers the same is made, so training goes the same way."""
    x, y = images()
    # Side by side, modules are vectorised, and cannot look at values.
    options = {"epochs": 3} | ({"num_members": 1} if kind is EnsembleClassifier else {})
    expected = quick(kind, augment=Frame(), **options).fit(x, y).predict_proba(x)
    seen, rows = [], x / unit
    found = quick(kind, augment=Frame(seen), **options).fit(rows, y).predict_proba(rows)
    assert seen and all(low >= 0 and 200 < high * unit < 228 for low, high in seen)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    if kind is NeuralLinearClassifier:  # dropout's noise is another one side by side
        for model in quick(kind, augment=Frame(), **options).fit_many([(rows, y)] * 2, [0, 0]):
            np.testing.assert_allclose(model.predict_proba(rows), expected, atol=1e-3)


def test_augmenting_several_members():
    x, y = images()
    model = quick(EnsembleClassifier, augment=Augment(1), precision="bfloat16", epochs=3).fit(x, y)
    assert len(model.posterior_.members) == 2 and model.predict_proba(x).shape == (40, 2)
    plain = quick(EnsembleClassifier, epochs=3).fit(x, y)
    assert np.abs(plain.predict_proba(x) - model.predict_proba(x)).max() > 1e-3


def test_augmenting_keeps_a_large_offset():
    """Rows are evaluated in double precision until the offset is taken out."""
    x, y = images()
    rows = 1e7 + x / 255
    model = quick(NeuralLinearClassifier, augment=Frame(), epochs=0).fit(rows, y)
    scale = model.posterior_.network[0]
    assert scale.mean.dtype == torch.float64 and scale(torch.as_tensor(rows)).std() > 0.9
