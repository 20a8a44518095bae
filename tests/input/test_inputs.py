"""What labels and predictions may look like, and what is said about those that are wrong."""

from __future__ import annotations

import functools
import itertools
import math
import re
import warnings
from typing import Any

import numpy as np
import pytest
from grid import cells
from libraries import Library, MakeProblem

import kcalib
from kcalib import _input
from kcalib._backend import arrays
from kcalib.kernels import Exponential, Gaussian, Linear
from kcalib.regression import TemperatureCalibration

Y = [0, 1, 2, 1]
P = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.2, 0.5, 0.3]]
EXPONENTIAL = Exponential(bandwidth=1.0)

FUNCTIONS: dict[str, Any] = {
    "skce": kcalib.skce,
    "calibration_test": functools.partial(kcalib.calibration_test, seed=0),
    "evaluate": kcalib.evaluate,
    "brier_score": kcalib.brier_score,
    "log_loss": kcalib.log_loss,
    "top_label_ece": kcalib.top_label_ece,
}


def changed(values: Any, index: Any, value: Any) -> np.ndarray:
    array = np.array(values, dtype=complex if isinstance(value, complex) else float)
    array[index] = value
    return array


# Each row: arguments, the error, and its message, or the part that says what is wrong.
BAD_DATA: dict[str, tuple[tuple[Any, Any], type[Exception], str]] = {
    "nan": (
        (Y, changed(P, (2, 1), np.nan)),
        ValueError,
        "`y_pred[2, 1]` is nan, expected a finite probability; drop or repair such rows first",
    ),
    "infinity": (
        (Y, changed(P, (2, 1), np.inf)),
        ValueError,
        "`y_pred[2, 1]` is inf, expected a finite probability; drop or repair such rows first",
    ),
    "minus-infinity": ((Y, changed(P, (0, 0), -np.inf)), ValueError, "`y_pred[0, 0]` is -inf, expected a finite"),
    "negative": (
        (Y, changed(P, 1, [-0.25, 1.0, 0.25])),
        ValueError,
        "`y_pred[1, 0]` is -0.25, expected a probability between 0 and 1; "
        "for logits pass from_logits=True, for rounding errors clip to [0, 1]",
    ),
    "above-one": (
        (Y, changed(P, (1, 1), 1.25)),
        ValueError,
        "`y_pred[1, 1]` is 1.25, expected a probability",
    ),
    "binary-above-one": (
        ([0, 1], [0.5, 1.5]),
        ValueError,
        "`y_pred[1]` is 1.5, expected a probability between",
    ),
    "binary-negative": (([0, 1], [[0.5], [-1.5]]), ValueError, "`y_pred[1, 0]` is -1.5, expected a probability"),
    "binary-nan": (([0, 1], [0.5, np.nan]), ValueError, "`y_pred[1]` is nan, expected a finite probability"),
    "sum": (
        (Y, changed(P, 3, 0.31)),
        ValueError,
        "`y_pred[3]` sums to 0.93, expected 1 within 0.015; normalise the rows, or pass logits with from_logits=True",
    ),
    "sum-slightly-off": ((Y, changed(P, (3, 0), 0.200004)), ValueError, "`y_pred[3]` sums to 1.000004, expected 1"),
    "logits": (
        (Y, np.log(P)),
        ValueError,
        "`y_pred[0, 0]` is -0.35667494393873245, expected a probability between 0 and 1",
    ),
    "label-too-large": (
        ([0, 1, 3, 1], P),
        ValueError,
        "`y_true[2]` is 3, expected a label 0..2; pass classes= with the label of each of the 3 columns of `y_pred`",
    ),
    "label-negative": (
        ([0, 1, 2, -1], P),
        ValueError,
        "`y_true[3]` is -1, expected a label 0..2; there are 4 different labels for 3 classes: drop samples",
    ),
    "labels-from-one": (
        ([1, 2, 3, 2], P),
        ValueError,
        "`y_true[2]` is 3, expected a label 0..2; the labels look like 1..3: subtract 1, or pass classes=range(1, 4)",
    ),
    "labels-plus-minus-one": (
        ([1, -1], [0.3, 0.4]),
        ValueError,
        "`y_true[1]` is -1, expected a label 0..1; for labels -1 and 1 pass classes=[-1, 1]",
    ),
    "label-nan": (
        ([0, 1, np.nan, 1], P),
        ValueError,
        "`y_true[2]` is nan, expected a class label; drop such rows first",
    ),
    "label-infinite": (([0, 1, np.inf, 1], P), ValueError, "`y_true[2]` is inf, expected a class label"),
    "label-fraction": (
        ([0, 1, 1.5, 1], P),
        ValueError,
        "`y_true[2]` is 1.5, expected a class label 0..2; "
        "if these are probabilities, the arguments are swapped: the order is (y_true, y_pred)",
    ),
    "label-huge": (([0, 1, 1e300, 1], P), ValueError, "`y_true[2]` is 1000000"),
    "label-missing": (
        ([0, None, 2, 1], P),
        ValueError,
        "`y_true[1]` is missing (None), expected a value; drop or fill such entries first",
    ),
    "booleans-for-three-classes": (
        ([True, False, True, True], P),
        ValueError,
        "`y_true` is boolean, `y_pred` has 3 classes; pass integers 0..2, such as those of y_true.astype(int)",
    ),
    "too-few-labels": (
        ([0, 1, 2], P),
        ValueError,
        "`y_true` has 3 labels, `y_pred` 4 predictions; pass one label for every prediction",
    ),
    "too-many-labels": (([0, 1, 2, 1, 0], P), ValueError, "`y_true` has 5 labels, `y_pred` 4 predictions; pass one"),
    "labels-in-three-dimensions": (
        (np.zeros((4, 3, 1)), P),
        ValueError,
        "`y_true` has shape (4, 3, 1), expected (n,) labels or one-hot rows (n, m)",
    ),
    "prediction-of-a-label-in-floats": (
        ([0.0], 0.5),
        ValueError,
        "`y_pred` has shape (), expected (n, m) probabilities, or (n,) for a binary problem",
    ),
    "predictions-in-three-dimensions": (
        (Y, np.full((4, 3, 1), 1 / 3)),
        ValueError,
        "`y_pred` has shape (4, 3, 1), expected (n, m) probabilities, or (n,) for a binary problem",
    ),
    "one-hot-of-other-width": (
        (np.eye(4), P),
        ValueError,
        "`y_true` has 4 columns, `y_pred` has 3 classes; one-hot labels need m columns",
    ),
    "soft-labels": (
        (P, P),
        ValueError,
        "`y_true` has shape (4, 3) but its rows are not one-hot (a single 1, zeros elsewhere); "
        "pass labels of shape (n,); if these are probabilities, the arguments are swapped",
    ),
    "two-ones": ((changed(np.eye(3)[Y], (1, 0), 1), P), ValueError, "`y_true` has shape (4, 3) but its rows are not"),
    "row-without-one": ((np.eye(3, dtype=bool)[Y] & False, P), ValueError, "`y_true` has shape (4, 3) but its rows"),
    "strings-in-rows": (
        (np.full((4, 3), "a"), P),
        ValueError,
        "`y_true` has shape (4, 3) but its rows are not one-hot",
    ),
    "empty": (([], []), ValueError, "`y_pred` is empty, expected at least one prediction"),
    "empty-rows": (([], np.empty((0, 3))), ValueError, "`y_pred` is empty, expected at least one prediction"),
    "empty-integers": (
        ([], np.array([], dtype=int)),
        ValueError,
        "`y_pred` is empty, expected at least one prediction",
    ),
    "empty-labels": (([], P), ValueError, "`y_true` has 0 labels, `y_pred` 4 predictions"),
    "no-columns": ((Y, np.empty((4, 0))), ValueError, "`y_pred` has shape (4, 0), expected at least one column"),
    "swapped": (
        (P, Y),
        ValueError,
        "`y_true` looks like probabilities and `y_pred` like labels: the arguments are swapped; "
        "the order is (y_true, y_pred), as in scikit-learn",
    ),
    "swapped-binary": (([0.2, 0.7], [0, 1]), ValueError, "the arguments are swapped; the order is (y_true, y_pred)"),
    "swapped-booleans": (([0.2, 0.7], [False, True]), ValueError, "the arguments are swapped; the order is"),
    "swapped-strings": ((P, list("abca")), ValueError, "the arguments are swapped; the order is"),
    "swapped-float-labels": (
        ([0.2, 0.7], [0.0, 1.0]),
        ValueError,
        "if these are probabilities, the arguments are swapped",
    ),
    "swapped-one-hot": ((P, np.eye(3)[Y]), ValueError, "if these are probabilities, the arguments are swapped"),
    "predicted-labels": (
        (Y, Y),
        TypeError,
        "`y_pred` has dtype int64 and looks like predicted labels, expected probabilities; "
        "pass the output of predict_proba, or y_pred.astype(float) if 0 and 1 are meant as probabilities",
    ),
    "predicted-booleans": (
        ([0, 1], [True, False]),
        TypeError,
        "`y_pred` has dtype bool and looks like predicted labels",
    ),
    "predicted-strings": (
        (list("abca"), list("abca")),
        TypeError,
        "`y_pred` holds strings, expected probabilities; pass the output of predict_proba",
    ),
    "complex-predictions": (
        (Y, np.array(P, dtype=complex)),
        TypeError,
        "`y_pred` is complex, expected real probabilities; pass y_pred.real if that is what you mean",
    ),
    "complex-labels": ((np.array(Y, dtype=complex), P), TypeError, "`y_true` is complex, expected class labels"),
    "dates-as-predictions": (
        (Y, np.array(Y, dtype="datetime64[D]")),
        TypeError,
        "`y_pred` has dtype datetime64[D], expected floating point numbers",
    ),
    "dates-as-labels": (
        (np.array(Y, dtype="datetime64[D]"), P),
        TypeError,
        "`y_true` has dtype datetime64[D], expected integers, booleans or strings",
    ),
    "objects-as-predictions": (
        (Y, np.array([[0.5, 0.5j], [1, 0]], dtype=object)),
        TypeError,
        "`y_pred[0, 1]` is 0.5j (complex) in an array of dtype object, "
        "expected a number or a string; convert the array first, such as by astype(float) or numpy.stack",
    ),
    "objects-as-labels": (([(0,), None], P), TypeError, "`y_true[0]` is (0,) (tuple) in an array of dtype object"),
    "mixed-objects": (
        (np.array([0, "b", 1, 1], dtype=object), P),
        TypeError,
        "`y_true[1]` is 'b' (str), but other entries are numbers; expected entries of one type",
    ),
    "strings-of-too-few-classes": (
        (list("abba"), P),
        ValueError,
        "`y_true` holds 2 distinct strings, `y_pred` has 3 classes; pass classes= with the label of each column",
    ),
}


