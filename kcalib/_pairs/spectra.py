"""Frequencies of radial factors: a positive definite profile is the characteristic function of its spectral law.

With w drawn from it E cos <w, x - x'> is the factor. Every profile of Euclidean distances is a mixture of Gaussians
over their scales, so that w is a direction, uniform on the sphere, times a radius that depends on the mixing law:

    gaussian exp(-s d^2)                                        |w|^2 = 2 s chi2_d
    exponential, matern of r = s d, smoothness nu               |w|^2 = s^2 chi2_d / chi2_{2 nu}
    gamma_exponential exp(-(s d)^a)                             |w|^2 = 2 s^2 A chi2_d,  A positive, (a/2)-stable
    rational_quadratic (1 + s d^2)^-a                           |w|^2 = 2 s G chi2_d,    G ~ Gamma(a)
    gamma_rational_quadratic (1 + (s d)^a / b)^-b               gamma_exponential of scale s (G / b)^(1/a), G ~ Gamma(b)
    cosine cos(pi s d), on a line                               |w| = pi s

Those of cityblock distances that are positive definite are mixtures of products of exponentials: the entries of w are
Cauchy variables times a common one. Directions of one draw are orthogonal as long as there is room, and quantiles
stratified; each frequency by itself has the spectral law. `features` calls `frequencies`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import scipy

from kcalib._backend import linalg
from kcalib._pairs.problem import Factor
from kcalib._pairs.profiles import PROFILES

SMOOTHNESS = {"exponential": 0.5, "matern_3_2": 1.5, "matern_5_2": 2.5}
# Heavy tails end here: whatever is closer than that in units of the points is equal for the features of a frequency.
LARGEST_FREQUENCY = 1e12


class Domain:
    """Where points lie: vectors of `columns` entries, whose sums differ by `spread` at most.

    Along the vector of ones points of equal sums do not differ. Frequencies have no part of it where that changes no
    factor by more than `NEGLIGIBLE`: the dimension is less by one, and predictions of two classes are on a line.
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
    """`count` frequencies of a radial factor, shape (count, columns).

    Raises
    ------
    ValueError
        If the factor is not known to be positive definite.
    """
    rate = _rate(factor)
    dimension = domain.dimension(rate)
    if factor.metric == "cityblock":
        if dimension > 1:
            return _products(factor, domain.columns, count, random)
        # On a line two classes are sqrt 2 farther apart than in the Euclidean distance, numbers as far.
        stretch = math.sqrt(domain.columns)
        of_square = PROFILES[factor.profile].of_square
        factor = replace(factor, metric="euclidean", scale=factor.scale * (stretch**2 if of_square else stretch))
    if factor.metric != "euclidean" or not _definite(factor, dimension):
        raise ValueError(without_features(factor))
    directions = _directions(domain.columns, domain.is_flat(rate), count, random)
    radii = np.exp(np.minimum(_log_radii(factor, dimension, count, random), math.log(LARGEST_FREQUENCY)))
    return directions * radii[:, None]


def scales(factor: Factor, count: int, random: np.random.Generator) -> np.ndarray:
    """Lengths r with E exp(-r^2 d^2 / 2) the factor of the distance d, shape (count,): its law as a mixture.

    Raises
    ------
    ValueError
        If the factor is none of Euclidean distances, or not known to be positive definite in every dimension.
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
    """What to say of a factor that is not known to be the mean of features."""
    name = {"table": "a table of distances", "identity": "a bare distance"}
    what = name.get(factor.metric) or name.get(factor.profile) or f"{factor.metric} distances"
    return (
        f"`kernel` has the factor {factor.profile!r} of {what}, which is not known to be positive definite there and "
        "has no random features; use Exponential() or another kernel with metric='euclidean' (predicted distributions: "
        "metric='wasserstein' of a family with points, or 'mmd'), or an estimator and a test of all pairs: "
        "estimator='unbiased', method='exact'"
    )


def _rate(factor: Factor) -> float:
    """The factor changes by about this times a distance."""
    return math.sqrt(2 * factor.scale) if PROFILES[factor.profile].of_square else factor.scale


def _definite(factor: Factor, dimension: int) -> bool:
    known = PROFILES[factor.profile].positive_definite
    return known == "EVERYWHERE" or (known == "ON_A_LINE" and dimension == 1)


def stratified(count: int, columns: int, random: np.random.Generator) -> np.ndarray:
    """Numbers in (0, 1), shape (count, columns): a column has one in each of `count` equal parts, in random order."""
    places = np.stack([random.permutation(count) for _ in range(columns)], axis=1)
    # An end of (0, 1) would have an infinite quantile.
    return np.clip((places + random.random((count, columns))) / count, 2.0**-54, 1 - 2.0**-53)


def _directions(columns: int, flat: bool, count: int, random: np.random.Generator) -> np.ndarray:
    """Unit vectors, uniform on the sphere, as many at a time orthogonal to each other as there is room for."""
    room = columns - 1 if flat else columns
    parts = []
    for begin in range(0, count, room):
        normal = random.standard_normal((columns, min(room, count - begin)))
        if flat:
            normal -= normal.mean(axis=0)
        parts.append(linalg.orthonormalize(normal).T)
    return np.concatenate(parts)


def _log_radii(factor: Factor, dimension: int, count: int, random: np.random.Generator) -> np.ndarray:
    """Logarithms of lengths of frequencies of a Euclidean factor."""
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


def _products(factor: Factor, columns: int, count: int, random: np.random.Generator) -> np.ndarray:
    """Frequencies of a factor of cityblock distances."""
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
    """Logarithms of what the scale of a gamma-exponential factor is multiplied by."""
    if factor.profile == "gamma_exponential":
        return np.zeros_like(uniform)
    return (_log_gamma(factor.b, uniform) - math.log(factor.b)) / factor.a


def _student(dimension: int, smoothness: float, uniform: np.ndarray) -> np.ndarray:
    """log sqrt(chi2_d / chi2_{2 nu}): the ratio is (1 - B) / B of B ~ Beta(nu, d / 2)."""
    beta = scipy.special.betaincinv(smoothness, dimension / 2, uniform)
    return (np.log1p(-np.minimum(beta, 1 - 2.0**-53)) - np.log(np.maximum(beta, np.finfo(float).tiny))) / 2


def _log_gamma(shape: float, uniform: np.ndarray) -> np.ndarray:
    """Logarithms of quantiles of Gamma(shape), which may be below the smallest number."""
    quantile = scipy.special.gammaincinv(shape, uniform)
    # Near 0 the distribution function is x^shape / Gamma(shape + 1).
    near_zero = (np.log(uniform) + scipy.special.gammaln(shape + 1)) / shape
    return np.where(quantile > 1e-290, np.log(np.maximum(quantile, 1e-300)), near_zero)


def _log_stable(index: float, angle: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Logarithms of positive stable variables, E exp(-t A) = exp(-t^index), 0 < index <= 1 (Kanter 1975)."""
    if index == 1:
        return np.zeros_like(angle)
    theta = math.pi * angle
    rest = (1 - index) / index
    return (
        np.log(np.sin(index * theta))
        - np.log(np.sin(theta)) / index
        + rest * (np.log(np.sin((1 - index) * theta)) - np.log(-np.log(uniform)))
    )
