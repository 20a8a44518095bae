"""Tolerances of sums of probabilities, by the number of classes and by the digits of a row.

Rows of a softmax in half precision saved as float32, or of a table with four decimals, sum to 1 only within the
rounding of their entries, which the entries reveal.
"""

from __future__ import annotations

import math

import numpy as np

MOST = 2.0**-5  # largest tolerance, for bfloat16
_FLOAT32_EPSILON = 2.0**-23
SIGNIFICANDS = ((11, 2.0**-10), (8, 2.0**-7))  # bits and machine epsilon of float16 and bfloat16
DECIMALS = range(6, 1, -1)
STRIP = 2**18  # entries that are processed together


def sum_tolerance(m: int, epsilon: float) -> float:
    """Return the tolerance for sums of m probabilities: rounding of the entries, and of sums in float32."""
    return max(1e-6, 4 * epsilon, 2 * _FLOAT32_EPSILON * math.sqrt(m))


def shown_tolerances(rows: np.ndarray) -> np.ndarray:
    """Return the tolerance for the sum of each row by its digits, shape (n,); 0 if the digits reveal nothing.

    Entries may all have the bits of half precision, or the decimals of a table, each with an error of half a unit.
    Decimals are those of float32 numbers, which may have been widened.
    """
    step = max(1, STRIP // rows.shape[1])
    return np.concatenate([_strip_tolerances(rows[i : i + step]) for i in range(0, len(rows), step)])


def _strip_tolerances(rows: np.ndarray) -> np.ndarray:
    tolerances, significands = np.zeros(len(rows)), np.frexp(rows)[0]
    for bits, half_epsilon in SIGNIFICANDS:
        tolerances[np.all(np.ldexp(significands, bits) % 1 == 0, axis=1)] = 4 * half_epsilon
    rest = np.flatnonzero(tolerances == 0)
    for decimals in DECIMALS:
        units = rows[rest] * 10.0**decimals
        rest = rest[np.all(np.abs(units - np.rint(units)) <= _FLOAT32_EPSILON / 2 * units, axis=1)]
        tolerances[rest] = min(MOST, (0.5 * rows.shape[1] + 1e-6) * 10.0**-decimals)
    return tolerances
