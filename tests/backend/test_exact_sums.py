"""Sums in fixed point against rational numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from kcalib._backend.exact_sums import ExactSums

UNIT = Fraction(1, 2**80)


def as_fraction(sums: ExactSums) -> list[Fraction]:
    pairs = zip(sums.high.ravel().tolist(), sums.low.ravel().tolist(), strict=True)
    return [(high * 2**56 + low) * UNIT for high, low in pairs]


def numbers(n: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    sizes = rng.uniform(-60, 30, size=n)
    return rng.choice([-1.0, 1.0], n) * 2.0**sizes


def test_a_number_is_cut_towards_zero():
    values = np.concatenate([numbers(300), [0.0, -0.0, 1e-30, -1e-30, -1e-17, 2.0**37, -(2.0**37), 2.0**-80]])
    for value, found in zip(values.tolist(), as_fraction(ExactSums.of(values)), strict=True):
        assert abs(found) <= abs(Fraction(value)) < abs(found) + UNIT


@pytest.mark.parametrize("n", [1, 7, 70_000])
def test_sums_are_those_of_rational_numbers(n):
    values = numbers(n)
    exact = sum(map(Fraction, values.tolist()), Fraction(0))
    (found,) = as_fraction(ExactSums.over_rows(values))
    assert abs(found - exact) <= n * UNIT
    groups = np.arange(n) % 3
    by_group = ExactSums.by_group(values[:, None], groups, 3)
    assert sum(as_fraction(by_group)) == found
    for g, one in enumerate(as_fraction(by_group)):
        assert as_fraction(ExactSums.over_rows(values[groups == g]))[0] == one


def test_any_order_gives_the_same_bits():
    rng = np.random.default_rng(1)
    values = numbers(400).reshape(200, 2)
    whole = ExactSums.over_rows(values)
    assert np.all((whole.low >= 0) & (whole.low < 2**56))
    for _ in range(5):
        order = rng.permutation(200)
        cut = int(rng.integers(1, 199))
        parts = ExactSums.over_rows(values[order[cut:]]) + ExactSums.over_rows(values[order[:cut]])
        assert np.array_equal(parts.high, whole.high) and np.array_equal(parts.low, whole.low)


@pytest.mark.parametrize("value", [1e-8, -1e-8, 3e-17, -3e-17, 1.5, -1e10, 0.0])
def test_small_sums_beside_large_ones_that_cancel_keep_their_digits(value):
    values = np.array([1e9, value, -1e9])
    assert abs(float(ExactSums.over_rows(values).to_float()) - value) <= max(2e-16 * abs(value), 2.0**-80)


def test_sums_say_when_they_are_near_what_can_be_represented():
    assert not ExactSums.of(np.array([2.0**36])).is_large()
    assert ExactSums.of(np.array([1.0, -(2.0**37)])).is_large()


def test_limbs_add_up_as_they_are():
    values = numbers(400)
    parts = [ExactSums.of(part) for part in values.reshape(40, 10)]
    found = ExactSums.of_limbs(sum(part.limbs() for part in parts))
    whole = ExactSums.over_rows(values.reshape(40, 10))
    assert np.array_equal(found.high, whole.high) and np.array_equal(found.low, whole.low)
    assert np.array_equal(ExactSums.of_limbs(parts[0].limbs()).low, parts[0].low)
