"""The variational softmax layer against torch.distributions and against draws of its weights; the ResNet."""

import math
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal, Normal, kl_divergence
from torch.func import functional_call

from coresift.estimators import NeuralLinearClassifier
from coresift.estimators.networks import MLP, LabelledStack, ResNet18, Stack, Trainer
from coresift.estimators.networks import trainer as trainer_module
from coresift.estimators.networks.layers import AppendOne, Headed
from coresift.estimators.networks.variational import EvidenceLowerBound, VariationalSoftmax


def generator(seed):
    return torch.Generator().manual_seed(seed)


def layer(features=4, classes=3, rank=0, seed=0):
    """A layer in float64 whose deviations and factors are large enough to matter."""
    made = VariationalSoftmax(features, classes, rank, generator(seed)).double()
    with torch.no_grad():
        made.mean.mul_(20)
        made.log_std.add_(3)
        made.factor.mul_(30)
    return made


def test_initial_values():
    made = VariationalSoftmax(200, 100, generator=generator(0))
    assert abs(float(made.mean.detach().std()) - 0.05) < 0.002
    assert abs(float(made.log_std.detach().mean()) + 4) < 0.002
    assert abs(float(made.log_std.detach().std()) - 0.05) < 0.002
    assert made.factor.numel() == 0


def test_kl_diagonal():
    made = layer()
    q = Normal(made.mean, made.log_std.exp())
    expected = kl_divergence(q, Normal(torch.zeros(12).double(), 1.0)).sum()
    torch.testing.assert_close(made.kl(), expected)


@pytest.mark.parametrize("rank", [1, 5, 12])
def test_kl_of_factors(rank):
    made = layer(rank=rank)
    factor = made.factor.view(rank, 12)
    deviation = made.log_std.exp()
    prior = MultivariateNormal(torch.zeros(12).double(), torch.eye(12).double())
    full = MultivariateNormal(made.mean, torch.diag(deviation**2) + factor.mT @ factor)
    low = LowRankMultivariateNormal(made.mean, factor.mT, deviation**2)
    torch.testing.assert_close(made.kl(), kl_divergence(full, prior))
    torch.testing.assert_close(made.kl(), kl_divergence(low, prior))
    assert float(made.kl().detach()) > 0


def test_enough_factors_hold_any_covariance():
    made = VariationalSoftmax(2, 2, rank=4, generator=generator(0)).double()
    root = torch.randn(4, 4, dtype=torch.float64, generator=generator(1))
    wanted = root @ root.mT + torch.eye(4)
    with torch.no_grad():
        variance = (2 * made.log_std).exp()
        made.factor.copy_(torch.linalg.cholesky(wanted - torch.diag(variance)).mT.flatten())
    expected = kl_divergence(
        MultivariateNormal(made.mean, wanted),
        MultivariateNormal(torch.zeros(4).double(), torch.eye(4).double()),
    )
    torch.testing.assert_close(made.kl(), expected)


@pytest.mark.parametrize("rank", [0, 1, 12])
def test_local_reparametrisation_has_the_moments_of_sampled_weights(rank):
    made, num = layer(rank=rank), 100_000
    x = AppendOne()(torch.randn(2, 3, dtype=torch.float64, generator=generator(1)))
    with torch.no_grad():
        noise = torch.randn(num, 2, made.noises, dtype=torch.float64, generator=generator(2))
        local = made.logits(x, noise)  # (num, n, C)
        posterior = made.posterior()
        sampled = posterior.outputs(x, posterior.sample(num, generator(3)))
    for row in range(2):
        one, two = local[:, row], sampled[:, row]
        spread = torch.sqrt(one.var(0) + two.var(0)) / math.sqrt(num)
        assert bool(((one.mean(0) - two.mean(0)).abs() < 5 * spread).all())
        deviation = one.std(0)
        # An entry of a covariance has a standard error of at most sqrt(2) s_i s_j / sqrt(num).
        error = math.sqrt(2) * deviation[:, None] * deviation * math.sqrt(2 / num)
        assert bool(((one.T.cov() - two.T.cov()).abs() < 5 * error).all())
    if rank:
        correlation = local[:, 0].T.corrcoef()
        assert float((correlation - torch.eye(3)).abs().max()) > 0.1, "factors tie classes together"
    between = torch.stack([local[:, 0, 0], local[:, 1, 0]]).corrcoef()[0, 1]
    assert abs(float(between)) < 5 / math.sqrt(num), "each row has weights of its own"


