"""Kernel ridge estimation functions: against the literal formulas, in higher precision, limits and errors."""

from __future__ import annotations

import warnings

import mpmath
import numpy as np
import oracle
import pytest
from problems import duplicates_problem, softmax_problem

from kcalib.kernels import Exponential, Gaussian, Linear
from kcalib.lenses import ClassWise, TopLabel
from kcalib.regression import KKR, UKKR, RegularizationWarning, _expansion
from kcalib.solvers import kernel_operator
from kcalib.solvers.pivoted_cholesky import partial_cholesky

EPSILON = 2.0**-52
FUNCTIONS = (KKR, UKKR)
SHARP = Gaussian(bandwidth=0.2)  # of high rank


def kernel_matrix(kernel, p, q):
    return oracle.kernel_matrix(kernel, p, q).astype(np.float64)


def literal_kkr(kernel, p, e, q, regularization):
    """Equation 28, with the Kronecker products themselves."""
    n = len(p)
    k, of_q = kernel_matrix(kernel, p, p), kernel_matrix(kernel, p, q)
    inverse = np.linalg.inv(np.kron(k, k) + regularization * n**2 * np.eye(n**2))
    left = (e @ e.T).reshape(-1) @ inverse
    return np.array([[left @ np.kron(a, b) for b in of_q.T] for a in of_q.T])


def literal_ukkr(kernel, p, e, q, regularization):
    """Equation 32."""
    n = len(p)
    of_q = kernel_matrix(kernel, p, q)
    g = e.T @ np.linalg.inv(kernel_matrix(kernel, p, p) + regularization * n * np.eye(n)) @ of_q
    return g.T @ g


LITERAL = {KKR: literal_kkr, UKKR: literal_ukkr}


def dense_path(function: type, k, of_q, e, shift):
    """h of equations 29 and 32 by an eigendecomposition of the dense kernel matrix, nothing left out."""
    values, vectors = np.linalg.eigh(k)
    v, a = of_q.T @ vectors, vectors.T @ e
    if function is UKKR:
        g = v @ (a / (values + shift)[:, None])
        return g @ g.T
    return v @ ((a @ a.T) / (np.multiply.outer(values, values) + shift)) @ v.T


# The literal formulas


@pytest.mark.parametrize("kernel", [None, Gaussian(bandwidth=0.5**0.5), SHARP, Exponential(bandwidth=0.5)])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("lens", [None, TopLabel(), ClassWise(1)])
def test_is_the_literal_formula(function, kernel, lens):
    y, p = softmax_problem(12, 3, 0)
    _, q = softmax_problem(5, 3, 1)
    points, others, e = p, q, np.eye(3)[y] - p
    if lens is not None:
        columns, at = (p.argmax(1), q.argmax(1)) if lens == TopLabel() else (np.ones(12, int), np.ones(5, int))
        points, others = p[np.arange(12), columns][:, None], q[np.arange(5), at][:, None]
        e = (y == columns)[:, None] - points
    fitted = function(0.01, kernel=kernel, lens=lens).fit(y, p)
    used = Gaussian(bandwidth=1.0) if kernel is None else kernel
    # Between training samples the error is that of eigenvalues; features elsewhere are right to a root of epsilon.
    own = LITERAL[function](used, points, e, points, 0.01)
    assert np.allclose(fitted.h(p), own, rtol=0, atol=1e-12)
    expected = LITERAL[function](used, points, e, others, 0.01)
    assert np.allclose(fitted.h(q), expected, rtol=0, atol=1e-8)
    assert fitted.squared_error(q) == pytest.approx(np.mean(np.diag(expected)), abs=1e-8)
    pairs = ~np.eye(12, dtype=bool)
    assert fitted.risk(y, p) == pytest.approx(np.mean(((e @ e.T) - own)[pairs] ** 2), abs=1e-12)


def test_by_hand():
    """Two samples far apart, K = I to rounding, residuals (0.2, -0.2) and (-0.4, 0.4)."""
    y, p = [0, 1], np.array([[0.8, 0.2], [0.4, 0.6]])
    kernel = Gaussian(bandwidth=1e-3)
    expected = np.array([[0.08, -0.16], [-0.16, 0.32]])
    assert np.allclose(UKKR(0.5, kernel=kernel).fit(y, p).h(p), expected / 4, rtol=1e-14)  # (1 + 2 lambda)^2
    assert np.allclose(KKR(0.25, kernel=kernel).fit(y, p).h(p), expected / 2, rtol=1e-14)  # 1 + 4 lambda


