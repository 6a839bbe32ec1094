"""Bad input gets a clear error that says what was seen."""

import contextlib
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from sklearn.linear_model import LinearRegression
from torch.distributions import Laplace, Normal

import coresift
from coresift import InputError, Resources, find_strategy, select
from coresift.estimators import DropoutClassifier, NeuralLinearRegressor, laplace_posterior
from coresift.pool import ArrayPool
from coresift.posteriors import (
    BayesianLinearRegression,
    BayesianProbitRegression,
    ClassSamples,
    FunctionPosterior,
    LinearPosterior,
    NormalInverseGammaPosterior,
    SoftmaxPosterior,
)
from coresift.scores import Score
from coresift.selectors import Exhaustive, FrankWolfe, GumbelTopB, KCenter, TopB
from coresift.spaces import GramSpace, VectorSpace
from coresift.strategies import DEFAULT

PROBS = np.full((4, 10, 2), 0.5)
X = np.random.default_rng(0).normal(size=(10, 2))
POSTERIOR = LinearPosterior(torch.zeros(2), torch.eye(2), 1.0)


def broken(value, row, column):
    rows = X.copy()
    rows[row, column] = value
    return rows


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("strategy", ["acs-fw", "maxent", "k-center", "acs-fisher", "greedy-logdet"])
def test_not_a_number(value, strategy):
    with pytest.raises(InputError, match=rf"{value} in row 7, column 1"):
        select(broken(value, 7, 1), posterior=POSTERIOR, budget=2, strategy=strategy)


def test_not_a_number_far_into_a_chunked_pool():
    with pytest.raises(InputError, match="row 7, column 0"):
        select(ArrayPool(broken(np.nan, 7, 0), chunk_size=3), posterior=POSTERIOR, budget=2)


def test_large_but_finite_numbers_pass():
    rows = X.astype(np.float32) * np.float32(1e38)
    assert len(select(rows, budget=2, strategy="random")) == 2


@pytest.mark.parametrize("pool", [np.empty((0, 2)), torch.empty(0, 2)])
def test_empty_pool(pool):
    with pytest.raises(InputError, match="the pool is empty"):
        select(pool, posterior=POSTERIOR, budget=1)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (11, "budget is 11, but the pool holds 10"),
        (0, "budget is 0"),
        (-1, "budget is -1"),
        (2.5, "budget is 2.5"),
        (True, "budget is True"),
    ],
)
def test_impossible_budgets(budget, message):
    with pytest.raises(InputError, match=message):
        select(X, posterior=POSTERIOR, budget=budget)


def test_budget_larger_than_what_is_left():
    with pytest.raises(InputError, match="only 7 of 10 points can be chosen: 2 are pending, 1 excluded"):
        select(X, posterior=POSTERIOR, budget=8, pending=[0, 1], exclude=[2])


@pytest.mark.parametrize(
    ("pending", "message"),
    [([10], "names point 10"), ([-1], "names point -1"), ([0.5], "integers"), ([[1]], "integers")],
)
def test_wrong_positions(pending, message):
    with pytest.raises(InputError, match=message):
        select(X, posterior=POSTERIOR, budget=1, pending=pending)


def test_probabilities():
    wrong = PROBS.copy()
    wrong[2, 3] = [1.0, 0.5]
    with pytest.raises(InputError, match=r"row 3 sum to 1.5"):
        select(probs=wrong, budget=2)
    with pytest.raises(InputError, match="not logits"):
        select(probs=np.random.default_rng(0).normal(size=(4, 10, 3)), budget=2)
    with pytest.raises(InputError, match=r"probs has shape \(10, 2\), expected \(samples, points, classes\)"):
        select(probs=PROBS[0], budget=2)
    with pytest.raises(InputError, match=r"probs has rows of different lengths, expected .*samples, points"):
        select(probs=[[[0.5, 0.5], [0.4, 0.6]], [[0.1, 0.9]]], budget=1)
    unknown = PROBS.copy()
    unknown[3, 7, 1] = np.nan
    with pytest.raises(InputError, match=r"probabilities holds nan in row 7, at \(3, 1\)"):
        select(probs=unknown, budget=1)