def test_without_noise_the_logits_are_those_of_the_mean():
    made = layer(rank=2)
    x = torch.randn(5, 4, dtype=torch.float64, generator=generator(1))
    expected = x @ made.mean.view(3, 4).mT
    torch.testing.assert_close(made.logits(x, torch.zeros(5, 5).double()), expected)


@pytest.mark.parametrize("rank", [0, 2])
def test_layers_side_by_side(rank):
    layers = [layer(rank=rank, seed=seed) for seed in range(3)]
    x = torch.randn(3, 5, 4, dtype=torch.float64, generator=generator(1))
    noise = torch.randn(3, 5, 3 + rank, dtype=torch.float64, generator=generator(2))
    state = {
        name: torch.stack([dict(one.named_parameters())[name] for one in layers])
        for name in ("mean", "log_std", "factor")
    }
    logits, divergence = functional_call(layers[0], state, (x, noise))
    for s, one in enumerate(layers):
        torch.testing.assert_close(logits[s], one.logits(x[s], noise[s]))
        torch.testing.assert_close(divergence[s], one.kl())


def blobs(size, seed):
    """Three clusters in the plane."""
    labels = torch.randint(3, (size,), generator=generator(seed))
    centres = torch.tensor([[0.0, 3.0], [3.0, -2.0], [-3.0, -2.0]])
    return centres[labels] + torch.randn(size, 2, generator=generator(seed + 1)), labels


def networks(count, rank, extractor=MLP):
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        inner = extractor(2)
        width = inner.eval()(torch.zeros(1, 2)).shape[1]
        made.append(Headed(inner, VariationalSoftmax(width + 1, 3, rank)))
    return made


def test_evidence_lower_bound():
    stack = Stack(networks(2, rank=1), dtype=torch.float64)
    data = LabelledStack.of([blobs(6, 0), blobs(4, 1)]).to("cpu", torch.float64)
    index, share = torch.tensor([[5, 2, 0], [3, 1, 0]]), torch.tensor([[1 / 3] * 3, [0.5, 0.5, 0]]).double()
    objective = EvidenceLowerBound(stack, [generator(0), generator(1)])
    outputs = torch.randn(2, 3, 30).double()
    losses = objective(outputs, data, index, share)
    for s, count in enumerate((3, 2)):
        head = stack.member(s).head
        noise = torch.empty(count, 4).double().normal_(generator=generator(s))
        logits = head.logits(AppendOne()(outputs[s, :count]), noise)
        error = nn.functional.cross_entropy(logits, data.y[s][index[s, :count]])
        torch.testing.assert_close(losses[s], error + head.kl() / (6, 4)[s])
    gradients = torch.autograd.grad(losses.sum(), [stack.parameters[f"head.{n}"] for n in ("mean", "factor")])
    assert all(bool((gradient != 0).all()) for gradient in gradients)


def test_gradients_reach_every_parameter():
    stack = Stack(networks(2, rank=2))
    data = LabelledStack.of([blobs(8, 0), blobs(8, 1)])
    index, share = torch.arange(8).expand(2, 8), torch.full((2, 8), 1 / 8)
    losses = EvidenceLowerBound(stack, [generator(0), generator(1)])(stack(data.x), data, index, share)
    gradients = torch.autograd.grad(losses.sum(), list(stack.parameters.values()))
    for name, gradient in zip(stack.parameters, gradients, strict=True):
        assert bool(gradient.isfinite().all()), name
        assert bool((gradient.flatten(1).norm(dim=1) > 0).all()), name


def plain(inputs):
    return nn.Sequential(nn.Linear(inputs, 5), nn.Tanh())


