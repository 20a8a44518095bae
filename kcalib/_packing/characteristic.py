r"""Expectations of trigonometric features under predicted distributions: their characteristic functions, centred.

Random features of a shift-invariant target kernel are cosines and sines of <v, y>. What was observed minus what was
predicted is, in complex numbers and with the prediction's mean m,

    exp(i <v, y>) - E exp(i <v, Z>) = exp(i <v, m>) [(exp(i <v, y - m>) - 1) - (E exp(i <v, Z - m>) - 1)]

`centred` gives the second difference in closed form and `shifts` the first, both to relative accuracy however small
they are: predictions that are nearly certain, and right, keep all digits of their residuals. Called by
`forecast_features`. All in array API functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import special, to_device_of
from kcalib.distributions import Components, Distribution, Gamma, LogNormal, NegativeBinomial, Poisson, StudentT
from kcalib.distributions._distribution import row_blocks
from kcalib.distributions.wrappers import MOST_COUNTS, Wrapper, level_nodes

Complex = tuple[Array, Array]  # real and imaginary parts
# Integrals over the logarithm in standard deviations: last node, step, and imaginary part.
FARTHEST, STEP, LIFT = 8.0, 0.2, 1.5


def law_of(prediction: Distribution) -> str | None:
    """Return the name of the family whose characteristic function is known, or None if draws are needed."""
    if isinstance(prediction, (Poisson, NegativeBinomial)):
        return "counts"
    components = prediction.components()
    return None if components is None else components.family


def centred(prediction: Distribution, means: Array, frequencies: Array) -> Complex:
    """Return E exp(i <v, Z - m>) - 1 for predictions that `law_of` knows, shape (n, F).

    Parameters
    ----------
    prediction : Distribution
        Predictions of n samples.
    means : array, shape (n, d)
        m, their expected values, float64.
    frequencies : array, shape (F, d)
        v, float64, on the same device.
    """
    if isinstance(prediction, (Poisson, NegativeBinomial)):
        dispersion = prediction.dispersion[:, None] if isinstance(prediction, NegativeBinomial) else None
        return _of_counts(means, dispersion, frequencies[:, 0])
    if isinstance(prediction, Wrapper):
        return _of_nodes(prediction, means, frequencies)
    if isinstance(prediction, Gamma):
        return _of_gammas(prediction, means, frequencies[:, 0])
    if isinstance(prediction, (StudentT, LogNormal)):
        function: Any = _of_students if isinstance(prediction, StudentT) else _of_log_normals
        return _in_blocks(
            prediction, frequencies, lambda rows: function(prediction.take(rows), means[rows, :], frequencies)
        )
    components = prediction.components()
    assert components is not None
    if components.scales is not None and components.weights.shape[1] == 1:  # the mean is that of the component
        xp = arrays.namespace(means)
        scales = xp.astype(arrays.asarray_like(components.scales, means), xp.float64, copy=False)
        damping = _damping(components.family, scales, xp.matrix_transpose(frequencies))[:, 0, :]
        return damping, xp.zeros_like(damping)
    return centred_mixtures(components, means, frequencies)


def centred_mixtures(components: Components, means: Array, frequencies: Array) -> Complex:
    """Return `centred` for mixtures, sum_k w_k (D_k exp(i <v, m_k - m>) - 1), D_k centred functions of components."""
    xp, v = arrays.namespace(means), arrays.namespace(means).matrix_transpose(frequencies)

    def as_float64(array: Array) -> Array:
        return xp.astype(arrays.asarray_like(array, means), xp.float64, copy=False)

    weights, locations = as_float64(components.weights), as_float64(components.locations)
    real, imaginary = shifts(locations - means[:, None, :], v)  # (n, K, F)
    if components.scales is not None:
        less = _damping(components.family, as_float64(components.scales), v)  # D - 1
        real, imaginary = real + less * (1 + real), imaginary + less * imaginary
    w = weights[:, None, :]
    return xp.matmul(w, real)[:, 0, :], xp.matmul(w, imaginary)[:, 0, :]


def _of_nodes(prediction: Wrapper, means: Array, frequencies: Array) -> Complex:
    """Return `centred` for distributions that are represented by nodes of a quadrature."""

    def of_rows(rows: slice) -> Complex:
        nodes = prediction.take(rows)._nodes()
        if nodes is None:
            raise ValueError(f"`y_pred` has more than {MOST_COUNTS} counts; use kcalib.evaluate without a state")
        atoms = Components("atoms", nodes[1], nodes[0][:, :, None], None)
        return centred_mixtures(atoms, means[rows, :], frequencies)

    return _in_blocks(prediction, frequencies, of_rows)


def _in_blocks(prediction: Distribution, frequencies: Array, function: Callable[[slice], Complex]) -> Complex:
    """Apply a function with some 200 nodes per row to blocks of rows."""
    parts = [function(rows) for rows in row_blocks(prediction.n, 200 * len(frequencies))]
    real, imaginary = zip(*parts, strict=True)
    return arrays.namespace(real[0]).concat(real), arrays.namespace(imaginary[0]).concat(imaginary)


def shifts(differences: Array, transposed: Array) -> Complex:
    """Return exp(i <v, x>) - 1 for differences x, shape (..., d), and frequencies as columns, shape (d, F).

    By the tangent t of half the angle, exp(i a) = (1 + i t)^2 / (1 + t^2): accurate relative to a for small a.
    """
    xp = arrays.namespace(differences)
    half = 0.5 * transposed
    tangent = xp.tan(differences * half if differences.shape[-1] == 1 else xp.matmul(differences, half))
    square = tangent * tangent
    factor = 2 / (1 + square)
    return -(square * factor), tangent * factor


def _damping(family: str, scales: Array, v: Array) -> Array:
    """Return the characteristic function of a component with mean 0, minus 1, shape (n, K, F); v has columns."""
    xp = arrays.namespace(scales)
    if family == "normal":
        return xp.expm1(-0.5 * xp.matmul(scales, v * v))
    if family == "normal_full":
        return xp.expm1(-0.5 * xp.sum(xp.matmul(scales, v) * v, axis=-2))
    square = xp.matmul(scales * scales, v * v)  # Laplace
    return -(square / (1 + square))


def _of_counts(mean: Array, dispersion: Array | None, v: Array) -> Complex:
    """Return `centred` for Poisson, exp(mean (e^(iv) - 1 - iv)) - 1, or negative binomial distributions."""
    xp = arrays.namespace(mean)
    half = xp.sin(0.5 * v)
    loss, sine = 2 * half * half, xp.sin(v)  # 1 - cos v
    if dispersion is None:
        return _expm1(-mean * loss, mean * (sine - v))
    # (1 + z)^(-1/dispersion) e^(-i v mean), z = dispersion mean (1 - e^(iv)) = a - i b.
    dispersion = xp.astype(arrays.asarray_like(dispersion, mean), xp.float64, copy=False)
    ratio = dispersion * mean
    a, b = ratio * loss, ratio * sine
    real = -0.5 * xp.log1p(2 * a + (a * a + b * b)) / dispersion
    return _expm1(real, xp.atan2(b, 1 + a) / dispersion - v * mean)


def _of_gammas(prediction: Gamma, means: Array, v: Array) -> Complex:
    """Return `centred` for gamma distributions, (1 - i v scale)^(-shape) e^(-i v mean) - 1."""
    xp = arrays.namespace(means)
    shape, scale = (_column(array, means) for array in (prediction.shape, prediction.scale))
    a = scale * v
    return _expm1(-0.5 * shape * xp.log1p(a * a), shape * (xp.atan(a) - a))


def _of_students(prediction: StudentT, means: Array, frequencies: Array) -> Complex:
    """Return `centred` for Student's t, which is normal given a variance whose inverse has a gamma distribution."""
    xp = arrays.namespace(means)
    half, scale = 0.5 * _column(prediction.df, means), _column(prediction.scale, means)
    levels, masses = (to_device_of(values, means) for values in level_nodes())
    ratios = half / special(means).gammaincinv(half, levels)
    exponents = (scale * scale * ratios)[:, None, :] * (-0.5 * frequencies * frequencies)
    real = xp.matmul(xp.expm1(exponents), masses[0, :])
    return real, xp.zeros_like(real)


