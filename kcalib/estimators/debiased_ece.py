"""Compute binned calibration errors without the bias due to noise in the labels."""

from __future__ import annotations

from typing import Any

from kcalib._backend.options import check_choice
from kcalib._input.labels import prepare
from kcalib.estimators.binning import N_BINS
from kcalib.estimators.ece import ECEResult, result_of_columns
from kcalib.estimators.with_result import with_result
from kcalib.lenses import Lens

NOTIONS = ("top_label", "class_wise")


@with_result
def debiased_ece(
    needs_result: bool,
    y_true: Any,
    y_pred: Any,
    *,
    notion: str = "top_label",
    n_bins: int | str = N_BINS,
    binning: str = "equal_mass",
    min_bin_size: int | None = None,
    class_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    threads: int | None = None,
) -> float | ECEResult:
    r"""Compute the binned "l2" calibration error without the bias due to noise in the labels.

    For a bin of :math:`n_b` samples, :math:`\mathrm{acc}(1 - \mathrm{acc}) / (n_b - 1)` is subtracted from the squared
    gap. The mean is then an unbiased estimate of the squared binned error. The value is its root, 0 if it is negative.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        As in `kcalib.skce`.
    notion : {"top_label", "class_wise"}
        Error of the confidence, or of the probability of each class (the marginal calibration error).
    n_bins, binning, min_bin_size, lens, threads
        As in `kcalib.top_label_ece`.
    class_weight : array_like, shape (m,), optional
        As in `kcalib.class_wise_ece`; "class_wise" only.

    Returns
    -------
    float
        The error, in [0, 1]. ``debiased_ece.result`` returns an `ECEResult` with the unbiased square, too.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As `kcalib.class_wise_ece`. Also if `notion` is unknown; if a bin holds a single sample, whose noise cannot be
        estimated.

    References
    ----------
    .. [1] A. Kumar, P. Liang, T. Ma. Verified uncertainty calibration. NeurIPS 2019, definition 4.1.

    Examples
    --------
    One bin, confidence 0.9 and accuracy 3/4: the square 0.15^2 is less than the noise (3/4) (1/4) / 3 = 0.0625.

    >>> import kcalib
    >>> result = kcalib.debiased_ece.result([1, 1, 1, 0], [0.9, 0.9, 0.9, 0.9], n_bins=1)
    >>> result.value, round(result.square, 6)
    (0.0, -0.04)
    """
    check_choice("notion", notion, NOTIONS)
    if notion == "top_label" and class_weight is not None:
        raise ValueError("`class_weight` is given, but notion='top_label' has no such option; leave it out")
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, lens=lens, threads=threads)
    result = result_of_columns(notion, data, "l2", binning, n_bins, min_bin_size, class_weight, threads, debiased=True)
    return result if needs_result else result.value
