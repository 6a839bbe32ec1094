"""Figures, all in one style. They need no display and leave the caller's matplotlib as it was."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from coresift.types import Floats, InputError

# Told apart by people who do not see all colours (Okabe and Ito), and by their markers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5A6573")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, SOFT = "#1c2430", "#5a6573"

_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": SOFT,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so figures look the same everywhere
    "font.size": 10.5,
    "grid.color": "#e6e9ee",
    "legend.frameon": False,
    "lines.linewidth": 2,
    "savefig.dpi": 160,
    "svg.fonttype": "path",
    "svg.hashsalt": "coresift",  # the same figure gives the same file
    "text.color": INK,
    "text.parse_math": False,  # a name may hold "$"
    "xtick.color": SOFT,
    "ytick.color": SOFT,
}
# Pale, so that points stand out on it.
_SURFACE = LinearSegmentedColormap.from_list("surface", ["#ffffff", "#d6e6f2", "#8fbcdb", "#4b8fc0"])


def style() -> Any:
    """The style, as a context to build and save figures in.

    >>> with style():
    ...     figure = Figure(figsize=(4, 3))
    """
    return matplotlib.rc_context(_STYLE)


def save(figure: Figure, path: Path) -> None:
    """Write a figure; the ending of the path says in which format."""
    with style(), replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:])


def to_svg(figure: Figure) -> str:
    """A figure as SVG text."""
    buffer = io.StringIO()
    with style():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def standard_error(values: Floats) -> Floats:
    """Of the mean over the first axis: (repeats, ...) -> (...); one repeat does not tell."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(values.std(axis=0, ddof=1) / np.sqrt(len(values)))


def learning_curves(num_labels: Sequence[int], curves: Mapping[str, Floats], measure: str) -> Figure:
    """Means over repeats against the number of labels, with bands of two standard errors.

    Parameters
    ----------
    num_labels : (rounds,)
    curves : name -> (repeats, rounds) values of the measure; at least two repeats.
    measure : what the values are, with the unit.

    >>> figure = learning_curves([10, 20], {"random": np.array([[3.0, 2.0], [3.2, 2.4]])}, "test error")
    >>> figure.axes[0].get_ylabel()
    'test error'
    """
    with style():
        figure = Figure(figsize=(7.2, 4.2))
        axes = figure.subplots()
        for position, (name, values) in enumerate(curves.items()):
            if values.shape != (len(values), len(num_labels)) or len(values) < 2:
                raise InputError(
                    f"the curve of {name!r} has shape {values.shape}, expected at least 2 repeats of "
                    f"{len(num_labels)} rounds"
                )
            colour = COLOURS[position % len(COLOURS)]
            mean, band = values.mean(0), 2 * standard_error(values)
            axes.fill_between(num_labels, mean - band, mean + band, color=colour, alpha=0.15, linewidth=0)
            axes.plot(
                num_labels, mean, color=colour, marker=MARKERS[position % len(MARKERS)], ms=5, label=name
            )
        axes.set_xlabel("labels")
        axes.set_ylabel(measure)
        axes.set_ylim(bottom=0)
        axes.legend()
    return figure


def error_with_forecast(
    measured: Sequence[CurvePoint], fitted: Sequence[CurvePoint], random: Sequence[CurvePoint], measure: str
) -> Figure:
    """The error of each round, the curve fitted to it with its interval, and what random labels would give.

    All are by the number of labels. Beyond the last round, where nothing is measured yet, they are dashed.

    >>> rounds = [CurvePoint(10, 3.0, 2.5, 3.5), CurvePoint(20, 2.0, 1.8, 2.2)]
    >>> error_with_forecast(rounds, rounds, [], "RMSE of price").axes[0].get_ylabel()
    'RMSE of price'
    """
    with style():
        figure = Figure(figsize=(7.2, 4.2))
        axes = figure.subplots()
        last = max((point.labels for point in measured), default=0)
        for name, points, colour in (
            ("random labels", random, COLOURS[-1]),
            ("fitted, with its interval", fitted, COLOURS[0]),
        ):
            past = [point for point in points if point.labels <= last]
            future = [*past[-1:], *points[len(past) :]]
            for part, dashes in ((past, "-"), (future, (0, (3, 2)))):
                places = [point.labels for point in part]
                low, high = [point.low for point in part], [point.high for point in part]
                axes.fill_between(places, low, high, color=colour, alpha=0.13, linewidth=0)
                axes.plot(places, [point.error for point in part], color=colour, linestyle=dashes)
            if points:
                axes.plot([], [], color=colour, label=name)
        if measured:
            errors = np.array([(point.error, point.low, point.high) for point in measured])  # (rounds, 3)
            bars = np.abs(errors[:, 1:] - errors[:, :1]).T
            places = [point.labels for point in measured]
            look: Any = {"color": COLOURS[1], "marker": "o", "ms": 5, "linestyle": "", "elinewidth": 1.4}
            axes.errorbar(places, errors[:, 0], bars, capsize=3, label="measured by cross-validation", **look)
        if len(fitted) and fitted[-1].labels > last > 0:
            axes.axvline(last, color=SOFT, linestyle=":", linewidth=1.2)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("labels")
        # The font of the figures has no more than this, and a name may hold anything.
        plain = measure.isprintable() and max(map(ord, measure), default=0) < 256
        axes.set_ylabel(measure if plain else "error")
        axes.set_ylim(bottom=0)
        axes.legend()
    return figure


