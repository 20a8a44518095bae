r"""Recalibration: one number, the temperature, that makes predictions more or less sure of themselves.

`TemperatureScaling` finds the temperature T on labelled predictions and then scales other predictions with it: their
densities, or probabilities, become proportional to p^(1/T) with respect to a reference measure (Widmann et al. 2021,
appendix F). What that is for each family of distributions is in `tempered`, its likelihood in `likelihood_of`; the
search for the highest likelihood is `_highest`, that for the lowest SKCE `SKCECriterion`, which packs pair problems.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy

from kcalib import _packing
from kcalib._backend import arrays
from kcalib._backend.arrays import Array, cast, kind_of
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import check_choice
from kcalib._backend.special import special
from kcalib._backend.warnings import warn
from kcalib._input.checks import reject
from kcalib._input.forecasts import Either as Data
from kcalib._input.forecasts import Forecasts, prepare
from kcalib._input.labels import Classification
from kcalib._pairs import statistics
from kcalib._pairs.dispatch import Operator, operator_for
from kcalib.distributions import (
    Beta,
    Categorical,
    Dirichlet,
    Distribution,
    Laplace,
    MultivariateNormal,
    Normal,
    PowerExponential,
)
from kcalib.distributions._saddle_point import deviance, stirling_error
from kcalib.estimators.skce import PairOptions, describe
from kcalib.kernels import Kernel
from kcalib.regression._function import Parametrised
from kcalib.regression.temperature import at_temperature, logits_of, lowest
from kcalib.results import ConfidenceInterval
from kcalib.target_kernels import TargetKernel

__all__ = ["TemperatureBoundWarning", "TemperatureScaling"]

CRITERIA = ("likelihood", "skce")
BOUNDS = (0.01, 100.0)
GRID = 25  # temperatures between the bounds at which the SKCE is taken first
STEP = 0.05  # of log(T), for derivatives of the SKCE
STRIP, DEVICE_STRIP = 2**18, 2**24  # probabilities that are looked at at once
MAX_ITERATIONS = 200
TOLERANCE = 1e-12  # of log(T)
FARTHEST = 60.0  # log(T) beyond which a confidence limit is infinite
ROUNDING = 2.0**-52


class TemperatureBoundWarning(UserWarning):
    """The best temperature lies beyond a bound, or the samples say nothing about it."""


class TemperatureScaling(Parametrised):
    r"""Temperature scaling of predicted class probabilities and distributions.

    A prediction with the density p with respect to a measure :math:`\mu` becomes the one with the density

    .. math:: q \propto p^{1 / T}

    with respect to :math:`\mu` [1]_. One T is fitted for all samples: above 1, predictions were too sure of themselves
    and are spread out; below 1, they are sharpened. The order of classes (thus the predicted class, and the accuracy)
    and the means of distributions stay.

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
        What T is fitted by: the highest likelihood of the labels [2]_, or the lowest squared kernel calibration error.
    bounds : tuple of two floats, optional
        The lowest and the highest T, positive. By default 0.01 and 100, and none where the highest likelihood has a
        closed form: for all but class probabilities, Beta and Dirichlet distributions.
    confidence_level : float
        Of the confidence interval, between 0 and 1.
    smallest_probability : float
        Smaller predicted probabilities of classes are raised to it before they are scaled, from 0 to 0.1. With 0 zeros
        stay zeros, and the likelihood cannot be fitted if one is that of a label. Not for logits.
    kernel, target_kernel : optional
        For "skce", as in `kcalib.skce`, with its defaults.
    threads : int, optional
        As in `kcalib.skce`.

    Attributes
    ----------
    temperature_ : float
        T.
    standard_error_ : float or None
        Of T. None at a bound, for "skce" with weights, and for fewer than two samples.
    confidence_interval_ : ConfidenceInterval or None
        Limits ``low`` and ``high`` for T; None where there is no standard error. ``high`` is infinite if no
        temperature is too high.
    criterion_before_, criterion_after_ : float
        Mean negative log-likelihood in nats, or the biased SKCE, at T = 1 and at `temperature_`, on the samples of the
        fit. That after is optimistic: evaluate on other samples.
    kernel_, target_kernel_ : str or None
        For "skce", the kernels with their bandwidths as numbers; None for "likelihood".
    n_samples_ : int
        Samples of the fit.
    n_iterations_ : int
        Newton steps, 0 for closed forms, or evaluations of the SKCE.
    converged_ : bool
        Whether `temperature_` is the optimum; False at a bound.
    family_ : str
        What was fitted; `transform` takes the same.

    Warns
    -----
    TemperatureBoundWarning
        By `fit`, if the criterion gets better and better towards a bound (so it is if all predicted classes are right,
        where T = 0 has the highest likelihood), or if it does not depend on T (one-hot or uniform predictions), where T
        is 1.

    See Also
    --------
    kcalib.regression.TemperatureCalibration : Estimates the calibration error by a temperature.
    kcalib.calibration_test : Are the scaled predictions calibrated?

    Notes
    -----
    *Likelihood.* For every family the mean negative log-likelihood is a convex function of 1/T: it is
    :math:`-\log p(y) / T + \log \int p^{1/T} d\mu` up to a constant. Newton's method on its derivative, with bisection
    where a step leaves the bracket, finds the optimum. There is a closed form where T is a scale: of normal
    distributions the mean squared standardised residual, of Laplace's the mean of abs(y - loc) / scale. Time O(n m)
    for a step. The standard error is the sandwich of Huber and White. The interval has all T whose likelihood ratio,
    times the variance by the model over that by the sandwich, is below a quantile of the chi-square law. Neither
    assumes that the scaled predictions are calibrated.

    *SKCE.* The biased estimate, which is not negative. Both kernels have their bandwidths from the predictions given,
    and the kernel on predictions sees these at every T; only the residuals are those of the scaled predictions. That is
    a calibration error of the scaled predictions, too, as they determine the given ones: it is 0 if and only if they
    are calibrated. With a kernel that saw the scaled predictions, whatever its bandwidth, T could run away: at a high T
    all class probabilities are equal, which is calibrated if all classes are equally frequent, and distributions are so
    far apart that no pair has weight. It takes about 40 estimates, each in the time and memory of `kcalib.skce`. Where
    draws stand for distributions they have the same seed at every T. The standard error is that of an M-estimator, with
    derivatives by differences, and the interval symmetric in log(T).

    Standard errors and intervals are asymptotic, that is too narrow for few samples. After rounding, at a high T,
    different probabilities can become equal.

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

    Class probabilities that are too sure of themselves:

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
        smallest_probability: float = 0.0,
        kernel: Kernel | None = None,
        target_kernel: TargetKernel | None = None,
        threads: int | None = None,
    ) -> None:
        self.criterion = criterion
        self.bounds = bounds
        self.confidence_level = confidence_level
        self.smallest_probability = smallest_probability
        self.kernel = kernel
        self.target_kernel = target_kernel
        self.threads = threads

    @on_their_gpu
    def fit(
        self, y_true: Any, y_pred: Any, *, sample_weight: Any = None, classes: Any = None, from_logits: bool = False
    ) -> TemperatureScaling:
        """Find the temperature on labelled predictions, which should not be those of the model's training.

        Parameters
        ----------
        y_true : array_like
            Labels, as in `kcalib.skce`; numbers, shape (n,), or vectors, shape (n, d), for distributions of these.
        y_pred : array_like or Distribution
            Predictions, as in `kcalib.skce`.
        sample_weight : array_like, shape (n,), optional
            Non-negative weights.
        classes : array_like, shape (m,), optional
            The label of each column of `y_pred`, as in `kcalib.skce`.
        from_logits : bool
            `y_pred` holds logits. They are taken as they are, without the rounding of a softmax.

        Returns
        -------
        TemperatureScaling
            Itself.

        Raises
        ------
        TypeError
            As `kcalib.skce`, and for distributions whose family is not closed under temperature scaling.
        ValueError
            As `kcalib.skce`; if a parameter is wrong; by the likelihood, if a label has the probability 0, or if all
            targets are the predicted means, where T would be 0.
        """
        check_choice("criterion", self.criterion, CRITERIA)
        bounds, level = _checked_bounds(self.bounds), _checked_level(self.confidence_level)
        self._check_smallest(y_pred, from_logits)
        if self.criterion == "likelihood":
            _check_unused(kernel=self.kernel, target_kernel=self.target_kernel)
        if isinstance(y_pred, Categorical):
            y_pred, classes = _unwrapped(y_pred, classes, from_logits)
        elif isinstance(y_pred, Distribution) and tempered.dispatch(type(y_pred)) is tempered.dispatch(object):
            raise TypeError(_not_closed(y_pred))
        data = prepare(
            y_true, y_pred, classes=classes, from_logits=from_logits, sample_weight=sample_weight, threads=self.threads
        )
        logits = None if isinstance(data, Forecasts) else self._logits(data, y_pred, from_logits)
        names = None, None
        if self.criterion == "likelihood":
            found = _highest(_likelihood(data, logits), bounds, level)
        else:
            criterion = SKCECriterion(data, logits, self._options())
            found, names = criterion.lowest(bounds or BOUNDS, level), criterion.names
        self.kernel_, self.target_kernel_ = names
        self.temperature_ = found.temperature
        self.standard_error_ = found.standard_error
        self.confidence_interval_ = found.interval
        self.criterion_before_, self.criterion_after_ = found.before, found.after
        self.n_samples_, self.n_iterations_, self.converged_ = data.n, found.n_iterations, found.converged
        self.family_ = _family_of(data)
        return self

    @on_their_gpu
    def transform(self, y_pred: Any, *, from_logits: bool = False) -> Any:
        """Predictions at the fitted temperature.

        Parameters
        ----------
        y_pred : array_like or Distribution
            Predictions of the kind that was fitted.
        from_logits : bool
            `y_pred` holds logits.

        Returns
        -------
        array or Distribution
            As `y_pred`: distributions of the same family; or probabilities (of logits, too) of the same shape and
            floating point type, in the same array library on the same device (float32 if JAX has no 64-bit floats).
            NumPy arrays for lists, data frames and Dask arrays. Logits at the fitted temperature are
            ``y_pred / temperature_``.

        Raises
        ------
        TypeError, ValueError
            As `kcalib.skce` for its `y_pred`; ValueError if nothing was fitted yet, or something else.
        """
        if not hasattr(self, "temperature_"):
            raise ValueError(f"this {type(self).__name__} is not fitted; call fit(y_true, y_pred) first")
        self._check_smallest(y_pred, from_logits)
        if isinstance(y_pred, Categorical):
            p, classes = _unwrapped(y_pred, None, from_logits)
            return Categorical(self.transform(p), classes)
        if isinstance(y_pred, Distribution):
            if from_logits:
                raise ValueError(f"`from_logits` is for arrays, but `y_pred` is {type(y_pred).__name__}; leave it out")
            self._check_family(_family_of(y_pred))
            return tempered(y_pred, self.temperature_)
        data = _unlabelled(y_pred, from_logits)
        self._check_family(_family_of(data))
        return _returned(at_temperature(self._logits(data, y_pred, from_logits), self.temperature_), y_pred)

    @on_their_gpu
    def fit_transform(
        self, y_true: Any, y_pred: Any, *, sample_weight: Any = None, classes: Any = None, from_logits: bool = False
    ) -> Any:
        """Fit, and scale the same predictions.

        Parameters
        ----------
        y_true, y_pred, sample_weight, classes, from_logits
            As in `fit`.

        Returns
        -------
        array or Distribution
            As `transform`. Measures of these predictions on these labels are optimistic.
        """
        self.fit(y_true, y_pred, sample_weight=sample_weight, classes=classes, from_logits=from_logits)
        return self.transform(y_pred, from_logits=from_logits)

    def _logits(self, data: Classification, y_pred: Any, from_logits: bool) -> Array:
        return logits_given(data, y_pred) if from_logits else logits_of(_raised(data, self.smallest_probability))

    def _check_smallest(self, y_pred: Any, from_logits: bool) -> None:
        smallest = self.smallest_probability
        if isinstance(smallest, (bool, np.bool_)) or not isinstance(smallest, (int, float, np.number)):
            raise TypeError(f"`smallest_probability` is {smallest!r}, expected a number, such as 1e-7")
        if not 0 <= smallest <= 0.1:
            raise ValueError(f"`smallest_probability` is {smallest}, expected a number from 0 to 0.1, such as 1e-7")
        of_labels = isinstance(y_pred, Categorical) or not isinstance(y_pred, Distribution)
        if smallest > 0 and (from_logits or not of_labels):
            given = "logits" if from_logits else type(y_pred).__name__
            raise ValueError(f"`smallest_probability` is for class probabilities, not for {given}; leave it out")

    def _options(self) -> PairOptions:
        options = PairOptions(self.kernel, threads=self.threads)
        return options if self.target_kernel is None else replace(options, target_kernel=self.target_kernel)

    def _check_family(self, family: str) -> None:
        if family != self.family_:
            raise ValueError(
                f"`y_pred` holds {family}, but the temperature was fitted to {self.family_}; fit it to these"
            )


