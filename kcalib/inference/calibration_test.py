"""Tests of the hypothesis that a model is calibrated: the public function and the choice of a method.

`calibration_test` checks its input, `run` does the same on checked data (for `kcalib.evaluation`): it
chooses a method, hands over to the file that has it, and says in the result what was done.

    exact bootstrap multiplier spectrum pearson gamma    quadratic.py
    block linear                                         blocks.py
    distribution_free                                    distribution_free.py
    cme                                                  cme.py
    consistency                                          consistency.py
"""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kcalib import _packing
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.memory import check_max_memory
from kcalib._backend.options import check_choice, check_integer
from kcalib._input.forecasts import Either as Data
from kcalib._input.forecasts import Forecasts, prepare
from kcalib._pairs import statistics
from kcalib._pairs.dispatch import operator_for
from kcalib.estimators.skce import ESTIMATORS, PairOptions, compute, describe
from kcalib.inference import blocks, distribution_free, quadratic
from kcalib.inference.cme import cme_test
from kcalib.inference.consistency import consistency_test
from kcalib.inference.quadratic import NullLaw, QuadraticProblem, entry_cost
from kcalib.kernels import Kernel
from kcalib.lenses import Lens
from kcalib.results import CalibrationTestResult
from kcalib.target_kernels import TargetKernel

__all__ = ["calibration_test"]

# Multiply-adds that `auto` spends: about a second on two cores.
EXACT_WORK = 2e10
EXACT_ON_A_LINE = 20_000  # samples
SPECTRUM_WORK = 5e10
SPECTRUM_COLUMNS = 50  # what the products with H cost beside its entries, in classes
SPECTRUM_PASSES = 10
GENERIC_COST = 30  # of an entry by array operations, relative to one by the compiled core
LARGEST_SEED = 2**63 - 1
CONSISTENCY_ESTIMATORS = {
    "ece": "top-label ECE",
    "ucme": "UCME",
    "linear": "block SKCE",
    **{name: f"{name} SKCE" for name in ("unbiased", "biased", "block")},
}
LOCATIONS = ("n_locations", "test_predictions", "test_labels", "from_logits")
OPTIONAL_FIELDS = tuple(f.name for f in dataclasses.fields(CalibrationTestResult) if "None" in str(f.type))


