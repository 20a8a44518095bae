"""Reliability diagrams: by hand, against literal sums and scikit-learn, and the coverage of both bands."""

from __future__ import annotations

import itertools
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from problems import binomial_bounds, softmax_problem

import kcalib
from kcalib.estimators.bands import count_law
from kcalib.lenses import Canonical, ClassWise, TopLabel

BINARY = {"lens": Canonical()}


def binary_problem(n=300, seed=0, power=1.0):
    rng = np.random.default_rng(seed)
    p = rng.beta(1.5, 1.0, size=n)
    return (rng.uniform(size=n) < p**power).astype(int), p


def literal_law(probabilities):
    """Sum over all outcomes."""
    law = np.zeros(len(probabilities) + 1)
    for outcome in itertools.product((0, 1), repeat=len(probabilities)):
        law[sum(outcome)] += np.prod([p if o else 1 - p for o, p in zip(outcome, probabilities)])
    return law


def test_bins_by_hand():
    # (0, 1/4], (1/4, 1/2], ...: 0 and 0.25 in the first, 0.5 in the second.
    y, p = [0, 1, 0, 1, 1], [0.0, 0.25, 0.5, 0.75, 0.625]
    d = kcalib.reliability(y, p, n_bins=4, **BINARY)
    assert d.edges.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert d.count.tolist() == d.weight.tolist() == [2, 1, 2, 0]
    assert d.confidence[:3].tolist() == [0.125, 0.5, 0.6875]
    assert d.frequency[:3].tolist() == [0.5, 0, 1]
    assert d.lowest[:3].tolist() == [0, 0.5, 0.625] and d.highest[:3].tolist() == [0.25, 0.5, 0.75]
    assert d.histogram.tolist() == [0.4, 0.2, 0.4, 0]
    empty = (d.confidence, d.frequency, d.lowest, d.highest, *d.consistency_band)
    assert all(np.isnan(a[3]) for a in empty)
    assert (d.confidence_band.low[3], d.confidence_band.high[3]) == (0, 1)
    assert (d.n_bins, d.n_samples, d.consistency_method, d.n_resamples, d.seed) == (4, 5, "exact", None, None)
    assert repr(d).startswith("ReliabilityDiagram(binning='uniform', n_bins=4, lens=Canonical(), n_samples=5")


def test_equal_mass_by_hand():
    # Six samples in three bins of two; the tie at 0.5 is not split, so that 0.5 three times ends the second bin.
    p = [0.1, 0.2, 0.5, 0.5, 0.5, 0.9]
    d = kcalib.reliability([0, 0, 1, 0, 1, 1], p, binning="equal_mass", n_bins=3, **BINARY)
    assert d.edges.tolist() == [0, 0.2, 0.5, 1] and d.count.tolist() == [2, 3, 1]
    # One value: one bin. Half zeros: a bin of their own.
    assert kcalib.reliability([0, 1], [0.3, 0.3], binning="equal_mass", **BINARY).n_bins == 1
    d = kcalib.reliability([0, 0, 1, 1], [0.0, 0.0, 0.5, 1.0], binning="equal_mass", n_bins=2, **BINARY)
    assert d.edges.tolist() == [0, 0, 1] and d.count.tolist() == [2, 2]
    # The weight counts: 3 of 6 are reached at 0.1.
    d = kcalib.reliability([0, 1, 1, 1], [0.1, 0.2, 0.3, 0.4], binning="equal_mass", n_bins=2,
                           sample_weight=[3, 1, 1, 1], **BINARY)  # fmt: skip
    assert d.count.tolist() == [1, 3] and d.weight.tolist() == [3, 3]


def test_equal_mass_bins_differ_by_one_sample_at_most():
    y, p = binary_problem(1003)
    for n_bins in (1, 2, 7, 15, 500, 1003):
        counts = kcalib.reliability(y, p, binning="equal_mass", n_bins=n_bins, bands="confidence", **BINARY).count
        assert len(counts) == n_bins and counts.max() - counts.min() <= 1


