"""Sums over predictions and their images under maps of the temperature: for bounds that need no samples.

With l = log p and its mean under p, the sum of log sum_k p_k exp(theta l_k) - theta mean is the cumulant generating
function of the temperature's score. The map to p^t / sum p^t raises some classes: what observed labels say of these is
evidence of an error as large as the map's change. `kcalib.inference.adaptive.temperatures` says how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kcalib import _native
from kcalib._backend.exact_sums import ExactSums
from kcalib._backend.threads import run_options
from kcalib._pairs.label_cells import FLOOR

# t = 1 + theta, those of src/cpu/samples/temperature_sums.h; of smaller changes the normal law is near.
EXPONENTS = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 7 / 8, 15 / 16, 31 / 32, 33 / 32, 17 / 16, 9 / 8, 5 / 4, 3 / 2, 2.0, 3.0)
TERMS = 5  # in the order of src/cpu/samples/temperature_sums.h


@dataclass(frozen=True, eq=False)
class TemperatureSums:
    """Sums of the five terms for each of the exponents."""

    sums: ExactSums  # shape (exponents, 5)

    @classmethod
    def zeros(cls) -> TemperatureSums:
        """Return sums of no samples."""
        return cls(ExactSums.zeros(len(EXPONENTS), TERMS))

    @classmethod
    def of(cls, probabilities: np.ndarray, labels: np.ndarray, threads: int | None) -> TemperatureSums:
        """Return the sums of samples: float64 and int64, in host memory."""
        new = cls.zeros()
        with run_options(threads) as options:
            _native.sum_temperatures(probabilities, labels, FLOOR, new.sums.flat(), options)
        return new

    def __add__(self, other: TemperatureSums) -> TemperatureSums:
        return TemperatureSums(self.sums + other.sums)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the sums by their names in a file."""
        return self.sums.to_arrays("temperature_maps")

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> TemperatureSums:
        """Return the sums that `to_arrays` has written."""
        return cls(ExactSums.from_arrays("temperature_maps", arrays))