def normed(inputs):
    # Without a bias: batch norm takes it out, and Adam would make steps of its gradient's rounding.
    return nn.Sequential(nn.Linear(inputs, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU())


@pytest.mark.parametrize("extractor", [MLP, plain, normed])
@pytest.mark.parametrize("rank", [0, 2])
def test_each_ends_as_if_trained_alone(extractor, rank):
    sets = [(x.double(), y) for x, y in (blobs(size, size) for size in (9, 17, 26))]
    trainer = Trainer(epochs=5, batch_size=8, progress=False)

    def trained(members):
        stack = Stack([networks(3, rank, extractor)[s] for s in members], dtype=torch.float64)
        own = [generator(s) for s in members]
        data = LabelledStack.of([sets[s] for s in members])
        objective = EvidenceLowerBound(stack, [generator(10 + s) for s in members])
        trainer.train(stack, objective, data, own)
        return [stack.member(position).state_dict() for position in range(len(members))]

    together = trained([0, 1, 2])
    for s in range(3):
        (alone,) = trained([s])
        for name, value in alone.items():
            torch.testing.assert_close(together[s][name], value, rtol=0, atol=1e-8, msg=name)


def test_noise_does_not_depend_on_how_far_ahead_orders_are_drawn(monkeypatch):
    """Alone, orders are drawn two epochs ahead, together one."""
    monkeypatch.setattr("coresift.limits.ROW_NUMBERS_DRAWN", 80)
    options = {"epochs": 6, "progress": False}
    sets = [tuple(part.numpy() for part in blobs(40, seed)) for seed in (0, 5)]
    many = NeuralLinearClassifier(**options).fit_many(sets, seeds=[3, 4])
    for one, seed, (x, y) in zip(many, (3, 4), sets, strict=True):
        alone = NeuralLinearClassifier(**options, random_state=seed).fit(x, y)
        torch.testing.assert_close(one.posterior_.head.mean, alone.posterior_.head.mean, rtol=1e-3, atol=1e-4)


def test_what_draws_noise_is_not_recorded(monkeypatch):
    def fail(function):
        raise AssertionError("recorded")

    monkeypatch.setattr(Stack, "recordable", True)
    monkeypatch.setattr(trainer_module, "Recorded", fail)
    stack = Stack(networks(1, rank=0))
    data = LabelledStack.of([blobs(12, 0)])
    objective = EvidenceLowerBound(stack, [generator(0)])
    Trainer(epochs=1, progress=False).train(stack, objective, data, [generator(1)])


def test_weight_decay_spares_the_last_layer():
    stack = Stack(networks(1, rank=2))
    named = dict(
        zip(
            stack.parameters,
            stack.decayed().split([v[0].numel() for v in stack.parameters.values()]),
            strict=True,
        )
    )
    assert all(float(value.sum()) == 0 for name, value in named.items() if name.startswith("head."))
    assert float(named["extractor.linear.0.weight"].sum()) == 60


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32)])
def test_resnet(channels, size):
    network = ResNet18(channels)
    # The usual count for three channels, without the last layer; then 512 x 32 weights and 32 biases.
    expected = 11_168_832 - (3 - channels) * 9 * 64 + 512 * 32 + 32
    assert sum(value.numel() for value in network.parameters()) == expected
    with torch.no_grad():
        features = network.eval()(torch.zeros(1, channels, size, size))
    assert features.shape == (1, 32) and bool((features >= 0).all())
    filters = network.blocks[2].first[0].weight  # 64 to 128 channels, stride 2
    assert filters.shape == (128, 64, 3, 3)
    bound = math.sqrt(6 / (9 * 64 + 9 * 128))
    assert 0.99 * bound < float(filters.detach().abs().max()) <= bound


def test_resnet_keeps_its_initialisation_when_drawn_anew():
    network = ResNet18(width=4)
    for layer_ in network.modules():
        if hasattr(layer_, "reset_parameters"):
            layer_.reset_parameters()
    bound = math.sqrt(6 / (9 * 4 + 9 * 4))
    assert 0.9 * bound < float(network.blocks[0].first[0].weight.detach().abs().max()) <= bound
    assert float(network.last.bias.detach().abs().max()) == 0


def test_imported_before_all_else():
    """Whichever module of the library comes first."""
    subprocess.run([sys.executable, "-c", "import coresift.estimators.networks.variational"], check=True)
