"""Pictures in files: a diagram for each of several models and classes.

The command calls `plot_reliability`; `diagrams` draws on axes.
"""

from __future__ import annotations

import functools
import io
import math
import os
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kcalib._backend.files import printable_lines, write_whole
from kcalib.report.diagrams import (
    DIAGONAL,
    PlotError,
    Tones,
    draw_diagram,
    draw_histogram,
    draw_pit,
    draw_quantiles,
    is_below,
    is_overconfident,
    new_figure,
    require_matplotlib,
    simplify_axes,
)

WIDTH, HEIGHT = 8.6, 2.5  # inches of a model
MOST_LABELS = 24  # names of releases below an axis
LONG = 40  # letters of all names below an axis; longer ones are rotated

__all__ = ["Panel", "PlotError", "plot_reliability"]

SUFFIXES = (".png", ".pdf", ".svg")
THEMES = {"light": "default", "dark": "dark_background"}  # styles of matplotlib

MOST_COLUMNS = 4
PANEL_SIZE = (3.1, 4.35)  # inches
DPI = 160
MOST_PIXELS = 60_000  # of a side; the limit of the renderer is 2**16
CAPTION = 0.75  # from the paper, 0, to the text, 1


@dataclass(frozen=True)
class Style:
    """How diagrams of a kind are drawn."""

    noun: str  # names the models if a picture has several styles
    caption: str
    labels: tuple[str, str, str]  # of the x axis, the y axis, and the y axis of the histogram
    draw: Callable[[Any, Any, str], Any]  # axes, diagram, color
    draw_below: Callable[[Any, Any, str], None]  # the same for the histogram
    is_empty_above: Callable[[Panel], bool]  # whether the notes fit in the upper left corner
    margin: float = 0.62  # inches for the numbers of the y axis


@dataclass(frozen=True)
class Panel:
    """A model in the picture, or one of its classes."""

    model: str
    verdict: str  # in words
    miscalibrated: bool
    notes: tuple[str, ...]  # lines in a corner
    diagram: Any  # kcalib.ReliabilityDiagram with both bands, or kcalib.QuantileCalibration
    style: Style

    @property
    def wrapped_verdict(self) -> str:
        return textwrap.fill(self.verdict, 44)  # as wide as a panel


def plot_reliability(panels: Sequence[Panel], path: str | os.PathLike[str], theme: str = "light") -> None:
    """Draw the panels in rows into a file with one of `SUFFIXES`; a PlotError says why it fails."""
    save(lambda: draw_panels(panels), path, theme)


