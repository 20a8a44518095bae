"""The public function `calibration_test`.

`calibration_test` checks its input; `run` starts from checked data (`kcalib.evaluation`). Both hand a task to a method,
one of the classes in `METHODS`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

from kcalib._backend import arrays
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import LARGEST_SEED, OptionError, check_seed
from kcalib._input.checks import dtype_name
from kcalib._input.data import Data
from kcalib._input.forecasts import prepare
from kcalib._input.frames import check_variables
from kcalib._input.groupings import read_given
from kcalib._input.methods import resolved
from kcalib._input.source import (
    check_left_to_source,
    check_not_for_sums,
    is_source,
    state_options,
)
from kcalib._pairs.backends.base import Workers
from kcalib.estimators.skce import PairOptions, check_not_parallel
from kcalib.inference.adaptive import Adaptive
from kcalib.inference.adaptive.clusters import clusters_of
from kcalib.inference.adaptive.ranks import Ranks
from kcalib.inference.blocks import Block, Linear
from kcalib.inference.cme import CME
from kcalib.inference.consistency import Consistency
from kcalib.inference.distribution_free import DistributionFree
from kcalib.inference.exact import Exact
from kcalib.inference.features import Features
from kcalib.inference.gamma import Gamma
from kcalib.inference.resampling import Bootstrap, Multiplier
from kcalib.inference.spectrum import Pearson, Spectrum
from kcalib.inference.task import CalibrationMethod, Task
from kcalib.kernels import Kernel
from kcalib.lenses import Buckets, Lens
from kcalib.parallel.argument import in_parallel
from kcalib.results import CalibrationTestResult
from kcalib.target_kernels import TargetKernel

__all__ = ["calibration_test"]


@in_parallel
@on_their_gpu
def calibration_test(
    y_true: Any,
    y_pred: Any = None,
    *,
    sample_weight: Any = None,
    clusters: Any = None,
    time_blocks: int | None = None,
    given: Any = None,
    method: str | CalibrationMethod = "adaptive",
    kernel: Kernel | None = None,
    target_kernel: TargetKernel = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    dtype: Any = None,
    seed: int | None = None,
    threads: int | None = None,
    backend: Any = None,
) -> CalibrationTestResult:
    r"""Test the hypothesis that the model is calibrated.

    The p-value is the probability of a statistic at least as large as the observed one if the model is calibrated. All
    tests are one-sided. All methods except "adaptive", "cme", "ranks" and "consistency" test an estimate of the SKCE.

    Parameters
    ----------
    y_true, y_pred, kernel, target_kernel, classes, from_logits, lens, dtype, threads, backend
        As in `kcalib.skce`; with distributions, targets take the place of labels. A source needs the method "adaptive",
        and its test is the one of `kcalib.streaming.CalibrationState`: with the default number of draws of a state if
        `method` is a string (none for distributions), with the draws of the method object otherwise. With parallel
        workers, "adaptive" computes the SKCE of all pairs on the workers and its blocks locally, and a source is read
        whole. A journal does not keep the products with H that eigenvalues need.
    sample_weight : array_like, shape (n,), optional
        Non-negative weights that depend on the predictions or on other things known before the labels, such as survey
        weights. Do not pass class weights or weights for outcome-dependent sampling: they depend on the labels, and
        calibrated models would be rejected. Only for "adaptive", which then gives no standard error.
    clusters : array_like, shape (n,), optional
        The cluster of each sample, such as the patient, as numbers or strings. Samples of one cluster may depend on
        each other in any way; different clusters are independent. Only for "adaptive", which then flips signs of whole
        clusters; see the Notes. By default all samples are independent.
    time_blocks : int, optional
        Treat every `time_blocks` successive samples, in the order of time, as a cluster. Blocks count as independent,
        so choose them several times longer than the dependence reaches, for example 5 h for forecasts h steps ahead.
    given : array_like of shape (n,), mapping, or data frame, optional
        Further variables of the samples, one or several by name. "adaptive" then also tests whether the predictions are
        right for each of their values: two further blocks for each variable compare class frequencies and temperature
        by category. Numbers with more than 10 different values are cut into 10 bins. The test is exact if labels are
        independent draws given the predictions and these variables. For class probabilities.
    method : str or one of `kcalib.methods`
        The test, see the table in the Notes: a name, with the default options of the method, or an object with options,
        such as ``kcalib.methods.Spectrum(n_eigenvalues=50)``. "adaptive" detects the errors that models usually have,
        and names them in ``result.finding`` and ``result.blocks``; these mean something only if the p-value is small.
    seed : int, optional
        Seed of draws, random features, and the order in which "block" and "linear" form blocks. By default a seed is
        drawn; the result reports it. "spectrum", "pearson", "gamma" and all bandwidths are deterministic.

    Returns
    -------
    CalibrationTestResult
        `statistic`, `pvalue`, `log_pvalue` (which does not underflow), `estimate`, `standard_error`,
        `CalibrationTestResult.confidence_interval`, and the options used. If all H_ij, i != j, are 0, as for one-hot
        predictions that are right, the p-value is 1, its limit. If all b block estimates are equal and positive, it is
        2^-b.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce`; if there are too few `clusters` for events as rare as the predicted ones; if `method` is
        unknown; if an option of the method does not fit the data; if there are fewer samples than the method needs: 2,
        two blocks, or more than the test locations of "cme".
    MemoryError
        If all eigenvalues for "spectrum" or "pearson" do not fit in memory.

    Warns
    -----
    IndefiniteKernelWarning
        As `kcalib.skce`.
    AntiConservativeWarning
        If the null distribution is an approximation and the predictions leave too few events uncertain for it:
        confident predictions, rare events, few samples. Calibrated models may then be rejected too often. Always for
        "consistency" with resampled predictions.

    See Also
    --------
    kcalib.skce : The estimate alone.
    kcalib.methods : The methods with their options, assumptions and costs.
    kcalib.compare : Which of several models is calibrated better?
    kcalib.laws.ChiSquareMixture : The null distribution of "spectrum".

    Notes
    -----
    ================= =================================== ===================================== ========================
    method            statistic                           null distribution                     time
    ================= =================================== ===================================== ========================
    adaptive          six statistics                      labels drawn from the predictions     O(n c (m + R))
    exact             n SKCE, all pairs                   labels drawn from the predictions     O(R n^2)
    features          n SKCE, c columns of features       labels drawn from the predictions     O(n c (m + R))
    spectrum          n SKCE                              :math:`\sum_i l_i (\chi^2_1 - 1)`     3 to 12 passes
    cme               Hotelling's T^2, test locations J   chi-square, or labels drawn           O(n J (m + J))
    consistency       any estimate of a calibration error resampled predictions, drawn labels   R times the estimate's
    ranks             ranks of targets among members      uniform ranks                         O(n (S + R))
    bootstrap         n SKCE                              Arcones-Gine bootstrap                O(n^2 (m + R))
    multiplier        n SKCE                              random signs, given the predictions   O(R n^2 m)
    pearson           n SKCE                              Pearson curve, four moments           3 to 12 passes
    gamma             n SKCE                              gamma law, three moments              3 passes
    block             mean of B-blocks / standard error   gamma law, or Student's               O(n B m)
    linear            the same with B = 2                 gamma law, or Student's               O(n m)
    distribution_free SKCE                                an inequality: valid, and loose       as the estimator's
    ================= =================================== ===================================== ========================

    R is the number of draws. "adaptive" suits most users; "exact" and "features" test the published statistic; the
    others answer other questions, or allow comparisons with the literature. All null distributions are conditional on
    the predictions and do not use the labels. "exact" is valid for every n: a p-value from R draws is (1 + number of
    draws at least as large) / (1 + R). Smaller p-values come from tilted draws or a limit distribution, as
    ``result.pvalue_from`` says; the limit distribution rejects too often where errors are rare. All methods need O(n m)
    memory, except for all eigenvalues; for binary problems with exponential and Matern kernels n^2 becomes n log n.

    With `clusters` the test flips the signs of sums over whole clusters, R times, which is valid if these sums are
    symmetric. Sums of rare events are not symmetric: blocks that are too skewed are left out. If none is left, the
    error says how many clusters are needed: about :math:`11 (1 - 2 p)^2 / (p (1 - p))` for events of probability p.
    Formulas and sources are in the user guide, "Formulas of intervals and tests".

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=1000)
    >>> y = rng.uniform(size=1000) < p
    >>> kcalib.calibration_test(y, p, seed=0).pvalue > 0.05
    True
    >>> kcalib.calibration_test(y, p**3, seed=0).finding
    'class 1 predicted too rarely'
    >>> result = kcalib.calibration_test(y, p**3, method="spectrum")
    >>> result.pvalue < 1e-15
    True
    >>> print(result.null_law)  # doctest: +ELLIPSIS
    chi-square variables weighted by ... leading eigenvalues given the predictions, ... of the variance from the rest

    The options of a test are those of its method:

    >>> from kcalib.methods import Exact
    >>> kcalib.calibration_test(y, p, method=Exact(n_resamples=199), seed=0).n_resamples
    199

    Samples that are read in chunks:

    >>> result = kcalib.calibration_test(kcalib.streaming.source((y, p)))
    >>> result.pvalue > 0.05, result.n_samples == len(y)
    (True, True)

    Normal distributions whose standard deviations are half of what they should be:

    >>> from kcalib.distributions import Normal
    >>> mean = rng.normal(size=200)
    >>> y = rng.normal(mean, 1.0)
    >>> kcalib.calibration_test(y, Normal(mean, np.full(200, 1.0)), method="spectrum").pvalue > 0.05
    True
    >>> kcalib.calibration_test(y, Normal(mean, np.full(200, 0.5)), method="spectrum").pvalue < 1e-4
    True
    """
    if is_source(y_true, y_pred):
        check_left_to_source(classes, from_logits)
        check_not_for_sums(sample_weight=sample_weight, clusters=clusters, time_blocks=time_blocks, given=given)
        check_not_for_sums(dtype=None if dtype_name(dtype) == "float64" else dtype, backend=backend)
        options = {"kernel": kernel, "target_kernel": target_kernel, "lens": lens, "threads": threads}
        return y_true.summed(**options, seed=check_seed(seed, LARGEST_SEED), **sums_of(method)).calibration_test()
    check_shared_out(method, backend)
    for name, value in {"kernel": kernel, "target_kernel": target_kernel, "backend": backend}.items():
        if value is not None and isinstance(resolved(method, METHODS), Ranks):
            raise OptionError(name, "has no meaning for the method 'ranks'; leave it out")
    options = {"classes": classes, "from_logits": from_logits, "lens": lens, "dtype": dtype, "threads": threads}
    data = scale_weights(prepare(y_true, y_pred, sample_weight=sample_weight, sparse_lens=Buckets(), **options))
    check_variables(y_true, y_pred, clusters=clusters, given=given)
    of_samples = clusters_of(clusters, time_blocks, data.n)
    variables = () if given is None else read_given(given, data.n)
    option = "clusters" if time_blocks is None else "time_blocks"
    pairs = PairOptions(kernel, target_kernel, backend, threads)
    return run(Task(data, pairs, of_samples, variables, option), method, seed)


def run(task: Task, method: str | CalibrationMethod, seed: int | None) -> CalibrationTestResult:
    """Run a test on checked data."""
    start = time.perf_counter()
    chosen = resolved(method, METHODS)
    _check_samples(task, chosen)
    return dataclasses.replace(chosen.test(task, check_seed(seed, LARGEST_SEED)), seconds=time.perf_counter() - start)


def scale_weights(data: Data) -> Data:
    """Return samples with weights scaled to a mean square of 1: sums over H depend on the scale, results do not."""
    weight = data.sample_weight
    if weight is None:
        return data
    xp = arrays.namespace(weight)
    return dataclasses.replace(data, sample_weight=weight / math.sqrt(float(xp.mean(weight**2))))  # type: ignore[type-var]


def _check_samples(task: Task, method: CalibrationMethod) -> None:
    """Refuse weights, clusters and further variables for methods that assume independent samples of equal weight."""
    values = {"sample_weight": task.data.sample_weight, task.cluster_option: task.clusters, "given": task.given or None}
    for name, value in values.items():
        if value is None:
            continue
        if name == "given" and not task.data.has_classes:
            raise OptionError(name, f"is for class probabilities, but `y_pred` are {task.data.noun}; leave it out")
        if not isinstance(method, Adaptive):
            raise OptionError(name, f"has no meaning for the method {method.name!r}; use 'adaptive'")


def check_shared_out(method: str | CalibrationMethod, backend: str | Workers | None) -> None:
    """Refuse parallel workers for methods without sums over pairs."""
    chosen = resolved(method, METHODS)
    if isinstance(chosen, (Features, Ranks)):
        check_not_parallel(backend, f"method={chosen.name!r}")


def sums_of(method: str | CalibrationMethod) -> dict[str, Any]:
    """Return the options of the sums over a source for this method; refuse methods that need all samples at once."""
    chosen = resolved(method, METHODS)
    if not isinstance(chosen, Adaptive):
        raise OptionError(
            "method",
            f"is {chosen.name!r}, which reads all samples at once; use method='adaptive', or pass the "
            "samples themselves: y, p = source.read(0, n)",
        )
    draws = None if isinstance(method, str) else chosen.n_resamples  # a name uses the default of the sums
    return state_options(n_columns=chosen.n_columns, n_resamples=draws)


METHODS: tuple[type[CalibrationMethod], ...] = (
    Adaptive,
    Exact,
    Features,
    Spectrum,
    CME,
    Consistency,
    Ranks,
    Bootstrap,
    Multiplier,
    Pearson,
    Gamma,
    Block,
    Linear,
    DistributionFree,
)
