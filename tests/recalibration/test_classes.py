"""Recalibrators know the classes that they were fitted with: frames are transformed by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kcalib.distributions import Categorical
from kcalib.recalibration import (
    HistogramBinning,
    MatrixScaling,
    PlattScaling,
    Recalibrator,
    TemperatureScaling,
    VennAbers,
    choose,
)

CLASSES = ["owl", "cat", "dog"]
METHODS = [PlattScaling(), MatrixScaling(), HistogramBinning(), VennAbers(), TemperatureScaling()]


def make_samples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    p = rng.dirichlet([1.0, 2.0, 3.0], size=60)
    return np.array(CLASSES)[(rng.uniform(size=(60, 1)) > p.cumsum(axis=1)).sum(axis=1)], p


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("names", [CLASSES, ["p_owl", "p_cat", "p_dog"], ["a", "b", "c"]])
def test_frames_are_transformed_by_name(method: Recalibrator, names: list[str]) -> None:
    pd = pytest.importorskip("pandas")
    labels, p = make_samples()
    frame, turned = pd.DataFrame(p, columns=names), [2, 0, 1]
    method = method.clone()
    expected = method.fit_transform(labels, p, classes=CLASSES)
    np.testing.assert_array_equal(method.fit_transform(labels, frame, classes=CLASSES), expected)
    assert method.classes_ == tuple(CLASSES) and method.columns_ == tuple(names)
    np.testing.assert_allclose(method.transform(frame.iloc[:, turned]), expected[:, turned], rtol=1e-12)
    np.testing.assert_array_equal(method.transform(p), expected)
    named = pd.DataFrame(p, columns=[f"new.{name}" for name in CLASSES]).iloc[:, turned]
    np.testing.assert_allclose(method.transform(named), expected[:, turned], rtol=1e-12)
    result = method.transform(Categorical(p[:, turned], [CLASSES[k] for k in turned]))
    np.testing.assert_allclose(result.probabilities, expected[:, turned], rtol=1e-12)
    with pytest.raises(ValueError, match=r"has the columns \['owl', 'cat', 'eel'\], but the fit had the classes"):
        method.transform(pd.DataFrame(p, columns=["owl", "cat", "eel"]))
    with pytest.raises(ValueError, match=r"has the columns \['z', 'y', 'x'\], but the fit had the classes \['owl'"):
        method.transform(pd.DataFrame(p, columns=list("zyx")))


def test_names_alone_fit_and_logits_and_pairs_are_transformed_by_name() -> None:
    pd = pytest.importorskip("pandas")
    labels, p = make_samples()
    logits = pd.DataFrame(np.log(p), columns=CLASSES)
    scaling = PlattScaling().fit(labels, logits, from_logits=True)
    expected = scaling.transform(np.log(p), from_logits=True)
    np.testing.assert_allclose(
        scaling.transform(logits[["dog", "owl", "cat"]], from_logits=True), expected[:, [2, 0, 1]]
    )
    frame = pd.DataFrame(p, columns=CLASSES)
    abers = VennAbers().fit(labels, frame)
    for values, turned in zip(abers.bounds(p), abers.bounds(frame[["dog", "owl", "cat"]]), strict=True):
        np.testing.assert_allclose(turned, values[:, [2, 0, 1]])
    best = choose(labels, frame, candidates={"platt": PlattScaling()}).recalibrator
    assert best is None or best.classes_ == tuple(CLASSES)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_single_column_is_transformed_as_that_of_its_class(method: Recalibrator) -> None:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    p = rng.uniform(size=60)
    labels = np.where(rng.uniform(size=60) < p**2, "cat", "dog")
    method = method.clone().fit(labels, pd.Series(p, name="cat"))
    assert method.classes_ == ("dog", "cat")
    expected: Any = method.transform(p)
    np.testing.assert_array_equal(method.transform(pd.Series(p, name="prob_cat")), expected)
    np.testing.assert_allclose(method.transform(pd.Series(1 - p, name="dog")), 1 - expected, rtol=1e-9)