class Found(NamedTuple):
    """A fitted temperature."""

    temperature: float
    standard_error: float | None
    interval: ConfidenceInterval | None
    before: float  # the criterion at T = 1
    after: float
    n_iterations: int
    converged: bool


# Families: predictions at another temperature.


@functools.singledispatch
def tempered(prediction: Distribution, temperature: float) -> Distribution:
    """The distributions at a temperature, where that does not lead out of their family."""
    raise TypeError(_not_closed(prediction))


@tempered.register
def _(prediction: Normal, temperature: float) -> Normal:
    return Normal(prediction.mean, math.sqrt(temperature) * prediction.std)


@tempered.register
def _(prediction: MultivariateNormal, temperature: float) -> MultivariateNormal:
    return MultivariateNormal(prediction.mean, scale_tril=math.sqrt(temperature) * prediction.scale_tril)


@tempered.register
def _(prediction: Laplace, temperature: float) -> Laplace:
    return Laplace(prediction.loc, temperature * prediction.scale)


@tempered.register
def _(prediction: PowerExponential, temperature: float) -> PowerExponential:
    return PowerExponential(
        prediction.loc, temperature ** (0.5 / prediction.shape) * prediction.scale, prediction.shape
    )


@tempered.register
def _(prediction: Beta, temperature: float) -> Beta:
    return Beta(prediction.a / temperature, prediction.b / temperature)


