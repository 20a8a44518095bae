"""Consistency resampling: the draws, every estimator against a literal loop, level, and messages."""

from __future__ import annotations

import math
import pickle
import sys
import warnings

import numpy as np
import pytest
import scipy.stats
from problems import binomial_bounds, draw_labels, psd_matrix, softmax_problem, w19_predictions

import kcalib
from kcalib._input.labels import prepare
from kcalib.estimators.skce import PairOptions
from kcalib.inference import replicates
from kcalib.inference.consistency import ESTIMATORS, AntiConservativeWarning, Consistency
from kcalib.kernels import Exponential

KERNEL = Exponential(bandwidth=0.5)


def run(
    y, p, *, resample_predictions=False, kernel=None, target_kernel="delta", threads=None, dtype=None, seed=0, **options
):
    """The test; without its warning where predictions are resampled."""
    with warnings.catch_warnings():
        if resample_predictions:
            warnings.simplefilter("ignore", AntiConservativeWarning)
        method = Consistency(resample_predictions=resample_predictions, **options)
        return method.outcome(prepare(y, p, dtype=dtype), PairOptions(kernel, target_kernel, threads=threads), seed)


def kernel_of(estimator):
    return None if estimator == "ece" or callable(estimator) else KERNEL


def literal_replicates(y, p, seed, count, resample):
    """Labels and predictions of the replicates, by a loop over the samples."""
    n = len(y)
    for replicate in range(count):
        rng = np.random.Generator(np.random.Philox(key=np.array([seed, replicate], dtype=np.uint64)))
        rows = rng.integers(n, size=n) if resample else range(n)
        u = rng.uniform(size=n)
        labels = [
            int(np.searchsorted(np.cumsum(p[row]), share, side="right")) for row, share in zip(rows, u, strict=True)
        ]
        yield np.array(labels), p[np.array(rows)]


METRICS = {
    "ece": lambda y, p: kcalib.top_label_ece(y, p),
    "unbiased": lambda y, p: kcalib.skce(y, p, kernel=KERNEL),
    "biased": lambda y, p: kcalib.skce(y, p, kernel=KERNEL, estimator="biased"),
    "block": lambda y, p: kcalib.skce(y, p, kernel=KERNEL, estimator="block"),
    "linear": lambda y, p: kcalib.skce(y, p, kernel=KERNEL, estimator="linear"),
}


@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_agrees_with_a_literal_loop(estimator, resample):
    y, p = softmax_problem(40, 3, scale=1.0)
    metric = METRICS.get(estimator)
    if metric is None:  # UCME; the same locations for all replicates
        where = kcalib.ucme.result(y, p, kernel=KERNEL, seed=11)
        given = {"locations": (where.test_labels, where.test_predictions)}

        def metric(y, p):
            return kcalib.ucme(y, p, kernel=KERNEL, **given)

    estimate = metric(y, p)
    null = np.array([metric(*replicate) for replicate in literal_replicates(y, p, 11, 60, resample)])
    result = run(
        y, p, estimator=estimator, kernel=kernel_of(estimator), n_resamples=60, seed=11, resample_predictions=resample
    )
    assert result.estimate == pytest.approx(estimate, rel=1e-12)
    assert result.pvalue == (1 + np.sum(null >= estimate)) / 61
    assert result.null_mean == pytest.approx(null.mean(), rel=1e-10)
    assert result.null_standard_deviation == pytest.approx(null.std(ddof=1), rel=1e-10)
    assert (result.estimator, result.n_resamples, result.seed) == (estimator, 60, 11)
    assert (result.block_size is not None) == (estimator in ("block", "linear"))
    assert (result.n_bins is not None) == (estimator == "ece")
    assert (result.locations is not None) == (estimator == "ucme")
    assert pickle.loads(pickle.dumps(result)) == result


def test_a_function_of_the_user():
    y, p = softmax_problem(50, 3)
    seen = []

    def brier(labels, probabilities):
        seen.append((labels.dtype, probabilities.shape))
        return kcalib.brier_score(labels, probabilities)

    result = run(y, p, estimator=brier, n_resamples=9)
    assert result.estimator == "brier" and result.description is None
    assert seen == [(np.int64, (50, 3))] * 10
    assert result.estimate == kcalib.brier_score(y, p)
    own = run(y, p, estimator=lambda a, b: kcalib.top_label_ece(a, b), n_resamples=99)
    assert own.pvalue == run(y, p, estimator="ece", n_resamples=99).pvalue