# All functions check by the same code; further ones see each sort of fault once, and all faults with the grid.
EACH_SORT = (
    "nan",
    "negative",
    "sum",
    "label-too-large",
    "label-fraction",
    "label-missing",
    "empty",
    "swapped",
    "strings-of-too-few-classes",
)


@pytest.mark.parametrize(
    ("function", "case"),
    cells(FUNCTIONS, [pytest.param(case, id=case) for case in BAD_DATA], in_full=("skce",), few=EACH_SORT),
)
def test_bad_labels_and_predictions_are_named(function: str, case: str) -> None:
    arguments, error, message = BAD_DATA[case]
    if case == "objects-as-labels":
        arguments = (np.fromiter([(0,), None], dtype=object, count=2), P)
    with pytest.raises(error, match=re.escape(message)):
        FUNCTIONS[function](*arguments)


BAD_OPTIONS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "classes-length": (
        {"classes": [0, 1]},
        ValueError,
        "`classes` has shape (2,), expected (3,): the label of each column of `y_pred`",
    ),
    "classes-twice": ({"classes": [0, 1, 1]}, ValueError, "`classes` is [0, 1, 1], expected distinct labels"),
    "classes-without-a-label": (
        {"classes": [0, 1, 3]},
        ValueError,
        "`y_true[2]` is 2, expected one of classes=[0, 1, 3]; correct the label or `classes`",
    ),
    "classes-of-another-type": (
        {"classes": ["a", "b", "c"]},
        TypeError,
        "`classes` holds <U1 and `y_true` int64, expected labels of one type",
    ),
    "classes-a-set": ({"classes": {0, 1, 2}}, TypeError, "`classes` is {0, 1, 2} (set), expected an array or a list"),
    "weight-nan": (
        {"sample_weight": [1, np.nan, 1, 1]},
        ValueError,
        "`sample_weight[1]` is nan, expected a finite weight >= 0; drop such rows first",
    ),
    "weight-infinite": (
        {"sample_weight": [1, 1, np.inf, 1]},
        ValueError,
        "`sample_weight[2]` is inf, expected a finite",
    ),
    "weight-negative": ({"sample_weight": [1, -2, 1, 1]}, ValueError, "`sample_weight[1]` is -2, expected a finite"),
    "weights-zero": (
        {"sample_weight": [0, 0, 0, 0]},
        ValueError,
        "`sample_weight` is 0 for all samples, expected a positive weight; repair it, or leave it out",
    ),
    "weights-huge": (
        {"sample_weight": [1, 1e200, 1, 1]},
        ValueError,
        "the largest `sample_weight` is 1e+200, expected",
    ),
    "weights-length": (
        {"sample_weight": [1, 1, 1]},
        ValueError,
        "`sample_weight` has shape (3,), expected (4,): one weight for each sample",
    ),
    "weights-shape": (
        {"sample_weight": np.ones((4, 1))},
        ValueError,
        "`sample_weight` has shape (4, 1), expected (4,)",
    ),
    "weights-strings": ({"sample_weight": list("abcd")}, TypeError, "`sample_weight` has dtype <U1, expected numbers"),
    "weights-complex": (
        {"sample_weight": [1j] * 4},
        TypeError,
        "`sample_weight` has dtype complex128, expected numbers",
    ),
    "weights-missing": (
        {"sample_weight": [1, None, 1, 1]},
        ValueError,
        "`sample_weight[1]` is missing (None), expected",
    ),
}


