"""The estimators: hand-worked cases, the literal oracle, and what must hold of any estimate."""

from __future__ import annotations

import itertools
import math
import pickle
import time

import numpy as np
import oracle
import pytest
from grid import cells
from problems import KERNELS, duplicates_problem, psd_matrix, softmax_problem
from scipy.spatial.distance import pdist

import kcalib
from kcalib import bandwidth
from kcalib.bandwidth import median_distance
from kcalib.kernels import (
    MMD,
    Cosine,
    Exponential,
    GammaExponential,
    GammaRationalQuadratic,
    Gaussian,
    Linear,
    Matern,
    RationalQuadratic,
)

# Two samples, p = (0.8, 0.2) with y = 0 and p = (0.4, 0.6) with y = 1: residuals (0.2, -0.2) and
# (-0.4, 0.4), inner products 0.08, 0.32 and -0.16, distance 0.4 sqrt(2).
Y2, P2 = [0, 1], [[0.8, 0.2], [0.4, 0.6]]
K12 = math.exp(-0.4 * math.sqrt(2))


def test_two_samples_by_hand():
    kernel = Exponential(bandwidth=1.0)
    assert kcalib.skce(Y2, P2, kernel=kernel) == pytest.approx(-0.16 * K12, rel=1e-15)
    biased = (0.08 + 0.32 - 2 * 0.16 * K12) / 4
    assert kcalib.skce(Y2, P2, kernel=kernel, estimator="biased") == pytest.approx(biased, rel=1e-15)
    assert kcalib.skce(Y2, P2, kernel=kernel, estimator="linear") == pytest.approx(-0.16 * K12, rel=1e-15)
    assert kcalib.skce(Y2, P2, kernel=Linear()) == pytest.approx(-0.16 * (0.32 + 0.12), rel=1e-14)


def test_matrix_target_kernel_by_hand():
    m = np.array([[2.0, 1.0], [1.0, 3.0]])  # (0.2, -0.2) M (-0.4, 0.4)^T = -0.08 (2 - 1 - 1 + 3)
    value = kcalib.skce(Y2, P2, kernel=Exponential(bandwidth=1.0), target_kernel=m)
    assert value == pytest.approx(-0.24 * K12, rel=1e-14)


def test_median_heuristic_by_hand():
    # Distances of 0, 1/2 and 1 on the line times sqrt(2): 1/2, 1/2, 1.
    result = kcalib.skce.result([0, 1, 1], [0.0, 0.5, 1.0])
    assert result.kernel == f"Exponential(bandwidth={math.sqrt(0.5):.6g})"
    assert median_distance([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.5, 0.5]], "cityblock").value == 0.5 * (0 + 1.0)
    # Six zero distances of ten: the median of the others.
    four_equal = [[1.0, 0.0]] * 4 + [[0.5, 0.5]]
    assert median_distance(four_equal, "total_variation").value == 0.5


def test_kernel_between_classes_that_are_numbers():
    """On an ordinal scale: the matrix exp(-|a - b| / 2) of 0, 1, 2; of the classes given, where they are."""
    y, p = np.array([0, 2, 1, 1]), np.random.default_rng(0).dirichlet(np.ones(3), size=4)
    scale = np.array([0.0, 1.0, 2.0])
    for classes in (None, [10, 20, 40]):
        numbers = scale if classes is None else np.array(classes)
        matrix = np.exp(-np.abs(numbers[:, None] - numbers[None, :]) / 2)
        options = {"kernel": Exponential(bandwidth=1.0), "classes": classes}
        labels = y if classes is None else numbers[y].astype(int)
        expected = kcalib.skce(labels, p, target_kernel=matrix, **options)
        assert kcalib.skce(labels, p, target_kernel=Exponential(bandwidth=2.0), **options) == pytest.approx(
            expected, rel=1e-13
        )
        expected = kcalib.ckce(labels, p, target_kernel=matrix, **options)
        assert kcalib.ckce(labels, p, target_kernel=Exponential(bandwidth=2.0), **options) == pytest.approx(
            expected, rel=1e-12
        )
    with pytest.raises(ValueError, match="expected a number for its bandwidth"):
        kcalib.skce(y, p, target_kernel=Exponential())
    with pytest.raises(ValueError, match=r"a kernel between numbers, but the classes are \['a', 'b', 'c'\]"):
        kcalib.skce(np.array(["a", "c", "b", "b"]), p, target_kernel=Exponential(bandwidth=1.0))


