"""The spectrum given the predictions: the never-stored matrix against the dense one, and against all labels."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import oracle
import pytest
from few_events import FEW_EVENTS
from grid import some
from problems import binomial_bounds, draw_labels, psd_matrix

import kcalib
from kcalib._input.labels import prepare
from kcalib._packing.variance import finite_law
from kcalib.distributions import Normal, Poisson
from kcalib.estimators.skce import PairOptions
from kcalib.inference.conditional_spectrum import Vectors, conditional
from kcalib.inference.eigenvalues import Eigenvalues, ImplicitMatrix, full_spectrum, leading_spectrum
from kcalib.inference.spectrum import SETTLED_NARROW, limit_law
from kcalib.inference.task import Task
from kcalib.kernels import Exponential, Gaussian
from kcalib.methods import Gamma, Pearson, Spectrum

KERNEL = Exponential(bandwidth=0.5)


def predictions(name: str, n: int, m: int) -> np.ndarray:
    rng = np.random.default_rng(n + m)
    if name == "diffuse":
        return rng.dirichlet(np.ones(m), size=n)
    if name == "tied":
        return rng.dirichlet(np.ones(m), size=3)[rng.integers(3, size=n)]
    if name == "rare":
        rare = rng.beta(0.1, 100, size=n)
        return np.stack([1 - rare, rare], axis=1)
    errors = 10.0 ** rng.uniform(-8, -4, size=n)  # saturated
    p = np.tile(errors[:, None], (1, m))
    p[np.arange(n), rng.integers(m, size=n)] = 1 - (m - 1) * errors
    return p


def dense(p: np.ndarray, matrix: np.ndarray | None) -> np.ndarray:
    """Block by block, n m rows."""
    n, m = p.shape
    k = oracle.kernel_matrix(KERNEL, p, p).astype(np.float64)
    middle = np.eye(m) if matrix is None else matrix
    roots = [np.diag(np.sqrt(q)) - np.outer(q, np.sqrt(q)) for q in p]
    found = np.zeros((n * m, n * m))
    for i, j in itertools.permutations(range(n), 2):
        found[i * m : (i + 1) * m, j * m : (j + 1) * m] = k[i, j] * roots[i].T @ middle @ roots[j]
    return found / (n - 1)


def implicit(p: np.ndarray, matrix: np.ndarray | None, **options):
    data = prepare(np.zeros(len(p), dtype=int), p)
    found, of = conditional(Task(data, PairOptions(KERNEL, matrix, **options)))
    assert of == "given the predictions"
    return found


PROBLEMS = [("diffuse", 23, 3), ("tied", 20, 4), ("saturated", 18, 4), ("rare", 40, 2), ("diffuse", 31, 2)]


@pytest.mark.parametrize("rank", [None, 1, 2])
@pytest.mark.parametrize(("name", "n", "m"), PROBLEMS)
def test_eigenvalues_are_those_of_the_dense_matrix(name, n, m, rank):
    p, matrix = predictions(name, n, m), None if rank is None else psd_matrix(m, rank)
    found, expected = implicit(p, matrix), dense(p, matrix)
    values = np.linalg.eigvalsh(expected)
    every = full_spectrum(found).leading
    assert found.size == (n if m == 2 or rank == 1 else n * m)
    largest = np.abs(values).max()
    padded = np.concatenate([every, np.zeros(len(values) - len(every))])
    assert np.sort(padded) == pytest.approx(values, abs=1e-12 * largest)
    assert found.squares == pytest.approx(np.sum(values**2), rel=1e-10)
    stored = found.stored()
    vectors = np.random.default_rng(0).normal(size=(found.size, 3))
    assert found.product(vectors) / found.scale == pytest.approx(stored @ vectors, abs=1e-5 * largest)
    leading = leading_spectrum(found, 10, lambda _: False)
    assert leading.leading[:2] == pytest.approx(every[:2], rel=1e-5)
    for power, accuracy in ((2, 1e-10), (3, 5e-3), (4, 5e-3)):
        size = np.sum(np.abs(values) ** power)
        assert leading.power_sum(power) == pytest.approx(np.sum(values**power), abs=accuracy * size)


@pytest.mark.parametrize("share", [0.5, 1e-3, 1e-6, 1e-9])
def test_of_a_rare_class_the_vectors_to_start_with_are_orthonormal(share):
    """And all that follow, however short the rare class's own is: then it takes a second round."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], size=90)
    p = np.concatenate([p * (1 - share), np.full((90, 1), share)], axis=1)
    found, expected = implicit(p, None), dense(p, None)
    blocks = []

    observed = replace(found, product=lambda v: blocks.append(v) or found.product(v))
    leading_spectrum(observed, 10, lambda _: False)
    assert len(blocks) > 2
    for block in blocks:
        assert block.T @ block == pytest.approx(np.eye(block.shape[1]), abs=1e-9)
    values = leading_spectrum(found, 3, lambda _: False).leading
    every = np.linalg.eigvalsh(expected)
    assert values[:2] == pytest.approx(every[np.argsort(-np.abs(every))][:2], rel=1e-4)


