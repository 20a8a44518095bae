"""The Dirichlet kernel density ratio: against literal loops, mpmath and scipy; zeros, far points, masks, bandwidths."""

from __future__ import annotations

import math
import warnings

import mpmath
import numpy as np
import pytest
import scipy.stats
from grid import some
from interrupts import stops_within_a_second
from libraries import MakeProblem

import kcalib
from kcalib import _native
from kcalib.lenses import ClassWise, TopLabel
from kcalib.regression import DirichletKDE
from kcalib.regression.dirichlet_kde import BANDWIDTHS, Ratio

ORIENTATIONS = ("training", "query")
SMALLEST = 2.0**-1022


def log_weight(training: np.ndarray, query: np.ndarray, bandwidth: float, orientation: str) -> float:
    """log Dir(query; training / b + 1), or the other way round, in 60 digits, probabilities of at least 2^-1022."""
    centre, place = (training, query) if orientation == "training" else (query, training)
    with mpmath.workdps(60):
        parameters = [mpmath.mpf(float(c)) / mpmath.mpf(bandwidth) + 1 for c in centre]
        places = [mpmath.mpf(max(float(x), SMALLEST)) for x in place]
        return mpmath.loggamma(mpmath.fsum(parameters)) + mpmath.fsum(
            (a - 1) * mpmath.log(x) - mpmath.loggamma(a) for a, x in zip(parameters, places, strict=True)
        )


def literal_shares(
    y: np.ndarray, p: np.ndarray, queries: np.ndarray, bandwidth: float, orientation: str, skipped: range | None = None
) -> np.ndarray:
    """r(q) of each query; `skipped`: the training sample that it does not see."""
    result = np.zeros((len(queries), p.shape[1]))
    for j, q in enumerate(queries):
        seen = [i for i in range(len(p)) if skipped is None or i != skipped[j]]
        with mpmath.workdps(60):
            logs = [log_weight(p[i], q, bandwidth, orientation) for i in seen]
            weights = [mpmath.exp(value - max(logs)) for value in logs]
            total = mpmath.fsum(weights)
            for i, weight in zip(seen, weights, strict=True):
                result[j, y[i]] += float(weight / total)
    return result


def shares_of(kde: DirichletKDE, queries: np.ndarray) -> np.ndarray:
    """r(q) = q - phi(q)."""
    return queries - kde._evaluate(kde._points(queries, False, "queries"))


def test_scipy_dirichlet(make_problem: MakeProblem):
    y, p = make_problem(50, 4)
    _, queries = make_problem(9, 4, seed=3)
    weights = np.array([[scipy.stats.dirichlet(x / 0.1 + 1).pdf(q) for x in p] for q in queries])
    expected = weights @ np.eye(4)[y] / weights.sum(axis=1, keepdims=True)
    assert np.allclose(shares_of(DirichletKDE(0.1).fit(y, p), queries), expected, rtol=1e-11)


def test_by_hand():
    """Weights at (0.8, 0.2) of samples there and at its mirror image: 4^6 to 1 for a bandwidth of 0.1."""
    kde = DirichletKDE(0.1).fit([0, 1], [[0.8, 0.2], [0.2, 0.8]])
    h = kde.h([[0.8, 0.2]], [[0.5, 0.5], [0.8, 0.2]])
    assert np.allclose(h, [[0.0, 2 * (0.8 - 4096 / 4097) ** 2]], rtol=1e-12, atol=1e-16)


EDGES = np.array(
    [
        [1.0, 0.0, 0.0],
        [0.0, 1.0, 0.0],
        [0.0, 0.5, 0.5],
        [0.3, 0.7, 0.0],
        [1e-320, 1e-300, 1.0],
        [0.2, 0.3, 0.5],
        [1 / 3, 1 / 3, 1 / 3],
        [1 - 1e-9, 1e-9, 0.0],
    ]
)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("bandwidth", [1e-5, 1e-2, 1.0])
def test_zeros_and_ones(orientation, bandwidth):
    """Training samples and queries with zeros. A weight's relative error is eps times the terms of its exponent."""
    y = np.array([0, 1, 2, 1, 2, 0, 1, 0])
    found = shares_of(DirichletKDE(bandwidth, orientation=orientation).fit(y, EDGES), EDGES)
    expected = literal_shares(y, EDGES, EDGES, bandwidth, orientation)
    rounding = 10 * 2.0**-52 * 709 / bandwidth
    assert np.all(np.abs(found - expected) <= rounding * np.minimum(expected, 1 - expected) + 1e-15)
    assert np.allclose(found.sum(axis=1), 1, rtol=1e-14)


