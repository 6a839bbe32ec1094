"""The trainer: each of S networks trained side by side ends as if it were trained alone."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from coresift import InputError
from coresift.estimators.networks import MLP, LabelledStack, ResNet18, Stack, Trainer
from coresift.estimators.networks import trainer as trainer_module
from coresift.estimators.networks.labelled import take_rows
from coresift.estimators.networks.losses import CrossEntropy, ExactLastLayer, GaussianLoss
from coresift.estimators.networks.losses import SquaredError as LaplaceError
from coresift.estimators.networks.optimisers import Adam, SingleAdam, optimiser
from coresift.posteriors import BayesianLinearRegression


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def labelled(size, seed, outputs=1):
    x = normal(size, 3, seed=seed)
    return x, torch.sin(2 * x[:, :1]) * torch.arange(1, outputs + 1) + 0.1 * normal(
        size, outputs, seed=seed + 100
    )


def networks(count, factory=lambda: MLP(3, (8, 5))):
    torch.manual_seed(0)
    return [factory().double() for _ in range(count)]


def generators(seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


class SquaredError:
    """A plain loss on mini-batches."""

    whole, alone, recordable = False, True, False

    def __call__(self, outputs, data, index, share):
        return ((outputs[..., :1] - take_rows(data.y, index)).square().sum(-1) * share).sum(1)


def train(members, sets, seeds, objective, **options):
    stack = Stack(members, dtype=torch.float64)
    options = {"epochs": 15, "batch_size": None, **options}
    Trainer(**options, progress=False).train(stack, objective, LabelledStack.of(sets), generators(seeds))
    return stack


@pytest.mark.parametrize("objective", [ExactLastLayer(), ExactLastLayer(alone=True), SquaredError()])
@pytest.mark.parametrize("sizes", [(20, 20, 20), (20, 33, 7, 16)], ids=["equal", "ragged"])
@pytest.mark.parametrize("batch_size", [None, 6, 1000])
def test_side_by_side_equals_alone(objective, sizes, batch_size):
    """Weights and batch norm's statistics, to 1e-8 in float64, with sets and mini-batches of any sizes."""
    sets = [labelled(size, seed) for seed, size in enumerate(sizes)]
    members, seeds = networks(len(sizes)), range(len(sizes))
    together = train(members, sets, seeds, objective, batch_size=batch_size)
    for position in seeds:
        alone = train(
            [members[position]], [sets[position]], [seeds[position]], objective, batch_size=batch_size
        )
        assert not torch.equal(alone.flat[0], Stack([members[position]]).flat[0])
        torch.testing.assert_close(together.flat[position], alone.flat[0], rtol=0, atol=1e-8)
        for name, value in alone.buffers.items():
            torch.testing.assert_close(together.buffers[name][position], value[0], rtol=0, atol=1e-8)


def plain_network():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))


def norm_network():
    return nn.Sequential(nn.Linear(3, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))


@pytest.mark.parametrize("factory", [plain_network, norm_network])
@pytest.mark.parametrize("sizes", [(14, 14, 14), (20, 9, 14)])
@pytest.mark.parametrize("objective", [ExactLastLayer(), ExactLastLayer(alone=True), SquaredError()])
def test_any_module_side_by_side(factory, sizes, objective):
    """A module without a batched form of its own, with and without batch norm, ragged sizes included."""
    sets = [labelled(size, seed) for seed, size in enumerate(sizes)]
    members = networks(3, factory)
    together = train(members, sets, range(3), objective)
    for position in range(3):
        alone = train([members[position]], [sets[position]], [position], objective)
        torch.testing.assert_close(together.flat[position], alone.flat[0], rtol=0, atol=1e-8)


