"""Poisson distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.cuda import Program
from kcalib._backend.special import special
from kcalib.distributions._checks import check_size, positive_array
from kcalib.distributions._counts import Counts

__all__ = ["Poisson"]

UNIFORMS = 2**22  # random numbers that are brought to a GPU at a time


def poisson_program() -> Program:
    # Products and sums are rounded as NumPy's, not fused.
    return Program(("cuda/poisson.cu",), ("-fmad=false",), threads=1)


@dataclass(frozen=True, eq=False)
class Poisson(Counts):
    r"""Poisson distributions of counts.

    Parameters
    ----------
    rate : array_like, shape (n,)
        Expected counts, from 1e-15 to 1e15.

    Raises
    ------
    TypeError, ValueError
        If the rates are not finite real numbers in their range, or if the shape is not (n,).

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
        self._set(rate=positive_array(rate, "rate", "a positive rate"))

    def expected_value(self) -> Array:
        return self.rate[:, None]

    def standard_deviation(self) -> Array:
        return arrays.namespace(self.rate).sqrt(self.rate)[:, None]

    def sample(self, size: int, *, seed: int = 0) -> Array:
        size, rng = check_size(size), np.random.default_rng(seed)
        if arrays.is_cuda(self.rate):
            return self._sample_on_gpu(size, rng)
        return self._like(rng.poisson(arrays.to_host(self.rate)[:, None], size=(self.n, size)))

    def _sample_on_gpu(self, size: int, rng: np.random.Generator) -> Array:
        """Draw as NumPy's generator does, from its uniform numbers, many of which are brought to the GPU at a time."""
        xp, n_draws = arrays.namespace(self.rate), self.n * size
        # On average a draw takes 1 more than its rate below 10, and less than 3 from there on.
        each = float(xp.mean(xp.where(self.rate < 10, self.rate + 1, 3.0)))
        out, progress, unused, n_drawn = xp.empty((self.n, size)), xp.zeros(2, dtype=np.int64), np.empty(0), 0
        while n_drawn < n_draws:
            count = min(UNIFORMS, int(1.1 * each * (n_draws - n_drawn))) + len(unused) + 1000
            uniforms = np.concatenate([unused, rng.random(count)])
            arguments = (
                xp.ascontiguousarray(self.rate),
                np.int64(n_draws),
                np.int64(size),
                arrays.like(uniforms, self.rate),
                np.int64(len(uniforms)),
                progress,
                out,
            )
            poisson_program().launch("kcalib_poisson", (1, 1), arguments)
            n_drawn, used = (int(number) for number in arrays.to_host(progress))
            unused = uniforms[used:]
        return out

    def _shapes(self) -> tuple[np.ndarray, np.ndarray]:
        rate = arrays.to_compute_device(self.rate, np.float64)[:, None]
        return rate, arrays.namespace(rate).zeros_like(rate)

    def _lower(self, k: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return special(k).gammaincc(k + 1, arrays.to_compute_device(self.rate)[rows])

    def _upper(self, k: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return special(k).gammainc(k + 1, arrays.to_compute_device(self.rate)[rows])