@dataclass(frozen=True)
class CurvePanel:
    """Learning curves along one axis.

    Attributes
    ----------
    axis : what lies along it.
    curves : name -> places (g,) and values (repeats, g) there.
    stretched : the place up to which the axis is linear; beyond, where few curves go, it is logarithmic.
    """

    axis: str
    curves: Mapping[str, tuple[Sequence[int], Floats]]
    stretched: int | None = None


def curve_panels(
    panels: Sequence[CurvePanel],
    measure: str,
    *,
    order: Sequence[str] = (),
    shares: bool = False,
    level: tuple[str, float] | None = None,
) -> Figure:
    """Means over repeats side by side, with bands of two standard errors, one legend and one vertical axis.

    Names in ``order`` have the colours of their places there, also in pictures that lack some of them.

    The vertical axis is logarithmic where the values go over more than a factor of three. For shares, such as
    accuracy, it is linear, and curves come in from below: the first values, which all have in common, are so
    much lower that the differences between the others would not be seen. All that comes after is within the
    picture, bands too. ``level`` is a name and a value to compare with, drawn as a broken line.

    >>> panel = CurvePanel("labels", {"random": ([10, 20], np.array([[9.0, 2.0], [9.2, 2.4]]))})
    >>> curve_panels([panel], "test RMSE").axes[0].get_yscale()
    'log'
    """
    with style():
        width, columns = (7.2, 3) if len(panels) == 1 else (5.4 * len(panels), 4)
        figure = Figure(figsize=(width, 4.8))
        line = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        means, later, banded = [], [], False
        for axes, panel in zip(line, panels, strict=True):
            names = list(dict.fromkeys([*order, *panel.curves]))
            for name, (places, values) in panel.curves.items():
                position = names.index(name)
                colour = COLOURS[position % len(COLOURS)]
                mean, band = values.mean(0), 2 * standard_error(values)
                means += mean.tolist()
                lower = mean - np.nan_to_num(band)
                later += (lower[1:] if len(lower) > 1 else lower).tolist()
                banded |= len(values) > 1
                axes.fill_between(places, mean - band, mean + band, color=colour, alpha=0.13, linewidth=0)
                axes.plot(
                    places,
                    mean,
                    color=colour,
                    linewidth=1.7,
                    marker=MARKERS[position % len(MARKERS)],
                    ms=4.5,
                    markevery=max(1, len(places) // 12),
                    label=name,
                )
            if level is not None:
                axes.axhline(level[1], color=SOFT, linestyle="--", linewidth=1.2, label=level[0])
            axes.set_xlabel(panel.axis)
            if panel.stretched is not None:
                end = panel.stretched
                axes.set_xscale("symlog", linthresh=end, linscale=2)
                axes.axvline(end, color=SOFT, linestyle=":", linewidth=1.2)
                axes.xaxis.set_major_locator(FixedLocator([0, end // 2, end, 2 * end, 5 * end, 10 * end]))
                axes.xaxis.set_minor_locator(NullLocator())
                axes.xaxis.set_major_formatter("{x:g}")
            else:
                axes.locator_params(axis="x", integer=True)
        line[0].set_ylabel(measure)
        if shares:
            top, low = min(line[0].get_ylim()[1], 1), min(later)
            line[0].set_ylim(max(low - max(0.08 * (top - low), 0.001), 0), top)
        elif min(means) > 0 and max(means) > 3 * min(means):
            line[0].set_yscale("log")
            line[0].yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
            line[0].yaxis.set_minor_locator(NullLocator())
            line[0].yaxis.set_major_formatter("{x:g}")
        handles, names = line[0].get_legend_handles_labels()
        title = "bands: mean ± two standard errors" if banded else None
        figure.legend(handles, names, loc="outside lower center", ncols=columns, title=title)
    return figure


@dataclass(frozen=True)
class BatchPanel:
    """One batch to be drawn: points (b, 2), a title above and a note below."""

    title: str
    note: str
    batch: Floats


def batch_picture(
    panels: Sequence[BatchPanel],
    *,
    pool: Floats,
    labelled: Floats,
    classes: Floats,
    surface: Floats,
    boundary: Floats,
    extent: float,
) -> Figure:
    """Batches side by side over what each place of the plane is worth to the model.

    Parameters
    ----------
    pool : (N, 2) unlabelled points.
    labelled, classes : (M, 2) labelled points and their classes (M,), 0 or 1.
    surface : (G, G) values on a grid over [-extent, extent]^2; rows run along the second coordinate.
    boundary : (G, G) likewise, zero where the model decides between the classes.
    """
    with style():
        figure = Figure(figsize=(4.4 * len(panels), 5.2))
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            axes.set_title(panel.title)
            axes.set_xlabel(panel.note, loc="left")
            _plane(axes, pool, labelled, classes, surface, boundary, extent)
            _batch(axes, panel.batch)
        _shared_legend(figure, axes)
    return figure


@dataclass(frozen=True)
class Stage:
    """A batch on its way: the points chosen so far (t, 2), the last by the values of a surface (G, G)."""

    title: str
    batch: Floats
    surface: Floats


def growing_batches(
    rows: Mapping[str, Sequence[Stage]],
    *,
    pool: Floats,
    labelled: Floats,
    classes: Floats,
    boundary: Floats,
    extent: float,
) -> Figure:
    """Batches being built, a row for each strategy; points are numbered in the order of choice.

    Each panel shades from its lowest to its highest value. Parameters as of `batch_picture`.
    """
    with style():
        shape = len(rows), len(next(iter(rows.values())))
        figure = Figure(figsize=(3.1 * shape[1], 3.35 * shape[0] + 0.3))
        for (name, stages), line in zip(rows.items(), figure.subplots(*shape, squeeze=False), strict=True):
            line[0].set_ylabel(name, fontsize=12)
            for axes, stage in zip(line, stages, strict=True):
                axes.set_title(stage.title)
                _plane(axes, pool, labelled, classes, stage.surface, boundary, extent)
                _batch(axes, stage.batch, size=45)
                for number, place in enumerate(_label_places(stage.batch, labelled, extent), 1):
                    axes.text(
                        *place,
                        str(number),
                        ha="center",
                        va="center",
                        fontsize=9,
                        fontweight="bold",
                        path_effects=[withStroke(linewidth=2, foreground="white")],
                    )
        _shared_legend(figure, axes)
    return figure


def _label_places(points: Floats, others: Floats, extent: float) -> Floats:
    """(b, 2) places for labels: beside each point, where it is emptiest, within the picture."""
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    around = 0.095 * extent * np.stack([np.cos(angles), np.sin(angles)], 1)
    places = np.empty((0, 2))
    for number, point in enumerate(points):
        crowd = np.concatenate([np.delete(points, number, 0), others, places])
        free = (point + around).clip(-0.95 * extent, 0.95 * extent)
        room = np.linalg.norm(free[:, None] - crowd, axis=-1).min(1)
        places = np.concatenate([places, free[[room.argmax()]]])
    return places


def _plane(
    axes: Axes,
    pool: Floats,
    labelled: Floats,
    classes: Floats,
    surface: Floats,
    boundary: Floats,
    extent: float,
) -> None:
    """All but the batch; parameters as of `batch_picture`."""
    axes.grid(False)
    axes.set(aspect="equal", xticks=[], yticks=[], xlim=(-extent, extent), ylim=(-extent, extent))
    axes.spines[:].set(visible=True, color="#c9d1da")
    sides = -extent, extent, -extent, extent
    axes.imshow(surface, extent=sides, origin="lower", cmap=_SURFACE, aspect="equal")
    grid = np.linspace(-extent, extent, len(boundary))
    axes.contour(grid, grid, boundary, levels=[0], colors=INK, linestyles="--", linewidths=1.2)
    axes.plot([], [], color=INK, linestyle="--", linewidth=1.2, label="decision boundary")
    axes.scatter(pool[:, 0], pool[:, 1], s=7, color=SOFT, alpha=0.55, linewidths=0, label="pool")
    for value, marker, label in ((0, "x", "labelled 0"), (1, "+", "labelled 1")):
        rows = labelled[classes == value]
        axes.scatter(rows[:, 0], rows[:, 1], s=55, marker=marker, color=INK, linewidths=1.6, label=label)


def _batch(axes: Axes, batch: Floats, size: float = 85) -> None:
    axes.scatter(
        batch[:, 0],
        batch[:, 1],
        s=size,
        color=COLOURS[1],
        edgecolors="white",
        linewidths=1.4,
        zorder=3,
        label="batch",
    )


def _shared_legend(figure: Figure, axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), handletextpad=0.4)
