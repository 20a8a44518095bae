"""Diagrams on matplotlib axes: reliability diagrams and quantile calibration curves, each above a histogram.

`kcalib.ReliabilityDiagram.plot` calls `plot_diagram`, `kcalib.QuantileCalibration.plot` calls `plot_quantiles`;
pictures of several models (`figures`) use the same functions. Greys lie between the colours of paper and text, so that
diagrams also fit dark paper. matplotlib is imported on use, and without pyplot, which has global state and may open
windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from kcalib._backend.options import check_choice
from kcalib.report.summary import format_pvalue

# Blue and vermilion of Okabe and Ito, on dark paper sky blue and orange: distinct for all kinds of colour vision.
CALIBRATED, CALIBRATED_ON_DARK = "#0072B2", "#56B4E9"
MISCALIBRATED, MISCALIBRATED_ON_DARK = "#D55E00", "#E69F00"
BAND, DIAGONAL, GRID = 0.18, 0.65, 0.1  # from the paper, 0, to the text, 1

SCALES = ("linear", "logit")
TICKS = ([0, 0.2, 0.4, 0.6, 0.8, 1], ["0", "0.2", "0.4", "0.6", "0.8", "1"])
NINES = 4  # number of nines of the largest label on a logit scale, which ends one further
MOST_TICKS = 6
NARROWEST = 0.008  # width of the narrowest visible bin
FAINTEST = 0.2  # opacity of a point with almost no samples
SPARSE = 0.3  # bins with less than this times an equal share of the samples are faded


class PlotError(Exception):
    """A picture cannot be drawn or written."""


class MissingLibraryError(PlotError, ImportError):
    """matplotlib is not installed."""


def require_matplotlib() -> None:
    """Raise MissingLibraryError if matplotlib is missing; long computations check first."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingLibraryError("plots need matplotlib; pip install 'kcalib[plot]'") from None


@dataclass(frozen=True)
class Tones:
    """Colours for the paper of some axes."""

    paper: tuple[float, ...]
    ink: tuple[float, ...]

    @classmethod
    def of(cls, axes: Any) -> Tones:
        from matplotlib import rcParams
        from matplotlib.colors import to_rgb, to_rgba

        paper = axes.get_facecolor()
        if to_rgba(paper)[3] == 0:
            paper = axes.figure.get_facecolor()
        return cls(to_rgb(paper), to_rgb(rcParams["text.color"]))

    def grey(self, share: float) -> tuple[float, ...]:
        return tuple(paper + share * (ink - paper) for paper, ink in zip(self.paper, self.ink, strict=True))

    @property
    def is_dark(self) -> bool:
        return sum(self.paper) < sum(self.ink)

    def verdict(self, miscalibrated: bool) -> str:
        if miscalibrated:
            return MISCALIBRATED_ON_DARK if self.is_dark else MISCALIBRATED
        return CALIBRATED_ON_DARK if self.is_dark else CALIBRATED


def plot_diagram(
    diagram: Any, ax: Any, labels: tuple[str, str], color: Any, histogram: bool, legend: bool, scale: str
) -> Any:
    """Draw what `kcalib.ReliabilityDiagram.plot` returns; `labels` are those of the two axes."""
    check_choice("scale", scale, SCALES)
    below = "density" if scale == "logit" else "share"
    draw, draw_below = partial(draw_diagram, scale=scale), partial(draw_histogram, scale=scale)
    return _plot(diagram, ax, (*labels, below), color, draw, draw_below if histogram else None, legend)


def plot_quantiles(curve: Any, ax: Any, color: Any, histogram: bool, legend: bool) -> Any:
    """Draw what `kcalib.QuantileCalibration.plot` returns."""
    labels = ("predicted quantile level", "observed coverage", "share")
    return _plot(curve, ax, labels, color, draw_quantiles, draw_pit if histogram else None, legend)


def plot_cumulative(result: Any, ax: Any) -> Any:
    """Draw what `kcalib.CumulativeCalibrationError.plot` returns."""
    labels = ("share of the samples, by predicted probability", "cumulative difference", "")
    return _plot(result, ax, labels, None, _draw_cumulative, None, True)


def plot_curve(curve: Any, ax: Any, color: Any, histogram: bool, legend: bool) -> Any:
    """Draw what `kcalib.CalibrationCurve.plot` returns."""
    labels = ("predicted probability", "observed frequency", "share")
    return _plot(curve, ax, labels, color, draw_smooth_curve, draw_outcomes if histogram else None, legend)


