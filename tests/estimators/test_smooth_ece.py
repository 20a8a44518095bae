"""The smooth calibration error and its diagram: by hand, against quadrature, and the coverage of the band."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import scipy
from problems import binomial_bounds

import kcalib
from kcalib.lenses import Canonical, ClassWise

BINARY = {"lens": Canonical()}


def problem(n, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.beta(1.5, 1.0, size=n)
    return (rng.uniform(size=n) < p**1.3).astype(int), p, rng.uniform(size=n)


def literal_error(y, p, sigma, weight):
    """The definition, with every image of the reflected kernel, integrated by SciPy between fine nodes."""

    def residual(t):
        total = 0.0
        for label, confidence, w in zip(y, p, weight, strict=True):
            for k in range(-round(4 * sigma) - 1, round(4 * sigma) + 2):
                for image in (2 * k + confidence, 2 * k - confidence):
                    total += (
                        w
                        * (label - confidence)
                        * np.exp(-(((t - image) / sigma) ** 2) / 2)
                        / (sigma * np.sqrt(2 * np.pi))
                    )
        return total / np.sum(weight)

    grid = np.linspace(0, 1, 300)
    values = residual(grid)
    at = np.flatnonzero(values[:-1] * values[1:] < 0)
    ends = [0.0, *(scipy.optimize.brentq(residual, grid[i], grid[i + 1], xtol=1e-14) for i in at), 1.0]
    nodes, factors = np.polynomial.legendre.leggauss(60)
    return sum(
        abs((b - a) / 2 * float(factors @ residual((a + b) / 2 + (b - a) / 2 * nodes)))
        for a, b in itertools.pairwise(ends)
    )


@pytest.mark.parametrize(("n", "sigma"), [(4, 0.05), (9, 0.02), (12, 0.3), (9, 1.0), (5, 3.0)])
def test_agrees_with_quadrature(n, sigma):
    y, p, weight = problem(n, seed=n)
    for w in (None, weight):
        expected = literal_error(y, p, sigma, np.ones(n) if w is None else w)
        value = kcalib.smooth_ece(y, p, bandwidth=sigma, sample_weight=w, **BINARY)
        assert value == pytest.approx(expected, abs=1e-7)


def test_by_hand():
    # Kernels that do not overlap: the integral of each is the size of its residual. Wide ones: that of their mean.
    y, p = [0, 1, 1, 0], [0.2, 0.4, 0.6, 0.8]
    assert kcalib.smooth_ece(y, p, bandwidth=0.01, **BINARY) == pytest.approx((0.2 + 0.6 + 0.4 + 0.8) / 4, abs=1e-9)
    assert kcalib.smooth_ece([1, 1, 1, 0], p, bandwidth=50, **BINARY) == pytest.approx(1 / 4, abs=1e-12)
    # One kernel at 1/2, whose residual is 1/2 at every bandwidth; always wrong, without doubt; always right.
    assert kcalib.smooth_ece([0, 0], [0.5, 0.5], **BINARY) == pytest.approx(0.5, abs=1e-11)
    assert kcalib.smooth_ece([1, 1], [0.0, 0.0], **BINARY) == pytest.approx(1, abs=1e-9)
    assert kcalib.smooth_ece([0, 1], [0.0, 1.0], **BINARY) == 0
    assert kcalib.smooth_ece([0, 1], [1e-6, 1 - 1e-6], **BINARY) == pytest.approx(1e-6, rel=1e-6)  # at 1e-4


def test_default_bandwidth_is_the_error():
    y, p, weight = problem(500)
    for options in ({}, {"sample_weight": weight}, {"lens": ClassWise(0)}):
        value = kcalib.smooth_ece(y, p, **(BINARY | options))
        assert kcalib.smooth_ece(y, p, bandwidth=value, **(BINARY | options)) == pytest.approx(value, abs=1e-8)
    # Of large calibrated samples it is small, and found on a finer grid.
    value = kcalib.smooth_ece([0, 1], [0.5, 0.5], sample_weight=[0.499, 0.501], **BINARY)
    assert value == pytest.approx(0.001, abs=1e-9)


def test_agrees_with_the_package_of_its_authors():
    """What `relplot` 1.0.3 returns, which has a grid of 200 points and bandwidths k / 1024."""
    y, p, _ = problem(1000)
    assert kcalib.smooth_ece(y, p, **BINARY) == pytest.approx(0.054140349282901394, abs=2e-4)
    assert kcalib.smooth_ece(y, p, bandwidth=0.05, **BINARY) == pytest.approx(0.054355732927440004, abs=2e-4)


def test_rows_that_are_repeated_weigh():
    y, p, _ = problem(60)
    count = np.random.default_rng(2).integers(0, 4, size=60)
    repeated = kcalib.smooth_ece(np.repeat(y, count), np.repeat(p, count), **BINARY)
    assert kcalib.smooth_ece(y, p, sample_weight=count, **BINARY) == pytest.approx(repeated, rel=1e-10)


def test_smooth_diagram_by_hand():
    """At the middle of each bin the means of all samples, weighted by a normal density with its images."""
    y, p, weight = problem(200)
    d = kcalib.reliability(y, p, binning="smooth", n_bins=5, sample_weight=weight, **BINARY)
    assert d.bandwidth == pytest.approx(kcalib.smooth_ece(y, p, sample_weight=weight, **BINARY), abs=1e-11)
    for t, confidence, frequency in zip([0.1, 0.3, 0.5, 0.7, 0.9], d.confidence, d.frequency, strict=True):
        w = weight * sum(
            scipy.stats.norm.pdf(t, 2 * k + side * p, d.bandwidth) for k in range(-2, 3) for side in (-1, 1)
        )
        assert (confidence, frequency) == pytest.approx((w @ p / w.sum(), w @ y / w.sum()), abs=2e-3)
    assert d.points.tolist() == d.confidence.tolist() and d.n_bins == 5 and d.confidence_band is None
    assert (d.consistency_method, d.n_resamples, d.seed) == ("resampling", 999, 0)
    # Where no sample is near there is no curve.
    d = kcalib.reliability([0, 1] * 200, np.repeat([0.1, 0.9], 200), binning="smooth", n_bins=5, **BINARY)
    assert d.bandwidth > 0.3 and not np.isnan(d.frequency).any()
    y = np.repeat([0, 1, 0, 1], [81, 19, 18, 82])
    d = kcalib.reliability(y, np.repeat([0.2, 0.8], 100), binning="smooth", **BINARY)
    assert d.bandwidth < 0.02
    assert np.isnan([d.frequency, *d.consistency_band])[:, [20, 50, 80]].tolist() == 3 * [[False, True, False]]
    pytest.importorskip("matplotlib")
    for diagram, n_bands in ((d, 1), (dataclasses.replace(d, consistency_band=None), 0)):  # as for several models
        axes = diagram.plot()
        assert (len(axes.lines), len(axes.collections)) == (2, n_bands)
        np.testing.assert_array_equal(axes.lines[1].get_ydata(), d.frequency)


def test_band_of_calibrated_models_holds():
    sets, level = 60, 0.8
    inside = 0
    for seed in range(sets):
        rng = np.random.default_rng(seed)
        p = rng.beta(1, 3, size=50)
        d = kcalib.reliability(
            rng.uniform(size=50) < p, p, binning="smooth", n_bins=5, seed=seed, confidence_level=level, **BINARY
        )
        inside += bool(d.consistency_band.low[1] <= d.frequency[1] <= d.consistency_band.high[1])
    low, high = binomial_bounds(sets, level)
    assert low <= inside / sets <= high


@pytest.mark.parametrize(
    ("function", "options", "error", "message"),
    [
        ("smooth_ece", {"bandwidth": 1e-5}, ValueError, "`bandwidth` is 1e-05, expected a number between 1e-04 and"),
        ("smooth_ece", {"bandwidth": "1"}, TypeError, "`bandwidth` is '1', expected a positive number"),
        ("smooth_ece", {}, ValueError, "`lens` is Canonical.., which has 3 induced classes, expected a lens with two"),
        ("reliability", {"binning": "smooth", "bands": "both"}, ValueError, "binning='smooth' is fitted to the labels"),
        ("reliability", {"binning": "smooth", "simultaneous": True}, ValueError, "band of binning='smooth' is pointw"),
        ("brier_decomposition", {"binning": "smooth"}, ValueError, "`binning` is 'smooth', expected one of"),
    ],
)
def test_bad_options(function, options, error, message):
    lens = {} if function == "brier_decomposition" or "binning" in options else BINARY
    with pytest.raises(error, match=message):
        getattr(kcalib, function)([0, 1, 2], np.full((3, 3), 1 / 3), **options, **lens)
