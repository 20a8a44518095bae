"""Tests by the limit distribution of the statistic, a weighted sum of chi-square variables, or by its moments.

The weights are eigenvalues (`eigenvalues`) of a matrix that is not stored: conditional on the predictions
(`conditional_spectrum`), or of H of the observed residuals. `kcalib.laws` has the distributions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kcalib._backend.memory import check_max_memory, check_memory
from kcalib._backend.options import check_choice, check_integer
from kcalib.inference import events
from kcalib.inference.conditional_spectrum import conditional
from kcalib.inference.eigenvalues import Eigenvalues, ImplicitMatrix, full_spectrum, leading_spectrum, of_residuals
from kcalib.inference.quadratic import REFERENCES, AllPairs, NullLaw, degenerate
from kcalib.inference.task import Task
from kcalib.laws import ChiSquareMixture, PearsonCurve

N_EIGENVALUES = 20
STORED_UP_TO = 256  # rows of a matrix that is stored by default, with all its eigenvalues
# Changes of log p by the last product with H: with as many random vectors as columns, or with fewer new vectors than
# at the start. The error is usually smaller.
SETTLED, SETTLED_NARROW = 0.01, 0.002
EXPECTED = 0.001  # largest expected change by another product


class Settled:
    """Whether log p has converged, by the change of the last product or the expected change of the next."""

    def __init__(self, log_pvalue: Callable[[Eigenvalues], float]) -> None:
        self._log_pvalue = log_pvalue
        self.value: float | None = None  # the last value

    def __call__(self, eigenvalues: Eigenvalues) -> bool:
        before, self.value = self.value, self._log_pvalue(eigenvalues)
        if not eigenvalues.has_largest:
            return False
        if before is not None and abs(self.value - before) <= (
            SETTLED if eigenvalues.beyond is None else SETTLED_NARROW
        ):
            return True
        return eigenvalues.beyond is not None and abs(self._log_pvalue(eigenvalues.beyond) - self.value) <= EXPECTED


class ByEigenvalues(AllPairs):
    """A null distribution determined by eigenvalues of H: all of them, or leading ones and power sums of the rest."""

    # Fields that the methods share.
    n_eigenvalues: int | str | None
    max_memory: float | None
    reference: str

    is_random: ClassVar[bool] = False
    description: ClassVar[str]  # of the distribution, before the number of eigenvalues

    def log_pvalue(self, task: Task, eigenvalues: Eigenvalues) -> float:
        """Return the logarithm of the p-value of the statistic."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        check_choice("reference", self.reference, REFERENCES)
        if self.max_memory is not None:
            check_max_memory(self.max_memory)
        if isinstance(self.n_eigenvalues, str):
            check_choice("n_eigenvalues", self.n_eigenvalues, ("all",))
        elif self.n_eigenvalues is not None:
            if self.max_memory is not None:
                raise ValueError(
                    f"`max_memory` is for all eigenvalues, but `n_eigenvalues` is {self.n_eigenvalues}; leave one out"
                )
            check_integer("n_eigenvalues", self.n_eigenvalues, 1, hint=", or 'all'")

    @property
    def fewest_events(self) -> int:
        return events.ALL_PAIRS if self.reference == "conditional" else events.ALL_PAIRS_OF_RESIDUALS

    def law(self, task: Task, seed: int) -> NullLaw:
        n = task.n
        if not isinstance(self.n_eigenvalues, str | None):
            check_integer("n_eigenvalues", self.n_eigenvalues, 1, n, ", or 'all'")
        if self.reference == "conditional":
            implicit, of = conditional(task)
        else:
            implicit, of = of_residuals(task.backend, task.moments, task.n), "of the residuals"
        if implicit.squares == 0:
            return degenerate(float(task.moments.total))
        count = self._count(implicit.size)
        if count is None:
            remedy, array = "pass a number of eigenvalues", task.packed.problem.left.points
            check_memory(16 * implicit.size**2, self.max_memory, f"all eigenvalues of {n} samples", remedy, array)
            eigenvalues = full_spectrum(implicit)
            description = f"{self.description} all {implicit.size} eigenvalues {of}"
            return NullLaw(self.log_pvalue(task, eigenvalues), description, n_eigenvalues=implicit.size)
        settled = Settled(lambda eigenvalues: self.log_pvalue(task, eigenvalues))
        eigenvalues = leading_spectrum(implicit, count, settled)
        share = f"{eigenvalues.remainder_share:.2g} of the variance from the rest"
        description = f"{self.description} {len(eigenvalues.leading)} leading eigenvalues {of}, {share}"
        last = self.log_pvalue(task, eigenvalues) if settled.value is None else settled.value
        return NullLaw(last, description, n_eigenvalues=len(eigenvalues.leading))

    def _count(self, size: int) -> int | None:
        """Return the number of leading eigenvalues of a matrix of that size, None for all."""
        if self.n_eigenvalues is None:
            return None if size <= STORED_UP_TO else N_EIGENVALUES
        return None if isinstance(self.n_eigenvalues, str) else int(self.n_eigenvalues)