def test_kkr_can_be_negative():
    """The first of two samples is certain and right: it has no residual, but the second one's kernel reaches it."""
    y, p, kernel = np.array([0, 1]), np.array([[1.0, 0.0], [0.7, 0.3]]), Gaussian(bandwidth=0.5)
    c = np.linspace(0, 1, 51)
    rows = np.stack([c, 1 - c], axis=1)
    kkr, ukkr = (function(0.1, kernel=kernel).fit(y, p) for function in FUNCTIONS)
    errors = np.array([kkr.squared_error(row[None]) for row in rows])
    expected = np.diag(literal_kkr(kernel, p, np.eye(2)[y] - p, rows, 0.1))
    assert np.allclose(errors, expected, rtol=0, atol=1e-14)
    assert errors.min() < -1e-4
    assert min(ukkr.squared_error(row[None]) for row in rows) >= 0


# Higher precision

TAYLOR = 30  # (2 x y)^k / k! is below 1e-23 from there on


class ExactLine:
    """h of confidences in 40 digits: exp(-(x - y)^2) is <f(x), f(y)>, f_k(x) = exp(-x^2) x^k sqrt(2^k / k!)."""

    def __init__(self, confidences, residuals):
        with mpmath.workdps(40):
            f = self.features(confidences)
            values, vectors = mpmath.eigsy(mpmath.matrix((f.T @ f).tolist()))
            self.vectors = np.array(vectors.tolist(), dtype=object).reshape(TAYLOR, TAYLOR)
            self.values = np.array([max(v, mpmath.mpf(0)) for v in values], dtype=object)
            self.cross = self.vectors.T @ (f.T @ np.array([mpmath.mpf(float(e)) for e in residuals], dtype=object))

    def features(self, points):
        roots = [mpmath.sqrt(mpmath.mpf(2) ** k / mpmath.factorial(k)) for k in range(TAYLOR)]
        exact = [mpmath.mpf(float(x)) for x in points]
        return np.array([[mpmath.exp(-x * x) * x**k * roots[k] for k in range(TAYLOR)] for x in exact], dtype=object)

    def h(self, function, at, shift):
        with mpmath.workdps(40):
            psi = self.features(at) @ self.vectors
            if function is UKKR:
                g = psi @ (self.cross / (self.values + shift))
                return np.multiply.outer(g, g).astype(float)
            core = np.multiply.outer(self.cross, self.cross) / (np.multiply.outer(self.values, self.values) + shift)
            return (psi @ core @ psi.T).astype(float)


@pytest.mark.grid
def test_confidences_in_higher_precision():
    """Rank 10 instead of 150; the error follows from what is left out, beside the shift."""
    n = 150
    y, p = softmax_problem(n, 10, 0)
    at = np.array([0.3, 0.95, 1.0])
    rows = np.full((3, 10), 1.0) * ((1 - at) / 9)[:, None]
    rows[:, 3] = at
    exact = ExactLine(p.max(axis=1), (p.argmax(axis=1) == y) - p.max(axis=1))
    for function, regularization in ((KKR, 1e-3), (KKR, 1e-7), (KKR, 1e-9), (UKKR, 1e-3), (UKKR, 1e-6)):
        fitted = function(regularization, kernel=Gaussian(bandwidth=0.5**0.5), lens=TopLabel()).fit(y, p)
        assert fitted.method_ == "low_rank" and fitted.rank_ <= 12
        expected = exact.h(function, at, fitted.shift_)
        left_out = fitted.rounding_ * (n if function is KKR else 1) / fitted.shift_
        assert np.allclose(fitted.h(rows), expected, rtol=0, atol=(30 * left_out + 1e-12) * np.abs(expected).max())


@pytest.mark.parametrize("gamma", [0.5, 1.0])
@pytest.mark.parametrize("lens", [None, TopLabel()])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_low_rank_is_the_dense_path(function, lens, gamma, monkeypatch):
    """Predictions are saturated: their kernel matrix has a low rank with all classes, too."""
    n, kernel = 400, Gaussian(bandwidth=(2 * gamma) ** -0.5)
    y, p = softmax_problem(n, 10, 0, scale=30.0)
    _, q = softmax_problem(50, 10, 1, scale=30.0)
    low = function(1e-3, kernel=kernel, lens=lens).fit(y, p)
    assert low.method_ == "low_rank" and low.rank_ <= 0.6 * n
    monkeypatch.setattr(_expansion, "LOW_RANK", 0.0)
    dense = function(1e-3, kernel=kernel, lens=lens).fit(y, p)
    assert dense.method_ == "dense"
    problem, others = low._problem(y, p, None, False), low._points(q, False, "q")
    k, of_q = (kernel_matrix(kernel, problem.points, points) for points in (problem.points, others.points))
    own, elsewhere = (dense_path(function, k, of, problem.residuals, low.shift_) for of in (k, of_q))
    for fitted in (low, dense):
        # What is left out of k(p, p') is at most an eigenvalue between training samples, and its root elsewhere.
        left_out = fitted.rounding_ * (n if function is KKR else 1) / fitted.shift_
        assert np.allclose(fitted.h(p), own, rtol=0, atol=5 * left_out * np.abs(own).max())
        assert np.allclose(fitted.h(q), elsewhere, rtol=0, atol=left_out**0.5 * np.abs(elsewhere).max())
    assert low.risk(y, p) == pytest.approx(dense.risk(y, p), rel=1e-9)