@tempered.register
def _(prediction: Dirichlet, temperature: float) -> Dirichlet:
    return Dirichlet(prediction.alpha / temperature)


def _not_closed(prediction: Any) -> str:
    return (
        f"`y_pred` is {type(prediction).__name__}, expected class probabilities, or distributions of one of the "
        f"families {', '.join(_families())}: others are not closed under temperature scaling"
    )


def _families() -> list[str]:
    return [family.__name__ for family in tempered.registry if family is not object]


# Families: likelihoods.


@dataclass(frozen=True)
class Likelihood:
    """The negative log-likelihood of each sample, constant - beta observed + cumulant(beta), beta = 1 / T."""

    observed: Array  # log p(y) with respect to the reference measure, up to a constant; shape: (n,)
    constant: Array  # what makes it the negative log-likelihood of y itself, shape: (n,)
    # beta -> log of the integral of p^beta, and its two derivatives: mean and variance of log p(Z) of Z ~ q; (n,) each
    cumulant: Callable[[float], tuple[Array, Array, Array]]
    weight: Array  # shape: (n,)
    # cumulant(beta) = -shape log(beta), so that the optimum is sum(-observed) / sum(shape); None if it is another
    shape: Array | None = None

    def at(self, beta: float) -> tuple[float, float, float]:
        """The weighted mean and its derivatives."""
        value, slope, curvature = self.cumulant(beta)
        xp = arrays.namespace(self.weight)
        total = xp.sum(self.weight)
        terms = (self.constant - beta * self.observed + value, slope - self.observed, curvature)
        mean, first, second = (float(xp.sum(one * self.weight) / total) for one in terms)
        return mean, first, second

    def spread(self, beta: float) -> float:
        """Sum of squares of the terms of the sum that the first derivative is, with its n - 1 for n."""
        scores = self.weight / self.weight.sum() * (self.cumulant(beta)[1] - self.observed)
        n = int((self.weight != 0).sum())
        return float(scores @ scores) * n / (n - 1)


