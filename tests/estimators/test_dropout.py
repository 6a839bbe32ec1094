"""Monte Carlo dropout: one set of masks for all rows, and a network that is left as it was."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, MixtureSameFamily, Normal, Poisson

from coresift import InputError, select
from coresift.estimators.dropout import DropoutClassifier, DropoutPosterior, DropoutRegressor
from coresift.estimators.ensemble import EnsemblePosterior
from coresift.posteriors.samples import ClassSamples, FunctionPosterior, categorical, own_generator
from coresift.posteriors.softmax import SoftmaxPosterior
from coresift.spaces.likelihood import expected_log_likelihood
from coresift.testing import check_posterior

RNG = np.random.default_rng(0)
TABLE = RNG.uniform(-1, 1, (260, 3))
TARGETS = 10 + 5 * (np.sin(3 * TABLE[:, 0]) * TABLE[:, 1] + TABLE[:, 2] + 0.2 * RNG.normal(size=260))
NAMES = np.array(["low", "middle", "high"])[np.digitize(TARGETS, [8, 12])]
QUICK = {"epochs": 10, "random_state": 0, "progress": False}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed))


def network(outputs=3, rate=0.3):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(rate),
        nn.Linear(16, 16),
        nn.ReLU(),
        nn.Dropout(rate),
        nn.Linear(16, outputs),
    )


def convolutions(layer):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 6, 3), layer, nn.ReLU(), nn.Flatten(), nn.Linear(6 * 4, 3))


class Residual(nn.Module):
    """The same dropout layer twice, around which the input passes."""

    def __init__(self, in_place):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.dropout = nn.Linear(4, 4), nn.Linear(4, 3), nn.Dropout(0.5)
        self.in_place = in_place

    def forward(self, x):
        for _ in range(2):
            step = self.dropout(torch.relu(self.first(x)))
            if self.in_place:  # which torch cannot vectorise
                x = x.clone()
                x += step
            else:
                x = x + step
        return self.last(x)


@pytest.mark.parametrize(
    ("posterior", "x"),
    [
        (DropoutPosterior(network()), rows(12, 4)),
        (DropoutPosterior(network(1), "gaussian", noise_variance=0.1), rows(12, 4)),
        (DropoutPosterior(network(2), "gaussian", noise_variance=0.1), rows(12, 4)),
        (DropoutPosterior(network(), categorical), rows(12, 4)),
        (DropoutPosterior(convolutions(nn.Dropout2d(0.4))), rows(12, 1, 4, 4)),
        (DropoutPosterior(Residual(False)), rows(12, 4)),
        (DropoutPosterior(Residual(True)), rows(12, 4)),
    ],
    ids=["classes", "gaussian", "two outputs", "function", "channels", "residual", "in place"],
)
def test_contract(posterior, x):
    check_posterior(posterior, x)


def test_masks_are_the_same_for_all_chunks_bit_for_bit():
    """Small whole numbers and p = 1/2: every product and sum is exact, so only other masks could differ."""
    layers = network(rate=0.5)
    for value in [*layers.parameters(), *layers.buffers()]:
        value.data = torch.randint(-2, 3, value.shape, generator=generator()).to(value)
    layers[1] = nn.Identity()
    posterior, x = DropoutPosterior(layers), torch.randint(-3, 4, (500, 4), generator=generator()).float()
    theta = posterior.sample(20, generator())
    whole = posterior.outputs(x, theta)
    assert whole.std(0).min() > 0
    for start, stop in ((0, 1), (1, 8), (100, 500)):
        assert torch.equal(posterior.outputs(x[start:stop], theta), whole[:, start:stop])
    same = x[:1].expand(50, 4)  # nor does a row's place matter
    assert torch.equal(posterior.outputs(same, theta), whole[:, :1].expand(20, 50, 3))


def test_a_sample_is_the_network_with_units_removed():
    layers, x = network().eval(), rows(30, 4)
    posterior = DropoutPosterior(layers)
    theta = posterior.sample(40, generator())
    with torch.no_grad():
        hidden = layers[:3](x)
        (first, _), _ = posterior._record(x[:1])
        assert isinstance(first, nn.Dropout)
        for seed, outputs in zip(theta, posterior.outputs(x, theta), strict=True):
            drawn = torch.Generator().manual_seed(int(seed))
            masks = [(torch.rand(16, generator=drawn) >= 0.3) / 0.7 for _ in range(2)]
            expected = layers[7](torch.relu(layers[4](hidden * masks[0])) * masks[1])
            torch.testing.assert_close(outputs, expected)


def test_units_are_dropped_as_often_as_the_layer_says():
    posterior = DropoutPosterior(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Dropout(0.3)))
    nn.init.ones_(posterior.network[0].weight)
    outputs = posterior.outputs(torch.ones(2, 1), posterior.sample(4000, generator()))[:, :, 0]
    assert torch.equal(outputs[:, 0], outputs[:, 1])
    assert set(outputs.flatten().tolist()) == {0.0, float(torch.tensor(1 / 0.7))}
    assert abs(float((outputs == 0).float().mean()) - 0.3) < 0.03


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Dropout1d, (5, 3, 7)), (nn.Dropout2d, (5, 3, 7, 2)), (nn.Dropout3d, (5, 3, 7, 2, 2))],
)
def test_channels_are_dropped_whole(layer, shape):
    class Ones(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.dropout = nn.Parameter(torch.ones(1)), layer(0.5)

        def forward(self, x):
            return self.dropout(x * self.one)

    posterior = DropoutPosterior(Ones(), categorical)
    outputs = posterior.outputs(torch.ones(shape), posterior.sample(30, generator())).flatten(3)
    assert torch.equal(outputs, outputs[:, :1, :, :1].expand_as(outputs))  # one value a sample and channel
    assert set(outputs.flatten().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_all_or_nothing(rate):
    layers, x = network(rate=rate).eval(), rows(10, 4)
    posterior = DropoutPosterior(layers)
    outputs = posterior.outputs(x, posterior.sample(3, generator()))
    with torch.no_grad():
        expected = layers(x) if rate == 0 else layers[7].bias.expand(10, 3)
    torch.testing.assert_close(outputs, expected.expand(3, 10, 3))


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_as_it_was(training):
    layers = network().train(training)
    layers[1].eval()
    before = {name: value.clone() for name, value in layers.state_dict().items()}
    modes = [layer.training for layer in layers.modules()]
    posterior = DropoutPosterior(layers)
    first = posterior.predictive(rows(10, 4)).probs
    assert [layer.training for layer in layers.modules()] == modes
    assert not any(layer._forward_hooks for part in (layers, posterior.network) for layer in part.modules())
    for name, value in layers.state_dict().items():
        assert torch.equal(value, before[name])
    nn.init.zeros_(layers[7].weight)  # training goes on, the posterior stays
    assert torch.equal(posterior.predictive(rows(10, 4)).probs, first)


def test_vectorised_and_one_by_one_agree():
    plain, awkward = DropoutPosterior(Residual(False)), DropoutPosterior(Residual(True))
    theta = plain.sample(10, generator())
    torch.testing.assert_close(plain.outputs(rows(9, 4), theta), awkward.outputs(rows(9, 4), theta))


def test_what_comes_before_the_first_dropout_is_computed_once():
    seen = []

    class Counted(nn.Linear):
        def forward(self, x):
            seen.append(x)
            return super().forward(x)

    posterior = DropoutPosterior(nn.Sequential(Counted(4, 8), nn.Dropout(), nn.Linear(8, 3)))
    posterior.outputs(rows(50, 4), posterior.sample(100, generator()))
    assert [len(x) for x in seen] == [1, 50]  # one row to see the shapes, then all


def test_predictive_is_the_mixture():
    x = rows(8, 4)
    classes = DropoutPosterior(network(), num_predictive=30)
    each = classes.conditional(x, classes.sample(30, own_generator()))
    torch.testing.assert_close(classes.predictive(x).probs, each.probs.mean(0))
    gaussians = DropoutPosterior(network(2), "gaussian", noise_variance=0.5, num_predictive=30)
    each, predictive = (
        gaussians.conditional(x, gaussians.sample(30, own_generator())),
        gaussians.predictive(x),
    )
    assert isinstance(predictive, Independent) and isinstance(predictive.base_dist, Normal)
    torch.testing.assert_close(predictive.mean, each.mean.mean(0))
    torch.testing.assert_close(predictive.variance, 0.5 + each.mean.var(0, correction=0))


@pytest.mark.parametrize(
    ("posterior", "outputs"),
    [
        (DropoutPosterior(network(), num_predictive=30), 3),
        (DropoutPosterior(network(1), "gaussian", noise_variance=0.5, num_predictive=30), 1),
        (DropoutPosterior(network(2), "gaussian", noise_variance=0.5, num_predictive=30), 2),
        (DropoutPosterior(network(1), lambda y: Poisson(y[..., 0].exp()), num_predictive=30), 1),
        (SoftmaxPosterior(rows(3, 4), rows(3, 4).abs(), rows(2, 3, 4), num_predictive=30), 3),
        (EnsemblePosterior(tuple(network().eval() for _ in range(30)), categorical), 3),
        (FunctionPosterior(lambda x, w: categorical(x @ w), list(rows(30, 4, 3))), 3),
        (FunctionPosterior(lambda x, w: Normal(x @ w, 1.0), list(rows(30, 4))), 1),
    ],
)
@pytest.mark.parametrize("size", [1, 7])
def test_predictive_holds_a_block_of_rows_at_a_time(posterior, outputs, size, monkeypatch):
    x, seen, conditional = rows(20, 4), [], type(posterior).conditional
    whole = posterior.predictive(x)

    def watched(self, x, theta):
        seen.append(len(x))
        return conditional(self, x, theta)

    monkeypatch.setattr(type(posterior), "conditional", watched)
    monkeypatch.setattr("coresift.limits.PREDICTIVE_NUMBERS", 30 * outputs * size)
    blocks = posterior.predictive(x)
    assert max(seen) == size and sum(seen) == 20
    assert type(blocks) is type(whole) and blocks.batch_shape == whole.batch_shape
    for y in whole.sample((5,)):
        torch.testing.assert_close(blocks.log_prob(y), whole.log_prob(y))
    if isinstance(posterior, EnsemblePosterior):
        assert posterior.predictive(x[:0]).batch_shape == (0,)


def test_tables_of_predictions_are_read_a_block_at_a_time(monkeypatch):
    probs, seen, checked = torch.rand(20, 30, 3).softmax(-1), [], ClassSamples._checked
    whole = ClassSamples(30).predictive(probs)

    def watched(self, x):
        seen.append(len(x))
        return checked(self, x)

    monkeypatch.setattr(ClassSamples, "_checked", watched)
    monkeypatch.setattr("coresift.limits.PREDICTIVE_NUMBERS", 30 * 3 * 7)
    torch.testing.assert_close(ClassSamples(30).predictive(probs).probs, whole.probs)
    assert max(seen) == 7 and sum(seen) == 20
    # Scores read fewer rows at a time, too.
    monkeypatch.setattr("coresift.limits.BLOCK_NUMBERS", 30 * 3 * 4)
    seen.clear()
    assert len(select(probs=probs.transpose(0, 1), strategy="maxent", budget=2)) == 2 and max(seen) == 4


def test_counts():
    posterior = DropoutPosterior(network(1), lambda outputs: Poisson(outputs[..., 0].exp()))
    assert isinstance(posterior.predictive(rows(8, 4)), MixtureSameFamily)
    assert len(select(rows(60, 4), posterior=posterior, budget=5)) == 5


@pytest.mark.parametrize("strategy", ["acs-fw", "bald", "acs-lcmd", "k-center", "badge"])
def test_select(strategy):
    posterior = DropoutPosterior(network())
    batch = select(
        rows(200, 4), posterior=posterior, budget=10, strategy=strategy, labelled=rows(5, 4, seed=1)
    )
    assert len(set(batch.index.tolist())) == 10


def test_select_images_and_targets():
    images = DropoutPosterior(convolutions(nn.Dropout(0.2)))
    assert len(select(rows(80, 1, 4, 4), posterior=images, budget=6)) == 6
    targets = DropoutPosterior(network(1), "gaussian", noise_variance=0.1)
    for strategy in ("acs-fw", "bald", "acs-lcmd", "k-center"):
        assert len(select(rows(80, 4), posterior=targets, budget=6, strategy=strategy)) == 6


def test_trained_with_dropout_it_is_less_sure_away_from_its_labels():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    x = torch.linspace(-1, 1, 100)[:, None]
    optimiser = torch.optim.Adam(layers.parameters(), 1e-2)
    for _ in range(300):
        optimiser.zero_grad()
        (layers(x) - torch.sin(3 * x)).square().mean().backward()
        optimiser.step()
    posterior = DropoutPosterior(layers, "gaussian", noise_variance=0.01)
    inside, outside = posterior.predictive(torch.tensor([[0.0], [4.0]])).variance
    assert outside > 3 * inside


def test_errors():
    plain = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(InputError, match="no dropout layer"):
        DropoutPosterior(plain)
    with pytest.raises(InputError, match="expected 'classes', 'gaussian' or a function"):
        DropoutPosterior(network(), "class")
    for options in ({"likelihood": "gaussian"}, {"noise_variance": 1.0}):
        with pytest.raises(InputError, match="needs noise_variance=, and no other"):
            DropoutPosterior(network(), **options)
    with pytest.raises(InputError, match="expected a positive number"):
        DropoutPosterior(network(), "gaussian", noise_variance=0.0)
    with pytest.raises(InputError, match="num_predictive is 0"):
        DropoutPosterior(network(), num_predictive=0)
    with pytest.raises(InputError, match="needs an output for each class"):
        DropoutPosterior(network(1)).predictive(rows(2, 4))

    class Unused(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.dropout = nn.Dropout()

    with pytest.raises(InputError, match="calls none"):
        DropoutPosterior(Unused()).predictive(rows(2, 4))

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.dropout = nn.Linear(4, 3), nn.Dropout()

        def forward(self, x):
            return self.dropout(self.linear(x).T).T

    with pytest.raises(InputError, match="along the first axis"):
        DropoutPosterior(Mixed()).predictive(rows(2, 4))


def test_a_saturated_softmax_rules_no_class_out():
    layers = network()
    layers[7].weight.data.mul_(1e4)
    posterior, x = DropoutPosterior(layers), rows(5, 4)
    each = posterior.conditional(x, posterior.sample(50, generator()))
    assert float(each.probs.min()) > 0
    assert bool(torch.isfinite(expected_log_likelihood(posterior.predictive(x), each)).all())


def own_layers(inputs):
    return nn.Sequential(nn.Linear(inputs, 12), nn.Tanh(), nn.Dropout(0.3), nn.Linear(12, 12), nn.ReLU())


def estimators(**options):
    options = QUICK | options
    return [(DropoutRegressor(**options), TARGETS), (DropoutClassifier(**options), NAMES)]


@pytest.mark.parametrize("kind", [0, 1])
def test_estimators_keep_the_contract_and_select(kind):
    model, y = estimators()[kind]
    posterior = model.fit(TABLE[:100], y[:100]).posterior_
    check_posterior(posterior, torch.tensor(TABLE[:15]), tolerance=1e-5)
    for strategy in ("acs-fw", "bald", "acs-lcmd"):
        batch = select(TABLE, posterior=posterior, budget=8, strategy=strategy, labelled=TABLE[:100])
        assert len(set(batch.index.tolist())) == 8


@pytest.mark.parametrize("kind", [0, 1])
def test_moved_to_a_device(kind):
    model, y = estimators(epochs=3)[kind]
    expected, posterior = model.fit(TABLE, y).predict(TABLE), model.posterior_
    model.posterior_ = posterior.to("cpu")
    assert model.posterior_.network is not posterior.network
    assert np.array_equal(model.predict(TABLE), expected)
    # A device without memory shows that what is moved is the copy.
    assert next(posterior.to("meta").network.parameters()).is_meta
    assert np.array_equal(model.predict(TABLE), expected)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("options", [{}, {"where": "last"}])
def test_estimators_learn(kind, options):
    model, y = estimators(**{"epochs": 100} | options)[kind]
    assert model.fit(TABLE[:200], y[:200]).score(TABLE[200:], y[200:]) > 0.7


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("options", [{}, {"where": "last"}, {"network": own_layers}])
def test_estimators_saved_and_loaded(kind, options, tmp_path):
    model, y = estimators(**options)[kind]
    model.fit(TABLE, y).save(tmp_path)
    again = type(model).load(tmp_path, network=model.network)
    assert again.get_params() == model.get_params()
    if kind:
        np.testing.assert_array_equal(again.predict_proba(TABLE), model.predict_proba(TABLE))
        np.testing.assert_array_equal(again.predict(TABLE), model.predict(TABLE))
    else:
        for loaded, fitted in zip(again.predict(TABLE, True), model.predict(TABLE, True), strict=True):
            np.testing.assert_array_equal(loaded, fitted)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("where", ["all", "last"])
def test_several_sets_of_different_sizes_together(kind, where):
    model, y = estimators(epochs=100, where=where)[kind]
    many = model.fit_many([(TABLE[:90], y[:90]), (TABLE[90:200], y[90:200])], seeds=[3, 4])
    assert all(one.score(TABLE[200:], y[200:]) > 0.7 for one in many)


def test_where_dropout_layers_are():
    def count(**options):
        network = DropoutClassifier(**QUICK, **options).fit(TABLE[:50], NAMES[:50]).posterior_.network
        return [layer.p for layer in network.modules() if isinstance(layer, nn.Dropout)]

    assert count() == [0.1, 0.1]
    assert count(where="last", dropout=0.2) == [0.2]
    assert count(network=own_layers) == [0.3, 0.1]
    assert count(network=own_layers, where="last") == [0.1]


def test_the_same_seed_gives_the_same_network_and_leaves_the_global_one_alone():
    state = torch.get_rng_state()
    first, second = (DropoutRegressor(**QUICK).fit(TABLE, TARGETS).predict(TABLE) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def test_several_outputs():
    y = np.stack([TARGETS, -TABLE[:, 0]], 1)
    mean, deviation = DropoutRegressor(**QUICK).fit(TABLE, y).predict(TABLE, return_std=True)
    assert mean.shape == deviation.shape == y.shape


def test_estimator_errors():
    for rate in (0.0, 1.0, -0.5):
        with pytest.raises(InputError, match="expected a probability between 0 and 1"):
            DropoutRegressor(**QUICK, dropout=rate).fit(TABLE, TARGETS)
    with pytest.raises(InputError, match="num_predictive is 0"):
        DropoutRegressor(**QUICK, num_predictive=0).fit(TABLE, TARGETS)
    with pytest.raises(InputError, match="where is 'first'"):
        DropoutRegressor(**QUICK, where="first").fit(TABLE, TARGETS)


def test_features_that_have_died_are_spoken_of():
    layers = nn.Sequential(nn.Linear(3, 30), nn.ReLU())
    with pytest.warns(UserWarning, match="only 0 of the network's 30 features") as seen:
        DropoutClassifier(layers, **QUICK | {"epochs": 30}, learning_rate=100.0).fit(TABLE, NAMES)
    assert seen[0].filename == __file__
