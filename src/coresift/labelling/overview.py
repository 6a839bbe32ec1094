"""Gather what the report shows of a project: counts, curves, and a map of the pool with the batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

import coresift
from coresift import limits
from coresift.labelling.choose import nearest_of
from coresift.labelling.records import Chosen, CurvePoint, PlacedItem, Prediction, ProjectReport, Round
from coresift.types import Floats, Index

if TYPE_CHECKING:
    from coresift.labelling.ledger import Ledger
    from coresift.labelling.project import Project

Features: TypeAlias = npt.NDArray[np.float32]  # (n, d)
_NO_ROUND = Round(0, "", "none yet", 0, "none yet", "", {}, 0, 0.0)


def overview(project: Project) -> ProjectReport:
    """Gather the content of the report page."""
    ledger, rounds = project.ledger, project.ledger.rounds()
    labels, values = project.labels_and_values()
    withdrawn = {number: len(items) for number, items in ledger.withdrawn().items()}
    open_or_gone = Counter(number for number, _ in ledger.pending()) + Counter(withdrawn)
    last = rounds[-1] if rounds else _NO_ROUND
    is_withdrawn = withdrawn.get(last.number, 0) >= len(last.batch)
    curves = last.notes.get("curves", {})
    shown = {
        name: [CurvePoint(*point) for point in curves.get(name, ())] for name in ("curve", "fitted", "random")
    }
    is_regression = project.task == "regression"
    return ProjectReport(
        name=project.folder.absolute().name,
        task=project.task,
        target=project.target,
        counts=ledger.counts(),
        rounds=rounds,
        answered={made.number: len(made.batch) - open_or_gone[made.number] for made in rounds},
        withdrawn=withdrawn,
        error_name=f"RMSE of {project.target}" if is_regression else "error rate",
        worth=() if is_withdrawn else last.notes.get("worth", ()),
        classes=project.class_counts(),
        values=values.tolist() if is_regression else (),
        map=_map(project, [one.position for one in labels]),
        map_about="Positions by t-SNE of the features: items close to each other are similar; "
        "large distances mean little.",
        settings={
            "pool": project.settings.reading.path,
            "features": project.settings.features,
            "model": last.model,
            "strategy": last.strategy,
            "seed": str(project.settings.seed),
            "version": f"coresift {coresift.__version__}",
        },
        **shown,
    )


def _map(project: Project, labelled: list[int]) -> list[PlacedItem]:
    """Place a sample of the pool, and the latest batch that was not withdrawn, on a plane."""
    ledger, seed, size = project.ledger, project.settings.seed, len(project.features)
    batch = _latest_batch(ledger)
    chosen = [item.position for item, _ in batch]
    rng = np.random.default_rng(seed)
    sample = rng.choice(size, min(limits.MAP_ITEMS, size), replace=False)
    sample_labelled = rng.permutation(labelled)[: limits.MAP_LABELLED]
    index = np.unique([*sample, *sample_labelled, *chosen])
    positions, rows = index.tolist(), project.rows(index)
    ids, states = ledger.ids(positions), ledger.states()
    items = {
        position: PlacedItem(id_, float(x), float(y), states.get(position, "unlabelled"), description)
        for position, id_, (x, y), description in zip(
            positions, ids, _coordinates(rows, seed), project.describe(positions), strict=True
        )
    }
    nearest = _nearest_items(rows, np.searchsorted(index, chosen)) if batch else []
    for (item, predicted), near in zip(batch, nearest, strict=True):
        items[item.position] = replace(
            items[item.position],
            rank=item.rank,
            weight=item.weight,
            stands_for=tuple(ids[row] for row in near),
            share=(item.nearest or 0.0) / size,
            predicted=predicted,
        )
    return list(items.values())


def _latest_batch(ledger: Ledger) -> list[tuple[Chosen, Prediction | None]]:
    """What is left of the latest batch that was not withdrawn as a whole, with its predicted labels."""
    withdrawn = ledger.withdrawn()
    for made in reversed(ledger.rounds()):
        gone = withdrawn.get(made.number, set())
        predicted = chain(map(tuple, made.notes.get("predicted", ())), repeat(None))  # old rounds have none
        pairs = zip(made.batch, predicted, strict=False)
        if batch := [(item, prediction) for item, prediction in pairs if item.position not in gone]:
            return batch
    return []


def _nearest_items(rows: Features, chosen: Index) -> list[list[int]]:
    """For each chosen row, its nearest rows among those to which no other chosen row is nearer."""
    owners, nearest = nearest_of(rows, rows[chosen]), []
    for number, row in enumerate(chosen.tolist()):
        others = np.flatnonzero(owners == number)
        others = others[others != row]
        distances = np.square(rows[others] - rows[row]).sum(1)
        nearest.append(others[np.argsort(distances, kind="stable")[: limits.MAP_NEAREST]].tolist())
    return nearest


def _coordinates(rows: Features, seed: int) -> Floats:
    """(n, 2) the coordinates of rows (n, d) on the map."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    few = min(rows.shape[1], len(rows), 30)
    if few < 3 or len(rows) < 10:  # too little for t-SNE
        flat = np.zeros((len(rows), 2))
        flat[:, : min(rows.shape[1], 2)] = rows[:, :2]
        return flat
    # Fewer columns are enough to find neighbours, and quicker.
    reduced = PCA(few, random_state=seed).fit_transform(rows)
    perplexity = min(30.0, (len(rows) - 1) / 3)
    plane = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(reduced)
    return np.asarray(plane, dtype=np.float64)