def _likelihood(data: Data, logits: Array | None) -> Likelihood:
    targets = arrays.where_computed(
        data.y[:, 0] if isinstance(data, Forecasts) else data.probabilities[:, 0], np.float64
    )
    weight = arrays.namespace(targets).ones_like(targets)
    if data.sample_weight is not None:
        weight = arrays.where_computed(data.sample_weight, np.float64)
    if isinstance(data, Forecasts):
        return likelihood_of(data.prediction, data.y, weight)
    assert logits is not None
    return _of_labels(arrays.where_computed(logits, np.float64), arrays.where_computed(data.labels), weight)


def _of_labels(logits: Array, labels: Array, weight: Array) -> Likelihood:
    xp = arrays.namespace(logits)
    observed = logits[xp.arange(len(labels)), labels]
    impossible = (observed == -np.inf) & (weight > 0)
    if impossible.any():
        i, count = int(impossible.argmax()), int(impossible.sum())
        raise ValueError(
            f"`y_true[{i}]` is class {int(labels[i])}, whose predicted probability is 0 (so for {count} of "
            f"{len(labels)} samples): the likelihood is 0 at every temperature; raise small probabilities by "
            "smallest_probability=1e-7, say, pass logits, or use criterion='skce'"
        )

    def cumulant(beta: float) -> tuple[Array, Array, Array]:
        rows = max(1, (STRIP if arrays.is_host(logits) else DEVICE_STRIP) // logits.shape[1])
        parts = [_log_partition(logits[i : i + rows], beta) for i in range(0, len(logits), rows)]
        value, slope, curvature = (xp.concat(part) for part in zip(*parts, strict=True))
        return value, slope, curvature

    # What is left of labels with the probability 0 has no weight.
    observed = xp.where(xp.isfinite(observed), observed, 0.0)
    return Likelihood(observed, xp.zeros_like(observed), cumulant, weight)


def _log_partition(logits: Array, beta: float) -> tuple[Array, Array, Array]:
    """log sum exp(beta l), and mean and variance of l under the softmax; the highest l of each row is 0."""
    xp = arrays.namespace(logits)
    with np.errstate(over="ignore"):
        powers = xp.exp(beta * logits)
    sums = powers.sum(axis=1)
    finite = xp.where(powers > 0, logits, 0.0)  # 0 * -inf
    mean = _row_sums(powers, finite) / sums
    deviations = xp.where(powers > 0, logits - mean[:, None], 0.0)
    return xp.log(sums), mean, _row_sums(powers, deviations, deviations) / sums


def _row_sums(*factors: Array) -> Array:
    """Sums of products along the rows, shape (n,)."""
    if arrays.is_host(factors[0]):
        return np.einsum(",".join(["ij"] * len(factors)) + "->i", *factors)
    return functools.reduce(operator.mul, factors).sum(axis=1)


@functools.singledispatch
def likelihood_of(prediction: Distribution, y: Array, weight: Array) -> Likelihood:
    """The likelihood of targets, shape (n, d), as a function of the temperature."""
    raise TypeError(_not_closed(prediction))


@likelihood_of.register
def _(prediction: Normal, y: Array, weight: np.ndarray) -> Likelihood:
    r = arrays.where_computed((y - prediction.expected_value()) / prediction.standard_deviation(), np.float64)
    return _of_energies(prediction, y, 0.5 * (r * r).sum(axis=1), prediction.n_dims / 2, weight)


@likelihood_of.register
def _(prediction: MultivariateNormal, y: Array, weight: np.ndarray) -> Likelihood:
    factors, gaps = (arrays.where_computed(a, np.float64) for a in (prediction.scale_tril, y - prediction.mean))
    r = arrays.namespace(factors).linalg.solve(factors, gaps[:, :, None])[:, :, 0]
    return _of_energies(prediction, y, 0.5 * (r * r).sum(axis=1), prediction.n_dims / 2, weight)


@likelihood_of.register
def _(prediction: Laplace, y: Array, weight: np.ndarray) -> Likelihood:
    energy = arrays.where_computed(abs(y[:, 0] - prediction.loc) / prediction.scale, np.float64)
    return _of_energies(prediction, y, energy, 1.0, weight)


@likelihood_of.register
def _(prediction: PowerExponential, y: Array, weight: np.ndarray) -> Likelihood:
    z = arrays.where_computed((y[:, 0] - prediction.loc) / prediction.scale, np.float64)
    xp, shape = arrays.namespace(z), arrays.where_computed(prediction.shape, np.float64)
    with np.errstate(over="ignore"):
        energy = 0.5 * abs(z) ** (2 * shape)
    reject(
        energy,
        ~xp.isfinite(energy) & (weight > 0),
        lambda at, x: f"`y_true{at}` is so far from the predicted mean that its likelihood is 0; drop such samples",
    )
    return _of_energies(prediction, y, xp.where(weight > 0, energy, 0.0), 0.5 / shape, weight)


@likelihood_of.register
def _(prediction: Beta, y: Array, weight: np.ndarray) -> Likelihood:
    first, a, b = (arrays.where_computed(one, np.float64) for one in (y[:, 0], prediction.a, prediction.b))
    xp = arrays.namespace(a)
    return _of_shares(xp.stack([a, b], axis=1), xp.stack([first, 1 - first], axis=1), weight)


@likelihood_of.register
def _(prediction: Dirichlet, y: Array, weight: np.ndarray) -> Likelihood:
    shares = arrays.where_computed(y, np.float64)
    alpha = arrays.where_computed(prediction.alpha, np.float64)
    return _of_shares(alpha, shares / shares.sum(axis=1, keepdims=True), weight)


def _of_energies(prediction: Any, y: Array, energy: Array, shape: Any, weight: Array) -> Likelihood:
    """Densities proportional to beta^shape exp(-beta energy) with respect to Lebesgue measure."""
    xp = arrays.namespace(energy)
    shape = xp.zeros_like(energy) + shape

    def cumulant(beta: float) -> tuple[Array, Array, Array]:
        return -shape * math.log(beta), -shape / beta, shape / beta**2

    targets = arrays.namespace(y).reshape(y, (prediction.n, *prediction.event_shape))
    at_one = xp.where(weight > 0, -arrays.where_computed(prediction.log_density(targets), np.float64), 0.0)
    return Likelihood(-energy, at_one - energy, cumulant, weight, shape)


def _of_shares(alpha: Array, y: Array, weight: Array) -> Likelihood:
    """Dirichlet densities, in forms without differences of large terms."""
    reject(
        y,
        y <= 0,
        lambda at, x: (
            f"`y_true[{at[1:].partition(',')[0]}]` has a share of 0 or 1, where the density is 0 or infinite at every "
            "temperature; move such targets inside, or use criterion='skce'"
        ),
    )
    total = alpha.sum(axis=1, keepdims=True)
    observed = -deviance(alpha, total * y, alpha - total * y).sum(axis=1)

    def cumulant(beta: float) -> tuple[Array, Array, Array]:
        # Of all entries less that of the total. The terms beta sum(alpha log(alpha / total)) are in `observed`.
        values, slopes, curvatures = (
            of_entries.sum(axis=1) - of_total[:, 0]
            for of_entries, of_total in zip(_log_gamma(beta * alpha), _log_gamma(beta * total), strict=True)
        )
        return values, slopes / beta, curvatures / beta**2

    return Likelihood(observed, arrays.namespace(y).log(y).sum(axis=1), cumulant, weight)


def _log_gamma(x: Array) -> tuple[Array, Array, Array]:
    """g(x) = log Gamma(x) - x log(x) + x, x g'(x) and x^2 g''(x)."""
    xp = arrays.namespace(x)
    r = 1 / xp.maximum(x, 30.0)
    s = r * r
    slope = -0.5 - r * (1 / 12 - s * (1 / 120 - s * (1 / 252 - s / 240)))
    curvature = 0.5 + r * (1 / 6 - s * (1 / 30 - s * (1 / 42 - s / 30)))
    small = xp.minimum(x, 30.0)
    slope = xp.where(x < 30, small * (special(x).digamma(small) - xp.log(small)), slope)
    curvature = xp.where(x < 30, small * small * special(x).zeta(2.0, small) - small, curvature)
    return stirling_error(x) + 0.5 * xp.log(2 * math.pi / x), slope, curvature


# The highest likelihood.


def _highest(likelihood: Likelihood, bounds: tuple[float, float] | None, level: float) -> Found:
    if likelihood.shape is not None:
        temperature, n_iterations, converged = _in_closed_form(likelihood, bounds)
    else:
        temperature, n_iterations, converged = _by_newton(likelihood, bounds or BOUNDS)
    beta = 1 / temperature
    after, _, curvature = likelihood.at(beta)
    error = interval = None
    if converged and int((likelihood.weight != 0).sum()) > 1 and curvature > 0:
        spread = likelihood.spread(beta)
        relative = math.sqrt(spread) / curvature / beta  # error of beta, and so of T
        error = relative * temperature
        limit = after + _normal_quantile(level) ** 2 * spread / curvature / 2
        ratios = [_crossing(likelihood, beta, limit, way * relative) for way in (1, -1)]
        interval = ConfidenceInterval(*(temperature / ratio if ratio else math.inf for ratio in ratios))
    return Found(temperature, error, interval, likelihood.at(1.0)[0], after, n_iterations, converged)


def _normal_quantile(level: float) -> float:
    """Standard deviations on both sides of the mean that have this probability."""
    return float(scipy.special.ndtri(0.5 + level / 2))


def _in_closed_form(likelihood: Likelihood, bounds: tuple[float, float] | None) -> tuple[float, int, bool]:
    assert likelihood.shape is not None
    weight = likelihood.weight
    temperature = float(-(weight @ likelihood.observed) / (weight @ likelihood.shape))
    if bounds is not None:
        nearest = min(max(temperature, bounds[0]), bounds[1])
        if nearest != temperature:
            _warn_of_bound(nearest)
        return nearest, 0, nearest == temperature
    if temperature == 0:
        raise ValueError(
            "`y_true` holds the centres of the predicted distributions, so that the likelihood grows without a limit "
            "as T -> 0; check the targets, or pass bounds="
        )
    return temperature, 0, True


def _by_newton(likelihood: Likelihood, bounds: tuple[float, float]) -> tuple[float, int, bool]:
    """T, the number of steps, and whether it is inside the bounds.

    The derivative increases with beta. Newton's steps are for log(beta), and are replaced by bisection where they
    leave the bracket or do not shrink.
    """
    low, high = 1 / bounds[1], 1 / bounds[0]
    beta = min(max(1.0, low), high)
    _, at_low, curvature = likelihood.at(low)
    if abs(at_low) <= ROUNDING and curvature <= ROUNDING**2:
        _warn_of_nothing(1 / beta)
        return 1 / beta, 0, False
    if at_low >= 0 or likelihood.at(high)[1] <= 0:
        bound = bounds[1] if at_low >= 0 else bounds[0]
        _warn_of_bound(bound)
        return bound, 0, False
    last = math.log(high / low)
    for n_iterations in range(1, MAX_ITERATIONS):
        _, slope, curvature = likelihood.at(beta)
        low, high = (beta, high) if slope < 0 else (low, beta)
        step = -slope / (beta * curvature) if curvature > 0 else math.inf
        if abs(step) > abs(last) / 2 or not math.log(low / beta) <= step <= math.log(high / beta):
            step = (math.log(low / beta) + math.log(high / beta)) / 2
        beta, last = beta * math.exp(step), step
        if abs(step) <= TOLERANCE:
            return 1 / beta, n_iterations, True
    raise AssertionError("bisection shrinks the bracket")


def _crossing(likelihood: Likelihood, beta: float, limit: float, step: float) -> float:
    """Where the negative log-likelihood is `limit`, beside its minimum, relative to that; 0 or inf if nowhere."""

    def excess(log_ratio: float) -> float:
        return likelihood.at(beta * math.exp(log_ratio))[0] - limit

    while step != 0 and excess(step) < 0:
        step *= 2
        if abs(step) > FARTHEST:
            return math.inf if step > 0 else 0.0
    return math.exp(float(scipy.optimize.brentq(excess, 0.0, step, xtol=TOLERANCE))) if step else 1.0


# The lowest SKCE.


class SKCECriterion:
    """The biased SKCE as a function of log(T), with a kernel that sees the predictions at T = 1."""

    def __init__(self, data: Data, logits: Array | None, options: PairOptions) -> None:
        self.data, self.logits, self.threads = data, logits, options.threads
        self.packed = _packing.pack(data, options.kernel, options.target_kernel, threads=options.threads)
        described = describe(data, self.packed, self._operator(0.0))
        self.names = described["kernel"], described["target_kernel"]

    def lowest(self, bounds: tuple[float, float], level: float) -> Found:
        before = self.value(0.0)
        place, after, n_evaluations = lowest(self.value, *bounds, points=GRID)
        temperature, ends = math.exp(place), [np.log(bound) for bound in bounds]
        found = Found(temperature, None, None, before, after, n_evaluations + 1, False)
        if place in ends:
            _warn_of_bound(bounds[int(place == ends[1])])
            return found._replace(temperature=bounds[int(place == ends[1])])
        if place == 0 and all(abs(self.value(end) - before) <= 4 * ROUNDING * abs(before) for end in ends):
            _warn_of_nothing(temperature)
            return found
        relative = self._standard_error(place) if self.data.sample_weight is None else None
        if relative is None:
            return found._replace(converged=True)
        factor = math.exp(_normal_quantile(level) * relative)
        interval = ConfidenceInterval(temperature / factor, temperature * factor)
        return found._replace(standard_error=relative * temperature, interval=interval, converged=True)

    def value(self, log_temperature: float) -> float:
        moments = self._operator(log_temperature).moments(rows=False)
        return statistics.biased(moments, self.data.n, self.data.sample_weight)

    def _standard_error(self, place: float) -> float | None:
        """Of log(T): 2 sd(g) / (sqrt(n) U''), with U' the mean of 2 g_i, the derivatives of row means."""
        n = self.data.n
        moments = [self._operator(place + step).moments() for step in (-STEP, 0.0, STEP)]
        values = [statistics.biased(m, n) for m in moments]
        curvature = (values[0] - 2 * values[1] + values[2]) / STEP**2
        if n < 2 or curvature <= 0:
            return None
        below, _, above = (
            arrays.where_computed(m.row_sums, np.float64) + arrays.where_computed(m.diagonal, np.float64)
            for m in moments
        )
        slopes = (above - below) / (2 * STEP * n)
        deviation = float(arrays.namespace(slopes).std(slopes, correction=1))
        return 2 * deviation / math.sqrt(n) / curvature

    def _operator(self, log_temperature: float) -> Operator:
        """Of the points at T = 1, and the marks of the scaled predictions."""
        temperature = math.exp(log_temperature)
        data: Data
        if not isinstance(self.data, Forecasts):
            assert self.logits is not None
            data = replace(self.data, probabilities=at_temperature(self.logits, temperature))
        else:
            data = replace(self.data, prediction=tempered(self.data.prediction, temperature))
        packed = self.packed.with_marks_of(data, threads=self.threads)
        return operator_for(packed.problem, threads=self.threads)


# Input and output.


def _family_of(predicted: Data | Distribution) -> str:
    """What is predicted, for comparison and for messages."""
    if isinstance(predicted, Classification):
        return f"probabilities of {predicted.m} classes"
    prediction = predicted.prediction if isinstance(predicted, Forecasts) else predicted
    size = "" if prediction.event_shape == () else f" of {prediction.n_dims} entries"
    return f"{type(prediction).__name__} distributions{size}"


def _unwrapped(y_pred: Categorical, classes: Any, from_logits: bool) -> tuple[Array, Any]:
    """The probabilities, and the classes given with them or beside them."""
    if from_logits:
        raise ValueError("`from_logits` is for arrays, but `y_pred` is Categorical; leave it out")
    if classes is not None and y_pred.classes is not None:
        raise ValueError("`classes` is given twice, with `y_pred` and beside it; leave one out")
    return y_pred.probabilities, y_pred.classes if classes is None else classes


def _unlabelled(y_pred: Any, from_logits: bool) -> Classification:
    array = arrays.as_array(y_pred, "y_pred")
    data = prepare(np.zeros(array.shape[0] if array.ndim else 0, dtype=np.int64), y_pred, from_logits=from_logits)
    assert isinstance(data, Classification)
    return data


def logits_given(data: Classification, y_pred: Any) -> Array:
    """Logits as they are, without the rounding of a softmax, shape (n, m), the highest of each row 0."""
    xp = data.xp
    logits = cast(xp, arrays.as_array(y_pred, "y_pred"), "float64", or_else="float32")
    if logits.ndim == 1 or logits.shape[1] == 1:
        second = xp.reshape(logits, (-1,))
        logits = xp.stack((xp.zeros_like(second), second), axis=1)
    return logits - xp.max(logits, axis=1, keepdims=True)


def _raised(data: Classification, smallest: float) -> Array:
    p = data.probabilities
    return p if smallest == 0 else data.xp.where(p < smallest, data.xp.full_like(p, smallest), p)


def _returned(q: Array, y_pred: Any) -> Array:
    """Probabilities in the shape, the floating point type and the library of `y_pred`."""
    array = arrays.as_array(y_pred, "y_pred")
    if array.ndim == 1 or array.shape[1] == 1:
        q = arrays.namespace(q).reshape(q[:, 1], tuple(array.shape))
    if kind_of(array) == "f":
        q = arrays.namespace(q).astype(q, array.dtype, copy=False)
    return arrays.restored(q, y_pred)


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


def _checked_level(level: Any) -> float:
    if isinstance(level, (bool, np.bool_)) or not isinstance(level, (int, float, np.number)):
        raise TypeError(f"`confidence_level` is {level!r}, expected a number, such as 0.95")
    if not 0 < level < 1:
        raise ValueError(f"`confidence_level` is {level}, expected a number between 0 and 1, such as 0.95")
    return float(level)


def _check_unused(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"`{name}` is for criterion='skce', not for 'likelihood'; leave it out, or choose that")


def _warn_of_bound(bound: float) -> None:
    warn(
        f"the criterion gets better up to the bound T = {bound:g}, which was taken; pass wider bounds=, or more "
        "samples (T -> 0: all labels are the most probable ones; a high T: predictions are worth no more than uniform)",
        TemperatureBoundWarning,
    )


def _warn_of_nothing(temperature: float) -> None:
    warn(
        f"the criterion is the same at all temperatures, and {temperature:g} was taken: every prediction is uniform "
        "over the classes that it holds possible; fit to others, such as logits, or probabilities before rounding",
        TemperatureBoundWarning,
    )
