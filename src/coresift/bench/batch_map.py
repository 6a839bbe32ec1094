"""Show where batches are among a network's features: the paper's t-SNE figure, with a number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.base import ClassifierMixin

from coresift import limits
from coresift.atomic import replacing
from coresift.bench.replay import Method, Simulation, choose
from coresift.bench.statistics import nearest_distance
from coresift.errors import InputError
from coresift.report.figures import COLOURS, INK, styled
from coresift.types import Floats, Index


@dataclass(frozen=True, eq=False)
class BatchMap:
    """Batches of several methods, all chosen with one model.

    The ``spread`` of a batch is its `nearest_distance`, divided by the mean of random batches of its size.
    """

    features: Floats  # (n, D) of the chosen points and of other points of the pool, drawn at random
    classes: Index  # (n,)
    batches: Mapping[str, Index]  # method -> (b,) indices of its batch among these
    spread: Mapping[str, float]
    random: tuple[float, float]  # mean and std of the distance for random batches of full size

    @classmethod
    def of(
        cls,
        simulation: Simulation,
        methods: Mapping[str, Method],
        budget: int = 200,
        *,
        seed: int = 0,
        shown: int = 4000,
        num_draws: int = limits.MAP_DRAWS,
    ) -> BatchMap:
        """Train on the first labels, and choose a batch by each method.

        Besides the batches, ``shown`` points of the pool are kept; ``num_draws`` random batches are compared.
        """
        state = simulation.begin(Method("random"), seed)
        pool = simulation.pool_rows(state)
        if not 2 <= budget <= len(pool):
            raise InputError(f"budget is {budget}, expected from 2 to the {len(pool)} points of the pool")
        _check_model(type(simulation.model))
        rows, labels = simulation.known(state)
        (model,) = simulation.model.fit_many([(simulation.x[rows], labels)], [seed])
        features = model.posterior_.features(torch.as_tensor(simulation.x[pool])).double().cpu().numpy()
        random = np.random.default_rng(seed)
        draws = {budget: _random_distances(features, budget, num_draws, random)}
        kept, spread = [random.permutation(len(pool))[:shown]], {}
        index_of = {row: index for index, row in enumerate(pool.tolist())}
        for name, method in methods.items():
            chosen = choose(simulation, replace(state, method=method), model.posterior_, budget)
            kept.append(np.array([index_of[row] for row in chosen]))
            # Few points are further apart than many: a smaller batch is compared with ones of its own size.
            if (size := len(chosen)) not in draws:
                own_random = np.random.default_rng([seed, size])
                draws[size] = _random_distances(features, size, num_draws, own_random)
            spread[name] = nearest_distance(features[kept[-1]]) / float(np.mean(draws[size]))
        index = np.unique(np.concatenate(kept))
        batches = {name: np.searchsorted(index, batch) for name, batch in zip(methods, kept[1:], strict=True)}
        distances = float(np.mean(draws[budget])), float(np.std(draws[budget]))
        return cls(features[index], simulation.y[pool[index]], batches, spread, distances)

    def save(self, path: Path) -> None:
        """Write an ``.npz`` file."""
        arrays: dict[str, Any] = {"features": self.features.astype(np.float32), "classes": self.classes}
        arrays |= {f"batch {name}": batch for name, batch in self.batches.items()}
        arrays |= {f"spread {name}": value for name, value in self.spread.items()}
        with replacing(path) as file:
            np.savez_compressed(file, **arrays, random=self.random)

    @styled
    def picture(self, seed: int = 0) -> Figure:
        """Draw the batches side by side on a t-SNE map."""
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(self.features) - 1) / 3)
        positions = TSNE(random_state=seed, init="pca", perplexity=perplexity).fit_transform(self.features)
        figure = Figure(figsize=(4.4 * len(self.batches), 4.9))
        panels = figure.subplots(1, len(self.batches), squeeze=False)[0]
        for axes, (name, batch) in zip(panels, self.batches.items(), strict=True):
            for number, label in enumerate(np.unique(self.classes)):
                look: Any = {"color": COLOURS[number % len(COLOURS)], "alpha": 0.25, "linewidths": 0}
                axes.scatter(*positions[self.classes == label].T, s=3, **look)
            axes.scatter(*positions[batch].T, s=16, color=INK, edgecolors="white", linewidths=0.5)
            axes.set_title(name)
            axes.set_xlabel(
                f"nearest-neighbour distance: {self.spread[name]:.2f} times that of random batches",
                loc="left",
            )
            axes.set(xticks=[], yticks=[])
        return figure


def _check_model(kind: type[Any]) -> None:
    """Raise for a model without classes or features, before it is trained."""
    posterior = getattr(kind, "posterior_type", Any)
    has_features = posterior is Any or hasattr(posterior, "features")
    if not (has_features and issubclass(kind, ClassifierMixin)):
        raise InputError(
            f"a map shows classes and a model's features, but {kind.__name__} has not both; "
            "take a neural linear model of images"
        )


def _random_distances(
    features: Floats, size: int, num_draws: int, random: np.random.Generator
) -> list[float]:
    """Compute the `nearest_distance` of random batches of a size, drawn from ``features`` (N, D)."""
    draws = [random.choice(len(features), size, replace=False) for _ in range(num_draws)]
    return [nearest_distance(features[rows]) for rows in draws]