def test_a_space_that_the_first_product_does_not_leave():
    """That of the identity: nobody has asked for its eigenvalues by then."""
    n, asked = 300, []
    found = ImplicitMatrix(n, 1.0, n, np.copy, lambda: np.eye(n), np.zeros(1), 8, 1)
    values = leading_spectrum(found, 5, lambda known: asked.append(known) or False)
    assert values.leading == pytest.approx(np.ones(5)) and values.rest_squares == pytest.approx(n - 5)
    assert values.has_largest and not asked


@pytest.mark.parametrize("bandwidth", [0.15, 0.5])
@pytest.mark.parametrize(
    ("name", "n", "m"), [("diffuse", 100, 10), ("tied", 100, 10), ("saturated", 100, 10), ("diffuse", 300, 3)]
)
def test_far_tails_are_those_of_all_eigenvalues(name, n, m, bandwidth):
    """Down to log p of -60, also where predictions are equal and eigenvalues too."""
    data = prepare(np.zeros(n, dtype=int), predictions(name, n, m))
    found, _ = conditional(Task(data, PairOptions(Exponential(bandwidth=bandwidth))))
    law = full_spectrum(found).law()
    for deviations in (0.5, 2, 5, 30):
        statistic = deviations * law.var**0.5
        expected = law.logsf(statistic + law.mean)
        settled = limit_law(found, statistic)
        assert settled.logsf(statistic + settled.mean) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    "name", some(["equal", "two", "diffuse", "onehot", "rare class"], "equal", "onehot", "rare class")
)
def test_far_tails_of_equal_entries(name):
    """Of predictions that make equal entries, whose roundings would all be the same."""
    n, m, rng = 300, 4, np.random.default_rng(0)
    p = {
        "equal": np.tile([0.1, 0.2, 0.3, 0.4], (n, 1)),
        "two": np.array([[0.9, 0.05, 0.03, 0.02], [0.2, 0.25, 0.25, 0.3]])[rng.integers(2, size=n)],
        "diffuse": rng.dirichlet(np.ones(m), size=n),
        "onehot": 0.4 * np.eye(m)[rng.integers(m, size=n)] + 0.15,
        "rare class": rng.dirichlet([5, 5, 5, 0.05], size=n),
    }[name]
    task = Task(prepare(draw_labels(p, rng), p), PairOptions(Exponential(bandwidth=1.5)))
    found, _ = conditional(task)
    law = full_spectrum(found).law()
    for deviations in (0.5, 2, 5, 30):
        statistic = deviations * law.var**0.5
        task.__dict__["estimate"] = statistic / n  # that of other labels: in the far tail roundings have to be smaller
        found, _ = conditional(task)
        settled = limit_law(found, statistic)
        expected = law.logsf(statistic + law.mean)
        assert settled.logsf(statistic + settled.mean) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("reference", ["conditional", "residuals"])