PROBLEMS = [
    pytest.param((target, n, m), id=f"{target}-{n}-{m}")
    for target in ("delta", "matrix")
    for n, m in ((2, 2), (3, 10), (5, 1000), (197, 3))
]


@pytest.mark.filterwarnings("ignore::kcalib.IndefiniteKernelWarning")
@pytest.mark.parametrize(
    ("kernel", "problem"), cells(KERNELS, PROBLEMS, in_full=("exponential",), few=("matrix-3-10",))
)
def test_estimators_agree_with_the_oracle(kernel, problem):
    target, n, m = problem
    y, p = softmax_problem(n, m, seed=1)
    matrix = psd_matrix(m, min(m, 3)) if target == "matrix" else None
    h = oracle.h_matrix(KERNELS[kernel], y, p, m_matrix=matrix)
    options = {"kernel": KERNELS[kernel], "target_kernel": "delta" if matrix is None else matrix}
    # Relative to the value, and where positive and negative terms cancel to the mean of |H|.
    floor = 1e-13 * float(np.mean(np.abs(h)))
    for estimator, expected in (
        ("unbiased", oracle.unbiased(h)),
        ("biased", oracle.biased(h)),
        ("linear", oracle.block(h, 2)),
    ):
        found = kcalib.skce(y, p, estimator=estimator, **options)
        assert found == pytest.approx(expected, rel=1e-12, abs=floor), estimator
    for size in {2, max(2, n // 3), n}:
        found = kcalib.skce(y, p, estimator=kcalib.methods.BlockEstimator(block_size=size), **options)
        assert found == pytest.approx(oracle.block(h, size), rel=1e-12, abs=floor)


def test_biased_is_never_negative_and_unbiased_may_be():
    values = []
    for seed in range(20):
        y, p = softmax_problem(30, 3, seed)
        assert kcalib.skce(y, p, estimator="biased") > 0
        values.append(kcalib.skce(y, p))
    assert min(values) < 0 < max(values)


def test_order_of_samples_and_classes_does_not_matter():
    y, p = softmax_problem(300, 5)
    value = kcalib.skce(y, p)
    samples, columns = np.random.default_rng(0).permutation(300), np.array([3, 0, 4, 1, 2])
    assert kcalib.skce(y[samples], p[samples]) == pytest.approx(value, rel=1e-11)
    assert kcalib.skce(y, p[:, columns], classes=columns) == pytest.approx(value, rel=1e-11)


def test_weights_count_samples():
    y, p = softmax_problem(40, 3)
    weights = np.random.default_rng(0).integers(0, 4, size=40)
    repeated = np.repeat(np.arange(40), weights)
    kernel = Exponential(bandwidth=0.5)
    weighted = kcalib.skce(y, p, kernel=kernel, estimator="biased", sample_weight=weights)
    assert weighted == pytest.approx(
        kcalib.skce(y[repeated], p[repeated], kernel=kernel, estimator="biased"), rel=1e-12
    )
    h = np.array(oracle.h_matrix(kernel, y, p), float)
    ww = np.outer(weights, weights) * (1 - np.eye(40))
    unbiased = kcalib.skce(y, p, kernel=kernel, sample_weight=weights)
    assert unbiased == pytest.approx((ww * h).sum() / ww.sum(), rel=1e-12)
    assert kcalib.skce(y, p, kernel=kernel, sample_weight=np.full(40, 7.0)) == pytest.approx(
        kcalib.skce(y, p, kernel=kernel), rel=1e-12
    )


def test_float32_is_near_and_accumulates_in_float64():
    y, p = softmax_problem(3000, 10)
    exact = kcalib.skce.result(y, p, estimator="biased")
    single = kcalib.skce.result(y, p, estimator="biased", dtype="float32")
    assert single.dtype == "float32" and exact.dtype == "float64"
    assert single.value != exact.value
    # Entries are right to about 1e-6; a float32 sum of 9e6 terms would lose two digits more.
    assert single.value == pytest.approx(exact.value, rel=2e-6)


def test_duplicates_do_not_lose_digits():
    y, p = duplicates_problem(400, 20)
    kernel = Exponential(bandwidth=1e-3)  # makes an error of a distance an error of the value
    h = oracle.h_matrix(kernel, y, p)
    assert kcalib.skce(y, p, kernel=kernel) == pytest.approx(oracle.unbiased(h), rel=1e-12)


def test_perfect_predictions_give_zero():
    y = np.arange(30) % 3
    p = np.eye(3)[y]
    for estimator in ("unbiased", "biased", "block", "linear"):
        assert kcalib.skce(y, p, estimator=estimator, kernel=Exponential(bandwidth=1.0)) == 0.0
    test = kcalib.calibration_test(y, p, kernel=Exponential(bandwidth=1.0))
    assert test.pvalue == 1.0 and test.statistic == 0.0


def test_results_say_what_was_done():
    y, p = softmax_problem(100, 4)
    result = kcalib.skce.result(y, p, estimator=kcalib.methods.BlockEstimator(block_size=30), threads=1)
    assert (result.n_samples, result.n_samples_used, result.n_classes, result.block_size) == (100, 90, 4, 30)
    assert (result.backend, result.threads, result.target_kernel) == ("cpu", 1, "delta")
    assert result.backend_reason == "the arrays are in host memory"
    assert result.bandwidth_source == "median euclidean distance of all samples"
    assert result.seconds > 0 and float(result) == result.value
    assert kcalib.skce.result(y, p, target_kernel=psd_matrix(4, 2)).target_kernel == "matrix of rank 2"
    assert kcalib.skce.result(y, p, kernel=Gaussian(bandwidth=1.0)).bandwidth_source == "given"
    assert pickle.loads(pickle.dumps(result)) == result
    with pytest.raises(AttributeError):
        result.value = 0.0


@pytest.mark.parametrize("metric", ["euclidean", "cityblock"])
@pytest.mark.parametrize("case", ["spread", "tied", "mostly identical", "two distances", "tiny and large"])
def test_exact_medians_come_from_counting(metric, case, monkeypatch):
    """Several sweeps of counting, down to the last bit where distances are tied."""
    monkeypatch.setattr(bandwidth, "COLLECTED", 0)
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=1001 if case == "spread" else 1000)
    if case == "tied":
        p = np.round(p, 1)
    elif case == "mostly identical":
        p[:800] = p[0]
    elif case == "two distances":
        p = np.eye(3)[rng.integers(3, size=1000)]
        p[:10] = [[0.5, 0.25, 0.25]]
    elif case == "tiny and large":
        p[:500] = p[0] + 1e-9 * rng.normal(size=(500, 3))
    d = np.abs(p[:, None] - p) if metric == "cityblock" else (p[:, None] - p) ** 2
    d = np.sum(d, axis=-1)[np.triu_indices(len(p), 1)]
    d = np.sqrt(d) if metric == "euclidean" else d
    expected = np.median(d) or np.median(d[d > 0])
    found = median_distance(p, metric, max_samples=None)
    # Differences of rounded numbers: a few roundings of the largest.
    assert found.value == pytest.approx(expected, rel=0, abs=4e-16)
    assert found.exact and found.n_samples == len(p) and found.seed is None


@pytest.mark.parametrize("metric", ["euclidean", "cityblock"])
@pytest.mark.parametrize("collected", [None, 0])  # distances in memory at once: all, or only some
@pytest.mark.parametrize("kind", ["diffuse", "peaked", "in order", "tied", "few places", "near and far", "clusters"])
def test_medians_of_all_distances(kind, collected, metric, monkeypatch):
    rng = np.random.default_rng(5)
    if collected is not None:
        monkeypatch.setattr(bandwidth, "COLLECTED", collected)
    for n in (181, 400, 1100):
        p = rng.dirichlet(np.full(5, {"diffuse": 50.0, "peaked": 0.05}.get(kind, 1.0)), size=n)
        if kind == "in order":
            p = np.sort(p, axis=0)
        elif kind == "tied":
            p = np.round(p, 1)
        elif kind == "few places":
            p = np.eye(5)[rng.integers(5, size=n)]
        elif kind == "near and far":
            p[: n // 2] = p[0] + 1e-12 * rng.uniform(size=(n // 2, 5))
        elif kind == "clusters":
            p = np.eye(5)[rng.integers(5, size=n)] + 1e-3 * rng.normal(size=(n, 5))
        d = pdist(p, metric)
        found = median_distance(p, metric, threads=1 + n % 2)
        assert found.value == pytest.approx(np.median(d) or np.median(d[d > 0]), rel=0, abs=4e-16)


def test_large_samples_take_the_median_of_a_seeded_subset():
    y, p = softmax_problem(2500, 3)
    result = kcalib.skce.result(y, p)
    assert result.bandwidth_source == "median euclidean distance of 2000 samples drawn with seed 0"
    exact = median_distance(p, max_samples=2500)
    assert exact.exact and exact.n_samples == 2500
    upper = np.triu_indices(2500, 1)
    distances = np.sqrt(((p[:, None] - p[None]) ** 2).sum(-1))[upper]
    assert exact.value == pytest.approx(float(np.median(distances)), rel=1e-14)
    # Half of the subset's distances lie below its median; their share among all is within 5 / sqrt(2000).
    assert abs(np.mean(distances < median_distance(p).value) - 0.5) < 0.11
    assert median_distance(p) == median_distance(p)


def test_kernels_compose_and_print():
    kernel = Linear() + Gaussian(bandwidth=0.4)
    assert str(kernel) == "Linear() + Gaussian(bandwidth=0.4)"
    assert str(2 * kernel * Exponential()) == "2 * (Linear() + Gaussian(bandwidth=0.4)) * Exponential(bandwidth=None)"
    assert str(Matern(bandwidth=1.0, nu=2.5)) == "Matern(bandwidth=1, nu=2.5)"
    assert kernel == Linear() + Gaussian(bandwidth=0.4) and hash(kernel) == hash(Linear() + Gaussian(bandwidth=0.4))
    assert pickle.loads(pickle.dumps(kernel)) == kernel


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Exponential(bandwidth=0), r"`bandwidth` is 0, expected a positive finite number; pass None"),
        (lambda: Gaussian(bandwidth=-1.0), r"`bandwidth` is -1.0"),
        (lambda: Gaussian(bandwidth=float("nan")), r"`bandwidth` is nan"),
        (lambda: GammaExponential(gamma=2.5), r"`gamma` is 2.5, expected 0 < gamma <= 2"),
        (lambda: Matern(nu=0.5), r"`nu` is 0.5, expected 1.5 or 2.5; for 0.5 use Exponential"),
        (lambda: RationalQuadratic(alpha=-1.0), r"`alpha` is -1.0"),
        (lambda: GammaRationalQuadratic(gamma=2.5), r"`gamma` is 2.5, expected 0 < gamma <= 2: above 2"),
        (lambda: GammaRationalQuadratic(alpha=0.0), r"`alpha` is 0.0, expected a positive finite number"),
        (lambda: Exponential(metric="manhattan"), r"`metric` is 'manhattan', expected one of 'euclidean', 'cityblock'"),
        (lambda: Exponential(bandwidth=1e-310), r"`bandwidth` is 1e-310, expected a number between 1e-15 and 1e\+15"),
        (lambda: 1e200 * Linear(), r"`scale` is 1e\+200, expected a number between"),
        (lambda: -1.0 * Linear(), r"`scale` is -1.0, expected a positive finite number; a kernel stays"),
    ],
)
def test_kernels_refuse_bad_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_extreme_kernels_stay_finite():
    y, p = duplicates_problem(64, 12)
    extremes = [f(bandwidth=b) for f in (Exponential, Gaussian, Matern, RationalQuadratic) for b in (1e-15, 1e15)]
    extremes += [RationalQuadratic(bandwidth=1e-15, alpha=1e-3), RationalQuadratic(bandwidth=1e15, alpha=1e9)]
    extremes += [GammaExponential(bandwidth=b, gamma=g) for b in (1e-15, 1e15) for g in (1e-6, 2.0)]
    extremes += [
        GammaRationalQuadratic(bandwidth=b, alpha=a, gamma=g)
        for b, a, g in ((1e-15, 1e-3, 2.0), (1e15, 1e9, 2.0), (1e-15, 1e9, 1e-6), (1e15, 1e-3, 1e-6))
    ]
    extremes.append(1e15 * Linear() * (1e15 * Linear()))
    for kernel in extremes:
        for dtype in ("float64", "float32"):
            values = [kcalib.skce(y, p, kernel=kernel, dtype=dtype, backend=o) for o in ("cpu", "array-api")]
            assert np.isfinite(values).all(), (kernel, dtype)
            if dtype == "float64":  # in float32 rounding decides which rows coincide at the scale of 1e-15
                assert values[0] == pytest.approx(values[1], rel=1e-11), kernel
    with pytest.raises(ValueError, match=r"`kernel` has a term scaled by 1e\+45"):
        kcalib.skce(y, p, kernel=1e15 * Linear() * (1e15 * Linear()) * (1e15 * Linear()))


