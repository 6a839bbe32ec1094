from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from joblib.externals.loky import get_reusable_executor

from coresift import InputError, select
from coresift.bench.data import load_table
from coresift.bench.replay import Method, Round, Simulation, State, run, step
from coresift.estimators import NeuralLinearRegressor

TABLE = load_table("energy")
QUICK = NeuralLinearRegressor(epochs=5, calibration_folds=0, progress=False)

# Two samples span so little that Frank-Wolfe comes back to points it has, and finds fewer than it may.
UNFILLED = Method("acs-fw", num_samples=2, exact=False, fill=False)
IMPUTED = Method("maxent", refit_every=1, impute=True)


def simulation(**options: Any) -> Simulation:
    return Simulation(
        **{"x": TABLE.x, "y": TABLE.y, "model": QUICK, "first": 20, "batch": 10, "budget": 25, **options}
    )


def timeless(rounds: Sequence[Round]) -> list[Round]:
    """All of the rounds but the seconds."""
    return [replace(turn, fit_seconds=0.0, select_seconds=0.0) for turn in rounds]


def walk(simulation: Simulation, states: Sequence[State]) -> Iterator[tuple[list[State], list[Round]]]:
    """The states before each turn, with its rounds."""
    while alive := [state for state in states if not state.done]:
        states, rounds = step(simulation, alive)
        yield alive, timeless(rounds)


def alone(simulation: Simulation, method: Method, seed: int = 0) -> list[Round]:
    """The rounds of one run by itself."""
    return [turn for _, (turn,) in walk(simulation, [simulation.begin(method, seed)])]


# The loop, written plainly.


def plain_loop(strategy: str, seed: int, first: int, batch: int, budget: int) -> Iterator[dict[str, Any]]:
    x, y = TABLE.x, TABLE.y
    order = np.random.default_rng(seed).permutation(len(x)).tolist()
    share = round(0.2 * len(x))
    test, known, pool = order[:share], order[share : share + first], order[share + first :]
    left = budget
    while True:
        network, choice = (
            int(np.random.SeedSequence([seed, len(known), purpose]).generate_state(1)[0])
            for purpose in (0, 1)
        )
        model = NeuralLinearRegressor(epochs=5, calibration_folds=0, random_state=network, progress=False)
        model.fit(x[known], y[known])
        law = model.posterior_.predictive(torch.as_tensor(x[test]))
        density = scipy.stats.t(law.df.numpy(), law.loc.numpy(), law.scale.numpy()).logpdf(y[test])
        chosen: list[int] = []
        if left:
            places = select(
                x[pool],
                budget=min(batch, left),
                strategy=strategy,
                posterior=model.posterior_,
                labelled=x[known],
                seed=choice,
            ).index
            chosen = [pool[place] for place in places]
        yield {
            "labels": len(known),
            "rmse": math.sqrt(np.mean((model.predict(x[test]) - y[test]) ** 2)),
            "log_density": np.mean(density),
            "chosen": tuple(chosen),
        }
        if not left:
            return
        left -= len(chosen)
        known, pool = known + chosen, [row for row in pool if row not in chosen]


@pytest.mark.parametrize("strategy", ["acs-fw", "acs-lcmd", "maxent", "random"])
def test_agrees_with_the_loop_written_plainly(strategy: str) -> None:
    rounds = alone(simulation(), Method(strategy), seed=3)
    plain = list(plain_loop(strategy, 3, first=20, batch=10, budget=25))
    assert [turn.labels for turn in rounds] == [one["labels"] for one in plain] == [20, 30, 40, 45]
    assert [turn.chosen for turn in rounds] == [one["chosen"] for one in plain]
    for name in ("rmse", "log_density"):
        ours = [getattr(turn, name) for turn in rounds]
        np.testing.assert_allclose(ours, [one[name] for one in plain], rtol=1e-5)
    assert [turn.fits for turn in rounds] == [0, 1, 2, 3]
    assert all(turn.bought == turn.chosen and turn.guesses == () and turn.guessed == 0 for turn in rounds)


def test_runs_side_by_side_go_as_they_would_alone() -> None:
    table = simulation(budget=10)
    methods = [Method("random"), Method("maxent"), Method("acs-fw")]
    states = [table.begin(method, seed) for method in methods for seed in (0, 1)]
    together = [timeless(rounds) for rounds in run(table, states)]
    for place, state in enumerate(states):
        for ours, theirs in zip(together, alone(table, state.method, state.seed), strict=True):
            # Sums are taken in another order, and training makes more of the difference.
            assert ours[place].rmse == pytest.approx(theirs.rmse, rel=1e-4)
            assert ours[place].chosen == theirs.chosen


def test_seconds_are_shared_and_only_choosing_is_timed() -> None:
    table = simulation(budget=10)
    turns = list(run(table, [table.begin(Method("acs-fw"), seed) for seed in range(3)]))
    for rounds in turns:
        assert len({turn.fit_seconds for turn in rounds}) == 1 and rounds[0].fit_seconds > 0
    assert all(turn.select_seconds > 0 for turn in turns[0])
    assert all(turn.select_seconds == 0 for turn in turns[1])