def test_isotonic_by_hand():
    # Pool adjacent violators: 1 and 0 at 0.2 and 0.4 become 1/2; the tie at 0.7 has 2/3; 0.9 has 1.
    y, p = [0, 1, 0, 1, 0, 1, 1], [0.1, 0.2, 0.4, 0.7, 0.7, 0.7, 0.9]
    d = kcalib.reliability(y, p, binning="isotonic", **BINARY)
    assert d.count.tolist() == [1, 2, 3, 1]
    np.testing.assert_allclose(d.frequency, [0, 1 / 2, 2 / 3, 1])
    assert d.edges.tolist() == [0, 0.1, 0.4, 0.7, 1] and d.points.tolist() == [0.1, 0.2, 0.4, 0.7, 0.9]
    assert d.confidence_band is None and (d.n_resamples, d.seed, d.consistency_method) == (999, 0, "resampling")


@pytest.mark.parametrize("weighted", [False, True])
def test_isotonic_agrees_with_scikit_learn(weighted):
    isotonic = pytest.importorskip("sklearn.isotonic")
    y, p = binary_problem(500, seed=3, power=2.0)
    p = p.round(2)  # ties
    w = np.random.default_rng(1).uniform(0.5, 2, size=500) if weighted else None
    d = kcalib.reliability(y, p, binning="isotonic", sample_weight=w, **BINARY)
    expected = isotonic.IsotonicRegression().fit_transform(p, y, sample_weight=w)
    np.testing.assert_allclose(d.frequency[np.searchsorted(d.edges[1:-1], p)], expected, rtol=1e-12, atol=1e-15)


def test_agrees_with_scikit_learn_calibration_curve():
    calibration = pytest.importorskip("sklearn.calibration")
    y, p = binary_problem(990)
    for strategy, binning in (("uniform", "uniform"), ("quantile", "equal_mass")):
        share, mean = calibration.calibration_curve(y, p, n_bins=10, strategy=strategy)
        d = kcalib.reliability(y, p, n_bins=10, binning=binning, **BINARY)
        filled = d.count > 0
        np.testing.assert_allclose(d.frequency[filled], share, rtol=1e-12)
        np.testing.assert_allclose(d.confidence[filled], mean, rtol=1e-12)


def test_lenses():
    y, p = softmax_problem(400, 4)
    top = kcalib.reliability(y, p)
    assert top.lens == str(TopLabel())
    same = kcalib.reliability(p.argmax(axis=1) == y, p.max(axis=1), **BINARY)
    np.testing.assert_array_equal(top.frequency, same.frequency)
    one = kcalib.reliability(y, p, lens=ClassWise(2))
    same = kcalib.reliability(y == 2, p[:, 2], **BINARY)
    np.testing.assert_array_equal(one.frequency, same.frequency)
    with pytest.raises(
        ValueError, match=r"`lens` is Canonical\(\), which has 4 induced classes, expected a lens with two"
    ):
        kcalib.reliability(y, p, lens=Canonical())
    with pytest.raises(TypeError, match="`lens` is 'top', expected a lens"):
        kcalib.reliability(y, p, lens="top")


def test_weights_of_ones_and_of_zero():
    y, p = binary_problem(200)
    w = np.random.default_rng(0).integers(0, 4, size=200)
    weighted = kcalib.reliability(y, p, sample_weight=w, **BINARY)
    repeated = kcalib.reliability(np.repeat(y, w), np.repeat(p, w), **BINARY)
    for name in ("weight", "confidence", "frequency", "lowest", "highest", "histogram"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-12)
    some = w > 0
    dropped = kcalib.reliability(y[some], p[some], sample_weight=w[some], **BINARY)
    np.testing.assert_array_equal(dropped.consistency_band.low, weighted.consistency_band.low)
    np.testing.assert_array_equal(weighted.count, dropped.count)
    equal = kcalib.reliability(y, p, sample_weight=np.full(200, 0.1), **BINARY)
    plain = kcalib.reliability(y, p, **BINARY)
    np.testing.assert_allclose(equal.confidence_band, plain.confidence_band, rtol=1e-9)  # n is (sum w)^2 / sum w^2


