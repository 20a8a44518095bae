"""Negative binomial distributions: counts whose variance exceeds their mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.special import betaincc, special
from kcalib._input.checks import reject
from kcalib.distributions._checks import LARGEST, broadcast_parameters, check_size, positive_array, real_array
from kcalib.distributions._counts import Counts
from kcalib.distributions._distribution import choose

__all__ = ["NegativeBinomial"]


@dataclass(frozen=True, eq=False)
class NegativeBinomial(Counts):
    r"""Negative binomial distributions of counts, by mean and dispersion.

    The variance is mean + dispersion * mean^2; with the dispersion tending to 0 the distribution tends to Poisson's.

    Parameters
    ----------
    mean : array_like, shape (n,)
        Expected counts, from 1e-15 to 1e15.
    dispersion : array_like, shape (n,)
        Dispersions, from 1e-15; mean * dispersion is at most 1e15. This is 1 / theta of R's glm.nb, alpha of
        statsmodels, and 1 / n of ``scipy.stats.nbinom``. One of the two may be a single number, for all.

    Raises
    ------
    TypeError, ValueError
        If a parameter does not hold finite real numbers in its range, or if the shapes differ.

    See Also
    --------
    Poisson : With dispersion 0.

    Examples
    --------
    >>> from kcalib.distributions import NegativeBinomial
    >>> predictions = NegativeBinomial([1.0, 10.0], 0.5)
    >>> predictions.standard_deviation().round(3).tolist()
    [[1.225], [7.746]]
    >>> NegativeBinomial.from_number_and_probability([2.0, 2.0], [0.5, 0.1]).mean.tolist()
    [2.0, 18.0]
    """

    mean: Array
    dispersion: Array

    def __init__(self, mean: Any, dispersion: Any) -> None:
        self._set(
            mean=positive_array(mean, "mean", "a positive mean"),
            dispersion=positive_array(dispersion, "dispersion", "a positive dispersion (for 0 use Poisson)"),
        )
        reject(
            self.dispersion,
            self.dispersion * self.mean > LARGEST,
            lambda at, x: f"`dispersion{at}` is {x}, more than {LARGEST:.0e} over `mean{at}`; clip it, or drop it",
        )

    @classmethod
    @on_their_gpu
    def from_number_and_probability(cls, n: Any, p: Any) -> NegativeBinomial:
        """Make distributions of the number of failures before the n-th success, as ``scipy.stats.nbinom`` has them.

        Parameters
        ----------
        n : array_like, shape (n samples,)
            Numbers of successes, positive, not necessarily integers.
        p : array_like, shape (n samples,)
            Probabilities of success, above 0 and below 1. One of the two may be a single number, for all.

        Returns
        -------
        NegativeBinomial
            With mean n (1 - p) / p and dispersion 1 / n.
        """
        number, probability = positive_array(n, "n", "a positive number of successes"), real_array(p, "p")
        reject(
            probability,
            ~((probability > 0) & (probability < 1)),
            lambda at, x: f"`p{at}` is {x}, expected a probability above 0 and below 1; clip it",
        )
        number, probability = broadcast_parameters(n=number, p=probability).values()
        return cls(number * (1 - probability) / probability, 1 / number)

    def expected_value(self) -> Array:
        return self.mean[:, None]

    def standard_deviation(self) -> Array:
        return arrays.namespace(self.mean).sqrt(self.mean * (1 + self.dispersion * self.mean))[:, None]

    def sample(self, size: int, *, seed: int = 0) -> Array:
        arrays.check_not_cuda(self.mean, "independent draws from negative binomial distributions")
        rng = np.random.default_rng(seed)
        mean, dispersion = self._shapes()
        rates = rng.gamma(1 / dispersion, dispersion * mean, size=(self.n, check_size(size)))
        return self._like(rng.poisson(rates))

    def _shapes(self) -> tuple[np.ndarray, np.ndarray]:
        mean, dispersion = (arrays.to_compute_device(a, np.float64)[:, None] for a in (self.mean, self.dispersion))
        return mean, dispersion

    def _lower(self, k: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return self._tail(k, rows, betaincc, _betainc)

    def _upper(self, k: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return self._tail(k, rows, _betainc, betaincc)

    def _tail(self, k: np.ndarray, rows: np.ndarray, of_failure: Any, of_success: Any) -> np.ndarray:
        mean, dispersion = arrays.to_compute_device(self.mean)[rows], arrays.to_compute_device(self.dispersion)[rows]
        size, ratio = 1 / dispersion, dispersion * mean
        # The smaller of the two probabilities is the one that is known to relative accuracy.
        return choose(
            ratio < 1,
            lambda i: of_failure(k[i] + 1, size[i], ratio[i] / (1 + ratio[i]), 1 / (1 + ratio[i])),
            lambda i: of_success(size[i], k[i] + 1, 1 / (1 + ratio[i]), ratio[i] / (1 + ratio[i])),
        )


def _betainc(a: Array, b: Array, x: Array, complement: Array) -> Array:
    """Return I_x(a, b), for arguments as `betaincc` has them."""
    return special(x).betainc(a, b, x)
