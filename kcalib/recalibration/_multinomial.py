"""Softmax regression of the label on scores: what vector scaling, matrix scaling and Dirichlet calibration are.

`Diagonal` has a weight and an intercept for each class, `Full` a matrix and intercepts. Both are penalised by squares
of what they differ from the map that changes nothing; `multinomial` finds the lowest penalised mean log loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kcalib._backend.threads import one_blas_thread
from kcalib._backend.warnings import warn
from kcalib.recalibration._newton import best_start, minimise
from kcalib.recalibration._recalibrator import ClassSamples
from kcalib.recalibration._separation import SeparationWarning
from kcalib.recalibration._truncated_newton import Backend, minimise_by_products
from kcalib.solvers import ConvergenceWarning

MOST_FOR_NEWTON = 1000  # parameters, from where on a Hessian takes longer than many products with it
FLAT = 1e-12  # curvatures beside the largest that a preconditioner takes for no smaller


class Multinomial(NamedTuple):
    """A fitted map."""

    parameters: np.ndarray  # of the shape of the map's
    standard_errors: np.ndarray | None  # infinite where the samples do not tell; None if there is no Hessian
    before: float  # mean log loss of the scores as they are
    after: float  # mean log loss
    n_iterations: int
    converged: bool


@dataclass(frozen=True)
class Map(ABC):
    """Logits that are linear in parameters, and the labels that they should predict."""

    scores: np.ndarray  # shape: (n, m)
    labels: np.ndarray  # shape: (n,)
    weight: np.ndarray  # shape: (n,)
    penalty: np.ndarray  # of the square of each parameter's distance from the identity's

    @property
    @abstractmethod
    def identity(self) -> np.ndarray:
        """Parameters that change nothing."""

    @property
    @abstractmethod
    def weights_of_scores(self) -> np.ndarray:
        """1 for parameters that scores are multiplied by, 0 for intercepts."""

    @abstractmethod
    def logits(self, parameters: np.ndarray) -> np.ndarray:
        """Shape (n, m)."""

    @abstractmethod
    def gradient(self, residuals: np.ndarray) -> np.ndarray:
        """Sum over samples of residuals, shape (n, m), times derivatives of their logits."""

    @abstractmethod
    def hessian(self, q: np.ndarray) -> np.ndarray:
        """Of the mean log loss at probabilities q, shape (parameters, parameters)."""

    @abstractmethod
    def preconditioner(self, q: np.ndarray) -> Backend:
        """Nearly the inverse of the penalised Hessian, symmetric positive definite, at little cost."""

    def hessian_product(self, q: np.ndarray) -> Backend:
        """The penalised Hessian times directions, whose logits the map gives, too: it is linear."""

        def product(direction: np.ndarray) -> np.ndarray:
            slopes = q * self.logits(direction)
            slopes -= q * slopes.sum(axis=1, keepdims=True)
            slopes *= self.weight[:, None]
            return self.gradient(slopes) / len(q) + 2 * self.penalty * direction

        return product

    @abstractmethod
    def score_products(self, residuals: np.ndarray) -> np.ndarray:
        """Sum over samples of outer products of the terms of the gradient."""

    def loss(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Mean log loss, and probabilities."""
        logits = self.logits(parameters)
        highest = logits.max(axis=1, keepdims=True)
        powers = np.exp(logits - highest)
        sums = powers.sum(axis=1, keepdims=True)
        losses = (highest + np.log(sums))[:, 0] - logits[np.arange(len(logits)), self.labels]
        return float(self.weight @ losses) / len(losses), powers / sums

    def value(self, parameters: np.ndarray) -> float:
        """The penalised mean log loss."""
        return self.loss(parameters)[0] + float(np.sum(self.penalty * (parameters - self.identity) ** 2))

    def value_and_gradient(self, parameters: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Of the penalised mean log loss, and probabilities."""
        value, q = self.loss(parameters)
        deviation = parameters - self.identity
        gradient = self.gradient(self.residuals(q)) / len(q) + 2 * self.penalty * deviation
        return value + float(np.sum(self.penalty * deviation**2)), gradient, q

    def residuals(self, q: np.ndarray) -> np.ndarray:
        """Weighted, shape (n, m)."""
        gaps = q.copy()
        gaps[np.arange(len(q)), self.labels] -= 1
        return gaps * self.weight[:, None]


@dataclass(frozen=True)
class Diagonal(Map):
    """Parameters of shape (2, m): weights, and intercepts."""

    @property
    def identity(self) -> np.ndarray:
        m = self.scores.shape[1]
        return np.stack([np.ones(m), np.zeros(m)])

    @property
    def weights_of_scores(self) -> np.ndarray:
        return self.identity

    def logits(self, parameters: np.ndarray) -> np.ndarray:
        return np.asarray(self.scores * parameters[0] + parameters[1])

    def gradient(self, residuals: np.ndarray) -> np.ndarray:
        return np.stack([np.einsum("ij,ij->j", residuals, self.scores), residuals.sum(axis=0)])

    def hessian(self, q: np.ndarray) -> np.ndarray:
        weighted = np.concatenate([q * self.scores, q], axis=1)
        shared = -(weighted * self.weight[:, None]).T @ weighted
        sums = [self.weight @ (q * self.scores**power) for power in (2, 1, 0)]
        m = q.shape[1]
        diagonal = np.block([[np.diag(sums[0]), np.diag(sums[1])], [np.diag(sums[1]), np.diag(sums[2])]])
        assert diagonal.shape == (2 * m, 2 * m)
        return np.asarray(shared + diagonal) / len(q)

    def preconditioner(self, q: np.ndarray) -> Backend:
        diagonal = np.stack([self.weight @ (q * (1 - q) * part) for part in (self.scores**2, 1.0)]) / len(q)
        inverse = _inverse(diagonal + 2 * self.penalty)
        return lambda gradient: inverse * gradient

    def score_products(self, residuals: np.ndarray) -> np.ndarray:
        terms = np.concatenate([residuals * self.scores, residuals], axis=1)
        return np.asarray(terms.T @ terms)


@dataclass(frozen=True)
class Full(Map):
    """Parameters of shape (m, m + 1): row after row of the matrix, the intercept at its end."""

    @property
    def identity(self) -> np.ndarray:
        return np.eye(self.scores.shape[1], self.scores.shape[1] + 1)

    @property
    def weights_of_scores(self) -> np.ndarray:
        weights = np.ones_like(self.identity)
        weights[:, -1] = 0
        return weights

    def logits(self, parameters: np.ndarray) -> np.ndarray:
        return np.asarray(self.scores @ parameters[:, :-1].T + parameters[:, -1])

    def gradient(self, residuals: np.ndarray) -> np.ndarray:
        return np.concatenate([residuals.T @ self.scores, residuals.sum(axis=0)[:, None]], axis=1)

    def hessian(self, q: np.ndarray) -> np.ndarray:
        features, m = self._features(), q.shape[1]
        r = m + 1
        hessian = np.empty((m, r, m, r))
        for a in range(m):
            weighted = features * (self.weight * q[:, a])[:, None]
            for b in range(a, m):
                slope = 1 - q[:, a] if a == b else -q[:, b]
                hessian[a, :, b] = (weighted * slope[:, None]).T @ features
                hessian[b, :, a] = hessian[a, :, b].T
        return hessian.reshape(m * r, m * r) / len(q)

    def preconditioner(self, q: np.ndarray) -> Backend:
        """Of the Kronecker product of the residuals' mean covariance and that of the features."""
        covariance = (np.diag(self.weight @ q) - (q * self.weight[:, None]).T @ q) / len(q)
        sizes, rows = np.linalg.eigh(covariance)
        of_features, columns = self._moments
        inverse = _inverse(np.outer(np.maximum(sizes, 0.0), of_features) + 2 * float(np.median(self.penalty)))
        return lambda gradient: np.asarray(rows @ ((rows.T @ gradient @ columns) * inverse) @ columns.T)

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues and eigenvectors of the features' second moments."""
        features = self._features()
        sizes, columns = np.linalg.eigh((features * self.weight[:, None]).T @ features / len(features))
        return np.maximum(sizes, 0.0), columns

    def score_products(self, residuals: np.ndarray) -> np.ndarray:
        terms = (residuals[:, :, None] * self._features()[:, None, :]).reshape(len(residuals), -1)
        return np.asarray(terms.T @ terms)

    def _features(self) -> np.ndarray:
        return np.concatenate([self.scores, np.ones((len(self.scores), 1))], axis=1)


@one_blas_thread()
def multinomial(model: Map) -> Multinomial:
    """The map of the lowest penalised mean log loss, from the best multiple of the scores on."""
    identity = model.identity
    start = best_start(model.value, identity, model.weights_of_scores)
    shape, before = identity.shape, model.loss(identity)[0]
    if identity.size > MOST_FOR_NEWTON:
        lowest = minimise_by_products(
            model.value, model.value_and_gradient, model.hessian_product, model.preconditioner, start
        )
        after = model.loss(lowest.place)[0]
        return Multinomial(lowest.place, None, before, after, lowest.n_iterations, lowest.converged)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        value, gradient, q = model.value_and_gradient(x.reshape(shape))
        return value, gradient.ravel(), model.hessian(q) + np.diag(2 * model.penalty.ravel())

    newton = minimise(lambda x: model.value(x.reshape(shape)), objective, start.ravel())
    parameters = newton.place.reshape(shape)
    after, q = model.loss(parameters)
    n = len(q)
    errors = np.full(identity.size, np.inf)
    if newton.converged and not newton.is_singular and n > identity.size:
        spread = model.score_products(model.residuals(q)) / (n * (n - 1))
        errors = np.sqrt(np.maximum(np.diag(newton.inverse @ spread @ newton.inverse), 0.0))
    return Multinomial(parameters, errors.reshape(shape), before, after, newton.n_iterations, newton.converged)


def _inverse(curvatures: np.ndarray) -> np.ndarray:
    return 1 / np.maximum(curvatures, max(FLAT * float(curvatures.max()), np.finfo(float).tiny))


def warn_of_fit(recalibrator: Any, samples: ClassSamples, fit: Multinomial, logits: np.ndarray) -> None:
    """Say where the optimum was not reached, or where no sample holds it.

    If every label of the fit is the most probable class, the likelihood says that one may be certain.
    """
    if not fit.converged:
        warn(
            f"{type(recalibrator).__name__} stopped before its optimum, after {fit.n_iterations} steps; with a "
            "larger regularization, or fewer classes, it is nearer",
            ConvergenceWarning,
        )
    other_logits = logits.copy()
    label_logits = other_logits[np.arange(len(other_logits)), samples.labels].copy()
    other_logits[np.arange(len(other_logits)), samples.labels] = -np.inf
    if np.all(label_logits > other_logits.max(axis=1)):
        warn(
            f"{type(recalibrator).__name__} finds the label of every sample of the fit ({samples.n}), so that the "
            "likelihood grows up to certainty: what was fitted is held by the regularization alone; pass more samples",
            SeparationWarning,
        )


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax of each row."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
