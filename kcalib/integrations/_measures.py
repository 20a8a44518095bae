"""Measures by name, for hosts that take a number for labels and predictions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import kcalib
from kcalib._backend.options import find_similar


@dataclass(frozen=True)
class Measure:
    """A function of kcalib, and how to get a number from its result."""

    function: Callable[..., Any]
    number: Callable[[Any], float] = float
    greater_is_better: bool = False
    of_distributions: bool = False  # for predicted distributions only

    @property
    def __name__(self) -> str:
        """Return the name of the function, which hosts show."""
        return self.function.__name__

    @property
    def __signature__(self) -> inspect.Signature:
        """Return the signature of the function, in which scikit-learn looks for sample weights."""
        return inspect.signature(self.function)

    @property
    def options(self) -> list[str]:
        return [name for name in self.__signature__.parameters if name not in ("y_true", "y_pred")]

    def check(self, options: Mapping[str, Any], refused: Mapping[str, str] | None = None) -> None:
        """Refuse options that the function does not have, or that `refused` explains."""
        check_options(options, f"kcalib.{self.__name__}", self.options, refused or {})

    def __call__(self, y_true: Any, y_pred: Any, **options: Any) -> float:
        return float(self.number(self.function(y_true, y_pred, **options)))


MEASURES = {
    "skce": Measure(kcalib.skce),
    "ckce": Measure(kcalib.ckce),
    "ucme": Measure(kcalib.ucme),
    "squared_calibration_error": Measure(kcalib.squared_calibration_error),
    "kde_calibration_error": Measure(kcalib.kde_calibration_error),
    "top_label_ece": Measure(kcalib.top_label_ece),
    "class_wise_ece": Measure(kcalib.class_wise_ece),
    "canonical_ece": Measure(kcalib.canonical_ece),
    "debiased_ece": Measure(kcalib.debiased_ece),
    "mmce": Measure(kcalib.mmce),
    "smooth_ece": Measure(kcalib.smooth_ece),
    "brier_score": Measure(kcalib.brier_score),
    "log_loss": Measure(kcalib.log_loss),
    "calibration_test": Measure(kcalib.calibration_test, attrgetter("pvalue"), greater_is_better=True),
    "crps": Measure(kcalib.crps, of_distributions=True),
    "log_score": Measure(kcalib.log_score, of_distributions=True),
    "pinball_loss": Measure(kcalib.pinball_loss, of_distributions=True),
    "quantile_calibration": Measure(kcalib.quantile_calibration, attrgetter("error"), of_distributions=True),
}
OF_CLASSES = [name for name, measure in MEASURES.items() if not measure.of_distributions]


def measure_of_classes(name: Any) -> Measure:
    """Return the measure of class probabilities with this name."""
    if name in OF_CLASSES:
        return MEASURES[name]
    raise ValueError(
        f"`name` is {name!r}, no measure of class probabilities{did_you_mean(str(name), OF_CLASSES)}; there are "
        f"{', '.join(OF_CLASSES)}"
    )


def check_options(options: Mapping[str, Any], owner: str, option_names: list[str], refused: Mapping[str, str]) -> None:
    """Refuse options that the owner does not have."""
    option_names = [name for name in option_names if name not in refused]
    for option in options:
        if option in refused:
            raise TypeError(f"`{option}` is no option here: {refused[option]}")
        if option not in option_names:
            suggestion = did_you_mean(option, option_names)
            raise TypeError(f"{owner} has no option {option!r}{suggestion}; it has {', '.join(option_names)}")


def did_you_mean(word: str, words: list[str]) -> str:
    """Return the end of a message that suggests the most similar word."""
    match = find_similar(word, words)
    return "" if match is None else f", did you mean {match!r}?"
