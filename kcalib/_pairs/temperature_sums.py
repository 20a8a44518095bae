"""Sums over predictions and their images under maps of the temperature: for bounds that need no samples.

With l = log p and its mean under p, the sum of log sum_k p_k exp(theta l_k) - theta mean is the cumulant generating
function of the temperature's score. The map to p^t / sum p^t raises some classes: what observed labels say of these is
evidence of an error as large as the map's change. `kcalib.inference.adaptive.blocks` says how.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kcalib import _native
from kcalib._backend.exact_sums import ExactSums
from kcalib._backend.sums import Sums
from kcalib._backend.threads import run_options
from kcalib._pairs.label_cells import FLOOR

# t = 1 + theta, those of src/cpu/samples/temperature_sums.h; of smaller changes the normal law is near.
EXPONENTS = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 7 / 8, 15 / 16, 31 / 32, 33 / 32, 17 / 16, 9 / 8, 5 / 4, 3 / 2, 2.0, 3.0)
TERMS = 5  # in the order of src/cpu/samples/temperature_sums.h


@dataclass(frozen=True, eq=False)
class TemperatureSums(Sums):
    """Sums of the five terms for each of the exponents."""

    _stored: ClassVar = {"sums": "temperature_maps"}

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
