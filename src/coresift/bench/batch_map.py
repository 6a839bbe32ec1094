"""Where batches lie among a network's features: the paper's t-SNE picture, and a number that goes with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.spatial import cKDTree
from sklearn.base import ClassifierMixin

from coresift.atomic import replacing
from coresift.bench.replay import Method, Simulation, choose
from coresift.report.figures import COLOURS, INK, style
from coresift.types import Floats, Index, InputError

# Batches drawn at random, to compare with.
_DRAWS = 50


@dataclass(frozen=True, eq=False)
class BatchMap:
    """Batches of several methods, all chosen with one model.

    Attributes
    ----------
    features : (n, D) of the chosen points and of others of the pool, drawn at random.
    classes : (n,) their classes.
    batches : method -> (b,) positions of its batch among these.
    spread : method -> `spread` of its batch, over the mean of as large ones drawn at random.
    random : the mean and the standard deviation of those of full size.
    """

    features: Floats
    classes: Index
    batches: Mapping[str, Index]
    spread: Mapping[str, float]
    random: tuple[float, float]

    @classmethod
    def of(
        cls,
        simulation: Simulation,
        methods: Mapping[str, Method],
        budget: int = 200,
        *,
        seed: int = 0,
        shown: int = 4000,
    ) -> BatchMap:
        """Train on the first labels, and choose a batch by each method.

        Parameters
        ----------
        shown : points of the pool beside the batches.
        """
        state = simulation.begin(Method("random"), seed)
        pool = simulation.pool_rows(state)
        if not 2 <= budget <= len(pool):
            raise InputError(f"budget is {budget}, expected from 2 to the {len(pool)} points of the pool")
        rows, labels = simulation.known(state)
        kind = type(simulation.model)
        # What it will have is in its annotations, before it is trained for long.
        posterior = get_type_hints(kind).get("posterior_", Any)
        featureless = posterior is not Any and not hasattr(posterior, "features")
        if featureless or not issubclass(kind, ClassifierMixin):
            raise InputError(
                f"a map shows classes and a model's features, but {kind.__name__} has not both; "
                "take a neural linear model of images"
            )
        (model,) = simulation.model.fit_many([(simulation.x[rows], labels)], [seed])
        features = model.posterior_.features(torch.as_tensor(simulation.x[pool])).double().cpu().numpy()
        chosen = {
            name: choose(simulation, replace(state, method=method), model.posterior_, budget)
            for name, method in methods.items()
        }
        places = {row: place for place, row in enumerate(pool.tolist())}
        batches = {name: np.array([places[row] for row in batch]) for name, batch in chosen.items()}
        random = np.random.default_rng(seed)
        draws = _random_spreads(features, budget, random)
        # Few points lie further apart than many: a smaller batch is compared with batches of its own size.
        means = {budget: float(np.mean(draws))}
        for size in {len(batch) for batch in batches.values()} - {budget}:
            means[size] = float(np.mean(_random_spreads(features, size, np.random.default_rng([seed, size]))))
        kept = np.unique(np.concatenate([random.permutation(len(pool))[:shown], *batches.values()]))
        return cls(
            features[kept],
            simulation.y[pool[kept]],
            {name: np.searchsorted(kept, batch) for name, batch in batches.items()},
            {name: spread(features[batch]) / means[len(batch)] for name, batch in batches.items()},
            (means[budget], float(np.std(draws))),
        )

    def save(self, path: Path) -> None:
        """As ``.npz``."""
        arrays: dict[str, Any] = {"features": self.features.astype(np.float32), "classes": self.classes}
        arrays |= {f"batch {name}": batch for name, batch in self.batches.items()}
        arrays |= {f"spread {name}": value for name, value in self.spread.items()}
        with replacing(path) as file:
            np.savez_compressed(file, **arrays, random=self.random)

    def picture(self, seed: int = 0) -> Figure:
        """The batches on a map by t-SNE, beside each other."""
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(self.features) - 1) / 3)
        places = TSNE(random_state=seed, init="pca", perplexity=perplexity).fit_transform(self.features)
        with style():
            figure = Figure(figsize=(4.4 * len(self.batches), 4.9))
            panels = figure.subplots(1, len(self.batches), squeeze=False)[0]
            for axes, (name, batch) in zip(panels, self.batches.items(), strict=True):
                for number, label in enumerate(np.unique(self.classes)):
                    of_class = places[self.classes == label]
                    colour = COLOURS[number % len(COLOURS)]
                    axes.scatter(*of_class.T, s=3, color=colour, alpha=0.25, linewidths=0)
                axes.scatter(*places[batch].T, s=16, color=INK, edgecolors="white", linewidths=0.5)
                axes.set_title(name)
                axes.set_xlabel(f"nearest other: {self.spread[name]:.2f} of random", loc="left")
                axes.set(xticks=[], yticks=[])
        return figure


def _random_spreads(features: Floats, size: int, random: np.random.Generator) -> list[float]:
    """`spread` of batches of that size, drawn from ``features`` (N, D)."""
    return [spread(features[random.choice(len(features), size, replace=False)]) for _ in range(_DRAWS)]


def spread(points: Floats) -> float:
    """The mean distance of points (b, D) to the nearest other one: small where a batch repeats itself.

    >>> spread(np.array([[0.0], [1.0], [3.0]]))
    1.3333333333333333
    """
    distance, _ = cKDTree(points).query(points, k=2)
    return float(distance[:, 1].mean())
