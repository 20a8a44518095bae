"""The bootstrap by kinds of samples: the moments of that by samples, and its intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hard_laws import dirichlet, drawn_labels, saturated

import kcalib
from kcalib.inference.metrics import ece
from kcalib.inference.metrics.ece import SMALL, Kinds


def three(law, n: int, seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Labels, and models: calibrated, over- and under-confident."""
    rng = np.random.default_rng(seed)
    p = law(n, rng)
    y = drawn_labels(p, rng)
    powers = {"as it is": 1.0, "sharper": 1.3, "flatter": 0.8}
    return y, {name: p**a / np.sum(p**a, axis=1, keepdims=True) for name, a in powers.items()}


def bins_and_gaps(y: np.ndarray, models: dict[str, np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    places, gaps = [], []
    for p in models.values():
        confidence = p.max(axis=1)
        _, place = np.unique(np.minimum((15 * confidence).astype(int), 14), return_inverse=True)
        places.append(place)
        gaps.append((p.argmax(axis=1) == y) - confidence)
    return places, gaps


@pytest.mark.parametrize("law", [dirichlet(5, 0.5), saturated(-6, -1, 4)])
def test_moments_are_those_of_drawing_samples(law):
    n, count = 8000, 4000
    places, gaps = bins_and_gaps(*three(law, n))
    # Sums over n draws with replacement: n times the covariance of what a sample adds.
    added = (
        np.concatenate(
            [np.where(place == np.arange(place.max() + 1)[:, None], gap, 0.0) for place, gap in zip(places, gaps)]
        )
        / n
    )
    covariance = added @ added.T - n * np.outer(added.mean(axis=1), added.mean(axis=1))
    kinds = Kinds.of(places, gaps)
    assert kinds.counts.sum() == n and len(kinds.counts) < 0.1 * n
    assert np.sum(kinds.means @ kinds.counts) == pytest.approx(added.sum(), rel=1e-12)
    drawn = np.concatenate([np.concatenate(sums) for _, _, sums in kinds.draw_deviations(count, 1)], axis=1)
    deviations = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(drawn.mean(axis=1)) < 4.5 * deviations / np.sqrt(count))
    found = np.cov(drawn) / np.outer(deviations, deviations)
    assert np.abs(found - covariance / np.outer(deviations, deviations)).max() < 6 * np.sqrt(2 / count)


def test_samples_of_small_kinds_are_drawn_one_by_one():
    place, gap = np.repeat([0, 1], [500, SMALL - 1]), np.linspace(-0.9, -0.1, 500 + SMALL - 1)
    kinds = Kinds.of([place], [gap])
    assert sorted(kinds.counts) == [1] * (SMALL - 1) + [500]
    assert np.linalg.matrix_rank(kinds.deviations) == 1
    # Too many of them: a sample for each would be drawn, as without kinds.
    assert Kinds.of([np.arange(100)], [np.linspace(-0.9, -0.1, 100)]) is None


def test_intervals_are_those_of_drawing_samples(monkeypatch):
    y, models = three(dirichlet(5, 0.5), 6000, seed=1)
    options = {"metric": kcalib.methods.ECE(n_resamples=4000), "seed": 0}
    rows = kcalib.compare(y, models, **options)
    monkeypatch.setattr(ece, "BY_KINDS", 0)
    monkeypatch.setattr(ece, "batches", None)  # samples are not drawn
    kinds = kcalib.compare(y, models, **options)
    for a, b in zip(rows.models + rows.differences, kinds.models + kinds.differences, strict=True):
        width = a.confidence_interval.high - a.confidence_interval.low
        assert b.confidence_interval == pytest.approx(a.confidence_interval, abs=0.06 * width)
        assert (a.standard_error, getattr(a, "value", 0)) == (b.standard_error, getattr(b, "value", 0))
