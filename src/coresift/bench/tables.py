"""Tables of one data set: the paper's Tables 1 and 2 next to ours, equal refits, paired tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from coresift.bench.published import Figures, departure, paper_rmse, paper_seconds
from coresift.bench.results import Along, Results
from coresift.bench.statistics import Estimate, Pair
from coresift.report.page import Table

NOTHING = "\N{EN DASH}"
Cells = Callable[[str], Sequence[str]]  # from a method to the cells of its row

_AGREEMENT = (
    "Table 1 of the paper, at equal labels. z: ours minus the paper's, in standard errors of the difference; "
    "up to 3, the two agree."
)
_TIMES = (
    "to build a batch; for the whole round; for the whole run. Runs trained side by side share their "
    "training time. Refits within a batch belong to one round."
)
_T_TEST = (
    " The t-test (paired, two-sided, Holm-corrected) can be significant with fewer seeds, because it assumes "
    "normal differences; so few seeds cannot show whether they are."
)


def tables(results: Results) -> list[Table]:
    """Make all tables of a data set; a single fit of one method is compared with nothing."""
    compared = [equal_refits(results), *paired_tests(results)] if results.compares else []
    return [equal_labels(results), *compared, likelihoods(results) if results.classes else seconds(results)]


def _table(results: Results, along: Along, columns: Sequence[str], cells: Cells, caption: str) -> Table:
    """Make a row for each method, the most accurate first; dashes for those without a finished run."""
    ranked = results.ranked(along)
    rows = [[name, *cells(name)] for name in ranked]
    rows += [[name, *[NOTHING] * len(columns)] for name in results.runs if name not in ranked]
    return Table(["method", *columns], rows, caption)


def _published(results: Results, figures: Callable[[str, str], Figures | None]) -> dict[str, Figures]:
    """Return the paper's figures of the methods for which they are comparable with ours."""
    comparable = [name for name in results.runs if not departure(results.data, results.settings[name])]
    return {name: found for name in comparable if (found := figures(results.data, name))}


def equal_labels(results: Results) -> Table:
    """Compare methods at equal labels, next to Table 1 of the paper where it has the data set."""
    paper = _published(results, paper_rmse)

    def cells(name: str) -> list[str]:
        rounds, ours = results.at(name).values(), results.estimate(name)
        row = [f"{ours:.{results.measure.digits}f}", str(len(rounds)), _count(turn.fits for turn in rounds)]
        return [*row, *_next_to(ours, paper.get(name))] if paper else row

    columns = [f"{results.measure.name} at {results.labels} labels", "seeds", "refits"]
    if paper:
        return _table(results, "labels", [*columns, "paper", "z", "ours"], cells, _AGREEMENT)
    return _table(results, "labels", columns, cells, "At equal labels.")


def _next_to(ours: Estimate, figures: Figures | None) -> list[str]:
    """Return the paper's figure, how far ours is from it, and that in a word."""
    if figures is None:
        return [NOTHING] * 3
    paper = Estimate(*figures)
    if math.isnan(ours.error):
        return [str(paper), NOTHING, NOTHING]
    z = (ours.mean - paper.mean) / math.hypot(ours.error, paper.error)
    word = "agrees" if abs(z) <= 3 else "lower" if z < 0 else "higher"
    return [str(paper), f"{z:+.1f}", word]


def equal_refits(results: Results) -> Table:
    """Compare methods at equal refits."""

    def cells(name: str) -> list[str]:
        rounds = results.at(name, "fits").values()
        estimate = f"{results.estimate(name, 'fits'):.{results.measure.digits}f}"
        return [estimate, _count(turn.labels for turn in rounds), str(len(rounds))]

    columns = [f"{results.measure.name} after {results.refits} refits", "labels then", "seeds"]
    return _table(results, "fits", columns, cells, "At equal refits, where some methods have fewer labels.")


def _count(values: Iterable[int]) -> str:
    """Return one number where all are the same, else their mean."""
    numbers = list(values)
    return str(numbers[0]) if len(set(numbers)) == 1 else f"{sum(numbers) / len(numbers):.1f}"


def paired_tests(results: Results) -> list[Table]:
    """Compare all methods in pairs with random, and with the best method."""
    tests = ["p, Wilcoxon", "p, t-test"] if results.few_seeds else ["p"]
    columns = ["method", "difference", "pairs", *tests, "result"]
    found = []
    for reference in dict.fromkeys(["random", *results.ranked()[:1]]):
        if pairs := results.pairs(reference):
            rows = [_pair_row(results, pair) for pair in pairs]
            found.append(Table(columns, rows, _pairs_caption(results, reference)))
    return found


def _pairs_caption(results: Results, reference: str) -> str:
    name = results.measure.name
    caption = f"{name[0].upper()}{name[1:]} minus that of {reference}, in pairs at equal labels."
    if reference != "random":
        caption += f" {reference} is the best by the same figures, which favours it slightly."
    return caption + (_T_TEST if results.few_seeds else "")


def _pair_row(results: Results, pair: Pair) -> list[str]:
    p_values = [pair.p_value, pair.p_if_normal] if results.few_seeds else [pair.p_value]
    shown = ["< 0.0001" if value < 1e-4 else f"{value:.4f}" for value in p_values]
    # A smaller error rate is a greater accuracy; no "-0.0".
    mean = 0 - pair.difference.mean if results.classes else pair.difference.mean
    digits = results.measure.digits
    difference = f"{mean:+.{digits}f} ± {pair.difference.error:.{digits}f}"
    return [pair.method, difference, str(pair.num_seeds), *shown, pair.verdict]


def seconds(results: Results) -> Table:
    """Show the times of regressions, next to Table 2 of the paper where it has the data set."""
    paper, titles = _published(results, paper_seconds), ["batch", "round", "run"]

    def ours(name: str) -> list[str]:
        return [f"{value:.3g}" for value in results.seconds(name)]

    def both(name: str) -> list[str]:
        theirs = [f"{value:.1f}" for value in paper.get(name, ())] or [NOTHING] * 3
        return list(chain(*zip(ours(name), theirs, strict=True)))

    if paper:
        columns = list(chain(*((title, "paper") for title in titles)))
        return _table(results, "labels", columns, both, f"Table 2 of the paper, seconds: {_TIMES}")
    return _table(results, "labels", titles, ours, f"Seconds: {_TIMES}")


def likelihoods(results: Results) -> Table:
    """Show likelihood, calibration and times of classifications."""

    def cells(name: str) -> list[str]:
        ends = results.at(name).values()
        nll = Estimate.over(-turn.log_density for turn in ends)
        gaps = [turn.calibration_error for turn in ends if turn.calibration_error is not None]
        times = [f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in results.seconds(name)]
        return [f"{nll:.4f}", f"{Estimate.over(gaps):.4f}", _count(turn.fits for turn in ends), *times]

    columns = ["NLL", "calibration error", "refits", "batch", "round", "run"]
    caption = (
        f"At {results.labels} labels: negative log-likelihood (NLL, the mean over the test set of minus the "
        "log probability of the true class) and calibration error (how far confidence is from accuracy); "
        f"lower is better for both. Then refits, and seconds: {_TIMES}"
    )
    return _table(results, "labels", columns, cells, caption)
