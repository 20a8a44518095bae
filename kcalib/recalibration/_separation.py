"""What is said where the likelihood of the fit has no maximum, as the samples hold no errors."""

from __future__ import annotations

from typing import Any

from kcalib._backend.warnings import warn


class SeparationWarning(UserWarning):
    """The predictions separate the classes of the fit: the likelihood grows up to certainty, and has no maximum."""


def warn_of_separation(recalibrator: Any, columns: list[int]) -> None:
    """For one-vs-rest methods, if there are any such classes."""
    if columns:
        warn(
            f"the predictions of class {columns[0]} separate it from the others (so for {len(columns)} classes): the "
            f"likelihood of {type(recalibrator).__name__} has no maximum, and the last step was taken; pass "
            "smoothing=True, or more samples",
            SeparationWarning,
        )
