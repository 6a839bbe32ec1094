"""The report on an experiment: tables beside the paper's, learning curves, tests, all rounds in one file."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from coresift.atomic import write_text
from coresift.bench.comparison import (
    Along,
    Estimate,
    Results,
    Standing,
    seeds_needed,
    standings,
)
from coresift.bench.published import departure, paper_name, paper_rmse, paper_seconds
from coresift.bench.store import PACKED, Origins, Record, pack, read
from coresift.report.figures import COLOURS, CurvePanel, curve_panels, save
from coresift.report.page import Heading, Part, Picture, Table, markdown, page
from coresift.types import InputError

TITLE = "Which labels to buy: the {sort} experiments"
NOTHING = "\N{EN DASH}"

# By the sorts of data sets there are, without classes and with: what they are called, and what is measured.
_SORTS = {
    (False,): ("regression", "All errors are test RMSE"),
    (True,): ("classification", "All results are test accuracy"),
    (False, True): ("regression and classification", "Results are test RMSE or, of classes, test accuracy"),
}
_HOW = (
    "Methods are compared twice: at equal labels, and at equal refits, since a method that refits after "
    "every label or buys small batches gets more computing than the others. Fits on imputed labels count as "
    "refits and for nothing else. Runs of one seed share the split, the first labels and the initial "
    "networks, so methods are compared in pairs: two-sided Wilcoxon signed-rank tests on the differences at "
    "equal labels, Holm-corrected over the methods compared on a data set, at 5%."
)


def write_report(
    folder: Path,
    out: Path | None = None,
    *,
    show: Sequence[str] | None = None,
    ceiling: Path | None = None,
) -> Path:
    """Write ``report.html``, whose path it gives, ``table1.md``, ``curves-DATA.png`` and ``rounds.parquet``.

    Where all data sets are of classes, of which the paper has no Table 1, that file is called ``tables.md``.

    Parameters
    ----------
    folder : with ``DATA/METHOD.jsonl``, whose runs may be unfinished, or with ``rounds.parquet``.
    out : where to write; the same folder by default.
    show : methods in the figures, which have seven colours; a handful with the best by default.
    ceiling : another folder, with what the same models are worth with every label, to be drawn as a line.
    """
    out = out or folder
    records, origins = read(folder)
    known = sorted({record.method for record in records})
    if unknown := sorted({*(show or ())} - {*known}):
        raise InputError(f"show names {', '.join(unknown)}, but {folder} has {', '.join(known)}")
    everything = _gather(records, origins)
    ceilings = {} if ceiling is None else _ceilings(ceiling)
    out.mkdir(parents=True, exist_ok=True)
    pack(records, origins, out / PACKED)
    # Ratios of RMSE and of shares that are wrong have no sensible mean, so each sort has its own ranking.
    sorts = tuple(sorted({results.classes for results in everything})) or (False,)
    rankings = {
        classes: standings([results for results in everything if results.classes is classes])
        for classes in sorts
    }
    sort, measures = _SORTS[sorts]
    parts, end = _made(origins)
    for classes, ranking in rankings.items():
        parts += _overview(ranking, everything, classes)
    compared = f" {_HOW}" if any(_compares(results) for results in everything) else ""
    parts.append(f"{measures}, mean ± standard error over seeds.{compared}")
    for results in everything:
        labels, top = ceilings.get((results.data, results.classes), (0, None))
        parts += [Heading(results.data), *_mixed(results), *_left_out(results), *_not_the_papers(results)]
        if top is not None:
            parts.append(f"With all {labels} labels, {results.measure} is {top:.{results.digits}f}.")
        if _compares(results) and results.ranked():
            alike = [other for other in everything if other.classes is results.classes]
            names = _handful(results, rankings[results.classes], alike) if show is None else show
            picture = _curves(results, names, top)
            save(picture.figure, out / picture.file)
            parts.append(picture)
        parts.append(_equal_labels(results))
        if _compares(results):
            parts += [_equal_refits(results), *_pairs(results)]
        parts.append(_at_the_end(results) if results.classes else _seconds(results))
    parts += end
    title, tables = TITLE.format(sort=sort), "table1.md" if False in sorts else "tables.md"
    write_text(out / tables, markdown(title, parts))
    path = out / "report.html"
    write_text(path, page(title, parts))
    return path


def _gather(records: Iterable[Record], origins: Origins) -> list[Results]:
    """By data set."""
    settings = defaultdict[str, dict[str, dict[str, Any]]](dict)
    for (data, method), origin in origins.items():
        settings[data][method] = origin.settings
    return [
        Results.gather(data, list(runs), settings[data])
        for data, runs in groupby(records, lambda run: run.data)
    ]


def _compares(results: Results) -> bool:
    """Whether there is more than one fit of one method, such as on all labels."""
    return results.refits > 0 or len(results.runs) > 1


def _ceilings(folder: Path) -> dict[tuple[str, bool], tuple[int, Estimate]]:
    """By data set, and whether it is of classes: how many labels there are, and what all of them give."""
    found = {
        (results.data, results.classes): (results.labels, results.estimate(results.ranked()[0]))
        for results in _gather(*read(folder))
        if results.ranked() and results.refits == 0
    }
    if not found:
        raise InputError(f'{folder} has no finished runs with first = "all", to be the ceiling of others')
    return found


# What stands at the top.


def _made(origins: Origins) -> tuple[list[Part], list[Part]]:
    """How the results were made, as far as is known: for the top and, if it was in many ways, the end."""
    made = [each for origin in origins.values() for each in origin.made]
    names = dict.fromkeys(name for each in made for name in each)
    values = {name: list(dict.fromkeys(each[name] for each in made if name in each)) for name in names}
    commands, end = values.get("command", []), list[Part]()
    if len(commands) > 1:
        values["command"] = [f"{len(commands)}, which stand at the end"]
        end = [Heading("Commands"), *sorted(commands)]
    lines = [f"{name.capitalize()}: {'; '.join(each)}." for name, each in values.items()]
    return [" ".join(lines)] if lines else [], end


def _overview(ranking: Sequence[Standing], everything: Sequence[Results], classes: bool) -> list[Part]:
    if [standing.method for standing in ranking] == ["random"]:
        return []
    if not ranking:
        which = " by accuracy" if classes else ""
        return [f"There is no ranking{which} yet: it needs a finished run of random on some data set."]
    names = sorted({name for standing in ranking for name in standing.at_labels})
    rows = [
        [
            standing.method,
            *(f"{value:.3f}" for value in standing.overall),
            *(f"{standing.at_labels[name]:.3f}" if name in standing.at_labels else NOTHING for name in names),
        ]
        for standing in ranking
    ]
    return [
        _headline(ranking[0], everything, classes),
        Table(
            ["method", "equal labels", "equal refits", *names],
            rows,
            f"{'The share of test points that is wrong,' if classes else 'RMSE'} as a share of random's: "
            "geometric means over data sets at equal labels and at equal refits, then each data set at equal "
            "labels. Methods that lack data sets, or have one seed where others have more, stand last.",
        ),
    ]


def _headline(best: Standing, everything: Sequence[Results], classes: bool) -> str:
    """Which method is the most accurate, by how much, and whether that may be luck."""
    names, (at_labels, at_refits) = list(best.at_labels), best.overall
    where = f"on {names[0]}" if len(names) == 1 else f"in geometric mean over {', '.join(names)}"
    if best.method == "random":
        return f"The most accurate at equal labels is random itself, {where}."
    words = (
        f"it is wrong {at_labels:.2f} times as often as random"
        if classes
        else f"its error is {at_labels:.2f} times that of random"
    )
    return (
        f"The most accurate at equal labels is {best.method}: {words} ({at_refits:.2f} times at equal "
        f"refits), {where}. {_tested(best.method, [each for each in everything if each.data in names])}"
    )


def _tested(method: str, everything: Sequence[Results]) -> str:
    """What the paired tests say of a method, over all data sets."""
    pairs = [pair for results in everything for pair in results.pairs("random") if pair.method == method]
    if not pairs:
        return "Whether that is luck is not tested, which takes two seeds that both have finished."
    verdicts = Counter(pair.verdict for pair in pairs)
    verdicts["not tested against random"] = len(everything) - len(pairs)
    each = [
        verdict if len(everything) == 1 else f"{verdict} ({count} of {len(everything)} data sets)"
        for verdict, count in verdicts.most_common()
        if count
    ]
    return f"By the paired tests below, it is {'; '.join(each)}."


# What stands under each data set.


def _mixed(results: Results) -> list[str]:
    """A warning where methods differ in more than the method."""
    each = [
        f"{name} ({' against '.join(', '.join(group) for group in groups)})"
        for name, groups in results.differing().items()
    ]
    warning = "Warning: these methods were made with different settings, and do not compare:"
    return [f"{warning} {'; '.join(each)}."] if each else []


def _not_the_papers(results: Results) -> list[str]:
    """Why figures that the paper has are not shown."""
    reasons: dict[str, list[str]] = {}
    for name in results.runs:
        reason = departure(results.data, results.settings[name])
        if reason and (paper_rmse(results.data, name) or paper_seconds(results.data, name)):
            reasons.setdefault(reason, []).append(name)
    return [
        f"The paper's figures are left out for {', '.join(names)}: {reason}."
        for reason, names in reasons.items()
    ]


def _left_out(results: Results) -> list[str]:
    """What the figures do not count, and cannot tell."""
    lines = []
    counts = {name: count for name, count in results.unfinished.items() if count}
    if counts:
        each = ", ".join(f"{name} {count}" for name, count in counts.items())
        lines.append(f"Left out: {sum(counts.values())} unfinished ({each}).")
    compared = max(len(results.ranked()) - 1, 1)
    needed = seeds_needed(compared)
    if len(results.runs) > 1 and any(len(runs) < needed for runs in results.runs.values()):
        test = " by the Wilcoxon test" if results.classes else ""
        lines.append(
            f"With fewer than {needed} finished seeds, even a method that is better on each may not be told "
            f"apart from another{test}, at {compared} compared."
        )
    return [" ".join(lines)] if lines else []


def _table(
    results: Results,
    along: Along,
    columns: Sequence[str],
    cells: Callable[[str], Sequence[str]],
    caption: str,
) -> Table:
    """A row for each method, the most accurate first; nothing for those without a finished run."""
    ranked = results.ranked(along)
    rows = [[name, *cells(name)] for name in ranked]
    rows += [[name, *[NOTHING] * len(columns)] for name in results.runs if name not in ranked]
    return Table(["method", *columns], rows, caption)


def _equal_labels(results: Results) -> Table:
    def cells(name: str) -> list[str]:
        ours, ends = results.estimate(name), results.at(name, "labels").values()
        found = [f"{ours:.{results.digits}f}", str(len(ends)), _count(turn.fits for turn in ends)]
        return [*found, *_beside(ours, _published(results, name, paper_rmse))] if beside else found

    beside = any(_published(results, name, paper_rmse) for name in results.runs)
    columns = [f"{results.measure} at {results.labels} labels", "seeds", "refits"]
    if not beside:
        return _table(results, "labels", columns, cells, "At equal labels.")
    caption = (
        "Table 1, at equal labels. z: ours less the paper's, in standard errors of the difference; up to "
        "three, the two agree."
    )
    return _table(results, "labels", [*columns, "paper", "z", "ours"], cells, caption)


def _published(results: Results, name: str, figures: Callable[[str, str], tuple[float, ...] | None]) -> Any:
    """The paper's figures for a method, if they may stand beside ours."""
    return None if departure(results.data, results.settings[name]) else figures(results.data, name)