def test_numpy_scalars_become_floats():
    assert repr(Exponential(bandwidth=np.float32(0.5))) == "Exponential(bandwidth=0.5, metric='euclidean')"


def test_median_distance_checks_points():
    with pytest.raises(ValueError, match=r"`y_pred\[1, 0\]` is nan, expected a finite number"):
        median_distance([[0.5, 0.5], [np.nan, 1.0]])
    with pytest.raises(TypeError, match="`y_pred` has dtype complex128, expected numbers"):
        median_distance(np.array([[0.5j, 0.5], [0.1, 1.0]]))
    with pytest.raises(ValueError, match=r"`y_pred` has shape \(3,\), expected \(n, m\)"):
        median_distance([0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="`y_pred` has 1 row, expected at least 2"):
        median_distance([[0.1, 0.9]])


def test_kernels_refuse_other_types():
    with pytest.raises(TypeError, match="`bandwidth` is 'median', expected a positive number; pass None"):
        Exponential(bandwidth="median")
    with pytest.raises(TypeError):
        Linear() + 1.0
    with pytest.raises(TypeError, match=r"`kernel` is 'rbf', expected a kernel such as"):
        kcalib.skce([0, 1], [0.5, 0.5], kernel="rbf")


def test_limits_of_the_gamma_rational_quadratic_kernel():
    y, p = softmax_problem(60, 4)

    def value(kernel):
        return kcalib.skce(y, p, kernel=kernel, estimator="biased")

    of_squares = value(GammaRationalQuadratic(bandwidth=0.6, alpha=1.3, gamma=2.0))
    assert of_squares == pytest.approx(value(RationalQuadratic(bandwidth=0.6 / math.sqrt(2), alpha=1.3)), rel=1e-12)
    far = value(GammaRationalQuadratic(bandwidth=0.6, alpha=1e9, gamma=0.7))
    assert far == pytest.approx(value(GammaExponential(bandwidth=0.6, gamma=0.7)), rel=1e-7)
    for gamma, metric in ((2.0, "euclidean"), (1.5, MMD()), (0.7, "cityblock"), (1.0, "total_variation")):
        assert GammaRationalQuadratic(gamma=gamma, metric=metric).is_positive_definite()
    assert not GammaRationalQuadratic(gamma=1.5, metric="cityblock").is_positive_definite()


def test_cosine_kernel_is_positive_definite_on_a_line_only():
    kernel = Cosine(bandwidth=0.8)
    assert not kernel.is_positive_definite() and not Cosine(metric=MMD()).is_positive_definite()
    y, p = softmax_problem(40, 3)
    message = r"^Cosine\(bandwidth=0.8\) may be indefinite for 3 classes: Cosine is positive definite on a line only"
    with pytest.warns(kcalib.IndefiniteKernelWarning, match=message):
        kcalib.skce(y, p, kernel=kernel)
    assert kcalib.smallest_eigenvalue(p, kernel) < -0.1
    y, p = softmax_problem(40, 2)
    assert kcalib.skce(y, p, kernel=kernel, estimator="biased") >= 0  # without a warning
    assert kcalib.smallest_eigenvalue(p, kernel) > -1e-12


def test_indefinite_kernels_are_named():
    y, p = softmax_problem(20, 3)
    with pytest.warns(
        kcalib.IndefiniteKernelWarning, match=r"Gaussian\(bandwidth=0.5, metric='cityblock'\) may be"
    ) as w:
        kcalib.skce(y, p, kernel=Gaussian(bandwidth=0.5, metric="cityblock"))
    assert w[0].filename == __file__
    y, p = softmax_problem(20, 2)  # on a line every metric is Euclidean: no warning, or the test fails
    kcalib.skce(y, p, kernel=Gaussian(bandwidth=0.5, metric="cityblock"))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.eye(2), r"`target_kernel` has shape \(2, 2\), expected \(3, 3\)"),
        (np.diag([1.0, 1.0, -0.5]), r"`target_kernel` has the eigenvalue -0.5"),
        (np.triu(np.ones((3, 3))), r"`target_kernel\[0, 1\]` is 1.0 but `target_kernel\[1, 0\]` is 0.0"),
        (np.full((3, 3), np.nan), r"`target_kernel\[0, 0\]` is nan"),
        (np.zeros((3, 3)), r"`target_kernel` has the largest entry 0, expected one between 1e-15 and 1e15"),
        (1e300 * np.eye(3), r"`target_kernel` has the largest entry 1e\+300"),
        (-np.eye(3), r"expected a positive semi-definite, non-zero matrix"),
        ("identity", r"`target_kernel` is 'identity', expected 'delta', a positive"),
    ],
)
def test_target_kernels_are_checked(matrix, message):
    y, p = softmax_problem(20, 3)
    with pytest.raises(ValueError, match=message):
        kcalib.skce(y, p, target_kernel=matrix)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "jackknife"}, "`estimator` is 'jackknife', expected one of 'unbiased', 'biased'"),
        (
            {"estimator": kcalib.methods.BlockEstimator(block_size=21)},
            "`block_size` is 21, expected an integer between 2 and 20",
        ),
        ({"backend": "opencl"}, "`backend` is 'opencl', expected one of 'sorted', 'cpu', 'cuda', 'array-api'"),
        ({"backend": "array-api", "threads": 2}, "`threads` has no effect on backend='array-api'"),
        ({"backend": "sorted"}, "backend='sorted' cannot take this problem: the points have 3 coordinates"),
        ({"threads": 0}, "`threads` is 0, expected an integer between 1 and 4096"),
        ({"estimator": "block", "sample_weight": np.ones(20)}, "`sample_weight` has no meaning for estimator='block'"),
        ({"sample_weight": np.eye(20)[0]}, "estimator='unbiased' needs at least 2 samples of positive `sample_weight`"),
        ({"dtype": "float16"}, "`dtype` is 'float16', expected 'float64' or 'float32'"),
    ],
)
def test_options_are_checked(options, message):
    y, p = softmax_problem(20, 3)
    with pytest.raises(ValueError, match=message):
        kcalib.skce(y, p, **options)


