"""Comparison of models on the same samples: which one is calibrated better, and is that more than chance?

    compare          checks the input and calls
    comparison_of    the same for checked data, also called by the command: it asks a row of `METRICS`
    METRICS          one function for each metric: each model's value and each pair's difference (`Measured`)
    _ranked          multiplicity correction and ranking, for all metrics

Samples are paired: a difference of two models is itself an estimate from n independent samples, so that its
standard error takes into account how the two vary together.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import numpy as np
import scipy

from kcalib import _packing
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import OptionError, check_choice, check_integer
from kcalib._backend.random import Weights, batches
from kcalib._backend.segments import Segments
from kcalib._input.forecasts import Either as Data
from kcalib._input.forecasts import Forecasts, prepare
from kcalib._input.labels import Classification
from kcalib._packing import Packed
from kcalib._pairs import statistics
from kcalib._pairs.dispatch import Operator, operator_for
from kcalib._pairs.problem import Moments
from kcalib.bandwidth import MAX_SAMPLES, MedianDistance
from kcalib.estimators.binning import MAX_BINS, bin_numbers
from kcalib.estimators.crps import crps_values
from kcalib.estimators.forecast_residuals import kernel_alone, residuals_of
from kcalib.estimators.forecast_scores import log_score_values
from kcalib.estimators.scores import log_losses, square_residuals, top_label
from kcalib.estimators.skce import describe
from kcalib.inference.ckce_expansion import CKCEExpansion
from kcalib.kernels import Gaussian, Kernel, Linear
from kcalib.lenses import Lens
from kcalib.results import Comparison, ConfidenceInterval, ModelDifference, ModelValue
from kcalib.solvers.kernel_operator import KernelMatrix
from kcalib.target_kernels import TargetKernel

__all__ = ["compare"]

N_BINS, N_RESAMPLES, SEED = 15, 2000, 0  # defaults of the options that not every metric has
ROUNDINGS = 16  # a difference of at most so many roundings is none
EPSILON = float(np.finfo(np.float64).eps)
CKCE_SAMPLES = 1000  # whose pairs stand for all pairs
STRIP = 128  # samples whose pairs with all others are in memory at once
WEIGHTS_AT_ONCE = 2**26  # bytes of resampling weights in memory


@on_their_gpu
def compare(
    y_true: Any,
    y_preds: Mapping[str, Any],
    *,
    metric: str = "skce",
    confidence_level: float = 0.95,
    kernel: Kernel | None = None,
    target_kernel: TargetKernel | None = None,
    regularization: float | None = None,
    n_bins: int | None = None,
    n_resamples: int | None = None,
    seed: int | None = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    dtype: Any = None,
    threads: int | None = None,
    operator: str | None = None,
) -> Comparison:
    r"""Compare models on the same samples: values, paired differences, and a ranking.

    Parameters
    ----------
    y_true : array_like, shape (n,) or (n, m)
        Labels, the same for all models, as in `kcalib.skce`; for distributions targets. n is at least 4.
    y_preds : mapping of str to array_like, shape (n, m) or (n,), or Distribution
        Two or more models by name: the predicted probabilities of the same samples in the same order, or the predicted
        distributions, whose families may differ.
    metric : {"skce", "ckce", "ece", "brier", "log_loss", "crps", "log_score"}
        What is compared; lower is better for all of them. "skce": the unbiased estimate of `kcalib.skce`; "ckce":
        `kcalib.ckce` without its bias, see the notes; "ece": `kcalib.top_label_ece`; "brier": `kcalib.brier_score`;
        "log_loss": `kcalib.log_loss`; and of distributions, beside "skce" and "ckce", "crps": `kcalib.crps`;
        "log_score": `kcalib.log_score`. The last four measure calibration and sharpness together.
    confidence_level : float
        Level of the intervals, in (0, 1). Models are told apart if the p-value of their difference, adjusted
        for the number of pairs, is at most 1 minus this.
    kernel : Kernel, optional
        "skce" and "ckce". The one kernel on predictions of all models, since values under different kernels cannot be
        compared. Default: `kcalib.kernels.Exponential`, for "ckce" ``Linear() + Gaussian()``. A bandwidth that is not
        given is the median over the models of the median distance between a model's predictions (the bandwidth that
        `kcalib.skce` and `kcalib.ckce` would take); models with identical predictions only have none and are left out
        of it.
    target_kernel : optional
        "skce" and "ckce", as in `kcalib.skce`, and the same for all models; of distributions a bandwidth that is not
        given is the median over the models of the one that `kcalib.skce` would take.
    regularization : float, optional
        "ckce" only, as in `kcalib.ckce`: positive; default :math:`n^{-1/4}`.
    n_bins : int, optional
        "ece" only. Number of bins, 1 to 1,000,000; default 15.
    n_resamples : int, optional
        "ece" only. Replicates of the bootstrap, at least 2 / (1 - confidence_level) - 1. p-values are at least
        2 / (n_resamples + 1), before they are adjusted for the number of pairs; default 2000, or 4 times that
        number over 1 - confidence_level if this is more.
    seed : int, optional
        "ece": of the bootstrap. "skce": of the subset of 2000 samples (if n is larger) from which part of the standard
        error of differences is estimated. "ckce": of pivots, and of such a subset of 1000 samples. Default 0.
    classes, from_logits
        As in `kcalib.skce`, the same for all models.
    lens : Lens, optional
        The notion of calibration, see `kcalib.lenses`; default the whole vector. Each model is
        seen through it by itself: with `kcalib.lenses.TopLabel` each is asked about the class that it predicts.
    dtype : {"float64", "float32"}, optional
        "skce" only, as in `kcalib.skce`.
    operator : {"sorted_scan", "openmp", "cuda", "generic"}, optional
        "skce" and "ckce", as in `kcalib.skce`.
    threads : int, optional
        "skce", "ckce" and "ece": threads on the CPU, as in `kcalib.skce`. The result is the same bit for bit for any
        number.

    Returns
    -------
    Comparison
        Values with standard errors and confidence intervals, paired differences of all pairs with intervals, p-values
        and p-values adjusted by Holm's method, a ranking that says which models are not distinguishable, and what
        was done.

    Raises
    ------
    TypeError
        If `y_preds` is no mapping or a name is no string; as `kcalib.skce` for its arguments.
    ValueError
        If there are fewer than two models or four samples, if models differ in shape, if `confidence_level`, `metric`,
        `regularization`, `n_bins`, `n_resamples` or `seed` is out of range, if an option is given that the metric does
        not have; as `kcalib.skce` and `kcalib.ckce` for their arguments, the message naming the model.
    MemoryError
        If the "ckce" of a model takes more memory than there is.

    Warns
    -----
    IndefiniteKernelWarning
        If the kernel is not known to be positive definite.
    ConvergenceWarning
        If the solver does not reach the accuracy of `kcalib.ckce` ("ckce", with a very small `regularization`).

    See Also
    --------
    kcalib.evaluate : The usual numbers about one model.

    Notes
    -----
    All intervals are for one model, or one pair, by itself. With q the quantile of the standard
    normal law (of Student's law with n - 1 degrees of freedom for means of scores):

    *SKCE.* Values and differences are U-statistics, with kernels :math:`h^A` and :math:`h^A - h^B`, of variance
    :math:`(4 (n - 2) \zeta_1 + 2 \zeta_2) / (n (n - 1))` [1]_. The interval of a difference is plus and minus q
    standard errors, with :math:`\zeta_1` by the jackknife and :math:`\zeta_2` from squares. The second term keeps it
    valid where both models are calibrated: the statistic is degenerate there, its limit is not normal, and the
    jackknife alone can be near 0 by chance. The standard error of a value is that of `kcalib.skce`. The lower limit is
    q of them below; the upper limit is that of a score interval, with :math:`\zeta_1` in proportion to the
    hypothetical SKCE, since an estimate that is too low by chance comes with a standard error that is too low. Near
    calibration the intervals are too wide rather than too narrow. Time O(n^2 m) for each model (for binary problems
    O(n log n), as in `kcalib.skce`), memory O(n m).

    *CKCE.* The interval is for the population value :math:`\|(C + \lambda I)^{-1} M\|^2` at the kernel and the
    regularization used, with :math:`C = \mathrm{E}\, k_P \otimes k_P` and
    :math:`M = \mathrm{E}\, k_P \otimes (\delta_Y - P)` [4]_: 0 for a calibrated model, and with the default
    regularization a number that depends on n. `kcalib.ckce` is the same for the empirical law. It is biased upwards by
    noise in the labels, more for many classes and predictions that are spread out, so that its differences would tell
    calibrated models apart. With :math:`s = n \lambda`, :math:`B = K (K + s I)^{-2}`, b = B E, the leverages l (the
    diagonal of :math:`K (K + s I)^{-1}`) and the residual of a regression without sample i,
    :math:`r_i = s Z_i / (1 - l_i)`, what is compared is

    .. math:: \operatorname{tr}(Z^\top K Z) - \sum_i \langle e_i, B_{ii} r_i - 2 l_i (b_i - B_{ii} r_i)\rangle ,

    which has no bias to first order in 1 / n, and none at all if the model is calibrated; it may be negative. The
    variance has two terms, as for the SKCE: that of the jackknife, from :math:`2 \langle r_i, b_i - B_{ii}
    r_i\rangle`, and that of the noise alone, :math:`2 \sum_{i \ne j} (B_{ij} \langle r_i, r_j\rangle)^2`. Intervals
    are made of them as for the SKCE, and near calibration they are too wide rather than too narrow. For two models
    that differ, such as a calibrated and an over-confident one, intervals of the difference are somewhat too narrow in
    samples of some hundred. The bandwidth is taken as given. The value and b come from two solves with the matrix of
    `kcalib.ckce`; diagonals from a low-rank factor, enlarged until what it leaves out has eigenvalues of at most about
    0.01 s. Time for each model two to three times that of `kcalib.ckce` and O(n r^2), memory for each model
    O(n (m + r)), with r the rank of the factor, mostly 100.

    *ECE.* The interval is for :math:`\theta = \sum_b |\mu_b|`, with :math:`\mu_b` the expected gap between
    correctness and confidence in bin b, times the bin's probability: the population value with *these* bins. Its
    estimate :math:`\sum_b |X_b|` is biased upwards where :math:`\mu_b` is near 0, and no bootstrap of it alone is
    valid there. With :math:`X = \mu + \varepsilon` and :math:`s_b = \mathrm{sign}(\mu_b)`,

    .. math:: s_b \varepsilon_b \le |\mu_b + \varepsilon_b| - |\mu_b| \le |\varepsilon_b| ,

    where the first is an equality if :math:`|\mu_b|` is large. Limits are differences of the estimate and quantiles of
    the sums of these bounds over bins, from a multinomial bootstrap of :math:`\varepsilon` with the same draws for all
    models, enlarged by :math:`\sqrt{n / (n - b)}` for b bins that hold samples; bins where :math:`|X_b|` is more than
    :math:`\sqrt{\log n}` standard errors count as large [2]_. Differences combine the upper bound of one model with
    the lower bound of the other; bins that hold the same gaps of the same samples cancel. So intervals are too wide
    rather than too narrow, and exact for large n where all gaps are large. They need several samples in most bins.
    Time O(n (m + n_resamples)) for each model, memory O(n m).

    *Brier score, log loss, CRPS, log score.* Paired t-intervals of means. Time O(n m).

    If all samples have the same value the standard error is 0, the interval is the value itself, and the p-value is
    its limit: 1 if the difference is 0 (but for rounding), otherwise 0.

    References
    ----------
    .. [1] W. Hoeffding. A class of statistics with asymptotically normal distribution. Annals of Mathematical
       Statistics 19, 1948.
    .. [2] D. W. K. Andrews, G. Soares. Inference for parameters defined by moment inequalities using generalized
       moment selection. Econometrica 78, 2010.
    .. [3] S. Holm. A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics 6, 1979.
    .. [4] P. Moskvichev, D. Sejdinovic. All models are miscalibrated, but some less so: comparing calibration with
       conditional mean operators.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=1000)
    >>> y = rng.uniform(size=1000) < p
    >>> result = kcalib.compare(y, {"sharp": p**3 / (p**3 + (1 - p) ** 3), "right": p, "right too": 0.98 * p})
    >>> result.ranking[-1], result.model("right").not_distinguishable_from
    ('sharp', ('right too',))
    >>> result.difference("right", "sharp").confidence_interval.high < 0
    True
    """
    check_choice("metric", metric, tuple(METRICS))
    given = {
        "kernel": kernel, "target_kernel": target_kernel, "regularization": regularization, "n_bins": n_bins,
        "n_resamples": n_resamples, "seed": seed, "dtype": dtype, "threads": threads, "operator": operator,
    }  # fmt: skip
    options = Options(**given)
    options.check(metric, confidence_level)
    if not isinstance(y_preds, Mapping):
        raise TypeError(f"`y_preds` is a {type(y_preds).__name__}, expected a mapping of names to predictions")
    models: dict[str, Data] = {}
    for name, y_pred in y_preds.items():
        if not isinstance(name, str):
            raise TypeError(f"`y_preds` has the key {name!r}, expected names that are strings")
        try:
            models[str(name)] = prepare(
                y_true, y_pred, classes=classes, from_logits=from_logits, lens=lens, dtype=dtype, threads=threads
            )
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"`y_preds[{name!r}]`: {error}") from None
    return comparison_of(models, metric, confidence_level, options)


@dataclass(frozen=True)
class Options:
    """The options that not every metric has, as the user wrote them; None where they were not given."""

    kernel: Kernel | None = None
    target_kernel: TargetKernel | None = None
    regularization: float | None = None
    n_bins: int | None = None
    n_resamples: int | None = None
    seed: int | None = None
    dtype: Any = None
    threads: int | None = None
    operator: str | None = None

    def check(self, metric: str, confidence_level: Any) -> None:
        """No option that the metric does not have, none out of range."""
        if not (isinstance(confidence_level, (int, float)) and 0 < confidence_level < 1):
            raise ValueError(f"`confidence_level` is {confidence_level!r}, expected a number between 0 and 1")
        for name, value in vars(self).items():
            if value is not None and name not in METRICS[metric].options:
                having = [repr(other) for other, row in METRICS.items() if name in row.options]
                raise OptionError(
                    name, f"has no meaning for the metric {metric!r}, only for {', '.join(having)}; leave it out"
                )
        if self.regularization is not None:
            _check_regularization(self.regularization)
        if self.n_bins is not None:
            check_integer("n_bins", self.n_bins, 1, MAX_BINS)
        if self.seed is not None:
            check_integer("seed", self.seed, 0, 2**64 - 1)
        if self.n_resamples is not None:
            least = math.ceil(2 / (1 - confidence_level) * (1 - 1e-12)) - 1
            check_integer("n_resamples", self.n_resamples, least, 2**32, f" at the confidence level {confidence_level}")


def _check_regularization(value: Any) -> None:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"`regularization` is {value!r}, expected a positive number")
    if not 0 < float(value) < math.inf:
        raise ValueError(f"`regularization` is {value}, expected a positive finite number; leave it out for n**-0.25")


@dataclass(frozen=True)
class Estimate:
    """A value or a difference."""

    value: float
    standard_error: float
    interval: ConfidenceInterval
    pvalue: float = math.nan  # of the hypothesis that it is 0; of differences only


@dataclass(frozen=True)
class Measured:
    """What a metric says about models, and how it found out."""

    values: list[Estimate]  # one for each model
    differences: list[Estimate]  # one for each pair, in the order of itertools.combinations
    estimator: str
    intervals: str
    described: dict[str, Any] = field(default_factory=dict)  # fields of `Comparison`


def comparison_of(models: Mapping[str, Data], metric: str, confidence_level: float, options: Options) -> Comparison:
    """`compare` of checked data."""
    start = time.perf_counter()
    _check_models(models)
    data = list(models.values())
    if isinstance(data[0], Forecasts) and not METRICS[metric].of_distributions:
        having = ", ".join(repr(name) for name, row in METRICS.items() if row.of_distributions)
        raise ValueError(f"metric={metric!r} is for class probabilities; of distributions use one of {having}")
    if not isinstance(data[0], Forecasts) and not METRICS[metric].of_classes:
        raise ValueError(f"metric={metric!r} is for predicted distributions (kcalib.distributions); use 'log_loss'")
    measured = METRICS[metric].measure(data, confidence_level, options)
    names = tuple(models)
    differences = _adjusted(names, measured.differences, confidence_level)
    ranking = tuple(names[i] for i in sorted(range(len(names)), key=lambda i: measured.values[i].value))
    undescribed = dict.fromkeys((
        "prediction", "kernel", "bandwidth_source", "target_kernel", "target_factor", "regularization", "n_bins",
        "n_resamples", "seed", "dtype",
        "operator", "threads",
    ))  # fmt: skip
    return Comparison(
        metric=metric,
        estimator=measured.estimator,
        intervals=measured.intervals,
        confidence_level=float(confidence_level),
        ranking=ranking,
        models=tuple(_ranked(names, measured.values, ranking, differences)),
        differences=differences,
        n_samples=data[0].n,
        n_classes=None if isinstance(data[0], Forecasts) else data[0].m,
        **{**undescribed, **measured.described, "lens": str(data[0].lens)},
        seconds=time.perf_counter() - start,
    )


def _check_models(models: Mapping[str, Data]) -> None:
    if len(models) < 2:
        raise ValueError(f"`y_preds` has {len(models)} models, expected at least 2 to compare")
    first, *others = models.items()
    for name, data in others:
        if isinstance(first[1], Forecasts) or isinstance(data, Forecasts):
            if not (isinstance(first[1], Forecasts) and isinstance(data, Forecasts)):
                raise ValueError(
                    f"`y_preds[{name!r}]` and `y_preds[{first[0]!r}]` are class probabilities and distributions; "
                    "models of one kind are compared"
                )
            continue  # their targets are the same array, with a shape that each was checked for
        if (data.n, data.m) != (first[1].n, first[1].m):
            raise ValueError(
                f"`y_preds[{name!r}]` has {data.n} samples and {data.m} classes, `y_preds[{first[0]!r}]` "
                f"{first[1].n} and {first[1].m}; models are compared on the same samples and classes"
            )
    if first[1].n < 4:
        raise ValueError(f"a comparison needs at least 4 samples, `y_true` has {first[1].n}")


def _adjusted(
    names: Sequence[str], differences: Sequence[Estimate], confidence_level: float
) -> tuple[ModelDifference, ...]:
    adjusted = holm([d.pvalue for d in differences])
    return tuple(
        ModelDifference(
            first=first,
            second=second,
            difference=d.value,
            standard_error=d.standard_error,
            confidence_interval=d.interval,
            pvalue=d.pvalue,
            pvalue_holm=pvalue,
            distinguishable=pvalue <= 1 - confidence_level,
        )
        for (first, second), d, pvalue in zip(itertools.combinations(names, 2), differences, adjusted, strict=True)
    )


def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's adjustment: the k-th smallest of K times K + 1 - k, at least those before it, at most 1."""
    adjusted = [0.0] * len(pvalues)
    highest = 0.0
    for place, i in enumerate(sorted(range(len(pvalues)), key=pvalues.__getitem__)):
        highest = max(highest, min(1.0, (len(pvalues) - place) * pvalues[i]))
        adjusted[i] = highest
    return adjusted


