r"""Distances between covariance matrices (Bures), what normal distributions add to those of their means.

:math:`d^2(S, S') = \operatorname{tr} S + \operatorname{tr} S' - 2 \operatorname{tr} (S^{1/2} S' S^{1/2})^{1/2}` is the
squared 2-Wasserstein distance of N(0, S) and N(0, S'). The three traces nearly cancel for similar matrices, where
:math:`d` would lose half of the digits. With roots :math:`S = A A^T` and :math:`S' = B B^T` it is
:math:`\min_U \|A - B U\|_F^2` over orthogonal U, attained at the polar factor of :math:`B^T A`: a sum of squares of
differences. Called by `distances`.
"""

from __future__ import annotations

from kcalib._backend import arrays
from kcalib._backend.arrays import Array


def covariance_roots(covariances: Array) -> Array:
    """Symmetric roots of positive semidefinite matrices, shape (..., d, d)."""
    xp = arrays.namespace(covariances)
    if covariances.shape[-1] == 1:
        return xp.sqrt(covariances)
    values, vectors = xp.linalg.eigh(covariances)
    scaled = vectors * xp.sqrt(xp.maximum(values, 0.0))[..., None, :]
    return scaled @ xp.swapaxes(vectors, -1, -2)


def squared_distances(roots: Array, others: Array) -> Array:
    """Squared distances, shape (...), of matrices with these roots, shapes (..., d, d), broadcast."""
    xp, d = arrays.namespace(roots), roots.shape[-1]
    if d == 1:
        return ((roots - others) ** 2)[..., 0, 0]
    products = xp.swapaxes(roots, -1, -2) @ others
    if d == 2:
        squares = _squared_of_two(roots, others, products)
    else:
        left, _, right = xp.linalg.svd(products)
        squares = xp.sum((roots @ left - others @ xp.swapaxes(right, -1, -2)) ** 2, axis=(-1, -2))
    return xp.where(xp.all(roots == others, axis=(-1, -2)), 0.0, squares)


def _squared_of_two(roots: Array, others: Array, products: Array) -> Array:
    """The same for 2 x 2 matrices: U is a rotation, as the roots' determinants are not negative."""
    xp = arrays.namespace(products)
    cosine = products[..., 0, 0] + products[..., 1, 1]
    sine = products[..., 0, 1] - products[..., 1, 0]
    size = xp.hypot(cosine, sine)
    apart = size == 0  # of matrices with orthogonal ranges; then every U is optimal
    size = xp.where(apart, 1.0, size)
    cosine, sine = xp.where(apart, 1.0, cosine) / size, sine / size
    first = roots[..., :, 0] - cosine[..., None] * others[..., :, 0] - sine[..., None] * others[..., :, 1]
    second = roots[..., :, 1] + sine[..., None] * others[..., :, 0] - cosine[..., None] * others[..., :, 1]
    return xp.sum(first**2 + second**2, axis=-1)
