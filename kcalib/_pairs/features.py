"""Random features of a kernel: a map phi with k_F(x, x') = <phi(x), phi(x')>, whose mean is k(x, x').

`feature_map` draws a `FeatureMap` for a kernel in normal form, with frequencies from the spectral law of each factor
(`spectra`). `feature_sums` computes features tile by tile and adds them up.

A product of factors has the sum of independent frequencies. An inner product ("dot") is a factor <x, r> of random
vectors r with E r r^T = I; as a separate term it is entries of x if there is room. Frequencies are drawn on the host by
NumPy's Philox generator, the same for every array library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.memory import check_memory
from kcalib._backend.options import LARGEST_KEY
from kcalib._backend.threads import one_blas_thread
from kcalib._pairs.problem import Term
from kcalib._pairs.spectra import Domain, frequencies, without_features

N_GROUPS = 8
COLUMNS_PER_ROOT = 60  # columns for each eighth root of n: 256 for 1e5 samples
LARGE = 2**28  # bytes of a map; the memory for smaller ones is not checked


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """phi(x) has columns amplitude_f prod_l (<x, projection_lf> + offset_lf) cos <w_f, x>, and the same with sines.

    The cosines of all F frequencies w_f precede their sines. The feature kernel is <phi(x), phi(x')>. Groups of
    features are independent, and `n_groups` times the kernel of each group has expectation k.
    """

    frequencies: np.ndarray
    amplitudes: np.ndarray
    projections: np.ndarray
    offsets: np.ndarray
    groups: np.ndarray

    @property
    def n_columns(self) -> int:
        """The length of phi(x): twice the number of frequencies."""
        return 2 * len(self.frequencies)

    @property
    def n_groups(self) -> int:
        """Number of independent groups of frequencies; 1 if the feature kernel is k."""
        return int(self.groups[-1]) + 1


def default_columns(n: int) -> int:
    """Return the number of features for n samples: 256 for 1e5, growing as the eighth root of n."""
    step = 2 * N_GROUPS
    return step * max(1, round(COLUMNS_PER_ROOT * n**0.125 / step))


def feature_map(
    terms: Sequence[Term], points: Array, n_columns: int, seed: int, n_groups: int = N_GROUPS
) -> FeatureMap:
    """Draw a map for a kernel in normal form on points of shape (n, d); `n_columns` is a multiple of 2 `n_groups`.

    The map depends on seed, kernel and sizes. It depends on the points only by whether their rows have equal sums (as
    for probabilities), and with inner products by their mean square. Kernels that are sums of at most F / d inner
    products have exact features, in fewer columns.
    """
    assert n_columns % (2 * n_groups) == 0
    d, per_group = int(points.shape[1]), n_columns // (2 * n_groups)
    for term in terms:
        for factor in term.factors:
            if factor.metric not in ("euclidean", "cityblock", "dot"):
                raise ValueError(without_features(factor))
    if all(_is_linear(term) for term in terms) and d <= n_columns // 2:
        coefficient = sum(term.coefficient for term in terms)
        entries, nothing = np.eye(d)[None], np.zeros(d)
        return FeatureMap(
            np.zeros((d, d)), np.full(d, math.sqrt(coefficient)), entries, nothing[None], nothing.astype(int)
        )
    domain, squares = _domain(points), _mean_square(terms, points)
    n_dots = max(sum(factor.metric == "dot" for factor in term.factors) for term in terms)
    needed = 8 * n_columns * ((1 + n_dots) * (d + 1) + 1)  # groups and their concatenation
    if needed > LARGE:
        check_memory(needed, None, f"frequencies for {n_columns} columns in {d} dimensions", "pass fewer `n_columns`")
    group_maps = []
    for group in range(n_groups):
        # Draws of labels use the keys (seed, 0), (seed, 1), ...
        key = np.array([seed, LARGEST_KEY - group], dtype=np.uint64)
        random = np.random.Generator(np.random.Philox(key=key))
        group_maps.append(_group(terms, domain, squares, per_group, n_dots, random))
    return FeatureMap(
        np.concatenate([group_map[0] for group_map in group_maps]),
        np.concatenate([group_map[1] for group_map in group_maps]) / math.sqrt(n_groups),
        np.concatenate([group_map[2] for group_map in group_maps], axis=1),
        np.concatenate([group_map[3] for group_map in group_maps], axis=1),
        np.repeat(np.arange(n_groups), [len(group_map[1]) for group_map in group_maps]),
    )


def _domain(points: Array) -> Domain:
    xp, d = arrays.namespace(points), int(points.shape[1])
    sums = xp.sum(points, axis=1)
    return Domain(d, float(xp.max(sums)) - float(xp.min(sums)) if d > 1 else 0.0)


def _mean_square(terms: Sequence[Term], points: Array) -> float:
    """Return the mean of |x|^2 for inner products, to few digits: the same for every array library."""
    if not any(factor.metric == "dot" for term in terms for factor in term.factors):
        return 1.0
    xp = arrays.namespace(points)
    return float(f"{max(float(xp.sum(points * points)) / int(points.shape[0]), 1e-300):.3g}")


def _is_linear(term: Term) -> bool:
    return [factor.metric for factor in term.factors] == ["dot"]


def _group(
    terms: Sequence[Term], domain: Domain, squares: float, count: int, n_dots: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return frequencies, amplitudes, projections and offsets of a group, whose kernel has mean k."""
    d = domain.columns
    sizes = [term.coefficient * squares ** sum(f.metric == "dot" for f in term.factors) for term in terms]
    limits = [d if _is_linear(term) else count for term in terms]
    parts = []
    for term, (share, weight) in zip(terms, _shares(sizes, limits, count, random), strict=True):
        if not share:
            continue
        w, r, o = np.zeros((share, d)), np.zeros((n_dots, share, d)), np.ones((n_dots, share))
        dots = 0
        for factor in term.factors:
            if factor.metric == "dot":
                r[dots], o[dots] = _projections(d, share, random), 0.0
                dots += 1
            else:
                w += frequencies(factor, domain, share, random)
        parts.append((w, np.full(share, math.sqrt(term.coefficient * weight)), r, o))
    w, a, r, o = zip(*parts, strict=True)
    return np.concatenate(w), np.concatenate(a), np.concatenate(r, axis=1), np.concatenate(o, axis=1)


@one_blas_thread()
def _projections(d: int, count: int, random: np.random.Generator) -> np.ndarray:
    """Return vectors r with E r r^T = I, shape (count, d): orthogonal, of length sqrt d, up to d of them at a time."""
    parts = []
    for begin in range(0, count, d):
        parts.append(math.sqrt(d) * linalg.orthonormalize(random.standard_normal((d, min(d, count - begin)))).T)
    return np.concatenate(parts)


def term_shares(terms: Sequence[Term], count: int, random: np.random.Generator) -> list[tuple[int, float]]:
    """Return the shares of terms without inner products."""
    return _shares([term.coefficient for term in terms], [count] * len(terms), count, random)


def _shares(
    sizes: Sequence[float], limits: Sequence[int], count: int, random: np.random.Generator
) -> list[tuple[int, float]]:
    """Return the number of frequencies of each term, about proportional to its size, and the weight of one."""
    total = math.fsum(sizes)
    if len(sizes) > count:
        # Terms at equal distances on the line of all sizes.
        ends = np.floor(np.cumsum(sizes) / total * count + random.random())
        counts = np.diff(ends, prepend=0.0).astype(int)
        return [(int(k), total / (count * size)) for k, size in zip(counts, sizes, strict=True)]
    shares = [1] * len(sizes)
    while sum(shares) < count:
        open_terms = [t for t, share in enumerate(shares) if share < limits[t]]
        if not open_terms:
            break
        most_wanting = max(open_terms, key=lambda t: sizes[t] / shares[t])
        shares[most_wanting] += 1
    return [(share, 1 / share) for share in shares]