@on_their_gpu
def calibration_test(
    y_true: Any,
    y_pred: Any,
    *,
    method: str = "auto",
    kernel: Kernel | None = None,
    target_kernel: TargetKernel = None,
    estimator: Any = None,
    block_size: int | None = None,
    variance: str | None = None,
    n_resamples: int | None = None,
    multipliers: str | None = None,
    n_eigenvalues: int | str | None = None,
    max_memory: float | None = None,
    norms: tuple[float, float] | None = None,
    bound: float | None = None,
    n_locations: int | None = None,
    test_predictions: Any = None,
    test_labels: Any = None,
    reference: str | None = None,
    n_bins: int | None = None,
    resample_predictions: bool | None = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    dtype: Any = None,
    seed: int | None = None,
    threads: int | None = None,
    operator: str | None = None,
) -> CalibrationTestResult:
    r"""Test the hypothesis that the model is calibrated.

    If it is, a calibration error as large as the observed one is improbable: that probability is the
    p-value. All methods but "cme" and "consistency" test an estimate of the SKCE, and all are one-sided.

    Parameters
    ----------
    y_true, y_pred, kernel, target_kernel, classes, from_logits, dtype, threads, operator
        As in `kcalib.skce`, distributions included: what is said of labels is then said of targets.
    method : str
        Which test; see the table in the Notes. "auto" takes "exact" where labels are drawn in about a second, and
        "spectrum" if the statistic is above all draws; for more samples "spectrum"; and "block" where all
        pairs would take long. ``result.method_reason`` says why.
    estimator : str or callable, optional
        For "distribution_free": "unbiased" (the default), "biased", "block" or "linear". For "consistency":
        "ece" (the default), one of the former, "ucme", or a function ``estimator(y_true, y_pred) -> float``, which
        gets labels 0..m-1 and probabilities as they look through the lens. For distributions it gets targets and a
        distribution, there is no "ece", and the default is "unbiased".
    block_size : int, optional
        Samples in a block, 2..n // 2, for "block", and for estimator="block" of the methods that take one. Larger
        blocks find more, but leave fewer of them for the normal law. Default: the larger of the integer square
        root of n and n // 50, at least 2 (of an estimator: the square root).
    variance : {"sample", "second_moment"}, optional
        For "block" and "linear": the spread of the block estimates (the default), or what it is under calibration, from
        the second moment of H over disjoint pairs.
    n_resamples : int, optional
        Random draws, at least 1, for "exact", "bootstrap", "multiplier" and "consistency". Default: 999.
    multipliers : {"rademacher", "gaussian"}, optional
        For "multiplier": 1 or -1 (the default), or standard normal.
    n_eigenvalues : int or "all", optional
        For "spectrum" and "pearson": largest number of leading eigenvalues, 1..n, by default 20; or all of
        them from a stored matrix (16 n^2 bytes, time O(n^3)), the default up to 256 samples.
    max_memory : float, optional
        Bytes that all eigenvalues may take; not with a number of them. Default: what the machine has available.
    norms : (p, q), optional
        For "distribution_free" with a matrix-valued kernel: the norms of the bound, each from 1 to infinity. Default:
        the smallest bound of those in closed form.
    bound : float, optional
        For "distribution_free": the supremum of the kernel, where it is not known (a kernel of your own).
    n_locations, test_predictions, test_labels : optional
        For "cme", and estimator="ucme": number of random test locations, or given ones; as in `kcalib.ucme`.
    reference : {"conditional", "F", "chi2"}, optional
        For "cme": the chi-square law with the covariance that the predictions promise (the default; for distributions
        from at least 20,000 draws from them, with `seed`), Hotelling's F law
        with that of the samples, which for class labels rejects calibrated models too often, or the
        asymptotic chi-square law, which does so more.
    n_bins : int, optional
        For "consistency" with "ece": number of bins, by default 15.
    resample_predictions : bool, optional
        For "consistency": draw the predictions again, too (the default, as published). With False the test is exact.
    lens : Lens, optional
        The notion of calibration, see `kcalib.lenses`; default the whole vector.
    seed : int, optional
        Of whatever is random. None draws one, which the result reports; but "block" and "linear" keep the order of the
        samples then. They form blocks of consecutive samples: unless their order is already random, permute them by
        a seed, as "auto" does. With samples sorted by label, say, blocks are not alike, and calibrated models are
        rejected. "spectrum", "pearson" and "gamma" have nothing random.

    Returns
    -------
    CalibrationTestResult
        With `statistic`, `pvalue`, `log_pvalue` (which does not underflow), `estimate`, `standard_error`,
        `CalibrationTestResult.confidence_interval` and what was done. If nothing varies (all H_ij, i != j, are 0, as
        with predictions that are one-hot and right) the p-value is its limit, 1; if all block estimates are equal and
        positive, 0.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce` for its arguments; if an option is out of range or not one of the method; if there are fewer
        samples than the method needs: 2, or two blocks, or more than test locations ("cme").
    MemoryError
        If all eigenvalues would take more than `max_memory`.

    Warns
    -----
    IndefiniteKernelWarning
        As `kcalib.skce`.
    AntiConservativeWarning
        By "consistency" with resampled predictions: it rejects calibrated models too often.

    See Also
    --------
    kcalib.skce : The estimate alone.
    kcalib.compare : Which of several models is calibrated better?
    kcalib.laws.ChiSquareMixture : The law that "spectrum" refers to.

    Notes
    -----
    ================= =================================== ===================================== ========================
    method            statistic                           law under calibration                 time
    ================= =================================== ===================================== ========================
    exact             n SKCE, all pairs                   labels drawn from the predictions     O(R n^2 m)
    spectrum          n SKCE                              :math:`\sum_i l_i (\chi^2_1 - 1)`     4 to 11 passes
    multiplier        n SKCE                              random signs of the residuals         O(n^2 (m + R))
    bootstrap         n SKCE                              Arcones-Gine bootstrap                O(n^2 (m + R))
    pearson           n SKCE                              Pearson curve, four moments           4 to 11 passes
    gamma             n SKCE                              gamma law, two moments                one pass over the pairs
    block             mean of B-blocks / standard error   normal                                O(n B m)
    linear            the same with B = 2                 normal                                O(n m)
    distribution_free SKCE                                an inequality: valid, and loose       as the estimator's
    cme               Hotelling's T^2, test locations J   chi-square or F                       O(n J (m + J))
    consistency       an estimate of your choice          resampled predictions, drawn labels   R times the estimate's
    ================= =================================== ===================================== ========================

    Memory is O(n m) for each of them, except for all eigenvalues. For binary problems with exponential and Matern
    kernels n^2 becomes n log n.

    "exact" is valid for every n: given the predictions of a calibrated model, the labels are independent draws from
    them, and so the statistic's law is known. A p-value from R random draws is (1 + number of draws at least as
    large) / (1 + R): never 0, and never below 1 / (1 + R). That of "spectrum" goes on: l are the eigenvalues of
    H / (n - 1) without its diagonal, of which a block Krylov method finds the leading ones; a chi-square
    variable with the variance of the others (exact) and their third cumulant (estimated) stands for these [2]_
    (remark B.2), [3]_. Products with H, in float32, are added until the p-value changes by less than 1 %. The
    bootstrap is that of [4]_, block tests are those of [2]_ (remark B.1), bounds those of [1]_ (lemma 2), "cme" is [2]_
    (appendix C), and consistency resampling [5]_ is kept because users compare with it.

    References
    ----------
    .. [1] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests in multi-class
       classification: A unifying framework. NeurIPS 2019.
    .. [2] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests beyond classification.
       ICLR 2021.
    .. [3] A. Gretton, K. Fukumizu, Z. Harchaoui, B. K. Sriperumbudur. A fast, consistent kernel
       two-sample test. NeurIPS 2009.
    .. [4] M. A. Arcones, E. Gine. On the bootstrap of U and V statistics. Ann. Statist. 20, 1992.
    .. [5] J. Broecker, L. A. Smith. Increasing the reliability of reliability diagrams. Weather and
       Forecasting 22, 2007.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=1000)
    >>> y = rng.uniform(size=1000) < p
    >>> kcalib.calibration_test(y, p, seed=0).pvalue > 0.05
    True
    >>> result = kcalib.calibration_test(y, p**3, method="spectrum")
    >>> result.pvalue < 1e-15
    True
    >>> print(result.null_law)  # doctest: +ELLIPSIS
    chi-square variables weighted by ... leading eigenvalues, ... of the variance from the rest

    Normal distributions whose standard deviations are half of what they should be:

    >>> from kcalib.distributions import Normal
    >>> mean = rng.normal(size=200)
    >>> y = rng.normal(mean, 1.0)
    >>> kcalib.calibration_test(y, Normal(mean, np.full(200, 1.0)), method="spectrum").pvalue > 0.05
    True
    >>> kcalib.calibration_test(y, Normal(mean, np.full(200, 0.5)), method="spectrum").pvalue < 1e-4
    True
    """
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, lens=lens, dtype=dtype, threads=threads)
    given = {
        "estimator": estimator,
        "block_size": block_size,
        "variance": variance,
        "n_resamples": n_resamples,
        "multipliers": multipliers,
        "n_eigenvalues": n_eigenvalues,
        "max_memory": max_memory,
        "norms": norms,
        "bound": bound,
        "n_locations": n_locations,
        "test_predictions": test_predictions,
        "test_labels": test_labels,
        "reference": reference,
        "n_bins": n_bins,
        "resample_predictions": resample_predictions,
        "from_logits": from_logits if test_predictions is not None else None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    return run(data, PairOptions(kernel, target_kernel, operator, threads), method=method, seed=seed, **given)


@dataclass(frozen=True)
class Method:
    """A row of the table: who does the test, and which options it takes."""

    function: Callable[..., CalibrationTestResult]
    options: tuple[str, ...]


def run(
    data: Data, pair_options: PairOptions, *, method: str = "auto", seed: int | None = None, **options: Any
) -> CalibrationTestResult:
    """The test called `method` of checked data; `options` are those that the user gave."""
    start = time.perf_counter()
    check_choice("method", method, ("auto", *METHODS))
    if seed is not None:
        seed = check_integer("seed", seed, 0, LARGEST_SEED)
    taken = METHODS[method].options if method != "auto" else ()
    for name, value in options.items():
        if name not in taken:
            owners = ", ".join(repr(m) for m, row in METHODS.items() if name in row.options)
            raise ValueError(f"`{name}` is {value!r}, but method={method!r} does not have it; it belongs to {owners}")
    task = Task(QuadraticProblem(data, pair_options), method, seed)
    result = _auto(task) if method == "auto" else METHODS[method].function(task, **options)
    return dataclasses.replace(result, seconds=time.perf_counter() - start)


def _auto(task: Task) -> CalibrationTestResult:
    method, reason = _choice(task.problem)
    seed = task.seed
    if method == "block" and seed is None:
        seed, reason = 0, reason + "; samples permuted with seed 0"
    result = METHODS[method].function(dataclasses.replace(task, method=method, seed=seed))
    draws = result.n_resamples
    if draws is not None and result.pvalue < 1.5 / (1 + draws):
        # The level stays: below the smallest p-value of draws both tests must reject.
        further = METHODS["spectrum"].function(dataclasses.replace(task, method="spectrum"))
        if further.pvalue < result.pvalue:
            result = further
            reason = f"the statistic is above all {draws} draws of labels: the spectrum says how far"
    return dataclasses.replace(result, method_reason=reason)


def _choice(problem: QuadraticProblem) -> tuple[str, str]:
    """The method of "auto", and why."""
    n = problem.data.n
    if n < 2:
        raise ValueError(f"a test needs at least 2 samples, `y_true` has {n}")
    if isinstance(problem.data, Forecasts):
        return _choice_for_distributions(problem, n)
    m = problem.data.m
    on_a_line = problem.operator.name == "sorted_scan"
    if (on_a_line and n <= EXACT_ON_A_LINE) or n * n * m * quadratic.N_RESAMPLES <= EXACT_WORK:
        return "exact", f"{n} samples of {m} classes are few enough to draw labels from the predictions"
    if on_a_line:
        return "spectrum", "predictions on a line: all pairs in O(n log n)"
    if n * n * (m + SPECTRUM_COLUMNS) <= SPECTRUM_WORK:
        return "spectrum", f"{n} samples of {m} classes are few enough for all pairs"
    return "block", f"all pairs of {n} samples of {m} classes would take long: method='spectrum' does it"


def _choice_for_distributions(problem: QuadraticProblem, n: int) -> tuple[str, str]:
    """As `_choice`, with what an entry of H costs in place of the classes."""
    entry = entry_cost(problem.packed.problem) * (GENERIC_COST if problem.operator.name == "generic" else 1)
    if n * n / 2 * entry * quadratic.N_RESAMPLES <= EXACT_WORK:
        return "exact", f"{n} samples are few enough to draw targets from the predictions"
    if n * n / 2 * entry * SPECTRUM_PASSES <= SPECTRUM_WORK:
        return "spectrum", f"{n} samples are few enough for all pairs"
    return "block", f"all pairs of {n} samples would take long: method='spectrum' does it"


@dataclass(frozen=True)
class Task:
    """What every method gets."""

    problem: QuadraticProblem
    method: str
    seed: int | None

    @property
    def data(self) -> Data:
        return self.problem.data

    @property
    def options(self) -> PairOptions:
        return self.problem.options

    def own_seed(self) -> int:
        """The seed, or one from the operating system, which the result reports."""
        return secrets.randbits(63) if self.seed is None else self.seed

    def result(self, *, log_pvalue: float, pvalue: float | None = None, **fields: Any) -> CalibrationTestResult:
        """Fields that a method does not have are None; `run` fills in reason and time.

        A p-value that is a ratio of counts is given: 50 of 1000 is 0.05, the exponential of its logarithm is not.
        """
        rest: dict[str, Any] = dict.fromkeys(OPTIONAL_FIELDS)
        rest |= {"n_samples": self.data.n, "n_samples_used": self.data.n}
        rest |= {**self.data.describe(), "dtype": self.data.dtype, "seconds": 0.0}
        rest |= {"method": self.method, "method_reason": "asked for by name"}
        pvalue = math.exp(log_pvalue) if pvalue is None else pvalue
        return CalibrationTestResult(pvalue=pvalue, log_pvalue=log_pvalue, **(rest | fields))


def _blocks(task: Task, *, block_size: int | None = None, variance: str | None = None) -> CalibrationTestResult:
    variance = blocks.checked_variance(variance)
    block_size = blocks.checked_block_size(block_size, task.data.n, task.method)
    data = task.data
    if isinstance(data, Forecasts):
        packed = task.problem.packed
        if task.seed is not None:  # a table of distances is not made again
            packed = packed.taken(data.order(task.seed))
    else:
        data = data if task.seed is None else data.permuted(task.seed)
        packed = _packing.pack(data, task.options.kernel, task.options.target_kernel, threads=task.options.threads)
    operator = operator_for(packed.problem, operator=task.options.operator, threads=task.options.threads)
    found = blocks.block_test(operator, data.n, block_size, variance)
    return task.result(
        **dataclasses.asdict(found),
        estimator="block SKCE",
        block_size=block_size,
        n_blocks=data.n // block_size,
        n_samples_used=data.n // block_size * block_size,
        seed=task.seed,
        threads=operator.threads,
        **describe(data, packed, operator),
    )


def _distribution_free(
    task: Task,
    *,
    estimator: Any = "unbiased",
    block_size: int | None = None,
    norms: tuple[float, float] | None = None,
    bound: float | None = None,
) -> CalibrationTestResult:
    check_choice("estimator", estimator, ESTIMATORS)
    data = task.data
    if estimator in ("block", "linear") and task.seed is not None:
        data = data.permuted(task.seed)
    found = compute(data, task.options, estimator, block_size, with_error=estimator != "biased")
    largest = distribution_free.kernel_bound(found.packed.problem, bound, is_bounded=not isinstance(data, Forecasts))
    if isinstance(data, Forecasts):
        size = distribution_free.forecast_bound(largest, found.packed, norms)
    else:
        size = distribution_free.residual_bound(largest, found.packed.target.matrix, data.m, norms)
    log_pvalue = distribution_free.log_pvalue(
        found.value, estimator=estimator, n=data.n, block_size=found.block_size, bound=size
    )
    inequality = "McDiarmid's" if estimator == "biased" else "Hoeffding's"
    used = data.n if found.block_size is None else data.n // found.block_size * found.block_size
    return task.result(
        statistic=found.value,
        log_pvalue=log_pvalue,
        estimate=found.value,
        standard_error=None if estimator == "biased" else found.standard_error,
        null_law=f"{inequality} inequality with |h| <= {size:.6g}",
        estimator=f"{estimator} SKCE",
        block_size=found.block_size,
        n_blocks=None if found.block_size is None else data.n // found.block_size,
        n_samples_used=used,
        bound=size,
        seed=task.seed if found.block_size is not None else None,
        threads=found.operator.threads,
        **describe(data, found.packed, found.operator),
    )


def _quadratic(
    task: Task, law: Callable[[QuadraticProblem], NullLaw], seed: int | None = None
) -> CalibrationTestResult:
    """n SKCE_uq and its law under calibration."""
    data, problem = task.data, task.problem
    if data.n < 2:
        raise ValueError(f"method={task.method!r} needs at least 2 samples, `y_true` has {data.n}")
    found = law(problem)
    variance = statistics.score_variance(problem.moments) if data.n >= 4 else None
    return task.result(
        statistic=data.n * problem.estimate,
        log_pvalue=found.log_pvalue,
        pvalue=found.pvalue,
        estimate=problem.estimate,
        standard_error=statistics.standard_error(problem.moments),
        variance_slope=None if variance is None else variance.slope,
        variance_constant=None if variance is None else variance.constant,
        null_law=found.description,
        estimator="unbiased SKCE",
        n_resamples=found.n_resamples,
        n_eigenvalues=found.n_eigenvalues,
        seed=seed,
        threads=problem.operator.threads,
        **describe(data, problem.packed, problem.operator),
    )


def _exact(task: Task, *, n_resamples: int | None = None) -> CalibrationTestResult:
    count, seed = _resamples(n_resamples), task.own_seed()
    return _quadratic(task, lambda problem: quadratic.exact(problem, count, seed), seed)


def _bootstrap(task: Task, *, n_resamples: int | None = None) -> CalibrationTestResult:
    count, seed = _resamples(n_resamples), task.own_seed()
    return _quadratic(task, lambda problem: quadratic.bootstrap(problem, count, seed), seed)


def _multiplier(
    task: Task, *, n_resamples: int | None = None, multipliers: str = "rademacher"
) -> CalibrationTestResult:
    count, seed = _resamples(n_resamples), task.own_seed()
    check_choice("multipliers", multipliers, ("rademacher", "gaussian"))
    return _quadratic(task, lambda problem: quadratic.multiplier(problem, count, seed, multipliers), seed)


def _spectrum(task: Task, **options: Any) -> CalibrationTestResult:
    count, memory = _eigenvalues(task.data.n, **options)
    return _quadratic(task, lambda problem: quadratic.spectrum(problem, count, memory))


def _pearson(task: Task, **options: Any) -> CalibrationTestResult:
    count, memory = _eigenvalues(task.data.n, **options)
    return _quadratic(task, lambda problem: quadratic.pearson(problem, count, memory))


def _gamma(task: Task) -> CalibrationTestResult:
    return _quadratic(task, quadratic.gamma)


def _cme(task: Task, **options: Any) -> CalibrationTestResult:
    given = "test_predictions" in options or "test_labels" in options
    seed = task.own_seed()
    found = cme_test(task.data, task.options, seed=None if given else seed, draws_seed=seed, **options)
    drawn = isinstance(task.data, Forecasts) and found.reference == "conditional"
    law = {
        "F": f"Hotelling's F law with {found.rank} and {task.data.n - found.rank} degrees of freedom",
        "chi2": f"asymptotic chi-square law with {found.rank} degrees of freedom",
        "conditional": f"chi-square law with {found.rank} degrees of freedom, covariance of the predictions",
    }[found.reference]
    return task.result(
        statistic=found.statistic,
        log_pvalue=found.log_pvalue,
        estimate=found.estimate,
        null_law=law,
        estimator="UCME",
        n_locations=found.n_locations,
        seed=seed if drawn else found.seed,
        **found.description,
    )


def _consistency(task: Task, **options: Any) -> CalibrationTestResult:
    found = consistency_test(task.data, options=task.options, seed=task.own_seed(), **options)
    block_size = found.block_size
    redrawn = "predictions and labels" if found.resample_predictions else "labels"
    return task.result(
        statistic=found.estimate,
        log_pvalue=math.log(found.pvalue),
        pvalue=found.pvalue,
        estimate=found.estimate,
        null_law=f"{found.n_resamples} replicates of {redrawn}",
        estimator=CONSISTENCY_ESTIMATORS.get(found.estimator, found.estimator),
        block_size=block_size,
        n_blocks=None if block_size is None else task.data.n // block_size,
        n_samples_used=task.data.n if block_size is None else task.data.n // block_size * block_size,
        n_resamples=found.n_resamples,
        n_locations=None if found.locations is None else found.locations["n_locations"],
        seed=found.seed,
        **(found.description or {}),
    )


def _resamples(n_resamples: int | None) -> int:
    return quadratic.N_RESAMPLES if n_resamples is None else check_integer("n_resamples", n_resamples, 1, 2**31)


def _eigenvalues(
    n: int, n_eigenvalues: int | str | None = None, max_memory: float | None = None
) -> tuple[int | str, float | None]:
    if max_memory is not None:
        max_memory = check_max_memory(max_memory)
    if isinstance(n_eigenvalues, str):
        return check_choice("n_eigenvalues", n_eigenvalues, ("all",)), max_memory
    if n_eigenvalues is None:
        return "all" if n <= quadratic.STORED_UP_TO else quadratic.N_EIGENVALUES, max_memory
    if max_memory is not None:
        raise ValueError(f"`max_memory` is for all eigenvalues, but `n_eigenvalues` is {n_eigenvalues}; leave one out")
    return check_integer("n_eigenvalues", n_eigenvalues, 1, n, ", or 'all'"), None


METHODS = {
    "exact": Method(_exact, ("n_resamples",)),
    "bootstrap": Method(_bootstrap, ("n_resamples",)),
    "multiplier": Method(_multiplier, ("n_resamples", "multipliers")),
    "spectrum": Method(_spectrum, ("n_eigenvalues", "max_memory")),
    "pearson": Method(_pearson, ("n_eigenvalues", "max_memory")),
    "gamma": Method(_gamma, ()),
    "block": Method(_blocks, ("block_size", "variance")),
    "linear": Method(_blocks, ("variance",)),
    "distribution_free": Method(_distribution_free, ("estimator", "block_size", "norms", "bound")),
    "cme": Method(_cme, ("reference", *LOCATIONS)),
    "consistency": Method(
        _consistency, ("estimator", "n_resamples", "resample_predictions", "n_bins", "block_size", *LOCATIONS)
    ),
}