def test_zero_of_a_query_keeps_the_training_samples_with_least_of_the_class():
    p = np.array([[0.1, 0.9], [0.2, 0.8], [0.6, 0.4]])
    kde = DirichletKDE(0.01).fit([0, 1, 1], p)
    assert shares_of(kde, np.array([[0.0, 1.0]])).tolist() == [[1.0, 0.0]]


def test_zero_of_a_training_sample_takes_it_out_of_others_sight():
    kde = DirichletKDE(0.01, orientation="query").fit([0, 1], [[1.0, 0.0], [0.1, 0.9]])
    assert shares_of(kde, np.array([[0.9, 0.1]])).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_far_points_have_the_nearest_labels(orientation):
    """100 classes, bandwidth 0.01: exponentials of all exponents of a query are 0, and a plain ratio is 0 / 0."""
    rng = np.random.default_rng(5)
    p = np.exp(10 * rng.standard_normal((12, 100)))
    p /= p.sum(axis=1, keepdims=True)
    y, queries = rng.integers(0, 100, size=12), np.roll(p[:2], 1, axis=1)
    exponents = (np.log(queries) @ p.T if orientation == "training" else queries @ np.log(p).T) / 0.01
    assert np.exp(exponents).sum(axis=1).min() == 0
    found = shares_of(DirichletKDE(0.01, orientation=orientation).fit(y, p), queries)
    expected = literal_shares(y, p, queries, 0.01, orientation)
    assert np.max(np.abs(found - expected)) < 1e-9
    single = shares_of(DirichletKDE(0.01, orientation=orientation, dtype="float32").fit(y, p), queries)
    assert np.isfinite(single).all() and np.max(np.abs(single - expected)) < 0.01


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("order", [1, -1])
def test_weights_that_grow_by_more_than_any_number_holds(orientation, order):
    """Training samples nearer and nearer to the query, and the other way round, in the order of their labels."""
    steps = np.linspace(0.9, 0.05, 60)
    p = np.column_stack((steps, 1 - steps))
    y = np.arange(60)[::order] // 30
    queries = np.array([[0.05, 0.95], [0.9, 0.1], [0.5, 0.5]])
    found = shares_of(DirichletKDE(1e-4, orientation=orientation).fit(y, p), queries)
    assert np.allclose(found, literal_shares(y, p, queries, 1e-4, orientation), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("n", some([2, 7, 40], 2, 7))
def test_leave_one_out_does_not_see_the_sample(orientation, n, make_problem: MakeProblem):
    """Far apart, so that the sample itself outweighs all others by far more than a float64 can tell."""
    y, p = make_problem(n, 3, scale=4.0)
    problem = DirichletKDE()._problem(y, p, None, False)
    ratio = Ratio.of(problem, orientation, "float64", None)
    shares, log_likelihood = ratio.leave_one_out(1e-3, None)
    assert np.allclose(shares, literal_shares(y, p, p, 1e-3, orientation, range(n)), rtol=1e-9, atol=1e-14)
    with mpmath.workdps(60):
        densities = [
            mpmath.fsum(mpmath.exp(log_weight(p[i], p[j], 1e-3, orientation)) for i in range(n) if i != j) / (n - 1)
            for j in range(n)
        ]
        expected = mpmath.fsum(mpmath.log(d) for d in densities) / n
    assert log_likelihood == pytest.approx(float(expected), rel=1e-11)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_one_training_sample_gives_its_label_everywhere(orientation):
    kde = DirichletKDE(1e-5, orientation=orientation).fit([1], [[0.9, 0.1, 0.0]])
    queries = np.vstack((EDGES, [[0.9, 0.1, 0.0]]))
    assert np.array_equal(shares_of(kde, queries), queries - (queries - [0.0, 1.0, 0.0]))
    with pytest.raises(ValueError, match="leave-one-out needs at least 2 samples, there are 1; pass a number"):
        DirichletKDE("likelihood").fit([1], [[0.9, 0.1, 0.0]])
    with pytest.raises(ValueError, match="at least 2 samples"):
        kcalib.kde_calibration_error([1], [[0.9, 0.1, 0.0]], bandwidth=0.1)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_duplicates_and_absent_classes(orientation):
    """37 samples at one place: their labels' shares, and exactly 0 for the class that none has."""
    y = np.repeat([0, 2], [25, 12])
    p = np.tile([0.6, 0.1, 0.3], (37, 1))
    found = shares_of(DirichletKDE(1e-4, orientation=orientation).fit(y, p), np.array([[0.6, 0.0, 0.4]]))
    assert found[0, 1] == 0.0 and np.allclose(found, [[25 / 37, 0, 12 / 37]], rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("n", "m"), [(700, 2), (700, 10), (300, 150)])
def test_bits_do_not_depend_on_threads_nor_on_other_queries(dtype, n, m, make_problem: MakeProblem):
    y, p = make_problem(n, m)
    results = [DirichletKDE(0.02, dtype=dtype, threads=t).fit(y, p).h(p) for t in (1, 2, 5)]
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])
    problem = DirichletKDE()._problem(y, p, None, False)
    ratio = Ratio.of(problem, "training", dtype, 1)
    assert np.array_equal(ratio.shares(p, 0.02)[[41, 5]], ratio.shares(p[[41, 5]], 0.02))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("m", [1, 63, 64, 65, 200])
