"""Draw figures, all in one style. They need no display and leave the caller's settings as they are."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from coresift.atomic import replacing
from coresift.labelling.records import CurvePoint
from coresift.types import Floats

# Distinguishable for people who do not see all colours (Okabe and Ito), and by their markers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5A6573")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, SOFT = "#1c2430", "#5a6573"

# Pale, so that points are easy to see on it.
_SURFACE = LinearSegmentedColormap.from_list("surface", ["#ffffff", "#d6e6f2", "#8fbcdb", "#4b8fc0"])

_LINE: Any = {"color": INK, "linestyle": "--", "linewidth": 1.2}
_BAND: Any = {"alpha": 0.13, "linewidth": 0}

# A decorator: the function draws or saves its figures in this style.
_STYLE = Path(__file__).with_name("assets") / "figures.mplstyle"
styled = matplotlib.rc_context(matplotlib.rc_params_from_file(_STYLE, use_default_template=False))


@styled
def save(figure: Figure, path: Path) -> None:
    """Write a figure; the suffix of the path gives the format."""
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:])


@styled
def to_svg(figure: Figure) -> str:
    """Return a figure as SVG text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def standard_error(values: Floats) -> Floats:
    """Compute the standard error of the mean over repeats: (repeats, ...) -> (...); NaN for one repeat."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(values.std(axis=0, ddof=1) / np.sqrt(len(values)))


@dataclass(frozen=True)
class CurvePanel:
    """Learning curves over one axis."""

    axis: str  # its label
    curves: Mapping[str, tuple[Sequence[int], Floats]]  # name -> positions (g,) and values (repeats, g)
    stretched: int | None = None  # from here on, where few curves go, the axis is logarithmic


@styled
def curve_panels(
    panels: Sequence[CurvePanel],
    measure: str,
    *,
    order: Sequence[str] = (),
    accuracy: bool = False,
    level: tuple[str, float] | None = None,
) -> Figure:
    """Draw means over repeats, with bands of two standard errors; panels share the vertical axis.

    The vertical axis is logarithmic where the means span more than a factor of three.

    Parameters
    ----------
    order : names in the order of their colours, so that figures without some of them use the same colours.
    accuracy : use a linear axis that may cut off the first values. All methods have these in common, and they
        are so low that differences between the later ones could not be seen.
    level : a name and a value to compare with, drawn as a dashed line.

    >>> panel = CurvePanel("labels", {"random": ([10, 20], np.array([[9.0, 2.0], [9.2, 2.4]]))})
    >>> curve_panels([panel], "test RMSE").axes[0].get_yscale()
    'log'
    """
    width, legend_columns = (7.2, 3) if len(panels) == 1 else (5.4 * len(panels), 4)
    figure = Figure(figsize=(width, 4.8))
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, panel in zip(row, panels, strict=True):
        _draw_panel(axes, panel, order)
        if level is not None:
            axes.axhline(level[1], label=level[0], **(_LINE | {"color": SOFT}))
    row[0].set_ylabel(measure)
    curves = [values for panel in panels for _, values in panel.curves.values()]
    frame = _frame_later_values if accuracy else _frame_ratios
    frame(row[0], curves)
    title = "bands: mean ± two standard errors" if max(map(len, curves)) > 1 else None
    _legend_below(figure, row[0], ncols=legend_columns, title=title)
    return figure


def _draw_panel(axes: Axes, panel: CurvePanel, order: Sequence[str]) -> None:
    numbers = {name: number for number, name in enumerate(dict.fromkeys([*order, *panel.curves]))}
    for name, (positions, values) in panel.curves.items():
        colour, marker = COLOURS[numbers[name] % len(COLOURS)], MARKERS[numbers[name] % len(MARKERS)]
        mean, band = values.mean(0), 2 * standard_error(values)
        axes.fill_between(positions, mean - band, mean + band, color=colour, **_BAND)
        every = max(1, len(positions) // 12)
        look: Any = {"color": colour, "marker": marker, "ms": 4.5, "linewidth": 1.7, "markevery": every}
        axes.plot(positions, mean, label=name, **look)
    axes.set_xlabel(panel.axis)
    if panel.stretched is None:
        axes.locator_params(axis="x", integer=True)
    else:
        _stretch(axes, panel.stretched)


def _stretch(axes: Axes, end: int) -> None:
    axes.set_xscale("symlog", linthresh=end, linscale=2)
    axes.axvline(end, color=SOFT, linestyle=":", linewidth=1.2)
    axes.xaxis.set_major_locator(FixedLocator([0, end // 2, end, 2 * end, 5 * end, 10 * end]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")


def _frame_later_values(axes: Axes, curves: Sequence[Floats]) -> None:
    """Show all but the first value of each curve, with their bands."""
    lower = [values.mean(0) - 2 * np.nan_to_num(standard_error(values)) for values in curves]
    low = min(float(values[min(1, len(values) - 1) :].min()) for values in lower)
    top = min(axes.get_ylim()[1], 1)
    axes.set_ylim(max(low - max(0.08 * (top - low), 0.001), 0), top)


def _frame_ratios(axes: Axes, curves: Sequence[Floats]) -> None:
    """Use a logarithmic axis where the means span more than a factor of three."""
    means = np.concatenate([values.mean(0) for values in curves])
    if means.min() > 0 and means.max() > 3 * means.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")


def _legend_below(figure: Figure, axes: Axes, **look: Any) -> None:
    """Make one legend for the figure, from the labels of one of its panels."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", **look)


