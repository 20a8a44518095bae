"""Decompositions of the Brier score: by hand, against literal means over groups, and the published ones."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from problems import draw_labels, softmax_problem

import kcalib
from kcalib.lenses import Canonical, ClassWise, TopLabel


def total(d):
    return d.miscalibration - d.discrimination + d.uncertainty + d.within_variance - d.within_covariance


def literal(p, e, w, group):
    """Miscalibration, discrimination, refinement of vectors p and e in groups, by loops."""
    overall = np.average(e, axis=0, weights=w)
    parts = np.zeros(3)
    for g in set(group):
        rows = np.array([h == g for h in group])
        share = w[rows].sum() / w.sum()
        mean_p, mean_e = (np.average(x[rows], axis=0, weights=w[rows]) for x in (p, e))
        parts += share * np.array([
            ((mean_p - mean_e) ** 2).sum(),
            ((mean_e - overall) ** 2).sum(),
            np.average(((e[rows] - mean_e) ** 2).sum(axis=1), weights=w[rows]),
        ])  # fmt: skip
    return parts


@pytest.mark.parametrize("decades", [100, 170, 300])
def test_weights_over_many_decades(decades):
    """Squares of the smallest weights vanish; in their groups they count as they would without the others."""
    y, p = softmax_problem(60, 2)
    small = p[:, 1] < 0.5
    weights = np.where(small, 10.0**-decades, 1.0) * np.random.default_rng(0).uniform(0.5, 1, len(y))
    d = kcalib.brier_decomposition(y, p, n_bins=2, sample_weight=weights)
    assert total(d) == pytest.approx(d.score) and all(np.isfinite([d.noise, d.miscalibration, d.discrimination]))
    assert d.noise == pytest.approx(
        kcalib.brier_decomposition(y[~small], p[~small], n_bins=1, sample_weight=weights[~small]).noise
    )
    options = {"n_bins": 2, "lens": ClassWise(1), "bands": "confidence"}
    found = kcalib.reliability(y, p, sample_weight=weights, **options)
    alone = kcalib.reliability(y[small], p[small], sample_weight=weights[small] * 10.0**decades, **options)
    assert found.confidence_band is not None and alone.confidence_band is not None
    for whole, part in zip(found.confidence_band, alone.confidence_band, strict=True):
        assert whole[0] == pytest.approx(part[0])


def test_by_hand():
    # Bins (0, 1/2] with 0.2, 0.4 and labels 0, 1; (1/2, 1] with 0.8 and label 1.
    d = kcalib.brier_decomposition([0, 1, 1], [0.2, 0.4, 0.8], n_bins=2)
    assert d.score == pytest.approx((0.04 + 0.36 + 0.04) / 3)
    assert d.miscalibration == pytest.approx((2 * 0.2**2 + 0.2**2) / 3)
    assert d.discrimination == pytest.approx((2 * (1 / 6) ** 2 + (1 / 3) ** 2) / 3)
    assert d.uncertainty == pytest.approx(2 / 9)
    assert d.within_variance == pytest.approx(2 * 0.1**2 / 3)
    assert d.within_covariance == pytest.approx(2 * 2 * 0.5 * 0.1 / 3)
    assert d.noise == pytest.approx(2 / 3 * 0.25)
    assert d.refinement == pytest.approx(2 / 3 * 0.25)  # the mean of e (1 - e) in the bins
    assert (d.n_groups, d.n_singletons, d.n_bins, d.scale_by_half, d.n_samples, d.n_classes) == (2, 1, 2, True, 3, 2)
    assert float(d) == d.score == pytest.approx(total(d))


def test_isotonic_by_hand():
    # Recalibrated: 1/2, 1/2, 1; its score is 1/6.
    d = kcalib.brier_decomposition([1, 0, 1], [0.2, 0.4, 0.8], binning="isotonic")
    assert d.score == pytest.approx((0.64 + 0.16 + 0.04) / 3)
    assert d.miscalibration == pytest.approx(0.28 - 1 / 6)
    assert d.discrimination == pytest.approx(2 / 9 - 1 / 6)
    assert (d.within_variance, d.within_covariance, d.noise, d.n_bins) == (0, 0, None, None)
    assert total(d) == pytest.approx(d.score, rel=1e-14)


PROBLEMS = [(m, weighted) for m in (2, 3, 10) for weighted in (False, True)]


@pytest.mark.parametrize(("m", "weighted"), PROBLEMS)
@pytest.mark.parametrize("binning", ["uniform", "equal_mass", "isotonic"])
@pytest.mark.parametrize("half", ["auto", True, False])
@pytest.mark.filterwarnings("ignore:.* cells hold one sample")
def test_terms_add_up_to_the_brier_score(m, weighted, binning, half):
    y, p = softmax_problem(400, m)
    w = np.random.default_rng(0).uniform(size=400) * (y > 0) if weighted else None
    options = {"sample_weight": w, "scale_by_half": half}
    expected = kcalib.brier_score(y, p, **options)
    for grouping in ("classwise",) if binning == "isotonic" else ("classwise", "canonical"):
        size = {} if binning == "isotonic" else {"n_bins": 2}
        d = kcalib.brier_decomposition(y, p, binning=binning, grouping=grouping, **size, **options)
        assert d.score == expected
        assert total(d) == pytest.approx(expected, rel=1e-12)
        assert d.miscalibration >= 0 and d.discrimination >= 0 and d.refinement >= -1e-15
        assert d.scale_by_half is (m == 2 if half == "auto" else half)


@pytest.mark.parametrize("weighted", [False, True])
def test_groups_of_classes_and_of_cells_against_loops(weighted):
    y, p = softmax_problem(200, 3)
    w = np.random.default_rng(0).uniform(size=200) if weighted else np.ones(200)
    e, bins = np.eye(3)[y], np.maximum(np.ceil(p * 3), 1).astype(int)
    options = {"n_bins": 3, "sample_weight": w if weighted else None}
    d = kcalib.brier_decomposition(y, p, grouping="canonical", **options)
    expected = literal(p, e, w, [tuple(row) for row in bins.tolist()])
    np.testing.assert_allclose((d.miscalibration, d.discrimination, d.refinement), expected, rtol=1e-12)
    assert d.n_groups == len({tuple(row) for row in bins.tolist()})
    d = kcalib.brier_decomposition(y, p, **options)
    expected = sum(literal(p[:, k : k + 1], e[:, k : k + 1], w, bins[:, k].tolist()) for k in range(3))
    np.testing.assert_allclose((d.miscalibration, d.discrimination, d.refinement), expected, rtol=1e-12)
    assert d.grouping == "classwise"


def test_isotonic_agrees_with_scikit_learn():
    isotonic = pytest.importorskip("sklearn.isotonic")
    y, p = softmax_problem(300, 3)
    p = p.round(2) / p.round(2).sum(axis=1, keepdims=True)
    miscalibration = discrimination = 0.0
    for k in range(3):
        event = (y == k).astype(float)
        q = isotonic.IsotonicRegression().fit_transform(p[:, k], event)
        recalibrated = np.mean((q - event) ** 2)
        miscalibration += np.mean((p[:, k] - event) ** 2) - recalibrated
        discrimination += event.mean() * (1 - event.mean()) - recalibrated
    d = kcalib.brier_decomposition(y, p, binning="isotonic")
    assert (d.miscalibration, d.discrimination) == pytest.approx((miscalibration, discrimination), rel=1e-10)


def test_lenses():
    y, p = softmax_problem(200, 4)
    top = kcalib.brier_decomposition(y, p, lens=TopLabel())
    same = kcalib.brier_decomposition(p.argmax(axis=1) == y, p.max(axis=1))
    assert top.score == pytest.approx(same.score, rel=1e-12) and top.n_classes == 2 and top.lens == str(TopLabel())
    assert top.miscalibration == pytest.approx(same.miscalibration, rel=1e-12)
    whole = kcalib.brier_decomposition(y, p)
    parts = [kcalib.brier_decomposition(y, p, lens=ClassWise(k)) for k in range(4)]
    for name in ("score", "miscalibration", "discrimination", "uncertainty", "noise"):
        assert getattr(whole, name) == pytest.approx(sum(getattr(d, name) for d in parts), rel=1e-12)
    assert whole.lens == str(Canonical())
    # With two classes cells and bins are the same.
    cells, bins = (kcalib.brier_decomposition(y == 0, p[:, 0], grouping=g) for g in ("canonical", "classwise"))
    assert cells == dataclasses.replace(bins, grouping="canonical")


def test_integer_weights_repeat_samples():
    y, p = softmax_problem(100, 3)
    w = np.random.default_rng(0).integers(0, 4, size=100)
    weighted = kcalib.brier_decomposition(y, p, sample_weight=w)
    repeated = kcalib.brier_decomposition(np.repeat(y, w), np.repeat(p, w, axis=0))
    for name in ("score", "miscalibration", "discrimination", "uncertainty", "within_variance", "within_covariance"):
        assert getattr(weighted, name) == pytest.approx(getattr(repeated, name), rel=1e-12), name


def test_noise_is_the_bias():
    """The miscalibration of a calibrated model with few distinct predictions is noise, on average."""
    rng = np.random.default_rng(2)
    predictions = rng.dirichlet([1, 1, 1], size=8)
    found = []
    for _ in range(400):
        p = predictions[rng.integers(8, size=160)]
        d = kcalib.brier_decomposition(draw_labels(p, rng), p, grouping="canonical", n_bins=1000)
        found.append((d.miscalibration, d.noise))
    difference = np.subtract(*np.transpose(found))
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    assert abs(difference.mean()) < 4 * error < 0.1 * np.mean(found, axis=0)[1]


def test_extremes():
    for binning in ("uniform", "equal_mass", "isotonic"):
        d = kcalib.brier_decomposition([1], [0.7], binning=binning)
        assert d.score == pytest.approx(0.09) and d.miscalibration == pytest.approx(0.09)
        assert d.discrimination == d.uncertainty == 0
        right = kcalib.brier_decomposition([0, 1, 2, 0], np.eye(3)[[0, 1, 2, 0]], binning=binning)
        assert right.score == right.miscalibration == 0 and right.refinement == pytest.approx(0, abs=1e-15)
        wrong = kcalib.brier_decomposition([1, 0], [0.0, 1.0], binning=binning)
        assert wrong.score == 1 and total(wrong) == pytest.approx(1)
        constant = kcalib.brier_decomposition([0, 1, 1, 1], [0.75] * 4, binning=binning)
        assert constant.miscalibration == pytest.approx(0, abs=1e-15)
        assert constant.discrimination == pytest.approx(0, abs=1e-15)


def test_float32_and_array_libraries(xp):
    y, p = softmax_problem(120, 3)
    p = p.astype(np.float32)
    expected = kcalib.brier_decomposition(y, p)
    found = kcalib.brier_decomposition(xp.asarray(y), xp.asarray(p))
    assert found.miscalibration == expected.miscalibration
    assert found.score == pytest.approx(total(expected), rel=1e-12)


def test_errors_and_the_warning():
    y, p = softmax_problem(50, 3)
    with pytest.raises(ValueError, match="`grouping` is 'class', expected one of 'classwise', 'canonical'"):
        kcalib.brier_decomposition(y, p, grouping="class")
    with pytest.raises(ValueError, match="`binning` is 'isotonic', which needs an order, but grouping='canonical'"):
        kcalib.brier_decomposition(y, p, grouping="canonical", binning="isotonic")
    with pytest.raises(ValueError, match="`n_bins` is 5, but binning='isotonic'"):
        kcalib.brier_decomposition(y, p, n_bins=5, binning="isotonic")
    with pytest.raises(ValueError, match="`scale_by_half` is 'no', expected True, False or 'auto'"):
        kcalib.brier_decomposition(y, p, scale_by_half="no")
    with pytest.warns(UserWarning, match="50 of 50 cells hold one sample") as caught:
        d = kcalib.brier_decomposition(y, p, grouping="canonical", n_bins=1000)
    assert caught[0].filename == __file__
    # Nothing is learnt from groups of one sample.
    assert d.miscalibration == pytest.approx(d.score) and d.refinement == pytest.approx(0, abs=1e-15) and d.noise == 0


# From the manual of the R package reliabilitydiag (summary.reliabilitydiag): miscalibration and discrimination.
PUBLISHED = {"Logistic": (0.0171, 0.0555), "EMOS": (0.0183, 0.0305), "ENS": (0.0661, 0.0441), "EPC": (0.0223, 0.0323)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_decompositions(name):
    folder = os.environ.get("KCALIB_DATA")
    if not folder or not (Path(folder) / "precip_niamey_2016.npz").is_file():
        pytest.skip("KCALIB_DATA does not hold the forecasts")
    with np.load(Path(folder) / "precip_niamey_2016.npz") as data:
        d = kcalib.brier_decomposition(data["labels"], data[f"p_{name}"], binning="isotonic")
    assert (d.miscalibration, d.discrimination) == pytest.approx(PUBLISHED[name], abs=5.0001e-5)
    assert d.uncertainty == pytest.approx(0.244, abs=5.0001e-4)
