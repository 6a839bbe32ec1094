"""The report on an experiment: tables next to the paper's, learning curves, tests, all rounds in one file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any, TypeAlias

from coresift.atomic import write_text
from coresift.bench.published import departure, paper_name, paper_rmse
from coresift.bench.results import Results, Standing, standings
from coresift.bench.statistics import Estimate
from coresift.bench.store import PACKED, Origins, Record, pack, read
from coresift.bench.tables import NOTHING, tables
from coresift.errors import InputError
from coresift.report.figures import COLOURS, CurvePanel, curve_panels, save
from coresift.report.page import Heading, Part, Picture, Table, markdown, page

# What all labels give: data set, and whether it has classes -> number of labels, estimate.
Ceilings: TypeAlias = Mapping[tuple[str, bool], tuple[int, Estimate]]

_UNTESTED = "not tested against random"
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


def write_report(folder: Path, out: Path | None = None, *, ceiling: Path | None = None) -> Path:
    """Write ``report.html``, ``table1.md``, ``curves-DATA.png`` and ``rounds.parquet``; returns the page.

    Where all data sets have classes, for which the paper has no Table 1, that file is called ``tables.md``.

    Parameters
    ----------
    folder : with ``DATA/METHOD.jsonl``, whose runs may be unfinished, or with ``rounds.parquet``.
    out : where to write; the same folder by default.
    ceiling : another folder, with results of the same models on all labels, to be drawn as a line.
    """
    out = out or folder
    records, origins = read(folder)
    report = _Report(_gather(records, origins), _ceilings(ceiling) if ceiling else {})
    out.mkdir(parents=True, exist_ok=True)
    pack(records, origins, out / PACKED)
    kind, _ = _KINDS[report.kinds]
    title, parts = f"Which labels to buy: the {kind} experiments", report.parts(origins)
    for picture in (part for part in parts if isinstance(part, Picture)):
        save(picture.figure, out / picture.file)
    write_text(out / ("table1.md" if False in report.kinds else "tables.md"), markdown(title, parts))
    path = out / "report.html"
    write_text(path, page(title, parts))
    return path


def _gather(records: Iterable[Record], origins: Origins) -> list[Results]:
    """Sort runs by data set."""
    settings = defaultdict[str, dict[str, dict[str, Any]]](dict)
    for (data, method), origin in origins.items():
        settings[data][method] = origin.settings
    by_data = groupby(records, lambda run: run.data)
    return [Results.gather(data, list(runs), settings[data]) for data, runs in by_data]


def _ceilings(folder: Path) -> Ceilings:
    found = [results for results in _gather(*read(folder)) if results.ranked() and results.refits == 0]
    if not found:
        raise InputError(f'{folder} has no finished runs with first = "all", to be the ceiling of others')
    return {
        (results.data, results.classes): (results.labels, results.estimate(results.ranked()[0]))
        for results in found
    }


def _provenance(origins: Origins) -> tuple[str, list[Part]]:
    """Say how the results were made, for the top; if by many commands, with a list of them for the end."""
    values = defaultdict[str, dict[str, None]](dict)
    for made in chain.from_iterable(origin.made for origin in origins.values()):
        for name, value in made.items():
            values[name][value] = None
    lines, end = [], list[Part]()
    if len(values.get("command", ())) > 1:
        commands = sorted(values.pop("command"))
        lines = [f"These results were made by {len(commands)} commands, listed at the end."]
        end = [Heading("Commands"), *commands]
    lines += [f"{name.capitalize()}: {'; '.join(different)}." for name, different in values.items()]
    return " ".join(lines), end


@dataclass(frozen=True)
class _Report:
    everything: Sequence[Results]
    ceilings: Ceilings

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
        measured = f"{measures}, mean ± standard error over seeds.{how}"
        return [*filter(None, [top]), *overview, measured, *sections, *end]

    def section(self, results: Results) -> list[Part]:
        """Make the part about one data set."""
        warnings = [_mixed(results), _left_out(results), *_not_the_papers(results)]
        parts: list[Part] = [Heading(results.data), *filter(None, warnings)]
        labels, top = self.ceilings.get((results.data, results.classes), (0, None))
        if top is not None:
            measure = results.measure
            parts.append(f"With all {labels:,} labels, {measure.name} is {top:.{measure.digits}f}.")
        if results.compares and results.ranked():
            parts.append(_curves(results, self._handful(results), top))
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


def _overview(alike: Sequence[Results], classes: bool) -> list[Part]:
    """Rank the methods over data sets that share a ranking."""
    ranking, which = standings(alike), " by accuracy" if classes else ""
    if not ranking:
        return [f"There is no ranking{which} yet: it needs a finished run of random on some data set."]
    if len(ranking) == 1 and ranking[0].method == "random":
        return []
    names = sorted({*chain.from_iterable(standing.at_labels for standing in ranking)})
    rows = [
        [standing.method, *map(_ratio, [*standing.overall, *map(standing.at_labels.get, names)])]
        for standing in ranking
    ]
    caption = (
        f"{'Error rate' if classes else 'RMSE'} divided by that of random: geometric means over data sets at "
        "equal labels and at equal refits, then each data set at equal labels. Methods that lack data sets, "
        "or have one seed where others have more, are last."
    )
    table = Table(["method", "equal labels", "equal refits", *names], rows, caption)
    return [_headline(ranking[0], alike), table]


def _ratio(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.3f}"


def _headline(best: Standing, alike: Sequence[Results]) -> str:
    """Say which method is the most accurate, by how much, and whether that is significant."""
    names, (at_labels, at_refits) = list(best.at_labels), best.overall
    where = f"on {names[0]}" if len(names) == 1 else f"in geometric mean over {', '.join(names)}"
    if best.method == "random":
        return f"The most accurate at equal labels is random itself, {where}."
    verdicts = [_verdict(best.method, results) for results in alike if results.data in names]
    return (
        f"The most accurate at equal labels is {best.method}: its {alike[0].measure.error} is "
        f"{at_labels:.2f} times that of random ({at_refits:.2f} times at equal refits), {where}. "
        f"{_tested(verdicts)}"
    )


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


def _mixed(results: Results) -> str:
    """Say what makes methods incomparable."""
    different = [
        f"{name} ({' against '.join(', '.join(group) for group in groups)})"
        for name, groups in results.differing().items()
    ]
    warning = "Warning: these methods were run with different settings, and cannot be compared:"
    return f"{warning} {'; '.join(different)}." if different else ""


def _left_out(results: Results) -> str:
    """Say which runs are missing, and where there are too few for a test."""
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
    return " ".join(lines)


def _not_the_papers(results: Results) -> list[str]:
    """Say why figures of the paper are missing."""
    reasons = defaultdict[str, list[str]](list)
    for name in filter(lambda name: paper_rmse(results.data, name), results.runs):
        if reason := departure(results.data, results.settings[name]):
            reasons[reason].append(name)
    return [
        f"The paper's figures are left out for {', '.join(names)}: {why}." for why, names in reasons.items()
    ]


def _curves(results: Results, show: Sequence[str], top: Estimate | None) -> Picture:
    ranked, order = results.ranked(), list(dict.fromkeys(show))
    names = [name for name in order if name in ranked] or ranked[: len(COLOURS)]
    labels = results.label_grid()
    panels = [CurvePanel("labels", {name: (labels, results.curve(name, "labels", labels)) for name in names})]
    if not results.in_step():  # else the same curves would be drawn twice
        panels.append(_refit_panel(results, names))
    level, measured = (
        ("all labels", top.mean) if top else None,
        f"test {results.measure.name}, {results.data}",
    )
    figure = curve_panels(panels, measured, order=order, accuracy=results.classes, level=level)
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
    caption = (
        f"Test {'accuracy' if results.classes else 'error'} against "
        f"{' and against '.join(panel.axis for panel in panels)}: means over seeds, bands of two standard "
        f"errors. Between two fits, the earlier one counts.{others}{first}"
    )
    if end := panels[-1].stretched:
        caption += f" The dotted line marks the {end} refits of methods with full batches; beyond it, "
        caption += "the axis is logarithmic."
    return caption
