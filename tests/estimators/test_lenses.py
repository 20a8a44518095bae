"""Lenses: the induced problem by hand and by literal loops, and every estimator and test through each of them."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
import scipy.stats
from few_events import FEW_EVENTS
from grid import sampled
from libraries import Library, MakeProblem
from problems import named_method

import kcalib
from kcalib._backend import arrays
from kcalib._command import cli
from kcalib._input.labels import prepare
from kcalib.lenses import Canonical, ClassWise, Confidence, Groups, Lens, TopK, TopLabel

LENSES = [
    Canonical(),
    TopLabel(),
    ClassWise(2),
    TopK(1),
    TopK(3),
    TopK(4),
    Groups([[0, 2], [1, 3, 4]]),
    Groups([[3], [4, 1], [0, 2]]),
]
BINARY = [lens for lens in LENSES if not isinstance(lens, Canonical) and lens not in (TopK(3), TopK(4), LENSES[-1])]


def seen(y: Any, p: Any, lens: Lens, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    data = prepare(y, p, lens=lens, **options)
    return arrays.to_host(data.labels), arrays.to_host(data.probabilities)


def pairs(y: Any, p: Any, lens: Lens) -> tuple[np.ndarray, np.ndarray]:
    """The induced problem, of confidences as one column."""
    labels, q = seen(y, p, lens)
    return labels, q[:, 1] if lens.has_confidence else q


def literal(label: int, row: list[float], lens: Lens) -> tuple[int, list[float]]:
    """What the lens makes of one sample, by the definition; sums without rounding."""
    classes = range(len(row))
    if isinstance(lens, Canonical):
        return label, row
    if isinstance(lens, (TopLabel, ClassWise)):
        chosen = lens.index if isinstance(lens, ClassWise) else row.index(max(row))
        label, row = int(label == chosen), [math.fsum(row[k] for k in classes if k != chosen), row[chosen]]
    elif isinstance(lens, TopK):
        order = sorted(classes, key=lambda k: (-row[k], k))
        label, row = (
            min(order.index(label), lens.k),
            [row[k] for k in order[: lens.k]] + [math.fsum(row[k] for k in order[lens.k :])],
        )
    else:
        groups = lens.groups
        (label,) = (g for g, members in enumerate(groups) if label in members)
        row = [math.fsum(row[k] for k in members) for members in groups]
    if len(row) == 2:
        row = [x / math.fsum(row) for x in row]
    return label, row


def with_ties(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Predictions of five classes in twentieths: many are tied, some 0 or 1."""
    rng = np.random.default_rng(seed)
    p = rng.multinomial(20, np.full(5, 0.2), size=n) / 20
    p[::7] = np.eye(5)[rng.integers(0, 5, size=len(p[::7]))]
    return rng.integers(0, 5, size=n), p


# -- the induced problem


P = [[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.4, 0.2, 0.4], [0.2, 0.4, 0.4]]
Y = [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("lens", "labels", "probabilities"),
    [
        (Canonical(), Y, P),
        # The first of two tied classes is the predicted one: the third sample is wrong.
        (TopLabel(), [1, 0, 0, 0], [[0.3, 0.7], [0.4, 0.6], [0.6, 0.4], [0.6, 0.4]]),
        (ClassWise(1), [0, 1, 0, 0], [[0.8, 0.2], [0.7, 0.3], [0.8, 0.2], [0.6, 0.4]]),
        (TopK(1), [0, 1, 1, 1], [[0.7, 0.3], [0.6, 0.4], [0.4, 0.6], [0.4, 0.6]]),
        (TopK(2), [0, 1, 1, 2], [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.4, 0.4, 0.2], [0.4, 0.4, 0.2]]),
        (Groups([[2], [0, 1]]), [1, 1, 0, 1], [[0.1, 0.9], [0.6, 0.4], [0.4, 0.6], [0.4, 0.6]]),
        (Groups([1, 0, 1]), [1, 0, 1, 1], [[0.2, 0.8], [0.3, 0.7], [0.2, 0.8], [0.4, 0.6]]),
    ],
)
def test_worked_by_hand(lens, labels, probabilities):
    y, p = seen(Y, P, lens)
    assert y.tolist() == labels
    assert p == pytest.approx(np.array(probabilities), abs=2e-16)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("lens", LENSES, ids=str)
