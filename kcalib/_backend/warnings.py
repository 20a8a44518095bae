"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

WarningRecords = list[tuple[str, type[Warning]]]
_records: ContextVar[WarningRecords | None] = ContextVar("_records", default=None)


class IndefiniteKernelWarning(UserWarning):
    """The kernel is not known to be positive definite: estimates may be misleading."""


class LogitsWarning(UserWarning):
    """Predictions are passed as logits, but their rows are probabilities."""


class GradientWarning(UserWarning):
    """A tensor requires gradients, but results are plain numbers."""


class TemperatureBoundWarning(UserWarning):
    """The best temperature lies beyond a bound, or the samples do not determine it."""


class AntiConservativeWarning(UserWarning):
    """A test may reject calibrated models more often than its level.

    The decision depends on the predictions only. It counts the label events that they leave open, about ``(sum_i E
    |e_i|^2)^2 / sum_i E |e_i|^4`` with residuals e under calibration: n for uncertain predictions, few for confident
    ones and rare events. Null distributions given the predictions need 20 events (all pairs), 30 (blocks) or 500 (the
    chi-square distribution of "cme"), those from the observed residuals need more. "exact", "features" and "cme" are
    valid for any number by default. Blocks also need a pair of samples with equal labels, which thirty pairs of a
    hundred classes seldom contain.
    """


def warn(message: str, category: type[Warning]) -> None:
    """Warn the first caller outside kcalib, or record the warning for `record_warnings`."""
    if (records := _records.get()) is not None:
        records.append((message, category))
        return
    level, frame = 2, sys._getframe(1)
    # Skip frames of singledispatch (`functools`) and of context managers (`contextlib`).
    skipped_modules = ("kcalib", "functools", "contextlib")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in skipped_modules:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


@contextmanager
def record_warnings() -> Iterator[WarningRecords]:
    """Record the warnings of a call whose user is elsewhere, in order."""
    records: WarningRecords = []
    token = _records.set(records)
    try:
        yield records
    finally:
        _records.reset(token)