@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("estimator", ["ece", "unbiased", "ucme"])
def test_array_libraries(xp, estimator, resample):
    y, p = softmax_problem(40, 4, scale=1.0)
    options = {
        "estimator": estimator,
        "kernel": kernel_of(estimator),
        "n_resamples": 9,
        "resample_predictions": resample,
    }
    host = run(y, p, **options)
    result = run(xp.asarray(y), xp.asarray(p), **options)
    assert result.pvalue == host.pvalue
    assert result.null_mean == pytest.approx(host.null_mean, rel=1e-10, abs=1e-15)


def test_seed_and_threads():
    y, p = softmax_problem(200, 3)
    options = {"estimator": "unbiased", "kernel": KERNEL, "n_resamples": 20}
    one = run(y, p, seed=1, threads=1, **options)
    assert run(y, p, seed=1, threads=2, **options) == one
    assert run(y, p, seed=2, **options).null_mean != one.null_mean
    assert run(y, p, **options) == run(y, p, seed=0, **options)
    # More replicates contain fewer ones.
    few, many = (run(y, p, n_resamples=r).pvalue * (r + 1) - 1 for r in (50, 100))
    assert few <= many <= few + 50


def test_batches_change_nothing(monkeypatch):
    y, p = softmax_problem(100, 5)
    whole = run(y, p, n_resamples=25, n_bins=10)
    monkeypatch.setattr(replicates, "BATCH_ELEMENTS", 300)
    assert run(y, p, n_resamples=25, n_bins=10) == whole


@pytest.mark.parametrize("estimator", ["unbiased", "ucme"])
def test_matrix_valued_kernel(estimator):
    y, p = softmax_problem(30, 3)
    matrix = psd_matrix(3, 2)
    result = run(y, p, estimator=estimator, kernel=KERNEL, target_kernel=matrix, n_resamples=9)
    assert result.description["target_kernel"] == "matrix of rank 2"
    if estimator == "unbiased":
        assert result.estimate == kcalib.skce(y, p, kernel=KERNEL, target_kernel=matrix)
        values = [kcalib.skce(*s, kernel=KERNEL, target_kernel=matrix) for s in literal_replicates(y, p, 0, 9, False)]
        assert result.null_mean == pytest.approx(np.mean(values), rel=1e-10)


# Level


def test_never_zero_and_one_without_error():
    y, p = softmax_problem(200, 3, scale=1.0)
    assert run((y + 1) % 3, p, n_resamples=99).pvalue == 0.01
    right = np.eye(3)[y]
    result = run(y, right, n_resamples=9)
    assert (result.estimate, result.pvalue, result.null_mean) == (0.0, 1.0, 0.0)
    wrong = run((y + 1) % 3, right, n_resamples=9)
    assert (wrong.estimate, wrong.pvalue) == (1.0, 0.1)


def test_ties_count():
    """Constant predictions: the ECE takes few values, and a replicate with the same one is at least as large."""
    p = np.tile([0.3, 0.7], (7, 1))
    y = np.array([0, 0, 1, 1, 1, 1, 1])
    result = run(y, p, n_resamples=5000)
    # The gap is |hits - 4.9| with 5 hits of probability 0.7: the smallest there is.
    assert result.pvalue == 1.0
    y[2] = 0
    low, high = binomial_bounds(5000, 1 - scipy.stats.binom.pmf(5, 7, 0.7))
    assert low <= run(y, p, n_resamples=5000).pvalue <= high


def level(n_bins, resample, repetitions, estimator="ece"):
    """Rejections of W19's M1, n = 250, at 0.01, 0.05, 0.1."""
    rng = np.random.default_rng(2007)
    pvalues = np.empty(repetitions)
    for i in range(repetitions):
        p = w19_predictions(250, rng)
        y = draw_labels(p, rng)
        pvalues[i] = run(y, p, n_bins=n_bins, n_resamples=99, seed=i, resample_predictions=resample).pvalue
    return {alpha: np.mean(pvalues <= alpha) for alpha in (0.01, 0.05, 0.1)}


@pytest.mark.grid
@pytest.mark.parametrize("n_bins", [pytest.param(15, marks=pytest.mark.slow), 1000])
def test_kept_predictions_keep_the_level(n_bins):
    """Exact for every n and estimator: with R = 99 a level of k/100 is attained, ties apart."""
    repetitions = 300
    shares = level(n_bins, False, repetitions)
    for alpha, share in shares.items():
        low, high = binomial_bounds(repetitions, alpha)
        assert low <= share <= high


