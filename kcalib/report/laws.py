"""Pictures of results that need no samples: the law of a test, and the intervals of a comparison.

`CalibrationTestResult.plot` and `Comparison.plot` draw them, and pages show them as `page.svg`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kcalib.report.diagrams import BAND, DIAGONAL, Tones, bare, require_matplotlib

UPPER = 0.95  # of calibrated models are below this mark


def draw_law(test: Any, axes: Any = None) -> Any:
    """What the statistic of calibrated models is, by the draws of a test, and where the observed one lies: the axes."""
    axes = _axes(6.2, 2.1) if axes is None else axes
    tones = Tones.of(axes)
    quantiles = np.asarray(test.null_quantiles)[::2]
    share = 1 / (len(quantiles) - 1)
    gap = np.maximum(np.diff(quantiles), 1e-12 * max(float(np.ptp(quantiles)), 1e-300))
    axes.stairs(share / gap, quantiles, fill=True, color=tones.grey(BAND))
    upper = float(np.interp(UPPER, np.linspace(0, 1, len(test.null_quantiles)), test.null_quantiles))
    axes.axvline(upper, color=tones.grey(DIAGONAL), linewidth=1, linestyle=(0, (4, 3)))
    beyond = test.statistic > upper
    color = tones.verdict(beyond)
    axes.axvline(test.statistic, color=color, linewidth=2)
    for x, text, tone in ((upper, f"{100 * UPPER:g} % of the draws", None), (test.statistic, "observed", color)):
        right = (x == upper) == beyond  # the mark at the left has its text at the left
        axes.annotate(
            text, (x, 1), (-3 if right else 3, -2), ("data", "axes fraction"), "offset points",
            ha="right" if right else "left", va="top", fontsize=8.5, color=tone or tones.grey(DIAGONAL),
        )  # fmt: skip
    low, high = min(quantiles[0], test.statistic), max(quantiles[-1], test.statistic)
    margin = 0.04 * (high - low) or 1.0
    axes.set(xlim=(low - margin, high + margin), yticks=[], xlabel="statistic")
    bare(axes, tones)
    return axes


def draw_intervals(comparison: Any, axes: Any = None) -> Any:
    """The value of each model with its interval, best first: the axes."""
    names = comparison.ranking
    axes = _axes(6.2, 0.75 + 0.3 * len(names)) if axes is None else axes
    tones = Tones.of(axes)
    for row, name in enumerate(names):
        model = comparison.model(name)
        axes.plot(model.confidence_interval, [row, row], color=tones.verdict(False), linewidth=2)
        axes.plot([model.value], [row], "o", color=tones.verdict(False), markersize=5)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set(ylim=(len(names) - 0.5, -0.5), xlabel=comparison.metric)
    bare(axes, tones)
    return axes


def _axes(width: float, height: float) -> Any:
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.add_subplot()