def save(draw: Callable[[], Any], path: str | os.PathLike[str], theme: str) -> None:
    """Write the figure that `draw` returns, as a whole or not at all."""
    require_matplotlib()
    import matplotlib.style

    picture = io.BytesIO()
    # Ignore the user's matplotlibrc, and warnings of missing glyphs in names of models.
    with matplotlib.style.context(["default", THEMES[theme]]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        suffix = os.path.splitext(os.fspath(path))[1].removeprefix(".").lower()
        draw().savefig(picture, format=suffix)
    content = picture.getvalue()
    try:
        write_whole(path, printable_lines(content.decode()).encode() if suffix == "svg" else content)
    except OSError as error:
        raise PlotError(f"cannot write the picture: {error.strerror or error}") from None
    except ValueError as error:
        raise PlotError(f"cannot write the picture: {error}") from None


def make_captions(panels: Sequence[Panel]) -> list[str]:
    """Return a caption for each kind of diagram."""
    kinds = dict.fromkeys((panel.style.noun, panel.style.caption) for panel in panels)
    return [text if len(kinds) == 1 else f"{noun}: {text}" for noun, text in kinds]


def draw_panels(panels: Sequence[Panel], *, captioned: bool = True) -> Any:
    """Draw the panels in rows, and return the figure."""
    rows = math.ceil(len(panels) / MOST_COLUMNS)
    columns = math.ceil(len(panels) / rows)
    captions = make_captions(panels) if captioned else ()
    caption = [line for text in captions for line in textwrap.wrap(text, 48 * columns)]
    margin = max(panel.style.margin for panel in panels)
    width = PANEL_SIZE[0] * columns + margin - 0.27
    wrapped = 0.15 * max(panel.wrapped_verdict.count("\n") for panel in panels)  # inches
    height = (PANEL_SIZE[1] + wrapped) * rows + 0.15 * len(caption) + 0.1
    figure = new_figure(width, height, None, min(DPI, MOST_PIXELS / max(width, height)))
    grid = figure.add_gridspec(
        rows,
        columns,
        left=margin / width,
        right=1 - 0.15 / width,
        bottom=(0.6 + 0.15 * len(caption)) / height,
        top=1 - (0.55 + wrapped) / height,
        wspace=0.2 + (margin - 0.62) / PANEL_SIZE[0],
        hspace=0.32 + 1.3 * wrapped / PANEL_SIZE[1],
    )
    for index, panel in enumerate(panels):
        row, column = divmod(index, columns)
        cell = grid[row, column].subgridspec(2, 1, height_ratios=(3.4, 1), hspace=0.07)
        diagram = figure.add_subplot(cell[0])
        histogram = figure.add_subplot(cell[1], sharex=diagram)
        _draw_panel(diagram, histogram, panel)
        if column == 0:
            diagram.set_ylabel(panel.style.labels[1])
            histogram.set_ylabel(panel.style.labels[2])
    grey = Tones.of(figure.axes[0]).grey(CAPTION)
    figure.text(0.5, 0.08 / height, "\n".join(caption), ha="center", va="bottom", fontsize=8, color=grey)
    return figure


def _draw_panel(diagram: Any, histogram: Any, panel: Panel) -> None:
    tones = Tones.of(diagram)
    color = tones.verdict(panel.miscalibrated)
    panel.style.draw(diagram, panel.diagram, color)
    diagram.tick_params(labelbottom=False)
    diagram.set_title(
        _shorten(panel.model),
        fontsize=10,
        fontweight="bold",
        parse_math=False,
        pad=19 + 11 * panel.wrapped_verdict.count("\n"),
    )
    diagram.annotate(
        panel.wrapped_verdict, (0.5, 1), (0, 5), "axes fraction", "offset points",
        ha="center", va="bottom", fontsize=8.5, color=color, parse_math=False,
    )  # fmt: skip
    corner = (0.04, 0.96, "left", "top") if panel.style.is_empty_above(panel) else (0.96, 0.04, "right", "bottom")
    x, y, horizontal, vertical = corner
    diagram.text(
        x, y, "\n".join(panel.notes), transform=diagram.transAxes, ha=horizontal, va=vertical, fontsize=8.5,
        linespacing=1.25, zorder=5, parse_math=False,
        bbox={"facecolor": tones.paper, "alpha": 0.8, "edgecolor": "none", "pad": 2},
    )  # fmt: skip
    panel.style.draw_below(histogram, panel.diagram, color)
    histogram.set_xlabel(panel.style.labels[0])


RELIABILITY = Style(
    noun="Classes",
    caption="points: accuracy in a bin, faint if it has few samples, with its 95 % confidence interval; grey: 95 % of "
    "the points of a calibrated model; bars: share of the samples",
    labels=("confidence", "accuracy", "share"),
    draw=draw_diagram,
    draw_below=draw_histogram,
    is_empty_above=lambda panel: panel.miscalibrated and is_overconfident(panel.diagram),
)
RELIABILITY_ON_LOGITS = replace(
    RELIABILITY,
    caption=RELIABILITY.caption.replace("bars: share", "both axes are log-odds; bars: density"),
    labels=("confidence", "accuracy", "density"),
    draw=functools.partial(draw_diagram, scale="logit"),
    margin=0.85,
    draw_below=functools.partial(draw_histogram, scale="logit"),
)
QUANTILES = Style(
    noun="Regression",
    caption="points: share of the targets up to the predicted quantile; grey: 95 % of the points of a calibrated "
    "model; bars: shares of PIT values, dashed: their expectation for a calibrated model, between the lines 95 % of "
    "its bars",
    labels=("predicted quantile level", "coverage", "share"),
    draw=draw_quantiles,
    draw_below=draw_pit,
    is_empty_above=lambda panel: is_below(panel.diagram),
)


def _shorten(name: str, length: int = 28) -> str:
    """Shorten a long name but keep both ends: models often differ in the last letters."""
    half = (length - 3) // 2
    return name if len(name) <= length else f"{name[:half]}...{name[-half:]}"


@dataclass(frozen=True)
class Release:
    """An evaluation of a release of a model."""

    name: str
    time: str  # RFC 3339, UTC
    kcalib: str  # version
    machine: str
    numbers: Mapping[str, float | None]  # as `kcalib evaluate` calls them in JSON
    skce: float
    standard_error: float | None
    confidence_interval: tuple[float, float] | None
    pvalue: float
    kernel: str
    estimator: str
    level: float
    miscalibrated: bool
    verdict: str


def draw_history(models: Mapping[str, Sequence[Release]], scores: Mapping[str, tuple[str, str]]) -> Any:
    """Draw a row for each model; `scores` has the number next to its SKCE and its label."""
    figure = new_figure(WIDTH, HEIGHT * len(models) + 0.2, dpi=160)
    axes = figure.subplots(len(models), 2, squeeze=False)
    for (left, right), (model, releases) in zip(axes, models.items(), strict=True):
        tones = Tones.of(left)
        left.axhline(0, color=tones.grey(DIAGONAL), linewidth=0.8)
        number, label = scores[model]
        colors = [tones.verdict(release.miscalibrated) for release in releases]
        limits = [(x, release.confidence_interval) for x, release in enumerate(releases) if release.confidence_interval]
        lows, highs = ([interval[side] for _, interval in limits] for side in (0, 1))
        left.vlines([x for x, _ in limits], lows, highs, colors=[colors[x] for x, _ in limits], linewidth=1.6)
        left.scatter(range(len(releases)), [release.skce for release in releases], s=25, c=colors, zorder=2)
        values = [math.nan if (value := release.numbers[number]) is None else value for release in releases]
        right.plot(range(len(releases)), values, color=tones.grey(DIAGONAL), linewidth=0.8, zorder=0)
        right.scatter(range(len(releases)), values, s=25, c=colors, zorder=2)
        left.set_title(model, fontsize=10, fontweight="bold", loc="left", parse_math=False)
        left.set_ylabel(f"SKCE, {100 * (1 - releases[0].level):g} % interval")
        right.set_ylabel(label)
        step = -(-len(releases) // MOST_LABELS)
        names = [release.name for release in releases][::step]
        for ax in (left, right):
            turned = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if len("".join(names)) > LONG else {}
            ax.set_xticks(range(0, len(releases), step), names, fontsize=8, parse_math=False, **turned)
            ax.margins(x=0.06)
            simplify_axes(ax, tones)
    caption = "orange: verdict 'miscalibrated'; blue: no evidence against calibration, or within the tolerance"
    figure.supxlabel(caption, fontsize=8, color=tones.grey(CAPTION))
    return figure
