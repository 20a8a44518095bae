"""Draw frequencies of radial factors: a positive definite profile is the characteristic function of its spectral law.

For w drawn from that law the factor is E cos <w, x - x'>. Every profile of Euclidean distances is a mixture of
Gaussians over their scales: w is a direction, uniform on the sphere, times a radius that depends on the mixing law:

    gaussian exp(-s d^2)                                        |w|^2 = 2 s chi2_d
    exponential, matern of r = s d, smoothness nu               |w|^2 = s^2 chi2_d / chi2_{2 nu}
    gamma_exponential exp(-(s d)^a)                             |w|^2 = 2 s^2 A chi2_d,  A positive, (a/2)-stable
    rational_quadratic (1 + s d^2)^-a                           |w|^2 = 2 s G chi2_d,    G ~ Gamma(a)
    gamma_rational_quadratic (1 + (s d)^a / b)^-b               gamma_exponential of scale s (G / b)^(1/a), G ~ Gamma(b)
    cosine cos(pi s d), on a line                               |w| = pi s

Positive definite factors of cityblock distances are mixtures of products of exponentials: the entries of w are Cauchy
variables times a common one. Directions are drawn orthogonal to each other in groups of the dimension, and quantiles
are stratified; each single frequency has the spectral law.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import scipy

from kcalib._backend import linalg
from kcalib._backend.threads import one_blas_thread
from kcalib._pairs.problem import Factor
from kcalib._pairs.profiles import PROFILES

SMOOTHNESS = {"exponential": 0.5, "matern_3_2": 1.5, "matern_5_2": 2.5}
LARGEST_FREQUENCY = 1e12  # truncates heavy tails


class Domain:
    """The set of points: vectors of `columns` entries whose sums differ by at most `spread`.

    Points with equal sums do not differ along the vector of ones. If it changes no factor by more than `NEGLIGIBLE`,
    frequencies are orthogonal to that vector: the dimension is smaller by one, and predictions of two classes are on a
    line.
    """

    NEGLIGIBLE = 1e-6

    def __init__(self, columns: int, spread: float) -> None:
        self.columns = columns
        self.spread = spread

    def is_flat(self, rate: float) -> bool:
        return self.columns > 1 and self.spread * rate <= self.NEGLIGIBLE

    def dimension(self, rate: float) -> int:
        return self.columns - 1 if self.is_flat(rate) else self.columns


def frequencies(factor: Factor, domain: Domain, count: int, random: np.random.Generator) -> np.ndarray:
    """Draw frequencies of a radial factor, shape (count, columns).

    Raises
    ------
    ValueError
        If the factor is not known to be positive definite.
    """
    rate = _rate(factor)
    dimension = domain.dimension(rate)
    if factor.metric == "cityblock":
        if dimension > 1:
            return _draw_products(factor, domain.columns, count, random)
        # On a line cityblock distances are Euclidean ones times the root of the number of columns.
        stretch = math.sqrt(domain.columns)
        of_square = PROFILES[factor.profile].of_square
        factor = replace(factor, metric="euclidean", scale=factor.scale * (stretch**2 if of_square else stretch))
    if factor.metric != "euclidean" or not _is_definite(factor, dimension):
        raise ValueError(without_features(factor))
    directions = _draw_directions(domain.columns, domain.is_flat(rate), count, random)
    radii = np.exp(np.minimum(_draw_log_radii(factor, dimension, count, random), math.log(LARGEST_FREQUENCY)))
    return directions * radii[:, None]


def scales(factor: Factor, count: int, random: np.random.Generator) -> np.ndarray:
    """Draw lengths r, shape (count,), such that the factor at distance d is E exp(-r^2 d^2 / 2).

    Raises
    ------
    ValueError
        If the factor has no Euclidean distances, or is not known to be positive definite in every dimension.
    """
    profile = factor.profile
    if factor.metric != "euclidean" or PROFILES[profile].positive_definite != "EVERYWHERE":
        raise ValueError(without_features(factor))
    log_scale, numbers = math.log(factor.scale), stratified(count, 3, random)
    if profile in SMOOTHNESS:  # over a chi with 2 nu degrees of freedom
        logs = log_scale - (math.log(2) + _log_gamma(SMOOTHNESS[profile], numbers[:, 0])) / 2
    elif profile == "gaussian":
        logs = np.full(count, (log_scale + math.log(2)) / 2)
    elif profile == "rational_quadratic":
        logs = (log_scale + math.log(2) + _log_gamma(factor.a, numbers[:, 0])) / 2
    else:
        logs = log_scale + _log_mixing(factor, numbers[:, 0])
        logs = logs + (math.log(2) + _log_stable(factor.a / 2, numbers[:, 1], numbers[:, 2])) / 2
    return np.exp(np.minimum(logs, math.log(LARGEST_FREQUENCY)))


def without_features(factor: Factor) -> str:
    """Return the message for a factor that has no random features."""
    names = {"table": "a table of distances", "identity": "a bare distance"}
    name = names.get(factor.metric) or names.get(factor.profile) or f"{factor.metric} distances"
    return (
        f"`kernel` has the factor {factor.profile!r} of {name}, which is not known to be positive definite there and "
        "has no random features; use Exponential() or another kernel with metric='euclidean' (predicted distributions: "
        "metric='wasserstein' of a family with points, or 'mmd'), or an estimator and a test of all pairs: "
        "estimator='unbiased', method='exact'"
    )


def _rate(factor: Factor) -> float:
    """Return an approximate slope of a factor."""
    return math.sqrt(2 * factor.scale) if PROFILES[factor.profile].of_square else factor.scale


def _is_definite(factor: Factor, dimension: int) -> bool:
    definiteness = PROFILES[factor.profile].positive_definite
    return definiteness == "EVERYWHERE" or (definiteness == "ON_A_LINE" and dimension == 1)


def stratified(count: int, columns: int, random: np.random.Generator) -> np.ndarray:
    """Draw numbers in (0, 1), shape (count, columns), one in each of `count` equal intervals in each column."""
    places = np.stack([random.permutation(count) for _ in range(columns)], axis=1)
    # Exclude 0 and 1, whose quantiles are infinite.
    return np.clip((places + random.random((count, columns))) / count, 2.0**-54, 1 - 2.0**-53)


@one_blas_thread()
def _draw_directions(columns: int, is_flat: bool, count: int, random: np.random.Generator) -> np.ndarray:
    """Draw unit vectors, uniform on the sphere, and orthogonal within groups of the dimension."""
    dimension = columns - 1 if is_flat else columns
    parts = []
    for begin in range(0, count, dimension):
        normal = random.standard_normal((columns, min(dimension, count - begin)))
        if is_flat:
            normal -= normal.mean(axis=0)
        parts.append(linalg.orthonormalize(normal).T)
    return np.concatenate(parts)


def _draw_log_radii(factor: Factor, dimension: int, count: int, random: np.random.Generator) -> np.ndarray:
    """Draw logarithms of lengths of frequencies for a factor of Euclidean distances."""
    profile, log_scale = factor.profile, math.log(factor.scale)
    if profile == "cosine":
        return np.full(count, math.log(math.pi) + log_scale)
    if profile in SMOOTHNESS:
        return log_scale + _student(dimension, SMOOTHNESS[profile], stratified(count, 1, random)[:, 0])
    numbers = stratified(count, 4, random)
    half_chi = _log_gamma(dimension / 2, numbers[:, 0])  # log of chi2_d / 2
    if profile == "gaussian":
        return (log_scale + math.log(4) + half_chi) / 2
    if profile == "rational_quadratic":
        return (log_scale + math.log(4) + half_chi + _log_gamma(factor.a, numbers[:, 1])) / 2
    mixing = _log_mixing(factor, numbers[:, 1])
    if factor.a == 1:
        return log_scale + mixing + _student(dimension, 0.5, numbers[:, 0])
    stable = _log_stable(factor.a / 2, numbers[:, 2], numbers[:, 3])
    return log_scale + mixing + (math.log(4) + stable + half_chi) / 2


def _draw_products(factor: Factor, columns: int, count: int, random: np.random.Generator) -> np.ndarray:
    """Draw frequencies for a factor of cityblock distances."""
    if factor.profile == "exponential":
        log_scale: float | np.ndarray = 0.0
    elif factor.profile in ("gamma_exponential", "gamma_rational_quadratic") and factor.a <= 1:
        numbers = stratified(count, 3, random)
        log_scale = (_log_mixing(factor, numbers[:, 0]) + _log_stable(factor.a, numbers[:, 1], numbers[:, 2]))[:, None]
    else:
        raise ValueError(without_features(factor))
    cauchy = np.tan(math.pi * (stratified(count, columns, random) - 0.5))
    largest = LARGEST_FREQUENCY
    return np.clip(
        np.exp(np.minimum(math.log(factor.scale) + log_scale, math.log(largest))) * cauchy, -largest, largest
    )


def _log_mixing(factor: Factor, uniform: np.ndarray) -> np.ndarray:
    """Return logarithms of quantiles of the variable that multiplies the scale of a gamma-exponential factor."""
    if factor.profile == "gamma_exponential":
        return np.zeros_like(uniform)
    return (_log_gamma(factor.b, uniform) - math.log(factor.b)) / factor.a


def _student(dimension: int, smoothness: float, uniform: np.ndarray) -> np.ndarray:
    """Return quantiles of log sqrt(chi2_d / chi2_{2 nu}); the ratio is (1 - B) / B for B ~ Beta(nu, d / 2)."""
    beta = scipy.special.betaincinv(smoothness, dimension / 2, uniform)
    return (np.log1p(-np.minimum(beta, 1 - 2.0**-53)) - np.log(np.maximum(beta, np.finfo(float).tiny))) / 2


def _log_gamma(shape: float, uniform: np.ndarray) -> np.ndarray:
    """Return logarithms of quantiles of Gamma(shape), which may underflow."""
    quantile = scipy.special.gammaincinv(shape, uniform)
    # Near 0 the distribution function is x^shape / Gamma(shape + 1).
    near_zero = (np.log(uniform) + scipy.special.gammaln(shape + 1)) / shape
    return np.where(quantile > 1e-290, np.log(np.maximum(quantile, 1e-300)), near_zero)


def _log_stable(index: float, angle: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Return logarithms of positive stable variables, E exp(-t A) = exp(-t^index), 0 < index <= 1 (Kanter 1975)."""
    if index == 1:
        return np.zeros_like(angle)
    theta = math.pi * angle
    rest = (1 - index) / index
    return (
        np.log(np.sin(index * theta))
        - np.log(np.sin(theta)) / index
        + rest * (np.log(np.sin((1 - index) * theta)) - np.log(-np.log(uniform)))
    )
