"""The report on an experiment: tables next to the paper's, learning curves, tests, all rounds in one file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from coresift.atomic import write_text
from coresift.bench.published import departure, paper_name, paper_rmse, paper_seconds
from coresift.bench.results import Results, Standing, standings
from coresift.bench.statistics import Estimate, seeds_needed
from coresift.bench.store import PACKED, Origins, Record, pack, read
from coresift.bench.tables import NOTHING, tables
from coresift.report.figures import COLOURS, CurvePanel, curve_panels, save
from coresift.report.page import Heading, Part, Picture, Table, markdown, page
from coresift.types import InputError

# By the kinds of data sets there are, without classes and with: their name, and what is measured.
_KINDS = {
    (False,): ("regression", "All errors are test RMSE"),
    (True,): ("classification", "All results are test accuracy"),
    (False, True): ("regression and classification", "Results are test RMSE or, for classes, test accuracy"),
}
_HOW = (
    "Methods are compared twice: at equal labels, and at equal refits, since a method that refits after "
    "every label, or buys small batches, uses more computing than the others. Fits on pseudo-labels count "
    "as refits only. Runs of one seed share the split, the first labels and the initial networks, so methods "
    "are compared in pairs: two-sided Wilcoxon signed-rank tests on the differences at equal labels, "
    "Holm-corrected over the methods compared on a data set, at 5%."
)


def write_report(
    folder: Path,
    out: Path | None = None,
    *,
    show: Sequence[str] | None = None,
    ceiling: Path | None = None,
) -> Path:
    """Write ``report.html``, ``table1.md``, ``curves-DATA.png`` and ``rounds.parquet``; returns the page.

    Where all data sets have classes, for which the paper has no Table 1, that file is called ``tables.md``.

    Parameters
    ----------
    folder : with ``DATA/METHOD.jsonl``, whose runs may be unfinished, or with ``rounds.parquet``.
    out : where to write; the same folder by default.
    show : methods in the figures, which have seven colours; a few with the best by default.
    ceiling : another folder, with results of the same models on all labels, to be drawn as a line.
    """
    out = out or folder
    records, origins = read(folder)
    known = sorted({record.method for record in records})
    if unknown := sorted({*(show or ())} - {*known}):
        raise InputError(f"show names {', '.join(unknown)}, but {folder} has {', '.join(known)}")
    report = _Report(_gather(records, origins), {} if ceiling is None else _ceilings(ceiling), show)
    out.mkdir(parents=True, exist_ok=True)
    pack(records, origins, out / PACKED)
    kind, measures = _KINDS[report.kinds]
    top, end = _provenance(origins)
    parts = [*top, *report.overview(), f"{measures}, mean ± standard error over seeds.{report.how()}"]
    for results in report.everything:
        parts += report.section(results)
    parts += end
    for part in parts:
        if isinstance(part, Picture):
            save(part.figure, out / part.file)
    title = f"Which labels to buy: the {kind} experiments"
    write_text(out / ("table1.md" if False in report.kinds else "tables.md"), markdown(title, parts))
    path = out / "report.html"
    write_text(path, page(title, parts))
    return path


def _gather(records: Iterable[Record], origins: Origins) -> list[Results]:
    """Sort runs by data set."""
    settings = defaultdict[str, dict[str, dict[str, Any]]](dict)
    for (data, method), origin in origins.items():
        settings[data][method] = origin.settings
    return [
        Results.gather(data, list(runs), settings[data])
        for data, runs in groupby(records, lambda run: run.data)
    ]


def _ceilings(folder: Path) -> dict[tuple[str, bool], tuple[int, Estimate]]:
    """Read what all labels give: data set, and whether it has classes -> number of labels, estimate."""
    found = {
        (results.data, results.classes): (results.labels, results.estimate(results.ranked()[0]))
        for results in _gather(*read(folder))
        if results.ranked() and results.refits == 0
    }
    if not found:
        raise InputError(f'{folder} has no finished runs with first = "all", to be the ceiling of others')
    return found


def _provenance(origins: Origins) -> tuple[list[Part], list[Part]]:
    """Say how the results were made, for the top; if by many commands, with a list of them for the end."""
    made = [one for origin in origins.values() for one in origin.made]
    names = dict.fromkeys(name for one in made for name in one)
    values = {name: list(dict.fromkeys(one[name] for one in made if name in one)) for name in names}
    commands, lines, end = values.get("command", []), [], list[Part]()
    if len(commands) > 1:
        lines = [f"These results were made by {len(commands)} commands, listed at the end."]
        end = [Heading("Commands"), *sorted(values.pop("command"))]
    lines += [f"{name.capitalize()}: {'; '.join(different)}." for name, different in values.items()]
    return [" ".join(lines)] if lines else [], end


@dataclass(frozen=True)
class _Report:
    """What a report is made of: results, results with all labels, and the methods to draw."""

    everything: Sequence[Results]
    ceilings: dict[tuple[str, bool], tuple[int, Estimate]]
    show: Sequence[str] | None

    @property
    def kinds(self) -> tuple[bool, ...]:
        """Whether there are data sets without classes, and with."""
        return tuple(sorted({results.classes for results in self.everything})) or (False,)

    def alike(self, classes: bool) -> list[Results]:
        """Return the results that share a ranking: ratios of RMSE and of error rates have no common mean."""
        return [results for results in self.everything if results.classes is classes]

    def how(self) -> str:
        """Say how methods are compared, if they are."""
        return f" {_HOW}" if any(_compares(results) for results in self.everything) else ""

    def overview(self) -> list[Part]:
        """Rank the methods over all data sets."""
        rankings = {classes: standings(self.alike(classes)) for classes in self.kinds}
        return [
            part
            for classes, ranking in rankings.items()
            for part in _overview(ranking, self.everything, classes)
        ]

    def section(self, results: Results) -> list[Part]:
        """Make the part about one data set."""
        parts: list[Part] = [Heading(results.data), *_warnings(results)]
        labels, top = self.ceilings.get((results.data, results.classes), (0, None))
        if top is not None:
            parts.append(f"With all {labels:,} labels, {results.measure} is {top:.{results.digits}f}.")
        if _compares(results) and results.ranked():
            parts.append(_curves(results, self.show or self._handful(results), top))
        return [*parts, *tables(results)]

    def _handful(self, results: Results) -> list[str]:
        """Choose methods to draw, in an order that gives them the same colours on all data sets alike."""
        alike = self.alike(results.classes)
        every = {name for other in alike for name in other.ranked()}
        if len(every) <= len(COLOURS):
            return _random_first(every)
        paper = [name for name in results.runs if paper_name(results.data, name) == "ACS-FW"]
        acs = ["acs-fw"] if "acs-fw" in results.runs else sorted(paper, key=len)[:1]
        best = [standing.method for standing in standings(alike)[:1]]
        # Those that may be missing on some data sets come last.
        ranked = results.ranked()
        names = ["random", "maxent", *acs, *best, "maxent-sg", "maxent-i", *ranked[:1]]
        if not results.classes:
            return names
        names = [name for name in dict.fromkeys([*names, *ranked]) if name in ranked]
        return _random_first(names[: len(COLOURS)])  # not by rank, which differs between reports


def _random_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (name != "random", name))


def _compares(results: Results) -> bool:
    """Tell whether there is more than one fit of one method."""
    return results.refits > 0 or len(results.runs) > 1


# What is at the top.


def _overview(ranking: Sequence[Standing], everything: Sequence[Results], classes: bool) -> list[Part]:
    if [standing.method for standing in ranking] == ["random"]:
        return []
    if not ranking:
        which = " by accuracy" if classes else ""
        return [f"There is no ranking{which} yet: it needs a finished run of random on some data set."]
    names = sorted({name for standing in ranking for name in standing.at_labels})
    return [
        _headline(ranking[0], everything, classes),
        Table(
            ["method", "equal labels", "equal refits", *names],
            [_overview_row(standing, names) for standing in ranking],
            f"{'Error rate' if classes else 'RMSE'} divided by that of random: geometric means over data "
            "sets at equal labels and at equal refits, then each data set at equal labels. Methods that lack "
            "data sets, or have one seed where others have more, are last.",
        ),
    ]


def _overview_row(standing: Standing, names: Sequence[str]) -> list[str]:
    ratios = standing.at_labels
    each = [f"{ratios[name]:.3f}" if name in ratios else NOTHING for name in names]
    return [standing.method, *(f"{value:.3f}" for value in standing.overall), *each]


def _headline(best: Standing, everything: Sequence[Results], classes: bool) -> str:
    """Say which method is the most accurate, by how much, and whether that is significant."""
    names, (at_labels, at_refits) = list(best.at_labels), best.overall
    where = f"on {names[0]}" if len(names) == 1 else f"in geometric mean over {', '.join(names)}"
    if best.method == "random":
        return f"The most accurate at equal labels is random itself, {where}."
    tested = _tested(best.method, [results for results in everything if results.data in names])
    return (
        f"The most accurate at equal labels is {best.method}: its {'error rate' if classes else 'error'} is "
        f"{at_labels:.2f} times that of random ({at_refits:.2f} times at equal refits), {where}. {tested}"
    )


def _tested(method: str, everything: Sequence[Results]) -> str:
    """Say what the paired tests show for a method, over all data sets."""
    pairs = [pair for results in everything for pair in results.pairs("random") if pair.method == method]
    if not pairs:
        return "This is not tested: a test needs two seeds that both have finished."
    verdicts = Counter(pair.verdict for pair in pairs)
    verdicts["not tested against random"] = len(everything) - len(pairs)
    if len(everything) == 1:
        return f"By the paired tests below, it is {pairs[0].verdict}."
    counts = [
        f"{words} ({count} of {len(everything)} data sets)"
        for words, count in verdicts.most_common()
        if count
    ]
    return f"By the paired tests below, it is {'; '.join(counts)}."


# What is at the top of each data set.


def _warnings(results: Results) -> list[str]:
    """Say what makes methods incomparable, which runs are missing, and why figures of the paper are."""
    return [*_mixed(results), *_left_out(results), *_not_the_papers(results)]


def _mixed(results: Results) -> list[str]:
    different = [
        f"{name} ({' against '.join(', '.join(group) for group in groups)})"
        for name, groups in results.differing().items()
    ]
    warning = "Warning: these methods were run with different settings, and cannot be compared:"
    return [f"{warning} {'; '.join(different)}."] if different else []


def _left_out(results: Results) -> list[str]:
    lines = []
    counts = [f"{name} {count}" for name, count in results.unfinished.items() if count]
    if counts:
        lines.append(f"Unfinished runs are left out: {', '.join(counts)}.")
    compared = max(len(results.ranked()) - 1, 1)
    needed = seeds_needed(compared)
    if len(results.runs) > 1 and any(len(runs) < needed for runs in results.runs.values()):
        test = " by the Wilcoxon test" if results.classes else ""
        lines.append(
            f"With fewer than {needed} finished seeds and {compared} methods compared, even a method that is "
            f"better on every seed may not be significantly better{test}."
        )
    return [" ".join(lines)] if lines else []


def _not_the_papers(results: Results) -> list[str]:
    reasons = defaultdict[str, list[str]](list)
    for name in results.runs:
        reason = departure(results.data, results.settings[name])
        if reason and (paper_rmse(results.data, name) or paper_seconds(results.data, name)):
            reasons[reason].append(name)
    return [
        f"The paper's figures are left out for {', '.join(names)}: {why}." for why, names in reasons.items()
    ]


# Figures.


def _curves(results: Results, show: Sequence[str], top: Estimate | None) -> Picture:
    ranked = results.ranked()
    order = list(dict.fromkeys(show))
    names = [name for name in order if name in ranked] or ranked[: len(COLOURS)]
    labels = results.label_grid()
    panels = [CurvePanel("labels", {name: (labels, results.curve(name, "labels", labels)) for name in names})]
    if not results.in_step():  # else the same curves would be drawn twice
        panels.append(_refit_panel(results, names))
    figure = curve_panels(
        panels,
        f"test {results.measure}, {results.data}",
        order=order,
        accuracy=results.classes,
        level=None if top is None else ("all labels", top.mean),
    )
    caption = _curves_caption(results, panels, len(ranked) - len(names))
    return Picture(figure, caption, f"curves-{results.data}.png")


def _refit_panel(results: Results, names: Sequence[str]) -> CurvePanel:
    grids = {name: results.refit_grid(name) for name in names}
    curves = {name: (grid, results.curve(name, "fits", grid)) for name, grid in grids.items()}
    beyond = max(grid[-1] for grid in grids.values()) > results.refits > 0
    return CurvePanel("refits", curves, stretched=results.refits if beyond else None)


def _curves_caption(results: Results, panels: Sequence[CurvePanel], left: int) -> str:
    parts = [
        f"Test {'accuracy' if results.classes else 'error'} against "
        f"{' and against '.join(panel.axis for panel in panels)}: means over seeds, bands of two standard "
        "errors. Between two fits, the earlier one counts."
    ]
    if left:
        parts.append(f"{left} other method{'s are' if left > 1 else ' is'} not drawn.")
    if results.classes:
        parts.append("The first fit, the same for all methods, may be below the figure.")
    if panels[-1].stretched is not None:
        parts.append(
            f"The dotted line marks the {results.refits} refits of methods with full batches; beyond it, the "
            "axis is logarithmic."
        )
    return " ".join(parts)