def test_two_products_settle_a_pvalue_where_the_kernel_changes_slowly(reference, monkeypatch):
    """Of as many columns as random vectors alone take more of; and of fewer for features with few numbers."""
    widths = []

    def counted(problem):
        return replace(problem, product=lambda v: widths.append(v.shape[1]) or problem.product(v))

    p = predictions("diffuse", 400, 10)
    y = draw_labels(p, np.random.default_rng(0))
    module = kcalib.inference.spectrum
    monkeypatch.setattr(module, "leading_spectrum", lambda h, *rest: leading_spectrum(counted(h), *rest))
    kcalib.calibration_test(y, p, method=Spectrum(reference=reference), kernel=KERNEL)
    assert len(widths) == 2 and max(widths) <= (14 if reference == "conditional" else 16)


def test_sum_of_squares_is_half_the_variance_of_all_labels():
    """By enumeration of the labels; and the sum of cubes is one over triples of different samples."""
    p = np.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]])
    law = [
        (3 * oracle.unbiased(oracle.h_matrix(KERNEL, np.array(labels), p)), np.prod(p[np.arange(3), labels]))
        for labels in itertools.product(range(3), repeat=3)
    ]
    values, weights = np.array(law, dtype=np.float64).T
    found = implicit(p, None)
    assert 2 * found.squares == pytest.approx(weights @ values**2, rel=1e-12)
    assert weights @ values == pytest.approx(0, abs=1e-15)
    k = oracle.kernel_matrix(KERNEL, p, p).astype(np.float64)
    v = [np.diag(q) - np.outer(q, q) for q in p]
    triples = sum(
        k[a, b] * k[b, c] * k[c, a] * np.trace(v[a] @ v[b] @ v[c]) for a, b, c in itertools.permutations(range(3))
    )
    assert full_spectrum(found).power_sum(3) == pytest.approx(triples / 2**3, rel=1e-12)


@pytest.mark.parametrize("backend", ["sorted", "cpu", "array-api"])
def test_on_every_backend(backend):
    p = predictions("diffuse", 600, 2)
    values = [leading_spectrum(implicit(p, None, backend=name), 5, lambda _: False) for name in (backend, "cpu")]
    assert values[0].leading == pytest.approx(values[1].leading, rel=1e-6)
    assert values[0].rest_squares == pytest.approx(values[1].rest_squares, rel=1e-4)


@FEW_EVENTS
@pytest.mark.parametrize("method", [Spectrum, Pearson])
def test_labels_do_not_count(method):
    """Where the residuals hold no errors the published law is far too narrow, and that given the predictions is not."""
    rng = np.random.default_rng(3)
    p = predictions("saturated", 400, 10)
    y = draw_labels(p, rng)
    given, of_residuals = (
        kcalib.calibration_test(y, p, method=method(reference=reference)) for reference in ("conditional", "residuals")
    )
    assert "eigenvalues given the predictions" in given.null_law
    assert "eigenvalues of the residuals" in of_residuals.null_law
    assert given.statistic == of_residuals.statistic
    assert given.pvalue > 0.05


@pytest.mark.parametrize("prediction", ["normal", "poisson"])
def test_distributions(prediction):
    rng = np.random.default_rng(0)
    mean = rng.uniform(1, 4, size=120)
    y, p = (
        (rng.normal(mean), Normal(mean, np.ones(120))) if prediction == "normal" else (rng.poisson(mean), Poisson(mean))
    )
    results = [kcalib.calibration_test(y, p, method=Spectrum(reference=r)) for r in ("conditional", "residuals")]
    assert "of targets drawn from the predictions with seed 0" in results[0].null_law or prediction == "poisson"
    # Both laws are right here.
    assert results[0].pvalue == pytest.approx(results[1].pvalue, abs=0.1)


