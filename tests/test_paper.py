"""The closed forms of the paper, and those it lacks, each against quadrature or autograd."""

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch
from torch.distributions import Bernoulli, Categorical, Laplace, Normal, Poisson, StudentT, kl_divergence

from coresift.estimators.dropout import DropoutPosterior
from coresift.pool import as_pool
from coresift.posteriors import (
    BayesianLinearRegression,
    ClassSamples,
    FunctionPosterior,
    GaussianSamples,
    LinearPosterior,
    NormalInverseGammaPosterior,
    ProbitPosterior,
)
from coresift.posteriors.samples import mixture
from coresift.posteriors.softmax import SoftmaxPosterior
from coresift.scores import acs_norm, bald, entropy, margin, variance
from coresift.spaces import (
    exact_fisher_space,
    exact_likelihood_space,
    fisher_space,
    likelihood_space,
    sampled_likelihood_space,
)
from coresift.spaces.likelihood import expected_log_likelihood
from coresift.testing import check_posterior, check_space


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def problem():
    """Two-dimensional labelled data and a pool, in float64."""
    g = generator()
    x = torch.randn(6, 2, dtype=torch.float64, generator=g)
    y = x @ torch.tensor([1.0, -0.5], dtype=torch.float64) + 0.3 * torch.randn(
        6, dtype=torch.float64, generator=g
    )
    return x, y, torch.randn(7, 2, dtype=torch.float64, generator=g)


def gauss_hermite(order=12):
    """Nodes (order^2, 2) and weights of a standard bivariate normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    grid = torch.tensor(list(itertools.product(nodes, nodes)))
    mass = torch.tensor([a * b for a, b in itertools.product(weights, weights)]) / (2 * math.pi)
    return grid, mass


def gram(space):
    return space.gram(torch.arange(len(space)))


def test_linear_posterior_is_bayes_rule(problem):
    """Conditioning agrees with the joint Gaussian of theta and y, for any prior."""
    x, y, _ = problem
    prior_mean = torch.tensor([0.3, -1.0], dtype=torch.float64)
    prior = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    posterior = BayesianLinearRegression(0.4, prior_mean, prior).fit(x, y)
    gain = prior @ x.mT @ torch.linalg.inv(x @ prior @ x.mT + 0.4 * torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(posterior.mean, prior_mean + gain @ (y - x @ prior_mean))
    torch.testing.assert_close(posterior.covariance, prior - gain @ x @ prior)


def test_unknown_noise_posterior_is_sequential(problem):
    """Conditioning at once equals conditioning on one point and then the others."""
    x, y, _ = problem
    whole = BayesianLinearRegression(noise_shape=2.0, noise_rate=0.7).fit(x, y)
    first = BayesianLinearRegression(noise_shape=2.0, noise_rate=0.7).fit(x[:1], y[:1])
    rest = BayesianLinearRegression(
        prior_mean=first.mean,
        prior_covariance=first.covariance,
        noise_shape=first.shape,
        noise_rate=first.rate,
    ).fit(x[1:], y[1:])
    torch.testing.assert_close(rest.mean, whole.mean)
    torch.testing.assert_close(rest.covariance, whole.covariance)
    assert rest.shape == pytest.approx(whole.shape)
    assert rest.rate == pytest.approx(whole.rate)


def test_unknown_noise_predictive_is_the_marginal(problem):
    """Student's t equals the integral of the Gaussian likelihood over theta and the noise."""
    x, y, pool = problem
    posterior = BayesianLinearRegression(noise_shape=2.0).fit(x, y)
    spread = 1 + float(pool[0] @ posterior.covariance @ pool[0])
    mean = float(pool[0] @ posterior.mean)

    def integrand(noise):
        density = scipy.stats.invgamma.pdf(noise, posterior.shape, scale=posterior.rate)
        return density * scipy.stats.norm.pdf(0.7, mean, math.sqrt(noise * spread))

    direct, _ = scipy.integrate.quad(integrand, 0, np.inf, epsabs=1e-13)
    closed = float(posterior.predictive(pool[:1]).log_prob(torch.tensor([0.7], dtype=torch.float64)).exp())
    assert closed == pytest.approx(direct, rel=1e-9)


