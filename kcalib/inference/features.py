r"""The test of the SKCE by random features, in linear time for large samples.

With k_F the kernel of a feature map, the statistic is n SKCE_uq under k_F over all pairs, in linear time. Its null
distribution comes from labels (or targets) drawn from the predictions, as in `exact`. The frequencies do not depend on
labels, so the test is exact for any number of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kcalib._backend.options import check_integer
from kcalib._packing.features import FeatureProblem, check_columns
from kcalib._pairs import statistics
from kcalib.estimators.feature_moments import FeatureMoments, feature_moments, features_standard_error
from kcalib.inference.conditional_spectrum import make_feature_matrix
from kcalib.inference.quadratic import MAX_RESAMPLES, NullLaw
from kcalib.inference.spectrum import limit_law
from kcalib.inference.tail import beyond_draws
from kcalib.inference.task import CalibrationMethod, Task
from kcalib.laws import ChiSquareMixture
from kcalib.results import CalibrationTestResult

N_RESAMPLES = 199
# Draws equal to the observed labels are ties, but their sums are added in another order.
TIE = 1e-9


@dataclass(frozen=True)
class Features(CalibrationMethod):
    r"""Test the SKCE by drawn labels, or targets, with random features in place of the kernel, in linear time.

    Valid for every number of samples, classes and columns: features :math:`\phi` define a positive definite kernel
    :math:`k_F(p, q) = \langle \phi(p), \phi(q) \rangle`, and given the predictions of a calibrated model the null
    distribution of n SKCE over all pairs with this kernel is known. The mean of these kernels over seeds is the given
    kernel. Power grows with the number of columns: 64 columns have about nine tenths of the power of all pairs. A fixed
    number of columns misses some miscalibrations for every n; the default number grows with n.

    Parameters
    ----------
    n_columns : int, optional
        Columns of features, a multiple of 16: cosines and sines of frequencies in 8 independent groups. Default: 60
        times the eighth root of n, which is 256 for 100,000 samples.
    n_resamples : int
        Number R of draws, at least 1. The p-value is (1 + number of draws at least as large) / (1 + R). If no draw is
        as large, it comes from the limit distribution ("spectrum", with the kernel of the features), provided that
        there are thousands of events and the draws do not contradict it: ``result.pvalue_from`` says which.

    Notes
    -----
    Time O(n c (m + R)) for c columns, and n R drawn labels; memory O(c m) for each draw computed at the same time,
    besides the samples. The seed of the test determines frequencies and draws. `estimate` is unbiased for the SKCE with
    the kernel of the features, and averaged over seeds for the SKCE with the given kernel; `standard_error` and
    confidence intervals refer to the latter and include the variation of features and samples (see `kcalib.skce`).
    `features_standard_error` is the part of the features. Kernels that are not known to be positive definite have no
    random features, and are refused. The features are those of [1]_, with orthogonal directions [2]_.

    References
    ----------
    .. [1] A. Rahimi, B. Recht. Random features for large-scale kernel machines. NeurIPS 2007.
    .. [2] F. X. Yu, A. T. Suresh, K. Choromanski, D. Holtmann-Rice, S. Kumar. Orthogonal random features.
       NeurIPS 2016.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> p = rng.dirichlet([1, 1, 1], size=20_000)
    >>> y = (p.cumsum(axis=1) < rng.uniform(size=(20_000, 1))).sum(axis=1)
    >>> result = kcalib.calibration_test(y, p, method=kcalib.methods.Features(n_columns=64), seed=0)
    >>> result.n_columns, result.n_resamples, result.pvalue > 0.05
    (64, 199, True)
    >>> q = p**1.1 / (p**1.1).sum(axis=1, keepdims=True)
    >>> result = kcalib.calibration_test(y, q, method="features", seed=0)
    >>> result.pvalue < 0.001, result.pvalue_from
    (True, 'law')
    """

    n_columns: int | None = None
    n_resamples: int = N_RESAMPLES

    name: ClassVar[str] = "features"

    def __post_init__(self) -> None:
        check_columns(self.n_columns)
        check_integer("n_resamples", self.n_resamples, 1, MAX_RESAMPLES)

    def test(self, task: Task, seed: int) -> CalibrationTestResult:
        if task.n < 2:
            raise ValueError(f"method={self.name!r} needs at least 2 samples, `y_true` has {task.n}")
        problem = task.features(self.n_columns, seed)
        drawn = problem.drawn_totals(int(self.n_resamples), seed)
        moments = feature_moments(problem, drawn=drawn)
        return _result(task, problem, moments, find_law(task, problem, moments, drawn), seed)


def find_law(task: Task, problem: FeatureProblem, moments: FeatureMoments, drawn: np.ndarray) -> NullLaw:
    """Return the p-value of the observed total."""

    def law(statistic: float) -> ChiSquareMixture | None:
        implicit = make_feature_matrix(problem, problem.n)
        return None if implicit.squares == 0 else limit_law(implicit, statistic)

    return law_of_draws(
        float(moments.total),
        float(moments.trace),
        problem.n,
        drawn,
        f"{len(drawn)} draws of the {problem.targets} from the predictions, with {problem.map.n_columns} features",
        events=lambda: task.effective_events,
        law=law,
    )


def law_of_draws(
    total: float,
    trace: float,
    n: int,
    drawn: np.ndarray,
    description: str,
    *,
    events: Callable[[], float],
    law: Callable[[float], ChiSquareMixture | None],
) -> NullLaw:
    """Return the p-value of a total from the totals of drawn targets, and beyond them from the limit distribution."""
    # Total and draws are differences of |S|^2 = total + trace and the trace.
    as_large = int(np.sum(drawn >= total - TIE * (abs(total) + trace)))
    pvalue = (1 + as_large) / (1 + len(drawn))
    null_law = NullLaw.of_draws(pvalue, description, drawn / (n - 1))
    statistic = total / (n - 1)
    return beyond_draws(null_law, statistic, drawn / (n - 1), events=events, law=lambda: law(statistic))


def _result(
    task: Task, problem: FeatureProblem, moments: FeatureMoments, law: NullLaw, seed: int
) -> CalibrationTestResult:
    assert moments.null_squares is not None
    return task.result(
        method=Features.name,
        statistic=task.n * statistics.unbiased(moments, task.n),
        log_pvalue=law.log_pvalue,
        pvalue=law.pvalue,
        features_freedom=moments.error_freedom,
        null_law=law.description,
        pvalue_from=law.pvalue_from,
        null_quantiles=law.quantiles,
        estimator="unbiased SKCE of random features",
        n_resamples=law.n_resamples,
        seed=seed,
        **task.estimate_fields(moments, moments.null_squares, features_standard_error(moments, task.n)),
        **problem.described(),
    )