@FEW_EVENTS
def test_certain_predictions_that_are_wrong():
    y = np.array([0, 0, 1, 1])
    result = kcalib.calibration_test(y, np.eye(3)[2 - y], method="spectrum", kernel=KERNEL)
    assert (result.pvalue, result.log_pvalue) == (0.0, -np.inf)
    assert result.null_law == "none: predictions that are certain are wrong"


@pytest.mark.parametrize("seed", [0, 10])
def test_of_many_classes_leading_eigenvalues_settle_the_pvalue(seed):
    """They come in groups of nearly as many as there are classes; half the columns are off by 15 to 45 %."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(33, 50.0), size=130)
    y = draw_labels(p, rng)
    y[:6] = 0
    few, many = (
        kcalib.calibration_test(y, p, method=Spectrum(n_eigenvalues=count), kernel=Gaussian(bandwidth=0.3)).pvalue
        for count in (None, 120)
    )
    assert few == pytest.approx(many, rel=0.06)


def test_an_unknown_reference():
    with pytest.raises(ValueError, match="`reference` is 'labels', expected one of 'conditional', 'residuals'"):
        Spectrum(reference="labels")


@FEW_EVENTS
@pytest.mark.grid
@pytest.mark.parametrize("name", ["rare", "saturated"])
def test_levels(name):
    """Calibrated sets: the published form rejects far too many of them."""
    rng = np.random.default_rng(1)
    m, n = (2, 200) if name == "rare" else (5, 100)
    rejected = {"conditional": 0, "residuals": 0}
    for _ in range(50):
        if name == "rare":
            p = rng.beta(0.1, 100, size=n)
            p = np.stack([1 - p, p], axis=1)
        else:
            errors = 10.0 ** rng.uniform(-6, -2, size=n)
            p = np.tile(errors[:, None], (1, m))
            p[np.arange(n), rng.integers(m, size=n)] = 1 - (m - 1) * errors
        y = draw_labels(p, rng)
        for reference in rejected:
            result = kcalib.calibration_test(y, p, method=Spectrum(reference=reference, n_eigenvalues=10))
            rejected[reference] += result.pvalue <= 0.05
    assert rejected["conditional"] <= 50 * binomial_bounds(50, 0.08)[1]
    assert rejected["residuals"] > 2 * rejected["conditional"]


@pytest.mark.parametrize("squares", [0.25, 0.5436249914654229, 0.8574042765875693])
def test_a_rest_of_one_eigenvalue_is_a_chi_square_variable_whatever_its_root_is_rounded_to(squares):
    law = Eigenvalues(np.array([2.0]), squares, squares**1.5, squares**2).law()
    assert law.degrees_of_freedom == pytest.approx((1.0, 1.0), rel=1e-12) and min(law.degrees_of_freedom) >= 1
    # A third cumulant that is too large for the variance is cut to that of one degree of freedom.
    assert min(Eigenvalues(np.array([2.0]), squares, 3 * squares**1.5, squares**2).law().degrees_of_freedom) >= 1


def reflected(narrow: np.ndarray, m: int) -> np.ndarray:
    """Narrow numbers, shape (n, (m - 1) c), as m numbers of each sample that sum to 0: by Householder's reflection."""
    normal = np.full(m, m**-0.5)
    normal[-1] -= 1
    reflection = np.eye(m) - 2 * np.outer(normal, normal) / (normal @ normal)
    return np.einsum("ab,nbc->nac", reflection[:, :-1], narrow.reshape(len(narrow), m - 1, -1))