@pytest.mark.parametrize("sizes", [(14, 14), (14, 9)])
def test_a_frozen_batch_norm_is_kept(sizes):
    """What it learned elsewhere are its statistics too, and in training it goes by them."""

    def pretrained():
        network = norm_network()
        network[1].requires_grad_(False)
        network[1].running_mean.fill_(3.0)
        network[1].num_batches_tracked.fill_(70)
        return network

    sets = [labelled(size, seed) for seed, size in enumerate(sizes)]
    members = networks(2, pretrained)
    for epochs in (5, 100):
        stack = train(copy.deepcopy(members), sets, range(2), SquaredError(), epochs=epochs)
        for name in ("running_mean", "running_var", "num_batches_tracked", "weight"):
            expected = members[0].state_dict()[f"1.{name}"]
            assert (stack.member(0).state_dict()[f"1.{name}"] == expected).all()
            assert (stack.member(1).state_dict()[f"1.{name}"] == expected).all()
    direct = copy.deepcopy(members[0]).eval()(sets[0][0])
    fresh = Stack(members[:1], dtype=torch.float64)
    torch.testing.assert_close(fresh(sets[0][0][None])[0], direct)


@pytest.mark.parametrize("sizes", [(14, 14), (14, 9)])
def test_after_few_steps_batch_norm_knows_the_labelled_rows(sizes, monkeypatch):
    """Its running statistics would still be half those that it began with; after many they are kept."""

    def noisy():
        return nn.Sequential(norm_network(), nn.Dropout(0.5))

    sets = [labelled(size, seed) for seed, size in enumerate(sizes)]
    for at_a_time in (1024, 5):
        monkeypatch.setattr("coresift.posteriors.network.NETWORK_ROWS", at_a_time)
        stack = train(networks(2, noisy), sets, range(2), SquaredError(), epochs=3)
        for position, (x, _) in enumerate(sets):
            network = stack.member(position)[0]
            parts = network[0](x).tensor_split(max(1, len(x) // at_a_time))
            mean = torch.stack([part.mean(0) for part in parts]).mean(0)
            variance = torch.stack([part.var(0) for part in parts]).mean(0)
            torch.testing.assert_close(network[1].running_mean, mean)
            torch.testing.assert_close(network[1].running_var, variance)
            assert network[1].momentum == 0.1
    settled = []
    monkeypatch.setattr(Stack, "_settle_one", lambda self, position, x: settled.append((position, len(x))))
    for epochs in (0, 24, 25):  # of two steps each
        train(networks(2, noisy), sets, range(2), SquaredError(), epochs=epochs, batch_size=7)
    assert settled == [(0, 14), (1, sizes[1])]


def test_the_batched_form_is_the_network():
    """`MLP.stacked` against the modules themselves in training mode, and `member` in evaluation mode."""
    members, x = networks(3), normal(3, 12, 3)
    stack = Stack(members, dtype=torch.float64)
    direct = torch.stack([copy.deepcopy(member).train()(x[s]) for s, member in enumerate(members)])
    torch.testing.assert_close(stack(x), direct)
    rows = torch.full((3, 12), 1 / 12, dtype=torch.float64)
    torch.testing.assert_close(stack(x, rows), direct)
    stack.settle(x)
    for position in range(3):
        torch.testing.assert_close(stack.member(position)(x[position]), direct[position])


def test_padding_changes_nothing():
    members, x = networks(2), normal(2, 12, 3)
    rows = torch.zeros(2, 12, dtype=torch.float64)
    rows[0], rows[1, :7] = 1 / 12, 1 / 7
    outputs = Stack(members, dtype=torch.float64)(x, rows)
    torch.testing.assert_close(outputs[1, :7], copy.deepcopy(members[1]).train()(x[1, :7]))


def test_training_follows_torch_adam():
    """One network, whole batches: the weights of a loop with torch's own layers, optimiser and schedule."""
    x, y = labelled(20, 0)
    (member,) = networks(1)
    stack = train([member], [(x, y)], [0], SquaredError(), batch_size=20, weight_decay=0.5, epochs=25)
    network = copy.deepcopy(member).train()
    decayed = [layer.weight for layer in network.linear]
    others = [value for value in network.parameters() if all(value is not one for one in decayed)]
    groups = [{"params": decayed, "weight_decay": 0.5}, {"params": others}]
    optimiser = torch.optim.Adam(groups, lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 25, 1e-5)
    for _ in range(25):
        optimiser.zero_grad()
        (network(x)[:, :1] - y).square().mean().backward()
        optimiser.step()
        schedule.step()
    direct = torch.cat([value.detach().flatten() for value in network.parameters()])
    torch.testing.assert_close(stack.flat[0], direct, rtol=0, atol=1e-7)


@pytest.mark.parametrize("decay_gains", [False, True])
def test_a_large_network_alone_has_the_same_steps(decay_gains):
    """On a GPU torch's own optimiser makes them; gradients of filters come with their channels last."""
    torch.manual_seed(0)
    usual, alone = (Stack([network]) for network in [ResNet18(width=4)] * 2)
    adam = Adam(usual, 0.5, decay_gains, decoupled=True)
    other = SingleAdam(alone, 0.5, decay_gains)
    for rate in torch.tensor([1e-3, 2e-2, 5e-3]):
        gradients = [torch.randn_like(value) for value in usual.parameters.values()]
        adam.step(gradients, rate, None)
        gradients = [
            one[0].contiguous(memory_format=torch.channels_last)[None] if one.ndim == 5 else one
            for one in gradients
        ]
        other.step(gradients, rate)
    torch.testing.assert_close(alone.flat, usual.flat, rtol=0, atol=1e-6)
    assert float((alone.flat - Stack([ResNet18(width=4)]).flat).abs().max()) > 1e-2


def test_a_large_network_alone_has_the_optimiser_of_its_own(monkeypatch):
    monkeypatch.setattr(Stack, "records_steps", True)
    stack = Stack(networks(1))  # in float32

    def is_torchs_own(stack, decoupled):
        return isinstance(optimiser(stack, 0.5, decay_gains=False, decoupled=decoupled), SingleAdam)

    assert is_torchs_own(stack, decoupled=True)
    assert not is_torchs_own(stack, decoupled=False)
    assert not is_torchs_own(Stack(networks(1), dtype=torch.float64), decoupled=True)
    frozen = Stack(networks(1, lambda: MLP(3, (8, 5)).requires_grad_(False)))
    assert not is_torchs_own(frozen, decoupled=True)


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_exact_last_layer_is_the_closed_form(outputs):
    """Its loss is minus the core posterior's log density up to a constant, its gradient that of autograd."""
    features, y = normal(2, 9, 4), normal(2, 9, outputs, seed=1)
    y[1, 6:] = 0
    data = LabelledStack(normal(2, 9, 1), y, torch.tensor([9, 6]))
    share = torch.tensor([[1 / 3] * 3, [0.5, 0.5, 0.0]], dtype=torch.float64)
    objective = ExactLastLayer(prior_variance=0.7, noise_shape=1.5, noise_rate=0.3)
    regression = BayesianLinearRegression(None, prior_covariance=0.7, noise_shape=1.5, noise_rate=0.3)

    def direct(features, index):
        losses = []
        for s, size in enumerate((9, 6)):
            seen = torch.cat([features[s, :size], torch.ones(size, 1)], 1)
            density = sum(
                regression.fit(seen, y[s, :size, o]).predictive(seen[index[s]]).log_prob(y[s, index[s], o])
                for o in range(outputs)
            )
            losses.append(-(density * share[s]).sum())
        return torch.stack(losses)

    for rows, index in (
        (slice(1, 4), [[1, 2, 3]] * 2),
        (torch.tensor([[0, 3, 5], [2, 1, 0]]), [[0, 3, 5], [2, 1, 0]]),
    ):
        other = normal(2, 9, 4, seed=7)
        change = objective(features, data, rows, share) - objective(other, data, rows, share)
        torch.testing.assert_close(change, direct(features, index) - direct(other, index))
        leaf = features.clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda f, rows=rows: objective(f, data, rows, share), (leaf,))
        # The mini-batch from a pass of its own: the same loss where that gives the same features.
        alone = replace(objective, alone=True)
        both = torch.cat([features, take_rows(features, rows)], 1)
        torch.testing.assert_close(alone(both, data, rows, share), objective(features, data, rows, share))
        leaf = torch.cat([features, normal(2, 3, 4, seed=8)], 1).requires_grad_()
        assert torch.autograd.gradcheck(
            lambda f, rows=rows, alone=alone: alone(f, data, rows, share), (leaf,)
        )


@pytest.fixture
def recorded(monkeypatch):
    """What would be recorded on a GPU; here it is noted, and run as it is."""
    noted = []

    def note(function):
        noted.append(function)
        return function

    monkeypatch.setattr(Stack, "recordable", True)
    monkeypatch.setattr(trainer_module, "Recorded", note)
    return noted


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (ExactLastLayer(), True),
        (ExactLastLayer(alone=True), True),
        (LaplaceError(), True),
        (GaussianLoss(), True),
        (SquaredError(), False),
    ],
    ids=["exact", "alone", "squared", "gaussian", "not recordable"],
)
def test_recorded_where_the_objective_allows_it(recorded, objective, expected):
    outputs = 2 if isinstance(objective, GaussianLoss) else 1
    members = networks(1, lambda: MLP(3, (8, outputs)))
    train(members, [labelled(12, 0)], [0], objective, epochs=2)
    assert bool(recorded) == expected
    assert CrossEntropy.recordable


