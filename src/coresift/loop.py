"""The ring: fit, look, choose, ask, add; replayed on a table whose labels are all known.

A run's `State` is a value, and all chance is drawn from its seed and its number of labels. So a run that was
stopped goes on from what is written down of it, to the same end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from joblib import Parallel, delayed

from coresift.pool import ArrayPool
from coresift.strategies import Strategy, find_strategy, select
from coresift.types import Floats, Index, InputError

# Below this many pool points a batch is chosen faster on the CPU than on a GPU.
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
        if self.refit_every is not None and self.refit_every < 1:
            raise InputError(f"refit_every is {self.refit_every}, expected at least 1")

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
    rmse, log_density : error and mean predictive log density on the test points.
    chosen : rows chosen then; none in the last round.
    guesses : predictions to stand for the labels of the chosen rows, where they are imputed.
    bought : rows whose true labels came in.
    fit_seconds : this run's share of the training.
    select_seconds : what it took to build the batch.
    """

    fits: int
    labels: int
    guessed: int
    rmse: float
    log_density: float
    chosen: tuple[int, ...] = ()
    guesses: tuple[float, ...] = ()
    bought: tuple[int, ...] = ()
    fit_seconds: float = 0.0
    select_seconds: float = 0.0


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
    guesses: tuple[tuple[int, float], ...] = ()
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
    x, y : (N, d) rows and (N,) labels.
    model : an estimator with ``fit_many``, such as `NeuralLinearRegressor`.
    first : labels at the start, drawn at random.
    batch : labels bought in a round.
    budget : labels bought in all.
    test_share : of the rows, kept for testing.
    workers : processes that evaluate and choose side by side, where the pool is small.

    >>> from coresift.models import NeuralLinearRegressor
    >>> x = np.linspace(-1, 1, 60)[:, None]
    >>> model = NeuralLinearRegressor(epochs=5, calibration_folds=0)
    >>> simulation = Simulation(x, x[:, 0] ** 2, model, first=10, batch=5, budget=10)
    >>> states = [simulation.begin(Method("acs-fw"), seed) for seed in range(3)]
    >>> [[turn.labels for turn in turns] for turns in run(simulation, states)]
    [[10, 10, 10], [15, 15, 15], [20, 20, 20]]
    """

    x: npt.NDArray[Any]
    y: Floats
    model: Any
    first: int = 20
    batch: int = 10
    budget: int = 100
    test_share: float = 0.2
    workers: int = 1

    def __post_init__(self) -> None:
        if self._test_size < 1 or self.workers < 1:
            raise InputError(
                f"test_share {self.test_share} keeps {self._test_size} rows for testing, with {self.workers} "
                "workers; expected at least one of each"
            )
        needed, have = self.first + self.budget, len(self.x) - self._test_size
        if min(self.first, self.batch, self.budget) < 1 or needed > have:
            raise InputError(
                f"{self.first} first labels and {self.budget} bought in batches of {self.batch} cannot come "
                f"from the {have} rows that are not kept for testing"
            )

    @property
    def _test_size(self) -> int:
        return round(self.test_share * len(self.x))

    def _order(self, seed: int) -> Index:
        return np.random.default_rng(seed).permutation(len(self.x))

    def test_rows(self, seed: int) -> Index:
        """(M,) the rows kept for testing."""
        return self._order(seed)[: self._test_size]

    def pool_rows(self, state: State) -> Index:
        """(N',) the rows that may be chosen next."""
        rows = self._order(state.seed)[self._test_size :]
        return rows[~np.isin(rows, self.known(state)[0])]

    def begin(self, method: Method, seed: int) -> State:
        """The state of a run with its first labels, which are the same for every method."""
        rows = self._order(seed)[self._test_size : self._test_size + self.first]
        return State(method, seed, tuple(rows.tolist()))

    def known(self, state: State) -> tuple[Index, Floats]:
        """Rows and labels to train on, guesses among them."""
        rows = np.array([*state.labelled, *(row for row, _ in state.guesses)])
        return rows, np.concatenate(
            [self.y[rows[: len(state.labelled)]], [guess for _, guess in state.guesses]]
        )

    def _wanted(self, state: State) -> int:
        """How many points to choose now."""
        open_labels = self.first + self.budget - len(state.labelled) - len(state.guesses)
        left_in_batch = self.batch - len(state.guesses)
        return min(state.method.refit_every or self.batch, left_in_batch, open_labels)


def step(simulation: Simulation, states: Sequence[State]) -> tuple[list[State], list[Round]]:
    """One turn for each of several runs; their models are trained as one computation."""
    sets = []
    for state in states:
        rows, labels = simulation.known(state)
        sets.append((simulation.x[rows], labels))
    began = time.perf_counter()
    models = simulation.model.fit_many(sets, [_seed(state, 0) for state in states])
    share = (time.perf_counter() - began) / len(states)
    small = len(simulation.x) < SMALL_POOL
    posteriors = [model.posterior_ for model in models]
    if small and simulation.model.device != "cpu":
        posteriors = [posterior.to("cpu") for posterior in posteriors]
    workers = simulation.workers if small else 1
    # One thread for each worker: several that wait for each other are many times slower than none.
    threads = 1 if workers > 1 else torch.get_num_threads()
    look = delayed(_look_and_choose)
    rounds = Parallel(n_jobs=workers)(
        look(simulation, state, posterior, threads)
        for state, posterior in zip(states, posteriors, strict=True)
    )
    rounds = [replace(turn, fit_seconds=share) for turn in rounds]
    return [state.after(turn) for state, turn in zip(states, rounds, strict=True)], rounds


def run(simulation: Simulation, states: Sequence[State]) -> Iterator[list[Round]]:
    """Turn until every run has bought its labels and learned from them; yields the rounds of each turn."""
    while states := [state for state in states if not state.done]:
        states, rounds = step(simulation, states)
        yield rounds


def _look_and_choose(simulation: Simulation, state: State, posterior: Any, threads: int) -> Round:
    """Test the model, then choose what to ask next."""
    torch.set_num_threads(threads)
    test = simulation.test_rows(state.seed)
    predictive = posterior.predictive(torch.as_tensor(simulation.x[test]))
    target = torch.as_tensor(simulation.y[test]).to(predictive.mean)
    turn = Round(
        fits=state.fits,
        labels=len(state.labelled),
        guessed=len(state.guesses),
        rmse=float((predictive.mean - target).square().mean().sqrt()),
        log_density=float(predictive.log_prob(target).mean()),
    )
    wanted = simulation._wanted(state)
    if wanted == 0:
        return turn
    pool = simulation.pool_rows(state)
    method = state.method
    began = time.perf_counter()
    batch = select(
        ArrayPool(simulation.x[pool]),
        budget=wanted,
        strategy=method.resolved(),
        posterior=posterior,
        labelled=simulation.x[simulation.known(state)[0]],
        num_samples=method.num_samples,
        exact=method.exact,
        seed=_seed(state, 1),
    )
    seconds = time.perf_counter() - began
    chosen = tuple(pool[batch.index].tolist())
    guesses: tuple[float, ...] = ()
    bought = chosen
    if method.impute:
        predicted = posterior.predictive(torch.as_tensor(simulation.x[list(chosen)])).mean
        guesses = tuple(predicted.double().tolist())
        waiting = (*(row for row, _ in state.guesses), *chosen)
        labels = len(state.labelled) + len(waiting)
        complete = len(waiting) == simulation.batch or labels == simulation.first + simulation.budget
        bought = waiting if complete else ()
    return replace(turn, chosen=chosen, guesses=guesses, bought=bought, select_seconds=seconds)


def _seed(state: State, purpose: int) -> int:
    """A seed that runs of other methods share where they stand at the same number of labels."""
    labels = len(state.labelled) + len(state.guesses)
    return int(np.random.SeedSequence([state.seed, labels, purpose]).generate_state(1)[0])