def _beside(ours: Estimate, paper: tuple[float, float] | None) -> list[str]:
    """The paper's figure, how far ours is from it, and that in a word."""
    if paper is None:
        return [NOTHING] * 3
    if math.isnan(ours.error):
        return [str(Estimate(*paper)), NOTHING, NOTHING]
    z = (ours.mean - paper[0]) / math.hypot(ours.error, paper[1])
    word = "agrees" if abs(z) <= 3 else "lower" if z < 0 else "higher"
    return [str(Estimate(*paper)), f"{z:+.1f}", word]


def _equal_refits(results: Results) -> Table:
    def cells(name: str) -> list[str]:
        turns = results.at(name, "fits").values()
        measured = f"{results.estimate(name, 'fits'):.{results.digits}f}"
        return [measured, _count(turn.labels for turn in turns), str(len(turns))]

    columns = [f"{results.measure} after {results.refits} refits", "labels then", "seeds"]
    return _table(results, "fits", columns, cells, "The same at equal refits, where some have fewer labels.")


def _count(values: Iterable[int]) -> str:
    """One number where all are the same, else their mean."""
    found = list(values)
    return str(found[0]) if len(set(found)) == 1 else f"{sum(found) / len(found):.1f}"


def _pairs(results: Results) -> list[Table]:
    """Paired comparisons with random, and with the best method."""
    few, tables = results.few_seeds, []
    for reference in dict.fromkeys(["random", *results.ranked()[:1]]):
        note = "" if reference == "random" else ", the best by these same figures, which flatter it a little"
        rows = [
            [
                pair.method,
                _difference(results, pair.difference),
                str(pair.num_seeds),
                *(
                    "< 0.0001" if p_value < 1e-4 else f"{p_value:.4f}"
                    for p_value in (pair.p_value, pair.p_if_normal)
                    if p_value is not None
                ),
                pair.verdict,
            ]
            for pair in results.pairs(reference)
        ]
        measure = "Accuracy" if results.classes else "RMSE"
        caption = f"{measure} less that of {reference}{note}; in pairs, at equal labels."
        if few:
            caption += (
                " The t-test is paired, two-sided and Holm-corrected likewise; it can tell on fewer seeds, "
                "since it leans on the differences being normal, which so few cannot show."
            )
        tests = ["p, Wilcoxon", "p, t-test"] if few else ["p"]
        if rows:
            tables.append(Table(["method", "difference", "pairs", *tests, "in words"], rows, caption))
    return tables