# A path of regularizations


@pytest.mark.parametrize("kernel", [None, SHARP])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_path_takes_one_decomposition(function, kernel, monkeypatch):
    y, p = softmax_problem(150, 3, 0)
    given = function(kernel=kernel)
    problem = given._problem(y, p, None, False)
    train, validation = problem.take(np.arange(100)), problem.take(np.arange(100, 150))
    calls = []
    real = _expansion.Expansion.of
    monkeypatch.setattr(_expansion.Expansion, "of", lambda *a: calls.append(1) or real(*a))
    path = [1e-6, 1e-3, 1.0]
    tried = list(given._try_settings([{"regularization": value} for value in path], train, validation))
    assert len(calls) == 1
    for value, (fitted, risk) in zip(path, tried, strict=True):
        alone = function(value, kernel=kernel).fit(y[:100], p[:100])
        assert fitted.get_params() == alone.get_params()
        assert risk == alone.risk(y[100:], p[100:]) == fitted.risk(y[100:], p[100:])
        assert np.array_equal(fitted.h(p[100:]), alone.h(p[100:]))
        assert (fitted.n_samples_, fitted.n_classes_) == (100, 3)
    calls.clear()
    settings = [{"regularization": r, "kernel": k} for k in (Gaussian(bandwidth=2.0), SHARP) for r in path]
    risks = [risk for _, risk in given._try_settings(settings, train, validation)]
    assert len(calls) == 2
    assert risks == [function(**s).fit(y[:100], p[:100]).risk(y[100:], p[100:]) for s in settings]
    assert len(set(risks)) == 6


def test_functions_of_a_path_share_what_is_large():
    problem = KKR()._problem(*softmax_problem(200, 3, 0), None, False)
    tried = list(KKR()._try_settings([{"regularization": r} for r in (1e-3, 1.0)], problem, problem))
    first, second = (function._expansion_ for function, _ in tried)
    assert first is second
    light = UKKR()._fit_checked(problem)
    assert sum(v.size for v in vars(light).values() if isinstance(v, np.ndarray)) <= 6 * 200


def test_grids_are_those_of_appendix_b():
    n = 400
    assert KKR(lens=TopLabel()).regularization_grid(n) == pytest.approx(
        [20 * 10.0 ** (-2 * i + 1) for i in range(1, 10)]
    )
    assert UKKR(lens=TopLabel()).regularization_grid(n) == pytest.approx([20 * 10.0**-i for i in range(1, 10)])
    assert KKR().regularization_grid(n) == pytest.approx([20 * 10.0 ** (-i + 9) for i in range(1, 19)])
    assert UKKR().regularization_grid(n) == pytest.approx([20 * 10.0 ** (-0.5 * i + 4.5) for i in range(1, 19)])
    y, p = softmax_problem(16, 3, 0)
    for function, shift in ((KKR(), 1e8 * 16**1.5), (UKKR(), 1e4 * 16**0.75)):
        first = function.regularization_grid(16, convention="code")[0]
        assert function.set_params(regularization=first).fit(y, p).shift_ == pytest.approx(shift)
    with pytest.raises(ValueError, match="`convention` is 'paper', expected one of 'printed', 'code'"):
        KKR().regularization_grid(16, convention="paper")
    with pytest.raises(ValueError, match="`n_samples` is 0"):
        KKR().regularization_grid(0)


def test_default_regularization():
    y, p = softmax_problem(81, 3, 0)
    assert UKKR().fit(y, p).shift_ == pytest.approx(1e-3 * 81 / 3)
    assert KKR().fit(y, p).shift_ == pytest.approx(1e-4 * 81**2 / 9)


# Rounding


