r"""Distances between covariance matrices (Bures), what normal distributions add to those of their means.

:math:`d^2(S, S') = \operatorname{tr} S + \operatorname{tr} S' - 2 \operatorname{tr} (S^{1/2} S' S^{1/2})^{1/2}` is the
squared 2-Wasserstein distance of N(0, S) and N(0, S'). The three traces nearly cancel for similar matrices, where
:math:`d` would lose half of the digits. With roots :math:`S = A A^T` and :math:`S' = B B^T` it is
:math:`\min_U \|A - B U\|_F^2` over orthogonal U, attained at the polar factor of :math:`B^T A`: a sum of squares of
differences. Called by `distances`.
"""

from __future__ import annotations

import numpy as np


def covariance_roots(covariances: np.ndarray) -> np.ndarray:
    """Symmetric roots of positive semidefinite matrices, shape (..., d, d)."""
    if covariances.shape[-1] == 1:
        return np.sqrt(covariances)
    values, vectors = np.linalg.eigh(covariances)
    scaled = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    return scaled @ np.swapaxes(vectors, -1, -2)


def squared_distances(roots: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Squared distances, shape (...), of matrices with these roots, shapes (..., d, d), broadcast."""
    d = roots.shape[-1]
    if d == 1:
        return ((roots - others) ** 2)[..., 0, 0]
    products = np.swapaxes(roots, -1, -2) @ others
    if d == 2:
        squares = _squared_of_two(roots, others, products)
    else:
        left, _, right = np.linalg.svd(products)
        squares = np.sum((roots @ left - others @ np.swapaxes(right, -1, -2)) ** 2, axis=(-1, -2))
    return np.where(np.all(roots == others, axis=(-1, -2)), 0.0, squares)


def _squared_of_two(roots: np.ndarray, others: np.ndarray, products: np.ndarray) -> np.ndarray:
    """The same for 2 x 2 matrices: U is a rotation, as the roots' determinants are not negative."""
    cosine = products[..., 0, 0] + products[..., 1, 1]
    sine = products[..., 0, 1] - products[..., 1, 0]
    size = np.hypot(cosine, sine)
    apart = size == 0  # of matrices with orthogonal ranges; then every U is optimal
    size = np.where(apart, 1.0, size)
    cosine, sine = np.where(apart, 1.0, cosine) / size, sine / size
    first = roots[..., :, 0] - cosine[..., None] * others[..., :, 0] - sine[..., None] * others[..., :, 1]
    second = roots[..., :, 1] + sine[..., None] * others[..., :, 0] - cosine[..., None] * others[..., :, 1]
    return np.sum(first**2 + second**2, axis=-1)