def test_known_noise_spaces_against_quadrature(problem):
    """L_n is quadratic in theta, so Gauss-Hermite quadrature is exact."""
    x, y, pool = problem
    posterior = BayesianLinearRegression(noise_variance=0.6).fit(x, y)
    nodes, mass = gauss_hermite()
    theta = posterior.mean + nodes @ torch.linalg.cholesky(posterior.covariance).mT

    def likelihoods(weights):
        predictive = posterior.predictive(pool)
        return -kl_divergence(predictive, Normal(pool @ weights, math.sqrt(0.6)))

    values = torch.stack([likelihoods(weights) for weights in theta])  # (nodes, N)
    gradients = torch.stack([torch.autograd.functional.jacobian(likelihoods, weights) for weights in theta])
    euclidean = torch.einsum("j,jn,jm->nm", mass, values, values)
    mean = mass @ values
    fisher = torch.einsum("j,jnd,jmd->nm", mass, gradients, gradients)
    source = as_pool(pool)
    for space, direct in [
        (exact_likelihood_space(posterior, source), euclidean),
        (exact_likelihood_space(posterior, source, centred=True), euclidean - torch.outer(mean, mean)),
        (exact_fisher_space(posterior, source), fisher),
    ]:
        torch.testing.assert_close(gram(space), direct, rtol=1e-10, atol=1e-12)