def test_shapes_and_types():
    with pytest.raises(InputError, match=r"x has shape \(10, 3\), expected \(any, 2\)"):
        select(np.ones((10, 3)), posterior=POSTERIOR, budget=2)
    with pytest.raises(InputError, match=r"rows and columns, got shape \(10,\)"):
        select(X[:, 0], posterior=POSTERIOR, budget=2)
    with pytest.raises(InputError, match="holds numbers, got an array of type"):
        select(np.array([["a", "b"]]), posterior=POSTERIOR, budget=1)
    with pytest.raises(InputError, match=r"y has shape \(9,\), expected \(10\)"):
        BayesianLinearRegression().fit(torch.from_numpy(X), torch.zeros(9))
    with pytest.raises(InputError, match="labelled y holds nan in row 0"):
        BayesianLinearRegression().fit(torch.from_numpy(X), torch.full((10,), torch.nan))
    with pytest.raises(InputError, match=r"variances of shape \(3,\) do not broadcast"):
        select(means=np.zeros((4, 10)), variances=np.ones(3), budget=1)
    with pytest.raises(InputError, match=r"a variance is -1"):
        select(means=np.zeros((4, 10)), variances=-1.0, budget=1)
    with pytest.raises(InputError, match="go together"):
        select(means=np.zeros((4, 10)), budget=1)
    with pytest.raises(InputError, match="features hold 3 points, but the predictions 10"):
        select(probs=PROBS, features=X[:3], budget=1, strategy="k-center")
    with pytest.raises(InputError, match=r"vectors have shape \(3,\)"):
        VectorSpace(torch.zeros(3))
    with pytest.raises(InputError, match=r"Gram matrix has shape \(3, 2\), expected \(3, 3\)"):
        GramSpace(torch.zeros(3, 2))
    with pytest.raises(InputError, match="the space holds nan in row 1, column 0"):
        VectorSpace(torch.tensor([[1.0, torch.nan]]))


def test_covariances():
    with pytest.raises(InputError, match=r"not positive definite: its smallest eigenvalue is -1"):
        LinearPosterior(torch.zeros(2), torch.diag(torch.tensor([1.0, -1.0])), 1.0)
    with pytest.raises(InputError, match="not symmetric"):
        LinearPosterior(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.0, 1.0]]), 1.0)
    with pytest.raises(InputError, match=r"posterior covariance has shape \(3, 3\)"):
        LinearPosterior(torch.zeros(2), torch.eye(3), 1.0)
    with pytest.raises(InputError, match="noise_variance is 0"):
        LinearPosterior(torch.zeros(2), torch.eye(2), 0.0)
    with pytest.raises(InputError, match="finite only above 1"):
        NormalInverseGammaPosterior(torch.zeros(2), torch.eye(2), 1.0, 1.0)


def test_rows_are_counted_from_the_start_of_the_pool():
    probs = np.full((2, 20_000, 2), 0.5)
    probs[0, 15_000] = 0.7
    for strategy in ("acs-fw", "maxent", "bald"):
        with pytest.raises(InputError, match="row 15000 sum to"):
            select(probs=probs, budget=2, strategy=strategy)


def test_not_a_number_in_the_first_row():
    posterior = FunctionPosterior(lambda x, k: Normal(k * x[:, 0], 1.0), [0.0, 1.0])
    with pytest.raises(InputError, match="nan in row 0, column 1"):
        select(broken(np.nan, 0, 1), posterior=posterior, budget=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": "5"}, "budget is '5'"),
        ({"budget": None}, "budget is None"),
        ({"strategy": None}, "a strategy is a name or a Strategy, got NoneType"),
        ({"strategy": FrankWolfe()}, "a strategy is a name or a Strategy, got FrankWolfe"),
        ({"seed": None}, "seed is None"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"pending": None}, "pending is None"),
        ({"exclude": 3}, "exclude is 3"),
        ({"posterior": object()}, "object is no posterior"),
        ({"labelled": np.full((2, 2), np.nan)}, "array of labelled points holds nan in row 0"),
        ({"labelled": np.ones((2, 3))}, r"labelled points has shape \(2, 3\), expected \(any, 2\)"),
        ({"features": X, "labelled": X, "strategy": "badge"}, "labelled points need features too"),
        ({"features": (X, np.ones((2, 5)))}, r"has shape \(2, 5\), expected \(any, 2\)"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        select(X, **{"posterior": POSTERIOR, "budget": 2, **arguments})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 2.5}, "num_samples is 2.5, expected an integer of at least 2"),
        ({"num_samples": 0}, "num_samples is 0"),
        ({"exact": "no"}, "exact is 'no', expected true or false"),
        ({"beta": 1.0}, "no option beta; it has num_samples, exact, num_dimensions, scaling"),
    ],
)
def test_wrong_options_of_strategies(options, message):
    with pytest.raises(InputError, match=message):
        find_strategy(DEFAULT, **options)


