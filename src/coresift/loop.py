"""The ring: fit, look, choose, ask, add; replayed on a table whose labels are all known.

A run's `State` is a value, and all chance is drawn from its seed and its number of labels. So a run that was
stopped goes on from what is written down of it, to the same end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from joblib import Parallel, delayed
from sklearn.base import ClassifierMixin
from torch import Tensor

from coresift.checks import check_switch, check_whole
from coresift.pool import ArrayPool
from coresift.posteriors.samples import FLOOR
from coresift.strategies import Strategy, find_strategy, select
from coresift.types import Index, InputError

Label: TypeAlias = float | int | str
# Below this many rows of a table a batch is chosen faster on the CPU than on a GPU.
SMALL_POOL = 50_000


@dataclass(frozen=True)
class Method:
    """How labels are bought.

    Attributes
    ----------
    strategy : a name from `STRATEGIES`, or a `Strategy`.
    num_samples : J, posterior samples; grows with the batch by default.
    exact : use closed forms where the model has them.
    fill : let Frank-Wolfe and GIGA make batches of full size; without, they buy fewer labels in a round.
    refit_every : points chosen between two fits; ``None`` for the whole batch.
    impute : until its batch is complete, a chosen point has the model's own prediction for a label.

    >>> Method("acs-fw", num_samples=10, exact=False, fill=False).resolved().selector
    FrankWolfe(fill=False, tolerance=1e-06, start='zero')
    """

    strategy: str | Strategy
    num_samples: int | None = None
    exact: bool = True
    fill: bool = True
    refit_every: int | None = None
    impute: bool = False

    def __post_init__(self) -> None:
        for name, least in (("refit_every", 1), ("num_samples", 2)):
            if getattr(self, name) is not None:
                # An int of Python also where it came as one of NumPy, which has no place in a log.
                object.__setattr__(self, name, check_whole(getattr(self, name), least, name))
        for name in ("exact", "fill", "impute"):
            check_switch(getattr(self, name), name)

    def resolved(self) -> Strategy:
        """The strategy with its options."""
        strategy = find_strategy(self.strategy)
        if self.fill:
            return strategy
        if not hasattr(strategy.selector, "fill"):
            raise InputError(f"fill=False is for Frank-Wolfe and GIGA, not for {self.strategy!r}")
        selector: Any = strategy.selector
        return replace(strategy, selector=replace(selector, fill=False))


@dataclass(frozen=True)
class Round:
    """What one turn of the loop did.

    Attributes
    ----------
    fits : how often the model had been trained before.
    labels : true labels it was now trained on.
    guessed : further labels that were its own predictions.
    rmse : error on the test points; ``None`` of classes.
    log_density : mean predictive log density of the test points, or log probability of their true classes; a
        class that the model has not met yet counts with a probability of 1e-6.
    chosen : rows chosen then; none in the last round.
    guesses : predictions to stand for the labels of the chosen rows, where they are imputed.
    bought : rows whose true labels came in.
    fit_seconds : this run's share of the training.
    select_seconds : what it took to build the batch.
    accuracy, calibration_error : of classes, the share of test points whose most likely class is the true
        one, and how far such shares are from the probabilities given, on average; see `calibration_error`.
    """

    fits: int
    labels: int
    guessed: int
    rmse: float | None
    log_density: float
    chosen: tuple[int, ...] = ()
    guesses: tuple[Label, ...] = ()
    bought: tuple[int, ...] = ()
    fit_seconds: float = 0.0
    select_seconds: float = 0.0
    accuracy: float | None = None
    calibration_error: float | None = None

    @property
    def error(self) -> float:
        """What methods are compared by: the RMSE or, of classes, the share that is wrong."""
        if self.accuracy is not None:
            return 1 - self.accuracy
        assert self.rmse is not None, "a round measures one or the other"
        return self.rmse


@dataclass(frozen=True)
class State:
    """Where a run stands: all that its next step needs.

    Attributes
    ----------
    seed : of the split, the first labels, the networks and the choices.
    labelled : rows with a label, in the order in which they came.
    guesses : rows chosen since, with the model's predictions for their labels.
    fits : how often the model was trained.
    done : whether all labels are bought and learned.
    """

    method: Method
    seed: int
    labelled: tuple[int, ...]
    guesses: tuple[tuple[int, Label], ...] = ()
    fits: int = 0
    done: bool = False

    def after(self, turn: Round) -> State:
        """The state after a round."""
        guesses = () if turn.bought else (*self.guesses, *zip(turn.chosen, turn.guesses, strict=False))
        return replace(
            self,
            labelled=self.labelled + turn.bought,
            guesses=guesses,
            fits=self.fits + 1,
            done=not turn.chosen,
        )


@dataclass(frozen=True, eq=False)
class Simulation:
    """A table whose labels are all known, to replay labelling on.

    Attributes
    ----------
    x, y : (N, ...) rows and (N,) labels, numbers or classes; images of bytes may be a tensor on a GPU.
    model : an estimator with ``fit_many``, such as `NeuralLinearRegressor` or, for classes,
        `NeuralLinearClassifier`.
    first : labels at the start, drawn at random; of classes, of two at least where there are two.
    batch : labels bought in a round.
    budget : labels bought in all; none for what a model is worth with the first ones.
    test_share : of the rows, kept for testing, other ones for each seed.
    num_test : instead, the last rows are for testing, that many for every seed.
    workers : processes that evaluate and choose side by side, where the pool is small and not of images on a
        GPU.

    >>> from coresift.estimators import NeuralLinearRegressor
    >>> x = np.linspace(-1, 1, 60)[:, None]
    >>> model = NeuralLinearRegressor(epochs=5, calibration_folds=0)
    >>> simulation = Simulation(x, x[:, 0] ** 2, model, first=10, batch=5, budget=10)
    >>> states = [simulation.begin(Method("acs-fw"), seed) for seed in range(3)]
    >>> [[turn.labels for turn in turns] for turns in run(simulation, states)]
    [[10, 10, 10], [15, 15, 15], [20, 20, 20]]
    """

    x: npt.NDArray[Any] | Tensor
    y: npt.NDArray[Any]
    model: Any
    first: int = 20
    batch: int = 10
    budget: int = 100
    test_share: float = 0.2
    num_test: int | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        for name, least in (("first", 1), ("batch", 1), ("budget", 0), ("num_test", 1), ("workers", 1)):
            if getattr(self, name) is not None or name != "num_test":
                object.__setattr__(self, name, check_whole(getattr(self, name), least, name))
        if self._test_size < 1:
            raise InputError(
                f"test_share {self.test_share} keeps {self._test_size} rows for testing, expected one or more"
            )
        if len(self.x) != len(self.y):
            raise InputError(f"x holds {len(self.x)} rows, but y {len(self.y)} labels")
        needed, have = self.first + self.budget, len(self.x) - self._test_size
        if needed > have:
            raise InputError(
                f"{self.first} first labels and {self.budget} bought in batches of {self.batch} cannot come "
                f"from the {have} rows that are not kept for testing"
            )

    @property
    def _test_size(self) -> int:
        return round(self.test_share * len(self.x)) if self.num_test is None else self.num_test

    @property
    def one_by_one(self) -> bool:
        """Whether ``fit_many`` trains one model after the other, as it does on images of bytes."""
        return str(self.x.dtype).endswith("uint8")

    def _order(self, seed: int) -> Index:
        """(N,) the rows, those for testing first."""
        if self.num_test is None:
            return np.random.default_rng(seed).permutation(len(self.x))
        others = len(self.x) - self.num_test
        test = np.arange(others, len(self.x))
        return np.concatenate([test, np.random.default_rng(seed).permutation(others)])

    def test_rows(self, seed: int) -> Index:
        """(M,) the rows kept for testing."""
        return self._order(seed)[: self._test_size]

    def pool_rows(self, state: State) -> Index:
        """(N',) the rows that may be chosen next."""
        rows = self._order(state.seed)[self._test_size :]
        return rows[~np.isin(rows, self.known(state)[0])]

    def begin(self, method: Method, seed: int) -> State:
        """The state of a run with its first labels, which are the same for every method.

        A model of one class can tell nothing apart: if all would be of one, the last makes room for another.
        """
        seed = check_whole(seed, 0, "seed")
        order = self._order(seed)[self._test_size :]
        rows, others = order[: self.first], order[self.first :]
        if isinstance(self.model, ClassifierMixin):
            different = others[self.y[others] != self.y[rows[0]]]
            if len(different) and (self.y[rows] == self.y[rows[0]]).all():
                rows[-1] = different[0]
        return State(method, seed, tuple(rows.tolist()))

    def known(self, state: State) -> tuple[Index, npt.NDArray[Any]]:
        """Rows and labels to train on, guesses among them."""
        rows = np.array([*state.labelled, *(row for row, _ in state.guesses)])
        labels = self.y[rows[: len(state.labelled)]]
        if not state.guesses:
            return rows, labels
        return rows, np.concatenate([labels, [guess for _, guess in state.guesses]])

    def _wanted(self, state: State) -> int:
        """How many points to choose now."""
        open_labels = self.first + self.budget - len(state.labelled) - len(state.guesses)
        left_in_batch = self.batch - len(state.guesses)
        return min(state.method.refit_every or self.batch, left_in_batch, open_labels)


# Models of the first labels by their seed, and the seconds each took.
Begun: TypeAlias = dict[int, tuple[Any, float]]


def step(
    simulation: Simulation, states: Sequence[State], begun: Begun | None = None
) -> tuple[list[State], list[Round]]:
    """One turn for each of several runs; their models are trained as one computation.

    Parameters
    ----------
    begun : keeps the models of the first labels: all methods begin with the same, so it is trained once.
    """
    models, shares = _fit(simulation, states, {} if begun is None else begun)
    small, on_cpu = len(simulation.x) < SMALL_POOL, str(simulation.model.device) == "cpu"
    posteriors = [model.posterior_ for model in models]
    # A network for images takes so long on the CPU that however few they are, it stays where it was trained.
    if small and not on_cpu and simulation.x.ndim == 2:
        posteriors, on_cpu = [posterior.to("cpu") for posterior in posteriors], True
    workers = simulation.workers if small and on_cpu else 1
    # One thread for each worker: several that wait for each other are many times slower than none.
    threads = 1 if workers > 1 else torch.get_num_threads()
    look = delayed(_look_and_choose)
    rounds = Parallel(n_jobs=workers)(
        look(simulation, state, posterior, getattr(model, "classes_", None), threads)
        for state, model, posterior in zip(states, models, posteriors, strict=True)
    )
    rounds = [replace(turn, fit_seconds=share) for turn, share in zip(rounds, shares, strict=True)]
    return [state.after(turn) for state, turn in zip(states, rounds, strict=True)], rounds


def _fit(simulation: Simulation, states: Sequence[State], begun: Begun) -> tuple[list[Any], list[float]]:
    """A model for each state, and the seconds that it took."""
    first = {state.seed: state for state in states if state.fits == 0 and state.seed not in begun}
    needed = [*first.values(), *(state for state in states if state.fits > 0)]
    found: list[tuple[Any, float]] = []
    if needed:
        known = [simulation.known(state) for state in needed]
        sets = [(simulation.x[rows], labels) for rows, labels in known]
        start = time.perf_counter()
        models = simulation.model.fit_many(sets, [_seed(state, 0) for state in needed])
        share = (time.perf_counter() - start) / len(needed)
        found = [(model, share) for model in models]
    begun |= dict(zip(first, found, strict=False))
    later = iter(found[len(first) :])
    both = [begun[state.seed] if state.fits == 0 else next(later) for state in states]
    return [model for model, _ in both], [share for _, share in both]


def run(simulation: Simulation, states: Sequence[State]) -> Iterator[list[Round]]:
    """Turn until every run has bought its labels and learned from them; yields the rounds of each turn."""
    while states := [state for state in states if not state.done]:
        states, rounds = step(simulation, states)
        yield rounds


def _look_and_choose(
    simulation: Simulation,
    state: State,
    posterior: Any,
    classes: npt.NDArray[Any] | None,
    threads: int,
) -> Round:
    """Test the model, then choose what to ask next."""
    torch.set_num_threads(threads)
    test = simulation.test_rows(state.seed)
    predictive, target = posterior.predictive(torch.as_tensor(simulation.x[test])), simulation.y[test]
    measured = _regressed(predictive, target) if classes is None else _classified(predictive, target, classes)
    turn = Round(fits=state.fits, labels=len(state.labelled), guessed=len(state.guesses), **measured)
    wanted = simulation._wanted(state)
    if wanted == 0:
        return turn
    began = time.perf_counter()
    chosen = choose(simulation, state, posterior, wanted)
    seconds = time.perf_counter() - began
    guesses: tuple[Label, ...] = ()
    bought = chosen
    if state.method.impute:
        predictive = posterior.predictive(torch.as_tensor(simulation.x[list(chosen)]))
        if classes is None:
            guesses = tuple(predictive.mean.double().tolist())
        else:
            guesses = tuple(classes[predictive.probs.argmax(1).cpu().numpy()].tolist())
        waiting = (*(row for row, _ in state.guesses), *chosen)
        labels = len(state.labelled) + len(waiting)
        complete = len(waiting) == simulation.batch or labels == simulation.first + simulation.budget
        bought = waiting if complete else ()
    return replace(turn, chosen=chosen, guesses=guesses, bought=bought, select_seconds=seconds)


def choose(simulation: Simulation, state: State, posterior: Any, budget: int) -> tuple[int, ...]:
    """Rows that a run's method would have labelled next."""
    pool, method = simulation.pool_rows(state), state.method
    batch = select(
        ArrayPool(simulation.x[pool]),
        budget=budget,
        strategy=method.resolved(),
        posterior=posterior,
        labelled=simulation.x[simulation.known(state)[0]],
        num_samples=method.num_samples,
        exact=method.exact,
        seed=_seed(state, 1),
    )
    return tuple(pool[batch.index].tolist())


def _regressed(predictive: Any, target: npt.NDArray[Any]) -> dict[str, Any]:
    truth = torch.as_tensor(target).to(predictive.mean)
    return {
        "rmse": float((predictive.mean - truth).square().mean().sqrt()),
        "log_density": float(predictive.log_prob(truth).mean()),
    }


def _classified(predictive: Any, target: npt.NDArray[Any], classes: npt.NDArray[Any]) -> dict[str, Any]:
    # A class that the model has never met has no column; a point of it is wrong, and as unlikely as what
    # models call impossible. With less, the mean would tell little but how many such points there are.
    place = np.searchsorted(classes, target).clip(max=len(classes) - 1)
    met = torch.as_tensor(classes[place] == target)
    probs = predictive.probs.double().cpu()
    given = torch.where(met, probs.gather(1, torch.as_tensor(place)[:, None])[:, 0], FLOOR)
    right = met & (probs.argmax(1) == torch.as_tensor(place))
    return {
        "rmse": None,
        "log_density": float(given.clamp(min=torch.finfo(torch.float32).tiny).log().mean()),
        "accuracy": float(right.double().mean()),
        "calibration_error": calibration_error(probs.amax(1), right),
    }


def calibration_error(confidence: Tensor, right: Tensor, bins: int = 15) -> float:
    """How far confidence and accuracy are apart, on average over points sorted into bins of confidence.

    Parameters
    ----------
    confidence : (n,) the probability of the most likely class.
    right : (n,) bool, whether it was the true one.

    References
    ----------
    Guo et al., On Calibration of Modern Neural Networks, 2017.

    >>> calibration_error(torch.tensor([0.8, 0.8, 0.8, 0.8]), torch.tensor([True, True, True, False]))
    0.05
    """
    place = (confidence * bins).long().clamp(max=bins - 1)
    gaps = torch.zeros(bins, dtype=torch.float64)
    gaps.index_add_(0, place, confidence.double() - right.double())
    return round(float(gaps.abs().sum() / len(confidence)), 6)


def _seed(state: State, purpose: int) -> int:
    """A seed that runs of other methods share where they stand at the same number of labels."""
    labels = len(state.labelled) + len(state.guesses)
    return int(np.random.SeedSequence([state.seed, labels, purpose]).generate_state(1)[0])
