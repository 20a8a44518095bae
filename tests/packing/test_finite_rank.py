"""Features of finite rank against literal double sums, within the bounds that they come with."""

from __future__ import annotations

import time

import mpmath
import numpy as np
import pytest
import scipy.stats

from kcalib._input.forecasts import prepare
from kcalib._packing.finite_rank import count_features, feature_map, finite_rank_features
from kcalib._packing.target_factors import target_factor
from kcalib._pairs.backends.array_api import ArrayApiBackend
from kcalib._pairs.mixtures import feature_columns, own_products
from kcalib._pairs.problem import Mixtures, PairProblem, Side
from kcalib._pairs.reductions import Moments, sweep_one
from kcalib.distributions import Components, Normal
from kcalib.kernels import Exponential, Gaussian, Linear, Matern, RationalQuadratic
from kcalib.target_kernels import Draws

EPS = float(np.finfo(np.float64).eps)


def ensembles(n: int, size: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Targets and samples of predictions that lie apart and have different widths."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n, 1, d))
    return rng.normal(size=(n, d)), centres + rng.gamma(2.0, 0.5, size=(n, 1, 1)) * rng.normal(size=(n, size, d))


def literal_factors(y, atoms, weights, function) -> np.ndarray:
    """Target factors as double sums over observation and atoms, in extended precision."""
    signed = np.concatenate([np.ones((len(y), 1)), -weights], axis=1).astype(np.longdouble)
    points = np.concatenate([y[:, None], atoms], axis=1)
    h = np.empty((len(y), len(y)), dtype=np.longdouble)
    for i, j in np.ndindex(*h.shape):
        kernel = function(points[i][:, None, :].astype(np.longdouble) - points[j][None])
        h[i, j] = signed[i] @ kernel @ signed[j]
    return h


def length(z):
    return np.sqrt(np.sum(z * z, axis=-1))


KERNELS = {
    "gaussian": (Gaussian(bandwidth=1.0), lambda z: np.exp(-np.sum(z * z, axis=-1) / 2)),
    "sum": (
        0.2 * Gaussian(bandwidth=0.5) + 3.0 * RationalQuadratic(bandwidth=2.0),
        lambda z: 0.2 * np.exp(-2 * np.sum(z * z, axis=-1)) + 3 / (1 + np.sum(z * z, axis=-1) / 8),
    ),
    "exponential": (Exponential(bandwidth=1.0), lambda z: np.exp(-length(z))),
    "matern": (Matern(bandwidth=1.0, nu=2.5), lambda z: _matern(np.sqrt(np.longdouble(5)) * length(z))),
}


def _matern(r):
    return (1 + r + r * r / 3) * np.exp(-r)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_factors_are_double_sums(name, d, weighted):
    kernel, function = KERNELS[name]
    y, atoms = ensembles(30, 5, d)
    weights = np.random.default_rng(1).dirichlet(np.ones(5), size=30) if weighted else np.full((30, 5), 0.2)
    found = finite_rank_features(y, atoms, weights if weighted else None, kernel.terms())
    assert found.exact and found.kernel_evaluations == 36
    expected = literal_factors(y, atoms, weights, function)
    error = np.abs(found.features @ found.features.T - expected)
    assert (error <= np.outer(found.row_bounds, found.row_bounds)).all()
    # 4 times (8 times the larger of the tolerance and the rounding, and the rounding again) of the kernel's maximum.
    assert found.error_bound <= 4 * found.map.largest * 9 * max(1e-14, (found.rank + 8) * EPS)


@pytest.mark.parametrize("rank", [0, 1, 5, 20])
def test_bounds_with_too_few_features(rank):
    kernel, function = KERNELS["matern"]
    y, atoms = ensembles(30, 5, 1)
    found = finite_rank_features(y, atoms, None, kernel.terms(), max_rank=rank)
    assert found.rank <= rank and not found.exact
    expected = literal_factors(y, atoms, np.full((30, 5), 0.2), function)
    error = np.abs(found.features @ found.features.T - expected)
    assert (error <= np.outer(found.row_bounds, found.row_bounds)).all()
    assert found.error_bound > 1e-6
    assert finite_rank_features(y, atoms, None, kernel.terms(), max_rank=rank, only_exact=True) is None


def test_linear_kernel_by_hand():
    """<y - mean, y' - mean'>: rank 1 in one dimension."""
    y, atoms = np.array([[2.0], [0.0]]), np.array([[[0.0], [1.0]], [[1.0], [3.0]]])
    found = finite_rank_features(y, atoms, None, Linear().terms())
    assert found.rank == 1 and found.exact
    np.testing.assert_allclose(found.features @ found.features.T, [[2.25, -3.0], [-3.0, 4.0]], rtol=0, atol=100 * EPS)


def test_means_have_mmd_distances():
    kernel, function = KERNELS["gaussian"]
    y, atoms = ensembles(12, 6, 2)
    weights = np.random.default_rng(1).dirichlet(np.ones(6), size=12)
    found = finite_rank_features(y, atoms, weights, kernel.terms())
    for i, j in np.ndindex(12, 12):
        signed = np.concatenate([weights[i], -weights[j]]).astype(np.longdouble)
        points = np.concatenate([atoms[i], atoms[j]]).astype(np.longdouble)
        squared = signed @ function(points[:, None] - points) @ signed
        distance = np.sqrt(max(squared, 0))
        assert abs(np.linalg.norm(found.means[i] - found.means[j]) - distance) <= (
            found.mean_bounds[i] + found.mean_bounds[j]
        )


def test_the_map_takes_new_points():
    """Test locations and other targets: features and bounds of points that were not among the pivots' candidates."""
    kernel, function = KERNELS["gaussian"]
    y, atoms = ensembles(200, 5, 1)
    found = finite_rank_features(y, atoms, None, kernel.terms()).map
    new = np.array([[0.123], [-1.7], [50.0]])
    phi, bounds = found.points(new)
    error = np.abs(phi @ phi.T - function((new[:, None] - new).astype(np.longdouble)))
    assert (error <= np.outer(bounds, bounds)).all()
    assert (bounds[:2] < 1e-6).all() and bounds[2] == pytest.approx(1.0)  # no point is near 50


@pytest.mark.parametrize("kernel", [Gaussian(bandwidth=2.0), Exponential(bandwidth=3.0)], ids=str)
def test_counts_by_exact_sums(kernel):
    """Poisson predictions, sums over all counts in mpmath; what the truncation leaves out is below 1e-16."""
    rates, y = np.array([0.3, 2.0, 7.5, 7.5]), np.array([[0.0], [4.0], [7.0], [45.0]])
    probabilities = scipy.stats.poisson(rates[:, None]).pmf(np.arange(41))
    assert (scipy.stats.poisson(rates).sf(40) < 1e-16).all()
    found = count_features(y, probabilities, kernel.terms())
    assert found.rank <= 42
    with mpmath.workdps(30):

        def ell(a, b):
            r = abs(mpmath.mpf(a) - mpmath.mpf(b))
            return mpmath.exp(-r * r / 8) if isinstance(kernel, Gaussian) else mpmath.exp(-r / 3)

        measures = []
        for rate, target in zip(rates.tolist(), y[:, 0].tolist(), strict=True):
            rate = mpmath.mpf(rate)
            atoms = [(z, -mpmath.exp(-rate) * rate**z / mpmath.factorial(z)) for z in range(70)]
            measures.append([(target, mpmath.mpf(1)), *atoms])
        table = {(a, b): ell(a, b) for a in range(70) for b in range(70)}
        for i, j in np.ndindex(4, 4):
            expected = mpmath.fsum(v * w * table[int(a), int(b)] for a, v in measures[i] for b, w in measures[j])
            # Probabilities that SciPy has to some 10 roundings, and the truncation.
            assert abs(found.features[i] @ found.features[j] - expected) <= found.error_bound + 40 * EPS


def test_many_samples_in_one_dimension():
    """200,000 points: a rank of tens, seconds rather than the hours of all pairs, and the backend's features."""
    y, atoms = ensembles(2000, 99, 1, seed=5)
    kernel, function = KERNELS["gaussian"]
    begin = time.thread_time()
    found = finite_rank_features(y, atoms, None, kernel.terms())
    seconds = time.thread_time() - begin
    assert found.exact and found.cheaper and found.rank < 120
    assert seconds < 30
    rows = [0, 700, 1999]
    expected = literal_factors(y[rows], atoms[rows], np.full((3, 99), 1 / 99), function)
    np.testing.assert_allclose(found.features[rows] @ found.features[rows].T, expected, rtol=0, atol=found.error_bound)


def test_outliers_that_no_sample_has():
    """Points far from all others, at places that a sample of every 5th leaves out."""
    y, atoms = ensembles(2000, 10, 1, seed=6)
    atoms[[3, 500, 1501], 4] += np.array([[40.0], [-300.0], [1e6]])
    kernel, _ = KERNELS["gaussian"]
    found = finite_rank_features(y, atoms, None, kernel.terms())
    assert found.exact


def test_features_and_atoms_agree_on_the_backend():
    kernel = Gaussian(bandwidth=1.0)
    y, atoms = ensembles(25, 4, 2)
    found = finite_rank_features(y, atoms, None, kernel.terms())
    components = Components("atoms", np.full((25, 4), 0.25), atoms, None)
    features = feature_columns(y, components, 1.0)
    target = Mixtures("atoms", 2, 4, kernel=kernel.terms())
    terms = Exponential(bandwidth=1.0).terms()
    points = atoms.mean(axis=1)
    one = sweep_one(ArrayApiBackend(PairProblem(Side(points, found.features), None, terms)), Moments())
    other = sweep_one(ArrayApiBackend(PairProblem(Side(points, features), None, terms, target)), Moments())
    np.testing.assert_allclose(one.row_sums, other.row_sums, rtol=0, atol=25 * found.error_bound)
    np.testing.assert_allclose(one.diagonal, own_products(target, features), rtol=0, atol=found.error_bound)


def test_other_array_libraries_get_their_arrays_back():
    torch = pytest.importorskip("torch")
    y, atoms = ensembles(10, 4, 2)
    kernel = Gaussian(bandwidth=1.0)
    found = finite_rank_features(torch.from_numpy(y), torch.from_numpy(atoms), None, kernel.terms())
    assert isinstance(found.features, torch.Tensor) and isinstance(found.means, torch.Tensor)
    np.testing.assert_array_equal(found.features.numpy(), finite_rank_features(y, atoms, None, kernel.terms()).features)


def test_duplicates_and_memory():
    y, atoms = np.zeros((5, 1)), np.zeros((5, 3, 1))
    kernel = Gaussian(bandwidth=1.0).terms()
    found = finite_rank_features(y, atoms, None, kernel)
    assert found.rank == 1 and not found.features.any()
    assert feature_map(atoms[0], kernel).rank == 1
    with pytest.raises(MemoryError, match="target features of 5 predictions"):
        finite_rank_features(y, atoms, None, kernel, max_memory=8)


def test_indefinite_kernel():
    """The Gaussian of the cityblock distance, in six dimensions, has negative eigenvalues on these points."""
    points = np.concatenate([np.eye(6), -np.eye(6), np.zeros((1, 6))])
    kernel = Gaussian(bandwidth=2.0, metric="cityblock")
    matrix = np.exp(-(np.abs(points[:, None] - points).sum(axis=2) ** 2) / 8)
    assert np.linalg.eigvalsh(matrix)[0] < -0.01
    with pytest.raises(ValueError, match="target kernel is not positive definite"):
        finite_rank_features(points, points[:, None], None, kernel.terms())


@pytest.mark.grid
def test_pivots_that_ordering_leaves_out_are_missed_nowhere():
    """Points beside a pivot that is left out as noise had residuals of 2e-10."""
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=10_000), rng.uniform(0.5, 2, 10_000)
    y = mean + std * rng.normal(size=10_000)
    samples = mean[:, None] + std[:, None] * rng.normal(size=(10_000, 50))
    found = finite_rank_features(
        y[:, None], samples[:, :, None], None, Gaussian(bandwidth=1.4).terms(), only_exact=True
    )
    assert found is not None and found.exact and found.error_bound < 1e-12


