"""Models over their releases: the SKCE with its interval, and a score or error beside it.

`kcalib history` reads the releases and draws them with `figures.save`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kcalib.report.diagrams import DIAGONAL, Tones, new_figure, simplify_axes
from kcalib.report.figures import CAPTION

WIDTH, HEIGHT = 8.6, 2.5  # inches of a model
MOST_LABELS = 24  # releases that are named below an axis
LONG = 40  # letters of all names below an axis that stand beside each other


@dataclass(frozen=True)
class Release:
    """What one evaluation of a model said."""

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
    """Draw a row for each model; `scores` has the number next to its SKCE, and its label."""
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
