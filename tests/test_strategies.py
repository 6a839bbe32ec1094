"""The one-line way in, every strategy through every door, and the models that come as samples."""

import numpy as np
import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Gamma, Laplace, MixtureSameFamily, Normal, Poisson

import coresift
from coresift import STRATEGIES, Resources, find_strategy, select
from coresift.errors import InputError
from coresift.pool import ArrayPool, as_pool
from coresift.posteriors import (
    BayesianLinearRegression,
    ClassSamples,
    FunctionPosterior,
    GaussianSamples,
    ProbitPosterior,
    SampledPredictions,
    SoftmaxPosterior,
)
from coresift.scores import Score, margin
from coresift.selectors import GumbelTopB, TopB, VarianceReduction
from coresift.spaces import Problem, badge, likelihood_space, predictive_space, sampled_likelihood_space
from coresift.testing import check_posterior, check_space

N = 60
CLASSES_ONLY = {"margin", "badge", "batch-bald"}
LAST_LAYER = {"acs-fisher"}


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


POOL = normal(N, 4)
PROBS = torch.softmax(2 * normal(30, N, 3), -1)


def check(batch, budget=7):
    assert len(set(batch.index.tolist())) == len(batch) == budget
    assert batch.index.dtype == np.int64


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - CLASSES_ONLY))
@pytest.mark.parametrize("noise", [0.5, None])
def test_linear_regression(strategy, noise):
    posterior = BayesianLinearRegression(noise).fit(POOL[:8], POOL[:8, 0])
    for labelled in (None, POOL[:8]):
        check(select(POOL, posterior=posterior, budget=7, strategy=strategy, labelled=labelled))


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES)))
def test_probit_regression(strategy):
    posterior = ProbitPosterior(normal(4), torch.eye(4, dtype=torch.float64))
    check(select(POOL, posterior=posterior, budget=7, strategy=strategy, labelled=POOL[:3]))


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - LAST_LAYER))
def test_class_samples(strategy):
    batch = select(probs=PROBS, budget=7, strategy=strategy, pending=[0, 1], exclude=[2])
    check(batch)
    assert not set(batch.index.tolist()) & {0, 1, 2}
    check(
        select(
            probs=PROBS.numpy(),
            budget=7,
            strategy=strategy,
            features=(POOL, POOL[:5]),
            labelled=PROBS[:, :5],
        )
    )


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - LAST_LAYER - CLASSES_ONLY))
def test_gaussian_samples(strategy):
    check(
        select(
            means=normal(20, N).numpy(), variances=0.3, budget=7, strategy=strategy, labelled=normal(20, 3)
        )
    )


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES)))
def test_the_same_seed_gives_the_same_batch(strategy):
    posterior = ProbitPosterior(normal(4), torch.eye(4, dtype=torch.float64))
    first, second = (select(POOL, posterior=posterior, budget=7, strategy=strategy, seed=5) for _ in range(2))
    assert first.index.tolist() == second.index.tolist()


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES)))
def test_the_chunk_size_does_not_matter(strategy):
    posterior = ProbitPosterior(normal(4), torch.eye(4, dtype=torch.float64))
    batches = [
        select(ArrayPool(POOL, chunk), posterior=posterior, budget=7, strategy=strategy).index.tolist()
        for chunk in (1, 7, N)
    ]
    assert batches[0] == batches[1] == batches[2]


def outcome(**given):
    """The chosen indices, or the error."""
    try:
        return select(**given).index.tolist()
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_flags_say_what_a_strategy_needs_and_uses(strategy):
    flags, options = STRATEGIES[strategy], {"budget": 7, "strategy": strategy}
    assert flags.needs_model == ("needs a model" in outcome(pool=POOL, **options))
    regression = outcome(means=normal(20, N), variances=0.3, **options)
    assert flags.needs_classes == ("needs class probabilities" in regression)
    given = {"pool": POOL, "posterior": ProbitPosterior(normal(4), torch.eye(4, dtype=torch.float64))}
    with_labels, without = (outcome(**given, **options, labelled=known) for known in (POOL[:20], None))
    assert flags.uses_labelled == (with_labels != without)
    assert flags.uses_target == ("does not use target=" not in outcome(**given, **options, target=POOL[:20]))


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - CLASSES_ONLY - {"k-medoids"}))
def test_flags_say_what_streams_from_disk(strategy, monkeypatch, capsys):
    monkeypatch.setattr("coresift.limits.LIBRARY_BYTES", 0)
    monkeypatch.setattr(VarianceReduction, "bytes_per_pair", 0)
    monkeypatch.setattr("coresift.selection.check_memory", lambda memory, size, held: memory)
    pool = normal(2000, 40)
    posterior = BayesianLinearRegression(0.5).fit(pool[:50], pool[:50, 0])
    method = find_strategy(strategy, exact=False, num_samples=64)
    outcome(pool=pool, posterior=posterior, budget=3, strategy=method, resources=Resources(200_000))
    assert STRATEGIES[strategy].streams == ("go to a temporary file" in capsys.readouterr().err)


