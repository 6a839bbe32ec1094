"""Strategies of other libraries: scikit-activeml, baal and bmdal_reg choose from the same pool.

Each peer is a function from a `Question` to a batch. Those that use a model are given the predictions of the
model that coresift's own strategies use; bmdal_reg trains its own network, from which its features come.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from coresift.errors import InputError, suggestion
from coresift.posteriors.base import LastLayerPosterior
from coresift.types import Floats, Index

SAMPLES = 64  # posterior samples for baal
TARGETS = 500  # random pool points that EPIG predicts for
LARGEST_POOL = 5000  # points that baal's joint criteria look at, drawn at random from larger pools
SKETCH, SIGMA = 512, 0.1  # bmdal_reg's own experiments: random projections, and noise of the kernel


@dataclass(frozen=True, eq=False)
class Question:
    """What a peer is asked: which ``budget`` points of the pool to label next.

    Attributes
    ----------
    pool, labelled : (N, d) and (M, d) rows.
    y : (M,) their numbers, or the codes of their classes.
    posterior : the model, trained on the labelled rows.
    """

    pool: npt.NDArray[Any]
    labelled: npt.NDArray[Any]
    y: npt.NDArray[Any]
    posterior: Any
    budget: int
    seed: int

    @cached_property
    def rows(self) -> Floats:
        """(N + M, d) the rows of the pool, then the labelled ones, standardised together."""
        rows = np.concatenate([self.pool, self.labelled]).astype(float)
        return np.asarray((rows - rows.mean(0)) / np.maximum(rows.std(0), 1e-12))

    @cached_property
    def embedding(self) -> Floats:
        """(N + M, D) the input of the model's last layer, or the standardised rows if it has none."""
        if not isinstance(self.posterior, LastLayerPosterior):
            return self.rows
        rows = torch.as_tensor(np.concatenate([self.pool, self.labelled]))
        return np.asarray(self.posterior.features(rows).double().cpu().numpy())

    @cached_property
    def answers(self) -> Floats:
        """(N + M,) labels, NaN for the pool."""
        return np.concatenate([np.full(len(self.pool), np.nan), self.y.astype(float)])

    def predictive(self) -> Any:
        """Predict for the pool."""
        return self.posterior.predictive(torch.as_tensor(self.pool))

    def sampled_probs(self, index: Index) -> Floats:
        """(n, C, K) class probabilities of posterior samples, as baal reads them."""
        theta = self.posterior.sample(SAMPLES, torch.Generator().manual_seed(self.seed))
        each = self.posterior.conditional(torch.as_tensor(self.pool[index]), theta)
        return np.asarray(each.probs.permute(1, 2, 0).double().cpu().numpy())

    def some(self, most: int) -> Index:
        """Return all indices into the pool, or a random sample of ``most``."""
        rng = np.random.default_rng(self.seed)
        num = len(self.pool)
        return np.arange(num) if num <= most else np.sort(rng.choice(num, most, replace=False))


Peer: TypeAlias = Callable[[Question], Index]


# scikit-activeml. Its strategies take all rows, with labels of NaN for the pool.


def _activeml(
    question: Question,
    name: str,
    *model: Any,
    features: str = "embedding",
    fit: dict[str, bool] | None = None,
    **options: Any,
) -> Index:
    """Let a strategy choose, by the model's features or by the rows, and by what a model predicts."""
    strategy = getattr(import_module("skactiveml.pool"), name)(random_state=question.seed, **options)
    candidates = np.arange(len(question.pool))
    found = strategy.query(
        getattr(question, features),
        question.answers,
        *model,
        **(fit or {}),
        candidates=candidates,
        batch_size=question.budget,
    )
    return np.asarray(found, np.int64)


def _activeml_classes(question: Question, name: str, **options: Any) -> Index:
    probs = question.predictive().probs.double().cpu().numpy()

    class Given(import_module("skactiveml.base").SkactivemlClassifier):  # type: ignore[misc]
        """Predicts for the pool what coresift's model predicts."""

        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
            return self

        def predict_proba(self, X: Any, embedding: bool = False) -> Any:
            assert len(X) == len(probs), "only the whole pool is known"
            return (probs, X) if embedding else probs

    model = Given(classes=np.arange(probs.shape[1]))
    return _activeml(question, name, model, fit={"fit_clf": False}, **options)


def _activeml_numbers(question: Question, name: str, **options: Any) -> Index:
    means = question.predictive().mean.double().cpu().numpy()

    class Given(import_module("skactiveml.base").SkactivemlRegressor):  # type: ignore[misc]
        """Predicts for the pool what coresift's model predicts."""

        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
            return self

        def predict(self, X: Any) -> Any:
            assert len(X) == len(means), "only the whole pool is known"
            return means

    return _activeml(question, name, Given(), features="rows", fit={"fit_reg": False}, **options)


# baal. Its heuristics rank points by class probabilities (n, C, K) of posterior samples.