def test_class_shares(dtype, m):
    """Costs with and without several parts of features, groups of one label and of several; NumPy beside it."""
    rng = np.random.default_rng(m)
    queries, training = (rng.exponential(size=(n, m)).astype(dtype) for n in (45, 333))
    offsets = rng.normal(size=333).astype(dtype)
    labels = np.sort(rng.integers(0, 60, size=333)).astype(np.int32)
    options = _native.RunOptions(2)
    for left, leave_one_out in ((queries, False), (training, True)):
        shares, log_sums = _native.class_shares(left, training, offsets, labels, 61, leave_one_out, options)
        costs = left.astype(float) @ training.T.astype(float) + offsets
        if leave_one_out:
            np.fill_diagonal(costs, np.inf)
        lowest = costs.min(axis=1, keepdims=True)
        weights = np.exp(lowest - costs)
        total = weights.sum(axis=1)
        # The sum of m products, and the offset, are off by eps for each step, of numbers of the size of the costs.
        rounding = (m + 8) * np.finfo(dtype).eps * np.abs(costs[np.isfinite(costs)]).max()
        expected = weights @ np.eye(61)[labels] / total[:, None]
        assert np.all(np.abs(shares - expected) <= 2 * rounding * expected + 1e-30)
        assert np.allclose(log_sums, np.log(total) - lowest[:, 0], rtol=0, atol=rounding)


def test_log_normalisers():
    """Into the far tail and on both sides of 8, where Stirling's series takes over."""
    x = np.array([0.0, 1e-300, 1e-9, 0.3, 1.0, 2.5, 7.9999999, 8.0, 8.5, 31.0, 1e3, 1e7, 1e14])
    for rows in (np.column_stack((x, x[::-1])), np.tile(x, (2, 1))):
        found = _native.log_normalisers(np.ascontiguousarray(rows), _native.RunOptions(1))
        for row, value in zip(rows, found, strict=True):
            with mpmath.workdps(40):
                terms = [mpmath.loggamma(1 + mpmath.mpf(v)) for v in row.tolist()]
                total = mpmath.loggamma(len(row) + mpmath.fsum(mpmath.mpf(v) for v in row.tolist()))
                expected, size = total - mpmath.fsum(terms), total + mpmath.fsum(abs(t) for t in terms)
            assert abs(value - float(expected)) <= 8 * 2.0**-52 * (float(size) + len(row))


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_float32_is_as_accurate_as_its_exponents(orientation, make_problem: MakeProblem):
    y, p = make_problem(400, 10)
    double, single = (DirichletKDE(0.05, orientation=orientation, dtype=d).fit(y, p) for d in ("float64", "float32"))
    # Inputs and ten additions are rounded, of terms whose sizes add up to -p log p' / b and the offset.
    terms = -p @ np.log(p).T / 0.05
    rounding = 12 * 2.0**-24 * 2 * terms.max()
    assert np.max(np.abs(shares_of(double, p) - shares_of(single, p))) < rounding
    assert not np.array_equal(shares_of(double, p), shares_of(single, p))