def test_unknown_noise_spaces_against_quadrature(problem):
    """Gauss-Hermite in theta, the trapezoidal rule in log tau: both converge faster than any power."""
    x, y, pool = problem
    posterior = BayesianLinearRegression(noise_shape=2.0, noise_rate=0.5).fit(x, y)
    nodes, mass = gauss_hermite(6)
    log_tau = torch.linspace(-12, 6, 1200, dtype=torch.float64)
    tau_mass = (
        torch.from_numpy(
            scipy.stats.gamma.pdf(log_tau.exp().numpy(), posterior.shape, scale=1 / posterior.rate)
        )
        * log_tau.exp()
    )
    tau_mass = tau_mass * (log_tau[1] - log_tau[0])
    deviations = nodes @ torch.linalg.cholesky(posterior.covariance).mT  # of theta in units of the noise
    noise = (-log_tau).exp()
    theta = posterior.mean + noise.sqrt()[:, None, None] * deviations  # (tau, nodes, d)
    conditional = Normal(theta @ pool.mT, noise.sqrt()[:, None, None])
    values = -kl_divergence(posterior.predictive(pool), conditional).flatten(0, 1)
    weights = torch.outer(tau_mass, mass).flatten()
    mean = weights @ values
    euclidean = torch.einsum("j,jn,jm->nm", weights, values, values)
    # dL_n/dtheta = -(theta - mu)^T x_n x_n / s2
    slope = ((theta - posterior.mean) @ pool.mT / noise[:, None, None]).flatten(0, 1)
    fisher = torch.einsum("j,jn,jm->nm", weights, slope, slope) * (pool @ pool.mT)
    source = as_pool(pool)
    for space, direct in [
        (exact_likelihood_space(posterior, source), euclidean),
        (exact_likelihood_space(posterior, source, centred=True), euclidean - torch.outer(mean, mean)),
        (exact_fisher_space(posterior, source), fisher),
    ]:
        torch.testing.assert_close(gram(space), direct, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("noise_variance", [0.6, None])
@pytest.mark.parametrize("centred", [False, True])
def test_algorithm_2_tends_to_the_closed_form(problem, noise_variance, centred):
    """Sampled inner products lie within six standard errors of their limit."""
    x, y, pool = problem
    posterior = BayesianLinearRegression(noise_variance, noise_shape=3.0).fit(x, y)
    sampled = sampled_likelihood_space(
        posterior, as_pool(pool), 40_000, generator=generator(1), centred=centred, dtype=torch.float64
    )
    values = sampled.vectors * math.sqrt(40_000)
    products = torch.einsum("jn,jm->nmj", values, values)
    error = products.std(-1) / math.sqrt(40_000)
    exact = gram(exact_likelihood_space(posterior, as_pool(pool), centred=centred))
    assert bool(((gram(sampled) - exact).abs() <= 6 * error).all())


@pytest.mark.parametrize("noise_variance", [0.6, None])
def test_last_layer_gradients_tend_to_the_closed_fisher_form(problem, noise_variance):
    x, y, pool = problem
    posterior = BayesianLinearRegression(noise_variance, noise_shape=3.0).fit(x, y)
    exact = gram(exact_fisher_space(posterior, as_pool(pool)))
    sampled = gram(fisher_space(posterior, as_pool(pool), 20_000, generator=generator(1), exact=False))
    torch.testing.assert_close(sampled, exact, rtol=0.06, atol=0.06 * float(exact.diagonal().min()))


class Softmax:
    """A softmax layer with Gaussian weights: a last-layer posterior written by hand."""

    def __init__(self):
        self.weights = torch.randn(5, 3, 2, dtype=torch.float64, generator=generator(3))

    def sample(self, num, generator):
        return self.weights[:num]

    def features(self, x):
        return x

    def outputs(self, features, theta):
        return torch.einsum("jcd,nd->jnc", theta, features)

    def likelihood(self, outputs, theta):
        return Categorical(logits=outputs)

    def conditional(self, x, theta):
        return self.likelihood(self.outputs(x, theta), theta)

    def predictive(self, x):
        return Categorical(probs=self.conditional(x, self.weights).probs.mean(0))


def test_last_layer_gradients_against_autograd(problem):
    """The outer-product kernel equals the inner product of the written-out gradients."""
    _, _, pool = problem
    posterior = Softmax()
    check_posterior(posterior, pool)

    def likelihoods(weights):
        conditional = Categorical(logits=pool @ weights.mT)
        return -kl_divergence(posterior.predictive(pool), conditional)

    gradients = [
        torch.autograd.functional.jacobian(likelihoods, weights).flatten(1) for weights in posterior.weights
    ]
    direct = sum(g @ g.mT for g in gradients) / len(gradients)
    space = fisher_space(posterior, as_pool(pool), 5, generator=generator(), labelled=pool[:2])
    torch.testing.assert_close(gram(space), direct)
    check_space(space)
    columns, squares = next(space.anchors())
    torch.testing.assert_close(columns[:, 1], direct[:2])
    torch.testing.assert_close(squares, direct.diagonal()[:2])


def test_sampled_categorical_vectors_by_enumeration():
    probs = torch.softmax(torch.randn(4, 6, 3, dtype=torch.float64, generator=generator()), -1)  # (K, N, C)
    space = sampled_likelihood_space(
        ClassSamples(4), as_pool(probs.transpose(0, 1)), generator=generator(), dtype=torch.float64
    )
    for n, j in itertools.product(range(6), range(4)):
        predictive = probs[:, n].mean(0)
        by_hand = sum(
            float(p * (math.log(q) - math.log(p))) for p, q in zip(predictive, probs[j, n], strict=True)
        )
        assert float(space.vectors[j, n]) == pytest.approx(by_hand / 2, rel=1e-9)


def test_kl_student_t_normal_by_quadrature():
    p = StudentT(torch.tensor(5.0).double(), torch.tensor(0.3).double(), torch.tensor(1.2).double())
    q = Normal(torch.tensor(-0.4).double(), torch.tensor(0.9).double())

    def integrand(y):
        y = torch.tensor(y, dtype=torch.float64)
        return float(p.log_prob(y).exp() * (p.log_prob(y) - q.log_prob(y)))

    direct, _ = scipy.integrate.quad(integrand, -np.inf, np.inf, epsabs=1e-12)
    assert float(kl_divergence(p, q)) == pytest.approx(direct, rel=1e-7)


def test_bald_of_linear_regression(problem):
    """The mutual information of y and theta in a joint Gaussian, by determinants."""
    x, y, pool = problem
    posterior = BayesianLinearRegression(noise_variance=0.6).fit(x, y)
    score = bald(posterior, as_pool(pool), generator=generator())
    for value, row in zip(score.values, pool, strict=True):
        updated = torch.linalg.inv(torch.linalg.inv(posterior.covariance) + torch.outer(row, row) / 0.6)
        gain = 0.5 * (torch.logdet(posterior.covariance) - torch.logdet(updated))
        assert float(value) == pytest.approx(float(gain), rel=1e-9)
    # What the main text calls proportional is affine: exp(2 BALD) = 1 + s_nn / s0^2.
    spread = posterior.function_variance(pool)
    torch.testing.assert_close((2 * score.values).exp(), 1 + spread / 0.6)
    ratio = gram(exact_fisher_space(posterior, as_pool(pool))).diagonal() / pool.square().sum(1)
    torch.testing.assert_close(ratio, spread / 0.36)


def test_bald_in_closed_form_against_samples(problem):
    x, y, pool = problem
    posteriors = [
        BayesianLinearRegression(noise_shape=3.0).fit(x, y),
        ProbitPosterior(torch.tensor([1.0, -0.4]).double(), torch.tensor([[0.8, 0.2], [0.2, 0.5]]).double()),
    ]
    for posterior in posteriors:
        exact = bald(posterior, as_pool(pool), generator=generator()).values
        sampled = bald(posterior, as_pool(pool), 40_000, generator=generator(), exact=False).values
        torch.testing.assert_close(sampled, exact, rtol=0.02, atol=0.005)


@pytest.mark.parametrize("mean", [0.0, 1.3, -7.0, 40.0])
@pytest.mark.parametrize("deviation", [1e-3, 0.1, 1.0, 2.0, 15.0, 300.0])
def test_probit_bald_by_quadrature(mean, deviation):
    numbers = np.array([mean, deviation**2])
    posterior = ProbitPosterior(torch.from_numpy(numbers[:1]), torch.from_numpy(numbers[1:, None]))

    def binary_entropy(p):
        return scipy.special.entr(p) + scipy.special.entr(1 - p)

    def integrand(f):
        return scipy.stats.norm.pdf(f, mean, deviation) * binary_entropy(scipy.special.ndtr(f))

    near = [mean + k * deviation for k in (-10, -3, 0, 3, 10)]
    places = sorted({min(max(place, -25.0), 25.0) for place in (*near, -25.0, -3.0, 0.0, 3.0, 25.0)})
    expected = sum(
        scipy.integrate.quad(integrand, *ends, epsabs=1e-14, epsrel=1e-11)[0]
        for ends in itertools.pairwise(places)
    )
    direct = binary_entropy(scipy.special.ndtr(mean / math.sqrt(1 + deviation**2))) - expected
    value = bald(posterior, as_pool(torch.ones(1, 1).double()), generator=generator()).values
    assert float(value[0]) == pytest.approx(direct, abs=1e-9)


def test_probit_bald_in_float32_gives_sure_points_nothing():
    """Where a million of them would else outweigh all others in a draw."""
    x = torch.tensor([[6.0], [8.0], [0.5]])
    posterior = ProbitPosterior(torch.tensor([1.0]), torch.tensor([[1e-4]]))
    found = bald(posterior, as_pool(x), generator=generator()).values
    double = ProbitPosterior(posterior.mean.double(), posterior.covariance.double())
    exact = bald(double, as_pool(x.double()), generator=generator()).values
    torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-13)
    assert float(exact[0]) < 1e-9


