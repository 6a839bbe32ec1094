"""Replays of labelling on a table whose labels are all known: the loop of `coresift.loop` with an oracle.

A run's `State` is a value, and all randomness is drawn from its seed and its number of labels. A run that was
stopped therefore goes on from what is written down of it, to the same end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from joblib import Parallel, delayed
from sklearn.base import ClassifierMixin
from torch import Tensor

from coresift import limits
from coresift.bench.measures import measure
from coresift.bench.models import judge
from coresift.bench.peers import Question, choose_by_peer, is_peer
from coresift.checks import check_integer, check_switch
from coresift.errors import InputError
from coresift.loop import turn
from coresift.pool import ArrayPool
from coresift.selection import select
from coresift.strategies import Strategy, find_strategy
from coresift.types import Index

Label: TypeAlias = float | int | str


@dataclass(frozen=True)
class Method:
    """How labels are bought.

    Attributes
    ----------
    strategy : a name from `STRATEGIES`, or a `Strategy`.
    num_samples : J, posterior samples; grows with the batch by default.
    exact : use closed forms where the model has them.
    fill : let Frank-Wolfe and GIGA fill their batches; without, they buy fewer labels in a round.
    refit_every : points chosen between two fits; ``None`` for the whole batch.
    impute : until its batch is complete, a chosen point has the model's prediction as a pseudo-label.

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
        _check_integers(self, refit_every=1, num_samples=2)
        for name in ("exact", "fill", "impute"):
            check_switch(getattr(self, name), name)

    def resolved(self) -> Strategy:
        """Return the strategy with its options."""
        if is_peer(self.strategy):
            raise InputError(f"{self.strategy} is another library's strategy, which has no options here")
        strategy = find_strategy(self.strategy)
        if not self.fill and not hasattr(strategy.selector, "fill"):
            raise InputError(f"fill=False is for Frank-Wolfe and GIGA, not for {self.strategy!r}")
        given = {"num_samples": self.num_samples, "exact": self.exact, "fill": self.fill}
        changed = {name: value for name, value in given.items() if value not in (None, True)}
        return strategy.with_options(**changed)


def _check_integers(options: Any, **least: int) -> None:
    """Check integers, or ``None`` where that is the default; a log can hold those of Python, not of NumPy."""
    for name in least:
        value = getattr(options, name)
        if value is not None or getattr(type(options), name) is not None:
            object.__setattr__(options, name, check_integer(value, least[name], name))


@dataclass(frozen=True)
class Round:
    """What one turn of a replay did; measures are those of `measure`, on the test set.

    Rounds are stored under the names of these fields, so ``guessed`` and ``guesses`` keep their names:
    both are about pseudo-labels.
    """

    fits: int  # how often the model had been trained before
    labels: int  # true labels it was now trained on
    guessed: int  # pseudo-labels it was trained on as well
    rmse: float | None  # none for classes
    log_density: float
    chosen: tuple[int, ...] = ()  # rows; none in the last round
    guesses: tuple[Label, ...] = ()  # pseudo-labels of the chosen rows, where they are imputed
    bought: tuple[int, ...] = ()  # rows whose true labels came in
    fit_seconds: float = 0.0  # this run's part of the training time
    select_seconds: float = 0.0  # to build the batch
    accuracy: float | None = None  # of classes
    calibration_error: float | None = None  # of classes
    judged: Mapping[str, float] | None = None  # errors of models that did not choose, see `judge`

    @property
    def error(self) -> float:
        """What methods are compared by: the RMSE or, for classes, the error rate."""
        if self.accuracy is not None:
            return 1 - self.accuracy
        assert self.rmse is not None, "a round measures one or the other"
        return self.rmse