def test_too_few_samples():
    assert kcalib.skce([1], [0.25], kernel=Linear(), estimator="biased") == pytest.approx(2 * 0.75**2 * 0.625)
    for estimator in ("unbiased", "block", "linear"):
        with pytest.raises(ValueError, match=f"estimator='{estimator}' needs at least 2 samples, `y_true` has 1"):
            kcalib.skce([1], [0.25], kernel=Linear(), estimator=estimator)
    with pytest.raises(ValueError, match="needs at least two blocks of 2 samples, `y_true` has 3"):
        kcalib.calibration_test([0, 1, 0], [0.1, 0.9, 0.2], method="block")
    with pytest.raises(ValueError, match="`block_size` is 3, expected an integer between 2 and 2: the test needs"):
        kcalib.calibration_test([0, 1, 0, 1], [0.1, 0.9, 0.2, 0.8], method=kcalib.methods.Block(block_size=3))


def test_identical_predictions_need_no_bandwidth():
    """The kernel is 1 for every bandwidth."""
    y, p = [0, 1, 1], [0.5, 0.5, 0.5]
    found = kcalib.skce.result(y, p)
    assert found.value == pytest.approx((0.5 - 0.5 - 0.5) / 3)
    assert found.bandwidth_source == "any: the distances of all predictions are 0, so the value does not depend on it"
    assert kcalib.skce(y, p, kernel=Exponential() + Exponential(metric="cityblock")) == pytest.approx(2 * found.value)
    assert kcalib.skce([0], [0.3], estimator="biased") == pytest.approx(0.18)
    assert kcalib.skce(kcalib.streaming.source((y, p)), estimator=kcalib.methods.BlockEstimator(block_size=2)) == -0.5