@pytest.mark.parametrize(
    ("old", "message"),
    [
        ({"num_samples": 8}, r"pass strategy=find_strategy\(name, num_samples=...\)"),
        ({"exact": False}, r"pass strategy=find_strategy\(name, exact=...\)"),
        ({"memory": "2GB"}, r"pass resources=Resources\(memory=...\)"),
        ({"engine": "ray"}, r"pass resources=Resources\(engine=...\)"),
        ({"num_workers": 2}, r"pass resources=Resources\(num_workers=...\)"),
        (
            {"labelled_features": X},
            r"pass features=\(features of the pool, features of the labelled",
        ),
        ({"half": True}, "select has no argument half= any more"),
    ],
)
def test_old_arguments_say_the_new_ones(old, message):
    with pytest.raises(InputError, match=message):
        select(X, budget=2, strategy="random", **old)
    with pytest.raises(TypeError, match="unexpected keyword argument 'bugdet'"):
        select(X, budget=2, bugdet=3)


def test_a_cold_start_has_no_labelled_points():
    for strategy in ("k-center", "acs-lcmd", "greedy-logdet"):
        assert len(select(X, posterior=POSTERIOR, budget=2, strategy=strategy, labelled=X[:0])) == 2
    empty = {"labelled": PROBS[:, :0], "features": (X, X[:0])}
    assert len(select(probs=PROBS, budget=2, strategy="k-center", **empty)) == 2
    assert len(select(means=X.T, variances=1.0, budget=2, labelled=X.T[:, :0])) == 2


def test_one_sample_or_one_class():
    for strategy in ("predictive-lcmd", "bald", "power-bald"):
        with pytest.raises(InputError, match="a single posterior sample cannot disagree"):
            select(probs=PROBS[:1], budget=2, strategy=strategy)
    with pytest.raises(
        InputError, match=r"expected \(samples, points, classes\); of a single model, pass probs\[None\]"
    ):
        select(probs=PROBS[0], budget=2)
    for strategy in ("margin", "predictive-lcmd"):
        with pytest.raises(InputError, match="at least two classes"):
            select(probs=np.ones((4, 10, 1)), budget=2, strategy=strategy)
    with pytest.raises(InputError, match="at least one sample"):
        FunctionPosterior(lambda x, k: x, [])


def test_selectors_and_sources_that_do_not_fit():
    with pytest.raises(InputError, match="TopB chooses from a Score, got VectorSpace"):
        TopB().select(VectorSpace(torch.ones(2, 3)), 1)
    with pytest.raises(InputError, match="FrankWolfe chooses from a Space, got Score"):
        FrankWolfe().select(Score(torch.ones(3)), 1)
    with pytest.raises(InputError, match="start is 'foo'"):
        FrankWolfe(start="foo")


def test_unknown_strategies():
    with pytest.raises(InputError, match="unknown strategy 'acsfw'; did you mean 'acs-fw'"):
        select(X, posterior=POSTERIOR, budget=1, strategy="acsfw")
    with pytest.raises(InputError, match="there are acs-fw"):
        select(X, posterior=POSTERIOR, budget=1, strategy="zzzz")


def test_models_that_do_not_fit_the_strategy():
    with pytest.raises(InputError, match="needs class probabilities, but the model predicts a Normal"):
        select(X, posterior=POSTERIOR, budget=1, strategy="margin")
    with pytest.raises(InputError, match="needs a model"):
        select(X, budget=1)
    with pytest.raises(InputError, match="nothing to choose from"):
        select(budget=1)
    with pytest.raises(InputError, match="only one of"):
        select(X, posterior=POSTERIOR, probs=PROBS, budget=1)
    with pytest.raises(InputError, match="has no last layer"):
        select(probs=PROBS, budget=1, strategy="acs-fisher")
    mixed = FunctionPosterior(lambda x, k: (Normal if k else Laplace)(x[:, 0], 1.0), [0, 1])
    with pytest.raises(InputError, match="several families"):
        select(X, posterior=mixed, budget=1)
    with pytest.raises(InputError, match="returned Tensor, expected a torch Distribution"):
        select(X, posterior=FunctionPosterior(lambda x, k: x, [0]), budget=1)
    with pytest.raises(InputError, match="a power needs scores of at least zero"):
        GumbelTopB("power").select(Score(torch.tensor([-1.0, 2.0])), 1)
    with pytest.raises(InputError, match="batches to try"):
        Exhaustive(max_batches=5).select(VectorSpace(torch.randn(2, 10)), 3)


