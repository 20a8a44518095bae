"""Poisson distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib import _arrays
from kcalib._arrays import Array
from kcalib._special import special, where_computed
from kcalib.distributions._checks import check_numbers, check_size, parameters_of, positive_array
from kcalib.distributions._counts import Counts

__all__ = ["Poisson"]


@dataclass(frozen=True, eq=False)
class Poisson(Counts):
    r"""Poisson distributions of counts.

    Parameters
    ----------
    rate : array_like, shape (n,)
        Expected counts, from 1e-15 to 1e15.

    Raises
    ------
    TypeError
        If the rates are not real numbers.
    ValueError
        If one is not finite or out of range, or if the shape is not (n,).

    See Also
    --------
    NegativeBinomial : With a larger variance than mean.

    Examples
    --------
    >>> from kcalib.distributions import Poisson
    >>> predictions = Poisson([1.0, 10.0])
    >>> predictions.quantile([0.5, 0.9]).tolist()
    [[1.0, 2.0], [10.0, 14.0]]
    >>> predictions.pmf_table().shape
    (2, 45)
    """

    rate: Array

    def __init__(self, rate: Any) -> None:
        (rate,) = parameters_of(rate=positive_array(rate, "rate", "a positive rate"))
        check_numbers(rate, "rate")
        object.__setattr__(self, "rate", rate)

    def take(self, rows: Any) -> Poisson:
        return self._taken(rows, "rate")

    def expected_value(self) -> Array:
        return self.rate[:, None]

    def standard_deviation(self) -> Array:
        return _arrays.namespace(self.rate).sqrt(self.rate)[:, None]

    def sample(self, size: int, *, seed: int = 0) -> Array:
        _arrays.check_not_cuda(self.rate, "independent draws from Poisson distributions")
        rng = np.random.default_rng(seed)
        return self._like(rng.poisson(_arrays.to_host(self.rate)[:, None], size=(self.n, check_size(size))))

    def _array(self) -> Array:
        return self.rate

    def _shapes(self) -> tuple[np.ndarray, np.ndarray]:
        rate = where_computed(self.rate, np.float64)[:, None]
        return rate, _arrays.namespace(rate).zeros_like(rate)

    def _lower(self, k: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return special(k).gammaincc(k + 1, where_computed(self.rate)[rows])

    def _upper(self, k: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return special(k).gammainc(k + 1, where_computed(self.rate)[rows])
