"""Compute further numbers of class probabilities by name: `evaluate(metrics=...)`, `kcalib evaluate --metrics`.

To add one, add a line to `METRICS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kcalib._backend.options import OptionError, find_similar
from kcalib._input.labels import Classification
from kcalib.estimators.clinical.curve import curve_of
from kcalib.estimators.clinical.logistic import recalibration_of
from kcalib.estimators.clinical.observed_expected import hosmer_lemeshow_of, ratio_of, spiegelhalter_of
from kcalib.estimators.curves.cumulative import cumulative_error_of
from kcalib.estimators.curves.smooth_ece import smooth_error
from kcalib.estimators.event_bins import Sample
from kcalib.lenses import ClassWise

# Functions of checked data with two classes, a confidence level and a seed; each returns what its public function does.
METRICS: dict[str, Callable[[Classification, float, int], Any]] = {
    "logistic_recalibration": lambda data, level, seed: recalibration_of(data, level),
    "observed_expected_ratio": lambda data, level, seed: ratio_of(data, level),
    "integrated_calibration_index": curve_of,
    "spiegelhalter_test": lambda data, level, seed: spiegelhalter_of(data),
    "hosmer_lemeshow_test": lambda data, level, seed: hosmer_lemeshow_of(data),
    "smooth_ece": lambda data, level, seed: smooth_error(Sample.of(data).to_host())[0],
    "cumulative_calibration_error": lambda data, level, seed: cumulative_error_of(data),
}
GROUPS = {"clinical": tuple(METRICS)[:5]}  # names that stand for several metrics


def check_metrics(metrics: Any) -> tuple[str, ...]:
    """Check names of metrics and groups of them; return the names of the metrics, each once."""
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        metrics = [metrics]
    names: dict[str, None] = {}
    for metric in metrics:
        if not isinstance(metric, str) or metric not in {*METRICS, *GROUPS}:
            similar = find_similar(str(metric), [*METRICS, *GROUPS])
            raise OptionError(
                "metrics",
                f"names {metric!r}, expected numbers about class probabilities: "
                + ", ".join(map(repr, [*GROUPS, *METRICS]))
                + ("" if similar is None else f"; did you mean {similar!r}?"),
            )
        names |= dict.fromkeys(GROUPS.get(metric, (metric,)))
    return tuple(names)


def compute_metrics(
    names: Iterable[str], data: Classification, level: float, seed: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the result of each metric, None if it is undefined, and the reasons for these.

    For more than two classes results are tuples, for each class against all others.
    """
    reasons: dict[str, str] = {}

    def compute(name: str, problem: Classification, suffix: str = "") -> Any:
        try:
            return METRICS[name](problem, level, seed)
        except ValueError as error:
            reasons[name + suffix] = str(error)
            return None

    if data.m == 2:
        return {name: compute(name, data) for name in names}, reasons
    problems = [(ClassWise(k).induced(data), f", class {k}") for k in range(data.m)]
    return {name: tuple(compute(name, *problem) for problem in problems) for name in names}, reasons