def _plot(
    diagram: Any,
    ax: Any,
    labels: tuple[str, str, str],
    color: Any,
    draw: Callable[[Any, Any, Any], list[Any]],
    draw_below: Callable[[Any, Any, Any], None] | None,
    legend: bool,
) -> Any:
    """Draw both diagrams in the cell of `ax`; `draw` returns the handles of the legend."""
    require_matplotlib()
    ax = new_figure(4.6, 5.9).add_subplot() if ax is None else ax
    below = None if draw_below is None else split_axes(ax)
    color = Tones.of(ax).verdict(False) if color is None else color
    handles = draw(ax, diagram, color)
    if legend:
        draw_legend(ax, handles)
    if draw_below is not None:
        draw_below(below, diagram, color)
    label_axes(ax, below, labels)
    return ax


def draw_legend(ax: Any, handles: Sequence[Any]) -> None:
    """Draw a legend above the diagram."""
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
    ax.legend(handles=handles, **place, fontsize=8.5, frameon=False)


def label_axes(ax: Any, below: Any, labels: tuple[str, str, str]) -> None:
    """Label the axes of a diagram, and of the histogram below it if there is one."""
    ax.set_ylabel(labels[1])
    if below is None:
        ax.set_xlabel(labels[0])
        return
    below.set(xlabel=labels[0], ylabel=labels[2])
    ax.tick_params(labelbottom=False)


def new_figure(width: float, height: float, layout: Any = "constrained", dpi: float | None = None) -> Any:
    """Return a figure without pyplot."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout, dpi=dpi)
    FigureCanvasAgg(figure)
    return figure


def split_axes(ax: Any) -> Any:
    """Add axes in the lower part of the cell that `ax` fills; `ax` keeps the upper one."""
    cell = ax.get_subplotspec()
    if cell is None:
        raise ValueError("`ax` is not a cell of a grid, as of `subplots`, that can be split; pass histogram=False")
    upper, lower = cell.subgridspec(2, 1, height_ratios=(3.4, 1), hspace=0.07)
    ax.set_subplotspec(upper)
    return ax.figure.add_subplot(lower, sharex=ax)


def draw_diagram(axes: Any, diagram: Any, color: Any, scale: str = "linear") -> list[Any]:
    """Draw band, diagonal and points with confidence intervals, lines for isotonic blocks, or a curve."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    tones = Tones.of(axes)
    span = _span(diagram, scale)
    axes.set(xscale=scale, yscale=scale)
    _diagonal(axes, span, tones)
    draw = {"isotonic": _draw_regression, "smooth": _draw_curve}.get(diagram.binning, _draw_bins)
    draw(axes, diagram, color, tones.grey(BAND), span)
    axes.set(xlim=span, ylim=span)
    simplify_axes(axes, tones)
    for axis in (axes.xaxis, axes.yaxis):
        set_ticks(axis, scale, span)

    level = f"{100 * diagram.confidence_level:g} %"
    kind = ", all bins at once" if diagram.simultaneous else ""
    handles: list[Any] = []
    if diagram.consistency_band is not None:
        handles.append(Patch(color=tones.grey(BAND), label=f"{level} consistency band{kind}"))
    if diagram.confidence_band is not None:
        handles.append(Line2D([], [], color=color, linewidth=1.2, label=f"{level} confidence interval{kind}"))
    return handles


def _span(diagram: Any, scale: str) -> tuple[float, float]:
    """Return the limits of both axes: on a logit scale those of the bins, the frequencies and their intervals."""
    if scale == "linear":
        return 0.0, 1.0
    used = diagram.count > 0
    coordinates = [diagram.confidence[used], diagram.frequency[used]]
    if diagram.confidence_band is not None:
        coordinates += [limit[used] for limit in diagram.confidence_band]
    values = np.concatenate(coordinates)
    values = values[(values > 0) & (values < 1)]
    if len(values) == 0:
        values = np.array([0.5])
    least = 10.0 ** -(NINES + 1)
    low, high = float(np.min(values)), float(np.min(1 - values))
    return max(low / 1.5, least), 1 - max(high / 1.5, least)


