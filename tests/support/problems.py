"""Labels, predictions, kernels, instruction sets and binomial bounds for the tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.stats

from kcalib import kernels as K
from kcalib.inference.calibration_test import METHODS
from kcalib.inference.task import CalibrationMethod


def named_method(name: str, **options: Any) -> CalibrationMethod:
    """The method of `kcalib.calibration_test` of that name."""
    (found,) = (cls for cls in METHODS if cls.name == name)
    return found(**options)


def softmax_problem(n: int, m: int, seed: int = 0, scale: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated: labels drawn from the softmax of Gaussian logits."""
    rng = np.random.default_rng(seed)
    logits = scale * rng.normal(size=(n, m))
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return draw_labels(p, rng), p


def draw_labels(p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One label from each row of probabilities."""
    u = rng.uniform(size=(len(p), 1))
    return np.minimum((np.cumsum(p, axis=1) < u).sum(axis=1), p.shape[1] - 1)


def before_permutation(seed: int, *arrays: np.ndarray) -> list[np.ndarray]:
    """Arrays that a test of this seed, which draws the order of its samples, sees in the order given here."""
    order = np.argsort(np.random.default_rng(seed).permutation(len(arrays[0])))
    return [array[order] for array in arrays]


def binomial_bounds(n: int, p: float, risk: float = 1e-4) -> tuple[float, float]:
    """Shares that a binomial share leaves with probability `risk` at most."""
    law = scipy.stats.binom(n, p)
    return law.ppf(risk / 2) / n, law.isf(risk / 2) / n


def w19_predictions(n: int, rng: np.random.Generator) -> np.ndarray:
    """Widmann et al. 2019, section 7: p ~ Dir(0.1), ten classes."""
    return rng.dirichlet(np.full(10, 0.1), size=n)


def w19_labels(model: str, p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    drawn = draw_labels(p, rng)
    if model == "M1":  # calibrated
        return drawn
    if model == "M2":  # half of them class 1
        return np.where(rng.uniform(size=len(p)) < 0.5, drawn, 0)
    return rng.integers(10, size=len(p))  # M3: uniform


def duplicates_problem(n: int, m: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Identical, nearly identical (1e-9 and 1e-14 apart), saturated and one-hot rows."""
    rng = np.random.default_rng(seed)
    y, p = softmax_problem(n, m, seed)
    half = n // 2
    p[half:] = p[: n - half]
    for shift, rows in ((1e-9, slice(half, half + n // 8)), (1e-14, slice(half + n // 8, half + n // 4))):
        first = p[rows, 0].copy()
        p[rows, 0] = first * (1 - shift)
        p[rows, 1] += first * shift
    p[-(n // 8) :] = np.eye(m)[rng.integers(m, size=n // 8)]
    _, saturated = softmax_problem(n // 8, m, seed + 1, scale=30.0)
    p[: n // 8] = saturated
    return y, p


def psd_matrix(m: int, rank: int, seed: int = 0) -> np.ndarray:
    root = np.random.default_rng(seed).normal(size=(m, rank))
    return root @ root.T / rank


KERNELS = {
    "exponential": K.Exponential(bandwidth=0.5),
    "exponential_cityblock": K.Exponential(bandwidth=0.7, metric="cityblock"),
    "exponential_tv": K.Exponential(bandwidth=0.3, metric="total_variation"),
    "gaussian": K.Gaussian(bandwidth=0.4),
    "gamma_1.5": K.GammaExponential(bandwidth=0.5, gamma=1.5),
    "gamma_0.3_cityblock": K.GammaExponential(bandwidth=0.5, gamma=0.3, metric="cityblock"),
    "gamma_2": K.GammaExponential(bandwidth=0.5, gamma=2.0),
    "matern_1.5": K.Matern(bandwidth=0.5, nu=1.5),
    "matern_2.5": K.Matern(bandwidth=0.6, nu=2.5),
    "rational_quadratic": K.RationalQuadratic(bandwidth=0.4, alpha=1.7),
    "rational_quadratic_1e6": K.RationalQuadratic(bandwidth=0.4, alpha=1e6),
    "gamma_rational_quadratic": K.GammaRationalQuadratic(bandwidth=0.5, alpha=1.7, gamma=1.5),
    "cosine": K.Cosine(bandwidth=0.7),
    "linear": K.Linear(),
    "linear+gaussian": K.Linear() + K.Gaussian(bandwidth=0.4),
    "mixed": 0.5 * (K.Linear() + K.Matern(bandwidth=0.5)) * K.Exponential(bandwidth=2.0)
    + 2.0 * K.Exponential(bandwidth=0.5, metric="cityblock"),
}
DEFINITE_KERNELS = {
    name: kernel for name, kernel in KERNELS.items() if all(f.is_positive_definite() for f in kernel.factors())
}


def on_a_grid(n: int, seed: int = 0, bits: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that are multiples of 2^-bits: 1 - c is exact."""
    rng = np.random.default_rng(seed)
    c = rng.integers(0, 2**bits + 1, size=n) / 2**bits
    return (rng.uniform(size=n) < c).astype(int), np.stack([1 - c, c], axis=1)


def brute_median(x: np.ndarray) -> float:
    distances = np.abs(x[:, None] - x[None, :])[np.triu_indices(len(x), 1)]
    median = np.median(distances)
    return float(np.median(distances[distances > 0])) if median == 0 and distances.any() else float(median)


LINE_KERNELS = ["exponential", "exponential_cityblock", "matern_1.5", "matern_2.5", "mixed"]
PRODUCT_KERNELS = {name: KERNELS[name] for name in LINE_KERNELS} | {
    "matern_1.5 * matern_2.5": K.Matern(bandwidth=0.5, nu=1.5) * K.Matern(bandwidth=0.3, nu=2.5),
    "linear * matern_2.5 + exponential": K.Linear() * K.Matern(bandwidth=0.3, nu=2.5) + K.Exponential(bandwidth=0.1),
}


PLACES = {
    "uniform": lambda rng, n: rng.uniform(size=n),
    "three values": lambda rng, n: np.round(3 * rng.uniform(size=n)) / 3,
    "mostly one": lambda rng, n: np.where(rng.uniform(size=n) < 0.8, 0.25, rng.uniform(size=n)),
    "half of the pairs at 0": lambda rng, n: np.where(rng.uniform(size=n) < 0.707, 0.25, rng.uniform(size=n)),
    "two values": lambda rng, n: rng.integers(2, size=n) * 1.0,
    "tiny": lambda rng, n: rng.uniform(size=n) * 1e-300,
    "saturated": lambda rng, n: 1 / (1 + np.exp(-30 * rng.normal(size=n))),
    "both zeros": lambda rng, n: np.where(rng.uniform(size=n) < 0.5, -0.0, 0.0),
}


def saturated_predictions(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    """Probabilities near 0 and 1: errors from 1e-8 to 1e-4."""
    e = 10.0 ** rng.uniform(-8, -4, size=n)
    p = np.repeat(e[:, None], m, axis=1)
    p[np.arange(n), rng.integers(m, size=n)] = 1 - (m - 1) * e
    return p


def unusual_samples(name: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples of two classes in unusual orders, with few places, or with residuals below rounding."""
    y, p = duplicates_problem(n, 2) if name == "duplicates" else softmax_problem(n, 2)
    if name in ("sorted", "reversed"):
        by_place = np.argsort(p[:, 1])[:: 1 if name == "sorted" else -1]
        y, p = y[by_place], p[by_place]
    elif name == "one label":
        y[:] = 1
    elif name == "ties":
        p[:, 1] = np.round(p[:, 1] * 8) / 8
        p[:, 0] = 1 - p[:, 1]
    elif name == "one place":
        p[:] = p[0]
    elif name == "two places":
        p[:] = np.where(y[:, None] == 1, [0.25, 0.75], [1.0, 0.0])
    elif name == "certain":  # of two coordinates of a residual one is left
        p[:100] = np.where(y[:100, None] == 1, [1e-20, 1.0], [1.0, 1e-22])
    return y, p


def locations(count: int, m: int, seed: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"locations": (rng.integers(m, size=count), rng.dirichlet(np.ones(m), count))}