@pytest.mark.parametrize("function", ["skce", "brier_score", "log_loss", "top_label_ece"])
@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_classes_and_weights_are_named(function: str, case: str) -> None:
    options, error, message = BAD_OPTIONS[case]
    with pytest.raises(error, match=re.escape(message)):
        FUNCTIONS[function](Y, P, **options)


BAD_CALLS: dict[str, tuple[Any, type[Exception], str]] = {
    "one-sample": (
        lambda: kcalib.skce([0], [0.3], kernel=EXPONENTIAL),
        ValueError,
        "estimator='unbiased' needs at least 2 samples, `y_true` has 1",
    ),
    "one-sample-in-blocks": (
        lambda: kcalib.skce([0], [0.3], kernel=EXPONENTIAL, estimator="block"),
        ValueError,
        "estimator='block' needs at least 2 samples, `y_true` has 1",
    ),
    "one-sample-and-median": (
        lambda: kcalib.bandwidth.median_distance([[0.3]]),
        ValueError,
        "`y_pred` has 1 row, expected at least 2 for the median heuristic; pass a kernel with bandwidth=",
    ),
    "three-samples-to-test": (
        lambda: kcalib.calibration_test([0, 1, 1], [0.3, 0.4, 0.5], method="block"),
        ValueError,
        "method='block' needs at least two blocks of 2 samples, `y_true` has 3",
    ),
    "one-positive-weight": (
        lambda: kcalib.skce(Y, P, sample_weight=[0, 0, 1, 0]),
        ValueError,
        "estimator='unbiased' needs at least 2 samples of positive `sample_weight`",
    ),
    "block-of-one": (
        lambda: kcalib.skce(Y, P, estimator=kcalib.methods.BlockEstimator(block_size=1)),
        ValueError,
        "`block_size` is 1, expected an integer at least 2",
    ),
    "block-of-more-than-all": (
        lambda: kcalib.skce(Y, P, estimator=kcalib.methods.BlockEstimator(block_size=5)),
        ValueError,
        "`block_size` is 5, expected an integer between 2 and 4",
    ),
    "one-block-to-test": (
        lambda: kcalib.calibration_test(Y, P, method=kcalib.methods.Block(block_size=3)),
        ValueError,
        "`block_size` is 3, expected an integer between 2 and 2: the test needs at least two blocks",
    ),
    "block-size-fraction": (
        lambda: kcalib.skce(Y, P, estimator=kcalib.methods.BlockEstimator(block_size=2.5)),
        TypeError,
        "`block_size` is 2.5, expected an integer",
    ),
    "block-size-boolean": (
        lambda: kcalib.skce(Y, P, estimator=kcalib.methods.BlockEstimator(block_size=True)),
        TypeError,
        "`block_size` is True, expected an integer",
    ),
    "weights-in-blocks": (
        lambda: kcalib.skce(Y, P, estimator="block", sample_weight=[1, 1, 1, 1]),
        ValueError,
        "`sample_weight` has no meaning for estimator='block': the weight of a block in the average is not defined; "
        "use estimator='unbiased' or 'biased'",
    ),
    "estimator": (
        lambda: kcalib.skce(Y, P, estimator="u-statistic"),
        ValueError,
        "`estimator` is 'u-statistic', expected one of 'unbiased', 'biased', 'block', 'linear'",
    ),
    "backend": (
        lambda: kcalib.skce(Y, P, backend="opencl"),
        ValueError,
        "`backend` is 'opencl', expected one of 'sorted', 'cpu', 'cuda', 'array-api'",
    ),
    "dtype": (
        lambda: kcalib.skce(Y, P, dtype="float16"),
        ValueError,
        "`dtype` is 'float16', expected 'float64' or 'float32'",
    ),
    "threads": (
        lambda: kcalib.skce(Y, P, threads=0),
        ValueError,
        "`threads` is 0, expected an integer between 1 and 4096",
    ),
    "threads-beyond-int": (
        lambda: kcalib.skce(Y, P, threads=2**31),
        ValueError,
        "`threads` is 2147483648, expected an integer between 1 and 4096",
    ),
    "huge-points": (
        lambda: kcalib.bandwidth.median_distance([[1e160, 0.0, 0.0], [0.0, 1e160, 0.0]]),
        ValueError,
        "`y_pred[0, 0]` is 1e+160, expected at most 1e+15 in size; rescale the points",
    ),
    "huge-points-and-no-bandwidth": (
        lambda: kcalib.smallest_eigenvalue([[1e155, 0.0], [0.0, 1.0]], Linear()),
        ValueError,
        "`y_pred[0, 0]` is 1e+155, expected at most 1e+15 in size; rescale the points",
    ),
    "tiny-bound": (
        lambda: kcalib.calibration_test(Y, P, method=kcalib.methods.DistributionFree(bound=1e-300)),
        ValueError,
        "`bound` is 1e-300, expected a positive number between 1e-40 and 1e+40: the supremum of |k(p, q)|",
    ),
    "huge-regularization": (
        lambda: kcalib.ckce(Y, P, regularization=1e300, method="nystrom"),
        ValueError,
        "`regularization` is 1e+300, expected a number between 1e-100 and 1e+100; leave it out for n**-0.25",
    ),
    "huge-regularization-of-a-comparison": (
        lambda: kcalib.compare(Y, {"a": P, "b": P}, metric=kcalib.methods.CKCE(regularization=1e300)),
        ValueError,
        "`regularization` is 1e+300, expected a number between 1e-100 and 1e+100; leave it out for n**-0.25",
    ),
    "labels-beyond-int64": (
        lambda: kcalib.skce(np.array([0, 2**64 - 1, 1, 1], dtype=np.uint64), P),
        ValueError,
        "`y_true[1]` is 18446744073709551615, expected a label 0..2; pass classes=",
    ),
    "n-bins": (
        lambda: kcalib.top_label_ece(Y, P, n_bins=0),
        ValueError,
        "`n_bins` is 0, expected an integer between 1 and 1000000",
    ),
    "constant-predictions": (
        lambda: kcalib.bandwidth.median_distance([[0.5, 0.3, 0.2]] * 4),
        ValueError,
        "`y_pred` has identical rows only, so the median heuristic finds no length scale; "
        "pass a kernel with bandwidth=, such as Exponential(bandwidth=1.0)",
    ),
    "bandwidth-zero": (lambda: Exponential(bandwidth=0.0), ValueError, "`bandwidth` is 0.0, expected a positive"),
    "bandwidth-negative": (lambda: Gaussian(bandwidth=-1), ValueError, "`bandwidth` is -1, expected a positive"),
    "bandwidth-nan": (lambda: Gaussian(bandwidth=math.nan), ValueError, "`bandwidth` is nan, expected a positive"),
    "bandwidth-infinite": (lambda: Gaussian(bandwidth=math.inf), ValueError, "`bandwidth` is inf, expected a positive"),
    "bandwidth-string": (
        lambda: Gaussian(bandwidth="median"),
        TypeError,
        "`bandwidth` is 'median', expected a positive",
    ),
    "kernel": (lambda: kcalib.skce(Y, P, kernel="rbf"), TypeError, "`kernel` is 'rbf', expected a kernel such as"),
    "kernel-class": (lambda: kcalib.skce(Y, P, kernel=Gaussian), TypeError, "expected a kernel such as"),
    "infinite-logit": (
        lambda: kcalib.skce([0, 1], [[0.0, np.inf], [0.0, 1.0]], from_logits=True),
        ValueError,
        "`y_pred[0, 1]` is inf, expected a logit below infinity; drop or repair such rows first",
    ),
    "nan-logit": (
        lambda: kcalib.skce([0, 1], [np.nan, 1.0], from_logits=True),
        ValueError,
        "`y_pred[0]` is nan, expected a logit below infinity",
    ),
    "row-of-impossible-logits": (
        lambda: kcalib.skce([0, 1], [[0.0, 1.0], [-np.inf, -np.inf]], from_logits=True),
        ValueError,
        "`y_pred[1]` has only logits of -inf, expected at least one finite logit in a row",
    ),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_options_are_named(case: str) -> None:
    call, error, message = BAD_CALLS[case]
    with pytest.raises(error, match=re.escape(message)):
        call()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_value_that_is_not_finite_is_found_anywhere(function: str, value: float) -> None:
    for index in itertools.product(range(4), range(3)):
        with pytest.raises(ValueError, match=re.escape(f"`y_pred[{index[0]}, {index[1]}]` is {value}")):
            FUNCTIONS[function](Y, changed(P, index, value))
    for i in range(4):
        with pytest.raises(ValueError, match=re.escape(f"`y_true[{i}]` is {value}")):
            FUNCTIONS[function](changed(Y, i, value), P)


# Extreme and odd input that is right: finite numbers.


@pytest.mark.parametrize(
    ("y", "p"),
    [
        pytest.param([0, 1, 2, 0, 1], np.eye(3)[[0, 1, 2, 0, 1]], id="one-hot-and-right"),
        pytest.param([0, 1, 2, 0, 1], np.eye(3)[[1, 2, 0, 1, 2]], id="one-hot-and-wrong"),
        pytest.param([0, 1, 2, 0, 1], np.eye(3, dtype=int)[[1, 2, 0, 1, 2]], id="integers"),
        pytest.param([0, 0, 0, 0], P, id="classes-absent"),
        pytest.param([0, 1, 1, 0], [0.0, 1.0, 1.0, 0.0], id="binary-certain"),
        pytest.param([0, 1, 1, 0], [5e-324, 1.0, 1e-300, 0.0], id="subnormal"),
        pytest.param([0, 1, 1, 0], [0.5, 0.5, 0.5, np.nextafter(0.5, 1)], id="nearly-constant"),
        pytest.param([1, 1, 1, 1], np.ones((4, 1)) * [[0.1], [0.2], [0.3], [0.4]], id="one-column-one-class"),
        pytest.param([0, 1, 0, 1], [1 + 1e-7, 1, 0, 0.5], id="above-one-by-rounding"),
    ],
)
def test_extreme_predictions_give_finite_numbers(y: Any, p: Any) -> None:
    result = kcalib.evaluate(y, p)
    names = ("unbiased", "biased", "block", "linear")
    estimates = {name: kcalib.skce(y, p, estimator=name) for name in names}
    values = [result.log_loss, result.brier_score, result.top_label_ece, result.test.pvalue, *estimates.values()]
    assert all(type(value) is float and math.isfinite(value) for value in values)
    assert estimates["biased"] >= 0 and result.skce.value == estimates["unbiased"]


@pytest.mark.parametrize("weights", [[9e14, 1.0, 1e-99, 2.0], [2e-15, 2e-15, 0, 1e-300], [0, 1, 0, 1]])
@pytest.mark.parametrize("function", ["skce", "brier_score", "log_loss", "top_label_ece"])
def test_extreme_weights_give_finite_numbers(function: str, weights: list[float]) -> None:
    options = {"dtype": "float32"} if function == "skce" else {}
    assert math.isfinite(FUNCTIONS[function](Y, P, sample_weight=weights))
    assert math.isfinite(FUNCTIONS[function](Y, P, sample_weight=weights, **options))


def test_one_sample_is_enough_where_no_pair_is_needed() -> None:
    assert kcalib.brier_score([1], [0.75]) == 0.0625
    assert kcalib.log_loss([1], [0.75]) == pytest.approx(-math.log(0.75))
    assert kcalib.top_label_ece([1], [0.75]) == 0.25
    # H_11 = |e|^2, e = (-1/4, 1/4).
    assert kcalib.skce([1], [0.75], kernel=EXPONENTIAL, estimator="biased") == 0.125


# Labels.


@pytest.mark.parametrize("function", FUNCTIONS)
def test_labels_may_be_written_in_many_ways(function: str, make_problem: MakeProblem) -> None:
    y, p = make_problem(40, 3)
    names = np.array(["bee", "ant", "cat"])
    expected = comparable(FUNCTIONS[function](y, p))
    for labels in (y.tolist(), y[:, None], y.astype(float), np.eye(3)[y], np.eye(3, dtype=int)[y], np.eye(3)[y] == 1):
        assert comparable(FUNCTIONS[function](labels, p)) == expected
    for classes in (names, list(names), tuple(names), names.astype(object), names.astype(np.dtypes.StringDType())):
        assert comparable(FUNCTIONS[function](names[y], p, classes=classes)) == expected
        assert comparable(FUNCTIONS[function](names[y].astype(object), p, classes=classes)) == expected
    assert comparable(FUNCTIONS[function](y + 1, p, classes=range(1, 4))) == expected
    assert comparable(FUNCTIONS[function](7 - 2 * y, p, classes=[7, 5, 3])) == expected
    assert comparable(FUNCTIONS[function](y / 2, p, classes=[0, 0.5, 1])) == expected


def comparable(result: Any) -> Any:
    """Everything but the time it took, and the names of classes."""
    return re.sub(r"seconds=[^,)]*|class ('\w+'|[\d.]+)", "", repr(result)).replace('"', "'")


def test_strings_are_sorted_without_classes(make_problem: MakeProblem) -> None:
    y, p = make_problem(40, 3)
    assert kcalib.skce(np.array(["ant", "bee", "cat"])[y], p) == kcalib.skce(y, p)
    assert kcalib.skce(np.array(["bee", "ant", "cat"])[y], p) == kcalib.skce(np.array([1, 0, 2])[y], p)
    for dtype in (object, np.dtypes.StringDType()):
        assert kcalib.skce(np.array(["ant", "bee", "cat"])[y].astype(dtype), p) == kcalib.skce(y, p)


def test_classes_given_do_not_change_one_hot_labels(make_problem: MakeProblem) -> None:
    y, p = make_problem(40, 3)
    for classes in ([2, 1, 0], ["c", "b", "a"]):
        assert kcalib.skce(np.eye(3)[y], p, classes=classes) == kcalib.skce(y, p)


def test_boolean_labels_name_the_second_class(make_problem: MakeProblem) -> None:
    y, p = make_problem(40, 2)
    assert kcalib.skce(y == 1, p) == kcalib.skce(y, p)
    assert kcalib.skce(y == 1, p, classes=[False, True]) == kcalib.skce(y, p)
    assert kcalib.skce(y == 0, p, classes=[True, False]) == kcalib.skce(y, p)


def test_plus_minus_one_labels_need_classes(make_problem: MakeProblem) -> None:
    y, p = make_problem(40, 2)
    assert kcalib.skce(2 * y - 1, p, classes=[-1, 1]) == kcalib.skce(y, p)


def test_a_class_may_be_absent(make_problem: MakeProblem) -> None:
    y, p = make_problem(40, 4)
    y[y == 3] = 0
    assert kcalib.skce(np.array(list("abcd"))[y], p, classes=list("abcd")) == kcalib.skce(y, p)
    with pytest.raises(ValueError, match="`y_true` holds 3 distinct strings, `y_pred` has 4 classes; pass classes="):
        kcalib.skce(np.array(list("abcd"))[y], p)


# Predictions.


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_binary_problem_is_one_column_or_two(function: str, make_problem: MakeProblem) -> None:
    y, p = make_problem(40, 2)
    second = p[:, 1]
    expected = comparable(FUNCTIONS[function](y, np.stack((1 - second, second), axis=1)))
    assert comparable(FUNCTIONS[function](y, second)) == expected
    assert comparable(FUNCTIONS[function](y, second[:, None])) == expected
    assert comparable(FUNCTIONS[function](y, second.tolist())) == expected


@pytest.mark.parametrize("m", [2, 3, 10, 1000])
def test_rows_may_sum_to_one_within_float32_rounding(m: int, make_problem: MakeProblem) -> None:
    y, p = make_problem(200, m)
    rounded = p.astype(np.float32)
    assert np.abs(rounded.astype(float).sum(axis=1) - 1).max() > 0
    assert kcalib.skce(y, rounded) == pytest.approx(kcalib.skce(y, p), abs=1e-7)
    assert kcalib.skce(y, rounded.astype(float)) == kcalib.skce(y, rounded)
    with pytest.raises(ValueError, match=r"`y_pred\[0\]` sums to 1\.0001"):
        kcalib.skce(y, p * 1.0001 if m > 2 else np.clip(p * 1.0001, 0, 1))


def test_a_binary_probability_above_one_by_rounding_is_one(xp: Library) -> None:
    """Its complement would be negative, and a logarithm or a power of that no number."""
    y, p = [0, 1, 1, 1, 0, 1], np.array([0.2, 1 + 1e-7, 0.7, 1.0, 0.6, 0.9])
    data = _input.labels.prepare(y, xp.asarray(p))
    rounded = arrays.to_host(data.probabilities)
    assert rounded[1].tolist() == [0.0, 1.0] and rounded[4].tolist() == pytest.approx([0.4, 0.6])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        function = TemperatureCalibration().fit(y, xp.asarray(p))
    assert function.temperature_ == TemperatureCalibration().fit(y, xp.asarray(np.minimum(p, 1))).temperature_


def test_softmax_by_a_plain_float32_sum_over_many_classes_passes() -> None:
    powers = np.exp(np.random.default_rng(0).standard_normal((8, 100_000)).astype(np.float32))
    p = powers / np.cumsum(powers, axis=1)[:, -1:]
    assert np.abs(p.sum(axis=1, dtype=float) - 1).max() > 2e-6
    assert math.isfinite(kcalib.brier_score(np.arange(8), p))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_logits_are_told_not_guessed(function: str, make_problem: MakeProblem) -> None:
    y, p = make_problem(40, 3)
    logits = np.log(p) + 100.0
    expected = FUNCTIONS[function](y, p)
    with pytest.raises(ValueError, match="for logits pass from_logits=True"):
        FUNCTIONS[function](y, logits)
    value = FUNCTIONS[function](y, logits, from_logits=True)
    for attribute in ("estimate", "brier_score"):
        value, expected = getattr(value, attribute, value), getattr(expected, attribute, expected)
    assert value == pytest.approx(expected, rel=1e-9)
    with pytest.warns(kcalib.LogitsWarning):
        assert FUNCTIONS[function](y, p, from_logits=True) != FUNCTIONS[function](y, p)


def test_probabilities_as_logits_are_told(xp: Library, make_problem: MakeProblem) -> None:
    """Their softmax is a prediction like any other."""
    y, p = make_problem(100, 3)
    with pytest.warns(kcalib.LogitsWarning, match="with from_logits=True, but its rows are probabilities already"):
        kcalib.brier_score(y, xp.asarray(p), from_logits=True)
    p[90] = [1.5, -0.25, -0.25]  # rows of logits may sum to 1
    kcalib.brier_score(y, xp.asarray(p), from_logits=True)
    kcalib.brier_score(y % 2, xp.asarray(p[:, 0]), from_logits=True)  # so may a column of logits be in [0, 1]


@pytest.mark.parametrize("columns", [1, 3])
def test_percentages_are_told(columns: int, xp: Library, make_problem: MakeProblem) -> None:
    y, p = make_problem(40, 3)
    y, p = (y, p) if columns > 1 else (y % 2, p[:, 0])
    with pytest.raises(ValueError, match=r"expected a probability between 0 and 1; divide percentages by 100"):
        kcalib.brier_score(y, xp.asarray(np.round(100 * p, 1)))
    with pytest.raises(ValueError, match="for logits pass from_logits=True"):
        kcalib.brier_score(y, xp.asarray(100 * p - 3))


def test_a_tensor_that_requires_gradients_is_told(make_problem: MakeProblem) -> None:
    torch = pytest.importorskip("torch")
    y, p = make_problem(40, 3)
    tensor = torch.tensor(p, requires_grad=True)
    with pytest.warns(
        kcalib.GradientWarning, match=r"`y_pred` requires gradients, but none.*y_pred\.detach\(\)"
    ) as said:
        found = kcalib.evaluate(y, tensor)
    assert len(said) == 1
    assert found.brier_score == kcalib.evaluate(y, tensor.detach()).brier_score  # without a word


def test_extreme_logits_neither_overflow_nor_vanish() -> None:
    data = _input.labels.prepare([0, 1], [[800.0, -800.0], [-np.inf, 3.0]], from_logits=True)
    assert data.probabilities.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    data = _input.labels.prepare([0, 1, 1], [-800.0, 800.0, -np.inf], from_logits=True)
    assert data.probabilities[:, 1].tolist() == [0.0, 1.0, 0.0]
    # Small probabilities keep their digits.
    data = _input.labels.prepare([0, 1], [-100.0, 100.0], from_logits=True)
    assert data.probabilities[0, 1] == pytest.approx(math.exp(-100), rel=1e-12)


def test_sample_weights_repeat_samples(make_problem: MakeProblem) -> None:
    y, p = make_problem(20, 3)
    w = np.arange(20) % 3
    for function in ("brier_score", "log_loss", "top_label_ece"):
        value = FUNCTIONS[function](y, p, sample_weight=w)
        assert value == pytest.approx(FUNCTIONS[function](np.repeat(y, w), np.repeat(p, w, axis=0)), rel=1e-12)
    value = kcalib.skce(y, p, kernel=EXPONENTIAL, estimator="biased", sample_weight=w)
    repeated = kcalib.skce(np.repeat(y, w), np.repeat(p, w, axis=0), kernel=EXPONENTIAL, estimator="biased")
    assert value == pytest.approx(repeated, rel=1e-12)


# scikit-learn.


@pytest.fixture(scope="module", params=[(2, False), (2, True), (3, False), (3, True)], ids=str)
def fitted(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip("sklearn")
    from sklearn.linear_model import LogisticRegression

    m, strings = request.param
    rng = np.random.default_rng(0)
    x = rng.standard_normal((150, 4))
    codes = np.argmax(x[:, :m] + rng.gumbel(size=(150, m)), axis=1)
    return LogisticRegression(), x, codes, np.array(["bee", "cat", "dog"])[codes] if strings else codes


def test_scorer_works_in_cross_validation(fitted: Any) -> None:
    from sklearn.metrics import make_scorer
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    model, x, codes, y = fitted
    scorer = make_scorer(kcalib.skce, response_method="predict_proba", greater_is_better=False)
    folds = StratifiedKFold(3)
    expected = [
        -kcalib.skce(codes[test], model.fit(x[train], y[train]).predict_proba(x[test]))
        for train, test in folds.split(x, codes)
    ]
    assert cross_val_score(model, x, y, cv=folds, scoring=scorer, error_score="raise") == pytest.approx(expected)


def test_scorer_takes_weights_by_metadata_routing(fitted: Any) -> None:
    from sklearn import config_context
    from sklearn.metrics import make_scorer
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    model, x, codes, y = fitted
    w = np.random.default_rng(1).uniform(size=len(y))
    folds = StratifiedKFold(3)
    expected = [
        -kcalib.skce(codes[test], model.fit(x[train], y[train]).predict_proba(x[test]), sample_weight=w[test])
        for train, test in folds.split(x, codes)
    ]
    with config_context(enable_metadata_routing=True):
        scorer = make_scorer(kcalib.skce, response_method="predict_proba", greater_is_better=False)
        scores = cross_val_score(
            model.set_fit_request(sample_weight=False),
            x,
            y,
            cv=folds,
            scoring=scorer.set_score_request(sample_weight=True),
            params={"sample_weight": w},
            error_score="raise",
        )
    assert scores == pytest.approx(expected)


def test_classes_of_a_fitted_model_name_the_columns(fitted: Any) -> None:
    model, x, codes, y = fitted
    model.fit(x, y)
    p = model.predict_proba(x)
    assert kcalib.evaluate(y, p, classes=model.classes_).skce.value == kcalib.skce(codes, p)


def test_what_holds_no_values_is_told() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="`y_pred` is on the device 'meta', whose tensors have no values"):
        kcalib.skce(Y, torch.empty((4, 3), device="meta"))


@pytest.mark.parametrize("name, value", [("classes", ["a", "b", "c"]), ("from_logits", True)])
def test_what_a_source_knows_is_not_said_again(name, value):
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet(np.ones(3), size=20), rng.integers(3, size=20)
    message = f"`{name}` is {value!r}, but a source has its own; pass it to kcalib.streaming.source"
    for function in (kcalib.skce, kcalib.calibration_test):
        with pytest.raises(ValueError, match=re.escape(message)):
            function(kcalib.streaming.source((y, p)), **{name: value})


def test_weights_that_are_no_array_are_named():
    with pytest.raises(ValueError, match="`sample_weight` is not a rectangular array"):
        kcalib.skce([0, 1], [[0.5, 0.5], [0.2, 0.8]], sample_weight=[[1], [1, 2]])