class TestDrawnTargets:
    """Where draws stand for predictions tests draw other targets: features of the observed ones alone are not exact."""

    @pytest.mark.parametrize("bandwidth", [0.02, 0.5, 2.0])
    @pytest.mark.parametrize("n", [4, 30])
    def test_features_are_exact_for_them_too(self, n, bandwidth):
        prediction = Normal(np.zeros(n), 1.0)
        data = prepare(prediction.sample(1, seed=1)[:, 0], prediction)
        factor = target_factor(data, Draws(Gaussian(bandwidth), n_draws=4))
        assert (factor.map is None) == (bandwidth == 0.02)  # else as exact as can be, by sums over atoms
        if factor.map is not None:
            drawn = np.concatenate([data.draw(0, r).y for r in range(50)])
            inside = np.abs(drawn[:, 0]) < 3.5
            assert factor.map.points(drawn[inside])[1].max() ** 2 < 1e-10

    def test_nearly_dependent_pivots(self):
        """Rounding below 0 in the residual's diagonal is seen, and mended by more pivots; it once looked indefinite."""
        prediction = Normal(np.zeros(4), 1.0)
        data = prepare(prediction.sample(1, seed=10**6 + 35)[:, 0], prediction)
        factor = target_factor(data, Draws(Gaussian(0.5), n_draws=4))
        points = prediction.quasi_sample(2000, seed=5).reshape(-1, 1)[:2000]
        phi, _ = factor.map.points(points)
        exact = np.exp(-((points - points.T) ** 2) / (2 * 0.25))
        assert np.abs(phi @ phi.T - exact).max() < 1e-10
