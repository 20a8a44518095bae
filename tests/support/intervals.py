"""How often intervals and bounds miss, on the hard laws: calibrated, and with errors that are known.

`misses` is what the tests and docs/scripts/interval_coverage.py count by. The kernel has a fixed bandwidth, so that
there is one true value for all sets. `Leading` has errors along the kernel's leading eigenfunction, where the bound of
the error is sharp, of a given size: at the boundary of a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.spatial.distance
from hard_laws import Law, drawn_labels

import kcalib
from kcalib.kernels import Exponential


def tempered(p: np.ndarray, temperature: float = 2.0) -> np.ndarray:
    q = np.exp((np.log(np.maximum(p, 1e-300)) - np.log(p.max(axis=1, keepdims=True))) / temperature)
    return q / q.sum(axis=1, keepdims=True)


def swapped(p: np.ndarray, share: float = 0.3) -> np.ndarray:
    """The first two classes, in a share of the cases."""
    other = p.copy()
    other[:, [0, 1]] = p[:, [1, 0]]
    return (1 - share) * p + share * other


def drifted(p: np.ndarray, share: float = 0.03) -> np.ndarray:
    """A share of the cases is of the last class."""
    return (1 - share) * p + share * np.eye(p.shape[1])[-1]


class Leading:
    """An error c f(p) from the first class to the second, f the leading eigenfunction, with a given mean square."""

    def __init__(self, law: Law, rms_error: float, size: int = 1000) -> None:
        self.places = law.draw(size, np.random.default_rng(7))
        distances = scipy.spatial.distance.pdist(self.places[:400])
        self.bandwidth = float(np.median(distances[distances > 0]))
        values, vectors = np.linalg.eigh(self._kernel(self.places))
        self.weights = np.abs(vectors[:, -1]) * np.sqrt(size) / values[-1] * rms_error

    def _kernel(self, p: np.ndarray) -> np.ndarray:
        return np.exp(-scipy.spatial.distance.cdist(p, self.places) / self.bandwidth)

    def __call__(self, p: np.ndarray) -> np.ndarray:
        error = np.minimum(self._kernel(p) @ self.weights, p[:, 0])
        truth = p.copy()
        truth[:, 0] -= error
        truth[:, 1] += error
        return truth


# The law of the label given the prediction.
TRUTHS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "calibrated": lambda p: p,
    "temperature 2": tempered,
    "two classes swapped": swapped,
    "drifted": drifted,
}


@dataclass(frozen=True)
class Population:
    """Predictions of a law with the true SKCE, and the root mean square of total variation distances."""

    bandwidth: float
    skce: float
    rms_error: float

    @staticmethod
    def of(law: Law, truth: Callable[[np.ndarray], np.ndarray], rounds: int = 4, size: int = 1500) -> Population:
        rng = np.random.default_rng(2026)
        p = law.draw(400, rng)
        distances = scipy.spatial.distance.pdist(p)
        bandwidth = float(np.median(distances[distances > 0]))
        values, squares = [], []
        for _ in range(rounds):
            p = law.draw(size, rng)
            e = truth(p) - p
            h = np.exp(-scipy.spatial.distance.cdist(p, p) / bandwidth) * (e @ e.T)
            values.append((h.sum() - np.trace(h)) / (size * (size - 1)))
            squares.append(np.mean((np.abs(e).sum(axis=1) / 2) ** 2))
        return Population(bandwidth, float(np.mean(values)), float(np.sqrt(np.mean(squares))))

    @property
    def kernel(self) -> Exponential:
        return Exponential(bandwidth=self.bandwidth)


@dataclass(frozen=True)
class Misses:
    """Shares of the sets."""

    low: float  # whose lower limit is above the true value
    high: float  # whose upper limit is below it
    bound: float  # whose bound of the error is above the true error
    disagree: float  # whose interval leaves out 0 where the one-sided test at its tail does not reject
    mean_bound: float  # the mean of the bounds, over the true error


def misses(
    law: Law,
    truth: Callable[[np.ndarray], np.ndarray],
    *,
    count: int,
    n: int | None = None,
    level: float = 0.05,
    method: str = "gamma",
    seed: int = 0,
) -> Misses:
    """Of `count` sets with n samples (by default those of the law): two-sided intervals, and bounds, at `level`."""
    population, rng = Population.of(law, truth), np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        p = law.draw(law.n if n is None else n, rng)
        y = drawn_labels(truth(p), rng)
        e = kcalib.evaluate(y, p, kernel=population.kernel, method=method, level=level, threads=1)
        low, high = e.test.confidence_interval(1 - level)
        left_out = low > 0 and not e.test.pvalue < level / 2
        # The true values are means over samples, and those of a calibrated model 0.
        margin = 1e-3 * population.skce
        bound = e.rms_error_lower
        assert bound is not None
        rows.append(
            (
                low > population.skce + margin,
                high < population.skce - margin,
                bound > population.rms_error * 1.001,
                left_out,
                bound / population.rms_error if population.rms_error > 0 else 0.0,
            )
        )
    return Misses(*(float(x) for x in np.mean(rows, axis=0)))
