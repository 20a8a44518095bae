"""One-vs-rest logistic regression on a few features: Platt scaling and beta calibration."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
import scipy

from kcalib._backend.threads import one_blas_thread
from kcalib._backend.warnings import warn
from kcalib.recalibration._recalibrator import FLOOR, ClassSamples, OneVsRest, SeparationWarning, check_flag
from kcalib.solvers.logistic import Minimum, Regression, invert, minimise


class LogisticEach(OneVsRest):
    """Base class of a logistic regression for each class against all others; subclasses choose the features."""

    _takes_logarithms = True
    _coefficients: ClassVar[tuple[str, ...]]  # their names as attributes, the intercept last
    _bounded: ClassVar[int]  # number of leading coefficients that are at least 0

    def __init__(self, *, smoothing: bool = True, floor: float = FLOOR) -> None:
        self.smoothing = smoothing
        self.floor = floor

    @abstractmethod
    def _features(self, samples: ClassSamples, columns: list[int]) -> tuple[np.ndarray, ...]:
        """Return the features, shape (n, columns) each."""

    def _check_parameters(self) -> None:
        check_flag("smoothing", self.smoothing)

    def _fit_columns(self, samples: ClassSamples, columns: list[int]) -> None:
        hits = samples.labels == np.array(columns)[:, None]
        features = tuple(values.T for values in self._features(samples, columns))
        identity = np.tile([1.0] * len(features) + [0.0], (len(columns), 1))
        # If all predictions are equal the slope is unidentified; use 1.
        free = np.stack([np.any(values != values[:, :1], axis=1) for values in features] + [identity[:, 0] > 0], axis=1)
        targets = _smooth_targets(hits, samples.weight) if self.smoothing else hits.astype(np.float64)
        regression = Regression(
            (*features, np.broadcast_to(1.0, hits.shape)), targets, samples.weight, identity, free=free
        )
        minimum = _minimise_bounded(regression, self._bounded, self._start())
        if not self.smoothing:
            predictors = regression.compute_logits(minimum.parameters)
            separated = np.all(np.where(hits, predictors, -predictors) > 0, axis=1)
            names = [k for k, is_separated in zip(columns, separated, strict=True) if is_separated]
            if names:
                warn(
                    f"the predictions separate class {names[0]} from the others ({len(names)} such classes), and the "
                    f"likelihood of {type(self).__name__} has no maximum: the fit is its last step; pass "
                    "smoothing=True, or more samples",
                    SeparationWarning,
                )
        errors = _standard_errors(regression, minimum.parameters)
        errors[~free.all(axis=1)] = np.inf
        for name, values, error in zip(self._coefficients, minimum.parameters.T, errors.T, strict=True):
            setattr(self, f"{name}_", values.copy())
            setattr(self, f"{name}_standard_error_", error.copy())
        self.n_iterations_, self.converged_ = minimum.n_iterations, minimum.converged

    def _parameters(self) -> np.ndarray:
        return np.stack([getattr(self, f"{name}_") for name in self._coefficients], axis=1)

    def _hits_and_misses(self, samples: ClassSamples, columns: list[int]) -> tuple[np.ndarray, np.ndarray]:
        *slopes, intercept = (getattr(self, f"{name}_") for name in self._coefficients)
        predictors = sum(a * values for a, values in zip(slopes, self._features(samples, columns), strict=True))
        predictors = predictors + intercept
        return scipy.special.expit(predictors), scipy.special.expit(-predictors)


@one_blas_thread()
def _minimise_bounded(regression: Regression, n_bounded: int, start: np.ndarray | None) -> Minimum:
    """Return the minimum with the first slopes at least 0, with the positive ones marked in `free`."""
    free, n_iterations = np.broadcast_to(regression.free, regression.identity.shape), 0
    is_bounded = free & (np.arange(free.shape[1]) < n_bounded)
    fixed = is_bounded & (False if start is None else start <= 0)
    start = None if start is None else np.where(fixed, 0.0, start)
    for _ in range(2**n_bounded):
        regression.free = free & ~fixed
        minimum = minimise(regression, start)
        n_iterations += minimum.n_iterations
        slopes = regression.value_and_gradient(minimum.parameters)[1]
        changed = is_bounded & ((minimum.parameters < 0) | (fixed & (slopes >= 0)))
        if np.array_equal(changed, fixed):
            break
        fixed, start = changed, np.where(changed, 0.0, minimum.parameters)
    return Minimum(
        np.where(is_bounded, np.maximum(minimum.parameters, 0.0), minimum.parameters), n_iterations, minimum.converged
    )


def _standard_errors(regression: Regression, parameters: np.ndarray) -> np.ndarray:
    """Return sandwich (Huber-White) standard errors of each class; 0 at a bound, infinite if not identified."""
    n, errors = regression.n, np.zeros(parameters.shape)
    blocks = zip(regression.blocks(), regression.probabilities(parameters), strict=True)
    spreads = regression.second_moments([regression.residuals(q, rows) ** 2 for rows, q in blocks]) / max(1, n - 1)
    for k, hessian in enumerate(regression.class_hessians(parameters)):
        used = np.broadcast_to(regression.free, parameters.shape)[k]
        inverse, is_singular = invert(hessian[np.ix_(used, used)])
        spread = inverse @ spreads[k][np.ix_(used, used)] @ inverse
        errors[k, used] = np.inf if is_singular or n <= used.sum() else np.sqrt(np.maximum(np.diag(spread), 0.0))
    return errors


def _smooth_targets(hits: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return Platt's targets: the frequencies of 0 and 1 after adding one sample of each."""
    positive, negative = (hits @ weight)[:, None], (~hits @ weight)[:, None]
    return np.where(hits, (positive + 1) / (positive + 2), 1 / (negative + 2))
