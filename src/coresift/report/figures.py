"""Figures, all in one style. They need no display and leave the caller's matplotlib as it was."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

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
    with style():
        figure.savefig(path)


def to_svg(figure: Figure) -> str:
    """A figure as SVG text."""
    buffer = io.StringIO()
    with style():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def standard_error(values: Floats) -> Floats:
    """Of the mean over the first axis: (repeats, ...) -> (...)."""
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
        grid = np.linspace(-extent, extent, len(surface))
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            axes.grid(False)
            axes.set(aspect="equal", xticks=[], yticks=[], xlim=(-extent, extent), ylim=(-extent, extent))
            axes.spines[:].set(visible=True, color="#c9d1da")
            axes.set_title(panel.title)
            axes.set_xlabel(panel.note, loc="left")
            axes.imshow(surface, extent=(-extent, extent) * 2, origin="lower", cmap=_SURFACE, aspect="equal")
            axes.contour(grid, grid, boundary, levels=[0], colors=INK, linestyles="--", linewidths=1.2)
            axes.plot([], [], color=INK, linestyle="--", linewidth=1.2, label="decision boundary")
            axes.scatter(*pool.T, s=7, color=SOFT, alpha=0.55, linewidths=0, label="pool")
            for value, marker, label in ((0, "x", "labelled 0"), (1, "+", "labelled 1")):
                rows = labelled[classes == value]
                axes.scatter(*rows.T, s=55, marker=marker, color=INK, linewidths=1.6, label=label)
            axes.scatter(
                *panel.batch.T,
                s=85,
                color=COLOURS[1],
                edgecolors="white",
                linewidths=1.4,
                zorder=3,
                label="batch",
            )
        handles, names = axes.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), handletextpad=0.4)
    return figure