def test_bald_of_classes_has_both_terms_from_the_same_draws():
    """The mean of other draws, as predictions have them, would be three times as far off."""
    draw = torch.Generator().manual_seed(0)
    mean = 1.5 * torch.randn(4, 6, generator=draw).double()
    posterior = SoftmaxPosterior(mean, torch.full_like(mean, 0.3), torch.zeros(0, 4, 6).double())
    pool = as_pool(torch.randn(100, 6, generator=draw).double())
    truth = bald(posterior, pool, 20_000, generator=torch.Generator().manual_seed(9)).values
    for seed in range(3):
        found = bald(posterior, pool, 128, generator=torch.Generator().manual_seed(seed)).values
        assert float((found - truth).square().mean().sqrt()) < 0.01
        assert bool((found > 0).all())


def test_bald_holds_few_rows_of_many_samples(monkeypatch):
    """The same numbers, whatever the blocks."""
    mean, rows = torch.randn(94, 6, dtype=torch.float64, generator=generator()).split([4, 90])
    posterior = SoftmaxPosterior(mean, torch.full_like(mean, 0.3), torch.zeros(0, 4, 6).double())
    pool, seen, conditional = as_pool(rows), [], SoftmaxPosterior.conditional

    def watched(self, x, theta):
        seen.append(len(x))
        return conditional(self, x, theta)

    whole = bald(posterior, pool, 50, generator=generator()).values
    monkeypatch.setattr(SoftmaxPosterior, "conditional", watched)
    parts = bald(posterior, pool, 50, generator=generator(), numbers=50 * 4 * 20).values
    torch.testing.assert_close(parts, whole)
    assert max(seen) == 20