def test_law_of_counts():
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 5, 8):
        p = rng.uniform(size=n)
        p[0] = 1.0
        np.testing.assert_allclose(count_law(p), literal_law(p), rtol=1e-13, atol=1e-17)
    for n in (60, 500):  # by convolution, one event at a time
        p = rng.uniform(size=n)
        law = np.ones(1)
        for q in p:
            law = np.convolve(law, [1 - q, q])
        np.testing.assert_allclose(np.cumsum(count_law(p)), np.cumsum(law), rtol=0, atol=1e-15 * n)


def test_exact_band_is_that_of_the_literal_law():
    p = np.array([0.55, 0.6, 0.7, 0.8, 0.9, 0.95])
    for level in (0.5, 0.9, 0.99):
        d = kcalib.reliability(np.ones(6, int), p, n_bins=1, confidence_level=level, **BINARY)
        law, tail = literal_law(p), (1 - level) / 2
        low = min(k for k in range(7) if law[: k + 1].sum() > tail)
        high = max(k for k in range(7) if law[k:].sum() > tail)
        assert (d.consistency_band.low[0] * 6, d.consistency_band.high[0] * 6) == pytest.approx((low, high))


def test_confidence_band_is_clopper_pearson():
    stats = pytest.importorskip("scipy.stats")
    y, p = binary_problem(80)
    d = kcalib.reliability(y, p, n_bins=10, confidence_level=0.9, **BINARY)
    simultaneous = kcalib.reliability(y, p, n_bins=10, confidence_level=0.9, simultaneous=True, **BINARY)
    filled = np.flatnonzero(d.count)
    for diagram, level in ((d, 0.9), (simultaneous, 0.9 ** (1 / len(filled)))):
        for b in filled:
            test = stats.binomtest(round(d.count[b] * d.frequency[b]), int(d.count[b]))
            expected = test.proportion_ci(level, method="exact")
            found = diagram.confidence_band.low[b], diagram.confidence_band.high[b]
            assert found == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert np.all(simultaneous.consistency_band.low[filled] <= d.consistency_band.low[filled])


@pytest.mark.parametrize("simultaneous", [False, True])
def test_coverage_of_the_bands_of_bins(simultaneous):
    """Both bands of a calibrated model fail at most as often as they say; the exact one not for want of trying."""
    rng = np.random.default_rng(5)
    p, trials, level = rng.beta(2, 2, size=120), 400, 0.9
    options = {"n_bins": 5, "confidence_level": level, "simultaneous": simultaneous, **BINARY}
    outside = {"confidence": [], "consistency": []}
    for _ in range(trials):
        d = kcalib.reliability((rng.uniform(size=120) < p).astype(int), p, **options)
        for name, value in (("confidence", d.confidence), ("consistency", d.frequency)):
            band = getattr(d, f"{name}_band")
            outside[name].append((value < band.low - 1e-12) | (value > band.high + 1e-12))
    for name, table in outside.items():
        failures = np.any(table, axis=1, keepdims=True) if simultaneous else np.array(table)
        assert np.all(failures.mean(axis=0) <= binomial_bounds(trials, 1 - level)[1]), name
    assert np.mean(outside["consistency"]) > (0.002 if simultaneous else 0.02)


@pytest.mark.parametrize("kind", ["weights", pytest.param("isotonic", marks=pytest.mark.grid)])
def test_coverage_of_drawn_bands(kind):
    """With labels and draws both anew."""
    rng = np.random.default_rng(6)
    p, trials = rng.beta(2, 2, size=60).round(2), 100
    options = {"binning": "isotonic"} if kind == "isotonic" else {"n_bins": 4, "sample_weight": rng.uniform(size=60)}
    outside = []
    for seed in range(trials):
        y = (rng.uniform(size=60) < p).astype(int)
        d = kcalib.reliability(y, p, confidence_level=0.9, seed=seed, **options, **BINARY)
        value = d.frequency
        if kind == "isotonic":
            value = d.frequency[np.searchsorted(d.edges[1:-1], d.points)]
        low, high = d.consistency_band
        outside.append((value < low - 1e-12) | (value > high + 1e-12))
    share = np.mean(outside, axis=0)
    assert np.all(share <= binomial_bounds(trials, 0.1, risk=1e-5)[1]) and np.mean(share) > 0.02


