"""Reliability diagrams as a picture: one diagram on the user's axes, or many models in a file.

`kcalib.ReliabilityDiagram.plot` calls `plot_diagram`, the command `plot_reliability`; both draw with `draw_diagram`
and `draw_histogram`. matplotlib is imported when a picture is made, and used without pyplot, which would choose
a window system and keep figures in global state.
"""

from __future__ import annotations

import io
import math
import os
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend.files import write_whole

__all__ = ["Panel", "PlotError", "plot_diagram", "plot_reliability", "require_matplotlib"]

SUFFIXES = (".png", ".pdf", ".svg")

MOST_COLUMNS = 4
PANEL_SIZE = (3.1, 4.35)  # inches
DPI = 110
MOST_PIXELS = 60_000  # of one side; the renderer ends at 2**16

# Okabe and Ito's blue and vermilion: distinct with every kind of colour vision, and in grey.
CALIBRATED = "#0072B2"
MISCALIBRATED = "#D55E00"


TICKS = ([0, 0.2, 0.4, 0.6, 0.8, 1], ["0", "0.2", "0.4", "0.6", "0.8", "1"])
BAND = "0.82"
UPPER_LEFT, LOWER_RIGHT = (0.04, 0.96, "left", "top"), (0.96, 0.04, "right", "bottom")
NARROWEST = 0.008  # of a bin that can still be seen


class PlotError(Exception):
    """Why there is no picture."""


class MissingLibraryError(PlotError, ImportError):
    """matplotlib is not installed."""


@dataclass(frozen=True)
class Style:
    """How diagrams of one kind are drawn."""

    what: str  # word for the models, where a picture has several styles
    caption: str
    labels: tuple[str, str]  # of the axes: below, and at the left
    draw: Callable[[Any, Any, str], None]  # axes, diagram, color
    draw_below: Callable[[Any, Any, str], None]  # the same for the histogram
    corner: Callable[[Panel], tuple[float, float, str, str]]  # for the notes: position and alignment


@dataclass(frozen=True)
class Panel:
    """One model in the picture."""

    model: str
    verdict: str  # in words
    miscalibrated: bool
    notes: tuple[str, ...]  # lines in a corner of the diagram
    diagram: Any  # kcalib.ReliabilityDiagram, of bins with both bands, or kcalib.QuantileCalibration
    style: Style