def test_regularization_below_rounding_is_stable_and_said():
    """The printed grid's last: what decides is what is left out, and the answer that of less extreme values."""
    n = 2000
    y, p = softmax_problem(n, 10, 0)
    regularization = n**0.5 * 1e-17
    with pytest.warns(RegularizationWarning, match=r"`regularization` 4.47e-16 is below rounding: .* are left out"):
        fitted = KKR(regularization, lens=TopLabel()).fit(y, p)
    assert fitted.truncation_matters_ and fitted.shift_ < fitted.rounding_ * n
    sane = KKR(n**0.5 * 1e-13, lens=TopLabel()).fit(y, p)
    assert not sane.truncation_matters_
    assert fitted.squared_error(p) == pytest.approx(sane.squared_error(p), rel=0.1)
    assert fitted.squared_error(p) > 0
    problem = fitted._problem(y, p, None, False)
    tried = list(KKR(lens=TopLabel())._try_settings([{"regularization": regularization}], problem, problem))
    assert tried[0].function.truncation_matters_  # without a warning


def test_truncation_of_the_dense_path():
    """Duplicates leave rank 75 of 150, the others are rounding."""
    y, p = softmax_problem(75, 3, 0)
    y, p = np.tile(y, 2), np.tile(p, (2, 1))
    problem = UKKR()._problem(y, p, None, False)
    backend = kernel_operator(p, Exponential(bandwidth=0.5))
    dense = _expansion.Expansion._of_matrix(problem, backend, "")
    assert (dense.rank, dense.n_truncated, dense.method) == (75, 75, "dense")
    low = _expansion.Expansion.of(problem, Exponential(bandwidth=0.5), None)
    assert (low.rank, low.method) == (75, "low_rank")
    assert np.allclose(low.eigenvalues, dense.eigenvalues, rtol=0, atol=dense.rounding)
    with pytest.warns(RegularizationWarning, match="are left out"):
        UKKR(1e-18).fit(y, p)


@pytest.mark.parametrize("kernel", [Gaussian(bandwidth=1.0), Linear() + Gaussian(bandwidth=0.4)])
def test_factor_to_rounding_is_the_matrix(kernel):
    _, p = duplicates_problem(300, 4, 0)
    found = partial_cholesky(kernel_operator(p, kernel), 300, to_rounding=True)
    k = kernel_matrix(kernel, p, p)
    values = np.linalg.eigvalsh(k - found.factor @ found.factor.T)
    # The mean square of the last columns, weighted, is a quarter of this; their largest eigenvalue not far above.
    assert values.max() <= 5 * found.rank * EPSILON * np.trace(k)
    assert found.rank <= 180


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kernel", [SHARP, 1e15 * Gaussian(bandwidth=1.0), 1e-15 * Gaussian(bandwidth=1.0)])
def test_extreme_regularizations_are_finite(function, kernel):
    y, p = softmax_problem(300, 2, 0)
    problem = function()._problem(y, p, None, False)
    settings = [{"regularization": r, "kernel": kernel} for r in (1e-100, 1.0, 1e100)]
    tried = list(function()._try_settings(settings, problem, problem))
    assert np.all(np.isfinite([risk for _, risk in tried]))
    assert np.all(np.abs(tried[2].function.h(p[:5])) < 1e-20)


# Unusual problems


@pytest.mark.parametrize("function", FUNCTIONS)
def test_duplicates_and_one_hot_predictions(function):
    y, p = duplicates_problem(64, 4, 0)
    fitted = function(1e-2).fit(y, p)
    k = kernel_matrix(Gaussian(bandwidth=1.0), p, p)
    expected = dense_path(function, k, k, np.eye(4)[y] - p, fitted.shift_)
    assert np.allclose(fitted.h(p), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("lens", [None, TopLabel()])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_constant_predictions_and_one_class(function, lens):
    """K is n in the direction of ones: G and its square shrink the mean residual by n / (n + s), or n^2 / (n^2 + s)."""
    y, p = np.zeros(9, dtype=int), np.tile([0.6, 0.3, 0.1], (9, 1))
    fitted = function(0.5, lens=lens).fit(y, p)
    size = 0.4**2 if lens else 0.4**2 + 0.3**2 + 0.1**2
    expected = size / (1.5 if function is KKR else 1.5**2)
    assert fitted.squared_error(p) == pytest.approx(expected, rel=1e-12)
    assert fitted.rank_ == 1


@pytest.mark.parametrize("function", FUNCTIONS)
def test_one_sample(function):
    fitted = function(1.0).fit([1], [[0.5, 0.5]])
    assert fitted.squared_error([[0.5, 0.5]]) == pytest.approx(0.5 / (2 if function is KKR else 4), rel=1e-14)
    with pytest.raises(ValueError, match="at least 2 samples"):
        fitted.risk([1], [[0.5, 0.5]])
    # Nothing is left out of a matrix of one entry: no warning.
    assert function(1e-100).fit([1], [[0.5, 0.5]]).squared_error([[0.5, 0.5]]) == pytest.approx(0.5, rel=1e-14)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_kernel_that_is_zero_estimates_nothing(function):
    p = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.3, 0.7, 0.0]])
    fitted = function(kernel=Linear(), lens=ClassWise(2)).fit([0, 1, 0], p)
    assert fitted.rank_ == 0 and fitted.squared_error(p) == 0.0