def test_bands_notice_miscalibration():
    y, p = binary_problem(2000, power=3.0)
    for binning in ("uniform", "equal_mass", "isotonic"):
        d = kcalib.reliability(y, p, binning=binning, **BINARY)
        curve = d.frequency[np.searchsorted(d.edges[1:-1], d.points)]
        assert np.nanmean(curve < d.consistency_band.low) > 0.7
    assert np.nanmean(kcalib.reliability(y, p, **BINARY).confidence_band.high < d.confidence.max()) > 0.5


def test_drawn_bands_depend_on_the_seed_alone():
    y, p = binary_problem(150)
    options = {"binning": "isotonic", **BINARY}
    first = kcalib.reliability(y, p, seed=1, **options).consistency_band
    np.testing.assert_array_equal(kcalib.reliability(y, p, seed=1, **options).consistency_band, first)
    order = np.random.default_rng(0).permutation(150)
    np.testing.assert_array_equal(kcalib.reliability(y[order], p[order], seed=1, **options).consistency_band, first)
    assert np.any(kcalib.reliability(y, p, seed=2, **options).consistency_band[0] != first[0])


def test_isotonic_band_has_at_most_a_thousand_points():
    y, p = binary_problem(3000)
    d = kcalib.reliability(y, p, binning="isotonic", **BINARY)
    assert len(d.points) == 1000 and d.points[0] == p.min() and d.points[-1] == p.max()
    assert np.all(np.diff(d.consistency_band.low) >= 0) and np.all(np.diff(d.consistency_band.high) >= 0)


@pytest.mark.parametrize("binning", ["uniform", "equal_mass", "isotonic"])
def test_extremes(binning):
    for y, p in (([1], [1.0]), ([0], [0.0]), ([1], [0.0]), ([1, 0, 1], [1.0, 0.0, 0.0]), ([1] * 9, [0.9] * 9)):
        d = kcalib.reliability(y, p, binning=binning, **BINARY)
        filled = d.count > 0
        assert d.count.sum() == len(y) and np.all(np.isfinite(d.frequency[filled]))
        low, high = (limit[np.isfinite(limit)] for limit in d.consistency_band)
        assert np.all((low >= 0) & (low <= high) & (high <= 1))
    # One-hot predictions: a calibrated model is always right.
    d = kcalib.reliability([0, 1, 1], np.eye(2)[[0, 1, 0]], binning=binning)
    assert (d.consistency_band.low[-1], d.consistency_band.high[-1]) == (1, 1)
    assert d.frequency[-1] == pytest.approx(2 / 3)


def test_float32_and_array_libraries(xp):
    y, p = softmax_problem(120, 3)
    p = p.astype(np.float32)
    expected = kcalib.reliability(y, p)
    found = kcalib.reliability(xp.asarray(y), xp.asarray(p))
    np.testing.assert_array_equal(found.frequency, expected.frequency)
    np.testing.assert_array_equal(found.consistency_band, expected.consistency_band)
    assert isinstance(found.frequency, np.ndarray) and found.frequency.dtype == np.float64


def test_errors():
    y, p = binary_problem(50)

    def fails(message, error=ValueError, **options):
        with pytest.raises(error, match=message):
            kcalib.reliability(y, p, **(BINARY | options))

    fails("`binning` is 'width', expected one of 'uniform', 'equal_mass', 'isotonic'", binning="width")
    fails("`n_bins` is 0, expected an integer between 1 and 1000000", n_bins=0)
    fails("`n_bins` is 5, but binning='isotonic' chooses the number; leave it out", binning="isotonic", n_bins=5)
    fails("`bands` is 'all', expected one of", bands="all")
    fails("`bands` is 'both', but binning='isotonic' is fitted to the labels", binning="isotonic", bands="both")
    fails("`simultaneous` is True, but the band of", binning="isotonic", simultaneous=True)
    fails("`simultaneous` is 1, expected True or False", TypeError, simultaneous=1)
    for level in (0, 1, 1.5, "high"):
        fails("`confidence_level` is .*, expected a number between 0 and 0.999999", confidence_level=level)
    fails("`seed` is 3, but nothing is drawn", seed=3)
    fails("`seed` is -1, expected an integer between 0", binning="isotonic", seed=-1)