@pytest.mark.parametrize(("size", "expected"), [(128, True), (130, False)])
def test_an_epoch_of_many_steps_is_not_recorded(recorded, size, expected):
    train(networks(1), [labelled(size, 0)], [0], ExactLastLayer(), batch_size=2, epochs=1)
    assert bool(recorded) == expected


def test_nothing_is_recorded_without_the_stack(recorded, monkeypatch):
    monkeypatch.setattr(Stack, "recordable", False)
    train(networks(1), [labelled(12, 0)], [0], ExactLastLayer(), epochs=1)
    assert not recorded


def test_a_network_that_waits_counts_its_own_steps():
    data = LabelledStack.of([labelled(8, 0), labelled(4, 1)])
    waits = [active.tolist() for _, _, active in data.steps([[4, 4], [4]])]
    assert waits == [[True, True], [True, False]]
    together = LabelledStack.of([labelled(8, 0), labelled(8, 1)]).steps([[4, 4]] * 2)
    assert [active for _, _, active in together] == [None, None]
    assert [index for index, _, _ in together] == [slice(0, 4), slice(4, 8)]


def test_mini_batches_are_even():
    split = Trainer(batch_size=256, schedule="one-cycle").mini_batches
    assert split(10_000) == [250] * 40  # not 39 of 256 and one of 16
    assert split(257) == [128, 129] and split(100) == [100]
    for batch_size in range(1, 12):
        for size in range(1, 60):
            rows = Trainer(batch_size=batch_size, schedule="one-cycle").mini_batches(size)
            assert sum(rows) == size and max(rows) - min(rows) <= 1
            assert max(rows) <= max(batch_size, 3)
            assert min(rows) >= min(batch_size, size, 2)
    # In the paper's way, with what remains.
    assert Trainer(batch_size=256).mini_batches(10_000) == [256] * 39 + [16]
    assert [Trainer().mini_batches(size) for size in (1, 2, 20, 33, 50)] == [
        [1],
        [2],
        [8, 8, 4],
        [16, 16],
        [16, 16, 16, 2],
    ]


def test_errors():
    (member,) = networks(1)
    with pytest.raises(InputError, match="do not match"):
        train([member], [labelled(5, 0), labelled(5, 1)], [0, 1], SquaredError())
    with pytest.raises(
        InputError, match="sets of 8 to 40 rows need different numbers of epochs for 100 steps"
    ):
        train(networks(2), [labelled(8, 0), labelled(40, 1)], [0, 1], SquaredError(), least_steps=100)
    with pytest.raises(InputError, match="same layers"):
        Stack([MLP(3), MLP(4)])
