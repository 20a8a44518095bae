"""The familiar numbers about predicted distributions: CRPS, log score, pinball loss, PIT values, quantile calibration.

Public functions check their input (`kcalib._input.forecasts`) and call functions of checked data, which
`kcalib.evaluation` and `kcalib.inference.compare` call too: `crps_values`, `log_score_values`, `pinball_values`,
`pit_of`, `curve_of`. All is computed in float64, on a GPU for CuPy arrays, otherwise on the host.

The CRPS has closed forms for mixtures of normals and of Laplace laws, for samples and for counts; otherwise it is
an integral over quantiles. A distribution of the user's own, of which nothing but draws is known, is taken as
`N_DRAWS` of them (`_backend.draws`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.memory import check_memory
from kcalib._backend.options import check_integer, check_seed
from kcalib._backend.special import brought, special
from kcalib._input.forecasts import FOREIGN, Forecasts, prepare
from kcalib._pairs.problem import Components
from kcalib.distributions import Distribution, NegativeBinomial, Poisson, Samples, as_distribution
from kcalib.estimators.reliability import Band
from kcalib.report import figures

__all__ = ["QuantileCalibration", "crps", "log_score", "pinball_loss", "pit_values", "quantile_calibration"]

LEVELS = tuple(round(0.05 * i, 2) for i in range(1, 20))  # of the pinball loss in Widmann et al. 2021, appendix A.3
N_DRAWS = 512  # of a distribution that offers nothing else
DRAW_SEED = 0
PIT_STREAM = 0x504954  # beside the seed: targets simulated with the same seed are not made of the same numbers
# Levels of the quantiles between which F is integrated, and nodes of Gauss and Legendre's rule there.
KNOTS = (1e-8, 1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999, 1 - 1e-4, 1 - 1e-6, 1 - 1e-8)
N_NODES = 20
HISTOGRAM_BINS = 20
BATCH_ELEMENTS = 2**20  # numbers in memory at a time


@on_their_gpu
def crps(y_true: Any, y_pred: Distribution, *, fair: bool = False, sample_weight: Any = None) -> float:
    r"""Mean continuous ranked probability score; the energy score for predictions of vectors.

    In the units of the targets; for predictions without spread it is the mean absolute error.

    Parameters
    ----------
    y_true : array_like, shape (n,) or (n, d)
        Targets.
    y_pred : Distribution
        Predicted distributions, see `kcalib.distributions`.
    fair : bool
        For samples: the score that the distribution they were drawn from would have on average,
        instead of that of the S samples as a distribution by themselves, which is worse for smaller S.
    sample_weight : array_like, shape (n,), optional
        Non-negative weights.

    Returns
    -------
    float
        The score; lower is better.

    Raises
    ------
    TypeError
        If `y_pred` is no distribution of numbers or vectors.
    ValueError
        As `kcalib.skce` for its arguments; if `fair` is asked for and the predictions are not two or more samples.

    Notes
    -----
    With Z and Z' drawn independently from the prediction the score is

    .. math:: \mathrm{E} |Z - y| - \tfrac12 \mathrm{E} |Z - Z'| = \int (F(x) - 1\{y \le x\})^2 \,\mathrm{d}x

    (numbers [1]_), or the first with the Euclidean norm (energy score). Closed forms [2]_: mixtures of normal and of
    Laplace distributions, samples (time O(n S log S)), Poisson and negative binomial distributions. The energy score
    of mixtures of normals is an integral over the Laplace transform of the squared norm, by the trapezoidal rule to
    about 1e-11 of the score's scale; of samples of vectors it is exact, in time O(n S^2 d). Other distributions of
    numbers: the integral above by Gauss and Legendre's rule between quantiles, to 1e-6 or better. What has no
    quantiles is represented by 512 quasi Monte Carlo draws with seed 0, as are Dirichlet distributions.

    References
    ----------
    .. [1] T. Gneiting, A. E. Raftery. Strictly proper scoring rules, prediction, and estimation. Journal of the
       American Statistical Association, 2007.
    .. [2] A. Jordan, F. Krueger, S. Lerch. Evaluating probabilistic forecasts with scoringRules. Journal of
       Statistical Software, 2019.

    Examples
    --------
    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> round(kcalib.crps([0.0, 3.0], Normal([0.0, 1.0], [1.0, 2.0])), 6)
    0.719289
    """
    data = forecasts_of(y_true, y_pred, sample_weight)
    return mean_of(data, crps_values(data, fair=fair))


@on_their_gpu
def log_score(y_true: Any, y_pred: Distribution, *, sample_weight: Any = None) -> float:
    """Mean negative log-likelihood of the targets, in nats.

    Parameters
    ----------
    y_true, y_pred, sample_weight
        As in `kcalib.crps`.

    Returns
    -------
    float
        The score; lower is better. For densities it can be negative, and it changes with the units of the targets.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.crps`, and if the predictions have no density, as samples have none.

    Examples
    --------
    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> round(kcalib.log_score([0.0], Normal([0.0], [1.0])), 6)
    0.918939
    """
    data = forecasts_of(y_true, y_pred, sample_weight)
    return mean_of(data, log_score_values(data))


@on_their_gpu
def pinball_loss(y_true: Any, y_pred: Distribution, *, levels: Any = LEVELS, sample_weight: Any = None) -> float:
    r"""Mean pinball loss of predicted quantiles, averaged over levels.

    Parameters
    ----------
    y_true, y_pred, sample_weight
        As in `kcalib.crps`, for predictions of numbers.
    levels : array_like, shape (k,)
        Levels of the quantiles, each in (0, 1); default 0.05, 0.1, ..., 0.95.

    Returns
    -------
    float
        The mean over samples and levels of
        :math:`(1 - \tau) (q_\tau - y)_+ + \tau (y - q_\tau)_+`; lower is better. Averaged over all levels in (0, 1) it
        is half of the CRPS. Time and memory O(n k).

    Raises
    ------
    TypeError, ValueError
        As `kcalib.crps`; if a level is out of range; for predictions of vectors.

    Notes
    -----
    Widmann, Lindsten and Zachariah (2021), appendix A.3. A distribution of your own without `quantile` is
    represented by 512 draws with seed 0.

    Examples
    --------
    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> round(kcalib.pinball_loss([1.0], Normal([0.0], [1.0]), levels=[0.5]), 6)
    0.5
    """
    data = forecasts_of(y_true, y_pred, sample_weight)
    return mean_of(data, pinball_values(data, checked_levels(levels)))


@on_their_gpu
def pit_values(y_true: Any, y_pred: Distribution, *, seed: int = 0) -> Array:
    """Probability integral transform: where in its predicted distribution each target lies.

    Parameters
    ----------
    y_true, y_pred
        As in `kcalib.crps`, for predictions of numbers.
    seed : int
        Of the randomisation for counts and samples.

    Returns
    -------
    array, float64, shape (n,)
        NumPy's, or CuPy's for predictions on a GPU.
        In [0, 1]: P(Z <= y) for continuous predictions. For counts P(Z < y) + u P(Z = y) with u uniform in (0, 1). For
        S samples the rank of the target among them, (number below + u (1 + number equal)) / (S + 1), which is uniform
        if targets and samples are drawn from the same distribution; if they have weights w, S is 1 / (sum of w^2) and
        numbers are weights times S. Of a calibrated model the values are uniform;
        but models can have uniform values and not be calibrated, see `kcalib.calibration_test`.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.crps`; for predictions of vectors.

    Examples
    --------
    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> kcalib.pit_values([0.0, 5.0], Normal([0.0, 5.0], [1.0, 2.0]))
    array([0.5, 0.5])
    """
    return pit_of(forecasts_of(y_true, y_pred), check_integer("seed", seed, 0))


@dataclass(frozen=True, eq=False)
class QuantileCalibration:
    """Observed coverage of predicted quantiles; `plot` draws it. Arrays are float64."""

    levels: np.ndarray  #: predicted probabilities that a target is at most the quantile, shape (k,)
    coverage: np.ndarray  #: share of the targets that are, shape (k,)
    standard_error: np.ndarray  #: of the share if the model is calibrated, shape (k,)
    consistency_band: Band  #: limits of the share if the model is calibrated, at each level
    error: float  #: mean absolute difference of coverage and level; of a calibrated model not 0 but about 0.3 / sqrt(n)
    histogram: np.ndarray  #: share of the PIT values in 20 bins of equal width, shape (20,)
    confidence_level: float  #: of the band
    simultaneous: bool  #: whether it holds for all levels at once (Dvoretzky, Kiefer, Wolfowitz, Massart)
    seed: int | None  #: of the randomised PIT values of counts and samples; None for continuous predictions
    n_samples: int  #: samples given

    def __repr__(self) -> str:
        return (
            f"QuantileCalibration(error={self.error:.4g}, n_levels={len(self.levels)}, n_samples={self.n_samples}, "
            f"confidence_level={self.confidence_level:g}, simultaneous={self.simultaneous})"
        )

    def plot(
        self, ax: Any = None, *, color: str = figures.CALIBRATED, histogram: bool = True, legend: bool = True
    ) -> Any:
        """Draw the curve: observed against predicted coverage, the band, the diagonal, a histogram of PIT values.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; by default the axes of a new figure that pyplot does not know (``ax.figure.savefig`` writes
            it).
        color : str
            Of the curve, in any form that matplotlib knows.
        histogram : bool
            Put the histogram of the PIT values below, in axes that are cut off from `ax`.
        legend : bool
            Say what is what in a corner.

        Returns
        -------
        matplotlib.axes.Axes
            The axes of the curve.

        Raises
        ------
        ImportError
            If matplotlib is missing; ``pip install 'kcalib[plot]'``.
        """
        return figures.plot_quantiles(self, ax, color, histogram, legend)


@on_their_gpu
def quantile_calibration(
    y_true: Any,
    y_pred: Distribution,
    *,
    levels: Any = LEVELS,
    confidence_level: float = 0.95,
    simultaneous: bool = False,
    seed: int | None = 0,
) -> QuantileCalibration:
    """Quantile calibration curve: how often targets are at most the predicted quantiles.

    Parameters
    ----------
    y_true, y_pred
        As in `kcalib.crps`, for predictions of numbers.
    levels : array_like, shape (k,)
        Levels of the quantiles, each in (0, 1); default 0.05, 0.1, ..., 0.95.
    confidence_level : float
        Of the consistency band, in (0, 1).
    simultaneous : bool
        Whether the band holds for all levels at once, or for each by itself.
    seed : int, optional
        Of the randomised PIT values of counts and samples. None draws one, which the curve reports.

    Returns
    -------
    QuantileCalibration
        The curve and its band.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.crps`; if a level is out of range; for predictions of vectors.

    See Also
    --------
    kcalib.calibration_test : Finds what the curve does not show.

    Notes
    -----
    The coverage at level tau is the share of PIT values (`kcalib.pit_values`) of at most tau (Widmann, Lindsten and
    Zachariah 2021, appendix A.1). If the model is calibrated n times the share is binomial: so are the standard error
    and the band at each level. The simultaneous band has the half width sqrt(log(2 / a) / (2 n)) with a = 1 -
    confidence_level, from the inequality of Dvoretzky, Kiefer and Wolfowitz with Massart's constant. The curve averages
    over all predictions: errors that cancel between them do not show. Time O(n log n + n k), memory O(n).

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> from kcalib.distributions import Normal
    >>> y = np.random.default_rng(0).normal(size=400)
    >>> curve = kcalib.quantile_calibration(y, Normal(np.zeros(400), np.full(400, 0.5)), levels=[0.1, 0.5, 0.9])
    >>> curve.coverage.round(2)  # over-confident
    array([0.28, 0.53, 0.75])
    """
    return curve_of(
        forecasts_of(y_true, y_pred),
        levels=checked_levels(levels),
        confidence_level=confidence_level,
        simultaneous=simultaneous,
        seed=check_seed(seed),
    )


# -- of checked data ---------------------------------------------------------------------------


def forecasts_of(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Forecasts:
    """Checked input of functions that are for distributions of numbers and vectors only."""
    if type(y_pred).__module__.startswith(FOREIGN):
        y_pred = as_distribution(y_pred)
    of_numbers = isinstance(y_pred, Distribution) and y_pred.support != "class"
    data = prepare(y_true, y_pred, sample_weight=sample_weight) if of_numbers else None
    if not isinstance(data, Forecasts):
        raise TypeError(
            f"`y_pred` is {type(y_pred).__name__}, expected predicted distributions of numbers or vectors, such as "
            "kcalib.distributions.Normal(mean, std); for class probabilities use kcalib.brier_score or kcalib.log_loss"
        )
    return data


def mean_of(data: Forecasts, values: Array) -> float:
    xp = arrays.namespace(values)
    if data.sample_weight is None:
        return float(xp.mean(values))
    weights = arrays.where_computed(data.sample_weight)
    used = weights > 0  # a score may be infinite
    values, weights = values[used], weights[used]
    return float(xp.sum(values * weights) / xp.sum(weights))


def crps_values(data: Forecasts, *, fair: bool = False) -> Array:
    """CRPS or energy score of each sample, shape (n,), float64."""
    y, prediction = _targets(data), data.prediction
    components = _components(prediction)
    if fair and (components is None or components.family != "atoms" or components.locations.shape[1] < 2):
        raise ValueError(
            f"`fair` is for predictions by two or more samples, but `y_pred` is {type(prediction).__name__}; "
            "leave it out"
        )
    if isinstance(prediction, (Poisson, NegativeBinomial)):
        return _crps_of_counts(data, prediction)
    if components is None and hasattr(prediction, "quantile") and hasattr(prediction, "cdf") and data.n_dims == 1:
        return _crps_by_quadrature(data)
    if components is None:
        components = _atoms(_draws(data))
    if components.family == "atoms":
        return _in_batches(components, y, lambda c, y: _score_of_atoms(c, y, fair))
    if components.family == "laplace":
        return _in_batches(components, y, _crps_of_laplace)
    return _in_batches(components, y, _crps_of_normals if data.n_dims == 1 else _energy_of_normals)


def log_score_values(data: Forecasts) -> Array:
    """Negative logarithm of the density at each target, shape (n,), float64."""
    if not has_density(data.prediction):
        raise ValueError(
            f"`y_pred` is {type(data.prediction).__name__}, which has no density (`log_density`), so that there is no "
            "log score; use kcalib.crps, or fit a density to the samples"
        )
    prediction: Any = data.prediction
    return -arrays.where_computed(prediction.log_density(_event(data)), np.float64)


def pinball_values(data: Forecasts, levels: np.ndarray) -> Array:
    """Pinball loss of each sample, averaged over levels, shape (n,)."""
    y = _numbers(data, "the pinball loss is")[:, None]
    gap, levels, xp = y - quantiles_of(data, levels), brought(levels, y), arrays.namespace(y)
    return xp.mean(xp.where(gap > 0, levels * gap, (levels - 1) * gap), axis=1)


def pit_of(data: Forecasts, seed: int) -> Array:
    """PIT values, shape (n,)."""
    y, prediction = _numbers(data, "PIT values are"), data.prediction
    xp, uniform = arrays.namespace(y), brought(np.random.default_rng((PIT_STREAM, seed)).uniform(size=data.n), y)
    atoms = _samples(data)
    if atoms is not None:
        size = 1 / xp.sum(atoms.weights**2, axis=1)  # S for equal weights
        z = atoms.locations[:, :, 0]
        below = xp.sum(atoms.weights * (z < y[:, None]), axis=1)
        equal = xp.sum(atoms.weights * (z == y[:, None]), axis=1)
        return (below * size + uniform * (1 + equal * size)) / (size + 1)
    upper = _cdf(data, y)
    if prediction.support != "count":
        return upper
    lower = xp.where(y > 0, _cdf(data, xp.maximum(y - 1, 0)), 0.0)
    return lower + uniform * (upper - lower)


def curve_of(
    data: Forecasts, *, levels: np.ndarray, confidence_level: float, simultaneous: bool, seed: int
) -> QuantileCalibration:
    """`quantile_calibration` of checked data."""
    if not (isinstance(confidence_level, (int, float)) and 0 < confidence_level < 1):
        raise ValueError(f"`confidence_level` is {confidence_level!r}, expected a number between 0 and 1")
    if not isinstance(simultaneous, (bool, np.bool_)):
        raise TypeError(f"`simultaneous` is {simultaneous!r}, expected True or False")
    pit, n = pit_of(data, seed), data.n
    xp = arrays.namespace(pit)
    ascending = xp.sort(pit)
    coverage = arrays.to_host(xp.searchsorted(ascending, brought(levels, pit), side="right")) / n
    if simultaneous:
        width = math.sqrt(math.log(2 / (1 - confidence_level)) / (2 * n))
        band = Band(np.maximum(levels - width, 0), np.minimum(levels + width, 1))
    else:
        tail = (1 - confidence_level) / 2
        band = Band(_binomial_quantile(n, levels, tail) / n, 1 - _binomial_quantile(n, 1 - levels, tail) / n)
    return QuantileCalibration(
        levels=levels,
        coverage=coverage,
        standard_error=np.sqrt(levels * (1 - levels) / n),
        consistency_band=band,
        error=float(np.mean(np.abs(coverage - levels))),
        histogram=_histogram(ascending) / n,
        confidence_level=float(confidence_level),
        simultaneous=bool(simultaneous),
        seed=None if is_continuous(data) else seed,
        n_samples=n,
    )


def _histogram(ascending: Array) -> np.ndarray:
    """Numbers of PIT values, in order, in bins of equal width."""
    if arrays.is_host(ascending):
        return np.histogram(ascending, HISTOGRAM_BINS, (0, 1))[0]
    inner = arrays.like(np.linspace(0, 1, HISTOGRAM_BINS + 1)[1:-1], ascending)
    below = arrays.to_host(arrays.namespace(ascending).searchsorted(ascending, inner, side="left"))
    return np.diff(below, prepend=0, append=len(ascending))


def _binomial_quantile(n: int, p: np.ndarray, probability: float) -> np.ndarray:
    """Smallest k with P(X <= k) >= probability."""
    k = np.maximum(np.ceil(scipy.special.bdtrik(probability, n, p)), 0)  # rounded, it may be one too large
    return np.where((k > 0) & (scipy.special.bdtr(k - 1, n, p) >= probability), k - 1, k)


def means_of(data: Forecasts) -> Array:
    """Means of the predictions, shape (n, d)."""
    return arrays.where_computed(data.prediction.expected_value(), np.float64)


def has_density(prediction: Distribution) -> bool:
    return hasattr(prediction, "log_density")


def is_continuous(data: Forecasts) -> bool:
    """Whether PIT values need no randomisation."""
    return data.prediction.support != "count" and _samples(data) is None


def checked_levels(levels: Any) -> np.ndarray:
    array = np.atleast_1d(np.asarray(levels, dtype=np.float64))
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"`levels` has shape {array.shape}, expected (k,) with k at least 1")
    for i in np.flatnonzero(~((array > 0) & (array < 1))):
        raise ValueError(f"`levels[{i}]` is {array[i]:.6g}, expected a level between 0 and 1")
    return array


def _numbers(data: Forecasts, what: str) -> Array:
    """The targets, shape (n,), if they are numbers."""
    if data.n_dims != 1:
        raise ValueError(
            f"`y_pred` predicts vectors of {data.n_dims} entries, but {what} for numbers; pass the targets and the "
            "predictions of one entry at a time"
        )
    return _targets(data)[:, 0]


def _cdf(data: Forecasts, x: Array) -> Array:
    """P(Z <= x) at one number for each sample, shape (n,)."""
    prediction: Any = data.prediction
    shape = (data.n, *prediction.event_shape)
    return arrays.where_computed(prediction.cdf(arrays.like(x.reshape(shape), data.y, data.y.dtype))).reshape(-1)


def _targets(data: Forecasts) -> Array:
    return arrays.where_computed(data.y, np.float64)


def _event(data: Forecasts) -> Any:
    """The targets in the shape that a density takes: (n,) or (n, d)."""
    return data.y if data.prediction.event_shape else data.y[:, 0]


def _components(prediction: Distribution) -> Components | None:
    c = prediction.components()
    if c is None:
        return None
    fields = (c.weights, c.locations, c.scales)
    return Components(c.family, *(None if a is None else arrays.where_computed(a, np.float64) for a in fields))


def _draws(data: Forecasts) -> Array:
    """Draws that stand for the predictions, shape (n, S, d)."""
    check_memory(
        5 * 8 * data.n * N_DRAWS * data.n_dims,
        None,
        f"{N_DRAWS} draws from each of {data.n} predictions and what is computed of them",
        "define `quantile` and `cdf` for the family, or take fewer predictions at a time",
        data.y,
    )
    draws = data.prediction.quasi_sample(N_DRAWS, seed=DRAW_SEED)
    return arrays.where_computed(draws, np.float64).reshape(data.n, N_DRAWS, data.n_dims)


def _samples(data: Forecasts) -> Components | None:
    """The samples that the predictions are, or are taken as; None: they are not."""
    components = data.prediction.components()
    if components is not None and components.family == "atoms":
        return _components(data.prediction)
    return None if hasattr(data.prediction, "cdf") else _atoms(_draws(data))


def quantiles_of(data: Forecasts, levels: np.ndarray) -> Array:
    """inf {x: F(x) >= level}, shape (n, k)."""
    if hasattr(data.prediction, "quantile"):
        return arrays.where_computed(data.prediction.quantile(levels), np.float64)
    draws = _draws(data)[:, :, 0]
    if not arrays.is_host(draws):
        return Samples(draws).quantile(levels)
    return np.quantile(draws, levels, axis=1, method="inverted_cdf").T


# -- CRPS and energy score ---------------------------------------------------------------------


def _atoms(samples: Array) -> Components:
    """Samples, shape (n, S, d), of equal weight."""
    equal = arrays.namespace(samples).full(samples.shape[:2], 1 / samples.shape[1])
    return Components("atoms", equal, samples, None)


def _in_batches(c: Components, y: Array, score: Callable[[Components, Array], Array]) -> Array:
    """`score` of some samples at a time, so that tables of pairs of components do not fill the memory."""
    n, k, d = c.locations.shape
    pairs = k if c.family == "atoms" and d == 1 else k * k
    step = max(1, BATCH_ELEMENTS // (pairs * d * (d if c.family == "normal_full" else 1)))
    parts = []
    for start in range(0, n, step):
        rows = slice(start, start + step)
        some = Components(c.family, c.weights[rows], c.locations[rows], None if c.scales is None else c.scales[rows])
        parts.append(score(some, y[rows]))
    return arrays.namespace(y).concat(parts)


def _score_of_atoms(c: Components, y: Array, fair: bool) -> Array:
    """E|Z - y| - E|Z - Z'| / 2; `fair` leaves the pairs of an atom with itself out of the mean."""
    xp, w, z = arrays.namespace(y), c.weights, c.locations
    near = xp.sum(w * xp.linalg.norm(z - y[:, None, :], axis=2), axis=1)
    if z.shape[2] == 1:
        order = xp.argsort(z[:, :, 0], axis=1)
        z, sorted_weights = xp.take_along_axis(z[:, :, 0], order, axis=1), xp.take_along_axis(w, order, axis=1)
        below = xp.cumsum(sorted_weights, axis=1)[:, :-1]
        # F (1 - F) between neighbours, in which nothing cancels.
        half = xp.sum(below * xp.maximum(1 - below, 0) * xp.diff(z, axis=1), axis=1)
    else:
        half = xp.zeros(len(z))
        for i in range(1, z.shape[1]):
            half += w[:, i] * xp.sum(w[:, :i] * xp.linalg.norm(z[:, :i] - z[:, i : i + 1], axis=2), axis=1)
    if fair:
        half = half / (1 - xp.sum(w * w, axis=1))
    return near - half


def _crps_of_normals(c: Components, y: Array) -> Array:
    """Mixtures of normal distributions of numbers (Grimit et al. 2006)."""
    assert c.scales is not None
    w, m, v = c.weights, c.locations[:, :, 0], c.scales.reshape(c.weights.shape)
    near = arrays.namespace(w).sum(w * _mean_size_of_normal(m - y, v), axis=1)
    pairs = _mean_size_of_normal(m[:, :, None] - m[:, None, :], v[:, :, None] + v[:, None, :])
    return near - 0.5 * _weighted_pairs(w, pairs)


def _weighted_pairs(w: Array, pairs: Array) -> Array:
    """sum_kl w_nk w_nl pairs_nkl, shape (n,)."""
    if arrays.is_host(w):
        return np.einsum("nk,nl,nkl->n", w, w, pairs)
    xp = arrays.namespace(w)
    return xp.sum(w * xp.sum(w[:, None, :] * pairs, axis=2), axis=1)


def _mean_size_of_normal(m: Array, v: Array) -> Array:
    """E|X| of X ~ N(m, v)."""
    xp = arrays.namespace(v)
    s = xp.sqrt(v)
    z = m / s
    return s * (math.sqrt(2 / math.pi) * xp.exp(-0.5 * z * z) + z * special(z).erf(z / math.sqrt(2)))


def _crps_of_laplace(c: Components, y: Array) -> Array:
    """Mixtures of Laplace distributions."""
    assert c.scales is not None
    w, m, b = c.weights, c.locations[:, :, 0], c.scales.reshape(c.weights.shape)
    xp, gap = arrays.namespace(y), abs(m - y)
    near = xp.sum(w * (gap + b * xp.exp(-gap / b)), axis=1)
    pairs = _mean_gap_of_laplace(abs(m[:, :, None] - m[:, None, :]), b[:, :, None], b[:, None, :])
    return near - 0.5 * _weighted_pairs(w, pairs)


def _mean_gap_of_laplace(gap: Array, b: Array, c: Array) -> Array:
    """E|X - X'| of Laplace laws with scales b and c whose medians are `gap` apart.

    gap + (G(b^2) - G(c^2)) / (b^2 - c^2) with G(s) = s^(3/2) exp(-gap / sqrt(s)). The divided difference is the mean of
    G' over the interval, by quadrature where the scales are near each other.
    """
    xp = arrays.namespace(gap)
    s, t = xp.broadcast_arrays(b * b, c * c)
    near = abs(s - t) < 0.3 * xp.maximum(s, t)
    difference = xp.where(near, 1.0, s - t)
    divided = (b**3 * xp.exp(-gap / b) - c**3 * xp.exp(-gap / c)) / difference
    mean = xp.zeros(s.shape)
    nodes, weights = np.polynomial.legendre.leggauss(12)
    for node, weight in zip(nodes, weights, strict=True):
        root = xp.sqrt(0.5 * (s + t) + 0.5 * node * (s - t))
        mean += 0.5 * weight * (1.5 * root + 0.5 * gap) * xp.exp(-gap / root)
    return gap + xp.where(near, mean, divided)


def _energy_of_normals(c: Components, y: Array) -> Array:
    """Energy score of mixtures of normal distributions of vectors, with diagonal or full covariances."""
    assert c.scales is not None
    xp, w, m, v = arrays.namespace(y), c.weights, c.locations, c.scales
    near = xp.sum(w * _mean_norm_of_normal(m - y[:, None, :], v), axis=1)
    half = 0.5 * xp.sum(w * w * _mean_norm_of_normal(xp.zeros_like(m), 2 * v), axis=1)
    for k in range(1, w.shape[1]):
        pairs = _mean_norm_of_normal(m[:, :k] - m[:, k : k + 1], v[:, :k] + v[:, k : k + 1])
        half += w[:, k] * xp.sum(w[:, :k] * pairs, axis=1)
    return near - half


def _mean_norm_of_normal(m: Array, v: Array) -> Array:
    """E|X| of X ~ N(m, v) in d dimensions, for m of shape (..., d), v of variances (..., d) or covariances (..., d, d).

    With L(t) = E exp(-t |X|^2) and L_0 that of a normal X_0 of mean 0 with E|X_0|^2 = E|X|^2 in all directions,

        E|X| = E|X_0| + (4 pi)^(-1/2) int (L_0(t) - L(t)) t^(-3/2) dt.

    In log t the integrand is analytic in a strip and decays exponentially: the trapezoidal rule has an error of
    exp(-pi^2 / step), and the ends are where 1e-15 of the integral is left.
    """
    xp = arrays.namespace(m)
    if v.ndim == m.ndim + 1:
        v, axes = xp.linalg.eigh(v)
        m, v = xp.einsum("...ij,...i->...j", axes, m), xp.maximum(v, 0)
    d = m.shape[-1]
    a = xp.mean(m * m + v, axis=-1)
    relative_m, relative_v = m * m / a[..., None], v / a[..., None]
    total = xp.zeros(a.shape)
    step = 0.27
    for u in np.arange(-24, 36, step):
        t = math.exp(u)
        spread = 1 + 2 * t * relative_v
        transform = xp.exp(-xp.sum(t * relative_m / spread + 0.5 * xp.log(spread), axis=-1))
        total += ((1 + 2 * t) ** (-d / 2) - transform) * math.exp(-u / 2)
    isotropic = math.sqrt(2) * math.exp(math.lgamma((d + 1) / 2) - math.lgamma(d / 2))
    return xp.sqrt(a) * (isotropic + step * total / math.sqrt(4 * math.pi))


def _crps_of_counts(data: Forecasts, prediction: Poisson | NegativeBinomial) -> Array:
    """With mean m and dispersion a: E|Z - y| = (y - m) (2 F(y) - 1) + 2 m (1 + a y) f(y).

    From k f(k) = m (1 + a (k - 1)) f(k - 1) / (1 + a m), summed by parts.
    """
    y = _targets(data)[:, 0]
    xp = arrays.namespace(y)
    f = xp.exp(arrays.where_computed(prediction.log_density(data.y[:, 0])))
    if isinstance(prediction, Poisson):
        m = arrays.where_computed(prediction.rate)
        a = xp.zeros_like(m)
        half = m * (special(m).i0e(2 * m) + special(m).i1e(2 * m))
    else:
        m, a = arrays.where_computed(prediction.mean), arrays.where_computed(prediction.dispersion)
        half = _half_gap_of_negative_binomial(m, a)
    return (y - m) * (2 * _cdf(data, y) - 1) + 2 * m * (1 + a * y) * f - half


def _half_gap_of_negative_binomial(m: Array, a: Array) -> Array:
    """E|Z - Z'| / 2 of negative binomial counts with mean m and dispersion a.

    |k| is the integral of (1 - cos(k t)) / (1 - cos(t)) over a period of t, over 2 pi. So it is that of the
    characteristic function; with v = cot(t / 2) and s = 1 + a m

        (1 / 2 pi) int_0^oo 1 - (1 + 4 a m s / (1 + v^2))^(-1/a) dv.

    With v = sinh(w) the integrand is bounded for |Im w| < pi/4 and falls as exp(-|w|): the trapezoidal rule has an
    error of exp(-pi^2 / (2 step)).
    """
    xp, s = arrays.namespace(m), 1 + a * m
    # Up to where 1e-16 of the integral is left, which is at least about the smaller of m and its root.
    last = math.log(8e16 * float(xp.max(m * s / xp.minimum(m, xp.sqrt(m)))))
    step = 0.13
    total = xp.zeros(m.shape)
    for i in range(math.ceil(last / step)):
        w = i * step
        share = 4 * m * s / math.cosh(w) ** 2
        total += (0.5 if i == 0 else 1.0) * math.cosh(w) * -xp.expm1(-xp.log1p(a * share) / a)
    return step * total / (2 * math.pi)


def _crps_by_quadrature(data: Forecasts) -> Array:
    """int (F(x) - 1{y <= x})^2 dx by Gauss and Legendre's rule between quantiles, cut at the target."""
    y = _targets(data)[:, 0]
    xp, knots = arrays.namespace(y), quantiles_of(data, np.asarray(KNOTS))
    knots = xp.column_stack((xp.minimum(knots[:, 0], y), knots, xp.maximum(knots[:, -1], y)))
    nodes, weights = np.polynomial.legendre.leggauss(N_NODES)
    total = xp.zeros(data.n)
    for cut, above in ((xp.minimum, 0.0), (xp.maximum, 1.0)):
        ends = cut(knots, y[:, None])
        for j in range(ends.shape[1] - 1):
            left, right = ends[:, j], ends[:, j + 1]
            for node, weight in zip(nodes, weights, strict=True):
                f = _cdf(data, 0.5 * (left + right) + 0.5 * node * (right - left))
                total += 0.5 * weight * (right - left) * (f - above) ** 2
    return total