def test_plots(tmp_path):
    pytest.importorskip("matplotlib")
    y, p = binary_problem(300, power=2.0)
    for binning in ("uniform", "equal_mass", "isotonic"):
        ax = kcalib.reliability(y, p, binning=binning, **BINARY).plot()
        path = tmp_path / f"{binning}.png"
        ax.figure.savefig(path)
        width, height = struct.unpack(">II", path.read_bytes()[16:24])
        assert 300 < width < 600 and width < height < 800
        diagram, histogram = ax.figure.axes
        assert diagram.get_ylabel() == "observed frequency" and histogram.get_xlabel() == "predicted probability"
        boxes = [axes.get_tightbbox() for axes in (diagram, histogram)]
        assert not boxes[0].overlaps(boxes[1]) and min(box.x0 for box in boxes) >= 0 and boxes[1].y0 >= 0
        assert sum(bar.get_height() for bar in histogram.patches) == pytest.approx(1)


def test_plot_draws_the_numbers():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    d = kcalib.reliability(*binary_problem(300, power=2.0), simultaneous=True, **BINARY)
    ax = Figure().subplots()
    assert d.plot(ax, color="black", histogram=False, legend=True) is ax and ax.figure.axes == [ax]
    used = d.count > 0
    low, high = (limit[used] for limit in d.consistency_band)
    bars = [(b.get_x(), b.get_y(), b.get_y() + b.get_height()) for b in ax.patches]
    np.testing.assert_allclose(bars, np.stack((d.edges[:-1][used], low, high), axis=1))
    intervals = [(s[0, 0], s[0, 1], s[1, 1]) for s in ax.collections[0].get_segments()]
    low, high = (limit[used] for limit in d.confidence_band)
    np.testing.assert_allclose(intervals, np.stack((d.confidence[used], low, high), axis=1))
    np.testing.assert_allclose(ax.collections[-1].get_offsets(), np.stack((d.confidence, d.frequency), axis=1)[used])
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["95 % consistency band, all bins at once", "95 % confidence interval, all bins at once"]


def test_plot_in_a_grid_and_outside_of_one(monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    d = kcalib.reliability(*softmax_problem(200, 3), bands="confidence")
    figure = Figure()
    for ax in figure.subplots(1, 2):
        d.plot(ax, legend=False)
    assert [axes.get_ylabel() for axes in figure.axes] == ["accuracy", "accuracy", "share", "share"]
    assert not figure.axes[0].patches and figure.axes[0].get_legend() is None
    alone = Figure().add_axes((0.1, 0.1, 0.8, 0.8))
    with pytest.raises(ValueError, match="`ax` is not a cell of a grid"):
        d.plot(alone)
    d.plot(alone, histogram=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'kcalib\[plot\]'"):
        d.plot()


def test_forecasts_of_rain():
    """Four forecasts of rain from the R package reliabilitydiag: the raw ensemble leaves its band, others hardly do."""
    folder = os.environ.get("KCALIB_DATA")
    if not folder or not (Path(folder) / "precip_niamey_2016.npz").is_file():
        pytest.skip("KCALIB_DATA does not hold the forecasts")
    with np.load(Path(folder) / "precip_niamey_2016.npz") as data:
        y, forecasts = data["labels"], {name: data[name] for name in data.files if name.startswith("p_")}
    outside = {}
    for name, p in forecasts.items():
        d = kcalib.reliability(y, p, binning="isotonic", confidence_level=0.9, **BINARY)
        curve = d.frequency[np.searchsorted(d.edges[1:-1], d.points)]
        assert np.all(np.diff(d.frequency) > 0)
        outside[name] = np.mean((curve < d.consistency_band.low) | (curve > d.consistency_band.high))
    assert outside["p_ENS"] > 0.3 and max(v for name, v in outside.items() if name != "p_ENS") < 0.3