# A run that was stopped.

MIXED = (Method("acs-fw"), UNFILLED, IMPUTED)


def test_stopped_runs_go_on_to_the_same_end() -> None:
    table = simulation(batch=4, budget=9)
    begun = [table.begin(method, seed) for method in MIXED for seed in (0, 1)]
    turns = list(walk(table, begun))
    assert len({len(rounds) for _, rounds in turns}) > 1  # some end before others
    for stop in (1, 2, 5, len(turns)):
        # Fold what was recorded, knowing nothing of the states that `step` returned.
        folded = begun
        for _, rounds in turns[:stop]:
            news = iter(rounds)
            folded = [state if state.done else state.after(next(news)) for state in folded]
        alive = [state for state in folded if not state.done]
        assert alive == (turns[stop][0] if stop < len(turns) else [])
        went_on = [timeless(rounds) for rounds in run(table, folded)]
        assert went_on == [rounds for _, rounds in turns[stop:]]
    assert all(state.done and state.pseudo_labels == () and len(state.labelled) == 29 for state in folded)


# Who may be chosen, and how many.

SEVERAL = [
    Method("random"),
    Method("maxent"),
    Method("acs-fw"),
    Method("greedy-logdet"),
    Method("k-center"),
    UNFILLED,
    IMPUTED,
    Method("maxent", refit_every=3),
    Method("maxent", refit_every=3, impute=True),
]


def test_methods_share_their_start() -> None:
    table = simulation()
    for seed in (0, 1):
        states = [table.begin(method, seed) for method in SEVERAL]
        assert len({state.labelled for state in states}) == 1
        _, rounds = step(table, states)
        np.testing.assert_allclose([turn.rmse for turn in rounds], rounds[0].rmse, rtol=1e-4)
        assert len({turn.chosen for turn in rounds}) > 1
    first, second = (table.begin(SEVERAL[0], seed) for seed in (0, 1))
    assert set(first.labelled) != set(second.labelled)
    assert set(table.test_rows(0)) != set(table.test_rows(1))


@pytest.mark.parametrize("method", SEVERAL, ids=str)
def test_every_label_is_bought_once_and_none_is_tested_on(method: Method) -> None:
    table, seed = simulation(), 2
    test, everything = set(table.test_rows(seed).tolist()), set(range(len(TABLE.x)))
    assert len(test) == round(0.2 * len(everything)) == 154
    turns = list(walk(table, [table.begin(method, seed)]))
    labelled: list[int] = list(turns[0][0][0].labelled)
    for (state,), (turn,) in turns:
        trained_on = table.known(state)[0].tolist()
        assert state.labelled == tuple(labelled) and len(state.labelled) == turn.labels
        # The rows are divided without rest among testing, training and choosing.
        assert sorted([*test, *trained_on, *table.pool_rows(state)]) == sorted(everything)
        assert set(turn.chosen) <= set(table.pool_rows(state).tolist())
        labelled += turn.bought
    assert len(labelled) == len(set(labelled)) == 45
    assert not test & set(labelled)
    *sizes, last = [len(turn.chosen) for _, (turn,) in turns]
    assert last == 0
    if not method.fill:
        assert sizes[0] < 10 and max(sizes) <= 10 and min(sizes) > 0
    elif method.impute:  # labels come by the batch, whatever is chosen between two fits
        assert sizes == [size for batch in parts(25, 10) for size in parts(batch, method.refit_every or 10)]
    else:
        assert sizes == parts(25, method.refit_every or 10)


def parts(total: int, size: int) -> list[int]:
    """13 in parts of 5: 5, 5, 3."""
    return [min(size, total - start) for start in range(0, total, size)]


def test_an_unfilled_round_leaves_its_labels_to_later_ones() -> None:
    table = simulation(batch=20, budget=30)
    rounds = alone(table, UNFILLED)
    filled = alone(table, replace(UNFILLED, fill=True))
    assert [turn.labels for turn in filled] == [20, 40, 50]
    assert len(rounds[0].chosen) < 20 and len(rounds) > 3
    # Filling goes on from what was found, so the first round's finds are the same.
    assert set(rounds[0].chosen) < set(filled[0].chosen)
    assert rounds[-1].labels == 50 and sum(len(turn.bought) for turn in rounds) == 30


def test_a_method_may_refuse_to_be_unfilled() -> None:
    assert not Method("acs-giga", fill=False).resolved().selector.fill  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="fill=False is for Frank-Wolfe and GIGA, not for 'maxent'"):
        Method("maxent", fill=False).resolved()


@pytest.mark.parametrize(
    "options",
    [{"budget": 595}, {"first": 590}, {"first": 0}, {"batch": 0}, {"budget": -1}, {"test_share": 0.95}],
    ids=str,
)
def test_impossible_budgets(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"rows that are not kept for testing|expected an integer"):
        simulation(**options)


