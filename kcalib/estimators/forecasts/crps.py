"""Compute the continuous ranked probability score (CRPS), and the energy score of vectors.

There are closed forms for mixtures of normal and of Laplace distributions, for samples and for counts; the CRPS of
other distributions is an integral between quantiles.
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
    r"""Compute the mean continuous ranked probability score (CRPS), or the energy score of vectors.

    It has the units of the targets. For point predictions it is the mean absolute error.

    Parameters
    ----------
    y_true : array_like, shape (n,) or (n, d)
        Targets.
    y_pred : Distribution
        Predicted distributions, see `kcalib.distributions`.
    fair : bool
        Whether the S samples of a prediction are draws from it. The score is then an unbiased estimate of the score of
        the distribution that they come from. Otherwise the samples themselves are the prediction, whose score is worse
        for smaller S.
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
        As `kcalib.skce`. Also if `fair` is True, but predictions are not two or more samples.

    Notes
    -----
    With independent draws Z and Z' from the prediction, the score is

    .. math:: \mathrm{E} |Z - y| - \tfrac12 \mathrm{E} |Z - Z'| = \int (F(x) - 1\{y \le x\})^2 \,\mathrm{d}x

    for numbers [1]_; the energy score is the first expression with the Euclidean norm.

    - Closed forms [2]_: mixtures of normal and of Laplace distributions, samples (time O(n S log S)), Poisson, negative
      binomial, Student's t, log-normal, gamma and censored normal distributions.
    - Other distributions of numbers: numerical integral, or sum for counts, with relative error below 1e-6, also for
      infinite densities and atoms.
    - Mixtures of normal distributions of vectors: an integral over the Laplace transform of the squared norm, with
      error of about 1e-11 of the score's scale. Samples of vectors: exact, in time O(n S^2 d).
    - Dirichlet distributions, and distributions without quantiles: 512 quasi Monte Carlo draws with seed 0.
    - `kcalib.distributions.Quantiles`: the weighted interval score [3]_, which is twice the mean pinball loss over the
      levels; it tends to the CRPS as the levels fill (0, 1).

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
    """Check the type of `fair`."""
    if not isinstance(fair, (bool, np.bool_)):
        raise TypeError(f"`fair` is {fair!r}, expected True or False")
    return bool(fair)


def has_members(data: Forecasts) -> bool:
    """Return whether the predictions are samples, which have a fair score."""
    return isinstance(data.prediction, Samples)


def crps_values(data: Forecasts, *, fair: bool = False) -> Array:
    """Return CRPS or energy score of each sample, shape (n,), float64."""
    y, prediction = targets_of(data), data.prediction
    components = components_of(prediction)
    if fair and (components is None or components.family != "atoms" or components.locations.shape[1] < 2):
        has_one = components is not None and components.family == "atoms"
        what = "has 1 sample for each prediction" if has_one else f"is {type(prediction).__name__}"
        raise ValueError(f"`fair` is for predictions by two or more samples, but `y_pred` {what}; leave it out")
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
    """Apply `score` to batches of samples, to limit the memory for pairs of components."""
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
    """Return E|Z - y| - E|Z - Z'| / 2; `fair` excludes pairs of an atom with itself from the mean."""
    xp, w, z = arrays.namespace(y), c.weights, c.locations
    near = xp.sum(w * xp.linalg.norm(z - y[:, None, :], axis=2), axis=1)
    if z.shape[2] == 1:
        order = xp.argsort(z[:, :, 0], axis=1)
        z, sorted_weights = xp.take_along_axis(z[:, :, 0], order, axis=1), xp.take_along_axis(w, order, axis=1)
        below = xp.cumsum(sorted_weights, axis=1)[:, :-1]
        # The integral of F (1 - F), without cancellation.
        half = xp.sum(below * xp.maximum(1 - below, 0) * xp.diff(z, axis=1), axis=1)
    else:
        half = xp.zeros(len(z))
        for i in range(1, z.shape[1]):
            half += w[:, i] * xp.sum(w[:, :i] * xp.linalg.norm(z[:, :i] - z[:, i : i + 1], axis=2), axis=1)
    if fair:
        half = half / xp.sum(w * (1 - w), axis=1)  # stays positive if the second weight is tiny
    return near - half


def _crps_of_normals(c: Components, y: Array) -> Array:
    """Return the CRPS of mixtures of normal distributions of numbers (Grimit et al. 2006)."""
    assert c.scales is not None
    w, m, v = c.weights, c.locations[:, :, 0], c.scales.reshape(c.weights.shape)
    near = arrays.namespace(w).sum(w * _mean_size_of_normal(m - y, v), axis=1)
    pairs = _mean_size_of_normal(m[:, :, None] - m[:, None, :], v[:, :, None] + v[:, None, :])
    return near - 0.5 * _weighted_pairs(w, pairs)


def _weighted_pairs(w: Array, pairs: Array) -> Array:
    """Return sum_kl w_nk w_nl pairs_nkl, shape (n,)."""
    if arrays.is_host(w):
        return np.einsum("nk,nl,nkl->n", w, w, pairs)
    xp = arrays.namespace(w)
    return xp.sum(w * xp.sum(w[:, None, :] * pairs, axis=2), axis=1)


def _mean_size_of_normal(m: Array, v: Array) -> Array:
    """Return E|X| for X ~ N(m, v)."""
    xp = arrays.namespace(v)
    s = xp.sqrt(v)
    z = m / s
    return s * (math.sqrt(2 / math.pi) * xp.exp(-0.5 * z * z) + z * special(z).erf(z / math.sqrt(2)))


