"""The continuous ranked probability score, and the energy score of vectors.

It has closed forms for mixtures of normals and of Laplace laws, for samples and for counts; otherwise it is an integral
over quantiles. `crps_values` gives that of each sample of checked data, for `kcalib.evaluation` and
`kcalib.inference.compare`, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.special import special
from kcalib._input.checks import reject
from kcalib._input.forecasts import Forecasts
from kcalib._pairs.problem import Components
from kcalib.distributions import (
    Censored,
    Distribution,
    NegativeBinomial,
    Normal,
    Poisson,
    Quantiles,
    Samples,
    ZeroInflated,
)
from kcalib.estimators.forecasts.quadrature import crps_by_quadrature
from kcalib.estimators.forecasts.quantities import (
    atoms_of,
    cdf_at,
    components_of,
    draws_of,
    forecasts_of,
    mean_of,
    targets_of,
)
from kcalib.estimators.forecasts.scores import pinball_values

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
    Laplace distributions, samples (time O(n S log S)), Poisson, negative binomial, Student's t, log-normal, gamma and
    censored normal distributions. The energy score of mixtures of normals is an integral over the Laplace transform of
    the squared norm, by the trapezoidal rule to about 1e-11 of the score's scale; of samples of vectors it is exact, in
    time O(n S^2 d). Other distributions of numbers: the integral above, or sum for counts, between quantiles, to 1e-6
    of the score or better, infinite densities and atoms included. What has no quantiles is represented by 512 quasi
    Monte Carlo draws with seed 0, as are Dirichlet distributions. Of `kcalib.distributions.Quantiles` it is the
    weighted interval score [3]_, twice the mean pinball loss over the forecast's levels, which tends to the CRPS as
    these fill (0, 1).

    References
    ----------
    .. [1] T. Gneiting, A. E. Raftery. Strictly proper scoring rules, prediction, and estimation. Journal of the
       American Statistical Association, 2007.
    .. [2] A. Jordan, F. Krueger, S. Lerch. Evaluating probabilistic forecasts with scoringRules. Journal of
       Statistical Software, 2019.
    .. [3] J. Bracher, E. L. Ray, T. Gneiting, N. G. Reich. Evaluating epidemic forecasts in an interval format. PLoS
       Computational Biology, 2021.

    Examples
    --------
    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> round(kcalib.crps([0.0, 3.0], Normal([0.0, 1.0], [1.0, 2.0])), 6)
    0.719289
    """
    data = forecasts_of(y_true, y_pred, sample_weight)
    return mean_of(data, crps_values(data, fair=check_fair(fair)))


def check_fair(fair: Any) -> bool:
    """Check whether the fair score is asked for."""
    if not isinstance(fair, (bool, np.bool_)):
        raise TypeError(f"`fair` is {fair!r}, expected True or False")
    return bool(fair)


def has_members(data: Forecasts) -> bool:
    """Whether the predictions are samples of draws, which have a fair score."""
    return isinstance(data.prediction, Samples)


def crps_values(data: Forecasts, *, fair: bool = False) -> Array:
    """CRPS or energy score of each sample, shape (n,), float64."""
    y, prediction = targets_of(data), data.prediction
    components = components_of(prediction)
    if fair and (components is None or components.family != "atoms" or components.locations.shape[1] < 2):
        raise ValueError(
            f"`fair` is for predictions by two or more samples, but `y_pred` is {type(prediction).__name__}; "
            "leave it out"
        )
    if fair:
        assert components is not None
        counts = arrays.namespace(y).sum(components.weights > 0, axis=1)
        reject(
            counts,
            counts < 2,
            lambda at, x: (
                f"`y_pred{at}` has {x:.0f} member of positive weight, expected at least 2 for fair=True; drop such "
                "samples, or pass fair=False"
            ),
        )
    if isinstance(prediction, (Poisson, NegativeBinomial)):
        return _crps_of_counts(data, prediction)
    if isinstance(prediction, Quantiles):
        return 2 * pinball_values(data, prediction.scored_levels)
    if hasattr(prediction, "_crps"):
        return prediction._crps(y[:, 0])
    if isinstance(prediction, ZeroInflated):
        return _crps_of_zero_inflated(data, prediction)
    if isinstance(prediction, Censored) and isinstance(prediction.distribution, Normal):
        return _crps_of_censored_normals(y[:, 0], prediction, prediction.distribution)
    if components is None and hasattr(prediction, "quantile") and hasattr(prediction, "cdf") and data.n_dims == 1:
        return crps_by_quadrature(data)
    if components is None:
        components = atoms_of(draws_of(data))
    if components.family == "atoms":
        return _in_batches(components, y, lambda c, y: _score_of_atoms(c, y, fair))
    if components.family == "laplace":
        return _in_batches(components, y, _crps_of_laplace)
    return _in_batches(components, y, _crps_of_normals if data.n_dims == 1 else _energy_of_normals)