@pytest.mark.parametrize(
    "posterior",
    [
        SoftmaxPosterior(torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(0, 2, 3)),
        DropoutPosterior(torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(3, 2))),
    ],
)
def test_the_default_seed_does_not_give_the_draws_of_predictions(posterior):
    """A batch by that seed would be judged by other rules than one by another."""
    x = torch.ones(1, 3)
    each = posterior.conditional(x, posterior.sample(100, torch.Generator().manual_seed(0)))
    assert not torch.equal(each.probs.mean(0), posterior.predictive(x).probs)


def test_entropies(problem):
    x, y, pool = problem
    known = BayesianLinearRegression(noise_variance=0.6).fit(x, y)
    direct = 0.5 * torch.log(2 * math.pi * math.e * (0.6 + known.function_variance(pool)))
    torch.testing.assert_close(entropy(known, as_pool(pool)).values, direct)
    unknown = BayesianLinearRegression().fit(x, y)
    by_scipy = [
        scipy.stats.t(2 * unknown.shape, scale=float(scale)).entropy()
        for scale in unknown.predictive(pool).scale
    ]
    torch.testing.assert_close(entropy(unknown, as_pool(pool)).values, torch.tensor(by_scipy).double())
    classes = torch.tensor([[[0.5, 0.25, 0.25]]]).double()
    assert float(entropy(ClassSamples(1), as_pool(classes)).values[0]) == pytest.approx(1.5 * math.log(2))


def test_margin_variance_and_norm(problem):
    x, y, pool = problem
    classes = as_pool(torch.tensor([[[0.5, 0.3, 0.2]], [[0.9, 0.06, 0.04]]]).double())
    torch.testing.assert_close(
        margin(ClassSamples(1), classes).values, torch.tensor([0.8, 0.16]).double(), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        variance(ClassSamples(1), classes).values, torch.tensor([0.62, 0.1848]).double(), rtol=1e-4, atol=1e-5
    )
    posterior = BayesianLinearRegression(noise_variance=0.6).fit(x, y)
    torch.testing.assert_close(
        variance(posterior, as_pool(pool)).values, 0.6 + posterior.function_variance(pool)
    )
    space = exact_fisher_space(posterior, as_pool(pool))
    torch.testing.assert_close(acs_norm(space).values, gram(space).diagonal())


def test_gaussian_samples_cross_entropy_is_exact():
    """E_y[log p(y | theta_j)] under the mixture depends on its first two moments only."""
    g = generator()
    mean = torch.randn(3, 1, dtype=torch.float64, generator=g)
    spread = torch.rand(3, 1, dtype=torch.float64, generator=g) + 0.5
    posterior, rows = GaussianSamples(3), torch.stack([mean, spread], -1).transpose(0, 1)
    vectors = sampled_likelihood_space(posterior, as_pool(rows), generator=g, dtype=torch.float64).vectors
    shift = float(posterior.predictive(rows).entropy()[0])
    for j in range(3):

        def integrand(value, j=j):
            value = torch.tensor(value, dtype=torch.float64)
            mixture = Normal(mean[:, 0], spread[:, 0].sqrt()).log_prob(value).exp().mean()
            return float(mixture * Normal(mean[j, 0], spread[j, 0].sqrt()).log_prob(value))

        direct, _ = scipy.integrate.quad(integrand, -15, 15, epsabs=1e-12)
        assert float(vectors[j, 0]) * math.sqrt(3) == pytest.approx(direct + shift, rel=1e-8)


