"""Tables of one data set: the paper's Tables 1 and 2 next to ours, equal refits, paired tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from coresift.bench.published import departure, paper_rmse, paper_seconds
from coresift.bench.results import Along, Results
from coresift.bench.statistics import Estimate, Pair
from coresift.report.page import Table

NOTHING = "\N{EN DASH}"
# Cells of a method's row.
Cells = Callable[[str], Sequence[str]]
Published = Callable[[str, str], tuple[float, ...] | None]

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
    compared = (
        [equal_refits(results), *paired_tests(results)] if results.refits or len(results.runs) > 1 else []
    )
    return [equal_labels(results), *compared, likelihoods(results) if results.classes else seconds(results)]


def _table(results: Results, along: Along, columns: Sequence[str], cells: Cells, caption: str) -> Table:
    """Make a row for each method, the most accurate first; dashes for those without a finished run."""
    ranked = results.ranked(along)
    rows = [[name, *cells(name)] for name in ranked]
    rows += [[name, *[NOTHING] * len(columns)] for name in results.runs if name not in ranked]
    return Table(["method", *columns], rows, caption)


def published(results: Results, name: str, figures: Published) -> Any:
    """Return the paper's figures for a method, if they are comparable with ours."""
    return None if departure(results.data, results.settings[name]) else figures(results.data, name)


def _any_published(results: Results, figures: Published) -> bool:
    return any(published(results, name, figures) for name in results.runs)


def equal_labels(results: Results) -> Table:
    """Compare methods at equal labels, next to Table 1 of the paper where it has the data set."""

    def cells(name: str) -> list[str]:
        rounds = results.at(name, "labels").values()
        estimate = f"{results.estimate(name):.{results.digits}f}"
        return [estimate, str(len(rounds)), _count(turn.fits for turn in rounds)]

    def with_paper(name: str) -> list[str]:
        return [*cells(name), *_next_to(results.estimate(name), published(results, name, paper_rmse))]

    columns = [f"{results.measure} at {results.labels} labels", "seeds", "refits"]
    if not _any_published(results, paper_rmse):
        return _table(results, "labels", columns, cells, "At equal labels.")
    caption = (
        "Table 1 of the paper, at equal labels. z: ours minus the paper's, in standard errors of the "
        "difference; up to 3, the two agree."
    )
    return _table(results, "labels", [*columns, "paper", "z", "ours"], with_paper, caption)


def _next_to(ours: Estimate, paper: tuple[float, float] | None) -> list[str]:
    """Return the paper's figure, how far ours is from it, and that in a word."""
    if paper is None:
        return [NOTHING] * 3
    if math.isnan(ours.error):
        return [str(Estimate(*paper)), NOTHING, NOTHING]
    z = (ours.mean - paper[0]) / math.hypot(ours.error, paper[1])
    word = "agrees" if abs(z) <= 3 else "lower" if z < 0 else "higher"
    return [str(Estimate(*paper)), f"{z:+.1f}", word]


def equal_refits(results: Results) -> Table:
    """Compare methods at equal refits."""

    def cells(name: str) -> list[str]:
        rounds = results.at(name, "fits").values()
        estimate = f"{results.estimate(name, 'fits'):.{results.digits}f}"
        return [estimate, _count(turn.labels for turn in rounds), str(len(rounds))]

    columns = [f"{results.measure} after {results.refits} refits", "labels then", "seeds"]
    caption = "At equal refits, where some methods have fewer labels."
    return _table(results, "fits", columns, cells, caption)


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
        rows = [_pair_row(results, pair) for pair in results.pairs(reference)]
        if rows:
            found.append(Table(columns, rows, _pairs_caption(results, reference)))
    return found


def _pairs_caption(results: Results, reference: str) -> str:
    measure = "Accuracy" if results.classes else "RMSE"
    caption = f"{measure} minus that of {reference}, in pairs at equal labels."
    if reference != "random":
        caption += f" {reference} is the best by the same figures, which favours it slightly."
    return caption + (_T_TEST if results.few_seeds else "")


def _pair_row(results: Results, pair: Pair) -> list[str]:
    p_values = [value for value in (pair.p_value, pair.p_if_normal) if value is not None]
    shown = ["< 0.0001" if value < 1e-4 else f"{value:.4f}" for value in p_values]
    return [pair.method, _difference(results, pair.difference), str(pair.num_seeds), *shown, pair.verdict]


def _difference(results: Results, errors: Estimate) -> str:
    """Format a difference of the measure; a smaller error rate is a greater accuracy."""
    mean = 0 - errors.mean if results.classes else errors.mean  # no "-0.0"
    return f"{mean:+.{results.digits}f} ± {errors.error:.{results.digits}f}"


def seconds(results: Results) -> Table:
    """Show the times of regressions, next to Table 2 of the paper where it has the data set."""

    def cells(name: str) -> list[str]:
        return [f"{value:.3g}" for value in results.seconds(name)]

    def with_paper(name: str) -> list[str]:
        paper = published(results, name, paper_seconds)
        theirs = [NOTHING] * 3 if paper is None else [f"{value:.1f}" for value in paper]
        return [cell for both in zip(cells(name), theirs, strict=True) for cell in both]

    if not _any_published(results, paper_seconds):
        return _table(results, "labels", ["batch", "round", "run"], cells, f"Seconds: {_TIMES}")
    columns = ["batch", "paper", "round", "paper", "run", "paper"]
    return _table(results, "labels", columns, with_paper, f"Table 2 of the paper, seconds: {_TIMES}")


def likelihoods(results: Results) -> Table:
    """Show likelihood, calibration and times of classifications."""

    def cells(name: str) -> list[str]:
        ends = results.at(name, "labels").values()
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
