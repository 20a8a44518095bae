"""The test of the SKCE over all pairs by a gamma distribution; `blocks` has one for means of blocks."""

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
    r"""Test the SKCE by the gamma distribution with the first moments of the statistic.

    For a calibrated model n SKCE over all pairs is distributed approximately as :math:`\sum_i l_i (Z_i^2 - 1)` (see
    `Spectrum`); a gamma distribution, shifted to mean 0, approximates it.

    Parameters
    ----------
    reference : {"conditional", "residuals"}
        "conditional": the variance given the predictions, exact for labels and counts, and the third cumulant :math:`8
        \sum_i l_i^3` from a few products with the matrix of these l; labels are not used. "residuals", as published:
        two moments of the observed residuals, the mean of n times the biased SKCE, which is the trace of H over n, and
        the variance :math:`2 \sum_{i \ne j} H_{ij}^2 / (n - 1)^2`. Where errors are rare it rejects calibrated models
        far too often.

    Warns
    -----
    AntiConservativeWarning
        If the predictions leave too few events uncertain, see `kcalib.AntiConservativeWarning`.

    Notes
    -----
    Assumes that so many events determine the statistic that only their covariances matter. Time: a few passes over the
    pairs, O(n^2 m) each (O(n log n) for binary problems with exponential and Matern kernels). For predictions that are
    nearly certain, in float32, or whose rows sum to 1 only approximately, one pass uses m (m + 1) / 2 features per
    sample for up to 16 classes. Memory O(n m). Deterministic. The gamma approximation is that of [1]_.

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
    """Return log P(X > x) for X of a gamma distribution shifted to mean 0; normal if the skewness is 0."""
    if skewness < 1:
        return float(PearsonCurve(0.0, variance, skewness, 1.5 * skewness**2).logsf(x))
    # With few events the skewness is unbounded: use the tail of twice the gamma variable, of shape k, a chi-square one.
    shape = 4 / skewness**2
    value = 2 * (shape + math.sqrt(shape) / math.sqrt(variance) * x)
    return log_sf_chi2(value, 2 * shape) if value > 0 else 0.0