@styled
def error_with_forecast(
    measured: Sequence[CurvePoint], fitted: Sequence[CurvePoint], random: Sequence[CurvePoint], measure: str
) -> Figure:
    """Draw the error of each round, the curve fitted to it, and what random labels would give.

    All are functions of the number of labels, with intervals. Curves are dashed after the last round.

    >>> rounds = [CurvePoint(10, 3.0, 2.5, 3.5), CurvePoint(20, 2.0, 1.8, 2.2)]
    >>> error_with_forecast(rounds, rounds, [], "RMSE of price").axes[0].get_ylabel()
    'RMSE of price'
    """
    figure = Figure(figsize=(7.2, 4.2))
    axes = figure.subplots()
    last = max((point.labels for point in measured), default=0)
    _draw_forecast(axes, random, last, color=COLOURS[-1], label="random labels")
    _draw_forecast(axes, fitted, last, color=COLOURS[0], label="fitted curve with its interval")
    if measured:
        labels, errors, low, high = _columns(measured)
        look: Any = {"color": COLOURS[1], "marker": "o", "ms": 5, "linestyle": "", "elinewidth": 1.4}
        bars = np.abs([errors - low, high - errors])
        axes.errorbar(labels, errors, bars, capsize=3, label="measured by cross-validation", **look)
    if fitted and fitted[-1].labels > last > 0:
        axes.axvline(last, color=SOFT, linestyle=":", linewidth=1.2)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("labels")
    # The font has only these characters, and a column may have any name.
    plain = measure.isprintable() and max(map(ord, measure), default=0) < 256
    axes.set_ylabel(measure if plain else "error")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def _draw_forecast(axes: Axes, points: Sequence[CurvePoint], last: int, color: str, label: str) -> None:
    """Draw a curve, dashed after ``last``."""
    if not points:
        return
    past = [point for point in points if point.labels <= last]
    future = [*past[-1:], *points[len(past) :]]
    for part, dashes in ((past, "-"), (future, (0, (3, 2)))):
        labels, errors, low, high = _columns(part)
        axes.fill_between(labels, low, high, color=color, **_BAND)
        axes.plot(labels, errors, color=color, linestyle=dashes)
    axes.plot([], [], color=color, label=label)


def _columns(points: Sequence[CurvePoint]) -> Floats:
    """(4, n) labels, errors and both ends of the intervals."""
    return np.array([astuple(point) for point in points], dtype=float).reshape(-1, 4).T


