"""Pictures of results that need no samples: the null distribution of a test, and the intervals of a comparison.

`CalibrationTestResult.plot` and `Comparison.plot` use them, and pages embed them by `page.svg`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kcalib.report.diagrams import BAND, DIAGONAL, Tones, new_figure, simplify_axes

UPPER = 0.95  # share of calibrated models below the dashed mark
SEEN = 1e-3  # smallest visible share of the width, about a pixel
ROOM = 0.22  # share of the width of the axes for the text of a mark


def draw_law(test: Any, axes: Any = None) -> Any:
    """Draw the null distribution of a test by its draws, and the observed statistic; return the axes."""
    axes = new_figure(6.2, 2.1).add_subplot() if axes is None else axes
    tones = Tones.of(axes)
    quantiles = np.asarray(test.null_quantiles)[::2]
    edges, density = _bars(quantiles)
    if len(density):
        axes.stairs(density, edges, fill=True, color=tones.grey(BAND))
    else:
        axes.axvline(edges[0], color=tones.grey(BAND), linewidth=6)
    upper = float(np.interp(UPPER, np.linspace(0, 1, len(test.null_quantiles)), test.null_quantiles))
    axes.axvline(upper, color=tones.grey(DIAGONAL), linewidth=1, linestyle=(0, (4, 3)))
    beyond = test.statistic > upper
    color = tones.verdict(beyond)
    axes.axvline(test.statistic, color=color, linewidth=2)
    low, high = min(quantiles[0], test.statistic), max(quantiles[-1], test.statistic)
    margin = 0.04 * (high - low) or 1.0
    axes.set(xlim=(low - margin, high + margin), yticks=[], xlabel="statistic")
    for x, text, tone in ((upper, f"{100 * UPPER:g} % of the draws", None), (test.statistic, "observed", color)):
        left = (x == upper) == beyond  # the left mark has its text at the left
        place = (x - axes.get_xlim()[0]) / np.ptp(axes.get_xlim())
        turned = (place if left else 1 - place) < ROOM  # or, without room, at the right and lower
        right = left != turned
        axes.annotate(
            text, (x, 1), (-3 if right else 3, -14 if turned else -2), ("data", "axes fraction"), "offset points",
            ha="right" if right else "left", va="top", fontsize=8.5, color=tone or tones.grey(DIAGONAL),
        )  # fmt: skip
    simplify_axes(axes, tones)
    return axes


def _bars(quantiles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return edges and densities between quantiles; quantiles that are too close to be seen are merged.

    A statistic with few values, such as that of saturated predictions, has many equal quantiles. If all are equal,
    there is one edge and no bar.
    """
    least, distinct = SEEN * float(np.ptp(quantiles)), [0]
    for i, quantile in enumerate(quantiles):
        if quantile - quantiles[distinct[-1]] > least:
            distinct.append(i)
    edges, counts = quantiles[distinct], np.diff([*distinct[:-1], len(quantiles) - 1])
    if len(distinct) > 1:
        edges[-1] = quantiles[-1]
    return edges, counts[: len(distinct) - 1] / (len(quantiles) - 1) / np.diff(edges)


def draw_intervals(comparison: Any, axes: Any = None) -> Any:
    """Draw the value of each model with its interval, best first; return the axes."""
    names = comparison.ranking
    axes = new_figure(6.2, 0.75 + 0.3 * len(names)).add_subplot() if axes is None else axes
    tones = Tones.of(axes)
    for row, name in enumerate(names):
        model = comparison.model(name)
        axes.plot(model.confidence_interval, [row, row], color=tones.verdict(False), linewidth=2)
        axes.plot([model.value], [row], "o", color=tones.verdict(False), markersize=5)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set(ylim=(len(names) - 0.5, -0.5), xlabel=comparison.metric)
    simplify_axes(axes, tones)
    return axes
