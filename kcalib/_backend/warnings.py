"""Warnings that point at the user's line, however deep inside the package they arise."""

from __future__ import annotations

import sys
import warnings


class IndefiniteKernelWarning(UserWarning):
    """A kernel that is not known to be positive definite: estimates may mislead."""


class AntiConservativeWarning(UserWarning):
    """A test that may reject calibrated models more often than its level says.

    Decided from the predictions alone: their labels are not looked at.
    """


def warn(message: str, category: type[Warning]) -> None:
    """``warnings.warn`` for the first caller outside kcalib."""
    level, frame = 2, sys._getframe(1)
    # `functools` calls the functions that are registered for a type.
    own = ("kcalib", "functools")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in own:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