CLOSED_FORMS = {
    "known noise": (("acs-fw", "acs-fisher", "acs-norm", "greedy-logdet"), 0.5),
    "unknown noise": (("acs-fw", "acs-fisher", "acs-norm", "greedy-logdet"), None),
    "probit": (("acs-fisher", "bald"), "probit"),
}


@pytest.mark.parametrize(
    ("model", "strategy"), [(model, name) for model, (names, _) in CLOSED_FORMS.items() for name in names]
)
def test_closed_forms_depend_on_no_seed_and_samples_do(model, strategy):
    noise = CLOSED_FORMS[model][1]
    posterior = ProbitPosterior(normal(4), torch.eye(4, dtype=torch.float64))
    if noise != "probit":
        posterior = BayesianLinearRegression(noise).fit(POOL[:8], POOL[:8, 0])
    for exact in (True, False):
        given = {"strategy": find_strategy(strategy, exact=exact, num_samples=4), "budget": 7}
        batches = [outcome(pool=POOL, posterior=posterior, **given, seed=seed) for seed in range(4)]
        assert (batches.count(batches[0]) == 4) == exact


def test_half_precision_and_lists_come_in():
    check(select(probs=PROBS.half(), budget=7))
    check(select(probs=PROBS.tolist(), budget=7))


def test_hard_votes_come_in():
    """Trees that say 0 or 1 must not make vectors infinite."""
    votes = torch.nn.functional.one_hot(PROBS.argmax(-1), 3).double()
    check(select(probs=votes, budget=7))


def test_a_batch_knows_what_it_carries():
    few, many = (select(probs=PROBS, budget=budget, strategy="acs-fw").information for budget in (2, 20))
    assert 0 < few < many <= 1 + 1e-9
    assert select(probs=PROBS, budget=2, strategy="maxent").information is None
    assert select(probs=PROBS, budget=2, strategy="k-center").information is None


def test_rows_beside_predictions_are_their_features():
    for strategy in ("k-center", "badge", "lcmd"):
        beside = select(POOL, probs=PROBS, budget=7, strategy=strategy)
        assert (
            beside.index.tolist()
            == select(probs=PROBS, features=POOL, budget=7, strategy=strategy).index.tolist()
        )


def test_labelled_points_with_variances_of_their_own():
    means, variances = normal(8, N), normal(8, N, seed=1).exp()
    own = (means[:, :4], variances[:, :4])
    check(select(means=means, variances=variances, budget=7, strategy="acs-lcmd", labelled=own))


def test_bald_of_more_samples_than_the_space_draws():
    """Both of its terms are over all samples, so it is information, and not negative."""
    probs = torch.softmax(0.01 * normal(600, N, 3), -1)
    check(select(probs=probs.float(), budget=7, strategy="power-bald"))
    exact = (probs.mean(0).xlogy(probs.mean(0)).sum(-1) - probs.xlogy(probs).sum(-1).mean(0)).neg()
    top = select(probs=probs, budget=7, strategy="bald").index.tolist()
    assert top == exact.argsort(descending=True)[:7].tolist()


@pytest.mark.parametrize("strategy", ["predictive-lcmd", "acs-fw", "variance-reduction", "variance"])
def test_all_samples_of_a_model_are_used(strategy):
    """With more than 128 samples, a random part of them would choose another batch for each seed."""
    means = normal(300, N)
    batches = [select(means=means, variances=0.5, budget=7, strategy=strategy, seed=seed) for seed in (0, 1)]
    assert batches[0].index.tolist() == batches[1].index.tolist()