def set_ticks(axis: Any, scale: str, span: tuple[float, float]) -> None:
    """Set few ticks, in plain numbers."""
    if scale == "linear":
        axis.set_ticks(*TICKS)
        return
    nines = [(1 - 10.0**-k, "0." + "9" * k) for k in range(1, NINES + 1)]
    ticks = [(0.5, "0.5"), *nines, *((10.0**-k, f"{10.0**-k:.{k}f}") for k in range(1, NINES + 1))]
    inside = [(value, text) for value, text in sorted(ticks) if span[0] <= value <= span[1]]
    while len(inside) > MOST_TICKS:
        inside = inside[::2] if len(inside) % 2 else inside[1::2]
    axis.set_ticks([value for value, _ in inside], [text for _, text in inside])
    axis.set_ticks([], minor=True)


def _draw_bins(axes: Any, diagram: Any, color: Any, band: Any, span: tuple[float, float]) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgb

    used = diagram.count > 0
    x, y = np.clip(diagram.confidence[used], *span), np.clip(diagram.frequency[used], *span)
    if diagram.consistency_band is not None:
        low, high = (np.clip(limit[used], *span) for limit in diagram.consistency_band)
        left, width = _bars(diagram, used, x, span)
        axes.bar(left, high - low, width, low, align="edge", color=band, linewidth=0, zorder=1)
    share = diagram.weight[used] / np.sum(diagram.weight)
    opacity = np.clip(share * np.count_nonzero(used) / SPARSE, FAINTEST, 1)  # fades points of few samples
    colors = [(*to_rgb(color), alpha) for alpha in opacity]
    if diagram.confidence_band is not None:
        low, high = (np.clip(limit[used], *span) for limit in diagram.confidence_band)
        axes.vlines(x, low, high, color=[(*rgb, 0.75 * alpha) for *rgb, alpha in colors], linewidth=1.2, zorder=3)
    points = np.stack((x, y), axis=1)
    links = [(*to_rgb(color), 0.45 * alpha) for alpha in np.minimum(opacity[1:], opacity[:-1])]
    axes.add_collection(LineCollection(list(pairwise(points)), colors=links, linewidths=0.8, zorder=3))
    axes.scatter(x, y, 10 + 50 * share, color=colors, zorder=4, clip_on=False)