def test_induced_problem_is_that_of_a_literal_loop(xp: Library, lens: Lens, dtype: str, make_problem: MakeProblem):
    for y, p in (make_problem(60, 5), with_ties(60, 1)):
        p = p.astype(dtype)
        labels, rows = zip(
            *(literal(int(a), [float(x) for x in b], lens) for a, b in zip(y, p, strict=True)), strict=True
        )
        data = prepare(xp.asarray(y), xp.asarray(p), lens=lens)
        assert data.lens == lens
        assert arrays.is_host(data.probabilities) == xp.on_host
        assert arrays.to_host(data.labels).tolist() == list(labels)
        # At most four roundings of a sum, one of the row's, one of the quotient.
        assert arrays.to_host(data.probabilities) == pytest.approx(np.array(rows), rel=6 * 2.0**-53, abs=0)


def test_many_samples_are_the_same_as_few(make_problem):
    """Samples are mapped some at a time."""
    y, p = make_problem(3000, 500)
    for lens in (TopLabel(), TopK(3), Groups(np.arange(500) % 3)):
        labels, probabilities = seen(y, p, lens)
        for i in (0, 1, 523, 524, 525, 2999):
            label, row = seen(y[i : i + 1], p[i : i + 1], lens)
            assert labels[i] == label[0]
            assert np.array_equal(probabilities[i], row[0])


def test_what_is_kept(make_problem):
    y, p = make_problem(50, 5)
    w = np.arange(50.0)
    for lens in LENSES[1:]:
        names = None if isinstance(lens, Canonical) else lens
        data = prepare(np.array(list("abcde"))[y], p.astype(np.float32), lens=lens, sample_weight=w, dtype="float32")
        assert (data.input_epsilon, data.dtype, data.classes, data.lens) == (2.0**-23, "float32", None, names)
        assert np.array_equal(data.sample_weight, w)
        assert data.probabilities.flags.c_contiguous and data.labels.dtype == np.int64
    data = prepare(y, p)
    assert (data.lens, data.probabilities.ctypes.data) == (Canonical(), p.ctypes.data)
    assert prepare(y, p, lens=Canonical()).probabilities.ctypes.data == p.ctypes.data


def test_tiny_complements_are_kept():
    p = [[1.0, 1e-20, 2e-20], [1e-12, 1 - 1e-12, 0.0]]
    assert seen([0, 0], p, TopLabel())[1][:, 0] == pytest.approx([3e-20, 1e-12], rel=2.0**-52, abs=0)
    assert kcalib.log_loss([0], p[1:], lens=TopLabel()) == pytest.approx(12 * math.log(10), rel=1e-15)
    single = np.array([[1.0, 3e-9, 0.0]], dtype=np.float32)
    others = seen([0], single, TopLabel())[1][0, 0]
    assert others == pytest.approx(float(single[0, 1]), rel=1e-8)


# -- on a line


