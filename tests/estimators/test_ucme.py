"""UCME: by hand, against a literal oracle, on every array library; test locations and their messages."""

from __future__ import annotations

import dataclasses
import json
import pickle
import warnings

import numpy as np
import pytest
from oracle import literal_differences
from problems import KERNELS, locations, psd_matrix, softmax_problem

import kcalib
from kcalib.kernels import Exponential, Gaussian

KERNEL = Exponential(bandwidth=0.5)


def test_two_samples_by_hand():
    """Samples (0.8, 0.2) of class 0 and (0.4, 0.6) of class 0; locations at ((0.5, 0.5), 0) and ((1, 0), 1).

    Distances to the first location are sqrt(2) times 0.3 and 0.1, to the second 0.2 and 0.6; the residuals of class 0
    are 0.2 and 0.6, those of class 1 their negatives.
    """
    root = np.sqrt(2)
    first = (np.exp(-0.3 * root) * 0.2 + np.exp(-0.1 * root) * 0.6) / 2
    second = -(np.exp(-0.2 * root) * 0.2 + np.exp(-0.6 * root) * 0.6) / 2
    result = kcalib.ucme.result(
        [0, 0],
        [[0.8, 0.2], [0.4, 0.6]],
        kernel=Exponential(bandwidth=1.0),
        locations=([0, 1], [[0.5, 0.5], [1.0, 0.0]]),
    )
    assert result.differences == pytest.approx((first, second), rel=1e-14)
    assert result.value == pytest.approx((first**2 + second**2) / 2, rel=1e-14)


def test_locations_of_two_classes_are_columns_or_rows():
    y, p = [0, 1, 1, 0], [0.2, 0.9, 0.4, 0.6]
    shapes = [0.3, 0.6], [[0.3], [0.6]], [[0.7, 0.3], [0.4, 0.6]]
    assert len({kcalib.ucme(y, p, locations=([0, 1], shape)) for shape in shapes}) == 1


@pytest.mark.parametrize("m", [3, 10])
def test_many_samples_have_the_same_bits_for_any_number_of_threads(m):
    y, p = softmax_problem(3001, m)
    found = [kcalib.ucme.result(y, p, kernel=KERNEL, threads=threads) for threads in (1, 2, 5)]
    assert found[0].differences == found[1].differences == found[2].differences
    at, chosen = np.array(found[0].test_predictions), np.array(found[0].test_labels)
    kernel = np.exp(-np.linalg.norm(at[:, None] - p, axis=2) / 0.5)
    expected = np.mean(kernel * ((y == chosen[:, None]) - p[:, chosen].T), axis=1)
    assert found[0].differences == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("options", [{}, {"target_kernel": np.eye(3)}, {"dtype": "float32"}, {"backend": "array-api"}])
@pytest.mark.parametrize("given", [{}, locations(4, 3)])
@pytest.mark.parametrize("kernel", [KERNEL, None])
def test_what_is_wrong_with_samples_is_said_whenever_they_are_looked_at(kernel, given, options):
    y, p = softmax_problem(200, 3)
    for i in (0, 117, 199):
        for value, message in (
            (np.nan, rf"`y_pred\[{i}, 1\]` is nan, expected a finite probability"),
            (-np.inf, rf"`y_pred\[{i}, 1\]` is -inf, expected a finite probability"),
            (-0.25, rf"`y_pred\[{i}, 1\]` is -0.25, expected a probability between 0 and 1"),
            (1.0, rf"`y_pred\[{i}\]` sums to 1"),
        ):
            wrong = p.copy()
            wrong[i, 1] = value
            with pytest.raises(ValueError, match=message):
                kcalib.ucme(y, wrong, kernel=kernel, **given, **options)
        for label in (-1, 3, 2**62, -(2**62)):
            wrong = y.copy()
            wrong[i] = label
            with pytest.raises(ValueError, match=rf"`y_true\[{i}\]` is {label}, expected a label 0..2"):
                kcalib.ucme(wrong, p, kernel=kernel, **given, **options)


def test_bad_predictions_are_told_of_without_warnings():
    y, p = softmax_problem(50, 3)
    p[0] = [1.7e308, 1.7e308, np.inf]  # of one of the locations
    with np.errstate(all="raise"), pytest.raises(ValueError, match=r"`y_pred\[0, 2\]` is inf"):
        kcalib.ucme(y, p, kernel=KERNEL, locations=50)