def _difference(results: Results, errors: Estimate) -> str:
    """Of the measure; accuracy is the greater for a smaller error."""
    mean = 0 - errors.mean if results.classes else errors.mean  # without the sign of -0.0
    return f"{mean:+.{results.digits}f} ± {errors.error:.{results.digits}f}"


_TIMES = (
    "to build a batch; for the whole round; for the whole run. Runs trained side by side share the time of "
    "their training. Refits within a batch belong to one round."
)


def _seconds(results: Results) -> Table:
    def cells(name: str) -> list[str]:
        ours = [f"{value:.3g}" for value in results.seconds(name)]
        if not beside:
            return ours
        paper = _published(results, name, paper_seconds)
        theirs = [NOTHING] * 3 if paper is None else [f"{value:.1f}" for value in paper]
        return [cell for both in zip(ours, theirs, strict=True) for cell in both]

    beside = any(_published(results, name, paper_seconds) for name in results.runs)
    if not beside:
        return _table(results, "labels", ["batch", "round", "run"], cells, f"Seconds: {_TIMES}")
    columns = ["batch", "paper", "round", "paper", "run", "paper"]
    return _table(results, "labels", columns, cells, f"Table 2, seconds: {_TIMES}")


def _at_the_end(results: Results) -> Table:
    """What else there is of classes."""

    def cells(name: str) -> list[str]:
        ends = results.at(name, "labels").values()
        surprise = Estimate.over(-turn.log_density for turn in ends)
        gaps = [turn.calibration_error for turn in ends if turn.calibration_error is not None]
        seconds = [f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in results.seconds(name)]
        refits = _count(turn.fits for turn in ends)
        return [f"{surprise:.4f}", f"{Estimate.over(gaps):.4f}", refits, *seconds]

    columns = ["NLL", "calibration error", "refits", "batch", "round", "run"]
    caption = (
        f"At {results.labels} labels: negative log-likelihood, the mean over test points of minus the log "
        "probability of the true class; how far confidence is from accuracy; both are better where they are "
        f"lower. Then refits, and seconds: {_TIMES}"
    )
    return _table(results, "labels", columns, cells, caption)