def test_warning():
    y, p = softmax_problem(20, 3)
    with pytest.warns(AntiConservativeWarning, match="rejects calibrated models too often.*resample_predictions=False"):
        Consistency(n_resamples=5).outcome(prepare(y, p), PairOptions(), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Consistency(n_resamples=5, resample_predictions=False).outcome(prepare(y, p), PairOptions(), 0)
    assert issubclass(kcalib.AntiConservativeWarning, UserWarning)


# Messages


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"estimator": "mmce"}, ValueError, "`estimator` is 'mmce', expected one of 'ece', 'unbiased'"),
        ({"estimator": 3}, ValueError, "`estimator` is 3, expected one of"),
        ({"n_resamples": 0}, ValueError, "`n_resamples` is 0, expected an integer at least 1|between 1 and"),
        ({"n_resamples": 10.0}, TypeError, "`n_resamples` is 10.0, expected an integer"),
        ({"resample_predictions": "no"}, TypeError, "`resample_predictions` is 'no', expected True or False"),
        ({"n_bins": 0}, ValueError, "`n_bins` is 0, expected an integer between 1 and 1000000"),
        ({"kernel": KERNEL}, ValueError, "`kernel` is given, but estimator='ece' has no such option"),
        ({"target_kernel": np.eye(3)}, ValueError, "`target_kernel` is .*, but estimator='ece' has no such option"),
        ({"block_size": 3}, ValueError, "`block_size` is 3, but estimator='ece' has no such option"),
        ({"estimator": "biased", "n_bins": 3}, ValueError, "`n_bins` is 3, but estimator='biased' has no such option"),
        ({"estimator": "unbiased", "block_size": 3}, ValueError, "`block_size` is 3, but estimator='unbiased'"),
        ({"estimator": "block", "block_size": 30}, ValueError, "`block_size` is 30, expected an integer between 2"),
        ({"locations": 3}, ValueError, "`locations` is 3, but estimator='ece' has no such option"),
        ({"estimator": "ucme", "locations": 0}, ValueError, "`locations` is 0, expected"),
        ({"estimator": lambda y, p: math.nan}, ValueError, "`estimator` returned nan for the data, expected a finite"),
        ({"estimator": lambda y, p: "x"}, TypeError, "`estimator` returned 'x' for the data, expected a number"),
        ({"estimator": lambda y, p: 1.0, "n_bins": 5}, ValueError, "`n_bins` is 5, but estimator='callable'"),
    ],
)
def test_messages(options, error, message):
    y, p = softmax_problem(20, 3)
    with pytest.raises(error, match=message):
        run(y, p, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "mmce"}, "`estimator` is 'mmce', expected one of 'ece'"),
        ({"estimator": "biased", "n_bins": 3}, "`n_bins` is 3, but estimator='biased' has no such option"),
        ({"n_bins": 0}, "`n_bins` is 0, expected an integer between 1 and 1000000"),
        ({"estimator": "block", "block_size": 1}, "`block_size` is 1, expected an integer at least 2"),
        ({"estimator": "ucme", "from_logits": True}, "`from_logits` is True, but no `locations` are given"),
        ({"estimator": "ece", "from_logits": True}, "`from_logits` is True, but estimator='ece' has no such option"),
    ],
)
def test_messages_of_options_need_no_data(options, message):
    with pytest.raises(ValueError, match=message):
        Consistency(**options)


@pytest.mark.parametrize("estimator", ["ece", lambda y, p: 0.0])
def test_what_sums_no_pairs_has_no_kernel(estimator):
    y, p = softmax_problem(20, 3)
    with pytest.raises(ValueError, match=r"`kernel` is given, but estimator='(ece|callable)' has no such option"):
        kcalib.calibration_test(y, p, method=Consistency(estimator, n_resamples=2), kernel=kcalib.kernels.Linear())


def test_message_names_the_replicate():
    y, p = softmax_problem(20, 3)
    values = iter([0.1, 0.2, 0.3, math.inf])
    with pytest.raises(ValueError, match="`estimator` returned inf for replicate 2, expected a finite number"):
        run(y, p, estimator=lambda a, b: next(values), n_resamples=5)


def test_given_locations():
    y, p = softmax_problem(20, 3)
    given = {"locations": ([0, 1], p[:2])}
    result = run(y, p, estimator="ucme", kernel=KERNEL, n_resamples=5, **given)
    assert result.estimate == kcalib.ucme(y, p, kernel=KERNEL, **given)
    assert result.locations["test_labels"] == (0, 1) and result.locations["seed"] is None


@pytest.mark.parametrize("estimator", ["unbiased", "ucme"])
def test_warnings_point_at_the_users_line(estimator):
    y, p = softmax_problem(20, 3)
    kernel = kcalib.kernels.Gaussian(bandwidth=0.5, metric="cityblock")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kcalib.calibration_test(y, p, method=Consistency(estimator, n_resamples=2), kernel=kernel)
        line = sys._getframe().f_lineno - 1
    assert [(w.category, w.filename, w.lineno) for w in caught] == [
        (kcalib.IndefiniteKernelWarning, __file__, line),
        (AntiConservativeWarning, __file__, line),
    ]