@pytest.mark.parametrize("options", [{}, {"backend": "array-api"}, {"locations": 65}])
def test_a_warning_is_given_once(options):
    y, p = softmax_problem(50, 3)
    kernel = Gaussian(bandwidth=0.5, metric="cityblock")
    for rows in (p, np.where(np.arange(3) == 1, -0.0, [0.25, 0, 0.75]) + np.zeros((50, 1)) * -1):
        with pytest.warns(kcalib.IndefiniteKernelWarning) as caught:
            kcalib.ucme(y, rows, kernel=kernel, **options)
        assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=r"`y_true\[\d+\]` is 3"):
            kcalib.ucme(y + 1, p, kernel=kernel, **options)


@pytest.mark.parametrize("row", [[np.nan, 0.5], [40.0, 60.0]])
def test_bad_predictions_are_not_an_operators_fault(row):
    p = np.full((600, 2), 0.5)
    p[3] = row
    with pytest.raises(ValueError, match=r"`y_pred\[3, 0\]` is .*expected a"):
        kcalib.ucme(np.zeros(600, int), p, kernel=KERNEL, backend="sorted", locations=600)


def test_matrix_by_hand():
    """M e for e = (0.2, -0.2) and M = [[2, 1], [1, 3]] is (0.2, -0.4); the kernel is 1 at distance 0."""
    given = {"locations": ([0, 1], [[0.8, 0.2], [0.8, 0.2]])}
    matrix = [[2.0, 1.0], [1.0, 3.0]]
    result = kcalib.ucme.result([0], [[0.8, 0.2]], kernel=KERNEL, target_kernel=matrix, **given)
    assert result.differences == pytest.approx((0.2, -0.4), rel=1e-14)
    assert result.target_kernel == "matrix of rank 2"


@pytest.mark.filterwarnings("ignore::kcalib.IndefiniteKernelWarning")
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("m", "rank"), [(2, None), (3, 2), (12, None)])
def test_agrees_with_the_oracle(name, m, rank):
    y, p = softmax_problem(60, m, scale=1.0)
    matrix = None if rank is None else psd_matrix(m, rank)
    given = locations(7, m)
    expected = literal_differences(KERNELS[name], y, p, *given["locations"], matrix)
    target = "delta" if matrix is None else matrix
    # Terms are at most the kernel (3.5) times |M e|; with 12 features distances come from products.
    tolerance = 3.5 * (1.0 if matrix is None else 2 * np.abs(matrix).max()) * np.finfo(float).eps
    for backend in ("cpu", "array-api"):
        result = kcalib.ucme.result(y, p, kernel=KERNELS[name], target_kernel=target, backend=backend, **given)
        np.testing.assert_allclose(result.differences, expected.astype(float), rtol=0, atol=64 * tolerance)
        assert result.value == pytest.approx(float(np.mean(expected**2)), rel=1e-10)
        assert result.backend == backend


@pytest.mark.parametrize("kernel", [KERNEL, KERNELS["mixed"]])
def test_sorted_line(kernel):
    y, p = softmax_problem(700, 2, scale=1.0)
    given = locations(600, 2)
    expected = kcalib.ucme.result(y, p, kernel=kernel, backend="cpu", **given)
    if kernel is KERNEL:
        assert kcalib.ucme.result(y, p, kernel=kernel, **given).backend == "sorted"
        result = kcalib.ucme.result(y, p, kernel=kernel, backend="sorted", **given)
        np.testing.assert_allclose(result.differences, expected.differences, rtol=0, atol=1e-14)
    else:
        with pytest.raises(ValueError, match="backend='sorted' cannot take this problem"):
            kcalib.ucme(y, p, kernel=0.5 * KERNELS["linear"], backend="sorted", **given)


@pytest.mark.parametrize("m", [2, 4])
def test_array_libraries(xp, m):
    y, p = softmax_problem(50, m, scale=1.0)
    result = kcalib.ucme.result(xp.asarray(y), xp.asarray(p), kernel=KERNEL)
    assert result.backend == xp.backend
    # The same random locations, wherever the predictions are.
    host = kcalib.ucme.result(y, p, kernel=KERNEL)
    assert result.test_labels == host.test_labels and result.test_predictions == host.test_predictions
    expected = literal_differences(KERNEL, y, p, result.test_labels, np.array(result.test_predictions))
    np.testing.assert_allclose(result.differences, expected.astype(float), rtol=0, atol=1e-14)
    given = locations(5, m)
    there = kcalib.ucme(
        xp.asarray(y), xp.asarray(p), kernel=KERNEL, locations=tuple(map(xp.asarray, given["locations"]))
    )
    beside = kcalib.ucme(xp.asarray(y), xp.asarray(p), kernel=KERNEL, **given)
    assert there == beside == pytest.approx(kcalib.ucme(y, p, kernel=KERNEL, **given), rel=1e-12)