def test_grid_is_that_of_appendix_b():
    grid = {10 ** (-5 * (i - 1) / 14 - (1 - (i - 1) / 14)) for i in range(1, 16)} | {0.2 * i for i in range(1, 6)}
    assert np.allclose(sorted(grid), BANDWIDTHS, rtol=1e-14)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("lens", some([None, TopLabel()], TopLabel()))
def test_bandwidth_by_leave_one_out(orientation, lens, make_problem: MakeProblem):
    y, p = make_problem(25, 3, seed=2)
    options = {"orientation": orientation, "lens": lens}
    by_likelihood, by_risk = (DirichletKDE(b, **options).fit(y, p) for b in ("likelihood", "loo_risk"))
    problem = by_risk._problem(y, p, None, False)
    for bandwidth in BANDWIDTHS[5::6]:
        simplex = problem.simplex
        phi = simplex - literal_shares(problem.labels, simplex, simplex, bandwidth, orientation, range(25))
        residuals = problem.residuals
        if lens is not None:
            phi = phi[:, 1:]
        risk = math.fsum(
            (residuals[i] @ residuals[j] - phi[i] @ phi[j]) ** 2 for i in range(25) for j in range(25) if i != j
        ) / (25 * 24)
        assert by_risk.criteria_[bandwidth] == pytest.approx(risk, rel=1e-9)
        density = [
            mpmath.fsum(
                mpmath.exp(log_weight(simplex[i], simplex[j], bandwidth, orientation)) for i in range(25) if i != j
            )
            / 24
            for j in range(25)
        ]
        mean = float(mpmath.fsum(mpmath.log(d) for d in density) / 25)
        assert by_likelihood.criteria_[bandwidth] == pytest.approx(mean, rel=1e-9)
    assert by_risk.criteria_[by_risk.bandwidth_] == min(by_risk.criteria_.values())
    assert by_likelihood.criteria_[by_likelihood.bandwidth_] == max(by_likelihood.criteria_.values())
    assert tuple(by_risk.criteria_) == BANDWIDTHS


@pytest.mark.parametrize(("norm", "power"), [("l1", 1), pytest.param("l2", 2, marks=pytest.mark.grid)])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_calibration_error(norm, power, orientation, make_problem: MakeProblem):
    y, p = make_problem(12, 4)
    shares = literal_shares(y, p, p, 0.05, orientation, range(12))
    options = {"bandwidth": 0.05, "norm": norm, "orientation": orientation}
    expected = np.mean(np.sum(np.abs(p - shares) ** power, axis=1))
    assert kcalib.kde_calibration_error(y, p, **options) == pytest.approx(expected, rel=1e-11)
    for lens, confidence, hits in ((TopLabel(), p.max(axis=1), p.argmax(axis=1) == y), (ClassWise(2), p[:, 2], y == 2)):
        pairs = np.column_stack((1 - confidence, confidence))
        share = literal_shares(hits.astype(int), pairs, pairs, 0.05, orientation, range(12))[:, 1]
        found = kcalib.kde_calibration_error(y, p, lens=lens, **options)
        assert found == pytest.approx(np.mean(np.abs(confidence - share) ** power), rel=1e-11)


def test_result_says_what_was_done(make_problem: MakeProblem):
    y, p = make_problem(40, 3)
    result = kcalib.kde_calibration_error.result(y, p, norm="l2", lens=TopLabel(), threads=1)
    assert result.bandwidth == DirichletKDE(lens=TopLabel()).fit(y, p).bandwidth_
    assert result.bandwidth_source == "best leave-one-out risk of 20"
    by_likelihood = kcalib.kde_calibration_error.result(y, p, bandwidth="likelihood", lens=TopLabel())
    kde = DirichletKDE("likelihood", lens=TopLabel()).fit(y, p)
    assert (by_likelihood.bandwidth, by_likelihood.log_likelihood) == (kde.bandwidth_, kde.criteria_[kde.bandwidth_])
    assert by_likelihood.bandwidth_source == "best leave-one-out log-likelihood of 20"
    assert (result.norm, result.orientation, result.lens, result.dtype) == ("l2", "training", "TopLabel()", "float64")
    assert (result.n_samples, result.n_classes, result.threads) == (40, 2, 1)
    assert float(result) == kcalib.kde_calibration_error(y, p, norm="l2", lens=TopLabel())
    given = kcalib.kde_calibration_error.result(y, p, bandwidth=0.1, dtype="float32")
    assert (given.bandwidth, given.bandwidth_source, given.dtype) == (0.1, "given", "float32")