def _ranked(
    names: Sequence[str], values: Sequence[Estimate], ranking: Sequence[str], differences: Iterable[ModelDifference]
) -> Iterator[ModelValue]:
    near = {frozenset((d.first, d.second)) for d in differences if not d.distinguishable}
    for name, estimate in zip(names, values, strict=True):
        yield ModelValue(
            model=name,
            value=estimate.value,
            standard_error=estimate.standard_error,
            confidence_interval=estimate.interval,
            rank=1 + sum(other.value < estimate.value for other in values),
            not_distinguishable_from=tuple(other for other in ranking if frozenset((name, other)) in near),
        )


def _symmetric(
    value: float, error: float, confidence_level: float, df: float = math.inf, resolution: float = 0.0
) -> Estimate:
    """Interval and p-value from a standard error: by Student's law, or the normal one.

    A value of at most `resolution` may be rounding.
    """
    law = scipy.special
    tail = (1 - confidence_level) / 2
    width = -error * float(law.ndtri(tail) if df == math.inf else law.stdtrit(df, tail))
    if abs(value) <= resolution:
        pvalue = 1.0
    elif error == 0:
        pvalue = 0.0
    else:
        t = -abs(value) / error
        pvalue = min(1.0, 2 * float(law.ndtr(t) if df == math.inf else law.stdtr(df, t)))
    return Estimate(value, error, ConfidenceInterval(value - width, value + width), pvalue)