@pytest.mark.parametrize("m", [3, 12])
def test_float32(xp, m):
    y, p = softmax_problem(80, m, scale=1.0)
    p = p.astype(np.float32)
    given = locations(6, m)
    result = kcalib.ucme.result(xp.asarray(y), xp.asarray(p), kernel=KERNEL, dtype="float32", **given)
    exact = p.astype(float)
    expected = literal_differences(KERNEL, y, exact, *given["locations"])
    # The distance is rounded to float32 before it is divided by 0.5: a few times eps.
    np.testing.assert_allclose(result.differences, expected.astype(float), rtol=0, atol=16 * np.finfo("f4").eps)
    assert result.dtype == "float32"


def test_random_locations_are_drawn_as_documented():
    y, p = softmax_problem(30, 4)
    result = kcalib.ucme.result(y, p, locations=8, seed=3)
    rng = np.random.default_rng(3)
    rows = rng.choice(30, 8, replace=False)
    u = rng.uniform(size=8)
    labels = [int(np.sum(np.cumsum(p[row]) <= share)) for row, share in zip(rows, u, strict=True)]
    assert result.test_predictions == tuple(map(tuple, p[rows].tolist()))
    assert result.test_labels == tuple(labels)
    assert (result.seed, result.n_locations) == (3, 8)
    assert kcalib.ucme(y, p, locations=8, seed=3) == result.value != kcalib.ucme(y, p, locations=8, seed=4)
    assert kcalib.ucme.result(y, p).n_locations == 10
    more = kcalib.ucme.result(y, p, locations=40)  # more than samples: with replacement
    assert more.n_locations == 40 and len(set(more.test_predictions)) <= 30


def test_random_locations_do_not_depend_on_the_labels():
    y, p = softmax_problem(30, 4)
    one, other = (kcalib.ucme.result(labels, p) for labels in (y, (y + 1) % 4))
    assert (one.test_predictions, one.test_labels) == (other.test_predictions, other.test_labels)


def test_random_locations_have_labels_of_positive_probability():
    p = np.zeros((200, 5))
    p[:, 1] = p[:, 3] = 0.5
    result = kcalib.ucme.result(np.full(200, 1), p, kernel=KERNEL, locations=200)
    assert set(result.test_labels) == {1, 3}


def test_locations_take_the_forms_of_the_data():
    y, p = softmax_problem(40, 2)
    given = locations(6, 2)
    expected = kcalib.ucme(y, p, kernel=KERNEL, **given)
    labels, predictions = given["locations"]
    second = {"locations": (labels, predictions[:, 1])}
    # 1 - p is rounded.
    assert kcalib.ucme(y, p[:, 1], kernel=KERNEL, **second) == pytest.approx(expected, rel=1e-12)
    one_hot = {"locations": (np.eye(2)[labels], predictions)}
    assert kcalib.ucme(y, p, kernel=KERNEL, **one_hot) == expected
    logits = {"locations": (labels, np.log(predictions))}
    assert kcalib.ucme(y, np.log(p), kernel=KERNEL, from_logits=True, **logits) == pytest.approx(expected, rel=1e-12)
    names = np.array(["no", "yes"])
    strings = {"locations": (names[labels], predictions)}
    result = kcalib.ucme.result(names[y], p, kernel=KERNEL, **strings)
    assert result.value == expected
    assert result.test_labels == tuple(names[labels].tolist())
    assert result.seed is None


def test_one_location_and_one_class_of_locations_suffice():
    y, p = softmax_problem(1, 3)
    value = kcalib.ucme(y, p, kernel=KERNEL, locations=1)
    assert value >= 0
    right = np.eye(3)[[0, 1, 2]]
    assert kcalib.ucme([0, 1, 2], right, kernel=KERNEL) == 0.0


def test_result_is_plain_frozen_python():
    y, p = softmax_problem(40, 3)
    result = kcalib.ucme.result(y, p, kernel=KERNEL)
    assert float(result) == result.value == kcalib.ucme(y, p, kernel=KERNEL)
    assert pickle.loads(pickle.dumps(result)) == result
    assert json.loads(json.dumps(dataclasses.asdict(result)))["value"] == result.value
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.value = 1.0
    assert "test_predictions" not in repr(result)
    assert result.kernel == "Exponential(bandwidth=0.5)" and result.bandwidth_source == "given"


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_bit(threads):
    y, p = softmax_problem(500, 12)
    given = locations(150, 12)
    one = kcalib.ucme.result(y, p, kernel=KERNEL, threads=1, **given)
    assert kcalib.ucme.result(y, p, kernel=KERNEL, threads=threads, **given).differences == one.differences