def _bars(diagram: Any, used: np.ndarray, x: np.ndarray, span: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Return left ends and widths of the bins."""
    edges = diagram.edges
    if diagram.binning == "equal_mass":  # its first and its last bin may be wide and mostly empty
        edges = np.clip(edges, np.min(diagram.lowest[used]), np.max(diagram.highest[used]))
    edges = np.clip(edges, *span)
    left, width = edges[:-1][used], np.diff(edges)[used]
    if span == (0, 1):
        left = np.where(width < NARROWEST, x - NARROWEST / 2, left)
        width = np.maximum(width, NARROWEST)
    return left, width


def _draw_regression(axes: Any, diagram: Any, color: Any, band: Any, span: tuple[float, float]) -> None:
    limits = (np.clip(limit, *span) for limit in diagram.consistency_band)
    axes.fill_between(np.clip(diagram.points, *span), *limits, color=band, linewidth=0, zorder=1)
    x = np.clip(np.stack((diagram.lowest, diagram.highest), axis=1), *span)
    y = np.clip(np.stack((diagram.frequency, diagram.frequency), axis=1), *span)
    axes.plot(x.ravel(), y.ravel(), color=color, linewidth=0.8, alpha=0.6, zorder=3)
    axes.plot(x.T, y.T, color=color, linewidth=2.6, solid_capstyle="round", zorder=4)


def _draw_curve(axes: Any, diagram: Any, color: Any, band: Any, span: tuple[float, float]) -> None:
    x = np.clip(diagram.confidence, *span)
    if diagram.consistency_band is not None:
        limits = (np.clip(limit, *span) for limit in diagram.consistency_band)
        axes.fill_between(x, *limits, color=band, linewidth=0, zorder=1)
    axes.plot(x, np.clip(diagram.frequency, *span), color=color, linewidth=1.8, zorder=4)


def is_overconfident(diagram: Any) -> bool:
    """Return whether the mean confidence exceeds the mean frequency."""
    return bool(np.nansum(diagram.weight * (diagram.confidence - diagram.frequency)) > 0)


def draw_histogram(axes: Any, diagram: Any, color: Any, scale: str = "linear", *, outlined: bool = False) -> None:
    """Draw the share of the samples in bins of equal width; on a logit scale their density."""
    from scipy.special import logit

    tones = Tones.of(axes)
    span = _span(diagram, scale)
    if scale == "linear":
        edges = np.linspace(0, 1, len(diagram.histogram) + 1)
        left, width, heights = edges[:-1], np.diff(edges), diagram.histogram
        axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    else:
        used = diagram.count > 0
        left, width = _bars(diagram, used, diagram.confidence[used], span)
        on_axis = logit(left + width) - logit(left)
        heights = np.divide(diagram.weight[used], on_axis, out=np.zeros(len(left)), where=on_axis > 0)
        heights = heights / max(float(np.max(heights)), np.finfo(float).tiny)
        axes.set_yticks([])
    if outlined:
        axes.stairs(heights, np.append(left, 1.0), color=color)
    else:
        axes.bar(left, heights, width, align="edge", color=color, edgecolor=tones.paper, linewidth=0.5)
    axes.set(xscale=scale, xlim=span, ylim=(0, 1))
    set_ticks(axes.xaxis, scale, span)
    simplify_axes(axes, tones)


def draw_quantiles(axes: Any, curve: Any, color: Any) -> list[Any]:
    """Draw the consistency band, the diagonal, and the observed coverage of the quantiles."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    tones = Tones.of(axes)
    _diagonal(axes, (0, 1), tones)
    axes.fill_between(curve.levels, *curve.consistency_band, color=tones.grey(BAND), linewidth=0, zorder=1)
    axes.plot(curve.levels, curve.coverage, color=color, linewidth=0.8, alpha=0.6, zorder=3)
    axes.scatter(curve.levels, curve.coverage, 14, color=color, zorder=4, clip_on=False)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    simplify_axes(axes, tones)
    axes.set_xticks(*TICKS)
    axes.set_yticks(*TICKS)
    kind = ", all levels at once" if curve.simultaneous else ""
    return [
        Patch(color=tones.grey(BAND), label=f"{100 * curve.confidence_level:g} % consistency band{kind}"),
        Line2D([], [], color=color, marker="o", markersize=4, linewidth=0.8, label="share of targets"),
    ]


def _draw_cumulative(axes: Any, result: Any, color: Any) -> list[Any]:
    """Draw the cumulative differences, and where 95 % of those of a calibrated model are at each place."""
    tones, limit = Tones.of(axes), 1.96 * result.standard_deviation
    pvalue = format_pvalue(result.pvalue)
    handles = [
        axes.fill_between(result.share, -limit, limit, color=tones.grey(BAND), linewidth=0, label="95 % if calibrated"),
        *axes.plot(result.share, result.difference, color=color, label=f"{result.value:.3g}, p-value {pvalue}"),
    ]
    axes.set(xlim=(0, 1))
    simplify_axes(axes, tones)
    return handles


def draw_smooth_curve(axes: Any, curve: Any, color: Any) -> list[Any]:
    """Draw the smooth curve with its band, the groups with their intervals, and a box of numbers."""
    from matplotlib.lines import Line2D

    tones, used = Tones.of(axes), curve.groups.count > 0
    _diagonal(axes, (0, 1), tones)
    axes.fill_between(curve.points, *np.clip(curve.band, 0, 1), color=color, alpha=BAND, linewidth=0, zorder=1)
    axes.plot(curve.points, np.clip(curve.curve, 0, 1), color=color, linewidth=1.8, zorder=3)
    x, grey = curve.groups.confidence[used], tones.grey(DIAGONAL)
    axes.vlines(x, *(limit[used] for limit in curve.groups.confidence_band), color=grey, linewidth=1.0, zorder=4)
    axes.scatter(x, curve.groups.frequency[used], 22, color=grey, marker="^", zorder=5, clip_on=False)
    is_below = bool(np.mean(curve.curve - curve.points) < 0)
    place = {"x": 0.03, "y": 0.97, "va": "top"} if is_below else {"x": 0.97, "y": 0.03, "va": "bottom", "ha": "right"}
    box = {"facecolor": tones.paper, "edgecolor": tones.grey(BAND), "boxstyle": "round"}
    text = "\n".join(_numbers_of(curve))
    axes.text(s=text, **place, transform=axes.transAxes, fontsize=7.5, bbox=box, zorder=6, linespacing=1.4)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    simplify_axes(axes, tones)
    axes.set_xticks(*TICKS)
    axes.set_yticks(*TICKS)
    level = f"{100 * curve.confidence_level:g} %"
    return [
        Line2D([], [], color=color, linewidth=1.8, label=f"smooth curve (loess), {level} band"),
        Line2D([], [], color=grey, marker="^", linewidth=1.0, label=f"groups of equal size, {level} intervals"),
    ]


def _numbers_of(curve: Any) -> list[str]:
    """Return the lines of the box: what there is of O/E and the line of log-odds, and the distances."""
    line, ratio = curve.line, curve.ratio
    numbers = [] if ratio is None else [("O/E", ratio.value, ratio.interval)]
    if line is not None:
        numbers += [
            ("in the large", line.calibration_in_the_large, line.calibration_in_the_large_interval),
            ("slope", line.slope, line.slope_interval),
        ]
    numbers.append(("ICI", curve.value, curve.interval))
    distances = f"E50 {curve.e50:.3f}, E90 {curve.e90:.3f}, Emax {curve.e_max:.3f}"
    shown = [f"{name} {value:.3f} [{low:.3f}, {high:.3f}]" for name, value, (low, high) in numbers]
    return [f"n = {curve.n_samples}", *shown, distances]


def draw_outcomes(axes: Any, curve: Any, color: Any) -> None:
    """Draw the histogram of the predictions of events above, of others below."""
    tones, edges = Tones.of(axes), np.linspace(0, 1, curve.histogram.shape[1] + 1)
    for heights, shade, name, y in zip(
        (-curve.histogram[0], curve.histogram[1]), (tones.grey(DIAGONAL), color), ("no", "event"), (0.05, 0.8)
    ):
        axes.bar(edges[:-1], heights, np.diff(edges), align="edge", color=shade, edgecolor=tones.paper, linewidth=0.5)
        axes.text(0.99, y, name, transform=axes.transAxes, ha="right", fontsize=7.5)
    highest = 1.1 * float(np.max(curve.histogram))
    axes.set(xlim=(0, 1), ylim=(-highest, highest))
    axes.axhline(0, color=tones.grey(DIAGONAL), linewidth=0.8)
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):.2g}")
    axes.set_xticks(*TICKS)
    simplify_axes(axes, tones)