def _of_log_normals(prediction: LogNormal, means: Array, frequencies: Array) -> Complex:
    """Return `centred` for log-normal distributions, integrated at complex logarithms where exp(i v y) decays.

    The integrand is analytic: sums over equal steps equal the integral to rounding.
    """
    xp = arrays.namespace(means)
    mean, std = (_column(array, means) for array in (prediction.mean_log, prediction.std_log))
    z = xp.arange(-FARTHEST, FARTHEST + STEP / 2, STEP)[None, :] + 1j * xp.minimum(0.5 * math.pi / std, LIFT)
    weights = xp.exp(-0.5 * z * z) * (STEP / math.sqrt(2 * math.pi))
    differences = xp.exp(mean + std * z) - means
    values = xp.expm1((1j * differences)[:, None, :] * xp.abs(frequencies))
    total = xp.matmul(values, weights[:, :, None])[:, :, 0]
    return xp.real(total), xp.sign(frequencies[:, 0]) * xp.imag(total)


def _column(array: Array, means: Array) -> Array:
    xp = arrays.namespace(means)
    return xp.astype(arrays.asarray_like(array, means), xp.float64, copy=False)[:, None]


def _expm1(real: Array, angle: Array) -> Complex:
    """Return exp(real + i angle) - 1."""
    xp = arrays.namespace(real)
    half = xp.sin(0.5 * angle)
    less, drop = -2 * half * half, xp.expm1(real)  # cos(angle) - 1, exp(real) - 1
    return drop * (1 + less) + less, (1 + drop) * xp.sin(angle)