@pytest.mark.parametrize("kind", [LinearPosterior, NormalInverseGammaPosterior])
def test_linear_posteriors_keep_the_contract(problem, kind):
    x, y, pool = problem
    noise = 0.5 if kind is LinearPosterior else None
    posterior = BayesianLinearRegression(noise, noise_shape=4.0).fit(x, y)
    assert isinstance(posterior, kind)
    check_posterior(posterior, pool, num_samples=2000)
    for space in (
        exact_fisher_space(posterior, as_pool(pool), pool[:3]),
        exact_likelihood_space(posterior, as_pool(pool), pool[:3]),
        exact_likelihood_space(posterior, as_pool(pool), pool[:3], centred=True),
    ):
        check_space(space)


@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("classes", [False, True])
def test_sure_models_in_float32_are_compared_as_in_float64(scale, classes):
    """Where probabilities round to zero or one, and where samples differ in their last digits alone."""
    draw = generator()
    pool = torch.randn(200, 3, generator=draw)
    weights = scale * torch.randn(3, generator=draw) + 1e-3 * scale * torch.randn(40, 3, generator=draw)

    def spaces(kind):
        def answer(x, weight):
            logits = x.to(kind) @ weight
            if classes:
                return Categorical(logits=torch.stack([logits, -logits, 0 * logits], -1))
            return Bernoulli(logits=logits)

        posterior = FunctionPosterior(answer, list(weights.to(kind)))
        return sampled_likelihood_space(posterior, as_pool(pool), 40, generator=generator()).vectors

    single, double = spaces(torch.float32).double(), spaces(torch.float64).double()
    assert bool(torch.isfinite(single).all())
    lengths = double.norm(dim=0)
    assert bool(((single - double).norm(dim=0) < 0.02 * lengths + 1e-3 * lengths.max()).all())


@pytest.mark.parametrize("family", [Poisson, Laplace])
def test_likelihoods_from_outcomes_are_at_most_zero(family):
    """And near what the divergence is in truth, which is small."""
    middle = 3 + 0.1 * torch.randn(30, 1, dtype=torch.float64, generator=generator()) * torch.ones(30, 50)
    each = family(middle) if family is Poisson else family(middle, 1.0)
    values = expected_log_likelihood(mixture(each), each)
    assert float(values.max()) <= 0
    mean = middle.mean(0)
    expected = -(middle - mean).square() / (6 if family is Poisson else 2)  # to second order
    assert float((values.mean(1) - expected.mean(1)).abs().max()) < 0.2 * float(expected.abs().max()) + 1e-3


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5])
def test_closed_forms_where_columns_lie_far_from_zero(offset):
    x = torch.cat(
        [offset + torch.randn(200, 3, dtype=torch.float64, generator=generator()), torch.ones(200, 1)], 1
    )
    posterior = BayesianLinearRegression(noise_variance=0.1, prior_covariance=100.0).fit(x[:20], x[:20, 0])
    space = likelihood_space(posterior, as_pool(x[20:]), 10, generator=generator())
    pairs = space.gram(torch.arange(180))
    assert float(space.dot(space.total(), space.total())) == pytest.approx(float(pairs.sum()), rel=1e-4)


def test_linear_regression_in_float32_is_solved_in_float64():
    draw = generator()
    x = torch.stack([20_000 + 10 * torch.randn(50, generator=draw), torch.ones(50)], 1)
    model = BayesianLinearRegression(noise_variance=0.01, prior_covariance=1e4)
    posterior = model.fit(x, x[:, 0] - 20_000)
    assert posterior.mean.dtype == torch.float32
    torch.testing.assert_close(posterior.mean, model.fit(x.double(), x[:, 0].double() - 20_000).mean.float())
