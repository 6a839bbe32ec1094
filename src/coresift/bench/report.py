"""The report on an experiment: tables next to the paper's, learning curves, tests, all rounds in one file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path

from coresift.atomic import write_text
from coresift.bench.published import departure, paper_name, paper_rmse, paper_seconds
from coresift.bench.results import Results, Standing, standings
from coresift.bench.statistics import Estimate
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
    kind, _ = _KINDS[report.kinds]
    title, parts = f"Which labels to buy: the {kind} experiments", report.parts(origins)
    for part in parts:
        if isinstance(part, Picture):
            save(part.figure, out / part.file)
    write_text(out / ("table1.md" if False in report.kinds else "tables.md"), markdown(title, parts))
    path = out / "report.html"
    write_text(path, page(title, parts))
    return path


def _gather(records: Iterable[Record], origins: Origins) -> list[Results]:
    """Sort runs by data set."""
    settings = {name: origin.settings for name, origin in origins.items()}
    return [
        Results.gather(
            data, list(runs), {method: settings[of, method] for of, method in settings if of == data}
        )
        for data, runs in groupby(records, lambda run: run.data)
    ]


def _ceilings(folder: Path) -> dict[tuple[str, bool], tuple[int, Estimate]]:
    """Read what all labels give: data set, and whether it has classes -> number of labels, estimate."""
    found = [results for results in _gather(*read(folder)) if results.ranked() and results.refits == 0]
    if not found:
        raise InputError(f'{folder} has no finished runs with first = "all", to be the ceiling of others')
    return {
        (results.data, results.classes): (results.labels, results.estimate(results.ranked()[0]))
        for results in found
    }


def _provenance(origins: Origins) -> tuple[list[Part], list[Part]]:
    """Say how the results were made, for the top; if by many commands, with a list of them for the end."""
    made = chain.from_iterable(origin.made for origin in origins.values())
    values = defaultdict[str, list[str]](list)
    for name, value in dict.fromkeys(chain.from_iterable(each.items() for each in made)):
        values[name].append(value)
    lines, end = [], list[Part]()
    if len(commands := values.get("command", [])) > 1:
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

    def parts(self, origins: Origins) -> list[Part]:
        """Make all parts: an overview, and a section on each data set."""
        top, end = _provenance(origins)
        overview = chain.from_iterable(_overview(self.alike(classes), classes) for classes in self.kinds)
        _, measures = _KINDS[self.kinds]
        how = f" {_HOW}" if any(results.compares for results in self.everything) else ""
        sections = chain.from_iterable(map(self.section, self.everything))
        return [*top, *overview, f"{measures}, mean ± standard error over seeds.{how}", *sections, *end]

    def section(self, results: Results) -> list[Part]:
        """Make the part about one data set."""
        parts: list[Part] = [Heading(results.data), *_warnings(results)]
        labels, top = self.ceilings.get((results.data, results.classes), (0, None))
        if top is not None:
            parts.append(f"With all {labels:,} labels, {results.measure} is {top:.{results.digits}f}.")
        if results.compares and results.ranked():
            parts.append(_curves(results, self.show or self._handful(results), top))
        return [*parts, *tables(results)]

    def _handful(self, results: Results) -> list[str]:
        """Choose methods to draw, in an order that gives them the same colours on all data sets alike."""
        alike, ranked = self.alike(results.classes), results.ranked()
        every = {*chain.from_iterable(other.ranked() for other in alike)}
        if len(every) <= len(COLOURS):
            return _random_first(every)
        best = [standing.method for standing in standings(alike)[:1]]
        # Those that may be missing on some data sets come last.
        names = ["random", "maxent", *_acs(results), *best, "maxent-sg", "maxent-i", *ranked[:1]]
        if not results.classes:
            return names
        found = sorted(ranked, key=[*names, *ranked].index)
        return _random_first(found[: len(COLOURS)])  # not by rank, which differs between reports


def _acs(results: Results) -> list[str]:
    """Return the method of the paper, or the one with the shortest name that stands for it."""
    if "acs-fw" in results.runs:
        return ["acs-fw"]
    return sorted((name for name in results.runs if paper_name(results.data, name) == "ACS-FW"), key=len)[:1]


def _random_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (name != "random", name))


# What is at the top.


def _overview(alike: Sequence[Results], classes: bool) -> list[Part]:
    """Rank the methods over data sets that share a ranking."""
    ranking = standings(alike)
    if [standing.method for standing in ranking] == ["random"]:
        return []
    if not ranking:
        which = " by accuracy" if classes else ""
        return [f"There is no ranking{which} yet: it needs a finished run of random on some data set."]
    names = sorted({*chain.from_iterable(standing.at_labels for standing in ranking)})
    return [
        _headline(ranking[0], alike, classes),
        Table(
            ["method", "equal labels", "equal refits", *names],
            [_overview_row(standing, names) for standing in ranking],
            f"{'Error rate' if classes else 'RMSE'} divided by that of random: geometric means over data "
            "sets at equal labels and at equal refits, then each data set at equal labels. Methods that lack "
            "data sets, or have one seed where others have more, are last.",
        ),
    ]


def _overview_row(standing: Standing, names: Sequence[str]) -> list[str]:
    ratios = [*standing.overall, *map(standing.at_labels.get, names)]
    return [standing.method, *(NOTHING if ratio is None else f"{ratio:.3f}" for ratio in ratios)]


def _headline(best: Standing, alike: Sequence[Results], classes: bool) -> str:
    """Say which method is the most accurate, by how much, and whether that is significant."""
    names, (at_labels, at_refits) = list(best.at_labels), best.overall
    where = f"on {names[0]}" if len(names) == 1 else f"in geometric mean over {', '.join(names)}"
    if best.method == "random":
        return f"The most accurate at equal labels is random itself, {where}."
    verdicts = [_verdict(best.method, results) for results in alike if results.data in names]
    return (
        f"The most accurate at equal labels is {best.method}: its {'error rate' if classes else 'error'} is "
        f"{at_labels:.2f} times that of random ({at_refits:.2f} times at equal refits), {where}. "
        f"{_tested(verdicts)}"
    )


_UNTESTED = "not tested against random"


def _verdict(method: str, results: Results) -> str:
    """Say in words what the paired test of a method against random shows."""
    verdicts = {pair.method: pair.verdict for pair in results.pairs("random")}
    return verdicts.get(method, _UNTESTED)


def _tested(verdicts: Sequence[str]) -> str:
    """Say what the paired tests of a method show, over all data sets."""
    if {*verdicts} == {_UNTESTED}:
        return "This is not tested: a test needs two seeds that both have finished."
    if len(verdicts) == 1:
        return f"By the paired tests below, it is {verdicts[0]}."
    # At equal counts, what is not tested is named last.
    counts = Counter(sorted(verdicts, key=lambda verdict: verdict == _UNTESTED)).most_common()
    found = [f"{verdict} ({count} of {len(verdicts)} data sets)" for verdict, count in counts]
    return f"By the paired tests below, it is {'; '.join(found)}."


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
    if results.unfinished:
        counts = ", ".join(f"{name} {count}" for name, count in results.unfinished.items())
        lines.append(f"Unfinished runs are left out: {counts}.")
    if len(results.runs) > 1 and min(map(len, results.runs.values())) < results.seeds_needed:
        test = " by the Wilcoxon test" if results.classes else ""
        lines.append(
            f"With fewer than {results.seeds_needed} finished seeds and {results.num_compared} methods "
            f"compared, even a method that is better on every seed may not be significantly better{test}."
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
    others = {0: "", 1: " 1 other method is not drawn."}.get(left, f" {left} other methods are not drawn.")
    first = " The first fit, the same for all methods, may be below the figure." if results.classes else ""
    end = panels[-1].stretched
    line = (
        f" The dotted line marks the {end} refits of methods with full batches; beyond it, the axis is "
        "logarithmic."
    )
    return (
        f"Test {'accuracy' if results.classes else 'error'} against "
        f"{' and against '.join(panel.axis for panel in panels)}: means over seeds, bands of two standard "
        f"errors. Between two fits, the earlier one counts.{others}{first}{line if end else ''}"
    )