def is_below(curve: Any) -> bool:
    """Return whether most of the curve is below the diagonal."""
    return bool(np.mean(curve.coverage - curve.levels) < 0)


def draw_pit(axes: Any, curve: Any, color: Any) -> None:
    """Draw the shares of PIT values in bins of equal width, and a band of those of a calibrated model."""
    from scipy.stats import binom

    tones = Tones.of(axes)
    count, n = len(curve.histogram), curve.n_samples
    edges = np.linspace(0, 1, count + 1)
    low, high = binom.ppf([(1 - curve.confidence_level) / 2, (1 + curve.confidence_level) / 2], n, 1 / count) / n
    axes.axhspan(low, high, color=tones.grey(BAND), linewidth=0, zorder=0.5)
    axes.bar(
        edges[:-1], curve.histogram, np.diff(edges), align="edge", color=color, edgecolor=tones.paper, linewidth=0.5,
        alpha=0.8, zorder=1,
    )  # fmt: skip
    for limit in (low, high):  # through the bars, which cover the band
        axes.axhline(limit, color=tones.grey(DIAGONAL), linewidth=0.7, zorder=2)
    axes.axhline(1 / count, color=tones.grey(DIAGONAL), linewidth=1, linestyle=(0, (4, 3)), zorder=2)
    axes.set(xlim=(0, 1), ylim=(0, max(2.5 / count, 1.05 * float(np.max(curve.histogram)), 1.05 * high)))
    axes.set_xticks(*TICKS)
    simplify_axes(axes, tones)


def _diagonal(axes: Any, span: Sequence[float], tones: Tones) -> None:
    """Draw the diagonal, straight on either scale, unless another model has drawn it already."""
    if not any(line.get_gid() == "diagonal" and tuple(line.get_xdata()) == tuple(span) for line in axes.lines):
        axes.plot(span, span, color=tones.grey(DIAGONAL), linewidth=1, linestyle=(0, (4, 3)), zorder=2, gid="diagonal")


def simplify_axes(axes: Any, tones: Tones) -> None:
    """Leave a faint grid, small numbers, and no box."""
    axes.grid(color=tones.grey(GRID), linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
