"""Further numbers of class probabilities that `evaluate(metrics=...)` and `kcalib evaluate --metrics` name.

A line of `METRICS` is all that a number needs to be named there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kcalib._backend.options import OptionError, find_similar
from kcalib._input.labels import Classification
from kcalib.estimators.clinical.logistic import recalibration_of
from kcalib.estimators.clinical.observed_expected import hosmer_lemeshow_of, ratio_of, spiegelhalter_of
from kcalib.estimators.curves.cumulative import cumulative_error_of
from kcalib.estimators.curves.smooth_ece import smooth_error
from kcalib.estimators.event_bins import Sample
from kcalib.lenses import ClassWise

# The public function of each name, for checked data of two classes, a level of confidence and a seed.
METRICS: dict[str, Callable[[Classification, float, int], Any]] = {
    "logistic_recalibration": lambda data, confidence_level, seed: recalibration_of(data, confidence_level),
    "observed_expected_ratio": lambda data, confidence_level, seed: ratio_of(data, confidence_level),
    "spiegelhalter_test": lambda data, confidence_level, seed: spiegelhalter_of(data),
    "hosmer_lemeshow_test": lambda data, confidence_level, seed: hosmer_lemeshow_of(data),
}
GROUPS = {"clinical": tuple(METRICS)}  # names for several
METRICS["smooth_ece"] = lambda data, confidence_level, seed: smooth_error(Sample.of(data).to_host())[0]
METRICS["cumulative_calibration_error"] = lambda data, confidence_level, seed: cumulative_error_of(data)


def check_metrics(metrics: Any) -> tuple[str, ...]:
    """Return the names of `METRICS` that are meant, each once."""
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        metrics = [metrics]
    names: dict[str, None] = {}
    for metric in metrics:
        if not isinstance(metric, str) or metric not in {*METRICS, *GROUPS}:
            similar = find_similar(str(metric), [*METRICS, *GROUPS])
            raise OptionError(
                "metrics",
                f"names {metric!r}, expected some of {', '.join(map(repr, [*GROUPS, *METRICS]))}"
                + ("" if similar is None else f"; did you mean {similar!r}?"),
            )
        names |= dict.fromkeys(GROUPS.get(metric, (metric,)))
    return tuple(names)


def compute_metrics(names: Iterable[str], data: Classification, confidence_level: float, seed: int) -> dict[str, Any]:
    """Return the result of each; of more than two classes a tuple, of each class against all others."""
    problems = [data] if data.m == 2 else [ClassWise(k).induced(data) for k in range(data.m)]
    results = {name: tuple(METRICS[name](problem, confidence_level, seed) for problem in problems) for name in names}
    return {name: values if data.m > 2 else values[0] for name, values in results.items()}