def test_files(tmp_path):
    with pytest.raises(InputError, match="there is no file or folder"):
        select(tmp_path / "missing.parquet", budget=1)
    with pytest.raises(InputError, match="holds no file ending in"):
        select(tmp_path, budget=1)
    pyarrow.parquet.write_table(pa.table({"a": [1.0], "name": ["x"]}), tmp_path / "pool.parquet")
    with pytest.raises(InputError, match="has no column 'b'; it has a, name"):
        coresift.ArrowPool(tmp_path / "pool.parquet", ["b"])
    with pytest.raises(InputError, match=r"column 'name' of .* holds string"):
        coresift.ArrowPool(tmp_path / "pool.parquet", ["name"])


def test_files_that_are_no_pools(tmp_path):
    (tmp_path / "pool.csv").write_text("a,b")
    with pytest.raises(InputError, match=r"pool.csv is no pool: its name should end in .npy, .parquet"):
        select(tmp_path / "pool.csv", budget=1)
    (tmp_path / "pool.parquet").write_bytes(b"not parquet")
    with pytest.raises(InputError, match="cannot read"):
        select(tmp_path / "pool.parquet", budget=1)
    with pytest.raises(InputError, match=r"cannot read .*missing.npy"):
        select(tmp_path / "missing.npy", budget=1)


def test_duplicate_points_enter_once():
    rows = np.concatenate([X[:3], X[:3], X[:3]])
    for strategy in coresift.STRATEGIES:
        if strategy in ("margin", "badge", "batch-bald", "random"):
            continue
        batch = select(rows, posterior=POSTERIOR, budget=3, strategy=strategy)
        assert len(set((batch.index % 3).tolist())) == 3, strategy
        assert len(select(rows, posterior=POSTERIOR, budget=7, strategy=strategy)) == 7, strategy


def test_a_score_of_nan_is_caught():
    with pytest.raises(InputError, match="the score holds nan in row 1"):
        TopB().select(Score(torch.tensor([1.0, torch.nan])), 1)


def test_nothing_is_left_changed():
    """A selector does not write into what it is given."""
    vectors = torch.randn(4, 20, generator=torch.Generator().manual_seed(0))
    before, pending = vectors.clone(), np.array([1, 2])
    space = VectorSpace(vectors)
    FrankWolfe().select(space, 5, pending=pending)
    assert torch.equal(vectors, before)
    assert pending.tolist() == [1, 2]
    assert torch.equal(space.total(), vectors.double().sum(1))


def test_numbers_of_numpy_count_as_numbers():
    probs = np.random.default_rng(0).dirichlet(np.ones(2), (4, 200))
    batches = [
        select(probs=probs, budget=number(100), strategy=find_strategy(DEFAULT, num_samples=number(64)))
        for number in (int, np.int64)
    ]
    assert batches[0].index.tolist() == batches[1].index.tolist()
    assert len(select(probs=probs, budget=np.int64(100))) == 100


def test_features_of_labelled_points_go_with_labelled_points():
    with pytest.raises(InputError, match="labelled= holds 4 points, but features= those of 3"):
        select(probs=PROBS, labelled=PROBS[:, :4], features=(X, X[:3]), strategy="badge", budget=2)
    # What measures no distances among features needs none of the labelled points.
    for strategy in ("bald", "predictive-lcmd"):
        given = {"means": X.T, "variances": 1.0, "labelled": X.T[:, :4]}
        assert len(select(X, **given, strategy=strategy, budget=2)) == 2