# -- SKCE --------------------------------------------------------------------------------------


def _skce(data: Sequence[Data], confidence_level: float, options: Options) -> Measured:
    packed, source = _packed_alike(data, options)
    operators = [operator_for(p.problem, operator=options.operator, threads=options.threads) for p in packed]
    moments = [_moments(operator) for operator in operators]
    n = data[0].n
    rows, seed = _subset(n, MAX_SAMPLES, SEED if options.seed is None else int(options.seed))
    squares = _square_differences(operators, rows)
    pairs = itertools.combinations(range(len(data)), 2)
    largest = math.sqrt(max(m.sum_of_squares or 0.0 for m in moments) / (n * (n - 1)))
    resolution = ROUNDINGS * float(np.finfo(data[0].dtype).eps) * largest
    described = describe(data[0], packed[0], operators[0])
    del described["n_classes"], described["operator_reason"]
    described |= {"dtype": data[0].dtype, "threads": operators[0].threads, "seed": seed}
    described |= {"bandwidth_source": source, **_factors(data, packed)}
    return Measured(
        values=[_skce_value(m, confidence_level) for m in moments],
        differences=[
            _skce_difference(_minus(moments[i], moments[j], squares[i, j] * n * (n - 1)), confidence_level, resolution)
            for i, j in pairs
        ],
        estimator="unbiased estimator",
        intervals="normal, differences paired, upper limits of values from a score interval",
        described=described,
    )