@pytest.mark.parametrize("function", FUNCTIONS)
def test_median_heuristic_is_of_the_training_samples(function):
    y, p = softmax_problem(20, 3, 0)
    fitted = function(0.1, kernel=Gaussian()).fit(y, p)
    distances = np.linalg.norm(p[:, None] - p, axis=2)[np.triu_indices(20, 1)]
    assert fitted.kernel_.bandwidth == pytest.approx(np.median(distances))
    again = function(0.1, kernel=fitted.kernel_).fit(y, p)
    assert np.array_equal(fitted.h(p[:4]), again.h(p[:4]))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_float32_and_other_inputs(function):
    y, p = softmax_problem(40, 3, 0)
    exact = function(1e-3).fit(y, p).h(p[:5])
    single = function(1e-3).fit(y, p.astype(np.float32)).h(p[:5].astype(np.float32))
    assert single.dtype == np.float64
    assert np.allclose(single, exact, rtol=0, atol=1e-4)
    names = np.array(["a", "b", "c"])
    named = function(1e-3).fit(names[y], p, classes=names)
    assert np.array_equal(named.h(p[:5]), exact)
    logits = function(1e-3).fit(y, np.log(p), from_logits=True)
    assert np.allclose(logits.h(np.log(p[:5]), from_logits=True), exact, rtol=0, atol=1e-10)


# Errors


@pytest.mark.parametrize("function", FUNCTIONS)
def test_bad_regularization(function):
    y, p = softmax_problem(10, 3, 0)
    for value in (0, -1.0, np.inf, np.nan, 1e-101):
        with pytest.raises(ValueError, match=r"`regularization` is .*, expected a number between 1e-100 and 1e\+100"):
            function(value).fit(y, p)
    for value in ("1", True, [1.0], 1j):
        with pytest.raises(TypeError, match="`regularization` is .*, expected a positive number or None"):
            function(value).fit(y, p)
    problem = function()._problem(y, p, None, False)
    with pytest.raises(ValueError, match="`regularization` is 0"):
        list(function()._try_settings([{"regularization": 1.0}, {"regularization": 0}], problem, problem))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_memory_is_asked_for(function):
    y, p = softmax_problem(300, 10, 0)
    with pytest.raises(MemoryError, match=r"eigendecomposition and workspace take 2.06 MiB .* allowed by `max_memory`"):
        function(kernel=SHARP, max_memory=2e6).fit(y, p)
    assert function(kernel=SHARP, max_memory=3e6).fit(y, p).method_ == "dense"
    assert function(lens=TopLabel(), max_memory=2e6).fit(y, p).method_ == "low_rank"
    with pytest.raises(TypeError, match="`max_memory` is '1'"):
        function(max_memory="1").fit(y, p)
    with pytest.raises(TypeError, match="`kernel` is 'rbf', expected a kernel"):
        function(kernel="rbf").fit(y, p)


def test_memory_of_evaluation_is_asked_for():
    y, p = softmax_problem(300, 10, 0)
    fitted = KKR(kernel=SHARP, max_memory=3e6).fit(y, p)
    with pytest.raises(MemoryError, match="features of 1500 predictions, .*; evaluate fewer predictions at a time"):
        fitted.squared_error(np.tile(p, (5, 1)))


@pytest.mark.parametrize("most", [0.7, 0.0])
def test_indefinite_kernels_are_refused(most, monkeypatch):
    """exp(-d^2) of the cityblock distance, on random points of 10 classes."""
    monkeypatch.setattr(_expansion, "LOW_RANK", most)
    p = np.random.default_rng(0).dirichlet(np.full(10, 0.1), size=200)
    kernel = Gaussian(bandwidth=1.0, metric="cityblock")
    assert np.linalg.eigvalsh(kernel_matrix(kernel, p, p))[0] < -0.1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=r"not positive semi-definite.*take .* positive definite"):
            UKKR(kernel=kernel).fit(np.zeros(200, dtype=int), p)
