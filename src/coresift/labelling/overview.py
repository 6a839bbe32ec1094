"""What the report shows of a project, gathered: counts, curve, a map of the pool, and the batch on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

import coresift
from coresift import limits
from coresift.labelling.choose import nearest_of
from coresift.labelling.records import Chosen, CurvePoint, PlacedItem, ProjectReport
from coresift.types import Floats, Index

if TYPE_CHECKING:
    from coresift.labelling.ledger import Ledger
    from coresift.labelling.project import Project

Features: TypeAlias = npt.NDArray[np.float32]  # (n, d)


def overview(project: Project) -> ProjectReport:
    """All that the page about a project tells."""
    ledger, settings = project.ledger, project.settings
    rounds, (labels, values) = ledger.rounds(), project.labels()
    waiting, withdrawn = Counter(number for number, _ in ledger.pending()), ledger.withdrawn()
    gone = {number: len(items) for number, items in withdrawn.items()}
    stands = bool(rounds) and gone.get(rounds[-1].number, 0) < len(rounds[-1].batch)
    notes = rounds[-1].notes if rounds else {}
    measured = notes.get("curves", {})
    number = project.task == "regression"
    about = {
        "pool": settings.reading.path,
        "features": settings.features,
        "model": rounds[-1].model if rounds else "none yet",
        "strategy": rounds[-1].strategy if rounds else "none yet",
        "seed": str(settings.seed),
        "version": f"coresift {coresift.__version__}",
    }
    return ProjectReport(
        name=project.folder.absolute().name,
        task=project.task,
        target=project.target,
        counts=ledger.counts(),
        rounds=rounds,
        answered={
            one.number: len(one.batch) - waiting[one.number] - gone.get(one.number, 0) for one in rounds
        },
        withdrawn=gone,
        error_name=f"RMSE of {project.target}" if number else "error rate",
        worth=notes.get("worth", ()) if stands else (),
        classes={} if number else dict(Counter(values.tolist()).most_common()),
        values=values.tolist() if number else (),
        map=_map(project, [one.position for one in labels]),
        map_about="Places by t-SNE of the features: neighbours are alike; larger distances say little.",
        settings=about,
        **{
            name: [CurvePoint(*point) for point in measured.get(name, ())]
            for name in ("curve", "fitted", "random")
        },
    )


def _map(project: Project, labelled: list[int]) -> list[PlacedItem]:
    """A sample of the pool and the whole of the latest batch that was not withdrawn, on a plane."""
    ledger, seed, size = project.ledger, project.settings.seed, len(project.features)
    batch, expected = _latest_batch(ledger)
    rng = np.random.default_rng(seed)
    sample = rng.choice(size, min(limits.MAP_ITEMS, size), replace=False)
    learned = rng.permutation(labelled)[: limits.MAP_LABELLED]
    index = np.unique(np.array([*sample, *learned, *batch], np.int64))
    positions, rows = index.tolist(), project.rows(index)
    ids, states = ledger.ids(positions), ledger.states()
    nearest = _nearest_items(rows, np.searchsorted(index, list(batch))) if batch else []
    stands_for = {
        position: tuple(ids[row] for row in found) for position, found in zip(batch, nearest, strict=True)
    }
    placed = [
        PlacedItem(id_, float(x), float(y), states.get(position, "unlabelled"), description)
        for position, id_, (x, y), description in zip(
            positions, ids, _places(rows, seed), project.describe(positions), strict=True
        )
    ]
    return [
        item
        if (chosen := batch.get(position)) is None
        else replace(
            item,
            rank=chosen.rank,
            weight=chosen.weight,
            stands_for=stands_for[position],
            share=(chosen.nearest or 0.0) / size,
            predicted=expected.get(position),
        )
        for position, item in zip(positions, placed, strict=True)
    ]


def _latest_batch(ledger: Ledger) -> tuple[dict[int, Chosen], dict[int, tuple[str, float | None]]]:
    """What is left of the latest batch that was not withdrawn as a whole, and its predicted labels."""
    withdrawn = ledger.withdrawn()
    for made in reversed(ledger.rounds()):
        gone = withdrawn.get(made.number, set())
        batch = {item.position: item for item in made.batch if item.position not in gone}
        if batch:
            predicted = made.notes.get("predicted", ())  # older rounds have none
            expected = zip(made.batch, predicted, strict=False)
            return batch, {item.position: (label, probability) for item, (label, probability) in expected}
    return {}, {}


def _nearest_items(rows: Features, chosen: Index) -> list[list[int]]:
    """For each chosen row, the rows nearest to it, among those that no other chosen one is nearer to."""
    owners, found = nearest_of(rows, rows[chosen]), []
    for number, row in enumerate(chosen.tolist()):
        others = np.flatnonzero(owners == number)
        others = others[others != row]
        distances = np.square(rows[others] - rows[row]).sum(1)
        found.append(others[np.argsort(distances, kind="stable")[: limits.MAP_NEAREST]].tolist())
    return found


def _places(rows: Features, seed: int) -> Floats:
    """(n, 2) where rows (n, d) go on the plane."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    few = min(rows.shape[1], len(rows), 30)
    if few < 3 or len(rows) < 10:  # nothing to unfold
        flat = np.zeros((len(rows), 2))
        flat[:, : min(rows.shape[1], 2)] = rows[:, :2]
        return flat
    # Fewer columns are enough to tell neighbours by, and quicker.
    short = PCA(few, random_state=seed).fit_transform(rows)
    perplexity = min(30.0, (len(rows) - 1) / 3)
    found = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(short)
    return np.asarray(found, dtype=np.float64)
