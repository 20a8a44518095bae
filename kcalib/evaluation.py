"""The usual numbers about one classifier in one call; what `kcalib evaluate` prints."""

from __future__ import annotations

import math
from typing import Any

from kcalib._inputs import Classification, prepare
from kcalib._options import check_integer
from kcalib.estimators.ece import MAX_BINS, reliability_bins
from kcalib.estimators.scores import accuracy_of, brier_score_of, log_loss_of, top_label, weighted_mean
from kcalib.estimators.skce import PairOptions, estimate
from kcalib.inference.calibration_test import run
from kcalib.kernels import Kernel
from kcalib.lenses import Lens
from kcalib.results import Evaluation

__all__ = ["evaluate"]


def evaluate(
    y_true: Any,
    y_pred: Any,
    *,
    alpha: float = 0.05,
    kernel: Kernel | None = None,
    estimator: str = "unbiased",
    method: str = "auto",
    block_size: int | None = None,
    n_bins: int = 15,
    seed: int | None = 0,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    threads: int | None = None,
) -> Evaluation:
    """Accuracy, proper scores, ECE, SKCE and a test of calibration, with a verdict.

    Parameters
    ----------
    y_true, y_pred, kernel, estimator, classes, from_logits, threads
        As in `kcalib.skce`.
    alpha : float
        Level of the verdict, in (0, 1): a calibrated model is called miscalibrated with
        about this probability.
    method : str
        The test, as in `kcalib.calibration_test`.
    block_size : int, optional
        Samples in a block of the test, if `method` is "block", and of the SKCE estimate, if `estimator` is.
    n_bins : int
        Bins of the top-label ECE.
    seed : int, optional
        Seed of what the test draws, and of the permutation before a test or an estimate forms blocks; None keeps
        the order.
    lens : Lens, optional
        The notion of calibration, see `kcalib.lenses`; default the whole vector. All numbers are those
        of the induced problem: accuracy, too, is how often its most probable class is right. Through
        `kcalib.lenses.TopLabel`, say, it is how often the confidence is on the right side of one half.

    Returns
    -------
    Evaluation
        With the fields of `kcalib.results.Evaluation`.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce` and `kcalib.calibration_test`, and if `alpha` is outside (0, 1).

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=500)
    >>> kcalib.evaluate(rng.uniform(size=500) < p, p).verdict
    'no evidence against calibration'
    """
    if not (isinstance(alpha, (int, float)) and 0 < alpha < 1):
        raise ValueError(f"`alpha` is {alpha!r}, expected a number between 0 and 1")
    n_bins = check_integer("n_bins", n_bins, 1, MAX_BINS)
    return evaluation_of(
        prepare(y_true, y_pred, classes=classes, from_logits=from_logits, lens=lens, threads=threads),
        alpha=alpha,
        kernel=kernel,
        estimator=estimator,
        method=method,
        block_size=block_size,
        n_bins=n_bins,
        seed=seed,
        threads=threads,
    )


def evaluation_of(
    data: Classification,
    *,
    alpha: float,
    kernel: Kernel | None,
    estimator: str,
    method: str,
    block_size: int | None,
    n_bins: int,
    seed: int | None,
    threads: int | None,
) -> Evaluation:
    """`evaluate` of checked data."""
    options = PairOptions(kernel, threads=threads)
    if block_size is not None and "block" not in (method, estimator):
        raise ValueError(f"`block_size` is {block_size}, but neither `method` nor `estimator` is 'block'")
    sizes = {"block_size": block_size} if method == "block" and block_size is not None else {}
    test = run(data, options, method=method, seed=seed, **sizes)
    # Blocks of the estimate are formed in the same order as those of the test.
    ordered = data.permuted(seed) if seed is not None and estimator in ("block", "linear") else data
    skce = estimate(ordered, options, estimator, block_size if estimator == "block" else None)
    accuracy = accuracy_of(data)
    confidence = weighted_mean(data, top_label(data)[0])
    miscalibrated = test.pvalue < alpha
    return Evaluation(
        n_samples=data.n,
        n_classes=data.m,
        lens=str(data.lens),
        accuracy=accuracy,
        mean_confidence=confidence,
        log_loss=log_loss_of(data),
        brier_score=brier_score_of(data, data.m == 2),
        top_label_ece=reliability_bins(data, n_bins).ece,
        skce=skce,
        test=test,
        alpha=float(alpha),
        miscalibrated=miscalibrated,
        verdict=_verdict(data.n, miscalibrated, accuracy, confidence),
    )


def _verdict(n: int, miscalibrated: bool, accuracy: float, confidence: float) -> str:
    if not miscalibrated:
        return "no evidence against calibration"
    # A direction is named if confidence and accuracy differ by more than two standard errors.
    error = math.sqrt(accuracy * (1 - accuracy) / n)
    gap = confidence - accuracy
    direction = ""
    if abs(gap) > 2 * error:
        direction = ", over-confident" if gap > 0 else ", under-confident"
    return f"miscalibrated{direction}"