def _packed_alike(data: Sequence[Data], options: Options) -> tuple[list[Packed], str]:
    """The problems of all models with the same kernels, and where bandwidths come from."""
    found = _packing.pack_alike(
        *data, kernel=options.kernel, target_kernel=options.target_kernel, threads=options.threads
    )
    sources = [_source(found.medians)] if found.medians else []
    sources += [f"on targets: {_source(found.target_medians)}"] if found.target_medians else []
    return list(found.packed), "; ".join(sources) or "given"


def _factors(data: Sequence[Data], packed: Sequence[Packed]) -> dict[str, Any]:
    """Families, and how expectations were found, of all models."""
    families = (one.describe()["prediction"] for one in data)
    return {"prediction": _joined(", ", families), "target_factor": _joined("; ", (p.target.route for p in packed))}


def _joined(separator: str, names: Iterable[str | None]) -> str | None:
    """Each name once; None if there is none."""
    return separator.join(dict.fromkeys(name for name in names if name is not None)) or None


def _source(medians: Mapping[str, Sequence[MedianDistance]]) -> str:
    sources = []
    for metric, found in medians.items():
        samples = {"all samples" if m.exact else f"{m.n_samples} samples drawn with seed {m.seed}": None for m in found}
        of = " or ".join(samples)
        sources.append(f"median over {len(found)} models of the median {metric} distance of {of}")
    return "; ".join(sources)


