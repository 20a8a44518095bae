"""How samples differ from those of another model, in words."""

from __future__ import annotations

import numpy as np
import pytest

from kcalib._input.forecasts import prepare
from kcalib.distributions import Normal

RNG = np.random.default_rng(0)
P, Y = RNG.dirichlet(np.ones(3), size=8), np.array([0, 1, 2, 0, 1, 2, 0, 1])
MEAN, T = RNG.normal(size=(8, 2)), RNG.normal(size=(8, 2))
END = "; models are compared on the same samples in the same order"


def changed(values, at, value):
    values = values.copy()
    values[at] = value
    return values


def forecasts(y, mean):
    return prepare(y, Normal(mean, np.ones_like(mean)))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (prepare(Y, P), prepare(Y, P[:, ::-1].copy()), None),
        (prepare(Y, P), prepare(Y[:6], P[:6]), f"8 samples and 3 classes, but b has 6 and 3{END}"),
        (
            prepare(changed(Y, [2, 5], 0), P),
            prepare(Y, P),
            f"the label of sample 2 (counted from 0) is 0, but in b 2 (2 labels differ){END}",
        ),
        (
            prepare(Y + 4, P, classes=[4, 5, 6]),
            prepare(Y, P),
            "the columns are the classes [4, 5, 6], but those of b [0, 1, 2]; write the same columns in the same order",
        ),
        (
            prepare(changed(Y + 4, 0, 6), P, classes=[4, 5, 6]),
            prepare(Y + 4, P, classes=[4, 5, 6]),
            f"the label of sample 0 (counted from 0) is 6, but in b 4 (1 labels differ){END}",
        ),
        (forecasts(T, MEAN), forecasts(T, 0 * MEAN), None),
        (
            forecasts(T, MEAN),
            forecasts(T[:, 0], MEAN[:, 0]),
            f"8 samples and targets of 2 entries, but b has 8 and 1{END}",
        ),
        (
            forecasts(changed(T, (3, 1), 0.5), MEAN),
            forecasts(changed(T, (3, 1), 0.25), MEAN),
            f"the target of sample 3 (counted from 0) is 0.5, but in b 0.25 (1 targets differ){END}",
        ),
    ],
)
def test_the_reason(one, other, expected):
    assert one.mismatch(other, "b") == expected


def test_other_array_libraries():
    xp = pytest.importorskip("array_api_strict")
    labels, probabilities = xp.asarray(Y), xp.asarray(P)
    one, other = prepare(labels, probabilities), prepare(changed(Y, 1, 2), P)
    assert one.mismatch(prepare(labels, probabilities), "b") is None
    assert one.mismatch(other, "b").startswith("the label of sample 1 (counted from 0) is 1, but in b 2 (1 labels")
