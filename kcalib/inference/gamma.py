"""The test of all pairs by a gamma law; `blocks` has one for means of blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from kcalib._backend.options import check_choice
from kcalib.inference import events
from kcalib.inference.conditional_spectrum import conditional
from kcalib.inference.eigenvalues import full_spectrum, leading_spectrum
from kcalib.inference.quadratic import REFERENCES, AllPairs, NullLaw, degenerate
from kcalib.inference.spectrum import N_EIGENVALUES, STORED_UP_TO
from kcalib.inference.task import Task
from kcalib.laws import PearsonCurve
from kcalib.laws._law import log_sf_chi2


@dataclass(frozen=True)
class Gamma(AllPairs):
    r"""The gamma law with the first moments of the statistic.

    Under calibration n SKCE over all pairs has about the law of :math:`\sum_i l_i (Z_i^2 - 1)` (see `Spectrum`); a
    gamma law, moved to mean 0, takes its place.

    Parameters
    ----------
    reference : {"conditional", "residuals"}
        Whose law it is. "conditional": with its variance given the predictions, which is exact for labels and counts,
        and its third cumulant :math:`8 \sum_i l_i^3` from a few products with the matrix of these l. No label counts.
        "residuals", as published, with two moments of the residuals at hand: the mean of n times the biased SKCE, the
        trace of H over n, and the variance :math:`2 \sum_{i \ne j} H_{ij}^2 / (n - 1)^2`. Where errors are rare it has
        seen too few of them, and rejects calibrated models far too often.

    Warns
    -----
    AntiConservativeWarning
        If the predictions leave too few events open for the law, see `kcalib.AntiConservativeWarning`.

    Notes
    -----
    Assumes that so many events decide the statistic that only their covariances count. Time: a few passes over the
    pairs, O(n^2 m) each (for binary problems with exponential and Matern kernels O(n log n)), where predictions are
    nearly certain, in float32, and for rows that sum to 1 but about, one of them with m (m + 1) / 2 features a sample
    for up to 16 classes; memory O(n m). Nothing is random.
    The gamma approximation of [1]_.

    References
    ----------
    .. [1] A. Gretton, K. Fukumizu, Z. Harchaoui, B. K. Sriperumbudur. A fast, consistent kernel
       two-sample test. NeurIPS 2009.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=200)
    >>> y = rng.uniform(size=200) < p
    >>> kcalib.calibration_test(y, p, method=kcalib.methods.Gamma()).null_law  # doctest: +ELLIPSIS
    'gamma law of standard deviation ... and skewness ..., given the predictions'
    """

    reference: str = "conditional"

    name: ClassVar[str] = "gamma"
    is_random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_choice("reference", self.reference, REFERENCES)

    @property
    def fewest_events(self) -> int:
        return events.ALL_PAIRS if self.reference == "conditional" else events.ALL_PAIRS_OF_RESIDUALS

    def law(self, task: Task, seed: int) -> NullLaw:
        statistic, total = task.n * task.estimate, float(task.moments.total)
        if self.reference == "residuals":
            mean, variance, of = float(task.moments.trace) / task.n, task.null_variance, "of the residuals"
            if variance == 0:
                return degenerate(total)
            skewness = 2 * math.sqrt(variance) / mean
        else:
            implicit, of = conditional(task)
            variance = 2 * implicit.squares
            if variance == 0:
                return degenerate(total)
            if implicit.size <= STORED_UP_TO:
                spectrum = full_spectrum(implicit)
            else:
                spectrum = leading_spectrum(implicit, N_EIGENVALUES, lambda spectrum: True)
            skewness = max(0.0, spectrum.skewness)
        description = f"gamma law of standard deviation {math.sqrt(variance):.4g} and skewness {skewness:.4g}, {of}"
        return NullLaw(log_gamma_tail(statistic, variance, skewness), description)


def log_gamma_tail(x: float, variance: float, skewness: float) -> float:
    """log P(X > x), X of a gamma law moved to mean 0; of skewness 0 the normal law."""
    if skewness < 1:
        return float(PearsonCurve(0.0, variance, skewness, 1.5 * skewness**2).logsf(x))
    # Of few events skewness has no bound: by the tail of twice the gamma variable, of shape k, a chi-square one.
    shape = 4 / skewness**2
    value = 2 * (shape + math.sqrt(shape) / math.sqrt(variance) * x)
    return log_sf_chi2(value, 2 * shape) if value > 0 else 0.0