def _moments(operator: Operator) -> Moments:
    m = operator.moments(second=True)
    rows, diagonal = (arrays.where_computed(a) for a in (m.row_sums, m.diagonal))
    return Moments(float(m.total), rows, None, diagonal, m.sum_of_squares, float(m.trace))


def _minus(a: Moments, b: Moments, sum_of_squares: float) -> Moments:
    """Of H^A - H^B."""
    assert a.row_sums is not None and b.row_sums is not None
    return Moments(a.total - b.total, a.row_sums - b.row_sums, None, None, sum_of_squares, None)


def _skce_value(moments: Moments, confidence_level: float) -> Estimate:
    assert moments.row_sums is not None
    error = statistics.standard_error(moments)
    assert error is not None  # there are four samples
    value = statistics.unbiased(moments, moments.row_sums.shape[0])
    quantile = -float(scipy.special.ndtri((1 - confidence_level) / 2))
    high = statistics.score_variance(moments).upper_limit(value, quantile)
    return Estimate(value, error, ConfidenceInterval(value - quantile * error, high))


def _skce_difference(moments: Moments, confidence_level: float, resolution: float) -> Estimate:
    assert moments.row_sums is not None
    error = statistics.generous_standard_error(moments)
    value = statistics.unbiased(moments, moments.row_sums.shape[0])
    return _symmetric(value, error, confidence_level, resolution=resolution)


def _subset(n: int, most: int, seed: int) -> tuple[np.ndarray, int | None]:
    if n <= most:
        return np.arange(n), None
    return np.sort(np.random.default_rng(seed).choice(n, most, replace=False)), seed