def softmax32(n: int, m: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    powers = np.exp(2 * rng.standard_normal((n, m), dtype=np.float32))
    p = powers / powers.sum(axis=1, keepdims=True)
    return (rng.uniform(size=(n, 1)) > np.cumsum(p, axis=1, dtype=float)[:, :-1]).sum(axis=1), p


@pytest.mark.parametrize("m", [3, 40])
@pytest.mark.parametrize("lens", [TopLabel(), ClassWise(1), TopK(1), Groups([[0], [1, *range(2, 3)]])], ids=str)
def test_rows_of_a_float32_softmax_sum_to_1(m, lens):
    y, p = softmax32(5000, m, 0)
    if isinstance(lens, Groups):
        lens = Groups(np.arange(m) % 2)
    assert np.abs(p.sum(axis=1, dtype=float) - 1).max() > 1e-8
    pair = seen(y, p, lens)[1]
    gap = np.abs(1 - pair.max(axis=1) - pair.min(axis=1))
    assert gap.max() <= 2 * 2.0**-52


def test_large_top_label_problem_of_float32_takes_the_line():
    y, p = softmax32(200_000, 10, 1)
    result = kcalib.skce.result(y, p, lens=TopLabel())
    assert (result.backend, result.lens, result.n_classes) == ("sorted", "TopLabel()", 2)
    right, confidence = p.argmax(axis=1) == y, p.max(axis=1)
    total = p.sum(axis=1, dtype=float)
    plain = kcalib.skce(right, confidence / total)
    assert result.value == pytest.approx(plain, rel=1e-9, abs=1e-14)
    # The confidence as it came differs by d = |total - 1| at most, and so
    # H_ij = 2 exp(-sqrt(2) |c - c'| / b) r r' by 4 d (1 + sqrt(2) / b).
    bandwidth = float(result.kernel.removeprefix("Exponential(bandwidth=").rstrip(")"))
    bound = 4 * np.abs(total - 1).max() * (1 + math.sqrt(2) / bandwidth)
    assert bound < 1e-5
    kernel = kcalib.kernels.Exponential(bandwidth=bandwidth)
    same_kernel = kcalib.skce(y, p, lens=TopLabel(), kernel=kernel)
    assert same_kernel == pytest.approx(kcalib.skce(right, confidence, kernel=kernel), abs=bound)


@pytest.mark.parametrize("lens", [TopLabel(), ClassWise(1), TopK(1), Groups(np.arange(10) % 2)], ids=str)
def test_tests_of_float32_predictions_take_the_line(lens):
    y, p = softmax32(1000, 10, 2)
    for method in ("adaptive", "spectrum", "gamma", "block", "exact", "multiplier"):
        options = {"n_resamples": 99} if method in ("exact", "multiplier") else {}
        result = kcalib.calibration_test(y, p, lens=lens, method=named_method(method, **options), seed=0)
        assert result.backend == "sorted", method
    assert kcalib.compare(y, {"a": p, "b": p[:, ::-1]}, lens=lens).backend == "sorted"
    assert kcalib.ckce.result(y, p, lens=lens, kernel=kcalib.kernels.Exponential()).backend == "sorted"
    assert kcalib.evaluate(y, p, lens=lens).skce.backend == "sorted"


# -- every estimator and test

METRICS = {
    "skce": lambda y, p, **o: kcalib.skce.result(y, p, **o),
    "skce block": lambda y, p, **o: kcalib.skce.result(
        y, p, estimator=kcalib.methods.BlockEstimator(block_size=9), **o
    ),
    "skce float32": lambda y, p, **o: kcalib.skce(y, p, estimator="biased", dtype="float32", **o),
    "skce weights": lambda y, p, **o: kcalib.skce(y, p, sample_weight=np.arange(len(y)) % 3, **o),
    "jkce": lambda y, p, **o: kcalib.jkce.result(y, p, **o),
    "ckce": lambda y, p, **o: kcalib.ckce.result(y, p, **o),
    "ckce fourier": lambda y, p, **o: kcalib.ckce(y, p, method=kcalib.methods.Fourier(n_features=20), **o),
    "ucme": lambda y, p, **o: kcalib.ucme.result(y, p, **o),
    "evaluate": lambda y, p, **o: kcalib.evaluate(y, p, **o),
    "brier_score": kcalib.brier_score,
    "log_loss": kcalib.log_loss,
    "top_label_ece": lambda y, p, **o: kcalib.top_label_ece(y, p, n_bins=4, **o),
}
TESTS: dict[str, dict[str, Any]] = {
    "adaptive": {"n_resamples": 99},
    "exact": {"n_resamples": 99},
    "bootstrap": {"n_resamples": 99},
    "multiplier": {"n_resamples": 99},
    "spectrum": {},
    "pearson": {},
    "gamma": {},
    "block": {"block_size": 6},
    "linear": {},
    "distribution_free": {"estimator": "biased"},
    "cme": {"locations": 4},
    "consistency": {"n_resamples": 49, "resample_predictions": False},
}


def numbers(result: Any) -> Any:
    """All that does not depend on the clock, the lens and the names of classes."""
    if not dataclasses.is_dataclass(result):
        return result
    fields = vars(result).items()
    return {name: numbers(value) for name, value in fields if name not in ("seconds", "lens", "positive_class")}


@pytest.mark.parametrize(("metric", "lens"), sampled(METRICS, LENSES, 3))
def test_metric_through_a_lens_is_that_of_the_induced_problem(metric, lens, make_problem):
    y, p = make_problem(70, 5)
    result = METRICS[metric](y, p, lens=lens)
    if lens.has_confidence and metric in ("evaluate", "top_label_ece"):  # these turn round other binary problems
        expected = METRICS[metric](*pairs(y, p, lens), lens=Confidence())
        values = [getattr(value, "top_label_ece", value) for value in (result, expected)]
        assert values[0] == pytest.approx(values[1])
        return
    assert numbers(result) == numbers(METRICS[metric](*seen(y, p, lens)))
    if dataclasses.is_dataclass(result):
        assert result.lens == str(lens)
        assert METRICS[metric](y, p).lens == "Canonical()"


@FEW_EVENTS
@pytest.mark.parametrize(("method", "lens"), sampled(TESTS, LENSES, 3))
def test_test_through_a_lens_is_that_of_the_induced_problem(method, lens, make_problem):
    y, p = make_problem(70, 5)
    options = {"method": named_method(method, **TESTS[method]), "seed": 3}
    result = kcalib.calibration_test(y, p, lens=lens, **options)
    if lens.has_confidence and method in ("adaptive", "consistency"):
        expected = kcalib.calibration_test(*pairs(y, p, lens), lens=Confidence(), **options)
        assert (result.pvalue, result.statistic) == pytest.approx((expected.pvalue, expected.statistic))
        return
    assert numbers(result) == numbers(kcalib.calibration_test(*seen(y, p, lens), **options))
    assert result.lens == str(lens)


@pytest.mark.parametrize("lens", [ClassWise(2), Groups([[3], [4, 1], [0, 2]])], ids=str)
@pytest.mark.parametrize("metric", ["skce", "ece", "brier_score", "log_loss"])
def test_comparison_through_a_lens_is_that_of_the_induced_problems(metric, lens, make_problem):
    (y, a), (_, b) = make_problem(70, 5), make_problem(70, 5, seed=1)
    labels, first = seen(y, a, lens)
    result = kcalib.compare(y, {"a": a, "b": b}, metric=metric, lens=lens)
    assert numbers(result) == numbers(kcalib.compare(labels, {"a": first, "b": seen(y, b, lens)[1]}, metric=metric))
    assert result.lens == str(lens)
    assert f"lens: {lens}" in str(result)
    assert "lens" not in str(kcalib.compare(y, {"a": a, "b": b}, metric=metric))


def test_models_are_compared_by_their_own_top_labels(make_problem):
    (y, a), (_, b) = make_problem(300, 5), make_problem(300, 5, seed=1)
    losses = [((p.argmax(axis=1) == y) - p.max(axis=1)) ** 2 for p in (a, b)]
    result = kcalib.compare(y, {"a": a, "b": b}, metric="brier_score", lens=TopLabel())
    assert [m.value for m in result.models] == pytest.approx([loss.mean() for loss in losses], rel=1e-12)
    paired = scipy.stats.ttest_rel(*losses)
    assert result.difference("a", "b").pvalue == pytest.approx(paired.pvalue, rel=1e-10)
    by_skce = kcalib.compare(
        y,
        {"a": a, "b": b},
        lens=TopLabel(),
        metric=kcalib.methods.SKCE(kernel=kcalib.kernels.Exponential(bandwidth=0.2)),
    )
    for model, p in zip(by_skce.models, (a, b), strict=True):
        value = kcalib.skce(y, p, lens=TopLabel(), kernel=kcalib.kernels.Exponential(bandwidth=0.2))
        assert model.value == pytest.approx(value, rel=1e-12)


def test_labels_logits_and_names_come_before_the_lens(make_problem):
    y, p = make_problem(70, 3)
    expected = kcalib.skce(y, p, lens=ClassWise(2))
    names = ["fish", "cat", "owl"]
    assert kcalib.skce(np.array(names)[y], p, classes=names, lens=ClassWise(2)) == expected
    assert kcalib.skce(np.eye(3)[y], p, lens=ClassWise(2)) == expected
    assert kcalib.skce(y, np.log(p), from_logits=True, lens=ClassWise(2)) == pytest.approx(expected, rel=1e-10)
    labels = kcalib.ucme.result(np.array(names)[y], p, classes=names, lens=TopLabel()).test_labels
    assert set(labels) == {0, 1}


# -- what is said in terms of the induced problem


def test_matrices_on_labels_are_of_the_induced_classes(make_problem):
    y, p = make_problem(70, 5)
    matrix = [[2.0, 0.5], [0.5, 1.0]]
    for function in (kcalib.skce, kcalib.ckce, kcalib.ucme):
        value = function(y, p, target_kernel=matrix, lens=TopLabel())
        assert value == function(*seen(y, p, TopLabel()), target_kernel=matrix)
        with pytest.raises(ValueError, match=r"has shape \(5, 5\), expected \(2, 2\): .*with a lens, of the induced"):
            function(y, p, target_kernel=np.eye(5), lens=TopLabel())


def test_kernels_on_labels_are_between_the_numbers_of_induced_classes(make_problem):
    y, p = make_problem(70, 5)
    lens, kernel = Groups([[3], [4, 1], [0, 2]]), kcalib.kernels.Gaussian(bandwidth=1.0)
    expected = kcalib.skce(*seen(y, p, lens), target_kernel=kernel)
    for classes in (None, [10, 20, 30, 40, 60], list("abcde")):
        labels = y if classes is None else np.array(classes)[y]
        assert kcalib.skce(labels, p, target_kernel=kernel, lens=lens, classes=classes) == expected


def test_test_locations_are_of_the_induced_problem(make_problem):
    y, p = make_problem(70, 5)
    locations = {"locations": ([1, 0, 1], [0.4, 0.6, 0.9])}
    induced = seen(y, p, TopLabel())
    assert kcalib.ucme(y, p, lens=TopLabel(), **locations) == kcalib.ucme(*induced, **locations)
    resampling = {"n_resamples": 19, "resample_predictions": False}
    for method in (
        kcalib.methods.CME(**locations),
        kcalib.methods.Consistency("ucme", **resampling, **locations),
    ):
        options = {"method": method, "seed": 0}
        result = kcalib.calibration_test(y, p, lens=TopLabel(), **options)
        assert numbers(result) == numbers(kcalib.calibration_test(*induced, **options))
    with pytest.raises(ValueError, match=r"`locations\[1\]` has 5 classes, `y_pred` has 2 through TopLabel\(\)"):
        kcalib.ucme(y, p, lens=TopLabel(), locations=(y[:2], p[:2]))
    with pytest.raises(ValueError, match=r"`locations\[0\]\[1\]` is 4, expected a label 0..1"):
        kcalib.ucme(y, p, lens=TopLabel(), locations=([1, 4], [0.4, 0.6]))
    message = r"from_logits=True, but through TopLabel\(\) they are probabilities"
    with pytest.raises(ValueError, match=message):
        kcalib.ucme(y, np.log(p), from_logits=True, lens=TopLabel(), **locations)
    method = kcalib.methods.CME(from_logits=True, **locations)
    with pytest.raises(ValueError, match=message):
        kcalib.calibration_test(y, p, method=method, lens=TopLabel())


def test_accuracy_is_that_of_the_predicted_class():
    """Right, wrong, right, with the confidences 0.7, 0.4 and 0.45."""
    y, p = [0, 2, 1], [[0.7, 0.2, 0.1], [0.4, 0.3, 0.3], [0.3, 0.45, 0.25]]
    result = kcalib.evaluate(y, p, lens=TopLabel())
    assert (result.accuracy, result.n_classes) == (pytest.approx(2 / 3), 2)
    assert result.mean_confidence == pytest.approx((0.7 + 0.4 + 0.45) / 3)
    assert kcalib.evaluate(y, p).accuracy == pytest.approx(2 / 3)
    for lens in (TopLabel(), None):
        assert kcalib.top_label_ece(y, p, n_bins=1, lens=lens) == pytest.approx(abs(2 - 1.55) / 3)


# -- statistics


def confused(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The predicted class is right as often as its confidence says; if it is not, the least probable class is."""
    c = rng.uniform(0.5, 1, size=n)
    p = np.stack((c, 0.8 * (1 - c), 0.2 * (1 - c)), axis=1)
    shift = rng.integers(3, size=n)
    columns = (np.arange(3)[None, :] + shift[:, None]) % 3
    y = np.where(rng.uniform(size=n) < c, shift, (2 + shift) % 3)
    rows = np.empty_like(p)
    np.put_along_axis(rows, columns, p, axis=1)
    return y, rows


def calibrated(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    p = rng.dirichlet([0.5, 1.0, 2.0], size=n)
    return (rng.uniform(size=(n, 1)) > np.cumsum(p, axis=1)[:, :-1]).sum(axis=1), p


@pytest.mark.parametrize("draw", [pytest.param(calibrated, marks=pytest.mark.grid), confused])
def test_top_label_test_keeps_its_level(draw):
    rng, trials = np.random.default_rng(11), 120
    options = {"lens": TopLabel(), "method": kcalib.methods.Adaptive(39)}
    pvalues = [kcalib.calibration_test(*draw(60, rng), seed=t, **options).pvalue for t in range(trials)]
    rejected = sum(pvalue <= 0.05 for pvalue in pvalues)  # the ranks 1 and 2 of 40
    low, high = scipy.stats.binom.ppf([1e-4, 1 - 1e-4], trials, 0.05)
    assert low <= rejected <= high


def test_two_classes_whose_errors_cancel_in_the_top_label():
    """Right in 91 % of the cases at 0.8125 for the second class, and in 71 % at 0.8125 for the first."""
    rng = np.random.default_rng(7)
    second = np.where(np.arange(2000) % 2 == 0, 0.8125, 0.1875)  # whose complements have no rounding
    y = rng.uniform(size=2000) < np.where(second > 0.5, 0.9125, 0.2875)
    assert (
        kcalib.calibration_test(y, second, lens=TopLabel(), kernel=kcalib.kernels.Gaussian(0.1), seed=0).pvalue > 0.05
    )
    assert kcalib.calibration_test(y, second, lens=ClassWise(1), seed=0).pvalue < 1e-6
    assert kcalib.calibration_test(y, second, seed=0).pvalue < 1e-6


def test_calibrated_in_the_top_label_but_not_canonically():
    y, p = confused(500, np.random.default_rng(0))
    assert kcalib.calibration_test(y, p, method="gamma").pvalue < 1e-6
    assert kcalib.calibration_test(y, p, lens=TopLabel(), seed=0).pvalue > 0.05
    assert kcalib.calibration_test(y, p, lens=TopK(2), method="gamma").pvalue < 1e-6


def test_every_lens_lets_a_calibrated_model_pass_and_no_over_confident_one():
    rng = np.random.default_rng(6)
    p = rng.dirichlet(np.ones(5), size=300)
    y = (rng.uniform(size=(300, 1)) > np.cumsum(p, axis=1)[:, :-1]).sum(axis=1)
    sharp = p**4 / np.sum(p**4, axis=1, keepdims=True)
    for lens in LENSES:
        assert kcalib.calibration_test(y, p, lens=lens, seed=0).pvalue > 0.01, lens
        assert kcalib.calibration_test(y, sharp, lens=lens, method="gamma").pvalue < 1e-3, lens


# -- objects and errors


def test_lenses_are_values():
    for lens in LENSES:
        again = pickle.loads(pickle.dumps(lens))
        assert again == lens and hash(again) == hash(lens) and eval(repr(lens)) == lens
        with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
            lens.k = 3
    assert len({*LENSES, TopK(np.int64(3)), ClassWise(np.int32(2))}) == len(LENSES)
    assert repr(TopK(np.int64(3))) == "TopK(k=3)"
    assert repr(Groups([[3, 1], [0, 2]])) == "Groups(groups=((1, 3), (0, 2)))"
    assert kcalib.lenses.TopLabel is TopLabel


@pytest.mark.parametrize(
    "groups",
    [
        [[0, 1], [2]], ((1, 0), (2,)), [{0, 1}, [2]], [range(2), [2]], [0, 0, 1], (0, 0, 1), np.array([0, 0, 1]),
        [np.array([0, 1]), np.array([2])], np.array([0, 0, 1], dtype=np.uint8),
    ],
    ids=str,
)  # fmt: skip
def test_forms_of_groups(groups):
    assert Groups(groups).groups == ((0, 1), (2,))


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_groups_of_other_libraries(library):
    array = pytest.importorskip(library).asarray
    assert Groups(array([0, 0, 1])) == Groups([array([0, 1]), array([2])]) == Groups([[0, 1], [2]])


@pytest.mark.parametrize(
    ("groups", "error", "message"),
    [
        (3, TypeError, "`groups` is 3, expected a sequence of sequences of columns, or one group number for each"),
        ("012", TypeError, "`groups` is '012', expected a sequence"),
        ({0, 1, 2}, TypeError, r"`groups` is \{0, 1, 2\}, expected a sequence"),
        ([], ValueError, "`groups` has fewer than 2 groups, and one alone has probability 1"),
        ([[0, 1, 2]], ValueError, "`groups` has fewer than 2 groups, and one alone has probability 1"),
        ([0, 0, 0], ValueError, "`groups` has fewer than 2 groups, and one alone has probability 1"),
        ([[0, 1], 2], TypeError, r"`groups\[1\]` is 2, expected a sequence of columns, as other groups are"),
        ([[0, 1], "23"], TypeError, r"`groups\[1\]` is '23', expected a sequence of columns"),
        ([[0, 1], []], ValueError, r"`groups\[1\]` is empty, expected at least one class; leave the group out"),
        ([[0, 1], [2, 0]], ValueError, r"class 0 is in `groups\[0\]` and `groups\[1\]`; put every class into exactly"),
        ([[0, 1, 1], [2]], ValueError, r"class 1 is twice in `groups\[0\]`"),
        ([[0, 1], [3]], ValueError, "class 2 is in none of the `groups`; put every class into exactly one group"),
        ([[0, -1], [1]], ValueError, r"`groups\[0\]\[1\]` is -1, expected an integer at least 0: the column of"),
        ([[0, 1.0], [2]], TypeError, r"`groups\[0\]\[1\]` is 1.0, expected an integer"),
        ([["cat"], ["dog"]], TypeError, r"`groups\[0\]\[0\]` is 'cat', expected an integer"),
        ([[False], [True]], TypeError, r"`groups\[0\]\[0\]` is False, expected an integer"),
        ([0, 2, 2], ValueError, "no class has the group number 1 in `groups`; number the groups from 0 without gaps"),
        ([1, 1, 2], ValueError, "no class has the group number 0 in `groups`"),
        ([0, -1, 1], ValueError, r"`groups\[1\]` is -1, expected an integer at least 0: a group number"),
        ([0, "a"], TypeError, r"`groups\[1\]` is 'a', expected an integer"),
    ],
)
def test_bad_groups(groups, error, message):
    with pytest.raises(error, match="^" + message):
        Groups(groups)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: TopK(0), ValueError, "^`k` is 0, expected an integer at least 1"),
        (lambda: TopK(2.0), TypeError, "^`k` is 2.0, expected an integer"),
        (lambda: ClassWise(-1), ValueError, "^`index` is -1, expected an integer at least 0: the column of a class"),
        (lambda: ClassWise("cat"), TypeError, "^`index` is 'cat', expected an integer"),
    ],
)
def test_bad_lenses(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("lens", "message"),
    [
        (ClassWise(3), "^`index` is 3, expected an integer between 0 and 2: the column of a class of `y_pred`"),
        (TopK(3), "^`k` is 3, expected an integer between 1 and 2: `y_pred` has 3 classes"),
        (Groups([[0], [1]]), "^`groups` has the classes 0..1, `y_pred` 0..2: class 2 is in none of the groups; put"),
        (Groups([[0, 3], [1, 2]]), "^`groups` has the classes 0..3, `y_pred` 0..2: there is no class 3; leave out"),
    ],
)
def test_lenses_that_do_not_fit_the_predictions(lens, message):
    for function in (kcalib.skce, kcalib.brier_score, kcalib.evaluate):
        with pytest.raises(ValueError, match=message):
            function(Y, P, lens=lens)
    with pytest.raises(ValueError, match=r"^`y_preds\['a'\]`: " + message.removeprefix("^")):
        kcalib.compare(Y, {"a": P, "b": P}, lens=lens)


@pytest.mark.parametrize("lens", ["top-label", TopLabel, 1, [TopLabel()]])
def test_what_is_no_lens(lens):
    for function in (kcalib.skce, kcalib.calibration_test, kcalib.log_loss):
        with pytest.raises(TypeError, match=r"^`lens` is .*, expected a lens such as kcalib.lenses.TopLabel\(\)$"):
            function(Y, P, lens=lens)


# -- the command


@pytest.fixture
def files(tmp_path, make_problem):
    names = []
    for seed in (0, 1):
        np.savez(tmp_path / f"model{seed}.npz", labels=make_problem(80, 5)[0], probs=make_problem(80, 5, seed)[1])
        names.append(str(tmp_path / f"model{seed}.npz"))
    return names


OPTIONS = {
    "canonical": Canonical(),
    "top-label": TopLabel(),
    "class-wise:3": ClassWise(3),
    "top-k:3": TopK(3),
    "groups:0,1/2,3,4": Groups([[0, 1], [2, 3, 4]]),
}


@pytest.mark.parametrize("text", OPTIONS)
def test_command_evaluates_through_a_lens(files, capsys, text):
    assert cli.main(["evaluate", files[0], "--lens", text, "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    content = np.load(files[0])
    expected = kcalib.evaluate(content["labels"], content["probs"], lens=OPTIONS[text])
    assert model["lens"] == model["test"]["lens"] == str(OPTIONS[text])
    assert (model["accuracy"], model["skce"]["value"]) == (expected.accuracy, expected.skce.value)
    assert model["test"]["pvalue"] == expected.test.pvalue
    assert cli.main(["evaluate", files[0], "--lens", text]) == 0
    assert (f"lens: {OPTIONS[text]}" in capsys.readouterr().out) == (text != "canonical")
    assert cli.main(["evaluate", files[0], "--lens", text, "--csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["lens"], float(row["skce"])) == (str(OPTIONS[text]), expected.skce.value)


@pytest.mark.parametrize("text", OPTIONS)
def test_command_compares_through_a_lens(files, capsys, text):
    """The labels in the files agree; the top labels of the models need not."""
    assert cli.main(["compare", *files, "--lens", text, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["comparison"]
    contents = [np.load(file) for file in files]
    models = {f"model{i}": content["probs"] for i, content in enumerate(contents)}
    expected = kcalib.compare(contents[0]["labels"], models, lens=OPTIONS[text])
    assert found["lens"] == str(OPTIONS[text])
    assert [m["value"] for m in found["models"]] == [m.value for m in expected.models]
    assert found["differences"][0]["pvalue"] == expected.differences[0].pvalue
    assert cli.main(["compare", *files, "--lens", text, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["lens"] for row in rows} == {str(OPTIONS[text])}


def test_command_draws_through_a_lens(files, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert cli.main(["evaluate", files[0], "--lens", "top-label", "--plot", str(tmp_path / "out.svg")]) == 0
    assert "TopLabel()" in (tmp_path / "out.svg").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("top", "'top', expected canonical, top-label, class-wise:COLUMN, top-k:K or groups:0,1/2,3,4"),
        ("top-label:3", "'top-label:3', expected canonical"),
        ("class-wise", "'class-wise': '', expected an integer at least 0"),
        ("class-wise:cat", "'class-wise:cat': 'cat', expected an integer at least 0"),
        ("top-k:0", "'top-k:0': '0', expected an integer at least 1"),
        ("groups:0,1", "'groups:0,1': `groups` has fewer than 2 groups, and one alone has probability 1"),
        ("groups:0,1/", "'groups:0,1/': '', expected an integer at least 0"),
        ("groups:0,1/1,2", "'groups:0,1/1,2': class 1 is in `groups[0]` and `groups[1]`"),
        ("groups:0,1/3", "'groups:0,1/3': class 2 is in none of the `groups`"),
    ],
)
def test_command_refuses_what_is_no_lens(files, capsys, text, message):
    for command in ("evaluate", "compare"):
        assert cli.main([command, *files, "--lens", text]) == 2
        assert f"argument --lens: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class-wise:5", "the column of --lens class-wise is 5, expected an integer between 0 and 4"),
        ("top-k:5", "the number of --lens top-k is 5, expected an integer between 1 and 4"),
        ("groups:0,1/2", "--lens groups has the classes 0..2, `y_pred` 0..4: class 3 is in none of the groups"),
    ],
)
def test_command_says_which_lens_does_not_fit(files, capsys, text, message):
    for command in ("evaluate", "compare"):
        assert cli.main([command, *files, "--lens", text]) == 1
        assert message in capsys.readouterr().err
