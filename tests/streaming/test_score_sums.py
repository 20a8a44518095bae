"""The compiled pass over rows against the same terms in NumPy, added in fixed point there: bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from kcalib._backend.exact_sums import ExactSums
from kcalib.estimators.binning import bin_numbers
from kcalib.streaming._row_sums.rows import Rows
from kcalib.streaming._row_sums.score_sums import CELLS, sum_scores


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n, m, n_bins", [(1, 2, 15), (3000, 3, 15), (700, 10, 4), (40, 1500, 3)])
def test_cells_are_the_exact_sums_of_their_terms(n, m, n_bins, weighted):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(m, 0.3), size=n)
    p[: n // 3] = np.round(p[: n // 3] * 5) / 5
    labels = rng.integers(m, size=n)
    w = rng.exponential(size=n) if weighted else np.ones(n)
    found = sum_scores(Rows(np.arange(n), p, labels, w, np.zeros_like(labels)), n_bins, 2.0**-52, 2)
    top = p.argmax(axis=1)
    values = np.concatenate([p[np.arange(n), top][:, None], p], axis=1)
    hits = np.concatenate([(top == labels)[:, None], labels[:, None] == np.arange(m)], axis=1) * 1.0
    weights = np.broadcast_to(w[:, None], values.shape)
    products = weights * values
    terms = np.stack([weights, products, weights * hits, products * values, products * hits], axis=2)
    groups = bin_numbers(values, n_bins) + np.arange(1 + m) * n_bins
    expected = ExactSums.by_group(terms.reshape(-1, len(CELLS)), groups.ravel(), (1 + m) * n_bins)
    assert np.array_equal(found.cells.high.reshape(-1, 5), expected.high)
    assert np.array_equal(found.cells.low.reshape(-1, 5), expected.low)
    assert found.n == n and found.n_weighted == (n if weighted else 0)
    confidence = ExactSums.over_rows(w * values[:, 0])
    assert (found.scores.high[3], found.scores.low[3]) == (confidence.high, confidence.low)


def test_threads_do_not_matter():
    rng = np.random.default_rng(1)
    n, m = 60_000, 4
    p, labels = rng.dirichlet(np.ones(m), size=n), rng.integers(m, size=n)
    rows = Rows(np.arange(n), p, labels, np.ones(n), np.zeros_like(labels))
    one, other = (sum_scores(rows, 15, 2.0**-52, threads) for threads in (1, 3))
    for name in ("scores", "cells"):
        a, b = getattr(one, name), getattr(other, name)
        assert np.array_equal(a.high, b.high) and np.array_equal(a.low, b.low)
    assert all(np.array_equal(a, b) for a, b in zip(one.extremes, other.extremes, strict=True))