def test_arrays_that_torch_does_not_know(tmp_path):
    wide = X.astype(np.longdouble)
    assert select(wide, strategy="k-center", budget=3).index.tolist() == [
        *select(X, strategy="k-center", budget=3).index
    ]
    assert len(select(means=X.T.astype(object), variances=1.0, budget=2)) == 2
    with pytest.raises(InputError, match="an array holds object, expected numbers"):
        select(X, strategy="k-center", labelled=np.array([["a", "b"]], dtype=object), budget=2)
    table = pa.table({"a": [True, None, False], "b": [1.0, 2.0, 3.0]})
    pyarrow.parquet.write_table(table, tmp_path / "pool.parquet")
    with pytest.raises(InputError, match="the pool holds nan in row 1, column 0"):
        select(tmp_path / "pool.parquet", strategy="k-center", budget=1)
    with pytest.raises(InputError, match=r"pending has shape \(\) and type int64"):
        select(X, strategy="random", budget=2, pending=np.array(3))


@pytest.mark.parametrize("model", [BayesianLinearRegression(noise_variance=1.0), BayesianProbitRegression()])
def test_models_take_halves_and_forget_gradients(model):
    x = torch.from_numpy(X)
    y = (x[:, 0] > 0).double()
    assert model.fit(x.half(), y.half()).mean.dtype in (torch.float32, torch.float64)
    posterior = model.fit(x.clone().requires_grad_(), y)
    assert len(select(X, posterior=posterior, strategy="acs-fw", budget=3)) == 3


def test_one_class_tells_nothing_apart():
    one = SoftmaxPosterior(torch.zeros(1, 2), torch.ones(1, 2), torch.zeros(0, 1, 2))
    for strategy in ("acs-fw", "predictive-lcmd", "bald", "maxent", "margin"):
        with pytest.raises(InputError, match="at least two classes are needed"):
            select(X, posterior=one, strategy=strategy, budget=3)


def test_a_laplace_prior_needs_outputs_that_are_not_all_zero():
    network = torch.nn.Sequential(torch.nn.Linear(2, 1))
    torch.nn.init.zeros_(network[0].weight)
    torch.nn.init.zeros_(network[0].bias)
    with pytest.raises(InputError, match="outputs are all zero"):
        laplace_posterior(network, "0", X.astype(np.float32), X[:, 0].astype(np.float32), task="regression")


def test_lists_of_different_lengths_and_other_oddities():
    with pytest.raises(InputError, match=r"pending is \[\[1\], \[2, 3\]\], expected a list of integers"):
        select(X, strategy="random", budget=2, pending=[[1], [2, 3]])
    with pytest.raises(InputError, match="beta is '1', expected a number"):
        GumbelTopB("power", "1")
    with pytest.raises(InputError, match="features of labelled points go with labelled= here"):
        select(probs=PROBS, features=(X, X[:3]), strategy="badge", budget=2)


def test_a_dead_layer_says_nothing_of_a_prior():
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2, bias=False))
    torch.nn.init.constant_(network[0].bias, -100.0)
    with pytest.raises(InputError, match="inputs are all zero"):
        laplace_posterior(network, "2", X.astype(np.float32), np.arange(len(X)) % 2)


def test_a_fitted_estimator_is_taken_for_its_posterior():
    model = NeuralLinearRegressor(epochs=2, calibration_folds=0, progress=False, random_state=0)
    with pytest.raises(InputError, match=r"NeuralLinearRegressor is not fitted yet; call fit\(X, y\)"):
        select(X, posterior=model, budget=2)
    model.fit(X, X[:, 0])
    batches = [select(X, posterior=given, labelled=X[:3], budget=2) for given in (model, model.posterior_)]
    assert batches[0].index.tolist() == batches[1].index.tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (BayesianLinearRegression(), r"pass what its fit\(x, y\) returns"),
        (LinearRegression(), "pass what several fits of it predict as probs="),
        (LinearPosterior, "LinearPosterior is no posterior"),
        (NeuralLinearRegressor, "NeuralLinearRegressor is no posterior"),
        (3, "int is no posterior: it lacks sample, conditional or predictive"),
    ],
)
def test_what_is_no_posterior(given, message):
    with pytest.raises(InputError, match=message):
        select(X, posterior=given, budget=2)


@pytest.mark.parametrize(
    "given",
    [{"probs": PROBS[:1]}, {"means": X.T[:1], "variances": np.arange(1.0, 11.0)}],
    ids=["classes", "numbers"],
)
def test_the_hint_for_a_single_model_names_strategies_that_work(given):
    for strategy in ("predictive-lcmd", "acs-fw", "bald"):
        with pytest.raises(InputError, match="a single posterior sample") as caught:
            select(**given, budget=2, strategy=strategy)
        hints = re.findall("'([a-z-]+)'", str(caught.value))
        assert hints
        for hint in hints:
            assert len(select(**given, budget=2, strategy=hint)) == 2