@dataclass(frozen=True, eq=False)
class Plane:
    """Two classes in the plane, over [-extent, extent]^2."""

    pool: Floats  # (N, 2) unlabelled points
    labelled: Floats  # (M, 2) labelled points,
    classes: Floats  # (M,) and their classes, 0 or 1
    boundary: Floats  # (G, G) zero on the decision boundary; rows run along the second coordinate
    extent: float


@dataclass(frozen=True, eq=False)
class BatchPanel:
    """A batch (b, 2) over the surface (G, G) that it was chosen by, with a title above and a note below."""

    title: str
    batch: Floats
    surface: Floats
    note: str = ""


@styled
def batch_picture(panels: Sequence[BatchPanel], plane: Plane) -> Figure:
    """Draw whole batches side by side."""
    figure = Figure(figsize=(4.4 * len(panels), 5.2))
    for axes, panel in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        _draw_plane(axes, plane, panel, size=85)
        axes.set_xlabel(panel.note, loc="left")
    _legend_below(figure, axes, ncols=5, handletextpad=0.4)
    return figure


@styled
def growing_batches(rows: Mapping[str, Sequence[BatchPanel]], plane: Plane) -> Figure:
    """Draw batches as they grow, a row for each strategy; points are numbered in the order of choice.

    The shading of each panel goes from its lowest to its highest value.
    """
    shape = len(rows), len(next(iter(rows.values())))
    figure = Figure(figsize=(3.1 * shape[1], 3.35 * shape[0] + 0.3))
    look: Any = {"ha": "center", "va": "center", "fontsize": 9, "fontweight": "bold"}
    look["path_effects"] = [withStroke(linewidth=2, foreground="white")]
    for (name, panels), row in zip(rows.items(), figure.subplots(*shape, squeeze=False), strict=True):
        row[0].set_ylabel(name, fontsize=12)
        for axes, panel in zip(row, panels, strict=True):
            _draw_plane(axes, plane, panel, size=45)
            for number, position in enumerate(_label_positions(panel.batch, plane), 1):
                axes.text(*position, str(number), **look)
    _legend_below(figure, axes, ncols=5, handletextpad=0.4)
    return figure


def _label_positions(points: Floats, plane: Plane) -> Floats:
    """(b, 2) positions for labels: next to each point, where it is emptiest, within the panel."""
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    around = 0.095 * plane.extent * np.stack([np.cos(angles), np.sin(angles)], 1)
    positions = np.empty((0, 2))
    for number, point in enumerate(points):
        crowd = np.concatenate([np.delete(points, number, 0), plane.labelled, positions])
        free = (point + around).clip(-0.95 * plane.extent, 0.95 * plane.extent)
        room = np.linalg.norm(free[:, None] - crowd, axis=-1).min(1)
        positions = np.concatenate([positions, free[[room.argmax()]]])
    return positions


def _draw_plane(axes: Axes, plane: Plane, panel: BatchPanel, size: float) -> None:
    ends = -plane.extent, plane.extent
    axes.set_title(panel.title)
    axes.grid(False)
    axes.set(aspect="equal", xticks=[], yticks=[], xlim=ends, ylim=ends)
    axes.spines[:].set(visible=True, color="#c9d1da")
    axes.imshow(panel.surface, extent=(*ends, *ends), origin="lower", cmap=_SURFACE, aspect="equal")
    grid = np.linspace(*ends, len(plane.boundary))
    axes.contour(grid, grid, plane.boundary, levels=[0], colors=INK, linestyles="--", linewidths=1.2)
    axes.plot([], [], label="decision boundary", **_LINE)
    x, y = plane.pool.T
    axes.scatter(x, y, s=7, color=SOFT, alpha=0.55, linewidths=0, label="pool")
    for value, marker in ((0, "x"), (1, "+")):
        x, y = plane.labelled[plane.classes == value].T
        axes.scatter(x, y, s=55, marker=marker, color=INK, linewidths=1.6, label=f"labelled {value}")
    look: Any = {"s": size, "color": COLOURS[1], "edgecolors": "white", "linewidths": 1.4, "zorder": 3}
    axes.scatter(*panel.batch.T, label="batch", **look)
