"""Sums at a few test locations in one pass over the predictions, against sums over all labels of dense arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hard_laws import LAWS
from oracle import kernel_matrix
from problems import KERNELS, instruction_sets

import kcalib
from kcalib import _native, _packing
from kcalib._input.labels import prepare
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib.estimators.ucme import locations_for
from kcalib.kernels import Exponential


def located(p, y, n_locations, kernel, target_kernel=None, dtype=None):
    """The pair problem of random locations and the samples, and the locations."""
    data = prepare(y, p, dtype=dtype)
    places = locations_for(data, n_locations, None, None, 0).data
    return _packing.pack_locations(data, places, kernel, target_kernel).problem, places


def by_hand(p, y, places, kernel, gram):
    """The same sums with the values of all samples at all labels, and what a row lacks of 1 as a label of its own."""
    k = np.array(kernel_matrix(kernel, places.probabilities, p), dtype=np.float64)
    of_class = (places.labels[:, None] == np.arange(p.shape[1])).astype(float)
    differences = (k * (of_class[:, y] - p[:, places.labels].T)).sum(axis=1)
    covariance, fourth = np.zeros((len(k), len(k))), 0.0
    shares = np.append(p, np.maximum(0.0, 1 - p.sum(axis=1, keepdims=True)), axis=1)
    for label, share in enumerate(shares.T):
        hit = of_class[:, label, None] if label < p.shape[1] else 0.0
        values = k * (hit - p[:, places.labels].T)
        covariance += (share * values) @ values.T
        fourth += float(np.sum(share * np.einsum("ji,jl,li->i", values, gram, values) ** 2))
    return differences, covariance, fourth, np.max(np.abs(k), axis=1)


def gram_of(n_locations):
    root = np.random.default_rng(n_locations).normal(size=(n_locations, n_locations))
    return root @ root.T


def check(p, y, n_locations, kernel, level=None):
    problem, places = located(p, y, n_locations, kernel)
    at = CpuBackend(problem, level=level).at_locations
    gram = gram_of(n_locations)
    differences, covariance, fourth, largest = by_hand(p, y, places, kernel, gram)
    sums, matrix, size = at.sums(covariance=True)
    assert sums == pytest.approx(differences, rel=0, abs=1e-13 * max(1.0, np.abs(largest).max()) * len(p))
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    assert np.all(np.abs(matrix - covariance) <= 1e-11 * scale)
    assert np.array_equal(matrix, matrix.T)
    assert size == pytest.approx(largest, rel=1e-13)
    assert at.fourth(gram) == pytest.approx(fourth, rel=1e-7)
    assert np.array_equal(at.sums(covariance=False)[0], sums)


@pytest.mark.parametrize("level", instruction_sets())
@pytest.mark.parametrize(("n", "m", "n_locations"), [(1, 2, 1), (4, 3, 2), (20, 10, 10), (97, 130, 11), (193, 5, 64)])
def test_sums_are_those_by_hand(n, m, n_locations, level):
    """Strips and features that are full and not, odd and even numbers of locations, many of one class."""
    rng = np.random.default_rng(n)
    check(rng.dirichlet(np.full(m, 0.3), size=n), rng.integers(0, m, n), n_locations, Exponential(bandwidth=0.5), level)


SOME = ("mixed", "linear", "exponential_cityblock")
OTHERS = [pytest.param(name, marks=pytest.mark.grid) for name in KERNELS if name not in SOME]


@pytest.mark.parametrize("name", [*SOME, *OTHERS])
@pytest.mark.filterwarnings("ignore::kcalib.IndefiniteKernelWarning")
def test_every_kernel(name):
    rng = np.random.default_rng(1)
    check(rng.dirichlet(np.ones(4), size=150), rng.integers(0, 4, 150), 5, KERNELS[name])


@pytest.mark.parametrize(
    "law", ["saturated, 1e-8..1e-4", "rare, Beta(.1, 100)", "20 distinct rows", "one-hot and uncertain", "n = 20"]
)
def test_hard_predictions(law):
    y, p = LAWS[law].calibrated(np.random.default_rng(2))
    check(p, y, 6, Exponential(bandwidth=0.5))


def test_rows_that_do_not_sum_to_one():
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(3), size=200) * (1 + 5e-7 * rng.choice([-1, 1], size=(200, 1)))
    p[0] = [1 - 1e-7, 0, 0]
    check(p, rng.integers(0, 3, 200), 4, Exponential(bandwidth=0.5))


def test_threads_change_no_bit():
    rng = np.random.default_rng(4)
    p = rng.dirichlet(np.ones(3), size=50_000)
    problem, _ = located(p, rng.integers(0, 3, 50_000), 4, Exponential(bandwidth=0.5))
    passes = [CpuBackend(problem, threads=threads).at_locations for threads in (1, 2, 5)]
    for found in [(*at.sums(covariance=True), at.fourth(np.eye(4))) for at in passes[1:]]:
        expected = *passes[0].sums(covariance=True), passes[0].fourth(np.eye(4))
        assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.slow
def test_parts_of_many_classes_are_short():
    """Of 64 locations and 7000 classes some hundreds of samples are several parts, whose sums and sizes are merged."""
    rng = np.random.default_rng(6)
    p, y = rng.dirichlet(np.full(7000, 0.1), size=599), rng.integers(0, 7000, 599)
    problem, places = located(p, y, 64, Exponential(bandwidth=0.5))
    sums, matrix, size = CpuBackend(problem).at_locations.sums(covariance=True)
    k = np.exp([-np.linalg.norm(p - point, axis=1) / 0.5 for point in places.probabilities])
    shares = p[:, places.labels].T
    same = places.labels[:, None] == places.labels
    covariance = same * (k * shares @ k.T) - (k * shares) @ (k * shares).T
    assert sums == pytest.approx((k * ((places.labels[:, None] == y) - shares)).sum(axis=1), rel=0, abs=1e-12)
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    assert np.all(np.abs(matrix - covariance) <= 1e-9 * scale)
    assert size == pytest.approx(k.max(axis=1), rel=1e-13)


@pytest.mark.slow
def test_many_classes_do_not_keep_a_signal_waiting():
    """A part of 1300 samples would be all of them: signals are looked for after each."""
    p = np.full((1300, 20_000), 1 / 20_000)
    p[:, 0] += np.linspace(0, 2e-5, len(p))
    p[:, 1] -= np.linspace(0, 2e-5, len(p))
    problem, _ = located(p, np.zeros(len(p), int), 64, Exponential(bandwidth=0.5))
    shares: list[float] = []
    backend = CpuBackend(problem, threads=1, level=_native.cpu_levels()[-1])
    at = backend.at_locations
    _native.location_sums(*at._arrays, problem.right.labels, True, backend._kernel, backend._sweep(shares.append))
    assert shares and min(shares) < 0.75


def test_other_problems_have_no_such_pass():
    rng = np.random.default_rng(5)
    p, y = rng.dirichlet(np.ones(3), size=80), rng.integers(0, 3, 80)
    kernel = Exponential(bandwidth=0.5)
    assert CpuBackend(located(p, y, 64, kernel)[0]).at_locations is not None
    assert CpuBackend(located(p, y, 65, kernel)[0]).at_locations is None
    assert CpuBackend(located(p, y, 5, kernel, np.eye(3) + 0.1)[0]).at_locations is None
    assert CpuBackend(located(p, y, 5, kernel, dtype="float32")[0]).at_locations is None
    single = p.astype(np.float32)
    assert CpuBackend(located(single, y, 5, kernel, dtype="float32")[0]).at_locations is None
    found = [kcalib.ucme(y, rows, kernel=kernel, dtype="float32") for rows in (single, single.astype(np.float64))]
    assert found[0] == found[1]
    assert CpuBackend(_packing.pack(prepare(y, p), kernel, None).problem).at_locations is None