# Figures.


def _handful(results: Results, ranking: Sequence[Standing], alike: Sequence[Results]) -> list[str]:
    """Methods to draw, in the same order on all data sets that are alike, so that they keep their colours."""
    every = {name for other in alike for name in other.ranked()}
    if len(every) <= len(COLOURS):
        return _random_first(every)
    paper = [name for name in results.runs if paper_name(results.data, name) == "ACS-FW"]
    acs = ["acs-fw"] if "acs-fw" in results.runs else sorted(paper, key=len)[:1]
    leader = [standing.method for standing in ranking[:1]]
    # Those that may be missing on some data sets come last.
    ranked = results.ranked()
    names = ["random", "maxent", *acs, *leader, "maxent-sg", "maxent-i", *ranked[:1]]
    if results.classes:  # others too, as many as there are colours
        names = [name for name in dict.fromkeys([*names, *ranked]) if name in ranked][: len(COLOURS)]
        return _random_first(names)  # not by rank, which differs between reports
    return names


def _random_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (name != "random", name))


def _curves(results: Results, show: Sequence[str], top: Estimate | None) -> Picture:
    ranked = results.ranked()
    order = list(dict.fromkeys(show))
    names = [name for name in order if name in ranked] or ranked[:7]
    labels = results.label_grid()
    refits = {name: results.refit_grid(name) for name in names}
    beyond = max(grid[-1] for grid in refits.values()) > results.refits > 0
    panels = [CurvePanel("labels", {name: (labels, results.curve(name, "labels", labels)) for name in names})]
    along = "labels"
    if not results.in_step():  # else the same curves would be drawn twice
        curves = {name: (grid, results.curve(name, "fits", grid)) for name, grid in refits.items()}
        panels.append(CurvePanel("refits", curves, stretched=results.refits if beyond else None))
        along = "labels and against refits"
    figure = curve_panels(
        panels,
        f"test {results.measure}, {results.data}",
        order=order,
        shares=results.classes,
        level=None if top is None else ("all labels", top.mean),
    )
    caption = (
        f"Test {'accuracy' if results.classes else 'error'} against {along}: means over seeds, bands of two "
        "standard errors. Where a run has no fit, its last one before counts."
    )
    if left := len(ranked) - len(names):
        caption += f" {left} other method{'s are' if left > 1 else ' is'} not drawn."
    if results.classes:
        caption += " The first fit, which all have in common, may lie below the picture."
    if beyond:
        caption += (
            f" A dotted line stands at the {results.refits} refits of methods with full batches; beyond it "
            "the axis is logarithmic."
        )
    return Picture(figure, caption, f"curves-{results.data}.png")