def test_samples_that_agree_but_for_a_few_digits():
    """Predictions in float32 are compared in float64: the best points are still found."""
    probs = torch.softmax(normal(1, N, 3) + 1e-3 * normal(30, N, 3, seed=1), -1)
    for strategy in ("bald", "acs-norm"):
        single, double = (
            set(select(probs=p, budget=20, strategy=strategy).index) for p in (probs.float(), probs)
        )
        assert len(single & double) >= 17


def test_vectors_too_long_for_float32():
    """A noise variance of next to nothing makes likelihoods of 1e20; the choice is that of a milder one."""
    means = 1e4 * normal(10, 50)
    for strategy in ("acs-fw", "acs-giga", "acs-lcmd"):
        tiny, mild = (
            select(means=means, variances=v, budget=5, strategy=strategy).index.tolist()
            for v in (1e-12, 1e-4)
        )
        assert tiny == mild


def test_the_global_random_state_is_left_alone():
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    posterior = BayesianLinearRegression().fit(POOL[:8], POOL[:8, 0])
    for strategy in sorted(set(STRATEGIES) - CLASSES_ONLY):
        select(POOL, posterior=posterior, budget=3, strategy=strategy)
    select(POOL, posterior=FunctionPosterior(FAMILIES["gamma"], list(0.5 * normal(12, 4))), budget=3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002


def test_sample_posteriors_keep_the_contract():
    check_posterior(ClassSamples(30), PROBS.transpose(0, 1))
    rows = torch.stack([normal(9, N), normal(9, N, seed=1).exp()], -1).transpose(0, 1)
    check_posterior(GaussianSamples(9), rows)
    check_posterior(ProbitPosterior(normal(4), torch.eye(4).double()), POOL, num_samples=4000)


FAMILIES = {
    "normal": lambda x, w: Normal(x @ w, 0.5),
    "categorical": lambda x, w: Categorical(logits=torch.stack([x @ w, -(x @ w), x[:, 0]], -1)),
    "bernoulli": lambda x, w: Bernoulli(logits=x @ w),
    "poisson": lambda x, w: Poisson((0.3 * x @ w).exp()),
    "laplace": lambda x, w: Laplace(x @ w, 1.0),
    "gamma": lambda x, w: Gamma((0.3 * x @ w).exp() + 1, torch.ones(len(x)).double()),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_functions_of_a_chunk_and_a_sample(family):
    posterior = FunctionPosterior(FAMILIES[family], list(0.5 * normal(12, 4, seed=2)))
    if family in ("normal", "categorical", "bernoulli"):
        check_posterior(posterior, POOL)
    check(select(POOL, posterior=posterior, budget=7))
    check(select(POOL, posterior=posterior, budget=7, strategy="acs-lcmd", labelled=POOL[:4]))


def test_a_function_that_returns_samples():
    """Predictions computed chunk by chunk give the same batch as those computed beforehand."""
    weights = normal(12, 3, 4, seed=2)
    posterior = SampledPredictions(lambda x: torch.softmax(x @ weights.mT, -1), 12)
    check_posterior(posterior, POOL)
    for strategy in ("acs-fw", "bald", "acs-lcmd"):
        beforehand = select(probs=torch.softmax(POOL @ weights.mT, -1), budget=7, strategy=strategy)
        chunked = select(ArrayPool(POOL, 9), posterior=posterior, budget=7, strategy=strategy)
        assert chunked.index.tolist() == beforehand.index.tolist()
    gaussian = SampledPredictions(
        lambda x: torch.stack([x @ weights[:, 0].mT, torch.ones(len(x), 12)], -1).transpose(0, 1),
        12,
        classes=False,
    )
    check_posterior(gaussian, POOL)


def test_outcomes_are_drawn_where_no_formula_is_known():
    """The drawn expectation against the sum over all outcomes, for a Poisson mixture."""
    posterior = FunctionPosterior(FAMILIES["poisson"], list(0.5 * normal(12, 4, seed=2)))
    predictive = posterior.predictive(POOL)
    assert isinstance(predictive, MixtureSameFamily)
    generator = torch.Generator().manual_seed(0)
    space = sampled_likelihood_space(posterior, as_pool(POOL), 12, generator=generator, dtype=torch.float64)
    counts = torch.arange(40, dtype=torch.float64)[:, None].expand(40, N)
    log_predictive = predictive.log_prob(counts)
    exact = (
        torch.stack(
            [
                (log_predictive.exp() * (FAMILIES["poisson"](POOL, w).log_prob(counts) - log_predictive)).sum(
                    0
                )
                for w in posterior.samples
            ]
        )
        / 12**0.5
    )
    # 256 outcomes a point: the correlation over all entries tells that this is the same thing.
    stacked = torch.stack([space.vectors.flatten(), exact.flatten()])
    assert float(torch.corrcoef(stacked)[0, 1]) > 0.95


def test_badge_gradients_by_autograd():
    """The outer product equals the gradient of the cross-entropy at the most likely label."""
    weights = normal(3, 4, seed=3).requires_grad_()
    probs = torch.softmax(POOL[:10] @ weights.mT, -1)
    gradients = []
    for n in range(10):
        loss = -torch.log_softmax(POOL[n] @ weights.mT, -1)[probs[n].argmax()]
        gradients.append(torch.autograd.grad(loss, weights)[0].flatten())
    written = torch.stack(gradients)
    space = badge(Problem(as_pool(probs.detach().unsqueeze(1)), ClassSamples(1), features=as_pool(POOL[:10])))
    torch.testing.assert_close(space.gram(torch.arange(10)), written @ written.mT, rtol=1e-4, atol=1e-6)
    check_space(space)


def test_predictive_space_is_the_covariance():
    posterior = BayesianLinearRegression(0.5).fit(POOL[:8], POOL[:8, 0])
    generator = torch.Generator().manual_seed(0)
    exact = predictive_space(posterior, as_pool(POOL), generator=generator)
    torch.testing.assert_close(exact.gram(torch.arange(N)), POOL @ posterior.covariance @ POOL.mT / 0.5)
    theta = posterior.sample(20_000, generator)
    samples = FunctionPosterior(lambda x, w: Normal(x @ w, 0.5**0.5), list(theta))
    sampled = predictive_space(samples, as_pool(POOL[:6]), 20_000, generator=generator)
    torch.testing.assert_close(
        sampled.gram(torch.arange(6)), exact.gram(torch.arange(6)), rtol=0.1, atol=0.02
    )


def class_probabilities() -> torch.Tensor:
    """(30, 5, 3) of samples."""
    return torch.softmax(torch.randn(30, 5, 3, generator=torch.Generator().manual_seed(1)).double(), -1)


def test_predictive_space_of_classes():
    """Covariances written out, a class at a time."""
    probs = class_probabilities()
    space = predictive_space(ClassSamples(30), as_pool(probs.transpose(0, 1)), generator=torch.Generator())
    mean, expected = probs.mean(0), torch.zeros(5, 5, dtype=torch.float64)
    for label in range(3):
        scale = mean[:, label].sqrt()
        expected += torch.cov(probs[:, :, label].mT, correction=0) / (scale[:, None] * scale)
    torch.testing.assert_close(space.gram(torch.arange(5)).double(), expected, rtol=1e-5, atol=1e-7)


def test_vectors_scaled_by_margin_uncertainty():
    """Covariances of what samples say, over all classes together, scaled by the mean."""
    probs = class_probabilities()
    pool = as_pool(probs.transpose(0, 1))
    space = predictive_space(ClassSamples(30), pool, generator=torch.Generator(), scaling="margin")
    covariance = sum(torch.cov(probs[:, :, label].mT, correction=0) for label in range(3))
    scale = (1 - probs.mean(0).square().sum(1)).sqrt()
    low, high = probs.mean(0).sort().values[:, 1:].unbind(1)
    uncertainty = 1 - (high - low)
    expected = covariance / (scale[:, None] * scale) * (uncertainty[:, None] * uncertainty)
    torch.testing.assert_close(space.gram(torch.arange(5)).double(), expected, rtol=1e-5, atol=1e-7)
    with pytest.raises(InputError, match="scaling is 'width', expected"):
        predictive_space(ClassSamples(30), pool, generator=torch.Generator(), scaling="width")


def test_two_classes_are_a_yes_or_no():
    """Distances are the same, whichever way a model says it."""
    yes = torch.rand(30, 6, generator=torch.Generator().manual_seed(2))
    pool, draws = as_pool(torch.arange(6.0)[:, None]), list(torch.arange(30))
    spaces = [
        predictive_space(
            FunctionPosterior(answer, draws), pool, 30, generator=torch.Generator(), scaling="margin"
        )
        for answer in (
            lambda x, draw: Bernoulli(yes[draw][x[:, 0].long()]),
            lambda x, draw: Categorical(torch.stack([1 - yes[draw], yes[draw]], -1)[x[:, 0].long()]),
        )
    ]
    index = torch.arange(6)
    torch.testing.assert_close(spaces[0].gram(index), spaces[1].gram(index))


def test_the_default_prefers_contested_points():
    """However much samples differ about a class that is unlikely anyway, a contested point comes first."""
    unlikely = torch.tensor([1e-2, 1e-5] * 10)
    first, second = torch.tensor([0.45, 0.55] * 10), torch.tensor([0.55, 0.45] * 10)
    rare = torch.stack([1 - unlikely, unlikely, torch.zeros(20)], -1)
    contested = torch.stack([first, second, torch.zeros(20)], -1)
    probs = torch.stack([rare, contested], 1).clamp(min=1e-12)
    assert select(probs=probs, budget=1).index.tolist() == [1]
    space = STRATEGIES["predictive-lcmd"].build(
        Problem(as_pool(probs.transpose(0, 1)), ClassSamples(20), num_samples=20, generator=torch.Generator())
    )
    torch.testing.assert_close(space.norms.float(), torch.tensor([0.00071, 0.1]), rtol=0.01, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*zero norm")  # where all samples are at the floor
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 5])
def test_the_default_chooses_among_points_that_the_model_is_sure_of(dtype: torch.dtype, classes: int):
    """Of which most vectors are so short that their squares are none in float32."""
    weights = 50 * torch.eye(classes, 3, dtype=dtype)
    posterior = SoftmaxPosterior(
        weights, torch.full_like(weights, 0.3), torch.zeros(0, classes, 3, dtype=dtype)
    )
    x = torch.randn(400, 3, dtype=dtype, generator=torch.Generator().manual_seed(4))
    batch = select(x, posterior=posterior, budget=130, seed=0).index
    assert len(set(batch.tolist())) == 130
    uncertainty = margin(posterior, as_pool(x)).values
    assert float(uncertainty[batch[:20]].median()) > float(uncertainty[batch[-20:]].median())


@pytest.mark.parametrize("num_samples", [8, 10, 16, 100])
@pytest.mark.parametrize("strategy", ["predictive-lcmd", "acs-lcmd", "acs-fw", "greedy-logdet"])
def test_points_that_all_samples_agree_on_fill_a_batch(num_samples, strategy):
    """Whatever the number of samples, whose mean of equal numbers need not be that number."""
    votes = torch.zeros(num_samples, 200, 2).double()
    votes[:, ::2, 0] = votes[:, 1::2, 1] = 1
    votes[: num_samples // 2, :5] = votes[: num_samples // 2, :5].flip(-1)
    votes = 0.8 * votes + 0.1
    with pytest.warns(UserWarning, match="195 of 200 vectors have zero norm .* 5 of them, drawn at random"):
        batch = select(probs=votes, strategy=strategy, budget=10)
    assert len({*batch.index.tolist()}) == 10 and batch.index[:5].max() < 5 <= batch.index[5:].min()
    assert batch.weights is None or (len(batch.weights) == 10 and batch.weights[5:].max() == 0)
    with pytest.warns(UserWarning, match="can never be selected"):
        assert len(select(probs=votes, strategy=strategy, budget=2)) == 2
    with pytest.warns(UserWarning, match="say nothing; 10 of them, drawn at random, are the batch"):
        batch = select(probs=votes, strategy=strategy, budget=10, exclude=range(5))
    assert len({*batch.index.tolist()}) == 10 and batch.index.min() >= 5


def test_predictive_space_in_fewer_dimensions():
    """Inner products and duplicates survive random signs."""
    probs = torch.softmax(2 * torch.randn(60, 40, 10, generator=torch.Generator().manual_seed(0)), -1)
    probs[:, 7] = probs[:, 3]
    pool, index = as_pool(probs.transpose(0, 1)), torch.arange(40)
    whole, fewer = (
        predictive_space(ClassSamples(60), pool, generator=torch.Generator(), num_dimensions=number)
        for number in (600, 512)
    )
    assert whole.vectors.shape == (600, 40) and fewer.vectors.shape == (512, 40)
    assert torch.equal(fewer.vectors[:, 3], fewer.vectors[:, 7])
    scale = whole.norms[:, None] * whole.norms
    gap = (whole.gram(index) - fewer.gram(index)) / scale
    assert float(gap.square().mean().sqrt()) < 1.5 / 512**0.5
    assert float(gap.abs().max()) > 1e-3  # it is another space after all


def test_sampled_and_exact_spaces_choose_alike():
    """With many samples, Frank-Wolfe on the sampled space starts where the closed form does."""
    posterior = BayesianLinearRegression(0.5).fit(POOL[:8], POOL[:8, 0])
    generator = torch.Generator().manual_seed(0)
    spaces = [
        likelihood_space(posterior, as_pool(POOL), 20_000, generator=generator, exact=exact)
        for exact in (True, False)
    ]
    first, second = (coresift.selectors.FrankWolfe().select(space, 3).index.tolist() for space in spaces)
    assert first == second


def test_public_names():
    assert set(coresift.__all__) <= set(dir(coresift))
    assert coresift.__version__


def test_two_classes_are_two_classes():
    """As two of several, or as one probability."""
    weights, pool = list(3 * normal(30, 3) + torch.tensor([2.0, -1.0, 0.5])), normal(80, 3)
    one = FunctionPosterior(lambda x, w: Bernoulli(logits=x @ w), weights)
    both = FunctionPosterior(lambda x, w: Categorical(logits=torch.stack([0 * (x @ w), x @ w], -1)), weights)
    for strategy in ("greedy-logdet", "predictive-lcmd", "bald", "maxent"):
        batches = [select(pool, posterior=each, strategy=strategy, budget=12) for each in (one, both)]
        assert batches[0].index.tolist() == batches[1].index.tolist(), strategy


def test_points_are_the_same_where_the_pool_says_so():
    """Not where the model says the same of them: two points of the pool have one row of predictions each."""
    probs = PROBS.clone()
    probs[:, 1] = probs[:, 0] = 1 / 3
    pool = normal(N, 2)
    assert {0, 1} <= {*select(pool, probs=probs, strategy="maxent", budget=2).index.tolist()}
    # Rows of the pool itself are the points; features beside them are for distances.
    linear = BayesianLinearRegression(noise_variance=1.0).fit(pool[:5], pool[:5, 0])
    given = {"posterior": linear, "strategy": "maxent", "budget": 5}
    batches = [select(pool, **given, features=features) for features in (None, torch.ones(N, 1))]
    assert batches[0].index.tolist() == batches[1].index.tolist()
    assert not {0, 1} <= {*select(probs=probs, strategy="maxent", budget=2).index.tolist()}


def test_a_draw_without_chance_is_the_top():
    score = Score(torch.linspace(0.01, 0.9, 50))
    for kind in ("power", "softmax", "softrank"):
        batch = GumbelTopB(kind, beta=float("inf")).select(score, 5)
        assert batch.index.tolist() == TopB().select(score, 5).index.tolist()
    for beta in (-1.0, float("nan")):
        with pytest.raises(InputError, match="beta is"):
            GumbelTopB(beta=beta)


def test_bad_probabilities_deep_in_a_pool():
    """A function sees blocks, and does not know where they begin."""
    pool = torch.zeros(10_000, 1)
    pool[9000] = 1
    votes = SampledPredictions(
        lambda x: torch.stack([0.5 + x, 0.5 + 0 * x], -1).movedim(1, 0).repeat(4, 1, 1), 4
    )
    with pytest.raises(InputError, match="probabilities of row 808 of a block sum to 2"):
        select(pool, posterior=votes, strategy="maxent", budget=2)