def _crps_of_laplace(c: Components, y: Array) -> Array:
    """Return the CRPS of mixtures of Laplace distributions."""
    assert c.scales is not None
    w, m, b = c.weights, c.locations[:, :, 0], c.scales.reshape(c.weights.shape)
    xp, gap = arrays.namespace(y), abs(m - y)
    near = xp.sum(w * (gap + b * xp.exp(-gap / b)), axis=1)
    pairs = _mean_gap_of_laplace(abs(m[:, :, None] - m[:, None, :]), b[:, :, None], b[:, None, :])
    return near - 0.5 * _weighted_pairs(w, pairs)


def _mean_gap_of_laplace(gap: Array, b: Array, c: Array) -> Array:
    """Return E|X - X'| for Laplace distributions with scales b and c whose medians are `gap` apart.

    It is gap + (G(b^2) - G(c^2)) / (b^2 - c^2) with G(s) = s^(3/2) exp(-gap / sqrt(s)). For similar scales the divided
    difference is the mean of G' over the interval, by quadrature.
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
    """Return the energy score of mixtures of normal distributions of vectors, with diagonal or full covariances."""
    assert c.scales is not None
    xp, w, m, v = arrays.namespace(y), c.weights, c.locations, c.scales
    near = xp.sum(w * _mean_norm_of_normal(m - y[:, None, :], v), axis=1)
    half = 0.5 * xp.sum(w * w * _mean_norm_of_normal(xp.zeros_like(m), 2 * v), axis=1)
    for k in range(1, w.shape[1]):
        pairs = _mean_norm_of_normal(m[:, :k] - m[:, k : k + 1], v[:, :k] + v[:, k : k + 1])
        half += w[:, k] * xp.sum(w[:, :k] * pairs, axis=1)
    return near - half


def _mean_norm_of_normal(m: Array, v: Array) -> Array:
    """Return E|X| for X ~ N(m, v), with m of shape (..., d), and v variances (..., d) or covariances (..., d, d).

    With L(t) = E exp(-t |X|^2) and L_0 that of a normal X_0 of mean 0 with E|X_0|^2 = E|X|^2 in all directions,

        E|X| = E|X_0| + (4 pi)^(-1/2) int (L_0(t) - L(t)) t^(-3/2) dt.

    In log t the integrand is analytic in a strip and decays exponentially. The trapezoidal rule has an error of
    exp(-pi^2 / step), and the range leaves out 1e-15 of the integral.
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
    """Return the CRPS p |y| + (1 - p) CRPS(y) - p (1 - p) CRPS(0) for an additional probability p of 0."""
    inner, y = dataclasses.replace(data, prediction=prediction.distribution), targets_of(data)[:, 0]
    p = arrays.to_compute_device(prediction.probability)
    at_zero = crps_values(inner.with_targets(0.0 * data.y))
    return p * abs(y) + (1 - p) * (crps_values(inner) - p * at_zero)


def _crps_of_censored_normals(y: Array, prediction: Censored, normal: Normal) -> Array:
    """Return the CRPS from the antiderivative x F^2 + 2 f F - F(sqrt(2) x) / sqrt(pi) of F^2, on both sides of y."""
    mean, std, xp = *map(arrays.to_compute_device, (normal.mean, normal.std)), arrays.namespace(y)

    def integral(z: Array) -> Array:
        z = xp.clip(z, -40.0, np.inf)  # there is no mass to the left
        lower = special(z).ndtr(z)
        density = xp.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return lower * (z * lower + 2 * density) - special(z).ndtr(math.sqrt(2) * z) / math.sqrt(math.pi)

    lower, upper = prediction._bounds(y)
    at = xp.clip(y, lower, upper)
    total = integral((at - mean) / std) + integral((mean - at) / std)
    total = total - integral((lower - mean) / std) - integral((mean - upper) / std)
    return abs(y - at) + std * total


def _crps_of_counts(data: Forecasts, prediction: Poisson | NegativeBinomial) -> Array:
    """Return the CRPS of counts, with E|Z - y| = (y - m) (2 F(y) - 1) + 2 m (1 + a y) f(y), m mean, a dispersion.

    This follows from k f(k) = m (1 + a (k - 1)) f(k - 1) / (1 + a m), by summation by parts.
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
    """Return E|Z - Z'| / 2 for negative binomial counts with mean m and dispersion a.

    |k| is the integral of (1 - cos(k t)) / (1 - cos(t)) over a period of t, divided by 2 pi, so the expectation is an
    integral of the characteristic function; with v = cot(t / 2) and s = 1 + a m

        (1 / 2 pi) int_0^oo 1 - (1 + 4 a m s / (1 + v^2))^(-1/a) dv.

    With v = sinh(w) the integrand is bounded for |Im w| < pi/4 and decays as exp(-|w|). The trapezoidal rule has an
    error of exp(-pi^2 / (2 step)).
    """
    xp, s = arrays.namespace(m), 1 + a * m
    # The range leaves out 1e-16 of the integral, which is at least about the smaller of m and its root.
    last = math.log(8e16 * float(xp.max(m * s / xp.minimum(m, xp.sqrt(m)))))
    step = 0.13
    total = xp.zeros(m.shape)
    for i in range(math.ceil(last / step)):
        w = i * step
        share = 4 * m * s / math.cosh(w) ** 2
        total += (0.5 if i == 0 else 1.0) * math.cosh(w) * -xp.expm1(-xp.log1p(a * share) / a)
    return step * total / (2 * math.pi)