@pytest.mark.parametrize("m", [2, 3])
def test_one_prediction_of_one_does_not_decide_the_bandwidth(m):
    """Of calibrated predictions, six sets; the likelihood of one of 0 took the end of its bandwidths, silently."""
    ends = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        p = rng.dirichlet(np.ones(m), 500)
        y = np.array([rng.choice(m, p=row) for row in p])
        saturated = p.copy()
        saturated[0] = np.eye(m)[0]
        found = [kcalib.kde_calibration_error(y, q) for q in (p, saturated)]
        assert max(found) < 0.16 and abs(found[0] - found[1]) < 0.03
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = kcalib.kde_calibration_error.result(y, saturated, bandwidth="likelihood")
        assert [
            f"highest at {result.bandwidth:g}, the end of the bandwidths tried" in str(w.message) for w in caught
        ] == ([True] if result.bandwidth in (BANDWIDTHS[0], BANDWIDTHS[-1]) else [])
        assert all(w.filename == __file__ for w in caught)
        ends += len(caught)
    assert ends >= 3


def test_confidence_of_one_keeps_its_complement():
    """Confidences 1 - 1e-12 and 1 - 1e-18, the second of which is 1 in float64, but not its complement."""
    p = np.array([[1e-12, 1 - 1e-12], [1e-18, 1.0], [0.4, 0.6]])
    kde = DirichletKDE(1e-3, lens=TopLabel()).fit([1, 1, 0], p)
    phi = kde._evaluate(kde._points(p, False, "p"))
    shares = literal_shares(np.array([1, 1, 0]), p, p, 1e-3, "training")
    assert np.allclose(phi[:2, 0], shares[:2, 0] - p[:2, 0], rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bandwidth": 0}, ValueError, "`bandwidth` is 0, expected a positive, finite number"),
        ({"bandwidth": -0.1}, ValueError, "`bandwidth` is -0.1"),
        ({"bandwidth": float("nan")}, ValueError, "`bandwidth` is nan"),
        ({"bandwidth": float("inf")}, ValueError, "`bandwidth` is inf"),
        ({"bandwidth": 1e-300}, ValueError, "`bandwidth` is 1e-300, expected at least 2.2e-15 in float64"),
        ({"bandwidth": 1e-7, "dtype": "float32"}, ValueError, "expected at least 1.2e-06 in float32"),
        ({"bandwidth": "risk"}, ValueError, "`bandwidth` is 'risk', expected one of 'likelihood', 'loo_risk'"),
        ({"bandwidth": None}, TypeError, "`bandwidth` is None, expected a positive number, or one of"),
        ({"bandwidth": True}, TypeError, "`bandwidth` is True"),
        ({"orientation": "both"}, ValueError, "`orientation` is 'both', expected one of 'training', 'query'"),
        ({"dtype": "float16"}, ValueError, "`dtype` is 'float16'"),
        ({"threads": 0}, ValueError, "`threads` is 0"),
    ],
)
def test_bad_options(options, error, message, make_problem: MakeProblem):
    y, p = make_problem(10, 3)
    with pytest.raises(error, match=message):
        DirichletKDE(**options).fit(y, p)
    with pytest.raises(error, match=message):
        kcalib.kde_calibration_error(y, p, **options)


def test_bad_norm(make_problem: MakeProblem):
    with pytest.raises(ValueError, match="`norm` is 2, expected one of 'l1', 'l2'"):
        kcalib.kde_calibration_error(*make_problem(10, 3), norm=2)


def test_extreme_bandwidths(make_problem: MakeProblem):
    """The largest has weights that are all equal, the smallest is that of the nearest."""
    y, p = make_problem(20, 3)
    shares = shares_of(DirichletKDE(1e300).fit(y, p), p)
    assert np.allclose(shares, np.bincount(y, minlength=3) / 20, rtol=1e-13)
    assert np.array_equal(shares_of(DirichletKDE(1e-10).fit(y, p), p) > 0.5, np.eye(3)[y] == 1)


def test_interrupt_stops_a_long_sweep_within_a_second(make_problem: MakeProblem):
    y, p = make_problem(200_000, 3)
    stops_within_a_second(lambda: kcalib.kde_calibration_error(y, p, bandwidth=0.01))