def test_rows_without_labels() -> None:
    with pytest.raises(InputError, match="x holds 768 rows, but y 767 labels"):
        replace(simulation(), y=simulation().y[1:])


def test_all_rows_may_be_bought() -> None:
    few = np.random.default_rng(0).permutation(len(TABLE.x))[:40]
    table = simulation(x=TABLE.x[few], y=TABLE.y[few], first=10, batch=15, budget=22)
    rounds = alone(table, Method("acs-fw"))
    assert [turn.labels for turn in rounds] == [10, 25, 32]
    bought = [row for turn in rounds for row in turn.bought]
    rest = {*range(40)} - set(table.test_rows(0).tolist()) - set(table.begin(Method("acs-fw"), 0).labelled)
    assert set(bought) == rest


# Refits within a batch.


def test_refitting_after_every_label_is_a_batch_of_one() -> None:
    table, method = simulation(budget=12), Method("maxent", refit_every=1)
    one = simulation(batch=1, budget=12)
    refitted = list(run(table, [table.begin(method, seed) for seed in (0, 1)]))
    singly = list(run(one, [one.begin(Method("maxent"), seed) for seed in (0, 1)]))
    assert [timeless(rounds) for rounds in refitted] == [timeless(rounds) for rounds in singly]
    assert [rounds[0].labels for rounds in refitted] == list(range(20, 33))
    assert refitted != list(run(table, [table.begin(Method("maxent"), seed) for seed in (0, 1)]))


def test_guesses_are_the_models_own_predictions() -> None:
    table, seed = simulation(), 1
    turns = [(state, turn) for (state,), (turn,) in walk(table, [table.begin(IMPUTED, seed)])]
    assert len(turns) == 25 + 1
    assert [turn.fits for _, turn in turns] == list(range(26))
    assert [turn.guessed for _, turn in turns] == [*range(10), *range(10), *range(5), 0]
    assert [turn.labels for _, turn in turns] == [20] * 10 + [30] * 10 + [40] * 5 + [45]
    assert [len(turn.bought) for _, turn in turns] == [0] * 9 + [10] + [0] * 9 + [10] + [0] * 4 + [5, 0]
    waiting: list[int] = []
    guesses: list[float] = []
    for state, turn in turns:
        rows, labels = table.known(state)
        assert rows.tolist() == [*state.labelled, *waiting]
        assert labels.tolist() == [*TABLE.y[list(state.labelled)], *guesses]
        assert not np.isin(guesses, TABLE.y[waiting]).any()  # or the table could not tell the two apart
        if not turn.chosen:
            continue
        # Fitted alone on these, the model predicts the guess, and finds the row that is chosen.
        fitted = int(np.random.SeedSequence([seed, len(rows), 0]).generate_state(1)[0])
        model = NeuralLinearRegressor(epochs=5, calibration_folds=0, random_state=fitted, progress=False)
        predicted = model.fit(TABLE.x[rows], labels).predict(TABLE.x[list(turn.chosen)])
        np.testing.assert_allclose(turn.guesses, predicted, rtol=1e-6)
        waiting, guesses = [*waiting, *turn.chosen], [*guesses, *turn.guesses]
        if turn.bought:
            assert turn.bought == tuple(waiting)
            waiting, guesses = [], []
    assert (waiting, guesses) == ([], [])


def test_imputing_sees_no_true_label_before_its_batch_is_complete() -> None:
    table = simulation(batch=4, budget=8)
    begun = table.begin(IMPUTED, 0)
    seen = [*begun.labelled, *table.test_rows(0)]
    y = np.full_like(TABLE.y, np.nan)
    y[seen] = TABLE.y[seen]
    blind = simulation(y=y, batch=4, budget=8)
    states, rounds = [begun], []
    for _ in range(4):
        states, turns = step(blind, states)
        rounds += timeless(turns)
    assert rounds == alone(table, IMPUTED)[:4]
    with pytest.raises(ValueError, match="NaN"):
        step(blind, states)  # the batch is complete: its labels are wanted now
    # Whoever buys each label at once wants the first already.
    states, _ = step(blind, [blind.begin(Method("maxent", refit_every=1), 0)])
    with pytest.raises(ValueError, match="NaN"):
        step(blind, states)


def test_imputing_a_whole_batch_at_once_changes_nothing() -> None:
    table = simulation()
    imputed = alone(table, Method("acs-fw", impute=True))
    assert all(len(turn.guesses) == len(turn.chosen) for turn in imputed)
    assert [replace(turn, guesses=()) for turn in imputed] == alone(table, Method("acs-fw"))


# Side by side.


def test_workers_change_nothing() -> None:
    try:
        rounds = []
        for workers in (1, 2):
            table = simulation(workers=workers, batch=5, budget=5)
            states = [table.begin(method, seed) for method in MIXED for seed in (0, 1)]
            rounds.append([timeless(turns) for turns in run(table, states)])
        assert rounds[0] == rounds[1]
    finally:
        get_reusable_executor().shutdown(wait=True)
