"""Reliability diagrams as a picture; `_cli` calls `plot_reliability`, `kcalib --plot` shows them.

matplotlib is imported when a picture is made, and used without pyplot, which would choose
a window system and keep figures in global state.
"""

from __future__ import annotations

import math
import os
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib.estimators.ece import ReliabilityBins

__all__ = ["Panel", "PlotError", "plot_reliability", "require_matplotlib"]

SUFFIXES = (".png", ".pdf", ".svg")

MOST_COLUMNS = 4
PANEL_SIZE = (3.1, 4.35)  # inches
DPI = 110
MOST_PIXELS = 60_000  # of one side; the renderer ends at 2**16

# Okabe and Ito's blue and vermilion: distinct with every kind of colour vision, and in grey.
CALIBRATED = "#0072B2"
MISCALIBRATED = "#D55E00"


TICKS = ([0, 0.2, 0.4, 0.6, 0.8, 1], ["0", "0.2", "0.4", "0.6", "0.8", "1"])
CAPTION = (
    "points: accuracy in a bin of confidences; bands: its 95 % confidence interval; "
    "bars: share of the samples; dashed line: calibrated"
)


class PlotError(Exception):
    """Why there is no picture."""


@dataclass(frozen=True)
class Panel:
    """One model in the picture."""

    model: str
    verdict: str  # in words
    miscalibrated: bool
    notes: tuple[str, ...]  # lines in a corner of the diagram
    bins: ReliabilityBins


def require_matplotlib() -> None:
    """Raise PlotError if it is not installed; long computations ask before they start."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise PlotError("plots need matplotlib; pip install 'kcalib[plot]'") from None


def plot_reliability(panels: Sequence[Panel], path: str | os.PathLike[str]) -> None:
    """Draw a reliability diagram and a histogram of confidences for each model.

    Parameters
    ----------
    panels : sequence of Panel
        At least one, drawn in rows of at most `MOST_COLUMNS`.
    path : path-like
        File to write, with one of `SUFFIXES`.

    Raises
    ------
    PlotError
        If matplotlib is missing, or the file cannot be written.
    """
    require_matplotlib()
    import matplotlib.style

    with matplotlib.style.context("default"):  # whatever a matplotlibrc says, such as to use LaTeX
        _plot(panels, path)


def _plot(panels: Sequence[Panel], path: str | os.PathLike[str]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = math.ceil(len(panels) / MOST_COLUMNS)
    columns = math.ceil(len(panels) / rows)
    caption = textwrap.wrap(CAPTION, 48 * columns)
    width = PANEL_SIZE[0] * columns + 0.35
    height = PANEL_SIZE[1] * rows + 0.15 * len(caption) + 0.1
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        rows,
        columns,
        left=0.62 / width,
        right=1 - 0.15 / width,
        bottom=(0.6 + 0.15 * len(caption)) / height,
        top=1 - 0.55 / height,
        wspace=0.2,
        hspace=0.32,
    )
    for index, panel in enumerate(panels):
        row, column = divmod(index, columns)
        cell = grid[row, column].subgridspec(2, 1, height_ratios=(3.4, 1), hspace=0.07)
        diagram = figure.add_subplot(cell[0])
        histogram = figure.add_subplot(cell[1], sharex=diagram)
        _draw_diagram(diagram, panel)
        _draw_histogram(histogram, panel)
        if column == 0:
            diagram.set_ylabel("accuracy")
            histogram.set_ylabel("share")
    figure.text(0.5, 0.08 / height, "\n".join(caption), ha="center", va="bottom", fontsize=8, color="0.25")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box in a model's name
            figure.savefig(path, dpi=min(DPI, MOST_PIXELS / max(width, height)))
    except OSError as error:
        raise PlotError(f"cannot write the picture: {error.strerror or error}") from None


def _draw_diagram(axes: Any, panel: Panel) -> None:
    bins, colour = panel.bins, _colour(panel)
    used = bins.weight > 0
    low, high = bins.accuracy_interval(0.95)
    left, width = bins.edges[:-1], np.diff(bins.edges)
    axes.plot([0, 1], [0, 1], color="0.35", linewidth=1, linestyle=(0, (4, 3)), zorder=2)
    axes.bar(
        left[used], (high - low)[used], width[used], low[used], align="edge", color=colour, alpha=0.22, linewidth=0
    )
    share = bins.weight / np.sum(bins.weight)
    axes.plot(bins.confidence[used], bins.accuracy[used], color=colour, linewidth=0.8, alpha=0.6, zorder=3)
    axes.scatter(
        bins.confidence[used], bins.accuracy[used], 10 + 50 * share[used], color=colour, zorder=4, clip_on=False
    )
    axes.set(xlim=(0, 1), ylim=(0, 1))
    _style(axes)
    axes.tick_params(labelbottom=False)
    axes.set_yticks(*TICKS)
    axes.set_title(_shortened(panel.model), fontsize=10, fontweight="bold", pad=19, parse_math=False)
    axes.annotate(
        panel.verdict, (0.5, 1), (0, 5), "axes fraction", "offset points",
        ha="center", va="bottom", fontsize=8.5, color=colour, parse_math=False,
    )  # fmt: skip
    # Over-confident models leave the corner above the diagonal free, others the one below.
    over = float(np.sum(share * (bins.confidence - bins.accuracy))) > 0 and panel.miscalibrated
    x, y, horizontal, vertical = (0.04, 0.96, "left", "top") if over else (0.96, 0.04, "right", "bottom")
    axes.text(
        x, y, "\n".join(panel.notes), transform=axes.transAxes, ha=horizontal, va=vertical, fontsize=8.5, zorder=5,
        linespacing=1.25, bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 2}, parse_math=False,
    )  # fmt: skip


def _draw_histogram(axes: Any, panel: Panel) -> None:
    bins = panel.bins
    share = bins.weight / np.sum(bins.weight)
    axes.bar(
        bins.edges[:-1],
        share,
        np.diff(bins.edges),
        align="edge",
        color=_colour(panel),
        edgecolor="white",
        linewidth=0.5,
    )
    axes.set(ylim=(0, 1), xlabel="confidence")
    axes.set_xticks(*TICKS)
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    _style(axes)


def _style(axes: Any) -> None:
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _colour(panel: Panel) -> str:
    return MISCALIBRATED if panel.miscalibrated else CALIBRATED


def _shortened(name: str, length: int = 28) -> str:
    """Both ends of a long name: models often differ in the last letters only."""
    half = (length - 3) // 2
    return name if len(name) <= length else f"{name[:half]}...{name[-half:]}"
