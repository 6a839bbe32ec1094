"""The page on a suite: a picture of ranks, a table for each task and model, and each data set folded away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coresift.atomic import write_text
from coresift.bench import across
from coresift.bench.oracle import ORACLE
from coresift.bench.statistics import LEVEL
from coresift.bench.store import PACKED, pack, read
from coresift.bench.summary import RANDOM, REFERENCES, Summary
from coresift.bench.tables import NOTHING
from coresift.errors import InputError
from coresift.report.figures import COLOURS, INK, SOFT, save, styled
from coresift.report.page import Heading, Part, Picture, Table, markdown, page
from coresift.strategies import DEFAULT


def write_suite_report(folder: Path, out: Path | None = None) -> Path:
    """Write ``report.html`` and ``report.md`` on the results of a suite; returns the path of the first.

    Each subfolder, such as ``regression-forest``, holds the rounds of a task and a model.
    """
    out = out or folder
    summaries = {
        path.name: _summary(path, out / path.name) for path in sorted(folder.iterdir()) if _has_results(path)
    }
    summaries = {name: found for name, found in summaries.items() if len(found.errors) > 0}
    if not summaries:
        raise InputError(f"no method has finished a run in {folder}; coresift experiment run continues them")
    short, details = report_parts(summaries)
    for part in short:
        if isinstance(part, Picture):
            save(part.figure, out / part.file)
    title = f"Benchmark: {folder.name}"
    write_text(out / "report.md", markdown(title, short))
    write_text(out / "report.html", page(title, [*short, *details]))
    return out / "report.html"


def _summary(folder: Path, out: Path) -> Summary:
    """Summarise one part, and pack its rounds into one file."""
    records, origins = read(folder)
    out.mkdir(parents=True, exist_ok=True)
    pack(records, origins, out / PACKED)
    return Summary.of(records)


def of_suite(folder: Path) -> bool:
    """Return whether a folder holds the results of a suite: of parts, which hold those of data sets."""
    return any(folder.glob("*/*/*.jsonl")) or any(folder.glob(f"*-*/{PACKED}"))


def _has_results(path: Path) -> bool:
    return (path / PACKED).exists() or any(path.glob("*/*.jsonl"))


def report_parts(summaries: Mapping[str, Summary]) -> tuple[list[Part], list[Part]]:
    """Return what everybody reads, and a table for each data set."""
    picture = Picture(
        rank_picture(summaries),
        "Mean rank of each method over data sets, by the area under its learning curve; the best is on the "
        "left. Methods under one bar are not significantly different (Nemenyi's test, 5%).",
        "ranks.png",
    )
    short: list[Part] = [*_losses(summaries), picture]
    details: list[Part] = [Heading("Each data set")]
    for name, summary in summaries.items():
        short += [Heading(_title(name, summary)), _table(summary), *_judges(summary), *_best(summary)]
        details.append(_tables_table(name, summary))
    return [*short, "How these numbers are made: " + EXPLAINED], details


EXPLAINED = (
    "Every data set counts the same. Gain: for numbers, the mean RMSE over all rounds as a fraction of that "
    "of random (geometric mean over data sets); for classes, points of accuracy above random, averaged over "
    "rounds and data sets. Labels: those needed for random's final error, as a fraction of random's. Both "
    "with 95% bootstrap intervals over data sets. Against others, data sets are counted with a significant "
    "difference (paired t-tests over seeds, Holm-corrected over methods). Harm is the share of data sets "
    "on which a method is significantly worse than random, tested one by one: a method that equals random "
    "would have 2.5%. p: Wilcoxon's signed-rank test of the gains over data sets, Holm-corrected over "
    "methods."
)


def _title(name: str, summary: Summary) -> str:
    task, _, model = name.partition("-")
    seeds = {of[RANDOM].shape[0] for of in summary.errors.values()}
    num = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    return f"{task.capitalize()} with {model}: {len(summary.errors)} data sets, {num} seeds"


def _losses(summaries: Mapping[str, Summary]) -> list[Part]:
    """Say first where the default loses."""
    found: list[Part] = []
    for name, summary in summaries.items():
        if DEFAULT not in summary.methods:
            continue
        counts = {reference: summary.counts(reference).get(DEFAULT) for reference in REFERENCES}
        words = [
            f"worse than {reference} on {count['loss']} of {count.total()} data sets "
            f"(better on {count['win']})"
            for reference, count in counts.items()
            if count
        ]
        ahead = summary.methods[: summary.methods.index(DEFAULT)]
        rank = (
            f"methods with a better mean rank: {', '.join(ahead)}"
            if ahead
            else "no method has a better mean rank"
        )
        task, _, model = name.partition("-")
        found.append(
            f"{task.capitalize()} with {model}: the default, {DEFAULT}, is significantly "
            f"{' and '.join(words)}; {rank}."
        )
    return found


def _table(summary: Summary) -> Table:
    """One row a method: gain, savings, harm, seconds."""
    others = [name for name in summary.methods if name != RANDOM]
    p_values = across.differs({name: summary.gaps(name) for name in others})
    gain = "gain, points" if summary.classes else "RMSE / random's"
    columns = {
        gain: _column(others, summary.gain, _spec(summary)),
        "labels": _column(others, summary.labels_ratio, ".2f"),
        "p": _column(others, p_values.get, ".2g"),
        **{f"against {reference}": _counted(summary.counts(reference)) for reference in REFERENCES},
        "harm": _column(others, partial(across.harm, summary.areas), ".0%"),
        "rank": _column(summary.methods, summary.ranks.get, ".1f"),
        "seconds": _column(summary.methods, summary.seconds.get, ".2g"),
        "of the oracle's gain": _column(others, summary.attained, ".0%"),
    }
    filled = {column: cells for column, cells in columns.items() if cells}
    return Table(
        ["method", *filled],
        [[name, *(cells.get(name, NOTHING) for cells in filled.values())] for name in summary.methods],
        "Methods by mean rank. Against: data sets on which a method is better : equal : worse. Seconds: the "
        "median to choose a batch.",
    )


def _column(methods: Iterable[str], value: Callable[[str], Any], spec: str) -> dict[str, str]:
    """Format the value of each method that has one."""
    return {name: format(found, spec) for name in methods if (found := value(name)) is not None}


def _spec(summary: Summary) -> str:
    """Return how gains are formatted."""
    return "+.1f" if summary.classes else ".3f"


def _counted(counts: Mapping[str, Counter[Any]]) -> dict[str, str]:
    return {name: f"{count['win']} : {count['tie']} : {count['loss']}" for name, count in counts.items()}


def _judges(summary: Summary) -> list[Part]:
    """Show the last labelled sets, judged by models that did not choose them."""
    found = []
    for judge, errors in summary.judged.items():
        gains = {name: summary.gain(name, errors) for name in summary.methods if name != RANDOM}
        best = sorted(gains, key=lambda name: gains[name].mean * (-1 if summary.classes else 1))[:5]
        found.append(f"{judge}: " + ", ".join(f"{name} {gains[name]:{_spec(summary)}}" for name in best))
    if not found:
        return []
    return [
        "The last labelled sets, judged by models that did not choose them; the best five. "
        + ". ".join(found)
        + "."
    ]


def _best(summary: Summary) -> list[Part]:
    """Say which methods may be the best."""
    methods = [name for name in summary.methods if name != RANDOM]
    if len(methods) < 2 or len(summary.errors) < 5:
        return []
    p_values = across.may_be_best({name: summary.gaps(name) for name in methods})
    may = [name for name, p_value in p_values.items() if p_value > LEVEL]
    return [
        f"By their gains, {', '.join(may)} may be the best; the others are significantly worse than some "
        "other method, corrected for that one's having been picked."
    ]


def _tables_table(name: str, summary: Summary) -> Table:
    """Mean error over all rounds on each data set."""
    methods = [RANDOM, *(other for other in summary.methods if other != RANDOM)]
    methods += [ORACLE] if any(ORACLE in of for of in summary.areas.values()) else []
    rows = [
        [data, *(f"{of[method].mean():.4g}" if method in of else NOTHING for method in methods)]
        for data, of in summary.areas.items()
    ]
    return Table(
        ["data set", *methods],
        rows,
        f"{name}: mean {'error rate' if summary.classes else 'RMSE'} over all rounds and seeds.",
    )


@styled
def rank_picture(summaries: Mapping[str, Summary]) -> Figure:
    """Draw a critical-difference diagram for each task and model, below each other."""
    heights = [1.1 + 0.21 * len(summary.methods) for summary in summaries.values()]
    figure = Figure(figsize=(8.2, sum(heights)))
    rows = figure.subplots(len(summaries), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, summary) in zip(rows, summaries.items(), strict=True):
        _draw_ranks(axes, summary)
        axes.set_title(_title(name, summary), fontsize=10.5)
    return figure


def _draw_ranks(axes: Axes, summary: Summary) -> None:
    """Draw methods as rows by rank, and bars over those that are not significantly different."""
    names, ranks = summary.methods, np.array([summary.ranks[name] for name in summary.methods])
    gap = across.critical_difference(len(names), len(summary.errors)) if len(names) > 1 else 0.0
    for row, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        colour = COLOURS[1] if name == DEFAULT else SOFT if name == RANDOM else COLOURS[0]
        axes.plot([rank], [row], "o", color=colour, markersize=6)
        axes.annotate(
            name, (rank, row), (8, 0), textcoords="offset points", va="center", fontsize=9, color=INK
        )
    height = -0.45
    for first, last in groups(ranks, gap):
        height -= 0.35
        axes.plot(
            [ranks[first], ranks[last]], [height, height], color=INK, linewidth=3, solid_capstyle="butt"
        )
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(names) - 0.4, height - 0.35)  # the best on top
    axes.set_xlabel(f"mean rank (significant: {gap:.1f} apart)")
    axes.margins(x=0.02)
    low, high = axes.get_xlim()
    axes.set_xlim(low, high + 0.22 * (high - low))  # room for the names on the right


def groups(ranks: Sequence[float] | Any, gap: float) -> list[tuple[int, int]]:
    """Find the largest runs of sorted ranks that are less than ``gap`` apart: first and last index.

    >>> groups([1.0, 1.5, 2.4, 5.0], 1.0)
    [(0, 1), (1, 2)]
    """
    found: list[tuple[int, int]] = []
    for first in range(len(ranks)):
        last = max(n for n in range(first, len(ranks)) if ranks[n] - ranks[first] < max(gap, 1e-12))
        if last > first and not (found and found[-1][1] >= last):
            found.append((first, last))
    return found
