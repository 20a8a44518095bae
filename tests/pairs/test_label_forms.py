"""The SKCE of drawn labels by comparisons of labels, beside sums over all pairs of residuals."""

import tracemalloc

import numpy as np
import pytest
from problems import saturated_predictions

import kcalib
from kcalib import _native, _packing
from kcalib._pairs.backends.compared_labels import label_forms
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.reductions import DenseRectangle, sweep_one
from kcalib.inference import exact
from kcalib.kernels import Exponential, Gaussian, Linear

KERNELS = {"exponential": Exponential(bandwidth=0.5), "sum": Linear() + Gaussian(bandwidth=0.3)}


def predictions(law: str, n: int, m: int) -> np.ndarray:
    rng = np.random.default_rng([n, m])
    if law == "diffuse":
        return rng.dirichlet(np.ones(m), size=n)
    if law == "tied":
        return rng.dirichlet(np.full(m, 0.5), size=3)[rng.integers(3, size=n)]
    return saturated_predictions(rng, n, m)


def backend_of(p: np.ndarray, kernel: str, dtype: str = "float64", **options: object) -> CpuBackend:
    points = p.astype(dtype)
    terms = _packing.pack_points(points, KERNELS[kernel], dtype, threads=1).problem.kernel
    return CpuBackend(PairProblem(Side(points, np.ones_like(points[:, :1])), None, terms), **options)


def labels_of(p: np.ndarray, draws: int) -> np.ndarray:
    """Likely ones first, then some of the others, whatever their probability, then draws."""
    n, m = p.shape
    rng = np.random.default_rng(7)
    labels = np.tile(np.argmax(p, axis=1)[:, None], (1, draws))
    for draw in range(1, draws):
        changed = rng.random(n) < 2.0 ** -(draw % 8)
        labels[changed, draw] = rng.integers(m, size=int(changed.sum()))
    return labels


def expected(backend: CpuBackend, p: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By residuals; and what an entry that is off by 2^-20 of the largest changes, in all terms alike."""
    k = np.asarray(sweep_one(backend, DenseRectangle()), float)
    np.fill_diagonal(k, 0.0)
    values, scales = [], []
    for y in labels.T:
        e = np.eye(p.shape[1])[y] - p
        values.append(np.sum(e * (k @ e)))
        scales.append(2.0**-19 * np.max(np.abs(k)) * np.sum(np.abs(e @ e.T)))
    return np.array(values), np.array(scales)


@pytest.mark.parametrize("law", ["diffuse", "tied", "saturated"])
@pytest.mark.parametrize(
    ("n", "m", "kernel"),
    [(1, 3, "sum"), (2, 3, "sum"), (97, 3, "sum"), (300, 10, "exponential"), (101, 300, "exponential")],
)
def test_sums_of_drawn_labels(law, n, m, kernel):
    p = predictions(law, n, m)
    backend, labels = backend_of(p, kernel), labels_of(p, 35)
    observed, found = label_forms(backend, p, labels[:, 5], [labels[:, :1], labels[:, 1:]])
    values, bounds = expected(backend, p, labels)
    assert observed == found[5]
    assert (np.abs(found - values) <= bounds + 1e-15 * n * np.abs(values)).all()


def test_likely_labels_of_saturated_predictions_keep_all_digits():
    """Where nothing is flipped there is no difference of large sums, but that of the errors alone."""
    p = predictions("saturated", 400, 5)
    backend = backend_of(p, "exponential")
    labels = np.argmax(p, axis=1)[:, None]
    value, _ = expected(backend, p, labels)
    np.testing.assert_allclose(label_forms(backend, p, labels[:, 0], [labels])[1], value, rtol=1e-6)


def test_the_same_bits_for_any_number_of_threads_and_draws_at_a_time():
    p = predictions("diffuse", 2100, 4)
    labels = labels_of(p, 70)
    found = label_forms(backend_of(p, "sum", threads=1), p, labels[:, 0], [labels])[1]
    np.testing.assert_array_equal(
        label_forms(backend_of(p, "sum", threads=3), p, labels[:, 0], np.split(labels, 7, axis=1))[1], found
    )
    single = label_forms(backend_of(p, "sum", "float32", threads=2), p, labels[:, 0], [labels])[1]
    np.testing.assert_allclose(single, found, rtol=0, atol=1e-4 * np.std(found))


def test_kernels_that_are_zero_or_overflow():
    p = predictions("diffuse", 40, 3)
    labels = labels_of(p, 4)
    assert (label_forms(backend_of(p, "exponential"), 1e-300 * p, labels[:, 0], [labels])[1] != 0).all()
    terms = _packing.pack_points(p, Linear(), "float64", threads=1).problem.kernel
    for size, value in ((1e-160, 0.0), (1e160, np.nan)):  # of points: products below and above all numbers
        backend = CpuBackend(PairProblem(Side(size * p, np.ones((40, 1))), None, terms))
        with np.errstate(invalid="ignore", over="ignore"):
            np.testing.assert_array_equal(label_forms(backend, p, labels[:, 0], [labels])[1], np.full(4, value))


def test_an_entry_that_is_no_number_makes_none_of_it():
    """Wherever it is in its block: here in the first pair, of points whose product is infinity less infinity."""
    p = predictions("diffuse", 40, 3)
    points = p.copy()
    points[:2] = [[1e200, 1e200, 0.0], [1e200, -1e200, 0.0]]
    terms = _packing.pack_points(p, Linear(), "float64", threads=1).problem.kernel
    backend = CpuBackend(PairProblem(Side(points, np.ones((40, 1))), None, terms))
    labels = labels_of(p, 4)
    with np.errstate(invalid="ignore", over="ignore"):
        assert np.isnan(label_forms(backend, p, labels[:, 0], [labels])[1]).all()


def test_many_classes_take_no_matrix_of_classes():
    p = np.random.default_rng(0).dirichlet(np.ones(3000), size=6)
    tracemalloc.start()
    kcalib.calibration_test(np.arange(6), p, method=kcalib.methods.Exact(n_resamples=20), seed=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000**2


def test_exact_draws_are_those_by_quadratic_forms(monkeypatch):
    """The test compares labels from three classes on; by forms the same draws have the same statistics."""
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(4), size=250)
    y = (p.cumsum(axis=1) < rng.random((250, 1))).sum(axis=1)
    calls = []
    compare = _native.LabelMatches
    monkeypatch.setattr(_native, "LabelMatches", lambda *a, **k: calls.append(1) or compare(*a, **k))
    by_labels = kcalib.calibration_test(y, p, method="exact", seed=3)
    assert calls
    monkeypatch.setattr(exact, "FEWEST_COMPARED", 5)
    by_forms = kcalib.calibration_test(y, p, method="exact", seed=3)
    assert by_labels.pvalue == by_forms.pvalue
    spread = np.ptp(by_forms.null_quantiles)
    np.testing.assert_allclose(by_labels.null_quantiles, by_forms.null_quantiles, rtol=0, atol=1e-5 * spread)