def _square_differences(operators: Sequence[Operator], rows: np.ndarray) -> np.ndarray:
    """Mean of (H^A_ij - H^B_ij)^2 over the pairs i != j of `rows`, for each two models."""
    sums = np.zeros((len(operators), len(operators)))
    for begin in range(0, len(rows), STRIP):
        some = rows[begin : begin + STRIP]
        tiles = []
        for operator in operators:
            points = operator.problem.left.points
            tile = arrays.where_computed(operator.tile(arrays.like(some, points), arrays.like(rows, points)))
            tiles.append(_without_own(tile.astype(np.float64), begin))
        for i, j in itertools.combinations(range(len(operators)), 2):
            sums[i, j] += float(((tiles[i] - tiles[j]) ** 2).sum())
    return sums / (len(rows) * (len(rows) - 1))


def _without_own(tile: Array, begin: int) -> Array:
    """The tile of rows `begin` and further, with zeros for pairs of a sample with itself."""
    own = arrays.namespace(tile).arange(tile.shape[0])
    tile[own, begin + own] = 0.0
    return tile


# -- CKCE --------------------------------------------------------------------------------------


def _ckce(data: Sequence[Data], confidence_level: float, options: Options) -> Measured:
    n = data[0].n
    regularization = float(n**-0.25 if options.regularization is None else options.regularization)
    seed = SEED if options.seed is None else int(options.seed)
    rows, _ = _subset(n, CKCE_SAMPLES, seed)
    residuals, packed, source = _residuals_alike(data, options, seed)
    matrices = [KernelMatrix(p, threads=options.threads, operator=options.operator) for p in packed]
    expansions = [
        CKCEExpansion.of(matrix, of_model, n * regularization, rows, seed=seed)
        for matrix, of_model in zip(matrices, residuals, strict=True)
    ]
    degenerate = 2 * n * (n - 1) * _pair_squares(expansions, rows)
    described = describe(data[0], packed[0], matrices[0])
    del described["n_classes"], described["operator_reason"]
    described |= {"regularization": regularization, "dtype": "float64", "threads": matrices[0].threads, "seed": seed}
    described |= {"bandwidth_source": source, **_factors(data, packed)}
    pairs = itertools.combinations(range(len(data)), 2)
    return Measured(
        values=[_ckce_value(e, degenerate[i, i], confidence_level) for i, e in enumerate(expansions)],
        differences=[
            _ckce_difference(expansions[i], expansions[j], degenerate[i, j], confidence_level) for i, j in pairs
        ],
        estimator="CKCE without its bias",
        intervals="normal, differences paired, upper limits of values from a score interval",
        described=described,
    )


def _residuals_alike(data: Sequence[Data], options: Options, seed: int) -> tuple[list[Array], list[Packed], str]:
    """Residuals and kernel matrices of all models with the same kernels, and where bandwidths come from."""
    if isinstance(data[0], Forecasts):
        pointed = all(isinstance(d, Forecasts) and d.prediction.wasserstein_points() is not None for d in data)
        kernel = Gaussian(metric="wasserstein" if pointed else "mmd") if options.kernel is None else options.kernel
        packed, source = _packed_alike(data, replace(options, kernel=kernel))
        residuals = [residuals_of(one, threads=options.threads, seed=seed).rows for one in packed]
        return residuals, [kernel_alone(one) for one in packed], source
    kernel = Linear() + Gaussian() if options.kernel is None else options.kernel
    packed, source = _packed_alike(data, replace(options, kernel=kernel))
    root = packed[0].target.root
    residuals = []
    for one in data:
        assert isinstance(one, Classification)
        rows = arrays.where_computed(_packing.points_and_residuals(one, "float64")[1])
        residuals.append(rows if root is None else rows @ arrays.like(root, rows))
    return residuals, [kernel_alone(one) for one in packed], source


def _ckce_value(expansion: CKCEExpansion, degenerate: float, confidence_level: float) -> Estimate:
    """`degenerate`: the part of the variance that noise alone has."""
    n = len(expansion.scores)
    linear = max(0.0, n * float(expansion.scores.var(ddof=1)) - 2 * degenerate)  # the jackknife holds it twice
    error = math.sqrt(linear + degenerate)
    slope = n * float(expansion.influences.var(ddof=1)) / expansion.plug_in if expansion.plug_in > 0 else 0.0
    quantile = -float(scipy.special.ndtri((1 - confidence_level) / 2))
    high = statistics.ScoreVariance(slope, degenerate).upper_limit(expansion.value, quantile)
    return Estimate(expansion.value, error, ConfidenceInterval(expansion.value - quantile * error, high))


def _ckce_difference(a: CKCEExpansion, b: CKCEExpansion, degenerate: float, confidence_level: float) -> Estimate:
    jackknife = len(a.scores) * float((a.scores - b.scores).var(ddof=1))
    error = math.sqrt(jackknife + degenerate)
    return _symmetric(a.value - b.value, error, confidence_level, resolution=a.error_bound + b.error_bound)


