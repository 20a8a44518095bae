"""Sums of numbers of any size, against rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from kcalib._backend.sums import WideSums


def test_sums_are_exact_in_any_order():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(300, 2)) * 2.0 ** rng.integers(-1070, 1020, size=(300, 2))
    values[:3, 0] = [5e-324, -np.finfo(float).max, np.finfo(float).max]
    forth, back = WideSums.zeros(2), WideSums.zeros(2)
    for row in values:
        forth = forth + WideSums.of(row)
    for row in values[::-1]:
        back = WideSums.of(row) + back
    assert forth == back == WideSums.from_arrays("a", forth.to_arrays("a"))
    exact = [sum(map(Fraction, column)) for column in values.T.tolist()]
    assert forth.to_float().tolist() == [float(one) for one in exact]


def test_what_is_beyond_all_numbers_is_infinite():
    largest = np.finfo(float).max
    assert (WideSums.of([largest, 1.0]) + WideSums.of([largest, np.inf])).to_float().tolist() == [np.inf, np.inf]
    both = WideSums.of([largest, 0.0]) + WideSums.of([largest, 0.0]) + WideSums.of([-largest, 0.0])
    assert both.to_float().tolist() == [largest, 0.0]
    assert (WideSums.of([-largest]) + WideSums.of([-largest])).to_float().tolist() == [-np.inf]
