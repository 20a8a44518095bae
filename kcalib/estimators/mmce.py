"""Compute the maximum mean calibration error (MMCE) of the top-label confidence, a kernel statistic on a line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kcalib import _packing
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice
from kcalib._input.labels import Classification, prepare
from kcalib._pairs import statistics
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.reductions import Moments, sweep_one
from kcalib.estimators.scores import top_label
from kcalib.estimators.with_result import with_result
from kcalib.kernels import Exponential, Kernel
from kcalib.lenses import Lens
from kcalib.report.summary import Summarized

__all__ = ["MMCEResult", "mmce"]

ESTIMATORS = ("biased", "unbiased", "weighted")
WIDTH = 0.4  # bandwidth of the published kernel


@dataclass(frozen=True)
class MMCEResult(Summarized):
    """A maximum mean calibration error (MMCE)."""

    value: float  #: root of the square, 0 if that is negative
    square: float  #: the estimate; "unbiased" may be negative
    estimator: str  #: "biased", "unbiased" or "weighted"
    kernel: str  #: on confidences, with its bandwidths as numbers
    bandwidth: float | None  #: bandwidth of the kernel; None if it has none or several
    n_samples: int  #: number of samples
    n_classes: int  #: number of classes, induced ones with a lens
    lens: str  #: notion of calibration, one of `kcalib.lenses`
    confidence_from: str  #: as in `ECEResult`
    backend: str  #: backend that computed it
    backend_reason: str  #: why this backend was chosen
    threads: int | None  #: largest number of threads used; None if the array library decides

    def __float__(self) -> float:
        return self.value


@with_result
def mmce(
    needs_result: bool,
    y_true: Any,
    y_pred: Any,
    *,
    kernel: Kernel | None = None,
    estimator: str = "biased",
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    threads: int | None = None,
) -> float | MMCEResult:
    r"""Compute the maximum mean calibration error (MMCE) of the top-label confidence.

    With confidences :math:`c_i`, and :math:`a_i = 1` if the predicted class is right, else 0,

    .. math:: \mathrm{MMCE}^2 = \frac{1}{n^2} \sum_{i, j} (a_i - c_i)(a_j - c_j)\, k(c_i, c_j) .

    The first of several most probable classes is the predicted one.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        As in `kcalib.skce`.
    kernel : Kernel, optional
        Kernel on confidences. Default: ``kcalib.kernels.Exponential(bandwidth=0.4)``, as published.
    estimator : {"biased", "unbiased", "weighted"}
        "biased" is the sum above; "unbiased" omits the pairs of a sample with itself and divides by n (n - 1).
        "weighted" is MMCE_w of the paper, which corrects for the imbalance of right and wrong predictions: the terms of
        right samples are divided by the number of right samples, those of wrong samples by the number of wrong ones.
    sample_weight : array_like, shape (n,), optional
        Non-negative weights, for "biased" and "unbiased".
    lens, threads
        As in `kcalib.top_label_ece`.

    Returns
    -------
    float
        The root of the estimate, 0 if that is negative. ``mmce.result`` returns an `MMCEResult` with the square, too.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce`. Also if `estimator` is unknown; if "unbiased" has fewer than 2 samples of positive weight; if
        "weighted" is given weights.

    Notes
    -----
    Kernels made of `kcalib.kernels.Exponential` and `kcalib.kernels.Matern` take time O(n log n) from 512 samples on,
    others O(n^2). Memory O(n).

    References
    ----------
    .. [1] A. Kumar, S. Sarawagi, U. Jain. Trainable calibration measures for neural networks from kernel mean
       embeddings. ICML 2018.

    Examples
    --------
    One sample, confidence 0.8 and wrong: the root of 0.8^2.

    >>> import kcalib
    >>> kcalib.mmce([1], [0.2])
    0.8
    """
    data = prepare(
        y_true,
        y_pred,
        classes=classes,
        from_logits=from_logits,
        lens=lens,
        sample_weight=sample_weight,
        threads=threads,
    )
    check_choice("estimator", estimator, ESTIMATORS)
    _check_samples(data, estimator)
    confidence, correct = top_label(data, threads)
    residuals = correct - confidence
    if estimator == "weighted":
        residuals = residuals / _group_sizes(data, correct)
    elif data.sample_weight is not None:
        residuals = residuals * data.sample_weight
    kernel = Exponential(bandwidth=WIDTH) if kernel is None else kernel
    packed = _packing.pack_points(confidence[:, None], kernel, "float64", threads=threads)
    problem = PairProblem(Side(packed.problem.left.points, residuals[:, None]), None, packed.problem.kernel)
    backend = backend_for(problem, threads=threads)
    moments = sweep_one(backend, Moments(rows=False, trace=estimator != "unbiased"))
    if estimator == "weighted":
        square = float(moments.total + moments.trace)
    else:
        average = statistics.unbiased if estimator == "unbiased" else statistics.biased
        square = average(moments, data.n, data.sample_weight)
    value = math.sqrt(max(0.0, square))
    if not needs_result:
        return value
    return MMCEResult(
        value=value,
        square=square,
        estimator=estimator,
        kernel=str(packed.kernel),
        bandwidth=packed.bandwidth,
        n_samples=data.n,
        n_classes=data.m,
        lens=str(data.lens),
        confidence_from=data.confidence_from,
        backend=backend.name,
        backend_reason=backend.reason,
        threads=backend.threads,
    )


def _check_samples(data: Classification, estimator: str) -> None:
    weight = data.sample_weight
    if estimator == "weighted" and weight is not None:
        raise ValueError("`sample_weight` has no meaning for estimator='weighted'; use 'biased' or 'unbiased'")
    if estimator == "unbiased":
        count = data.n if weight is None else int(data.xp.sum(data.xp.astype(weight > 0, data.xp.int64)))
        if count < 2:
            raise ValueError(f"estimator='unbiased' needs at least 2 samples of positive weight, there are {count}")


def _group_sizes(data: Classification, correct: Array) -> Array:
    """Return, for each sample, the number of right samples if it is right, else that of wrong samples."""
    right = float(data.xp.sum(correct))
    return correct * right + (1 - correct) * (data.n - right)
