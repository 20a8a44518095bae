"""What a state says, against the functions that have all samples in memory."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import tracemalloc
import warnings

import numpy as np
import pytest
import scipy
from hard_laws import LAWS, Law, dirichlet, drawn_labels, rare, saturated

import kcalib
from kcalib._command import machine
from kcalib._command.jobs import Model
from kcalib.estimators.bands import binomial_band, clopper_pearson, count_law
from kcalib.estimators.event_bins import Bins
from kcalib.kernels import Exponential, Gaussian, Linear
from kcalib.lenses import Canonical, ClassWise, Groups, TopK, TopLabel
from kcalib.report import figures
from kcalib.streaming import CalibrationState

KERNEL = Exponential(0.3)
PREDICTIONS = {
    "soft": Law(700, dirichlet(3, 1.0)),
    "binary": Law(500, dirichlet(2, 0.5)),
    "ten": Law(300, dirichlet(10, 0.3)),
    "saturated": Law(400, saturated(-8, -4)),
    "rare": Law(300, rare),
    "tied": LAWS["20 distinct rows"],
    "certain and not": LAWS["one-hot and uncertain"],
    "four": Law(4, dirichlet(3, 1.0)),
    "twenty": Law(20, dirichlet(5, 0.3)),
}


def problem(name, *, off=0.8, seed=0):
    """Labels of a model that is off in some of the rows."""
    rng = np.random.default_rng(seed)
    law = PREDICTIONS[name]
    p = law.draw(law.n, rng)
    q = p**off / (p**off).sum(axis=1, keepdims=True)
    return drawn_labels(q, rng), p


def state_of(y, p, pieces=7, **options):
    options = {"kernel": KERNEL, "n_columns": 64, "n_resamples": 99} | options
    state = CalibrationState(p.shape[1], **options)
    for rows in np.array_split(np.arange(len(y)), min(pieces, len(y))):
        state.update(y[rows], p[rows])
    return state


def near(one, other, tolerance=1e-12):
    """Fields of results are equal but for rounding, and but for the time and what says how they were computed."""
    skipped = {"seconds", "backend_reason", "bandwidth_source", "bins"}
    mine, theirs = (dataclasses.asdict(result) for result in (one, other))
    assert mine.keys() == theirs.keys()
    for name in mine.keys() - skipped:
        a, b = mine[name], theirs[name]
        if isinstance(a, float) and isinstance(b, float):
            assert a == pytest.approx(b, rel=tolerance, abs=1e-15), name
        elif isinstance(a, dict):
            near(getattr(one, name), getattr(other, name), tolerance)
        elif (isinstance(a, tuple) and a and isinstance(a[0], float)) or isinstance(a, np.ndarray):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=1e-15, err_msg=name)
        else:
            assert a == b, name


def near_test(found, y, p, **options):
    """The p-value and its blocks are those of the adaptive test, the estimate is that of the test by features."""
    options = {"kernel": KERNEL, "seed": 0} | options
    adaptive = kcalib.calibration_test(y, p, method=kcalib.methods.Adaptive(99, 64), **options)
    features = kcalib.calibration_test(y, p, method=kcalib.methods.Features(64, 99), **options)
    for mine, theirs in zip(found.blocks, adaptive.blocks, strict=True):
        near(mine, theirs, 1e-8)
    of_adaptive = ["method", "statistic", "null_quantiles", "n_resamples"]
    of_adaptive += ["pvalue", "log_pvalue", "pvalue_from", "null_law", "finding"]
    fields = {name: getattr(adaptive, name) for name in of_adaptive}
    if found.pvalue_from == "bound":  # of the temperature it is larger, of fixed tilts
        assert adaptive.log_pvalue - 1e-9 <= found.log_pvalue <= max(0.7 * adaptive.log_pvalue, -math.log(100))
        fields |= {name: getattr(found, name) for name in of_adaptive[-5:]}
    near(
        dataclasses.replace(found, blocks=None),
        dataclasses.replace(features, features_freedom=found.features_freedom, **fields),
        1e-8,
    )


def near_result(found, expected):
    """But for the test, and for what follows from its p-value."""
    said = {
        name: getattr(found, name)
        for name in ("test", "verdict", "miscalibrated", "kernel_eigenvalue", "rms_error_from")
    }
    assert found.rms_error_lower <= expected.rms_error_lower or found.test.pvalue < 0.05
    near(found, dataclasses.replace(expected, rms_error_lower=found.rms_error_lower, **said), 1e-8)
    no_evidence = "no evidence against calibration"
    assert found.verdict.startswith(f"miscalibrated, {found.test.finding}" if found.miscalibrated else no_evidence)


@pytest.mark.parametrize("name", PREDICTIONS)
def test_all_results_are_those_of_samples_in_memory(name):
    y, p = problem(name)
    state, method = state_of(y, p), kcalib.methods.Features(n_columns=64, n_resamples=99)
    expected = kcalib.skce.result(y, p, kernel=KERNEL, estimator=kcalib.methods.FeatureEstimator(n_columns=64))
    assert state.skce().value == pytest.approx(expected.value, rel=1e-12, abs=1e-18)
    if len(y) <= 256:  # which a state without draws keeps
        mine = state_of(y, p, n_resamples=0).skce()
        assert mine.standard_error >= expected.standard_error * (1 - 1e-9)  # as of the test, at least that of the law
        near(dataclasses.replace(mine, standard_error=expected.standard_error), expected, 1e-9)
    near_test(state.calibration_test(), y, p)
    near_result(state.result(), kcalib.evaluate(y, p, kernel=KERNEL, method=method))
    for norm in ("l1", "l2", "max"):
        near(state.top_label_ece(norm=norm), kcalib.top_label_ece.result(y, p, norm=norm))
        near(state.class_wise_ece(norm=norm), kcalib.class_wise_ece.result(y, p, norm=norm))
    near(state.brier_decomposition(), kcalib.brier_decomposition(y, p), 1e-9)


def test_bins_are_those_in_memory():
    y, p = problem("ten")
    mine = state_of(y, p, n_bins=7).class_wise_ece().bins
    theirs = kcalib.class_wise_ece.result(y, p, n_bins=7).bins
    for a, b in zip(mine, theirs, strict=True):
        assert np.array_equal(a.edges, b.edges) and np.array_equal(a.weight, b.weight)
        np.testing.assert_allclose([a.confidence, a.accuracy], [b.confidence, b.accuracy], rtol=1e-14)


def test_class_weights():
    y, p = problem("soft")
    options = {"class_weight": [1.0, 0.0, 3.0]}
    state = state_of(y, p)
    near(state.class_wise_ece(**options), kcalib.class_wise_ece.result(y, p, **options))
    options["notion"] = "class_wise"
    near(
        state.debiased_ece(**options),
        kcalib.debiased_ece.result(y, p, binning="uniform", n_bins=15, **options),
    )
    with pytest.raises(ValueError, match="`class_weight` is given, but notion='top_label' has no such option"):
        state.debiased_ece(class_weight=[1, 2, 3])
    with pytest.raises(ValueError, match="`notion` is 'canonical', expected one of"):
        state.debiased_ece(notion="canonical")
    with pytest.raises(ValueError, match="`norm` is 'l3', expected one of"):
        state.top_label_ece(norm="l3")
    with pytest.raises(ValueError, match=r"`class_weight` has shape \(2,\), expected \(3,\)"):
        state.class_wise_ece(class_weight=[1, 2])


@pytest.mark.parametrize(
    "kernel, target",
    [
        (Gaussian(0.4) + 0.5 * Linear(), None),
        (Exponential(0.5, metric="cityblock") * Linear(), None),
        (KERNEL, [[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 1.0]]),
        (KERNEL, Gaussian(1.0)),
    ],
    ids=str,
)
def test_kernels(kernel, target):
    y, p = problem("soft")
    state = state_of(y, p, kernel=kernel, target_kernel=target)
    near_test(state.calibration_test(), y, p, kernel=kernel, target_kernel=target)


@pytest.mark.parametrize(
    "lens", [TopLabel(), ClassWise(2), TopK(2), Groups([[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]])], ids=str
)
def test_lenses(lens):
    y, p = problem("ten")
    state, method = state_of(y, p, lens=lens), kcalib.methods.Features(n_columns=64, n_resamples=99)
    near_test(state.calibration_test(), y, p, lens=lens)
    near_result(state.result(), kcalib.evaluate(y, p, kernel=KERNEL, lens=lens, method=method))
    near(state.brier_decomposition(), kcalib.brier_decomposition(y, p, lens=lens), 1e-9)


def test_scores():
    """Standard errors by their definition."""
    y, p = problem("soft")
    scores = state_of(y, p).scores()
    e = np.eye(3)[y] - p
    values = {
        "accuracy": p.argmax(axis=1) == y,
        "mean_confidence": p.max(axis=1),
        "log_loss": -np.log(p[np.arange(len(y)), y]),
        "brier_score": (e * e).sum(axis=1),
    }
    for name, each in values.items():
        found = getattr(scores, name)
        assert found.value == pytest.approx(each.mean(), rel=1e-12)
        assert found.standard_error == pytest.approx(each.std(ddof=1) / math.sqrt(len(y)), rel=1e-9)
    assert CalibrationState(2, kernel=KERNEL).update([1], [0.3]).scores().accuracy.standard_error is None


def test_weights():
    y, p = problem("soft")
    w = np.random.default_rng(3).uniform(0, 4, size=len(y)) * (np.arange(len(y)) % 5 > 0)
    state = CalibrationState(3, kernel=KERNEL, n_columns=64, n_resamples=0)
    for rows in np.array_split(np.arange(len(y)), 4):
        state.update(y[rows], p[rows], w[rows])
    options = {"sample_weight": w}
    value = kcalib.skce(y, p, kernel=KERNEL, estimator=kcalib.methods.FeatureEstimator(n_columns=64), **options)
    assert state.skce().value == pytest.approx(value, rel=1e-10) and state.skce().standard_error is None
    assert float(state.top_label_ece()) == pytest.approx(kcalib.top_label_ece(y, p, **options), rel=1e-12)
    scores = state.scores()
    assert scores.brier_score.value == pytest.approx(kcalib.brier_score(y, p, **options), rel=1e-12)
    assert scores.log_loss.value == pytest.approx(kcalib.log_loss(y, p, **options), rel=1e-12)
    assert scores.log_loss.standard_error is None
    parts, expected = state.brier_decomposition(), kcalib.brier_decomposition(y, p, **options)
    assert parts.miscalibration == pytest.approx(expected.miscalibration, rel=1e-10)
    assert parts.within_covariance == pytest.approx(expected.within_covariance, rel=1e-8)
    assert parts.noise is None and parts.n_singletons is None
    result = state.result()
    assert result.rms_error_lower is None
    diagram, theirs = state.reliability(), kcalib.reliability(y, p, **options)
    assert diagram.confidence_band is None and diagram.consistency_band is None
    np.testing.assert_allclose(diagram.frequency, theirs.frequency, rtol=1e-12)
    diagram.plot()
    with pytest.raises(
        ValueError, match="`tolerance` is 0.1, but there is no bound.*weighted samples have no confidence"
    ):
        state.result(tolerance=0.1)
    with pytest.raises(ValueError, match="the ECE of weighted samples has no interval"):
        state.ece_interval()
    with pytest.raises(ValueError, match="the noise of weighted samples is not known from a state"):
        state.debiased_ece()
    with pytest.raises(ValueError, match="how many weighted samples are in the bins of a class is not known"):
        state.reliability(lens=ClassWise(1))


def test_memory_of_many_classes_is_that_of_the_sums():
    """Not that of a matrix of all pairs of classes: 128 MB here."""
    m = 4096
    p = np.random.default_rng(0).dirichlet(np.full(m, 0.01), size=3)
    tracemalloc.start()
    state = CalibrationState(m, kernel=Exponential(0.5), n_columns=16, n_resamples=0).update([0, 1, 2], p)
    assert state.skce().n_samples == 3
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32e6


@pytest.mark.parametrize("lens", [None, TopLabel(), ClassWise(1)], ids=str)
@pytest.mark.parametrize("simultaneous", [False, True])
def test_diagram(lens, simultaneous):
    y, p = problem("soft")
    diagram = state_of(y, p).reliability(lens=lens, simultaneous=simultaneous)
    expected = kcalib.reliability(y, p, lens=lens, simultaneous=simultaneous)
    for name in ("edges", "count", "weight", "confidence", "frequency", "points", "histogram"):
        np.testing.assert_allclose(getattr(diagram, name), getattr(expected, name), rtol=1e-12, err_msg=name)
    for a, b in zip(diagram.confidence_band, expected.confidence_band, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)
    if lens != ClassWise(1):
        np.testing.assert_array_equal(diagram.lowest, expected.lowest)
    # The binomial law is at most a label wider on either side, in these bins.
    mine, exact = diagram.consistency_band, expected.consistency_band
    used = diagram.count > 0
    assert np.all(mine.low[used] <= exact.low[used] + 1e-12) and np.all(mine.high[used] >= exact.high[used] - 1e-12)
    assert np.all((exact.low - mine.low)[used] * diagram.count[used] < 1.5)
    assert (diagram.lens, diagram.consistency_method) == (expected.lens, "binomial")
    diagram.plot()


def test_what_a_diagram_is_of():
    y, p = problem("ten")
    assert state_of(y, p, lens=TopLabel()).reliability().lens == str(TopLabel())
    assert state_of(y, p, lens=TopK(2)).reliability().lens == f"{TopLabel()} of {TopK(2)}"
    state = state_of(y, p)
    assert state.reliability(bands="confidence").consistency_band is None
    assert state.reliability(bands="consistency").confidence_band is None
    with pytest.raises(ValueError, match=r"of which a state of 10 classes has no bins"):
        state.reliability(lens=Canonical())
    with pytest.raises(ValueError, match=r"expected a class 0\.\.9"):
        state.reliability(lens=ClassWise(10))
    with pytest.raises(ValueError, match="`confidence_level` is 2"):
        state.reliability(confidence_level=2)


@pytest.mark.parametrize("n", [1, 2, 5, 30, 400])
@pytest.mark.parametrize("tail", [0.1, 0.025, 1e-4])
def test_binomial_limits_hold(n, tail):
    """Against the exact law of numbers of events with these probabilities."""
    rng = np.random.default_rng(n)
    for low, high in ((0.0, 1e-3), (0.3, 0.4), (0.0, 1.0), (1 - 1e-9, 1.0), (0.0, 0.0), (1.0, 1.0)):
        p = rng.uniform(low, high, size=n)
        one = np.array([float(n)])
        bins = Bins(np.array([n]), one, one, np.array([p.mean()]), np.array([0.0]), one, one)
        band, law = binomial_band(bins, tail), count_law(p)
        counts = np.arange(n + 1) / n
        assert law[counts < band.low[0] - 1e-12].sum() <= tail + 1e-12
        assert law[counts > band.high[0] + 1e-12].sum() <= tail + 1e-12
        assert 0 <= band.low[0] <= band.high[0] <= 1
    assert clopper_pearson(bins, tail).low[0] == 0


def test_few_samples():
    state = CalibrationState(2, kernel=KERNEL)
    with pytest.raises(ValueError, match=r"there are no samples yet; add some by update or merge"):
        state.result()
    state.update([1], [0.3])
    with pytest.raises(ValueError, match="the SKCE needs at least 2 samples, and there is 1; add more"):
        state.skce()
    assert state.top_label_ece().value == pytest.approx(0.7)
    with pytest.raises(ValueError, match="an interval needs at least 4 samples, the state has 1"):
        state.ece_interval()
    with pytest.raises(
        ValueError, match="the SKCE needs at least 2 samples of positive weight, and there is 1; add more"
    ):
        CalibrationState(2, kernel=KERNEL).update([1, 0], [0.3, 0.2], [1.0, 0.0]).skce()
    state.update([0], [0.3])
    assert state.skce().standard_error is None and state.result().rms_error_lower is None


def test_arguments_are_checked():
    state = state_of(*problem("soft"))
    with pytest.raises(ValueError, match="`level` is 2, expected a number between 0 and 1"):
        state.result(level=2)
    with pytest.raises(ValueError, match="`tolerance` is -1"):
        state.result(tolerance=-1)
    with pytest.raises(ValueError, match="`confidence_level` is 1.5"):
        state.ece_interval(confidence_level=1.5)


def test_tolerance():
    y, p = problem("soft", off=0.4)
    result = state_of(y, p).result(tolerance=0.01)
    assert result.miscalibrated and result.tolerance == 0.01 < result.rms_error_lower


def test_predictions_that_are_certain():
    y, p = np.array([0, 1, 0, 1, 1, 0]), np.eye(2)[[0, 1, 0, 1, 1, 0]]
    right = state_of(y, p, n_resamples=0).calibration_test()
    wrong = state_of(1 - y, p, n_resamples=0).calibration_test()
    assert (right.pvalue, wrong.pvalue) == (1.0, 0.0)
    assert state_of(y, p).calibration_test().pvalue == 1.0


def test_json_and_csv():
    """What the command writes, of an evaluation from a state."""
    y, p = problem("soft")
    model = Model("a", "a.npz", "labels", state_of(y, p).result(), None)
    options = argparse.Namespace(level=0.05, tolerance=None, seed=0)
    found = json.loads(machine.evaluations_json([model], [], options))
    assert found["models"][0]["skce"]["estimator"] == "features"
    assert machine.evaluations_csv([model]).count("\n") == 2


def test_picture_of_the_command(tmp_path):
    state = state_of(*problem("soft"))
    result = state.result()
    notes, diagram = tuple(result.notes()), state.reliability()
    panel = figures.Panel("a", result.verdict, result.miscalibrated, notes, diagram, figures.RELIABILITY)
    figures.plot_reliability([panel], tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size > 1000


def test_a_state_of_more_rows_than_it_keeps():
    """Estimates are exact; standard errors and limits come from some rows, and are near those of all."""
    rng = np.random.default_rng(5)
    p = rng.dirichlet(np.ones(3), size=4500)
    y = drawn_labels(p**0.7 / (p**0.7).sum(axis=1, keepdims=True), rng)
    expected = kcalib.skce.result(y, p, kernel=KERNEL, estimator=kcalib.methods.FeatureEstimator(n_columns=64))
    method = kcalib.methods.Features(n_columns=64, n_resamples=99)
    in_memory = kcalib.calibration_test(y, p, kernel=KERNEL, method=method, seed=0)
    for n_resamples, tolerance in ((0, 0.25), (99, 0.2)):
        state = state_of(y, p, n_resamples=n_resamples)
        result, test = state.skce(), state.calibration_test()
        assert result.value == pytest.approx(expected.value, rel=1e-12)
        assert result.standard_error == pytest.approx(expected.standard_error, rel=tolerance)
        assert result.null_standard_error == pytest.approx(expected.null_standard_error, rel=tolerance)
        if not n_resamples:
            assert test.log_pvalue == pytest.approx(in_memory.log_pvalue, rel=tolerance)
        interval, theirs = test.confidence_interval(), in_memory.confidence_interval()
        assert interval.low == pytest.approx(theirs.low, rel=tolerance)
        assert interval.high == pytest.approx(theirs.high, rel=tolerance)


def test_rows_that_the_sample_lacks_count_as_one():
    """Two uncertain rows among many that are sure: a state without draws warns, and does not trust its sample."""
    rng = np.random.default_rng(0)
    p = np.full((3000, 2), 1e-9)
    p[:, 0] = 1 - 1e-9
    hidden = np.setdiff1d(np.arange(3000), state_of(np.zeros(3000, int), p, n_resamples=0)._totals().sample_rows)[:2]
    p[hidden] = 0.5
    y = np.zeros(3000, int)
    y[hidden] = rng.integers(2, size=2)
    state = state_of(y, p, n_resamples=0)
    with pytest.warns(kcalib.AntiConservativeWarning, match=r"about 1 uncertain events.*n_resamples=199"):
        test = state.calibration_test()
    assert test.pvalue > 0.05
    assert test.null_standard_error == pytest.approx(math.sqrt(2) * state._totals().null_own / (3000 * 2999), rel=1e-3)


def test_sizes_of_files():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(10), size=12_000)
    y = rng.integers(10, size=12_000)
    state = CalibrationState(10, n_resamples=0).update(y, p)
    assert len(state.to_bytes()) < 100_000
    # All blocks of 4096 rows but two are added; what is open, and the sample, are as large as they can be.
    drawn = CalibrationState(10, n_resamples=199, n_columns=256)
    assert drawn.options.n_resamples == 199
    assert len(drawn.update(y[:4095], p[:4095]).to_bytes()) < 14_000_000


def test_interval_of_the_ece_against_the_bootstrap():
    """That of `kcalib.compare`, from a bootstrap of the samples."""
    for name in ("soft", "ten", "saturated", "certain and not"):
        y, p = problem(name)
        found = state_of(y, p).ece_interval()
        expected = kcalib.compare(y, {"a": p, "b": p}, metric="ece").model("a").confidence_interval
        width = expected.high - expected.low
        assert found.low == pytest.approx(expected.low, abs=0.1 * width + 1e-12), name
        assert found.high == pytest.approx(expected.high, abs=0.1 * width + 1e-12), name


def true_ece(p, q, n_bins=15):
    """With these bins, of predictions p with true probabilities q of the labels."""
    top, confidence = p.argmax(axis=1), p.max(axis=1)
    gaps = q[np.arange(len(p)), top] - confidence
    bins = np.ceil(confidence * n_bins)
    return sum(abs(gaps[bins == b].sum()) for b in np.unique(bins)) / len(p)


@pytest.mark.slow
@pytest.mark.parametrize("off", [1.0, 0.9, 0.5])
@pytest.mark.parametrize("name", ["Dir(1), m = 2", "Dir(1), m = 10", "Dir(.1), m = 10", "saturated, 1e-6..1e-3"])
def test_intervals_of_the_ece_hold_it(name, off):
    rng, level, count = np.random.default_rng(7), 0.9, 300
    many = LAWS[name].draw(200_000, rng)
    truth = true_ece(many, many**off / (many**off).sum(axis=1, keepdims=True))
    held = 0
    for _ in range(count):
        p = LAWS[name].draw(500, rng)
        y = drawn_labels(p**off / (p**off).sum(axis=1, keepdims=True), rng)
        low, high = state_of(y, p, n_columns=16, n_resamples=0, pieces=1).ece_interval(confidence_level=level)
        held += low <= truth <= high
    assert held >= scipy.stats.binom.ppf(1e-3, count, level)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_level_without_draws(name):
    """Within binomial limits, or warned; of more rows than the state keeps."""
    law, rng, count = LAWS[name], np.random.default_rng(11), 400
    n = max(law.n, 600)
    rejected = warned = 0
    for _ in range(count):
        y, p = law.calibrated(rng, n)
        state = state_of(y, p, n_resamples=0, pieces=1, kernel=None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            test = state.calibration_test()
        warned += bool(caught)
        rejected += test.pvalue < 0.05 and not caught
    allowed = scipy.stats.binom.ppf(1 - 1e-3, max(1, count - warned), 0.05)
    assert rejected <= allowed, (rejected, warned, allowed)


def true_skce(p, q):
    """Of predictions p with true probabilities q of the labels, over all pairs."""
    squares = (p * p).sum(axis=1)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * p @ p.T, 0.0))
    products = np.exp(-distances / KERNEL.bandwidth) * ((q - p) @ (q - p).T)
    np.fill_diagonal(products, 0.0)
    return products.sum() / (len(p) * (len(p) - 1))


@pytest.mark.slow
@pytest.mark.parametrize("name, off", [("Dir(1), m = 2", 0.8), ("Dir(1), m = 10", 0.8), ("Dir(.1), m = 10", 0.5)])
def test_intervals_of_the_skce_hold_it(name, off):
    """Of more rows than the state keeps, from which their spread comes."""
    rng, level, count = np.random.default_rng(9), 0.9, 150
    many = LAWS[name].draw(5000, rng)
    truth = true_skce(many, many**off / (many**off).sum(axis=1, keepdims=True))
    held = 0
    for seed in range(count):
        p = LAWS[name].draw(2000, rng)
        y = drawn_labels(p**off / (p**off).sum(axis=1, keepdims=True), rng)
        state = state_of(y, p, pieces=1, n_columns=128, n_resamples=0, seed=seed)
        low, high = state.calibration_test().confidence_interval(level)
        held += low <= truth <= high
    assert held >= scipy.stats.binom.ppf(1e-3, count, level)


def test_the_first_rows_may_be_identical():
    """What every base-rate model predicts: the kernel is 1 at each bandwidth, until other predictions come."""
    rng = np.random.default_rng(0)
    y, p = rng.choice(3, 2300, p=[0.2, 0.3, 0.5]), np.tile([0.25, 0.3, 0.45], (2300, 1))
    state = state_of(y, p, pieces=3, kernel=None, n_columns=32, n_resamples=19)
    found = state.result()
    assert found.skce.value == pytest.approx(kcalib.skce(y, p), rel=1e-9)
    assert found.skce.bandwidth_source == "no median: the first 2000 predictions are identical"
    assert state.kernel == Exponential(1.0)
    halves = [CalibrationState(3, n_columns=32, part=k).update(y, p) for k in range(2)]
    assert (halves[0] + halves[1]).skce().bandwidth_source == found.skce.bandwidth_source

    later = rng.dirichlet(np.ones(3), size=300)
    state.update(y[:300], later)
    expected = CalibrationState(3, kernel=Exponential(1.0), n_columns=32, n_resamples=19)
    expected.update(np.append(y, y[:300]), np.concatenate([p, later]))
    assert state.skce().value == pytest.approx(expected.skce().value, rel=1e-12)


@pytest.mark.parametrize("p", [np.full((40, 3), 1 / 3), np.array([[0.2, 0.3, 0.5]])], ids=["identical", "one"])
def test_bins_and_scores_need_no_bandwidth(p):
    """Where the rows do not have a median distance, all that needs no kernel is there."""
    y = np.arange(len(p)) % 3
    state, given = CalibrationState(3).update(y, p), CalibrationState(3, kernel=Exponential(0.5)).update(y, p)
    assert state.scores() == given.scores()
    assert state.top_label_ece().value == pytest.approx(kcalib.top_label_ece(y, p, n_bins=15))
    assert state.class_wise_ece().value == given.class_wise_ece().value
    assert state.brier_decomposition() == given.brier_decomposition()
    np.testing.assert_array_equal(state.reliability().count, given.reliability().count)
    assert state.kernel is None
    if len(p) > 1:
        found, expected = state.result(), kcalib.evaluate(y, p, method="features")
        assert found.skce.value == pytest.approx(expected.skce.value, rel=1e-12)
        assert found.skce.bandwidth_source == expected.skce.bandwidth_source
        assert found.skce.bandwidth_source.startswith("any: the distances of all predictions are 0")
    else:
        with pytest.raises(ValueError, match="at least 2 samples, and there is 1"):
            state.result()
