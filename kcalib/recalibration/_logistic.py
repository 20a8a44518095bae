"""Logistic regression of one event on a few features: what Platt scaling and beta calibration are.

`logistic` finds the highest likelihood by Newton's method, with coefficients that may have to be at least 0.
`LogisticEach` is what both recalibrators are: one such regression for each class.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np

from kcalib._backend.threads import one_blas_thread
from kcalib.recalibration._newton import Minimum, best_start, minimise
from kcalib.recalibration._recalibrator import FLOOR, ClassSamples, OneVsRest, check_flag
from kcalib.recalibration._separation import warn_of_separation


class Logistic(NamedTuple):
    """A fitted regression."""

    coefficients: np.ndarray  # shape: (r,)
    standard_errors: np.ndarray  # infinite where the samples do not tell, 0 where a bound does; shape: (r,)
    n_iterations: int
    converged: bool
    separates: bool  # every target is on its side


class LogisticEach(OneVsRest):
    """A logistic regression for each class against all others; subclasses say on what."""

    _takes_logarithms = True
    _coefficients: ClassVar[tuple[str, ...]]  # what the fit calls them, in their order

    def __init__(self, *, smoothing: bool = True, floor: float = FLOOR) -> None:
        self.smoothing = smoothing
        self.floor = floor

    @abstractmethod
    def _regression(self, samples: ClassSamples, k: int, targets: np.ndarray) -> Logistic:
        """Return the regression of a class."""

    @abstractmethod
    def _predictors(self, samples: ClassSamples, columns: list[int]) -> np.ndarray:
        """Return the log-odds that the regressions predict, shape (n, columns)."""

    def _check_parameters(self) -> None:
        check_flag("smoothing", self.smoothing)

    def _fit_columns(self, samples: ClassSamples, columns: list[int]) -> None:
        fits = []
        for k in columns:
            targets = smoothed_targets(samples.labels == k, samples.weight, self.smoothing)
            fits.append(self._regression(samples, k, targets))
        if not self.smoothing:
            warn_of_separation(self, [k for k, fit in zip(columns, fits, strict=True) if fit.separates])
        for i, name in enumerate(self._coefficients):
            setattr(self, f"{name}_", np.array([fit.coefficients[i] for fit in fits]))
            setattr(self, f"{name}_standard_error_", np.array([fit.standard_errors[i] for fit in fits]))
        self.n_iterations_ = sum(fit.n_iterations for fit in fits)
        self.converged_ = all(fit.converged for fit in fits)

    def _hits_and_misses(self, samples: ClassSamples, columns: list[int]) -> tuple[np.ndarray, np.ndarray]:
        predictors = self._predictors(samples, columns)
        return sigmoid(predictors), sigmoid(-predictors)


@one_blas_thread()
def logistic(
    features: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    start: np.ndarray,
    not_negative: tuple[int, ...] = (),
) -> Logistic:
    """Of targets in [0, 1] on features, shape (n, r); some coefficients are not negative.

    A convex function on an orthant is lowest where it is lowest on one of its faces.
    """
    best: tuple[Minimum, list[int]] | None = None
    n_iterations = 0
    for size in range(len(not_negative) + 1):
        for fixed in itertools.combinations(not_negative, size):
            free = [j for j in range(features.shape[1]) if j not in fixed]
            minimum = _on_face(features, targets, weight, start, free)
            n_iterations += minimum.n_iterations
            if any(minimum.place[free.index(j)] < 0 for j in not_negative if j in free):
                continue
            if best is None or minimum.value < best[0].value:
                best = minimum, free
        if best is not None and size == 0:
            break
    assert best is not None  # on the smallest face nothing can be negative
    minimum, free = best
    coefficients, errors = np.zeros(features.shape[1]), np.zeros(features.shape[1])
    coefficients[free] = minimum.place
    predictors = features @ coefficients
    errors[free] = _standard_errors(features[:, free], targets, weight, predictors, minimum)
    separates = bool(np.all(np.where(targets > 0.5, predictors, -predictors) > 0))
    return Logistic(coefficients, errors, n_iterations, minimum.converged, separates)


def _on_face(
    features: np.ndarray, targets: np.ndarray, weight: np.ndarray, start: np.ndarray, free: list[int]
) -> Minimum:
    free_features, total = features[:, free], weight.sum()

    def value_of(coefficients: np.ndarray) -> float:
        predictors = free_features @ coefficients
        losses = targets * np.logaddexp(0.0, -predictors) + (1 - targets) * np.logaddexp(0.0, predictors)
        return float(weight @ losses) / float(total)

    def objective(coefficients: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        predictors, value = free_features @ coefficients, value_of(coefficients)
        p, slope = sigmoid(predictors), sigmoid(predictors) * sigmoid(-predictors)
        gradient = free_features.T @ (weight * (p - targets)) / total
        return value, gradient, (free_features * (weight * slope)[:, None]).T @ free_features / total

    return minimise(value_of, objective, best_start(value_of, start[free], (start[free] > 0).astype(float)))


def _standard_errors(
    features: np.ndarray, targets: np.ndarray, weight: np.ndarray, predictors: np.ndarray, minimum: Minimum
) -> np.ndarray:
    """By the sandwich of Huber and White."""
    n = len(targets)
    if minimum.is_singular or not minimum.converged or n <= features.shape[1]:
        return np.full(features.shape[1], np.inf)
    scores = features * (weight / weight.sum() * (sigmoid(predictors) - targets))[:, None]
    covariance = minimum.inverse @ (scores.T @ scores) @ minimum.inverse * (n / (n - 1))
    return np.sqrt(np.maximum(np.diag(covariance), 0.0))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), small values to relative accuracy."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1 + small)


def smoothed_targets(hits: np.ndarray, weight: np.ndarray, smoothing: bool) -> np.ndarray:
    """Targets 0 and 1, or Platt's: what one more sample of either kind would make of their frequencies."""
    if not smoothing:
        return hits.astype(np.float64)
    positive, negative = float(weight @ hits), float(weight @ ~hits)
    return np.where(hits, (positive + 1) / (positive + 2), 1 / (negative + 2))
