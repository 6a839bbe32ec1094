"""What the report shows of a project, gathered: counts, curve, a map of the pool, and the batch on it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

import coresift
from coresift import limits
from coresift.labelling.choose import nearest_of
from coresift.labelling.records import Chosen, CurvePoint, PlacedItem, ProjectReport
from coresift.types import Floats, Index

if TYPE_CHECKING:
    from coresift.labelling.project import Project


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
    withdrawn, states = project.ledger.withdrawn(), project.ledger.states()
    batch: dict[int, Chosen] = {}
    expected: dict[int, tuple[str, float | None]] = {}
    for made in reversed(project.ledger.rounds()):
        gone = withdrawn.get(made.number, set())
        batch = {one.position: one for one in made.batch if one.position not in gone}
        if batch:
            predicted = made.notes.get("predicted", ())  # older rounds have none
            expected = {
                one.position: (label, probability)
                for one, (label, probability) in zip(made.batch, predicted, strict=False)
            }
            break
    rng, size = np.random.default_rng(project.settings.seed), len(project.features)
    some = rng.choice(size, min(limits.MAP_ITEMS, size), replace=False)
    learned = rng.permutation(labelled)[: limits.MAP_LABELLED]
    positions = np.unique(np.array([*some, *learned, *batch], np.int64))
    rows = project.rows(positions)
    places, ids = _places(rows, project.settings.seed), project.ledger.ids(positions.tolist())
    described = project.describe(positions.tolist())
    named: dict[int, tuple[str, ...]] = {}
    shares: dict[int, float] = {}
    if batch:
        chosen = np.searchsorted(positions, list(batch))
        owner = nearest_of(rows, rows[chosen])
        for place, (position, row) in enumerate(zip(batch, chosen, strict=True)):
            named[position] = tuple(
                ids[one] for one in _nearest(rows, int(row), np.flatnonzero(owner == place))
            )
            shares[position] = (batch[position].nearest or 0.0) / size
    return [
        PlacedItem(
            id=ids[place],
            x=float(places[place, 0]),
            y=float(places[place, 1]),
            state=states.get(position, "unlabelled"),
            description=described[place],
            rank=batch[position].rank if position in batch else None,
            weight=batch[position].weight if position in batch else None,
            stands_for=named.get(position, ()),
            share=shares.get(position),
            predicted=expected.get(position) if position in batch else None,
        )
        for place, position in enumerate(positions.tolist())
    ]


def _nearest(rows: np.ndarray[tuple[int, int], np.dtype[np.float32]], row: int, among: Index) -> list[int]:
    """Of the rows that an item stands for, those nearest to it, itself left out."""
    others = among[among != row]
    distance = np.square(rows[others] - rows[row]).sum(1)
    return [int(one) for one in others[np.argsort(distance, kind="stable")[: limits.MAP_NEAREST]]]


def _places(rows: np.ndarray[tuple[int, int], np.dtype[np.float32]], seed: int) -> Floats:
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