def test_labelled_points_do_not_take_the_variances_of_the_pool():
    means, variances = np.random.default_rng(0).normal(size=(4, 10)), np.arange(1.0, 11.0)
    for own in (variances, np.ones((4, 10)), torch.ones(10)):
        with pytest.raises(
            InputError, match=r"are those of the pool's points.*labelled=\(means, variances\)"
        ):
            select(means=means, variances=own, labelled=means, budget=2)
    with pytest.raises(InputError, match=r"labelled is a tuple of 3, expected \(means, variances\)"):
        select(means=means, variances=1.0, labelled=(means, 1.0, 1.0), budget=2)
    for shared in (1.0, np.ones((4, 1)), torch.ones(1)):
        batches = [
            select(means=means, variances=shared, labelled=given, budget=2).index.tolist()
            for given in (means[:, :3], (means[:, :3], shared))
        ]
        assert batches[0] == batches[1]


def test_swapped_axes_are_noticed():
    """Members agree about a point more than a member does about all points, or they have learned nothing."""
    random = np.random.default_rng(0)
    points = random.dirichlet(np.ones(3), 500)
    probs = 0.9 * points + 0.1 * random.dirichlet(np.ones(3), (20, 500))  # (K, N, C)
    means = probs[..., 0]
    with pytest.warns(UserWarning, match=r"500 samples of 20 points.*np.swapaxes\(probs, 0, 1\)"):
        select(probs=probs.swapaxes(0, 1), budget=2)
    with pytest.warns(UserWarning, match=r"500 samples of 20 points.*np.swapaxes\(means, 0, 1\)"):
        select(means=torch.from_numpy(means.T), variances=1.0, budget=2)
    select(probs=probs, budget=2)
    # Many samples of few points are in order.
    few = 0.9 * points[:20] + 0.1 * random.dirichlet(np.ones(3), (1000, 20))
    select(probs=few, budget=2)
    select(means=few[..., 0], variances=1.0, budget=2)


@pytest.mark.parametrize("classes", [2, 10, 10_000])
def test_a_certain_point_has_no_entropy(classes):
    probs = torch.zeros(1, 2, classes)
    probs[..., 0] = 1
    assert float(ClassSamples(2).predictive(probs).entropy()) < 1e-3