def require_matplotlib() -> None:
    """Raise MissingLibraryError if it is not installed; long computations ask before they start."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingLibraryError("plots need matplotlib; pip install 'kcalib[plot]'") from None


def plot_diagram(diagram: Any, ax: Any, labels: tuple[str, str], color: str, histogram: bool, legend: bool) -> Any:
    """`kcalib.ReliabilityDiagram.plot`; `labels` are those of the two axes."""
    require_matplotlib()
    ax = _new_axes() if ax is None else ax
    below = _axes_below(ax) if histogram else None
    draw_diagram(ax, diagram, color)
    ax.set_ylabel(labels[1])
    if legend:
        _add_legend(ax, diagram, color)
    if below is None:
        ax.set_xlabel(labels[0])
    else:
        draw_histogram(below, diagram, color)
        below.set(xlabel=labels[0], ylabel="share")
        ax.tick_params(labelbottom=False)
    return ax


def plot_quantiles(curve: Any, ax: Any, color: str, histogram: bool, legend: bool) -> Any:
    """`kcalib.QuantileCalibration.plot`."""
    require_matplotlib()
    ax = _new_axes() if ax is None else ax
    below = _axes_below(ax) if histogram else None
    draw_quantiles(ax, curve, color)
    ax.set_ylabel("observed coverage")
    if legend:
        _add_quantile_legend(ax, curve, color)
    if below is None:
        ax.set_xlabel("predicted quantile level")
    else:
        draw_pit(below, curve, color)
        below.set(xlabel="predicted quantile level", ylabel="share")
        ax.tick_params(labelbottom=False)
    return ax


def _new_axes() -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.add_subplot()


def _axes_below(ax: Any) -> Any:
    """Axes in the lower part of the cell that `ax` fills; it keeps the upper one."""
    cell = ax.get_subplotspec()
    if cell is None:
        raise ValueError("`ax` is no cell of a grid, as of `subplots`, that can be split; pass histogram=False")
    upper, lower = cell.subgridspec(2, 1, height_ratios=(3.4, 1), hspace=0.07)
    ax.set_subplotspec(upper)
    return ax.figure.add_subplot(lower, sharex=ax)


def draw_diagram(axes: Any, diagram: Any, color: str) -> None:
    """Consistency band, diagonal, points with confidence intervals; isotonic regression has a line for each block."""
    axes.plot([0, 1], [0, 1], color="0.35", linewidth=1, linestyle=(0, (4, 3)), zorder=2)
    if diagram.binning == "isotonic":
        _draw_regression(axes, diagram, color)
    else:
        _draw_bins(axes, diagram, color)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    _style(axes)
    axes.set_xticks(*TICKS)
    axes.set_yticks(*TICKS)


def _draw_bins(axes: Any, diagram: Any, color: str) -> None:
    used = diagram.count > 0
    x, y = diagram.confidence[used], diagram.frequency[used]
    if diagram.consistency_band is not None:
        low, high = (limit[used] for limit in diagram.consistency_band)
        edges = diagram.edges
        if diagram.binning == "equal_mass":  # its first and its last bin may be wide and mostly empty
            edges = np.clip(edges, np.min(diagram.lowest[used]), np.max(diagram.highest[used]))
        left, width = edges[:-1][used], np.diff(edges)[used]
        left = np.where(width < NARROWEST, x - NARROWEST / 2, left)
        axes.bar(left, high - low, np.maximum(width, NARROWEST), low, align="edge", color=BAND, linewidth=0, zorder=1)
    if diagram.confidence_band is not None:
        low, high = (limit[used] for limit in diagram.confidence_band)
        axes.vlines(x, low, high, color=color, linewidth=1.2, alpha=0.75, zorder=3)
    axes.plot(x, y, color=color, linewidth=0.8, alpha=0.45, zorder=3)
    share = diagram.weight[used] / np.sum(diagram.weight)
    axes.scatter(x, y, 10 + 50 * share, color=color, zorder=4, clip_on=False)


def _draw_regression(axes: Any, diagram: Any, color: str) -> None:
    axes.fill_between(diagram.points, *diagram.consistency_band, color=BAND, linewidth=0, zorder=1)
    x = np.stack((diagram.lowest, diagram.highest), axis=1)
    y = np.stack((diagram.frequency, diagram.frequency), axis=1)
    axes.plot(x.ravel(), y.ravel(), color=color, linewidth=0.8, alpha=0.6, zorder=3)
    axes.plot(x.T, y.T, color=color, linewidth=2.6, solid_capstyle="round", zorder=4)


def _add_legend(axes: Any, diagram: Any, color: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    level = f"{100 * diagram.confidence_level:g} %"
    kind = ", all bins at once" if diagram.simultaneous else ""
    handles: list[Any] = []
    if diagram.consistency_band is not None:
        handles.append(Patch(color=BAND, label=f"{level} consistency band{kind}"))
    if diagram.confidence_band is not None:
        handles.append(Line2D([], [], color=color, linewidth=1.2, label=f"{level} confidence interval{kind}"))
    # Over-confident models leave the corner above the diagonal free, others the one below.
    corner = "upper left" if overconfidence(diagram) > 0 else "lower right"
    axes.legend(handles=handles, loc=corner, fontsize=8.5, framealpha=0.8, edgecolor="none")


def overconfidence(diagram: Any) -> float:
    """Mean confidence minus mean frequency."""
    gaps = diagram.weight * (diagram.confidence - diagram.frequency)
    return float(np.nansum(gaps) / np.sum(diagram.weight))


def draw_histogram(axes: Any, diagram: Any, color: str) -> None:
    """Share of the samples in bins of equal width."""
    edges = np.linspace(0, 1, len(diagram.histogram) + 1)
    axes.bar(edges[:-1], diagram.histogram, np.diff(edges), align="edge", color=color, edgecolor="white", linewidth=0.5)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_xticks(*TICKS)
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    _style(axes)


def draw_quantiles(axes: Any, curve: Any, color: str) -> None:
    """Consistency band, diagonal, observed coverage of the quantiles."""
    axes.plot([0, 1], [0, 1], color="0.35", linewidth=1, linestyle=(0, (4, 3)), zorder=2)
    axes.fill_between(curve.levels, *curve.consistency_band, color=BAND, linewidth=0, zorder=1)
    axes.plot(curve.levels, curve.coverage, color=color, linewidth=0.8, alpha=0.6, zorder=3)
    axes.scatter(curve.levels, curve.coverage, 14, color=color, zorder=4, clip_on=False)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    _style(axes)
    axes.set_xticks(*TICKS)
    axes.set_yticks(*TICKS)


def _add_quantile_legend(axes: Any, curve: Any, color: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    kind = ", all levels at once" if curve.simultaneous else ""
    handles = [
        Patch(color=BAND, label=f"{100 * curve.confidence_level:g} % consistency band{kind}"),
        Line2D([], [], color=color, marker="o", markersize=4, linewidth=0.8, label="share of targets"),
    ]
    corner = "upper left" if _is_below(curve) else "lower right"
    axes.legend(handles=handles, loc=corner, fontsize=8.5, framealpha=0.8, edgecolor="none")


def _is_below(curve: Any) -> bool:
    """Whether more of the curve is below the diagonal, so that there is room above it."""
    return bool(np.mean(curve.coverage - curve.levels) < 0)


def draw_pit(axes: Any, curve: Any, color: str) -> None:
    """Shares of PIT values in bins of equal width, and what they are for a calibrated model."""
    count = len(curve.histogram)
    edges = np.linspace(0, 1, count + 1)
    axes.bar(edges[:-1], curve.histogram, np.diff(edges), align="edge", color=color, edgecolor="white", linewidth=0.5)
    axes.axhline(1 / count, color="0.35", linewidth=1, linestyle=(0, (4, 3)))
    axes.set(xlim=(0, 1), ylim=(0, max(2.5 / count, 1.05 * float(np.max(curve.histogram)))))
    axes.set_xticks(*TICKS)
    _style(axes)


def plot_reliability(panels: Sequence[Panel], path: str | os.PathLike[str]) -> None:
    """Draw a reliability diagram and a histogram of confidences for each model, or quantile calibration curves.

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
    styles = dict.fromkeys(panel.style for panel in panels)
    captions = [style.caption if len(styles) == 1 else f"{style.what}: {style.caption}" for style in styles]
    caption = [line for text in captions for line in textwrap.wrap(text, 48 * columns)]
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
        _draw_panel(diagram, histogram, panel)
        if column == 0:
            diagram.set_ylabel(panel.style.labels[1])
            histogram.set_ylabel("share")
    figure.text(0.5, 0.08 / height, "\n".join(caption), ha="center", va="bottom", fontsize=8, color="0.25")
    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box in a model's name
        kind = os.path.splitext(os.fspath(path))[1].removeprefix(".").lower()
        figure.savefig(picture, format=kind, dpi=min(DPI, MOST_PIXELS / max(width, height)))
    try:
        write_whole(path, picture.getvalue())
    except OSError as error:
        raise PlotError(f"cannot write the picture: {error.strerror or error}") from None
    except ValueError as error:
        raise PlotError(f"cannot write the picture: {error}") from None