def test_a_median_of_positive_distances_says_so():
    y, p = np.arange(10) % 2, np.array([0.5] * 8 + [0.6, 0.9])
    for points in (p, np.stack([1 - p, p / 2, p / 2], axis=1)):
        found = kcalib.skce.result(y, points)
        assert found.bandwidth_source == "median of the positive euclidean distances of all samples"
    assert kcalib.bandwidth.median_distance(p[:, None]).of_positive
    assert not kcalib.bandwidth.median_distance(p[7:, None]).of_positive


@pytest.mark.parametrize("kind", [softmax_problem, duplicates_problem])
@pytest.mark.parametrize("m", [2, 3])
def test_biased_blocks_are_means_of_biased_estimates(kind, m):
    y, p = kind(47, m)
    options = {"kernel": Exponential(bandwidth=0.4)}
    for size in (2, 7, 47):
        blocks = [slice(k, k + size) for k in range(0, 47 - size + 1, size)]
        expected = [kcalib.skce(y[rows], p[rows], estimator="biased", **options) for rows in blocks]
        found = kcalib.skce.result(
            y, p, estimator=kcalib.methods.BlockEstimator(block_size=size, biased=True), **options
        )
        assert found.value == pytest.approx(np.mean(expected), rel=1e-12)
        assert found.estimator == "biased_block" and found.n_samples_used == len(blocks) * size
        if len(blocks) > 1:
            error = np.std(expected, ddof=1) / math.sqrt(len(blocks))
            assert found.standard_error == pytest.approx(error, rel=1e-10)
    assert kcalib.skce(y, p, estimator="biased_block", **options) >= 0