def _baal(question: Question, name: str, most: int | None = None, **options: Any) -> Index:
    index = question.some(most or len(question.pool))
    heuristic = getattr(import_module("baal.active.heuristics"), name)(**options)
    ranked, _ = heuristic.get_ranks(question.sampled_probs(index))
    return np.asarray(index[np.asarray(ranked)[: question.budget]], np.int64)


def _baal_batch(question: Question) -> Index:
    """BatchBALD: the joint information of the whole batch."""
    # Where little is left to gain it stops early; its ranks of the other points then fill the batch.
    return _baal(question, "BatchBALD", LARGEST_POOL, num_samples=question.budget)


def _baal_epig(question: Question) -> Index:
    """EPIG of each point by itself, with random pool points as targets; the first ``budget`` by rank."""
    heuristics = import_module("baal.active.heuristics.heuristics")
    index = question.some(LARGEST_POOL)
    targets = question.sampled_probs(question.some(TARGETS))
    scores = np.concatenate(
        [
            heuristics.EPIG().compute_score(question.sampled_probs(part), targets)
            for part in np.array_split(index, max(len(index) // 200, 1))
        ]
    )
    return np.asarray(index[np.argsort(-scores, kind="stable")[: question.budget]], np.int64)


# bmdal_reg. Features are gradients of its own network, trained with its own defaults.


def _bmdal(question: Question, selection: str, *, train: bool = False, **options: Any) -> Index:
    if not hasattr(np, "Inf"):  # bmdal_reg 3.0 uses this name of NumPy 1
        np.Inf = np.inf  # type: ignore[attr-defined]  # noqa: NPY201
    interface = import_module("bmdal_reg.nn_interface")
    algorithms = import_module("bmdal_reg.bmdal.algorithms")
    data = import_module("bmdal_reg.bmdal.feature_data").TensorFeatureData
    regressor = interface.NNRegressor(seed=question.seed, device="cpu")
    num, rows = len(question.pool), question.rows
    regressor.fit(rows[num:], question.y.astype(float))
    inputs = (torch.as_tensor(rows).float() - regressor.means_) / (regressor.stds_ + 1e-30)
    inputs = 5 * torch.tanh(0.2 * inputs)  # as its regressor does before the network
    found, _ = algorithms.select_batch(
        batch_size=question.budget,
        models=[regressor.model_.get_single_model(0)],
        data={"train": data(inputs[num:]), "pool": data(inputs[:num])},
        y_train=None,
        base_kernel="grad",
        kernel_transforms=[("rp", [SKETCH]), *([("train", [SIGMA, None])] if train else [])],
        selection_method=selection,
        allow_float64=True,
        **options,
    )
    return np.asarray(found.cpu().numpy(), np.int64)


CLASSIFICATION: dict[str, Peer] = {
    "skactiveml:margin": partial(_activeml_classes, name="UncertaintySampling", method="margin_sampling"),
    "skactiveml:badge": partial(_activeml_classes, name="Badge", clf_embedding_flag_name="embedding"),
    "skactiveml:core-set": partial(_activeml, name="CoreSet"),
    "skactiveml:typiclust": partial(_activeml, name="TypiClust"),
    "skactiveml:max-herding": partial(_activeml, name="MaxHerding"),
    "baal:bald": partial(_baal, name="BALD"),
    "baal:batch-bald": _baal_batch,
    "baal:epig": _baal_epig,
}
REGRESSION: dict[str, Peer] = {
    "skactiveml:greedy-x": partial(_activeml, name="GreedySamplingX", features="rows"),
    "skactiveml:greedy-improved": partial(_activeml_numbers, name="GreedySamplingTarget", method="GSi"),
    "skactiveml:core-set": partial(_activeml, name="CoreSet"),
    "skactiveml:max-herding": partial(_activeml, name="MaxHerding"),
    "bmdal_reg:lcmd": partial(_bmdal, selection="lcmd", sel_with_train=True),
    "bmdal_reg:bait": partial(
        _bmdal, selection="bait", train=True, overselection_factor=2.0, bait_sigma=SIGMA
    ),
}
PEERS: dict[str, Peer] = {**CLASSIFICATION, **REGRESSION}


def is_peer(strategy: object) -> bool:
    """Return whether a strategy's name is that of a peer, such as "baal:bald"."""
    return isinstance(strategy, str) and ":" in strategy


def choose_by_peer(name: str, question: Question) -> Index:
    """Let another library choose; the result is checked to be a batch of distinct points."""
    if name not in PEERS:
        raise InputError(f"{name!r} is no peer; {suggestion(name, PEERS)}")
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    torch.manual_seed(question.seed)  # some peers draw from global generators
    np.random.seed(question.seed % 2**32)  # noqa: NPY002
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = PEERS[name](question)
    except ImportError as error:
        raise InputError(
            f"{name} needs a package that is missing ({error.name}): pip install 'coresift[bench]'"
        ) from None
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
    if len(found) != question.budget or len(np.unique(found)) != question.budget:
        raise RuntimeError(
            f"{name} chose {len(np.unique(found))} distinct points, expected {question.budget}"
        )
    return found