def test_order_of_n_under_calibration():
    """n UCME has the mean that the variances of single samples give, (1/J) sum_j E z_j^2, for calibrated labels."""
    rng = np.random.default_rng(8)
    given = locations(5, 3)
    values, means = [], []
    for seed in range(400):
        y, p = softmax_problem(30, 3, seed=rng.integers(2**31) + seed, scale=1.0)
        values.append(30 * kcalib.ucme(y, p, kernel=KERNEL, **given))
        k = np.exp(-np.linalg.norm(given["locations"][1][:, None] - p[None], axis=2) / 0.5)
        share = p[:, given["locations"][0]].T
        means.append(np.mean(k**2 * share * (1 - share)))
    difference = np.array(values) - np.array(means)
    assert abs(difference.mean()) < 4 * difference.std(ddof=1) / np.sqrt(400)


def test_indefinite_kernel_warns_at_the_caller():
    y, p = softmax_problem(10, 3)
    with pytest.warns(kcalib.IndefiniteKernelWarning) as caught:
        kcalib.ucme(y, p, kernel=Gaussian(bandwidth=0.5, metric="cityblock"))
    assert caught[0].filename == __file__


P3 = [[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"locations": 0}, ValueError, "`locations` is 0, expected an integer between 1 and 100000"),
        ({"locations": 2.5}, TypeError, "`locations` is 2.5, expected an integer"),
        ({"seed": -1}, ValueError, "`seed` is -1, expected an integer at least 0"),
        ({"seed": "x"}, TypeError, "`seed` is 'x', expected an integer"),
        ({"locations": ([0, 1], P3), "seed": 1}, ValueError, "`seed` is 1, but `locations` are given"),
        ({"locations": ([0], [[0.5, 0.5]])}, ValueError, r"`locations\[1\]` has 2 classes, `y_pred` has 3"),
        ({"locations": ([0, 1], [0.5, 0.5])}, ValueError, r"`locations\[1\]` has 2 classes, `y_pred` has 3"),
        ({"locations": ([0], [[0.5, 0.5, 0.5]])}, ValueError, r"`locations\[1\]\[0\]` sums to 1.5, expected 1"),
        (
            {"locations": ([0], [[np.nan, 0.5, 0.5]])},
            ValueError,
            r"`locations\[1\]\[0, 0\]` is nan, expected a finite probability",
        ),
        ({"locations": ([0, 3], P3)}, ValueError, r"`locations\[0\]\[1\]` is 3, expected a label 0..2"),
        ({"locations": ([0], P3)}, ValueError, r"`locations\[0\]` has 1 labels, `locations\[1\]` 2"),
        ({"locations": ([0], "x")}, (TypeError, ValueError), r"`locations\[1\]`"),
        ({"locations": ([], [])}, ValueError, r"`locations\[1\]` (is empty|has)"),
        ({"kernel": "rbf"}, TypeError, "`kernel` is 'rbf', expected a kernel"),
        ({"backend": "opencl"}, ValueError, "`backend` is 'opencl', expected one of"),
    ],
)
def test_messages(options, error, message):
    y, p = softmax_problem(20, 3)
    with pytest.raises(error, match=message):
        kcalib.ucme(y, p, **options)


@pytest.mark.parametrize("m", [2, 5, 8])
def test_residuals_are_made_where_they_are_packed(m, monkeypatch):
    """They are not kept, and have the bits of those that are; sums at locations have the probabilities themselves."""
    rng = np.random.default_rng(m)
    p = rng.dirichlet(np.full(m, 0.3), size=500)
    p[:9] = np.eye(m)[rng.integers(0, m, size=9)]
    y = rng.integers(0, m, size=500)
    kernel = kcalib.kernels.Exponential(bandwidth=0.5)

    def values():
        blocks = kcalib.skce(y, p, kernel=kernel, estimator="block", backend="cpu")
        return kcalib.ucme(y, p, kernel=kernel), blocks

    with monkeypatch.context() as patched:
        patched.setattr("kcalib._pairs.problem.Side.has_residual_features", property(lambda side: False))
        kept = values()
    monkeypatch.setattr("kcalib._packing.labels.points_and_residuals", None)
    one_pass, blocks = values()
    assert blocks == kept[1]
    assert one_pass == pytest.approx(kept[0], rel=1e-13)
