"""Logits: softmax, the exact loss of each label, and a warning if they are probabilities."""

from __future__ import annotations

import math
from typing import Any

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.warnings import LogitsWarning, warn
from kcalib._input.checks import is_column, reject

LOOKED_AT = 64  # rows that are checked before all rows
SUM_TOLERANCE = 1e-3  # for sums of probabilities, also in half precision


def softmax(xp: Any, logits: Array, name: str) -> Array:
    """Return the softmax of the rows, or the sigmoid of a single column. A logit may be -inf (probability 0)."""
    reject(
        logits,
        xp.isnan(logits) | (logits == xp.inf),
        lambda at, x: f"`{name}{at}` is {x}, expected a logit below infinity; drop or repair such rows first",
    )
    if is_column(logits):
        small = xp.exp(-xp.abs(logits))
        return xp.where(logits < 0, small / (1 + small), 1 / (1 + small))
    highest = xp.max(logits, axis=1, keepdims=True)
    reject(
        highest[:, 0],
        highest[:, 0] == -xp.inf,
        lambda at, x: f"`{name}{at}` has only logits of -inf, expected at least one finite logit in a row",
    )
    powers = xp.exp(logits - highest)
    return powers / xp.sum(powers, axis=1, keepdims=True)


def losses_of_logits(logits: Array, labels: Array, probabilities: Array, epsilon: float) -> Array:
    """Return -log softmax of each label: gap to the highest logit minus log of the highest probability."""
    xp = arrays.namespace(probabilities)
    logits = xp.astype(logits, probabilities.dtype, copy=False)
    if is_column(logits):
        second = xp.reshape(logits, (-1,))
        logits = xp.stack((xp.zeros_like(second), second), axis=1)
    label_logits = xp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    losses = (xp.max(logits, axis=1) - label_logits) - xp.log(xp.max(probabilities, axis=1))
    # Replace infinite losses, like those of probability 0, by the largest finite loss.
    return xp.where(xp.isfinite(losses), losses, xp.full_like(losses, -math.log(epsilon)))


def warn_of_probabilities(xp: Any, logits: Array, name: str, option: str) -> None:
    """Warn if logits are probabilities."""
    if is_column(logits):
        return
    first = logits[: min(LOOKED_AT, int(logits.shape[0])), :]
    if not (_are_probabilities(xp, first) and _are_probabilities(xp, logits)):
        return
    warn(
        f"`{name}` is passed with {option}, but its rows are probabilities already: no entry is negative, and all rows "
        f"sum to 1; leave out {option}",
        LogitsWarning,
    )


def _are_probabilities(xp: Any, rows: Array) -> bool:
    sums = xp.sum(rows, axis=1)
    return float(xp.min(rows)) >= 0 and float(xp.max(xp.abs(sums - 1))) <= SUM_TOLERANCE