@pytest.mark.parametrize(
    ("kernel", "bound"),
    [
        (Exponential(), 1.0),
        (Exponential(bandwidth=1e-3, metric="cityblock"), 1.0),
        (0.5 * Exponential() + 2 * Gaussian(bandwidth=3.0) * RationalQuadratic(), 2.5),
        (Linear(), 1.0),
        (3 * (Linear() + Exponential()), 6.0),
        (Exponential(metric=MMD()), 1.0),
    ],
)
def test_bound_of_a_kernel(kernel, bound):
    assert kernel.bound == bound
    y, p = softmax_problem(20, 3)
    if "MMD" not in str(kernel):
        method = kcalib.methods.DistributionFree(estimator="biased")
        default = kcalib.calibration_test(y, p, method=method, kernel=kernel)
        given = kcalib.methods.DistributionFree(estimator="biased", bound=kernel.bound)
        assert kcalib.calibration_test(y, p, method=given, kernel=kernel).bound == default.bound


@pytest.mark.parametrize("metric", ["euclidean", "cityblock", "total_variation"])
@pytest.mark.parametrize("n", [2, 3, 4, 20, 41])
@pytest.mark.parametrize("m", [1, 2, 5])
def test_median_with_the_diagonal_is_that_of_the_whole_table(metric, n, m):
    p = np.random.default_rng(n).dirichlet(np.ones(max(m, 2)), n)[:, :m]
    gaps = np.abs(p[:, None] - p[None])
    table = {"euclidean": np.sqrt((gaps**2).sum(2)), "cityblock": gaps.sum(2), "total_variation": gaps.sum(2) / 2}
    found = median_distance(p, metric, diagonal=True)
    assert found.value == pytest.approx(np.median(table[metric]), rel=1e-12) and found.diagonal
    assert not median_distance(p, metric).diagonal