def test_vectors_that_cancel_carry_no_information():
    vectors = torch.randn(5, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    centred = vectors - vectors.mean(1, keepdim=True)
    for nothing in (VectorSpace(centred), VectorSpace(centred.float()), GramSpace(centred.mT @ centred)):
        for selector in (KCenter(), FrankWolfe()):
            assert selector.select(nothing, 10).information == 0
    assert KCenter().select(VectorSpace(vectors), 10).information > 0.1


@pytest.mark.parametrize("memory", ["1e400", "1.2.3GB", "lots", "", True, -1, float("nan"), float("inf"), []])
def test_memory_that_is_no_number_of_bytes(memory):
    with pytest.raises(InputError, match="expected '2GB'"):
        select(X, strategy="random", budget=2, resources=Resources(memory=memory))


@pytest.mark.parametrize("variances", ["x", b"x", [[1], [2, 3]], {}, object(), np.array(["a"])])
def test_variances_that_are_no_numbers(variances):
    with pytest.raises(InputError, match="expected a positive number or an array of such numbers"):
        select(means=np.zeros((4, 10)), variances=variances, budget=2)
    assert len(select(means=X.T, variances=10**30, budget=2)) == 2


@pytest.mark.parametrize("strategy", sorted(coresift.STRATEGIES))
def test_no_samples_and_no_classes(strategy):
    for shape in ((0, 10, 3), (4, 10, 0), (4, 0, 3)):
        with pytest.raises(InputError, match="expected at least one of each"):
            select(probs=np.ones(shape), budget=2, strategy=strategy)
    with pytest.raises(InputError, match="expected at least one of each"):
        select(means=np.ones((0, 10)), variances=1.0, budget=2, strategy=strategy)
    if strategy not in (
        "random",
        "k-center",
        "k-medoids",
        "lcmd",
        "typiclust",
    ):  # which look at no probabilities
        with pytest.raises(InputError, match=r"at least two classes are needed|has no last layer"):
            select(X, probs=np.ones((4, 10, 1)), budget=2, strategy=strategy)


def test_arrays_in_files_that_are_none(tmp_path):
    np.save(tmp_path / "good.npy", X)
    np.savez(tmp_path / "pool.npz", X)
    good, archive = (tmp_path / "good.npy").read_bytes(), (tmp_path / "pool.npz").read_bytes()
    cases = {
        b"": "it is empty",
        archive: "it is an archive of arrays, as np.savez writes them; save one array with np.save",
        good[:40]: "EOF",
        good[:150]: "mmap length is greater than file size",
        good.replace(b"{'descr'", b"(((((((("): "cannot read",
        good.replace(b"(10, 2), }  ", b"(10" + b"0" * 30 + b", 2), }")[: len(good)]: "cannot read",
    }
    for content, message in cases.items():
        (tmp_path / "pool.npy").write_bytes(content)
        with pytest.raises(InputError, match=message) as caught:
            select(tmp_path / "pool.npy", strategy="random", budget=2)
        assert "\n" not in str(caught.value)
        with pytest.raises(InputError, match=r"cannot read .*pool.npy"):
            coresift.as_pool(tmp_path)


ODD = [
    *(
        None,
        -1,
        0,
        1.5,
        True,
        10**30,
        float("nan"),
        float("inf"),
        "",
        "x",
        "a\0b",
        b"x",
        [],
        {},
        {1},
        (1, 2, 3),
    ),
    *(
        object(),
        np.str_("x"),
        np.float64("nan"),
        np.array(3.0),
        np.ones(3),
        np.empty((0, 2)),
        np.ones((10, 2, 0)),
    ),
    *(
        np.array([1, "a", None], object),
        np.ones((10, 2), complex),
        np.array([["a", "b"]] * 10),
        [[1], [2, 3]],
    ),
    *(torch.empty(10, 2, device="meta"), torch.eye(10).to_sparse(), torch.ones(10, 2, dtype=torch.complex64)),
]
FORMS = {
    "posterior": {"pool": X, "posterior": POSTERIOR},
    "probs": {"probs": PROBS},
    "means": {"means": X.T, "variances": 1.0},
    "features": {"pool": X, "features": X, "strategy": "k-center"},
}
for _form in ("posterior", "probs", "means"):
    FORMS[f"{_form} and target"] = {**FORMS[_form], "strategy": "variance-reduction"}
DOORS = [
    *(
        ("posterior", name)
        for name in ("pool", "posterior", "budget", "strategy", "labelled", "pending", "exclude")
    ),
    *(("posterior", name) for name in ("num_samples", "exact", "memory", "engine", "num_workers", "seed")),
    *(("probs", name) for name in ("probs", "labelled", "features")),
    *(("means", name) for name in ("means", "variances", "labelled")),
    *((f"{form} and target", "target") for form in ("posterior", "probs", "means")),
    ("features", "features"),
    ("features", "features of labelled points"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("form", "name"), DOORS)
def test_odd_arguments_are_taken_or_refused_in_one_line(form, name):
    for value in ODD:
        try:
            if name in ("memory", "engine", "num_workers"):
                given = {"resources": Resources(**{name: value})}
            elif name in ("num_samples", "exact"):
                given = {"strategy": find_strategy(DEFAULT, **{name: value})}
            elif name == "features of labelled points":
                given = {"features": (X, value)}
            else:
                given = {name: value}
            batch = select(**{"budget": 2, **FORMS[form], **given})
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert len(batch) == 2


@pytest.mark.parametrize("name", list(DropoutClassifier().get_params()))
def test_odd_options_of_estimators(name):
    for value in (-1, 1.5, "x", [], {}, object(), float("nan"), float("inf"), np.ones(3)):
        model = DropoutClassifier(**{"epochs": 0, "progress": False, "random_state": 0, name: value})
        with contextlib.suppress(InputError):
            model.fit(X, X[:, 0] > 0)


@pytest.mark.parametrize(
    "value", [None, 3, np.ones(3), np.empty((0, 2)), np.full((10, 2), np.nan), [["a"]] * 10]
)
def test_odd_rows_of_estimators(value):
    model = NeuralLinearRegressor(epochs=1, calibration_folds=0, progress=False, random_state=0)
    with pytest.raises(InputError):
        model.fit(value, X[:, 0])
    model.fit(X, X[:, 0])
    with pytest.raises(InputError):
        model.predict(value)
