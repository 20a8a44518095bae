"""The slow literal oracle: H from the definition, in extended precision.

It shares no formula with the library. The target factor is the tensor-product form of
Widmann et al. 2021, section 3.2, with its expectations as sums over classes (no
residuals); distances and profiles are textbook formulas on np.longdouble arrays.
"""

from __future__ import annotations

import numpy as np

from kcalib import kernels as K

LONG = np.longdouble


def kernel_matrix(kernel: K.Kernel, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """k(p_i, q_j), shape (n, n')."""
    if isinstance(kernel, K.Sum):
        return kernel_matrix(kernel.left, p, q) + kernel_matrix(kernel.right, p, q)
    if isinstance(kernel, K.Product):
        return kernel_matrix(kernel.left, p, q) * kernel_matrix(kernel.right, p, q)
    if isinstance(kernel, K.Scaled):
        return LONG(kernel.scale) * kernel_matrix(kernel.kernel, p, q)
    p, q = np.asarray(p, LONG), np.asarray(q, LONG)
    if isinstance(kernel, K.Linear):
        return np.array([np.sum(a * q, axis=1) for a in p])
    assert isinstance(kernel, K.RadialKernel) and kernel.bandwidth is not None
    differences = np.abs(p[:, None, :] - q[None, :, :])
    d = {
        "euclidean": lambda: np.sqrt(np.sum(differences**2, axis=-1)),
        "cityblock": lambda: np.sum(differences, axis=-1),
        "total_variation": lambda: np.sum(differences, axis=-1) / 2,
    }[kernel.metric]()
    r = d / LONG(kernel.bandwidth)
    if isinstance(kernel, K.Exponential):
        return np.exp(-r)
    if isinstance(kernel, K.Gaussian):
        return np.exp(-(r**2) / 2)
    if isinstance(kernel, K.GammaExponential):
        return np.exp(-(r ** LONG(kernel.gamma)))
    if isinstance(kernel, K.RationalQuadratic):
        return (1 + r**2 / (2 * LONG(kernel.alpha))) ** -LONG(kernel.alpha)
    if isinstance(kernel, K.GammaRationalQuadratic):
        return (1 + r ** LONG(kernel.gamma) / LONG(kernel.alpha)) ** -LONG(kernel.alpha)
    if isinstance(kernel, K.Cosine):
        return np.cos(LONG("3.14159265358979323846264338327950288") * r)
    if isinstance(kernel, K.Matern) and kernel.nu == 1.5:
        return (1 + np.sqrt(LONG(3)) * r) * np.exp(-np.sqrt(LONG(3)) * r)
    if isinstance(kernel, K.Matern) and kernel.nu == 2.5:
        return (1 + np.sqrt(LONG(5)) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(LONG(5)) * r)
    raise AssertionError(kernel)


def target_factor(
    y: np.ndarray, p: np.ndarray, z: np.ndarray, q: np.ndarray, m_matrix: np.ndarray | None
) -> np.ndarray:
    """k_Y(y,y') - E_Z k_Y(Z,y') - E_Z' k_Y(y,Z') + E_Z,Z' k_Y(Z,Z'), shape (n, n')."""
    p, q = np.asarray(p, LONG), np.asarray(q, LONG)
    table = np.eye(p.shape[1], dtype=LONG) if m_matrix is None else np.asarray(m_matrix, LONG)
    smeared = np.array([np.sum(row[:, None] * table, axis=0) for row in p])  # E_Z k_Y(Z, c)
    other = np.array([np.sum(row[None, :] * table, axis=1) for row in q])
    both = np.array([np.sum(row * q, axis=1) for row in smeared])
    return table[np.ix_(y, z)] - smeared[:, z] - other[:, y].T + both


def h_matrix(
    kernel: K.Kernel, y: np.ndarray, p: np.ndarray, z: np.ndarray | None = None, q: np.ndarray | None = None,
    m_matrix: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """The dense H in extended precision; without z and q that of a sample with itself."""
    z = y if z is None else z
    q = p if q is None else q
    return kernel_matrix(kernel, p, q) * target_factor(y, p, z, q, m_matrix)


def unbiased(h: np.ndarray) -> float:
    n = len(h)
    return float(np.sum(h[~np.eye(n, dtype=bool)]) / (n * (n - 1)))


def biased(h: np.ndarray) -> float:
    return float(np.sum(h) / len(h) ** 2)


def block(h: np.ndarray, size: int) -> float:
    starts = range(0, len(h) - size + 1, size)
    return float(np.mean([unbiased(h[s : s + size, s : s + size]) for s in starts]))


def literal_differences(kernel, y, p, test_labels, test_predictions, m_matrix=None):
    """W21 appendix C.2 with the expectation as a sum over classes, in extended precision."""
    n, m = p.shape
    table = np.eye(m, dtype=LONG) if m_matrix is None else np.asarray(m_matrix, LONG)
    k = kernel_matrix(kernel, test_predictions, p)
    differences = []
    for j, c in enumerate(test_labels):
        observed = sum(k[j, i] * table[c, y[i]] for i in range(n)) / n
        expected = sum(k[j, i] * LONG(p[i, z]) * table[c, z] for i in range(n) for z in range(m)) / n
        differences.append(observed - expected)
    return np.array(differences)
