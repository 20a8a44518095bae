"""Fit softmax and logistic regressions, for recalibrators.

`Regression` computes the penalised mean log loss, its gradient, and products with its Hessian, in blocks of samples.
`minimise` uses SciPy's trust-region method, in coordinates that make the Hessian of the parameters of each class the
identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from kcalib._backend.threads import one_blas_thread

TOLERANCES = (1e-2, 1e-7)  # of the scaled gradient; the class Hessians are recomputed in between
MAX_ITERATIONS = 100
BLOCK_ENTRIES, MIN_BLOCK = 2**16, 256  # probabilities that fit in the cache, and the smallest number of samples
MAX_HESSIAN_ENTRIES = 2**23  # of the class Hessians; beyond, all classes share their mean
MIN_CURVATURE = 1e-10  # relative to the largest of a class
START_SCALES = np.concatenate([[1.0], np.logspace(-4, 0, 25)[:-1]])
START_SAMPLES = 1000
FLAT = 1e-150  # square root of a negligible second derivative: products of two inverses would overflow
SINGULAR = 1e-12  # relative size of negligible eigenvalues of a scaled Hessian
MAX_SCALED_GRADIENT = 1e-5  # at convergence: the loss exceeds its minimum by about half its square


class Minimum(NamedTuple):
    """The minimum of the penalised loss."""

    parameters: np.ndarray  # shape: (m, r)
    n_iterations: int
    converged: bool


@dataclass(eq=False)
class Regression:
    """A regression of labels on features, linear in parameters of shape (m, r)."""

    # (r, n) for all classes, or r arrays of shape (m, n) with separate values for each class; the last are 1. Samples
    # are
    # the last axis, so that sums over few classes run along long rows.
    features: np.ndarray | tuple[np.ndarray, ...]
    targets: np.ndarray  # labels (n,) of a softmax, or shares of m independent events (m, n)
    weight: np.ndarray  # shape: (n,)
    identity: np.ndarray  # parameters of the identity map
    penalty: np.ndarray | float = 0.0  # of the squared distance of each parameter from the identity
    free: np.ndarray | bool = True  # which parameters are fitted
    _probabilities: tuple[bytes, list[np.ndarray]] = field(default=(b"", []), init=False)
    _parts: list[tuple[np.ndarray, ...]] = field(default_factory=list, init=False)  # features of blocks, contiguous

    def __post_init__(self) -> None:
        self._parts = [
            tuple(
                values if values.strides[1] == 0 else np.ascontiguousarray(values) for values in self._features_of(rows)
            )
            for rows in self.blocks()
        ]

    @property
    def n(self) -> int:
        """The number of samples."""
        return int(self.targets.shape[-1])

    @property
    def is_softmax(self) -> bool:
        """Whether each sample has exactly one of the classes."""
        return self.targets.ndim == 1

    def compute_logits(self, parameters: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
        """Return the inputs of the softmax or the sigmoids, shape (m, n)."""
        return self._sum_products(parameters, self._features_of(rows))

    def _features_of(self, rows: slice) -> tuple[np.ndarray, ...]:
        features = (self.features,) if isinstance(self.features, np.ndarray) else self.features
        return tuple(values[:, rows] for values in features)

    def _sum_products(self, parameters: np.ndarray, part: tuple[np.ndarray, ...]) -> np.ndarray:
        if isinstance(self.features, np.ndarray):
            return np.asarray(parameters @ part[0])
        logits = part[0] * parameters[:, :1]
        for values, slopes in zip(part[1:-1], parameters.T[1:-1], strict=True):
            logits += values * slopes[:, None]
        logits += parameters[:, -1:]
        return logits

    def losses(self, logits: np.ndarray, rows: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Return the log losses of samples, (n,), or of events and samples, (m, n), and probabilities."""
        if self.is_softmax:
            logits = logits - logits.max(axis=0)
            at_label = logits[self.targets[rows], np.arange(logits.shape[1])]
            q = np.exp(logits, out=logits)
            sums = q.sum(axis=0)
            q /= sums
            return np.log(sums) - at_label, q
        small = np.exp(-np.abs(logits))
        losses = np.maximum(logits, 0.0) + np.log1p(small) - self.targets[:, rows] * logits
        return losses, np.where(logits < 0, small, 1.0) / (1 + small)

    def mean_losses(self, parameters: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
        """Return the mean log loss without penalty, for each event if these are independent."""
        losses = [
            self.losses(self.compute_logits(parameters, part), part)[0] @ self.weight[part]
            for part in self.blocks(rows)
        ]
        return np.asarray(sum(losses) / self.weight[rows].sum())

    def value_and_gradient(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the penalised mean log loss and its gradient, and store the probabilities for Hessian products."""
        value, gradient, probabilities = 0.0, np.zeros_like(parameters), []
        for rows, part in zip(self.blocks(), self._parts, strict=True):
            losses, q = self.losses(self._sum_products(parameters, part), rows)
            value += float(np.sum(losses @ self.weight[rows]))
            gradient += self._sum_features(self.residuals(q, rows), part)
            probabilities.append(q)
        self._probabilities = parameters.tobytes(), probabilities
        deviation = parameters - self.identity
        value = value / self.n + float(np.sum(self.penalty * deviation**2))
        return value, gradient / self.n + 2 * self.penalty * deviation

    def residuals(self, q: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
        """Return weighted differences of probabilities and targets, shape (m, n)."""
        if self.is_softmax:
            gaps = q * self.weight[rows]
            gaps[self.targets[rows], np.arange(q.shape[1])] -= self.weight[rows]
            return gaps
        return np.asarray((q - self.targets[:, rows]) * self.weight[rows])

    def hessian_product(self, parameters: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """Return the penalised Hessian times a direction."""
        product = np.zeros_like(direction)
        for rows, part, q in zip(self.blocks(), self._parts, self.probabilities(parameters), strict=True):
            slopes = self._sum_products(direction, part)
            slopes -= np.einsum("ij,ij->j", q, slopes) if self.is_softmax else q * slopes
            slopes *= q
            slopes *= self.weight[rows]
            product += self._sum_features(slopes, part)
        return np.asarray(product / self.n + 2 * self.penalty * direction)

    def probabilities(self, parameters: np.ndarray) -> list[np.ndarray]:
        """Return the probabilities of each block."""
        if self._probabilities[0] != parameters.tobytes():
            self.value_and_gradient(parameters)
        return self._probabilities[1]

    def class_hessians(self, parameters: np.ndarray) -> np.ndarray:
        """Return the penalised Hessian of the parameters of each class, (m, r, r), or their mean, (1, r, r)."""
        curvatures = [
            q * (1 - q) * self.weight[rows]
            for rows, q in zip(self.blocks(), self.probabilities(parameters), strict=True)
        ]
        penalty = np.broadcast_to(2 * self.penalty, parameters.shape)
        if parameters.size * parameters.shape[1] > MAX_HESSIAN_ENTRIES:
            curvatures = [part.mean(axis=0, keepdims=True) for part in curvatures]
            penalty = penalty.mean(axis=0, keepdims=True)
        hessians = self.second_moments(curvatures)
        return hessians + penalty[:, :, None] * np.eye(parameters.shape[1])

    def second_moments(self, weights: list[np.ndarray]) -> np.ndarray:
        """Return weighted second moments of the features for each class, from blocks of shape (m, n)."""
        total: Any = 0.0
        for part, block in zip(self._parts, weights, strict=True):
            if isinstance(self.features, np.ndarray):
                total = total + np.stack([(part[0] * weights_of_class) @ part[0].T for weights_of_class in block])
            else:
                total = total + np.stack(
                    [np.stack([np.einsum("ij,ij,ij->i", block, a, b) for b in part], axis=1) for a in part], axis=1
                )
        return np.asarray(total / self.n)

    def choose_start(self) -> np.ndarray:
        """Return the identity with its slopes times the factor with the lowest loss, for each event.

        With too large scores, wrong predictions would be certain, and Hessians 0.
        """
        rows = slice(None, None, max(1, self.n // START_SAMPLES))
        starts = [np.concatenate([s * self.identity[:, :-1], self.identity[:, -1:]], axis=1) for s in START_SCALES]
        best = np.argmin(np.stack([self.mean_losses(start, rows) for start in starts]), axis=0)
        return np.where(self.free, np.stack(starts)[best, np.arange(len(self.identity))], self.identity)

    def _sum_features(self, residuals: np.ndarray, part: tuple[np.ndarray, ...]) -> np.ndarray:
        if isinstance(self.features, np.ndarray):
            return np.asarray(residuals @ part[0].T)
        sums = [np.einsum("ij,ij->i", residuals, values) for values in part[:-1]]
        return np.stack([*sums, residuals.sum(axis=1)], axis=1)

    def blocks(self, rows: slice = slice(None)) -> Iterator[slice]:
        """Yield blocks of the samples, whose sums are added in this order."""
        step = max(MIN_BLOCK, BLOCK_ENTRIES // len(self.identity))
        first, last, stride = rows.indices(self.n)
        for begin in range(first, last, step * stride):
            yield slice(begin, min(begin + step * stride, last), stride)


@one_blas_thread()
def minimise(regression: Regression, start: np.ndarray | None = None) -> Minimum:
    """Return the minimum of the penalised loss, by Newton steps solved by conjugate gradients."""
    import scipy.optimize

    place = regression.choose_start() if start is None else start
    shape, n_iterations, size = place.shape, 0, np.inf
    for tolerance in TOLERANCES if start is None else TOLERANCES[1:]:
        scale = _inverse_roots(regression.class_hessians(place), regression.free)
        centre = place

        def move(u: np.ndarray, scale: np.ndarray = scale) -> np.ndarray:
            return np.matmul(u.reshape(shape)[:, None, :], scale)[:, 0]

        def scale_gradient(gradient: np.ndarray, scale: np.ndarray = scale) -> np.ndarray:
            return np.matmul(scale, gradient[:, :, None]).ravel()

        def objective(u: np.ndarray, centre: np.ndarray = centre) -> tuple[float, np.ndarray]:
            value, gradient = regression.value_and_gradient(centre + move(u))
            return value, scale_gradient(gradient)

        def product(u: np.ndarray, direction: np.ndarray, centre: np.ndarray = centre) -> np.ndarray:
            return scale_gradient(regression.hessian_product(centre + move(u), move(direction)))

        options = {"gtol": tolerance, "maxiter": MAX_ITERATIONS}
        result = scipy.optimize.minimize(
            objective, np.zeros(place.size), jac=True, hessp=product, method="trust-ncg", options=options
        )
        place, n_iterations, size = (
            centre + move(result.x),
            n_iterations + int(result.nit),
            float(np.linalg.norm(result.jac)),
        )
    return Minimum(place, n_iterations, bool(size <= MAX_SCALED_GRADIENT))


def _inverse_roots(hessians: np.ndarray, free: np.ndarray | bool) -> np.ndarray:
    """Return C with C H C^T = I for each Hessian (approximate if singular); rows of fixed parameters are 0."""
    free = np.broadcast_to(free, hessians.shape[:2])
    hessians = hessians * free[:, :, None] * free[:, None, :]
    largest = hessians.diagonal(axis1=1, axis2=2).max(axis=1)
    hessians += (MIN_CURVATURE * largest + np.finfo(np.float32).tiny)[:, None, None] * np.eye(hessians.shape[1])
    return np.linalg.inv(np.linalg.cholesky(hessians)) * free[:, None, :]


def invert(hessian: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return the scaled pseudo-inverse of a symmetric matrix, and whether it is singular."""
    scale = np.sqrt(np.maximum(np.diag(hessian), 0.0))
    inverse_scale = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > FLAT)
    values, vectors = np.linalg.eigh(hessian * inverse_scale[:, None] * inverse_scale)
    is_regular = values > SINGULAR * max(float(values.max(initial=0.0)), 0.0)
    inverses = np.divide(1.0, values, out=np.zeros_like(values), where=is_regular)
    return (vectors * inverses) @ vectors.T * inverse_scale[:, None] * inverse_scale, not bool(is_regular.all())