@dataclass(frozen=True)
class Spectrum(ByEigenvalues):
    r"""Test the SKCE by its limit distribution, a sum of chi-square variables weighted by eigenvalues.

    For a calibrated model and many samples, n SKCE over all pairs is distributed approximately as :math:`\sum_i l_i
    (Z_i^2 - 1)`, Z standard normal [1]_ (remark B.2), [2]_. Given the predictions, l are the eigenvalues of the matrix
    with the blocks :math:`L_i^T k_{ij} M L_j / (n - 1)`, i != j, for the covariances :math:`V_i = L_i L_i^T` of the
    residuals: their sum of squares is exactly half of the variance of the statistic. For distributions l are the
    eigenvalues of H with targets drawn from the predictions. The published form takes H of the observed residuals;
    where errors are rare these may contain none, and calibrated models are rejected.

    Parameters
    ----------
    n_eigenvalues : int or "all", optional
        Largest number of leading eigenvalues, 1..n, found by a block Krylov method in float32. One chi-square variable
        stands for the other eigenvalues, with their variance (exact) and third cumulant (estimated). Products with H
        are added until the p-value changes by less than 1 %, usually two. "all": the eigenvalues of a stored matrix.
        Default: all up to 256 rows, else 20.
    max_memory : float, optional
        Bytes that all eigenvalues may take; not with a number `n_eigenvalues`. Default: available memory.
    reference : {"conditional", "residuals"}
        Conditional on the predictions, or as published, with the observed residuals.

    Warns
    -----
    AntiConservativeWarning
        If the predictions leave too few events uncertain, see `kcalib.AntiConservativeWarning`.

    Notes
    -----
    Time: 3 to 12 passes over the pairs, O(n^2 m) each with 8 to 20 products, usually 3 with m + 4 products (O(n log n)
    for binary problems with exponential and Matern kernels); memory O(16 n m). All eigenvalues, which are n m for m > 2
    classes given the predictions and n otherwise, take time cubic in their number and 16 bytes times its square. The
    test is deterministic: targets are drawn with a fixed seed, which `null_law` names. With few rare events the far
    tail is not accurate; use "exact".

    References
    ----------
    .. [1] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests beyond classification.
       ICLR 2021.
    .. [2] A. Gretton, K. Fukumizu, Z. Harchaoui, B. K. Sriperumbudur. A fast, consistent kernel
       two-sample test. NeurIPS 2009.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=1000)
    >>> y = rng.uniform(size=1000) < p
    >>> result = kcalib.calibration_test(y, p, method=kcalib.methods.Spectrum(n_eigenvalues=50))
    >>> result.pvalue > 0.05, result.n_eigenvalues <= 50
    (True, True)
    """

    n_eigenvalues: int | str | None = None
    max_memory: float | None = None
    reference: str = "conditional"

    name: ClassVar[str] = "spectrum"
    description: ClassVar[str] = "chi-square variables weighted by"

    def log_pvalue(self, task: Task, eigenvalues: Eigenvalues) -> float:
        law = eigenvalues.law()
        return float(law.logsf(task.n * task.estimate + law.mean))


def limit_law(implicit: ImplicitMatrix, statistic: float, copies: int = 1) -> ChiSquareMixture:
    """Return the limit distribution of n SKCE plus its mean; with `copies`, of a mean of that many statistics."""
    if implicit.size <= STORED_UP_TO:
        return _of_mean(full_spectrum(implicit).law(), copies)

    def log_pvalue(eigenvalues: Eigenvalues) -> float:
        law = _of_mean(eigenvalues.law(), copies)
        return float(law.logsf(statistic + law.mean))

    return _of_mean(leading_spectrum(implicit, N_EIGENVALUES, Settled(log_pvalue)).law(), copies)


def _of_mean(law: ChiSquareMixture, copies: int) -> ChiSquareMixture:
    if copies == 1:
        return law
    freedom = np.multiply(law.degrees_of_freedom, copies)
    weights = np.divide(law.weights, copies)
    return ChiSquareMixture(weights, degrees_of_freedom=freedom, normal_variance=law.normal_variance / copies)


@dataclass(frozen=True)
class Pearson(ByEigenvalues):
    r"""Test the SKCE by the Pearson curve with the first four moments of the limit distribution.

    The moments of :math:`\sum_i l_i (Z_i^2 - 1)` (see `Spectrum`) are power sums of the eigenvalues l; the p-value is
    the tail of the curve of Pearson's system with these moments.

    Parameters
    ----------
    n_eigenvalues : int or "all", optional
        Largest number of leading eigenvalues, 1..n, by default 20, or "all", the default up to 256; as in `Spectrum`.
    max_memory : float, optional
        Bytes that all eigenvalues may take; not with a number `n_eigenvalues`. Default: available memory.
    reference : {"conditional", "residuals"}
        Conditional on the predictions, or as published, with the observed residuals; as in `Spectrum`.

    Warns
    -----
    AntiConservativeWarning
        If the predictions leave too few events uncertain, see `kcalib.AntiConservativeWarning`.

    Notes
    -----
    Time and memory as `Spectrum`; deterministic. The curve of [1]_ with the moments of [2]_, remark B.2.

    References
    ----------
    .. [1] A. Gretton, K. Fukumizu, Z. Harchaoui, B. K. Sriperumbudur. A fast, consistent kernel
       two-sample test. NeurIPS 2009.
    .. [2] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests beyond classification.
       ICLR 2021.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 1, 1, 0, 1], [0.2, 0.7, 0.9, 0.4, 0.6]
    >>> kcalib.calibration_test(y, p, method=kcalib.methods.Pearson()).null_law
    'Pearson curve with four moments from all 5 eigenvalues given the predictions'
    """

    n_eigenvalues: int | str | None = None
    max_memory: float | None = None
    reference: str = "conditional"

    name: ClassVar[str] = "pearson"
    description: ClassVar[str] = "Pearson curve with four moments from"

    def log_pvalue(self, task: Task, eigenvalues: Eigenvalues) -> float:
        variance, statistic = 2 * eigenvalues.power_sum(2), task.n * task.estimate
        if variance == 0:
            return degenerate(statistic).log_pvalue
        return float(PearsonCurve(0.0, variance, eigenvalues.skewness, eigenvalues.kurtosis).logsf(statistic))