def _pair_squares(expansions: Sequence[CKCEExpansion], rows: np.ndarray) -> np.ndarray:
    """Mean squares over the pairs i != j of `rows`: of models in the diagonal, elsewhere of differences of two."""
    sums = np.zeros((len(expansions), len(expansions)))
    for begin in range(0, len(rows), STRIP):
        some = rows[begin : begin + STRIP]
        tiles = [_without_own(expansion.pairs(some, rows), begin) for expansion in expansions]
        for i, tile in enumerate(tiles):
            sums[i, i] += float((tile**2).sum())
        for i, j in itertools.combinations(range(len(tiles)), 2):
            sums[i, j] += float(((tiles[i] - tiles[j]) ** 2).sum())
    return sums / (len(rows) * (len(rows) - 1))


# -- top-label ECE -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Gaps:
    """The signed gap of each sample, by bins of the confidence; only bins that hold samples. NumPy or CuPy arrays."""

    bins: Array  # number of each sample's bin, shape: (n,)
    gaps: Array  # correctness minus confidence, shape: (n,)
    occupied: Array  # numbers of the bins that hold samples, shape: (b,)
    means: Array  # X: sum of the gaps of each of these bins over n, shape: (b,)
    certain: Array  # whether X is so far from 0 that its sign is sure, shape: (b,)
    sums: Callable[[Array], Array]  # the sum over each bin of gaps / n times weights of shape (n, R), shape (b, R)

    @classmethod
    def of(cls, data: Classification, n_bins: int) -> _Gaps:
        confidence, correct = (arrays.where_computed(a).astype(np.float64) for a in top_label(data))
        xp = arrays.namespace(confidence)
        bins, gaps, n = bin_numbers(confidence, n_bins), correct - confidence, data.n
        occupied, position = xp.unique(bins, return_inverse=True)
        if arrays.is_host(gaps):
            means, squares = np.bincount(position, gaps) / n, np.bincount(position, gaps**2) / n
            matrix = scipy.sparse.csr_array((gaps / n, (position, np.arange(n))), shape=(len(occupied), n))
            sums = matrix.__matmul__
        else:
            segments = Segments.of(position, len(occupied))
            powers = xp.stack((xp.ones_like(gaps), gaps), axis=1)
            means, squares = (segments.sums(powers, gaps) / n).T
            sums = functools.partial(segments.sums, scales=gaps / n)
        variances = xp.maximum(squares - means**2, 0.0) / n
        certain = xp.abs(means) > xp.sqrt(math.log(n) * variances)
        return cls(bins, gaps, occupied, means, certain & (variances > 0), sums)

    @property
    def xp(self) -> Any:
        return arrays.namespace(self.gaps)

    @property
    def signs(self) -> Array:
        return self.xp.sign(self.means)

    @property
    def linear(self) -> Array:
        """The contribution of each sample to the ECE, to first order."""
        return self.signs[self.xp.searchsorted(self.occupied, self.bins)] * self.gaps

    def bounds(self, deviations: Array) -> tuple[Array, Array]:
        """For each bin what |X| exceeds |mu| by: at least, and at most. For deviations X - mu, shape (b, R)."""
        n, b = len(self.bins), len(self.occupied)
        deviations = math.sqrt(n / max(1, n - b)) * deviations  # the bootstrap sees too little in bins of few samples
        low = self.signs[:, None] * deviations
        return low, self.xp.where(self.certain[:, None], low, self.xp.abs(deviations))

    def differing(self, other: _Gaps) -> Array:
        """1 for bins that do not hold the same gaps of the same samples in the other model, otherwise 0, shape (b,)."""
        differ = (self.bins != other.bins) | (self.gaps != other.gaps)
        found = self.xp.isin(self.occupied, self.xp.concatenate([self.bins[differ], other.bins[differ]]))
        return found.astype(np.float64)


def _ece(data: Sequence[Classification], confidence_level: float, options: Options) -> Measured:
    n_bins = N_BINS if options.n_bins is None else int(options.n_bins)
    seed = SEED if options.seed is None else int(options.seed)
    models = [_Gaps.of(one, n_bins) for one in data]
    pairs = list(itertools.combinations(models, 2))
    n_resamples = options.n_resamples
    if n_resamples is None:  # the smallest p-value, adjusted, is then half the level
        n_resamples = max(N_RESAMPLES, math.ceil(4 * len(pairs) / (1 - confidence_level)))
    weights = Weights("multinomial", data[0].n, n_resamples, seed)
    n_resamples = weights.n_replicates
    bounds = _replicates(models, pairs, weights, options.threads)
    values = []
    for model, own in zip(models, bounds[: len(models)], strict=True):
        estimate = _bounded(_ece_of(model), model.linear, own, confidence_level)
        values.append(_clipped(estimate, 0.0, 1.0))
    differences = []
    for (a, b), both in zip(pairs, bounds[len(models) :], strict=True):
        estimate = _bounded(_ece_of(a) - _ece_of(b), a.linear - b.linear, both, confidence_level)
        differences.append(_clipped(estimate, -1.0, 1.0))
    return Measured(
        values,
        differences,
        estimator=f"top-label ECE with {n_bins} bins",
        intervals=f"bounds on the error of the ECE, paired, by a bootstrap with {n_resamples} replicates, seed {seed}",
        described={"n_bins": n_bins, "n_resamples": n_resamples, "seed": seed},
    )


def _ece_of(model: _Gaps) -> float:
    return float(model.xp.sum(model.xp.abs(model.means)))