def test_no_digits_are_lost_where_predictions_are_saturated():
    """What the largest probability's column has: sqrt(p) (1 - p) of the likely label, in extended precision."""
    errors = 10.0 ** -np.arange(4, 14)
    p = np.stack([errors / 3, 1 - errors, 2 * errors / 3], axis=1)
    task = Task(prepare(np.zeros(10, dtype=int), p), PairOptions(Exponential(bandwidth=0.5)))
    roots = Vectors(finite_law(task.data, task.packed))
    likely = np.tile([[0.0], [1.0], [0.0]], (10, 1))
    others = p[:, 0].astype(np.longdouble) + p[:, 2]
    features = reflected(roots.apply_root(likely), 3)[:, :, 0]
    assert np.allclose(features[:, 1], np.sqrt(1 - others) * others, rtol=1e-14, atol=0)
    assert np.allclose(features[:, 0], -np.sqrt(1 - others) * p[:, 0], rtol=1e-14, atol=0)
    narrow = np.tile([-1 / 3, 2 / 3], (10, 1)) - 1 / 3 / (np.sqrt(3) - 1)  # of (0, 1, 0) less its mean
    apply_transposed_root = roots.apply_transposed_root(narrow).reshape(10, 3)  # the transpose
    assert np.allclose(apply_transposed_root[:, 1], np.sqrt(1 - others) * others, rtol=1e-14, atol=0)


def test_products_with_covariance_roots():
    """Against the matrices L_i; of saturated and certain predictions, too."""
    rng = np.random.default_rng(5)
    p = rng.dirichlet(np.full(4, 0.3), size=200)
    p[:2] = [[1, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]]
    p[2:50] = np.sort(10.0 ** rng.uniform(-14, -4, size=(48, 4)), axis=1)
    p[2:50, 3] = 1 - p[2:50, :3].sum(axis=1)
    task = Task(prepare(np.zeros(len(p), dtype=int), p), PairOptions(Exponential(bandwidth=0.5)))
    roots = Vectors(finite_law(task.data, task.packed))
    x, y, own = rng.standard_normal((800, 3)), rng.standard_normal((600, 3)), rng.random((200, 1))
    z = y.reshape(200, -1)
    matrices = np.sqrt(p)[:, :, None] * np.eye(4) - p[:, :, None] * np.sqrt(p)[:, None, :]
    products = reflected(roots.apply_root(x), 4)
    assert np.allclose(products, matrices @ x.reshape(-1, 4, 3), rtol=0, atol=1e-14)
    less = reflected(z - own * z[::-1], 4)
    expected = matrices.transpose(0, 2, 1) @ less
    assert np.allclose(roots.apply_transposed_root(z, (own, z[::-1])).reshape(less.shape), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("reference", ["conditional", "residuals"])
@pytest.mark.parametrize("bandwidth", [1e-3, 5e-5])
@pytest.mark.parametrize("backend", ["cpu", "array-api"])
def test_entries_far_below_the_diagonal_are_not_lost_beside_it(reference, bandwidth, backend):
    """Of a very narrow kernel, whose entries may be 1e-10 and less; the diagonal is 1."""
    rng = np.random.default_rng(3)
    p, y = rng.dirichlet(np.ones(3), size=300), rng.integers(3, size=300)
    kernel = Exponential(bandwidth=bandwidth)
    leading, every = (
        kcalib.calibration_test(
            y, p, kernel=kernel, method=Spectrum(count, reference=reference), backend=backend
        ).log_pvalue
        for count in (20, "all")
    )
    assert leading == pytest.approx(every, abs=SETTLED_NARROW)


@FEW_EVENTS
@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("error", [1e-90, 1e-156])
@pytest.mark.parametrize("wrong", [1, 300])
def test_errors_whose_squares_underflow_are_no_exceptions(m, error, wrong):
    p = np.full((300, m), error)
    p[:, 0] = 1 - (m - 1) * error
    y = np.zeros(300, dtype=int)
    y[:wrong] = 1
    for method in (Spectrum(20), Spectrum(20, reference="residuals"), Pearson(reference="residuals"), Gamma()):
        assert kcalib.calibration_test(y, p, kernel=KERNEL, method=method).log_pvalue <= 0