def _in_batches(c: Components, y: Array, score: Callable[[Components, Array], Array]) -> Array:
    """`score` of some samples at a time, so that tables of pairs of components do not fill the memory."""
    n, k, d = c.locations.shape
    pairs = k if c.family == "atoms" and d == 1 else k * k
    step = max(1, BATCH_ELEMENTS // (pairs * d * (d if c.family == "normal_full" else 1)))
    parts = []
    for start in range(0, n, step):
        rows = slice(start, start + step)
        batch = Components(c.family, c.weights[rows], c.locations[rows], None if c.scales is None else c.scales[rows])
        parts.append(score(batch, y[rows]))
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
        half = half / xp.sum(w * (1 - w), axis=1)  # positive where a second weight is tiny
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


def _crps_of_zero_inflated(data: Forecasts, prediction: ZeroInflated) -> Array:
    """With probability p of 0 in addition: p |y| + (1 - p) CRPS(y) - p (1 - p) CRPS(0), by the scores without."""
    inner, y = dataclasses.replace(data, prediction=prediction.distribution), targets_of(data)[:, 0]
    p = arrays.to_compute_device(prediction.probability)
    at_zero = crps_values(inner.with_targets(0.0 * data.y))
    return p * abs(y) + (1 - p) * (crps_values(inner) - p * at_zero)


def _crps_of_censored_normals(y: Array, prediction: Censored, normal: Normal) -> Array:
    """By the antiderivative x F^2 + 2 f F - F(sqrt(2) x) / sqrt(pi) of F^2, on either side of the target."""
    mean, std, xp = *map(arrays.to_compute_device, (normal.mean, normal.std)), arrays.namespace(y)

    def integral(z: Array) -> Array:
        z = xp.clip(z, -40.0, np.inf)  # nothing is left of there
        lower = special(z).ndtr(z)
        density = xp.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return lower * (z * lower + 2 * density) - special(z).ndtr(math.sqrt(2) * z) / math.sqrt(math.pi)

    lower, upper = prediction._bounds(y)
    at = xp.clip(y, lower, upper)
    total = integral((at - mean) / std) + integral((mean - at) / std)
    total = total - integral((lower - mean) / std) - integral((mean - upper) / std)
    return abs(y - at) + std * total


def _crps_of_counts(data: Forecasts, prediction: Poisson | NegativeBinomial) -> Array:
    """With mean m and dispersion a: E|Z - y| = (y - m) (2 F(y) - 1) + 2 m (1 + a y) f(y).

    From k f(k) = m (1 + a (k - 1)) f(k - 1) / (1 + a m), summed by parts.
    """
    y = targets_of(data)[:, 0]
    xp = arrays.namespace(y)
    f = xp.exp(arrays.to_compute_device(prediction.log_density(data.y[:, 0])))
    if isinstance(prediction, Poisson):
        m = arrays.to_compute_device(prediction.rate)
        a = xp.zeros_like(m)
        half = m * (special(m).i0e(2 * m) + special(m).i1e(2 * m))
    else:
        m, a = arrays.to_compute_device(prediction.mean), arrays.to_compute_device(prediction.dispersion)
        half = _half_gap_of_negative_binomial(m, a)
    return (y - m) * (2 * cdf_at(data, y) - 1) + 2 * m * (1 + a * y) * f - half


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