@dataclass(frozen=True)
class State:
    """Where a run stands: all that its next turn needs."""

    method: Method
    seed: int  # of the split, the first labels, the networks and the choices
    labelled: tuple[int, ...]  # rows with a label, in the order in which they came
    pseudo_labels: tuple[tuple[int, Label], ...] = ()  # rows chosen since, with their pseudo-labels
    fits: int = 0  # how often the model was trained
    done: bool = False  # whether all labels are bought and learned

    def after(self, turn: Round) -> State:
        """Return the state after a round."""
        imputed = zip(turn.chosen, turn.guesses, strict=False)
        return replace(
            self,
            labelled=self.labelled + turn.bought,
            pseudo_labels=() if turn.bought else (*self.pseudo_labels, *imputed),
            fits=self.fits + 1,
            done=not turn.chosen,
        )

    def seed_of(self, purpose: int) -> int:
        """Draw a seed that runs of other methods share where they stand at the same number of labels."""
        labels = len(self.labelled) + len(self.pseudo_labels)
        return int(np.random.SeedSequence([self.seed, labels, purpose]).generate_state(1)[0])


@dataclass(frozen=True, eq=False)
class Simulation:
    """A table whose labels are all known, to replay labelling on.

    Attributes
    ----------
    x, y : (N, ...) rows and (N,) labels, numbers or classes; images of bytes may be a tensor on a GPU.
    model : an estimator with ``fit_many``, such as `NeuralLinearRegressor` or, for classes,
        `NeuralLinearClassifier`.
    first : labels at the start, drawn at random; if all were of one class, the last is replaced.
    per_class : at least so many of the first labels are of each class, as far as there are as many.
    batch : labels bought in a round.
    budget : labels bought in all; zero measures a model of the first labels.
    test_share : fraction of the rows kept as the test set, other ones for each seed.
    num_test : instead, the last so many rows are the test set for every seed.
    workers : processes that evaluate and choose side by side, for small pools that are no images on a GPU.
    judged : whether models that did not choose are trained on the last labelled set, see `judge`.

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
    per_class: int = 0
    judged: bool = False

    def __post_init__(self) -> None:
        _check_integers(self, first=1, batch=1, budget=0, workers=1, num_test=1, per_class=0)
        if self._test_size < 1:
            raise InputError(
                f"test_share {self.test_share} keeps {self._test_size} rows for testing, expected one or more"
            )
        if len(self.x) != len(self.y):
            raise InputError(f"x holds {len(self.x)} rows, but y {len(self.y)} labels")
        if self.first + self.budget > self.num_known:
            raise InputError(
                f"{self.first} first labels and {self.budget} bought in batches of {self.batch} cannot come "
                f"from the {self.num_known} rows that are not kept for testing"
            )

    @property
    def _test_size(self) -> int:
        return round(self.test_share * len(self.x)) if self.num_test is None else self.num_test

    @property
    def num_known(self) -> int:
        """How many rows are not kept for testing."""
        return len(self.x) - self._test_size

    @property
    def one_by_one(self) -> bool:
        """Whether ``fit_many`` trains one model after the other, as it does on images of bytes."""
        return str(self.x.dtype).endswith("uint8")

    def _split(self, seed: int) -> tuple[Index, Index]:
        """Return the rows of the test set and the others, in an order drawn at random."""
        random = np.random.default_rng(seed)
        if self.num_test is not None:
            return np.arange(self.num_known, len(self.x)), random.permutation(self.num_known)
        rows = random.permutation(len(self.x))
        return rows[: self._test_size], rows[self._test_size :]

    def test_rows(self, seed: int) -> Index:
        """(M,) the rows of the test set."""
        return self._split(seed)[0]

    def pool_rows(self, state: State) -> Index:
        """(N',) the rows that may be chosen next."""
        rows = self._split(state.seed)[1]
        return rows[~np.isin(rows, self.known(state)[0])]

    def begin(self, method: Method, seed: int) -> State:
        """Return the state of a run with its first labels, which are the same for every method."""
        seed = check_integer(seed, 0, "seed")
        order = self._split(seed)[1]
        if self.per_class:
            order = self._classes_first(order)
        rows, others = np.split(order, [self.first])
        if isinstance(self.model, ClassifierMixin):  # a model of one class can tell nothing apart
            different = others[self.y[others] != self.y[rows[0]]]
            if len(different) and (self.y[rows] == self.y[rows[0]]).all():
                rows[-1] = different[0]
        return State(method, seed, tuple(rows.tolist()))

    def _classes_first(self, order: Index) -> Index:
        """Move the first ``per_class`` rows of each class to the front; the rest keep their order."""
        number_in_class = np.empty(len(order), int)
        for label in np.unique(self.y[order]):
            members = np.flatnonzero(self.y[order] == label)
            number_in_class[members] = np.arange(len(members))
        return order[np.argsort(number_in_class >= self.per_class, kind="stable")]

    def known(self, state: State) -> tuple[Index, npt.NDArray[Any]]:
        """Return rows and labels to train on, pseudo-labels among them."""
        rows = np.array([*state.labelled, *(row for row, _ in state.pseudo_labels)])
        labels = self.y[rows[: len(state.labelled)]]
        if not state.pseudo_labels:
            return rows, labels
        return rows, np.concatenate([labels, [label for _, label in state.pseudo_labels]])

    def batch_size(self, state: State) -> int:
        """How many labels are bought together now; the last batch may be smaller."""
        return min(self.batch, self.first + self.budget - len(state.labelled))

    def wanted(self, state: State) -> int:
        """How many points to choose now."""
        return min(state.method.refit_every or self.batch, self.batch_size(state) - len(state.pseudo_labels))


Fitted: TypeAlias = tuple[Any, float]  # a model, and this run's part of the training time in seconds
Begun: TypeAlias = dict[int, Fitted]  # models of the first labels, by their seed


def run(simulation: Simulation, states: Sequence[State]) -> Iterator[list[Round]]:
    """Turn until every run has bought its labels and learned from them; yields the rounds of each turn."""
    while states := [state for state in states if not state.done]:
        states, rounds = step(simulation, states)
        yield rounds


def step(
    simulation: Simulation, states: Sequence[State], begun: Begun | None = None
) -> tuple[list[State], list[Round]]:
    """Turn the ring once for each of several runs, whose models are trained as one computation.

    ``begun`` keeps the models of the first labels: all methods begin with the same, so it is trained once.
    """
    fitted = _fit_together(simulation, states, {} if begun is None else begun)
    moved, workers = _where(simulation)
    # One thread for each worker: several that wait for each other are many times slower than none.
    threads = 1 if workers > 1 else torch.get_num_threads()
    turns = Parallel(n_jobs=workers)(
        delayed(_turn_once)(_Run.of(simulation, state, *model, moved), threads)
        for state, model in zip(states, fitted, strict=True)
    )
    after, records = zip(*turns, strict=True)
    return list(after), list(records)


def _where(simulation: Simulation) -> tuple[bool, int]:
    """Say whether models are moved to the CPU after their training, and how many processes use them then."""
    if len(simulation.x) >= limits.SMALL_TABLE:
        return False, 1
    on_cpu = str(simulation.model.device) == "cpu"
    # A network for images takes so long on the CPU that it stays where it was trained, however few they are.
    moved = not on_cpu and simulation.x.ndim == 2
    return moved, simulation.workers if on_cpu or moved else 1


def _fit_together(simulation: Simulation, states: Sequence[State], begun: Begun) -> list[Fitted]:
    """Train a model for each state; those of the first labels only once for each seed."""
    later = [state for state in states if state.fits > 0]
    first = {state.seed: state for state in states if state.fits == 0 and state.seed not in begun}
    fitted = _train(simulation, [*first.values(), *later])
    begun |= dict(zip(first, fitted, strict=False))
    rest = iter(fitted[len(first) :])
    return [next(rest) if state.fits > 0 else begun[state.seed] for state in states]


def _train(simulation: Simulation, states: Sequence[State]) -> list[Fitted]:
    if not states:
        return []
    sets = [(simulation.x[rows], labels) for rows, labels in map(simulation.known, states)]
    start = time.perf_counter()
    models = simulation.model.fit_many(sets, [state.seed_of(0) for state in states])
    seconds = (time.perf_counter() - start) / len(states)
    return [(model, seconds) for model in models]


def _turn_once(learner: _Run, threads: int) -> tuple[State, Round]:
    torch.set_num_threads(threads)
    turn(learner, _Oracle())
    return learner.state, learner.record


@dataclass
class _Run:
    """One simulated run as a `Learner` whose model is trained already: its items are rows of the table."""

    simulation: Simulation
    state: State
    posterior: Any
    classes: npt.NDArray[Any] | None
    fit_seconds: float
    chosen: tuple[int, ...] = ()
    select_seconds: float = 0.0
    record: Round = field(init=False)

    @classmethod
    def of(cls, simulation: Simulation, state: State, model: Any, seconds: float, moved: bool) -> _Run:
        """Take what a run needs of its model."""
        posterior = model.posterior_.to("cpu") if moved else model.posterior_
        return cls(simulation, state, posterior, getattr(model, "classes_", None), seconds)

    def pending(self) -> Sequence[int]:
        return ()  # an oracle has answered by the end of a turn

    def fit(self) -> Any:
        return self.posterior

    def choose(self, posterior: Any) -> Sequence[int]:
        """Choose rows; labels that are imputed are asked for once their batch is complete."""
        simulation, state = self.simulation, self.state
        if wanted := simulation.wanted(state):
            start = time.perf_counter()
            self.chosen = choose(simulation, state, posterior, wanted)
            self.select_seconds = time.perf_counter() - start
        imputed = tuple(row for row, _ in state.pseudo_labels) + self.chosen
        complete = not state.method.impute or len(imputed) == simulation.batch_size(state)
        return imputed if complete else ()

    def look(self, posterior: Any, items: Sequence[int]) -> Round:
        """Test the model; what was chosen does not change that."""
        x, y = self.simulation.x, self.simulation.y
        test = self.simulation.test_rows(self.state.seed)
        return Round(
            fits=self.state.fits,
            labels=len(self.state.labelled),
            guessed=len(self.state.pseudo_labels),
            chosen=self.chosen,
            guesses=self._pseudo_labels(posterior),
            fit_seconds=self.fit_seconds,
            select_seconds=self.select_seconds,
            judged=self._judged(test) if self.simulation.judged and not self.chosen else None,
            **measure(posterior.predictive(torch.as_tensor(x[test])), y[test], self.classes),
        )

    def _judged(self, test: Index) -> dict[str, float]:
        """Train models that did not choose on the labelled set."""
        x, y = np.asarray(self.simulation.x), self.simulation.y
        rows = list(self.state.labelled)
        task = "regression" if self.classes is None else "classification"
        return judge(task, x[rows], y[rows], x[test], y[test], self.state.seed)

    def _pseudo_labels(self, posterior: Any) -> tuple[Label, ...]:
        if not (self.chosen and self.state.method.impute):
            return ()
        predictive = posterior.predictive(torch.as_tensor(self.simulation.x[list(self.chosen)]))
        if self.classes is None:
            return tuple(predictive.mean.double().tolist())
        return tuple(self.classes[predictive.probs.argmax(1).cpu().numpy()].tolist())

    def commit(self, record: Round) -> None:
        self.record = record

    def add(self, answers: Sequence[int]) -> None:
        self.record = replace(self.record, bought=tuple(answers))
        self.state = self.state.after(self.record)


class _Oracle:
    """A labeller who answers at once. The table keeps the labels, so an answer is a row that has one now."""

    def ask(self, items: Sequence[int], commit: Callable[[], None]) -> None:
        commit()
        self.asked = items

    def collect(self, add: Callable[[Sequence[int]], None]) -> None:
        add(self.asked)


def choose(simulation: Simulation, state: State, posterior: Any, budget: int) -> tuple[int, ...]:
    """Choose the rows that a run's method would have labelled next."""
    pool, strategy = simulation.pool_rows(state), state.method.strategy
    if is_peer(strategy):
        rows, labels = simulation.known(state)
        question = Question(
            np.asarray(simulation.x[pool]),
            np.asarray(simulation.x[rows]),
            np.unique(labels, return_inverse=True)[1] if labels.dtype.kind != "f" else labels,
            posterior,
            budget,
            state.seed_of(1),
        )
        return tuple(pool[choose_by_peer(str(strategy), question)].tolist())
    batch = select(
        ArrayPool(simulation.x[pool]),
        budget=budget,
        strategy=state.method.resolved(),
        posterior=posterior,
        labelled=simulation.x[simulation.known(state)[0]],
        seed=state.seed_of(1),
    )
    return tuple(pool[batch.index].tolist())
