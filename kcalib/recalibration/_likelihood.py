"""The likelihood of labels and targets as a function of the temperature, for each kind of prediction.

`of_labels` is for class probabilities, `likelihood_of` for families of distributions; both return a `Likelihood`, the
input of `_search.highest`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import special
from kcalib._input.checks import reject
from kcalib.distributions import Beta, Dirichlet, Distribution, Laplace, MultivariateNormal, Normal, PowerExponential
from kcalib.distributions._saddle_point import deviance, stirling_error
from kcalib.recalibration._families import not_closed

STRIP, DEVICE_STRIP = 2**18, 2**24  # probabilities in a chunk


@dataclass(frozen=True)
class Likelihood:
    """The negative log-likelihood of each sample: constant - beta observed + cumulant(beta), beta = 1 / T."""

    observed: Array  # log p(y) with respect to the reference measure, up to a constant; shape: (n,)
    constant: Array  # so that the sum is the negative log-likelihood of y, shape: (n,)
    # beta -> log of the integral of p^beta, and its two derivatives: mean and variance of log p(Z) of Z ~ q; (n,) each
    cumulant: Callable[[float], tuple[Array, Array, Array]]
    weight: Array  # shape: (n,)
    # If cumulant(beta) = -shape log(beta), the optimum is sum(-observed) / sum(shape); otherwise None.
    shape: Array | None = None

    def at(self, beta: float) -> tuple[float, float, float]:
        """Return the weighted mean and its derivatives."""
        value, slope, curvature = self.cumulant(beta)
        xp = arrays.namespace(self.weight)
        total = xp.sum(self.weight)
        terms = (self.constant - beta * self.observed + value, slope - self.observed, curvature)
        mean, first, second = (float(xp.sum(term * self.weight) / total) for term in terms)
        return mean, first, second

    def spread(self, beta: float) -> float:
        """Return the sum of squared terms of the first derivative, times n / (n - 1)."""
        scores = self.weight / self.weight.sum() * (self.cumulant(beta)[1] - self.observed)
        n = int((self.weight != 0).sum())
        return float(scores @ scores) * n / (n - 1)


def of_labels(logits: Array, labels: Array, weight: Array) -> Likelihood:
    """Return the likelihood of labels; those with a weight have a finite logit."""
    xp = arrays.namespace(logits)
    observed = logits[xp.arange(len(labels)), labels]
    logits = xp.maximum(logits, -1e150)  # so that products with probabilities of 0 are 0

    def cumulant(beta: float) -> tuple[Array, Array, Array]:
        rows = max(1, (STRIP if arrays.is_host(logits) else DEVICE_STRIP) // logits.shape[1])
        parts = [_log_partition(logits[i : i + rows], beta) for i in range(0, len(logits), rows)]
        value, slope, curvature = (xp.concat(part) for part in zip(*parts, strict=True))
        return value, slope, curvature

    # Labels with probability 0 that remain have no weight.
    observed = xp.where(xp.isfinite(observed), observed, 0.0)
    return Likelihood(observed, xp.zeros_like(observed), cumulant, weight)


def _log_partition(logits: Array, beta: float) -> tuple[Array, Array, Array]:
    """Return log sum exp(beta l), and mean and variance of l under the softmax; the largest l of each row is 0."""
    xp = arrays.namespace(logits)
    powers = xp.exp(beta * logits)
    sums = powers.sum(axis=1)
    mean = _row_sums(powers, logits) / sums
    deviations = logits - mean[:, None]
    return xp.log(sums), mean, _row_sums(powers, deviations, deviations) / sums


def _row_sums(*factors: Array) -> Array:
    """Return sums of products along the rows, shape (n,)."""
    if arrays.is_host(factors[0]):
        return np.einsum(",".join(["ij"] * len(factors)) + "->i", *factors)
    return functools.reduce(operator.mul, factors).sum(axis=1)


@functools.singledispatch
def likelihood_of(prediction: Distribution, y: Array, weight: Array) -> Likelihood:
    """Return the likelihood of targets, shape (n, d), as a function of the temperature."""
    raise TypeError(not_closed(prediction))


@likelihood_of.register
def _(prediction: Normal, y: Array, weight: np.ndarray) -> Likelihood:
    r = arrays.to_compute_device((y - prediction.expected_value()) / prediction.standard_deviation(), np.float64)
    return _of_energies(prediction, y, 0.5 * (r * r).sum(axis=1), prediction.n_dims / 2, weight)


@likelihood_of.register
def _(prediction: MultivariateNormal, y: Array, weight: np.ndarray) -> Likelihood:
    factors, gaps = (arrays.to_compute_device(a, np.float64) for a in (prediction.scale_tril, y - prediction.mean))
    r = arrays.namespace(factors).linalg.solve(factors, gaps[:, :, None])[:, :, 0]
    return _of_energies(prediction, y, 0.5 * (r * r).sum(axis=1), prediction.n_dims / 2, weight)


@likelihood_of.register
def _(prediction: Laplace, y: Array, weight: np.ndarray) -> Likelihood:
    energy = arrays.to_compute_device(abs(y[:, 0] - prediction.loc) / prediction.scale, np.float64)
    return _of_energies(prediction, y, energy, 1.0, weight)


@likelihood_of.register
def _(prediction: PowerExponential, y: Array, weight: np.ndarray) -> Likelihood:
    z = arrays.to_compute_device((y[:, 0] - prediction.loc) / prediction.scale, np.float64)
    xp, shape = arrays.namespace(z), arrays.to_compute_device(prediction.shape, np.float64)
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
    first, a, b = (arrays.to_compute_device(values, np.float64) for values in (y[:, 0], prediction.a, prediction.b))
    xp = arrays.namespace(a)
    return _of_shares(xp.stack([a, b], axis=1), xp.stack([first, 1 - first], axis=1), weight)


@likelihood_of.register
def _(prediction: Dirichlet, y: Array, weight: np.ndarray) -> Likelihood:
    shares = arrays.to_compute_device(y, np.float64)
    alpha = arrays.to_compute_device(prediction.alpha, np.float64)
    return _of_shares(alpha, shares / shares.sum(axis=1, keepdims=True), weight)


def _of_energies(prediction: Any, y: Array, energy: Array, shape: Any, weight: Array) -> Likelihood:
    """Return the likelihood of Lebesgue densities proportional to beta^shape exp(-beta energy)."""
    xp = arrays.namespace(energy)
    shape = xp.zeros_like(energy) + shape

    def cumulant(beta: float) -> tuple[Array, Array, Array]:
        return -shape * math.log(beta), -shape / beta, shape / beta**2

    targets = arrays.namespace(y).reshape(y, (prediction.n, *prediction.event_shape))
    at_one = xp.where(weight > 0, -arrays.to_compute_device(prediction.log_density(targets), np.float64), 0.0)
    return Likelihood(-energy, at_one - energy, cumulant, weight, shape)


def _of_shares(alpha: Array, y: Array, weight: Array) -> Likelihood:
    """Return the likelihood of Dirichlet densities, without differences of large terms."""
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
        # Sums over entries minus those of the total. The terms beta sum(alpha log(alpha / total)) are in `observed`.
        values, slopes, curvatures = (
            of_entries.sum(axis=1) - of_total[:, 0]
            for of_entries, of_total in zip(_log_gamma(beta * alpha), _log_gamma(beta * total), strict=True)
        )
        return values, slopes / beta, curvatures / beta**2

    return Likelihood(observed, arrays.namespace(y).log(y).sum(axis=1), cumulant, weight)


def _log_gamma(x: Array) -> tuple[Array, Array, Array]:
    """Return g(x) = log Gamma(x) - x log(x) + x, x g'(x) and x^2 g''(x)."""
    xp = arrays.namespace(x)
    r = 1 / xp.maximum(x, 30.0)
    s = r * r
    slope = -0.5 - r * (1 / 12 - s * (1 / 120 - s * (1 / 252 - s / 240)))
    curvature = 0.5 + r * (1 / 6 - s * (1 / 30 - s * (1 / 42 - s / 30)))
    small = xp.minimum(x, 30.0)
    slope = xp.where(x < 30, small * (special(x).digamma(small) - xp.log(small)), slope)
    curvature = xp.where(x < 30, small * small * special(x).zeta(2.0, small) - small, curvature)
    return stirling_error(x) + 0.5 * xp.log(2 * math.pi / x), slope, curvature
