"""Proper scoring rules of predicted class probabilities: Brier score and log loss."""

from __future__ import annotations

from typing import Any

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.threads import threads_for
from kcalib._input.labels import Classification, prepare
from kcalib._packing import points_and_residuals
from kcalib.lenses import KEPT, Lens

__all__ = ["brier_score", "log_loss"]


@on_their_gpu
def brier_score(
    y_true: Any,
    y_pred: Any,
    *,
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    scale_by_half: bool | str = "auto",
) -> float:
    """Compute the Brier score: the mean squared distance between prediction and one-hot label.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        As in `kcalib.skce`.
    sample_weight : array_like, shape (n,), optional
        Non-negative weights.
    lens : Lens, optional
        Notion of calibration, see `kcalib.lenses`. Default: the whole vector of probabilities.
    scale_by_half : bool or "auto"
        Whether to halve the sum over classes. "auto", as in scikit-learn, halves it for binary problems only, where
        the score is then the mean of (p - y)^2, in [0, 1]; otherwise it is in [0, 2].

    Returns
    -------
    float
        The score; lower is better. Time and memory O(n m).

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce` for its arguments, and if `scale_by_half` is unknown.

    Examples
    --------
    >>> import kcalib
    >>> round(kcalib.brier_score([0, 1], [0.2, 0.6]), 6)
    0.1
    """
    checks = {"classes": classes, "from_logits": from_logits, "lens": lens, "sparse_lens": KEPT}
    data = prepare(y_true, y_pred, sample_weight=sample_weight, **checks)
    return brier_score_of(data, is_halved(scale_by_half, data.m))


@on_their_gpu
def log_loss(
    y_true: Any,
    y_pred: Any,
    *,
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
) -> float:
    """Compute the log loss: the mean negative log-likelihood of the labels, in nats.

    To keep it finite, probabilities below the machine epsilon of their dtype are raised to it, as in scikit-learn. For
    logits the log loss is exact, even if their softmax underflows; only a logit of -inf is replaced, by a loss of 708.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        As in `kcalib.skce`.
    sample_weight : array_like, shape (n,), optional
        Non-negative weights.
    lens : Lens, optional
        Notion of calibration, see `kcalib.lenses`. Default: the whole vector of probabilities.

    Returns
    -------
    float
        The loss; lower is better. Time and memory O(n m).

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce` for its arguments.

    Examples
    --------
    >>> import kcalib
    >>> round(kcalib.log_loss([0, 1], [[0.5, 0.5], [0.5, 0.5]]), 6)
    0.693147
    """
    checks = {"classes": classes, "from_logits": from_logits, "lens": lens, "sparse_lens": KEPT}
    data = prepare(y_true, y_pred, sample_weight=sample_weight, **checks)
    return log_loss_of(data)


def is_halved(scale_by_half: bool | str, m: int) -> bool:
    """Return whether the Brier score of `m` classes is halved."""
    if not (isinstance(scale_by_half, bool) or (isinstance(scale_by_half, str) and scale_by_half == "auto")):
        raise ValueError(f"`scale_by_half` is {scale_by_half!r}, expected True, False or 'auto'")
    return m == 2 if scale_by_half == "auto" else bool(scale_by_half)


def brier_score_of(data: Classification, scale_by_half: bool) -> float:
    score = weighted_mean(data, square_residuals(data))
    return score / 2 if scale_by_half else score


def log_loss_of(data: Classification) -> float:
    return weighted_mean(data, log_losses(data))


def square_residuals(data: Classification) -> Array:
    """Return |e_i|^2, shape (n,)."""
    _, e = points_and_residuals(data)
    return data.xp.sum(e * e, axis=1)


def log_losses(data: Classification) -> Array:
    """Return -log of the probability of each label, shape (n,)."""
    if data.losses is not None:
        return data.losses
    xp = data.xp
    p = xp.take_along_axis(data.probabilities, data.labels[:, None], axis=1)[:, 0]
    low = xp.full_like(p, data.input_epsilon)
    return -xp.log(xp.where(p < low, low, xp.where(p > 1, xp.ones_like(p), p)))


def accuracy_of(data: Classification) -> float:
    return weighted_mean(data, top_label(data)[1])


def top_label(data: Classification, threads: Any = None) -> tuple[Array, Array]:
    """Return confidence (probability of the predicted class) and correctness (0 or 1), both of shape (n,)."""
    xp, p = data.xp, data.probabilities
    if arrays.is_host(p) and not data.lens.has_confidence:
        return _native.top_labels(p, data.labels, threads_for(p.size, threads))
    predicted = data.predicted
    confidence = xp.take_along_axis(p, predicted[:, None], axis=1)[:, 0]
    return confidence, xp.astype(predicted == data.labels, p.dtype)


def weighted_mean(data: Classification, values: Array) -> float:
    xp = arrays.namespace(values)
    if data.sample_weight is None:
        return float(xp.mean(values))
    return float(xp.sum(data.sample_weight * values) / xp.sum(data.sample_weight))
