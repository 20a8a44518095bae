"""Warnings that point at the user's line, however deep inside the package they arise."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

WarningRecords = list[tuple[str, type[Warning]]]
_records: ContextVar[WarningRecords | None] = ContextVar("_records", default=None)


class IndefiniteKernelWarning(UserWarning):
    """A kernel that is not known to be positive definite: estimates may mislead."""


class LogitsWarning(UserWarning):
    """Predictions are passed as logits, but their rows are probabilities already."""


class GradientWarning(UserWarning):
    """A tensor requires gradients, and results are plain numbers without any."""


class TemperatureBoundWarning(UserWarning):
    """The best temperature lies beyond a bound, or the samples say nothing about it."""


class AntiConservativeWarning(UserWarning):
    """A test that may reject calibrated models more often than its level says.

    Decided from the predictions alone: no label is looked at. What counts is about how many label events they leave
    open, ``(sum_i E |e_i|^2)^2 / sum_i E |e_i|^4`` with residuals e under calibration: n for uncertain predictions, few
    for confident ones and for rare events. Laws given the predictions take 20 events (all pairs), 30 (blocks) or 500
    (the chi-square law of "cme"), those of the residuals at hand more. "exact", "features" and "cme" hold for any
    number by default. Blocks also want a pair of samples that agrees, which thirty pairs of a hundred classes seldom
    have.
    """


def warn(message: str, category: type[Warning]) -> None:
    """``warnings.warn`` for the first caller outside kcalib; or for `record_warnings`."""
    if (records := _records.get()) is not None:
        records.append((message, category))
        return
    level, frame = 2, sys._getframe(1)
    # `functools` calls the functions that are registered for a type, `contextlib` those that are a context.
    skipped_modules = ("kcalib", "functools", "contextlib")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in skipped_modules:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


@contextmanager
def record_warnings() -> Iterator[WarningRecords]:
    """Warnings of a call whose user is elsewhere, in the order in which they come."""
    records: WarningRecords = []
    token = _records.set(records)
    try:
        yield records
    finally:
        _records.reset(token)
