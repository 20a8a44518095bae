"""`TemperatureScaling`: checks, fit and transform.

`_scalable` has the data that are scaled, `_search` the search for the temperature of maximum likelihood.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from kcalib import _packing
from kcalib._backend import arrays
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import check_choice, check_fraction
from kcalib._input.forecasts import prepare
from kcalib._pairs import statistics
from kcalib._pairs.backends.base import Backend
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.reductions import Moments, sweep_one
from kcalib.distributions import Categorical, Distribution
from kcalib.estimators.skce import PairOptions, describe
from kcalib.kernels import Kernel
from kcalib.recalibration._families import not_closed, temper
from kcalib.recalibration._recalibrator import (
    FLOOR,
    Recalibrator,
    check_floor,
    prepare_unlabelled,
    restore_like,
    unwrap_categorical,
)
from kcalib.recalibration._scalable import Labels, Scalable, family_of, scalable
from kcalib.recalibration._search import (
    BOUNDS,
    ROUNDING,
    TemperatureFit,
    highest,
    normal_quantile,
    warn_of_bound,
    warn_of_nothing,
)
from kcalib.regression.temperature import bound_at, lowest
from kcalib.results import ConfidenceInterval
from kcalib.target_kernels import TargetKernel

GRID = 25  # temperatures between the bounds at which the SKCE is first computed
STEP = 0.05  # of log(T), for derivatives of the SKCE

__all__ = ["TemperatureScaling"]

CRITERIA = ("likelihood", "skce")


class TemperatureScaling(Recalibrator):
    r"""Temperature scaling of predicted class probabilities and distributions.

    A prediction with the density p with respect to a measure :math:`\mu` becomes the one with the density

    .. math:: q \propto p^{1 / T}

    with respect to :math:`\mu` [1]_. One T is fitted for all samples: T > 1 spreads out over-confident predictions, T <
    1 sharpens under-confident ones. The order of classes, hence the accuracy, and the means of distributions do not
    change.

    ========================================== ================================= =================
    predictions                                become                            :math:`\mu`
    ========================================== ================================= =================
    class probabilities                        softmax(log(p) / T); zeros stay   counting measure
    `~kcalib.distributions.Normal`             ``std`` times sqrt(T)             Lebesgue measure
    `~kcalib.distributions.MultivariateNormal` ``cov`` times T                   Lebesgue measure
    `~kcalib.distributions.Laplace`            ``scale`` times T                 Lebesgue measure
    `~kcalib.distributions.PowerExponential`   ``scale`` times T^(1 / (2 shape)) Lebesgue measure
    `~kcalib.distributions.Beta`               ``a`` and ``b`` over T            dy / (y (1 - y))
    `~kcalib.distributions.Dirichlet`          ``alpha`` over T                  dy / product of y
    ========================================== ================================= =================

    Parameters
    ----------
    criterion : {"likelihood", "skce"}
        Fit T by the highest likelihood of the labels [2]_, or the lowest squared kernel calibration error.
    bounds : tuple of two floats, optional
        The lowest and the highest T, positive. By default (0.01, 100), or no bounds if maximum likelihood has a closed
        form, as for all but class probabilities, Beta and Dirichlet distributions.
    confidence_level : float
        Level of the confidence interval, between 0 and 1.
    floor : float, optional
        1e-300 to 0.1. If a label of the fit has the probability 0, as trees, nearest neighbours and naive Bayes
        predict, the likelihood is 0 at every temperature. `fit` and `transform` then raise all smaller probabilities to
        this number before scaling, with a warning. T depends on it: each such label adds -log(floor) / T to the sum of
        log losses. None: an error for "likelihood", and zeros stay zeros for "skce". If no label has the probability 0,
        nothing is raised.
    kernel, target_kernel : optional
        For "skce", as in `kcalib.skce`.
    threads : int, optional
        As in `kcalib.skce`.

    Attributes
    ----------
    temperature_ : float
        T.
    standard_error_ : float or None
        Standard error of T. None at a bound, for "skce" with weights, and for fewer than two samples.
    confidence_interval_ : ConfidenceInterval or None
        Limits ``low`` and ``high`` for T; None without a standard error. ``high`` is infinite if no temperature is too
        high.
    criterion_before_, criterion_after_ : float
        Mean negative log-likelihood in nats, or the biased SKCE, at T = 1 and at `temperature_`, on the samples of the
        fit. The latter is optimistic: evaluate on other samples.
    kernel_, target_kernel_ : str or None
        For "skce", the kernels with their bandwidths as numbers; None for "likelihood".
    n_iterations_ : int
        Newton steps, 0 for closed forms, or evaluations of the SKCE.
    converged_ : bool
        Whether `temperature_` is the optimum; False at a bound.
    floor_ : float or None
        The number that smaller probabilities are raised to, or None.
    n_samples_, family_, classes_, columns_
        As in `Recalibrator`.

    Warns
    -----
    TemperatureBoundWarning
        By `fit`, if the criterion improves up to a bound (for example if all predicted classes are right, where T = 0
        has the highest likelihood), or does not depend on T (one-hot or uniform predictions), where T is set to 1.
    ProbabilityFloorWarning
        By `fit`, if a label has the probability 0, and small probabilities are raised to `floor`.

    See Also
    --------
    kcalib.regression.TemperatureCalibration : Estimate the calibration error by a temperature.
    kcalib.calibration_test : Are the scaled predictions calibrated?

    Notes
    -----
    *Likelihood.* The mean negative log-likelihood is a convex function of 1/T; the standard error is the sandwich
    (Huber-White) one. *SKCE.* The biased estimate, in about 40 evaluations, with a kernel of the predictions as given
    at every T. The user guide explains why, in "Formulas of intervals and tests".

    `fit` raises a TypeError for families that are not closed under temperature scaling, and a ValueError for a label of
    probability 0 without a `floor`, or if all targets equal the predicted means, where T would be 0. Logits at the
    fitted temperature are ``y_pred / temperature_`` if `floor_` is None.

    Standard errors and intervals are asymptotic, and too narrow for few samples. At a high T, different probabilities
    can become equal by rounding.

    References
    ----------
    .. [1] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests beyond classification. ICLR 2021. Appendix F.
    .. [2] C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger. On calibration of modern neural networks. ICML 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from kcalib.distributions import Normal
    >>> from kcalib.recalibration import TemperatureScaling
    >>> scaling = TemperatureScaling().fit([1.0, -2.0, 2.0, 3.0], Normal([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]))
    >>> scaling.temperature_                                # the mean of 1, 4, 4 and 9
    4.5
    >>> scaling.transform(Normal([10.0], [2.0])).std.round(3)
    array([4.243])

    Over-confident class probabilities:

    >>> rng = np.random.default_rng(0)
    >>> true = rng.dirichlet(np.ones(3), size=2000)
    >>> y = (rng.uniform(size=(2000, 1)) > true.cumsum(axis=1)).sum(axis=1)
    >>> p = true**2 / np.sum(true**2, axis=1, keepdims=True)
    >>> scaling = TemperatureScaling().fit(y, p)
    >>> low, high = scaling.confidence_interval_
    >>> bool(low < 2 < high)
    True
    >>> bool(np.all(scaling.transform(p).argmax(axis=1) == p.argmax(axis=1)))
    True
    """

    def __init__(
        self,
        *,
        criterion: str = "likelihood",
        bounds: tuple[float, float] | None = None,
        confidence_level: float = 0.95,
        floor: float | None = FLOOR,
        kernel: Kernel | None = None,
        target_kernel: TargetKernel | None = None,
        threads: int | None = None,
    ) -> None:
        self.criterion = criterion
        self.bounds = bounds
        self.confidence_level = confidence_level
        self.floor = floor
        self.kernel = kernel
        self.target_kernel = target_kernel
        self.threads = threads

    @on_their_gpu
    def fit(
        self, y_true: Any, y_pred: Any, *, sample_weight: Any = None, classes: Any = None, from_logits: bool = False
    ) -> TemperatureScaling:
        check_choice("criterion", self.criterion, CRITERIA)
        bounds, level = _checked_bounds(self.bounds), self.confidence_level
        check_fraction("confidence_level", level)
        floor = None if self.floor is None else check_floor(self.floor, "1e-7, or None")
        if self.criterion == "likelihood":
            _check_unused(kernel=self.kernel, target_kernel=self.target_kernel)
        y_pred = arrays.compute_lazy(y_pred)
        if isinstance(y_pred, Categorical):
            y_pred, classes = unwrap_categorical(y_pred, classes, from_logits)
        elif isinstance(y_pred, Distribution) and temper.dispatch(type(y_pred)) is temper.dispatch(object):
            raise TypeError(not_closed(y_pred))
        data = prepare(
            y_true, y_pred, classes=classes, from_logits=from_logits, sample_weight=sample_weight, threads=self.threads
        )
        if data.has_classes:
            self._set_classes(data, y_pred)
        predictions = scalable(data, y_pred, from_logits)
        names = None, None
        self.floor_ = None
        if floor is not None or self.criterion == "likelihood":
            predictions, self.floor_ = predictions.ensure_likelihood(floor)
        if self.criterion == "likelihood":
            fit = highest(predictions.likelihood(), bounds, level)
        else:
            criterion = SKCECriterion(predictions, self._options())
            fit, names = criterion.lowest(bounds or BOUNDS, level), criterion.names
        self.kernel_, self.target_kernel_ = names
        self.temperature_ = fit.temperature
        self.standard_error_ = fit.standard_error
        self.confidence_interval_ = fit.interval
        self.criterion_before_, self.criterion_after_ = fit.before, fit.after
        self.n_samples_, self.n_iterations_, self.converged_ = data.n, fit.n_iterations, fit.converged
        self.family_ = predictions.family
        return self

    @on_their_gpu
    def transform(self, y_pred: Any, *, classes: Any = None, from_logits: bool = False) -> Any:
        self._check_fitted()
        y_pred = arrays.compute_lazy(y_pred)
        if isinstance(y_pred, Categorical):
            p, classes = unwrap_categorical(y_pred, classes, from_logits)
            return Categorical(self.transform(p, classes=classes), classes)
        if isinstance(y_pred, Distribution):
            for name, is_used in (("classes", classes is not None), ("from_logits", from_logits)):
                if is_used:
                    raise ValueError(f"`{name}` is for arrays, but `y_pred` is {type(y_pred).__name__}; leave it out")
            self._check_family(family_of(y_pred))
            return temper(y_pred, self.temperature_)
        predictions = Labels.of(prepare_unlabelled(y_pred, from_logits, self._check_family), y_pred, from_logits)
        self._match_columns(y_pred, predictions.data.m, classes)  # refuses other classes; the order does not matter
        if self.floor_ is not None:
            predictions = predictions.with_floor(self.floor_)
        return restore_like(predictions.at(self.temperature_).probabilities, y_pred)

    def _options(self) -> PairOptions:
        options = PairOptions(self.kernel, threads=self.threads)
        return options if self.target_kernel is None else replace(options, target_kernel=self.target_kernel)


def _checked_bounds(bounds: Any) -> tuple[float, float] | None:
    if bounds is None:
        return None
    rule = "expected two temperatures, the lower first, such as (0.01, 100.0)"
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        raise TypeError(f"`bounds` is {bounds!r}, {rule}") from None
    if not 0 < low < high < math.inf:
        raise ValueError(f"`bounds` is {bounds!r}, {rule}: positive and finite")
    return low, high


def _check_unused(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"`{name}` is for criterion='skce', not for 'likelihood'; leave it out, or choose that")


class SKCECriterion:
    """The biased SKCE as a function of log(T), with a kernel of the predictions at T = 1."""

    def __init__(self, predictions: Scalable, options: PairOptions) -> None:
        data = predictions.data
        self.predictions, self.data, self.threads = predictions, data, options.threads
        self.packed = _packing.pack(data, options.kernel, options.target_kernel, threads=options.threads)
        description = describe(data, self.packed, self._backend(0.0))
        self.names = description["kernel"], description["target_kernel"]

    def lowest(self, bounds: tuple[float, float], level: float) -> TemperatureFit:
        before = self.value(0.0)
        place, after, n_evaluations = lowest(self.value, *bounds, points=GRID)
        temperature = math.exp(place)
        fit = TemperatureFit(temperature, None, None, before, after, n_evaluations + 1, False)
        bound = bound_at(place, bounds)
        if bound is not None:
            warn_of_bound(bound, before, after)
            return fit._replace(temperature=bound)
        ends = [math.log(bound) for bound in bounds]
        if place == 0 and all(abs(self.value(end) - before) <= 4 * ROUNDING * abs(before) for end in ends):
            warn_of_nothing(temperature)
            return fit
        relative = self._standard_error(place) if self.data.sample_weight is None else None
        if relative is None:
            return fit._replace(converged=True)
        factor = math.exp(normal_quantile(level) * relative)
        interval = ConfidenceInterval(temperature / factor, temperature * factor)
        return fit._replace(standard_error=relative * temperature, interval=interval, converged=True)

    def value(self, log_temperature: float) -> float:
        moments = sweep_one(self._backend(log_temperature), Moments(rows=False))
        return statistics.biased(moments, self.data.n, self.data.sample_weight)

    def _standard_error(self, place: float) -> float | None:
        """Return the error of log(T): 2 sd(g) / (sqrt(n) U''), U' the mean of 2 g_i, the derivatives of row means."""
        n = self.data.n
        moments = [sweep_one(self._backend(place + step), Moments()) for step in (-STEP, 0.0, STEP)]
        values = [statistics.biased(m, n) for m in moments]
        curvature = (values[0] - 2 * values[1] + values[2]) / STEP**2
        if n < 2 or curvature <= 0:
            return None
        below, _, above = (
            arrays.to_compute_device(m.row_sums, np.float64) + arrays.to_compute_device(m.diagonal, np.float64)
            for m in moments
        )
        slopes = (above - below) / (2 * STEP * n)
        deviation = float(arrays.namespace(slopes).std(slopes, correction=1))
        return 2 * deviation / math.sqrt(n) / curvature

    def _backend(self, log_temperature: float) -> Backend:
        """Return the backend of the points at T = 1 and the features of the scaled predictions."""
        packed = self.packed.with_features_of(self.predictions.at(math.exp(log_temperature)), threads=self.threads)
        return backend_for(packed.problem, threads=self.threads)