def _replicates(
    models: Sequence[_Gaps], pairs: Sequence[tuple[_Gaps, _Gaps]], weights: Weights, threads: int | None
) -> np.ndarray:
    """Bootstrap of a lower and an upper bound of (estimate - truth), of the models and then the pairs.

    Shape (models + pairs, 2, replicates).
    """
    out = np.empty((len(models) + len(pairs), 2, weights.n_replicates))
    differing = [(a.differing(b), b.differing(a)) for a, b in pairs]
    for begin, end, counts in batches(models[0].gaps, weights, WEIGHTS_AT_ONCE, threads=threads):
        bounds = {}
        for k, model in enumerate(models):
            bounds[id(model)] = model.bounds(model.sums(counts) - model.means[:, None])
            out[k, :, begin:end] = [arrays.to_host(bound.sum(axis=0)) for bound in bounds[id(model)]]
        for k, ((a, b), (in_a, in_b)) in enumerate(zip(pairs, differing, strict=True), len(models)):
            (low_a, high_a), (low_b, high_b) = bounds[id(a)], bounds[id(b)]
            out[k, 0, begin:end] = arrays.to_host(in_a @ low_a - in_b @ high_b)
            out[k, 1, begin:end] = arrays.to_host(in_a @ high_a - in_b @ low_b)
    return out


def _bounded(value: float, linear: Array, bounds: np.ndarray, confidence_level: float) -> Estimate:
    """Interval and p-value from replicates of a lower and an upper bound of (value - truth)."""
    low, high = np.sort(bounds, axis=1)
    replicates = len(low)
    beyond = int((1 - confidence_level) / 2 * (replicates + 1) * (1 + 1e-12))  # at least 1, by Options.check
    interval = ConfidenceInterval(value - float(high[-beyond]), value - float(low[beyond - 1]))
    exceeding = min(int(np.sum(high >= value)), int(np.sum(low <= value)))
    error = float(linear.std(ddof=1)) / math.sqrt(len(linear))
    return Estimate(value, error, interval, min(1.0, 2 * (1 + exceeding) / (1 + replicates)))


def _clipped(estimate: Estimate, low: float, high: float) -> Estimate:
    limits = ConfidenceInterval(*(min(max(limit, low), high) for limit in estimate.interval))
    return Estimate(estimate.value, estimate.standard_error, limits, estimate.pvalue)


# -- means -------------------------------------------------------------------------------------


def _brier(data: Sequence[Classification], confidence_level: float, options: Options) -> Measured:
    scale = 0.5 if data[0].m == 2 else 1.0
    return _means([scale * arrays.where_computed(square_residuals(one)) for one in data], confidence_level)


def _log_loss(data: Sequence[Classification], confidence_level: float, options: Options) -> Measured:
    return _means([arrays.where_computed(log_losses(one)) for one in data], confidence_level)


def _crps(data: Sequence[Forecasts], confidence_level: float, options: Options) -> Measured:
    return _scores(data, crps_values, confidence_level)


def _log_score(data: Sequence[Forecasts], confidence_level: float, options: Options) -> Measured:
    return _scores(data, log_score_values, confidence_level)


def _scores(data: Sequence[Forecasts], score: Callable[[Forecasts], Array], confidence_level: float) -> Measured:
    measured = _means([score(one) for one in data], confidence_level)
    families = dict.fromkeys(type(one.prediction).__name__ for one in data)
    return replace(measured, described={"prediction": ", ".join(families)})


def _means(losses: Sequence[Array], confidence_level: float) -> Measured:
    def estimate(values: Array, resolution: float = 0.0) -> Estimate:
        mean, error = statistics.mean_and_standard_error(values)
        assert error is not None  # there are four samples
        return _symmetric(mean, error, confidence_level, len(values) - 1, resolution)

    losses = [arrays.where_computed(values).astype(np.float64, copy=False) for values in losses]
    pairs = itertools.combinations(losses, 2)
    return Measured(
        values=[estimate(values) for values in losses],
        differences=[estimate(a - b, ROUNDINGS * EPSILON * float((abs(a) + abs(b)).mean())) for a, b in pairs],
        estimator="mean",
        intervals="t, paired",
    )


# -- the table ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """A row of the table of metrics."""

    measure: Callable[[Sequence[Any], float, Options], Measured]
    options: frozenset[str]  # the fields of `Options` that it has
    of_classes: bool = True
    of_distributions: bool = False


METRICS = {
    "skce": Metric(
        _skce, frozenset({"kernel", "target_kernel", "seed", "dtype", "threads", "operator"}), of_distributions=True
    ),
    "ckce": Metric(
        _ckce,
        frozenset({"kernel", "target_kernel", "regularization", "seed", "threads", "operator"}),
        of_distributions=True,
    ),
    "ece": Metric(_ece, frozenset({"n_bins", "n_resamples", "seed", "threads"})),
    "brier": Metric(_brier, frozenset()),
    "log_loss": Metric(_log_loss, frozenset()),
    "crps": Metric(_crps, frozenset(), of_classes=False, of_distributions=True),
    "log_score": Metric(_log_score, frozenset(), of_classes=False, of_distributions=True),
}