def _draw_panel(diagram: Any, histogram: Any, panel: Panel) -> None:
    color = MISCALIBRATED if panel.miscalibrated else CALIBRATED
    panel.style.draw(diagram, panel.diagram, color)
    diagram.tick_params(labelbottom=False)
    diagram.set_title(_shortened(panel.model), fontsize=10, fontweight="bold", pad=19, parse_math=False)
    diagram.annotate(
        panel.verdict, (0.5, 1), (0, 5), "axes fraction", "offset points",
        ha="center", va="bottom", fontsize=8.5, color=color, parse_math=False,
    )  # fmt: skip
    x, y, horizontal, vertical = panel.style.corner(panel)
    diagram.text(
        x, y, "\n".join(panel.notes), transform=diagram.transAxes, ha=horizontal, va=vertical, fontsize=8.5, zorder=5,
        linespacing=1.25, bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 2}, parse_math=False,
    )  # fmt: skip
    panel.style.draw_below(histogram, panel.diagram, color)
    histogram.set_xlabel(panel.style.labels[0])


def _reliability_corner(panel: Panel) -> tuple[float, float, str, str]:
    over = panel.miscalibrated and overconfidence(panel.diagram) > 0
    return UPPER_LEFT if over else LOWER_RIGHT


def _quantile_corner(panel: Panel) -> tuple[float, float, str, str]:
    return UPPER_LEFT if _is_below(panel.diagram) else LOWER_RIGHT


RELIABILITY = Style(
    what="Classes",
    caption="points: accuracy in a bin, with its 95 % confidence interval; grey: 95 % of a calibrated model's points; "
    "bars: share of the samples",
    labels=("confidence", "accuracy"),
    draw=draw_diagram,
    draw_below=draw_histogram,
    corner=_reliability_corner,
)
QUANTILES = Style(
    what="Regression",
    caption="points: share of the targets up to the predicted quantile; grey: 95 % of a calibrated model's points; "
    "bars: shares of PIT values, dashed: of a calibrated model",
    labels=("predicted quantile level", "coverage"),
    draw=draw_quantiles,
    draw_below=draw_pit,
    corner=_quantile_corner,
)


def _style(axes: Any) -> None:
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _shortened(name: str, length: int = 28) -> str:
    """Both ends of a long name: models often differ in the last letters only."""
    half = (length - 3) // 2
    return name if len(name) <= length else f"{name[:half]}...{name[-half:]}"
