"""Strategies of other libraries, really run where these are installed."""

import importlib.util
import warnings

import numpy as np
import pytest
import torch

import coresift
from coresift.bench.peers import CLASSIFICATION, PEERS, REGRESSION, Question, choose_by_peer
from coresift.errors import InputError
from coresift.estimators import EnsembleClassifier, EnsembleRegressor

PACKAGES = {
    "skactiveml": "skactiveml",
    "baal": "baal.active.heuristics",
    "bmdal_reg": "bmdal_reg.nn_interface",
}


def needs(name: str) -> None:
    package = name.partition(":")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = importlib.util.find_spec(PACKAGES[package])
        except ImportError:
            found = None
    if found is None:
        pytest.skip(f"needs {package}, of the extra coresift[bench]")


@pytest.fixture(scope="module")
def classes() -> Question:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4))
    y = (x[:, 0] + 0.3 * rng.normal(size=240) > 0).astype(int) + (x[:, 1] > 1)
    model = EnsembleClassifier(epochs=20, random_state=0, progress=False).fit(x[200:], y[200:])
    return Question(x[:200], x[200:], y[200:], model.posterior_, budget=7, seed=3)


@pytest.fixture(scope="module")
def numbers() -> Question:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=240)
    model = EnsembleRegressor(epochs=20, random_state=0, progress=False).fit(x[200:], y[200:])
    return Question(x[:200], x[200:], y[200:], model.posterior_, budget=7, seed=3)


@pytest.mark.parametrize("name", [*CLASSIFICATION])
def test_classification(name: str, classes: Question) -> None:
    """Each peer returns a whole batch, twice the same for a seed, and leaves global generators alone."""
    needs(name)
    before = torch.get_rng_state()
    batch = choose_by_peer(name, classes)
    assert len(set(batch.tolist())) == 7 and batch.min() >= 0 and batch.max() < 200
    assert choose_by_peer(name, classes).tolist() == batch.tolist()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", [*REGRESSION])
def test_regression(name: str, numbers: Question) -> None:
    needs(name)
    batch = choose_by_peer(name, numbers)
    assert len(set(batch.tolist())) == 7 and batch.min() >= 0 and batch.max() < 200
    assert choose_by_peer(name, numbers).tolist() == batch.tolist()


def test_margin_is_the_same_as_ours(classes: Question) -> None:
    """With the same probabilities, both libraries take the same points."""
    needs("skactiveml:margin")
    ours = coresift.select(classes.pool, posterior=classes.posterior, budget=7, strategy="margin")
    assert set(choose_by_peer("skactiveml:margin", classes).tolist()) == set(ours.index.tolist())


def test_bald_is_the_same_as_ours(classes: Question) -> None:
    """With the same members, both libraries rank by the same information."""
    needs("baal:bald")
    ours = coresift.select(classes.pool, posterior=classes.posterior, budget=7, strategy="bald")
    assert set(choose_by_peer("baal:bald", classes).tolist()) == set(ours.index.tolist())


def test_core_set_is_the_same_as_k_center(numbers: Question) -> None:
    needs("skactiveml:core-set")
    features = torch.as_tensor(numbers.embedding)
    ours = coresift.select(
        features[:200],
        budget=7,
        strategy="k-center",
        labelled=features[200:],
    )
    assert set(choose_by_peer("skactiveml:core-set", numbers).tolist()) == set(ours.index.tolist())


def test_unknown_names_get_a_suggestion(classes: Question) -> None:
    with pytest.raises(InputError, match="baal:bald"):
        choose_by_peer("baal:bad", classes)


def test_missing_packages_are_named(classes: Question, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(question: Question) -> None:
        raise ImportError("no module named 'baal'", name="baal")

    monkeypatch.setitem(PEERS, "baal:bald", missing)
    with pytest.raises(InputError, match=r"missing \(baal\): pip install 'coresift\[bench\]'"):
        choose_by_peer("baal:bald", classes)