def test_median_with_the_diagonal_of_ties_and_bad_options():
    p = np.array([[0.0], [0.0], [0.0], [1.0]])  # 10 of 16 entries are 0: the median of the positive ones
    found = median_distance(p, diagonal=True)
    assert (found.value, found.of_positive) == (1.0, True)
    with pytest.raises(TypeError, match="`diagonal` is 1, expected True or False"):
        median_distance(p, diagonal=1)


IN_PIECES = [{"estimator": kcalib.methods.BlockEstimator(block_size=8)}, {"estimator": "features"}]


@pytest.mark.parametrize("from_source, options", [(False, {}), *itertools.product([False, True], IN_PIECES)])
def test_seconds_are_those_of_the_call(from_source, options):
    y, p = softmax_problem(64, 3)
    arguments = (kcalib.streaming.source((y, p)),) if from_source else (y, p)
    before = time.perf_counter()
    found = kcalib.skce.result(*arguments, kernel=Exponential(bandwidth=0.5), **options)
    assert 0 < found.seconds < time.perf_counter() - before


@pytest.mark.parametrize("law", ["diffuse", "tied", "two clusters", "certain"])
def test_median_is_exact_wherever_few_points_say_to_look(law):
    """For 1025 to some 2000 samples the search begins at quantiles of 256 points, which ties and clusters may belie."""
    rng = np.random.default_rng(1)
    p = {
        "diffuse": rng.dirichlet(np.ones(4), 1500),
        "tied": np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.3, 0.4, 0.3]])[rng.integers(3, size=1500)],
        "two clusters": np.repeat(np.eye(3)[:2], [700, 800], axis=0),
        "certain": np.eye(3)[rng.integers(3, size=1500)],
    }[law]
    distances = pdist(p)
    expected = np.median(distances) or np.median(distances[distances > 0])
    assert median_distance(p, "euclidean").value == pytest.approx(expected, rel=1e-12)
